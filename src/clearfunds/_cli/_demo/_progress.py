"""The demo's progress, for its screen and its summary."""

from __future__ import annotations

import attrs

from clearfunds import Profile

from ._flights import SLOW, Interest
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
    profile: Profile
    """What the relay does about slow consumers."""
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
    def dropped(self) -> int:
        """Messages that did not come, and that the relay counts as dropped for the slow one."""
        if self.ledger is None or self.profile is not Profile.LIVE:
            return 0
        slow = next(each for each in self.subscribers if each.name == SLOW)
        return min(self.ledger.dropped_for(SLOW), slow.receipts.lost)

    @property
    def lost(self) -> int:
        """Messages that have not come, over all subscribers."""
        return sum(each.receipts.lost for each in self.subscribers)

    @property
    def complete(self) -> bool:
        """Whether everything has been published, and delivered or dropped."""
        return self.published == self.total and self.lost == self.dropped
