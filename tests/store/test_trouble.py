"""A disk that is full, slow, read-only or broken: said in a sentence, and nothing is lost."""

from __future__ import annotations

import errno
import os
import re
import sqlite3
import threading
import time
from typing import TYPE_CHECKING

import pytest

from clearfunds.store import (
    Store,
    StoreClosedError,
    StoreDiskError,
    StoreLockedError,
    StoreSettings,
)
from tests.store.disk import FakeDisk, refuse

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SECONDS = 30
SETTINGS = StoreSettings(fsync_interval=0.0, retry_interval=0.02)


class Running:
    """A store with its writer in a thread; notes what it is told."""

    def __init__(self, disk: FakeDisk, settings: StoreSettings = SETTINGS) -> None:
        self.disk = disk
        self.store = Store.open(disk.directory, settings, vfs=disk.name)
        self.changed = threading.Condition()
        self.troubles: list[str | None] = []
        self.durable: list[int] = []
        self.store.on_durable = self._durable
        self.store.on_trouble = self._trouble
        changes = self.store.begin()
        self.queue = changes.declare("q")
        self.store.commit(changes)
        self.next = 0
        self.thread = threading.Thread(target=self.store.run)
        self.thread.start()

    def _durable(self, ticket: int) -> None:
        with self.changed:
            self.durable.append(ticket)
            self.changed.notify_all()

    def _trouble(self, sentence: str | None) -> None:
        with self.changed:
            self.troubles.append(sentence)
            self.changed.notify_all()

    def put(self, body: bytes = b"body") -> int:
        changes = self.store.begin()
        changes.put(self.queue, self.next, b"", body)
        self.next += 1
        return self.store.commit(changes)

    def wait_durable(self, ticket: int) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: self.store.durable >= ticket, SECONDS)

    def wait_troubles(self, number: int) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.troubles) >= number, SECONDS)

    def end(self) -> None:
        self.disk.fault = None
        self.disk.room = None
        self.store.stop()
        self.thread.join(SECONDS)
        assert not self.thread.is_alive()
        self.store.close()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[FakeDisk]:
    with FakeDisk(tmp_path / "disk") as made:
        yield made


@pytest.fixture
def running(disk: FakeDisk) -> Iterator[Running]:
    made = Running(disk)
    yield made
    made.end()


def after_power_failure(disk: FakeDisk) -> list[bytes]:
    """Return the bodies of the first queue, once the power is back."""
    disk.lose_power()
    again = Store.open(disk.directory, vfs=disk.name)
    bodies = [record.body for record in again.read(1, 0, count=1000, nbytes=1 << 24)]
    again.close()
    return bodies


@pytest.mark.parametrize(
    ("code", "operation", "says"),
    [
        (errno.ENOSPC, "write", r"SQLITE_FULL\); free some space"),
        (errno.EIO, "write", r"SQLITE_IOERR_WRITE\); the disk fails"),
        (errno.EIO, "sync", r"SQLITE_IOERR_FSYNC\); the disk fails"),
    ],
)
def test_what_the_disk_refuses_waits_and_is_written_when_it_can_be(
    running: Running, code: int, operation: str, says: str
) -> None:
    running.wait_durable(running.put(b"before"))
    running.disk.fault = refuse(code, operation)
    tickets = [running.put(b"during %d" % number) for number in range(5)]
    running.wait_troubles(1)
    (sentence,) = running.troubles
    assert sentence is not None
    assert re.search(says, sentence)
    assert str(running.disk.directory) in sentence
    assert running.store.statistics().trouble == sentence
    # Commits go on, and readers see what they say.
    tickets.append(running.put(b"after"))
    bodies = [b"before", *(b"during %d" % n for n in range(5)), b"after"]
    found = running.store.read(running.queue, 0, count=10, nbytes=1000)
    assert [record.body for record in found] == bodies
    assert running.store.durable < tickets[0]
    running.disk.fault = None
    running.wait_durable(tickets[-1])
    running.wait_troubles(2)
    assert running.troubles == [sentence, None]
    assert running.store.statistics().trouble is None
    assert after_power_failure(running.disk) == bodies


def test_a_full_disk_takes_what_fits_and_the_rest_when_there_is_room(running: Running) -> None:
    running.wait_durable(running.put())
    running.disk.room = running.disk.used + 200_000
    tickets = [running.put(bytes(30_000)) for _ in range(20)]
    running.wait_troubles(1)
    assert running.store.durable < tickets[-1]
    running.disk.room = None
    running.wait_durable(tickets[-1])
    assert len(running.store.read(running.queue, 0, count=99, nbytes=1 << 24)) == 21


def test_a_slow_disk_holds_up_nobody_but_the_writer(running: Running) -> None:
    running.wait_durable(running.put())
    gate = threading.Event()

    def slow(operation: str, name: str) -> None:
        if operation == "sync":
            assert gate.wait(SECONDS)

    running.disk.fault = slow
    tickets = [running.put(b"slow") for _ in range(100)]
    found = running.store.read(running.queue, 1, count=200, nbytes=1 << 20)
    assert [record.body for record in found] == [b"slow"] * 100
    assert running.store.durable < tickets[0]
    running.durable.clear()
    gate.set()
    running.wait_durable(tickets[-1])
    # What came during one fsync shared the next.
    assert len(running.durable) <= 3


def test_an_fsync_that_failed_is_not_believed_the_next_time(running: Running) -> None:
    running.wait_durable(running.put(b"one"))
    failed: list[str] = []

    def once(operation: str, name: str) -> None:
        if operation == "sync" and not failed:
            failed.append(name)
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    running.disk.fault = once
    running.wait_durable(running.put(b"two"))
    # The disk of these tests says that all is well after that, unless what it lost comes again.
    assert failed
    assert after_power_failure(running.disk) == [b"one", b"two"]


def test_hurry_does_not_wait_for_the_interval(disk: FakeDisk) -> None:
    running = Running(disk, StoreSettings(fsync_interval=3600.0, retry_interval=3600.0))
    try:
        ticket = running.put()
        time.sleep(0.05)
        assert running.store.durable < ticket
        running.store.hurry()
        running.wait_durable(ticket)
        # Nor for a second try of what failed.
        running.disk.fault = refuse(errno.EIO, "write")
        ticket = running.put()
        running.store.hurry()
        running.wait_troubles(1)
        running.disk.fault = None
        running.store.hurry()
        running.wait_durable(ticket)
    finally:
        running.end()


def test_flush_says_what_is_wrong(disk: FakeDisk) -> None:
    store = Store.open(disk.directory, vfs=disk.name)
    changes = store.begin()
    changes.set("a", b"1")
    store.commit(changes)
    disk.fault = refuse(errno.EIO, "write")
    with pytest.raises(StoreDiskError, match=r"cannot write to the store .* the disk fails"):
        store.flush()
    disk.fault = None
    store.flush()
    store.close()
    with pytest.raises(StoreClosedError):
        store.commit(store.begin())


def test_a_directory_that_cannot_be_written_is_refused_with_a_sentence(disk: FakeDisk) -> None:
    Store.open(disk.directory, vfs=disk.name).close()
    disk.fault = refuse(errno.EROFS, "open")
    with pytest.raises(StoreDiskError, match="cannot open the store"):
        Store.open(disk.directory, vfs=disk.name)


def test_another_program_may_look_while_the_relay_writes(running: Running) -> None:
    running.wait_durable(running.put(b"one"))
    place = running.disk.directory / "messages.db"
    other = sqlite3.connect(f"{place.as_uri()}?mode=ro&vfs={running.disk.name}", uri=True)
    other.execute("BEGIN")
    assert other.execute("SELECT sum(count) FROM run").fetchone() == (1,)
    running.wait_durable(running.put(b"two"))
    assert other.execute("SELECT sum(count) FROM run").fetchone() == (1,)
    other.execute("COMMIT")
    assert other.execute("SELECT sum(count) FROM run").fetchone() == (2,)
    other.close()
    assert running.troubles == []


def test_a_store_belongs_to_one_process(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "store")
    with pytest.raises(StoreLockedError, match="in use by another process"):
        Store.open(tmp_path / "store")
    store.close()
    Store.open(tmp_path / "store").close()


def test_a_path_that_is_a_file_is_refused_with_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreDiskError, match="cannot open the store"):
        Store.open(tmp_path / "file")
    with pytest.raises(StoreDiskError, match="is a file: give a directory"):
        Store.open(tmp_path / "file" / "store")


def test_reading_fails_with_a_sentence_and_damages_nothing(disk: FakeDisk) -> None:
    store = Store.open(disk.directory, vfs=disk.name)
    changes = store.begin()
    queue = changes.declare("q")
    changes.put(queue, 0, b"", b"body" * 50_000)
    store.commit(changes)
    store.flush()
    disk.fault = refuse(errno.EIO, "read")
    with pytest.raises(StoreDiskError, match="cannot read the store"):
        store.read(queue, 0, count=1, nbytes=1)
    disk.fault = None
    found = store.read(queue, 0, count=1, nbytes=1)
    assert [r.body for r in found] == [b"body" * 50_000]
    assert store.damages == ()
    store.close()
