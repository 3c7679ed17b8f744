"""Packets: the bytes of a recorded session, text, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clearfunds.transports import LocalProtocolError, RemoteProtocolError
from clearfunds.transports.syndicate import (
    Assert,
    Embedded,
    Error,
    Extension,
    Message,
    Nop,
    Packet,
    Record,
    Retract,
    Symbol,
    Sync,
    Turn,
    TurnEvent,
    Value,
    WireRef,
    decode,
    encode,
)
from clearfunds.transports.syndicate._packets import to_value
from tests.transports.syndicate.preserves_values import alike, encoded, values

relaxed = settings(deadline=None)


def rec(label: str, *fields: Value) -> Record:
    return Record(Symbol(label), fields)


def turn(*events: tuple[int, Assert | Retract | Message | Sync]) -> Turn:
    return Turn(tuple(TurnEvent(oid, event) for oid, event in events))


MINE = Embedded(WireRef(True, 1))
SIG = bytes.fromhex("69ca300c1dbfa08fba692102dd82311a")

# A client resolves a sturdyref, observes what is said, says something, and syncs; recorded from
# the `preserves` library and syndicate-py 0.19.3.
SESSION: list[tuple[str, str, Packet, str]] = [
    (
        "resolve",
        (
            "b5 b5 b000 b4 b30141 b4 b307 7265736f6c7665 b4 b303 726566 b7 b303 6f6964 b109"
            "73796e646963617465 b303 736967 b210 69ca300c1dbfa08fba692102dd82311a 84 84 86 b5 b000"
            "b000 84 84 b00101 84 84 84"
        ),
        turn(
            (
                0,
                Assert(
                    rec(
                        "resolve",
                        rec("ref", {Symbol("oid"): "syndicate", Symbol("sig"): SIG}),
                        Embedded(WireRef(True, 0)),
                    ),
                    1,
                ),
            )
        ),
        '[[0 <A <resolve <ref {oid: "syndicate" sig: #[acowDB2/oI+6aSEC3YIxGg==]}> #:[0 0]> 1>]]',
    ),
    (
        "accepted",
        "b5 b5 b000 b4 b30141 b4 b302 6f6b 86 b5 b000 b00101 84 84 b00203e8 84 84 84",
        turn((0, Assert(rec("ok", MINE), 1000))),
        "[[0 <A <ok #:[0 1]> 1000>]]",
    ),
    (
        "observe and say",
        (
            "b5 b5b00101 b4b30141b4b3074f627365727665 b4b30567726f7570 b4b303726563b3045361797384"
            "b7 b000 b4b30462696e64b4b3015f8484 b00101 b4b30462696e64b4b3015f8484 84 84"
            "86b5b000b0010184 84 b00103 84 84"
            "b5b00101b4b3014db4b30453617973b104746f6e79b102686984848484"
        ),
        turn(
            (
                1,
                Assert(
                    rec(
                        "Observe",
                        rec(
                            "group",
                            rec("rec", Symbol("Says")),
                            {0: rec("bind", rec("_")), 1: rec("bind", rec("_"))},
                        ),
                        MINE,
                    ),
                    3,
                ),
            ),
            (1, Message(rec("Says", "tony", "hi"))),
        ),
        (
            "[[1 <A <Observe <group <rec Says> {0: <bind <_>> 1: <bind <_>>}> #:[0 1]> 3>] "
            '[1 <M <Says "tony" "hi">>]]'
        ),
    ),
    (
        "said",
        "b5b5b00101b4b3014db5b104746f6e79b102686984848484",
        turn((1, Message(("tony", "hi")))),
        '[[1 <M ["tony" "hi"]>]]',
    ),
    (
        "sync",
        "b5b5b00101b4b3015386b5b000b0010284848484",
        turn((1, Sync(WireRef(True, 2)))),
        "[[1 <S #:[0 2]>]]",
    ),
    ("synced", "b5b5b00102b4b3014d81848484", turn((2, Message(True))), "[[2 <M #t>]]"),
    ("retract", "b5b5b00101b4b30152b00103848484", turn((1, Retract(3))), "[[1 <R 3>]]"),
    (
        "minimal message",
        "b5b5b00101b4b3014db4b30453617973b10870726f6475636572b20084848484",
        turn((1, Message(rec("Says", "producer", b"")))),
        '[[1 <M <Says "producer" #[]>>]]',
    ),
    (
        "request for credit",
        "b4b302646fb4b3136372656469742d666c6f772d636f6e74726f6cb00303170a8484",
        Extension(Symbol("do"), (rec("credit-flow-control", 202506),)),
        "<do <credit-flow-control 202506>>",
    ),
    ("credit", "b4b30143b0012084", Extension(Symbol("C"), (32,)), "<C 32>"),
    ("error", "b4b3056572726f72b1026e6f8084", Error("no", False), '<error "no" #f>'),
    ("nop", "80", Nop(), "#f"),
    ("empty turn", "b584", Turn(()), "[]"),
]
recorded = pytest.mark.parametrize(
    ("data", "packet", "text"),
    [(bytes.fromhex(h), packet, text) for _, h, packet, text in SESSION],
    ids=[name for name, *_ in SESSION],
)


@recorded
def test_a_recorded_session_byte_for_byte(data: bytes, packet: Packet, text: str) -> None:
    assert encode(packet) == data
    assert decode(data) == packet
    assert encode(packet, text=True) == text.encode() + b"\n"
    assert decode(text.encode()) == packet


def test_the_sizes_that_were_recorded() -> None:
    sizes = {name: len(bytes.fromhex(h)) for name, h, _, _ in SESSION}
    assert sizes["observe and say"] == 117
    assert sizes["minimal message"] == 32


@recorded
def test_no_piece_of_a_packet_is_a_packet(data: bytes, packet: Packet, text: str) -> None:
    del packet
    for size in range(1, len(data)):
        with pytest.raises(RemoteProtocolError):
            decode(data[:size])
    for size in range(1, len(text)):
        if text[:size].rstrip() not in ("#f",):
            with pytest.raises(RemoteProtocolError):
                decode(text[:size].encode())


oids = st.integers(-1, 2**70)
events = st.one_of(
    st.builds(Message, values),
    st.builds(Assert, values, oids),
    st.builds(Retract, oids),
    st.builds(Sync, st.builds(WireRef, st.booleans(), oids)),
)
packets: st.SearchStrategy[Packet] = st.one_of(
    st.lists(st.builds(TurnEvent, oids, events), max_size=3).map(lambda e: Turn(tuple(e))),
    st.builds(Error, st.text(st.characters(codec="utf-8")), values),
    st.builds(Extension, values.filter(lambda v: v != Symbol("error")), st.tuples(values)),
    st.just(Nop()),
)


@relaxed
@given(packets)
def test_what_is_encoded_is_decoded(packet: Packet) -> None:
    assert alike(to_value(decode(encode(packet))), to_value(packet))
    assert type(decode(encode(packet))) is type(packet)


@relaxed
@given(packets)
def test_text_says_the_same(packet: Packet) -> None:
    text = encode(packet, text=True)
    assert text.endswith(b"\n")
    assert text[0] < 0x80
    assert alike(to_value(decode(text)), to_value(packet))


def test_a_reference_attenuated_and_not() -> None:
    for ref in (WireRef(True, 5), WireRef(False, 5), WireRef(False, 5, (rec("reject", rec("_")),))):
        packet = turn((0, Message((Embedded(ref), [Embedded(ref)]))))
        again = decode(encode(packet))
        assert isinstance(again, Turn)
        event = again.events[0].event
        assert isinstance(event, Message)
        assert event.body[0].embeddedValue == ref
        assert event.body[1][0].embeddedValue == ref


def test_the_peer_of_a_sync_may_be_wrapped_twice() -> None:
    # As syndicate-py 0.19.3 sends it.
    assert decode(bytes.fromhex("b5b5b00101b4b301538686b5b000b0010284848484")) == turn(
        (1, Sync(WireRef(True, 2)))
    )
    assert decode(b"[[1 <S #:#:[0 2]>]]") == turn((1, Sync(WireRef(True, 2))))


@pytest.mark.parametrize(
    "text",
    [
        "[[1 <S #:#:#:[0 2]>]]",
        "[[1 <M #:#:[0 2]>]]",
        "[[1 <S #:#:[0 2]>] [1 <M [#:#:[0 2]]>]]",
        "[[1 <S #:[1 2 #:#:[0 2]]>]]",
    ],
)
def test_nothing_else_may(text: str) -> None:
    with pytest.raises(RemoteProtocolError, match="reference"):
        decode(text.encode())


@pytest.mark.parametrize(
    "ref", ["[]", "[0]", "[2 1]", "[0 1 2]", "[#f 1]", "[0 #t]", '["0" 1]', "0", "<a>", "#{}"]
)
def test_what_is_no_reference(ref: str) -> None:
    with pytest.raises(RemoteProtocolError, match="WireRef"):
        decode(f"[[0 <M #:{ref}>]]".encode())


@pytest.mark.parametrize(
    "text",
    [
        "#t",
        "1",
        "a",
        "{}",
        "#{}",
        '"a"',
        "#:[0 1]",
        "[1]",
        "[[]]",
        "[[0]]",
        "[[0 0]]",
        "[[#f <M 1>]]",
        "[[0 <M 1> 1]]",
        "[[0 <M>]]",
        "[[0 <M 1 2>]]",
        "[[0 <A 1>]]",
        "[[0 <A 1 a>]]",
        "[[0 <A 1 #t>]]",
        "[[0 <R a>]]",
        "[[0 <S 1>]]",
        "[[0 <X 1>]]",
        '[[0 <"M" 1>]]',
    ],
)
def test_what_is_no_packet(text: str) -> None:
    with pytest.raises(RemoteProtocolError, match=r"must be|is made of"):
        decode(text.encode())


def test_errors_of_another_form_are_extensions() -> None:
    # As protocol.prs has it: whatever record is not an error, and nobody knows.
    assert decode(b'<error "x">') == Extension(Symbol("error"), ("x",))
    assert decode(b"<error 1 2>") == Extension(Symbol("error"), (1, 2))
    assert decode(b'<"error" "x" 2>') == Extension("error", ("x", 2))
    assert decode(b'<error "x" [1]>') == Error("x", (1,))


def test_annotations_are_passed_over() -> None:
    assert decode(b"@x [@y [0 @z <M @a 1>]]") == turn((0, Message(1)))
    assert decode(b"\x85\x80\xb5\xb5\xb0\x00\xb4\xb3\x01M\x85\x81\x81\x84\x84\x84") == turn(
        (0, Message(True))
    )
    assert decode(b"# a comment\n[]") == Turn(())


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff",
        b"[",
        b"[] []",
        b"\x80\x80",
        b"\xb5",
        b'["\xff"]',
        b"[#[!]]",
        b"[;]",
        b"[\x00:]",
    ],
)
def test_what_is_not_preserves(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode(data)


@pytest.mark.parametrize("text", [False, True])
@pytest.mark.parametrize(
    "body", [None, object(), "\ud800", Symbol("\ud800"), Embedded("me"), [{1: None}]]
)
def test_what_cannot_be_sent(body: Any, text: bool) -> None:
    with pytest.raises(LocalProtocolError):
        encode(turn((0, Message(body))), text=text)


def test_a_packet_is_encoded_as_the_library_encodes_its_value() -> None:
    packet = turn((3, Message({"b": 1, "a": 2})))
    assert encode(packet) == encoded([[3, rec("M", {"b": 1, "a": 2})]])
