"""Subscriptions in a store: who owes, what is read from disk, restarts and kills."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from clearfunds.accounts import Ledger, Limit, Quota
from clearfunds.persistence import SubscriptionDisk
from clearfunds.ranges.client import DataLossError, DiskError, RangeReader, RefusedError, Ticket
from clearfunds.ranges.log import SubscriptionLimits
from clearfunds.store import Store, StoreSettings
from clearfunds.transports.mqtt import Connect, Publish, encode
from tests.ranges.server.relays import HOST, Relay, blocking, running
from tests.transports.peers import connected, log_of, until

QUICK = StoreSettings(fsync_interval=0.01)
NOTHING_IN_RAM = SubscriptionLimits(cache_bytes=0)
ROOT = Path(__file__).parents[3]


@contextmanager
def opened(tmp_path: Path) -> Generator[Store]:
    store = Store.open(tmp_path, QUICK)
    try:
        yield store
    finally:
        store.close()


def values(reader: RangeReader, start: int, end: int) -> list[bytes]:
    return [row.value for block in reader.fetch(start, end) for row in block.rows()]


async def publish(relay: Relay, *payloads: bytes) -> None:
    before = relay.subscription().next
    async with connected(relay.mqtt_port, "publisher") as client:
        for payload in payloads:
            await client.publish("a/b", payload)
        await until(lambda: relay.subscription().next == before + len(payloads))
        await until(lambda: relay.subscription().visible == relay.subscription().next)


@pytest.mark.parametrize("limits", [None, NOTHING_IN_RAM])
async def test_what_is_on_disk_is_owed_by_the_subscription_and_there_after_a_restart(
    tmp_path: Path, limits: SubscriptionLimits | None
) -> None:
    payloads = [b"%d" % n * 3000 for n in range(30)]
    with opened(tmp_path) as store:
        async with running(store=store, limits=limits) as relay:
            reader = await relay.attach(durable=True, start="latest")
            relay.readers.clear()
            port = relay.port
            await publish(relay, *payloads)
            assert relay.ledger.statistics().repaid_items["stored"] == 30
            assert relay.ledger.accounts["disk"].debt_items == 30
            assert relay.server.account.debt_items == 0
            assert await blocking(values, reader, 1, 31) == payloads
            assert await blocking(values, reader, 17, 19) == payloads[16:18]
            await blocking(reader.ack, 6)
            incarnation = relay.subscription().incarnation
    with opened(tmp_path) as store:
        async with running(store=store, limits=limits, port=port) as relay:
            # The same reader goes on with the same generation, as if nothing had been.
            assert await blocking(reader.head) == (6, 31)
            subscription = relay.subscription()
            assert (subscription.generation, subscription.incarnation) == (1, incarnation)
            assert subscription.filters == ("a/#",)
            assert subscription.recovered == relay.ledger.accounts["disk"].debt_items == 25
            relay.audit()
            assert await blocking(values, reader, 6, 31) == payloads[5:]
            await publish(relay, b"more")
            assert await blocking(values, reader, 30, 32) == [payloads[29], b"more"]
            relay.audit()
            await blocking(reader.ack, 32)
            assert relay.ledger.accounts["disk"].debt_items == 0
            newer = await relay.attach(durable=True, start="latest")
            assert (newer.ticket.generation, newer.start) == (2, 32)
            await blocking(newer.drop)
            reader.close()
    with opened(tmp_path) as store:
        assert not store.queues
        assert not store.values()
        async with running(store=store) as relay:
            assert len(relay.server.subscriptions) == 0


async def test_beyond_its_budget_publishers_pay_until_something_is_acknowledged(
    tmp_path: Path,
) -> None:
    limits = SubscriptionLimits(max_disk_bytes=500_000)
    with opened(tmp_path) as store:
        async with (
            running(store=store, limits=limits, mqtt_limit=Limit(bytes=200_000)) as relay,
            trio.open_nursery() as nursery,
        ):
            reader = await relay.attach(durable=True)

            async def pour() -> None:
                async with connected(relay.mqtt_port, "publisher") as client:
                    for number in range(200):
                        await client.publish("a/b", b"%03d" % number * 3000)
                    await until(lambda: relay.subscription().visible == 201)

            nursery.start_soon(pour)
            await until(lambda: relay.ledger.waiters)
            seen: list[bytes] = []
            at = 1
            while at < 201:
                relay.audit()
                assert relay.subscription().account.debt_bytes <= 500_000
                _, end = await blocking(reader.head)
                seen += await blocking(values, reader, at, end)
                at = end
                await blocking(reader.ack, at)
            assert seen == [b"%03d" % number * 3000 for number in range(200)]


async def test_room_that_others_make_on_the_disk_is_used(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        async with running(store=store, disk_limit=100_000) as relay:
            one = await relay.attach("one", filters=["one"], durable=True)
            two = await relay.attach("two", filters=["two"], durable=True)
            first, second = relay.subscription("one"), relay.subscription("two")
            async with connected(relay.mqtt_port, "publisher") as client:
                await client.publish("two", bytes(100))
                await until(lambda: second.visible == 2)
                await client.publish("one", bytes(99_000))
                await until(lambda: first.visible == 2)
                await client.publish("two", bytes(10_000))
                await until(lambda: second.next == 3)
                await trio.sleep(0.05)
                assert (second.visible, relay.client("publisher").debt_items) == (2, 1)
                await blocking(one.ack, 2)
                await until(lambda: second.visible == 3)
            assert [len(value) for value in await blocking(values, two, 1, 3)] == [100, 10_000]


async def test_a_store_that_does_not_write_is_said(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        async with running(store=store, store_timeout=0.05) as relay:
            store.on_durable = lambda ticket: None
            with pytest.raises(DiskError, match=r"has not written it within 0\.05 s"):
                await relay.attach(durable=True)
            await until(lambda: not relay.subscription().attached)
            assert relay.server.disk is not None
            relay.server.disk.durable(1 << 60)  # or the end would wait, too


async def test_what_the_store_has_lost_is_a_loss_that_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(tmp_path) as store:
        async with running(store=store, limits=NOTHING_IN_RAM) as relay:
            reader = await relay.attach(durable=True)
            await publish(relay, b"one", b"two")
            changes = store.begin()
            changes.done(store.queues["subscription/s"].id, 0, 100)
            store.commit(changes)
            with pytest.raises(DataLossError, match=r"from 1 on .* missing from the store"):
                await blocking(values, reader, 1, 3)
            assert log_of(caplog, "clearfunds store verify")
            await blocking(reader.ack, 3)  # and it can go on behind them


async def test_what_cannot_be_taken_up_is_left_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(tmp_path) as store:
        changes = store.begin()
        changes.set("subscription/bad/state", b"{}")
        store.commit(changes)
        async with running(store=store) as relay:
            assert len(relay.server.subscriptions) == 0
            assert log_of(caplog, "subscription bad cannot be restored")
        assert store.values() == {"subscription/bad/state": b"{}"}


async def test_what_could_not_be_taken_up_makes_room_for_one_of_its_name(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(tmp_path) as store:
        async with running(store=store) as relay:
            await relay.attach(durable=True)
            await publish(relay, b"1", b"2", b"3")
        changes = store.begin()
        changes.set("subscription/s/state", b"damaged")
        changes.set("subscription/s/low", b"3")
        store.commit(changes)
    with opened(tmp_path) as store:
        async with running(store=store) as relay:
            reader = await relay.attach(durable=True)
            assert log_of(caplog, "subscription s is made anew: data of an earlier one")
            await publish(relay, b"other")
            assert await blocking(values, reader, 1, 2) == [b"other"]
    with opened(tmp_path) as store:
        async with running(store=store) as relay:
            assert relay.subscription().head() == (1, 2)
            assert store.queues["subscription/s"].live_count == 1


async def test_where_there_is_no_room_for_it_a_subscription_stays_on_disk(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(tmp_path) as store:
        async with running(store=store) as relay:
            reader = await relay.attach(durable=True, filters=["a/#", "b"])
            await publish(relay, b"1")
            ticket = reader.ticket
    with opened(tmp_path) as store:
        async with running(store=store, quota=Quota(items=1)) as relay:
            assert log_of(caplog, "subscription s cannot be restored: subscription/s may keep 1")
            with pytest.raises(RefusedError, match=r"could not be restored .* raise the quota"):
                await relay.attach(durable=True)
            with pytest.raises(RefusedError, match="could not be restored"):
                await relay.join(ticket)
    with opened(tmp_path) as store:
        async with running(store=store) as relay:
            reader = await relay.join(ticket)
            assert await blocking(values, reader, 1, 2) == [b"1"]


@contextmanager
def killed_in_the_end(directory: Path) -> Generator[tuple[int, int]]:
    """Run a relay in a process of its own; give its ports."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.ranges.server.relay_process", str(directory)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        port, mqtt_port = map(int, process.stdout.readline().split())
        yield port, mqtt_port
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_a_kill_takes_nothing_that_a_reader_was_shown(tmp_path: Path) -> None:
    shown: dict[int, bytes] = {}
    ticket: Ticket | None = None
    acked = 1
    for life in range(3):
        with killed_in_the_end(tmp_path) as (port, mqtt_port):
            if ticket is None:
                reader = RangeReader(HOST, port, "s", filters=["a/#"], durable=True)
                ticket = reader.ticket
            else:
                reader = RangeReader.join(HOST, port, ticket)
            with reader, socket.create_connection((HOST, mqtt_port)) as publisher:
                low, end = reader.head()
                # What was acknowledged may have to be acknowledged again; nothing else is new.
                assert low <= acked
                assert end > max(shown, default=0)
                publisher.sendall(encode(Connect(f"publisher-{life}", True, 0)))
                for number in range(400):
                    publisher.sendall(encode(Publish("a/b", b"%d-%d" % (life, number))))
                    if number % 100 == 50:
                        while reader.head().next == end:
                            time.sleep(0.005)
                        end = reader.head().next
                        for block in reader.fetch(low, end):
                            for row in block.rows():
                                assert shown.setdefault(row.number, row.value) == row.value
                        acked = max(acked, low + (end - low) // 3)
                        low = reader.ack(acked).low
    assert len(shown) > 100
    assert sorted(shown) == list(range(1, len(shown) + 1))


class Counted:
    """A subscription that counts how often it is asked to write."""

    def __init__(self) -> None:
        self.ledger = Ledger()
        self.writes = 0

    def write(self) -> None:
        self.writes += 1


async def test_what_comes_is_written_soon_whoever_else_has_written(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """The clock that looks for room writes, too: after that nothing was written but by it."""
    each: Any = Counted()
    subscriptions: Any = [each]
    with opened(tmp_path) as store:
        async with trio.open_nursery() as nursery:
            disk = SubscriptionDisk(store)
            disk.subscriptions = subscriptions
            nursery.start_soon(disk.run)
            await trio.testing.wait_all_tasks_blocked()
            disk.write()
            disk.dirty()
            await trio.sleep(0.1)
            assert each.writes == 2
            nursery.cancel_scope.cancel()
