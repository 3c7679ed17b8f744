"""Flat turns, handled in runs: what comes of them is what comes of the general path."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

import attrs
import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clearfunds.transports.syndicate import (
    Assert,
    Message,
    Record,
    Symbol,
    Turn,
    TurnEvent,
    encode,
)
from clearfunds.transports.syndicate._flat_turns import FlatTurns
from tests.transports.peers import until
from tests.transports.syndicate.relay.peers import (
    BIND,
    Peer,
    SyndicateRelay,
    flat,
    observe,
    rec,
    relay,
    says,
    wire,
)

DO = "<do <credit-flow-control 202506>>"

OBSERVED = (
    [rec("Says", BIND, BIND)],
    [f"<bind {rec('Says', '', BIND)}>", rec("Present", BIND)],
    [rec("Says", "<lit 1>", BIND)],
    [rec("Present", BIND, "<lit 2>"), rec("Says", "<lit 2>")],
)
"""What four peers observe. One of them has two patterns that may match the same turn."""

examples = settings(
    deadline=None,
    max_examples=40,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@st.composite
def records(draw: st.DrawFn) -> str:
    label = draw(st.sampled_from(["Says", "Present", "Other"]))
    atoms = st.sampled_from(["1", "2", '"a"', '"é"', "#f", "x", "1.5", "[1]"])
    return f"<{' '.join((label, *draw(st.lists(atoms, max_size=3))))}>"


@st.composite
def events(draw: st.DrawFn) -> str:
    kind, handle = draw(st.sampled_from("MAR")), draw(st.integers(1, 4))
    if kind == "R":
        return f"[0 <R {handle}>]"
    of = f"{draw(records())} {handle}" if kind == "A" else draw(records())
    return f"[0 <{kind} {of}>]"


@st.composite
def turns(draw: st.DrawFn) -> str:
    """Half of them have one event; some have one several times."""
    some = [draw(events())] * draw(st.sampled_from([1, 1, 1, 2, 3]))
    if draw(st.booleans()):
        some += draw(st.lists(events(), max_size=3))
    return f"[{' '.join(some)}]"


@attrs.frozen
class Outcome:
    """What came of what a peer sent."""

    refused: str | None
    told: list[list[list[str]]]
    """The turns that each observer was told."""
    gone: list[list[str]]
    """What each was told when the peer left, sorted: it may be told in any number of turns."""
    received: int
    published: int
    deliveries: int
    unrouted: int
    borrowed: int
    shown: dict[str, int]
    """What the peer's account stood for before it left."""


LIMITS: tuple[dict[str, Any], ...] = (
    {},
    {"quota_items": 3},
    {"max_assertions": 2},
    {"max_turn_deliveries": 3},
    {"limit_items": 5},
    {"turn_credit": "request"},
)
"""Settings of the relay. With each something is refused, or waits, that is not otherwise."""


def _handles_nothing(
    _: FlatTurns, __: bytes, position: int, most: int | None = None
) -> tuple[int, int]:
    del most
    return 0, position


async def outcome(
    packets: list[str], cuts: list[int], limits: dict[str, Any], *, text: bool, runs: bool
) -> Outcome:
    """Send packets in pieces of so many bytes, with flat turns or without.

    With `text`, one of the observers speaks text.
    """
    with ExitStack() as stack:
        if not runs:
            stack.enter_context(patch.object(FlatTurns, "forward", _handles_nothing))
        async with (
            relay(**limits) as served,
            served.peer(text=text) as a,
            served.peer() as b,
            served.peer() as c,
        ):
            async with served.peer() as d, served.peer() as peer:
                observers = (a, b, c, d)
                if limits.get("turn_credit"):
                    for each in (*observers, peer):
                        await each.expect(DO)
                for observer, patterns in zip(observers, OBSERVED, strict=True):
                    for n, pattern in enumerate(patterns, 1):
                        await observer.send(observe(pattern, n, n))
                    await observer.sync()
                await peer.sync()
                before = served.ledger.statistics().borrowed_items
                data = wire(*packets)
                for cut in cuts:
                    await peer.send_raw(data[:cut])
                    data = data[cut:]
                await peer.send_raw(data)
                refused = await _refused(peer)
                told = [await observer.sync() for observer in observers]
                served.audit()
                statistics = served.statistics
                borrowed = served.ledger.statistics().borrowed_items - before
                shown = {} if refused else standing(served, peer)
                await peer.leave()
                await until(lambda: len(served.side.open) == len(observers))
                gone = [sorted(flat(await observer.sync())) for observer in observers]
            for observer in observers:
                assert not observer.standing
            return Outcome(
                refused,
                told,
                gone,
                served.side.counters.received,
                statistics.published,
                statistics.deliveries,
                statistics.unrouted,
                0 if refused else borrowed,
                shown,
            )


async def _refused(peer: Peer) -> str | None:
    """Wait until all has been handled; return what the relay complains of."""
    try:
        await peer.sync()
    except AssertionError:
        return "refused"
    return None


def standing(served: SyndicateRelay, peer: Peer) -> dict[str, int]:
    """Return what counts against the peer's quota."""
    statistics = served.account(peer).statistics()
    return {"items": statistics.standing_items, "bytes": statistics.standing_bytes}


@examples
@given(
    st.lists(turns(), min_size=1, max_size=14),
    st.lists(st.integers(1, 200), max_size=3),
    st.sampled_from(LIMITS),
    st.booleans(),
)
async def test_runs_are_told_as_the_general_path_tells_them(
    packets: list[str], cuts: list[int], limits: dict[str, Any], text: bool
) -> None:
    twice = [*packets, *packets]  # plans are made when a kind is seen again
    general = await outcome(twice, cuts, limits, text=text, runs=False)
    assert await outcome(twice, cuts, limits, text=text, runs=True) == general


@pytest.fixture
def handled(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many packets each call of `FlatTurns.forward` handles."""
    numbers: list[int] = []
    forward = FlatTurns.forward

    def counted(self: FlatTurns, *of: Any) -> tuple[int, int]:
        found = forward(self, *of)
        numbers.append(found[0])
        return found

    monkeypatch.setattr(FlatTurns, "forward", counted)
    return numbers


@pytest.mark.parametrize(
    "packets",
    [
        [says(str(n), '"x"') for n in range(60)],
        [f"[{' '.join(f'[0 <M <Says {n} {k}>>]' for k in range(9))}]" for n in range(60)],
        [f"[[0 <{'R' if n % 2 else f'A <Says {n} 1>'} {n // 2}>]]" for n in range(60)],
    ],
    ids=["messages", "turns", "state"],
)
async def test_all_but_the_first_are_handled_in_runs(
    handled: list[int], packets: list[str]
) -> None:
    async with relay() as served, served.peer() as peer, served.peer() as observer:
        await observer.send(observe(rec("Says", BIND, BIND)))
        await observer.sync()
        await peer.send(*packets)
        await peer.sync()
        assert len(await observer.sync()) == 60
        # But those that a read cuts in two.
        assert 56 <= sum(handled) <= 60
        assert max(handled) > 10
        served.audit()


@pytest.mark.parametrize("state", [False, True])
async def test_a_run_is_cut_where_its_account_has_no_more_room(
    handled: list[int], state: bool
) -> None:
    """Rule 9: looked at before each packet. An observer that does not read holds all that comes."""
    async with (
        relay(limit_items=50, patience=60.0) as served,
        served.peer() as peer,
        served.peer(receive_buffer=4_096) as observer,
    ):
        await observer.send(observe(rec("Says", BIND, BIND)))
        await observer.sync()
        bodies = [Record(Symbol("Says"), ("x" * 8_000, n)) for n in range(1_500)]
        events = [Assert(body, n) if state else Message(body) for n, body in enumerate(bodies)]
        data = b"".join([encode(Turn((TurnEvent(0, event),))) for event in events])
        await peer.sync()
        account = served.account(peer)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(peer.send_raw, data)
            await until(lambda: not account.funds_are_clear())
            peak = account.statistics().peak_items
            # One packet's fan-out at the most: itself, and a copy.
            assert 50 < peak <= 50 + 2
            served.audit()
            for _ in events:
                await observer.raw_packet()
        assert sum(handled) > 1_000  # the others are cut in two by a read


@pytest.mark.parametrize("how", ["leaves", "retracts"])
async def test_observers_come_and_go_between_changes(how: str) -> None:
    """A plan holds until then; who comes is shown what stands, and is told when that goes."""
    async with relay() as served, served.peer() as peer, served.peer() as first:
        await first.send(observe(rec("Says", BIND)))
        await first.sync()
        await peer.send(*[f"[[0 <A <Says {n}> {n}>]]" for n in range(5)])
        await peer.sync()
        async with served.peer() as second:
            await second.send(observe(rec("Says", BIND)))
            assert sorted(flat(await second.sync())) == [f"1 + [{n}]" for n in range(5)]
            await peer.send("[[0 <R 1>]]", "[[0 <A <Says 1> 9>]]", "[[0 <R 2>]]")
            await peer.sync()
            told = [["1 - [1]"], ["1 + [1]"], ["1 - [2]"]]
            assert await second.sync() == told
            assert (await first.sync())[-3:] == told
            if how == "retracts":
                await second.send("[[0 <R 1>]]")
                gone = flat(await second.sync())
                assert sorted(gone) == ["1 - [0]", "1 - [1]", "1 - [3]", "1 - [4]"]
        await until(lambda: served.statistics.observations == 1)
        await peer.send(*[f"[[0 <R {n}>]]" for n in (0, 3, 4, 9)])
        await peer.sync()
        assert sorted(flat(await first.sync())) == [f"1 - [{n}]" for n in (0, 1, 3, 4)]
        assert served.statistics.assertions == 1
        served.audit()
