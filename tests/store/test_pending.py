"""The queue between the owner and the writer: groups are cut by size, and the oldest waits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from clearfunds.store import Changes, Store
from clearfunds.store._pending import PendingChanges

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MANY = 1 << 30


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store.open(tmp_path)
    yield store
    store.close()


def added(store: Store, *sizes: int) -> PendingChanges:
    made = PendingChanges(write_bytes=1 << 20)
    for size in sizes:
        changes = store.begin()
        changes.put(1, 0, b"", bytes(size))
        changes.seal()
        with made.lock:
            made.add(changes)
    return made


def tickets(group: list[Changes]) -> list[int]:
    return [changes.ticket for changes in group]


def test_a_group_ends_at_its_ticket_and_at_its_limit(store: Store) -> None:
    made = added(store, 1000, 1000, 1000, 1000)
    assert tickets(made.first(0, MANY)) == []
    assert tickets(made.first(3, MANY)) == [1, 2, 3]
    assert tickets(made.first(4, 2500)) == [1, 2]
    assert tickets(made.first(4, 1)) == [1]


def test_what_is_not_durable_stays_and_is_counted(store: Store) -> None:
    made = added(store, 1000, 5000, 1000)
    before = made.nbytes
    assert tickets(made.first(2, MANY)) == [1, 2]
    assert made.nbytes == before > 7000
    made.durable(2)
    assert 1000 < made.nbytes < 2000
    assert tickets(made.first(9, MANY)) == [3]


def test_the_oldest_waits_from_its_commit(store: Store) -> None:
    made = added(store, 1, 1)
    first, second = made.changes
    assert made.oldest == first.since
    made.durable(1)
    assert made.oldest == second.since
    made.durable(1)
    assert made.oldest is None
    assert made.nbytes == 0
