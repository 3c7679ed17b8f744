"""Errors of Spark as sentences: what was wrong in the JVM, without its stack."""

from __future__ import annotations

import re
from collections.abc import Generator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, Final
from urllib.parse import urlsplit

from ._errors import PipelineError

_DEEPEST: Final = 20
"""Limit of causes that are looked at."""

_NAMED: Final = re.compile(r"^(?:[a-z_]\w*\.)+(?:[A-Z]\w*\$)*([A-Z]\w*)(?:: )?")
"""The class of a Java exception, before its message."""

_NO_SYSTEM: Final = ("ClassNotFoundException", "UnsupportedFileSystemException")


@contextmanager
def explained(journal: str) -> Generator[None]:
    """Turn Spark's errors into an error of one sentence.

    Args:
        journal: The path or URL of the journal that is read.

    Raises:
        PipelineError: For each error of Spark, or of the JVM.
    """
    try:
        yield
    except Exception as error:
        if not type(error).__module__.startswith(("pyspark.errors", "py4j.")):
            raise
        raise PipelineError(_sentence(journal, error)) from error


def _sentence(journal: str, error: Exception) -> str:
    said = reasons(error)
    scheme = urlsplit(journal).scheme
    if len(scheme) > 1 and any(each.startswith(_NO_SYSTEM) for each in said):
        wanted = f"org.apache.hadoop:hadoop-aws:{_hadoop()}" if scheme == "s3a" else "GROUP:NAME:V"
        return (
            f"Spark has no file system for {scheme}:// here; name the package that has it, as "
            f"--spark-conf spark.jars.packages={wanted}"
        )
    return f"the journal {journal} could not be read: {said[-1]}"


def reasons(error: Exception) -> list[str]:
    """Return what an error of Spark says, and its causes: one line each, the deepest last."""
    java: Any = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    found: list[str] = []
    while java is not None and len(found) < _DEEPEST:
        found.append(_line(str(java.toString())))
        java = java.getCause()
    return [each for each in found if each] or [_line(str(error)) or type(error).__name__]


def _line(said: str) -> str:
    """Return the first line of what an exception says, with the bare name of its class."""
    first = next((line.strip() for line in said.splitlines() if line.strip()), "")
    match = _NAMED.match(first)
    if match is None:
        return first
    message = first[match.end() :].strip()
    return f"{match[1]}: {message}" if message else match[1]


def _hadoop() -> str:
    """Return the version of Hadoop that this Spark has."""
    jvm: Any = getattr(import_module("pyspark").SparkContext, "_jvm", None)
    return "VERSION" if jvm is None else str(jvm.org.apache.hadoop.util.VersionInfo.getVersion())
