"""Group commit without a clock: what somebody waits for goes on the disk when the loop rests.

While the event loop works, commits gather, and go on the disk together at the store's interval:
what is acknowledged meanwhile is never written. When the loop sleeps for lack of work, nothing more
is to come, and waiting for the interval would only cost time: a publisher with one message in
flight would wait for it with each. So the store is hurried then, and what comes while it writes
goes with the next write. (RabbitMQ's `rabbit_msg_store` syncs when it is idle, too.)

A loop under full load sleeps as well, between two reads, for some microseconds. It rests if one of
its last sleeps was long, or if the present one is.
"""

from __future__ import annotations

import abc
from contextlib import contextmanager, suppress
from time import monotonic
from typing import TYPE_CHECKING, Final

import trio

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

LONG_SECONDS: Final = 0.0001
"""A long sleep: as long as a quick disk takes to sync."""

LAST: Final = 4
"""So many of the last sleeps are looked at. One message has two: for the disk, for the client."""

LOOK_SECONDS: Final = 0.002
"""How long after a commit it is looked whether the loop has slept since; epoll counts in 1 ms."""


class Sleeper(abc.ABC):
    """Sleeps in Trio's place, and tells others of it as Trio would.

    Attributes:
        observers: Those that are told.
        callers: Number of those that may use `call_soon`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.observers: list[trio.abc.Instrument] = []
        self.callers = 0

    @abc.abstractmethod
    def call_soon(self, function: Callable[[], object]) -> None:
        """Have the event loop call `function`, from any thread, while `callers` counts the caller.

        As `TrioToken.run_sync_soon`, without a task of Trio's that has to be scheduled for it.
        """

    def fall_asleep(self, timeout: float) -> None:
        """Tell them that the loop goes to sleep."""
        for observer in self.observers:
            observer.before_io_wait(timeout)

    def wake_up(self, timeout: float) -> None:
        """Tell them that it is awake again."""
        for observer in self.observers:
            observer.after_io_wait(timeout)


SLEEPER: Final = trio.lowlevel.RunVar["Sleeper | None"]("clearfunds sleeper", default=None)
"""Sleeps in this run of Trio; None: Trio does."""


@contextmanager
def calls_from_threads() -> Generator[Callable[[Callable[[], object]], None]]:
    """Yield what has the event loop call a function soon, from any thread, during the block.

    Once Trio's run is over it does nothing.
    """
    sleeper = SLEEPER.get()
    token = trio.lowlevel.current_trio_token()
    call_soon = token.run_sync_soon if sleeper is None else sleeper.call_soon

    def call(function: Callable[[], object]) -> None:
        with suppress(trio.RunFinishedError):
            call_soon(function)

    if sleeper is None:
        yield call
        return
    sleeper.callers += 1
    try:
        yield call
    finally:
        sleeper.callers -= 1


@contextmanager
def _observing(observer: trio.abc.Instrument) -> Generator[None]:
    sleeper = SLEEPER.get()
    if sleeper is None:
        trio.lowlevel.add_instrument(observer)
    else:
        sleeper.observers.append(observer)
    try:
        yield
    finally:
        if sleeper is None:
            trio.lowlevel.remove_instrument(observer)
        else:
            sleeper.observers.remove(observer)


class Rests(trio.abc.Instrument):
    """Calls back in each round of the event loop, and when it rests, while `watch` runs.

    Args:
        commit: Hands over what was written in this round of the event loop, all tasks of which
            have run: no task has to be woken for that.
        hurry: Puts what waits for the disk there, when the loop rests.

    Attributes:
        awaited: Whether something waits for the disk since `hurry` was called last.
    """

    def __init__(self, commit: Callable[[], object], hurry: Callable[[], object]) -> None:
        self._commit = commit
        self._hurry = hurry
        self._token = trio.lowlevel.current_trio_token()
        self._error: Exception | None = None
        self._began: float | None = None
        self._slept = 0.0
        self._short = 0
        self._wanted = trio.Event()
        self.awaited = False

    def before_io_wait(self, timeout: float) -> None:
        """Take in that a round is over, and the loop goes to sleep: see `trio.abc.Instrument`."""
        try:
            self._commit()
        except Exception as exc:  # noqa: BLE001 (`watch` raises it: Trio would go on without us)
            self._error = exc
            self._wake()
            return
        if timeout > 0:
            self._began = monotonic()
            if self.awaited and self._short < LAST:
                self._end_wait()

    def after_io_wait(self, timeout: float) -> None:
        """Take in that it is awake again."""
        del timeout
        if self._began is not None:
            seconds = monotonic() - self._began
            self._began = None
            self._slept += seconds
            self._short = 0 if seconds >= LONG_SECONDS else self._short + 1

    def wait_for_disk(self) -> None:
        """Note that something waits for the disk."""
        if not self.awaited:
            self.awaited = True
            if self._short >= LAST:  # otherwise the next sleep ends the wait
                self._wake()

    def _wake(self) -> None:
        """Have `watch` look, also if the loop is going to sleep right now."""
        self._token.run_sync_soon(self._look)

    def _look(self) -> None:
        self._wanted.set()

    def _end_wait(self) -> None:
        self.awaited = False
        self._hurry()

    async def watch(self) -> None:
        """Watch the sleeps of the event loop until cancelled, also when nothing else happens.

        Raises:
            Exception: From `commit`.
        """
        with _observing(self):
            while True:
                await self._wanted.wait()
                self._wanted = trio.Event()
                while self.awaited and self._error is None:
                    before = self._slept
                    await trio.sleep(LOOK_SECONDS)
                    if self.awaited and self._slept - before >= LOOK_SECONDS / 2:
                        self._end_wait()
                if self._error is not None:
                    raise self._error
