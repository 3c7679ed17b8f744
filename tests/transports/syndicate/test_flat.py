"""Flat packets, compared with the general scanner; and caveats that let a record through."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from clearfunds.transports import RemoteProtocolError
from clearfunds.transports.syndicate import (
    Assert,
    Message,
    Record,
    Retract,
    Scanner,
    Symbol,
    Turn,
    TurnEvent,
    encode,
    event_parts,
)
from clearfunds.transports.syndicate._entities import Attenuated, Inert, through
from clearfunds.transports.syndicate._flat import (
    MOST_EVENTS,
    FlatEvent,
    flat_body,
    flat_packet,
    is_canonical,
)
from clearfunds.transports.syndicate._preserves import canonical, encode_binary
from clearfunds.transports.syndicate._sturdy import compile_caveats
from clearfunds.transports.syndicate._values import Encoded, places_of
from tests import memory
from tests.transports.syndicate.preserves_values import plain_atoms, texts, values

thorough = settings(deadline=None, max_examples=150)

labels = st.sampled_from(["Says", "Present", ""]).map(Symbol)
records = st.builds(Record, labels, st.lists(plain_atoms, max_size=4))
handles = st.integers(-2, 1 << 40)
events = st.one_of(
    st.builds(Message, records),
    st.builds(Assert, records, handles),
    st.builds(Retract, handles),
    st.builds(Message, values),
)
turns = st.builds(
    Turn,
    st.lists(st.builds(TurnEvent, st.integers(0, 300), events), max_size=5).map(
        lambda of: tuple([event for event in of for _ in range(1 + event.oid % 3)])
    ),
)


def agrees(data: bytes, start: int) -> bool:
    """Whether a packet is flat; what is said of it is then what the general scanner says."""
    found = flat_packet(data, start)
    if found is None:
        return False
    flat, end = found
    scanner = Scanner()
    assert scanner.find_end(data, start) == end
    assert (scanner.embedded, scanner.annotated, scanner.keyed) == (False, False, False)
    parts = iter(event_parts(data, start, scanner.marks) or [])
    for event in flat:
        for _ in range(event.times):
            part = next(parts)
            body = data[part.start : part.end]
            assert int.from_bytes(event.oid[1:], "big", signed=True) == part.oid
            assert (event.kind, event.handle) == (part.kind, part.handle)
            if event.places:
                assert body == data[event.start : event.end]
                assert [at - event.start for at in event.places] == places_of(body)
    assert next(parts, None) is None
    return True


@thorough
@given(turns, st.binary(max_size=3), st.binary(max_size=3))
def test_a_flat_packet_is_what_the_scanner_finds(turn: Turn, before: bytes, after: bytes) -> None:
    data = encode(turn)
    is_flat = agrees(before + data + after, len(before))
    assert not any(agrees(data[:end], 0) for end in range(len(data)))
    bodies = [getattr(e.event, "body", getattr(e.event, "assertion", None)) for e in turn.events]
    if turn.events and all(body is None or _is_small(body) for body in bodies):
        assert is_flat


def _is_small(body: Any) -> bool:
    """Whether a body is one of those that are meant here."""
    return (
        isinstance(body, Record)
        and isinstance(body.key, Symbol)
        and body.key.name.isascii()
        and len(body.key.name) < 128
        and all(isinstance(field, (int, str, bytes, float, Symbol)) for field in body.fields)
    )


@thorough
@given(turns, st.data())
def test_a_damaged_packet_is_no_flat_one_unless_the_scanner_takes_it(
    turn: Turn, data: st.DataObject
) -> None:
    raw = bytearray(encode(turn))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(raw) - 1))
        raw[at] = data.draw(st.integers(0, 255))
    try:
        agrees(bytes(raw), 0)
    except RemoteProtocolError as exc:
        raise AssertionError(f"the scanner refuses {bytes(raw)!r}") from exc


def test_equal_messages_in_a_row_are_one_event_and_have_a_limit() -> None:
    message = TurnEvent(1, Message(Record(Symbol("Says"), ("tony", 1))))
    other = TurnEvent(1, Message(Record(Symbol("Says"), ("tony", 2))))
    found = flat_packet(encode(Turn((message,) * (MOST_EVENTS - 1) + (other,))), 0)
    assert found is not None
    assert [event.times for event in found[0]] == [MOST_EVENTS - 1, 1]
    assert flat_packet(encode(Turn((message,) * MOST_EVENTS + (other,))), 0) is None


@thorough
@given(records, st.integers(0, 3))
def test_equal_records_in_canonical_form_have_equal_bytes(record: Record, padding: int) -> None:
    raw = encode_binary(record)
    event = _event(raw)
    if is_canonical(raw, event.places):
        assert canonical(record) == raw
    else:
        assert any(isinstance(field, float) for field in record.fields)
    # An integer with bytes that only repeat its sign.
    loose = b"\xb4\xb3\x01x\xb0" + bytes((padding + 1,)) + bytes(padding) + b"\x05\x84"
    assert is_canonical(loose, _event(loose).places) is (padding == 0)


def _event(raw: bytes) -> FlatEvent:
    event = flat_body(raw)
    assert event is not None
    return event


# -- caveats ------------------------------------------------------------------------------------


def rec(name: str, *fields: Any) -> Record:
    """Return a record."""
    return Record(Symbol(name), fields)


def _of_record(label: Symbol, fields: list[Any]) -> Record:
    return rec("rec", label, tuple(fields))


def _rewrite(pattern: Any, template: Any) -> Record:
    return rec("rewrite", pattern, template)


field_patterns: st.SearchStrategy[Any] = st.recursive(
    st.one_of(
        st.just(rec("_")),
        st.sampled_from(["String", "SignedInteger", "Boolean", "Double", "Symbol"]).map(Symbol),
        st.one_of(st.integers(-2, 2), texts, st.booleans(), st.floats()).map(
            lambda value: rec("lit", value)
        ),
        st.just(rec("arr", ())),
    ),
    lambda part: st.one_of(
        part.map(lambda inner: rec("not", inner)),
        part.map(lambda inner: rec("bind", inner)),
        st.lists(part, max_size=2).map(lambda items: rec("and", tuple(items))),
    ),
    max_leaves=3,
)
patterns = st.one_of(
    field_patterns,
    st.builds(_of_record, labels, st.lists(field_patterns, max_size=3)),
)
rewrites = st.builds(
    _rewrite,
    patterns.map(lambda pattern: rec("bind", pattern)) | patterns,
    st.one_of(
        st.just(rec("ref", 0)),
        st.just(rec("ref", 1)),
        st.just(rec("rec", Symbol("Says"), (rec("ref", 0),))),
    ),
)
caveats = st.one_of(
    rewrites,
    st.lists(rewrites, max_size=2).map(lambda of: rec("or", tuple(of))),
    patterns.map(lambda pattern: rec("reject", pattern)),
)
small_atoms = st.one_of(
    st.integers(-2, 2), st.booleans(), st.sampled_from(["", "a"]), st.floats(), st.just(Symbol("a"))
)


@thorough
@given(
    st.lists(caveats, min_size=1, max_size=3),
    st.lists(st.builds(Record, labels, st.lists(small_atoms, max_size=3)), max_size=12),
)
def test_what_passes_unchanged_is_what_caveats_let_through_so(
    of: list[Any], bodies: list[Record]
) -> None:
    """One reference is asked about all of them: what it remembers of one is right for the next."""
    entity = Attenuated(Inert(), of, max_caveats_size=1 << 16)
    compiled = compile_caveats(entity.values)
    for body in bodies:
        raw = encode_binary(body)
        value = Encoded(raw)
        passed = through(compiled, value, lambda entity, _: entity)
        if entity.passes(raw, _event(raw)):
            assert passed is value


def test_a_caveat_that_looks_at_one_field_lets_others_through_whatever_they_are() -> None:
    only = rec("rec", Symbol("Says"), (rec("lit", 1), rec("_"), Symbol("String")))
    entity = Attenuated(
        Inert(), (rec("rewrite", rec("bind", only), rec("ref", 0)),), max_caveats_size=1 << 16
    )

    def passes(*fields: Any) -> bool:
        raw = encode_binary(rec("Says", *fields))
        return entity.passes(raw, _event(raw))

    for n in range(5):
        assert passes(1, n, f"{n}")
        assert not passes(2, n, f"{n}")
        assert not passes(1, n, n)
        assert not passes(1, n)
        assert not passes(True, n, "x")


def test_nothing_is_remembered_of_long_fields() -> None:
    """Nobody would be charged for it."""
    only = rec("rec", Symbol("Says"), (rec("lit", "x"), rec("_")))
    entity = Attenuated(
        Inert(), (rec("rewrite", rec("bind", only), rec("ref", 0)),), max_caveats_size=1 << 16
    )
    raw = encode_binary(rec("Says", "y", 1))
    entity.passes(raw, _event(raw))
    with memory.tracing():
        for n in range(100):
            raw = encode_binary(rec("Says", f"{n:05}" * 2_000, 1))
            assert not entity.passes(raw, _event(raw))
        assert sum(memory.held(__file__, "*/preserves/*")) < 200_000
