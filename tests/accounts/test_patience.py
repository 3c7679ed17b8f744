"""Rule 11: nobody waits for ever in silence."""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterator, Mapping
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from anyio import wait_all_tasks_blocked
from trio.testing import MockClock

from clearfunds.accounts import (
    NO_LIMIT,
    Account,
    Ledger,
    Limit,
    Outcome,
    StuckPolicy,
    overdue,
    watch_patience,
)
from clearfunds.accounts._cooperative import run_to_end
from clearfunds.accounts._loop import running
from clearfunds.accounts.watch._clearing_rate import ClearingRates
from clearfunds.accounts.watch._patience import DEALT_A_STEP
from tests.accounts.conftest import Box, balance, boxes, owed, publish
from tests.loops import LoopClock, open_nursery

pytestmark = pytest.mark.rule(11)


LOGGER = "clearfunds.accounts"


@pytest.fixture
def timed(autojump_clock: MockClock) -> Iterator[Ledger]:
    """A ledger on the loop's own clock, which jumps to whatever happens next.

    (A test has to name `autojump_clock` itself, or pytest-trio does not find it.)
    """
    ledger = Ledger(clock=LoopClock())
    yield ledger
    balance(ledger)


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    assert all(r.levelno == logging.WARNING and r.name == LOGGER for r in caplog.records)
    return [record.message for record in caplog.records]


# -- disconnect -----------------------------------------------------------------------------------


async def test_a_stuck_holder_is_given_up_and_the_rest_go_on(
    autojump_clock: MockClock, timed: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    account = timed.open("publisher", limit=Limit(items=4, low_items=0))
    good, stuck = boxes(timed, 2)
    went_on: list[float] = []

    async def publisher() -> None:
        for _ in range(3):
            await account.ensure_clear_funds()
            went_on.append(anyio.current_time())
            publish(account, [good, stuck], items=3, nbytes=30)

    async def worker() -> None:
        while True:
            with await good.receive():
                await anyio.sleep(0.1)

    async with open_nursery() as nursery:
        nursery.start_soon(watch_patience, timed)
        nursery.start_soon(worker)
        begin = anyio.current_time()
        with anyio.fail_after(60):
            await publisher()
        await anyio.sleep(0.2)
        nursery.cancel_scope.cancel()

    # The first goes through; the second waits for the patience, to within one look.
    assert went_on[0] == begin
    assert 20.0 <= went_on[1] - begin <= 20.5
    assert went_on[2] == pytest.approx(went_on[1] + 0.1) or went_on[2] == went_on[1]
    assert len(stuck.given_up) == 1
    assert not good.given_up
    (message,) = warnings_of(caplog)
    assert message == (
        "box O2 made no progress for 20.0 s (patience 20 s) and holds 3 items, 30 bytes that "
        "publisher waits for; giving it up, its debt is written off"
    )
    assert stuck.given_up == [message.partition(";")[0]]
    fields = vars(caplog.records[0])
    assert (fields["event"], fields["kind"], fields["holder"]) == ("stuck", "box", "O2")
    assert (fields["items"], fields["bytes"], fields["policy"]) == (3, 30, "disconnect")
    assert 20.0 <= fields["seconds"] <= 20.5
    assert (fields["waiting"], fields["waiting_more"]) == (("publisher",), 0)
    assert timed.statistics().repaid_items["written_off"] == 3
    assert timed.statistics().repaid_bytes["written_off"] == 30
    assert timed.statistics().repaid_items["dropped"] == 6
    assert owed(account) == (0, 0)
    statement = account.statistics()
    assert statement.blame["O2"] >= 19.5
    assert sum(statement.blame.values()) == pytest.approx(statement.waited_seconds)


class Keeper(Box):
    """A holder that keeps what it has when it is told to let go, as a queue may."""

    kind = "queue"
    makes_room = True
    lets_go = False

    def give_up(self, why: str) -> None:
        self.given_up.append(why)
        if self.lets_go:
            self.settle_all(Outcome.WRITTEN_OFF)
        else:
            self.settled()


async def test_a_queue_that_keeps_what_it_has_was_not_given_up(
    autojump_clock: MockClock, timed: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    account = timed.open("publisher", limit=Limit(items=1, low_items=0))
    queue = Keeper(timed, "Q", patience=5.0)
    publish(account, [queue], items=3, nbytes=30)
    async with open_nursery() as nursery:
        nursery.start_soon(watch_patience, timed)
        nursery.start_soon(account.ensure_clear_funds)
        await anyio.sleep(6)
        assert len(queue.given_up) == 1
        (message,) = warnings_of(caplog)
        assert message.endswith("waits for; giving it up, it has to make room")
        assert timed.incidents.latest() == []
        queue.lets_go = True
        await anyio.sleep(6)
        (incident,) = timed.incidents.latest()
        assert incident.given_up is not None
        assert (incident.given_up.kind, incident.given_up.items) == ("queue", 3)
        nursery.cancel_scope.cancel()


async def test_who_moves_while_rings_are_looked_for_is_let_off(
    autojump_clock: MockClock, timed: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clearfunds.accounts.watch._patience.STRETCH_SECONDS", 0.0)
    account = timed.open("publisher", limit=Limit(items=1, low_items=0))
    first, second = boxes(timed, 2)
    publish(account, [first, second], items=3, nbytes=30)

    def in_two_steps(*_: object) -> Generator[None, None, tuple[()]]:
        yield
        return ()

    async def in_between(_: object) -> None:
        # As if others had taken their time.
        await anyio.sleep(0.1)
        if first.queue:
            first.work(3)

    async with open_nursery() as nursery:
        nursery.start_soon(account.ensure_clear_funds)
        nursery.start_soon(watch_patience, timed)
        await anyio.sleep(19.9)
        monkeypatch.setattr("clearfunds.accounts.watch._patience.rings_in_steps", in_two_steps)
        monkeypatch.setattr(type(running()), "checkpoint", in_between)
        await anyio.sleep(5.0)
        monkeypatch.undo()
        nursery.cancel_scope.cancel()
    assert (len(first.given_up), len(second.given_up)) == (0, 1)


async def test_the_log_names_all_who_wait(
    autojump_clock: MockClock, timed: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    server = timed.open("server", limit=Limit(items=3, low_items=0))
    accounts = [timed.open(f"p{i:02}", limit=NO_LIMIT, parent=server) for i in range(25)]
    (box,) = boxes(timed, 1)
    publish(accounts[0], [box], items=4, nbytes=40)
    async with open_nursery() as nursery:
        nursery.start_soon(watch_patience, timed)
        async with open_nursery() as readers:
            for account in accounts[1:3]:
                readers.start_soon(account.ensure_clear_funds)
        nursery.cancel_scope.cancel()
    (message,) = warnings_of(caplog)
    # Whoever owes it, those are named who wait for it.
    assert "holds 4 items, 40 bytes that p01, p02 wait for" in message

    caplog.clear()
    (box,) = boxes(timed, 1, "again ")
    publish(accounts[0], [box], items=4)
    async with open_nursery() as nursery:
        nursery.start_soon(watch_patience, timed)
        async with open_nursery() as readers:
            for account in accounts:
                readers.start_soon(account.ensure_clear_funds)
        nursery.cancel_scope.cancel()
    (message,) = warnings_of(caplog)
    assert f"{', '.join(a.name for a in accounts[:20])} and 5 more wait for" in message
    fields = vars(caplog.records[0])
    assert (len(fields["waiting"]), fields["waiting_more"]) == (20, 5)


# -- wait -----------------------------------------------------------------------------------------


async def test_with_wait_it_is_waited_for_and_named_once_a_patience(
    autojump_clock: MockClock, timed: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    account = timed.open("publisher", limit=Limit(items=0))
    box = Box(timed, "patient", patience=10.0, policy=StuckPolicy.WAIT)
    publish(account, [box], items=2)
    begin = anyio.current_time()
    async with open_nursery() as nursery:
        nursery.start_soon(watch_patience, timed)
        async with open_nursery() as readers:
            readers.start_soon(account.ensure_clear_funds)
            await anyio.sleep(35)
            assert len(warnings_of(caplog)) == 3  # at 10, 20 and 30 s
            box.work()
            await anyio.sleep(9)
            assert len(warnings_of(caplog)) == 3  # it made progress
            await anyio.sleep(2)
            assert len(warnings_of(caplog)) == 4
            assert account.waiting == 1
            box.work()
        nursery.cancel_scope.cancel()
    assert anyio.current_time() - begin == 46
    assert not box.given_up
    assert warnings_of(caplog)[0] == (
        "box patient made no progress for 10.0 s (patience 10 s) and holds 2 items, 0 bytes that "
        "publisher waits for; its policy is to wait"
    )
    assert account.statistics().blame == {"patient": 46.0}
    assert account.statistics().waited_seconds == 46.0


# -- who is not dealt with ------------------------------------------------------------------------


async def test_nobody_waits_nothing_happens(
    autojump_clock: MockClock, timed: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    account = timed.open("publisher", limit=Limit(items=0))
    (box,) = boxes(timed, 1)
    publish(account, [box])
    with anyio.move_on_after(1000):
        await watch_patience(timed)
    assert not caplog.records
    assert not box.given_up
    assert overdue(timed, anyio.current_time()) == []
    box.work()


async def test_patience_begins_when_somebody_begins_to_wait(
    autojump_clock: MockClock, timed: Ledger
) -> None:
    account = timed.open("publisher", limit=Limit(items=0))
    (box,) = boxes(timed, 1)
    publish(account, [box])
    await anyio.sleep(1000)
    async with open_nursery() as nursery:
        nursery.start_soon(account.ensure_clear_funds)
        await anyio.sleep(19)
        assert overdue(timed, anyio.current_time()) == []
        await anyio.sleep(1)
        (stuck,) = overdue(timed, anyio.current_time())
        assert (stuck.holder, stuck.waiting, stuck.items) == (box, ("publisher",), 1)
        assert stuck.idle_seconds == 20
        assert overdue(timed, anyio.current_time(), []) == []
        box.work()


@pytest.mark.parametrize("watches_first", [True, False])
@pytest.mark.parametrize("begins", [0.0, 0.38, 0.42, 0.48])
async def test_little_patience_is_over_when_it_is(
    begins: float, watches_first: bool, autojump_clock: MockClock, timed: Ledger
) -> None:
    """Whenever the others are looked at, which is every half second."""
    account = timed.open("publisher", limit=Limit(items=0))
    (stuck,) = boxes(timed, 1)
    stuck.patience = 0.1
    async with open_nursery() as nursery:
        if watches_first:
            nursery.start_soon(watch_patience, timed)
        await anyio.sleep(begins)
        publish(account, [stuck])
        if not watches_first:
            nursery.start_soon(watch_patience, timed)
        await account.ensure_clear_funds()
        assert anyio.current_time() == pytest.approx(begins + 0.1, abs=0.002)
        nursery.cancel_scope.cancel()


async def test_who_moved_is_looked_at_again_as_soon_as_its_patience_is_over(
    autojump_clock: MockClock, timed: Ledger
) -> None:
    account = timed.open("publisher", limit=Limit(items=0))
    (slow,) = boxes(timed, 1)
    slow.patience = 0.1
    async with open_nursery() as nursery:
        nursery.start_soon(watch_patience, timed)
        publish(account, [slow], items=3)
        nursery.start_soon(account.ensure_clear_funds)
        for _ in range(2):
            await anyio.sleep(0.09)
            slow.work()
        await account.ensure_clear_funds()
        # It last moved at 0.18.
        assert 0.28 <= anyio.current_time() < 0.4
        nursery.cancel_scope.cancel()


async def test_patience_that_is_lost_while_somebody_waits(
    autojump_clock: MockClock, timed: Ledger
) -> None:
    account = timed.open("publisher", limit=Limit(items=0))
    (stuck,) = boxes(timed, 1)
    async with open_nursery() as nursery:
        nursery.start_soon(watch_patience, timed)
        publish(account, [stuck])
        nursery.start_soon(account.ensure_clear_funds)
        await anyio.sleep(1.02)
        stuck.patience = 0.1  # it was over long ago
        await account.ensure_clear_funds()
        assert anyio.current_time() == pytest.approx(1.02)
        nursery.cancel_scope.cancel()


async def test_a_holder_that_makes_progress_may_take_its_time(
    autojump_clock: MockClock, timed: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    account = timed.open("publisher", limit=Limit(items=0))
    (slow,) = boxes(timed, 1)
    publish(account, [slow], items=10)
    async with open_nursery() as nursery:
        nursery.start_soon(watch_patience, timed)
        async with open_nursery() as readers:
            readers.start_soon(account.ensure_clear_funds)
            for _ in range(10):
                await anyio.sleep(15)
                slow.work()
        nursery.cancel_scope.cancel()
    assert not slow.given_up
    assert not caplog.records
    assert account.statistics().waited_seconds == 150


async def trickle(box: Box, seconds: float, times: int) -> None:
    """Take one event now and then."""
    for _ in range(times):
        await anyio.sleep(seconds)
        if box.given_up:
            return
        if box.queue:
            box.work()


async def test_a_sign_of_life_now_and_then_is_no_progress(
    autojump_clock: MockClock, timed: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    """Of a thousand events one each 18 s: never idle for 20, and done in five hours."""
    account = timed.open("publisher", limit=Limit(items=500))
    good, slow = boxes(timed, 2)
    publish(account, [good, slow], items=1_000)
    good.work(1_000)
    async with open_nursery() as nursery:
        nursery.start_soon(watch_patience, timed)
        nursery.start_soon(trickle, slow, 18, 1_000)
        began = anyio.current_time()
        await account.ensure_clear_funds()
        # Half a patience until it is suspected, and a whole one in which it is looked at.
        assert 20 <= anyio.current_time() - began <= 31
        nursery.cancel_scope.cancel()
    assert len(slow.given_up) == 1
    assert not good.given_up
    (warning,) = warnings_of(caplog)
    assert "cleared only 1 of 1000 items for 20" in warning or "cleared only 1 of 999" in warning
    assert "publisher waits for" in warning


async def test_who_clears_what_is_waited_for_in_time_is_left_alone(
    autojump_clock: MockClock, timed: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    """Slow and alive: half an hour for all of it is what RabbitMQ grants, too."""
    account = timed.open("publisher", limit=Limit(items=500))
    (slow,) = boxes(timed, 1)
    publish(account, [slow], items=1_000)
    async with open_nursery() as nursery:
        nursery.start_soon(watch_patience, timed)
        nursery.start_soon(trickle, slow, 1.5, 1_000)
        await account.ensure_clear_funds()
        nursery.cancel_scope.cancel()
    assert anyio.current_time() == pytest.approx(750 * 1.5)
    assert not slow.given_up
    assert not caplog.records


async def test_who_waits_behind_what_others_sent_does_not_make_it_slow(
    autojump_clock: MockClock, timed: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    """What stands before the last of it is what counts, whoever pays for it."""
    crowd = timed.open("crowd", limit=NO_LIMIT)
    account = timed.open("publisher", limit=Limit(items=0))
    (box,) = boxes(timed, 1)
    publish(crowd, [box], items=1_000)
    publish(account, [box], items=1)
    async with open_nursery() as nursery:
        nursery.start_soon(watch_patience, timed)
        nursery.start_soon(trickle, box, 1, 1_001)
        await account.ensure_clear_funds()
        nursery.cancel_scope.cancel()
    assert anyio.current_time() == pytest.approx(1_001)
    assert not box.given_up
    assert not caplog.records


async def test_what_comes_later_does_not_hide_that_nothing_moves(
    autojump_clock: MockClock, timed: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    """Others fill it as fast as it clears: for whom waits it is as slow."""
    crowd = timed.open("crowd", limit=NO_LIMIT)
    account = timed.open("publisher", limit=Limit(items=500))
    (box,) = boxes(timed, 1)
    publish(account, [box], items=1_000)

    async def fill() -> None:
        while not box.given_up:
            publish(crowd, [box], items=100)
            await anyio.sleep(1)

    async with open_nursery() as nursery:
        nursery.start_soon(watch_patience, timed)
        nursery.start_soon(fill)
        nursery.start_soon(trickle, box, 10, 1_000)
        with anyio.fail_after(35):
            await account.ensure_clear_funds()
        nursery.cancel_scope.cancel()
    assert len(box.given_up) == 1


async def test_a_slow_holder_that_is_to_be_waited_for_is_named_once_a_patience(
    autojump_clock: MockClock, timed: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    account = timed.open("publisher", limit=Limit(items=500))
    (slow,) = boxes(timed, 1)
    slow.policy = StuckPolicy.WAIT
    publish(account, [slow], items=1_000)
    async with open_nursery() as nursery:
        nursery.start_soon(watch_patience, timed)
        nursery.start_soon(trickle, slow, 18, 1_000)
        nursery.start_soon(account.ensure_clear_funds)
        await anyio.sleep(101)
        nursery.cancel_scope.cancel()
    assert 3 <= len(warnings_of(caplog)) <= 5
    assert not slow.given_up


async def test_who_holds_nothing_that_is_waited_for_is_left_alone(
    autojump_clock: MockClock, timed: Ledger
) -> None:
    waiting = timed.open("waiting", limit=Limit(items=0))
    other = timed.open("other", limit=Limit(items=0))
    held, elsewhere, nothing = boxes(timed, 3)
    publish(waiting, [held])
    publish(other, [elsewhere], items=50)
    async with open_nursery() as nursery:
        nursery.start_soon(waiting.ensure_clear_funds)
        await anyio.sleep(100)
        assert [s.holder for s in overdue(timed, anyio.current_time())] == [held]
        held.work()
    elsewhere.work(50)
    assert not nothing.queue


@pytest.mark.rule(13)
async def test_what_is_counted_is_what_is_waited_for(
    autojump_clock: MockClock, timed: Ledger
) -> None:
    """Not all that the holder has, and whoever in the family it is of (rule 13)."""
    tenant = timed.open("tenant", limit=Limit(items=5, low_items=0))
    a = timed.open("a", limit=Limit(items=0), parent=tenant)
    b = timed.open("b", limit=NO_LIMIT, parent=tenant)
    stranger = timed.open("stranger")
    (box,) = boxes(timed, 1)
    publish(a, [box], items=1, nbytes=1)
    publish(b, [box], items=7, nbytes=70)
    publish(stranger, [box], items=100)
    now = anyio.current_time
    async with open_nursery() as nursery:
        nursery.start_soon(a.ensure_clear_funds)  # at its own account
        await anyio.sleep(10)
        nursery.start_soon(b.ensure_clear_funds)  # at the tenant's
        await anyio.sleep(20)
        (stuck,) = overdue(timed, now())
        assert (stuck.waiting, stuck.items, stuck.bytes) == (("a", "b"), 8, 71)
        assert stuck.idle_seconds == 30  # since the first of them began
        box.close()


async def test_it_counts_from_the_first_of_several_readers(
    autojump_clock: MockClock, timed: Ledger
) -> None:
    tenant = timed.open("tenant", limit=Limit(items=1, low_items=0))
    account: Account = timed.open("a", limit=Limit(items=3, low_items=0), parent=tenant)
    (box,) = boxes(timed, 1)
    publish(account, [box], items=2)
    async with open_nursery() as nursery:
        nursery.start_soon(account.ensure_clear_funds)  # waits at the tenant's
        await anyio.sleep(15)
        publish(account, [box], items=2)
        nursery.start_soon(account.ensure_clear_funds)  # waits at its own
        await anyio.sleep(5)
        (stuck,) = overdue(timed, anyio.current_time())
        assert (stuck.waiting, stuck.idle_seconds, stuck.items) == (("a",), 20, 4)
        box.close()


async def test_several_stuck_holders_at_once(
    autojump_clock: MockClock, timed: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    account = timed.open("publisher", limit=Limit(items=2, low_items=0))
    peers = boxes(timed, 9)
    publish(account, peers)
    async with open_nursery() as nursery:
        nursery.start_soon(watch_patience, timed)
        async with open_nursery() as readers:
            readers.start_soon(account.ensure_clear_funds)
            await wait_all_tasks_blocked()
            for peer in peers[3:]:
                peer.work()
        nursery.cancel_scope.cancel()
    assert [bool(peer.given_up) for peer in peers] == [True] * 3 + [False] * 6
    assert len(warnings_of(caplog)) == 3
    assert timed.statistics().repaid_items["written_off"] == 3


@pytest.mark.rule(11, 12)
async def test_what_leaked_is_not_waited_for_for_ever(
    autojump_clock: MockClock, timed: Ledger
) -> None:
    """Rules 11 and 12: all who would take the next turn wait, so the watch has to look."""
    account = timed.open("publisher", limit=Limit(items=0))
    loans = [account.lend(""), account.lend("")]

    async def wait_for_them() -> None:
        async with open_nursery() as nursery:
            nursery.start_soon(watch_patience, timed)
            async with open_nursery() as readers:
                readers.start_soon(account.ensure_clear_funds)
                await wait_all_tasks_blocked()
                loans.clear()
            nursery.cancel_scope.cancel()

    with anyio.fail_after(1), pytest.warns(ResourceWarning, match="was never settled"):
        await wait_for_them()
    assert timed.statistics().leaked_loans == 2


async def test_who_is_about_to_wait_looks_for_leaks_first(
    autojump_clock: MockClock, timed: Ledger
) -> None:
    account = timed.open("publisher", limit=Limit(items=0))
    account.lend("")
    with pytest.warns(ResourceWarning, match="was never settled"), anyio.fail_after(1):
        await account.ensure_clear_funds()
    assert account.waits == 0


async def test_a_holder_that_cannot_be_given_up_does_not_end_the_watch(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    class Stubborn(Box):
        def give_up(self, why: str) -> None:
            raise OSError("it will not")

    ledger = Ledger(clock=anyio.current_time)
    one, two = (ledger.open(name, limit=Limit(items=1)) for name in ("one", "two"))
    stubborn, other = Stubborn(ledger, "stubborn"), Box(ledger, "other")
    for account, box in ((one, stubborn), (two, other)):
        with account.turn() as turn:
            turn.send(box, "a")
            turn.send(box, "b")
    async with open_nursery() as nursery:
        nursery.start_soon(watch_patience, ledger)
        nursery.start_soon(one.ensure_clear_funds)
        await two.ensure_clear_funds()
        assert "stubborn could not be given up" in caplog.text
        nursery.cancel_scope.cancel()
    stubborn.settle_all(Outcome.DROPPED)
    ledger.audit()


# -- rings ----------------------------------------------------------------------------------------


class Peers:
    """Connections, each with an account and an outlet whose peer is that account's.

    The reader of each goes on as soon as it may; then its peer is read, and so reads as well.
    """

    def __init__(self, ledger: Ledger, names: str, **options: Any) -> None:
        self.ledger = ledger
        self.accounts = {name: ledger.open(name, limit=Limit(items=3)) for name in names.split()}
        self.outlets = {name: Box(ledger, f"to {name}", **options) for name in self.accounts}
        for name, outlet in self.outlets.items():
            outlet.owner = self.accounts[name]

    def owes(self, debtor: str, holder: str, items: int = 4) -> None:
        publish(self.accounts[debtor], [self.outlets[holder]], items=items, nbytes=items * 10)

    async def read(self, name: str) -> None:
        await self.accounts[name].ensure_clear_funds()
        outlet = self.outlets[name]
        if not outlet.given_up:
            outlet.work(outlet.items)

    @property
    def given_up(self) -> list[str]:
        return [name for name, outlet in self.outlets.items() if outlet.given_up]


async def test_of_a_ring_one_is_given_up_and_the_other_goes_on(
    autojump_clock: MockClock, timed: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    peers = Peers(timed, "a b")
    peers.owes("a", "b", 4)
    peers.owes("b", "a", 7)
    async with open_nursery() as nursery:
        nursery.start_soon(watch_patience, timed)
        async with open_nursery() as readers:
            readers.start_soon(peers.read, "a")
            readers.start_soon(peers.read, "b")
        assert 20.0 <= anyio.current_time() <= 20.5
        await anyio.sleep(60)
        nursery.cancel_scope.cancel()
    # Of two that have been idle as long, the one that holds more.
    assert peers.given_up == ["a"]
    (message,) = warnings_of(caplog)
    assert message == (
        "box to a made no progress for 20.0 s (patience 20 s) and holds 7 items, 70 bytes that b "
        "waits for, in a ring: a waits on box to b (4 items, 40 bytes), b waits on box to a "
        "(7 items, 70 bytes); giving it up, its debt is written off"
    )
    assert peers.outlets["a"].given_up == [message.partition(";")[0]]
    assert timed.statistics().repaid_items["written_off"] == 7
    assert timed.statistics().debt_items == 0


async def test_of_a_ring_who_is_idle_the_longest_goes_first(
    autojump_clock: MockClock, timed: Ledger
) -> None:
    peers = Peers(timed, "a b c")
    for debtor, holder, items in (("a", "b", 8), ("c", "a", 8), ("b", "c", 4)):
        peers.owes(debtor, holder, items)
    peers.outlets["a"].patience = peers.outlets["b"].patience = 10.0
    async with open_nursery() as nursery:
        nursery.start_soon(watch_patience, timed)
        async with open_nursery() as readers:
            for name in "abc":
                readers.start_soon(peers.read, name)
            await anyio.sleep(9.9)
            peers.outlets["a"].work()
            peers.outlets["b"].work()
        # The patience of all three ran out between two looks.
        assert 20.0 <= anyio.current_time() <= 20.5
        nursery.cancel_scope.cancel()
    assert peers.given_up == ["c"]


async def test_a_ring_of_one(
    autojump_clock: MockClock, timed: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    peers = Peers(timed, "a")
    peers.owes("a", "a")
    async with open_nursery() as nursery:
        nursery.start_soon(watch_patience, timed)
        await peers.read("a")
        nursery.cancel_scope.cancel()
    (message,) = warnings_of(caplog)
    assert (
        "in a ring of one: a waits on what its own peer does not take: box to a (4 items, 40 "
        "bytes); giving it up"
    ) in message


async def test_a_ring_that_moves_is_left_alone(
    autojump_clock: MockClock, timed: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    peers = Peers(timed, "a b")
    peers.owes("a", "b", 100)
    peers.owes("b", "a", 100)
    async with open_nursery() as nursery:
        nursery.start_soon(watch_patience, timed)
        for name in "ab":
            nursery.start_soon(peers.read, name)
        for _ in range(10):
            await anyio.sleep(19)
            peers.outlets["a"].work(2)
            peers.outlets["b"].work(2)
        assert not caplog.records
        nursery.cancel_scope.cancel()
    for outlet in peers.outlets.values():
        outlet.close()


async def test_a_ring_whose_members_are_to_be_waited_for_is_named_once_a_patience(
    autojump_clock: MockClock, timed: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    peers = Peers(timed, "a b", policy=StuckPolicy.WAIT, patience=10.0)
    peers.owes("a", "b")
    peers.owes("b", "a")
    async with open_nursery() as nursery:
        nursery.start_soon(watch_patience, timed)
        async with open_nursery() as readers:
            for name in "ab":
                readers.start_soon(peers.read, name)
            await anyio.sleep(35)
            assert len(warnings_of(caplog)) == 3  # at 10, 20 and 30 s
            assert not peers.given_up
            peers.outlets["a"].work(4)
        nursery.cancel_scope.cancel()
    assert len(warnings_of(caplog)) == 3
    for message in warnings_of(caplog):
        assert "in a ring: a waits on box to b (4 items, 40 bytes), b waits on box to a" in message
        assert message.endswith("; its policy is to wait")


async def test_of_a_mixed_ring_only_who_may_be_given_up_is(
    autojump_clock: MockClock, timed: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    """Each by its own policy and patience, as outside of rings."""
    peers = Peers(timed, "a b")
    peers.outlets["a"].policy, peers.outlets["a"].patience = StuckPolicy.WAIT, 5.0
    peers.owes("b", "a", 50)
    peers.owes("a", "b")
    async with open_nursery() as nursery:
        nursery.start_soon(watch_patience, timed)
        async with open_nursery() as readers:
            for name in "ab":
                readers.start_soon(peers.read, name)
            await anyio.sleep(19.9)
            assert len(warnings_of(caplog)) == 3
            assert all("policy is to wait" in message for message in warnings_of(caplog))
        assert peers.given_up == ["b"]
        nursery.cancel_scope.cancel()
    assert len(warnings_of(caplog)) == 4
    assert "box to b made no progress" in warnings_of(caplog)[3]


async def test_who_is_left_over_of_a_ring_has_its_patience_anew(
    autojump_clock: MockClock, timed: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    """It could not move while the ring stood; then it can, and does not."""
    peers = Peers(timed, "a b c publisher")
    for debtor, holder, items in (("a", "b", 4), ("b", "c", 9), ("c", "a", 4)):
        peers.owes(debtor, holder, items)
    peers.owes("publisher", "a")
    async with open_nursery() as nursery:
        nursery.start_soon(watch_patience, timed)
        for name in "abc":
            nursery.start_soon(peers.accounts[name].ensure_clear_funds)
        async with open_nursery() as readers:
            readers.start_soon(peers.accounts["publisher"].ensure_clear_funds)
            await anyio.sleep(21)
            assert peers.given_up == ["c"]
            await anyio.sleep(18)
            assert peers.given_up == ["c"]
        # The publisher still waited on `a`'s.
        assert 40.0 <= anyio.current_time() <= 41.0
        assert "a" in peers.given_up
        nursery.cancel_scope.cancel()
    for outlet in peers.outlets.values():
        outlet.close()


async def test_who_is_left_over_of_a_ring_and_on_another_has_not(
    autojump_clock: MockClock, timed: Ledger
) -> None:
    peers = Peers(timed, "a b c d")
    for debtor, holder, items in (("a", "b", 4), ("b", "a", 9), ("c", "d", 4), ("d", "c", 4)):
        peers.owes(debtor, holder, items)
    peers.owes("a", "c", 1)
    peers.owes("c", "a", 1)
    async with open_nursery() as nursery:
        nursery.start_soon(watch_patience, timed)
        async with open_nursery() as readers:
            for name in "abcd":
                readers.start_soon(peers.read, name)
            await anyio.sleep(20.2)
            assert peers.given_up == ["a"]
        # At the next look.
        assert 20.25 <= anyio.current_time() <= 20.5
        nursery.cancel_scope.cancel()
    assert peers.given_up == ["a", "c"]


async def test_of_a_ring_as_many_are_given_up_as_let_one_go_on(
    autojump_clock: MockClock, timed: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    """Twenty that wait together, one at a time, would be waited for ten times as long."""
    server = timed.open("server", limit=Limit(items=100))
    peers = Peers(timed, "")
    for n in range(20):
        account = peers.accounts[f"{n}"] = timed.open(f"{n}", limit=NO_LIMIT, parent=server)
        outlet = peers.outlets[f"{n}"] = Box(timed, f"to {n}")
        outlet.owner = account
    for n in range(20):
        peers.owes(f"{n}", f"{(n + 1) % 20}", 10 if n % 2 else 5)
    async with open_nursery() as nursery:
        nursery.start_soon(watch_patience, timed)
        async with open_nursery() as readers:
            for name in peers.accounts:
                readers.start_soon(peers.read, name)
        assert 20.0 <= anyio.current_time() <= 20.5
        nursery.cancel_scope.cancel()
    # 150 are owed; at 50 they go on.
    assert len(peers.given_up) == 10
    assert all(int(name) % 2 == 0 for name in peers.given_up)  # those that held most
    messages = warnings_of(caplog)
    assert len(messages) == 10
    assert [("in a ring: " in message) for message in messages] == [True] + [False] * 9


async def test_all_that_one_connection_holds_is_given_up_with_it(
    autojump_clock: MockClock, timed: Ledger
) -> None:
    peers = Peers(timed, "a b")
    second = Box(timed, "second to a")
    second.owner = peers.accounts["a"]
    peers.owes("a", "b")
    peers.owes("b", "a", 8)
    publish(peers.accounts["b"], [second], items=1)
    async with open_nursery() as nursery:
        nursery.start_soon(watch_patience, timed)
        async with open_nursery() as readers:
            for name in "ab":
                readers.start_soon(peers.read, name)
        nursery.cancel_scope.cancel()
    assert peers.given_up == ["a"]
    assert second.given_up
    assert timed.statistics().repaid_items["written_off"] == 9


async def test_outside_of_the_ring_everybody_is_dealt_with_as_ever(
    autojump_clock: MockClock, timed: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    peers = Peers(timed, "a b")
    peers.owes("a", "b", 4)
    peers.owes("b", "a", 7)
    publisher = timed.open("publisher", limit=Limit(items=1))
    stuck = boxes(timed, 3)
    publish(publisher, stuck)
    async with open_nursery() as nursery:
        nursery.start_soon(watch_patience, timed)
        async with open_nursery() as readers:
            readers.start_soon(publisher.ensure_clear_funds)
            for name in "ab":
                readers.start_soon(peers.read, name)
        nursery.cancel_scope.cancel()
    assert all(box.given_up for box in stuck)
    assert peers.given_up == ["a"]
    assert len(warnings_of(caplog)) == 4
    assert len([m for m in warnings_of(caplog) if "in a ring: " in m]) == 1


async def test_if_one_of_a_ring_cannot_be_given_up_another_is(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    class Stubborn(Box):
        def give_up(self, why: str) -> None:
            raise OSError("it will not")

    ledger = Ledger(clock=anyio.current_time)
    peers = Peers(ledger, "a b")
    peers.outlets["a"].close()
    ledger.unregister(peers.outlets["a"])
    peers.outlets["a"] = Stubborn(ledger, "stubborn")
    peers.outlets["a"].owner = peers.accounts["a"]
    peers.owes("a", "b", 4)
    peers.owes("b", "a", 9)
    async with open_nursery() as nursery:
        nursery.start_soon(watch_patience, ledger)
        nursery.start_soon(peers.read, "b")
        with anyio.fail_after(60):
            await peers.read("a")
        nursery.cancel_scope.cancel()
    assert "stubborn could not be given up" in caplog.text
    assert peers.given_up == ["b"]
    for outlet in peers.outlets.values():
        outlet.close()
    ledger.audit()


async def test_who_ends_itself_since_it_cannot_be_relieved_opens_the_ring(
    autojump_clock: MockClock, timed: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    """The other stays, and what has become of the first is told as of anybody who is given up."""

    class Rigid(Box):
        policies = frozenset(StuckPolicy)

        def relieve(self, why: str, fields: Mapping[str, object] | None = None) -> None:
            self.give_up(why)
            self.ledger.unregister(self)

    peers = Peers(timed, "a b")
    for name in peers.outlets:
        timed.unregister(peers.outlets[name])
        peers.outlets[name] = Rigid(timed, f"to {name}", policy=StuckPolicy.DROP_OLDEST)
        peers.outlets[name].owner = peers.accounts[name]
    peers.owes("a", "b", 4)
    peers.owes("b", "a", 7)
    async with open_nursery() as nursery:
        nursery.start_soon(watch_patience, timed)
        async with open_nursery() as readers:
            readers.start_soon(peers.read, "a")
            readers.start_soon(peers.read, "b")
        nursery.cancel_scope.cancel()
    assert peers.given_up == ["a"]
    (incident,) = timed.incidents.latest()
    assert incident.holder == "to a"
    assert incident.given_up is not None
    assert (incident.given_up.items, incident.given_up.ring) == (7, 2)


async def test_while_many_are_dealt_with_others_go_on(
    autojump_clock: MockClock, timed: Ledger
) -> None:
    """Who has taken something, or has ended, meanwhile is let off."""
    account = timed.open("publisher", limit=Limit(items=1))
    began = anyio.Event()

    class Telling(Box):
        def give_up(self, why: str) -> None:
            super().give_up(why)
            began.set()

    # In four steps: whoever is spared, there are two between which others have a turn.
    holders: list[Box] = [Telling(timed, f"O{n}") for n in range(4 * DEALT_A_STEP)]
    rounds = 0
    spared: list[Box] = []

    async def others() -> None:
        nonlocal rounds
        await began.wait()
        while not all(box.given_up or box in spared for box in holders):
            rounds += 1
            if not spared:
                moved, ended = [box for box in holders if not box.given_up][-2:]
                spared.extend((moved, ended))
                moved.progressed_at = anyio.current_time() + 1
                ended.close()
                timed.unregister(ended)
            await anyio.lowlevel.checkpoint()

    publish(account, holders, items=1)
    async with open_nursery() as nursery:
        nursery.start_soon(watch_patience, timed)
        nursery.start_soon(account.ensure_clear_funds)
        await others()
        nursery.cancel_scope.cancel()
    assert rounds >= 2
    assert not any(box.given_up for box in spared)
    spared[0].close()


def test_no_holder_is_looked_at_while_no_reader_waits() -> None:
    def untouched() -> Iterator[Box]:
        raise AssertionError
        yield

    ledger = Ledger()
    account = ledger.open("reader")
    rates = ClearingRates()
    # Neither without a reader that waits, nor with one that owes nothing itself.
    for waiting in ((), (account,)):
        assert run_to_end(rates.look_in_steps(waiting, untouched(), 1.0)) == []
