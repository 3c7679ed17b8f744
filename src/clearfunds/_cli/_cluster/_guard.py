"""A process that kills the cluster's processes if the command itself is killed.

SIGKILL cannot be caught, and Linux's parent-death signal is sent at the end of the thread that has
started a process, which under Trio is a worker's. So the guard holds the other end of a pipe, which
closes when the command ends, however it ends.
"""

import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Final

import attrs
import trio

_PROGRAM: Final = Path(__file__).with_name("_guarding.py")


@attrs.define(eq=False)
class Guard:
    """Knows the processes that run; `open_guard` makes it."""

    _stdin: trio.abc.SendStream
    _lock: trio.Lock = attrs.field(factory=trio.Lock)

    async def add(self, pid: int) -> None:
        """Note a process that has started."""
        await self._say(f"+{pid}\n")

    async def remove(self, pid: int) -> None:
        """Note a process that has ended."""
        await self._say(f"-{pid}\n")

    async def _say(self, line: str) -> None:
        async with self._lock:
            # Somebody has killed the guard: the cluster goes on without it.
            with suppress(trio.BrokenResourceError):
                await self._stdin.send_all(line.encode())


@asynccontextmanager
async def open_guard() -> AsyncGenerator[Guard]:
    """Have a guard for the length of a block, in which all of its processes end."""
    async with trio.open_nursery() as nursery:
        process: trio.Process = await nursery.start(
            partial(
                trio.run_process,
                [sys.executable, "-I", "-S", str(_PROGRAM)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                check=False,
                start_new_session=True,
            )
        )
        assert process.stdin is not None
        yield Guard(process.stdin)
        await process.stdin.aclose()
