"""The fake disk itself: what SQLite says is durable is, unless it is told a lie."""

from __future__ import annotations

import contextlib
import errno
import random
import sqlite3
import threading
import time
from functools import partial
from typing import TYPE_CHECKING

import pytest

from tests.store.disk import FakeDisk, refuse

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

SECONDS = 30


class CutError(Exception):
    """The power fails."""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[FakeDisk]:
    with FakeDisk(tmp_path) as made:
        yield made


def opened(disk: FakeDisk) -> sqlite3.Connection:
    path = f"file:{disk.directory}/messages.db?vfs={disk.name}"
    return sqlite3.connect(path, uri=True, isolation_level=None)


def connect(disk: FakeDisk, synchronous: str = "FULL", mode: str = "WAL") -> sqlite3.Connection:
    connection = opened(disk)
    try:
        connection.execute("PRAGMA page_size=1024")
        connection.execute("PRAGMA auto_vacuum=INCREMENTAL")
        connection.execute(f"PRAGMA journal_mode={mode}")
        connection.execute(f"PRAGMA synchronous={synchronous}")
        connection.execute("PRAGMA wal_autocheckpoint=20")
        connection.execute("CREATE TABLE IF NOT EXISTS kept (key INTEGER PRIMARY KEY, value BLOB)")
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def state(connection: sqlite3.Connection) -> dict[int, bytes]:
    return dict(connection.execute("SELECT key, value FROM kept").fetchall())


def put(connection: sqlite3.Connection, key: int, value: bytes = b"value") -> None:
    connection.execute("INSERT INTO kept VALUES (?, ?)", (key, value))


class Life:
    """Random transactions, until the disk fails."""

    def __init__(self, disk: FakeDisk, synchronous: str) -> None:
        self.disk = disk
        self.synchronous = synchronous
        #: What may be found: what was committed last, and what was about to be.
        self.allowed: list[dict[int, bytes]] = [{}]

    def live(self, chance: random.Random) -> None:
        connection = connect(self.disk, self.synchronous)
        with contextlib.closing(connection):
            now = state(connection)
            self.allowed = [now]
            while True:
                self._transaction(connection, dict(now), chance)
                now = self.allowed[0]
                if chance.random() < 0.1:
                    kind = chance.choice(("PASSIVE", "FULL", "RESTART", "TRUNCATE"))
                    connection.execute(f"PRAGMA wal_checkpoint({kind})")
                if chance.random() < 0.1:
                    connection.execute("PRAGMA incremental_vacuum(3)").fetchall()

    def _transaction(
        self, connection: sqlite3.Connection, now: dict[int, bytes], chance: random.Random
    ) -> None:
        connection.execute("BEGIN IMMEDIATE")
        for _ in range(chance.randint(1, 4)):
            key = chance.randrange(30)
            if chance.random() < 0.4:
                connection.execute("DELETE FROM kept WHERE key=?", (key,))
                now.pop(key, None)
            else:
                now[key] = chance.randbytes(chance.choice((5, 100, 3000)))
                connection.execute("REPLACE INTO kept VALUES (?, ?)", (key, now[key]))
        if chance.random() < 0.1:
            connection.execute("ROLLBACK")
            return
        self.allowed.append(now)
        connection.execute("COMMIT")
        self.allowed = [now]

    def found(self) -> bool:
        """Return whether what is there now is what should be."""
        try:
            with contextlib.closing(connect(self.disk, self.synchronous)) as connection:
                (sound,) = connection.execute("PRAGMA integrity_check").fetchone()
                return sound == "ok" and state(connection) in self.allowed
        except sqlite3.DatabaseError:
            return False


def after(number: int, error: Callable[[], Exception]) -> Callable[[str, str], None]:
    """Return a fault: after so many operations this is raised."""
    left = iter(range(number))

    def fault(operation: str, name: str) -> None:
        if next(left, None) is None:
            raise error()

    return fault


def holds(folder: Path, seed: int, synchronous: str, end: Callable[[FakeDisk], None]) -> bool:
    """Let everything end a few times; return whether all was found each time."""
    chance = random.Random(seed)
    with FakeDisk(folder / str(seed), seed) as disk:
        life = Life(disk, synchronous)
        for _ in range(4):
            disk.fault = after(chance.randrange(chance.choice((30, 300))), CutError)
            with pytest.raises(sqlite3.DatabaseError):
                life.live(chance)
            if not isinstance(disk.cut, CutError):
                return False
            disk.fault = None
            for each in (end, chance.choice((FakeDisk.kill, FakeDisk.lose_power))):
                each(disk)
                if not life.found():
                    return False
    return True


@pytest.mark.parametrize("seed", range(60))
def test_what_is_committed_survives_a_loss_of_power(tmp_path: Path, seed: int) -> None:
    assert holds(tmp_path, seed, "FULL", FakeDisk.lose_power)


def test_what_is_committed_without_a_sync_does_not(tmp_path: Path) -> None:
    assert not all(holds(tmp_path, seed, "OFF", FakeDisk.lose_power) for seed in range(10))


@pytest.mark.parametrize("seed", range(10))
def test_what_is_committed_without_a_sync_survives_the_process(tmp_path: Path, seed: int) -> None:
    with FakeDisk(tmp_path, seed) as disk:
        life = Life(disk, "OFF")
        for number in range(40, 200, 40):
            disk.fault = after(number, CutError)
            with pytest.raises(sqlite3.OperationalError):
                life.live(disk.chance)
            disk.fault = None
            disk.kill()
            assert life.found()


@pytest.mark.parametrize("seed", range(20))
def test_faults_now_and_then_and_then_the_power(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    with FakeDisk(tmp_path, seed) as disk:
        life = Life(disk, "FULL")
        for number in range(20):
            code = chance.choice((errno.EIO, errno.ENOSPC))
            disk.fault = after(
                chance.randrange(150),
                partial(OSError, code, "it fails"),
            )
            with pytest.raises(sqlite3.OperationalError):
                life.live(chance)
            disk.fault = None
            if number % 4 == 3:
                disk.lose_power()
                assert life.found()


INSERT = "INSERT INTO kept VALUES (2, '')"


@pytest.mark.parametrize(
    ("mode", "code", "operation", "statement", "name"),
    [
        ("WAL", errno.ENOSPC, "write", INSERT, "SQLITE_FULL"),
        ("WAL", errno.EIO, "write", INSERT, "SQLITE_IOERR_WRITE"),
        ("WAL", errno.EIO, "sync", INSERT, "SQLITE_IOERR_FSYNC"),
        ("WAL", errno.ENOSPC, "sync", INSERT, "SQLITE_IOERR_FSYNC"),
        ("WAL", errno.EIO, "sync", "PRAGMA wal_checkpoint", "SQLITE_IOERR_FSYNC"),
        ("WAL", errno.EIO, "truncate", "PRAGMA wal_checkpoint(TRUNCATE)", "SQLITE_IOERR_TRUNCATE"),
        ("WAL", errno.EIO, "read", "PRAGMA wal_checkpoint", "SQLITE_IOERR_READ"),
        ("DELETE", errno.EIO, "delete", INSERT, "SQLITE_IOERR_DELETE"),
        ("DELETE", errno.EROFS, "open", INSERT, "SQLITE_CANTOPEN"),
    ],
)
def test_a_fault_has_its_name_and_the_connection_works_on(
    disk: FakeDisk, mode: str, code: int, operation: str, statement: str, name: str
) -> None:
    with contextlib.closing(connect(disk, "EXTRA", mode)) as connection:
        put(connection, 1)
        disk.fault = refuse(code, operation)
        with pytest.raises(sqlite3.OperationalError) as caught:
            connection.execute(statement).fetchall()
        assert caught.value.sqlite_errorname == name
        assert operation in {each for each, _ in disk.operations[-5:]}
        disk.fault = None
        put(connection, 3)
        connection.execute(statement).fetchall()
        before = state(connection)
        disk.lose_power()
    with contextlib.closing(connect(disk)) as connection:
        assert state(connection) == before


def test_a_file_on_a_read_only_disk_can_be_read(disk: FakeDisk) -> None:
    with contextlib.closing(connect(disk, mode="DELETE")) as connection:
        put(connection, 1)
    disk.fault = refuse(errno.EROFS, "open")
    with pytest.raises(sqlite3.OperationalError) as caught:
        connect(disk, mode="DELETE")
    assert caught.value.sqlite_errorname == "SQLITE_READONLY"
    with contextlib.closing(opened(disk)) as connection:
        assert state(connection).keys() == {1}


def test_a_full_disk_takes_what_fits_and_the_rest_when_there_is_room(disk: FakeDisk) -> None:
    with contextlib.closing(connect(disk)) as connection:
        disk.room = disk.used + 10_000
        with pytest.raises(sqlite3.OperationalError) as caught:
            connection.executemany("INSERT INTO kept VALUES (?, zeroblob(1000))", zip(range(100)))
        assert caught.value.sqlite_errorname == "SQLITE_FULL"
        written = len(state(connection))
        assert 0 < written < 10
        assert disk.room - 5_000 < disk.used <= disk.room
        disk.room = None
        put(connection, written)
        assert len(state(connection)) == written + 1


def lie(folder: Path, seed: int, operation: str) -> bool:
    """Return whether what a sync that failed left is there after one that did not."""
    with FakeDisk(folder / f"{operation}{seed}", seed) as disk:
        with contextlib.closing(connect(disk, "NORMAL")) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            for key in range(5):
                put(connection, key)
            disk.fault = refuse(errno.EIO, operation)
            with pytest.raises(sqlite3.OperationalError):
                connection.execute("PRAGMA wal_checkpoint")
            disk.fault = None
            connection.execute("PRAGMA synchronous=FULL")
            put(connection, 5)
            disk.lose_power()
        with contextlib.closing(connect(disk)) as connection:
            return len(state(connection)) == 6


def test_after_a_sync_that_failed_the_next_one_lies(tmp_path: Path) -> None:
    assert not all(lie(tmp_path, seed, "sync") for seed in range(10))
    assert all(lie(tmp_path, seed, "read") for seed in range(10))


def test_connections_of_before_are_dead_and_change_nothing(disk: FakeDisk) -> None:
    with contextlib.closing(connect(disk)) as old:
        put(old, 1)
        old.execute("BEGIN")
        put(old, 2)
        disk.kill()
        with contextlib.closing(connect(disk)) as new:
            before = list(disk.operations)
            with pytest.raises(sqlite3.OperationalError) as caught:
                old.execute("COMMIT")
            assert caught.value.sqlite_errorname == "SQLITE_IOERR_WRITE"
            old.close()
            assert disk.operations == before
            put(new, 3)
            assert state(new).keys() == {1, 3}


def test_nothing_works_until_the_power_is_back(disk: FakeDisk) -> None:
    with contextlib.closing(connect(disk)) as connection:
        put(connection, 1)
        disk.fault = after(0, CutError)
        for _ in range(2):
            with pytest.raises(sqlite3.OperationalError):
                put(connection, 2)
            assert isinstance(disk.cut, CutError)
            disk.fault = None
        with pytest.raises(sqlite3.OperationalError):
            connect(disk)
        disk.lose_power()
    with contextlib.closing(connect(disk)) as connection:
        assert state(connection).keys() == {1}


def test_other_files_stay_and_a_file_may_be_changed_by_hand(disk: FakeDisk) -> None:
    with contextlib.closing(connect(disk)) as connection:
        put(connection, 1)
    (disk.directory / "folder").mkdir()
    (disk.directory / "folder" / "note").write_text("note")
    disk.lose_power()
    assert (disk.directory / "folder" / "note").read_text() == "note"
    (disk.directory / "messages.db").write_bytes(b"damaged" * 1000)
    with pytest.raises(sqlite3.DatabaseError, match="not a database"):
        connect(disk)


def test_threads_read_while_one_writes_to_a_slow_disk(disk: FakeDisk) -> None:
    seen = [0, 0]
    written = 0

    def read(number: int) -> None:
        with contextlib.closing(opened(disk)) as connection:
            while seen[number] < 20:
                found = len(state(connection))
                assert seen[number] <= found <= written + 1
                seen[number] = found
                time.sleep(0.001)

    threads = [threading.Thread(target=read, args=(number,)) for number in range(2)]
    with contextlib.closing(connect(disk)) as writer:
        disk.fault = lambda operation, name: time.sleep(0.001 * (operation == "sync"))
        for thread in threads:
            thread.start()
        for key in range(20):
            put(writer, key)
            written += 1
        for thread in threads:
            thread.join(SECONDS)
            assert not thread.is_alive()
    assert seen == [20, 20]
