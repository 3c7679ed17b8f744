"""A stream in binary messages: whatever the kernel takes of a send, and what comes in between."""

from __future__ import annotations

import random
from collections.abc import Generator
from contextlib import contextmanager, suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wsproto.events import BytesMessage, Event, Pong

from clearfunds.transports.websocket import MessageSocket
from clearfunds.transports.websocket._frames import pong_frame
from clearfunds.transports.websocket._message_socket import MESSAGE_BYTES
from tests.transports.sockets import GrudgingSocket
from tests.transports.websocket.frames import client


@contextmanager
def grudging(takes: list[int]) -> Generator[tuple[MessageSocket, bytearray]]:
    """Give a socket of which the kernel takes so much with each send, and everything afterwards.

    And what it has taken. 0: it would block.
    """
    below = GrudgingSocket(takes)
    with below:
        yield MessageSocket(below), below.taken


def heard(data: bytes) -> list[Event]:
    peer = client()
    peer.receive_data(data)
    return list(peer.events())


def pattern(size: int) -> bytes:
    """So many bytes, of which each says where it stands."""
    return (b"%07d," * (size // 8 + 1) % tuple(range(size // 8 + 1)))[:size]


Step = tuple[bytes, bytes]
"""What is to be sent next, and what a ping was answered with before."""

steps = st.lists(
    st.tuples(
        st.one_of(st.integers(1, 300), st.integers(16_380, 50_000)).map(pattern),
        st.one_of(st.just(b""), st.binary(min_size=1, max_size=9)),
    ),
    max_size=8,
)


@settings(deadline=None, max_examples=400)
@given(
    steps,
    st.lists(st.one_of(st.integers(0, 12), st.integers(0, 20_000)), max_size=60),
    st.booleans(),
)
def test_the_stream_arrives_whole_in_whole_messages(
    script: list[Step], takes: list[int], joins: bool
) -> None:
    """As an outlet sends: what has not been taken is given again, alone or with what follows."""
    pongs: list[bytes] = []
    rest = b""
    with grudging(takes) as (sock, taken):
        for data, pong in script:
            if pong:
                pongs.append(pong)
                sock.send_control(pong_frame(pong))
            rest += data
            while rest:
                try:
                    rest = rest[sock.send(rest) :]
                except BlockingIOError:
                    if joins:
                        break  # what comes next is given with it
        while rest:
            with suppress(BlockingIOError):
                rest = rest[sock.send(memoryview(rest)) :]
        takes.clear()
        sock.send_control()
        assert sock.between_messages
        events = heard(bytes(taken))
    messages = [event for event in events if isinstance(event, BytesMessage)]
    assert b"".join(bytes(m.data) for m in messages) == b"".join(data for data, _ in script)
    assert all(m.message_finished for m in messages[-1:])
    answered = [bytes(event.payload) for event in events if isinstance(event, Pong)]
    # Some were replaced by those after them; the last was not.
    remaining = iter(pongs)
    assert all(pong in remaining for pong in answered)
    assert answered[-1:] == pongs[-1:]


@pytest.mark.parametrize("size", [125, 126, 16_384, 16_385, 65_536, 1 << 20])
def test_sends_of_any_size(size: int) -> None:
    data = random.Random(size).randbytes(size)
    with grudging([1, 1, 1, 7]) as (sock, taken):
        with pytest.raises(BlockingIOError):
            sock.send(data)  # a byte of the header
        sent = 0
        while sent < size:
            with suppress(BlockingIOError):
                sent += sock.send(memoryview(data)[sent:])
        assert sock.between_messages
    messages = [event for event in heard(bytes(taken)) if isinstance(event, BytesMessage)]
    assert b"".join(bytes(message.data) for message in messages) == data
    assert messages[-1].message_finished
    assert max(len(message.data) for message in messages) <= MESSAGE_BYTES


def test_a_message_that_has_begun_is_filled_by_what_comes() -> None:
    """Of what was offered nothing was taken: the one who offered it may have dropped it since."""
    with grudging([1]) as (sock, taken):
        with pytest.raises(BlockingIOError):
            sock.send(b"dropped")  # a byte of the header, which says 7
        sock.send_control(pong_frame(b"!"))
        assert sock.send(b"four") == 4
        assert not sock.between_messages
        assert sock.send(b"more of it") == 3
        assert sock.between_messages
        assert sock.send(b"e of it") == 7
    first, pong, second = heard(bytes(taken))
    assert isinstance(first, BytesMessage)
    assert isinstance(pong, Pong)
    assert isinstance(second, BytesMessage)
    assert (first.data, pong.payload, second.data) == (b"fourmor", b"!", b"e of it")


def test_what_waits_does_not_grow() -> None:
    with grudging([3, *[0] * 1_000]) as (sock, taken):
        for n in range(1_000):
            sock.send_control(pong_frame(b"%03d" % n))
        sock.send_control()
        sock.send_control()
    assert [bytes(e.payload) for e in heard(bytes(taken)) if isinstance(e, Pong)] == [
        b"000",
        b"999",
    ]
