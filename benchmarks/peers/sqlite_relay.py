"""`clearfunds relay` with SQLite in place of the store: `python sqlite_relay.py relay ...`.

A trial, to measure the whole path (`store_peers.py path`) rather than to compute it. It does what
the relay needs while all goes well: queues, values, groups of commits every 200 ms in a thread of
its own, readers that see what is not written yet, a row and a checksum for each run of messages.
Absent: restarts, shared bodies, disks that refuse, damage reports, sizes, locks, permissions.
"""

from __future__ import annotations

import importlib
import sqlite3
import sys
import threading
import time
from collections import deque
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs

if not __package__:  # run as a file: the root is not yet where modules are looked for
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.peers.stores import SEQ_BITS, SEQS, SqliteRuns, messages_of
from clearfunds.__main__ import main
from clearfunds.store import Changes, Record, StoreSettings, StoreStatistics

if TYPE_CHECKING:
    from collections.abc import Callable
    from os import PathLike

TABLES: Final = """
    CREATE TABLE IF NOT EXISTS queue(id INTEGER PRIMARY KEY, name TEXT, meta BLOB);
    CREATE TABLE IF NOT EXISTS value(key TEXT PRIMARY KEY, value BLOB) WITHOUT ROWID;
"""


@attrs.define
class Queued:
    """One queue: the part of `StoredQueue` that the relay looks at."""

    id: int
    name: str
    meta: bytes
    next_seq: int = 0
    live_count: int = 0
    live_bytes: int = 0
    pending: deque[Any] = attrs.field(factory=deque[Any])
    """Messages that no transaction on the disk has."""


class SqliteStore:
    """The part of `clearfunds.store.Store` that the relay uses."""

    def __init__(self, directory: Path, settings: StoreSettings) -> None:
        # Bodies are never shared.
        self.settings = attrs.evolve(settings, embed_below=1 << 40)
        self._engine = SqliteRuns(directory, 0)
        db = self._engine.db
        db.execute("COMMIT")
        db.executescript(TABLES)
        db.execute("BEGIN")
        self._reader = sqlite3.connect(
            directory / "db", isolation_level=None, check_same_thread=False
        )
        self._reading = threading.Lock()
        self._lock = threading.RLock()
        self._wake = threading.Condition(self._lock)
        self.queues = {row[1]: Queued(*row) for row in db.execute("SELECT * FROM queue").fetchall()}
        self._by_id = {queue.id: queue for queue in self.queues.values()}
        self._values: dict[str, bytes] = dict(db.execute("SELECT * FROM value").fetchall())
        self._last_id = max(self._by_id, default=0)
        self._pending: deque[Changes] = deque()
        self._nbytes = self._ticket = self.durable = 0
        self._oldest: float | None = None
        self._hurried = self._stopping = False
        self.on_durable: Callable[[int], None] = lambda _: None
        self.on_trouble: Callable[[str | None], None] = lambda _: None

    @classmethod
    def open(
        cls, directory: str | PathLike[str], settings: StoreSettings, **_: object
    ) -> SqliteStore:
        return cls(Path(directory), settings)

    def values(self, prefix: str = "") -> dict[str, bytes]:
        return {key: value for key, value in self._values.items() if key.startswith(prefix)}

    def begin(self) -> Changes:
        return Changes(self)

    def next_queue_id(self) -> int:
        self._last_id += 1
        return self._last_id

    def commit(self, changes: Changes) -> int:
        changes.seal()
        with self._lock:
            for ident, (name, meta) in changes.declared.items():
                if ident not in self._by_id:
                    self._by_id[ident] = self.queues[name] = Queued(ident, name, meta)
            for ident, puts in changes.puts.items():
                queue = self._by_id[ident]
                queue.pending.append(puts)
                queue.next_seq = puts.last + 1
                queue.live_count += puts.count
                queue.live_bytes += puts.nbytes
            for ident, ranges in changes.dones.items():
                self._by_id[ident].live_count -= sum(last - first + 1 for first, last in ranges)
            for ident in changes.dropped:
                del self.queues[self._by_id.pop(ident).name]
            for key, value in changes.values.items():
                if value is None:
                    self._values.pop(key, None)
                else:
                    self._values[key] = value
            self._ticket += 1
            changes.ticket = self._ticket
            self._pending.append(changes)
            before = self._nbytes
            self._nbytes += changes.nbytes
            if self._oldest is None:
                self._oldest = time.monotonic()
                self._wake.notify()
            elif before < self.settings.write_bytes <= self._nbytes:
                self._wake.notify()
            return self._ticket

    def hurry(self) -> None:
        with self._lock:
            self._hurried = True
            self._wake.notify()

    def stop(self) -> None:
        with self._lock:
            self._stopping = True
            self._wake.notify()

    def run(self) -> None:
        """Write until `stop`."""
        interval, write_bytes = self.settings.fsync_interval, self.settings.write_bytes
        uncommitted: list[Changes] = []
        while True:
            with self._lock:
                while True:
                    waiting = None if self._oldest is None else self._oldest + interval
                    now = time.monotonic()
                    due = waiting is not None and (self._hurried or waiting <= now)
                    sync = self._stopping or due
                    if sync or self._nbytes >= write_bytes:
                        break
                    self._hurried = False
                    self._wake.wait(None if waiting is None else waiting - now)
                stopping = self._stopping
                group = list(self._pending)
                self._pending.clear()
                self._nbytes = 0
                if sync:
                    self._oldest, self._hurried = None, False
            self._write(group)
            uncommitted += group
            if sync and uncommitted:
                self._engine.sync()
                with self._lock:
                    for changes in uncommitted:
                        for ident in changes.puts:
                            if ident in self._by_id:
                                self._by_id[ident].pending.popleft()
                self.durable = uncommitted[-1].ticket
                uncommitted.clear()
                self.on_durable(self.durable)
            if stopping:
                return

    def _write(self, group: list[Changes]) -> None:
        engine, run = self._engine, self._engine.db.executemany
        for changes in group:
            if changes.declared:
                rows = [(ident, *rest) for ident, rest in changes.declared.items()]
                run("INSERT OR REPLACE INTO queue VALUES (?, ?, ?)", rows)
            for ident, puts in changes.puts.items():
                engine.extend(ident, puts.seqs, puts.headers, puts.bodies)
            for ident, ranges in changes.dones.items():
                for first, last in ranges:
                    engine.done(ident, first, last)
            for ident in changes.dropped:
                run("DELETE FROM queue WHERE id = ?", [(ident,)])
                engine.done(ident, 0, SEQS)
            for pair in changes.values.items():
                if pair[1] is None:
                    run("DELETE FROM value WHERE key = ?", [pair[:1]])
                else:
                    run("INSERT OR REPLACE INTO value VALUES (?, ?)", [pair])
        with self._lock:  # Readers look at the numbers of done messages.
            engine.write()

    def read(self, ident: int, first: int, *, count: int, nbytes: int) -> list[Record]:
        """Return messages on the disk, and then those that are not there yet."""
        low = ident << SEQ_BITS | first
        with self._lock:
            queue = self._by_id.get(ident)
            if queue is None:
                return []
            pending = list(queue.pending)
            start, finished = self._engine.place(low)
        limit = pending[0].first if pending else SEQS
        found: list[Record] = []
        with self._reading:
            rows = self._reader.execute(
                "SELECT * FROM run WHERE key BETWEEN ? AND ? ORDER BY key",
                (start, ident << SEQ_BITS | SEQS),
            )
            for key, number, _, lengths, data in rows:
                if key & SEQS >= limit:
                    break
                for seq, header, body in messages_of(key, number, lengths, data, low, finished):
                    if seq < limit:
                        found.append(Record(seq, header, body, len(header) + len(body)))
                nbytes -= len(data)
                if len(found) >= count or nbytes <= 0:
                    return found[:count]
            rows.close()
        later = chain.from_iterable(zip(p.seqs, p.headers, p.bodies, strict=True) for p in pending)
        for seq, header, body in later:
            if seq >= first and ident << SEQ_BITS | seq not in finished:
                found.append(Record(seq, header, body, len(header) + len(body)))
                nbytes -= len(body)
                if len(found) >= count or nbytes <= 0:
                    break
        return found

    def statistics(self) -> StoreStatistics:
        figures: dict[str, Any] = dict.fromkeys(attrs.fields_dict(StoreStatistics), 0)
        figures.update(commits=self._ticket, trouble=None)
        return StoreStatistics(**figures)

    def close(self) -> None:
        self._engine.close()
        self._reader.close()


if __name__ == "__main__":
    shelves: Any = importlib.import_module("clearfunds.persistence._shelves")
    shelves.Store = SqliteStore
    main()
