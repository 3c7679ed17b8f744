"""Batched acknowledgements of a consumer: after a number of deliveries, or after a moment.

Rules of this file:
1. A delivery is answered only after its consumer has answered it here.
2. One answer for many stands only for deliveries with the same answer: acks are never merged with
   other answers, and a delivery that is still being worked on is never swept.
3. An answer is kept for `delay` at most, and leaves when the batcher is closed.
"""

from __future__ import annotations

import enum
import math
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final, Self

import attrs
import trio

from ...accounts._loop import running
from .._errors import DataspaceError
from ._coalesce import coalesce

if TYPE_CHECKING:
    from ...accounts._loop import Event

DEFAULT_EVERY: Final = 10
"""Deliveries; "every 10 messages or up to 50ms", as in RabbitMQ's advice on acks. The same advice
says that a twentieth to a tenth of the prefetch is about right."""

DEFAULT_DELAY: Final = 0.050
"""Seconds; see `DEFAULT_EVERY`."""


COMPACT: Final = 1000
"""Most answered deliveries that may stand behind one that is not."""


class Verdict(enum.StrEnum):
    """A consumer's verdict on a delivery."""

    ACK = "ack"
    """Processed (basic.ack)."""
    REQUEUE = "requeue"
    """Deliver it again, to any consumer (basic.nack, basic.reject with requeue)."""
    DISCARD = "discard"
    """Never deliver it again; a dead letter, where there is a place for those."""


@attrs.frozen
class Acknowledgement:
    """One answer to send to the broker."""

    tag: int
    """The tag of the delivery."""
    multiple: bool
    """Whether it also covers all unacknowledged deliveries up to that one."""
    verdict: Verdict
    """The verdict on them."""


class AckBatcher:
    """Gathers a consumer's answers to its deliveries, so that one answer can stand for many.

    ::

        async with trio.open_nursery() as nursery:
            with AckBatcher(send, prefetch=100) as acks:
                nursery.start_soon(acks.run)
                async for delivery in deliveries:
                    acks.delivered(delivery.tag)
                    ...
                    acks.ack(delivery.tag)

    However its block ends, the answers are sent: the work is done, and would only be done again.

    One batcher serves one channel: delivery tags are numbered by channel, and an answer for many
    stands for deliveries of all its consumers. Do not note deliveries that need no answer. It
    counts answers, not deliveries, so a slow delivery holds up no other.

    Attributes:
        every: how many answers are sent at once.
        delay: how long, in seconds, an answer is kept at most; `math.inf` for as long as it takes.
    """

    __slots__ = (
        "_changed", "_closed", "_first_at", "_last", "_open", "_order", "_pending", "_send",
        "delay", "every",
    )  # fmt: skip

    def __init__(
        self,
        send: Callable[[Acknowledgement], object],
        *,
        prefetch: int,
        every: int = DEFAULT_EVERY,
        delay: float = DEFAULT_DELAY,
    ) -> None:
        """Make a batcher; `run` has to be running for `delay` to be kept.

        Args:
            send: sends one answer, or queues it for sending; it does not wait.
            prefetch: most deliveries that the broker leaves unacknowledged; 0 for any number.
            every: how many answers are sent at once.
            delay: how long, in seconds, an answer is kept at most.

        Raises:
            ValueError: `every` is more than the prefetch, so that the broker would wait for answers
                that wait for its deliveries; or a number makes no sense.
        """
        if every < 1 or prefetch < 0 or not delay > 0:
            msg = (
                f"acks every {every} deliveries or {delay} s with a prefetch of {prefetch}: the "
                "first has to be 1 or more, the second above 0, the third 0 or more"
            )
            raise ValueError(msg)
        if prefetch and every > prefetch:
            msg = (
                f"acks every {every} deliveries with a prefetch of {prefetch}: the broker stops at "
                f"{prefetch} and waits; ack every {prefetch} at most, better a tenth of that"
            )
            raise ValueError(msg)
        self._send = send
        self.every = every
        self.delay = delay
        self._last = 0
        self._open: set[int] = set()
        # Open deliveries are in it, in order; answered ones are removed when they are met.
        self._order: deque[int] = deque()
        self._pending: dict[int, Verdict] = {}
        self._first_at: float | None = None
        # Wakes `run`, while that waits.
        self._changed: Event | None = None
        self._closed = False

    def __repr__(self) -> str:
        return f"<AckBatcher: {len(self._open)} deliveries open, {len(self._pending)} answers kept>"

    def __len__(self) -> int:
        """The number of answers that are kept."""
        return len(self._pending)

    def __bool__(self) -> bool:
        return True

    def delivered(self, tag: int) -> None:
        """Note a delivery that needs an answer; note all of them, as they come.

        Raises:
            DataspaceError: its tag is not above all before.
        """
        if tag <= self._last:
            msg = f"delivery {tag} came after delivery {self._last}; tags only rise, from 1"
            raise DataspaceError(msg)
        self._last = tag
        self._open.add(tag)
        self._order.append(tag)

    def ack(self, tag: int) -> None:
        """Answer that a delivery is processed; otherwise as `answer`."""
        self.answer(tag, Verdict.ACK)

    def nack(self, tag: int, *, requeue: bool = True) -> None:
        """Answer that it is not, and whether to deliver it again; otherwise as `answer`."""
        self.answer(tag, Verdict.REQUEUE if requeue else Verdict.DISCARD)

    def answer(self, tag: int, verdict: Verdict) -> None:
        """Answer a delivery; the answer is sent with others, or at once if it completes a batch.

        Raises:
            DataspaceError: there is no such delivery, or it has been answered.
            trio.ClosedResourceError: the batcher is closed.
        """
        if self._closed:
            msg = "this batcher is closed: a new answer would never be sent"
            raise trio.ClosedResourceError(msg)
        if tag not in self._open:
            msg = f"delivery {tag} is unknown, or has been answered; an ack is said once"
            raise DataspaceError(msg)
        self._open.remove(tag)
        self._pending[tag] = verdict
        if len(self._pending) >= self.every:
            self.flush()
        elif self._first_at is None:
            self._first_at = running().now()
            self._wake()

    def flush(self) -> None:
        """Send the answers. If `send` fails, that answer and all after it stay."""
        pending, self._pending = self._pending, {}
        self._first_at = None
        order = self._order
        while order and order[0] not in self._open:
            order.popleft()
        if len(order) > 2 * len(self._open) + COMPACT:
            # One takes long, and thousands that came after it have been answered.
            order = self._order = deque(tag for tag in order if tag in self._open)
        smallest_open = order[0] if order else None
        by_verdict: dict[Verdict, list[int]] = {verdict: [] for verdict in Verdict}
        for tag, verdict in pending.items():
            by_verdict[verdict].append(tag)
        unsent = [
            Acknowledgement(tag, multiple, verdict)
            for verdict, tags in by_verdict.items()
            for tag, multiple in coalesce(
                tags, smallest_open, [tag for tag, other in pending.items() if other is not verdict]
            )
        ]
        unsent.reverse()
        try:
            while unsent:
                self._send(unsent[-1])
                unsent.pop()
        except BaseException:
            self._put_back(pending, unsent)
            raise

    def _put_back(self, pending: dict[int, Verdict], unsent: Iterable[Acknowledgement]) -> None:
        for ack in unsent:
            for tag, verdict in pending.items():
                if tag == ack.tag or (ack.multiple and tag < ack.tag and verdict is ack.verdict):
                    self._pending[tag] = verdict
        if self._first_at is None:
            self._first_at = running().now()

    def close(self) -> None:
        """Send the answers and take nothing more; `run` ends. Idempotent.

        Deliveries that are open stay so: the broker delivers them again.
        """
        if not self._closed:
            self._closed = True
            self._wake()
            self.flush()

    async def run(self) -> None:
        """Keep to `delay`; for a task of its own, until the batcher is closed.

        Cancellation: answers stay until they are flushed.
        """
        loop = running()
        while not self._closed:
            due = self._due()
            self._changed = loop.event()
            await loop.wait_until(self._changed, math.inf if due is None else due)
            # The answers kept then may have left in the meantime, and those kept now be younger.
            if due is not None and self._due() == due:
                self.flush()

    def _wake(self) -> None:
        if self._changed is not None:
            self._changed.set()

    def _due(self) -> float | None:
        return None if self._first_at is None else self._first_at + self.delay

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()
