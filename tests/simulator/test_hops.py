"""Debt over hops: relays in one process, and a network that loses, repeats and reorders."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from random import Random

import attrs
import pytest
import trio
from trio.testing import MockClock

from clearfunds.accounts import (
    Account,
    Confirm,
    CountedConfirm,
    Ledger,
    Limit,
    Outcome,
    StuckPolicy,
    watch_patience,
)
from clearfunds.dataspace import GivenUpError, Mailbox, Publication, TopicFilter
from clearfunds.dataspace.hops import (
    Held,
    Hop,
    Landing,
    Parcel,
    Receipt,
    Shipment,
    share_of_window,
)
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

    async def read(relay: Relay, box: Mailbox[Publication]) -> None:
        account = relay.ledger.accounts[box.name]
        with suppress(GivenUpError):
            while True:
                await account.ensure_clear_funds()
                await relay.take(box)

    async with open_world(fine()) as world:
        nursery = world.nursery
        here, there = world.relays
        one = here.subscribe("one", "for/one", patience=3.0)
        two = there.subscribe("two", "for/two", patience=3.0)
        nursery.start_soon(here.publish, "one", "for/two", 500)
        nursery.start_soon(there.publish, "two", "for/one", 500)
        await trio.sleep(2)
        assert {each.account.name for each in here.ledger.waiters} >= {"one"}
        assert {each.account.name for each in there.ledger.waiters} >= {"two"}
        nursery.start_soon(read, here, one)
        nursery.start_soon(read, there, two)
        nursery.start_soon(watch_patience, here.ledger)
        nursery.start_soon(watch_patience, there.ledger)
        await trio.sleep(60)
        assert one.closed  # on the relay whose name comes first, and on that one alone
        assert not two.closed
        assert "in a ring: one waits on remote r1/two" in caplog.text
        assert [number for _, number in there.got["two"]] == list(range(500))


async def test_a_relay_that_receives_and_restarts_has_lost_what_had_come_and_gets_the_rest(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_world(fine()) as world:
        here, there = world.relays
        box = there.subscribe("slow", "news/#")
        world.nursery.start_soon(here.publish, "newsroom", "news/a", 150)
        await trio.sleep(5)
        assert here.owed("newsroom") == {"r1/slow": 101}
        world.restart_landing(here, there)
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
        world.restart_hop(here, there)
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
    "seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(4, 300))]
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


def filled(hop: Hop, relay: Relay, *names: str, events: int = 1) -> None:
    """Send events of these accounts to a hop."""
    for name in names:
        account = relay.ledger.open(name)
        for number in range(events):
            with account.turn() as turn:
                turn.send(hop, Publication("t", b"%d" % number))


def greeted(hop: Hop, life: int = 1) -> Hop:
    """Return a hop that knows a landing's life."""
    hop.receipt(Receipt(hop.epoch, life, 1, 0))
    return hop


@contextmanager
def alone(clock: Callable[[], float] = lambda: 0.0) -> Generator[Relay, None, None]:
    """Open a relay without a network, and audit its books at the end."""
    relay = Relay("r0", Limit(items=10, bytes=None), clock)
    try:
        yield relay
        relay.audit()
    finally:
        relay.stack.close()


def test_receipts_for_another_epoch_and_of_an_earlier_life_are_ignored() -> None:
    with alone() as relay:
        hop = greeted(Hop(relay.ledger, "r1", 2), life=5)
        filled(hop, relay, "a")
        assert len(hop.shipment().parcels) == 1
        hop.receipt(Receipt(1, 9, 9, 2, ((1, 1),)))
        hop.receipt(Receipt(3, 9, 9, 2, ((1, 1),)))
        hop.receipt(Receipt(2, 4, 9, 2, ((1, 1),)))
        assert len(hop) == 1
        hop.receipt(Receipt(2, 5, 1, 2, ((1, 1),)))
        assert len(hop) == 0
        relay.audit()


def test_nothing_is_sent_before_the_landing_has_answered() -> None:
    with alone() as relay:
        hop = Hop(relay.ledger, "r1", 1)
        filled(hop, relay, "a")
        assert hop.shipment().parcels == ()
        (parcel,) = greeted(hop).shipment().parcels
        assert (parcel.number, parcel.origin, parcel.items) == (1, "a", 1)


def test_a_landing_ignores_shipments_of_an_earlier_hop_and_for_an_earlier_landing() -> None:
    with alone() as relay:
        landing = Landing(relay.ledger, relay.dataspace, relay.open_via("r0"), 7)
        box = relay.subscribe("box", "#")
        parcel = Parcel(1, "a", (), (Publication("t", b"x"),), 1, 1)
        landing.accept(Shipment(3, 1, 7, 1, 1, (parcel,)))
        for epoch, life in [(2, 7), (3, 6), (1, 1)]:
            landing.accept(Shipment(epoch, 9, life, 2, 2, (attrs.evolve(parcel, number=2),)))
        assert len(list(box.loans())) == 1
        assert landing.receipt().epoch == 3
        assert landing.receipt().received == 2


def test_a_loan_of_many_events_goes_in_parcels_that_each_take_one_short_step() -> None:
    with alone() as relay:
        hop = greeted(Hop(relay.ledger, "r1", 1))
        filled(hop, relay, "a", events=300)
        assert [parcel.items for parcel in hop.shipment().parcels] == [128, 128, 44]
        relay.audit()
        hop.close()
        relay.audit()


def test_the_window_bounds_what_was_sent_and_not_received_and_may_change() -> None:
    with alone() as relay:
        woken: list[None] = []
        hop = greeted(Hop(relay.ledger, "r1", 1, on_ready=lambda: woken.append(None)))
        hop.window = Limit(items=300, bytes=10_000_000)
        for name in "abcdefgh":
            filled(hop, relay, name, events=100)
        assert [parcel.origin for parcel in hop.shipment().parcels] == ["a", "b", "c"]
        assert hop.shipment().parcels == ()
        hop.receipt(Receipt(1, 1, 2, 2))
        assert [parcel.origin for parcel in hop.shipment().parcels] == ["d"]
        hop.window = Limit(items=100, bytes=10_000_000)
        hop.receipt(Receipt(1, 1, 3, 4))
        assert hop.shipment().parcels == ()
        hop.receipt(Receipt(1, 1, 4, 5))
        assert [parcel.origin for parcel in hop.shipment().parcels] == ["e"]
        woken.clear()
        hop.window = Limit(items=10_000, bytes=150)
        assert woken
        hop.receipt(Receipt(1, 1, 5, 6))
        # What is larger than the window goes alone.
        assert [parcel.origin for parcel in hop.shipment().parcels] == ["f"]
        assert hop.shipment().parcels == ()
        assert hop.unreceived_bytes == hop.out()[6].bytes > 150
        hop.close()
        relay.audit()


@pytest.mark.parametrize(
    ("senders", "items", "size"), [(1, 10_000, 8), (2, 10_000, 8), (16, 6_250, 1)]
)
def test_windows_to_one_relay_have_a_sum(senders: int, items: int, size: int) -> None:
    window = share_of_window(senders)
    assert (window.items, window.bytes) == (items, size << 20)
    assert share_of_window(1_000_000_000).marks()[:2] == (1, 1)


def test_what_was_sent_is_lost_when_something_later_has_come_and_not_before() -> None:
    with alone() as relay:
        hop = greeted(Hop(relay.ledger, "r1", 1))
        filled(hop, relay, "a")
        first = hop.shipment()
        filled(hop, relay, "b")
        second = hop.shipment()
        later = hop.hello()
        assert not hop.is_lost
        hop.receipt(Receipt(1, 1, 2, 1, seen=first.number - 1))
        assert not hop.is_lost
        hop.receipt(Receipt(1, 1, 3, 1, seen=later.number))
        assert hop.is_lost
        (again,) = hop.again()
        assert len(again.parcels) == 2
        assert not hop.is_lost
        hop.receipt(Receipt(1, 1, 4, 2, seen=later.number))  # late, and the first came after all
        assert not hop.is_lost
        hop.receipt(Receipt(1, 1, 5, 2, seen=second.number))  # overtaken
        assert not hop.is_lost
        hop.receipt(Receipt(1, 1, 6, 3, seen=again.number))
        assert not hop.is_lost
        assert not hop.unreceived_items
        filled(hop, relay, "c")
        last = hop.shipment()
        hop.receipt(Receipt(1, 2, 1, 3, seen=0))  # another life has seen nothing yet
        assert not hop.is_lost
        hop.receipt(Receipt(1, 2, 2, 3, seen=last.number))
        assert hop.is_lost
        hop.close()


@pytest.mark.rule(11)
def test_a_hop_that_is_given_up_keeps_what_the_other_relay_has_received() -> None:
    with alone() as relay:
        hop = greeted(Hop(relay.ledger, "r1", 1))
        filled(hop, relay, "a", "b")
        hop.shipment()
        hop.receipt(Receipt(1, 1, 2, 2, (), (Held(1, 1, "archive"),)))
        filled(hop, relay, "c")
        hop.give_up("it has not received anything")
        assert relay.owed("a") == {"r1/archive": 1}
        assert not relay.owed("b")
        assert not relay.owed("c")
        filled(hop, relay, "d")
        shipment = hop.shipment()
        assert shipment.first == 3  # the landing goes on there
        assert [parcel.number for parcel in shipment.parcels] == [3]
        relay.audit()


def test_a_trickle_is_no_progress_of_a_hop_that_is_cut_off() -> None:
    now = 0.0
    with alone(lambda: now) as relay:
        hop = greeted(Hop(relay.ledger, "r1", 1))
        for second in range(5):
            now = second
            filled(hop, relay, "a")
            assert len(hop.shipment().parcels) == 1
        assert hop.progressed_at == 0
        hop.receipt(Receipt(1, 1, 2, 2))
        assert hop.progressed_at == 4


@pytest.mark.rule(11)
def test_parcels_that_wait_for_clear_funds_are_held_by_what_is_in_their_way() -> None:
    with alone() as relay:
        landing = Landing(relay.ledger, relay.dataspace, relay.open_via("r0"), 1)
        relay.subscribe("archive", "t")
        full = relay.ledger.open("full", limit=Limit(items=1, bytes=None))
        full.borrow(5, 0)
        event = Publication("t", b"x")
        parcels = [Parcel(number, "a", (), (event,) * 11, 11, 11) for number in (1, 2)]
        landing.accept(Shipment(1, 1, 1, 1, 1, tuple(parcels)))
        assert landing.receipt().held == (Held(1, 2, "archive", "archive"),)
        other = Landing(
            relay.ledger,
            relay.dataspace,
            lambda name, above: relay.ledger.open(f"of/{name}", parent=full),
            1,
        )
        assert other.accept(Shipment(1, 1, 1, 1, 1, (parcels[0],))) == ["a"]
        assert other.receipt().held == (Held(1, 1, "(landing)"),)
        full.repay(5, 0)


@pytest.mark.rule(2)
def test_those_wait_whose_debt_there_is_in_the_way_of_a_reader_of_their_tenant() -> None:
    async def main() -> None:
        with alone(trio.current_time) as relay:
            hop = greeted(Hop(relay.ledger, "r1", 1))
            tenant = relay.ledger.open("tenant", limit=Limit(items=3, bytes=None))
            loud = relay.ledger.open("loud", parent=tenant)
            quiet = relay.ledger.open("quiet", parent=tenant)
            apart = relay.ledger.open("apart")
            for account, items in [(loud, 5), (apart, 1)]:
                with account.turn() as turn:
                    turn.send(hop, Publication("t", b"x"), items=items)
            assert len(hop.shipment().parcels) == 2
            assert hop.hello().waiting == frozenset()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(quiet.ensure_clear_funds)
                await trio.sleep(1)
                assert hop.hello().waiting == frozenset({"loud"})
                apart.halt("disk")
                nursery.start_soon(apart.ensure_clear_funds)
                await trio.sleep(1)
                assert hop.hello().waiting == frozenset({"loud"})
                nursery.cancel_scope.cancel()

    trio.run(main, clock=MockClock(autojump_threshold=0))


async def test_what_a_parcel_causes_may_go_to_other_relays_and_itself_may_not(
    autojump_clock: MockClock,
) -> None:
    async with open_world(fine(), 3) as world:
        here, there, third = world.relays
        box = there.subscribe("answerer", "question")
        answers = third.subscribe("asker", "answer")
        questions = third.subscribe("listener", "question")
        await here.publish("newsroom", "question", 1)
        loan = await box.receive()
        with loan, loan.turn() as turn:
            turn.publish(there.dataspace, Publication("answer", b"asked 1"))
        await trio.sleep(1)
        assert there.owed("via/r0/newsroom") == {"r2/asker": 1}
        assert here.owed("newsroom") == {"r2/listener": 1, "r1/r2/asker": 1}
        world.nursery.start_soon(third.read, answers, lambda: 0.0)
        world.nursery.start_soon(third.read, questions, lambda: 0.0)
        await world.quiet()
        assert third.got == {"asker": [("asked", 1)], "listener": [("newsroom", 0)]}


def test_an_origin_whose_account_cannot_be_opened_is_in_nobodys_way() -> None:
    with alone() as relay:
        noted: list[str] = []

        def note(whose: object, doing: str, exc: Exception) -> bool:
            noted.append(doing)
            return True

        relay.ledger.faults.ends.append(note)

        def open_account(name: str, above: tuple[str, ...]) -> Account:
            if name == "bad":
                msg = "no"
                raise ValueError(msg)
            return relay.ledger.open(name)

        landing = Landing(relay.ledger, relay.dataspace, open_account, 1)
        box = relay.subscribe("box", "#")
        event = Publication("t", b"x")
        landing.accept(
            Shipment(
                1, 1, 1, 1, 1, tuple(Parcel(n, name, (), (event,), 1, 1)
                for n, name in [(1, "bad"), (2, "good")]),
            )
        )  # fmt: skip
        assert noted == ["opening an account for bad"]
        assert len(list(box.loans())) == 1
        receipt = landing.receipt()
        assert (receipt.received, receipt.settled) == (3, ((1, 1),))


@pytest.mark.rule(8)
@pytest.mark.parametrize(
    "seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(4, 200))]
)
def test_relays_that_restart_on_a_bad_network_deliver_nothing_twice(seed: int) -> None:
    """What had come is lost with a relay; the rest comes once, in order, and all books balance.

    If a landing has restarted, what its last life took and did not acknowledge comes again.
    """
    chance = Random(seed)
    again: set[tuple[str, str]] = set()
    network = Network(
        chance, lost=chance.random() * 0.3, repeated=chance.random() * 0.5, slowest=chance.random()
    )

    async def restart(world: World) -> None:
        for _ in range(chance.randint(1, 6)):
            await trio.sleep(chance.random() * 3)
            one, other = chance.sample(world.relays, 2)
            if chance.random() < 0.5:
                world.restart_hop(one, other)
            else:
                world.restart_landing(one, other)
                again.add((one.name, other.name))

    async def main() -> None:
        async with open_world(network, 3, Limit(items=chance.randint(5, 60), bytes=None)) as world:
            world.gave_up = True
            nursery = world.nursery
            for relay in world.relays:
                box = relay.subscribe(f"{relay.name}-s", "t")
                nursery.start_soon(relay.read, box, lambda: chance.random() * 0.05)
            async with trio.open_nursery() as publishing:
                for relay in world.relays:
                    publishing.start_soon(relay.publish, f"{relay.name}-p", "t", 150)
                publishing.start_soon(restart, world)
            await world.quiet()
            for relay in world.relays:
                for other in world.relays:
                    name = f"{other.name}-p"
                    mine = [n for origin, n in relay.got[f"{relay.name}-s"] if origin == name]
                    if (other.name, relay.name) not in again:
                        assert mine == sorted(set(mine))
                    if other is relay:
                        assert mine == list(range(150))

    trio.run(main, clock=MockClock(autojump_threshold=0))


class Disk(Mailbox[Publication]):
    """A subscriber that takes responsibility for what it gets when `write` is called."""

    takes_responsibility = True

    def __init__(self, ledger: Ledger, name: str) -> None:
        super().__init__(ledger, name)
        self.unwritten: list[Confirm] = []

    def hold(
        self, account: Account, item: Publication, items: int, nbytes: int, now: float
    ) -> None:
        super().hold(account, item, items, nbytes, now)
        if self.ledger.confirming is not None:
            self.ledger.confirming.expect()
            self.unwritten.append(self.ledger.confirming)

    def write(self) -> None:
        """Take responsibility for all that has come."""
        while self.unwritten:
            self.unwritten.pop(0).taken()


class Word(CountedConfirm):
    """The confirm of a publisher."""

    def __init__(self) -> None:
        self.expected = 1
        self.reasons: list[str] = []

    def taken(self) -> None:
        self.expected -= 1

    def refused(self, reason: str) -> None:
        self.reasons.append(reason)
        self.taken()

    @property
    def has_come(self) -> bool:
        assert self.expected >= 0
        return not self.expected


def publish_and_ask(relay: Relay, name: str, topic: str, count: int = 1) -> list[Word]:
    """Publish so many messages; return their confirms."""
    words = [Word() for _ in range(count)]
    with relay.ledger.open(name, limit=relay.limit) as account:
        for number, word in enumerate(words):
            with account.turn(confirm=word) as turn:
                turn.publish(
                    relay.dataspace, Publication(topic, f"{name} {number}".encode()), nbytes=100
                )
            word.taken()  # its turn has ended
    return words


def subscribe_disk(relay: Relay, name: str, topics: str) -> Disk:
    """Return a `Disk` that has subscribed."""
    disk = Disk(relay.ledger, name)
    disk.owner = relay.ledger.open(name, limit=relay.limit)
    relay.stack.enter_context(relay.dataspace.observed(disk.owner, TopicFilter(topics), disk))
    relay.got[name] = []
    return disk


@pytest.mark.rule(7)
async def test_a_confirm_waits_until_the_other_relay_has_taken_responsibility(
    autojump_clock: MockClock,
) -> None:
    async with open_world(fine()) as world:
        here, there = world.relays
        disk = subscribe_disk(there, "archive", "news/#")
        words = publish_and_ask(here, "newsroom", "news/a", 50)
        await trio.sleep(1)
        words += publish_and_ask(here, "newsroom", "news/a", 40)
        await trio.sleep(1)
        assert len(disk.unwritten) == 90
        assert not any(word.has_come for word in words)
        disk.write()
        await trio.sleep(1)
        assert all(word.has_come for word in words)
        # Nobody has read them: they are owed for.
        assert here.owed("newsroom") == {"r1/archive": 90}
        world.nursery.start_soon(there.read, disk, lambda: 0.0)
        await world.quiet()


@pytest.mark.rule(7)
async def test_a_confirm_comes_when_the_other_relay_has_nobody_who_stores(
    autojump_clock: MockClock,
) -> None:
    async with open_world(fine()) as world:
        here, there = world.relays
        box = there.subscribe("archive", "news/#")
        (word,) = publish_and_ask(here, "newsroom", "news/a")
        await trio.sleep(1)
        assert word.has_come
        assert here.owed("newsroom") == {"r1/archive": 1}
        world.nursery.start_soon(there.read, box, lambda: 0.0)
        await world.quiet()


@pytest.mark.rule(7)
@pytest.mark.parametrize("seed", range(5))
async def test_confirms_come_once_over_a_network_that_loses(
    autojump_clock: MockClock, seed: int
) -> None:
    network = Network(Random(seed), lost=0.3, repeated=0.2, slowest=0.5)
    async with open_world(network, relays=3) as world:
        here, *others = world.relays
        disks = [subscribe_disk(each, "archive", "news/#") for each in others]
        words: list[Word] = []
        for _ in range(10):
            words += publish_and_ask(here, "newsroom", "news/a", 9)
            await trio.sleep(network.chance.random())
            network.chance.choice(disks).write()
        disks[0].write()
        await trio.sleep(30)
        assert disks[1].unwritten == [] or not words[-1].has_come
        for _ in range(100):
            for disk in disks:
                disk.write()
            await trio.sleep(1)
            if all(word.has_come for word in words):
                break
        assert all(word.has_come for word in words)
        for relay, disk in zip(others, disks, strict=True):
            world.nursery.start_soon(relay.read, disk, lambda: 0.0)
        await world.quiet()
        assert not any(each._confirms for each in here.hops.values())  # pyright: ignore[reportPrivateUsage]


@pytest.mark.rule(7)
async def test_a_confirm_is_not_waited_for_once_the_other_relay_has_gone(
    autojump_clock: MockClock,
) -> None:
    async with open_world(fine()) as world:
        here, there = world.relays
        subscribe_disk(there, "archive", "news/#")
        (word,) = publish_and_ask(here, "newsroom", "news/a")
        await trio.sleep(1)
        assert not word.has_come
        (unsent,) = publish_and_ask(here, "newsroom", "news/a")
        world.gave_up = True
        here.hops["r1"].close()
        assert word.has_come
        assert unsent.has_come
        assert not here.owed("newsroom")


@pytest.mark.rule(7)
async def test_what_is_refused_there_is_logged_and_waited_for_no_longer(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_world(fine()) as world:
        here, there = world.relays
        disk = subscribe_disk(there, "archive", "news/#")
        (word,) = publish_and_ask(here, "newsroom", "news/a")
        await trio.sleep(1)
        disk.unwritten.pop().refused("it is full")
        await trio.sleep(1)
        assert word.has_come
        assert "refused here: it is full" in caplog.text
        world.nursery.start_soon(there.read, disk, lambda: 0.0)
        await world.quiet()


def payloads(disk: Disk) -> list[bytes]:
    """Return what a subscriber has got and not read."""
    return [event.payload for loan in disk.loans() for event in loan.item]


@pytest.mark.rule(7, 15)
async def test_what_asks_is_kept_for_a_relay_that_comes_back_and_the_rest_is_not(
    autojump_clock: MockClock,
) -> None:
    async with open_world(fine()) as world:
        here, there = world.relays
        disk = subscribe_disk(there, "archive", "news/#")
        world.part(here, there)
        words = publish_and_ask(here, "newsroom", "news/a", 3)
        await here.publish("newsroom", "news/a", 5)
        await trio.sleep(1)
        assert here.owed("newsroom") == {"r1": 3}
        assert not any(word.has_come for word in words)
        world.audit()
        world.meet(here, there)
        await trio.sleep(1)
        assert payloads(disk) == [b"newsroom 0", b"newsroom 1", b"newsroom 2"]
        disk.write()
        await trio.sleep(1)
        assert all(word.has_come for word in words)
        world.nursery.start_soon(there.read, disk, lambda: 0.0)
        await world.quiet()


@pytest.mark.rule(7, 15)
@pytest.mark.parametrize("written", [False, True])
async def test_what_had_come_before_the_two_parted_does_not_come_twice(
    autojump_clock: MockClock, *, written: bool
) -> None:
    """Whether all of it is safe there by then, or not yet."""
    network = Network(Random(1))
    async with open_world(network) as world:
        here, there = world.relays
        disk = subscribe_disk(there, "archive", "news/#")
        await trio.sleep(1)
        words = publish_and_ask(here, "newsroom", "news/a", 3)
        (shipment,) = [here.hops["r1"].shipment()]
        assert shipment.parcels[0].asks
        there.landings["r0"].accept(shipment)
        if written:
            disk.write()  # and the relays part before the other one hears of it
        world.part(here, there)
        await trio.sleep(1)
        assert not any(word.has_come for word in words)
        world.meet(here, there)
        await trio.sleep(1)
        assert payloads(disk) == [b"newsroom 0", b"newsroom 1", b"newsroom 2"]
        assert all(word.has_come for word in words) is written
        disk.write()
        await trio.sleep(1)
        assert all(word.has_come for word in words)
        assert not here.owed("newsroom")  # what became of the first life's is not known here
        # Nothing is remembered for ever.
        words = publish_and_ask(here, "newsroom", "news/b")
        await trio.sleep(1)
        disk.write()
        world.nursery.start_soon(there.read, disk, lambda: 0.0)
        await world.quiet()
        await trio.sleep(1)
        assert len(there.seen["r0"]) == 0


async def test_a_relay_that_comes_back_without_what_it_had_gets_it_again(
    autojump_clock: MockClock,
) -> None:
    async with open_world(fine()) as world:
        here, there = world.relays
        disk = subscribe_disk(there, "archive", "news/#")
        await trio.sleep(1)
        words = publish_and_ask(here, "newsroom", "news/a", 3)
        await trio.sleep(1)
        world.part(here, there)
        disk.settle_all(Outcome.WRITTEN_OFF)  # its messages are lost with it
        disk.unwritten.clear()
        world.meet(here, there, forgets=True)
        await trio.sleep(1)
        assert payloads(disk) == [b"newsroom 0", b"newsroom 1", b"newsroom 2"]
        disk.write()
        await trio.sleep(1)
        assert all(word.has_come for word in words)
        world.nursery.start_soon(there.read, disk, lambda: 0.0)
        await world.quiet()


@pytest.mark.rule(7, 12)
async def test_a_relay_that_stays_away_is_given_up(autojump_clock: MockClock) -> None:
    async with open_world(fine()) as world:
        here, there = world.relays
        subscribe_disk(there, "archive", "news/#")
        await trio.sleep(1)
        words = publish_and_ask(here, "newsroom", "news/a", 3)
        await trio.sleep(1)
        world.gave_up = True
        world.part(here, there)
        words += publish_and_ask(here, "newsroom", "news/a", 3)
        here.hops["r1"].give_up("it is away")
        assert all(word.has_come for word in words)
        assert not here.owed("newsroom")
        assert here.ledger.statistics().repaid_items["written_off"] == 6
        here.hops["r1"].close()


@pytest.mark.parametrize(
    "seed", [*range(6), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(6, 400))]
)
def test_relays_that_part_and_meet_on_a_bad_network_deliver_what_asks_once(seed: int) -> None:
    chance = Random(seed)
    network = Network(
        chance, lost=chance.random() * 0.4, repeated=chance.random() * 0.4, slowest=chance.random()
    )

    async def run() -> None:
        async with open_world(network) as world:
            world.gave_up = True  # lives of hops end with parcels out
            here, there = world.relays
            disks = [subscribe_disk(there, f"disk-{number}", "news/#") for number in range(2)]
            words: list[Word] = []
            parted = False
            for number in range(60):
                words += publish_numbered(here, number)
                if parted:
                    world.meet(here, there)
                    parted = False
                elif chance.random() < 0.2:
                    world.part(here, there)
                    parted = True
                if chance.random() < 0.5:
                    chance.choice(disks).write()
                await trio.sleep(chance.random())
                for disk in disks:
                    for loan in list(disk.loans()):
                        disk_got[disk.name] += [each.payload for each in loan.item]
                    disk.settle_all(Outcome.DELIVERED)
                world.audit()
            if parted:
                world.meet(here, there)
            for _ in range(300):
                for disk in disks:
                    disk.write()
                    for loan in list(disk.loans()):
                        disk_got[disk.name] += [each.payload for each in loan.item]
                    disk.settle_all(Outcome.DELIVERED)
                await trio.sleep(1)
                if all(word.has_come for word in words) and world.is_quiet():
                    break
            assert all(word.has_come for word in words)
            await world.quiet()

    disk_got: dict[str, list[bytes]] = {"disk-0": [], "disk-1": []}
    trio.run(run, clock=MockClock(autojump_threshold=0))
    for got in disk_got.values():
        assert got == [b"%d" % number for number in range(60)]


def publish_numbered(relay: Relay, number: int) -> list[Word]:
    """Publish one message."""
    word = Word()
    with (
        relay.ledger.open("newsroom", limit=relay.limit) as account,
        account.turn(confirm=word) as turn,
    ):
        turn.publish(relay.dataspace, Publication("news/a", b"%d" % number), nbytes=100)
    word.taken()  # its turn has ended
    return [word]
