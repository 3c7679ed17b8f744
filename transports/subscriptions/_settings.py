"""What readers of subscriptions may make grow, and how long they may take."""

from __future__ import annotations

import attrs

from ...accounts import Limit
from ...dataspace.sinks import SinkLimits
from .._settings import DEFAULT_NAMES_EACH, ServerSettings
from ..mqtt._frames import DEFAULT_MAX_PACKET_SIZE
from ..mqtt._topics import TopicLimits
from ._frames import DEFAULT_MAX_FRAME_SIZE


@attrs.frozen(slots=True, kw_only=True)
class SubscriptionSettings(ServerSettings):
    """What holds for each reader's connection; each with the precedent of its default.

    How many subscriptions there may be, and how much each may hold, is said in
    `clearfunds.dataspace.subscriptions.SubscriptionLimits`.
    """

    limit: Limit = attrs.field(factory=lambda: Limit(items=None, bytes=4 << 20))
    """What may be on its way to one connection before it is asked for no more: four answers of
    Kafka's `max.partition.fetch.bytes`."""
    max_unsent_bytes: int | None = 256 << 20
    """What may be on its way to all of them together; as much as publishers may owe. Readers have
    no account under the publishers': what they read is what lets those go on."""
    max_frame_size: int = DEFAULT_MAX_FRAME_SIZE
    """Bytes of one frame that a reader sends."""
    topics: TopicLimits = attrs.field(factory=TopicLimits)
    """How long and how deep a topic filter may be; as MQTT clients have it."""
    max_attachments: int = 64
    """Subscriptions that one connection may be attached to."""
    max_fetch_bytes: int = 4 << 20
    """Bytes of one answer, but for its last block, whatever it was asked for."""
    max_reads: int = 8
    """Reads of the disk at a time, of all connections."""
    max_stage_size: int = DEFAULT_MAX_PACKET_SIZE + (64 << 10)
    """Bytes of one STAGE of a writer's: whatever MQTT's clients may publish fits into it."""
    sinks: SinkLimits = attrs.field(factory=SinkLimits)
    """How many writers there may be, and how much each may hold."""
    max_names_each: int = DEFAULT_NAMES_EACH
    """Subscriptions, and writers, that one user may have, where users are known."""
    range_owner: str | None = None
    """The user whose subscriptions and writers those are that were made where nobody was known;
    None: nobody's, and nobody can reach them where users are known."""
    store_timeout: float = 10.0
    """How long an attachment to a durable subscription waits until it is on disk."""
