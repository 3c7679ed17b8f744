"""Clients bind names and make dataspaces at run time."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from clearfunds.accounts import Turn
from clearfunds.relay import RelaySettings
from clearfunds.relay._relay import check_relay
from clearfunds.transports._listener import ListenURLError
from clearfunds.transports.syndicate import mint
from clearfunds.transports.syndicate._gatekeeper import Question
from clearfunds.transports.syndicate._preserves import decode_text
from tests.transports.peers import until
from tests.transports.syndicate.relay.peers import (
    BIND,
    TCP,
    WHOLE_SAYS,
    Peer,
    SyndicateRelay,
    observe,
    relay,
)

GATE = f"{TCP}?gatekeeper"
KEY = b"the relay's"


@asynccontextmanager
async def guarded(**settings: Any) -> AsyncGenerator[SyndicateRelay]:
    settings.setdefault("resolve_answer", "ok")
    async with relay(listen=(GATE,), sturdy_key=KEY, **settings) as served:
        yield served
        served.audit()


def sturdyref(oid: str = '"a"', key: bytes = b"mine", *caveats: str) -> str:
    return str(mint(decode_text(oid), key, [decode_text(caveat) for caveat in caveats]))


def bound(
    target: str, oid: str = '"a"', key: str = "mine", *, k: int = 5, handle: int = 50, at: int = 1
) -> str:
    """The packet that binds; oid k of the peer is told."""
    whom = f"#:[0 {k}]" if k else "#f"
    return f'[[{at} <A <bind <ref {{oid: {oid} key: #"{key}"}}> {target} {whom}> {handle}>]]'


async def resolve(peer: Peer, ref: str, k: int = 1, handle: int = 10) -> str:
    """Show a sturdyref to the gatekeeper; return what oid k of the peer is told."""
    await peer.send(f"[[0 <A <resolve {ref} #:[0 {k}]> {handle}>]]")
    (line,) = await peer.told()
    return line.removeprefix(f"{k} + ")


async def granted(peer: Peer, ref: str, k: int = 1, handle: int = 10) -> int:
    """Show a sturdyref; return the oid of what it stands for."""
    answer = await resolve(peer, ref, k, handle)
    assert answer.startswith("<ok #:[0 "), answer
    return int(answer.removeprefix("<ok #:[0 ").removesuffix("]>"))


async def binder(peer: Peer, *caveats: str) -> int:
    return await granted(peer, sturdyref('"bind"', KEY, *caveats), 1, 1)


async def made(peer: Peer, bindspace: int, handle: int = 40) -> int:
    """Make a dataspace; return its oid."""
    await peer.send(f"[[{bindspace} <A <dataspace #:[0 4]> {handle}>]]")
    (line,) = await peer.told()
    assert line.startswith("4 + <ok #:[0 "), line
    return int(line.removeprefix("4 + <ok #:[0 ").removesuffix("]>"))


async def test_a_name_stands_for_a_dataspace_of_its_own() -> None:
    async with (
        guarded() as served,
        served.peer() as owner,
        served.peer() as guest,
        served.peer() as other,
    ):
        space = await binder(owner)
        dataspace = await made(owner, space)
        assert dataspace != space
        await owner.send(bound(f"#:[1 {dataspace}]", at=space))
        assert await owner.told() == [f"5 + <bound {sturdyref()}>"]
        place = await granted(guest, sturdyref())
        await guest.send(observe(WHOLE_SAYS, 7, 70, place))
        await guest.sync(place)
        # The relay's own dataspace is another.
        own = await granted(other, sturdyref('"syndicate"', KEY))
        await other.send(observe(WHOLE_SAYS, 7, 70, own))
        await other.send(f"[[{own} <M <Says elsewhere>>] [{own} <A <Says too> 9>]]")
        assert await other.lines(2) == ["7 ! [<Says elsewhere>]", "7 + [<Says too>]"]
        await owner.send(f"[[{dataspace} <A <Says here> 60>]]")
        assert await guest.told() == ["7 + [<Says here>]"]
        await owner.send("[[9 <R 60>]]")
        assert await guest.told() == ["7 - [<Says here>]"]
        assert await other.sync(own) == []
        served.audit()


async def test_a_name_stands_for_a_clients_entity_until_it_is_retracted() -> None:
    async with guarded() as served, served.peer() as owner, served.peer() as guest:
        space = await binder(owner)
        await owner.send(bound("#:[0 8]", "[x 1]", at=space))
        assert await owner.told() == [f"5 + <bound {sturdyref('[x 1]')}>"]
        entity = await granted(guest, sturdyref("[x 1]"))
        await guest.send(f"[[{entity} <A hello 90>] [{entity} <M you>]]")
        assert await owner.lines(2) == ["8 + hello", "8 ! you"]
        await owner.send(f"[[{space} <R 50>]]")
        assert await owner.told() == [f"5 - <bound {sturdyref('[x 1]')}>"]
        gone, refused = await guest.lines(2)
        assert gone == f"1 - <ok #:[0 {entity}]>"
        assert refused.startswith('1 + <error "this sturdyref names no service here')
        # Bound again, it is found again, by those who have asked already.
        await owner.send(bound("#:[0 8]", "[x 1]", handle=51, at=space))
        await owner.lines(1)
        _, again = await guest.lines(2)
        assert again.startswith("1 + <ok #:[0 ")
    # With its connection.


async def test_what_a_client_has_bound_goes_with_it() -> None:
    async with guarded() as served, served.peer() as guest:
        async with served.peer() as owner:
            space = await binder(owner)
            await owner.send(bound("#:[0 8]", at=space))
            await owner.lines(1)
            await granted(guest, sturdyref())
        _, refused = await guest.lines(2)
        assert refused.startswith("1 + <error ")
        assert len(served.side.gatekeeper._bindings) == 0  # pyright: ignore[reportPrivateUsage]
        await until(lambda: len(served.side.open) == 1)


async def test_a_name_and_a_question_in_one_packet() -> None:
    async with guarded() as served, served.peer() as owner:
        space = await binder(owner)
        bind = bound("#:[0 8]", at=space)[1:-1]
        await owner.send(f"[{bind} [0 <A <resolve {sturdyref()} #:[0 2]> 20>]]")
        lines = await owner.lines(2)
        assert lines[0].startswith("5 + <bound ")
        assert lines[1].startswith("2 + <ok #:")
        # Made and unmade in one packet, it leaves nothing behind.
        await owner.send(f"[{bound('#:[0 8]', 'b', handle=51, at=space)[1:-1]} [{space} <R 51>]]")
        lines = await owner.lines(2)
        assert [line[:3] for line in lines] == ["5 +", "5 -"]
        assert (await resolve(owner, sturdyref("b"), 3, 30)).startswith("<error ")


@pytest.mark.parametrize(
    ("description", "why"),
    [
        ('<ref {oid: "syndicate" key: #""}>', "relay's own"),
        ('<ref {oid: "bind" key: #""}>', "relay's own"),
        ('<ref {oid: "a" key: #""}>', "bound already"),
        ('<ref {oid: "b"}>', "<ref {oid: any key: bytes}>"),
        ('<ref {key: #""}>', "<ref {oid: any key: bytes}>"),
        ('<ref {oid: #:[0 9] key: #""}>', "cannot have a reference"),
        ("<noise {}>", "<ref {oid: any key: bytes}>"),
        ("17", "<ref {oid: any key: bytes}>"),
    ],
)
async def test_what_cannot_be_bound_is_refused(
    description: str, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with guarded() as served, served.peer() as owner:
        space = await binder(owner)
        await owner.send(bound("#:[0 8]", at=space))
        await owner.lines(1)
        with caplog.at_level(logging.WARNING):
            await owner.send(f"[[{space} <A <bind {description} #:[0 8] #:[0 6]> 60>]]")
            (line,) = await owner.told()
        assert line.startswith('6 + <error "nothing was bound: ')
        assert why in line
        assert why in caplog.text
        await owner.send(f"[[{space} <R 60>]]")
        assert await owner.told() == [line.replace("+", "-", 1)]
        assert served.side.counters.protocol_errors == 0


async def test_the_default_reference_does_not_bind() -> None:
    """What it lets its holders assert in the dataspace is state there, and no more."""
    async with guarded() as served, served.peer() as peer:
        own = await granted(peer, sturdyref('"syndicate"', KEY))
        await peer.send(bound("#:[0 8]", at=own), f"[[{own} <A <dataspace #:[0 4]> 40>]]")
        assert await peer.sync(own) == []
        assert (await resolve(peer, sturdyref(), 3, 30)).startswith("<error ")


async def test_the_right_to_bind_can_be_attenuated() -> None:
    only = "<rewrite <bind <rec bind [<rec ref [<dict {oid: <lit a>}>]> <_> <_>]>> <ref 0>>"
    async with guarded() as served, served.peer() as owner:
        space = await binder(owner, only)
        await owner.send(
            bound("#:[0 8]", "b", at=space),
            f"[[{space} <A <dataspace #:[0 4]> 40>]]",
            bound("#:[0 8]", "a", handle=51, at=space),
        )
        assert await owner.told() == [f"5 + <bound {sturdyref('a')}>"]
        assert await owner.sync(0) == []


async def test_a_target_may_be_attenuated() -> None:
    async with guarded() as served, served.peer() as owner, served.peer() as guest:
        space = await binder(owner)
        own = await granted(owner, sturdyref('"syndicate"', KEY), 2, 20)
        await owner.send(observe(WHOLE_SAYS, 7, 70, own))
        await owner.send(bound(f"#:[1 {own} <reject <rec Says [<lit no>]>>]", at=space))
        await owner.lines(1)
        place = await granted(guest, sturdyref())
        await guest.send(f"[[{place} <M <Says no>>] [{place} <M <Says yes>>]]")
        assert await owner.told() == ["7 ! [<Says yes>]"]


async def test_holders_see_names_but_no_keys() -> None:
    async with guarded() as served, served.peer() as owner, served.peer() as other:
        space, watched = await binder(owner), await binder(other)
        await owner.send(bound("#:[0 8]", at=space))
        await owner.lines(1)
        await other.send(observe(BIND, 7, 70, watched))
        assert '7 + [<bound "a">]' in await other.told()
        await owner.send(f"[[{space} <R 50>]]")
        assert await other.told() == ['7 - [<bound "a">]']


async def test_there_are_limits() -> None:
    async with (
        guarded(max_bound_names=3, names_per_connection=2) as served,
        served.peer() as one,
        served.peer() as two,
    ):
        first, second = await binder(one), await binder(two)
        await one.send(bound("#:[0 8]", "a", k=0, at=first))
        await made(one, first)
        await one.send(bound("#:[0 8]", "b", handle=51, at=first))
        (line,) = await one.told()
        assert "--names-per-connection" in line
        await one.send(f"[[{first} <A <dataspace #:[0 4]> 41>]]")
        (line,) = await one.told()
        assert line.startswith('4 + <error "no dataspace was made')
        await two.send(bound("#:[0 8]", "c", k=0, at=second))
        await two.send(bound("#:[0 8]", "d", handle=51, at=second))
        (line,) = await two.told()
        assert "--max-bound-names" in line
        # What is given back can be had again.
        await one.send(f"[[{first} <R 40>]]")
        await one.lines(1)
        await two.send(bound("#:[0 8]", "e", handle=52, at=second))
        assert await two.told() == [f"5 + <bound {sturdyref('e')}>"]
        served.audit()


async def test_a_quota_holds_for_names() -> None:
    async with guarded(quota_items=2) as served, served.peer() as owner:
        space = await binder(owner)
        for n in range(2):
            await owner.send(bound("#:[0 8]", str(n), handle=60 + n, at=space))
            await owner.lines(1)
        await owner.send(bound("#:[0 8]", "2", handle=70, at=space))
        (line,) = await owner.told()
        assert line.startswith('5 + <error "nothing was bound: ')
        assert (await resolve(owner, sturdyref("2"), 3, 30)).startswith("<error ")
        assert served.side.counters.internal_errors == 0


async def test_a_failed_packet_binds_nothing() -> None:
    async with guarded() as served, served.peer() as guest:
        async with served.peer() as owner:
            space = await binder(owner)
            bind = bound("#:[0 8]", at=space)[1:-1]
            await owner.send(f"[{bind} [{space} <A <Observe <lit [1]> #:[0 3]> 30>]]")
            await owner.refused()
        assert (await resolve(guest, sturdyref())).startswith("<error ")


async def test_the_two_names_of_the_relay_differ() -> None:
    with pytest.raises(ListenURLError, match="--sturdy-oid and --bind-oid are both 'syndicate'"):
        check_relay(RelaySettings(listen=(GATE,), sturdy_key=KEY, bind_oid="syndicate"))


async def test_an_answer_that_fails_keeps_no_other_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    change, failed = Question.change, 0

    def fail_once(question: Question, turn: Turn) -> None:
        nonlocal failed
        failed += 1
        if failed == 1:
            raise LookupError("nobody expects this")
        change(question, turn)

    monkeypatch.setattr(Question, "change", fail_once)
    async with guarded() as served, served.peer() as owner, served.peer() as guest:
        space = await binder(owner)
        for n in (10, 11):
            assert (await resolve(guest, sturdyref(), n, n)).startswith("<error ")
        await owner.send(bound("#:[0 8]", at=space))
        await owner.lines(1)
        assert sorted(line[:8] for line in await guest.lines(2)) == ["11 + <ok", "11 - <er"]
        assert served.ledger.faults.unowned == 1
        served.ledger.faults.unowned = 0


async def test_the_first_questions_of_a_connection_are_answered_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("clearfunds.transports.syndicate._gatekeeper.MAX_FOLLOWED", 2)
    async with guarded() as served, served.peer() as owner, served.peer() as guest:
        space = await binder(owner)
        for n in range(3):
            assert (await resolve(guest, sturdyref(), 10 + n, 10 + n)).startswith("<error ")
        await owner.send(bound("#:[0 8]", at=space))
        await owner.lines(1)
        assert sorted(line[:8] for line in await guest.lines(4)) == [
            "10 + <ok", "10 - <er", "11 + <ok", "11 - <er",
        ]  # fmt: skip
        # One is over; the next counts.
        await guest.send("[[0 <R 10>]]")
        await guest.lines(1)
        await resolve(guest, sturdyref(), 20, 20)
        await owner.send(f"[[{space} <R 50>]]")
        await owner.lines(1)
        assert sorted(line[:8] for line in await guest.lines(4)) == [
            "11 + <er", "11 - <ok", "20 + <er", "20 - <ok",
        ]  # fmt: skip
