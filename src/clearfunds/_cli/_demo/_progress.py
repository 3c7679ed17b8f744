"""The demo's progress, for its screen and its summary."""

from __future__ import annotations

import attrs

from ._flights import Interest
from ._ledger_view import LedgerView
from ._receipts import Receipts

PUBLISHER = "publisher"
"""The client identifier of the publisher."""


@attrs.define
class Subscriber:
    """One of the nine subscribers."""

    interest: Interest
    """Its subscription."""
    receipts: Receipts
    """Its expected and received messages."""
    pausing: bool = False
    """Whether it reads nothing now."""

    @property
    def name(self) -> str:
        """Its client identifier."""
        return self.interest.name


@attrs.define
class Progress:
    """The demo's progress."""

    total: int
    """Messages to publish."""
    limit_items: int
    """The publisher's high-water mark."""
    subscribers: list[Subscriber]
    """The nine subscribers."""
    published: int = 0
    """Messages handed to the relay's socket."""
    seconds: float = 0.0
    """Seconds since the first of them."""
    ledger: LedgerView | None = None
    """The relay's ledger, as last fetched."""
    fault: str | None = None
    """The error of the last fetch, None if it worked."""

    @property
    def delivered(self) -> int:
        """Correctly delivered messages, over all subscribers."""
        return sum(each.receipts.delivered for each in self.subscribers)

    @property
    def expected(self) -> int:
        """Expected messages, over all subscribers."""
        return sum(each.receipts.expected for each in self.subscribers)

    @property
    def complete(self) -> bool:
        """Whether everything has been published and delivered."""
        return self.published == self.total and all(s.receipts.complete for s in self.subscribers)
