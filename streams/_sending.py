"""Ways to send bytes to a stream and wait until it has taken them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, cast

Sink = Any
"""An `asyncio.StreamWriter`, a Trio or anyio stream, or an asynchronous function that takes bytes.
Not one type: none of these three libraries is imported for it."""


def sender_of(sink: Sink) -> Callable[[bytes], Awaitable[object]]:
    """Return a function that sends bytes and returns when the kernel has taken them all.

    An `asyncio.StreamWriter` says that it is drained while it still has up to 64 KiB: from here on
    it keeps nothing.

    Raises:
        TypeError: If nothing can be sent to it.
    """
    if hasattr(sink, "drain") and hasattr(sink, "write"):
        sink.transport.set_write_buffer_limits(high=0)

        async def send(data: bytes) -> None:
            sink.write(data)
            await sink.drain()

        return send
    by_name = getattr(sink, "send_all", None) or getattr(sink, "send", sink)
    if callable(by_name):
        return cast("Callable[[bytes], Awaitable[object]]", by_name)
    msg = (
        f"cannot send to {sink!r}; give an asyncio.StreamWriter, a Trio or anyio stream, or an "
        "asynchronous function that takes bytes"
    )
    raise TypeError(msg)
