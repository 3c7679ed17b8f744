"""The writer: it puts pending changes on the disk, and tries again what the disk refused."""

from __future__ import annotations

import sqlite3
import threading
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Final, Protocol

from ._sentences import logger, trouble
from ._transaction import Group

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ._pending import PendingChanges
    from ._settings import StoreSettings

_SMALL_BYTES: Final = 64 << 10
"""Bytes tried at a time after the disk has refused: a little may fit where much does not."""

_FREE_SHARE: Final = 4
"""When more than one of so many pages is free, some are given back to the system..."""

_FREE_PAGES: Final = 64
"""...this many at a time, and not the last ones: they will be used again."""

_COUNT_EVERY: Final = 16
"""Pages are counted after so many transactions: a count takes 8 % of one that has one message..."""

_COUNT_SECONDS: Final = 0.1
"""...or when so long is over since the last count."""


class _Owner(Protocol):
    """The part of a store that has its owner's callbacks, and its committed state."""

    on_durable: Callable[[int], None]
    on_trouble: Callable[[str | None], None]

    def settle(self, group: Group) -> None:
        """Take in that a group is in the database. Under the lock."""
        ...


class Writer:
    """Writes pending changes to the database. The thread that has `work` is the writer.

    Attributes:
        work: Held by the writer.
        durable: See `Store.durable`.
        is_warm: Whether SQLite's cache may have something in it.
        trouble: The present trouble with the disk, in a sentence.
        failures: Number of times that the disk refused.
        transactions: Number of transactions put on the disk.
        seconds: Total duration of their ends.
        slowest: The longest of these.
        rewritten: Bytes of the rows that were written again.
        pages: Pages of the database.
        free_pages: Those of them that are free.
    """

    def __init__(
        self,
        owner: _Owner,
        where: Path,
        settings: StoreSettings,
        pending: PendingChanges,
        db: sqlite3.Connection,
    ) -> None:
        self._owner = owner
        self._where = str(where)
        self._settings = settings
        self._pending = pending
        self._lock = pending.lock
        self._db = db
        self.work = threading.RLock()
        self.durable = 0
        self.is_warm = False
        self.trouble: str | None = None
        self._retry_at = 0.0
        self.failures = self.transactions = self.rewritten = 0
        self.seconds = self.slowest = 0.0
        self._next_body = 1 + max(_number(db, "SELECT max(id) FROM body"), 0)
        self.pages = self.free_pages = 0
        self._uncounted = 0  # transactions since the pages were counted
        self._counted_at = 0.0
        self.count_pages()

    # When to write. Under the lock.

    def idle_seconds(self) -> float | None:
        """Return the seconds without work ahead; None: until a call."""
        pending = self._pending
        if self.trouble is not None:
            return 0 if pending.hurried else max(0.0, self._retry_at - monotonic())
        if pending.oldest is None:
            pending.hurried = False
            return 0 if self.tends else self._until_count()
        if pending.hurried or pending.nbytes >= self._settings.write_bytes:
            return 0
        return max(0.0, pending.oldest + self._settings.fsync_interval - monotonic())

    def _until_count(self) -> float | None:
        """Return the seconds until the pages are to be counted; None: they are counted."""
        if not self._uncounted:
            return None
        if self._uncounted >= _COUNT_EVERY:
            return 0
        return max(0.0, self._counted_at + _COUNT_SECONDS - monotonic())

    @property
    def tends(self) -> bool:
        """Whether there are so many free pages that some should be given back."""
        return self.free_pages > max(_FREE_PAGES, self.pages // _FREE_SHARE)

    # Writing, with `work`.

    def cool(self) -> None:
        """Give back the memory of SQLite's cache."""
        self.is_warm = False
        with suppress(sqlite3.Error):
            self._db.execute("PRAGMA shrink_memory")

    def attempt(self) -> bool:
        """Put everything pending on the disk; return whether the disk took it."""
        with self._lock:
            until = self._pending.ticket
            # A later `hurry` is for later changes.
            self._pending.hurried = False
        try:
            while True:
                limit = self._settings.write_bytes if self.trouble is None else _SMALL_BYTES
                with self._lock:
                    changes = self._pending.first(until, limit)
                if not changes:
                    break
                self.is_warm = True
                self._write(Group(changes))
        except (OSError, sqlite3.Error) as error:
            self._failed(error)
            return False
        if self._until_count() == 0:
            self.count_pages()
        if self.trouble is not None:
            self.trouble = None
            logger.warning("store %s: writing goes on", self._where)
            self._owner.on_trouble(None)
        return True

    def _write(self, group: Group) -> None:
        db = self._db
        db.execute("BEGIN IMMEDIATE")
        try:
            next_body = group.apply(db, self._next_body)
            began = monotonic()
            db.execute("COMMIT")
        except BaseException:
            # SQLite itself has rolled back after most errors of the disk.
            if db.in_transaction:
                with suppress(sqlite3.Error):
                    db.execute("ROLLBACK")
            raise
        seconds = monotonic() - began
        self._next_body = next_body
        self.transactions += 1
        self.seconds += seconds
        self.slowest = max(self.slowest, seconds)
        self.rewritten += group.rewritten
        ticket = group.changes[-1].ticket
        # Messages stop being pending in one step, or they would be read twice.
        with self._lock:
            self._owner.settle(group)
            self._pending.durable(len(group.changes))
            self.durable = ticket
        if not self._settings.logged:
            self._owner.on_durable(ticket)
        self._uncounted += 1

    def _failed(self, error: OSError | sqlite3.Error) -> None:
        """Record that the disk refused, and when to try again."""
        sentence = trouble(error, "write to", self._where)
        self.failures += 1
        with self._lock:
            new = sentence != self.trouble
            self.trouble = sentence
            self._pending.hurried = False
            self._retry_at = monotonic() + self._settings.retry_interval
        if new:
            logger.error(
                "store %s: %s. Nothing is lost: %d bytes wait in memory, and it is tried again",
                self._where,
                sentence,
                self._pending.nbytes,
            )
            self._owner.on_trouble(sentence)

    def count_pages(self) -> None:
        """Count the pages of the database, and those that are free."""
        with suppress(sqlite3.Error):
            self.pages = _number(self._db, "PRAGMA page_count")
            self.free_pages = _number(self._db, "PRAGMA freelist_count")
        self._uncounted, self._counted_at = 0, monotonic()

    # Giving room back.

    def tend(self) -> bool:
        """Give some free pages back to the system; return whether the disk took it."""
        return self._vacuum(_FREE_PAGES)

    def compact(self) -> bool:
        """Give all free pages back, and empty the write-ahead log."""
        self.count_pages()
        if not self._vacuum(self.free_pages):
            return False
        try:
            self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        except sqlite3.Error as error:
            self._failed(error)
            return False
        return True

    def _vacuum(self, pages: int) -> bool:
        try:
            # `execute` would stop after the first page.
            self._db.executescript(f"PRAGMA incremental_vacuum({pages})")
        except sqlite3.Error as error:
            self._failed(error)
            return False
        self.count_pages()
        return True


def _number(db: sqlite3.Connection, query: str) -> int:
    """Return the one number that a query gives; 0: it gives none."""
    return db.execute(query).fetchone()[0] or 0
