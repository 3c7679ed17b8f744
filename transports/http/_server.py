"""A small HTTP/1.1 server for the relay's own pages: h11 on Trio, in the relay's own loop.

It runs in the relay's loop, and not in a thread beside it, so that a page sees the ledger between
two steps and never in the middle of one.

Rules:

1. A handler's fault is answered 500 and logged; a peer's fault is answered 4xx with a sentence; in
   neither case does anything but that one connection suffer.
2. Whatever a peer can make grow or last has a limit: connections, the size of a head, the time for
   a head, the time between requests, the time to take one piece of an answer.
3. One task a connection, in the server's own nursery, and a second only while an endless answer is
   sent, to notice that the peer has gone; nothing outlives `serve_http`.
4. Only GET and HEAD, and no request has a body: pages are looked at, nothing is changed by them.
"""

from __future__ import annotations

import logging
import socket
from contextlib import suppress
from email.utils import formatdate
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

import attrs
import h11
import trio

from ._messages import Handler, Request, Response

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

log = logging.getLogger("clearfunds.transports.http")

RECEIVE_BYTES: Final = 4096
# One receive. Small, because h11 looks at the size of a head only while it is incomplete: a head
# can be larger than its limit by as much as one receive.

SEND_BYTES: Final = 65536
# One send, and what a reader must take within `HttpLimits.write_seconds`: 64 KiB in 20 s is slower
# than any scraper or browser that is still alive.

STREAM_BUFFER_BYTES: Final = 65536
# What the kernel keeps for a peer of an endless answer (Linux doubles it): some seconds of events.
# It would grow to megabytes otherwise, and who is asleep be noticed only when they are full.

LINGER_SECONDS: Final = 2.0
LINGER_BYTES: Final = 262144
# How long, and for how much, we go on reading after our last word (nginx: lingering_close, 5 s).


@attrs.frozen
class HttpLimits:
    """What one peer, and all of them together, may ask of the server."""

    connections: int = attrs.field(default=64, validator=attrs.validators.ge(1))
    """Connections served at once. As many again are answered 503; those beyond are closed."""
    head_bytes: int = attrs.field(default=16384, validator=attrs.validators.ge(256))
    """Request line and header fields together (h11's own default, as nginx's 4 x 8 KiB)."""
    head_seconds: float = attrs.field(default=10.0, validator=attrs.validators.gt(0))
    """From a connection's opening, or a later request's first byte, to the end of its head."""
    idle_seconds: float = attrs.field(default=75.0, validator=attrs.validators.gt(0))
    """Between requests (nginx's keepalive_timeout; longer than Prometheus's scrape interval)."""
    write_seconds: float = attrs.field(default=20.0, validator=attrs.validators.gt(0))
    """For the peer to take one piece of an answer of at most 64 KiB."""


async def serve_http(
    handlers: Mapping[str, Handler],
    host: str = "127.0.0.1",
    port: int = 0,
    *,
    listeners: Sequence[trio.SocketListener] | None = None,
    limits: HttpLimits | None = None,
    task_status: trio.TaskStatus[list[str]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve pages until cancelled; `await nursery.start(serve_http, ...)` gives their addresses.

    Args:
        handlers: what makes the page at each path. The mapping is looked at for every request, so
            pages may be added while it serves.
        host: the address to listen on; only this machine's own unless told otherwise, because
            nobody is asked for a password.
        port: the port to listen on; 0 for one that is free.
        listeners: sockets that listen already, used instead of `host` and `port`. They are closed
            at the end.
        limits: what peers may ask of the server.
        task_status: is given the URL of each socket, as `http://127.0.0.1:39464`.

    Raises:
        OSError: the address cannot be listened on.

    On cancellation listening stops, handlers are cancelled and all connections are closed at once.
    """
    if listeners is None:
        listeners = await trio.open_tcp_listeners(port, host=host)
    server = _Server(handlers, limits if limits is not None else HttpLimits())
    urls = [_url(listener) for listener in listeners]
    async with trio.open_nursery() as nursery:
        await nursery.start(trio.serve_listeners, server.serve, listeners)
        task_status.started(urls)


def _url(listener: trio.SocketListener) -> str:
    address = listener.socket.getsockname()
    if listener.socket.family == socket.AF_INET6:
        return f"http://[{address[0]}]:{address[1]}"
    if listener.socket.family == socket.AF_INET:
        return f"http://{address[0]}:{address[1]}"
    return f"http+unix://{address}"


class _RefusedError(Exception):
    """A request that is answered with a sentence, after which the connection ends."""

    def __init__(self, status: int, sentence: str, *headers: tuple[str, str]) -> None:
        super().__init__(sentence)
        self.status = status
        self.headers = headers


class _SlowReaderError(Exception):
    """The peer does not take what it asked for."""


@attrs.define
class _Server:
    """What the connections of one server share."""

    handlers: Mapping[str, Handler]
    limits: HttpLimits
    open: int = 0

    async def serve(self, stream: trio.SocketStream) -> None:
        """Serve one connection to its end. Only cancellation comes out of it."""
        session = _Session(stream, self.handlers, self.limits)
        self.open += 1
        try:
            if self.open <= self.limits.connections:
                await session.serve()
            elif self.open <= 2 * self.limits.connections:
                log.warning(
                    "HTTP: more than %d connections at once",
                    self.limits.connections,
                    extra={"event": "refused", "peer": session.peer, "connections": self.open},
                )
                await session.turn_away()
        except _SlowReaderError:
            log.info(
                "HTTP: closed the connection of %s: it took less than %d bytes in %g s",
                session.peer,
                SEND_BYTES,
                self.limits.write_seconds,
                extra={"event": "slow_reader", "peer": session.peer},
            )
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            log.debug("HTTP: %s went away", session.peer)
        except Exception:
            # Rule 1: a fault of ours on one connection must not end the relay.
            log.exception("HTTP: the connection of %s failed", session.peer)
        finally:
            self.open -= 1


class _Session:
    """One connection: reads requests, answers them in order."""

    __slots__ = ("_answered", "_h11", "_handlers", "_limits", "_stream", "peer")

    def __init__(
        self, stream: trio.SocketStream, handlers: Mapping[str, Handler], limits: HttpLimits
    ) -> None:
        self._stream = stream
        self._handlers = handlers
        self._limits = limits
        self._answered = False
        self._h11 = h11.Connection(h11.SERVER, max_incomplete_event_size=limits.head_bytes)
        self.peer = _peer(stream)

    async def serve(self) -> None:
        """Answer requests until either side has had enough."""
        while True:
            try:
                request = await self._next_request()
            except _RefusedError as refusal:
                log.info(
                    "HTTP: refused a request of %s: %s",
                    self.peer,
                    refusal,
                    extra={
                        "event": "request_refused",
                        "peer": self.peer,
                        "status": refusal.status,
                        "reason": str(refusal),
                    },
                )
                await self._end_with(
                    Response.sentence(refusal.status, str(refusal), *refusal.headers)
                )
                return
            if request is None:
                return
            response = await self._handle(request)
            await self._send_response(response, request)
            self._answered = True
            if self._h11.our_state is not h11.DONE or self._h11.their_state is not h11.DONE:
                await self._linger()
                return
            self._h11.start_next_cycle()

    async def turn_away(self) -> None:
        """Say that there are too many connections, and end this one."""
        await self._end_with(
            Response.sentence(503, "Too many connections at once; try again.", ("Retry-After", "1"))
        )

    async def _next_request(self) -> Request | None:
        """Wait for the next request; None if the peer closed, or went quiet between requests.

        Raises:
            _RefusedError: what came is not a request that can be served.
        """
        limits = self._limits
        # Bytes of this request may have come together with the one before it (pipelining).
        begun = bool(self._h11.trailing_data[0])
        patience = limits.head_seconds
        if self._answered and not begun:
            patience = limits.idle_seconds
        with trio.move_on_after(patience) as scope:
            while True:
                try:
                    event = self._h11.next_event()
                    if event is h11.NEED_DATA:
                        data = await self._stream.receive_some(RECEIVE_BYTES)
                        if data and not begun:
                            begun = True
                            if self._answered:
                                scope.deadline = trio.current_time() + limits.head_seconds
                        self._h11.receive_data(data)
                        continue
                    if isinstance(event, h11.Request):
                        return self._check(event)
                except h11.RemoteProtocolError as error:
                    raise self._refusal(error) from error
                return None  # h11.ConnectionClosed: nothing else comes before a request.
        if begun:
            raise _RefusedError(
                408, f"The request's head did not come within {limits.head_seconds:g} seconds."
            )
        return None

    def _refusal(self, error: h11.RemoteProtocolError) -> _RefusedError:
        if error.error_status_hint == HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE:
            return _RefusedError(
                431,
                f"The request line and header fields are larger than {self._limits.head_bytes} "
                "bytes together; send less.",
            )
        return _RefusedError(400, f"This is not an HTTP request: {error}.")

    def _check(self, event: h11.Request) -> Request:
        """Turn a head away that asks for what no page can do, else read its target."""
        method = event.method.decode("ascii")
        if method not in ("GET", "HEAD"):
            raise _RefusedError(
                405,
                f"The method is {method[:20]}; pages can only be looked at, with GET or HEAD.",
                ("Allow", "GET, HEAD"),
            )
        if not isinstance(self._h11.next_event(), h11.EndOfMessage):
            raise _RefusedError(400, "The request has a body; a GET or HEAD request takes none.")
        try:
            return Request.parse(method, event.target.decode("ascii"), tuple(event.headers))
        except ValueError as error:
            raise _RefusedError(400, f"The request's target cannot be read: {error}.") from error

    async def _handle(self, request: Request) -> Response:
        handler = self._handlers.get(request.path)
        if handler is None:
            pages = ", ".join(self._handlers)
            return Response.sentence(
                404, f"There is no page {request.path[:200]!r} here; there are: {pages}."
            )
        try:
            return await handler(request)
        except Exception:
            log.exception("HTTP: the page %s failed", request.path)
            return Response.sentence(500, "This page could not be made; the log says why.")

    async def _send_response(self, response: Response, request: Request | None) -> None:
        """Send an answer; without a request, it is the last one."""
        body = response.body
        bodiless = request is not None and request.method == "HEAD"
        try:
            head = self._head(response, last=request is None or response.endless)
            if isinstance(body, bytes):
                if not bodiless:
                    head += self._frame(h11.Data(data=body))
                await self._send(head + self._frame(h11.EndOfMessage()))
                return
            await self._send(head)
            if response.endless and not bodiless:
                await self._stream_pieces(body)
            elif not bodiless:
                await self._send_pieces(body)
            await self._send(self._frame(h11.EndOfMessage()))
        finally:
            # An async generator that is left half-way is otherwise closed by the garbage
            # collector, at a time of its own choosing.
            aclose = getattr(body, "aclose", None)
            if aclose is not None:
                await aclose()

    def _head(self, response: Response, *, last: bool) -> bytes:
        headers = [
            ("Content-Type", response.content_type),
            ("Cache-Control", "no-store"),
            ("X-Content-Type-Options", "nosniff"),
            ("Date", formatdate(usegmt=True)),
            ("Server", "clearfunds"),
            *response.headers,
        ]
        if isinstance(response.body, bytes):
            headers.append(("Content-Length", str(len(response.body))))
        if last:
            headers.append(("Connection", "close"))
        return self._frame(
            h11.Response(
                status_code=response.status,
                headers=headers,
                reason=HTTPStatus(response.status).phrase.encode("ascii"),
            )
        )

    async def _send_pieces(self, body: AsyncIterator[bytes]) -> None:
        try:
            async for piece in body:
                await self._send(self._frame(h11.Data(data=piece)))
        except (trio.BrokenResourceError, _SlowReaderError):
            raise
        except Exception as error:
            # The status has gone out already. What is left is to leave the last chunk out, by
            # which the peer knows that the page is not whole [RFC 9112 section 8].
            log.exception("HTTP: a page of %s failed half-way", self.peer)
            raise trio.BrokenResourceError from error

    async def _stream_pieces(self, body: AsyncIterator[bytes]) -> None:
        """Send an endless body for as long as the peer is there.

        Raises:
            trio.BrokenResourceError: the peer is gone.
        """
        self._stream.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, STREAM_BUFFER_BYTES)
        gone = False
        failure: Exception | None = None
        async with trio.open_nursery() as nursery:

            async def watch() -> None:
                nonlocal gone
                left = LINGER_BYTES
                with suppress(trio.BrokenResourceError):
                    # Nothing more is asked for on this connection: what comes is not looked at.
                    while left > 0 and (data := await self._stream.receive_some(RECEIVE_BYTES)):
                        left -= len(data)
                gone = True
                nursery.cancel_scope.cancel()

            nursery.start_soon(watch)
            try:
                await self._send_pieces(body)
            except (trio.BrokenResourceError, _SlowReaderError) as error:
                failure = error
            nursery.cancel_scope.cancel()
        # Raised out here, or it would come out as a group of one.
        if failure is not None:
            raise failure
        if gone:
            raise trio.BrokenResourceError

    def _frame(self, event: h11.Response | h11.Data | h11.EndOfMessage) -> bytes:
        return self._h11.send(event) or b""

    async def _send(self, data: bytes) -> None:
        """Send bytes, each 64 KiB of them within `write_seconds`.

        Raises:
            _SlowReaderError: the peer did not take them in time.
            trio.BrokenResourceError: the peer is gone.
        """
        view = memoryview(data)
        for start in range(0, len(view), SEND_BYTES):
            with trio.move_on_after(self._limits.write_seconds) as scope:
                await self._stream.send_all(view[start : start + SEND_BYTES])
            if scope.cancelled_caught:
                raise _SlowReaderError

    async def _end_with(self, response: Response) -> None:
        if self._h11.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            await self._send_response(response, None)
            await self._linger()

    async def _linger(self) -> None:
        """Let the peer read our last answer before the connection goes.

        Closing a socket with unread input makes the kernel send a reset, which destroys what is
        still on its way to the peer [RFC 9112 section 9.6].
        """
        with trio.move_on_after(LINGER_SECONDS):
            await self._stream.send_eof()
            left = LINGER_BYTES
            while left > 0:
                data = await self._stream.receive_some(RECEIVE_BYTES)
                if not data:
                    return
                left -= len(data)


def _peer(stream: trio.SocketStream) -> str:
    try:
        address = stream.socket.getpeername()
    except OSError:
        return "a peer already gone"
    if stream.socket.family in (socket.AF_INET, socket.AF_INET6):
        return f"{address[0]} port {address[1]}"
    return "a local peer"
