"""A bounded memory of recent keys."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final, Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")

REMEMBERED: Final = 4_096
"""Keys that are remembered: some hundred KiB. As many as connections wait to be accepted."""


class Lately(Generic[K, V]):
    """Values by key; the key that was not used for longest is forgotten first.

    Args:
        make: Makes the value of a key that is new.
        most: Keys that are remembered.
        forget: Called with a forgotten value.
    """

    def __init__(
        self,
        make: Callable[[], V],
        most: int = REMEMBERED,
        forget: Callable[[K, V], object] | None = None,
    ) -> None:
        self._make = make
        self._most = most
        self._forget = forget
        self._values: OrderedDict[K, V] = OrderedDict()

    def __len__(self) -> int:
        """Return the number of remembered keys."""
        return len(self._values)

    def __contains__(self, key: object) -> bool:
        """Whether a key is remembered."""
        return key in self._values

    def of(self, key: K) -> V:
        """Return a key's value, which is made if there is none."""
        values = self._values
        value = values.get(key)
        if value is not None:
            values.move_to_end(key)
            return value
        if len(values) >= self._most:
            old = values.popitem(last=False)
            if self._forget is not None:
                self._forget(*old)
        value = values[key] = self._make()
        return value

    def get(self, key: K) -> V | None:
        """Return a key's value, or None; it does not count as used."""
        return self._values.get(key)

    def drop(self, key: K) -> None:
        """Forget a key, if it is remembered."""
        self._values.pop(key, None)

    def take_all(self) -> list[tuple[K, V]]:
        """Return all keys with their values, and forget them."""
        taken = list(self._values.items())
        self._values.clear()
        return taken
