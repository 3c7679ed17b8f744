"""MQTT 5: what is said of it on the wire, and who keeps to whose Receive Maximum."""

from __future__ import annotations

import socket
from collections.abc import Callable, Generator
from contextlib import contextmanager
from threading import Thread
from typing import Any

import paho.mqtt.client as paho
import pytest
import trio
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

pytest.importorskip("hdrh")

from clearfunds.perf import PerfError, Profile, Result, Scenario, Sizes, measure, summary
from clearfunds.perf._client import disconnected
from clearfunds.perf._connect import connect
from clearfunds.perf._publisher import Publisher, PublisherLatencies
from clearfunds.perf._subscriber import Subscriber
from clearfunds.perf._wire import Packets, Publications, short_at
from clearfunds.transports import RemoteProtocolError
from clearfunds.transports.mqtt import ConnAck, Granted, decode5, in_words
from tests.transports.peers import running


def granted(body: bytes) -> Granted:
    packet = decode5(0x20, body)
    assert isinstance(packet, ConnAck)
    return Granted.of(packet)


def test_what_is_granted_as_another_implementation_writes_it() -> None:
    written: Any = Properties(PacketTypes.CONNACK)  # type: ignore[no-untyped-call]
    for name, value in (
        ("ReceiveMaximum", 20), ("ServerKeepAlive", 30), ("MaximumQoS", 1),
        ("MaximumPacketSize", 70_000), ("ReasonString", "wörter"), ("UserProperty", ("a", "b")),
        ("AssignedClientIdentifier", "me"),
    ):  # fmt: skip
        setattr(written, name, value)
    packed: bytes = written.pack()
    found = granted(b"\x00\x00" + packed)
    assert (found.receive_maximum, found.maximum_qos) == (20, 1)
    assert (found.maximum_packet_size, found.keep_alive) == (70_000, 30)
    assert (found.client_id, found.properties.user) == ("me", (("a", "b"),))
    assert granted(b"\x00\x00\x00") == Granted()
    for size in range(len(packed)):
        with pytest.raises(RemoteProtocolError):
            granted(b"\x00\x00" + packed[:size])


def test_why_a_server_hangs_up() -> None:
    assert "session taken over (0x8E)" in str(disconnected(b"\x8e\x00"))
    assert str(disconnected(b"")) == str(disconnected(b"\x00"))
    assert "does not have reason code 0xf0" in str(disconnected(b"\xf0"))


def test_what_a_reason_says() -> None:
    assert in_words(0x9B) == "QoS not supported (0x9B)"
    assert in_words(0xF0, "so there") == 'reason (0xF0): "so there"'


def test_publications_have_room_for_properties() -> None:
    old = Publications(["a/b"], 1).frame(0, 7, b"head", b"er")
    new = Publications(["a/b"], 1, properties=True).frame(0, 7, b"head", b"er")
    assert new[:2] == bytes((old[0], old[1] + 1))
    assert new[2:] == old[2:9] + b"\x00" + old[9:]  # after the packet identifier: section 3.3.2


@contextmanager
def answering(
    connack: bytes, deal_with: Callable[[socket.socket], object] = lambda _: None
) -> Generator[str]:
    """Accept one client, answer its CONNECT, and deal with what comes, in a thread."""

    def serve() -> None:
        with listener, listener.accept()[0] as sock:
            told.append(sock.recv(4096))
            sock.sendall(connack)
            deal_with(sock)

    told: list[bytes] = []
    listener = socket.create_server(("127.0.0.1", 0))
    thread = Thread(target=serve, daemon=True)
    thread.start()
    yield f"mqtt://127.0.0.1:{listener.getsockname()[1]}"
    thread.join(10)
    assert told[0][2:9] == b"\x00\x04MQTT\x05"


async def publish(uri: str, **more: Any) -> Result:
    scenario = Scenario(
        uri=uri, mqtt="5", subscribers=0, qos=1, rate=Profile.parse("200"), seconds=0.5, drain=0.2,
        processes=1, reconnect=None, **more,
    )  # fmt: skip
    with trio.fail_after(60):
        return await measure(scenario)


async def test_a_publisher_keeps_to_the_servers_receive_maximum() -> None:
    seen: list[int] = []

    def count(sock: socket.socket) -> None:
        packets = Packets()
        while data := sock.recv(65_536):
            packets.feed(data)
            seen.extend(first >> 4 for first, _, _ in packets)

    with answering(b"\x20\x06\x00\x00\x03\x21\x00\x03", count) as uri:
        result = await publish(uri)
    assert seen == [3, 3, 3]  # PUBLISH: [MQTT-3.3.4-7]
    assert result.published == 3
    assert result.publishers[0].unconfirmed == result.publishers[0].window == 3
    assert result.stalled > 0.1
    assert "3 messages unacknowledged (its Receive Maximum), fewer" in "\n".join(summary(result))


async def test_what_a_server_refuses_is_not_published_and_makes_room() -> None:
    def refuse(sock: socket.socket) -> None:
        packets = Packets()
        while data := sock.recv(65_536):
            packets.feed(data)
            for _, body, end in packets:
                at = body + 2 + short_at(packets.buffer, body, end)
                even = packets.buffer[at + 1] % 2 == 0
                answer = b"\x40\x04" + packets.buffer[at : at + 2] + b"\x97\x00"
                sock.sendall(b"\x40\x02" + packets.buffer[at : at + 2] if even else answer)

    with answering(b"\x20\x06\x00\x00\x03\x21\x00\x04", refuse) as uri:
        result = await publish(uri, topics=3, topic="t/{topic}")
    (publisher,) = result.publishers
    assert (publisher.refused, publisher.confirmed, publisher.unconfirmed) == (50, 50, 0)
    assert publisher.refusals == {"quota exceeded (0x97)": 50}
    assert result.published == 50
    assert any("50 messages were refused" in each for each in result.doubts())


async def test_a_disconnect_says_why() -> None:
    with answering(b"\x20\x03\x00\x00\x00", lambda s: s.sendall(b"\xe0\x02\x98\x00")) as uri:
        result = await publish(uri)
    assert result.publishers[0].lost[0]["why"].endswith("administrative action (0x98)")


@pytest.mark.parametrize(
    ("connack", "said"),
    [
        (b"\x20\x02\x00\x01", "does not speak MQTT 5.*--max-inflight of clearfunds relay"),
        (b"\x20\x03\x00\x84\x00", "does not speak MQTT 5"),
        (b"", "closed the connection.*it may not speak MQTT 5"),
        (b"\x20\x01\x00", "CONNACK ends before"),
        (b"\x20\x03\x00\x87\x00", r"refused the connection: not authorized \(0x87\)"),
        (b"\x20\x08\x00\x97\x05\x1f\x00\x02no", r'quota exceeded \(0x97\): "no"'),
        (b"\x20\x06\x00\x00\x03\x21\x00\x00", "receive maximum is 0"),
        (b"\x20\x04\x00\x00\x01\x7e", "0x7e, which MQTT 5 does not have"),
        (b"\x20\x07\x00\x00\xff\xff\xff\xff\x01", "more than four bytes"),
        (b"\x20\x05\x00\x00\x02\x24\x00", "takes QoS 0 at most"),
        (b"\x20\x08\x00\x00\x05\x27\x00\x00\x00\xc8", "packets of 200 bytes at most"),
    ],
)
async def test_a_server_that_cannot_do_it(connack: bytes, said: str) -> None:
    with answering(connack) as uri:
        scenario = Scenario(uri=uri, mqtt="5", qos=1, size=Sizes.parse("200"))
        publisher = Publisher(scenario, 0, "test", PublisherLatencies())
        with pytest.raises(PerfError, match=said):
            await publisher.open()
        assert not publisher.connected


async def test_a_server_may_speak_the_version_before_alone() -> None:
    async def serve(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        await stream.send_all(b"\x20\x02\x00\x01")  # as 3.1.1 has it
        await stream.aclose()

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(trio.serve_tcp, serve, 0)
        port = listeners[0].socket.getsockname()[1]
        with pytest.raises(PerfError, match="unacceptable protocol version"):
            await connect("127.0.0.1", port, "test", version="5")
        nursery.cancel_scope.cancel()


async def test_the_relay_speaks_it() -> None:
    async with running() as relay:
        found = await connect("127.0.0.1", relay.port, "test", [("t", 1)], version="5", prefetch=3)
        found.sock.close()
        assert found.granted.receive_maximum == relay.relay.settings.receive_maximum


async def test_acknowledgements_wait_for_their_time_or_their_number() -> None:
    acked: list[tuple[float, int]] = []
    scenario = Scenario(prefetch=10, qos=1, ack_every=3, ack_interval=0.2)
    subscriber = Subscriber(scenario, 0, "test")
    here, there = socket.socketpair()
    here.setblocking(False)
    there.setblocking(False)
    subscriber.opened(b"")
    with here, there:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(subscriber.serve, here)
            begun = trio.current_time()
            there.send(b"".join(b"\x32\x06\x00\x01t\x00%c\x00" % n for n in range(1, 6)))
            while sum(count for _, count in acked) < 5:
                await trio.lowlevel.wait_readable(there)
                acked.append((trio.current_time() - begun, len(there.recv(4096)) // 4))
            nursery.cancel_scope.cancel()
    assert [count for _, count in acked] == [3, 2]  # of the five, what is left over waits
    assert acked[1][0] >= 0.2
    assert subscriber.most_unacknowledged == 5


async def test_mosquitto_sends_as_many_as_the_prefetch_and_no_more(mosquitto: int) -> None:
    with trio.fail_after(60):
        result = await measure(
            Scenario(
                uri=f"mqtt://127.0.0.1:{mosquitto}", qos=1, prefetch=10, ack_every=1000,
                rate=Profile.parse("100"), seconds=0.5, drain=0.2, processes=1,
            )
        )  # fmt: skip
    assert (result.published, result.received, result.missing) == (50, 10, 40)
    assert result.subscribers[0].most_unacknowledged == 10
    assert result.publishers[0].confirmed == 50
    assert "there is never anything to acknowledge" in "\n".join(result.doubts())


def test_our_connect_is_what_another_implementation_sends() -> None:
    """Paho's, from the same client with the same properties, to a socket that keeps it."""
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    properties: Any = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
    properties.ReceiveMaximum = 10
    user = ("mül", b"\x00\xff")
    client = paho.Client(CallbackAPIVersion.VERSION2, client_id="test", protocol=paho.MQTTv5)
    client.username_pw_set(user[0], user[1])  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]

    def told() -> bytes:
        with listener.accept()[0] as sock:
            return sock.recv(4096)

    try:
        client.connect("127.0.0.1", port, keepalive=60, clean_start=True, properties=properties)
        theirs = told()

        async def ours() -> None:
            with pytest.raises(PerfError):
                await connect("127.0.0.1", port, "test", version="5", prefetch=10, user=user)

        thread = Thread(target=trio.run, args=(ours,))
        thread.start()
        assert told() == theirs
        thread.join(10)
    finally:
        listener.close()
        client.loop_stop()
