"""The virtual hosts of a relay's AMQP clients: one for each tenant, and one for the others.

A client is on the host of its tenant, which it may call by the tenant's name, or `/` as clients do
that are not told otherwise. Durable queues are in the relay's store, if it has one. Other queues
are in RAM; their messages at rest count against `--kept-limit`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Final, NoReturn

import trio

from ..accounts import NO_LIMIT, Account, Limit
from ..accounts._cooperative import with_pauses
from ..dataspace.exchanges import PREFIX, HostQueue, QueueMaker, VirtualHost
from ..dataspace.queues import QueueSums
from ..persistence import RamShelves, Shelves
from ..transports._scheduler import SLICE_SECONDS
from ._persistence import RAM_ACCOUNT, REPLICATED
from ._settings import RelaySettings

if TYPE_CHECKING:
    from collections.abc import Generator

    from ..access._tenants import Peer
    from ..dataspace.exchanges import Properties
    from ..transports.mqtt.server._server import MqttServer

DEFAULT_HOST: Final = "/"
"""The virtual host that AMQP clients ask for if they are not told otherwise."""

TICK_SECONDS: Final = 0.05
"""Seconds between two looks at what is due in the queues, at least: RabbitMQ's timers are exact to
a millisecond, and applications set times to live of seconds."""
TICK_A_QUEUE: Final = 1e-4
"""Seconds more for each queue: a look costs some microseconds a queue, so 2 % of a core."""


class VirtualHosts:
    """The virtual hosts of a relay.

    Args:
        mqtt: The relay's MQTT side, whose topics are those of `amq.topic`.
        persistence: The relay's store, or what it has instead.
        ram: The shelves of queues that are in RAM.
        settings: The relay's settings.
        properties: Reads and writes the properties of messages.

    Attributes:
        by_name: The hosts, by name.
    """

    def __init__(
        self,
        mqtt: MqttServer,
        persistence: Shelves | RamShelves,
        ram: RamShelves,
        settings: RelaySettings,
        properties: Properties,
    ) -> None:
        self._tree = tree = mqtt.tree
        self._mqtt = mqtt
        self._settings = settings
        self._properties = properties
        self._store = persistence if isinstance(persistence, Shelves) else None
        self._ram = ram
        ledger = mqtt.ledger
        sessions = mqtt.persistent_sessions
        assert sessions is not None
        self._at_rest_of = sessions.at_rest_of_tenant
        self._kept = sessions.at_rest
        if self._store is not None:
            limit = Limit(items=None, bytes=settings.kept_limit)
            self._kept = ledger.open(RAM_ACCOUNT, limit=limit, at_rest="ram")
        self._makers: list[QueueMaker] = []
        self.by_name = {DEFAULT_HOST: self._make(DEFAULT_HOST, tree.server)}
        for name, account in tree.tenants.items():
            self.by_name[name] = self._make(name, account)
        values: Mapping[str, bytes] = (
            {} if self._store is None else self._store.store.values(PREFIX)
        )
        for host in self.by_name.values():
            host.recover(values)

    def _make(self, name: str, above: Account) -> VirtualHost:
        settings, mqtt = self._settings, self._mqtt
        tenant = "" if name == DEFAULT_HOST else name
        rules = self._tree.rules
        maker = QueueMaker(
            mqtt.ledger,
            above=self._at_rest_of(tenant),
            limit=NO_LIMIT,
            keeper=self._store,
            ram=self._ram,
            above_ram=self._kept,
            patience=settings.patience,
            wall=mqtt.wall,
        )
        self._makers.append(maker)
        may_use = partial(rules.may_use, tenant) if mqtt.authority.default == "tenant" else None
        return VirtualHost(
            name,
            dataspace=mqtt.dataspace,
            account=mqtt.ledger.open(PREFIX + name, limit=NO_LIMIT, parent=above),
            maker=maker,
            keeper=self._store,
            replicated=settings.store == REPLICATED,
            properties=self._properties,
            may_read=may_use,
            may_publish=may_use,
            wall=mqtt.wall,
        )

    def of(self, name: str, peer: Peer) -> VirtualHost | None:
        """Return the virtual host that a peer calls so; None: it may use none of that name."""
        tenant = self._tree.of(peer).tenant
        own = DEFAULT_HOST if tenant is None else tenant.name
        return self.by_name[own] if name in (own, DEFAULT_HOST) else None

    @property
    def ended(self) -> QueueSums:
        """The counts of the queues that were deleted."""
        found = QueueSums()
        for maker in self._makers:
            found.add_sums(maker.ended)
        return found

    def queues(self) -> Generator[HostQueue]:
        """Yield the queues of all hosts."""
        for host in self.by_name.values():
            for declared in host.queues.values():
                yield declared.queue

    async def run(self) -> NoReturn:
        """Do what is due by time in the queues, until cancelled."""
        flusher = self._mqtt.flusher
        while True:
            count = sum(len(host.queues) for host in self.by_name.values())
            await trio.sleep(TICK_SECONDS + count * TICK_A_QUEUE)
            for host in self.by_name.values():
                if host.queues:
                    await with_pauses(self._tick(host), SLICE_SECONDS)
            await flusher.flush()

    def _tick(self, host: VirtualHost) -> Generator[None, None, None]:
        yield from host.tick_in_steps(self._mqtt.ledger.clock())

    def close(self) -> None:
        """End the queues in this process; what is stored stays."""
        for host in self.by_name.values():
            host.close()
            host.account.close()
        if self._store is not None:
            self._kept.close()
