"""What docs/spark.md says of reading."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from clearfunds.pipeline.source._options import BATCH_OPTIONS, STREAM_OPTIONS
from clearfunds.ranges.client import RangeReader
from tests.pipeline.conftest import why_no_spark
from tests.pipeline.relays import RelayProcess
from tests.pipeline.source.queries import publish

PAGE = (Path(__file__).parents[3] / "docs" / "spark.md").read_text()


def test_all_options_are_there_and_for_whom() -> None:
    table = PAGE.partition("### Options")[2].partition("\n\n`")[0]
    rows = re.findall(r"^\| (.+?) \| (both|stream|batch) \|", table, re.MULTILINE)
    found: dict[str, set[str]] = {"both": set(), "stream": set(), "batch": set()}
    for names, which in rows:
        found[which] |= set(re.findall(r"`(\w+)`", names))
    assert found["both"] | found["stream"] == set(STREAM_OPTIONS)
    assert found["both"] | found["batch"] == set(BATCH_OPTIONS)


@pytest.mark.long
def test_the_first_example_works_as_it_stands(relay: RelayProcess, tmp_path: Path) -> None:
    why = why_no_spark()
    if why is not None:
        pytest.skip(why)
    found = re.search(r"```python\n((?:.*\n)+?)```", PAGE)
    assert found is not None
    code = found[1].replace("127.0.0.1:7700", f"127.0.0.1:{relay.ranges}").replace("(60)", "(30)")
    (tmp_path / "example.py").write_text(code)
    RangeReader("127.0.0.1", relay.ranges, "readings", filters=["plant/#"]).close()
    publish(relay.mqtt, [b"21.5"], "plant/hall-1")
    # As in an environment that was activated: Spark's workers are the first `python3` there is.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "SPARK_LOCAL_IP": "127.0.0.1"}
    environment.pop("PYSPARK_PYTHON", None)
    run = subprocess.run(
        ["python", "example.py"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert run.returncode == 0, run.stderr[-2000:]
    assert re.search(r"\| +1\|plant/hall-1\| 21.5\|mqtt:\d+/-/publ", run.stdout)
