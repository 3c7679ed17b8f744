"""Relays of a cluster, and MQTT clients that know nothing of it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from clearfunds.access import Tenant
from clearfunds.accounts import Tracer
from clearfunds.transports._trace_label import label_of
from clearfunds.transports.mqtt import MqttClient, Will, open_mqtt
from tests.nats_servers import NatsServer, needs_nats
from tests.programs import needs
from tests.transports.peers import RunningRelay, connected, run_fed, running, until

pytestmark = needs_nats


@asynccontextmanager
async def cluster(nats: NatsServer, **settings: Any) -> AsyncGenerator[list[RunningRelay]]:
    """Run two relays that know each other, for the length of a block."""
    settings |= {"cluster": nats.url, "grace": 1.0}
    async with running(name="r1", **settings) as one, running(name="r2", **settings) as two:
        for relay in (one, two):
            await knows_another(relay)
        yield [one, two]


async def knows_another(relay: RunningRelay) -> None:
    """Wait until another relay has answered this one."""
    place = relay.relay.cluster
    assert place is not None
    await until(lambda: [peer for peer in place.peers.values() if peer.hop.is_known])


async def goes_there(relay: RunningRelay, topic: str, count: int = 1) -> None:
    """Wait until publications on a topic have so many recipients here."""
    await until(lambda: len(relay.relay.dataspace.route_of(topic).plain.holders) == count)


@asynccontextmanager
async def client(relay: RunningRelay, name: str, **more: Any) -> AsyncGenerator[MqttClient]:
    async with open_mqtt("127.0.0.1", relay.port, client_id=name, **more) as found:
        yield found


def owed(relay: RunningRelay, account: str) -> dict[str, int]:
    """Return what an account owes, in items by holder."""
    return {
        each.holder: each.items
        for each in relay.ledger.matrix()
        if each.account.rpartition("/")[2] == account
    }


@pytest.mark.parametrize("version", ["3.1.1", "5"])
async def test_every_quality_of_service_and_wildcards_cross(nats: NatsServer, version: str) -> None:
    async with cluster(nats) as (one, two):
        async with (
            client(two, "reader", version=version) as reader,
            client(one, "writer", version=version) as writer,
        ):
            await reader.subscribe([("a/+/c", 2), ("b/#", 1), ("d", 0)])
            for topic in ("a/x/c", "b", "d"):
                await goes_there(one, topic)
            for qos in (0, 1, 2):
                for topic in ("a/x/c", "b", "d", "nobody"):
                    await writer.publish(topic, b"%d" % qos, qos=qos)
            got = [await reader.receive() for _ in range(9)]
            assert {(p.topic, p.payload, p.qos) for p in got} == {
                (topic, b"%d" % qos, min(qos, granted))
                for topic, granted in (("a/x/c", 2), ("b", 1), ("d", 0))
                for qos in (0, 1, 2)
            }
            # One publisher's publications of a topic stay in order.
            assert [p.payload for p in got if p.topic == "a/x/c"] == [b"0", b"1", b"2"]
        await until(lambda: one.statistics().debt_items == two.statistics().debt_items == 0)


@needs("mosquitto_pub", "mosquitto_sub")
async def test_mosquittos_clients_and_a_long_run(nats: NatsServer) -> None:
    lines = b"".join(b"line %d\n" % n for n in range(2_000))
    async with cluster(nats) as (one, two), trio.open_nursery() as nursery:
        found: list[bytes] = []

        async def listen() -> None:
            argv = ["mosquitto_sub", "-p", str(two.port), "-t", "log/#", "-C", "2000", "-W", "30"]
            found.append((await trio.run_process(argv, capture_stdout=True)).stdout)

        nursery.start_soon(listen)
        await goes_there(one, "log/x")
        await run_fed(["mosquitto_pub", "-p", str(one.port), "-t", "log/x", "-l"], lines)
        await until(lambda: found, 30)
        assert found == [lines]


async def test_a_stuck_subscriber_of_another_relay_holds_up_its_publisher_alone_and_is_named(
    nats: NatsServer,
) -> None:
    settings = {"limit_items": 200, "profile": "lossless", "patience": 30.0}
    async with (
        cluster(nats, **settings) as (one, two),
        client(two, "fast") as fast,
        client(one, "newsroom") as newsroom,
        client(one, "sports") as sports,
        connected(two.port, "archive", receive_buffer=4096) as archive,
    ):
        await archive.subscribe("news")
        await fast.subscribe("sport")
        await goes_there(one, "news")
        await goes_there(one, "sport")
        async with trio.open_nursery() as nursery:

            async def flood() -> None:
                while True:
                    await newsroom.publish("news", bytes(4_000))

            nursery.start_soon(flood)
            await until(lambda: [each.account.name for each in one.ledger.waiters])
            began = trio.current_time()
            await until(
                lambda: [name.endswith("/archive") for name in owed(one, "newsroom")] == [True]
            )
            assert trio.current_time() - began < 2
            assert all(each.account.name.endswith("newsroom") for each in one.ledger.waiters)
            for number in range(1_000):
                await sports.publish("sport", b"%d" % number)
            for number in range(1_000):
                with trio.fail_after(5):
                    assert (await fast.receive()).payload == b"%d" % number
            nursery.cancel_scope.cancel()


async def test_a_trace_goes_on_at_the_other_relay(nats: NatsServer) -> None:
    async with (
        cluster(nats) as (one, two),
        client(two, "fast") as fast,
        client(two, "stored") as stored,
        client(one, "newsroom") as newsroom,
    ):
        await fast.subscribe("news/#")
        await stored.subscribe("news/#", 1)
        await goes_there(one, "news/a")
        for qos in (0, 1):
            with Tracer(one.ledger, one.account("newsroom").name.__eq__, label=label_of) as tracer:
                await newsroom.publish("news/a", b"x", qos)
                for subscriber in (fast, stored):
                    assert (await subscriber.receive()).payload == b"x"
                with trio.fail_after(10):
                    trace = await tracer.next()
            (loan,) = trace.root.loans
            assert loan.holder == "r2"
            (there,) = loan.there
            assert there.trace is not None
            part = there.trace
            assert part.complete
            assert part.account == f"via/r1/{one.account('newsroom').name}"
            assert part.root.labels == ("news/a",)
            kinds = {each.holder.rpartition("/")[2]: each.kind for each in part.root.loans}
            assert kinds == {"fast": "outlet", "stored": "outlet" if qos == 0 else "inflight"}
            assert there.on_the_way is not None
            assert 0 < there.on_the_way < trace.seconds < 5
        assert not one.ledger.traces
        await until(lambda: not two.ledger.traces)


async def test_a_trace_names_the_holder_of_the_other_relay_that_is_stuck(
    nats: NatsServer,
) -> None:
    async with (
        cluster(nats, profile="lossless", patience=30.0) as (one, two),
        client(one, "newsroom") as newsroom,
        connected(two.port, "archive", receive_buffer=4096) as archive,
    ):
        await archive.subscribe("news")
        await goes_there(one, "news")
        async with trio.open_nursery() as nursery:

            async def flood() -> None:
                while True:
                    await newsroom.publish("news", bytes(4_000))

            nursery.start_soon(flood)
            await until(lambda: two.ledger.statistics().debt_items > 100)
            with Tracer(one.ledger, one.account("newsroom").name.__eq__) as tracer:
                await until(lambda: one.ledger.traces)
                await trio.sleep(1)
                (trace,) = tracer.rest()
            (loan,) = trace.root.loans
            parts = [each.trace for each in loan.there if each.trace is not None]
            assert parts
            held = {
                each.holder.rpartition("/")[2]
                for part in parts
                for delivery in part.loans()
                for each in delivery.held
            }
            assert held == {"archive"}
            nursery.cancel_scope.cancel()


async def test_what_crosses_is_charged_below_its_tenant_there(nats: NatsServer) -> None:
    tenants = (
        Tenant(name="press", client=("press-*",), items=1_000),
        Tenant(name="shop", client=("shop-*",), items=1_000),
    )
    async with (
        cluster(nats, tenant=tenants) as (one, two),
        client(one, "press-1") as press,
        connected(two.port, "stuck", receive_buffer=4096) as stuck,
    ):
        await stuck.subscribe("news")
        await goes_there(one, "news")
        for _ in range(200):
            await press.publish("news", bytes(40_000))
        await until(lambda: two.ledger.accounts["tenant/press"].debt_items > 50)
        assert two.ledger.accounts["tenant/shop"].debt_items == 0


async def test_without_a_cluster_nothing_of_it_is_there() -> None:
    async with running() as relay:
        assert relay.relay.cluster is None
        assert relay.relay.dataspace.routes.on_change is None


async def test_a_client_identifier_has_one_connection_in_the_whole_cluster(
    nats: NatsServer,
) -> None:
    async with (
        cluster(nats) as (one, two),
        connected(one.port, "same"),
        client(two, "same") as after,
    ):
        await until(lambda: not one.relay.mqtt.sessions)
        await after.subscribe("t")
        await after.publish("t", b"x")
        assert (await after.receive()).payload == b"x"


async def test_the_will_of_a_client_reaches_subscribers_of_the_other_relay(
    nats: NatsServer,
) -> None:
    async with cluster(nats) as (one, two), client(two, "reader") as reader:
        await reader.subscribe("gone")
        await goes_there(one, "gone")
        async with connected(one.port, "mortal", will=Will("gone", b"bye")):
            pass
        assert (await reader.receive()).payload == b"bye"


async def test_retained_messages_are_known_on_every_relay(nats: NatsServer) -> None:
    async with cluster(nats) as (one, two):
        here, there = (relay.relay.dataspace.retained for relay in (one, two))
        async with client(one, "writer", version="5") as writer:
            await writer.publish("state/a", b"1", qos=1, retain=True)
            await writer.publish("state/b", b"2", retain=True)
            await until(lambda: there.get("state/a") and there.get("state/b"))
            assert there.get("state/a") == here.get("state/a")
            await writer.publish("state/b", b"", retain=True)
            await until(lambda: not there.get("state/b"))
            async with client(two, "late") as late:
                await late.subscribe("state/#", 1)
                found = await late.receive()
                assert (found.topic, found.payload, found.retain) == ("state/a", b"1", True)
                # One who has subscribed already gets it once, as any other message.
                await goes_there(one, "state/a")
                await writer.publish("state/a", b"3", qos=1, retain=True)
                found = await late.receive()
                assert (found.payload, found.retain) == (b"3", False)
                await writer.publish("state/a", b"", retain=True)
                assert (await late.receive()).payload == b""
        await until(lambda: not len(here) and not len(there))


async def test_a_relay_that_comes_later_has_what_is_retained_and_brings_its_own(
    own_nats: NatsServer, tmp_path: Path
) -> None:
    more: dict[str, Any] = {"grace": 1.0, "store": tmp_path}
    async with running(**more) as alone, client(alone, "writer") as writer:
        for topic in ("mine", "cleared", "changed"):
            await writer.publish(topic, b"old", qos=1, retain=True)
    async with running(cluster=own_nats.url, name="r1") as one:
        retained = one.relay.dataspace.retained
        async with client(one, "writer") as writer:
            for payload in (b"x", b""):
                await writer.publish("cleared", payload, qos=1, retain=True)
            await writer.publish("changed", b"new", qos=1, retain=True)
        await trio.sleep(0.5)  # and so it has been written
        async with running(cluster=own_nats.url, name="r2", **more) as two:
            await until(lambda: retained.get("mine"))
            values = {
                each.topic: each.payload for each in two.relay.dataspace.retained.matching("#")
            }
            assert values == {"mine": b"old", "changed": b"new"}
