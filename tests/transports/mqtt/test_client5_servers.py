"""The client in MQTT 5 against real servers: mosquitto's, and the relay."""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator
from typing import Any

import pytest
import trio

from clearfunds.transports.mqtt import (
    ClientSession,
    ConnectionLostError,
    Properties,
    PublicationRefusedError,
    Reason,
    Will,
    open_mqtt,
)
from tests.transports.peers import SECONDS, running

HOST = "127.0.0.1"

SAID = Properties(
    payload_format=1,
    content_type="text/plain",
    response_topic="answers",
    correlation_data=b"\0\xff",
    user=(("a", "1"), ("b", "2"), ("a", "3")),
)


@pytest.fixture(params=["relay", "mosquitto"])
async def port(request: pytest.FixtureRequest, mosquitto: int) -> AsyncGenerator[int]:
    """A server that speaks MQTT 5."""
    if request.param == "mosquitto":
        yield mosquitto
        return
    async with running() as relay:
        yield relay.port
        kept = relay.relay.mqtt.persistent_sessions
        assert kept is not None
        for client_id in list(kept.by_id):
            kept.discard(client_id)


@pytest.fixture
def topic() -> str:
    """Return a topic that no other test publishes to."""
    return f"clearfunds/{uuid.uuid4().hex}"


@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_what_is_said_of_a_message_arrives(port: int, topic: str, qos: int) -> None:
    with trio.fail_after(SECONDS):
        async with open_mqtt(HOST, port, version="5", max_topic_alias=10) as client:
            assert client.client_id  # the server has chosen one
            said = Properties(subscription_ids=(7,))
            assert await client.subscribe(f"{topic}/#", qos, properties=said) == (qos,)
            for number in range(5):
                await client.publish(f"{topic}/a", b"%d" % number, qos, properties=SAID)
                message = await client.receive()
                assert (message.topic, message.payload) == (f"{topic}/a", b"%d" % number)
                found = message.properties
                assert (found.content_type, found.response_topic) == ("text/plain", "answers")
                assert (found.correlation_data, found.payload_format) == (b"\0\xff", 1)
                assert found.user == SAID.user
                assert found.subscription_ids == (7,)


@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_options_of_a_subscription(port: int, topic: str, qos: int) -> None:
    with trio.fail_after(SECONDS):
        async with (
            open_mqtt(HOST, port, version="5") as client,
            open_mqtt(HOST, port, version="5") as other,
        ):
            await other.publish(topic, b"kept", 1, retain=True)
            options: dict[str, Any] = {"no_local": True, "retain_as_published": True}
            await client.subscribe(topic, qos, retained="never", **options)
            await client.publish(topic, b"its own", qos)
            await other.publish(topic, b"of another", qos, retain=True)
            message = await client.receive()
            assert (message.payload, message.retain) == (b"of another", True)
            await client.subscribe(topic, qos, retained="new", **options)
            await other.publish(topic, b"", 1, retain=True)
            assert (await client.receive()).payload == b""


async def test_no_more_comes_than_the_receive_maximum(
    port: int, mosquitto: int, topic: str
) -> None:
    options: dict[str, Any] = {"receive_maximum": 3, "manual_ack": True}
    with trio.fail_after(SECONDS):
        async with (
            open_mqtt(HOST, port, version="5", **options) as client,
            open_mqtt(HOST, port, version="5") as other,
        ):
            await client.subscribe(topic, 1)
            for number in range(10):
                await other.publish(topic, b"%d" % number, 1)
            waiting = [await client.receive() for _ in range(3)]
            await trio.sleep(0.05)
            assert client.statistics().buffered_messages == 0
            for number in range(3, 10):
                client.ack(waiting.pop(0))
                waiting.append(await client.receive())
                assert waiting[-1].payload == b"%d" % number
                await trio.sleep(0.02)
                # mosquitto 2.0.11 sends a whole window when a place of it is free.
                assert port == mosquitto or client.statistics().unacknowledged == 3


async def test_a_session_lasts_as_long_as_it_is_wanted(port: int, topic: str) -> None:
    name = topic.replace("/", "-")
    with trio.fail_after(SECONDS):
        for present, clean in ((False, True), (True, False)):
            async with open_mqtt(
                HOST, port, version="5", client_id=name, clean_session=clean, session_expiry=60
            ) as client:
                assert client.session_present is present
                await client.subscribe(topic, 1)
                if present:
                    await client.disconnect(properties=Properties(session_expiry=0))
        async with open_mqtt(
            HOST, port, version="5", client_id=name, clean_session=False, session_expiry=0
        ) as client:
            assert not client.session_present


async def test_what_was_not_acknowledged_is_sent_again(port: int, topic: str) -> None:
    session = ClientSession()
    options: dict[str, Any] = {
        "client_id": topic.replace("/", "-"), "session_expiry": 60, "session": session,
    }  # fmt: skip
    with trio.fail_after(SECONDS):
        async with open_mqtt(HOST, port, version="5") as other:
            await other.subscribe(topic, 2)
            with pytest.raises(KeyError):
                await _leave_something_behind(port, topic, options)
            options["clean_session"] = False
            async with open_mqtt(HOST, port, version="5", **options) as client:
                await client.flush()
                assert len(session) == 0
                await client.disconnect(properties=Properties(session_expiry=0))
            found = {(await other.receive()).payload for _ in range(20)}
            assert found == {b"%d" % number for number in range(20)}


async def _leave_something_behind(port: int, topic: str, options: dict[str, Any]) -> None:
    async with open_mqtt(HOST, port, version="5", **options) as client:
        for number in range(20):
            await client.publish(topic, b"%d" % number, 2, properties=SAID, wait=False)
        raise KeyError


async def test_a_will_is_published_by_a_farewell_that_wants_it(port: int, topic: str) -> None:
    will = Will(topic, b"gone", 1, properties=Properties(content_type="x"))
    with trio.fail_after(SECONDS):
        async with open_mqtt(HOST, port, version="5") as heir:
            await heir.subscribe(topic, 1)
            async with open_mqtt(HOST, port, version="5", will=will):
                pass
            async with open_mqtt(HOST, port, version="5", will=will) as mortal:
                await mortal.disconnect(Reason.DISCONNECT_WITH_WILL)
            message = await heir.receive()
            assert (message.payload, message.properties.content_type) == (b"gone", "x")


async def test_why_a_client_is_disconnected(port: int, mosquitto: int, topic: str) -> None:
    name = topic.replace("/", "-")
    lost: list[ConnectionLostError] = []
    with trio.fail_after(SECONDS):
        try:
            async with (
                open_mqtt(HOST, port, version="5", client_id=name) as first,
                open_mqtt(HOST, port, version="5", client_id=name),
            ):
                await first.receive()
        except ConnectionLostError as exc:
            lost.append(exc)
    # mosquitto 2.0.11 closes the connection without a word.
    assert [exc.reason for exc in lost] in ([Reason.SESSION_TAKEN_OVER], [None])
    assert port == mosquitto or lost[0].reason is not None


async def test_short_names_for_topics(port: int, topic: str) -> None:
    with trio.fail_after(SECONDS):
        async with open_mqtt(HOST, port, version="5") as client:
            assert client.granted.topic_alias_maximum == 10
            await client.subscribe(topic, 2)
            for qos in (0, 1, 2):
                for name in (topic, ""):
                    await client.publish(name, b"x", qos, properties=Properties(topic_alias=9))
                    message = await client.receive()
                    assert (message.topic, message.qos) == (topic, qos)


async def test_what_the_relay_refuses() -> None:
    with trio.fail_after(SECONDS):
        async with running() as relay, open_mqtt(HOST, relay.port, version="5") as client:
            with pytest.raises(PublicationRefusedError, match=r"\$SYS.*not authorized"):
                await client.publish("$SYS/x", b"", 2)
            await client.publish("t", b"", 1)


async def test_the_relay_says_how_often_it_wants_to_hear() -> None:
    with trio.fail_after(SECONDS):
        async with (
            running(max_keep_alive=1) as relay,
            open_mqtt(HOST, relay.port, version="5") as client,
        ):
            assert client.granted.keep_alive == 1
            await trio.sleep(2)
            await client.publish("t", b"", 1)
