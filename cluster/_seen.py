"""What has come from another relay, stored with what it has caused.

In the store, `hop/RELAY/EPOCH/NUMBER` is there while parcel NUMBER of that hop may come again, and
queues have messages of it: they and it were written in one piece.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from ..accounts import Confirm
from ..dataspace.hops import Identity, LandedConfirm, Landing, Seen
from ..persistence._writes import Writes, Written, nowhere

if TYPE_CHECKING:
    from ..persistence import Shelves

logger = logging.getLogger("clearfunds.cluster")

PREFIX: Final = "hop/"


def stored_seen(shelves: Shelves) -> dict[str, list[Identity]]:
    """Return what a store has, by relay."""
    found: dict[str, list[Identity]] = {}
    for key in shelves.store.values(PREFIX):
        relay, _, identity = key.removeprefix(PREFIX).partition("/")
        epoch, _, number = identity.partition("/")
        try:
            found.setdefault(relay, []).append((int(epoch), int(number)))
        except ValueError:
            logger.error(
                "%r in the store names nothing that has come", key,
                extra={"event": "unreadable", "key": key},
            )  # fmt: skip
    return found


class StoredSeen(Seen):
    """What has come from one relay, with a store.

    Args:
        relay: The other relay.
        shelves: The store.
        stored: What is there.
    """

    def __init__(self, relay: str, shelves: Shelves, stored: Iterable[Identity]) -> None:
        stored = tuple(stored)
        super().__init__(stored)
        self._relay = relay
        self._shelves = shelves
        self._stored = set(stored)

    def _confirm(self, landing: Landing, number: int, identity: Identity) -> LandedConfirm:
        return StoredConfirm(landing, self, number, identity, self.store)

    def store(self, identity: Identity, on_durable: Callable[[], object]) -> None:
        """Write an identity in the present batch; call back when that is durable."""
        if identity in self:  # else it comes no more
            self._stored.add(identity)
            self._shelves.set(self._key(identity), b"")
        self._shelves.when_durable(on_durable)

    def forget(self, identity: Identity) -> None:
        super().forget(identity)
        if identity in self._stored:
            self._stored.discard(identity)
            self._shelves.delete(self._key(identity))

    def _key(self, identity: Identity) -> str:
        return f"{PREFIX}{self._relay}/{identity[0]}/{identity[1]}"


class StoredConfirm(LandedConfirm, Writes):
    """The confirm of a parcel whose identity is written with the last message of it, if any is."""

    __slots__ = ("_is_written", "_store", "_unwritten")

    def __init__(
        self,
        landing: Landing,
        seen: Seen,
        number: int,
        identity: Identity,
        store: Callable[[Identity, Callable[[], object]], object],
    ) -> None:
        super().__init__(landing, seen, number, identity)
        self._store = store
        # What may still come: the end of its turn, and expected holders that have written nothing.
        self._unwritten = 1
        self._is_written = False

    def expect(self) -> None:
        self._unwritten += 1
        super().expect()

    def taken(self) -> None:
        """Note that a holder is responsible that has written nothing, or the end of its turn."""
        self._has_come()
        super().taken()

    def written(self, where: str = "", put: Callable[[str, bytes], object] = nowhere) -> Confirm:
        self._is_written = True
        self._has_come()
        return Written(self)

    def written_is_taken(self) -> None:
        """Note that a holder that has written its message, or the identity, is durable."""
        super().taken()

    def _has_come(self) -> None:
        self._unwritten -= 1
        if not self._unwritten and self._is_written:
            self.expected += 1
            self._store(self.identity, self.written_is_taken)
