"""Many publishers: cost and latency of messages that come one by one (benchmarks/many.py)."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from benchmarks.evidence._plot import decades, figure_of, style_of
from benchmarks.evidence._section import Claim, Rendered, Section, Setting, about_nice, undisturbed
from benchmarks.evidence._text import in_order, label, listed, middle, table, wrapped
from benchmarks.fanout import BUSY
from benchmarks.many import ROWS, Results, Row, Sample, measure_all
from benchmarks.many import Setting as Effort
from benchmarks.servers import BARE, Relay

PASSES: Final = 2
PACED_PASSES: Final = 3
"""So many more for the relay and `CLOSE`, of what comes at a pace: a 99th percentile of a pass is
as high as the machine's longest pause in it, and the median of two passes is no better."""
PACED_SECONDS: Final = 1.4
"""A pause of 4 ms, as other processes make, is a 99th percentile of 0.4 s."""
CLOSE: Final = "mosquitto"
SECONDS: Final = 0.7
CONNECT_AT_ONCE: Final = ("--connect-rate=none", "--listener-connect-rate=none")
"""Of the relay: or 5,000 clients would take five seconds to connect."""
ALWAYS: Final = ("relay", "mosquitto", "nats", "mochi")
"""Measured in all rows and all passes; budgets name them."""
JAVA: Final = ("hivemq", "artemis")
"""They take long to start, and seconds of load until they are as fast as they get."""

CHOSEN: Final = (
    "pairs-5",
    "pairs-100",
    "pairs-1000",
    "pairs-2500",
    "fan-in-1000",
    "fan-in-5000",
    "pairs-100-dense",
    "fan-in-1000-dense",
    "pairs-100-qos1",
    "pairs-1000-qos1",
    "fan-in-1000-qos1",
    "pairs-100-qos1-dense",
)
FEW: Final = ("pairs-100", "fan-in-1000", "pairs-100-qos1")
"""Those of the servers in Java, and of all at a small scale."""

ABOUT_BARE: Final = (
    "*Bare Python* is a program of one page (`benchmarks/peers/routing_server.py`) that finds the "
    "subscribers of a topic in a dictionary and does nothing else: no sessions, accounts, limits, "
    "backpressure or checks. What it costs is Python's and the kernel's. "
)

MOST_QOS0: Final = 1.2
MOST_QOS1: Final = 1.5
MOST_P99: Final = 1.5
"""Times mosquitto's."""

Found = Mapping[str, Any]


# -- Measuring -------------------------------------------------------------------------------------


@undisturbed
def measure(setting: Setting) -> dict[str, Any]:
    """Measure the rows, interleaved; some servers in one pass, some in a few rows only."""
    full = setting.scale >= 0.5
    passes = PASSES if full else 1
    seconds = max(0.3, SECONDS * setting.scale)
    effort = Effort(setting.cores, passes, seconds, sleep=True)
    once = dataclasses.replace(effort, passes=1)
    rows = CHOSEN if full else FEW
    today = [
        dataclasses.replace(server, options=(*server.options, *CONNECT_AT_ONCE))
        if isinstance(server, Relay)
        else server
        for server in setting.today
    ]
    always = [server for server in today if server.name in ALWAYS]
    others = [server for server in today if server.name not in (*ALWAYS, *JAVA, BARE.name)]

    def said(text: str) -> None:
        setting.report(f"many: {text}")

    results = measure_all([ROWS[name] for name in rows], always, effort, said, once=others)
    # With the relay: ratios are taken within a pass.
    paced = dataclasses.replace(
        effort, passes=PACED_PASSES if full else 0, seconds=PACED_SECONDS * setting.scale
    )
    if full:
        at_a_pace = [ROWS[name] for name in rows if ROWS[name].rate is not None]
        further: list[tuple[Sequence[str], Sequence[str], list[Row], Effort, int]] = [
            ([CLOSE], [BARE.name], at_a_pace, paced, passes + 1),
            (JAVA, [], [ROWS[name] for name in FEW], once, passes + paced.passes + 1),
        ]
        for names, single, some, how, first in further:
            servers = [server for server in today if server.name in ("relay", *names)]
            if len(servers) > 1:
                in_one = [server for server in today if server.name in single]
                late = measure_all(some, servers, how, said, first=first, once=in_one)
                results.samples += late.samples
                results.failures += late.failures
    return {
        "passes": passes,
        "paced_passes": paced.passes,
        "paced_seconds": paced.seconds,
        "seconds": seconds,
        "rows": {name: dataclasses.asdict(ROWS[name]) for name in rows},
        "samples": [
            {"number": s.number, "row": s.row, "server": s.server} | brief(s.found)
            for s in results.samples
        ],
        "skipped": [f"{failure.splitlines()[0]}." for failure in results.failures],
    }


def quantiles_of(found: Mapping[str, Any], name: str) -> Mapping[str, float]:
    """Return a distribution that the generator says; nothing if it had nothing for it."""
    said: Mapping[str, float] | None = found[name]
    return {} if said is None else said


def brief(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is kept of a measurement, in one flat row."""
    latency, confirmation, late = (
        quantiles_of(found, name) for name in ("latency", "confirmation", "generator_late")
    )
    return {
        "cpu": found["cpu_seconds_per_million"],
        "p50": latency.get("p50"),
        "p99": latency.get("p99"),
        "puback_p50": confirmation.get("p50"),
        "rate": found["deliveries_per_second"],
        "delivered": found["delivered"],
        "whole": found["whole"],
        "server_share": found["server_share"],
        "generator_share": found["generator_share"],
        "waited": max(found["generator_queued"] or 0.0, found["server_queued"] or 0.0),
        "late_p99": late.get("p99"),
    }


# -- Showing ---------------------------------------------------------------------------------------


def _cpu(found: Found) -> float:
    return float(found["cpu"])


def _p99(found: Found) -> float:
    return float(found["p99"] or 0.0)


def render(data: dict[str, Any]) -> Rendered:
    """Show costs, latencies and what the relay's are beside its peers'."""
    rows = {name: Row(**fields) for name, fields in data["rows"].items()}
    results = Results(
        [Sample(s["number"], s["row"], s["server"], s) for s in data["samples"]], data["skipped"]
    )
    servers = in_order(sample.server for sample in results.samples)
    passes = data["passes"]
    introduction = wrapped(
        "In [section a](#fanout) a write has hundreds of messages of one publisher; here each "
        "message comes alone, from one of many connections. *Pairs* have a topic, a publisher and "
        "a subscriber each; with *fan-in* one subscriber has the topics of all publishers, by a "
        "wildcard. Messages of 200 bytes are due one after the other, evenly, from publisher after "
        "publisher; where *4 in flight each* stands, each publisher sends as soon as fewer than "
        "four of its messages are under way. With QoS 1 publishers wait for PUBACK, and "
        "subscribers send it. Topic, content, order and number of all deliveries are checked. NATS "
        "speaks its own protocol, which has no QoS 1. "
        + (ABOUT_BARE if BARE.name in servers else "")
        + "All servers are started for each pass; one "
        "of them at a time has something to do. The relay's limits of new connections a second are "
        f"off (`{' '.join(CONNECT_AT_ONCE)}`)."
    )
    costs = wrapped(
        f"**CPU seconds of the server per million deliveries**, over {data['seconds']:g} s: "
        + (f"medians of {passes} passes (minimum-maximum)" if passes > 1 else "one pass")
        + (
            f"; of the relay and {label(CLOSE)}, of what comes at a pace, {passes + more}, "
            f"{more} of which take {data.get('paced_seconds', data['seconds']):g} s"
            + (
                f"; in one of these {label(BARE.name)} has its turn, too."
                if BARE.name in servers
                else "."
            )
            if (more := data.get("paced_passes", 0))
            else "."
        )
    )
    late = wrapped(
        "**Latency from when a message was due**, 50th and 99th percentile in milliseconds "
        "(medians of the passes). The generator sleeps while nothing is to be done: the wake-ups "
        "of its core are part of every figure." + about_nice(data)
    )
    dense = [name for name, row in rows.items() if row.rate is None]
    blocks = [
        introduction,
        "![CPU per delivery and 99th percentile, by load](evidence-many.svg)",
        costs,
        _matrix(rows, results, servers, lambda row, server: _spread(results, row, server)),
        "**The relay's CPU as a ratio to another's**, within a pass; below 1 the relay uses less:",
        _matrix(
            rows, results, servers[1:] if servers[:1] == ["relay"] else servers,
            lambda row, server: _ratio(results, row, server, _cpu),
        ),
        late,
        _matrix(
            {name: row for name, row in rows.items() if row.rate is not None}, results, servers,
            lambda row, server: _latency(results, row, server),
        ),
    ]  # fmt: skip
    if dense:
        blocks += [
            "**Deliveries a second** where publishers send as soon as they may, in thousands:",
            _matrix(
                {name: rows[name] for name in dense}, results, servers,
                lambda row, server: _thousands(results, row, server),
            ),
        ]  # fmt: skip
    blocks += [*_about_bare(results, rows), *_remarks(results, rows)]
    return Rendered(
        "\n\n".join(block for block in blocks if block),
        {"many": lambda: figure(results, rows, servers)},
        _claims(results, rows),
        _beside(results, servers),
    )


def _matrix(
    rows: Mapping[str, Row],
    results: Results,
    servers: Sequence[str],
    cell: Callable[[str, str], str],
) -> str:
    """Return a table with a row for each load and a column for each server."""
    lines = [
        [row.meaning, *(cell(name, server) for server in servers)] for name, row in rows.items()
    ]
    if not results.samples:
        return ""
    head = ["", *(label(server) for server in servers)]
    return table(head, lines, right=range(1, len(head)))


def _spread(results: Results, row: str, server: str) -> str:
    return middle(map(_cpu, results.of(row, server)), ".1f")


def _ratio(results: Results, row: str, server: str, of: Callable[[Found], float]) -> str:
    ratios = results.ratios(row, server, of)
    return f"{statistics.median(ratios):.2f}" if ratios else "-"


def _latency(results: Results, row: str, server: str) -> str:
    found = [f for f in results.of(row, server) if f["p50"] is not None]
    if not found:
        return "-"
    p50, p99 = (statistics.median(f[name] * 1e3 for f in found) for name in ("p50", "p99"))
    return f"{p50:.2f}, {p99:.2f}"


def _thousands(results: Results, row: str, server: str) -> str:
    found = results.of(row, server)
    return f"{statistics.median(f['rate'] for f in found) / 1000:,.1f}" if found else "-"


def _about_bare(results: Results, rows: Mapping[str, Row]) -> list[str]:
    """Say what Python alone costs beside mosquitto, and the relay beside that."""
    said: list[str] = []
    for qos in (0, 1):
        times: list[float] = []
        over: list[float] = []
        for name, row in rows.items():
            ratios = results.ratios(name, CLOSE, _cpu, BARE.name)
            if row.qos == qos and row.rate is not None and ratios:
                times.append(statistics.median(ratios))
                over.append(statistics.median(results.ratios(name, BARE.name, _cpu)))
        if times:
            said.append(
                f"with QoS {qos} {min(times):.2f} to {max(times):.2f} times {label(CLOSE)}'s CPU, "
                f"and the relay {min(over):.2f} to {max(over):.2f} times that of {label(BARE.name)}"
            )
    if not said:
        return []
    return [wrapped(f"At a pace, {label(BARE.name)} takes {'; '.join(said)}.")]


def _remarks(results: Results, rows: Mapping[str, Row]) -> list[str]:
    """Say what arrived, and how far the generator and the machine were in the way."""
    if not results.samples:
        return []
    lines: list[str] = []
    found = [sample.found for sample in results.samples]
    holes = [sample for sample in results.samples if not sample.found["whole"]]
    if holes:
        where = sorted({f"{label(s.server)} ({rows[s.row].meaning})" for s in holes})
        lines.append(f"**Not everything arrived** from {listed(where)}; from the others it did.")
    else:
        lines.append(
            f"All {sum(f['delivered'] for f in found):,} measured deliveries arrived, once and in "
            "order."
        )
    # Threads that wait at the same time count each.
    waited = [min(1.0, float(f["waited"])) for f in found]
    if statistics.median(waited) > BUSY:
        lines.append(
            "**The machine was busy**: other processes kept the server or the generator waiting "
            f"for {statistics.median(waited):.0%} of the time (median; up to {max(waited):.0%}). "
            "Messages come in bursts then, 99th percentiles are the machine's, and only ratios of "
            "CPU say something about a server."
        )
    return [wrapped(" ".join(lines))]


def _worst(
    results: Results, rows: Mapping[str, Row], peer: str, of: Callable[[Found], float]
) -> tuple[float | None, str]:
    """Return the highest median ratio of the relay to a peer, and the load that it is of."""
    medians = {
        name: statistics.median(ratios)
        for name in rows
        if (ratios := results.ratios(name, peer, of))
    }
    if not medians:
        return None, "-"
    worst = max(medians, key=medians.__getitem__)
    return medians[worst], rows[worst].meaning


def _claims(results: Results, rows: Mapping[str, Row]) -> tuple[Claim, ...]:
    def those(qos: int, *, paced: bool | None = None) -> dict[str, Row]:
        return {
            name: row
            for name, row in rows.items()
            if row.qos == qos and (paced is None or (row.rate is not None) is paced)
        }

    wanted = (
        (
            "CPU per delivery",
            _cpu,
            those(0, paced=True),
            "QoS 0 at a pace",
            "mosquitto",
            MOST_QOS0,
        ),
        ("CPU per delivery", _cpu, those(0, paced=False), "QoS 0, dense", "mosquitto", MOST_QOS0),
        ("CPU per delivery", _cpu, those(0), "QoS 0", "nats", 1.0),
        ("CPU per delivery", _cpu, those(1), "QoS 1", "mosquitto", MOST_QOS1),
        ("CPU per delivery", _cpu, those(1), "QoS 1", "mochi", 1.0),
        ("99th percentile", _p99, those(0, paced=True), "QoS 0", "mosquitto", MOST_P99),
        ("99th percentile", _p99, those(1, paced=True), "QoS 1", "mosquitto", MOST_P99),
    )
    claims: list[Claim] = []
    for what, of, group, traffic, peer, most in wanted:
        found, where = _worst(results, group, peer, of)
        limit = f"at most {most:g} x {label(peer)}'s" if most != 1 else f"below {label(peer)}'s"
        text = f"{what}, many publishers, {traffic}: {limit} in each of {len(group)} loads"
        if found is not None:
            text += f" (highest: {where})"
        claims.append(Claim(text, found, most))
    return tuple(claims)


def _beside(results: Results, servers: Sequence[str]) -> dict[str, dict[str, str]]:
    cells: dict[str, str] = {}
    for server in servers:
        if found := results.of("pairs-100", server):
            cells[server] = f"{statistics.median(map(_cpu, found)):.0f}"
    return {"CPU s per M deliveries, 100 pairs at 2,000/s": cells}


def figure(results: Results, rows: Mapping[str, Row], servers: Sequence[str]) -> Any:
    """Draw CPU per delivery of every load, and the 99th percentile of those at a pace."""
    picture = figure_of(10.4, 6.4)
    paced = [name for name, row in rows.items() if row.rate is not None]
    left, right = picture.subplots(1, 2, width_ratios=(1, 1))
    for axes, names, of, factor in ((left, list(rows), _cpu, 1.0), (right, paced, _p99, 1e3)):
        for place, server in enumerate(servers):
            points = [
                statistics.median(map(of, found)) * factor
                if (found := results.of(name, server))
                else math.nan
                for name in names
            ]
            shift = 0.09 * (place - (len(servers) - 1) / 2)
            axes.plot(
                points,
                [number + shift for number in range(len(names))],
                label=label(server),
                **style_of(server).line(linestyle="none", markersize=5),
            )
        axes.set_xscale("log")
        decades(axes.xaxis)
        axes.set_yticks(range(len(names)), [rows[name].meaning for name in names])
        axes.invert_yaxis()
    left.set_xlabel("CPU seconds per million deliveries")
    right.set_xlabel("99th percentile, ms")
    handles, labels = left.get_legend_handles_labels()
    picture.legend(handles, labels, loc="outside upper center", ncols=min(7, len(servers)))
    return picture


SECTION: Final = Section(
    key="n",
    name="many",
    title="Many publishers",
    seconds=200,
    command="python -m benchmarks.evidence --only many",
    measure=measure,
    render=render,
)
