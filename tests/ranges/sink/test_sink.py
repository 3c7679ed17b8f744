"""A sink by itself: room at rest, patience, what is forgotten and when."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

import pytest

from clearfunds.accounts import Account, Ledger, Limit, Outcome, StuckPolicy
from clearfunds.dataspace import Dataspace, Mailbox, Publication, TopicFilter
from clearfunds.ranges.sink import Decision, Sink, SinkLimits, Sinks
from clearfunds.ranges.wire import NotStagedError, PartKey, RefusedError, Rows
from clearfunds.testing import Clock
from tests.accounts.conftest import Recording
from tests.ranges.blocks import encode_rows
from tests.ranges.sink.disk import Log, MemoryDisk, Row

HUNDRED = encode_rows([Publication("t/a", bytes(74), 1)])
assert len(HUNDRED) == 100


@pytest.fixture
def clock() -> Clock:
    return Clock(1_000.0)


@pytest.fixture
def ledger(clock: Clock) -> Iterator[Ledger]:
    ledger = Ledger(clock=clock)
    yield ledger
    ledger.audit()


@pytest.fixture
def rest(ledger: Ledger) -> Account:
    return ledger.open("disk", limit=Limit(items=None, bytes=300), at_rest="disk")


@pytest.fixture
def disk() -> MemoryDisk:
    return MemoryDisk()


def on_disk(
    ledger: Ledger, rest: Account, disk: MemoryDisk, clock: Clock, **limits: object
) -> Sinks:
    limits.setdefault("cache_bytes", 0)
    return Sinks(
        ledger,
        ledger.open("server"),
        rest,
        limits=SinkLimits(**limits),  # type: ignore[arg-type]
        open_log=lambda _: Log(disk),
        confirm_of=Row,
        wall=clock,
    )


def stage(sink: Sink, key: PartKey, blocks: int) -> None:
    for place in range(blocks):
        sink.stage(None, key, place, HUNDRED, 1)


def complete(sink: Sink, key: PartKey, blocks: int) -> None:
    sink.complete(None, key, blocks, 100 * blocks, zlib.crc32(HUNDRED * blocks))


def test_what_finds_no_room_at_rest_waits_and_its_writer_owes(
    ledger: Ledger, rest: Account, disk: MemoryDisk, clock: Clock
) -> None:
    sinks = on_disk(ledger, rest, disk, clock)
    sink = sinks.open("w")
    others = ledger.open("queue", parent=rest)
    loan = others.lend("somebody else's", nbytes=150)
    key = PartKey(0, 0, 0)
    stage(sink, key, 3)
    complete(sink, key, 3)
    # What is being written has its room reserved.
    assert sink.account.debt_bytes == 300
    sink.durable(disk.sync())
    assert (sink.account.debt_bytes, sink.rest.debt_bytes, rest.debt_bytes) == (200, 100, 250)
    assert ledger.repaid_items[Outcome.STORED] == 1
    assert not sink.is_noted(key)
    assert sink.commit(0, [(0, 0)]) is Decision.LATER
    loan.settle()
    sinks.look_for_the_stuck()
    assert sink.is_noted(key)
    sink.durable(disk.sync())
    assert (sink.account.debt_bytes, sink.rest.debt_bytes) == (0, 300)
    assert sink.commit(0, [(0, 0)]) is Decision.NOW
    assert sink.publishing is not None
    assert not sink.publishing.durable
    sink.durable(disk.sync())
    assert sink.publishing.durable
    sinks.close()


def test_nobody_waits_for_room_for_ever(
    ledger: Ledger, rest: Account, disk: MemoryDisk, clock: Clock
) -> None:
    sinks = on_disk(ledger, rest, disk, clock, patience=10)
    sink = sinks.open("w")
    other = sinks.open("other")
    stage(other, PartKey(0, 5, 0), 2)  # the disk of the test knows parts by their key
    other.durable(disk.sync())
    key = PartKey(0, 0, 0)
    stage(sink, key, 2)
    sink.durable(disk.sync())
    clock.now += 9
    assert sinks.look_for_the_stuck() == []
    clock.now += 2
    assert sinks.look_for_the_stuck() == [sink]
    assert sink.account.debt_bytes == sink.rest.debt_bytes == 0
    assert ledger.repaid_items[Outcome.WRITTEN_OFF] == 2
    with pytest.raises(RefusedError, match="the disk has no room"):
        sink.stage(None, key, 2, HUNDRED, 1)
    with pytest.raises(RefusedError, match=r"written off.*waited for 10 s"):
        complete(sink, key, 2)
    with pytest.raises(NotStagedError, match="the disk has no room"):
        sink.commit(0, [(0, 0)])
    # It is staged anew, once there is room.
    other.abort(0)
    stage(sink, key, 2)
    complete(sink, key, 2)
    sink.durable(disk.sync())
    assert sink.commit(0, [(0, 0)]) is Decision.NOW
    sinks.close()


def test_what_is_thrown_away_is_owed_for_until_the_disk_has_had_it(
    ledger: Ledger, rest: Account, disk: MemoryDisk, clock: Clock
) -> None:
    sinks = on_disk(ledger, rest, disk, clock)
    sink = sinks.open("w")
    key = PartKey(0, 0, 0)
    # Room for three is reserved: one that begins again and again writes no more than that, and
    # has no more in memory than it owes for.
    for done in range(1, 6):
        stage(sink, key, 1)
        assert sink.account.debt_bytes == 100 * min(done, 4)
    sink.abort(0)
    assert sink.account.debt_bytes == 300
    ledger.audit()
    sink.durable(disk.sync())
    assert sink.account.debt_bytes == sink.rest.debt_bytes == 0
    assert ledger.repaid_items[Outcome.DROPPED] == 5
    stage(sink, key, 3)
    sinks.forget(sink)
    assert ledger.statistics().debt_items == 0
    sinks.close()


def test_a_policy_may_be_to_wait(
    ledger: Ledger, rest: Account, disk: MemoryDisk, clock: Clock
) -> None:
    sinks = on_disk(ledger, rest, disk, clock, patience=10, stuck=StuckPolicy.WAIT)
    sink = sinks.open("w")
    stage(sink, PartKey(0, 0, 0), 4)
    sink.durable(disk.sync())
    clock.now += 1000
    assert sinks.look_for_the_stuck() == []
    assert sink.account.debt_bytes == 100
    sinks.close()


def test_who_commits_nothing_is_forgotten_once_all_is_published(
    ledger: Ledger, rest: Account, disk: MemoryDisk, clock: Clock
) -> None:
    dataspace = Dataspace(ledger)
    sinks = on_disk(ledger, rest, disk, clock, expiry=100, grace=50)
    sink = sinks.open("w")
    key = PartKey(4, 0, 0)
    stage(sink, key, 1)
    complete(sink, key, 1)
    sink.durable(disk.sync())
    sink.commit(4, [(0, 0)])
    stage(sink, PartKey(5, 0, 0), 1)
    sink.durable(disk.sync())
    clock.now += 60
    assert sinks.look(lambda _: False) == ([(sink, 1)], [])
    clock.now += 60
    # Something is to be published still.
    assert sinks.look(lambda _: False) == ([], [])
    publishing = sink.publishing
    assert publishing is not None
    assert publishing.publish(dataspace, Rows(HUNDRED), 1)
    assert sink.publishing is None
    assert sinks.look(lambda _: True) == ([], [])
    assert sinks.look(lambda _: False) == ([], [sink])
    assert sinks.find("w") is None
    assert (disk.now.state, disk.now.places, disk.now.whole) == (None, {}, {})
    assert set(ledger.accounts) == {"server", "disk"}
    assert sinks.statistics().committed == sinks.statistics().published == 1


def test_a_writer_that_is_made_to_wait_is_not_taken_to_be_away(
    ledger: Ledger, rest: Account, disk: MemoryDisk, clock: Clock
) -> None:
    sinks = on_disk(ledger, rest, disk, clock, grace=50)
    sink = sinks.open("w")
    stage(sink, PartKey(0, 0, 0), 1)
    sink.durable(disk.sync())
    # What it has published before, somebody takes all night for.
    sink.account.limit = Limit(items=1)
    taken = [sink.account.lend("a row") for _ in range(3)]
    for _ in range(5):
        clock.now += 40
        assert sinks.look(lambda _: True) == ([], [])
    for loan in taken:
        loan.settle()
    clock.now += 40
    assert sinks.look(lambda _: True) == ([], [])
    clock.now += 40
    assert sinks.look(lambda _: True) == ([(sink, 1)], [])
    sinks.close()


def test_rows_are_as_old_as_they_are_though_something_is_always_at_rest(
    ledger: Ledger, rest: Account, disk: MemoryDisk, clock: Clock
) -> None:
    dataspace = Dataspace(ledger)
    sinks = on_disk(ledger, rest, disk, clock)
    sink = sinks.open("w")
    ledger.recorder = recording = Recording()
    for batch in range(4):
        # The next batch is staged before this one is published.
        stage(sink, PartKey(batch, 0, 0), 1)
        complete(sink, PartKey(batch, 0, 0), 1)
        sink.durable(disk.sync())
        clock.now += 10
        publishing = sink.publishing
        if publishing is not None:
            assert publishing.publish(dataspace, Rows(HUNDRED), 1)
        sink.commit(batch, [(0, 0)])
        sink.durable(disk.sync())
        assert rest.debt_items == 1
    kept = [each for each in recording.settlements if each.account == "staged/w"]
    assert [each.opened for each in kept] == [1000.0, 1010.0, 1020.0]
    sinks.close()


def test_who_is_forgotten_while_something_is_published_is_so_after_that(
    ledger: Ledger, rest: Account, disk: MemoryDisk, clock: Clock
) -> None:
    dataspace = Dataspace(ledger)
    sinks = on_disk(ledger, rest, disk, clock)
    for again in (False, True):
        sink = sinks.open("w")
        batch = sink.last + 1
        stage(sink, PartKey(batch, 0, 0), 1)
        complete(sink, PartKey(batch, 0, 0), 1)
        sink.durable(disk.sync())
        sink.commit(batch, [(0, 0)])
        sink.durable(disk.sync())
        sinks.forget(sink)
        assert sinks.find("w") is sink
        if again:
            assert sinks.open("w") is sink
        publishing = sink.publishing
        assert publishing is not None
        publishing.publish(dataspace, Rows(HUNDRED), 1)
        assert (sinks.find("w") is sink) is again
    sinks.close()


def test_a_row_that_cannot_be_retained_is_published_all_the_same(ledger: Ledger) -> None:
    dataspace = Dataspace(ledger, max_retained=0)
    server = ledger.open("server")
    rest = ledger.open("staged", at_rest="ram")
    sinks = Sinks(ledger, server, rest)
    sink = sinks.open("w")
    box = Mailbox(ledger, "reader")
    with server.turn() as turn:
        dataspace.observe(turn, TopicFilter("t/#"), box)
    block = encode_rows([Publication("t/a", b"kept", 0, True)])
    key = PartKey(0, 0, 0)
    sink.stage(None, key, 0, block, 1)
    sink.complete(None, key, 1, len(block), zlib.crc32(block))
    sink.commit(0, [(0, 0)])
    publishing = sink.publishing
    assert publishing is not None
    # Nobody but this process knows of it.
    said = sink.unpublished()
    assert said is not None
    assert said.startswith("batch 0 of writer w: 1 row was not published")
    assert publishing.publish(dataspace, Rows(block), 1)
    assert sink.unpublished() is None
    assert publishing.not_retained == 1
    (loan,) = box.loans()
    assert loan.item == [Publication("t/a", b"kept")]
    assert loan.account is sink.account
    loan.settle()
    box.queue.clear()
    box.close()
    sinks.close()


@pytest.mark.parametrize("state", [b"", b"{}", b"[]", b"null", b'{"incarnation": 3}'])
def test_a_stored_state_that_is_none_is_refused(
    ledger: Ledger, rest: Account, disk: MemoryDisk, clock: Clock, state: bytes
) -> None:
    sinks = on_disk(ledger, rest, disk, clock)
    sink = sinks.make("w")
    with pytest.raises(ValueError, match="stored state of writer w is none"):
        sink.restore(state, {}, {})
    sink.close()


def test_many_small_blocks_count_for_more_than_they_have(
    ledger: Ledger, rest: Account, disk: MemoryDisk, clock: Clock
) -> None:
    sinks = on_disk(ledger, rest, disk, clock, batch_bytes=1000, block_bytes=250)
    sink = sinks.open("w")
    key = PartKey(0, 0, 0)
    with pytest.raises(RefusedError, match="has 1000 bytes staged of batch 0"):
        stage(sink, key, 5)
    stage(sink, key, 4)
    sink.abort(0)
    assert sink.batch_cost == sink.batch_bytes == 0
    sinks.close()
