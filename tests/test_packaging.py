"""What holds the package together: the committed links, the metadata, `python -m clearfunds`."""

import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LINKS = {
    "accounts": "../../accounts",
    "asgi": "../../asgi",
    "cluster": "../../cluster",
    "dataspace": "../../dataspace",
    "perf": "../../perf",
    "persistence": "../../persistence",
    "pipeline": "../../pipeline",
    "store": "../../store",
    "streams": "../../streams",
    "access": "../../access",
    "pages": "../../pages",
    "ranges": "../../ranges",
    "relay": "../../relay",
    "sockets": "../../sockets",
    "transports": "../../transports",
}


@pytest.mark.parametrize("name", LINKS)
def test_the_package_links_to_the_folder_at_the_root(name: str) -> None:
    link = ROOT / "src" / "clearfunds" / name
    assert link.is_symlink()
    assert link.readlink().as_posix() == LINKS[name]
    assert link.is_dir()


def test_git_keeps_them_as_links() -> None:
    listing = subprocess.run(
        ["git", "ls-files", "--stage", "--", *(f"src/clearfunds/{name}" for name in LINKS)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listing.returncode != 0:
        pytest.skip("not a git checkout")
    modes = {line.split()[-1]: line.split()[0] for line in listing.stdout.splitlines()}
    assert modes == {f"src/clearfunds/{name}": "120000" for name in LINKS}


@pytest.mark.parametrize("cwd", [ROOT, Path("/")], ids=["checkout", "elsewhere"])
def test_the_module_says_its_version(cwd: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "clearfunds", "--version"],
        cwd=cwd,
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout == f"clearfunds {metadata.version('clearfunds')}\n"
    assert run.stderr == ""


def test_the_library_needs_no_more_than_it_says() -> None:
    # The extras are for the command line; importing the library loads none of them.
    code = (
        "import sys, clearfunds.accounts, clearfunds.dataspace, clearfunds.pipeline\n"
        "print(sorted({'cyclopts', 'rich', 'h11'} & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "[]\n"
