"""Copying forward, with what is done at the same time."""

from __future__ import annotations

import pytest

from clearfunds.store import Store, StoreSettings
from tests.store.disk import FakeFiles

SETTINGS = StoreSettings(segment_bytes=4096, compact_below=0.9, compact_step_bytes=512)
NUMBER = 300


def half_dead(disk: FakeFiles) -> tuple[Store, int]:
    """Make a store whose segments are worth copying, and return a queue that is all live."""
    store = Store.open("", SETTINGS, files=disk)
    changes = store.begin()
    kept, churn = changes.declare("kept"), changes.declare("churn")
    store.commit(changes)
    for number in range(NUMBER):
        changes = store.begin()
        changes.put(kept, number, b"", b"kept %d," % number * 9)
        changes.put(churn, number, b"", bytes(100))
        store.commit(changes)
        store.flush(sync=True)
    changes = store.begin()
    changes.done(churn, 0, NUMBER)
    store.commit(changes)
    store.flush(sync=True)
    return store, kept


def numbers(store: Store, queue: int) -> set[int]:
    records = store.read(queue, 0, count=NUMBER, nbytes=1 << 20)
    assert all(record.body == b"kept %d," % record.seq * 9 for record in records)
    assert store.queues["kept"].live_count == len(records)
    return {record.seq for record in records}


@pytest.mark.parametrize("power", [False, True])
def test_what_is_done_while_it_is_copied_stays_done(power: bool) -> None:
    disk = FakeFiles()
    store, kept = half_dead(disk)
    live = set(range(NUMBER))
    for number in range(0, NUMBER, 3):
        changes = store.begin()
        changes.done(kept, number)
        store.commit(changes)
        live.discard(number)
        store.flush(sync=False)  # Written, and not durable, when a piece is copied.
        store.tend()
        assert numbers(store, kept) == live
    assert store.statistics().compacted_segments > 0
    store.flush(sync=True)
    if power:
        disk.lose_power()
    else:
        disk.kill()
    store = Store.open("", SETTINGS, files=disk)
    assert numbers(store, kept) == live
    changes = store.begin()
    changes.done(kept, 0, NUMBER)
    store.commit(changes)
    store.compact()
    assert store.statistics().live_bytes == 0
    store.close()


def test_what_is_done_and_not_durably_so_is_copied_all_the_same() -> None:
    disk = FakeFiles()
    store, kept = half_dead(disk)
    changes = store.begin()
    for number in range(0, NUMBER, 2):
        changes.done(kept, number)
    store.commit(changes)
    snapshots = store.statistics().snapshots
    for _ in range(200):
        assert store.tend()
    assert store.statistics().compacted_segments > 0
    assert store.statistics().snapshots > snapshots
    assert numbers(store, kept) == set(range(1, NUMBER, 2))
    disk.lose_power()
    store = Store.open("", SETTINGS, files=disk)
    assert numbers(store, kept) == set(range(NUMBER))
    store.close()


def test_the_snapshot_before_the_last_is_as_good_with_the_log_since() -> None:
    disk = FakeFiles()
    store, kept = half_dead(disk)
    live = set(range(NUMBER))
    for number in range(0, NUMBER, 5):
        changes = store.begin()
        changes.done(kept, number)
        changes.set("last", b"%d" % number)
        store.commit(changes)
        live.discard(number)
        store.flush(sync=True)
        store.tend()
    store.compact()
    for number in range(1, 60, 5):
        changes = store.begin()
        changes.done(kept, number)
        changes.set("fills", bytes(500))
        store.commit(changes)
        live.discard(number)
        store.flush(sync=True)
    store.flush(sync=True)
    assert store.tend()
    store.compact()
    assert store.statistics().deleted_segments > 0
    store.close()
    snapshots = sorted(name for name in disk.names if name.startswith("snapshot"))
    assert len(snapshots) == 2
    disk.names[snapshots[-1]].data[200] ^= 1
    store = Store.open("", SETTINGS, files=disk)
    (damage,) = store.recovery.damages
    assert "an older snapshot" in str(damage)
    assert numbers(store, kept) == live
    assert store.values() == {"last": b"%d" % (NUMBER - 5), "fills": bytes(500)}
    assert list(store.queues) == ["kept", "churn"]
    store.close()


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("left", [0, 1])
def test_a_store_to_which_nothing_comes_gives_everything_back(left: int, again: bool) -> None:
    disk = FakeFiles()
    store = Store.open("", StoreSettings(segment_bytes=1 << 16), files=disk)
    changes = store.begin()
    kept, churn = changes.declare("kept"), changes.declare("churn")
    if left:
        changes.put(kept, 0, b"", b"kept")
    store.commit(changes)
    for number in range(23):
        changes = store.begin()
        changes.put(churn, number, b"", bytes(20_000))
        store.commit(changes)
        store.flush(sync=True)
    changes = store.begin()
    changes.done(churn, 0, 22)
    store.commit(changes)
    if again:
        store.close()
        store = Store.open("", StoreSettings(segment_bytes=1 << 16), files=disk)
    for _ in range(2):
        store.compact()
        numbers = store.statistics()
        assert numbers.disk_bytes < 4096 + numbers.live_bytes
        assert numbers.segments <= 4
    names = set(disk.names)
    store.compact()
    assert set(disk.names) == names  # It has nothing to give back, and leaves everything alone.
    disk.lose_power()
    store = Store.open("", files=disk)
    assert store.recovery.damages == ()
    records = store.read(kept, 0, count=9, nbytes=999)
    assert [record.body for record in records] == [b"kept"] * left
    store.close()


def test_extents_that_become_one_need_of_their_segment_what_they_did() -> None:
    """Or it is removed with what others have in it."""
    store = Store.open("", StoreSettings(compact_below=0.1), files=FakeFiles())
    changes = store.begin()
    kept, churn = changes.declare("kept"), changes.declare("churn")
    changes.put(kept, 0, b"", b"kept" * 9)
    changes.put(churn, 0, b"", bytes(1000))
    changes.put(churn, 1, b"", b"")
    store.commit(changes)
    store.flush(sync=True)
    changes = store.begin()
    changes.done(churn, 1)
    store.commit(changes)
    store.flush(sync=True)
    changes = store.begin()
    for number in range(2, 30):
        changes.put(churn, number, b"", b"")
    store.commit(changes)
    store.flush(sync=True)
    changes = store.begin()
    changes.done(churn, 0, 29)
    store.commit(changes)
    store.compact()
    assert [record.body for record in store.read(kept, 0, count=9, nbytes=999)] == [b"kept" * 9]
    assert store.statistics().live_bytes > len(b"kept" * 9)
    store.close()
