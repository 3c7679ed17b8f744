"""MQTT 3.1.1 by hand, for tests that must not share a mistake with the codec they test.

Packets are made from the tables of the specification and compared as bytes.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import NamedTuple

import trio

from tests.transports.peers import SECONDS

ACCEPTED = b"\x20\x02\x00\x00"
PINGREQ = b"\xc0\x00"
PINGRESP = b"\xd0\x00"
DISCONNECT = b"\xe0\x00"
END = b""
"""Instead of a packet: the other side has closed the connection, or reset it."""


def number(value: int) -> bytes:
    """Two bytes, the most significant first (section 1.5.2)."""
    return value.to_bytes(2, "big")


def string(value: str | bytes) -> bytes:
    """A string with its length before it (section 1.5.3)."""
    encoded = value.encode() if isinstance(value, str) else value
    return number(len(encoded)) + encoded


def packet(first_byte: int, *fields: bytes) -> bytes:
    """A packet of these fields (section 2.2)."""
    body = b"".join(fields)
    length = bytearray()
    rest = len(body)
    while rest > 127:
        length.append(rest % 128 + 128)
        rest //= 128
    length.append(rest)
    return bytes((first_byte,)) + bytes(length) + body


class Will(NamedTuple):
    topic: str
    payload: bytes = b"gone"
    qos: int = 0
    retain: bool = False


def connect(
    client_id: str | bytes = "",
    *,
    clean: bool = True,
    keep_alive: int = 0,
    will: Will | None = None,
    username: str | None = None,
    password: bytes | None = None,
    name: bytes = b"MQTT",
    level: int = 4,
    reserved: int = 0,
    rest: bytes = b"",
) -> bytes:
    """CONNECT (section 3.1)."""
    flags = reserved | clean << 1
    fields = [string(client_id)]
    if will is not None:
        flags |= 4 | will.qos << 3 | will.retain << 5
        fields += string(will.topic), string(will.payload)
    if username is not None:
        flags |= 0x80
        fields.append(string(username))
    if password is not None:
        flags |= 0x40
        fields.append(string(password))
    return packet(0x10, string(name), bytes((level, flags)), number(keep_alive), *fields, rest)


def publish(
    topic: str,
    payload: bytes = b"",
    qos: int = 0,
    packet_id: int = 0,
    *,
    retain: bool = False,
    dup: bool = False,
) -> bytes:
    """PUBLISH (section 3.3)."""
    identifier = number(packet_id) if qos else b""
    return packet(0x30 | dup << 3 | qos << 1 | retain, string(topic), identifier, payload)


def puback(packet_id: int) -> bytes:
    """PUBACK (section 3.4)."""
    return packet(0x40, number(packet_id))


def pubrec(packet_id: int) -> bytes:
    """PUBREC (section 3.5)."""
    return packet(0x50, number(packet_id))


def pubrel(packet_id: int) -> bytes:
    """PUBREL (section 3.6)."""
    return packet(0x62, number(packet_id))


def pubcomp(packet_id: int) -> bytes:
    """PUBCOMP (section 3.7)."""
    return packet(0x70, number(packet_id))


def subscribe(packet_id: int, *filters: tuple[str, int]) -> bytes:
    """SUBSCRIBE (section 3.8)."""
    pairs = (string(text) + bytes((qos,)) for text, qos in filters)
    return packet(0x82, number(packet_id), *pairs)


def suback(packet_id: int, *codes: int) -> bytes:
    """SUBACK (section 3.9)."""
    return packet(0x90, number(packet_id), bytes(codes))


def unsubscribe(packet_id: int, *filters: str) -> bytes:
    """UNSUBSCRIBE (section 3.10)."""
    return packet(0xA2, number(packet_id), *map(string, filters))


def unsuback(packet_id: int) -> bytes:
    """UNSUBACK (section 3.11)."""
    return packet(0xB0, number(packet_id))


class Delivery(NamedTuple):
    """A PUBLISH from a server, taken apart."""

    topic: str
    payload: bytes
    qos: int
    retain: bool
    dup: bool
    packet_id: int


def delivery(frame: bytes) -> Delivery:
    """Take a PUBLISH apart."""
    assert frame, "the connection was closed"
    first_byte = frame[0]
    assert first_byte >> 4 == 3, f"not a PUBLISH: {frame!r}"
    at = 1
    while frame[at] & 128:
        at += 1
    at += 1
    end = at + 2 + int.from_bytes(frame[at : at + 2], "big")
    topic = frame[at + 2 : end].decode()
    qos = first_byte >> 1 & 3
    packet_id = 0
    if qos:
        packet_id = int.from_bytes(frame[end : end + 2], "big")
        end += 2
    return Delivery(topic, frame[end:], qos, bool(first_byte & 1), bool(first_byte & 8), packet_id)


class Wire:
    """A connection on which a test sends bytes and sees bytes."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self._held = bytearray()

    async def send(self, *packets: bytes) -> None:
        """Send packets, in one piece."""
        with trio.fail_after(SECONDS):
            await self.stream.send_all(b"".join(packets))

    async def packet(self) -> bytes:
        """Return the next packet, or `END`."""
        held = self._held
        with trio.fail_after(SECONDS):
            while True:
                size = whole(held)
                if size:
                    frame = bytes(held[:size])
                    del held[:size]
                    return frame
                try:
                    data = await self.stream.receive_some(1 << 16)
                except trio.BrokenResourceError:
                    data = b""
                if not data:
                    assert not held, f"cut off within a packet: {held!r}"
                    return END
                held += data

    async def packets(self, count: int) -> list[bytes]:
        """Return that many packets."""
        return [await self.packet() for _ in range(count)]

    async def expect(self, *packets: bytes) -> None:
        """Read packets, which have to be these (`END`: the connection is closed)."""
        for expected in packets:
            got = await self.packet()
            assert got == expected, f"{got!r} instead of {expected!r}"

    async def deliveries(self, count: int, *, ack: bool = False) -> list[Delivery]:
        """Return that many publications; acknowledge those of QoS 1, if so wanted."""
        found: list[Delivery] = []
        for _ in range(count):
            found.append(delivery(await self.packet()))
            if ack and found[-1].qos == 1:
                await self.send(puback(found[-1].packet_id))
        return found

    async def delivery(self) -> Delivery:
        """Return the next packet, a PUBLISH; acknowledge it if it has QoS 1."""
        (found,) = await self.deliveries(1, ack=True)
        return found

    async def drain(self) -> list[bytes]:
        """Return what has come: all there is before the answer to a ping."""
        found: list[bytes] = []
        await self.send(PINGREQ)
        while (frame := await self.packet()) != PINGRESP:
            assert frame, f"closed after {found!r}"
            found.append(frame)
        return found

    async def nothing(self) -> None:
        """See that nothing has come."""
        assert await self.drain() == []

    async def say(self, packets: bytes) -> None:
        """Send packets to somebody who may close the connection while they are sent."""
        with suppress(trio.BrokenResourceError):
            await self.send(packets)

    async def reset(self) -> None:
        """Close it so that the other side gets a reset."""
        sock = self.stream.socket
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await trio.aclose_forcefully(self.stream)


def whole(held: bytes | bytearray) -> int:
    """Return the size of the packet at the front of `held` (section 2.2.3); 0: it is not whole."""
    length = 0
    for place in range(1, min(5, len(held))):
        length |= (held[place] & 127) << 7 * (place - 1)
        if held[place] < 128:
            size = place + 1 + length
            return size if size <= len(held) else 0
    return 0


@asynccontextmanager
async def wire(port: int) -> AsyncGenerator[Wire]:
    """Open a connection; leaving the block closes it without a word."""
    stream = await trio.open_tcp_stream("127.0.0.1", port)
    try:
        yield Wire(stream)
    finally:
        await trio.aclose_forcefully(stream)
