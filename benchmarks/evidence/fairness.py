"""Who gets how much of a subscriber that is too slow for all of them: benchmarks/fairness.py."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import attrs

from benchmarks.evidence._plot import BLUE, GREEN, GREY, INK, ORANGE, PINK, figure_of
from benchmarks.evidence._section import Claim, Rendered, Section, Setting
from benchmarks.evidence._text import first_line, label, listed, size_of, table, time_of, wrapped
from benchmarks.fairness import (
    CONNECTIONS,
    EQUALS,
    INNOCENT_RATE,
    LARGE,
    OVER,
    PACE,
    PAYLOAD,
    SECONDS,
    SERVER_LIMIT,
    SETTLING,
    SMALL,
    Found,
    cases,
    jain,
    kept,
    off,
    part_of,
    percentile,
)
from benchmarks.fairness import measure as measure_one
from benchmarks.servers import ServerError

SERVERS: Final = ("relay", "mosquitto", "nats", "redis", "rabbitmq")
RELAY, TENANTS, WEIGHTS = "relay", "relay, tenants", "relay, weights"
IN_ORDER: Final = "relay, --no-fair"

UNFAIR: Final = 0.01
"""How far Jain's index may be from 1, among equals."""
OFF: Final = 0.05
"""By how much somebody's part may be off from its weight's."""
LACK: Final = 0.05
"""What the innocent one may lack of what it has sent."""
LATE: Final = 0.05
"""Seconds that its messages may take, at p99."""
SHORT: Final = 0.9
"""Of the subscriber's pace: below, it was not the subscriber that there was too little of."""


# -- Measuring -------------------------------------------------------------------------------------


def measure(setting: Setting) -> dict[str, Any]:
    """Measure each server once, and the relay with tenants, too."""
    seconds = max(0.5, SECONDS * setting.scale)
    settling = max(1.0, SETTLING * setting.scale)
    runs: list[Found] = []
    skipped: list[str] = []
    for case in cases([server for server in setting.servers if server.name in SERVERS]):
        try:
            found = measure_one(
                case.server,
                case.publishers,
                label=case.label,
                what=case.what,
                seconds=seconds,
                cores=setting.cores,
                pace=case.pace,
                settling=settling,
            )
        except (ServerError, OSError) as error:
            skipped.append(f"{case.label}: {first_line(error)}")
            setting.report(f"fairness: {case.label} FAILED: {error}")
            continue
        runs.append(found)
        setting.report(
            f"fairness: {case.label}: {found.read / 1e6:.0f} MB/s read, after {found.settled:.1f} s"
        )
    left_out = [each.name for each in setting.servers if each.name not in SERVERS]
    if left_out:
        skipped.append(
            f"{listed([label(name) for name in left_out])}: their own speed would be measured, not "
            "how they share out a subscriber."
        )
    return {"runs": [attrs.asdict(each) for each in runs], "skipped": skipped}


# -- Showing ---------------------------------------------------------------------------------------


def render(data: dict[str, Any]) -> Rendered:
    """Show who got how much."""
    runs = [Found.from_json(each) for each in data["runs"]]
    greedy = [each for each in runs if each.what == "greedy"]
    weighted = next((each for each in runs if each.what == "weights"), None)
    parts = [_introduction(runs), _table(greedy)]
    if greedy:
        parts.append("![Each publisher's part of the deliveries](evidence-fairness.svg)")
    parts += _remarks(greedy)
    if weighted is not None:
        parts.append(_weights(weighted))
    parts.append(
        wrapped(
            "Parts are of the bytes delivered during the count. *Delivered of due* is below 100 % "
            "also where nothing is lost but the subscriber's backlog (consumer lag) keeps growing. "
            "*p99* is from the time at which a message was due to its arrival; lost messages have "
            "none. One run each: parts move by a per cent or two from run to run."
        )
    )
    figures = {"fairness": lambda: _figure(greedy, weighted)} if greedy else {}
    return Rendered("\n\n".join(parts), figures, _claims(runs), {GETS: _beside(greedy)})


def _introduction(runs: Sequence[Found]) -> str:
    pace = max((each.pace for each in runs), default=PACE)
    slower = [
        f"{_name(each)} {each.pace / 1e6:g}"
        for each in runs
        if each.what == "greedy" and each.pace < pace
    ]
    less = f" (of {listed(slower)}; publishers want less in proportion)" if slower else ""
    in_order = ""
    if any(each.label == IN_ORDER for each in runs):
        in_order = (
            " *The relay, first in, first out* has `--no-fair --unsent-bytes none`: no rounds, "
            "and full send buffers."
        )
    return wrapped(
        f"One subscriber reads {pace / 1e6:g} MB/s{less}, steadily, of publishers that together "
        f"want {OVER:g} times as much: {EQUALS} *equals* with a connection each and messages of "
        f"{PAYLOAD:,} bytes; one with {CONNECTIONS} connections (*many*), each as greedy as an "
        f"equal's; and one whose messages are {LARGE} times as large (*large*), at the same rate. "
        f"Beside them an *innocent* one sends {INNOCENT_RATE:g} messages of {SMALL} bytes a second "
        f"and wants no more. A fair part for each of the others is a tenth of the bytes read. "
        "QoS 0; every server as it comes. *The relay with tenants* has one tenant per publisher, "
        f"which share {size_of(SERVER_LIMIT)} ([fairness.md](fairness.md)): "
        f"`--server-limit-bytes={SERVER_LIMIT} --tenant=equal-1,client=equal-1.* ...`.{in_order}"
    )


def _name(found: Found) -> str:
    return NAMES.get(found.label) or label(found.server)


def _lost(found: Found, kind: str) -> str:
    lost = max(each.lost for each in found.of(kind))
    return f"{lost:.0%}" if lost >= 0.005 or lost == 0 else f"{lost:.1%}"


def _table(runs: Sequence[Found]) -> str:
    head = (
        "",
        "MB/s read, of",
        "1 - Jain, equals",
        "each equal",
        "many",
        "large",
        "innocent: delivered of due",
        "p50, p99",
        "lost: equals, many, large, innocent",
        "subscriber cut off",
    )
    rows: list[list[str]] = []
    for found in runs:
        each = part_of(found, "equal") / max(1, len(found.of("equal")))
        delays = [percentile(found.delays, share) for share in (0.5, 0.99)]
        lost = ", ".join(_lost(found, kind) for kind in ("equal", "many", "large", "innocent"))
        rows.append(
            [
                _name(found),
                f"{found.read / 1e6:.0f}, {found.pace / 1e6:.0f}",
                _number(_unfair(found), ".4f"),
                _number(each, ".1%"),
                _number(part_of(found, "many"), ".1%"),
                _number(part_of(found, "large"), ".1%"),
                f"{kept(found):.1%}",
                ", ".join("-" if math.isnan(delay) else time_of(delay) for delay in delays),
                lost if found.drained else "still coming",
                f"{found.cuts} times" if found.cuts else "no",
            ]
        )
    return table(head, rows, right=range(1, len(head)))


def _number(value: float, form: str) -> str:
    return "-" if math.isnan(value) else f"{value:{form}}"


def _unfair(found: Found) -> float:
    return 1 - jain([each.nbytes for each in found.of("equal")])


def _late(found: Found) -> float:
    return percentile(found.delays, 0.99)


def _remarks(runs: Sequence[Found]) -> list[str]:
    lines: list[str] = []
    lossy = [_name(each) for each in runs if each.drained and _any_lost(each)]
    whole = [_name(each) for each in runs if each.drained and not _any_lost(each)]
    if lossy:
        lines.append(f"Some of what was sent was lost by {listed(lossy)}.")
    if whole:
        lines.append(f"Nothing was lost by {listed(whole)}: publishers had to wait.")
    if cut := [each for each in runs if each.cuts]:
        said = [
            f"{_name(each)} {each.cuts} time{'s' if each.cuts > 1 else ''} in "
            f"{time_of(each.settled + each.seconds)}"
            for each in cut
        ]
        lines.append(
            f"The subscriber was disconnected by {listed(said)}; it came back at once, and what "
            "was on its way to it was lost."
        )
    if short := [each for each in runs if each.read < SHORT * each.pace]:
        said = [f"{_name(each)} ({each.read / each.pace:.0%} of it)" for each in short]
        lines.append(
            f"Less than the subscriber would have read came from {listed(said)}: there it was not "
            "the subscriber alone that there was too little of."
        )
    if busy := [each for each in runs if each.generator_share > 0.9]:
        lines.append(
            f"With {listed([_name(each) for each in busy])} the generator itself was at its limit."
        )
    return ["\n".join(f"- {line}" for line in lines)] if lines else []


def _any_lost(found: Found) -> bool:
    return any(each.lost > 0.001 for each in found.publishers)


def _weights(found: Found) -> str:
    total = sum(each.nbytes for each in found.publishers)
    weights = sum(each.weight for each in found.publishers)
    rows = [
        [
            f"{each.weight:g}",
            f"{each.weight / weights:.1%}",
            _number(each.nbytes / total if total else math.nan, ".1%"),
            _number(
                each.nbytes / total / (each.weight / weights) - 1 if total else math.nan, "+.1%"
            ),
        ]
        for each in found.publishers
    ]
    text = (
        f"Three tenants with weights, two connections each; each alone wants everything that the "
        f"subscriber reads ({found.read / 1e6:.0f} of {found.pace / 1e6:.0f} MB/s). With "
        "`--profile lossless`: a backlog that is spilled comes back in the order in which it came, "
        "and weights count again when no more can be spilled."
    )
    head = ("weight", "part by weight", "part delivered", "off by")
    return f"{wrapped(text)}\n\n{table(head, rows, right=range(4))}"


def _claims(runs: Sequence[Found]) -> tuple[Claim, ...]:
    by_label = {each.label: each for each in runs}

    def value(name: str, of: Any) -> float | None:
        found = by_label.get(name)
        if found is None:
            return None
        number: float = of(found)
        # Nothing delivered at all is not fair either.
        return math.inf if math.isnan(number) else number

    def lack(found: Found) -> float:
        return 1 - kept(found)

    # Without the run beside it, what was measured is a relay that had no fair outlets yet.
    is_fair = IN_ORDER in by_label
    others = [_late(each) for each in runs if each.server != RELAY and each.delays]
    least = min(others, default=math.nan)

    def beside(found: Found) -> float:
        return _late(found) / least

    return (
        Claim(
            f"the relay as it comes: equals share equally, 1 - Jain's index at most {UNFAIR:g}",
            value(RELAY, _unfair), UNFAIR, ".4f",
        ),
        Claim(
            f"the relay with tenants: the same, at most {UNFAIR:g}",
            value(TENANTS, _unfair), UNFAIR, ".4f",
        ),
        Claim(
            f"tenants with weights 1, 2 and 4: nobody's part is off by more than {OFF:.0%}",
            value(WEIGHTS, off), OFF, ".3f",
        ),
        Claim(
            f"the relay as it comes: the innocent one lacks at most {LACK:.0%} of its rate",
            value(RELAY, lack), LACK, ".3f",
        ),
        Claim(
            f"the relay with tenants: the innocent one lacks at most {LACK:.0%} of its rate",
            value(TENANTS, lack), LACK, ".3f",
        ),
        Claim(
            f"the relay as it comes: the innocent one's p99 is at most {time_of(LATE)}",
            value(RELAY, _late) if is_fair else None, LATE, ".3f",
        ),
        Claim(
            "the relay as it comes: and it is below every other server's, as a part of the lowest",
            value(RELAY, beside) if is_fair and others else None,
            1.0, ".3f",
        ),
    )  # fmt: skip


GETS: Final = "one innocent beside greedy ones gets"


def _beside(runs: Sequence[Found]) -> dict[str, str]:
    return {
        found.server: f"{kept(found):.0%} of its rate"
        for found in runs
        if found.label not in (TENANTS, IN_ORDER)
    }


COLOURS: Final = {"equal": BLUE, "many": ORANGE, "large": PINK, "innocent": GREEN}
TITLES: Final = {
    RELAY: "relay, as it comes",
    IN_ORDER: "relay, --no-fair",
    TENANTS: "relay with tenants",
}
NAMES: Final = {IN_ORDER: "the relay, first in, first out", TENANTS: "the relay with tenants"}


def _figure(runs: Sequence[Found], weighted: Found | None) -> Any:
    panels = len(runs) + (weighted is not None)
    columns = min(4, panels)
    lines = math.ceil(panels / columns)
    figure = figure_of(2.3 * columns, 2.3 * lines + 0.3)
    axes: list[Any] = list(figure.subplots(lines, columns, sharey=True, squeeze=False).flat)
    for axis, found in zip(axes, runs, strict=False):
        fair = 1 / sum(each.kind != "innocent" for each in found.publishers)
        _bars(axis, found, TITLES.get(found.label, found.label), {"the fair part": fair})
    if weighted is not None:
        axis = axes[len(runs)]
        weights = sum(each.weight for each in weighted.publishers)
        _bars(axis, weighted, "relay, weights 1 : 2 : 4", {})
        for place, each in enumerate(weighted.publishers):
            part = 100 * each.weight / weights
            axis.plot([place - 0.45, place + 0.45], [part, part], color=INK, linewidth=1)
    for axis in axes[panels:]:
        axis.set_visible(False)
    for axis in axes[::columns]:
        axis.set_ylabel("% of what was delivered")
    axes[0].legend(loc="upper left")
    return figure


def _bars(axis: Any, found: Found, title: str, marks: dict[str, float]) -> None:
    total = sum(each.nbytes for each in found.publishers) or 1
    axis.set_title(title, loc="left")
    places = range(len(found.publishers))
    axis.bar(
        places,
        [100 * each.nbytes / total for each in found.publishers],
        color=[COLOURS.get(each.kind, GREY) for each in found.publishers],
        width=0.8,
    )
    for text, part in marks.items():
        axis.axhline(100 * part, color=INK, linewidth=1, dashes=(4, 3), label=text)
    names = [_short(each.name, each.kind) for each in found.publishers]
    axis.set_xticks(places, names, rotation=90)
    axis.grid(visible=False, axis="x")


def _short(name: str, kind: str) -> str:
    return name.rpartition("-")[2] if kind in {"equal", "weighted"} else kind


SECTION: Final = Section(
    key="f",
    name="fairness",
    title="Fairness: who gets how much of a slow subscriber",
    seconds=145,
    command="python -m benchmarks.evidence --only fairness",
    measure=measure,
    render=render,
)
