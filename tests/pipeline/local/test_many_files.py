"""A table of many files is copied first, and says the same."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from clearfunds.pipeline.journal._place import find
from clearfunds.pipeline.journal._selection import select
from clearfunds.pipeline.local import open_local
from clearfunds.pipeline.report._compute import TABLES
from tests.pipeline.ledger.generated import generate
from tests.pipeline.local.test_same_as_spark import ARGUMENTS, same, write

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("last", [None, 600.0])
def test_it_says_the_same(
    last: float | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    selection = select(find(write(generate(5_000), tmp_path / "it's a journal")), last)
    files = {name: selection.files(name) for name in selection.folders}
    found: list[dict[str, Any]] = []
    for most in (64, 0):
        monkeypatch.setattr("clearfunds.pipeline.local._engine.MANY", most)
        with open_local(files, selection.since_ns, threads=2, memory=1 << 28) as journal:
            answers = {name: journal.answer(name, *ARGUMENTS) for name in TABLES[1:]}
            found.append({**answers, "overview": journal.overview()})
    assert found[0]["overview"].to_pylist()[0]["rows"] > 100
    for name, table in found[0].items():
        same(name, table, found[1][name])
