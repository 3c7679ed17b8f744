"""The settings of a queue."""

from __future__ import annotations

import enum
from typing import Any

import attrs

DEFAULT_DELIVERY_LIMIT = 20
"""Most failed deliveries of one message; as RabbitMQ's quorum queues (since 4.0)."""


class Overflow(enum.StrEnum):
    """The overflow policy of a full queue, in RabbitMQ's words (`x-overflow`)."""

    DROP_HEAD = "drop-head"
    """Drop the oldest ready messages, or dead-letter them."""
    REJECT_PUBLISH = "reject-publish"
    """Refuse new messages, and nack them to publishers with confirms."""
    REJECT_PUBLISH_DLX = "reject-publish-dlx"
    """Refuse new messages, and dead-letter them."""


def _not_negative(_: object, attribute: attrs.Attribute[Any], value: float | None) -> None:
    if value is not None and value < 0:
        msg = f"{attribute.name} must be at least 0, or None for no limit, not {value}"
        raise ValueError(msg)


def _positive(_: object, attribute: attrs.Attribute[Any], value: float | None) -> None:
    if value is not None and value <= 0:
        msg = f"{attribute.name} must be more than 0, or None for never, not {value}"
        raise ValueError(msg)


@attrs.frozen(slots=True, kw_only=True)
class QueueSettings:
    """The settings of a queue. Its disk budget is the limit of its account."""

    durable: bool = False
    """Whether it survives a restart, with its persistent messages; if it has a shelf."""
    auto_delete: bool = False
    """Whether it is deleted when its last consumer has gone; not before there was one."""
    max_length: int | None = attrs.field(default=None, validator=_not_negative)
    """Most ready messages, or None for no limit."""
    max_bytes: int | None = attrs.field(default=None, validator=_not_negative)
    """Most bytes of ready messages, or None for no limit."""
    overflow: Overflow = Overflow.DROP_HEAD
    """The policy when there would be more."""
    message_ttl: float | None = attrs.field(default=None, validator=_not_negative)
    """Seconds until a message expires, or None for never; 0: unless it is delivered at once."""
    expires: float | None = attrs.field(default=None, validator=_positive)
    """Seconds without a consumer, a `get` or a `touch` after which it is deleted, or None."""
    delivery_limit: int | None = attrs.field(
        default=DEFAULT_DELIVERY_LIMIT, validator=_not_negative
    )
    """How often the delivery of a message may fail (be rejected into the queue, or end with a
    consumer that broke down) before it is dead-lettered or dropped; None: any number of times."""
