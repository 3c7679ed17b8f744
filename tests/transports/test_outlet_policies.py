"""Slow-consumer policies of a library user's own outlet: each frame is dropped or kept whole."""

from __future__ import annotations

import random
import socket
import struct
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import attrs
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from clearfunds.accounts import (
    DEFAULT_PATIENCE,
    JOIN_BYTES,
    LAGGING,
    Account,
    Ledger,
    Limit,
    Outcome,
    StuckPolicy,
    Tracer,
    UnfitPolicyError,
    watch_patience,
)
from clearfunds.dataspace import Batch
from clearfunds.transports import Flusher, Outlet, open_flusher
from tests.transports.peers import until
from tests.transports.sockets import reluctant_pair

KEEP = 20
DROPS = (StuckPolicy.DROP_OLDEST, StuckPolicy.DROP_NEWEST, StuckPolicy.CONFLATE)
RELIEVES = (*DROPS, StuckPolicy.SPILL)
HEAD = struct.Struct(">IBI")
PATIENCE = 2.0


@attrs.frozen
class Reading:
    """An event; its sensor is the key."""

    sensor: int
    number: int
    size: int = 0


def frame(event: Reading) -> bytes:
    return HEAD.pack(event.size, event.sensor, event.number) + bytes(event.size)


def sensor_of(found: bytes) -> bytes:
    return found[4:5]


@attrs.define
class Way:
    """An outlet, its peer, and two publishers."""

    ledger: Ledger
    flusher: Flusher
    outlet: Outlet
    peer: socket.socket
    broken: list[str]
    accounts: list[Account]
    sent: list[Reading] = attrs.field(factory=list[Reading])
    got: bytearray = attrs.field(factory=bytearray)

    def next(self, sensor: int = 0, size: int = 0) -> Reading:
        self.sent.append(Reading(sensor, len(self.sent), size))
        return self.sent[-1]

    def send(self, sensor: int = 0, size: int = 0, by: int = 0) -> None:
        """Publish one event."""
        event = self.next(sensor, size)
        with self.accounts[by].turn(items=1, nbytes=HEAD.size + size) as turn:
            turn.send(self.outlet, event, nbytes=HEAD.size + size)

    def send_batch(self, count: int, by: int = 0) -> None:
        """Publish events of sensors 0 to `count` as a batch."""
        raw = b"".join([frame(self.next(n)) for n in range(count)])
        batch = Batch(raw, count, lambda _: ())
        with self.accounts[by].turn(items=count, nbytes=len(raw)) as turn:
            turn.send(self.outlet, batch, items=count, nbytes=len(raw))

    def block(self) -> None:
        """Send until the connection takes no more."""
        while not self.outlet.blocked:
            self.send(size=3_000)

    def take(self, most: int = 1 << 20) -> None:
        with suppress(BlockingIOError):
            self.got += self.peer.recv(most)

    async def take_all(self) -> list[Reading]:
        """Receive until nothing is left; return all that has ever been received."""
        with trio.fail_after(30):
            while self.outlet.unsent:
                self.take()
                await trio.lowlevel.checkpoint()
        self.take()
        return self.received()

    def received(self) -> list[Reading]:
        """Take apart what has been received: it has to be whole frames, to the last byte."""
        found: list[Reading] = []
        raw = bytes(self.got)
        place = 0
        while place < len(raw):
            size, sensor, number = HEAD.unpack_from(raw, place)
            place += HEAD.size
            assert raw[place : place + size] == bytes(size)
            place += size
            found.append(Reading(sensor, number, size))
        assert place == len(raw)
        return found

    def check_lost(self, received: list[Reading]) -> None:
        """Check that what was not received is what was counted."""
        lost = [event for event in self.sent if event not in set(received)]
        assert received == [event for event in self.sent if event in set(received)]
        relief = self.ledger.relief[self.outlet.policy]
        assert self.outlet.relief.dropped_items == relief.dropped_items == len(lost)
        assert self.outlet.relief.dropped_bytes == sum(map(len, map(frame, lost)))
        assert self.ledger.repaid_items[Outcome.DROPPED] == len(lost)


@asynccontextmanager
async def way(
    policy: StuckPolicy,
    *,
    retain_limit: Limit | None = Limit(items=KEEP, bytes=1 << 20),  # noqa: B008 (frozen)
    limit: Limit = Limit(items=100),  # noqa: B008
    fair: bool = False,
    key: Callable[[bytes], bytes] = sensor_of,
    takes: Sequence[int] = (),
) -> AsyncGenerator[Way]:
    ledger = Ledger(clock=trio.current_time)
    broken: list[str] = []
    ours, theirs = reluctant_pair()
    ours.takes = list(takes)
    for sock in (ours, theirs):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    if policy is StuckPolicy.SPILL and retain_limit is not None:
        retain_limit = Limit(items=None, bytes=1 << 20)
    with ours, theirs:
        async with open_flusher() as flusher:
            outlet = Outlet(
                ledger, flusher, ours, "O", frame=frame, on_broken=broken.append,
                policy=policy, patience=PATIENCE, retain_limit=retain_limit, key=key,
            )  # fmt: skip
            outlet.fair = fair
            accounts = [ledger.open(name, limit=limit) for name in "ab"]
            yield Way(ledger, flusher, outlet, theirs, broken, accounts)
            ledger.audit()
            outlet.close()
    ledger.audit()
    assert not any(account.debt_items for account in ledger.accounts.values())
    assert set(ledger.accounts) <= {"a", "b", LAGGING}
    assert not ledger.lagging


def kept(policy: StuckPolicy, events: list[Reading]) -> list[Reading]:
    """Return what a policy keeps of these events."""
    match policy:
        case StuckPolicy.DROP_OLDEST:
            return events[-KEEP:]
        case StuckPolicy.DROP_NEWEST:
            return events[:KEEP]
        case StuckPolicy.CONFLATE:
            latest = {event.sensor: event for event in events}
            return sorted(latest.values(), key=lambda event: event.number)
        case _:
            return events


@pytest.mark.parametrize("fair", [False, True])
@pytest.mark.parametrize("policy", RELIEVES)
async def test_publishers_go_on_when_a_peer_does_not_read(
    policy: StuckPolicy, fair: bool, autojump_clock: trio.testing.MockClock
) -> None:
    del autojump_clock
    async with way(policy, fair=fair) as w, trio.open_nursery() as nursery:
        nursery.start_soon(watch_patience, w.ledger)
        began = trio.current_time()
        for n in range(2_000):
            by = 0 if fair else n % 2
            await w.accounts[by].ensure_clear_funds()
            w.send(n % 7, 100, by)
        assert PATIENCE <= trio.current_time() - began < 10 * PATIENCE
        w.ledger.audit()
        assert w.outlet.lagging
        received = await w.take_all()
        w.check_lost(received)
        assert (received == w.sent) == (policy is StuckPolicy.SPILL)
        assert not w.outlet.lagging
        assert not w.broken
        w.send()
        assert await w.take_all() == [*received, w.sent[-1]]
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("before", [0, 50])
@pytest.mark.parametrize("policy", RELIEVES)
async def test_it_keeps_what_its_policy_says(policy: StuckPolicy, before: int) -> None:
    """What was under way when it was relieved goes out whole, and then what is kept."""
    async with way(policy) as w:
        w.block()
        under_way = len(w.sent)
        for n in range(before):
            w.send(n % 5, n, by=n % 2)
        w.outlet.relieve("it is stuck")
        for n in range(100):
            w.send(n % 7, n, by=n % 2)
            w.ledger.audit()
        if policy is not StuckPolicy.SPILL:  # a few wait until there are more to spill
            assert [account.debt_items for account in w.accounts] == [0, 0]
        received = await w.take_all()
        assert received == w.sent[:under_way] + kept(policy, w.sent[under_way:])
        w.check_lost(received)


@pytest.mark.parametrize("policy", DROPS)
async def test_a_frame_larger_than_the_limit_is_kept_whole(policy: StuckPolicy) -> None:
    async with way(policy, retain_limit=Limit(items=KEEP, bytes=1_000)) as w:
        w.block()
        under_way = len(w.sent)
        w.outlet.relieve("it is stuck")
        for _ in range(3):
            w.send(size=5_000)
        received = await w.take_all()
        w.check_lost(received)
        assert len(received) == under_way + 1


@pytest.mark.parametrize("policy", RELIEVES)
async def test_an_empty_frame_is_a_frame(policy: StuckPolicy) -> None:
    async with way(policy) as w:
        w.block()
        w.outlet.relieve("it is stuck")
        for n in range(2 * KEEP):
            w.send(n % 2)
            with w.accounts[0].turn(items=1, nbytes=0) as turn:
                turn.send(w.outlet, b"", nbytes=0)
            w.ledger.audit()
        lost = len(w.sent) - len(await w.take_all())
        assert lost <= w.outlet.relief.dropped_items <= lost + 2 * KEEP


@pytest.mark.parametrize("policy", RELIEVES)
async def test_a_batch_is_kept_or_dropped_as_a_whole(policy: StuckPolicy) -> None:
    """Also one that was there before, with whatever was joined with it."""
    async with way(policy) as w:
        w.block()
        under_way = len(w.sent)
        w.send(3)
        w.send_batch(5)
        w.send(3)
        w.outlet.relieve("it is stuck")
        batches: list[list[Reading]] = []
        for _ in range(6):
            w.send_batch(5)
            batches.append(w.sent[-5:])
            w.send(3)
            w.ledger.audit()
        received = await w.take_all()
        w.check_lost(received)
        assert received[:under_way] == w.sent[:under_way]
        for batch in batches:
            assert sum(event in received for event in batch) in (0, 5)
        if policy in (StuckPolicy.DROP_NEWEST, StuckPolicy.SPILL):
            assert received[under_way : under_way + 7] == w.sent[under_way : under_way + 7]


async def test_nothing_replaces_a_batch() -> None:
    """Its frames have several keys."""
    async with way(StuckPolicy.CONFLATE) as w:
        w.block()
        w.send_batch(3)
        w.outlet.relieve("it is stuck")
        w.send_batch(3)
        batches = w.sent[-6:]
        for n in range(9):
            w.send(n % 3)
        assert (await w.take_all())[-9:] == batches + w.sent[-3:]


@pytest.mark.parametrize("wrong", [b"", bytearray(b"not hashable")])
async def test_a_frame_whose_key_fails_is_its_own_key(
    wrong: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    def key(found: bytes) -> bytes:
        if found[4] == 1:
            return wrong or bytes([found[1_000]])  # there is none
        return sensor_of(found)

    async with way(StuckPolicy.CONFLATE, key=key) as w:
        w.block()
        w.outlet.relieve("it is stuck")
        for n in range(6):
            w.send(n % 2)
        assert (await w.take_all())[-4:] == [w.sent[n] for n in (-5, -3, -2, -1)]
        assert sum("the key function" in record.getMessage() for record in caplog.records) == 3


async def test_without_a_key_it_cannot_conflate() -> None:
    async with way(StuckPolicy.WAIT) as w:
        with pytest.raises(UnfitPolicyError, match=r"outlet P cannot conflate .* needs a key="):
            Outlet(
                w.ledger, w.flusher, w.peer, "P", on_broken=w.broken.append,
                policy=StuckPolicy.CONFLATE,
            )  # fmt: skip


async def test_a_policy_that_it_cannot_have_changes_nothing() -> None:
    async with way(StuckPolicy.WAIT) as w:
        with pytest.raises(UnfitPolicyError, match="cannot conflate"):
            w.outlet.policy = StuckPolicy.CONFLATE
        assert w.outlet.policy is StuckPolicy.WAIT


@pytest.mark.parametrize("policy", DROPS)
async def test_all_backlogs_together_are_bounded(policy: StuckPolicy) -> None:
    async with way(policy) as w:
        limit = Limit(items=None, bytes=20_000)
        with w.ledger.open(LAGGING, limit=limit, at_rest="ram") as above:
            w.block()
            w.outlet.relieve("it is stuck")
            begun = above.debt_bytes
            for n in range(40):
                w.send(n, 3_000)
                assert above.debt_bytes <= max(20_000, begun) + 3_000 + HEAD.size
            w.check_lost(await w.take_all())


# -- spilling -------------------------------------------------------------------------------------


async def test_what_is_spilled_is_bounded(autojump_clock: trio.testing.MockClock) -> None:
    """Publishers wait where there is no more room, and go on as the peer reads."""
    del autojump_clock
    async with way(StuckPolicy.SPILL) as w, trio.open_nursery() as nursery:
        account = w.accounts[0]

        async def publish() -> None:
            while len(w.sent) < 3_000:
                await account.ensure_clear_funds()
                w.send(size=1_000)

        nursery.start_soon(watch_patience, w.ledger)
        async with trio.open_nursery() as publishing:
            publishing.start_soon(publish)
            await trio.sleep(3 * PATIENCE)
            assert w.outlet.full_patience == DEFAULT_PATIENCE
            assert account.waiting
            assert len(w.sent) > 900
            assert w.ledger.accounts["behind/O"].debt_bytes <= 1 << 20
            w.ledger.audit()
            while len(w.sent) < 3_000:
                w.take()
                await trio.sleep(0.01)
        received = await w.take_all()
        assert received == w.sent
        w.check_lost(received)
        assert not w.broken
        nursery.cancel_scope.cancel()


async def test_a_peer_that_never_reads_is_disconnected_when_all_is_used_up(
    autojump_clock: trio.testing.MockClock,
) -> None:
    del autojump_clock
    async with way(StuckPolicy.SPILL) as w, trio.open_nursery() as nursery:
        nursery.start_soon(watch_patience, w.ledger)
        began = trio.current_time()
        await w.accounts[0].ensure_clear_funds()
        while not w.broken:
            w.send(size=1_000)
            await w.accounts[0].ensure_clear_funds()
        assert PATIENCE + DEFAULT_PATIENCE <= trio.current_time() - began < 2 * DEFAULT_PATIENCE
        assert "patience 20 s" in w.broken[0]
        assert w.outlet.closed
        assert w.ledger.repaid_items[Outcome.WRITTEN_OFF]
        assert not w.ledger.repaid_items[Outcome.DROPPED]
        nursery.cancel_scope.cancel()


async def test_two_of_one_name_have_a_bound_each() -> None:
    async with way(StuckPolicy.SPILL) as w:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        with ours, theirs:
            other = Outlet(
                w.ledger, w.flusher, ours, "O", on_broken=w.broken.append,
                policy=StuckPolicy.SPILL,
            )  # fmt: skip
            for outlet in (w.outlet, other):
                while not outlet.blocked:
                    with w.accounts[0].turn(items=1, nbytes=JOIN_BYTES) as turn:
                        turn.send(outlet, bytes(JOIN_BYTES), nbytes=JOIN_BYTES)
                for _ in range(3):
                    with w.accounts[0].turn(items=1, nbytes=JOIN_BYTES) as turn:
                        turn.send(outlet, bytes(JOIN_BYTES), nbytes=JOIN_BYTES)
                outlet.relieve("it is stuck")
            await until(lambda: not w.accounts[0].debt_items)
            behind = [a for a in w.ledger.accounts.values() if a.name.startswith("behind/O")]
            assert [account.debt_items for account in behind] == [3, 3]
            w.ledger.audit()
            other.close()


# -- whatever happens -----------------------------------------------------------------------------


@pytest.mark.parametrize("policy", RELIEVES)
async def test_closing_while_it_is_behind_settles_everything(policy: StuckPolicy) -> None:
    async with way(policy) as w:
        w.block()
        w.outlet.relieve("it is stuck")
        for n in range(50):
            w.send(n % 3)
        await trio.testing.wait_all_tasks_blocked()
        w.outlet.close()
        assert not w.outlet.lagging
        w.send()
        assert not any(account.debt_items for account in w.ledger.accounts.values())


@pytest.mark.parametrize("policy", RELIEVES)
async def test_a_trace_follows_into_the_backlog(policy: StuckPolicy) -> None:
    async with way(policy) as w:
        w.block()
        with Tracer(w.ledger, "b".__eq__, events=60) as tracer:
            for n in range(60):
                if n == 30:
                    w.outlet.relieve("it is stuck")
                w.send(n % 3, by=1)
            w.check_lost(await w.take_all())
            traces = tracer.rest()
        assert len(traces) == 60
        assert all(trace.complete for trace in traces)


STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.just("send"), st.integers(0, 3), st.integers(0, 5_000), st.integers(0, 1)
        ),
        st.tuples(st.just("many"), st.integers(1, 40), st.integers(0, 200), st.integers(0, 1)),
        st.tuples(st.just("batch"), st.integers(1, 30), st.integers(0, 1)),
        st.tuples(st.just("take"), st.integers(1, 20_000)),
        st.tuples(st.just("relieve")),
        st.tuples(st.just("yield")),
    ),
    min_size=5, max_size=60,
)  # fmt: skip


@given(
    steps=STEPS,
    policy=st.sampled_from(RELIEVES),
    fair=st.booleans(),
    takes=st.lists(st.integers(0, 5_000), max_size=30),
    seed=st.integers(0, 99),
)
@settings(max_examples=80, deadline=None)
async def test_whatever_happens_frames_are_whole_and_gaps_are_counted(
    steps: list[tuple[Any, ...]], policy: StuckPolicy, fair: bool, takes: list[int], seed: int
) -> None:
    """One publisher's come in order; a fair outlet keeps no other order."""
    async with way(policy, fair=fair, takes=takes) as w:
        w.block()
        rand = random.Random(seed)
        by_of: dict[int, int] = {}
        for step in steps:
            before = len(w.sent)
            by = 0
            match step:
                case ("send", sensor, size, by):
                    w.send(sensor, size, by)
                case ("many", count, size, by):
                    for _ in range(count):
                        w.send(rand.randrange(4), rand.randrange(size + 1), by)
                case ("batch", count, by):
                    w.send_batch(count, by)
                case ("take", most):
                    w.take(most)
                case ("relieve",):
                    if w.outlet.blocked and w.outlet.policy.relieves:
                        w.outlet.relieve("it is stuck")
                case _:
                    await trio.lowlevel.checkpoint()
            by_of.update(dict.fromkeys(range(before, len(w.sent)), by))
            w.ledger.audit()
        received = await w.take_all()
        w.ledger.audit()
        assert len(received) + w.outlet.relief.dropped_items == len(w.sent)
        assert set(received) <= set(w.sent)
        for by in (0, 1):
            numbers = [event.number for event in received if by_of.get(event.number, 0) == by]
            assert numbers == sorted(set(numbers))
        if policy is StuckPolicy.SPILL:
            assert len(received) == len(w.sent)
        if not fair:
            w.check_lost(received)
