"""The ledger's totals as Prometheus sees them."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from clearfunds.accounts import NO_LIMIT, Ledger, Limit, Outcome
from clearfunds.accounts.watch._collector import DebtCollector
from clearfunds.accounts.watch._tops import STEP_LOANS, tops_in_steps
from clearfunds.testing import Box
from tests.loops import open_nursery
from tests.programs import needs

if TYPE_CHECKING:
    from collections.abc import Mapping

    from clearfunds.accounts import Account


class Scraper:
    """Reads a ledger the way Prometheus does: through the text."""

    def __init__(self, ledger: Ledger, limits: Mapping[str, Limit | Account] | None = None) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(DebtCollector(ledger, limits))

    def text(self) -> str:
        return generate_latest(self._registry).decode()

    def samples(self) -> dict[tuple[str, ...], float]:
        """Values by name without the prefix, then the labels' values."""
        found: dict[tuple[str, ...], float] = {}
        for family in text_string_to_metric_families(self.text()):
            for sample in family.samples:
                key = (sample.name.removeprefix("clearfunds_"), *sample.labels.values())
                assert key not in found
                found[key] = sample.value
        return found


def send(account: Account, box: Box, nbytes: int) -> None:
    with account.turn(items=1, nbytes=nbytes) as turn:
        turn.send(box, b"", nbytes=nbytes)


def test_it_tells_what_is_owed_beside_the_limits() -> None:
    ledger = Ledger()
    server = ledger.open("server", limit=Limit(items=None, bytes=1000, low_bytes=10))
    alice = ledger.open("alice", parent=server)
    scraper = Scraper(ledger, {"server": server, "connection": Limit(items=5, bytes=None)})
    box = Box(ledger, "box")
    send(alice, box, 70)
    send(alice, box, 30)
    seen = scraper.samples()
    assert seen["debt_items",] == 2
    assert seen["debt_bytes",] == 100
    # The second turn's input and its child, beside the first child.
    assert seen["debt_peak_items",] == 3
    # The first turn: its input and its child, 70 bytes each.
    assert seen["debt_peak_bytes",] == 140
    assert seen["top_debt_items",] == 2
    assert seen["debt_limit_bytes", "server"] == 1000
    assert seen["debt_limit_items", "connection"] == 5
    assert ("debt_limit_items", "server") not in seen
    assert ("debt_limit_bytes", "connection") not in seen
    assert seen["accounts", "owing"] == 2
    assert seen["accounts", "clear"] == seen["accounts", "throttled"] == 0
    # A limit that is moved shows at the next scrape.
    server.limit = Limit(items=7, bytes=None)
    assert scraper.samples()["debt_limit_items", "server"] == 7


def test_borrowed_less_repaid_is_the_debt_whatever_the_outcome() -> None:
    ledger = Ledger()
    scraper = Scraper(ledger)
    alice = ledger.open("alice")
    box = Box(ledger, "box")
    for nbytes in range(1, 9):
        send(alice, box, nbytes)
    for loan, outcome in zip(list(box.queue), Outcome, strict=False):
        loan.settle(1, outcome, nbytes=1)
    seen = scraper.samples()
    repaid = {
        labels[0]: value for (name, *labels), value in seen.items() if name == "repaid_items_total"
    }
    assert set(repaid) == {outcome.label for outcome in Outcome}
    assert seen["borrowed_items_total",] - sum(repaid.values()) == seen["debt_items",] == 7
    repaid_bytes = sum(v for (name, *_), v in seen.items() if name == "repaid_bytes_total")
    assert seen["borrowed_bytes_total",] - repaid_bytes == seen["debt_bytes",] == 35
    assert seen["holders",] == 2  # The box and the router.
    box.give_up("the test is over")
    assert scraper.samples()["repaid_items_total", "written_off"] == 7


def test_its_size_does_not_grow_with_the_accounts() -> None:
    ledger = Ledger()
    scraper = Scraper(ledger)
    box = Box(ledger, "box")
    for number in range(10):
        send(ledger.open(f"client {number}"), box, 1)
    before = scraper.samples()
    boxes = [Box(ledger, f"box {number}") for number in range(10, 100)]
    for number, each in enumerate(boxes, 10):
        send(ledger.open(f"client {number}"), each, 1)
    after = scraper.samples()
    assert {name for name, *_ in after} == {name for name, *_ in before}
    tens = [key for key in after if key[0] in ("top_debtor_debt_items", "top_holder_items")]
    assert len(tens) == 20
    assert len(after) - len(before) == 9  # There was one holder, and now there are ten ranks.
    assert after["debt_items",] == 100
    assert after["accounts", "owing"] == 100


async def test_its_counters_never_fall() -> None:
    now = 0.0
    ledger = Ledger(clock=lambda: now)
    scraper = Scraper(ledger)
    box = Box(ledger, "box")
    counters: list[dict[tuple[str, ...], float]] = []

    def look() -> dict[tuple[str, ...], float]:
        ends = ("_total", "_bucket", "_count", "_sum")
        seen = {
            k: v
            for k, v in scraper.samples().items()
            if k[0].endswith(ends) and not k[0].startswith("account_debt_items_distribution")
        }
        if counters:
            for key, value in counters[-1].items():
                assert seen[key] >= value, key
        counters.append(seen)
        return seen

    account = ledger.open("alice", limit=Limit(items=1))
    send(account, box, 10)
    send(account, box, 10)
    look()

    async def read(account: Account) -> None:
        await account.ensure_clear_funds()

    async with open_nursery() as nursery:
        nursery.start_soon(read, account)
        await anyio.wait_all_tasks_blocked()
        assert scraper.samples()["waiting_readers",] == 1
        assert look()["throttle_events_total", "account"] == 1
        now = 2.5
        assert look()["throttled_seconds_total", "account"] == 2.5
        box.settle_all(Outcome.DELIVERED)
        assert look()["throttled_seconds_total", "account"] == 2.5
    now = 9.0
    assert look()["throttled_seconds_total", "account"] == 2.5
    assert look()["throttled_seconds_total", "parent"] == 0
    account.close()
    assert not ledger.accounts
    last = look()
    assert last["borrowed_items_total",] == 4
    assert last["throttle_events_total", "account"] == 1
    assert last["throttle_events_total", "parent"] == 0
    assert last["throttled_seconds_total", "account"] == 2.5
    # The two events were 2.5 s old when they were settled.
    assert last["loan_age_seconds_count", "box"] == 2
    assert last["loan_age_seconds_sum", "box"] == 5.0


def test_what_is_at_rest_is_told_of_apart() -> None:
    now = 0.0
    ledger = Ledger(clock=lambda: now)
    disk = ledger.open("disk", limit=Limit(items=None, bytes=1000), at_rest="disk")
    scraper = Scraper(ledger, {"disk": disk})
    alice = ledger.open("alice", parent=ledger.open("server"))
    queue = ledger.open("queue", parent=disk)
    box = Box(ledger, "box")
    before = scraper.samples()
    assert before["at_rest_items", "disk"] == before["at_rest_bytes", "disk"] == 0
    # Neither the empty root nor a queue's account is one of those that might owe.
    assert before["accounts", "clear"] == before["account_debt_items_distribution_gcount",] + 1 == 2
    for _ in range(5):
        send(queue, box, 20)
    now = 3.0
    send(alice, box, 7)
    now = 4.0
    seen = scraper.samples()
    assert (seen["at_rest_items", "disk"], seen["at_rest_bytes", "disk"]) == (5, 100)
    assert seen["debt_limit_bytes", "disk"] == 1000
    assert (seen["debt_items",], seen["debt_bytes",]) == (1, 7)
    assert (seen["debt_peak_items",], seen["debt_peak_bytes",]) == (2, 14)
    assert seen["top_debt_items",] == seen["account_debt_items_distribution_gsum",] == 1
    assert seen["top_debtor_debt_items", "alice", "1"] == seen["top_holder_items", "box", "1"] == 1
    assert not [key for key in seen if "queue" in key or key[-1] == "2"]
    assert seen["oldest_loan_age_seconds",] == 1
    assert (seen["accounts", "owing"], seen["accounts", "clear"]) == (2, 0)
    repaid = sum(value for (name, *_), value in seen.items() if name == "repaid_items_total")
    assert seen["borrowed_items_total",] - repaid == 6
    # What is closed is not at rest any more.
    box.settle_all(Outcome.ACKED)
    for account in (queue, disk):
        account.close()
    assert not ledger.at_rest
    assert not [key for key in scraper.samples() if key[0] == "at_rest_items"]


def test_an_account_under_one_at_rest_is_at_rest_too() -> None:
    ledger = Ledger()
    disk = ledger.open("disk", at_rest="disk")
    queue = ledger.open("queue", parent=disk)
    other = ledger.open("other")
    assert [a.statistics().at_rest for a in (disk, queue, other)] == ["disk", "disk", None]
    expected = {"clear": 1, "owing": 0, "throttled": 0, "closing": 0, "flow": 0}
    assert ledger.statistics().accounts == expected


def test_leaked_loans_are_counted() -> None:
    ledger = Ledger()
    scraper = Scraper(ledger)
    ledger.open("alice").lend("x")
    with pytest.warns(ResourceWarning, match="alice"):
        ledger.drain()
    seen = scraper.samples()
    assert seen["leaked_loans_total",] == 1
    assert seen["repaid_items_total", "leaked"] == 1
    assert seen["debt_items",] == 0


def test_standing_state_is_told_apart_from_debt() -> None:
    ledger = Ledger()
    ledger.open("alice").standing().add(2, 50)
    seen = Scraper(ledger).samples()
    assert seen["standing_items",] == 2
    assert seen["standing_bytes",] == 50
    assert seen["debt_items",] == 0


def test_registering_does_not_collect_and_names_all_that_is_collected() -> None:
    ledger = Ledger()
    collector = DebtCollector(ledger, {"server": Limit()})
    described = {(m.name, m.type, m.documentation) for m in collector.describe()}
    assert all(not m.samples for m in collector.describe())
    assert described == {(m.name, m.type, m.documentation) for m in collector.collect()}

    class Unreadable(Ledger):
        def statistics(self) -> Any:
            raise AssertionError

    CollectorRegistry().register(DebtCollector(Unreadable()))


async def test_histograms_are_told_with_their_sums() -> None:
    now = 0.0
    ledger = Ledger(clock=lambda: now)
    scraper = Scraper(ledger)
    server = ledger.open("server", limit=Limit(items=None, bytes=None))
    alice = ledger.open("alice", limit=Limit(items=3, bytes=150), parent=server)
    box = Box(ledger, "box")
    for _ in range(5):
        send(alice, box, 50)

    async def read() -> None:
        await alice.ensure_clear_funds()

    async with open_nursery() as nursery:
        nursery.start_soon(read)
        await anyio.wait_all_tasks_blocked()
        now = 0.7
        box.settle_all(Outcome.DELIVERED)
    seen = scraper.samples()
    # 5 items with a limit of 3, 250 bytes with a limit of 150.
    assert (seen["overshoot_items_bucket", "1.0"], seen["overshoot_items_bucket", "2.0"]) == (0, 1)
    assert (seen["overshoot_items_count",], seen["overshoot_items_sum",]) == (1, 2)
    assert (seen["overshoot_bytes_bucket", "100.0"], seen["overshoot_bytes_sum",]) == (1, 100)
    assert (seen["throttle_duration_seconds_count",], seen["throttle_duration_seconds_sum",]) == (
        1,
        0.7,
    )
    assert seen["throttle_duration_seconds_bucket", "0.5"] == 0
    assert seen["throttle_duration_seconds_bucket", "1.0"] == 1
    # One loan, which all five joined.
    assert (seen["loan_age_seconds_count", "box"], seen["loan_age_seconds_sum", "box"]) == (5, 3.5)
    assert seen["loan_age_seconds_bucket", "box", "0.5"] == 0
    assert seen["loan_age_seconds_bucket", "box", "1.0"] == 5
    assert (seen["loan_age_seconds_count", "router"], seen["loan_age_seconds_sum", "router"]) == (
        5,
        0,
    )
    # Nothing was published in a dataspace; one counts what it routes here.
    assert seen["fanout_copies_count",] == 0
    ledger.fanout_copies.add(9, 4)
    seen = scraper.samples()
    assert (seen["fanout_copies_bucket", "5.0"], seen["fanout_copies_bucket", "10.0"]) == (0, 4)
    assert (seen["fanout_copies_count",], seen["fanout_copies_sum",]) == (4, 36)


def test_what_a_walk_finds() -> None:
    now = 100.0
    ledger = Ledger(clock=lambda: now)
    scraper = Scraper(ledger)
    server = ledger.open("server", limit=NO_LIMIT)
    old, new = Box(ledger, "old"), Box(ledger, "new")
    send(ledger.open("alice", parent=server), old, 1)
    now = 103.0
    for _ in range(12):
        send(ledger.open("bob", parent=server), new, 1)
    ledger.open("carol", parent=server)
    send(ledger.open('\ud800\0"', parent=server), new, 1)
    now = 104.0
    seen = scraper.samples()
    assert seen["oldest_loan_age_seconds",] == 4.0
    assert {k: v for k, v in seen.items() if k[0] == "top_holder_items"} == {
        ("top_holder_items", "new", "1"): 13,
        ("top_holder_items", "old", "2"): 1,
    }
    # The server owes for the others, and is not one of them; carol owes nothing; of those that
    # owe the same the one that came first is first.
    assert {k: v for k, v in seen.items() if k[0] == "top_debtor_debt_items"} == {
        ("top_debtor_debt_items", "bob", "1"): 12,
        ("top_debtor_debt_items", "alice", "2"): 1,
        ("top_debtor_debt_items", '?\ufffd"', "3"): 1,
    }
    buckets = [
        seen["account_debt_items_distribution_bucket", bound]
        for bound in ("0.0", "1.0", "10.0", "20.0", "+Inf")
    ]
    assert buckets == [1, 3, 3, 4, 4]
    assert seen["account_debt_items_distribution_gcount",] == 4
    assert seen["account_debt_items_distribution_gsum",] == 14
    assert seen["rings",] == 0
    old.settle_all(Outcome.DELIVERED)
    new.settle_all(Outcome.DELIVERED)
    seen = scraper.samples()
    assert seen["oldest_loan_age_seconds",] == 0
    assert not [key for key in seen if key[0].startswith("top_") and len(key) > 1]


def test_what_only_its_maker_or_the_router_has_is_found_too() -> None:
    now = 0.0
    ledger = Ledger(clock=lambda: now)
    scraper = Scraper(ledger)
    loan = ledger.open("alice").lend("x", items=3, nbytes=1)
    now = 1.0
    with ledger.open("bob").turn(items=2, nbytes=0):
        now = 1.5
        seen = scraper.samples()
    assert seen["oldest_loan_age_seconds",] == 1.5
    assert seen["top_holder_items", "(loose)", "1"] == 3
    assert seen["top_holder_items", "router", "2"] == 2
    loan.settle()


async def test_rings_are_counted() -> None:
    now = 0.0
    ledger = Ledger(clock=lambda: now)
    scraper = Scraper(ledger)
    alice = ledger.open("alice", limit=Limit(items=1))
    bob = ledger.open("bob", limit=Limit(items=1))
    boxes = [Box(ledger, "to alice"), Box(ledger, "to bob")]
    for box, debtor, owner in zip(boxes, (bob, alice), (alice, bob), strict=True):
        box.owner = owner
        for _ in range(3):
            send(debtor, box, 1)

    async def read(account: Account) -> None:
        await account.ensure_clear_funds()

    async with open_nursery() as nursery:
        nursery.start_soon(read, alice)
        nursery.start_soon(read, bob)
        await anyio.wait_all_tasks_blocked()
        assert scraper.samples()["rings",] == 0  # Nothing has stood still for long enough.
        now = 5.0
        assert scraper.samples()["rings",] == 1
        nursery.cancel_scope.cancel()
    assert scraper.samples()["rings",] == 0


@given(
    debts=st.lists(st.integers(0, 30), max_size=40),
    held=st.lists(st.integers(0, 5), max_size=30),
)
def test_the_walk_finds_what_sorting_would(debts: list[int], held: list[int]) -> None:
    ledger = Ledger()
    for number, debt in enumerate(debts):
        ledger.open(f"a{number}").borrow(debt, 0)
    boxes = [Box(ledger, f"b{number}") for number in range(len(held))]
    payer = ledger.open("payer", parent=ledger.open("level"))
    for box, items in zip(boxes, held, strict=True):
        if items:
            with payer.turn() as turn:
                turn.send(box, "x", items=items, nbytes=0)
    steps = tops_in_steps(ledger)
    pauses = 0
    while True:
        try:
            next(steps)
        except StopIteration as end:
            tops = end.value
            break
        pauses += 1
    assert pauses > len(held) // STEP_LOANS
    assert [debt for _, debt in tops.debtors] == sorted(
        [debt for debt in [*debts, sum(held)] if debt], reverse=True
    )[:10]
    assert all(ledger.accounts[name].debt_items == debt for name, debt in tops.debtors)
    assert [items for _, items in tops.holders] == sorted(
        [items for items in held if items], reverse=True
    )[:10]
    assert all(boxes[int(name[1:])].queue[0].items == items for name, items in tops.holders)
    assert tops.debts.count == len(debts) + 1
    assert tops.debts.total == sum(debts) + sum(held)
    assert dict(tops.debts.cumulative())["20.0"] == sum(d <= 20 for d in [*debts, sum(held)])


@needs("promtool")
def test_promtool_finds_nothing_to_say() -> None:
    ledger = Ledger()
    ledger.open("alice", limit=NO_LIMIT)
    text = Scraper(ledger, {"server": Limit()}).text()
    check = subprocess.run(
        ["promtool", "check", "metrics"], input=text, capture_output=True, text=True, check=False
    )
    assert (check.returncode, check.stdout, check.stderr) == (0, "", "")
