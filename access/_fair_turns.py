"""Turns at a scarce resource, fair by owner."""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Final

import trio

QUEUE: Final = 4_096
"""Most turns that one owner may wait for; as many connections as wait to be accepted."""


class QueueFullError(Exception):
    """An owner waits for too many turns already."""


class FairTurns:
    """Limits turns at a time; the others wait, one of each owner after the other.

    Owners that come first have every other turn, as long as there are any: the others go on, too.

    Args:
        concurrent: Turns at a time.
        queue: Turns that one owner may wait for.

    Attributes:
        concurrent: See above.
        queue: See above.
    """

    def __init__(self, concurrent: int, queue: int = QUEUE) -> None:
        self.concurrent = concurrent
        self.queue = queue
        self._taken = 0
        # By whether they come first: by owner, in the order of their next turns.
        self._waiting: tuple[OrderedDict[object, deque[trio.Event]], ...] = (
            OrderedDict(),
            OrderedDict(),
        )
        self._next = True

    @property
    def waiting(self) -> int:
        """The number of those that wait."""
        return sum(len(line) for lines in self._waiting for line in lines.values())

    async def take(self, whose: object, *, first: bool = False) -> None:
        """Wait for a turn, which lasts until `leave`. A checkpoint if there is none at once.

        Cancellation: the place is given up; a turn that has come is passed on.

        Raises:
            QueueFullError: The owner waits for too many already.
        """
        if self._taken < self.concurrent:
            self._taken += 1
            return
        lines = self._waiting[first]
        line = lines.setdefault(whose, deque())
        if len(line) >= self.queue:
            raise QueueFullError
        turn = trio.Event()
        line.append(turn)
        try:
            await turn.wait()
        except BaseException:
            if turn.is_set():
                self.leave()
            else:
                line.remove(turn)
                if not line:
                    del lines[whose]
            raise

    def leave(self) -> None:
        """End a turn; it goes to the next in line."""
        self._next = not self._next
        for lines in (self._waiting[not self._next], self._waiting[self._next]):
            if lines:
                whose, line = lines.popitem(last=False)
                line.popleft().set()
                if line:
                    lines[whose] = line
                return
        self._taken -= 1
