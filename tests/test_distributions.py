"""The wheel and the source distribution are complete, and are made without a warning."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import attrs
import pytest

ROOT = Path(__file__).parents[1]

MAKE = """
import sys
from setuptools import build_meta
to = sys.argv[1]  # it sets the arguments anew
build_meta.build_sdist(to)
build_meta.build_wheel(to)
"""

OURS = (
    ".ci", "benchmarks", "container", "dashboards", "docs", "examples", "experiments", "systemd",
    "tests",
)  # fmt: skip
"""Folders that only the source distribution has, as they are in the repository."""


@attrs.frozen
class Distributions:
    """What was made."""

    source: frozenset[str]
    wheel: frozenset[str]
    said: str


def tracked() -> list[str]:
    """Return the files in the repository."""
    listing = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listing.returncode:
        pytest.skip("not a git checkout")
    return [name for name in listing.stdout.split("\0") if name and (ROOT / name).exists()]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Distributions:
    """Make both, from a copy of what is in the repository."""
    copy = tmp_path_factory.mktemp("copy")
    for name in tracked():
        to = copy / name
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, to, follow_symlinks=False)
    out = tmp_path_factory.mktemp("out")
    done = subprocess.run(
        [sys.executable, "-c", MAKE, out], cwd=copy, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    (archive,) = out.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        source = {name.partition("/")[2] for name in tar.getnames()}
    (wheel,) = out.glob("*.whl")
    with zipfile.ZipFile(wheel) as files:
        names = files.namelist()
    return Distributions(frozenset(source), frozenset(names), done.stdout + done.stderr)


def test_they_are_made_without_a_warning(made: Distributions) -> None:
    warnings = re.findall(r"^(?:warning:|.*(?:WARNING|Warning)\b).*$", made.said, re.MULTILINE)
    # A pattern that excludes what is not there anyway is no fault.
    assert not [line for line in warnings if "no previously-included files" not in line]


def test_the_source_distribution_is_complete(made: Distributions) -> None:
    """Tests, documentation, the change log and the Makefile: all to build and to test it."""
    wanted = {
        name for name in tracked()
        if name.startswith(tuple(f"{folder}/" for folder in OURS)) or "/" not in name
    }  # fmt: skip
    assert wanted - made.source <= {".gitignore", "MANIFEST.in"}


def test_the_wheel_is_the_package_and_nothing_else(made: Distributions) -> None:
    tops = {name.partition("/")[0] for name in made.wheel}
    info = next(top for top in tops if top.endswith(".dist-info"))
    assert tops == {"clearfunds", "pyspark_clearfunds.py", info}
    data = {name for name in made.wheel if not name.endswith(".py") and info not in name}
    tree = ROOT / "src" / "clearfunds"
    wanted = {tree / "py.typed", *tree.glob("pages/live/*"), *tree.glob("_cli/_cluster/page/*")}
    assert data == {path.relative_to(tree.parent).as_posix() for path in wanted}
    # Every module of the checkout is there.
    modules = {
        path.relative_to(tree.parent).as_posix()
        for folder in (tree, *(path for path in tree.iterdir() if path.is_symlink()))
        for path in folder.rglob("*.py")
    }
    assert modules <= made.wheel
