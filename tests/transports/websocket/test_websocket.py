"""Frames: messages, pieces, faults, limits, closing; against bytes by hand and against wsproto."""

from __future__ import annotations

import gc
import random
import struct
import weakref
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wsproto.connection import Connection, ConnectionState, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Event, Ping, Pong, TextMessage

from clearfunds.transports import LocalProtocolError
from clearfunds.transports.websocket import WebSocket
from clearfunds.transports.websocket._frames import FAST_BYTES
from tests import memory
from tests.transports.websocket.frames import (
    BINARY,
    CLOSE,
    CONTINUATION,
    PING,
    PONG,
    TEXT,
    bytewise,
    client,
    feed,
    frame,
    opened,
    request,
)

relaxed = settings(deadline=None)
thorough = settings(deadline=None, max_examples=200)

SIZES = (0, 1, 3, 4, 125, 126, 127, FAST_BYTES, FAST_BYTES + 1, 65535, 65536, 1 << 20)


def heard(data: bytes, peer: Connection | None = None) -> list[Event]:
    """Return what wsproto's client makes of the bytes."""
    peer = peer or client()
    peer.receive_data(data)
    return list(peer.events())


def close_of(data: bytes) -> tuple[int, str | None]:
    """Return the code and the reason of what must be one close frame and nothing more."""
    (event,) = heard(data)
    assert isinstance(event, CloseConnection)
    # A server masks nothing [RFC 6455 section 5.1], and a close frame is short [5.5].
    assert data[0] == 0x88
    assert data[1] == len(data) - 2 <= 125
    return event.code, event.reason


def judge_pong(payload: bytes) -> bytes:
    return Connection(ConnectionType.SERVER).send(Pong(payload))


# -- outgoing -------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", SIZES)
def test_a_frame_is_as_wsproto_makes_it(size: int) -> None:
    payload = random.randbytes(size)
    server = Connection(ConnectionType.SERVER)
    assert WebSocket.frame(payload) == server.send(BytesMessage(payload))


def test_the_frames_of_the_standard() -> None:
    """[RFC 6455 section 5.7], as far as there are binary ones."""
    assert WebSocket.frame(bytes(256))[:4] == bytes.fromhex("827e0100")
    assert WebSocket.frame(bytes(65536))[:10] == bytes.fromhex("827f0000000000010000")
    ws = opened()
    ws.receive_data(bytes.fromhex("8985 37fa213d 7f9f4d5158"))
    assert ws.outgoing() == bytes.fromhex("8a05 48656c6c6f")


# -- messages -------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", SIZES)
def test_a_message_of_wsproto_is_read(size: int) -> None:
    payload = random.randbytes(size)
    ws = opened()
    data = client().send(BytesMessage(payload))
    # With another before and after it, so that its bounds show.
    assert ws.receive_data(frame(BINARY, b"<") + data + frame(BINARY, b">")) == [
        b"<",
        payload,
        b">",
    ]
    assert ws.fault is None
    assert ws.outgoing() == b""


@pytest.mark.parametrize("size", [0, 1, 125, 126, FAST_BYTES + 1, 65536])
def test_a_message_in_pieces_is_read(size: int) -> None:
    payload = random.randbytes(size)
    data = frame(BINARY, payload)
    for cut in {1, 2, 3, 5, 7, 8, 13, len(data) // 2, len(data) - 1} & set(range(len(data))):
        ws = opened()
        assert ws.receive_data(data[:cut]) == []
        assert ws.receive_data(data[cut:] + frame(BINARY, b"next")) == [payload, b"next"]


def test_fragments_are_put_together() -> None:
    """[RFC 6455 section 5.4]: with control frames between them, and empty ones among them."""
    ws = opened()
    assert (
        ws.receive_data(
            frame(BINARY, b"", final=False)
            + frame(CONTINUATION, b"one ", final=False)
            + frame(PING, b"?")
            + frame(CONTINUATION, b"", final=False)
            + frame(CONTINUATION, b"message", final=False)
        )
        == []
    )
    assert ws.outgoing() == b"\x8a\x01?"
    assert ws.receive_data(frame(CONTINUATION) + frame(BINARY, b"another")) == [
        b"one message",
        b"another",
    ]


frames_sent = st.lists(
    st.one_of(
        st.binary(max_size=300).map(lambda payload: [BytesMessage(payload)]),
        st.integers(126, 2 * FAST_BYTES).map(lambda size: [BytesMessage(bytes(size))]),
        st.lists(st.binary(max_size=150), min_size=2, max_size=5).map(
            lambda parts: [
                BytesMessage(part, message_finished=i == len(parts) - 1)
                for i, part in enumerate(parts)
            ]
        ),
        st.binary(max_size=125).map(lambda payload: [Ping(payload)]),
        st.binary(max_size=125).map(lambda payload: [Pong(payload)]),
    ),
    max_size=12,
)


@relaxed
@given(frames_sent, st.randoms(use_true_random=False))
def test_the_messages_do_not_depend_on_how_they_come(
    sent: list[list[Any]], chance: random.Random
) -> None:
    peer = client()
    events = [event for group in sent for event in group]
    data = b"".join(peer.send(event) for event in events)
    said = [
        b"".join(event.data for event in group) for group in sent if type(group[0]) is BytesMessage
    ]
    pieces: list[bytes] = []
    rest = data
    while rest:
        cut = chance.choice((1, 2, 7, 100, 5000))
        pieces.append(rest[:cut])
        rest = rest[cut:]
    pongs: set[bytes] = set()
    for way in ([data], bytewise(data), pieces):
        ws = opened()
        assert feed(ws, way) == said
        assert ws.fault is None
        assert not ws.closed
        pongs.add(ws.outgoing())
    # And the last ping is answered, whichever way.
    pings = [event for event in events if type(event) is Ping]
    assert pongs == {judge_pong(pings[-1].payload) if pings else b""}


# -- faults ---------------------------------------------------------------------------------------

FAULTS = {
    "text": (frame(TEXT, b"hello"), 1003, "text frame"),
    "an empty text": (frame(TEXT), 1003, "text frame"),
    "a text in fragments": (frame(TEXT, b"h", final=False), 1003, "text frame"),
    "unmasked [5.1]": (frame(BINARY, b"x", key=None), 1002, "unmasked"),
    "unmasked ping [5.1]": (frame(PING, b"x", key=None), 1002, "unmasked"),
    "too large": (frame(BINARY, bytes(1001)), 1009, "the limit is 1000"),
    "far too large": (frame(BINARY, length=b"\xff" + b"\x7f" * 8), 1009, "the limit is 1000"),
    "too large in all": (
        frame(BINARY, bytes(999), final=False) + frame(CONTINUATION, b"xx"),
        1009,
        "1001 bytes",
    ),
    "a reserved bit [5.2]": (frame(BINARY, b"x", reserved=4), 1002, "reserved bit"),
    "the second reserved bit [5.2]": (frame(BINARY, b"x", reserved=2), 1002, "reserved bit"),
    "the third reserved bit [5.2]": (frame(PING, b"x", reserved=1), 1002, "reserved bit"),
    "an unknown opcode [5.2]": (frame(3, b"x"), 1002, "opcode"),
    "an unknown control opcode [5.2]": (frame(0xB, b"x"), 1002, "opcode"),
    "a long length [5.2]": (
        frame(BINARY, bytes(125), length=b"\xfe\0\x7d"), 1002, "more bytes than it takes",
    ),
    "a longer length [5.2]": (
        frame(BINARY, length=b"\xff" + struct.pack(">Q", 65535)), 1002, "more bytes than it takes",
    ),
    "a continuation of nothing [5.4]": (frame(CONTINUATION, b"x"), 1002, "no message had begun"),
    "an interrupted message [5.4]": (
        frame(BINARY, b"x", final=False) + frame(BINARY, b"y"),
        1002,
        "within another",
    ),
    "a fragmented ping [5.5]": (frame(PING, b"x", final=False), 1002, "control frame in fragments"),
    "a long ping [5.5]": (frame(PING, bytes(126)), 1002, "over 125 bytes"),
    "a close frame of one byte [5.5.1]": (frame(CLOSE, b"x"), 1002, "no valid code"),
    "a close frame with no UTF-8 [5.5.1]": (frame(CLOSE, b"\x03\xe8\xff"), 1007, "not UTF-8"),
    "a close code of nobody's [7.4.2]": (frame(CLOSE, b"\0\1"), 1002, "00 01"),
    "a close code that is never sent [7.4.1]": (frame(CLOSE, b"\x03\xed"), 1002, "03 ed"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("at_once", [True, False])
def test_a_fault_is_named_and_loses_nothing_before_it(fault: str, at_once: bool) -> None:
    """[RFC 6455 section 7.1.7]."""
    wrong, code, says = FAULTS[fault]
    data = frame(BINARY, b"before") + wrong + frame(BINARY, b"after")
    ws = opened(max_message_size=1000)
    assert feed(ws, [data] if at_once else bytewise(data)) == [b"before"]
    assert says in str(ws.fault)
    assert not ws.closed
    assert ws.outgoing() == b""
    assert "faulty, 0 bytes" in repr(ws)
    said, reason = close_of(ws.close(1001, "not this"))
    assert (said, str(ws.fault).startswith(reason or "-")) == (code, True)
    # Nothing more comes of it.
    known = ws.fault
    assert ws.receive_data(frame(BINARY, b"more")) == []
    assert ws.fault is known
    assert ws.close() == b""


@thorough
@given(st.binary(max_size=300), st.booleans())
def test_no_garbage_makes_it_raise(garbage: bytes, established: bool) -> None:
    pieces = [garbage], bytewise(garbage)
    outcomes: list[tuple[Any, ...]] = []
    for way in pieces:
        ws = opened(200) if established else WebSocket(max_message_size=200, max_handshake_size=200)
        messages = feed(ws, way)
        outcomes.append(
            (messages, str(ws.fault), ws.closed, ws.close_code, ws.outgoing(), len(ws.close()))
        )
    assert outcomes[0] == outcomes[1]


keys = st.sampled_from([b"\0\0\0\0", b"abcd", b"\xff\0\x80\1"])
anything = st.builds(
    frame,
    st.integers(0, 15),
    st.binary(max_size=140) | st.sampled_from([bytes(FAST_BYTES + 1), bytes(65536)]),
    final=st.booleans(),
    reserved=st.sampled_from([0] * 9 + [1, 4]),
    key=keys | keys | keys | st.none(),
)
# Codes that are registered by now, of which wsproto does not know all, are left out.
codes = st.integers(990, 1013) | st.integers(1015, 1020) | st.integers(2990, 5010)
goodbyes = st.binary(max_size=3) | st.tuples(codes, st.binary(max_size=5)).map(
    lambda said: struct.pack(">H", said[0]) + said[1]
)


def fragments(parts: list[bytes], key: bytes, ping: bytes | None) -> list[bytes]:
    """Return the frames of one message, with a ping before its last."""
    last = len(parts) - 1
    frames = [
        frame(CONTINUATION if i else BINARY, part, final=i == last, key=key)
        for i, part in enumerate(parts)
    ]
    return frames if ping is None else [*frames[:-1], frame(PING, ping, key=key), frames[-1]]


payloads = st.binary(max_size=20) | st.sampled_from([bytes(FAST_BYTES + 1), bytes(65536)])
orderly = st.builds(
    fragments,
    st.lists(payloads, min_size=1, max_size=4),
    keys,
    st.none() | st.binary(max_size=10),
)


def one_after_the_other(groups: list[list[bytes]], cut: int, wild: list[bytes]) -> list[bytes]:
    """Return what is in order, from its first or second frame, and then what may not be."""
    return [frame for group in groups for frame in group][cut:] + wild


frames_of_all_kinds = st.builds(
    one_after_the_other,
    st.lists(orderly, max_size=3),
    st.sampled_from([0, 0, 0, 1]),
    st.lists(anything | st.builds(frame, st.just(CLOSE), goodbyes, key=keys), max_size=2),
)


@settings(deadline=None, max_examples=250)
@given(frames_of_all_kinds)
def test_its_verdict_is_that_of_wsproto(frames: list[bytes]) -> None:
    ws, judge = opened(), Connection(ConnectionType.SERVER)
    data = b"".join(frames)
    messages = ws.receive_data(data)
    judge.receive_data(data)
    expected: list[bytes] = []
    message = b""
    fault: int | None = None
    ping: bytes | None = None
    for event in judge.events():
        if isinstance(event, BytesMessage):
            message += event.data
            if event.message_finished:
                expected.append(message)
                message = b""
        elif isinstance(event, Ping):
            ping = event.payload
        elif isinstance(event, TextMessage):
            fault = 1003
            break
        elif isinstance(event, CloseConnection):
            if judge.state is ConnectionState.OPEN:
                fault = event.code
            else:
                assert ws.close_code == event.code
    assert messages == expected
    assert ws.outgoing() == (b"" if ping is None else judge_pong(ping))
    assert ws.closed == (judge.state is ConnectionState.REMOTE_CLOSING)
    assert (ws.fault is None) == (fault is None)
    if fault is not None:
        # wsproto looks at what a text is, and when it comes, before it is found to be one.
        code, _ = close_of(ws.close())
        assert code in (fault, 1003)
        assert code == fault or "text frame" in str(ws.fault)


@thorough
@given(frames_of_all_kinds, st.binary(max_size=20))
def test_no_frames_make_it_raise(frames: list[bytes], rest: bytes) -> None:
    data = b"".join(frames) + rest
    outcomes: list[tuple[Any, ...]] = []
    for way in ([data], [*frames, rest], bytewise(data) if len(data) < 3000 else [data]):
        ws = opened(200)
        messages = feed(ws, way)
        assert all(len(message) <= 200 for message in messages)
        outcomes.append((messages, str(ws.fault), ws.closed, ws.outgoing(), ws.close()))
    assert outcomes[0] == outcomes[1] == outcomes[2]


@thorough
@given(st.integers(0, 400), st.binary(min_size=1, max_size=8), st.booleans())
def test_no_damaged_request_makes_it_raise(at: int, put: bytes, instead: bool) -> None:
    whole = request(Sec_WebSocket_Extensions="permessage-deflate", Sec_WebSocket_Protocol="a, b")
    data = whole[:at] + put + whole[at + (len(put) if instead else 0) :]
    outcomes: list[tuple[Any, ...]] = []
    for way in ([data], bytewise(data)):
        ws = WebSocket(max_message_size=100, max_handshake_size=500)
        feed(ws, way)
        outcomes.append((ws.established, str(ws.fault), ws.outgoing()))
    assert outcomes[0] == outcomes[1]


# -- limits ---------------------------------------------------------------------------------------


def test_a_message_as_large_as_the_limit_is_read() -> None:
    ws = opened(max_message_size=1000)
    assert ws.receive_data(frame(BINARY, bytes(1000))) == [bytes(1000)]
    two = frame(BINARY, bytes(600), final=False) + frame(CONTINUATION, bytes(400))
    assert ws.receive_data(two) == [bytes(1000)]
    assert ws.fault is None


def test_a_message_that_will_be_too_large_is_refused_at_its_header() -> None:
    ws = opened(max_message_size=1000)
    header = frame(BINARY, bytes(70_000))[:14]
    assert feed(ws, bytewise(header[:13])) == []
    assert ws.fault is None
    assert ws.receive_data(header[13:]) == []
    assert "70000 bytes" in str(ws.fault)


ENDLESS = {
    "pings": frame(PING, bytes(125)),
    "empty pings": frame(PING),
    "pongs": frame(PONG, bytes(100)),
    "empty fragments": frame(CONTINUATION, final=False),
}


@pytest.mark.parametrize("what", ENDLESS)
def test_what_is_endless_makes_nothing_grow(what: str) -> None:
    ws = opened(max_message_size=1000)
    ws.receive_data(frame(BINARY, b"begun", final=False))
    read = ENDLESS[what] * (65536 // len(ENDLESS[what]))
    ws.receive_data(read)
    with memory.tracing():
        for _ in range(5):
            assert ws.receive_data(read) == []
        # The answers to one of these reads alone would be more, were they kept.
        assert sum(memory.held()) < 20_000
    assert ws.fault is None
    assert len(ws.outgoing()) <= 127
    assert ws.receive_data(frame(CONTINUATION, b", ended")) == [b"begun, ended"]


def test_several_pings_have_one_answer() -> None:
    """[RFC 6455 section 5.5.3]."""
    ws = opened()
    ws.receive_data(b"".join(frame(PING, b"%d" % n) for n in range(5)))
    assert heard(ws.outgoing()) == [Pong(b"4")]
    assert ws.outgoing() == b""
    ws.receive_data(frame(PING, b"5"))
    assert heard(ws.outgoing()) == [Pong(b"5")]


# -- closing --------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [1000, 1001, 1011, 3000, 4999, None])
def test_the_peer_closes(code: int | None) -> None:
    """[RFC 6455 section 5.5.1]: the code is sent back; what follows the frame is dropped."""
    ws = opened()
    goodbye = b"" if code is None else struct.pack(">H", code) + b"that was all"
    data = frame(BINARY, b"last") + frame(CLOSE, goodbye) + frame(BINARY, b"too late")
    assert ws.receive_data(data) == [b"last"]
    assert ws.closed
    assert ws.fault is None
    assert ws.close_code == (1005 if code is None else code)
    assert ws.receive_data(b"anything") == []
    # Answers to what came before may still be sent; this is when they have been.
    assert ws.outgoing() == b""
    assert close_of(ws.close(1011, "not this")) == (1005 if code is None else code, "")
    assert ws.close() == b""


def test_a_pong_goes_out_before_the_last_word() -> None:
    ws = opened()
    ws.receive_data(frame(PING, b"?") + frame(CLOSE, b"\x03\xe8"))
    assert heard(ws.close()) == [Pong(b"?"), CloseConnection(1000, "")]
    assert ws.outgoing() == b""


def test_this_side_closes() -> None:
    """[RFC 6455 section 7.1.2]."""
    ws = opened()
    peer = client()
    assert heard(ws.close(1001, "the relay stops"), peer) == [
        CloseConnection(1001, "the relay stops")
    ]
    assert not ws.closed
    # Nothing may follow, so nothing is answered.
    assert ws.receive_data(frame(BINARY, b"crossed") + frame(PING, b"?")) == []
    assert ws.receive_data(frame(BINARY, b"half", final=False)) == []
    assert ws.outgoing() == b""
    assert ws.receive_data(peer.send(CloseConnection(1001))) == []
    assert peer.state is ConnectionState.CLOSED
    assert ws.closed
    assert ws.fault is None
    assert ws.close() == b""


def test_both_sides_close_at_once() -> None:
    ws, peer = opened(), client()
    ours, theirs = ws.close(1001), peer.send(CloseConnection(1000))
    ws.receive_data(theirs)
    heard(ours, peer)
    assert peer.state is ConnectionState.CLOSED
    assert ws.closed
    assert ws.outgoing() == ws.close() == b""


def test_a_fault_after_closing_is_noted_and_not_answered() -> None:
    ws = opened()
    ws.close()
    assert ws.receive_data(frame(TEXT, b"x")) == []
    assert "text frame" in str(ws.fault)
    assert ws.close() == ws.outgoing() == b""


@pytest.mark.parametrize("reason", ["x" * 200, "\u20ac" * 60, "x" + "\u20ac" * 60, "\ud800!"])
def test_any_reason_can_be_given(reason: str) -> None:
    code, said = close_of(opened().close(1011, reason))
    assert code == 1011
    assert said
    assert reason.encode(errors="replace").startswith(said.encode())


@pytest.mark.parametrize("code", [0, 999, 1005, 1006, 1015, 5000])
def test_some_codes_are_not_to_be_sent(code: int) -> None:
    """[RFC 6455 section 7.4.1]."""
    ws = opened()
    with pytest.raises(LocalProtocolError, match=str(code)):
        ws.close(code)
    assert close_of(ws.close()) == (1000, "")


def test_a_client_of_wsproto_is_refused_its_text() -> None:
    ws, peer = opened(), client()
    ws.receive_data(peer.send(TextMessage("hello")))
    (event,) = heard(ws.close(), peer)
    assert isinstance(event, CloseConnection)
    assert event.code == 1003


@pytest.mark.parametrize(("established", "wrong"), [(True, frame(TEXT)), (False, b"GET\r\n\r\n")])
def test_a_connection_that_broke_is_freed_at_once(established: bool, wrong: bytes) -> None:
    ws = opened() if established else WebSocket(max_message_size=100)
    ws.receive_data(wrong)
    assert ws.fault is not None
    assert ws.fault.__context__ is None
    gone = weakref.ref(ws.fault)
    gc.disable()
    try:
        del ws
        assert gone() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("most", [None, 1_000])
def test_a_length_with_its_first_bit_set_is_a_fault(most: int | None) -> None:
    """[RFC 6455 section 5.2]; as wsproto has it."""
    ws = WebSocket(max_message_size=most)
    ws.receive_data(request())
    ws.receive_data(frame(BINARY, b"x", length=b"\xff" + b"\xff" * 8))
    assert "first bit" in str(ws.fault)
    ws.outgoing()
    assert close_of(ws.close())[0] == 1002


@thorough
@given(st.binary(max_size=40_000), st.lists(st.integers(1, 9_000), max_size=20), st.randoms())
def test_a_stream_is_whatever_the_messages_were(
    data: bytes, sizes: list[int], rng: random.Random
) -> None:
    """Nothing of it is held, wherever frames and reads end."""
    sent = b""
    at = 0
    for size in [*sizes, len(data)]:
        piece, at = data[at : at + size], at + size
        final = rng.random() < 0.5
        sent += frame(BINARY, piece, final=final, key=rng.randbytes(4))
        if not final:
            sent += frame(PING, b"in between") + frame(CONTINUATION, key=rng.randbytes(4))
    ws = WebSocket(max_message_size=None)
    ws.receive_data(request())
    got = b""
    while sent:
        cut = rng.choice((1, 7, 200, 9_000, 65_536))
        got += b"".join(ws.receive_data(sent[:cut]))
        sent = sent[cut:]
    assert ws.fault is None
    assert got == data
