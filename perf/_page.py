"""The report of one or more runs, as a self-contained page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from clearfunds._html import (
    Scale,
    Series,
    bad,
    document,
    duration,
    legend,
    linear,
    logarithmic,
    plot,
    plural,
    section,
    size,
    table,
    text,
)

from ..transports.mqtt import without_password
from ._latency import PERCENTILES, Latencies
from ._result import Result, Sample, SubscriberResult
from ._summary import of_those_due, rate

SHOWN: Final = 50
"""Subscribers of a run with a row of their own: the worst ones."""

_HOW: Final = (
    "Latency counts from the moment when a message was due, not from when it could be sent: it "
    "includes the time of backpressure."
)

SHORT: Final = 0.5
"""Seconds: the rates of a shorter sample do not compare with the others."""

CURVE: Final = (0.0, 50.0, 75.0, 90.0, 95.0, 99.0, 99.9, 99.99)
"""Percentiles of the latency curve."""


def page(results: Sequence[Result], machine: str) -> str:
    """Return the page.

    Args:
        results: The results, in the order of the page.
        machine: The machine, and the time.
    """
    comparison = _comparison(results) if len(results) > 1 else ""
    return document(
        "clearfunds perf", [text(machine), _HOW], "".join([comparison, *map(_section, results)])
    )


def _time(value: float | None) -> str:
    return "-" if value is None else duration(value)


def _comparison(results: Sequence[Result]) -> str:
    rows: list[list[str]] = []
    for result in results:
        found = result.latencies(slow=False)
        clients = max(result.scenario.publishers, 1) * result.publishing
        rows.append(
            [
                text(result.scenario.name),
                bad(rate(result.published_rate), result.unsent > 0),
                rate(result.received_rate),
                bad(f"{result.missing:,}", result.missing > 0),
                *(_time(found.percentile(percent)) for percent in (50.0, 99.0, 99.9)),
                f"{result.stalled / clients:.1%}",
            ]
        )
    heads = ["run", "published/s", "received/s", "never came", "p50", "p99", "p99.9", "stalled"]
    curves = [
        Series(result.scenario.name, _curve(result.latencies(slow=False)))
        for result in results
        if len(result.latencies(slow=False))
    ]
    return section(
        "All runs",
        "Latencies leave out the slow subscribers.",
        table(heads, rows, range(1, len(heads))) + _curve_plot(curves),
    )


def _curve(found: Latencies) -> list[float | None]:
    return [found.percentile(percent) for percent in CURVE]


def _curve_plot(drawn: Sequence[Series]) -> str:
    if not drawn:
        return ""
    return _plot(
        "Latency: how many percent within how long",
        range(len(CURVE)),
        drawn,
        x=Scale(range(len(CURVE)), lambda place: place / (len(CURVE) - 1)),
        y=logarithmic(_values(drawn)),
        x_words=lambda place: f"{CURVE[round(place)]:g} %" if place else "least",
        y_words=duration,
    )


def _plot(
    title: str,
    xs: Sequence[float],
    drawn: Sequence[Series],
    *,
    x: Scale,
    y: Scale,
    x_words: Callable[[float], str],
    y_words: Callable[[float], str],
) -> str:
    lines = plot(title, xs, drawn, x=x, y=y, x_words=x_words, y_words=y_words)
    return f"<h3>{title}</h3>{lines}{legend(drawn)}"


def _over_time(
    result: Result, title: str, drawn: Sequence[Series], scale: Scale, words: Callable[[float], str]
) -> str:
    times = [sample.at for sample in _shown(result)]
    return _plot(
        title,
        times,
        drawn,
        x=linear(times, 8),
        y=scale,
        x_words=lambda at: f"{at:g} s",
        y_words=words,
    )


def _shown(result: Result) -> list[Sample]:
    """Return the seconds of a run, without a short rest after the last whole one."""
    return [sample for sample in result.samples if sample.seconds > SHORT]


def _values(drawn: Sequence[Series]) -> list[float]:
    return [value for line in drawn for value in line.values if value is not None]


def _section(result: Result) -> str:
    scenario = result.scenario
    subscribers = plural(scenario.subscribers, "subscriber")
    what = [
        f"{plural(scenario.publishers, 'publisher')} and {subscribers}",
        f"MQTT {scenario.version}" + (" over TLS" if scenario.tls else ""),
        f"QoS {scenario.qos}",
        *([] if scenario.prefetch is None else [f"a prefetch of {scenario.prefetch}"]),
        f"payloads of {size(scenario.size.mean)}"
        + ("" if scenario.size.choices == (scenario.size.mean,) else " on average"),
        "as fast as they can" if scenario.rate is None else _paces(result),
        f"for {scenario.seconds:g} s",
        f"from {plural(result.processes, 'process', 'processes')}",
    ]
    if scenario.slow:
        what.append(
            f"{scenario.slow} of the subscribers {'is' if scenario.slow == 1 else 'are'} slow"
        )
    parts = [
        f"<p>{_verdict(result)}</p>",
        *(f'<p class="note">{text(doubt)}</p>' for doubt in result.doubts()),
    ]
    samples = _shown(result)
    if len(samples) > 1:
        rates = [Series("published", [s.published for s in samples])]
        rates.append(Series("received", [s.received for s in samples]))
        if scenario.rate is not None:
            due = [s.expected_published for s in samples]
            rates.append(Series("due", due, dashed=True))
        scale = linear(_values(rates))
        parts.append(_over_time(result, "Messages a second", rates, scale, "{:,.0f}".format))
        times = [
            Series(f"p{percent:g}", [s.latencies.percentile(percent) for s in samples])
            for percent in (50.0, 99.0)
        ]
        times.append(Series("max", [s.latencies.most() for s in samples]))
        if _values(times):
            scale = logarithmic(_values(times))
            parts.append(_over_time(result, "Latency", times, scale, duration))
        stalled = [Series("publishers that cannot send", [s.stalled for s in samples])]
        if max(_values(stalled)) > 0.005:
            scale = linear(_values(stalled))
            parts.append(_over_time(result, "Publishers stalled", stalled, scale, "{:.3g}".format))
    curves = [("slow subscribers", True), ("other subscribers", False)]
    drawn = [
        Series(name if scenario.slow else "all subscribers", _curve(result.latencies(slow=slow)))
        for name, slow in curves
        if len(result.latencies(slow=slow))
    ]
    parts.append(_curve_plot(drawn))
    parts.append(_subscribers(result))
    about = f"{', '.join(what)}; {without_password(scenario.uri)}"
    return section(text(scenario.name), text(about), "".join(parts))


def _paces(result: Result) -> str:
    scenario = result.scenario
    assert scenario.rate is not None
    mean = f"{scenario.rate.mean_rate():g} messages a second each"
    return mean if len(scenario.rate.steps) == 1 else f"{mean} on average"


def _verdict(result: Result) -> str:
    missing = f"{result.missing:,} never came" if result.missing else "nothing is missing"
    longest = result.stalls.most() if len(result.stalls) else None
    stalled = (
        f"; publishers could not send for {_time(result.stalled)} in all, {_time(longest)} at "
        "a time at most"
        if longest is not None
        else ""
    )
    return text(
        f"{of_those_due(result)} published in {_time(result.span)}, "
        f"{result.received:,} of {result.expected:,} received: "
        f"{missing}{stalled}."
    )


def _subscribers(result: Result) -> str:
    every = result.worst_first()
    if not every:
        return ""
    heads = ["subscriber", "received", "of", "never came", "twice", "cut off", "longest gap"]
    heads += [f"p{percent:g}" for percent in PERCENTILES] + ["max"]
    rows = [_row(each) for each in every[:SHOWN]]
    more = len(every) - SHOWN
    rest = f'<p class="about">And {more} more, none of them worse.</p>' if more > 0 else ""
    return f"<h3>Subscribers</h3>{table(heads, rows, range(1, len(heads)))}{rest}"


def _row(each: SubscriberResult) -> list[str]:
    found = each.latencies
    return [
        f"{each.number}{' (slow)' if each.slow else ''}",
        f"{each.received:,}",
        f"{each.expected:,}",
        bad(f"{each.missing:,}", each.missing > 0),
        f"{each.again:,}",
        bad(f"{each.losses:,}", each.losses > 0),
        _time(each.longest_gap),
        *(_time(found.percentile(percent)) for percent in PERCENTILES),
        _time(found.most()),
    ]
