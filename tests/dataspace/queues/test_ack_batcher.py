"""Acknowledgements said together: when they leave, and what one of them stands for."""

from __future__ import annotations

import math
from typing import Any

import anyio
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from clearfunds.dataspace import DataspaceError
from clearfunds.dataspace.queues._ack_batcher import AckBatcher, Acknowledgement, Verdict
from tests.loops import open_nursery

ACK, REQUEUE, DISCARD = Verdict.ACK, Verdict.REQUEUE, Verdict.DISCARD


class Broker:
    """What the broker gets, and which deliveries are unacknowledged there."""

    def __init__(self, prefetch: int = 0) -> None:
        self.got: list[tuple[int, bool, Verdict]] = []
        self.unacked: list[int] = []
        self.verdicts: dict[int, Verdict] = {}
        self.prefetch = prefetch

    def deliver(self, batcher: AckBatcher, count: int) -> None:
        for _ in range(count):
            tag = len(self.unacked) + len(self.verdicts) + 1
            assert not self.prefetch or len(self.unacked) < self.prefetch
            self.unacked.append(tag)
            batcher.delivered(tag)

    def take(self, ack: Acknowledgement) -> None:
        self.got.append((ack.tag, ack.multiple, ack.verdict))
        assert ack.tag in self.unacked  # otherwise it closes the channel
        meant = [tag for tag in self.unacked if tag == ack.tag or (ack.multiple and tag < ack.tag)]
        for tag in meant:
            self.unacked.remove(tag)
            self.verdicts[tag] = ack.verdict


def made(deliveries: int, **options: Any) -> tuple[AckBatcher, Broker]:
    broker = Broker()
    batcher = AckBatcher(broker.take, **{"prefetch": 0, **options})
    broker.deliver(batcher, deliveries)
    return batcher, broker


async def test_every_so_many_answers_are_one_ack() -> None:
    batcher, broker = made(35)
    assert (batcher.every, batcher.delay) == (10, 0.050)
    for tag in range(1, 36):
        batcher.ack(tag)
        assert len(broker.got) == tag // 10
    assert broker.got == [(10, True, ACK), (20, True, ACK), (30, True, ACK)]
    batcher.close()
    assert broker.got[3:] == [(35, True, ACK)]
    assert broker.unacked == []


async def test_one_at_a_time() -> None:
    batcher, broker = made(3, every=1)
    for tag in (2, 1, 3):
        batcher.ack(tag)
    assert broker.got == [(2, False, ACK), (1, False, ACK), (3, False, ACK)]


async def test_a_delivery_that_is_being_worked_on_is_not_swept() -> None:
    batcher, broker = made(12)
    for tag in (1, 2, 3, 5, 6, 7, 8, 9, 10, 11):
        batcher.ack(tag)
    assert broker.got == [(3, True, ACK), *((tag, False, ACK) for tag in range(5, 12))]
    assert broker.unacked == [4, 12]
    batcher.ack(4)
    batcher.ack(12)
    batcher.flush()
    assert broker.got[8:] == [(12, True, ACK)]


async def test_acks_and_nacks_are_never_one_answer() -> None:
    batcher, broker = made(10)
    for tag in range(1, 11):
        if tag in (4, 5):
            batcher.nack(tag)
        elif tag == 9:
            batcher.nack(tag, requeue=False)
        else:
            batcher.ack(tag)
    assert broker.got == [
        (3, True, ACK),
        *((tag, False, ACK) for tag in (6, 7, 8, 10)),
        *((4, False, REQUEUE), (5, False, REQUEUE)),
        (9, False, DISCARD),
    ]
    assert broker.unacked == []


async def test_nacks_alone_are_one_answer() -> None:
    batcher, broker = made(4)
    for tag in (1, 2, 3):
        batcher.nack(tag)
    batcher.close()
    assert broker.got == [(3, True, REQUEUE)]
    assert broker.unacked == [4]


async def test_an_answer_leaves_after_the_delay_at_the_latest(autojump_clock: MockClock) -> None:
    batcher, broker = made(10, every=5)
    async with open_nursery() as nursery:
        nursery.start_soon(batcher.run)
        await anyio.sleep(1)
        batcher.ack(1)
        await anyio.sleep(0.03)
        batcher.ack(2)
        await anyio.sleep(0.019)
        assert broker.got == []
        await anyio.sleep(0.002)
        assert broker.got == [(2, True, ACK)]
        # One that is sent with its batch leaves no delay behind for the next.
        for tag in range(3, 7):
            batcher.ack(tag)
        await anyio.sleep(0.04)
        batcher.ack(7)
        assert broker.got[1:] == [(7, True, ACK)]
        batcher.ack(8)
        await anyio.sleep(0.04)
        assert len(broker.got) == 2
        await anyio.sleep(0.011)
        assert broker.got[2:] == [(8, False, ACK)]
        batcher.close()


async def test_without_a_delay_only_the_count_matters(autojump_clock: MockClock) -> None:
    batcher, broker = made(3, every=3, delay=math.inf)
    async with open_nursery() as nursery:
        nursery.start_soon(batcher.run)
        batcher.ack(1)
        batcher.ack(2)
        await anyio.sleep(10_000)
        assert broker.got == []
        batcher.ack(3)
        assert broker.got == [(3, True, ACK)]
        batcher.close()


async def test_the_end_of_its_block_sends_what_is_kept_and_ends_its_task(
    autojump_clock: MockClock,
) -> None:
    broker = Broker()
    start = anyio.current_time()
    with pytest.RaisesGroup(KeyError):
        async with open_nursery() as nursery:
            with AckBatcher(broker.take, prefetch=10, delay=1000) as batcher:
                nursery.start_soon(batcher.run)
                broker.deliver(batcher, 3)
                batcher.ack(1)
                batcher.ack(2)
                await anyio.sleep(1)
                raise KeyError
    assert broker.got == [(2, True, ACK)]
    broker.got.clear()
    async with open_nursery() as nursery:
        with AckBatcher(broker.take, prefetch=10, delay=1000) as batcher:
            nursery.start_soon(batcher.run)
            batcher.delivered(3)
            batcher.ack(3)
            await anyio.sleep(1)
    assert anyio.current_time() - start == pytest.approx(2)
    assert broker.got == [(3, False, ACK)]
    with pytest.raises(trio.ClosedResourceError):
        batcher.ack(3)
    batcher.close()
    assert len(broker.got) == 1


async def test_a_cancelled_task_loses_nothing(autojump_clock: MockClock) -> None:
    batcher, broker = made(2)
    async with open_nursery() as nursery:
        nursery.start_soon(batcher.run)
        batcher.ack(1)
        await anyio.sleep(0.01)
        nursery.cancel_scope.cancel()
    assert broker.got == []
    assert len(batcher) == 1
    batcher.flush()
    assert broker.got == [(1, False, ACK)]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"prefetch": 9}, "waits; ack every 9 at most"),
        ({"prefetch": 1, "every": 2}, "ack every 1 at most"),
        ({"prefetch": 10, "every": 0}, "every 0 deliveries"),
        ({"prefetch": -1}, "prefetch of -1"),
        ({"prefetch": 10, "delay": 0}, "or 0 s"),
        ({"prefetch": 10, "delay": math.nan}, "or nan s"),
    ],
)
def test_numbers_that_would_wait_for_ever(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        AckBatcher(Broker().take, **options)


def test_a_batch_as_large_as_the_prefetch_is_the_largest() -> None:
    assert AckBatcher(Broker().take, prefetch=10, every=10)
    assert AckBatcher(Broker().take, prefetch=0, every=1_000_000)


async def test_answers_to_nothing() -> None:
    broker = Broker()
    got: list[int] = []
    batcher = AckBatcher(lambda ack: got.append(ack.tag), prefetch=0)
    broker.deliver(batcher, 2)
    batcher.ack(1)
    for tag in (0, 1, 3):
        with pytest.raises(DataspaceError, match=f"delivery {tag} is unknown"):
            batcher.ack(tag)
    for tag in (0, 1, 2):
        with pytest.raises(DataspaceError, match="tags only rise"):
            batcher.delivered(tag)
    batcher.delivered(7)  # tags between may have needed no answer
    batcher.nack(7)
    batcher.flush()
    assert got == [1, 7]


@settings(max_examples=100, deadline=None)
@given(
    st.integers(1, 12),
    st.lists(
        st.tuples(st.integers(0, 11), st.sampled_from((ACK, ACK, ACK, REQUEUE, DISCARD))),
        max_size=100,
    ),
)
def test_whatever_is_said_in_whatever_order_is_what_the_broker_understands(
    every: int, script: list[tuple[int, Verdict]]
) -> None:
    async def consume() -> None:
        broker = Broker(prefetch=12)
        batcher = AckBatcher(broker.take, prefetch=12, every=every, delay=math.inf)
        said: dict[int, Verdict] = {}
        for place, verdict in script:
            # The broker fills the window whenever there is room, and there always comes to be.
            broker.deliver(batcher, 12 - len(broker.unacked))
            open_ = [tag for tag in broker.unacked if tag not in said]
            tag = open_[place % len(open_)]
            said[tag] = verdict
            batcher.answer(tag, verdict)
            assert broker.verdicts.items() <= said.items()
            assert len(said) - len(broker.verdicts) == len(batcher) < every
        batcher.close()
        assert broker.verdicts == said

    trio.run(consume)


async def test_what_is_answered_is_not_kept_behind_one_that_takes_long() -> None:
    batcher, broker = made(1)
    for tag in range(2, 5_000):
        broker.deliver(batcher, 1)
        batcher.ack(tag)
    assert len(batcher._order) < 2_000  # pyright: ignore[reportPrivateUsage]
    assert not any(multiple for _, multiple, _ in broker.got)
    batcher.ack(1)
    batcher.close()
    assert broker.got[-1] == (4_999, True, ACK)


async def test_what_could_not_be_sent_stays_kept() -> None:
    broker = Broker()
    full = True

    def send(ack: Acknowledgement) -> None:
        if full and len(broker.got) == 1:
            raise trio.WouldBlock
        broker.take(ack)

    batcher = AckBatcher(send, prefetch=0, every=5)
    broker.deliver(batcher, 6)
    for tag in (1, 2, 5):
        batcher.ack(tag)
    batcher.nack(3)
    with pytest.raises(trio.WouldBlock):
        batcher.nack(4)
    assert broker.got == [(2, True, ACK)]
    assert len(batcher) == 3
    full = False
    batcher.close()
    assert not len(batcher)
    assert broker.verdicts == {1: ACK, 2: ACK, 3: REQUEUE, 4: REQUEUE, 5: ACK}
    assert broker.unacked == [6]
