"""Reading messages from the database, in any thread."""

from __future__ import annotations

import threading
from bisect import bisect_right
from functools import partial
from itertools import accumulate, compress
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

import attrs

from ._changes import LostRun
from ._database import READER_CACHE_BYTES, RUNS_FROM, connect
from ._errors import Damage
from ._queue import Record
from ._ranges import missing
from ._rows import (
    WRONG,
    Columns,
    CorruptRowError,
    check_types,
    checksum,
    checksum_of_run,
    decode_finished,
    ones,
    places_of,
)

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from ._changes import Puts

_RUNS: Final = f"""
    SELECT id, first, last, count, run.size, kind, run.checksum, columns, data,
        finished.size, mask, finished.checksum
    {RUNS_FROM} AND first < ?3 ORDER BY first"""

_record: Callable[[Iterable[Any]], Record] = partial(cast("Any", tuple).__new__, Record)
"""Makes a `Record` of a tuple, in C: `Record._make` is a call in Python for each."""


class Connections:
    """Connections for reading: each is used by one thread at a time, and a few are kept.

    Args:
        path: The database.
        vfs: The name of SQLite's file system; None: its default.
        limit: Most connections that are kept.
    """

    def __init__(self, path: Path, vfs: str | None, limit: int) -> None:
        self._path = path
        self._vfs = vfs
        self._limit = limit
        self._lock = threading.Lock()
        self._free: list[sqlite3.Connection] = []
        self._closed = False

    def take(self) -> sqlite3.Connection:
        """Return a connection.

        Raises:
            sqlite3.Error: It cannot be opened.
        """
        with self._lock:
            if self._free:
                return self._free.pop()
        db = connect(self._path, vfs=self._vfs)
        try:
            db.execute("PRAGMA query_only=1")
            db.execute(f"PRAGMA cache_size=-{READER_CACHE_BYTES >> 10}")
        except BaseException:
            db.close()
            raise
        return db

    def give_back(self, db: sqlite3.Connection) -> None:
        """Take a connection back."""
        with self._lock:
            if not self._closed and len(self._free) < self._limit:
                self._free.append(db)
                return
        db.close()

    def close_free(self) -> None:
        """Close those that nobody uses."""
        with self._lock:
            free, self._free = self._free, []
        for db in free:
            db.close()

    def close(self) -> None:
        """Close those that nobody uses; the others are closed when they come back."""
        self._closed = True
        self.close_free()


class CorruptRow(NamedTuple):
    """A row of messages that is unreadable, or the shared body of some."""

    lost: LostRun
    first: int
    last: int
    place: str
    what: str
    seqs: Sequence[int]
    """The messages whose shared body is unreadable; if there are any, the row itself is well."""

    def damage(self, queue: str) -> Damage:
        """Return the report for the messages of a queue of this name."""
        lost = self.lost
        return Damage(
            *(self.place, self.what, lost.queue_id, queue, self.first, self.last),
            *(lost.messages, lost.size),
        )


@attrs.define(slots=True)
class Read:
    """Messages that are read, within limits.

    Attributes:
        records: The messages so far.
        corrupt: What was found to be unreadable.
    """

    queue_id: int
    first: int
    """The first number that is wanted."""
    count: int
    nbytes: int
    done: Sequence[tuple[int, int]]
    """Ranges that are done though the database may not know it."""
    records: list[Record] = attrs.field(factory=list[Record])
    corrupt: list[CorruptRow] = attrs.field(factory=list[CorruptRow])

    def from_database(self, db: sqlite3.Connection, limit: int, lost: set[int]) -> bool:
        """Add messages with numbers below `limit`; return whether there may be room for more.

        Args:
            db: The connection.
            limit: Higher ones are taken from elsewhere.
            lost: Rows to leave out.

        Raises:
            sqlite3.Error: The disk refused, or the database is damaged.
        """
        bodies: dict[int, bytes] = {}
        # One snapshot: a shared body must not go between the look at its message and at itself.
        db.execute("BEGIN")
        try:
            for row in db.execute(_RUNS, (self.queue_id, self.first, limit)):
                if row[0] not in lost and not self._row(db, row, bodies):
                    return False
        finally:
            db.execute("ROLLBACK")
        return True

    def _row(self, db: sqlite3.Connection, row: Sequence[Any], bodies: dict[int, bytes]) -> bool:
        ident, first, last, count, size, kind, checked, columns, data = row[:9]
        done = 0
        try:
            if row[10] is not None:
                done = decode_finished(ident, *row[9:])
            check_types(row[1:9], "iiiiiibb")
            whole = (self.queue_id, first, last, count, size, kind, columns, data)
            if checksum_of_run(whole) != checked:
                raise CorruptRowError(WRONG)
            of = Columns(first, count, kind, columns)
            headers, found = of.cut(data)
        except CorruptRowError as error:
            left, nbytes = count - done.bit_count(), size - (row[9] if done else 0)
            run = LostRun(ident, self.queue_id, left, nbytes)
            self.corrupt.append(CorruptRow(run, first, last, f"run {ident}", str(error), ()))
            return True
        places: Sequence[int] = range(count)
        if done or self.done or first < self.first:
            places = ones(done ^ ((1 << count) - 1))
            wanted = set(places_of(of.seqs, missing(self.done, max(first, self.first), last)))
            places = [at for at in places if at in wanted]
        taken = self._fitting([of.sizes[at] for at in places])
        some = places[:taken]
        whole_bodies: list[bytes] = [found[at] for at in some]
        if of.keys is not None:
            bad = self._shared(db, of, some, whole_bodies, bodies)
            if bad:
                self._unreadable(ident, of, bad)
                keep = [at not in bad for at in some]
                some, whole_bodies = list(compress(some, keep)), list(compress(whole_bodies, keep))
        seqs, sizes = of.seqs, of.sizes
        self._add(
            [seqs[at] for at in some], [headers[at] for at in some], whole_bodies,
            [sizes[at] for at in some],
        )  # fmt: skip
        return taken == len(places) and len(self.records) < self.count

    def _shared(
        self,
        db: sqlite3.Connection,
        of: Columns,
        places: Sequence[int],
        found: list[bytes],
        bodies: dict[int, bytes],
    ) -> set[int]:
        """Put in the shared bodies; return the places of messages that lack theirs."""
        assert of.keys is not None
        bad: set[int] = set()
        for place, at in enumerate(places):
            key = of.keys[at]
            if not key:
                continue
            body = bodies.get(key)
            if body is None:
                row = db.execute("SELECT checksum, data FROM body WHERE id = ?", (key,)).fetchone()
                if row is None or type(row[1]) is not bytes or checksum(key, row[1]) != row[0]:
                    bad.add(at)
                    continue
                body = bodies[key] = row[1]
            found[place] = body
        return bad

    def _unreadable(self, ident: int, of: Columns, bad: set[int]) -> None:
        assert of.keys is not None
        for at in sorted(bad):
            seq = of.seqs[at]
            run = LostRun(ident, self.queue_id, 1, of.sizes[at])
            what = "it is not there, or its checksum is wrong"
            place = f"body {of.keys[at]}"
            self.corrupt.append(CorruptRow(run, seq, seq, place, what, (seq,)))

    def from_memory(self, puts: Puts) -> bool:
        """Add messages that are not in the database; return whether there may be room for more."""
        seqs = puts.seqs
        places: Sequence[int] = range(len(seqs))
        if self.first > puts.first or self.done:
            wanted = missing(self.done, max(puts.first, self.first), puts.last)
            places = places_of(seqs, wanted)
        taken = self._fitting([puts.sizes[at] for at in places])
        some = places[:taken]
        bodies = [puts.bodies[at] for at in some]
        self._add(
            [seqs[at] for at in some],
            [puts.headers[at] for at in some],
            [body if isinstance(body, bytes) else body.data for body in bodies],
            [puts.sizes[at] for at in some],
        )
        return taken == len(places) and len(self.records) < self.count

    def _fitting(self, sizes: Sequence[int]) -> int:
        """Return how many of the next messages fit; the very first one always does."""
        room = self.count - len(self.records)
        taken = bisect_right(list(accumulate(sizes[:room])), self.nbytes)
        if not taken and sizes and not self.records:
            taken = 1
        self.nbytes -= sum(sizes[:taken])
        return taken

    def _add(
        self,
        seqs: Sequence[int],
        headers: Sequence[bytes],
        bodies: Sequence[bytes],
        sizes: Sequence[int],
    ) -> None:
        self.records.extend(map(_record, zip(seqs, headers, bodies, sizes, strict=True)))
