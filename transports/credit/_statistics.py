"""How credit stands in a relay, as its pages tell of it."""

from __future__ import annotations

import attrs

from ...accounts import CreditFlowStatistics
from ...accounts._credit_flow import CreditSums


@attrs.frozen(slots=True)
class ProcessStatistics:
    """One process that is blocked now."""

    kind: str
    """`reader` or `queue`."""
    flow: CreditFlowStatistics
    """How its credit stands, and with whom."""


@attrs.frozen(slots=True)
class KindStatistics:
    """All processes of a kind: `reader`, `outlet`, `inflight`, `queue`, `subscription`, `store`."""

    processes: int
    """How many there are now."""
    flow: int
    """How many of them RabbitMQ would show as `flow`: blocked, or come to be a moment ago."""
    blocked: int
    """How many are blocked now."""
    deferred: int
    """How many grants they hold back now."""
    received: int
    """Messages ever sent to them."""
    sums: CreditSums
    """What they did so far, those included that are no more."""


@attrs.frozen(slots=True)
class CreditStatistics:
    """How credit stands in a relay."""

    kinds: dict[str, KindStatistics]
    """By kind."""
    blocked: tuple[ProcessStatistics, ...]
    """Those that are blocked now, for longest first."""
