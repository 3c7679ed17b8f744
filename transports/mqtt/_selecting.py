"""What stands before a holder and selects what it gets: for MQTT 5's options of subscriptions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import attrs

from ...accounts import Account, Holder, Outcome, Recipient
from ...dataspace import Batch, Publication
from ._filters import Filters

Select: TypeAlias = Callable[[Account, Publication], Publication | None]
"""Given who pays for a publication and the publication, returns what goes on; None: nothing does.
Called in a commit: must not raise."""


def select_by(filters: Filters, publication: Publication, *, own: bool) -> Publication | None:
    """Return a publication as a client with these filters gets it; None: it does not.

    Args:
        filters: The client's.
        publication: What was published.
        own: Whether the client itself has published it (MQTT 5, No Local, section 3.8.3.1).
    """
    chosen = filters.of(publication.topic)
    if own and not chosen.local:
        return None
    if chosen.as_published and publication.was_retained and not publication.retain:
        return attrs.evolve(publication, retain=True)
    return publication


class Selecting(Recipient):
    """Stands before who takes publications, and passes on what `select` makes of each.

    What it does not want is repaid at once, as `dropped`; by nobody: the holder has not had it.
    """

    __slots__ = ("_holder", "_select")

    def __init__(self, holder: Recipient, select: Select) -> None:
        self._holder = holder
        self._select = select

    def __repr__(self) -> str:
        return f"<Selecting before {self._holder!r}>"

    @property
    def last_holder(self) -> Holder | None:
        """See `Recipient.last_holder`."""
        return self._holder.last_holder

    def hold(self, account: Account, item: Any, items: int, nbytes: int, now: float) -> None:
        """See `Recipient.hold`; `item` is a `Publication`, or a run of them."""
        if type(item) is Batch:
            self._hold_run(account, item, items, nbytes, now)
            return
        selected = self._select(account, item)
        if selected is None:
            account.repay(items, nbytes, Outcome.DROPPED)
        else:
            self._holder.hold(account, selected, items, nbytes, now)

    def _hold_run(
        self, account: Account, batch: Batch, items: int, nbytes: int, now: float
    ) -> None:
        """Pass on a run as it is if all of it is wanted so; else take it apart."""
        events = list(batch.events())
        selected = [self._select(account, event) for event in events]
        sizes = [event.nbytes for event in events]
        framing = nbytes - sum(sizes)
        whole = all(one is event for one, event in zip(selected, events, strict=True))
        # A run that is not what it says of itself is not taken apart, so that the books balance.
        if whole or len(events) != items or framing < 0:
            self._holder.hold(account, batch, items, nbytes, now)
            return
        share, rest = divmod(framing, items)
        for one, size in zip(selected, sizes, strict=True):
            cost = size + share + rest
            rest = 0
            if one is None:
                account.repay(1, cost, Outcome.DROPPED)
            else:
                self._holder.hold(account, one, 1, cost, now)

    def ready(self) -> None:
        """See `Recipient.ready`."""
        self._holder.ready()
