"""A relay as a child process: started, read through its lines of JSON, ended."""

import signal
import subprocess
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Final

import attrs
import trio

from .._child import Announcement, Lines, environment, relay_command
from .._errors import CommandFailedError

_START_SECONDS: Final = 30
# A cold start of the interpreter on a small machine takes two.

_STDERR_LINES: Final = 20
# Log lines that are kept for an error message.


@attrs.define
class RelayProcess:
    """A relay that is ready."""

    pid: int
    """Its process id."""
    mqtt: str
    """The URL of its listener, as `mqtt+tcp://127.0.0.1:41883`."""
    http: str
    """The URL of its pages, as `http://127.0.0.1:39464`."""
    log: Sequence[str] = ()
    """The last lines of its log so far."""
    status: int | None = None
    """Its exit status, once the block has ended."""


@asynccontextmanager
async def relay_process(
    options: Sequence[str], *, grace: float = 5.0
) -> AsyncGenerator[RelayProcess]:
    """Run `clearfunds relay` with `options` on free ports, for the length of the block.

    At the end of the block it gets SIGTERM, and SIGKILL if it still runs after twice its grace. On
    cancellation it is killed.

    Raises:
        CommandFailedError: It did not get ready, or ended while the block ran.
    """
    own = ["--listen", "mqtt+tcp://127.0.0.1:0", "--http", "127.0.0.1:0", "--grace", f"{grace:g}"]
    last_words: deque[str] = deque(maxlen=_STDERR_LINES)
    async with trio.open_nursery() as nursery:
        process: trio.Process = await nursery.start(
            partial(
                trio.run_process,
                relay_command([*own, *options]),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                stdin=subprocess.DEVNULL,
                check=False,
                env=environment(),
            )
        )
        assert process.stdout is not None
        assert process.stderr is not None
        nursery.start_soon(_collect, process.stderr, last_words)
        relay = None
        with trio.move_on_after(_START_SECONDS):
            relay = await _read_addresses(process)
        if relay is None:
            process.kill()
            await process.wait()
            words = "\n".join(last_words) or "it said nothing"
            msg = f"the relay did not get ready: {words}"
            raise CommandFailedError(msg)
        relay.log = last_words
        yield relay
        process.send_signal(signal.SIGTERM)
        with trio.move_on_after(2 * grace + 5):
            await process.wait()
        if process.returncode is None:
            process.kill()
        relay.status = await process.wait()


async def _read_addresses(process: trio.Process) -> RelayProcess | None:
    """Read the lines up to `ready`; None if they end before."""
    assert process.stdout is not None
    lines, said = Lines(process.stdout), Announcement()
    while (line := await lines.next()) is not None:
        said.take(line)
        if said.is_ready:
            return RelayProcess(process.pid, said.mqtt, said.http)
    return None


async def _collect(stream: trio.abc.ReceiveStream, last_words: deque[str]) -> None:
    lines = Lines(stream)
    while (line := await lines.next()) is not None:
        last_words.append(line)
