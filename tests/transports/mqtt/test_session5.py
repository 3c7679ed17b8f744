"""One client's connection that speaks MQTT 5, over real sockets, beside others that speak 3.1.1."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from clearfunds.access import Tenant
from clearfunds.accounts import Account, Confirm, Outcome, Recipient, StuckPolicy
from clearfunds.dataspace import TopicFilter
from clearfunds.transports.mqtt import (
    ConnAck,
    Connect,
    Disconnect,
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
from clearfunds.transports.mqtt.codec._packets5 import encode5
from clearfunds.transports.mqtt.codec._properties import Properties
from clearfunds.transports.mqtt.codec._reasons import Reason
from tests.transports.mqtt.peers5 import Client5, connected5, dial5
from tests.transports.peers import connected, dial, running, until

ALL: dict[str, Any] = {
    "payload_format": 1,
    "content_type": "text/plain",
    "response_topic": "answers",
    "correlation_data": b"\0\xff",
    "user": (("a", "1"), ("b", "2"), ("a", "3")),
}
"""What is handed on as it is."""


# -- CONNECT and CONNACK --------------------------------------------------------------------------


async def test_a_client_is_told_what_it_may_do() -> None:
    async with running(max_awaiting_release=7, max_packet_size=4096) as relay:
        async with connected5(relay.port) as client:
            said = client.welcome.properties
            assert said.receive_maximum == 7
            assert said.maximum_packet_size == 4096
            assert said.topic_alias_maximum == 10
            assert said.shared_available == 1
            assert said.assigned_client_id is not None
            assert said.assigned_client_id in relay.relay.mqtt.sessions
            assert said.session_expiry is None  # as it asked: it ends with the connection
        async with connected5(relay.port, "named", session_expiry=10**9) as client:
            said = client.welcome.properties
            assert said.assigned_client_id is None
            assert said.session_expiry == 86_400  # the most that the relay keeps one for
        kept = relay.relay.mqtt.persistent_sessions
        assert kept is not None
        kept.discard("named")


async def test_a_ping_is_answered() -> None:
    async with running() as relay, connected5(relay.port) as client:
        await client.send(PingReq())
        await client.expect(PingResp())


async def test_a_connect_that_cannot_be_is_refused_with_a_reason() -> None:
    async with running(max_client_id=8) as relay:
        for connect, reason in (
            (Connect("far too long", protocol_level=5), Reason.CLIENT_IDENTIFIER_NOT_VALID),
            (
                Connect(
                    "c",
                    protocol_level=5,
                    properties=Properties(authentication_method="SCRAM-SHA-256"),
                ),
                Reason.BAD_AUTHENTICATION_METHOD,
            ),
        ):
            async with dial5(relay.port) as client:
                await client.send(connect)
                (answer,) = await client.gone()
                assert isinstance(answer, ConnAck)
                assert answer.return_code == reason
                assert answer.properties.reason_string
        assert not relay.relay.mqtt.sessions
        assert relay.relay.mqtt.counters.refused == 2


async def test_a_malformed_connect_is_answered_in_its_own_protocol() -> None:
    async with running() as relay, dial5(relay.port) as client:
        # A property that there is not.
        body = b"\x00\x04MQTT\x05\x02\x00\x00\x02\x7f\x00\x00\x01c"
        await client.stream.send_all(bytes((0x10, len(body))) + body)
        (answer,) = await client.gone()
        assert isinstance(answer, ConnAck)
        assert answer.return_code >= 0x80


async def test_who_is_pushed_out_by_another_connection_is_told() -> None:
    async with (
        running() as relay,
        connected5(relay.port, "c") as first,
        connected5(relay.port, "c") as second,
    ):
        (last,) = await first.gone()
        assert isinstance(last, Disconnect)
        assert last.reason == Reason.SESSION_TAKEN_OVER
        await second.send(PingReq())
        await second.expect(PingResp())


async def test_who_is_silent_is_told() -> None:
    async with running() as relay, connected5(relay.port, "c", keep_alive=1) as client:
        (last,) = await client.gone()
        assert isinstance(last, Disconnect)
        assert last.reason == Reason.KEEP_ALIVE_TIMEOUT
        assert relay.relay.mqtt.counters.timeouts == 1


async def test_who_is_there_when_the_relay_stops_is_told() -> None:
    async with running() as relay, connected5(relay.port, "c") as client:
        relay.stop.set()
        (last,) = await client.gone()
        assert isinstance(last, Disconnect)
        assert last.reason == Reason.SERVER_SHUTTING_DOWN


@pytest.mark.parametrize(
    ("packet", "reason"),
    [
        (b"\x30\x05\x00\x01t\x02\x7f", Reason.MALFORMED_PACKET),  # an unknown property
        (b"\x30\x04\x00\x01#\x00", None),  # a wildcard
        (b"\x30\x07\x00\x00\x03\x23\x00\x05x", Reason.PROTOCOL_ERROR),  # nobody named topic 5
        (b"\x30\x07\x00\x01t\x03\x23\x00\x0b", Reason.TOPIC_ALIAS_INVALID),  # above the most
        (b"\xf0\x00", None),  # AUTH
        (b"\x30\xff\xff\xff\x7f", Reason.PACKET_TOO_LARGE),
        (b"\x82\x07\x00\x01\x00\x00\x01t\xc0", None),  # reserved options
    ],
)
async def test_who_breaks_the_protocol_is_told_why(packet: bytes, reason: Reason | None) -> None:
    async with running() as relay, connected5(relay.port, "c") as client:
        await client.stream.send_all(packet)
        (last,) = await client.gone()
        assert isinstance(last, Disconnect)
        assert last.reason >= 0x80
        assert last.properties.reason_string
        if reason is not None:
            assert last.reason == reason
        assert relay.relay.mqtt.counters.protocol_errors == 1
        assert relay.relay.mqtt.counters.internal_errors == 0


# -- PUBLISH ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_what_is_said_of_a_publication_is_handed_on(qos: int) -> None:
    async with (
        running() as relay,
        connected5(relay.port) as publisher,
        connected5(relay.port) as new,
        connected(relay.port) as old,
    ):
        await new.subscribe("t", options=qos)
        await old.subscribe("t", qos=qos)
        await publisher.publish("t", b"x", qos, **ALL)
        told = await (new.take_exactly_once() if qos == 2 else new.publication())
        assert told == Publish(
            "t", b"x", qos, packet_id=told.packet_id, properties=Properties(**ALL)
        )
        plain = await old.publication()
        assert (plain.topic, plain.payload, plain.qos) == ("t", b"x", qos)


@pytest.mark.parametrize("properties", [{}, {"content_type": "x"}])
async def test_runs_go_from_either_version_to_either(properties: dict[str, Any]) -> None:
    count = 300
    async with running() as relay:
        async with (
            connected5(relay.port) as publisher5,
            connected(relay.port) as publisher4,
            connected5(relay.port) as new,
            connected(relay.port) as old,
        ):
            await new.subscribe("t/#")
            await old.subscribe("t/#")
            said = Properties(**properties)
            packets = [
                Publish(f"t/{n // 100}", b"%d" % n * (n % 7), properties=said) for n in range(count)
            ]
            await publisher5.send(*packets)
            for packet in packets:
                assert await new.publication() == packet
                got = await old.publication()
                assert (got.topic, got.payload) == (packet.topic, packet.payload)
            plain = [Publish(packet.topic, packet.payload) for packet in packets]
            await publisher4.send(*plain)
            for packet in plain:
                await new.expect(packet)
                await old.expect(packet)
            # One at a time, which is another way.
            for number in range(5):
                await publisher5.publish("t/1", b"%d" % number, **properties)
                assert (await new.publication()).payload == b"%d" % number
                assert (await old.publication()).payload == b"%d" % number
            relay.audit()
        await relay.deserted()


async def test_a_topic_has_a_short_name() -> None:
    async with running() as relay, connected5(relay.port) as client:
        await client.subscribe("#")
        await client.publish("long/topic", b"1", topic_alias=3)
        await client.publish("", b"2", topic_alias=3)
        await client.publish("other", b"3", topic_alias=3)
        await client.publish("", b"4", 1, topic_alias=3)
        got = [await client.publication() for _ in range(3)]
        assert [(each.topic, each.payload) for each in got] == [
            ("long/topic", b"1"), ("long/topic", b"2"), ("other", b"3"),
        ]  # fmt: skip
        assert all(each.properties == Properties() for each in got)
        both = [await client.next(), await client.next()]
        assert PubAck(1) in both
        assert any(isinstance(each, Publish) and each.topic == "other" for each in both)


async def test_a_publication_that_is_refused_is_acknowledged_so() -> None:
    async with running(max_retained=1) as relay, connected5(relay.port) as client:
        await client.publish("$SYS/x", b"", 1)
        answer = await client.next()
        assert isinstance(answer, PubAck)
        assert answer.reason == Reason.NOT_AUTHORIZED
        assert "$SYS" in (answer.properties.reason_string or "")
        await client.send(Publish("a", b"1", 1, True, packet_id=1))
        await client.expect(PubAck(1, Reason.NO_MATCHING_SUBSCRIBERS))
        await client.send(Publish("b", b"1", 2, True, packet_id=2))
        answer = await client.next()
        assert isinstance(answer, PubRec)
        assert answer.reason == Reason.QUOTA_EXCEEDED
        # It is over with that: the identifier may mean another one.
        await client.send(Publish("c", b"1", 2, packet_id=2))
        await client.expect(PubRec(2, Reason.NO_MATCHING_SUBSCRIBERS))
        await client.send(PubRel(2))
        await client.expect(PubComp(2))
        assert relay.relay.mqtt.counters.rejected == 2


async def test_who_does_not_want_to_know_is_not_told_why() -> None:
    async with running() as relay, connected5(relay.port, request_problem_information=0) as client:
        await client.publish("$SYS/x", b"", 1)
        await client.expect(PubAck(1, Reason.NOT_AUTHORIZED))
        await client.send(Subscribe(1, (("t" * 9_999, 0),)))
        await client.expect(SubAck(1, (Reason.TOPIC_FILTER_INVALID,)))


async def test_an_identifier_that_means_nothing_is_said_to() -> None:
    async with running() as relay, connected5(relay.port) as client:
        await client.send(PubRel(5), PubRec(6))
        await client.expect(PubComp(5, Reason.PACKET_IDENTIFIER_NOT_FOUND))
        await client.expect(PubRel(6, Reason.PACKET_IDENTIFIER_NOT_FOUND))


async def test_more_than_the_receive_maximum_is_too_much() -> None:
    async with running(max_awaiting_release=3) as relay, connected5(relay.port) as client:
        for packet_id in range(1, 5):
            await client.publish("t", b"", 2, packet_id=packet_id)
        packets = await client.gone()
        assert packets[:3] == [PubRec(n, Reason.NO_MATCHING_SUBSCRIBERS) for n in range(1, 4)]
        assert isinstance(packets[3], Disconnect)
        assert packets[3].reason == Reason.RECEIVE_MAXIMUM_EXCEEDED


async def test_no_more_is_sent_than_the_client_can_receive() -> None:
    async with (
        running() as relay,
        connected5(relay.port, receive_maximum=2) as client,
        connected(relay.port) as publisher,
    ):
        await client.subscribe("t", options=1)
        for number in range(1, 6):
            await publisher.publish("t", b"%d" % number, 1)
        first, second = await client.publication(), await client.publication()
        assert await client.silent()
        await client.send(PubAck(first.packet_id, Reason.UNSPECIFIED_ERROR))
        third = await client.publication()
        assert third.payload == b"3"
        for packet in (second, third):
            await client.send(PubAck(packet.packet_id))
        for packet in (await client.publication(), await client.publication()):
            await client.send(PubAck(packet.packet_id))
        await until(lambda: relay.statistics().debt_items == 0)


async def test_a_client_may_refuse_what_it_is_sent() -> None:
    async with running() as relay, connected5(relay.port, receive_maximum=1) as client:
        await client.subscribe("t", options=2)
        await client.publish("t", b"1", 2, packet_id=1)
        await client.publish("t", b"2", 2, packet_id=2)
        got = [await client.next() for _ in range(3)]
        told = next(each for each in got if isinstance(each, Publish))
        await client.send(PubRec(told.packet_id, Reason.QUOTA_EXCEEDED))
        # No PUBREL: it is over, and the next one has its place.
        again = await client.publication()
        assert (told.payload, again.payload) == (b"1", b"2")
        await client.send(PubRec(again.packet_id))
        await client.expect(PubRel(again.packet_id))
        await client.send(PubComp(again.packet_id))
        for packet_id in (1, 2):
            await client.send(PubRel(packet_id))
            await client.expect(PubComp(packet_id))
        await until(lambda: relay.statistics().debt_items == 0)


@pytest.mark.parametrize("qos", [0, 1])
async def test_what_is_too_large_for_a_client_is_not_sent_to_it(qos: int) -> None:
    async with (
        running() as relay,
        connected5(relay.port, maximum_packet_size=64, receive_maximum=1) as client,
        connected5(relay.port) as other,
        connected(relay.port) as publisher,
    ):
        for each in (client, other):
            await each.subscribe("t", options=qos)
        await publisher.send(
            *(Publish("t", b"x" * size, qos, packet_id=qos) for size in (10, 100, 20))
        )
        sizes: list[int] = []
        for _ in range(2):
            packet = await client.publication()
            sizes.append(len(packet.payload))
            if qos:
                await client.send(PubAck(packet.packet_id))
        assert sizes == [10, 20]
        for size in (10, 100, 20):
            packet = await other.publication()
            assert len(packet.payload) == size
            if qos:
                await other.send(PubAck(packet.packet_id))
        await until(lambda: relay.statistics().debt_items == 0)


async def test_what_has_no_time_left_is_not_sent() -> None:
    now = [1e9]
    async with (
        running() as relay,
        connected5(relay.port, receive_maximum=1) as client,
        connected5(relay.port) as publisher,
    ):
        relay.relay.mqtt.wall = lambda: now[0]
        async with connected5(relay.port, receive_maximum=1) as late:
            await late.subscribe("t", options=1)
            await publisher.published("t", b"1", message_expiry=10)
            await publisher.published("t", b"2", message_expiry=10)
            await publisher.published("t", b"3", message_expiry=100)
            first = await late.publication()
            assert first.properties.message_expiry == 10
            now[0] += 10
            await late.send(PubAck(first.packet_id))
            third = await late.publication()
            assert third.payload == b"3"
            assert third.properties.message_expiry == 90
            await late.send(PubAck(third.packet_id))
        await client.subscribe("t")
        await publisher.published("t", b"4", message_expiry=0)
        assert await client.silent()
        await until(lambda: relay.statistics().debt_items == 0)
        assert relay.statistics().repaid_items["expired"] == 2


# -- subscriptions ---------------------------------------------------------------------------------


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("expiry", [0, 60])
async def test_no_local(qos: int, expiry: int) -> None:
    async with running() as relay:
        async with (
            connected5(relay.port, "c", session_expiry=expiry) as client,
            connected(relay.port) as other,
        ):
            await client.subscribe("t", options=qos | 0x04)
            await client.publish("t", b"its own", 0)
            await client.send(PingReq())
            await client.expect(PingResp())
            await client.published("t", b"its own, too")
            await other.publish("t", b"of another", qos)
            assert (await client.publication()).payload == b"of another"
            # With another filter that wants it, it comes, once.
            await client.subscribe("#", options=0)
            await client.publish("t", b"wanted now")
            assert (await client.publication()).payload == b"wanted now"
            assert await client.silent()
            relay.audit()
            await client.send(Disconnect(properties=Properties(session_expiry=0)))
            await client.gone()
        await relay.deserted()


async def test_retain_as_published() -> None:
    async with (
        running() as relay,
        connected5(relay.port) as client,
        connected5(relay.port) as other,
    ):
        await client.subscribe("t", options=0x08)
        await other.subscribe("t")
        await client.send(Publish("t", b"x", retain=True))
        await client.expect(Publish("t", b"x", retain=True))
        await other.expect(Publish("t", b"x"))
        await client.send(Publish("t", b"y"))
        await client.expect(Publish("t", b"y"))
        await other.expect(Publish("t", b"y"))


async def test_retain_handling() -> None:
    async with running() as relay, connected5(relay.port) as client:
        await client.send(Publish("t", b"kept", retain=True))
        kept = Publish("t", b"kept", retain=True)
        assert (await client.subscribe("t", options=0x20)).return_codes == (0,)
        assert await client.silent()
        await client.subscribe("t", options=0x10)  # it is not new
        assert await client.silent()
        await client.subscribe("t", options=0x00)
        await client.expect(kept)
        await client.send(Unsubscribe(3, ("t", "u")))
        await client.expect(UnsubAck(3, (0, Reason.NO_SUBSCRIPTION_EXISTED)))
        await client.subscribe("t", options=0x10)
        await client.expect(kept)


async def test_subscriptions_have_identifiers() -> None:
    async with running() as relay:
        async with connected5(relay.port) as client, connected(relay.port) as publisher:
            await client.subscribe("a/#", identifier=7)
            await client.subscribe("a/+", identifier=268_435_455)
            await client.subscribe("b", options=1)
            await publisher.send(Publish("a/b", b"x"), Publish("a/b/c", b"y"), Publish("b", b"z"))
            both, one, none = [await client.publication() for _ in range(3)]
            assert both.properties.subscription_ids == (7, 268_435_455)
            assert one.properties.subscription_ids == (7,)
            assert none.properties.subscription_ids == ()
            relay.audit()
            # Replaced without one.
            await client.subscribe("a/#")
            await publisher.publish("a/b/c")
            assert (await client.publication()).properties.subscription_ids == ()
            await client.publish("a/b", b"w", **ALL)
            got = await client.publication()
            assert got.properties == attrs.evolve(
                Properties(**ALL), subscription_ids=(268_435_455,)
            )
        await relay.deserted()


async def test_what_cannot_be_subscribed_to_is_said_one_by_one() -> None:
    async with (
        running(max_subscriptions=2, max_topic_levels=3, max_share_groups=0) as relay,
        connected5(relay.port) as client,
    ):
        answer = await client.subscribe("a", "$share/g/a", "1/2/3/4", "b", "c")
        assert answer.return_codes == (
            0, Reason.SHARED_SUBSCRIPTIONS_NOT_SUPPORTED, Reason.TOPIC_FILTER_INVALID, 0,
            Reason.QUOTA_EXCEEDED,
        )  # fmt: skip
        assert (
            answer.properties.reason_string
            == "there are no shared subscriptions here (max_share_groups)"
        )


# -- sessions --------------------------------------------------------------------------------------


@pytest.mark.parametrize("durable", [False, True])
async def test_a_session_is_kept_as_long_as_its_client_wants(durable: bool, tmp_path: Path) -> None:
    now = [1e9]
    async with running(store=str(tmp_path) if durable else None) as relay:
        kept = relay.relay.mqtt.persistent_sessions
        assert kept is not None
        kept.wall = lambda: now[0]
        async with connected(relay.port) as publisher:
            async with connected5(relay.port, "c", session_expiry=100) as client:
                assert not client.welcome.session_present
                await client.subscribe("t", options=1, identifier=5)
            await until(lambda: "c" not in relay.relay.mqtt.sessions)
            await publisher.publish("t", b"1", 1)
            await publisher.expect(PubAck(1))
            async with connected5(relay.port, "c", clean=False, session_expiry=50) as client:
                assert client.welcome.session_present
                got = await client.publication()
                assert got.payload == b"1"
                assert got.properties.subscription_ids == (5,)
                await client.send(PubAck(got.packet_id))
                await client.send(PingReq())
                await client.expect(PingResp())
            await until(lambda: "c" not in relay.relay.mqtt.sessions)
            now[0] += 49
            assert kept.expire() == []
            now[0] += 1
            assert kept.expire() == ["c"]
            async with connected5(relay.port, "c", clean=False) as client:
                assert not client.welcome.session_present
                assert not len(kept)


async def test_a_session_is_taken_up_and_not_kept_any_longer() -> None:
    async with running() as relay:
        kept = relay.relay.mqtt.persistent_sessions
        assert kept is not None
        async with connected5(relay.port, "c", session_expiry=100) as client:
            await client.subscribe("t", options=1)
        await until(lambda: not relay.relay.mqtt.sessions)
        async with connected5(relay.port, "c", clean=False) as client:
            assert client.welcome.session_present
        await until(lambda: not relay.relay.mqtt.sessions)
        assert not len(kept)
        await relay.deserted()


async def test_who_leaves_may_change_for_how_long() -> None:
    async with running() as relay:
        kept = relay.relay.mqtt.persistent_sessions
        assert kept is not None
        async with connected5(relay.port, "c", session_expiry=100) as client:
            await client.send(Disconnect(properties=Properties(session_expiry=7)))
            await client.gone()
        assert kept.by_id["c"].expiry == 7
        kept.discard("c")
        async with connected5(relay.port, "c") as client:
            await client.send(Disconnect(properties=Properties(session_expiry=7)))
            (last,) = await client.gone()
            assert isinstance(last, Disconnect)
            assert last.reason == Reason.PROTOCOL_ERROR
        assert not len(kept)


async def test_a_client_may_come_back_with_another_version() -> None:
    async with running() as relay, connected(relay.port) as publisher:
        async with connected5(relay.port, "c", session_expiry=100) as client:
            await client.subscribe("t", options=1)
        await until(lambda: "c" not in relay.relay.mqtt.sessions)
        await publisher.publish("t", b"1", 1)
        await publisher.expect(PubAck(1))

        async with dial(relay.port) as old:
            await old.stream.send_all(old.connection.send(Connect("c", clean_session=False)))
            await old.expect(ConnAck(True, 0))
            assert (await old.publication()).payload == b"1"
        await until(lambda: "c" not in relay.relay.mqtt.sessions)
        async with connected5(relay.port, "c", clean=False) as client:
            got = await client.publication()
            assert got.payload == b"1"
            assert got.dup
            await client.send(PubAck(got.packet_id))


# -- wills -----------------------------------------------------------------------------------------


async def test_a_will_says_what_a_publication_does() -> None:
    will = Will("w", b"gone", properties=Properties(**ALL, message_expiry=60))
    async with running() as relay, connected5(relay.port) as watcher:
        await watcher.subscribe("w")
        async with connected5(relay.port, will=will):
            pass
        got = await watcher.publication()
        assert got.payload == b"gone"
        assert got.properties == Properties(**ALL, message_expiry=60)


async def test_who_leaves_may_have_its_will_published() -> None:
    will = Will("w", b"gone")
    async with running() as relay, connected5(relay.port) as watcher:
        await watcher.subscribe("w")
        for reason, published in ((0, False), (Reason.DISCONNECT_WITH_WILL, True)):
            async with connected5(relay.port, will=will) as client:
                await client.send(Disconnect(reason))
                await client.gone()
            assert await watcher.silent() is not published


async def test_a_will_waits() -> None:
    will = Will("w", b"gone", properties=Properties(will_delay=60))
    async with running() as relay, connected5(relay.port) as watcher:
        mqtt = relay.relay.mqtt
        await watcher.subscribe("w")

        async def come_and_go(**how: Any) -> None:
            async with connected5(relay.port, "c", will=will, **how):
                pass
            await until(lambda: "c" not in mqtt.sessions)

        await come_and_go(session_expiry=100)
        assert await watcher.silent()
        assert len(mqtt.wills) == 1
        # Back to its session: it is not published, and it waits anew.
        await come_and_go(session_expiry=100, clean=False)
        assert await watcher.silent()
        assert len(mqtt.wills) == 1
        mqtt.each_tick(mqtt.ledger.clock() + 61)
        assert (await watcher.publication()).payload == b"gone"
        assert not len(mqtt.wills)
        assert mqtt.wills.nbytes == 0
        # A new session: the one that it waited for is over.
        await come_and_go(session_expiry=100)
        await come_and_go(session_expiry=0)
        assert (await watcher.publication()).payload == b"gone"
        # And this one's ends with its connection, so that it need not wait.
        assert (await watcher.publication()).payload == b"gone"
        relay.audit()


# -- debt ------------------------------------------------------------------------------------------


async def test_a_publisher_waits_for_a_subscriber_that_speaks_mqtt_5() -> None:
    async with running(limit_bytes=100_000) as relay:
        async with connected5(relay.port, "slow") as slow, connected5(relay.port, "p") as publisher:
            await slow.subscribe("t")
            count = 2_000
            async with trio.open_nursery() as nursery:
                data = encode5(Publish("t", b"x" * 10_000)) * count
                nursery.start_soon(publisher.stream.send_all, data)
                account = relay.account("p")
                await until(lambda: not account.funds_are_clear())
                await trio.sleep(0.1)
                assert not account.funds_are_clear()
                # What was read when the limit was passed, and its input.
                assert account.debt_bytes <= 100_000 + 2 * 10_100
                relay.audit()
                for _ in range(count):
                    assert len((await slow.publication()).payload) == 10_000
        await relay.deserted()


class Undecided(Recipient):
    """Leaves it to a test whether it takes responsibility for what it is given.

    Args:
        confirms: Where it notes who waits to hear of that.
    """

    def __init__(self, confirms: list[Confirm]) -> None:
        self.confirms = confirms

    def hold(self, account: Account, item: Any, items: int, nbytes: int, now: float) -> None:
        confirm = account.ledger.confirming
        account.repay(items, nbytes, Outcome.DROPPED)
        assert confirm is not None
        confirm.expect()
        self.confirms.append(confirm)

    def ready(self) -> None:
        pass


@pytest.mark.parametrize("expiry", [0, 60])
async def test_a_publication_that_a_holder_refuses_may_be_followed_by_another(expiry: int) -> None:
    """By the same identifier: with the refusal the exchange is over (section 4.3.3)."""
    refused: list[Confirm] = []
    async with running() as relay:
        async with connected5(relay.port, "c", session_expiry=expiry) as client:
            dataspace = relay.relay.dataspace
            account = relay.ledger.open("elsewhere")
            with account.turn() as turn:
                observation = dataspace.observe(
                    turn, TopicFilter("t"), None, acked=Undecided(refused), granted=2, consumer="it"
                )
            for _ in range(2):
                await client.publish("t", b"", 2, packet_id=7)
                await until(lambda: refused)
                refused.pop().refused("not now")
                relay.flusher.flush_now()
                answer = await client.next()
                assert isinstance(answer, PubRec)
                assert answer.reason == Reason.QUOTA_EXCEEDED
                assert answer.properties.reason_string == "not now"
            with account.turn() as turn:
                dataspace.unobserve(turn, observation)
            account.close()
            await client.send(Disconnect(properties=Properties(session_expiry=0)))
            await client.gone()
        await relay.deserted()


async def test_nothing_follows_the_last_word() -> None:
    """What is confirmed while a client reads why it is disconnected is not told to it any more."""
    confirms: list[Confirm] = []

    async with running() as relay:
        async with connected5(relay.port, "c") as client:
            account = relay.ledger.open("elsewhere")
            with account.turn() as turn:
                observation = relay.relay.dataspace.observe(
                    turn,
                    TopicFilter("t"),
                    None,
                    acked=Undecided(confirms),
                    granted=2,
                    consumer="it",
                )
            await client.stream.send_all(encode5(Publish("t", b"", 1, packet_id=1)) + b"\xf0\x00")
            last = await client.next()
            assert isinstance(last, Disconnect)
            # It has not closed the connection yet.
            assert relay.relay.mqtt.sessions
            for confirm in confirms:
                confirm.taken()
            relay.flusher.flush_now()
            with account.turn() as turn:
                relay.relay.dataspace.unobserve(turn, observation)
            account.close()
            assert await client.gone() == []
        await relay.deserted()


@pytest.mark.parametrize("version", [4, 5])
async def test_who_goes_while_its_queue_is_full_of_its_own_takes_nothing_with_it(
    version: int,
) -> None:
    async with running(max_queued=2) as relay:
        publish = Publish("t", b"x" * 100, 1, packet_id=1)
        packets = [attrs.evolve(publish, packet_id=number) for number in range(1, 41)]
        if version == 5:
            async with connected5(relay.port, "c", session_expiry=60) as client:
                await client.subscribe("t", options=1)
                await client.send(*packets)
                await until(lambda: relay.relay.mqtt.counters.received == 40)
        else:
            async with dial(relay.port) as old:
                await old.stream.send_all(old.connection.send(Connect("c", clean_session=False)))
                await old.expect(ConnAck(False, 0))
                await old.subscribe("t", qos=1)
                await old.send(*packets)
                await until(lambda: relay.relay.mqtt.counters.received == 40)
        await until(lambda: not relay.relay.mqtt.sessions)
        relay.audit()
        async with connected(relay.port) as other:
            await other.subscribe("t")


@pytest.mark.parametrize("alias", [0, 3])
async def test_a_tenant_pays_for_a_topic_by_whatever_name(alias: int) -> None:
    limit = 100
    async with running(
        tenant=(Tenant(name="a", topic=("a/#",)),), profile="lossless", limit_items=limit
    ) as relay:
        async with connected5(relay.port, "p") as publisher, connected5(relay.port, "s") as slow:
            await slow.subscribe("#")
            said = Properties(topic_alias=alias) if alias else Properties()
            await publisher.send(Publish("a/x", b"", properties=said))
            await slow.publication()
            again = encode5(Publish("" if alias else "a/x", b"x" * 20_000, properties=said))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(publisher.stream.send_all, again * 2_000)
                await until(lambda: relay.relay.mqtt.sessions["p"].payer is not None)
                most = 0
                with trio.move_on_after(0.5):
                    while True:
                        await trio.sleep(0.005)
                        accounts = relay.ledger.accounts.values()
                        most = max(most, *(each.debt_items for each in accounts))
                assert limit < most <= limit + 4
                for _ in range(2_000):
                    await slow.publication()
        await until(lambda: relay.statistics().debt_items == 0)
        relay.audit()


async def test_a_clock_that_is_set_back_leaves_no_more_time_than_can_be_said() -> None:
    now = [1e9]
    async with running() as relay:
        relay.relay.mqtt.wall = lambda: now[0]
        async with connected5(relay.port) as client:
            said = Properties(message_expiry=0xFFFF_FFFF)
            await client.send(Publish("t", b"x", retain=True, properties=said))
            await client.send(PingReq())
            await client.expect(PingResp())
            now[0] -= 10
            await client.subscribe("t")
            assert (await client.publication()).properties.message_expiry == 0xFFFF_FFFF


async def test_a_reason_is_left_out_where_it_is_too_large() -> None:
    async with running() as relay, connected5(relay.port, "c", maximum_packet_size=30) as client:
        await client.publish("$SYS/x", b"", 1)
        await client.expect(PubAck(1, Reason.NOT_AUTHORIZED))
        await client.send(Subscribe(2, (("t" * 9_999, 0),)))
        await client.expect(SubAck(2, (Reason.TOPIC_FILTER_INVALID,)))
        await client.stream.send_all(b"\xf0\x00")
        (last,) = await client.gone()
        assert last == Disconnect(Reason.PROTOCOL_ERROR)


async def test_who_is_not_let_in_is_told_no_more_than_it_takes() -> None:
    async with running(max_topic_length=8) as relay, dial5(relay.port) as client:
        said = Properties(maximum_packet_size=40)
        await client.send(Connect("c", will=Will("t" * 9), protocol_level=5, properties=said))
        assert await client.gone() == [ConnAck(False, Reason.TOPIC_NAME_INVALID)]


async def test_what_is_put_aside_expires() -> None:
    count = 600
    now = [1e9]

    async def publish(client: Client5) -> None:
        for number in range(1, count + 1):
            expiry = 1_000 if number in (1, count) else 10
            said = Properties(message_expiry=expiry, content_type="x")
            payload = b"%d" % number
            await client.send(Publish("t", payload, 1, packet_id=number, properties=said))
            await client.expect(PubAck(number))

    async with running(stuck=StuckPolicy.SPILL, patience=0.2, limit_items=200) as relay:
        relay.relay.mqtt.wall = lambda: now[0]
        async with (
            connected5(relay.port, "s", receive_maximum=1) as slow,
            connected5(relay.port, "p") as publisher,
        ):
            await slow.subscribe("t", options=1, identifier=300)
            with trio.fail_after(30):
                await publish(publisher)
            assert any(holder.lagging for holder in relay.ledger.holders)
            first = await slow.publication()
            now[0] += 11
            await slow.send(PubAck(first.packet_id))
            got = await slow.publication()
            assert got.payload == b"%d" % count
            assert got.properties == Properties(
                message_expiry=989, content_type="x", subscription_ids=(300,)
            )
            await slow.send(PubAck(got.packet_id))
            await until(lambda: relay.statistics().debt_items == 0)
        await relay.deserted()


async def test_identifiers_that_are_queued_are_accounted_for() -> None:
    async with running() as relay:
        async with connected5(relay.port, "s") as slow, connected5(relay.port, "p") as publisher:
            filters = [f"{'+/' * n}#" for n in range(8)]
            for number, text in enumerate(filters):
                await slow.subscribe(text, identifier=200_000_000 + number)
            topic = "/".join("abcdefgh")
            async with trio.open_nursery() as nursery:
                data = encode5(Publish(topic, b"x" * 2_000)) * 6_000
                nursery.start_soon(publisher.stream.send_all, data)
                await until(lambda: relay.account("p").debt_items > 500)
                await slow.send(Unsubscribe(1, tuple(filters[1:])))
                await slow.send(Subscribe(2, ((filters[0], 0),)))
                await until(lambda: len(relay.relay.dataspace.routes) == 1)
                relay.audit()
                got = 0
                while got < 6_000:
                    got += isinstance(await slow.next(), Publish)
        await relay.deserted()


async def test_what_is_due_after_our_disconnect_is_not_sent() -> None:
    """An acknowledgement, for one: the fuzzer found that it ended the connection as a fault."""
    async with running() as relay, connected5(relay.port, "c") as client:
        session: Any
        (session,) = relay.relay.mqtt.open
        assert session._part(Reason.SESSION_TAKEN_OVER, "another one")
        session._sender.send(PubAck(1))
        relay.audit()
        got = await client.receive()
        assert isinstance(got, Disconnect)
        assert got.reason == Reason.SESSION_TAKEN_OVER
        session.cut("another one")
        await relay.deserted()
        assert relay.relay.internal_errors == 0
