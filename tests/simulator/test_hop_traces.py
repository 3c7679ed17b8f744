"""Traces over hops: what other relays did with a publication, as one tree."""

from __future__ import annotations

from random import Random

import pytest
import trio
from trio.testing import MockClock

from clearfunds.accounts import Outcome, StuckPolicy, Trace, TracedLoan, TracedThere, Tracer
from clearfunds.accounts.trace._trace_notes import MAX_CROSSINGS, MAX_DEPTH
from clearfunds.dataspace import Mailbox, Publication
from clearfunds.dataspace.hops import Parcel, Shipment
from clearfunds.dataspace.hops._landed_traces import FOLLOWED, MAX_TRACES, SHOWN
from tests.simulator.relays import Network, Relay, World, open_world


def fine() -> Network:
    return Network(Random(1), slowest=0.0)


def only(trace: Trace) -> TracedLoan:
    (loan,) = trace.root.loans
    return loan


def there(loan: TracedLoan) -> TracedThere:
    (found,) = loan.there
    return found


async def trace_of(relay: Relay, account: str, topic: str, seconds: float = 30) -> Trace:
    """Publish once, and return the trace of it so far."""
    with Tracer(relay.ledger, account.__eq__) as tracer:
        await relay.publish(account, topic, 1)
        with trio.move_on_after(seconds):
            return await tracer.next()
        (trace,) = tracer.rest()
        return trace


async def test_a_trace_shows_what_the_other_relay_did_by_its_own_clock(
    autojump_clock: MockClock,
) -> None:
    async with open_world(fine()) as world:
        here, elsewhere = world.relays
        elsewhere.ledger.clock = lambda: trio.current_time() + 5000
        box = elsewhere.subscribe("archive", "news/#")
        world.nursery.start_soon(elsewhere.read, box, lambda: 2.0)
        trace = await trace_of(here, "newsroom", "news/a")
        assert trace.complete
        loan = only(trace)
        assert (loan.holder, loan.kind) == ("r1", "hop")
        crossed = there(loan)
        assert crossed.relay == "r1"
        assert crossed.trace is not None
        part = crossed.trace
        assert part.complete
        assert part.account == "via/r0/newsroom"
        assert 2.0 <= part.seconds < 2.1
        assert part.root.labels == ("news/a",)
        delivery = only(part)
        assert (delivery.holder, delivery.kind) == ("archive", "mailbox")
        assert delivery.outcomes() == {Outcome.DELIVERED: 1}
        assert delivery.ended == part.seconds
        assert crossed.answered is not None
        assert crossed.answered <= trace.seconds
        assert crossed.on_the_way == pytest.approx(crossed.answered - crossed.sent - part.seconds)
        assert crossed.on_the_way is not None
        assert 0 <= crossed.on_the_way < 0.2
        assert not here.ledger.traces
        assert not elsewhere.ledger.traces
        await world.quiet()
        await trio.sleep(1)
        assert not world.relays[1].landings["r0"]._traces  # pyright: ignore[reportPrivateUsage]


async def test_what_is_outstanding_there_is_named_with_its_holder(
    autojump_clock: MockClock,
) -> None:
    async with open_world(fine()) as world:
        here, elsewhere = world.relays
        elsewhere.subscribe("stuck", "news/#")
        trace = await trace_of(here, "newsroom", "news/a", 5)
        assert not trace.complete
        loan = only(trace)
        assert [move.holder for move in loan.moves] == ["r1/stuck"]
        crossed = there(loan)
        assert crossed.trace is not None
        assert not crossed.trace.complete
        assert crossed.trace.seconds > 4  # the latest receipt's
        (held,) = only(crossed.trace).held
        assert (held.holder, held.items) == ("stuck", 1)
        assert held.idle_seconds is not None
        assert held.idle_seconds > 4
        assert not here.ledger.traces
        await trio.sleep(1)
        assert not here.hops["r1"]._crossings  # pyright: ignore[reportPrivateUsage]


async def test_a_parcel_that_waits_for_clear_funds_there_shows_that_wait(
    autojump_clock: MockClock,
) -> None:
    async with open_world(fine()) as world:
        here, elsewhere = world.relays
        slow = elsewhere.subscribe("slow", "news/#")
        await here.publish("newsroom", "news/a", 30)
        await trio.sleep(1)
        account = elsewhere.ledger.accounts["via/r0/newsroom"]
        account.limit = type(account.limit)(items=10, bytes=None)
        async with trio.open_nursery() as nursery:

            async def read_later() -> None:
                await trio.sleep(3)
                world.nursery.start_soon(elsewhere.read, slow, lambda: 0.0)

            nursery.start_soon(read_later)
            trace = await trace_of(here, "newsroom", "news/a")
        crossed = there(only(trace))
        assert crossed.trace is not None
        (wait,) = crossed.trace.waits
        assert wait.until is not None
        assert 2.5 < wait.until - wait.since < 3.5
        assert set(wait.blame) == {"slow"}
        assert crossed.trace.root.opened == pytest.approx(wait.until, abs=0.1)


async def answer(relay: Relay, box: Mailbox[Publication], topic: str) -> None:
    """Answer each publication with another one."""
    while True:
        loan = await box.receive()
        with loan as events:
            for event in events:
                with loan.turn() as turn:
                    turn.publish(relay.dataspace, Publication(topic, event.payload), nbytes=100)


async def test_causes_are_followed_over_three_relays(autojump_clock: MockClock) -> None:
    async with open_world(fine(), relays=3) as world:
        here, second, third = world.relays
        question = second.subscribe("service", "question")
        box = third.subscribe("archive", "answer")
        world.nursery.start_soon(answer, second, question, "answer")
        world.nursery.start_soon(third.read, box, lambda: 1.0)
        trace = await trace_of(here, "asker", "question")
        by_relay = {there(loan).relay: there(loan).trace for loan in trace.root.loans}
        assert by_relay.keys() == {"r1", "r2"}
        nobody = by_relay["r2"]
        assert nobody is not None
        assert nobody.complete
        assert not nobody.root.loans
        part = by_relay["r1"]
        assert part is not None
        (caused,) = only(part).turns
        crossed = {loan.holder: there(loan) for loan in caused.loans}["r2"]
        assert crossed.trace is not None
        assert crossed.trace.complete
        assert crossed.trace.account == "via/r1/via/r0/asker"
        assert only(crossed.trace).holder == "archive"
        assert part.seconds >= crossed.trace.seconds >= 1


async def test_a_question_that_goes_round_is_followed_for_as_many_steps_as_on_one_relay(
    autojump_clock: MockClock,
) -> None:
    async with open_world(fine()) as world:
        here, elsewhere = world.relays
        ping = elsewhere.subscribe("ping", "ping")
        pong = here.subscribe("pong", "pong")
        world.nursery.start_soon(answer, elsewhere, ping, "pong")
        world.nursery.start_soon(answer, here, pong, "ping")
        trace = await trace_of(here, "asker", "ping", 60)
        depth = 0
        each: Trace | None = trace
        while each is not None:
            depth += 1
            loans = [loan for turn in each.turns() for loan in turn.loans if loan.there]
            each = loans[0].there[0].trace if loans else None
        assert 20 < depth <= MAX_DEPTH
        world.nursery.cancel_scope.cancel()


async def test_a_trace_of_very_many_messages_follows_some_and_counts_the_others(
    autojump_clock: MockClock,
) -> None:
    async with open_world(fine()) as world:
        here, elsewhere = world.relays
        box = elsewhere.subscribe("archive", "news/#")
        world.nursery.start_soon(elsewhere.read, box, lambda: 0.0)
        with Tracer(here.ledger, "newsroom".__eq__) as tracer:
            with here.ledger.open("newsroom") as account, account.turn() as turn:
                for number in range(50):
                    turn.publish(here.dataspace, Publication("news/a", b"p %d" % number))
            trace = await tracer.next()
        loan = only(trace)
        assert len(loan.there) == MAX_CROSSINGS
        assert loan.more_there == 50 - MAX_CROSSINGS
        assert all(each.trace is not None and each.trace.complete for each in loan.there)


def shipment(world: World, numbers: range, steps: int) -> Shipment:
    """Return a shipment of traced parcels from the first relay to the second."""
    here, elsewhere = world.relays
    hop = here.hops["r1"]
    life = elsewhere.landings["r0"].receipt().life
    parcels = [
        Parcel(n, "newsroom", (), (Publication("t", b"p 0"),), 1, 10, steps=steps) for n in numbers
    ]
    return Shipment(hop.epoch, 1, life, 1, 1, tuple(parcels))


async def test_a_relay_follows_so_many_parcels_of_another_one_and_publishes_all(
    autojump_clock: MockClock,
) -> None:
    async with open_world(Network(Random(1), lost=1.0)) as world:
        world.gave_up = True
        elsewhere = world.relays[1]
        box = elsewhere.subscribe("box", "t")
        landing = elsewhere.landings["r0"]
        landing.accept(shipment(world, range(1, 2 * MAX_TRACES + 1), MAX_DEPTH))
        receipt = landing.receipt()
        assert [number for number, _ in receipt.traces] == list(range(1, MAX_TRACES + 1))
        assert sum(loan.items for loan in box.loans()) == 2 * MAX_TRACES
        box.settle_all(Outcome.DROPPED)
        fresh = landing.receipt(full=False)
        assert len(fresh.traces) == MAX_TRACES
        assert all(trace.complete for _, trace in fresh.traces)
        assert fresh.traces[0][1].outcomes == {Outcome.DROPPED: 1}
        # They come again until the other relay knows, or others need the room.
        assert len(landing.receipt().traces) == MAX_TRACES
        more = range(2 * MAX_TRACES + 1, 2 * MAX_TRACES + 3)
        landing.accept(shipment(world, more, 1 << 40))
        assert [number for number, _ in landing.receipt().traces][-2:] == list(more)
        landing.close()
        assert not landing.receipt().traces
        assert not elsewhere.ledger.traces
        box.settle_all(Outcome.DROPPED)


async def test_the_part_of_a_large_fan_out_is_bounded(autojump_clock: MockClock) -> None:
    async with open_world(fine()) as world:
        here, elsewhere = world.relays
        for number in range(2 * FOLLOWED):
            box = elsewhere.subscribe(f"box {number}", "news/#")
            world.nursery.start_soon(elsewhere.read, box, lambda: 0.0)
        trace = await trace_of(here, "newsroom", "news/a")
        part = there(only(trace)).trace
        assert part is not None
        assert len(part.root.loans) == SHOWN
        assert part.not_shown.loans == FOLLOWED - SHOWN
        assert part.not_followed.loans == FOLLOWED


async def test_a_relay_traces_what_comes_from_another_one_when_it_is_asked_itself(
    autojump_clock: MockClock,
) -> None:
    async with open_world(fine()) as world:
        here, elsewhere = world.relays
        box = elsewhere.subscribe("archive", "news/#")
        world.nursery.start_soon(elsewhere.read, box, lambda: 1.0)
        await here.publish("newsroom", "news/a", 1)
        await world.quiet()
        with Tracer(elsewhere.ledger, "via/r0/newsroom".__eq__) as tracer:
            both = await trace_of(here, "newsroom", "news/b")
            trace = await tracer.next()
        assert trace.complete
        assert only(trace).holder == "archive"
        part = there(only(both)).trace
        assert part is not None
        assert part.root == trace.root
        with Tracer(elsewhere.ledger, "via/r0/newsroom".__eq__) as tracer:
            await here.publish("newsroom", "news/a", 1)
            assert (await tracer.next()).root.labels == ("news/a",)


@pytest.mark.parametrize(
    "seed", [*range(2), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 20))]
)
def test_over_a_bad_network_traces_change_no_books_and_say_what_is_known(seed: int) -> None:
    chance = Random(seed)
    network = Network(chance, lost=0.2, repeated=0.2, slowest=0.5)
    traces: list[Trace] = []

    async def main() -> None:
        async with open_world(network, relays=3) as world:
            here, second, third = world.relays
            question = second.subscribe("service", "question")
            box = third.subscribe("archive", "answer")
            third.subscribe("stuck", "question", patience=3.0, policy=StuckPolicy.DROP_OLDEST)
            world.nursery.start_soon(answer, second, question, "answer")
            world.nursery.start_soon(third.read, box, lambda: chance.random() / 10)
            with Tracer(here.ledger, "asker".__eq__, events=15) as tracer:
                await here.publish("asker", "question", 40, lambda: chance.random() / 5)
                await trio.sleep(30)
                world.audit()
                while True:
                    with trio.move_on_after(1) as scope:
                        traces.append(await tracer.next())
                    if scope.cancelled_caught:
                        break
                traces.extend(tracer.rest())
            assert not here.ledger.traces
            await trio.sleep(5)
            assert not here.hops["r1"]._crossings  # pyright: ignore[reportPrivateUsage]

    trio.run(main, clock=MockClock(autojump_threshold=0))
    assert len(traces) == 15
    parts = [each for trace in traces for loan in trace.loans() for each in loan.there]
    assert all(each.trace is not None for each in parts)
    ended = [each for each in parts if each.relay == "r1"]
    assert all(each.trace is not None and each.trace.complete for each in ended)
