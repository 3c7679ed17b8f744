"""Types as a user's checker sees them, in the wheel that is built from this checkout."""

from __future__ import annotations

import importlib.util
import re
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

WRONG = "\n".join(
    [
        PROGRAM.partition("async def")[0]
        + "def wrong(ledger: Ledger, hub: Hub, account: Account, photos: Mailbox[Photo],",
        "          publications: Mailbox[Publication]) -> None:",
        *(f"    {each}" for each in MISTAKES),
        "",
    ]
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


@pytest.fixture(scope="module", params=[pytest.param("mypy", marks=pytest.mark.long), "pyright"])
def found(
    request: pytest.FixtureRequest, wheel: Path, tmp_path_factory: pytest.TempPathFactory
) -> set[tuple[str, int]]:
    """Return in which lines of which files a checker finds mistakes.

    It checks both programs in one run: what they import takes it most of the time.
    """
    checker: str = request.param
    if importlib.util.find_spec(checker) is None:
        pytest.skip(f"not installed: {checker}")
    folder = tmp_path_factory.mktemp(checker)
    right = PROGRAM
    if checker == "mypy":
        (folder / "mypy.ini").write_text(f"[mypy]\nstrict = true\nmypy_path = {wheel}\n")
        command = ["mypy", "--no-incremental"]
    else:
        # Strict, it wants to hear of what a bare `Mailbox` holds.
        right = right.replace("    plain: Mailbox = untyped\n", "    plain = untyped\n")
        right = right.replace('Mailbox(ledger, "untyped")', 'Mailbox[Any](ledger, "untyped")')
        (folder / "pyrightconfig.json").write_text(
            f'{{"typeCheckingMode": "strict", "extraPaths": ["{wheel}"]}}'
        )
        command = ["pyright", "--pythonpath", sys.executable]
    (folder / "right.py").write_text(right)
    (folder / "wrong.py").write_text(WRONG)
    done = subprocess.run(
        [sys.executable, "-m", *command, "right.py", "wrong.py"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    print(done.stdout, done.stderr)  # for whoever sees a test fail
    # Mistakes were found, and nothing else was amiss.
    assert done.returncode == 1, done.stdout + done.stderr
    return {
        (Path(file).name, int(line))
        for file, line in re.findall(r"(\S+\.pyi?):(\d+):", done.stdout + done.stderr)
    }


def test_a_program_that_is_right(found: set[tuple[str, int]]) -> None:
    assert {file for file, _ in found} == {"wrong.py"}


def test_mistakes_are_found(found: set[tuple[str, int]]) -> None:
    first = WRONG.count("\n") - len(MISTAKES) + 1
    missed = [
        each for number, each in enumerate(MISTAKES, first) if ("wrong.py", number) not in found
    ]
    assert not missed
