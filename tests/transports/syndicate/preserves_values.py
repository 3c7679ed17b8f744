"""Values and bytes to try the protocol on, and the library to compare with."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from clearfunds.transports import RemoteProtocolError
from clearfunds.transports.syndicate import Embedded, Record, Symbol, Value, WireRef
from clearfunds.transports.syndicate._preserves import (
    ImmutableDict,
    canonical,
    decode_binary,
    encode_binary,
)

texts = st.text(st.characters(codec="utf-8"), max_size=12)
symbols = texts.map(Symbol)
oids = st.integers(-3, 300)
wire_refs = st.builds(WireRef, st.just(True), oids) | st.builds(
    WireRef, st.just(False), oids, st.lists(texts, max_size=2).map(tuple)
)
plain_atoms = st.one_of(
    st.booleans(),
    st.integers(),
    st.integers(-(2**200), 2**200),
    st.floats(allow_nan=False),
    texts,
    st.text("abc é", min_size=100, max_size=300),
    st.binary(max_size=12),
    symbols,
)
embedded = wire_refs.map(Embedded)


def compounds(parts: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    lists = st.lists(parts, max_size=4)
    return st.one_of(
        lists.map(tuple),
        st.builds(Record, parts, lists),
        lists.map(_distinct).map(frozenset),
        st.lists(st.tuples(parts, parts), max_size=4).map(_entries).map(ImmutableDict),
    )


def _distinct(items: list[Any]) -> list[Any]:
    # Two that Python takes for equal, such as 1 and True, the library refuses in one set.
    seen: dict[Any, None] = {}
    for item in items:
        seen.setdefault(item)
    return list(seen)


def _entries(pairs: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    return list(dict(pairs).items())


plain_values: st.SearchStrategy[Any] = st.recursive(plain_atoms, compounds, max_leaves=12)
values: st.SearchStrategy[Any] = st.recursive(plain_atoms | embedded, compounds, max_leaves=12)

TAGS = bytes([0x80, 0x81, *range(0x84, 0x88), *range(0xB0, 0xB8)])
garbage = st.lists(
    st.sampled_from([bytes([tag]) for tag in TAGS])
    | st.sampled_from([b"\x00", b"\x01", b"\x08", b"\xb0\x01\x01", b"\xb3\x01M", b"\xb1\x01\xff"])
    | st.binary(max_size=3),
    max_size=20,
).map(b"".join)


def damaged(encoded: bytes) -> st.SearchStrategy[bytes]:
    """What becomes of bytes when a few of them are changed, cut out or put in."""

    def damage(spots: list[tuple[int, int, bytes]]) -> bytes:
        data = bytearray(encoded)
        for at, size, new in spots:
            at %= len(data) + 1
            data[at : at + size] = new
        return bytes(data)

    spot = st.tuples(
        st.integers(0, 10_000),
        st.integers(0, 2),
        st.binary(max_size=2) | st.sampled_from([bytes([tag]) for tag in TAGS]),
    )
    return st.lists(spot, max_size=3).map(damage)


def alike(one: Value, other: Value) -> bool:
    """Whether two values are the same, types and all."""
    return canonical(one) == canonical(other)


def library_reads(data: bytes) -> bool:
    """Whether the library takes all of `data` for one value."""
    try:
        decode_binary(data)
    except RemoteProtocolError:
        return False
    return True


def encoded(value: Value) -> bytes:
    return encode_binary(value)
