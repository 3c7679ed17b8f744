"""Rule 11: rings under each policy, with whatever makes their readers wait."""

from __future__ import annotations

import logging
from collections.abc import Hashable, Iterator
from typing import Any, ClassVar

import anyio
import pytest
from anyio import wait_all_tasks_blocked
from trio.testing import MockClock

from clearfunds.accounts import (
    NO_LIMIT,
    Account,
    Holder,
    Ledger,
    Limit,
    LoanedItem,
    LoanQueue,
    RateLimit,
    StuckPolicy,
    rings,
    watch_patience,
)
from tests.accounts.conftest import balance
from tests.loops import LoopClock, open_nursery

pytestmark = pytest.mark.rule(11)


PATIENCE = 5.0
LOW = Limit(items=3)
RELIEVING = [policy for policy in StuckPolicy if policy.relieves]
GATES = ["account", "share"]


@pytest.fixture
def timed(autojump_clock: MockClock) -> Iterator[Ledger]:
    """A ledger on the loop's own clock. (A test has to name `autojump_clock`, too.)"""
    ledger = Ledger(clock=LoopClock())
    yield ledger
    balance(ledger)


class Elsewhere(Holder):
    """Where things are put aside: it has them safe at once."""

    kind = "elsewhere"

    def hold(self, account: Account, item: Any, items: int, nbytes: int, now: float) -> None:
        account.repay(items, nbytes)

    def ready(self) -> None:
        pass

    def loans(self) -> Iterator[LoanedItem[Any]]:
        return iter(())

    def give_up(self, why: str) -> None:
        raise AssertionError


class Wire(LoanQueue):
    """The way out to a peer, which takes what is there when it is told to."""

    kind = "wire"
    policies: ClassVar[frozenset[StuckPolicy]] = frozenset(StuckPolicy)

    def __init__(self, ledger: Ledger, name: str, **options: Any) -> None:
        super().__init__(ledger, name, **options)
        self.elsewhere = Elsewhere(ledger, f"beside {name}")

    def ready(self) -> None:
        pass

    def key_of(self, entry: Any) -> Hashable:
        return str(entry)

    def spill(self, account: Account, entry: Any, items: int, nbytes: int, now: float) -> None:
        self.elsewhere.hold(account, entry, items, nbytes, now)

    def take(self) -> None:
        """Take all."""
        while self.queue:
            self.queue.popleft().settle()
        if self.lagging:
            self.caught_up()

    def give_up(self, why: str) -> None:
        self.closed = True
        for loan in self.queue:
            loan.settle()
        self.queue.clear()


class Peers:
    """Connections, each with an account and a wire; who is read again takes what is there for it.

    With the gate `share`, they are siblings under an account that is shared, and wait for their
    part of its limit; their own is far.
    """

    def __init__(self, ledger: Ledger, names: str, gate: str = "account", **options: Any) -> None:
        self.ledger = ledger
        self.parent: Account | None = None
        limit = LOW
        if gate == "share":
            # For each of them three items, as it is with limits of their own.
            shared = Limit(items=3 * len(names.split()))
            self.parent = ledger.open("tenant", limit=shared, shared=True)
            limit = NO_LIMIT
        self.accounts = {
            name: ledger.open(name, limit=limit, parent=self.parent) for name in names.split()
        }
        options.setdefault("patience", PATIENCE)
        self.wires = {name: Wire(ledger, f"to {name}", **options) for name in self.accounts}
        for name, wire in self.wires.items():
            wire.owner = self.accounts[name]

    def owes(self, debtor: str, holder: str, items: int = 4) -> None:
        for number in range(items):
            with self.accounts[debtor].turn(nbytes=10) as turn:
                turn.send(self.wires[holder], number % 2, nbytes=10)

    async def read(self, name: str) -> None:
        await self.accounts[name].ensure_clear_funds()
        self.wires[name].take()

    def close(self) -> None:
        for wire in self.wires.values():
            wire.take()


def round_of(names: str) -> list[tuple[str, str]]:
    every = names.split()
    return list(zip(every, [*every[1:], every[0]], strict=True))


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("names", ["a", "a b", "a b c"])
@pytest.mark.parametrize("policy", StuckPolicy)
async def test_a_ring_is_found_named_and_resolved(
    policy: StuckPolicy,
    names: str,
    gate: str,
    autojump_clock: MockClock,
    timed: Ledger,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Self-debt, two, and three in a ring; by the policy of one member the others go on."""
    peers = Peers(timed, names, gate, policy=policy, retain_limit=Limit(items=2))
    for debtor, holder in round_of(names):
        peers.owes(debtor, holder, 6)
    async with open_nursery() as nursery:
        nursery.start_soon(watch_patience, timed)
        async with open_nursery() as readers:
            for name in peers.accounts:
                readers.start_soon(peers.read, name)
            await wait_all_tasks_blocked()
            reasons = {account.statistics().waiting for account in peers.accounts.values()}
            assert reasons == {1}
            await anyio.sleep(PATIENCE - 1)
            (ring,) = rings(timed)
            assert sorted(ring.members) == names.split()
            assert not caplog.records
            await anyio.sleep(1.6)
            (record, *more) = warnings_of(caplog)
            assert ring.sentence() in record.message
            if policy is StuckPolicy.WAIT:
                assert record.message.endswith("; its policy is to wait")
                for wire in peers.wires.values():
                    wire.take()
            elif policy.relieves:
                assert "; it is behind now: " in record.message
                # Where it was relieved, its own reader went on, took what was there, and so on.
                assert len([r for r in more if "it is behind now" in r.message]) == 0
                (incident,) = timed.incidents.latest()
                assert incident.relieved is not None
                assert incident.relieved.ring == len(names.split())
            else:
                assert record.message.endswith("; giving it up, its debt is written off")
        assert anyio.current_time() <= PATIENCE + 0.7
        waited = timed.statistics().waited_by_reason
        assert waited[gate] == sum(waited.values()) > 0
        nursery.cancel_scope.cancel()
    peers.close()
    assert not timed.lagging


@pytest.mark.parametrize("policy", RELIEVING)
async def test_rather_one_that_stays_than_one_that_goes(
    policy: StuckPolicy, autojump_clock: MockClock, timed: Ledger
) -> None:
    peers = Peers(timed, "a b c")
    peers.wires["c"].policy = policy
    # Of all of them it holds least.
    for debtor, holder, items in (("a", "b", 9), ("b", "c", 4), ("c", "a", 8)):
        peers.owes(debtor, holder, items)
    async with open_nursery() as nursery:
        nursery.start_soon(watch_patience, timed)
        async with open_nursery() as readers:
            for name in "abc":
                readers.start_soon(peers.read, name)
        nursery.cancel_scope.cancel()
    assert PATIENCE <= anyio.current_time() <= PATIENCE + 0.5
    assert not any(wire.closed for wire in peers.wires.values())
    assert [name for name, wire in peers.wires.items() if wire.relief.spells] == ["c"]


async def test_a_relief_that_fails_is_somebody_elses(
    autojump_clock: MockClock, timed: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    class Stubborn(Wire):
        def relieve(self, why: str, fields: Any = None) -> None:
            raise OSError("it will not")

    peers = Peers(timed, "a b")
    peers.wires["a"] = Stubborn(
        timed, "stubborn", patience=PATIENCE, policy=StuckPolicy.DROP_OLDEST
    )
    peers.wires["a"].owner = peers.accounts["a"]
    peers.owes("a", "b")
    peers.owes("b", "a")
    async with open_nursery() as nursery:
        nursery.start_soon(watch_patience, timed)
        async with open_nursery() as readers:
            readers.start_soon(peers.read, "a")
            readers.start_soon(peers.read, "b")
        nursery.cancel_scope.cancel()
    assert "stubborn could not be relieved" in caplog.text
    assert peers.wires["b"].closed


@pytest.mark.parametrize("policy", [StuckPolicy.DISCONNECT, StuckPolicy.DROP_OLDEST])
async def test_two_relays_that_echo_each_other_each_see_their_half(
    policy: StuckPolicy, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Two ledgers: neither knows of the other's debt, each finds a ring of one."""
    ledgers = [Ledger(clock=LoopClock()) for _ in range(2)]
    sides = [Peers(ledger, name, policy=policy) for ledger, name in zip(ledgers, "lr", strict=True)]
    left, right = sides
    went_on: list[str] = []

    async def relay(mine: Peers, name: str, other: Peers) -> None:
        # What comes out of the one goes into the other, but only while that one reads.
        mine.owes(name, name, 8)
        await mine.accounts[name].ensure_clear_funds()
        went_on.append(name)
        for wire in other.wires.values():
            wire.take()

    async with open_nursery() as nursery:
        for ledger in ledgers:
            nursery.start_soon(watch_patience, ledger)
        async with open_nursery() as readers:
            readers.start_soon(relay, left, "l", right)
            readers.start_soon(relay, right, "r", left)
            await anyio.sleep(PATIENCE - 1)
            members = [[ring.members for ring in rings(ledger)] for ledger in ledgers]
            assert members == [[("l",)], [("r",)]]
        assert PATIENCE <= anyio.current_time() <= PATIENCE + 0.5
        nursery.cancel_scope.cancel()
    assert sorted(went_on) == ["l", "r"]
    named = [r.message for r in warnings_of(caplog) if "in a ring of one: " in r.message]
    assert 1 <= len(named) <= 2
    for side in sides:
        side.close()
    for ledger in ledgers:
        ledger.audit()


async def test_who_waits_for_its_rate_is_on_no_ring_until_that_is_over(
    autojump_clock: MockClock, timed: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    """It goes on by itself. What it finds then is another matter, and found within patience."""
    peers = Peers(timed, "a b", policy=StuckPolicy.DROP_OLDEST)
    a = peers.accounts["a"]
    a.rate = RateLimit(items_per_s=1.0, burst_items=1)
    for _ in range(11):
        with a.turn():
            pass
    peers.owes("b", "a", 6)
    went_on: list[float] = []

    async def read_at_a_rate() -> None:
        await a.ensure_clear_funds()
        went_on.append(anyio.current_time())
        # One packet, whose fan-out is more than it may owe.
        a.rate = None
        peers.owes("a", "b", 6)
        await peers.read("a")
        went_on.append(anyio.current_time())

    async with open_nursery() as nursery:
        nursery.start_soon(watch_patience, timed)
        peers.wires["a"].patience = 1000.0
        async with open_nursery() as readers:
            readers.start_soon(read_at_a_rate)
            readers.start_soon(peers.read, "b")
            await anyio.sleep(9)
            assert timed.statistics().waited_by_reason["rate"] > 8
            assert rings(timed) == ()
            assert not warnings_of(caplog)
        nursery.cancel_scope.cancel()
    first, second = went_on
    assert first == pytest.approx(10, abs=1)
    assert PATIENCE <= second - first <= PATIENCE + 0.5
    (record,) = [r for r in warnings_of(caplog) if "it is behind now" in r.message]
    assert "in a ring: a waits on wire to b (6 items, 60 bytes), b waits on wire to a" in (
        record.message
    )
    peers.close()
