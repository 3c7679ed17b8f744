"""What Spark needs, and what is said where it is not there."""

from __future__ import annotations

import stat
import sys
from importlib import metadata
from typing import TYPE_CHECKING

import pytest

from clearfunds.pipeline._environment import check_spark
from clearfunds.pipeline._errors import MissingError
from tests.pipeline.conftest import needs_spark

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    MakeJava = Callable[[str], Path]


@pytest.fixture
def make_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakeJava:
    """Return what puts a program called java first on the PATH."""
    monkeypatch.delenv("JAVA_HOME", raising=False)

    def make(script: str) -> Path:
        java = tmp_path / "bin" / "java"
        java.parent.mkdir(exist_ok=True)
        java.write_text(f"#!/bin/sh\n{script}\n")
        java.chmod(java.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("PATH", f"{java.parent}:/usr/bin:/bin")
        return java

    return make


@needs_spark
def test_all_is_well_where_spark_runs() -> None:
    check_spark()


def test_no_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingError, match=r"there is no Java here.*install Java 17 or newer"):
        check_spark()


def test_a_java_home_without_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(MissingError, match=r"JAVA_HOME is .* no program bin/java in it"):
        check_spark()


def test_java_home_comes_before_the_path(
    monkeypatch: pytest.MonkeyPatch, make_java: MakeJava, tmp_path: Path
) -> None:
    java = make_java("""echo 'java version "1.7.0_80"' >&2""")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(MissingError, match=f"{java} is Java 7, too old"):
        check_spark()


@pytest.mark.parametrize(
    ("said", "major"),
    [
        ('openjdk version "11.0.2" 2019-01-15', 11),
        ('java version "1.8.0_292"', 8),
        ('Picked up JAVA_TOOL_OPTIONS: -Xmx1g\nopenjdk version "16-ea"', 16),
    ],
)
def test_old_java(said: str, major: int, make_java: MakeJava) -> None:
    make_java(f"cat >&2 <<'END'\n{said}\nEND")
    with pytest.raises(MissingError, match=f"is Java {major}, too old for Spark; install Java 17"):
        check_spark()


@pytest.mark.parametrize(
    "said", ['openjdk version "17.0.15" 2025-04-15', 'openjdk version "21" 2023-09-19', '"25-ea"']
)
def test_java_that_will_do(said: str, make_java: MakeJava) -> None:
    said = said if "version" in said else f"openjdk version {said}"
    make_java(f"echo '{said}' >&2")
    check_spark()


def test_java_without_all_its_modules(make_java: MakeJava) -> None:
    make_java(
        'test "$1" = -version || { echo "java.lang.module.FindException" >&2; exit 1; }\n'
        """echo 'openjdk version "25.0.2"' >&2"""
    )
    with pytest.raises(MissingError, match=r"is Java 25 without the module jdk\.incubator\.vector"):
        check_spark()


def test_a_java_that_is_none(make_java: MakeJava) -> None:
    make_java("echo hello")
    with pytest.raises(MissingError, match="says 'hello', which is not a Java version"):
        check_spark()
    make_java("true")
    with pytest.raises(MissingError, match="says 'nothing'"):
        check_spark()
    java = make_java("true")
    java.write_bytes(b"\x00\x01")
    with pytest.raises(MissingError, match=r"could not be run .*; install Java"):
        check_spark()


@pytest.mark.parametrize("package", ["pyspark", "pyarrow", "pandas"])
def test_missing_package(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingError, match=rf"{package} is not installed.*clearfunds\[pipeline\]"):
        check_spark()


def test_old_package(monkeypatch: pytest.MonkeyPatch) -> None:
    there = metadata.version

    def version(name: str) -> str:
        return "4.1.9" if name == "pyspark" else there(name)

    monkeypatch.setattr(metadata, "version", version)
    with pytest.raises(MissingError, match=r"pyspark 4\.1\.9 is too old, 4\.2 or newer"):
        check_spark()
