"""A connection that does not take what it is sent, under each policy: what it gets in the end."""

from __future__ import annotations

import random
import socket
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

import attrs
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from clearfunds.access._subscription_policies import PolicyRule, PolicyRules
from clearfunds.accounts import (
    DEFAULT_PATIENCE,
    Account,
    Holder,
    Ledger,
    Limit,
    LoanedItem,
    LoanQueue,
    Outcome,
    StuckPolicy,
    Tracer,
    UnfitPolicyError,
    watch_patience,
)
from clearfunds.dataspace import Batch, TopicFilter
from clearfunds.persistence import RamShelves, open_ram_shelves
from clearfunds.persistence._spool import OpenSpool, Spool
from clearfunds.transports import Flusher, Outlet, open_flusher
from clearfunds.transports._backlog_messages import Frame, Framing
from clearfunds.transports._outlet_backlog import ConsumerPolicy, OutletBacklog
from clearfunds.transports.mqtt.codec._packets import encode_publish
from clearfunds.transports.mqtt.server._droppable import QOS_ZERO
from tests.transports.peers import until

KEEP = 20
DROPS = (StuckPolicy.DROP_OLDEST, StuckPolicy.DROP_NEWEST, StuckPolicy.CONFLATE)
RELIEVES = (*DROPS, StuckPolicy.SPILL)
PING_ANSWER = b"\xd0\x00"


class Box(LoanQueue):
    """Whose loans an outlet may forward."""

    kind = "box"

    def ready(self) -> None:
        """Do nothing."""

    def give_up(self, why: str) -> None:
        """Do nothing."""


@attrs.define
class Way:
    """An outlet, its peer, and who sends."""

    ledger: Ledger
    flusher: Flusher
    outlet: Outlet
    peer: socket.socket
    broken: list[str]
    accounts: list[Account]
    own: Account
    box: Box
    sent: list[tuple[str, int]] = attrs.field(factory=list[tuple[str, int]])
    got: bytearray = attrs.field(factory=bytearray)

    def send(self, messages: list[tuple[str, int]], by: int = 0) -> None:
        """Publish messages, on a topic and of a size each, as one run."""
        raw: list[bytes] = []
        for topic, size in messages:
            self.sent.append((topic, len(self.sent)))
            raw.append(encode_publish(topic, b"%06d" % self.sent[-1][1] + bytes(size)))
        batch = Batch(b"".join(raw), len(raw), lambda _: ())
        with self.accounts[by].turn(items=len(raw), nbytes=batch.nbytes) as turn:
            turn.send(self.outlet, batch, items=len(raw), nbytes=batch.nbytes)
        self.flusher.flush_now()

    def pass_nothing(self) -> None:
        """Have everything spilled: its publishers are over their limits."""
        for account in self.accounts:
            account.limit = Limit(items=0, bytes=None)

    def say(self) -> None:
        """Answer a ping, on the connection's own account."""
        with self.own.turn(items=1, nbytes=2) as turn:
            turn.send(self.outlet, PING_ANSWER, nbytes=2)

    def forward(self, payload: bytes) -> None:
        """Send what is to be acknowledged: another holder's."""
        loan = self.accounts[0].lend([encode_publish("q", payload, qos=1, packet_id=1)], nbytes=9)
        self.box.put(loan)
        self.outlet.forward(loan)
        self.flusher.flush_now()

    def take(self, most: int = 1 << 20) -> None:
        """Receive what has come."""
        with suppress(BlockingIOError):
            self.got += self.peer.recv(most)

    async def take_all(self) -> None:
        """Receive until nothing is left."""
        with trio.fail_after(30):
            while self.outlet.unsent:
                self.take()
                await trio.lowlevel.checkpoint()
        self.take()

    def block(self) -> None:
        """Send until the connection takes no more."""
        while not self.outlet.blocked:
            self.send([("block", 3_000)])

    def received(self) -> list[tuple[str, int]]:
        """Take what came apart: topics and numbers; of what is no publication only how much."""
        found: list[tuple[str, int]] = []
        position = 0
        raw = bytes(self.got)
        while position < len(raw):
            if raw.startswith(PING_ANSWER, position):
                found.append(("ping", len(found)))
                position += 2
                continue
            if raw[position] == 0x32:
                end = position + 2 + raw[position + 1]
                found.append(("q", int(raw[end - 6 : end])))
                position = end
                continue
            key, _, end, _ = next(QOS_ZERO.frames(raw, position))
            assert key is not None
            start = position + 1
            while raw[start] >= 128:
                start += 1
            start += 3 + len(key)
            found.append((key.decode(), int(raw[start : start + 6])))
            position = end
        return found


@asynccontextmanager
async def way(
    *policy_rules: StuckPolicy | tuple[str, StuckPolicy] | tuple[str, StuckPolicy, float],
    limit: int | None = None,
    framing: Framing = QOS_ZERO,
    fair: bool = False,
) -> AsyncGenerator[Way]:
    """The first policy is that of all that no filter matches."""
    ledger = Ledger()
    broken: list[str] = []
    ours, theirs = socket.socketpair()
    for sock in (ours, theirs):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        sock.setblocking(False)
    default = policy_rules[0]
    assert isinstance(default, StuckPolicy)
    rules = [
        (TopicFilter(each[0]), PolicyRule(each[1], each[2] if len(each) == 3 else 0.5))
        for each in policy_rules[1:]
        if not isinstance(each, StuckPolicy)
    ]
    at_rest = ledger.open("kept", limit=Limit(items=None, bytes=None), at_rest="ram")
    with ours, theirs:
        async with open_flusher() as flusher, open_ram_shelves(flusher) as shelves:
            outlet = Outlet(ledger, flusher, ours, "O", on_broken=broken.append)
            outlet.fair = fair
            outlet.owner = own = ledger.open("own")
            outlet.retain_limit = Limit(items=KEEP, bytes=1 << 20)
            outlet.deal_by(
                ConsumerPolicy(
                    PolicyRules(PolicyRule(default, 0.5), rules),
                    framing,
                    spool_opener(ledger, shelves, at_rest),
                    limit,
                )
            )
            w = Way(
                ledger, flusher, outlet, theirs, broken,
                [ledger.open("a"), ledger.open("b")], own, Box(ledger, "box"),
            )  # fmt: skip
            yield w
            ledger.audit()
            outlet.close()
            w.box.settle_all(Outcome.CANCELLED)
    ledger.audit()
    assert all(not account.debt_items for account in ledger.accounts.values())
    assert not ledger.lagging


def spool_opener(ledger: Ledger, shelves: RamShelves, at_rest: Account) -> OpenSpool:
    def open_spool(
        holder: Holder, on_more: Callable[[], object], on_over: Callable[[str], object]
    ) -> Spool:
        account = ledger.open("spill", limit=Limit(items=2_000, bytes=None), parent=at_rest)
        return Spool(holder, shelves, account, "spill", on_more=on_more, on_over=on_over)

    return open_spool


def keeps(policy: StuckPolicy, messages: list[tuple[str, int]]) -> list[tuple[str, int]]:
    """What a policy keeps of messages that came in this order."""
    if policy is StuckPolicy.DROP_OLDEST:
        return messages[-KEEP:]
    if policy is StuckPolicy.DROP_NEWEST:
        return messages[:KEEP]
    if policy is StuckPolicy.CONFLATE:
        latest = dict(messages)
        return sorted(latest.items(), key=lambda each: each[1])[-KEEP:]
    return messages


# -- one policy -----------------------------------------------------------------------------------


@pytest.mark.parametrize("before", [0, 50])
@pytest.mark.parametrize("policy", RELIEVES)
async def test_who_reads_again_gets_what_the_policy_says(policy: StuckPolicy, before: int) -> None:
    """What was under way, and then what is kept of all that came before and after."""
    async with way(policy) as w:
        w.block()
        w.pass_nothing()
        under_way = len(w.sent)
        for n in range(before):
            w.send([(f"t/{n % 5}", 10)], by=n % 2)
        w.outlet.relieve("it is stuck")
        assert w.outlet.lagging
        if policy is StuckPolicy.SPILL:  # they pay until it is on the shelf
            await until(lambda: not any(account.debt_items for account in w.accounts))
        assert [account.debt_items for account in w.accounts] == [0, 0]
        w.ledger.audit()
        for n in range(100):
            w.send([(f"t/{n % 7}", n), (f"t/{n % 3}", 0)], by=n % 2)
            if policy is not StuckPolicy.SPILL:
                assert [account.debt_items for account in w.accounts] == [0, 0]
        w.ledger.audit()
        kept = keeps(policy, w.sent[under_way:])
        lost = len(w.sent) - under_way - len(kept)
        assert w.outlet.relief.dropped_items == lost
        assert w.ledger.relief[policy].dropped_items == lost
        assert w.ledger.repaid_items[Outcome.DROPPED] == lost
        await w.take_all()
        assert w.received() == w.sent[:under_way] + kept
        assert not w.outlet.lagging
        # From then on it is as ever.
        w.got.clear()
        w.send([("t/x", 0)])
        w.take()
        assert w.received() == [w.sent[-1]]
        assert w.outlet.relief.dropped_items == lost


@pytest.mark.parametrize("policy", DROPS)
async def test_what_is_no_message_of_qos_0_is_never_dropped(policy: StuckPolicy) -> None:
    async with way(policy) as w:
        w.block()
        w.say()
        w.forward(b"000001")
        w.send([("t", 0)] * 100)
        w.outlet.relieve("it is stuck")
        assert w.own.debt_items == 1
        for n in range(2, 50):
            w.say()
            w.forward(b"%06d" % n)
            w.send([("t", 0)] * 100)
        await w.take_all()
        found = Counter(topic for topic, _ in w.received())
        assert found["ping"] == found["q"] == 49
        numbers = [number for topic, number in w.received() if topic == "q"]
        assert numbers == list(range(1, 50))
        w.ledger.audit()


@pytest.mark.parametrize("policy", DROPS)
async def test_all_who_are_behind_keep_no_more_than_they_may_together(policy: StuckPolicy) -> None:
    async with way(policy, limit=5_000) as w:
        w.block()
        w.outlet.relieve("it is stuck")
        above = w.ledger.accounts["behind"]
        begun = above.debt_bytes
        for n in range(40):
            w.send([(f"t/{n}", 1_000)])
            assert above.debt_bytes <= max(5_000, begun) + 1_020
        w.ledger.audit()
        got = len(w.sent) - w.outlet.relief.dropped_items
        await w.take_all()
        assert len(w.received()) == got
        if policy is not StuckPolicy.DROP_NEWEST:
            assert w.received()[-1] == w.sent[-1]


async def test_nobody_waits_on_it_however_low_the_limit_is() -> None:
    async with way(StuckPolicy.DROP_OLDEST) as w:
        w.accounts[0].limit = Limit(items=1)
        w.block()
        w.send([("t", 10)] * 5)
        assert not w.accounts[0].funds_are_clear()
        w.outlet.relieve("it is stuck")
        for _ in range(100):
            await w.accounts[0].ensure_clear_funds()
            w.send([("t", 10)] * 5)
        assert w.accounts[0].debt_items == 0


async def test_who_is_only_slow_stays_behind_until_it_has_caught_up() -> None:
    """It takes half of what comes: it is one spell, with gaps, and not one each time it blocks."""
    async with way(StuckPolicy.DROP_OLDEST) as w:
        w.block()
        w.outlet.relieve("it is stuck")
        for n in range(300):
            w.send([("t", 1_000)])
            if n % 10 == 0:
                w.take(5_000)
                await trio.lowlevel.checkpoint()
        assert w.outlet.lagging
        assert w.outlet.relief.spells == 1
        await w.take_all()
        assert w.received()[-KEEP:] == w.sent[-KEEP:]
        assert w.outlet.relief.dropped_items == len(w.sent) - len(w.received()) > 0


async def test_an_end_while_it_is_behind_settles_everything() -> None:
    for policy in RELIEVES:
        async with way(policy) as w:
            w.block()
            w.outlet.relieve("it is stuck")
            w.send([("t", 10)] * 10)
            w.say()
            await trio.testing.wait_all_tasks_blocked()
            w.outlet.close()
            assert not w.outlet.lagging
            assert not w.broken
            w.send([("t", 10)])
            assert all(not account.debt_items for account in w.ledger.accounts.values())


async def test_its_socket_fails_while_it_is_behind() -> None:
    async with way(StuckPolicy.DROP_NEWEST) as w:
        w.block()
        w.outlet.relieve("it is stuck")
        w.send([("t", 10)] * 10)
        w.peer.close()
        await until(lambda: w.broken)
        assert "could not be written to" in w.broken[0]


async def test_what_is_to_be_sent_in_a_moment_is_not_stuck() -> None:
    async with way(StuckPolicy.DROP_OLDEST) as w:
        with w.flusher.corked():
            with w.accounts[0].turn(items=1, nbytes=4) as turn:
                turn.send(w.outlet, encode_publish("t", b""), nbytes=4)
            w.outlet.relieve("with no patience at all")
            assert not w.outlet.lagging
        w.flusher.flush_now()


async def test_what_it_cannot_do_it_says_when_it_is_told_to() -> None:
    async with way(StuckPolicy.DROP_OLDEST) as w:
        with pytest.raises(UnfitPolicyError, match="outlet O cannot spill"):
            w.outlet.deal_by(
                ConsumerPolicy(PolicyRules(PolicyRule(StuckPolicy.SPILL, 1.0)), QOS_ZERO)
            )
        with pytest.raises(UnfitPolicyError, match="outlet P cannot conflate"):
            Outlet(
                w.ledger, w.flusher, w.peer, "P", on_broken=w.broken.append,
                policy=StuckPolicy.CONFLATE,
            )  # fmt: skip


async def test_what_is_spilled_is_bounded() -> None:
    """There is no more room: then publishers wait for it, and go on as its peer reads."""
    async with way(StuckPolicy.SPILL) as w:
        w.block()
        w.pass_nothing()
        w.outlet.relieve("it is stuck")
        for _ in range(30):
            w.send([("t", 10)] * 100)
            await trio.testing.wait_all_tasks_blocked()
        assert not w.outlet.closed
        assert w.outlet.full_patience is not None
        assert w.outlet.policy is StuckPolicy.DISCONNECT
        assert w.accounts[0].debt_items > 0
        w.ledger.audit()
        await w.take_all()
        assert w.received() == w.sent
        assert w.outlet.full_patience is None


# -- several, by topic ----------------------------------------------------------------------------


async def test_each_topic_is_dealt_with_as_its_rule_says() -> None:
    policies: dict[str, StuckPolicy] = {
        "o": StuckPolicy.DROP_OLDEST,
        "n": StuckPolicy.DROP_NEWEST,
        "c": StuckPolicy.CONFLATE,
        "s": StuckPolicy.SPILL,
        "w": StuckPolicy.WAIT,
    }
    rules = [(f"{name}/#", policy) for name, policy in policies.items()]
    async with way(StuckPolicy.DROP_OLDEST, *rules) as w:
        w.block()
        under_way = len(w.sent)
        random.seed(7)
        for n in range(200):
            if n == 60:
                assert w.outlet.policy is StuckPolicy.DROP_OLDEST
                w.outlet.relieve("it is stuck")
            w.send([(f"{random.choice('oncsw')}/{n % 3}", n % 50) for _ in range(5)])
        w.ledger.audit()
        assert w.outlet.policy is StuckPolicy.WAIT  # what it is waited for now
        await w.take_all()
        got = w.received()[under_way:]
        for name, policy in policies.items():
            here = [each for each in w.sent[under_way:] if each[0][0] == name]
            assert [each for each in got if each[0][0] == name] == keeps(policy, here), name


async def test_of_several_policies_the_strictest_is_that_of_the_outlet() -> None:
    rules = [("d", StuckPolicy.DISCONNECT), ("w", StuckPolicy.WAIT)]
    async with way(StuckPolicy.CONFLATE, *rules) as w:
        found = [w.outlet.policy]  # of what is not there
        w.block()
        found.append(w.outlet.policy)
        w.send([("w", 0)])
        found.append(w.outlet.policy)
        w.outlet.relieve("it is stuck")
        w.send([("t", 0)])
        found.append(w.outlet.policy)
        w.send([("d", 0)])
        found.append(w.outlet.policy)
        assert found == ["conflate", "conflate", "conflate", "wait", "disconnect"]
    async with way(StuckPolicy.CONFLATE, *rules) as w:
        while not w.outlet.blocked:
            w.send([("w", 3_000)])
        # Only what is under way is there.
        assert w.outlet.policy is StuckPolicy.WAIT


@pytest.mark.parametrize(
    ("policy", "kept"), [(StuckPolicy.DROP_OLDEST, KEEP), (StuckPolicy.CONFLATE, 1)]
)
async def test_what_is_kept_is_as_old_as_the_oldest_of_it(policy: StuckPolicy, kept: int) -> None:
    """And not as what the spell began with, which may be long gone."""
    async with way(policy) as w:
        w.block()
        w.outlet.relieve("it is stuck")
        times: list[float] = []
        for _ in range(3 * KEEP):
            times.append(w.ledger.clock())
            w.send([("t", 10)])
        (loan,) = [loan for loan in w.outlet.loans() if loan.account.name == "behind/O"]
        assert times[-kept] <= loan.opened
        assert kept == 1 or loan.opened <= times[1 - kept]
        await w.take_all()


@pytest.mark.parametrize(("items", "cut"), [(1, False), (30, True)])
async def test_answers_that_are_not_read_do_not_hold_up_who_shares_a_limit(
    items: int, cut: bool
) -> None:
    """They may not be dropped; who has a few of them is left alone."""
    async with way(StuckPolicy.DROP_OLDEST) as w:
        tenant = w.ledger.open("tenant", limit=Limit(items=20))
        w.outlet.owner = own = w.ledger.open("tenant/own", parent=tenant)
        other = w.ledger.open("tenant/other", parent=tenant)
        w.block()
        w.outlet.relieve("it is stuck")
        own.borrow(items, 2 * items)
        w.outlet.hold(own, PING_ANSWER * items, items, 2 * items, 0.0)
        elsewhere = other.lend([b""], items=30)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(other.ensure_clear_funds)
            await until(lambda: bool(other.waiting))
            w.outlet.relieve("it is stuck")
            assert w.outlet.closed is cut
            elsewhere.settle()
            nursery.cancel_scope.cancel()
        if not cut:
            await w.take_all()


@pytest.mark.parametrize("traced", [False, True])
async def test_tracing_a_peer_does_not_make_its_answers_anybody_elses(traced: bool) -> None:
    async with way(StuckPolicy.DROP_OLDEST) as w:
        w.block()
        w.outlet.relieve("it is stuck")
        backlog = w.outlet.backlog
        assert isinstance(backlog, OutletBacklog)
        with Tracer(w.ledger, "own".__eq__, events=1000 * traced) as tracer:
            for _ in range(3):
                w.say()
            assert not backlog.undroppable()
            await w.take_all()
            assert [trace.outcomes for trace in tracer.rest()] == 3 * traced * [
                {Outcome.DELIVERED: 1}
            ]


@pytest.mark.parametrize("traced", [False, True])
async def test_whom_the_watch_ends_does_not_depend_on_a_trace(traced: bool) -> None:
    """A peer that does not read its own answers is not read itself, and holds up nobody else."""
    async with way(StuckPolicy.DROP_OLDEST) as w, trio.open_nursery() as nursery:
        w.outlet.patience = 0.01
        w.own.limit = Limit(items=2)
        w.block()
        w.outlet.relieve("it is stuck")
        with Tracer(w.ledger, "own".__eq__, events=1000 * traced):
            for _ in range(5):
                w.say()
            nursery.start_soon(w.own.ensure_clear_funds)
            await until(lambda: bool(w.own.waiting))
            nursery.start_soon(partial(watch_patience, w.ledger, every=0.01))
            await trio.sleep(0.1)
            assert w.broken == []
            await w.take_all()
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("policy", RELIEVES)
async def test_what_is_traced_is_followed_into_the_backlog(policy: StuckPolicy) -> None:
    """Both what is there when it falls behind, and what comes then."""
    async with way(policy) as w:
        w.block()
        w.pass_nothing()
        with Tracer(w.ledger, "b".__eq__, events=4) as tracer:
            for n in range(4):
                if n == 2:
                    w.outlet.relieve("it is stuck")
                w.send([("t", 10)] * 2 * KEEP, by=1)
            assert w.outlet.backlog is not None
            traces = [await tracer.next() for _ in range(4 * (policy is not StuckPolicy.SPILL))]
            await w.take_all()
            traces += tracer.rest()
        found = Counter[Outcome]()
        for trace in traces:
            assert trace.complete
            found.update(trace.outcomes)
        assert sum(found.values()) == 8 * KEEP
        assert (
            found
            == {
                StuckPolicy.DROP_OLDEST: {Outcome.STORED: 8 * KEEP},
                StuckPolicy.CONFLATE: {Outcome.STORED: 8 * KEEP},
                StuckPolicy.SPILL: {Outcome.STORED: 8 * KEEP},
                StuckPolicy.DROP_NEWEST: {Outcome.STORED: 2 * KEEP, Outcome.DROPPED: 6 * KEEP},
            }[policy]
        )


async def test_what_is_held_is_looked_at_once_however_often_somebody_asks() -> None:
    """8 MiB of short messages are a tenth of a second, each time."""
    looked = 0

    class Counting:
        def may_drop(self, chunk: bytes) -> bool:
            return QOS_ZERO.may_drop(chunk)

        def frames(self, chunk: bytes, start: int = 0) -> Iterator[Frame]:
            nonlocal looked
            for frame in QOS_ZERO.frames(chunk, start):
                looked += 1
                yield frame

    async with way(StuckPolicy.CONFLATE, ("w", StuckPolicy.WAIT), framing=Counting()) as w:
        w.block()
        for lagging in (False, True):
            topic = "w" if lagging else "t"
            looked = 0
            for sent in range(1, 101):
                w.send([(topic, 10)] * 10)
                w.outlet.progressed_at = -1e9
                for _ in range(5):
                    assert w.outlet.policy is (
                        StuckPolicy.WAIT if lagging else StuckPolicy.CONFLATE
                    )
                    assert w.outlet.patience == 0.5
                assert looked <= 20 * sent
            if not lagging:
                w.outlet.relieve("it is stuck")
        await w.take_all()


async def test_each_has_its_own_patience() -> None:
    """What is relieved soon does not make that be disconnected soon which has more time."""
    rules = [("d", StuckPolicy.DISCONNECT, 20.0), ("w", StuckPolicy.WAIT, 0.1)]
    async with way(StuckPolicy.CONFLATE, *rules) as w:
        seen: list[tuple[str, float]] = []

        def look() -> None:
            w.outlet.progressed_at = -1e9
            seen.append((w.outlet.policy, w.outlet.patience))

        w.block()
        assert w.outlet.patience == 0.1  # it has just taken something: any would do
        look()
        w.send([("w", 0), ("d", 0)])
        look()
        w.outlet.relieve("it is stuck")
        look()
        w.send([("t", 0)])
        look()
        assert seen[:2] == [("conflate", 0.5)] * 2
        assert seen[2:] == [("disconnect", 20.0)] * 2
    async with way(StuckPolicy.CONFLATE, *rules) as w:
        while not w.outlet.blocked:
            w.send([("w", 3_000)])
        w.outlet.progressed_at = -1e9
        assert (w.outlet.policy, w.outlet.patience) == ("wait", 0.1)


STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.just("send"),
            st.lists(
                st.tuples(st.sampled_from(["o", "n", "c", "s", "w", "x/y"]), st.integers(0, 3_000)),
                min_size=1, max_size=8,
            ),
            st.integers(0, 1),
        ),
        st.tuples(st.just("take"), st.integers(1, 20_000)),
        st.tuples(st.just("relieve")),
        st.tuples(st.just("say")),
        st.tuples(st.just("forward")),
        st.tuples(st.just("yield")),
        st.tuples(st.just("keep order")),
        st.tuples(st.just("withdraw")),
    ),
    min_size=5, max_size=60,
)  # fmt: skip


@given(steps=STEPS, default=st.sampled_from(RELIEVES), fair=st.booleans())
@settings(max_examples=60, deadline=None)
async def test_whatever_happens_the_books_balance_and_order_holds(
    steps: list[tuple[Any, ...]], default: StuckPolicy, fair: bool
) -> None:
    """The order of each topic, which is one publisher's: a fair outlet keeps no other."""
    rules = [
        ("o/+", StuckPolicy.DROP_OLDEST), ("n/+", StuckPolicy.DROP_NEWEST),
        ("c/+", StuckPolicy.CONFLATE), ("s/+", StuckPolicy.SPILL), ("w/+", StuckPolicy.WAIT),
    ]  # fmt: skip
    never = {"s", "w"}
    if default is StuckPolicy.SPILL:
        never |= {"x", "block"}
    async with way(default, *rules, fair=fair) as w:
        w.block()
        said = forwarded = 0
        withdrawn: list[int] = []
        for step in steps:
            match step:
                case ("send", messages, by):
                    w.send([(f"{topic}/{by}", size) for topic, size in messages], by)
                case ("take", most):
                    w.take(most)
                case ("relieve",):
                    if w.outlet.blocked and w.outlet.policy.relieves:
                        w.outlet.relieve("it is stuck")
                case ("say",):
                    w.say()
                    said += 1
                case ("forward",):
                    forwarded += 1
                    w.forward(b"%06d" % forwarded)
                case ("keep order",):
                    w.outlet.keep_order()
                case ("withdraw",):
                    for loan in w.outlet.withdraw(w.box):
                        withdrawn.append(int(loan.item[0][-6:]))
                        assert not any(each is loan for each in w.outlet.unbegun())
                case _:
                    await trio.lowlevel.checkpoint()
            w.ledger.audit()
        await w.take_all()
        w.ledger.audit()
        received = w.received()
        found = Counter(topic for topic, _ in received)
        assert found["ping"] == said
        came = [number for topic, number in received if topic == "q"]
        assert came == [n for n in range(1, forwarded + 1) if n not in withdrawn]
        got = [each for each in received if each[0] not in ("ping", "q")]
        assert len(got) + w.outlet.relief.dropped_items == len(w.sent)
        for topic in {topic for topic, _ in w.sent}:
            kind = topic.partition("/")[0]
            there = [number for t, number in w.sent if t == topic]
            here = [number for t, number in got if t == topic]
            assert here == sorted(set(here))
            assert set(here) <= set(there)
            if kind in never:
                assert here == there
            if kind in ("o", "c"):
                assert here[-1] == there[-1]


def loans_of(outlet: Outlet) -> list[LoanedItem[Any]]:
    return list(outlet.loans())


async def test_the_audit_finds_what_is_kept_and_not_owed_for() -> None:
    async with way(StuckPolicy.DROP_OLDEST) as w:
        w.block()
        w.outlet.relieve("it is stuck")
        w.send([("t", 10)] * 10)
        kept = next(x for x in loans_of(w.outlet) if x.items == 10)
        kept.bytes -= 7
        found = w.outlet.surplus()
        assert found == (7, "bytes")
        kept.bytes += 7


@pytest.mark.parametrize("policy", RELIEVES)
async def test_nobody_waits_on_it_when_it_has_read_a_little(policy: StuckPolicy) -> None:
    """What it is sent then is no longer its publishers', whatever had been dropped or put aside."""
    async with way(policy) as w:
        w.block()
        w.pass_nothing()
        w.outlet.relieve("it is stuck")
        for n in range(60):
            w.send([(f"t/{n}", 3_000)])
            if n % 5 == 4:
                w.take(4_000)
            await trio.testing.wait_all_tasks_blocked()
            assert [account.debt_items for account in w.accounts] == [0, 0]
        await w.take_all()


async def test_what_is_waited_for_is_so_also_when_it_is_under_way() -> None:
    rules = [("w", StuckPolicy.WAIT), ("d", StuckPolicy.DISCONNECT)]
    async with way(StuckPolicy.DROP_OLDEST, *rules) as w:
        w.block()
        w.outlet.relieve("it is stuck")
        for topic, policy in (("w", "wait"), ("d", "disconnect")):
            w.send([(topic, 300_000)])
            with trio.fail_after(10):
                while w.outlet.queue[-1].account is not w.accounts[0]:
                    w.take(2_000)
                    await trio.lowlevel.checkpoint()
            assert w.outlet.policy == policy
            await w.take_all()
            assert not w.outlet.lagging
            w.block()
            w.outlet.relieve("it is stuck")


async def under_way(w: Way, topic: bytes) -> None:
    """Take something until a message on a topic of one letter is being sent."""
    with trio.fail_after(10):
        while not any(
            chunk[:7].endswith(b"\x00\x01" + topic)
            for loan in w.outlet.queue
            for chunk in loan.item
        ):
            w.take(2_000)
            await trio.lowlevel.checkpoint()


async def test_what_passed_by_and_is_under_way_ends_no_connection_when_somebody_waits() -> None:
    """It has been begun: it is finished, at the cost of the one who is behind."""
    async with way(StuckPolicy.SPILL, fair=True) as w:
        w.block()
        w.accounts[0].limit = Limit(items=0, bytes=None)
        w.outlet.relieve("it is stuck")
        w.send([("a", 3_000)] * 40)
        w.send([("b", 50_000)], by=1)
        await under_way(w, b"b")
        w.accounts[1].limit = Limit(items=0, bytes=None)
        w.outlet.relieve("somebody waits")
        assert w.broken == []
        await until(w.accounts[1].funds_are_clear)
        w.ledger.audit()
        await w.take_all()
        for topic in ("a", "b", "block"):
            assert [each for each in w.received() if each[0] == topic] == [
                each for each in w.sent if each[0] == topic
            ]


@pytest.mark.parametrize("other", [StuckPolicy.WAIT, StuckPolicy.DISCONNECT])
async def test_what_was_to_pass_by_is_spilled_also_beside_what_stays(other: StuckPolicy) -> None:
    """Who waits for it does not wait for what others' messages wait for."""
    async with way(StuckPolicy.SPILL, ("stays", other, 20.0), fair=True) as w:
        w.block()
        w.outlet.relieve("it is stuck")
        w.send([("stays", 10)])
        w.send([("b", 10)], by=1)
        w.accounts[1].limit = Limit(items=0, bytes=None)
        assert not w.accounts[1].funds_are_clear()
        w.outlet.progressed_at = -1e9
        assert (w.outlet.policy, w.outlet.patience) == (StuckPolicy.SPILL, 0.5)
        w.outlet.relieve("somebody waits")
        assert w.broken == []
        await until(w.accounts[1].funds_are_clear)
        w.outlet.progressed_at = -1e9
        assert (w.outlet.policy, w.outlet.patience) == (other, 20.0)
        assert w.accounts[0].debt_items == 1
        await w.take_all()
        assert sorted(w.received()) == sorted(w.sent)


@pytest.mark.parametrize("as_one", [True, False])
async def test_what_framing_adds_is_no_surplus_of_one_message_of_many(as_one: bool) -> None:
    """Messages are charged without their framing, and those of one loan may have several ways."""
    packets = [encode_publish(topic, b"%050d" % n) for n, topic in enumerate("t" * 20 + "w")]
    size = sum(map(len, packets)) - 5 * len(packets)
    async with way(StuckPolicy.DROP_OLDEST, ("w", StuckPolicy.WAIT)) as w:
        w.block()
        if as_one:
            w.outlet.relieve("it is stuck")
            w.accounts[0].borrow(len(packets), size)
            w.outlet.hold(w.accounts[0], b"".join(packets), len(packets), size, 0.0)
        else:
            for packet in packets:
                with w.accounts[0].turn() as turn:
                    turn.send(w.outlet, packet, nbytes=len(packet) - 5)
            w.outlet.relieve("it is stuck")
        assert w.outlet.surplus() is None
        w.ledger.audit()
        (loan,) = [each for each in w.outlet.loans() if each.account is w.accounts[0]]
        assert loan.bytes == len(packets[-1]) - 5
        await w.take_all()


async def test_without_room_nobody_is_disconnected_for_messages_that_are_to_be_waited_for() -> None:
    """As long as nobody waits for those that there is no room for."""
    async with way(StuckPolicy.SPILL, ("w", StuckPolicy.WAIT, 30.0)) as w:
        w.block()
        w.outlet.relieve("it is stuck")
        w.send([("w", 10)])
        w.accounts[1].limit = Limit(items=0, bytes=None)
        for _ in range(25):
            w.send([("t", 10)] * 100, by=1)
            await trio.testing.wait_all_tasks_blocked()
        assert w.outlet.full_patience == DEFAULT_PATIENCE
        w.outlet.progressed_at = -1e9
        assert (w.outlet.policy, w.outlet.patience) == ("disconnect", DEFAULT_PATIENCE)
        w.accounts[1].limit = Limit()
        w.accounts[0].limit = Limit(items=0, bytes=None)
        assert (w.outlet.policy, w.outlet.patience) == ("wait", 30.0)
        await w.take_all()
        assert len(w.received()) == len(w.sent)


@pytest.mark.parametrize("fair", [True, False])
async def test_only_in_a_fair_outlet_few_messages_pass_by_many(fair: bool) -> None:
    async with way(StuckPolicy.SPILL, fair=fair) as w:
        w.block()
        w.outlet.relieve("it is stuck")
        w.send([("many", 3_000)] * 300)
        await trio.testing.wait_all_tasks_blocked()
        w.send([("few", 10)], by=1)
        await w.take_all()
        topics = [topic for topic, _ in w.received()]
        assert topics.count("many") == 300
        assert (topics[-1] == "few") is not fair
