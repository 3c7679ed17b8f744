"""The cost of the bookkeeping, operation by operation, in CPU time of this process.

    python benchmarks/micro.py            # a table
    python benchmarks/micro.py --check    # exit 1 if an operation costs more than it may

Each figure is the median over `--repeats` samples of at least 50 ms. The garbage collector stays
on, because it has to scan the loans. Every figure includes the cost of the loop itself, which is
in the first row.

Budgets are for a machine on which a checkpoint of Trio takes 3.6 us. On a slower one they grow in
proportion to what a checkpoint takes in the same run.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
from time import process_time
from typing import TYPE_CHECKING

import attrs
import trio

from clearfunds.accounts import (
    NO_LIMIT,
    Account,
    Ledger,
    Limit,
    LoanQueue,
    Outcome,
    commit_run,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

SAMPLE_SECONDS = 0.05
CHECKPOINT_NS = 3_600
"""A checkpoint of Trio where the budgets were set."""
FAN_OUT = 9
SIBLINGS = 10_000
SQUEEZED = 100


@attrs.frozen
class Case:
    """Something to measure."""

    name: str
    loop: Callable[[int], Awaitable[None]]
    """Does the operation that many times."""

    operations: int = 1
    """How many operations one turn of the loop is."""

    budget_ns: float | None = None
    """What one may cost."""


class Box(LoanQueue):
    """A holder that keeps what it gets until it is emptied."""

    kind = "box"

    def ready(self) -> None:
        """Do nothing."""

    def give_up(self, why: str) -> None:
        """Write off what it held."""
        self.settle_all(Outcome.WRITTEN_OFF)


def open_chain(ledger: Ledger) -> Account:
    """Open an account as the relay has them: a connection's, under a tenant's, under the server's.

    The connection has the default limit and the server has one in bytes.
    """
    server = ledger.open("server", limit=Limit(items=None, bytes=256 << 20))
    tenant = ledger.open("tenant", limit=Limit(items=None, bytes=None), parent=server)
    return ledger.open("connection", parent=tenant)


async def checkpoint(n: int) -> None:
    """Give others a turn, that many times."""
    for _ in range(n):
        await trio.lowlevel.checkpoint()


CHECKPOINT = Case("trio.lowlevel.checkpoint(), to compare", checkpoint)


def looking(alone: Account, below: Account) -> list[Case]:
    """Return the cases of looking whether the funds are clear."""

    async def empty(n: int) -> None:
        for _ in range(n):
            pass

    async def room(n: int) -> None:
        for _ in range(n):
            below.room()

    return [
        Case("empty loop", empty),
        *clear(alone, below),
        Case("room(), two limits in a chain of three", room),
        CHECKPOINT,
    ]


def clear(alone: Account, below: Account, how: str = "") -> list[Case]:
    """Return the cases of `ensure_clear_funds()` that need not wait."""

    async def clear_alone(n: int) -> None:
        for _ in range(n):
            await alone.ensure_clear_funds()

    async def clear_below(n: int) -> None:
        for _ in range(n):
            await below.ensure_clear_funds()

    name = "ensure_clear_funds(), clear"
    return [
        Case(name + how, clear_alone, budget_ns=200),
        Case(f"{name}, two limits in a chain of three{how}", clear_below, budget_ns=200),
    ]


def borrowing(alone: Account, below: Account) -> list[Case]:
    """Return the cases of borrowing and repaying, bare and by loans."""

    async def bare(n: int) -> None:
        for _ in range(n):
            alone.borrow(1, 200)
            alone.repay(1, 200)

    async def bare_below(n: int) -> None:
        for _ in range(n):
            below.borrow(1, 200)
            below.repay(1, 200)

    async def loan(n: int) -> None:
        for _ in range(n):
            alone.lend(None, nbytes=200).settle()

    async def block(n: int) -> None:
        for _ in range(n):
            with alone.lend(None, nbytes=200):
                pass

    return [
        Case("borrow(), repay()", bare),
        Case("borrow(), repay(), in a chain of three", bare_below),
        Case("lend(), settle()", loan),
        Case("with lend(): pass", block),
    ]


def fanning_out(ledger: Ledger, below: Account) -> list[Case]:
    """Return the cases of delivering to nine holders, each of which then repays."""
    boxes = [Box(ledger, f"box-{number}") for number in range(FAN_OUT)]

    def settle() -> None:
        for box in boxes:
            box.settle_all(Outcome.DELIVERED)

    async def turn(n: int) -> None:
        for _ in range(n):
            with below.turn(items=1, nbytes=200) as turn:
                for box in boxes:
                    turn.send(box, b"", nbytes=200)
            settle()

    async def run(n: int) -> None:
        for _ in range(n):
            commit_run(below, boxes, b"", 1, 200)
            settle()

    async def runs_that_join(n: int) -> None:
        for _ in range(n):
            for _ in range(50):
                commit_run(below, boxes, b"", 1, 200)
            settle()

    async def long_run(n: int) -> None:
        for _ in range(n):
            commit_run(below, boxes, b"", 100, 20_000)
            settle()

    return [
        Case("a delivery: a turn to nine holders, settled", turn, FAN_OUT),
        Case("a delivery: a run of one to nine holders, settled", run, FAN_OUT),
        Case("a delivery: 50 runs of one, joined, settled once", runs_that_join, 50 * FAN_OUT),
        Case("a delivery: a run of 100 to nine holders, settled", long_run, 100 * FAN_OUT),
    ]


def waiting(ledger: Ledger) -> list[Case]:
    """Return the case of a reader that has to wait, and is woken by a repayment."""
    account = ledger.open("waits", limit=Limit(items=0, low_items=0))

    async def wait(n: int) -> None:
        async def read() -> None:
            for _ in range(n):
                account.borrow(1, 0)
                await account.ensure_clear_funds()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            for _ in range(n):
                while not account.waiting:
                    await trio.lowlevel.checkpoint()
                account.repay(1, 0)
                await trio.lowlevel.checkpoint()

    return [Case("ensure_clear_funds() that waits and is woken", wait)]


async def sharing(nursery: trio.Nursery) -> list[Case]:
    """Return the cases of a sibling among ten thousand who owe, of whom a hundred wait."""
    ledger = Ledger()
    limit = Limit(items=SIBLINGS * 10, bytes=None)
    parent = ledger.open("parent", limit=limit, shared=True)
    siblings = [
        ledger.open(f"sibling-{number}", limit=NO_LIMIT, parent=parent)
        for number in range(SIBLINGS)
    ]
    innocent, *others = siblings
    greedy = others[:SQUEEZED]
    for account in siblings:
        account.borrow(1, 0)
    for account in greedy:
        account.borrow(1000, 0)

    async def read(account: Account) -> None:
        # For as long as it takes: some are let go on by what is measured, and wait again.
        while True:
            await account.ensure_clear_funds()
            account.borrow(20, 0)

    for account in greedy:
        nursery.start_soon(read, account)
    while sum(account.waiting for account in greedy) < SQUEEZED:
        await trio.lowlevel.checkpoint()

    async def look(n: int) -> None:
        for _ in range(n):
            await innocent.ensure_clear_funds()

    async def room(n: int) -> None:
        for _ in range(n):
            innocent.room()

    async def pay(n: int) -> None:
        for _ in range(n):
            innocent.borrow(1, 0)
            innocent.repay(1, 0)

    async def pay_squeezed(n: int) -> None:
        account = greedy[-1]
        for _ in range(n):
            account.borrow(1, 0)
            account.repay(1, 0)

    brim = Limit(items=SIBLINGS, low_items=SIBLINGS)
    full = ledger.open("full", limit=brim, shared=True)
    first, *_ = [
        ledger.open(f"owing-{number}", limit=NO_LIMIT, parent=full) for number in range(SIBLINGS)
    ]
    for account in full.below or ():
        account.borrow(1, 0)

    async def throttle(n: int) -> None:
        for _ in range(n):
            first.borrow(1, 0)
            first.funds_are_clear()
            first.repay(1, 0)

    among = f"{SIBLINGS:,} share, {SQUEEZED} wait"
    return [
        Case(f"ensure_clear_funds(), below its share; {among}", look, budget_ns=5000),
        Case(f"room(), below its share; {among}", room),
        Case(f"borrow(), repay(), below its share; {among}", pay, budget_ns=10_000),
        Case(f"borrow(), repay(), waiting; {among}", pay_squeezed, budget_ns=10_000),
        Case(f"the look that finds too much owed by {SIBLINGS:,} who share", throttle),
    ]


async def measure(case: Case, repeats: int) -> list[float]:
    """Return nanoseconds an operation, once for each sample, in order."""
    count, seconds = 1, 0.0
    while seconds < SAMPLE_SECONDS:
        # Grow in steps: the first guesses are too short to be trusted.
        count = max(2 * count, int(count * SAMPLE_SECONDS / seconds) if seconds > 0.001 else 0)
        seconds = await timed(case, count)
    samples = [await timed(case, count) for _ in range(repeats)]
    return sorted(sample * 1e9 / count / case.operations for sample in samples)


async def timed(case: Case, count: int) -> float:
    """Return the CPU seconds of `count` turns of a loop."""
    before = process_time()
    await case.loop(count)
    return process_time() - before


async def measure_all(repeats: int) -> list[str]:
    """Measure and print every case; return a sentence for each that costs more than it may.

    All of it under Trio; `ensure_clear_funds()` also under asyncio, with a ledger of its own.
    """
    ledger = Ledger()
    alone = ledger.open("alone")
    below = open_chain(ledger)
    cases = [
        *looking(alone, below),
        *borrowing(alone, below),
        *fanning_out(ledger, below),
        *waiting(ledger),
    ]
    print("| operation | ns, median | least | most | budget |")
    print("| - | - | - | - | - |")
    missed: list[str] = []
    slower = max(1.0, statistics.median(await measure(CHECKPOINT, repeats)) / CHECKPOINT_NS)
    for case in cases:
        await tell(case, repeats, missed, slower)
    ledger.audit()
    await trio.to_thread.run_sync(asyncio.run, measure_asyncio(repeats, missed, slower))
    async with trio.open_nursery() as nursery:
        for case in await sharing(nursery):
            await tell(case, repeats, missed, slower)
        nursery.cancel_scope.cancel()
    return missed


async def measure_asyncio(repeats: int, missed: list[str], slower: float) -> None:
    """Measure and print what a look costs under asyncio."""
    ledger = Ledger()
    for case in clear(ledger.open("alone"), open_chain(ledger), ", under asyncio"):
        await tell(case, repeats, missed, slower)


async def tell(case: Case, repeats: int, missed: list[str], slower: float) -> None:
    """Measure and print a case; add a sentence to `missed` if it costs more than it may.

    `slower`: how many times a checkpoint takes what it took where the budgets were set.
    """
    samples = await measure(case, repeats)
    median = statistics.median(samples)
    budget = None if case.budget_ns is None else case.budget_ns * slower
    shown = "" if budget is None else f"{budget:.0f}"
    print(f"| {case.name} | {median:.1f} | {samples[0]:.1f} | {samples[-1]:.1f} | {shown} |")
    if budget is not None and median > budget:
        missed.append(f"{case.name}: {median:.0f} ns, at most {budget:.0f}")


def main() -> int:
    """Read the command line; measure."""
    parser = argparse.ArgumentParser(description="The cost of the bookkeeping, in CPU time.")
    parser.add_argument("--repeats", type=int, default=7, help="samples of each operation (7)")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a budget is missed")
    arguments = parser.parse_args()
    if arguments.repeats < 1:
        parser.error("--repeats: at least 1")
    missed = trio.run(measure_all, arguments.repeats)
    for line in missed:
        print(f"micro: budget missed: {line}", file=sys.stderr)
    return 1 if missed and arguments.check else 0


if __name__ == "__main__":
    sys.exit(main())
