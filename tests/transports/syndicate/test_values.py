"""Values of the wire in the dataspace: patterns say of the bytes what they say of the value."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clearfunds.accounts import measure
from clearfunds.dataspace import (
    MISSING,
    CapturesOnly,
    Observe,
    PatternError,
    Publication,
    TopicFilter,
    captured,
    compile_pattern,
    take_apart,
)
from clearfunds.dataspace._bag import identity
from clearfunds.dataspace._index import PatternIndex, matches
from clearfunds.dataspace._kinds import kind_of
from clearfunds.transports import RemoteProtocolError
from clearfunds.transports.syndicate import (
    Decoded,
    Embedded,
    Encoded,
    Record,
    Symbol,
    Vocabulary,
    pattern_from_wire,
)
from clearfunds.transports.syndicate._preserves import (
    canonical,
    decode_binary,
    decode_text,
    encode_binary,
    entries_in_order,
    is_mapping,
    is_tuple,
    same,
)
from clearfunds.transports.syndicate._scan import Scanner
from clearfunds.transports.syndicate._shown import shown_value
from clearfunds.transports.syndicate._values import (
    encode_integer,
    encoded,
    library_value,
    value_at,
    value_end,
    wire_value,
)

from .preserves_values import plain_values

WORDS = Vocabulary()
relaxed = settings(deadline=None)


class Thing:
    """Stands for an entity."""

    def __init__(self, number: int) -> None:
        self.number = number


ONE, TWO = Thing(1), Thing(2)


def parse(text: str) -> Any:
    return decode_text(text, {1: ONE, 2: TWO}.__getitem__)


def both(value: Any) -> list[Any]:
    """Return a value without references as it is in the dataspace: as bytes, and decoded."""
    data = encode_binary(value)
    return [value_at(data, 0, len(data)), wire_value(value)]


# -- patterns, by brute force over the library's values ----------------------------------------


def by_brute_force(pattern: Any, value: Any) -> list[Any] | None:
    """Return what a pattern of the wire captures; None if it does not match."""
    match pattern.key.name, pattern.fields:
        case "_", ():
            return []
        case "bind", (inner,):
            rest = by_brute_force(inner, value)
            return None if rest is None else [value, *rest]
        case "lit", (atom,):
            return [] if same(atom, value) else None
        case "group", (kind, entries):
            return group_by_brute_force(kind, entries, value)
        case _:
            raise AssertionError(pattern)


def group_by_brute_force(kind: Any, entries: Any, value: Any) -> list[Any] | None:
    name = kind.key.name
    found: list[Any] = []
    for key, part in entries_in_order(entries):
        if name == "dict":
            if not is_mapping(value):
                return None
            inside = [v for k, v in value.items() if same(k, key)]
        elif name == "arr":
            inside = list(value[key : key + 1]) if is_tuple(value) else []
        else:
            inside = list(value.fields[key : key + 1]) if isinstance(value, Record) else []
        shown = by_brute_force(part, inside[0]) if inside else None
        if shown is None:
            return None
        found += shown
    if name == "dict":
        return found if is_mapping(value) else None
    if name == "arr":
        return found if is_tuple(value) else None
    return found if isinstance(value, Record) and same(value.key, kind.fields[0]) else None


def captured_of(pattern: Any, value: Any) -> list[Any] | None:
    skeleton = take_apart(CapturesOnly(pattern_from_wire(pattern, WORDS)))
    if not matches(skeleton, value):
        return None
    return [library_value(part) for part in captured(skeleton.captures, value)]


def parts_of(value: Any) -> list[tuple[Any, Any]]:
    if isinstance(value, Record):
        return list(enumerate(value.fields))
    if is_tuple(value):
        return list(enumerate(value))
    return list(value.items()) if is_mapping(value) else []


def pattern_for(draw: Any, value: Any, depth: int = 3) -> Any:
    """Draw a pattern that may match `value`."""
    choice = draw(st.integers(0, 9))
    parts = parts_of(value)
    compound = isinstance(value, Record) or is_tuple(value) or is_mapping(value)
    if choice == 0:
        return Record(Symbol("_"), ())
    if choice <= 3 and depth:
        return Record(Symbol("bind"), (pattern_for(draw, value, depth - 1),))
    if not compound or not depth:
        atom = draw(st.sampled_from([1, True, 1.0, "a", b"a", Symbol("a"), value, value]))
        if isinstance(atom, (Record, tuple, dict, frozenset)):
            return Record(Symbol("_"), ())
        return Record(Symbol("lit"), (atom,))
    chosen = [pair for pair in parts if draw(st.booleans())]
    entries = {key: pattern_for(draw, part, depth - 1) for key, part in chosen}
    if choice == 9:
        more = 7 if isinstance(value, Record) or is_tuple(value) else True
        entries.setdefault(more, Record(Symbol("_"), ()))
    if isinstance(value, Record):
        label = "other" if choice == 8 else value.key
        return Record(Symbol("group"), (Record(Symbol("rec"), (label,)), entries))
    name = "arr" if is_tuple(value) != (choice == 8) else "dict"
    if name == "arr" and is_mapping(value):
        entries = {}
    return Record(Symbol("group"), (Record(Symbol(name), ()), entries))


@relaxed
@given(st.data(), plain_values)
def test_patterns_say_of_bytes_what_they_say_of_values(data: st.DataObject, value: Any) -> None:
    pattern = pattern_for(data.draw, value)
    expected = by_brute_force(pattern, value)
    for each in both(value):
        found = captured_of(pattern, each)
        if expected is None:
            assert found is None
        else:
            assert found is not None
            assert len(found) == len(expected)
            assert all(same(one, other) for one, other in zip(found, expected, strict=True))


@relaxed
@given(st.data(), plain_values)
def test_the_index_finds_by_kind_what_matches(data: st.DataObject, value: Any) -> None:
    index = PatternIndex()
    patterns = [pattern_for(data.draw, value) for _ in range(data.draw(st.integers(1, 4)))]
    for number, pattern in enumerate(patterns):
        index.add(CapturesOnly(pattern_from_wire(pattern, WORDS)), number)
    expected = {n for n, p in enumerate(patterns) if by_brute_force(p, value) is not None}
    for each in both(value):
        found = {n for endpoint, _ in index.matching(each) for n in endpoint.observers}
        assert found == expected


@relaxed
@given(plain_values, plain_values)
def test_equal_values_are_one_and_no_others(one: Any, other: Any) -> None:
    a, b = both(one)
    assert identity(a) == identity(b)
    assert kind_of(a) == kind_of(b)
    for each in both(other):
        assert (identity(a) == identity(each)) == same(one, other)


@relaxed
@given(plain_values)
def test_bytes_are_forwarded_as_they_are(value: Any) -> None:
    data = encode_binary(value)
    for each in both(value):
        raw = encoded((each, each))
        assert raw is not None
        assert same(decode_binary(raw), (value, value))
    compound = value_at(data, 0, len(data))
    if isinstance(compound, Encoded):
        assert encoded(compound) == data
        assert measure(compound) == len(data)
    assert value_end(b"xyz" + data + b"\x84", 3) == 3 + len(data)
    assert same(library_value(compound), value)
    assert same(shown_value(compound, WORDS), value)


@given(st.integers(-(2**70), 2**70))
def test_integers(number: int) -> None:
    assert encode_integer(number) == encode_binary(number)


@pytest.mark.parametrize("length", [0, 127, 128, 16_383, 16_384, 2_097_152])
def test_lengths_of_several_bytes(length: int) -> None:
    for atom in ("x" * length, b"x" * length, Symbol("x" * length)):
        data = encode_binary(atom)
        assert value_at(data, 0, len(data)) == atom
        assert encoded(atom) == data


@pytest.mark.parametrize(
    "raw",
    [
        b"\xb4\xb3\x84\x00Says\xb0\x00\x84",  # a label whose length is longer than it need be
        b"\xb4\xb3\x04Says\xb0\x02\x00\x00\x84",  # a number that is
    ],
)
def test_what_is_not_in_the_shortest_form_is_the_same(raw: bytes) -> None:
    scanner = Scanner()
    assert scanner.find_end(raw, 0) == len(raw)
    plain = Encoded(b"\xb4\xb3\x04Says\xb0\x00\x84")
    other = Encoded(raw)
    assert kind_of(other) == kind_of(plain)
    assert identity(other) == identity(plain)
    assert other.pattern_entry(0) == 0


# -- references ----------------------------------------


def test_references_are_told_apart_by_what_they_refer_to() -> None:
    one, again, two = (wire_value(parse(f"<x #:{n}>")) for n in (1, 1, 2))
    assert isinstance(one, Decoded)
    assert identity(one) == identity(again) != identity(two)
    assert captured_of(parse("<group <rec x> {0: <lit #:1>}>"), one) == []
    assert captured_of(parse("<group <rec x> {0: <lit #:1>}>"), two) is None
    assert captured_of(parse("<group <rec x> {0: <bind <_>>}>"), two) == [Embedded(TWO)]
    assert captured_of(parse("<group <rec #:1> {}>"), wire_value(parse("<#:1>"))) == []
    assert captured_of(parse("<group <rec #:1> {}>"), wire_value(parse("<#:2>"))) is None


def test_what_has_references_is_not_forwarded_as_bytes() -> None:
    assert encoded(wire_value(parse("<x #:1>"))) is None
    assert encoded((wire_value(parse("[#:1]")),)) is None
    assert encoded((Embedded(ONE),)) is None
    assert encoded((wire_value(parse("<x 1>")),)) == encode_binary((parse("<x 1>"),))


def test_a_key_that_is_a_reference_has_no_order() -> None:
    with pytest.raises(PatternError):
        pattern_from_wire(parse("<group <dict> {#:1: <_>}>"), WORDS)


def test_what_is_not_there() -> None:
    for value in both(parse("<x 1>")):
        assert value.pattern_entry(1) is MISSING
        assert value.pattern_entry(-1) is MISSING
        assert value.pattern_entry("a") is MISSING
    for value in both(parse('{"a": 1}')):
        assert value.pattern_entry("b") is MISSING


# -- the vocabulary ----------------------------------------


@attrs.frozen
class Says:
    who: str
    what: str


def refused(text: str, vocabulary: Vocabulary = WORDS) -> str:
    messages: set[str] = set()
    for value in both(parse(text)):
        with pytest.raises(RemoteProtocolError) as caught:
            vocabulary.known(value)
        messages.add(str(caught.value))
    (message,) = messages
    return message


def test_a_record_stands_for_an_instance_of_its_class() -> None:
    vocabulary = Vocabulary({"Says": Says})
    for value in both(parse('<Says "tony" "hi">')):
        assert vocabulary.known(value) == Says("tony", "hi")
        assert WORDS.known(value) is value
    assert "no Says can be made of a <Says ...>" in refused('<Says "tony">', vocabulary)
    assert shown_value(Says("tony", "hi"), vocabulary) == parse('<Says "tony" "hi">')


def test_a_publication_goes_both_ways() -> None:
    text = '<publication ["a" "" "b"] #"xyz" 1 #t>'
    publication = Publication("a//b", b"xyz", 1, retain=True)
    for value in both(parse(text)):
        assert WORDS.known(value) == publication
    assert shown_value(publication, WORDS) == parse(text)
    assert encoded(publication) == encode_binary(parse(text))


@given(
    st.text(st.characters(codec="utf-8", exclude_characters="+#\0"), min_size=1, max_size=20),
    st.binary(max_size=300),
    st.integers(0, 2),
    st.booleans(),
)
def test_any_publication_comes_back(topic: str, payload: bytes, qos: int, retain: bool) -> None:
    publication = Publication(topic, payload, qos, retain)
    raw = encoded(publication)
    assert raw is not None
    assert decode_binary(raw) == shown_value(publication, WORDS)
    if not topic.startswith("$SYS/"):
        assert WORDS.known(Encoded(raw)) == publication


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("<publication>", "it has 0 fields"),
        ('<publication "a" #"" 0 #f>', "its levels are not a sequence of strings"),
        ('<publication [1] #"" 0 #f>', "its levels are not a sequence of strings"),
        ('<publication ["a/b"] #"" 0 #f>', "there is a / within a level"),
        ('<publication ["#"] #"" 0 #f>', "contains a wildcard"),
        ('<publication ["a" "+"] #"" 0 #f>', "contains a wildcard"),
        ('<publication [] #"" 0 #f>', "at least one character"),
        ('<publication ["$SYS" "x"] #"" 0 #f>', "the server's own"),
        ('<publication ["a"] "" 0 #f>', "its payload is not a byte string"),
        ('<publication ["a"] #"" 3 #f>', "its QoS is not 0, 1 or 2"),
        ('<publication ["a"] #"" #t #f>', "its QoS is not 0, 1 or 2"),
        ('<publication ["a"] #"" 0 0>', "not a boolean"),
    ],
)
def test_what_is_no_publication(text: str, why: str) -> None:
    message = refused(text)
    assert why in message
    assert 'write <publication ["level" ...] #"payload" qos retain>' in message


@given(st.integers(4_000, 5_000))
def test_a_topic_is_no_longer_than_an_mqtt_client_may_make_it(length: int) -> None:
    text = f'<publication ["{"x" * length}"] #"" 0 #f>'
    if length > 4_096:
        assert "bytes" in refused(text)
    else:
        WORDS.known(wire_value(parse(text)))


@attrs.frozen
class Unknown:
    x: int


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Unknown(1), "<Unknown 1>"),
        ((Unknown(1), "a"), '[<Unknown 1> "a"]'),
        ({"a": Unknown(1)}, '{"a": <Unknown 1>}'),
        (Observe(TopicFilter("a/+")), '<Observe <topic-filter "a/+">>'),
        (Observe(compile_pattern(("a",))), '<Observe <group <arr> {0: <lit "a">}>>'),
        (Observe(compile_pattern(None)), None),
        (None, '<opaque "None">'),
        (frozenset({1}), '<opaque "frozenset({1})">'),
    ],
    ids=str,
)
def test_what_only_this_process_has_can_be_shown(value: Any, text: str | None) -> None:
    shown = shown_value(value, WORDS)
    canonical(shown)
    if text is not None:
        assert shown == parse(text)
