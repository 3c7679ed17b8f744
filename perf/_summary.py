"""A result as lines of text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ._latency import Latencies
from ._result import Result, Sample, SubscriberResult

SHOWN: Final = 10
"""Subscribers with a line each: the worst ones."""

HEADING: Final = (
    "  time  published      due  received       of   stalled      p50      p99      max   busy"
)


def seconds(value: float | None) -> str:
    """Return a length of time with three digits: `1.23 ms`."""
    if value is None:
        return "-"
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if value >= size:
            return f"{_digits(value / size)} {unit}"
    return "0" if value <= 0 else f"{_digits(value * 1e6)} us"


def rate(value: float | None) -> str:
    """Return a rate a second, in full: `12,345`."""
    return "-" if value is None else f"{value:,.0f}" if value >= 10 else f"{value:.1f}"


def _digits(value: float) -> str:
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def sample_line(sample: Sample) -> str:
    """Return the line of one second."""
    latencies = sample.latencies
    due = "-" if sample.expected_published is None else rate(sample.expected_published)
    return (
        f"{sample.at:5.1f}s {rate(sample.published):>10} {due:>8} {rate(sample.received):>9} "
        f"{rate(sample.expected_received):>8} {sample.stalled:>9.2f} "
        f"{seconds(latencies.percentile(50)):>8} {seconds(latencies.percentile(99)):>8} "
        f"{seconds(latencies.most()):>8} {sample.busy:>6.0%}"
    )


def _latency_line(what: str, found: Latencies) -> str:
    parts = [f"p{percent:g} {seconds(found.percentile(percent))}" for percent in (50, 95, 99, 99.9)]
    return f"{what:<22}{', '.join(parts)}, max {seconds(found.most())}"


def subscriber_line(each: SubscriberResult) -> str:
    """Return the line of one subscriber."""
    found = each.latencies
    parts = [
        f"{each.received:,} of {each.expected:,}",
        f"p50 {seconds(found.percentile(50))}, p99 {seconds(found.percentile(99))}",
        f"longest gap {seconds(each.longest_gap)}",
    ]
    if each.missing:
        parts.append(f"{each.missing:,} missing")
    if each.again:
        parts.append(f"{each.again:,} twice")
    if each.losses:
        parts.append("cut off once" if each.losses == 1 else f"cut off {each.losses} times")
    slow = " (slow)" if each.slow else ""
    return f"  subscriber {each.number}{slow}: {', '.join(parts)}"


def of_those_due(result: Result) -> str:
    """Return the number of published messages, and of due ones if known."""
    due = "" if result.due is None else f" of {result.due:,} that were due"
    return f"{result.published:,}{due}"


def summary(result: Result) -> Iterator[str]:
    """Yield the lines of a result."""
    scenario = result.scenario
    yield (
        f"{'published':<22}{of_those_due(result)}, in {result.span:.4g} s, "
        f"{rate(result.published_rate)} a second"
    )
    of = ""
    if result.expected:
        missing = f"{result.missing:,} never came" if result.missing else "all of them"
        of = f" of {result.expected:,}, {missing}"
    yield (f"{'received':<22}{result.received:,}{of}, {rate(result.received_rate)} a second")
    if len(result.latencies()):
        if scenario.slow:
            yield _latency_line("latency, slow ones", result.latencies(slow=True))
            yield _latency_line("latency, the others", result.latencies(slow=False))
        else:
            yield _latency_line("latency", result.latencies())
    if len(result.confirms):
        yield _latency_line("until acknowledged", result.confirms)
    if scenario.publishers:
        share = result.stalled / (result.publishing * scenario.publishers)
        yield (
            f"{'publishers stalled':<22}{share:.1%} of their time; "
            f"longest stretch {seconds(result.stalls.most() if len(result.stalls) else None)}"
        )
    every = result.worst_first()
    if len(every) > 1 or any(each.again or each.losses for each in every):
        for each in every[:SHOWN]:
            yield subscriber_line(each)
        if len(every) > SHOWN:
            yield f"  and {len(every) - SHOWN} more, none of them worse"
    for publisher in result.publishers:
        for loss in publisher.lost[:1]:
            yield f"  publisher {publisher.number} was cut off at {loss['at']:.1f} s: {loss['why']}"
    for doubt in result.doubts():
        yield f"note: {doubt}"
