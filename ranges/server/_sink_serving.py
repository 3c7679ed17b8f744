"""State shared by all writers' connections of a relay: the sinks, and the tasks that publish.

A task of its own publishes each decided batch: rows for two milliseconds at a time, and only while
the writer's account has funds. An alarm does not stop it as long as it has: publishing reduces the
data at rest.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import trio

from ...access.acl import Authority
from ...accounts import Account, Limit
from ...dataspace import Dataspace
from ...persistence._sink_disk import DurableRow, place_of
from ...store import StoreError
from ...transports._flusher import OUTLETS_A_STEP, Flusher
from ...transports.mqtt.codec._topics import (
    SERVER_TOPIC,
    TopicLimits,
    is_servers_own,
    topic_name_fault,
)
from ..sink import Publishing, RowConfirm, Sink, SinkLimits, Sinks, usual_limit
from ..wire import Rows
from ._names import Names, any_names, peer_of
from ._runs import run_of

if TYPE_CHECKING:
    from ...persistence._sink_disk import SinkDisk

logger = logging.getLogger("clearfunds.transports.sink")

PUBLISH_SECONDS = 0.002
"""How long rows are published before other tasks may run."""


LOOK_AGAIN_SECONDS = 2.0
"""Interval at which a task without funds checks whether only an alarm stops it."""

RETRY_SECONDS = 1.0
"""Delay before a failed read of the disk is repeated."""


class SinkServing:
    """The sinks of a relay.

    Args:
        dataspace: Where batches are published.
        flusher: Flushes the outlets.
        account: The parent of the writers' accounts: the server's.
        rest: The parent of the accounts for data at rest.
        topics: Limits on the length and depth of a topic.
        limit_of: Returns the limit of a writer, by its account's name and its own.
        limits: Limits on the number of writers, and on the size of each.
        disk: The store's side, if there is a store; its contents are restored.
        parent_of: See `Sinks`.
        rest_of: See `Sinks`.
        names: Makes the `Names` that finds the keys of writers' names.
        authority: Decides which topics users may publish to; None: all.

    Attributes:
        sinks: All of them.
        names: Finds the keys of writers' names.
        disk: See above.
        authority: See above.
        failures: Batches whose publication ended with an internal error.
    """

    def __init__(
        self,
        dataspace: Dataspace,
        flusher: Flusher,
        account: Account,
        rest: Account,
        *,
        topics: TopicLimits,
        limit_of: Callable[..., Limit] = usual_limit,
        limits: SinkLimits | None = None,
        disk: SinkDisk | None = None,
        parent_of: Callable[[str], Account] | None = None,
        rest_of: Callable[[str], Account] | None = None,
        names: Callable[[str, Callable[[], Iterable[str]]], Names] = any_names,
        authority: Authority | None = None,
    ) -> None:
        self.disk = disk
        self.authority = Authority() if authority is None else authority
        self.failures = 0
        self._dataspace = dataspace
        self._flusher = flusher
        self._topics = topics
        self._connections: Counter[Sink] = Counter()
        self._moved = trio.Event()
        self._busy: set[Sink] = set()
        self.sinks = Sinks(
            dataspace.ledger,
            account,
            rest,
            limit_of=limit_of,
            limits=limits,
            open_log=None if disk is None else disk.open_log,
            confirm_of=RowConfirm if disk is None else DurableRow,
            place_of=(lambda _: None) if disk is None else place_of,
            parent_of=parent_of,
            rest_of=rest_of,
            allows=self._allows,
        )
        self.names = names("writer", self.sinks.names)
        self.sinks.on_change = self._changed
        if disk is not None:
            disk.restore(self.sinks)

    def _allows(self, key: str) -> Callable[[str], bool] | None:
        authority = self.authority
        return authority.of(peer_of(key)).may_write if authority.restricts_writing else None

    def topic_fault(self, topic: str) -> str | None:
        """Return why a topic cannot be published to; None if it can."""
        if is_servers_own(topic):
            return f"{topic!r}: topics under {SERVER_TOPIC}/ are the server's own"
        return topic_name_fault(topic) or self._topics.name_fault(topic)

    # -- connections ----------------------------------------------------------------------------

    def connected(self, sink: Sink) -> None:
        """Note that a connection has opened a sink."""
        self._connections[sink] += 1

    def disconnected(self, sink: Sink) -> None:
        """Note that the connection has ended."""
        self._connections[sink] -= 1
        if not self._connections[sink]:
            del self._connections[sink]

    async def moved(self) -> None:
        """Wait until a batch of any sink was decided, published, or written off."""
        await self._moved.wait()

    def _changed(self, sink: Sink) -> None:
        del sink
        self._moved.set()
        self._moved = trio.Event()

    def hurry(self) -> None:
        """Write staged rows to the disk as soon as possible."""
        if self.disk is not None:
            self.disk.store.hurry()

    # -- publishing -----------------------------------------------------------------------------

    def each_tick(self) -> None:
        """Discard rows that no connection has come back for, and forget inactive writers.

        Rows that wait for space on the disk are written if there is some; if there has been none
        for too long, their writer is told.
        """
        for sink in self.sinks.look_for_the_stuck():
            logger.warning(
                "the staged rows of writer %s were written off: the disk has had no "
                "space for them for %g s (--disk-limit)",
                sink.sink, sink.patience,
                extra={"event": "staged_written_off", "writer": sink.sink},
            )  # fmt: skip
        left, gone = self.sinks.look(lambda sink: sink in self._connections)
        self._flusher.flush_now()
        for sink, count in left:
            logger.warning(
                "no connection has come back within %g s for %d parts that writer %s has staged "
                "and not committed: they were discarded",
                self.sinks.limits.grace, count, sink.sink,
                extra={"event": "grace_over", "writer": sink.sink, "parts": count},
            )  # fmt: skip
        for sink in gone:
            logger.info(
                "writer %s has committed nothing for %g s, and is forgotten",
                sink.sink, self.sinks.limits.expiry,
                extra={"event": "writer_forgotten", "writer": sink.sink},
            )  # fmt: skip
        # Writers that wait for space check again.
        self._moved.set()
        self._moved = trio.Event()

    async def run(self) -> None:
        """Publish decided batches, until cancelled."""
        async with trio.open_nursery() as nursery:
            while True:
                moved = self._moved
                for sink in self.sinks:
                    publishing = sink.publishing
                    if publishing is not None and publishing.durable and sink not in self._busy:
                        self._busy.add(sink)
                        nursery.start_soon(self._publish_all, sink, publishing)
                await moved.wait()

    async def _publish_all(self, sink: Sink, publishing: Publishing) -> None:
        try:
            await self._publish(sink, publishing)
        except Exception:
            self.failures += 1
            self._dataspace.ledger.faults.unowned += 1  # logged here, and counted with the others
            logger.exception(
                "batch %d of writer %s is published no further, after an internal error; "
                "with a store, publication goes on at the next start",
                publishing.batch, sink.sink,
                extra={"event": "publishing_failed", "writer": sink.sink},
            )  # fmt: skip
        else:
            self._tell(sink, publishing)
            self._busy.discard(sink)
            self._changed(sink)  # the next batch may have been decided meanwhile

    async def _publish(self, sink: Sink, publishing: Publishing) -> None:
        flusher = self._flusher
        account = sink.account
        while (found := publishing.current) is not None:
            _, block = found
            data = block.data if block.data is not None else await self._read(publishing)
            if data is None:
                publishing.lose()
                continue
            rows = Rows(data)
            ended = False
            while not ended:
                while not account.debt_is_clear():
                    with trio.move_on_after(LOOK_AGAIN_SECONDS):
                        await account.ensure_clear_funds()
                with flusher.corked():
                    ended = publishing.publish(self._dataspace, rows, PUBLISH_SECONDS, run_of)
                if len(flusher.dirty) <= OUTLETS_A_STEP:
                    flusher.flush_now()
                else:
                    await flusher.flush()
                await trio.lowlevel.checkpoint()
        publishing.end_if_over()
        while sink.publishing is publishing:
            await self.moved()

    async def _read(self, publishing: Publishing) -> bytes | None:
        """Return the current block from the disk; None if it no longer exists."""
        assert self.disk is not None
        said = False
        while True:
            found = publishing.current
            assert found is not None
            part, block = found
            try:
                data = await self.disk.read(part, block)
            except StoreError as exc:
                if not said:
                    logger.error(
                        "batch %d of writer %s waits: %s", publishing.batch,
                        publishing.sink.sink, exc,
                        extra={"event": "store_unreadable", "writer": publishing.sink.sink},
                    )  # fmt: skip
                said = True
                await trio.sleep(RETRY_SECONDS)
                continue
            if data is None:
                logger.error(
                    "%d rows of %s of writer %s are missing from the store: see "
                    "`clearfunds store verify`",
                    block.count, part.key, publishing.sink.sink,
                    extra={"event": "rows_lost", "writer": publishing.sink.sink},
                )  # fmt: skip
            return data

    @staticmethod
    def _tell(sink: Sink, publishing: Publishing) -> None:
        fields: dict[str, object] = {"writer": sink.sink, "batch": publishing.batch}
        if publishing.refused:
            logger.warning(
                "batch %d of writer %s: %d rows were refused, the last because of: %s",
                publishing.batch, sink.sink, publishing.refused, publishing.why_refused,
                extra={"event": "rows_refused", "rows": publishing.refused, **fields},
            )  # fmt: skip
        if publishing.not_retained:
            logger.warning(
                "batch %d of writer %s: %d rows were published, and could not be retained: the "
                "quota of sink/%s does not allow it",
                publishing.batch, sink.sink, publishing.not_retained, sink.sink,
                extra={"event": "not_retained", "rows": publishing.not_retained, **fields},
            )  # fmt: skip

    def unpublished(self) -> list[str]:
        """Describe the batches whose publication is lost with the process."""
        return [said for sink in self.sinks if (said := sink.unpublished()) is not None]

    def close(self) -> None:
        """End all sinks here, when the connections have ended. Idempotent."""
        self.sinks.close()
