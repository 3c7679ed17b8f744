"""Types as a user's checker sees them, in the wheel that is built from this checkout."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

PROGRAM = '''
from typing import Any, assert_type

import attrs

from clearfunds.accounts import Account, Ledger, LoanedItem
from clearfunds.dataspace import Dataspace, Mailbox, Publication, TopicFilter, match
from clearfunds.streams import Feed, Hub


@attrs.frozen
class Photo:
    """A value."""

    width: int


async def of_mailboxes(ledger: Ledger, dataspace: Dataspace, account: Account) -> None:
    assert_type(account.lend(Photo(3)), LoanedItem[Photo])
    with dataspace.subscribed(account, Photo, policy=Mailbox(ledger, "m").policy) as photos:
        assert_type(photos, Mailbox[Photo])
        loan = await photos.receive()
        assert_type(loan, LoanedItem[list[Photo]])
        with loan as events:
            assert_type(events, list[Photo])
        async for each in photos:
            with each as more:
                print(more[0].width + 1)
    with dataspace.subscribed(account, TopicFilter("a/#")) as publications:
        assert_type(publications, Mailbox[Publication])
    with dataspace.subscribed(account, match(Photo, width=3)) as some:
        assert_type(some, Mailbox[Any])
    untyped = Mailbox(ledger, "untyped")
    plain: Mailbox = untyped
    own: Mailbox[Photo] = Mailbox(ledger, "own")
    print(plain, (await own.receive()).item[0].width)


async def of_feeds(hub: Hub) -> None:
    with hub.subscribe("a", Photo) as photos:
        assert_type(photos, Feed[Photo])
        async for photo in photos:
            assert_type(photo, Photo)
    assert_type(hub.subscribe("a", "news/#", profile="live"), Feed[Publication])
    assert_type(hub.subscribe("a", TopicFilter("news")), Feed[Publication])
'''

MISTAKES = (
    "photos.receive_nowait().item[0] + 1",
    "photos.receive_nowait().item[0].height",
    "hub.subscribe('a', 5)",
    "ledger.open('a', limit=5)",
    "Mailbox('m', ledger)",
    "publications.put(account.lend('a text, not a list'))",
    "Publication('a', 'text')",
)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with what the wheel would install."""
    if importlib.util.find_spec("setuptools") is None:
        pytest.skip("not installed: setuptools, which builds the wheel")
    folder = tmp_path_factory.mktemp("wheel")
    # A build leaves files behind: not in the checkout.
    copy = folder / "checkout"
    skipped = shutil.ignore_patterns(
        ".*",
        "build",
        "dist",
        "docs",
        "tests",
        "benchmarks",
        "experiments",
        "*.egg-info",
        "__pycache__",
    )
    shutil.copytree(ROOT, copy, symlinks=True, ignore=skipped)
    built = subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation",
         "--no-index", "--wheel-dir", str(folder), str(copy)],
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    assert built.returncode == 0, built.stderr
    (found,) = folder.glob("*.whl")
    installed = folder / "installed"
    with zipfile.ZipFile(found) as archive:
        archive.extractall(installed)
    assert (installed / "clearfunds" / "py.typed").exists()
    assert (installed / "clearfunds" / "asgi" / "__init__.py").exists()
    return installed


def checked(checker: str, wheel: Path, folder: Path, text: str) -> tuple[int, str]:
    """Return what a checker says of a program that imports what was installed."""
    if importlib.util.find_spec(checker) is None:
        pytest.skip(f"not installed: {checker}")
    (folder / "program.py").write_text(text)
    if checker == "mypy":
        (folder / "mypy.ini").write_text(f"[mypy]\nstrict = true\nmypy_path = {wheel}\n")
        command = ["mypy", "--no-incremental", "program.py"]
    else:
        (folder / "pyrightconfig.json").write_text(
            f'{{"typeCheckingMode": "strict", "extraPaths": ["{wheel}"]}}'
        )
        command = ["pyright", "--pythonpath", sys.executable, "program.py"]
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=folder, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("checker", ["mypy", "pyright"])
def test_a_program_that_is_right(checker: str, wheel: Path, tmp_path: Path) -> None:
    program = PROGRAM
    if checker == "pyright":
        # Strict, it wants to hear of what a bare `Mailbox` holds.
        program = program.replace("    plain: Mailbox = untyped\n", "    plain = untyped\n")
        program = program.replace('Mailbox(ledger, "untyped")', 'Mailbox[Any](ledger, "untyped")')
    code, said = checked(checker, wheel, tmp_path, program)
    assert code == 0, said


@pytest.mark.parametrize("checker", ["mypy", "pyright"])
def test_mistakes_are_found(checker: str, wheel: Path, tmp_path: Path) -> None:
    head = PROGRAM.partition("async def")[0]
    lines = [
        "def wrong(ledger: Ledger, hub: Hub, account: Account, photos: Mailbox[Photo],",
        "          publications: Mailbox[Publication]) -> None:",
        *(f"    {each}" for each in MISTAKES),
    ]
    _, said = checked(checker, wheel, tmp_path, head + "\n".join(lines) + "\n")
    first = head.count("\n") + 3
    missed = [
        each for number, each in enumerate(MISTAKES, first) if f"program.py:{number}:" not in said
    ]
    assert not missed, said
