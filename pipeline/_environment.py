"""Checks of Spark's requirements on this machine, before Spark starts.

Spark's own errors are `JAVA_GATEWAY_EXITED` if Java is missing, a page of Java trace if it is too
old, and an ImportError from a worker if pyarrow is missing. Here each is one sentence.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from importlib import import_module, metadata
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ._errors import MissingError, PipelineError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA_LEAST: Final = 17
"""The oldest Java that Spark 4 runs on."""

_EXTRA: Final = 'pip install "clearfunds[pipeline]"'

_LEAST: Final = {
    # The first version that tells a streaming source what was committed: `latestOffset(start,
    # limit)`.
    "pyspark": (4, 2),
    # PySpark 4.2's own minimum versions.
    "pyarrow": (18, 0),
    "pandas": (2, 2),
}

_JAVA_ADVICE: Final = (
    f"install Java {JAVA_LEAST} or newer (Debian and Ubuntu: apt-get install "
    "openjdk-17-jre-headless) and have `java` on the PATH, or let JAVA_HOME name its folder"
)

_MODULE: Final = "jdk.incubator.vector"
"""A module that Spark's launcher adds, and that some small builds of Java lack."""

_QUIET: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.session.timeZone": "UTC",
    # Spark's default is 200, for a cluster.
    "spark.sql.shuffle.partitions": str(2 * (os.cpu_count() or 1)),
}
"""Settings of a session for one command: no web page, no progress bars, loopback only."""

_LOOPBACK: Final = ("spark.driver.bindAddress", "spark.driver.host")
"""Those for a session on this machine alone."""


def check_spark() -> None:
    """Check that Spark can run here: PySpark, its Python packages, and Java.

    Takes as long as `java -version` does, a tenth of a second or two.

    Raises:
        MissingError: If it cannot: a sentence that says what is missing and what to do.
    """
    for package, least in _LEAST.items():
        _check_package(package, least)
    _check_java(_find_java())


def session(app_name: str, **conf: str) -> SparkSession:
    """Start Spark, with no output on the terminal: on this machine alone, or with a given master.

    Java's stdout and stderr go to an unnamed temporary file; if Spark does not start, the error
    quotes its last line. A session that already runs is returned unchanged.

    Args:
        app_name: The application's name in Spark.
        conf: Settings that add to ours or replace them, as in
            `session("x", **{"spark.driver.memory": "2g"})`. `spark.master` is `local[*]` unless
            given.

    Raises:
        MissingError: See `check_spark`.
        PipelineError: If Spark does not start.
    """
    check_spark()
    # Else Spark's workers would run the first `python3` on the PATH.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    from pyspark import SparkConf, SparkContext
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    interrupted = signal.getsignal(signal.SIGINT)
    running = SparkSession.getActiveSession()
    if running is not None:
        return running
    settings = SparkConf().setMaster("local[*]").setAppName(app_name)
    quiet = dict(_QUIET)
    if not conf.get("spark.master", "local").startswith("local"):
        for name in _LOOPBACK:
            del quiet[name]  # the workers of a cluster connect to the driver
    for name, value in {**quiet, **conf}.items():
        settings.set(name, value)
    with tempfile.TemporaryFile() as log:
        try:
            # Untyped; its second argument, for `Popen`, is there for such a redirection.
            java: Any = import_module("pyspark.java_gateway")
            gateway = java.launch_gateway(settings, {"stdout": log, "stderr": log})
            SparkContext(conf=settings, gateway=gateway)
            if threading.current_thread() is threading.main_thread():
                # Spark has replaced the caller's Ctrl-C handler: restore it.
                signal.signal(signal.SIGINT, interrupted)
        except (PySparkException, OSError) as error:
            log.seek(0)
            said = _reason(log.read().decode("utf-8", "replace")) or str(error)
            msg = f"Spark did not start: {said} (Java: {_find_java()})"
            raise PipelineError(msg) from error
    return SparkSession.builder.getOrCreate()


def _reason(said: str) -> str:
    """Find in a JVM's last output why it ended."""
    lines = [line.strip() for line in said.splitlines()]
    idle = ("", "WARNING", "WARN", "Using", "Picked", "Setting", "To", "Adjusting")
    told = [line for line in lines if line.partition(" ")[0].rstrip(":") not in idle]
    return next((line for line in told if "Exception:" in line), told[0] if told else "")[:300]


def _check_package(package: str, least: tuple[int, int]) -> None:
    wanted = ".".join(map(str, least))
    if find_spec(package) is None:
        msg = f"{package} is not installed here, and Spark needs it: {_EXTRA}"
        raise MissingError(msg)
    found = _version(package)
    numbers = re.match(r"(\d+)\.(\d+)", found)
    if numbers is not None and (int(numbers[1]), int(numbers[2])) < least:
        msg = f"{package} {found} is too old, {wanted} or newer is needed: {_EXTRA}"
        raise MissingError(msg)


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        # A Spark that was unpacked and added to PYTHONPATH has no metadata.
        return str(getattr(import_module(package), "__version__", ""))


def _find_java() -> str:
    """Return the `java` that Spark would run, found as Spark's `spark-class` finds it."""
    home = os.environ.get("JAVA_HOME")
    if home:
        java = Path(home) / "bin" / "java"
        if not os.access(java, os.X_OK) or java.is_dir():
            msg = (
                f"JAVA_HOME is {home}, but there is no program bin/java in it; {_JAVA_ADVICE} "
                "(unset JAVA_HOME to take the one on the PATH)"
            )
            raise MissingError(msg)
        return str(java)
    found = shutil.which("java")
    if found is None:
        msg = f"there is no Java here, and Spark needs one: {_JAVA_ADVICE}"
        raise MissingError(msg)
    return found


def _check_java(java: str) -> None:
    try:
        # One call for the usual case; only a failure needs a second one to find out why.
        status, said = _ask(java, f"--add-modules={_MODULE}", "-version")
        if status == 0 and (_major(said) or 0) >= JAVA_LEAST:
            return
        _, said = _ask(java, "-version")
    except (OSError, subprocess.SubprocessError) as error:
        msg = f"{java} -version could not be run ({error}); {_JAVA_ADVICE}"
        raise MissingError(msg) from error
    major = _major(said)
    if major is None:
        first = said.strip().splitlines()[0] if said.strip() else "nothing"
        msg = f"{java} -version says {first[:100]!r}, which is not a Java version; {_JAVA_ADVICE}"
    elif major < JAVA_LEAST:
        msg = f"{java} is Java {major}, too old for Spark; {_JAVA_ADVICE}"
    else:
        msg = (
            f"{java} is Java {major} without the module {_MODULE}, which Spark starts with; "
            f"{_JAVA_ADVICE} (a complete build, not one with some modules left out)"
        )
    raise MissingError(msg)


def _ask(java: str, *arguments: str) -> tuple[int, str]:
    command = [java, *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, errors="replace", timeout=60, check=False
    )
    return done.returncode, done.stderr + done.stdout


def _major(said: str) -> int | None:
    """Parse the major version in the output of `java -version`: `"17.0.15"`, `"1.8.0_292"`."""
    match = re.search(r'version "(\d+)(?:\.(\d+))?', said)
    if match is None:
        return None
    major = int(match[1])
    return int(match[2]) if major == 1 and match[2] is not None else major
