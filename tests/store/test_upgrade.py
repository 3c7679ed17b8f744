"""A store of version 0.1.0 is upgraded when it is opened; `data/v0_1_0/make.py` made these."""

from __future__ import annotations

import os
import sqlite3
import tarfile
from contextlib import closing
from pathlib import Path

import pytest

from clearfunds.store import Inspection, Store, StoreDiskError, StoreFormatError
from clearfunds.store._directory import MARK, OLD_MARK, Directory

DATA = Path(__file__).with_name("data") / "v0_1_0"

Message = tuple[int, bytes, bytes, int]


def shared(n: int) -> bytes:
    return b"shared %03d " % n * 10


A: list[Message] = [
    *((n, b"a%d" % n, shared(n), len(b"a%d" % n) + 110) for n in range(10, 201, 5)),
    (300, b"after", b"a gap", 10),
]
B: list[Message] = sorted(
    [
        *((2 * n, b"b%d" % n, shared(n), 7) for n in range(1, 201) if 2 * n % 3 == 0),
        *(
            (2 * n + 1, b"own", b"own body %d" % n, 3 + len(b"own body %d" % n))
            for n in range(1, 201)
            if (2 * n + 1) % 3 == 0
        ),
    ]
)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Return a store with segments of 4 KiB, moved messages, and a log behind its snapshots."""
    return unpacked("compacted", tmp_path)


def unpacked(name: str, where: Path) -> Path:
    with tarfile.open(DATA / f"{name}.tar.gz") as tar:
        tar.extractall(where, filter="data")
    return where / "store"


def messages(store: Store, name: str) -> list[Message]:
    records = store.read(store.queues[name].id, 0, count=10_000, nbytes=1 << 30)
    return [(record.seq, record.header, record.body, record.nbytes) for record in records]


def check(directory: Path) -> tuple[str, ...]:
    """See that all is there; return the damages."""
    store = Store.open(directory)
    try:
        assert set(store.queues) == {"a", "b", "empty"}
        assert messages(store, "a") == A
        assert messages(store, "b") == B
        assert messages(store, "empty") == []
        queues = store.queues
        assert [queues[name].meta for name in ("a", "b", "empty")] == [b"another", b"b", b"empty"]
        # The numbers of what is done are not given again.
        assert [queues[name].next_seq for name in ("a", "b", "empty")] == [301, 402, 201]
        assert queues["a"].live_bytes == sum(message[3] for message in A)
        assert store.values() == {"kept": b"3", "odd \udcff": b""}
        return tuple(map(str, store.damages))
    finally:
        store.close()


def test_everything_is_there_and_stays(directory: Path) -> None:
    assert check(directory) == ()
    assert check(directory) == ()
    assert {path.name for path in directory.iterdir()} == {
        *("clearfunds-store", "messages.db", "format-1"),
    }


def test_a_large_body_that_queues_share_is_stored_once(tmp_path: Path) -> None:
    directory = unpacked("relay", tmp_path)
    store = Store.open(directory)
    large = b"large" * 1500
    having = [
        queue.name
        for queue in store.queues.values()
        if large in [record.body for record in store.read(queue.id, 0, count=1000, nbytes=1 << 20)]
    ]
    store.close()
    assert sorted(having) == ["mqtt/away", "mqtt/away-too"]
    with closing(sqlite3.connect(directory / "messages.db")) as db:
        assert db.execute("SELECT data FROM body").fetchall() == [(large,)]
        assert db.execute("SELECT count FROM reference").fetchall() == [(2,)]


def test_the_old_store_is_kept_as_it_was(directory: Path) -> None:
    before = {path.name: path.read_bytes() for path in directory.iterdir()}
    check(directory)
    aside = directory / "format-1"
    assert {path.name: path.read_bytes() for path in aside.iterdir()} == before
    # So it is a store of that version, to go back to; here it can be upgraded again.
    assert check(aside) == ()


def test_it_is_upgraded_by_opening_it_alone(directory: Path) -> None:
    before = {path.name: path.read_bytes() for path in directory.iterdir()}
    with pytest.raises(StoreFormatError, match=r"is a store of version 0\.1\.0: start a relay"):
        Inspection(directory)
    place = Directory(directory)
    with pytest.raises(StoreFormatError, match=r"is a store of version 0\.1\.0: start a relay"):
        place.take()
    place.release()
    assert {path.name: path.read_bytes() for path in directory.iterdir()} == before


def test_a_disk_that_refuses_leaves_it_as_it_was(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_self: Store) -> None:
        raise StoreDiskError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(Store, "flush", full)
        with pytest.raises(StoreDiskError, match="the disk is full"):
            Store.open(directory)
    assert (directory / "clearfunds-store").read_bytes() == OLD_MARK
    assert not (directory / "upgrade").exists()  # It would keep the disk full.
    assert check(directory) == ()


class Killed(BaseException):
    """The process ends here."""


def test_killed_before_the_new_one_counts(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def kill(_self: Directory) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Directory, "mark", kill)
        with pytest.raises(Killed):
            Store.open(directory)
    assert (directory / "clearfunds-store").read_bytes() == OLD_MARK
    assert check(directory) == ()


@pytest.mark.parametrize("moved", [0, 1, 5])
def test_killed_while_the_old_files_are_put_aside(
    directory: Path, monkeypatch: pytest.MonkeyPatch, moved: int
) -> None:
    before = {path.name: path.read_bytes() for path in directory.iterdir()}
    renamed: list[Path] = []
    rename = Path.rename

    def kill(self: Path, target: Path) -> Path:
        if len(renamed) == moved:
            raise Killed
        renamed.append(self)
        return rename(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", kill)
        with pytest.raises(Killed):
            Store.open(directory)
    assert (directory / "clearfunds-store").read_bytes() == MARK
    assert check(directory) == ()
    aside = directory / "format-1"
    assert {path.name: path.read_bytes() for path in aside.iterdir()} == before


def last_of(directory: Path, pattern: str) -> Path:
    return max(directory.glob(pattern))


def test_the_torn_end_was_never_confirmed(directory: Path) -> None:
    segment = last_of(directory, "segment-*.log")
    os.truncate(segment, segment.stat().st_size - 1)
    store = Store.open(directory)
    # In that batch number 5 was acknowledged, too.
    assert [seq for seq, *_ in messages(store, "a")] == list(range(5, 201, 5))
    assert messages(store, "b") == B
    assert store.values()["kept"] == b"1"
    store.close()


def spoil(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def test_a_damaged_snapshot_costs_nothing(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    newest = last_of(directory, "snapshot-*.idx")
    spoil(newest, 300)
    assert check(directory) == ()
    assert f"{newest.name}: the checksum of a record is wrong; an older one is read" in caplog.text


def test_a_damaged_message_is_named_and_the_others_are_there(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    body = b"own body 199"
    (segment,) = (path for path in directory.glob("segment-*.log") if body in path.read_bytes())
    data = segment.read_bytes()
    while (at := data.rfind(body)) >= 0:
        spoil(segment, at)
        data = segment.read_bytes()
    store = Store.open(directory)
    found = messages(store, "b")
    store.close()
    assert set(found) < set(B)
    assert 399 not in {seq for seq, *_ in found}
    assert "b: messages of " in caplog.text
    assert f"in {segment.name}" in caplog.text


def test_a_missing_segment_is_named(directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    missing = min(directory.glob("segment-*.log"))
    missing.unlink()
    store = Store.open(directory)
    assert set(messages(store, "a")) <= set(A)
    assert messages(store, "a")[-1][0] == 300
    store.close()
    assert f"were in {missing.name}, which is not there" in caplog.text


def test_one_that_was_never_written_to_is_upgraded(tmp_path: Path) -> None:
    (tmp_path / "clearfunds-store").write_bytes(OLD_MARK)
    store = Store.open(tmp_path)
    assert (dict(store.queues), store.values(), store.damages) == ({}, {}, ())
    store.close()
