"""A trace every now and then, of whoever sends something next, as spans."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import trio

from ...accounts import Tracer
from .._trace_label import label_of
from ._spans import record_trace

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer as SpanTracer

    from ...accounts import Ledger, Trace

FOLLOW_SECONDS: Final = 10.0
"""For how long an event is followed, at most; what is outstanding then is said to be so."""

SHOWN_LOANS: Final = 50
"""Loans of one event that become spans: those outstanding, then the slowest. Two milliseconds."""


async def sample_traces(
    ledger: Ledger,
    tracer: SpanTracer,
    *,
    every: float,
    follow: float = FOLLOW_SECONDS,
    shown: int = SHOWN_LOANS,
) -> None:
    """Make spans of the next event of any account, every so many seconds, until cancelled.

    By time and not by number: it costs the same however much traffic there is, and events that are
    not sampled cost nothing. Busy accounts are met more often, as they are by any sample.

    Args:
        ledger: The books.
        tracer: Makes the spans; what becomes of them is its provider's business.
        every: Seconds from the beginning of one sample to the next, at least.
        follow: For how many seconds one is waited for and followed.
        shown: How many of its loans become spans.

    Cancellation: nothing is followed any more, and of what was nothing is recorded.
    """
    while True:
        due = trio.current_time() + every
        for trace in await _one(ledger, follow, shown):
            record_trace(trace, tracer)
            await trio.lowlevel.checkpoint()
        await trio.sleep_until(due)


async def _one(ledger: Ledger, follow: float, shown: int) -> tuple[Trace, ...]:
    sampler = Tracer(ledger, label=label_of, shown=shown)
    try:
        for _ in sampler.arming():
            await trio.lowlevel.checkpoint()
        with trio.move_on_after(follow):
            return (await sampler.next(),)
        return sampler.rest()
    finally:
        sampler.close()
