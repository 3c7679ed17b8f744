"""What the live page is told of the books: that it is right, bounded, and taken seldom enough."""

from __future__ import annotations

import json
from functools import partial
from time import perf_counter, process_time
from typing import TYPE_CHECKING, Any

import pytest
import trio
import trio.testing

from clearfunds.accounts import (
    NO_LIMIT,
    Account,
    Forecast,
    Holder,
    Ledger,
    Limit,
    Outcome,
    StuckPolicy,
    watch_patience,
    watch_slow_waits,
)
from clearfunds.accounts.watch._core_shares import LIVE_SHARE
from clearfunds.dataspace import Mailbox
from clearfunds.pages import Pages, Request
from clearfunds.pages._about import about
from clearfunds.pages._cooperative import STRETCH_SECONDS_MAX, Pace
from clearfunds.pages._events import EventStream, event, retry
from clearfunds.pages._live import BROWSERS_MAX, SCRIPTS, LivePage, Sampler
from clearfunds.pages._survey import (
    ACCOUNTS_MAX,
    FORECASTS_MAX,
    HOLDERS_MAX,
    NAME_CHARACTERS,
    RING_WAITERS_MAX,
    WAITED_ON_MAX,
    WAITS_MAX,
    survey,
)
from clearfunds.testing import Box, Clock
from tests.transports.peers import until

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from clearfunds.pages import ClientFacts
    from clearfunds.pages._survey import Survey


def send(account: Account, holder: Holder, items: int, nbytes: int) -> None:
    with account.turn(items=1, nbytes=0) as turn:
        turn.send(holder, b"", items=items, nbytes=nbytes)


async def look(ledger: Ledger) -> Survey:
    """Take a survey, and see that it is JSON as it is."""
    seen = await survey(ledger, Pace())
    assert json.loads(json.dumps(seen, allow_nan=False))["totals"] == seen["totals"]
    return seen


def parsed(data: bytes) -> tuple[str, Any]:
    """Read one event."""
    fields: dict[str, list[str]] = {}
    for line in data.decode().splitlines():
        name, _, value = line.partition(": ")
        fields.setdefault(name, []).append(value)
    return fields["event"][0], json.loads("\n".join(fields["data"]))


# -- the survey -----------------------------------------------------------------------------------


async def test_who_waits_on_whom_and_what_happens_next() -> None:
    clock = Clock(100.0)
    ledger = Ledger(clock=clock)
    server = ledger.open("server", limit=NO_LIMIT)
    pub = ledger.open("mqtt/pub", limit=Limit(items=10, bytes=1000, low_items=5), parent=server)
    quiet = ledger.open("mqtt/quiet", parent=server)
    archive = Box(ledger, "mqtt/archive", patience=20.0)
    mirror = Box(ledger, "mqtt/mirror", patience=20.0, policy=StuckPolicy.WAIT)
    idler = Box(ledger, "mqtt/idler")
    send(pub, archive, 4, 400)
    send(quiet, idler, 1, 1)
    clock.now = 103.0
    send(pub, archive, 1, 100)
    send(pub, mirror, 8, 80)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pub.ensure_clear_funds)
        await trio.testing.wait_all_tasks_blocked()
        clock.now = 104.5
        mirror.queue[0].settle(1)
        clock.now = 105.0
        seen = await look(ledger)
        nursery.cancel_scope.cancel()

    (wait,) = seen["waits"]
    assert wait["at"] == "mqtt/pub"
    assert wait["waiting"] == ["mqtt/pub"]
    assert wait["count"] == 1
    assert wait["seconds"] == 2.0
    assert (wait["debt_items"], wait["limit_items"], wait["low_items"]) == (12, 10, 5)
    assert (wait["limit_bytes"], wait["low_bytes"]) == (1000, 500)
    # Who stands still comes before who has more: waiting alone does not help there.
    stuck, moving = wait["on"]
    assert (stuck["name"], stuck["here_items"], stuck["here_bytes"]) == ("mqtt/archive", 5, 500)
    assert (stuck["policy"], stuck["patience"]) == ("disconnect", 20.0)
    # Idle for five seconds, but patience counts from when somebody began to wait.
    assert (stuck["idle_seconds"], stuck["left_seconds"]) == (5.0, 18.0)
    assert stuck["oldest_seconds"] == 5.0
    assert (moving["name"], moving["here_items"]) == ("mqtt/mirror", 7)
    assert (moving["idle_seconds"], moving["policy"]) == (0.5, "wait")

    assert [row["name"] for row in seen["holders"]] == [
        "mqtt/archive",
        "mqtt/mirror",
        "mqtt/idler",
    ]
    assert seen["holders"][2]["left_seconds"] is None
    assert [row["name"] for row in seen["accounts"]] == ["mqtt/pub", "mqtt/quiet"]
    assert seen["accounts"][0]["state"] == "throttled"
    assert seen["accounts"][0]["waiting_seconds"] == 2.0
    assert seen["accounts"][0]["oldest_seconds"] == 5.0
    assert [row["name"] for row in seen["levels"]] == ["server"]
    assert seen["levels"][0]["debt_items"] == 13
    assert seen["levels"][0]["limit_items"] is None
    # Who waits has no headroom left, which is said elsewhere.
    assert [row["name"] for row in seen["tightest"]] == ["mqtt/quiet"]
    assert [(row["waiting"], row["waiting_first"]) for row in seen["holders"]] == [
        (1, "mqtt/pub"),
        (1, "mqtt/pub"),
        (0, None),
    ]
    assert seen["holders"][0]["waiting_seconds"] == 2.0
    assert sorted(seen["cells"]) == [(0, 0, 5, 500, 5.0), (0, 1, 7, 70, 2.0), (1, 2, 1, 1, 5.0)]
    assert set(seen["more"].values()) == {0}


async def test_what_is_due_agrees_with_what_the_watch_does() -> None:
    """The seconds left run out when `overdue` finds the holder, and not before."""
    from clearfunds.accounts.watch._patience import overdue

    clock = Clock(100.0)
    ledger = Ledger(clock=clock)
    pub = ledger.open("pub", limit=Limit(items=1))
    box = Box(ledger, "box", patience=3.0)
    send(pub, box, 2, 2)
    clock.now = 110.0
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pub.ensure_clear_funds)
        await trio.testing.wait_all_tasks_blocked()
        clock.now = 112.0
        left = (await look(ledger))["waits"][0]["on"][0]["left_seconds"]
        assert left is not None
        assert left == 1.0
        assert overdue(ledger, clock.now + left - 0.01) == []
        assert [stuck.holder for stuck in overdue(ledger, clock.now + left)] == [box]
        nursery.cancel_scope.cancel()


async def test_those_who_wait_at_a_level_are_one_crowd() -> None:
    clock = Clock(100.0)
    ledger = Ledger(clock=clock)
    server = ledger.open("server", limit=Limit(items=3))
    accounts = [ledger.open(f"client {n}", limit=NO_LIMIT, parent=server) for n in range(6)]
    box = Box(ledger, "box", patience=float("inf"))
    for account in accounts:
        send(account, box, 1, 1)
    async with trio.open_nursery() as nursery:
        for account in accounts:
            nursery.start_soon(account.ensure_clear_funds)
            await trio.testing.wait_all_tasks_blocked()
        clock.now += 1.5
        seen = await look(ledger)
        nursery.cancel_scope.cancel()
    (wait,) = seen["waits"]
    assert (wait["at"], wait["count"]) == ("server", 6)
    assert wait["waiting"] == [f"client {n}" for n in range(4)]
    assert wait["on"][0]["left_seconds"] is None
    assert wait["on"][0]["patience"] is None
    assert seen["levels"][0]["waiting"] == 6
    assert seen["levels"][0]["waiting_seconds"] == 1.5


async def test_holders_of_one_name_are_one_row() -> None:
    ledger = Ledger()
    account = ledger.open("a")
    boxes = [Box(ledger, "box") for _ in range(2)]
    for number, box in enumerate(boxes, 1):
        send(account, box, number, number * 10)
    seen = await look(ledger)
    (row,) = seen["holders"]
    assert (row["name"], row["items"], row["bytes"], row["loans"]) == ("box", 3, 30, 2)
    assert [cell[:4] for cell in seen["cells"]] == [(0, 0, 3, 30)]


async def test_loans_that_nobody_has_and_open_turns_are_told_of() -> None:
    ledger = Ledger()
    account = ledger.open("a")
    loan = account.lend(b"x", items=2, nbytes=20)
    with account.turn(items=3, nbytes=30):
        seen = await look(ledger)
    loan.settle()
    assert {(row["name"], row["kind"], row["items"]) for row in seen["holders"]} == {
        ("(loose)", "loose", 2),
        ("router", "router", 3),
    }
    assert sorted(cell[2] for cell in seen["cells"]) == [2, 3]


async def test_whether_it_is_enough_that_one_is_given_up() -> None:
    ledger = Ledger()
    pub = ledger.open("pub", limit=Limit(items=10, bytes=1000, low_items=5))
    most, few = Box(ledger, "most"), Box(ledger, "few")
    send(pub, most, 9, 90)
    send(pub, few, 4, 40)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pub.ensure_clear_funds)
        await trio.testing.wait_all_tasks_blocked()
        (wait,) = (await look(ledger))["waits"]
        nursery.cancel_scope.cancel()
    assert {on["name"]: on["enough"] for on in wait["on"]} == {"most": True, "few": False}


async def test_what_has_happened_stays_for_who_looks_later() -> None:
    clock = Clock(100.0)
    ledger = Ledger(clock=clock)
    pub = ledger.open("pub", limit=Limit(items=1))
    box = Box(ledger, "box", patience=0.1)
    send(pub, box, 4, 44)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pub.ensure_clear_funds)
        nursery.start_soon(partial(watch_patience, ledger, every=0.01))
        nursery.start_soon(partial(watch_slow_waits, ledger, seconds=0.1))
        await trio.testing.wait_all_tasks_blocked()
        clock.now += 20.25
        await until(lambda: bool(ledger.incidents.latest()) and not pub.waiting)
        nursery.cancel_scope.cancel()
    clock.now += 10.0
    (row,) = (await look(ledger))["incidents"]
    assert row == {
        "ago_seconds": 10.0,
        "holder": "box",
        "given_up": True,
        "relieved": False,
        "kind": "box",
        "policy": None,
        "items": 4,
        "bytes": 44,
        "debtors": ["pub"],
        "debtors_more": 0,
        "idle_seconds": 20.25,
        "ring": 0,
        "why": None,
        "waits": 1,
        "cancelled": 0,
        "seconds": 20.25,
        "accounts": ["pub"],
        "accounts_more": False,
    }
    kind, page = parsed((await Sampler(ledger).next(0)).event)
    assert (kind, page["incidents"]) == ("sample", [row])
    # What was written off is not finished.
    assert page["totals"]["repaid_items"]["written_off"] == 4
    assert page["point"][3] == page["totals"]["repaid_items"]["delivered"]


async def test_what_became_of_who_fell_behind_is_told_as_it_goes_on() -> None:
    clock = Clock(100.0)
    ledger = Ledger(clock=clock)
    pub = ledger.open("pub", limit=Limit(items=1))
    mailbox = Mailbox(
        ledger, "box", patience=5.0, policy=StuckPolicy.DROP_OLDEST, retain_limit=Limit(items=1)
    )
    for _ in range(3):
        send(pub, mailbox, 1, 10)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pub.ensure_clear_funds)
        nursery.start_soon(partial(watch_patience, ledger, every=0.01))
        await trio.testing.wait_all_tasks_blocked()
        clock.now += 5.25
        await until(lambda: bool(ledger.incidents.latest()) and not pub.waiting)
        nursery.cancel_scope.cancel()
    (row,) = (await look(ledger))["incidents"]
    told = {key: row[key] for key in ("given_up", "relieved", "kind", "policy", "items", "bytes")}
    assert told == {
        "given_up": False,
        "relieved": True,
        "kind": "mailbox",
        "policy": "drop_oldest",
        "items": 2,
        "bytes": 20,
    }
    assert (row["debtors"], row["idle_seconds"], row["ring"]) == (["pub"], 5.25, 0)
    send(pub, mailbox, 1, 10)
    (row,) = (await look(ledger))["incidents"]
    assert row["items"] == 3


async def test_that_rings_are_not_looked_for_is_said() -> None:
    ledger = Ledger()
    server = ledger.open("server", limit=Limit(items=0))
    box = Box(ledger, "box")
    send(ledger.open("a", parent=server), box, 1, 1)
    assert (await look(ledger))["rings_sought"]
    async with trio.open_nursery() as nursery:
        for number in range(RING_WAITERS_MAX + 1):
            account = ledger.open(f"client {number}", parent=server)
            nursery.start_soon(account.ensure_clear_funds)
        await trio.testing.wait_all_tasks_blocked()
        assert not (await look(ledger))["rings_sought"]
        nursery.cancel_scope.cancel()


async def test_a_ring_is_told_of() -> None:
    clock = Clock(100.0)
    ledger = Ledger(clock=clock)
    accounts = {name: ledger.open(name, limit=Limit(items=4)) for name in ("a", "b")}
    # The ledger keeps no holder alive.
    boxes = {other: Box(ledger, f"to {other}") for other in accounts}
    for mine, other in (("a", "b"), ("b", "a")):
        boxes[other].owner = accounts[other]
        send(accounts[mine], boxes[other], 5, 50)
    async with trio.open_nursery() as nursery:
        for account in accounts.values():
            nursery.start_soon(account.ensure_clear_funds)
        await trio.testing.wait_all_tasks_blocked()
        clock.now += 2.0
        seen = await look(ledger)
        nursery.cancel_scope.cancel()
    assert seen["rings"] == [{"members": ["a", "b"], "count": 2, "seconds": 2.0}]
    assert {wait["at"]: wait["on"][0]["owner"] for wait in seen["waits"]} == {"a": "b", "b": "a"}


async def test_those_that_wait_the_longest_and_those_that_they_wait_on_come_first() -> None:
    """Also in the matrix, however many there are that owe more and do not wait."""
    clock = Clock(100.0)
    ledger = Ledger(clock=clock)
    large = [ledger.open(f"large {n}", limit=Limit(items=1000)) for n in range(100)]
    small = [ledger.open(f"small {n}", limit=Limit(items=4)) for n in range(30)]
    culprits = [Box(ledger, f"culprit {n}") for n in range(2)]
    full = Box(ledger, "full")
    for account in large:
        send(account, full, 900, 900)
    for number, account in enumerate(small):
        send(account, culprits[number % 2], 5, 5)
    async with trio.open_nursery() as nursery:
        for account in reversed(small):
            nursery.start_soon(account.ensure_clear_funds)
            await trio.testing.wait_all_tasks_blocked()
            clock.now += 1.0
        seen = await look(ledger)
        nursery.cancel_scope.cancel()
    first = [row["name"] for row in seen["accounts"]]
    assert first[:30] == [f"small {n}" for n in range(29, -1, -1)]
    assert first[30:] == [f"large {n}" for n in range(10)]
    assert [row["name"] for row in seen["holders"]] == ["culprit 1", "culprit 0", "full"]
    assert [row["waiting"] for row in seen["holders"]] == [15, 15, 0]
    assert [row["waiting_first"] for row in seen["holders"]] == ["small 29", "small 28", None]
    assert [row["waiting_seconds"] for row in seen["holders"]] == [30.0, 29.0, 0.0]
    rows = {seen["accounts"][cell[0]]["name"] for cell in seen["cells"]}
    assert rows == set(first[:16])


async def test_everything_is_bounded_and_what_is_left_out_is_said() -> None:
    ledger = Ledger(clock=Clock(100.0))
    server = ledger.open("server", limit=NO_LIMIT)
    accounts = [ledger.open(f"client {n}", limit=Limit(items=2), parent=server) for n in range(300)]
    boxes = [Box(ledger, f"box {n}") for n in range(200)]
    for number, account in enumerate(accounts):
        for other in range(10):
            send(account, boxes[(number + other) % 200], number + 1, 1)
    async with trio.open_nursery() as nursery:
        for account in accounts[100:200]:
            nursery.start_soon(account.ensure_clear_funds)
        await trio.testing.wait_all_tasks_blocked()
        seen = await look(ledger)
        nursery.cancel_scope.cancel()
    assert [row["name"] for row in seen["accounts"]] == [
        f"client {n}" for n in range(199, 199 - ACCOUNTS_MAX, -1)
    ]
    assert len(seen["holders"]) == HOLDERS_MAX
    assert len(seen["waits"]) == WAITS_MAX
    assert all(len(wait["on"]) == WAITED_ON_MAX for wait in seen["waits"])
    assert all(wait["on_more"] == 10 - WAITED_ON_MAX for wait in seen["waits"])
    assert seen["more"] == {
        "accounts": 300 - ACCOUNTS_MAX,
        "holders": 200 - HOLDERS_MAX,
        "waits": 100 - WAITS_MAX,
        "rings": 0,
        "forecasts": 0,
        "levels": 0,
    }
    assert len(json.dumps(seen)) < 64_000


async def test_who_will_have_to_wait_is_shown_before() -> None:
    ledger = Ledger()
    ledger.forecasts.latest = tuple(
        Forecast(f"mqtt/viewer-{n}", "outlet", 25.0, "mqtt/sensor", False, 30.0 + n)
        for n in range(9)
    )
    seen = await look(ledger)
    assert seen["forecasts"][0] == {
        "holder": "mqtt/viewer-0",
        "kind": "outlet",
        "idle_seconds": 25.0,
        "account": "mqtt/sensor",
        "seconds": 30.0,
        "sentence": "viewer-0 has taken nothing for 25 s; sensor will wait in about 30 s",
    }
    assert len(seen["forecasts"]) == FORECASTS_MAX
    assert seen["more"]["forecasts"] == 9 - FORECASTS_MAX


async def test_a_limit_of_nothing_is_not_divided_by() -> None:
    ledger = Ledger()
    account = ledger.open("a", limit=Limit(items=0, bytes=0))
    send(account, Box(ledger, "box"), 1, 1)
    seen = await look(ledger)
    assert seen["tightest"][0]["limit_items"] == 0


async def test_very_long_names_are_cut_and_their_statements_found() -> None:
    ledger = Ledger()
    name = "mqtt/" + "x" * 5000
    send(ledger.open(name), Box(ledger, name), 1, 1)
    seen = await look(ledger)
    shown = seen["accounts"][0]["name"]
    assert len(shown) == NAME_CHARACTERS
    assert shown.endswith("\u2026")
    assert seen["holders"][0]["name"] == shown
    assert (await statement(LivePage(ledger), shown))["name"] == name
    assert (await about(ledger, shown, Pace()))["name"] == name


async def test_odd_names_go_through() -> None:
    ledger = Ledger()
    name = 'a</script>"\n\u2028\ud800\U0001f4b8'
    send(ledger.open(name), Box(ledger, name), 1, 1)
    sample = await Sampler(ledger).next(0)
    assert sample.event.count(b"\n\n") == 1
    kind, page = parsed(sample.event)
    assert kind == "sample"
    assert page["accounts"][0]["name"] == name


async def test_a_survey_lets_the_loop_go_on() -> None:
    """As `test_long_pages_let_the_loop_go_on`: it is made in stretches, however long it takes."""
    ledger = Ledger()
    accounts = [ledger.open(f"client {n}", limit=Limit(items=1)) for n in range(10_000)]
    boxes = [Box(ledger, f"box {n}") for n in range(2000)]
    for number, account in enumerate(accounts):
        send(account, boxes[number % 2000], 2, 1)
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    async with trio.open_nursery() as nursery:
        for account in accounts[:1000]:
            nursery.start_soon(account.ensure_clear_funds)
        nursery.start_soon(count_turns)
        await trio.lowlevel.checkpoint()
        started, spent, before = perf_counter(), process_time(), turns
        pace = Pace()
        seen = await survey(ledger, pace)
        busy = pace.busy_seconds
        took, spent, meanwhile = perf_counter() - started, process_time() - spent, turns - before
        nursery.cancel_scope.cancel()
    assert seen["more"]["accounts"] == 10_000 - ACCOUNTS_MAX
    # By the time of its own that it took: on a busy machine others have some of it. A stretch goes
    # on for a little after its time is over.
    assert meanwhile >= min(spent / STRETCH_SECONDS_MAX / 1.5, 100)
    assert meanwhile >= 5
    # What others did in the pauses is not the survey's.
    assert 0 < busy < took


async def test_a_survey_of_moving_books_is_whole() -> None:
    ledger = Ledger()
    accounts = [ledger.open(f"client {n}", limit=Limit(items=3)) for n in range(300)]
    boxes = [Box(ledger, f"box {n}") for n in range(50)]

    async def move() -> None:
        number = 0
        while True:
            number += 1
            account = accounts[number * 7 % 300]
            if number % 5 == 0:
                name = account.name
                account.close()
                accounts[number * 7 % 300] = ledger.open(name, limit=Limit(items=3))
            else:
                send(account, boxes[number % 50], 1 + number % 3, 10)
            boxes[number * 3 % 50].settle_all(Outcome.DELIVERED)
            if not number % 20:
                await trio.lowlevel.checkpoint()

    class Hasty(Pace):
        async def breathe(self) -> None:
            await self.pause()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(move)
        for _ in range(10):
            seen = await survey(ledger, Hasty())
            assert len(seen["accounts"]) == ACCOUNTS_MAX
            assert all(row["items"] >= 0 for row in seen["holders"])
        nursery.cancel_scope.cancel()
    for box in boxes:
        box.settle_all(Outcome.DELIVERED)


# -- events ---------------------------------------------------------------------------------------


def test_an_event_is_written_as_the_standard_has_it() -> None:
    assert event("sample", "{}") == b"event: sample\ndata: {}\n\n"
    assert event("a", "1\n2\r\n3\r4") == b"event: a\ndata: 1\ndata: 2\ndata: 3\ndata: 4\n\n"
    assert retry(2000) == b"retry: 2000\n\n"


async def test_whoever_stops_watching_is_not_counted_even_before_the_first_event() -> None:
    page = LivePage(Ledger())

    async def nothing() -> AsyncGenerator[bytes, None]:
        yield b""

    stream = EventStream(nothing(), page)
    assert page.watching == 1
    await stream.aclose()
    await stream.aclose()
    assert page.watching == 0


# -- samples --------------------------------------------------------------------------------------


async def test_nothing_is_looked_at_while_nobody_watches(autojump_clock: object) -> None:
    page = LivePage(Ledger())
    await trio.sleep(60)
    assert page.sampler.taken == 0


async def test_all_who_watch_get_the_same_samples_once_a_second(autojump_clock: object) -> None:
    page = LivePage(Ledger())
    got: list[list[bytes]] = [[] for _ in range(BROWSERS_MAX)]

    async def watch(mine: list[bytes]) -> None:
        response = await page.events(Request.parse("GET", "/live/events"))
        assert not isinstance(response.body, bytes)
        async for data in response.body:
            mine.append(data)

    async with trio.open_nursery() as nursery:
        for mine in got:
            nursery.start_soon(watch, mine)
        await trio.sleep(10.5)
        taken = page.sampler.taken
        nursery.cancel_scope.cancel()
    assert 10 <= taken <= 11
    for mine in got:
        assert mine[0].startswith(b"retry: 2000\n\nevent: history\n")
        assert mine[1:] == got[0][1:]
        assert len(mine) == taken + 1


async def test_a_slow_browser_gets_fewer_samples_and_always_the_latest(
    autojump_clock: object,
) -> None:
    ledger = Ledger()
    sampler = Sampler(ledger)
    account = ledger.open("a")
    box = Box(ledger, "box")

    async def quick() -> None:
        seen = 0
        while True:
            seen = (await sampler.next(seen)).number

    async with trio.open_nursery() as nursery:
        nursery.start_soon(quick)
        first = await sampler.next(0)
        await trio.sleep(7.5)
        send(account, box, 3, 3)
        await trio.sleep(5)
        slow = await sampler.next(first.number)
        nursery.cancel_scope.cancel()
    assert slow.number >= 12
    assert parsed(slow.event)[1]["totals"]["debt_items"] == 3


async def test_who_comes_after_a_pause_gets_no_old_sample(autojump_clock: object) -> None:
    ledger = Ledger()
    sampler = Sampler(ledger)
    first = await sampler.next(0)
    send(ledger.open("a"), Box(ledger, "box"), 1, 1)
    await trio.sleep(3600)
    later = await sampler.next(0)
    assert later.number == first.number + 1
    assert parsed(later.event)[1]["totals"]["debt_items"] == 1


async def test_if_the_one_who_takes_the_sample_goes_another_takes_it(
    autojump_clock: object,
) -> None:
    sampler = Sampler(Ledger())
    seen = (await sampler.next(0)).number
    got: list[int] = []

    async def watch() -> None:
        got.append((await sampler.next(seen)).number)

    leaving = trio.CancelScope()

    async def leave() -> None:
        with leaving:
            await sampler.next(seen)
            pytest.fail("it was cancelled before")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(leave)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(watch)
        await trio.testing.wait_all_tasks_blocked()
        leaving.cancel()
    assert got == [2]


async def test_the_history_is_bounded_and_told_to_those_who_come_later(
    autojump_clock: object,
) -> None:
    page = LivePage(Ledger())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(page.history.watch)
        await trio.sleep(400)
        nursery.cancel_scope.cancel()
    response = await page.events(Request.parse("GET", "/live/events"))
    assert isinstance(response.body, EventStream)
    data = await anext(response.body)
    await response.body.aclose()
    kind, history = parsed(data.partition(b"\n\n")[2])
    assert kind == "history"
    assert len(history["points"]) == 300
    assert len(history["tops"]) == 60
    assert len(data) < 32_000


async def test_costly_samples_are_taken_more_seldom(
    autojump_clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Pace, "busy_seconds", 0.05)
    sampler = Sampler(Ledger())
    seen = 0
    began = trio.current_time()
    for _ in range(4):
        seen = (await sampler.next(seen)).number
    sample = await sampler.next(seen)
    # The first is taken at once.
    assert trio.current_time() - began == pytest.approx(4 * 0.05 / LIVE_SHARE)
    assert parsed(sample.event)[1]["every_seconds"] == round(0.05 / LIVE_SHARE, 2)


# -- the handlers ---------------------------------------------------------------------------------


async def statement(page: LivePage, name: str) -> Any:
    request = Request(method="GET", path="/live/about", query={"name": (name,)})
    response = await page.about(request)
    assert response.status == 200
    assert isinstance(response.body, bytes)
    return json.loads(response.body)["account"]


async def test_a_statement_has_the_blame() -> None:
    clock = Clock(100.0)
    ledger = Ledger(clock=clock)
    account = ledger.open("a", limit=Limit(items=2, low_items=1))
    box = Box(ledger, "box")
    send(account, box, 3, 3)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(account.ensure_clear_funds)
        await trio.testing.wait_all_tasks_blocked()
        clock.now += 4.0
        box.settle_all(Outcome.DELIVERED)
    row = await statement(LivePage(ledger), "a")
    assert row["blame"] == {"box": 4.0}
    assert row["waited_seconds"] == 4.0
    assert row["limit"]["items"] == 2


async def test_an_account_that_is_gone_has_no_statement() -> None:
    page = LivePage(Ledger())
    assert await statement(page, "nobody") is None
    response = await page.about(Request.parse("GET", "/live/about"))
    assert response.status == 400


async def test_nothing_can_be_changed_of_a_name_that_may_be_anothers() -> None:
    ledger = Ledger()
    page = LivePage(ledger, can_change=True)

    async def can_change(name: str) -> bool:
        response = await page.about(Request("GET", "/live/about", {"name": (name,)}))
        assert isinstance(response.body, bytes)
        return bool(json.loads(response.body)["can_change"])

    begin = "x" * (NAME_CHARACTERS - 1)
    ledger.open(f"{begin} the first")
    assert await can_change(f"{begin}\u2026")
    ledger.open(f"{begin} the second")
    assert not await can_change(f"{begin}\u2026")
    assert await can_change(f"{begin} the first")


async def test_the_drawer_has_everything_about_one_name() -> None:
    clock = Clock(100.0)
    ledger = Ledger(clock=clock)
    fact: ClientFacts = {
        "address": "10.0.0.1:99",
        "protocol": "MQTT 5",
        "user": "press",
        "since": 1e9,
        "away_since": None,
        "subscriptions": ["#"],
        "subscriptions_more": 0,
    }
    page = LivePage(ledger, clients={"archive": fact}.get)
    pubs = [ledger.open(f"pub {n}", limit=Limit(items=n)) for n in range(1, 31)]
    archive = Box(ledger, "archive", patience=20.0)
    for account in pubs:
        send(account, archive, account.mark_items + 1, 10)
    other = Box(ledger, "other")
    send(pubs[0], other, 1, 1)
    async with trio.open_nursery() as nursery:
        for account in pubs:
            nursery.start_soon(account.ensure_clear_funds)
        await trio.testing.wait_all_tasks_blocked()
        clock.now += 8.0
        ledger.incidents.add_wait("pub 1", "archive", 3.5, 104.0, clear=True)

        async def ask(name: str) -> Any:
            response = await page.about(Request("GET", "/live/about", {"name": (name,)}))
            assert isinstance(response.body, bytes)
            return json.loads(response.body)

        seen = await ask("archive")
        assert seen["client"] == fact
        assert seen["account"] is None
        holder = seen["holder"]
        # The same as in the survey, although only its loans were walked.
        row = next(r for r in (await look(ledger))["holders"] if r["name"] == "archive")
        assert {key: holder[key] for key in row} == row
        assert (holder["waiting"], holder["left_seconds"]) == (30, 12.0)
        assert [each["account"] for each in holder["debtors"]][:2] == ["pub 30", "pub 29"]
        assert (len(holder["debtors"]), holder["debtors_more"]) == (20, 10)
        assert seen["timeline"] == [
            {
                "ago_seconds": 4.0,
                "what": "blocked",
                "whom": "pub 1",
                "seconds": 3.5,
                "items": 0,
                "times": 1,
                "dropped_items": 0,
                "stored_items": 0,
            }
        ]
        seen = await ask("pub 1")
        assert seen["account"]["debt"]["items"] == 3
        # Whoever has its debt, the most first.
        assert [(r["holder"], r["items"]) for r in seen["account"]["holders"]] == [
            ("archive", 2),
            ("other", 1),
        ]
        assert seen["account"]["holders_more"] == 0
        assert (seen["holder"], seen["client"]) == (None, None)
        assert [each["what"] for each in seen["timeline"]] == ["waited"]
        nursery.cancel_scope.cancel()
    for box in (archive, other):
        box.settle_all()
    empty = (await ask("archive"))["holder"]
    assert (empty["items"], empty["debtors"], empty["left_seconds"]) == (0, [], None)
    nobody = await ask("nobody")
    assert nobody.pop("can_change") is False
    assert nobody.pop("again_seconds") >= 1.0
    assert nobody == {
        "name": "nobody",
        "account": None,
        "holder": None,
        "client": None,
        "timeline": [],
    }


async def test_answers_of_all_browsers_together_take_a_share_of_a_core(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Pace, "busy_seconds", 0.05)
    ledger = Ledger()
    ledger.open("a pub")
    page = LivePage(ledger)
    streams: list[EventStream] = []
    for browsers in (1, 4):
        while len(streams) < browsers:
            body = (await page.events(Request.parse("GET", "/live/events"))).body
            assert isinstance(body, EventStream)
            streams.append(body)
        for path, handler in (("/live/about", page.about), ("/live/find", page.find)):
            response = await handler(Request.parse("GET", f"{path}?name=pub"))
            assert isinstance(response.body, bytes)
            again = json.loads(response.body)["again_seconds"]
            assert again == pytest.approx(browsers * 0.05 / LIVE_SHARE, abs=0.01)
    for stream in streams:
        await stream.aclose()


async def test_a_search_has_rows_like_a_sample() -> None:
    ledger = Ledger()
    for n in range(3):
        send(ledger.open(f"pub-{n}"), Box(ledger, f"sub-{n}"), 1, 1)
    page = LivePage(ledger)
    response = await page.find(Request.parse("GET", "/live/find?name=B-1"))
    assert isinstance(response.body, bytes)
    found = json.loads(response.body)
    assert [row["name"] for row in found["accounts"]] == ["pub-1"]
    assert [row["name"] for row in found["holders"]] == ["sub-1"]
    assert found["cells"] == [[0, 0, 1, 1, found["cells"][0][4]]]
    for query in ("", "?name="):
        assert (await page.find(Request.parse("GET", f"/live/find{query}"))).status == 400
    for holder in list(ledger.holders):
        if isinstance(holder, Box):
            holder.settle_all()


async def test_only_so_many_browsers_watch_at_once() -> None:
    page = LivePage(Ledger())
    request = Request.parse("GET", "/live/events")
    streams = [(await page.events(request)).body for _ in range(BROWSERS_MAX)]
    refused = await page.events(request)
    assert refused.status == 503
    assert dict(refused.headers)["Retry-After"] == "5"
    first = streams[0]
    assert isinstance(first, EventStream)
    await first.aclose()
    assert (await page.events(request)).status == 200


async def test_the_files_are_served_with_a_policy_that_lets_nothing_else_in() -> None:
    handlers = Pages(Ledger()).handlers()
    page = (await handlers["/"](Request.parse("GET", "/"))).body
    assert isinstance(page, bytes)
    for path, kind, says in (
        ("/", "text/html", b"<!doctype html>"),
        ("/live/style.css", "text/css", b"prefers-color-scheme"),
        *((f"/live/{name}.js", "text/javascript", b'"use strict"') for name in SCRIPTS),
        ("/live/icon.svg", "image/svg+xml", b"<svg"),
    ):
        response = await handlers[path](Request.parse("GET", path))
        assert path == "/" or f'"{path[1:]}"'.encode() in page  # It is asked for.
        assert response.status == 200
        assert response.content_type.partition(";")[0] == kind
        assert isinstance(response.body, bytes)
        assert says in response.body
        policy = dict(response.headers)["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        if path != "/live/icon.svg":
            # Names of peers become text, and nothing comes from elsewhere.
            for never in (b"innerHTML", b"insertAdjacentHTML", b"document.write", b"//cdn"):
                assert never not in response.body
            assert b"https://" not in response.body
