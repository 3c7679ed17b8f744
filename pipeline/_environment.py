"""What Spark needs on this machine, looked at before it is asked to start.

Spark itself says `JAVA_GATEWAY_EXITED` where there is no Java, a page of Java where there is an old
one, and an ImportError from a worker where pyarrow is missing. Here each is one sentence.
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
    # Where a streaming source hears what has been committed: `latestOffset(start, limit)`.
    "pyspark": (4, 2),
    # What PySpark 4.2 asks of them itself.
    "pyarrow": (18, 0),
    "pandas": (2, 2),
}

_JAVA_ADVICE: Final = (
    f"install Java {JAVA_LEAST} or newer (Debian and Ubuntu: apt-get install "
    "openjdk-17-jre-headless) and have `java` on the PATH, or let JAVA_HOME name its folder"
)

_MODULE: Final = "jdk.incubator.vector"
"""What Spark's launcher adds to the modules, and some small builds of Java do not have."""

_QUIET: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.session.timeZone": "UTC",
    # Spark's own is 200, for a cluster.
    "spark.sql.shuffle.partitions": str(2 * (os.cpu_count() or 1)),
}
"""A session for one command: no page, no bars, nothing that listens beyond this machine."""


def check_spark() -> None:
    """Look whether Spark can run here: PySpark, what it needs of Python, and Java.

    Takes as long as `java -version` does, a tenth of a second or two.

    Raises:
        MissingError: If it cannot: a sentence that says what is missing and what to do.
    """
    for package, least in _LEAST.items():
        _check_package(package, least)
    _check_java(_find_java())


def session(app_name: str, **conf: str) -> SparkSession:
    """Start Spark in this process's machine alone, with nothing on the terminal.

    What Java would write on stdout and stderr goes to a file without a name; if Spark does not
    start, its last line is in the error. A session that runs already is given as it is.

    Args:
        app_name: What Spark calls it.
        conf: Settings beyond ours, or instead of them; as
            `session("x", **{"spark.driver.memory": "2g"})`. `spark.master` is `local[*]` unless it
            is among them.

    Raises:
        MissingError: See `check_spark`.
        PipelineError: If Spark does not start.
    """
    check_spark()
    # Else Spark's workers would be whichever `python3` is first on the PATH.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    from pyspark import SparkConf, SparkContext
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    interrupted = signal.getsignal(signal.SIGINT)
    running = SparkSession.getActiveSession()
    if running is not None:
        return running
    settings = SparkConf().setMaster("local[*]").setAppName(app_name)
    for name, value in {**_QUIET, **conf}.items():
        settings.set(name, value)
    with tempfile.TemporaryFile() as log:
        try:
            # Has no types; the second argument is there for just this.
            java: Any = import_module("pyspark.java_gateway")
            gateway = java.launch_gateway(settings, {"stdout": log, "stderr": log})
            SparkContext(conf=settings, gateway=gateway)
            if threading.current_thread() is threading.main_thread():
                # It has taken Ctrl-C for itself, which is the caller's.
                signal.signal(signal.SIGINT, interrupted)
        except (PySparkException, OSError) as error:
            log.seek(0)
            said = _reason(log.read().decode("utf-8", "replace")) or str(error)
            msg = f"Spark did not start: {said} (Java: {_find_java()})"
            raise PipelineError(msg) from error
    return SparkSession.builder.getOrCreate()


def _reason(said: str) -> str:
    """Find, in what a JVM said before it ended, why it did."""
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
        # A Spark that was unpacked and put on PYTHONPATH has no metadata.
        return str(getattr(import_module(package), "__version__", ""))


def _find_java() -> str:
    """Return the `java` that Spark would run: as its own `spark-class` looks for it."""
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
        # One call for the usual case; what was wrong is only asked when it fails.
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
        msg = f"{java} -version says {first[:100]!r}, which is no version of Java; {_JAVA_ADVICE}"
    elif major < JAVA_LEAST:
        msg = f"{java} is Java {major}, too old for Spark; {_JAVA_ADVICE}"
    else:
        msg = (
            f"{java} is Java {major} without the module {_MODULE}, which Spark starts with; "
            f"{_JAVA_ADVICE} (a whole one, not a build with a part of its modules)"
        )
    raise MissingError(msg)


def _ask(java: str, *arguments: str) -> tuple[int, str]:
    command = [java, *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, errors="replace", timeout=60, check=False
    )
    return done.returncode, done.stderr + done.stdout


def _major(said: str) -> int | None:
    """Take the version out of what `java -version` says: `version "17.0.15"`, `"1.8.0_292"`."""
    match = re.search(r'version "(\d+)(?:\.(\d+))?', said)
    if match is None:
        return None
    major = int(match[1])
    return int(match[2]) if major == 1 and match[2] is not None else major
