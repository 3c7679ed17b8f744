"""Read-only inspection of a store."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING

import attrs

from ._database import check_definitions, connect_to_look, has_sound_header
from ._directory import Directory
from ._errors import Damage, StoreDiskError
from ._reader import Read
from ._recovery import recover
from ._sentences import trouble

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator, Mapping
    from types import TracebackType
    from typing import Self, TypeAlias

    from ._queue import Record, StoredQueue

    Progress: TypeAlias = Callable[[str, int, int], None]

_ROUND = 1000
_ROUND_BYTES = 1 << 20
_FAULTS = 20
"""Most faults of the structure that SQLite names."""


@attrs.frozen(slots=True)
class Verification:
    """The result of reading everything in a store."""

    queues: int
    """Number of queues."""
    messages: int
    """Readable messages."""
    message_bytes: int
    """Their size, in bytes."""
    damages: tuple[Damage, ...]
    """Everything unreadable."""


class Inspection:
    """A store that nobody has open, read without changing anything: use it in a `with` block.

    It stays locked for that time, where the file system allows it.

    Attributes:
        queues: The queues by name.
        values: The keys with their values.
        damages: Everything unreadable that was found so far.

    Raises:
        StoreLockedError: A process has it open.
        StoreFormatError: It is no store, or a store of another version.
        StoreDiskError: It cannot be read.
    """

    def __init__(self, directory: str | os.PathLike[str], progress: Progress | None = None) -> None:
        self._directory = Directory(directory)
        self._progress = progress
        try:
            self._directory.look()
            self._has_sound_header = has_sound_header(self._directory.database)
            self._db = connect_to_look(self._directory.database)
            check_definitions(self._db)
            recovered = recover(self._db)
        except (OSError, sqlite3.Error) as error:
            self._close()
            raise StoreDiskError(trouble(error, "read", str(self._directory.where))) from error
        except BaseException:
            self._close()
            raise
        found = recovered.queues.values()
        self.queues: Mapping[str, StoredQueue] = {queue.name: queue for queue in found}
        self.values: Mapping[str, bytes] = recovered.values
        self.damages = recovered.damages

    def _close(self) -> None:
        db: sqlite3.Connection | None = getattr(self, "_db", None)
        if db is not None:
            db.close()
        self._directory.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._close()

    def records(self, queue: StoredQueue) -> Iterator[Record]:
        """Yield the messages of a queue that are not done, in order; note the unreadable ones.

        Raises:
            StoreDiskError: The disk fails, or the structure of the database is damaged.
        """
        lost: set[int] = set()
        at = 0
        more = True
        while more:
            read = Read(queue.id, at, _ROUND, _ROUND_BYTES, ())
            try:
                more = not read.from_database(self._db, queue.next_seq, lost)
            except sqlite3.Error as error:
                raise StoreDiskError(trouble(error, "read", str(self._directory.where))) from error
            for corrupt in read.corrupt:
                if corrupt.lost.row not in lost or corrupt.seqs:
                    self.damages.append(corrupt.damage(queue.name))
                if not corrupt.seqs:
                    lost.add(corrupt.lost.row)
            yield from read.records
            if read.records:
                at = read.records[-1].seq + 1

    def faults(self) -> list[Damage]:
        """Return what is wrong with the structure of the database, by SQLite's own check.

        Raises:
            StoreDiskError: The disk fails.
        """
        try:
            rows = self._db.execute(f"PRAGMA integrity_check({_FAULTS})").fetchall()
            found = [row[0].decode() for row in rows if row[0] != b"ok"]
        except sqlite3.Error as error:
            return [Damage("the database", str(error))]
        if not self._has_sound_header:
            found.append("its header is damaged")
        return [Damage("the database", " ".join(line.split())) for line in found]

    def verify(self) -> Verification:
        """Read every message that is not done, and check every checksum on the way.

        Raises:
            StoreDiskError: The disk fails.
        """
        total = sum(queue.live_count for queue in self.queues.values())
        messages = size = told = 0
        self.damages += self.faults()
        for queue in self.queues.values():
            try:
                for record in self.records(queue):
                    messages += 1
                    size += record.nbytes
                    if messages - told >= 10_000 and self._progress is not None:
                        told = messages
                        self._progress("reading messages", messages, total)
            except StoreDiskError as error:
                self.damages.append(Damage(f"queue {queue.name!r}", str(error)))
        if total and self._progress is not None:
            self._progress("reading messages", total, total)
        return Verification(len(self.queues), messages, size, tuple(self.damages))
