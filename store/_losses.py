"""Giving up messages of an open store that have become unreadable."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

from ._errors import Damage
from ._names import segment_name
from ._recovery import put_aside
from ._sentences import logger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ._changes import Changes
    from ._extents import Extent
    from ._files import Files
    from ._index import Index
    from ._pending import PendingChanges
    from ._reader import Reader


class _Owner(Protocol):
    """The part of a store that makes changes, and has its owner's callback."""

    on_damage: Callable[[Damage], None]

    def begin(self) -> Changes: ...


class Losses:
    """Marks unreadable messages as done, and reports them; for any thread.

    Attributes:
        damages: Everything unreadable that was found.
    """

    def __init__(
        self,
        owner: _Owner,
        files: Files,
        index: Index,
        reader: Reader,
        pending: PendingChanges,
        damages: Iterable[Damage],
    ) -> None:
        self._owner = owner
        self._files = files
        self._index = index
        self._reader = reader
        self._pending = pending
        self.damages = list(damages)

    def give_up(self, queue_id: int, extent: Extent, what: str) -> bool:
        """Give up the unreadable messages of an extent; return whether there were any.

        Raises:
            OSError: It cannot be read at all.
        """
        readable, data = self._reader.readable(queue_id, extent)
        name = segment_name(extent.segment)
        changes = self._owner.begin()
        with self._index.lock:
            queue = self._index.by_id.get(queue_id)
            if queue is None:
                return True
            count, size = queue.live_count, queue.live_bytes
            for first, last in readable.missing(extent.first, extent.last):
                changes.done(queue_id, first, last)
            changes.seal()
            self._index.commit(changes)
            if not changes.dones:
                return False
            self._pending.add(changes)
            count, size = count - queue.live_count, size - queue.live_bytes
        aside: str | None = None
        with suppress(OSError):
            aside = put_aside(self._files, name, extent.offset, data)
        first, last = extent.first, extent.last
        where = (name, extent.offset, extent.length, what)
        damage = Damage(*where, queue_id, queue.name, first, last, count, size, aside)
        self.damages.append(damage)
        logger.error("store %s: %s", self._files.where, damage)
        self._owner.on_damage(damage)
        return True
