"""Hundreds of small cases, full of coincidences, each computed by hand from what a loan is."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import attrs
import pytest

from clearfunds.pipeline.journal import TABLES
from clearfunds.pipeline.ledger import (
    blame,
    debt_over_time,
    fairness,
    hold_percentiles,
    peak_debt,
    read,
    still_open,
)
from tests.pipeline.ledger.generated import pa, write
from tests.pipeline.ledger.test_agrees import rows

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

CASES = 300
#: Cases are kept apart by their accounts; they have nothing to do with each other.
SECOND = 10**9
#: The end of a minute, at which peaks are put together from two sides.
BEGIN = 1_760_000_040 * SECOND
LOOKED = BEGIN + 2 * SECOND


@attrs.frozen
class Loan:
    """One that ended, or one that a snapshot found open."""

    account: str
    holder: str
    opened: int
    settled: int | None
    items: int
    bytes: int
    weight: float


def make_cases() -> list[Loan]:
    rng = random.Random(11)
    loans: list[Loan] = []
    for case in range(CASES):
        for _ in range(rng.randint(1, 12)):
            opened = BEGIN + rng.choice([-1, 0, 1, 2, 3]) * SECOND // 2 + rng.choice([0, 0, 1, 7])
            hold = rng.choice([0, 0, 1, 5, SECOND // 2, SECOND, 61 * SECOND])
            never = opened <= LOOKED and rng.random() < 0.1
            weight = 1.0 if never else rng.choice([1.0, 1.0, 3.0])
            items, size = rng.choice([1, 1, 2, 10]), rng.choice([0, 1, 100])
            loans.append(
                Loan(f"case{case}", rng.choice("hij"), opened, None if never else opened + hold,
                     items, items * size, weight)
            )  # fmt: skip
    return loans


def moment(ns: int) -> datetime:
    return datetime.fromtimestamp(ns // 1000 / 10**6, UTC)


def journal(loans: list[Loan], folder: Path) -> None:
    settlements = [
        {
            "settled": moment(each.settled), "opened_ns": each.opened, "settled_ns": each.settled,
            "account": each.account, "parent": None, "holder": each.holder, "kind": "outlet",
            "outcome": "delivered", "items": each.items, "bytes": each.bytes, "weight": each.weight,
        }
        for each in loans
        if each.settled is not None
    ]  # fmt: skip
    # Whatever was open at the snapshot, whether it ended afterwards or not.
    found: dict[tuple[str, str], list[Loan]] = {}
    for each in loans:
        if each.opened <= LOOKED and (each.settled is None or each.settled > LOOKED):
            found.setdefault((each.account, each.holder), []).append(each)
    snapshot = [
        {
            "at": moment(LOOKED), "at_ns": LOOKED, "account": account, "holder": holder,
            "kind": "outlet", "items": int(sum(each.items * each.weight for each in some)),
            "bytes": int(sum(each.bytes * each.weight for each in some)),
            "opened_ns": min(each.opened for each in some),
        }
        for (account, holder), some in found.items()
    ]  # fmt: skip
    tables = {"settlements": settlements, "open_loans": snapshot}
    write({n: pa.Table.from_pylist(t, schema=TABLES[n].schema) for n, t in tables.items()}, folder)


def as_told(loans: list[Loan]) -> list[Loan]:
    """Return the loans as the tables tell of them: open ones as one, by the oldest at a holder."""
    told = [each for each in loans if each.settled is not None]
    oldest: dict[tuple[str, str], int] = {}
    left: dict[tuple[str, str], list[Loan]] = {}
    for each in loans:
        key = (each.account, each.holder)
        if each.opened <= LOOKED and (each.settled is None or each.settled > LOOKED):
            oldest[key] = min(oldest.get(key, each.opened), each.opened)
        if each.settled is None:
            left.setdefault(key, []).append(each)
    for (account, holder), some in left.items():
        items, nbytes = sum(each.items for each in some), sum(each.bytes for each in some)
        told.append(Loan(account, holder, oldest[account, holder], None, items, nbytes, 1.0))
    return told


def alive(loans: list[Loan], unit: str, at: int) -> float:
    return sum(
        (each.items if unit == "items" else each.bytes) * each.weight
        for each in loans
        if each.opened <= at and (each.settled is None or at <= each.settled)
    )


@pytest.mark.long
def test_small_cases(spark: SparkSession, tmp_path: Path) -> None:
    loans = make_cases()
    journal(loans, tmp_path)
    tables = read(spark, tmp_path)
    told: dict[str, list[Loan]] = {}
    for each in as_told(loans):
        told.setdefault(each.account, []).append(each)

    left = rows(still_open(tables.settlements, tables.open_loans))
    assert sorted((row.account, row.holder, row.items, row.bytes) for row in left.itertuples()) == (
        sorted(
            (each.account, each.holder, float(each.items), float(each.bytes))
            for some in told.values()
            for each in some
            if each.settled is None
        )
    )

    debts: dict[str, dict[int, tuple[int, int]]] = {}
    for row in rows(debt_over_time(tables.settlements, tables.open_loans)).itertuples():
        at = int(row.at.timestamp()) * SECOND
        debts.setdefault(row.account, {})[at] = (row.debt_items, row.debt_bytes)
    peaks = {
        row.account: row
        for row in rows(peak_debt(tables.settlements, tables.open_loans)).itertuples()
    }
    assert set(debts) == set(peaks) == set(told)
    for account, some in told.items():
        moments = sorted({m for e in some for m in (e.opened, e.settled) if m is not None})
        ends = {(m // SECOND + 1) * SECOND for m in moments}
        assert set(debts[account]) == ends
        for at, owed in debts[account].items():
            # Nothing is made or ends between this and the end.
            just_before = at - 1
            ended = {e for e in some if e.settled == just_before}
            rest = [e for e in some if e not in ended]
            assert owed == (alive(rest, "items", just_before), alive(rest, "bytes", just_before))
        for unit in ("items", "bytes"):
            highs = [alive(some, unit, m) for m in moments]
            assert getattr(peaks[account], f"peak_{unit}") == max(highs)
            first = min(e.opened for e in some if alive(some, unit, e.opened) == max(highs))
            assert getattr(peaks[account], f"peak_{unit}_at_ns") == first

    by_account: dict[str, list[Loan]] = {}
    for each in loans:
        if each.settled is not None:
            by_account.setdefault(each.account, []).append(each)
    held = rows(hold_percentiles(tables.settlements, by=["account"], at=(0.0, 0.25, 0.5, 0.999, 1)))
    assert set(held["account"]) == set(by_account)
    for row in held.to_dict("records"):
        some = by_account[row["account"]]
        each_item = sorted(
            hold for e in some for hold in [(e.settled or 0) - e.opened] * int(e.items * e.weight)
        )
        assert row["items"] == len(each_item)
        assert row["max_ms"] == each_item[-1] / 1e6
        for share, name in ((0.25, "p25_ms"), (0.5, "p50_ms"), (0.999, "p99_9_ms"), (1, "p100_ms")):
            exact = each_item[max(0, -int(-share * len(each_item) // 1) - 1)] / 1e6
            assert row[name] == pytest.approx(exact, rel=0.005), name
        assert row["p0_ms"] == pytest.approx(each_item[0] / 1e6, rel=0.005)

    for row in rows(blame(tables.settlements, tables.open_loans)).to_dict("records"):
        mine = [e for e in told[row["account"]] if e.holder == row["holder"]]
        for unit in ("item", "byte"):
            amount = sum(
                getattr(e, f"{unit}s") * e.weight
                * ((LOOKED if e.settled is None else e.settled) - e.opened) / 1e9
                for e in mine
            )  # fmt: skip
            assert row[f"{unit}_seconds"] == pytest.approx(amount)

    sums = [sum(e.items * e.weight for e in some) for some in by_account.values()]
    found = rows(fairness(tables.settlements)).to_dict("records")
    assert len(found) == 1
    assert found[0]["tenants"] == len(sums)
    jain = sum(sums) ** 2 / (len(sums) * sum(x * x for x in sums))
    assert found[0]["fairness_items"] == pytest.approx(jain)
