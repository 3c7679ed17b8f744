"""A publisher's in-flight window: a limit on unconfirmed publications."""

from __future__ import annotations

from typing import Final

import trio

from ...accounts._loop import Lot, checkpoint
from .._errors import DataspaceError

DEFAULT_WINDOW: Final = 200
"""Unconfirmed publications; at this window RabbitMQ's own measurements have most of the gain and
the latency is still low ("increasing in-flight limit": 1, 5, 20, 200, 1000, 10000)."""


class InflightWindow:
    """Counts and bounds the unconfirmed publications of a publisher with confirms.

    ::

        window = InflightWindow()

        async def publish(message):
            number = await window.acquire()  # waits while 200 are unconfirmed
            unconfirmed[number] = message
            send(message)  # without a checkpoint in between: the broker numbers what reaches it

        def on_confirm(number, multiple, refused):
            for answered in window.answered(number, multiple):
                message = unconfirmed.pop(answered)
                if refused:
                    publish_again(message)

    Numbers run from 1, as the broker counts publications on a channel. Several tasks may publish at
    once: the task that has waited longest goes first, and gets a place that becomes free, so that
    no later task takes it.

    Attributes:
        size: how many publications may be unconfirmed.
        last: the number of the last publication; 0 before the first.
    """

    __slots__ = ("_answered", "_closed", "_floor", "_free", "_lot", "_open", "last", "size")

    def __init__(self, size: int = DEFAULT_WINDOW) -> None:
        """Make a window with nothing in flight.

        Raises:
            ValueError: it would let nothing through.
        """
        if size < 1:
            msg = f"a window of {size} publications lets none go; make it 1 at least"
            raise ValueError(msg)
        self.size = size
        self.last = 0
        self._free = size
        self._open: dict[int, None] = {}
        # No number below this one is open.
        self._floor = 1
        self._lot = Lot()
        self._answered = Lot()
        self._closed = False

    def __len__(self) -> int:
        """The number of publications neither confirmed nor refused yet."""
        return len(self._open)

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        return (
            f"<InflightWindow {len(self._open)}/{self.size} unconfirmed, {len(self._lot)} waiting>"
        )

    def acquire_nowait(self) -> int:
        """Take a place if one is free; otherwise as `acquire`.

        Raises:
            trio.WouldBlock: there is none, or others wait for one.
            trio.ClosedResourceError: the window is closed.
        """
        if self._closed:
            raise trio.ClosedResourceError(_CLOSED)
        if not self._free:
            raise trio.WouldBlock
        self._free -= 1
        return self._begin()

    async def acquire(self) -> int:
        """Wait for a place, take it, and return the number of the next publication.

        Returns without a checkpoint while there are places, so that small publications leave
        together; a publisher of more than the window holds waits for the broker.

        Cancellation: no place has been taken and no number given; nothing is owed.

        Raises:
            trio.ClosedResourceError: the window is closed, or was closed meanwhile.
        """
        try:
            return self.acquire_nowait()
        except trio.WouldBlock:
            pass
        # A task that is woken has been given a place.
        await self._lot.park(lost=self._lost)
        if self._closed:
            raise trio.ClosedResourceError(_CLOSED)
        return self._begin()

    def give_back(self, number: int) -> None:
        """Give the place and the number back: the publication was not sent after all.

        Raises:
            DataspaceError: it is not the last one; the broker has counted on.
        """
        if number != self.last or number not in self._open:
            msg = f"publication {number} cannot be taken back: the last one is {self.last}"
            raise DataspaceError(msg)
        del self._open[number]
        self.last -= 1
        self._floor = min(self._floor, number)
        self._let_go(1)
        self._answered.unpark_all()

    def answered(self, number: int, multiple: bool = False) -> list[int]:
        """Note that the broker has confirmed or refused publications; return which, in order.

        Args:
            number: the publication's.
            multiple: all that are open up to it as well; with number 0, all that are open.

        Raises:
            DataspaceError: that one is not open: never published, or answered before.
        """
        if number not in self._open and not (multiple and number == 0):
            msg = (
                f"there was an answer for publication {number}, which is not on its way: "
                f"{self.last} were published and {len(self._open)} are unconfirmed"
            )
            raise DataspaceError(msg)
        if multiple:
            numbers: list[int] = []
            for candidate in range(self._floor, (number or self.last) + 1):
                if candidate in self._open:
                    del self._open[candidate]
                    numbers.append(candidate)
            self._floor = (number or self.last) + 1
        else:
            numbers = [number]
            del self._open[number]
        self._let_go(len(numbers))
        self._answered.unpark_all()
        return numbers

    async def wait_answered(self) -> None:
        """Wait until all publications so far are confirmed or refused.

        Cancellation: harmless, only the waiting ends.

        Raises:
            trio.ClosedResourceError: the window is closed before that.
        """
        await checkpoint()
        last = self.last
        # A number that is given back meanwhile was not published, and goes to another publication.
        while self._smallest_open() <= (last := min(last, self.last)):
            if self._closed:
                raise trio.ClosedResourceError(_CLOSED)
            await self._answered.park()

    def close(self) -> list[int]:
        """Let nothing through any more: the channel has ended. Idempotent.

        Returns:
            the numbers that were never answered, in order: the broker may or may not have those.
        """
        self._closed = True
        self._lot.unpark_all()
        self._answered.unpark_all()
        return list(self._open)

    def _begin(self) -> int:
        self.last += 1
        self._open[self.last] = None
        return self.last

    def _lost(self) -> None:
        if not self._closed:
            self._let_go(1)

    def _let_go(self, places: int) -> None:
        handed = min(places, len(self._lot))
        self._free += places - handed
        if handed:
            self._lot.unpark_all(handed)

    def _smallest_open(self) -> int:
        """Return the smallest number that is unanswered; the next one if none is."""
        while self._floor <= self.last and self._floor not in self._open:
            self._floor += 1
        return self._floor


_CLOSED: Final = "this window is closed: its channel has ended"
