"""What is kept of sessions: limits, expiry, restarts, and values that cannot be read."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from clearfunds.store import Store
from clearfunds.transports._passed import SECOND, PassedTime
from clearfunds.transports.mqtt import (
    ConnAck,
    Connect,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    SubAck,
    Subscribe,
)
from clearfunds.transports.mqtt.server._persistent_session import PersistentSession
from clearfunds.transports.mqtt.server._persistent_sessions import CLOCK_KEY, PersistentSessions
from tests.relay.brokers import Broker, bodies, numbered
from tests.transports.peers import BareClient, RunningRelay, dial, log_of, running, until


def broker(relay: RunningRelay) -> Broker:
    return Broker(relay.port, relay.relay.settings.max_inflight, "k")


def kept(relay: RunningRelay) -> PersistentSessions:
    sessions = relay.relay.mqtt.persistent_sessions
    assert sessions is not None
    return sessions


async def connect(
    client: BareClient, name: str, user: str | None = None, *, clean: bool = False
) -> None:
    packet = Connect(name, clean, 0, user)
    await client.stream.send_all(client.connection.send(packet))


def session(relay: RunningRelay, name: str = "k-client") -> PersistentSession:
    return kept(relay).by_id[name]


def on(path: Path, **settings: Any) -> Any:
    """Run a relay with a store."""
    return running(store=str(path), fsync_interval=0.0, **settings)


# --- limits -------------------------------------------------------------------------------------


async def test_no_more_sessions_than_are_allowed_are_kept() -> None:
    async with running(max_sessions=2) as relay:
        for name in ("a", "b"):
            async with broker(relay).visit(name, leave=True):
                pass
        async with dial(relay.port) as client:
            await connect(client, "c")
            await client.expect(ConnAck(False, 3))
            await client.expect(None)
        # Who has one is let in, and who needs none; and who has room made for him.
        async with broker(relay).visit("a", present=True, leave=True):
            pass
        async with broker(relay).visit("c", clean=True, leave=True):
            pass
        await broker(relay).forget("a")
        async with broker(relay).visit("c", present=False, leave=True):
            pass
        assert sorted(kept(relay).by_id) == ["b", "c"]


@pytest.mark.parametrize("stored", [True, False])
async def test_while_a_client_is_away_the_oldest_are_dropped(tmp_path: Path, stored: bool) -> None:
    store = str(tmp_path) if stored else None
    async with running(store=store, fsync_interval=0.0, max_queued=10) as relay:
        b = broker(relay)
        async with b.visit(leave=True) as client:
            await client.subscribe(b.topic, qos=1)
        await b.publish(numbered(25), 1)
        queue = session(relay).queue
        await until(lambda: queue.counters.dropped == 15)
        relay.audit()
        async with b.visit(present=True) as client:
            assert bodies(await client.take(10)) == numbered(25)[15:]
            assert await client.all() == []
    if stored:
        async with on(tmp_path) as relay, broker(relay).visit(present=True) as client:
            assert await client.all() == []


async def test_bytes_are_limited_too(tmp_path: Path) -> None:
    async with on(tmp_path, max_queued_bytes=10_000) as relay:
        b = broker(relay)
        async with b.visit(leave=True) as client:
            await client.subscribe(b.topic, qos=1)
        payloads = [payload.ljust(3_000) for payload in numbered(6)]
        await b.publish(payloads, 1)
        async with b.visit(present=True) as client:
            await until(lambda: session(relay).queue.counters.dropped == 3)
            assert bodies(await client.take(3)) == payloads[3:]


async def test_a_session_whose_client_is_away_is_given_up_when_others_wait_for_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Nothing more may be kept, and it makes no room: after its patience it is over."""
    async with running(kept_limit=5_000, limit_items=5, patience=0.3, max_queued=None) as relay:
        b = broker(relay)
        async with b.visit(leave=True) as client:
            await client.subscribe(b.topic, qos=1)
        with trio.fail_after(20):
            await b.publish([bytes(1_000)] * 30, 1)
        assert log_of(caplog, "ends while its client is away")
        assert not kept(relay).by_id
        relay.audit()
        async with b.visit(present=False):
            pass


async def test_sessions_expire(caplog: pytest.LogCaptureFixture) -> None:
    async with running(session_expiry=1_000.0) as relay:
        b = broker(relay)
        for name in ("gone", "back", "here"):
            async with b.visit(name, leave=True) as client:
                await client.subscribe("t", qos=1)
        await b.publish([b"1"], 1, topic="t")
        sessions = kept(relay)
        began = time.time()
        async with b.visit("here", present=True):
            sessions.wall = lambda: began + 600
            async with b.visit("back", present=True, leave=True):
                pass
            sessions.wall = lambda: began + 1_100
            await until(lambda: set(sessions.by_id) == {"back", "here"})
            assert sessions.expired == 1
            sessions.wall = lambda: began + 1e9
            await until(lambda: set(sessions.by_id) == {"here"})
        relay.audit()


async def test_a_boot_without_a_clock_ends_no_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It boots at its firmware's date, and NTP sets it right: that is no time that has passed."""
    firmware, today = 1_600_000_000, 1_790_000_000
    wall = [today]

    def machine(boot: str) -> None:
        clock = partial(PassedTime, wall=lambda: wall[0] * SECOND, boot=boot)
        monkeypatch.setattr("clearfunds.relay._persistence.PassedTime", clock)

    machine("yesterday")
    async with on(tmp_path, session_expiry=3_600.0) as relay:
        b = broker(relay)
        for n in range(10):
            async with b.visit(f"c{n}", leave=True) as client:
                await client.subscribe("t", qos=1)
        await b.publish([b"acknowledged"], 1, topic="t")
    machine("today")
    wall[0] = firmware
    async with on(tmp_path, session_expiry=3_600.0) as relay:
        wall[0] = today + 86_400
        b = broker(relay)
        sessions = kept(relay)
        sessions.tick(relay.ledger.clock())
        assert sessions.expire() == []
        for n in range(10):
            async with b.visit(f"c{n}", present=True, leave=True) as client:
                assert bodies(await client.take(1)) == [b"acknowledged"]


# --- restarts -----------------------------------------------------------------------------------


async def test_a_thousand_sessions_are_there_again_soon(tmp_path: Path) -> None:
    """Linear in their number: with as many values for each as there are, it would take minutes."""
    store = Store.open(tmp_path)
    changes = store.begin()
    for number in range(1_000):
        name = f"mqtt/c{number}"
        queue = changes.declare(name)
        changes.set(f"queue/marks/{name}", bytes(9))
        filters = ",".join(f'["s/{number}/{n}/+",1]' for n in range(10))
        value = f'{{"name":"l/-/c{number}","left":null,"filters":[{filters}]}}'
        changes.set(f"mqtt/session/c{number}", value.encode())
        del queue
    store.commit(changes)
    store.close()
    began = time.monotonic()
    async with on(tmp_path) as relay:
        took = time.monotonic() - began
        assert len(kept(relay)) == 1_000
        assert relay.relay.dataspace.statistics().subscriptions == 10_000
        relay.audit()
        b = broker(relay)
        await b.publish([b"x"], 1, topic="s/17/3/t")
        async with b.visit("c17", present=True) as client:
            assert bodies(await client.take(1)) == [b"x"]
    # Not a speed that is promised: what it must not be.
    assert took < 20


async def test_everything_of_a_session_is_there_after_a_restart(tmp_path: Path) -> None:
    async with on(tmp_path) as relay:
        b = broker(relay)
        async with b.visit() as client:
            await client.subscribe("a/+", qos=2)
            await client.subscribe("b", qos=1)
            await client.subscribe("gone", qos=1)
            await client.unsubscribe("gone")
            await b.publish([b"1", b"2", b"3"], 2, topic="a/x")
            first, second, third = await client.messages(3)
            await client.send(PubRec(first.packet_id), PubRec(third.packet_id))
            await client.expect(PubRel(first.packet_id), PubRel(third.packet_id))
            await client.send(Publish("c", b"mine", 2, packet_id=77))
            await client.expect(PubRec(77))
    async with on(tmp_path) as relay:
        b = broker(relay)
        await b.publish([b"gone"], 1, topic="gone")
        await b.publish([b"b"], 2, topic="b")
        async with b.visit(present=True) as client:
            # Each kind in its order; which of them is on disk first is nobody's business.
            said = [await client.receive() for _ in range(4)]
            released = [packet for packet in said if isinstance(packet, PubRel)]
            assert released == [PubRel(first.packet_id), PubRel(third.packet_id)]
            again, new = (packet for packet in said if isinstance(packet, Publish))
            assert (again.payload, again.dup, again.packet_id) == (b"2", True, second.packet_id)
            assert (new.payload, new.dup, new.qos) == (b"b", False, 1)
            # What was sent with this identifier is known, until it is released.
            async with b.visit("watcher", clean=True) as watcher:
                await watcher.subscribe("c", qos=1)
                await client.send(Publish("c", b"mine", 2, dup=True, packet_id=77))
                await client.expect(PubRec(77))
                assert await watcher.all() == []
                await client.send(PubRel(77))
                await client.expect(PubComp(77))
                await client.send(Publish("c", b"mine again", 2, packet_id=77))
                await client.expect(PubRec(77))
                assert bodies(await watcher.take(1)) == [b"mine again"]


async def test_retained_publications_are_there_after_a_restart(tmp_path: Path) -> None:
    async with on(tmp_path) as relay:
        b = broker(relay)
        async with b.publisher():
            name = relay.account(f"{b.prefix}-publisher").name
        for qos in range(3):
            await b.publish([b"old", b"value"], qos, topic=f"r/{qos}", retain=True)
        await b.publish([b"x", b""], 1, topic="r/gone", retain=True)
    async with on(tmp_path) as relay:
        b = broker(relay)
        async with b.visit("new", clean=True) as client:
            await client.subscribe("r/#", qos=2)
            taken = await client.take(3)
        assert sorted((m.topic, m.payload, m.qos, m.retain) for m in taken) == [
            (f"r/{qos}", b"value", qos, True) for qos in range(3)
        ]
        # They are still their publisher's, and count for its quota.
        assert relay.ledger.standing_of(name).items == 3


async def test_what_cannot_be_read_is_passed_over_and_the_rest_is_there(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with on(tmp_path) as relay:
        b = broker(relay)
        async with b.visit(leave=True) as client:
            await client.subscribe("t", qos=2)
        await b.publish([b"there"], 1, topic="t")
        await b.publish([b"kept"], 1, topic="r", retain=True)
    garbage = [
        b"", b"{", b"[]", b"null", b"\xff", b"{}", b"[" * 100_000,
        b'{"name":1,"left":null,"filters":[]}',
        b'{"name":"a","left":"b","filters":[]}',
        b'{"name":"a","left":null,"filters":[["x"]]}',
        b'{"name":"a","left":null,"filters":[["a#",1]]}',
        b'{"name":"a","left":null,"filters":[["a",7]]}',
        b'{"name":"a","left":null,"filters":{"a":1}}',
        b'{"name":"a","left":null,"filters":[[7,1]]}',
    ]  # fmt: skip
    store = Store.open(tmp_path)
    changes = store.begin()
    for number, value in enumerate(garbage):
        changes.set(f"mqtt/session/g{number}", value)
    for key in ("x/k-client", "0/k-client", "65536/k-client", "-1/k-client", "5", "7/nobody"):
        changes.set(f"mqtt/awaiting/{key}", b"")
        changes.set(f"mqtt/releasing/{key}", b"")
    for number, value in enumerate((b"", b"\x01", b"\x01\0\0\0\x09abc", b"\x03\0\0\0\0abc")):
        changes.set(f"mqtt/retained/g{number}", value)
    changes.set("mqtt/retained/a/#", b"\x01\0\0\0\0abc")
    changes.set("mqtt/retained/u", b"\x01\0\0\0\x01\xffabc")
    changes.set("queue/marks/mqtt/k-client", b"?")
    store.commit(changes)
    store.close()
    async with on(tmp_path) as relay:
        assert set(kept(relay).by_id) == {"k-client"}
        assert len(relay.relay.dataspace.retained) == 1
        assert not session(relay).releasing
        assert not list(session(relay).awaiting)
        b = broker(relay)
        async with b.visit(present=True) as client:
            assert bodies(await client.take(1)) == [b"there"]
        async with b.visit("g3", present=False, leave=True):
            pass
    assert len(log_of(caplog, "is not restored, its stored value cannot be read")) == len(garbage)
    assert len(log_of(caplog, "is not a retained publication")) == 6


async def test_limits_that_have_become_lower_do_not_keep_it_from_starting(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with on(tmp_path) as relay:
        b = broker(relay)
        for name in ("a", "b"):
            async with b.visit(name) as client:
                await client.subscribe("x", "y", qos=1)
                for number in range(1, 4):
                    await client.send(Publish("z", b"", 2, packet_id=number))
                    await client.expect(PubRec(number))
        await b.publish([b"1"], 1, topic="r/1", retain=True)
        await b.publish([b"2"], 1, topic="r/2", retain=True)
    async with on(
        tmp_path, max_sessions=1, max_awaiting_release=1, max_retained=1, quota_items=1
    ) as relay:
        assert sorted(kept(relay).by_id) == ["a", "b"]
        assert log_of(caplog, "subscription to 'y' was lost")
        assert log_of(caplog, "a retained publication is not restored")
        async with broker(relay).visit("a", present=True) as client:
            for number in range(1, 4):
                await client.send(PubRel(number))
                await client.expect(PubComp(number))
    async with on(tmp_path) as relay:
        # What had no room is still on disk.
        assert len(relay.relay.dataspace.retained) == 2


# --- who comes and goes -------------------------------------------------------------------------


async def test_a_session_that_does_not_fit_into_its_users_quota_is_refused_and_stays_as_it_was(
    tmp_path: Path,
) -> None:
    """Another user comes with the same client identifier, and has used up what he may have."""
    async with on(tmp_path, quota_items=5) as relay:
        b = broker(relay)
        async with dial(relay.port) as client:
            await connect(client, "c", "u2", clean=True)
            await client.expect(ConnAck(False, 0))
            for number in range(3):
                await client.publish(f"r/{number}", b"x", qos=1, retain=True, packet_id=1)
                await client.expect(PubAck(1))
        async with dial(relay.port) as client:
            await connect(client, "c", "u1", clean=False)
            await client.expect(ConnAck(False, 0))
            await client.subscribe("a", "b", "t", qos=1)
        await until(lambda: session(relay, "c").left is not None)
        for _ in range(2):
            async with dial(relay.port) as client:
                await connect(client, "c", "u2", clean=False)
                await client.expect(ConnAck(False, 3))
                await client.expect(None)
        relay.audit()
        await b.publish([b"waits"], 1, topic="t")
        async with dial(relay.port) as client:
            await connect(client, "c", "u1", clean=False)
            await client.expect(ConnAck(True, 0))
            assert (await client.publication()).payload == b"waits"


async def test_taken_over_while_messages_are_on_their_way(tmp_path: Path) -> None:
    """Again and again, under a stream of messages; each takes some, and nothing is missing."""
    async with on(tmp_path) as relay, trio.open_nursery() as nursery:
        b = broker(relay)
        async with b.visit(leave=True) as client:
            await client.subscribe(b.topic, qos=2)
        payloads = numbered(200)

        async def publish() -> None:
            await b.publish(payloads, 1)

        nursery.start_soon(publish)
        seen: list[bytes] = []
        while len(seen) < 200:
            async with b.visit(present=True) as client:
                for _ in range(min(9, 200 - len(seen))):
                    message = await client.message()
                    if message.payload not in seen:
                        seen.append(message.payload)
                    await client.send(PubAck(message.packet_id))
                # The next one comes before this one goes.
                async with b.visit(present=True) as next_one:
                    assert next_one is not client
            relay.audit()
        assert seen == payloads


async def test_a_session_begun_in_the_round_in_which_its_like_was_ended_is_new(
    tmp_path: Path,
) -> None:
    async with on(tmp_path) as relay:
        b = broker(relay)
        async with b.visit() as client:
            await client.subscribe(b.topic, qos=1)
        await b.publish(numbered(10), 1)
        await until(lambda: session(relay).left is not None)
        kept(relay).discard(b.name)
        assert kept(relay).create(b.name, "name") is not None
        async with b.visit(present=True) as client:
            assert await client.all() == []
            await client.subscribe(b.topic, qos=1)
            await b.publish([b"new"], 1)
            message = await client.message()
            assert (message.payload, message.dup) == (b"new", False)
    async with on(tmp_path) as relay, broker(relay).visit(present=True) as client:
        assert bodies(await client.take(1)) == [b"new"]


@pytest.mark.parametrize("stored", [True, False])
async def test_an_orderly_stop_acknowledges_what_has_come(tmp_path: Path, stored: bool) -> None:
    """It does not wait for clients that are away; and what it keeps it need not deliver."""
    store = str(tmp_path) if stored else None
    async with running(store=store, fsync_interval=0.5, grace=5.0) as relay:
        b = broker(relay)
        async with b.visit(leave=True) as client:
            await client.subscribe(b.topic, qos=1)
        async with b.publisher() as publisher:
            await publisher.send(
                *(Publish(b.topic, payload, 1, packet_id=7) for payload in numbered(5))
            )
            await until(lambda: relay.relay.mqtt.counters.received == 5)
            relay.stop.set()
            await publisher.expect(*[PubAck(7)] * 5)
            assert await publisher.receive() is None
    assert relay.report is not None
    assert not relay.report.unflushed
    if stored:
        async with on(tmp_path) as relay, broker(relay).visit(present=True) as client:
            assert bodies(await client.take(5)) == numbered(5)


async def test_large_payloads_and_many_filters(tmp_path: Path) -> None:
    filters = [(f"f/{number}/#", number % 3) for number in range(1_000)]
    async with on(tmp_path) as relay:
        b = broker(relay)
        async with b.visit() as client:
            for start in range(0, 1_000, 250):
                some = tuple(filters[start : start + 250])
                await client.send(Subscribe(1, some))
                await client.expect(SubAck(1, tuple(qos for _, qos in some)))
        payloads = [b"%d" % number + bytes(200_000 * number) for number in range(1, 8)]
        for number, payload in enumerate(payloads):
            await b.publish([payload], 2, topic=f"f/{3 * number + 1}/x")
    async with on(tmp_path) as relay:
        assert len(session(relay).subscriptions) == 1_000
        b = broker(relay)
        async with b.visit(present=True) as client:
            assert bodies(await client.take(7)) == payloads
            await b.publish([b"zero"], 2, topic="f/999/x")
            message = await client.message()
            assert (message.payload, message.qos) == (b"zero", 0)


async def test_a_session_that_ends_before_its_connection_does_stays_ended(tmp_path: Path) -> None:
    async with on(tmp_path) as relay:
        b = broker(relay)
        async with b.visit() as client:
            await client.subscribe(b.topic, qos=2)
            await client.send(Publish("t", b"x", 2, packet_id=5))
            kept(relay).discard(b.name)
        await until(lambda: not relay.relay.mqtt.sessions)
        relay.audit()
    store = Store.open(tmp_path)
    assert not {*store.values("mqtt/")} - {CLOCK_KEY}, "it notes the time now and then"
    assert not store.queues
    store.close()
