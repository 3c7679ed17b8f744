"""A sink against a plain dict: parts, commits, aborts, crashes, and who has got which rows."""

from __future__ import annotations

import zlib

import attrs
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from clearfunds.accounts import Ledger, Limit
from clearfunds.dataspace import Dataspace, Publication, TopicFilter
from clearfunds.ranges.sink import Decision, SinkLimits, Sinks
from clearfunds.ranges.wire import (
    FencedError,
    NotStagedError,
    PartKey,
    RefusedError,
    Rows,
)
from tests.dataspace.conftest import STEADY
from tests.ranges.blocks import encode_rows
from tests.ranges.sink.disk import Log, MemoryDisk, Place, Row, block_of

NAME = "w"
FILTERS = {"all": "#", "some": "t/1"}
BATCH_BYTES = 900


@attrs.define
class Staged:
    """What the model knows of a part."""

    rows: list[bytes]
    whole: bool


@attrs.define
class Decided:
    """A batch that was committed."""

    batch: int
    rows: list[tuple[str, bytes]]
    ticket: int


class Machine(RuleBasedStateMachine):
    """`staged` and `decided` are the model."""

    on_disk = False

    def __init__(self) -> None:
        super().__init__()
        self.disk = MemoryDisk()
        self.decided: list[Decided] = []
        self.staged: dict[tuple[int, int], Staged] = {}
        self.batch = -1
        self.generation = 1
        self.serial = 0
        self.start()
        self.sink = self.sinks.open(NAME)
        self.disk.sync()

    def start(self) -> None:
        self.ledger = Ledger()
        self.dataspace = Dataspace(self.ledger)
        server = self.ledger.open("server")
        self.rest = self.ledger.open("rest", limit=Limit(items=None, bytes=1500), at_rest="disk")
        self.sinks = Sinks(
            self.ledger,
            server,
            self.rest,
            limits=SinkLimits(batch_bytes=BATCH_BYTES, block_bytes=1, max_parts=6, cache_bytes=100),
            limit_of=lambda *_: Limit(items=4, bytes=None),
            open_log=(lambda _: Log(self.disk)) if self.on_disk else None,
            confirm_of=Row,
            place_of=lambda recipient: getattr(recipient, "name", None),
        )
        self.places = {name: Place(self.ledger, name, self.disk) for name in FILTERS}
        with server.turn() as turn:
            for name, text in FILTERS.items():
                place = self.places[name]
                self.dataspace.observe(turn, TopicFilter(text), place, acked=place)

    # -- staging --------------------------------------------------------------------------------

    @property
    def last(self) -> int:
        return self.decided[-1].batch if self.decided else -1

    @rule(
        batch=st.integers(0, 3),
        partition=st.integers(0, 2),
        attempt=st.integers(0, 1),
        sizes=st.lists(st.integers(1, 3), max_size=3),
        whole=st.booleans(),
        torn=st.booleans(),
    )
    def stage(
        self,
        batch: int,
        partition: int,
        attempt: int,
        sizes: list[int],
        whole: bool,
        torn: bool,
    ) -> None:
        if not sizes and not whole:
            return
        batch += max(0, self.last - 1)
        key = PartKey(batch, partition, attempt)
        rows: list[bytes] = []
        crc = nbytes = 0
        try:
            for size in sizes:
                some = [b"%d" % n for n in range(self.serial, self.serial + size)]
                self.serial += size
                block = encode_rows([Publication(_topic(row), row, 1) for row in some])
                self.sink.stage(self, key, len(rows), block, size)
                rows += some
                crc, nbytes = zlib.crc32(block, crc), nbytes + len(block)
            if whole:
                already = self.sink.complete(self, key, len(rows), nbytes, crc ^ torn)
                assert already == (batch <= self.last)
        except RefusedError as exc:
            if "is over" in str(exc):
                assert self.last < batch < self.batch
                return
            known = "are staged, which is the limit" in str(exc)
            self._check_reason(str(exc))
            self._goes_to(batch)
            if not known:
                self.staged.pop(key[1:], None)
            return
        assert not (whole and torn) or batch <= self.last
        if batch <= self.last:
            return
        self._goes_to(batch)
        if rows or whole:
            self.staged[key[1:]] = Staged(rows, whole)

    @staticmethod
    def _check_reason(why: str) -> None:
        assert any(word in why for word in ("limit", "torn", "no room")), why

    def _goes_to(self, batch: int) -> None:
        if batch > self.batch:
            self.staged.clear()
            self.batch = batch

    @rule(batch=st.integers(0, 3))
    def abort(self, batch: int) -> None:
        batch += max(0, self.last - 1)
        self.sink.abort(batch)
        if batch == self.batch:
            self.staged.clear()
            self.batch = -1

    @rule()
    def the_connection_ends(self) -> None:
        self.sink.left_by(self)
        self.staged = {key: part for key, part in self.staged.items() if part.whole}

    @rule()
    def somebody_takes_over(self) -> None:
        self.sink.take_over()
        self.generation += 1
        with pytest.raises(FencedError):
            self.sink.check(self.generation - 1)
        self.sink.check(self.generation)
        self.staged.clear()
        self.batch = -1

    # -- committing -----------------------------------------------------------------------------

    @rule(
        batch=st.integers(0, 3),
        attempts=st.dictionaries(st.integers(0, 2), st.integers(0, 1)),
        right=st.booleans(),
    )
    def commit(self, batch: int, attempts: dict[int, int], right: bool) -> None:
        batch += max(0, self.last - 1)
        if right and self.batch >= 0:
            batch = self.batch
            attempts = {p: a for (p, a), part in self.staged.items() if part.whole}
        before = self.sink.publishing
        try:
            decision = self.sink.commit(batch, list(attempts.items()))
        except NotStagedError:
            assert batch > self.last
            parts = [self.staged.get(pair) for pair in attempts.items()]
            assert batch != self.batch or any(part is None or not part.whole for part in parts)
            return
        if batch <= self.last:
            assert decision is Decision.BEFORE
            return
        if decision is Decision.LATER:
            assert before is not None or self.on_disk
            return
        assert decision is Decision.NOW
        rows = [
            (_topic(row), row)
            for partition in sorted(attempts)
            for row in self.staged[partition, attempts[partition]].rows
        ]
        self.decided.append(Decided(batch, rows, self.disk.ticket))
        self.staged.clear()
        self.batch = -1
        publishing = self.sink.publishing
        assert publishing is not None
        if publishing.durable:
            publishing.end_if_over()

    @rule(parts=st.lists(st.lists(st.integers(1, 3), max_size=3), min_size=1, max_size=3))
    def a_whole_batch(self, parts: list[list[int]]) -> None:
        if self.sink.publishing is not None:
            return
        batch = max(self.batch, self.last + 1) - max(0, self.last - 1)
        for partition, sizes in enumerate(parts):
            self.stage(batch, partition, 0, sizes, True, False)
        self.sync(None)
        self.commit(batch, {}, True)
        self.sync(None)

    @rule(rows=st.integers(0, 6), written=st.integers(0, 6), durable=st.integers(0, 9))
    def some_is_taken(self, rows: int, written: int, durable: int) -> None:
        self.publish(rows)
        self.write(written)
        self.sync(durable)

    # -- publishing -----------------------------------------------------------------------------

    @rule(steps=st.integers(1, 5))
    def publish(self, steps: int) -> None:
        for _ in range(steps):
            publishing = self.sink.publishing
            if publishing is None or not publishing.durable:
                return
            if publishing.current is None:
                publishing.end_if_over()
                return
            rows = Rows(block_of(self.disk, self.sink))
            publishing.publish(self.dataspace, rows, -1)  # one row

    @rule(count=st.integers(1, 5))
    def write(self, count: int) -> None:
        for place in self.places.values():
            place.write(count)
        if not self.on_disk:
            self.sync(None)

    @rule(count=st.integers(1, 6) | st.none())
    def sync(self, count: int | None) -> None:
        ticket = self.disk.sync(count)
        self.sink.durable(ticket)
        for place in self.places.values():
            place.durable(ticket)
        if self.on_disk:
            self.sink.write()

    def have_all(self) -> None:
        """Let everything that is decided be taken by all."""
        for _ in range(1000):
            if self.sink.publishing is None:
                break
            self.sync(None)
            self.publish(5)
            self.write(100)
        assert self.sink.publishing is None

    @rule()
    def everything_settles(self) -> None:
        self.have_all()
        self.sync(None)
        self.sync(None)  # what had to wait for room until what was thrown away was erased
        for name, expected in self.expected().items():
            assert self.disk.now.taken.get(name, []) == expected
        assert self.sink.statistics().staged_items == self.sink.statistics().rest_items

    def expected(self) -> dict[str, list[bytes]]:
        rows = [row for each in self.decided for row in each.rows]
        return {
            "all": [row for _, row in rows],
            "some": [row for topic, row in rows if topic == "t/1"],
        }

    @invariant()
    def nobody_has_too_much_or_in_another_order(self) -> None:
        for name, expected in self.expected().items():
            taken = self.disk.now.taken.get(name, [])
            assert taken == expected[: len(taken)]

    @invariant()
    def the_books_balance(self) -> None:
        self.ledger.audit()
        statistics = self.sink.statistics()
        staged = [part for part in self.sink.parts.values() if not part.failed]
        assert {part.key[1:]: part.rows for part in staged} == {
            key: len(part.rows) for key, part in self.staged.items()
        }
        assert statistics.last == (None if self.last < 0 else self.last)
        assert statistics.staged_bytes == sum(part.nbytes for part in staged) <= BATCH_BYTES
        assert self.sink.rest.debt_items == statistics.rest_items
        assert self.rest.debt_bytes <= 1500
        if not self.on_disk:
            held = sum(part.rows for part in staged)
            held += len(self.decided[-1].rows) if self.sink.publishing is not None else 0
            assert statistics.rest_items <= held

    def teardown(self) -> None:
        self.have_all()
        self.everything_settles()
        self.sinks.close()
        for place in self.places.values():
            place.die()
        self.ledger.audit()
        assert self.ledger.statistics().debt_items == 0


class InRam(Machine):
    """Without a disk a sink keeps what it holds in RAM; its rows are taken all the same."""


class OnDisk(Machine):
    """With one, it is there after a crash."""

    on_disk = True

    @rule()
    def crash(self) -> None:
        durable = self.disk.durable
        self.disk.crash()
        for place in self.places.values():
            place.die()
        self.sinks.close()
        self.ledger.audit()
        self.decided = [each for each in self.decided if each.ticket <= durable]
        state = self.disk.now.state
        assert state is not None
        self.start()
        sink = self.sinks.make(NAME)
        useless = sink.restore(state, self.disk.parts(), self.disk.now.marks)
        self.sinks.take_up(sink)
        log = Log(self.disk)
        log.settle(state, [(part.key, part.place or 0) for part in useless])
        self.disk.sync()
        self.sink = sink
        self.generation = sink.generation
        # What was answered as whole is there: that is told when it is durable, as here.
        self.batch = sink.batch
        self.staged = {
            key: Staged([row.payload for row in self._rows(key)], True) for key in sink.parts
        }

    def _rows(self, key: tuple[int, int]) -> list[Publication]:
        part = self.sink.parts[key]
        assert part.place is not None
        found: list[Publication] = []
        for block in part.blocks:
            rows = Rows(self.disk.now.places[part.place][1][block.number])
            found += [Publication(*rows[n]) for n in range(rows.count)]
        assert len(found) == part.rows
        return found


def _topic(row: bytes) -> str:
    return f"t/{int(row) % 3}"


@pytest.mark.parametrize("machine", [InRam, OnDisk])
def test_it_agrees_with_a_plain_dict(machine: type[Machine]) -> None:
    case = machine.TestCase
    case.settings = settings(STEADY, max_examples=60, stateful_step_count=40)
    case("runTest").runTest()


@pytest.mark.long
@pytest.mark.parametrize("machine", [InRam, OnDisk])
def test_it_agrees_with_a_plain_dict_for_long(machine: type[Machine]) -> None:
    case = machine.TestCase
    case.settings = settings(STEADY, max_examples=3000, stateful_step_count=60)
    case("runTest").runTest()
