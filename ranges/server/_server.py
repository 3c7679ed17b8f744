"""The side of a relay for readers of ranges: the state that their sessions share."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

import trio

from ...access._account_tree import AccountTree
from ...access._admission import Admission
from ...access._tenants import Peer
from ...access.acl import Authority, Rights
from ...accounts import Account, Limit
from ...dataspace import Dataspace
from ...persistence import Shelves, SinkDisk, SubscriptionDisk
from ...transports._flusher import Flusher
from ...transports._link import Link
from ...transports._server import TICK_SECONDS, Server
from ...transports._ticker import next_tick
from ..log import RangeSubscription, SubscriptionLimits, Subscriptions
from ..sink import usual_limit
from ._entrance import Doorkeeper
from ._names import Names, peer_of
from ._runs import columns_of
from ._session import SubscriptionSession
from ._settings import SubscriptionSettings
from ._sink_serving import SinkServing
from ._user_room import UserRoom

READERS_ACCOUNT = "readers"
"""The account above all readers' accounts, with no parent. Data on its way to a reader does not
count as publishers' debt: otherwise it could use up the funds that let publishers go on."""

STAGED_ACCOUNT = "staged"
"""In a relay without a store, the account above the accounts of writers' staged rows, which are at
rest in RAM."""


class SubscriptionServer(Server[SubscriptionSettings, SubscriptionSession]):
    """The state that the sessions of readers of one relay share.

    Args:
        dataspace: Where subscriptions are bound.
        flusher: Flushes the outlets.
        account: The parent of the accounts of subscriptions in RAM: the server's.
        settings: Limits on readers.
        admission: Limits the number of connections, of all protocols.
        limits: The most subscriptions, and the most that each may hold.
        shelves: Their store, whose contents are restored, holds durable ones. None: there are
            none.
        disk_account: The parent of the accounts of durable ones.
        limit_of: Returns the limit of a writer, by its account's name and its own.
        tree: Holds accounts that a tenant may pay for.
        make: Makes a subscription.
        door: Decides which peers are let in; None: all are, and none is known.
        disk_of: Returns the parent of the account for data at rest on disk, by the owner, instead
            of `disk_account`.
        authority: Decides what users may read and publish; None: everything.

    Attributes:
        door: See above.
        names: Finds the keys of subscriptions' names.
        subscriptions: All of them.
        disk: The store's side, if there is a store.
        writing: The state that writers of batches share.
        readers: The account above those of all readers.
    """

    logger = logging.getLogger("clearfunds.transports.subscriptions")

    def __init__(
        self,
        dataspace: Dataspace,
        flusher: Flusher,
        account: Account,
        settings: SubscriptionSettings,
        admission: Admission | None = None,
        *,
        limits: SubscriptionLimits | None = None,
        shelves: Shelves | None = None,
        disk_account: Account | None = None,
        limit_of: Callable[..., Limit] = usual_limit,
        tree: AccountTree | None = None,
        make: Callable[..., RangeSubscription] = RangeSubscription,
        door: Doorkeeper | None = None,
        disk_of: Callable[[Peer], Account] | None = None,
        authority: Authority | None = None,
    ) -> None:
        super().__init__(dataspace, flusher, account, settings, admission, tree)
        self.door = Doorkeeper() if door is None else door
        if authority is not None:
            self.authority = authority
        self._room: UserRoom | None = None
        if disk_of is not None and shelves is not None:
            most = SubscriptionLimits() if limits is None else limits
            self._room = UserRoom(disk_of, most.max_disk_bytes)
        of_key = None if self._room is None else self._room.of
        self.disk: SubscriptionDisk | None = None
        self._staged: Account | None = None
        sink_disk: SinkDisk | None = None
        if shelves is not None:
            store, reads = shelves.store, settings.max_reads
            self.disk = SubscriptionDisk(store, max_reads=reads)
            sink_disk = SinkDisk(store, self.disk, max_reads=reads)
            shelves.on_durable += [self.disk.durable, sink_disk.durable]
        self.subscriptions = Subscriptions(
            dataspace,
            account,
            disk=disk_account,
            open_log=None if self.disk is None else self.disk.open_log,
            limits=limits,
            columns=columns_of,
            parent_of=self._parent_of,
            disk_of=of_key,
            allows=lambda key, topic_filter: self.rights_of(key).allows(topic_filter),
            make=make,
        )
        self.subscriptions.on_given_up = self._cut_off
        self.names = self._names("subscription", self.subscriptions.names)
        if self.disk is not None:
            self.disk.restore(self.subscriptions)
        rest = disk_account
        if rest is None:
            within = Limit(items=None, bytes=settings.sinks.batch_bytes)
            rest = self.ledger.open(STAGED_ACCOUNT, limit=within, at_rest="ram")
            self._staged = rest
        self.writing = SinkServing(
            dataspace,
            flusher,
            account,
            rest,
            topics=settings.topics,
            limit_of=limit_of,
            limits=settings.sinks,
            disk=sink_disk,
            parent_of=self._parent_of,
            rest_of=of_key,
            names=self._names,
            authority=self.authority,
        )
        self.readers = self.ledger.open(
            READERS_ACCOUNT, limit=Limit(items=None, bytes=settings.max_unsent_bytes)
        )

    def _parent_of(self, key: str) -> Account:
        return self.tree.parent_of(peer_of(key))

    def _names(self, what: str, known: Callable[[], Iterable[str]]) -> Names:
        settings = self.settings
        return Names(what, settings.range_owner, settings.max_range_names, known)

    def rights_of(self, key: str) -> Rights:
        """Return the rights to publish and read of the user that owns a subscription or a writer.

        The name of that takes the place of the client identifier.
        """
        return self.authority.of(peer_of(key))

    def rules_changed(self) -> None:
        """End attachments that are no longer allowed, after the authority's rules have changed."""
        for session in list(self.open):
            what = "checking again what it may read"
            self.ledger.faults.call(session, what, session.rules_changed)

    def __repr__(self) -> str:
        return (
            f"<SubscriptionServer: {len(self.open)} connections, "
            f"{len(self.subscriptions)} subscriptions>"
        )

    def handle(self, link: Link, listener: str) -> Coroutine[Any, Any, None]:
        """Serve one accepted connection until it ends. Never raises but for `trio.Cancelled`."""
        return self.serve(link, lambda: SubscriptionSession(self, link, listener))

    async def keep_time(self) -> None:
        """Hold connections to their deadlines and readers to their grace, until cancelled.

        Meanwhile, new messages of durable subscriptions are handed to the store.
        """
        async with trio.open_nursery() as nursery:
            nursery.start_soon(super().keep_time)
            nursery.start_soon(self.writing.run)
            if self.disk is not None:
                nursery.start_soon(self.disk.run)
            while True:
                await next_tick(TICK_SECONDS)
                call = self.ledger.faults.call
                call(None, "looking for readers that are lost", self.look_for_the_lost)
                stuck = self.subscriptions.look_for_the_stuck
                call(None, "looking for readers that are stuck", stuck)
                call(None, "looking for writers that are stuck", self.writing.each_tick)
                if self.disk is not None:
                    # Others may have freed space on the disk.
                    call(None, "writing to the store", self.disk.write)

    def _cut_off(self, subscription: RangeSubscription, why: str) -> None:
        """End the connections that keep a subscription attached."""
        for session in list(self.open):
            if session.is_reader_of(subscription):
                session.cut(why)

    def look_for_the_lost(self) -> None:
        """Apply the policy to subscriptions whose reader has not come back in time."""
        with self.flusher.corked():
            lost = self.subscriptions.look_for_the_lost()
        self.flusher.flush_now()
        for each in lost:
            self.logger.warning(
                "no reader has come back to subscription %s within %g s: %s",
                each.subscription,
                each.options.grace,
                "it was dropped" if each.closed else "its messages were written off",
                extra={
                    "event": "grace_over",
                    "subscription": each.subscription,
                    "seconds": each.options.grace,
                    "policy": str(each.options.after_grace),
                },
            )

    def close(self) -> None:
        """End all subscriptions here, when the connections have ended. Idempotent.

        Data of durable ones in RAM is first handed to the store; flush the store after this.
        """
        if self.disk is not None:
            self.disk.write()
        self.subscriptions.close()
        self.writing.close()
        for each in (self._room, self._staged):
            if each is not None:
                each.close()
        self.readers.close()
