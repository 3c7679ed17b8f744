"""A small HTTP/1.1 server for the relay's own pages: h11 on Trio, in the relay's own loop.

It runs in the relay's loop, not in a thread, so that a page sees the ledger between two steps and
never in the middle of one.

Rules:

1. A handler's exception is answered 500 and logged; a peer's fault is answered 4xx with a sentence;
   in both cases only that one connection suffers.
2. Everything that a peer can make grow or last has a limit: connections, concurrent requests, the
   size of a head, the time for a head, the time between requests, the time to take one piece of an
   answer and all of it. One connection too many is still served, and a waiting one is closed for
   it (`_room.py`): pages for everybody are always available.
3. One task a connection, in the server's own nursery, and a second only while an endless answer is
   sent, to notice that the peer has gone; nothing outlives `serve_http`.
4. Pages are looked at with GET and HEAD, which have no body. POST and PATCH change something: they
   need a token as `Bearer`, and have a body of at most `HttpLimits.body_bytes`.
"""

from __future__ import annotations

import errno
import logging
import math
import os
import select
import socket
import ssl
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager, suppress
from email.utils import formatdate
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

import attrs
import h11
import trio

from ..access._addresses import network
from ..sockets import said
from ._access import NOBODY, Access
from ._looks import A_CHANGE, NO_PAGE, Look, Looks
from ._messages import CHANGING, LOOKING, Action, Handler, Operator, Request, Response
from ._room import Room, Waits

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from ..sockets import ServerTls

log = logging.getLogger("clearfunds.pages")

RECEIVE_BYTES: Final = 4096
# One receive. Small, because h11 checks the size of a head only while it is incomplete: a head can
# exceed its limit by as much as one receive.

SEND_BYTES: Final = 65536
# One send, and what a reader must take within `HttpLimits.write_seconds`: 64 KiB in 20 s is slower
# than any live scraper or browser.

STREAM_BUFFER_BYTES: Final = 65536
# The kernel's buffer for a peer of an endless answer (Linux doubles it): some seconds of events.
# It would grow to megabytes otherwise, and a sleeping peer be noticed only when they are full.

LINGER_SECONDS: Final = 2.0
LINGER_BYTES: Final = 262144
# Limits on reading after the last output (nginx: lingering_close, 5 s).

ACCEPTS_A_STEP: Final = 16
# Connections accepted before other tasks may run. One at a time would make a probe wait for two
# hundred turns of a busy loop, if as many connections are before it.

ACCEPT_PAUSE_SECONDS: Final = 0.1
# Pause when there is no descriptor left to accept with, as in `trio.serve_listeners`.

CROWDED_SECONDS: Final = 10.0
# Between two log lines about connections closed for others.


@attrs.frozen
class HttpLimits:
    """Limits on one peer, and on all of them together."""

    connections: int = attrs.field(default=128, validator=attrs.validators.ge(1))
    """Concurrent connections. For one more, a connection that waits for its peer is closed."""
    requests: int = attrs.field(default=64, validator=attrs.validators.ge(1))
    """Concurrent requests; others are answered 503, except those for pages for everybody
    (`Access.open_pages`)."""
    head_bytes: int = attrs.field(default=16384, validator=attrs.validators.ge(256))
    """Request line and header fields together (h11's own default, as nginx's 4 x 8 KiB)."""
    body_bytes: int = attrs.field(default=16384, validator=attrs.validators.ge(0))
    """The body of a request that changes something (a JSON object with a handful of fields)."""
    head_seconds: float = attrs.field(default=10.0, validator=attrs.validators.gt(0))
    """From a connection's opening, or a later request's first byte, to the end of its head, and of
    its body."""
    idle_seconds: float = attrs.field(default=75.0, validator=attrs.validators.gt(0))
    """Between requests (nginx's keepalive_timeout; longer than Prometheus's scrape interval)."""
    write_seconds: float = attrs.field(default=20.0, validator=attrs.validators.gt(0))
    """For the peer to take one piece of an answer, of at most 64 KiB."""
    page_seconds: float = attrs.field(default=60.0, validator=attrs.validators.gt(0))
    """For all of an answer that has an end."""


async def serve_http(
    handlers: Mapping[str, Handler],
    host: str = "127.0.0.1",
    port: int = 0,
    *,
    listeners: Sequence[trio.SocketListener] | None = None,
    limits: HttpLimits | None = None,
    access: Access | None = None,
    actions: Action | None = None,
    tls: ServerTls | None = None,
    task_status: trio.TaskStatus[list[str]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve pages until cancelled; `await nursery.start(serve_http, ...)` gives their addresses.

    Args:
        handlers: makes the page at each path. The mapping is read for every request, so pages may
            be added while it serves.
        host: the address to listen on; by default only this machine's own.
        port: the port to listen on; 0 for a free one.
        listeners: listening sockets, used instead of `host` and `port`. They are closed at the
            end.
        limits: limits on peers.
        access: authentication, and allowed host names; None: everybody may look.
        actions: carries out requests that change something; None: nothing can be changed.
        tls: the TLS context for connections; None: no encryption. No certificate is asked for.
        task_status: is given the URL of each socket, as `http://127.0.0.1:39464`.

    Raises:
        OSError: the address cannot be listened on.

    On cancellation listening stops, handlers are cancelled and all connections are closed at once.
    """
    if listeners is None:
        listeners = await trio.open_tcp_listeners(port, host=host)
    chosen = limits if limits is not None else HttpLimits()
    server = _Server(handlers, chosen, access, tls, actions)
    urls = [_url(listener, secure=tls is not None) for listener in listeners]
    try:
        async with trio.open_nursery() as nursery:
            for listener in listeners:
                nursery.start_soon(_accept, listener, server.serve, nursery)
            task_status.started(urls)
    finally:
        for listener in listeners:
            listener.socket.close()


async def _accept(
    listener: trio.SocketListener,
    serve: Callable[[trio.SocketStream], Awaitable[object]],
    nursery: trio.Nursery,
) -> None:
    """Accept until cancelled, all waiting connections at once."""
    # Trio's own accept() takes one in each turn of the loop.
    with socket.socket(fileno=os.dup(listener.socket.fileno())) as sock:
        sock.setblocking(False)
        while True:
            await trio.lowlevel.wait_readable(sock)
            for _ in range(ACCEPTS_A_STEP):
                try:
                    accepted, _ = sock.accept()
                except BlockingIOError:
                    break
                except OSError as error:
                    # Any other error concerns only a connection that has already gone.
                    if error.errno in _SHORT_OF:
                        await trio.sleep(ACCEPT_PAUSE_SECONDS)
                    break
                accepted.setblocking(False)
                stream = trio.SocketStream(trio.socket.from_stdlib_socket(accepted))
                nursery.start_soon(serve, stream)


_SHORT_OF: Final = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS)


def _url(listener: trio.SocketListener, *, secure: bool) -> str:
    address = listener.socket.getsockname()
    scheme = "https" if secure else "http"
    if listener.socket.family == socket.AF_INET6:
        return f"{scheme}://[{address[0]}]:{address[1]}"
    if listener.socket.family == socket.AF_INET:
        return f"{scheme}://{address[0]}:{address[1]}"
    return f"{scheme}+unix://{address}"


_NEEDS_TOKENS: Final = Response.sentence(
    403, "Nothing can be changed here without a token: start the relay with --http-token FILE."
)


class _RefusedError(Exception):
    """The request is answered with a sentence, and then the connection ends."""

    def __init__(self, status: int, sentence: str, *headers: tuple[str, str]) -> None:
        super().__init__(sentence)
        self.status = status
        self.headers = headers


class _SlowReaderError(Exception):
    """The peer does not take its answer; the message describes that."""


class _Server:
    """The state that the connections of one server share."""

    def __init__(
        self,
        handlers: Mapping[str, Handler],
        limits: HttpLimits,
        access: Access | None,
        tls: ServerTls | None,
        actions: Action | None,
    ) -> None:
        self.handlers = handlers
        self.actions = actions
        self.limits = limits
        self.access = access
        self.tls = tls
        self.looks = Looks()
        self.room = Room(limits.connections)
        self.requests = 0
        self._crowded_at = -CROWDED_SECONDS

    async def serve(self, stream: trio.SocketStream) -> None:
        """Serve one connection to its end. Raises nothing but cancellation."""
        session = _Session(stream, self)
        closed = self.room.closed
        try:
            entered = self.room.enter(session)
            if not entered or self.room.closed > closed:
                self._note_crowd(session.peer)
            if entered:
                with session.scope:
                    await session.serve()
        except _SlowReaderError as error:
            log.info(
                "HTTP: closed the connection of %s: it %s",
                session.peer,
                error,
                extra={"event": "slow_reader", "peer": session.peer},
            )
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            log.debug("HTTP: %s went away", session.peer)
        except Exception:
            # Rule 1: an internal error on one connection must not end the relay.
            log.exception("HTTP: the connection of %s failed", session.peer)
        finally:
            self.room.leave(session)
            await trio.aclose_forcefully(stream)

    def _note_crowd(self, peer: str) -> None:
        now = trio.current_time()
        if now - self._crowded_at >= CROWDED_SECONDS:
            self._crowded_at = now
            log.warning(
                "HTTP: more than %d connections at once, the last from %s; those that have waited "
                "for longest are closed",
                self.limits.connections,
                peer,
                extra={"event": "refused", "peer": peer, "connections": len(self.room)},
            )

    async def answer(self, request: Request, address: str, peer: str) -> tuple[str, Response]:
        """Return the user who sends a request, and the answer."""
        access = self.access
        changes = request.method in CHANGING
        if access is not None and request.path in access.open_pages and not changes:
            return NOBODY, await self._page(request)
        if self.requests >= self.limits.requests:
            sentence = "Too many requests at once; try again."
            return NOBODY, Response.sentence(503, sentence, ("Retry-After", "1"))
        self.requests += 1
        try:
            user = NOBODY
            if access is not None:
                verdict = await access.judge(request, address)
                user = verdict.user
                if verdict.refusal is not None:
                    return user, verdict.refusal
                if changes:
                    return user, await self._act(request, verdict.token, peer)
            return user, _NEEDS_TOKENS if changes else await self._page(request)
        finally:
            self.requests -= 1

    async def _act(self, request: Request, token: int, peer: str) -> Response:
        assert self.access is not None
        if self.access.tokens is None:
            return _NEEDS_TOKENS
        if not token:
            sentence = "A change needs `Authorization: Bearer TOKEN`; no password will do."
            return Response.sentence(403, sentence)
        assert self.actions is not None
        try:
            return await self.actions(request, Operator(token, peer))
        except Exception:
            log.exception("HTTP: %s %s failed", request.method, request.path)
            return Response.sentence(500, "This could not be done; the log says why.")

    async def _page(self, request: Request) -> Response:
        handler = self.handlers.get(request.path)
        if handler is None:
            pages = ", ".join(self.handlers)
            return Response.sentence(
                404, f"There is no page {request.path[:200]!r} here; there are: {pages}."
            )
        try:
            return await handler(request)
        except Exception:
            log.exception("HTTP: the page %s failed", request.path)
            return Response.sentence(500, "This page could not be made; the log says why.")

    def note(self, session: _Session, user: str, request: Request, response: Response) -> None:
        """Log an answer, except for pages without data about peers."""
        if self.access is None or request.path in self.access.open_pages:
            return
        if request.method in CHANGING:
            if response.status < 400:
                return  # The action itself has been logged.
            path = A_CHANGE
        else:
            path = request.path if request.path in self.handlers else NO_PAGE
        reason = ""
        if response.status >= 400 and isinstance(response.body, bytes) and path is not NO_PAGE:
            reason = response.body.decode(errors="replace").strip()
        self.looks.note(Look(session.network, user, path, response.status), session.peer, reason)


class _Session:
    """One connection: reads requests, answers them in order."""

    __slots__ = (
        "_answered", "_h11", "_limits", "_server", "_stream", "_tcp", "address", "network", "peer",
        "scope", "since", "waits",
    )  # fmt: skip

    def __init__(self, stream: trio.SocketStream, server: _Server) -> None:
        self._tcp = stream
        self._stream: trio.SocketStream | trio.SSLStream[trio.SocketStream] = stream
        self._server = server
        self._limits = limits = server.limits
        self._answered = False
        self._h11 = h11.Connection(h11.SERVER, max_incomplete_event_size=limits.head_bytes)
        self.address, self.peer = _peer(stream)
        self.network = network(self.address)
        # See `Guest`: it waits for its first request, which has not begun.
        self.scope = trio.CancelScope()
        self.waits = Waits.READING
        self.since = trio.current_time()

    def has_input(self) -> bool:
        look = select.poll()
        look.register(self._tcp.socket.fileno(), select.POLLIN)
        return bool(look.poll(0))

    @contextmanager
    def _waiting(self, what: Waits) -> Generator[None]:
        self.waits, self.since = what, trio.current_time()
        try:
            yield
        finally:
            self.waits = Waits.WORKS

    async def serve(self) -> None:
        """Answer requests until either side ends."""
        if self._server.tls is not None and not await self._shake_hands(self._server.tls):
            return
        while True:
            try:
                with self._waiting(Waits.READING):
                    request = await self._next_request()
            except _RefusedError as refusal:
                look = Look(self.network, NOBODY, "", refusal.status)
                self._server.looks.note(look, self.peer, str(refusal))
                await self._end_with(
                    Response.sentence(refusal.status, str(refusal), *refusal.headers)
                )
                return
            if request is None:
                return
            user, response = await self._server.answer(request, self.address, self.peer)
            self._server.note(self, user, request, response)
            await self._send_response(response, request)
            self._answered = True
            if self._h11.our_state is not h11.DONE or self._h11.their_state is not h11.DONE:
                await self._linger()
                return
            self._h11.start_next_cycle()

    async def _shake_hands(self, tls: ServerTls) -> bool:
        secure = trio.SSLStream(self._tcp, tls.asks_nobody, server_side=True, https_compatible=True)
        with self._waiting(Waits.READING), trio.move_on_after(self._limits.head_seconds) as scope:
            try:
                await secure.do_handshake()
            except trio.BrokenResourceError as error:
                cause = error.__cause__
                why = said(cause) if isinstance(cause, ssl.SSLError) else "the peer went away"
                look = Look(self.network, NOBODY, "", 400)
                self._server.looks.note(look, self.peer, f"the TLS handshake failed: {why}")
                return False
        self._stream = secure
        return not scope.cancelled_caught

    async def _next_request(self) -> Request | None:
        """Wait for the next request; None if the peer closed, or sent none in time.

        Raises:
            _RefusedError: the input is not a request that can be served.
        """
        limits = self._limits
        # Bytes of this request may have arrived with the one before it (pipelining).
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
                        self._h11.receive_data(bytes(data))
                        continue
                    if isinstance(event, h11.Request):
                        request = self._check(event)
                        if request.method in CHANGING:
                            request = attrs.evolve(request, body=await self._read_body())
                        return request
                except h11.RemoteProtocolError as error:
                    raise self._refusal(error) from error
                return None  # h11.ConnectionClosed: nothing else comes before a request.
        if begun:
            raise _RefusedError(
                408, f"The request did not come within {limits.head_seconds:g} seconds."
            )
        return None

    async def _read_body(self) -> bytes:
        """Read the body of a request.

        Raises:
            _RefusedError: it is too long.
            h11.RemoteProtocolError: it breaks off.
        """
        if self._h11.they_are_waiting_for_100_continue:
            await self._send(self._frame(h11.InformationalResponse(status_code=100, headers=[])))
        body, most = bytearray(), self._limits.body_bytes
        with self._waiting(Waits.READING):
            while True:
                event = self._h11.next_event()
                if event is h11.NEED_DATA:
                    self._h11.receive_data(bytes(await self._stream.receive_some(RECEIVE_BYTES)))
                elif isinstance(event, h11.Data):
                    body += event.data
                    if len(body) > most:
                        raise _RefusedError(413, f"The request's body is larger than {most} bytes.")
                else:
                    return bytes(body)

    def _refusal(self, error: h11.RemoteProtocolError) -> _RefusedError:
        if error.error_status_hint == HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE:
            return _RefusedError(
                431,
                f"The request line and header fields are larger than {self._limits.head_bytes} "
                "bytes together; send less.",
            )
        return _RefusedError(400, f"This is not an HTTP request: {error}.")

    def _check(self, event: h11.Request) -> Request:
        """Refuse a head that asks for something no page does; otherwise parse its target."""
        method = event.method.decode("ascii")
        known = (*LOOKING, *CHANGING) if self._server.actions is not None else LOOKING
        if method not in known:
            raise _RefusedError(
                405,
                f"The method is {method[:20]}; pages can be looked at, with GET or HEAD"
                + (", and changes made with POST or PATCH." if known is not LOOKING else "."),
                ("Allow", ", ".join(known)),
            )
        names = {name for name, _ in event.headers}
        if {b"content-length", b"transfer-encoding"} <= names:
            # A proxy may have taken the other one, and see another request behind this one's body.
            raise _RefusedError(
                400, "The request has Content-Length and Transfer-Encoding; send one of them."
            )
        if method in LOOKING and not isinstance(self._h11.next_event(), h11.EndOfMessage):
            raise _RefusedError(400, "The request has a body; a GET or HEAD request takes none.")
        try:
            return Request.parse(method, event.target.decode("ascii"), tuple(event.headers))
        except ValueError as error:
            raise _RefusedError(400, f"The request's target cannot be read: {error}.") from error

    async def _send_response(self, response: Response, request: Request | None) -> None:
        """Send an answer; without a request, it is the last one."""
        seconds = math.inf if response.endless else self._limits.page_seconds
        scope = trio.CancelScope()
        if response.on_sending is not None:
            response.on_sending(scope.cancel)
        try:
            with scope, trio.move_on_after(seconds) as whole:
                await self._send_whole(response, request)
            if whole.cancelled_caught:
                msg = f"did not take a page in {seconds:g} s"
                raise _SlowReaderError(msg)
            if scope.cancelled_caught:
                raise _SlowReaderError("took a page so slowly that others could not have theirs")
        finally:
            # Otherwise the garbage collector closes an async generator that was left half-way, at
            # any time.
            aclose = getattr(response.body, "aclose", None)
            if aclose is not None:
                await aclose()

    async def _send_whole(self, response: Response, request: Request | None) -> None:
        body = response.body
        bodiless = request is not None and request.method == "HEAD"
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
            # The status has been sent already. Leaving out the last chunk tells the peer that the
            # page is incomplete [RFC 9112 section 8].
            log.exception("HTTP: a page of %s failed half-way", self.peer)
            raise trio.BrokenResourceError from error

    async def _stream_pieces(self, body: AsyncIterator[bytes]) -> None:
        """Send an endless body as long as the peer is there.

        Raises:
            trio.BrokenResourceError: the peer is gone.
        """
        self._tcp.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, STREAM_BUFFER_BYTES)
        gone = False
        failure: Exception | None = None
        async with trio.open_nursery() as nursery:

            async def watch() -> None:
                nonlocal gone
                left = LINGER_BYTES
                with suppress(trio.BrokenResourceError):
                    # This connection takes no more requests: the input is ignored.
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
        # Raised out here: otherwise it would be in a group of one.
        if failure is not None:
            raise failure
        if gone:
            raise trio.BrokenResourceError

    def _frame(
        self, event: h11.Response | h11.InformationalResponse | h11.Data | h11.EndOfMessage
    ) -> bytes:
        return self._h11.send(event) or b""

    async def _send(self, data: bytes) -> None:
        """Send bytes, each 64 KiB of them within `write_seconds`.

        Raises:
            _SlowReaderError: the peer did not take them in time.
            trio.BrokenResourceError: the peer is gone.
        """
        view = memoryview(data)
        for start in range(0, len(view), SEND_BYTES):
            seconds = self._limits.write_seconds
            with self._waiting(Waits.SENDING), trio.move_on_after(seconds) as scope:
                await self._stream.send_all(view[start : start + SEND_BYTES])
            if scope.cancelled_caught:
                msg = f"took less than {SEND_BYTES} bytes in {seconds:g} s"
                raise _SlowReaderError(msg)

    async def _end_with(self, response: Response) -> None:
        if self._h11.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            await self._send_response(response, None)
            await self._linger()

    async def _linger(self) -> None:
        """Let the peer read the last output before the connection closes.

        Closing a socket with unread input makes the kernel send a reset, which destroys output
        that is still on its way to the peer [RFC 9112 section 9.6].
        """
        with self._waiting(Waits.READING), trio.move_on_after(LINGER_SECONDS):
            if isinstance(self._stream, trio.SSLStream):
                # Ends the sending by TLS, too, and waits for the peer's end.
                await self._stream.unwrap()
                return
            await self._stream.send_eof()
            left = LINGER_BYTES
            while left > 0:
                data = await self._stream.receive_some(RECEIVE_BYTES)
                if not data:
                    return
                left -= len(data)


def _peer(stream: trio.SocketStream) -> tuple[str, str]:
    """Return the address of a peer, and the same with its port, for people."""
    try:
        address = stream.socket.getpeername()
    except OSError:
        return "", "a peer already gone"
    if stream.socket.family in (socket.AF_INET, socket.AF_INET6):
        return address[0], f"{address[0]} port {address[1]}"
    return "", "a local peer"
