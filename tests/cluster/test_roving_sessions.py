"""All that holds for a session on one relay holds where its client comes by another one."""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from tests.cluster.test_relays import knows_another
from tests.nats_servers import NatsServer, needs_nats
from tests.programs import needs
from tests.relay.brokers import Broker, Visitor, numbered
from tests.relay.test_session_clients import (
    Publishes,
    Takes,
    breaking_line,
    mosquitto_pub,
    mosquitto_sub,
    paho_publishes,
    paho_takes,
    we_publish,
    we_take,
)
from tests.relay.test_sessions import *  # noqa: F403 (the tests themselves)
from tests.transports.peers import SECONDS, BareClient, RunningRelay, running, until

pytestmark = needs_nats

LAG = 0.1
"""Seconds that a relay may take to say what it has to."""


class RovingVisitor(Visitor):
    """A client whose subscriptions both relays know when it has them."""

    def __init__(self, client: BareClient, relays: tuple[RunningRelay, ...]) -> None:
        super().__init__(client, LAG)
        self._relays = relays

    async def subscribe(self, *filters: str, qos: int = 1) -> None:
        await super().subscribe(*filters, qos=qos)
        await until(lambda: all(self._is_known(text) for text in filters))

    def _is_known(self, text: str) -> bool:
        places = [relay.relay.cluster for relay in self._relays]
        peers = [peer for place in places if place is not None for peer in place.peers.values()]
        return any(text in peer.filters for peer in peers)


@attrs.define
class Roving(Broker):
    """A server whose clients come back by another one, which the first visit does not use."""

    relays: tuple[RunningRelay, ...] = ()
    names: set[str] = attrs.field(factory=set[str])

    @asynccontextmanager
    async def visit(self, name: str = "", **how: Any) -> AsyncGenerator[Visitor]:
        name = name or self.name
        relay = self.relays[name in self.names]
        if not name.endswith("-publisher"):
            self.names.add(name)
        async with Broker(relay.port, self.window, self.prefix).visit(name, **how) as visitor:
            yield RovingVisitor(visitor.client, self.relays)


@pytest.fixture(params=["ram", "store"])
async def broker(
    nats: NatsServer, tmp_path: Path, request: pytest.FixtureRequest
) -> AsyncGenerator[Broker]:
    stores = [tmp_path / name if request.param == "store" else None for name in ("r1", "r2")]
    how: dict[str, Any] = {"cluster": nats.url, "grace": 1.0, "fsync_interval": 0.0}
    prefix = f"clearfunds-{uuid.uuid4().hex}"
    async with (
        running(name="r1", store=stores[0], **how) as one,
        # The files of the first one's store are open by then.
        running(name="r2", store=stores[1], strangers=8, **how) as two,
    ):
        for relay in (one, two):
            await knows_another(relay)
        window = one.relay.settings.max_inflight
        yield Roving(one.port, window, prefix, lag=LAG, relays=(one, two))
        one.audit()
        two.audit()


@pytest.mark.parametrize(("qos", "publishes"), [(1, paho_publishes), (2, we_publish)])
@pytest.mark.parametrize("takes", [we_take, paho_takes])
async def test_nothing_is_lost_over_a_relay_that_has_not_the_session_and_a_line_that_breaks(
    broker: Roving, qos: int, publishes: Publishes, takes: Takes
) -> None:
    payloads = numbered(120)
    taken: list[bytes] = []
    publisher = f"{broker.prefix}-teller"
    for name in (broker.name, publisher):
        async with broker.visit(name, present=False, leave=True) as client:
            await client.subscribe(broker.topic if name == broker.name else "other", qos=qos)
    seed = f"{qos} {publishes.__name__} {takes.__name__}"
    async with breaking_line(broker.relays[1].port, 40, seed) as line:
        with trio.fail_after(2 * SECONDS):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(publishes, line.port, publisher, broker.topic, payloads, qos)
                nursery.start_soon(takes, line.port, broker.name, len(payloads), taken)
        assert line.broken > 10
    if qos == 2:
        assert taken == payloads
    else:
        assert list(dict.fromkeys(taken)) == payloads


@needs("mosquitto_pub", "mosquitto_sub")
async def test_messages_wait_for_mosquitto_sub_at_another_relay(broker: Roving) -> None:
    one, two = (Broker(each.port, broker.window, broker.prefix) for each in broker.relays)
    assert await mosquitto_sub(one, 2, "-E") == []
    payloads = numbered(100)
    await mosquitto_pub(one, payloads, 2)
    lines = await mosquitto_sub(two, 2, "-C", "100", "-F", "%q %r %p")
    assert lines == [b"2 0 %s" % payload for payload in payloads]
