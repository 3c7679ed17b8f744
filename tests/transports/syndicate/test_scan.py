"""The walk over the tags, compared with the `preserves` library."""

from __future__ import annotations

from typing import Any, SupportsIndex, overload

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clearfunds.transports import RemoteProtocolError
from clearfunds.transports.syndicate import (
    Assert,
    Message,
    Record,
    Retract,
    Scanner,
    Symbol,
    Sync,
    Turn,
    TurnEvent,
    WireRef,
    decode,
    encode,
    event_parts,
)
from clearfunds.transports.syndicate._preserves import decode_binary
from clearfunds.transports.syndicate._scan import MAX_INTEGER_SIZE
from tests.transports.syndicate.preserves_values import (
    alike,
    damaged,
    encoded,
    garbage,
    library_reads,
    plain_values,
    values,
)

relaxed = settings(deadline=None)
thorough = settings(deadline=None, max_examples=250)


def find(data: bytes) -> int | str | None:
    """Return what a fresh scanner says of `data`; "garbage" for an error."""
    try:
        return Scanner().find_end(data, 0)
    except RemoteProtocolError:
        return "garbage"


@relaxed
@given(values, st.binary(max_size=3))
def test_the_end_of_a_value_is_found_whatever_follows(value: Any, rest: bytes) -> None:
    data = encoded(value)
    assert Scanner().find_end(data + rest, 0) == len(data)
    assert Scanner().find_end(rest + data, len(rest)) == len(rest) + len(data)


@relaxed
@given(values)
def test_a_value_is_found_when_its_last_byte_has_come_and_not_before(value: Any) -> None:
    data = encoded(value)
    scanner = Scanner()
    for size in range(len(data)):
        assert scanner.find_end(data[:size], 0) is None
    assert scanner.find_end(data, 0) == len(data)
    # It stands at the start of the next one.
    assert scanner.find_end(data + data, len(data)) == 2 * len(data)


@relaxed
@given(st.lists(values, max_size=4), st.data())
def test_pieces_and_moves_of_the_buffer_change_nothing(
    many: list[Any], data: st.DataObject
) -> None:
    stream = b"".join(encoded(value) for value in many)
    scanner = Scanner()
    buffer = b""
    ends: list[int] = []
    done = 0
    while stream:
        size = data.draw(st.integers(1, len(stream)))
        buffer += stream[:size]
        stream = stream[size:]
        while buffer:
            end = scanner.find_end(buffer, 0)
            if end is None:
                break
            done += end
            ends.append(done)
            buffer = buffer[end:]
    assert buffer == b""
    expected = 0
    for value, end in zip(many, ends, strict=True):
        expected += len(encoded(value))
        assert end == expected


@thorough
@given(garbage | values.map(encoded).flatmap(damaged))
def test_it_agrees_with_the_library_on_every_input(data: bytes) -> None:
    scanner = Scanner()
    try:
        end = scanner.find_end(data, 0)
    except RemoteProtocolError as exc:
        limited = "are accepted" in str(exc) or "a length in a packet takes" in str(exc)
        # No prefix and no continuation of it is a value to the library either.
        assert limited or not any(library_reads(data[:size]) for size in range(len(data) + 1))
        return
    if end is None:
        assert not any(library_reads(data[:size]) for size in range(len(data) + 1))
    elif not library_reads(data[:end]):
        # What takes a comparison of keys or members is left to the library.
        assert scanner.keyed
        with pytest.raises(RemoteProtocolError, match=r"Duplicate|Missing dictionary value"):
            decode_binary(data[:end])


@relaxed
@given(garbage | values.map(encoded).flatmap(damaged))
def test_byte_by_byte_gives_the_same_as_all_at_once(data: bytes) -> None:
    scanner = Scanner()
    found: int | str | None = None
    for size in range(1, len(data) + 1):
        try:
            found = scanner.find_end(data[:size], 0)
        except RemoteProtocolError:
            found = "garbage"
        if found is not None:
            break
    assert found == find(data)


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (b"\x00", "0x00"),
        (b"\xb5\x82", "0x82"),
        (b"\xbf", "0xbf"),
        (b"\x84", "end marker"),
        (b"\x86\x84", "end marker"),
        (b"\xb5\x85\x80\x84", "end marker"),
        (b"\xb4\x84", "label"),
        (b"\x87\x04", "double"),
        (b"\xb1\x01\xff", "UTF-8"),
        (b"\xb3\x02\xc3(", "UTF-8"),
        (b"\xb1\xed\xa0", "at most"),  # a length of 10 MiB or more, incomplete or not
        (b"\xb2\xff\xff\xff\xff\x7f", "at most"),
        (b"\xb2\xff\xff\xff\xff\xff", "more than 5 bytes"),
        (b"\xb0\x82\x04", "integer of 514 bytes"),
    ],
)
def test_garbage_is_refused_at_the_byte_that_tells(data: bytes, fault: str) -> None:
    if data == b"\xb1\xed\xa0":
        data = b"\xb1\xed\xa0\x85\x05"
    scanner = Scanner()
    for size in range(1, len(data)):
        assert scanner.find_end(data[:size], 0) is None
    with pytest.raises(RemoteProtocolError, match=fault):
        scanner.find_end(data, 0)


def test_an_integer_may_be_as_long_as_the_limit() -> None:
    data = encoded(2 ** (8 * MAX_INTEGER_SIZE - 1) - 1)
    assert Scanner().find_end(data, 0) == len(data)
    with pytest.raises(RemoteProtocolError):
        Scanner().find_end(encoded(2 ** (8 * MAX_INTEGER_SIZE - 1)), 0)


@pytest.mark.parametrize("prefix", [b"\xb5", b"\xb4", b"\xb6", b"\xb7", b"\x86", b"\x85"])
def test_nesting_is_limited_whatever_nests(prefix: bytes) -> None:
    assert Scanner(max_depth=5).find_end(prefix * 5, 0) is None
    with pytest.raises(RemoteProtocolError, match="more than 5 deep"):
        Scanner(max_depth=5).find_end(prefix * 6, 0)


@pytest.mark.parametrize("depth", [1, 2])
def test_a_turn_is_nested_three_deep_before_its_body(depth: int) -> None:
    data = encode(Turn((TurnEvent(0, Message(1)),) * 2))
    assert Scanner(max_depth=3).find_end(data, 0) == len(data)
    with pytest.raises(RemoteProtocolError, match=f"more than {depth} deep"):
        Scanner(max_depth=depth).find_end(data, 0)


def test_depth_is_not_counted_over_siblings() -> None:
    data = encoded([[(), (), ()]] * 50)
    assert Scanner(max_depth=3).find_end(data, 0) == len(data)
    annotated = b"\xb5" + b"\x85\x80\x86\x81" * 50 + b"\x84"
    assert Scanner(max_depth=3).find_end(annotated, 0) == len(annotated)


def test_the_size_is_limited_to_the_byte() -> None:
    data = encoded(("x" * 10, True))
    assert Scanner(max_packet_size=len(data)).find_end(data, 0) == len(data)
    for size in range(1, len(data)):
        scanner = Scanner(max_packet_size=size)
        with pytest.raises(RemoteProtocolError, match="or more"):
            scanner.find_end(data, 0)
        # Not more than the limit has to come for it to say so.
        scanner = Scanner(max_packet_size=size)
        with pytest.raises(RemoteProtocolError, match="or more"):
            scanner.find_end(data[:size], 0)


class Counted(bytearray):
    """Counts how often single bytes of it are looked at."""

    looks = 0

    @overload
    def __getitem__(self, key: SupportsIndex) -> int: ...
    @overload
    def __getitem__(self, key: slice) -> bytearray: ...
    def __getitem__(self, key: SupportsIndex | slice) -> int | bytearray:
        self.looks += 1
        return super().__getitem__(key)


@pytest.mark.parametrize(
    "value",
    [[True] * 3000, ["abc"] * 1000, [[[()]]] * 500, "x" * 5000, {n: n for n in range(800)}],
)
def test_a_value_in_single_bytes_is_gone_over_once(value: Any) -> None:
    data = encoded(value)
    buffer = Counted()
    scanner = Scanner()
    end: int | None = None
    for byte in data:
        buffer.append(byte)
        end = scanner.find_end(buffer, 0)
    assert end == len(data)
    assert buffer.looks < 8 * len(data)


# -- the parts of a turn ------------------------------------------------------------------------

handles = st.integers(0, 2**40) | st.integers()
events = st.one_of(
    st.builds(Message, values),
    st.builds(Assert, values, handles),
    st.builds(Retract, handles),
    st.builds(Sync, st.just(WireRef(True, 3))),
)
turns = st.lists(st.builds(TurnEvent, st.integers(0, 10**6), events), max_size=4).map(
    lambda events: Turn(tuple(events))
)


@thorough
@given(turns, st.binary(max_size=2))
def test_the_parts_of_a_turn_are_those_of_its_decoding(turn: Turn, before: bytes) -> None:
    data = before + encode(turn)
    scanner = Scanner()
    assert scanner.find_end(data, len(before)) == len(data)
    parts = event_parts(data, len(before), scanner.marks)
    if parts is None:
        assert any(_has_reference_for_body(entry) for entry in turn.events)
        return
    for part, entry in zip(parts, turn.events, strict=True):
        assert part.oid == entry.oid
        body = decode_binary(data[part.start : part.end])
        match entry.event:
            case Message(expected):
                assert (part.kind, part.handle) == (ord("M"), 0)
                assert alike(body, expected)
            case Assert(expected, handle):
                assert (part.kind, part.handle) == (ord("A"), handle)
                assert alike(body, expected)
            case Retract(handle):
                assert (part.kind, part.handle, body) == (ord("R"), handle, handle)
            case Sync():
                pytest.fail("a sync's body is a reference")


def _has_reference_for_body(entry: TurnEvent) -> bool:
    match entry.event:
        case Sync():
            return True
        case Message(body) | Assert(body, _):
            return encoded(body)[0] == 0x86
        case Retract():
            return False


@relaxed
@given(st.lists(st.builds(TurnEvent, st.integers(0, 99), st.builds(Message, plain_values))))
def test_turns_of_messages_without_references_are_always_plain(sent: list[TurnEvent]) -> None:
    data = encode(Turn(tuple(sent)))
    scanner = Scanner()
    scanner.find_end(data, 0)
    parts = event_parts(data, 0, scanner.marks)
    assert parts is not None
    assert len(parts) == len(sent)


@thorough
@given(turns.map(encode).flatmap(damaged))
def test_damaged_turns_are_not_taken_for_plain_ones(data: bytes) -> None:
    scanner = Scanner()
    try:
        end = scanner.find_end(data, 0)
        if end is None:
            return
        if scanner.keyed:
            decode_binary(data[:end])
    except RemoteProtocolError:
        return
    parts = event_parts(data, 0, scanner.marks)
    if parts is None or scanner.embedded:
        return
    packet = decode(data[:end])
    assert isinstance(packet, Turn)
    for part, entry in zip(parts, packet.events, strict=True):
        assert part.oid == entry.oid
        body = decode_binary(data[part.start : part.end])
        match entry.event:
            case Message(expected) | Assert(expected, _):
                assert alike(body, expected)
            case Retract(handle):
                assert part.handle == handle
            case Sync():
                pytest.fail("a sync's body is a reference")


@pytest.mark.parametrize(
    "value",
    [
        Record(Symbol("do"), ()),
        False,
        [1],
        [[0]],
        [[0, Record(Symbol("M"), ())]],
        [[0, Record(Symbol("M"), (1, 2))]],
        [[0, Record(Symbol("M"), ([], []))]],
        [[0, Record(Symbol("M"), (1,)), 1]],
        [[0, Record(Symbol("M"), (1,))], 1],
        [[True, Record(Symbol("M"), (1,))]],
        [["0", Record(Symbol("M"), (1,))]],
        [[0, Record(Symbol("X"), (1,))]],
        [[0, Record("M", (1,))]],
        [[0, Record(Symbol("MM"), (1,))]],
        [[0, Record(Symbol("A"), (1,))]],
        [[0, Record(Symbol("A"), (1, "1"))]],
        [[0, Record(Symbol("A"), (1, 1, 1))]],
        [[0, Record(Symbol("R"), ("1",))]],
        [[0, Record(Symbol("R"), ([1],))]],
        [[0, [Symbol("M"), 1]]],
    ],
    ids=str,
)
def test_what_is_no_plain_turn_is_not_taken_for_one(value: Any) -> None:
    data = encoded(value)
    scanner = Scanner()
    assert scanner.find_end(data, 0) == len(data)
    assert event_parts(data, 0, scanner.marks) is None


def test_lengths_and_numbers_may_be_written_at_length() -> None:
    # The library reads these; whoever writes them so is decoded in full.
    message = b"\xb5\xb5\xb0\x80\x00\xb4\xb3\x01M\xb1\x81\x00x\x84\x84\x84"
    scanner = Scanner()
    assert scanner.find_end(message, 0) == len(message)
    assert event_parts(message, 0, scanner.marks) is None
    assert decode(message) == Turn((TurnEvent(0, Message("x")),))
    # Were its length taken for 128, this body would hold what looks like the rest of the event.
    body = b"\xb2\x81\x01" + bytes(120) + b"\xb4\xb3\x01M\xb2\x03abc"
    message = b"\xb5\xb5\xb0\x80\x00\xb4\xb3\x01M" + body + b"\x84\x84\x84"
    assert message[4 + 128 :].startswith(b"\xb4\xb3\x01M")
    assert scanner.find_end(message, 0) == len(message)
    assert event_parts(message, 0, scanner.marks) is None
    message = b"\xb5\xb5\xb0\x00\xb4\xb3\x01M\xb1\x81\x00x\x84\x84\x84"
    assert scanner.find_end(message, 0) == len(message)
    parts = event_parts(message, 0, scanner.marks)
    assert parts is not None
    assert message[parts[0].start : parts[0].end] == b"\xb1\x81\x00x"


def test_bytes_that_look_like_an_event_are_not_taken_for_one() -> None:
    # [0 <M #t> #"..." [] []] [0 <M #t>]: the first pair has too much in it. If that were not seen,
    # the length of the bytes, and they, would pass for an event that ends where the pair does.
    size = 22_581
    length = b"\xb5\xb0\x01"
    assert sum((byte & 127) << 7 * i for i, byte in enumerate(length)) == size
    inner = size - 9 + 3
    begin = b"\0\xb4\xb3\x01M\xb2" + bytes((inner & 127 | 128, inner >> 7 & 127 | 128, inner >> 14))
    forged = b"\xb2" + length + begin + bytes(size - len(begin))
    event = b"\xb0\x00\xb4\xb3\x01M\x81\x84"
    data = b"\xb5\xb5" + event + forged + b"\xb5\x84\xb5\x84\x84\xb5" + event + b"\x84\x84"
    scanner = Scanner()
    assert scanner.find_end(data, 0) == len(data)
    assert event_parts(data, 0, scanner.marks) is None
    with pytest.raises(RemoteProtocolError, match="is made of"):
        decode(data)
