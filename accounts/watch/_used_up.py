"""Patience that was used up: slow consumers that were left alone although their time was over."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from .._holder import Holder


@attrs.frozen(slots=True)
class UsedUp:
    """Seconds for which readers waited on a holder that has made no progress since.

    Its patience was over, and yet it was left alone: handling others let the readers go on. If
    readers wait on it again, its patience goes on from here and does not begin anew. Otherwise each
    of ten stuck consumers would cost its publishers a patience.
    """

    seconds: float
    """How long they waited without any progress."""
    until: float
    """The time at which they went on."""

    @staticmethod
    def note(holder: Holder, seconds: float, until: float) -> None:
        """Note it, until the holder makes progress."""
        holder.ledger.used_up[holder] = UsedUp(seconds, until)


def idle_seconds(holder: Holder, since: float, now: float) -> float:
    """Return the seconds at `now` without progress while readers waited on a holder.

    Args:
        holder: The holder.
        since: When the first of the readers that wait on it now began to wait.
        now: The time, on the ledger's clock.
    """
    used_up = holder.ledger.used_up
    before = used_up.get(holder)
    if before is not None and holder.progressed_at > before.until:
        del used_up[holder]
        before = None
    if before is None:
        return now - max(holder.progressed_at, since)
    return before.seconds + now - max(before.until, since)
