"""The state of credit in a relay, for its pages."""

from __future__ import annotations

import attrs

from ._credit_flow import CreditFlowStatistics, CreditSums


@attrs.frozen(slots=True)
class ProcessStatistics:
    """One process that is blocked now."""

    kind: str
    """`reader` or `queue`."""
    flow: CreditFlowStatistics
    """The state of its credit, and its peers."""


@attrs.frozen(slots=True)
class KindStatistics:
    """All processes of a kind: `reader`, `outlet`, `inflight`, `queue`, `subscription`, `store`."""

    processes: int
    """Processes now."""
    flow: int
    """Processes that RabbitMQ would show as `flow`: blocked, or so a moment ago."""
    blocked: int
    """Processes blocked now."""
    deferred: int
    """Grants that they hold back now."""
    received: int
    """Messages ever sent to them."""
    sums: CreditSums
    """Their counts so far, including ended ones."""


@attrs.frozen(slots=True)
class CreditStatistics:
    """The state of credit in a relay."""

    kinds: dict[str, KindStatistics]
    """By kind."""
    blocked: tuple[ProcessStatistics, ...]
    """The blocked ones, the longest blocked first."""
