"""The store and its peers, SQLite and LMDB, with one interface: queues of numbered messages.

All of them collect commits and put them on the disk together, as the relay's store does: 200 ms
after the last time, or at 32 MiB. They use one thread, which makes the peers look better: beside a
store's own thread they would need a lock, and the messages that are not written yet for readers.
The peers have the least that a relay would need: their figures are lower bounds.
"""

from __future__ import annotations

import importlib
import sqlite3
import struct
import time
from array import array
from bisect import bisect_right
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple, Protocol, TypeAlias
from zlib import crc32

from clearfunds.store import Body, Store, StoreSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Sequence
    from pathlib import Path

SETTINGS: Final = StoreSettings()
SEQ_BITS: Final = 40
SEQS: Final = (1 << SEQ_BITS) - 1
RUN_BYTES: Final = 64 << 10
"""Bytes of messages in one row of `SqliteRuns`: a reader has to take all of them."""
KEY: Final = struct.Struct(">QQ")
VALUE: Final = struct.Struct(">HQ")
"""Length of the header, and the number of a shared body (0: none)."""


class Shared(NamedTuple):
    """A body that is stored once for several messages of one commit."""

    number: int
    body: bytes


AnyBody: TypeAlias = "bytes | Shared | Body"
Found: TypeAlias = "list[tuple[int, bytes, bytes]]"
"""Messages: number, header, body."""


class Engine(Protocol):
    """Queues 1 to n on a disk."""

    name: ClassVar[str]
    put: Callable[[int, int, bytes, Any], object]
    """Add a message: queue, number, header, body. To be looked up after each commit."""
    durable: int
    """The number of the last batch that is on the disk."""

    def __init__(self, directory: Path, queues: int) -> None: ...
    def share(self, body: bytes) -> AnyBody:
        """Return a body for several queues, for this commit."""
        ...

    def done(self, queue: int, first: int, last: int) -> None:
        """Remove messages."""
        ...

    def commit(self) -> None:
        """End a batch, which is on the disk soon. Batches have numbers, from 1 on."""
        ...

    def sync(self) -> None:
        """Put all batches on the disk."""
        ...

    def read(self, queue: int, first: int, count: int) -> Found:
        """Return the next messages of a queue, up to a number of them and 8 MiB."""
        ...

    def counts(self) -> list[int]:
        """Return the messages of each queue, as a relay wants to know when it starts."""
        ...

    def give_back(self) -> None:
        """Return free space to the system, as well as it can be done bit by bit."""
        ...

    def close(self) -> None: ...


READ_BYTES: Final = 8 << 20


class Own:
    """`clearfunds.store`."""

    name = "store"

    def __init__(self, directory: Path, queues: int) -> None:
        self.store = Store.open(directory, SETTINGS)
        self._changes = self.store.begin()
        found = [self._changes.declare(f"q{queue}") for queue in range(1, queues + 1)]
        assert found == list(range(1, queues + 1))
        self.queues = queues
        self.store.commit(self._changes)
        self._first_ticket = self.store.commit(self.store.begin())
        self.store.flush(sync=True)
        self._synced = time.monotonic()
        self.durable = 0
        self._begin()

    def _begin(self) -> None:
        self._changes = self.store.begin()
        self.put = self._changes.put

    def share(self, body: bytes) -> AnyBody:
        return self._changes.share(body)

    def done(self, queue: int, first: int, last: int) -> None:
        self._changes.done(queue, first, last)

    def commit(self) -> None:
        self.store.commit(self._changes)
        self._begin()
        ahead = self.store.ahead()
        if time.monotonic() - self._synced >= SETTINGS.fsync_interval:
            self.sync()
        elif ahead >= SETTINGS.write_bytes:
            self.store.flush(sync=False)

    def sync(self) -> None:
        self.store.flush(sync=True)
        self._synced = time.monotonic()
        self.durable = self.store.durable - self._first_ticket

    def read(self, queue: int, first: int, count: int) -> Found:
        found = self.store.read(queue, first, count=count, nbytes=READ_BYTES)
        return [(seq, header, body) for seq, header, body, _ in found]

    def counts(self) -> list[int]:
        return [self.store.queues[f"q{n}"].live_count for n in range(1, self.queues + 1)]

    def give_back(self) -> None:
        self.store.compact()

    def close(self) -> None:
        self.store.close()


class _Grouped:
    """A peer that collects commits."""

    put: Callable[[int, int, bytes, Any], object]

    def __init__(self) -> None:
        self._batches = self.durable = 0
        self._synced = time.monotonic()
        self._dones: list[tuple[int, int]] = []
        self._bodies: list[tuple[int, bytes]] = []
        self._next_body = 1
        self._references: dict[int, int] = {}

    def share(self, body: bytes) -> AnyBody:
        if len(body) < SETTINGS.embed_below:
            return body
        shared = Shared(self._next_body, body)
        self._next_body += 1
        self._bodies.append(shared)
        self._references[shared.number] = 0
        return shared

    def done(self, queue: int, first: int, last: int) -> None:
        low, high = queue << SEQ_BITS | first, queue << SEQ_BITS | last
        if self._dones and self._dones[-1][1] == low - 1:
            self._dones[-1] = self._dones[-1][0], high
        else:
            self._dones.append((low, high))

    def commit(self) -> None:
        self._batches += 1
        if time.monotonic() - self._synced >= SETTINGS.fsync_interval:
            self.sync()
        elif self._waiting() >= SETTINGS.write_bytes // 232:
            self._write()

    def sync(self) -> None:
        self._write()
        self._commit()
        self._synced = time.monotonic()
        self.durable = self._batches

    def _released(self, number: int) -> bool:
        """Return whether no message has a body any more."""
        left = self._references[number] = self._references[number] - 1
        if not left:
            del self._references[number]
        return not left

    def _waiting(self) -> int:
        raise NotImplementedError

    def _write(self) -> None:
        raise NotImplementedError

    def _commit(self) -> None:
        raise NotImplementedError


class _Sqlite(_Grouped):
    """What both ways to use SQLite have in common."""

    tables: ClassVar[str]

    def __init__(self, directory: Path, queues: int) -> None:
        super().__init__()
        directory.mkdir(exist_ok=True)
        self.queues = queues
        self.db = sqlite3.connect(directory / "db", isolation_level=None, check_same_thread=False)
        # These cost the least here. Of 4 KiB, the default, a row of a run takes 17 pages.
        self.db.execute("PRAGMA page_size=16384")
        self.db.execute("PRAGMA wal_autocheckpoint=1024")
        self.db.execute("PRAGMA auto_vacuum=INCREMENTAL")
        self.db.execute("PRAGMA journal_mode=WAL")
        self.db.execute("PRAGMA synchronous=FULL")
        self.db.execute("PRAGMA cache_size=-16384")
        self.db.executescript(self.tables)
        self.db.execute("BEGIN")

    def _commit(self) -> None:
        self.db.execute("COMMIT")
        self.db.execute("BEGIN")

    def give_back(self) -> None:
        self.sync()
        self.db.execute("COMMIT")
        # `execute` would stop after one page.
        self.db.executescript("PRAGMA incremental_vacuum")
        self.db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self.db.execute("BEGIN")

    def close(self) -> None:
        self.sync()
        self.db.execute("COMMIT")
        self.db.close()


class SqliteRows(_Sqlite):
    """A row for each message, by an integer key: SQLite's fastest table."""

    name = "SQLite, a row a message"
    tables = """
        CREATE TABLE IF NOT EXISTS message(
            key INTEGER PRIMARY KEY, header BLOB NOT NULL, body BLOB, shared INTEGER);
        CREATE TABLE IF NOT EXISTS body(key INTEGER PRIMARY KEY, body BLOB NOT NULL);
    """

    def __init__(self, directory: Path, queues: int) -> None:
        super().__init__(directory, queues)
        self._rows: list[tuple[int, bytes, bytes | None, int | None]] = []
        self._references = dict(
            self.db.execute(
                "SELECT shared, count(*) FROM message WHERE shared IS NOT NULL GROUP BY shared"
            )
        )
        self.put = self._put

    def _put(self, queue: int, seq: int, header: bytes, body: bytes | Shared) -> None:
        key = queue << SEQ_BITS | seq
        if type(body) is Shared:
            self._references[body.number] += 1
            self._rows.append((key, header, None, body.number))
        else:
            self._rows.append((key, header, body, None))  # type: ignore[arg-type]

    def _waiting(self) -> int:
        return len(self._rows)

    def _write(self) -> None:
        run = self.db.executemany
        if self._rows:
            run("INSERT INTO message VALUES (?, ?, ?, ?)", self._rows)
            self._rows.clear()
        if self._bodies:
            run("INSERT INTO body VALUES (?, ?)", self._bodies)
            self._bodies.clear()
        if not self._references:
            run("DELETE FROM message WHERE key BETWEEN ? AND ?", self._dones)
        else:
            delete = "DELETE FROM message WHERE key BETWEEN ? AND ? RETURNING shared"
            gone: list[tuple[int]] = []
            for some in self._dones:
                for (number,) in self.db.execute(delete, some).fetchall():
                    if number is not None and self._released(number):
                        gone.append((number,))
            run("DELETE FROM body WHERE key = ?", gone)
        self._dones.clear()

    def read(self, queue: int, first: int, count: int) -> Found:
        self._write()
        found: Found = []
        nbytes = 0
        query = (
            "SELECT message.key, header, coalesce(message.body, body.body) FROM message "
            "LEFT JOIN body ON body.key = shared WHERE message.key BETWEEN ? AND ? "
            "ORDER BY message.key LIMIT ?"
            if self._references
            else "SELECT key, header, body FROM message WHERE key BETWEEN ? AND ? "
            "ORDER BY key LIMIT ?"
        )
        low = queue << SEQ_BITS
        for key, header, body in self.db.execute(query, (low | first, low | SEQS, count)):
            found.append((key & SEQS, header, body))
            nbytes += len(body)
            if nbytes > READ_BYTES:
                break
        return found

    def counts(self) -> list[int]:
        found = dict(
            self.db.execute(
                f"SELECT key >> {SEQ_BITS}, count(*) FROM message GROUP BY 1"
            ).fetchall()
        )
        return [found.get(queue, 0) for queue in range(1, self.queues + 1)]


class _Run:
    """Messages of one queue that are not written yet."""

    __slots__ = ("bodies", "first", "headers", "nbytes")

    def __init__(self, first: int) -> None:
        self.first = first
        self.headers: list[bytes] = []
        self.bodies: list[bytes] = []
        self.nbytes = 0


class SqliteRuns(_Sqlite):
    """A row for each run of consecutive messages of a queue, up to 64 KiB, with a checksum.

    A row goes when all of its messages are done; until then those that are done are in a table, and
    in memory. Bodies are not shared.
    """

    name = "SQLite, a row a run"
    tables = """
        CREATE TABLE IF NOT EXISTS run(
            key INTEGER PRIMARY KEY, number INTEGER NOT NULL, checksum INTEGER NOT NULL,
            lengths BLOB NOT NULL, messages BLOB NOT NULL);
        CREATE TABLE IF NOT EXISTS done(key INTEGER PRIMARY KEY, last INTEGER NOT NULL);
    """

    def __init__(self, directory: Path, queues: int) -> None:
        super().__init__(directory, queues)
        self.damages: list[str] = []
        self._open: dict[int, _Run] = {}
        self._added = 0
        # By queue: the first numbers of its rows, in order; and by row, the number of messages, and
        # those that are done.
        self._firsts: dict[int, list[int]] = {}
        self._numbers: dict[int, int] = {}
        self._finished: dict[int, set[int]] = {}
        for key, number in self.db.execute("SELECT key, number FROM run ORDER BY key"):
            self._firsts.setdefault(key >> SEQ_BITS, []).append(key)
            self._numbers[key] = number
        for key, last in self.db.execute("SELECT key, last FROM done").fetchall():
            self._finish(key, last, [])
        self.put = self._put

    def share(self, body: bytes) -> AnyBody:
        return body

    def _put(self, queue: int, seq: int, header: bytes, body: bytes) -> None:
        run = self._open.get(queue)
        if run is None:
            run = self._open[queue] = _Run(seq)
        run.headers.append(header)
        run.bodies.append(body)
        run.nbytes += len(header) + len(body)
        self._added += 1
        if run.nbytes >= RUN_BYTES:
            self._end(queue)

    def extend(
        self, queue: int, seqs: Sequence[int], headers: list[bytes], bodies: Sequence[Any]
    ) -> None:
        """Add messages of one queue."""
        run = self._open.get(queue)
        if seqs[-1] - seqs[0] >= len(seqs):  # A row has no gaps.
            for seq, header, body in zip(seqs, headers, bodies, strict=True):
                if run is not None and seq != run.first + len(run.headers):
                    self._end(queue)
                self._put(queue, seq, header, body)
                run = self._open.get(queue)
            return
        if run is not None and seqs[0] != run.first + len(run.headers):
            self._end(queue)
            run = None
        if run is None:
            run = self._open[queue] = _Run(seqs[0])
        run.headers += headers
        run.bodies += bodies
        run.nbytes += sum(map(len, headers)) + sum(map(len, bodies))
        if run.nbytes >= RUN_BYTES:
            self._end(queue)

    def place(self, low: int) -> tuple[int, set[int]]:
        """Return the key of the row that a message is in, and done messages."""
        finished: set[int] = set()
        for key, some in self._finished.items():
            if key >> SEQ_BITS == low >> SEQ_BITS:
                finished |= some
        return self._start(low), finished

    def write(self) -> None:
        """Give everything to the transaction that is open."""
        self._write()

    def _waiting(self) -> int:
        return self._added

    def _end(self, queue: int) -> None:
        run = self._open.pop(queue)
        lengths = array("I", map(len, run.headers))
        lengths.extend(map(len, run.bodies))
        data = b"".join([*run.headers, *run.bodies])
        key, number = queue << SEQ_BITS | run.first, len(run.headers)
        row = key, number, crc32(data, crc32(lengths)), lengths, data
        self.db.execute("INSERT INTO run VALUES (?, ?, ?, ?, ?)", row)
        self._firsts.setdefault(queue, []).append(key)
        self._numbers[key] = number

    def _write(self) -> None:
        for queue in list(self._open):
            self._end(queue)
        self._added = 0
        gone: list[tuple[int, int]] = []
        kept: list[tuple[int, int]] = []
        for low, high in self._dones:
            kept += self._finish(low, high, gone)
        self._dones.clear()
        run = self.db.executemany
        run("INSERT INTO done VALUES (?, ?)", kept)
        run("DELETE FROM run WHERE key BETWEEN ? AND ?", gone)
        run("DELETE FROM done WHERE key BETWEEN ? AND ?", gone)

    def _finish(self, low: int, high: int, gone: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """Note messages as done; return the ranges to write, and add the rows to remove."""
        kept: list[tuple[int, int]] = []
        firsts = self._firsts.get(low >> SEQ_BITS, [])
        at = max(bisect_right(firsts, low) - 1, 0)
        while at < len(firsts) and firsts[at] <= high:
            key = firsts[at]
            number = self._numbers[key]
            some = range(max(low, key), min(high, key + number - 1) + 1)
            finished = self._finished.get(key)
            if len(some) + len(finished or ()) >= number:
                del firsts[at], self._numbers[key]
                self._finished.pop(key, None)
                gone.append((key, key + number - 1))
                continue
            if some:
                if finished is None:
                    finished = self._finished[key] = set()
                finished.update(some)
                kept.append((some[0], some[-1]))
            at += 1
        return kept

    def read(self, queue: int, first: int, count: int) -> Found:
        self._write()
        found: Found = []
        nbytes = 0
        low = queue << SEQ_BITS | first
        for key, number, checksum, lengths, data in self.db.execute(
            "SELECT * FROM run WHERE key BETWEEN ? AND ? ORDER BY key",
            (self._start(low), queue << SEQ_BITS | SEQS),
        ):
            if crc32(data, crc32(lengths)) != checksum:
                self.damages.append(f"queue {queue}: {number} messages from {key & SEQS} on")
                continue
            skipped = self._finished.get(key, ())
            found += messages_of(key, number, lengths, data, low, skipped)
            nbytes += len(data)
            if len(found) >= count or nbytes > READ_BYTES:
                break
        return found[:count]

    def _start(self, low: int) -> int:
        """Return the key of the row that a message is in."""
        firsts = self._firsts.get(low >> SEQ_BITS, [])
        return firsts[max(bisect_right(firsts, low) - 1, 0)] if firsts else low

    def counts(self) -> list[int]:
        found = [0] * self.queues
        for key, number in self._numbers.items():
            found[(key >> SEQ_BITS) - 1] += number - len(self._finished.get(key, ()))
        return found


def messages_of(
    key: int, number: int, lengths: bytes, data: bytes, low: int, skipped: Container[int]
) -> Found:
    """Return the messages of a row of `SqliteRuns`, from a key on, without those that are done."""
    ends = list(accumulate(array("I", lengths), initial=0))
    pieces = [data[a:b] for a, b in pairwise(ends)]
    skip = max(low - key, 0)
    first = key & SEQS
    seqs = range(first + skip, first + number)
    found = list(zip(seqs, pieces[skip:number], pieces[number + skip :], strict=True))
    if skipped:
        base = key - first
        return [one for one in found if base + one[0] not in skipped]
    return found


class Lmdb(_Grouped):
    """LMDB: a key for each message, the value its header and body."""

    name = "LMDB"

    def __init__(self, directory: Path, queues: int) -> None:
        super().__init__()
        self.queues = queues
        lmdb: Any = importlib.import_module("lmdb")
        self.env = lmdb.open(str(directory), map_size=8 << 30, max_dbs=2, max_readers=8)
        self._messages = self.env.open_db(b"messages")
        self._shared = self.env.open_db(b"bodies", integerkey=True)
        self._rows: list[tuple[bytes, bytes]] = []
        self._txn = self.env.begin(write=True, db=self._messages)
        self.put = self._put

    def _put(self, queue: int, seq: int, header: bytes, body: bytes | Shared) -> None:
        key = KEY.pack(queue, seq)
        if isinstance(body, bytes):
            self._rows.append((key, VALUE.pack(len(header), 0) + header + body))
        else:
            self._references[body.number] += 1
            self._rows.append((key, VALUE.pack(len(header), body.number) + header))

    def _waiting(self) -> int:
        return len(self._rows)

    def _write(self) -> None:
        txn = self._txn
        if self._rows:
            with txn.cursor() as cursor:
                cursor.putmulti(self._rows)
            self._rows.clear()
        for number, body in self._bodies:
            txn.put(number.to_bytes(8, "little"), body, db=self._shared)
        self._bodies.clear()
        sharing = bool(self._references)
        for low, high in self._dones:
            queue = low >> SEQ_BITS
            for seq in range(low & SEQS, (high & SEQS) + 1):
                if not sharing:
                    txn.delete(KEY.pack(queue, seq))
                    continue
                value = txn.pop(KEY.pack(queue, seq))
                number = VALUE.unpack_from(value)[1]
                if number and self._released(number):
                    txn.delete(number.to_bytes(8, "little"), db=self._shared)
        self._dones.clear()

    def _commit(self) -> None:
        self._txn.commit()
        self._txn = self.env.begin(write=True, db=self._messages)

    def read(self, queue: int, first: int, count: int) -> Found:
        self._write()
        found: Found = []
        nbytes = 0
        with self._txn.cursor() as cursor:
            if not cursor.set_range(KEY.pack(queue, first)):
                return found
            for key, value in cursor:
                of, seq = KEY.unpack(key)
                if of != queue or len(found) >= count or nbytes > READ_BYTES:
                    break
                length, number = VALUE.unpack_from(value)
                end = VALUE.size + length
                body = (
                    self._txn.get(number.to_bytes(8, "little"), db=self._shared)
                    if number
                    else value[end:]
                )
                found.append((seq, value[VALUE.size : end], body))
                nbytes += len(body)
        return found

    def counts(self) -> list[int]:
        found = [0] * self.queues
        with self._txn.cursor() as cursor:
            for key in cursor.iternext(keys=True, values=False):
                found[KEY.unpack(key)[0] - 1] += 1
        return found

    def give_back(self) -> None:
        self.sync()

    def close(self) -> None:
        self._write()
        self._txn.commit()
        self.env.close()


def engines() -> Iterable[type[Any]]:
    """Return those that can be used here."""
    found: list[type[Any]] = [Own, SqliteRows, SqliteRuns]
    try:
        importlib.import_module("lmdb")
    except ImportError:
        return found
    return [*found, Lmdb]
