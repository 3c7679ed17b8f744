"""The names under which sturdyrefs find something: what clients have bound, within limits.

No I/O, and no events: `_bindspace.py` makes bindings, `_gatekeeper.py` looks them up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import attrs

from .._errors import LocalProtocolError
from ._entities import Entity
from ._preserves import Value, canonical


class TooManyError(Exception):
    """A client may make no more of something; the message says so."""


class Shares:
    """How many things there are: in all, and of each client.

    Args:
        what: the things, in the plural.
    """

    def __init__(self, what: str) -> None:
        self.what = what
        self._of: Counter[object] = Counter()

    def __len__(self) -> int:
        return self._of.total()

    def take(self, whose: object, most: int, most_each: int, options: tuple[str, str]) -> None:
        """Count one more of a client's.

        Args:
            whose: the client.
            most: how many there may be in all.
            most_each: how many a client may have.
            options: the options that set these.

        Raises:
            TooManyError: there are too many.
        """
        all_option, each_option = options
        if self._of[whose] >= most_each:
            msg = f"a connection may have {most_each} {self.what} at most ({each_option})"
            raise TooManyError(msg)
        if len(self) >= most:
            raise TooManyError(f"there may be {most} {self.what} at most ({all_option})")
        self._of[whose] += 1

    def give_back(self, whose: object) -> None:
        """Count one less."""
        self._of[whose] -= 1
        if not self._of[whose]:
            del self._of[whose]


def name_key(oid: Value) -> bytes:
    """Return what a name is known by.

    Raises:
        LocalProtocolError: it has a reference in it.
    """
    return canonical(oid, _no_reference)


def _no_reference(_value: object) -> Value:
    raise LocalProtocolError("a name (oid) cannot have a reference in it")


@attrs.frozen(eq=False)
class Binding:
    """A name, and what it stands for."""

    oid: Value
    """The name."""
    key: bytes = attrs.field(repr=False)
    """What signs sturdyrefs with this name."""
    target: Entity
    """What is found under it."""


class Bindings:
    """All bindings, by name.

    Attributes:
        changed: called with the key of a name that has been bound, or is no longer.
    """

    def __init__(self) -> None:
        self._bound: dict[bytes, Binding] = {}
        self.changed: list[Callable[[bytes], None]] = []

    def __len__(self) -> int:
        return len(self._bound)

    def get(self, oid: Value) -> Binding | None:
        """Return the binding of a name; None if there is none."""
        try:
            return self._bound.get(name_key(oid))
        except LocalProtocolError:
            return None

    def add(self, binding: Binding) -> bool:
        """Bind a name; False if it is bound already."""
        key = name_key(binding.oid)
        if key in self._bound:
            return False
        self._bound[key] = binding
        for call in self.changed:
            call(key)
        return True

    def remove(self, binding: Binding) -> None:
        """Undo `add`."""
        key = name_key(binding.oid)
        del self._bound[key]
        for call in self.changed:
            call(key)
