"""Sessions that outlive their connections, seen from the client's side of any MQTT server.

The tests that are made of this hold for mosquitto, so that it is the protocol that is tested and
not somebody's reading of it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager

import attrs
import trio

from clearfunds.transports.mqtt import (
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    PingReq,
    PingResp,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    SubAck,
    Subscribe,
    UnsubAck,
    Unsubscribe,
    Will,
)
from tests.transports.peers import SECONDS, BareClient, dial


@attrs.define
class Broker:
    """A server to be visited, and names that no other test has used there."""

    port: int
    window: int
    """How many publications of QoS 1 and 2 it sends before it waits for an acknowledgement."""
    prefix: str
    lax_window: bool = False
    """Whether one acknowledgement may bring more than one message."""
    lag: float = 0.0
    """Seconds that it may take to say what it has to: it may have to write something first."""

    @property
    def name(self) -> str:
        """A client identifier."""
        return f"{self.prefix}-client"

    @property
    def topic(self) -> str:
        """A topic."""
        return f"{self.prefix}/topic"

    @asynccontextmanager
    async def visit(
        self,
        name: str = "",
        *,
        clean: bool = False,
        present: bool | None = None,
        will: Will | None = None,
        leave: bool = False,
    ) -> AsyncGenerator[Visitor]:
        """Connect; at the end of the block the connection is cut, or with `leave` said goodbye to.

        Args:
            name: the client identifier, if it is not to be the test's own.
            clean: clean session.
            present: whether the server has to have kept a session; None if it does not matter.
            will: the will.
            leave: say DISCONNECT at the end, and wait until the server has closed.
        """
        async with dial(self.port) as client:
            connect = Connect(name or self.name, clean, 0, will=will)
            await client.stream.send_all(client.connection.send(connect))
            with trio.fail_after(SECONDS):
                accepted = await client.receive()
            assert isinstance(accepted, ConnAck)
            assert accepted.return_code == 0
            assert present is None or accepted.session_present is present
            visitor = Visitor(client, self.lag)
            yield visitor
            if leave:
                await client.send(Disconnect())
                await client.gone()

    @asynccontextmanager
    async def publisher(self) -> AsyncGenerator[Visitor]:
        """Connect a client that is nobody else."""
        async with self.visit(f"{self.prefix}-publisher", clean=True) as visitor:
            yield visitor

    async def publish(
        self, payloads: Iterable[bytes], qos: int = 1, topic: str = "", retain: bool = False
    ) -> None:
        """Publish as somebody else, one after another; each is accepted when this returns."""
        async with self.publisher() as visitor:
            for payload in payloads:
                await visitor.publish(topic or self.topic, payload, qos, retain)

    async def forget(self, *names: str) -> None:
        """End the sessions of these clients, or that of the test's own [MQTT-3.1.2-6]."""
        for name in names or (self.name,):
            async with self.visit(name, clean=True, present=False, leave=True):
                pass


class Visitor:
    """A client that does and answers nothing of itself, so that it can stop anywhere."""

    def __init__(self, client: BareClient, lag: float = 0.0) -> None:
        self.client = client
        self._lag = lag
        self._ahead: deque[Packet] = deque()
        self._last_id = 100

    async def send(self, *packets: Packet) -> None:
        await self.client.send(*packets)

    async def receive(self) -> Packet | None:
        """Read the next packet, None when the server has closed the connection."""
        if self._ahead:
            return self._ahead.popleft()
        with trio.fail_after(SECONDS):
            return await self.client.receive()

    async def expect(self, *packets: Packet) -> None:
        """Read packets, which have to be these."""
        for packet in packets:
            got = await self.receive()
            assert got == packet, f"{got!r} instead of {packet!r}"

    async def subscribe(self, *filters: str, qos: int = 1) -> None:
        await self.send(Subscribe(99, tuple((text, qos) for text in filters)))
        await self.expect(SubAck(99, (qos,) * len(filters)))

    async def unsubscribe(self, *filters: str) -> None:
        await self.send(Unsubscribe(99, filters))
        await self.expect(UnsubAck(99))

    async def publish(self, topic: str, payload: bytes, qos: int, retain: bool = False) -> None:
        """Publish, and go through with it: nothing else may come in between."""
        number = 0
        if qos:
            self._last_id = number = self._last_id + 1
        await self.send(Publish(topic, payload, qos, retain, packet_id=number))
        if qos == 1:
            await self.expect(PubAck(number))
        elif qos == 2:
            await self.expect(PubRec(number))
            await self.send(PubRel(number))
            await self.expect(PubComp(number))
        else:
            assert await self.all() == []

    async def message(self) -> Publish:
        """Read a message, which has to come."""
        packet = await self.receive()
        assert isinstance(packet, Publish), packet
        return packet

    async def messages(self, count: int) -> list[Publish]:
        """Read messages and acknowledge none."""
        return [await self.message() for _ in range(count)]

    async def take(self, count: int) -> list[Publish]:
        """Read messages and acknowledge each to the end; the server has heard of it on return."""
        taken: list[Publish] = []
        unfinished: set[int] = set()
        while len(taken) < count or unfinished:
            packet = await self.receive()
            match packet:
                case Publish(qos=0):
                    taken.append(packet)
                case Publish(qos=1):
                    taken.append(packet)
                    await self.send(PubAck(packet.packet_id))
                case Publish():
                    taken.append(packet)
                    unfinished.add(packet.packet_id)
                    await self.send(PubRec(packet.packet_id))
                case PubRel(packet_id):
                    unfinished.remove(packet_id)
                    await self.send(PubComp(packet_id))
                case _:
                    raise AssertionError(packet)
        # Who cuts the connection and comes back may be served before what he has said is read.
        self._ahead.extend(await self.all())
        return taken

    async def all(self) -> list[Packet]:
        """Read what the server has to say by now, and answer nothing."""
        await trio.sleep(self._lag)
        await self.send(PingReq())
        said: list[Packet] = []
        while (packet := await self.receive()) != PingResp():
            assert packet is not None, said
            said.append(packet)
        return said


def bodies(messages: Iterable[Publish]) -> list[bytes]:
    """Their payloads."""
    return [message.payload for message in messages]


def numbered(count: int) -> list[bytes]:
    """Payloads that tell their order."""
    return [b"%d" % number for number in range(count)]
