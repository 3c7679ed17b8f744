"""Short names for topics, from the relay to its clients."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from clearfunds.dataspace import Publication
from clearfunds.transports.mqtt import (
    NEED_DATA,
    ConnAck,
    Connect,
    Connection,
    Properties,
    PubAck,
    Publish,
    Role,
    encode5,
    open_mqtt,
)
from clearfunds.transports.mqtt.server._aliases import PATIENCE, Aliases
from clearfunds.transports.mqtt.server._filters import Filters
from clearfunds.transports.mqtt.server._mqtt5 import Mqtt5
from tests.transports.mqtt.peers5 import connected5
from tests.transports.peers import SECONDS, running

LONG = "site/hall/machine/sensor/temperature"


def five(most: int, *, allowed: int = 10, **said: Any) -> Mqtt5:
    properties = Properties(topic_alias_maximum=most, **said)
    connect = Connect("c", protocol_level=5, properties=properties)
    return Mqtt5(connect, Filters(), lambda: 0.0, allowed)


def accepted(most: int) -> Connection:
    """A client that was let in."""
    client = Connection(Role.CLIENT, max_topic_alias=most)
    client.send(Connect("c", protocol_level=5))
    client.receive_data(encode5(ConnAck(False, 0)))
    assert client.next_packet() == ConnAck(False, 0)
    return client


@given(
    st.integers(0, 5),
    st.lists(st.tuples(st.integers(0, 12), st.integers(0, 2), st.booleans()), max_size=300),
    st.none() | st.integers(20, 80),
)
def test_a_client_knows_which_topic_is_meant(
    most: int, messages: list[tuple[int, int, bool]], largest: int | None
) -> None:
    side = five(most, maximum_packet_size=largest)
    plain = five(0, maximum_packet_size=largest)
    client = accepted(most)
    for number, qos, has_properties in messages:
        topic = f"{'a/long/topic/' * (number % 3)}{number}"
        said = b"\x03\x00\x01x" if has_properties else b""
        event = Publication(topic, b"payload", qos, properties=said)
        frame = side.frame(event, qos and 1)
        whole = plain.frame(event, qos and 1)
        assert not whole or len(frame) <= len(whole) + 3
        if not frame:
            continue
        client.receive_data(frame)
        told = client.next_packet()
        assert isinstance(told, Publish)
        assert (told.topic, told.payload, told.qos) == (topic, b"payload", qos)
        assert client.next_packet() is NEED_DATA
        assert qos or frame == whole  # it may be dropped, and what it names with it


def test_a_topic_has_a_name_from_its_second_message_on() -> None:
    side = five(10)
    sizes = [len(side.frame(Publication(LONG, b"x", 1), 1)) for _ in range(4)]
    assert sizes[1] == sizes[0] + 3
    assert sizes[2] == sizes[3] == sizes[0] + 3 - len(LONG)
    assert len(side.frame(Publication("short", b"x", 1), 1)) == 13
    assert len(side.frame(Publication("short", b"x", 1), 1)) == 13


def test_what_is_put_aside_has_no_name() -> None:
    side = five(10)
    event = Publication(LONG, b"x", 1)
    whole = side.put_aside(event)
    for _ in range(3):
        side.frame(event, 1)
        assert side.put_aside(event) == whole


@pytest.mark.parametrize(("asked", "allowed", "count"), [(2, 10, 2), (10, 3, 3), (0, 10, 0)])
def test_there_are_no_more_than_either_wants(asked: int, allowed: int, count: int) -> None:
    side = five(asked, allowed=allowed)
    for _ in range(3):
        for number in range(20):
            side.frame(Publication(f"{LONG}/{number}", b"x", 1), 1)
    aliases = side._aliases  # pyright: ignore[reportPrivateUsage]
    assert (0 if aliases is None else len(aliases)) == count


def test_a_name_that_is_not_used_is_given_to_another_topic() -> None:
    aliases = Aliases(2)

    def sent(topic: str) -> bytes:
        return aliases.known(topic) or aliases.new(topic)

    for topic in ("the first topic", "the second topic") * 2:
        sent(topic)
    # Three in turn do not take them from each other.
    for _ in range(50):
        assert sent("the first topic") == b"\x23\0\1"
        assert sent("the second topic") == b"\x23\0\2"
        assert sent("the third topic") == b""
    for _ in range(PATIENCE * 2 + 1):
        sent("the second topic")
    assert sent("the third topic") == b"\x23\0\1"
    assert sent("the first topic") == b""


async def test_a_client_that_allows_short_names_gets_them() -> None:
    async with running() as relay:
        async with (
            connected5(relay.port, "named", topic_alias_maximum=5) as named,
            connected5(relay.port, "plain") as plain,
            connected5(relay.port, "publisher") as publisher,
        ):
            for each in (named, plain):
                await each.subscribe("#", options=1)
            for number in range(5):
                await publisher.published(LONG, b"%d" % number, content_type="x")
                told, whole = await named.publication(), await plain.publication()
                assert (whole.topic, whole.properties) == (LONG, Properties(content_type="x"))
                alias = 1 if number else None
                assert told.properties == Properties(content_type="x", topic_alias=alias)
                assert told.topic == ("" if number > 1 else LONG)
                await named.send(PubAck(told.packet_id))
                await plain.send(PubAck(whole.packet_id))
            # Not what may be dropped.
            await publisher.publish(LONG, b"x", content_type="x")
            assert (await named.publication()).topic == LONG
        await relay.deserted()


@pytest.mark.parametrize("clean", [True, False])
async def test_our_own_client_is_told_the_topics(clean: bool) -> None:
    options: dict[str, Any] = {
        "version": "5", "client_id": "c", "clean_session": clean, "max_topic_alias": 3,
    }  # fmt: skip
    topics = [f"{LONG}/{number % 5}" for number in range(60)]
    with trio.fail_after(SECONDS):
        async with running() as relay, open_mqtt("127.0.0.1", relay.port) as publisher:
            for _ in range(2):
                async with open_mqtt("127.0.0.1", relay.port, **options) as client:
                    await client.subscribe("#", 2)
                    for number, topic in enumerate(topics):
                        await publisher.publish(topic, b"", number % 3, wait=False)
                    await publisher.flush()
                    found = [(await client.receive()).topic for _ in topics]
                    assert sorted(found) == sorted(topics)
            if not clean:
                kept = relay.relay.mqtt.persistent_sessions
                assert kept is not None
                kept.discard("c")
            relay.audit()
