"""A cancellation at any checkpoint whatever leaves the books balanced and nobody in line.

The same scenario is run again and again under the same seed of Trio's scheduling, and cancelled one
step of one task later each time, until it comes to its end uncancelled.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio
import anyio.lowlevel
import attrs
import pytest
import trio
from trio.abc import Instrument

from clearfunds.accounts import NO_LIMIT, Account, Ledger, Limit, LoanedItem
from clearfunds.accounts._gate import gate_of
from tests.accounts.conftest import Box, run_seeded
from tests.loops import open_nursery


class CancelAtStep(Instrument):
    """Cancels a scope after so many steps of the scenario's tasks."""

    def __init__(self, step: int) -> None:
        self.step = step
        self.victim: Callable[[], anyio.CancelScope | None] = lambda: None
        self.began = False
        self.done = False

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        if self.began and not self.done:
            self.step -= 1
            if self.step < 0:
                self.done = True
                scope = self.victim()
                if scope is not None:
                    scope.cancel()


@attrs.define(eq=False)
class Shop:
    """Three readers under one tenant, two hands that answer, and one that packs."""

    ledger: Ledger
    tenant: Account
    accounts: list[Account]
    desk: Box
    counter: Box
    scopes: dict[str, anyio.CancelScope] = attrs.field(factory=dict[str, anyio.CancelScope])
    read: int = 0
    packed: int = 0

    @classmethod
    def open(cls) -> Shop:
        ledger = Ledger()
        tenant = ledger.open("tenant", limit=Limit(items=6, low_items=2))
        limits = [Limit(items=3, low_items=0), Limit(items=2), NO_LIMIT]
        accounts = [ledger.open(f"r{i}", limit=x, parent=tenant) for i, x in enumerate(limits)]
        return cls(ledger, tenant, accounts, Box(ledger, "desk"), Box(ledger, "counter"))

    async def reader(self, account: Account) -> None:
        """A source: reads four packets, each of which causes two events."""
        for packet in range(4):
            await account.ensure_clear_funds()
            await anyio.lowlevel.checkpoint()  # reads
            with account.turn(items=2, nbytes=20) as turn:
                turn.send(self.desk, packet, nbytes=10)
                turn.send(self.desk, packet, nbytes=10)
            self.read += 1

    async def hand(self) -> None:
        """A worker: answers each event, charged to whoever caused it (rule 2)."""
        while True:
            loan = await self.desk.receive()
            with loan as packets:
                for packet in packets:
                    await anyio.lowlevel.checkpoint()
                    with loan.turn() as turn:
                        turn.send(self.counter, packet, nbytes=5)

    async def packer(self) -> None:
        """Another worker, whose box closes with it."""
        try:
            while True:
                loan = await self.counter.receive()
                self.packed += await self.pack(loan)
        finally:
            self.counter.close()

    async def pack(self, loan: LoanedItem[list[Any]]) -> int:
        """Finish a loan in parts: split off, settled, and in tasks of its own."""
        n = loan.items
        with loan:
            if loan.items > 2:
                with loan.split(1):
                    await anyio.lowlevel.checkpoint()
            async with open_nursery() as nursery:
                nursery.start_soon(anyio.lowlevel.checkpoint)
                await anyio.lowlevel.checkpoint()
            if loan.items > 1:
                loan.settle(1)
                await anyio.lowlevel.checkpoint()
        return n

    async def scoped(self, name: str, task: Callable[..., Any], *args: Any) -> None:
        with anyio.CancelScope() as self.scopes[name]:
            try:
                await task(*args)
            finally:
                self.ledger.audit()

    async def serve(self) -> None:
        """Run until all has been read that will be, and all of it is packed."""
        async with open_nursery() as workers:
            self.scopes["everything"] = workers.cancel_scope
            workers.start_soon(self.scoped, "packer", self.packer)
            workers.start_soon(self.scoped, "hand 1", self.hand)
            workers.start_soon(self.scoped, "hand 2", self.hand)
            async with open_nursery() as readers:
                self.scopes["readers"] = readers.cancel_scope
                for account in self.accounts:
                    readers.start_soon(self.scoped, account.name, self.reader, account)
            while self.tenant.debt_items:
                await anyio.lowlevel.checkpoint()
            workers.cancel_scope.cancel()

    def nothing_is_left(self) -> None:
        ledger = self.ledger
        ledger.audit()
        assert not ledger.inside
        assert not ledger.turns
        for account in ledger.accounts.values():
            assert account.waiting == 0
            assert not account.line
            assert account.gated == gate_of(account).throttled
        for box in (self.desk, self.counter):
            assert not any(loan.items for loan in box.in_hand)
            box.close()
        ledger.audit()
        assert ledger.matrix() == []
        for account in (*self.accounts, self.tenant):
            assert account.debt_items == account.debt_bytes == 0
            account.close()
        assert not ledger.accounts
        totals = ledger.statistics()
        assert totals.borrowed_items == sum(totals.repaid_items.values())
        assert totals.waiting == totals.leaked_loans == 0


VICTIMS = ["everything", "readers", "r0", "r1", "r2", "hand 1", "packer"]


@pytest.mark.rule(3, 4, 6, 8)
@pytest.mark.parametrize("victim", VICTIMS)
# Every checkpoint of each victim in one order of steps; other orders take as long again.
@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 5))]
)
def test_cancelled_at_every_checkpoint(
    victim: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rules 3, 4, 6 and 8; the audit runs also whenever a task ends."""
    step = 0
    while True:
        instrument = CancelAtStep(step)
        shop = Shop.open()

        async def scenario(instrument: CancelAtStep = instrument, shop: Shop = shop) -> None:
            instrument.victim = lambda: shop.scopes.get(victim)
            instrument.began = True
            with anyio.fail_after(10):
                await shop.serve()

        run_seeded(scenario, seed, monkeypatch, instruments=[instrument])
        shop.nothing_is_left()
        if not instrument.done:
            break
        step += 1
    assert (shop.read, shop.packed) == (12, 24)
    assert step > 100  # checkpoints in all, at each of which it was cancelled once
    assert shop.ledger.statistics().waits > 0
