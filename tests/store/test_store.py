"""The store as its owner has it."""

from __future__ import annotations

import gc
import sys
import threading
import time
from functools import partial
from typing import TYPE_CHECKING

import pytest

from clearfunds.store import Record, Store, StoreSettings, StoreUsageError
from clearfunds.store._database import PAGE_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


EMPTY_PAGES = 10
"""Pages of a database without messages: one for each table and index, and two of SQLite's own."""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    made = Store.open(tmp_path / "store")
    yield made
    made.close()


def _said(event: threading.Event, ticket: int) -> None:
    del ticket
    event.set()


def in_database(store: Store) -> int:
    """Return the bytes of messages and shared bodies in the database, roughly."""
    statistics = store.statistics()
    return statistics.used_bytes - EMPTY_PAGES * PAGE_BYTES


def declared(store: Store, name: str) -> int:
    changes = store.begin()
    queue = changes.declare(name)
    store.commit(changes)
    return queue


def test_what_is_put_is_read_before_and_after_it_is_written_and_after_a_restart(
    tmp_path: Path,
) -> None:
    store = Store.open(tmp_path)
    changes = store.begin()
    queue = changes.declare("q", b"meta")
    changes.put(queue, 3, b"h3", b"b3")
    changes.put(queue, 9, b"", b"", size=77)
    changes.set("session/a", b"1")
    changes.set("other", b"2")
    ticket = store.commit(changes)
    expected = [Record(3, b"h3", b"b3", 4), Record(9, b"", b"", 77)]
    for stage in range(3):
        stored = store.queues["q"]
        assert (stored.id, stored.name, stored.meta) == (queue, "q", b"meta")
        assert (stored.next_seq, stored.live_count, stored.live_bytes) == (10, 2, 81)
        assert store.first_live_seq(queue) == 3
        assert store.read(queue, 0, count=9, nbytes=999) == expected
        assert store.values() == {"session/a": b"1", "other": b"2"}
        assert store.values("session/") == {"session/a": b"1"}
        if stage == 0:
            assert store.ahead() > 0
            store.flush()
            assert store.ahead() == 0
            assert store.durable == ticket
        else:
            store.close()
            store = Store.open(tmp_path)
    store.close()


def test_limits_of_reading(store: Store) -> None:
    queue = declared(store, "q")
    for batch in range(4):
        changes = store.begin()
        for seq in range(batch * 10, batch * 10 + 10):
            changes.put(queue, seq, b"h", b"x" * 9)
        store.commit(changes)
        store.flush()
    done = store.begin()
    done.done(queue, 5, 12)
    store.commit(done)

    def seqs(first: int, count: int, nbytes: int) -> list[int]:
        return [r.seq for r in store.read(queue, first, count=count, nbytes=nbytes)]

    left = [*range(5), *range(13, 40)]
    assert seqs(0, 100, 10_000) == left
    assert seqs(0, 8, 10_000) == left[:8]
    assert seqs(4, 2, 10_000) == [4, 13]
    assert seqs(0, 100, 10) == [0]
    assert seqs(0, 100, 1) == [0]
    assert seqs(0, 100, 79) == left[:7]
    assert seqs(13, 100, 80) == left[5:13]
    assert seqs(18, 6, 10_000) == left[10:16]
    assert seqs(40, 6, 10_000) == []
    assert seqs(0, 0, 10_000) == []
    assert store.read(999, 0, count=1, nbytes=1) == []


def test_a_shared_body_is_kept_once_until_the_last_of_its_messages_is_done(tmp_path: Path) -> None:
    store = Store.open(tmp_path)
    names = [f"q{number}" for number in range(10)]
    changes = store.begin()
    queues = [changes.declare(name) for name in names]
    body = changes.share(bytes(range(256)) * 1000)
    for queue in queues:
        changes.put(queue, 0, b"h", body)
    store.commit(changes)
    store.flush()
    assert 240_000 < in_database(store) < 320_000
    store.close()
    store = Store.open(tmp_path)
    for number, queue in enumerate(queues):
        (record,) = store.read(queue, 0, count=1, nbytes=1)
        assert record == Record(0, b"h", bytes(range(256)) * 1000, 256_001)
        assert in_database(store) > 240_000
        changes = store.begin()
        if number % 2:
            changes.done(queue, 0)
        else:
            changes.drop(queue)
        store.commit(changes)
        store.flush()
    assert in_database(store) < 64_000
    store.close()


def test_small_shared_bodies_are_embedded(store: Store) -> None:
    changes = store.begin()
    assert changes.share(b"x" * 4095) == b"x" * 4095
    assert not isinstance(changes.share(b"x" * 4096), bytes)


def test_what_is_not_allowed(store: Store) -> None:
    queue = declared(store, "q")
    changes = store.begin()
    changes.put(queue, 5, b"", b"")
    with pytest.raises(StoreUsageError, match="only increase"):
        changes.put(queue, 5, b"", b"")
    store.commit(changes)
    again = store.begin()
    again.put(queue, 5, b"", b"")
    again.set("key", b"value")
    with pytest.raises(StoreUsageError, match="seq 5 is not free in queue 'q': next 6"):
        store.commit(again)
    assert store.values() == {}
    nowhere = store.begin()
    nowhere.put(99, 0, b"", b"")
    with pytest.raises(StoreUsageError, match="no queue 99"):
        store.commit(nowhere)
    other = store.begin()
    body = other.share(bytes(5000))
    with pytest.raises(StoreUsageError, match="share it anew"):
        store.begin().put(queue, 6, b"", body)
    with pytest.raises(StoreUsageError, match="were committed before"):
        store.commit(again)
    with pytest.raises(StoreUsageError, match="from 0 to"):
        store.begin().put(queue, -1, b"", b"")
    with pytest.raises(StoreUsageError, match="4 GiB"):
        store.begin().put(queue, 6, b"", b"", size=1 << 32)
    assert store.queues["q"].live_count == 1


def test_finishing_what_is_not_there_changes_nothing(store: Store) -> None:
    queue = declared(store, "q")
    changes = store.begin()
    for seq in range(10, 15):
        changes.put(queue, seq, b"", b"body")
    store.commit(changes)
    changes = store.begin()
    for first, last in ((-9, -1), (-1, 10), (5, 3), (13, 11), (99, 1 << 70), (14, 1 << 70)):
        changes.done(queue, first, last)
    changes.done(999, 1)
    store.commit(changes)
    for _ in range(2):
        found = store.read(queue, 0, count=9, nbytes=99)
        assert [record.seq for record in found] == [11, 12, 13]
        assert store.queues["q"].next_seq == 15
        store.flush()


def test_a_queue_that_was_dropped_leaves_nothing_and_its_id_is_not_used_again(
    tmp_path: Path,
) -> None:
    store = Store.open(tmp_path)
    first = declared(store, "q")
    changes = store.begin()
    changes.put(first, 0, b"", b"old")
    store.commit(changes)
    changes = store.begin()
    changes.drop(first)
    store.commit(changes)
    assert "q" not in store.queues
    second = declared(store, "q")
    assert second > first
    assert store.read(second, 0, count=1, nbytes=1) == []
    store.close()
    store = Store.open(tmp_path)
    assert store.queues["q"].id == second
    assert store.queues["q"].next_seq == 0
    changes = store.begin()
    changes.drop(second)
    store.commit(changes)
    store.close()
    store = Store.open(tmp_path)
    assert dict(store.queues) == {}
    assert declared(store, "q") > second
    store.close()


def test_declaring_a_queue_that_is_there_gives_its_id_and_sets_its_meta(tmp_path: Path) -> None:
    store = Store.open(tmp_path)
    changes = store.begin()
    queue = changes.declare("q", b"one")
    assert changes.declare("q", b"two") == queue
    store.commit(changes)
    changes = store.begin()
    assert changes.declare("q", b"three") == queue
    store.commit(changes)
    store.close()
    store = Store.open(tmp_path)
    assert store.queues["q"].meta == b"three"
    store.close()


def test_what_is_on_disk_is_let_go_without_collecting_garbage(store: Store) -> None:
    queue = declared(store, "q")
    body = bytes(range(256)) * 1000
    gc.collect()
    gc.disable()
    try:
        before = sys.getrefcount(body)
        changes = store.begin()
        for seq in range(5):
            changes.put(queue, seq, b"", changes.share(body))
            changes.share(body)  # and one that is not put
            store.commit(changes)
            changes = store.begin()
        store.flush()
        assert sys.getrefcount(body) == before
    finally:
        gc.enable()
    assert [record.body for record in store.read(queue, 0, count=9, nbytes=1 << 24)] == [body] * 5


@pytest.mark.parametrize("number", [1, 63, 64, 65, 191, 192])
@pytest.mark.parametrize("size", [0, 1, 300])
def test_messages_that_are_equally_long_are_cut_from_anywhere(
    store: Store, number: int, size: int
) -> None:
    queue = declared(store, "q")
    bodies = [bytes((seq,)) * size for seq in range(200)]
    changes = store.begin()
    for seq, body in enumerate(bodies):
        changes.put(queue, seq, b"%03d" % seq, body)
    store.commit(changes)
    store.flush()
    for start in (0, 1, 8):
        found = store.read(queue, start, count=number, nbytes=1 << 20)
        assert found == [
            Record(seq, b"%03d" % seq, bodies[seq], 3 + size)
            for seq in range(start, start + number)
        ]


def test_what_is_put_after_the_commit_is_refused_and_changes_nothing(store: Store) -> None:
    queue, other = declared(store, "q"), declared(store, "other")
    changes = store.begin()
    changes.put(queue, 0, b"h", b"b")
    store.commit(changes)
    for target, seq in ((queue, 1), (other, 0)):
        with pytest.raises(StoreUsageError, match="were committed before"):
            changes.put(target, seq, b"h", b"b")
    for _ in range(2):
        assert store.read(queue, 0, count=9, nbytes=99) == [Record(0, b"h", b"b", 2)]
        assert store.read(other, 0, count=9, nbytes=99) == []
        store.flush()


def test_keys_are_any_text(tmp_path: Path) -> None:
    store = Store.open(tmp_path)
    keys = {"": b"", "\0": b"0", "ключ/\udcff": bytes(70_000), "gone": b""}
    changes = store.begin()
    for key, value in keys.items():
        changes.set(key, value)
    name = "queue \udc80 ☃"
    changes.declare(name)
    store.commit(changes)
    changes = store.begin()
    changes.delete("gone")
    changes.delete("never there")
    store.commit(changes)
    del keys["gone"]
    for _ in range(3):
        assert store.values() == keys
        assert list(store.queues) == [name]
        store.close()
        store = Store.open(tmp_path)
    store.close()


def test_what_is_done_gives_its_room_back(tmp_path: Path) -> None:
    store = Store.open(tmp_path)
    quick, slow = declared(store, "quick"), declared(store, "slow")
    for number in range(1000):
        changes = store.begin()
        changes.put(quick, number, b"", bytes(2000))
        if number % 20 == 0:
            changes.put(slow, number, b"", b"slow %d" % number)
        if number >= 5:
            changes.done(quick, number - 5)
        store.commit(changes)
        if number % 7 == 0:
            store.flush()
    store.compact()
    statistics = store.statistics()
    # 2 MB went through; what is left is some of the last of it, and what nobody has taken.
    assert in_database(store) < 200_000
    assert statistics.free_bytes == 0
    assert statistics.log_bytes == 0
    seqs = list(range(0, 1000, 20))
    for _ in range(2):
        found = store.read(slow, 0, count=1000, nbytes=1 << 20)
        assert [(r.seq, r.body) for r in found] == [(n, b"slow %d" % n) for n in seqs]
        assert len(store.read(quick, 0, count=1000, nbytes=1 << 20)) == 5
        store.close()
        store = Store.open(tmp_path)
    store.close()


def test_messages_that_stay_do_not_hold_the_place_of_those_that_are_done(store: Store) -> None:
    queue = declared(store, "q")
    number = 20_000
    for start in range(0, number, 1000):
        changes = store.begin()
        for seq in range(start, start + 1000):
            changes.put(queue, seq, b"h", b"%06d" % seq * 30)
        store.commit(changes)
        store.flush()
    whole = in_database(store)
    assert whole > 180 * number
    kept = range(0, number, 1000)
    for seq in kept:
        changes = store.begin()
        changes.done(queue, seq + 1, seq + 500)
        store.commit(changes)
        store.flush()
        changes = store.begin()
        changes.done(queue, seq + 501, seq + 999)
        store.commit(changes)
        store.flush()
    found = store.read(queue, 0, count=number, nbytes=1 << 30)
    assert [(r.seq, r.body) for r in found] == [(seq, b"%06d" % seq * 30) for seq in kept]
    assert store.queues["q"].live_count == len(kept)
    assert store.statistics().rewritten_bytes > 0
    assert in_database(store) < whole / 4


def test_what_is_done_before_it_is_written_never_gets_to_the_disk(store: Store) -> None:
    queue = declared(store, "q")
    store.flush()
    for seq in range(1000):
        changes = store.begin()
        changes.put(queue, seq, b"", bytes(10_000))
        changes.put(queue, seq + 1_000_000, b"", b"") if seq == 999 else None
        store.commit(changes)
        changes = store.begin()
        changes.done(queue, seq)
        store.commit(changes)
    store.flush()
    assert in_database(store) < 64_000
    assert store.statistics().log_bytes < 1_000_000
    assert [r.seq for r in store.read(queue, 0, count=9, nbytes=9)] == [1_000_999]
    assert (store.queues["q"].live_count, store.queues["q"].live_bytes) == (1, 0)


def test_room_is_given_back_while_there_is_always_something_to_write(store: Store) -> None:
    queue = declared(store, "q")
    changes = store.begin()
    for seq in range(3000):
        changes.put(queue, seq, b"", bytes(2000))
    store.commit(changes)
    store.flush()
    assert in_database(store) > 6_000_000
    rounds = 0

    def go_on(ticket: int) -> None:
        # In the writer's thread: it never finds that nothing is to be done.
        nonlocal rounds
        rounds += 1
        if rounds == 100:
            store.stop()
            return
        changes = store.begin()
        if rounds == 1:
            changes.done(queue, 0, 2999)
        changes.put(queue, 3000 + rounds, b"", b"")
        store.commit(changes)
        store.hurry()

    store.on_durable = go_on
    changes = store.begin()
    changes.set("key", b"value")
    store.commit(changes)
    store.hurry()
    store.run()
    statistics = store.statistics()
    assert statistics.used_bytes < 1_000_000
    assert statistics.free_bytes <= 64 * PAGE_BYTES


def test_pages_are_counted_soon_after_the_last_write(store: Store) -> None:
    queue = declared(store, "q")
    store.flush()
    writer = threading.Thread(target=store.run)
    writer.start()
    try:
        for seq in range(3):  # fewer than are counted together
            written = threading.Event()
            store.on_durable = partial(_said, written)
            changes = store.begin()
            changes.put(queue, seq, b"", bytes(100_000))
            store.commit(changes)
            store.hurry()
            assert written.wait(10)
        end = time.monotonic() + 10
        while in_database(store) < 250_000:  # all three
            assert time.monotonic() < end, store.statistics()
            time.sleep(0.01)
    finally:
        store.stop()
        writer.join()


def test_messages_are_read_while_others_are_written_and_done(tmp_path: Path) -> None:
    store = Store.open(tmp_path, StoreSettings(fsync_interval=0.001))
    kept, churn = declared(store, "kept"), declared(store, "churn")
    writer = threading.Thread(target=store.run)
    writer.start()
    committed = 0
    wrong: list[object] = []
    finished = threading.Event()

    def read() -> None:
        rounds = 0
        while not finished.is_set() or rounds < 3:
            rounds += 1
            until, at, seen = committed, 0, 0
            while records := store.read(kept, at, count=13, nbytes=5000):
                for seq, _, body, _ in records:
                    if seq != seen or body != b"%d" % seq * 20:
                        wrong.append((seq, seen, body))
                    seen = seq + 1
                at = seen
            if seen < until:
                wrong.append((seen, until))

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for number in range(1500):
        changes = store.begin()
        changes.put(kept, number, b"", b"%d" % number * 20)
        changes.put(churn, number, b"", bytes(300))
        if number:
            changes.done(churn, number - 1)
        store.commit(changes)
        committed = number + 1
    store.hurry()
    finished.set()
    for reader in readers:
        reader.join(60)
    store.stop()
    writer.join(60)
    assert not wrong
    store.compact()
    statistics = store.statistics()
    assert statistics.messages == 1501
    assert statistics.damages == 0
    store.close()


def test_messages_are_put_in_any_mixture(store: Store) -> None:
    one, two = declared(store, "one"), declared(store, "two")
    expected: dict[int, list[Record]] = {one: [], two: []}
    changes = store.begin()
    large = bytes(store.settings.embed_below)
    shared = changes.share(large)

    def put(queue: int, seq: int, size: int | None = None, body: bytes = b"body") -> None:
        changes.put(queue, seq, b"%d" % seq, shared if body is large else body, size=size)
        nbytes = len(b"%d" % seq) + len(body) if size is None else size
        expected[queue].append(Record(seq, b"%d" % seq, body, nbytes))

    for seq in range(1, 4):
        put(one, seq)
    put(two, 1)
    put(one, 4)
    put(one, 5, size=99)
    put(one, 6)
    put(one, 7)
    put(one, 8)
    put(one, 9)
    with pytest.raises(StoreUsageError, match="seq 9 comes after 9"):
        put(one, 9)
    put(one, 10, body=large)
    put(one, 11)
    put(two, 2)
    put(two, 3)
    put(two, 4)
    put(two, 5)
    put(one, 12)
    put(one, 20)  # From here on there is a gap.
    put(one, 21)
    put(one, 22)
    put(one, 23)
    put(one, 24)
    with pytest.raises(StoreUsageError, match="seq 24 comes after 24"):
        changes.put(one, 24, b"", b"")
    store.commit(changes)
    for queue, seq in ((one, 25), (two, 6)):
        with pytest.raises(StoreUsageError, match="were committed before"):
            changes.put(queue, seq, b"", b"")
    for _ in range(2):
        for queue, records in expected.items():
            assert store.read(queue, 0, count=99, nbytes=1 << 20) == records
        store.flush()
