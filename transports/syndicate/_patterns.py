"""The pattern language of the wire, to and from the dataspace's own.

    <_>   <bind P>   <lit atom>   <group <rec label> {0: P ...}>   <group <arr> {...}>
    <group <dict> {key: P ...}>

What they mean is the same on both sides: matching is open, captures come depth first, the outer
before the inner, a mapping's in the order of its keys. What differs is a record: the dataspace
knows it by a class. So a `Vocabulary` says which class stands for which label; its fields, in
their order, are the record's.

Source: syndicate-protocols, dataspacePatterns.prs.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import attrs

from ...dataspace import ANY, Capture, Discard, Group, Literal, Pattern, PatternError
from .._errors import RemoteProtocolError
from ._preserves import Embedded, ImmutableDict, Record, Symbol, Value, entries_in_order, is_mapping

_ATOMS = (bool, float, int, str, bytes)


@attrs.frozen(slots=True)
class Vocabulary:
    """Which attrs classes stand for records of which labels."""

    classes: Mapping[str, type] = attrs.field(factory=dict[str, type])
    """By the name of the symbol that is the label."""

    def fields(self, cls: type) -> tuple[str, ...]:
        """Return the names of the fields of a class, in the order of the record's."""
        return tuple([field.name for field in attrs.fields(cls)])

    def label(self, cls: type) -> str | None:
        """Return the label of the records that a class stands for; None if it stands for none."""
        return next((label for label, known in self.classes.items() if known is cls), None)


def pattern_from_wire(value: Value, vocabulary: Vocabulary) -> Pattern:
    """Return the dataspace's pattern for one of the wire.

    Raises:
        RemoteProtocolError: if it is not a pattern.
        PatternError: if it is one that the dataspace cannot follow: a record with a label that is
            not in the vocabulary, a field that its class does not have, a constant that is a
            symbol or a reference.
    """
    if isinstance(value, Record) and isinstance(value.key, Symbol):
        match value.key.name, value.fields:
            case "_", ():
                return ANY
            case "bind", (inner,):
                return Capture(pattern_from_wire(inner, vocabulary))
            case "lit", (atom,):
                return _literal(atom)
            case "group", (Record() as kind, entries) if is_mapping(entries):
                return _group(kind, entries, vocabulary)
            case _:
                pass
    raise RemoteProtocolError(
        "a pattern is <_>, <bind pattern>, <lit atom> or <group type {key: pattern ...}> "
        "(dataspacePatterns.prs)"
    )


def _literal(atom: Value) -> Literal:
    if isinstance(atom, _ATOMS):
        return Literal(type(atom), atom)
    if isinstance(atom, (Symbol, Embedded)):
        kind = "symbol" if isinstance(atom, Symbol) else "reference"
        raise PatternError(f"the dataspace has no constant that is a {kind}: {atom!r}")
    raise RemoteProtocolError("<lit ...> takes an atom; write a compound as a <group ...>")


def _group(kind: Record, entries: Mapping[Value, Value], vocabulary: Vocabulary) -> Group:
    try:
        ordered = entries_in_order(entries)
    except (ValueError, TypeError):
        raise PatternError("the dataspace has no key that is a reference") from None
    parts = [(key, pattern_from_wire(part, vocabulary)) for key, part in ordered]
    name = kind.key.name if isinstance(kind.key, Symbol) else ""
    match name, kind.fields:
        case "dict", ():
            return Group(dict, tuple(parts))
        case "arr", ():
            return Group(tuple, tuple([(_index(key), part) for key, part in parts]))
        case "rec", (label,):
            cls = vocabulary.classes.get(label.name) if isinstance(label, Symbol) else None
            if cls is None:
                raise PatternError(f"no class stands for records labelled {label!r}")
            fields = vocabulary.fields(cls)
            return Group(cls, tuple([(_field(fields, key, cls), part) for key, part in parts]))
        case _:
            raise RemoteProtocolError("a group's type is <rec label>, <arr> or <dict>")


def _index(key: Value) -> int:
    if type(key) is not int or key < 0:
        raise RemoteProtocolError("the keys of a <rec ...> or an <arr> count from 0")
    return key


def _field(fields: tuple[str, ...], key: Value, cls: type) -> str:
    index = _index(key)
    if index >= len(fields):
        raise PatternError(f"{cls.__name__} has {len(fields)} fields, the pattern wants {index}")
    return fields[index]


def pattern_to_wire(pattern: Pattern, vocabulary: Vocabulary) -> Record:
    """Return what is written for one of the dataspace's patterns.

    Raises:
        PatternError: if the wire has nothing for it: a class that is not in the vocabulary, a key
            or a constant that is not an atom of Preserves, such as None.
    """
    match pattern:
        case Discard():
            return Record(Symbol("_"), ())
        case Capture(inner):
            return Record(Symbol("bind"), (pattern_to_wire(inner, vocabulary),))
        case Literal(type_, atom) if type_ in _ATOMS:
            return Record(Symbol("lit"), (atom,))
        case Group(type_, entries):
            kind, keys = _wire_group(type_, [key for key, _ in entries], vocabulary)
            parts = [pattern_to_wire(part, vocabulary) for _, part in entries]
            group = ImmutableDict(zip(keys, parts, strict=True))
            return Record(Symbol("group"), (kind, group))
        case _:
            raise PatternError(f"{pattern!r} cannot be written as a pattern of the wire")


def _wire_group(
    type_: type, keys: list[Hashable], vocabulary: Vocabulary
) -> tuple[Record, list[Any]]:
    if type_ is tuple:
        return Record(Symbol("arr"), ()), keys
    if type_ is dict:
        for key in keys:
            if not isinstance(key, (*_ATOMS, Symbol)):
                raise PatternError(f"{key!r} cannot be a key on the wire; use an atom")
        return Record(Symbol("dict"), ()), keys
    label = vocabulary.label(type_)
    if label is None:
        raise PatternError(f"no record stands for {type_.__name__}; add it to the vocabulary")
    fields = vocabulary.fields(type_)
    return Record(Symbol("rec"), (Symbol(label),)), [fields.index(str(key)) for key in keys]
