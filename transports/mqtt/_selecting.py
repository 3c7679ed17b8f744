"""What stands before a holder and selects what it gets: for MQTT 5's options of subscriptions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import attrs

from ...accounts import Account, Holder, Outcome, Recipient
from ...dataspace import Publication
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
    """Stands before who takes what is acknowledged, and passes on what `select` makes of each.

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
        """See `Recipient.hold`; `item` is a `Publication`: runs are not acknowledged."""
        selected = self._select(account, item)
        if selected is None:
            account.repay(items, nbytes, Outcome.DROPPED)
        else:
            self._holder.hold(account, selected, items, nbytes, now)

    def ready(self) -> None:
        """See `Recipient.ready`."""
        self._holder.ready()
