"""The blocking client against a relay that answers what a test says."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clearfunds.ranges.client import (
    AwayError,
    Block,
    DiskError,
    FencedError,
    RangeError,
    RangeReader,
    Ticket,
    WrongAnswerError,
)
from clearfunds.ranges.client._reader import (
    _Connection,  # pyright: ignore[reportPrivateUsage]
    error_of,
)
from clearfunds.ranges.wire import ErrorCode, Kind, encode_error, encode_frame, encode_welcome
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
        (WELCOME + encode_error(1, ErrorCode.STORE, "no"), DiskError),
        (WELCOME + encode_error(0, ErrorCode.PROTOCOL, "no"), WrongAnswerError),
        (WELCOME + struct.pack("<IB3xI", 1 << 31, 17, 1), WrongAnswerError),
    ],
)
def test_what_is_no_answer_is_said(answer: bytes, error: type[RangeError]) -> None:
    with relay(answer) as port, pytest.raises(error):
        RangeReader(HOST, port, "s", timeout=5)


@pytest.mark.parametrize(
    "records",
    [
        struct.pack("<Q", 4),
        struct.pack("<QII", 4, 9, 0),
        struct.pack("<QII", 1, 1, 0),
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


def test_what_cannot_be_asked_for_is_said_before_it_is() -> None:
    made = partial(RangeReader, HOST, 1, "s")
    with pytest.raises(TypeError, match=r"a list: \['a/#'\], not 'a/#'"):
        made(filters="a/#")
    wrong: Any = "erliest"
    with pytest.raises(ValueError, match="start is one of None, 'earliest', 'latest', not 'erl"):
        made(start=wrong)
    with pytest.raises(ValueError, match="after_grace is one of None, 'hold', 'drop', 'write_off'"):
        made(after_grace=wrong)
    with pytest.raises(ValueError, match="a filter of 70000 bytes"):
        made(filters=["a" * 70_000])
    with relay(WELCOME + ATTACHED) as port, RangeReader(HOST, port, "s", timeout=5) as reader:
        with pytest.raises(ValueError, match=r"are positive and not that large: .*-1"):
            reader.ack(-1)
        with pytest.raises(ValueError, match="not that large"):
            list(reader.fetch(1, 1 << 64))
        assert "attached" in repr(reader)


class Control(BaseException):
    """What Control-C raises, or a signal's handler."""


def test_an_answer_that_was_interrupted_does_not_answer_something_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    head = encode_frame(Kind.HEAD_IS, 2, struct.pack("<QQQQ", 2, 9, 7, 70))
    again = encode_frame(
        Kind.ATTACHED, 3, struct.pack("<IIQQQQ16s", 8, 0, 3, 5, 9, 5, b"sixteen bytes ok")
    )
    acked = encode_frame(Kind.ACKED, 4, struct.pack("<QQ", 6, 9))
    with (
        relay(WELCOME + ATTACHED + head, WELCOME + again + acked) as port,
        RangeReader(HOST, port, "s", timeout=5) as reader,
    ):
        read = _Connection._exactly  # pyright: ignore[reportPrivateUsage]

        def interrupted(connection: _Connection, size: int) -> memoryview:
            read(connection, 5)
            raise Control

        monkeypatch.setattr(_Connection, "_exactly", interrupted)
        with pytest.raises(Control):
            reader.head()
        monkeypatch.undo()
        assert reader.ack(6) == (6, 9)


def test_closing_ends_what_another_thread_waits_for() -> None:
    with socket.create_server((HOST, 0)) as server:
        found: list[Exception] = []

        def wait(reader: RangeReader) -> None:
            try:
                reader.head()
            except RangeError as exc:
                found.append(exc)

        def answer() -> socket.socket:
            sock, _ = server.accept()
            sock.sendall(WELCOME + ATTACHED)
            return sock

        with ThreadPoolExecutor() as pool:
            accepted = pool.submit(answer)
            reader = RangeReader(HOST, server.getsockname()[1], "s", timeout=60)
            with accepted.result(10) as sock:
                waiting = pool.submit(wait, reader)
                asked = sock.recv(1 << 16)
                while encode_frame(Kind.HEAD, 2, struct.pack("<I", 7)) not in asked:
                    asked += sock.recv(1 << 16)
                reader.close()
                waiting.result(10)
        (fault,) = found
        assert str(fault) == "this reader was closed"


def test_a_relay_that_comes_to_no_end_is_away_in_time() -> None:
    # It answers each greeting late, and then nothing: the time is that of all attempts together.
    with socket.create_server((HOST, 0)) as server, ThreadPoolExecutor() as pool:
        server.settimeout(5)

        def greet() -> None:
            with suppress(OSError):
                while True:
                    sock, _ = server.accept()
                    with sock:
                        threading.Event().wait(0.35)
                        sock.sendall(WELCOME)
                        while sock.recv(1 << 16):
                            pass

        pool.submit(greet)
        began = time.monotonic()
        with pytest.raises(AwayError, match=r"within 0\.5 s"):
            RangeReader(HOST, server.getsockname()[1], "s", timeout=0.5)
        assert time.monotonic() - began < 0.8
        server.shutdown(socket.SHUT_RDWR)


def test_a_subscription_that_was_forgotten_meanwhile_is_dropped() -> None:
    gone = encode_error(2, ErrorCode.OTHER_INCARNATION, "made anew")
    with relay(WELCOME + ATTACHED + gone) as port:
        reader = RangeReader(HOST, port, "s", timeout=5)
        reader.drop()
        assert "closed" in repr(reader)


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
    assert isinstance(error_of(memoryview(raw)), RangeError)
