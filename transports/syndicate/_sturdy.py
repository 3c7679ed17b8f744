"""Sturdyrefs: references that can be written down, passed on and restricted.

A sturdyref is a service's name, `oid`, signed with the service's key. Anybody who has one can add
caveats, each of which lets less through; the signature is chained over them, so they can be added
but not removed (sturdyrefs are macaroons)::

    sig = f(... f(f(key, oid), caveat) ..., caveat),   f(k, d) = HMAC-BLAKE2s-256(k, d)[:16]

with oids and caveats in the canonical form of Preserves.

A caveat takes a value asserted or sent through the reference and returns the value that arrives, or
nothing: `<rewrite pattern template>`, `<or [<rewrite ...> ...]>`, `<reject pattern>`. They apply
from the right, the newest first. One that is unknown or malformed lets nothing through.

Source: syndicate-protocols, sturdy.prs; A. Birgisson et al., "Macaroons" (NDSS 2014).
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import attrs

from .._errors import LocalProtocolError, RemoteProtocolError
from ._preserves import (
    Embedded,
    ImmutableDict,
    Record,
    Symbol,
    Value,
    canonical,
    decode_text,
    encode_text,
    entries_in_order,
    frozen,
    is_mapping,
    is_sequence,
    is_set,
    is_tuple,
    same,
)
from ._scan import DEFAULT_MAX_DEPTH, DEFAULT_MAX_PACKET_SIZE

#: Bytes kept of the 32 that HMAC-BLAKE2s-256 gives (sturdy.prs).
SIGNATURE_SIZE = 16

#: Default limit on the size of the caveats of one reference: Node.js's limit on the headers of a
#: request (`--max-http-header-size`), in which macaroons travel elsewhere.
DEFAULT_MAX_CAVEATS_SIZE = 16 << 10

_REF = Symbol("ref")
_OID = Symbol("oid")
_SIG = Symbol("sig")
_CAVEATS = Symbol("caveats")


@attrs.frozen(slots=True)
class SturdyRef:
    """A signed reference: `<ref {oid: any sig: bytes caveats: [...]}>`."""

    oid: Value
    """The name of the service."""
    sig: bytes
    """Proves that its maker knew the service's key, or a reference with fewer caveats."""
    caveats: tuple[Value, ...] = ()
    """The added caveats, the newest last."""

    def __str__(self) -> str:
        return encode_text(sturdyref_value(self))


def sturdyref_value(ref: SturdyRef) -> Record:
    """Return the record that encodes a sturdyref, on the wire or in a file."""
    parameters = [(_CAVEATS, ref.caveats)] if ref.caveats else []
    return Record(_REF, (ImmutableDict([(_OID, ref.oid), (_SIG, ref.sig), *parameters]),))


def read_sturdyref(text: str) -> SturdyRef:
    """Parse a sturdyref from text.

    Raises:
        RemoteProtocolError: if it is not a sturdyref.
    """
    return parse_sturdyref(decode_text(text))


def parse_sturdyref(value: Value) -> SturdyRef:
    """Parse a sturdyref from a value.

    Raises:
        RemoteProtocolError: if it is not a sturdyref.
    """
    if isinstance(value, Record) and value.key == _REF and len(value.fields) == 1:
        detail = value.fields[0]
        if is_mapping(detail):
            sig = detail.get(_SIG)
            caveats = detail.get(_CAVEATS, ())
            if _OID in detail and isinstance(sig, bytes) and is_tuple(caveats):
                return SturdyRef(detail[_OID], sig, caveats)
    raise RemoteProtocolError(
        "a sturdyref is <ref {oid: any sig: bytes}>, with caveats: [...] if there are any"
    )


def mint(oid: Value, key: bytes, caveats: Iterable[Value] = ()) -> SturdyRef:
    """Make a sturdyref for the service with the name `oid` and this key.

    Raises:
        LocalProtocolError: if the oid or a caveat has a reference in it or is not a Preserves
            value, or a caveat is malformed.
    """
    return attenuated_sturdyref(SturdyRef(oid, _sign(key, oid)), caveats)


def attenuated_sturdyref(ref: SturdyRef, caveats: Iterable[Value]) -> SturdyRef:
    """Return a sturdyref that lets less through; this does not need the key.

    Raises:
        LocalProtocolError: as `mint`.
    """
    added = tuple(frozen(caveat) for caveat in caveats)
    sig = ref.sig
    for caveat in added:
        compiled = compile_caveat(caveat)
        if isinstance(compiled, Refusal):
            raise LocalProtocolError(f"this caveat lets nothing through: {compiled.reason}")
        sig = _sign(sig, caveat)
    return SturdyRef(ref.oid, sig, ref.caveats + added)


def is_genuine(ref: SturdyRef, key: bytes) -> bool:
    """Whether a sturdyref was made with this key and only attenuated since."""
    try:
        sig = _sign(key, ref.oid)
        for caveat in ref.caveats:
            sig = _sign(sig, caveat)
    except LocalProtocolError:
        return False
    return hmac.compare_digest(sig, ref.sig)


def _sign(key: bytes, value: Value) -> bytes:
    return hmac.digest(key, canonical(value, _no_reference), "blake2s")[:SIGNATURE_SIZE]


def _no_reference(value: Any) -> Value:
    raise LocalProtocolError(f"a sturdyref cannot have a reference in it: {value!r}")


# -- caveats ------------------------------------------------------------------------------------

Attenuate: TypeAlias = Callable[[Any, tuple[Value, ...]], Any]
"""Puts caveats before an entity in an `Embedded`; returns the attenuated entity."""

_Matcher: TypeAlias = Callable[[Value, list[Value]], bool]
_Maker: TypeAlias = Callable[[Sequence[Value], Attenuate], Value]


class _CaveatError(Exception):
    """A caveat is malformed; within this module only."""


class _NothingError(Exception):
    """A template gives no value for these bindings; within this module only."""


@attrs.frozen(slots=True, eq=False)
class Rewrite:
    """Lets matching values through, rewritten by the template."""

    matches: _Matcher
    make: _Maker


@attrs.frozen(slots=True, eq=False)
class Alternatives:
    """The first rewrite that matches decides."""

    rewrites: tuple[Rewrite, ...]


@attrs.frozen(slots=True, eq=False)
class Reject:
    """Lets values through unchanged that do not match."""

    matches: _Matcher


@attrs.frozen(slots=True)
class Refusal:
    """Lets nothing through."""

    reason: str


Caveat: TypeAlias = Alternatives | Reject | Refusal


def compile_caveat(value: Value) -> Caveat:
    """Compile a caveat; never raises.

    One that is unknown or malformed becomes a `Refusal`.
    """
    try:
        match _record(value):
            case ("rewrite", (_, _)):
                return Alternatives((_rewrite(value),))
            case ("or", (rewrites,)) if is_tuple(rewrites):
                return Alternatives(tuple([_rewrite(rewrite) for rewrite in rewrites]))
            case ("reject", (pattern,)):
                return Reject(_pattern(pattern)[0])
            case ("", _):
                raise _CaveatError("a caveat is a record")
            case (name, fields):
                raise _CaveatError(f"no caveat is called {name!r} and has {len(fields)} fields")
    except _CaveatError as exc:
        return Refusal(str(exc))


def compile_caveats(
    values: Sequence[Value], *, max_size: int = DEFAULT_MAX_CAVEATS_SIZE
) -> tuple[Caveat, ...]:
    """Compile caveats in the order of their list, the newest last.

    More than about `max_size` bytes of them become one `Refusal`: they run for every event.
    """
    try:
        _weigh(values, max_size, DEFAULT_MAX_DEPTH)
    except _NothingError:
        return (Refusal(f"more than {max_size} bytes of caveats on one reference"),)
    return tuple([compile_caveat(value) for value in values])


def attenuate_value(
    caveats: Sequence[Caveat],
    value: Value,
    attenuate: Attenuate,
    *,
    max_size: int = DEFAULT_MAX_PACKET_SIZE,
    max_depth: int = DEFAULT_MAX_DEPTH,
) -> Value | None:
    """Return the part of an assertion or a message that caveats let through; None for nothing.

    Args:
        caveats: the newest last; it applies first.
        value: the value asserted or sent.
        attenuate: does `<attenuate template caveats>` to the entity in an `Embedded`.
        max_size: about the largest size of a rewritten value, in bytes. Templates repeat their
            bindings, so a few of them could make it as large as they like.
        max_depth: the deepest nesting of a rewritten value.
    """
    for caveat in reversed(caveats):
        if isinstance(caveat, Refusal):
            return None
        try:
            if isinstance(caveat, Reject):
                if caveat.matches(value, []):
                    return None
                continue
            value = _rewritten(caveat, value, attenuate)
            _weigh(value, max_size, max_depth)
        except _NothingError:
            return None
        except (ValueError, TypeError):
            # The library cannot compare sets of references, which have no order.
            return None
    return value


def deciding_fields(caveats: Iterable[Value]) -> dict[int, bool] | None:
    """Return the fields of a record of atoms on which it depends whether caveats let it through.

    Besides, it depends on its label and the number of its fields. True for a field of which the
    content counts, False where the kind of atom is enough. None if that cannot be said, or if what
    they let through may be changed by them.
    """
    fields: dict[int, bool] = {}
    for caveat in caveats:
        match _record(caveat):
            case ("rewrite", (_, _)):
                patterns = _unchanging((caveat,))
            case ("or", (rewrites,)) if is_tuple(rewrites):
                patterns = _unchanging(rewrites)
            case ("reject", (pattern,)):
                patterns = [pattern]
            case _:
                return None
        if patterns is None or not all(_note_fields(pattern, None, fields) for pattern in patterns):
            return None
    return fields


def _unchanging(rewrites: Iterable[Value]) -> list[Value] | None:
    """Return the patterns of rewrites that change nothing; None if one may change something."""
    patterns: list[Value] = []
    for rewrite in rewrites:
        name, parts = _record(rewrite)
        if name != "rewrite" or len(parts) != 2 or _record(parts[1]) != ("ref", (0,)):
            return None
        bind, inner = _record(parts[0])
        if bind != "bind" or len(inner) != 1:
            return None
        patterns.append(inner[0])
    return patterns


def _note_fields(pattern: Value, field: int | None, fields: dict[int, bool]) -> bool:
    """Note the fields that a pattern of the whole, or of one field, looks at; False: unknown."""
    if isinstance(pattern, Symbol):
        if field is not None:
            fields.setdefault(field, False)
        return True
    match _record(pattern):
        case ("bind" | "not", (inner,)):
            return _note_fields(inner, field, fields)
        case ("and", (items,)) if is_tuple(items):
            return all(_note_fields(item, field, fields) for item in items)
        case ("rec", (_, items)) if is_tuple(items):
            if field is not None:
                return True  # an atom is none
            return all(_note_fields(item, at, fields) for at, item in enumerate(items))
        case ("lit", (_,)):
            if field is None:
                return False
            fields[field] = True
            return True
        case ("_" | "arr" | "dict", _):
            return True  # anything, or no record and no atom
        case _:
            return False


def max_attenuated_size(size: int) -> int:
    """Return the largest size that caveats may give a value of `size` bytes.

    Templates may add as much as caveats can contain, and some bindings twice over. The work for
    every message is in proportion to this.
    """
    return DEFAULT_MAX_CAVEATS_SIZE + 4 * size


def _rewritten(caveat: Alternatives, value: Value, attenuate: Attenuate) -> Value:
    for rewrite in caveat.rewrites:
        bindings: list[Value] = []
        if rewrite.matches(value, bindings):
            return rewrite.make(bindings, attenuate)
    raise _NothingError


def _weigh(value: Value, room: int, depth: int) -> int:
    """Return the part of `room` that a value leaves; it stops when none is left."""
    if depth < 0 or room < 0:
        raise _NothingError
    room -= 1
    if isinstance(value, (str, bytes)):
        room -= len(value)
    elif isinstance(value, Symbol):
        room -= len(value.name)
    elif isinstance(value, int):
        room -= value.bit_length() // 8
    else:
        for part in _parts(value):
            room = _weigh(part, room, depth - 1)
    if room < 0:
        raise _NothingError
    return room


def _parts(value: Value) -> Iterable[Value]:
    if isinstance(value, Record):
        return (value.key, *value.fields)
    if is_sequence(value) or is_set(value):
        return value
    if is_mapping(value):
        return [part for pair in value.items() for part in pair]
    return ()


def _record(value: Value) -> tuple[str, tuple[Value, ...]]:
    """Return the name and fields of a record whose label is a symbol; no name for other values."""
    if isinstance(value, Record) and isinstance(value.key, Symbol):
        return value.key.name, value.fields
    return "", ()


def _rewrite(value: Value) -> Rewrite:
    match _record(value):
        case ("rewrite", (pattern, template)):
            matches, bound = _pattern(pattern)
            make, needed = _template(template)
            if needed > bound:
                raise _CaveatError(
                    f"a template refers to binding {needed - 1}, of which its pattern makes {bound}"
                )
            return Rewrite(matches, make)
        case _:
            raise _CaveatError("alternatives are <rewrite pattern template>")


# Patterns: compiled, they take a value and a list, to which they append the bindings.


def _is_atom(name: str) -> _Matcher | None:
    match name:
        case "Boolean":
            return lambda value, _: isinstance(value, bool)
        case "Double":
            return lambda value, _: isinstance(value, float)
        case "SignedInteger":
            return lambda value, _: isinstance(value, int) and not isinstance(value, bool)
        case "String":
            return lambda value, _: isinstance(value, str)
        case "ByteString":
            return lambda value, _: isinstance(value, bytes)
        case "Symbol":
            return lambda value, _: isinstance(value, Symbol)
        case "Embedded":
            return lambda value, _: isinstance(value, Embedded)
        case _:
            return None


def _pattern(value: Value) -> tuple[_Matcher, int]:
    """Return a matcher and how many bindings it makes."""
    if isinstance(value, Symbol):
        atom = _is_atom(value.name)
        if atom is not None:
            return atom, 0
        raise _CaveatError(f"{value.name} is not a kind of atom")
    match _record(value):
        case ("_", ()):
            return _anything, 0
        case ("lit", (literal,)):
            return lambda part, _: same(part, literal), 0
        case ("bind", (inner,)):
            matches, bound = _pattern(inner)

            def bind(part: Value, bindings: list[Value]) -> bool:
                bindings.append(part)
                return matches(part, bindings)

            return bind, bound + 1
        case ("not", (inner,)):
            matches, bound = _pattern(inner)
            if bound:
                raise _CaveatError("a pattern under <not ...> binds something")
            return lambda part, bindings: not matches(part, bindings), 0
        case ("and", (items,)) if is_tuple(items):
            every, bound = _patterns(items)
            return lambda part, bindings: all(m(part, bindings) for m in every), bound
        case ("rec", (label, items)) if is_tuple(items):
            fields, bound = _patterns(items)
            return (
                lambda part, bindings: (
                    isinstance(part, Record)
                    and same(part.key, label)
                    and _match_all(fields, part.fields, bindings)
                )
            ), bound
        case ("arr", (items,)) if is_tuple(items):
            elements, bound = _patterns(items)
            return (
                lambda part, bindings: is_sequence(part) and _match_all(elements, part, bindings)
            ), bound
        case ("dict", (items,)) if is_mapping(items):
            pairs = _in_order(items)
            values, bound = _patterns([pattern for _, pattern in pairs])
            keys = [key for key, _ in pairs]

            def match_entries(part: Value, bindings: list[Value]) -> bool:
                if not is_mapping(part):
                    return False
                found = [_entry(part, key) for key in keys]
                return None not in found and _match_all(values, found, bindings)

            return match_entries, bound
        case _:
            raise _CaveatError("a caveat's pattern is malformed")


def _anything(_value: Value, _bindings: list[Value]) -> bool:
    return True


def _patterns(values: Sequence[Value]) -> tuple[list[_Matcher], int]:
    compiled = [_pattern(value) for value in values]
    return [matches for matches, _ in compiled], sum(bound for _, bound in compiled)


def _match_all(matchers: list[_Matcher], parts: Sequence[Value], bindings: list[Value]) -> bool:
    return len(parts) == len(matchers) and all(
        matches(part, bindings) for matches, part in zip(matchers, parts, strict=True)
    )


def _in_order(mapping: Mapping[Value, Value]) -> list[tuple[Value, Value]]:
    """Return the entries in the order of their bindings' numbers."""
    try:
        return entries_in_order(mapping)
    except (ValueError, TypeError):
        raise _CaveatError("a pattern's key has a reference in it") from None


def _entry(mapping: Mapping[Value, Value], key: Value) -> Value | None:
    """Return the value of a key; None if there is none. 1 and True are one key to Python only."""
    if key not in mapping:
        return None
    return next((part for at, part in mapping.items() if at == key and same(at, key)), None)


# Templates: compiled, they take the bindings and the function that attenuates an entity.


def _template(value: Value) -> tuple[_Maker, int]:
    """Return a maker and the number of bindings that it needs."""
    match _record(value):
        case ("lit", (literal,)):
            return lambda _bindings, _attenuate: literal, 0
        case ("ref", (int() as index,)) if index >= 0 and not isinstance(index, bool):
            return lambda bindings, _: bindings[index], index + 1
        case ("attenuate", (inner, caveats)) if is_tuple(caveats):
            make, needed = _template(inner)
            chain = caveats
            for caveat in compile_caveats(chain):
                if isinstance(caveat, Refusal):
                    raise _CaveatError(caveat.reason)

            def attenuated(bindings: Sequence[Value], attenuate: Attenuate) -> Value:
                made = make(bindings, attenuate)
                if not isinstance(made, Embedded):
                    raise _NothingError
                return Embedded(attenuate(made.embeddedValue, chain))

            return attenuated, needed
        case ("rec", (label, items)) if is_tuple(items):
            fields, needed = _templates(items)
            return (
                lambda bindings, attenuate: Record(label, [f(bindings, attenuate) for f in fields])
            ), needed
        case ("arr", (items,)) if is_tuple(items):
            elements, needed = _templates(items)
            return (
                lambda bindings, attenuate: tuple([e(bindings, attenuate) for e in elements])
            ), needed
        case ("dict", (items,)) if is_mapping(items):
            values, needed = _templates(list(items.values()))
            keys = list(items)
            return (
                lambda bindings, attenuate: ImmutableDict(
                    (key, v(bindings, attenuate)) for key, v in zip(keys, values, strict=True)
                )
            ), needed
        case _:
            raise _CaveatError("a caveat's template is malformed")


def _templates(values: Sequence[Value]) -> tuple[list[_Maker], int]:
    compiled = [_template(value) for value in values]
    return [make for make, _ in compiled], max((needed for _, needed in compiled), default=0)
