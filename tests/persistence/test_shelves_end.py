"""How the block of `open_shelves` ends when something goes wrong at its end."""

from pathlib import Path

import pytest
import trio

from clearfunds.persistence import Shelves, open_shelves
from clearfunds.store import Store, StoreSettings, StoreUsageError
from clearfunds.transports import open_flusher


async def broken(directory: Path) -> None:
    async with open_flusher() as flusher, open_shelves(directory, StoreSettings(), flusher) as here:
        here.set("key", b"value")
        # As an interrupt leaves it, between the commit and the next batch.
        here.store.commit(here._batch.changes)  # pyright: ignore[reportPrivateUsage]


async def test_a_last_commit_that_fails_is_told_and_does_not_hang(tmp_path: Path) -> None:
    with trio.fail_after(10), pytest.raises(ExceptionGroup) as caught:
        await broken(tmp_path)
    assert caught.group_contains(StoreUsageError, match="committed before")
    # What was committed before is there, and nobody has the directory any more.
    store = Store.open(tmp_path)
    assert store.values() == {"key": b"value"}
    store.close()


async def test_what_was_committed_last_is_there(tmp_path: Path) -> None:
    async with open_flusher() as flusher, open_shelves(tmp_path, StoreSettings(), flusher) as here:
        assert isinstance(here, Shelves)
        here.set("key", b"value")
    store = Store.open(tmp_path)
    assert store.values() == {"key": b"value"}
    store.close()
