"""The blocking client against a relay that answers what a test says."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clearfunds.range_client import (
    AwayError,
    Block,
    FencedError,
    RangeClientError,
    RangeReader,
    StoreError,
    Ticket,
    WrongAnswerError,
    error_of,
)
from clearfunds.transports.subscriptions import ErrorCode, Kind
from clearfunds.transports.subscriptions._frames import encode_error, encode_frame, encode_welcome
from tests.dataspace.conftest import STEADY

HOST = "127.0.0.1"
WELCOME = encode_welcome(0, 1000)
ATTACHED = encode_frame(
    Kind.ATTACHED, 1, struct.pack("<IIQQQQ16s", 7, 0, 3, 1, 9, 1, b"sixteen bytes ok")
)


@contextmanager
def relay(*connections: bytes) -> Generator[int]:
    """Answer each connection in turn with these bytes, whatever it says, and close it."""
    with socket.create_server((HOST, 0)) as server:
        server.settimeout(20)

        def serve() -> None:
            for answer in connections:
                with suppress(OSError):
                    sock, _ = server.accept()
                    with sock:
                        sock.sendall(answer)
                        sock.shutdown(socket.SHUT_WR)
                        while sock.recv(1 << 16):
                            pass

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield server.getsockname()[1]
        finally:
            with suppress(OSError):
                server.shutdown(socket.SHUT_RDWR)
            thread.join(20)


def test_it_attaches_and_asks() -> None:
    head = encode_frame(Kind.HEAD_IS, 2, struct.pack("<QQQQ", 2, 9, 7, 70))
    with relay(WELCOME + ATTACHED + head) as port, RangeReader(HOST, port, "s") as reader:
        assert reader.ticket == Ticket("s", 3, b"sixteen bytes ok")
        assert "attached" in repr(reader)
        assert reader.head() == (2, 9)
    assert "closed" in repr(reader)


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", WrongAnswerError),
        (encode_frame(Kind.PONG, 0), WrongAnswerError),
        (encode_error(0, ErrorCode.PROTOCOL, "no"), WrongAnswerError),
        (WELCOME + encode_frame(Kind.PONG, 1), WrongAnswerError),
        (WELCOME + encode_frame(Kind.ATTACHED, 1, b"short"), WrongAnswerError),
        (WELCOME + encode_error(1, ErrorCode.FENCED, "no"), FencedError),
        (WELCOME + encode_error(1, ErrorCode.STORE, "no"), StoreError),
        (WELCOME + encode_error(0, ErrorCode.PROTOCOL, "no"), WrongAnswerError),
        (WELCOME + struct.pack("<IB3xI", 1 << 31, 17, 1), WrongAnswerError),
    ],
)
def test_what_is_no_answer_is_said(answer: bytes, error: type[RangeClientError]) -> None:
    with relay(answer) as port, pytest.raises(error):
        RangeReader(HOST, port, "s", timeout=5)


@pytest.mark.parametrize(
    "records",
    [
        struct.pack("<Q", 4),
        struct.pack("<QII", 4, 9, 0),
        struct.pack("<QIIII", 4, 1, 0, 100, 0),
        struct.pack("<QIIII", 4, 1, 0, 32, 0) + struct.pack("<QIIIIII", 1, 9, 0, 0, 0, 0, 0),
    ],
)
def test_records_that_are_none_are_said(records: bytes) -> None:
    answer = WELCOME + ATTACHED + encode_frame(Kind.RECORDS, 2, records)
    with (
        relay(answer) as port,
        RangeReader(HOST, port, "s", timeout=5) as reader,
        pytest.raises(WrongAnswerError),
    ):
        list(reader.fetch(1, 4))


def test_it_connects_again_with_what_it_has() -> None:
    half = WELCOME + ATTACHED
    again = encode_frame(
        Kind.ATTACHED, 3, struct.pack("<IIQQQQ16s", 8, 0, 3, 5, 9, 5, b"sixteen bytes ok")
    )
    acked = encode_frame(Kind.ACKED, 4, struct.pack("<QQ", 6, 9))
    with (
        relay(half, WELCOME + again + acked) as port,
        RangeReader(HOST, port, "s", timeout=5) as reader,
    ):
        assert reader.ack(6) == (6, 9)
        assert reader.start == 1  # where it began, wherever it is now


def test_nobody_there_is_said_in_time() -> None:
    with (
        socket.create_server((HOST, 0)) as server,  # which accepts, and says nothing
        pytest.raises(AwayError, match=r"did not answer within 0\.2 s"),
    ):
        RangeReader(HOST, server.getsockname()[1], "s", timeout=0.2)


HEADERS = st.tuples(st.integers(0, 9), *[st.integers(0, 3)] * 6)


@settings(STEADY, max_examples=300)
@given(HEADERS, st.binary(max_size=60), st.integers(0, 40))
def test_what_is_no_block_is_said(header: tuple[int, ...], raw: bytes, zeros: int) -> None:
    raw = struct.pack("<QIIIIII", *header) + bytes(zeros) + raw
    with suppress(WrongAnswerError):
        block = Block(memoryview(raw))
        assert len(list(block.rows())) == block.count
    with suppress(WrongAnswerError):
        Block(memoryview(raw[32:]))
    assert isinstance(error_of(memoryview(raw)), RangeClientError)
