"""The state of a store that is opened, from its database."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import attrs

from ._database import RUN, from_bytes
from ._errors import Damage
from ._queue import StoredQueue
from ._rows import WRONG, CorruptRowError, check_types, checksum, decode_finished, whole_run
from ._transaction import put_aside

if TYPE_CHECKING:
    import sqlite3

_RUNS: Final = """
    SELECT id, queue, first, last, count, run.size, finished.size, mask, finished.checksum
    FROM run NOT INDEXED LEFT JOIN finished ON run = id ORDER BY id"""

_HIDDEN: Final = """
    SELECT id FROM run AS one NOT INDEXED WHERE NOT EXISTS (
        SELECT 1 FROM run AS two INDEXED BY run_place
        WHERE two.queue = one.queue AND two.first = one.first AND two.id = one.id)"""
"""Rows that a damaged index would hide from their readers."""

_ORPHANS: Final = (
    "SELECT run FROM finished WHERE NOT EXISTS (SELECT 1 FROM run NOT INDEXED WHERE id = run)"
)

NEXT_QUEUE: Final = "\0next queue"
"""The key of the number that the next queue gets."""


LOG_POSITION: Final = "\0log position"
"""The key of the place in a log up to which everything is here (`Store.logged`)."""


@attrs.define(slots=True)
class Recovered:
    """What is in a database.

    Attributes:
        queues: The queues, by id.
        values: The keys, with their values.
        damages: Everything unreadable.
        nameless: Queues whose own row is unreadable: they get a name made from their id.
        runs: Rows of messages that are unreadable.
        rows: Other unreadable rows: table, name of its key, and key.
        next_queue: An id that no queue has.
    """

    queues: dict[int, StoredQueue] = attrs.field(factory=dict[int, StoredQueue])
    values: dict[str, bytes] = attrs.field(factory=dict[str, bytes])
    damages: list[Damage] = attrs.field(factory=list[Damage])
    nameless: list[StoredQueue] = attrs.field(factory=list[StoredQueue])
    runs: list[int] = attrs.field(factory=list[int])
    rows: list[tuple[str, str, Any]] = attrs.field(factory=list[tuple[str, str, Any]])
    next_queue: int = 1


def recover(db: sqlite3.Connection) -> Recovered:
    """Read queues and values, and count messages; their bodies are not read.

    Raises:
        sqlite3.Error: The disk fails, or the structure of the database is damaged.
    """
    found = Recovered()
    for row in db.execute("SELECT id, name, meta, next, checksum FROM queue"):
        ident, name, meta, number, checked = row
        try:
            check_types(row, "ibbii")
            if checksum(ident, name, meta, b"%d" % number) != checked:
                raise CorruptRowError(WRONG)
        except CorruptRowError as error:
            found.damages.append(Damage(f"queue {ident}", str(error), ident))
            found.rows.append(("queue", "id", ident))
            continue
        queue = StoredQueue(ident, from_bytes(name), meta, number, durable_seq=number)
        found.queues[ident] = queue
    for row in db.execute("SELECT key, value, checksum FROM value"):
        key, value, checked = row
        try:
            check_types(row, "bbi")
            if checksum(0, key, value) != checked:
                raise CorruptRowError(WRONG)
        except CorruptRowError as error:
            found.damages.append(Damage(f"value {key!r}", f"{error}; it counts as not set"))
            found.rows.append(("value", "key", key))
            continue
        found.values[from_bytes(key)] = value
    hidden = {ident for (ident,) in db.execute(_HIDDEN)}
    if hidden:
        what = f"it does not have {len(hidden)} of the rows of messages"
        found.damages.append(Damage("index run_place", what))
    for (ident,) in db.execute(_ORPHANS):
        # A new row of messages may get the same key: its messages would be taken for done.
        found.damages.append(Damage(f"finished {ident}", "the row of its messages is not there"))
        found.rows.append(("finished", "run", ident))
    for row in db.execute(_RUNS):
        _count(found, row, whole=row[0] not in hidden or _is_whole(db, row[0]))
    found.next_queue = max(found.queues, default=0) + 1
    found.values.pop(LOG_POSITION, None)
    stored = found.values.pop(NEXT_QUEUE, None)
    if stored is not None:
        found.next_queue = max(found.next_queue, int(stored))
    return found


def put_in_order(db: sqlite3.Connection, found: Recovered) -> None:
    """Put unreadable rows aside, and make an index that lacks rows anew, in one transaction.

    Raises:
        sqlite3.Error: The disk refused, or the structure of the database is damaged.
    """
    if not found.damages:
        return
    db.execute("BEGIN IMMEDIATE")
    for run in found.runs:
        put_aside(db, run)
    for table, name, key in found.rows:
        db.execute(f"DELETE FROM {table} WHERE {name} IS ?", (key,))
    db.execute("REINDEX run_place")
    db.execute("COMMIT")


def _is_whole(db: sqlite3.Connection, ident: int) -> bool:
    """Return whether the checksum of a row of messages is right."""
    try:
        whole_run(db.execute(f"{RUN} NOT INDEXED WHERE id = ?", (ident,)).fetchone() or ())
    except CorruptRowError:
        return False
    return True


def _count(found: Recovered, row: tuple[Any, ...], *, whole: bool) -> None:
    """Count the messages of a row; its numbers may be wrong, but not so that readers miss it."""
    ident, queue_id, first, last, count, size, done_size, mask, checked = row
    try:
        check_types(row[:6], "iiiiii")
        if not whole or first < 0 or size < 0 or not 1 <= count <= last - first + 1:
            raise CorruptRowError(WRONG)
    except CorruptRowError as error:
        queue = found.queues.get(queue_id)
        name = None if queue is None else queue.name
        found.damages.append(Damage(f"run {ident}", str(error), None, name))
        found.runs.append(ident)
        return
    queue = found.queues.get(queue_id)
    if queue is None:
        queue = found.queues[queue_id] = StoredQueue(queue_id, f"nameless-{queue_id}", b"")
        found.nameless.append(queue)
    if mask is not None:
        # If it is wrong, the row's reader finds that, and says so.
        with suppress(CorruptRowError):
            count -= decode_finished(ident, done_size, mask, checked).bit_count()
            size -= done_size
    queue.live_count += count
    queue.live_bytes += size
    queue.next_seq = queue.durable_seq = max(queue.next_seq, last + 1)
