"""Confirmed and durable: what a PUBACK costs, and what it is worth (benchmarks/durable.py)."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, Final

from benchmarks.durable import PEERS, RELAY, Results, Run, calls_per_message, measure_all, rate
from benchmarks.evidence._section import Claim, Rendered, Section, Setting
from benchmarks.evidence._text import in_order, label, listed, middle, table, time_of, wrapped
from benchmarks.many import Setting as Effort

PASSES: Final = 3
SECONDS: Final = 0.8
ONCE: Final = ("hivemq+file", "artemis+journal", "rabbitmq")
"""Measured in one pass: they take long to start."""

MOST_SYNCS: Final = 3.0
"""Times the disk's own `fdatasync`: the wait for a PUBACK, with one message in flight."""
LEAST_GAIN: Final = 20.0
"""Times the rate of one publisher: that of a hundred."""

PROMISES: Final[Mapping[str, str]] = {
    "relay": "on disk when it is acknowledged: an fsync for all that waits (`--store DIR`, "
    "[sessions.md](sessions.md))",
    "mosquitto+autosave": "in memory; all is written every 30 minutes (`autosave_interval`) and at "
    "the end",
    "mosquitto-new+sqlite": "handed to SQLite, which commits every five seconds (`flush_period`) "
    "and syncs now and then (`sync normal`, a write-ahead log)",
    "nats+jetstream": "written to a file, which is synced every two minutes (`sync_interval`); "
    "`sync_interval: always` syncs each write",
    "hivemq+file": "written to files (RocksDB and Xodus) that are not synced for each message",
    "artemis+journal": "in its journal and synced (`journal-datasync`), with what came meanwhile",
    "rabbitmq": "a confirm of a durable queue: its message store is written and synced, together "
    "with what came meanwhile",
}
"""What their documentation says an acknowledgement of QoS 1 means, for a persistent session."""


def measure(setting: Setting) -> dict[str, Any]:
    """Measure the relay and the others with their stores on."""
    full = setting.scale >= 0.5
    effort = Effort(
        setting.cores, PASSES if full else 1, max(0.3, SECONDS * setting.scale), sleep=True
    )
    peers = [peer for peer in PEERS if peer.missing() is None]
    skipped = [sentence for peer in PEERS if (sentence := peer.missing()) is not None]
    results = measure_all(
        [RELAY, *(peer for peer in peers if peer.name not in ONCE)],
        effort,
        lambda text: setting.report(f"durable: {text}"),
        [peer for peer in peers if peer.name in ONCE] if full else (),
    )
    return {
        "passes": effort.passes,
        "seconds": effort.seconds,
        "disk": results.disk,
        "runs": [
            {"number": r.number, "server": r.server, "publishers": r.publishers} | brief(r.found)
            for r in results.runs
        ],
        "calls": results.calls,
        "skipped": skipped + [f"{failure.splitlines()[0]}." for failure in results.failures],
    }


def brief(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is kept of a run, in one flat row."""
    return {
        "p50": found["confirmation"]["p50"],
        "p99": found["confirmation"]["p99"],
        "confirmed": found["confirmed"],
        "seconds": found["seconds"],
        "cpu": found["cpu_seconds_per_million"],
        "whole": found["whole"],
        "lost": found["lost"],
    }


def render(data: dict[str, Any]) -> Rendered:
    """Show what a PUBACK costs, and beside it what it is worth."""
    results = Results(
        [Run(r["number"], r["server"], r["publishers"], r) for r in data["runs"]],
        data["disk"],
        data["calls"],
    )
    servers = in_order(run.server for run in results.runs)
    disk = statistics.median(results.disk)
    introduction = wrapped(
        "QoS 1 messages of 200 bytes to a persistent session that is away, each publisher with one "
        "message in flight: it waits for its PUBACK and sends the next. At the end the session's "
        "client comes back, and all that was acknowledged has to be there. Every server has its "
        "store switched on, with its defaults; mosquitto and HiveMQ, which drop what a session has "
        "queued beyond a thousand messages, are told to keep it. The same load means different "
        "things to them: *syncs for a message* are the calls that bring data to the disk, counted "
        "with `strace` while one publisher sends. The disk's own `fdatasync`, after 300 bytes, "
        f"took {time_of(disk)} meanwhile (median)."
    )
    promises = [
        [label(server), PROMISES[server], _calls(results, server)]
        for server in servers
        if server in PROMISES
    ]
    blocks = [
        introduction,
        _table(results, servers, disk),
        "**What an acknowledgement is worth**:",
        table(("", "a message that is acknowledged is", "syncs for a message"), promises),
        *_remarks(results),
    ]
    return Rendered("\n\n".join(blocks), claims=_claims(results, disk))


def _calls(results: Results, server: str) -> str:
    return calls_per_message(results.calls[server]) if server in results.calls else "not counted"


def _table(results: Results, servers: Sequence[str], disk: float) -> str:
    head = (
        "", "PUBACK p50, ms", "p99, ms", "p50 x `fdatasync`", "one: messages/s",
        "a hundred: messages/s", "x the one's", "p50 of a hundred, ms",
        "CPU s per M messages, one", "a hundred",
    )  # fmt: skip
    lines: list[list[str]] = []
    for server in servers:
        one, many = results.of(server, 1), results.of(server, 100)
        if not one or not many:
            continue
        p50 = statistics.median(found["p50"] for found in one)
        single, together = (statistics.median(map(rate, found)) for found in (one, many))
        lines.append(
            [
                label(server),
                middle((found["p50"] * 1e3 for found in one), ".2f"),
                middle((found["p99"] * 1e3 for found in one), ".2f"),
                f"{p50 / disk:.1f}",
                f"{single:,.0f}",
                f"{together:,.0f}",
                f"{together / single:.1f}",
                middle((found["p50"] * 1e3 for found in many), ".2f"),
                *(f"{statistics.median(f['cpu'] for f in each):.0f}" for each in (one, many)),
            ]
        )
    return table(head, lines, right=range(1, len(head)))


def _remarks(results: Results) -> list[str]:
    holes = sorted({label(run.server) for run in results.runs if not run.found["whole"]})
    if not results.runs:
        return []
    if holes:
        return [f"**Not all that was acknowledged came** from {listed(holes)}."]
    count = sum(run.found["confirmed"] for run in results.runs)
    return [f"All {count:,} acknowledged messages came to the sessions' clients, once."]


def _unsynced(results: Results) -> float | None:
    """Return how many messages the relay acknowledged for each call that syncs."""
    counts = results.calls.get("relay")
    if counts is None:
        return None
    calls = sum(counts["calls"].values())
    return counts["messages"] / calls if calls else float("inf")


def _claims(results: Results, disk: float) -> tuple[Claim, ...]:
    one, many = results.of("relay", 1), results.of("relay", 100)
    waited = statistics.median(found["p50"] for found in one) / disk if one and disk > 0 else None
    part = None
    if one and many:
        part = statistics.median(map(rate, one)) / statistics.median(map(rate, many))
    return (
        Claim(
            f"PUBACK with `--store`, one message in flight: p50 at most {MOST_SYNCS:g} x the "
            "disk's `fdatasync`",
            waited,
            MOST_SYNCS,
            ".1f",
        ),
        Claim(
            "PUBACK with `--store`: the rate of one publisher with one message in flight, as a "
            f"part of a hundred's, at most 1/{LEAST_GAIN:g}",
            part,
            1 / LEAST_GAIN,
            ".3f",
        ),
        Claim(
            "PUBACK with `--store`, one message in flight: acknowledged messages for each sync of "
            "the disk, at most 1",
            _unsynced(results),
            1.0,
        ),
    )


SECTION: Final = Section(
    key="o",
    name="durable",
    title="Confirmed and durable",
    seconds=110,
    command="python -m benchmarks.evidence --only durable",
    measure=measure,
    render=render,
)
