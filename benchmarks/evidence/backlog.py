"""The backlog of 2011, built and drained under both paging policies."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks import queue_plots
from benchmarks.evidence._plot import MIB
from benchmarks.evidence._section import Claim, Rendered, Section, Setting
from benchmarks.evidence._text import first_line, listed, size_of, table, wrapped
from benchmarks.queues import (
    DATA,
    BacklogSettings,
    BenchmarkError,
    Phase,
    measure_backlog,
    phases,
)
from benchmarks.servers import ServerError

POLICIES: Final = ("steady", "classic")
BACKLOG: Final = 50_000
"""A tenth of what it was in 2011."""

STEADY_SECONDS: Final = 4.0
AFTER_SECONDS: Final = 3.0
LIMIT_SECONDS: Final = 60.0
MEMORY: Final = 104 * MIB
"""Half of it is reached with a part of the backlog: the server has some 42 MiB to begin with."""

FLAT: Final = 8.0
"""MiB by which memory may grow with the backlog and be called flat: without paging 50,000 messages
are some 22 MiB."""

FULL_SIZE: Final = DATA / "backlog.json"
"""What `python benchmarks/queues.py backlog` has measured."""

FIGURE: Final = (
    "![Backlog, memory, rates and CPU over time, a column for each policy: the backlog is built "
    "without consumers, and drained when they are back](evidence-backlog.svg)"
)

PARTS: Final = {"paused": "no consumers", "draining": "they are back"}


# -- Measuring -------------------------------------------------------------------------------------


def measure(setting: Setting) -> dict[str, Any]:
    """Run the experiment under each policy; one that fails is noted."""
    scale = setting.scale
    runs: list[dict[str, Any]] = []
    skipped: list[str] = []
    for paging in POLICIES:
        settings = BacklogSettings(
            paging,
            rate=1000.0,
            backlog=max(1000, round(BACKLOG * scale)),
            steady_seconds=max(1.2, STEADY_SECONDS * scale),
            after_seconds=max(1.2, AFTER_SECONDS * scale),
            memory=MEMORY,
            limit_seconds=max(20.0, LIMIT_SECONDS * scale),
            sample_seconds=0.5 if scale >= 0.5 else 0.2,
        )
        try:
            run = measure_backlog(
                settings,
                cores=setting.cores,
                report=lambda text: setting.report(f"backlog: {text}"),
            )
        except (BenchmarkError, ServerError) as error:
            skipped.append(f"{paging} paging: {first_line(error)}")
        else:
            runs.append(run)
    return {"runs": runs, "skipped": skipped}


# -- Showing ---------------------------------------------------------------------------------------


def render(data: dict[str, Any], full_size: Path = FULL_SIZE) -> Rendered:
    """Show what became of it, and beside it what was measured at full size, if it was."""
    runs: list[dict[str, Any]] = data["runs"]
    if not runs:
        return Rendered("Neither policy could be measured.")
    settings = runs[0]["settings"]
    number, rate = settings["queues"], settings["rate"]
    introduction = wrapped(
        "The experiment that RabbitMQ's makers published in 2011, at a smaller size. "
        f"{_count(number)} queues each get every message published, {settings['size']} bytes, "
        f"{rate:,.0f} a second throughout: {number * rate:,.0f} messages a second to be queued "
        f"(there 1,800). Each queue has {settings['consumers']} consumers with a prefetch of 1 and "
        f"an ack for each message. After {settings['steady_seconds']:g} s they leave; at a backlog "
        f"of {settings['backlog']:,} (there 500,000) they come back, and read as fast as the "
        "server lets them. The server is [examples/work_queue.py](../examples/work_queue.py), on "
        "disk, fsynced every 200 ms; one run of each policy "
        "([queues.md](queues.md#where-messages-are)): *steady* keeps the head of a queue in "
        f"memory, *classic* everything up to {settings['memory'] / MIB / 2:.0f} MiB."
    )
    blocks = [
        introduction,
        FIGURE,
        _table(runs),
        wrapped(
            "In 2011 the backlog drained while publishing went on. The version that wrote more to "
            "disk, and sooner, had memory flat-line earlier, drained faster, and used less CPU. "
            "Here:"
        ),
        "\n".join(f"- {sentence}" for sentence in findings(runs)),
    ]
    if full_size.exists():
        blocks += _at_full_size(json.loads(full_size.read_text()))
    return Rendered(
        "\n\n".join(blocks), {"backlog": lambda: queue_plots.backlog(data)}, _claims(runs)
    )


def _count(number: int) -> str:
    words = {1: "One", 2: "Two", 3: "Three"}
    return words.get(number, str(number))


def _table(runs: Sequence[Mapping[str, Any]]) -> str:
    head = ["", "", "seconds", "in/s", "acked/s", "RSS of the server, MiB", "CPU, cores"]
    head.append("CPU, µs each")
    lines: list[list[str]] = []
    for run in runs:
        found = phases(dict(run))
        for name, words in PARTS.items():
            if name in found:
                lines.append([run["settings"]["paging"], words, *_cells(run, found[name])])
    return table(head, lines, right=range(2, len(head)))


def _cells(run: Mapping[str, Any], phase: Phase) -> list[str]:
    return [
        f"{_lasted(run, phase.name):.0f}",
        f"{phase.published:,.0f}",
        f"{phase.acked:,.0f}",
        "-".join(f"{rss / MIB:.0f}" for rss in phase.rss),
        f"{phase.cpu:.2f}",
        f"{phase.cpu_each:.0f}",
    ]


def _lasted(run: Mapping[str, Any], name: str) -> float:
    """Return how many seconds a part lasted, from its begin to that of the next."""
    starts: dict[str, float] = run["phases"]
    names = list(starts)
    lasted: float = starts[names[names.index(name) + 1]] - starts[name]
    return lasted


def _grown(run: Mapping[str, Any]) -> float | None:
    """Return by how many bytes memory has grown at most while the backlog did."""
    phase = phases(dict(run)).get("paused")
    return None if phase is None else phase.rss[1] - run["samples"]["rss"][0]


def _late(run: Mapping[str, Any]) -> float:
    """Return by how many seconds publications were late at most."""
    settings, samples = run["settings"], run["samples"]
    behind = [
        due - published / settings["queues"]
        for due, published in zip(samples["due"], samples["published"], strict=True)
    ]
    late: float = max(behind) / settings["rate"]
    return max(0.0, late)


def findings(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Say what was found, in a sentence each."""
    return [*map(_memory, runs), *map(_drains, runs), *_which(runs)]


def _memory(run: Mapping[str, Any]) -> str:
    paging = run["settings"]["paging"]
    grown = _grown(run)
    if grown is None:
        return f"**{paging}**: the backlog grew too fast to see what it takes."
    samples = [s for s in queue_plots.rows(run["samples"]) if s["phase"] == "paused"]
    most = max(sample["ready"] for sample in samples)
    kept = max(sample["in_memory"] for sample in samples)
    word = "memory is flat" if grown <= FLAT * MIB else "memory grows"
    return (
        f"**{paging}**: {word}. RSS rose by {size_of(max(0.0, grown))} until consumers came back, "
        f"when {most:,} messages waited; {kept:,} of them were in memory at most."
    )


def _drains(run: Mapping[str, Any]) -> str:
    paging, found = run["settings"]["paging"], phases(dict(run))
    late = f"publications were at most {_late(run):.2g} s late"
    if not run["drained"]:
        limit = run["settings"]["limit_seconds"]
        return (
            f"**{paging}**: the backlog did **not** drain: {run['samples']['ready'][-1]:,} "
            f"messages were left when it was given up, after {limit:g} s; {late}."
        )
    text = f"**{paging}**: the backlog drains while publishing goes on, in "
    text += f"{_lasted(run, 'draining'):.0f} s"
    if "draining" in found:
        phase = found["draining"]
        text += f", at {phase.acked:,.0f} acks a second while {phase.published:,.0f} came in"
    return f"{text}; {late}."


def _which(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Compare the policies, if both drained."""
    by_name = {run["settings"]["paging"]: run for run in runs if run["drained"]}
    if set(by_name) != set(POLICIES):
        return []
    parts = [phases(dict(by_name[name])).get("draining") for name in POLICIES]
    if parts[0] is None or parts[1] is None:
        return []
    steady, classic = parts[0], parts[1]
    if not steady.acked or not classic.acked:
        return []
    speed, cost = steady.acked / classic.acked, steady.cpu_each / classic.cpu_each
    memory = max(by_name["steady"]["samples"]["rss"]) / max(by_name["classic"]["samples"]["rss"])
    verdict = "As in 2011" if memory < 1 and speed > 1.05 and cost < 0.95 else "Not as in 2011"
    if memory < 1 and abs(speed - 1) <= 0.05 and abs(cost - 1) <= 0.05:
        verdict = "Memory as in 2011, the rest alike"
    text = (
        f"{verdict}: steady paging had {memory:.2f} times the RSS of classic at its highest, "
        f"{speed:.2f} times the acks a second, and {cost:.2f} times the CPU a message. (One run of "
        "each: a few per cent are no difference.)"
    )
    return [text]


def _at_full_size(found: Mapping[str, Any]) -> list[str]:
    runs, machine = found["runs"], found["machine"]
    settings = runs[0]["settings"]
    drained = [run["settings"]["paging"] for run in runs if run["drained"]]
    steady = next((run for run in runs if run["settings"]["paging"] == "steady"), None)
    grown = None if steady is None else _grown(steady)
    text = (
        f"At full size ({settings['backlog']:,} messages, on {machine['cpu']}, {machine['cores']} "
        f"cores, {machine['kernel']}, {machine['python']}; `python benchmarks/queues.py backlog`, "
        "[queues.md](queues.md)) the same came to this"
    )
    if drained:
        text += f"; {listed(drained)} drained"
    if grown is not None:
        text += f", and steady memory rose by {size_of(grown)} while the backlog did"
    return [wrapped(f"{text}:"), _table(runs)]


def _claims(runs: Sequence[Mapping[str, Any]]) -> tuple[Claim, ...]:
    left = [run["settings"]["paging"] for run in runs if not run["drained"]]
    settings = runs[0]["settings"]
    steady = next((run for run in runs if run["settings"]["paging"] == "steady"), None)
    grown = None if steady is None else _grown(steady)
    return (
        Claim(
            "a backlog drains while publishing goes on: policies under which it does not",
            float(len(left)) if len(runs) == len(POLICIES) else None,
            0.0,
            ".0f",
        ),
        Claim(
            f"MiB of RSS that {settings['backlog']:,} waiting messages take (steady paging): at "
            f"most {FLAT:g}",
            None if grown is None or math.isnan(grown) else grown / MIB,
            FLAT,
            ".1f",
        ),
    )


SECTION: Final = Section(
    key="e",
    name="backlog",
    title="A backlog, built and drained",
    seconds=65,
    command="python -m benchmarks.evidence --only backlog",
    measure=measure,
    render=render,
)
