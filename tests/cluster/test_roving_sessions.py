"""All that holds for a session on one relay holds where its client comes by another one."""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest

from tests.cluster.test_relays import knows_another
from tests.nats_servers import NatsServer, needs_nats
from tests.relay.brokers import Broker, Visitor
from tests.relay.test_sessions import *  # noqa: F403 (the tests themselves)
from tests.transports.peers import BareClient, RunningRelay, running, until

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
    names: set[str] = attrs.field(factory=set)

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
