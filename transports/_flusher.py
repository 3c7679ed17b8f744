"""Who sends: the reader, at the end of its read.

What a read causes is first handed to every outlet that it reaches; then each outlet sends once,
without blocking, straight from the reader's task. A task of an outlet's own exists only while its
connection is blocked. Measured against a writer task for each connection: 0.093 instead of 0.169
CPU seconds per million deliveries pipelined, 8.7 instead of 20 with one message in flight.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from ._outlet import Outlet

OUTLETS_A_STEP = 128
"""How many outlets are sent to before other tasks may run: about a millisecond's worth."""


class Flusher:
    """The outlets that have something to send, and the nursery of those that are blocked.

    Made by `open_flusher`.

    Attributes:
        dirty: Outlets with something unsent, in the order in which they got it.
        nursery: Where blocked outlets' tasks live: never in a publisher's, which ends before them.
    """

    __slots__ = ("_corked", "dirty", "nursery")

    def __init__(self, nursery: trio.Nursery) -> None:
        self.dirty: list[Outlet] = []
        self.nursery = nursery
        self._corked = False

    @contextmanager
    def corked(self) -> Generator[None]:
        """Let turns in the block hand over without sending; call `flush` soon after it.

        There must be no `await` in the block.
        """
        self._corked = True
        try:
            yield
        finally:
            self._corked = False

    def ready(self) -> None:
        """A turn has been committed: send, unless a reader has more to hand over first."""
        if not self._corked:
            self.flush_now()

    def flush_now(self) -> None:
        """Send what can be sent to every outlet that has something, without giving others a turn.

        Never raises: what goes wrong with an outlet's connection ends that connection.
        """
        while self.dirty:
            dirty = self.dirty
            self.dirty = []
            for outlet in dirty:
                outlet.flush()

    async def flush(self) -> None:
        """Send what can be sent; not a checkpoint, unless there are very many outlets.

        Cancellation: everything has been sent or is waiting for its connection afterwards, too.
        """
        if len(self.dirty) <= OUTLETS_A_STEP:
            self.flush_now()
            return
        try:
            while self.dirty:
                step, self.dirty = self.dirty[:OUTLETS_A_STEP], self.dirty[OUTLETS_A_STEP:]
                for outlet in step:
                    outlet.flush()
                await trio.lowlevel.checkpoint()
        finally:
            self.flush_now()


@asynccontextmanager
async def open_flusher() -> AsyncGenerator[Flusher]:
    """Open a flusher for the length of a block; leaving it ends the tasks of blocked outlets."""
    async with trio.open_nursery() as nursery:
        yield Flusher(nursery)
        nursery.cancel_scope.cancel()
