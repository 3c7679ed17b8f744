"""The cost of notifying observers: the publisher pays for its event, an observer for its patterns.

The captures of a pattern may be much larger than the event: forty times the payload, say, for a
thousand observers of one connection. That is the observer's choice, so the surplus that its
patterns make is charged to its own account, as the replay to a new observer is (rules 2 and 16).
Otherwise strangers could make anybody's publication as expensive as they like.

An observer whose limit this exceeds gets no more of the event, and is given up with a reason: the
publisher does not wait.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from ..accounts import Account, Holder, Recipient, Turn

if TYPE_CHECKING:
    from ._dataspace import Observation

logger = logging.getLogger("clearfunds.dataspace")

PAID_BY_PUBLISHER: Final = 8
"""How many times the cost of an event its publisher pays for each holder: enough for all patterns
that programs write by hand."""

LEAST_BYTES: Final = 256
"""The least cost of an event for this limit: small ones have room for their captures."""

ITEM_BYTES: Final = 64
"""The extra cost of each copy for this limit."""


class Telling:
    """Tells observers of one event, within one turn.

    Args:
        turn: The turn whose account pays, except for the surplus that observers cause.
        nbytes: The cost of the event.
        holder_of: Returns the holder of an observation.
    """

    __slots__ = ("_allowed", "_holder_of", "_rooms", "_told", "_turn")

    def __init__(
        self, turn: Turn, nbytes: int, holder_of: Callable[[Observation], Recipient]
    ) -> None:
        self._turn = turn
        self._holder_of = holder_of
        self._allowed = PAID_BY_PUBLISHER * max(nbytes, LEAST_BYTES)
        # Bytes each holder got on the publisher's account; and by account of the observer, the debt
        # that it may still take on itself, None if it has had too much.
        self._told: dict[Recipient, int] = {}
        self._rooms: dict[Account, tuple[int, int] | None] = {}

    def tell(self, observation: Observation, shown: Any, size: int) -> bool:
        """Tell one observer; False if it gets no more of this event."""
        owner = observation.assertion.owner
        holder = self._holder_of(observation)
        last = holder.last_holder or holder
        told = self._told.get(last, 0) + size + ITEM_BYTES
        turn = self._turn
        if told <= self._allowed or owner is turn.account or owner.opens <= 0:
            self._told[last] = told
            turn.deliver(holder, shown, 1, size)
            return True
        if owner not in self._rooms:
            self._rooms[owner] = owner.room()
        room = self._rooms[owner]
        if room is None:
            return False
        items, nbytes = room[0] - 1, room[1] - size
        if items < 0 or nbytes < 0:
            self._rooms[owner] = None
            turn.afterwards(partial(_give_up, holder))
            return False
        self._rooms[owner] = items, nbytes
        turn.deliver(holder, shown, 1, size, owner)
        return True


def _give_up(recipient: Recipient) -> None:
    holder = recipient.last_holder
    if isinstance(holder, Holder):
        why = "its patterns make more of what others publish than it may owe"
        logger.warning(
            "%s is given up: %s",
            holder.name,
            why,
            extra={"event": "observer_given_up", "holder": holder.name, "reason": why},
        )
        holder.give_up(why)
