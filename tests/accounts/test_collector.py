"""The ledger's totals as Prometheus sees them."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
import trio
import trio.testing
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from clearfunds.accounts import NO_LIMIT, Ledger, Limit, LoanQueue, Outcome
from clearfunds.accounts._collector import DebtCollector

if TYPE_CHECKING:
    from collections.abc import Mapping

    from clearfunds.accounts import Account


class Box(LoanQueue):
    """A holder that keeps what it gets until it is told to let go."""

    kind = "box"

    def ready(self) -> None:
        pass

    def give_up(self, why: str) -> None:
        self.settle_all(Outcome.WRITTEN_OFF)


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
    before = scraper.samples()
    for number in range(100):
        send(ledger.open(f"client {number}"), box, 1)
    after = scraper.samples()
    assert set(after) == set(before)
    assert after["debt_items",] == 100
    assert after["accounts", "owing"] == 100


async def test_its_counters_never_fall() -> None:
    now = 0.0
    ledger = Ledger(clock=lambda: now)
    scraper = Scraper(ledger)
    box = Box(ledger, "box")
    counters: list[dict[tuple[str, ...], float]] = []

    def look() -> dict[tuple[str, ...], float]:
        seen = {k: v for k, v in scraper.samples().items() if k[0].endswith("_total")}
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

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read, account)
        await trio.testing.wait_all_tasks_blocked()
        assert scraper.samples()["waiting_readers",] == 1
        assert look()["throttle_events_total",] == 1
        now = 2.5
        assert look()["throttled_seconds_total",] == 2.5
        box.settle_all(Outcome.DELIVERED)
        assert look()["throttled_seconds_total",] == 2.5
    now = 9.0
    assert look()["throttled_seconds_total",] == 2.5
    account.close()
    assert not ledger.accounts
    last = look()
    assert last["borrowed_items_total",] == 4
    assert last["throttle_events_total",] == 1
    assert last["throttled_seconds_total",] == 2.5


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


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_promtool_finds_nothing_to_say() -> None:
    ledger = Ledger()
    ledger.open("alice", limit=NO_LIMIT)
    text = Scraper(ledger, {"server": Limit()}).text()
    check = subprocess.run(
        ["promtool", "check", "metrics"], input=text, capture_output=True, text=True, check=False
    )
    assert (check.returncode, check.stdout, check.stderr) == (0, "", "")
