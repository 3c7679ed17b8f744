"""What an event is charged for when nobody says."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, cast

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clearfunds.accounts import Ledger, measure


@attrs.frozen
class Reading:
    sensor: str
    values: tuple[float, ...]


@attrs.frozen
class Nothing:
    pass


class Plain:
    def __init__(self) -> None:
        self.text = "not looked at"


class Sized:
    nbytes = 1234


@pytest.mark.parametrize(
    ("event", "nbytes"),
    [
        (b"", 0),
        (b"12345", 5),
        (bytearray(7), 7),
        (memoryview(bytes(100))[10:], 90),
        ("text", 4),
        (None, 8),
        (True, 8),
        (12, 8),
        (1.5, 8),
        ((), 8),
        ((b"123", "45", 6), 8 + 3 + 2 + 8),
        ([b"123"], 8 + 3),
        (frozenset({"abc"}), 8 + 3),
        ({"key": b"value", "k": 1}, 8 + 3 + 5 + 1 + 8),
        (MappingProxyType({"key": b"value"}), 8 + 8),
        (Reading("thermometer", (1.0, 2.0)), 8 + 11 + (8 + 16)),
        (Nothing(), 8),
        (Plain(), 8),
        (Sized(), 1234),
        (Sized, 1234),
    ],
)
def test_measure(event: object, nbytes: int) -> None:
    assert measure(event) == nbytes


def test_what_is_nested_too_deep_counts_as_an_atom() -> None:
    event: object = bytes(1000)
    for _ in range(8):
        event = (event,)
    assert measure(event) == 8 * 8 + 1000
    assert measure((event,)) == 9 * 8

    loop: list[Any] = []
    loop.append(loop)
    assert measure(loop) == 9 * 8


events = st.recursive(
    st.none() | st.binary() | st.text() | st.integers() | st.floats(),
    lambda children: (
        st.tuples(children, children) | st.lists(children) | st.dictionaries(st.text(), children)
    ),
    max_leaves=20,
)


@given(event=events)
def test_a_whole_costs_at_least_its_parts(event: object) -> None:
    cost = measure(event)
    assert cost >= 0
    if isinstance(event, (tuple, list)):
        parts = cast("list[object]", event)
        assert cost == 8 + sum(measure(part, 7) for part in parts)
    if isinstance(event, Mapping):
        assert cost >= 8 + sum(len(key) for key in cast("Mapping[str, object]", event))


def test_loans_and_turns_measure_what_is_not_said(ledger: Ledger) -> None:
    account = ledger.open("a")
    with account.lend((b"12345",)) as _:
        assert account.debt_bytes == 13
    with account.lend(b"12345", nbytes=2):
        assert account.debt_bytes == 2
    with account.turn(b"12345"):
        assert account.debt_bytes == 5
    with account.turn():
        assert account.debt_bytes == 0
