"""Why a slow consumer is slow, found with real processes, real loss and real acknowledgements."""

from __future__ import annotations

import ctypes
import json
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Final

import pytest
import trio

from clearfunds.accounts import Cause, CauseKind
from clearfunds.transports.mqtt import Publish, encode
from tests.relay.why_slow import LOSSY_LINK, SUBSCRIBER
from tests.transports.peers import (
    BareClient,
    RunningRelay,
    connected,
    fetch,
    log_of,
    running,
    until,
)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux counts what TCP does")

TRIES: Final = 20

LOSS: Final = 0.2
"""Share of segments lost: so many that loopback, with next to no round trip, is slow by it."""

Culprit = Callable[[RunningRelay], AbstractAsyncContextManager[int]]
"""Makes a client `archive`, subscribed to `t`, that will be waited for; gives the QoS."""


@asynccontextmanager
async def stopped(relay: RunningRelay) -> AsyncGenerator[int]:
    """A process that reads, and is stopped as by a debugger."""
    argv = [sys.executable, "-c", SUBSCRIBER, str(relay.port)]
    process = await trio.lowlevel.open_process(argv, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        async with process.stdout:
            assert await process.stdout.receive_some()  # it is subscribed
            process.send_signal(signal.SIGSTOP)
            yield 0
    finally:
        process.kill()
        await process.wait()


@asynccontextmanager
async def behind_loss(relay: RunningRelay) -> AsyncGenerator[int]:
    """A client that reads all it can get, while its kernel loses a share of what arrives."""
    async with connected(relay.port, "archive") as archive, trio.open_nursery() as nursery:
        await archive.subscribe("t")
        lose(archive.sock, LOSS)
        nursery.start_soon(read_on, archive)
        yield 0
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def without_acknowledgements(relay: RunningRelay) -> AsyncGenerator[int]:
    """A client that reads everything, and acknowledges nothing."""
    async with connected(relay.port, "archive") as archive, trio.open_nursery() as nursery:
        await archive.subscribe("t", qos=1)
        nursery.start_soon(read_on, archive)
        yield 1
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def slow(relay: RunningRelay) -> AsyncGenerator[int]:
    """A client that reads a little at a time."""
    async with connected(relay.port, "archive") as archive, trio.open_nursery() as nursery:
        await archive.subscribe("t")

        async def read_slowly() -> None:
            while await archive.stream.receive_some(10_000):
                await trio.sleep(0.02)

        nursery.start_soon(read_slowly)
        yield 0
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def on_a_slow_link(relay: RunningRelay) -> AsyncGenerator[int]:
    """A client that reads all it can get, to which the kernel sends a little at a time."""
    async with connected(relay.port, "archive") as archive, trio.open_nursery() as nursery:
        await archive.subscribe("t")
        session = relay.relay.mqtt.sessions["archive"]
        session.outlet.sock.setsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, 200_000)
        nursery.start_soon(read_on, archive)
        yield 0
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def unreachable(relay: RunningRelay) -> AsyncGenerator[int]:
    """A client to which nothing gets any more."""
    async with connected(relay.port, "archive") as archive:
        await archive.subscribe("t")
        lose(archive.sock, 1.0)
        yield 0


SO_MAX_PACING_RATE: Final = 47
SO_ATTACH_FILTER: Final = 26
"""Of Linux; Python does not name them."""


def lose(sock: trio.socket.SocketType, share: float) -> None:
    """Lose this share of the segments that arrive: a filter of the socket's own, without rights.

    It drops them before TCP sees them, so the sender has to send them again.
    """
    random, most = 0xFFFFF000 + 56, min(0xFFFFFFFF, int(share * 2**32))  # SKF_AD_OFF, _RANDOM
    program = (
        (0x20, 0, 0, random),  # load a random number
        (0x25, 1, 0, most),  # if it is greater, skip one
        (0x06, 0, 0, 0),  # keep nothing
        (0x06, 0, 0, 0xFFFFFFFF),  # keep all
    )
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *each) for each in program))
    fprog = struct.pack("@HP", len(program), ctypes.addressof(code))
    sock.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, fprog)


async def read_on(client: BareClient) -> None:
    while await client.stream.receive_some(1 << 16):
        pass


def cause_of_archive(relay: RunningRelay) -> Cause | None:
    """The cause that is found for any holder of the client's."""
    for holder in relay.ledger.holders:
        if holder.name.endswith("/archive"):
            cause = relay.ledger.causes.of(holder)
            if cause is not None:
                return cause
    return None


async def publish_without_end(port: int, qos: int) -> None:
    async with connected(port, "newsroom") as newsroom, trio.open_nursery() as nursery:
        nursery.start_soon(read_on, newsroom)
        number = 0
        while True:
            number = number % 65535 + 1
            size = 100 if qos else 60_000
            await newsroom.publish("t", bytes(size), qos, packet_id=number if qos else 0)


async def find_out(relay: RunningRelay, culprit: Culprit) -> Cause:
    """Publish without end, and return the first cause that is found."""
    async with culprit(relay) as qos, trio.open_nursery() as nursery:
        nursery.start_soon(publish_without_end, relay.port, qos)
        causes: list[Cause] = []

        def known() -> bool:
            cause = cause_of_archive(relay)
            causes.extend(() if cause is None else (cause,))
            return bool(causes)

        await until(known)
        nursery.cancel_scope.cancel()
    await until(lambda: not relay.relay.mqtt.sessions)
    return causes[0]


THREE: Final = {
    CauseKind.DOES_NOT_READ: stopped,
    CauseKind.LOSS: behind_loss,
    CauseKind.DOES_NOT_ACKNOWLEDGE: without_acknowledgements,
}
OTHERS: Final = {
    CauseKind.READS_SLOWLY: slow,
    CauseKind.SLOW_NETWORK: on_a_slow_link,
    CauseKind.NO_ANSWER: unreachable,
}


@pytest.mark.parametrize(("kind", "culprit"), {**THREE, **OTHERS}.items())
async def test_the_cause_is_found(kind: CauseKind, culprit: Culprit) -> None:
    async with running(stuck="wait", patience=2.0, limit_items=20, slow_wait=None) as relay:
        cause = await find_out(relay, culprit)
        print(cause)
        assert cause.kind is kind, cause
