"""Limits are values: what they accept, and the marks they come to."""

from __future__ import annotations

import attrs
import pytest

from clearfunds.accounts import DEFAULT_LIMIT_BYTES, DEFAULT_LIMIT_ITEMS, NO_LIMIT, Limit

UNLIMITED = 1 << 62


def test_the_default_limit() -> None:
    limit = Limit()
    assert (limit.items, limit.bytes) == (DEFAULT_LIMIT_ITEMS, DEFAULT_LIMIT_BYTES)
    assert (DEFAULT_LIMIT_ITEMS, DEFAULT_LIMIT_BYTES) == (50_000, 8 << 20)
    assert limit.marks() == (50_000, 8 << 20, 25_000, 4 << 20)  # the lower mark at half


@pytest.mark.parametrize(
    ("limit", "marks"),
    [
        (Limit(items=5, bytes=9), (5, 9, 2, 4)),
        (Limit(items=0, bytes=1), (0, 1, 0, 0)),
        (Limit(items=5, low_items=5, bytes=9, low_bytes=0), (5, 9, 5, 0)),
        (Limit(items=None, bytes=100), (UNLIMITED, 100, UNLIMITED // 2, 50)),
        (NO_LIMIT, (UNLIMITED, UNLIMITED, UNLIMITED // 2, UNLIMITED // 2)),
    ],
)
def test_marks(limit: Limit, marks: tuple[int, int, int, int]) -> None:
    assert limit.marks() == marks


@pytest.mark.parametrize("field", ["items", "bytes", "low_items", "low_bytes"])
def test_negative_limits_are_refused(field: str) -> None:
    with pytest.raises(
        ValueError, match=f"{field} must be at least 0, or None for no limit, not -"
    ):
        Limit(**{field: -1})


@pytest.mark.parametrize("unit", ["items", "bytes"])
@pytest.mark.parametrize("high", [4, None])
def test_a_lower_mark_is_not_above_its_limit(unit: str, high: int | None) -> None:
    with pytest.raises(ValueError, match=f"low_{unit}=5 must not be above {unit}={high}"):
        Limit(**{unit: high, f"low_{unit}": 5})


def test_a_limit_is_a_value() -> None:
    assert Limit(items=5) == Limit(items=5)
    assert Limit(items=5) != Limit(items=5, low_items=2)
    assert len({Limit(items=5), Limit(items=5), NO_LIMIT}) == 2
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        Limit().items = 3  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]
    assert attrs.evolve(Limit(items=5), bytes=None) == Limit(items=5, bytes=None)
