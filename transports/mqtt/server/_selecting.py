"""A recipient before a holder that filters publications by the subscription options of MQTT 5."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import attrs

from ....accounts import Account, Holder, Outcome, Recipient
from ....dataspace import Publication
from ._filters import Filters

Select: TypeAlias = Callable[[Account, Publication], Publication | None]
"""Takes the paying account and a publication; returns the publication to pass on, or None. It is
called in a commit, and must not raise."""


def select_by(filters: Filters, publication: Publication, *, own: bool) -> Publication | None:
    """Return the form in which a client with these filters gets a publication; None: not at all.

    Args:
        filters: The client's filters.
        publication: The publication.
        own: Whether the client itself has published it (MQTT 5, No Local, section 3.8.3.1).
    """
    chosen = filters.of(publication.topic)
    if own and not chosen.local:
        return None
    if chosen.as_published and publication.was_retained and not publication.retain:
        return attrs.evolve(publication, retain=True)
    return publication


class Selecting(Recipient):
    """Passes publications on to the holder of messages to acknowledge, as `select` returns them.

    Others are repaid at once, as `dropped`. No holder is named, because the holder never had them.
    """

    __slots__ = ("_holder", "_select")

    def __init__(self, holder: Recipient, select: Select) -> None:
        self._holder = holder
        self._select = select

    def __repr__(self) -> str:
        return f"<Selecting before {self._holder!r}>"

    @property
    def last_holder(self) -> Holder | None:
        return self._holder.last_holder

    def hold(self, account: Account, item: Any, items: int, nbytes: int, now: float) -> None:
        """Hold an item, as `Recipient.hold`; it is a `Publication`: runs are not acknowledged."""
        selected = self._select(account, item)
        if selected is None:
            account.repay(items, nbytes, Outcome.DROPPED)
        else:
            self._holder.hold(account, selected, items, nbytes, now)

    def ready(self) -> None:
        self._holder.ready()
