"""Bytes that are not what was written: reported, put aside, and the rest is served."""

from __future__ import annotations

import functools
import random

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clearfunds.store import Damage, Store, StoreFormatError, StoreSettings
from tests.store.disk import FakeFiles

SETTINGS = StoreSettings(segment_bytes=8192, embed_below=64, write_bytes=2048)


@attrs.frozen
class Example:
    """A store's files, and what it has."""

    files: dict[str, bytes]
    messages: dict[tuple[int, int], tuple[bytes, bytes]]
    values: dict[str, bytes]


@functools.cache
def example(closed: bool) -> Example:
    """Make a store with three queues, shared bodies, gaps and a history of several segments."""
    chance = random.Random(1)
    disk = FakeFiles()
    store = Store.open("", SETTINGS, files=disk)
    changes = store.begin()
    queues = [changes.declare(name) for name in "abc"]
    store.commit(changes)
    messages: dict[tuple[int, int], tuple[bytes, bytes]] = {}
    values: dict[str, bytes] = {}
    for number in range(120):
        changes = store.begin()
        for queue in queues[: 1 + number % 3]:
            header, body = b"%d" % number, chance.randbytes(chance.choice((5, 60, 300)))
            changes.put(queue, number, header, body)
            messages[queue, number] = (header, body)
        if number % 4 == 0:
            body = chance.randbytes(100)
            shared = changes.share(body)
            for queue in queues:
                if (queue, number) not in messages:
                    changes.put(queue, number, b"s", shared)
                    messages[queue, number] = (b"s", body)
        if number % 5 == 0 and number > 20:
            first = chance.randrange(number - 10)
            changes.done(queues[0], first, first + 3)
            for seq in range(first, first + 4):
                messages.pop((queues[0], seq), None)
        key = chance.choice("xyz")
        changes.set(key, b"%d" % number)
        values[key] = b"%d" % number
        store.commit(changes)
        if number % 3 == 0:
            store.flush(sync=True)
    store.flush(sync=True)
    if closed:
        store.close()
    return Example({name: bytes(i.data) for name, i in disk.names.items()}, messages, values)


def opened(files: dict[str, bytes]) -> tuple[Store, FakeFiles]:
    """Open a store on a disk with these files."""
    disk = FakeFiles()
    for name, data in files.items():
        disk.create(name).write((data,), 0)
    return Store.open("", SETTINGS, files=disk), disk


def read_all(store: Store) -> dict[tuple[int, int], tuple[bytes, bytes]]:
    found: dict[tuple[int, int], tuple[bytes, bytes]] = {}
    for queue in list(store.queues.values()):
        at = 0
        while records := store.read(queue.id, at, count=10, nbytes=1 << 20):
            for seq, header, body, _ in records:
                found[queue.id, seq] = (header, body)
            at = records[-1].seq + 1
    return found


def names(damage: Damage, queue: int, seq: int) -> bool:
    """Whether a damage says that this message may be lost."""
    if damage.queue_id is None or damage.first is None or damage.last is None:
        return damage.queue_id in (None, queue)
    return damage.queue_id == queue and damage.first <= seq <= damage.last


def check(original: Example, files: dict[str, bytes]) -> Store:
    """Open what was damaged; what is served is true, what is not is named."""
    store, disk = opened(files)
    found = read_all(store)
    last = max(name for name in original.files if name.startswith("segment"))
    # Of the very end nothing else tells that it was there: unless the store was closed.
    cut = original is example(False) and len(files.get(last, b"")) < len(original.files[last])
    torn = store.recovery.torn_bytes > 0 or cut
    for (queue, seq), message in found.items():
        if (queue, seq) in original.messages:
            assert message == original.messages[queue, seq]
        else:
            # It was done; what said so is among what is lost.
            assert store.damages or torn
    for queue, seq in original.messages.keys() - found.keys():
        assert torn or any(names(damage, queue, seq) for damage in store.damages)
    if store.values() != original.values:
        assert store.damages or torn
    for stored in store.queues.values():
        own = [message for (ident, _), message in found.items() if ident == stored.id]
        assert stored.live_count == len(own)
        assert stored.live_bytes == sum(len(header) + len(body) for header, body in own)
    for damage in store.damages:
        if damage.quarantined is not None:
            assert damage.quarantined in disk.names
    # It goes on: what is there now can be written to, compacted, and opened again.
    changes = store.begin()
    queue_id = changes.declare("new")
    changes.put(queue_id, 0, b"new", b"body")
    store.commit(changes)
    store.compact()
    store.close()
    again = Store.open("", SETTINGS, files=disk)
    assert read_all(again) == {**found, (queue_id, 0): (b"new", b"body")}
    assert again.recovery.damages == ()
    return store


@pytest.mark.parametrize("closed", [True, False])
def test_the_example_is_whole(closed: bool) -> None:
    original = example(closed)
    assert len(original.files) >= 8
    store = check(original, original.files)
    assert store.damages == ()
    assert store.recovery.torn_bytes == 0


@settings(max_examples=100, deadline=None)
@given(data=st.data(), closed=st.booleans(), width=st.sampled_from((1, 1, 40, 600)))
def test_bytes_changed_anywhere(data: st.DataObject, closed: bool, width: int) -> None:
    original = example(closed)
    files = dict(original.files)
    name = data.draw(st.sampled_from(sorted(n for n in files if n[:2] in ("se", "sn"))))
    at = data.draw(st.integers(0, len(files[name]) - 1))
    content = bytearray(files[name])
    for place in range(at, min(at + width, len(content))):
        content[place] ^= 0x5A
    files[name] = bytes(content)
    check(original, files)


@settings(max_examples=40, deadline=None)
@given(data=st.data(), closed=st.booleans(), zeros=st.booleans())
def test_ends_missing(data: st.DataObject, closed: bool, zeros: bool) -> None:
    original = example(closed)
    files = dict(original.files)
    name = data.draw(st.sampled_from(sorted(n for n in files if n[:2] in ("se", "sn"))))
    size = len(files[name])
    at = data.draw(st.integers(0, size - 1))
    files[name] = files[name][:at].ljust(size if zeros else 0, b"\0")
    check(original, files)


@pytest.mark.parametrize("closed", [True, False])
def test_any_file_missing(closed: bool) -> None:
    original = example(closed)
    for name in original.files:
        if name.startswith("s"):
            files = dict(original.files)
            del files[name]
            check(original, files)


def test_what_is_lost_is_named_with_its_queue_and_put_aside() -> None:
    original = example(False)
    name = sorted(n for n in original.files if n.startswith("segment"))[1]
    files = dict(original.files)
    body = original.messages[2, 50][1]
    name = next(n for n, data in files.items() if body in data)
    at = files[name].index(body)
    files[name] = files[name][:at] + b"?" + files[name][at + 1 :]
    store, disk = opened(files)
    read_all(store)
    (damage,) = store.damages
    assert (damage.queue, damage.queue_id, damage.file) == ("b", 2, name)
    assert damage.first is not None
    assert damage.last is not None
    assert damage.first <= 50 <= damage.last
    assert damage.count >= 1
    assert damage.quarantined is not None
    assert damage.quarantined in disk.names
    assert "queue 'b'" in str(damage)
    assert f"{damage.first}..{damage.last}" in str(damage)


def test_damage_found_while_reading_is_told_and_its_messages_count_as_done() -> None:
    disk = FakeFiles()
    store = Store.open("", SETTINGS, files=disk)
    changes = store.begin()
    queue = changes.declare("q")
    for seq in range(10):
        changes.put(queue, seq, b"", b"message %d" % seq)
    store.commit(changes)
    store.flush(sync=True)
    changes = store.begin()
    changes.put(queue, 10, b"", bytes(70000))  # Too much to lie in one record with the others.
    store.commit(changes)
    store.flush(sync=True)
    told: list[Damage] = []
    store.on_damage = told.append
    (segment,) = [inode for name, inode in disk.names.items() if name.startswith("segment")]
    at = segment.data.index(b"message 3")
    segment.data[at] ^= 1
    records = store.read(queue, 0, count=100, nbytes=1 << 20)
    assert [record.seq for record in records] == [10]
    (damage,) = told
    assert (damage.first, damage.last, damage.count, damage.size) == (0, 9, 10, 90)
    assert (store.queues["q"].live_count, store.queues["q"].live_bytes) == (1, 70000)
    store.close()
    # That they are lost is known from now on: it is told once.
    store = Store.open("", SETTINGS, files=disk)
    assert store.recovery.damages == ()
    assert [r.seq for r in store.read(queue, 0, count=9, nbytes=1)] == [10]


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("notes.txt", b"", "is not a store"),
        (
            "clearfunds-store",
            b"clearfunds store, format 99\n",
            "not a store that this version can read",
        ),
    ],
)
def test_what_is_no_store_is_left_alone(name: str, content: bytes, says: str) -> None:
    disk = FakeFiles()
    disk.create(name).write((content,), 0)
    with pytest.raises(StoreFormatError, match=says):
        Store.open("", files=disk)
    assert {name: bytes(inode.data) for name, inode in disk.names.items()} == {name: content}
    assert not disk.locked
