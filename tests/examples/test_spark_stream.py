"""The example of a slow Spark query does what it says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.pipeline.conftest import why_no_spark

EXAMPLE = Path(__file__).parents[2] / "examples" / "spark_stream.py"


@pytest.mark.long
def test_publishers_are_held_to_the_pace_of_a_query() -> None:
    why = why_no_spark()
    if why is not None:
        pytest.skip(why)
    run = subprocess.run(
        [sys.executable, str(EXAMPLE), "--seconds", "10", "--limit-items", "50", "--work", "0.5"],
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert run.returncode == 0, run.stderr[-2000:]
    *batches, end = run.stdout.splitlines()
    assert len(batches) > 1
    owed = [int(line.rpartition(" ")[2]) for line in batches]
    assert max(owed) <= 3 * 51  # the limit, and the one by which each knows that it is over
    came, sent, left = map(int, re.findall(r"\d+", end))
    assert came == sent > 0
    assert left == 0
