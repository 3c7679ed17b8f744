"""What the shelves need of a log elsewhere, which makes their store durable."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from ..store import Store


class Log(Protocol):
    """Takes the changes of a store whose settings have `logged`.

    Attributes:
        entries: Number of entries written.
        snapshots: Number of snapshots written.
        nbytes: Bytes of entries since the last snapshot.
        trouble: A sentence while it takes nothing, else None.
    """

    entries: int
    snapshots: int
    nbytes: int
    trouble: str | None

    async def run(self, store: Store, trouble: Callable[[str | None], object]) -> object:
        """Take changes until cancelled (`Store.unlogged`, `Store.logged`).

        Args:
            store: The store.
            trouble: Called with a sentence while the log takes nothing, and with None afterwards.

        Raises:
            StoreError: Another process has taken the log over: nothing more can be stored.
        """
        ...

    async def check(self) -> None:
        """Check that the log still belongs to this process; it waits while the log takes nothing.

        Raises:
            StoreTakenError: It does not.
        """
        ...
