"""A subscription against a plain list: numbers, ranges, acknowledgements, disk, crashes, debt."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from clearfunds.accounts import Ledger, Limit
from clearfunds.dataspace import Dataspace, Publication
from clearfunds.ranges.log import (
    AtRest,
    RangeSubscription,
    SubscriptionLimits,
    SubscriptionOptions,
    Subscriptions,
)
from clearfunds.ranges.wire import DataLossError, OutOfRangeError
from tests.dataspace.conftest import STEADY
from tests.ranges.log.confirms import Told
from tests.ranges.log.conftest import publish, publish_run, rows
from tests.ranges.log.memory_log import MemoryDisk, MemoryLog

NAME = "readings"
CHUNK = 120
PLACES = st.floats(0, 1)

Message = tuple[str, bytes, bytes]


class Machine(RuleBasedStateMachine):
    """The list is `messages`; `low` and `visible` are where a reader may read."""

    durable = False

    def __init__(self) -> None:
        super().__init__()
        self.disk = MemoryDisk()
        self.messages: list[Message] = []
        self.low = 1
        self.told: dict[int, Told] = {}
        self.limits = SubscriptionLimits(
            max_disk_bytes=900, cache_bytes=250, retain_limit=Limit(items=16, bytes=1_000)
        )
        self.start()

    def start(self) -> None:
        self.ledger = Ledger()
        self.dataspace = Dataspace(self.ledger)
        server = self.ledger.open("server")
        self.publishers = [self.ledger.open(f"publisher/{n}", parent=server) for n in range(3)]
        self.subscriptions = Subscriptions(
            self.dataspace,
            server,
            disk=self.ledger.open("disk"),
            open_log=self.disk.open,
            limits=self.limits,
        )

    @initialize()
    def make(self) -> None:
        options = SubscriptionOptions(durable=self.durable)
        self.subscription = self.subscriptions.open(NAME, ["a/#"], options)
        if self.durable:
            self.log.sync()

    @property
    def log(self) -> MemoryLog:
        return self.disk.logs[NAME]

    @property
    def s(self) -> RangeSubscription:
        return self.subscription

    @property
    def visible(self) -> int:
        return self.s.head().next

    def _note(self, who: int, publication: Publication) -> None:
        name = self.publishers[who].name
        self.messages.append((name, publication.topic.encode(), publication.payload))

    @rule(who=st.integers(0, 2), size=st.integers(0, 60), qos=st.integers(0, 2))
    def publish(self, who: int, size: int, qos: int) -> None:
        number = len(self.messages) + 1
        publication = Publication(f"a/{number}", b"%d" % number * size, qos)
        told = self.told[number] = Told()
        with self.publishers[who].turn(publication, confirm=told) as turn:
            turn.publish(self.dataspace, publication)
        self._note(who, publication)
        publish(self.dataspace, self.publishers[who], Publication("b", b"for nobody"))

    @rule(who=st.integers(0, 2), count=st.integers(1, 12))
    def publish_run(self, who: int, count: int) -> None:
        run = [Publication("a", b"%d" % (len(self.messages) + n)) for n in range(count)]
        publish_run(self.dataspace, self.publishers[who], run)
        for publication in run:
            self._note(who, publication)

    @rule(start=PLACES, length=st.integers(0, 40), max_bytes=st.integers(0, 900))
    def fetch(self, start: float, length: int, max_bytes: int) -> None:
        low, visible = self.s.head()
        begin = low + int(start * (visible - low))
        end = begin + length
        found: list[Message] = []
        at = begin
        while at < min(end, visible):
            blocks = self.s.fetch(at, end, max_bytes)
            if isinstance(blocks, AtRest):
                assert blocks.start == at
                blocks = self.log.read(blocks)
            some = list(rows(blocks))
            assert [row.number for row in some] == list(range(at, at + len(some)))
            assert some
            found += [(row.account, row.key, row.value) for row in some]
            at += len(some)
        assert found == self.messages[begin - 1 : min(end, visible) - 1]
        assert self.s.fetch(at, at) == []

    @rule(place=PLACES)
    def ack(self, place: float) -> None:
        low, visible = self.s.head()
        self._ack(low + round(place * (visible - low)))

    @rule(count=st.integers(1, 3))
    def ack_some(self, count: int) -> None:
        low, visible = self.s.head()
        self._ack(min(low + count, visible))

    def _ack(self, upto: int) -> None:
        visible = self.visible
        head = self.s.ack(upto)
        self.low = max(self.low, upto)
        assert head == (self.low, visible)
        # Once more it changes nothing.
        assert self.s.ack(upto) == head

    @rule()
    def ask_for_too_much(self) -> None:
        low, visible = self.s.head()
        with pytest.raises(OutOfRangeError, match="cannot be acknowledged"):
            self.s.ack(visible + 1)
        with pytest.raises(OutOfRangeError, match="no message"):
            self.s.fetch(visible + 1, visible + 2)
        with pytest.raises(DataLossError, match="not there any more"):
            self.s.fetch(low - 1, low)

    @rule(cut_off=st.booleans())
    def its_patience_is_over(self, cut_off: bool) -> None:
        if cut_off:
            self.s.give_up("no progress")
        else:
            self.s.relieve("no progress")
        assert self.s.lagging
        self._oldest_may_have_gone()

    def _oldest_may_have_gone(self) -> None:
        """Take note of what was dropped of the oldest; only while it is behind that may be."""
        if self.s.lagging:
            assert self.low <= self.s.low
            self.low = self.s.low

    @invariant()
    def the_books_balance(self) -> None:
        self._oldest_may_have_gone()
        self.ledger.audit()
        statistics = self.s.statistics()
        kept = len(self.messages) + 1 - self.low
        assert statistics.unpaid_items + statistics.rest_items == kept
        loans = list(self.s.loans())
        assert sum(loan.items for loan in loans) == kept
        lagging = self.ledger.accounts.get("behind")
        own = 0 if lagging is None else lagging.debt_items
        publishers = [p.debt_items for p in self.publishers]
        assert sum(publishers) + own == statistics.unpaid_items
        if self.s.lagging and not self.durable:
            assert not any(publishers)
            assert own <= 16
        assert self.s.account.debt_items == statistics.rest_items
        assert (self.s.low, self.s.next) == (self.low, len(self.messages) + 1)

    def teardown(self) -> None:
        self.subscriptions.close()
        assert all(not account.debt_items for account in self.publishers)
        self.ledger.audit()


class InRam(Machine):
    """Everything stays on its publishers' accounts until it is acknowledged."""

    @invariant()
    def everything_can_be_read(self) -> None:
        assert self.visible == len(self.messages) + 1
        assert not any(told.expected for told in self.told.values())


class OnDisk(Machine):
    """What is durable is on the subscription's own account."""

    durable = True

    @rule()
    def write(self) -> None:
        self.s.write()

    @rule(count=st.integers(1, 6), write=st.booleans())
    def some_is_durable(self, count: int, write: bool) -> None:
        if write:
            self.s.write()
        self.s.durable(self.log.sync(count))

    @rule()
    def all_is_durable(self) -> None:
        self.s.write()
        self.s.durable(self.log.sync())

    @precondition(lambda self: self.messages)
    @rule()
    def crash(self) -> None:
        # What was not durable is lost: of acknowledgements, and of messages nobody could read.
        self.log.restart()
        log = self.log
        before = self.visible
        incarnation, generation = self.s.incarnation, self.s.generation
        self.subscriptions.close()
        self.ledger.audit()
        self.start()
        self.subscription = self.subscriptions.restore(
            NAME, log.state, low=log.low, following=log.following, nbytes=log.nbytes
        )
        self.low = log.low
        assert self.visible == max(log.low, log.following)
        assert self.s.next <= before or self.low == self.s.next
        del self.messages[self.s.next - 1 :]
        assert (self.s.incarnation, self.s.generation) == (incarnation, generation)
        self.told = {n: told for n, told in self.told.items() if n < self.s.next}

    @invariant()
    def what_can_be_read_is_on_disk(self) -> None:
        records = self.log.records
        assert self.visible == self.low or max(records) == self.visible - 1
        for number, told in self.told.items():
            assert told.was_taken == (told.expected if number < self.visible else 0)

    @invariant()
    def the_disk_is_not_overdrawn(self) -> None:
        statistics = self.s.statistics()
        # One chunk there may always be; and of one that is acknowledged in part, a restart finds
        # the whole.
        assert statistics.rest_bytes <= 900 + 500


@pytest.mark.parametrize("machine", [InRam, OnDisk])
def test_it_agrees_with_a_plain_list(machine: type[Machine], monkeypatch: Any) -> None:
    monkeypatch.setattr("clearfunds.ranges.log._subscription.CHUNK_BYTES", CHUNK)
    case = machine.TestCase
    case.settings = settings(STEADY, max_examples=60, stateful_step_count=40)
    case("runTest").runTest()
