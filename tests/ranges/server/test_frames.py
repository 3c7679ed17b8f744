"""The frames: what is sent is what is read, however it comes; garbage is refused in one way."""

from __future__ import annotations

import contextlib
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clearfunds.ranges.server import FrameReader
from clearfunds.ranges.wire import (
    Ack,
    AfterGrace,
    AskHead,
    Attach,
    Auth,
    Detach,
    Drop,
    ErrorCode,
    Fetch,
    Frame,
    Hello,
    Kind,
    Ping,
    Reach,
    Request,
    Start,
    encode_error,
    encode_request,
    parse_request,
)
from clearfunds.transports import RemoteProtocolError
from tests.dataspace.conftest import STEADY

U16, U32, U64 = st.integers(0, 2**16 - 1), st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
TEXTS = st.text(max_size=20).filter(lambda text: "\0" not in text)
REQUESTS: st.SearchStrategy[Request] = st.one_of(
    st.builds(Hello, U16, U16),
    st.builds(Auth, TEXTS, st.binary(max_size=20)),
    st.builds(Ping),
    st.builds(Detach, U32),
    st.builds(AskHead, U32),
    st.builds(Drop, U32),
    st.builds(Fetch, U32, U64, U64, U32),
    st.builds(Ack, U32, U64),
    st.builds(Reach, U32, U64, U64),
    st.builds(
        Attach,
        name=TEXTS,
        generation=U64,
        incarnation=st.binary(min_size=16, max_size=16),
        filters=st.lists(TEXTS, max_size=3).map(tuple),
        grace=st.none() | st.floats(min_value=0, allow_nan=False),
        after_grace=st.none() | st.sampled_from(AfterGrace),
        durable=st.booleans(),
        start=st.none() | st.sampled_from(Start),
        join=st.booleans(),
    ),
)


def read(reader: FrameReader) -> list[tuple[int, Request]]:
    found: list[tuple[int, Request]] = []
    while isinstance(frame := reader.next_frame(), Frame):
        found.append((frame.request, parse_request(frame)))
    return found


@settings(STEADY, max_examples=100)
@given(st.lists(st.tuples(U32, REQUESTS), max_size=4))
def test_requests_come_through_byte_by_byte_and_all_at_once(
    requests: list[tuple[int, Request]],
) -> None:
    data = b"".join(encode_request(number, request) for number, request in requests)
    at_once, one_by_one = FrameReader(), FrameReader()
    at_once.receive_data(data)
    assert read(at_once) == requests
    assert at_once.unparsed_bytes == 0
    found: list[tuple[int, Request]] = []
    for byte in data:
        one_by_one.receive_data(bytes((byte,)))
        found += read(one_by_one)
    assert found == requests


@settings(STEADY, max_examples=200)
@given(st.lists(st.tuples(U32, REQUESTS), max_size=2), st.binary(max_size=30), st.data())
def test_garbage_is_refused_in_one_way(
    requests: list[tuple[int, Request]], garbage: bytes, data: st.DataObject
) -> None:
    raw = b"".join(encode_request(number, request) for number, request in requests)
    place = data.draw(st.integers(0, len(raw)))
    cut = data.draw(st.integers(0, 3))
    raw = raw[:place] + garbage + raw[place + cut :]
    reader = FrameReader(1 << 12)
    reader.receive_data(raw)
    with contextlib.suppress(RemoteProtocolError, ValueError):
        read(reader)


@settings(STEADY, max_examples=200)
@given(st.integers(0, 255), st.binary(max_size=80))
def test_any_contents_are_parsed_or_refused(kind: int, payload: bytes) -> None:
    try:
        request = parse_request(Frame(kind, 1, payload))
    except ValueError:
        return
    again = FrameReader()
    again.receive_data(encode_request(1, request))
    assert read(again) == [(1, request)]


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (struct.pack("<IBI", 3, 4, 0), "a frame of 7 bytes: it has to have 12 at least"),
        (struct.pack("<I", 2000), r"a frame of 2004 bytes.* 100 are the limit"),
    ],
)
def test_frames_have_a_size(raw: bytes, why: str) -> None:
    reader = FrameReader(100)
    reader.receive_data(raw)
    with pytest.raises(RemoteProtocolError, match=why):
        reader.next_frame()


@pytest.mark.parametrize(
    ("kind", "payload", "why"),
    [
        (Kind.HELLO, b"HTTP\1\0\1\0", "it begins with b'HTTP'"),
        (Kind.PING, b"x", "a PING frame with 1 bytes too many"),
        (Kind.FETCH, b"", r"a malformed FETCH frame \(kind 26\)"),
        (Kind.RECORDS, b"", "a reader does not send that"),
        (60, b"", r"a malformed unknown frame \(kind 60\)"),
        (Kind.ATTACH, struct.pack("<Q16sdBBBBHH", 0, b"", 0, 3, 0, 0, 0, 0, 0), "start 3"),
        (Kind.ATTACH, struct.pack("<Q16sdBBBBHH", 0, b"", float("nan"), *bytes(6)), "grace"),
        (Kind.ATTACH, struct.pack("<Q16sdBBBBH", 0, b"", 0, 0, 0, 0, 0, 9) + b"x", "cut short"),
        (Kind.ATTACH, struct.pack("<Q16sdBBBBHcH", 0, b"", 0, 0, 0, 0, 0, 1, b"\xff", 0), "utf-8"),
    ],
)
def test_what_is_wrong_is_said(kind: int, payload: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse_request(Frame(kind, 1, payload))


def test_a_frame_can_be_put_back() -> None:
    reader = FrameReader()
    reader.receive_data(encode_request(1, Ping()) + encode_request(2, Ping()))
    first = reader.next_frame()
    reader.put_back()
    assert reader.next_frame() == first
    reader.close()
    assert reader.unparsed_bytes == 0


def test_a_sentence_that_is_too_long_is_cut_between_characters() -> None:
    reader = FrameReader()
    reader.receive_data(encode_error(3, ErrorCode.REFUSED, "ü" * 5000 + "x"))
    frame = reader.next_frame()
    assert isinstance(frame, Frame)
    assert frame.payload[4:].decode() == "ü" * 2048
