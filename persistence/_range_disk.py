"""Durable subscriptions in the store: writing, noticing durability, and reading back.

In the store each subscription is a queue called `subscription/NAME`, whose records are blocks, each
under the number of its last message; and two values, its state and the first number that is not
acknowledged.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING

import trio

from ..accounts import Confirm, QuotaExceededError
from ..ranges.log import (
    AtRest,
    RangeSubscription,
    SubscriptionLog,
    Subscriptions,
    block_range,
    cut_block,
)
from ..ranges.wire import DiskError, RefusedError
from ..store import StoreError
from ._owner import TELLING
from ._writes import Writes

if TYPE_CHECKING:
    from ..store import Record, Store

logger = logging.getLogger("clearfunds.transports.subscriptions")

PREFIX = "subscription/"
"""Prefix of the names of its queues and values in the store."""

STATE = "/state"
LOW = "/low"

GATHER_SECONDS = 0.005
"""Messages that arrive within this time are written as one block: a fortieth of the store's default
interval of fsync, for which publishers wait anyway."""

LOOK_SECONDS = 0.01
"""Interval between checks of a task that waits for durability."""


class SubscriptionDisk:
    """The subscriptions of one relay in its store.

    The owner of the store runs its writer, and calls `durable`.

    Args:
        store: An open store.
        max_reads: Most concurrent reads.
    """

    def __init__(self, store: Store, *, max_reads: int = 8) -> None:
        self.store = store
        self.subscriptions: Subscriptions | None = None
        self._limiter = trio.CapacityLimiter(max_reads)
        self._logs: dict[str, _StoreLog] = {}
        self._restoring: str | None = None
        self._no_room: dict[str, str] = {}
        self._dirty = trio.Event()
        self._last = 0
        self._durable = 0

    # -- for `Subscriptions` --------------------------------------------------------------------

    def open_log(self, name: str) -> SubscriptionLog:
        """Give a subscription its place in the store.

        Only one that is being restored finds its messages there. Messages left by one with damaged
        state belong to no subscription: no reader knows what their numbers mean.
        """
        if name != self._restoring:
            self._clear(name)
        log = self._logs[name] = _StoreLog(self, name)
        return log

    def check_taken_up(self, name: str) -> None:
        """Check that a subscription is not missing just because there was no room to restore it.

        Raises:
            RefusedError: If it is.
        """
        why = self._no_room.get(name)
        if why is not None:
            msg = f"subscription {name!r} is on disk, and could not be restored at the start: {why}"
            raise RefusedError(msg)

    def _clear(self, name: str) -> None:
        changes = self.store.begin()
        queue = self.store.queues.get(PREFIX + name)
        if queue is not None:
            changes.drop(queue.id)
            logger.warning(
                "subscription %s is made anew: data of an earlier one that could not be restored "
                "is removed from the store (%d bytes)",
                name,
                queue.live_bytes,
                extra={"event": "remains_removed", "subscription": name},
            )
        for key in (PREFIX + name + STATE, PREFIX + name + LOW):
            if key in self.store.values(key):
                changes.delete(key)
        if changes:
            self.committed(self.store.commit(changes))

    def forget(self, name: str) -> None:
        """Forget the place of a subscription that has dropped it."""
        self._logs.pop(name, None)

    def dirty(self) -> None:
        """Note that there is something to write."""
        self._dirty.set()

    def committed(self, ticket: int) -> int:
        """Note a ticket from the store."""
        self._last = max(self._last, ticket)
        return ticket

    # -- for the store's owner ------------------------------------------------------------------

    def restore(self, subscriptions: Subscriptions) -> int:
        """Restore subscriptions of the store into `subscriptions`, which is empty; return how many.

        One that cannot be restored is left unchanged in the store, and logged.
        """
        self.subscriptions = subscriptions
        found = 0
        values = self.store.values(PREFIX)
        for key, state in sorted(values.items()):
            if not key.endswith(STATE):
                continue
            name = key.removeprefix(PREFIX).removesuffix(STATE)
            self._restoring = name
            try:
                self._restore(subscriptions, name, state, values.get(PREFIX + name + LOW))
            except (ValueError, QuotaExceededError) as exc:
                if isinstance(exc, QuotaExceededError):
                    self._no_room[name] = str(exc)  # the subscription itself is intact
                logger.error(
                    "subscription %s cannot be restored: %s",
                    name,
                    exc,
                    extra={"event": "not_restored", "subscription": name, "reason": str(exc)},
                )
            else:
                found += 1
        self._restoring = None
        return found

    def _restore(
        self, subscriptions: Subscriptions, name: str, state: bytes, raw: bytes | None
    ) -> None:
        queue = self.store.queues.get(PREFIX + name)
        low = 1 if raw is None else int(raw)
        following, nbytes = (low, 0) if queue is None else (queue.next_seq, queue.live_bytes)
        if queue is not None and not queue.live_count:
            low = max(low, following)  # all messages are acknowledged, or lost
        subscriptions.restore(name, state, low=low, following=following, nbytes=nbytes)

    def durable(self, ticket: int) -> None:
        """Note that everything up to this ticket is on disk; for `Shelves.on_durable`."""
        self._durable = max(self._durable, ticket)
        for subscription in self.subscriptions or ():
            if subscription.options.durable:
                call = subscription.ledger.faults.call
                call(subscription, TELLING, subscription.durable, ticket)

    async def run(self) -> None:
        """Hand new messages to the store, after a short delay, until cancelled."""
        while True:
            await self._dirty.wait()
            await trio.sleep(GATHER_SECONDS)
            self._dirty = trio.Event()
            self.write()

    def write(self) -> None:
        """Hand all new messages to the store."""
        for subscription in self.subscriptions or ():
            call = subscription.ledger.faults.call
            call(subscription, "writing to the store", subscription.write)

    # -- for sessions ---------------------------------------------------------------------------

    async def synced(self, seconds: float) -> None:
        """Wait until everything committed so far is durable.

        Raises:
            DiskError: If it takes longer than `seconds`.
        """
        ticket = self._last
        self.store.hurry()
        with trio.move_on_after(seconds):
            # Polling will do: this happens once for each attachment.
            while self._durable < ticket:  # noqa: ASYNC110
                await trio.sleep(LOOK_SECONDS)
            return
        msg = f"the store has not written it within {seconds:g} s; is its disk full, or broken?"
        raise DiskError(msg)

    async def read(
        self, subscription: RangeSubscription, wanted: AtRest, max_bytes: int
    ) -> list[bytes]:
        """Read blocks from disk, from `wanted.start` on, in a thread.

        Raises:
            DiskError: If they cannot be read, or do not exist.
        """
        log = self._logs[subscription.subscription]
        try:
            records: list[Record] = await trio.to_thread.run_sync(
                partial(
                    self.store.read,
                    log.queue,
                    wanted.start,
                    count=max(1, wanted.end - wanted.start),
                    nbytes=max_bytes,
                ),
                limiter=self._limiter,
            )
        except StoreError as exc:
            raise DiskError(f"the store cannot be read: {exc}") from exc
        blocks: list[bytes] = []
        at = wanted.start
        for record in records:
            first, end = block_range(record.body)
            if first > at or at >= wanted.end:
                break
            blocks.append(cut_block(record.body, at, wanted.end))
            at = min(end, wanted.end)
        return blocks


class _StoreLog:
    """One subscription's place in the store; see `SubscriptionLog`."""

    def __init__(self, disk: SubscriptionDisk, name: str) -> None:
        self._disk = disk
        self._name = name
        changes = disk.store.begin()
        self.queue = changes.declare(PREFIX + name)
        if changes:  # otherwise it existed before a restart
            disk.committed(disk.store.commit(changes))

    def dirty(self) -> None:
        self._disk.dirty()

    def put(self, last: int, block: bytes, confirms: list[Confirm]) -> int:
        changes = self._disk.store.begin()
        for place, confirm in enumerate(confirms):
            if isinstance(confirm, Writes):
                confirms[place] = confirm.written(PREFIX + self._name, changes.set)
        changes.put(self.queue, last, b"", block)
        return self._disk.committed(self._disk.store.commit(changes))

    def done(self, first: int, last: int, low: int) -> None:
        changes = self._disk.store.begin()
        if first <= last:
            changes.done(self.queue, first, last)
        changes.set(PREFIX + self._name + LOW, b"%d" % low)
        self._disk.committed(self._disk.store.commit(changes))

    def persist(self, state: bytes) -> None:
        changes = self._disk.store.begin()
        changes.set(PREFIX + self._name + STATE, state)
        self._disk.committed(self._disk.store.commit(changes))

    def drop(self) -> None:
        changes = self._disk.store.begin()
        changes.drop(self.queue)
        changes.delete(PREFIX + self._name + STATE)
        changes.delete(PREFIX + self._name + LOW)
        self._disk.committed(self._disk.store.commit(changes))
        self._disk.forget(self._name)
