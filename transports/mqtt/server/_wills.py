"""Wills of connected clients, and delayed wills of clients that have gone and may come back.

The server keeps a will while its client is connected, and may publish it some time after that
(MQTT 5, section 3.1.3.2.2). A will counts in its owner's quota (rule 16). All wills together have a
limit, and no user, or address, may use all of it (`fits`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs

from ....access._shares import fits
from ....accounts import QuotaExceededError
from ....dataspace import Publication
from ..codec._properties import application_properties

if TYPE_CHECKING:
    from ....access._tenants import Peer
    from ....accounts import Standing
    from ..codec._packets import Will

MAX_DELAYED: Final = 1_000
"""Delayed wills at a time; further ones are not delayed. A tenth of the persistent sessions."""

MAX_DELAYED_BYTES: Final = 16 << 20
"""The bytes of their topics, payloads and properties."""

WILL_BYTES: Final = 512
"""Bytes that a will takes beside its text and payload (measured)."""


@attrs.frozen(slots=True)
class LastWill:
    """A will in the form in which it is published."""

    publication: Publication
    delay: int = 0
    """Seconds that it waits; its session's end may be sooner, see `DelayedWills`."""
    expiry: int | None = None
    """Message expiry interval: seconds from its publication on."""

    @classmethod
    def of(cls, will: Will) -> LastWill:
        """Convert the will of a CONNECT."""
        said = will.properties
        publication = Publication(
            will.topic, will.payload, will.qos, will.retain, application_properties(said)
        )
        return cls(publication, said.will_delay or 0, said.message_expiry)

    @property
    def topic(self) -> str:
        """Its topic."""
        return self.publication.topic

    @property
    def cost(self) -> int:
        """The bytes that it takes in memory."""
        return WILL_BYTES + self.publication.nbytes

    def at(self, now: float) -> Publication:
        """Return the publication at `now`, on the wall clock."""
        if self.expiry is None:
            return self.publication
        return attrs.evolve(self.publication, expires=now + self.expiry)


class WillRoom:
    """The memory of all wills, delayed ones included.

    Args:
        limit: Bytes, or None for no limit.

    Attributes:
        nbytes: The bytes in use.
    """

    __slots__ = ("_of_share", "limit", "nbytes")

    def __init__(self, limit: int | None = None) -> None:
        self.limit = limit
        self.nbytes = 0
        self._of_share: dict[str, int] = {}

    def __repr__(self) -> str:
        return f"<WillRoom: {self.nbytes} bytes of {len(self._of_share)} shares>"

    def take(self, will: LastWill, share: str, standing: Standing) -> WillPlace:
        """Count a will, for a user or an address, and in its owner's quota.

        Raises:
            QuotaExceededError: If there is no room for it; nothing has been counted.
        """
        cost = will.cost
        standing.check(1, cost)
        mine = self._of_share.get(share, 0)
        limit = self.limit
        if limit is not None and not fits(mine, self.nbytes + cost, limit):
            msg = (
                f"a will that takes {cost} bytes does not fit: all wills take {self.nbytes} of at "
                f"most {limit} bytes, those of {share} take {mine}; shorten it, or raise the limit "
                "(will_limit)"
            )
            raise QuotaExceededError(msg)
        standing.add(1, cost)
        self.nbytes += cost
        self._of_share[share] = mine + cost
        return WillPlace(self, share, standing, cost)

    def give_back(self, share: str, cost: int) -> None:
        """Release bytes of a share; for `WillPlace`."""
        self.nbytes -= cost
        left = self._of_share[share] - cost
        if left:
            self._of_share[share] = left
        else:
            del self._of_share[share]


class WillPlace:
    """The room of one will, until it is released.

    Attributes:
        share: The user, or the address, that it counts for.
    """

    __slots__ = ("_cost", "_room", "_standing", "share")

    def __init__(self, room: WillRoom, share: str, standing: Standing, cost: int) -> None:
        self._room = room
        self._standing = standing
        self._cost = cost
        self.share = share

    def release(self) -> None:
        """Release the room. Idempotent."""
        cost, self._cost = self._cost, 0
        if cost:
            self._standing.release(1, cost)
            self._room.give_back(self.share, cost)


@attrs.frozen(slots=True)
class DelayedWill:
    """A delayed will."""

    client_id: str
    peer: Peer
    """Its owner."""
    will: LastWill
    due: float
    """The time to publish it, on the ledger's clock."""
    place: WillPlace | None = None
    """Its room."""

    @property
    def share(self) -> str:
        """The user, or the address, that it counts for."""
        return "" if self.place is None else self.place.share


class DelayedWills:
    """The delayed wills of one server, one for each absent client, by `identity`.

    Each waits for its time, or the end of its session, whichever comes first. If the client comes
    back to its session before that, the will is not published [MQTT-3.1.3-9].
    """

    __slots__ = ("_by_client", "_of_share", "nbytes")

    def __init__(self) -> None:
        self._by_client: dict[str, DelayedWill] = {}
        self._of_share: dict[str, int] = {}
        self.nbytes = 0

    def __len__(self) -> int:
        """Return the number of delayed wills."""
        return len(self._by_client)

    def add(
        self,
        key: str,
        peer: Peer,
        will: LastWill,
        due: float,
        client_id: str = "",
        place: WillPlace | None = None,
    ) -> bool:
        """Delay a will; return False if there is no room. Its `place` is released with it."""
        size = will.publication.nbytes
        delayed = DelayedWill(client_id, peer, will, due, place)
        mine = self._of_share.get(delayed.share, 0)
        if not fits(mine, len(self), MAX_DELAYED) or self.nbytes + size > MAX_DELAYED_BYTES:
            return False
        self.take(key)
        self._by_client[key] = delayed
        self._of_share[delayed.share] = self._of_share.get(delayed.share, 0) + 1
        self.nbytes += size
        return True

    def take(self, key: str) -> DelayedWill | None:
        """Remove and return a client's delayed will; None if it has none."""
        delayed = self._by_client.pop(key, None)
        if delayed is not None:
            self.nbytes -= delayed.will.publication.nbytes
            self._of_share[delayed.share] -= 1
            if not self._of_share[delayed.share]:
                del self._of_share[delayed.share]
            if delayed.place is not None:
                delayed.place.release()
        return delayed

    def over(self, now: float) -> list[DelayedWill]:
        """Remove and return the wills that are due."""
        if not self._by_client:
            return []
        over = [client for client, each in self._by_client.items() if each.due <= now]
        return [each for client in over if (each := self.take(client)) is not None]
