"""A way to NATS that can be cut."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from typing import Final

import trio


class Way:
    """Forwards connections to one port; while it is cut, none, and those that there were end."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._scopes: set[trio.CancelScope] = set()
        self.port = 0
        self.is_cut = False
        self._slow = b""
        self._rate = 0.0
        self._released = trio.Event()

    def slow_down(self, what: bytes, rate: float) -> None:
        """Read so many bytes a second for connections whose client has said `what`."""
        self._slow = what
        self._rate = rate
        self._released = trio.Event()

    def release(self) -> None:
        """Read from all connections as fast as before."""
        self._slow = b""
        self._released.set()

    def cut(self) -> None:
        """Cut it."""
        self.is_cut = True
        for scope in self._scopes:
            scope.cancel()

    def mend(self) -> None:
        """Let connections through again."""
        self.is_cut = False

    async def serve(self, near: trio.SocketStream) -> None:
        """Forward one connection."""
        if self.is_cut:
            return
        with trio.CancelScope() as scope:
            self._scopes.add(scope)
            try:
                far = await trio.open_tcp_stream("127.0.0.1", self._to)
            except OSError:
                return
            async with near, far, trio.open_nursery() as nursery:
                said = bytearray()
                nursery.start_soon(_pump, near, far, said)
                await self._pump_back(far, near, said)
                nursery.cancel_scope.cancel()
        self._scopes.discard(scope)

    async def _pump_back(
        self, source: trio.SocketStream, sink: trio.SocketStream, said: bytearray
    ) -> None:
        try:
            while data := await source.receive_some(SLOW_READ if self._slow else None):
                if self._slow and self._slow in said:
                    with trio.move_on_after(len(data) / self._rate):
                        await self._released.wait()
                await sink.send_all(data)
            await sink.send_eof()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return


SLOW_READ: Final = 4096
SAID: Final = 1_000
"""Bytes of what a client says first."""


async def _pump(source: trio.SocketStream, sink: trio.SocketStream, said: bytearray) -> None:
    try:
        async for data in source:
            said += data[: SAID - len(said)] if len(said) < SAID else b""
            await sink.send_all(data)
        await sink.send_eof()
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        return


@asynccontextmanager
async def ways(*ports: int) -> AsyncGenerator[list[Way]]:
    """Have a way to each port for the length of a block."""
    found = [Way(port) for port in ports]
    async with trio.open_nursery() as nursery:
        for way in found:
            (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
            way.port = listener.socket.getsockname()[1]
            nursery.start_soon(partial(trio.serve_listeners, way.serve, [listener]))
        yield found
        nursery.cancel_scope.cancel()
