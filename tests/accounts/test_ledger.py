"""The ledger: totals that never fall, the matrix, the audit and what it finds."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import anyio
import pytest
from anyio import wait_all_tasks_blocked
from trio.testing import MockClock

from clearfunds.accounts import (
    NO_LIMIT,
    Account,
    AccountError,
    AuditError,
    ClosedAccountError,
    Ledger,
    Limit,
    LoanedItem,
    Outcome,
    Turn,
    lent,
)
from tests.accounts.conftest import Box, balance, boxes, owed, publish
from tests.loops import open_nursery

# -- opening --------------------------------------------------------------------------------------


def test_a_parent_has_to_be_in_the_books(ledger: Ledger) -> None:
    """Or what is owed below it would be in no total."""
    gone = ledger.open("server")
    gone.close()
    with pytest.raises(ClosedAccountError, match="account server is not in this ledger"):
        ledger.open("a", parent=gone)
    with pytest.raises(ClosedAccountError):
        ledger.open("a", parent=Ledger().open("server"))
    assert not ledger.accounts
    ledger.open("a", parent=ledger.open("server"))


@pytest.mark.rule(14)
def test_a_parent_that_is_being_paid_off_takes_children(ledger: Ledger) -> None:
    """Rule 14: its name is still known, and it stays until they are gone."""
    server = ledger.open("server")
    loan = server.lend("")
    server.close()
    child = ledger.open("a", parent=server)
    loan.settle()
    child.lend("").settle()
    assert sorted(ledger.accounts) == ["a", "server"]
    child.close()
    assert not ledger.accounts


# -- totals (rule 8) ------------------------------------------------------------------------------


def test_totals_never_fall(ledger: Ledger) -> None:
    """Counters of closed accounts are folded into totals."""
    server = ledger.open("server")
    box = Box(ledger, "box")
    before: dict[str, float] = {}
    for i in range(20):
        account = ledger.open(f"connection {i % 3}", parent=server)
        publish(account, [box, box], items=1 + i, nbytes=10 * i)
        if i % 2:
            box.work(2 * (1 + i))
        account.close()
        if i % 5 == 0:
            box.settle_all(Outcome.DROPPED)
        totals = ledger.statistics()
        now: dict[str, float] = {
            "borrowed items": totals.borrowed_items,
            "borrowed bytes": totals.borrowed_bytes,
            "waits": totals.waits,
            "waited": totals.waited_seconds,
            **{f"items {name}": n for name, n in totals.repaid_items.items()},
            **{f"bytes {name}": n for name, n in totals.repaid_bytes.items()},
        }
        assert all(now[name] >= before.get(name, 0) for name in now)
        assert totals.borrowed_items == sum(3 * (1 + j) for j in range(i + 1))
        assert totals.borrowed_bytes == sum(3 * 10 * j for j in range(i + 1))
        assert totals.borrowed_items - sum(totals.repaid_items.values()) == totals.debt_items
        assert totals.borrowed_bytes - sum(totals.repaid_bytes.values()) == totals.debt_bytes
        ledger.audit()
        before = now
    box.settle_all(Outcome.DROPPED)
    assert list(ledger.accounts) == ["server"]
    assert ledger.statistics().borrowed_items == 3 * sum(range(1, 21))


async def test_the_totals() -> None:
    clock = MockClock()
    ledger = Ledger(clock=clock.current_time)
    tenant = ledger.open("tenant", limit=NO_LIMIT)
    a = ledger.open("a", limit=Limit(items=1), parent=tenant)
    b = ledger.open("b", parent=tenant)
    ledger.open("idle")
    gone = ledger.open("gone")
    box = Box(ledger, "box")
    publish(a, [box], items=3, nbytes=30)
    publish(b, [box], items=2, nbytes=20)
    publish(gone, [box], nbytes=1)
    gone.close()
    a.standing().add(4, 400)
    b.standing().add(1, 100)
    async with open_nursery() as nursery:
        nursery.start_soon(a.ensure_clear_funds)
        await wait_all_tasks_blocked()
        clock.jump(3)
        totals = ledger.statistics()
        assert totals.accounts == {"clear": 1, "owing": 2, "throttled": 1, "closing": 1, "flow": 0}
        assert totals.holders == 2  # the box and the router
        assert (totals.debt_items, totals.debt_bytes) == (6, 51)  # each once
        assert totals.top_debt_items == 5
        assert (totals.borrowed_items, totals.borrowed_bytes) == (12, 102)
        assert totals.repaid_items["delivered"] == 6
        assert totals.repaid_bytes["delivered"] == 51
        assert (totals.waiting, totals.waits, totals.waited_seconds) == (1, 1, 3.0)
        assert totals.leaked_loans == 0
        assert (totals.standing_items, totals.standing_bytes) == (5, 500)
        box.work(6)
    totals = ledger.statistics()
    assert totals.accounts == {"clear": 4, "owing": 0, "throttled": 0, "closing": 0, "flow": 0}
    assert (totals.debt_items, totals.waiting, totals.waited_seconds) == (0, 0, 3.0)


# -- who holds whose debt -------------------------------------------------------------------------


@pytest.mark.rule(15)
def test_the_matrix_is_what_holders_hold() -> None:
    """Rule 15: computed from the loans themselves, the largest first."""
    now = [0.0]
    ledger = Ledger(clock=lambda: now[0])
    a, b = ledger.open("a", parent=ledger.open("server")), ledger.open("b")
    first, second = boxes(ledger, 2)
    publish(a, [first, second], items=2, nbytes=20)
    now[0] = 4.0
    publish(a, [first], items=1, nbytes=10)
    publish(b, [first], items=2, nbytes=90)
    loan = a.lend("", nbytes=7)
    taken = first.take()
    now[0] = 5.0
    with b.turn(b"xyz"):
        rows = [(r.account, r.holder, r.items, r.bytes, r.oldest_seconds) for r in ledger.matrix()]
    assert rows == [
        ("a", "O1", 3, 30, 5.0),
        ("b", "O1", 2, 90, 1.0),
        ("a", "O2", 2, 20, 5.0),
        ("a", "(loose)", 1, 7, 1.0),
        ("b", "router", 1, 3, 0.0),
    ]
    assert sum(row[2] for row in rows) == ledger.statistics().debt_items + 1  # the turn's input
    taken.settle()
    loan.settle()
    first.close()
    second.close()
    assert ledger.matrix() == []
    balance(ledger)


# -- the audit (rules 8 and 15) -------------------------------------------------------------------


class ForgetfulTurn(Turn):
    """A path that delivers without charging, as somebody may write one."""

    __slots__ = ()

    def _hand_over(self) -> list[Any]:
        for holder, item, items, nbytes, _ in self._deliveries:
            holder.hold(self.account, item, items, nbytes, self.opened)
        return []


def test_a_path_that_forgets_to_charge_is_found() -> None:
    ledger = Ledger()
    account = ledger.open("a", parent=ledger.open("server"))
    box = Box(ledger, "box")
    with ForgetfulTurn(account, 1, 0) as turn:
        turn.send(box, b"free", nbytes=4)
    with pytest.raises(AuditError) as caught:
        ledger.audit()
    assert caught.value.discrepancies == (
        "account server owes 0 items and 0 bytes, but holders have 1 items and 4 bytes of its",
        "account a owes 0 items and 0 bytes, but holders have 1 items and 4 bytes of its",
    )
    assert str(caught.value).startswith("the ledger does not balance:\n  account server owes")


def test_a_loan_made_without_charging_is_found() -> None:
    ledger = Ledger()
    account = ledger.open("a")
    box = Box(ledger, "box")
    box.queue.append(lent(account, [b""], 2, 8, box, 0.0))
    with pytest.raises(AuditError, match="owes 0 items and 0 bytes, but holders have 2 items"):
        ledger.audit()


def test_a_debt_without_a_loan_is_found() -> None:
    ledger = Ledger()
    account = ledger.open("a")
    box = Box(ledger, "box")
    publish(account, [box], items=3)
    loan = box.queue.popleft()  # gone from where it was, and not finished
    with pytest.raises(AuditError, match="owes 3 items and 0 bytes, but holders have 0 items"):
        ledger.audit()
    loan.settle()
    ledger.audit()


def test_a_repayment_that_nobody_owed_is_found() -> None:
    ledger = Ledger()
    account = ledger.open("a")
    account.repay(1, 0)
    with pytest.raises(AuditError, match="owes -1 items"):
        ledger.audit()


def test_totals_that_do_not_add_up_are_found() -> None:
    ledger = Ledger()
    ledger.open("a").lend("").settle()
    ledger.repaid_bytes[Outcome.ACKED] += 5
    with pytest.raises(AuditError, match="0 bytes were borrowed and 5 repaid, but 0 are owed"):
        ledger.audit()


def test_a_loan_held_twice_is_found(ledger: Ledger) -> None:
    account = ledger.open("a")
    box = Box(ledger, "box")
    publish(account, [box])
    box.queue.append(box.queue[0])
    with pytest.raises(AuditError, match="is held twice: by box and by box"):
        ledger.audit()
    box.queue.pop()
    loan: LoanedItem[list[Any]] = account.lend([])
    box.queue.append(loan)  # without `put`: still loose, too
    with pytest.raises(AuditError, match=r"is held twice: by box and by \(loose\)"):
        ledger.audit()
    loan.held_by(box)
    ledger.audit()
    box.work(2)


def test_loans_of_an_account_that_is_not_in_the_books_are_found() -> None:
    ledger, other = Ledger(), Ledger()
    box = Box(ledger, "box")
    publish(other.open("stranger"), [box])
    with pytest.raises(AuditError, match="account stranger is not in the ledger, but has loans"):
        ledger.audit()


def test_everything_that_is_wrong_is_said() -> None:
    ledger = Ledger()
    a, b = ledger.open("a"), ledger.open("b")
    ledger.open("c").lend("").settle()
    a.borrow(1, 10)
    b.borrow(2, 20)
    assert len(ledger.discrepancies()) == 2


@pytest.mark.rule(12)
def test_what_is_collected_while_the_audit_looks_is_no_discrepancy(ledger: Ledger) -> None:
    """Rule 12: finalizers run in the middle of anything."""
    account = ledger.open("a")
    forgotten: list[Any] = []

    class Shelf(Box):
        def loans(self) -> Iterator[LoanedItem[Any]]:
            forgotten.clear()
            return super().loans()

    shelf = Shelf(ledger, "shelf")
    forgotten.append(account.lend(""))
    with pytest.warns(ResourceWarning, match="before any holder took it"):
        ledger.audit()
    assert owed(account) == (0, 0)
    assert not shelf.queue


def test_a_holder_that_nobody_has_is_not_counted_any_more(ledger: Ledger) -> None:
    box = Box(ledger, "box")
    assert ledger.statistics().holders == 2
    del box
    gc.collect()
    assert ledger.statistics().holders == 1


def test_a_holder_that_went_away_with_its_loans_is_found() -> None:
    """Unregistered too early: nobody can see any more what it has."""
    ledger = Ledger()
    box = Box(ledger, "box")
    publish(ledger.open("a"), [box])
    ledger.unregister(box)
    with pytest.raises(AuditError, match="owes 1 items and 0 bytes, but holders have 0 items"):
        ledger.audit()
    box.work()
    ledger.audit()


def test_the_router_keeps_nothing(ledger: Ledger) -> None:
    router = ledger.router
    assert list(router.loans()) == []
    router.ready()
    router.give_up("no reason")
    with pytest.raises(AssertionError):
        router.hold(ledger.open("a"), b"", 1, 0, 0.0)


# -- a great fan-out ------------------------------------------------------------------------------


@pytest.mark.rule(5, 9)
async def test_a_fan_out_of_ten_thousand_with_a_limit_of_a_hundred(ledger: Ledger) -> None:
    """Rules 5 and 9: admitted, then waited for, never stuck."""
    account: Account = ledger.open("a", limit=Limit(items=100))
    peers = boxes(ledger, 10_000)
    read: list[int] = []

    async def reader() -> None:
        for i in range(3):
            await account.ensure_clear_funds()
            read.append(i)
            publish(account, peers, nbytes=1)

    with anyio.fail_after(60):
        async with open_nursery() as nursery:
            nursery.start_soon(reader)
            for i in range(3):
                await wait_all_tasks_blocked()
                assert read == list(range(i + 1))
                assert account.debt_items == 10_000 + (50 if i else 0)
                assert account.waiting == (i < 2)
                ledger.audit()
                for peer in peers:
                    while peer.queue and account.debt_items > 50:  # half of the limit
                        peer.work()
                        assert account.waiting == (i < 2)
    for peer in peers:
        peer.close()
    assert owed(account) == (0, 0)
    assert (account.peak_items, account.waits) == (10_051, 2)


def test_accounts_are_known_by_name_only_while_they_are_needed(ledger: Ledger) -> None:
    with pytest.raises(AccountError), ledger.open("a"):
        ledger.open("a", parent=ledger.open("b"))
    assert list(ledger.accounts) == ["b"]
