// The page of a cluster: fetches cluster.json every second and shows it.
// Names come from peers: they are only ever set as text.
"use strict";

const EVERY = 1000;
const PATIENCE = 5000;

const at = (id) => document.getElementById(id);

function make(tag, content, attributes = {}) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...[content].flat());
  return made;
}

const count = (number) => number.toLocaleString("en");
const some = (number, what) => `${count(number)} ${what}${number === 1 ? "" : "s"}`;

function size(bytes) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let place = 0;
  for (; bytes >= 1024 && place < units.length - 1; place++) bytes /= 1024;
  return `${bytes >= 100 || place === 0 ? Math.round(bytes) : bytes.toFixed(1)} ${units[place]}`;
}

function time(seconds) {
  if (seconds < 60) return `${seconds.toFixed(seconds < 10 ? 1 : 0)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${Math.floor(seconds % 60)} s`;
  return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
}

// A name and its relay, `relay-2 mqtt:1884/-/archive`; or a relay as a whole, which has no name.
const named = ({ relay, name }) =>
  make("span", name ? [make("i", `${relay} `), name] : relay, { class: "name whole" });

// The limit that is nearer: `210 of 50,000 items`, `8.0 MiB of 8.0 MiB`.
function owes({ debt, limit }) {
  const part = (unit) => (limit[unit] === null ? 0 : debt[unit] / limit[unit]);
  if (limit.bytes !== null && part("bytes") > part("items")) return `${size(debt.bytes)} of ${size(limit.bytes)}`;
  return limit.items === null ? some(debt.items, "item") : `${count(debt.items)} of ${some(limit.items, "item")}`;
}

function listed(names, more) {
  const parts = names.flatMap((each, place) => (place ? [", ", named(each)] : [named(each)]));
  return more > 0 ? [...parts, ` and ${count(more)} more`] : parts;
}

const REASONS = {
  alarm: "an alarm is raised",
  rate: "it exceeds its rate limit",
};

function reason(wait) {
  if (wait.on.length) return listed(wait.on, wait.on_more);
  return [REASONS[wait.reason] ?? "a shared limit is reached"];
}

// A narrow screen has the scheme in a line of its own.
function address(url) {
  const [scheme, place] = url.split("://");
  const parts = place ? [make("i", `${scheme}://`), place] : [];
  return make("span", parts, { class: "under name whole address" });
}

function relayRow(relay) {
  const link = relay.http
    ? make("a", relay.name, { href: `${relay.http}/`, class: "name" })
    : make("span", relay.name, { class: "name" });
  const name = make("th", [link, address(relay.mqtt)], { scope: "row" });
  if (!relay.answers) {
    const state = make("span", "does not answer", { class: "state", "data-state": "throttled" });
    return make("tr", [
      name,
      make("td", [state, make("span", relay.fault ?? "", { class: "under" })]),
      make("td", "–", { class: "n none" }),
      make("td", "–", { class: "n none" }),
    ]);
  }
  const waits = relay.waiting > 0;
  const state = make("span", waits ? `${count(relay.waiting)} waiting` : "clear", {
    class: "state",
    "data-state": waits ? "waits" : "clear",
  });
  const alarms = relay.alarms.map((each) => make("span", `alarm: ${each}`, { class: "under soon" }));
  return make("tr", [
    name,
    make("td", [state, ...alarms]),
    make("td", count(relay.connections), { class: "n" }),
    make("td", [count(relay.debt.items), make("small", size(relay.debt.bytes))], { class: "n" }),
  ]);
}

function holderLine(holder) {
  const words = `holds ${some(holder.items, "item")}; no progress for ${time(holder.idle_seconds)}`;
  const parts = [named(holder), make("span", words, { class: "under" })];
  if (holder.left_seconds !== null)
    parts.push(make("span", `patience ends in ${time(Math.max(0, holder.left_seconds))}`, { class: "under soon" }));
  return make("div", parts);
}

function waitRow(wait) {
  const more = wait.count - wait.waiting.length;
  const on = wait.on.length ? wait.on.map(holderLine) : [make("span", reason(wait))];
  if (wait.on_more > 0) on.push(make("span", `and ${count(wait.on_more)} more`, { class: "under" }));
  return make("tr", [
    make("th", [make("span", listed(wait.waiting, more)), make("span", `owes ${owes(wait)}`, { class: "under" })], { scope: "row" }),
    make("td", time(wait.seconds), { class: "n" }),
    make("td", on),
  ]);
}

function verdict(page) {
  const silent = page.relays.filter((each) => !each.answers);
  const [first] = page.waits;
  const mood = silent.length ? "stuck" : first ? "waits" : "calm";
  let headline = ["Nobody waits."];
  if (first) {
    headline = [
      ...listed(first.waiting, first.count - first.waiting.length),
      ` ${first.count > 1 ? "have" : "has"} waited ${time(first.seconds)}${first.on.length ? " for " : ": "}`,
      ...reason(first),
      ".",
    ];
  } else if (silent.length) headline = [`${silent.map((each) => each.name).join(", ")}: no answer.`];
  const also = first && silent.length ? `${silent.map((each) => each.name).join(", ")}: no answer.` : "";
  return { mood, headline, also };
}

let spoken = "";

function show(page) {
  const { mood, headline, also } = verdict(page);
  at("verdict").dataset.mood = mood;
  at("headline").replaceChildren(...headline);
  at("also").textContent = also;
  if (mood !== spoken) {
    spoken = mood;
    at("spoken").textContent = at("headline").textContent;
  }
  const totals = page.totals;
  at("relays-n").textContent = count(totals.answering);
  at("relays-unit").textContent = totals.answering < totals.relays ? `of ${count(totals.relays)} answer` : "answer";
  at("connections-n").textContent = count(totals.connections);
  at("debt-n").textContent = count(totals.debt.items);
  at("debt-unit").textContent = `${totals.debt.items === 1 ? "item" : "items"}, ${size(totals.debt.bytes)}`;
  at("waiting-n").textContent = count(totals.waiting);
  at("relays").tBodies[0].replaceChildren(...page.relays.map(relayRow));
  const waits = page.waits.map(waitRow);
  const nobody = make("tr", make("td", "nobody", { class: "none", colspan: "3" }));
  at("waits").tBodies[0].replaceChildren(...(waits.length ? waits : [nobody]));
  at("waits-more").textContent = page.waits_more ? `and ${some(page.waits_more, "more row")}` : "";
}

function link(state, text) {
  at("link").dataset.state = state;
  at("link-text").textContent = text;
  document.body.classList.toggle("stale", state === "lost");
}

async function look() {
  try {
    const answer = await fetch("cluster.json", { cache: "no-store", signal: AbortSignal.timeout(PATIENCE) });
    if (!answer.ok) throw new Error(`status ${answer.status}`);
    show(await answer.json());
    link("live", "live");
  } catch {
    link("lost", "no answer; trying again");
  }
  setTimeout(look, EVERY);
}

look();
