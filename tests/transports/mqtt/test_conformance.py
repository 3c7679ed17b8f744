"""MQTT 3.1.1 statement by statement: every MUST of its appendix B that binds a server.

A test is named for the statement that it checks: `test_3_1_0_2_...` checks [MQTT-3.1.0-2]. What it
checks besides is said with `also`. Tests that take `server` run against the relay and, to check the
tests themselves, against mosquitto; those that take `relay` are about what a server may decide for
itself, or look inside. The end of this module says which statements are checked elsewhere and which
do not apply, and why; the last test sees that none is missing.
"""

from __future__ import annotations

import importlib
import re
import string as characters
import uuid
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import attrs
import pytest
import trio

from tests.transports.mqtt.test_packets import MALFORMED_CONNECTED, MALFORMED_FIRST
from tests.transports.mqtt.wire import (
    ACCEPTED,
    DISCONNECT,
    END,
    PINGREQ,
    PINGRESP,
    Delivery,
    Will,
    Wire,
    connect,
    delivery,
    puback,
    pubcomp,
    publish,
    pubrec,
    pubrel,
    string,
    suback,
    subscribe,
    unsuback,
    unsubscribe,
    wire,
)
from tests.transports.peers import RunningRelay, log_of, running, until

ALSO: dict[str, tuple[str, ...]] = {}
"""What a test checks besides the statement that it is named for."""

Test = TypeVar("Test", bound=Callable[..., Any])


def also(*statements: str) -> Callable[[Test], Test]:
    """Say which statements a test checks besides the one in its name."""

    def note(test: Test) -> Test:
        ALSO[test.__name__] = statements
        return test

    return note


@attrs.frozen
class Server:
    """A server under test, and a level of topics that no other test uses."""

    port: int
    base: str

    def topic(self, rest: str) -> str:
        return f"{self.base}/{rest}"


LARGEST_CONNECT = 400_000
"""Bytes: more than any CONNECT has. By default a relay takes fewer."""


@pytest.fixture
def base() -> str:
    """Return a name that nobody else uses: mosquitto is shared with other tests."""
    return uuid.uuid4().hex[:12]


@pytest.fixture(params=["relay", "mosquitto"])
def foreign(request: pytest.FixtureRequest) -> int | None:
    """Return the port of a foreign server, None for the relay."""
    return None if request.param == "relay" else request.getfixturevalue("mosquitto")


@pytest.fixture
async def server(foreign: int | None, base: str) -> AsyncGenerator[Server]:
    """Run both servers, one after the other."""
    if foreign is not None:
        yield Server(foreign, base)
        return
    async with running(max_connect_size=LARGEST_CONNECT) as relay:
        yield Server(relay.port, base)


@pytest.fixture
async def relay() -> AsyncGenerator[RunningRelay]:
    """Run the relay alone."""
    async with running(max_connect_size=LARGEST_CONNECT) as relay:
        yield relay


@asynccontextmanager
async def client(port: int, client_id: str = "", **options: Any) -> AsyncGenerator[Wire]:
    """Connect a client; leaving the block closes its connection without a word."""
    async with wire(port) as peer:
        await peer.send(connect(client_id, **options))
        await peer.expect(ACCEPTED)
        yield peer


async def subscribed(peer: Wire, *filters: str, qos: int = 1) -> Wire:
    """Subscribe, and see it granted."""
    await peer.send(subscribe(1, *((text, qos) for text in filters)))
    await peer.expect(suback(1, *[qos] * len(filters)))
    return peer


async def retained(port: int, topic: str, qos: int = 1) -> list[Delivery]:
    """Return what a new subscriber is told at once."""
    async with client(port) as late:
        await subscribed(late, topic, qos=qos)
        return [delivery(frame) for frame in await late.drain()]


# -- 1.5.3: strings -------------------------------------------------------------------------------


@pytest.mark.parametrize("qos", [0, 1])
@pytest.mark.parametrize("marked", ["\ufeff{}/a", "{}/\ufeffa", "{}/a\ufeff"])
async def test_1_5_3_3_a_byte_order_mark_is_a_character_like_others(
    server: Server, marked: str, qos: int
) -> None:
    marked, plain = marked.format(server.base), server.topic("a")
    async with client(server.port) as pub, client(server.port) as sub:
        await subscribed(sub, marked)
        await pub.send(publish(plain, b"without", qos, 1), publish(marked, b"with", qos, 2))
        got = await sub.delivery()
        assert (got.topic.encode(), got.payload) == (marked.encode(), b"with")
        await sub.nothing()


# -- 2.3.1: packet identifiers --------------------------------------------------------------------


@also("4.3.2-1")
async def test_2_3_1_4_an_identifier_is_unused_until_its_puback(server: Server) -> None:
    topic = server.topic("a")
    async with client(server.port) as pub, client(server.port) as sub:
        await subscribed(sub, topic)
        await pub.send(*(publish(topic, b"x", 1, n) for n in range(1, 16)))
        first = await sub.deliveries(15)
        ids = [got.packet_id for got in first]
        assert len(set(ids) - {0}) == 15
        assert {(got.qos, got.dup) for got in first} == {(1, False)}
        acked = ids[3:7]
        await sub.send(*map(puback, acked))
        await pub.expect(*map(puback, range(1, 16)))
        await pub.send(*(publish(topic, b"y", 1, n) for n in range(1, 5)))
        more = [got.packet_id for got in await sub.deliveries(4)]
        assert not set(more) & (set(ids) - set(acked))
        assert len(set(more) - {0}) == 4


@also("4.1.0-1")
async def test_4_3_2_1_a_publication_is_unacknowledged_until_its_puback(
    relay: RunningRelay,
) -> None:
    """Other packets, and acknowledgements of others, do not make it so."""
    async with client(relay.port) as pub, client(relay.port, "sub") as sub:
        await subscribed(sub, "a")
        await pub.send(publish("a", b"1", 1, 1))
        (got,) = await sub.deliveries(1)
        await pub.expect(puback(1))
        await sub.send(puback(got.packet_id % 65_535 + 1), subscribe(got.packet_id, ("b", 0)))
        await sub.expect(suback(got.packet_id, 0))
        inflight = [each for each in relay.ledger.holders if each.kind == "inflight"]
        assert [len(list(each.loans())) for each in inflight] == [1]
        await sub.send(puback(got.packet_id))
        await sub.nothing()
        assert [len(list(each.loans())) for each in inflight] == [0]


@also("3.3.1-2", "4.3.1-1")
async def test_2_3_1_5_qos_0_has_no_identifier_and_no_dup(server: Server) -> None:
    """It arrives byte by byte as it was sent."""
    topic = server.topic("a")
    async with client(server.port) as pub, client(server.port) as sub:
        await subscribed(sub, topic)
        frames = [publish(topic, payload) for payload in (b"", b"\0\1", bytes(300))]
        await pub.send(*frames)
        await sub.expect(*frames)


@pytest.mark.parametrize("packet_id", [1, 255, 256, 65_535])
@also("3.3.4-1")
async def test_2_3_1_6_acknowledgements_have_the_identifier_of_what_they_acknowledge(
    server: Server, packet_id: int
) -> None:
    topic = server.topic("nobody listens")
    async with client(server.port) as pub:
        await pub.send(publish(topic, b"x", 0))
        await pub.nothing()
        await pub.send(publish(topic, b"x", 1, packet_id))
        await pub.expect(puback(packet_id))
        await pub.send(publish(topic, b"x", 2, packet_id))
        await pub.expect(pubrec(packet_id))
        await pub.send(pubrel(packet_id))
        await pub.expect(pubcomp(packet_id))
        await pub.nothing()


@pytest.mark.parametrize("packet_id", [1, 256, 65_535])
@also("3.8.4-1", "3.8.4-2", "3.10.4-4")
async def test_2_3_1_7_suback_and_unsuback_have_the_identifier_of_the_request(
    server: Server, packet_id: int
) -> None:
    topic = server.topic("a")
    async with client(server.port) as peer:
        await peer.send(subscribe(packet_id, (topic, 0)))
        await peer.expect(suback(packet_id, 0))
        await peer.send(unsubscribe(packet_id, topic))
        await peer.expect(unsuback(packet_id))


# -- 3.1: CONNECT, and 3.2: CONNACK ---------------------------------------------------------------


@pytest.mark.parametrize(
    "first",
    [
        publish("a"),
        publish("a", b"x", 1, 1),
        puback(1),
        subscribe(1, ("#", 0)),
        unsubscribe(1, "#"),
        PINGREQ,
        DISCONNECT,
    ],
    ids=["PUBLISH", "QoS 1", "PUBACK", "SUBSCRIBE", "UNSUBSCRIBE", "PINGREQ", "DISCONNECT"],
)
async def test_3_1_0_1_nothing_comes_before_connect(server: Server, first: bytes) -> None:
    async with wire(server.port) as peer:
        await peer.send(first)
        await peer.expect(END)


async def test_3_1_0_2_a_second_connect_is_a_violation(server: Server) -> None:
    async with client(server.port, server.base) as peer:
        await peer.send(connect(server.base))
        await peer.expect(END)


@pytest.mark.parametrize("name", [b"AMQP", b"mqtt", b"MQTT ", b""])
async def test_3_1_2_1_another_protocol_is_not_continued(server: Server, name: bytes) -> None:
    async with wire(server.port) as peer:
        await peer.send(connect("c", name=name))
        await peer.expect(END)


@pytest.mark.parametrize("level", [0, 3, 6, 127])
@also("3.1.4-5", "3.2.2-4", "3.2.2-5")
async def test_3_1_2_2_an_unknown_level_is_refused_with_1(server: Server, level: int) -> None:
    """And nothing after it is processed."""
    topic = server.topic("a")
    async with wire(server.port) as peer:
        await peer.send(
            connect("c", level=level), publish(topic, b"x", retain=True), subscribe(1, (topic, 0))
        )
        await peer.expect(b"\x20\x02\x00\x01", END)
    assert await retained(server.port, topic) == []


async def test_3_1_2_2_what_comes_after_5_is_not_spoken(relay: RunningRelay) -> None:
    for frame in (connect("c", level=6, rest=b"\0"), connect("c", name=b"MQIsdp", level=4)):
        async with wire(relay.port) as peer:
            await peer.send(frame)
            await peer.expect(b"\x20\x02\x00\x01", END)


@also("3.1.4-1", "3.2.2-6")
async def test_3_1_2_3_the_reserved_flag_is_looked_at(server: Server) -> None:
    async with wire(server.port) as peer:
        await peer.send(connect("c", reserved=1))
        await peer.expect(END)


@pytest.mark.parametrize("politely", [True, False])
@also("3.1.4-3", "3.2.2-1")
async def test_3_1_2_6_a_clean_session_begins_with_nothing(server: Server, politely: bool) -> None:
    """No subscription, and nothing that was not acknowledged, comes back."""
    topic = server.topic("a")
    async with client(server.port) as pub:
        async with client(server.port, server.base) as old:
            await subscribed(old, topic)
            await pub.send(publish(topic, b"1", 1, 1))
            await old.deliveries(1)
            if politely:
                await old.send(DISCONNECT)
                await old.expect(END)
        async with client(server.port, server.base) as new:
            await pub.send(publish(topic, b"2", 1, 2))
            await pub.expect(puback(1), puback(2))
            await new.nothing()


async def test_3_1_2_7_what_is_retained_outlives_the_session(server: Server) -> None:
    topic = server.topic("a")
    async with client(server.port) as pub:
        await pub.send(publish(topic, b"kept", 1, 1, retain=True), DISCONNECT)
        await pub.expect(puback(1), END)
    assert [got.payload for got in await retained(server.port, topic)] == [b"kept"]


async def end_by_closing(peer: Wire, server: Server, client_id: str) -> None:
    await peer.stream.aclose()


async def end_by_reset(peer: Wire, server: Server, client_id: str) -> None:
    await peer.reset()


async def end_within_a_packet(peer: Wire, server: Server, client_id: str) -> None:
    await peer.send(publish("a", bytes(100))[:50])
    await peer.stream.aclose()


async def end_by_violation(peer: Wire, server: Server, client_id: str) -> None:
    await peer.send(b"\xf0\x00")
    await peer.expect(END)


async def end_by_takeover(peer: Wire, server: Server, client_id: str) -> None:
    async with client(server.port, client_id):
        await peer.expect(END)


async def end_by_silence(peer: Wire, server: Server, client_id: str) -> None:
    await peer.expect(END)


# When the relay itself stops, wills are not published: section 3.1.2.5 lets a server that is shut
# down put that off until it is started again, and wills are not kept until then. See
# tests/relay/test_stop.py.
@pytest.mark.parametrize(
    "end",
    [
        end_by_closing,
        end_by_reset,
        end_within_a_packet,
        end_by_violation,
        end_by_takeover,
        end_by_silence,
    ],
)
@also("3.1.2-10", "3.1.2-24")
async def test_3_1_2_8_a_will_is_published_however_its_connection_ends(
    server: Server, end: Callable[[Wire, Server, str], Any]
) -> None:
    """Once: neither it nor the next connection of that client publishes it again."""
    topic = server.topic("will")
    name = server.base
    keep_alive = 1 if end is end_by_silence else 0
    async with client(server.port) as watcher:
        await subscribed(watcher, topic)
        async with client(server.port, name, keep_alive=keep_alive, will=Will(topic)) as mortal:
            await end(mortal, server, name)
            got = await watcher.delivery()
            assert (got.payload, got.qos, got.retain) == (b"gone", 0, False)
        async with client(server.port, name) as again:
            await end_by_violation(again, server, name)
        await watcher.nothing()


@pytest.mark.rule(11)
async def test_3_1_2_8_a_will_is_published_when_the_relay_gives_a_client_up() -> None:
    """Because it takes nothing while others wait for it (rule 11)."""
    async with (
        running(patience=0.5, stuck="disconnect", limit_items=10) as relay,
        client(relay.port) as watcher,
        client(relay.port) as pub,
        client(relay.port, "stuck", will=Will("will")) as stuck,
    ):
        await subscribed(watcher, "will")
        await subscribed(stuck, "a")
        await pub.send(*(publish("a", bytes(1000), 1, n) for n in range(1, 100)))
        assert (await watcher.delivery()).payload == b"gone"


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("retain", [False, True])
@also("3.1.2-17")
async def test_3_1_2_16_a_will_is_retained_if_it_says_so(
    server: Server, qos: int, retain: bool
) -> None:
    topic = server.topic("will")
    async with client(server.port) as watcher:
        await subscribed(watcher, topic)
        will = Will(topic, b"\0\xff", qos, retain)
        async with client(server.port, server.base, will=will) as mortal:
            await end_by_violation(mortal, server, server.base)
        got = await watcher.delivery()
        assert (got.payload, got.qos, got.retain) == (b"\0\xff", min(qos, 1), False)
    kept = [(got.payload, got.qos, got.retain) for got in await retained(server.port, topic)]
    assert kept == ([(b"\0\xff", min(qos, 1), True)] if retain else [])


async def test_3_1_2_12_without_a_will_nothing_is_published(server: Server) -> None:
    async with client(server.port) as watcher:
        await subscribed(watcher, server.topic("#"))
        async with client(server.port) as mortal:
            await end_by_violation(mortal, server, "")
        await watcher.nothing()


async def test_3_1_2_24_one_and_a_half_times_the_keep_alive_and_no_less(
    relay: RunningRelay,
) -> None:
    began = trio.current_time()
    async with (
        client(relay.port, "silent", keep_alive=1) as silent,
        client(relay.port, "late", keep_alive=1) as late,
        client(relay.port, "no keep-alive") as free,
        trio.open_nursery() as nursery,
    ):

        async def ping_late() -> None:
            for _ in range(2):
                await trio.sleep(1.1)
                await late.nothing()

        nursery.start_soon(ping_late)
        await silent.expect(END)
        assert 1.5 <= trio.current_time() - began < 10
        await free.nothing()


@also("3.1.4-4", "3.2.2-1")
async def test_3_1_3_1_all_fields_in_their_order(server: Server) -> None:
    """User name and password are taken: there is no authentication yet."""
    topic = server.topic("will")
    async with client(server.port) as watcher:
        await subscribed(watcher, topic)
        async with client(
            server.port,
            server.base,
            will=Will(topic, b"message", 1),
            username="user",
            password=b"\0pass\xff",
            keep_alive=65_535,
        ) as mortal:
            await mortal.nothing()
        assert (await watcher.delivery()).payload == b"message"


@pytest.mark.parametrize(
    ("username", "password"), [("", None), ("u", b""), ("\ufeff", bytes(65_535))]
)
async def test_3_1_4_4_any_user_name_and_password_is_accepted(
    server: Server, username: str, password: bytes | None
) -> None:
    async with client(server.port, username=username, password=password) as peer:
        await peer.nothing()


async def test_3_1_3_5_the_identifiers_that_every_server_takes(server: Server) -> None:
    alphabet = characters.digits + characters.ascii_letters
    for name in ("c", alphabet[:23], alphabet[23:46], alphabet[39:]):
        async with client(server.port, name) as peer:
            await peer.nothing()


@also("3.1.3-2")
async def test_3_1_3_6_each_client_without_a_name_is_one_of_its_own(server: Server) -> None:
    async with client(server.port) as one, client(server.port) as other:
        await subscribed(one, server.topic("a"))
        await one.nothing()
        await other.send(publish(server.topic("a"), b"x"))
        await one.deliveries(1)
        await other.nothing()


@also("3.2.2-4", "3.2.2-5")
async def test_3_1_3_8_without_a_name_there_is_no_session_to_keep(server: Server) -> None:
    async with wire(server.port) as peer:
        await peer.send(connect("", clean=False))
        await peer.expect(b"\x20\x02\x00\x02", END)


@pytest.mark.parametrize("length", [1025, 65_535])
async def test_3_1_3_9_a_name_that_is_too_long_is_refused_with_2(
    relay: RunningRelay, length: int
) -> None:
    async with wire(relay.port) as peer:
        await peer.send(connect("n" * length), publish("a", b"x", retain=True))
        await peer.expect(b"\x20\x02\x00\x02", END)
    async with client(relay.port, "n" * 1024) as peer:
        await peer.nothing()
    assert await retained(relay.port, "a") == []


REFUSED_WITH_A_CODE = ("MQTT-3.1.2-2", "MQTT-3.1.3-8", "MQTT 3.1 forbids")


@pytest.mark.parametrize(
    "frame",
    [
        frame
        for statement, frame in MALFORMED_FIRST.values()
        if statement not in REFUSED_WITH_A_CODE
    ],
    ids=[
        row
        for row, (statement, _) in MALFORMED_FIRST.items()
        if statement not in REFUSED_WITH_A_CODE
    ],
)
@also("2.2.2-2", "3.2.2-6")
async def test_3_1_4_1_what_is_no_connect_is_closed_without_a_connack(
    relay: RunningRelay, frame: bytes
) -> None:
    async with wire(relay.port) as peer:
        await peer.send(frame)
        await peer.expect(END)
        await relay.deserted()


@also("3.1.2-18", "3.1.2-20")
@pytest.mark.parametrize(
    "rest",
    [string("topic") + string(b"will"), string("user"), string("user") + string(b"pass"), b"\0"],
    ids=["will", "user name", "password", "a byte"],
)
async def test_3_1_2_11_fields_without_their_flags_are_a_violation(
    relay: RunningRelay, rest: bytes
) -> None:
    async with wire(relay.port) as peer:
        await peer.send(connect("c", rest=rest))
        await peer.expect(END)


@also("3.1.3-2")
async def test_3_1_4_2_the_one_who_comes_later_stays(server: Server) -> None:
    """With nothing of what the other had; names that differ at all are others."""
    topic, name = server.topic("a"), server.base
    async with (
        client(server.port, name) as old,
        client(server.port, "\ufeff" + name) as marked,
        client(server.port, name.upper() + "X") as longer,
    ):
        await subscribed(old, topic)
        async with client(server.port, name) as new:
            await old.expect(END)
            await new.send(publish(topic, b"1", 1, 1))
            await new.expect(puback(1))
            await subscribed(new, topic)
            await new.send(publish(topic, b"2"))
            assert (await new.delivery()).payload == b"2"
            await marked.nothing()
            await longer.nothing()


@pytest.mark.rule(14)
@also("3.1.2-8")
async def test_3_1_4_2_though_the_one_who_came_first_is_not_read() -> None:
    """It owes too much; who takes over finds that waiting (rule 14)."""
    async with (
        running(limit_items=10) as relay,
        client(relay.port) as sub,
        client(relay.port, "c", will=Will("will")) as old,
    ):
        await subscribed(sub, "a", "will")
        await old.send(*(publish("a", b"%d" % n, 1, n) for n in range(1, 21)))
        await until(lambda: relay.account("c").waiting)
        owed = relay.account("c").debt_items
        async with client(relay.port, "c") as new:
            while await old.packet() != END:
                pass
            assert relay.account("c").debt_items == owed
            # What was read and not accepted is gone; what was accepted arrives, and then the will.
            got = await sub.deliveries(12, ack=True)
            assert [each.payload for each in got] == [b"%d" % n for n in range(1, 12)] + [b"gone"]
            await new.nothing()


@also("3.1.4-4", "3.2.2-1")
async def test_3_2_0_1_connack_comes_first(server: Server) -> None:
    """Whatever else comes with CONNECT in one piece."""
    topic = server.topic("a")
    async with client(server.port) as pub:
        await pub.send(publish(topic, b"kept", 1, 1, retain=True))
        await pub.expect(puback(1))
    async with wire(server.port) as peer:
        await peer.send(
            connect("", keep_alive=60), PINGREQ, subscribe(1, (topic, 0)), publish(topic), PINGREQ
        )
        await peer.expect(ACCEPTED, PINGRESP, suback(1, 0))
        assert [(got.payload, got.retain) for got in await peer.deliveries(2)] == [
            (b"kept", True),
            (b"", False),
        ]
        await peer.expect(PINGRESP)


async def test_3_2_2_3_no_session_is_present_where_none_is_stored(server: Server) -> None:
    async with client(server.port, server.base, clean=False) as peer:
        await peer.nothing()
    # Nothing must be left with a server that does keep it.
    async with client(server.port, server.base) as peer:
        await peer.nothing()


# -- 3.3: PUBLISH ---------------------------------------------------------------------------------


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("granted", [0, 1])
async def test_3_3_1_3_dup_is_not_passed_on(server: Server, qos: int, granted: int) -> None:
    topic = server.topic("a")
    async with client(server.port) as pub, client(server.port) as sub:
        await subscribed(sub, topic, qos=granted)
        await pub.send(publish(topic, b"x", qos, 1, dup=True))
        if qos == 1:
            await pub.expect(puback(1))
        else:
            await pub.expect(pubrec(1))
            await pub.send(pubrel(1))
            await pub.expect(pubcomp(1))
        got = await sub.delivery()
        assert (got.dup, got.qos) == (False, granted)


@pytest.mark.parametrize("published", [0, 1, 2])
@pytest.mark.parametrize("granted", [0, 1])
@also("3.3.1-8", "3.8.4-6")
async def test_3_3_1_5_what_is_retained_keeps_its_quality(
    server: Server, published: int, granted: int
) -> None:
    topic = server.topic("a")
    async with client(server.port) as pub:
        await pub.send(publish(topic, b"kept", published, 1, retain=True))
        if published == 2:
            await pub.expect(pubrec(1))
            await pub.send(pubrel(1))
        await pub.drain()
    (got,) = await retained(server.port, topic, granted)
    assert (got.payload, got.qos, got.retain) == (b"kept", min(published, granted), True)


@also("3.3.1-8", "3.3.2-3")
async def test_3_3_1_6_the_last_one_of_each_matching_topic_is_sent(server: Server) -> None:
    topics = [server.topic(rest) for rest in ("a", "a/b", "a/b/c", "/", "b")]
    async with client(server.port) as pub:
        for payload in (b"old", b"new"):
            await pub.send(*(publish(topic, payload, retain=True) for topic in topics))
        await pub.nothing()
        for wanted, matching in {
            "#": topics,
            "a/#": topics[:3],
            "+/b": topics[1:2],
            "+": [topics[0], topics[4]],
            "+/+": [topics[1], topics[3]],
            "c": [],
        }.items():
            got = await retained(server.port, server.topic(wanted))
            assert sorted(each.topic for each in got) == sorted(matching), wanted
            assert {(each.payload, each.retain) for each in got} <= {(b"new", True)}


async def test_3_3_1_7_qos_0_replaces_what_was_retained(server: Server) -> None:
    topic = server.topic("a")
    async with client(server.port) as pub:
        await pub.send(publish(topic, b"1", 1, 1, retain=True), publish(topic, b"0", retain=True))
        await pub.expect(puback(1))
        await pub.nothing()
    assert [(got.payload, got.qos) for got in await retained(server.port, topic)] == [(b"0", 0)]


@pytest.mark.parametrize("qos", [0, 1])
@also("3.3.1-8")
async def test_3_3_1_9_to_those_who_are_there_it_is_not_retained(server: Server, qos: int) -> None:
    topic = server.topic("a")
    async with client(server.port) as pub, client(server.port) as sub:
        await subscribed(sub, topic)
        await pub.send(publish(topic, b"x", qos, 1, retain=True))
        assert (await sub.delivery()).retain is False
        await pub.drain()
        await sub.send(subscribe(1, (server.topic("+"), 1)))
        await sub.expect(suback(1, 1))
        assert (await sub.delivery()).retain is True
        await sub.send(publish(topic, b"y", qos, 1, retain=True))
        assert {delivery(each).retain for each in await sub.drain() if each[0] >> 4 == 3} == {False}


@pytest.mark.parametrize("qos", [0, 1])
@also("3.3.1-11")
async def test_3_3_1_10_an_empty_payload_is_sent_on_and_removes_what_is_kept(
    server: Server, qos: int
) -> None:
    topic = server.topic("a")
    async with client(server.port) as pub, client(server.port) as sub:
        await pub.send(publish(topic, b"kept", qos, 1, retain=True))
        await pub.drain()
        await subscribed(sub, topic)
        assert (await sub.delivery()).payload == b"kept"
        for _ in range(2):  # the second finds nothing to remove
            await pub.send(publish(topic, b"", qos, 2, retain=True))
            await pub.drain()
            got = await sub.delivery()
            assert (got.payload, got.qos, got.retain) == (b"", qos, False)
            assert await retained(server.port, topic) == []


@pytest.mark.parametrize("qos", [0, 1])
@pytest.mark.parametrize("payload", [b"", b"news"])
async def test_3_3_1_12_without_the_flag_what_is_kept_stays(
    server: Server, qos: int, payload: bytes
) -> None:
    topic, other = server.topic("a"), server.topic("b")
    async with client(server.port) as pub:
        await pub.send(publish(topic, b"kept", retain=True))
        await pub.send(publish(topic, payload, qos, 1), publish(other, payload, qos, 2))
        await pub.drain()
    assert [got.payload for got in await retained(server.port, topic)] == [b"kept"]
    assert await retained(server.port, other) == []


@pytest.mark.parametrize("qos", [0, 1])
@pytest.mark.parametrize(
    ("wanted", "topics"),
    [
        ("sport/tennis/player1/#", {"sport/tennis/player1", "sport/tennis/player1/ranking"}),
        ("sport/#", {"sport", "sport/", "sport/tennis/player1", "sport/tennis/player1/ranking"}),
        ("sport/tennis/+", {"sport/tennis/player1"}),
        ("sport/+", {"sport/"}),
        ("+", {"sport", " "}),
        ("+/+", {"sport/", "/finance"}),
        ("/+", {"/finance"}),
        ("+/tennis/#", {"sport/tennis/player1", "sport/tennis/player1/ranking"}),
        ("//", {"//"}),
        ("//+", {"//"}),
        ("/+/", {"//"}),
        ("/finance", {"/finance"}),
        (" ", {" "}),
        ("Sport", set[str]()),
    ],
)
@also("4.5.0-1", "4.7.3-4")
async def test_3_3_2_3_topics_match_the_filter(
    server: Server, wanted: str, topics: set[str], qos: int
) -> None:
    """The examples of section 4.7.1 and their neighbours, one level further down."""
    every = [
        "sport",
        "sport/",
        "sport/tennis/player1",
        "sport/tennis/player1/ranking",
        "/finance",
        "//",
        " ",
    ]
    async with client(server.port) as pub, client(server.port) as sub:
        await subscribed(sub, server.topic(wanted))
        await pub.send(*(publish(server.topic(each), b"x", qos, 1) for each in every))
        await pub.drain()
        got = [delivery(frame).topic for frame in await sub.drain()]
        assert got == [server.topic(each) for each in every if each in topics]


@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_3_3_4_1_a_publication_to_nobody_is_answered_like_others(
    server: Server, qos: int
) -> None:
    async with client(server.port) as pub:
        await pub.send(publish(server.topic("a"), b"", qos, 7))
        assert await pub.drain() == [[], [puback(7)], [pubrec(7)]][qos]


async def test_3_3_5_1_the_highest_quality_of_all_that_match(relay: RunningRelay) -> None:
    """In one copy, however many do; mosquitto 2.0 sends it as the first of them has it."""
    async with client(relay.port) as pub, client(relay.port) as sub:
        await subscribed(sub, "a/#", "#", qos=0)
        await subscribed(sub, "+/b", "a/+", qos=1)
        await subscribed(sub, "a/b", qos=0)
        await pub.send(publish("a/b", b"x", 1, 1), publish("a/b", b"y"))
        await pub.drain()
        got = await sub.deliveries(2, ack=True)
        assert [(each.payload, each.qos) for each in got] == [(b"x", 1), (b"y", 0)]
        await sub.nothing()


async def test_3_3_5_2_what_is_not_allowed_is_acknowledged(relay: RunningRelay) -> None:
    """The topics under $SYS/ are the server's own."""
    topic = "$SYS/broker/uptime"
    async with client(relay.port) as pub, client(relay.port) as sub:
        await subscribed(sub, "$SYS/#")
        await pub.send(
            publish(topic, b"0"),
            publish(topic, b"1", 1, 1),
            publish(topic, b"2", 2, 2, retain=True),
        )
        await pub.expect(puback(1), pubrec(2))
        await pub.send(pubrel(2))
        await pub.expect(pubcomp(2))
        await sub.nothing()
    assert await retained(relay.port, "$SYS/#") == []


# -- 3.8: SUBSCRIBE, and 3.9: SUBACK --------------------------------------------------------------


@pytest.mark.parametrize(("before", "after"), [(0, 1), (1, 0), (1, 1)])
async def test_3_8_4_3_an_identical_filter_replaces_the_other(
    server: Server, before: int, after: int
) -> None:
    """What is retained comes again, and of each publication there is one copy."""
    wanted, topic = server.topic("+"), server.topic("a")
    async with client(server.port) as pub, client(server.port) as sub:
        await pub.send(publish(topic, b"kept", 1, 1, retain=True))
        await pub.drain()
        for granted in (before, after):
            await subscribed(sub, wanted, qos=granted)
            got = await sub.delivery()
            assert (got.payload, got.qos, got.retain) == (b"kept", granted, True)
        await pub.send(publish(topic, b"new", 1, 2))
        await pub.drain()
        got = await sub.delivery()
        assert (got.payload, got.qos, got.retain) == (b"new", after, False)
        await sub.nothing()
        await sub.send(unsubscribe(2, wanted))
        await sub.expect(unsuback(2))
        await pub.send(publish(topic, b"newer", 1, 3))
        await pub.drain()
        await sub.nothing()


@pytest.mark.parametrize("qos", [0, 1])
async def test_3_8_4_3_the_flow_is_not_interrupted(server: Server, qos: int) -> None:
    """Nothing is lost, nothing comes twice, while a filter is replaced again and again."""
    topic = server.topic("a")
    count = 500
    async with client(server.port) as pub, client(server.port) as sub:
        await subscribed(sub, topic, qos=qos)
        async with trio.open_nursery() as nursery:

            async def publish_all() -> None:
                for n in range(count):
                    await pub.send(publish(topic, b"%d" % n, qos, n + 1))
                await pub.drain()

            nursery.start_soon(publish_all)
            got: list[bytes] = []
            subacks = 0
            while len(got) < count:
                if len(got) % 10 == 0:
                    await sub.send(subscribe(1, (topic, qos)))
                frame = await sub.packet()
                if frame == suback(1, qos):
                    subacks += 1
                    continue
                each = delivery(frame)
                if each.qos:
                    await sub.send(puback(each.packet_id))
                got.append(each.payload)
        assert got == [b"%d" % n for n in range(count)]
        assert subacks > 0


@also("3.8.4-5", "3.9.3-1")
async def test_3_8_4_4_many_filters_are_as_many_subscriptions(server: Server) -> None:
    """With one answer, whose codes stand in the order of the filters."""
    filters = [(server.topic(f"{n}/+"), n % 2) for n in range(100)]
    async with client(server.port) as pub, client(server.port) as sub:
        await sub.send(subscribe(9, *filters))
        await sub.expect(suback(9, *(qos for _, qos in filters)))
        await pub.send(*(publish(server.topic(f"{n}/a"), b"x", 1, n + 1) for n in range(100)))
        got = await sub.deliveries(100, ack=True)
        assert {each.topic: each.qos for each in got} == {
            server.topic(f"{n}/a"): n % 2 for n in range(100)
        }


async def test_3_8_4_4_the_last_of_equal_filters_counts(server: Server) -> None:
    topic = server.topic("a")
    async with client(server.port) as pub, client(server.port) as sub:
        await sub.send(subscribe(9, (topic, 0), (topic, 1), (topic, 0), (topic, 1)))
        await sub.expect(suback(9, 0, 1, 0, 1))
        await pub.send(publish(topic, b"x", 1, 1))
        await pub.drain()
        assert (await sub.delivery()).qos == 1
        await sub.nothing()


@also("3.9.3-1", "3.9.3-2", "3.8.4-6")
async def test_3_8_4_5_what_is_granted_and_what_is_refused(relay: RunningRelay) -> None:
    """What was asked for, or 0x80 for what this server does not do; the others stand."""
    wanted = [("a", 2), ("$share//a", 0), ("b" * 4097, 0), ("/" * 128, 1), ("c", 0), ("d", 1)]
    async with client(relay.port) as pub, client(relay.port) as sub:
        await sub.send(subscribe(9, *wanted))
        await sub.expect(suback(9, 2, 0x80, 0x80, 0x80, 0, 1))
        await pub.send(*(publish(topic, b"x", 2, n + 1) for n, topic in enumerate("acd")))
        got = await sub.deliveries(3)
        assert [(each.topic, each.qos) for each in got] == [("a", 2), ("c", 0), ("d", 1)]


@pytest.mark.parametrize("published", [0, 1, 2])
@pytest.mark.parametrize("granted", [0, 1, 2])
async def test_3_8_4_6_the_lower_quality_of_both(
    server: Server, published: int, granted: int
) -> None:
    topic = server.topic("a")
    async with client(server.port) as pub, client(server.port) as sub:
        await subscribed(sub, topic, qos=granted)
        await pub.send(publish(topic, b"x", published, 1))
        if published == 2:
            await pub.expect(pubrec(1))
            await pub.send(pubrel(1))
        await pub.drain()
        assert (await sub.delivery()).qos == min(published, granted)
        await sub.nothing()


# -- 3.10: UNSUBSCRIBE ----------------------------------------------------------------------------


@also("3.10.4-5")
async def test_3_10_4_1_filters_are_compared_character_by_character(server: Server) -> None:
    wanted = server.topic("+/b")
    others = ["a/b", "#", "+/B", "+/b/", "/+/b", "+/+", "+/\ufeffb"]
    async with client(server.port) as peer:
        await subscribed(peer, wanted)
        await peer.send(unsubscribe(2, *map(server.topic, others)))
        await peer.expect(unsuback(2))
        await peer.send(publish(server.topic("a/b"), b"x"))
        assert (await peer.delivery()).payload == b"x"


@pytest.mark.parametrize("qos", [0, 1])
@also("3.10.4-6")
async def test_3_10_4_2_nothing_more_is_delivered(server: Server, qos: int) -> None:
    """Of what was deleted: of several filters all, and of what is there still matches others."""
    async with client(server.port) as pub, client(server.port) as sub:
        await subscribed(sub, *map(server.topic, ("a", "b/+", "b/#")))
        await sub.send(unsubscribe(2, *map(server.topic, ("a", "b/#", "a", "never"))))
        await sub.expect(unsuback(2))
        await pub.send(
            *(publish(server.topic(each), b"x", qos, 1) for each in ("a", "b", "b/c/d", "b/c"))
        )
        await pub.drain()
        assert (await sub.delivery()).topic == server.topic("b/c")
        await sub.nothing()


async def test_3_10_4_2_nothing_retained_is_sent_after_the_unsuback(server: Server) -> None:
    """However much there is: here more than is sent in one step."""
    async with client(server.port) as peer:
        await peer.send(
            *(publish(server.topic(str(n)), bytes(100), retain=True) for n in range(700))
        )
        await peer.send(subscribe(1, (server.topic("+"), 0)), unsubscribe(2, server.topic("+")))
        await peer.expect(suback(1, 0))
        while (frame := await peer.packet()) != unsuback(2):
            assert delivery(frame).retain
        await peer.nothing()
        # Leave nothing behind.
        await peer.send(*(publish(server.topic(str(n)), b"", retain=True) for n in range(700)))
        await peer.nothing()


async def test_3_10_4_3_what_was_begun_is_completed(server: Server) -> None:
    topic = server.topic("a")
    async with client(server.port) as pub, client(server.port) as sub:
        await subscribed(sub, topic)
        await pub.send(*(publish(topic, b"%d" % n, 1, n + 1) for n in range(10)))
        got = await sub.deliveries(10)
        await pub.drain()
        await sub.send(unsubscribe(2, topic), *(puback(each.packet_id) for each in got[:5]))
        await sub.expect(unsuback(2))
        await sub.send(*(puback(each.packet_id) for each in got[5:]))
        await sub.nothing()


async def test_3_10_4_3_what_waits_for_its_turn_is_delivered_too(relay: RunningRelay) -> None:
    async with client(relay.port) as pub, client(relay.port) as sub:
        await subscribed(sub, "a")
        await pub.send(*(publish("a", b"%d" % n, 1, n + 1) for n in range(100)))
        first = await sub.deliveries(32)
        await pub.drain()
        await sub.send(unsubscribe(2, "a"))
        await sub.expect(unsuback(2))
        await sub.send(*(puback(each.packet_id) for each in first))
        rest = await sub.deliveries(68, ack=True)
        assert [each.payload for each in first + rest] == [b"%d" % n for n in range(100)]
        await sub.nothing()
        assert not relay.statistics().debt_items


# -- 3.12 to 3.14: PINGREQ and DISCONNECT ---------------------------------------------------------


async def test_3_12_4_1_each_pingreq_is_answered(server: Server) -> None:
    async with client(server.port, keep_alive=60) as peer:
        await peer.send(*[PINGREQ] * 100)
        await peer.expect(*[PINGRESP] * 100)


@also("3.1.2-10")
async def test_3_14_4_3_disconnect_discards_the_will(server: Server) -> None:
    topic = server.topic("will")
    async with client(server.port) as watcher:
        await subscribed(watcher, topic)
        for _ in range(2):
            async with client(server.port, server.base, will=Will(topic, retain=True)) as peer:
                await peer.send(DISCONNECT)
                await peer.expect(END)
        await watcher.nothing()
    assert await retained(server.port, topic) == []


@pytest.mark.parametrize("after", [PINGREQ, b"\xff", publish("will"), connect("c")])
async def test_3_14_4_3_whatever_follows_it(relay: RunningRelay, after: bytes) -> None:
    """It is not processed: a client must not send it [MQTT-3.14.4-2]."""
    async with client(relay.port) as watcher:
        await subscribed(watcher, "will")
        async with client(relay.port, "c", will=Will("will")) as peer:
            await peer.send(DISCONNECT, after)
            await peer.expect(END)
        await watcher.nothing()


# -- 4.3: quality of service ----------------------------------------------------------------------


@pytest.mark.parametrize("dup", [False, True])
async def test_4_3_2_2_after_its_puback_an_identifier_is_a_new_publication(
    server: Server, dup: bool
) -> None:
    topic = server.topic("a")
    async with client(server.port) as pub, client(server.port) as sub:
        await subscribed(sub, topic)
        for _ in range(3):
            await pub.send(publish(topic, b"x", 1, 5, dup=dup))
            await pub.expect(puback(5))
        assert [got.payload for got in await sub.deliveries(3, ack=True)] == [b"x"] * 3
        await sub.nothing()


async def test_4_3_3_2_qos_2_is_delivered_once_until_its_pubrel(relay: RunningRelay) -> None:
    """Mosquitto 2.0 closes a connection on which something is sent again."""
    async with client(relay.port) as pub, client(relay.port) as sub:
        await subscribed(sub, "a")
        for payload in (b"1", b"2"):  # after PUBCOMP the identifier is a new publication
            await pub.send(publish("a", payload, 2, 5))
            await pub.expect(pubrec(5))
            for _ in range(3):
                await pub.send(publish("a", payload, 2, 5, dup=True))
                await pub.expect(pubrec(5))
            await pub.send(pubrel(5))
            await pub.expect(pubcomp(5))
            got = await sub.delivery()
            assert (got.payload, got.qos, got.dup) == (payload, 1, False)
        await sub.nothing()


@also("4.6.0-4")
async def test_4_3_3_1_the_sender_releases_what_was_received_and_only_then(
    server: Server,
) -> None:
    """PUBRECs are answered in their order, whatever that of the publications was."""
    topic = server.topic("a")
    async with client(server.port) as pub, client(server.port) as sub:
        await subscribed(sub, topic, qos=2)
        for n in (1, 2, 3):
            await pub.send(publish(topic, b"%d" % n, 2, n))
            await pub.expect(pubrec(n))
            await pub.send(pubrel(n))
            await pub.expect(pubcomp(n))
        got = await sub.deliveries(3)
        assert [(each.payload, each.qos, each.dup) for each in got] == [
            (b"%d" % n, 2, False) for n in (1, 2, 3)
        ]
        ids = [each.packet_id for each in got]
        assert len(set(ids)) == 3
        await sub.nothing()
        await sub.send(*(pubrec(n) for n in reversed(ids)))
        await sub.expect(*(pubrel(n) for n in reversed(ids)))
        await sub.send(*(pubcomp(n) for n in ids))
        await sub.nothing()


async def test_4_3_3_1_an_identifier_is_in_use_until_its_pubcomp() -> None:
    async with (
        running(max_inflight=2) as relay,
        client(relay.port) as pub,
        client(relay.port) as sub,
    ):
        await subscribed(sub, "a", qos=2)
        for n in range(5):
            await pub.send(publish("a", b"%d" % n, 2, 7))
            await pub.expect(pubrec(7))
            await pub.send(pubrel(7))
            await pub.expect(pubcomp(7))
        first, second = (each.packet_id for each in await sub.deliveries(2))
        await sub.send(pubrec(first))
        await sub.expect(pubrel(first))
        await sub.nothing()  # there are two under way still
        await sub.send(pubrec(first))  # our PUBREL was slow to come
        await sub.expect(pubrel(first))
        await sub.send(pubcomp(first), pubcomp(first))
        third = await sub.delivery()
        assert (third.payload, third.packet_id not in (first, second)) == (b"2", True)
        await sub.nothing()
        await until(lambda: relay.statistics().debt_items == 4)


async def test_4_3_3_1_a_pubrec_for_what_is_not_known_is_answered(relay: RunningRelay) -> None:
    """The client may have it from a session that is over, and has to be rid of it."""
    async with client(relay.port) as peer:
        await peer.send(pubrec(7), pubcomp(8))
        await peer.expect(pubrel(7))
        await peer.nothing()


async def test_4_3_3_2_many_at_a_time_are_released_in_any_order(server: Server) -> None:
    topic = server.topic("a")
    ids = list(range(1, 16))
    async with client(server.port) as pub, client(server.port) as sub:
        await subscribed(sub, topic, qos=0)
        for _ in range(3):
            await pub.send(*(publish(topic, b"%d" % n, 2, n) for n in ids))
            await pub.expect(*map(pubrec, ids))
            await pub.send(*map(pubrel, reversed(ids)))
            await pub.expect(*map(pubcomp, reversed(ids)))
            got = await sub.deliveries(len(ids))
            assert sorted(int(each.payload) for each in got) == ids
        await sub.nothing()


async def test_4_3_3_2_a_pubrel_is_answered_though_its_identifier_is_unknown(
    server: Server,
) -> None:
    async with client(server.port) as pub:
        await pub.send(pubrel(7))
        await pub.expect(pubcomp(7))


@pytest.mark.rule(10)
async def test_4_3_3_2_a_pubrel_does_not_overtake_its_own_publication() -> None:
    """What a client sends is looked through for acknowledgements while it waits (rule 10)."""
    async with (
        running(limit_items=5) as relay,
        client(relay.port, "pub") as pub,
        client(relay.port) as sub,
    ):
        await subscribed(sub, "a")
        await pub.send(*(publish("a", b"%d" % n, 2, n) for n in (1, 2)))
        await pub.expect(pubrec(1), pubrec(2))
        fill = range(10, 20)
        await pub.send(*(publish("a", b"%d" % n, 1, n) for n in fill))
        await until(lambda: relay.account("pub").waiting)
        # The client has been slow to see a PUBREC, and has sent its publication again.
        again = publish("a", b"1", 2, 1, dup=True)
        await pub.send(pubrel(2), again[:4])
        while (frame := await pub.packet()) != pubcomp(2):
            assert frame in map(puback, fill)
        await pub.send(again[4:], pubrel(1), PINGREQ)
        while (frame := await pub.packet()) != PINGRESP:
            assert frame in map(puback, fill)
        assert relay.account("pub").waiting
        got = await sub.deliveries(12, ack=True)
        assert [each.payload for each in got] == [b"1", b"2", *(b"%d" % n for n in fill)]
        assert {each for each in await pub.drain() if each[0] != 0x40} == {pubrec(1), pubcomp(1)}
        await sub.nothing()


@also("4.3.2-2")
async def test_4_5_0_1_it_is_delivered_to_all_that_match(server: Server) -> None:
    """The publisher included, if it subscribes."""
    filters = ["a/b", "a/+", "#", "+/b"]
    async with (
        client(server.port) as pub,
        client(server.port) as one,
        client(server.port) as two,
        client(server.port) as three,
    ):
        for n, peer in enumerate((pub, one, two, three)):
            await subscribed(peer, server.topic(filters[n]), qos=n % 2)
        await pub.send(publish(server.topic("a/b"), b"x", 1, 3))
        frames = sorted(await pub.packets(2))
        assert delivery(frames[0]).qos == 0
        assert frames[1] == puback(3)
        for n, peer in enumerate((one, two, three), 1):
            got = await peer.delivery()
            assert (got.payload, got.qos) == (b"x", n % 2)


# -- 4.6: order -----------------------------------------------------------------------------------


@also("4.6.0-3")
async def test_4_6_0_2_acknowledgements_come_in_the_order_of_publications(server: Server) -> None:
    """What binds a client that receives [MQTT-4.6.0-2, -3] is kept by the server, too."""
    ids = [7, 3, 65_535, 1, 40, 39, 38, 256, 255]
    topic = server.topic("a")
    async with client(server.port) as pub, client(server.port) as sub:
        await subscribed(sub, topic)
        await pub.send(*(publish(topic, bytes(n), 1, n) for n in ids))
        await pub.expect(*map(puback, ids))
        await pub.send(*(publish(topic, bytes(n), 2, n) for n in ids))
        await pub.expect(*map(pubrec, ids))
        await pub.send(*map(pubrel, ids))
        await pub.expect(*map(pubcomp, ids))
        await sub.deliveries(2 * len(ids), ack=True)


@pytest.mark.parametrize("qos", [0, 1])
@also("4.6.0-5")
async def test_4_6_0_6_publications_arrive_in_the_order_of_their_publisher(
    server: Server, qos: int
) -> None:
    """On each topic, from two at once, of all sizes, some retained, far beyond the window."""
    sizes = [1, 20_000, 0, 127, 128, 300, 5]
    count = 300
    async with client(server.port) as sub:
        await subscribed(sub, server.topic("#"))

        async def publish_all(who: bytes) -> None:
            async with client(server.port) as pub:
                for n in range(count):
                    topic = server.topic(f"t{n % 3}")
                    payload = b"%b %d %b" % (who, n, bytes(sizes[n % 7]))
                    await pub.send(publish(topic, payload, qos, n + 1, retain=n % 5 == 0))
                await pub.drain()

        got: dict[tuple[str, bytes], list[int]] = {}
        async with trio.open_nursery() as nursery:
            nursery.start_soon(publish_all, b"A")
            nursery.start_soon(publish_all, b"B")
            for _ in range(2 * count):
                each = await sub.delivery()
                assert each.qos == qos
                who, n, _ = each.payload.split(b" ", 2)
                got.setdefault((each.topic, who), []).append(int(n))
        assert got == {
            (server.topic(f"t{t}"), who): list(range(t, count, 3))
            for t in range(3)
            for who in (b"A", b"B")
        }
        # Leave nothing behind.
        await sub.send(*(publish(server.topic(f"t{t}"), retain=True) for t in range(3)))


async def test_4_6_0_6_acknowledged_in_whatever_order_they_stay_in_order(
    relay: RunningRelay,
) -> None:
    async with client(relay.port) as pub, client(relay.port) as sub:
        await subscribed(sub, "a")
        await pub.send(*(publish("a", b"%d" % n, 1, n + 1) for n in range(200)))
        await pub.drain()
        got: list[bytes] = []
        while len(got) < 200:
            batch = [delivery(frame) for frame in await sub.drain()]
            got += [each.payload for each in batch]
            await sub.send(*(puback(each.packet_id) for each in reversed(batch)))
        assert got == [b"%d" % n for n in range(200)]


# -- 4.7: topics ----------------------------------------------------------------------------------


@pytest.mark.parametrize("qos", [0, 1])
async def test_4_7_2_1_wildcards_do_not_match_a_dollar(server: Server, qos: int) -> None:
    """Neither what is published nor what is retained; in the filter it has to be named."""
    hidden, shown = f"${server.base}", f"{server.base}/$a"
    async with client(server.port) as pub, client(server.port) as sub:
        kept = [f"{hidden}/kept", f"{shown}/kept"]
        await pub.send(*(publish(topic, b"x", qos, 1, retain=True) for topic in kept))
        await pub.drain()
        wild = ["#", "+/kept", "+/new", "+/#", "+/+", f"{server.base}/#"]
        await sub.send(subscribe(1, *((text, 0) for text in wild)))
        got = {delivery(frame).topic for frame in await sub.drain() if frame[0] >> 4 == 3}
        assert not {topic for topic in got if topic.startswith("$")}
        assert kept[1] in got
        await pub.send(*(publish(f"{each}/new", b"x", qos, 2) for each in (hidden, shown)))
        await pub.drain()
        assert {delivery(frame).topic for frame in await sub.drain()} == {f"{shown}/new"}
        await subscribed(sub, f"{hidden}/+", f"{hidden}/#", qos=0)
        assert {delivery(frame).topic for frame in await sub.drain()} == {kept[0]}
        await pub.send(*(publish(topic, b"", retain=True) for topic in kept))
        await pub.drain()


@pytest.mark.parametrize("qos", [0, 1])
async def test_4_7_3_3_a_string_may_have_65535_bytes(qos: int, base: str) -> None:
    """If the operator lets topics be as long as the protocol does."""
    topic = base + "é" * ((65_535 - len(base)) // 2) + "t"
    assert len(topic.encode()) == 65_535
    async with (
        running(max_topic_length=65_535, max_connect_size=LARGEST_CONNECT) as relay,
        client(relay.port, will=Will(topic, bytes(65_535))) as pub,
        client(relay.port) as sub,
    ):
        await subscribed(sub, topic)
        await pub.send(publish(topic, b"x", qos, 1, retain=True))
        assert (await sub.delivery()).topic == topic
        await pub.stream.aclose()
        got = await sub.delivery()
        assert (got.topic, got.payload) == (topic, bytes(65_535))
        assert [got.topic for got in await retained(relay.port, topic)] == [topic]


@pytest.mark.parametrize("qos", [0, 1])
async def test_4_7_3_3_what_is_longer_than_allowed_here_ends_the_connection(
    relay: RunningRelay, qos: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with client(relay.port) as fits, client(relay.port) as too_long:
        await fits.send(publish("t" * 4096, b"x", qos, 1))
        assert await fits.drain() == ([puback(1)] if qos else [])
        await too_long.send(publish("t" * 65_535, b"x", qos, 1))
        await too_long.expect(END)
        await fits.nothing()
    assert log_of(caplog, "at most 4096 are allowed here")


@pytest.mark.parametrize("qos", [0, 1])
async def test_4_7_3_4_nothing_is_normalised(server: Server, qos: int) -> None:
    """Case, composition, spaces, slashes and unassigned characters."""
    every = ["a", "A", "é", "e\u0301", " a", "a ", "a/", "/a", "\u200ba", "\u0378", "\ufb00", "ff"]
    async with client(server.port) as pub:
        for wanted in every:
            async with client(server.port) as sub:
                await subscribed(sub, server.topic(wanted))
                await pub.send(*(publish(server.topic(each), b"", qos, 1) for each in every))
                await pub.drain()
                got = [delivery(frame).topic for frame in await sub.drain()]
                assert got == [server.topic(wanted)]


# -- 4.8: errors ----------------------------------------------------------------------------------

BOUND_TO_LIMITS = "at most"


@pytest.mark.parametrize(
    "frame",
    [
        frame
        for statement, frame in MALFORMED_CONNECTED.values()
        if not statement.startswith(BOUND_TO_LIMITS)
        and statement not in ("MQTT-3.14.4-2",)  # DISCONNECT has been said
    ],
    ids=[
        row
        for row, (statement, _) in MALFORMED_CONNECTED.items()
        if not statement.startswith(BOUND_TO_LIMITS) and statement not in ("MQTT-3.14.4-2",)
    ],
)
@also("1.5.3-1", "1.5.3-2", "2.2.2-2", "3.1.2-8")
async def test_4_8_0_1_a_violation_ends_its_connection_and_no_other(
    relay: RunningRelay, frame: bytes
) -> None:
    """What came before it stands, what comes after it is not processed; the will is published."""
    async with client(relay.port) as watcher:
        await subscribed(watcher, "#")
        async with client(relay.port, "c", will=Will("will")) as peer:
            await peer.say(publish("before") + frame + publish("after"))
            await peer.expect(END)
        assert [got.topic for got in await watcher.deliveries(2)] == ["before", "will"]
        await watcher.nothing()


@pytest.mark.parametrize(("qos", "answer"), [(1, pubrec), (2, puback)], ids=["PUBREC", "PUBACK"])
async def test_4_8_0_1_an_answer_of_another_quality(
    relay: RunningRelay, qos: int, answer: Callable[[int], bytes]
) -> None:
    async with client(relay.port) as pub, client(relay.port) as peer:
        await subscribed(peer, "a", qos=2)
        await pub.send(publish("a", b"x", qos, 1))
        (got,) = await peer.deliveries(1)
        await peer.send(answer(got.packet_id))
        await peer.expect(END)


@also("3.1.2-8")
async def test_4_8_0_2_an_error_of_ours_ends_the_connection_that_met_it(
    relay: RunningRelay, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class TransientError(Exception):
        """Say, no memory for this one."""

    def fail(*_: object, **__: object) -> None:
        raise TransientError

    async with client(relay.port) as watcher:
        await subscribed(watcher, "#")
        async with client(relay.port, will=Will("will")) as peer:
            with monkeypatch.context() as patch:
                patch.setattr(relay.relay.dataspace, "observe", fail)
                await peer.send(subscribe(1, ("a", 0)))
                await peer.expect(END)
        assert (await watcher.delivery()).topic == "will"
        await watcher.nothing()
    assert log_of(caplog, "closed for an error of the relay's")
    assert relay.relay.mqtt.counters.internal_errors == 1
    relay.relay.mqtt.counters.internal_errors = 0


# -- all of them ----------------------------------------------------------------------------------

STATEMENTS = {
    "1.5.3": 3,
    "2.2.2": 2,
    "2.3.1": 7,
    "3.1.0": 2,
    "3.1.2": 24,
    "3.1.3": 11,
    "3.1.4": 5,
    "3.2.0": 1,
    "3.2.2": 6,
    "3.3.1": 12,
    "3.3.2": 3,
    "3.3.4": 1,
    "3.3.5": 2,
    "3.6.1": 1,
    "3.8.1": 1,
    "3.8.3": 4,
    "3.8.4": 6,
    "3.9.3": 2,
    "3.10.1": 1,
    "3.10.3": 2,
    "3.10.4": 6,
    "3.12.4": 1,
    "3.14.1": 1,
    "3.14.4": 3,
    "4.1.0": 2,
    "4.3.1": 1,
    "4.3.2": 2,
    "4.3.3": 2,
    "4.4.0": 1,
    "4.5.0": 2,
    "4.6.0": 6,
    "4.7.1": 3,
    "4.7.2": 1,
    "4.7.3": 4,
    "4.8.0": 2,
    "6.0.0": 4,
    "7.0.0": 2,
    "7.1.1": 1,
    "7.1.2": 1,
}
"""How many numbered statements each section of the standard of 29 October 2014 has."""

PACKETS = "tests.transports.mqtt.test_packets"
CONNECTION = "tests.transports.mqtt.test_connection"
CLIENT = "tests.transports.mqtt.test_client"
IDENTIFIERS = "tests.transports.mqtt.test_identifiers"

REFUSED = f"{PACKETS}:test_a_connected_server_refuses"
REFUSED_FIRST = f"{PACKETS}:test_a_server_refuses_as_first_packet"

SESSIONS = "tests.relay.test_sessions"
COMES_AGAIN = "test_what_was_not_acknowledged_comes_again_with_dup_and_the_same_identifiers"

CHECKED_ELSEWHERE = {
    # The packets that break these are refused by the codec, and by 4.8.0-1 or 3.1.4-1 above on the
    # wire.
    "2.2.2-1": REFUSED,
    "2.3.1-1": REFUSED,
    "3.1.2-9": REFUSED_FIRST,
    "3.1.2-13": REFUSED_FIRST,
    "3.1.2-14": REFUSED_FIRST,
    "3.1.2-15": REFUSED_FIRST,
    "3.1.2-19": REFUSED_FIRST,
    "3.1.2-21": REFUSED_FIRST,
    "3.1.2-22": REFUSED_FIRST,
    "3.1.3-3": REFUSED_FIRST,
    "3.1.3-4": REFUSED_FIRST,
    "3.1.3-10": REFUSED_FIRST,
    "3.1.3-11": REFUSED_FIRST,
    "3.3.1-4": REFUSED,
    "3.3.2-1": REFUSED,
    "3.3.2-2": REFUSED,
    "3.6.1-1": REFUSED,
    "3.8.1-1": REFUSED,
    "3.8.3-1": REFUSED,
    "3.8.3-3": REFUSED,
    "3.8.3-4": REFUSED,
    "3.10.1-1": REFUSED,
    "3.10.3-1": REFUSED,
    "3.10.3-2": REFUSED,
    "3.14.1-1": REFUSED,
    "4.7.1-1": REFUSED,
    "4.7.1-2": REFUSED,
    "4.7.1-3": REFUSED,
    "4.7.3-1": REFUSED,
    "4.7.3-2": REFUSED,
    # These bind a client; this project has one.
    "2.3.1-2": f"{CLIENT}:test_identifiers_are_given_back",
    "2.3.1-3": f"{IDENTIFIERS}:test_identifiers_go_round_and_skip_those_in_use",
    "3.1.2-23": f"{CLIENT}:test_pings_when_nothing_else_is_sent",
    "3.1.3-7": f"{PACKETS}:test_malformed_packets_are_not_encoded",
    "3.14.4-1": f"{CLIENT}:test_disconnecting_by_hand",
    "3.14.4-2": f"{CONNECTION}:test_closing_from_this_side_drops_what_is_on_its_way",
    "4.5.0-2": f"{CLIENT}:test_messages_are_acknowledged_when_they_are_taken",
    # Sessions that outlive their connections, and in test_persistent_sessions the relay.
    "3.1.2-4": f"{SESSIONS}:test_subscriptions_are_kept_with_their_qos",
    "3.1.2-5": f"{SESSIONS}:test_messages_wait_for_a_client_that_is_away",
    "3.2.2-2": f"{SESSIONS}:test_whether_a_session_is_present",
    "3.3.1-1": f"{SESSIONS}:{COMES_AGAIN}",
    "4.1.0-2": "tests.relay.test_persistent_sessions:test_sessions_expire",
    "4.4.0-1": f"{SESSIONS}:{COMES_AGAIN}",
    "4.6.0-1": f"{SESSIONS}:test_order_holds_through_cuts",
}

SAYS_THE_SAME = {"4.7.1-1": "3.3.2-2", "4.7.3-2": "1.5.3-2"}
"""Statements that are said twice, and the one by which the codec refuses."""

NO_WEBSOCKETS = "there is no WebSocket listener yet"

DOES_NOT_APPLY = {
    "3.8.3-2": "filters with wildcards are supported",
    "6.0.0-1": NO_WEBSOCKETS,
    "6.0.0-2": NO_WEBSOCKETS,
    "6.0.0-3": NO_WEBSOCKETS,
    "6.0.0-4": NO_WEBSOCKETS,
    "7.0.0-1": "the relay does not connect to other servers",
    "7.0.0-2": "no extension is needed: mosquitto's and paho's clients work as they are",
    "7.1.1-1": "every test here is over TCP",
    "7.1.2-1": "every test of the client is over TCP, or a stream like it",
}


def checked_here() -> set[str]:
    """Return the statements that the tests of this module are named for, or check besides."""
    names = [name for name in globals() if name.startswith("test_")]
    assert set(ALSO) <= set(names)
    found = {statement for each in ALSO.values() for statement in each}
    for name in names:
        if number := re.match(r"test_(\d+)_(\d+)_(\d+)_(\d+)_", name):
            found.add("{}.{}.{}-{}".format(*number.groups()))
    return found


def test_every_statement_is_accounted_for() -> None:
    every = {f"{section}-{n + 1}" for section, count in STATEMENTS.items() for n in range(count)}
    here = checked_here()
    assert here | set(CHECKED_ELSEWHERE) | set(DOES_NOT_APPLY) == every
    assert not here & set(DOES_NOT_APPLY)
    assert not set(CHECKED_ELSEWHERE) & set(DOES_NOT_APPLY)


def test_what_is_checked_elsewhere_is_there() -> None:
    refused = {statement for statement, _ in (MALFORMED_CONNECTED | MALFORMED_FIRST).values()}
    for statement, where in CHECKED_ELSEWHERE.items():
        module, _, name = where.partition(":")
        assert callable(getattr(importlib.import_module(module), name))
        if where in (REFUSED, REFUSED_FIRST):
            assert f"MQTT-{SAYS_THE_SAME.get(statement, statement)}" in refused
