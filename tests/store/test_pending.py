"""The queue between the owner and the writer: batches are cut by size, order survives a refusal."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from clearfunds.store import Changes, Store
from clearfunds.store._pending import PendingChanges

from .disk import FakeFiles

if TYPE_CHECKING:
    from collections.abc import Iterator

MANY = 1 << 30


@pytest.fixture
def store() -> Iterator[Store]:
    store = Store.open("", files=FakeFiles())
    yield store
    store.close()


def changes_of(store: Store, nbytes: int, queue: int = 1) -> Changes:
    changes = store.begin()
    changes.put(queue, 0, b"", bytes(nbytes))
    changes.seal()
    return changes


def pending() -> PendingChanges:
    return PendingChanges(threading.RLock(), 10, write_bytes=1 << 20)


def added(store: Store, *sizes: int) -> PendingChanges:
    made = pending()
    with made.acquire():
        for size in sizes:
            made.add(changes_of(store, size))
    return made


def tickets(group: list[Changes]) -> list[int]:
    return [changes.ticket for changes in group]


def test_a_batch_ends_at_its_ticket_and_at_its_limit(store: Store) -> None:
    made = added(store, 1000, 1000, 1000, 1000)
    assert tickets(made.take(10, MANY)) == []
    assert tickets(made.take(13, MANY)) == [11, 12, 13]
    assert tickets(made.take(14, 1)) == [14]


def test_changes_above_the_limit_are_a_batch_of_their_own(store: Store) -> None:
    made = added(store, 5000, 1000, 1000)
    assert tickets(made.take(13, 2500)) == [11]
    assert tickets(made.take(13, 2500)) == [12, 13]


def test_a_little_more_joins_a_batch_rather_than_making_another(store: Store) -> None:
    made = added(store, 100 << 10, 60 << 10)
    assert tickets(made.take(12, MANY)) == [11, 12]
    made = added(store, 100 << 10, 60 << 10, 100 << 10)
    assert tickets(made.take(13, MANY)) == [11]


def test_each_queue_in_a_batch_allows_for_more(store: Store) -> None:
    made = pending()
    with made.acquire():
        for queue in range(40):
            made.add(changes_of(store, 10 << 10, queue))
    assert sum(changes.nbytes for changes in made.take(60, MANY)) > 256 << 10


def test_what_was_taken_goes_back_in_order_and_is_still_counted(store: Store) -> None:
    made = added(store, 1000, 1000, 1000)
    before = made.nbytes
    group = made.take(12, MANY)
    assert made.nbytes == before
    made.put_back(group)
    assert tickets(made.take(13, MANY)) == [11, 12, 13]


def test_the_oldest_waits_from_its_commit(store: Store) -> None:
    made = added(store, 1, 1)
    first, second = made.changes
    assert made.oldest == first.since
    made.take(11, MANY)
    made.synced()
    assert made.oldest == second.since
    made.take(12, MANY)
    made.synced()
    assert made.oldest is None
