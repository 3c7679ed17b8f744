"""Readers that acknowledge nothing, or next to nothing: publishers wait for them, not for ever."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
import trio

from clearfunds.ranges.client import DataLossError, RangeReader
from clearfunds.transports.mqtt import Publish
from tests.experiments.credit_flow.relays import on_credit
from tests.ranges.server.relays import blocking
from tests.ranges.server.test_users import (
    LISTEN,
    QUICK,
    as_user,
    attach,
    reaches,
)
from tests.transports.peers import BareClient, RunningRelay, connected, log_of, running, until

MALLORY = as_user("bert")


async def publish(till: BareClient, first: int, last: int, size: int = 20) -> None:
    """Publish messages with QoS 1, each after the one before has been acknowledged."""
    for number in range(first, last + 1):
        await till.send(Publish("bank/payment", b"%0*d" % (size, number), 1, packet_id=1))
        await till.next()


def till(relay: RunningRelay) -> AbstractAsyncContextManager[BareClient]:
    return connected(relay.port, "till", username="anna", password=b"secret")


def lagging(relay: RunningRelay, key: str) -> bool:
    readers = relay.relay.readers
    assert readers is not None
    return readers.subscriptions.get(key).lagging


def values(reader: RangeReader) -> list[int]:
    """Return what can be read."""
    low, end = reader.head()
    return [int(row.value) for block in reader.fetch(low, end) for row in block.rows()]


@pytest.mark.parametrize("policy", ["disconnect", "drop_oldest"])
async def test_an_idle_reader_stops_nobody_for_ever(
    policy: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The attack: one reader on # that acknowledges nothing stopped all publishers for ever."""
    async with running(
        listen=LISTEN, passwords=QUICK, limit_items=50, reader_patience=0.3,
        reader_stuck=policy, behind_items=80,
    ) as relay:  # fmt: skip
        idle = await attach(relay, "idle", MALLORY, filters=["#"])
        async with till(relay) as publisher:
            with trio.fail_after(20):
                await publish(publisher, 1, 400)
            assert lagging(relay, "@bert/idle")
            assert log_of(caplog, "made no progress")
            # It comes back, and is told what it has lost.
            with pytest.raises(DataLossError, match="messages 1 to"):
                await blocking(list, idle.fetch(1, 401))
            low, end = await blocking(idle.head)
            assert end == 401
            assert 60 <= end - low <= 80
            assert await blocking(values, idle) == [*range(low, 401)]
            accounts = relay.ledger.accounts
            assert accounts["behind"].debt_items == end - low
            assert accounts["server"].debt_items == 0
            # When it has caught up, publishers wait for it again.
            await blocking(idle.ack, 401)
            assert not lagging(relay, "@bert/idle")
            await publish(publisher, 401, 440)
            assert relay.ledger.accounts["server"].debt_items == 40
            await blocking(idle.ack, 441)
        readers = relay.relay.readers
        assert readers is not None
        # Cut off it has come back.
        assert readers.counters.accepted == (2 if policy == "disconnect" else 1)
        idle.close()


async def test_with_the_policy_wait_it_is_named_and_waited_for(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with running(
        listen=LISTEN, passwords=QUICK, limit_items=50, reader_patience=0.2, reader_stuck="wait"
    ) as relay:
        idle = await attach(relay, "idle", MALLORY, filters=["#"])
        async with till(relay) as publisher, trio.open_nursery() as nursery:
            nursery.start_soon(publish, publisher, 1, 60)
            await until(lambda: log_of(caplog, "its policy is to wait"))
            assert not lagging(relay, "@bert/idle")
            await blocking(idle.ack, 51)
            await reaches(idle, 61)
            await blocking(idle.ack, 61)
        idle.close()


async def test_one_acknowledgement_now_and_then_is_no_progress() -> None:
    """The attack: an acknowledgement now and then kept patience from running out."""
    async with running(
        listen=LISTEN, passwords=QUICK, limit_items=2_000, reader_patience=0.4, behind_items=100
    ) as relay:
        slow = await attach(relay, "slow", MALLORY, filters=["#"])

        async def trickle() -> None:
            while True:
                await trio.sleep(0.1)
                low, end = await blocking(slow.head)
                if low < end:
                    await blocking(slow.ack, low + 1)

        async with till(relay) as publisher, trio.open_nursery() as nursery:
            nursery.start_soon(trickle)
            with trio.fail_after(25):
                await publish(publisher, 1, 4_000)
            assert lagging(relay, "@bert/slow")
            nursery.cancel_scope.cancel()
        slow.close()


async def test_a_durable_one_has_its_own_room_on_the_disk_and_no_more(tmp_path: Path) -> None:
    async with running(
        listen=LISTEN, passwords=QUICK, store=str(tmp_path / "s"), fsync_interval=0.0,
        limit_items=50, reader_patience=0.4, reader_disk_limit=100_000,
    ) as relay:  # fmt: skip
        idle = await attach(relay, "idle", MALLORY, filters=["#"], durable=True)
        async with till(relay) as publisher:
            with trio.fail_after(25):
                await publish(publisher, 1, 300, size=1_000)
            assert lagging(relay, "@bert/idle")
            accounts = relay.ledger.accounts
            assert accounts["subscription/@bert/idle"].debt_bytes <= 100_000 + 2_000
            assert accounts["disk"].debt_bytes <= 100_000 + 2_000
            low, end = await blocking(idle.head)
            assert end == 301
            assert 60 < end - low < 100
            assert await blocking(values, idle) == [*range(low, 301)]
            await blocking(idle.ack, 301)
            assert not lagging(relay, "@bert/idle")
            await publish(publisher, 301, 310, size=1_000)
        await reaches(idle, 311)
        await blocking(idle.ack, 311)
        idle.close()


async def test_two_of_one_user_have_no_more_room_than_one(tmp_path: Path) -> None:
    async with running(
        listen=LISTEN, passwords=QUICK, store=str(tmp_path / "s"), fsync_interval=0.0,
        limit_items=50, reader_patience=0.4, reader_disk_limit=100_000,
    ) as relay:  # fmt: skip
        idle = [
            await attach(relay, name, MALLORY, filters=["#"], durable=True) for name in ("a", "b")
        ]
        async with till(relay) as publisher:
            with trio.fail_after(25):
                await publish(publisher, 1, 200, size=1_000)
        accounts = relay.ledger.accounts
        assert accounts["disk/users/@bert"].debt_bytes <= 100_000 + 4_000
        assert accounts["disk"].debt_bytes <= 100_000 + 4_000
        for each in idle:
            await blocking(each.drop)
        relay.audit()


async def test_the_same_when_nobody_is_attached(tmp_path: Path) -> None:
    """A grace that its reader chose does not have others wait for longer than the relay's own."""
    async with running(
        listen=LISTEN, passwords=QUICK, limit_items=50, reader_patience=0.3, behind_items=80
    ) as relay:
        away = await attach(relay, "away", MALLORY, filters=["#"], grace=86_400.0)
        away.close()
        async with till(relay) as publisher:
            with trio.fail_after(20):
                await publish(publisher, 1, 200)
        assert lagging(relay, "@bert/away")


async def test_the_same_where_publishers_wait_for_credit() -> None:
    async with running(
        listen=LISTEN, passwords=QUICK, serve=on_credit(), reader_patience=0.3, behind_items=80
    ) as relay:
        idle = await attach(relay, "idle", MALLORY, filters=["#"])
        async with till(relay) as publisher:
            with trio.fail_after(20):
                await publish(publisher, 1, 700)
            assert lagging(relay, "@bert/idle")
            relay.audit()
            await blocking(idle.ack, 701)
            assert not lagging(relay, "@bert/idle")
            await publish(publisher, 701, 710)
            await blocking(idle.ack, 711)
        idle.close()
