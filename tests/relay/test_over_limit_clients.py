"""Clients that are refused above their limits: our own, and paho-mqtt, unchanged."""

from __future__ import annotations

import queue
from typing import Any

import pytest
import trio

from clearfunds.accounts import OverLimitPolicy
from clearfunds.transports import PublicationPolicy
from clearfunds.transports.mqtt import PublicationRefusedError, open_mqtt
from clearfunds.transports.mqtt.codec._reasons import Reason
from tests.relay.test_clients import PAHO
from tests.transports.mqtt.test_over_limit import deserted
from tests.transports.peers import SECONDS, RunningRelay, connected, running, until

paho: Any = pytest.importorskip("paho.mqtt.client", reason="paho-mqtt is not installed")

LITTLE = 4096
PAYLOAD = bytes(10_000)


def refusing(**options: Any) -> Any:
    """Run a relay that refuses, in which nobody's patience is ever over."""
    rules = (PublicationPolicy("*", "#", "refuse"),)
    given: dict[str, Any] = {
        "profile": "lossless",
        "limit_bytes": 100_000,
        "patience": 1000.0,
        **options,
    }
    return running(publication_policy=rules, **given)


@pytest.mark.parametrize("qos", [1, 2])
async def test_our_client_raises_with_the_holder(qos: int) -> None:
    async with refusing() as relay:
        async with (
            connected(relay.port, "archive", receive_buffer=LITTLE) as archive,
            open_mqtt("127.0.0.1", relay.port, client_id="pub", version="5") as client,
        ):
            await archive.subscribe("t")
            reason, said = 0, ""
            with trio.fail_after(SECONDS):
                while "archive" not in said:
                    try:
                        await client.publish("t", PAYLOAD, qos)
                    except PublicationRefusedError as error:
                        reason, said = error.reason, str(error.reason_string)
                        await trio.sleep(0.05)
            assert reason == Reason.QUOTA_EXCEEDED
            assert f"mqtt:{relay.port}/-/archive has " in said
            relay.audit()
        await deserted(relay)


def paho_client(relay: RunningRelay, version: int) -> tuple[Any, queue.Queue[Any]]:
    """Connect a client of paho's; return it, and the reason code of each answer."""
    options: Any = {"client_id": "pub", "protocol": version}
    client = paho.Client(paho.CallbackAPIVersion.VERSION2, **options)
    client.max_queued_messages_set(0)
    answers: queue.Queue[Any] = queue.Queue()

    def note(_: object, __: object, ___: int, reason: object, properties: object) -> None:
        answers.put((reason, properties))

    client.on_publish = note
    client.connect("127.0.0.1", relay.port)
    client.loop_start()
    return client, answers


@pytest.mark.parametrize("version", [4, 5])
async def test_paho_hears_of_it_with_mqtt_5_and_goes_on_without(version: int) -> None:
    async with refusing(strangers=PAHO) as relay:
        async with connected(relay.port, "archive", receive_buffer=LITTLE) as archive:
            await archive.subscribe("t")
            client, answers = await trio.to_thread.run_sync(paho_client, relay, version)
            gone = relay.relay.mqtt.over_limits.totals[OverLimitPolicy.REFUSE]
            try:
                sent = 0
                reasons: list[Any] = []
                with trio.fail_after(SECONDS):
                    while not (gone.refused or gone.shed):
                        client.publish("t", PAYLOAD, 1)
                        sent += 1
                        take = answers.get
                        reasons.append(await trio.to_thread.run_sync(take, True, SECONDS))
                assert len(reasons) == sent
                last, properties = reasons[-1]
                if version == 5:
                    assert last == "Quota exceeded"
                    assert "of yours" in properties.ReasonString
                    assert (gone.refused, gone.shed) == (1, 0)
                else:
                    assert (gone.refused, gone.shed) == (0, 1)
                assert client.is_connected()
            finally:
                client.disconnect()
                await trio.to_thread.run_sync(client.loop_stop)
            await until(lambda: "pub" not in relay.relay.mqtt.sessions)
            relay.audit()
        await deserted(relay)
