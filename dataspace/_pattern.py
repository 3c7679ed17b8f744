"""Patterns: which events an observer gets, and which parts of them it sees.

It is Syndicate's pattern language with Python values. A pattern is made from plain values::

    Reading                             # any instance of this attrs class, not of a subclass
    match(Reading, sensor="roof")       # with this constant in that field
    match(Reading, celsius=capture())   # shows the observer only what is captured
    ("says", ANY, capture())            # a tuple that begins like this
    {"kind": "alarm"}                   # a mapping with this in it
    TopicFilter("flights/+/UA")         # MQTT's wildcards

Matching is *open*, as Syndicate's is: it ignores fields, entries and keys that the pattern does not
name. Constants are atoms, compared by type and value (1 is neither True nor 1.0). A pattern without
a `capture()` shows the whole event; one with captures shows a tuple of them, depth first, the outer
before the inner, a class's in the order of its fields, a mapping's in that of its keys (by type,
then by value).

Source: syndicate-rs, pattern.rs and the schema dataspacePatterns.prs (discard, bind, lit, group).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from operator import itemgetter
from typing import Any, Final, cast
from weakref import WeakValueDictionary

import attrs

from ._errors import PatternError
from ._kinds import ATOMS, MISSING, Foreign, Kind, kind_of

UNSEEN: Final = {"clearfunds": "unseen"}
"""The metadata of a field that is left out when an instance is used as a pattern."""


class Pattern:
    """A compiled pattern: `Discard`, `Capture`, `Literal`, `Group`; `CapturesOnly` around one.

    Hashable, comparable.
    """

    __slots__ = ()


@attrs.frozen(slots=True)
class Discard(Pattern):
    """Anything, without looking at it."""

    def __repr__(self) -> str:
        return "ANY"


@attrs.frozen(slots=True)
class Capture(Pattern):
    """Anything that `pattern` matches, shown to the observer."""

    pattern: Pattern


@attrs.frozen(slots=True)
class Literal(Pattern):
    """This very atom; its type is part of its identity, as 1 == True in Python."""

    type: type
    value: Hashable


@attrs.frozen(slots=True)
class Group(Pattern):
    """A compound of this kind whose entries match.

    The `kind` is an attrs class, `tuple` or a named tuple's class, `dict` for any mapping, or a
    `Foreign.pattern_kind`. `entries` are (key, pattern): a field's name for an attrs class, an
    index for a tuple, a key for a mapping. An entry must be there, even where its pattern is `ANY`.
    """

    kind: Kind
    entries: tuple[tuple[Hashable, Pattern], ...]


@attrs.frozen(slots=True)
class CapturesOnly(Pattern):
    """A pattern that always shows its captures, even if there are none: then ().

    It stands around a whole pattern; within another it is just `pattern`. (It is Syndicate's rule:
    a pattern without captures says that something is the case, and no more.)
    """

    pattern: Pattern


ANY = Discard()
"""Anything, without looking at it."""


def capture(pattern: object = ANY) -> Capture:
    """Return a pattern that shows the observer the value here, if it matches `pattern`."""
    return Capture(compile_pattern(pattern))


def match(cls: type, **fields: object) -> Group:
    """Match instances of the attrs class `cls` whose named fields match.

    Raises:
        PatternError: If `cls` is not an attrs class, or has no such field.
    """
    if not attrs.has(cls):
        msg = f"match() wants an attrs class, not {cls!r}; decorate it with @attrs.frozen"
        raise PatternError(msg)
    known = [f.name for f in attrs.fields(cls)]
    for name in fields:
        if name not in known:
            msg = f"{cls.__name__} has no field {name!r}; it has {', '.join(known)}"
            raise PatternError(msg)
    ordered = [(name, compile_pattern(fields[name])) for name in known if name in fields]
    return Group(cls, tuple(ordered))


def compile_pattern(pattern: object) -> Pattern:
    """Return `pattern`, made of plain values, as a `Pattern`.

    Raises:
        PatternError: If some part of it cannot be one.
    """
    if isinstance(pattern, Pattern):
        return pattern
    if isinstance(pattern, type):
        if attrs.has(pattern):
            return Group(pattern, ())
        msg = f"the class {pattern.__name__} is not an attrs class; use ANY, a constant or match()"
        raise PatternError(msg)
    if isinstance(pattern, ATOMS):
        return Literal(type(pattern), pattern)
    if isinstance(pattern, tuple):
        parts = cast("tuple[object, ...]", pattern)
        entries = tuple((i, compile_pattern(p)) for i, p in enumerate(parts))
        return Group(type(parts), entries)  # a named tuple's class is a label
    if isinstance(pattern, Mapping):
        pairs = cast("Mapping[Hashable, object]", pattern)
        # In one order, so that equal patterns are equal and captures come in a known order.
        keys = sorted(pairs, key=_order_of_key)
        return Group(dict, tuple((key, compile_pattern(pairs[key])) for key in keys))
    if attrs.has(type(pattern)):
        fields: tuple[attrs.Attribute[Any], ...] = attrs.fields(cast("Any", type(pattern)))
        seen = [f.name for f in fields if f.metadata != UNSEEN]
        values = {name: getattr(pattern, name) for name in seen}
        return match(type(pattern), **values)
    msg = f"{pattern!r} cannot be a pattern; use ANY, capture(), match(), a class or a constant"
    raise PatternError(msg)


def _order_of_key(key: Hashable) -> tuple[int, Any, str]:
    # Preserves' order of atoms; then anything else, by type name and repr.
    for rank, type_ in enumerate((bool, float, int, str, bytes)):
        if isinstance(key, type_):
            return rank, key, ""
    return 5, type(key).__name__, repr(key)


# -- the places of a pattern --------------------------------------------------------------------

Path = tuple[Hashable, ...]


_Atom = tuple[type, Hashable]

_NO_ATOM: Final[_Atom] = (object, None)
"""Stands where a constant is wanted and there is a compound, or nothing: equals no constant."""


class _Place:
    """A path that is one object wherever it is the same: found faster than by its parts."""

    __slots__ = ("__weakref__", "path")

    def __init__(self, path: Path) -> None:
        self.path = path


_places: WeakValueDictionary[Path, _Place] = WeakValueDictionary()


def _picker(paths: tuple[Path, ...]) -> Callable[[Looked], tuple[_Atom, ...]]:
    """Return a function that looks at these places, without a loop in Python."""
    places = [_places.setdefault(path, _Place(path)) for path in paths]
    if len(places) > 1:
        return itemgetter(*places)
    if places:
        (place,) = places
        return lambda looked: (looked[place],)
    return lambda _: ()


_OF_TOPIC: Final = (("topic",), ("levels",))
"""The places of a publication's topic."""


@attrs.frozen(slots=True)
class Shape:
    """The places that a pattern looks at: patterns of one shape share a table (`_index.py`)."""

    groups: tuple[tuple[Path, Hashable, tuple[Hashable, ...]], ...]
    """Compounds that must be there: (path, kind, entries that it has at least)."""
    constants: tuple[Path, ...]
    """The places of the constants."""
    needed: tuple[tuple[Path, Hashable, tuple[Hashable, ...], tuple[Path, ...]], ...] = attrs.field(
        init=False, eq=False, repr=False
    )
    """The groups, each with as few entries as must be looked for, and their paths."""
    pick: Callable[[Looked], tuple[_Atom, ...]] = attrs.field(init=False, eq=False, repr=False)
    """Returns the values at the places of the constants, each with its type."""
    beside_topic: tuple[int, ...] = attrs.field(init=False, eq=False, repr=False)
    """The constants that are not about a topic, where the whole is a publication."""

    def __attrs_post_init__(self) -> None:
        groups = ((path, kind, _needed(kind, keys)) for path, kind, keys in self.groups)
        needed = [(p, kind, keys, tuple((*p, key) for key in keys)) for p, kind, keys in groups]
        object.__setattr__(self, "needed", tuple(needed))
        object.__setattr__(self, "pick", _picker(self.constants))
        beside = (n for n, at in enumerate(self.constants) if at[:1] not in _OF_TOPIC)
        object.__setattr__(self, "beside_topic", tuple(beside))


def _needed(kind: Kind, keys: tuple[Hashable, ...]) -> tuple[Hashable, ...]:
    """Return the entries whose presence is enough: of a sequence's, the last."""
    if kind in (dict, frozenset):
        return keys
    places = [key for key in keys if type(key) is int and key >= 0]
    return (max(places),) if places and len(places) == len(keys) else keys


@attrs.frozen(slots=True)
class Skeleton:
    """A pattern taken apart: its shape, its constants and its captures."""

    shape: Shape
    constants: tuple[tuple[type, Hashable], ...]
    captures: tuple[Path, ...] | None
    """The places of the captures; None for "show the whole"."""


def take_apart(pattern: Pattern) -> Skeleton:
    """Return the places that `pattern` looks at, the values it wants there, and what it shows."""
    groups: list[tuple[Path, Hashable, tuple[Hashable, ...]]] = []
    constants: list[tuple[Path, tuple[type, Hashable]]] = []
    captures: list[Path] = []

    def walk(part: Pattern, path: Path) -> None:
        if isinstance(part, Capture):
            captures.append(path)
            walk(part.pattern, path)
        elif isinstance(part, Literal):
            constants.append((path, (part.type, part.value)))
        elif isinstance(part, Group):
            groups.append((path, part.kind, tuple(key for key, _ in part.entries)))
            for key, inner in part.entries:
                walk(inner, (*path, key))
        elif isinstance(part, CapturesOnly):
            walk(part.pattern, path)

    walk(pattern, ())
    return Skeleton(
        Shape(tuple(groups), tuple(path for path, _ in constants)),
        tuple(value for _, value in constants),
        tuple(captures) if captures or isinstance(pattern, CapturesOnly) else None,
    )


def look_up(value: Any, path: Path) -> Any:
    """Return the value at `path` in `value`, or `MISSING`."""
    for key in path:
        value = entry(value, key)
        if value is MISSING:
            return MISSING
    return value


def entry(value: object, key: Any) -> Any:
    """Return the field, entry or key of one compound, or `MISSING`."""
    if isinstance(value, tuple):
        items = cast("tuple[object, ...]", value)
        return items[key] if isinstance(key, int) and 0 <= key < len(items) else MISSING
    if isinstance(value, Foreign):
        return value.pattern_entry(key)
    if isinstance(value, Mapping):
        return cast("Mapping[object, object]", value).get(key, MISSING)
    if isinstance(key, str) and attrs.has(type(value)):
        return getattr(value, key, MISSING)
    return MISSING


class Looked(dict["_Place", _Atom]):
    """A value, and the parts of it looked up so far: many patterns look at the same places.

    As a mapping it has the atoms at the places of constants, each with its type.
    """

    __slots__ = ("_kinds", "_parts")

    def __init__(self, value: Any) -> None:
        super().__init__()
        self._parts: dict[Path, Any] = {(): value}
        self._kinds: dict[Path, Kind] = {}

    def __missing__(self, place: _Place) -> _Atom:
        """Look up a place for the first time."""
        part = self.at(place.path)
        atom = self[place] = (type(part), part) if isinstance(part, ATOMS) else _NO_ATOM
        return atom

    def at(self, path: Path) -> Any:
        """Return the part at `path`, or `MISSING`."""
        parts = self._parts
        part = parts.get(path, parts)
        if part is parts:
            around = parts[()] if len(path) == 1 else self.at(path[:-1])
            part = parts[path] = MISSING if around is MISSING else entry(around, path[-1])
        return part

    def kind_at(self, path: Path) -> Kind:
        """Return the kind of the part at `path`."""
        kind = self._kinds.get(path)
        if kind is None:
            kind = self._kinds[path] = kind_of(self.at(path))
        return kind


def fits(shape: Shape, looked: Looked) -> bool:
    """Whether every compound of the shape is there, with its entries.

    The kind of the whole has been checked: shapes are kept by it.
    """
    for path, kind, keys, paths in shape.needed:
        if path and looked.kind_at(path) != kind:
            return False
        part = looked.at(path)
        if isinstance(part, Foreign):
            for key in keys:
                if not part.pattern_has(key):
                    return False
        else:
            for inner in paths:
                if looked.at(inner) is MISSING:
                    return False
    return True


def captured(captures: tuple[Path, ...] | None, value: Any) -> Any:
    """Return the part of `value` that an observer sees: the whole, or a tuple of the captures."""
    return value if captures is None else tuple([look_up(value, path) for path in captures])
