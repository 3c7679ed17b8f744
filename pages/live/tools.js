// The live page: making elements, and saying numbers. Names come from peers: they are data, and get on
// the page as text, never as markup.
"use strict";

const $ = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";
let latest = null; // the last sample

// When to ask the server again: with the sample that comes about then.
const nextAt = (answer) => performance.now() + 900 * answer.again_seconds;

// -- making things --------------------------------------------------------------------------------

function el(tag, props = {}, ...children) {
  const node = document.createElement(tag);
  for (const [key, value] of Object.entries(props)) {
    if (key === "class") node.className = value;
    else if (key in node && key !== "list") node[key] = value;
    else node.setAttribute(key, value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

function svg(tag, props = {}, ...children) {
  const node = document.createElementNS(SVG, tag);
  for (const [key, value] of Object.entries(props)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

function write(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

function shortName(name) {
  const at = name.lastIndexOf("/");
  return at >= 0 && at < name.length - 1 ? name.slice(at + 1) : name;
}

// `mqtt:1883/-/pub`: what tells it from the others stands out. In tables, where one long name would
// take all the room, its middle is left out; the whole is its title.
const NAME_MAX = 28;

function nameOf(name, whole = false) {
  const last = shortName(name);
  const first = name.slice(0, name.length - last.length);
  const shown = whole || last.length <= NAME_MAX ? last : `${last.slice(0, NAME_MAX / 2)}\u2026${last.slice(1 - NAME_MAX / 2)}`;
  return el("bdi", { class: whole ? "name whole" : "name", title: name }, first ? el("i", {}, first) : null, first ? el("wbr") : null, el("span", { class: "last" }, shown));
}

// The same as a button that opens the drawer: one listener for all of them is in drawer.js.
function opener(name) {
  return el("button", { class: "open", type: "button", title: `Details of ${name}`, "data-open": name }, nameOf(name));
}

// Rows are known by a key, so that what is focused or pointed at stays where it is.
function rows(parent, data, keyOf, make, update) {
  const old = new Map([...parent.children].map((row) => [row.dataset.key, row]));
  const focused = document.activeElement;
  const wanted = data.map((each) => {
    const key = keyOf(each);
    let row = old.get(key);
    if (row) old.delete(key);
    else {
      row = make(each);
      row.dataset.key = key;
    }
    update(row, each);
    return row;
  });
  for (const row of old.values()) row.remove();
  wanted.forEach((row, place) => {
    if (parent.children[place] !== row) parent.insertBefore(row, parent.children[place] ?? null);
  });
  if (focused !== document.activeElement && focused?.isConnected) focused.focus({ preventScroll: true });
}

// -- saying things --------------------------------------------------------------------------------

const whole = new Intl.NumberFormat("en");
const brief = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const number = (value) => whole.format(Math.round(value));
const compact = (value) => (value < 10000 ? number(value) : brief.format(value));

function size(bytes) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let place = 0;
  while (bytes >= 1000 && place < units.length - 1) {
    bytes /= 1024;
    place += 1;
  }
  return `${place && bytes < 100 ? bytes.toFixed(1) : number(bytes)}\u00a0${units[place]}`;
}

// The one form of a duration, as accounts/watch/_durations.py has it: `12.3 s`, `4 min 10 s`, `2 h 5 min`, `3 d 1 h`.
// With spaces that do not break: a unit stays with its number.
function duration(value) {
  if (value < 99.95) return `${value.toFixed(1)}\u00a0s`;
  const all = Math.round(value);
  const [unit, name, below, part] = all >= 86400 ? [86400, "d", 3600, "h"] : all >= 3600 ? [3600, "h", 60, "min"] : [60, "min", 1, "s"];
  const rest = Math.floor((all % unit) / below);
  return `${Math.floor(all / unit)}\u00a0${name}${rest ? ` ${rest}\u00a0${part}` : ""}`;
}

const percent = (part) => `${Math.floor(part * 100)}\u00a0%`;
// `what` is the plural; `one` the singular, where that is not the same without its last letter.
const left = (count, what, one = what.slice(0, -1)) => (count > 0 ? `and ${number(count)} more ${count === 1 ? one : what}` : "");

function share(debt, limit) {
  return limit === null ? 0 : debt / (limit || 1);
}

// The unit that is nearer to its limit is the one that is told of.
function tightUnit(row) {
  const inBytes = share(row.debt_bytes, row.limit_bytes) > share(row.debt_items, row.limit_items);
  return inBytes
    ? { part: share(row.debt_bytes, row.limit_bytes), debt: size(row.debt_bytes), limit: size(row.limit_bytes), unit: "", low: row.low_bytes, low_text: size(row.low_bytes ?? 0), below: row.debt_bytes <= row.limit_bytes }
    : { part: share(row.debt_items, row.limit_items), debt: number(row.debt_items), limit: row.limit_items === null ? null : number(row.limit_items), unit: " items", low: row.low_items, low_text: number(row.low_items ?? 0), below: row.limit_items === null || row.debt_items <= row.limit_items };
}

const amount = (tight) => (tight.limit === null ? `${tight.debt}${tight.unit}` : `${tight.debt} of ${tight.limit}${tight.unit}`);

// A holder on which somebody waits and that has made no progress for a second is named as still.
const standsStill = (on) => on.waited_items > 0 && on.idle_seconds >= 1;

// By its policy, what a holder that is stuck does instead of standing in the way.
const RELIEF = { drop_oldest: "drops what is old", drop_newest: "drops what comes", conflate: "keeps the latest of each topic alone", spill: "has its backlog put aside" };
const hasAnEnd = (on) => on.policy === "disconnect" || on.policy in RELIEF;

// What happens next: [words, whether they are urgent].
function prospect(on) {
  if (on.kind === "loose") return ["is what nobody has taken yet", false];
  if (!standsStill(on)) return ["makes progress", false];
  if (!hasAnEnd(on)) return [`no progress for ${duration(on.idle_seconds)}; its policy is to wait`, true];
  if (on.left_seconds === null) return [`no progress for ${duration(on.idle_seconds)}; there is no time limit`, true];
  if (on.away) return [on.left_seconds > 0 ? `is away; its session is ended in ${duration(on.left_seconds)} unless it comes back` : "is away; its session is being ended", true];
  if (on.policy in RELIEF) return [on.left_seconds > 0 ? `${RELIEF[on.policy]} in ${duration(on.left_seconds)} unless it reads` : `${RELIEF[on.policy]} from now on`, true];
  return [on.left_seconds > 0 ? `is cut off in ${duration(on.left_seconds)} unless it reads` : "is being cut off", true];
}

// Why it is slow, as a sentence after others; it has the name that its peer chose.
const whySlow = (on) => (on?.why ? [". ", el("bdi", {}, on.why)] : []);
const whySlowText = (on) => (on?.why ? `. ${on.why}` : "");

// Whom it keeps waiting.
function blocked(row) {
  const others = row.waiting - 1;
  const first = row.waiting_first === null ? "somebody" : shortName(row.waiting_first);
  return `${first}${others > 0 ? ` and ${number(others)} ${others === 1 ? "other" : "others"}` : ""}, for ${duration(row.waiting_seconds)}`;
}

// Of one that does so already: nobody waits on it.
function beingBehind(row) {
  const lost = [row.dropped_items ? `${number(row.dropped_items)} dropped` : "", row.stored_items ? `${number(row.stored_items)} put aside` : ""].filter(Boolean).join(", ");
  return `behind for ${duration(row.behind_seconds)} (${row.policy})${lost ? `: ${lost} so far` : ""}`;
}

// Of a group: who shares what comes, those first that have most in their hands.
function membersOf(row) {
  if (!row.members) return "";
  if (!row.members.length) return "; no member is there";
  const each = row.members.map((one) => `${shortName(one.name)} ${one.flows ? `has ${number(one.unacked)}` : `is stuck with ${number(one.unacked)}`}`);
  return `; ${each.join(", ")}${row.members_more ? `, and ${number(row.members_more)} more ${row.members_more === 1 ? "member" : "members"}` : ""}`;
}

// And then, for those who wait.
function afterwards(wait, on) {
  if (!standsStill(on)) return "";
  const who = wait.count === 1 ? shortName(wait.waiting[0]) : "those who wait";
  const one = wait.count === 1;
  if (!hasAnEnd(on) || on.left_seconds === null) return `; until then ${who} ${one ? "stands" : "stand"} still`;
  if (on.enough) return `; ${who} ${one ? "goes" : "go"} on then`;
  const others = wait.on.length - 1 + wait.on_more;
  return `; ${who} ${one ? "waits" : "wait"} on then, for ${others === 1 ? `${shortName(wait.on[1]?.name ?? "")}` : `${number(others)} others`}`;
}

function people(names, count) {
  const nodes = [];
  names.slice(0, 2).forEach((name, place) => {
    if (place) nodes.push(count > 2 ? ", " : " and ");
    nodes.push(nameOf(name, true));
  });
  const others = count - Math.min(2, names.length);
  if (others > 0) nodes.push(others === 1 ? " and 1 other" : ` and ${number(others)} others`);
  return nodes;
}
