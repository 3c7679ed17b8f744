"""Flat turns, handled in runs: what comes of them is what comes of the general path."""

from __future__ import annotations

from contextlib import ExitStack
from unittest.mock import patch

import attrs
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

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
    wire,
)

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

records = st.builds(
    lambda label, fields: f"<{' '.join((label, *fields))}>",
    st.sampled_from(["Says", "Present", "Other"]),
    st.lists(st.sampled_from(["1", "2", '"a"', '"é"', "#f", "x", "1.5", "[1]"]), max_size=3),
)
handles = st.integers(1, 4)
events = st.one_of(
    records.map(lambda body: f"[0 <M {body}>]"),
    st.builds(lambda body, handle: f"[0 <A {body} {handle}>]", records, handles),
    handles.map(lambda handle: f"[0 <R {handle}>]"),
)
turns = st.one_of(
    events.map(lambda event: [event]),
    st.builds(lambda event, times: [event] * times, events, st.integers(1, 3)),
    st.lists(events, min_size=1, max_size=4),
).map(lambda of: f"[{' '.join(of)}]")


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


async def outcome(packets: list[str], cuts: list[int], *, runs: bool) -> Outcome:
    """Send packets in pieces of so many bytes, with flat turns or without."""
    with ExitStack() as stack:
        if not runs:
            nothing = patch.object(
                FlatTurns, "forward", lambda _, __, position, *___: (0, position)
            )
            stack.enter_context(nothing)
        async with relay() as served, served.peer() as a, served.peer() as b, served.peer() as c:
            async with served.peer() as d, served.peer() as peer:
                observers = (a, b, c, d)
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
@given(st.lists(turns, min_size=1, max_size=14), st.lists(st.integers(1, 200), max_size=3))
async def test_runs_are_told_as_the_general_path_tells_them(
    packets: list[str], cuts: list[int]
) -> None:
    twice = [*packets, *packets]  # plans are made when a kind is seen again
    assert await outcome(twice, cuts, runs=True) == await outcome(twice, cuts, runs=False)
