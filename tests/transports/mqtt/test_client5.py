"""The client in MQTT 5, against a server made of the core, over a stream in memory."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import attrs
import pytest
import trio
from trio.testing import memory_stream_pair

from clearfunds.transports import LocalProtocolError
from clearfunds.transports.mqtt import (
    NO_PROPERTIES,
    ClientSession,
    ConnAck,
    Connect,
    ConnectionLostError,
    ConnectRefusedError,
    Disconnect,
    MqttClient,
    Packet,
    PingReq,
    Properties,
    PubAck,
    PubComp,
    PublicationRefusedError,
    Publish,
    PubRec,
    PubRel,
    Reason,
    SubAck,
    Subscribe,
    SubscriptionRefusedError,
    UnsubAck,
    Unsubscribe,
    open_mqtt,
)
from tests.transports.mqtt.test_client import Peer

ALL: dict[str, Any] = {
    "payload_format": 1,
    "message_expiry": 60,
    "content_type": "text/plain",
    "response_topic": "answers",
    "correlation_data": b"\0\xff",
    "user": (("a", "1"), ("a", "2")),
}
FOR_EVER = 0xFFFF_FFFF


@asynccontextmanager
async def connected(
    granted: Properties = NO_PROPERTIES, *, present: bool = False, **options: Any
) -> AsyncGenerator[tuple[MqttClient, Peer]]:
    """Connect a client to a peer, and let the peer answer its farewell at the end."""
    ours, theirs = memory_stream_pair()
    peer = Peer(theirs)

    async def accept() -> None:
        peer.rest.append(await peer.packet() or PingReq())
        await peer.send(ConnAck(present, 0, granted))

    options.setdefault("keep_alive", 0)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(accept)
        async with open_mqtt(ours, version="5", **options) as client:
            yield client, peer
            nursery.start_soon(peer.finish)


@asynccontextmanager
async def losing(**options: Any) -> AsyncGenerator[tuple[MqttClient, Peer, list[Exception]]]:
    """Connect a client whose block must end with a lost connection; the list then holds it."""
    ours, theirs = memory_stream_pair()
    peer = Peer(theirs)
    lost: list[Exception] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(peer.accept)
        try:
            async with open_mqtt(ours, version="5", keep_alive=0, **options) as client:
                yield client, peer, lost
        except ConnectionLostError as exc:
            lost.append(exc)
    assert lost


async def refused(call: Awaitable[Any], error: type[Exception], match: str) -> Any:
    with pytest.raises(error, match=match) as caught:
        await call
    return caught.value


async def test_what_is_said_at_the_beginning_and_at_the_end() -> None:
    said = Properties(user=(("who", "me"),))
    async with connected(
        client_id="me", receive_maximum=7, max_topic_alias=3, max_packet_size=4_000,
        session_expiry=60, properties=said,
    ) as (client, peer), trio.open_nursery() as nursery:  # fmt: skip
        nursery.start_soon(peer.finish)
        await client.disconnect(Reason.DISCONNECT_WITH_WILL, Properties(session_expiry=1))
    assert peer.rest == [
        Connect(
            "me",
            protocol_level=5,
            properties=attrs.evolve(
                said,
                receive_maximum=7,
                topic_alias_maximum=3,
                maximum_packet_size=4_000,
                session_expiry=60,
            ),
        ),
        Disconnect(Reason.DISCONNECT_WITH_WILL, Properties(session_expiry=1)),
    ]


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        (Reason.SERVER_SHUTTING_DOWN, NO_PROPERTIES),
        (Reason.NORMAL_DISCONNECTION, Properties(session_expiry=1)),  # it was 0
        (Reason.NORMAL_DISCONNECTION, Properties(content_type="x")),
    ],
)
async def test_a_farewell_that_cannot_be_said_is_none(reason: int, said: Properties) -> None:
    async with connected() as (client, peer):
        await refused(client.disconnect(reason, said), LocalProtocolError, "DISCONNECT")
        await client.publish("t")
        assert await peer.packet() == Publish("t")


@pytest.mark.parametrize(
    ("clean", "asked", "said"),
    [(True, None, None), (False, None, FOR_EVER), (False, 0, None), (True, 60, 60)],
)
async def test_a_session_is_kept_as_long_as_is_asked_for(
    clean: bool, asked: int | None, said: int | None
) -> None:
    async with connected(client_id="c", clean_session=clean, session_expiry=asked) as (_, peer):
        pass
    connect = peer.rest[0]
    assert isinstance(connect, Connect)
    assert (connect.clean_session, connect.properties.session_expiry) == (clean, said)


async def test_what_the_server_grants() -> None:
    granted = Properties(
        assigned_client_id="you", receive_maximum=2, maximum_packet_size=100, maximum_qos=1,
        retain_available=0, topic_alias_maximum=1, session_expiry=9,
    )  # fmt: skip
    async with connected(granted) as (client, peer):
        assert client.client_id == "you"
        assert (client.granted.receive_maximum, client.granted.session_expiry) == (2, 9)
        assert client.granted.properties == granted
        cases: dict[str, list[tuple[Any, ...]]] = {
            "MQTT-3.2.2-11": [(b"", 2)],
            "MQTT-3.2.2-14": [(b"", 0, True)],
            "MQTT-3.2.2-15": [(bytes(97),), (bytes(95), 1)],
        }
        for why, said in ((why, said) for why, several in cases.items() for said in several):
            await refused(client.publish("t", *said), LocalProtocolError, why)
        for alias, why in ((2, "MQTT-3.3.2-9"), (1, "has not been given a topic")):
            topic = "t" if alias == 2 else ""
            named = Properties(topic_alias=alias)
            await refused(client.publish(topic, properties=named), LocalProtocolError, why)
        # What was refused has taken no place in the window.
        for _ in range(2):
            client.publish_nowait("t", bytes(90), 1)
        with pytest.raises(trio.WouldBlock):
            client.publish_nowait("t", b"", 1)
        for packet in await peer.packets(2):
            assert isinstance(packet, Publish)
            await peer.send(PubAck(packet.packet_id))


async def test_a_server_says_how_often_it_wants_to_hear(
    autojump_clock: trio.testing.MockClock,
) -> None:
    granted = Properties(server_keep_alive=4)
    async with connected(granted, keep_alive=60, ping_timeout=100) as (_, peer):
        began = trio.current_time()
        assert await peer.packet() == PingReq()
        assert trio.current_time() - began == 3


@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_what_is_said_of_a_message_both_ways(qos: int) -> None:
    async with connected() as (client, peer):
        await client.publish("t", b"x", qos, properties=Properties(**ALL), wait=False)
        number = qos and 1
        said = Publish("t", b"x", qos, packet_id=number, properties=Properties(**ALL))
        assert await peer.packet() == said
        if qos == 1:
            await peer.send(PubAck(1, Reason.NO_MATCHING_SUBSCRIBERS))
        elif qos:
            await peer.send(PubRec(1))
            assert await peer.packet() == PubRel(1)
            await peer.send(PubComp(1))
        await peer.send(said)
        assert await client.receive() == said
        if qos == 1:
            assert await peer.packet() == PubAck(1)
        elif qos:
            assert await peer.packet() == PubRec(1)
            await peer.send(PubRel(1))
            assert await peer.packet() == PubComp(1)


@pytest.mark.parametrize("answer", [PubAck, PubRec])
async def test_a_publication_that_is_refused(answer: Callable[..., Packet]) -> None:
    qos = 1 if answer is PubAck else 2

    async def refuse(peer: Peer, number: int) -> None:
        packet = await peer.packet()
        assert isinstance(packet, Publish)
        why = Properties(reason_string="so there")
        await peer.send(answer(packet.packet_id, Reason.QUOTA_EXCEEDED, why))

    async with connected(max_inflight=1) as (client, peer):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(refuse, peer, 1)
            error = await refused(
                client.publish("t", b"", qos), PublicationRefusedError, "quota exceeded"
            )
        assert (error.topic, error.reason, error.reason_string) == ("t", 0x97, "so there")
        # Nobody waits for these: the first is told of when somebody does.
        async with trio.open_nursery() as nursery:
            for number in (1, 2):
                await client.publish(f"t/{number}", b"", qos, wait=False)
                nursery.start_soon(refuse, peer, number)
        error = await refused(client.flush(), PublicationRefusedError, "so there")
        assert error.topic == "t/1"
        await client.flush()
        assert client.statistics().inflight == client.statistics().identifiers_in_use == 0


async def test_what_was_refused_is_told_of_at_the_end_at_the_latest() -> None:
    ours, theirs = memory_stream_pair()
    peer = Peer(theirs)

    async def serve() -> None:
        await peer.accept()
        await peer.packet()
        await peer.send(PubAck(1, Reason.NOT_AUTHORIZED))
        await peer.finish()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve)
        with pytest.raises(PublicationRefusedError, match="not authorized"):
            async with open_mqtt(ours, version="5") as client:
                await client.publish("t", b"", 1, wait=False)
    assert peer.rest == [Disconnect()]


async def test_options_of_subscriptions() -> None:
    async with connected() as (client, peer), trio.open_nursery() as nursery:
        said = Properties(subscription_ids=(5,))

        async def subscribe() -> None:
            granted = await client.subscribe(
                ["a", ("b", 2)], 1, no_local=True, retain_as_published=True, retained="new",
                properties=said,
            )  # fmt: skip
            assert granted == (1, 2)

        nursery.start_soon(subscribe)
        assert await peer.packet() == Subscribe(1, (("a", 0x1D), ("b", 0x1E)), said)
        await peer.send(SubAck(1, (1, 2)))
        await refused(client.subscribe("a", retained="at times"), ValueError, "always, new, never")


async def test_a_subscription_that_is_refused() -> None:
    async with connected() as (client, peer):

        async def answer() -> None:
            assert isinstance(await peer.packet(), Subscribe)
            why = Properties(reason_string="so there")
            await peer.send(SubAck(1, (1, Reason.NOT_AUTHORIZED), why))
            assert await peer.packet() == Unsubscribe(2, ("a", "b"))
            await peer.send(UnsubAck(2, (Reason.NOT_AUTHORIZED, 0x11)))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(answer)
            error = await refused(
                client.subscribe(["a", "b"], 1),
                SubscriptionRefusedError,
                r"'b', not authorized \(0x87\).*so there",
            )
            assert error.granted == {"a": 1, "b": None}
            assert error.reasons == {"b": 0x87}
            await refused(
                client.unsubscribe(["a", "b"]), SubscriptionRefusedError, r"end .* to 'a'"
            )


async def test_a_connection_that_is_refused_says_why() -> None:
    ours, theirs = memory_stream_pair()
    peer = Peer(theirs)

    async def refuse() -> None:
        await peer.packet()
        why = Properties(reason_string="so there", server_reference="other.example")
        await peer.send(ConnAck(False, Reason.USE_ANOTHER_SERVER, why))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(refuse)
        with pytest.raises(ConnectRefusedError, match=r'"so there"; use "other.example"') as caught:
            async with open_mqtt(ours, version="5"):
                pytest.fail("this was refused")
    assert caught.value.return_code is Reason.USE_ANOTHER_SERVER
    assert caught.value.server_reference == "other.example"


async def test_a_server_that_does_not_speak_5() -> None:
    ours, theirs = memory_stream_pair()
    await theirs.send_all(b"\x20\2\0\1")
    with pytest.raises(ConnectRefusedError, match="unsupported protocol version"):
        async with open_mqtt(ours, version="5"):
            pytest.fail("this was refused")


async def test_why_the_server_disconnects() -> None:
    async with losing() as (client, peer, lost):
        why = Properties(reason_string="so there")
        await peer.send(Disconnect(Reason.SESSION_TAKEN_OVER, why))
        await client.receive()
    assert "session taken over" in str(lost[0])
    assert "so there" in str(lost[0])
    assert getattr(lost[0], "reason", None) == Reason.SESSION_TAKEN_OVER


async def test_a_server_that_breaks_the_protocol_is_told_so() -> None:
    async with losing() as (client, peer, lost):
        await peer.send(Publish("t", properties=Properties(topic_alias=1)))
        await client.receive()
    assert await peer.packet() == Disconnect(Reason.TOPIC_ALIAS_INVALID)
    assert "topic alias 1" in str(lost[0])
    assert getattr(lost[0], "reason", 0) is None


async def test_short_names_for_topics_both_ways() -> None:
    async with connected(Properties(topic_alias_maximum=2), max_topic_alias=1) as (client, peer):
        said = Properties(topic_alias=2)
        peer.connection.max_topic_alias = 2
        for number in (1, 2):
            await client.publish("" if number == 2 else "long/topic", b"x", properties=said)
            assert await peer.packet() == Publish("long/topic", b"x", properties=said)
        told = Properties(topic_alias=1)
        await peer.send(Publish("t", b"1", properties=told), Publish("", b"2", properties=told))
        assert [(await client.receive()).topic for _ in range(2)] == ["t", "t"]


@pytest.mark.parametrize("qos", [1, 2])
async def test_what_is_sent_again_has_its_topic(qos: int) -> None:
    session = ClientSession()
    options: dict[str, Any] = {"client_id": "c", "clean_session": False, "session": session}
    granted = Properties(topic_alias_maximum=1)
    said = Properties(topic_alias=1, content_type="x")

    async def begin() -> None:
        async with connected(granted, **options) as (client, _):
            await client.publish("t", b"1", qos, properties=said, wait=False)
            await client.publish("", b"2", qos, properties=said, wait=False)
            raise KeyError

    with pytest.RaisesGroup(KeyError):
        await begin()
    ours, _ = memory_stream_pair()
    with pytest.raises(LocalProtocolError, match="unfinished in MQTT 5"):
        async with open_mqtt(ours, **options):
            pytest.fail("it would send what the server cannot read")
    async with connected(present=True, **options) as (client, peer):
        plain = Properties(content_type="x")
        for number in (1, 2):
            assert await peer.packet() == Publish(
                "t", b"%d" % number, qos, False, True, number, plain
            )
            await peer.send(PubAck(number) if qos == 1 else PubRec(number, Reason.QUOTA_EXCEEDED))
        if qos == 2:
            await refused(client.flush(), PublicationRefusedError, "quota exceeded")
        await client.flush()


@pytest.mark.parametrize(
    "options",
    [
        {"session_expiry": 1},
        {"receive_maximum": 1},
        {"max_topic_alias": 1},
        {"properties": Properties(user=(("a", "b"),))},
    ],
)
async def test_what_only_5_has_is_refused_with_311(options: dict[str, Any]) -> None:
    ours, _ = memory_stream_pair()
    with pytest.raises(LocalProtocolError, match="MQTT 5"):
        async with open_mqtt(ours, **options):
            pytest.fail("this cannot be said")
