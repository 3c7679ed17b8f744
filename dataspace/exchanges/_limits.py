"""Limits on what the clients of one virtual host may declare."""

from __future__ import annotations

from typing import Final

import attrs

DEFAULT_MAX_QUEUES: Final = 10_000
"""As many as MQTT sessions by default. RabbitMQ's `max-queues` of a virtual host has no default;
CloudAMQP's free plan has 100."""

DEFAULT_MAX_EXCHANGES: Final = 1_000
"""RabbitMQ's `cluster_exchange_limit` has no default; applications have a few dozen."""

DEFAULT_MAX_BINDINGS: Final = 100_000
"""Ten for each queue."""

DEFAULT_DEFINITION_BYTES: Final = 64 << 20
"""For names, keys and arguments: 640 bytes a binding with all of them."""

DEFAULT_MAX_COPIES: Final = 1_000
"""Of the sender-selected distribution; RabbitMQ takes what fits into a frame, 26,000."""

MAX_NAME_BYTES: Final = 255
"""AMQP 0-9-1, section 4.2.5.3: a short string."""


@attrs.frozen(slots=True, kw_only=True)
class HostLimits:
    """Limits on what the clients of one virtual host may declare, altogether."""

    queues: int = DEFAULT_MAX_QUEUES
    """Most queues."""
    exchanges: int = DEFAULT_MAX_EXCHANGES
    """Most exchanges, those that are always there not counted."""
    bindings: int = DEFAULT_MAX_BINDINGS
    """Most bindings, those of the default exchange not counted."""
    copies: int = DEFAULT_MAX_COPIES
    """Most further routing keys of one message: its headers `CC` and `BCC`."""
    definition_bytes: int = DEFAULT_DEFINITION_BYTES
    """Most memory for the names, keys and arguments of all of them, in bytes (an estimate)."""
