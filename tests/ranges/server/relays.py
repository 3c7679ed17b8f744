"""A relay for readers of ranges and MQTT clients, in this process, for the length of a block."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, TypeVar

import attrs
import trio

from clearfunds.accounts import Account, Ledger, Limit, Quota, watch_patience
from clearfunds.dataspace import Dataspace
from clearfunds.persistence import Shelves
from clearfunds.ranges.client import RangeReader, SinkWriter, Ticket
from clearfunds.ranges.log import RangeSubscription, SubscriptionLimits
from clearfunds.ranges.server import SubscriptionServer, SubscriptionSettings
from clearfunds.ranges.wire import DiskError
from clearfunds.store import Store
from clearfunds.transports import (
    Flusher,
    Listener,
    ListenURL,
    ServerSettings,
    open_flusher,
    open_listeners,
)
from clearfunds.transports.mqtt.server._server import MqttServer

T = TypeVar("T")

HOST = "127.0.0.1"


@attrs.define(eq=False)
class Relay:
    """What runs."""

    ledger: Ledger
    dataspace: Dataspace
    flusher: Flusher
    server: SubscriptionServer
    mqtt: MqttServer
    port: int
    mqtt_port: int
    readers: list[RangeReader | SinkWriter] = attrs.field(factory=list[RangeReader | SinkWriter])

    async def attach(self, name: str = "s", **options: Any) -> RangeReader:
        """Attach a reader, by default to everything under `a`."""
        options.setdefault("filters", ["a/#"])
        options.setdefault("timeout", 10)
        reader = await blocking(RangeReader, HOST, self.port, name, **options)
        self.readers.append(reader)
        return reader

    async def join(self, ticket: Ticket, seconds: float = 10) -> RangeReader:
        """Let a reader read along."""
        reader = await blocking(RangeReader.join, HOST, self.port, ticket, timeout=seconds)
        self.readers.append(reader)
        return reader

    def subscription(self, name: str = "s") -> RangeSubscription:
        return self.server.subscriptions.get(name)

    def client(self, client_id: str) -> Account:
        account = self.mqtt.sessions[client_id].account
        assert account is not None
        return account

    def audit(self) -> None:
        self.ledger.audit()
        assert self.server.counters.internal_errors == self.mqtt.counters.internal_errors == 0


async def blocking(function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """Run what blocks in a thread; a test that is cancelled does not wait for it."""
    with trio.fail_after(30):
        return await trio.to_thread.run_sync(
            partial(function, *args, **kwargs), abandon_on_cancel=True
        )


@asynccontextmanager
async def running(
    *,
    mqtt_limit: Limit | None = None,
    limits: SubscriptionLimits | None = None,
    store: Store | None = None,
    port: int = 0,
    disk_limit: int = 1 << 30,
    quota: Quota | None = None,
    limit_of: Callable[..., Limit] = lambda *_: Limit(),
    **settings: Any,
) -> AsyncGenerator[Relay]:
    """Run a relay; at the end nothing may be owed."""
    ledger = Ledger(quota=quota)
    dataspace = Dataspace(ledger)
    server_account = ledger.open("server")
    disk_account: Account | None = None
    shelves: Shelves | None = None
    async with open_flusher() as flusher, trio.open_nursery() as nursery:
        if store is not None:
            disk_account = ledger.open("disk", limit=Limit(items=None, bytes=disk_limit))
            soon = trio.lowlevel.current_trio_token().run_sync_soon
            shelves = Shelves(store, flusher, nursery, soon)
        server = SubscriptionServer(
            dataspace,
            flusher,
            server_account,
            SubscriptionSettings(**settings),
            limits=limits,
            shelves=shelves,
            disk_account=disk_account,
            limit_of=limit_of,
        )
        within = mqtt_limit or Limit()
        own = ServerSettings(limit_items=within.items, limit_bytes=within.bytes)
        mqtt = MqttServer(dataspace, flusher, server_account, own)
        handlers: list[tuple[str, Any]] = [("subscribe", server), ("mqtt", mqtt)]
        listeners: list[Listener] = []
        for protocol, side in handlers:
            wanted = port if side is server else 0
            (listener,) = await open_listeners(ListenURL(protocol, "tcp", HOST, wanted))
            listeners.append(listener)
            nursery.start_soon(listener.serve, partial(side.handle, listener=listener.label))
            nursery.start_soon(side.keep_time)
        nursery.start_soon(watch_patience, ledger)
        if store is not None:
            nursery.start_soon(partial(trio.to_thread.run_sync, store.run))
        ports = [listener.url.port for listener in listeners]
        relay = Relay(ledger, dataspace, flusher, server, mqtt, ports[0], ports[1])
        try:
            yield relay
            relay.audit()
        finally:
            for reader in relay.readers:
                reader.close()
            for listener in listeners:
                listener.close()
            server.stop()
            if server.disk is not None:
                server.disk.write()
                with contextlib.suppress(DiskError):
                    await server.disk.synced(5)
            server.close()
            if store is not None:
                store.stop()
            nursery.cancel_scope.cancel()
    ledger.audit()
    assert ledger.statistics().debt_items == 0, ledger.matrix()
