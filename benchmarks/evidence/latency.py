"""How late deliveries are, at a pace that every server can keep."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.evidence._plot import decades, figure_of, style_of
from benchmarks.evidence._section import Claim, Rendered, Section, Setting, about_nice, undisturbed
from benchmarks.evidence._text import first_line, in_order, label, listed, middle, table, wrapped
from benchmarks.fanout import BUSY, Cores, Regime
from benchmarks.fanout import measure as measure_most
from benchmarks.loadgen import GeneratorError, Load, run_paced
from benchmarks.servers import AnyServer, Relay, Running, ServerError, pinned

SUBSCRIBERS: Final = 9
PAYLOAD: Final = 200
SECONDS: Final = 1.0
WARMUP: Final = 0.3
MOST_SECONDS: Final = 0.6
"""Of publishing as fast as it goes, to find out how fast that is."""

POLLING: Final = "polling"
POLL_SECONDS: Final = 0.001
"""The relay once more, with ``--busy-poll``: longer than from one message to the next at the pace
of the slowest."""

TURNS: Final = 4
"""Passes of a server before it is started afresh. The servers that are compared take turns of a
second each, so that a longer disturbance of the machine hits all of them. They are started more
than once, because where a process has its memory matters, too."""

STARTS: Final = {"relay": 3, POLLING: 3, "mosquitto": 3}
OTHERS_STARTS: Final = 1
"""Most starts of servers whose figures are compared: the machine decides about the 99th percentile
of one pass."""

APART: Final = ("rabbitmq",)
"""Servers that do so much without load that no other server runs beside them."""

DISTURBED: Final = 20.0
"""Microseconds by which the generator is late by its own fault, at the 99th percentile. Above that
the machine stopped it, and the run says nothing about a server's latency."""

RETRIES: Final = 2
"""How often a disturbed run is repeated; the run in which the generator was least late counts. The
choice does not depend on the result, and is the same for every server."""

FAST: Final = ("relay", "mosquitto", "nats", "redis")
"""Measured at the second pace, too, if they can keep it."""

FAST_STARTS: Final = 1
SECOND: Final = "mosquitto"
"""The server whose throughput sets the second pace: half of its most."""

COMPARED: Final = "mosquitto"
"""The server whose 99th percentile is compared, with enough passes for a confidence interval."""

CONFIDENCE: Final = 0.95

STEPS: Final = 5
"""Points of a curve for each halving of the share above."""

QUANTILES: Final = ("p50", "p99", "p99.9", "max")


# -- Measuring -------------------------------------------------------------------------------------


@undisturbed
def measure(setting: Setting) -> dict[str, Any]:
    """Find out what each server does at most, then run all at half of the least."""
    seconds = max(0.25, SECONDS * setting.scale)
    turns = max(1, round(TURNS * setting.scale))
    full = setting.scale >= 0.5
    skipped: list[str] = []
    most: dict[str, float] = {}
    regime = Regime("most", "as fast as it goes", SUBSCRIBERS, payload=(PAYLOAD, PAYLOAD))
    for server in setting.servers:
        try:
            found = measure_most(
                regime, server, max(0.2, MOST_SECONDS * setting.scale), setting.cores
            )
        except (GeneratorError, ServerError) as error:
            skipped.append(f"{label(server.name)}, at most: {first_line(error)}")
            continue
        most[server.name] = found.deliveries_per_second / SUBSCRIBERS
        setting.report(f"latency: {server.name} takes {most[server.name]:,.0f} messages/s at most")

    paces: list[dict[str, Any]] = []
    if most:
        slowest = min(most, key=most.__getitem__)
        servers = [server for server in setting.servers if server.name in most]
        relay = setting.server("relay")
        if isinstance(relay, Relay) and relay in servers:
            options = (*relay.options, f"--busy-poll={POLL_SECONDS:g}")
            servers.append(dataclasses.replace(relay, name=POLLING, options=options))
            most[POLLING] = most["relay"]
        paces.append(
            _at_pace(
                slowest,
                half(most[slowest]),
                {server: starts_of(server.name) if full else 1 for server in servers},
                turns,
                seconds,
                setting,
                skipped,
            )
        )
        second = half(most.get(SECOND, 0.0))
        able = [
            server
            for server in servers
            if server.name in (*FAST, POLLING) and most[server.name] >= 2 * second > 0
        ]
        if len(able) > 1 and slowest != SECOND:
            starts = dict.fromkeys(able, FAST_STARTS)
            paces.append(_at_pace(SECOND, second, starts, turns, seconds, setting, skipped))
    most.pop(POLLING, None)  # it was not measured
    return {
        "subscribers": SUBSCRIBERS,
        "payload": PAYLOAD,
        "seconds": seconds,
        "turns": turns,
        "most": most,
        "paces": paces,
        "skipped": skipped,
    }


def starts_of(server: str) -> int:
    """Return how often a server is started, and has its turns, at the first pace."""
    return STARTS.get(server, OTHERS_STARTS)


def half(most: float) -> float:
    """Return half of that many messages a second, to two digits: a pace one can remember."""
    if most <= 0:
        return 0.0
    digits = 10.0 ** (math.floor(math.log10(most / 2)) - 1)
    return max(1.0, float(math.floor(most / 2 / digits) * digits))


def _at_pace(
    of: str,
    rate: float,
    starts: Mapping[AnyServer, int],
    turns: int,
    seconds: float,
    setting: Setting,
    skipped: list[str],
) -> dict[str, Any]:
    """Start each server so many times, and run those that are up at that rate in turn."""
    samples: list[dict[str, Any]] = []
    for start in range(max(starts.values(), default=0)):
        chosen = [server for server, times in starts.items() if start < times]
        apart = [[server] for server in chosen if server.name in APART]
        for beside in ([each for each in chosen if each.name not in APART], *apart):
            up = contextlib.ExitStack()
            try:
                ports = _start(beside, up, setting.cores, skipped)
                for number in range(start * turns + 1, (start + 1) * turns + 1):
                    for server in rotated(list(ports), number):
                        try:
                            found = _quietly(*ports[server], rate, seconds, setting.cores)
                        except GeneratorError as error:
                            skipped.append(
                                f"{label(server.name)}, pass {number}: {first_line(error)}"
                            )
                            continue
                        samples.append({"pass": number, "server": server.name, **found})
                        setting.report(
                            f"latency: {rate:,.0f} messages/s, pass {number}, {server.name}: "
                            f"p50 {found['p50']:,.0f} µs, p99 {found['p99']:,.0f} µs"
                        )
            finally:
                _stop(up, skipped)
    return {"of": of, "rate": rate, "samples": samples}


def rotated(some: list[AnyServer], by: int) -> list[AnyServer]:
    """Return them in an order in which nobody is always first."""
    at = by % len(some) if some else 0
    return some[at:] + some[:at]


def _start(
    servers: Sequence[AnyServer], up: contextlib.ExitStack, cores: Cores, skipped: list[str]
) -> dict[AnyServer, tuple[str, Running]]:
    """Start servers that run until `up` is closed; return what each is driven with."""
    found: dict[AnyServer, tuple[str, Running]] = {}
    for server in servers:
        protocol = server.speaks("mqtt")
        try:
            if protocol is None:
                raise ServerError(f"{server.name} does not speak mqtt")
            scratch = up.enter_context(tempfile.TemporaryDirectory(prefix="latency-"))
            running = up.enter_context(server.running(Path(scratch), cores.server))
        except ServerError as error:
            skipped.append(f"{label(server.name)}: {first_line(error)}")
        else:
            found[server] = protocol, running
    return found


def _stop(up: contextlib.ExitStack, skipped: list[str]) -> None:
    """Stop what was started; what goes wrong is told, and the others are stopped all the same."""
    try:
        up.close()
    except ServerError as error:
        skipped.append(first_line(error))


def _quietly(
    protocol: str, running: Running, rate: float, seconds: float, cores: Cores
) -> dict[str, Any]:
    """As `paced`, and again if the machine has disturbed it. Raises as it."""
    best = paced(protocol, running, rate, seconds, cores)
    for _ in range(RETRIES):
        if best["generator_late_p99"] <= DISTURBED:
            break
        again = paced(protocol, running, rate, seconds, cores)
        best = min(best, again, key=lambda found: found["generator_late_p99"])
    return best


def paced(
    protocol: str, running: Running, rate: float, seconds: float, cores: Cores
) -> dict[str, Any]:
    """Load a server that is running at that rate; return what was found, in microseconds.

    Raises:
        GeneratorError: Nothing could be measured.
    """
    load = Load(
        protocol,
        SUBSCRIBERS,
        1,
        payload=(PAYLOAD, PAYLOAD),
        seconds=seconds,
        warmup=min(WARMUP, seconds),
        rate=rate,
        drain=1.0,
    )
    with pinned(cores.generator):
        found = run_paced(load, port=running.ports[protocol], pid=running.pid)
    return shortened(found)


def shortened(found: dict[str, Any]) -> dict[str, Any]:
    """Return what is kept of a run: the generator's words in microseconds, and few of them."""
    latency = found["latency"]
    if latency is None:
        raise GeneratorError("nothing was delivered")
    late, turn = found["generator_late"], found["generator_turn"]
    queued = [found["generator_queued"] or 0.0, found["server_queued"] or 0.0]
    return {
        **{name: micro(latency[name]) for name in ("mean", "p50", "p90", "p99", "p99.9", "max")},
        "deliveries": latency["count"],
        "lost": found["lost"],
        "unsent": found["unsent"],
        "server_share": found["server_share"],
        "publishers_waited": found["publishers_waited"],
        "generator_late_p99": micro(late["p99"]) if late else 0.0,
        "generator_turn_max": micro(turn["max"]) if turn else 0.0,
        "generator_share": found["generator_share"],
        "kept_waiting": max(queued),
        "curve": [micro(seconds) for _, seconds in latency["curve"]],
    }


def micro(seconds: float) -> float:
    """Return microseconds, to a tenth."""
    return round(seconds * 1e6, 1)


def part_at(index: int) -> float:
    """Return of how much of the deliveries the point of a curve speaks: 0, 0.1, ..., 0.5, 0.55."""
    halvings, step = divmod(index, STEPS)
    return 1 - 2.0**-halvings * (1 - step / (2 * STEPS))


# -- Showing ---------------------------------------------------------------------------------------


def render(data: dict[str, Any]) -> Rendered:
    """Show percentiles by server, and whether the relay's are as good as its peers'."""
    paces = [pace for pace in data["paces"] if pace["samples"]]
    claims = _claims(paces[0] if paces and paces[0]["of"] != SECOND else None, paces)
    if not paces:
        return Rendered("Nothing could be measured.", {}, claims)
    blocks = [
        wrapped(
            f"One publisher, {data['subscribers']} subscribers, {data['payload']} bytes, MQTT or "
            "the server's own protocol. Messages are due at fixed times, evenly spaced, and are "
            "sent when they are due, whatever the server does (an open loop). The latency of a "
            "delivery counts **from when its message was due** to when the subscriber had read "
            "it: a server that stops for 50 ms delays all messages that were due meanwhile."
        ),
        wrapped(_most(data["most"])),
        "![How late deliveries are, by percentile](evidence-latency.svg)",
    ]
    if any(_of(pace, POLLING) for pace in paces):
        blocks.append(
            wrapped(
                f"*{label(POLLING)}* is the relay that stays awake for a millisecond after each "
                "read, for as much of a core as the column *CPU* says. A process that sleeps has "
                "to be woken, and finds its caches empty if others have used them meanwhile."
            )
        )
    for pace in paces:
        blocks += [wrapped(_heading(pace)), _table(pace), *_doubt(pace), *_remarks(pace)]
    blocks.append(
        wrapped(
            "Microseconds; the median of the passes, with minimum and maximum in brackets. A pass "
            f"is {data['seconds']:g} s, and the servers take turns while all are up; after each "
            f"{data['turns']} they are restarted. *CPU* is the share of its core that the server "
            "used. *Late* is the generator's own delay in sending, at its 99th percentile: a "
            "latency not far above it says little about a server. A run with more than "
            f"{DISTURBED:g} µs of it was disturbed by the machine and repeated, at most {RETRIES} "
            "times, for any server; the run with the smallest delay counts." + about_nice(data)
        )
    )
    return Rendered("\n\n".join(blocks), {"latency": lambda: figure(paces)}, claims, _beside(paces))


def _most(most: Mapping[str, float]) -> str:
    words = [f"{label(server)} {most[server]:,.0f}" for server in in_order(most)]
    slowest = min(most, key=most.__getitem__)
    return (
        "The highest rates, pipelined, in messages a second (nine deliveries each): "
        f"{listed(words)}. The slowest is {label(slowest)}: all are run at half of its rate. "
        "At such a pace most servers have one message at a time, and sleep before the next: the "
        "time of one message counts then, not the number in a second."
    )


def _heading(pace: dict[str, Any]) -> str:
    return f"**At {pace['rate']:,.0f} messages a second**, half of what {label(pace['of'])} takes:"


def _of(pace: dict[str, Any], server: str) -> list[dict[str, Any]]:
    return [sample for sample in pace["samples"] if sample["server"] == server]


def _servers(pace: dict[str, Any]) -> list[str]:
    return in_order(sample["server"] for sample in pace["samples"])


def ratios(pace: dict[str, Any], peer: str, relay: str = "relay") -> list[float]:
    """Return the relay's 99th percentile over the peer's, pass by pass."""
    theirs = {sample["pass"]: sample["p99"] for sample in _of(pace, peer)}
    return [
        sample["p99"] / theirs[sample["pass"]]
        for sample in _of(pace, relay)
        if theirs.get(sample["pass"], 0.0) > 0
    ]


def bounds(samples: Sequence[float], confidence: float = CONFIDENCE) -> tuple[float, float] | None:
    """Return between what the median lies of all passes that there could be; None: too few to tell.

    By order: however they are spread, how many of `n` lie below that median is binomial.
    """
    ordered = sorted(samples)
    n = len(ordered)
    k, outside = 0, 0.0
    while 2 * (outside := outside + math.comb(n, k) / 2**n) <= 1 - confidence:
        k += 1
    return (ordered[k - 1], ordered[n - k]) if k else None


def _doubt(pace: dict[str, Any]) -> list[str]:
    """Say how far the ratios that are claimed can be trusted."""
    said: list[str] = []
    for relay in ("relay", POLLING):
        found = ratios(pace, COMPARED, relay)
        between = bounds(found)
        if between is not None:
            said.append(
                f"{label(relay)} {statistics.median(found):.2f} in the median of {len(found)} "
                f"passes, and between {between[0]:.2f} and {between[1]:.2f} with a confidence of "
                f"{CONFIDENCE:.0%}"
            )
    if not said:
        return []
    return [wrapped(f"The 99th percentile over {label(COMPARED)}'s, pass by pass: {listed(said)}.")]


def _table(pace: dict[str, Any]) -> str:
    rows: list[list[str]] = []
    for server in _servers(pace):
        found = _of(pace, server)
        ratio = ratios(pace, server) if server != "relay" else []
        rows.append(
            [
                label(server),
                *(middle((each[name] for each in found), ",.0f") for name in QUANTILES),
                middle(ratio, ".2f"),
                f"{statistics.median(each['server_share'] for each in found):.0%}",
                f"{statistics.median(each['generator_late_p99'] for each in found):,.1f}",
                f"{sum(each['lost'] + each['unsent'] for each in found):,}",
                str(len(found)),
            ]
        )
    head = ["", *QUANTILES, "relay's p99 / its", "CPU", "late", "lost", "passes"]
    return table(head, rows, right=range(1, len(head)))


def _remarks(pace: dict[str, Any]) -> list[str]:
    """Say what makes the figures doubtful, and what was lost."""
    said: list[str] = []
    waiting = [sample["kept_waiting"] for sample in pace["samples"]]
    if statistics.median(waiting) > BUSY:
        said.append(
            "**The machine was busy**: the server or the generator was ready and had no core for "
            f"{statistics.median(waiting):.0%} of the time (median). What is above the median then "
            "shows the neighbours."
        )
    for server in _servers(pace):
        found = _of(pace, server)
        if any(each["generator_share"] > 0.9 for each in found):
            said.append(f"With {label(server)} the generator itself was at its limit.")
        if stopped := max(each["publishers_waited"] for each in found):
            said.append(f"{label(server)} stopped the publisher for up to {stopped:.1%} of a pass.")
    return [wrapped(" ".join(f"{word[0].upper()}{word[1:]}" for word in said))] if said else []


def _claims(first: dict[str, Any] | None, paces: Sequence[dict[str, Any]]) -> tuple[Claim, ...]:
    pace = first or (paces[0] if paces else None)
    claims: list[Claim] = []
    for relay, peer in (("relay", "mosquitto"), (POLLING, "mosquitto"), ("relay", "amqtt")):
        found = ratios(pace, peer, relay) if pace else []
        rate = f" at {pace['rate']:,.0f} messages/s" if pace else ""
        who = "" if relay == "relay" else f", {label(relay)}"
        claims.append(
            Claim(
                f"99th percentile of latency, nine subscribers{rate}{who}: at most {label(peer)}'s",
                statistics.median(found) if found else None,
                1.0,
            )
        )
    return tuple(claims)


def _beside(paces: Sequence[dict[str, Any]]) -> dict[str, dict[str, str]]:
    pace = paces[0]
    cells: dict[str, str] = {}
    for server in _servers(pace):
        if server == POLLING:
            continue  # the row is the relay's as it comes
        found = _of(pace, server)
        p50, p99 = (statistics.median(each[name] for each in found) for name in ("p50", "p99"))
        cells[server] = f"{p50:,.0f}, {p99:,.0f}"
    return {f"p50 and p99 at {pace['rate']:,.0f} messages/s, µs": cells}


def curve(found: Sequence[dict[str, Any]]) -> list[tuple[float, float]]:
    """Return points (part, microseconds): the median of the passes at each, where all have one."""
    shortest = min(len(each["curve"]) for each in found) - 1
    points = [
        (part_at(index), statistics.median(each["curve"][index] for each in found))
        for index in range(shortest)
    ]
    return [(part, latency) for part, latency in points if part < 1]


def figure(paces: Sequence[dict[str, Any]]) -> Any:
    """Draw percentiles, the tail stretched: each decade to the right is a tenth of what is left."""
    picture = figure_of(10.4, 4.4)
    all_axes = picture.subplots(1, len(paces), sharey=True, squeeze=False)[0]
    drawn: dict[str, Any] = {}
    for pace, axes in zip(paces, all_axes, strict=True):
        for server in _servers(pace):
            points = curve(_of(pace, server))
            style: dict[str, Any] = style_of(server).line(markevery=STEPS)
            (drawn[server],) = axes.plot(
                [1 / (1 - part) for part, _ in points], [latency for _, latency in points], **style
            )
        axes.set_xscale("log")
        marks = {1: "0", 2: "50", 10: "90", 100: "99", 1000: "99.9", 10000: "99.99"}
        axes.set_xticks(list(marks), list(marks.values()))
        axes.minorticks_off()
        axes.set_yscale("log")
        decades(axes.yaxis)
        axes.set_xlabel("percentile of deliveries")
        axes.set_title(f"{pace['rate']:,.0f} messages/s: half of what {label(pace['of'])} takes")
    all_axes[0].set_ylabel("latency from when it was due, µs")
    names = in_order(drawn)
    picture.legend(
        [drawn[name] for name in names],
        [label(name) for name in names],
        loc="outside upper center",
        ncols=min(8, len(names)),
    )
    return picture


SECTION: Final = Section(
    key="latency",
    name="latency",
    title="How late deliveries are",
    seconds=205,
    command="python -m benchmarks.evidence --only latency",
    measure=measure,
    render=render,
)
