"""Long work in short stretches, so that the relay continues meanwhile.

A stretch is as long as other tasks took since the one before it, within bounds. A page of two
hundred stretches of a fixed length takes two hundred turns of the loop: half a second while the
relay is quiet, half a minute when many clients publish and each turn takes 0.1 s: just when people
want to look. In this way a page takes about twice its own time, and other work at most twice.
"""

from __future__ import annotations

from time import perf_counter, thread_time
from typing import TYPE_CHECKING, Final, TypeVar

from ..accounts._loop import checkpoint

if TYPE_CHECKING:
    from collections.abc import Generator

T = TypeVar("T")

STRETCH_SECONDS: Final = 0.001
# A fifth of the 5 ms for which a page may hold the loop when there is little else: several pages
# run at once, and the relay may be slower than the machine this was measured on.

STRETCH_SECONDS_MAX: Final = 0.01
# Of all pages together, in a turn of the loop in which other tasks take as long: a fifth of the
# 50 ms that a message may take then.


class Pace:
    """Tells a long piece of work when to let other tasks run.

    By time and not by number, because the cost of a step depends on the machine and the ledger.

    Attributes:
        pauses: The number of pauses. Everything read between two pauses was read at one instant.
    """

    __slots__ = ("_began", "_busy", "_others", "_since", "_until", "pauses")

    _all_seconds = 0.0
    """The total time of stretches so far, of all of these objects."""

    def __init__(self) -> None:
        self.pauses = 0
        self._busy = 0.0
        self._others = 0.0
        self._begin(STRETCH_SECONDS)

    @property
    def busy_seconds(self) -> float:
        """CPU time of all stretches so far, without other tasks in the pauses."""
        return self._busy + thread_time() - self._began

    async def breathe(self) -> None:
        """Execute a checkpoint if the present stretch is over; otherwise return at once."""
        if perf_counter() >= self._until:
            await self.pause()

    async def pause(self) -> None:
        """Execute a checkpoint and begin a new stretch."""
        self.pauses += 1
        self._busy += thread_time() - self._began
        now = perf_counter()
        Pace._all_seconds += now - self._since
        pages = Pace._all_seconds
        await checkpoint()
        pages = Pace._all_seconds - pages
        others = perf_counter() - now - pages
        # Trio runs due tasks in any order: others may run twice in a pause, and not in the next.
        usual = (others + self._others) / 2
        self._others = others
        self._begin(max(STRETCH_SECONDS, min(usual, STRETCH_SECONDS_MAX - pages)))

    def _begin(self, seconds: float) -> None:
        self._began = thread_time()
        self._since = perf_counter()
        self._until = self._since + seconds


async def run_paced(steps: Generator[None, None, T], pace: Pace) -> T:
    """Do work that yields where other tasks may run, and return its result.

    On cancellation the work is left half done.
    """
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: T = end.value
            return found
        await pace.breathe()
