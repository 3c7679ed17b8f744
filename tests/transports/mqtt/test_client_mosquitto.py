"""The client against mosquitto: a server that was written by others."""

import uuid
from contextlib import suppress

import pytest
import trio

from clearfunds.transports.mqtt import (
    ConnectionLostError,
    MqttClient,
    Publish,
    Will,
    open_mqtt,
)

HOST = "127.0.0.1"


@pytest.fixture
def topic() -> str:
    """Return a topic that no other test publishes to."""
    return f"clearfunds/{uuid.uuid4().hex}"


async def collect(client: MqttClient, count: int) -> list[bytes]:
    payloads: list[bytes] = []
    with trio.fail_after(60):
        async for message in client:
            payloads.append(message.payload)
            if len(payloads) == count:
                break
    return payloads


@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_every_quality_of_service_both_ways(mosquitto: int, topic: str, qos: int) -> None:
    async with open_mqtt(HOST, mosquitto) as client:
        assert await client.subscribe(f"{topic}/#", qos) == (qos,)
        payloads = [b"", b"text", bytes(range(256)), bytes(1 << 20)]
        for payload in payloads:
            await client.publish(f"{topic}/a", payload, qos)
        assert await collect(client, len(payloads)) == payloads
        await client.unsubscribe(f"{topic}/#")
        await client.publish(f"{topic}/a", b"nobody listens", qos)
        await client.subscribe(f"{topic}/b")
        await client.publish(f"{topic}/b", b"marker")
        assert await collect(client, 1) == [b"marker"]


@pytest.mark.parametrize(("qos", "count"), [(0, 50_000), (1, 10_000), (2, 3_000)])
async def test_a_pipelined_stream_arrives_whole_and_in_order(
    mosquitto: int, topic: str, qos: int, count: int
) -> None:
    async with (
        open_mqtt(HOST, mosquitto, max_buffered=100) as subscriber,
        open_mqtt(HOST, mosquitto) as publisher,
    ):
        await subscriber.subscribe(topic, qos)
        received: list[bytes] = []

        async def receive() -> None:
            received.extend(await collect(subscriber, count))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(receive)
            for number in range(count):
                await publisher.publish(topic, b"%d" % number, qos, wait=False)
            await publisher.flush()
            assert publisher.statistics().inflight == 0
        assert received == [b"%d" % number for number in range(count)]


async def test_a_subscriber_that_takes_its_time_loses_nothing(mosquitto: int, topic: str) -> None:
    count = 5_000
    async with (
        open_mqtt(HOST, mosquitto, max_buffered=10) as subscriber,
        open_mqtt(HOST, mosquitto) as publisher,
    ):
        await subscriber.subscribe(topic, 1)
        for number in range(count):
            await publisher.publish(topic, b"%d" % number + bytes(500), 1, wait=False)
        await publisher.flush()
        await trio.sleep(0.2)
        # Twenty may be unacknowledged at once, and ours are acknowledged when they are taken.
        assert subscriber.statistics().buffered_messages <= 20
        payloads = await collect(subscriber, count)
        assert [int(payload.rstrip(b"\0")) for payload in payloads] == list(range(count))


async def test_retained_messages(mosquitto: int, topic: str) -> None:
    async with open_mqtt(HOST, mosquitto) as client:
        await client.publish(topic, b"kept", 1, retain=True)
    async with open_mqtt(HOST, mosquitto) as client:
        await client.subscribe(topic)
        assert await client.receive() == Publish(topic, b"kept", retain=True)
        await client.publish(topic, b"", 1, retain=True)
        assert await client.receive() == Publish(topic, b"")


async def test_the_will_is_published_after_an_exception_and_only_then(
    mosquitto: int, topic: str
) -> None:
    async with open_mqtt(HOST, mosquitto) as heir:
        await heir.subscribe(topic, 1)
        async with open_mqtt(HOST, mosquitto, will=Will(topic, b"not this", 1)) as mortal:
            await mortal.publish(topic, b"alive", 1)
        with pytest.raises(ZeroDivisionError):
            async with open_mqtt(HOST, mosquitto, will=Will(topic, b"gone", 1)):
                raise ZeroDivisionError
        assert await collect(heir, 2) == [b"alive", b"gone"]


async def test_a_kept_session(mosquitto: int, topic: str) -> None:
    name = topic.replace("/", "-")
    async with (
        open_mqtt(HOST, mosquitto, client_id=name, clean_session=False) as client,
    ):
        assert not client.session_present
        await client.subscribe(topic, 1)
    async with open_mqtt(HOST, mosquitto) as publisher:
        await publisher.publish(topic, b"meanwhile", 1)
    async with open_mqtt(HOST, mosquitto, client_id=name, clean_session=False) as client:
        assert client.session_present
        assert await collect(client, 1) == [b"meanwhile"]
    async with open_mqtt(HOST, mosquitto, client_id=name) as client:
        assert not client.session_present


async def test_messages_not_taken_are_delivered_again_to_a_kept_session(
    mosquitto: int, topic: str
) -> None:
    name = topic.replace("/", "-")
    with suppress(ZeroDivisionError):
        async with open_mqtt(HOST, mosquitto, client_id=name, clean_session=False) as client:
            await client.subscribe(topic, 2)
            for qos in (1, 2, 1):
                await client.publish(topic, b"%d" % qos, qos)
            assert await collect(client, 1) == [b"1"]
            # Now the acknowledgement of that one is written, and of no other.
            await client.flush()
            raise ZeroDivisionError
    async with open_mqtt(HOST, mosquitto, client_id=name, clean_session=False) as client:
        assert await collect(client, 2) == [b"2", b"1"]
    async with open_mqtt(HOST, mosquitto, client_id=name) as client:
        assert not client.session_present


async def test_pings_keep_an_idle_connection(mosquitto: int, topic: str) -> None:
    async with open_mqtt(HOST, mosquitto, keep_alive=1) as client:
        await client.subscribe(topic)
        await trio.sleep(2.5)  # mosquitto would end the connection after 1.5 s of silence
        await client.publish(topic, b"here")
        assert await collect(client, 1) == [b"here"]


async def test_another_client_of_the_same_name_takes_over(mosquitto: int, topic: str) -> None:
    name = topic.replace("/", "-")
    lost: list[ConnectionLostError] = []
    try:
        async with (
            open_mqtt(HOST, mosquitto, client_id=name) as first,
            open_mqtt(HOST, mosquitto, client_id=name),
        ):
            with trio.fail_after(10):
                await first.receive()
    except ConnectionLostError as exc:
        lost.append(exc)
    assert len(lost) == 1


async def test_many_clients_at_once(mosquitto: int, topic: str) -> None:
    count = 100
    received: list[bytes] = []
    subscribed = 0
    all_subscribed = trio.Event()

    async def one(number: int) -> None:
        nonlocal subscribed
        async with open_mqtt(HOST, mosquitto) as client:
            await client.subscribe(f"{topic}/{number}", 1)
            subscribed += 1
            if subscribed == count:
                all_subscribed.set()
            await all_subscribed.wait()
            await client.publish(f"{topic}/{(number + 1) % count}", b"%d" % number, 1)
            received.extend(await collect(client, 1))

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            for number in range(count):
                nursery.start_soon(one, number)
    assert sorted(map(int, received)) == list(range(count))
