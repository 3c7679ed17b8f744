"""Shipments and receipts as bytes: what goes in comes out, and nothing else is believed."""

from __future__ import annotations

import contextlib
from typing import TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clearfunds.accounts import (
    Move,
    Outcome,
    Settlement,
    StillHeld,
    Trace,
    TracedLoan,
    TracedSum,
    TracedThere,
    TracedTurn,
    TracedWait,
)
from clearfunds.cluster._codec import MAX_PARTS, PART, Joiner, decode, encode, in_parts
from clearfunds.cluster._trace_codec import MAX_TRACE_BYTES
from clearfunds.dataspace import Batch, Publication
from clearfunds.dataspace.hops import Held, Parcel, Receipt, Shipment
from clearfunds.transports import LocalProtocolError, RemoteProtocolError
from clearfunds.transports.mqtt.codec._packets import encode_publish
from clearfunds.transports.mqtt.server._runs import publications

NAMES = st.text(min_size=1, max_size=9)
NUMBERS = st.integers(0, 1 << 40)
TOPICS = st.text("abü/ ", min_size=1, max_size=12)
PUBLICATIONS = st.builds(
    Publication,
    TOPICS,
    st.binary(max_size=40),
    st.integers(0, 2),
    properties=st.binary(max_size=9),
    expires=st.none() | st.floats(0, 1e10),
    was_retained=st.booleans(),
)


@st.composite
def runs(draw: st.DrawFn) -> Batch:
    """Return a run of publications as it came from a client."""
    packets = draw(st.lists(st.tuples(TOPICS, st.binary(max_size=200)), min_size=1, max_size=5))
    raw = b"".join(encode_publish(topic, payload, 0, False, False, 0) for topic, payload in packets)
    return Batch(raw, len(packets), publications, alike=draw(st.booleans()))


IDENTITIES = st.tuples(st.integers(-(1 << 62), 1 << 40), NUMBERS)
PARCELS = st.builds(
    Parcel,
    NUMBERS,
    NAMES,
    st.lists(NAMES, max_size=3).map(tuple),
    st.lists(PUBLICATIONS | runs(), max_size=4).map(tuple),
    NUMBERS,
    NUMBERS,
    st.booleans(),
    st.none() | IDENTITIES,
    st.integers(0, 64),
)
SHIPMENTS = st.builds(
    Shipment,
    *[NUMBERS] * 5,
    st.lists(PARCELS, max_size=4, unique_by=lambda parcel: parcel.number).map(tuple),
    st.none() | st.frozensets(NAMES, max_size=3),
    NUMBERS,
    st.none() | IDENTITIES,
)
RANGES = st.lists(st.tuples(NUMBERS, NUMBERS), max_size=3).map(tuple)
PATHS = st.lists(st.tuples(NAMES, NAMES), max_size=3).map(tuple)
HELD = st.builds(Held, NUMBERS, NUMBERS, NAMES, st.none() | NAMES)
TIMES = st.floats(0, 1e9)
OUTCOMES = st.sampled_from(Outcome)
SUMS = st.builds(TracedSum, *[NUMBERS] * 3)
Loans: TypeAlias = st.SearchStrategy[tuple[TracedLoan, ...]]


def turns(loans: Loans) -> st.SearchStrategy[TracedTurn]:
    return st.builds(
        TracedTurn,
        TIMES,
        st.none() | TIMES,
        NUMBERS,
        NUMBERS,
        st.none() | OUTCOMES,
        st.lists(NAMES, max_size=2).map(tuple),
        NUMBERS,
        loans,
    )


def traces_of(loans: Loans) -> st.SearchStrategy[Trace]:
    return st.builds(
        Trace,
        NAMES,
        TIMES,
        TIMES,
        st.booleans(),
        turns(loans),
        st.lists(
            st.builds(
                TracedWait,
                st.floats(-9, 9),
                st.none() | TIMES,
                st.none() | NAMES,
                st.dictionaries(NAMES, TIMES, max_size=2),
            ),
            max_size=2,
        ).map(tuple),
        NUMBERS,
        SUMS,
        st.dictionaries(OUTCOMES, NUMBERS, max_size=3),
        NUMBERS,
        NUMBERS,
        SUMS,
        SUMS,
        NUMBERS,
    )


def loans_above(loans: Loans) -> Loans:
    loan = st.builds(
        TracedLoan,
        *[NAMES] * 3,
        NUMBERS,
        NUMBERS,
        TIMES,
        st.none() | TIMES,
        NUMBERS,
        NUMBERS,
        st.lists(st.builds(StillHeld, NAMES, NAMES, NUMBERS, st.none() | TIMES), max_size=2).map(
            tuple
        ),
        st.lists(st.builds(Move, TIMES, NAMES, NAMES), max_size=2).map(tuple),
        st.lists(
            st.builds(Settlement, TIMES, NUMBERS, NUMBERS, OUTCOMES, NAMES, NUMBERS), max_size=2
        ).map(tuple),
        st.lists(turns(loans), max_size=1).map(tuple),
        st.lists(
            st.builds(TracedThere, NAMES, TIMES, st.none() | TIMES, st.none() | traces_of(loans)),
            max_size=1,
        ).map(tuple),
        NUMBERS,
    )
    return st.lists(loan, max_size=2).map(tuple)


TRACES = traces_of(loans_above(loans_above(st.just(()))))
RECEIPTS = st.builds(
    Receipt,
    *[NUMBERS] * 4,
    RANGES,
    st.none() | st.lists(HELD, max_size=3).map(tuple),
    RANGES,
    NUMBERS,
    st.lists(st.tuples(NAMES, st.lists(PATHS, max_size=2).map(tuple)), max_size=2).map(tuple),
    st.lists(st.tuples(NUMBERS, TRACES), max_size=2).map(tuple),
)


def events_of(shipment: Shipment) -> list[list[object]]:
    """Return its events in a form that can be compared: runs are equal by identity only."""
    return [
        [
            (each.raw, each.count, each.alike) if isinstance(each, Batch) else (each, vars_of(each))
            for each in parcel.events
        ]
        for parcel in shipment.parcels
    ]


def trace(name: str, loans: int) -> Trace:
    """Return a trace of a publication that went to so many holders."""
    nothing = TracedSum(0, 0, 0)
    settled = Settlement(0.1, 1, 9, Outcome.ACKED, name)
    loan = TracedLoan(name, "outlet", "t", 1, 9, 0.0, 0.1, 0, 0, (), (), (settled,), ())
    root = TracedTurn(0.0, 0.1, 1, 9, Outcome.DELIVERED, ("t",), 0, (loan,) * loans)
    wait = TracedWait(0.0, 0.1, name, {name: 0.1})
    followed = TracedSum(loans, loans, 9 * loans)
    outcomes = {Outcome.ACKED: loans}
    return Trace(
        name, 1.0, 0.1, True, root, (wait,), 1, followed, outcomes, 0, 0, nothing, nothing, 0
    )


def test_what_nobody_traces_has_no_byte_for_it() -> None:
    parcel = Parcel(1, "p", (), (), 1, 1)
    assert b"traced" not in encode(Shipment(1, 1, 1, 1, 1, (parcel,)))
    assert b"traces" not in encode(Receipt(1, 1, 1, 1))


def test_the_trace_of_a_receipt_is_bounded() -> None:
    short, long = trace("x", 100), trace("x" * 1_000, 100)
    found = decode(encode(Receipt(1, 1, 1, 1, traces=((7, short), (8, long)))))
    assert isinstance(found, Receipt)
    (_, same), (number, left) = found.traces
    assert same == short
    assert number == 8
    assert not left.root.loans
    assert not left.waits
    assert left.more_waits == 2
    assert left.not_shown == left.followed == long.followed
    assert (left.outcomes, left.seconds) == (long.outcomes, long.seconds)
    assert len(encode(found)) < 2 * MAX_TRACE_BYTES


def test_what_is_no_trace_is_refused() -> None:
    good = encode(Receipt(1, 1, 1, 1, traces=((7, trace("x", 1)),)))
    for before, after in ((b'"outlet"', b"1"), (b"0.1", b'"x"'), (b"[1,1,9]", b"[1,1]")):
        assert before in good
        with pytest.raises(RemoteProtocolError):
            decode(good.replace(before, after))
    deep = b"[" * 100_000 + b"]" * 100_000
    with pytest.raises(RemoteProtocolError):
        decode(good[:-1] + b',"traces":' + deep + b"}")


def vars_of(publication: Publication) -> tuple[object, ...]:
    """Return what equality of publications leaves out."""
    return publication.properties, publication.expires, publication.was_retained


@given(SHIPMENTS | RECEIPTS)
def test_what_goes_in_comes_out(message: Shipment | Receipt) -> None:
    found = decode(encode(message))
    if isinstance(message, Receipt):
        assert found == message
        return
    assert isinstance(found, Shipment)
    for before, after in zip(message.parcels, found.parcels, strict=True):
        same = ("number", "origin", "above", "items", "nbytes", "steps")
        assert [getattr(before, name) for name in same] == [getattr(after, name) for name in same]
    assert events_of(found) == events_of(message)
    assert (found.epoch, found.number, found.life) == (message.epoch, message.number, message.life)
    assert (found.floor, found.first) == (message.floor, message.first)
    assert found.waiting == message.waiting


@given(st.binary(max_size=60) | st.binary(max_size=60).map(b"S\0\0\0\x02{}".__add__))
def test_other_bytes_are_refused(data: bytes) -> None:
    for kind in (b"", b"S", b"R"):
        with pytest.raises(RemoteProtocolError, match="another relay has sent"):
            decode(kind + data)


@given(SHIPMENTS | RECEIPTS, st.integers(0, 400), st.integers(0, 255))
def test_changed_bytes_are_refused_or_are_another_message(
    message: Shipment | Receipt, at: int, byte: int
) -> None:
    data = bytearray(encode(message))
    data[at % len(data)] = byte
    with contextlib.suppress(RemoteProtocolError):
        decode(bytes(data))


@given(SHIPMENTS, st.integers(12, 60), st.data())
def test_parts_are_joined_and_what_lacks_one_is_forgotten(
    shipment: Shipment, most: int, data: st.DataObject
) -> None:
    whole = encode(shipment)
    if len(whole) > MAX_PARTS * (most - 9):
        with pytest.raises(LocalProtocolError, match="are the most"):
            list(in_parts(whole, most, 1))
        return
    parts = list(in_parts(whole, most, 1))
    assert all(len(part) <= most for part in parts)
    joiner = Joiner()
    lost = data.draw(st.integers(0, len(parts) - 1))
    if len(parts) > 1:
        assert not any(joiner.take(part) for number, part in enumerate(parts) if number != lost)
    again = list(in_parts(encode(shipment), most, 2))
    found = [joiner.take(part) for part in again]
    assert found[:-1] == [None] * (len(again) - 1)
    assert isinstance(found[-1], Shipment)


@pytest.mark.parametrize("part", [PART, PART + b"\0" * 3, PART + b"\0\0\0\1\0\0\xff\xff"])
def test_bad_parts_are_refused(part: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        Joiner().take(part)
