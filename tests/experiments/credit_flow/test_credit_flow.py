"""RabbitMQ's credit flow: each detail of it, the chain of four, and the pseudocode beside it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from typing import Any

import attrs
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from clearfunds.testing import Clock
from experiments.credit_flow import (
    CREDIT_2015,
    DEFAULT_CREDIT,
    READER_STATE_CHANGE_SECONDS,
    STATE_CHANGE_SECONDS,
    STORE_CREDIT,
    Credit,
    CreditFlow,
)

SMALL = Credit(3, 2)


class Alone:
    """One process, and the grants that it sends."""

    def __init__(self) -> None:
        self.clock = Clock(100.0)
        self.grants: list[tuple[str, int]] = []
        self.flow = CreditFlow[str](
            "me", lambda to, quantity: self.grants.append((to, quantity)), clock=self.clock
        )

    def send(self, to: str, n: int, credit: Credit = SMALL) -> None:
        for _ in range(n):
            self.flow.send(to, credit)

    def ack(self, to: str, n: int, credit: Credit = SMALL) -> None:
        for _ in range(n):
            self.flow.ack(to, credit)


@pytest.fixture
def alone() -> Alone:
    return Alone()


# -- the numbers --------------------------------------------------------------------------------


def test_the_defaults_are_those_of_their_precedents() -> None:
    assert Credit(200, 50) == CREDIT_2015
    assert Credit(400, 200) == DEFAULT_CREDIT
    assert Credit(2000, 500) == STORE_CREDIT
    assert (STATE_CHANGE_SECONDS, READER_STATE_CHANGE_SECONDS) == (1.0, 5.0)


@pytest.mark.parametrize(("initial", "more"), [(-1, 0), (0, -1), (10, 11), (0, 1), (-2, -3)])
def test_what_would_never_be_granted_is_refused(initial: int, more: int) -> None:
    with pytest.raises(ValueError, match=r"credit must not be|must not be above"):
        Credit(initial, more)


def test_as_much_granted_as_there_is_at_first_is_allowed() -> None:
    assert Credit(10, 10).more_after == 10
    assert Credit(0, 0).initial == 0


# -- sending ------------------------------------------------------------------------------------


def test_the_last_credit_blocks_and_no_other(alone: Alone) -> None:
    alone.send("p", 2)
    assert not alone.flow.blocked
    assert alone.flow.credit_from == {"p": 1}
    alone.send("p", 1)
    assert alone.flow.blocked
    assert alone.flow.blockers == ["p"]
    assert alone.flow.credit_from == {"p": 0}


def test_credit_goes_negative_and_blocks_no_second_time(alone: Alone) -> None:
    alone.send("p", 8)
    assert alone.flow.credit_from == {"p": -5}
    assert alone.flow.blockers == ["p"]
    statistics = alone.flow.statistics()
    assert (statistics.sent, statistics.overdrawn, statistics.blocks) == (8, 5, 1)


def test_without_credit_from_the_start_nothing_blocks(alone: Alone) -> None:
    """{0, 0}: the edge from one to none is not come by, so nobody is ever hindered."""
    off = Credit(0, 0)
    alone.send("p", 1000, off)
    alone.ack("q", 1000, off)
    assert not alone.flow.blocked
    assert alone.flow.credit_from == {"p": -1000}
    assert alone.grants == []


def test_a_grant_unblocks_when_it_lifts_credit_above_none(alone: Alone) -> None:
    alone.send("p", 6)
    alone.flow.handle_bump("p", 2)
    assert alone.flow.credit_from == {"p": -1}
    assert alone.flow.blocked
    alone.flow.handle_bump("p", 1)
    assert alone.flow.credit_from == {"p": 0}
    assert alone.flow.blocked
    alone.flow.handle_bump("p", 1)
    assert alone.flow.credit_from == {"p": 1}
    assert not alone.flow.blocked
    alone.send("p", 1)
    assert alone.flow.blocked  # the edge once more


def test_two_peers_block_and_both_have_to_stop(alone: Alone) -> None:
    alone.send("p", 3)
    alone.send("q", 3)
    assert alone.flow.blockers == ["q", "p"]
    alone.flow.handle_bump("p", 2)
    assert alone.flow.blocked
    assert alone.flow.blockers == ["q"]
    alone.flow.handle_bump("q", 2)
    assert not alone.flow.blocked


def test_many_at_once_are_as_many_one_by_one(alone: Alone) -> None:
    """The edge is come by once, wherever in the run it is; what comes after it is overdrawn."""
    alone.flow.send("p", SMALL, 2)
    assert not alone.flow.blocked
    alone.flow.send("p", SMALL, 4)
    assert alone.flow.blockers == ["p"]
    alone.flow.send("p", SMALL, 5)
    assert alone.flow.credit_from == {"p": -8}
    statistics = alone.flow.statistics()
    assert (statistics.sent, statistics.overdrawn, statistics.blocks) == (11, 8, 1)
    alone.flow.handle_bump("p", 9)
    alone.flow.ack("q", SMALL, 7)
    assert alone.grants == [("q", 2)] * 3
    assert alone.flow.credit_to == {"q": 1}


def test_a_blocker_is_as_often_in_the_list_as_it_blocks(alone: Alone) -> None:
    """The list is a multiset: what else blocks, by the same name, has to end as well."""
    alone.flow.block("p")
    alone.send("p", 3)
    assert alone.flow.blockers == ["p", "p"]
    alone.flow.handle_bump("p", 2)
    assert alone.flow.blocked
    alone.flow.unblock("p")
    assert not alone.flow.blocked


def test_a_grant_that_lifts_nothing_above_none_ends_no_other_block(alone: Alone) -> None:
    """Only the edge unblocks: what `p` blocks for beside its credit goes on."""
    alone.send("p", 1)
    alone.flow.block("p")
    alone.flow.handle_bump("p", 2)
    assert alone.flow.credit_from == {"p": 4}
    assert alone.flow.blockers == ["p"]


# -- granting -----------------------------------------------------------------------------------


def test_grants_are_of_exactly_so_many_at_a_time(alone: Alone) -> None:
    alone.ack("p", 1)
    assert alone.grants == []
    alone.ack("p", 1)
    assert alone.grants == [("p", 2)]
    assert alone.flow.credit_to == {"p": 2}
    alone.ack("p", 5)
    assert alone.grants == [("p", 2)] * 3
    assert alone.flow.credit_to == {"p": 1}
    assert alone.flow.statistics().granted == 6


def test_grants_wait_while_blocked_and_the_last_goes_first(alone: Alone) -> None:
    alone.send("store", 3)
    alone.ack("a", 2)
    alone.ack("b", 2)
    alone.ack("a", 2)
    assert alone.grants == []
    assert alone.flow.deferred == [("a", 2), ("b", 2), ("a", 2)]
    alone.ack("c", 2)
    assert alone.flow.statistics().deferred == 4
    alone.flow.handle_bump("store", 2)
    assert alone.grants == [("c", 2), ("a", 2), ("b", 2), ("a", 2)]
    assert alone.flow.deferred == []


def test_unblocking_who_does_not_block_still_sends_what_is_deferred(alone: Alone) -> None:
    """With nobody in the list the flush is done, whoever is named; with somebody it is not."""
    alone.flow.deferred.append(("a", 2))
    alone.flow.unblock("nobody")
    assert alone.grants == [("a", 2)]
    alone.send("store", 3)
    alone.ack("a", 2)
    alone.flow.unblock("nobody")
    assert alone.flow.blockers == ["store"]
    assert alone.grants == [("a", 2)]


def test_a_grant_that_arrives_in_the_middle_of_the_flush_is_not_lost() -> None:
    """A peer may answer its grant at once, and so block its granter before the rest is sent."""
    clock = Clock(100.0)
    grants: list[tuple[str, int]] = []

    def send(to: str, quantity: int) -> None:
        grants.append((to, quantity))
        if to == "eager" and len(grants) == 1:
            # It sends two messages, which go on to the store and are handled.
            for _ in range(2):
                flow.send("store", SMALL)
                flow.ack("eager", SMALL)

    flow = CreditFlow[str]("me", send, clock=clock)
    for _ in range(3):
        flow.send("store", SMALL)
    for peer in ("late", "late", "eager", "eager"):
        flow.ack(peer, SMALL)
    flow.handle_bump("store", 2)
    assert flow.credit_from == {"store": 0}
    assert flow.blockers == ["store"]
    assert grants == [("eager", 2), ("late", 2)]
    assert flow.deferred == [("eager", 2)]


# -- peers that go ------------------------------------------------------------------------------


def test_a_peer_that_is_down_blocks_no_more_and_starts_anew(alone: Alone) -> None:
    alone.send("p", 5)
    alone.ack("p", 1)
    alone.ack("a", 2)
    assert alone.flow.deferred == [("a", 2)]
    alone.flow.peer_down("p")
    assert not alone.flow.blocked
    assert alone.grants == [("a", 2)]
    assert alone.flow.credit_from == {}
    assert "p" not in alone.flow.credit_to
    alone.send("p", 1)
    assert alone.flow.credit_from == {"p": 2}


def test_a_grant_deferred_to_a_peer_that_is_down_is_sent_into_the_void(alone: Alone) -> None:
    alone.send("store", 3)
    alone.ack("gone", 2)
    alone.flow.peer_down("gone")
    assert alone.flow.deferred == [("gone", 2)]
    alone.flow.handle_bump("store", 2)
    assert alone.grants == [("gone", 2)]


def test_a_grant_of_a_peer_already_forgotten_makes_it_known_by_the_grant_alone(
    alone: Alone,
) -> None:
    """Its credit starts from 0 and not from the initial."""
    alone.send("p", 3)
    alone.flow.peer_down("p")
    alone.flow.handle_bump("p", 2)
    assert alone.flow.credit_from == {"p": 2}
    alone.send("p", 2)
    assert alone.flow.blockers == ["p"]


def test_who_is_down_is_forgotten_once_only_of_those_it_blocks_as(alone: Alone) -> None:
    """`peer_down` takes one blocker off the list, as `unblock` does: not those of other reasons."""
    alone.flow.block("p")
    alone.flow.block("p")
    alone.flow.peer_down("p")
    assert alone.flow.blockers == ["p"]


# -- what is shown ------------------------------------------------------------------------------


def test_the_state_sticks_for_a_second_after_the_block_began(alone: Alone) -> None:
    assert alone.flow.state() == "running"
    alone.send("p", 3)
    assert alone.flow.state() == "flow"
    alone.clock.now += 0.25
    alone.flow.handle_bump("p", 2)
    assert not alone.flow.blocked
    assert alone.flow.state() == "flow"
    alone.clock.now += 0.5
    assert alone.flow.state() == "flow"
    alone.clock.now += 0.25
    assert alone.flow.state() == "running"
    assert alone.flow.state(sticky=READER_STATE_CHANGE_SECONDS) == "flow"
    alone.clock.now += 4.0
    assert alone.flow.state(sticky=READER_STATE_CHANGE_SECONDS) == "running"


def test_a_long_block_does_not_stick_at_all(alone: Alone) -> None:
    """The second counts from when it began."""
    alone.send("p", 3)
    alone.clock.now += 10
    assert alone.flow.state() == "flow"
    alone.flow.handle_bump("p", 2)
    assert alone.flow.state() == "running"


def test_a_second_blocker_does_not_begin_the_second_anew(alone: Alone) -> None:
    alone.send("p", 3)
    alone.clock.now += 0.75
    alone.send("q", 3)
    alone.flow.handle_bump("p", 2)
    alone.flow.handle_bump("q", 2)
    alone.clock.now += 0.25
    assert alone.flow.state() == "running"


def test_statistics_say_who_since_when_and_for_how_long(alone: Alone) -> None:
    alone.send("p", 3)
    alone.clock.now += 2
    alone.send("q", 4)
    alone.clock.now += 1
    statistics = alone.flow.statistics()
    assert statistics.name == "me"
    assert statistics.blocked
    assert [attrs.astuple(each) for each in statistics.blockers] == [("p", 3.0, 0), ("q", 1.0, -1)]
    assert statistics.blame == {"p": 3.0, "q": 1.0}
    assert statistics.blocked_seconds == 3.0
    alone.flow.handle_bump("p", 2)
    alone.clock.now += 4
    alone.flow.handle_bump("q", 2)
    alone.clock.now += 100
    statistics = alone.flow.statistics()
    assert not statistics.blocked
    assert statistics.blockers == ()
    assert statistics.blame == {"p": 3.0, "q": 5.0}
    assert statistics.blocked_seconds == 7.0
    assert statistics.blocks == 1
    assert statistics.credit_from == {"p": 2, "q": 1}


def test_the_record_of_who_is_to_blame_is_bounded(alone: Alone) -> None:
    for n in range(100):
        alone.flow.block(f"p{n}")
        alone.clock.now += 1
        alone.flow.peer_down(f"p{n}")
    blame = alone.flow.statistics().blame
    assert len(blame) == 65
    assert blame["(others)"] == 36.0
    assert sum(blame.values()) == alone.flow.statistics().blocked_seconds == 100.0


def test_peers_may_be_objects_and_are_called_by_their_names() -> None:
    @attrs.define(eq=False)
    class Thing:
        name: str

    thing = Thing("queue orders")
    flow = CreditFlow[Hashable](thing, lambda to, quantity: None, clock=Clock(100.0))
    flow.send(("a", 1), Credit(1, 1))
    flow.send(thing, Credit(1, 1))
    assert flow.statistics().name == "queue orders"
    assert [each.peer for each in flow.statistics().blockers] == ["('a', 1)", "queue orders"]
    assert repr(flow) == "<CreditFlow queue orders: blocked by queue orders, ('a', 1)>"


# -- a chain of four ----------------------------------------------------------------------------


class Process:
    """A process with an inbox, which passes what it handles on to the next."""

    def __init__(self, name: str, clock: Clock, up: Credit, down: Credit) -> None:
        self.name = name
        self.up, self.down = up, down
        self.before: Process | None = None
        self.next: Process | None = None
        self.inbox: deque[Process] = deque()
        self.handled = 0
        self.dead = False
        self.flow = CreditFlow[Process](self, self._bump, clock=clock)

    def _bump(self, to: Process, quantity: int) -> None:
        if not to.dead:
            to.flow.handle_bump(self, quantity)

    def send(self) -> None:
        assert self.next is not None
        self.flow.send(self.next, self.down)
        self.next.inbox.append(self)

    def handle(self, n: int) -> int:
        """Handle up to `n` messages; return how many there were."""
        done = 0
        while self.inbox and done < n:
            sender = self.inbox.popleft()
            if self.next is not None and not self.next.dead:
                self.send()
            if not sender.dead:
                self.flow.ack(sender, self.up)
            done += 1
        self.handled += done
        return done


class Chain:
    """reader -> channel -> queue -> store, as the seed has it."""

    def __init__(self, credit: Credit = CREDIT_2015, store: Credit = STORE_CREDIT) -> None:
        self.clock = Clock(100.0)
        self.reader = Process("reader", self.clock, credit, credit)
        self.channel = Process("channel", self.clock, credit, credit)
        self.queue = Process("queue", self.clock, credit, store)
        self.store = Process("store", self.clock, store, store)
        self.all = [self.reader, self.channel, self.queue, self.store]
        for before, after in zip(self.all, self.all[1:], strict=False):
            before.next, after.before = after, before
        self.read = 0

    def read_while_allowed(self) -> int:
        """What a polite reader reads before it is blocked."""
        n = 0
        while not self.reader.flow.blocked and n < 1_000_000:
            self.reader.send()
            n += 1
        self.read += n
        return n

    def flood(self, *working: Process) -> None:
        """Read and work until nothing goes on any more."""
        while True:
            done = self.read_while_allowed()
            done += sum([each.handle(1_000_000) for each in working])
            if not done:
                return

    @property
    def blocked(self) -> list[str]:
        return [each.name for each in self.all if each.flow.blocked]


def test_seed_arithmetic_for_one_hop() -> None:
    """The reader is blocked once it has sent 200 and the channel has not handled 50 of them."""
    chain = Chain()
    assert chain.read_while_allowed() == 200
    assert chain.channel.handle(49) == 49
    assert chain.read_while_allowed() == 0
    chain.channel.handle(1)
    assert chain.read_while_allowed() == 50
    chain.channel.handle(100)
    assert chain.read_while_allowed() == 100


@pytest.mark.parametrize("credit", [CREDIT_2015, DEFAULT_CREDIT, STORE_CREDIT, Credit(4000, 800)])
def test_a_polite_sender_never_has_more_under_way_than_it_began_with(credit: Credit) -> None:
    chain = Chain(credit)
    assert chain.read_while_allowed() == credit.initial
    assert chain.channel.handle(credit.more_after - 1) == credit.more_after - 1
    assert chain.read_while_allowed() == 0
    chain.channel.handle(1)
    assert chain.read_while_allowed() == credit.more_after
    assert len(chain.channel.inbox) == credit.initial


def test_the_store_blocks_the_queue_and_the_whole_chain_waits_for_its_grant() -> None:
    """Blocked by the store the queue holds back the channel's credit, and the channel the reader's.

    And once it grants, all go on: "the message store will grant messages to the queue process,
    which will grant messages back to the channel, and then the channel will finally grant messages
    to the reader".
    """
    chain = Chain()
    chain.flood(chain.channel, chain.queue)  # the store does nothing
    assert chain.blocked == ["reader", "channel", "queue"]
    # Only the reader stops; what it has sent is all handed on, though nobody has credit for it.
    assert chain.queue.flow.credit_from[chain.store] < 0
    assert len(chain.store.inbox) == chain.read
    # The 2,000th message blocks the queue, which has granted for 1,950 by then; so the channel is
    # blocked by its 2,150th, when it has granted for 2,100; so the reader by its 2,300th.
    assert chain.read == 2000 - 50 + 200 - 50 + 200
    assert chain.queue.flow.deferred
    assert chain.channel.flow.deferred
    assert all(to is chain.channel for to, _ in chain.queue.flow.deferred)
    assert all(to is chain.reader for to, _ in chain.channel.flow.deferred)

    overdrawn = -chain.queue.flow.credit_from[chain.store]
    chain.store.handle(499)
    assert chain.blocked == ["reader", "channel", "queue"]
    chain.store.handle(1)
    assert overdrawn < 500
    assert chain.blocked == []  # one grant of the store's went through all three
    assert chain.queue.flow.deferred == []
    assert chain.channel.flow.deferred == []
    assert chain.read_while_allowed() == 200


def test_grants_of_500_come_one_at_a_time() -> None:
    chain = Chain()
    for _ in range(2600):
        chain.queue.send()
    assert chain.queue.flow.credit_from[chain.store] == -600
    assert chain.queue.flow.blocked
    chain.store.handle(500)
    assert chain.queue.flow.credit_from[chain.store] == -100
    assert chain.queue.flow.blocked
    chain.store.handle(500)
    assert chain.queue.flow.credit_from[chain.store] == 400
    assert not chain.queue.flow.blocked


def test_statistics_of_a_chain_name_the_next_in_it() -> None:
    chain = Chain()
    chain.flood(chain.channel, chain.queue)
    chain.clock.now += 7
    chain.store.handle(2000)
    blame = {each.name: each.flow.statistics().blame for each in chain.all}
    assert blame == {
        "reader": {"channel": 7.0},
        "channel": {"queue": 7.0},
        "queue": {"store": 7.0},
        "store": {},
    }


def test_a_chain_under_a_slow_store_loses_and_adds_nothing() -> None:
    """All is handled in the end, and every credit is back where it was, or on its way."""
    chain = Chain()
    for _ in range(300):
        chain.read_while_allowed()
        for each, n in ((chain.channel, 70), (chain.queue, 90), (chain.store, 40)):
            each.handle(n)
    while any(each.handle(1000) for each in chain.all):
        pass
    assert chain.store.handled == chain.queue.handled == chain.channel.handled == chain.read
    for each in (chain.reader, chain.channel, chain.queue):
        assert each.next is not None
        waiting_for = each.next.up.more_after - each.next.flow.credit_to[each]
        assert each.flow.credit_from[each.next] + waiting_for == each.down.initial
        assert not each.flow.blocked
        assert not each.flow.deferred


@pytest.mark.parametrize("who", ["channel", "queue", "store"])
def test_the_next_goes_down_while_all_are_blocked(who: str) -> None:
    """Who was blocked by it, directly or through others, is blocked no more."""
    chain = Chain()
    chain.flood(chain.channel, chain.queue)
    down = next(each for each in chain.all if each.name == who)
    down.dead = True
    assert down.before is not None
    down.before.flow.peer_down(down)
    place = chain.all.index(down)
    upstream = chain.all[:place]
    assert not any(each.flow.blocked for each in upstream)
    # Those below are none the wiser: the queue still waits for the store, if that is there.
    assert chain.queue.flow.blocked == (who == "channel" or who == "queue")
    before = down.before
    assert down not in before.flow.credit_from
    if before is not chain.reader:
        already = before.handled
        chain.read_while_allowed()
        while any(each.handle(1000) for each in chain.all[1:place]):
            pass
        assert before.handled - already >= 200


@pytest.mark.parametrize("who", ["reader", "channel", "queue"])
def test_the_one_before_goes_down_while_all_are_blocked(who: str) -> None:
    """What was held back for it goes to nobody, and the rest of the chain goes on."""
    chain = Chain()
    chain.flood(chain.channel, chain.queue)
    down = next(each for each in chain.all if each.name == who)
    after = down.next
    assert after is not None
    down.dead = True
    after.flow.peer_down(down)
    assert down not in after.flow.credit_to
    before = down.flow.credit_from.get(after)
    while after.handle(1000) or chain.store.handle(1000):
        pass
    assert down.flow.credit_from.get(after) == before
    assert after.flow.deferred == []
    assert not after.flow.blocked


# -- the pseudocode beside it -------------------------------------------------------------------


class Erlang:
    """credit_flow as a process dictionary, line by line of the pseudocode; messages are queued."""

    def __init__(self, me: str, mail: Callable[[str, tuple[str, int]], None], now: Clock) -> None:
        self.me, self.mail, self.now = me, mail, now
        self.pd: dict[Any, Any] = {}

    def blocked(self) -> bool:
        return bool(self.pd.get("credit_blocked", []))

    def send(self, p: str, i: int) -> None:
        c = self.pd.get(("credit_from", p), i)
        if c == 1:
            self.block(p)
            self.pd["credit_from", p] = 0
        else:
            self.pd["credit_from", p] = c - 1

    def ack(self, p: str, m: int) -> None:
        c = self.pd.get(("credit_to", p), m)
        if c == 1:
            self.grant(p, m)
            self.pd["credit_to", p] = m
        else:
            self.pd["credit_to", p] = c - 1

    def grant(self, p: str, q: int) -> None:
        if not self.blocked():
            self.mail(p, (self.me, q))
        else:
            self.pd["credit_deferred"] = [(p, q), *self.pd.get("credit_deferred", [])]

    def handle_bump(self, p: str, q: int) -> None:
        c = self.pd.get(("credit_from", p), 0)
        if c <= 0 < c + q:
            self.unblock(p)
        self.pd["credit_from", p] = c + q

    def block(self, p: str) -> None:
        if not self.blocked():
            self.pd["credit_blocked_at"] = self.now()
        self.pd["credit_blocked"] = [p, *self.pd.get("credit_blocked", [])]

    def unblock(self, p: str) -> None:
        blockers = list(self.pd.get("credit_blocked", []))
        if p in blockers:
            del blockers[blockers.index(p)]
        self.pd["credit_blocked"] = blockers
        if not blockers:
            for to, q in self.pd.pop("credit_deferred", []):
                self.mail(to, (self.me, q))

    def peer_down(self, p: str) -> None:
        self.unblock(p)
        self.pd.pop(("credit_from", p), None)
        self.pd.pop(("credit_to", p), None)

    def state(self, interval: float) -> str:
        if self.blocked():
            return "flow"
        at = self.pd.get("credit_blocked_at")
        return "flow" if at is not None and self.now() - at < interval else "running"

    def table(self, which: str) -> dict[str, int]:
        return {k[1]: v for k, v in self.pd.items() if isinstance(k, tuple) and k[0] == which}


NAMES = ["a", "b", "c"]
who = st.sampled_from(NAMES)


class BesideThePseudocode(RuleBasedStateMachine):
    """Three processes that send to each other, each of them twice: ours, and the pseudocode's."""

    @initialize(
        specs=st.lists(
            st.tuples(st.integers(0, 6), st.integers(0, 6)).map(
                lambda pair: Credit(max(pair), min(pair))
            ),
            min_size=len(NAMES),
            max_size=len(NAMES),
        )
    )
    def begin(self, specs: list[Credit]) -> None:
        self.clock = Clock(100.0)
        self.specs = dict(zip(NAMES, specs, strict=True))
        self.mine: dict[str, deque[tuple[str, int]]] = {name: deque() for name in NAMES}
        self.theirs: dict[str, deque[tuple[str, int]]] = {name: deque() for name in NAMES}
        self.flows = {
            name: CreditFlow[str](
                name,
                lambda to, q, name=name: self.mine[to].append((name, q)),  # type: ignore[misc]
                clock=self.clock,
            )
            for name in NAMES
        }
        self.models = {
            name: Erlang(name, lambda to, mail: self.theirs[to].append(mail), self.clock)
            for name in NAMES
        }
        self.blocked = dict.fromkeys(NAMES, 0.0)
        self.blame: dict[str, dict[str, float]] = {name: {} for name in NAMES}

    @rule(me=who, to=who, n=st.integers(1, 8), at_once=st.booleans())
    def send(self, me: str, to: str, n: int, at_once: bool) -> None:
        if at_once:
            self.flows[me].send(to, self.specs[to], n)
        for _ in range(n):
            if not at_once:
                self.flows[me].send(to, self.specs[to])
            self.models[me].send(to, self.specs[to].initial)

    @rule(me=who, to=who, n=st.integers(1, 20), at_once=st.booleans())
    def ack(self, me: str, to: str, n: int, at_once: bool) -> None:
        if at_once:
            self.flows[me].ack(to, self.specs[me], n)
        for _ in range(n):
            if not at_once:
                self.flows[me].ack(to, self.specs[me])
            self.models[me].ack(to, self.specs[me].more_after)

    @precondition(lambda self: any(self.mine.values()))
    @rule(data=st.data())
    def deliver(self, data: st.DataObject) -> None:
        to = data.draw(st.sampled_from([name for name in NAMES if self.mine[name]]))
        peer, quantity = self.mine[to].popleft()
        self.flows[to].handle_bump(peer, quantity)
        self.models[to].handle_bump(*self.theirs[to].popleft())

    @rule(me=who, peer=who)
    def peer_down(self, me: str, peer: str) -> None:
        self.flows[me].peer_down(peer)
        self.models[me].peer_down(peer)

    @rule(me=who, peer=who, off=st.booleans())
    def for_a_reason_of_its_own(self, me: str, peer: str, off: bool) -> None:
        for each in (self.flows[me], self.models[me]):
            (each.unblock if off else each.block)(peer)

    @rule(quarters=st.integers(1, 8))
    def time_goes_by(self, quarters: int) -> None:
        seconds = quarters / 4
        self.clock.now += seconds
        for name, model in self.models.items():
            blockers = set(model.pd.get("credit_blocked", []))
            self.blocked[name] += seconds if blockers else 0.0
            for peer in blockers:
                self.blame[name][peer] = self.blame[name].get(peer, 0.0) + seconds

    @invariant()
    def they_agree(self) -> None:
        if not hasattr(self, "flows"):
            return
        assert self.mine == self.theirs
        for name in NAMES:
            flow, model = self.flows[name], self.models[name]
            assert flow.blocked == model.blocked()
            assert flow.credit_from == model.table("credit_from")
            assert flow.credit_to == model.table("credit_to")
            assert flow.blockers == model.pd.get("credit_blocked", [])
            assert flow.deferred == model.pd.get("credit_deferred", [])
            for interval in (STATE_CHANGE_SECONDS, READER_STATE_CHANGE_SECONDS):
                assert flow.state(sticky=interval) == model.state(interval)
            statistics = flow.statistics()
            assert statistics.blocked_seconds == self.blocked[name]
            assert {k: v for k, v in statistics.blame.items() if v} == self.blame[name]
            assert {each.peer for each in statistics.blockers} == set(flow.blockers)


TestBesideThePseudocode = BesideThePseudocode.TestCase
TestBesideThePseudocode.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
