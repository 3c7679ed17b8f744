"""Section b: one of nine subscribers stops reading (benchmarks/stuck.py, in short)."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import attrs

from benchmarks.evidence._plot import GREY, figure_of, style_of, thousands
from benchmarks.evidence._section import Claim, Rendered, Section, Setting
from benchmarks.evidence._text import label, listed, table, time_of, wrapped
from benchmarks.servers import AnyServer, ServerError, pinned
from benchmarks.stuck import AS_IT_COMES, PROFILES, SUBSCRIBERS, Found, Terms, servers
from benchmarks.stuck import run as run_one

Run = Mapping[str, Any]

TERMS: Final = Terms(rate=4_000, payload=2_500, warm=1.0, watch=8.0, quiet=0.6)
"""10 MB/s: buffers of megabytes are full in no time, so that there is something to see in it."""
PATIENCE: Final = 2.0
"""Seconds, of the relay under each policy."""
AS_IT_COMES_WATCH: Final = 10.0
"""Seconds for which the relay as it comes is watched: it has room for so many to be spilled."""
LOSSLESS_WATCH: Final = 26.0
"""The same for `--profile lossless`, whose patience is 20 s."""
POLICIES: Final = ("wait", "disconnect", "drop_oldest", "conflate", "spill")
NOTICED: Final = 0.02
"""What the others may lack of what was offered before it is said that they noticed."""
SILENT: Final = 0.5
"""The same for their longest silence, in seconds."""
GOES_ON: Final = 0.25
"""Of what is offered, what they get in the last second at least if it has gone on."""


SLOW: Final = 0.8
"""Of what was offered before the one was stuck, what the others got of it at least."""
SHOWN: Final = (AS_IT_COMES, "relay, drop_oldest")
"""Of the relay, whose logs are shown."""


# -- measuring ----------------------------------------------------------------------------------


def measure(setting: Setting) -> dict[str, Any]:
    """Have one of nine stop reading, with each server once."""
    patience = max(0.4, PATIENCE * setting.scale)
    terms = attrs.evolve(
        TERMS,
        warm=max(0.3, TERMS.warm * setting.scale),
        watch=max(1.5, TERMS.watch * setting.scale),
    )
    watch = {AS_IT_COMES: AS_IT_COMES_WATCH, "relay, lossless": LOSSLESS_WATCH}
    runs: list[Found] = []
    skipped: list[str] = []
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        for place, (name, server) in enumerate(_chosen(setting, Path(folder), patience)):
            scratch = Path(folder) / str(place)
            scratch.mkdir()
            seconds = max(terms.watch, watch.get(name, 0.0) * setting.scale)
            these = attrs.evolve(terms, watch=seconds)
            try:
                with pinned(setting.cores.generator):
                    found = run_one(server, name, these, scratch, setting.cores.server)
            except (ServerError, OSError) as error:
                first = (str(error).splitlines() or ["no reason given"])[0]
                skipped.append(f"{name} could not be measured: {first}.")
                setting.report(skipped[-1])
                continue
            runs.append(found)
            setting.report(f"{name}: the others got {found.share:.0%}")
    return {
        "terms": attrs.asdict(terms),
        "patience": patience,
        "runs": [attrs.asdict(one) for one in runs],
        "skipped": skipped,
    }


def _chosen(setting: Setting, folder: Path, patience: float) -> Iterator[tuple[str, AnyServer]]:
    for name, server in servers(folder, patience):
        found, _, policy = name.partition(", ")
        if setting.server(found) is None:
            continue
        if not policy or name == AS_IT_COMES or policy in (*PROFILES, *POLICIES):
            yield name, server


# -- words --------------------------------------------------------------------------------------


def _server(run: Run) -> str:
    return str(run["server"]).partition(",")[0]


def _called(run: Run) -> str:
    name, _, policy = str(run["server"]).partition(", ")
    if not policy:
        return label(name)
    return f"{label(name)} {policy}" if run["server"] == AS_IT_COMES else f"`{policy}`"


def _watched(run: Run, rate: float) -> float:
    return float(run["offered"]) / rate


def _whole(run: Run) -> bool:
    """Whether the others did not notice."""
    return bool(run["share"] > 1 - NOTICED and run["gap"] < SILENT)


def _tail(run: Run) -> float:
    """Return what the others got in the last second or so, of what was offered then."""
    over: Mapping[str, list[float]] = run["over_time"]
    end = over["t"][-1]
    at = max(place for place, t in enumerate(over["t"]) if t <= end - 1 or place == 0)
    passed = end - over["t"][at]
    if passed <= 0:
        return 0.0
    rate = run["offered"] / end
    return float((over["others"][-1] - over["others"][at]) / passed / rate)


def _cell(run: Run) -> str:
    if run["cut_after"] is not None:
        return f"after {run['cut_after']:.1f} s"
    return "later" if run["cut"] else "no"


def _row(run: Run, rate: float) -> list[str]:
    sent = run["stuck_got"] + run["stuck_lost"]
    return [
        str(run["server"]),
        f"{_watched(run, rate):.0f} s",
        f"{min(run['share'], 1.0):.1%}",
        f"{run['others_lost']:,}",
        f"{run['gap']:.1f} s",
        f"{run['waited']:.1f} s",
        f"{run['stuck_lost']:,} of {sent:,}",
        _cell(run),
        "the log" if run["log"] else "nobody",
        f"+{run['memory']:.0f} MB",
    ]


HEAD: Final = (
    "", "watched for", "the other eight got", "they lost", "their longest silence",
    "the publisher waited", "the stuck one lost", "cut off", "who is told", "memory",
)  # fmt: skip


def _sentences(runs: Sequence[Run], rate: float) -> list[str]:
    ways: tuple[tuple[str, Callable[[Run], bool], Callable[[Run], str]], ...] = (
        (
            "**The others did not notice** with",
            _whole,
            lambda run: f"{_called(run)} (+{run['memory']:.0f} MB)",
        ),
        (
            "**The others were silent for a while, and then went on** with",
            lambda run: not _whole(run) and _tail(run) >= GOES_ON and run["gap"] >= SILENT,
            lambda run: f"{_called(run)} (for {time_of(run['gap'])})",
        ),
        (
            "**They got less, but never nothing for long** with",
            lambda run: not _whole(run) and _tail(run) >= GOES_ON and run["gap"] < SILENT,
            lambda run: f"{_called(run)} ({run['share']:.0%})",
        ),
        (
            "**They got nothing, or next to nothing, to the end** with",
            lambda run: not _whole(run) and _tail(run) < GOES_ON,
            lambda run: f"{_called(run)} ({run['share']:.0%} in {_watched(run, rate):.0f} s)",
        ),
        (
            "**Too slow for this load before anybody was stuck** was",
            lambda run: run["before"] < SLOW,
            lambda run: f"{_called(run)} ({run['before']:.0%} of it)",
        ),
        (
            "**They lost messages that were sent** with",
            lambda run: run["others_lost"] > 0,
            lambda run: f"{_called(run)} ({run['others_lost']:,})",
        ),
        (
            "**The stuck one lost nothing** with",
            lambda run: run["stuck_lost"] == 0,
            _called,
        ),
        (
            "**It was cut off** by",
            lambda run: bool(run["cut"]),
            lambda run: f"{_called(run)} ({_cell(run)})",
        ),
        (
            "**Messages for it were dropped while it stayed connected** by",
            lambda run: run["stuck_lost"] > 0 and not run["cut"],
            lambda run: f"{_called(run)} ({run['stuck_lost']:,})",
        ),
        ("**No log said anything** of", lambda run: not run["log"], _called),
    )
    lines: list[str] = []
    for words, applies, said in ways:
        if these := [said(run) for run in runs if applies(run)]:
            lines.append(f"- {words} {listed(these)}.")
    return lines


def _told(runs: Sequence[Run]) -> str:
    lines = [
        f"- {_called(run)}: `{' '.join(line.split())[:360].replace('`', '')}`"
        for run in runs
        if run["log"] and (run["server"] in SHOWN or _server(run) != "relay")
        for line in [next((each for each in run["log"] if "WARNING" in each), run["log"][-1])]
    ]
    return "\n".join(["One line of each log:", "", *lines]) if lines else ""


# -- the section --------------------------------------------------------------------------------


def render(data: dict[str, Any]) -> Rendered:
    """Show what the others got, and what became of the one."""
    terms: Mapping[str, Any] = data["terms"]
    runs: list[Run] = data["runs"]
    patience, rate = float(data["patience"]), float(terms["rate"])
    load = (
        f"One publisher sends {rate:,.0f} messages a second of {terms['payload']:,} bytes to "
        f"{SUBSCRIBERS} subscribers; {time_of(terms['warm'])} later one of them stops reading for "
        f"good, and the other {SUBSCRIBERS - 1} are watched. The publisher does not catch up: "
        "while its server does not read, it waits, and then goes on at its pace. So messages that "
        "the others lack, and did not lose, were not sent. The relay is measured as it comes "
        "(`--profile balanced`), under both other profiles, and with a patience of "
        f"{time_of(patience)} under each policy. One run each. [patience.md](patience.md) explains "
        "the policies, and shows the same with a slower publisher that is watched for longer, and "
        "with a subscriber that comes back."
    )
    words = (
        "*The other eight got*: the share of the offered messages, for the one that got the least. "
        "*The stuck one lost*: of all that was sent, after it had read the rest."
    )
    blocks = [
        wrapped(load),
        "![What each of the others got, a quarter of a second at a time](evidence-stuck.svg)",
        table(HEAD, [_row(run, rate) for run in runs], right=range(1, 7)),
        wrapped(words),
        *(["\n".join(lines)] if (lines := _sentences(runs, rate)) else []),
        *([told] if (told := _told(runs)) else []),
    ]
    return Rendered(
        text="\n\n".join(blocks),
        figures={"stuck": lambda: figure(data)},
        claims=_claims(runs, patience),
        beside={
            "one stuck of nine: silence of the others": {
                _server(run): f"{run['gap']:.1f} s"
                for run in runs
                if run["server"] in {AS_IT_COMES, _server(run)}
            },
        },
    )


def _figure(run: Run | None, of: Callable[[Run], float]) -> float | None:
    return None if run is None else float(of(run))


def _claims(runs: Sequence[Run], patience: float) -> tuple[Claim, ...]:
    ours = [run for run in runs if _server(run) == "relay"]
    waits = {"relay, wait", "relay, lossless"}
    bounded = [run for run in ours if run["server"] not in waits]
    default = next((run for run in ours if run["server"] == AS_IT_COMES), None)
    kept = [run["stuck_lost"] for run in ours if run["server"] in {"relay, wait", "relay, spill"}]
    return (
        Claim(
            "one stuck of nine, the relay as it comes: the longest silence of the others, in "
            "seconds, at most 1.5",
            _figure(default, lambda run: run["gap"]),
            1.5,
            ".1f",
        ),
        Claim(
            "one stuck of nine, the relay as it comes: the others lack at most 5% of their rate",
            _figure(default, lambda run: 1 - run["share"]),
            0.05,
            ".3f",
        ),
        Claim(
            "one stuck of nine, the relay as it comes: messages that anybody lost, none",
            _figure(default, lambda run: run["stuck_lost"] + run["others_lost"]),
            0.0,
            ",.0f",
        ),
        Claim(
            "one stuck of nine, the relay as it comes: MB of memory that it takes, at most what "
            "may be spilled for one, 128 MiB, and a publisher's limit",
            _figure(default, lambda run: run["memory"]),
            (136 << 20) / 1e6,
            ".0f",
        ),
        Claim(
            "one stuck of nine: the longest silence of the others under any policy but `wait`, in "
            f"seconds, at most the patience of {time_of(patience)} and 1.5 s",
            max((run["gap"] for run in bounded), default=None),
            patience + 1.5,
            ".1f",
        ),
        Claim(
            "one stuck of nine: messages that one of the others lost with the relay, none",
            max((run["others_lost"] for run in ours), default=None),
            0.0,
            ",.0f",
        ),
        Claim(
            "one stuck of nine: messages that the stuck one lost under `wait` and `spill`, none",
            max(kept, default=None),
            0.0,
            ",.0f",
        ),
    )


# -- the figure ---------------------------------------------------------------------------------

ACROSS: Final = 5


def figure(data: Mapping[str, Any]) -> Any:
    """Draw what each of the others got over time, a picture for each server."""
    runs: Sequence[Run] = data["runs"]
    rate = float(data["terms"]["rate"])
    down = max(1, -(-len(runs) // ACROSS))
    made = figure_of(10.0, 0.6 + 1.9 * down)
    axes: Any = made.subplots(down, ACROSS, sharey=True, squeeze=False)
    for axis in list(axes.flat)[len(runs) :]:
        axis.set_visible(False)
    for axis, run in zip(axes.flat, runs, strict=False):
        over: Mapping[str, list[float]] = run["over_time"]
        begins = [0.0, *over["t"]]
        got = [
            (after - before) / (end - begin)
            for (before, after), (begin, end) in zip(
                pairwise(over["others"]), pairwise(over["t"]), strict=True
            )
            if end > begin
        ]
        axis.axhline(rate, color=GREY, linewidth=0.6, linestyle=(0, (2, 2)))
        axis.stairs(got, begins[1 : len(got) + 2], color=style_of(_server(run)).color, fill=True)
        if run["cut_after"] is not None:
            axis.axvline(run["cut_after"], color=GREY, linewidth=1.0)
        axis.set_title(str(run["server"]), fontsize=9)
        axis.set_xlim(0, _watched(run, rate))
        thousands(axis.yaxis)
    axes[0][0].set_ylim(0, 1.5 * rate)
    for row in axes:
        row[0].set_ylabel("messages a second")
    made.supxlabel(
        "seconds since the one stopped reading; a line where it was cut off; dashed: offered",
        fontsize=9,
    )
    return made


SECTION: Final = Section(
    key="b",
    name="stuck",
    title="One stuck of nine",
    seconds=150.0,
    command="python -m benchmarks.evidence --only stuck",
    measure=measure,
    render=render,
)
