"""The relay as one of a cluster (`clearfunds.cluster`)."""

from __future__ import annotations

import re
import socket
from typing import TYPE_CHECKING, Final

import attrs

from ..dataspace.hops import via
from ..transports._errors import LocalProtocolError
from ..transports._listener import ListenURLError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from contextlib import AbstractAsyncContextManager

    import trio
    from prometheus_client.registry import Collector

    from ..access._account_tree import AccountTree
    from ..accounts import Account, Limit
    from ..cluster import Cluster, ClusterSettings
    from ..dataspace import Dataspace
    from ..pages import Handler
    from ..persistence import Shelves
    from ..store import StoreSettings
    from ..transports._flusher import Flusher
    from ..transports.mqtt.server._server import MqttServer
    from ._settings import RelaySettings


STAND_IN_GRACE: Final = 1.0
"""A stand-in ends within so many seconds, since the relay that has the name waits for it."""


def cluster_of(
    settings: RelaySettings,
    dataspace: Dataspace,
    tree: AccountTree,
    shelves: Shelves | None,
    flusher: Flusher,
    usual_limit: Callable[[], Limit],
) -> Cluster | None:
    """Return the relay's place in its cluster, which it has not joined yet; None: it has none.

    `usual_limit` returns the limit of a connection, which clients of other relays have here.

    Raises:
        ClusterError: A name cannot be one.
    """
    if settings.cluster is None:
        return None
    # Imported here: most relays are in none.
    from ..cluster import Cluster

    def open_account(relay: str, origin: str, above: tuple[str, ...]) -> Account:
        return tree.open_below(above, via(relay, origin), usual_limit())

    where = _where(settings, settings.cluster)
    return Cluster(where, dataspace, open_account, tree.close, shelves, flusher.flush_now)


def check_cluster(settings: RelaySettings) -> None:
    """Check the addresses of the cluster's servers, before anything is open.

    Raises:
        ListenURLError: One of them is none.
    """
    if settings.cluster is None:
        return
    from ..transports.nats.client._servers import ServerPool

    try:
        ServerPool(settings.cluster)
    except LocalProtocolError as exc:
        raise ListenURLError(f"--cluster: {exc}") from exc


def _where(settings: RelaySettings, servers: str) -> ClusterSettings:
    from ..cluster import ClusterSettings

    name = settings.name or name_of_host()
    return ClusterSettings(servers, name, settings.cluster_name, patience=settings.patience)


def replicated_shelves(
    settings: RelaySettings, store: StoreSettings, flusher: Flusher, *, stands_in: bool
) -> AbstractAsyncContextManager[Shelves]:
    """Return shelves whose store is in the JetStream of the relay's cluster.

    Raises:
        ClusterError: The relay is in none, or a name cannot be one.
    """
    from ..cluster import ClusterError, open_replicated_shelves

    if settings.cluster is None:
        raise ClusterError("--store nats needs --cluster nats://HOST:PORT")
    return open_replicated_shelves(
        _where(settings, settings.cluster),
        flusher,
        store,
        live_bytes=settings.disk_limit,
        replicas=settings.store_replicas,
        stands_in=stands_in,
    )


def is_final(exc: BaseException) -> bool:
    """Return whether a relay that was one of a cluster cannot be so again: its name is taken."""
    from ..cluster import NameTakenError

    return isinstance(exc, NameTakenError)


def collector_of(cluster: Cluster) -> Collector:
    """Return the metrics of a relay's place in its cluster."""
    from ..cluster import ClusterCollector

    return ClusterCollector(cluster)


def page_of_hops(cluster: Cluster) -> Handler:
    """Return the page `/hops.json`."""
    # Imported here: it needs h11, which only the [relay] extra brings.
    from ..cluster._hops_page import hops_page

    return hops_page(cluster)


def name_of_host() -> str:
    """Return this machine's name in the form of a relay's."""
    return re.sub(r"[^-_A-Za-z0-9]+", "-", socket.gethostname())[:64]


def share_clients(cluster: Cluster, mqtt: MqttServer) -> None:
    """Let a cluster have one connection and one session for each client, and what is retained."""
    from ..cluster import Forwarding, Homes, Outboxes, Retained, TakeOver
    from ..persistence import Shelves

    cluster.companions.append(TakeOver(mqtt))
    cluster.companions.append(Retained(mqtt.dataspace.retained, mqtt.ledger))
    sessions = mqtt.persistent_sessions
    if sessions is not None:
        if isinstance(sessions.persistence, Shelves):
            cluster.outboxes = Outboxes(sessions.persistence, mqtt.ledger, sessions.at_rest)
        forwarding = Forwarding(mqtt, cluster)
        cluster.companions.append(forwarding)
        cluster.companions.append(Homes(mqtt, cluster, forwarding))


def stand_in(
    cluster: Cluster,
    settings_now: Callable[[], RelaySettings],
    serve: Callable[[RelaySettings, trio.Event], Awaitable[object]],
) -> None:
    """Let a relay stand in for others of its cluster that have gone.

    Args:
        cluster: Its place there.
        settings_now: Returns its own.
        serve: Runs a relay without listeners until the event is set.
    """
    from ..cluster import StandIns

    def run(name: str, stop: trio.Event) -> Awaitable[object]:
        settings = settings_now()
        pages = None if settings.http is None else "127.0.0.1:0"
        grace = min(settings.grace, STAND_IN_GRACE)
        of = attrs.evolve(settings, name=name, listen=(), http=pages, stand_in=False, grace=grace)
        return serve(of, stop)

    cluster.companions.append(StandIns(cluster, run))
