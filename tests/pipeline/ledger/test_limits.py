"""The recommended limits: an overload, the limits applied, the same load again."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np
import pytest

from clearfunds.pipeline._errors import OptionError
from clearfunds.pipeline.journal import TABLES
from clearfunds.pipeline.ledger import recommended_limits
from tests.pipeline.ledger.generated import pa, pq
from tests.pipeline.ledger.queue_model import BEGIN_NS, Slow, Source, simulate, steady
from tests.pipeline.ledger.test_agrees import rows

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

TARGET_MS = 500.0
SECONDS = 10.0
FAST = steady(60_000)
Scenario = tuple[dict[str, Source], dict[str, Slow]]


def unsteady(time: float, _size: int, rng: random.Random) -> float:
    """Between 1,400 and 2,600 a second, and each message different."""
    return rng.expovariate(1.0) / (1400 if int(time / 0.2) % 2 else 2600)


def scenarios() -> dict[str, Scenario]:
    """Return overloads: accounts by name, and holders."""
    slow = steady(2000)
    return {
        "one slow of three": (
            {"a": Source(("slow", "b", "c"))}, {"slow": slow, "b": FAST, "c": FAST}
        ),
        "no limits": ({"a": Source(("slow",), None, 2 << 20)}, {"slow": slow}),
        "unsteady": ({"a": Source(("slow",))}, {"slow": Slow(unsteady)}),
        "two publishers": (
            {"a": Source(("slow", "b")), "b": Source(("slow",))}, {"slow": slow, "b": FAST}
        ),
        "two slow": (
            {"a": Source(("slow", "slower"))}, {"slow": steady(2500), "slower": steady(1200)}
        ),
        "bytes": (
            {"a": Source(("slow",), size=lambda rng: int(rng.lognormvariate(7.5, 0.7)) + 1)},
            {"slow": Slow(lambda _time, size, _rng: size / 2e6)},
        ),
        "for a while": (
            {"a": Source(("slow",), offered=1500.0)},
            {"slow": Slow(lambda time, _size, _rng: 1 / (20_000 if time < 5 else 800))},
        ),
        "acknowledged": (
            {"a": Source(("slow",))},
            {"slow": attrs.evolve(slow, acknowledged_s=0.15)},
        ),
        "far away": (
            {"a": Source(("slow",))},
            {"slow": attrs.evolve(slow, acknowledged_s=0.8)},
        ),
        "very slow": ({"a": Source(("slow", "b"), 1000)}, {"slow": steady(20), "b": FAST}),
        "bystanders": (
            {
                "a": Source(("slow", "b")),
                "sensor": Source(("slow",), offered=20.0),
                "elsewhere": Source(("b",), offered=2000.0),
            },
            {"slow": slow, "b": FAST},
        ),
    }  # fmt: skip


OUT_OF_REACH = {"far away"}
"""Where no limit keeps the holds under the target: throughput is not to suffer for that."""


def measure(found: list[dict[str, Any]], account: str) -> tuple[float, float]:
    """Return an account's 99th percentile of hold times in ms at its worst holder, and its rate.

    The rate is that of messages which all have cleared: those that only wait in more places than
    before got nowhere.
    """
    mine = [each for each in found if each["account"] == account]
    worst, cleared = 0.0, len(mine)
    for holder in {each["holder"] for each in mine}:
        holds = [
            (each["settled_ns"] - each["opened_ns"]) / 1e6
            for each in mine
            if each["holder"] == holder
        ]
        worst = max(worst, float(np.percentile(holds, 99)))
        cleared = min(cleared, len(holds))
    return worst, cleared / SECONDS


def told_apart(name: str, what: str) -> str:
    return f"{name}/{what}"


def journal(
    found: dict[str, list[dict[str, Any]]], runs: dict[str, Scenario], folder: Path
) -> None:
    """Write what was found as the journal would have, all scenarios side by side."""
    at = datetime.fromtimestamp(BEGIN_NS / 1e9, UTC)
    settlements = [
        {
            "settled": datetime.fromtimestamp(each["settled_ns"] / 1e9, UTC),
            "opened_ns": each["opened_ns"],
            "settled_ns": each["settled_ns"],
            "account": told_apart(name, each["account"]),
            "parent": "server",
            "holder": told_apart(name, each["holder"]),
            "kind": "outlet",
            "outcome": "delivered",
            "items": 1,
            "bytes": each["bytes"],
            "weight": 1.0,
        }
        for name, some in found.items()
        for each in some
    ]
    accounts = [
        {
            "at": at, "at_ns": BEGIN_NS, "account": told_apart(name, account), "parent": "server",
            "state": "owing", "debt_items": 0, "debt_bytes": 0, "peak_items": 0, "peak_bytes": 0,
            "limit_items": source.limit_items, "limit_bytes": source.limit_bytes, "at_rest": None,
        }
        for name, (sources, _) in runs.items()
        for account, source in sources.items()
    ]  # fmt: skip
    # One whose debt was never looked at, that may owe nothing, and whose holds were none but one.
    alone = {**settlements[-1], "account": "spike", "holder": "spike/b", "opened_ns": BEGIN_NS}
    settlements += [{**alone, "settled_ns": BEGIN_NS} for _ in range(200)]
    settlements.append({**alone, "settled_ns": BEGIN_NS + 2 * 10**9})
    limits = [
        {"at": at, "at_ns": BEGIN_NS, "account": "spike", "limit_items": 0, "limit_bytes": None,
         "low_items": 0, "low_bytes": None}
    ]  # fmt: skip
    tables = {"settlements": settlements, "accounts": accounts, "limits": limits}
    for name, table in tables.items():
        made = pa.Table.from_pylist(table, schema=TABLES[name].schema)
        pq.write_table(made, folder / f"{name}.parquet")


def test_the_same_load_again_with_the_recommended_limits(
    spark: SparkSession, tmp_path: Path
) -> None:
    runs = scenarios()
    before = {name: simulate(*run, SECONDS) for name, run in runs.items()}
    journal(before, runs, tmp_path)
    settlements, accounts, limits = (
        spark.read.parquet(str(tmp_path / f"{name}.parquet"))
        for name in ("settlements", "accounts", "limits")
    )
    found = rows(recommended_limits(settlements, accounts, limits, target_ms=TARGET_MS))
    advice = {row["account"]: row for row in found.to_dict("records")}
    wrong: list[str] = []
    for name, (sources, holders) in runs.items():
        changed: dict[str, Source] = {}
        for account, source in sources.items():
            told = advice[told_apart(name, account)]
            items, nbytes = (
                None if np.isnan(told[unit]) else int(told[unit])
                for unit in ("limit_items", "limit_bytes")
            )
            # Never above what it was.
            assert source.limit_items is None or (items or 0) <= source.limit_items
            assert source.limit_bytes is None or (nbytes or 0) <= source.limit_bytes
            changed[account] = attrs.evolve(source, limit_items=items, limit_bytes=nbytes)
        after = simulate(changed, holders, SECONDS)
        for account, source in sources.items():
            (p99_before, rate_before), (p99, rate) = (
                measure(each, account) for each in (before[name], after)
            )
            told = advice[told_apart(name, account)]
            line = (
                f"{name}: {account}: {told['advice']}, {source.limit_items} -> "
                f"{changed[account].limit_items} items, {changed[account].limit_bytes} bytes; p99 "
                f"{p99_before:.0f} -> {p99:.0f} ms, {rate_before:.0f} -> {rate:.0f} a second"
            )
            assert p99_before > TARGET_MS or account == "elsewhere", line
            if (p99 > TARGET_MS and name not in OUT_OF_REACH) or rate < 0.9 * rate_before:
                wrong.append(line)
    assert not wrong, "\n".join(wrong)
    assert advice["far away/a"]["advice"] == "floor"
    assert advice["one slow of three/a"]["advice"] == "lower"
    assert advice["one slow of three/a"]["holder"] == "one slow of three/slow"
    assert advice["one slow of three/a"]["items_per_s"] == pytest.approx(2000, rel=0.05)
    assert advice["two slow/a"]["holder"] == "two slow/slower"
    assert advice["spike"]["advice"] == "keep"
    assert np.isnan(advice["spike"]["limit_items"])
    for innocent in ("sensor", "elsewhere"):
        assert advice[f"bystanders/{innocent}"]["advice"] == "keep"
        assert advice[f"bystanders/{innocent}"]["limit_items"] == 10_000


def test_what_it_is_asked_for_is_looked_at() -> None:
    nothing: Any = None
    for option in ("target_ms", "margin", "wake_ms"):
        options: Any = {option: -0.5}
        with pytest.raises(OptionError, match="must be above 0"):
            recommended_limits(nothing, **options)
