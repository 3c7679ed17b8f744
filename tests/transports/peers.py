"""What the tests of whole relays share: a relay in this process, bare clients, and patience."""

from __future__ import annotations

import abc
import os
import socket
import struct
import subprocess
import threading
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import attrs
import pytest
import trio

from clearfunds.accounts import Account, Ledger, LedgerStatistics
from clearfunds.relay import Relay, RelayAddresses, RelayReport, RelaySettings, serve_relay
from clearfunds.transports import Flusher
from clearfunds.transports.mqtt import (
    NEED_DATA,
    ConnAck,
    Connect,
    Connection,
    Packet,
    PubAck,
    Publish,
    Role,
    SubAck,
    Subscribe,
    Will,
    encode,
)

SECONDS = 30
"""More than anything waited for takes on a busy machine; less than anyone waits for a hung test."""


async def until(condition: Callable[[], object], seconds: float = SECONDS) -> None:
    """Wait until something is the case; an error if that takes too long."""
    with trio.fail_after(seconds):
        while not condition():  # noqa: ASYNC110
            await trio.sleep(0.005)


async def kill(process: trio.Process) -> None:
    """End a process that is not waited for any longer; for `run_process`'s ``deliver_cancel``.

    Trio's own asks it to end, and warns after five seconds before it kills: where warnings are
    errors nobody kills it then, and it is waited for without end. mosquitto_sub is such a one at
    times: it hears of the second of two signals in the middle of the first.
    """
    process.kill()


async def run_fed(argv: list[str], stdin: bytes = b"") -> None:
    """Run a process to its end; its stdin ends a moment after the last that it is fed.

    `mosquitto_pub -l` may miss an acknowledgement that comes just as its stdin ends, and waits for
    it without end then: each of its two threads looks at what the other has just set, without a
    lock (`pub_stdin_line_loop`). Under load that was one run of three thousand.
    """
    run = partial(trio.run_process, argv, stdin=subprocess.PIPE, deliver_cancel=kill)
    with trio.fail_after(SECONDS):
        async with trio.open_nursery() as nursery:
            process: trio.Process = await nursery.start(run)
            assert process.stdin is not None
            async with process.stdin:
                with suppress(trio.BrokenResourceError):  # its status says why
                    await process.stdin.send_all(stdin)
                if stdin:
                    await trio.sleep(0.1)


def descriptors() -> int:
    """How many descriptors this process has open."""
    return len(os.listdir("/proc/self/fd"))


def open_files() -> list[str]:
    """What these are, and which threads there are that may have opened one."""
    threads = [f"thread {each.name}" for each in threading.enumerate()]
    files = list[str]()
    for each in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            files.append(f"{each.name}: {each.readlink()}")
    return [*files, *threads]


@attrs.define(eq=False)
class RunningRelay:
    """A relay in this process, and how it ended."""

    relay: Relay
    addresses: RelayAddresses
    stop: trio.Event
    report: RelayReport | None = None

    @property
    def port(self) -> int:
        """The port of its first listener, which is one for TCP."""
        return int(self.addresses.listening[0].rpartition(":")[2])

    @property
    def ledger(self) -> Ledger:
        return self.relay.ledger

    @property
    def flusher(self) -> Flusher:
        return self.relay.mqtt.flusher

    def statistics(self) -> LedgerStatistics:
        return self.relay.ledger.statistics()

    def account(self, client_id: str) -> Account:
        """The account of the connected client with this identifier."""
        (account,) = [
            session.account
            for session in self.relay.mqtt.sessions.values()
            if session.client_id == client_id
        ]
        assert account is not None
        return account

    def audit(self) -> None:
        """Audit, and see that nothing has gone wrong inside."""
        self.ledger.audit()
        assert self.relay.internal_errors == 0

    async def deserted(self) -> None:
        """Wait until all clients have gone, and see that nothing of them is left."""
        await until(lambda: not self.relay.mqtt.open)
        self.audit()
        assert set(self.ledger.accounts) == {"server", "kept"}
        assert self.statistics().debt_items == self.statistics().debt_bytes == 0
        assert [holder.kind for holder in self.ledger.holders] == ["router"]
        assert not self.relay.mqtt.sessions
        assert len(self.relay.dataspace.routes) == 0
        assert not self.flusher.dirty
        await until(lambda: not self.flusher.nursery.child_tasks)


@asynccontextmanager
async def running(
    *, strangers: int = 0, serve: Any = serve_relay, **settings: Any
) -> AsyncGenerator[RunningRelay]:
    """Run a relay for the length of a block, then stop it; it has to leave nothing behind.

    `serve` is what runs it: `serve_relay`, or the like of an experiment.

    It listens on any TCP port, unless `listen` says otherwise. Not more descriptors may be open at
    the end than at the start, but for those of `strangers`, who may close theirs when they like.
    """
    made: list[Relay] = []

    class Kept(Relay):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            made.append(self)

    settings.setdefault("listen", ("mqtt+tcp://127.0.0.1:0",))
    stop = trio.Event()
    before = descriptors()
    reports: list[RelayReport] = []

    async def serving(task_status: trio.TaskStatus[RelayAddresses]) -> None:
        reports.append(await serve(RelaySettings(**settings), task_status=task_status, stop=stop))

    async with trio.open_nursery() as nursery:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("clearfunds.relay._relay.Relay", Kept)
            addresses: RelayAddresses = await nursery.start(serving)
        relay = RunningRelay(made[0], addresses, stop)
        yield relay
        stop.set()
        await until(lambda: reports, relay.relay.settings.grace + SECONDS)
    relay.report = reports[0]
    relay.audit()
    assert not relay.relay.mqtt.open
    assert set(relay.ledger.accounts) == {"server"}
    assert relay.statistics().debt_items == 0
    assert descriptors() <= before + strangers, open_files()


class PassiveClient(abc.ABC):
    """An MQTT client without a task of its own: it reads and answers when a test says so."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream

    @abc.abstractmethod
    async def send(self, *packets: Packet) -> None:
        """Send packets, in one piece."""

    @abc.abstractmethod
    async def receive(self) -> Packet | None:
        """Return the next packet, None when the relay has closed the connection."""

    async def next(self) -> Packet | None:
        """Return the next packet, which has to come in time."""
        with trio.fail_after(SECONDS):
            return await self.receive()

    async def expect(self, packet: Packet | None) -> None:
        """Read one packet, which has to be this one."""
        assert await self.next() == packet

    async def publication(self) -> Publish:
        """Return the next packet, which has to be a PUBLISH."""
        packet = await self.next()
        assert isinstance(packet, Publish), packet
        return packet

    async def silent(self, seconds: float = 0.05) -> bool:
        """Whether nothing comes for a while."""
        with trio.move_on_after(seconds):
            await self.receive()
            return False
        return True

    async def gone(self) -> list[Packet]:
        """Read until the relay has closed the connection; return what came."""
        found: list[Packet] = []
        with trio.fail_after(SECONDS):
            while (packet := await self.receive()) is not None:
                found.append(packet)
        return found


class BareClient(PassiveClient):
    """One that speaks 3.1.1."""

    def __init__(self, stream: trio.SocketStream) -> None:
        super().__init__(stream)
        self.connection = Connection(Role.CLIENT)

    @property
    def sock(self) -> trio.socket.SocketType:
        return self.stream.socket

    async def send(self, *packets: Packet) -> None:
        """Send packets, in one piece."""
        await self.stream.send_all(b"".join(encode(packet) for packet in packets))

    async def publish(
        self,
        topic: str,
        payload: bytes = b"",
        qos: int = 0,
        retain: bool = False,
        packet_id: int = 0,
    ) -> None:
        await self.send(Publish(topic, payload, qos, retain, packet_id=packet_id or bool(qos)))

    async def receive(self) -> Packet | None:
        """Return the next packet, None when the relay has closed the connection."""
        while (packet := self.connection.next_packet()) is NEED_DATA:
            try:
                data = await self.stream.receive_some(1 << 16)
            except trio.BrokenResourceError:
                return None
            if not data:
                return None
            self.connection.receive_data(bytes(data))
        return packet

    async def publications(self, count: int, ack: bool = False) -> list[Publish]:
        """Return that many publications; answer those with QoS 1, if so wanted."""
        found: list[Publish] = []
        for _ in range(count):
            found.append(await self.publication())
            if ack and found[-1].qos:
                await self.send(PubAck(found[-1].packet_id))
        return found

    async def subscribe(self, *filters: str, qos: int = 0, packet_id: int = 9) -> None:
        await self.send(Subscribe(packet_id, tuple((text, qos) for text in filters)))
        await self.expect(SubAck(packet_id, (qos,) * len(filters)))

    async def reset(self) -> None:
        """Close so that the other side gets a reset."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await trio.aclose_forcefully(self.stream)


@asynccontextmanager
async def dial(
    where: int | str, *, receive_buffer: int | None = None
) -> AsyncGenerator[BareClient]:
    """Open a connection to a port, or to the path of a Unix socket, and say nothing."""
    family = socket.AF_INET if isinstance(where, int) else socket.AF_UNIX
    sock = trio.socket.socket(family, socket.SOCK_STREAM)
    try:
        if receive_buffer is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        if isinstance(where, int):
            await sock.connect(("127.0.0.1", where))
        else:
            await sock.connect(where)
        yield BareClient(trio.SocketStream(sock))
    finally:
        sock.close()


@asynccontextmanager
async def connected(
    where: int | str,
    client_id: str = "",
    *,
    keep_alive: int = 0,
    username: str | None = None,
    password: bytes | None = None,
    will: Will | None = None,
    receive_buffer: int | None = None,
) -> AsyncGenerator[BareClient]:
    """Connect a client; leaving the block closes its socket, without DISCONNECT."""
    async with dial(where, receive_buffer=receive_buffer) as client:
        connect = Connect(client_id, True, keep_alive, username, password, will)
        await client.stream.send_all(client.connection.send(connect))
        await client.expect(ConnAck(False, 0))
        yield client


async def hear_of_each_other(*clients: BareClient) -> None:
    """See that each gets what any of them publishes, with QoS 0 and 1."""
    for client in clients:
        await client.subscribe("t", qos=1)
    for number, client in enumerate(clients):
        for qos in (0, 1):
            await client.publish("t", b"by number %d" % number, qos)
            for each in clients:
                while not isinstance(got := await each.receive(), Publish):
                    assert got == PubAck(1)
                assert (got.payload, got.qos) == (b"by number %d" % number, qos)
                if qos:
                    await each.send(PubAck(got.packet_id))


def log_of(caplog: pytest.LogCaptureFixture, text: str) -> list[str]:
    """The messages that were logged and have `text` in them."""
    return [record.getMessage() for record in caplog.records if text in record.getMessage()]


def frames(publications: Iterable[tuple[str, bytes]]) -> bytes:
    """The bytes of QoS 0 publications, in one piece."""
    return b"".join(encode(Publish(topic, payload)) for topic, payload in publications)


async def fetch(url: str) -> str:
    """Get a page of a relay."""

    def get() -> str:
        with urlopen(url, timeout=SECONDS) as page:
            text: str = page.read().decode()
        return text

    return await trio.to_thread.run_sync(get)
