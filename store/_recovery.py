"""The state of a store that is opened, from its database."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from ._changes import LostRun
from ._database import from_bytes
from ._errors import Damage
from ._queue import StoredQueue
from ._rows import CorruptRowError, checksum, decode_finished

if TYPE_CHECKING:
    import sqlite3

_RUNS = """
    SELECT id, queue, first, last, count, run.size, finished.size, mask, finished.checksum
    FROM run NOT INDEXED LEFT JOIN finished ON run = id ORDER BY id"""

_HIDDEN = """
    SELECT count(*) FROM run AS one NOT INDEXED WHERE NOT EXISTS (
        SELECT 1 FROM run AS two INDEXED BY run_place
        WHERE two.queue = one.queue AND two.first = one.first AND two.id = one.id)"""
"""Rows that a damaged index would hide from their readers."""


@attrs.define(slots=True)
class Recovered:
    """What is in a database.

    Attributes:
        queues: The queues, by id.
        values: The keys, with their values.
        damages: Everything unreadable.
        nameless: Queues whose own row is unreadable: they get a name made from their id.
        lost: Rows of messages to put aside.
        next_queue: An id that no queue has.
    """

    queues: dict[int, StoredQueue] = attrs.field(factory=dict[int, StoredQueue])
    values: dict[str, bytes] = attrs.field(factory=dict[str, bytes])
    damages: list[Damage] = attrs.field(factory=list[Damage])
    nameless: list[StoredQueue] = attrs.field(factory=list[StoredQueue])
    lost: list[LostRun] = attrs.field(factory=list[LostRun])
    next_queue: int = 1


def hidden_runs(db: sqlite3.Connection) -> int:
    """Return how many rows of messages their index does not have; `REINDEX` finds them again."""
    number: int = db.execute(_HIDDEN).fetchone()[0]
    return number


def recover(db: sqlite3.Connection) -> Recovered:
    """Read queues and values, and count messages; their bodies are not read.

    Raises:
        sqlite3.Error: The disk fails, or the structure of the database is damaged.
    """
    found = Recovered()
    for ident, name, meta, number, checked in db.execute("SELECT * FROM queue"):
        if checksum(ident, name, meta, b"%d" % number) != checked:
            found.damages.append(Damage(f"queue {ident}", "its checksum is wrong", ident))
            continue
        queue = StoredQueue(ident, from_bytes(name), meta, number, durable_seq=number)
        found.queues[ident] = queue
    for key, value, checked in db.execute("SELECT * FROM value"):
        if checksum(0, key, value) == checked:
            found.values[from_bytes(key)] = value
        else:
            what = "its checksum is wrong; it counts as not set"
            found.damages.append(Damage(f"value {key!r}", what))
    for row in db.execute(_RUNS):
        _count(found, row)
    found.next_queue = max(found.queues, default=0) + 1
    stored = found.values.pop(NEXT_QUEUE, None)
    if stored is not None:
        found.next_queue = max(found.next_queue, int(stored))
    return found


NEXT_QUEUE = "\0next queue"
"""The key of the number that the next queue gets."""


def _count(found: Recovered, row: tuple[int, int, int, int, int, int, int, bytes, int]) -> None:
    ident, queue_id, _, last, count, size, done_size, mask, checked = row
    queue = found.queues.get(queue_id)
    if queue is None:
        queue = found.queues[queue_id] = StoredQueue(queue_id, f"nameless-{queue_id}", b"")
        found.nameless.append(queue)
    if mask is not None:
        try:
            count -= decode_finished(ident, done_size, mask, checked).bit_count()
            size -= done_size
        except CorruptRowError:
            pass  # Its reader finds that, and says so.
    queue.live_count += count
    queue.live_bytes += size
    queue.next_seq = queue.durable_seq = max(queue.next_seq, last + 1)
