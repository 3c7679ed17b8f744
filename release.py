"""Make a release: `make release` builds, checks and tags it. It uploads nothing.

1. The tree is clean, and CHANGELOG.md has a dated section for the version in pyproject.toml, which
   has no tag yet.
2. What is committed is built: the source distribution, and from that the wheel.
3. `twine check --strict`; both have what belongs into them, and nothing else.
4. Each Python from 3.11 on that is on this machine installs the wheel into an empty environment:
   the library is imported, and a relay takes a message and hands it on.
5. The commit gets the annotated tag `vVERSION`, and the files are in dist/.

`--no-tag` leaves the tag out; the files are in dist/ all the same.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

ROOT: Final = Path(__file__).parent

LEAST: Final = (3, 11)

NOT_IN_SOURCE: Final = frozenset({".gitignore", "MANIFEST.in"})
"""Files of the repository that the source distribution may lack."""

_LIBRARY: Final = "from clearfunds import Account, Dataspace, Ledger, Limit, Mailbox"

_WHO: Final = """
import ensurepip, json, sys, venv
print(json.dumps([*sys.version_info[:3], sys.executable, sys.prefix == sys.base_prefix]))
"""

_SECONDS: Final = 600
"""The longest that a command may take."""


class ReleaseError(Exception):
    """There can be no release: one sentence says why, and what to do."""


class Python(NamedTuple):
    """An interpreter."""

    version: tuple[int, int, int]
    path: str


def main(arguments: Sequence[str] | None = None, root: Path = ROOT) -> int:
    """Make a release of the repository in `root`; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="make release", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--no-tag", action="store_true", help="leave the tag out")
    wanted = parser.parse_args(arguments)
    try:
        version = check_tree(root)
        with tempfile.TemporaryDirectory() as folder:
            source, wheel = build(root, Path(folder))
            check_files(root, source, wheel)
            for python in pythons():
                try_out(python, wheel, version)
            dist = root / "dist"
            dist.mkdir(exist_ok=True)
            kept = [Path(shutil.copy(made, dist)).relative_to(root) for made in (source, wheel)]
        if not wanted.no_tag:
            tag = f"v{version}"
            _run("git", "tag", "--annotate", tag, "--message", f"clearfunds {version}", cwd=root)
    except ReleaseError as error:
        print(f"make release: {error}", file=sys.stderr)
        return 1
    if project(root).get("urls", {}).get("Source") is None:
        print(
            "pyproject.toml has no Source in [project.urls]: on an index, the README's links to"
            " files are plain text."
        )
    print(f"clearfunds {version} is ready; nothing was uploaded. To publish it:")
    if not wanted.no_tag:
        print(f"    git push origin v{version}")
    print(f"    python -m twine upload {' '.join(map(str, kept))}")
    return 0


def project(root: Path) -> dict[str, Any]:
    """Return the table `[project]` of pyproject.toml."""
    found: dict[str, Any] = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["project"]
    return found


def check_tree(root: Path) -> str:
    """Return the version that can be released.

    Raises:
        ReleaseError: It cannot.
    """
    if changed := _run("git", "status", "--porcelain", cwd=root).splitlines():
        raise ReleaseError(
            f"{changed[0].split(maxsplit=1)[1]} is not committed: commit or remove it"
        )
    version: str = project(root)["version"]
    log = (root / "CHANGELOG.md").read_text("utf-8")
    found = re.findall(r"^## \[(.+?)\](.*(?:\n(?!## ).*)*)", log, re.MULTILINE)
    sections: dict[str, str] = dict(found)
    if not re.match(r" - \d{4}-\d\d-\d\d\n", sections.get(version, "")):
        raise ReleaseError(
            f"CHANGELOG.md has no section `## [{version}] - YYYY-MM-DD` for the version in"
            " pyproject.toml: write it, or change the version"
        )
    if "\n- " in sections.get("Unreleased", ""):
        raise ReleaseError(
            f"CHANGELOG.md has changes under [Unreleased]: move them to [{version}], or raise the"
            " version"
        )
    if _run("git", "tag", "--list", f"v{version}", cwd=root):
        raise ReleaseError(
            f"the tag v{version} exists: raise the version in pyproject.toml and in CHANGELOG.md"
        )
    return version


def build(root: Path, folder: Path) -> tuple[Path, Path]:
    """Build what is committed; return the source distribution and the wheel.

    Raises:
        ReleaseError: That fails, or something warns.
    """
    copy, out = folder / "copy", folder / "out"
    copy.mkdir()
    _run("git", "archive", "--output", str(folder / "copy.tar"), "HEAD", cwd=root)
    with tarfile.open(folder / "copy.tar") as tar:
        tar.extractall(copy, filter="tar")  # It has links, in which Git and we trust.
    when = _run("git", "log", "-1", "--format=%ct", cwd=root)
    said = _run(
        *(sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(copy)),
        environment={"SOURCE_DATE_EPOCH": when},
    )
    if warned := warnings(said):
        raise ReleaseError(f"the build warns: {warned[0]}")
    (source,) = out.glob("*.tar.gz")
    (wheel,) = out.glob("*.whl")
    return source, wheel


def warnings(said: str) -> list[str]:
    """Return the warnings in the output of a build."""
    found = re.findall(r"^(?:warning:|.*(?:WARNING|Warning)\b).*$", said, re.MULTILINE)
    # A pattern that excludes what is not there anyway is no fault; nor is a process that does not
    # keep what it has compiled.
    harmless = ("no previously-included files", "byte-compiling is disabled")
    return [line for line in found if not any(words in line for words in harmless)]


def check_files(root: Path, source: Path, wheel: Path) -> None:
    """Check what was built.

    Raises:
        ReleaseError: Something is missing, or does not belong there.
    """
    _run(sys.executable, "-m", "twine", "check", "--strict", str(source), str(wheel))
    with zipfile.ZipFile(wheel) as files:
        faults = wheel_faults(root, files.namelist())
    with tarfile.open(source) as tar:
        faults += source_faults(root, (name.partition("/")[2] for name in tar.getnames()))
    if faults:
        raise ReleaseError("; ".join(faults))


def source_faults(root: Path, names: Iterable[str]) -> list[str]:
    """Return what is wrong with the names of the files in a source distribution."""
    missing = set(_places(root)) - set(names) - NOT_IN_SOURCE
    return [f"the source distribution lacks {name}" for name in sorted(missing)]


def wheel_faults(root: Path, names: Sequence[str]) -> list[str]:
    """Return what is wrong with the names of the files in a wheel."""
    wanted = {name[4:] for name in _places(root) if name.startswith("src/")}
    info = next(name for name in names if ".dist-info/" in name).partition("/")[0]
    found = {name for name in names if not name.startswith(f"{info}/")}
    return [
        *(f"the wheel lacks {name}" for name in sorted(wanted - found)),
        *(f"{name} does not belong into the wheel" for name in sorted(found - wanted)),
    ]


def _places(root: Path) -> Iterator[str]:
    """Yield where a source distribution has the files of the repository.

    Folders that src/clearfunds links to are there in place of the links.
    """
    tree = root / "src" / "clearfunds"
    links = {path.readlink().name: path for path in tree.iterdir() if path.is_symlink()}
    for name in tracked(root):
        top, _, rest = name.partition("/")
        if top in links:
            yield f"src/clearfunds/{links[top].name}/{rest}"
        elif not (root / name).is_symlink():
            yield name


def tracked(root: Path) -> list[str]:
    """Return the files in the repository.

    Raises:
        ReleaseError: It is none.
    """
    return [name for name in _run("git", "ls-files", "-z", cwd=root).split("\0") if name]


def pythons() -> list[Python]:
    """Return an interpreter for each version of Python from 3.11 on that is on this machine.

    They are looked for where PATH, pyenv and uv have them. One that cannot make an environment is
    left out, as Debian's without python3-venv.
    """
    home = Path.home()
    pyenv = Path(os.environ.get("PYENV_ROOT", home / ".pyenv"))
    folders = [
        *map(Path, os.get_exec_path()),
        *sorted(pyenv.glob("versions/*/bin")),
        *sorted(home.glob(".local/share/uv/python/*/bin")),
    ]
    found: dict[tuple[int, int], Python] = {}
    paths = {path.resolve(): path for folder in folders for path in folder.glob("python3*")}
    for path in paths.values():
        if not re.fullmatch(r"python3(\.\d+)?t?", path.name) or not os.access(path, os.X_OK):
            continue
        asked = subprocess.run([path, "-c", _WHO], capture_output=True, text=True, check=False)
        if asked.returncode:
            continue
        major, minor, micro, executable, is_base = json.loads(asked.stdout)
        known = found.get((major, minor))
        if is_base and (major, minor) >= LEAST and (not known or known.version[2] < micro):
            found[major, minor] = Python((major, minor, micro), executable)
    return [found[minor] for minor in sorted(found)]


def try_out(python: Python, wheel: Path, version: str) -> None:
    """Install a wheel into an empty environment, and use what is installed.

    Raises:
        ReleaseError: It does not work.
    """
    named = ".".join(map(str, python.version))
    print(f"Python {named}, {python.path}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        _run(python.path, "-m", "venv", folder)
        here = Path(folder) / "bin" / "python"
        pip = (str(here), "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
        _run(*pip, str(wheel))
        _run(str(here), "-I", "-c", _LIBRARY, cwd=Path(folder))
        _run(*pip, f"{wheel}[relay]")
        command = str(here.with_name("clearfunds"))
        said = _run(command, "--version", cwd=Path(folder))
        if said != f"clearfunds {version}":
            raise ReleaseError(f"under Python {named}, clearfunds --version says {said!r}")
        got = _relayed(command, Path(folder))
        if got != "hello":
            raise ReleaseError(f"under Python {named}, a relay handed on {got!r}, not 'hello'")


def _relayed(command: str, folder: Path) -> str:
    """Return a message that went through an installed relay."""
    argv = [command, "relay", "--listen", "mqtt+tcp://127.0.0.1:0", "--store", "store"]
    argv += ["--log-level", "warning"]
    with subprocess.Popen(
        argv, cwd=folder, env=_environment(), stdout=subprocess.PIPE, text=True
    ) as relay:
        try:
            assert relay.stdout is not None
            url = ""
            for line in relay.stdout:
                told = json.loads(line)
                url = told.get("listening", url)
                if "ready" in told:
                    break
            to = ("--url", url.replace("mqtt+tcp", "mqtt"))
            _run(
                command,
                "pub",
                *to,
                *("--topic", "a/b", "--message", "hello", "--qos", "1", "--retain"),
                cwd=folder,
            )
            return _run(command, "sub", *to, "--count", "1", "a/#", cwd=folder)
        finally:
            relay.terminate()


def _environment() -> dict[str, str]:
    """Return the environment of what is to run on its own."""
    ours = ("PYTHON", "CLEARFUNDS_", "PIP_REQUIRE", "VIRTUAL_ENV")
    return {name: value for name, value in os.environ.items() if not name.startswith(ours)}


def _run(*argv: str, cwd: Path | None = None, environment: dict[str, str] | None = None) -> str:
    """Run a command; return what it says on stdout, without white space at the ends.

    Raises:
        ReleaseError: It fails.
    """
    try:
        done = subprocess.run(
            argv,
            cwd=cwd,
            env=_environment() | (environment or {}),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=_SECONDS,
        )
    except subprocess.TimeoutExpired as error:
        raise ReleaseError(f"{' '.join(argv)} does not end") from error
    except OSError as error:
        raise ReleaseError(f"{argv[0]} cannot be run: {error.strerror}") from error
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip()).splitlines()
        raise ReleaseError(f"{' '.join(argv)} failed: {said[-1] if said else 'it says nothing'}")
    return done.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
