"""The page: what it says of some figures, and that nobody's name can do anything in it."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from typing import Any

import pytest

from clearfunds.pipeline.report._book import Book
from clearfunds.pipeline.report._limits import Advice, as_toml
from clearfunds.pipeline.report._page import SHOWN, Report, page

pa: Any = pytest.importorskip("pyarrow")

BEGAN = datetime(2026, 11, 21, 14, 2, 10, tzinfo=UTC)
NEWS, TICKER = "mqtt:1883/press/news", "mqtt:1883/press/ticker"
ARCHIVE, MAP = "mqtt:1883/press/archive", "mqtt:1883/weather/map"
VOID = {"meta", "br"}


def ns(seconds: float) -> int:
    return int((BEGAN.timestamp() + seconds) * 1e9)


def figures(account: str = NEWS, holder: str = ARCHIVE, topic: str = "news") -> dict[str, Any]:
    """A minute in which one account waited for one holder."""
    overview = {
        "began_ns": ns(0),
        "ended_ns": ns(60),
        "rows": 900,
        "items": 9000.0,
        "bytes": 3e7,
        "accounts": 2,
        "holders": 2,
        "weight": 1.0,
        "step_ns": 10**9,
    }
    debts: list[dict[str, Any]] = [
        {"at": BEGAN + timedelta(seconds=n), "account": who, "debt_items": n, "debt_bytes": n << 14}
        for n in range(1, 61)
        for who in (account, TICKER)
    ]
    peak = {"peak_items": 60, "peak_items_at_ns": ns(60), "peak_bytes": 1 << 20}
    return {
        "overview": [overview],
        "outcomes": [
            {"outcome": "delivered", "items": 8900.0, "bytes": 2.9e7},
            {"outcome": "written_off", "items": 100.0, "bytes": 1e6},
        ],
        "debt_over_time": debts,
        "debt_total": [
            {"at": row["at"], "debt_bytes": 2 * row["debt_bytes"]} for row in debts[::2]
        ],
        "peak_debt": [{"account": account, **peak, "peak_bytes_at_ns": ns(59)}],
        "accounts_now": [{"account": account, "limit_items": 100, "limit_bytes": None}],
        "hold_percentiles": [
            hold(holder, 50.0, 400.0, 1350.0, 2000.0),
            hold(MAP, 0.1, 0.4, 0.9, 3.0),
        ],
        "blame": [
            {"account": account, "holder": holder, "byte_seconds": 6e7, "item_seconds": 6e3},
            {"account": TICKER, "holder": MAP, "byte_seconds": 2e7, "item_seconds": 2e3},
        ],
        "stall_time": [{"account": account, "culprit": holder, "stalls": 12, "seconds": 41.5}],
        "fan_out": [
            {"account": account, "topic": topic, "published": 1000.0, "copies": 9000.0}
            | {"amplification": 9.0}
        ],
        "fairness": [{"fairness_items": 0.9, "fairness_bytes": 0.8}],
        "tenants": [
            {"tenant": account, "items": 8000.0, "bytes": 2e7},
            {"tenant": TICKER, "items": 900.0, "bytes": 9e6},
        ],
    }


def hold(holder: str, p50: float, p90: float, p99: float, longest: float) -> dict[str, Any]:
    times = {"p50_ms": p50, "p90_ms": p90, "p99_ms": p99, "max_ms": longest}
    return {"holder": holder, "kind": "outlet", "items": 4500.0, **times}


def advice(account: str = NEWS) -> Advice:
    return Advice(account, ARCHIVE, 1350.0, 150.0, 5e5, 12, 40_000, 100, None)


def written(
    tables: dict[str, Any], advices: tuple[Advice, ...] = (), source: str = "/var/journal"
) -> str:
    book = Book({name: pa.Table.from_pylist(rows) for name, rows in tables.items() if rows})
    toml = as_toml(advices, target_ms=100, heading=[])
    return page(
        Report(
            source=source, made_ns=ns(90), target_ms=100.0, book=book, advices=advices, toml=toml
        )
    )


class Parsed(HTMLParser):
    """What a browser sees: every tag closed, no script, no handler, no address of elsewhere."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.text = ""
        self.feed(source)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        for name, value in attrs:
            assert not name.startswith("on")
            if name in ("href", "src", "action", "xlink:href"):
                assert value is not None
                assert value.startswith("#")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.text += data


def test_it_says_who_owed_who_held_and_who_blocked_whom() -> None:
    seen = Parsed(written(figures(), (advice(),)))
    text = re.sub(r"\s+", " ", seen.text)
    assert f"{NEWS} waited 41.5 s for {ARCHIVE}." in text
    assert f"{ARCHIVE} held 75 % of all that was owed, 977 KiB on average." in text
    assert f"{ARCHIVE} held them for 1.35 s or longer" in text
    assert "100 did not (written off 100)" in text
    assert "Jain's index is 0.80 over 2 tenants" in text
    assert "\u00d7 9" in text
    assert '"mqtt:1883/press/news=12,40000",' in text
    assert "2026-11-21, 14:02:10 to 14:03:10 UTC" in text


def test_it_needs_nothing_from_anywhere() -> None:
    html = written(figures(), (advice(),))
    seen = Parsed(html)
    assert seen.tags.isdisjoint({"script", "link", "img", "iframe", "object", "form", "base"})
    assert "url(" not in html
    assert "http://" not in html
    assert "https://" not in html


NASTY = (
    "</title></style><script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "a' onmouseover='alert(1)",
    "mqtt:1883/-/\u202eevil\x1b[2J\n",
    "]]>&lt;&#60;",
)


@pytest.mark.parametrize("nasty", NASTY)
def test_names_of_others_are_only_text(nasty: str) -> None:
    plain = Parsed(written(figures(), (advice(),)))
    html = written(
        figures(nasty, f"{nasty}holder", f"{nasty}topic"),
        (advice(f"mqtt:1883/-/{nasty}"),),
        source=nasty,
    )
    seen = Parsed(html)
    assert seen.tags == plain.tags
    for char in "\u202e\x1b":
        assert char not in html
    shown = nasty.replace("\u202e", "\\u202e").replace("\x1b", "\\x1b").replace("\n", "\\n")
    assert shown in seen.text
    assert f"{shown}topic" in seen.text


def test_a_quiet_time_is_said_to_be_one() -> None:
    tables = figures() | {"stall_time": [], "hold_percentiles": [hold(MAP, 0.1, 0.2, 0.3, 0.4)]}
    text = Parsed(written(tables)).text
    assert "Nobody had to wait" in text
    assert "Every holder was done with 99 % of its deliveries within 100 ms." in text
    assert "Nothing: with the present limits" in text
    assert "account_limit" not in text


def test_no_rows_at_all() -> None:
    assert "Nothing has been settled yet" in Parsed(written({})).text
    tables = figures()
    nothing = dict.fromkeys(tables["overview"][0], 0)
    assert "Nothing has been settled yet" in Parsed(written({"overview": [nothing]})).text


def test_only_what_was_settled() -> None:
    tables = {name: rows for name, rows in figures().items() if name in ("overview", "outcomes")}
    Parsed(written(tables))


def test_of_many_the_first_are_shown_and_the_others_counted() -> None:
    tables = figures()
    many = [f"mqtt:1883/-/client-{number}" for number in range(SHOWN + 5)]
    tables["blame"] = [
        {"account": who, "holder": f"{who}-h", "byte_seconds": 1e6 - n, "item_seconds": 1.0}
        for n, who in enumerate(many)
    ]
    tables["debt_over_time"] = [
        {"at": at["at"], "account": who, "debt_items": 1, "debt_bytes": 100}
        for at in tables["debt_total"]
        for who in many
    ]
    text = Parsed(written(tables)).text
    assert many[SHOWN - 1] in text
    assert f"{many[SHOWN]} " not in text
    assert "5 accounts more in tables/." in text
    assert "5 accounts and 12 holders more in tables/blame." in text
    assert "14 others: at most" in text


def test_a_page_that_is_written_again_says_so_to_the_browser() -> None:
    book = Book({})
    html = page(
        Report(source="x", made_ns=0, target_ms=1.0, book=book, advices=(), toml="", refresh=10.0)
    )
    assert '<meta http-equiv="refresh" content="10">' in html
    assert "rewritten every 10 s" in html
