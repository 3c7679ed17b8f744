"""Section c: memory under overload, over time (benchmarks/overload.py)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import attrs

from benchmarks.evidence._plot import decades, figure_of, style_of, thousands
from benchmarks.evidence._section import Claim, Rendered, Section, Setting
from benchmarks.evidence._text import label, listed, size_of, table, time_of, wrapped
from benchmarks.overload import LIMIT, Terms
from benchmarks.overload import measure as measure_all
from benchmarks.servers import pinned

Run = Mapping[str, Any]

RELAY: Final = "relay"
WAITED: Final = 0.5
"""A publisher of which more than this share was not taken was held back."""
BUSY: Final = 0.9
"""Of its core, that the generator had: from here on it was perhaps the limit."""
MARK_EVERY: Final = 1.0
"""Seconds between the marks on a line."""


def measure(setting: Setting) -> dict[str, Any]:
    """Overload each server once."""
    whole = Terms()
    terms = attrs.evolve(
        whole,
        push=max(0.6, whole.push * setting.scale),
        drain=max(1.5, whole.drain * setting.scale),
    )
    with pinned(setting.cores.generator):
        found, skipped = measure_all(setting.servers, terms, setting.cores.server, setting.report)
    return {
        "terms": attrs.asdict(terms),
        "runs": [attrs.asdict(one) for one in found],
        "skipped": skipped,
    }


# -- words --------------------------------------------------------------------------------------


def _called(run: Run) -> str:
    """Return what a run is called in a sentence."""
    name = str(run["label"])
    return label(name) if name == run["server"] else f"{label(run['server'])}{name[len('relay') :]}"


def _cut(run: Run) -> int:
    return sum(at is not None for at in run["cut"])


def _row(run: Run) -> list[str]:
    readers = len(run["cut"])
    cut = _cut(run)
    first = min((at for at in run["cut"] if at is not None), default=None)
    return [
        str(run["label"]),
        f"{run['peak']:,.0f} MB",
        size_of(run["held_bytes"]),
        size_of(run["sockets"]),
        f"{run['published']:,}",
        f"{run['held_back']:.0%}",
        f"{run['delivered']:,}",
        "?" if run["ended"] in {"cap", "slow", "closed"} else f"{run['lost']:,}",
        "-" if first is None else f"{cut} of {readers}, from {first:.1f} s on",
        _drained(run),
    ]


def _drained(run: Run) -> str:
    why = {
        "cap": "killed: too much memory",
        "slow": "not within the time",
        "closed": "cut the publisher off",
    }
    if (word := why.get(run["ended"])) is not None:
        return word
    return "-" if run["drain"] is None else time_of(run["drain"])


HEAD: Final = (
    "", "memory above idle", "held by itself", "in sockets", "published", "publisher held back",
    "delivered", "lost", "cut off", "drained in",
)  # fmt: skip


def _sentences(runs: Sequence[Run]) -> list[str]:
    """Say who paid, in which way."""
    ways: tuple[tuple[str, Callable[[Run], bool], Callable[[Run], str]], ...] = (
        (
            "**The publisher was held back**, by more than half, with",
            lambda run: run["held_back"] > WAITED,
            lambda run: f"{_called(run)} ({run['held_back']:.0%})",
        ),
        (
            "**Subscribers were cut off** by",
            lambda run: _cut(run) > 0,
            lambda run: f"{_called(run)} ({_cut(run)} of {len(run['cut'])})",
        ),
        (
            "**Messages were dropped**, of subscribers that stayed connected, by",
            lambda run: run["lost"] > 0 and not _cut(run) and not run["ended"],
            lambda run: (
                f"{_called(run)} ({run['lost']:,} deliveries of {run['lost'] + run['delivered']:,})"
            ),
        ),
        (
            "**Everything was kept**, in memory, and the publisher let go on, by",
            lambda run: (
                run["held_back"] <= WAITED
                and not _cut(run)
                and (
                    run["ended"] in {"cap", "slow"}
                    or (run["lost"] == 0 and run["ended"] != "closed")
                )
            ),
            lambda run: f"{_called(run)} (+{run['peak']:,.0f} MB)",
        ),
        (
            "**The publisher was cut off** by",
            lambda run: run["ended"] == "closed",
            _called,
        ),
        (
            "**Killed by us**, for its memory, was",
            lambda run: run["ended"] == "cap",
            lambda run: f"{_called(run)} after {time_of(run['pushed'])}",
        ),
        (
            "**The generator was perhaps the limit**, not the server, with",
            lambda run: run["generator"] > BUSY,
            lambda run: f"{_called(run)} ({run['generator']:.0%} of its core)",
        ),
        (
            "**Out of order, twice or never sent** were deliveries of",
            lambda run: run["strange"] > 0,
            lambda run: f"{_called(run)} ({run['strange']:,})",
        ),
    )
    lines: list[str] = []
    for words, applies, said in ways:
        these = [said(run) for run in runs if applies(run)]
        if these:
            lines.append(f"- {words} {listed(these)}.")
    return lines


def _of_the_relay(run: Run) -> str:
    return (
        f"By the relay's own books at most {size_of(run['owed'])} were owed at once, of "
        f"{size_of(LIMIT)} that a connection may owe before it is no longer read (its high-water "
        f"mark). They count a message once for each subscriber, while its bytes are in memory "
        f"once. Up to {size_of(run['sockets'])} more were in the kernel's sockets, which are "
        f"nobody's debt: the kernel enlarges their buffers by itself. The books "
        f"{'balanced' if run['balanced'] else '**did not balance**'} in the end."
    )


def _told(runs: Sequence[Run]) -> str:
    lines = [
        f"- {_called(run)}: `{' '.join(str(line).split())[:220].replace('`', '')}`"
        for run in runs
        for line in run["log"][:1]
    ]
    return "\n".join(["The first line of each log:", "", *lines])


# -- the section --------------------------------------------------------------------------------


def render(data: dict[str, Any]) -> Rendered:
    """Show who held how much, and who paid."""
    terms: Mapping[str, Any] = data["terms"]
    runs: list[Run] = data["runs"]
    size = terms["payload"]
    readers = terms["subscribers"]
    relay = next((run for run in runs if run["label"] == RELAY), None)
    load = (
        f"A publisher offers {terms['rate']:,} messages a second of {size:,} bytes "
        f"({terms['rate'] * size / 1e6:.0f} MB/s) to {readers} subscribers, each of which takes "
        f"{terms['taken']:,} a second ({terms['taken'] / terms['rate']:.0%} of that) for "
        f"{time_of(terms['push'])}; then it is silent, and they read the rest as fast as they can. "
        "While a server does not read, its publisher waits, and then goes on at its pace. One run "
        f"each. A server that reaches {terms['cap']:,.0f} MB above idle is killed, for the "
        "machine's sake; the run ends a second after a server has cut off everybody."
    )
    words = (
        "*Held by itself*: the maximum that was published, not yet delivered, not dropped later, "
        "and in none of the kernel's sockets, counted for each subscriber. *In sockets*: the "
        "maximum that the kernel held, of both ends. *Publisher held back*: the share of the "
        "offered messages that the server did not read in that time, for lack of room or of time. "
        "*Delivered* and *lost*: by number, at each subscriber; "
        f"{readers} deliveries are due for each message."
    )
    blocks = [
        wrapped(load),
        "![Memory above idle, and messages published, over time](evidence-overload.svg)",
        table(HEAD, [_row(run) for run in runs], right=range(1, 8)),
        wrapped(words),
        *(["\n".join(lines)] if (lines := _sentences(runs)) else []),
        *(
            [wrapped(_of_the_relay(relay))]
            if relay is not None and relay["owed"] is not None
            else []
        ),
        *([_told(runs)] if any(run["log"] for run in runs) else []),
    ]
    return Rendered(
        text="\n\n".join(blocks),
        figures={"overload": lambda: figure(data)},
        claims=_claims(relay),
        beside={
            "memory under overload": {
                run["server"]: f"+{run['peak']:,.0f} MB" + (
                    ", killed" if run["ended"] == "cap" else ""
                )
                for run in runs
                if run["label"] == run["server"]
            },
            "who pays for an overload": {
                run["server"]: _who_pays(run) for run in runs if run["label"] == run["server"]
            },
        },
    )  # fmt: skip


def _who_pays(run: Run) -> str:
    ways: list[str] = []
    if run["ended"] == "closed":
        ways.append("publisher cut off")
    if run["held_back"] > WAITED:
        ways.append(f"publisher held back ({run['held_back']:.0%})")
    if cut := _cut(run):
        ways.append(f"{cut} of {len(run['cut'])} cut off")
    elif run["lost"] and not run["ended"]:
        ways.append(f"{run['lost'] / (run['lost'] + run['delivered']):.0%} dropped")
    return ", ".join(ways) or "memory"


def _claims(relay: Run | None) -> tuple[Claim, ...]:
    def of(name: str) -> float | None:
        return None if relay is None or relay[name] is None else float(relay[name])

    owed, held, balanced = of("owed"), of("held_bytes"), of("balanced")
    return (
        Claim(
            "overload: the relay's highest debt, by its books, at most 1.1 x its limit of "
            f"{size_of(LIMIT)}",
            None if owed is None else owed / LIMIT,
            1.1,
        ),
        Claim(
            "overload: held by the relay itself, seen from outside, at most 1.5 x its limit (with "
            "input read and not yet charged, and bytes that moved during the look)",
            None if held is None else held / LIMIT,
            1.5,
        ),
        Claim("overload: deliveries lost by the relay, none", of("lost"), 0.0, ",.0f"),
        Claim(
            "overload: the relay's books that do not balance in the end, none",
            None if balanced is None else 1.0 - balanced,
            0.0,
            ".0f",
        ),
    )


# -- the figure ---------------------------------------------------------------------------------

RELAYS: Final[tuple[Any, ...]] = ("-", (0, (6, 1.5)), (0, (1, 1.2)))
"""How the lines of the relay's settings are dashed."""


def figure(data: Mapping[str, Any]) -> Any:
    """Draw memory over time on a logarithmic axis, and what had been published by then."""
    made = figure_of(9.2, 6.4)
    axes: Any = made.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    relays = 0
    for run in data["runs"]:
        over: Mapping[str, list[float]] = run["over_time"]
        style = style_of(run["server"]).line(markevery=MARK_EVERY_POINTS, label=run["label"])
        if run["server"] == RELAY:
            style |= {"linestyle": RELAYS[relays % len(RELAYS)]}
            if relays:
                style |= {"linewidth": 1.4, "marker": "" if relays == 1 else "."}
            relays += 1
        axes[0].plot(over["t"], [max(mb, FLOOR) for mb in over["mb"]], **style)
        axes[1].plot(over["t"], over["published"], **style)
    terms: Mapping[str, Any] = data["terms"]
    axes[0].set_yscale("log")
    decades(axes[0].yaxis)
    axes[0].set_ylabel(f"memory above idle, MB (at least {FLOOR:g})")
    axes[0].axvline(terms["push"], color="#57606a", linewidth=0.8)
    axes[0].legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    axes[1].plot(
        [0, terms["push"]], [0, terms["push"] * terms["rate"]], color="#57606a", linewidth=0.8,
        label="offered",
    )  # fmt: skip
    axes[1].axvline(terms["push"], color="#57606a", linewidth=0.8)
    axes[1].set_ylabel("messages published")
    axes[1].set_xlabel("seconds; the publisher ends at the line, and what is left is delivered")
    axes[1].set_ylim(bottom=0)
    thousands(axes[1].yaxis)
    for axis in axes:
        axis.set_xlim(left=0)
    return made


MARK_EVERY_POINTS: Final = 10
FLOOR: Final = 0.5

SECTION: Final = Section(
    key="c",
    name="overload",
    title="Memory under overload, over time",
    seconds=125.0,
    command="python -m benchmarks.evidence --only overload",
    measure=measure,
    render=render,
)
