"""The store against lists and dicts, with processes killed and power lost at any moment."""

from __future__ import annotations

import contextlib
import copy
import errno
import os
import random
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import attrs
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from clearfunds.store import Store, StoreDiskError, StoreSettings
from clearfunds.store._database import connect
from clearfunds.store._rows import Columns
from tests.store.disk import FakeDisk, refuse

if TYPE_CHECKING:
    from collections.abc import Callable

    from clearfunds.store import Changes, Record

SETTINGS = StoreSettings(embed_below=64, write_bytes=2048)

Messages: TypeAlias = dict[int, tuple[bytes, bytes, int]]


@attrs.define
class Contents:
    """What a store has, as plain as can be."""

    queues: dict[str, Messages] = attrs.field(factory=dict[str, Messages])
    meta: dict[str, bytes] = attrs.field(factory=dict[str, bytes])
    values: dict[str, bytes] = attrs.field(factory=dict[str, bytes])


def contents_of(store: Store) -> Contents:
    """Read all that a store has."""
    found = Contents(values=store.values())
    for name, queue in store.queues.items():
        records: list[Record] = []
        at = 0
        while more := store.read(queue.id, at, count=7, nbytes=300):
            records += more
            at = more[-1].seq + 1
        found.queues[name] = {
            record.seq: (record.header, record.body, record.nbytes) for record in records
        }
        found.meta[name] = queue.meta
        assert [record.seq for record in records] == sorted(found.queues[name])
        if not store.ahead():  # Done messages count until that is durable.
            assert queue.live_count == len(records)
            assert queue.live_bytes == sum(record.nbytes for record in records)
        assert store.first_live_seq(queue.id) == (records[0].seq if records else None)
        assert all(record.seq < queue.next_seq for record in records)
    return found


class StoreMachine(RuleBasedStateMachine):
    """Commits at random; after a crash the store is as it was after some of the commits.

    `states[i]` is what there was after i commits since the last opening: all of `durable` must
    be in what is found, and it must be one of them, so no commit is there in half.
    """

    def __init__(self) -> None:
        super().__init__()
        self.chance = random.Random(0)
        self.folder = tempfile.TemporaryDirectory()
        self.disk = FakeDisk(Path(self.folder.name))
        self.store = Store.open(self.disk.directory, SETTINGS, vfs=self.disk.name)
        self.now = Contents()
        self.states = [copy.deepcopy(self.now)]
        self.base = self.store.durable

    def teardown(self) -> None:
        self.disk.fault = None
        self.disk.room = None
        self.store.close()
        self.disk.close()
        self.folder.cleanup()

    @rule(seed=st.integers(0, 2**32))
    def seed(self, seed: int) -> None:
        self.chance.seed(seed)
        self.disk.chance.seed(seed)

    @rule(seed=st.integers(0, 2**32), number=st.integers(1, 12))
    def commit(self, seed: int, number: int) -> None:
        chance = random.Random(seed)
        for _ in range(number):
            self._commit(chance, chance.randint(1, 12))

    @rule(seed=st.integers(0, 2**32))
    def commit_and_sync(self, seed: int) -> None:
        self._commit(random.Random(seed), 6)
        self.store.flush()

    def _commit(self, chance: random.Random, size: int) -> None:
        changes = self.store.begin()
        now = self.now
        touched: set[str] = set()
        for _ in range(size):
            kind = chance.choice(("declare", "put", "put", "put", "fan", "done", "set", "delete"))
            name = chance.choice("abc")
            queue = self.store.queues.get(name)
            if kind == "declare" or queue is None:
                meta = chance.choice((b"", b"meta"))
                changes.declare(name, meta)
                now.queues.setdefault(name, {})
                now.meta[name] = meta
            elif kind == "put":
                self._put(chance, changes, {name}, touched)
            elif kind == "fan":
                self._put(chance, changes, set(self.store.queues), touched)
            elif kind == "done" and queue.next_seq:
                first = chance.randrange(queue.next_seq)
                last = first + chance.choice((0, 0, 1, 5, 50))
                # What is put in the same commit is not done in it.
                last = min(last, queue.next_seq - 1)
                changes.done(queue.id, first, last)
                for seq in range(first, last + 1):
                    now.queues[name].pop(seq, None)
            elif kind == "set":
                changes.set(name, now.values.setdefault(name, chance.randbytes(5)))
            elif kind == "delete":
                changes.delete(name)
                now.values.pop(name, None)
        if chance.random() < 0.04:
            name = chance.choice("abc")
            queue = self.store.queues.get(name)
            if queue is not None and name not in touched:
                changes.drop(queue.id)
                del now.queues[name], now.meta[name]
        self.store.commit(changes)
        self.states.append(copy.deepcopy(now))

    def _put(
        self, chance: random.Random, changes: Changes, names: set[str], touched: set[str]
    ) -> None:
        body = chance.randbytes(chance.choice((0, 10, 10, 10, 63, 64, 200, 900)))
        header = chance.randbytes(chance.choice((0, 4, 4, 9)))
        size = chance.choice((None, None, None, 7, 1 << 20))
        given = changes.share(body) if len(names) > 1 or chance.random() < 0.2 else body
        for name in sorted(names):
            queue = self.store.queues[name]
            puts = changes.puts.get(queue.id)
            seq = puts.last + 1 if puts else queue.next_seq
            seq += chance.choice((0, 0, 0, 0, 1, 3))
            changes.put(queue.id, seq, header, given, size=size)
            touched.add(name)
            counts = len(header) + len(body) if size is None else size
            self.now.queues[name][seq] = (header, body, counts)

    @rule()
    def flush(self) -> None:
        self.store.flush()
        assert self.store.durable == self.base + len(self.states) - 1

    @rule(
        code=st.sampled_from((errno.ENOSPC, errno.EIO)),
        operations=st.sets(
            st.sampled_from(("write", "sync", "truncate", "read")),
            min_size=1,
        ),
    )
    def flush_in_vain(self, code: int, operations: set[str]) -> None:
        self.disk.fault = refuse(code, *operations)
        self._flush_or("SQLITE_FULL", "SQLITE_IOERR")
        self.disk.fault = None

    @rule(room=st.integers(0, 100_000))
    def flush_with_little_room(self, room: int) -> None:
        self.disk.room = self.disk.used + room
        self._flush_or("SQLITE_FULL")
        self.disk.room = None

    def _flush_or(self, *why: str) -> None:
        with contextlib.suppress(StoreDiskError):
            self.store.flush()
        trouble = self.store.statistics().trouble
        assert trouble is None or any(name in trouble for name in why)

    @rule()
    def compact(self) -> None:
        self.store.compact()
        assert self.store.statistics().free_bytes == 0
        assert self.store.statistics().log_bytes == 0

    @rule()
    def compact_in_vain(self) -> None:
        left = self.chance.randint(0, 40)

        def fault(operation: str, name: str) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise OSError(errno.EIO, os.strerror(errno.EIO))

        self.disk.fault = fault
        with contextlib.suppress(StoreDiskError):
            self.store.compact()
        self.disk.fault = None

    @rule()
    def close_and_open(self) -> None:
        self.store.close()
        self._open()
        assert contents_of(self.store) == self.now
        self._anew()

    @rule()
    def kill(self) -> None:
        self._crash(self.disk.kill)

    @rule()
    def lose_power(self) -> None:
        self._crash(self.disk.lose_power)

    @rule(operations=st.integers(1, 60), compact=st.booleans())
    def lose_power_in_the_middle(self, operations: int, compact: bool) -> None:
        left = operations

        def fault(operation: str, name: str) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise _PowerCutError

        self.disk.fault = fault
        with contextlib.suppress(StoreDiskError):
            if compact:
                self.store.compact()
            self.store.flush()
        self.disk.fault = None
        self._crash(self.disk.lose_power)

    def _crash(self, end: Callable[[], None]) -> None:
        durable = self.store.durable - self.base
        end()
        self.store.close()  # Nothing of it gets to the disk any more.
        self._open()
        found = contents_of(self.store)
        assert found in self.states[durable:]
        self.now = found
        self._anew()

    def _open(self) -> None:
        self.store = Store.open(self.disk.directory, SETTINGS, vfs=self.disk.name)
        assert self.store.damages == ()

    def _anew(self) -> None:
        self.states = [copy.deepcopy(self.now)]
        self.base = self.store.durable

    @precondition(lambda self: len(self.states) > 60)
    @rule()
    def forget_the_past(self) -> None:
        self.store.flush()
        self._anew()

    @invariant()
    def readers_see_what_is_committed(self) -> None:
        assert contents_of(self.store) == self.now

    @invariant()
    def the_books_of_the_disk_balance(self) -> None:
        if self.store.ahead():
            return
        database = connect(self.disk.directory / "messages.db", vfs=self.disk.name)
        rows = database.execute("SELECT kind, count, columns, first FROM run").fetchall()
        counts: Counter[int] = Counter()
        for kind, count, columns, first in rows:
            counts.update(filter(None, Columns(first, count, kind, columns).keys or ()))
        found = dict(database.execute("SELECT body, count FROM reference").fetchall())
        bodies = database.execute("SELECT id FROM body").fetchall()
        finished = database.execute("SELECT run FROM finished").fetchall()
        runs = database.execute("SELECT id FROM run").fetchall()
        database.close()
        assert found == counts
        assert {body for (body,) in bodies} == set(counts)
        assert set(finished) <= set(runs)


class _PowerCutError(Exception):
    """The power is gone: no error that a program gets to see."""


TestStore = StoreMachine.TestCase
TestStore.settings = settings(
    max_examples=25,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)


@pytest.mark.parametrize("seed", range(4))
def test_long_lives(seed: int) -> None:
    """The same, with more in the store than the machine above gets together."""
    live_long(seed, 70)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 200))
def test_longer_lives(seed: int) -> None:
    live_long(seed, 400)


def live_long(seed: int, steps: int) -> None:
    """Let one store see much."""
    chance = random.Random(seed)
    machine = StoreMachine()
    machine.seed(seed)
    for _ in range(steps):
        kind = chance.choices(
            ("commit", "sync", "compact", "in vain", "room", "open", "kill", "cut", "power"),
            (8, 8, 1, 1, 1, 1, 1, 3, 3),
        )[0]
        number = chance.getrandbits(32)
        if kind == "commit":
            machine.commit(seed=number, number=chance.randint(1, 12))
        elif kind == "sync":
            machine.commit_and_sync(seed=number)
        elif kind == "cut":
            machine.lose_power()
        elif kind == "compact":
            chance.choice((machine.compact, machine.compact_in_vain))()
        elif kind == "in vain":
            operations = set(chance.choices(("write", "sync", "truncate", "read")))
            machine.flush_in_vain(code=errno.EIO, operations=operations)
        elif kind == "room":
            machine.flush_with_little_room(room=chance.randint(0, 100_000))
        elif kind == "open":
            machine.close_and_open()
        elif kind == "kill":
            machine.kill()
        else:
            machine.lose_power_in_the_middle(
                operations=chance.randint(1, 60), compact=chance.random() < 0.5
            )
        if len(machine.states) > 60:
            machine.forget_the_past()
        machine.readers_see_what_is_committed()
        machine.the_books_of_the_disk_balance()
    machine.teardown()
