"""A relay's place in a cluster.

Theory of operation. All that relays know of each other lies in one bucket of JetStream's key-value
store. `relay.NAME` is a relay's lease: it expires if the relay does not renew it. `filters.NAME.N`
are the topic filters that it has subscribers for. Each relay watches the bucket. For each other
relay whose lease is there it has a `Peer`: a hop, which observes that relay's filters here, and a
landing for what comes from it. Both are made anew when either of the two begins another life.

What crosses does not lie in a stream: relays send each other messages of NATS, which may get lost,
and the hop sends again what was not received.
"""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final, NoReturn

import attrs
import trio

from ..accounts import DEFAULT_PATIENCE
from ..transports import TransportError
from ..transports._one_error import one_error
from ..transports.nats import Entry, JetStream, KeyValue, Message, open_bucket, open_nats
from ._companion import Companion, Place
from ._errors import ClusterError
from ._interest import Interest, read_page
from ._lease import PREFIX, Lease, read_lease
from ._peer import Peer
from ._run_router import RunRouter
from ._wake import Wake

if TYPE_CHECKING:
    from ..accounts import Account
    from ..dataspace import Dataspace
    from ..transports.nats import NatsClient

logger = logging.getLogger("clearfunds.cluster")

FILTERS: Final = "filters."
SUBJECT: Final = "clearfunds"
SETTLE: Final = 0.02
"""Seconds between two writes of pages of filters: subscriptions come in crowds."""
RETRY_SECONDS: Final = 0.5
MARKER_SECONDS: Final = 60.0
"""For so long the bucket tells those who have not been connected that a lease has expired."""
FEW: Final = 3
"""NATS servers from which on the bucket has as many replicas."""

_NAME: Final = re.compile(r"[-_A-Za-z0-9]{1,64}")


@attrs.frozen
class ClusterSettings:
    """Where a relay's cluster is, and the relay's name there.

    Raises:
        ClusterError: A name cannot be one.
    """

    servers: str
    """Servers of NATS, as for `open_nats`: `nats://HOST:PORT,nats://HOST:PORT`."""
    name: str
    """The relay's name: no other relay of the cluster has it."""
    cluster: str = "clearfunds"
    """The cluster's name: one NATS may serve several."""
    patience: float = DEFAULT_PATIENCE
    """Seconds for which another relay may receive nothing while publishers wait for it."""

    def __attrs_post_init__(self) -> None:
        for what, name in (("relay", self.name), ("cluster", self.cluster)):
            if not _NAME.fullmatch(name):
                msg = (
                    f"a {what} cannot have the name {name!r}; up to 64 letters, digits, - and _ "
                    "make one"
                )
                raise ClusterError(msg)

    @property
    def replicas(self) -> int:
        """On how many servers the bucket lies."""
        return FEW if self.servers.count(",") + 1 >= FEW else 1


class Cluster:
    """A relay's place in a cluster.

    Args:
        settings: Where it is.
        dataspace: The relay's; nobody has subscribed yet.
        open_account: Opens an account for an origin of another relay, from that relay's name, the
            origin's, and the names of the accounts above it.

    Attributes:
        settings: As above.
        companions: What runs beside the exchange of publications; add to it before `joined`.
        peers: The other relays that are there now, by name.
        lease: This relay's own; None before `join`.
    """

    def __init__(
        self,
        settings: ClusterSettings,
        dataspace: Dataspace,
        open_account: Callable[[str, str, tuple[str, ...]], Account],
    ) -> None:
        self.settings = settings
        self.companions: list[Companion] = []
        self.peers: dict[str, Peer] = {}
        self.lease: Lease | None = None
        self._dataspace = dataspace
        self._ledger = dataspace.ledger
        self._open = open_account
        self._router = RunRouter(dataspace)
        self._interest = Interest(dataspace.routes)
        # What the bucket says of other relays: the life of each, and its pages with their lives.
        self._lives: dict[str, int] = {}
        self._pages: dict[str, dict[int, tuple[int, frozenset[str]]]] = {}

    def __repr__(self) -> str:
        return f"<Cluster {self.settings.cluster}: {len(self.peers)} other relays>"

    # -- joining ----------------------------------------------------------------------------------

    @asynccontextmanager
    async def joined(self) -> AsyncGenerator[None]:
        """Be one of the cluster for the length of a block.

        It begins when the relay's lease is held, and the others that are there are known. The loss
        of NATS, or of the lease, is logged, and the relay joins again.

        Cancellation: the lease is given up; what other relays have not finished is written off.

        Raises:
            ClusterError: NATS cannot be reached, or has no JetStream; or another relay has the
                name.
        """
        settings = self.settings
        is_joined = False
        try:
            async with open_nats(
                settings.servers, name=f"clearfunds {settings.name}", echo=False
            ) as nats:
                js = JetStream(nats)
                bucket = await open_bucket(
                    js,
                    f"{SUBJECT}-{settings.cluster}",
                    marker_ttl=MARKER_SECONDS,
                    replicas=settings.replicas,
                )
                with one_error():
                    async with trio.open_nursery() as nursery:
                        place = Place(nats, js, settings.cluster, settings.name, settings.replicas)
                        for companion in self.companions:
                            await nursery.start(companion.run, place)
                        await self._join(nats, bucket, nursery)
                        is_joined = True
                        yield
                        nursery.cancel_scope.cancel()
        except ClusterError:
            raise
        except TransportError as exc:
            if is_joined:
                raise
            msg = f"cannot join the cluster at {settings.servers}: {exc}"
            raise ClusterError(msg) from exc

    async def drain(self) -> None:
        """Wait until no other relay has anything left to do for this one."""
        while any(len(peer.hop) or peer.hop.queue for peer in self.peers.values()):  # noqa: ASYNC110
            await trio.sleep(SETTLE)

    async def _join(self, nats: NatsClient, bucket: KeyValue, nursery: trio.Nursery) -> None:
        name = self.settings.name
        lease = self.lease = Lease(bucket, name, self._begin)
        self._nats = nats
        self._nursery = nursery
        prefix = f"{SUBJECT}.{self.settings.cluster}"
        nats.subscribe_with(f"{prefix}.{name}.*", self._take, self._refused, resumed=self._resumed)
        self._prefix = prefix
        await nursery.start(self._hold, lease)
        await nursery.start(self._watch, bucket)
        nursery.start_soon(self._write_filters, bucket, lease)

    async def _hold(
        self, lease: Lease, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        try:
            await lease.hold(task_status)
        finally:
            for peer in list(self.peers.values()):
                peer.end()
            await lease.release()

    def _begin(self, life: int) -> None:
        """Begin a life: nothing of an earlier one is known to the others any more."""
        logger.info(
            "relay %s is in the cluster %s",
            self.settings.name, self.settings.cluster,
            extra={"event": "joined", "relay": self.settings.name, "life": life},
        )  # fmt: skip
        for peer in list(self.peers.values()):
            self._leave(peer)
        self._interest.all_again()
        for name in self._lives:
            self._meet(name)

    def _refused(self, why: str | None) -> None:
        if why is not None:
            logger.error("NATS does not let this relay read from others: %s", why)

    # -- the others -------------------------------------------------------------------------------

    async def _watch(
        self, bucket: KeyValue, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> NoReturn:
        started = False
        while True:
            try:
                there: set[str] | None = set()
                async with bucket.watch() as changes:
                    async for change in changes:
                        if change is not None:
                            self._note(change, there)
                            continue
                        # Those whose lease has expired while this was not watching.
                        for name in self._lives.keys() - (there or ()):
                            self._note_lease(name, None)
                        there = None
                        if not started:
                            started = True
                            task_status.started()
            except TransportError as exc:
                if not started:
                    raise
                logger.warning("the cluster's bucket cannot be read, trying again: %s", exc)
            await trio.sleep(RETRY_SECONDS)

    def _note(self, entry: Entry, there: set[str] | None) -> None:
        """Note what the bucket says; add relays that have a lease to `there`, if it is a set."""
        try:
            if entry.key.startswith(PREFIX):
                name = entry.key[len(PREFIX) :]
                if name != self.settings.name:
                    if there is not None and entry.is_there:
                        there.add(name)
                    self._note_lease(name, read_lease(entry.value) if entry.is_there else None)
            elif entry.key.startswith(FILTERS):
                name, _, page = entry.key[len(FILTERS) :].rpartition(".")
                if name != self.settings.name and entry.is_there:
                    self._pages.setdefault(name, {})[int(page)] = read_page(entry.value)
                    self._tell_filters(name)
        except ValueError as exc:
            logger.error("the cluster's bucket has %s = %r: %s", entry.key, entry.value[:100], exc)

    def _note_lease(self, name: str, life: int | None) -> None:
        if life == self._lives.get(name) or life == 0:
            return
        peer = self.peers.get(name)
        if peer is not None:
            self._leave(peer)
        if life is None:
            del self._lives[name]
            self._pages.pop(name, None)
            logger.warning(
                "relay %s has left the cluster",
                name,
                extra={"event": "relay_left", "relay": name},
            )
            return
        self._lives[name] = life
        self._meet(name)

    def _meet(self, name: str) -> None:
        assert self.lease is not None
        peer = self.peers[name] = Peer(
            name,
            self.settings.name,
            max(self.lease.life, self._lives[name]),
            nats=self._nats,
            subject=f"{self._prefix}.{name}.{self.settings.name}",
            ledger=self._ledger,
            dataspace=self._dataspace,
            router=self._router,
            open_account=lambda origin, above: self._open(name, origin, above),
            patience=self.settings.patience,
        )
        self._tell_filters(name)
        self._nursery.start_soon(self._exchange, peer)
        logger.info(
            "relay %s is in the cluster",
            name,
            extra={"event": "relay_joined", "relay": name},
        )

    async def _exchange(self, peer: Peer) -> None:
        try:
            await peer.run()
        except Exception as exc:  # noqa: BLE001 (whatever it is, the other relays go on)
            self._ledger.faults.note(None, f"exchanging with relay {peer.name}", exc)
            if self.lease is not None and self.peers.get(peer.name) is peer:
                self.lease.begin_anew()  # the two need another number to begin with

    def _leave(self, peer: Peer) -> None:
        del self.peers[peer.name]
        peer.end()

    def _tell_filters(self, name: str) -> None:
        peer = self.peers.get(name)
        if peer is not None:
            life = self._lives[name]
            pages = self._pages.get(name, {}).values()
            peer.wants(frozenset[str]().union(*(page for of, page in pages if of == life)))

    # -- what comes -------------------------------------------------------------------------------

    def _take(self, message: Message) -> None:
        peer = self.peers.get(message.subject.rpartition(".")[2])
        if peer is not None:  # else it comes again when its lease is known
            self._ledger.faults.call(
                None, f"taking what relay {peer.name} has sent", peer.take, message.payload
            )

    def _resumed(self) -> None:
        for peer in self.peers.values():
            peer.resumed()

    # -- what this relay has subscribers for ------------------------------------------------------

    async def _write_filters(self, bucket: KeyValue, lease: Lease) -> NoReturn:
        interest = self._interest
        wake = Wake()
        interest.on_change = wake.set
        wake.set()
        while True:
            await wake.wait()
            await trio.sleep(SETTLE)
            life = lease.life
            for number in interest.changed():
                key = f"{FILTERS}{self.settings.name}.{number}"
                page = interest.page(number, life)
                while life == lease.life:
                    try:
                        await bucket.put(key, page)
                    except TransportError as exc:
                        logger.warning("the filters of this relay cannot be told: %s", exc)
                        await trio.sleep(RETRY_SECONDS)
                    else:
                        break
