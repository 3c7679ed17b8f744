// The live page: the drawer, with all about one name: as a client, an account and a holder.
//
// Buttons that do something to it go into #drawer-actions, which is hidden while it is empty. After
// each answer of the server #drawer gets an event `about` with the answer of /live/about as its
// `detail`; the whole name is in there, and in the `data-name` of the drawer. When another name is
// opened, #drawer-actions is emptied.
"use strict";

let opened = null;
let openedBy = null; // what has had the focus
let asking = false;
let askAt = -Infinity; // when to ask next

function openDrawer(name) {
  const drawer = $("drawer");
  if (!drawer.open) {
    openedBy = { node: document.activeElement, name, within: document.activeElement?.closest("[id]")?.id };
    drawer.showModal();
  }
  opened = name;
  askAt = -Infinity;
  drawer.dataset.name = name;
  drawer.scrollTop = 0;
  $("drawer-h").replaceChildren(nameOf(name, true));
  write($("drawer-kind"), "Details");
  write($("drawer-note"), "");
  $("drawer-actions").replaceChildren();
  $("drawer-actions").hidden = true;
  for (const part of drawer.querySelectorAll("section")) part.hidden = true;
  askAbout();
}

async function askAbout() {
  if (opened === null || asking || performance.now() < askAt) return;
  const name = opened;
  asking = true;
  try {
    const answer = await fetch(`live/about?name=${encodeURIComponent(name)}`);
    const about = await answer.json();
    if (name === opened) {
      askAt = nextAt(about);
      write($("drawer-note"), "");
      $("drawer").dataset.name = about.name;
      showAbout(about);
      $("drawer").dispatchEvent(new CustomEvent("about", { detail: about }));
    }
  } catch {
    write($("drawer-note"), "The server does not answer.");
  } finally {
    asking = false;
  }
  if (opened !== null && opened !== name) askAbout();
}

function showAbout({ account, holder, client, timeline }) {
  const kinds = [client && `${client.protocol} client`, account && "account", holder && holder.kind].filter(Boolean);
  write($("drawer-kind"), kinds.length ? kinds.join(", ") : "Gone");
  if (!kinds.length) write($("drawer-note"), "There is no client, account or holder of this name now: it is closed and has paid all it owed.");
  showClient(client);
  showAccount(account);
  showHolder(holder);
  showTimeline(timeline, kinds.length > 0);
}

// Terms and what is said of them; those with nothing to say are left out.
function facts(section, all) {
  $(section).hidden = false;
  rows($(section).querySelector("dl"), all.filter(([, text]) => text !== null && text !== ""), ([term]) => term,
    ([term]) => el("div", {}, el("dt", {}, term), el("dd")),
    (item, [, text]) => write(item.lastChild, text));
}

const dates = new Intl.DateTimeFormat("sv", { dateStyle: "short", timeStyle: "medium" }); // 2026-11-28 10:12:03

function when(time) {
  const ago = Date.now() / 1000 - time;
  return `${dates.format(new Date(time * 1000))}, ${duration(Math.max(0, Math.round(ago)))} ago`;
}

function showClient(client) {
  if (client === null) {
    $("about-client").hidden = true;
    return;
  }
  const topics = client.subscriptions;
  facts("about-client", [
    ["Address", client.address ?? "not connected"],
    ["User", client.user ?? "none"],
    ["Connected since", client.since === null ? null : when(client.since)],
    ["Away since", client.away_since === null ? null : when(client.away_since)],
    ["Subscriptions", topics.length ? number(topics.length + client.subscriptions_more) : "none"],
  ]);
  const more = client.subscriptions_more;
  rows($("subscriptions"), more ? [...topics, null] : topics, (topic) => String(topic),
    (topic) => el("li", topic === null ? { class: "rest" } : {}),
    (item, topic) => write(item, topic ?? `and ${number(more)} more`));
  $("subscriptions").hidden = !topics.length;
}

function both(pair) {
  return pair.items === null && pair.bytes === null ? "none" : `${pair.items === null ? "any number of" : number(pair.items)} items, ${pair.bytes === null ? "any number of bytes" : size(pair.bytes)}`;
}

function perSecond({ items, bytes }) {
  const said = [items === null ? "" : `${number(items)} items`, bytes === null ? "" : size(bytes)].filter(Boolean);
  return said.length ? `${said.join(", ")} a second` : null;
}

function showAccount(row) {
  if (row === null) {
    $("about-account").hidden = true;
    return;
  }
  facts("about-account", [
    ["State", row.waiting_readers ? `${row.state}; its reader waits, ${duration(row.waiting_seconds)} so far` : row.state],
    ["Debt", both(row.debt)],
    ["Limit", both(row.limit)],
    ["Goes on at", both(row.low)],
    ["Its share", row.share.items === null && row.share.bytes === null ? null : both(row.share)],
    ["Rate limit", perSecond(row.rate)],
    ["Highest so far", both(row.peak)],
    ["Ever borrowed", both(row.borrowed)],
    ["Waited", `${number(row.waits)} ${row.waits === 1 ? "time" : "times"}, ${duration(row.waited_seconds)} in all`],
    ["Standing state", both(row.standing)],
    ["Under", row.parent ?? "nobody"],
  ]);
  parts("debtors", "holder", row.holders, left(row.holders_more, "holders"));

  // The stretch that still goes on is on nobody's account yet: it is the present holder's.
  const blame = Object.entries(row.blame).map(([name, value]) => ({ name, value, now: false }));
  blame.sort((a, b) => b.value - a.value);
  const rest = row.waited_seconds - blame.reduce((sum, each) => sum + each.value, 0);
  if (rest > 0.05) blame.push({ name: "not told yet: since the last repayment", value: rest, now: true });
  const all = Math.max(1e-9, ...blame.map((each) => each.value));
  rows($("blame").tBodies[0], blame, (each) => each.name,
    (each) => el("tr", {}, el("th", { scope: "row" }, each.now ? each.name : opener(each.name)), el("td", { class: "n" }), el("td", {}, el("div", { class: "bar" }, el("span")))),
    (item, each) => {
      write(item.children[1], duration(each.value));
      item.children[2].firstChild.firstChild.style.setProperty("--part", (each.value / all).toFixed(4));
    });
  $("blame").hidden = !blame.length;
}

// Of the debt of an account, or of what a holder has: its parts, the largest first.
function parts(id, what, found, more) {
  rows($(id).tBodies[0], found, (row) => row[what],
    (row) => el("tr", {}, el("th", { scope: "row" }, opener(row[what])), el("td", { class: "n" }), el("td", { class: "n" }), el("td", { class: "n" })),
    (item, row) => {
      write(item.children[1], number(row.items));
      write(item.children[2], size(row.bytes));
      write(item.children[3], duration(row.oldest_seconds));
    });
  $(id).hidden = !found.length;
  write($(`${id}-more`), more);
}

function showHolder(row) {
  if (row === null) {
    $("about-holder").hidden = true;
    return;
  }
  const lost = [row.dropped_items ? `${number(row.dropped_items)} dropped` : "", row.stored_items ? `${number(row.stored_items)} put aside` : ""].filter(Boolean);
  facts("about-holder", [
    ["Holds", `${both(row)}, in ${number(row.loans)} ${row.loans === 1 ? "loan" : "loans"}`],
    ["Oldest", row.items ? duration(row.oldest_seconds) : null],
    ["No progress", row.items ? duration(row.idle_seconds) : null],
    ["Blocks", row.waiting ? `${blocked(row)}: ${number(row.waited_items)} items` : "nobody"],
    ["Next", row.waited_items ? prospect(row)[0] : null],
    ["Why", row.why],
    ["Policy", row.policy ?? "none"],
    ["Patience", row.patience === null ? "no limit" : duration(row.patience)],
    ["Behind", row.behind_seconds === null ? null : `for ${duration(row.behind_seconds)}`],
    ["Lost so far", lost.length ? lost.join(", ") : "nothing"],
    ["Members", row.members ? membersOf(row).slice(2) : null],
  ]);
  parts("owed-by", "account", row.debtors, left(row.debtors_more, "accounts"));
}

// -- what has happened to a client ----------------------------------------------------------------

const often = (each) => (each.times > 1 ? ` ${number(each.times)} times` : "");
const longest = (each) => (each.times > 1 ? `, the longest ${duration(each.seconds)}` : "");

const HAPPENED = {
  connected: (each) => [`connected${often(each)}`, each.whom ? ` from ${each.whom}` : ""],
  left: (each) => [`left${often(each)}`, each.whom ? `: ${each.whom}` : ""],
  waited: (each) => [`waited${each.times > 1 ? often(each) : ` ${duration(each.seconds)}`}`, each.whom ? [" for ", opener(each.whom)] : "", longest(each)],
  blocked: (each) => ["made ", each.whom ? opener(each.whom) : "somebody", ` wait${each.times > 1 ? often(each) : ` ${duration(each.seconds)}`}`, longest(each)],
  relieved: (each) => [`was too slow (${each.whom}), ${duration(each.seconds)} without progress: ${lostWords(each)}`],
  given_up: (each) => [`was cut off after ${duration(each.seconds)} without progress: ${number(each.items)} items written off`, each.whom ? `. ${each.whom}` : ""],
};
// What somebody has to know of stands out, by a word and by a mark.
const BAD = ["relieved", "given_up", "blocked"];

function lostWords(each) {
  const said = [each.dropped_items ? `${number(each.dropped_items)} dropped` : "", each.stored_items ? `${number(each.stored_items)} put aside` : ""].filter(Boolean);
  return said.length ? said.join(", ") : "nothing lost yet";
}

function showTimeline(timeline, known) {
  $("about-timeline").hidden = !known && !timeline.length;
  const now = Date.now() / 1000;
  // Known by what it is, and which one of those; figures in it grow, and what has the focus stays.
  const counts = new Map();
  const keys = new Map(timeline.toReversed().map((each) => {
    const what = JSON.stringify([each.what, each.whom, each.times, each.dropped_items, each.stored_items]);
    counts.set(what, (counts.get(what) ?? 0) + 1);
    return [each, `${what} ${counts.get(what)}`];
  }));
  rows($("timeline"), timeline.length ? timeline : [null], (each) => keys.get(each) ?? "none",
    (each) => {
      if (!each) return el("li", { class: "empty" }, "Nothing has happened to it that is noted here: it has not come or gone, waited, or made others wait.");
      const time = new Date((now - each.ago_seconds) * 1000);
      return el("li", { class: BAD.includes(each.what) ? "bad" : "" },
        el("time", { dateTime: time.toISOString(), title: time.toLocaleString() }),
        el("span", {}, ...HAPPENED[each.what](each).flat()));
    },
    (item, each) => {
      if (each) write(item.firstChild, `${clockTime(now - each.ago_seconds, true)}, ${duration(Math.round(each.ago_seconds))} ago`);
    });
}

// -- opening and closing --------------------------------------------------------------------------

document.addEventListener("click", (event) => {
  const name = event.target.closest?.("[data-open]")?.dataset.open;
  if (name !== undefined) openDrawer(name);
});

$("drawer").addEventListener("close", () => {
  opened = null;
  // Samples came and went meanwhile: the row of that name may be another one now, or gone.
  const { node, name, within } = openedBy ?? {};
  if (node?.isConnected && node !== document.body) node.focus({ preventScroll: true });
  else if (name !== undefined) {
    const there = [...document.querySelectorAll("main [data-open]")].filter((each) => each.dataset.open === name && each.matches("button"));
    (there.find((each) => each.closest(`#${within}`)) ?? there[0] ?? $("verdict")).focus({ preventScroll: true });
  }
});
$("drawer").addEventListener("click", (event) => {
  if (event.target === $("drawer")) $("drawer").close();
});
