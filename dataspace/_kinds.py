"""Kinds of values: patterns ask for the kind of a compound, and the index finds it by that.

To the dataspace a value is an atom or a compound, and a compound has a *kind* and entries: an attrs
class's instances are of that class, all mappings are `dict`. Values of another data model (the wire
values of a protocol) take part by deriving from `Foreign`, without being turned into Python's own:
the dataspace asks them only for the parts that some pattern looks at.
"""

from __future__ import annotations

import abc
from collections.abc import Hashable, Mapping
from types import NoneType
from typing import Any, TypeAlias

Kind: TypeAlias = Any
"""A class, or whatever else a `Foreign` returns; hashable."""

MISSING: Any = object()
"""Stands for a missing entry."""


class Atom(abc.ABC):  # noqa: B024 (a mark: classes that cannot derive from it are registered)
    """A value without parts that is not one of Python's own: hashable, compared by `==`."""

    __slots__ = ()


class Foreign(abc.ABC):
    """A compound value of another data model. Immutable."""

    __slots__ = ()

    @property
    @abc.abstractmethod
    def pattern_kind(self) -> Kind:
        """The kind that it is found by: `tuple`, `dict` or `frozenset` where it is like one."""

    @abc.abstractmethod
    def pattern_entry(self, key: Any) -> Any:
        """Return the value at `key`, a field's or element's index or a key; or `MISSING`."""

    def pattern_has(self, key: Any) -> bool:
        """Whether there is a value at `key`."""
        return self.pattern_entry(key) is not MISSING

    @abc.abstractmethod
    def pattern_identity(self) -> Hashable:
        """Return a key that is the same for equal values and for no others; see `identity`."""


ATOMS = (str, bytes, int, float, bool, NoneType, Atom)
"""The types that a constant may have."""


def kind_of(value: object) -> Kind:
    """Return the kind by which `value` is found."""
    if isinstance(value, Foreign):
        return value.pattern_kind
    return dict if isinstance(value, Mapping) else type(value)
