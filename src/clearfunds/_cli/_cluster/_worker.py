"""One worker of `clearfunds relay --workers`: its process, its log, and its state."""

import json
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import Final

import attrs
import trio

from .._child import Announcement
from .._printable import printable
from ._fleet import AtEnd, Child, Fleet
from ._relays import Member
from ._restarts import Restarting

_PAUSE_SECONDS: Final = 0.05

_UNINTERESTING: Final = ("Z INFO ", "Z DEBUG ", '"level": "INFO"', '"level": "DEBUG"')
# In log lines that explain no end.


@attrs.define(eq=False)
class Worker(Member):
    """A relay that shares its listeners with others of its kind."""

    command: Sequence[str] = ()
    """The command that runs it."""
    processes: Restarting = attrs.field(init=False)
    """Its process, and those that it had before."""
    _hangs_up: bool = attrs.field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        self.processes = Restarting(self.name)

    async def start(self, fleet: Fleet, env: Mapping[str, str], at_end: AtEnd) -> Child:
        """Start it; the arguments and errors are those of `Fleet.start`."""

        def ended(child: Child) -> None:
            self.addresses = Announcement()
            at_end(child)

        return await fleet.start(
            self.name, self.command, log=self.log, hear=self._hear, env=env, at_end=ended
        )

    def _hear(self, line: str) -> None:
        self.addresses.take(line)
        self.processes.has_started |= self.addresses.is_ready

    def log(self, child: Child, line: str) -> None:
        """Take a line of its log, and print it with the worker's name."""
        if not any(each in line for each in _UNINTERESTING):
            child.remember(line)
        if line.startswith('{"'):
            text = f'{{"worker": {json.dumps(self.name)}, {line[1:]}'
        else:
            text = f"{self.name}: {line}"
        print(printable(text), file=sys.stderr, flush=True)

    async def until_ready(self) -> None:
        """Wait until it takes connections."""
        while not self.addresses.is_ready:  # noqa: ASYNC110
            await trio.sleep(_PAUSE_SECONDS)

    async def hang_up(self) -> None:
        """Send it SIGHUP once it is ready; several times before that are one."""
        if self._hangs_up:
            return
        self._hangs_up = True
        try:
            await self.until_ready()
        finally:
            self._hangs_up = False
        if self.processes.child is not None:
            self.processes.child.process.send_signal(signal.SIGHUP)
