"""A relay that speaks Syndicate, and a bare peer: no membrane, and nothing that it does unasked.

Packets and values are written as Preserves text in the tests, and compared as such; they travel in
binary, unless a test says otherwise.
"""

from __future__ import annotations

import socket
import struct
import zlib
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

import attrs
import trio

from clearfunds.accounts import Account, Ledger
from clearfunds.dataspace import DataspaceStatistics
from clearfunds.transports.syndicate import (
    NEED_DATA,
    Assert,
    Connection,
    Error,
    Frame,
    Message,
    Packet,
    Record,
    Retract,
    Symbol,
    Sync,
    Turn,
    Value,
    decode,
    encode,
)
from clearfunds.transports.syndicate._packets import to_value
from clearfunds.transports.syndicate._preserves import (
    Embedded,
    canonical,
    decode_binary,
    encode_text,
    is_tuple,
)
from clearfunds.transports.syndicate._server import SyndicateServer
from tests.transports.peers import SECONDS, RunningRelay, running, until

TCP = "syndicate+tcp://127.0.0.1:0"
SYNC_OID = 9_999
"""Where the answer to `Peer.sync` comes; no test has anything else there."""


def packet_of(text: str) -> Packet:
    """The packet that is written so."""
    return decode(text.encode())


def wire(*texts: str) -> bytes:
    """The packets that are written so, in binary, in one piece."""
    return b"".join([encode(packet_of(text)) for text in texts])


def text_of(value: Value) -> str:
    """How a value is written: equal values alike, and no others.

    A long string in a record or a sequence is written `<long length checksum>`, or it would take
    the library seconds.
    """
    return encode_text(decode_binary(canonical(_shortened(value))))


def _shortened(value: Value) -> Value:
    if isinstance(value, str) and len(value) > 10_000:
        return Record(Symbol("long"), (len(value), zlib.crc32(value.encode())))
    if isinstance(value, Record):
        return Record(value.key, [_shortened(field) for field in value.fields])
    return tuple([_shortened(part) for part in value]) if is_tuple(value) else value


def in_text(packet: Packet) -> str:
    """How a packet is written."""
    return text_of(to_value(packet))


def says(*fields: str) -> str:
    """The packet with one message to the dataspace, `<Says field ...>`."""
    return f"[[0 <M <Says {' '.join(fields)}>>]]"


def observe(pattern: str, oid: int = 1, handle: int = 1, at: int = 0) -> str:
    """The packet that lets oid `oid` of this peer observe `pattern`."""
    return f"[[{at} <A <Observe {pattern} #:[0 {oid}]> {handle}>]]"


def rec(label: str, *parts: str) -> str:
    """The pattern of records with these fields; "" for one that is not looked at."""
    entries = " ".join(f"{n}: {part}" for n, part in enumerate(parts) if part)
    return f"<group <rec {label}> {{{entries}}}>"


WHOLE_SAYS = f"<bind {rec('Says')}>"
"""Captures records labelled Says, whole."""

BIND = "<bind <_>>"


class Peer:
    """One connection to a relay: says what a test says, and keeps account of what it is told.

    Attributes:
        text: Whether it speaks text.
        standing: What has been asserted at this peer, by handle: the oid and the text.
    """

    def __init__(self, stream: trio.SocketStream, text: bool = False) -> None:
        self.stream = stream
        self.text = text
        self.connection = Connection(max_packet_size=64 << 20, max_text_size=64 << 20)
        self.standing: dict[int, tuple[int, str]] = {}

    @property
    def sock(self) -> trio.socket.SocketType:
        return self.stream.socket

    # -- saying ---------------------------------------------------------------------------------

    async def send_raw(self, data: bytes) -> None:
        await self.stream.send_all(data)

    async def send(self, *packets: str) -> None:
        """Send packets in one piece."""
        if self.text:
            await self.send_raw("".join(f"{packet}\n" for packet in packets).encode())
        else:
            await self.send_raw(wire(*packets))

    # -- being told -----------------------------------------------------------------------------

    async def frame(self) -> Frame | None:
        """Return the next packet as it came; None at the end of the connection."""
        while (frame := self.connection.next_frame()) is NEED_DATA:
            try:
                data = await self.stream.receive_some(1 << 16)
            except trio.BrokenResourceError:
                return None
            if not data:
                return None
            self.connection.receive_data(bytes(data))
        return frame

    async def raw_packet(self) -> bytes:
        """Return the bytes of the next packet."""
        with trio.fail_after(SECONDS):
            frame = await self.frame()
        assert frame is not None, "the relay has closed the connection"
        return bytes(frame)

    async def packet(self) -> Packet:
        """Return the next packet."""
        return decode(await self.raw_packet())

    async def expect(self, text: str) -> None:
        """Read one packet, which has to be this one, handles and all."""
        assert in_text(await self.packet()) == text

    async def told(self) -> list[str]:
        """Return what the next packet, a turn, says; see `understand`."""
        raw = await self.raw_packet()
        assert (raw[0] < 128) is self.text, raw
        packet = decode(raw)
        assert isinstance(packet, Turn), packet
        return self.understand(packet)

    def understand(self, turn: Turn) -> list[str]:
        """Return a line for each event of a turn, without the handles, which the relay chooses.

        The oid, then `+` for an assertion, `-` for one that went, `!` for a message and `?` for a
        sync, then the value.
        """
        lines: list[str] = []
        for entry in turn.events:
            match entry.event:
                case Assert(value, handle):
                    assert handle not in self.standing, "a handle is used twice"
                    text = text_of(value)
                    self.standing[handle] = entry.oid, text
                    lines.append(f"{entry.oid} + {text}")
                case Retract(handle):
                    oid, text = self.standing.pop(handle)
                    assert oid == entry.oid
                    lines.append(f"{entry.oid} - {text}")
                case Message(value):
                    lines.append(f"{entry.oid} ! {text_of(value)}")
                case Sync(peer):
                    lines.append(f"{entry.oid} ? {text_of(Embedded(peer))}")
        return lines

    async def sync(self, at: int = 0) -> list[list[str]]:
        """Wait until all that was said before has been dealt with; return the turns until then."""
        await self.send(f"[[{at} <S #:[0 {SYNC_OID}]>]]")
        return await self.until_told(f"{SYNC_OID} ! #t")

    async def until_told(self, line: str) -> list[list[str]]:
        """Read turns up to the one that has this line; return what came before it."""
        turns: list[list[str]] = []
        while True:
            turn = await self.told()
            if line in turn:
                at = turn.index(line)
                assert turn[at + 1 :] == [], "something follows in the same turn"
                return [*turns, turn[:at]] if at else turns
            turns.append(turn)

    async def lines(self, count: int) -> list[str]:
        """Read until this many events have come, and return them, whatever the turns were."""
        found: list[str] = []
        while len(found) < count:
            found += await self.told()
        assert len(found) == count
        return found

    async def silent(self, seconds: float = 0.05) -> bool:
        """Whether nothing comes for a while."""
        with trio.move_on_after(seconds):
            await self.frame()
            return False
        return True

    async def refused(self) -> tuple[str, list[list[str]]]:
        """Read up to an error and the end; return what the error says, and the turns before it."""
        turns: list[list[str]] = []
        while not isinstance(packet := await self.packet(), Error):
            assert isinstance(packet, Turn), packet
            turns.append(self.understand(packet))
        await self.ended()
        return packet.message, turns

    async def ended(self) -> None:
        """See that nothing more comes but the end of the connection, and close this side of it."""
        with trio.fail_after(SECONDS):
            with suppress(trio.BrokenResourceError):
                assert await self.stream.receive_some() == b""
            await self.leave()

    # -- leaving --------------------------------------------------------------------------------

    async def leave(self) -> None:
        await self.stream.aclose()

    async def reset(self) -> None:
        """Close so that the other side gets a reset."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await trio.aclose_forcefully(self.stream)


@attrs.define(eq=False)
class SyndicateRelay:
    """A relay in this process, seen from its Syndicate side."""

    running: RunningRelay

    @property
    def side(self) -> SyndicateServer:
        side = self.running.relay.syndicate
        assert side is not None
        return side

    @property
    def ledger(self) -> Ledger:
        return self.running.ledger

    @property
    def statistics(self) -> DataspaceStatistics:
        return self.running.relay.dataspace.statistics()

    def where(self, listener: int = 0) -> int | str:
        """The port of a listener, or the path of one on a Unix socket."""
        url = urlsplit(self.running.addresses.listening[listener])
        return url.path if url.port is None else url.port

    @asynccontextmanager
    async def peer(
        self, listener: int = 0, *, receive_buffer: int | None = None, text: bool = False
    ) -> AsyncGenerator[Peer]:
        """Connect a peer; leaving the block closes its socket."""
        where = self.where(listener)
        family = socket.AF_INET if isinstance(where, int) else socket.AF_UNIX
        sock = trio.socket.socket(family, socket.SOCK_STREAM)
        try:
            if receive_buffer is not None:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
            await sock.connect(("127.0.0.1", where) if isinstance(where, int) else where)
            yield Peer(trio.SocketStream(sock), text)
        finally:
            sock.close()

    def account(self, peer: Peer) -> Account:
        """The account of a peer that is connected by TCP: known by its address."""
        port: int = peer.sock.getsockname()[1]
        (account,) = [
            account
            for name, account in self.ledger.accounts.items()
            if name.startswith("syndicate:") and name.endswith(f":{port}")
        ]
        return account

    def holders(self, account: Account) -> dict[str, int]:
        """Who holds what this account owes: how many items, by the holders' names."""
        found: dict[str, int] = {}
        for holder in self.ledger.holders:
            for loan in holder.loans():
                if loan.account is account and loan.items:
                    found[holder.name] = found.get(holder.name, 0) + loan.items
        return found

    def audit(self) -> None:
        self.running.audit()
        assert self.side.counters.internal_errors == 0

    async def deserted(self) -> None:
        """Wait until all peers have gone, and see that nothing of them is left."""
        await until(lambda: not self.side.open)
        await until(lambda: set(self.ledger.accounts) <= {"server", "kept"})
        self.audit()
        statistics = self.ledger.statistics()
        assert statistics.debt_items == statistics.debt_bytes == 0
        assert [holder.kind for holder in self.ledger.holders] == ["router"]
        await until(lambda: not self.running.flusher.nursery.child_tasks)
        self.empty()

    def empty(self) -> None:
        """See that the dataspace has nothing in it but what was retained."""
        statistics = self.statistics
        assert statistics.assertions == statistics.observations == 0
        assert statistics.shapes == statistics.subscriptions == 0


@asynccontextmanager
async def relay(**settings: Any) -> AsyncGenerator[SyndicateRelay]:
    """Run a relay for the length of a block; all that peers caused has to be gone afterwards.

    It listens for Syndicate on any TCP port, unless `listen` says otherwise.
    """
    settings.setdefault("listen", (TCP,))
    async with running(**settings) as inner:
        found = SyndicateRelay(inner)
        yield found
        await found.deserted()
    found.audit()
    assert not found.side.open


async def one_after_the_other(peer: Peer, data: bytes) -> None:
    """Send bytes one by one, each as a segment of its own."""
    peer.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for n in range(len(data)):
        await peer.send_raw(data[n : n + 1])
        await trio.lowlevel.checkpoint()


def flat(turns: Iterable[list[str]]) -> list[str]:
    """All lines of some turns."""
    return [line for turn in turns for line in turn]
