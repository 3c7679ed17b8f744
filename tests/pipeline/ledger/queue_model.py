"""A relay as simple as can be: readers that wait by limit and lower mark, holders that are slow.

Events in the order of time, nothing else; no code of the relay or the ledger is used. A reader
reads as fast as it can, or as fast as messages are offered, a run of messages at a time, cut by the
room that there is (rule 9). A holder works on one message at a time, first in first out; what it
has worked on may then be under way to be acknowledged for a while, any number at a time.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

import attrs

BEGIN_NS = 1_760_000_000 * 10**9
READ_S = 0.0005
"""Between two reads of a reader that does not wait."""
WAKE_S = 0.003
"""From the repayment that lets a reader go on until it has read."""
RUN = 64
"""How many messages a read brings at most."""


@attrs.frozen
class Slow:
    """How a holder works."""

    seconds: Callable[[float, int, random.Random], float]
    """How long it works on a message: at what time, of what size."""
    acknowledged_s: float = 0.0
    """How long it takes after that."""


@attrs.frozen
class Source:
    """What an account sends, and to whom."""

    holders: tuple[str, ...]
    limit_items: int | None = 10_000
    limit_bytes: int | None = 8 << 20
    offered: float | None = None
    """Messages a second; None: as many as will be read."""
    size: Callable[[random.Random], int] = lambda _: 1000


@attrs.define
class _State:
    source: Source
    items: int = 0
    bytes: int = 0
    peak: int = 0
    sent: int = 0
    throttled: bool = False


def simulate(
    sources: dict[str, Source], holders: dict[str, Slow], seconds: float, seed: int = 3
) -> list[dict[str, Any]]:
    """Return the settlements of that time."""
    rng = random.Random(seed)
    ticket = itertools.count()
    events: list[tuple[float, int, Callable[[float], None]]] = []
    states = {name: _State(source) for name, source in sources.items()}
    queues: dict[str, deque[tuple[str, float, int]]] = {name: deque() for name in holders}
    rows: list[dict[str, Any]] = []

    def at(time: float, what: Callable[[float], None]) -> None:
        heapq.heappush(events, (time, next(ticket), what))

    def over(state: _State) -> bool:
        limits = (state.source.limit_items, state.source.limit_bytes)
        debts = zip((state.items, state.bytes), limits, strict=True)
        return any(limit is not None and debt > limit for debt, limit in debts)

    def low(state: _State) -> bool:
        limits = (state.source.limit_items, state.source.limit_bytes)
        debts = zip((state.items, state.bytes), limits, strict=True)
        return all(limit is None or debt <= limit // 2 for debt, limit in debts)

    def read(name: str, now: float) -> None:
        state = states[name]
        source = state.source
        if state.throttled or over(state):
            state.throttled = True
            return
        fan = len(source.holders)
        room = RUN * fan if source.limit_items is None else source.limit_items - state.items
        count = min(RUN, 1 + room // fan)
        if source.offered is not None:
            count = min(count, int(now * source.offered) + 1 - state.sent)
        for _ in range(count):
            size = source.size(rng)
            for holder in source.holders:
                state.items += 1
                state.bytes += size
                queue = queues[holder]
                queue.append((name, now, size))
                if len(queue) == 1:
                    work(holder, now)
            state.sent += 1
            if source.limit_bytes is not None and state.bytes > source.limit_bytes:
                break
        state.peak = max(state.peak, state.items)
        soon = now + READ_S
        if source.offered is not None:
            soon = max(soon, state.sent / source.offered)
        at(soon, lambda time: read(name, time))

    def work(holder: str, now: float) -> None:
        _, _, size = queues[holder][0]
        takes = holders[holder].seconds(now, size, rng)
        at(now + takes, lambda time: done(holder, time))

    def done(holder: str, now: float) -> None:
        loan = queues[holder].popleft()
        if queues[holder]:
            work(holder, now)
        wait = holders[holder].acknowledged_s
        if wait:
            at(now + wait, lambda time: settle(holder, loan, time))
        else:
            settle(holder, loan, now)

    def settle(holder: str, loan: tuple[str, float, int], now: float) -> None:
        name, opened, size = loan
        state = states[name]
        state.items -= 1
        state.bytes -= size
        rows.append(
            {
                "account": name,
                "holder": holder,
                "opened_ns": BEGIN_NS + int(opened * 1e9),
                "settled_ns": BEGIN_NS + int(now * 1e9),
                "bytes": size,
            }
        )
        if state.throttled and low(state):
            state.throttled = False
            at(now + WAKE_S, lambda time: read(name, time))

    for name in sources:
        at(0.0, partial(read, name))
    while events and events[0][0] <= seconds:
        time, _, what = heapq.heappop(events)
        what(time)
    return rows


def steady(rate: float) -> Slow:
    """Return a holder that clears so many messages a second."""
    return Slow(lambda _time, _size, _rng: 1 / rate)
