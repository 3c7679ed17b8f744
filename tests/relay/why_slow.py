"""Clients that are slow for a reason, and what a relay says about it.

As a program its arguments are a cause, or `link` for loss on the lossy link of `lossy_link.py`, and
a number of tries. Each prints a line of JSON with the causes that were found.
"""

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

import trio

from clearfunds.accounts import Cause, CauseKind
from clearfunds.transports.mqtt import ConnAck, Connect
from tests.relay.lossy_link import FAR, NEAR
from tests.transports.peers import (
    SECONDS,
    BareClient,
    RunningRelay,
    connected,
    running,
    until,
)

LOSS: Final = 0.2
"""Share of segments lost: so many that loopback, with next to no round trip, is slow by it."""

AGAIN_SECONDS: Final = 2.0
"""For so long after the first cause no other may be found."""

SO_ATTACH_FILTER: Final = 26
SO_MAX_PACING_RATE: Final = 47
"""Of Linux; Python does not name them."""

Culprit = Callable[[RunningRelay], AbstractAsyncContextManager[int]]
"""Makes a client `archive`, subscribed to `t`, that will be waited for; gives the QoS."""

SUBSCRIBER: Final = """
import socket, sys
sock = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
sock.sendall(bytes.fromhex("10 13 0004 4d515454 04 02 0000 0007 61726368697665"))
sock.sendall(bytes.fromhex("82 06 0001 0001 74 00"))
for answer in (4, 5):
    assert len(sock.recv(answer, socket.MSG_WAITALL)) == answer
print("subscribed", flush=True)
while sock.recv(65536):
    pass
"""
"""Connects as `archive`, subscribes to `t`, and reads on."""


@asynccontextmanager
async def stopped(relay: RunningRelay) -> AsyncGenerator[int]:
    """A process that reads, and is stopped as by a debugger."""
    argv = [sys.executable, "-c", SUBSCRIBER, str(relay.port)]
    process = await trio.lowlevel.open_process(argv, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        async with process.stdout:
            assert await process.stdout.receive_some()
            process.send_signal(signal.SIGSTOP)
            yield 0
    finally:
        process.kill()
        with trio.CancelScope(shield=True):
            await process.wait()


@asynccontextmanager
async def reading(client: BareClient, qos: int = 0) -> AsyncGenerator[int]:
    """Subscribe, and read all there is for the length of the block."""
    await client.subscribe("t", qos=qos)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(read_on, client)
        yield qos
        nursery.cancel_scope.cancel()


async def read_on(client: BareClient) -> None:
    while await client.stream.receive_some(1 << 16):
        pass


@asynccontextmanager
async def behind_loss(relay: RunningRelay) -> AsyncGenerator[int]:
    """A client that reads all it can get, while its kernel loses a share of what arrives."""
    async with connected(relay.port, "archive") as archive, reading(archive) as qos:
        lose(archive.sock, LOSS)
        yield qos


@asynccontextmanager
async def without_acknowledgements(relay: RunningRelay) -> AsyncGenerator[int]:
    """A client that reads everything, and acknowledges nothing."""
    async with connected(relay.port, "archive") as archive, reading(archive, qos=1) as qos:
        yield qos


@asynccontextmanager
async def reading_slowly(relay: RunningRelay) -> AsyncGenerator[int]:
    """A client that reads a little at a time; its window opens often, since its buffer is small."""
    async with (
        connected(relay.port, "archive", receive_buffer=1 << 16) as archive,
        trio.open_nursery() as nursery,
    ):
        await archive.subscribe("t")

        async def read_slowly() -> None:
            while True:
                await archive.stream.receive_some(10_000)
                await trio.sleep(0.02)

        nursery.start_soon(read_slowly)
        yield 0
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def acknowledging_slowly(relay: RunningRelay) -> AsyncGenerator[int]:
    """A client that acknowledges one publication in a while."""
    async with connected(relay.port, "archive") as archive, trio.open_nursery() as nursery:
        await archive.subscribe("t", qos=1)

        async def acknowledge() -> None:
            while True:
                await archive.publications(1, ack=True)
                await trio.sleep(0.1)

        nursery.start_soon(acknowledge)
        yield 1
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def on_a_slow_link(relay: RunningRelay) -> AsyncGenerator[int]:
    """A client that reads all it can get, to which the kernel sends a little at a time."""
    async with connected(relay.port, "archive") as archive, reading(archive) as qos:
        sock = relay.relay.mqtt.sessions["archive"].outlet.sock
        sock.setsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, 200_000)
        yield qos


@asynccontextmanager
async def unreachable(relay: RunningRelay) -> AsyncGenerator[int]:
    """A client to which nothing gets any more."""
    async with connected(relay.port, "archive") as archive:
        await archive.subscribe("t")
        lose(archive.sock, 1.0)
        yield 0


@asynccontextmanager
async def over_the_lossy_link(relay: RunningRelay) -> AsyncGenerator[int]:
    """A client at the far end of the link, which reads all it can get."""
    stream = await trio.open_tcp_stream(FAR, relay.port)
    async with stream:
        archive = BareClient(stream)
        await stream.send_all(archive.connection.send(Connect("archive", True, 0)))
        await archive.expect(ConnAck(False, 0))
        async with reading(archive) as qos:
            yield qos


def lose(sock: trio.socket.SocketType, share: float) -> None:
    """Lose this share of the segments that arrive, by a filter of the socket, without rights.

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
    described = struct.pack("@HP", len(program), ctypes.addressof(code))
    sock.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, described)


CULPRITS: Final[dict[CauseKind, Culprit]] = {
    CauseKind.DOES_NOT_READ: stopped,
    CauseKind.READS_SLOWLY: reading_slowly,
    CauseKind.LOSS: behind_loss,
    CauseKind.NO_ANSWER: unreachable,
    CauseKind.SLOW_NETWORK: on_a_slow_link,
    CauseKind.DOES_NOT_ACKNOWLEDGE: without_acknowledgements,
    CauseKind.ACKNOWLEDGES_SLOWLY: acknowledging_slowly,
}


async def publish_without_end(port: int, qos: int, host: str) -> None:
    stream = await trio.open_tcp_stream(host, port)
    async with stream, trio.open_nursery() as nursery:
        newsroom = BareClient(stream)
        await stream.send_all(newsroom.connection.send(Connect("newsroom", True, 0)))
        await newsroom.expect(ConnAck(False, 0))
        nursery.start_soon(read_on, newsroom)
        number = 0
        while True:
            number = number % 65535 + 1
            size = 100 if qos else 60_000
            await newsroom.publish("t", bytes(size), qos, packet_id=number if qos else 0)


def cause_of_archive(relay: RunningRelay) -> Cause | None:
    """Return the cause found for a holder of the client's."""
    for holder in list(relay.ledger.holders):
        if holder.name.endswith("/archive"):
            cause = relay.ledger.causes.of(holder)
            if cause is not None:
                return cause
    return None


@asynccontextmanager
async def blocked(
    relay: RunningRelay, culprit: Culprit, host: str = "127.0.0.1"
) -> AsyncGenerator[None]:
    """Publish without end to a client that is slow."""
    async with culprit(relay) as qos, trio.open_nursery() as nursery:
        nursery.start_soon(publish_without_end, relay.port, qos, host)
        yield
        nursery.cancel_scope.cancel()
    # What it sent last counts for the next one otherwise.
    await until(lambda: not relay.relay.mqtt.sessions)


async def causes_of(
    relay: RunningRelay, culprit: Culprit, host: str = "127.0.0.1"
) -> dict[CauseKind, str]:
    """Return the causes that are found in the first seconds, with the latest sentence of each."""
    found: dict[CauseKind, str] = {}

    def look() -> bool:
        cause = cause_of_archive(relay)
        if cause is not None:
            found[cause.kind] = cause.about("archive")
        return bool(found)

    async with blocked(relay, culprit, host):
        await until(look, SECONDS)
        end = trio.current_time() + AGAIN_SECONDS
        while trio.current_time() < end:
            await trio.sleep(0.05)
            look()
    return found


async def try_it(kind: str, tries: int) -> None:
    """Print the causes that are found, one try a line."""
    near, culprit = (
        (NEAR, over_the_lossy_link) if kind == "link" else ("127.0.0.1", CULPRITS[CauseKind(kind)])
    )
    listen = (f"mqtt+tcp://{near}:0",)
    async with running(listen=listen, stuck="wait", limit_items=20, slow_wait=None) as relay:
        for _ in range(tries):
            print(json.dumps(await causes_of(relay, culprit, near)), flush=True)


if __name__ == "__main__":
    trio.run(try_it, sys.argv[1], int(sys.argv[2]))
