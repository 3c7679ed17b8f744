"""The relay's pages: what they say, how much of it, and that making them never holds the loop."""

from __future__ import annotations

import gc
import json
import math
import random
import subprocess
from time import thread_time
from typing import TYPE_CHECKING, Any

import pytest
import trio
import trio.testing
from prometheus_client.parser import text_string_to_metric_families

from clearfunds.accounts import (
    NO_LIMIT,
    Account,
    Holder,
    Ledger,
    Limit,
    LoanedItem,
    Outcome,
    StuckPolicy,
)
from clearfunds.accounts._line import MAX_BLAMED, line_of
from clearfunds.accounts._waiters import REASONS
from clearfunds.accounts.watch._audit import audit_in_steps
from clearfunds.pages import (
    Pages,
    RelayCollector,
    Request,
    Response,
    TransportCounts,
    serve_http,
    serve_pages,
)
from clearfunds.pages._cooperative import STRETCH_SECONDS, Pace, run_paced
from clearfunds.pages._exposition import Family, format_labels
from clearfunds.testing import Box
from tests.programs import needs

if TYPE_CHECKING:
    from collections.abc import Iterator


def send(account: Account, holder: Holder, items: int, nbytes: int) -> None:
    with account.turn(items=1, nbytes=0) as turn:
        turn.send(holder, b"", items=items, nbytes=nbytes)


async def fetch(pages: Pages, target: str) -> tuple[int, str]:
    """Ask for a page as the server does, but for the sockets."""
    request = Request.parse("GET", target)
    response = await pages.handlers()[request.path](request)
    return response.status, (await whole(response)).decode()


async def whole(response: Response) -> bytes:
    if isinstance(response.body, bytes):
        return response.body
    try:
        return b"".join([piece async for piece in response.body])
    finally:
        await response.body.aclose()  # type: ignore[attr-defined]


async def samples(pages: Pages, target: str) -> dict[tuple[str, ...], float]:
    """Values by name without the prefix, then the labels' values in the order of their names."""
    status, text = await fetch(pages, target)
    assert status == 200, text
    found: dict[tuple[str, ...], float] = {}
    names: list[str] = []
    for family in text_string_to_metric_families(text):
        assert family.documentation
        for sample in family.samples:
            assert sample.name.startswith(("clearfunds_", "process_"))
            name = sample.name.removeprefix("clearfunds_").removeprefix("detailed_")
            key = (name, *[value for _, value in sorted(sample.labels.items())])
            assert key not in found, "a series is told of twice"
            found[key] = sample.value
        names.append(family.name)
    assert len(names) == len(set(names)), "the samples of a metric are not together"
    return found


class Scene:
    """Two debtors, two holders, one of them named like another."""

    def __init__(self) -> None:
        self.now = 100.0
        self.ledger = Ledger(clock=lambda: self.now)
        self.server = self.ledger.open("server", limit=NO_LIMIT)
        self.alice = self.ledger.open("alice", parent=self.server, limit=Limit(items=4, bytes=None))
        self.bob = self.ledger.open('b"o\\b\nö', parent=self.server)
        self.slow = Box(self.ledger, "slow", patience=7.5)
        self.fast = Box(self.ledger, "fast", policy=StuckPolicy.WAIT, patience=math.inf)
        self.twin = Box(self.ledger, "fast")
        send(self.alice, self.slow, 5, 50)
        self.now = 101.0
        send(self.bob, self.slow, 2, 20)
        send(self.bob, self.fast, 1, 10)
        send(self.bob, self.twin, 1, 10)
        self.now = 103.0
        self.pages = Pages(self.ledger, limits={"server": self.server})


async def test_metrics_have_the_totals_and_constant_size() -> None:
    scene = Scene()
    before = await samples(scene.pages, "/metrics")
    assert before["debt_items",] == 9
    assert before["debt_bytes",] == 90
    assert before["accounts", "owing"] == 3
    assert ("build_info", *[key[1] for key in before if key[0] == "build_info"]) in before
    assert before["process_resident_memory_bytes",] > 1e6
    for number in range(50):
        send(scene.ledger.open(f"client {number}"), scene.fast, 1, 1)
    after = await samples(scene.pages, "/metrics")
    # Ten of those that owe are named, where there were two; and the holders are the same two.
    assert {key[0] for key in after} == {key[0] for key in before}
    assert len(after) == len(before) + 8
    assert after["debt_items",] == 59
    assert after["account_debt_items_distribution_gcount",] == 52  # Not the server's.
    assert after["oldest_loan_age_seconds",] == 3
    for number in range(50):
        scene.ledger.open(f"client {number}").repay(1, 1)
    scene.fast.queue.clear()


async def test_metrics_have_what_the_relay_counts() -> None:
    counts = {"mqtt": TransportCounts(connections=3, accepted_connections_total=7)}
    pages = Pages(Ledger(), collectors=[RelayCollector(lambda: counts)])
    assert (await samples(pages, "/metrics"))["connections", "mqtt"] == 3
    counts["mqtt"] = TransportCounts(connections=2, accepted_connections_total=8)
    seen = await samples(pages, "/metrics")
    assert seen["connections", "mqtt"] == 2
    assert seen["accepted_connections_total", "mqtt"] == 8
    assert seen["messages_received_total", "mqtt"] == 0


def test_two_collectors_may_not_serve_the_same_name() -> None:
    twice = [RelayCollector(dict), RelayCollector(dict)]
    with pytest.raises(ValueError, match="clearfunds_connections"):
        Pages(Ledger(), collectors=twice)


async def test_detailed_tells_of_each_account() -> None:
    scene = Scene()
    seen = await samples(scene.pages, "/metrics/detailed?family=account")
    alice, bob, server = ("alice", "server"), ('b"o\\b\nö', "server"), ("server", "")
    assert seen["account_debt_items", *alice] == 5
    assert seen["account_debt_bytes", *alice] == 50
    assert seen["account_debt_peak_items", *alice] == 6
    assert seen["account_debt_limit_items", *alice] == 4
    assert ("account_debt_limit_bytes", *alice) not in seen
    assert seen["account_debt_items", *bob] == 4
    assert seen["account_debt_items", *server] == 9
    assert ("account_debt_limit_items", *server) not in seen
    assert seen["account_borrowed_items_total", *server] == 0
    assert seen["truncated_series",] == 0


async def test_detailed_tells_of_each_holder_by_name() -> None:
    scene = Scene()
    seen = await samples(scene.pages, "/metrics/detailed?family=holder")
    assert seen["holder_debt_items", "slow", "box"] == 7
    assert seen["holder_debt_bytes", "slow", "box"] == 70
    assert seen["holder_loans", "slow", "box"] == 2
    assert seen["holder_oldest_loan_age_seconds", "slow", "box"] == 3.0
    assert seen["holder_idle_seconds", "slow", "box"] == 3.0
    assert seen["holder_waited_for_seconds", "slow", "box"] == 0.0
    assert seen["holder_patience_seconds", "slow", "box"] == 7.5
    assert not [key for key in seen if key[0] == "holder_cause_info"]
    # Two holders of one name are one series, or Prometheus would refuse the page.
    assert seen["holder_debt_items", "fast", "box"] == 2
    assert seen["holder_debt_items", "router", "router"] == 0
    assert seen["holder_idle_seconds", "router", "router"] == 0


async def test_detailed_tells_who_holds_whose_debt() -> None:
    scene = Scene()
    bob = 'b"o\\b\nö'
    loose = scene.alice.lend("x", items=3, nbytes=0)
    with scene.bob.turn(items=2, nbytes=8):
        seen = await samples(scene.pages, "/metrics/detailed?family=matrix")
    assert {key[1:]: value for key, value in seen.items() if key[0] == "debt_items"} == {
        ("alice", "slow"): 5,
        ("alice", "(loose)"): 3,
        (bob, "slow"): 2,
        (bob, "fast"): 2,
        (bob, "router"): 2,
    }
    assert seen["debt_bytes", bob, "fast"] == 20
    assert seen["oldest_loan_age_seconds", "alice", "slow"] == 3.0
    assert seen["oldest_loan_age_seconds", bob, "slow"] == 2.0
    # Rule 15: the matrix is what is held, and what is held is what is owed.
    ledger = {(h.account, h.holder): h.items for h in scene.ledger.matrix()}
    seen = await samples(scene.pages, "/metrics/detailed?family=matrix")
    assert {key[1:]: value for key, value in seen.items() if key[0] == "debt_items"} == ledger
    loose.settle()


async def test_detailed_tells_who_waited_on_whom() -> None:
    scene = Scene()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(scene.alice.ensure_clear_funds)
        await trio.testing.wait_all_tasks_blocked()
        seen = await samples(scene.pages, "/metrics/detailed?family=account")
        assert seen["account_waiting_readers", "alice", "server"] == 1
        scene.now += 4
        scene.slow.settle_all(Outcome.DELIVERED)
    seen = await samples(scene.pages, "/metrics/detailed?family=blame,account")
    assert seen["blamed_seconds_total", "alice", "slow"] == 4
    assert seen["account_throttled_seconds_total", "alice", "server", "account"] == 4
    assert seen["account_throttled_seconds_total", "alice", "server", "parent"] == 0
    assert seen["account_throttle_events_total", "alice", "server"] == 1
    seen = await samples(scene.pages, "/metrics/detailed?family=blame&holder=fast&account=alice")
    assert set(seen) == {("truncated_series",)}


async def test_who_may_be_blamed_next_has_a_series_from_before() -> None:
    """Or `rate` would miss the first stall, whose seconds come all at once, at its end."""
    scene = Scene()
    bob = 'b"o\\b\nö'
    page = "/metrics/detailed?family=blame"
    # Nobody waits yet. The server's account has no limit, so nobody ever waits at it.
    everybody = {("alice", "slow"), (bob, "slow"), (bob, "fast")}
    blamed = {key[1:]: value for key, value in (await samples(scene.pages, page)).items()}
    assert blamed == dict.fromkeys([*everybody, ()], 0.0)
    scene.server.limit = Limit(items=100)
    seen = await samples(scene.pages, page)
    assert {key[1:] for key in seen} == {*everybody, ("server", "slow"), ("server", "fast"), ()}
    seen = await samples(scene.pages, f"{page}&account=server&holder=fast")
    assert {key[1:] for key in seen} == {("server", "fast"), ()}
    async with trio.open_nursery() as nursery:
        nursery.start_soon(scene.alice.ensure_clear_funds)
        await trio.testing.wait_all_tasks_blocked()
        scene.now += 4
        assert (await samples(scene.pages, page))["blamed_seconds_total", "alice", "slow"] == 0
        scene.slow.settle_all(Outcome.DELIVERED)
    # Once there are seconds, they stay; who has nothing any more cannot be blamed.
    seen = await samples(scene.pages, page)
    assert seen["blamed_seconds_total", "alice", "slow"] == 4
    assert (bob, "slow") not in {key[1:] for key in seen}


async def test_a_holder_is_waited_for_since_somebody_waits_or_it_made_progress() -> None:
    scene = Scene()
    page = "/metrics/detailed?family=holder"

    async def waited_for() -> dict[str, float]:
        seen = await samples(scene.pages, page)
        name = "holder_waited_for_seconds"
        return {key[1]: value for key, value in seen.items() if key[0] == name}

    scene.now += 10  # Idle for long, but nobody waits.
    async with trio.open_nursery() as nursery:
        nursery.start_soon(scene.alice.ensure_clear_funds)
        await trio.testing.wait_all_tasks_blocked()
        scene.now += 4
        assert await waited_for() == {"slow": 4.0, "fast": 0.0}
        scene.slow.settled()
        scene.now += 1
        assert await waited_for() == {"slow": 1.0, "fast": 0.0}
        # Who waits at the server's account waits for all that its children owe.
        scene.server.limit = Limit(items=1)
        nursery.start_soon(scene.bob.ensure_clear_funds)
        await trio.testing.wait_all_tasks_blocked()
        scene.now += 2
        assert await waited_for() == {"slow": 3.0, "fast": 2.0}
        for box in (scene.slow, scene.fast, scene.twin):
            box.settle_all(Outcome.DELIVERED)
    assert await waited_for() == {}


async def test_a_full_statement_promises_no_more_series() -> None:
    ledger = Ledger()
    account = ledger.open("a")
    line_of(account).blame = {f"holder {number}": 1.0 for number in range(MAX_BLAMED)}
    box = Box(ledger, "box")
    send(account, box, 1, 1)
    seen = await samples(Pages(ledger), "/metrics/detailed?family=blame")
    assert len(seen) == MAX_BLAMED + 1
    assert ("blamed_seconds_total", "a", "box") not in seen
    box.settle_all(Outcome.DELIVERED)


async def test_each_family_has_its_share_of_the_room_and_what_others_leave() -> None:
    ledger = Ledger()
    box = Box(ledger, "box")
    for number in range(20):
        send(ledger.open(f"account {number}"), box, 1, 1)
    page = "/metrics/detailed?family=account,holder,matrix&limit="

    async def counted(limit: int) -> tuple[int, int, int]:
        keys = list(await samples(Pages(ledger), f"{page}{limit}"))
        kinds = [key[0].partition("_")[0] for key in keys if len(key) > 1]
        # The matrix's are called after the debts themselves.
        rest = len(kinds) - kinds.count("account") - kinds.count("holder")
        return kinds.count("account"), kinds.count("holder"), rest

    # 20 accounts have 10 series each and one a reason, the holder 7, the router 6, 20 cells 3.
    assert await counted(10_000) == (200 + 20 * len(REASONS), 13, 60)
    # What is not enough for a row is left.
    assert await counted(312) == (100, 13, 60)
    assert await counted(39) == (10, 13, 12)
    box.settle_all(Outcome.DELIVERED)


async def test_those_that_wait_are_told_of_first() -> None:
    ledger = Ledger()
    box = Box(ledger, "box")
    accounts = [ledger.open(f"account {number}") for number in range(20)]
    for account in accounts:
        send(account, box, 5, 1)
    accounts[13].limit = Limit(items=1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(accounts[13].ensure_clear_funds)
        await trio.testing.wait_all_tasks_blocked()
        seen = await samples(Pages(ledger), "/metrics/detailed?family=account,matrix&limit=24")
        assert {key[1] for key in seen if key[0] == "account_debt_items"} == {"account 13"}
        assert "account 13" in {key[1] for key in seen if key[0] == "debt_items"}
        box.settle_all(Outcome.DELIVERED)


async def test_detailed_tells_only_what_was_asked_for() -> None:
    scene = Scene()
    seen = await samples(scene.pages, "/metrics/detailed?family=matrix&account=al*&holder=s%2Bow")
    assert set(seen) == {("truncated_series",)}
    seen = await samples(scene.pages, "/metrics/detailed?family=matrix&account=al*&holder=s*")
    assert {key[1:] for key in seen} == {("alice", "slow"), ()}
    seen = await samples(scene.pages, "/metrics/detailed?family=matrix&account=al*&account=b*")
    assert {key[1] for key in seen if key[1:]} >= {"alice"}
    seen = await samples(scene.pages, "/metrics/detailed?family=account&family=holder&account=?")
    assert {key[0].partition("_")[0] for key in seen} == {"holder", "truncated"}


@pytest.mark.parametrize("limit", [0, 1, 9, 10, 11, 25, 36, 37, 40, 10_000])
async def test_what_is_left_out_is_said(limit: int) -> None:
    scene = Scene()
    everything = await samples(scene.pages, "/metrics/detailed?family=account,holder,matrix")
    some = await samples(
        scene.pages, f"/metrics/detailed?family=account,holder,matrix&limit={limit}"
    )
    left_out = some.pop(("truncated_series",))
    del everything["truncated_series",]
    assert len(some) <= limit
    assert len(some) + left_out == len(everything)
    assert some.items() <= everything.items()


async def test_accounts_that_owe_are_told_of_first() -> None:
    ledger = Ledger()
    for number in range(20):
        ledger.open(f"clear {number}")
    box = Box(ledger, "box")
    send(ledger.open("owing"), box, 1, 1)
    seen = await samples(Pages(ledger), "/metrics/detailed?family=account&limit=12")
    assert {key[1] for key in seen if len(key) > 1} == {"owing"}
    box.settle_all(Outcome.DELIVERED)


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("", "ask for some of account, holder, matrix, blame"),
        ("?family=acount", "no family 'acount'"),
        ("?family=account&acount=x", "no field 'acount'"),
        ("?family=account&account=" + "a" * 201, "201 characters"),
        ("?family=account&holder=" + "*" * 201, "201 characters"),
        ("?family=account&limit=-1", "must be a number"),
        ("?family=account&limit=9999999999", "must be a number"),
        ("?family=account&limit=%D9%A3", "must be a number"),
    ],
)
async def test_a_bad_query_is_refused_with_a_sentence(query: str, says: str) -> None:
    status, text = await fetch(Pages(Ledger()), f"/metrics/detailed{query}")
    assert status == 400
    assert says in text
    assert text.endswith(".\n")


def test_labels_survive_whatever_a_name_may_be() -> None:
    noise = random.Random(7)
    alphabet = '\\"\n\r\t{},= aö\u2028\U0001f600\x7f'
    for _ in range(200):
        name = "".join(noise.choices(alphabet, k=noise.randrange(9)))
        family = Family("x_total", "Back\\slash and\nnewline.", "counter")
        text = family.head() + family.sample(format_labels({"account": name, "b": "c"}), 1.5)
        (parsed,) = text_string_to_metric_families(text)
        assert parsed.documentation == "Back\\slash and\nnewline."
        assert parsed.type == "counter"
        (sample,) = parsed.samples
        assert sample.labels == {"account": name, "b": "c"}
        assert sample.value == 1.5


def test_values_are_written_as_go_reads_them() -> None:
    family = Family("x", "X.")
    for value, text in ((3, "3"), (0.1, "0.1"), (math.inf, "+Inf"), (1 << 60, str(1 << 60))):
        assert family.sample("", value) == f"x {text}\n"


async def test_names_that_cannot_be_encoded_do_not_cost_the_page() -> None:
    ledger = Ledger()
    ledger.open("half \ud800 and \0 nul")
    pages = Pages(ledger)
    seen = await samples(pages, "/metrics/detailed?family=account")
    assert seen["account_debt_items", "half ? and \ufffd nul", ""] == 0
    assert (await statement(pages))["accounts"][0]["name"] == "half \ud800 and \0 nul"


async def statement(pages: Pages) -> dict[str, Any]:
    status, text = await fetch(pages, "/ledger.json")
    assert status == 200
    page: dict[str, Any] = json.loads(text)
    return page


async def test_the_ledger_is_told_of_whole() -> None:
    scene = Scene()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(scene.alice.ensure_clear_funds)
        await trio.testing.wait_all_tasks_blocked()
        scene.now = 105.0
        page = await statement(scene.pages)
        nursery.cancel_scope.cancel()
    assert list(page) == [
        "time", "totals", "accounts", "tenants", "holders", "matrix", "rings", "forecasts",
        "audit",
    ]  # fmt: skip
    assert page["rings"] == page["tenants"] == page["forecasts"] == []
    accounts = {account["name"]: account for account in page["accounts"]}
    assert accounts["alice"] == {
        "name": "alice",
        "parent": "server",
        "at_rest": None,
        "state": "throttled",
        "alarms": [],
        "blockers": [],
        "debt": {"items": 5, "bytes": 50},
        "peak": {"items": 6, "bytes": 50},
        "limit": {"items": 4, "bytes": None},
        "low": {"items": 2, "bytes": None},
        "moving": None,
        "weight": 1.0,
        "shared": False,
        "share": {"items": None, "bytes": None},
        "rate": {"items": None, "bytes": None},
        "borrowed": {"items": 6, "bytes": 50},
        "waiting_readers": 1,
        "waiting_seconds": 2.0,
        "waits": 1,
        "waited_seconds": 2.0,
        "waited_by_reason": {**dict.fromkeys(REASONS, 0.0), "account": 2.0},
        "blame": {},
        "standing": {"items": 0, "bytes": 0},
    }
    assert accounts["server"]["debt"] == page["totals"]["debt"] == {"items": 9, "bytes": 90}
    holders = {holder["name"]: holder for holder in page["holders"]}
    assert holders["slow"] == {
        "name": "slow",
        "kind": "box",
        "held": {"items": 7, "bytes": 70},
        "loans": 2,
        "oldest_seconds": 5.0,
        "idle_seconds": 5.0,
        "patience": 7.5,
        "policy": "disconnect",
        "behind": False,
        "dropped": {"items": 0, "bytes": 0},
        "stored": {"items": 0, "bytes": 0},
        "cause": None,
        "why": None,
    }
    assert holders["router"]["held"] == {"items": 0, "bytes": 0}
    assert sorted(page["matrix"], key=lambda row: (row["account"], row["holder"])) == [
        {"account": "alice", "holder": "slow", "items": 5, "bytes": 50, "oldest_seconds": 5.0},
        {"account": scene.bob.name, "holder": "fast", "items": 2, "bytes": 20, "oldest_seconds": 4},
        {"account": scene.bob.name, "holder": "slow", "items": 2, "bytes": 20, "oldest_seconds": 4},
    ]
    assert page["audit"] == {
        "balanced": True,
        "discrepancies": [],
        "accounts_judged": 3,
        "accounts_moving": 0,
    }
    assert page["totals"]["repaid"]["delivered"] == {"items": 4, "bytes": 0}


async def test_an_empty_ledger_is_told_of_too() -> None:
    page = await statement(Pages(Ledger()))
    assert page["accounts"] == page["matrix"] == []
    assert [holder["name"] for holder in page["holders"]] == ["router"]
    assert page["audit"]["balanced"] is True


async def test_a_ring_is_told_of_with_its_members() -> None:
    now = 100.0
    ledger = Ledger(clock=lambda: now)
    accounts = {name: ledger.open(name, limit=Limit(items=4)) for name in ("a", "b")}
    # The ledger itself keeps no holder alive.
    boxes = {other: Box(ledger, f"to {other}") for other in accounts}
    for mine, other in (("a", "b"), ("b", "a")):
        boxes[other].owner = accounts[other]
        send(accounts[mine], boxes[other], 5, 50)
    pages = Pages(ledger)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(accounts["a"].ensure_clear_funds)
        now = 101.0
        await trio.testing.wait_all_tasks_blocked()
        assert (await statement(pages))["rings"] == []
        now = 103.0
        nursery.start_soon(accounts["b"].ensure_clear_funds)
        await trio.testing.wait_all_tasks_blocked()
        now = 105.0
        page = await statement(pages)
        nursery.cancel_scope.cancel()
    assert page["rings"] == [
        {
            "members": ["a", "b"],
            "seconds": 2.0,
            "waits": [
                {
                    "at": mine,
                    "waiting": [mine],
                    "seconds": seconds,
                    "over": {"items": 3, "bytes": 0},
                    "on": [
                        {
                            "holder": f"to {other}",
                            "kind": "box",
                            "held": {"items": 5, "bytes": 50},
                            "idle_seconds": 5.0,
                            "owner": other,
                        }
                    ],
                }
                for mine, other, seconds in (("a", "b", 4.0), ("b", "a", 2.0))
            ],
        }
    ]


async def test_infinite_patience_is_null_in_json() -> None:
    ledger = Ledger()
    box = Box(ledger, "box", patience=math.inf)
    holders = {h["name"]: h for h in (await statement(Pages(ledger)))["holders"]}
    assert holders[box.name]["patience"] is None


class Thief(Box):
    """Holds what nobody owes for."""

    def surplus(self) -> tuple[int, str] | None:
        return 12, "bytes of a stolen buffer"

    def loans(self) -> Iterator[LoanedItem[Any]]:
        yield "not a loan"  # type: ignore[misc]


async def test_the_audit_tells_what_is_wrong() -> None:
    scene = Scene()
    scene.alice.borrow(3, 4)  # A path that charges and delivers nothing.
    thief = Thief(scene.ledger, "thief")
    audited = (await statement(scene.pages))["audit"]
    assert audited["balanced"] is False
    told = "\n".join(audited["discrepancies"])
    assert "alice owes 8 items and 54 bytes, but holders have 5 items and 50 bytes" in told
    assert "server owes 12 items and 94 bytes, but holders have 9 items and 90 bytes" in told
    assert "'not a loan', which is not a loan" in told
    assert f"{thief.name} holds 12 bytes of a stolen buffer that no loan covers" in told
    assert len(audited["discrepancies"]) == 4
    scene.alice.repay(3, 4)
    scene.ledger.unregister(thief)
    assert (await statement(scene.pages))["audit"]["balanced"] is True


async def test_the_audit_finds_totals_that_do_not_add_up() -> None:
    scene = Scene()
    scene.ledger.repaid_items[Outcome.ACKED] += 2
    totals = scene.ledger.statistics()
    borrowed, repaid = totals.borrowed_items, sum(totals.repaid_items.values())
    audited = (await statement(scene.pages))["audit"]
    assert audited["discrepancies"] == [
        f"{borrowed} items were borrowed and {repaid} repaid, but {totals.debt_items} are owed"
    ]


async def test_the_audit_tells_a_bounded_number_of_sentences() -> None:
    ledger = Ledger()
    for number in range(150):
        ledger.open(f"client {number}").borrow(1, 1)
    audited = (await statement(Pages(ledger)))["audit"]
    assert len(audited["discrepancies"]) == 101
    assert audited["discrepancies"][-1] == "and 50 discrepancies more"


async def test_a_leaked_loan_is_not_a_discrepancy() -> None:
    ledger = Ledger()
    ledger.open("alice").lend("x")
    with pytest.warns(ResourceWarning, match="alice"):
        result = await run_paced(audit_in_steps(ledger), Pace())
    assert result.balanced


class Breathless(Pace):
    """Pauses wherever it may, and does something in each pause."""

    def __init__(self, meanwhile: Any) -> None:
        super().__init__()
        self._meanwhile = meanwhile

    async def breathe(self) -> None:
        await self.pause()

    async def pause(self) -> None:
        self._meanwhile()
        await super().pause()


async def test_an_audit_of_moving_books_finds_nothing_that_is_not_wrong() -> None:
    noise = random.Random(3)
    ledger = Ledger()
    server = ledger.open("server", limit=NO_LIMIT)
    boxes = [Box(ledger, f"box {n}") for n in range(5)]
    accounts = [ledger.open(f"client {n}", parent=server) for n in range(300)]
    for number, account in enumerate(accounts):
        send(account, boxes[number % 5], 1, 10)

    def traffic() -> None:
        for _ in range(5):
            account = accounts[noise.randrange(100)]  # The others are at rest.
            send(account, noise.choice(boxes), 1, noise.randrange(50))
            for box in boxes:
                if box.queue and box.queue[0].account in accounts[:100]:
                    box.queue.popleft().settle()
        source, target = noise.sample(boxes, 2)
        if source.queue:
            # From one holder to another: neither borrowed nor repaid.
            target.put(source.queue.pop())
        late = ledger.open(f"late {noise.randrange(10)}", parent=server)
        send(late, boxes[0], 1, 1)
        late.close()

    for _ in range(20):
        result = await run_paced(audit_in_steps(ledger), Breathless(traffic))
        assert result.discrepancies == ()
        assert result.judged >= 200
        assert result.moving > 0
    # And one that is wrong is found, among all that moves.
    accounts[250].borrow(1, 0)
    result = await run_paced(audit_in_steps(ledger), Breathless(traffic))
    assert [sentence.split(" owes")[0] for sentence in result.discrepancies] == [
        "account client 250"
    ]
    # Unwound, so that nothing is left over for the garbage collector to find.
    accounts[250].repay(1, 0)
    ledger.audit()


async def test_pages_of_moving_books_are_whole() -> None:
    ledger = Ledger()
    boxes = [Box(ledger, f"box {n}") for n in range(20)]
    pages = Pages(ledger)
    async with trio.open_nursery() as nursery:

        async def traffic() -> None:
            noise = random.Random(5)
            while True:
                account = ledger.open(f"client {noise.randrange(3000)}")
                send(account, noise.choice(boxes), 1, 1)
                account.close()
                if noise.random() < 0.1:
                    noise.choice(boxes).settle_all(Outcome.DELIVERED)
                if noise.random() < 0.01:
                    number = noise.randrange(20)
                    boxes[number].settle_all(Outcome.DELIVERED)
                    boxes[number] = Box(ledger, f"box {noise.randrange(20)}")
                await trio.lowlevel.checkpoint()

        nursery.start_soon(traffic)
        for _ in range(5):
            await trio.sleep(0.05)
            for target in ("account", "holder,matrix,blame"):
                await samples(pages, f"/metrics/detailed?family={target}")
            page = await statement(pages)
            assert page["audit"]["balanced"], page["audit"]
            await samples(pages, "/metrics")
        nursery.cancel_scope.cancel()
    for box in boxes:
        box.settle_all(Outcome.DELIVERED)


@pytest.mark.parametrize(
    "target",
    [
        "/ledger.json",
        "/metrics/detailed?family=account,holder,matrix",
        "/metrics/detailed?family=matrix",
    ],
)
async def test_long_pages_let_the_loop_go_on(target: str) -> None:
    ledger = Ledger()
    boxes = [Box(ledger, f"box {n}") for n in range(100)]
    for number in range(8000):
        send(ledger.open(f"client {number}"), boxes[number % 100], 1, 1)
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    pages = Pages(ledger)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(count_turns)
        await trio.lowlevel.checkpoint()
        gc.disable()  # a full collection is no stretch of the page's
        try:
            started, before = thread_time(), turns
            _, text = await fetch(pages, target)
            took, meanwhile = thread_time() - started, turns - before
        finally:
            gc.enable()
        nursery.cancel_scope.cancel()
    assert len(text) > 1000
    # Not a matter of speed: however long the page took, it was made in stretches. A stretch is a
    # millisecond and what is done between two looks at the clock.
    assert meanwhile >= min(took / STRETCH_SECONDS, 1000) / 15
    assert meanwhile >= 2


async def test_only_so_many_long_pages_are_made_at_once() -> None:
    pages = Pages(Scene().ledger)
    handler = pages.handlers()["/ledger.json"]
    request = Request.parse("GET", "/ledger.json")
    under_way = [await handler(request) for _ in range(4)]
    assert (await handler(request)).status == 503
    # One that is closed before it has begun, as for HEAD, makes room as well.
    await under_way[0].body.aclose()  # type: ignore[union-attr]
    await under_way[0].body.aclose()  # type: ignore[union-attr]
    replacement = await handler(request)
    assert replacement.status == 200
    assert (await handler(request)).status == 503
    for response in (*under_way[1:], replacement):
        assert json.loads(await whole(response))
    assert (await handler(request)).status == 200


async def test_health_and_readiness() -> None:
    pages = Pages(Ledger())
    assert (await fetch(pages, "/healthz"))[0] == 200
    assert await fetch(pages, "/readyz") == (503, "The relay is starting.\n")
    pages.set_ready()
    assert await fetch(pages, "/readyz") == (200, "The relay is ready.\n")
    pages.set_stopping()
    assert await fetch(pages, "/readyz") == (503, "The relay is stopping.\n")
    assert (await fetch(pages, "/healthz"))[0] == 200


async def test_the_pages_over_http() -> None:
    scene = Scene()
    scene.pages.set_ready()
    async with trio.open_nursery() as nursery:

        async def run(*, task_status: trio.TaskStatus[list[str]]) -> None:
            await serve_http(scene.pages.handlers(), task_status=task_status)

        urls: list[str] = await nursery.start(run)
        for target, kind, says in (
            ("/metrics", "text/plain; version=0.0.4; charset=utf-8", "clearfunds_debt_items 9.0\n"),
            (
                "/metrics/detailed?family=matrix",
                "text/plain; version=0.0.4; charset=utf-8",
                'clearfunds_detailed_debt_items{account="alice",holder="slow"} 5\n',
            ),
            ("/ledger.json", "application/json", '"balanced": true'),
            ("/healthz", "text/plain; charset=utf-8", "The relay is alive.\n"),
            ("/readyz", "text/plain; charset=utf-8", "The relay is ready.\n"),
        ):
            head, body = await get(urls[0], target)
            assert head.startswith("HTTP/1.1 200 OK\r\n")
            assert f"\r\nContent-Type: {kind}\r\n" in head
            assert says in body
        nursery.cancel_scope.cancel()


async def test_the_pages_of_a_server_of_ones_own() -> None:
    ledger = Ledger()
    with ledger.open("alice") as alice, alice.lend("hello", nbytes=5):
        async with trio.open_nursery() as nursery:
            pages = Pages(ledger, limits={"connection": Limit(items=7)})
            (url,) = await nursery.start(serve_pages, pages)
            assert (await get(url, "/readyz"))[0].startswith("HTTP/1.1 503 ")
            pages.set_ready()
            assert (await get(url, "/readyz"))[0].startswith("HTTP/1.1 200 ")
            head, text = await get(url, "/metrics")
            assert head.startswith("HTTP/1.1 200 ")
            assert 'clearfunds_debt_limit_items{level="connection"} 7.0' in text.splitlines()
            assert "clearfunds_debt_bytes 5.0" in text.splitlines()
            assert "clearfunds_event_loop_lag_seconds_count" in text
            with pytest.raises(OSError, match="in use"):
                await serve_pages(pages, "127.0.0.1", int(url.rpartition(":")[2]))
            nursery.cancel_scope.cancel()


async def get(url: str, target: str) -> tuple[str, str]:
    """Fetch a page as a plain client would; return the answer's head and what is on the page."""
    port = int(url.rpartition(":")[2])
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        await stream.send_all(f"GET {target} HTTP/1.0\r\n\r\n".encode())
        text = b"".join([piece async for piece in stream]).decode()
    head, _, body = text.partition("\r\n\r\n")
    return head, body


@needs("promtool")
@pytest.mark.parametrize(
    "target", ["/metrics", "/metrics/detailed?family=account,holder,matrix,blame"]
)
async def test_promtool_finds_nothing_to_say(target: str) -> None:
    counts = {"mqtt": TransportCounts()}
    scene = Scene()
    line_of(scene.alice).blame = {"slow": 1.0}
    pages = Pages(
        scene.ledger,
        limits={"server": Limit()},
        collectors=[RelayCollector(lambda: counts)],
    )
    _, text = await fetch(pages, target)
    check = subprocess.run(  # noqa: ASYNC221 - nothing else is to go on meanwhile
        ["promtool", "check", "metrics"], input=text, capture_output=True, text=True, check=False
    )
    assert (check.returncode, check.stdout, check.stderr) == (0, "", "")
