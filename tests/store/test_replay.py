"""A log of a store's changes: from any snapshot it leads to the same store."""

from __future__ import annotations

import contextlib
import errno
import random
import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clearfunds.store import (
    Damage,
    Replay,
    Store,
    StoreDiskError,
    StoreFormatError,
    StoreLockedError,
    StoreSettings,
    encode_changes,
)
from tests.store.disk import Disks, FakeDisk, refuse
from tests.store.test_model import Contents, contents_of

if TYPE_CHECKING:
    from clearfunds.store import Changes

SETTINGS = StoreSettings(embed_below=64, write_bytes=2048, logged=True)

KINDS = ("declare", *["put"] * 3, *["fan"] * 2, *["done"] * 2, "set", "delete", "drop")


@attrs.define
class Facts:
    """All that a store has, also what its users do not see."""

    contents: Contents
    ids: dict[str, int]
    next_seqs: dict[str, int]
    live: dict[str, tuple[int, int]]
    next_queue: int


def facts_of(store: Store) -> Facts:
    """Return the facts of a store that has written everything."""
    assert store.ahead() == 0
    assert store.damages == ()
    queues = store.queues
    return Facts(
        contents_of(store),
        {name: queue.id for name, queue in queues.items()},
        {name: queue.next_seq for name, queue in queues.items()},
        {name: (queue.live_count, queue.live_bytes) for name, queue in queues.items()},
        store.next_queue_id(),
    )


class Logged:
    """A store with a log, which is a list."""

    def __init__(self, disk: FakeDisk, folder: Path, seed: int) -> None:
        self.chance = random.Random(seed)
        self.store = Store.open(disk.directory, SETTINGS, vfs=disk.name)
        self.log: list[bytes] = []
        self.snapshots: list[tuple[int, Path]] = []
        self._disk = disk
        self._folder = folder

    def commit(self) -> None:
        chance, store = self.chance, self.store
        changes = store.begin()
        fresh: set[int] = set()
        for _ in range(chance.randint(1, 8)):
            name = chance.choice("abcde")
            queue = store.queues.get(name)
            match chance.choice(KINDS):
                case "declare":
                    changes.declare(name, chance.choice((b"", b"meta")))
                case "put" if queue is not None:
                    self._put(changes, {name}, fresh)
                case "fan" if store.queues:
                    self._put(changes, set(store.queues), fresh)
                case "done" if queue is not None:
                    first = chance.randrange(queue.next_seq + 3)
                    changes.done(queue.id, first, first + chance.choice((0, 0, 1, 5, 50)))
                case "set":
                    changes.set(name, chance.randbytes(5))
                case "delete":
                    changes.delete(name)
                case "drop" if queue is not None and queue.id not in fresh and not changes.declared:
                    if chance.random() < 0.3 and queue.id not in changes.dropped:
                        changes.drop(queue.id)
                        if chance.random() < 0.5:
                            changes.declare(name, b"again")
                case _:
                    pass
        store.commit(changes)

    def _put(self, changes: Changes, names: set[str], fresh: set[int]) -> None:
        chance = self.chance
        body = chance.randbytes(chance.choice((0, 10, 63, 64, 200, 900)))
        shared = changes.share(body) if chance.random() < 0.7 else body
        for name in sorted(names):
            queue = self.store.queues[name]
            if queue.id in changes.dropped:
                continue
            puts = changes.puts.get(queue.id)
            seq = (puts.last + 1 if puts else queue.next_seq) + chance.choice((0, 0, 0, 1, 3))
            changes.put(
                queue.id, seq, chance.randbytes(4), shared, size=chance.choice((None, 7, 1 << 20))
            )
            fresh.add(queue.id)

    def append(self) -> None:
        """Put some changes into the log."""
        group = self.store.unlogged(self.chance.choice((1, 500, 3_000, 20_000)))
        if group:
            self.log.append(encode_changes(group))
            self.store.logged(group, b"%d" % len(self.log))
            assert self.store.durable == group[-1].ticket

    def append_all(self) -> None:
        while self.store.unlogged(1):
            self.append()

    def flush(self) -> None:
        """Write to the copy; sometimes only a part."""
        if self.chance.random() < 0.5:
            self._disk.room = self._disk.used + self.chance.randint(0, 300_000)
        with contextlib.suppress(StoreDiskError):
            self.store.flush()
        self._disk.room = None

    def snapshot(self) -> None:
        path = self._folder / f"snapshot-{len(self.snapshots)}"
        position = self.store.snapshot(path)
        self.snapshots.append((int(position or b"0"), path))

    def replayed(self, number: int, path: Path | None, place: int) -> Facts:
        """Return the facts of a store that is made from a snapshot, or from nothing."""
        directory = self._folder / f"copy-{number}"
        with Replay(directory, SETTINGS, path) as replay:
            assert int(replay.position or b"0") == place
            for at, data in enumerate(self.log[place:], place + 1):
                replay.add(data, b"%d" % at)
                if self.chance.random() < 0.2:
                    replay.write()
            replay.write()
            assert int(replay.position or b"0") == len(self.log)
        store = Store.open(directory, SETTINGS)
        try:
            return facts_of(store)
        finally:
            store.close()


@pytest.mark.parametrize("seed", range(12))
def test_from_the_beginning_and_from_any_snapshot_it_is_the_same(
    seed: int, disks: Disks, tmp_path: Path
) -> None:
    logged = Logged(disks(seed), tmp_path, seed)
    steps = (logged.commit, logged.append, logged.flush, logged.snapshot)
    for _ in range(150):
        logged.chance.choices(steps, (10, 6, 3, 1))[0]()
    logged.append_all()
    logged.store.flush()
    wanted = facts_of(logged.store)
    logged.store.close()
    places = [(None, 0), *((path, place) for place, path in logged.snapshots)]
    assert len(logged.log) > 10
    for number, (path, place) in enumerate(places):
        assert logged.replayed(number, path, place) == wanted, place


@given(nbytes=st.integers(1, 3_000), room=st.integers(0, 500_000))
def test_a_snapshot_never_has_a_part_of_an_entry(
    nbytes: int, room: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """However little the disk takes: or the rest would be put there again, with that part."""
    folder = tmp_path_factory.mktemp("disk")
    disk = FakeDisk(folder)
    try:
        store = Store.open(disk.directory, SETTINGS, vfs=disk.name)
        changes = store.begin()
        queue = changes.declare("q")
        store.commit(changes)
        for seq in range(60):
            changes = store.begin()
            changes.put(queue, seq, b"", bytes(500))
            store.commit(changes)
        entries: list[int] = []
        while group := store.unlogged(10 * nbytes):
            entries.append(sum(len(each.seqs) for some in group for each in some.puts.values()))
            store.logged(group, b"%d" % len(entries))
        disk.room = disk.used + room
        with contextlib.suppress(StoreDiskError):
            store.flush()
        disk.room = None
        position = store.snapshot(folder / "copy")
        store.close()
        directory = folder / "other"
        with Replay(directory, SETTINGS, folder / "copy"):
            pass
        other = Store.open(directory, SETTINGS)
        count = other.queues["q"].live_count if "q" in other.queues else 0
        other.close()
        assert count == sum(entries[: int(position or b"0")])
    finally:
        disk.close()


def test_what_the_log_does_not_have_is_not_written(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "store", SETTINGS)
    told: list[int] = []
    store.on_durable = told.append
    ready: list[bool] = []
    store.on_commit = lambda: ready.append(True)
    for key in "abc":
        changes = store.begin()
        changes.set(key, b"")
        store.commit(changes)
    store.flush()
    assert (store.durable, told, len(ready)) == (0, [], 3)
    assert store.behind() == 0 < store.ahead()
    store.logged(store.unlogged(1), b"1")
    assert (store.durable, told) == (1, [1])
    assert 0 < store.behind() < store.ahead()
    store.flush()
    assert store.behind() == 0 < store.ahead()
    assert [each.ticket for each in store.unlogged(1 << 20)] == [2, 3]
    store.close()
    store = Store.open(tmp_path / "store", SETTINGS)
    assert store.values() == {"a": b""}
    store.close()


def test_while_the_disk_fails_the_log_goes_on_and_nothing_durable_is_undone(
    disks: Disks, tmp_path: Path
) -> None:
    disk = disks()
    logged = Logged(disk, tmp_path, 1)
    disk.fault = refuse(errno.EIO, "write")
    for _ in range(30):
        logged.commit()
        logged.append()
    with pytest.raises(StoreDiskError):
        logged.store.flush()
    logged.append_all()
    durable = logged.store.durable
    seen = contents_of(logged.store)
    with pytest.raises(StoreDiskError):
        logged.store.flush()
    assert logged.store.durable == durable == 30
    # Elsewhere it is there, whatever becomes of this directory.
    assert logged.replayed(0, None, 0).contents == seen
    disk.fault = None
    logged.store.flush()
    assert facts_of(logged.store).contents == seen
    logged.store.close()


def test_damage_that_a_reader_finds_is_in_the_log_in_its_place(tmp_path: Path) -> None:
    """It is committed in the reader's thread, between two commits of the owner."""
    store = Store.open(tmp_path / "store", SETTINGS)
    changes = store.begin()
    queue = changes.declare("q")
    for seq in range(3):
        changes.put(queue, seq, b"", changes.share(bytes([seq]) * 100))
    store.commit(changes)
    store.logged(store.unlogged(1 << 20), b"1")
    store.flush()
    with contextlib.closing(sqlite3.connect(tmp_path / "store" / "messages.db")) as db:
        db.execute("UPDATE body SET data = zeroblob(100) WHERE id = 2")
        db.commit()
    found: list[Damage] = []
    store.on_damage = found.append
    before = store.begin()
    before.set("before", b"")
    store.commit(before)
    assert [record.seq for record in store.read(queue, 0, count=9, nbytes=9_999)] == [0, 2]
    assert len(found) == 1
    after = store.begin()
    after.set("after", b"")
    store.commit(after)
    group = store.unlogged(1 << 20)
    assert [each.ticket for each in group] == [2, 3, 4]
    assert [(*each.values, *each.dones) for each in group] == [("before",), (queue,), ("after",)]
    data = encode_changes(group)
    store.logged(group, b"2")
    store.flush()
    assert store.queues["q"].live_count == 2
    store.close()
    with Replay(tmp_path / "other", SETTINGS) as replay:
        replay.add(data, b"2")
        replay.write()
    other = Store.open(tmp_path / "other", SETTINGS)
    assert other.values() == {"before": b"", "after": b""}
    other.close()


def test_what_is_no_changes_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    with Replay(tmp_path / "store", SETTINGS) as replay:
        with pytest.raises(StoreFormatError, match="no changes of a store"):
            replay.add(b"nonsense", b"1")
        assert replay.position is None
        with pytest.raises(StoreLockedError):
            Replay(tmp_path / "store", SETTINGS)
        replay.write()


def test_messages_for_a_queue_that_is_not_there_are_refused(tmp_path: Path) -> None:
    """The log lacks what declared it."""
    store = Store.open(tmp_path / "store", SETTINGS)
    changes = store.begin()
    queue = changes.declare("q")
    store.commit(changes)
    store.logged(store.unlogged(1), b"1")
    changes = store.begin()
    changes.put(queue, 0, b"", b"body")
    store.commit(changes)
    data = encode_changes(store.unlogged(1))
    store.close()
    with (
        Replay(tmp_path / "other", SETTINGS) as replay,
        pytest.raises(StoreFormatError, match="messages for a queue 1, but not"),
    ):
        replay.add(data, b"2")


def test_a_snapshot_that_is_no_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "snapshot").write_bytes(b"x" * 50_000)
    with pytest.raises(StoreDiskError, match="its header is damaged"):
        Replay(tmp_path / "store", SETTINGS, tmp_path / "snapshot")
    store = Store.open(tmp_path / "another", SETTINGS)
    assert store.snapshot(tmp_path / "empty") is None
    store.close()
