"""asyncio's event loop, for `_loop.py`, which imports this when asyncio runs.

asyncio may cancel a task that has been woken and has not gone on yet, which Trio never does. What
it was woken for would be lost then, so `park` says so.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from ._loop import Event, Loop, TaskLot


class AsyncioLot:
    """Tasks that wait to be woken, in the order in which they came."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()

    def __len__(self) -> int:
        # A cancelled task stays until it goes on.
        return sum([not each.done() for each in self._waiting])

    def __bool__(self) -> bool:
        for each in self._waiting:  # noqa: SIM110 (a generator costs more)
            if not each.done():
                return True
        return False

    async def park(self, lost: Callable[[], object] | None = None) -> None:
        """Wait until woken; see `Lot.park`."""
        mine = asyncio.get_running_loop().create_future()
        self._waiting.append(mine)
        try:
            await mine
        except BaseException:
            if mine in self._waiting:
                self._waiting.remove(mine)
            elif not mine.cancelled():
                if lost is None:
                    self.unpark()
                else:
                    lost()
            raise

    def unpark(self) -> None:
        """Wake the one that has waited for longest."""
        waiting = self._waiting
        while waiting:
            each = waiting.popleft()
            if not each.done():
                each.set_result(None)
                return

    def unpark_all(self, most: int | None = None) -> None:
        """Wake all, or so many of those that have waited for longest."""
        for _ in range(len(self) if most is None else most):
            self.unpark()


class _Asyncio:
    """asyncio's."""

    name = "asyncio"

    def lot(self) -> TaskLot:
        return AsyncioLot()

    def event(self) -> Event:
        return asyncio.Event()

    def token(self) -> object:
        return asyncio.get_running_loop()

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    async def checkpoint(self) -> None:
        await asyncio.sleep(0)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def wait_until(self, event: Event, deadline: float) -> None:
        try:
            async with asyncio.timeout_at(None if math.isinf(deadline) else deadline):
                await event.wait()
        except TimeoutError:
            pass


ASYNCIO: Final[Loop] = _Asyncio()
