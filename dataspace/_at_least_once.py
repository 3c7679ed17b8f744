"""The recipient of a subscription that was granted QoS 1, before a holder that takes QoS 2, too."""

from __future__ import annotations

from typing import Any

import attrs

from ..accounts import Account, Holder, Recipient


class AtLeastOnce(Recipient):
    """Stands before who takes QoS 1 and 2, for a subscription that was granted QoS 1 only."""

    __slots__ = ("_holder",)

    def __init__(self, holder: Recipient) -> None:
        self._holder = holder

    @property
    def last_holder(self) -> Holder | None:
        """See `Recipient.last_holder`."""
        return self._holder.last_holder

    def hold(self, account: Account, item: Any, items: int, nbytes: int, now: float) -> None:
        """See `Recipient.hold`; `item` is a `Publication`."""
        if item.qos > 1:
            item = attrs.evolve(item, qos=1)
        self._holder.hold(account, item, items, nbytes, now)

    def ready(self) -> None:
        """See `Recipient.ready`."""
        self._holder.ready()
