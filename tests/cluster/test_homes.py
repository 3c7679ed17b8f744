"""Persistent sessions of a cluster: each has a home, and its client may connect to any relay."""

from __future__ import annotations

from tests.cluster.test_relays import client, cluster, goes_there
from tests.nats_servers import NatsServer, needs_nats

pytestmark = needs_nats


async def test_a_client_finds_its_session_at_another_relay(nats: NatsServer) -> None:
    async with cluster(nats) as (one, two):
        async with client(one, "reader", clean_session=False) as reader:
            await reader.subscribe("t/#", 2)
            await goes_there(two, "t/1")
        async with client(two, "writer") as writer:
            for number in range(10):
                await writer.publish(f"t/{number}", b"%d" % number, qos=1 + number % 2)
        async with client(two, "reader", clean_session=False) as reader:
            assert reader.session_present
            got = [await reader.receive() for _ in range(10)]
            assert [p.payload for p in got] == [b"%d" % n for n in range(10)]
            await reader.publish("t/x", b"own", qos=2)
            assert (await reader.receive()).payload == b"own"
            assert one.relay.mqtt.sessions.keys() == {"reader"}
