"""AMQP clients for tests: one by hand, which says whatever a test wants, and pika in a thread."""

from __future__ import annotations

import struct
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import attrs
import pika
import trio
from pamqp import base, body, frame, header, heartbeat
from pamqp.commands import Basic, Channel, Confirm, Connection, Queue
from pamqp.common import FieldTable

from clearfunds.transports.amqp import AmqpServer, AmqpSession
from tests.transports.peers import SECONDS, RunningRelay, running

T = TypeVar("T")

AMQP = "amqp+tcp://127.0.0.1:0"
PROTOCOL_HEADER = b"AMQP\0\0\x09\1"
CAPABILITIES: FieldTable = {
    "authentication_failure_close": True,
    "consumer_cancel_notify": True,
    "connection.blocked": True,
    "basic.nack": True,
    "publisher_confirms": True,
}


@attrs.frozen
class Got:
    """A method that has come, with its content if it has one."""

    channel: int
    method: base.Frame
    body: bytes = b""
    properties: Basic.Properties | None = None


class ClosedError(Exception):
    """The server has closed the socket."""


class RawClient:
    """A client by hand. It reads when a test says so."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self.buffer = b""
        self.heartbeats = 0
        self.frame_max = 131_072

    async def send(self, channel: int, *parts: Any) -> None:
        """Send methods, headers and bodies, in one piece."""
        await self.raw(b"".join(frame.marshal(part, channel) for part in parts))

    async def raw(self, data: bytes) -> None:
        await self.stream.send_all(data)

    async def _frame(self) -> tuple[int, Any]:
        while True:
            if len(self.buffer) >= 7:
                _, channel, size = struct.unpack_from(">BHI", self.buffer)
                if len(self.buffer) >= size + 8:
                    data, self.buffer = self.buffer[: size + 8], self.buffer[size + 8 :]
                    assert len(data) <= self.frame_max
                    _, _, found = frame.unmarshal(data)
                    if isinstance(found, heartbeat.Heartbeat):
                        self.heartbeats += 1
                        continue
                    return channel, found
            try:
                data = await self.stream.receive_some(1 << 16)
            except trio.BrokenResourceError:
                data = b""
            if not data:
                raise ClosedError
            self.buffer += bytes(data)

    async def next(self, seconds: float = SECONDS) -> Got:
        """Return the next method, with its content."""
        with trio.fail_after(seconds):
            channel, method = await self._frame()
            assert isinstance(method, base.Frame), method
            if not isinstance(method, Basic.Deliver | Basic.GetOk | Basic.Return):
                return Got(channel, method)
            its_channel, head = await self._frame()
            assert its_channel == channel
            assert isinstance(head, header.ContentHeader)
            payload = b""
            while len(payload) < head.body_size:
                _, piece = await self._frame()
                assert isinstance(piece, body.ContentBody)
                assert piece.value is not None
                payload += piece.value
            return Got(channel, method, payload, head.properties)

    async def expect(self, kind: type[T], seconds: float = SECONDS) -> T:
        """Return the next method, which has to be of this kind."""
        got = await self.next(seconds)
        assert isinstance(got.method, kind), got
        return got.method

    async def deliveries(self, count: int) -> list[Got]:
        found = [await self.next() for _ in range(count)]
        assert all(isinstance(each.method, Basic.Deliver) for each in found), found
        return found

    async def silent(self, seconds: float = 0.05) -> bool:
        """Whether nothing comes for a while."""
        with trio.move_on_after(seconds):
            await self.next()
            return False
        return True

    async def closed(self, code: int, channel: int = 0) -> str:
        """Expect the close of a channel, or of the connection, with this code; agree to it."""
        got = await self.next()
        assert got.channel == channel, got
        method = got.method
        assert isinstance(method, Connection.Close | Channel.Close), got
        assert method.reply_code == code, (method.reply_code, method.reply_text)
        if channel:
            await self.send(channel, Channel.CloseOk())
        else:
            await self.send(0, Connection.CloseOk())
            await self.gone()
        return str(method.reply_text)

    async def gone(self) -> None:
        """See that the server has closed the socket, and said nothing more."""
        with trio.fail_after(SECONDS):
            try:
                while True:
                    got = await self.next()
                    raise AssertionError(got)
            except ClosedError:
                pass

    # -- what most tests do ------------------------------------------------------------------------

    async def start(self) -> Connection.Start:
        await self.raw(PROTOCOL_HEADER)
        return await self.expect(Connection.Start)

    async def log_in(self, user: str = "guest", password: str = "guest", **more: Any) -> None:
        """Get as far as connection.tune."""
        await self.start()
        properties = {"capabilities": CAPABILITIES, **more}
        response = f"\0{user}\0{password}"
        await self.send(0, Connection.StartOk(properties, "PLAIN", response, "en_US"))

    async def connect(
        self,
        user: str = "guest",
        password: str = "guest",
        *,
        host: str = "/",
        heartbeat: int = 0,
        frame_max: int = 131_072,
        **more: Any,
    ) -> None:
        """Open a connection, and its channel 1."""
        await self.log_in(user, password, **more)
        await self.expect(Connection.Tune)
        self.frame_max = frame_max
        await self.send(0, Connection.TuneOk(2047, frame_max, heartbeat), Connection.Open(host))
        await self.expect(Connection.OpenOk)
        await self.open(1)

    async def open(self, channel: int) -> None:
        await self.send(channel, Channel.Open())
        await self.expect(Channel.OpenOk)

    async def declare(self, queue: str = "", *, channel: int = 1, **more: Any) -> str:
        await self.send(channel, Queue.Declare(queue=queue, **more))
        return str((await self.expect(Queue.DeclareOk)).queue)

    async def consume(self, queue: str, *, channel: int = 1, tag: str = "", **more: Any) -> str:
        await self.send(channel, Basic.Consume(queue=queue, consumer_tag=tag, **more))
        return str((await self.expect(Basic.ConsumeOk)).consumer_tag)

    async def confirm(self, channel: int = 1) -> None:
        await self.send(channel, Confirm.Select())
        await self.expect(Confirm.SelectOk)

    async def publish(
        self,
        key: str,
        payload: bytes = b"",
        exchange: str = "",
        *,
        channel: int = 1,
        mandatory: bool = False,
        **properties: Any,
    ) -> None:
        await self.raw(publication(key, payload, exchange, channel=channel, mandatory=mandatory,
                                   **properties))  # fmt: skip

    async def get(self, queue: str, *, channel: int = 1, no_ack: bool = True) -> Got | None:
        await self.send(channel, Basic.Get(queue=queue, no_ack=no_ack))
        got = await self.next()
        if isinstance(got.method, Basic.GetEmpty):
            return None
        assert isinstance(got.method, Basic.GetOk), got
        return got

    async def sync(self, channel: int = 1) -> None:
        """Wait until everything that was said on a channel has been handled; nothing else comes."""
        await self.send(channel, Basic.Qos())
        await self.expect(Basic.QosOk)


def publication(
    key: str,
    payload: bytes = b"",
    exchange: str = "",
    *,
    channel: int = 1,
    mandatory: bool = False,
    **properties: Any,
) -> bytes:
    """The frames of a publication."""
    method = Basic.Publish(exchange=exchange, routing_key=key, mandatory=mandatory)
    head = header.ContentHeader(0, len(payload), Basic.Properties(**properties))
    data = frame.marshal(method, channel) + frame.marshal(head, channel)
    for at in range(0, len(payload), 4000):
        data += frame.marshal(body.ContentBody(payload[at : at + 4000]), channel)
    return data


@asynccontextmanager
async def dialled(relay: RunningRelay, **options: Any) -> AsyncGenerator[RawClient]:
    """Open a socket, and say nothing."""
    sock = trio.socket.socket()
    try:
        for name, value in options.items():
            sock.setsockopt(trio.socket.SOL_SOCKET, getattr(trio.socket, name), value)
        await sock.connect(("127.0.0.1", relay.port))
        yield RawClient(trio.SocketStream(sock))
    finally:
        sock.close()


@asynccontextmanager
async def client(
    relay: RunningRelay, user: str = "guest", password: str = "guest", **how: Any
) -> AsyncGenerator[RawClient]:
    """Connect a client by hand; leaving the block closes its socket without a word."""
    async with dialled(relay) as raw:
        await raw.connect(user, password, **how)
        yield raw


@asynccontextmanager
async def serving(**settings: Any) -> AsyncGenerator[RunningRelay]:
    """Run a relay that listens for AMQP first."""
    settings.setdefault("listen", (AMQP,))
    async with running(**settings) as relay:
        yield relay


def side(relay: RunningRelay) -> AmqpServer:
    """The AMQP side of a relay."""
    assert relay.relay.amqp is not None
    return relay.relay.amqp


def session(relay: RunningRelay, name: str = "") -> AmqpSession:
    """The connection whose name ends so."""
    (found,) = [each for each in side(relay).open if each.name.endswith(name)]
    return found


def consuming(relay: RunningRelay) -> AmqpSession:
    """The connection that consumes."""
    (found,) = [
        each
        for each in side(relay).open
        if any(channel.consumers for channel in each.channels.values())
    ]
    return found


async def in_thread(work: Callable[[], T]) -> T:
    """Do what blocks in a thread, and not for ever."""
    with trio.fail_after(SECONDS):
        return await trio.to_thread.run_sync(work, abandon_on_cancel=True)


def blocking(relay: RunningRelay, **options: Any) -> pika.BlockingConnection:
    """Connect pika; for a thread."""
    options.setdefault("blocked_connection_timeout", SECONDS)
    parameters = pika.ConnectionParameters("127.0.0.1", relay.port, **options)
    return pika.BlockingConnection(parameters)
