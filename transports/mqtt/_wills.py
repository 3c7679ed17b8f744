"""Wills that are published some time after their clients have gone (MQTT 5, section 3.1.3.2.2)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs

from ...dataspace import Publication
from ._properties import application_properties

if TYPE_CHECKING:
    from .._tenants import Peer
    from ._packets import Will

MAX_DELAYED: Final = 1_000
"""Wills that wait at a time; further ones do not. A tenth of the sessions that are kept."""

MAX_DELAYED_BYTES: Final = 16 << 20
"""The bytes of their topics, payloads and properties."""


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

    def at(self, now: float) -> Publication:
        """Return what is published at `now`, on the wall clock."""
        if self.expiry is None:
            return self.publication
        return attrs.evolve(self.publication, expires=now + self.expiry)


@attrs.frozen(slots=True)
class DelayedWill:
    """A will that waits."""

    client_id: str
    peer: Peer
    """Whose it is."""
    will: LastWill
    due: float
    """On the ledger's clock."""


class DelayedWills:
    """Those of one server, one for each client that is away.

    Each waits for its time, or the end of its session, whichever comes first; if the client comes
    back to its session before that, it is not published [MQTT-3.1.3-9]. Clients are known by their
    `identity`.
    """

    __slots__ = ("_by_client", "nbytes")

    def __init__(self) -> None:
        self._by_client: dict[str, DelayedWill] = {}
        self.nbytes = 0

    def __len__(self) -> int:
        """Return how many wait."""
        return len(self._by_client)

    def add(self, key: str, peer: Peer, will: LastWill, due: float, client_id: str = "") -> bool:
        """Let a will wait; False if there is no room for it."""
        size = will.publication.nbytes
        if len(self) >= MAX_DELAYED or self.nbytes + size > MAX_DELAYED_BYTES:
            return False
        self.take(key)
        self._by_client[key] = DelayedWill(client_id, peer, will, due)
        self.nbytes += size
        return True

    def take(self, key: str) -> DelayedWill | None:
        """Return a client's will, which waits no more; None if it has none."""
        delayed = self._by_client.pop(key, None)
        if delayed is not None:
            self.nbytes -= delayed.will.publication.nbytes
        return delayed

    def over(self, now: float) -> list[DelayedWill]:
        """Return those whose time has come, which wait no more."""
        if not self._by_client:
            return []
        over = [client for client, each in self._by_client.items() if each.due <= now]
        return [each for client in over if (each := self.take(client)) is not None]
