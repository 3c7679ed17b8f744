"""The kernel's counters of a connection, and what it has none of."""

from __future__ import annotations

import socket
import struct
import sys

import pytest

from clearfunds.accounts import TcpCounters
from clearfunds.transports._tcp_counters import LEAST, SIZE, parse_counters, read_counters

linux = pytest.mark.skipif(sys.platform != "linux", reason="Linux counts what TCP does")


def info() -> bytearray:
    """A `tcp_info` in which each field of ours has a value of its own, and all others are ones."""
    data = bytearray(b"\xff" * SIZE)
    fields = {
        16: ("=I", 1448),
        24: ("=I", 7),
        68: ("=I", 1500),
        100: ("=I", 9),
        120: ("=Q", 80),
        144: ("=I", 60),
        168: ("=Q", 2_000_000),
        176: ("=Q", 1_500_000),
        200: ("=Q", 50_000),
        208: ("=Q", 3000),
        216: ("=I", 2),
    }
    for offset, (form, value) in fields.items():
        struct.pack_into(form, data, offset, value)
    return data


def test_where_the_fields_are() -> None:
    """By `include/uapi/linux/tcp.h`."""
    assert parse_counters(bytes(info()), unread=5) == TcpCounters(
        busy_seconds=2.0,
        shut_seconds=1.5,
        sent_bytes=50_000,
        resent_bytes=3000 - 2 * 1448,
        retransmissions=9,
        acked_bytes=80,
        unsent_bytes=60,
        segment_bytes=1448,
        in_flight=7,
        round_trip_seconds=0.0015,
        unread_bytes=5,
    )


def test_an_older_kernel_has_fewer_fields() -> None:
    assert parse_counters(bytes(info()[:LEAST])) is not None
    assert parse_counters(bytes(info()[: LEAST - 1])) is None
    assert parse_counters(b"") is None


def test_more_may_have_arrived_twice_than_was_sent_again() -> None:
    """The last segment of a write is shorter than others."""
    data = info()
    struct.pack_into("=I", data, 216, 99)
    counters = parse_counters(bytes(data))
    assert counters is not None
    assert counters.resent_bytes == 0


@linux
def test_a_connection_is_counted() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        with socket.create_connection(listener.getsockname()) as near, listener.accept()[0] as far:
            near.sendall(bytes(1000))
            assert len(far.recv(1000, socket.MSG_WAITALL)) == 1000
            far.sendall(b"answer")
            near.recv(1, socket.MSG_PEEK)  # it has come
            counters = read_counters(near)
            assert counters is not None
            assert counters.acked_bytes >= counters.sent_bytes == 1000
            assert counters.unread_bytes == 6
            assert (counters.unsent_bytes, counters.in_flight) == (0, 0)
            assert counters.segment_bytes > 500
        assert read_counters(near) is None


def test_a_connection_that_is_none_of_tcp_has_no_counters() -> None:
    near, far = socket.socketpair()
    with near, far:
        assert read_counters(near) is None


def test_other_systems_have_no_counters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        assert read_counters(listener) is None
