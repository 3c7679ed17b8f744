"""Spark as its users have it: a JVM, Python workers; skipped aloud where they cannot be had."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Generator, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.pipeline.jvms import Jvm
from tests.pipeline.relays import RelayProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HERE = Path(__file__).parent
ROOT = HERE.parents[1]

# No JVM lives long enough for its second compiler, which took half of the CPU time (measured).
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

SETTINGS = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.log.level": "ERROR",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


def why_no_spark() -> str | None:
    """Say what Spark lacks here, or None."""
    if find_spec("pyspark") is None:
        return 'pyspark is not installed: pip install -e ".[test]"'
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        return "there is no java on the path: apt-get install default-jre-headless"
    return None


needs_spark = pytest.mark.skipif(why_no_spark() is not None, reason=str(why_no_spark()))
"""For tests whose Spark runs in processes that they start; those with `spark` need no mark."""


@contextlib.contextmanager
def spark_session(folder: Path, master: str = "local[2]", **more: str) -> Generator[SparkSession]:
    """Run a session of its own; warehouse and scratch files go into `folder`."""
    from pyspark.sql import SparkSession

    # Workers are the interpreter that the tests run in.
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.master(master).appName("clearfunds-tests")
    where = {"spark.local.dir": str(folder / "scratch"), "spark.sql.warehouse.dir": str(folder)}
    for name, value in {**SETTINGS, **where, **more}.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    try:
        yield session
    finally:
        session.stop()


_JVM = Jvm()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(
    item: pytest.Item, nextitem: pytest.Item | None
) -> Generator[None, object, object]:
    """Let a test with a JVM wait for its turn, outside of the time that it may take."""
    if "spark" in getattr(item, "fixturenames", ()) and hasattr(item.config, "workerinput"):
        # Below the folder that xdist's workers share.
        _JVM.wait_for_turn(Path(str(item.config.getoption("basetemp"))).parent)
    try:
        return (yield)
    finally:
        if nextitem is None or HERE not in nextitem.path.parents:
            _JVM.end_turn()


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> SparkSession:
    """Return the session of all tests of a process: it takes six to ten seconds to start."""
    why = why_no_spark()
    if why is not None:
        pytest.skip(why)
    return _JVM.session(lambda: spark_session(tmp_path_factory.mktemp("spark")))


@pytest.fixture
def relay(request: pytest.FixtureRequest) -> Iterator[RelayProcess]:
    """Run a relay with MQTT, ranges and pages; `@pytest.mark.relay("--limit-items=10")` adds."""
    mark = request.node.get_closest_marker("relay")
    with RelayProcess(*(mark.args if mark is not None else ())) as process:
        yield process
