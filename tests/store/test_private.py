"""Nobody else on the machine can read a store, whatever the umask, and whoever made it."""

from __future__ import annotations

import logging
import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from clearfunds.store import Store, StoreExposedError, StoreFormatError

if TYPE_CHECKING:
    from collections.abc import Generator


@contextmanager
def umask(mask: int) -> Generator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def modes(folder: Path) -> tuple[int, set[int]]:
    """Return the folder's mode, and those of all that is in it."""
    inside = {path.stat().st_mode & 0o7777 for path in folder.rglob("*")}
    return folder.stat().st_mode & 0o7777, inside


def fill(folder: Path) -> None:
    store = Store.open(folder)
    changes = store.begin()
    changes.put(changes.declare("q"), 1, b"", b"secret")
    store.commit(changes)
    store.flush()
    store.close()


@pytest.mark.parametrize("mask", [0, 0o022, 0o077])
def test_what_is_made_is_its_owners_alone(tmp_path: Path, mask: int) -> None:
    folder = tmp_path / "deep" / "store"
    with umask(mask):
        fill(folder)
    assert modes(folder) == (0o700, {0o600})


def test_one_of_an_older_version_is_made_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "store"
    fill(folder)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("not ours")
    elsewhere.chmod(0o644)
    folder.chmod(0o755)
    for path in folder.iterdir():
        path.chmod(0o644)
    caplog.set_level(logging.WARNING)
    Store.open(folder).close()
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in folder.rglob("*") if path.is_file()} == {0o600}
    assert elsewhere.stat().st_mode & 0o777 == 0o644
    assert caplog.messages == [
        f"others on this machine could read the store in {folder}; now they cannot (chmod 700)"
    ]
    caplog.clear()
    Store.open(folder).close()
    assert not caplog.messages


def test_one_that_a_group_can_read_is_left_so(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    folder.mkdir()
    folder.chmod(0o750)
    fill(folder)
    assert modes(folder) == (0o750, {0o600})


def test_one_that_is_everybodys_is_refused_and_left(tmp_path: Path) -> None:
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o1777)
    with pytest.raises(StoreExposedError, match=f"chmod 700 {folder}, or give a directory inside"):
        Store.open(folder)
    assert modes(folder) == (0o1777, set())
    fill(folder / "store")


def test_one_of_somebody_elses_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "theirs"
    folder.mkdir()
    folder.chmod(0o755)

    def refuse(self: Path, mode: int, *, follow_symlinks: bool = True) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(Path, "chmod", refuse)
    with pytest.raises(StoreExposedError, match="others on this machine can read"):
        Store.open(folder)


def test_a_directory_that_is_no_store_is_not_touched(tmp_path: Path) -> None:
    folder = tmp_path / "home"
    folder.mkdir()
    folder.chmod(0o755)
    (folder / "letter").write_text("dear all")
    (folder / "letter").chmod(0o644)
    with pytest.raises(StoreFormatError):
        Store.open(folder)
    assert modes(folder) == (0o755, {0o644})
