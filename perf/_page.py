"""The report of one or more runs, as a self-contained page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from typing import Final

from ._latency import PERCENTILES, Latencies
from ._load_words import many, rate, seconds, size
from ._page_style import STYLE
from ._plot import Line, Scale, keys, linear, lines, logarithmic
from ._result import Result, Sample, SubscriberResult
from ._scenario import shown
from ._summary import of_those_due

SHOWN: Final = 50
"""Subscribers of a run with a row of their own: the worst ones."""

_HOW: Final = (
    '<p class="about">Latency counts from the moment when a message was due, not from when it '
    "could be sent: it includes the time of backpressure.</p>"
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
    body = "".join(
        [
            "<h1>clearfunds perf</h1>",
            f'<p class="about">{escape(machine)}</p>',
            _HOW,
            _comparison(results) if len(results) > 1 else "",
            *map(_section, results),
        ]
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>clearfunds perf</title><style>{STYLE}</style></head><body>{body}</body></html>\n"
    )


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(each)}</th>" for each in heads)
    body = "".join(f"<tr>{''.join(cells)}</tr>" for cells in rows)
    return (
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
        "</div>"
    )


def _cell(text: str, *, bad: bool = False) -> str:
    return f"<td{' class=bad' if bad else ''}>{escape(text)}</td>"


def _comparison(results: Sequence[Result]) -> str:
    rows: list[list[str]] = []
    for result in results:
        found = result.latencies(slow=False)
        clients = max(result.scenario.publishers, 1) * result.publishing
        rows.append(
            [
                _cell(result.scenario.name),
                _cell(rate(result.published_rate), bad=result.unsent > 0),
                _cell(rate(result.received_rate)),
                _cell(f"{result.missing:,}", bad=result.missing > 0),
                *(_cell(seconds(found.percentile(p))) for p in (50.0, 99.0, 99.9)),
                _cell(f"{result.stalled / clients:.1%}"),
            ]
        )
    heads = ["run", "published/s", "received/s", "never came", "p50", "p99", "p99.9", "stalled"]
    about = "Latencies leave out the slow subscribers."
    return (
        f'<section><h2>All runs</h2><p class="about">{about}</p>{_table(heads, rows)}'
        f"{_curves(results)}</section>"
    )


def _curves(results: Sequence[Result]) -> str:
    drawn = [
        Line(result.scenario.name, _curve(result.latencies(slow=False)))
        for result in results
        if len(result.latencies(slow=False))
    ]
    return _curve_plot(drawn)


def _curve(found: Latencies) -> list[float | None]:
    return [found.percentile(percent) for percent in CURVE]


def _curve_plot(drawn: Sequence[Line]) -> str:
    if not drawn:
        return ""
    places = [float(place) for place in range(len(CURVE))]
    scale = Scale(tuple(places), lambda place: place / (len(CURVE) - 1))
    every = [value for line in drawn for value in line.values if value is not None]
    plot = lines(
        places,
        drawn,
        label="Latency by percentile",
        x_scale=scale,
        x_words=lambda place: "least" if not place else f"{CURVE[round(place)]:g} %",
        y_scale=logarithmic(every),
        y_words=seconds,
    )
    return f"<h3>Latency: how many percent within how long</h3>{plot}<p>{keys(drawn)}</p>"


def _over_time(
    result: Result, title: str, drawn: Sequence[Line], scale: Scale, words: Callable[[float], str]
) -> str:
    times = [sample.at for sample in _shown(result)]
    plot = lines(
        times,
        drawn,
        label=title,
        x_scale=linear(times, 8),
        x_words=lambda at: f"{at:g} s",
        y_scale=scale,
        y_words=words,
    )
    return f"<h3>{escape(title)}</h3>{plot}<p>{keys(drawn)}</p>"


def _shown(result: Result) -> list[Sample]:
    """Return the seconds of a run, without a short rest after the last whole one."""
    return [sample for sample in result.samples if sample.seconds > SHORT]


def _values(drawn: Sequence[Line]) -> list[float]:
    return [value for line in drawn for value in line.values if value is not None]


def _section(result: Result) -> str:
    scenario = result.scenario
    what = [
        f"{many(scenario.publishers, 'publisher')} and {many(scenario.subscribers, 'subscriber')}",
        f"MQTT {scenario.version}" + (" over TLS" if scenario.tls else ""),
        f"QoS {scenario.qos}",
        *([] if scenario.prefetch is None else [f"a prefetch of {scenario.prefetch}"]),
        f"payloads of {size(scenario.size.mean)}"
        + ("" if scenario.size.choices == (scenario.size.mean,) else " on average"),
        "as fast as they can" if scenario.rate is None else _paces(result),
        f"for {scenario.seconds:g} s",
        f"from {many(result.processes, 'process', 'processes')}",
    ]
    if scenario.slow:
        what.append(
            f"{scenario.slow} of the subscribers {'is' if scenario.slow == 1 else 'are'} slow"
        )
    parts = [
        f"<section><h2>{escape(scenario.name)}</h2>",
        f'<p class="about">{escape(", ".join(what))}; {escape(shown(scenario.uri))}</p>',
        f"<p>{_verdict(result)}</p>",
        *(f'<p class="note">{escape(doubt)}</p>' for doubt in result.doubts()),
    ]
    samples = _shown(result)
    if len(samples) > 1:
        rates = [Line("published", [s.published for s in samples])]
        rates.append(Line("received", [s.received for s in samples]))
        if scenario.rate is not None:
            due = [s.expected_published for s in samples]
            rates.append(Line("due", due, dashed=True))
        words: Callable[[float], str] = lambda value: f"{value:,.0f}"  # noqa: E731
        parts.append(_over_time(result, "Messages a second", rates, linear(_values(rates)), words))
        times = [
            Line(f"p{percent:g}", [s.latencies.percentile(percent) for s in samples])
            for percent in (50.0, 99.0)
        ]
        times.append(Line("max", [s.latencies.most() for s in samples]))
        if _values(times):
            scale = logarithmic(_values(times))
            parts.append(_over_time(result, "Latency", times, scale, seconds))
        stalled = [Line("publishers that cannot send", [s.stalled for s in samples])]
        if max(_values(stalled)) > 0.005:
            scale = linear(_values(stalled))
            parts.append(
                _over_time(result, "Publishers stalled", stalled, scale, lambda value: f"{value:g}")
            )
    curves = [("slow subscribers", True), ("other subscribers", False)]
    drawn = [
        Line(name if scenario.slow else "all subscribers", _curve(result.latencies(slow=slow)))
        for name, slow in curves
        if len(result.latencies(slow=slow))
    ]
    parts.append(_curve_plot(drawn))
    parts.append(_subscribers(result))
    return "".join([*parts, "</section>"])


def _paces(result: Result) -> str:
    scenario = result.scenario
    assert scenario.rate is not None
    mean = f"{scenario.rate.mean_rate():g} messages a second each"
    return mean if len(scenario.rate.steps) == 1 else f"{mean} on average"


def _verdict(result: Result) -> str:
    missing = f"{result.missing:,} never came" if result.missing else "nothing is missing"
    longest = result.stalls.most() if len(result.stalls) else None
    stalled = (
        f"; publishers could not send for {seconds(result.stalled)} in all, {seconds(longest)} at "
        "a time at most"
        if longest is not None
        else ""
    )
    return escape(
        f"{of_those_due(result)} published in {seconds(result.span)}, "
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
    return f"<h3>Subscribers</h3>{_table(heads, rows)}{rest}"


def _row(each: SubscriberResult) -> list[str]:
    found = each.latencies
    return [
        _cell(f"{each.number}{' (slow)' if each.slow else ''}"),
        _cell(f"{each.received:,}"),
        _cell(f"{each.expected:,}"),
        _cell(f"{each.missing:,}", bad=each.missing > 0),
        _cell(f"{each.again:,}"),
        _cell(f"{each.losses:,}", bad=each.losses > 0),
        _cell(seconds(each.longest_gap)),
        *(_cell(seconds(found.percentile(percent))) for percent in PERCENTILES),
        _cell(seconds(found.most())),
    ]
