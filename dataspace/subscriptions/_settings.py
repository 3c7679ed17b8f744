"""What a subscription may be told to do, and how much of everything there may be."""

from __future__ import annotations

import enum

import attrs

from ...accounts import DEFAULT_PATIENCE, KEEP, Limit, StuckPolicy

DEFAULT_GRACE = 60.0
"""Seconds. Restarting a Spark driver takes 10 to 20 (measured: 5.5 to 12 for the session alone);
a third of Kafka's default for how long a transaction may stay open is 20."""


class Start(enum.StrEnum):
    """Where a reader begins that has not read before; as Kafka's `auto.offset.reset`."""

    EARLIEST = "earliest"
    """With the oldest message that is still owed for."""
    LATEST = "latest"
    """With what comes after the first time that it is asked for."""


class AfterGrace(enum.StrEnum):
    """What becomes of a subscription's debt when nobody has come back within its grace."""

    HOLD = "hold"
    """It stays; publishers wait by their limits. The log names who waits on whom."""
    DROP = "drop"
    """The subscription is forgotten with what it holds, which is repaid as `dropped`."""
    WRITE_OFF = "write_off"
    """It stays; what it holds is written off, and what comes is dropped until a reader attaches."""


@attrs.frozen(slots=True, kw_only=True)
class SubscriptionOptions:
    """What one subscription is to be like; said when it is made."""

    durable: bool = False
    """Whether what it holds is to go to disk: its publishers are repaid then (`stored`)."""
    grace: float = DEFAULT_GRACE
    """How long it waits for its reader to come back, in seconds."""
    after_grace: AfterGrace = AfterGrace.HOLD
    """What it does then."""


@attrs.frozen(slots=True, kw_only=True)
class SubscriptionLimits:
    """What readers may make grow; each with the precedent of its default."""

    max_subscriptions: int = 1_000
    """Subscriptions of one relay; what MQTT clients may have of filters each."""
    max_name: int = 255
    """Bytes of a subscription's name: as of a file's."""
    max_filters: int = 100
    """Topic filters of one subscription."""
    max_items: int | None = 10_000_000
    """Events that one subscription may hold in RAM, on its publishers' accounts. Beyond it the
    oldest are written off, which its reader is told as a loss. None: as many as publishers may
    owe."""
    max_bytes: int | None = 1 << 30
    """Their bytes; four times what a relay's clients may owe together by default, so that their
    limits are met first."""
    max_disk_bytes: int | None = 10 << 30
    """Bytes of one durable subscription on disk; beyond it its publishers pay again."""
    cache_bytes: int = 4 << 20
    """Bytes of what is at rest that one durable subscription keeps in RAM too, to be read from
    there: eight blocks for each of eight readers."""
    patience: float = DEFAULT_PATIENCE
    """After how long it is dealt with that acknowledges nothing while others wait."""
    stuck: StuckPolicy = StuckPolicy.WAIT
    """What happens then; see `RangeSubscription`. To slow its publishers down is what a
    subscription is for, so by default it is only named; a relay has its own default."""
    keep: Limit = KEEP
    """How much one in RAM keeps while it is behind."""
