"""The store and its peers with one interface: queues of numbered messages.

The peers are a plain SQLite table and LMDB. All collect commits and put them on the disk together,
as the relay's store does: 200 ms after the last time, or at 8 MiB. They use one thread, which makes
the peers look better: beside a store's own thread they would need a lock, and the messages that are
not written yet for readers. The peers have the least that a relay would need: their figures are
lower bounds.
"""

from __future__ import annotations

import importlib
import sqlite3
import struct
import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple, Protocol, TypeAlias

from clearfunds.store import Body, Store, StoreSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

SETTINGS: Final = StoreSettings()
SEQ_BITS: Final = 40
SEQS: Final = (1 << SEQ_BITS) - 1
KEY: Final = struct.Struct(">QQ")
VALUE: Final = struct.Struct(">HQ")
"""Length of the header, and the number of a shared body (0: none)."""


MESSAGE_BYTES: Final = 232
"""Bytes that a message counts for, until it is on the disk."""


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


def due(synced: float, nbytes: int) -> bool:
    """Return whether to put the waiting bytes on the disk, some time after the last time."""
    late = time.monotonic() - synced >= SETTINGS.fsync_interval
    return late or nbytes >= SETTINGS.write_bytes


class Own:
    """`clearfunds.store`."""

    name = "store"

    def __init__(self, directory: Path, queues: int) -> None:
        self.store = Store.open(directory, SETTINGS)
        self._changes = self.store.begin()
        for queue in range(1, queues + 1):
            self._changes.declare(f"q{queue}")
        self.queues = queues
        self.store.commit(self._changes)
        self._first_ticket = self.store.commit(self.store.begin())
        self.store.flush()
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
        if due(self._synced, self.store.ahead()):
            self.sync()

    def sync(self) -> None:
        self.store.flush()
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


class _Grouped(ABC):
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
        if due(self._synced, self._waiting() * MESSAGE_BYTES):
            self.sync()

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

    @abstractmethod
    def _waiting(self) -> int:
        """Return the number of messages that no transaction has."""

    @abstractmethod
    def _write(self) -> None:
        """Give everything to the transaction that is open."""

    @abstractmethod
    def _commit(self) -> None:
        """Put the transaction on the disk, and begin the next."""


class SqliteRows(_Grouped):
    """A row for each message, by an integer key: SQLite's fastest table."""

    name = "SQLite, a row a message"

    def __init__(self, directory: Path, queues: int) -> None:
        super().__init__()
        directory.mkdir(exist_ok=True)
        self.queues = queues
        self.db = sqlite3.connect(directory / "db", isolation_level=None, check_same_thread=False)
        # As in the store.
        self.db.execute("PRAGMA page_size=16384")
        self.db.execute("PRAGMA wal_autocheckpoint=1024")
        self.db.execute("PRAGMA auto_vacuum=INCREMENTAL")
        self.db.execute("PRAGMA journal_mode=WAL")
        self.db.execute("PRAGMA synchronous=FULL")
        self.db.execute("PRAGMA cache_size=-16384")
        self.db.executescript("""
            CREATE TABLE IF NOT EXISTS message(
                key INTEGER PRIMARY KEY, header BLOB NOT NULL, body BLOB, shared INTEGER);
            CREATE TABLE IF NOT EXISTS body(key INTEGER PRIMARY KEY, body BLOB NOT NULL);
        """)
        self.db.execute("BEGIN")
        self._rows: list[tuple[int, bytes, bytes | None, int | None]] = []
        self._references = dict(
            self.db.execute(
                "SELECT shared, count(*) FROM message WHERE shared IS NOT NULL GROUP BY shared"
            )
        )
        self.put = self._put

    def _put(self, queue: int, seq: int, header: bytes, body: bytes | Shared) -> None:
        key = queue << SEQ_BITS | seq
        if isinstance(body, bytes):
            self._rows.append((key, header, body, None))
        else:
            self._references[body.number] += 1
            self._rows.append((key, header, None, body.number))

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
    found: list[type[Any]] = [Own, SqliteRows]
    try:
        importlib.import_module("lmdb")
    except ImportError:
        return found
    return [*found, Lmdb]
