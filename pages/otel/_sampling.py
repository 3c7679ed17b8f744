"""Traces of sampled events as spans: now and then, of the next account that sends something."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import trio

from ...accounts import Tracer
from ...transports._trace_label import label_of
from ._spans import record_trace

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer as SpanTracer

    from ...accounts import Ledger, Trace

FOLLOW_SECONDS: Final = 10.0
"""Longest time to follow an event; loans outstanding then are marked as such."""

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
    """Make spans of the next event of any account, every `every` seconds, until cancelled.

    By time and not by number: the cost is the same at any traffic, and other events cost nothing.
    Busy accounts are sampled more often, as in any sample.

    Args:
        ledger: The books.
        tracer: Makes the spans; its provider exports them.
        every: Least seconds from the beginning of one sample to the next.
        follow: Most seconds to wait for an event and follow it.
        shown: The number of its loans that become spans.

    Cancellation: the event being followed is not recorded.
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
