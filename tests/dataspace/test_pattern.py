"""Patterns: what they are made of, what they match, and what they show."""

from __future__ import annotations

import enum
from collections import defaultdict
from types import MappingProxyType
from typing import Any, NamedTuple

import attrs
import pytest
from hypothesis import given

from clearfunds.dataspace import (
    ANY,
    Capture,
    Group,
    Literal,
    Observe,
    Pattern,
    PatternError,
    TopicFilter,
    capture,
    compile_pattern,
    match,
)
from clearfunds.dataspace._bag import identity
from clearfunds.dataspace._index import kind_wanted, matches
from clearfunds.dataspace._pattern import captured, take_apart
from tests.dataspace.conftest import PATTERNS, STEADY, VALUES, Alarm, Pair, Reading, shown_of

ROOF = Reading("roof", 20.5)
NOTHING = object()


def shown(pattern: object, value: object) -> Any:
    """Return what an observer of `pattern` is shown of `value`, or `NOTHING`."""
    skeleton = take_apart(compile_pattern(pattern))
    return captured(skeleton.captures, value) if matches(skeleton, value) else NOTHING


class Point(NamedTuple):
    x: int
    y: int


class Size(enum.IntEnum):
    SMALL = 1


@attrs.frozen
class Indoors(Reading):
    room: str = "hall"


@attrs.define
class Lazy:
    name: str
    later: int = attrs.field(init=False)

    @property
    def shouted(self) -> str:
        return self.name.upper()


@attrs.frozen(slots=False)
class Private:
    _secret: int


@pytest.mark.parametrize(
    ("pattern", "value"),
    [
        # Atoms.
        ("a", "a"),
        (b"a", b"a"),
        (1, 1),
        (None, None),
        (Size.SMALL, Size.SMALL),
        # Open: what the pattern does not name does not matter.
        ((), ("a", "b")),
        (("a",), ("a", "b")),
        (("a", ANY), ("a", "b", "c")),
        (("a", ("b",)), ("a", ("b", "c"), "d")),
        ({}, {"a": 1}),
        ({"a": 1}, {"a": 1, "b": 2}),
        ({"a": {"b": ANY}}, {"a": {"b": None, "c": 1}, "d": 1}),
        ({"a": 1}, MappingProxyType({"a": 1})),
        # Records: a class is a label.
        (Reading, ROOF),
        (match(Reading), ROOF),
        (match(Reading, sensor="roof"), ROOF),
        (match(Reading, celsius=20.5, sensor="roof"), ROOF),
        (ROOF, ROOF),
        (Pair(ANY, ("a",)), Pair(1, ("a", "b"))),
        (Pair(Reading, match(Alarm, sensor="roof")), Pair(ROOF, Alarm("roof"))),
        (Point(1, 2), Point(1, 2)),
        (match(Private, _secret=1), Private(1)),
        (match(Lazy, name="a"), Lazy("a")),
        # Observers themselves.
        (match(Observe, pattern=TopicFilter("a/#")), Observe(TopicFilter("a/#"))),
        (match(Observe, pattern=TopicFilter), Observe(TopicFilter("a/#"))),
    ],
    ids=repr,
)
def test_it_matches(pattern: object, value: object) -> None:
    assert shown(pattern, value) is value
    assert shown(capture(pattern), value) == (value,)


@pytest.mark.parametrize(
    ("pattern", "value"),
    [
        # Constants are typed: to Python all these are equal.
        (1, True),
        (True, 1),
        (1, 1.0),
        (0, False),
        (1, Size.SMALL),
        (("a", 1), ("a", True)),
        ({"a": 1}, {"a": 1.0}),
        (match(Reading, celsius=20), Reading("roof", 20.0)),
        ((1, 2), Point(1, 2)),
        (Point(1, 2), (1, 2)),
        ("a", b"a"),
        # What is named must be there.
        (("a", ANY), ("a",)),
        (Group(tuple, ((-1, ANY),)), ("a",)),
        ((ANY, ANY, ANY), ("a", "b")),
        ({"a": ANY}, {"b": 1}),
        ({"a": ANY}, {}),
        (match(Lazy, later=ANY), Lazy("a")),
        # Compounds are of the type that they are of.
        ((), []),
        ((), "a"),
        ((ANY,), "a"),
        (("a",), ["a"]),
        ({}, ()),
        ({0: "a"}, ("a",)),
        (("a",), {0: "a"}),
        (Reading, Alarm("roof")),
        (Reading, Indoors("roof", 20.5)),
        (Reading, Reading),
        (match(Reading, sensor=("roof",)), ROOF),
        (Alarm, ("roof",)),
        (("roof",), Alarm("roof")),
        # A constant is no prefix, and a compound no constant.
        ("a", ("a",)),
        ((), None),
        (None, ()),
    ],
    ids=repr,
)
def test_it_does_not_match(pattern: object, value: object) -> None:
    assert shown(pattern, value) is NOTHING
    assert shown(capture(pattern), value) is NOTHING


def test_a_mapping_is_not_added_to_by_looking() -> None:
    mapping: defaultdict[str, int] = defaultdict(int)
    assert shown({"a": ANY}, mapping) is NOTHING
    assert mapping == {}


def test_captures_come_depth_first_and_the_outer_before_the_inner() -> None:
    pattern = (capture(), capture(("a", capture(), capture((ANY, capture())))), ANY, capture("z"))
    value = (1, ("a", 2, (3, 4)), 5, "z")
    assert shown(pattern, value) == (1, ("a", 2, (3, 4)), 2, (3, 4), 4, "z")


def test_captures_of_a_class_come_in_the_order_of_its_fields() -> None:
    pattern = match(Reading, celsius=capture(), sensor=capture())
    assert shown(pattern, ROOF) == ("roof", 20.5)


def test_captures_of_a_mapping_come_in_the_order_of_its_keys() -> None:
    """As Preserves orders atoms; not by their looks, which would have 10 before 9."""
    keys = [False, True, -1.5, 2.5, -3, 2, 9, 10, "", "B", "a", "it's", "z", b"\x00", b"a", None]
    keys = [key for key in keys if key not in (False, True)]  # 0 and 1 are the same keys
    value = {key: repr(key) for key in reversed(keys)}
    assert shown(dict.fromkeys(reversed(keys), capture()), value) == tuple(map(repr, keys))
    assert shown({True: capture(), -5.0: capture()}, {True: 1, -5.0: 2}) == (1, 2)


def test_keys_of_any_kind() -> None:
    class Odd:
        pass

    odd = Odd()
    keys = [odd, ("a", 1), frozenset({1}), None, Size.SMALL, ROOF, int]
    value = {key: n for n, key in enumerate(keys)}
    one = compile_pattern({key: n for n, key in enumerate(keys)})
    other = compile_pattern({key: n for n, key in reversed(list(enumerate(keys)))})
    assert one == other
    assert hash(one) == hash(other)
    assert shown(one, value) == value
    assert shown(one, {**value, odd: -1}) is NOTHING
    assert set(shown(dict.fromkeys(keys, capture()), value)) == set(range(len(keys)))


def test_a_pattern_that_captures_nothing_shows_the_whole() -> None:
    assert shown(ANY, ROOF) is ROOF
    assert shown(capture(), ROOF) == (ROOF,)
    assert shown(capture(Reading), ROOF) == (ROOF,)
    assert shown(match(Reading, sensor=capture("roof")), ROOF) == ("roof",)


def test_patterns_are_values() -> None:
    assert compile_pattern(("a", 1)) == Group(tuple, ((0, Literal(str, "a")), (1, Literal(int, 1))))
    assert compile_pattern(("a", 1)) != compile_pattern(("a", True))
    assert compile_pattern(ROOF) == match(Reading, sensor="roof", celsius=20.5, unit="C")
    assert len({compile_pattern({"a": 1, "b": 2}), compile_pattern({"b": 2, "a": 1})}) == 1
    assert capture(("a",)) == Capture(compile_pattern(("a",)))
    assert compile_pattern(capture()) == capture(ANY)
    assert repr(ANY) == "ANY"


def test_a_pattern_is_found_by_the_type_of_what_it_matches() -> None:
    """So that a pattern concerns no event of another type, and no publication in particular."""
    for pattern, type_ in (
        (("a",), tuple),
        ({"a": 1}, dict),
        (Reading, Reading),
        (capture(Reading), Reading),
        ("a", str),
        (capture(1), int),
        (None, type(None)),
        (Point(1, 2), Point),
        (ANY, None),
        (capture(), None),
    ):
        assert kind_wanted(take_apart(compile_pattern(pattern))) is type_


@pytest.mark.parametrize(
    ("pattern", "says"),
    [
        (int, "class int is not an attrs class"),
        (Point, "class Point is not an attrs class"),
        ([1], r"\[1\] cannot be a pattern"),
        ({1}, r"\{1\} cannot be a pattern"),
        (("a", [1]), r"\[1\] cannot be a pattern"),
        ({"a": {"b": object}}, "class object is not an attrs class"),
        (Pair([1]), r"\[1\] cannot be a pattern"),
        (1j, "cannot be a pattern"),
    ],
)
def test_what_cannot_be_a_pattern(pattern: object, says: str) -> None:
    with pytest.raises(PatternError, match=says):
        compile_pattern(pattern)


def test_a_field_that_is_not_there() -> None:
    with pytest.raises(PatternError, match="Reading has no field 'kelvin'; it has sensor, celsius"):
        match(Reading, kelvin=1)
    with pytest.raises(PatternError, match="Lazy has no field 'shouted'"):
        match(Lazy, shouted="A")
    with pytest.raises(PatternError, match="wants an attrs class, not <class 'int'>"):
        match(int)


@STEADY
@given(PATTERNS, VALUES)
def test_taken_apart_it_matches_the_same(pattern: Pattern, value: object) -> None:
    found = shown(pattern, value)
    assert (None if found is NOTHING else (identity(found),)) == shown_of(pattern, value)
    if found is not NOTHING:
        wanted = kind_wanted(take_apart(pattern))
        assert wanted in (None, dict, type(value))
