"""Wills: of clients that are connected, and of clients that have gone and may come back.

A will is kept for as long as its client is connected, and published perhaps some time after that
(MQTT 5, section 3.1.3.2.2). It counts in its owner's quota (rule 16), and all of them together have
a limit, of which each user, or address, leaves something to the others (`fits`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs

from ...accounts import QuotaExceededError
from ...dataspace import Publication
from .._shares import fits
from ._properties import application_properties

if TYPE_CHECKING:
    from ...accounts import Standing
    from .._tenants import Peer
    from ._packets import Will

MAX_DELAYED: Final = 1_000
"""Wills that wait at a time; further ones do not. A tenth of the sessions that are kept."""

MAX_DELAYED_BYTES: Final = 16 << 20
"""The bytes of their topics, payloads and properties."""

DEFAULT_WILL_LIMIT: Final = 32 << 20
"""What all wills may take: 10,000 clients, the default limit of connections, with 3 KiB each."""

WILL_BYTES: Final = 512
"""What a will takes beside its text and payload (measured)."""


@attrs.frozen(slots=True)
class LastWill:
    """What is published if a client goes without saying goodbye, in the form in which it is."""

    publication: Publication
    delay: int = 0
    """Seconds that it waits; if its session is kept, see `DelayedWills`."""
    expiry: int | None = None
    """Seconds that it may be told for, from when it is published on."""

    @classmethod
    def of(cls, will: Will) -> LastWill:
        """Return what a CONNECT has as its will."""
        said = will.properties
        publication = Publication(
            will.topic, will.payload, will.qos, will.retain, application_properties(said)
        )
        return cls(publication, said.will_delay or 0, said.message_expiry)

    @property
    def topic(self) -> str:
        """Where it is published."""
        return self.publication.topic

    @property
    def cost(self) -> int:
        """How many bytes it takes in memory."""
        return WILL_BYTES + self.publication.nbytes

    def at(self, now: float) -> Publication:
        """Return what is published at `now`, on the wall clock."""
        if self.expiry is None:
            return self.publication
        return attrs.evolve(self.publication, expires=now + self.expiry)


class WillRoom:
    """How much all wills may take, those that wait included.

    Args:
        limit: Bytes, or None for no limit.

    Attributes:
        nbytes: What they take.
    """

    __slots__ = ("_of_share", "limit", "nbytes")

    def __init__(self, limit: int | None = DEFAULT_WILL_LIMIT) -> None:
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
                f"a will that takes {cost} bytes does not fit: all wills take {self.nbytes} of the "
                f"{limit} that they may take, those of {share} {mine}; shorten it, or raise the "
                "limit (will_limit)"
            )
            raise QuotaExceededError(msg)
        standing.add(1, cost)
        self.nbytes += cost
        self._of_share[share] = mine + cost
        return WillPlace(self, share, standing, cost)

    def give_back(self, share: str, cost: int) -> None:
        """Count so much no more; for `WillPlace`."""
        self.nbytes -= cost
        left = self._of_share[share] - cost
        if left:
            self._of_share[share] = left
        else:
            del self._of_share[share]


class WillPlace:
    """What one will takes, until it is released.

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
        """Count it no more. Idempotent."""
        cost, self._cost = self._cost, 0
        if cost:
            self._standing.release(1, cost)
            self._room.give_back(self.share, cost)


@attrs.frozen(slots=True)
class DelayedWill:
    """A will that waits."""

    client_id: str
    peer: Peer
    """Whose it is."""
    will: LastWill
    due: float
    """On the ledger's clock."""
    place: WillPlace | None = None
    """What it takes."""

    @property
    def share(self) -> str:
        """Whom it counts for."""
        return "" if self.place is None else self.place.share


class DelayedWills:
    """Those of one server, one for each client that is away.

    Each waits for its time, or the end of its session, whichever comes first; if the client comes
    back to its session before that, it is not published [MQTT-3.1.3-9]. Clients are known by their
    `identity`.
    """

    __slots__ = ("_by_client", "_of_share", "nbytes")

    def __init__(self) -> None:
        self._by_client: dict[str, DelayedWill] = {}
        self._of_share: dict[str, int] = {}
        self.nbytes = 0

    def __len__(self) -> int:
        """Return how many wait."""
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
        """Let a will wait; False if there is no room for it. Its `place` is released with it."""
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
        """Return a client's will, which waits no more; None if it has none."""
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
        """Return those whose time has come, which wait no more."""
        if not self._by_client:
            return []
        over = [client for client, each in self._by_client.items() if each.due <= now]
        return [each for client in over if (each := self.take(client)) is not None]
