"""The demo's exit status hangs on its verdict: each single thing that is wrong must turn it."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
from rich.console import Console

from clearfunds import Profile
from clearfunds._cli._demo._flights import INTERESTS, Flight
from clearfunds._cli._demo._ledger_view import LedgerView
from clearfunds._cli._demo._progress import Progress, Subscriber
from clearfunds._cli._demo._receipts import Receipts
from clearfunds._cli._demo._screen import line, screen
from clearfunds._cli._demo._summary import judge, outcome

FLIGHTS = [
    Flight("EWR", "UA", "flights/EWR/UA", b"1"),
    Flight("JFK", "B6", "flights/JFK/B6", b"2"),
]


def page(**changes: Any) -> LedgerView:
    """Return a ledger as the relay shows it while the archive reads nothing."""
    row = {"items": 1003, "bytes": 300_900}
    account = {
        "name": "mqtt+tcp://127.0.0.1:1883/-/publisher",
        "state": "throttled",
        "debt": row,
        "peak": {"items": 1007, "bytes": 302_100},
        "limit": {"items": 1000, "bytes": 8 << 20},
        "waiting_seconds": 1.5,
        "waited_seconds": 4.25,
        "blame": {
            "mqtt+tcp://127.0.0.1:1883/-/archive": 4.0,
            "mqtt+tcp://127.0.0.1:1883/-/delta": 0.25,
        },
    }
    whole: dict[str, Any] = {
        "totals": {"debt": row, "waiting_readers": 1},
        "accounts": [account],
        "matrix": [
            {
                "account": account["name"],
                "holder": "mqtt+tcp://127.0.0.1:1883/-/archive",
                "items": 1003,
                "bytes": 300_900,
                "oldest_seconds": 1.5,
            }
        ],
        "holders": [
            {"name": "a/-/archive", "dropped": {"items": 1}, "stored": {"items": 12}},
            {"name": "a/-/delta", "dropped": {"items": 0}, "stored": {"items": 0}},
        ],
        "audit": {"balanced": True, "discrepancies": []},
    }
    return attrs.evolve(LedgerView.parse(whole), **changes)


@pytest.fixture
def done() -> Progress:
    subscribers = [Subscriber(i, Receipts(i.select(FLIGHTS))) for i in INTERESTS]
    for subscriber in subscribers:
        for flight in subscriber.interest.select(FLIGHTS):
            subscriber.receipts.take(flight.topic, flight.payload)
    return Progress(
        total=2,
        profile=Profile.LOSSLESS,
        limit_items=1000,
        subscribers=subscribers,
        published=2,
        seconds=2.0,
    )


def test_all_well(done: Progress) -> None:
    verdict = judge(done, page(debt_items=0))
    assert verdict.ok
    text = "\n".join(verdict.lines)
    assert "published   2 of 2 flights in 2.0 s" in text
    assert "lost        0" in text
    assert "1,007" in text
    assert "limit of 1,000" in text
    assert "4.2 s" in text
    assert "4.0 s on archive" in text
    assert "every message in a queue is owed for by its publisher; 0 still owed" in text
    assert "spilled     12 messages for archive" in text
    assert outcome(done) == "the publisher waited 4.2 s for archive; nothing was lost"


def test_not_all_published(done: Progress) -> None:
    done.published = 1
    assert not judge(done, page(debt_items=0)).ok


def test_one_lost(done: Progress) -> None:
    done.subscribers[3].receipts.expected += 1
    verdict = judge(done, page(debt_items=0))
    assert not verdict.ok
    assert "lost        1" in "\n".join(verdict.lines)


def test_only_the_live_profile_may_lose_and_only_what_is_counted(done: Progress) -> None:
    done.subscribers[0].receipts.expected += 1
    assert not judge(done, page(debt_items=0)).ok
    done.profile = Profile.LIVE
    verdict = judge(done, page(debt_items=0))
    assert verdict.ok
    assert "lost        1, all of them counted" in "\n".join(verdict.lines)
    assert outcome(done).endswith("archive lost 1 messages")
    done.subscribers[3].receipts.expected += 1
    assert not judge(done, page(debt_items=0)).ok
    assert "1 of them by other subscribers" in outcome(done)


def test_one_too_many(done: Progress) -> None:
    done.subscribers[3].receipts.take("flights/LGA/UA", b"?")
    verdict = judge(done, page(debt_items=0))
    assert not verdict.ok
    assert "1 that should not have come" in "\n".join(verdict.lines)


def test_books_that_do_not_balance(done: Progress) -> None:
    verdict = judge(done, page(debt_items=0, balanced=False, discrepancies=("archive: 3 too few",)))
    assert not verdict.ok
    assert "they do not balance: archive: 3 too few" in "\n".join(verdict.lines)


def test_something_is_still_owed(done: Progress) -> None:
    assert not judge(done, page(debt_items=1)).ok


def test_no_ledger(done: Progress) -> None:
    assert not judge(done, None).ok


def test_the_screen_says_who_owes_who_holds_and_who_waits(done: Progress) -> None:
    done.ledger = page()
    done.subscribers[0].pausing = True
    console = Console(width=80)
    with console.capture() as capture:
        console.print(screen(done))
    text = capture.get()
    debtor = next(row for row in text.splitlines() if "publisher" in row)
    assert "1,003" in debtor
    assert "throttled" in debtor
    assert "…" not in text
    rows = [row for row in text.splitlines() if "archive" in row]
    assert "1,003" in rows[0]
    assert "pauses" in rows[0]
    assert "1.5 s" in rows[0]


def test_the_plain_line_says_the_same(done: Progress) -> None:
    done.ledger = page()
    done.subscribers[0].pausing = True
    text = line(done)
    assert "publisher owes 1,003 of 1,000" in text
    assert "held by archive 1,003" in text
    assert "publisher waits for 1.5 s" in text
    assert "archive reads nothing" in text
    assert "\n" not in text
