"""Of what kind a value is: what patterns ask of a compound, and what it is found by.

To the dataspace a value is an atom or a compound, and a compound has a *kind* and entries: an attrs
class's instances are of that class, all mappings are `dict`. Values of another data model (the wire
values of a protocol) take part by deriving from `Foreign`, without being turned into Python's own:
the dataspace asks them only for what some pattern looks at.
"""

from __future__ import annotations

import abc
from collections.abc import Hashable, Mapping
from types import NoneType
from typing import Any, TypeAlias

Kind: TypeAlias = Any
"""A class, or whatever else a `Foreign` says; hashable."""

MISSING: Any = object()
"""What stands where nothing stands."""


class Atom(abc.ABC):  # noqa: B024 (a mark: classes that cannot derive from it are registered)
    """A value without parts that is none of Python's own: hashable, compared by `==`."""

    __slots__ = ()


class Foreign(abc.ABC):
    """A compound value of another data model. Immutable."""

    __slots__ = ()

    @property
    @abc.abstractmethod
    def pattern_kind(self) -> Kind:
        """What it is found by: `tuple`, `dict` or `frozenset` where it is like one of those."""

    @abc.abstractmethod
    def pattern_entry(self, key: Any) -> Any:
        """Return what stands at `key`, a field's or element's index or a key; or `MISSING`."""

    def pattern_has(self, key: Any) -> bool:
        """Whether something stands at `key`."""
        return self.pattern_entry(key) is not MISSING

    @abc.abstractmethod
    def pattern_identity(self) -> Hashable:
        """Return what is equal for equal values and no others; see `identity`."""


ATOMS = (str, bytes, int, float, bool, NoneType, Atom)
"""What a constant may be."""


def kind_of(value: object) -> Kind:
    """Return the kind by which `value` is found."""
    if isinstance(value, Foreign):
        return value.pattern_kind
    return dict if isinstance(value, Mapping) else type(value)
