"""One dataspace over TCP, Unix sockets, WebSocket, binary and text: everybody is told the same."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import trio
import trio_websocket

from clearfunds.transports.syndicate import Error, Turn, decode, mint
from tests.transports.peers import SECONDS

from .peers import WHOLE_SAYS, Peer, observe, relay, says, wire

WS = "syndicate+ws://127.0.0.1:0"


class WebPeer:
    """A real WebSocket client: one packet a message."""

    def __init__(
        self, connection: trio_websocket.WebSocketConnection, stream: trio.SocketStream
    ) -> None:
        self.connection = connection
        self._peer = Peer(stream)

    async def send(self, *packets: str) -> None:
        for packet in packets:
            await self.connection.send_message(wire(packet))

    async def raw(self) -> bytes:
        with trio.fail_after(SECONDS):
            message = await self.connection.get_message()
        assert isinstance(message, bytes)
        return message

    async def told(self) -> list[str]:
        packet = decode(await self.raw())
        assert isinstance(packet, Turn)
        return self._peer.understand(packet)

    async def sync(self) -> None:
        await self.send("[[0 <S #:[0 9]>]]")
        assert await self.told() == ["9 ! #t"]


@asynccontextmanager
async def web_peer(url: str) -> AsyncGenerator[WebPeer]:
    where = urlsplit(url)
    assert where.hostname is not None
    assert where.port is not None
    # Not `open_websocket`: closed from the other side, it leaves its socket open.
    stream = await trio.open_tcp_stream(where.hostname, where.port)
    async with stream, trio.open_nursery() as nursery:
        connection = await trio_websocket.wrap_client_stream(nursery, stream, where.netloc, "/")
        async with connection:
            yield WebPeer(connection, stream)
        nursery.cancel_scope.cancel()


async def test_observers_of_all_kinds_are_told_the_same(tmp_path: Path) -> None:
    listen = ("syndicate+tcp://127.0.0.1:0", f"syndicate+unix://{tmp_path}/relay.sock", WS)
    messages = [says('"tony"', f'"{n}"') for n in range(20)]
    # Those that are alike are forwarded as a run, the others one by one.
    messages += [says(f'"{n}"', str(n)) for n in range(5)] + [says('"tony"', '"grüße"')] * 5
    expected = [f"1 ! [{message[len('[[0 <M ') : -len('>]]')]}]" for message in messages]
    async with relay(listen=listen) as server:
        tcp, ws = (server.running.addresses.listening[n] for n in (0, 2))
        async with (
            server.peer(0) as binary,
            server.peer(0, text=True) as text,
            server.peer(1) as local,
            web_peer(ws) as web,
            server.peer(0) as publisher,
        ):
            for peer in (binary, text, local):
                await peer.send(observe(WHOLE_SAYS))
                await peer.sync()
            await web.send(observe(WHOLE_SAYS))
            await web.sync()
            for n in range(len(messages)):
                await publisher.send(messages[n])
            for peer in (binary, text, local):
                assert await peer.lines(len(messages)) == expected
            # One packet a message, of which each was a turn of its own.
            assert [await web.told() for _ in messages] == [[line] for line in expected]
            # A publisher that writes text, and one on a WebSocket.
            await text.send(*messages[:4])
            await web.send(*messages[4:8])
            for peer in (binary, text, local):
                assert sorted(await peer.lines(8)) == sorted(expected[:8])
            assert sorted([await web.told() for _ in range(8)]) == sorted([x] for x in expected[:8])
            assert tcp.startswith("syndicate+tcp://")
            server.audit()


async def test_state_on_a_websocket() -> None:
    async with relay(listen=("syndicate+tcp://127.0.0.1:0", WS)) as server:
        url = server.running.addresses.listening[1]
        async with server.peer() as other:
            await other.send("[[0 <A <Says a> 1>] [0 <A <Says b> 2>]]")
            await other.sync()
            async with web_peer(url) as web:
                await web.send(observe(WHOLE_SAYS))
                assert sorted(await web.told()) == ["1 + [<Says a>]", "1 + [<Says b>]"]
                await web.send("[[0 <A <Says c> 2>]]")
                assert await web.told() == ["1 + [<Says c>]"]
                await other.send(observe(WHOLE_SAYS, handle=3))
                assert sorted(await other.lines(3))[2] == "1 + [<Says c>]"
            # What it asserted goes with it.
            assert await other.told() == ["1 - [<Says c>]"]


async def ending(connection: trio_websocket.WebSocketConnection) -> tuple[int, str]:
    """Wait for the end of a connection; return what the other side's close frame said."""
    with trio.fail_after(SECONDS):
        try:
            while True:
                await connection.get_message()
        except trio_websocket.ConnectionClosed as closed:
            reason = closed.reason
    assert reason is not None
    return reason.code, reason.reason or ""


async def test_what_a_websocket_may_not_say() -> None:
    async with relay(listen=(WS,)) as server:
        url = server.running.addresses.listening[0]
        for message, code, why in (
            ("[]", 1003, "text"),  # a text frame
            (wire(says("1"))[:-1], 1002, "ends within a packet"),
            (b"\xff", 1002, "a packet begins with byte 0xff"),
            (wire("[[0 <A x 1>]]", "[[0 <A x 1>]]"), 1002, "asserted again"),
        ):
            async with web_peer(url) as web:
                await web.connection.send_message(message)
                if code == 1002:
                    packet = decode(await web.raw())
                    assert isinstance(packet, Error)
                    assert why in packet.message
                said, reason = await ending(web.connection)
                assert said == code
                assert why in reason
        assert server.side.counters.protocol_errors == 4


async def test_what_is_no_websocket_is_told_so_in_http() -> None:
    async with relay(listen=(WS,)) as server:
        async with server.peer() as peer:
            await peer.send_raw(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            with trio.fail_after(SECONDS):
                answer = b""
                while data := await peer.stream.receive_some():
                    answer += data
            assert answer.startswith(b"HTTP/1.1 426 ")
        async with server.peer() as peer:
            await peer.send(says("1"))  # Syndicate without a WebSocket
            with trio.fail_after(SECONDS):
                assert (await peer.stream.receive_some()).startswith(b"HTTP/1.1 400 ")


async def test_who_does_not_shake_hands_in_time_is_cut() -> None:
    async with relay(listen=(WS,), connect_timeout=0.3) as server, server.peer() as peer:
        await peer.send_raw(b"GET / HTTP/1.1\r\n")
        await peer.ended()
        assert server.side.counters.timeouts == 1


async def test_a_relay_that_stops_says_so_on_a_websocket() -> None:
    async with relay(listen=(WS,)) as server:
        url = server.running.addresses.listening[0]
        async with web_peer(url) as web:
            await web.sync()
            server.running.relay.stop()
            assert await ending(web.connection) == (1001, "the relay stops")


async def test_a_text_peer_is_answered_as_it_last_spoke() -> None:
    async with relay() as server, server.peer() as peer:
        await peer.send_raw(b'# hello\n[[0 <A <Observe <bind <_>> #:[0 1]> 1>]] [[0 <M "hi">]]\n')
        raw = await peer.raw_packet()
        assert raw.startswith(b"[[1 <A ")
        assert await peer.raw_packet() == b'[[1 <M ["hi"]>]]'
        await peer.send_raw(wire(says("1")))
        assert (await peer.raw_packet())[0] >= 128


# -- one port for both ----------------------------------------------------------------------------


async def test_a_port_takes_packets_and_websockets() -> None:
    async with relay() as server:
        (url,) = server.running.addresses.listening
        async with (
            server.peer() as binary,
            server.peer(text=True) as text,
            web_peer(url) as web,
        ):
            for peer in (binary, text):
                await peer.send(observe(WHOLE_SAYS))
                await peer.sync()
            await web.send(observe(WHOLE_SAYS))
            await web.sync()
            every: tuple[Peer | WebPeer, ...] = (binary, text, web)
            for n, publisher in enumerate(every):
                await publisher.send(says(str(n)))
                for each in every:
                    assert await each.told() == [f"1 ! [<Says {n}>]"]
            server.audit()


async def test_a_port_with_a_gatekeeper_takes_both() -> None:
    resolve = f"[[0 <A <resolve {mint('syndicate', b'')} #:[0 1]> 3>]]"
    async with relay(listen=("syndicate+tcp://127.0.0.1:0?gatekeeper",), sturdy_key=b"") as server:
        (url,) = server.running.addresses.listening
        async with server.peer() as plain, web_peer(url) as web:
            for peer in (plain, web):
                await peer.send(resolve)
                assert await peer.told() == ["1 + <accepted #:[0 1]>", "1 + <ok #:[0 1]>"]


async def test_of_a_page_elsewhere_a_port_takes_no_websocket() -> None:
    """A browser reaches every port of this machine; what it may do there is `--origin`'s to say."""
    async with relay() as server:
        port = server.where()
        handshake = (
            "GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
            "Origin: https://elsewhere.example\r\n\r\n"
        )
        async with await trio.open_tcp_stream("127.0.0.1", int(port)) as stream:
            await stream.send_all(handshake.encode())
            with trio.fail_after(SECONDS):
                assert b" 403 " in await stream.receive_some()


async def test_a_websocket_port_takes_no_packets() -> None:
    async with relay(listen=(WS,)) as server, server.peer() as peer:
        await peer.send(says("a"))
        with trio.fail_after(SECONDS):
            assert (await peer.stream.receive_some()).startswith(b"HTTP/1.1 400 ")


async def test_where_credit_is_requested_a_port_takes_packets_alone() -> None:
    """The relay speaks first then, which a WebSocket's client does not expect."""
    async with relay(turn_credit="request") as server, server.peer() as peer:
        await peer.expect("<do <credit-flow-control 202506>>")
        await peer.send_raw(b"GET / HTTP/1.1\r\n")
        error, _ = await peer.refused()
        assert "0x47" in error
