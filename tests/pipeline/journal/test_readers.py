"""Who on the machine can read a journal."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from clearfunds.accounts import Ledger
from clearfunds.pipeline._errors import PipelineError
from clearfunds.pipeline.journal import JournalSettings, open_journal

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    from clearfunds.pipeline.journal._readers import Readers


@contextmanager
def umask(mask: int) -> Generator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def modes(folder: Path) -> tuple[set[int], set[int]]:
    """Return the modes of the folders and of the Parquet files in a journal."""
    folders = [folder, *(path for path in folder.rglob("*") if path.is_dir())]
    files = list(folder.rglob("*.parquet"))
    assert files
    return (
        {path.stat().st_mode & 0o7777 for path in folders},
        {path.stat().st_mode & 0o7777 for path in files},
    )


async def keep(folder: Path, readers: Readers = "owner") -> None:
    """Keep a journal of something."""
    ledger = Ledger()
    account = ledger.open("somebody")
    async with open_journal(ledger, folder, JournalSettings(readers=readers)):
        account.lend("something", nbytes=3).settle()


@pytest.mark.parametrize("mask", [0, 0o022, 0o077])
async def test_it_is_its_owners_alone_or_its_groups(tmp_path: Path, mask: int) -> None:
    with umask(mask):
        await keep(tmp_path / "mine")
        assert modes(tmp_path / "mine") == ({0o700}, {0o600})
        await keep(tmp_path / "ours", "group")
        assert modes(tmp_path / "ours") == ({0o2750}, {0o640})


async def test_one_of_an_older_version_is_made_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "journal"
    await keep(folder)
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    caplog.clear()
    await keep(folder)
    assert folder.stat().st_mode & 0o7777 == 0o700
    assert "could read the journal" in caplog.text
    await keep(folder, "group")
    assert folder.stat().st_mode & 0o7777 == 0o2750
    # That somebody has opened it for a group is left so.
    await keep(folder)
    assert folder.stat().st_mode & 0o7777 == 0o2750


@pytest.mark.parametrize(("mode", "file"), [(0o1777, None), (0o755, "letter")])
async def test_a_folder_that_is_not_a_journals_is_refused_and_left(
    tmp_path: Path, mode: int, file: str | None
) -> None:
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(mode)
    if file is not None:
        (folder / file).write_text("dear all")
    with pytest.raises(PipelineError, match=f"chmod 700 {folder}, or name a directory in it"):
        await keep(folder)
    assert folder.stat().st_mode & 0o7777 == mode
    await keep(folder / "journal")
