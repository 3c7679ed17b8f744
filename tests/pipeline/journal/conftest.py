"""What the tests of the journal share: a scene with accounts and holders, and a way to read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from clearfunds.accounts import Account, Ledger, LoanQueue, Outcome
from clearfunds.pipeline.journal import TABLES

pytest.importorskip("pyarrow", reason='pyarrow is not installed: pip install -e ".[test]"')


class Box(LoanQueue):
    """A holder that keeps what it gets until a test takes it."""

    __slots__ = ()

    kind = "box"

    def ready(self) -> None:
        pass

    def give_up(self, why: str) -> None:
        self.closed = True
        self.settle_all(Outcome.WRITTEN_OFF)


class Scene:
    """A ledger with two publishers below a server."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.server: Account = ledger.open("server")
        self.alice = ledger.open("alice", parent=self.server)
        self.bob = ledger.open("bob", parent=self.server)
        self.boxes = [Box(ledger, f"box {number}") for number in range(3)]


@pytest.fixture
def scene() -> Scene:
    return Scene(Ledger())


def rows(folder: Path, table: str) -> list[dict[str, Any]]:
    """Return what stands in the visible files of a table, by their names; each file is whole."""
    parquet: Any = pytest.importorskip("pyarrow.parquet")
    found: list[dict[str, Any]] = []
    for path in files(folder, table):
        read = parquet.ParquetFile(path).read()
        assert read.schema == TABLES[table].schema
        found += read.to_pylist()
    return found


def files(folder: Path, table: str) -> list[Path]:
    """Return the visible files of a table, in the order in which they were begun."""
    return sorted((folder / table).glob("date=*/hour=*/part-*.parquet"))


def hidden(folder: Path) -> list[Path]:
    """Return the files that are not complete."""
    return sorted(folder.glob("*/date=*/hour=*/.*"))


def sums(folder: Path) -> tuple[float, float]:
    """Return items and bytes of all that was settled or published, by their weights."""
    items = nbytes = 0.0
    for table in ("settlements", "publications"):
        for row in rows(folder, table):
            items += row["items"] * row["weight"]
            nbytes += row["bytes"] * row["weight"]
    return items, nbytes
