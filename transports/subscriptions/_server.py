"""The side of a relay that readers of ranges connect to: what its sessions share."""

from __future__ import annotations

import logging
from collections.abc import Callable

import trio

from ...accounts import Account, Limit
from ...dataspace import Dataspace
from ...dataspace.sinks import usual_limit
from ...dataspace.subscriptions import RangeSubscription, SubscriptionLimits, Subscriptions
from ...store import Store
from .._account_tree import AccountTree
from .._flusher import Flusher
from .._link import Link
from .._server import TICK_SECONDS, Admission, Server
from .._ticks import next_tick
from ._disk import SubscriptionDisk
from ._runs import columns_of
from ._session import SubscriptionSession
from ._settings import SubscriptionSettings
from ._sink_disk import SinkDisk
from ._sink_serving import SinkServing

READERS_ACCOUNT = "readers"
"""The account above those of all readers: a root of its own. What is on its way to a reader is not
counted with what publishers owe, or they could use up what lets them go on again."""

STAGED_ACCOUNT = "staged"
"""In a relay without a store, the account above those for what writers have staged: at rest in
RAM."""


class SubscriptionServer(Server[SubscriptionSettings, SubscriptionSession]):
    """What the sessions of one relay share.

    Args:
        dataspace: Where subscriptions are bound.
        flusher: Who sends.
        account: Whose children the accounts of subscriptions in RAM are: the server's.
        settings: What readers may make grow.
        admission: How many connections there may be, of all protocols.
        limits: How many subscriptions there may be, and how much each may hold.
        store: Where durable ones are, opened and written by its owner; what is there is taken up.
            None: there are none. With one, this has to be made in Trio's thread.
        disk_account: Whose children the accounts of durable ones are.
        limit_of: What a writer may owe, by its account's name and its own.
        tree: Where accounts are that a tenant may pay for.
        make: Makes a subscription.

    Attributes:
        subscriptions: All of them.
        disk: The store's side, if there is a store.
        writing: What writers of batches share.
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
        store: Store | None = None,
        disk_account: Account | None = None,
        limit_of: Callable[..., Limit] = usual_limit,
        tree: AccountTree | None = None,
        make: Callable[..., RangeSubscription] = RangeSubscription,
    ) -> None:
        super().__init__(dataspace, flusher, account, settings, admission, tree)
        self.disk: SubscriptionDisk | None = None
        self._staged: Account | None = None
        if store is not None:
            self.disk = SubscriptionDisk(store, flusher, max_reads=settings.max_reads)
        self.subscriptions = Subscriptions(
            dataspace,
            account,
            disk=disk_account,
            open_log=None if self.disk is None else self.disk.open_log,
            limits=limits,
            columns=columns_of,
            parent_of=self.tree.parent_of,
            make=make,
        )
        if self.disk is not None:
            self.disk.restore(self.subscriptions)
            self.disk.listen()
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
            disk=self._sink_disk(),
            parent_of=self.tree.parent_of,
        )
        self.readers = self.ledger.open(
            READERS_ACCOUNT, limit=Limit(items=None, bytes=settings.max_unsent_bytes)
        )

    def _sink_disk(self) -> SinkDisk | None:
        if self.disk is None:
            return None
        store, reads = self.disk.store, self.settings.max_reads
        return SinkDisk(store, self.flusher, self.disk, max_reads=reads)

    def __repr__(self) -> str:
        return (
            f"<SubscriptionServer: {len(self.open)} connections, "
            f"{len(self.subscriptions)} subscriptions>"
        )

    async def handle(self, link: Link, listener: str) -> None:
        """Serve one accepted connection until it ends. Never raises but for `trio.Cancelled`."""
        if self._admits(link):
            session = self._begun(link, lambda: SubscriptionSession(self, link, listener))
            if session is not None:
                await session.run()

    async def keep_time(self) -> None:
        """Hold connections to their deadlines and readers to their grace, until cancelled.

        What has come for durable subscriptions is handed to the store meanwhile.
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
                call(None, "looking for writers that are stuck", self.writing.each_tick)
                if self.disk is not None:
                    # Others may have made room on the disk.
                    call(None, "writing to the store", self.disk.write)

    def look_for_the_lost(self) -> None:
        """Deal with subscriptions whose reader has not come back in time."""
        with self.flusher.corked():
            lost = self.subscriptions.look_for_the_lost()
        self.flusher.flush_now()
        for each in lost:
            self.logger.warning(
                "no reader has come back to subscription %s within %g s: %s",
                each.subscription,
                each.options.grace,
                "it was dropped" if each.closed else "what it held was written off",
                extra={
                    "event": "grace_over",
                    "subscription": each.subscription,
                    "seconds": each.options.grace,
                    "policy": str(each.options.after_grace),
                },
            )

    def close(self) -> None:
        """End all subscriptions here, when the connections have ended. Idempotent.

        What durable ones have in RAM is handed to the store first; it has to be flushed after this.
        """
        if self.disk is not None:
            self.disk.write()
        self.subscriptions.close()
        self.writing.close()
        if self._staged is not None:
            self._staged.close()
        self.readers.close()
