"""How the cost of a delivery grows with what else there is, and with the deliveries themselves."""

from __future__ import annotations

from statistics import median
from typing import Any, Final

import attrs

from benchmarks.evidence._plot import BLUE, GREEN, ORANGE, Style, decades, figure_of
from benchmarks.evidence._section import Claim, Rendered, Section, Setting
from benchmarks.evidence._text import first_line, middle, table, wrapped
from benchmarks.fanout import BUSY
from benchmarks.loadgen import GeneratorError
from benchmarks.scaling import (
    BUDGET,
    DIMENSIONS,
    RAISED,
    Effort,
    Growth,
    Measuring,
    Sample,
    many_files,
    room,
)
from benchmarks.servers import ServerError
from clearfunds.accounts import DEFAULT_LIMIT_ITEMS

LEAST: Final = 100
"""However short it is to be, so many of the most are compared with the fewest."""

WORDS: Final = {
    "connections": "idle connections",
    "subscriptions": "subscriptions that do not match",
    "topics": "topics in turn",
    "accounts": "publishers in debt",
    "deliveries": "subscribers to each message",
    "raised": "subscribers to each message, and a higher limit",
}
"""What there is much of, under a figure and in a table."""

BUDGETS: Final = {
    ("connections", "pipelined"): BUDGET,
    ("connections", "one in flight"): BUDGET,
    ("subscriptions", "pipelined"): BUDGET,
    ("subscriptions", "one in flight"): BUDGET,
    ("deliveries", "pipelined"): 1.0,
    ("deliveries", "one in flight"): 1.0,
    ("raised", "pipelined"): 1.0,
}
"""How often as dear the most may be as the fewest."""

LOOKS: Final = {
    "pipelined": Style(BLUE, "o", "-", 2.0),
    "one in flight": Style(ORANGE, "s", (0, (5, 1.5))),
    "raised": Style(GREEN, "^", (0, (1, 1))),
}


# -- Measuring -------------------------------------------------------------------------------------


def measure(setting: Setting) -> dict[str, Any]:
    """Measure all dimensions; one that fails is left out."""
    skipped: list[str] = []
    samples: list[Sample] = []
    with many_files() as files:
        wanted = max(LEAST, round(Effort().most * min(1.0, setting.scale)))
        most = min(wanted, room(files))
        if most < wanted:
            skipped.append(
                f"No more than {most:,} of each instead of {wanted:,}: a process may have "
                f"{files:,} descriptors here (ulimit -n)."
            )
        effort = Effort(most=most)
        if setting.scale < 0.5:
            effort = attrs.evolve(effort, seconds=0.1, rounds=1, passes=1)
        measuring = Measuring(
            effort, setting.cores, lambda text: setting.report(f"scaling, {text}")
        )
        for dimension in DIMENSIONS:
            try:
                samples += measuring.dimension(dimension)
            except (GeneratorError, ServerError) as error:
                skipped.append(f"{dimension.name}: {first_line(error)}")
    return {
        "seconds": effort.seconds,
        "rounds": effort.rounds,
        "samples": [attrs.asdict(sample) for sample in samples],
        "skipped": skipped,
    }


# -- Showing ---------------------------------------------------------------------------------------


def render(data: dict[str, Any]) -> Rendered:
    """Show how costs grow, and hold them to their budgets."""
    samples = [Sample(**each) for each in data["samples"]]
    growths = Growth.of(samples)
    again = {1: "", 2: " Everything is done twice, with fresh relays."}.get(
        data["rounds"], f" Everything is done {data['rounds']} times, with fresh relays."
    )
    introduction = wrapped(
        f"""The relay's cost of a delivery, in CPU seconds per million, as one number grows. The
        load beside it is one publisher and nine subscribers, pipelined and with one message in
        flight; in the last rows the number of subscribers itself grows. The relays of all sizes run
        at the same time and get the load in turn, {data["seconds"]:g} s each, so that compared
        figures were measured within seconds.{again}"""
    )
    columns = wrapped(
        """*Times* is the cost of a delivery with the most over that with the fewest: the median of
        the passes, minimum and maximum in brackets. *Growth* is the b of cost = a * number^b,
        fitted to all sizes: 0 is none, and below 0 the total grows more slowly than linearly with
        the number."""
    )
    head = ["", "load", "from", "to", "CPU s per M, fewest", "most", "times", "growth"]
    blocks = [
        introduction,
        "![What a delivery costs, over each of these numbers](evidence-scaling.svg)",
        columns,
        table(head, [_row(growth) for growth in growths], right=range(2, len(head))),
        wrapped(
            """One wildcard of each subscriber matches all *topics in turn*, and each topic has been
            published to before it is measured. *Publishers in debt* have each published something
            that a subscriber, which does not read, still has."""
        ),
        *_about_limits(growths),
        *_about_noise(samples),
    ]
    claims = tuple(_claim(what, load, growths, budget) for (what, load), budget in BUDGETS.items())
    return Rendered("\n\n".join(blocks), {"scaling": lambda: figure(growths)}, claims)


def _row(growth: Growth) -> list[str]:
    fewest, most = growth.sizes[0], growth.sizes[-1]
    return [
        WORDS[growth.dimension],
        growth.load,
        f"{fewest:,}",
        f"{most:,}",
        f"{median(growth.costs[fewest]):.3g}",
        f"{median(growth.costs[most]):.3g}",
        middle(growth.times(most), ".2f"),
        f"{growth.exponent:+.2f}",
    ]


def _find(growths: list[Growth], dimension: str, load: str) -> Growth | None:
    return next((g for g in growths if (g.dimension, g.load) == (dimension, load)), None)


def _claim(dimension: str, load: str, growths: list[Growth], budget: float) -> Claim:
    growth = _find(growths, dimension, load)
    ends = "" if growth is None else f", from {growth.sizes[0]:,} to {growth.sizes[-1]:,}"
    return Claim(
        f"CPU per delivery, {load}{ends} {WORDS[dimension]}: at most {budget:g} times",
        None if growth is None else growth.ratio,
        budget,
    )


def _about_limits(growths: list[Growth]) -> list[str]:
    """Say what the publisher's limit has to do with it."""
    found, raised = (_find(growths, name, "pipelined") for name in ("deliveries", "raised"))
    if found is None or raised is None or found.sizes[-1] != raised.sizes[-1]:
        return []
    most = found.sizes[-1]
    costs = [median(growth.costs[most]) for growth in (found, raised)]
    held = max(1, DEFAULT_LIMIT_ITEMS // most)
    return [
        wrapped(
            f"""A publisher may owe for {DEFAULT_LIMIT_ITEMS:,} deliveries by default, so that with
            {most:,} subscribers each of them is written about {held:,} messages at a time, however
            many there are to be written: {costs[0]:.3g} CPU s per M. With *a higher limit*
            (`{" ".join(RAISED)}`) writes are as long as reads: {costs[1]:.3g}."""
        )
    ]


def _about_noise(samples: list[Sample]) -> list[str]:
    """Say whether other processes took part."""
    waited = [sample.kept_waiting for sample in samples]
    if not waited or median(waited) <= BUSY:
        return []
    return [
        wrapped(
            f"""**The machine was busy**: other processes kept the relay or the generator waiting
            for {median(waited):.0%} of the time (median; up to {max(waited):.0%})."""
        )
    ]


def figure(growths: list[Growth]) -> Any:
    """Draw the cost over the size, a panel for each dimension."""
    names = [name for name in WORDS if any(g.dimension == name for g in growths)]
    # What is the same but for a limit is drawn in the same panel.
    panels = [name for name in names if name != "raised" or "deliveries" not in names]
    picture = figure_of(10.4, 6.2)
    columns = 3
    lines = max(1, -(-len(panels) // columns))
    axes = list(picture.subplots(lines, columns, sharey=True, squeeze=False).flat)
    for place, (axis, name) in enumerate(zip(axes, panels, strict=False)):
        for growth in growths:
            if growth.dimension == name or (growth.dimension == "raised" and name == "deliveries"):
                _draw(axis, growth)
        axis.set_xscale("log")
        axis.set_yscale("log")
        sizes = next(growth.sizes for growth in growths if growth.dimension == name)
        axis.set_xticks(sizes, [f"{size:,}" for size in sizes])
        axis.minorticks_off()
        decades(axis.yaxis)
        axis.set_xlabel(WORDS[name])
        if place % columns == 0:
            axis.set_ylabel("CPU s per M deliveries")
    for axis in axes[len(panels) :]:
        axis.set_axis_off()
    handles: dict[str, Any] = {}
    for axis in axes:
        for handle, text in zip(*axis.get_legend_handles_labels(), strict=True):
            handles.setdefault(text, handle)
    if handles:
        axes[-1 if len(panels) < len(axes) else 0].legend(
            handles.values(), handles.keys(), loc="center"
        )
    return picture


def _draw(axis: Any, growth: Growth) -> None:
    look = LOOKS["raised" if growth.dimension == "raised" else growth.load]
    middles = [median(growth.costs[size]) for size in growth.sizes]
    least = [min(growth.costs[size]) for size in growth.sizes]
    most = [max(growth.costs[size]) for size in growth.sizes]
    text = growth.load + (", a higher limit" if growth.dimension == "raised" else "")
    axis.plot(growth.sizes, middles, label=text, **look.line())
    axis.fill_between(growth.sizes, least, most, color=look.color, alpha=0.15, linewidth=0)


SECTION: Final = Section(
    key="i",
    name="scaling",
    title="Scaling: connections, topics, subscriptions, accounts, deliveries",
    seconds=220.0,
    command="python -m benchmarks.evidence --only scaling",
    measure=measure,
    render=render,
)
