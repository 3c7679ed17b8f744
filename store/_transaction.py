"""Changes as rows: what a group of them does to the database, in one transaction."""

from __future__ import annotations

from collections import Counter
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

import attrs

from ._changes import Body
from ._database import RUNS_FROM, text
from ._ranges import merged, missing
from ._rows import (
    SHARED,
    Columns,
    CorruptRowError,
    Messages,
    check_types,
    checksum,
    checksum_of_run,
    decode_finished,
    encode_finished,
    encode_run,
    ones,
    places_of,
    runs_of,
)

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable, Sequence

    from ._changes import Changes, Puts

REWRITE_BYTES: Final = 8192
"""A smaller row is not written again when most of it is done: it is less than a page."""

_seqs = attrgetter("seqs")
_headers = attrgetter("headers")
_bodies = attrgetter("bodies")
_sizes = attrgetter("sizes")

_INSERT_RUN: Final = (
    "INSERT INTO run(queue, first, last, count, size, kind, columns, data, checksum) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_RUNS_OF_RANGE: Final = f"""
    SELECT id, first, last, count, run.size, kind, columns, finished.size, mask, finished.checksum
    {RUNS_FROM} AND first <= ?3 ORDER BY first LIMIT 64"""


@attrs.define(slots=True)
class _Run:
    """A row of `run`, with its done messages."""

    row: int
    first: int
    last: int
    count: int
    size: int
    columns: Columns
    done: int
    """Bits of those that are done."""
    done_size: int
    known: int
    """Those bits as they are in the database."""


class Group:
    """A group of changes as one transaction.

    Attributes:
        changes: They, in order.
        next_seq: For each queue with new messages, a number above all of them.
        gone: By queue, the number and the size of the messages that are not live any more.
        rewritten: Bytes of the rows that were written again.
    """

    def __init__(self, changes: Sequence[Changes]) -> None:
        self.changes = changes
        self._declared: dict[int, tuple[str, bytes]] = {}
        self._dropped: set[int] = set()
        self._values: dict[str, bytes | None] = {}
        self._puts: dict[int, list[Puts]] = {}
        self._dones: dict[int, list[tuple[int, int]]] = {}
        self.next_seq: dict[int, int] = {}
        self.gone: dict[int, tuple[int, int]] = {}
        self.rewritten = 0
        self._released: Counter[int] = Counter()
        for some in changes:
            if some.declared:
                self._declared.update(some.declared)
            if some.values:
                self._values.update(some.values)
            if some.dropped:
                self._dropped.update(some.dropped)
            for queue, puts in some.puts.items():
                self._puts.setdefault(queue, []).append(puts)
                self.next_seq[queue] = puts.last + 1
            for queue, ranges in some.dones.items():
                self._dones.setdefault(queue, []).extend(ranges)

    def apply(self, db: sqlite3.Connection, next_body: int) -> int:
        """Do it, in a transaction that is open.

        Args:
            db: The connection.
            next_body: A key that no shared body has had.

        Returns:
            the next such key.

        Raises:
            sqlite3.Error: The disk refused. The transaction is to be rolled back.
        """
        for queue, (name, meta) in self._declared.items():
            if queue not in self._dropped:
                self._declare(db, queue, name, meta)
        if self._values:
            self._set_values(db)
        for queue, ranges in self._dones.items():
            self._dones[queue] = merged(ranges)
        runs: list[tuple[Any, ...]] = []
        bodies: Counter[Body] = Counter()
        for queue, puts in self._puts.items():
            if queue not in self._dropped:
                next_body = self._rows(queue, puts, runs, bodies, next_body)
        if bodies:
            data = ((b.ident, checksum(b.ident, b.data), b.data) for b in bodies)
            db.executemany("INSERT INTO body VALUES (?, ?, ?)", data)
            counts = ((body.ident, count) for body, count in bodies.items())
            db.executemany("INSERT INTO reference VALUES (?, ?)", counts)
        for queue, ranges in self._dones.items():
            if queue not in self._dropped:
                self._finish(db, queue, ranges)
        if runs:
            db.executemany(_INSERT_RUN, runs)
        numbers = [
            (number, queue) for queue, number in self.next_seq.items() if queue not in self._dropped
        ]
        self._note_numbers(db, numbers)
        for queue in self._dropped:
            self._drop(db, queue)
        for row, queue, count, size in chain.from_iterable(some.lost for some in self.changes):
            put_aside(db, row)
            self._gone(queue, count, size)
        if self._released:
            self._release(db)
        return next_body

    @staticmethod
    def _declare(db: sqlite3.Connection, queue: int, name: str, meta: bytes) -> None:
        known = db.execute("SELECT next FROM queue WHERE id = ?", (queue,)).fetchone()
        row = (queue, text(name), meta, known[0] if known else 0)
        db.execute("INSERT OR REPLACE INTO queue VALUES (?, ?, ?, ?, ?)", (*row, _of_queue(*row)))

    @staticmethod
    def _note_numbers(db: sqlite3.Connection, numbers: Iterable[tuple[int, int]]) -> None:
        for number, queue in numbers:
            one = db.execute("SELECT name, meta FROM queue WHERE id = ?", (queue,))
            name, meta = one.fetchone()
            db.execute(
                "UPDATE queue SET next = ?, checksum = ? WHERE id = ?",
                (number, _of_queue(queue, name, meta, number), queue),
            )

    def _set_values(self, db: sqlite3.Connection) -> None:
        gone = [(text(key),) for key, value in self._values.items() if value is None]
        db.executemany("DELETE FROM value WHERE key = ?", gone)
        rows = (
            (text(key), value, checksum(0, text(key), value))
            for key, value in self._values.items()
            if value is not None
        )
        db.executemany("INSERT OR REPLACE INTO value VALUES (?, ?, ?)", rows)

    def _rows(
        self,
        queue: int,
        several: list[Puts],
        runs: list[tuple[Any, ...]],
        bodies: Counter[Body],
        next_body: int,
    ) -> int:
        """Make the rows of new messages; those that are done already are never written."""
        if len(several) == 1:
            (one,) = several
            messages = Messages(one.seqs, one.headers, one.bodies, one.sizes, one.shared)
        else:
            messages = Messages(
                list(chain.from_iterable(map(_seqs, several))),
                list(chain.from_iterable(map(_headers, several))),
                list(chain.from_iterable(map(_bodies, several))),
                list(chain.from_iterable(map(_sizes, several))),
                any(puts.shared for puts in several),
            )
        first, last = several[0].first, several[-1].last
        left = missing(self._dones.get(queue, ()), first, last)
        if left != [(first, last)]:
            messages = self._without(queue, messages, left)
        if messages.shared:
            for body in messages.bodies:
                if type(body) is Body:
                    if body not in bodies:
                        body.ident, next_body = next_body, next_body + 1
                    bodies[body] += 1
        for start, stop in runs_of(messages):
            row = encode_run(queue, messages, start, stop)
            runs.append((*row, checksum_of_run(row)))
        return next_body

    def _without(self, queue: int, messages: Messages, left: list[tuple[int, int]]) -> Messages:
        places = places_of(messages.seqs, left)
        size = sum(messages.sizes)
        fewer = messages.at(places)
        self._gone(queue, len(messages.seqs) - len(places), size - sum(fewer.sizes))
        return fewer

    def _gone(self, queue: int, count: int, size: int) -> None:
        before = self.gone.get(queue, (0, 0))
        self.gone[queue] = before[0] + count, before[1] + size

    def _finish(self, db: sqlite3.Connection, queue: int, ranges: list[tuple[int, int]]) -> None:
        """Note messages in the database as done, ranges in order."""
        run: _Run | None = None
        for low, high in ranges:
            if run is not None and low <= run.last:
                self._mark(queue, run, low, high)
                if high <= run.last:
                    continue
            at = low if run is None else max(low, run.last + 1)
            while rows := db.execute(_RUNS_OF_RANGE, (queue, at, high)).fetchall():
                for row in rows:
                    if run is not None:
                        self._write(db, queue, run)
                    run = _taken(row)
                    if run is not None:
                        self._mark(queue, run, low, high)
                # A damaged number must not make it go round for ever.
                last = rows[-1][2]
                at = last + 1 if type(last) is int and last >= at else high + 1
        if run is not None:
            self._write(db, queue, run)

    def _mark(self, queue: int, run: _Run, low: int, high: int) -> None:
        if low <= run.first and run.last <= high:
            bits = ((1 << run.count) - 1) & ~run.done
            size = run.size - run.done_size
        else:
            bits = run.columns.bits(low, high) & ~run.done
            size = run.columns.size(bits)
        if bits:
            run.done |= bits
            run.done_size += size
            self._gone(queue, bits.bit_count(), size)

    def _write(self, db: sqlite3.Connection, queue: int, run: _Run) -> None:
        """Write what has become of a run."""
        if run.done == run.known:
            return
        if run.done.bit_count() == run.count:
            self._delete(db, run)
        elif run.size >= REWRITE_BYTES and 2 * run.done_size > run.size:
            self._write_again(db, queue, run)
        else:
            _set_finished(db, run)

    def _delete(self, db: sqlite3.Connection, run: _Run) -> None:
        _remove_run(db, run.row)
        self._released.update(filter(None, run.columns.keys or ()))

    def _write_again(self, db: sqlite3.Connection, queue: int, run: _Run) -> None:
        """Write a run without its done messages: they would hold its place."""
        kind, columns, data, checked = db.execute(
            "SELECT kind, columns, data, checksum FROM run WHERE id = ?", (run.row,)
        ).fetchone()
        row = (queue, run.first, run.last, run.count, run.size, kind, columns, data)
        if checksum_of_run(row) != checked:
            # A reader will find that, and say so; a new checksum would hide it.
            _set_finished(db, run)
            return
        of = run.columns
        headers, own = of.cut(data)
        bodies: list[bytes | Body] = [*own]
        if of.keys is not None:
            bodies = [Body(None, b"", key) if key else own[at] for at, key in enumerate(of.keys)]
            self._released.update(of.keys[at] for at in ones(run.done) if of.keys[at])
        messages = Messages(of.seqs, headers, bodies, of.sizes, of.keys is not None)
        left = ones(run.done ^ ((1 << run.count) - 1))
        new = encode_run(queue, messages.at(left), 0, len(left))
        _remove_run(db, run.row)
        db.execute(_INSERT_RUN, (*new, checksum_of_run(new)))
        self.rewritten += len(new[6]) + len(new[7])

    def _drop(self, db: sqlite3.Connection, queue: int) -> None:
        shared = db.execute(
            f"SELECT first, count, kind, columns FROM run WHERE queue = ? AND kind & {SHARED}",
            (queue,),
        )
        for row in shared.fetchall():
            try:
                check_types(row, "iiib")
                self._released.update(filter(None, Columns(*row).keys or ()))
            except CorruptRowError:
                continue  # Its bodies stay: `clearfunds store repair` finds that nobody has them.
        db.execute(
            "DELETE FROM finished WHERE run IN (SELECT id FROM run WHERE queue = ?)", (queue,)
        )
        db.execute("DELETE FROM run WHERE queue = ?", (queue,))
        db.execute("DELETE FROM queue WHERE id = ?", (queue,))

    def _release(self, db: sqlite3.Connection) -> None:
        released = list(self._released.items())
        db.executemany("UPDATE reference SET count = count - ?2 WHERE body = ?1", released)
        bodies = [(body,) for body, _ in released]
        db.executemany(
            "DELETE FROM body WHERE id = ?1 AND (SELECT count FROM reference WHERE body = ?1) <= 0",
            bodies,
        )
        db.executemany("DELETE FROM reference WHERE body = ? AND count <= 0", bodies)


def _of_queue(queue: int, name: bytes, meta: bytes, number: int) -> int:
    return checksum(queue, name, meta, b"%d" % number)


def _taken(row: Sequence[Any]) -> _Run | None:
    """Return a row of `_RUNS_OF_RANGE`; None: it is damaged, and left to its readers to find."""
    ident, first, last, count, size, kind, columns, done_size, mask, checked = row
    try:
        check_types((first, last, count, size, kind, columns), "iiiiib")
        done = 0 if mask is None else decode_finished(ident, done_size, mask, checked)
        return _Run(
            ident, first, last, count, size, Columns(first, count, kind, columns), done,
            done_size or 0, done,
        )  # fmt: skip
    except CorruptRowError:
        return None


def put_aside(db: sqlite3.Connection, row: int) -> None:
    """Move an unreadable row of messages to the table of those.

    Raises:
        sqlite3.Error: The disk refused.
    """
    db.execute(
        "INSERT OR REPLACE INTO damaged SELECT id, queue, first, last, columns, data FROM run "
        "WHERE id = ?",
        (row,),
    )
    _remove_run(db, row)


def _remove_run(db: sqlite3.Connection, row: int) -> None:
    db.execute("DELETE FROM run WHERE id = ?", (row,))
    db.execute("DELETE FROM finished WHERE run = ?", (row,))


def _set_finished(db: sqlite3.Connection, run: _Run) -> None:
    row = encode_finished(run.row, run.done_size, run.done)
    db.execute("INSERT OR REPLACE INTO finished VALUES (?, ?, ?, ?)", row)
