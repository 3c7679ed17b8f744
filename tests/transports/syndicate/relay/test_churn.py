"""State, observers and connections that come and go: everything is told, and nothing stays."""

from __future__ import annotations

import gc
import logging
import os
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from itertools import count
from typing import Final

import pytest
import trio

from clearfunds.transports.syndicate import Assert, Retract, Turn, decode
from clearfunds.transports.syndicate._plans import MAX_PLANS
from tests import memory
from tests.transports.peers import SECONDS, descriptors, until
from tests.transports.syndicate.relay.peers import (
    BIND,
    WHOLE_SAYS,
    Peer,
    SyndicateRelay,
    observe,
    rec,
    relay,
    says,
    text_of,
    wire,
)

FIRST = 1 << 24
"""The first number: all are written in four bytes."""

PATTERNS = (f"<bind {rec('State')}>", rec("State", BIND, ""), rec("State", BIND, BIND))
TOLD = "[<State {} x>]", "[{}]", "[{} x]"

ALLOCATED_BYTES = 32 << 10
"""What buffers and dictionaries may take more than before, which keep some room to spare. Twenty
bytes for each change that the rounds between make, and each observer of it, are more than that."""

MATCH_ARGS_BYTES = sys.getsizeof("__match_args__")
"""CPython 3.11 makes this string anew for each `case` that looks into an object, and its cache of
attributes keeps up to 4,096 of them."""

RESIDENT_BYTES = 6 << 20
"""What the process may take more than before, in minutes: pools of memory that is free again."""


Change = tuple[str, int]


def packets(changes: list[Change]) -> bytes:
    """The bytes that make these changes, a packet each; a number is its own handle."""
    number = FIRST.to_bytes(4, "big")
    made = {
        "+": wire(f"[[0 <A <State {FIRST} x> {FIRST}>]]"),
        "-": wire(f"[[0 <R {FIRST}>]]"),
    }
    assert [made[sign].count(number) for sign in "+-"] == [2, 1]
    return b"".join(made[sign].replace(number, n.to_bytes(4, "big")) for sign, n in changes)


def changes_of(numbers: list[int], chance: random.Random) -> list[Change]:
    """Assert each number and retract it: at once, after the next, or some time later."""
    changes: list[Change] = []
    standing: list[int] = []
    for n in numbers:
        changes.append(("+", n))
        standing.append(n)
        while standing and (len(standing) > 20 or chance.random() < 0.5):
            changes.append(("-", standing.pop(chance.choice([0, -1]))))
    changes += [("-", n) for n in standing]
    return changes


class Watching:
    """Sees changes; quicker than `Peer.told`."""

    def __init__(self, peer: Peer, told: str) -> None:
        self.peer = peer
        self.standing: dict[int, str] = {}
        self.told = told

    async def sees(self, changes: list[Change]) -> None:
        """Read changes, which have to be these, in this order."""
        at = 0
        while at < len(changes):
            frame = await self.peer.frame()
            assert frame is not None, "the relay has closed the connection"
            packet = decode(bytes(frame))
            assert isinstance(packet, Turn), packet
            for entry in packet.events:
                event = entry.event
                if isinstance(event, Assert):
                    text = text_of(event.assertion)
                    self.standing[event.handle] = text
                    assert ("+", text) == ("+", self.told.format(changes[at][1]))
                    assert changes[at][0] == "+"
                else:
                    assert isinstance(event, Retract)
                    text = self.standing.pop(event.handle)
                    assert (changes[at][0], self.told.format(changes[at][1])) == ("-", text)
                at += 1
        assert at == len(changes)


def objects() -> Counter[str]:
    """How many objects of the package's classes there are, by class."""
    gc.collect()
    return Counter(
        f"{type(found).__module__}.{type(found).__qualname__}"
        for found in gc.get_objects()
        # A class of some extension's may have anything for its module.
        if str(type(found).__module__).startswith("clearfunds.")
    )


def allocated() -> int:
    """How many bytes the package and its Preserves library have allocated."""
    return sum(size for size in memory.held("*/preserves/*") if size != MATCH_ARGS_BYTES)


def resident() -> int:
    """How many bytes of memory this process has."""
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def tables(served: SyndicateRelay) -> dict[str, int]:
    """How many entries the tables of the relay have."""
    statistics = served.statistics
    found = {
        "assertions": statistics.assertions,
        "observations": statistics.observations,
        "shapes": statistics.shapes,
        "accounts": len(served.ledger.accounts),
        "holders": len(served.ledger.holders),
        "connections": len(served.side.open),
        "descriptors": descriptors(),
        "tasks": len(served.running.flusher.nursery.child_tasks),
        "dirty": len(served.running.flusher.dirty),
    }
    assert not [account for account in served.ledger.accounts.values() if account.debt_items]
    return found


def grown(before: Counter[str], after: Counter[str], slack: int = 5) -> dict[str, int]:
    """Of which classes there are more than before, by more than `slack`."""
    return {name: n - before[name] for name, n in after.items() if n - before[name] > slack}


REMEMBERED: Final = (
    "dataspace._changes.Sight",
    "transports.syndicate._plans.Seen",
    "transports.syndicate._values.Encoded",
)
"""One for each remembered value and pattern at most, and one for itself."""


async def churn(
    served: SyndicateRelay, rounds: Iterator[int], size: int, look: Callable[[int], None]
) -> int:
    """Make and see changes, round by round; look at what there is after each. Return how many."""
    chance = random.Random(1)
    numbers = count(FIRST)
    made = 0
    async with AsyncExitStack() as stack:
        watching: list[Watching] = []
        for pattern, told in zip(PATTERNS, TOLD, strict=True):
            peer = await stack.enter_async_context(served.peer())
            await peer.send(observe(pattern))
            await peer.sync()
            watching.append(Watching(peer, told))
        publisher = await stack.enter_async_context(served.peer())
        for n in rounds:
            changes = changes_of([next(numbers) for _ in range(size)], chance)
            with trio.fail_after(4 * SECONDS):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(publisher.send_raw, packets(changes))
                    for one in watching:
                        nursery.start_soon(one.sees, changes)
            made += len(changes)
            await publisher.sync()
            for one in watching:
                assert await one.peer.sync() == []
                assert one.standing == {}
            assert served.statistics.assertions == len(watching)  # what they observe
            served.audit()
            look(n)
    return made


# -- state ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [20, pytest.param(None, marks=pytest.mark.long)])
async def test_state_that_changes_at_full_speed_is_seen_by_all_and_leaves_nothing(
    limit: int | None,
) -> None:
    """Also when the publisher is throttled at every moment."""
    found: list[tuple[Counter[str], int, dict[str, int]]] = []
    async with relay(limit_items=limit, patience=60) as served:
        with memory.tracing():

            def look(_round: int) -> None:
                found.append((objects(), allocated(), tables(served)))

            made = await churn(served, iter(range(5)), 300, look)
    assert made == 5 * 2 * 300
    _, second, *_, last = found
    assert last[2] == second[2]
    assert grown(second[0], last[0]) == {}
    assert last[1] - second[1] < ALLOCATED_BYTES


@pytest.mark.long
async def test_state_that_changes_for_a_minute_takes_no_more_memory() -> None:
    found: list[tuple[Counter[str], int, dict[str, int]]] = []

    def for_a_minute() -> Iterator[int]:
        until_when = trio.current_time() + 60
        n = 0
        while trio.current_time() < until_when:
            yield n
            n += 1

    async with relay(patience=60) as served:

        def look(_round: int) -> None:
            found.append((objects(), resident(), tables(served)))

        made = await churn(served, for_a_minute(), 1_000, look)
    assert made > 20_000
    warm = found[len(found) // 5]
    last = found[-1]
    assert last[2] == warm[2]
    # What is remembered of equal values grows up to a bound, is forgotten, and grows again.
    remembered = grown(warm[0], last[0])
    assert remembered.keys() <= {f"clearfunds.{name}" for name in REMEMBERED}
    for name in remembered:
        assert last[0][name] <= MAX_PLANS * (1 + len(PATTERNS))
    assert last[1] - warm[1] < RESIDENT_BYTES


# -- observers ------------------------------------------------------------------------------------


def shape(n: int) -> str:
    """A pattern that looks at other places than that of any other number."""
    return rec("Says", f"<group <arr> {{{n}: <lit 1> {n + 1}: <bind <_>>}}>")


@pytest.mark.parametrize("rounds", [4, pytest.param(12, marks=pytest.mark.long)])
async def test_observers_of_ever_new_shapes_come_and_go(rounds: int) -> None:
    """While others are told what they are told."""
    at_once = 40
    found: list[tuple[Counter[str], int, dict[str, int]]] = []
    async with (
        relay(max_shapes=at_once + 1, patience=60) as served,
        served.peer() as steady,
        served.peer() as publisher,
        served.peer() as peer,
    ):
        await steady.send(observe(WHOLE_SAYS))
        await steady.sync()
        with memory.tracing():
            for turn in range(rounds):
                numbers = range(turn * at_once, (turn + 1) * at_once)
                await peer.send(*[observe(shape(n), handle=n) for n in numbers])
                await peer.sync()
                assert served.statistics.shapes == at_once + 1
                elements = " ".join(["1"] * (numbers[-1] + 2))
                await publisher.send(says(f"[{elements}]"), says(str(turn)))
                # All shapes match the first; what they multiply is on the peer's own account.
                assert await peer.lines(at_once) == ["1 ! [1]"] * at_once
                assert await steady.lines(2) == [
                    f"1 ! [<Says [{elements}]>]",
                    f"1 ! [<Says {turn}>]",
                ]
                await peer.send(*[f"[[0 <R {n}>]]" for n in numbers])
                await peer.sync()
                await publisher.sync()
                assert served.statistics.shapes == 1
                served.audit()
                found.append((objects(), allocated(), tables(served)))
    _, second, *_, last = found
    assert last[2] == second[2]
    assert grown(second[0], last[0]) == {}
    assert last[1] - second[1] < ALLOCATED_BYTES


async def test_more_shapes_than_there_may_be_are_refused_and_leave_nothing() -> None:
    allowed = 25
    async with relay(max_shapes=allowed) as served, served.peer() as other:
        await other.send(observe(shape(1_000)))
        await other.sync()
        for turn in range(5):
            async with served.peer() as peer:
                numbers = range(turn * allowed, (turn + 1) * allowed)
                await peer.send(*[observe(shape(n), handle=n) for n in numbers])
                why, _ = await peer.refused()
                assert str(allowed) in why
                assert "shapes" in why
            await until(lambda: len(served.side.open) == 1)
            assert served.statistics.shapes == served.statistics.observations == 1
            served.audit()
        # There is room again, for as many as are allowed; the same shape again is none more.
        await other.send(*[observe(shape(n), handle=n + 2) for n in range(allowed - 1)])
        await other.send(observe(shape(1_000), handle=2_000))
        await other.sync()
        assert served.statistics.shapes == allowed
        assert served.statistics.observations == allowed + 1


# -- connections ----------------------------------------------------------------------------------


async def test_connections_that_come_and_go_leave_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """They leave in every way there is, and each has observed, asserted and said something."""
    # What is logged is kept, with the faults in it and what these refer to.
    caplog.set_level(logging.ERROR, "clearfunds")
    rounds, at_once = 8, 12
    found: list[tuple[Counter[str], int, dict[str, int]]] = []

    async def visit(n: int) -> None:
        async with served.peer() as peer:
            await peer.send(
                observe(shape(n), handle=1),
                f"[[0 <A <State {n} x> 2>]]",
                f"[[0 <A <service {n} #:[0 7]> 3>]]",
                f"[[0 <A <State {n} y> 4>] [0 <R 4>]]",
                says(str(n)),
            )
            await peer.sync()
            match n % 4:
                case 0:
                    await peer.leave()
                case 1:
                    await peer.reset()
                case 2:
                    await peer.send_raw(wire("[[0 <R 2>]]")[:-1])
                case _:
                    await peer.send("[[0 <A x 2>]]")
                    why, _ = await peer.refused()
                    assert "asserted again" in why

    async with relay(patience=60) as served, served.peer() as watching:
        await watching.send(
            observe(rec("State", BIND, "<lit x>"), handle=1),
            observe(WHOLE_SAYS, 2, handle=2),
            observe(rec("service", BIND), 3, handle=3),
        )
        await watching.sync()
        with memory.tracing():
            for turn in range(rounds):
                numbers = range(turn * at_once, (turn + 1) * at_once)
                async with trio.open_nursery() as nursery:
                    for n in numbers:
                        nursery.start_soon(visit, n)
                    lines = await watching.lines(5 * at_once)
                expected = [f"1 {sign} [{n}]" for n in numbers for sign in "+-"]
                expected += [f"3 {sign} [{n}]" for n in numbers for sign in "+-"]
                expected += [f"2 ! [<Says {n}>]" for n in numbers]
                assert sorted(lines) == sorted(expected)
                for n in numbers:
                    assert lines.index(f"1 + [{n}]") < lines.index(f"1 - [{n}]")
                    assert lines.index(f"2 ! [<Says {n}>]") < lines.index(f"1 - [{n}]")
                await until(lambda: len(served.side.open) == 1)
                await until(lambda: len(served.ledger.accounts) == 3)
                await until(lambda: not served.running.flusher.nursery.child_tasks)
                served.audit()
                found.append((objects(), allocated(), tables(served)))
        assert served.side.counters.internal_errors == 0
    _, second, *_, last = found
    assert last[2] == second[2]
    assert grown(second[0], last[0]) == {}
    assert last[1] - second[1] < ALLOCATED_BYTES
