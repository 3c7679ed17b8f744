"""Prometheus metrics of stored data: persistent sessions, the sums of their queues, and the store.

The number of series is the same for ten thousand queues as for one. The queues are read in steps
before a scrape (`look`), so each is read at one instant, and not all of them together. The counters
never fall, since the counts of deleted queues are kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

import attrs
import trio
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from ._cooperative import Pace
from ._debts import due_after
from ._walked import WalkedCollector

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from prometheus_client import Metric

    from ..dataspace.queues import Queue, QueueSums
    from ..persistence import Log
    from ..store import Store, StoreStatistics
    from ..transports.mqtt.server._persistent_sessions import PersistentSessions
    from ..transports.mqtt.server._shared import SharedGroups

STORE_SECONDS: Final = 0.5
"""Longest wait for the store's figures; RabbitMQ's for its alarms. A thread asks for them; if there
is no answer, the last one is served once more."""


@attrs.frozen
class _Walk:
    """The results of a walk."""

    sums: QueueSums
    away: int
    connected: int
    groups: int
    members: int
    members_away: int


class MoreQueues(Protocol):
    """Queues that belong to no session."""

    @property
    def ended(self) -> QueueSums:
        """The counts of those that were deleted."""
        ...

    def queues(self) -> Iterable[Queue]:
        """Return the queues that there are."""
        ...


class PersistenceCollector(WalkedCollector):
    """Serves metrics of stored data, as `clearfunds_queue_messages{state="ready"}`.

    Args:
        sessions: The persistent sessions; None: there are none, and no samples of them.
        store: The store; None: data is in RAM, and there are no samples of a store.
        groups: The shared subscriptions; their queues are in the sums, too.
        log: What makes the store durable elsewhere; None: the store does so itself.
        more: Queues of others, which are in the sums, too.

    Attributes:
        walks: How often the queues were read.
    """

    def __init__(
        self,
        sessions: PersistentSessions | None,
        store: Store | None,
        groups: SharedGroups | None = None,
        log: Log | None = None,
        more: MoreQueues | None = None,
    ) -> None:
        self._sessions = sessions
        self._more = more
        self._groups = groups
        self._store = store
        self._log = log
        self._last_walk: _Walk | None = None
        self._of_store: StoreStatistics | None = None
        self._due = 0.0
        self.walks = 0

    def describe(self) -> Iterator[Metric]:
        """Yield the metrics without values, reading nothing; for the registry."""
        return self._families({})

    async def look(self) -> None:
        """Compute figures for `collect`; the queues not again too soon after a long walk.

        On cancellation, earlier figures stay.
        """
        if self._store is not None:
            with trio.move_on_after(STORE_SECONDS):
                self._of_store = await trio.to_thread.run_sync(
                    self._store.statistics, abandon_on_cancel=True
                )
        began = trio.current_time()
        if self._sessions is None or (self._last_walk is not None and began < self._due):
            return
        pace = Pace()
        # Both at one instant: a queue that is deleted from now on is still in the list.
        sums, sessions = self._sessions.ended.copy(), list(self._sessions.by_id.values())
        away = 0
        for session in sessions:
            await pace.breathe()
            sums.add(session.queue)
            away += session.left is not None
        groups, members, members_away = await self._add_groups(sums, pace)
        if self._more is not None:
            sums.add_sums(self._more.ended)
            for queue in list(self._more.queues()):
                await pace.breathe()
                sums.add(queue)
        connected = len(sessions) - away
        self._last_walk = _Walk(sums, away, connected, groups, members, members_away)
        self._due = due_after(began, pace.busy_seconds)
        self.walks += 1

    async def _add_groups(self, sums: QueueSums, pace: Pace) -> tuple[int, int, int]:
        """Add the groups' figures; return the numbers of groups, and members, here and away."""
        if self._groups is None:
            return 0, 0, 0
        members = away = 0
        sums.add_sums(self._groups.ended)
        groups = list(self._groups.by_key.values())
        for group in groups:
            await pace.breathe()
            sums.add(group.group)
            members += len(group.group.members)
            away += group.away
        return len(groups), members, away

    def collect(self) -> Iterator[Metric]:
        """Yield the results of `look`."""
        values: dict[str, _Value] = {}
        if self._last_walk is not None and self._sessions is not None:
            values |= _of_queues(self._last_walk.sums)
            values["sessions"] = {
                "connected": self._last_walk.connected,
                "away": self._last_walk.away,
            }
            values["shared_groups"] = self._last_walk.groups
            values["shared_members"] = {
                "connected": self._last_walk.members,
                "away": self._last_walk.members_away,
            }
            values["sessions_expired_total"] = self._sessions.expired
            values["sessions_given_up_total"] = self._sessions.given_up
        if self._of_store is not None:
            values |= _of_store(self._of_store)
            if self._log is not None:
                values |= _of_log(self._log)
                values["store_replicated_pending_bytes"] = self._of_store.unlogged_bytes
                values["store_trouble"] = int(
                    self._of_store.trouble is not None or self._log.trouble is not None
                )
        return self._families(values)

    def _families(self, values: Mapping[str, _Value]) -> Iterator[Metric]:
        for name, (documentation, *labels) in _METRICS.items():
            # For a counter, prometheus_client adds `_total` to the name itself.
            kind: Any = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
            metric = kind(f"clearfunds_{name.removesuffix('_total')}", documentation, labels=labels)
            value = values.get(name)
            if isinstance(value, dict):
                for label, amount in value.items():
                    metric.add_metric([label], amount)
            elif value is not None:
                metric.add_metric([], value)
            yield metric


_Value = float | dict[str, int]


def _of_queues(sums: QueueSums) -> dict[str, _Value]:
    counters = sums.counters
    return {
        "queues": sums.queues,
        "queue_messages": {"ready": sums.ready, "unacked": sums.unacked},
        "queue_bytes": {"ready": sums.ready_bytes, "unacked": sums.unacked_bytes},
        "queue_ram_messages": sums.in_ram,
        "queue_ram_bytes": sums.ram_bytes,
        "queue_disk_only_messages": sums.disk_only,
        "queue_unsynced_messages": sums.unsynced,
        "queue_unwritten_messages": sums.unwritten,
        "queue_messages_paged_out_total": sums.paged_out,
        "queue_messages_paged_in_total": sums.paged_in,
        **{
            f"queue_messages_{each.name}_total": getattr(counters, each.name)
            for each in attrs.fields(type(counters))
        },
    }


def _of_store(seen: StoreStatistics) -> dict[str, _Value]:
    return {
        "store_bytes": {"used": seen.used_bytes, "free": seen.free_bytes, "log": seen.log_bytes},
        "store_pending_bytes": seen.pending_bytes,
        "store_commits_total": seen.commits,
        "store_fsyncs_total": seen.transactions,
        "store_fsync_seconds_total": seen.fsync_seconds,
        "store_slowest_fsync_seconds": seen.slowest_fsync_seconds,
        "store_rewritten_bytes_total": seen.rewritten_bytes,
        "store_failures_total": seen.failures,
        "store_damages_total": seen.damages,
        "store_trouble": int(seen.trouble is not None),
    }


def _of_log(log: Log) -> dict[str, _Value]:
    return {
        "store_replicated_entries_total": log.entries,
        "store_replicated_bytes": log.nbytes,
        "store_replicated_snapshots_total": log.snapshots,
    }


_METRICS: Final[dict[str, tuple[str, ...]]] = {
    "sessions": ("Persistent sessions of MQTT clients.", "state"),
    "sessions_expired_total": ("Sessions that expired while their client was away.",),
    "sessions_given_up_total": (
        "Sessions of absent clients that ended because others waited for space.",
    ),
    "shared_groups": ("Groups of MQTT clients that share a subscription.",),
    "shared_members": ("Members of groups that share a subscription.", "state"),
    "queues": ("Queues, each of one session or of one group that shares a subscription.",),
    "queue_messages": ("Messages in all queues: to be delivered, or acknowledged.", "state"),
    "queue_bytes": ("Their bytes.", "state"),
    "queue_ram_messages": ("Messages in queues that are in RAM, whether on disk as well or not.",),
    "queue_ram_bytes": ("Bytes of the messages in queues that are in RAM.",),
    "queue_disk_only_messages": ("Messages in queues that are on disk and not in RAM.",),
    "queue_unsynced_messages": ("Messages in queues that are with the store and not yet durable.",),
    "queue_unwritten_messages": (
        "Messages in queues that wait for disk space or a working disk; publishers owe for them.",
    ),
    "queue_messages_paged_out_total": ("Messages paged out of RAM, to be read back from disk.",),
    "queue_messages_paged_in_total": ("Messages read back from disk.",),
    "queue_messages_published_total": ("Messages that came into queues, whatever became of them.",),
    "queue_messages_delivered_total": ("Deliveries from queues.",),
    "queue_messages_redelivered_total": (
        "Deliveries of messages that a client may have received before.",
    ),
    "queue_messages_acked_total": ("Messages in queues that were acknowledged.",),
    "queue_messages_requeued_total": ("Deliveries that came back into their queues.",),
    "queue_messages_rejected_total": ("Messages that a consumer rejected for good.",),
    "queue_messages_failed_total": ("Messages whose delivery has failed too often.",),
    "queue_messages_expired_total": ("Messages that outlived their time to live in a queue.",),
    "queue_messages_dropped_total": ("Messages dropped from the heads of full queues.",),
    "queue_messages_refused_total": (
        "Messages refused because a queue was full, or the disk in trouble.",
    ),
    "queue_messages_purged_total": ("Messages purged, or deleted with their queues.",),
    "queue_messages_written_off_total": (
        "Messages that queues discarded because publishers waited for them for too long.",
    ),
    "queue_messages_dead_lettered_total": ("Messages published once more as dead letters.",),
    "queue_messages_dead_letters_failed_total": (
        "Dead letters that could not be published, or were refused by their destination.",
    ),
    "queue_messages_cycles_total": ("Dead letters dropped because they had gone in a cycle.",),
    "queue_messages_stored_total": ("Messages in queues that came to rest on disk.",),
    "queue_messages_recovered_total": ("Messages of queues found on disk after a restart.",),
    "queue_messages_lost_total": ("Messages of queues that were missing on disk.",),
    "queue_messages_passed_total": (
        "Messages of groups that went straight through to a member, which acknowledges none.",
    ),
    "queue_messages_spent_total": (
        "Messages of groups that ended with a member that left and may have received them (QoS 2).",
    ),
    "store_bytes": ("Bytes of the store's files.", "state"),
    "store_pending_bytes": ("Bytes that wait in RAM for the store's next transaction.",),
    "store_commits_total": ("Changes handed to the store.",),
    "store_fsyncs_total": ("Transactions of the store: each ends with one fsync.",),
    "store_fsync_seconds_total": (
        "Seconds that the ends of transactions took: write, fsync and checkpoint.",
    ),
    "store_slowest_fsync_seconds": ("Duration of the slowest end since the start.",),
    "store_rewritten_bytes_total": (
        "Bytes of messages written again, to free the room of acknowledged ones beside them.",
    ),
    "store_failures_total": ("Times that the disk refused a write of the store.",),
    "store_damages_total": (
        "Places in the store that could not be read, when it was opened or since.",
    ),
    "store_trouble": (
        "Whether the store cannot be written to: 1 while disk or JetStream refuses, otherwise 0.",
    ),
    "store_replicated_entries_total": (
        "Entries that JetStream has taken, with --store nats: a group of changes each, or a part.",
    ),
    "store_replicated_bytes": (
        "Bytes of changes in JetStream since the last snapshot: a restart reads them.",
    ),
    "store_replicated_snapshots_total": ("Snapshots of the store written to JetStream.",),
    "store_replicated_pending_bytes": ("Bytes that wait in RAM for JetStream.",),
}
"""The description of each metric, and its label if it has one."""
