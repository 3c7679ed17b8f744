"""A fair outlet: while it is blocked it serves accounts in turn; otherwise nothing is different."""

from __future__ import annotations

import pytest
import trio

from clearfunds.accounts import JOIN_BYTES, StuckPolicy
from tests.transports.test_outlet_backlog import Way, way

SIZE = 3_000


def backlog(w: Way, nbytes: int = 16 * JOIN_BYTES, by: int = 0) -> None:
    """Let one publisher have so much that is not sent."""
    for _ in range(nbytes // SIZE):
        w.send([("noisy", SIZE)], by)


async def place_of(w: Way, topic: str) -> int:
    """Return how many bytes come before the first message on a topic."""
    await w.take_all()
    before = 0
    for name, number in w.received():
        if name == topic:
            return before
        before += SIZE if name in ("noisy", "block") else 10
        assert number >= 0
    raise AssertionError(topic)


@pytest.mark.parametrize("fair", [True, False])
async def test_a_message_does_not_wait_behind_another_publishers_backlog(fair: bool) -> None:
    async with way(StuckPolicy.WAIT, fair=fair) as w:
        w.block()
        backlog(w)
        waiting = w.outlet.waiting
        w.send([("innocent", 0)], by=1)
        assert w.outlet.waiting == waiting + 1
        w.ledger.audit()
        before = await place_of(w, "innocent")
        # What was being sent, and a turn of the other, which was new, too.
        assert (before < 2 * JOIN_BYTES) == fair
        if not fair:
            assert before >= 16 * JOIN_BYTES - SIZE


async def test_two_with_a_backlog_get_the_same() -> None:
    async with way(StuckPolicy.WAIT, fair=True) as w:
        w.block()
        backlog(w)
        for _ in range(16 * JOIN_BYTES // SIZE):
            w.send([("too", SIZE)], by=1)
        await w.take_all()
        first = [topic for topic, _ in w.received()][: 16 * JOIN_BYTES // SIZE]
        assert abs(first.count("noisy") - first.count("too")) <= 3 * JOIN_BYTES // SIZE


async def test_each_publishers_messages_stay_in_order_and_packets_whole() -> None:
    async with way(StuckPolicy.WAIT, fair=True) as w:
        w.block()
        for n in range(200):
            w.send([(f"by/{n % 2}", 100 * (n % 30))], by=n % 2)
            if not n % 10:
                w.take(5_000)
                await trio.lowlevel.checkpoint()
            w.ledger.audit()
        await w.take_all()
        got = w.received()
        for topic in ("block", "by/0", "by/1"):
            assert [each for each in got if each[0] == topic] == [
                each for each in w.sent if each[0] == topic
            ]
        # Publisher 0 has sent "block" as well.
        zero = [number for topic, number in got if topic != "by/1"]
        assert zero == sorted(zero)


async def test_its_peers_own_answers_come_soon() -> None:
    """A client that reads slowly is told that the relay is there."""
    async with way(StuckPolicy.WAIT, fair=True) as w:
        w.block()
        backlog(w)
        w.say()
        assert await place_of(w, "ping") < 2 * JOIN_BYTES


async def test_what_is_forwarded_keeps_its_order_whoever_owes_for_it() -> None:
    """A topic alias is defined by an earlier packet, of any publisher."""
    async with way(StuckPolicy.WAIT, fair=True) as w:
        w.block()
        for n in range(1, 50):
            w.forward(b"%06d" % n)
            w.accounts.reverse()
            w.send([("t", SIZE)], by=n % 2)
        await w.take_all()
        assert [n for topic, n in w.received() if topic == "q"] == [*range(1, 50)]


async def test_the_order_can_be_kept_for_once() -> None:
    async with way(StuckPolicy.WAIT, fair=True) as w:
        w.block()
        backlog(w)
        w.outlet.keep_order()
        w.send([("innocent", 0)], by=1)
        assert await place_of(w, "innocent") >= 15 * JOIN_BYTES


async def test_it_is_as_any_other_when_all_has_gone() -> None:
    async with way(StuckPolicy.WAIT, fair=True) as w:
        w.block()
        backlog(w)
        assert w.outlet.diverted
        await w.take_all()
        assert not w.outlet.blocked
        assert not w.outlet.diverted
        w.got.clear()
        for n in range(10):
            w.send([(f"t/{n}", 0)], by=n % 2)
        w.take()
        assert w.received() == w.sent[-10:]


async def test_the_policy_is_that_of_what_waits_in_any_turn() -> None:
    rules = [("w", StuckPolicy.WAIT, 0.1), ("d", StuckPolicy.DISCONNECT, 0.3)]
    async with way(StuckPolicy.DROP_OLDEST, *rules, fair=True) as w:
        w.block()
        backlog(w)
        # A look goes on where the last one ended, in each account's line.
        assert w.outlet.policy == "drop_oldest"
        w.send([("w", 0)], by=1)
        assert w.outlet.policy == "drop_oldest"
        w.send([("d", 0)], by=1)
        assert w.outlet.policy == "disconnect"
        w.outlet.keep_order()
        assert w.outlet.policy == "disconnect"
        await w.take_all()


@pytest.mark.parametrize("fair", [True, False])
async def test_closed_it_owes_nothing(fair: bool) -> None:
    async with way(StuckPolicy.WAIT, fair=fair) as w:
        w.block()
        backlog(w)
        w.send([("t", 10)], by=1)
        w.forward(b"000001")
        w.outlet.close()
        assert [account.debt_items for account in w.accounts] == [1, 0]  # what was forwarded
        assert [loan.holder for loan in w.outlet.unbegun()] == [w.box]
        w.send([("t", 10)], by=1)
        assert w.accounts[1].debt_items == 0
        w.ledger.audit()
