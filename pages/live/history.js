// The live page: what was before. The relay keeps an hour while nobody watches; here it goes on.
"use strict";

const HOUR = 3600;
const MINUTES = 5;
const STEP_SECONDS = 10; // of what is kept for longer than some minutes, as in the relay's history
const TRACKS_MAX = 200; // accounts whose last minutes are kept here
const MOMENT_SECONDS = 5; // between what is kept of the largest, as in the relay's history
const NAMED = 5;
const GAP_SECONDS = 15; // without a point for so long a line has a gap

let asked = MINUTES * 60; // seconds that the reader wants to see
let span = 60; // seconds that are shown: as far as there is anything, but a minute at least
let chosen = null; // the time to look back to; null: now
const points = []; // [time, debt, waiting, finished, waited seconds, headroom], each second
const steps = []; // the same as the worst of ten seconds; and four lists of [name, number]:
const [OWED, HELD, WAITED_ON, WAITED] = [6, 7, 8, 9]; // the largest debtors, holders, blockers, waits
const tracks = new Map(); // account -> [[time, debt], ...]
const moments = []; // [time, and the same four lists]

const GROUPS = [[OWED, compact], [HELD, compact], [WAITED_ON, compact], [WAITED, duration]];

function largest(all, value) {
  return all.filter((row) => value(row) > 0).sort((a, b) => value(b) - value(a)).slice(0, NAMED).map((row) => [row.name, value(row)]);
}

function remember(state) {
  points.push(state.point);
  forget(points, state.time, MINUTES * 60);
  span = Math.min(asked, Math.max(60, state.time - Math.min(points[0][0], steps[0]?.[0] ?? Infinity)));
  for (const row of state.accounts) {
    const track = noted(row.name, state.time, row.debt_items);
    forget(track, state.time, MINUTES * 60);
  }
  boundTracks();
  const names = [
    largest(state.accounts, (row) => row.debt_items),
    largest(state.holders, (row) => row.items),
    largest(state.holders, (row) => row.waited_items),
    largest(state.accounts, (row) => (row.waiting ? row.waiting_seconds : 0)),
  ];
  if (!moments.length || state.time - moments[moments.length - 1][0] >= MOMENT_SECONDS) {
    moments.push([state.time, ...names]);
    forget(moments, state.time, MINUTES * 60);
  }
  step(state.point, names);
}

// As `History.keep` and `keep_names` of the relay.
function step(point, names) {
  const began = Math.floor(point[0] / STEP_SECONDS) * STEP_SECONDS;
  const last = steps[steps.length - 1];
  if (!last || last[0] < began) {
    steps.push([began, ...point.slice(1), ...names]);
    forget(steps, point[0], HOUR);
    return;
  }
  last[1] = Math.max(last[1], point[1]);
  last[2] = Math.max(last[2], point[2]);
  last[3] = point[3];
  last[4] = point[4];
  last[5] = Math.min(last[5], point[5]);
  const sum = (rows) => rows.reduce((all, [, value]) => all + value, 0);
  if (sum(names[2]) >= sum(last[WAITED_ON])) last.splice(OWED, 4, ...names);
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
function recall({ points: totals, tops, hour, names }) {
  points.splice(0, points.length, ...totals);
  tracks.clear();
  const named = (found) => found.map(([place, value]) => [names[place], value]);
  moments.splice(0, moments.length, ...tops.map(([time, ...lists]) => [time, ...lists.map(named)]));
  steps.splice(0, steps.length, ...hour.map((row) => [...row.slice(0, OWED), ...row.slice(OWED).map(named)]));
  // An account that is not among the largest has no point then, and its line a gap.
  for (const [time, owed] of moments) for (const [name, debt] of owed) noted(name, time, debt);
  boundTracks();
  // Whoever opens the page after an alert sees at once what it was about.
  const waited = lastWait();
  if (waited === null || chosen !== null) return;
  const since = points[points.length - 1][0] - waited[0];
  if (since > asked) choose([900, HOUR].find((each) => each >= since) ?? HOUR);
}

function choose(seconds) {
  asked = seconds;
  $("span").value = String(seconds);
}

// The last step in which readers waited; null if there is none.
function lastWait() {
  return steps.findLast((each) => each[2] > 0) ?? null;
}

function latestBefore(all, time) {
  return all.findLast((each) => each[0] <= time) ?? null;
}

// Each second of the last minutes, or else the worst of each ten seconds.
function series() {
  if (asked <= MINUTES * 60) return points;
  const last = points[points.length - 1];
  return last ? [...steps, last] : steps;
}

const gapOf = (state) => Math.max(asked > MINUTES * 60 ? 2.5 * STEP_SECONDS : GAP_SECONDS, 2.5 * state.every_seconds);

// -- looking back ---------------------------------------------------------------------------------

// [time, debt, waiting, the four lists], or null: the names may be unknown, and are null then.
function at(time) {
  const point = latestBefore(points, time);
  if (point !== null && time - point[0] <= GAP_SECONDS) {
    const moment = latestBefore(moments, point[0] + MOMENT_SECONDS / 2);
    const near = moment !== null && point[0] - moment[0] <= 2 * MOMENT_SECONDS;
    return [point[0], point[1], point[2], near ? moment.slice(1) : null];
  }
  const found = latestBefore(steps, time);
  if (found === null || time - found[0] > 2 * STEP_SECONDS) return null;
  return [...found.slice(0, 3), found.slice(OWED)];
}

const readers = (count) => `${number(count)} ${count === 1 ? "reader" : "readers"} waiting`;

function showThen() {
  $("history-card").hidden = points.length < 2;
  if (!latest || points.length < 2) return;
  const back = $("back");
  const most = Math.ceil(span / 5) * 5;
  back.min = String(-most);
  const ago = chosen === null ? 0 : Math.max(0, latest.time - chosen);
  if (document.activeElement !== back || chosen === null) back.value = String(-Math.min(most, Math.round(ago / 5) * 5));
  back.setAttribute("aria-valuetext", ago ? `${duration(Math.round(ago))} ago` : "now");
  $("to-now").disabled = chosen === null;
  const found = chosen === null ? null : at(chosen);
  const names = $("then-names");
  names.hidden = true;
  drawHistory();
  if (found === null) {
    const waited = lastWait();
    const was = waited === null ? "No reader has waited in this time. " : `Readers last waited ${duration(Math.max(0, Math.round(latest.time - waited[0])))} ago${waited[WAITED_ON].length ? `, on ${waited[WAITED_ON].map(([name]) => shortName(name)).join(", ")}` : ""}. `;
    write($("then"), chosen !== null ? "Nothing was kept of that time." : `${latest.totals.waiting ? "" : was}Look back to see who owed, held and waited then.`);
    return;
  }
  const [time, debt, waiting, lists] = found;
  write($("then"), `${duration(Math.round(ago))} ago, at ${clockTime(time, true)}: debt ${number(debt)}, ${readers(waiting)}`);
  if (lists === null) return;
  GROUPS.forEach(([, say], place) => {
    const group = names.children[place];
    group.hidden = !lists[place].length;
    rows(group.lastElementChild, lists[place], ([name]) => name,
      ([name]) => el("span", { class: "one" }, opener(name), el("span")),
      (item, [, value]) => write(item.lastChild, ` ${say(value)}`));
  });
  names.hidden = lists.every((list) => !list.length);
}

// -- the chart ------------------------------------------------------------------------------------

const TICKS = [10, 30, 60, 120, 300, 600, 900];
const clocks = [false, true].map((second) => new Intl.DateTimeFormat("en", { hour: "2-digit", minute: "2-digit", hourCycle: "h23", ...(second ? { second: "2-digit" } : {}) }));
const clockTime = (time, second) => clocks[second ? 1 : 0].format(new Date(time * 1000));

const CHART = { height: 132, debt: [16, 70], waiting: [92, 112] };

// What was owed, and below it how many readers waited, over the time of day.
function drawHistory() {
  const box = $("history");
  const wide = Math.max(240, Math.round(box.clientWidth || 600));
  const now = latest.time;
  const from = now - span;
  const x = (time) => Math.max(0, ((time - from) / span) * wide);
  const gap = gapOf(latest);
  const all = series();
  const shown = all.filter((each, place) => each[0] >= from || (all[place + 1]?.[0] ?? -1) >= from);
  const most = [1, 2].map((which) => Math.max(0, ...shown.map((each) => each[which])));
  const parts = [];
  const every = TICKS.find((each) => (each / span) * wide >= (each < 60 ? 76 : 58)) ?? TICKS[TICKS.length - 1];
  for (let time = Math.ceil(from / every) * every; time <= now; time += every) {
    const place = x(time).toFixed(1);
    parts.push(svg("path", { class: "tick", d: `M${place} ${CHART.debt[0]}V${CHART.waiting[1] + 4}` }));
    // A label that would stick out is left out.
    if (place > 24 && place < wide - 24) parts.push(svg("text", { class: "when", x: place, y: CHART.height - 3, "text-anchor": "middle" }, clockTime(time, every < 60)));
  }
  [[1, CHART.debt, "debt", most[0]], [2, CHART.waiting, "wait", most[1]]].forEach(([which, [top, bottom], kind, highest]) => {
    const y = (value) => bottom - (Math.max(0, value) / Math.max(highest, 1)) * (bottom - top);
    let line = "";
    let area = "";
    let before = null;
    const close = () => {
      if (before !== null) area += `L${x(before[0]).toFixed(1)} ${bottom}Z`;
    };
    for (const each of shown) {
      const place = x(each[0]).toFixed(1);
      if (before === null || each[0] - before[0] > gap) {
        close();
        line += `M${place} ${y(each[which]).toFixed(1)}`;
        area += `M${place} ${bottom}V${y(each[which]).toFixed(1)}`;
      } else {
        // Who waits begins and ends at once: steps, not slopes.
        const next = kind === "wait" ? `V${y(each[which]).toFixed(1)}` : `L${place} ${y(each[which]).toFixed(1)}`;
        line += kind === "wait" ? `H${place}${next}` : next;
        area += kind === "wait" ? `H${place}${next}` : next;
      }
      before = each;
    }
    close();
    parts.push(svg("path", { class: `area ${kind}`, d: area }), svg("path", { class: `stroke ${kind}`, d: line }), svg("path", { class: "base", d: `M0 ${bottom}H${wide}` }));
  });
  parts.push(
    svg("text", { class: "what", x: 0, y: 11 }, `debt, at most ${compact(most[0])} items`),
    svg("text", { class: "what", x: 0, y: 87 }, most[1] ? `readers waiting, at most ${compact(most[1])}` : "no reader waited"));
  if (chosen !== null && chosen >= from) {
    const place = x(chosen).toFixed(1);
    parts.push(svg("path", { class: "cursor", d: `M${place} ${CHART.debt[0] - 4}V${CHART.waiting[1] + 4}` }));
  }
  box.setAttribute("viewBox", `0 0 ${wide} ${CHART.height}`);
  box.setAttribute("aria-label", `From ${clockTime(from, true)} to ${clockTime(now, true)}: debt at most ${number(most[0])} items, at most ${readers(most[1])}`);
  box.replaceChildren(...parts);
}

$("back").addEventListener("input", () => {
  const ago = -Number($("back").value);
  chosen = ago && latest ? latest.time - ago : null;
  showThen();
});

$("history").addEventListener("click", (event) => {
  if (!latest) return;
  const box = $("history").getBoundingClientRect();
  const ago = Math.round((1 - (event.clientX - box.left) / box.width) * span);
  chosen = ago >= 5 ? latest.time - ago : null;
  showThen();
});

$("to-now").addEventListener("click", () => {
  chosen = null;
  $("back").value = "0";
  showThen();
  $("back").focus(); // The button cannot be used any more.
});

$("span").addEventListener("change", () => {
  asked = Number($("span").value);
  chosen = null;
  if (!latest) return;
  span = Math.min(asked, Math.max(60, latest.time - Math.min(points[0][0], steps[0]?.[0] ?? Infinity)));
  showTiles(latest);
  showThen();
});

// -- small curves ---------------------------------------------------------------------------------

function forget(track, now, seconds) {
  // The first that is out of sight is kept, or the line would not reach the edge.
  while (track.length > 1 && track[1][0] < now - seconds) track.shift();
}

// Where nobody looked there is a gap, not a line.
function sparkline(node, values, now, { most = 0, describe, gap, span }) {
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
    node.setAttribute("aria-label", `last ${duration(Math.round(span))}: least ${describe(Math.min(...all))}, most ${describe(Math.max(...all))}`);
  }
}

// [time, items finished a second], of points or of steps.
function ratesOf(all, gap) {
  const rates = [];
  for (let i = 1; i < all.length; i += 1) {
    const [a, b] = [all[i - 1], all[i]];
    const time = b[0] - a[0];
    // Counters begin anew with the relay.
    if (time > 0 && time <= gap && b[3] >= a[3]) rates.push([b[0], (b[3] - a[3]) / time]);
  }
  return rates;
}

function showTiles(state) {
  const totals = state.totals;
  const now = state.time;
  const gap = gapOf(state);
  const all = series();
  write($("debt"), compact(totals.debt_items));
  write($("debt-unit"), `items, ${size(totals.debt_bytes)}`);
  sparkline($("debt-line"), all.map((p) => [p[0], p[1]]), now, { describe: number, gap, span });

  const room = Math.max(0, state.point[5]);
  write($("room"), percent(room));
  // Those that wait have none left, and are not among the tightest.
  const where = !room && state.waits.length ? state.waits[0].at : state.tightest[0]?.name;
  write($("room-unit"), where ? `at ${shortName(where)}` : "everywhere");
  sparkline($("room-line"), all.map((p) => [p[0], Math.max(0, p[5])]), now, { most: 1, describe: percent, gap, span });

  write($("waiting"), number(totals.waiting));
  const states = totals.accounts;
  write($("waiting-unit"), `of ${number(Object.values(states).reduce((a, b) => a + b, 0))} accounts`);
  sparkline($("waiting-line"), all.map((p) => [p[0], p[2]]), now, { most: 1, describe: number, gap, span });

  const [rates, lately] = [ratesOf(all === points ? points : steps, gap), ratesOf(points.slice(-2), gap)];
  write($("rate"), lately.length ? compact(lately[0][1]) : "\u2013");
  const lost = totals.repaid_items.written_off ?? 0;
  write($("rate-unit"), lost ? `items a second; ${compact(lost)} written\u00a0off` : "items a second");
  sparkline($("rate-line"), rates, now, { describe: (v) => `${compact(v)} a second`, gap, span });
}
