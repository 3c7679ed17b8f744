"""Processes that run until they are asked to end.

1. Each process lives in a nursery: when the block of `open_fleet` is left, for whatever reason,
   none of its processes runs any more.
2. Leaving the block normally sends SIGTERM to all of them, and SIGKILL to those that still run when
   the time is over. Leaving it by an exception or a cancellation kills all at once.
3. A process that ends by itself ends the cluster, unless its starter deals with that.
4. If the command is killed by SIGKILL, its guard kills them (`_guard.py`).
5. Each process has a session of its own, so that Ctrl-C in a terminal reaches the command alone,
   which ends them in order.
"""

import signal
import subprocess
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Final

import attrs
import trio

from .._child import Lines, environment
from ._ending import Ending
from ._guard import Guard

_LAST_WORDS: Final = 5
# Lines of stderr for the sentence about a process that has ended by itself.

_WORD_CHARACTERS: Final = 300
# Characters of each of them.


@attrs.define(eq=False)
class Child:
    """A process of the cluster."""

    name: str
    """Its name in the cluster: `relay-1`, `nats-1`."""
    process: trio.Process
    """The process itself."""
    last_words: deque[str] = attrs.field(factory=lambda: deque[str](maxlen=_LAST_WORDS))
    """The last lines that count, for a sentence about its end."""
    ended: trio.Event = attrs.field(factory=trio.Event)
    """Set when it has ended and all of its output has been heard."""

    def remember(self, line: str) -> None:
        """Remember a line for the sentence about its end."""
        self.last_words.append(line[:_WORD_CHARACTERS])

    def epitaph(self) -> str:
        """Return a sentence about its end."""
        words = "; ".join(self.last_words)
        how = _how(self.process.returncode)
        return f"{self.name} (process {self.process.pid}) ended by itself, with {how}" + (
            f": {words}" if words else ""
        )


Hear = Callable[[str], object]
"""Takes a line of a process's stdout."""

Log = Callable[[Child, str], object]
"""Takes a line of a process's stderr."""

AtEnd = Callable[[Child], object]
"""Takes a process that has ended by itself."""


def _how(status: int | None) -> str:
    if status is not None and status < 0:
        try:
            return f"signal {signal.Signals(-status).name}"
        except ValueError:  # A real-time signal has no name.
            return f"signal {-status}"
    return f"exit status {status}"


class Fleet:
    """The processes of one kind; `open_fleet` makes it."""

    def __init__(self, nursery: trio.Nursery, ending: Ending, guard: Guard) -> None:
        self._nursery = nursery
        self._guard = guard
        self._ending = ending
        self._children: list[Child] = []
        self._is_ending = False

    async def start(
        self,
        name: str,
        command: Sequence[str],
        *,
        log: Log,
        hear: Hear = bool,
        env: Mapping[str, str] | None = None,
        at_end: AtEnd | None = None,
    ) -> Child:
        """Start a process.

        Args:
            name: Its name in the cluster.
            command: The program and its arguments.
            log: Is called with each line of stderr.
            hear: Is called with each line of stdout.
            env: Its environment; None: this process's, without options of clearfunds.
            at_end: Is called if it ends by itself; None: the cluster ends then.

        Raises:
            OSError: The program cannot be started.
        """
        child: Child = await self._nursery.start(
            self._run, name, partial(_run_process, command, env or environment()), log, hear, at_end
        )
        return child

    async def _run(
        self,
        name: str,
        run: Callable[..., Awaitable[None]],
        log: Log,
        hear: Hear,
        at_end: AtEnd | None,
        task_status: trio.TaskStatus[Child],
    ) -> None:
        async with trio.open_nursery() as nursery:
            process: trio.Process = await nursery.start(run)
            await self._guard.add(process.pid)
            child = Child(name, process)
            assert process.stdout is not None
            assert process.stderr is not None
            nursery.start_soon(_each_line, process.stdout, hear)
            nursery.start_soon(_each_line, process.stderr, partial(log, child))
            self._children.append(child)
            task_status.started(child)
        await self._guard.remove(child.process.pid)
        self._children.remove(child)
        child.ended.set()
        if self._is_ending:
            return
        if at_end is None:
            self._ending.ask(child.epitaph())
        else:
            at_end(child)

    async def end(self, seconds: float) -> None:
        """Ask all processes to end, and wait for it as long as that."""
        self._is_ending = True
        children = tuple(self._children)
        for child in children:
            child.process.terminate()
        with trio.move_on_after(seconds):
            for child in children:
                await child.ended.wait()


@asynccontextmanager
async def open_fleet(ending: Ending, guard: Guard, seconds: float) -> AsyncGenerator[Fleet]:
    """Have processes for the length of a block; see the rules of this file.

    Args:
        ending: Is asked for when one of them ends by itself.
        guard: Kills them if this process is killed.
        seconds: Time between SIGTERM and SIGKILL.
    """
    async with trio.open_nursery() as nursery:
        fleet = Fleet(nursery, ending, guard)
        yield fleet
        await fleet.end(seconds)
        nursery.cancel_scope.cancel()


async def _run_process(
    command: Sequence[str],
    env: Mapping[str, str],
    *,
    task_status: trio.TaskStatus[trio.Process],
) -> None:
    await trio.run_process(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        check=False,
        start_new_session=True,
        env=env,
        deliver_cancel=_kill,
        task_status=task_status,
    )


async def _kill(process: trio.Process) -> None:
    process.kill()


async def _each_line(stream: trio.abc.ReceiveStream, hear: Hear) -> None:
    lines = Lines(stream)
    while (line := await lines.next()) is not None:
        hear(line)
