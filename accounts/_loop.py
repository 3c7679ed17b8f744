"""The running event loop, Trio's or asyncio's: as much of it as the engine needs.

Theory of operation. The engine starts no tasks: it lets tasks wait, wakes them, and asks for the
time. `running()` says which library runs the task that asks; its answer is an object without
state, one for each library. Whatever tasks wait in (`Lot`, and the events that `Loop.event` makes)
belongs to one loop. A `Lot` may be made where no loop runs: it belongs to the loop of those that
wait in it.

asyncio is never imported here: where nobody has imported it, it does not run. All that is of it is
in `_asyncio_loop.py`.
"""

from __future__ import annotations

import sys
import threading
from functools import cache
from typing import TYPE_CHECKING, Any, Final, Protocol

import trio

from ._errors import NoLoopError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


class Event(Protocol):
    """What `trio.Event` and `asyncio.Event` have in common."""

    def set(self) -> object:
        """Wake those that wait."""
        ...

    def is_set(self) -> bool:
        """Whether it was called."""
        ...

    async def wait(self) -> object:
        """Wait until it is."""
        ...


class TaskLot(Protocol):
    """Tasks of one loop that wait to be woken, in the order in which they came.

    `park` is no coroutine itself where that can be helped: each one between a task and what it
    waits for costs at each wake-up.
    """

    def __len__(self) -> int: ...

    def park(self, lost: Callable[[], object] | None = None) -> Awaitable[None]:
        """Wait until woken; see `Lot.park`."""
        ...

    def unpark(self) -> None:
        """Wake the one that has waited for longest."""
        ...

    def unpark_all(self, most: int | None = None) -> None:
        """Wake all, or so many of those that have waited for longest."""
        ...


class Loop(Protocol):
    """One library's event loop."""

    name: str

    def lot(self) -> TaskLot:
        """Return a lot for tasks of this loop."""
        ...

    def event(self) -> Event:
        """Return an event for tasks of this loop."""
        ...

    def token(self) -> object:
        """Return the running loop itself, to tell one from another."""
        ...

    def now(self) -> float:
        """Return the time in seconds on the loop's clock."""
        ...

    async def checkpoint(self) -> None:
        """Let other tasks run, and be cancelled if that was asked for."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Sleep for so long."""
        ...

    async def wait_until(self, event: Event, deadline: float) -> None:
        """Wait for an event until `deadline` at the latest, on the loop's clock."""
        ...


class _TrioLot:
    """Trio's: it cancels no task that has been woken already, so nothing is lost."""

    __slots__ = ("_lot",)

    def __init__(self) -> None:
        self._lot = trio.lowlevel.ParkingLot()

    def __len__(self) -> int:
        return len(self._lot)

    def park(self, lost: Callable[[], object] | None = None) -> Awaitable[None]:
        del lost
        return self._lot.park()

    def unpark(self) -> None:
        self._lot.unpark()

    def unpark_all(self, most: int | None = None) -> None:
        self._lot.unpark(count=len(self._lot) if most is None else most)


class _Trio:
    """Trio's."""

    name = "Trio"

    def lot(self) -> TaskLot:
        return _TrioLot()

    def event(self) -> Event:
        return trio.Event()

    def token(self) -> object:
        return trio.lowlevel.current_trio_token()

    def now(self) -> float:
        return trio.current_time()

    async def checkpoint(self) -> None:
        await trio.lowlevel.checkpoint()

    async def sleep(self, seconds: float) -> None:
        await trio.sleep(seconds)

    async def wait_until(self, event: Event, deadline: float) -> None:
        with trio.move_on_at(deadline):
            await event.wait()


TRIO: Final[Loop] = _Trio()


@cache
def asyncio_loop() -> Loop:
    """Return asyncio's, where that has been imported."""
    from ._asyncio_loop import ASYNCIO

    return ASYNCIO


def running() -> Loop:
    """Return the loop that runs this task, or this callback.

    Raises:
        NoLoopError: None does.
    """
    loop: object = None
    asyncio: Any = sys.modules.get("asyncio")
    if asyncio is not None:
        loop = asyncio._get_running_loop()
        # Nothing of Trio runs inside a task of asyncio, not even where asyncio is its host. To ask
        # Trio first costs three times as much: it looks for an attribute that is not there.
        if loop is not None and asyncio.current_task(loop) is not None:
            return asyncio_loop()
    if trio.lowlevel.in_trio_task():
        return TRIO
    if loop is not None:
        return asyncio_loop()
    if trio.lowlevel.in_trio_run():
        return TRIO
    msg = "waiting for clear funds needs a running event loop: trio.run(...) or asyncio.run(...)"
    raise NoLoopError(msg)


def task_of_asyncio() -> object:
    """Return the current task of asyncio; None in a callback.

    Raises:
        RuntimeError: asyncio does not run.
    """
    asyncio: Any = sys.modules.get("asyncio")
    if asyncio is None:
        raise RuntimeError
    return asyncio.current_task()


class _Aside(threading.local):
    """Whether this thread runs beside all tasks, as callbacks do.

    To find that out by asking takes 3 us: both libraries raise. So a loop that calls many says it.
    """

    here = False


ASIDE: Final = _Aside()

TASKS: Final[tuple[Callable[[], object], ...]] = (trio.lowlevel.current_task, task_of_asyncio)
"""The ways to ask for the current task; RuntimeError where their library does not run."""


def is_cancellation(exc: BaseException) -> bool:
    """Whether an exception means that its task was cancelled."""
    if isinstance(exc, trio.Cancelled):
        return True
    asyncio: Any = sys.modules.get("asyncio")
    return asyncio is not None and isinstance(exc, asyncio.CancelledError)


async def checkpoint() -> None:
    """Let other tasks of the running loop run."""
    await running().checkpoint()


async def sleep(seconds: float) -> None:
    """Sleep in the running loop."""
    await running().sleep(seconds)


def now() -> float:
    """Return the time in seconds on the running loop's clock."""
    return running().now()


async def sleep_until(deadline: float) -> None:
    """Sleep until `deadline` on the running loop's clock; a checkpoint, too, if that is over."""
    loop = running()
    await loop.sleep(max(0.0, deadline - loop.now()))


class Lot:
    """Tasks that wait to be woken, in the order in which they came, in whichever loop they run."""

    __slots__ = ("_loop", "_lot")

    def __init__(self) -> None:
        self._lot: TaskLot | None = None
        self._loop: Loop | None = None

    def __len__(self) -> int:
        return 0 if self._lot is None else len(self._lot)

    def __bool__(self) -> bool:
        return bool(self._lot)

    def park(self, lost: Callable[[], object] | None = None) -> Awaitable[None]:
        """Wait until woken.

        Args:
            lost: Called if this task is cancelled after it was woken and before it went on, which
                asyncio allows; by default the next task is woken in its place.
        """
        loop = running()
        lot = self._lot
        if lot is None or (loop is not self._loop and not lot):
            # Nobody waits: the next ones may be of the other library.
            lot = self._lot = loop.lot()
            self._loop = loop
        return lot.park(lost)

    def unpark(self) -> None:
        """Wake the one that has waited for longest."""
        if self._lot is not None:
            self._lot.unpark()

    def unpark_all(self, most: int | None = None) -> None:
        """Wake all, or so many of those that have waited for longest."""
        if self._lot is not None:
            self._lot.unpark_all(most)


class Lock:
    """Lets one task in at a time, in the order in which they came, in whichever loop they run."""

    __slots__ = ("_lot", "_taken")

    def __init__(self) -> None:
        self._lot = Lot()
        self._taken = False

    async def __aenter__(self) -> None:
        if self._taken:
            await self._lot.park(self._pass_on)
        self._taken = True

    async def __aexit__(self, *exc_info: object) -> None:
        self._pass_on()

    def _pass_on(self) -> None:
        if self._lot:
            self._lot.unpark()  # it is the next one's from here on
        else:
            self._taken = False
