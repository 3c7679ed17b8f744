"""The relay: listeners, a dataspace, accounts and a page of metrics, in one process."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final

import attrs
import trio

from ..access._account_tree import AccountTree
from ..access._admission import Admission
from ..access._connect_rate import ConnectRate
from ..access._subscription_policies import (
    SubscriptionPolicies,
)
from ..accounts import (
    Alarms,
    Ledger,
    Quota,
    watch_forecasts,
    watch_limits,
    watch_patience,
    watch_slow_waits,
)
from ..dataspace import (
    Dataspace,
)
from ..dataspace.hops import PREFIX as VIA
from ..persistence import Shelves
from ..store import StoreTakenError
from ..transports import TransportError
from ..transports._accept_pace import AcceptPace
from ..transports._flusher import Flusher, open_flusher
from ..transports._input import (
    InputBook,
    InputLimits,
)
from ..transports._link import Link
from ..transports._listener import (
    UNSENT_BYTES,
    Listener,
    ListenError,
    ListenURL,
    ListenURLError,
    open_listeners,
)
from ..transports._one_error import first_of
from ..transports._otel_export import check_exporter, open_provider
from ..transports._server import Server
from ..transports.mqtt.server._server import MqttServer
from ._alarms import AlarmSettings, watch_alarms
from ._authorise import authority_of, check_acl, say_what_is_allowed, say_who_is_let_in
from ._busy_poll import BusyPoll
from ._clustering import check_cluster, cluster_of, collector_of, is_final, share_clients, stand_in
from ._companion import Companion, nothing
from ._loop_alarm import LoopAlarm, watch_loop
from ._memory_holders import MemoryHolders
from ._pages import check_pages, serve_relays_pages
from ._parts import Parts, PartsMaker
from ._persistence import (
    REPLICATED,
    HostQueues,
    has_queues,
    has_subscriptions,
    open_persistence,
    open_ram_beside,
    persist_queues,
    persist_sessions,
    store_directory,
    subscription_server,
)
from ._settings import RelaySettings
from ._throttle_notices import ThrottledNotices, watch_throttled

if TYPE_CHECKING:
    from prometheus_client.registry import Collector

    from ..accounts import Account
    from ..pages import Pages, TransportCounts
    from ..persistence import RamShelves
    from ..ranges.server import SubscriptionServer
    from ..sockets._layer import Connected
    from ..transports.amqp import AmqpServer
    from ..transports.syndicate._server import SyndicateServer
    from ._adjusting import Adjusting

logger = logging.getLogger("clearfunds.relay")

PROTOCOLS = ("mqtt", "syndicate", "subscribe", "amqp")

_EXTRA: Final = ("h11", "pamqp", "preserves", "wsproto")
"""Packages that Syndicate, AMQP and WebSocket need; only the [relay] extra brings them."""

MQTT_SUBPROTOCOL: Final = "mqtt"
"""[MQTT-6.0.0-4]."""

AGAIN_SECONDS: Final = 0.5
"""Seconds before a relay begins anew, in which the one that has its store may end."""

SERVER_ACCOUNT = "server"
"""The account above all connections' accounts."""


@attrs.frozen
class RelayAddresses:
    """The addresses of a relay."""

    listening: tuple[str, ...]
    """The URLs of its listeners, with the real ports."""
    http: str | None
    """The URL of its pages."""


@attrs.frozen
class RelayReport:
    """The end of a relay."""

    unflushed: tuple[str, ...]
    """A sentence for each connection that did not get, or acknowledge, everything it was owed."""


class Relay:
    """One relay; made by `serve_relay`, and shown by its pages.

    Attributes:
        ledger: The ledger of all debt.
        tree: The tree of its clients' accounts.
        cluster: Its place in a cluster; None: it is in none.
        admission: Connection limits.
        authority: Permissions of its clients to publish and read.
        dataspace: The dataspace in which its clients meet.
        persistence: The storage of persistent sessions.
        mqtt: Its MQTT side.
        syndicate: Its Syndicate side; None if nothing listens for that.
        readers: Its side for readers of ranges; None if nothing listens for them, and none has a
            durable subscription, which takes publications whether they can be read or not.
        amqp: Its AMQP side; None if nothing listens for that, and the store has no queues of it.
        queues: The queues of that; likewise.
        input: The book of its peers' unfinished input.
        busy_poll: Keeps the loop awake; None: nothing does.
        notices: Sends notices about throttled clients; None: nothing does.
        paces: How fast each listener accepts.
        loop_alarm: The alarm for a late event loop; None: it is not watched.
        pages: Its pages over HTTP, if it has any.
        adjusting: Changes its settings while it runs; None: nobody does.
    """

    def __init__(
        self,
        settings: RelaySettings,
        flusher: Flusher,
        persistence: Shelves | RamShelves,
        ram: RamShelves,
        make_parts: PartsMaker | None = None,
    ) -> None:
        self.settings = settings
        self.persistence = persistence
        quota = Quota(settings.quota_items, settings.quota_bytes, settings.quota_shapes)
        self.ledger = Ledger(quota=quota)
        self.dataspace = Dataspace(
            self.ledger,
            max_retained=settings.max_retained,
            max_retained_bytes=settings.max_retained_bytes,
            max_shapes=settings.max_shapes,
            cached_routes=settings.cached_routes,
            cached_route_bytes=settings.cached_route_bytes,
            max_filter_shapes=settings.max_filter_shapes,
        )
        server = self.ledger.open(
            SERVER_ACCOUNT,
            limit=settings.server_limit,
            shared=True,
        )
        self.tree = AccountTree(
            server,
            settings.tenant,
            settings.rate,
            latency=settings.limit_latency,
            fixed=settings.account_limits,
        )
        self.admission = admission = Admission(
            settings.max_connections,
            per_address=settings.connections_per_address,
            per_user=settings.connections_per_user,
            rate=ConnectRate(settings.connect_rate, settings.connect_timeout),
        )
        self.authority = authority_of(settings, self.tree.rules)
        # Before anybody subscribes.
        shelves = persistence if isinstance(persistence, Shelves) else None
        self.cluster = cluster_of(
            settings, self.dataspace, self.tree, shelves, flusher, lambda: self.settings.limit
        )
        self.mqtt = MqttServer(self.dataspace, flusher, server, settings, admission, self.tree)
        self.mqtt.authority = self.authority
        parts = Parts() if make_parts is None else make_parts(server)
        persist_sessions(self.mqtt, persistence, parts)
        if self.cluster is not None:
            share_clients(self.cluster, self.mqtt)
        urls = _urls(settings)
        self.readers: SubscriptionServer | None = None
        if any(url.protocol == "subscribe" for url in urls) or has_subscriptions(persistence):
            self.readers = subscription_server(
                self.mqtt, persistence, admission, make=parts.subscription
            )
        self.syndicate: SyndicateServer | None = None
        if _wants(urls, "syndicate"):
            # Imported here: only the [relay] extra brings its dependencies.
            from ..transports.syndicate._server import SyndicateServer

            self.syndicate = SyndicateServer(
                self.dataspace, flusher, server, settings, admission=admission, tree=self.tree
            )
        self.input = InputBook(
            self.ledger,
            InputLimits(
                total=settings.input_limit,
                address=settings.address_input_limit,
                user=settings.user_input_limit,
            ),
        )
        self.amqp: AmqpServer | None = None
        if _wants(urls, "amqp") or has_queues(persistence):
            # Imported here: only the [relay] extra brings its dependencies.
            from ..transports.amqp import AmqpServer

            self.amqp = AmqpServer(
                self.dataspace, flusher, server, settings, admission, self.tree,
                version=version("clearfunds"),
            )  # fmt: skip
        for side in self.sides:
            side.authority = self.authority
            side.input = self.input
            if parts.on_side is not None:
                parts.on_side(side)
        self.queues: HostQueues | None = None
        if self.amqp is not None:
            self.queues = persist_queues(self.amqp, self.mqtt, persistence, ram, parts)
        self.authority.on_change = self._rules_changed
        self.busy_poll = BusyPoll(settings.busy_poll) if settings.busy_poll > 0 else None
        after = settings.throttled_after
        self.notices = None if after is None else ThrottledNotices(self.mqtt, after)
        self.paces: list[AcceptPace] = []
        lag = settings.loop_lag_alarm
        self.loop_alarm = (
            None if lag is None else LoopAlarm(self.ledger, lag, self.paces, self._accounts)
        )
        self.pages: Pages | None = None
        self.adjusting: Adjusting | None = None
        # The metrics of its cluster and its companion.
        self.collectors: list[Collector] = (
            [] if self.cluster is None else [collector_of(self.cluster)]
        )

    def _accounts(self) -> Iterator[Account]:
        """Yield the accounts of all connections that have one yet."""
        for side in self.sides:
            for session in side.open:
                if session.account is not None:
                    yield session.account

    def adjust(self, settings: RelaySettings) -> None:
        """Put other settings into force; only those that are reloadable may differ."""
        self.settings = settings
        self.mqtt.account.limit = settings.server_limit
        self.tree.adjust(settings.tenant, settings.rate, settings.account_limits)
        self.admission.adjust(
            settings.max_connections,
            per_address=settings.connections_per_address,
            per_user=settings.connections_per_user,
            rate=settings.connect_rate,
        )
        if self.cluster is not None:
            for account in self.ledger.accounts.values():
                if account.name.startswith(f"{VIA}/"):
                    account.limit = settings.limit
        for side in self.adjustable_sides:
            side.adjust(settings)
        for queue in () if self.queues is None else self.queues.queues():
            queue.patience = settings.patience

    def _rules_changed(self) -> None:
        self.mqtt.rules_changed()
        if self.readers is not None:
            self.readers.rules_changed()

    @property
    def sides(self) -> list[Server[Any, Any]]:
        """The sides of all protocols that are served."""
        return [side for side in self._all_sides if side is not None]

    @property
    def adjustable_sides(self) -> list[Server[Any, Any]]:
        """The sides of publishers. Readers of ranges have limits and a patience of their own."""
        return [side for side in (self.mqtt, self.syndicate, self.amqp) if side is not None]

    @property
    def named_sides(self) -> dict[str, Server[Any, Any]]:
        """The same, by protocol."""
        sides = zip(PROTOCOLS, self._all_sides, strict=True)
        return {name: side for name, side in sides if side is not None}

    @property
    def _all_sides(self) -> tuple[Server[Any, Any] | None, ...]:
        return self.mqtt, self.syndicate, self.readers, self.amqp

    @property
    def unflushed(self) -> list[str]:
        """A sentence for each connection that ended, while stopping, before everything was sent."""
        unflushed = [sentence for side in self.sides for sentence in side.unflushed]
        if self.readers is not None:
            unflushed += self.readers.writing.unpublished()
        return sorted(unflushed)

    def socks(self) -> dict[str, list[Connected]]:
        """Return the sockets of all connections, by protocol."""
        return {
            name: [session.outlet.sock for session in side.open]
            for name, side in self.named_sides.items()
        }

    def counts(self) -> dict[str, TransportCounts]:
        """Return the counts of each protocol's sessions, for metrics.

        Deliveries, and messages without recipients, are known for the dataspace as a whole only: a
        message may reach peers of either protocol. They are counted once, with MQTT; and so are
        faults of the relay's own that have ended no connection.
        """
        from ..pages import TransportCounts

        statistics = self.dataspace.statistics()
        counts = {
            "mqtt": TransportCounts(
                messages_unroutable_total=statistics.unrouted,
                messages_delivered_total=statistics.deliveries,
                subscriptions=statistics.subscriptions,
                **_session_counts(self.mqtt, self.ledger.faults.unowned),
            )
        }
        if self.syndicate is not None:
            counts["syndicate"] = TransportCounts(
                subscriptions=statistics.observations, **_session_counts(self.syndicate)
            )
        if self.readers is not None:
            counts["subscribe"] = TransportCounts(
                subscriptions=len(self.readers.subscriptions), **_session_counts(self.readers)
            )
        if self.amqp is not None:
            hosts = self.amqp.hosts.values()
            counts["amqp"] = TransportCounts(
                messages_unroutable_total=sum(host.unrouted for host in hosts),
                messages_delivered_total=sum(host.routed for host in hosts),
                subscriptions=sum(
                    len(declared.queue.consumers)
                    for host in hosts
                    for declared in host.queues.values()
                ),
                **_session_counts(self.amqp),
            )
        return counts

    @property
    def internal_errors(self) -> int:
        """The number of the relay's own faults."""
        ended = sum(side.counters.internal_errors for side in self.sides)
        return ended + self.ledger.faults.unowned

    async def accept(self, listeners: list[Listener], connections: trio.Nursery) -> None:
        """Accept on all listeners until cancelled; the connections live in `connections`."""
        async with trio.open_nursery() as nursery:
            for listener in listeners:
                handler, make_link = self._handler(listener), self._link_maker(listener)
                pace = AcceptPace(self.settings.listener_connect_rate)
                self.paces.append(pace)
                nursery.start_soon(listener.accept_into, connections, handler, make_link, pace)

    def _link_maker(self, listener: Listener) -> Callable[[Connected, str], Link]:
        make, tls = self._plain_link_maker(listener), self.settings.tls
        if not listener.url.is_secure:
            return make
        assert tls is not None

        def make_secure(sock: Connected, peer: str) -> Link:
            secure = tls.secure(sock)
            link = make(secure, peer)
            link.secure = secure
            return link

        return make_secure

    def _plain_link_maker(self, listener: Listener) -> Callable[[Connected, str], Link]:
        busy = self.busy_poll
        if listener.url.protocol == "mqtt" and listener.url.is_websocket:
            # Imported here: only the [relay] extra brings its dependencies.
            from ..transports.websocket import WebSocketLink

            return partial(
                WebSocketLink,
                subprotocol=MQTT_SUBPROTOCOL,
                origins=self.settings.origin,
                touch=None if busy is None else busy.touch,
            )
        return Link if busy is None else busy.link

    def _handler(self, listener: Listener) -> Callable[[Link], Awaitable[object]]:
        url = listener.url
        if url.protocol == "mqtt":
            return partial(self.mqtt.handle, listener=listener.label)
        if url.protocol == "subscribe":
            assert self.readers is not None
            return partial(self.readers.handle, listener=listener.label)
        if url.protocol == "amqp":
            assert self.amqp is not None
            return partial(self.amqp.handle, listener=listener.label)
        assert self.syndicate is not None
        return partial(
            self.syndicate.handle,
            listener=listener.label,
            gatekeeper=url.gatekeeper,
            # A port takes both; `ws` says that nothing else is wanted.
            websocket=True if url.is_websocket else None if url.port else False,
        )

    def close(self) -> None:
        """Release the state in this process, when every connection has ended."""
        for side in self.sides:
            side.partings.finish()
        if self.readers is not None:
            self.readers.close()
        if self.amqp is not None:
            self.amqp.close_hosts()
        if self.queues is not None:
            self.queues.close()
        if self.mqtt.persistent_sessions is not None:
            self.mqtt.persistent_sessions.close()
        self.tree.close_all()
        self.authority.close()

    def stop(self) -> None:
        """Read no more; each connection ends when everything it is owed has been sent."""
        if self.pages is not None:
            self.pages.set_stopping()
        for side in self.sides:
            side.stopping = True
        for side in self.sides:
            side.stop()


def _session_counts(side: Server[Any, Any], unowned: int = 0) -> dict[str, int]:
    counters = side.counters
    return {
        "connections": len(side.open),
        "accepted_connections_total": counters.accepted,
        "refused_connections_total": counters.refused,
        "broken_connections_total": counters.protocol_errors,
        "silent_connections_total": counters.timeouts,
        "messages_received_total": counters.received,
        "messages_rejected_total": counters.rejected,
        "received_bytes_total": counters.received_bytes,
        "internal_errors_total": counters.internal_errors + unowned,
    }


def _urls(settings: RelaySettings) -> list[ListenURL]:
    return [ListenURL.parse(url, PROTOCOLS) for url in settings.listen]


def check_relay(settings: RelaySettings) -> list[ListenURL]:
    """Check that settings can be served, before anything is open; return the listeners' URLs.

    Raises:
        ListenURLError: They contradict each other, or a URL is none.
        ListenError: A package is missing.
    """
    urls = _urls(settings)
    if not urls and settings.http is None:
        raise ListenURLError("no listener: give at least one URL to listen on")
    for url in urls:
        if url.gatekeeper and settings.sturdy_key is None:
            msg = (
                f"cannot listen on {str(url)!r}: ?gatekeeper needs a key that checks sturdyrefs: "
                "give --sturdy-key-file (`clearfunds mint --new-key` makes one), or remove "
                "?gatekeeper"
            )
            raise ListenURLError(msg)
        if url.is_secure and settings.tls is None:
            msg = (
                f"cannot listen on {str(url)!r}: TLS needs a certificate: "
                "give --tls-certificate and --tls-key"
            )
            raise ListenURLError(msg)
    check_pages(settings)
    check_acl(settings, urls)
    check_cluster(settings)
    _check_topic_accounts(settings)
    if settings.otel_every is not None:
        check_exporter()
    if any(url.is_websocket for url in urls):
        _check_extra("WebSocket", "..transports.websocket")
    if _wants(urls, "amqp"):
        _check_extra("AMQP", "..transports.amqp")
    if _wants(urls, "syndicate"):
        _check_extra("Syndicate", "..transports.syndicate._server")
        _check_syndicate_policy(settings)
        if settings.sturdy_oid == settings.bind_oid:
            msg = (
                f"--sturdy-oid and --bind-oid are both {settings.bind_oid!r}: a sturdyref stands "
                "for one thing; give the bindspace another name"
            )
            raise ListenURLError(msg)
    return urls


def _check_extra(what: str, module: str) -> None:
    """Check that the packages are installed that a module needs from the [relay] extra.

    Raises:
        ListenError: If not.
    """
    try:
        import_module(module, __package__)
    except ModuleNotFoundError as exc:
        package = (exc.name or "").partition(".")[0]
        if package not in _EXTRA:
            raise
        msg = f'{what} needs {package}, which is not installed: pip install "clearfunds[relay]"'
        raise ListenError(msg) from exc


def _check_topic_accounts(settings: RelaySettings) -> None:
    if settings.topic_account and _moves_limits(settings):
        msg = (
            "--topic-account shares the limit of a connection among its topics, which is not "
            "possible while --limit-latency, or latency= of a tenant, moves it: leave one out"
        )
        raise ListenURLError(msg)


def _moves_limits(settings: RelaySettings) -> bool:
    latencies = (settings.limit_latency, *(tenant.latency for tenant in settings.tenant))
    return any(latency is not None for latency in latencies)


def _check_syndicate_policy(settings: RelaySettings) -> None:
    from ..transports.syndicate._droppable import ABLE

    policies = SubscriptionPolicies(
        settings.subscription_policy, settings.policy_without_spilling, settings.patience
    )
    found = policies.of("syndicate:0/-/0", "0", able=ABLE, topic_of=None)
    if not found.policies <= ABLE:
        msg = (
            f"{settings.stuck} does not apply to Syndicate's peers: their messages have no "
            "topics, and assertions cannot be dropped. Give another policy for these peers, for "
            "example --subscription-policy 'syndicate:* #=drop_oldest', or for all"
        )
        raise ListenURLError(msg)


def _wants(urls: Sequence[ListenURL], protocol: str) -> bool:
    return any(url.protocol == protocol for url in urls)


async def serve_relay(
    settings: RelaySettings,
    *,
    task_status: trio.TaskStatus[RelayAddresses] = trio.TASK_STATUS_IGNORED,
    stop: trio.Event | None = None,
    companion: Companion | None = None,
    make_parts: PartsMaker | None = None,
    adjusting: Adjusting | None = None,
) -> RelayReport:
    """Run a relay until `stop` is set, or until cancelled.

    Args:
        settings: The settings of the relay.
        task_status: Told of the addresses once every listener is open.
        stop: Ends it in an orderly way: it accepts and reads nothing more, sends everything owed
            within `settings.grace` seconds, and then closes every connection.
        companion: A companion that runs beside it: a journal.
        make_parts: Makes the parts of the relay that another program replaces; None: its own.
        adjusting: Changes the relay's settings while it runs; None: nobody does.

    Cancellation: ends it at once; every connection is closed, and nothing is owed afterwards.

    Raises:
        ListenURLError: If a URL is none, or there is nothing to serve it with.
        ListenError: If a listener cannot be opened; none stays open then.
        StoreError: If the store cannot be opened.
        ClusterError: If the cluster cannot be joined.
    """
    urls = check_relay(settings)
    listeners: list[Listener] = []
    try:
        for url in urls:
            listeners += await open_listeners(url, shared=settings.reuse_port)
        for listener in listeners:
            unsent = settings.unsent_bytes
            if _moves_limits(settings):
                unsent = UNSENT_BYTES if unsent is None else min(unsent, UNSENT_BYTES)
            if unsent is not None:
                listener.keep_little_unsent(unsent)
            if settings.tcp_keep_alive is not None:
                listener.keep_alive(settings.tcp_keep_alive)
        ending = trio.Event() if stop is None else stop
        told = _Told(task_status)
        expected: tuple[type[Exception], ...] = (StoreTakenError,)
        while True:
            try:
                return await _serve(
                    settings, listeners, ending, told, companion, make_parts, adjusting
                )
            except (StoreTakenError, TransportError, BaseExceptionGroup) as exc:
                why = first_of(exc, expected)
                if why is None or is_final(why):
                    raise
                logger.error(
                    "%s; its connections end, and it begins anew", why,
                    extra={"event": "store_taken"},
                )  # fmt: skip
            # It was one of its cluster: a server of NATS that does not answer now will do so again.
            expected = (StoreTakenError, TransportError)
            with trio.move_on_after(AGAIN_SECONDS):
                await ending.wait()
                return RelayReport(())
            if told.addresses is not None and told.addresses.http is not None:
                # With the port that it has had, if any was to do.
                settings = attrs.evolve(settings, http=told.addresses.http)
            if adjusting is not None:
                settings = adjusting.carried_over(settings)
    finally:
        for listener in listeners:
            listener.close()


class _Told(trio.TaskStatus[RelayAddresses]):
    """Tells of the addresses of a relay once, even if it begins anew."""

    def __init__(self, status: trio.TaskStatus[RelayAddresses]) -> None:
        self.addresses: RelayAddresses | None = None
        self._status = status

    def started(self, value: RelayAddresses | None = None) -> None:
        """See `trio.TaskStatus`."""
        if self.addresses is None and value is not None:
            self.addresses = value
            self._status.started(value)


async def _serve(
    settings: RelaySettings,
    listeners: list[Listener],
    stop: trio.Event,
    task_status: trio.TaskStatus[RelayAddresses] = trio.TASK_STATUS_IGNORED,
    companion: Companion | None = None,
    make_parts: PartsMaker | None = None,
    adjusting: Adjusting | None = None,
    *,
    stands_in: bool = False,
) -> RelayReport:
    async with (
        open_flusher() as flusher,
        open_persistence(settings, flusher, stands_in=stands_in) as persistence,
        open_ram_beside(persistence, flusher) as ram,
    ):
        relay = Relay(settings, flusher, persistence, ram, make_parts)
        if relay.cluster is not None and settings.stand_in and settings.store == REPLICATED:
            stand_in(
                relay.cluster,
                lambda: relay.settings,
                lambda of, stop: _serve(of, [], stop, stands_in=True),
            )
        async with (companion or nothing)(relay.ledger) as collector:
            if collector is not None:
                relay.collectors.append(collector)
            try:
                if adjusting is not None:
                    adjusting.relay, relay.adjusting = relay, adjusting
                    # It may have been configured anew while the store was opened.
                    relay.adjust(adjusting.carried_over(settings))
                async with nullcontext() if relay.cluster is None else relay.cluster.joined():
                    return await _run(relay, listeners, stop, task_status)
            finally:
                if adjusting is not None:
                    adjusting.relay = None
                relay.close()


async def _run(
    relay: Relay,
    listeners: list[Listener],
    stop: trio.Event,
    task_status: trio.TaskStatus[RelayAddresses],
) -> RelayReport:
    settings = relay.settings
    async with trio.open_nursery() as background:

        def keep_going(doing: str, run: Callable[..., Awaitable[object]], *args: object) -> None:
            # A task that serves all connections must not end with one of them, and take all along.
            background.start_soon(relay.ledger.faults.keep_going, doing, run, *args)

        for side in relay.sides:
            keep_going("keeping time", side.keep_time)
        keep_going("watching patience", watch_patience, relay.ledger)
        if relay.tree.moves_limits:
            keep_going("moving limits", watch_limits, relay.ledger)
        alarms = AlarmSettings(memory=settings.memory_alarm, disk_free=settings.disk_alarm)
        raised: Alarms = await background.start(
            watch_alarms, relay.mqtt.account, alarms, store_directory(relay.persistence)
        )
        raised.on_short = MemoryHolders(relay.ledger, relay.input).short
        keep_going("looking ahead", watch_forecasts, relay.ledger)
        if settings.slow_wait is not None:
            watch = partial(watch_slow_waits, relay.ledger, seconds=settings.slow_wait)
            keep_going("watching slow waits", watch)
        keep_going("refusing above limits", relay.mqtt.over_limits.run)
        if relay.notices is not None:
            keep_going("telling of throttled clients", watch_throttled, relay.notices)
        if relay.loop_alarm is not None:
            keep_going("watching the event loop", watch_loop, relay.loop_alarm)
        if relay.busy_poll is not None:
            background.start_soon(relay.busy_poll.run)
        if settings.otel_every is not None:
            keep_going("exporting spans", _export_spans, relay.ledger, settings.otel_every)
        http: str | None = None
        if settings.http is not None:
            (http, *_) = await background.start(serve_relays_pages, relay, settings.http)
        async with trio.open_nursery() as connections:
            accepting = trio.CancelScope()
            if relay.syndicate is not None:
                relay.syndicate.nursery = connections

            async def accept() -> None:
                with accepting:
                    await relay.accept(listeners, connections)

            if settings.reuse_port:  # From now on the kernel sends this process connections.
                for listener in listeners:
                    listener.listen()
            connections.start_soon(accept)
            say_who_is_let_in(settings, [listener.url for listener in listeners])
            say_what_is_allowed(settings, relay.authority)
            if relay.pages is not None:
                relay.pages.set_ready()
            urls = tuple(str(listener.url) for listener in listeners)
            logger.info(
                "listening on %s",
                ", ".join(urls) or "nothing",
                extra={"event": "listening", "urls": urls, "http": http},
            )
            task_status.started(RelayAddresses(urls, http))
            await stop.wait()
            accepting.cancel()
            for listener in listeners:
                listener.close()
            logger.info(
                "stopping; sending what is owed, for at most %g s",
                relay.settings.grace,
                extra={"event": "stopping", "seconds": relay.settings.grace},
            )
            relay.stop()
            connections.cancel_scope.deadline = trio.current_time() + relay.settings.grace
            if relay.cluster is not None:
                connections.start_soon(relay.cluster.drain)
        background.cancel_scope.cancel()
    return RelayReport(tuple(relay.unflushed))


async def _export_spans(ledger: Ledger, every: float) -> None:
    # Imported here: only the [otel] extra brings its dependencies.
    from ..pages.otel import sample_traces

    async with open_provider() as tracer:
        await sample_traces(ledger, tracer, every=every)
