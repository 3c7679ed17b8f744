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

import release
import setup

ROOT = Path(__file__).parents[1]

MAKE = """
import sys
from setuptools import build_meta
to = sys.argv[1]  # it sets the arguments anew
build_meta.build_sdist(to)
build_meta.build_wheel(to)
"""


@attrs.frozen
class Distributions:
    """What was made."""

    source: frozenset[str]
    wheel: tuple[str, ...]
    metadata: str
    said: str


def tracked() -> list[str]:
    """Return the files in the repository."""
    try:
        return [name for name in release.tracked(ROOT) if (ROOT / name).exists()]
    except release.ReleaseError:
        pytest.skip("not a git checkout")


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
        names = tuple(files.namelist())
        (about,) = [name for name in names if name.endswith(".dist-info/METADATA")]
        metadata = files.read(about).decode()
    return Distributions(frozenset(source), names, metadata, done.stdout + done.stderr)


def test_they_are_made_without_a_warning(made: Distributions) -> None:
    assert release.warnings(made.said) == []


def test_the_source_distribution_is_complete(made: Distributions) -> None:
    """Tests, documentation, the change log and the Makefile: all to build and to test it."""
    assert release.source_faults(ROOT, made.source) == []
    assert {"Makefile", "CHANGELOG.md", "tests/test_distributions.py", "docs/relay.md"} <= set(
        made.source
    )


def test_the_wheel_is_the_package_and_nothing_else(made: Distributions) -> None:
    assert release.wheel_faults(ROOT, made.wheel) == []
    tops = {name.partition("/")[0] for name in made.wheel}
    (info,) = [top for top in tops if top.endswith(".dist-info")]
    assert tops == {"clearfunds", "pyspark_clearfunds.py", info}
    assert not [name for name in made.wheel if "flights" in name and not name.endswith(".py")]


def test_the_readme_of_an_index_has_no_relative_links(made: Distributions) -> None:
    """As there is no `Source` yet, links to files are plain text."""
    text = made.metadata.partition("\n\n")[2]
    assert text.startswith("# clearfunds\n")
    assert "Description-Content-Type: text/markdown\n" in made.metadata
    links = re.findall(r"\]\(([^)]*)\)", text)
    assert [link for link in links if not link.startswith("https://")] == []
    assert "A library for Trio, asyncio and FastAPI, and a relay" in text


def test_with_a_source_the_readme_s_links_lead_there() -> None:
    project = {"version": "1.2.3", "urls": {"Source": "https://example.org/clearfunds/"}}
    home = "https://example.org/clearfunds"
    cases = {
        "[a](docs/a.md), [b\nc](docs/b.md#x)": (
            f"[a]({home}/blob/v1.2.3/docs/a.md), [b\nc]({home}/blob/v1.2.3/docs/b.md#x)"
        ),
        "![picture](docs/live.png)": f"![picture]({home}/raw/v1.2.3/docs/live.png)",
        "[above](#the-relay)": f"[above]({home}/blob/v1.2.3/README.md#the-relay)",
        "[web](https://example.com/x), <https://example.com>": (
            "[web](https://example.com/x), <https://example.com>"
        ),
    }
    assert {text: setup.readme(text, project) for text in cases} == cases
    whole = setup.readme((ROOT / "README.md").read_text("utf-8"), project)
    links = re.findall(r"\]\(([^)]*)\)", whole)
    assert len(links) > 40
    assert [link for link in links if not link.startswith("https://")] == []
    # Each of them is a file.
    for link in links:
        if link.startswith(home):
            path = re.sub(r"^.*?/v1\.2\.3/|#.*$", "", link)
            assert (ROOT / path).exists(), link
