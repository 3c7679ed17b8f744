"""Patterns of the wire and of the dataspace, each from the other."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clearfunds.dataspace import (
    ANY,
    Capture,
    Group,
    Literal,
    Pattern,
    PatternError,
    Publication,
    TopicFilter,
    capture,
    compile_pattern,
    match,
    take_apart,
)
from clearfunds.dataspace._index import matches
from clearfunds.transports import RemoteProtocolError
from clearfunds.transports.syndicate import (
    Embedded,
    Record,
    Symbol,
    Vocabulary,
    pattern_from_wire,
    pattern_to_wire,
)
from clearfunds.transports.syndicate._preserves import decode_text, encode_text

relaxed = settings(deadline=None)


@attrs.frozen
class Says:
    who: str
    what: str


@attrs.frozen
class Other:
    x: int


WORDS = Vocabulary({"Says": Says})


def _both() -> Group:
    return match(Says, who=capture(), what=capture())


@pytest.mark.parametrize(
    ("text", "pattern"),
    [
        ("<_>", ANY),
        ("<bind <_>>", capture()),
        ("<lit 1>", 1),
        ("<lit #t>", True),
        ("<lit 1.0>", 1.0),
        ('<lit "a">', "a"),
        ('<lit #[YQ==]>', b"a"),
        ("<group <arr> {}>", ()),
        ("<group <arr> {0: <lit 1> 2: <_>}>", Group(tuple, ((0, Literal(int, 1)), (2, ANY)))),
        ("<group <dict> {}>", {}),
        ('<group <dict> {"a": <bind <lit 1>>}>', {"a": capture(1)}),
        ("<group <rec Says> {}>", Says),
        ("<group <rec Says> {0: <bind <_>> 1: <bind <_>>}>", _both()),
        ('<bind <group <rec Says> {1: <lit "hi">}>>', capture(match(Says, what="hi"))),
        ("<group <arr> {0: <group <rec Says> {0: <_>}>}>", (match(Says, who=ANY),)),
        ("<lit a>", Symbol("a")),
        ("<group <rec Unknown> {0: <_>}>", Group(b"\xb3\x07Unknown", ((0, ANY),))),
        ('<group <rec "Says"> {}>', Group(b"\xb1\x04Says", ())),
        ("<group <rec [1]> {}>", Group(b"\xb5\xb0\x01\x01\x84", ())),
        ("<group <rec publication> {1: <_>}>", match(Publication, payload=ANY)),
    ],
)  # fmt: skip
def test_both_ways(text: str, pattern: Any) -> None:
    compiled = compile_pattern(pattern)
    assert pattern_from_wire(decode_text(text), WORDS) == compiled
    assert encode_text(pattern_to_wire(compiled, WORDS)) == text


def test_entries_come_in_the_order_of_captures() -> None:
    wire = decode_text("<group <rec Says> {1: <bind <lit 2>> 0: <bind <lit 1>>}>")
    assert pattern_from_wire(wire, WORDS) == match(Says, who=capture(1), what=capture(2))
    wire = decode_text('<group <dict> {"b": <_> "aa": <_> 300: <_> 2: <_>}>')
    assert pattern_from_wire(wire, WORDS) == compile_pattern(
        {2: ANY, 300: ANY, "aa": ANY, "b": ANY}
    )


atoms = st.one_of(st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(), st.binary())
patterns: st.SearchStrategy[Any] = st.recursive(
    st.just(ANY) | st.just(Says) | atoms,
    lambda parts: st.one_of(
        parts.map(capture),
        st.lists(parts, max_size=3).map(tuple),
        st.dictionaries(st.integers() | st.text(), parts, max_size=3),
        parts.map(lambda what: match(Says, what=what)),
        st.tuples(parts, parts).map(lambda both: match(Says, who=both[0], what=both[1])),
    ),
    max_leaves=8,
)


@relaxed
@given(patterns)
def test_a_pattern_comes_back(pattern: Any) -> None:
    compiled = compile_pattern(pattern)
    assert pattern_from_wire(pattern_to_wire(compiled, WORDS), WORDS) == compiled
    in_text = decode_text(encode_text(pattern_to_wire(compiled, WORDS)))
    assert pattern_from_wire(in_text, WORDS) == compiled


@pytest.mark.parametrize(
    "text",
    [
        "1",
        "_",
        '<"_">',
        "<_ 1>",
        "<bind>",
        "<bind 1>",
        "<lit>",
        "<lit [1]>",
        "<lit <a>>",
        "<group>",
        "<group <arr>>",
        "<group <arr> []>",
        "<group arr {}>",
        "<group <arr 1> {}>",
        "<group <rec> {}>",
        "<group <set> {}>",
        '<group <"arr"> {}>',
        "<group <arr> {a: <_>}>",
        "<group <arr> {-1: <_>}>",
        "<group <arr> {#f: <_>}>",
        "<group <arr> {0: 1}>",
        "<group <rec Says> {a: <_>}>",
    ],
)
def test_what_is_no_pattern(text: str) -> None:
    with pytest.raises(RemoteProtocolError):
        pattern_from_wire(decode_text(text), WORDS)


def test_a_field_that_no_instance_has_matches_nothing() -> None:
    for text in ("<group <rec Says> {2: <_>}>", "<group <rec publication> {4: <_>}>"):
        pattern = pattern_from_wire(decode_text(text), WORDS)
        skeleton = take_apart(pattern)
        assert not matches(skeleton, Says("tony", "hi"))
        assert not matches(skeleton, Publication("a", b""))
        assert encode_text(pattern_to_wire(pattern, WORDS)) == text


def test_keys_that_have_no_order_cannot_be_followed() -> None:
    entries = {Embedded(object()): Record(Symbol("_"), ()), Embedded(object()): 1}
    with pytest.raises(PatternError):
        pattern_from_wire(Record(Symbol("group"), (Record(Symbol("dict"), ()), entries)), WORDS)


@pytest.mark.parametrize(
    "pattern",
    [None, match(Other, x=1), {None: 1}, (None,), capture(None), TopicFilter("a/+")],
    ids=str,
)
def test_what_the_wire_has_nothing_for(pattern: Any) -> None:
    compiled: Any = pattern if isinstance(pattern, TopicFilter) else compile_pattern(pattern)
    with pytest.raises(PatternError):
        pattern_to_wire(compiled, WORDS)


def test_a_capture_is_still_a_pattern() -> None:
    assert isinstance(pattern_from_wire(decode_text("<bind <_>>"), WORDS), Capture)
    assert isinstance(pattern_from_wire(decode_text("<_>"), WORDS), Pattern)
