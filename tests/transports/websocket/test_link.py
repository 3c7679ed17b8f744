"""A link over a WebSocket: a stream to its session, whatever the messages were."""

from __future__ import annotations

import random
import socket
from collections.abc import Generator
from contextlib import contextmanager, suppress
from functools import partial

import pytest
import trio
import trio.testing
from wsproto.events import BytesMessage, CloseConnection

from clearfunds.transports import RemoteProtocolError
from clearfunds.transports._link import READ_BYTES, Ending
from clearfunds.transports.websocket import WebSocketLink
from tests.transports.websocket.frames import BINARY, CLOSE, PING, TEXT, client, frame, request


@contextmanager
def linked(touches: list[None] | None = None) -> Generator[tuple[WebSocketLink, socket.socket]]:
    """Give a link after its handshake, and the peer's socket."""
    near, far = socket.socketpair()
    near.setblocking(False)
    far.settimeout(5)
    touch = None if touches is None else lambda: touches.append(None)
    link = WebSocketLink(near, "peer", subprotocol="mqtt", touch=touch)
    with far:
        yield link, far
        link.close()


def answered(far: socket.socket) -> bytes:
    """Return what came after the handshake's answer, of what has come."""
    head, _, rest = far.recv(1 << 16).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 101 ")
    return rest


async def test_it_receives_what_was_in_the_messages() -> None:
    touches: list[None] = []
    with linked(touches) as (link, far):
        far.sendall(request() + frame(BINARY, b"one") + frame(BINARY) + frame(BINARY, b"two"))
        assert await link.receive() == b"onetwo"
        far.sendall(frame(PING, b"!") + frame(BINARY))
        with trio.move_on_after(0.05):
            await link.receive()
            pytest.fail("there was nothing in these")
        # Nothing is lost by the cancellation.
        far.sendall(frame(BINARY, b"thr")[:-1])
        assert await link.receive() == b"th"
        far.sendall(frame(BINARY, b"thr")[-1:] + frame(BINARY, b"ee"))
        assert await link.receive() == b"ree"
        assert answered(far) == b"\x8a\x01!"
        assert len(touches) == 4


async def test_after_the_peers_close_frame_comes_the_end() -> None:
    with linked() as (link, far):
        far.sendall(request() + frame(BINARY, b"last") + frame(CLOSE, b"\x03\xe8"))
        assert await link.receive() == b"last"
        assert [await link.receive() for _ in range(2)] == [b"", b""]
        assert link.fault is None
        link.close()
        assert answered(far) == b"\x88\x02\x03\xe8"
        assert far.recv(1) == b""


async def test_after_a_fault_comes_the_end() -> None:
    with linked() as (link, far):
        far.sendall(request() + frame(BINARY, b"good") + frame(TEXT, b"bad"))
        assert await link.receive() == b"good"
        assert isinstance(link.fault, RemoteProtocolError)
        assert await link.receive() == b""
        far.shutdown(socket.SHUT_WR)
        link.ending = Ending.FAULT
        await link.say_goodbye()
        peer = client()
        peer.receive_data(answered(far))
        (closed,) = peer.events()
        assert isinstance(closed, CloseConnection)
        assert (closed.code, closed.reason) == (1003, str(link.fault))


async def test_what_was_read_counts_though_a_ping_cannot_be_answered() -> None:
    with linked() as (link, far):
        far.sendall(request())
        with trio.move_on_after(0.05):
            await link.receive()
        answered(far)
        far.sendall(frame(PING, b"!") + frame(BINARY, b"the last"))
        far.close()
        assert await link.receive() == b"the last"


async def test_a_message_may_be_of_any_size_and_nothing_of_it_is_held() -> None:
    payload = random.randbytes(3 << 20)
    got = bytearray()
    with linked() as (link, far):
        far.setblocking(True)
        sent = partial(far.sendall, request() + frame(BINARY, payload))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.to_thread.run_sync, sent)
            while len(got) < len(payload):
                piece = await link.receive()
                assert 0 < len(piece) <= READ_BYTES
                got += piece
    assert got == payload


async def test_it_says_goodbye_and_hears_it() -> None:
    with linked() as (link, far):
        far.sendall(request() + frame(BINARY, b"x"))
        await link.receive()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(link.say_goodbye)
            await trio.testing.wait_all_tasks_blocked()
            assert answered(far) == b"\x88\x02\x03\xe9"  # this side stops
            far.sendall(frame(BINARY, b"on its way") + frame(CLOSE, b"\x03\xe9"))
        assert await link.receive() == b""


async def test_it_ends_with_the_reason_it_was_cut_for() -> None:
    with linked() as (link, far):
        far.sendall(request() + frame(BINARY, b"x"))
        await link.receive()
        link.cut("nobody reads it")
        link.ending = Ending.CUT
        far.sendall(frame(BINARY, b"too late"))
        assert await link.receive() == b""
        link.close()
        assert answered(far) == b"\x88\x11\x03\xf0nobody reads it"


async def test_within_a_message_there_is_no_last_word() -> None:
    """It would be a part of that message."""
    with linked() as (link, far):
        far.sendall(request() + frame(BINARY, b"x"))
        await link.receive()
        assert answered(far) == b""
        sent = 0
        with suppress(BlockingIOError):
            while True:
                sent += link.sock.send(bytes(100_000))
        link.close()
        got = bytearray()
        while data := far.recv(1 << 20):
            got += data
        peer = client()
        peer.receive_data(bytes(got))
        events = list(peer.events())
        assert all(isinstance(event, BytesMessage) for event in events)
        assert sum(len(event.data) for event in events if isinstance(event, BytesMessage)) == sent
