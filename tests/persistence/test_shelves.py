"""Queues on a real store: order, restarts, trouble, and reading what is being written."""

from __future__ import annotations

import errno
import random
from pathlib import Path

import pytest
import trio

from clearfunds.accounts import Limit
from clearfunds.persistence import Shelves, StoreShelf
from clearfunds.store import Store, StoreSettings
from tests.persistence.shelves import Taker, in_ram, numbered, on_disk
from tests.store.disk import Disks, refuse
from tests.transports.peers import log_of, until


async def test_what_is_confirmed_is_there_after_a_restart_in_order(tmp_path: Path) -> None:
    payloads = numbered(500)
    async with on_disk(tmp_path) as process:
        queue = process.queue()
        heard = [process.publish(payload) for payload in payloads]
        assert not heard[-1].done
        await until(lambda: all(each.done for each in heard))
        assert process.publisher.debt_items == 0
        assert queue.account.debt_items == 500
    async with on_disk(tmp_path) as process:
        queue = process.queue()
        assert (len(queue), queue.account.debt_items, queue.counters.recovered) == (500, 500, 500)
        taker = Taker(queue, prefetch=20)
        assert await taker.take(500) == payloads
        assert not any(delivery.redelivered for delivery in taker.got)
        await until(lambda: not queue.account.debt_items)
    async with on_disk(tmp_path) as process:
        queue = process.queue()
        assert len(queue) == 0
        # Numbers go on: packet identifiers are made of them.
        process.publish(b"next")
        (delivery,) = Taker(queue).got
        assert delivery.message.seq == 501


async def test_what_may_have_been_delivered_is_said_to_be_after_a_restart(tmp_path: Path) -> None:
    async with on_disk(tmp_path) as process:
        queue = process.queue()
        heard = [process.publish(payload) for payload in numbered(10)]
        await until(lambda: heard[-1].done)
        taker = Taker(queue, prefetch=3)
        await until(lambda: len(taker.got) == 3)
        taker.got[1].ack()
        await until(lambda: len(taker.got) == 4)
        taker.channel.close()
    async with on_disk(tmp_path) as process:
        taker = Taker(process.queue())
        await until(lambda: len(taker.got) == 9)
        seen = [(d.event.payload, d.redelivered) for d in taker.got]
        again = [(b"%d" % n, True) for n in (0, 2, 3)]
        assert seen == again + [(b"%d" % n, False) for n in range(4, 10)]


@pytest.mark.parametrize("size", [4095, 4096, 100_000])
async def test_a_body_that_several_queues_have_is_there_for_each(tmp_path: Path, size: int) -> None:
    body = random.Random(1).randbytes(size)
    async with on_disk(tmp_path) as process:
        assert isinstance(process.shelves, Shelves)
        queues = [process.queue(f"q{n}") for n in range(5)]
        heard = process.publish(body)
        # A payload that is equal and not the same is another one; so is the same one later.
        other = process.publish(bytes(bytearray(body)), queues[0], queues[1])
        await until(lambda: heard.done and other.done)
        # The body has no zeros, and the database nothing but that.
        copies = 7 if size < 4096 else 2
        stored = (tmp_path / "messages.db-wal").read_bytes()
        assert stored.count(body[:64]) == copies
        again = process.publish(body, queues[2])
        await until(lambda: again.done)
        for queue in queues[:4]:
            await Taker(queue).take(len(queue))
    async with on_disk(tmp_path) as process:
        left = [process.queue(f"q{n}") for n in range(5)]
        assert sum(len(queue) for queue in left[:4]) == 0
        assert await Taker(left[4]).take(1) == [body]


async def test_messages_that_are_written_late_come_in_their_places(tmp_path: Path) -> None:
    """Of QoS 0: they go to disk only when they are paged out, after others that follow them."""
    async with on_disk(tmp_path) as process:
        queue = process.queue()
        shelf = queue.shelf
        assert isinstance(shelf, StoreShelf)
        chance = random.Random(5)
        late: list[bytes] = []
        payloads = numbered(60)
        for payload in payloads:
            qos = chance.choice((0, 1))
            process.publish(payload, qos=qos)
            if not qos:
                late.append(payload)
        queue.give_up("publishers wait")  # everything is paged out
        assert shelf.last_seq == 60
        taker = Taker(queue, prefetch=4)
        assert await taker.take(60) == payloads
        heard = process.publish(b"kept")
        lost = process.publish(b"transient", qos=0)
        queue.give_up("publishers wait")
        await until(lambda: heard.done)
        assert not lost.expected
        taker.channel.close()
        await until(lambda: len(queue) == 2)
    async with on_disk(tmp_path) as process:
        taker = Taker(process.queue())
        # What was in order is there; it was promised nothing, and it is no obstacle.
        await until(lambda: taker.got)
        assert taker.payloads[0] == b"kept"


async def test_late_messages_are_gone_after_a_restart_and_their_place_with_them(
    tmp_path: Path,
) -> None:
    async with on_disk(tmp_path) as process:
        queue = process.queue()
        process.publish(b"transient", qos=0)
        heard = process.publish(b"persistent")
        queue.give_up("publishers wait")
        await until(lambda: heard.done and process.publisher.debt_items == 0)
        assert "#late/q" in process.shelves.store.queues  # type: ignore[union-attr]
    async with on_disk(tmp_path) as process:
        queue = process.queue()
        assert await Taker(queue).take(1) == [b"persistent"]
        assert len(queue) == 0
    with_nothing_left = Store.open(tmp_path)
    assert set(with_nothing_left.queues) == {"q"}
    with_nothing_left.close()


async def test_a_client_cannot_name_itself_like_the_place_of_late_messages(
    tmp_path: Path,
) -> None:
    async with on_disk(tmp_path) as process:
        heard = [process.publish(b"x", process.queue(name)) for name in ("mqtt/a", "mqtt/a#late")]
        await until(lambda: all(each.done for each in heard))
    async with on_disk(tmp_path) as process:
        assert [len(process.queue(name)) for name in ("mqtt/a", "mqtt/a#late")] == [1, 1]


async def test_a_queue_made_in_the_round_in_which_its_like_was_erased_is_new(
    tmp_path: Path,
) -> None:
    async with on_disk(tmp_path) as process:
        queue = process.queue()
        heard = process.publish(b"old")
        await until(lambda: heard.done)
        taker = Taker(queue)
        await until(lambda: taker.got)
        process.erase(queue)
        # Nothing was committed in between.
        queue = process.queue()
        assert len(queue) == 0
        heard = process.publish(b"new")
        await until(lambda: heard.done)
    async with on_disk(tmp_path) as process:
        queue = process.queue()
        taker = Taker(queue)
        await until(lambda: taker.got)
        (delivery,) = taker.got
        assert (delivery.event.payload, delivery.redelivered) == (b"new", False)


async def test_values_and_messages_of_one_round_are_one_batch(tmp_path: Path, disks: Disks) -> None:
    """Cut anywhere, both are there or neither."""
    disk = disks(3)
    async with on_disk(disk.directory, vfs=disk.name) as process:
        queue = process.queue()
        for number in range(100):
            process.shelves.set("number", b"%d" % number)
            process.publish(b"%d" % number, queue)
            if number % 3:
                await trio.lowlevel.checkpoint()
            if number % 7 == 0:
                await trio.sleep(0.002)
        disk.fault = refuse(errno.EIO, "write", "sync", "truncate")
        process.audit()
        process.close()
        process.queues.clear()
    disk.fault = None
    disk.lose_power()
    store = Store.open(disk.directory, vfs=disk.name)
    last = store.queues["q"].next_seq - 1
    assert store.values("number") == {"number": b"%d" % (last - 1)}
    store.close()


async def test_readers_see_what_is_being_written(tmp_path: Path) -> None:
    """A queue is filled while it is read, by many pages, and what is read is in order."""
    async with on_disk(tmp_path, StoreSettings(fsync_interval=0.01)) as process:
        queue = process.queue()
        taker = Taker(queue, prefetch=10)
        payloads = numbered(3_000)
        for start in range(0, 3_000, 100):
            for payload in payloads[start : start + 100]:
                process.publish(payload)
            await trio.sleep(0.001)
            got, taker.got = taker.got, []
            for delivery in got:
                delivery.ack()
            process.audit()
        assert await taker.take(3_000) == payloads
        assert queue.backing.statistics().paged_in > 0


async def test_trouble_and_recovery(disks: Disks) -> None:
    disk = disks()
    async with on_disk(disk.directory, vfs=disk.name) as process:
        assert isinstance(process.shelves, Shelves)
        queue = process.queue()
        first = process.publish(b"first")
        await until(lambda: first.done)
        disk.fault = refuse(errno.ENOSPC, "write")
        second = process.publish(b"second")
        await until(lambda: process.shelves.trouble)  # type: ignore[union-attr]
        assert "disk is full" in str(process.shelves.trouble)
        third = process.publish(b"third")
        # A queue that comes meanwhile knows of it.
        other = process.queue("other")
        fourth = process.publish(b"fourth", other)
        await trio.sleep(0.1)
        assert not any(each.done for each in (second, third, fourth))
        assert process.publisher.debt_items == 3
        process.audit()
        # Consumers are served all the same, and what they acknowledge is confirmed.
        taker = Taker(queue)
        await until(lambda: len(taker.got) == 3)
        for delivery in taker.got:
            delivery.ack()
        assert third.done
        disk.fault = None
        await until(lambda: fourth.done)
        assert process.shelves.trouble is None
        assert second.done
        assert process.publisher.debt_items == 0
        process.audit()


async def test_what_cannot_be_read_for_now_comes_later(
    caplog: pytest.LogCaptureFixture, disks: Disks
) -> None:
    """A disk that fails to read is not the end of the relay, nor of the queue."""
    disk = disks()
    async with on_disk(disk.directory, vfs=disk.name) as process:
        queue = process.queue()
        heard = [process.publish(payload) for payload in numbered(50)]
        await until(lambda: heard[-1].done)
        disk.fault = refuse(errno.EIO, "read")
        taker = Taker(queue)
        await until(lambda: log_of(caplog, "queue q waits: "))
        await trio.sleep(0.1)
        assert len(log_of(caplog, "queue q waits: ")) == 1
        disk.fault = None
        assert await taker.take(50) == numbered(50)


async def test_who_leaves_without_a_word_to_his_queues_is_not_called_any_more(
    tmp_path: Path,
) -> None:
    with pytest.RaisesGroup(RuntimeError, flatten_subgroups=True):
        async with on_disk(tmp_path) as process:
            queue = process.queue()
            for payload in numbered(50):
                process.publish(payload)
            Taker(queue)
            raise RuntimeError("a fault")


async def test_a_queue_that_is_erased_while_it_is_read(tmp_path: Path) -> None:
    async with on_disk(tmp_path) as process:
        queue = process.queue()
        heard = [process.publish(payload) for payload in numbered(50)]
        await until(lambda: heard[-1].done)
        taker = Taker(queue, prefetch=1)
        await until(lambda: taker.got)
        taker.got[0].ack()
        assert queue.backing.waiting
        seen = list(taker.payloads)
        process.erase(queue)
        await trio.sleep(0.05)
        assert taker.payloads == seen
        process.audit()
    store = Store.open(tmp_path)
    assert not store.queues
    assert not store.values()
    store.close()


async def test_marks_that_cannot_be_read_mean_that_all_may_have_been_delivered(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with on_disk(tmp_path) as process:
        queue = process.queue()
        heard = process.publish(b"x", queue)
        await until(lambda: heard.done)
        process.shelves.set("queue/marks/q", b"?")
    async with on_disk(tmp_path) as process:
        taker = Taker(process.queue())
        await until(lambda: taker.got)
        assert taker.got[0].redelivered
    assert log_of(caplog, "it is not known what was delivered")


async def test_more_than_the_store_takes_at_once_goes_into_several_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Payloads of megabytes, all read in one round of the event loop."""
    monkeypatch.setattr("clearfunds.persistence._shelves.COMMIT_BYTES", 100_000)
    async with on_disk(tmp_path) as process:
        assert isinstance(process.shelves, Shelves)
        queues = [process.queue("a"), process.queue("b")]
        before = process.shelves.store.statistics().commits
        heard = [process.publish(bytes(60_000), *queues) for _ in range(20)]
        commits = process.shelves.store.statistics().commits - before
        assert 8 <= commits <= 10
        await until(lambda: all(each.done for each in heard))
    async with on_disk(tmp_path) as process:
        assert [len(process.queue(name)) for name in ("a", "b")] == [20, 20]


async def test_a_spent_budget_is_made_room_in_by_acks(tmp_path: Path) -> None:
    async with on_disk(tmp_path) as process:
        queue = process.queue(budget=Limit(items=10, bytes=None))
        heard = [process.publish(payload) for payload in numbered(30)]
        await until(lambda: heard[9].done)
        await trio.sleep(0.05)
        assert [each.done for each in heard] == [True] * 10 + [False] * 20
        assert process.publisher.debt_items == 20
        process.audit()
        taker = Taker(queue, prefetch=1)
        assert await taker.take(30) == numbered(30)
        await until(lambda: all(each.done for each in heard))
        assert process.publisher.debt_items == queue.account.debt_items == 0


async def test_messages_of_another_version_are_passed_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with on_disk(tmp_path) as process:
        queue = process.queue()
        heard = process.publish(b"first")
        await until(lambda: heard.done)
        changes = process.shelves.store.begin()  # type: ignore[union-attr]
        changes.put(process.shelves.store.queues["q"].id, 2, b"\x07garbage", b"")  # type: ignore[union-attr]
        process.shelves.store.commit(changes)  # type: ignore[union-attr]
    async with on_disk(tmp_path) as process:
        queue = process.queue()
        heard = process.publish(b"third")
        await until(lambda: heard.done)
        assert await Taker(queue).take(2) == [b"first", b"third"]
        await until(lambda: len(queue) == 0)
    assert log_of(caplog, "message 2 has a malformed header")


async def test_shelves_in_ram_do_the_same_for_as_long_as_they_last() -> None:
    async with in_ram() as process:
        queue = process.queue()
        heard = [process.publish(payload, qos=qos) for payload in numbered(50) for qos in (0, 1)]
        queue.give_up("publishers wait")
        await until(lambda: process.publisher.debt_items == 0)
        assert all(each.done for each in heard)
        assert queue.account.debt_items == 100
        taker = Taker(queue, prefetch=3)
        expected = [payload for payload in numbered(50) for _ in (0, 1)]
        assert await taker.take(100) == expected
        assert queue.account.debt_items == 0
        process.erase(queue)
        assert len(process.queue()) == 0
        process.shelves.set("a", b"b")
        process.shelves.delete("a")
        called: list[int] = []
        process.shelves.when_durable(lambda: called.append(1))
        process.shelves.hurry()
        assert called == [1]


async def test_when_durable_is_called_in_the_order_of_the_batches(tmp_path: Path) -> None:
    async with on_disk(tmp_path, StoreSettings(fsync_interval=0.01)) as process:
        called: list[int] = []
        process.shelves.when_durable(lambda: called.append(0))
        assert called == [0]
        for number in range(1, 20):
            process.shelves.set("key", b"%d" % number)
            process.shelves.when_durable(lambda number=number: called.append(number))  # type: ignore[misc]
            if number == 4:
                assert called == [0]  # From now on the disk may be quicker than this.
            if number % 4 == 0:
                await trio.lowlevel.checkpoint()
            if number % 9 == 0:
                process.shelves.hurry()
        await until(lambda: len(called) == 20)
        assert called == list(range(20))
