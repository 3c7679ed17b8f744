"""Turns at something of which there is little, fair by whose they are."""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Final

import trio

QUEUE: Final = 4_096
"""Turns that one may wait for at a time; as many connections as wait to be accepted."""


class QueueFullError(Exception):
    """Somebody waits for too many turns already."""


class FairTurns:
    """So many may have a turn at a time; the others wait, one of each after the other.

    Those that come first have every other turn, as long as there are any: the others go on, too.

    Args:
        at_once: Turns at a time.
        queue: Turns that one may wait for.

    Attributes:
        at_once: See above.
        queue: See above.
    """

    def __init__(self, at_once: int, queue: int = QUEUE) -> None:
        self.at_once = at_once
        self.queue = queue
        self._taken = 0
        # By whether they come first: by whose they are, in the order of their next turns.
        self._waiting: tuple[OrderedDict[object, deque[trio.Event]], ...] = (
            OrderedDict(),
            OrderedDict(),
        )
        self._next = True

    @property
    def waiting(self) -> int:
        """How many wait."""
        return sum(len(line) for lines in self._waiting for line in lines.values())

    async def take(self, whose: object, *, first: bool = False) -> None:
        """Wait for a turn, which lasts until `leave`. A checkpoint if it has to be waited for.

        Cancellation: the place is given up; a turn that has come is passed on.

        Raises:
            QueueFullError: It waits for too many already.
        """
        if self._taken < self.at_once:
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
        """End a turn; it goes to who is next."""
        self._next = not self._next
        for lines in (self._waiting[not self._next], self._waiting[self._next]):
            if lines:
                whose, line = lines.popitem(last=False)
                line.popleft().set()
                if line:
                    lines[whose] = line
                return
        self._taken -= 1
