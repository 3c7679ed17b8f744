"""A bare client that speaks MQTT 5, for tests of a relay."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import trio

from clearfunds.transports.mqtt import (
    ConnAck,
    Connect,
    Packet,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    SubAck,
    Subscribe,
    Will,
)
from clearfunds.transports.mqtt.codec._frames import find_frame
from clearfunds.transports.mqtt.codec._packets5 import decode5, encode5
from clearfunds.transports.mqtt.codec._properties import NO_PROPERTIES, Properties
from tests.transports.peers import PassiveClient


class Client5(PassiveClient):
    """One that speaks MQTT 5.

    Attributes:
        welcome: The CONNACK.
    """

    welcome: ConnAck

    def __init__(self, stream: trio.SocketStream) -> None:
        super().__init__(stream)
        self._buffer = b""

    async def send(self, *packets: Packet) -> None:
        """Send packets, in one piece."""
        await self.stream.send_all(b"".join(map(encode5, packets)))

    async def receive(self) -> Packet | None:
        """Return the next packet, None when the relay has closed the connection."""
        while True:
            frame = find_frame(self._buffer, 0)
            if frame is not None and frame[1] <= len(self._buffer):
                start, end = frame
                packet = decode5(self._buffer[0], self._buffer[start:end])
                self._buffer = self._buffer[end:]
                return packet
            try:
                data = await self.stream.receive_some(1 << 16)
            except trio.BrokenResourceError:
                return None
            if not data:
                return None
            self._buffer += data

    async def publish(
        self, topic: str, payload: bytes = b"", qos: int = 0, packet_id: int = 1, **properties: Any
    ) -> None:
        """Publish; the answer is for the test to read."""
        said = Properties(**properties) if properties else NO_PROPERTIES
        await self.send(
            Publish(topic, payload, qos, packet_id=packet_id if qos else 0, properties=said)
        )

    async def published(self, topic: str, payload: bytes = b"", **properties: Any) -> None:
        """Publish with QoS 1, and read that it was taken."""
        await self.publish(topic, payload, 1, **properties)
        await self.expect(PubAck(1))

    async def subscribe(self, *filters: str, options: int = 0, identifier: int = 0) -> SubAck:
        """Subscribe, and return the answer."""
        said = Properties(subscription_ids=(identifier,)) if identifier else NO_PROPERTIES
        await self.send(Subscribe(9, tuple((text, options) for text in filters), said))
        answer = await self.next()
        assert isinstance(answer, SubAck)
        return answer

    async def take_exactly_once(self) -> Publish:
        """Take a publication of QoS 2, with all that it takes."""
        packet = await self.publication()
        await self.send(PubRec(packet.packet_id))
        await self.expect(PubRel(packet.packet_id))
        await self.send(PubComp(packet.packet_id))
        return packet


@asynccontextmanager
async def dial5(port: int) -> AsyncGenerator[Client5]:
    """Open a connection, and say nothing."""
    stream = await trio.open_tcp_stream("127.0.0.1", port)
    try:
        yield Client5(stream)
    finally:
        await trio.aclose_forcefully(stream)


@asynccontextmanager
async def connected5(
    port: int,
    client_id: str = "",
    *,
    clean: bool = True,
    keep_alive: int = 0,
    username: str | None = None,
    password: bytes | None = None,
    will: Will | None = None,
    **properties: Any,
) -> AsyncGenerator[Client5]:
    """Connect a client; leaving the block closes its socket, without DISCONNECT."""
    async with dial5(port) as client:
        connect = Connect(
            client_id,
            clean,
            keep_alive,
            username,
            password,
            will,
            protocol_level=5,
            properties=Properties(**properties),
        )
        await client.send(connect)
        welcome = await client.next()
        assert isinstance(welcome, ConnAck), welcome
        assert welcome.return_code == 0, welcome
        client.welcome = welcome
        yield client
