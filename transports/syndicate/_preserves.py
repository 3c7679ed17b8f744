"""Preserves, the data language of the protocol: the only module that uses the `preserves` library.

The library has no type annotations, so the parts in use are declared here for the checkers. Values
are bool, int, float, str, bytes, `Symbol`, `Record`, tuple, frozenset, dict and `Embedded`.

This module corrects three things, because peers must be able to read the output: a symbol that
looks like a number, or ends in a newline, is quoted in text; every fault of text or bytes raises
the same error; and so does every value that cannot be encoded.
Source: https://preserves.dev/ (preserves-binary, preserves-text, canonical-binary).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard

from .._errors import LocalProtocolError, RemoteProtocolError

Value: TypeAlias = Any
"""A Preserves value; the reader decides what an `Embedded` contains."""

Pair: TypeAlias = tuple[Value, Value]

_Embedding: TypeAlias = Callable[[Any], Any]

if TYPE_CHECKING:

    class Symbol:
        """A Preserves symbol."""

        name: str

        def __init__(self, name: str) -> None: ...

    class Record:
        """A Preserves record: a label, `key`, and fields."""

        key: Value
        fields: tuple[Value, ...]

        def __init__(self, key: Value, fields: Iterable[Value]) -> None: ...

    class Embedded:
        """A reference within a value."""

        embeddedValue: Any  # noqa: N815 (the library's name)

        def __init__(self, embeddedValue: Any) -> None: ...  # noqa: N803

    class ImmutableDict(dict[Value, Value]):
        """A mapping that can be hashed."""

    class _Formatter:
        chunks: list[str]

        def __init__(self, *, format_embedded: _Embedding) -> None: ...
        def append(self, v: Value) -> None: ...
        def _append(self, v: Value) -> None: ...
        def contents(self) -> str: ...

    class _Parser:
        index: int

        def __init__(self, input_buffer: str, *, parse_embedded: _Embedding) -> None: ...
        def next(self) -> Value: ...
        def skip_whitespace(self) -> None: ...

    class _Decoder:
        index: int

        def __init__(self, packet: bytes, *, decode_embedded: _Embedding) -> None: ...
        def next(self) -> Value: ...

    def _encode(value: Value, *, encode_embedded: _Embedding, canonicalize: bool) -> bytes: ...
    def _map_embeddeds(f: _Embedding, v: Value) -> Value: ...
    def _eq(a: Value, b: Value) -> bool: ...
    def _sorted(iterable: Iterable[Pair], *, key: Callable[[Pair], Value]) -> list[Pair]: ...
else:
    from preserves import Decoder as _Decoder
    from preserves import Embedded, ImmutableDict, Record, Symbol  # noqa: F401
    from preserves import Formatter as _Formatter
    from preserves import Parser as _Parser
    from preserves import encode as _encode
    from preserves.compare import eq as _eq
    from preserves.compare import sorted as _sorted
    from preserves.fold import map_embeddeds as _map_embeddeds

# Exceptions of the library's decoder and parser for bad input: its DecodeError is a ValueError,
# as are those of UTF-8, base64 and int(). Bytes that pass `_scan.py` cause none of the others.
_INPUT_FAULTS = (ValueError, TypeError, RecursionError, OverflowError)

# Symbols that the library writes without quotes, though it would read some of them as numbers.
_NEEDS_QUOTES = re.compile(r"[-+]?\d+((\.\d+([eE][-+]?\d+)?)|([eE][-+]?\d+))?\Z|.*\n\Z", re.DOTALL)


class _TextFormatter(_Formatter):
    def _append(self, v: Value) -> None:
        if isinstance(v, Symbol) and _NEEDS_QUOTES.match(v.name):
            self.chunks.append("'" + v.name.replace("\n", "\\n") + "'")
        else:
            super()._append(v)


def _itself(value: Any) -> Any:
    return value


def decode_binary(data: bytes, decode_embedded: _Embedding = _itself) -> Value:
    """Decode one value that takes all of `data`.

    `decode_embedded` is called with the content of each `Embedded`, the innermost first.

    Raises:
        RemoteProtocolError: if it is not one value. An error that `decode_embedded` raises is
            passed on.
    """
    decoder = _Decoder(data, decode_embedded=decode_embedded)
    try:
        value = decoder.next()
    except _INPUT_FAULTS as exc:
        raise RemoteProtocolError(f"malformed Preserves: {exc}") from None
    if decoder.index != len(data):
        raise RemoteProtocolError(
            f"malformed Preserves: {len(data) - decoder.index} bytes follow the value"
        )
    return value


def decode_text(text: str, decode_embedded: _Embedding = _itself) -> Value:
    """Parse one value that takes all of `text`, except for white space.

    Raises:
        RemoteProtocolError: as `decode_binary`.
    """
    parser = _Parser(text, parse_embedded=decode_embedded)
    try:
        value = parser.next()
    except _INPUT_FAULTS as exc:
        raise RemoteProtocolError(f"malformed Preserves text: {exc}") from None
    parser.skip_whitespace()
    if parser.index != len(text):
        raise RemoteProtocolError(
            f"malformed Preserves text: {text[parser.index :][:20]!r} follows the value"
        )
    return value


def encode_binary(value: Value, encode_embedded: _Embedding = _itself) -> bytes:
    """Encode one value; mappings keep their order.

    Raises:
        LocalProtocolError: if a part of it is not a Preserves value.
    """
    try:
        return _encode(value, encode_embedded=encode_embedded, canonicalize=False)
    except _INPUT_FAULTS as exc:
        raise _unencodable(exc) from None


def canonical(value: Value, encode_embedded: _Embedding = _itself) -> bytes:
    """Encode one value in canonical form: equal values give equal bytes.

    Raises:
        LocalProtocolError: if a part of it is not a Preserves value.
    """
    try:
        return _encode(value, encode_embedded=encode_embedded, canonicalize=True)
    except _INPUT_FAULTS as exc:
        raise _unencodable(exc) from None


def encode_text(value: Value, encode_embedded: _Embedding = _itself) -> str:
    """Write one value as text, on one line.

    Raises:
        LocalProtocolError: if a part of it is not a Preserves value.
    """
    formatter = _TextFormatter(format_embedded=encode_embedded)
    try:
        formatter.append(value)
    except _INPUT_FAULTS as exc:
        raise _unencodable(exc) from None
    return formatter.contents()


def _unencodable(exc: Exception) -> LocalProtocolError:
    return LocalProtocolError(
        f"not a Preserves value: {exc}; use bool, int, float, str, bytes, Symbol, Record, tuples, "
        "sets, mappings and Embedded"
    )


def map_embedded(function: _Embedding, value: Value) -> Value:
    """Return `value` with the content of each `Embedded` replaced by `function` of it."""
    return _map_embeddeds(function, value)


def same(one: Value, other: Value) -> bool:
    """Whether Preserves treats two values as the same; 1, True and 1.0 are three values."""
    return _eq(one, other)


def entries_in_order(mapping: Mapping[Value, Value]) -> list[Pair]:
    """Return the entries of a mapping in Preserves' order of their keys.

    Raises:
        ValueError: if keys contain references, unless those have an order.
    """
    return _sorted(mapping.items(), key=_first)


def _first(pair: Pair) -> Value:
    return pair[0]


def frozen(value: Value) -> Value:
    """Return an equal hashable value: made of tuples, frozensets and `ImmutableDict`."""
    if isinstance(value, Record):
        return Record(frozen(value.key), [frozen(field) for field in value.fields])
    if is_sequence(value):
        return tuple([frozen(item) for item in value])
    if is_set(value):
        return frozenset([frozen(member) for member in value])
    if is_mapping(value):
        return ImmutableDict((frozen(key), frozen(part)) for key, part in value.items())
    return value


def is_sequence(value: Value) -> TypeGuard[Sequence[Value]]:
    """Whether a value is a sequence; decoded values have tuples."""
    return isinstance(value, (tuple, list))


def is_tuple(value: Value) -> TypeGuard[tuple[Value, ...]]:
    """Whether a value is a sequence in decoded form."""
    return isinstance(value, tuple)


def is_set(value: Value) -> TypeGuard[AbstractSet[Value]]:
    """Whether a value is a set."""
    return isinstance(value, (set, frozenset))


def is_mapping(value: Value) -> TypeGuard[Mapping[Value, Value]]:
    """Whether a value is a mapping, which Preserves calls a dictionary."""
    return isinstance(value, Mapping)
