"""Disks that are full, slow, broken or not to be written to: nothing confirmed is lost."""

from __future__ import annotations

import errno
import resource
import subprocess
import sys
import time
from pathlib import Path

import pytest
import trio

from clearfunds.transports.mqtt import (
    PingReq,
    PingResp,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    SubAck,
    Subscribe,
)
from tests.relay.brokers import Broker, bodies, numbered
from tests.relay.faithful import Life, Load, mixed
from tests.relay.powered import powered
from tests.relay.relay_process import relay_process
from tests.store.disk import Disks, refuse
from tests.transports.peers import SECONDS, log_of, until

FULL = refuse(errno.ENOSPC, "write")


async def test_a_full_disk_stops_publishers_until_there_is_room(
    caplog: pytest.LogCaptureFixture, disks: Disks
) -> None:
    disk = disks()
    async with powered(disk, limit_items=20) as relay:
        broker = Broker(relay.port, 32, "d")
        async with broker.visit(leave=True) as client:
            await client.subscribe(broker.topic, qos=1)
        async with broker.publisher() as publisher:
            await publisher.publish(broker.topic, b"0", 1)
            disk.fault = FULL
            packets = [
                Publish(broker.topic, payload, 1, packet_id=int(payload))
                for payload in numbered(101)[1:]
            ]
            await publisher.send(*packets)
            await until(lambda: log_of(caplog, "disk is full"))
            await until(lambda: relay.statistics().waiting == 1)
            relay.audit()
            # It is not read any more, and what it owes is not more than it may owe.
            assert 20 <= relay.account(f"{broker.prefix}-publisher").debt_items <= 21
            assert await publisher.client.silent(0.1)
            async with broker.visit("other", clean=True) as other:
                # Who does not need the disk goes on.
                await other.subscribe("other", qos=0)
                await other.send(Publish("other", b"x"))
                assert (await other.message()).payload == b"x"
            disk.fault = None
            for number in range(1, 101):
                await publisher.expect(PubAck(number))
        await until(lambda: log_of(caplog, "the store can be written to again"))
    async with powered(disk) as relay:
        broker = Broker(relay.port, 32, "d")
        async with broker.visit(present=True) as client:
            assert bodies(await client.take(101)) == numbered(101)


async def test_who_waits_for_its_suback_may_still_ping_acknowledge_and_leave(disks: Disks) -> None:
    """With the disk in trouble a change of a session is not confirmed; its client is heard."""
    disk = disks()
    async with powered(disk) as relay:
        broker = Broker(relay.port, 32, "d")
        async with broker.visit() as client:
            await client.subscribe(broker.topic, qos=1)
            await broker.publish([b"1"], 1)
            (message,) = await client.messages(1)
            disk.fault = FULL
            await client.send(Subscribe(7, (("more", 1),)), PubAck(message.packet_id), PingReq())
            await client.expect(PingResp())
            queue = relay.relay.mqtt.persistent_sessions.by_id[broker.name].queue  # type: ignore[union-attr]
            await until(lambda: queue.counters.acked == 1)
            async with broker.visit("leaver") as leaver:
                await leaver.send(Subscribe(7, (("more", 1),)))
                await until(lambda: "leaver" in relay.relay.mqtt.sessions)
            await until(lambda: "leaver" not in relay.relay.mqtt.sessions)
            disk.fault = None
            await client.expect(SubAck(7, (1,)))
            # What was read in the meantime is not forgotten.
            disk.fault = FULL
            await client.send(Subscribe(8, (("even more", 1),)))
            await client.send(PingReq(), Publish("more", b"m", 0), PingReq())
            said = [await client.receive()]
            while said.count(PingResp()) < 2:
                said.append(await client.receive())
            assert SubAck(8, (1,)) not in said
            disk.fault = None
            said += [await client.receive(), *await client.all()]
            left = [packet for packet in said if packet != PingResp()]
            assert sorted(left, key=lambda packet: packet.kind) == [  # type: ignore[union-attr]
                Publish("more", b"m"),
                SubAck(8, (1,)),
            ]


async def test_a_slow_disk_makes_who_wants_to_be_sure_wait_and_nobody_else(disks: Disks) -> None:
    disk = disks()

    def slow(operation: str, name: str) -> None:
        if operation == "sync":
            time.sleep(0.2)

    async with powered(disk, fsync_interval=0.0) as relay:
        broker = Broker(relay.port, 32, "d")
        async with broker.visit(leave=True) as client:
            await client.subscribe(broker.topic, qos=2)
        disk.fault = slow
        async with broker.publisher() as publisher, broker.visit("o", clean=True) as other:
            packets = [
                Publish(broker.topic, payload, 1, packet_id=int(payload) + 1)
                for payload in numbered(500)
            ]
            await publisher.send(*packets)
            await other.subscribe("other", qos=1)
            for number in range(100):
                await other.send(Publish("other", b"%d" % number, 1, packet_id=1))
                said = [await other.receive(), await other.receive()]
                (message,) = (packet for packet in said if isinstance(packet, Publish))
                assert PubAck(1) in said
                await other.send(PubAck(message.packet_id))
            for number in range(500):
                await publisher.expect(PubAck(number + 1))
            relay.audit()
        disk.fault = None


@pytest.mark.parametrize("again", [True, False])
async def test_qos_2_that_found_no_room_is_not_taken_for_a_duplicate_after_a_crash(
    again: bool, disks: Disks
) -> None:
    """Its identifier is on disk only with its message; or what comes again would be lost."""
    disk = disks(2)
    topic = "t"
    async with powered(disk, disk_limit=1_000) as relay:
        broker = Broker(relay.port, 32, "d")
        async with broker.visit(leave=True) as client:
            await client.subscribe(topic, qos=2)
        async with broker.visit("publisher") as publisher:
            await publisher.publish(topic, b"1" * 700, 2)
            await publisher.send(Publish(topic, b"2" * 700, 2, packet_id=9))
            await trio.sleep(0.1)
            assert await publisher.all() == []
        if again:
            async with broker.visit("publisher", present=True) as publisher:
                # Nor is it answered because its identifier is known.
                await publisher.send(Publish(topic, b"2" * 700, 2, dup=True, packet_id=9))
                await trio.sleep(0.1)
                assert await publisher.all() == []
        relay.audit()
    async with powered(disk, disk_limit=1_000) as relay:
        broker = Broker(relay.port, 32, "d")
        async with broker.visit("publisher", present=True) as publisher:
            await publisher.send(Publish(topic, b"2" * 700, 2, dup=True, packet_id=9))
            assert await publisher.client.silent(0.1)
            async with broker.visit(present=True) as client:
                taken = await client.take(2)
                assert bodies(taken) == [b"1" * 700, b"2" * 700]
            await publisher.expect(PubRec(9))
            await publisher.send(PubRel(9))
            await publisher.expect(PubComp(9))


async def test_with_the_budget_spent_by_others_who_is_there_is_served_all_the_same(
    disks: Disks,
) -> None:
    """Also what may be delivered only from disk, a message at a time."""
    disk = disks()
    async with powered(disk, disk_limit=2_000, fsync_interval=0.0) as relay:
        broker = Broker(relay.port, 32, "d")
        async with broker.visit("away", leave=True) as client:
            await client.subscribe("full", qos=1)
        await broker.publish([bytes(1_990)], 1, topic="full")
        assert relay.ledger.accounts["disk"].debt_bytes >= 1_990
        async with broker.visit() as client:
            await client.subscribe(broker.topic, qos=2)
            async with broker.publisher() as publisher:
                payloads = [payload.ljust(100) for payload in numbered(20)]
                packets = [
                    Publish(broker.topic, payload, 2, packet_id=number)
                    for number, payload in enumerate(payloads, 1)
                ]
                await publisher.send(*packets)
                assert bodies(await client.take(20)) == payloads
                await publisher.expect(*(PubRec(number) for number in range(1, 21)))
            relay.audit()


async def test_reading_fails_for_a_while(caplog: pytest.LogCaptureFixture, disks: Disks) -> None:
    disk = disks()
    async with powered(disk) as relay:
        broker = Broker(relay.port, 32, "d")
        async with broker.visit(leave=True) as client:
            await client.subscribe(broker.topic, qos=1)
        await broker.publish(numbered(50), 1)
    async with powered(disk) as relay:
        broker = Broker(relay.port, 32, "d")
        disk.fault = refuse(errno.EIO, "read")
        async with broker.visit(present=True) as client:
            assert await client.all() == []
            await until(lambda: log_of(caplog, f"queue mqtt/{broker.name} waits: "))
            disk.fault = None
            assert bodies(await client.take(50)) == numbered(50)


@pytest.mark.parametrize("seed", [2, pytest.param(5, marks=pytest.mark.long)])
async def test_a_disk_that_fails_now_and_then_and_then_the_power(seed: int, disks: Disks) -> None:
    """Under load: with everything that a disk can do wrong, nothing confirmed is lost."""
    disk = disks(seed)
    chance = disk.chance
    load = Load(seed)
    mixed(load)

    def fault(operation: str, name: str) -> None:
        if operation in ("write", "sync", "read") and chance.random() < 0.1:
            raise OSError(errno.EIO, "it fails now and then", name)

    async with trio.open_nursery() as nursery:
        load.start(nursery)
        for left in range(3, -1, -1):
            async with powered(disk, fsync_interval=0.01) as relay:
                load.life = Life(relay.port)
                await until(lambda: len(load.confirmed) > 10)
                disk.fault = fault
                load.life.failing = True
                await trio.sleep(chance.uniform(0.1, 0.8))
                disk.fault = None
                if not left:
                    await load.settled()
                    load.over = True
        nursery.cancel_scope.cancel()
    load.check()


# --- a real process and a real disk -------------------------------------------------------------


def refused(*options: str) -> str:
    """Start a relay that has to refuse; return what it says."""
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "clearfunds",
            "relay",
            "--listen",
            "mqtt+tcp://127.0.0.1:0",
            *options,
        ],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 1, done
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    return done.stderr


def test_a_directory_that_cannot_be_written_to_is_said() -> None:
    # What /proc has, not even root can add to.
    said = refused("--store", "/proc/nothing")
    assert "/proc/nothing" in said
    assert len(said.strip().splitlines()) == 1


def test_a_file_in_place_of_the_directory_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    said = refused("--store", str(tmp_path / "file"))
    assert str(tmp_path / "file") in said


async def test_a_store_that_is_in_use_is_said(tmp_path: Path) -> None:
    async with relay_process(tmp_path) as relay:
        store = str(tmp_path / "store")
        said = await trio.to_thread.run_sync(refused, "--store", store)
        assert f"the store in {store} is in use by another process" in said
        await relay.stop()


async def test_a_real_disk_is_full(tmp_path: Path) -> None:
    """As far as one can be had: files of this process may not be longer than so much."""
    async with relay_process(tmp_path, "--fsync-interval", "0.01") as relay:
        broker = Broker(relay.port, 32, "d")
        async with broker.visit(leave=True) as client:
            await client.subscribe(broker.topic, qos=1)
        # The soft limit only, so that it can be taken back.
        limits = resource.RLIMIT_FSIZE
        hard = resource.prlimit(relay.pid, limits)[1]
        resource.prlimit(relay.pid, limits, (100_000, hard))
        payloads = [payload.ljust(1_000) for payload in numbered(300)]
        async with broker.publisher() as publisher:
            packets = [
                Publish(broker.topic, payload, 1, packet_id=number)
                for number, payload in enumerate(payloads, 1)
            ]
            await publisher.send(*packets)
            await until(lambda: "cannot write to the store" in relay.log)
            confirmed = 0
            with trio.move_on_after(0.3):
                while True:
                    confirmed += 1
                    assert await publisher.client.receive() == PubAck(confirmed)
            assert confirmed < 200
            await relay.audit()
            resource.prlimit(relay.pid, limits, (hard, hard))
            for number in range(confirmed, 301):
                await publisher.expect(PubAck(number))
        await relay.kill()
        await relay.start()
        async with broker.visit(present=True) as client:
            assert bodies(await client.take(300)) == payloads
        await relay.stop()
        assert "Traceback" not in relay.log
