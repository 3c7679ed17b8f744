"""The store as its owner has it."""

from __future__ import annotations

import gc
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from clearfunds.store import Record, Store, StoreSettings, StoreUsageError
from clearfunds.store._files import sync_file_range
from tests.store.disk import FakeFiles

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    made = Store.open(tmp_path / "store")
    yield made
    made.close()


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
    for _ in range(3):
        stored = store.queues["q"]
        assert (stored.id, stored.name, stored.meta) == (queue, "q", b"meta")
        assert (stored.next_seq, stored.live_count, stored.live_bytes) == (10, 2, 81)
        assert stored.first_live_seq == 3
        assert store.read(queue, 0, count=9, nbytes=999) == expected
        assert store.values() == {"session/a": b"1", "other": b"2"}
        assert store.values("session/") == {"session/a": b"1"}
        if store.durable < ticket:
            assert store.ahead() > 0
            store.flush(sync=True)
            assert store.ahead() == 0
            assert store.durable == store.written == ticket
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
        store.flush(sync=batch < 2)
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
    store.flush(sync=True)
    assert 256_000 < store.statistics().disk_bytes < 260_000
    store.close()
    store = Store.open(tmp_path)
    for number, queue in enumerate(queues):
        (record,) = store.read(queue, 0, count=1, nbytes=1)
        assert record == Record(0, b"h", bytes(range(256)) * 1000, 256_001)
        assert store.statistics().live_bytes > 256_000
        changes = store.begin()
        if number % 2:
            changes.done(queue, 0)
        else:
            changes.drop(queue)
        store.commit(changes)
        store.flush(sync=True)
    assert store.statistics().live_bytes == 0
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
    changes.put_run(queue, 10, [b""] * 5, [b"body"] * 5)
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
        store.flush(sync=True)


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


def test_messages_put_as_a_run_are_those_put_one_by_one(store: Store) -> None:
    queue = declared(store, "q")
    changes = store.begin()
    changes.put_run(queue, 0, [b"a", b"bb"], [b"ccc", b"d"])
    changes.put(queue, 2, b"", b"eeee", size=3)
    changes.put_run(queue, 10, [b"f"], [b""])
    changes.put_run(queue, 11, [], [])
    runs = store.begin()
    runs.put_run(queue, 20, [b"g"], [b"h"])
    runs.put(queue, 30, b"i", b"j")
    runs.put_run(queue, 40, [b"k"], [b"l"])
    store.commit(changes)
    store.commit(runs)
    expected = [
        Record(0, b"a", b"ccc", 4),
        Record(1, b"bb", b"d", 3),
        Record(2, b"", b"eeee", 3),
        Record(10, b"f", b"", 1),
        Record(20, b"g", b"h", 2),
        Record(30, b"i", b"j", 2),
        Record(40, b"k", b"l", 2),
    ]
    assert store.read(queue, 0, count=9, nbytes=99) == expected
    store.flush(sync=True)
    assert store.read(queue, 0, count=9, nbytes=99) == expected
    with pytest.raises(StoreUsageError, match="1 headers for 0 bodies"):
        store.begin().put_run(queue, 50, [b""], [])


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
        store.flush(sync=True)
        assert sys.getrefcount(body) == before
    finally:
        gc.enable()
    assert [record.body for record in store.read(queue, 0, count=9, nbytes=1 << 24)] == [body] * 5


def test_runs_are_read_in_columns(store: Store) -> None:
    queue = declared(store, "q")
    number = 500
    headers = [b"h%03d" % seq for seq in range(number)]
    bodies = [b"%d" % seq * (1 + seq // 400) for seq in range(number)]
    changes = store.begin()
    changes.put_run(queue, 0, headers, bodies)
    changes.put(queue, number + 7, b"", changes.share(bytes(9000)), size=5)
    store.commit(changes)
    changes = store.begin()
    changes.done(queue, 100, 199)
    store.commit(changes)
    kept = [*range(100), *range(200, number), number + 7]
    for _ in range(2):
        found = store.read_runs(queue, 0, count=1000, nbytes=1 << 20)
        assert [seq for run in found for seq in run.seqs] == kept
        assert [header for run in found for header in run.headers] == [
            *(headers[seq] for seq in kept[:-1]),
            b"",
        ]
        assert [body for run in found for body in run.bodies] == [
            *(bodies[seq] for seq in kept[:-1]),
            bytes(9000),
        ]
        assert [size for run in found for size in run.sizes] == [
            *(4 + len(bodies[seq]) for seq in kept[:-1]),
            5,
        ]
        some = store.read_runs(queue, 50, count=60, nbytes=1 << 20)
        assert [seq for run in some for seq in run.seqs] == [*range(50, 100), *range(200, 210)]
        store.flush(sync=True)
    assert store.read_runs(queue, 0, count=0, nbytes=1) == []
    assert store.read_runs(99, 0, count=1, nbytes=1) == []


@pytest.mark.parametrize("number", [1, 63, 64, 65, 191, 192])
@pytest.mark.parametrize("size", [0, 1, 300])
def test_messages_that_are_equally_long_are_cut_from_anywhere(
    store: Store, number: int, size: int
) -> None:
    queue = declared(store, "q")
    bodies = [bytes((seq,)) * size for seq in range(200)]
    changes = store.begin()
    changes.put_run(queue, 0, [b"%03d" % seq for seq in range(200)], bodies)
    store.commit(changes)
    store.flush(sync=True)
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
        with pytest.raises(StoreUsageError, match="were committed before"):
            changes.put_run(target, seq, [b"h"], [b"b"])
    for _ in range(2):
        assert store.read(queue, 0, count=9, nbytes=99) == [Record(0, b"h", b"b", 2)]
        assert store.read(other, 0, count=9, nbytes=99) == []
        store.flush(sync=True)


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
    settings = StoreSettings(segment_bytes=65536)
    store = Store.open(tmp_path, settings)
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
            store.flush(sync=True)
    store.compact()
    statistics = store.statistics()
    # 2 MB went through; what is left is some of the last of it, and what nobody has taken.
    assert statistics.disk_bytes < 5 * settings.segment_bytes
    assert statistics.compacted_bytes > 0
    assert statistics.deleted_segments > 20
    seqs = list(range(0, 1000, 20))
    for _ in range(2):
        found = store.read(slow, 0, count=1000, nbytes=1 << 20)
        assert [(r.seq, r.body) for r in found] == [(n, b"slow %d" % n) for n in seqs]
        assert len(store.read(quick, 0, count=1000, nbytes=1 << 20)) == 5
        store.close()
        store = Store.open(tmp_path, settings)
    store.close()


def test_room_is_given_back_while_there_is_always_something_to_write() -> None:
    store = Store.open("", StoreSettings(segment_bytes=4096), files=FakeFiles())
    changes = store.begin()
    queue = changes.declare("q")
    store.commit(changes)
    given_back: list[int] = []

    def go_on(ticket: int) -> None:
        # In the writer's thread: it never finds that nothing is to be done.
        if ticket == 200:
            given_back.append(store.statistics().deleted_segments)
            store.stop()
            return
        changes = store.begin()
        changes.put(queue, ticket, b"", bytes(2000))
        changes.done(queue, ticket - 2)
        store.commit(changes)
        store.hurry()

    store.on_durable = go_on
    store.hurry()
    store.run()
    (number,) = given_back
    assert number > 50
    assert store.queues["q"].live_count == 2
    store.close()


def test_messages_are_read_while_others_are_written_done_and_copied(tmp_path: Path) -> None:
    settings = StoreSettings(
        fsync_interval=0.001, segment_bytes=16384, compact_below=0.9, compact_step_bytes=4096
    )
    store = Store.open(tmp_path, settings)
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
    assert statistics.compacted_segments > 0
    assert statistics.messages == 1501
    assert statistics.damages == 0
    store.close()


def test_progress_is_told_of_what_takes_long() -> None:
    disk = FakeFiles()
    told: list[tuple[str, int, int]] = []

    def note(what: str, done: int, total: int) -> None:
        told.append((what, done, total))

    settings = StoreSettings(segment_bytes=4096)
    store = Store.open("", settings, files=disk)
    queue = declared(store, "q")
    for number in range(50):
        changes = store.begin()
        changes.put(queue, number, b"", bytes(1000))
        store.commit(changes)
        store.flush(sync=True)
    disk.kill()
    store = Store.open("", settings, files=disk, progress=note)
    reading = [(done, total) for what, done, total in told if what == "reading the log"]
    assert reading[-1][0] == reading[-1][1] > 0
    changes = store.begin()
    for number in range(50):
        if number % 3:
            changes.done(queue, number)
    store.commit(changes)
    told.clear()
    store.compact()
    assert any("forward" in what and 0 < done <= total for what, done, total in told)
    store.close()


def test_the_disk_begins_with_what_is_written_before_an_fsync_waits_for_it() -> None:
    disk = FakeFiles()
    store = Store.open("", files=disk)
    queue = declared(store, "q")
    store.flush(sync=True)
    (inode,) = (inode for name, inode in disk.names.items() if name.startswith("segment"))
    for number in range(64):
        changes = store.begin()
        changes.put(queue, number, b"", bytes(50_000))
        store.commit(changes)
        store.flush(sync=False)
    begun = inode.begun
    assert [start for start, _ in begun] == [0, *(end for _, end in begun[:-1])]
    assert all(0 < end - start < 1_200_000 and end % 4096 == 0 for start, end in begun)
    assert len(inode.data) - begun[-1][1] < 1_200_000
    assert not inode.durable[4096:]  # Which is not to say that it is there.
    store.flush(sync=True)
    changes = store.begin()
    changes.put(queue, 64, b"", bytes(50_000))
    store.commit(changes)
    store.flush(sync=False)
    assert inode.begun is begun  # What an fsync has waited for is not begun with once more.
    assert begun[-1][1] < len(inode.data) - 50_000
    store.close()


@pytest.mark.parametrize("there", [True, False])
def test_it_does_without_a_system_that_can_begin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: bool
) -> None:
    calls: list[tuple[int, ...]] = []
    call = sync_file_range()

    def counted(*args: int) -> int:
        calls.append(args)
        return 0 if call is None else call(*args)

    monkeypatch.setattr(
        "clearfunds.store._files.sync_file_range", lambda: counted if there else None
    )
    store = Store.open(tmp_path)
    queue = declared(store, "q")
    for number in range(30):
        changes = store.begin()
        changes.put(queue, number, b"", b"%d" % (number % 10) * 100_000)
        store.commit(changes)
        store.flush(sync=False)
    store.close()
    assert len(calls) == (2 if there else 0)
    store = Store.open(tmp_path)
    records = store.read(queue, 0, count=100, nbytes=1 << 30)
    assert [record.body[-1:] for record in records] == [b"%d" % (n % 10) for n in range(30)]
    store.close()


def test_messages_are_put_one_by_one_and_in_runs_in_any_mixture(store: Store) -> None:
    one, two = declared(store, "one"), declared(store, "two")
    expected: dict[int, list[Record]] = {one: [], two: []}
    changes = store.begin()
    large = bytes(store.settings.embed_below)
    shared = changes.share(large)

    def put(queue: int, seq: int, size: int | None = None, body: bytes = b"body") -> None:
        changes.put(queue, seq, b"%d" % seq, shared if body is large else body, size=size)
        nbytes = len(b"%d" % seq) + len(body) if size is None else size
        expected[queue].append(Record(seq, b"%d" % seq, body, nbytes))

    def put_run(queue: int, first: int, count: int) -> None:
        changes.put_run(queue, first, [b"run"] * count, [b"r"] * count)
        expected[queue] += [Record(first + n, b"run", b"r", 4) for n in range(count)]

    for seq in range(1, 4):
        put(one, seq)
    put(two, 1)
    put(one, 4)
    put(one, 5, size=99)
    put(one, 6)
    put_run(one, 7, 3)
    with pytest.raises(StoreUsageError, match="seq 9 comes after 9"):
        put(one, 9)
    put(one, 10, body=large)
    put(one, 11)
    put(two, 2)
    put_run(two, 3, 2)
    put(two, 5)
    put(one, 12)
    put(one, 20)  # From here on there is a gap.
    put(one, 21)
    put_run(one, 22, 2)
    put(one, 24)
    with pytest.raises(StoreUsageError, match="seq 24 comes after 24"):
        changes.put_run(one, 24, [b""], [b""])
    store.commit(changes)
    for queue, seq in ((one, 25), (two, 6)):
        with pytest.raises(StoreUsageError, match="were committed before"):
            changes.put(queue, seq, b"", b"")
    for _ in range(2):
        for queue, records in expected.items():
            assert store.read(queue, 0, count=99, nbytes=1 << 20) == records
        store.flush(sync=True)
