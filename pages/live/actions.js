// The live page: forms in the drawer that change the server, for somebody with its token. The token
// stays in the memory of this page: it is asked for again when the page is loaded again.
"use strict";

const CLIENT_POLICIES = ["balanced", "lossless", "live", "wait", "disconnect", "drop_oldest", "drop_newest", "conflate", "spill"];

let token = null;
let offered = ""; // what can be changed of the name in the drawer
let offeredOf = null; // that name

$("drawer").addEventListener("about", ({ detail }) => {
  if (detail.can_change) offer(detail);
});
$("drawer").addEventListener("close", () => write($("drawer-done"), ""));

// Forms are made anew only when others are wanted: somebody may be writing in them.
function offer({ account, client }) {
  const name = $("drawer").dataset.name;
  const connected = client !== null && client.away_since === null;
  const above = account !== null && (name === "server" || /^tenant\/[^/]+$/.test(name));
  const wanted = `${name} ${token === null} ${connected} ${client !== null} ${above}`;
  const place = $("drawer-actions");
  if (wanted === offered && place.childElementCount) return;
  if (name !== offeredOf) write($("drawer-done"), "");
  [offered, offeredOf] = [wanted, name];
  const forms = [];
  if (client !== null || above) {
    if (token === null) forms.push(tokenForm());
    else {
      if (connected) forms.push(disconnectForm(name));
      if (connected || above) forms.push(limitForm(name));
      if (above && name !== "server") forms.push(weightForm(name));
      if (client !== null) forms.push(policyForm(name));
    }
  }
  place.replaceChildren(...forms);
  place.hidden = !forms.length;
}

async function change(method, path, fields) {
  write($("drawer-done"), "…");
  try {
    // Without credentials: the browser would ask for a password when the token is wrong.
    const answer = await fetch(path, { method, credentials: "omit", headers: { Authorization: `Bearer ${token}`, "Content-Type": "application/json" }, body: JSON.stringify(fields) });
    const text = (await answer.text()).trim();
    if (answer.status === 401) {
      token = null;
      askAgain();
    }
    write($("drawer-done"), answer.ok ? "Done." : text);
  } catch {
    write($("drawer-done"), "The server does not answer.");
  }
}

function askAgain() {
  $("drawer-actions").replaceChildren();
  askAt = -Infinity;
  askAbout();
}

const changeAccount = (name, fields) => change("PATCH", `accounts/${encodeURIComponent(name)}`, fields);

function form(button, done, ...fields) {
  const submit = (event) => {
    event.preventDefault();
    done();
  };
  return el("form", { class: "action", onsubmit: submit, autocomplete: "off" }, ...fields, el("button", {}, button));
}

const field = (text, input) => el("label", {}, `${text} `, input);

function tokenForm() {
  const input = el("input", { type: "password", size: 16, required: true, autocomplete: "off" });
  return form("Make changes", () => {
    token = input.value.trim();
    write($("drawer-done"), "");
    askAgain();
  }, field("Token", input));
}

function disconnectForm(name) {
  const sure = el("input", { type: "checkbox", required: true });
  return form("Disconnect", () => change("POST", `clients/${encodeURIComponent(name)}/disconnect`, {}), el("label", {}, sure, " although it may connect again"));
}

// "none" is no limit; what is left empty stays as it is.
function entered(text) {
  if (text.toLowerCase() === "none") return null;
  return /^\d+$/.test(text) ? Number(text) : text;
}

function limitForm(name) {
  const items = el("input", { type: "text", size: 8, placeholder: "none" });
  const bytes = el("input", { type: "text", size: 8, placeholder: "8MiB" });
  return form("Set limit", () => {
    const fields = {};
    if (items.value.trim()) fields.limit_items = entered(items.value.trim());
    if (bytes.value.trim()) fields.limit_bytes = entered(bytes.value.trim());
    changeAccount(name, fields);
  }, field("Items", items), field("Bytes", bytes));
}

function weightForm(name) {
  const input = el("input", { type: "number", min: "0.001", step: "any", required: true });
  return form("Set weight", () => changeAccount(name, { weight: Number(input.value) }), field("Weight", input));
}

function policyForm(name) {
  const policy = el("select", {}, ...CLIENT_POLICIES.map((each) => el("option", { value: each }, each.replace("_", " "))));
  const patience = el("input", { type: "number", min: "0", step: "any" });
  return form("Set policy", () => {
    const fields = { policy: policy.value };
    if (patience.value) fields.patience = Number(patience.value);
    changeAccount(name, fields);
  }, field("Policy", policy), field("Patience, seconds", patience));
}
