"""What the drawer of the live page has of the clients of a relay."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import trio

from clearfunds.relay._client_facts import SUBSCRIPTIONS_MAX, facts_of
from tests.relay.brokers import Broker
from tests.transports.peers import RunningRelay, connected, running, until

if TYPE_CHECKING:
    from pathlib import Path


async def ask(relay: RunningRelay, name: str) -> Any:
    """Ask a relay for everything about one name."""
    assert relay.addresses.http is not None
    host, port = relay.addresses.http.removeprefix("http://").rstrip("/").split(":")
    head = f"GET /live/about?name={quote(name)} HTTP/1.1\r\nHost: {host}\r\n"
    async with await trio.open_tcp_stream(host, int(port)) as stream:
        await stream.send_all(f"{head}Connection: close\r\n\r\n".encode())
        data = b"".join([bytes(piece) async for piece in stream])
    return json.loads(data.partition(b"\r\n\r\n")[2])


async def test_an_mqtt_client_with_its_address_its_user_and_its_subscriptions() -> None:
    async with running(http="127.0.0.1:0") as relay:
        async with connected(relay.port, "archive", username="press") as client:
            for number in range(SUBSCRIPTIONS_MAX + 3):
                await client.subscribe(f"topic/{number}")
            name = f"mqtt:{relay.port}/press/archive"
            seen = await ask(relay, name)
            facts = seen["client"]
            assert facts["address"].startswith("127.0.0.1:")
            assert (facts["protocol"], facts["user"]) == ("MQTT 3.1.1", "press")
            assert facts["subscriptions"][:2] == ["topic/0", "topic/1"]
            assert len(facts["subscriptions"]) == SUBSCRIPTIONS_MAX
            assert facts["subscriptions_more"] == 3
            assert 0 <= time.time() - facts["since"] < 60
            assert seen["account"]["name"] == seen["holder"]["name"] == name
            assert [(each["what"], each["whom"]) for each in seen["timeline"]] == [
                ("connected", facts["address"])
            ]
        await until(lambda: facts_of(relay.relay, name) is None)
        seen = await ask(relay, name)
        assert (seen["client"], seen["account"], seen["holder"]) == (None, None, None)
        assert [each["what"] for each in seen["timeline"]] == ["left", "connected"]


async def test_a_client_that_is_away_has_its_subscriptions(tmp_path: Path) -> None:
    async with running(http="127.0.0.1:0", store=str(tmp_path / "store")) as relay:
        broker = Broker(relay.port, 20, "kept", lag=0.1)
        async with broker.visit(leave=True) as client:
            await client.subscribe(broker.topic)
        assert relay.relay.mqtt.persistent_sessions is not None
        (kept,) = relay.relay.mqtt.persistent_sessions.by_id.values()
        await until(lambda: kept.left is not None)
        for name in (kept.name, kept.queue.name):
            facts = facts_of(relay.relay, name)
            assert facts is not None
            assert facts["subscriptions"] == [broker.topic]
            assert facts["address"] is None
            assert facts["away_since"] == kept.left


async def test_who_is_cut_off_has_it_in_the_timeline_with_whom_it_blocked() -> None:
    from tests.transports.peers import frames

    async with (
        running(
            http="127.0.0.1:0", limit_items=50, profile="lossless", patience=1.5, grace=0.1
        ) as relay,
        connected(relay.port, "archive", receive_buffer=4096) as archive,
        connected(relay.port, "pub") as pub,
    ):
        await archive.subscribe("orders/#")
        timelines, now = relay.relay.ledger.timelines, relay.relay.ledger.clock

        def happened(client: str) -> list[str]:
            name = f"mqtt:{relay.port}/-/{client}"
            return [each.what for each in timelines.of(name, now())]

        async with trio.open_nursery() as nursery:

            async def publish() -> None:
                run = frames([("orders/new", bytes(2000))] * 20)
                while True:
                    await pub.stream.send_all(run)
                    await trio.sleep(0.01)

            nursery.start_soon(publish)
            await until(lambda: "given_up" in happened("archive"))
            await until(lambda: "waited" in happened("pub"))
            nursery.cancel_scope.cancel()
        await until(lambda: "left" in happened("archive"))
        assert sorted(happened("archive")) == ["blocked", "connected", "given_up", "left"]
