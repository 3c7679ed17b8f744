"""Debt over hops: relays in one process, and a network that loses, repeats and reorders."""

from __future__ import annotations

from random import Random

import pytest
import trio
from trio.testing import MockClock

from clearfunds.accounts import Limit, StuckPolicy, watch_patience
from clearfunds.dataspace import TopicFilter
from clearfunds.dataspace.hops import Hop, Landing, Receipt, Shipment
from tests.simulator.relays import Network, Relay, World, open_world


def fine() -> Network:
    return Network(Random(1), slowest=0.0)


@pytest.mark.rule(7, 15)
async def test_what_goes_to_another_relay_is_owed_for_until_it_has_ended_there(
    autojump_clock: MockClock,
) -> None:
    async with open_world(fine()) as world:
        nursery = world.nursery
        here, there = world.relays
        box = there.subscribe("archive", "news/#")
        await here.publish("newsroom", "news/a", 10)
        await trio.sleep(1)
        assert here.owed("newsroom") == {"r1/archive": 10}
        assert there.owed("via/r0/newsroom") == {"archive": 10}
        world.audit()
        nursery.start_soon(there.read, box, lambda: 0.0)
        await world.quiet()
        assert there.got["archive"] == [("newsroom", number) for number in range(10)]
        assert not here.owed("newsroom")


@pytest.mark.rule(2, 5)
async def test_a_publisher_waits_for_a_subscriber_of_another_relay_and_the_others_go_on(
    autojump_clock: MockClock,
) -> None:
    async with open_world(fine()) as world:
        nursery = world.nursery
        here, there = world.relays
        there.subscribe("stuck", "news/#")
        fast = there.subscribe("fast", "sport/#")
        nursery.start_soon(there.read, fast, lambda: 0.0)
        nursery.start_soon(here.publish, "newsroom", "news/a", 1000)
        await trio.sleep(2)
        owed = here.owed("newsroom")
        assert set(owed) == {"r1/stuck"}
        assert owed["r1/stuck"] == 101  # its limit, and one more
        (waiter,) = here.ledger.waiters
        assert waiter.account.name == "newsroom"
        with trio.fail_after(30):
            await here.publish("sports", "sport/a", 1000)
        await trio.sleep(1)
        assert len(there.got["fast"]) == 1000


@pytest.mark.rule(11)
async def test_the_patience_of_a_holder_there_goes_on_while_a_reader_waits_here(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_world(fine()) as world:
        nursery = world.nursery
        here, there = world.relays
        there.subscribe("stuck", "news/#", patience=5.0, policy=StuckPolicy.DROP_OLDEST)
        nursery.start_soon(watch_patience, there.ledger)
        nursery.start_soon(watch_patience, here.ledger)
        with trio.fail_after(60):
            await here.publish("newsroom", "news/a", 1000)
        assert "stuck" in caplog.text
        assert "via/r0/newsroom" in caplog.text


@pytest.mark.rule(11)
async def test_a_relay_that_is_cut_off_is_named_and_given_up_after_its_patience(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_world(Network(Random(1), lost=1.0)) as world:
        nursery = world.nursery
        here, _ = world.relays
        nursery.start_soon(watch_patience, here.ledger)
        with trio.fail_after(100):
            await here.publish("newsroom", "news/a", 1000)
        assert "hop r1" in caplog.text


@pytest.mark.rule(11)
async def test_a_ring_over_two_relays_is_found_and_opened(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Each reads only when it may publish, and publishes for what the other does not read."""
    async with open_world(fine()) as world:
        nursery = world.nursery
        here, there = world.relays
        one = here.subscribe("one", "for/one", patience=3.0)
        two = there.subscribe("two", "for/two", patience=3.0)
        nursery.start_soon(here.publish, "one", "for/two", 500)
        nursery.start_soon(there.publish, "two", "for/one", 500)
        nursery.start_soon(watch_patience, here.ledger)
        nursery.start_soon(watch_patience, there.ledger)
        await trio.sleep(60)
        assert not here.ledger.waiters or one.closed or two.closed
        assert one.closed or two.closed
        assert "in a ring: one waits on remote r1/two" in caplog.text


async def test_a_relay_that_receives_and_restarts_has_lost_what_had_come_and_gets_the_rest(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_world(fine()) as world:
        here, there = world.relays
        box = there.subscribe("slow", "news/#")
        world.nursery.start_soon(here.publish, "newsroom", "news/a", 150)
        await trio.sleep(5)
        assert here.owed("newsroom") == {"r1/slow": 101}
        # Here what had come stays in its books, as if others had caused it.
        there.landings["r0"].close()
        there.landings["r0"] = Landing(there.ledger, there.dataspace, there.open_via("r0"), "r1-2")
        await trio.sleep(5)
        assert "relay r1 has restarted: 101 items that it had received" in caplog.text
        assert here.ledger.statistics().repaid_items["written_off"] == 101
        world.nursery.start_soon(there.read, box, lambda: 0.0)
        await world.quiet()
        assert [number for _, number in there.got["slow"]] == list(range(150))


async def test_a_relay_that_sends_and_restarts_begins_anew(autojump_clock: MockClock) -> None:
    async with open_world(fine()) as world:
        here, there = world.relays
        box = there.subscribe("slow", "news/#")
        await here.publish("newsroom", "news/a", 50)
        await trio.sleep(1)
        here.hops["r1"].close()
        again = here.hops["r1"] = Hop(here.ledger, "r1", "r0-2")
        here.stack.enter_context(here.dataspace.observed(here.server, TopicFilter("#"), again))
        await trio.sleep(1)
        await here.publish("sports", "news/b", 50)
        await trio.sleep(1)
        assert here.owed("sports") == {"r1/slow": 50}
        assert there.owed("via/r0/newsroom") == {"slow": 50}
        world.nursery.start_soon(there.read, box, lambda: 0.0)
        await world.quiet()
        assert there.got["slow"] == [
            (origin, number) for origin in ("newsroom", "sports") for number in range(50)
        ]


@pytest.mark.rule(8)
@pytest.mark.parametrize(
    "seed", [*range(15), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(15, 300))]
)
def test_over_a_bad_network_all_comes_once_in_order_and_the_books_balance(seed: int) -> None:
    chance = Random(seed)
    network = Network(
        chance, lost=chance.random() * 0.4, repeated=chance.random() * 0.3, slowest=chance.random()
    )

    async def main() -> None:
        limit = Limit(items=chance.randint(5, 60), bytes=None)
        async with open_world(network, chance.randint(2, 5), limit) as world:
            nursery = world.nursery
            publishers: dict[str, tuple[Relay, str, int]] = {}
            for relay in world.relays:
                for number in range(chance.randint(0, 2)):
                    name = f"{relay.name}-p{number}"
                    publishers[name] = relay, f"t/{chance.randint(0, 2)}", chance.randint(1, 120)
                for number in range(chance.randint(0, 2)):
                    what = chance.choice(["t/#", "t/0", "t/1", "t/+"])
                    box = relay.subscribe(f"{relay.name}-s{number} {what}", what)
                    slow = chance.random() * 0.05
                    nursery.start_soon(relay.read, box, lambda slow=slow: chance.random() * slow)
            async with trio.open_nursery() as publishing:
                for name, (relay, topic, count) in publishers.items():
                    publishing.start_soon(relay.publish, name, topic, count)
                publishing.start_soon(audit_often, world, publishing.cancel_scope)
            await world.quiet()
            for relay in world.relays:
                for subscriber, got in relay.got.items():
                    what = subscriber.partition(" ")[2]
                    for name, (_, topic, count) in publishers.items():
                        if what in ("t/#", "t/+", topic):
                            mine = [number for origin, number in got if origin == name]
                            assert mine == list(range(count)), (subscriber, name)

    trio.run(main, clock=MockClock(autojump_threshold=0))


async def audit_often(world: World, scope: trio.CancelScope) -> None:
    """Audit now and then, until all publishers are done and this is cancelled."""
    for _ in range(50):
        await trio.sleep(0.2)
        world.audit()


def test_receipts_of_an_earlier_life_are_ignored() -> None:
    relay = Relay("r0", Limit(items=10, bytes=None), lambda: 0.0)
    hop = Hop(relay.ledger, "r1", "second")
    with relay.ledger.open("a") as account, account.turn() as turn:
        turn.send(hop, "event")
    shipment = hop.shipment()
    assert isinstance(shipment, Shipment)
    assert len(hop) == 1
    hop.receipt(Receipt("first", "x", 9, 2, ((1, 1),)))
    assert len(hop) == 1
    hop.receipt(Receipt("second", "x", 1, 2, ((1, 1),)))
    assert len(hop) == 0
    relay.audit()
