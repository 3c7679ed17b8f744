"""The example session of syndicate-rs, byte for byte; and what a gatekeeper answers otherwise.

Every byte of what the relay says is fixed by the protocol, but for the handles, which are chosen by
whoever asserts, and the oids of what is exported, which are chosen by whoever exports it. Such a
number is taken from where it first stands; everywhere else it has to be the same.
"""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable

import pytest

from clearfunds.transports.syndicate import (
    Assert,
    Embedded,
    Record,
    SturdyRef,
    Turn,
    WireRef,
    decode,
    is_genuine,
    mint,
    parse_sturdyref,
)
from clearfunds.transports.syndicate._preserves import canonical, decode_text
from tests.transports.syndicate.relay.peers import (
    BIND,
    Peer,
    in_text,
    observe,
    one_after_the_other,
    rec,
    relay,
    wire,
)

GATE = "syndicate+tcp://127.0.0.1:0?gatekeeper"
SIG = "69ca300c1dbfa08fba692102dd82311a"

RESOLVE = bytes.fromhex(
    "b5 b5 b000 b4 b30141 b4 b307 7265736f6c7665 b4 b303 726566 b7 b303 6f6964 b109"
    f"73796e646963617465 b303 736967 b210 {SIG} 84 84 86 b5 b000 b000 84 84 b00101 84 84 84"
)
# How an assertion of <ok #:[0 n]> or <accepted #:[0 n]> at oid 0 begins, up to n.
OK = bytes.fromhex("b5 b5 b000 b4 b30141 b4 b302 6f6b 86 b5 b000")
ACCEPTED = bytes.fromhex("b5 b5 b000 b4 b30141 b4 b308 6163636570746564 86 b5 b000")
SAYS_TONY = bytes.fromhex(
    "b5 b5b00101 b4b30141 b4b3074f627365727665 b4b30567726f7570 b4b303726563b3045361797384 b7"
    "b000 b4b30462696e64b4b3015f8484 b00101 b4b30462696e64b4b3015f8484 84 84 86b5b000b0010184 84"
    "b00103 84 84 b5b00101 b4b3014d b4b30453617973b104746f6e79b102686984 84 84 84"
)
TOLD = bytes.fromhex("b5b5b00101b4b3014db5b104746f6e79b102686984848484")
SYNC = bytes.fromhex("b5b5b00101b4b3015386b5b000b0010284848484")
SYNCED = bytes.fromhex("b5b5b00102b4b3014d81848484")
UNOBSERVE = bytes.fromhex("b5b5b00101b4b30152b00103848484")

Sender = Callable[[Peer, bytes], Awaitable[None]]


async def at_once(peer: Peer, data: bytes) -> None:
    await peer.send_raw(data)


senders = pytest.mark.parametrize("send", [at_once, one_after_the_other])


def integer(data: bytes, at: int) -> tuple[bytes, int]:
    """The integer that stands at `at`, and where it ends; it has to be as short as can be."""
    assert data[at] == 0xB0
    size = data[at + 1]
    assert size <= 4
    body = data[at + 2 : at + 2 + size]
    value = int.from_bytes(body, "big", signed=True)
    shortest = value.to_bytes(max(1, (value.bit_length() + 8) // 8), "big", signed=True)
    assert body == (shortest if value else b"")
    return data[at : at + 2 + size], at + 2 + size


def granted(packet: bytes, head: bytes) -> tuple[bytes, bytes]:
    """Take the answer to a resolve apart: the oid that it grants, and its handle."""
    assert packet.startswith(head)
    oid, at = integer(packet, len(head))
    assert packet[at : at + 2] == b"\x84\x84"
    handle, at = integer(packet, at + 2)
    assert packet[at:] == b"\x84\x84\x84"
    return oid, handle


def addressed(packet: bytes, oid: bytes) -> bytes:
    """The packet of the example, with each event for oid 1 of the relay for this one instead."""
    return packet.replace(bytes.fromhex("b5b00101b4"), b"\xb5" + oid + b"\xb4")


@senders
async def test_the_example_session(send: Sender) -> None:
    assert len(SAYS_TONY) == 117
    async with (
        relay(listen=(GATE,), sturdy_key=b"", resolve_answer="ok") as served,
        served.peer() as peer,
    ):
        await send(peer, RESOLVE)
        oid, handle = granted(await peer.raw_packet(), OK)
        await send(peer, addressed(SAYS_TONY, oid))
        assert await peer.raw_packet() == TOLD
        await send(peer, addressed(SYNC, oid))
        assert await peer.raw_packet() == SYNCED
        await send(peer, addressed(UNOBSERVE, oid))
        # Nobody observes any more: what is said now is answered by the sync alone.
        says = bytes.fromhex("b5b5b00101b4b3014db4b30453617973b104746f6e79b102686984848484")
        await send(peer, addressed(says, oid) + addressed(SYNC, oid))
        assert await peer.raw_packet() == SYNCED
        # The reference is given back: what was granted is retracted, and then leads nowhere.
        await send(peer, bytes.fromhex("b5b5b000b4b30152b00101848484"))
        retracted = bytes.fromhex("b5b5b000b4b30152") + handle + b"\x84\x84\x84"
        assert await peer.raw_packet() == retracted
        await send(peer, addressed(SYNC, oid) + wire("[[0 <S #:[0 7]>]]"))
        await peer.expect("[[7 <M #t>]]")
        served.audit()


@senders
async def test_the_session_all_sent_before_anything_is_read(send: Sender) -> None:
    """The client may not know what it will be granted; it is the first free oid, as upstream's."""
    async with (
        relay(listen=(GATE,), sturdy_key=b"", resolve_answer="ok") as served,
        served.peer() as peer,
    ):
        await send(peer, RESOLVE + SAYS_TONY + SYNC)
        assert granted(await peer.raw_packet(), OK)[0] == b"\xb0\x01\x01"
        assert await peer.raw_packet() == TOLD
        assert await peer.raw_packet() == SYNCED


@senders
async def test_an_anonymous_endpoint_is_the_dataspace_itself(send: Sender) -> None:
    zero = b"\xb0\x00"
    async with relay() as served, served.peer() as peer:
        await send(peer, addressed(SAYS_TONY, zero))
        assert await peer.raw_packet() == TOLD
        await send(peer, addressed(SYNC, zero))
        assert await peer.raw_packet() == SYNCED


@senders
async def test_the_session_in_text(send: Sender) -> None:
    """What is said in text is answered in text, a line a packet."""
    async with (
        relay(listen=(GATE,), sturdy_key=b"", resolve_answer="ok") as served,
        served.peer() as peer,
    ):
        step = f'<ref {{oid: "syndicate" sig: #x"{SIG}"}}>'
        await send(peer, f"[[0 <A <resolve {step} #:[0 0]> 1>]]\n".encode())
        answer = await peer.raw_packet()
        assert answer[:1] == b"["
        packet = decode(answer)
        assert isinstance(packet, Turn)
        (entry,) = packet.events
        assert isinstance(entry.event, Assert)
        handle = entry.event.handle
        assert in_text(packet) == f"[[0 <A <ok #:[0 1]> {handle}>]]"
        pattern = rec("Says", BIND, BIND)
        await send(peer, f'[[1 <A <Observe {pattern} #:[0 1]> 3>][1 <M <Says "a" "b">>]]'.encode())
        assert await peer.raw_packet() == b'[[1 <M ["a" "b"]>]]'
        await send(peer, b"[[1 <S #:[0 2]>]]")
        assert await peer.raw_packet() == b"[[2 <M #t>]]"


async def test_the_answer_goes_by_how_the_last_packet_came() -> None:
    async with relay() as served, served.peer() as peer:
        peer.text = True
        await peer.send("[[0 <S #:[0 1]>]]")
        assert await peer.raw_packet() == b"[[1 <M #t>]]"
        peer.text = False
        await peer.send("[[0 <S #:[0 2]>]]")
        assert await peer.raw_packet() == wire("[[2 <M #t>]]")
        peer.text = True
        await peer.send("[[0 <S #:[0 3]>]]")
        assert await peer.raw_packet() == b"[[3 <M #t>]]"


# -- what else a gatekeeper answers ---------------------------------------------------------------


def resolve(step: str, *, oid: int = 0, handle: int = 1) -> str:
    return f"[[0 <A <resolve {step} #:[0 {oid}]> {handle}>]]"


def minted(*caveats: str, oid: str = '"syndicate"', key: bytes = b"a key") -> str:
    return str(mint(decode_text(oid), key, [decode_text(caveat) for caveat in caveats]))


LESS = '<reject <lit "never">>'


def answer_of(line: str) -> str:
    """The label of what was answered."""
    oid, sign, value = line.split(" ", 2)
    assert (oid, sign) == ("0", "+")
    return value.removeprefix("<").split(" ")[0]


@pytest.mark.parametrize(("resolve_answer", "label"), [("ok", OK), ("accepted", ACCEPTED)])
async def test_how_it_grants_is_an_option(resolve_answer: str, label: bytes) -> None:
    settings = {"sturdy_key": b"", "resolve_answer": resolve_answer}
    async with relay(listen=(GATE,), **settings) as served, served.peer() as peer:
        await peer.send_raw(RESOLVE)
        granted(await peer.raw_packet(), label)


@pytest.mark.parametrize(("resolve_answer", "label"), [("ok", "error"), ("accepted", "rejected")])
@pytest.mark.parametrize(
    "step",
    [
        minted(key=b"another key"),
        minted(oid='"another"'),
        minted(oid="syndicate"),  # a symbol is no string
        '<ref {oid: "syndicate" sig: #x"69ca300c1dbfa08fba692102dd82311a"}>',  # of the empty key
        '<ref {oid: "syndicate" sig: #""}>',
        '<ref {oid: "syndicate"}>',
        "<ref {}>",
        "<ref>",
        "<another {}>",
        "17",
        # Changed, and taken away: the last one, the first of two.
        minted(LESS).replace("never", "ever"),
        minted(LESS).replace(LESS, ""),
        minted(LESS, '<reject <lit "other">>').replace(LESS, ""),
    ],
)
async def test_it_refuses_what_it_did_not_make(step: str, resolve_answer: str, label: str) -> None:
    """The answer is an assertion; the connection goes on, and can ask again."""
    settings = {"sturdy_key": b"a key", "resolve_answer": resolve_answer}
    async with relay(listen=(GATE,), **settings) as served, served.peer() as peer:
        await peer.send(resolve(step))
        (line,) = await peer.told()
        assert answer_of(line) == label
        assert "#:" not in line
        await peer.send("[[0 <R 1>]]")
        assert await peer.told() == [line.replace("+", "-", 1)]
        await peer.send(resolve(minted()))
        (line,) = await peer.told()
        assert answer_of(line) == {"error": "ok", "rejected": "accepted"}[label]
        assert served.side.counters.protocol_errors == 0


async def test_an_unknown_caveat_lets_nothing_through() -> None:
    """It is signed as any other is: who adds it need not know what it means."""
    # `mint` makes none such, so this one is signed by hand.
    caveat = decode_text('<expires "tomorrow">')
    sig = mint("syndicate", b"a key").sig
    sig = hmac.digest(sig, canonical(caveat), "blake2s")[:16]
    step = str(SturdyRef("syndicate", sig, (caveat,)))
    async with (
        relay(listen=(GATE,), sturdy_key=b"a key", resolve_answer="ok") as served,
        served.peer() as peer,
    ):
        await peer.send(resolve(step))
        (line,) = await peer.told()
        if answer_of(line) == "error":
            return
        # Granted, it must be good for nothing.
        oid = int(line.rpartition("#:[0 ")[2].partition("]")[0])
        await peer.send(resolve(minted(), oid=3, handle=2))
        (free,) = await peer.told()
        whole = int(free.rpartition("#:[0 ")[2].partition("]")[0])
        await peer.send(observe(BIND, 5, 3, whole), observe(BIND, 6, 4, oid))
        await peer.sync()
        await peer.send(f"[[{oid} <M 1>] [{oid} <A 2 5>] [{whole} <M 3>]]")
        assert await peer.told() == ["5 ! [3]"]


async def test_caveats_let_less_through() -> None:
    only = '<rewrite <bind <rec Says [<lit "me"> <_>]>> <ref 0>>'
    async with (
        relay(
            listen=(GATE, "syndicate+tcp://127.0.0.1:0"), sturdy_key=b"a key", resolve_answer="ok"
        ) as served,
        served.peer() as peer,
        served.peer(1) as watcher,
    ):
        await watcher.send(observe(BIND))
        await watcher.sync()
        await peer.send(resolve(minted(only)))
        (line,) = await peer.told()
        assert answer_of(line) == "ok"
        oid = int(line.rpartition("#:[0 ")[2].partition("]")[0])
        assert oid != 0
        await peer.send(
            f'[[{oid} <M <Says "you" "a">>] [{oid} <M <Says "me" "b">>] [{oid} <A 7 2>]'
            f' [{oid} <A <Says "me" "c"> 3>]]'
        )
        await peer.send(f"[[{oid} <R 2>] [{oid} <R 3>]]")
        await peer.sync()
        assert await watcher.sync() == [
            ['1 ! [<Says "me" "b">]', '1 + [<Says "me" "c">]'],
            ['1 - [<Says "me" "c">]'],
        ]


async def test_a_reference_granted_twice_is_one_until_both_are_given_back() -> None:
    async with (
        relay(listen=(GATE,), sturdy_key=b"a key", resolve_answer="ok") as served,
        served.peer() as peer,
    ):
        await peer.send(resolve(minted()), resolve(minted(), oid=1, handle=2))
        first, second = await peer.lines(2)
        oid = int(first.rpartition("#:[0 ")[2].partition("]")[0])
        assert second == first.replace("0 +", "1 +", 1)
        await peer.send("[[0 <R 1>]]")
        assert await peer.told() == [first.replace("+", "-", 1)]
        assert await peer.sync(oid) == []
        await peer.send("[[0 <R 2>]]")
        assert await peer.told() == [second.replace("+", "-", 1)]
        await peer.send(f"[[{oid} <S #:[0 5]>]]")
        assert await peer.sync() == []


async def test_a_gatekeeper_is_no_dataspace() -> None:
    async with (
        relay(listen=(GATE,), sturdy_key=b"a key", resolve_answer="ok") as served,
        served.peer() as peer,
    ):
        await peer.send(observe(BIND), "[[0 <M <Says 1>>]]", "[[0 <A <Says 1> 2>]]")
        assert await peer.sync() == []
        assert served.statistics.assertions == served.statistics.observations == 0


def test_what_the_session_says_is_what_it_means() -> None:
    """The bytes above, read by the decoder: so that none of them is a slip."""
    assert in_text(decode(SAYS_TONY)) == (
        "[[1 <A <Observe <group <rec Says> {0: <bind <_>> 1: <bind <_>>}> #:[0 1]> 3>] "
        '[1 <M <Says "tony" "hi">>]]'
    )
    packet = decode(RESOLVE)
    assert isinstance(packet, Turn)
    event = packet.events[0].event
    assert isinstance(event, Assert)
    assert isinstance(event.assertion, Record)
    assert event.assertion.fields[1] == Embedded(WireRef(True, 0))
    step = event.assertion.fields[0]
    assert parse_sturdyref(step) == SturdyRef("syndicate", bytes.fromhex(SIG))
    assert is_genuine(parse_sturdyref(step), b"")
