"""Rule 16: standing state is a quota, not debt."""

from __future__ import annotations

import gc

import pytest

from clearfunds.accounts import Ledger, Limit, Quota, QuotaExceededError

pytestmark = pytest.mark.rule(16)


def test_what_stands_is_counted_and_is_no_debt(ledger: Ledger) -> None:
    account = ledger.open("a", limit=Limit(items=0))
    standing = account.standing()
    standing.check(3, 300)
    standing.add(3, 300)
    statement = account.statistics()
    assert (statement.standing_items, statement.standing_bytes) == (3, 300)
    assert (statement.debt_items, statement.state) == (0, "clear")
    standing.release(1, 100)
    totals = ledger.statistics()
    assert (totals.standing_items, totals.standing_bytes) == (2, 200)
    ledger.audit()


@pytest.mark.parametrize(
    ("items", "nbytes", "allowed"),
    [(2, 20, True), (3, 0, False), (0, 21, False), (-1, 20, True), (3, -50, False), (0, 0, True)],
)
def test_the_quota_of_an_owner(items: int, nbytes: int, allowed: bool) -> None:
    ledger = Ledger(quota=Quota(items=10, bytes=100))
    standing = ledger.standing_of("alice")
    standing.add(8, 80)
    if allowed:
        standing.check(items, nbytes)
    else:
        with pytest.raises(QuotaExceededError, match="take some back, or raise the quota"):
            standing.check(items, nbytes)
    assert (standing.items, standing.bytes) == (8, 80)  # a check counts nothing


def test_a_refusal_says_what_there_is() -> None:
    standing = Ledger(quota=Quota(items=10, bytes=100)).standing_of("alice")
    standing.add(10, 90)
    with pytest.raises(QuotaExceededError, match="10 assertions and retained messages and has 10"):
        standing.check(1, 0)
    with pytest.raises(QuotaExceededError, match=r"keep 100 bytes .* has 90 and asks for 11 more"):
        standing.check(0, 11)


def test_whoever_is_over_the_quota_may_always_take_back() -> None:
    """After a quota was lowered, say: replacing by something smaller is allowed, too."""
    ledger = Ledger(quota=Quota(items=1, bytes=10))
    standing = ledger.standing_of("alice")
    standing.add(5, 50)
    standing.check(0, -1)
    standing.check(-1, -10)


def test_no_quota() -> None:
    standing = Ledger(quota=Quota(items=None, bytes=None)).standing_of("alice")
    standing.add(1 << 40, 1 << 50)
    standing.check(1 << 40, 1 << 50)


def test_the_quota_of_one_owner_is_not_anothers() -> None:
    ledger = Ledger(quota=Quota(items=1))
    ledger.standing_of("alice").add(1, 1)
    ledger.standing_of("bob").check(1, 1)


@pytest.mark.rule(14)
def test_it_outlives_the_account(ledger: Ledger) -> None:
    """As retained messages do: known by the owner's name (rule 14 in spirit)."""
    with ledger.open("alice") as account:
        account.standing().add(2, 20)
    assert not ledger.accounts
    gc.collect()
    assert ledger.statistics().standing_items == 2
    with ledger.open("alice") as account:
        assert account.standing().items == 2
        account.standing().release(2, 20)
    assert ledger.statistics().standing_items == 0


def test_an_owner_has_one_quota_however_many_others_there_are() -> None:
    """Somebody who has nothing standing yet is not forgotten while somebody has it in hand."""
    ledger = Ledger(quota=Quota(items=5))
    alice = ledger.standing_of("alice")
    for i in range(3000):
        ledger.standing_of(f"owner {i}").add(1, 10)
    assert ledger.standing_of("alice") is alice
    alice.add(5, 50)
    with pytest.raises(QuotaExceededError):
        ledger.standing_of("alice").check(1, 1)
    assert ledger.statistics().standing_items == 3005


def test_owners_with_nothing_standing_are_forgotten() -> None:
    """Names that peers choose do not add up."""
    ledger = Ledger()

    def come_and_go(name: str) -> None:
        standing = ledger.standing_of(name)
        standing.add(1, 10)
        standing.release(1, 10)

    for i in range(3000):
        come_and_go(f"owner {i}")
        ledger.standing_of(f"visitor {i}")
    assert len(ledger.standings) == 0
