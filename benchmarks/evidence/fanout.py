"""What a delivery costs the server, by fan-out and by kind of traffic."""

from __future__ import annotations

import argparse
import dataclasses
import math
import statistics
from collections.abc import Sequence
from typing import Any, Final

from benchmarks.evidence._plot import decades, figure_of, style_of
from benchmarks.evidence._section import Claim, Rendered, Section, Setting
from benchmarks.evidence._text import in_order, label, listed, middle, table, wrapped
from benchmarks.fanout import (
    BUSY,
    REGIMES,
    Regime,
    Results,
    Sample,
    judge,
    measure_all,
    results_table,
)
from benchmarks.loadgen import Measurement
from benchmarks.servers import AnyServer

PASSES: Final = 3
PASSES_ONE: Final = 4
"""With one in flight, where a pass differs by a tenth from the next, and the budget is as near."""
SECONDS: Final = 1.0

FAST: Final = ("relay", "mosquitto", "nats", "redis")
"""Measured in all regimes and all passes; the others are slow to start or to deliver."""

REGIMES_FAST: Final = (
    "pipelined-1",
    "pipelined-9",
    "pipelined-100",
    "random-9",
    "topics8-9",
)
REGIME_ONE: Final = "one-9"
REGIMES_ONCE: Final = ("inflight32-9",)
"""In one pass only."""

REGIMES_SLOW: Final = ("pipelined-1", "pipelined-9", "pipelined-100", "one-9")
SYNDICATE: Final = "syndicate-9"
"""The relay alone: for its peers it is pipelined-9 again."""

WORDS: Final = {
    "pipelined-1": "N=1",
    "pipelined-9": "N=9",
    "pipelined-100": "N=100",
    "random-9": "random sizes",
    "topics8-9": "eight topics",
    "inflight32-9": "32 in flight",
    "one-9": "one in flight",
    SYNDICATE: "Syndicate",
}
"""Headings of columns."""

CLAIMS: Final = {
    ("pipelined-1", "nats"): "pipelined, one subscriber",
    ("pipelined-9", "nats"): "pipelined, nine subscribers",
    ("pipelined-100", "nats"): "pipelined, a hundred subscribers",
    ("random-9", "nats"): "payloads of random sizes, nine subscribers",
    ("topics8-9", "nats"): "eight alternating topics, nine subscribers",
    ("pipelined-9", "mosquitto"): "pipelined, nine subscribers",
    ("pipelined-100", "mosquitto"): "pipelined, a hundred subscribers",
    ("one-9", "mosquitto"): "one message in flight, nine subscribers",
}
"""Which budgets of fanout.py the page holds the relay to, and the traffic in words."""


# -- Measuring -------------------------------------------------------------------------------------


def measure(setting: Setting) -> dict[str, Any]:
    """Measure the fast servers in all regimes, the others in a few."""
    passes, passes_one = (PASSES, PASSES_ONE) if setting.scale >= 0.5 else (1, 1)
    seconds = max(0.2, SECONDS * setting.scale)
    fast = [server for server in setting.servers if server.name in FAST]
    slow = [server for server in setting.servers if server.name not in FAST]
    relay = [server for server in setting.servers if server.name == "relay"]
    results = Results()
    for regimes, servers, times in (
        (REGIMES_FAST, fast, passes),
        ((REGIME_ONE,), fast, passes_one),
        (REGIMES_ONCE, fast, 1),
        ((SYNDICATE,), relay, passes),
        (REGIMES_SLOW, slow, 1),
    ):
        if servers:
            found = _measured(regimes, servers, times, seconds, setting)
            results.samples += found.samples
            results.failures += found.failures
    skipped = [f"{failure.splitlines()[0]}." for failure in results.failures]
    if slow:
        names = listed([label(server.name) for server in slow])
        left_out = [n for n in (*REGIMES_FAST, REGIME_ONE, *REGIMES_ONCE) if n not in REGIMES_SLOW]
        skipped.append(
            f"{names}: one pass, and nothing of {listed([WORDS[name] for name in left_out])}, "
            "since they take long to start or are slow."
        )
    return {
        "passes": passes,
        "passes_one": passes_one,
        "seconds": seconds,
        "samples": [dataclasses.asdict(sample) for sample in results.samples],
        "failures": results.failures,
        "skipped": skipped,
    }


def _measured(
    names: Sequence[str],
    servers: list[AnyServer],
    passes: int,
    seconds: float,
    setting: Setting,
) -> Results:
    arguments = argparse.Namespace(passes=passes, seconds=seconds, retries=0)
    regimes: list[Regime] = [REGIMES[name] for name in names]
    return measure_all(
        regimes, servers, arguments, setting.cores, lambda text: setting.report(f"fanout: {text}")
    )


# -- Showing ---------------------------------------------------------------------------------------


def render(data: dict[str, Any]) -> Rendered:
    """Show costs by fan-out and regime, and hold the relay to its budgets."""
    results = Results([_sample(each) for each in data["samples"]], data["failures"])
    servers = in_order(sample.server for sample in results.samples)
    regimes = [name for name in WORDS if any(s.regime == name for s in results.samples)]
    introduction = wrapped(
        "One publisher, N subscribers to all its messages, 200 bytes each, as fast as the server "
        "lets them. *Pipelined* means writes of up to 64 KiB with many messages in each; *random "
        "sizes* are 50 to 400 bytes; with *eight topics* each message has another topic than the "
        "one before; with *one in flight* the publisher waits until each message has reached all "
        "nine. *Syndicate* is the relay with that protocol, otherwise as N=9."
    )
    passes = data["passes"]
    costs = wrapped(
        f"**CPU seconds of the server per million deliveries**, over {data['seconds']:g} s of "
        + (
            f"publishing: medians of {passes} passes, of {data['passes_one']} with one in flight, "
            "minimum and maximum in brackets (without brackets: one pass)."
            if passes > 1
            else "publishing, in one pass."
        )
    )
    blocks = [
        introduction,
        "![What a delivery costs, by fan-out and by kind of traffic](evidence-fanout.svg)",
        costs,
        _matrix(results, regimes, servers, _cpu, ".2f", spread=True),
        _against(results, regimes, servers),
        "**Deliveries a second**, in thousands, with a core for each side:",
        _matrix(results, regimes, servers, _thousands, ",.0f", spread=False),
        *_remarks(results),
        "<details><summary>All measurements</summary>",
        _details(results, regimes, servers),
        "</details>",
    ]
    return Rendered(
        "\n\n".join(blocks),
        {"fanout": lambda: figure(results, servers)},
        _claims(results),
        _beside(results, servers),
    )


def _sample(written: dict[str, Any]) -> Sample:
    known = {field.name for field in dataclasses.fields(Measurement)}
    found = {name: value for name, value in written["measurement"].items() if name in known}
    return Sample(written["number"], written["regime"], written["server"], Measurement(**found))


def _cpu(found: Measurement) -> float:
    return found.cpu_seconds_per_million


def _thousands(found: Measurement) -> float:
    return found.deliveries_per_second / 1000


def _matrix(
    results: Results, regimes: list[str], servers: list[str], of: Any, form: str, *, spread: bool
) -> str:
    """Return a table with a row for each server and a column for each regime."""
    rows: list[list[str]] = []
    for server in servers:
        row = [label(server)]
        for regime in regimes:
            values = [of(found) for found in results.of(regime, server)]
            values = values if spread or not values else [statistics.median(values)]
            row.append(middle(values, form))
        rows.append(row)
    return table(["", *(WORDS[name] for name in regimes)], rows, right=range(1, len(regimes) + 1))


def _ratio(value: float) -> str:
    return f"{value:.2f}" if value >= 0.1 else f"{value:.3f}"


def _with_syndicate(results: Results) -> Results:
    """Return the results with the peers of pipelined-9 beside the relay with Syndicate."""
    peers = [
        dataclasses.replace(sample, regime=SYNDICATE)
        for sample in results.samples
        if sample.regime == "pipelined-9" and sample.server != "relay"
    ]
    return Results(results.samples + peers)


def _against(results: Results, regimes: list[str], servers: list[str]) -> str:
    """Return the relay's cost as a ratio to each peer's."""
    rows: list[list[str]] = []
    results = _with_syndicate(results)
    for peer in servers:
        ratios = [results.cpu_ratios(regime, "relay", peer) for regime in regimes]
        if peer != "relay" and any(ratios):
            cells = [_ratio(statistics.median(each)) if each else "-" for each in ratios]
            rows.append([f"x {label(peer)}", *cells])
    if not rows:
        return ""
    head = ["the relay", *(WORDS[name] for name in regimes)]
    return (
        "**The relay's CPU as a ratio to another's**, within a pass; below 1 the relay uses less:"
        f"\n\n{table(head, rows, right=range(1, len(head)))}"
    )


def _remarks(results: Results) -> list[str]:
    """Say what arrived, and where the figures are about something else than the server."""
    lines: list[str] = []
    holes = [sample for sample in results.samples if not sample.measurement.whole]
    deliveries = sum(sample.measurement.delivered for sample in results.samples)
    if holes:
        where = sorted({f"{label(s.server)} ({WORDS[s.regime]})" for s in holes})
        lines.append(f"**Not everything arrived** from {listed(where)}; from the others it did.")
    elif results.samples:
        lines.append(
            f"All {deliveries / 1e6:,.0f} million measured deliveries arrived; none was lost, "
            "repeated or altered."
        )
    full = in_order(s.server for s in results.samples if s.measurement.generator_share > 0.95)
    if full:
        lines.append(
            f"With {listed([label(name) for name in full])} the generator had no time left in some "
            "regime: these servers could deliver more, and batch less, than is shown."
        )
    waited = [sample.measurement.kept_waiting for sample in results.samples]
    if waited and statistics.median(waited) > BUSY:
        lines.append(
            "**The machine was busy**: other processes kept the server or the generator waiting "
            f"for {statistics.median(waited):.0%} of the time (median; up to {max(waited):.0%})."
        )
    return [wrapped(" ".join(lines))] if lines else []


def _details(results: Results, regimes: list[str], servers: list[str]) -> str:
    # results_table looks at no more of a server than its name.
    named: list[Any] = [argparse.Namespace(name=server) for server in servers]
    return results_table(results, [REGIMES[name] for name in regimes], named)


def _claims(results: Results) -> tuple[Claim, ...]:
    claims: list[Claim] = []
    for verdict in judge(results):
        budget = verdict.budget
        traffic = CLAIMS.get((budget.regime, budget.peer))
        if traffic is not None:
            claims.append(
                Claim(
                    f"CPU per delivery, {traffic}: at most {budget.ratio:g} x "
                    f"{label(budget.peer)}'s",
                    verdict.ratio,
                    budget.ratio,
                    ".3f" if budget.ratio < 0.1 else ".2f",
                )
            )
    return tuple(claims)


def _beside(results: Results, servers: list[str]) -> dict[str, dict[str, str]]:
    columns: dict[str, dict[str, str]] = {
        "CPU s per M deliveries, N=9": {},
        "the same, one in flight": {},
        "RSS at N=9, MB": {},
    }
    cpu, single, rss = columns.values()
    for server in servers:
        if found := results.of("pipelined-9", server):
            cpu[server] = f"{statistics.median(map(_cpu, found)):.2f}"
            rss[server] = f"{max(each.rss_peak_mb for each in found):.0f}"
        if found := results.of("one-9", server):
            single[server] = f"{statistics.median(map(_cpu, found)):.1f}"
    return columns


def figure(results: Results, servers: list[str]) -> Any:
    """Draw the cost over the fan-out, and at N=9 over the kind of traffic."""
    picture = figure_of(10.4, 4.2)
    left, right = picture.subplots(1, 2, sharey=True, width_ratios=(4, 5))
    fan_outs = {1: "pipelined-1", 9: "pipelined-9", 100: "pipelined-100"}
    kinds = ["pipelined-9", "random-9", "topics8-9", "inflight32-9", "one-9"]
    for server in servers:
        style = style_of(server)
        line = [_median(results, regime, server) for regime in fan_outs.values()]
        left.plot(list(fan_outs), line, label=label(server), **style.line())
        points = [_median(results, regime, server) for regime in kinds]
        # Side by side, so that none hides another.
        shift = 0.08 * (servers.index(server) - (len(servers) - 1) / 2)
        places = [place + shift for place in range(len(kinds))]
        right.plot(places, points, **style.line(linestyle="none", markersize=6))
    left.set_xscale("log")
    left.set_xticks(list(fan_outs), [str(n) for n in fan_outs])
    left.minorticks_off()
    left.set_yscale("log")
    decades(left.yaxis)
    left.set_xlabel("subscribers, pipelined")
    left.set_ylabel("CPU seconds per million deliveries")
    right.set_xticks(range(len(kinds)), ["pipelined", *(WORDS[name] for name in kinds[1:])])
    right.set_xlabel("nine subscribers")
    picture.legend(loc="outside upper center", ncols=min(8, len(servers)))
    return picture


def _median(results: Results, regime: str, server: str) -> float:
    found = results.of(regime, server)
    return statistics.median(map(_cpu, found)) if found else math.nan


SECTION: Final = Section(
    key="a",
    name="fanout",
    title="What a delivery costs",
    seconds=228,
    command="python -m benchmarks.evidence --only fanout",
    measure=measure,
    render=render,
)
