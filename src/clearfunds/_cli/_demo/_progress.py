"""How far the demo has come: what its screen and its summary are made of."""

from __future__ import annotations

import attrs

from ._flights import Interest
from ._ledger_view import LedgerView
from ._receipts import Receipts

PUBLISHER = "publisher"
"""The client identifier of the one that publishes."""


@attrs.define
class Subscriber:
    """One of the nine."""

    interest: Interest
    """What it wants."""
    receipts: Receipts
    """What it should be given and has been given."""
    pausing: bool = False
    """Whether it reads nothing at the moment."""

    @property
    def name(self) -> str:
        """Its client identifier."""
        return self.interest.name


@attrs.define
class Progress:
    """How far the demo has come."""

    total: int
    """Messages to publish."""
    limit_items: int
    """What the publisher may owe before the relay stops reading it."""
    subscribers: list[Subscriber]
    """The nine."""
    published: int = 0
    """Messages handed to the relay's socket."""
    seconds: float = 0.0
    """Since the first of them."""
    ledger: LedgerView | None = None
    """The relay's ledger as last looked at."""
    fault: str | None = None
    """Why it could not be looked at the last time, None if it could."""

    @property
    def delivered(self) -> int:
        """Messages that came as they should, over all subscribers."""
        return sum(each.receipts.delivered for each in self.subscribers)

    @property
    def expected(self) -> int:
        """Messages that should come, over all subscribers."""
        return sum(each.receipts.expected for each in self.subscribers)

    @property
    def complete(self) -> bool:
        """Whether everything has been published and has come."""
        return self.published == self.total and all(s.receipts.complete for s in self.subscribers)
