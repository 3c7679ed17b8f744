"""A publisher's confirm channel: tells which of its publications have been taken over safely.

Rules of this file:
1. Publications are numbered from 1, in the order in which they were begun, and each gets exactly
   one answer. It is confirmed once its turn is over and all expected holders have taken it. It is
   refused if its turn failed, or if any one of them refuses.
2. Answers are not sent one by one: they are kept until `flush`, which merges them into one answer
   for many where it can. Their number grows with the load, as it should.
3. An answer for many stands for exactly what one answer each would have said: it never covers a
   publication that is still open, nor one with another answer.

Source: RabbitMQ's confirms (rabbit_confirms.erl; rabbit_channel.erl: send_confirms_and_nacks,
coalesce_and_send), where "once per drain of the mailbox" is when they are flushed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Self

import attrs

from .._errors import DataspaceError
from ._coalesce import coalesce

logger = logging.getLogger("clearfunds.dataspace")


@attrs.frozen
class PublisherConfirm:
    """One answer to the publisher."""

    number: int
    """The number of the publication."""
    multiple: bool
    """Whether it also covers all publications up to that number that are not answered yet."""
    refused: bool
    """False: somebody has taken responsibility (an ack); True: nobody has (a nack)."""


@attrs.define(slots=True, eq=False)
class PublicationConfirm:
    """The confirm of one publication (`clearfunds.accounts.Confirm`); `Confirms.begin` makes it.

    ::

        with confirms.begin() as confirm, account.turn(event, confirm=confirm) as turn:
            turn.publish(dataspace, event)

    At the end of its block the turn is over: holders that have not announced themselves (`expect`)
    by then have taken what they got. An exception out of the block refuses the publication, and
    goes on.

    Attributes:
        number: its place among the publications of its channel, from 1.
        reason: why it was refused; None while it has not been.
    """

    number: int
    _channel: Confirms | None
    reason: str | None = None
    _expected: int = 0
    _handed_over: bool = False

    def expect(self) -> None:
        """See `Confirm.expect`.

        Raises:
            DataspaceError: the publication's turn is over.
        """
        if self._handed_over:
            msg = f"publication {self.number} has been handed over; nobody is to be expected now"
            raise DataspaceError(msg)
        self._expected += 1

    def taken(self) -> None:
        """See `Confirm.taken`.

        Raises:
            DataspaceError: all expected holders have answered.
        """
        self._answered()

    def refused(self, reason: str) -> None:
        """See `Confirm.refused`. Later answers of other holders change nothing.

        Raises:
            DataspaceError: all expected holders have answered.
        """
        if self.reason is None and self._expected:
            self.reason = reason
        self._answered()

    def handed_over(self) -> None:
        """Note that its turn is over. Idempotent; the end of its block calls this."""
        if not self._handed_over:
            self._handed_over = True
            self._settle()

    def forget(self) -> None:
        """Drop the answer: its publisher has gone. For the channel itself to call."""
        self._channel = None

    def _answered(self) -> None:
        if not self._expected:
            msg = f"publication {self.number} has got more answers than were expected"
            raise DataspaceError(msg)
        self._expected -= 1
        if self._handed_over:
            self._settle()

    def _settle(self) -> None:
        channel = self._channel
        if channel is not None and (self.reason is not None or not self._expected):
            self._channel = None
            channel.settled(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, exc: BaseException | None, traceback: object) -> None:
        if exc is not None and self.reason is None:
            # The turn is undone (rule 4 of accounting): no holder has got anything.
            self.reason = str(exc) or type(exc).__name__
        self.handed_over()


class Confirms:
    """The confirms of one publisher.

    Its owner begins each publication here, and flushes once for each drain: after handling all that
    it has read, and when `on_confirm` reports an answer in between.

    Attributes:
        begun: publications begun since the start.
        confirmed: how many of them were confirmed.
        refused: how many were refused.
        reason: why the last one that was refused was, or None.
    """

    __slots__ = (
        "_acks", "_floor", "_nacks", "_on_confirm", "_open", "begun", "confirmed", "reason",
        "refused",
    )  # fmt: skip

    def __init__(self, on_confirm: Callable[[], object] | None = None) -> None:
        """Make a channel on which nothing has been published.

        Args:
            on_confirm: called when there is something to `flush` where there was nothing before; a
                queue may call it in the middle of its work, so only make a note in it, and do not
                send.
        """
        self._on_confirm = on_confirm
        self._open: dict[int, PublicationConfirm] = {}
        # No number below this one is open.
        self._floor = 1
        self._acks: list[int] = []
        self._nacks: list[int] = []
        self.begun = 0
        self.confirmed = 0
        self.refused = 0
        self.reason: str | None = None

    def __len__(self) -> int:
        """The number of publications begun and neither confirmed nor refused yet."""
        return len(self._open)

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        return (
            f"<Confirms: {self.begun} begun, {len(self._open)} open, "
            f"{len(self._acks) + len(self._nacks)} answers to be said>"
        )

    @property
    def waiting(self) -> bool:
        """Whether `flush` has any answers."""
        return bool(self._acks or self._nacks)

    def begin(self) -> PublicationConfirm:
        """Begin the next publication; it is open until it is answered."""
        self.begun += 1
        confirm = self._open[self.begun] = PublicationConfirm(self.begun, self)
        return confirm

    def run_taken(self, count: int) -> None:
        """Begin so many publications, and confirm them: whoever they reach has taken them."""
        first = not self.waiting
        begun = self.begun
        self.begun = begun + count
        self.confirmed += count
        self._acks += range(begun + 1, begun + count + 1)
        if first:
            self._report()

    def settled(self, confirm: PublicationConfirm) -> None:
        """Note an answer; for the publication itself to call."""
        del self._open[confirm.number]
        first = not self.waiting
        if confirm.reason is None:
            self.confirmed += 1
            self._acks.append(confirm.number)
        else:
            self.refused += 1
            self.reason = confirm.reason
            self._nacks.append(confirm.number)
        if first:
            self._report()

    def _report(self) -> None:
        if self._on_confirm is not None:
            try:
                self._on_confirm()
            except Exception:
                # The holder that answers, for example a queue whose messages have become durable,
                # must go on.
                logger.exception("a publisher could not note that there are answers for it")

    def flush(self) -> list[PublisherConfirm]:
        """Take the answers that are due, in the order to send them in."""
        acks, nacks = self._acks, self._nacks
        if not (acks or nacks):
            return []
        self._acks, self._nacks = [], []
        smallest_open = self._smallest_open()
        return [
            *(PublisherConfirm(n, many, False) for n, many in coalesce(acks, smallest_open, nacks)),
            *(PublisherConfirm(n, many, True) for n, many in coalesce(nacks, smallest_open, acks)),
        ]

    def close(self) -> None:
        """Forget everything: the publisher has gone. Later answers change nothing."""
        for confirm in self._open.values():
            confirm.forget()
        self._open.clear()
        self._acks.clear()
        self._nacks.clear()
        self._on_confirm = None

    def _smallest_open(self) -> int | None:
        if not self._open:
            self._floor = self.begun + 1
            return None
        while self._floor not in self._open:
            self._floor += 1
        return self._floor
