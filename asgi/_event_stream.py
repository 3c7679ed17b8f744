"""Server-sent events [HTML standard, section 9.2] for one consumer, as an ASGI application."""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING, Any, Final

import anyio

from ..dataspace import GivenUpError
from ..streams._beside import beside
from ._encoding import once, text_of

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
        beats = _Heartbeats(send, self._heartbeat)

        async def meanwhile() -> None:
            async with beside(beats.run):
                await until_it_leaves(receive)

        try:
            async with beside(meanwhile):
                with self._feed as feed:
                    await send(start)
                    await _send(send, b": open\n\n")  # browsers tell of the connection only then
                    await self._send_events(feed, send, beats)
                    await _send(send, b"", more=False)
        except GivenUpError as error:
            logger.warning("%s", error)
            with anyio.move_on_after(0):  # where the server can take that without waiting
                await _send(send, b"", more=False)
        if self.background is not None:
            await self.background()

    def _encode_event(self, event: Any) -> bytes:
        kind = None if self._event is None else self._event(event)
        return encode_event(self._encode(event), kind)

    async def _send_events(self, feed: Feed[Any], send: Send, beats: _Heartbeats) -> None:
        encode: Callable[[Any], bytes] = self._encode_event
        if self._encode is text_of and self._event is None:
            encode = _usual_event
        async for event in feed:
            data = encode(event)
            if feed.missed:
                data = encode_event(str(feed.missed), "missed") + data
            if beats.sending is not None:
                await beats.sending.wait()
            beats.idle = beats.silent = False
            await _send(send, data)
            beats.idle = True


class _Heartbeats:
    """Sends a comment after some seconds of silence, while nothing else is being sent.

    A timeout for each event would cost as much as the event.
    """

    def __init__(self, send: Send, seconds: float) -> None:
        self._send = send
        self._seconds = seconds
        self.idle = True
        self.silent = False
        self.sending: anyio.Event | None = None

    async def run(self) -> None:
        while True:
            await anyio.sleep(self._seconds)
            if self.idle and self.silent:
                self.sending = anyio.Event()
                await _send(self._send, b":\n\n")
                self.sending.set()
                self.sending = None
            self.silent = True


_usual_event: Final = once(lambda event: encode_event(text_of(event)))


async def _send(send: Send, body: bytes, *, more: bool = True) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": more})


async def until_it_leaves(receive: Receive) -> None:
    """Wait until the client of a request has left."""
    while (await receive())["type"] != "http.disconnect":
        pass
