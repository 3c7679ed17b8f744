"""Statistics of a queue."""

from __future__ import annotations

import attrs

from ._backing import BackingStatistics


@attrs.define(slots=True)
class Counters:
    """Counts of everything that has ever happened to a queue's messages."""

    published: int = 0
    """Messages that came, however they ended."""
    delivered: int = 0
    """Deliveries to consumers, and by `get`."""
    redelivered: int = 0
    """Of those, messages that some consumer may have had before."""
    acked: int = 0
    """Messages that were acknowledged, or delivered to a consumer without acks."""
    requeued: int = 0
    """Deliveries that came back into the queue."""
    rejected: int = 0
    """Messages rejected without requeue."""
    failed: int = 0
    """Messages whose delivery has failed too often."""
    expired: int = 0
    """Messages that outlived their time to live."""
    dropped: int = 0
    """Messages that were dropped from the head because the queue was full."""
    refused: int = 0
    """Messages that were refused because it was full, or the disk in trouble."""
    purged: int = 0
    """Messages that were purged, or deleted with the queue."""
    written_off: int = 0
    """Messages that were discarded because publishers waited for them for too long."""
    dead_lettered: int = 0
    """Of all these, messages that were published once more as dead letters."""
    dead_letters_failed: int = 0
    """Dead letters that could not be published, or were refused at their destination."""
    cycles: int = 0
    """Dead letters that came back here without a consumer's doing, and were dropped."""
    stored: int = 0
    """Messages that came to rest on disk."""
    recovered: int = 0
    """Messages that were found there after a restart."""
    lost: int = 0
    """Messages that should have been found there and were not."""
    passed: int = 0
    """Of those that came to a group, messages that went straight through to a member, which does
    not acknowledge them."""
    spent: int = 0
    """Messages of a group that ended with a member that left: it may have had them, and no other
    member may get them."""


@attrs.frozen(slots=True)
class QueueStatistics:
    """Statistics of a queue."""

    name: str
    """Its name."""
    ready: int
    """Messages that wait for a consumer."""
    ready_bytes: int
    """Their bytes."""
    unacked: int
    """Messages that are delivered and not acknowledged."""
    unacked_bytes: int
    """Their bytes."""
    disk_items: int
    """Of both, messages at rest: durable, and charged to the queue's own account."""
    disk_bytes: int
    """Their bytes."""
    unsynced: int
    """Messages that are written and not durable yet."""
    unwritten: int
    """Persistent messages that wait for room in the disk budget."""
    trouble: str | None
    """The trouble with the disk, or None."""
    consumers: int
    """The number of consumers."""
    consumers_full: int
    """The number of them with full prefetch windows."""
    bindings: int
    """The number of its bindings."""
    ingress: float
    """Messages published, a second: a moving average with a half-life of five seconds."""
    egress: float
    """Messages that left the head, a second."""
    ack_egress: float
    """Messages acknowledged or requeued, a second."""
    backing: BackingStatistics
    """The places of its ready messages."""
    counters: Counters
    """Counts of everything that has ever happened; a copy."""
