"""One stuck topic of eight on one connection (benchmarks/topics.py)."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import attrs

from benchmarks.evidence._section import Claim, Rendered, Section, Setting
from benchmarks.evidence._text import first_line, label, listed, table, time_of, wrapped
from benchmarks.servers import ServerError, pinned
from benchmarks.topics import AS_IT_COMES, LOSSLESS, REFUSED, TOPICS, Terms, servers
from benchmarks.topics import run as run_one

Run = Mapping[str, Any]

LACK: Final = 0.05
"""What the other seven may lack of their rate."""
SLOWER: Final = 1.5
"""By what their p99 may grow: on a machine that has other work it is not steadier from one stretch
of seconds to the next."""
UNSEEN: Final = 0.005
"""Seconds: a p99 below this is no head-of-line blocking, whatever it was before."""


def measure(setting: Setting) -> dict[str, Any]:
    """Have one topic's subscriber stop reading, with each server once."""
    terms = Terms()
    terms = attrs.evolve(
        terms,
        before=max(1.0, terms.before * setting.scale),
        watch=max(1.5, terms.watch * setting.scale),
    )
    runs: list[dict[str, Any]] = []
    skipped: list[str] = []
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        for place, (name, server) in enumerate(servers()):
            if setting.server(name.partition(",")[0]) is None:
                continue
            scratch = Path(folder) / str(place)
            scratch.mkdir()
            try:
                with pinned(setting.cores.generator):
                    found = run_one(server, name, terms, scratch, setting.cores.server)
            except (ServerError, OSError) as error:
                skipped.append(f"{name} could not be measured: {first_line(error)}.")
                setting.report(skipped[-1])
                continue
            runs.append(attrs.asdict(found))
            setting.report(f"topics: {name}: the other seven got {found.share:.0%}")
    return {"terms": attrs.asdict(terms), "runs": runs, "skipped": skipped}


NAMES: Final = {
    AS_IT_COMES: "the relay, as it comes",
    LOSSLESS: "the relay, `--profile lossless`",
    REFUSED: "the same, refused by topic",
}

HEAD: Final = (
    "", "the other seven got, before", "with one stuck", "their p99, before", "with one stuck",
    "their longest silence", "refused: the stuck topic, others", "of theirs missing",
    "the stuck one cut off",
)  # fmt: skip


def _row(run: Run) -> list[str]:
    return [
        _name(run),
        f"{min(1.0, run['before']):.1%}",
        f"{min(1.0, run['share']):.1%}",
        time_of(run["p99_before"]),
        time_of(run["p99"]),
        f"{run['gap']:.1f} s",
        f"{run['refused'] - run['refused_others']:,}, {run['refused_others']:,}",
        f"{run['missing']:,}",
        "yes" if run["cut"] else "no",
    ]


def _name(run: Run) -> str:
    return NAMES.get(str(run["server"])) or label(str(run["server"]))


def _lack(run: Run) -> float:
    return max(0.0, 1.0 - float(run["share"]))


def _growth(run: Run) -> float:
    """Return by what the p99 grew; 1 if it is too low to matter."""
    if run["p99"] <= UNSEEN:
        return 1.0
    return float(run["p99"]) / float(run["p99_before"])


def render(data: dict[str, Any]) -> Rendered:
    """Show what the other topics noticed."""
    terms: Mapping[str, Any] = data["terms"]
    runs: Sequence[Run] = data["runs"]
    text = (
        f"One connection publishes {TOPICS} topics in turn, {terms['rate']:,} messages a second of "
        f"{terms['payload']:,} bytes, and each topic has a subscriber. After "
        f"{time_of(terms['before'])} the first topic's subscriber stops reading, and the others "
        f"are watched for {time_of(terms['watch'])}. With `--profile lossless` the publisher has "
        "to wait, for all its topics: that is head-of-line blocking. *Refused by topic* adds "
        "`--topic-account '* stuck/+' --publication-policy '* #=refuse'`: each topic has an "
        "account, and publications above its limit are answered with 0x97 "
        "([over-limit.md](over-limit.md)). To MQTT servers the publisher speaks MQTT 5 with QoS 1. "
        "The relay as it comes reads the connection again once the stuck one's backlog is spilled, "
        "after half a second at most: that is its p99. Delays count from when a message was due. "
        "One run each."
    )
    blocks = [wrapped(text), table(HEAD, [_row(run) for run in runs], right=range(1, 8))]
    if lines := _sentences(runs):
        blocks.append("\n".join(lines))
    return Rendered("\n\n".join(blocks), claims=_claims(runs))


def _sentences(runs: Sequence[Run]) -> list[str]:
    ways: tuple[tuple[str, Callable[[Run], bool]], ...] = (
        (
            "**The other topics noticed nothing** with",
            lambda run: _lack(run) <= LACK and _growth(run) <= SLOWER,
        ),
        (
            "**They got less, or later** with",
            lambda run: _lack(run) > LACK or _growth(run) > SLOWER,
        ),
        ("**Some of theirs had not come in the end** with", lambda run: run["missing"] > 0),
    )
    return [
        f"- {words} {listed([_name(run) for run in runs if applies(run)])}."
        for words, applies in ways
        if any(applies(run) for run in runs)
    ]


def _claims(runs: Sequence[Run]) -> tuple[Claim, ...]:
    by_name = {str(run["server"]): run for run in runs}

    def value(name: str, of: Callable[[Run], float]) -> float | None:
        run = by_name.get(name)
        return None if run is None else of(run)

    def missed(run: Run) -> float:
        return float(run["missing"] + run["refused_others"])

    default, refused = (
        f"one stuck topic of {TOPICS}, {words}"
        for words in (NAMES[AS_IT_COMES], "the relay with topics refused")
    )
    rate = f"the others lack at most {LACK:.0%} of their rate"
    none = "messages of the others that were refused, or had not come in the end, none"
    return (
        Claim(f"{default}: {rate}", value(AS_IT_COMES, _lack), LACK, ".3f"),
        Claim(f"{default}: {none}", value(AS_IT_COMES, missed), 0.0, ",.0f"),
        Claim(f"{refused}: {rate}", value(REFUSED, _lack), LACK, ".3f"),
        Claim(f"{refused}: {none}", value(REFUSED, missed), 0.0, ",.0f"),
        Claim(
            f"{refused}: their p99 is at most {SLOWER:g} x what it was, or {time_of(UNSEEN)}",
            value(REFUSED, _growth), SLOWER,
        ),
    )  # fmt: skip


SECTION: Final = Section(
    key="k",
    name="topics",
    title="One stuck topic of several on one connection",
    seconds=80.0,
    command="python -m benchmarks.evidence --only topics",
    measure=measure,
    render=render,
)
