"""Server-sent events [HTML standard, section 9.2] for one consumer, as an ASGI application."""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING, Any, Final

import anyio

from ..dataspace import GivenUpError
from ..streams._beside import beside
from ._encoding import text_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ..streams import Feed
    from ._types import Receive, Scope, Send

    _Response = object
else:
    try:
        # FastAPI sends on what an endpoint returns as it is only if it is one of these.
        from starlette.responses import Response as _Response
    except ImportError:
        _Response = object

logger = logging.getLogger("clearfunds.asgi")

HEARTBEAT_SECONDS: Final = 15.0
"""Proxies close connections that are silent for longer (nginx: 60 s); as sse-starlette's."""

LINE_END: Final = re.compile(r"\r\n|\r|\n")
"""The ends of lines that this format has, and no others."""


def encode_event(data: str, event: str | None = None) -> bytes:
    """Return one server-sent event; each line of `data` is a field of its own."""
    lines = [] if event is None else [f"event: {event}\n"]
    lines += [f"data: {line}\n" for line in LINE_END.split(data)]
    return ("".join(lines) + "\n").encode()


class EventStream(_Response):
    """An answer that goes on for as long as its consumer stays: return it from an endpoint.

    ::

        @app.get("/events")
        async def events() -> EventStream:
            return EventStream(hub.subscribe("alice", "news/#"))

    Each event counts against its publisher until the server has taken it, which waits for the
    client. A client that is too slow is handled by its feed's policy; what it has missed is told by
    an event `missed`, whose data is their number. A client that has left ends the feed at once.

    Args:
        feed: The feed, not entered.
        encode: Makes the text of an event: by default `text_of`.
        event: Makes the type of an event (`event:`); None: it has none, and is a `message`.
        heartbeat: Seconds of silence after which a comment is sent.
        headers: Further header fields.
    """

    background: Any = None

    def __init__(
        self,
        feed: Feed[Any],
        *,
        encode: Callable[[Any], str] = text_of,
        event: Callable[[Any], str] | None = None,
        heartbeat: float = HEARTBEAT_SECONDS,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.status_code = 200
        self._feed = feed
        self._encode = encode
        self._event = event
        self._heartbeat = heartbeat
        self.raw_headers = [
            (b"content-type", b"text/event-stream; charset=utf-8"),
            (b"cache-control", b"no-cache"),
            # Otherwise nginx would buffer events until it has enough of them.
            (b"x-accel-buffering", b"no"),
            *((name.lower().encode(), value.encode()) for name, value in (headers or {}).items()),
        ]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer. Cancellation ends the feed; the event in hand ends as `cancelled`."""
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        try:
            async with beside(lambda: until_it_leaves(receive)):
                with self._feed as feed:
                    await send(start)
                    await _send(send, b": open\n\n")  # browsers tell of the connection only then
                    await self._send_events(feed, send)
                    await _send(send, b"", more=False)
        except GivenUpError as error:
            logger.warning("%s", error)
            with anyio.move_on_after(0):  # where the server can take that without waiting
                await _send(send, b"", more=False)
        if self.background is not None:
            await self.background()

    async def _send_events(self, feed: Feed[Any], send: Send) -> None:
        events = aiter(feed)
        while True:
            event: Any = None
            with anyio.move_on_after(self._heartbeat) as silence:
                try:
                    event = await anext(events)
                except StopAsyncIteration:
                    return
            if silence.cancelled_caught:
                await _send(send, b":\n\n")
                continue
            data = encode_event(
                self._encode(event), None if self._event is None else self._event(event)
            )
            if feed.missed:
                data = encode_event(str(feed.missed), "missed") + data
            await _send(send, data)


async def _send(send: Send, body: bytes, *, more: bool = True) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": more})


async def until_it_leaves(receive: Receive) -> None:
    """Wait until the client of a request has left."""
    while (await receive())["type"] != "http.disconnect":
        pass
