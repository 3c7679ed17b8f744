"""Long work in short stretches, so that the relay goes on meanwhile.

A stretch is as long as what others did since the one before it, within bounds. A page of two
hundred stretches of a fixed length takes two hundred turns of the loop: half a second while the
relay is quiet, half a minute when many publish and each turn takes 0.1 s: when people want to look.
In this way it takes about twice as long as by itself, and what others do at most twice as long.
"""

from __future__ import annotations

from time import perf_counter, thread_time
from typing import Final

import trio

STRETCH_SECONDS: Final = 0.001
# A fifth of the 5 ms that no page may hold the loop for while there is little else: pages are made
# side by side, and the relay may be slower than the machine this was measured on.

STRETCH_SECONDS_MAX: Final = 0.01
# Of all pages together, in a turn of the loop in which others take as long: a fifth of the 50 ms
# that a message may take then.


class Pace:
    """Tells a long piece of work when to let others go on.

    By time and not by number, because what a step costs depends on the machine and on the ledger.

    Attributes:
        pauses: How often others were let go on. What was read without a pause in between was read
            at one instant.
    """

    __slots__ = ("_began", "_busy", "_others", "_since", "_until", "pauses")

    _all_seconds = 0.0
    """What the stretches of all of them have taken so far."""

    def __init__(self) -> None:
        self.pauses = 0
        self._busy = 0.0
        self._others = 0.0
        self._begin(STRETCH_SECONDS)

    @property
    def busy_seconds(self) -> float:
        """CPU time of all stretches so far, without what others did in the pauses."""
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
        await trio.lowlevel.checkpoint()
        pages = Pace._all_seconds - pages
        others = perf_counter() - now - pages
        # Trio runs what is due in any order: others may come twice in a pause, and not in the next.
        usual = (others + self._others) / 2
        self._others = others
        self._begin(max(STRETCH_SECONDS, min(usual, STRETCH_SECONDS_MAX - pages)))

    def _begin(self, seconds: float) -> None:
        self._began = thread_time()
        self._since = perf_counter()
        self._until = self._since + seconds
