"""`make release`, in a clone."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import release

ROOT = Path(__file__).parents[1]
VERSION: str = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]


def git(clone: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", "-c", "user.name=A", "-c", "user.email=a@example.org", *arguments],
        cwd=clone,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a clone that has everything committed, and no tags."""
    if subprocess.run(["git", "rev-parse"], cwd=ROOT, capture_output=True, check=False).returncode:
        pytest.skip("not a git checkout")
    monkeypatch.setenv("GIT_AUTHOR_NAME", "A")
    monkeypatch.setenv("GIT_AUTHOR_EMAIL", "a@example.org")
    monkeypatch.setenv("GIT_COMMITTER_NAME", "A")
    monkeypatch.setenv("GIT_COMMITTER_EMAIL", "a@example.org")
    path = tmp_path / "clone"
    git(ROOT, "clone", "--quiet", "--no-tags", str(ROOT), str(path))
    return path


def edit(clone: Path, name: str, pattern: str, new: str) -> None:
    """Change a file, and commit it."""
    path = clone / name
    text, count = re.subn(pattern, new, path.read_text("utf-8"), count=1)
    assert count == 1
    path.write_text(text, "utf-8")
    git(clone, "commit", "--quiet", "--all", "--message", "changed")


SECTION = rf"## \[{re.escape(VERSION)}\] - \d{{4}}-\d\d-\d\d\n"


def test_what_is_committed_here_has_a_dated_section(clone: Path) -> None:
    assert release.check_tree(clone) == VERSION


def refused(clone: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """See that there is no release; return why."""
    tags = git(clone, "tag")
    assert release.main([], clone) == 1
    assert git(clone, "tag") == tags
    assert not (clone / "dist").exists()
    said = capsys.readouterr()
    assert said.err.startswith("make release: ")
    assert said.err.count("\n") == 1
    assert said.out == ""
    return said.err


def test_a_changed_file_is_refused(clone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (clone / "README.md").write_text("")
    assert "README.md is not committed: commit or remove it" in refused(clone, capsys)


def test_a_stray_file_is_refused(clone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (clone / "stray.txt").write_text("")
    assert "stray.txt is not committed: commit or remove it" in refused(clone, capsys)


@pytest.mark.parametrize("heading", ["", f"## [{VERSION}]\n", f"## [{VERSION}] - soon\n"])
def test_a_version_without_a_dated_section_is_refused(
    clone: Path, heading: str, capsys: pytest.CaptureFixture[str]
) -> None:
    edit(clone, "CHANGELOG.md", SECTION, heading)
    said = refused(clone, capsys)
    assert f"CHANGELOG.md has no section `## [{VERSION}] - YYYY-MM-DD`" in said


def test_changes_that_are_in_no_version_are_refused(
    clone: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = f"## [Unreleased]\n\n### Added\n\n- Something.\n\n## [{VERSION}] - 2026-01-01\n"
    edit(clone, "CHANGELOG.md", SECTION, more)
    assert "CHANGELOG.md has changes under [Unreleased]" in refused(clone, capsys)
    edit(clone, "CHANGELOG.md", r"### Added\n\n- Something\.\n\n", "")
    assert release.check_tree(clone) == VERSION


def test_a_version_that_has_its_tag_is_refused(
    clone: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    git(clone, "tag", f"v{VERSION}")
    assert f"the tag v{VERSION} exists: raise the version" in refused(clone, capsys)


def no_pythons() -> list[release.Python]:
    return []


@pytest.mark.long
def test_a_release_is_built_checked_and_tagged(
    clone: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(release, "pythons", no_pythons)
    (clone / "build").mkdir()
    (clone / "build" / "ignored").write_text("not to be found in a distribution")
    assert release.main([], clone) == 0
    tag = f"v{VERSION}"
    assert git(clone, "cat-file", "-t", tag) == "tag"
    assert git(clone, "tag", "--list", "--format=%(contents:subject)", tag) == (
        f"clearfunds {VERSION}"
    )
    assert git(clone, "rev-parse", f"{tag}^{{commit}}") == git(clone, "rev-parse", "HEAD")
    names = [f"clearfunds-{VERSION}-py3-none-any.whl", f"clearfunds-{VERSION}.tar.gz"]
    assert sorted(path.name for path in (clone / "dist").iterdir()) == names
    said = capsys.readouterr().out
    assert "nothing was uploaded" in said
    assert f"\n    git push origin {tag}\n" in said
    assert f"\n    python -m twine upload dist/{names[1]} dist/{names[0]}\n" in said
    assert "no Source in [project.urls]" in said
    assert git(clone, "status", "--porcelain") == ""


def test_nothing_is_tagged_that_does_not_work(
    clone: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def built(_root: Path, folder: Path) -> tuple[Path, Path]:
        return folder / "source", folder / "wheel"

    def fine(_root: Path, _source: Path, _wheel: Path) -> None:
        pass

    monkeypatch.setattr(release, "build", built)
    monkeypatch.setattr(release, "check_files", fine)
    no_python = release.Python((3, 99, 0), "/no/such/python")
    monkeypatch.setattr(release, "pythons", lambda: [no_python])
    assert release.main([], clone) == 1
    assert "/no/such/python cannot be run: No such file" in capsys.readouterr().err
    monkeypatch.setattr(release, "pythons", lambda: [no_python._replace(path="false")])
    assert release.main([], clone) == 1
    assert "false -m venv" in capsys.readouterr().err
    assert git(clone, "tag") == ""
    assert not (clone / "dist").exists()


def test_what_is_missing_or_too_much_is_named() -> None:
    try:
        names = release.tracked(ROOT)
    except release.ReleaseError:
        pytest.skip("not a git checkout")
    assert "release.py" in names
    lacking = release.source_faults(ROOT, set(names) - {"docs/relay.md"})
    assert "the source distribution lacks docs/relay.md" in lacking
    assert "the source distribution lacks src/clearfunds/store/_store.py" in lacking
    assert "the source distribution lacks CHANGELOG.md" not in lacking
    faults = release.wheel_faults(ROOT, ["a.dist-info/METADATA", "tests/x.py"])
    assert "tests/x.py does not belong into the wheel" in faults
    assert "the wheel lacks clearfunds/py.typed" in faults
    assert "the wheel lacks clearfunds/pages/live/page.js" in faults
    assert "the wheel lacks clearfunds/accounts/__init__.py" in faults


def test_warnings_of_a_build_are_found() -> None:
    said = (
        "running sdist\nwarning: no previously-included files matching '*.so' found\n"
        "warning: manifest_maker: something\n  SetuptoolsDeprecationWarning: old\nfine\n"
    )
    assert release.warnings(said) == [
        "warning: manifest_maker: something",
        "  SetuptoolsDeprecationWarning: old",
    ]


def test_each_python_of_this_machine_is_found_once() -> None:
    found = release.pythons()
    minors = [python.version[:2] for python in found]
    assert minors == sorted(set(minors))
    assert all(minor >= (3, 11) for minor in minors)
    assert sys.version_info[:2] in minors
    for python in found:
        said = subprocess.run([python.path, "-V"], capture_output=True, text=True, check=True)
        assert said.stdout == f"Python {'.'.join(map(str, python.version))}\n"


@pytest.mark.long
def test_every_python_here_runs_what_is_installed(
    clone: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert release.main(["--no-tag"], clone) == 0, capsys.readouterr().err
    said = capsys.readouterr().out
    for python in release.pythons():
        assert python.path in said
    assert git(clone, "tag") == ""
