"""What makes a value itself, and the bag of those that stand."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from decimal import Decimal
from types import MappingProxyType
from typing import Any, NamedTuple

import attrs
import pytest

from clearfunds.dataspace._bag import Bag, identity
from tests.dataspace.conftest import Alarm, Reading


class Point(NamedTuple):
    x: int
    y: int


@attrs.frozen
class Noted:
    name: str
    note: Any = attrs.field(default=None, eq=False)


@attrs.frozen
class Folded:
    name: str = attrs.field(eq=str.lower)


@attrs.define(eq=False)
class Thing:
    name: str


class Unhashable:
    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        # The test is named by it, and has to be the same in every process.
        return "Unhashable()"


@attrs.define
class Lazy:
    name: str
    later: int = attrs.field(init=False)


THING = Thing("a")
UNHASHABLE = Unhashable()

SAME: list[tuple[object, object]] = [
    ("a", "a"),
    (("x", 1), ("x", 1)),
    (Reading("roof", 1.0), Reading("roof", 1.0)),
    (frozenset({1, 2}), frozenset({2, 1})),
    ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
    ([1, [2]], [1, [2]]),
    ({1, 2}, {2, 1}),
    (Noted("a", 1), Noted("a", 2)),
    (Folded("A"), Folded("a")),
    (THING, THING),
    (UNHASHABLE, UNHASHABLE),
    (Lazy("a"), Lazy("a")),
    (None, None),
]
DIFFERENT: list[tuple[object, object]] = [
    (1, True),
    (1, 1.0),
    (0, False),
    (1, Decimal(1)),
    ("a", b"a"),
    (("x", 1), ("x", True)),
    ((("x", (1,)),), (("x", (1.0,)),)),
    ((1, 2), Point(1, 2)),
    ((1, 2), [1, 2]),
    ((int, 1), 1),
    (frozenset({1}), frozenset({True})),
    (frozenset({1}), {1}),
    ({1: "a"}, {True: "a"}),
    ({"a": 1}, {"a": 1.0}),
    ({"a": 1}, OrderedDict(a=1)),
    ({"a": 1}, MappingProxyType({"a": 1})),
    (Reading("roof", 1), Reading("roof", True)),
    (Alarm("roof"), ("roof",)),
    (Thing("a"), Thing("a")),
    (Lazy("a"), Lazy("b")),
]


@pytest.mark.parametrize(("one", "two"), SAME, ids=repr)
def test_equal_values_of_equal_types_are_one(one: object, two: object) -> None:
    assert identity(one) == identity(two)
    assert hash(identity(one)) == hash(identity(two))


@pytest.mark.parametrize(("one", "two"), DIFFERENT, ids=repr)
def test_values_of_different_types_are_not(one: object, two: object) -> None:
    assert identity(one) != identity(two)
    assert len({identity(one), identity(two)}) == 2


def test_the_bag_keeps_the_first_of_equal_values_until_the_last_is_gone() -> None:
    bag = Bag()
    one, two = ("x", 1), ("x", 1)
    key = identity(one)
    assert bag.add(key, one).count == 1
    assert bag.add(key, two).count == 2
    assert len(bag) == 1
    entry = bag.remove(key, one)
    assert (entry.value, entry.count) == (one, 1)
    assert next(iter(bag)) is one
    entry = bag.remove(key, two)
    assert (entry.value, entry.count) == (one, 0)
    assert len(bag) == 0
    assert not vars(bag)["_by_kind"]


def test_what_was_removed_can_be_put_back_as_it_was() -> None:
    bag = Bag()
    one, two = ("x", 1), ("x", 1)
    key = identity(one)
    bag.add(key, one)
    bag.add(key, two)
    bag.remove(key, one)
    entry = bag.remove(key, two)
    assert bag.add(key, two, entry) is entry
    assert next(iter(bag)) is one
    assert entry.count == 1


def test_removing_what_does_not_stand_changes_nothing() -> None:
    bag = Bag()
    bag.add(identity("a"), "a")
    with pytest.raises(KeyError):
        bag.remove(identity("b"), "b")
    with pytest.raises(KeyError):
        bag.remove(identity(1), 1)
    assert list(bag) == ["a"]


def test_values_are_found_by_kind_and_all_mappings_are_of_one() -> None:
    bag = Bag()
    proxy: Mapping[str, int] = MappingProxyType({"a": 1})
    for value in ("a", ("a",), Reading("roof", 1.0), proxy):
        bag.add(identity(value), value)
    assert [value for _, value in bag.of_kind(str)] == ["a"]
    assert [value for _, value in bag.of_kind(dict)] == [proxy]
    assert [value for _, value in bag.of_kind(Reading)] == [Reading("roof", 1.0)]
    assert [value for _, value in bag.of_kind(Alarm)] == []
    assert list(bag.of_kind(None)) == [(identity(value), value) for value in bag]
