"""The local engine says what Spark says, cell by cell: columns, types and rows of every table."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clearfunds.accounts import Ledger, Limit, Outcome, commit_run
from clearfunds.pipeline._arrow import arrow
from clearfunds.pipeline.journal import TABLES as JOURNAL
from clearfunds.pipeline.journal import JournalSettings, open_journal
from clearfunds.pipeline.journal._place import find
from clearfunds.pipeline.journal._selection import select
from clearfunds.pipeline.ledger import read
from clearfunds.pipeline.local import open_local
from clearfunds.pipeline.report._compute import TABLES, Engine
from tests.pipeline.journal.conftest import Scene
from tests.pipeline.ledger.generated import generate
from tests.pipeline.report import overload

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

SECOND = 10**9
BEGIN = 1_760_000_000 * SECOND
"""Some minutes before an hour ends."""

#: The interval of debt over time, the target in ms, and the margin.
ARGUMENTS = (SECOND, 250.0, 0.8)


def write(tables: Mapping[str, Any], folder: Path) -> Path:
    """Write each row into the folder of its hour."""
    pa, pq, pc = arrow(), arrow("pyarrow.parquet"), arrow("pyarrow.compute")
    for name, table in tables.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        hours = pc.strftime(table[0], format="date=%Y-%m-%d/hour=%H")
        for hour in pc.unique(hours).to_pylist():
            into = folder / name / hour
            into.mkdir(parents=True, exist_ok=True)
            some = table.filter(pc.equal(hours, pa.scalar(hour)))
            pq.write_table(some, into / "part-1.parquet", compression="zstd")
    return folder


def as_table(name: str, rows: list[dict[str, Any]]) -> Any:
    """Return rows as a table of the journal, with its timestamps."""
    table = JOURNAL[name]
    first = table.columns[0].name
    return arrow().Table.from_pylist(
        [{**row, first: row[table.moment] // 1000} for row in rows], schema=table.schema
    )


def compare(spark: SparkSession, folder: Path, last: float | None = None) -> dict[str, Any]:
    """Check that both engines give the same for a journal; return what they give."""
    from clearfunds.pipeline.report._spark import spark_journal

    selection = select(find(folder), last)
    files = {name: selection.files(name) for name in selection.folders}
    since = selection.since_ns
    theirs: Engine = spark_journal(read(spark, folder, since_ns=since), since)
    found: dict[str, Any] = {}
    with open_local(files, since, threads=2) as ours:
        for name in TABLES:
            if name == "overview":
                pair = ours.overview(), theirs.overview()
            else:
                pair = ours.answer(name, *ARGUMENTS), theirs.answer(name, *ARGUMENTS)
            same(name, *pair)
            found[name] = pair[0].to_pylist()
    return found


def same(name: str, ours: Any, theirs: Any) -> None:
    """Compare two tables."""
    fields = [[(f.name, str(f.type)) for f in table.schema] for table in (ours, theirs)]
    assert fields[0] == fields[1], name
    keys = [n for n, kind in fields[0] if kind == "string" or n == "at"]
    lists = [
        sorted(table.to_pylist(), key=lambda row: [str(row[key]) for key in keys])
        for table in (ours, theirs)
    ]
    assert len(lists[0]) == len(lists[1]), name
    for mine, other in zip(*lists, strict=True):
        for column, value in mine.items():
            if isinstance(value, float):
                # The order of sums differs, and so may their last digits.
                assert value == pytest.approx(other[column], rel=1e-9, abs=1e-9), (
                    name,
                    column,
                    mine,
                    other,
                )
            else:
                assert value == other[column], (name, column, mine, other)


@pytest.mark.long
def test_thirty_thousand_settlements(spark: SparkSession, tmp_path: Path) -> None:
    folder = write(generate(30_000), tmp_path)
    found = compare(spark, folder)
    assert all(found.values())
    part = compare(spark, folder, 900.0)
    assert all(part.values())
    assert 0 < part["overview"][0]["rows"] < found["overview"][0]["rows"] / 2


@pytest.mark.long
def test_an_overload(spark: SparkSession, tmp_path: Path) -> None:
    overload.write(tmp_path)
    found = compare(spark, tmp_path)
    assert {row["advice"] for row in found["recommended_limits"]} >= {"keep", "lower"}


def test_an_empty_journal(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "stalls").mkdir()
    found = compare(spark, tmp_path)
    assert found["overview"][0]["rows"] == 0


async def test_a_journal_that_was_kept(spark: SparkSession, tmp_path: Path) -> None:
    scene = Scene(Ledger())
    rng = random.Random(5)
    ends = [Outcome.DELIVERED, Outcome.ACKED, Outcome.STORED, Outcome.DROPPED]
    async with open_journal(scene.ledger, tmp_path, JournalSettings(), label=str) as journal:
        for step in range(300):
            account = rng.choice([scene.alice, scene.alice, scene.bob])
            commit_run(account, scene.boxes[: rng.randint(1, 3)], f"topic {step % 3}", 2, 300)
            if step % 5 == 0:
                rng.choice(scene.boxes).settle_all(rng.choice(ends))
            if step % 50 == 0:
                account.limit = Limit(1000 + step, 100_000)
                await trio.sleep(0.3)
                journal.take_snapshot()
                await journal.flush()
    found = compare(spark, tmp_path)
    assert all(found[name] for name in ("debt_total", "blame", "recommended_limits", "fan_out"))


names = st.sampled_from(["a", "b", "é \U0001f600", "%_'\"\\", "server"])
parents = st.sampled_from([None, "server", "tenant/press/ann", "tenant/press", "other"])
kinds = st.sampled_from(["outlet", "queue", "router"])
moments = st.one_of(
    st.integers(0, 5).map(lambda n: BEGIN + n * SECOND),
    st.integers(BEGIN, BEGIN + 3600 * SECOND),
)
holds = st.one_of(st.sampled_from([0, 0, 1, SECOND]), st.integers(0, 900 * SECOND))
items = st.integers(0, 1000)
limit = st.one_of(st.none(), st.integers(1, 10**6))
weights = st.sampled_from([1.0, 1.0, 2.0, 7.0])
settlement = st.fixed_dictionaries(
    {
        "opened_ns": moments, "hold": holds, "account": names, "parent": parents,
        "holder": names, "kind": kinds, "outcome": st.sampled_from([o.label for o in Outcome]),
        "items": items, "bytes": items, "weight": weights,
    }
)  # fmt: skip
publication = st.fixed_dictionaries(
    {
        "at_ns": moments, "account": names, "parent": parents, "topic": names, "items": items,
        "bytes": items, "copies": items, "copied_bytes": items, "weight": weights,
    }
)  # fmt: skip
open_loan = st.fixed_dictionaries(
    {"account": names, "holder": names, "kind": kinds, "items": items, "bytes": items,
     "opened_ns": moments}
)  # fmt: skip
statement = st.fixed_dictionaries(
    {
        "parent": parents, "state": st.just("clear"), "debt_items": items, "debt_bytes": items,
        "peak_items": items, "peak_bytes": items, "limit_items": limit, "limit_bytes": limit,
        "at_rest": st.sampled_from([None, None, None, None, "disk"]),
    }
)  # fmt: skip
change = st.fixed_dictionaries(
    {"account": names, "limit_items": limit, "limit_bytes": limit, "low_items": limit,
     "low_bytes": limit}
)  # fmt: skip
stall = st.fixed_dictionaries(
    {"began_ns": moments, "hold": holds, "account": names, "at_account": names, "culprit": names,
     "reason": st.just("account")}
)  # fmt: skip
LOOKED = BEGIN + 1800 * SECOND


def _place_of(row: Any) -> tuple[str, ...]:
    return row["account"], row["holder"], row["kind"]


journals = st.fixed_dictionaries(
    {
        "settlements": st.lists(settlement, min_size=1, max_size=200),
        "publications": st.lists(publication, max_size=30),
        "open_loans": st.lists(
            open_loan,
            max_size=10,
            unique_by=_place_of,
        ),
        "accounts": st.dictionaries(names, statement, max_size=4),
        # What one moment has twice may come out either way.
        "limits": st.dictionaries(st.integers(1, 10**6), change, max_size=8),
        "stalls": st.lists(stall, max_size=20),
    }
)


@pytest.mark.long
@settings(
    max_examples=12,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(made=journals, last=st.one_of(st.none(), st.floats(1.0, 2000.0)), number=st.uuids())
def test_made_up_journals(
    spark: SparkSession, tmp_path: Path, made: dict[str, Any], last: float | None, number: object
) -> None:
    rows: dict[str, list[dict[str, Any]]] = {
        "settlements": [
            {**row, "settled_ns": row["opened_ns"] + row["hold"]} for row in made["settlements"]
        ],
        "publications": made["publications"],
        "open_loans": [
            {**row, "at_ns": LOOKED} for row in made["open_loans"] if row["opened_ns"] <= LOOKED
        ],
        "accounts": [
            {**row, "account": account, "at_ns": LOOKED}
            for account, row in made["accounts"].items()
        ],
        "limits": [{**row, "at_ns": BEGIN + at} for at, row in made["limits"].items()],
        "stalls": [{**row, "ended_ns": row["began_ns"] + row["hold"]} for row in made["stalls"]],
    }
    folder = tmp_path / str(number)
    write({name: as_table(name, some) for name, some in rows.items()}, folder)
    compare(spark, folder, last)
