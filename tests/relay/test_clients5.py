"""Clients of MQTT 5 that others have written, unchanged: mosquitto's, paho-mqtt."""

from __future__ import annotations

import functools
import json
import queue
import subprocess
from typing import Any

import pytest
import trio

from tests.programs import needs
from tests.relay.test_clients import at, subscribed
from tests.transports.peers import SECONDS, connected, kill, run_fed, running

paho: Any = pytest.importorskip("paho.mqtt.client", reason="paho-mqtt is not installed")
paho_properties: Any = pytest.importorskip("paho.mqtt.properties")
paho_packets: Any = pytest.importorskip("paho.mqtt.packettypes")
paho_options: Any = pytest.importorskip("paho.mqtt.subscribeoptions")

needs_mosquitto = needs("mosquitto_pub", "mosquitto_sub", "mosquitto_rr")


@needs_mosquitto
@pytest.mark.parametrize("qos", ["0", "1", "2"])
async def test_mosquittos_clients_say_more_of_a_message(qos: str) -> None:
    said = [
        "-D", "publish", "user-property", "colour", "red",
        "-D", "publish", "content-type", "text/plain",
        "-D", "publish", "message-expiry-interval", "60",
    ]  # fmt: skip
    async with (
        running() as relay,
        subscribed(relay, "-V", "5", "-t", "t/#", "-q", qos, "-C", "1", "-F", "%j") as process,
    ):
        options = ["-V", "5", "-t", "t/1", "-m", "hello", "-q", qos]
        await run_fed(["mosquitto_pub", *at(relay), *options, *said])
        assert process.stdout is not None
        with trio.fail_after(SECONDS):
            found = json.loads(await process.stdout.receive_some())
            await process.wait()
    assert found["payload"] == "hello"
    assert found["properties"]["user-properties"] == {"colour": "red"}
    assert found["properties"]["content-type"] == "text/plain"
    assert 0 < found["properties"]["message-expiry-interval"] <= 60


@needs_mosquitto
async def test_a_request_is_answered() -> None:
    async with running() as relay, connected(relay.port) as old:
        await old.subscribe("requests")  # which sees the request, but not where to answer
        async with (
            subscribed(relay, "-V", "5", "-t", "requests", "-C", "1", "-F", "%R %D %p") as served,
            trio.open_nursery() as nursery,
        ):
            ask = ["-V", "5", "-t", "requests", "-m", "6 x 7", "-e", "answers/1"]
            ask += ["-D", "publish", "correlation-data", "n1"]
            command = ["mosquitto_rr", *at(relay), *ask]
            client: trio.Process = await nursery.start(
                functools.partial(
                    trio.run_process, command, stdout=subprocess.PIPE, deliver_cancel=kill
                )
            )
            assert served.stdout is not None
            assert client.stdout is not None
            with trio.fail_after(SECONDS):
                where, number, what = bytes(await served.stdout.receive_some()).split(b" ", 2)
                assert (where, number, what.strip()) == (b"answers/1", b"n1", b"6 x 7")
                answer = ["-V", "5", "-t", where.decode(), "-m", "42"]
                answer += ["-D", "publish", "correlation-data", number.decode()]
                await run_fed(["mosquitto_pub", *at(relay), *answer])
                async with client.stdout:
                    assert bytes(await client.stdout.receive_some()).strip() == b"42"
                    await client.wait()
        assert (await old.publication()).payload == b"6 x 7"


async def test_paho_speaks_mqtt_5() -> None:
    def test(port: int) -> None:
        got: queue.Queue[Any] = queue.Queue()
        ready: queue.Queue[Any] = queue.Queue()
        client = paho.Client(paho.CallbackAPIVersion.VERSION2, "paho", protocol=paho.MQTTv5)

        def on_connect(_: Any, __: Any, ___: Any, reason: Any, properties: Any) -> None:
            ready.put((reason, properties))

        def on_subscribe(_: Any, __: Any, ___: Any, reasons: Any, ____: Any) -> None:
            ready.put(reasons)

        def on_message(_: Any, __: Any, message: Any) -> None:
            got.put(message)

        def on_publish(_: Any, __: Any, mid: Any, reason: Any, ___: Any) -> None:
            ready.put((mid, reason))

        client.on_connect = on_connect
        client.on_subscribe = on_subscribe
        client.on_message = on_message
        client.on_publish = on_publish
        session = paho_properties.Properties(paho_packets.PacketTypes.CONNECT)
        session.SessionExpiryInterval = 3_600
        client.connect("127.0.0.1", port, clean_start=True, properties=session)
        client.loop_start()
        try:
            reason, granted = ready.get(timeout=SECONDS)
            assert not reason.is_failure
            assert granted.TopicAliasMaximum == 10
            options = paho_options.SubscribeOptions(qos=2, retainAsPublished=True)
            identified = paho_properties.Properties(paho_packets.PacketTypes.SUBSCRIBE)
            identified.SubscriptionIdentifier = 11
            client.subscribe("t/+", options=options, properties=identified)
            assert [each.value for each in ready.get(timeout=SECONDS)] == [2]
            for qos in (0, 1, 2):
                said = paho_properties.Properties(paho_packets.PacketTypes.PUBLISH)
                said.UserProperty = [("a", "1"), ("a", "2")]
                said.TopicAlias = 1
                client.publish(f"t/{qos}", b"x", qos, retain=True, properties=said)
                message = got.get(timeout=SECONDS)
                assert (message.topic, message.payload, message.qos) == (f"t/{qos}", b"x", qos)
                assert message.retain
                assert message.properties.UserProperty == [("a", "1"), ("a", "2")]
                assert message.properties.SubscriptionIdentifier == [11]
                assert not ready.get(timeout=SECONDS)[1].is_failure
            refused = client.publish("$SYS/broker", b"", 1)
            mid, reason = ready.get(timeout=SECONDS)
            assert (mid, reason.value) == (refused.mid, 0x87)
        finally:
            ending = paho_properties.Properties(paho_packets.PacketTypes.DISCONNECT)
            ending.SessionExpiryInterval = 0
            client.disconnect(properties=ending)
            client.loop_stop()

    async with running() as relay:
        await trio.to_thread.run_sync(test, relay.port)
        await relay.deserted()


async def test_paho_is_told_what_the_relay_wants() -> None:
    def test(port: int) -> None:
        ready: queue.Queue[Any] = queue.Queue()
        client = paho.Client(paho.CallbackAPIVersion.VERSION2, "", protocol=paho.MQTTv5)

        def on_connect(_: Any, __: Any, ___: Any, reason: Any, properties: Any) -> None:
            ready.put((reason, properties))

        def on_publish(_: Any, __: Any, ___: Any, reason: Any, ____: Any) -> None:
            ready.put(reason)

        client.on_connect = on_connect
        client.on_publish = on_publish
        client.connect("127.0.0.1", port, keepalive=3_600)
        client.loop_start()
        try:
            reason, granted = ready.get(timeout=SECONDS)
            assert not reason.is_failure
            assert granted.ServerKeepAlive == 60
            assert granted.ReceiveMaximum == 1_000
            assert len(granted.AssignedClientIdentifier) == len("auto-") + 32
            for qos in (1, 2):
                client.publish("nobody/subscribes", b"x", qos)
                assert ready.get(timeout=SECONDS).value == (0x10 if qos == 1 else 0)
        finally:
            client.disconnect()
            client.loop_stop()

    async with running(max_keep_alive=60) as relay:
        await trio.to_thread.run_sync(test, relay.port)
        await relay.deserted()


@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_paho_speaks_mqtt_31(qos: int) -> None:
    def test(port: int) -> None:
        got: queue.Queue[Any] = queue.Queue()
        ready: queue.Queue[Any] = queue.Queue()
        client = paho.Client(
            paho.CallbackAPIVersion.VERSION2, "old", clean_session=False, protocol=paho.MQTTv31
        )

        def on_connect(_: Any, __: Any, flags: Any, reason: Any, ___: Any) -> None:
            ready.put((reason, flags.session_present))

        def on_subscribe(_: Any, __: Any, ___: Any, reasons: Any, ____: Any) -> None:
            ready.put(reasons)

        def on_message(_: Any, __: Any, message: Any) -> None:
            got.put(message)

        client.on_connect = on_connect
        client.on_subscribe = on_subscribe
        client.on_message = on_message
        client.connect("127.0.0.1", port)
        client.loop_start()
        try:
            reason, present = ready.get(timeout=SECONDS)
            assert (reason.is_failure, bool(present)) == (False, False)
            client.subscribe("t/+", qos)
            assert [each.value for each in ready.get(timeout=SECONDS)] == [qos]
            client.publish("t/1", b"x", qos)
            message = got.get(timeout=SECONDS)
            assert (message.topic, message.payload, message.qos) == ("t/1", b"x", qos)
        finally:
            client.disconnect()
            client.loop_stop()

    async with running() as relay:
        await trio.to_thread.run_sync(test, relay.port)
        kept = relay.relay.mqtt.persistent_sessions
        assert kept is not None
        assert "old" in kept.by_id
        kept.discard("old")
        await relay.deserted()


@needs_mosquitto
@pytest.mark.parametrize("qos", ["0", "1", "2"])
async def test_mosquittos_clients_speak_mqtt_31(qos: str) -> None:
    async with (
        running() as relay,
        subscribed(
            relay, "-V", "mqttv31", "-t", "t/#", "-q", qos, "-C", "1", "-F", "%p"
        ) as process,
    ):
        options = ["-V", "mqttv31", "-t", "t/1", "-m", "hello", "-q", qos]
        await run_fed(["mosquitto_pub", *at(relay), *options])
        assert process.stdout is not None
        with trio.fail_after(SECONDS):
            assert bytes(await process.stdout.receive_some()).strip() == b"hello"
            await process.wait()
