"""One reader's connection, byte by byte: what is answered, what is refused, what it holds up."""

from __future__ import annotations

import random
import re
import socket
import struct
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest
import trio

from clearfunds.dataspace import Publication
from clearfunds.ranges.server import FrameReader
from clearfunds.ranges.wire import (
    Ack,
    AskHead,
    Attach,
    Detach,
    Drop,
    ErrorCode,
    Fetch,
    Frame,
    Hello,
    Kind,
    OpenBlock,
    Ping,
    Request,
    encode_frame,
    encode_request,
)
from tests.ranges.server.relays import HOST, Relay, running
from tests.transports.peers import log_of, until

HELLO = encode_request(0, Hello(1, 1))
ATTACH = Attach(name="s", filters=("a",))


class Peer:
    """A reader that says what a test says, and reads when it says so."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self.frames = FrameReader(100 << 20)

    async def send(self, *requests: Request) -> None:
        """Send requests, numbered from 1, in one piece."""
        data = b"".join(encode_request(n, request) for n, request in enumerate(requests, 1))
        await self.stream.send_all(data)

    async def receive(self) -> Frame | None:
        """Return the next frame; None when the relay has closed."""
        with trio.fail_after(20):
            while not isinstance(frame := self.frames.next_frame(), Frame):
                try:
                    data = await self.stream.receive_some(1 << 16)
                except trio.BrokenResourceError:
                    return None
                if not data:
                    return None
                self.frames.receive_data(bytes(data))
        return frame

    async def expect(self, kind: Kind, number: int = 1) -> bytes:
        """Read a frame of this kind, with this number; return what is in it."""
        frame = await self.receive()
        assert frame is not None
        assert (Kind(frame.kind).name, frame.request) == (kind.name, number), frame.payload
        return frame.payload

    async def error(self, code: ErrorCode, number: int = 1) -> str:
        """Read an error; return its sentence."""
        payload = await self.expect(Kind.ERROR, number)
        assert struct.unpack_from("<H", payload) == (code.value,)
        return payload[4:].decode()


@asynccontextmanager
async def dialled(
    relay: Relay, *, greet: bool = True, receive_buffer: int | None = None
) -> AsyncGenerator[Peer]:
    sock = trio.socket.socket(socket.AF_INET)
    if receive_buffer is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    await sock.connect((HOST, relay.port))
    stream = trio.SocketStream(sock)
    async with stream:
        peer = Peer(stream)
        if greet:
            await stream.send_all(HELLO)
            await peer.expect(Kind.WELCOME, 0)
        yield peer


def put(relay: Relay, count: int, size: int) -> None:
    """Publish by the server itself."""
    for _ in range(count):
        publication = Publication("a", bytes(size))
        with relay.server.account.turn(publication) as turn:
            turn.publish(relay.dataspace, publication)


async def test_byte_by_byte_and_all_at_once() -> None:
    requests: tuple[Request, ...] = (
        ATTACH,
        AskHead(1),
        Fetch(1, 1, 3, 1 << 20),
        Ack(1, 3),
        Ping(),
        Detach(1),
    )
    data = HELLO + b"".join(encode_request(n, r) for n, r in enumerate(requests, 1))
    kinds = "WELCOME ATTACHED HEAD_IS RECORDS ACKED PONG DETACHED"
    async with running() as relay:
        relay.server.subscriptions.open("s", ["a"])
        for step in (1, len(data)):
            put(relay, 2, 5)
            async with dialled(relay, greet=False) as peer:
                for start in range(0, len(data), step):
                    await peer.stream.send_all(data[start : start + step])
                    await trio.lowlevel.checkpoint()
                found = [await peer.receive() for _ in kinds.split()]
                assert " ".join(Kind(f.kind).name for f in found if f) == (
                    kinds if step == 1 else kinds.replace("RECORDS ACKED", "ERROR ACKED")
                )
                assert [f.request for f in found if f] == list(range(7))
            assert not relay.subscription().attached
            if step == 1:
                # The second time, the same numbers are there no more.
                assert relay.subscription().head() == (3, 3)


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (encode_request(1, Ping()), "not HELLO"),
        (encode_request(1, Hello(2, 9)), "version 1 is spoken here.* from 2 to 9"),
        (b"GET / HTTP/1.1\r\n\r\n", "max_frame_size"),
        (HELLO + struct.pack("<I", 65 << 10), "66564 bytes"),
        (HELLO + encode_frame(Kind.RECORDS, 1), "a reader does not send that"),
    ],
)
async def test_what_is_not_of_this_protocol_is_said_and_ends_the_connection(
    raw: bytes, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with running() as relay:
        async with dialled(relay, greet=False) as peer:
            await peer.stream.send_all(raw)
            if raw.startswith(HELLO):
                await peer.expect(Kind.WELCOME, 0)
            assert re.search(why, await peer.error(ErrorCode.PROTOCOL, 0))
            assert await peer.receive() is None
        await until(lambda: not relay.server.open)
        assert relay.server.counters.protocol_errors == 1
        assert log_of(caplog, "closed: ")


async def test_no_garbage_is_an_error_of_the_relays() -> None:
    chance = random.Random(5)
    requests: tuple[Request, ...] = (ATTACH, AskHead(1), Fetch(1, 1, 9, 100), Ack(1, 2))
    good = b"".join(encode_request(n, request) for n, request in enumerate(requests, 1))
    async with running() as relay:
        for _ in range(60):
            raw = bytearray(good)
            for _ in range(chance.randrange(1, 4)):
                raw[chance.randrange(len(raw))] = chance.randrange(256)
            async with dialled(relay) as peer:
                await peer.stream.send_all(raw)
                await peer.stream.send_eof()
                while await peer.receive() is not None:
                    pass
        await until(lambda: not relay.server.open)
        relay.audit()
        for subscription in relay.server.subscriptions:
            assert not subscription.attached


async def test_who_says_nothing_is_not_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    async with running(connect_timeout=0.1, idle_timeout=0.1) as relay:
        async with dialled(relay, greet=False) as peer:
            assert await peer.receive() is None
        async with dialled(relay) as peer:
            assert await peer.receive() is None
        assert log_of(caplog, "no HELLO within 0.1 s")
        assert log_of(caplog, "no request for")


async def test_what_is_refused_does_not_end_the_connection() -> None:
    async with running(max_attachments=1) as relay, dialled(relay) as peer:
        await peer.send(
            AskHead(1),
            ATTACH,
            ATTACH,
            Attach(name="s", generation=7),
            Detach(5),
            Drop(1),
            AskHead(1),
        )
        assert "no attachment 1; attach first" in await peer.error(ErrorCode.REFUSED)
        await peer.expect(Kind.ATTACHED, 2)
        assert "max_attachments" in await peer.error(ErrorCode.REFUSED, 3)
        assert "max_attachments" in await peer.error(ErrorCode.REFUSED, 4)
        await peer.expect(Kind.DETACHED, 5)
        await peer.expect(Kind.DROPPED, 6)
        assert "was dropped" in await peer.error(ErrorCode.REFUSED, 7)
        assert relay.server.counters.protocol_errors == 0


async def test_a_reader_that_does_not_read_is_asked_for_no_more_and_may_still_acknowledge() -> None:
    async with running(limit_bytes=1 << 20) as relay:
        relay.server.subscriptions.open("s", ["a"])
        put(relay, 40, 100_000)
        fetches = [Fetch(1, n, 41, 400_000) for n in range(5, 40)]
        async with dialled(relay, receive_buffer=4096) as peer:
            await peer.send(Attach(name="s"), *fetches, Ack(1, 5), Ack(1, 40), Ping())
            (session,) = relay.server.open
            await until(lambda: session.account.waiting)
            # What is acknowledged is repaid, unless a fetch before it wants it still.
            await until(lambda: relay.subscription().low == 5)
            assert session.account.debt_bytes <= (1 << 20) + 600_000
            relay.audit()
            # Publishers do not wait for what is on its way to readers: it is no debt of theirs.
            assert session.account.parent is relay.server.readers
            await peer.expect(Kind.ATTACHED)
            seen: dict[int, Frame] = {}
            for _ in range(len(fetches) + 3):
                frame = await peer.receive()
                assert frame is not None
                seen[frame.request] = frame
            assert {Kind(f.kind) for f in seen.values()} == {Kind.RECORDS, Kind.ACKED, Kind.PONG}
            for number, fetch in enumerate(fetches, 2):
                (following,) = struct.unpack_from("<Q", seen[number].payload)
                assert following > fetch.start
            await until(lambda: relay.subscription().low == 40)
            assert not session.account.debt_bytes


async def test_what_waits_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clearfunds.ranges.server._session.MOST_PENDING", 100)
    async with running(limit_bytes=1 << 20) as relay:
        relay.server.subscriptions.open("s", ["a"])
        put(relay, 40, 100_000)
        async with dialled(relay, receive_buffer=4096) as peer:
            await peer.send(Attach(name="s"))
            await peer.expect(Kind.ATTACHED)
            waiting: list[int] = []

            async def ask() -> None:
                while True:
                    await peer.send(*[Fetch(1, 1, 41, 1 << 20)] * 1000)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(ask)
                for number in range(40):
                    await peer.expect(Kind.RECORDS, number + 1)
                    waiting.append(relay.server.counters.received_bytes // 36 - number)
                nursery.cancel_scope.cancel()
            # What one read has more, however often it has to wait; and some are on their way.
            assert 100 <= max(waiting) <= 100 + (64 << 10) // 36 + 20


async def test_a_reader_that_is_out_changes_nothing() -> None:
    async with running() as relay, dialled(relay) as peer:
        await peer.send(
            Attach(name="s", filters=("a",), grace=10.0),
            Attach(name="s", grace=20.0),
            Attach(name="s", generation=1, grace=30.0),
            Attach(name="s", generation=2, incarnation=b"another one's 16", grace=40.0),
        )
        await peer.expect(Kind.ATTACHED, 1)
        await peer.expect(Kind.ATTACHED, 2)
        await peer.error(ErrorCode.FENCED, 3)
        await peer.error(ErrorCode.OTHER_INCARNATION, 4)
        assert relay.subscription().options.grace == 20
        await peer.send(Attach(name="s", generation=2, grace=50.0))
        await peer.expect(Kind.ATTACHED, 1)
        assert relay.subscription().options.grace == 50


async def test_a_reader_that_never_reads_is_given_up() -> None:
    async with running(limit_bytes=1 << 20, patience=0.2) as relay:
        relay.server.subscriptions.open("s", ["a"])
        put(relay, 40, 100_000)
        async with dialled(relay, receive_buffer=4096) as peer:
            await peer.send(Attach(name="s"), *(Fetch(1, 1, 41, 1 << 20) for _ in range(40)))
            await until(lambda: relay.subscription().attached)
            await until(lambda: not relay.server.open)
        assert not relay.subscription().attached
        assert relay.subscription().unpaid_items == 40  # nothing of what it can be asked for again


async def test_who_leaves_while_it_waits_has_left() -> None:
    async with running(limit_bytes=1 << 20) as relay:
        relay.server.subscriptions.open("s", ["a"])
        put(relay, 40, 100_000)
        async with dialled(relay, receive_buffer=4096) as peer:
            await peer.send(Attach(name="s"), *(Fetch(1, 1, 41, 1 << 20) for _ in range(40)))
            (session,) = relay.server.open
            await until(lambda: session.account.waiting)
            await peer.stream.send_eof()
            await until(lambda: not relay.server.open)


async def test_garbage_behind_what_waits_is_found_in_its_turn() -> None:
    async with running(limit_bytes=1 << 20) as relay:
        relay.server.subscriptions.open("s", ["a"])
        put(relay, 40, 100_000)
        async with dialled(relay, receive_buffer=4096) as peer:
            fetches = [Fetch(1, 1, 41, 1 << 20) for _ in range(10)]
            await peer.send(Attach(name="s"), *fetches)
            await peer.stream.send_all(encode_frame(Kind.RECORDS, 99))
            await peer.expect(Kind.ATTACHED)
            for number, _ in enumerate(fetches, 2):
                await peer.expect(Kind.RECORDS, number)
            assert "a reader does not send that" in await peer.error(ErrorCode.PROTOCOL, 0)
            assert await peer.receive() is None


async def test_an_answer_has_the_blocks_that_it_says() -> None:
    async with running() as relay:
        relay.server.subscriptions.open("s", ["a"])
        put(relay, 3, 70_000)
        async with dialled(relay) as peer:
            await peer.send(Attach(name="s"), Fetch(1, 1, 9, 1 << 20), Fetch(1, 4, 9, 1 << 20))
            await peer.expect(Kind.ATTACHED)
            payload = await peer.expect(Kind.RECORDS, 2)
            following, count, _ = struct.unpack_from("<QII", payload)
            assert (following, count) == (4, 3)
            at = 16 + 4 * 4
            for first, size in enumerate(struct.unpack_from("<3I", payload, 16), 1):
                assert at % 8 == 0
                block = OpenBlock(payload[at : at + size])
                assert (block.first, len(block.values)) == (first, 70_000)
                at += size
            assert at == len(payload)
            assert struct.unpack("<QII", await peer.expect(Kind.RECORDS, 3)) == (4, 0, 0)


async def test_an_orderly_stop_sends_what_is_on_its_way() -> None:
    async with running() as relay:
        relay.server.subscriptions.open("s", ["a"])
        put(relay, 40, 100_000)
        async with dialled(relay) as peer:
            await peer.send(Attach(name="s"), Fetch(1, 1, 41, 3 << 20))
            (session,) = relay.server.open
            await until(lambda: session.outlet.unsent)
            relay.server.stop()
            await peer.expect(Kind.ATTACHED)
            assert len(await peer.expect(Kind.RECORDS, 2)) > 2_900_000
            assert await peer.receive() is None
        await until(lambda: not relay.server.open)
        assert relay.server.unflushed == []
