"""Garbage: an `<error ...>` for who sends it, and the end of that connection; of nothing else."""

from __future__ import annotations

import random
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clearfunds.transports.syndicate import Error, Extension, Turn, decode
from tests.transports.peers import until
from tests.transports.syndicate.preserves_values import TAGS, damaged, garbage
from tests.transports.syndicate.relay.peers import (
    BIND,
    Peer,
    SyndicateRelay,
    observe,
    one_after_the_other,
    rec,
    relay,
    says,
    wire,
)

GATE = "syndicate+tcp://127.0.0.1:0?gatekeeper"
PLAIN = "syndicate+tcp://127.0.0.1:0"
examples = settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@asynccontextmanager
async def bystanders(served: SyndicateRelay) -> AsyncGenerator[None]:
    """Two peers to whom nothing happens, whatever others do in the block."""
    async with served.peer() as one, served.peer() as other:
        await one.send(observe(rec("bystander", BIND), 4, 4))
        await one.sync()
        await other.send("[[0 <A <bystander stays> 5>]]")
        await other.sync()
        assert await one.sync() == [["4 + [stays]"]]
        yield
        await other.send("[[0 <M <bystander still>>]]")
        await other.sync()
        assert await one.sync() == [["4 ! [still]"]]
        served.audit()


async def outcome(peer: Peer) -> Error | None:
    """Close this side of a connection and read to its end; return the error that it ended with."""
    found: Error | None = None
    with trio.fail_after(10):
        with suppress(trio.BrokenResourceError):
            await peer.stream.send_eof()
        while (frame := await peer.frame()) is not None:
            assert found is None, "something follows the error"
            packet = decode(bytes(frame))
            if isinstance(packet, Error):
                found = packet
            else:
                assert isinstance(packet, (Turn, Extension)), packet
        assert not peer.connection.unparsed_bytes, "the last packet is not whole"
    return found


# -- what is refused ------------------------------------------------------------------------------

REFUSED: list[tuple[bytes, str]] = [
    # No packet begins like this.
    (b"\x00", "0x00"),
    (b"HEAD / HTTP/1.1\r\n\r\n", "0x48"),
    (b"\x10\x0c\x00\x04MQTT\x04\x02\x00\x00\x00\x00", "0x10"),
    (b"\x81", "0x81"),
    (b"\x84", "0x84"),
    (b"\xb0\x01\x07", "0xb0"),
    (b"\xff" * 100, "0xff"),
    # Nothing of the protocol.
    (b"\xb5\x80\x84", "turn"),
    (b"\xb5\xb5\x84\x84", "turn"),
    (wire("[]")[:1] + b"\xb5\xb0\x00\xb4\xb3\x01X\x84\x84\x84", "event"),
    (b"[[0 <M>]]", "event"),
    (b"[[0 <M 1 2>]]", "event"),
    (b"[[0 <A 1>]]", "event"),
    (b"[[0 <A 1 a>]]", "event"),
    (b"[[0 <A 1 #t>]]", "event"),
    (b"[[0 <R a>]]", "event"),
    (b"[[0 <S 1>]]", "event"),
    (b"[[#t <M 1>]]", "turn"),
    (b"[[0 <M 1> 2]]", "turn"),
    (b"[0]", "turn"),
    # Malformed Preserves.
    (b"\xb5\x84\x84", "0x84"),
    (b"\xb5\xb5\xb0\x00\xb4\xb3\x01M\xb4\x84\x84\x84\x84", ""),
    (b"\xb5\xb5\xb0\x00\xb4\xb3\x01M\xb7\x80\x84\x84\x84\x84", ""),
    (b"\xb5\xb5\xb0\x00\xb4\xb3\x01M\xb7\x80\x80\x80\x80\x84\x84\x84\x84", ""),
    (b"\xb5\xb5\xb0\x00\xb4\xb3\x01M\xb6\x80\x80\x84\x84\x84\x84", ""),
    (b"\xb5\xb5\xb0\x00\xb4\xb3\x01M\xb1\x02\xc3\x28\x84\x84\x84", ""),
    (b"\xb5\xb5\xb0\x00\xb4\xb3\x01M\xb3\x01\xff\x84\x84\x84", ""),
    (b"\xb5\xb5\xb0\x00\xb4\xb3\x01M\x87\x04\x00\x00\x00\x00\x84\x84\x84", ""),
    (b"\xb5\xb5\xb0\x00\xb4\xb3\x01M\x82", "0x82"),
    (b"[[0 <M ]>]]", ""),
    (b"[[0 <M {a}>]]", ""),
    (b'[[0 <M "\\x">]]', ""),
    (b'[[0 <M "\xff">]]', ""),
    (b"[[0 <M #q>]]", ""),
    # References.
    (b"[[0 <M #:[0 5]>]]", "reference"),
    (wire("[[0 <M #:[0 5]>]]"), "reference"),
    (wire("[[0 <M <Says [{a: #:[0 5]}]>>]]"), "reference"),
    (b"[[0 <A #:17 1>]]", "reference"),
    (b"[[0 <A #:[2 1] 1>]]", "reference"),
    (b"[[0 <A #:[0] 1>]]", "reference"),
    (b"[[0 <A #:[0 1 <reject <_>>] 1>]]", "reference"),
    (b"[[0 <A #:#:[0 1] 1>]]", "reference"),
    (b"[[0 <S #:#:#:[0 1]>]]", ""),
    # Handles.
    (wire("[[0 <A 1 1>] [0 <A 2 1>]]"), "handle 1"),
    (wire("[[0 <A 1 1>]]", "[[0 <A 1 1>]]"), "handle 1"),
    (b"[[0 <A 1 1>]][[0 <A 1 1>]]", "handle 1"),
]


@pytest.mark.parametrize("bytewise", [False, True])
@pytest.mark.parametrize(("data", "why"), REFUSED)
async def test_what_is_refused(data: bytes, why: str, bytewise: bool) -> None:
    async with relay(patience=60) as served, bystanders(served), served.peer() as peer:
        if bytewise:
            with suppress(trio.BrokenResourceError):
                await one_after_the_other(peer, data)
        else:
            await peer.send_raw(data)
        packet = None
        while not isinstance(packet, Error):
            packet = await peer.packet()
        assert why in packet.message
        assert len(packet.message) < 500
        await peer.ended()
        assert served.side.counters.protocol_errors == 1
        await until(lambda: len(served.side.open) == 2)


async def test_a_refusal_is_written_as_the_peer_writes() -> None:
    async with relay() as served:
        for data, first in ((b"[[0 <M>]]", b"<"), (wire("[[0 <M #:[0 1]>]]"), b"\xb4")):
            async with served.peer() as peer:
                await peer.send_raw(data)
                assert (await peer.raw_packet())[:1] == first
                await peer.ended()


async def test_what_came_before_garbage_has_happened() -> None:
    async with relay() as served, served.peer() as peer, served.peer() as observer:
        await observer.send(observe(rec("Says", BIND)))
        await observer.sync()
        good = "".join(f"[[0 <M <Says {n}>>]]" for n in range(56)).encode()
        await peer.send_raw(good + b"[[0 <A <Says standing> 1>]]" + b"[[0 <M>]]" + good)
        _, turns = await peer.refused()
        assert turns == []
        await until(lambda: len(served.side.open) == 1)
        expected = [[f"1 ! [{n}]"] for n in range(56)]
        assert await observer.sync() == [*expected, ["1 + [standing]"], ["1 - [standing]"]]


@pytest.mark.parametrize("bytewise", [False, True])
async def test_what_is_ignored(bytewise: bool) -> None:
    """The connection goes on, and nothing has happened."""
    ignored = [
        "#f",
        "<hello>",
        "<do <something else>>",
        "<do <credit-flow-control 1999>>",
        "<will <credit-flow-control 202506>>",
        "<C 17>",
        "<C -17>",
        "<C a>",
        '<17 {a: [#:[0 5]]} "x">',
        "<error>",
        "<error 1 2>",
        '<error "only one">',
        "[[5 <M 1>]]",
        "[[-1 <M 1>]]",
        "[[123456789012345678901234567890 <M 1>]]",
        "[[5 <A 1 1>]]",
        "[[5 <A #:[0 3] 2>]]",
        "[[5 <M #:[0 3]>]]",
        "[[5 <S #:[0 3]>]]",
        "[[5 <R 1>]]",
        "[[0 <R 17>]]",
        "[[0 <R -17>]]",
    ]
    async with relay() as served, bystanders(served), served.peer() as peer:
        for packet in ignored:
            if bytewise:
                await one_after_the_other(peer, wire(packet))
            else:
                await peer.send(packet)
            assert await peer.sync() == [], packet
            assert served.statistics.assertions == 2
        # The handles above are free: they stood for nothing.
        await peer.send("[[0 <A 1 1>] [0 <A 2 2>]]")
        assert await peer.sync() == []
        assert served.side.counters.protocol_errors == 0


async def test_a_reference_to_nothing_is_inert() -> None:
    async with relay() as served, bystanders(served), served.peer() as peer:
        await peer.send("[[0 <S #:[1 99]>]]", "[[0 <A <x #:[1 99]> 1>]]", "[[0 <M [#:[1 98]]>]]")
        await peer.send(
            "[[0 <A <Observe <_> #:[1 99]> 2>]]", "[[0 <M 1>]]", "[[0 <R 2>] [0 <R 1>]]"
        )
        assert await peer.sync() == []


async def test_what_a_peer_says_last_is_not_answered(caplog: pytest.LogCaptureFixture) -> None:
    async with relay() as served, bystanders(served), served.peer() as peer:
        await peer.send('<error "I have had enough" [detail 1]>')
        await peer.ended()
        await until(lambda: len(served.side.open) == 2)
        assert "I have had enough" in caplog.text


# -- fuzz -----------------------------------------------------------------------------------------

GOOD = [
    observe(rec("Says", BIND, BIND), 2, 3),
    observe(f"<bind {rec('Observe', BIND)}>", 3, 4),
    "[[0 <A <Says 1 [2 {a: #t b: 1.5}]> 5>]]",
    '[[0 <A <Says #:[0 7] #"x"> 6>] [0 <M <Says "tony" "hi">>]]',
    says('"tony"', '"hi"'),
    "[[0 <M <Says #{1 2} #:[0 7]>>]]",
    "[[0 <S #:[0 2]>]]",
    "[[0 <R 5>]]",
    '[[0 <A <resolve <ref {oid: x sig: #""}> #:[0 2]> 9>]]',
    "[[0 <A #:[1 0 <reject <_>>] 10>]]",
    '[[0 <M <publication ["a"] #"x" 0 #f>>]]',
    "<do <credit-flow-control 202506>>",
    "[[0 <R 3>] [0 <R 4>] [0 <R 6>]]",
    "#f",
]


def streams() -> st.SearchStrategy[bytes]:
    good = st.lists(st.sampled_from(GOOD), max_size=6)
    binary = good.map(lambda packets: wire(*packets))
    text = good.map(lambda packets: "\n".join(packets).encode())
    mutated = binary.flatmap(damaged) | text.flatmap(damaged)
    return st.lists(mutated | binary | garbage | st.binary(max_size=20), max_size=4).map(b"".join)


@given(batch=st.lists(streams(), min_size=1, max_size=12), seed=st.integers(0, 999))
@examples
async def test_fuzz(batch: list[bytes], seed: int) -> None:
    """Whatever comes, in whatever pieces: an error or none, and the books balance."""
    chance = random.Random(seed)
    listen = (PLAIN, GATE)
    async with relay(listen=listen, sturdy_key=b"", stuck="wait") as served, bystanders(served):
        for data in batch:
            async with served.peer(chance.randrange(2)) as peer:
                at = 0
                try:
                    while at < len(data):
                        size = chance.choice([1, 3, 20, len(data)])
                        await peer.send_raw(data[at : at + size])
                        at += size
                        await trio.lowlevel.checkpoint()
                except trio.BrokenResourceError:
                    pass
                await outcome(peer)
            served.audit()
        await until(lambda: len(served.side.open) == 2)


@pytest.mark.parametrize("seed", range(3))
async def test_one_byte_changed_anywhere(seed: int) -> None:
    """Each byte of a session that does everything, changed in turn."""
    chance = random.Random(seed)
    stream = wire(*GOOD)
    async with relay(limit_items=50) as served, bystanders(served):
        for at in range(seed, len(stream), 3):
            data = bytearray(stream)
            data[at] = chance.choice([data[at] ^ 1 << chance.randrange(8), chance.choice(TAGS)])
            async with served.peer() as peer:
                await peer.send_raw(bytes(data))
                await outcome(peer)
        served.audit()


# -- bombs ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "opening",
    [
        b"[",
        b"<",
        b"{a:",
        b"#{",
        b"#:",
        b"@a ",
        b"\xb5",
        b"\xb4",
        b"\xb6",
        b"\xb7\xb3\x01a",
        b"\x86",
    ],
)
async def test_a_nesting_bomb(opening: bytes) -> None:
    begin = b"\xb5\xb5\xb0\x00\xb4\xb3\x01M" if opening[0] > 127 else b"[[0 <M "
    async with relay() as served, bystanders(served), served.peer() as peer:
        with suppress(trio.BrokenResourceError):
            await peer.send_raw(begin + opening * 200_000)
        packet = await peer.packet()
        assert isinstance(packet, Error)
        assert "64" in packet.message or "deep" in packet.message or "nest" in packet.message
        await peer.ended()
        await until(lambda: len(served.side.open) == 2)


@pytest.mark.parametrize("tag", [0xB0, 0xB1, 0xB2, 0xB3])
@pytest.mark.parametrize(
    "length",
    [
        b"\xff\xff\xff\xff\x7f",
        b"\x80\x80\x80\x80\x10",
        b"\xff" * 20,
        b"\x80" * 200,
        b"\xff\xff\xff\x07",
    ],
)
async def test_a_huge_length_is_refused_before_it_comes(tag: int, length: bytes) -> None:
    began = time.monotonic()
    async with relay(max_packet_size=1 << 20) as served, bystanders(served), served.peer() as peer:
        await peer.send_raw(b"\xb5\xb5\xb0\x00\xb4\xb3\x01M" + bytes((tag,)) + length)
        why, _ = await peer.refused()
        assert why
        # At once: not after the time in which the first packet has to be complete.
        assert time.monotonic() - began < 9


async def test_many_small_events_are_no_way_round_the_size_of_a_packet() -> None:
    async with relay(max_packet_size=10_000) as served, bystanders(served), served.peer() as peer:
        with suppress(trio.BrokenResourceError):
            await peer.send_raw(b"\xb5" + wire("[[0 <M 1>]]")[1:-1] * 100_000)
        packet = await peer.packet()
        assert isinstance(packet, Error)
        assert "10000" in packet.message.replace(",", "").replace("_", "")


# -- limits are options ---------------------------------------------------------------------------

LIMITS: list[tuple[dict[str, Any], list[str], str]] = [
    ({"max_depth": 8}, ["[[0 <M [[[[1]]]]>]]"], "[[0 <M [[[[[[[1]]]]]]]>]]"),
    ({"max_packet_size": 100}, [says('"' + "x" * 60 + '"')], says('"' + "x" * 100 + '"')),
    ({"max_packet_size": 100}, [], observe(BIND.replace("_", "x" * 100))),
    (
        {"max_assertions": 4},
        [f"[[0 <A {n} {n}>]]" for n in range(4)] + ["[[0 <R 1>]]", "[[0 <A 9 9>]]"],
        "[[0 <A 10 10>]]",
    ),
    (
        {"max_references": 4},
        ["[[0 <A [#:[0 1] #:[0 2]] 1>] [0 <R 1>]]", "[[0 <A [#:[0 3] #:[0 4] #:[0 5]] 2>]]"],
        "[[0 <A [#:[0 5] #:[0 6] #:[0 7]] 3>]]",
    ),
    (
        {"max_subscriptions": 3},
        [observe(rec(f"r{n}"), 1, n) for n in range(3)] + ["[[0 <R 1>]]", observe(BIND, 1, 9)],
        observe(rec("more"), 1, 10),
    ),
    ({"quota_items": 5}, [f"[[0 <A {n} {n}>]]" for n in range(5)], "[[0 <A 9 9>]]"),
    ({"quota_bytes": 100}, ['[[0 <A <x "yyyyyyyyy"> 9>]]'], f'[[0 <A "{"x" * 200}" 10>]]'),
]


@pytest.mark.parametrize(("limit", "within", "beyond"), LIMITS)
async def test_limits(limit: dict[str, Any], within: list[str], beyond: str) -> None:
    """Up to the limit all goes well; what is beyond it is refused, with the limit's number."""
    async with relay(**limit) as served, served.peer() as peer, served.peer() as other:
        for packet in within:
            await peer.send(packet)
        await peer.sync()
        await peer.send(beyond)
        why, _ = await peer.refused()
        (number,) = limit.values()
        assert str(number) in why.replace(",", "").replace("_", "")
        await until(lambda: len(served.side.open) == 1)
        await other.send(*within)
        await other.sync()
        assert served.side.counters.protocol_errors == 1


async def test_the_size_of_text() -> None:
    async with relay(max_text_size=200) as served, served.peer(text=True) as peer:
        await peer.send(says('"' + "x" * 100 + '"'))
        await peer.sync()
        peer.text = False
        await peer.send(says('"' + "x" * 1000 + '"'))
        await peer.sync()
        peer.text = True
        await peer.send(says('"' + "x" * 200 + '"'))
        why, _ = await peer.refused()
        assert "200" in why


async def test_the_size_of_caveats() -> None:
    """Too many of them let nothing through; as any that make no sense."""
    async with relay(max_caveats_size=200) as served, served.peer() as peer:
        await peer.send(observe(rec("Says", BIND)))
        some = " ".join(["<reject <lit 1>>"] * 3)
        many = " ".join(["<reject <lit 1>>"] * 100)
        for caveats, told in ((some, ["2 ! [1]"]), (many, [])):
            await peer.send(f"[[0 <A <Says #:[1 0 {caveats}]> 7>]]")
            (line,) = await peer.told()
            oid = int(line.removesuffix("]]").rpartition(" ")[2])
            await peer.send(observe(rec("x", BIND), 2, 8), f"[[{oid} <M <x 1>>]]", "[[0 <R 8>]]")
            assert [line for turn in await peer.sync() for line in turn] == told
            await peer.send("[[0 <R 7>]]")
            await peer.sync()


@pytest.mark.parametrize("first", [b"", b"\xb5\xb5\xb0\x00", b"[["])
async def test_the_time_to_the_first_packet(first: bytes) -> None:
    async with relay(connect_timeout=0.2) as served, served.peer() as idle, served.peer() as peer:
        await idle.sync()
        await peer.send_raw(first)
        await until(lambda: len(served.side.open) == 1)
        assert await peer.stream.receive_some() == b""
        assert served.side.counters.timeouts == 1
        # Who has said something may be silent for as long as it likes.
        await trio.sleep(1)
        assert await idle.sync() == []


async def test_the_time_without_a_packet() -> None:
    async with relay(idle_timeout=0.6) as served, served.peer() as idle, served.peer() as peer:
        await idle.sync()
        with trio.fail_after(10):
            while idle_is_open(served):
                await peer.send("#f")
                await trio.sleep(0.1)
        assert await peer.sync() == []
        assert await idle.stream.receive_some() == b""


def idle_is_open(served: SyndicateRelay) -> bool:
    return len(served.side.open) == 2


async def test_too_many_connections() -> None:
    async with relay(max_connections=2) as served, served.peer() as one, served.peer() as two:
        await one.sync()
        await two.sync()
        async with served.peer() as third:
            assert await third.stream.receive_some() == b""
        assert served.side.counters.refused == 1
        await two.leave()
        await until(lambda: len(served.side.open) == 1)
        async with served.peer() as third:
            await third.sync()
