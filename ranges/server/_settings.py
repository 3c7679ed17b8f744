"""Limits and timeouts for readers of subscriptions."""

from __future__ import annotations

import attrs

from ...transports._settings import ServerSettings
from ...transports.mqtt.codec._frames import DEFAULT_MAX_PACKET_SIZE
from ...transports.mqtt.codec._topics import TopicLimits
from ..sink import SinkLimits
from ._frames import DEFAULT_MAX_FRAME_SIZE


@attrs.frozen(slots=True, kw_only=True)
class SubscriptionSettings(ServerSettings):
    """The settings for each reader's connection; each with the precedent of its default.

    `clearfunds.ranges.log.SubscriptionLimits` limits the number of subscriptions, and
    the size of each.
    """

    limit_items: int | None = None
    limit_bytes: int | None = 4 << 20
    """Data on its way to one connection before it gets no more: four answers of
    Kafka's `max.partition.fetch.bytes`."""
    max_unsent_bytes: int | None = 256 << 20
    """Data on its way to all of them together; as much as publishers may owe. Readers' accounts are
    not under the publishers': reading is what lets publishers go on."""
    max_frame_size: int = DEFAULT_MAX_FRAME_SIZE
    """Bytes of one frame from a reader."""
    topics: TopicLimits = attrs.field(factory=TopicLimits)
    """Limits on the length and depth of a topic filter; as for MQTT clients."""
    max_attachments: int = 64
    """Attachments of one connection."""
    max_fetch_bytes: int = 4 << 20
    """Bytes of one answer, without its last block, whatever the request says."""
    max_reads: int = 8
    """Concurrent reads of the disk, of all connections."""
    max_stage_size: int = DEFAULT_MAX_PACKET_SIZE + (64 << 10)
    """Bytes of one STAGE of a writer: any publication allowed to MQTT clients fits into it."""
    sinks: SinkLimits = attrs.field(factory=SinkLimits)
    """Limits on the number of writers, and on the size of each."""
    store_timeout: float = 10.0
    """How long an attachment waits for a durable subscription to be on disk."""
