"""Busy polling for a moment after each read: latency, bought with CPU time.

A loop that sleeps in the kernel takes time to wake up: in a virtual machine, whose idle core has
been given back, 40 us of the 80 that a message to nine subscribers took (measured, 1,500 a second).
Others use the core meanwhile, and the next message finds its caches empty. So for `seconds` after
each read the loop goes round without sleeping, as the kernel does for sockets with
`net.core.busy_poll`, and a hypervisor with `halt_poll_ns`.

The cost is all of a core while messages come closer together than that.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import trio

from ..transports._link import Link

if TYPE_CHECKING:
    from ..sockets._layer import Connected


class BusyPoll:
    """Keeps the loop awake after each `touch`.

    Args:
        seconds: For how long.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._until = -math.inf
        self._touched = trio.Event()

    def touch(self) -> None:
        """Stay awake for so long from now on."""
        self._until = trio.current_time() + self.seconds
        self._touched.set()

    async def run(self) -> None:
        """Go round as long as something has come lately, then sleep until something comes.

        Cancellation: ends it.
        """
        while True:
            if trio.current_time() < self._until:
                # Trio does not sleep while a task can run, and looks at its sockets in between.
                await trio.lowlevel.checkpoint()
            else:
                self._touched = trio.Event()
                await self._touched.wait()

    def link(self, sock: Connected, peer: str) -> Link:
        """Return a link for an accepted connection whose reads are touches."""
        return _TouchingLink(sock, peer, self)


class _TouchingLink(Link):
    """A link whose reads are touches."""

    __slots__ = ("_busy",)

    def __init__(self, sock: Connected, peer: str, busy: BusyPoll) -> None:
        super().__init__(sock, peer)
        self._busy = busy

    async def receive(self) -> bytes:
        data = await super().receive()
        self._busy.touch()
        return data
