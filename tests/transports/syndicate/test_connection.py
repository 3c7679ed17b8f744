"""The connection: pieces, modes, limits, the end."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clearfunds.transports import LocalProtocolError, RemoteProtocolError
from clearfunds.transports.syndicate import (
    NEED_DATA,
    Assert,
    Connection,
    Error,
    Frame,
    Message,
    Nop,
    Packet,
    Record,
    State,
    Symbol,
    Turn,
    TurnEvent,
    decode,
    encode,
)
from clearfunds.transports.syndicate._packets import to_value
from clearfunds.transports.syndicate._preserves import canonical
from tests.transports.syndicate.preserves_values import damaged, garbage, values
from tests.transports.syndicate.test_packets import SESSION, packets

relaxed = settings(deadline=None)
thorough = settings(deadline=None, max_examples=300)


def message(body: Any) -> Turn:
    return Turn((TurnEvent(0, Message(body)),))


def drain(connection: Connection) -> list[Packet | str]:
    """Return all packets that are there; the last is the fault, as text, if there is one."""
    found: list[Packet | str] = []
    try:
        while (packet := connection.next_packet()) is not NEED_DATA:
            found.append(packet)
    except RemoteProtocolError as exc:
        found.append(str(exc))
    return found


def feed(pieces: list[bytes], **limits: int) -> tuple[list[Packet | str], Connection]:
    connection = Connection(**limits)
    found: list[Packet | str] = []
    for piece in pieces:
        connection.receive_data(piece)
        new = drain(connection)
        if new and found and new == found[-1:] and isinstance(new[0], str):
            continue  # a fault is told again
        found += new
    return found, connection


def written(found: list[Packet | str]) -> list[bytes | str]:
    """Packets in a form that tells 1 from True."""
    return [p if isinstance(p, str) else canonical(to_value(p)) for p in found]


def singly(data: bytes) -> list[bytes]:
    return [data[i : i + 1] for i in range(len(data))]


streams = st.lists(
    packets.map(encode) | packets.map(lambda packet: encode(packet, text=True)), max_size=4
).map(b"".join)


def test_a_recorded_session_in_one_piece_and_in_single_bytes() -> None:
    data = b"".join(bytes.fromhex(h) for _, h, _, _ in SESSION if "error" not in h)
    texts = "\n".join(text for *_, text in SESSION).encode() + b"\n"
    expected = [packet for _, _, packet, _ in SESSION]
    # The error is the last but two, and nothing comes after it.
    until = [name for name, *_ in SESSION].index("error") + 1
    for stream in (data, texts):
        for pieces in ([stream], singly(stream)):
            found, connection = feed(pieces)
            assert found == expected[:until]
            assert connection.state is State.CLOSED


@thorough
@given(streams, st.data())
def test_how_the_input_is_cut_changes_nothing(stream: bytes, data: st.DataObject) -> None:
    whole, one = feed([stream])
    single, two = feed(singly(stream))
    assert written(single) == written(whole)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=5)))
    pieces = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    some, three = feed(pieces)
    assert written(some) == written(whole)
    assert one.unparsed_bytes == two.unparsed_bytes == three.unparsed_bytes
    assert one.text is two.text is three.text


text_garbage = st.text(
    st.sampled_from("[]<>{}#@:;\"'\\ \n\t!xdft01aAM,.-()") | st.characters(codec="utf-8"),
    max_size=30,
).map(str.encode)
hostile = st.one_of(
    garbage,
    garbage.map(lambda data: b"\xb5" + data),
    text_garbage,
    text_garbage.map(lambda data: b"[" + data),
    st.binary(max_size=20),
    streams.flatmap(damaged),
    streams.flatmap(lambda stream: garbage.map(lambda data: stream + data)),
)


@thorough
@given(hostile)
def test_garbage_is_a_remote_error_and_the_same_in_single_bytes(data: bytes) -> None:
    limits = {"max_packet_size": 300, "max_text_size": 200, "max_depth": 8}
    whole, one = feed([data], **limits)
    single, two = feed(singly(data), **limits)
    assert written(single) == written(whole)
    assert one.state is two.state
    assert one.unparsed_bytes == two.unparsed_bytes
    assert one.unparsed_bytes <= 300
    faults = [fault for fault in whole if isinstance(fault, str)]
    assert len(faults) == (one.state is State.CLOSED and not isinstance(whole[-1], Error))


@relaxed
@given(values.map(message).map(encode).flatmap(damaged))
def test_a_frame_without_references_can_be_forwarded(data: bytes) -> None:
    connection = Connection()
    connection.receive_data(data)
    try:
        frame = connection.next_frame()
    except RemoteProtocolError:
        return
    if frame is NEED_DATA or frame.embedded or frame.parts is None:
        return
    for part in frame.parts:
        other = Connection()
        body = frame.data[part.start : part.end]
        other.receive_data(b"\xb5\xb5\xb0\x00\xb4\xb3\x01M" + body + b"\x84\x84\x84")
        packet = other.next_packet()
        assert isinstance(packet, Turn)
        assert isinstance(packet.events[0].event, Message)


def frame_of(data: bytes) -> Frame:
    connection = Connection()
    connection.receive_data(data)
    frame = connection.next_frame()
    assert frame is not NEED_DATA
    return frame


def test_a_frame_tells_what_need_not_be_decoded() -> None:
    packet = Turn((TurnEvent(7, Assert(Record(Symbol("a"), ("b",)), 9)),))
    data = encode(packet)
    frame = frame_of(data)
    assert bytes(frame) == data
    assert (frame.text, frame.embedded, frame.packet) == (False, False, None)
    assert frame.parts is not None
    (part,) = frame.parts
    assert (part.oid, part.kind, part.handle) == (7, ord("A"), 9)
    assert data[part.start : part.end] == b"\xb4\xb3\x01a\xb1\x01b\x84"

    frame = frame_of(b"[[0 <M 1>]]")
    assert frame.text
    assert (frame.parts, frame.packet) == (None, message(1))


def framed(body: bytes) -> bytes:
    return b"\xb5\xb5\xb0\x00\xb4\xb3\x01M" + body + b"\x84\x84\x84"


@pytest.mark.parametrize(
    ("once", "twice"),
    [
        (b"\xb7\x80\x80\x81\x80\x84", b"\xb7\x80\x80\x80\x80\x84"),
        (b"\xb6\xb0\x01\x01\xb0\x01\x02\x84", b"\xb6\xb0\x01\x01\xb0\x01\x01\x84"),
        (b"\xb5\xb6\xb4\x80\x84\xb4\x81\x84\x84\x84", b"\xb5\xb6\xb4\x80\x84\xb4\x80\x84\x84\x84"),
    ],
    ids=["mapping", "set", "inner set"],
)  # fmt: skip
def test_what_comes_twice_is_refused_before_it_is_forwarded(once: bytes, twice: bytes) -> None:
    assert frame_of(framed(once)).parts is not None
    connection = Connection()
    connection.receive_data(framed(twice))
    with pytest.raises(RemoteProtocolError, match="Duplicate"):
        connection.next_frame()


# -- modes --------------------------------------------------------------------------------------


def test_what_goes_out_is_written_as_what_came_in_last() -> None:
    connection = Connection()
    assert connection.send(message(1)) == encode(message(1))
    connection.receive_data(b"[]\n")
    assert connection.next_packet() == Turn(())
    assert connection.send(message(1)) == b"[[0 <M 1>]]\n"
    connection.receive_data(b"\xb5")
    assert connection.next_packet() is NEED_DATA
    assert connection.send(message(1)) == b"[[0 <M 1>]]\n"
    connection.receive_data(b"\x84")
    assert connection.next_packet() == Turn(())
    assert connection.send(message(1)) == encode(message(1))


def test_white_space_between_packets_does_not_matter() -> None:
    found, connection = feed([b"\n []\r\n\t\xb5\x84\n\n[] \x80 #f\n \n"])
    assert found == [Turn(()), Turn(()), Turn(()), Nop(), Nop()]
    assert connection.unparsed_bytes == 0


def test_nothing_but_white_space_is_not_kept() -> None:
    connection = Connection()
    for _ in range(1000):
        connection.receive_data(b" \n")
        assert connection.next_packet() is NEED_DATA
        assert connection.unparsed_bytes == 0


def test_a_nop_in_text_is_known_by_what_follows() -> None:
    connection = Connection()
    connection.receive_data(b"#f")
    assert connection.next_packet() is NEED_DATA
    connection.receive_data(b"[")
    assert connection.next_packet() == Nop()
    connection.receive_data(b"]#f;")
    assert connection.next_packet() == Turn(())
    assert connection.next_packet() == Nop()
    with pytest.raises(RemoteProtocolError, match="begins with byte 0x3b"):
        connection.next_packet()


@pytest.mark.parametrize(
    "first", [b"a", b"1", b'"', b"{", b"\xb1", b"\xb7", b"\x86", b"\x84", b"]"]
)
def test_what_begins_no_packet_is_refused_at_once(first: bytes) -> None:
    connection = Connection()
    connection.receive_data(first)
    with pytest.raises(RemoteProtocolError):
        connection.next_packet()


# -- limits -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (b"\xb5" * 65, "64 deep"),
        (b"\xb5" + b"\x86" * 64, "64 deep"),
        (b"[" * 65, "64 deep"),
        (b"[" + b"@" * 64, "64 deep"),
        (b"[" + b"# \n" * 64, "64 deep"),
        (b"\xb5\xb2\x80\x80\x80\x01", "at most 2097152"),
        (b"\xb5" + b"\x80" * (2 << 20), "at most 2097152"),
        (b"[" + b" " * (64 << 10), "more than 16384"),
        (b'["' + b"\\n" * (32 << 10), "more than 16384"),
    ],
)
def test_depth_and_size_are_limited_by_default(data: bytes, fault: str) -> None:
    connection = Connection()
    connection.receive_data(data)
    with pytest.raises(RemoteProtocolError, match=fault):
        connection.next_packet()


def test_the_limits_are_options() -> None:
    deep = encode(message([[["x" * 100]]]))
    assert feed([deep], max_depth=6, max_packet_size=len(deep))[0] == decoded(deep)
    assert "deep" in str(feed([deep], max_depth=5)[0])
    assert "or more" in str(feed([deep], max_packet_size=len(deep) - 1)[0])
    text = encode(message([[["x" * 100]]]), text=True).rstrip()
    assert feed([text], max_depth=6, max_text_size=len(text))[0] == decoded(deep)
    assert "deep" in str(feed([text], max_depth=5)[0])
    assert "more than" in str(feed([text], max_text_size=len(text) - 1)[0])
    # What limits packets limits those in text, too.
    assert "more than" in str(feed([text], max_packet_size=len(text) - 1)[0])


def decoded(data: bytes) -> list[Packet]:
    return [decode(data)]


def test_a_large_packet_in_small_pieces_is_held_once() -> None:
    data = encode(message(b"x" * 100_000))
    connection = Connection()
    for at in range(0, len(data), 1000):
        assert connection.next_packet() is NEED_DATA
        connection.receive_data(data[at : at + 1000])
        assert connection.unparsed_bytes == min(at + 1000, len(data))
    assert connection.next_packet() == message(b"x" * 100_000)
    assert connection.unparsed_bytes == 0


# -- the end ------------------------------------------------------------------------------------


def test_a_fault_is_told_again_and_one_error_may_still_be_sent() -> None:
    connection = Connection()
    connection.receive_data(b"[][0]")
    assert connection.next_packet() == Turn(())
    for _ in range(2):
        with pytest.raises(RemoteProtocolError, match="made of"):
            connection.next_packet()
    connection.receive_data(b"[]")
    assert connection.unparsed_bytes == 0
    with pytest.raises(LocalProtocolError, match="cannot send Turn"):
        connection.send(message(1))
    assert connection.send(Error("no", 1)) == b'<error "no" 1>\n'
    with pytest.raises(LocalProtocolError, match="cannot send Error"):
        connection.send(Error("no"))
    with pytest.raises(RemoteProtocolError, match="made of"):
        connection.next_packet()


def test_a_fault_found_elsewhere_closes_it_too() -> None:
    connection = Connection()
    connection.receive_data(b"[]")
    connection.fail(RemoteProtocolError("handle 1 is in use"))
    with pytest.raises(RemoteProtocolError, match="handle 1"):
        connection.next_packet()
    connection.fail(RemoteProtocolError("another"))
    with pytest.raises(RemoteProtocolError, match="handle 1"):
        connection.next_packet()
    assert connection.send(Error("handle 1 is in use")) == encode(Error("handle 1 is in use"))


def test_an_error_of_the_peer_is_the_last_packet() -> None:
    connection = Connection()
    connection.receive_data(encode(Error("gone")) + encode(Nop()))
    assert connection.next_packet() == Error("gone")
    assert connection.state is State.CLOSED
    assert connection.next_packet() is NEED_DATA
    assert connection.unparsed_bytes == 0
    with pytest.raises(LocalProtocolError):
        connection.send(Error("too"))


@pytest.mark.parametrize("end", ["send", "close"])
def test_the_end_from_this_side(end: str) -> None:
    connection = Connection()
    connection.receive_data(b"[][")
    if end == "send":
        connection.send(Error("enough"))
    else:
        connection.close()
        connection.close()
    assert connection.state is State.CLOSED
    assert connection.next_packet() is NEED_DATA
    connection.receive_data(b"[]")
    assert connection.next_packet() is NEED_DATA
    with pytest.raises(LocalProtocolError):
        connection.send(Nop())


def test_a_packet_that_cannot_be_encoded_changes_nothing() -> None:
    connection = Connection()
    with pytest.raises(LocalProtocolError):
        connection.send(Error("no", object()))
    assert connection.send(Nop()) == b"\x80"


def test_it_shows_its_state() -> None:
    connection = Connection()
    connection.receive_data(b"\xb5")
    assert repr(connection) == "<syndicate.Connection open, binary, 1 bytes unparsed>"
    assert repr(NEED_DATA) == "NEED_DATA"
