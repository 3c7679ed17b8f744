"""Reading in the event loop itself, where a packet alone needs no more than a few microseconds.

A packet that comes alone costs Trio more than it costs its connection: the loop wakes up, takes the
socket out of its set and the task out of its queue, runs it, and puts both back (8 to 10 us of the
18 to 25 that such a message cost; the kernel has most of the rest). So a connection whose last
packet was handled in one short step lends its socket and that step to the reactor. The reactor
waits for all of them in one epoll set, in the place where Trio would go to sleep, reads each that
has something, and runs its step. A task is only woken for what its step does not handle.

Nothing else changes: a step is what the task would have done, with the same checks of funds; a
connection that waits for funds has not lent anything, so that it is not read.

Source: the reactor pattern (Schmidt, 1995). What Trio offers for it: `Instrument.before_io_wait`,
which is called right before the loop sleeps, and `task_scheduled`.
"""

from __future__ import annotations

import os
import select
import sys
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from time import perf_counter
from typing import TYPE_CHECKING, Final

import trio

from ..accounts._loop import ASIDE
from ..persistence._idle import SLEEPER, Sleeper
from ._link import LITTLE_BYTES

if TYPE_CHECKING:
    from ..sockets._layer import Connected
    from ._flusher import Flusher

MOST: Final = 256
"""Sockets that are read before Trio's own are looked at again: about two milliseconds' worth."""

Step = Callable[[bytes], bool | None]
"""Handles what was read. None: it cannot, and has done nothing. Otherwise whether the next read may
follow at once."""


class Lent:
    """A socket that is lent to the reactor, by the task that waits for it to come back.

    Attributes:
        data: What was read and not handled; None if it was handled, and its task is to go on.
        error: The error of reading or handling it.
    """

    __slots__ = ("_recv", "data", "error", "fd", "step", "task")

    def __init__(self, sock: Connected, step: Step) -> None:
        self.fd = sock.fileno()
        self._recv = sock.recv
        self.step = step
        self.task = trio.lowlevel.current_task()
        self.data: bytes | None = None
        self.error: Exception | None = None

    def read(self) -> bool:
        """Read and handle once; False if the socket goes back to its task."""
        try:
            data = self._recv(LITTLE_BYTES)
        except BlockingIOError:
            return True
        except OSError as exc:
            self.error = exc
            return False
        if len(data) == LITTLE_BYTES:
            # More comes with it: its task reads more at once.
            self.data = data
            return False
        try:
            done = self.step(data)
        except Exception as exc:  # noqa: BLE001 (its task raises it)
            self.error = exc
            return False
        if done:
            return True
        if done is None:
            self.data = data
        return False


class Reactor(Sleeper, trio.abc.Instrument):
    """Reads the sockets that are lent to it whenever the event loop has nothing else to do.

    See `open_reactor`.

    Args:
        loop_fd: The file descriptor of Trio's own epoll set.

    Attributes:
        users: The number of blocks that have opened it.
    """

    def __init__(self, loop_fd: int) -> None:
        super().__init__()
        self.users = 0
        self._loop_fd = loop_fd
        self._token = trio.lowlevel.current_trio_token()
        self._epoll = select.epoll()
        self._epoll.register(loop_fd, select.EPOLLIN)
        # Rung by other threads, for the calls that they ask for.
        self._bell: int | None = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll.register(self._bell, select.EPOLLIN)
        self._bell_lock = threading.Lock()
        self._calls: deque[Callable[[], object]] = deque()
        # Those in the epoll set, also while their tasks have them: most come back at once.
        self._watched: dict[int, Connected] = {}
        self._lent: dict[int, Lent] = {}
        self._flushers: list[Flusher] = []
        # The tasks that can run since Trio counted them.
        self._scheduled = 0
        # The time that was over when Trio was woken last, if it was for that; otherwise 0.
        self._was_up = 0.0

    def __repr__(self) -> str:
        return f"<Reactor: {len(self._lent)} sockets>"

    def install(self) -> None:
        """Begin to read."""
        trio.lowlevel.add_instrument(self)
        SLEEPER.set(self)

    def close(self) -> None:
        """End it; nothing is lent any more."""
        SLEEPER.set(None)
        trio.lowlevel.remove_instrument(self)
        self._epoll.close()
        with self._bell_lock:
            if self._bell is not None:
                os.close(self._bell)
                self._bell = None
        self._token.run_sync_soon(self._make_calls)

    async def read(self, sock: Connected, step: Step) -> bytes | None:
        """Let the reactor read `sock` and do `step` with it, until that does not go on.

        Returns:
            What the step could not handle, b"" at the end of the stream; None if it could, and its
            task is to see to the rest.

        Cancellation: nothing is lost.

        Raises:
            OSError: From the socket.
            trio.ClosedResourceError: If it is closed.
            Exception: From the step.
        """
        lent = Lent(sock, step)
        fd = lent.fd
        if self._watched.get(fd) is not sock:
            self._forget(fd)  # one that was closed without a word
            self._epoll.register(fd, select.EPOLLIN)
            self._watched[fd] = sock
        self._lent[fd] = lent

        def take_back(_: Callable[[], object]) -> trio.lowlevel.Abort:
            del self._lent[fd]
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(take_back)
        if lent.error is None:
            return lent.data
        try:
            raise lent.error
        finally:
            lent.error = None  # its traceback leads back here

    @contextmanager
    def gathering(self, flusher: Flusher) -> Generator[None]:
        """Let the sends of one pass over several sockets gather in `flusher` during the block."""
        self._flushers.append(flusher)
        try:
            yield
        finally:
            self._flushers.remove(flusher)

    def closing(self, fd: int) -> None:
        """Note that a socket is going to be closed: its number may mean another one then.

        A task that has lent it gets a `trio.ClosedResourceError`, as one that waits for it would.
        """
        one = self._lent.pop(fd, None)
        if one is not None:
            one.error = trio.ClosedResourceError("this socket has been closed")
            trio.lowlevel.reschedule(one.task)
        self._forget(fd)

    def _forget(self, fd: int) -> None:
        if self._watched.pop(fd, None) is not None:
            with suppress(OSError):  # it has been closed
                self._epoll.unregister(fd)

    def call_soon(self, function: Callable[[], object]) -> None:
        """See `Sleeper.call_soon`."""
        self._calls.append(function)
        with self._bell_lock:  # it may be closed meanwhile, and its number mean something else
            if self._bell is not None:
                os.eventfd_write(self._bell, 1)
                return
        self._token.run_sync_soon(self._make_calls)

    def _make_calls(self) -> None:
        """Make the calls that have been asked for; those that come meanwhile are for later."""
        for _ in range(len(self._calls)):
            function = self._calls.popleft()
            try:
                function()
            except Exception as exc:  # noqa: BLE001 (Trio raises it, as of a call of its own)
                self._token.run_sync_soon(_raise, exc)

    def task_scheduled(self, task: trio.lowlevel.Task) -> None:
        """See `trio.abc.Instrument`."""
        del task
        self._scheduled += 1

    def before_io_wait(self, timeout: float) -> None:
        """Wait and read in Trio's place, until it has something to do. See `trio.abc.Instrument`.

        With no `timeout` there are tasks that can run: only what has come is read.
        """
        self._scheduled = 0
        if timeout <= 0:
            if self._lent or self._calls:
                self._look(0)
            self.fall_asleep(timeout)
            return
        # What is left until a deadline is never the same twice: the whole time is over, and nothing
        # has come of it. Trio waits for a time in which nothing happens (`wait_all_tasks_blocked`),
        # and has to see for itself that nothing does.
        if timeout == self._was_up:
            self._was_up = 0.0
            found = self._look(0)
            if self._scheduled:
                self._token.run_sync_soon(_nothing, idempotent=True)
            if self._scheduled or not found:
                self.fall_asleep(timeout)
                return
        left = timeout
        until = perf_counter() + timeout
        while self._lent or self.callers or self._calls:
            self.fall_asleep(left)
            trio_is_ready = self._look(left) is None
            self.wake_up(left)
            if trio_is_ready:
                return
            left = until - perf_counter()
            if self._scheduled or left <= 0:
                self._was_up = 0.0 if self._scheduled else timeout
                # Trio knows nothing of it, and would sleep as long as it meant to.
                self._token.run_sync_soon(_nothing, idempotent=True)
                return
        self.fall_asleep(left)

    def after_io_wait(self, timeout: float) -> None:
        """See `trio.abc.Instrument`."""
        self.wake_up(timeout)

    def _look(self, timeout: float) -> int | None:
        """Wait until something comes, and read it; how much has. None: Trio has something to do."""
        found = self._epoll.poll(timeout, MOST)
        ASIDE.here = True
        try:
            return self._read_all(found) if len(found) == 1 else self._read_in_a_pass(found)
        finally:
            ASIDE.here = False

    def _read_in_a_pass(self, found: list[tuple[int, int]]) -> int | None:
        for flusher in self._flushers:
            flusher.begin_pass()
        try:
            return self._read_all(found)
        finally:
            for flusher in self._flushers:
                flusher.end_pass()

    def _read_all(self, found: list[tuple[int, int]]) -> int | None:
        trio_is_ready = False
        lent = self._lent
        for fd, _ in found:
            one = lent.get(fd)
            if one is not None:
                # Its step may have cancelled its task, which has taken it back then.
                if not one.read() and lent.get(fd) is one:
                    del lent[fd]
                    trio.lowlevel.reschedule(one.task)
            elif fd == self._loop_fd:
                trio_is_ready = True
            elif fd == self._bell:
                os.eventfd_read(fd)
                self._make_calls()
            else:
                self._forget(fd)  # its task has it, and has not read it yet
        return None if trio_is_ready else len(found)


def _raise(exc: Exception) -> None:
    """Raise an exception in Trio's own task, which ends everything."""
    raise exc


def _nothing() -> None:
    """Do nothing, but have Trio come round."""


def _epoll_with(fd: int) -> int | None:
    """Return the epoll set of this process that `fd` is in; None if it cannot be found."""
    wanted = str(fd)
    for name in os.listdir("/proc/self/fdinfo"):
        try:
            with open(f"/proc/self/fdinfo/{name}", encoding="ascii") as info:
                watched = [line[4:].split()[0] for line in info if line.startswith("tfd:")]
        except OSError:
            continue  # the directory's own
        if wanted in watched:
            return int(name)
    return None


async def _fd_of_loop() -> int | None:
    """Return the file descriptor of the epoll set that Trio waits with; None if there is none."""
    if sys.platform != "linux":
        return None
    reading, writing = os.pipe()
    try:
        found: int | None = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.lowlevel.wait_readable, reading)
            # The other task has run after two: within one, the order of tasks is random.
            for _ in range(2):
                await trio.lowlevel.checkpoint()
            found = _epoll_with(reading)
            nursery.cancel_scope.cancel()
        return found
    except OSError:
        return None
    finally:
        os.close(reading)
        os.close(writing)


_REACTOR: Final = trio.lowlevel.RunVar["Reactor | None"]("clearfunds reactor", default=None)
"""The one of this run of Trio: two would sleep one after the other."""


@asynccontextmanager
async def open_reactor() -> AsyncGenerator[Reactor | None]:
    """Open a reactor for the length of a block; within it, the blocks in it share it.

    It is None where Trio does not wait with epoll.
    """
    reactor = _REACTOR.get()
    if reactor is None:
        loop_fd = await _fd_of_loop()
        if loop_fd is None:
            yield None
            return
        reactor = Reactor(loop_fd)
        reactor.install()
        _REACTOR.set(reactor)
    reactor.users += 1
    try:
        yield reactor
    finally:
        reactor.users -= 1
        if not reactor.users:
            _REACTOR.set(None)
            reactor.close()
