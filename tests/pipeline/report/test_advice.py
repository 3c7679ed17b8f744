"""What becomes of the tables: who is to have less, and who is to keep what it has."""

from __future__ import annotations

from typing import Any

import pytest

from clearfunds.pipeline.report._book import Book
from clearfunds.pipeline.report._run import advise, own_limits

pa: Any = pytest.importorskip("pyarrow")


def book(**tables: list[dict[str, Any]]) -> Book:
    return Book({name: pa.Table.from_pylist(rows) for name, rows in tables.items()})


def recommended(account: str, advice: str, p99: float = 900.0) -> dict[str, Any]:
    return {
        "account": account,
        "holder": "slow",
        "items_per_s": None if advice == "keep" else 100.0,
        "bytes_per_s": None if advice == "keep" else 1e5,
        "p99_ms": p99,
        "limit_items": 20,
        "limit_bytes": 20_000,
        "advice": advice,
    }


def test_the_latest_come_first_and_who_is_in_time_is_left_alone() -> None:
    rows = [recommended("a", "lower"), recommended("b", "floor", 2000.0), recommended("c", "keep")]
    now = [{"account": "a", "limit_items": 10_000, "limit_bytes": None}]
    first, second = advise(book(recommended_limits=rows, accounts_now=now))
    assert (first.account, first.floor, first.now_items) == ("b", True, None)
    assert (second.account, second.floor, second.now_items) == ("a", False, 10_000)
    assert (second.limit_items, second.limit_bytes, second.holder) == (20, 20_000, "slow")


def test_who_has_a_lower_limit_than_others_keeps_it() -> None:
    rows: list[dict[str, Any]] = [
        {"account": "server", "limit_items": None, "limit_bytes": 1},
        {"account": "mqtt:1/-/a", "limit_items": 50, "limit_bytes": 8_000},
        {"account": "mqtt:1/-/b", "limit_items": 100, "limit_bytes": 8_000},
        {"account": "mqtt:1/-/c", "limit_items": 100, "limit_bytes": 700},
    ]
    assert own_limits(book(accounts_now=rows)) == {
        "mqtt:1/-/a": (50, 8_000),
        "mqtt:1/-/c": (100, 700),
    }
    rows.append({"account": "mqtt:1/-/d", "limit_items": None, "limit_bytes": 8_000})
    assert len(own_limits(book(accounts_now=rows))) == 3
    assert own_limits(book()) == {}
