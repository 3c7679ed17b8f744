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
import math
import re
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Final, NoReturn

import attrs
import trio

from ..accounts import DEFAULT_PATIENCE, Account
from ..accounts._cooperative import with_pauses
from ..accounts.watch._patience import STRETCH_SECONDS
from ..dataspace.hops import Seen, WaitPaths, share_of_window
from ..transports import LocalProtocolError, TransportError
from ..transports._one_error import one_error
from ..transports.nats import Entry, JetStream, KeyValue, Message, open_bucket, open_nats
from ._companion import Companion, Place
from ._errors import ClusterError
from ._following import follow
from ._interest import Interest, read_page
from ._lease import MARKER_SECONDS, PREFIX, Lease, read_lease
from ._patiently import RETRY_SECONDS, patiently
from ._peer import LOOK, Peer
from ._run_router import RunRouter
from ._seen import StoredSeen, stored_seen
from ._stand_in import ask_back
from ._store_log import StoreLog
from ._wake import Wake

if TYPE_CHECKING:
    from ..dataspace import Dataspace
    from ..persistence import Shelves
    from ._forwarding import Forwarding
    from ._homes import Homes
    from ._outbox import Outboxes

logger = logging.getLogger("clearfunds.cluster")

FILTERS: Final = "filters."
SUBJECT: Final = "clearfunds"
SETTLE: Final = 0.02
"""Seconds between two writes of pages of filters: subscriptions come in crowds."""
LOOK_SECONDS: Final = 1.0
"""Seconds between two looks at relays that are away."""
CONNECT_SECONDS: Final = 2.0
PING_SECONDS: Final = 1.0
"""A server that is silent for twice as long is lost: its relays find another one before their
leases expire."""
ANSWER_SECONDS: Final = 2.0
"""For so long an answer of JetStream is waited for, before it is asked again."""
MAX_LEFT: Final = 1_000
"""Relays of which it is known when they left."""
FEW: Final = 3
"""NATS servers from which on the bucket has as many replicas."""

_LOGIN: Final = re.compile(r"//[^/,]*@")
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
    def shown(self) -> str:
        """The servers without their logins, for a sentence."""
        return _LOGIN.sub("//", self.servers)

    @property
    def replicas(self) -> int:
        """On how many servers the bucket lies."""
        return FEW if self.servers.count(",") + 1 >= FEW else 1


async def open_state(js: JetStream, settings: ClusterSettings) -> KeyValue:
    """Return the bucket of a cluster; it is made if it is not there.

    Raises:
        TransportError: As `open_bucket`.
    """
    return await open_bucket(
        js,
        f"{SUBJECT}-{settings.cluster}",
        marker_ttl=MARKER_SECONDS,
        replicas=settings.replicas,
    )


class Cluster:
    """A relay's place in a cluster.

    Args:
        settings: Where it is.
        dataspace: The relay's; nobody has subscribed yet.
        open_account: Opens an account for an origin of another relay, from that relay's name, the
            origin's, and the names of the accounts above it.
        close_account: Closes such an account.
        shelves: The relay's store; None: it has none that outlives it.
        flush: Sends the confirms that publishers have got (`accounts.Confirm`).

    Attributes:
        settings: As above.
        companions: What runs beside the exchange of publications; add to it before `joined`.
        peers: The other relays that are there now, by name.
        away: Those that have gone and may come back with what they have stored.
        on_absence: Called with the name of a relay that has gone, or whose sessions are wanted.
        forwarding: Connections that one relay accepts and another one serves; None: there are none.
        homes: The homes of persistent sessions; likewise.
        outboxes: What is stored before it goes to other relays; None: nothing is.
        lease: This relay's own; None before `joined`.
        rejoins: How often it was lost.
    """

    def __init__(
        self,
        settings: ClusterSettings,
        dataspace: Dataspace,
        open_account: Callable[[str, str, tuple[str, ...]], Account],
        close_account: Callable[[Account], object] = Account.close,
        shelves: Shelves | None = None,
        flush: Callable[[], object] = lambda: None,
    ) -> None:
        self._flush = flush
        self.settings = settings
        self.companions: list[Companion] = []
        self.peers: dict[str, Peer] = {}
        self.away: dict[str, Peer] = {}
        self.on_absence: Callable[[str], object] = lambda _: None
        self.forwarding: Forwarding | None = None
        self.homes: Homes | None = None
        self.outboxes: Outboxes | None = None
        self.lease: Lease | None = None
        self.rejoins = 0
        self._dataspace = dataspace
        self._ledger = dataspace.ledger
        self._open = open_account
        self._close = close_account
        self._router = RunRouter(dataspace)
        self._paths = WaitPaths(self._ledger, settings.name)
        self._interest = Interest(dataspace.routes, returns=shelves is not None)
        self._shelves = shelves
        # What has come from each relay, over its lives.
        self._seen: dict[str, Seen] = {}
        if shelves is not None:
            for name, stored in stored_seen(shelves).items():
                self._seen[name] = StoredSeen(name, shelves, stored)
        # What the bucket says of other relays: the life of each, and its pages with their lives.
        self._lives: dict[str, int] = {}
        # When relays have left, and when this one has begun to see whether they are there.
        self._left: dict[str, float] = {}
        self._sees_since = math.inf
        self._pages: dict[str, dict[int, tuple[int, frozenset[str]]]] = {}
        # Those whose next life wants what their pages say, each with the revision of the last one.
        self._returning: dict[str, int] = {}

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
        # Two connections: renewals of the lease must not stand behind what crosses.
        connect = partial(
            open_nats,
            settings.servers,
            connect_timeout=CONNECT_SECONDS,
            ping_interval=PING_SECONDS,
        )
        name = f"clearfunds {settings.name}"
        try:
            async with (
                connect(name=name) as control,
                connect(name=f"{name}, data", echo=False) as self._nats,
            ):
                js = JetStream(control, timeout=ANSWER_SECONDS)
                place = Place(
                    control, self._nats, js, settings.cluster, settings.name, settings.replicas
                )
                with one_error():
                    async with trio.open_nursery() as nursery:
                        for companion in self.companions:
                            await nursery.start(companion.run, place)
                        await nursery.start(self._live, js)
                        nursery.start_soon(self._watch_away, js)
                        is_joined = True
                        yield
                        nursery.cancel_scope.cancel()
        except ClusterError:
            raise
        except TransportError as exc:
            if is_joined:
                raise
            msg = f"cannot join the cluster at {settings.shown}: {exc}"
            raise ClusterError(msg) from exc
        finally:
            for peer in self.away.values():
                peer.end()
            self.away.clear()
            if self.outboxes is not None:
                self.outboxes.close()

    async def drain(self) -> None:
        """Wait until no other relay has anything left to do for this one, nor this for them."""
        while self._is_busy():  # noqa: ASYNC110
            await trio.sleep(SETTLE)

    def _is_busy(self) -> bool:
        serves = self.forwarding is not None and bool(self.forwarding.served)
        return serves or any(len(peer.hop) or peer.hop.queue for peer in self.peers.values())

    def away_since(self, relay: str) -> float | None:
        """Return since when a relay has been away, as this one has seen it; None: it is there."""
        if relay in self.peers:
            return None
        return max(self._left.get(relay, -math.inf), self._sees_since)

    async def _live(
        self, js: JetStream, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> NoReturn:
        """Join the cluster, and join it again whenever the lease was lost."""
        settings = self.settings
        mine = f"{SUBJECT}.{settings.cluster}.{settings.name}.*"
        end = self._nats.subscribe_with(mine, self._take, self._refused, resumed=self._resumed)
        started = False
        try:
            while True:
                try:
                    bucket, lease = await patiently(partial(self._begin, js))
                except TransportError as exc:
                    if not started:
                        raise
                    logger.info("the cluster cannot be joined again yet: %s", exc)
                    await trio.sleep(RETRY_SECONDS)
                    continue
                await self._live_once(js, bucket, lease, None if started else task_status)
                started = True
                self.rejoins += 1
                logger.warning(
                    "relay %s is cut off from the cluster %s; it serves its own clients, and joins "
                    "again when it can",
                    settings.name, settings.cluster,
                    extra={"event": "cut_off", "relay": settings.name},
                )  # fmt: skip
        finally:
            end()

    async def _begin(self, js: JetStream) -> tuple[KeyValue, Lease]:
        """Take the lease; return the bucket and the lease.

        Raises:
            TransportError: JetStream cannot be reached, or another relay has the name.
            StoreTakenError: One has stood in for this one, and has confirmed what this one lacks.
        """
        settings = self.settings
        bucket = await open_state(js, settings)
        log = None if self._shelves is None else self._shelves.log
        before = log.lease if isinstance(log, StoreLog) else None
        if before is not None and self.lease is None and before.is_held:
            before.hand_over(bucket)
            self.lease = before
            return bucket, before
        lease = Lease(bucket, settings.name, returns=self._shelves is not None)
        await lease.take(partial(ask_back, js.nats, settings.cluster, settings.name))
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(lease.hold)
                if log is not None:
                    await log.check()
                lease.hand_over(bucket)
        except BaseException:
            await lease.release()
            raise
        self.lease = lease
        return bucket, lease

    async def _live_once(
        self,
        js: JetStream,
        bucket: KeyValue,
        lease: Lease,
        task_status: trio.TaskStatus[None] | None,
    ) -> None:
        """Be in the cluster for as long as the lease is kept."""
        name = self.settings.name
        logger.info(
            "relay %s is in the cluster %s",
            name, self.settings.cluster,
            extra={"event": "joined", "relay": name, "life": lease.life},
        )  # fmt: skip
        self._interest.all_again()
        self._sees_since = trio.current_time()
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                nursery.start_soon(self._keep, lease, nursery.cancel_scope)
                nursery.start_soon(self._write_filters, bucket, lease)
                nursery.start_soon(self._watch_waits)
                if task_status is None:
                    nursery.start_soon(self._watch, js, bucket)
                else:
                    await nursery.start(self._watch, js, bucket)
                    task_status.started()
        finally:
            for peer in list(self.peers.values()):
                self._leave(peer)
            self._lives.clear()
            self._pages.clear()
            self._returning.clear()
            await lease.release()

    async def _keep(self, lease: Lease, life: trio.CancelScope) -> None:
        await lease.keep()
        life.cancel()

    def _refused(self, why: str | None) -> None:
        if why is not None:
            logger.error("NATS does not let this relay read from others: %s", why)

    # -- the others -------------------------------------------------------------------------------

    async def _watch(
        self,
        js: JetStream,
        bucket: KeyValue,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> NoReturn:
        # The relays that this look has found, until it has found all.
        there: set[str] | None = None
        seen = 0

        def clear_pages(name: str, before: int) -> None:
            self._nursery.start_soon(self._clear_pages, js, bucket, name, before)

        def begin() -> None:
            nonlocal there
            there = set()

        async def note(entry: Entry) -> None:
            nonlocal seen
            seen = entry.revision
            if self._note(entry, there):
                clear_pages(entry.key[len(PREFIX) :], seen)

        async def whole() -> None:
            # Those whose lease has expired while this was not watching.
            nonlocal there
            for name in {*self._lives, *self._pages}:
                if name not in (there or ()):
                    pages = name in self._pages
                    self._note_lease(name)
                    if pages and name not in self._returning:
                        clear_pages(name, seen + 1)
                # One that has asked for its name opens its store yet.
                if name in self._returning and name not in (*self._lives, *self.away):
                    self._expect(name)
            if self.outboxes is not None:
                self.outboxes.forget_others({*self._lives, *self._returning})
            there = None

        trouble = "the cluster's bucket cannot be read, trying again"
        await follow(bucket, trouble, begin=begin, note=note, whole=whole, task_status=task_status)

    async def _clear_pages(self, js: JetStream, bucket: KeyValue, name: str, before: int) -> None:
        """Delete the filters of a relay that has gone, but not those of its next life."""
        try:
            await patiently(
                partial(
                    js.purge_stream,
                    f"KV_{bucket.bucket}",
                    subject=f"$KV.{bucket.bucket}.{FILTERS}{name}.*",
                    before=before,
                )
            )
        except TransportError as exc:
            # The next look at all of the bucket finds them.
            logger.warning("the filters of relay %s stay in the cluster's bucket: %s", name, exc)

    def _note(self, entry: Entry, there: set[str] | None) -> bool:
        """Note what the bucket says; return whether it is that a relay has gone for good.

        Relays that have a lease are added to `there`, if it is a set.
        """
        key, me = entry.key, self.settings.name
        try:
            if key.startswith(PREFIX):
                name = key[len(PREFIX) :]
                if name == me:
                    return False
                if not entry.is_there:
                    self._note_lease(name)
                    return name not in self._returning
                life, returns = read_lease(entry.value)
                self._note_lease(name, life, returns=returns)
                if there is not None:
                    there.add(name)
            elif key.startswith(FILTERS):
                name, _, number = key[len(FILTERS) :].rpartition(".")
                if name != me and entry.is_there:
                    life, returns, filters = read_page(entry.value)
                    self._pages.setdefault(name, {})[int(number)] = life, filters
                    if returns:
                        self._returning[name] = entry.revision
                    else:
                        self._returning.pop(name, None)
                    self._tell_page(name, int(number), life, filters)
        except ValueError as exc:
            logger.error("the cluster's bucket has %s = %r: %s", key, entry.value[:100], exc)
        return False

    def _note_lease(self, name: str, life: int | None = None, *, returns: bool = False) -> None:
        if life == 0 or (life is not None and life == self._lives.get(name)):
            return
        peer = self.peers.get(name)
        if peer is not None:
            self._leave(peer)
        if life is None:
            if name not in self._returning:
                self._pages.pop(name, None)
            if self._lives.pop(name, None) is None:
                return
            self._note_left(name)
            if name not in self._returning and not (peer is not None and peer.returns):
                self._forget_outbox(name)
            logger.warning(
                "relay %s has left the cluster",
                name,
                extra={"event": "relay_left", "relay": name},
            )
            self.on_absence(name)
            return
        self._lives[name] = life
        self._meet(name, returns=returns)

    def _forget_outbox(self, name: str) -> int:
        return 0 if self.outboxes is None else self.outboxes.forget(name)

    def _note_left(self, name: str) -> None:
        left = self._left
        left.pop(name, None)
        left[name] = trio.current_time()
        if len(left) > MAX_LEFT:
            del left[next(iter(left))]

    def _expect(self, name: str) -> None:
        """Keep for a relay that was away before this one came."""
        peer = self._new_peer(name, returns=True)
        for number, (_, filters) in self._pages[name].items():
            peer.wants(number, filters)
        peer.leave()
        self.away[name] = peer

    def _new_peer(self, name: str, *, returns: bool) -> Peer:
        assert self.lease is not None
        return Peer(
            name,
            self.settings.name,
            max(self.lease.life, self._lives.get(name, 0)),
            nats=self._nats,
            subject=f"{SUBJECT}.{self.settings.cluster}.{name}.{self.settings.name}",
            ledger=self._ledger,
            dataspace=self._dataspace,
            router=self._router,
            open_account=lambda origin, above: self._open(name, origin, above),
            close_account=self._close,
            patience=self.settings.patience,
            returns=returns,
            seen=self._seen_of(name),
            flush=self._flush,
            outbox=None if self.outboxes is None else self.outboxes.of(name),
            paths_of=self._paths.of,
        )

    def _meet(self, name: str, *, returns: bool) -> None:
        peer = self.peers[name] = self._new_peer(name, returns=returns)
        self._share_windows()
        before = self.away.pop(name, None)
        if before is not None:
            peer.take_over(before)
        for number, (life, filters) in self._pages.get(name, {}).items():
            self._tell_page(name, number, life, filters)
        self._nursery.start_soon(self._exchange, peer)
        logger.info(
            "relay %s is in the cluster",
            name,
            extra={"event": "relay_joined", "relay": name},
        )

    def _seen_of(self, name: str) -> Seen:
        seen = self._seen.get(name)
        if seen is None:
            shelves = self._shelves
            seen = Seen() if shelves is None else StoredSeen(name, shelves, ())
            self._seen[name] = seen
        return seen

    async def _exchange(self, peer: Peer) -> None:
        try:
            await peer.run()
        except Exception as exc:  # noqa: BLE001 (whatever it is, this relay's clients are served)
            self._ledger.faults.note(None, f"exchanging with relay {peer.name}", exc)
            # The two need another number to begin with.
            self._nursery.cancel_scope.cancel()

    async def _watch_waits(self) -> NoReturn:
        """Find out, from time to time, who waits for whom over several relays."""
        while True:
            await trio.sleep(LOOK)
            peers = list(self.peers.values())
            # On a ring something is there for others, and others have something for this one.
            if not self._ledger.waiters or not any(len(peer.landing) for peer in peers):
                self._paths.clear()
                continue
            remotes = [remote for peer in peers for remote in peer.hop.remotes]
            await with_pauses(self._paths.look_in_steps(remotes), STRETCH_SECONDS)

    def _share_windows(self) -> None:
        """Divide what each relay is sent at a time among the others: all see the same ones."""
        if self.peers:
            window = share_of_window(len(self.peers))
            for peer in self.peers.values():
                peer.hop.window = window

    def _leave(self, peer: Peer) -> None:
        del self.peers[peer.name]
        self._share_windows()
        if peer.returns:
            self.away[peer.name] = peer
            peer.leave()
        else:
            peer.end()

    async def _watch_away(self, js: JetStream) -> NoReturn:
        """Give up what is kept for relays that do not come back in time."""
        while True:
            await trio.sleep(LOOK_SECONDS)
            now = self._ledger.clock()
            if self.outboxes is not None:
                self.outboxes.tick(now)
            for peer in list(self.away.values()):
                if now - peer.left_at > self.settings.patience:
                    del self.away[peer.name]
                    items = sum(loan.items for loan in peer.hop.loans())
                    items += self._forget_outbox(peer.name)
                    logger.warning(
                        "relay %s has not come back within %g s: %d items for it are written off",
                        peer.name, self.settings.patience, items,
                        extra={"event": "not_back", "relay": peer.name, "items": items},
                    )  # fmt: skip
                    peer.end()
                    before = self._returning.pop(peer.name, None)
                    self._pages.pop(peer.name, None)
                    if before is not None:
                        bucket = KeyValue(js, f"{SUBJECT}-{self.settings.cluster}")
                        await self._clear_pages(js, bucket, peer.name, before + 1)

    def _tell_page(self, name: str, number: int, life: int, filters: frozenset[str]) -> None:
        peer = self.peers.get(name)
        if peer is not None and (life == self._lives[name] or name in self._returning):
            peer.wants(number, filters)

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
                while True:
                    try:
                        await bucket.put(key, page)
                    except LocalProtocolError as exc:
                        logger.warning("this relay asks the others for everything: %s", exc)
                        page = interest.page_of_all(life)
                    except TransportError as exc:
                        logger.warning("the filters of this relay cannot be told: %s", exc)
                        await trio.sleep(RETRY_SECONDS)
                    else:
                        break
