"""examples/ledger_pipeline: `spark-pipelines run` over a journal, and again when more has come."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from clearfunds.pipeline._arrow import arrow
from tests.pipeline.conftest import why_no_spark
from tests.pipeline.report import overload

EXAMPLE = Path(__file__).parents[2] / "examples" / "ledger_pipeline"
MISSING = [name for name in ("grpc", "grpc_status", "zstandard", "yaml") if find_spec(name) is None]
WHY_NOT = why_no_spark() or (
    f"{', '.join(MISSING)} not installed: pip install 'pyspark[pipelines]'" if MISSING else None
)


def prepared(folder: Path) -> Path:
    """Copy the example, with paths of its own."""
    project = folder / "project"
    shutil.copytree(EXAMPLE, project)
    spec = project / "spark-pipeline.yml"
    text = spec.read_text("utf-8")
    for old, new in (("/tmp/clearfunds-ledger", folder), ("/tmp/clearfunds-journal", folder / "j")):
        assert old in text
        text = text.replace(old, str(new))
    spec.write_text(text, "utf-8")
    return project


def run(project: Path) -> None:
    program = Path(sys.executable).parent / "spark-pipelines"
    done = subprocess.run(
        [str(program), "run", "--conf", "spark.sql.catalogImplementation=hive"],
        cwd=project,
        env=os.environ | {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:]


def rows(folder: Path, table: str) -> list[dict[str, Any]]:
    path = folder / "project" / "spark-warehouse" / table
    return list(arrow("pyarrow.parquet").read_table(str(path)).to_pylist())


@pytest.mark.long
@pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))
def test_the_tables_are_there_and_grow_with_the_journal(tmp_path: Path) -> None:
    project = prepared(tmp_path)
    journal = tmp_path / "j"
    overload.write(journal)
    run(project)
    loans = overload.rows()["settlements"]
    assert len(rows(tmp_path, "settlements")) == len(loans)
    assert [
        (row["account"], row["stalls"], row["seconds"]) for row in rows(tmp_path, "stall_time")
    ] == [(overload.TICKER, 14, 7.0)]
    advice = {row["account"]: row["advice"] for row in rows(tmp_path, "recommended_limits")}
    assert advice[overload.TICKER] == "lower"
    assert advice[overload.STATION] == "keep"
    (part,) = (journal / "stalls").rglob("*.parquet")
    shutil.copy(part, part.with_name("part-2.parquet"))
    run(project)
    assert len(rows(tmp_path, "settlements")) == len(loans)
    assert [(row["stalls"], row["seconds"]) for row in rows(tmp_path, "stall_time")] == [(28, 14.0)]
