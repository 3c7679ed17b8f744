"""The store is hurried when the event loop rests, and left alone while it works."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio

from clearfunds.persistence import Shelves
from clearfunds.persistence._idle import LAST, LONG_SECONDS, Rests
from clearfunds.persistence._shelves import PROMPT_SECONDS
from clearfunds.transports.mqtt import PubAck, open_mqtt
from tests.transports.mqtt.peers5 import connected5
from tests.transports.peers import connected, running

if TYPE_CHECKING:
    from pathlib import Path

NEVER = 3600.0


class Loop:
    """The event loop as the instrument sees it, with a clock of the test's."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.hurried = 0
        monkeypatch.setattr("clearfunds.persistence._idle.monotonic", lambda: self.now)
        self.rests = Rests(lambda: None, self._hurry)

    def _hurry(self) -> None:
        self.hurried += 1

    def sleep(self, seconds: float, timeout: float = 1.0) -> None:
        self.rests.before_io_wait(timeout)
        self.now += seconds
        self.rests.after_io_wait(timeout)


@pytest.fixture
async def loop(monkeypatch: pytest.MonkeyPatch) -> Loop:
    return Loop(monkeypatch)


async def test_a_loop_that_has_just_slept_long_hurries_at_once(loop: Loop) -> None:
    loop.sleep(LONG_SECONDS)
    assert loop.hurried == 0  # Nothing waits for the disk.
    loop.rests.wait_for_disk()
    loop.rests.wait_for_disk()
    loop.sleep(0.0)
    assert loop.hurried == 1
    loop.sleep(1.0)
    assert loop.hurried == 1
    loop.rests.wait_for_disk()
    loop.sleep(0.0)
    assert loop.hurried == 2


async def test_a_loop_under_full_load_does_not(loop: Loop) -> None:
    for _ in range(LAST):
        loop.sleep(LONG_SECONDS / 2)
    loop.rests.wait_for_disk()
    for _ in range(100):
        loop.sleep(LONG_SECONDS / 2)
        loop.sleep(0.0, timeout=0.0)  # Tasks wait to be run: this is no sleep.
    assert loop.hurried == 0
    loop.sleep(LONG_SECONDS)
    assert loop.hurried == 0
    loop.sleep(0.0)
    assert loop.hurried == 1


async def test_a_rest_behind_full_load_is_seen() -> None:
    """Also if nothing else happens that would wake the loop."""
    done = trio.Event()
    rests = Rests(lambda: None, done.set)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(rests.watch)
        busy_until = trio.current_time() + 0.05
        for _ in range(LAST):
            rests.before_io_wait(1.0)
            rests.after_io_wait(1.0)
        rests.wait_for_disk()
        while trio.current_time() < busy_until:
            await trio.lowlevel.checkpoint()
            assert not done.is_set()
        with trio.fail_after(30):
            await done.wait()
        assert not rests.awaited
        nursery.cancel_scope.cancel()


async def test_what_was_written_is_handed_over_in_each_round_and_a_fault_ends_the_watch() -> None:
    rounds = 0

    def commit() -> None:
        nonlocal rounds
        rounds += 1
        if rounds > 10:
            raise ValueError("full")

    with trio.fail_after(30), pytest.RaisesGroup(ValueError):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(Rests(commit, lambda: None).watch)
            for _ in range(5):
                await trio.lowlevel.checkpoint()
            assert rounds >= 4
            while True:
                await trio.lowlevel.checkpoint()
    assert rounds > 10


async def test_confirms_do_not_wait_for_the_interval(tmp_path: Path) -> None:
    store = str(tmp_path / "store")
    async with running(store=store, fsync_interval=NEVER) as relay:
        kept = open_mqtt("127.0.0.1", relay.port, client_id="kept", clean_session=False)
        async with kept as client:
            await client.subscribe("t", qos=1)
        async with connected(relay.port, "pub") as publisher:
            for _ in range(50):
                await publisher.publish("t", b"x", qos=1, packet_id=1)
                await publisher.expect(PubAck(1))
        shelves = relay.relay.persistence
        assert isinstance(shelves, Shelves)
        assert shelves.store.statistics().messages == 50


async def test_for_a_queue_that_is_read_the_store_is_not_hurried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its messages are confirmed when they are acknowledged; few are written."""
    for name in ("READ_SECONDS", "PROMPT_SECONDS"):
        monkeypatch.setattr(f"clearfunds.persistence._shelves.{name}", NEVER)
    async with running(store=str(tmp_path / "store"), fsync_interval=NEVER) as relay:
        kept = open_mqtt("127.0.0.1", relay.port, client_id="kept", clean_session=False)
        async with kept as client, connected(relay.port, "pub") as publisher:
            await client.subscribe("t", qos=1)
            for _ in range(50):
                await publisher.publish("t", b"x", qos=1, packet_id=1)
                await client.receive()
                await publisher.expect(PubAck(1))
            shelves = relay.relay.persistence
            assert isinstance(shelves, Shelves)
            assert shelves.store.statistics().transactions < 25


async def test_for_a_consumer_that_takes_its_time_no_publisher_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clearfunds.persistence._shelves.READ_SECONDS", NEVER)
    async with (
        running(store=str(tmp_path / "store"), fsync_interval=NEVER) as relay,
        connected5(relay.port, "kept", session_expiry=600) as kept,
        connected(relay.port, "pub") as publisher,
    ):
        await kept.subscribe("t", options=1)
        for _ in range(2):
            await publisher.publish("t", b"x", qos=1, packet_id=1)
            taken = await kept.publication()
            await trio.sleep(4 * PROMPT_SECONDS)
            await kept.send(PubAck(taken.packet_id))
            await publisher.expect(PubAck(1))
        # It has taken longer than a disk takes: this one is not acknowledged at all.
        for number in range(5):
            await publisher.publish("t", b"x", qos=1, packet_id=number + 1)
            await publisher.expect(PubAck(number + 1))
            assert (await kept.publication()).payload == b"x"
