"""`/metrics` beyond what a ledger counts: walks in steps, the loop's lag; and its reference."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import trio
import trio.testing
from prometheus_client import ProcessCollector
from prometheus_client.parser import text_string_to_metric_families

from clearfunds.access._admission import Admission
from clearfunds.access.acl import Denied
from clearfunds.access.acl._collector import DeniedCollector
from clearfunds.accounts import (
    LatencyLimit,
    Ledger,
    Limit,
    LoanQueue,
    Outcome,
    Recipient,
    StuckPolicy,
    Symptoms,
    TcpCounters,
)
from clearfunds.accounts._cooperative import run_to_end
from clearfunds.accounts._ticker import following
from clearfunds.accounts.watch._core_shares import METRICS_SHARE
from clearfunds.dataspace import Mailbox
from clearfunds.dataspace.queues import (
    Delivery,
    Group,
    Member,
    PrefetchWindow,
    Queue,
    QueueSums,
)
from clearfunds.pages import (
    Pages,
    PersistenceCollector,
    RelayCollector,
    Request,
    TransportCounts,
    UnsentCollector,
)
from clearfunds.pages import _debts as debts_module
from clearfunds.pages._debts import SteppedDebts
from clearfunds.pages._loop_lag import EVERY_SECONDS, LoopLag
from clearfunds.pages._process import ProcessFigures
from clearfunds.relay._admission_collector import AdmissionCollector
from clearfunds.relay._over_limit_collector import OverLimitCollector
from clearfunds.store import Store
from clearfunds.testing import Box
from clearfunds.transports.mqtt.server._over_limit import no_totals
from dashboards import metrics_reference as reference

if TYPE_CHECKING:
    from prometheus_client import Metric

    from clearfunds.accounts import Account

DOCS = Path(__file__).parents[2] / "docs" / "metrics.md"


class Worker(Member):
    """A member that takes nothing."""

    def __init__(self) -> None:
        super().__init__("worker", PrefetchWindow())

    @property
    def way(self) -> Recipient:
        raise AssertionError

    @property
    def flows(self) -> bool:
        return False

    @property
    def debt(self) -> tuple[int, int]:
        raise AssertionError

    def take(self, delivery: Delivery) -> None:
        raise AssertionError

    def is_spent(self, delivery: Delivery) -> bool:
        raise AssertionError

    def cut(self, why: str) -> None:
        raise AssertionError


def send(account: Account, box: LoanQueue) -> None:
    with account.turn() as turn:
        turn.send(box, "x", nbytes=1)


def value(collector: SteppedDebts | LoopLag, name: str, **labels: str) -> float:
    found = [
        sample.value
        for family in collector.collect()
        for sample in family.samples
        if sample.name == f"clearfunds_{name}" and sample.labels == labels
    ]
    assert len(found) == 1
    return found[0]


# -- walks -----------------------------------------------------------------------------------------


async def test_the_walk_is_done_beforehand_and_the_totals_are_of_the_instant() -> None:
    ledger = Ledger()
    debts = SteppedDebts(ledger)
    box = Box(ledger, "box")
    send(ledger.open("alice"), box)
    await debts.look()
    send(ledger.open("bob"), box)
    assert value(debts, "debt_items") == 2
    assert value(debts, "top_holder_items", rank="1", holder="box") == 1
    await debts.look()
    assert value(debts, "top_holder_items", rank="1", holder="box") == 2
    assert debts.walks == 2


async def test_a_walk_lets_the_loop_go_on_and_is_not_done_again_too_soon(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = Ledger()
    boxes = [Box(ledger, f"box {number}") for number in range(300)]
    for number, box in enumerate(boxes):
        for part in "ab":
            send(ledger.open(f"account {number} {part}"), box)

    class Hurry:
        """A pace by which every stretch is over at once, and that says to have taken long."""

        busy_seconds = 0.03

        async def breathe(self) -> None:
            await trio.lowlevel.checkpoint()

    monkeypatch.setattr(debts_module, "Pace", Hurry)
    debts = SteppedDebts(ledger)
    turns = 0

    async def take_turns() -> None:
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    with autojump_clock_off(autojump_clock):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(take_turns)
            await debts.look()
            nursery.cancel_scope.cancel()
    assert turns > 300
    # It took 30 ms, a two-hundredth of six seconds.
    await trio.sleep(0.03 / METRICS_SHARE - 0.1)
    await debts.look()
    assert debts.walks == 1
    await trio.sleep(0.2)
    await debts.look()
    assert debts.walks == 2


class autojump_clock_off:  # noqa: N801
    """While busy tasks take their turns, time need not jump."""

    def __init__(self, clock: trio.testing.MockClock) -> None:
        self._clock = clock

    def __enter__(self) -> None:
        self._clock.autojump_threshold = float("inf")

    def __exit__(self, *exc_info: object) -> None:
        self._clock.autojump_threshold = 0


async def test_a_walk_that_is_cancelled_leaves_what_was_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ledger = Ledger()
    debts = SteppedDebts(ledger)
    boxes = [Box(ledger, f"box {number}") for number in range(3000)]
    for box in boxes:
        send(ledger.open("alice"), box)
    await debts.look()
    assert value(debts, "top_debtor_debt_items", rank="1", account="alice") == 3000
    monkeypatch.setattr(debts, "_due", 0.0)
    with trio.CancelScope() as scope:
        scope.cancel()
        await debts.look()
    assert scope.cancelled_caught
    assert value(debts, "top_debtor_debt_items", rank="1", account="alice") == 3000


# -- the loop's lag --------------------------------------------------------------------------------


async def test_the_lag_is_how_late_a_sleeper_is_woken(mock_clock: trio.testing.MockClock) -> None:
    lag = LoopLag()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lag.watch)
        for late in (0.0, 0.04, 0.6):
            await trio.testing.wait_all_tasks_blocked()
            now = mock_clock.current_time()
            mock_clock.jump(following(now, EVERY_SECONDS) - now + late)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    buckets = [
        value(lag, "event_loop_lag_seconds_bucket", le=bound)
        for bound in ("0.001", "0.025", "0.05", "0.5", "1.0", "+Inf")
    ]
    assert buckets == [1, 1, 2, 2, 3, 3]
    assert value(lag, "event_loop_lag_seconds_sum") == pytest.approx(0.64)


async def test_the_pages_measure_the_lag_while_they_are_watched(
    autojump_clock: trio.testing.MockClock,
) -> None:
    pages = Pages(Ledger())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pages.watch)
        await trio.sleep(10.5 * EVERY_SECONDS)
        nursery.cancel_scope.cancel()
    counts = [
        sample.value
        for family in await served(pages, "/metrics")
        for sample in family.samples
        if sample.name == "clearfunds_event_loop_lag_seconds_count"
    ]
    assert counts == [10]


# -- the reference ---------------------------------------------------------------------------------


async def served(pages: Pages, target: str) -> list[Metric]:
    request = Request.parse("GET", target)
    response = await pages.handlers()[request.path](request)
    body = response.body
    if not isinstance(body, bytes):
        body = b"".join([piece async for piece in body])
    return list(text_string_to_metric_families(body.decode()))


class Unread(Box):
    """A box with a connection whose window is shut."""

    def symptoms(self) -> Symptoms:
        now = self.ledger.clock()
        return Symptoms(TcpCounters(now, now, 0, 0, 0, 0, 9, 1448, 0, 0.001))


async def test_every_metric_that_is_served_is_in_the_reference(tmp_path: Path) -> None:
    now = 0.0
    ledger = Ledger(clock=lambda: now)
    ledger.alarms["memory"] = False
    disk = ledger.open("disk", limit=Limit(items=9, bytes=9), at_rest="disk")
    queue = Queue(ledger, "queue", account=disk)
    group = Group(ledger, "$share/g/t", account=disk)
    group.join(Worker())
    sessions: Any = SimpleNamespace(
        ended=QueueSums(),
        by_id={"s": SimpleNamespace(queue=queue, left=None)},
        expired=0,
        given_up=0,
    )
    store = Store.open(tmp_path / "store")
    persistence = PersistenceCollector(sessions, store)
    alice = ledger.open("alice", limit=Limit(items=1), parent=ledger.open("server"))
    box = Unread(ledger, "box")
    for _ in range(3):
        send(alice, box)
    counts = {"mqtt": TransportCounts(connections=3)}
    pages = Pages(
        ledger,
        collectors=[
            RelayCollector(lambda: counts),
            AdmissionCollector(Admission(1), int),
            OverLimitCollector(no_totals()),
            UnsentCollector(lambda: {"mqtt": []}),
            DeniedCollector(Denied()),
        ],
        limits={"server": alice},
        persistence=persistence,
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(alice.ensure_clear_funds)
        await trio.testing.wait_all_tasks_blocked()
        for now in (0.5, 1.0):  # noqa: B007 (the clock)
            run_to_end(ledger.causes.look_in_steps(ledger))
        box.settle_all(Outcome.DELIVERED)
    send(alice, box)
    ledger.open("moved").limit_by(LatencyLimit(1.0))
    behind = Mailbox(ledger, "behind", policy=StuckPolicy.DROP_OLDEST)
    behind.relieve("behind is stuck")
    send(alice, behind)
    above = ledger.open("above", limit=Limit(items=2, bytes=2), shared=True)
    limit = Limit(items=20, bytes=20)
    tenant = ledger.open("tenant/t", limit=limit, parent=above, shared=True)
    of_tenant = ledger.open("t", parent=tenant)
    for _ in range(3):
        send(of_tenant, box)
    assert not of_tenant.funds_are_clear()
    known = {
        entry.name: (entry.kind, set(entry.labels))
        for entry in [
            *reference.totals(),
            *(e for page in reference.detailed().values() for e in page),
        ]
    }
    seen: set[str] = set()
    families = [
        *await served(pages, "/metrics"),
        *await served(
            pages, "/metrics/detailed?family=account,holder,matrix,blame,queue,group,tenant"
        ),
    ]
    for family in families:
        name = family.name + "_total" * (family.type == "counter")
        if name.startswith("process_"):
            continue
        labels = {label for sample in family.samples for label in sample.labels} - {"le"}
        if name.endswith(("_distribution_gcount", "_distribution_gsum")):
            # The text format has no gauge histograms: their sums are gauges beside a histogram.
            name = name.rpartition("_")[0]
            assert family.type == "gauge"
        elif family.type == "histogram":
            assert known[name][0] in ("histogram", "gauge histogram")
        else:
            kind = "gauge" if known[name][0] == "info" else known[name][0]
            assert family.type == kind, name
        assert labels == known[name][1], name
        seen.add(name)
    assert seen == set(known)
    store.close()


def test_the_reference_is_what_the_code_says() -> None:
    assert reference.main(["--check", str(DOCS)]) == 0


def test_a_reference_that_has_drifted_is_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "metrics.md"
    assert reference.main(["--check", str(path)]) == 1
    assert reference.main([]) == 0
    text = capsys.readouterr().out
    path.write_text(text.replace("clearfunds_rings", "clearfunds_ring"), encoding="utf-8")
    assert reference.main(["--check", str(path)]) == 1
    assert "write it again" in capsys.readouterr().err
    path.write_text(text, encoding="utf-8")
    assert reference.main(["--check", str(path)]) == 0
    assert reference.main(["--what"]) == 2


def test_a_metric_whose_name_says_no_unit_is_refused() -> None:
    assert reference.Entry("clearfunds_debt_items", "gauge", (), "").unit == "items"
    with pytest.raises(ValueError, match="has no unit"):
        reference.Entry("clearfunds_something", "gauge", (), "").row()


def test_buckets_of_the_reference_are_those_that_are_served() -> None:
    for family in [*SteppedDebts(Ledger()).collect(), *LoopLag().collect()]:
        bounds = [s.labels["le"] for s in family.samples if s.name.endswith("_bucket")]
        if bounds:
            expected = reference.BUCKETS[family.name.removeprefix("clearfunds_")]
            per_series = len(expected) + 1
            assert len(bounds) % per_series == 0
            assert [float(bound) for bound in bounds[: per_series - 1]] == list(expected)


# -- the process ----------------------------------------------------------------------------------


def figures(collector: ProcessFigures) -> dict[str, float]:
    return {s.name: s.value for metric in collector.collect() for s in metric.samples}


async def test_the_process_is_told_of_as_prometheus_client_does() -> None:
    collector = ProcessFigures()
    before = len(os.listdir("/proc/self/fd"))
    with socket.socket():
        await collector.look()
        ours = figures(collector)
        theirs = {
            s.name: s.value
            for metric in ProcessCollector(registry=None).collect()
            for s in metric.samples
        }
    assert list(ours) == list(theirs)
    # Both count the descriptor that `/proc/self/fd` is read with, or none.
    assert ours["process_open_fds"] == before
    assert theirs["process_open_fds"] == before + 1
    for name in ("process_start_time_seconds", "process_max_fds"):
        assert ours[name] == theirs[name]
    for name, least in (("process_resident_memory_bytes", 1e6), ("process_cpu_seconds_total", 0)):
        assert least < ours[name]
        assert 0.5 < ours[name] / theirs[name] < 2
    assert [m.documentation for m in collector.collect()] == [
        m.documentation for m in ProcessCollector(registry=None).collect()
    ]


async def test_descriptors_are_counted_where_the_kernel_does_not_say(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = os.stat

    def older(path: Any, *args: Any, **kwargs: Any) -> Any:
        """As Linux before 6.2 has it."""
        said = list(real(path, *args, **kwargs))
        said[6] = 0
        return os.stat_result(said)

    collector = ProcessFigures()
    await collector.look()
    known = figures(collector)["process_open_fds"]
    monkeypatch.setattr(os, "stat", older)
    with socket.socket():
        await collector.look()
    assert figures(collector)["process_open_fds"] == known + 1
