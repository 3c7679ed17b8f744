// The live page. Names come from peers: they are data, and get on the page as text, never as markup.
"use strict";

const $ = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";
const MINUTES = 5;
const TRACKS_MAX = 200; // accounts whose last minutes are kept here
const MOMENT_SECONDS = 5; // between what is kept of the largest, as in the relay's history
const NAMED = 10;
const THEN_MAX = 3;
const GAP_SECONDS = 15; // without a point for so long a line has a gap

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

function seconds(value) {
  // With spaces that do not break: a unit stays with its number.
  if (value < 10) return `${value.toFixed(1)}\u00a0s`;
  if (value < 90) return `${Math.round(value)}\u00a0s`;
  const minutes = Math.floor(value / 60);
  if (minutes < 90) return `${minutes}\u00a0min ${Math.round(value % 60)}\u00a0s`;
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? `${hours}\u00a0h ${minutes % 60}\u00a0min` : `${Math.floor(hours / 24)}\u00a0days`;
}

const exact = (value) => (value < 90 ? `${value.toFixed(1)}\u00a0s` : seconds(value));
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
  if (!hasAnEnd(on)) return [`no progress for ${exact(on.idle_seconds)}; its policy is to wait`, true];
  if (on.left_seconds === null) return [`no progress for ${exact(on.idle_seconds)}; there is no time limit`, true];
  if (on.away) return [on.left_seconds > 0 ? `is away; its session is ended in ${exact(on.left_seconds)} unless it comes back` : "is away; its session is being ended", true];
  if (on.policy in RELIEF) return [on.left_seconds > 0 ? `${RELIEF[on.policy]} in ${exact(on.left_seconds)} unless it reads` : `${RELIEF[on.policy]} from now on`, true];
  return [on.left_seconds > 0 ? `is cut off in ${exact(on.left_seconds)} unless it reads` : "is being cut off", true];
}

// Why it is slow, as a sentence after others; it has the name that its peer chose.
const whySlow = (on) => (on?.why ? [". ", el("bdi", {}, on.why)] : []);
const whySlowText = (on) => (on?.why ? `. ${on.why}` : "");

// Of one that does so already: nobody waits on it.
function beingBehind(row) {
  const lost = [row.dropped_items ? `${number(row.dropped_items)} dropped` : "", row.stored_items ? `${number(row.stored_items)} put aside` : ""].filter(Boolean).join(", ");
  return `behind for ${exact(row.behind_seconds)} (${row.policy})${lost ? `: ${lost} so far` : ""}`;
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

// -- the sentence ---------------------------------------------------------------------------------

function sentence(wait) {
  const on = wait.on[0];
  const tight = tightUnit(wait);
  const where = wait.waiting.length === 1 && wait.waiting[0] === wait.at ? [] : [" at ", nameOf(wait.at, true)];
  const parts = [...people(wait.waiting, wait.count), wait.count === 1 ? " waits" : " wait", ...where];
  parts.push(wait.blockers.length && !wait.alarms.length ? ", blocked by " : " for ");
  if (wait.alarms.length) {
    parts.push(`an alarm: ${alarms(wait.alarms)}, ${exact(wait.seconds)}`);
    return on ? [...parts, "; of what is owed ", nameOf(on.name, true), ` holds ${number(on.here_items)} ${on.here_items === 1 ? "item" : "items"}, ${size(on.here_bytes)}`] : parts;
  }
  if (wait.blockers.length) {
    const more = wait.blockers.length - 1;
    parts.push(nameOf(on ? on.name : wait.blockers[0], true));
    if (more) parts.push(more === 1 ? " and 1 other" : ` and ${number(more)} others`);
    parts.push(`: ${exact(wait.seconds)}`);
    if (!on) return parts;
    parts.push(`; it holds ${number(on.here_items)} ${on.here_items === 1 ? "item" : "items"}, ${size(on.here_bytes)}, and `);
    const [words, urgent] = prospect(on);
    const what = words.startsWith("no ") ? `made ${words}` : words;
    return [...parts, urgent ? el("span", { class: "soon" }, what) : what, afterwards(wait, on), ...whySlow(on)];
  }
  if (wait.rate !== null) return [...parts, `its rate, ${wait.rate}, ${exact(wait.seconds)}`];
  if (!on) return [...parts, `what nobody holds any more: ${amount(tight)}, ${exact(wait.seconds)}`];
  parts.push(nameOf(on.name, true));
  const others = wait.on.length - 1 + wait.on_more;
  if (others > 0) parts.push(others === 1 ? " and 1 other" : ` and ${number(others)} others`);
  parts.push(`: ${amount(tight)}${wait.reason === "share" ? ", its share," : ","} ${exact(wait.seconds)}`);
  if (tight.below) parts.push(` (goes on at ${tight.low_text})`);
  const [words, urgent] = prospect(on);
  const who = `${words.startsWith("no ") ? `${shortName(on.name)} made` : shortName(on.name)} ${words}`;
  parts.push("; ", urgent ? el("span", { class: "soon" }, who) : who, afterwards(wait, on), ...whySlow(on));
  return parts;
}

// Who waits for the same is said in one line.
const ALSO_MAX = 3;

function alsoWait(waits) {
  const parts = [];
  let named = 0;
  let all = 0;
  for (const wait of waits) {
    all += wait.count;
    if (parts.length >= 2 * ALSO_MAX) continue;
    if (parts.length) parts.push(", ");
    parts.push(el("span", {}, ...people(wait.waiting, wait.count), ` (${exact(wait.seconds)})`));
    named += wait.count;
  }
  if (all > named) parts.push(all - named === 1 ? " and 1 other" : ` and ${number(all - named)} others`);
  return [...parts, all === 1 ? " waits" : " wait", " for it as well."];
}

const ALARMS = { memory: "memory is short", disk: "the disk is nearly full", loop: "the event loop is late" };
const alarms = (kinds) => kinds.map((kind) => ALARMS[kind] ?? kind).join(" and ");

let verdictKey = "";
let spokenMood = "";
let spokenAt = -Infinity;
const SPOKEN_SECONDS = 15;
const TOLD_SECONDS = 600; // for so long, who was cut off is said beside "Nobody waits."

// Read aloud at once when somebody begins to stand still or has been cut off, and otherwise now and
// then, when it is something else than before: who waits on whom may change with each second.
const URGENT = ["stuck", "cut"];

function speak(text, mood) {
  const now = performance.now() / 1000;
  if (text === verdictKey || (now - spokenAt < SPOKEN_SECONDS && (mood === spokenMood || !URGENT.includes(mood)))) return;
  verdictKey = text;
  spokenMood = mood;
  spokenAt = now;
  write($("spoken"), text);
}

// Those that cause debt: a level owes what these owe.
function owingBelow({ totals, levels_owing }) {
  return totals.accounts.owing + totals.accounts.throttled + totals.accounts.flow - levels_owing;
}

function showVerdict(state) {
  const box = $("verdict");
  const lines = [];
  const waits = state.waits;
  let spoken = "";
  let mood = !waits.length ? "calm" : waits.some((wait) => wait.on.some(standsStill)) ? "stuck" : "waits";
  box.dataset.mood = mood;
  if (!waits.length) {
    const totals = state.totals;
    const owing = owingBelow(state);
    lines.push(el("p", { class: "headline" }, "Nobody waits."));
    const text = totals.debt_items
      ? `${number(owing)} ${owing === 1 ? "account owes" : "accounts owe"} ${number(totals.debt_items)} ${totals.debt_items === 1 ? "item" : "items"}; everybody is within their limit.`
      : "Nobody owes anything.";
    lines.push(el("p", { class: "aside" }, text));
    for (const [place, items] of Object.entries(totals.at_rest_items)) {
      if (items) lines.push(el("p", { class: "aside" }, `${number(items)} ${items === 1 ? "message is" : "messages are"} kept ${place === "disk" ? "on disk" : "in RAM"} for clients that are away or slow: ${size(totals.at_rest_bytes[place])}.`));
    }
    spoken = "Nobody waits.";
    const last = state.incidents.find((each) => each.given_up && each.ago_seconds < TOLD_SECONDS);
    if (last) {
      lines.push(el("p", { class: "also" }, ...whatHappened(last), ", ", ago(state, last), `: ${howItWas(last)}.`));
      spoken += isSession(last) ? ` The session of ${last.holder} was ended.` : ` ${last.holder} was cut off; ${number(last.items)} items were written off.`;
      mood = "cut";
    }
  } else {
    const groups = new Map();
    for (const wait of waits) {
      const on = wait.on[0]?.name ?? null;
      groups.set(on, [...(groups.get(on) ?? []), wait]);
    }
    const [first, ...others] = [...groups.values()];
    lines.push(el("p", { class: "headline" }, ...sentence(first[0])));
    if (first.length > 1) lines.push(el("p", { class: "also" }, ...alsoWait(first.slice(1))));
    for (const [wait, ...same] of others.slice(0, 2)) {
      lines.push(el("p", { class: "also" }, ...sentence(wait), ". ", ...(same.length ? alsoWait(same) : [])));
    }
    const rest = others.slice(2).flat().reduce((sum, wait) => sum + wait.count, 0);
    const more = [];
    if (rest > 0) more.push(`${number(rest)} more ${rest === 1 ? "waits" : "wait"} for others`);
    if (state.more.waits > 0) more.push(`${number(state.more.waits)} more ${state.more.waits === 1 ? "account is" : "accounts are"} waiting`);
    if (more.length) lines.push(el("p", { class: "aside" }, `And ${more.join("; ")}.`));
    const on = waits[0].on[0];
    spoken = `${waits[0].waiting.slice(0, 2).join(", ")} waits for ${on ? on.name : "nobody"}` + (on && standsStill(on) ? ", which makes no progress" : "") + `${whySlowText(on).replace(/ \([^)]*\)$/, "")}.`; // without figures, which change
  }
  if (state.alarms.length) {
    lines.push(el("p", { class: "also" }, el("span", { class: "soon" }, `Alarm: ${alarms(state.alarms)}.`), " No publisher is read until it is over."));
    spoken += ` Alarm: ${alarms(state.alarms)}.`;
  }
  for (const forecast of state.forecasts) {
    lines.push(el("p", { class: "also" }, el("bdi", {}, forecast.sentence), "."));
    spoken += ` ${forecast.holder} takes nothing; ${forecast.account} will wait for it soon.`;
  }
  for (const trouble of state.troubles) {
    lines.push(el("p", { class: "also" }, el("span", { class: "soon" }, `${trouble}.`), trouble.startsWith("cannot ") ? " What is not on disk is not confirmed until then." : ""));
    spoken += ` ${trouble}.`;
  }
  for (const ring of state.rings) {
    const names = ring.members.flatMap((name, place) => (place ? [" \u2192 ", nameOf(name, true)] : [nameOf(name, true)]));
    const more = ring.count - ring.members.length;
    if (ring.count === 1) lines.push(el("p", { class: "also" }, "A ring of one: ", ...names, ` waits for what it does not read itself, for ${exact(ring.seconds)}.`));
    else lines.push(el("p", { class: "also" }, "A ring, in which each waits on the next: ", ...names, more > 0 ? ` and ${number(more)} more` : " \u2192 the first again", `; for ${exact(ring.seconds)}.`));
    spoken += ` A ring of ${ring.count}.`;
  }
  if (state.more.rings > 0) lines.push(el("p", { class: "aside" }, `And ${number(state.more.rings)} more ${state.more.rings === 1 ? "ring" : "rings"}.`));
  if (!state.rings_sought) {
    const all = el("a", { href: "ledger.json" }, "ledger.json");
    lines.push(el("p", { class: "aside" }, "So many wait that rings are not looked for here; ", all, " has them."));
  }
  box.replaceChildren(...lines);
  speak(spoken, mood);
  document.title = waits.length ? `${shortName(waits[0].waiting[0])} waits for ${waits[0].on[0] ? shortName(waits[0].on[0].name) : "nobody"} \u2013 clearfunds` : "clearfunds";
}

// -- what has happened ----------------------------------------------------------------------------

function ago(state, incident) {
  const when = new Date((state.time - incident.ago_seconds) * 1000);
  return el("time", { dateTime: when.toISOString(), title: when.toLocaleString() }, `${seconds(Math.floor(incident.ago_seconds))} ago`);
}

function named(names, more) {
  const short = names.map(shortName);
  const others = more === true ? "others" : more > 0 ? `${number(more)} more` : null;
  if (others) return `${short.join(", ")} and ${others}`;
  return short.length > 1 ? `${short.slice(0, -1).join(", ")} and ${short[short.length - 1]}` : short[0];
}

// Nobody was there to be cut off: the session of a client that was away was in others' way.
const isSession = (incident) => incident.given_up && incident.kind === "queue" && !incident.items;

// The headline of an incident, and what there is to say of it.
function whatHappened(incident) {
  const whom = incident.holder === null ? "somebody" : nameOf(incident.holder, true);
  if (isSession(incident)) return ["The session of ", whom, ", who was away, was ended"];
  if (incident.given_up) return [whom, " was cut off"];
  if (incident.relieved) return [whom, " was too slow and fell behind"];
  const [first, ...rest] = incident.accounts;
  const others = incident.accounts_more ? " and others" : rest.length ? ` and ${named(rest, 0)}` : "";
  return [nameOf(first, true), others, " waited for ", whom];
}

function howItWas(incident) {
  const said = [];
  const waits = incident.waits;
  const longest = exact(incident.seconds);
  if (isSession(incident)) {
    said.push(`its queue had made no progress for ${exact(incident.idle_seconds)}`);
    if (waits) said.push(`${named(incident.accounts, incident.accounts_more)} had waited ${longest}${waits > 1 ? " at most" : ""}`);
  } else if (incident.given_up) {
    said.push(`${number(incident.items)} ${incident.items === 1 ? "item" : "items"}${incident.debtors.length ? ` of ${named(incident.debtors, incident.debtors_more)}` : ""} written off after ${exact(incident.idle_seconds)} without progress`);
    if (incident.ring) said.push(incident.ring === 1 ? "it was a ring of one" : `it was one of a ring of ${number(incident.ring)}`);
    if (waits) said.push(`${named(incident.accounts, incident.accounts_more)} had waited ${longest}${waits > 1 ? " at most" : ""}`);
  } else if (incident.relieved) {
    const lost = incident.policy === "spill" ? "put aside" : "dropped";
    said.push(`${number(incident.items)} ${incident.items === 1 ? "item" : "items"} ${lost} (${incident.policy}) after ${exact(incident.idle_seconds)} without progress`);
    if (incident.ring) said.push(incident.ring === 1 ? "it was a ring of one" : `it was one of a ring of ${number(incident.ring)}`);
    if (waits) said.push(`${named(incident.accounts, incident.accounts_more)} had waited ${longest}${waits > 1 ? " at most" : ""}`);
  } else {
    said.push(waits === 1 ? longest : `${number(waits)} waits, the longest ${longest}`);
  }
  if (incident.why) said.push(incident.why);
  const gone = incident.cancelled;
  if (gone) said.push(gone === waits ? (gone === 1 ? "it left while it waited" : "they left while they waited") : `${number(gone)} left while they waited`);
  return said.join("; ");
}

function showLately(state) {
  const data = state.incidents.length ? state.incidents : [null];
  rows($("lately"), data.map((each, place) => ({ each, place })), ({ place }) => String(place),
    () => el("li", {}, el("p"), el("p", { class: "under" })),
    (item, { each }) => {
      const [head, under] = item.children;
      item.className = each === null ? "empty" : each.given_up || each.relieved ? "cut" : "";
      head.replaceChildren(...(each === null ? ["Nobody was cut off, and nobody waited for long."] : whatHappened(each)));
      under.replaceChildren(...(each === null ? [] : [ago(state, each), ` \u00b7 ${howItWas(each)}`]));
    });
}

// -- the last minutes -----------------------------------------------------------------------------

let span = 60; // seconds that sparklines show: what there is, from one minute to five
const points = []; // [time, debt, waiting, finished, waited seconds, headroom]
const tracks = new Map(); // account -> [[time, debt], ...]
const moments = []; // [time, [[account, debt], ...], [[holder, items], ...]], the largest first

function remember(state) {
  points.push(state.point);
  forget(points, state.time);
  span = Math.min(MINUTES * 60, Math.max(60, state.time - points[0][0]));
  for (const row of state.accounts) {
    const track = noted(row.name, state.time, row.debt_items);
    forget(track, state.time);
  }
  boundTracks();
  if (!moments.length || state.time - moments[moments.length - 1][0] >= MOMENT_SECONDS) {
    const largest = (all, value) => all.filter(value).sort((a, b) => value(b) - value(a)).slice(0, NAMED).map((row) => [row.name, value(row)]);
    moments.push([state.time, largest(state.accounts, (row) => row.debt_items), largest(state.holders, (row) => row.items)]);
    forget(moments, state.time);
  }
}

function noted(name, time, debt) {
  const track = tracks.get(name) ?? [];
  tracks.delete(name); // the latest last
  tracks.set(name, track);
  track.push([time, debt]);
  return track;
}

function boundTracks() {
  for (const name of tracks.keys()) {
    if (tracks.size <= TRACKS_MAX) break;
    tracks.delete(name);
  }
}

// The relay kept this while nobody watched.
function recall({ points: totals, tops, names }) {
  points.length = 0;
  points.push(...totals);
  tracks.clear();
  moments.length = 0;
  const named = (found) => found.map(([place, value]) => [names[place], value]);
  for (const [time, accounts, holders] of tops) {
    moments.push([time, named(accounts), named(holders)]);
    // An account that is not among the largest has no point then, and its line a gap.
    for (const [name, debt] of named(accounts)) noted(name, time, debt);
  }
  boundTracks();
}

function latestBefore(all, time) {
  let found = null;
  for (const each of all) {
    if (each[0] > time) break;
    found = each;
  }
  return found;
}

function showThen() {
  const ago = -Number($("back").value);
  $("back-row").hidden = points.length < 2;
  if (!latest || points.length < 2) return;
  // As far as there is anything.
  const most = Math.min(MINUTES * 60, Math.max(5, 5 * Math.floor((latest.time - points[0][0]) / 5)));
  $("back").min = String(-most);
  const point = ago ? latestBefore(points, latest.time - ago) : null;
  $("back").setAttribute("aria-valuetext", ago ? `${seconds(ago)} ago` : "now");
  if (point === null) {
    write($("then"), ago ? "Nothing was kept of that time." : "Move it to see who owed and who held the most before.");
    return;
  }
  const said = [`${exact(ago)} ago: debt ${number(point[1])}, ${number(point[2])} ${point[2] === 1 ? "reader" : "readers"} waiting`];
  const moment = latestBefore(moments, point[0] + MOMENT_SECONDS / 2);
  if (moment !== null && point[0] - moment[0] <= 2 * MOMENT_SECONDS) {
    const list = (rows) => rows.slice(0, THEN_MAX).map(([name, value]) => `${shortName(name)} ${compact(value)}`).join(", ");
    if (moment[1].length) said.push(`owed most: ${list(moment[1])}`);
    if (moment[2].length) said.push(`held most: ${list(moment[2])}`);
  }
  write($("then"), said.join("; "));
}

function forget(track, now) {
  // The first that is out of sight is kept, or the line would not reach the edge.
  while (track.length > 1 && track[1][0] < now - MINUTES * 60) track.shift();
}

// Where nobody looked there is a gap, not a line.
function sparkline(node, values, now, { most = 0, describe, gap }) {
  const width = 300;
  const height = 40;
  const top = Math.max(most, ...values.map(([, value]) => value), 1e-9) * 1.08;
  let stroke = "";
  let area = "";
  let begun = null;
  let before = null;
  const close = () => {
    if (begun !== null) area += `L${before.toFixed(1)} ${height}L${begun.toFixed(1)} ${height}Z`;
  };
  let time = -Infinity;
  for (const [when, value] of values) {
    if (when < now - span * 1.05) continue;
    const x = width - ((now - when) / span) * width;
    const y = height - 1 - (Math.max(0, value) / top) * (height - 2);
    const point = `${x.toFixed(1)} ${y.toFixed(1)}`;
    if (when - time > gap) {
      close();
      begun = x;
      stroke += `M${point}`;
      area += `M${point}`;
    } else {
      stroke += `L${point}`;
      area += `L${point}`;
    }
    before = x;
    time = when;
  }
  close();
  if (!node.firstChild) {
    node.setAttribute("viewBox", `0 0 ${width} ${height}`);
    node.setAttribute("preserveAspectRatio", "none");
    node.append(svg("path", { class: "area" }), svg("path", { class: "stroke" }));
  }
  node.children[0].setAttribute("d", area);
  node.children[1].setAttribute("d", stroke);
  if (describe && values.length) {
    const all = values.map(([, value]) => value);
    node.setAttribute("aria-label", `last ${seconds(span)}: least ${describe(Math.min(...all))}, most ${describe(Math.max(...all))}`);
  }
}

function showTiles(state) {
  const totals = state.totals;
  const now = state.time;
  const gap = Math.max(GAP_SECONDS, 2.5 * state.every_seconds);
  write($("debt"), compact(totals.debt_items));
  write($("debt-unit"), `items, ${size(totals.debt_bytes)}`);
  sparkline($("debt-line"), points.map((p) => [p[0], p[1]]), now, { describe: number, gap });

  const room = Math.max(0, state.point[5]);
  write($("room"), percent(room));
  write($("room-unit"), state.tightest.length ? `at ${shortName(state.tightest[0].name)}` : "everywhere");
  sparkline($("room-line"), points.map((p) => [p[0], Math.max(0, p[5])]), now, { most: 1, describe: percent, gap });

  write($("waiting"), number(totals.waiting));
  const states = totals.accounts;
  write($("waiting-unit"), `of ${number(Object.values(states).reduce((a, b) => a + b, 0))} accounts`);
  sparkline($("waiting-line"), points.map((p) => [p[0], p[2]]), now, { most: 1, describe: number, gap });

  const rates = [];
  for (let i = 1; i < points.length; i += 1) {
    const [a, b] = [points[i - 1], points[i]];
    const time = b[0] - a[0];
    // Counters begin anew with the relay.
    if (time > 0 && time <= gap && b[3] >= a[3]) rates.push([b[0], (b[3] - a[3]) / time]);
  }
  write($("rate"), rates.length ? compact(rates[rates.length - 1][1]) : "\u2013");
  const lost = totals.repaid_items.written_off ?? 0;
  write($("rate-unit"), lost ? `items a second; ${compact(lost)} written\u00a0off` : "items a second");
  sparkline($("rate-line"), rates, now, { describe: (v) => `${compact(v)} a second`, gap });
}

// -- who waits on whom, drawn ---------------------------------------------------------------------

const GRAPH_MAX = 6;

function fitted(name, width, each) {
  const room = Math.max(4, Math.floor(width / each));
  return name.length <= room ? name : `\u2026${name.slice(name.length - room + 1)}`;
}

function cut(text, width, each) {
  const room = Math.max(4, Math.floor(width / each));
  return text.length <= room ? text : `${text.slice(0, room - 1)}\u2026`;
}

function how(on, roomy) {
  const items = compact(on.waited_items);
  if (roomy) return `holds ${items} \u00b7 ${standsStill(on) ? `no progress ${exact(on.idle_seconds)}` : "moving"}`;
  return standsStill(on) ? `still for ${seconds(on.idle_seconds)}` : `${items} \u00b7 moving`;
}

function showGraph(state) {
  const box = $("graph");
  const waits = state.waits.slice(0, GRAPH_MAX);
  if (!waits.length) {
    if (!box.querySelector(".empty")) {
      box.replaceChildren(el("p", { class: "empty" }, el("strong", {}, "Nobody waits on anybody."), "When a reader has to wait, it stands here, with those it waits on and how long they still have."));
    }
    return;
  }
  const width = Math.max(260, Math.round(box.clientWidth || 600));
  const nodeWidth = Math.min(250, Math.round(width * 0.4));
  const high = 60;
  const step = high + 14;
  const holders = new Map();
  // The first of each crowd before the second of any.
  for (let place = 0; place < GRAPH_MAX; place += 1) {
    for (const { on } of waits) if (on[place] && holders.size < GRAPH_MAX) holders.set(on[place].name, on[place]);
  }
  const right = [...holders.values()].sort((a, b) => standsStill(b) - standsStill(a) || b.waited_items - a.waited_items);
  const tall = Math.max(waits.length, right.length) * step - 14 + 8;
  const start = (count) => 4 + (tall - 8 - (count * step - 14)) / 2;
  const leftAt = (place) => start(waits.length) + place * step;
  const rightAt = (place) => start(right.length) + place * step;
  const most = Math.max(1, ...waits.flatMap((wait) => wait.on.map((on) => on.here_items)));
  const x1 = nodeWidth + 2;
  const x2 = width - nodeWidth - 12;
  const middle = (x1 + x2) / 2;
  const picture = svg("svg", { viewBox: `0 0 ${width} ${tall}`, "aria-hidden": "true", focusable: "false" });
  const spread = new Map();
  waits.forEach((wait, i) => {
    wait.on.forEach((on) => {
      const j = right.findIndex((each) => each.name === on.name);
      if (j < 0) return;
      const thick = 1.5 + (8 * Math.log1p(on.here_items)) / Math.log1p(most);
      const arrivals = spread.get(j) ?? 0;
      spread.set(j, arrivals + 1);
      const y1 = leftAt(i) + high / 2;
      const y2 = rightAt(j) + high / 2 + (arrivals ? (arrivals % 2 ? 1 : -1) * Math.ceil(arrivals / 2) * 7 : 0);
      const edge = svg("path", { class: "edge", d: `M${x1} ${y1}C${middle} ${y1} ${middle} ${y2} ${x2} ${y2}`, "stroke-width": thick.toFixed(1) });
      const tip = 4 + thick / 2;
      picture.append(edge, svg("path", { class: "tip", d: `M${x2 - 1} ${y2 - tip}L${x2 + 10} ${y2}L${x2 - 1} ${y2 + tip}Z` }));
    });
  });
  // A holder whose owner waits as well leads back: that is how a ring closes.
  right.forEach((on, j) => {
    const i = waits.findIndex((wait) => on.owner !== null && wait.waiting.includes(on.owner));
    if (i < 0) return;
    const y1 = rightAt(j) + high - 8;
    const y2 = leftAt(i) + high - 8;
    picture.append(
      svg("path", { class: "back", d: `M${x2 + 12} ${y1}C${middle} ${y1 + 14} ${middle} ${y2 + 14} ${x1 + 8} ${y2}` }),
      svg("path", { class: "tip red", d: `M${x1 + 9} ${y2 - 5}L${x1} ${y2}L${x1 + 9} ${y2 + 5}Z` }),
    );
  });
  const inside = nodeWidth - 20;
  const roomy = nodeWidth >= 190;
  const called = roomy ? (name) => name : shortName;
  waits.forEach((wait, i) => {
    const y = leftAt(i);
    const more = wait.count > 1 ? ` +${number(wait.count - 1)}` : "";
    picture.append(
      svg("g", {},
        svg("title", {}, `${wait.waiting.join(", ")} at ${wait.at}`),
        svg("rect", { class: "node waits", x: 1, y, width: nodeWidth, height: high, rx: 8 }),
        svg("text", { class: "who", x: 11, y: y + 21 }, fitted(called(wait.waiting[0] ?? wait.at), inside - more.length * 7.6, 7.6) + more),
        svg("text", { class: "what", x: 11, y: y + 38 }, cut(`waits ${exact(wait.seconds)}`, inside, 5.7)),
        svg("text", { class: "what", x: 11, y: y + 52 }, cut(roomy ? amount(tightUnit(wait)) : amount({ ...tightUnit(wait), unit: "" }), inside, 5.7))),
    );
  });
  right.forEach((on, j) => {
    const y = rightAt(j);
    const x = width - nodeWidth - 1;
    const still = standsStill(on);
    const group = svg("g", {},
      svg("title", {}, `${on.kind} ${on.name}`),
      svg("rect", { class: still ? "node holds still" : "node holds", x, y, width: nodeWidth, height: high, rx: 8 }),
      svg("text", { class: "who", x: x + 10, y: y + 21 }, fitted(called(on.name), inside, 7.6)),
      svg("text", { class: "what", x: x + 10, y: y + 38 }, cut(how(on, roomy), inside, 5.7)));
    if (still && on.left_seconds !== null && hasAnEnd(on)) {
      const part = Math.min(1, Math.max(0, on.left_seconds / on.patience));
      group.append(
        svg("rect", { class: "clock", x: x + 10, y: y + 46, width: inside, height: 5, rx: 2.5 }),
        svg("rect", { class: "left", x: x + 10, y: y + 46, width: (inside * part).toFixed(1), height: 5, rx: 2.5 }));
    } else {
      group.append(svg("text", { class: "what", x: x + 10, y: y + 52 }, still ? (on.policy === "wait" ? "is waited for" : "may take for ever") : on.kind));
    }
    picture.append(group);
  });
  box.replaceChildren(picture);
}

function showWaits(state) {
  const pairs = state.waits.flatMap((wait) => (wait.on.length ? wait.on : [null]).map((on) => ({ wait, on })));
  rows($("waits").tBodies[0], pairs, ({ wait, on }) => JSON.stringify([wait.at, on?.name]),
    () => el("tr", {}, el("th", { scope: "row" }), el("td"), el("td"), el("td"), el("td"), el("td")),
    (row, { wait, on }) => {
      const cells = row.children;
      const others = wait.count - wait.waiting.length;
      write(cells[0], wait.waiting.join(", ") + (others > 0 ? ` and ${number(others)} others` : ""));
      write(cells[1], `${exact(wait.seconds)}, ${amount(tightUnit(wait))}`);
      write(cells[2], on ? on.name : "nobody");
      write(cells[3], on ? `${number(on.here_items)} items, ${size(on.here_bytes)}` : "");
      write(cells[4], on ? exact(on.idle_seconds) : "");
      write(cells[5], on ? prospect(on)[0] + afterwards(wait, on) + whySlowText(on) : "");
    });
  const shown = Math.min(GRAPH_MAX, state.waits.length);
  const out = [left(state.more.waits + state.waits.length - shown, "accounts that wait", "account that waits")];
  const drawn = $("graph").querySelectorAll("rect.holds").length;
  const waitedOn = new Set(state.waits.slice(0, GRAPH_MAX).flatMap((wait) => wait.on.map((on) => on.name))).size;
  out.push(left(waitedOn - drawn, "holders they wait on"));
  write($("waits-more"), out.filter(Boolean).join("; "));
}

// -- headroom, accounts, holders ------------------------------------------------------------------

// While the one above owes too much, each of those below it has a share of what that may owe.
function shareOf(row) {
  const parts = [];
  if (typeof row.share_items === "number") parts.push(`${number(row.share_items)} items`);
  if (typeof row.share_bytes === "number") parts.push(size(row.share_bytes));
  return parts.length ? ` \u00b7 its share: ${parts.join(", ")}` : "";
}

function showHeadroom(state) {
  const list = $("headroom");
  const data = [...state.levels, ...state.tightest];
  rows(list, data.length ? data : [null], (row) => (row ? row.name : ""),
    (row) => (row
      ? el("li", {}, el("div", { class: "row" }, nameOf(row.name), el("span", {})), el("div", { class: "bar" }, el("span")))
      : el("li", { class: "empty" }, "Nobody owes anything.")),
    (item, row) => {
      if (!row) return;
      const tight = tightUnit(row);
      const [head, bar] = item.children;
      const limited = row.limit_items !== null || row.limit_bytes !== null;
      const over = row.state === "throttled" || tight.part > 1;
      const room = percent(Math.max(0, 1 - tight.part));
      const text = limited ? `${amount(tight)} \u00b7 ${over ? "none left" : `${room} left`}` : `${number(row.debt_items)} items, no limit`;
      write(head.lastChild, text + shareOf(row));
      bar.firstChild.style.setProperty("--part", limited ? Math.min(1, tight.part).toFixed(4) : 0);
      bar.dataset.level = over ? "over" : tight.part > 0.75 ? "high" : "";
    });
  const owing = owingBelow(state);
  const out = [left(state.more.levels, "levels"), left(owing - state.tightest.length, "accounts with debt and more room", "account with debt and more room")];
  write($("headroom-more"), out.filter(Boolean).join("; "));
}

const ROWS_MAX = 12;

function stateOf(row) {
  if (row.waiting > 0) return ["waits", `waits ${seconds(row.waiting_seconds)}`];
  return [row.state, row.state];
}

function showAccounts(state) {
  const table = $("accounts");
  const gap = Math.max(GAP_SECONDS, 2.5 * state.every_seconds);
  let data = state.accounts;
  const most = data.length;
  // While somebody points at a row, or is on one, it stays where it is.
  const body = table.tBodies[0];
  if (body.matches(":hover, :focus-within")) {
    const place = new Map([...body.children].map((row, at) => [row.dataset.key, at]));
    data = [...data].sort((a, b) => (place.get(a.name) ?? Infinity) - (place.get(b.name) ?? Infinity) || 0);
  }
  const owing = data.filter((row) => row.debt_items || row.waiting).length;
  const shown = data.slice(0, Math.min(ROWS_MAX, Math.max(8, owing)));
  rows(body, shown, (row) => row.name,
    (row) => {
      const button = el("button", { class: "open", type: "button", title: `Statement of ${row.name}` }, nameOf(row.name));
      button.addEventListener("click", () => openStatement(row.name));
      return el("tr", {},
        el("th", { scope: "row" }, button),
        el("td", {}, el("span", { class: "state" })),
        el("td", { class: "n" }, el("span"), el("span", { class: "of" }), el("small")),
        el("td", { class: "n old" }),
        el("td", { class: "roomy" }, svg("svg", { class: "line", role: "img", "aria-label": "no data yet" })));
    },
    (item, row) => {
      const [, stateCell, debt, oldest, line] = item.children;
      const [kind, words] = stateOf(row);
      stateCell.firstChild.dataset.state = kind;
      write(stateCell.firstChild, words);
      write(debt.firstChild, number(row.debt_items));
      write(debt.children[1], row.limit_items === null ? "" : ` / ${compact(row.limit_items)}`);
      write(debt.lastChild, row.debt_items ? size(row.debt_bytes) : "");
      write(oldest, row.debt_items && row.oldest_seconds !== null ? seconds(row.oldest_seconds) : "\u2013");
      sparkline(line.firstChild, tracks.get(row.name) ?? [], state.time, { most: 1, describe: number, gap });
    });
  write($("accounts-more"), most ? left(state.more.accounts + most - shown.length, "accounts") : "There are no accounts yet.");
}

function showHolders(state) {
  rows($("holders").tBodies[0], state.holders.slice(0, ROWS_MAX), (row) => row.name,
    (row) => el("tr", {}, el("th", { scope: "row" }, nameOf(row.name), el("span", { class: "under" })), el("td", { class: "n" }, el("span"), el("small")), el("td", { class: "n" })),
    (item, row) => {
      const [head, items, idle] = item.children;
      const [words, urgent] = row.waited_items ? prospect(row) : [`${row.kind}${row.away ? " of a client that is away" : ""}, ${row.behind_seconds === null ? "nobody waits on it" : beingBehind(row)}`, false];
      write(head.lastChild, (row.waited_items ? `${row.kind}, ${words}` : words) + membersOf(row) + whySlowText(row));
      head.lastChild.className = urgent ? "under soon" : "under";
      write(items.firstChild, number(row.items));
      write(items.lastChild, size(row.bytes));
      write(idle, row.kind === "loose" || row.kind === "router" ? "\u2013" : exact(row.idle_seconds));
    });
  write($("holders-more"), state.holders.length ? left(state.more.holders + Math.max(0, state.holders.length - ROWS_MAX), "holders") : "Nobody holds anything.");
}

// -- queues ---------------------------------------------------------------------------------------

const QUEUES_SECONDS = 2; // between two looks at them
let hasQueues = false;
let queuesAt = -Infinity;

async function askQueues() {
  const now = performance.now();
  if (!hasQueues || now - queuesAt < QUEUES_SECONDS * 1000) return;
  queuesAt = now;
  try {
    const answer = await fetch("queues.json");
    if (answer.ok) showQueues((await answer.json()).queues);
  } catch {
    // The connection to the events says so.
  }
}

function prefetched(row) {
  if (!row.consumers) return "no consumer";
  const used = row.prefetch === null ? "" : `, ${number(row.prefetch_used)} of ${number(row.prefetch)} prefetched`;
  const free = row.consumers - row.consumers_full;
  const room = free ? `${number(free)} ${free === 1 ? "consumer has" : "consumers have"} room` : "all consumers are busy";
  return room + used;
}

function showQueues(all) {
  all.sort((a, b) => b.ready + b.unacked - a.ready - a.unacked || (a.holder < b.holder ? -1 : 1));
  $("queues-card").hidden = false;
  rows($("queues").tBodies[0], all.slice(0, ROWS_MAX), (row) => `${row.host}/${row.name}`,
    () => el("tr", {}, el("th", { scope: "row" }, el("span"), el("span", { class: "under" })), el("td", { class: "n" }, el("span"), el("small")), el("td", { class: "n" }), el("td", { class: "n" })),
    (item, row) => {
      const [head, ready, unacked, consumers] = item.children;
      if (!head.firstChild.firstChild) head.firstChild.append(nameOf(row.holder));
      const owing = row.owed_by.filter((each) => each.items && !each.account.startsWith("amqp/"));
      const owed = owing.length ? `; ${shortName(owing[0].account)} owes for ${number(owing[0].items)}` : "";
      write(head.lastChild, `${number(row.published_per_second)} in, ${number(row.acked_per_second)} acked a second; ${number(row.in_ram)} in RAM, ${number(row.at_rest)} at rest; ${prefetched(row)}${owed}${row.trouble ? `; ${row.trouble}` : ""}`);
      write(ready.firstChild, number(row.ready));
      write(ready.lastChild, size(row.ready_bytes));
      write(unacked, number(row.unacked));
      write(consumers, number(row.consumers));
    });
  write($("queues-more"), all.length ? left(all.length - ROWS_MAX, "queues") : "There are no queues yet.");
}

// -- the matrix -----------------------------------------------------------------------------------

function showMatrix(state) {
  const table = $("matrix");
  const usedRows = [...new Set(state.cells.map(([account]) => account))].sort((a, b) => a - b);
  const usedColumns = [...new Set(state.cells.map(([, holder]) => holder))].sort((a, b) => a - b);
  const columns = usedColumns.map((at) => state.holders[at].name);
  const most = Math.max(1, ...state.cells.map((cell) => cell[2]));
  const cells = new Map(state.cells.map((cell) => [`${cell[0]}/${cell[1]}`, cell]));
  table.className = columns.length > 6 ? "upright" : "";
  const key = JSON.stringify(columns);
  if (table.dataset.columns !== key) {
    table.dataset.columns = key;
    table.tHead.replaceChildren(...(columns.length
      ? [el("tr", {}, el("th", { scope: "col", class: "over" }, el("span", { class: "unseen" }, "Account")),
        ...columns.map((name) => el("th", { scope: "col", class: "across", title: name }, el("span", {}, columns.length > 6 ? el("bdi", { class: "name" }, shortName(name)) : nameOf(name)))),
        el("th", { scope: "col", class: "over" }, el("span", {}, "others")))]
      : []));
    table.tBodies[0].replaceChildren();
  }
  rows(table.tBodies[0], usedRows.map((at) => ({ at, row: state.accounts[at] })), ({ row }) => row.name,
    ({ row }) => el("tr", {}, el("th", { scope: "row" }, nameOf(row.name)), ...columns.map(() => el("td")), el("td", { class: "rest" })),
    (item, { at, row }) => {
      let sum = 0;
      usedColumns.forEach((column, place) => {
        const cell = cells.get(`${at}/${column}`);
        const node = item.children[place + 1];
        const items = cell ? cell[2] : 0;
        sum += items;
        write(node, items ? compact(items) : "");
        node.title = cell ? `${state.holders[column].name} holds ${number(items)} items, ${size(cell[3])} of ${row.name}, the oldest for ${exact(cell[4])}` : "";
        node.style.setProperty("--heat", Math.sqrt(items / most).toFixed(3));
      });
      const rest = Math.max(0, row.debt_items - sum);
      write(item.lastChild, rest ? compact(rest) : "");
    });
  const others = table.tHead.querySelector("tr > :last-child");
  if (others) others.firstChild.className = [...table.tBodies[0].rows].some((row) => row.lastChild.textContent) ? "" : "unseen";
  const hidden = [];
  const owing = state.totals.accounts.owing + state.totals.accounts.throttled + state.totals.accounts.flow + state.totals.accounts.closing;
  const levels = state.levels_owing;
  if (owing > usedRows.length + levels) hidden.push(left(owing - usedRows.length - levels, "accounts that owe"));
  if (state.more.holders > 0) hidden.push(left(state.more.holders, "holders"));
  write($("matrix-more"), state.cells.length ? hidden.join("; ") : "Nobody holds anything.");
}

// -- an account's statement -----------------------------------------------------------------------

let opened = null;
let latest = null;
let asking = false;

function openStatement(name) {
  opened = name;
  $("statement-h").replaceChildren(nameOf(name, true));
  write($("statement-note"), "");
  $("statement-facts").replaceChildren();
  $("statement-body").hidden = true;
  if (!$("statement").open) $("statement").showModal();
  askStatement();
}

async function askStatement() {
  if (opened === null || asking) return;
  const name = opened;
  asking = true;
  try {
    const answer = await fetch(`live/statement?account=${encodeURIComponent(name)}`);
    const page = await answer.json();
    if (name !== opened) return;
    if (page.statement === null) {
      write($("statement-note"), "It is closed and has paid all it owed; its name is free.");
      $("statement-body").hidden = true;
      $("statement-facts").replaceChildren();
    } else {
      write($("statement-note"), "");
      showStatement(page.statement);
    }
  } catch {
    write($("statement-note"), "The server does not answer.");
  } finally {
    asking = false;
  }
  if (opened !== null && opened !== name) askStatement();
}

function both(pair) {
  return pair.items === null && pair.bytes === null ? "none" : `${pair.items === null ? "any number of" : number(pair.items)} items, ${pair.bytes === null ? "any number of bytes" : size(pair.bytes)}`;
}

function showStatement(row) {
  const facts = [
    ["State", row.waiting_readers ? `${row.state}; its reader waits, ${exact(row.waiting_seconds)} so far` : row.state],
    ["Debt", both(row.debt)],
    ["Limit", both(row.limit)],
    ["Goes on at", both(row.low)],
    ["Highest so far", both(row.peak)],
    ["Ever borrowed", both(row.borrowed)],
    ["Waited", `${number(row.waits)} ${row.waits === 1 ? "time" : "times"}, ${exact(row.waited_seconds)} in all`],
    ["Standing", both(row.standing)],
    ["Under", row.parent ?? "nobody"],
  ];
  const list = $("statement-facts");
  if (list.children.length !== facts.length * 2) {
    list.replaceChildren(...facts.flatMap(([term]) => [el("dt", {}, term), el("dd")]));
  }
  facts.forEach(([, text], place) => write(list.children[place * 2 + 1], text));
  $("statement-body").hidden = false;

  // The stretch that still goes on is on nobody's account yet: it is the present holder's.
  const blame = Object.entries(row.blame).map(([name, value]) => ({ name, value, now: false }));
  blame.sort((a, b) => b.value - a.value);
  const told = blame.reduce((sum, each) => sum + each.value, 0);
  const rest = row.waited_seconds - told;
  if (rest > 0.05) blame.push({ name: "not told yet: since the last repayment", value: rest, now: true });
  const all = Math.max(1e-9, ...blame.map((each) => each.value));
  rows($("blame").tBodies[0], blame, (each) => each.name,
    (each) => el("tr", {}, el("th", { scope: "row" }, each.now ? each.name : nameOf(each.name)), el("td", { class: "n" }), el("td", {}, el("div", { class: "bar" }, el("span")))),
    (item, each) => {
      write(item.children[1], exact(each.value));
      item.children[2].firstChild.firstChild.style.setProperty("--part", (each.value / all).toFixed(4));
    });
  $("blame").hidden = !blame.length;
  $("blame-none").hidden = blame.length > 0;

  const at = latest ? latest.accounts.findIndex((each) => each.name === row.name) : -1;
  const held = at < 0 ? [] : latest.cells.filter((cell) => cell[0] === at);
  held.sort((a, b) => b[2] - a[2]);
  rows($("debtors").tBodies[0], held, (cell) => latest.holders[cell[1]].name,
    (cell) => el("tr", {}, el("th", { scope: "row" }, nameOf(latest.holders[cell[1]].name)), el("td", { class: "n" }), el("td", { class: "n" }), el("td", { class: "n" })),
    (item, cell) => {
      write(item.children[1], number(cell[2]));
      write(item.children[2], size(cell[3]));
      write(item.children[3], exact(cell[4]));
    });
  $("debtors").hidden = !held.length;
  const elsewhere = row.debt.items - held.reduce((sum, cell) => sum + cell[2], 0);
  write($("debtors-none"), !row.debt.items ? "Nobody: it owes nothing." : elsewhere > 0 ? `${number(elsewhere)} ${held.length ? "more " : ""}items are with holders that are not shown.` : "");
}

// -- watching -------------------------------------------------------------------------------------

let source = null;
let heard = 0;
let again = null;

function setLink(state, text) {
  $("link").dataset.state = state;
  write($("link-text"), text);
}

function show(state) {
  // What stands still comes first: that does not get better by waiting.
  const still = (wait) => (wait.on.some(standsStill) ? 0 : 1);
  state.waits.sort((a, b) => still(a) - still(b) || b.seconds - a.seconds);
  latest = state;
  remember(state);
  showVerdict(state);
  showTiles(state);
  showThen();
  showGraph(state);
  showWaits(state);
  showHeadroom(state);
  showLately(state);
  showAccounts(state);
  showHolders(state);
  showMatrix(state);
  askQueues();
  write($("cost"), `Updates every ${state.every_seconds <= 1 ? "second" : `${state.every_seconds} s`}; the last update took ${state.busy_ms} ms of the server's time.`);
  askStatement();
  // What does not scroll needs no stop of the Tab key.
  for (const box of document.querySelectorAll(".scroll")) {
    if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
    else if (box !== document.activeElement) box.removeAttribute("tabindex");
  }
}

function watch() {
  if (source) return;
  clearTimeout(again);
  source = new EventSource("live/events");
  source.addEventListener("beside", (event) => {
    hasQueues = JSON.parse(event.data).includes("/queues.json");
  });
  source.addEventListener("history", (event) => {
    recall(JSON.parse(event.data));
  });
  source.addEventListener("sample", (event) => {
    heard = performance.now();
    document.body.classList.remove("stale");
    setLink("live", "live");
    show(JSON.parse(event.data));
  });
  source.addEventListener("error", () => {
    const closed = source && source.readyState === EventSource.CLOSED;
    setLink("lost", closed ? "the server does not let this page watch; too many do" : "no connection to the server; trying again");
    document.body.classList.add("stale");
    if (closed) {
      unwatch();
      again = setTimeout(watch, 5000);
    }
  });
}

function unwatch() {
  source?.close();
  source = null;
}

let hiding = null;
document.addEventListener("visibilitychange", () => {
  clearTimeout(hiding);
  // A page that nobody sees asks for nothing.
  if (document.hidden) {
    hiding = setTimeout(() => {
      clearTimeout(again);
      unwatch();
      setLink("paused", "paused");
    }, 10000);
  } else watch();
});

setInterval(() => {
  const silent = (performance.now() - heard) / 1000;
  const late = latest ? 3 + 2 * latest.every_seconds : 10;
  if (source && source.readyState === EventSource.OPEN && heard && silent > late) {
    document.body.classList.add("stale");
    setLink("lost", `last heard ${seconds(silent)} ago`);
  }
}, 1000);

$("back").addEventListener("input", showThen);

$("statement").addEventListener("close", () => {
  opened = null;
});
$("statement").addEventListener("click", (event) => {
  if (event.target === $("statement")) $("statement").close();
});

let width = 0;
new ResizeObserver((entries) => {
  const now = Math.round(entries[0].contentRect.width);
  if (latest && now !== width) showGraph(latest);
  width = now;
}).observe($("graph"));

write($("where"), location.host);
watch();
