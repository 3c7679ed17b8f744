"""Options of a subscription, and limits of all."""

from __future__ import annotations

import attrs

from ...accounts import DEFAULT_PATIENCE, RETAIN_LIMIT, Limit, StuckPolicy
from ..wire import AfterGrace

DEFAULT_GRACE = 60.0
"""Seconds. A restart of a Spark driver takes 10 to 20 (measured: 5.5 to 12 for the session alone);
a third of Kafka's default timeout of an open transaction is 20."""


@attrs.frozen(slots=True, kw_only=True)
class SubscriptionOptions:
    """Options of one subscription, given when it is made."""

    durable: bool = False
    """Whether its messages go to disk: its publishers are repaid then (`stored`)."""
    grace: float = DEFAULT_GRACE
    """Seconds that it waits for its reader to come back."""
    after_grace: AfterGrace = AfterGrace.HOLD
    """Its policy after that."""


@attrs.frozen(slots=True, kw_only=True)
class SubscriptionLimits:
    """Limits on the growth of readers' data; each with the precedent of its default."""

    max_subscriptions: int = 1_000
    """Subscriptions of one relay; as many as an MQTT client may have filters."""
    max_name: int = 255
    """Bytes of a subscription's name: as for a file's."""
    max_filters: int = 100
    """Topic filters of one subscription."""
    max_items: int | None = 10_000_000
    """Events that one subscription may hold in RAM, on its publishers' accounts. Beyond it the
    oldest are written off, and its reader gets a loss. None: as many as its publishers' limits
    allow."""
    max_bytes: int | None = 1 << 30
    """Their bytes; four times what a relay's clients may owe together by default, so that their
    limits are met first."""
    max_disk_bytes: int | None = 10 << 30
    """Bytes of one durable subscription on disk; beyond it its publishers pay again."""
    cache_bytes: int = 4 << 20
    """Bytes at rest that one durable subscription keeps in RAM too, for reads: eight blocks for
    each of eight readers."""
    patience: float = DEFAULT_PATIENCE
    """Slow-consumer timeout: how long it may acknowledge nothing while publishers wait."""
    stuck: StuckPolicy = StuckPolicy.WAIT
    """The slow-consumer policy; see `RangeSubscription`. A subscription is there to slow its
    publishers down, so by default it is only named; a relay has its own default."""
    retain_limit: Limit = RETAIN_LIMIT
    """Messages that one in RAM keeps while it is behind."""
