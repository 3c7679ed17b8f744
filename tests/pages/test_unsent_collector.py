"""What the kernel has taken and not sent yet, in the metrics."""

from __future__ import annotations

import socket
import sys
from typing import TYPE_CHECKING

import pytest
import trio

from clearfunds.pages import UnsentCollector
from clearfunds.pages._cooperative import Pace
from clearfunds.transports._tcp_counters import read_unsent
from tests.transports.peers import connected, fetch, frames, running, until

if TYPE_CHECKING:
    from collections.abc import Generator

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells what is unsent")

SMALL = 4096


@pytest.fixture
def pair() -> Generator[tuple[socket.socket, socket.socket]]:
    """Two ends of a connection, with small buffers at the reader's."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL)
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        with socket.create_connection(listener.getsockname()) as ours:
            theirs, _ = listener.accept()
            with theirs:
                ours.setblocking(False)
                yield ours, theirs


def fill(sock: socket.socket) -> int:
    """Write as much as the kernel takes."""
    written = 0
    try:
        while True:
            written += sock.send(bytes(1 << 16))
    except BlockingIOError:
        return written


def sums(collector: UnsentCollector) -> dict[str, float]:
    """What it serves, by protocol."""
    (family,) = collector.collect()
    return {sample.labels["transport"]: sample.value for sample in family.samples}


def test_bytes_that_the_peer_has_no_room_for_are_unsent(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    ours, theirs = pair
    assert read_unsent(ours) == 0
    written = fill(ours)
    unsent = read_unsent(ours)
    assert 0 < unsent < written
    theirs.setblocking(True)
    taken = 0
    while taken < written:
        taken += len(theirs.recv(1 << 20))
    assert read_unsent(ours) == 0
    ours.close()
    assert read_unsent(ours) == 0


def test_a_unix_socket_says_nothing() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.send(b"some")
        assert read_unsent(ours) == 0


async def test_they_are_summed_up_by_protocol(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    fill(ours)
    collector = UnsentCollector(lambda: {"mqtt": [ours, theirs, ours], "syndicate": []})
    assert sums(collector) == {}
    await collector.look()
    assert sums(collector) == {"mqtt": 2 * read_unsent(ours), "syndicate": 0}


async def test_a_long_walk_is_not_taken_again_at_once(
    pair: tuple[socket.socket, socket.socket],
    autojump_clock: object,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ours, _ = pair
    monkeypatch.setattr(Pace, "busy_seconds", 0.05)
    collector = UnsentCollector(lambda: {"mqtt": [ours]})
    await collector.look()
    fill(ours)
    await collector.look()
    assert sums(collector) == {"mqtt": 0}
    await trio.sleep(0.05 / 0.005)
    await collector.look()
    assert sums(collector) == {"mqtt": read_unsent(ours)}


async def test_a_relay_has_them_in_its_metrics() -> None:
    async def unsent(url: str) -> dict[str, float]:
        lines = (await fetch(f"{url}/metrics")).splitlines()
        found = [line for line in lines if line.startswith("clearfunds_kernel_unsent_bytes{")]
        return {line.split('"')[1]: float(line.split()[-1]) for line in found}

    async with (
        running(http="127.0.0.1:0") as relay,
        connected(relay.port, "archive", receive_buffer=SMALL) as archive,
        connected(relay.port, "pub") as pub,
    ):
        url = relay.addresses.http
        assert url is not None
        await archive.subscribe("t")
        assert await unsent(url) == {"mqtt": 0}
        await pub.stream.send_all(frames([("t", bytes(50_000))] * 20))
        await until(lambda: read_unsent(relay.relay.mqtt.sessions["archive"].outlet.sock))
        found = await unsent(url)
        assert 0 < found["mqtt"] <= 1_000_000 + (64 << 10)
