"""Real clients against an echo server of links and outlets: trio-websocket, and wsproto bare."""

from __future__ import annotations

import contextlib
import random
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import attrs
import pytest
import trio
from trio_websocket import (
    ConnectionClosed,
    ConnectionRejected,
    WebSocketConnection,
    wrap_client_stream,
)
from wsproto import ConnectionType, WSConnection
from wsproto.connection import ConnectionState
from wsproto.events import AcceptConnection, BytesMessage, CloseConnection, Ping, Pong, Request

from clearfunds.accounts import Ledger, Limit
from clearfunds.transports import (
    Flusher,
    Link,
    Listener,
    ListenURL,
    Outlet,
    open_flusher,
    open_listeners,
)
from clearfunds.transports.websocket import WebSocket
from tests.transports.peers import SECONDS, until

SIZES = (0, 1, 125, 126, 65535, 65536, 1 << 20)


@attrs.define(eq=False)
class Echo:
    """A server that sends every message back; the least of a session that is one.

    Attributes:
        ended: Why each connection ended, in order.
        open: How many there are.
    """

    listener: Listener
    flusher: Flusher
    ledger: Ledger
    stop: trio.Event = attrs.field(factory=trio.Event)
    ended: list[str] = attrs.field(factory=list[str])
    open: int = 0

    @property
    def port(self) -> int:
        return self.listener.url.port

    async def serve(self, link: Link) -> None:
        account = self.ledger.open(link.peer, limit=Limit(items=100, bytes=4 << 20))
        outlet = Outlet(self.ledger, self.flusher, link.sock, link.peer, on_broken=link.cut)
        ws = WebSocket(max_message_size=1 << 20)
        self.open += 1

        def send(data: bytes) -> None:
            if data:
                with account.turn(items=1, nbytes=len(data)) as turn:
                    turn.send(outlet, data)

        async def read() -> str:
            while True:
                await account.ensure_clear_funds()
                data = await link.receive()
                if not data:
                    return "the stream ended"
                messages = ws.receive_data(data)
                send(ws.outgoing())
                for message in messages:
                    send(ws.frame(message))
                if ws.fault is not None:
                    return str(ws.fault)
                if ws.closed:
                    return f"closed by the peer: {ws.close_code}"

        async def stopped(scope: trio.CancelScope) -> None:
            await self.stop.wait()
            scope.cancel()

        try:
            with link.scope:
                why = "stopped"
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(stopped, nursery.cancel_scope)
                    why = await read()
                    nursery.cancel_scope.cancel()
                self.ended.append(why)
                send(ws.close(1001, why))
                await until(lambda: not outlet.queue)
                with contextlib.suppress(OSError):
                    link.sock.shutdown(socket.SHUT_WR)
                with trio.move_on_after(SECONDS):
                    while not ws.closed and (data := await link.receive()):
                        ws.receive_data(data)
                if why == "stopped":
                    self.ended.append(f"answered with {ws.close_code}")
        except OSError as exc:
            self.ended.append(str(exc))
        finally:
            self.open -= 1
            outlet.close()
            account.close()
            link.close()


@asynccontextmanager
async def echo() -> AsyncGenerator[Echo]:
    """Run an echo server for a block; everything is paid off at its end."""
    ledger = Ledger()
    url = ListenURL.parse("echo+tcp://127.0.0.1:0", ("echo",))
    (listener,) = await open_listeners(url)
    with listener, trio.fail_after(3 * SECONDS):
        async with open_flusher() as flusher, trio.open_nursery() as nursery:
            server = Echo(listener, flusher, ledger)
            nursery.start_soon(listener.serve, server.serve)
            yield server
            server.stop.set()
            await until(lambda: not server.open)
            listener.close()
    ledger.audit()
    assert ledger.statistics().debt_items == ledger.statistics().debt_bytes == 0


@asynccontextmanager
async def connected(server: Echo, **options: Any) -> AsyncGenerator[WebSocketConnection]:
    """Connect trio-websocket's client.

    Over a stream of ours: it leaves its own open when it is refused, or closed by the server.
    """
    stream = await trio.open_tcp_stream("127.0.0.1", server.port)
    async with stream, trio.open_nursery() as nursery:
        client = await wrap_client_stream(nursery, stream, "127.0.0.1", "/any/path", **options)
        async with client:
            yield client
        nursery.cancel_scope.cancel()


async def closed(client: WebSocketConnection) -> tuple[int, str | None]:
    """Wait until the server has closed it; return the code and the reason."""
    with contextlib.suppress(ConnectionClosed):
        while True:
            await client.get_message()
    assert client.closed is not None
    return client.closed.code, client.closed.reason


@asynccontextmanager
async def bare(server: Echo) -> AsyncGenerator[tuple[WSConnection, trio.SocketStream]]:
    """Connect wsproto's client over a stream of its own, which may send what it likes."""
    client = WSConnection(ConnectionType.CLIENT)
    async with await trio.open_tcp_stream("127.0.0.1", server.port) as stream:
        await stream.send_all(client.send(Request(host="127.0.0.1", target="/")))
        (answer,) = await events(client, stream, 1)
        assert isinstance(answer, AcceptConnection)
        yield client, stream


async def events(client: WSConnection, stream: trio.SocketStream, count: int) -> list[Any]:
    """Receive until there are so many events, or the end; the pieces of a message are one."""
    found: list[Any] = []
    message = bytearray()
    while len(found) < count:
        data = await stream.receive_some()
        if not data:
            return found
        client.receive_data(data)
        for event in client.events():
            if isinstance(event, BytesMessage):
                message += event.data
                if not event.message_finished:
                    continue
                event = BytesMessage(bytes(message))
                message.clear()
            found.append(event)
    return found


@pytest.mark.parametrize("size", SIZES)
async def test_a_message_of_any_size_goes_there_and_back(size: int) -> None:
    payload = random.randbytes(size)
    async with echo() as server:
        async with connected(server, max_message_size=1 << 20) as client:
            await client.send_message(payload)
            assert await client.get_message() == payload
        await until(lambda: server.ended)
        assert server.ended == ["closed by the peer: 1000"]


async def test_many_messages_stay_in_order() -> None:
    messages = [random.randbytes(random.choice((0, 5, 200, 9000))) for _ in range(300)]
    async with echo() as server, connected(server) as client:

        async def send() -> None:
            for message in messages:
                await client.send_message(message)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send)
            for message in messages:
                assert await client.get_message() == message


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("pieces", [2, 9])
async def test_a_fragmented_message_is_put_together(size: int, pieces: int) -> None:
    payload = random.randbytes(size)
    step = max(1, -(-size // pieces))
    parts = [payload[i * step : (i + 1) * step] for i in range(pieces)]
    assert b"".join(parts) == payload
    async with echo() as server, bare(server) as (client, stream):

        async def send() -> None:
            for i, part in enumerate(parts):
                frame = client.send(BytesMessage(part, message_finished=i == pieces - 1))
                for half in (frame[:3], frame[3:]):
                    await stream.send_all(half)
                if i == 0:
                    await stream.send_all(client.send(Ping(b"between")))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send)
            assert await events(client, stream, 2) == [Pong(b"between"), BytesMessage(payload)]


async def test_pings_are_answered() -> None:
    async with echo() as server, connected(server) as client:
        await client.ping()
        await client.ping(bytes(125))
        # One pong may answer several pings.
        async with trio.open_nursery() as nursery:
            for n in range(20):
                nursery.start_soon(client.ping, b"%d" % n)
        await client.pong(b"that nobody asked for")
        await client.send_message(b"still here")
        assert await client.get_message() == b"still here"


@pytest.mark.parametrize("code", [1000, 1001, 3000, 4999])
async def test_the_client_closes(code: int) -> None:
    async with echo() as server:
        async with connected(server) as client:
            await client.aclose(code, "that was all")
            assert client.closed is not None
            assert client.closed.code == code
        await until(lambda: server.ended)
        assert server.ended == [f"closed by the peer: {code}"]


async def test_what_was_said_before_the_close_is_answered_before_it() -> None:
    async with echo() as server, bare(server) as (client, stream):
        await stream.send_all(
            client.send(BytesMessage(b"last")) + client.send(CloseConnection(1000))
        )
        assert await events(client, stream, 2) == [BytesMessage(b"last"), CloseConnection(1000, "")]
        assert client.state is ConnectionState.CLOSED
        # The server is the first to close the stream [RFC 6455 section 7.1.1].
        assert await stream.receive_some() == b""


async def test_the_server_closes() -> None:
    async with echo() as server:
        async with connected(server) as client:
            await client.send_message(b"before")
            assert await client.get_message() == b"before"
            server.stop.set()
            assert await closed(client) == (1001, "stopped")
        await until(lambda: not server.open)
        assert server.ended == ["stopped", "answered with 1001"]


async def test_a_text_frame_ends_in_an_error_that_the_client_hears() -> None:
    async with echo() as server:
        async with connected(server) as client:
            await client.send_message(b"before")
            await client.send_message("text")
            code, reason = await closed(client)
        assert code == 1003
        assert reason is not None
        assert "text frame" in reason
        assert server.ended == [reason]


async def test_a_message_that_is_too_large_ends_in_an_error_that_the_client_hears() -> None:
    async with echo() as server:
        async with connected(server) as client:
            # More than the kernel takes unread: the server reads on, and drops it, until the end.
            await client.send_message(bytes(8 << 20))
            code, reason = await closed(client)
        assert code == 1009
        assert server.ended == [reason]


async def test_a_client_that_is_gone_is_noticed() -> None:
    async with echo() as server:
        async with bare(server) as (_, stream):
            await stream.send_all(b"\x82")
        await until(lambda: server.ended)
        assert server.ended == ["the stream ended"]


async def test_a_client_may_offer_what_it_likes() -> None:
    async with (
        echo() as server,
        connected(
            server,
            subprotocols=["syndicate", "other"],
            extra_headers=[
                (b"Origin", b"http://127.0.0.1:3000"),
                (b"Sec-WebSocket-Extensions", b"permessage-deflate"),
            ],
        ) as client,
    ):
        assert client.subprotocol is None
        await client.send_message(b"understood")
        assert await client.get_message() == b"understood"


async def test_a_client_is_told_why_it_is_refused() -> None:
    async with echo() as server:
        with pytest.RaisesGroup(ConnectionRejected) as caught:
            async with connected(server, extra_headers=[(b"Sec-WebSocket-Version", b"12")]):
                pytest.fail("it was accepted")
        (refused,) = caught.value.exceptions
        assert isinstance(refused, ConnectionRejected)
        assert refused.status_code == 426
        assert b"Sec-WebSocket-Version: 13" in (refused.body or b"")
        assert (b"sec-websocket-version", b"13") in refused.headers
        assert len(server.ended) == 1


async def test_a_browser_is_told_what_this_is() -> None:
    async with echo() as server:
        stream = await trio.open_tcp_stream("127.0.0.1", server.port)
        await stream.send_all(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: text/html\r\n\r\n")
        answer = b""
        while data := await stream.receive_some():
            answer += data
        await stream.aclose()
        assert answer.startswith(b"HTTP/1.1 426 Upgrade Required\r\n")
        assert b"only WebSocket clients can connect here" in answer
