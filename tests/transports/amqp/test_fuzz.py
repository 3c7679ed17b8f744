"""Connections fed with frames that were mutated: the specification's errors come of it, or nothing.

The books balance at every look, nothing of the relay's own goes wrong, nothing is left at the end,
whatever the server says is made of whole frames, and the client next to it is served.
"""

from __future__ import annotations

import contextlib
import logging
import random
import socket
import struct
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

import attrs
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from pamqp import body, frame, header
from pamqp.commands import Basic, Channel, Confirm, Connection, Exchange, Queue, Tx
from pamqp.common import FieldTable
from pamqp.heartbeat import Heartbeat
from trio.testing import wait_all_tasks_blocked

from clearfunds.accounts import Ledger, Limit
from clearfunds.dataspace import Dataspace
from clearfunds.dataspace.exchanges import QueueMaker
from clearfunds.transports import Link, RemoteProtocolError, ServerSettings, open_flusher
from clearfunds.transports.amqp import AmqpError, AmqpServer, ConnectionInput, State
from clearfunds.transports.amqp._replies import Code
from tests.transports.amqp.clients import CAPABILITIES, PROTOCOL_HEADER
from tests.transports.peers import SECONDS

SETTINGS: Final = ServerSettings(
    limit_items=8,
    limit_bytes=20_000,
    max_packet_size=4_000,
    max_subscriptions=5,
    max_channels=4,
    max_frame_size=4_096,
    max_unacked=6,
    max_queues=6,
    max_exchanges=4,
    max_bindings=12,
    connect_timeout=60.0,
    patience=0.5,
)
"""Small limits, so that what clients draw comes to them."""

LONG_FRAMES: Final = 150_000
"""Frames of the long test; at some thousand a second."""

PARSED_FRAMES: Final = 10_000_000
"""Frames that are only parsed, in the long test."""


CLOSES: Final = (b"\0\x0a\0\x32", b"\0\x14\0\x28")
CONNECTION_CLOSE_OK: Final = b"\0\x0a\0\x33"


def said(channel: int, *parts: Any) -> bytes:
    return b"".join(frame.marshal(part, channel) for part in parts)


HELLO: Final = (
    PROTOCOL_HEADER
    + said(0, Connection.StartOk({"capabilities": CAPABILITIES}, "PLAIN", "\0a\0b", "en_US"))
    + said(0, Connection.TuneOk(4, 4096, 0), Connection.Open("/"))
    + b"".join(said(channel, Channel.Open()) for channel in (1, 2, 3))
)


SCENE: Final = said(
    1,
    Queue.Declare(queue="q", nowait=True),
    Queue.Declare(queue="r", nowait=True),
    Exchange.Declare(exchange="e", exchange_type="topic", nowait=True),
    Exchange.Declare(exchange="f", exchange_type="fanout", nowait=True),
    Queue.Bind(queue="q", exchange="e", routing_key="#", nowait=True),
)
"""What the commands are about; where others have made it otherwise, the channel is closed."""


def publication(draw: random.Random) -> list[Any]:
    size = draw.choice([0, 1, 30, 3_000, 3_999, 4_001])
    properties = draw.choice(
        [
            Basic.Properties(),
            Basic.Properties(delivery_mode=2, expiration=draw.choice(["0", "5", "50", "x"])),
            Basic.Properties(
                headers={"CC": ["q", "r"], "a": 1}, priority=9, reply_to="amq.rabbitmq.reply-to"
            ),
            Basic.Properties(user_id="a", content_type="text/plain", correlation_id="c"),
        ]
    )
    method = Basic.Publish(
        exchange=draw.choice(["", "", "", "", "e", "amq.topic", "amq.headers", "amq.fanout"]),
        routing_key=draw.choice(["q", "r", "a.b", "x" * 200]),
        mandatory=draw.random() < 0.3,
    )
    cut = draw.choice([4_000, 1_000])
    payload = bytes(size)
    bodies = [body.ContentBody(payload[at : at + cut]) for at in range(0, size, cut)]
    return [method, header.ContentHeader(0, size, properties), *bodies]


def one(method: Callable[[random.Random], Any]) -> Callable[[random.Random], list[Any]]:
    return lambda draw: [method(draw)]


QUEUES: Final = ["q", "q", "q", "q", "r", "r", "", "amq.x", "amq.rabbitmq.reply-to"]
ARGUMENTS: Final[list[FieldTable]] = [
    {},
    {},
    {},
    {},
    {"x-max-length": 2, "x-overflow": "reject-publish"},
    {"x-message-ttl": 1, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "r"},
    {"x-expires": 1},
]
COMMANDS: Final[list[Callable[[random.Random], list[Any]]]] = [
    *[publication] * 12,
    *[one(lambda _: Basic.Ack(0, True))] * 4,
    one(lambda d: Basic.Nack(0, True, d.random() < 0.5)),
    one(lambda d: Basic.Ack(d.randrange(1, 4), d.random() < 0.3)),
    one(lambda d: Basic.Reject(d.randrange(1, 4), d.random() < 0.5)),
    one(lambda d: Basic.Qos(0, d.randrange(4), d.random() < 0.3)),
    one(
        lambda d: Basic.Consume(
            queue=d.choice(QUEUES),
            consumer_tag=d.choice(["", "", "", "t"]),
            no_ack=d.random() < 0.3,
            exclusive=d.random() < 0.1,
            nowait=d.random() < 0.2,
        )
    ),
    one(lambda d: Basic.Cancel("t")),
    one(lambda d: Basic.Get(queue=d.choice(QUEUES), no_ack=d.random() < 0.5)),
    one(lambda d: Basic.Recover(d.random() < 0.9)),
    one(
        lambda d: Queue.Declare(
            queue=d.choice(QUEUES),
            exclusive=d.random() < 0.1,
            auto_delete=d.random() < 0.2,
            passive=d.random() < 0.2,
            arguments=d.choice(ARGUMENTS),
        )
    ),
    one(
        lambda d: Queue.Bind(
            queue=d.choice(QUEUES),
            exchange=d.choice(["e", "amq.topic", "amq.headers", "amq.fanout", ""]),
            routing_key=d.choice(["a.#", "#.b", "*", "q"]),
            arguments={"x-match": "any", "a": 1},
        )
    ),
    one(lambda d: Queue.Unbind(queue=d.choice(QUEUES), exchange="amq.topic", routing_key="a.#")),
    one(lambda d: Queue.Purge(queue=d.choice(QUEUES))),
    one(lambda d: Queue.Delete(queue=d.choice(QUEUES), if_unused=d.random() < 0.3)),
    one(
        lambda d: Exchange.Declare(
            exchange=d.choice(["e", "f"]),
            exchange_type=d.choice(["direct", "topic", "fanout", "headers", "none"]),
            auto_delete=d.random() < 0.3,
        )
    ),
    one(lambda d: Exchange.Bind(destination="e", source=d.choice(["f", "amq.topic"]))),
    one(lambda d: Exchange.Delete(exchange=d.choice(["e", "f"]))),
    one(lambda _: Confirm.Select()),
    one(lambda d: Channel.Flow(d.random() < 0.9)),
    lambda _: [Channel.Close(200, "", 0, 0), Channel.Open()],
    one(lambda _: Channel.CloseOk()),
]
RARE: Final[list[Callable[[random.Random], list[Any]]]] = [
    one(lambda _: Channel.Open()),
    one(lambda _: Channel.Close(200, "", 0, 0)),
    one(lambda _: Tx.Select()),
    one(lambda _: Connection.Close(200, "", 0, 0)),
    one(lambda _: Heartbeat()),
    one(lambda _: Basic.GetEmpty()),
]
"""Those that end most connections, if they are not followed by something else."""


def frames_of(draw: random.Random, count: int) -> list[bytes]:
    """Some commands, as frames."""
    found: list[bytes] = []
    for _ in range(count):
        chance = draw.random()
        parts = draw.choice(RARE if chance < 0.01 else COMMANDS)(draw)
        channel = draw.choice([0, 4, 9]) if chance > 0.99 else draw.choice([1, 1, 2, 3])
        found += [said(channel, part) for part in parts]
    return found


def mutation(draw: random.Random, each: bytes) -> bytes:
    """Another frame, or none, in the place of one."""
    data = bytearray(each)
    match draw.randrange(8):
        case 0:  # bytes changed
            for _ in range(draw.randrange(1, 4)):
                data[draw.randrange(len(data))] = draw.choice([0, 0xCE, draw.randrange(256)])
            return bytes(data)
        case 1 | 2 | 3:  # arguments changed, within their frame
            for _ in range(3):
                if len(each) > 8:
                    data[7 + draw.randrange(len(each) - 8)] = draw.randrange(256)
            return bytes(data)
        case 4:  # another size, rightly said
            payload = each[7 : 7 + draw.randrange(max(1, len(each) - 7))]
            return each[:3] + struct.pack(">I", len(payload)) + payload + b"\xce"
        case 5:
            return draw.choice([b"", each + each])
        case 6:
            return each[: draw.randrange(len(each))]
        case _:
            return draw.randbytes(draw.randrange(20))


def mutated(draw: random.Random, frames: list[bytes]) -> bytes:
    """Frames, one or two of them not as they were."""
    frames = [*frames]
    for _ in range(draw.choice([1, 1, 2])):
        at = draw.randrange(len(frames))
        frames[at] = mutation(draw, frames[at]) if frames[at] else b"\xce"
    return b"".join(frames)


@attrs.define
class Served:
    """A server without listeners; its connections have socket pairs."""

    server: AmqpServer
    nursery: trio.Nursery

    def connect(self, receive: int = 1 << 20) -> socket.socket:
        ours, theirs = socket.socketpair()
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, receive)
        ours.setblocking(False)
        theirs.setblocking(False)
        self.nursery.start_soon(self.server.handle, Link(ours, "pair"), "test")
        return theirs


@asynccontextmanager
async def served() -> AsyncGenerator[Served]:
    ledger = Ledger()
    async with open_flusher() as flusher:
        account = ledger.open("server", limit=Limit(items=40, bytes=None))
        server = AmqpServer(Dataspace(ledger), flusher, account, SETTINGS)
        server.open_hosts(lambda _: QueueMaker(ledger, patience=60.0))
        async with trio.open_nursery() as nursery:
            yield Served(server, nursery)
            nursery.cancel_scope.cancel()
        assert not flusher.nursery.child_tasks
    assert not server.open
    ledger.audit()
    assert server.counters.internal_errors == 0
    assert not ledger.faults.unowned
    server.close_hosts()
    ledger.audit()
    assert account.debt_items == account.debt_bytes == 0
    assert [holder.kind for holder in ledger.holders] == ["router"]
    assert set(ledger.accounts) == {"server"}


def drain(sock: socket.socket) -> tuple[bytes, bool]:
    """All that has come, and whether the other side has closed."""
    data = b""
    try:
        while piece := sock.recv(1 << 20):
            data += piece
    except BlockingIOError:
        return data, False
    except ConnectionResetError:
        pass
    return data, True


class Judge:
    """Sees that what the server says is made of whole frames, with codes that there are.

    A channel that the server has closed is opened again.
    """

    def __init__(self) -> None:
        self.rest = b""
        self.closed = False
        self.answer = b""

    def look(self, data: bytes) -> None:
        self.rest += data
        while len(self.rest) >= 8:
            if self.rest.startswith(b"AMQP"):
                self.rest = self.rest[8:]
                continue
            size = struct.unpack_from(">I", self.rest, 3)[0] + 8
            assert size <= 4_096 or self.rest[0] != 3, "a body frame is too large"
            if len(self.rest) < size:
                return
            data, self.rest = self.rest[:size], self.rest[size:]
            kind, channel, _ = struct.unpack_from(">BHI", data)
            assert kind in (1, 2, 3, 8)
            assert data[-1] == 0xCE
            index = data[7:11] if kind == 1 else b""
            # Other methods may have names that are no texts: they are what the client has said.
            assert not self.closed or index == CONNECTION_CLOSE_OK, data
            if index in CLOSES:
                _, _, found = frame.unmarshal(data)
                assert isinstance(found, Connection.Close | Channel.Close)
                assert found.reply_code in set(Code)
                assert found.reply_code != Code.INTERNAL_ERROR
                self.closed = isinstance(found, Connection.Close)
                if not self.closed:
                    self.answer += said(channel, Channel.CloseOk(), Channel.Open())


def begin(served: Served, receive: int) -> tuple[socket.socket, Judge]:
    """Open a connection with three channels, and a queue."""
    sock = served.connect(receive)
    sock.send(HELLO + SCENE)
    return sock, Judge()


async def feed(rounds: list[tuple[bool, bytes]], *, reads: bool) -> None:
    """Let two clients say their pieces, and see after each that all is well."""
    async with served() as s:
        ledger = s.server.ledger
        calm = s.connect()
        calm.send(HELLO + said(1, Queue.Declare(queue="calm", exclusive=True)))
        clients = [begin(s, 4_096), begin(s, 1 << 20)]
        await wait_all_tasks_blocked()
        assert drain(calm)[0].endswith(b"\x04calm" + bytes(8) + b"\xce")
        for second, piece in rounds:
            sock, judge = clients[second]
            with contextlib.suppress(BrokenPipeError, ConnectionResetError, BlockingIOError):
                sock.send(judge.answer + piece)
            judge.answer = b""
            await wait_all_tasks_blocked()
            ledger.audit()
            if reads or second:
                data, gone = drain(sock)
                judge.look(data)
                if gone or judge.closed:
                    sock.close()
                    clients[second] = begin(s, 4_096)
        assert s.server.counters.internal_errors == 0
        for sock, _ in clients:
            sock.close()
        await wait_all_tasks_blocked()
        ledger.audit()
        # What they have left in queues stands, and all together have a limit.
        with trio.fail_after(SECONDS):
            gone = False
            while not gone:
                gone = len(s.server.open) == 1
                for declared in list(s.server.hosts["/"].queues.values()):
                    if declared.name != "calm":
                        declared.queue.purge()
                await trio.sleep(0.001)
        calm.send(
            said(1, Basic.Publish(routing_key="calm"), header.ContentHeader(0, 0))
            + said(1, Basic.Get(queue="calm", no_ack=True))
        )
        await wait_all_tasks_blocked()
        answer, _ = drain(calm)
        assert b"\x04calm" in answer
        calm.close()


def run(rounds: list[tuple[bool, bytes]], *, reads: bool = True) -> None:
    """Feed it in a loop of its own, without the warnings."""
    logging.getLogger("clearfunds").setLevel(logging.CRITICAL)
    try:
        trio.run(lambda: feed(rounds, reads=reads))
    finally:
        logging.getLogger("clearfunds").setLevel(logging.NOTSET)


@settings(max_examples=60, deadline=None)
@given(st.randoms(use_true_random=False), st.integers(1, 12), st.booleans())
def test_nothing_but_errors_of_the_specification(
    draw: random.Random, count: int, reads: bool
) -> None:
    rounds: list[tuple[bool, bytes]] = []
    for _ in range(count):
        frames = frames_of(draw, draw.randrange(1, 8))
        data = mutated(draw, frames) if draw.random() < 0.3 else b"".join(frames)
        rounds.append((draw.random() < 0.7, data))
    run(rounds, reads=reads)


@settings(max_examples=40, deadline=None)
@given(st.randoms(use_true_random=False), st.data())
def test_the_beginning_of_a_connection_may_be_anything(
    draw: random.Random, data: st.DataObject
) -> None:
    hello = mutated(draw, [PROTOCOL_HEADER, *cut(HELLO[8:])])

    async def greet() -> None:
        async with served() as s:
            sock, judge = s.connect(), Judge()
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                for at in range(0, len(hello), 50):
                    sock.send(hello[at : at + 50])
                    await wait_all_tasks_blocked()
            judge.look(drain(sock)[0])
            sock.close()

    del data
    logging.getLogger("clearfunds").setLevel(logging.CRITICAL)
    try:
        trio.run(greet)
    finally:
        logging.getLogger("clearfunds").setLevel(logging.NOTSET)


def cut(data: bytes) -> list[bytes]:
    """Whole frames, one by one."""
    found: list[bytes] = []
    while data:
        size = struct.unpack_from(">I", data, 3)[0] + 8
        found.append(data[:size])
        data = data[size:]
    return found


@pytest.mark.long
@pytest.mark.parametrize("seed", range(4))
def test_a_long_fuzz(seed: int) -> None:
    draw = random.Random(seed)
    fed = 0
    while fed < LONG_FRAMES // 4:
        rounds: list[tuple[bool, bytes]] = []
        for _ in range(draw.randrange(5, 60)):
            frames = frames_of(draw, draw.randrange(1, 12))
            fed += len(frames)
            data = mutated(draw, frames) if draw.random() < 0.2 else b"".join(frames)
            rounds.append((draw.random() < 0.7, data))
        run(rounds, reads=draw.random() < 0.7)


def parse(count: int, seed: int) -> None:
    """Parse mutated frames, cut into pieces."""
    draw = random.Random(seed)
    parsed = 0
    while parsed < count:
        incoming = ConnectionInput(max_first_size=4096, max_message_size=4_000)
        incoming.tuned(4, 4096)
        incoming.state = State.OPEN
        opened = [said(channel, Channel.Open()) for channel in (1, 2, 3)]
        frames = [*opened, *frames_of(draw, 30)]
        data = mutated(draw, frames)
        size_of_all = len(data)
        try:
            while data:
                size = draw.choice([1, 7, 100, 1_000, 10_000])
                incoming.receive_data(data[:size])
                data = data[size:]
                while True:
                    try:
                        command = incoming.next_command()
                    except AmqpError as exc:
                        if exc.ends_connection:
                            raise
                        incoming.channel_closing(exc.channel)
                        continue
                    if not hasattr(command, "channel"):
                        break
        except RemoteProtocolError:
            pass
        assert incoming.held_bytes <= 4 * 4_000 + 30_000
        # What comes behind an error is not parsed, and does not count.
        seen = size_of_all - len(data) - incoming.unparsed
        parsed += max(1, len(frames) * seen // size_of_all)


def test_parsing_raises_nothing_else() -> None:
    parse(3_000, 1)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(4))
def test_parsing_raises_nothing_else_however_long(seed: int) -> None:
    parse(PARSED_FRAMES // 4, seed)
