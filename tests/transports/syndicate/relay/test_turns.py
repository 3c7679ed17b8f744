"""Turns, order, syncs, and references from one connection to another."""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest
import trio

from clearfunds.transports.syndicate import encode
from tests.transports.peers import until
from tests.transports.syndicate.relay.peers import (
    BIND,
    WHOLE_SAYS,
    Peer,
    flat,
    observe,
    one_after_the_other,
    packet_of,
    rec,
    relay,
    says,
    wire,
)

ANY_SAYS = rec("Says", BIND)

# -- turns --------------------------------------------------------------------------------------


async def test_what_happens_in_one_turn_reaches_an_observer_in_one() -> None:
    async with relay() as served, served.peer() as peer, served.peer() as observer:
        await observer.send(observe(ANY_SAYS), observe(rec("Else", BIND), 2, 2))
        await observer.sync()
        events = [
            "[0 <A <Says a> 1>]",
            "[0 <M <Says b>>]",
            "[0 <M <Nothing c>>]",
            "[0 <M <Else d>>]",
            "[0 <A <Else e> 2>]",
            "[0 <M <Says f>>]",
        ]
        await peer.send(f"[{' '.join(events)}]", "[[0 <R 2>] [0 <M <Says g>>] [0 <R 1>]]")
        assert await observer.told() == [
            "1 + [a]",
            "1 ! [b]",
            "2 ! [d]",
            "2 + [e]",
            "1 ! [f]",
        ]
        assert await observer.told() == ["2 - [e]", "1 ! [g]", "1 - [a]"]


async def test_an_empty_turn_is_nothing() -> None:
    async with relay() as served, served.peer() as peer:
        await peer.send("[]", "[]")
        assert await peer.sync() == []


async def test_a_turn_with_very_many_events() -> None:
    async with relay() as served, served.peer() as peer, served.peer() as observer:
        await observer.send(observe(ANY_SAYS))
        await observer.sync()
        await peer.send(f"[{' '.join(f'[0 <M <Says {n}>>]' for n in range(3000))}]")
        assert await observer.lines(3000) == [f"1 ! [{n}]" for n in range(3000)]


async def test_a_turn_that_fails_has_not_happened() -> None:
    """What came before it has."""
    async with relay() as served, served.peer() as peer, served.peer() as observer:
        await observer.send(observe(ANY_SAYS))
        await observer.sync()
        await peer.send(
            "[[0 <A <Says 1> 1>] [0 <A <Says 2> 2>]]",
            "[[0 <M <Says 3>>] [0 <R 1>] [0 <A <Says 4> 4>] [0 <A <Says 5> 2>]]",
            says("6"),
        )
        why, turns = await peer.refused()
        assert "handle 2" in why
        assert turns == []
        await until(lambda: len(served.side.open) == 1)
        first, last = await observer.sync()
        assert first == ["1 + [1]", "1 + [2]"]
        assert sorted(last) == ["1 - [1]", "1 - [2]"]


@pytest.mark.parametrize("seed", range(3))
async def test_messages_come_in_order_however_they_are_cut(seed: int) -> None:
    chance = random.Random(seed)
    values = [f'{n} "{"x" * chance.choice([0, 1, 126, 127, 128, 3000])}"' for n in range(300)]
    stream = wire(*[says(value) for value in values])
    async with relay() as served, served.peer() as peer, served.peer() as observer:
        await observer.send(observe(rec("Says", BIND, BIND)))
        await observer.sync()

        async def write() -> None:
            at = 0
            while at < len(stream):
                size = chance.choice([1, 2, 7, 50, 5000, 70_000])
                await peer.send_raw(stream[at : at + size])
                at += size
                await trio.lowlevel.checkpoint()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(write)
            assert await observer.lines(len(values)) == [f"1 ! [{value}]" for value in values]


@pytest.mark.parametrize("captures", [WHOLE_SAYS, ANY_SAYS, rec("Says", "", BIND)])
async def test_alike_and_different_messages_come_in_order(captures: str) -> None:
    """Runs of messages that are alike, between others; with observers that come and go."""
    chance = random.Random(captures)
    async with relay() as served, served.peer() as peer, served.peer() as observer:
        await observer.send(observe(captures))
        await observer.sync()
        expected: list[str] = []
        for round_ in range(20):
            packets: list[str] = []
            for n in range(chance.randrange(1, 30)):
                first = chance.choice(['"tony"', '"tony"', "17", "[a]", '#"b"'])
                value = f'<Says {first} "{round_} {n}">'
                packets.append(f"[[0 <M {value}>]]")
                shown = {0: value, 1: first, 2: f'"{round_} {n}"'}
                which = 0 if captures == WHOLE_SAYS else 1 if captures == ANY_SAYS else 2
                expected.append(f"1 ! [{shown[which]}]")
            await peer.send(*packets)
            if chance.random() < 0.5:
                await peer.sync()
                async with served.peer() as other:
                    await other.send(observe(rec("Says", '<lit "tony">', '<lit "3 1">')))
                    await other.sync()
        await peer.sync()
        found = [line.replace("#[Yg==]", '#"b"') for line in flat(await observer.sync())]
        assert found == expected


# -- sync ---------------------------------------------------------------------------------------


async def test_a_sync_is_answered_after_what_came_before() -> None:
    async with relay() as served, served.peer() as peer:
        await peer.send(observe(ANY_SAYS))
        await peer.send("[[0 <M <Says 1>>] [0 <S #:[0 5]>] [0 <M <Says 2>>]]", says("3"))
        await peer.send("[[0 <S #:[0 6]>]]", says("4"))
        lines = await peer.lines(6)
        assert [line for line in lines if line[0] == "1"] == [f"1 ! [{n}]" for n in (1, 2, 3, 4)]
        assert lines.index("1 ! [1]") < lines.index("5 ! #t") < lines.index("6 ! #t")
        assert lines.index("1 ! [3]") < lines.index("6 ! #t") < lines.index("1 ! [4]")


@pytest.mark.parametrize("text", [False, True])
async def test_a_sync_whose_peer_is_wrapped_twice(text: bool) -> None:
    """As syndicate-py sends it: `#:#:[0 2]`."""
    raw = (
        b"[[0 <S #:#:[0 2]>]]"
        if text
        else bytes.fromhex("b5b5b000b4b301538686b5b000b0010284848484")
    )
    async with relay() as served, served.peer(text=text) as peer:
        await peer.send_raw(raw)
        assert await peer.told() == ["2 ! #t"]
        await one_after_the_other(peer, raw)
        assert await peer.told() == ["2 ! #t"]


async def test_an_answered_sync_leaves_nothing_behind() -> None:
    async with relay(max_references=3) as served, served.peer() as peer:
        for n in range(1, 50):
            await peer.send(f"[[0 <S #:[0 {n}]>]]")
            assert await peer.told() == [f"{n} ! #t"]


async def test_a_sync_whose_peer_is_the_dataspace() -> None:
    """`#t` is said there as a message."""
    async with relay() as served, served.peer() as peer, served.peer() as observer:
        await observer.send(observe("<bind <lit #t>>"))
        await observer.sync()
        await peer.send("[[0 <S #:[1 0]>]]")
        assert await observer.told() == ["1 ! [#t]"]


# -- references across connections ----------------------------------------------------------------


@asynccontextmanager
async def introduced(service: Peer, client: Peer, ref: str = "#:[0 7]") -> AsyncGenerator[int]:
    """Let a service assert `<service #:ref>`, and a client capture that; gives its oid there."""
    await service.send(f"[[0 <A <service {ref}> 77>]]")
    await service.sync()
    await client.send(observe(rec("service", BIND), 70, 70))
    (line,) = await client.told()
    head, _, oid = line.removesuffix("]]").rpartition("#:[0 ")
    assert head == "70 + ["
    yield int(oid)


async def test_a_service_is_reached_by_its_reference() -> None:
    async with (
        relay() as served,
        served.peer() as service,
        served.peer() as client,
        introduced(service, client) as oid,
    ):
        await client.send(
            f"[[{oid} <M [1]>] [{oid} <A <req 2> 1>]]", f"[[{oid} <M 3>] [{oid} <R 1>]]"
        )
        assert await service.told() == ["7 ! [1]", "7 + <req 2>"]
        assert await service.told() == ["7 ! 3", "7 - <req 2>"]
        assert await client.sync() == []


async def test_a_service_answers_by_the_reference_that_it_was_given() -> None:
    async with (
        relay() as served,
        served.peer() as service,
        served.peer(text=True) as client,
        introduced(service, client) as oid,
    ):
        await client.send(f"[[{oid} <A <ask 1 #:[0 30]> 1>]]")
        (line,) = await service.told()
        head, _, back = line.removesuffix("]>").rpartition("#:[0 ")
        assert head == "7 + <ask 1 "
        await service.send(f"[[{back} <A <answer 2> 1>] [{back} <M <done #:[0 7]>>]]")
        assert await client.told() == ["30 + <answer 2>", f"30 ! <done #:[0 {oid}]>"]
        # Its own references come back to it as its own.
        await service.send(f"[[{back} <A <you #:[1 {back}]> 2>]]")
        assert await client.told() == ["30 + <you #:[1 30]>"]
        await client.send("[[0 <R 1>]]", f"[[{oid} <R 1>]]")
        assert await service.told() == ["7 - <ask 1 #:[0 " + back + "]>"]
        # The reference has gone with its last assertion.
        await service.send(f"[[{back} <M 4>]]")
        await service.sync()
        await client.sync()


async def test_a_sync_goes_through_to_another_peers_entity() -> None:
    """Upstream has `todo!()` there, and the relay actor panics."""
    async with (
        relay() as served,
        served.peer() as service,
        served.peer() as client,
        introduced(service, client) as oid,
    ):
        await client.send(f"[[{oid} <M before>] [{oid} <S #:[0 40]>] [{oid} <M after>]]")
        before, asked, after = await service.lines(3)
        assert (before, after) == ("7 ! before", "7 ! after")
        assert asked.startswith("7 ? #:[0 ")
        assert await client.sync() == []  # it is the service's to answer
        oid_of_answer = asked.removesuffix("]").rpartition(" ")[2]
        await service.send(f"[[{oid_of_answer} <M #t>]]")
        assert await client.told() == ["40 ! #t"]
        # Once, and no more: then the reference is forgotten.
        await service.send(f"[[{oid_of_answer} <M #t>]]")
        assert await service.sync() == []
        assert await client.sync() == []


@pytest.mark.parametrize("who", ["service", "client"])
async def test_a_sync_that_is_never_answered_is_forgotten(who: str) -> None:
    async with (
        relay() as served,
        served.peer() as service,
        served.peer() as client,
        introduced(service, client) as oid,
    ):
        await client.send(f"[[{oid} <S #:[0 40]>] [{oid} <S #:[0 41]>]]")
        asked = await service.lines(2)
        leaving, staying = (service, client) if who == "service" else (client, service)
        await leaving.leave()
        await until(lambda: len(served.side.open) == 1)
        if who == "client":
            numbers = [line.removesuffix("]").rpartition(" ")[2] for line in asked]
            await service.send(*[f"[[{number} <M #t>]]" for number in numbers])
        left = flat(await staying.sync())
        assert [line for line in left if not line.startswith("70 - ")] == []
        served.audit()


async def test_what_a_client_asserted_at_a_service_goes_with_the_client() -> None:
    async with (
        relay() as served,
        served.peer() as service,
        served.peer() as client,
        introduced(service, client) as oid,
    ):
        await client.send(f"[[{oid} <A 1 1>] [{oid} <A [2 #:[0 3]] 2>] [{oid} <M 3>]]")
        await client.leave()
        lines = await service.lines(5)
        assert [line for line in lines if line[2] != "-"] == lines[:3]
        assert sorted(line[4:] for line in lines[3:]) == sorted(line[4:] for line in lines[:2])
        assert not service.standing
        await until(lambda: len(served.side.open) == 1)
        assert await service.sync() == []


async def test_when_a_service_goes_its_reference_leads_nowhere() -> None:
    async with (
        relay() as served,
        served.peer() as service,
        served.peer() as client,
        introduced(service, client) as oid,
    ):
        await client.send(f"[[{oid} <A 1 1>]]")
        await service.told()
        await service.reset()
        (line,) = await client.told()
        assert line == f"70 - [#:[0 {oid}]]"
        assert not client.standing
        # Its assertion still refers to it, so the oid is known; but nobody is there.
        await client.send(f"[[{oid} <M 2>] [{oid} <A 3 2>] [{oid} <S #:[0 5]>]]")
        await client.send(f"[[{oid} <R 1>] [{oid} <R 2>]]", f"[[{oid} <M 4>]]")
        assert [line for line in flat(await client.sync()) if line != "5 ! #t"] == []
        served.audit()
        assert not served.holders(served.account(client))


async def test_references_are_known_again() -> None:
    """The same entity has the same oid, for as long as anything refers to it, and no longer."""
    async with (
        relay(max_references=20) as served,
        served.peer() as service,
        served.peer() as client,
    ):
        await client.send(observe(ANY_SAYS))
        await client.sync()
        oids: set[str] = set()
        for n in range(100):
            await service.send(f"[[0 <A <Says #:[0 {n}]> 1>] [0 <A <Says [#:[0 {n}]]> 2>]]")
            one, two = await client.told()
            oid = one.removesuffix("]]").rpartition(" ")[2]
            assert two == f"1 + [[#:[0 {oid}]]]"
            await client.send(f"[[{oid} <M {n}>]]")
            assert await service.told() == [f"{n} ! {n}"]
            await service.send("[[0 <R 1>] [0 <R 2>]]")
            assert len(await client.told()) == 2
            oids.add(oid)
        await client.send(f"[[{oids.pop()} <M gone>]]")
        await client.sync()
        assert await service.sync() == []


async def test_a_reference_to_the_dataspace_is_recognised() -> None:
    async with relay() as served, served.peer() as one, served.peer() as two:
        await two.send(observe(ANY_SAYS))
        await two.sync()
        await one.send("[[0 <A <Says #:[1 0]> 1>]]", "[[0 <M <Says [#:[1 0]]>>]]")
        assert await two.told() == ["1 + [#:[0 0]]"]
        assert await two.told() == ["1 ! [[#:[0 0]]]"]


async def test_literal_references() -> None:
    """A pattern may have a reference as a constant: whoever it is that others mention."""
    async with (
        relay() as served,
        served.peer() as one,
        served.peer() as two,
        served.peer() as three,
    ):
        await one.send(observe(rec("Says", "<lit #:[0 5]>", BIND)), "[[0 <A <service #:[0 5]> 2>]]")
        await one.sync()
        await three.send("[[0 <A <Says #:[0 5] not-that> 1>]]")
        await three.sync()
        await two.send(observe(rec("service", BIND), 70, 70))
        (line,) = await two.told()
        oid = line.removesuffix("]]").rpartition(" ")[2]
        await two.send(f"[[0 <A <Says #:[1 {oid}] 1> 1>] [0 <M <Says #:[1 {oid}] 2>>]]")
        assert await one.told() == ["1 + [1]", "1 ! [2]"]
        await two.send("[[0 <M <Says #:[1 0] 3>>]]")
        await two.sync()
        assert await one.sync() == []


# -- attenuated references ------------------------------------------------------------------------

ONLY_OK = '<or [<rewrite <bind <rec ok [<_>]>> <ref 0>> <rewrite <lit 1> <lit "one">>]>'


async def test_an_attenuated_reference_lets_less_through() -> None:
    """B gives A's service to C, but only some of it."""
    async with (
        relay() as served,
        served.peer() as service,
        served.peer() as broker,
        served.peer() as client,
        introduced(service, broker) as oid,
    ):
        await client.send(observe(ANY_SAYS))
        await client.sync()
        await broker.send(f"[[0 <A <Says #:[1 {oid} {ONLY_OK}]> 1>]]")
        (line,) = await client.told()
        less = line.removesuffix("]]").rpartition(" ")[2]
        await client.send(
            f"[[{less} <M <ok 1>>] [{less} <M <no 2>>] [{less} <A <ok 3> 11>] [{less} <A 4 12>]"
            f" [{less} <M 1>] [{less} <S #:[0 8]>]]"
        )
        lines = await service.lines(4)
        assert lines[:3] == ["7 ! <ok 1>", "7 + <ok 3>", '7 ! "one"']
        assert lines[3].startswith("7 ? ")
        await client.send(f"[[{less} <R 12>] [{less} <R 11>]]")
        assert await service.told() == ["7 - <ok 3>"]
        # Attenuated once more by who has it.
        await client.send(f"[[0 <A <Says2 #:[1 {less} <reject <rec ok [<lit 9>]>>]> 9>]]")
        await broker.send(observe(rec("Says2", BIND), 80, 80))
        (line,) = await broker.told()
        twice = line.removesuffix("]]").rpartition(" ")[2]
        await broker.send(f"[[{twice} <M <ok 9>>] [{twice} <M <ok 8>>] [{twice} <M 7>]]")
        assert await service.told() == ["7 ! <ok 8>"]


async def test_an_unknown_caveat_lets_nothing_through() -> None:
    async with (
        relay() as served,
        served.peer() as service,
        served.peer() as broker,
        served.peer() as client,
        introduced(service, broker) as oid,
    ):
        await client.send(observe(ANY_SAYS))
        await client.sync()
        await broker.send(f"[[0 <A <Says #:[1 {oid} <expires 17>]> 1>]]")
        (line,) = await client.told()
        less = line.removesuffix("]]").rpartition(" ")[2]
        await client.send(f"[[{less} <M 1>] [{less} <A 2 11>]]", f"[[{less} <R 11>]]")
        await client.sync()
        assert await service.sync() == []


async def test_an_attenuated_observer_is_told_less() -> None:
    async with relay() as served, served.peer() as peer, served.peer() as observer:
        # A reference of its own cannot be attenuated by who sends it; that of the dataspace can.
        await observer.send(observe(ANY_SAYS, 1, 1))
        await observer.sync()
        await peer.send("[[0 <A <Says #:[1 0 <rewrite <bind <rec a [<_>]>> <ref 0>>]> 1>]]")
        (line,) = await observer.told()
        less = line.removesuffix("]]").rpartition(" ")[2]
        await observer.send(observe(rec("a", BIND), 2, 2), observe(rec("b", BIND), 2, 3))
        await observer.send(f"[[{less} <M <a 1>>] [{less} <M <b 2>>] [{less} <A <a 3> 9>]]")
        assert flat(await observer.sync()) == ["2 ! [1]", "2 + [3]"]


def test_the_relay_is_told_what_the_tests_mean() -> None:
    """An attenuated reference is written as the protocol has it."""
    packet = packet_of("[[0 <M #:[1 5 <reject <_>>]>]]")
    assert encode(packet, text=True) == b"[[0 <M #:[1 5 <reject <_>>]>]]\n"
