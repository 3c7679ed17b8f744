"""The last minutes: kept although nobody watches, bounded, and cheap."""

from __future__ import annotations

import json
import tracemalloc
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest
import trio

from clearfunds.accounts import Ledger, LedgerStatistics, Limit
from clearfunds.accounts.watch._core_shares import HISTORY_SHARE
from clearfunds.pages import Pages, Request, _history
from clearfunds.pages._cooperative import Pace
from clearfunds.pages._history import History, Names, Point
from clearfunds.pages._survey import NAME_CHARACTERS
from clearfunds.testing import Box

if TYPE_CHECKING:
    from collections.abc import Callable

    from clearfunds.accounts import Account, Holder


def send(account: Account, holder: Holder, items: int) -> None:
    with account.turn(items=1, nbytes=0) as turn:
        turn.send(holder, b"", items=items, nbytes=items)


async def kept_for(
    history: History, seconds: float, each: Callable[[int], None] | None = None
) -> None:
    """Let it be kept for some whole seconds, half of each before something happens."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(history.watch)
        await trio.sleep(0.5)
        for second in range(int(seconds)):
            if each is not None:
                each(second)
            await trio.sleep(1)
        nursery.cancel_scope.cancel()
    await trio.sleep(0.5)


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[Ledger]:
    """The ledgers whose totals were read."""
    read: list[Ledger] = []
    statistics = Ledger.statistics

    def reading(ledger: Ledger) -> LedgerStatistics:
        read.append(ledger)
        return statistics(ledger)

    monkeypatch.setattr(Ledger, "statistics", reading)
    return read


async def test_totals_and_the_largest_are_kept_although_nobody_watches(
    autojump_clock: object,
) -> None:
    ledger = Ledger()
    server = ledger.open("server", limit=Limit(items=100, bytes=None))
    pubs = [ledger.open(f"pub-{number}", parent=server) for number in range(3)]
    boxes = [Box(ledger, f"box-{number}") for number in range(2)]
    history = History(ledger)

    def cause(second: int) -> None:
        if second == 2:
            send(pubs[0], boxes[0], 10)
            send(pubs[1], boxes[1], 30)
            send(pubs[1], boxes[0], 5)
        if second == 8:
            boxes[1].settle_all()

    await kept_for(history, 13, cause)
    assert [point.debt_items for point in history.points] == [0] * 3 + [45] * 6 + [15] * 5
    assert [point.headroom for point in history.points] == [1.0] * 3 + [0.55] * 6 + [0.85] * 5
    # Three turns, and what was in the box.
    assert history.points[-1].finished_items - history.points[0].finished_items == 33
    assert [names.accounts for names in history.names] == [
        (),
        (("pub-1", 35), ("pub-0", 10)),
        (("pub-0", 10), ("pub-1", 5)),
    ]
    assert [names.holders for names in history.names] == [
        (),
        (("box-1", 30), ("box-0", 15)),
        (("box-0", 15),),
    ]
    boxes[0].settle_all()
    ledger.audit()


async def test_it_goes_back_five_minutes_and_no_farther(
    autojump_clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    # However long a look takes on this machine, the next one comes a second later.
    monkeypatch.setattr(_history, "HISTORY_SHARE", 1e9)
    ledger = Ledger()
    pub, box = ledger.open("pub"), Box(ledger, "box")
    history = History(ledger)
    await kept_for(history, 400, lambda _: send(pub, box, 1))
    assert len(history.points) == 300
    assert len(history.names) == 60
    assert history.points[-1].debt_items == 400
    assert history.points[0].debt_items == 101
    assert history.names[0].accounts[0][1] <= 106
    # Each name stands once in what a browser gets.
    brief = history.brief()
    assert brief["names"] == ["pub", "box"]
    latest = history.names[-1].accounts[0][1]
    assert brief["tops"][-1][1:] == ([(0, latest)], [(1, latest)], [], [])
    assert len(json.dumps(brief)) < 36_000
    box.settle_all()
    ledger.audit()


async def test_nothing_is_read_while_nothing_moves(
    autojump_clock: object, looks: list[Ledger]
) -> None:
    ledger = Ledger()
    pub, box = ledger.open("pub"), Box(ledger, "box")
    history = History(ledger)
    await kept_for(history, 60)
    assert len(history.points) == 61
    assert len(looks) == 1
    looks.clear()
    await kept_for(history, 3, lambda second: None if second else send(pub, box, 1))
    assert history.points[-1].debt_items == 1
    assert len(looks) == 3
    box.settle_all()
    await kept_for(history, 1)
    looks.clear()
    await kept_for(history, 10)
    assert history.points[-1].debt_items == 0
    assert not looks
    ledger.audit()


async def test_a_reader_that_waits_is_in_each_point(autojump_clock: object) -> None:
    ledger = Ledger(clock=trio.current_time)
    pub = ledger.open("pub", limit=Limit(items=5, bytes=None))
    box = Box(ledger, "box")
    history = History(ledger)
    send(pub, box, 10)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pub.ensure_clear_funds)
        await kept_for(history, 10)
        nursery.cancel_scope.cancel()
    assert [point.waiting for point in history.points] == [1] * 11
    assert [point.waited_seconds for point in history.points][:3] == [0.0, 1.0, 2.0]
    assert history.points[0].headroom == -1.0
    await kept_for(history, 1)
    assert history.points[-1].waiting == 0
    box.settle_all()
    ledger.audit()


async def test_costly_looks_are_rarer(
    autojump_clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Pace, "busy_seconds", 0.05)
    history = History(Ledger())
    await kept_for(history, 95)
    every = 0.05 / HISTORY_SHARE
    assert len(history.points) == 1 + 95 // every


async def test_long_names_are_cut(autojump_clock: object) -> None:
    ledger = Ledger()
    pub, box = ledger.open("p" * 1000), Box(ledger, "b" * 1000)
    send(pub, box, 1)
    history = History(ledger)
    await kept_for(history, 1)
    ((_, accounts, holders, *_),) = history.names
    assert [len(name) for name, _ in (*accounts, *holders)] == [NAME_CHARACTERS] * 2
    box.settle_all()
    ledger.audit()


def ends_nobody(*_: object) -> bool:
    return False


def fails(_: object) -> None:
    raise ZeroDivisionError


async def test_a_failure_while_looking_is_counted_and_it_goes_on(
    autojump_clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = Ledger()
    ledger.faults.ends.append(ends_nobody)  # a server's ends connections
    pages = Pages(ledger)
    pub, box = ledger.open("pub"), Box(ledger, "box")
    statistics = Ledger.statistics
    with monkeypatch.context() as patched:
        patched.setattr(Ledger, "statistics", fails)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(pages.watch)
            await trio.sleep(1)
            patched.setattr(Ledger, "statistics", statistics)
            send(pub, box, 1)
            await trio.sleep(10)
            nursery.cancel_scope.cancel()
    assert ledger.faults.unowned >= 1
    assert (await history_of(pages))["totals"][-1]["debt_items"] == 1
    box.settle_all()
    ledger.audit()


async def history_of(pages: Pages) -> Any:
    """Read `/history.json`."""
    response = await pages.handlers()["/history.json"](Request.parse("GET", "/history.json"))
    assert response.status == 200
    assert not isinstance(response.body, bytes)
    return json.loads(b"".join([piece async for piece in response.body]))


async def test_the_page_is_json_with_a_name_to_each_figure(autojump_clock: object) -> None:
    ledger = Ledger()
    pages = Pages(ledger)
    assert await history_of(pages) == {"totals": [], "tops": [], "hour": []}
    pub, box = ledger.open('a "pub"'), Box(ledger, "box")
    send(pub, box, 7)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pages.watch)
        await trio.sleep(5.5)
        nursery.cancel_scope.cancel()
    seen = await history_of(pages)
    assert len(seen["totals"]) == 6
    assert {**seen["totals"][0], "time": 0} == {
        "time": 0,
        "debt_items": 7,
        "waiting": 0,
        "finished_items": 1,
        "waited_seconds": 0,
        "headroom": 0.9999,
    }
    assert [{**top, "time": 0} for top in seen["tops"]] == 2 * [
        {
            "time": 0,
            "accounts": [{"name": 'a "pub"', "debt_items": 7}],
            "holders": [{"name": "box", "items": 7}],
            "blockers": [],
            "waiters": [],
        }
    ]
    assert sum(1 for step in seen["hour"] if step["debt_items"] == 7) >= 1
    assert seen["hour"][-1]["holders"] == [{"name": "box", "items": 7}]
    box.settle_all()
    ledger.audit()


async def test_an_hour_is_kept_as_the_worst_of_each_ten_seconds(
    autojump_clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever opens the page long after it is over sees who was waited on, and when."""
    monkeypatch.setattr(_history, "HISTORY_SHARE", 1e9)
    began = trio.current_time()
    monkeypatch.setattr(_history, "_now", lambda: 1_000_000 + round(trio.current_time() - began, 3))
    ledger = Ledger(clock=trio.current_time)
    pub, busy = ledger.open("pub", limit=Limit(items=5, bytes=None)), ledger.open("busy")
    culprit, other = Box(ledger, "culprit"), Box(ledger, "other")
    history = History(ledger)
    async with trio.open_nursery() as nursery:

        def cause(second: int) -> None:
            if second == 100:
                send(busy, other, 50)
                send(pub, culprit, 10)
                nursery.start_soon(pub.ensure_clear_funds)
            if second == 103:
                culprit.settle_all()
                other.settle_all()

        await kept_for(history, 1000, cause)
    assert len(history.points) == 300
    assert len(history.hour) == 101
    assert [step.time for step in history.hour][:2] == [1_000_000, 1_000_010]
    worst = history.hour[10]
    assert (worst.debt_items, worst.waiting, worst.headroom) == (60, 1, -1.0)
    # Although the wait began between two looks, and lasted for less than the time between them.
    assert worst.blockers == (("culprit", 10),)
    # And who waited.
    assert [name for name, _ in worst.waiters] == ["pub"]
    assert dict(worst.accounts) == {"busy": 50, "pub": 10}
    assert worst.waited_seconds == pytest.approx(3.0, abs=0.6)
    assert [step.waiting for step in history.hour if step is not worst] == [0] * 100
    assert history.hour[11].debt_items == 0
    await kept_for(history, 3000)
    assert len(history.hour) == 360
    assert history.brief()["hour"][0][1:3] == (0, 0)
    ledger.audit()


def worst_of(characters: int) -> int:
    """Return what an hour takes in which no name comes twice, in bytes."""
    numbers = count()

    def rows(most: int) -> tuple[tuple[str, int], ...]:
        return tuple((f"{next(numbers):0{characters}}", 10**6 + n) for n in range(most))

    tracemalloc.start()
    history = History(Ledger())
    before = tracemalloc.get_traced_memory()[0]
    for second in range(3600):
        history.keep(Point(1e9 + second, 10**6 + second, 1000, second, 0.5 + second, 0.5))
        if not second % 5:
            history.keep_names(Names(1e9 + second, rows(10), rows(10), rows(5), rows(5)))
    used = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    return used


def test_what_is_kept_is_bounded_in_bytes() -> None:
    """As this file's docstring says."""
    assert worst_of(24) < 1.7 * 2**20
    assert worst_of(NAME_CHARACTERS) < 3.0 * 2**20
