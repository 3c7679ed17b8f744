"""Bytes that are not what was written: reported, put aside, and the rest is served."""

from __future__ import annotations

import functools
import random
import sqlite3
import tempfile
from pathlib import Path

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clearfunds.store import (
    Damage,
    Inspection,
    Store,
    StoreDiskError,
    StoreFormatError,
    StoreSettings,
    repair,
)
from clearfunds.store._database import PAGE_BYTES

SETTINGS = StoreSettings(embed_below=64)


@attrs.frozen
class Example:
    """The database of a store, and what it has."""

    data: bytes
    messages: dict[tuple[int, int], tuple[bytes, bytes]]
    values: dict[str, bytes]


@functools.cache
def example() -> Example:
    """Make a store with three queues, shared bodies, gaps, and messages that are done."""
    chance = random.Random(1)
    with tempfile.TemporaryDirectory() as folder:
        store = Store.open(folder, SETTINGS)
        changes = store.begin()
        queues = [changes.declare(name) for name in "abc"]
        store.commit(changes)
        messages: dict[tuple[int, int], tuple[bytes, bytes]] = {}
        values: dict[str, bytes] = {}
        for number in range(120):
            changes = store.begin()
            for queue in queues[: 1 + number % 3]:
                header, body = b"%d" % number, chance.randbytes(chance.choice((5, 60, 3000)))
                changes.put(queue, number, header, body)
                messages[queue, number] = (header, body)
            if number % 4 == 0:
                body = chance.randbytes(1000)
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
                store.flush()
        store.close()
        data = Path(folder, "messages.db").read_bytes()
        return Example(data, messages, values)


def spoiled(folder: str, data: bytes) -> None:
    """Make the example's store, with this database."""
    Store.open(folder, SETTINGS).close()
    Path(folder, "messages.db").write_bytes(data)


def read_all(store: Store) -> dict[tuple[int, int], tuple[bytes, bytes]]:
    found: dict[tuple[int, int], tuple[bytes, bytes]] = {}
    for queue in list(store.queues.values()):
        at = 0
        while records := store.read(queue.id, at, count=10, nbytes=1 << 20):
            for seq, header, body, _ in records:
                found[queue.id, seq] = (header, body)
            at = records[-1].seq + 1
    return found


def check(data: bytes) -> None:
    """What is served of a damaged database is true; that something is lost is said."""
    with tempfile.TemporaryDirectory() as folder:
        spoiled(folder, data)
        damages: tuple[Damage, ...] = ()
        try:
            with Inspection(folder) as inspection:
                verified = inspection.verify().damages
        except StoreDiskError as error:
            assert "clearfunds store repair" in str(error)  # noqa: PT017 (or it can be looked into)
            verified = (Damage("database", str(error)),)
        if verified and data:
            # A relay that reads it finds the same, or says that it cannot go on.
            try:
                store = Store.open(folder, SETTINGS)
                try:
                    true(read_all(store), damaged=True)
                finally:
                    store.close()
                damages = store.damages
            except StoreDiskError as error:
                assert "clearfunds store repair" in str(error)  # noqa: PT017 (it may well be opened)
        damages += repair(folder)
        store = Store.open(folder, SETTINGS)
        found = read_all(store)
        assert not store.damages
        true(found, damaged=bool(verified))
        if found != example().messages or store.values() != example().values:
            assert damages
            assert verified
        for stored in store.queues.values():
            own = [message for (ident, _), message in found.items() if ident == stored.id]
            assert stored.live_count == len(own)
            assert stored.live_bytes == sum(len(header) + len(body) for header, body in own)
        # It goes on.
        changes = store.begin()
        queue = changes.declare("new")
        changes.put(queue, 0, b"new", b"body")
        store.commit(changes)
        store.close()
        with Inspection(folder) as inspection:
            assert inspection.verify().damages == ()
            assert len(list(inspection.records(inspection.queues["new"]))) == 1


def true(found: dict[tuple[int, int], tuple[bytes, bytes]], *, damaged: bool) -> None:
    """Check that messages are as they were put; those that were done may be back after damage."""
    original = example().messages
    for place, message in found.items():
        if place in original:
            assert message == original[place]
        else:
            assert damaged


def test_the_example_is_whole() -> None:
    check(example().data)


@settings(max_examples=60, deadline=None)
@given(data=st.data(), width=st.sampled_from((1, 1, 40, 600, 20_000)))
def test_bytes_changed_anywhere(data: st.DataObject, width: int) -> None:
    content = bytearray(example().data)
    at = data.draw(st.integers(0, len(content) - 1))
    for place in range(at, min(at + width, len(content))):
        content[place] ^= 0x5A
    check(bytes(content))


@settings(max_examples=20, deadline=None)
@given(data=st.data(), zeros=st.booleans())
def test_an_end_that_is_missing(data: st.DataObject, zeros: bool) -> None:
    whole = example().data
    at = data.draw(st.integers(0, len(whole) - 1))
    check(whole[:at].ljust(len(whole) if zeros else 0, b"\0"))


@pytest.mark.parametrize("gone", [True, False])
def test_a_database_that_is_gone_or_empty_is_told(tmp_path: Path, gone: bool) -> None:
    file = tmp_path / "messages.db"
    Store.open(tmp_path).close()
    file.write_bytes(b"")
    if gone:
        file.unlink()
    for damages in (1, 0):
        store = Store.open(tmp_path)
        assert len(store.damages) == damages
        changes = store.begin()
        changes.set("key", b"value")
        store.commit(changes)
        store.close()


@pytest.mark.parametrize("at", [*range(16), 18, 19, 21, 22, 23])
def test_a_header_that_is_damaged_costs_nothing(tmp_path: Path, at: int) -> None:
    data = bytearray(example().data)
    data[at] ^= 0x5A
    spoiled(str(tmp_path), bytes(data))
    with pytest.raises(StoreDiskError, match=r"header.*clearfunds store repair"):
        Store.open(tmp_path, SETTINGS)
    assert repair(tmp_path)
    store = Store.open(tmp_path, SETTINGS)
    assert read_all(store) == example().messages
    assert store.values() == example().values
    store.close()
    assert (tmp_path / "messages.db.damaged-1").read_bytes() == bytes(data)


@pytest.mark.parametrize("word", [b"CREATE TABLE run", b"columns BLOB NOT NULL, data BLOB NOT"])
def test_definitions_that_are_damaged_cost_nothing(word: bytes) -> None:
    data = bytearray(example().data)
    data[data.index(word) + 3] = 0xFF
    check(bytes(data))
    with tempfile.TemporaryDirectory() as folder:
        spoiled(folder, bytes(data))
        with pytest.raises(StoreDiskError, match=r"definitions.*clearfunds store repair"):
            Store.open(folder, SETTINGS)
        repair(folder)
        store = Store.open(folder, SETTINGS)
        assert read_all(store) == example().messages
        assert store.values() == example().values
        store.close()


def test_keys_of_bodies_that_are_no_keys(tmp_path: Path) -> None:
    spoiled(str(tmp_path), example().data)
    with sqlite3.connect(tmp_path / "messages.db") as db:
        kind, columns = db.execute("SELECT kind, columns FROM run WHERE kind & 2").fetchone()
        db.execute(
            "UPDATE run SET columns = ? WHERE columns = ?", (columns[:-8] + b"\xff" * 8, columns)
        )
        queues = db.execute("SELECT DISTINCT queue FROM run").fetchall()
    db.close()
    assert kind & 2
    check((tmp_path / "messages.db").read_bytes())
    # A queue that is deleted before anybody has read that.
    store = Store.open(tmp_path, SETTINGS)
    changes = store.begin()
    for (queue,) in queues:
        changes.drop(queue)
    store.commit(changes)
    store.close()
    assert not Store.open(tmp_path, SETTINGS).queues


def test_each_page_lost_by_itself() -> None:
    whole = example().data
    for at in range(0, len(whole), PAGE_BYTES):
        check(whole[:at] + bytes(PAGE_BYTES) + whole[at + PAGE_BYTES :])


def test_damage_found_while_reading_is_told_and_its_messages_count_as_done(tmp_path: Path) -> None:
    store = Store.open(tmp_path, SETTINGS)
    changes = store.begin()
    queue = changes.declare("q")
    for seq in range(10):
        changes.put(queue, seq, b"", b"message %d" % seq)
    store.commit(changes)
    store.flush()
    changes = store.begin()
    changes.put(queue, 10, b"", bytes(70000))  # Too much to lie in one row with the others.
    store.commit(changes)
    store.close()
    file = tmp_path / "messages.db"
    data = file.read_bytes()
    assert data.count(b"message 3") == 1
    file.write_bytes(data.replace(b"message 3", b"nessage 3"))
    store = Store.open(tmp_path, SETTINGS)
    told: list[Damage] = []
    store.on_damage = told.append
    for _ in range(2):
        records = store.read(queue, 0, count=100, nbytes=1 << 20)
        assert [record.seq for record in records] == [10]
        store.flush()
    (damage,) = told
    assert (damage.queue, damage.queue_id) == ("q", queue)
    assert (damage.first, damage.last, damage.count, damage.size) == (0, 9, 10, 90)
    assert str(damage).endswith("queue 'q': 10 messages of 0..9 are lost")
    assert (store.queues["q"].live_count, store.queues["q"].live_bytes) == (1, 70000)
    assert store.statistics().damages == 1
    store.close()
    # That they are lost is known from now on: it is told once. Its bytes are still there.
    store = Store.open(tmp_path, SETTINGS)
    assert [r.seq for r in store.read(queue, 0, count=9, nbytes=1)] == [10]
    assert store.damages == ()
    store.close()
    database = sqlite3.connect(file)
    (row,) = database.execute("SELECT queue, first, last, data FROM damaged").fetchall()
    database.close()
    assert row[:3] == (queue, 0, 9)
    assert b"nessage 3" in row[3]


def test_messages_done_of_a_row_that_is_lost_are_not_taken_for_those_of_another(
    tmp_path: Path,
) -> None:
    """SQLite gives a new row the key of the last one, if that has gone."""
    store = Store.open(tmp_path, SETTINGS)
    changes = store.begin()
    queue = changes.declare("q")
    for seq in range(2):
        changes.put(queue, seq, b"", b"old")
    store.commit(changes)
    store.flush()
    changes = store.begin()
    changes.done(queue, 0)
    store.commit(changes)
    store.close()
    database = sqlite3.connect(tmp_path / "messages.db")
    assert database.execute("SELECT count(*) FROM finished").fetchone() == (1,)
    database.execute("DELETE FROM run")
    database.commit()
    database.close()
    for damages in (1, 0):
        store = Store.open(tmp_path, SETTINGS)
        assert len(store.damages) == damages
        changes = store.begin()
        changes.put(queue, 9 - damages, b"", b"new")
        store.commit(changes)
        store.flush()
        found = store.read(queue, 0, count=9, nbytes=99)
        assert [record.seq for record in found] == [8, 9][: 2 - damages]
        store.close()


def test_a_shared_body_that_is_damaged_costs_its_messages_only(tmp_path: Path) -> None:
    store = Store.open(tmp_path, SETTINGS)
    changes = store.begin()
    queues = [changes.declare(name) for name in "ab"]
    bodies = [changes.share(b"body %d " % number * 20) for number in range(3)]
    for queue in queues:
        for seq, body in enumerate(bodies):
            changes.put(queue, seq, b"", body)
    store.commit(changes)
    store.close()
    file = tmp_path / "messages.db"
    data = file.read_bytes()
    at = data.index(b"body 1 ")
    file.write_bytes(data[:at] + b"?" + data[at + 1 :])
    with Inspection(tmp_path) as inspection:
        assert len(inspection.verify().damages) == 2
    store = Store.open(tmp_path, SETTINGS)
    for queue in queues:
        assert [r.seq for r in store.read(queue, 0, count=9, nbytes=9999)] == [0, 2]
    assert [(d.queue, d.first, d.last, d.count) for d in store.damages] == [
        ("a", 1, 1, 1),
        ("b", 1, 1, 1),
    ]
    store.close()


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("notes.txt", b"", "is not a store"),
        ("clearfunds-store", b"clearfunds store, format 3\n", "not a store that this version can"),
    ],
)
def test_what_is_no_store_is_left_alone(
    name: str, content: bytes, says: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(content)
    for attempt in (Store.open, Inspection, repair):
        with pytest.raises(StoreFormatError, match=says):
            attempt(tmp_path)
        assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {name: content}
