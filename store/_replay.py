"""A directory made from a log: what a store had, before it is opened."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING, Final

from ._database import connect, corruption, has_sound_header, prepare, text
from ._directory import Directory
from ._errors import StoreDiskError, StoreFormatError
from ._log_codec import decode_changes
from ._recovery import LOG_POSITION
from ._sentences import trouble
from ._settings import StoreSettings
from ._transaction import Group

if TYPE_CHECKING:
    import os
    from pathlib import Path
    from types import TracebackType
    from typing import Self

    from ._changes import Changes

_POSITION: Final = text(LOG_POSITION)

GROUP_BYTES: Final = 8 << 20
"""Bytes of changes in one transaction: as `StoreSettings.write_bytes`."""


class Replay:
    """Puts the changes of a log into a directory; use it in a `with` block. All of it blocks.

    What has been added is there after `write`.

    Args:
        directory: The directory of a store that nobody has open; one that is new, with a snapshot.
        settings: The store's settings.
        snapshot: A file that `Store.snapshot` has written, which is moved into the directory.

    Raises:
        StoreError: As for `Store.open`; the directory is left as it is.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        settings: StoreSettings,
        snapshot: Path | None = None,
    ) -> None:
        self._place = Directory(directory)
        self._settings = settings
        self._changes: list[Changes] = []
        self._nbytes = 0
        try:
            self._place.take()
            if snapshot is not None:
                snapshot.chmod(0o600)
                snapshot.replace(self._place.database)
            if not has_sound_header(self._place.database):
                raise corruption("its header is damaged")
            self._db = connect(self._place.database)
        except (OSError, sqlite3.Error) as error:
            self._place.release()
            raise self._error(error) from error
        try:
            prepare(self._db, fsync=False)
            self._place.mark()
            found = self._db.execute("SELECT value FROM value WHERE key = ?", (_POSITION,))
            row = found.fetchone()
            self._queues: set[int] = {
                ident for (ident,) in self._db.execute("SELECT id FROM queue")
            }
            self._next_body: int = 1 + (
                self._db.execute("SELECT max(id) FROM body").fetchone()[0] or 0
            )
        except (OSError, sqlite3.Error) as error:
            self._close()
            raise self._error(error) from error
        self.position: bytes | None = None if row is None else row[0]
        """The place in the log up to which everything is here."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._close()

    def add(self, data: bytes, position: bytes) -> None:
        """Add the changes of one entry of the log; all of them will be there, or none.

        Args:
            data: What `encode_changes` has returned.
            position: The place of the entry.

        Raises:
            StoreFormatError: They are no changes, or not of this log.
            StoreDiskError: The disk refused.
        """
        found = decode_changes(data, self._settings)
        if not found:
            return
        for changes in found:
            self._queues |= changes.declared.keys()
            for queue in changes.puts.keys() - self._queues:
                msg = f"the log has messages for a queue {queue}, but not what declared it"
                raise StoreFormatError(msg)
            self._queues.difference_update(changes.dropped)
        found[-1].values[LOG_POSITION] = self.position = position
        self._changes += found
        self._nbytes += len(data)
        if self._nbytes >= GROUP_BYTES:
            self.write()

    def write(self) -> None:
        """Write all that has been added.

        Raises:
            StoreDiskError: The disk refused.
        """
        changes, self._changes, self._nbytes = self._changes, [], 0
        if not changes:
            return
        db = self._db
        try:
            db.execute("BEGIN IMMEDIATE")
            self._next_body = Group(changes).apply(db, self._next_body)
            db.execute("COMMIT")
        except (OSError, sqlite3.Error) as error:
            raise self._error(error) from error

    def _error(self, error: OSError | sqlite3.Error) -> StoreDiskError:
        return StoreDiskError(trouble(error, "write to", str(self._place.where)))

    def _close(self) -> None:
        self._db.close()
        self._place.release()
