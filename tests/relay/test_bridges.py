"""mosquitto's bridge, unchanged, in each version of MQTT that it speaks."""

from __future__ import annotations

import functools
import getpass
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from clearfunds.transports.mqtt import MqttClient, Publish, open_mqtt
from tests.ports import lasting_port
from tests.transports.conftest import MOSQUITTO
from tests.transports.peers import SECONDS, RunningRelay, kill, running, until

pytestmark = pytest.mark.skipif(MOSQUITTO is None, reason="mosquitto is not installed")

HOST = "127.0.0.1"


@asynccontextmanager
async def bridged(relay: RunningRelay, folder: Path, version: str) -> AsyncGenerator[int]:
    """Run mosquitto with a bridge to the relay, from when it is there; gives mosquitto's port."""
    assert MOSQUITTO is not None
    port = lasting_port()
    config = folder / "mosquitto.conf"
    config.write_text(
        f"allow_anonymous true\nuser {getpass.getuser()}\nlistener {port} {HOST}\n"
        f"connection bridge\naddress {HOST}:{relay.port}\nremote_clientid the-bridge\n"
        f"bridge_protocol_version {version}\nrestart_timeout 1\ntopic # both 1\n"
    )
    command = [MOSQUITTO, "-c", str(config)]
    async with trio.open_nursery() as nursery:
        run = functools.partial(
            trio.run_process, command, capture_stderr=True, check=False, deliver_cancel=kill
        )
        await nursery.start(run)
        mqtt, routes = relay.relay.mqtt, relay.relay.dataspace.routes
        await until(lambda: "the-bridge" in mqtt.sessions and len(routes) == 1)
        yield port
        nursery.cancel_scope.cancel()


async def took(client: MqttClient, count: int) -> list[Publish]:
    """Take messages; see that no more come."""
    with trio.fail_after(SECONDS):
        found = [await client.receive() for _ in range(count)]
    with trio.move_on_after(0.3):
        pytest.fail(f"{await client.receive()} is one too many")
    return found


@pytest.mark.parametrize("version", ["mqttv31", "mqttv311", "mqttv50"])
async def test_what_is_published_at_one_end_is_at_the_other_once(
    version: str, tmp_path: Path
) -> None:
    async with (
        running() as relay,
        bridged(relay, tmp_path, version) as port,
        open_mqtt(HOST, relay.port) as here,
        open_mqtt(HOST, port) as there,
    ):
        for client in (here, there):
            await client.subscribe("t/#", 1)
        for qos in (0, 1, 2):
            await here.publish(f"t/here/{qos}", b"from here", qos)
            await there.publish(f"t/there/{qos}", b"from there", qos)
        topics = sorted(f"t/{end}/{qos}" for end in ("here", "there") for qos in (0, 1, 2))
        for client in (here, there):
            assert sorted(message.topic for message in await took(client, 6)) == topics
        relay.audit()


@pytest.mark.parametrize("version", ["mqttv31", "mqttv311", "mqttv50"])
async def test_what_is_retained_at_one_end_is_retained_at_the_other(
    version: str, tmp_path: Path
) -> None:
    async with running() as relay, bridged(relay, tmp_path, version) as port:
        async with open_mqtt(HOST, relay.port) as here, open_mqtt(HOST, port) as there:
            await there.subscribe("t/#", 1)
            await here.subscribe("t/#", 1)
            await here.publish("t/here", b"kept", 1, retain=True)
            await there.publish("t/there", b"kept", 1, retain=True)
            await took(here, 2)
            await took(there, 2)
        for each in (relay.port, port):
            async with open_mqtt(HOST, each) as late:
                await late.subscribe("t/#", 1)
                kept = sorted((message.topic, message.retain) for message in await took(late, 2))
                assert kept == [("t/here", True), ("t/there", True)]


@pytest.mark.parametrize("version", ["mqttv31", "mqttv311", "mqttv50"])
async def test_a_bridge_that_was_away_gets_what_it_missed(version: str, tmp_path: Path) -> None:
    async with running() as relay:
        async with bridged(relay, tmp_path, version):
            pass
        await until(lambda: not relay.relay.mqtt.sessions)
        async with open_mqtt(HOST, relay.port) as here:
            await here.publish("t/missed", b"x", 1, retain=True)
        async with (
            bridged(relay, tmp_path, version) as port,
            open_mqtt(HOST, port) as there,
        ):
            await there.subscribe("t/#", 1)
            with trio.fail_after(SECONDS):
                # Queued for it, and perhaps told again because it is retained.
                assert (await there.receive()).payload == b"x"
