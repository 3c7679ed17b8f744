"""Values of the wire, in the dataspace's form.

Atoms are Python's own, `Symbol` and `Embedded`. A compound is a `Foreign` value (`Encoded` or
`Decoded`): its kind is `tuple`, `dict` or `frozenset`, or, for a record, the bytes of its label.

`Encoded` values keep the bytes as received. Only entries that a pattern looks at are ever decoded;
forwarding uses the bytes. They contain neither references nor annotations. `Decoded` values contain
them, with entities in their `Embedded`s: a number in a reference means something on one connection
only, an entity means the same everywhere.
"""

from __future__ import annotations

from collections.abc import Hashable
from contextlib import suppress
from struct import unpack_from
from typing import Any, TypeAlias

from ...dataspace import MISSING, Atom, Foreign, Publication
from .._errors import LocalProtocolError
from ._preserves import (
    Embedded,
    Record,
    Symbol,
    Value,
    canonical,
    decode_binary,
    encode_binary,
    is_mapping,
    is_set,
    is_tuple,
)
from ._scan import (
    DICTIONARY,
    DOUBLE,
    END,
    FALSE,
    INTEGER,
    RECORD,
    SEQUENCE,
    SET,
    STRING,
    SYMBOL,
    TRUE,
    atom_end,
)

Atom.register(Symbol)
Atom.register(Embedded)

WireValue: TypeAlias = Any
"""`Encoded`, `Decoded` or an atom."""

PUBLICATION = "publication"
"""The label of publications' records."""

PUBLICATION_KIND = b"\xb3\x0bpublication"

_KINDS = {SEQUENCE: tuple, DICTIONARY: dict, SET: frozenset}


class DictKey:
    """A dictionary's key that is compound, or that Python confuses with others (True, 1.0).

    Patterns have it in the place of the key; its canonical bytes identify it.
    """

    __slots__ = ("raw",)

    def __init__(self, raw: bytes) -> None:
        self.raw = raw

    def __repr__(self) -> str:
        return f"<DictKey {decode_binary(self.raw)!r}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DictKey) and self.raw == other.raw

    def __hash__(self) -> int:
        return hash(self.raw)


def dict_key(key: Value) -> Hashable:
    """Return the form of a dictionary's key in patterns.

    Raises:
        LocalProtocolError: if it contains a reference.
    """
    if isinstance(key, (str, bytes, Symbol)) or type(key) is int:
        return key
    return DictKey(canonical(key))


class Encoded(Foreign):
    """A compound value as the bytes received.

    Attributes:
        raw: one whole, well-formed compound, without references and annotations.
    """

    __slots__ = ("_children", "_decoded", "_places", "raw")

    def __init__(self, raw: bytes) -> None:
        self.raw = raw
        # Entries that some pattern has looked at: others will look at them, too.
        self._children: dict[Any, Any] | None = None
        self._places: list[int] | None = None
        self._decoded: Value = MISSING

    def __repr__(self) -> str:
        return f"<Encoded {self.value()!r}>"

    @property
    def nbytes(self) -> int:
        """The bytes charged for it."""
        return len(self.raw)

    def value(self) -> Value:
        """Return it decoded, in the types of the `preserves` library."""
        if self._decoded is MISSING:
            self._decoded = decode_binary(self.raw)
        return self._decoded

    @property
    def pattern_kind(self) -> Hashable:
        raw = self.raw
        if raw[0] != RECORD:
            return _KINDS[raw[0]]
        if raw[1] == SYMBOL and raw[2] < 128:
            return raw[1 : 3 + raw[2]]
        return canonical(self.value().key)

    def pattern_entry(self, key: Any) -> Any:
        raw = self.raw
        if raw[0] not in (RECORD, SEQUENCE):
            if self._children is None:
                self._children = _entries(self.value())
            return self._children.get(key, MISSING)
        places = self._places
        if places is None:
            places = self._places = places_of(raw)
        if not isinstance(key, int) or not 0 <= key < len(places) - 1:
            return MISSING
        start = places[key]
        if raw[start] < RECORD:
            return value_at(raw, start, places[key + 1])
        children = self._children
        if children is None:
            children = self._children = {}
        child = children.get(key)
        if child is None:
            child = children[key] = Encoded(raw[start : places[key + 1]])
        return child

    def pattern_has(self, key: Any) -> bool:
        raw = self.raw
        if raw[0] not in (RECORD, SEQUENCE):
            return self.pattern_entry(key) is not MISSING
        if self._places is None:
            self._places = places_of(raw)
        return isinstance(key, int) and 0 <= key < len(self._places) - 1

    def pattern_identity(self) -> Hashable:
        return ("preserves", canonical(self.value()))


class Decoded(Foreign):
    """A compound value with entities in it.

    Attributes:
        content: a hashable compound value of the `preserves` library.
    """

    __slots__ = ("_children", "_nbytes", "content")

    def __init__(self, content: Value, nbytes: int | None = None) -> None:
        self.content = content
        self._nbytes = nbytes
        self._children: dict[Any, Any] | None = None

    def __repr__(self) -> str:
        return f"<Decoded {self.content!r}>"

    @property
    def nbytes(self) -> int:
        """The bytes charged for it."""
        if self._nbytes is None:
            self._nbytes = _size(self.content)
        return self._nbytes

    def value(self) -> Value:
        """Return it in the types of the `preserves` library."""
        return self.content

    @property
    def pattern_kind(self) -> Hashable:
        content = self.content
        if isinstance(content, Record):
            return label_kind(content.key)
        if is_tuple(content):
            return tuple
        return frozenset if is_set(content) else dict

    def pattern_entry(self, key: Any) -> Any:
        if self._children is None:
            self._children = _entries(self.content)
        return self._children.get(key, MISSING)

    def pattern_identity(self) -> Hashable:
        return ("preserves", canonical(self.content, number_of))


def number_of(entity: Any) -> int:
    """Return the number of an entity in this process."""
    number: int = entity.number
    return number


def label_kind(label: Value) -> Hashable:
    """Return the kind of records with this label."""
    return canonical(label, number_of)


def wire_value(value: Value, nbytes: int | None = None) -> WireValue:
    """Return the dataspace's form of a value of the `preserves` library, with entities in it.

    `nbytes` is the size to charge, by default the sum of its parts.
    """
    if isinstance(value, Record) or is_tuple(value) or is_mapping(value) or is_set(value):
        return Decoded(value, nbytes)
    return value


def _size(value: Value) -> int:
    # Nearly its size in binary: each recipient has another number for each reference.
    return len(encode_binary(value, number_of))


def library_value(value: Any) -> Value:
    """Return a wire value in the types of the `preserves` library; the reverse of `wire_value`.

    A tuple of the dataspace, the captures of a pattern, is a sequence.
    """
    if isinstance(value, (Encoded, Decoded)):
        return value.value()
    if isinstance(value, tuple):
        return tuple([library_value(part) for part in value])  # pyright: ignore[reportUnknownVariableType]
    return value


def encoded(value: Any) -> bytes | None:
    """Return the bytes of a value shown to observers; None if it contains references."""
    if isinstance(value, Encoded):
        return value.raw
    if isinstance(value, bytes):
        return b"\xb2" + varint(len(value)) + value
    if isinstance(value, tuple):
        parts: list[bytes] = [b"\xb5"]
        for part in value:  # pyright: ignore[reportUnknownVariableType]
            raw = encoded(part)
            if raw is None:
                return None
            parts.append(raw)
        parts.append(b"\x84")
        return b"".join(parts)
    if isinstance(value, str):
        text = value.encode()
        return b"\xb1" + varint(len(text)) + text
    if isinstance(value, Publication):
        # In one go: otherwise an observer of many of them makes a record of each first.
        levels, payload = encoded(value.levels), encoded(value.payload)
        assert levels is not None
        assert payload is not None
        flags = encode_integer(value.qos) + (b"\x81" if value.retain else b"\x80")
        return b"".join((b"\xb4", PUBLICATION_KIND, levels, payload, flags, b"\x84"))
    if isinstance(value, (int, float, Symbol)):
        return encode_binary(value)
    if isinstance(value, Decoded):
        try:
            return encode_binary(value.content, _none)
        except LocalProtocolError:
            return None
    return None


def _none(_: Any) -> Value:
    raise LocalProtocolError("a reference")


def varint(number: int) -> bytes:
    """Return the wire's form of a length."""
    if number < 128:
        return bytes((number,))
    groups = bytearray()
    while number >= 128:
        groups.append(number & 127 | 128)
        number >>= 7
    groups.append(number)
    return bytes(groups)


def encode_integer(number: int) -> bytes:
    """Return the wire's form of an integer, with tag and length."""
    if not number:
        return b"\xb0\x00"
    size = (number if number > 0 else ~number).bit_length() // 8 + 1
    return b"\xb0" + varint(size) + number.to_bytes(size, "big", signed=True)


def value_at(data: bytes, start: int, end: int) -> WireValue:
    """Return the value at `start`, which is well-formed and without references."""
    tag = data[start]
    if tag >= RECORD:
        return Encoded(data[start:end])
    if tag >= INTEGER:
        length = data[start + 1]
        body = start + 2
        while length >= 128:  # its size is known: only its beginning has to be found
            length = data[body]
            body += 1
        content = data[body:end]
        if tag == STRING:
            return content.decode()
        if tag == SYMBOL:
            return Symbol(content.decode())
        return int.from_bytes(content, "big", signed=True) if tag == INTEGER else content
    if tag == DOUBLE:
        number: float = unpack_from(">d", data, start + 2)[0]
        return number
    return tag == TRUE


def places_of(raw: bytes) -> list[int]:
    """Return where the fields or elements begin, and where the last one ends."""
    at = value_end(raw, 1) if raw[0] == RECORD else 1
    places = [at]
    while raw[at] != END:
        at = value_end(raw, at)
        places.append(at)
    return places


def value_end(data: bytes, at: int) -> int:
    """Return where the value at `at` ends, in data in which no fault was found."""
    depth = 0
    while True:
        tag = data[at]
        if tag >= RECORD:
            depth += 1
            at += 1
        elif tag == END:
            depth -= 1
            at += 1
        elif tag >= INTEGER:
            at = atom_end(data, at)
        elif tag == DOUBLE:
            at += 10
        else:
            assert FALSE <= tag <= TRUE
            at += 1
        if not depth:
            return at


def _entries(content: Value) -> dict[Any, Any]:
    """Return the entries of a compound that patterns can look at: keys without references."""
    entries: dict[Any, Any] = {}
    if is_mapping(content):
        for key, part in content.items():
            with suppress(LocalProtocolError):
                entries[dict_key(key)] = wire_value(part)
        return entries
    parts = content.fields if isinstance(content, Record) else content
    if is_tuple(parts):
        entries.update(enumerate(map(wire_value, parts)))
    return entries
