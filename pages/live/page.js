// The live page: what it shows of each sample. The other scripts come before this one.
"use strict";

// -- the sentence ---------------------------------------------------------------------------------

function sentence(wait) {
  const on = wait.on[0];
  const tight = tightUnit(wait);
  const where = wait.waiting.length === 1 && wait.waiting[0] === wait.at ? [] : [" at ", nameOf(wait.at, true)];
  const parts = [...people(wait.waiting, wait.count), wait.count === 1 ? " waits" : " wait", ...where];
  parts.push(wait.blockers.length && !wait.alarms.length ? ", blocked by " : " for ");
  if (wait.alarms.length) {
    parts.push(`an alarm: ${alarms(wait.alarms)}, ${duration(wait.seconds)}`);
    return on ? [...parts, "; of what is owed ", nameOf(on.name, true), ` holds ${number(on.here_items)} ${on.here_items === 1 ? "item" : "items"}, ${size(on.here_bytes)}`] : parts;
  }
  if (wait.blockers.length) {
    const more = wait.blockers.length - 1;
    parts.push(nameOf(on ? on.name : wait.blockers[0], true));
    if (more) parts.push(more === 1 ? " and 1 other" : ` and ${number(more)} others`);
    parts.push(`: ${duration(wait.seconds)}`);
    if (!on) return parts;
    parts.push(`; it holds ${number(on.here_items)} ${on.here_items === 1 ? "item" : "items"}, ${size(on.here_bytes)}, and `);
    const [words, urgent] = prospect(on);
    const what = words.startsWith("no ") ? `made ${words}` : words;
    return [...parts, urgent ? el("span", { class: "soon" }, what) : what, afterwards(wait, on), ...whySlow(on)];
  }
  if (wait.rate !== null) return [...parts, `its rate, ${wait.rate}, ${duration(wait.seconds)}`];
  if (!on) return [...parts, `what nobody holds any more: ${amount(tight)}, ${duration(wait.seconds)}`];
  parts.push(nameOf(on.name, true));
  const others = wait.on.length - 1 + wait.on_more;
  if (others > 0) parts.push(others === 1 ? " and 1 other" : ` and ${number(others)} others`);
  parts.push(`: ${amount(tight)}${wait.reason === "share" ? ", its share," : ","} ${duration(wait.seconds)}`);
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
    parts.push(el("span", {}, ...people(wait.waiting, wait.count), ` (${duration(wait.seconds)})`));
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
    if (ring.count === 1) lines.push(el("p", { class: "also" }, "A ring of one: ", ...names, ` waits for what it does not read itself, for ${duration(ring.seconds)}.`));
    else lines.push(el("p", { class: "also" }, "A ring, in which each waits on the next: ", ...names, more > 0 ? ` and ${number(more)} more` : " \u2192 the first again", `; for ${duration(ring.seconds)}.`));
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
  return el("time", { dateTime: when.toISOString(), title: when.toLocaleString() }, `${duration(Math.floor(incident.ago_seconds))} ago`);
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
  const longest = duration(incident.seconds);
  if (isSession(incident)) {
    said.push(`its queue had made no progress for ${duration(incident.idle_seconds)}`);
    if (waits) said.push(`${named(incident.accounts, incident.accounts_more)} had waited ${longest}${waits > 1 ? " at most" : ""}`);
  } else if (incident.given_up) {
    said.push(`${number(incident.items)} ${incident.items === 1 ? "item" : "items"}${incident.debtors.length ? ` of ${named(incident.debtors, incident.debtors_more)}` : ""} written off after ${duration(incident.idle_seconds)} without progress`);
    if (incident.ring) said.push(incident.ring === 1 ? "it was a ring of one" : `it was one of a ring of ${number(incident.ring)}`);
    if (waits) said.push(`${named(incident.accounts, incident.accounts_more)} had waited ${longest}${waits > 1 ? " at most" : ""}`);
  } else if (incident.relieved) {
    const lost = incident.policy === "spill" ? "put aside" : "dropped";
    said.push(`${number(incident.items)} ${incident.items === 1 ? "item" : "items"} ${lost} (${incident.policy}) after ${duration(incident.idle_seconds)} without progress`);
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
  if (roomy) return `holds ${items} \u00b7 ${standsStill(on) ? `no progress ${duration(on.idle_seconds)}` : "moving"}`;
  return standsStill(on) ? `still for ${duration(on.idle_seconds)}` : `${items} \u00b7 moving`;
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
      svg("g", { "data-open": wait.waiting[0] ?? wait.at },
        svg("title", {}, `${wait.waiting.join(", ")} at ${wait.at}`),
        svg("rect", { class: "node waits", x: 1, y, width: nodeWidth, height: high, rx: 8 }),
        svg("text", { class: "who", x: 11, y: y + 21 }, fitted(called(wait.waiting[0] ?? wait.at), inside - more.length * 7.6, 7.6) + more),
        svg("text", { class: "what", x: 11, y: y + 38 }, cut(`waits ${duration(wait.seconds)}`, inside, 5.7)),
        svg("text", { class: "what", x: 11, y: y + 52 }, cut(roomy ? amount(tightUnit(wait)) : amount({ ...tightUnit(wait), unit: "" }), inside, 5.7))),
    );
  });
  right.forEach((on, j) => {
    const y = rightAt(j);
    const x = width - nodeWidth - 1;
    const still = standsStill(on);
    const group = svg("g", { "data-open": on.name },
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
      write(cells[1], `${duration(wait.seconds)}, ${amount(tightUnit(wait))}`);
      write(cells[2], on ? on.name : "nobody");
      write(cells[3], on ? `${number(on.here_items)} items, ${size(on.here_bytes)}` : "");
      write(cells[4], on ? duration(on.idle_seconds) : "");
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
  $("room-card").hidden = !data.length;
  rows(list, data, (row) => row.name,
    (row) => el("li", {}, el("div", { class: "row" }, opener(row.name), el("span", {})), el("div", { class: "bar" }, el("span"))),
    (item, row) => {
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
const ROWS_SOUGHT_MAX = 40; // of what the reader looks for

const rowsMax = () => (found === null ? ROWS_MAX : ROWS_SOUGHT_MAX);

function stateOf(row) {
  if (row.waiting > 0) return ["waits", `waits ${duration(row.waiting_seconds)}`];
  return [row.state, row.state];
}

function showAccounts(state) {
  const table = $("accounts");
  const gap = Math.max(GAP_SECONDS, 2.5 * latest.every_seconds);
  const lately = Math.min(MINUTES * 60, Math.max(60, latest.time - (points[0]?.[0] ?? Infinity)));
  let data = state.accounts;
  const most = data.length;
  // While somebody points at a row, or is on one, it stays where it is.
  const body = table.tBodies[0];
  if (body.matches(":hover, :focus-within")) {
    const place = new Map([...body.children].map((row, at) => [row.dataset.key, at]));
    data = [...data].sort((a, b) => (place.get(a.name) ?? Infinity) - (place.get(b.name) ?? Infinity) || 0);
  }
  const owing = data.filter((row) => row.debt_items || row.waiting).length;
  const shown = data.slice(0, Math.min(rowsMax(), Math.max(found === null ? 8 : ROWS_SOUGHT_MAX, owing)));
  rows(body, shown, (row) => row.name,
    (row) => {
      return el("tr", {},
        el("th", { scope: "row" }, opener(row.name)),
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
      write(oldest, row.debt_items && row.oldest_seconds !== null ? duration(row.oldest_seconds) : "\u2013");
      sparkline(line.firstChild, tracks.get(row.name) ?? [], latest.time, { most: 1, describe: number, gap, span: lately });
    });
  write($("accounts-more"), left(state.more.accounts + most - shown.length, "accounts"));
}

function showHolders(state) {
  rows($("holders").tBodies[0], state.holders.slice(0, rowsMax()), (row) => row.name,
    (row) => el("tr", {}, el("th", { scope: "row" }, opener(row.name), " ", el("span", { class: "blocks" }), el("span", { class: "under" })), el("td", { class: "n" }, el("span"), el("small")), el("td", { class: "n" })),
    (item, row) => {
      const [head, items, idle] = item.children;
      const [words, urgent] = row.waited_items ? prospect(row) : [`${row.kind}${row.away ? " of a client that is away" : ""}, ${row.behind_seconds === null ? "nobody waits on it" : beingBehind(row)}`, false];
      const pill = head.querySelector(".blocks");
      write(pill, row.waited_items ? `blocks ${number(row.waiting)}` : "");
      pill.hidden = !row.waited_items;
      write(head.lastChild, (row.waited_items ? `${row.kind}, ${words}; kept waiting: ${blocked(row)}` : words) + membersOf(row) + whySlowText(row));
      head.lastChild.className = urgent ? "under soon" : "under";
      write(items.firstChild, number(row.items));
      write(items.lastChild, size(row.bytes));
      write(idle, row.kind === "loose" || row.kind === "router" ? "\u2013" : duration(row.idle_seconds));
    });
  write($("holders-more"), state.holders.length ? left(state.more.holders + Math.max(0, state.holders.length - rowsMax()), "holders") : "Nobody holds anything.");
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
      if (!head.firstChild.firstChild) head.firstChild.append(opener(row.holder));
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
  const culprits = columns.map((_, place) => standsStill(state.holders[usedColumns[place]]));
  const most = Math.max(1, ...state.cells.map((cell) => cell[2]));
  const cells = new Map(state.cells.map((cell) => [`${cell[0]}/${cell[1]}`, cell]));
  table.className = columns.length > 6 ? "upright" : "";
  const key = JSON.stringify([columns, culprits]);
  if (table.dataset.columns !== key) {
    table.dataset.columns = key;
    table.tHead.replaceChildren(...(columns.length
      ? [el("tr", {}, el("th", { scope: "col", class: "over" }, el("span", { class: "unseen" }, "Account")),
        ...columns.map((name, place) => el("th", { scope: "col", class: culprits[place] ? "across culprit" : "across", title: name, "data-open": name }, el("span", {}, culprits[place] ? el("span", { class: "unseen" }, "blocks others: ") : null, columns.length > 6 ? el("bdi", { class: "name" }, shortName(name)) : nameOf(name)))),
        el("th", { scope: "col", class: "over" }, el("span", {}, "others")))]
      : []));
    table.tBodies[0].replaceChildren();
  }
  rows(table.tBodies[0], usedRows.map((at) => ({ at, row: state.accounts[at] })), ({ row }) => row.name,
    ({ row }) => el("tr", {}, el("th", { scope: "row", "data-open": row.name }, nameOf(row.name)), ...columns.map(() => el("td")), el("td", { class: "rest" })),
    (item, { at, row }) => {
      let sum = 0;
      item.className = row.waiting ? "waits" : "";
      usedColumns.forEach((column, place) => {
        const cell = cells.get(`${at}/${column}`);
        const node = item.children[place + 1];
        const items = cell ? cell[2] : 0;
        sum += items;
        write(node, items ? compact(items) : "");
        node.title = cell ? `${state.holders[column].name} holds ${number(items)} items, ${size(cell[3])} of ${row.name}, the oldest for ${duration(cell[4])}` : "";
        node.style.setProperty("--heat", Math.sqrt(items / most).toFixed(3));
      });
      const rest = Math.max(0, row.debt_items - sum);
      write(item.lastChild, rest ? compact(rest) : "");
    });
  const others = table.tHead.querySelector("tr > :last-child");
  if (others) others.firstChild.className = [...table.tBodies[0].rows].some((row) => row.lastChild.textContent) ? "" : "unseen";
  $("matrix-card").hidden = !state.cells.length;
  if (found !== null) {
    write($("matrix-more"), "of the accounts and holders that were found");
    return;
  }
  const hidden = [];
  const owing = state.totals.accounts.owing + state.totals.accounts.throttled + state.totals.accounts.flow + state.totals.accounts.closing;
  const levels = state.levels_owing;
  if (owing > usedRows.length + levels) hidden.push(left(owing - usedRows.length - levels, "accounts that owe"));
  if (state.more.holders > 0) hidden.push(left(state.more.holders, "holders"));
  write($("matrix-more"), hidden.join("; "));
}

// -- looking for a name ---------------------------------------------------------------------------

const TYPING_MILLISECONDS = 250;

let sought = ""; // a part of a name
let found = null; // the page's rows of those that have it
let seeking = false;
let seekAt = -Infinity; // when to ask next
let typing = null;

async function seek() {
  if (!sought || seeking || performance.now() < seekAt) return;
  const part = sought;
  seeking = true;
  try {
    const answer = await fetch(`live/find?name=${encodeURIComponent(part)}`);
    if (!answer.ok) throw new Error(answer.statusText);
    const page = await answer.json();
    seekAt = nextAt(page);
    if (part === sought) {
      const first = found === null;
      found = page;
      showRows();
      if (first) write($("spoken"), $("found").textContent);
    }
  } catch {
    seekAt = performance.now() + 2000;
    if (part === sought) write($("found"), "The server does not answer.");
  } finally {
    seeking = false;
  }
  if (part !== sought) seek();
}

function showFound() {
  if (!sought) write($("found"), `Among all accounts and holders${matchMedia("(hover: hover)").matches ? "; press / to get here" : ""}.`);
  else if (found === null) write($("found"), "Looking \u2026");
  else {
    const count = (rows, more, what) => `${number(rows.length + more)} ${rows.length + more === 1 ? what : `${what}s`}`;
    const none = !found.accounts.length && !found.holders.length;
    write($("found"), none ? "No account and no holder has that in its name." : `${count(found.accounts, found.more.accounts, "account")}, ${count(found.holders, found.more.holders, "holder")} with debt.`);
  }
}

$("search").addEventListener("input", () => {
  clearTimeout(typing);
  typing = setTimeout(() => {
    const part = $("search").value.trim();
    if (part === sought) return;
    sought = part;
    found = null;
    seekAt = -Infinity;
    if (latest) showRows();
    seek();
  }, TYPING_MILLISECONDS);
});

document.addEventListener("keydown", (event) => {
  if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey || $("drawer").open || event.target.matches("input, select, textarea")) return;
  event.preventDefault();
  $("search").focus();
});

// Accounts, holders and the matrix: of all, or of those that the reader looks for.
function showRows() {
  const state = found ?? latest;
  const none = !latest.accounts.length;
  $("find").hidden = none && !sought;
  $("nobody").hidden = !none;
  $("graph-card").hidden = none && !latest.waits.length;
  $("accounts-card").hidden = !state.accounts.length;
  $("holders-card").hidden = !state.holders.length;
  $("lately-card").hidden = none && !latest.incidents.length;
  showAccounts(state);
  showHolders(state);
  showMatrix(state);
  showFound();
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
  showRows();
  seek();
  askQueues();
  write($("cost"), `Updates every ${state.every_seconds <= 1 ? "second" : `${state.every_seconds} s`}; the last update took ${state.busy_ms} ms of the server's time.`);
  askAbout();
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
    setLink("lost", `last heard ${duration(silent)} ago`);
  }
}, 1000);

let width = 0;
new ResizeObserver((entries) => {
  const now = Math.round(entries[0].contentRect.width);
  if (latest && now !== width) {
    showGraph(latest);
    showThen();
  }
  width = now;
}).observe($("verdict"));

write($("where"), location.host);
watch();
