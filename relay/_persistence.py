"""Storage of a relay: sessions, queues and retained publications; on disk, or else in RAM."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ..access._admission import Admission
from ..accounts import Account, Ledger, Limit, StuckPolicy
from ..dataspace.exchanges import PREFIX as AMQP_PREFIX
from ..dataspace.exchanges import QueueMaker
from ..dataspace.queues import BackingFactory, Queue, QueueSums
from ..persistence import RamShelves, Shelves, open_ram_shelves, open_shelves
from ..persistence._range_disk import PREFIX as SUBSCRIPTION_PREFIX
from ..persistence._sink_disk import PREFIX as SINK_PREFIX
from ..persistence._spool import forget_spools
from ..ranges.log import RangeSubscription, SubscriptionLimits
from ..ranges.server import Doorkeeper, SubscriptionServer, SubscriptionSettings
from ..ranges.sink import SinkLimits
from ..store import StoreSettings
from ..transports._flusher import Flusher
from ..transports._passed import Noted, PassedTime
from ..transports._settings import PersistenceSettings
from ..transports.mqtt.server._persistent_retained import persist_retained
from ..transports.mqtt.server._persistent_sessions import CLOCK_KEY, PersistentSessions
from ..transports.mqtt.server._server import MqttServer
from ._clustering import replicated_shelves
from ._parts import Parts
from ._settings import RelaySettings

if TYPE_CHECKING:
    from ..transports.amqp import AmqpServer

logger = logging.getLogger("clearfunds.relay")

DISK_ACCOUNT = "disk"
"""The account above those of all queues, for messages at rest on disk. Apart from `server`: bytes
on disk do not count against the limit for RAM."""

REPLICATED = Path("nats")
"""In place of a directory: the store is in JetStream."""

RAM_ACCOUNT = "kept"
"""The same in a relay without a store: for messages at rest in RAM."""


@asynccontextmanager
async def open_persistence(
    settings: RelaySettings, flusher: Flusher, *, stands_in: bool = False
) -> AsyncGenerator[Shelves | RamShelves]:
    """Open the storage of a relay for as long as the block lasts.

    `stands_in`: the relay stands in for another one of its cluster.

    Raises:
        StoreError: If the store cannot be opened.
        ClusterError: If it cannot be opened in JetStream.
    """
    if settings.store is None:
        async with open_ram_shelves(flusher) as ram:
            yield ram
        return
    how = StoreSettings(fsync_interval=settings.fsync_interval)
    async with (
        replicated_shelves(settings, how, flusher, stands_in=stands_in)
        if settings.store == REPLICATED
        else open_shelves(Path(settings.store), how, flusher)
    ) as shelves:
        yield shelves


def store_directory(persistence: Shelves | RamShelves) -> Path | None:
    """Return the directory of a relay's store, or of its copy; None: it has none."""
    return persistence.store.directory if isinstance(persistence, Shelves) else None


def persist_sessions(mqtt: MqttServer, persistence: Shelves | RamShelves, parts: Parts) -> None:
    """Let `mqtt` keep persistent sessions, and restore those that are there already."""
    ledger: Ledger = mqtt.ledger
    at_rest = _at_rest(ledger, persistence, mqtt.settings)
    values = persistence.store.values("mqtt/") if isinstance(persistence, Shelves) else {}
    mqtt.wall = mqtt.dataspace.retained.wall = clock = _clock(values.get(CLOCK_KEY))
    mqtt.persistent_sessions = PersistentSessions(
        mqtt.dataspace,
        persistence,
        mqtt.tree,
        at_rest,
        mqtt.settings,
        outlives=isinstance(persistence, Shelves),
        backing=parts.backing,
        queue=parts.queue,
        wall=clock,
        groups=mqtt.groups,
        authority=mqtt.authority,
    )
    mqtt.persistent_sessions.take_back = mqtt.take_back
    if isinstance(persistence, Shelves):
        forget_spools(persistence)
        persistence.on_trouble = partial(_note_trouble, ledger)
        _note_trouble(ledger, persistence.trouble)
        persist_retained(mqtt.dataspace.retained, ledger, persistence, values)
        mqtt.persistent_sessions.restore(values)
        mqtt.groups.forget_others(persistence)


def _clock(noted: bytes | None) -> PassedTime:
    """Return the clock for expiry in the store; it goes on from where it was noted."""
    if noted is None:
        return PassedTime()
    try:
        return PassedTime(Noted.of(noted))
    except ValueError as exc:
        logger.error(
            "the time of the last run cannot be read, the wall clock is believed: %s",
            exc,
            extra={"event": "unreadable", "key": CLOCK_KEY},
        )
        return PassedTime()


def _note_trouble(ledger: Ledger, sentence: str | None) -> None:
    """Show trouble with the store on the pages."""
    if sentence is None:
        ledger.troubles.pop("store", None)
    else:
        ledger.troubles["store"] = sentence


def _at_rest(
    ledger: Ledger, persistence: Shelves | RamShelves, settings: PersistenceSettings
) -> Account:
    if not isinstance(persistence, Shelves):
        return _kept(ledger, settings)
    limit = Limit(items=None, bytes=settings.disk_limit)
    return ledger.open(DISK_ACCOUNT, limit=limit, at_rest="disk")


def _kept(ledger: Ledger, settings: PersistenceSettings) -> Account:
    limit = Limit(items=None, bytes=settings.kept_limit)
    return ledger.open(RAM_ACCOUNT, limit=limit, at_rest="ram")


def has_queues(persistence: Shelves | RamShelves) -> bool:
    """Whether the store has exchanges, queues or bindings of AMQP."""
    return isinstance(persistence, Shelves) and bool(persistence.store.values(AMQP_PREFIX))


@asynccontextmanager
async def open_ram_beside(
    persistence: Shelves | RamShelves, flusher: Flusher
) -> AsyncGenerator[RamShelves]:
    """Open shelves in RAM for queues that are in no store, for as long as the block lasts."""
    if isinstance(persistence, RamShelves):
        yield persistence
        return
    async with open_ram_shelves(flusher) as ram:
        yield ram


class HostQueues:
    """The queues of the virtual hosts of `amqp`, and where their messages are at rest.

    Queues that are not durable, and all of a relay without a store, are in RAM: their messages at
    rest count against `--kept-limit`.

    Args:
        amqp: The AMQP side.
        persistence: The store.
        ram: The shelves of queues that are in RAM.
        at_rest_of: Returns the account above those of a tenant's queues that are in the store.
        backing: The paging policy.
    """

    def __init__(
        self,
        amqp: AmqpServer,
        persistence: Shelves | RamShelves,
        ram: RamShelves,
        at_rest_of: Callable[[str], Account],
        backing: BackingFactory,
    ) -> None:
        self._amqp = amqp
        self._keeper = persistence if isinstance(persistence, Shelves) else None
        self._ram = ram
        self._at_rest_of = at_rest_of
        self._backing = backing
        self._own: Account | None = None
        if self._keeper is not None:
            # A relay without a store has one already.
            self._own = _kept(amqp.ledger, amqp.settings)
        self._makers: list[QueueMaker] = []

    def maker(self, host: str) -> QueueMaker:
        """Return what makes the queues of a virtual host."""
        amqp, settings = self._amqp, self._amqp.settings
        above = self._at_rest_of(host)
        maker = QueueMaker(
            amqp.ledger,
            above=above,
            limit=Limit(items=None, bytes=settings.queue_disk_limit),
            keeper=self._keeper,
            ram=self._ram,
            above_ram=above if self._own is None else self._own,
            backing=self._backing,
            patience=settings.patience,
            policy=settings.undroppable_policy,
            wall=amqp.wall,
        )
        self._makers.append(maker)
        return maker

    def open(self, *, replicated: bool) -> None:
        """Make the virtual hosts, with what the store has of them."""
        keeper = self._keeper
        self._amqp.open_hosts(
            self.maker,
            keeper=keeper,
            replicated=replicated,
            values=None if keeper is None else keeper.store.values(AMQP_PREFIX),
        )

    @property
    def ended(self) -> QueueSums:
        """The counts of the queues that were deleted."""
        found = QueueSums()
        for maker in self._makers:
            found.add_sums(maker.ended)
        return found

    def queues(self) -> Iterator[Queue]:
        """Yield the queues."""
        for host in self._amqp.hosts.values():
            for declared in host.queues.values():
                yield declared.queue

    def close(self) -> None:
        """Release its account, when the virtual hosts are closed."""
        if self._own is not None:
            self._own.close()


def persist_queues(
    amqp: AmqpServer,
    mqtt: MqttServer,
    persistence: Shelves | RamShelves,
    ram: RamShelves,
    parts: Parts,
) -> HostQueues:
    """Make the virtual hosts of `amqp`, and restore what they have in the store.

    It shares the clock, the checks of passwords and the over-limit policies with MQTT.
    """
    sessions = mqtt.persistent_sessions
    assert sessions is not None
    amqp.log_ins, amqp.over_limits, amqp.wall = mqtt.log_ins, mqtt.over_limits, mqtt.wall
    queues = HostQueues(amqp, persistence, ram, sessions.at_rest_of_tenant, parts.backing)
    queues.open(replicated=mqtt.settings.store == REPLICATED)
    return queues


def has_subscriptions(persistence: Shelves | RamShelves) -> bool:
    """Whether there are durable subscriptions of readers of ranges, or writers of batches."""
    return isinstance(persistence, Shelves) and bool(
        persistence.store.values(SUBSCRIPTION_PREFIX) or persistence.store.values(SINK_PREFIX)
    )


def subscription_server(
    mqtt: MqttServer,
    persistence: Shelves | RamShelves,
    admission: Admission,
    *,
    make: Callable[..., RangeSubscription] = RangeSubscription,
) -> SubscriptionServer:
    """Make the server for readers of ranges; see `ranges.server`.

    With a store, the state of durable subscriptions there is restored. `make` makes a subscription.
    Users are those of MQTT, with their passwords or certificates.
    """
    settings = mqtt.settings
    shelves = persistence if isinstance(persistence, Shelves) else None
    return SubscriptionServer(
        mqtt.dataspace,
        mqtt.flusher,
        mqtt.account,
        SubscriptionSettings(
            max_connections=settings.max_connections,
            connect_timeout=settings.connect_timeout,
            idle_timeout=settings.idle_timeout,
            patience=settings.patience,
            stuck=settings.stuck,
            topics=mqtt.topics,
            max_stage_size=settings.max_packet_size + (64 << 10),
            max_range_names=settings.max_range_names,
            range_owner=settings.range_owner,
            sinks=SinkLimits(
                batch_bytes=settings.sink_batch_limit,
                grace=settings.sink_grace,
                expiry=settings.sink_expiry,
                max_sinks=settings.max_sinks,
                patience=settings.patience,
                stuck=settings.undroppable_policy,
            ),
        ),
        admission,
        limits=SubscriptionLimits(
            max_disk_bytes=settings.reader_disk_limit,
            patience=settings.reader_patience,
            stuck=StuckPolicy(settings.reader_stuck),
            retain_limit=settings.retain_limit,
        ),
        shelves=shelves,
        disk_account=None
        if shelves is None or mqtt.persistent_sessions is None
        else mqtt.persistent_sessions.at_rest,
        limit_of=settings.limit_of,
        tree=mqtt.tree,
        make=make,
        door=Doorkeeper(
            passwords=settings.passwords,
            tokens=settings.tokens,
            anonymous=settings.anonymous,
            certificates=settings.tls is not None and settings.tls.asks,
            log_ins=mqtt.log_ins,
        ),
        disk_of=None
        if mqtt.persistent_sessions is None
        else mqtt.persistent_sessions.at_rest_of_peer,
        authority=mqtt.authority,
    )
