"""Translation between patterns of the wire and the dataspace's own.

    <_>   <bind P>   <lit atom>   <group <rec label> {0: P ...}>   <group <arr> {...}>
    <group <dict> {key: P ...}>

The meaning is the same on both sides: matching is open; captures are in depth-first order, outer
before inner, and a mapping's in the order of its keys. The difference: a record whose label is in
the `Vocabulary` is an instance of a class to the dataspace, with the record's fields in order.

Source: syndicate-protocols, dataspacePatterns.prs.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

from ...dataspace import (
    ANY,
    Capture,
    CapturesOnly,
    Discard,
    Group,
    Kind,
    Literal,
    Pattern,
    PatternError,
)
from .._errors import LocalProtocolError, RemoteProtocolError
from ._preserves import (
    Embedded,
    ImmutableDict,
    Record,
    Symbol,
    Value,
    decode_binary,
    entries_in_order,
    is_mapping,
)
from ._values import DictKey, dict_key, label_kind
from ._vocabulary import Vocabulary

_ATOMS = (bool, float, int, str, bytes, Symbol, Embedded)


def pattern_from_wire(value: Value, vocabulary: Vocabulary) -> Pattern:
    """Return the dataspace's pattern for a pattern of the wire.

    Raises:
        RemoteProtocolError: if it is not a pattern.
        PatternError: if the dataspace does not support it: a dictionary's key is a reference.
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
    raise RemoteProtocolError("<lit ...> takes an atom; write a compound as a <group ...>")


def _group(kind: Record, entries: Mapping[Value, Value], vocabulary: Vocabulary) -> Group:
    try:
        ordered = entries_in_order(entries)
    except (ValueError, TypeError):
        raise PatternError("a pattern's key cannot be a reference, which has no order") from None
    parts = [(key, pattern_from_wire(part, vocabulary)) for key, part in ordered]
    name = kind.key.name if isinstance(kind.key, Symbol) else ""
    match name, kind.fields:
        case "dict", ():
            return Group(dict, tuple([(_dict_key(key), part) for key, part in parts]))
        case "arr", ():
            return Group(tuple, tuple([(_index(key), part) for key, part in parts]))
        case "rec", (label,):
            label_is = label_kind(label)
            cls = vocabulary.class_of(label_is)
            if cls is None:
                return Group(label_is, tuple([(_index(key), part) for key, part in parts]))
            fields = vocabulary.fields(cls)
            return Group(cls, tuple([(_field(fields, key), part) for key, part in parts]))
        case _:
            raise RemoteProtocolError("a group's type is <rec label>, <arr> or <dict>")


def _index(key: Value) -> int:
    if type(key) is not int or key < 0:
        raise RemoteProtocolError("the keys of a <rec ...> or an <arr> count from 0")
    return key


def _dict_key(key: Value) -> Hashable:
    try:
        return dict_key(key)
    except LocalProtocolError:
        raise PatternError("a pattern's key cannot have a reference in it") from None


def _field(fields: tuple[str, ...], key: Value) -> str:
    index = _index(key)
    # A field that no instance has matches nothing, as in other records.
    return fields[index] if index < len(fields) else str(index)


def pattern_to_wire(pattern: Pattern, vocabulary: Vocabulary) -> Record:
    """Return the wire's form of one of the dataspace's patterns.

    Raises:
        PatternError: if the wire has no form for it: a class that is not in the vocabulary, a key
            or a constant that is not an atom of Preserves, such as None.
    """
    match pattern:
        case Discard():
            return Record(Symbol("_"), ())
        case Capture(inner):
            return Record(Symbol("bind"), (pattern_to_wire(inner, vocabulary),))
        case Literal(type_, atom) if type_ in _ATOMS:
            return Record(Symbol("lit"), (atom,))
        case CapturesOnly(inner):
            return pattern_to_wire(inner, vocabulary)
        case Group(kind_, entries):
            kind, keys = _wire_group(kind_, [key for key, _ in entries], vocabulary)
            parts = [pattern_to_wire(part, vocabulary) for _, part in entries]
            group = ImmutableDict(zip(keys, parts, strict=True))
            return Record(Symbol("group"), (kind, group))
        case _:
            raise PatternError(f"{pattern!r} cannot be written as a pattern of the wire")


def _wire_group(
    kind: Kind, keys: list[Hashable], vocabulary: Vocabulary
) -> tuple[Record, list[Any]]:
    if kind is tuple:
        return Record(Symbol("arr"), ()), keys
    if kind is dict:
        return Record(Symbol("dict"), ()), [_wire_key(key) for key in keys]
    if isinstance(kind, bytes):
        return Record(Symbol("rec"), (decode_binary(kind),)), keys
    label = vocabulary.label(kind) if isinstance(kind, type) else None
    if label is None:
        raise PatternError(f"no record stands for {kind!r}; add it to the vocabulary")
    fields = vocabulary.fields(kind)
    names = [str(key) for key in keys]
    indices = [fields.index(name) if name in fields else int(name) for name in names]
    return Record(Symbol("rec"), (Symbol(label),)), indices


def _wire_key(key: Hashable) -> Value:
    if isinstance(key, DictKey):
        return decode_binary(key.raw)
    if not isinstance(key, _ATOMS):
        raise PatternError(f"{key!r} cannot be a key on the wire; use an atom")
    return key
