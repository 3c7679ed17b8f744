"""The store of an owner of queues: a shelf for each queue, and small values by key."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol


class Keeper(Protocol):
    """The store of queues, and of what belongs to them: `clearfunds.persistence.Shelves`, say.

    No call awaits.
    """

    def shelf(self, name: str) -> Any:
        """Return the shelf of the queue called `name`, which has `recover(queue)`."""
        ...

    def drop(self, shelf: Any) -> None:
        """Erase a shelf, with all its messages."""
        ...

    def set(self, key: str, value: bytes) -> None:
        """Store a small value."""
        ...

    def delete(self, key: str) -> None:
        """Delete a small value."""
        ...

    def when_durable(self, callback: Callable[[], object], whose: object = None) -> None:
        """Call back when all changes until now are durable; if that raises, end `whose`."""
        ...

    def hurry(self) -> None:
        """Make the changes durable soon."""
        ...
