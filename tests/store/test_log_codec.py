"""Changes as bytes for a log, and back."""

from __future__ import annotations

import random
import tracemalloc
from operator import itemgetter
from typing import TYPE_CHECKING

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clearfunds.store import Store, StoreFormatError, StoreSettings, encode_changes
from clearfunds.store._changes import MAX_SEQ, Body, Changes
from clearfunds.store._log_codec import decode_changes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SETTINGS = StoreSettings(embed_below=64)

numbers = st.integers(0, MAX_SEQ)
texts = st.text(st.characters(), max_size=20)
few_bytes = st.binary(max_size=100)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    store = Store.open(tmp_path_factory.mktemp("store"), SETTINGS)
    yield store
    store.close()


@attrs.frozen
class Recipe:
    """What to put into some changes."""

    declared: dict[int, tuple[str, bytes]]
    dropped: list[int]
    values: dict[str, bytes | None]
    bodies: list[bytes]
    puts: dict[int, list[tuple[int, bytes, int, int | None]]]
    """By queue: number, header, place of the body, and size."""
    dones: dict[int, list[tuple[int, int]]]


messages = st.tuples(
    numbers, few_bytes, st.integers(0, 2), st.none() | st.integers(0, (1 << 32) - 1)
)
recipes = st.builds(
    Recipe,
    declared=st.dictionaries(numbers, st.tuples(texts, few_bytes), max_size=3),
    dropped=st.lists(numbers, max_size=3),
    values=st.dictionaries(texts, st.none() | few_bytes, max_size=3),
    bodies=st.lists(few_bytes, min_size=1, max_size=3),
    puts=st.dictionaries(
        numbers,
        st.lists(messages, min_size=1, max_size=4, unique_by=itemgetter(0)),
        max_size=3,
    ),
    dones=st.dictionaries(
        numbers, st.lists(st.tuples(numbers, numbers), min_size=1, max_size=3), max_size=3
    ),
)


def made(store: Store, recipe: Recipe) -> Changes:
    """Make sealed changes."""
    changes = store.begin()
    changes.declared.update(recipe.declared)
    for queue in recipe.dropped:
        changes.drop(queue)
    changes.values.update(recipe.values)
    bodies = [changes.share(body) for body in recipe.bodies]
    for queue, messages in recipe.puts.items():
        for seq, header, body, size in sorted(messages, key=itemgetter(0)):
            changes.put(queue, seq, header, bodies[body % len(bodies)], size=size)
    for queue, ranges in recipe.dones.items():
        for ends in ranges:
            changes.done(queue, min(ends), max(ends))
    changes.seal()
    return changes


def meaning(changes: Changes) -> object:
    """Return what changes do, in a form that can be compared."""
    return (
        changes.declared,
        sorted(changes.dropped),
        changes.values,
        {
            queue: (
                puts.first,
                puts.last,
                puts.size,
                puts.seqs,
                puts.headers,
                puts.sizes,
                puts.shared,
                [body.data if isinstance(body, Body) else body for body in puts.bodies],
            )
            for queue, puts in changes.puts.items()
        },
        {queue: list(ranges) for queue, ranges in changes.dones.items()},
        changes.sealed,
    )


@given(st.lists(recipes, max_size=3))
def test_changes_come_back_as_they_were(store: Store, some: list[Recipe]) -> None:
    group = [made(store, recipe) for recipe in some]
    found = decode_changes(encode_changes(group), SETTINGS)
    assert list(map(meaning, found)) == list(map(meaning, group))


@given(recipes, st.data())
def test_a_part_of_changes_is_refused(store: Store, recipe: Recipe, data: st.DataObject) -> None:
    whole = encode_changes([made(store, recipe)])
    end = data.draw(st.integers(1, len(whole) - 1))
    with pytest.raises(StoreFormatError, match="no changes of a store"):
        decode_changes(whole[:end], SETTINGS)
    with pytest.raises(StoreFormatError, match="no changes of a store"):
        decode_changes(whole + whole[:end], SETTINGS)


@given(st.binary(min_size=1, max_size=200))
def test_any_bytes_are_changes_or_refused(data: bytes) -> None:
    sized = len(data).to_bytes(4, "little") + data
    for each in (data, sized):
        try:
            decode_changes(each, SETTINGS)
        except StoreFormatError as error:
            assert "no changes of a store" in str(error)  # noqa: PT017


@given(recipes, st.integers(0, 2**32))
def test_changes_with_wrong_bytes_are_changes_or_refused(
    store: Store, recipe: Recipe, seed: int
) -> None:
    """What is not refused can be written to a database."""
    chance = random.Random(seed)
    data = bytearray(encode_changes([made(store, recipe)]))
    for _ in range(chance.randint(1, 3)):
        data[chance.randrange(len(data))] = chance.choice((0, 1, 127, 128, 255))
    try:
        found = decode_changes(bytes(data), SETTINGS)
    except StoreFormatError:
        return
    for changes in found:
        for queue in (*changes.declared, *changes.dropped, *changes.puts, *changes.dones):
            assert 0 <= queue <= MAX_SEQ
        for puts in changes.puts.values():
            assert puts.seqs == sorted(set(puts.seqs))
            assert 0 <= puts.first <= puts.last <= MAX_SEQ
        for ranges in changes.dones.values():
            assert all(0 <= first <= last <= MAX_SEQ for first, last in ranges)


def test_what_goes_on_after_its_end_is_refused(store: Store) -> None:
    changes = store.begin()
    changes.set("key", b"value")
    changes.seal()
    data = encode_changes([changes])[4:] + b"more"
    with pytest.raises(StoreFormatError, match="it goes on after its end"):
        decode_changes(len(data).to_bytes(4, "little") + data, SETTINGS)


def test_wrong_counts_cost_no_memory() -> None:
    """Each of the six counts as large as can be, with nothing behind it."""
    tracemalloc.start()
    try:
        for place in range(6):
            counts = bytearray(24)
            counts[4 * place : 4 * place + 4] = b"\xff\xff\xff\xff"
            with pytest.raises(StoreFormatError):
                decode_changes(b"\x18\0\0\0" + counts, SETTINGS)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("size", [10, 63, 64, 10_000])
def test_a_body_of_many_queues_is_there_once(store: Store, size: int) -> None:
    changes = store.begin()
    body = changes.share(bytes(range(256)) * (size // 256) + bytes(range(size % 256)))
    for queue in range(100):
        changes.put(queue, 7, b"header", body)
    changes.seal()
    data = encode_changes([changes])
    assert data.count(body.data if isinstance(body, Body) else body) == 1
    assert len(data) < size + 100 * 50
    (found,) = decode_changes(data, SETTINGS)
    assert len({id(puts.bodies[0]) for puts in found.puts.values()}) == 1
    assert meaning(found) == meaning(changes)


def test_other_settings_share_by_their_own_size(store: Store, tmp_path: Path) -> None:
    """A relay that stores small bodies by reference may have been started with other settings."""
    changes = store.begin()
    body = changes.share(bytes(100))
    changes.put(1, 0, b"", body)
    changes.put(2, 0, b"", body)
    changes.seal()
    (found,) = decode_changes(encode_changes([changes]), StoreSettings(embed_below=4096))
    assert [puts.shared for puts in found.puts.values()] == [False, False]
    assert [puts.bodies for puts in found.puts.values()] == [[bytes(100)], [bytes(100)]]
