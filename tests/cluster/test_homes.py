"""Persistent sessions of a cluster: each has a home, and its client may connect to any relay."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from clearfunds.access import Passwords
from clearfunds.cluster._forwarding import InwardBridge
from clearfunds.cluster._homes import Home, Homes
from clearfunds.cluster._links import Frame, Kind
from clearfunds.transports.mqtt import (
    Auth,
    ConnAck,
    Connect,
    Disconnect,
    PubAck,
    Publish,
    Reason,
    Subscribe,
    Will,
)
from clearfunds.transports.mqtt.server._homes import Guest
from clearfunds.transports.nats import JetStream, KeyValue, open_nats
from tests.cluster.test_relays import client, cluster, goes_there, knows_another
from tests.nats_servers import NatsServer, needs_nats
from tests.relay.test_websocket import opened
from tests.transports.mqtt.users import user_line
from tests.transports.peers import BareClient, RunningRelay, connected, dial, log_of, running, until

pytestmark = needs_nats

UNAVAILABLE = 3


def homes_of(relay: RunningRelay) -> Homes:
    place = relay.relay.cluster
    assert place is not None
    assert place.homes is not None
    return place.homes


def sessions_of(relay: RunningRelay) -> set[str]:
    """Return the keys of the sessions that a relay has."""
    sessions = relay.relay.mqtt.persistent_sessions
    assert sessions is not None
    return set(sessions.by_id)


def forwarded(relay: RunningRelay) -> tuple[int, int]:
    """Return how many connections others serve for it, and it serves for others."""
    place = relay.relay.cluster
    assert place is not None
    assert place.forwarding is not None
    return len(place.forwarding.opened), len(place.forwarding.served)


async def try_to_connect(client: BareClient, name: str, **more: Any) -> ConnAck:
    """Send a CONNECT for a persistent session; return the answer."""
    more = {"clean_session": False} | more
    await client.stream.send_all(client.connection.send(Connect(name, **more)))
    answer = await client.next()
    assert isinstance(answer, ConnAck)
    return answer


@asynccontextmanager
async def kept(relay: RunningRelay, name: str, **more: Any) -> AsyncGenerator[BareClient]:
    """Connect a client with a persistent session; the connection is cut at the end."""
    buffer = more.pop("receive_buffer", None)
    async with dial(relay.port, receive_buffer=buffer) as client:
        assert (await try_to_connect(client, name, **more)).return_code == 0
        yield client


def is_quiet(*relays: RunningRelay) -> bool:
    """Whether nobody owes anything but what lies in queues."""
    return not any(
        each.debt_items
        for relay in relays
        for name, each in relay.ledger.accounts.items()
        if not name.startswith(("kept", "mqtt/", "disk"))
    )


async def test_a_client_finds_its_session_at_another_relay(nats: NatsServer) -> None:
    async with cluster(nats) as (one, two):
        async with client(one, "reader", clean_session=False) as reader:
            await reader.subscribe("t/#", 2)
            await goes_there(two, "t/1")
        async with client(two, "writer") as writer:
            for number in range(100):
                await writer.publish(f"t/{number}", b"%d" % number, qos=1 + number % 2)
        async with client(two, "reader", clean_session=False) as reader:
            assert reader.session_present
            got = [await reader.receive() for _ in range(100)]
            assert [p.payload for p in got] == [b"%d" % n for n in range(100)]
            await reader.publish("t/x", b"own", qos=2)
            assert (await reader.receive()).payload == b"own"
            assert one.relay.mqtt.sessions.keys() == {"reader"}
            assert forwarded(two) == (1, 0)
            assert forwarded(one) == (0, 1)
            # It is shown with its own address and the listener that it has come by.
            (session,) = one.relay.mqtt.sessions.values()
            assert session.name == f"mqtt:{two.port}/-/reader"
        await until(lambda: forwarded(one) == forwarded(two) == (0, 0))
        await until(lambda: is_quiet(one, two))


async def test_a_clean_start_elsewhere_ends_the_session(nats: NatsServer) -> None:
    async with cluster(nats) as (one, two):
        async with kept(one, "c") as there:
            await there.subscribe("t", qos=1)
        await until(lambda: len(homes_of(two)) == 1)
        async with client(two, "c") as again:
            assert not again.session_present
            assert forwarded(two) == (1, 0)
            await until(lambda: not sessions_of(one))
            await until(lambda: not len(homes_of(one)) and not len(homes_of(two)))
        async with client(two, "c", clean_session=False) as again:
            assert not again.session_present
            assert sessions_of(two) == {"c"}


async def test_one_relay_makes_a_session_when_two_would_at_the_same_time(
    nats: NatsServer,
) -> None:
    async with cluster(nats) as (one, two):
        for number in range(20):
            name = f"twin-{number}"
            async with dial(one.port) as here, dial(two.port) as there:
                for each in (here, there):
                    connect = Connect(name, clean_session=False)
                    await each.stream.send_all(each.connection.send(connect))
                # One of the two connections ends the other one.
                for each in (here, there):
                    with trio.fail_after(10):
                        await each.receive()
            assert [sessions_of(one), sessions_of(two)].count({name}) == 1
            async with client(one, name):
                await until(lambda: not sessions_of(one) and not sessions_of(two))


async def test_a_client_has_one_connection_by_whatever_relay_it_comes(nats: NatsServer) -> None:
    async with cluster(nats) as (one, two):
        async with kept(one, "c") as first:
            await first.subscribe("t", qos=1)
            await until(lambda: len(homes_of(two)) == 1)
            async with kept(two, "c") as second:
                assert await first.gone() == []
                async with kept(two, "c") as third:
                    assert await second.gone() == []
                    async with kept(one, "c") as fourth:
                        assert await third.gone() == []
                        await fourth.publish("t", b"x", 1)
                        got = [await fourth.next(), await fourth.next()]
                        assert PubAck(1) in got
        await until(lambda: forwarded(one) == forwarded(two) == (0, 0))


async def test_a_slow_client_of_another_relay_holds_up_its_publisher_and_is_named(
    nats: NatsServer,
) -> None:
    settings = {"limit_items": 200, "profile": "lossless", "patience": 30.0}
    async with cluster(nats, **settings) as (one, two):
        async with kept(one, "archive") as there:
            await there.subscribe("news")
        await until(lambda: len(homes_of(two)) == 1)
        async with (
            kept(two, "archive", receive_buffer=4096) as archive,
            client(one, "newsroom") as newsroom,
            client(two, "sports") as sports,
        ):
            await goes_there(one, "news")
            sent = 0
            async with trio.open_nursery() as nursery:

                async def flood() -> None:
                    nonlocal sent
                    while True:
                        await newsroom.publish("news", b"%d " % sent + bytes(4_000))
                        sent += 1

                nursery.start_soon(flood)
                await until(lambda: [each.account.name for each in one.ledger.waiters])
                holders = {
                    each.holder
                    for each in one.ledger.matrix()
                    if each.account.endswith("/newsroom")
                }
                assert holders == {f"mqtt:{two.port}/-/archive"}
                # No more is on its way than the sockets and the windows hold.
                await sports.publish("x", b"", qos=1)
                nursery.cancel_scope.cancel()
            for number in range(sent):
                got = await archive.publication()
                assert got.payload.split()[0] == b"%d" % number
        await until(lambda: is_quiet(one, two))


async def test_a_client_that_may_not_be_read_is_not_read_by_the_other_relay(
    nats: NatsServer,
) -> None:
    settings = {"limit_items": 50, "profile": "lossless", "patience": 30.0}
    async with cluster(nats, **settings) as (one, two):
        async with kept(one, "writer"):
            pass
        await until(lambda: len(homes_of(two)) == 1)
        async with (
            connected(one.port, "stuck", receive_buffer=4096) as stuck,
            kept(two, "writer") as writer,
        ):
            await stuck.subscribe("t")
            sent = 0
            with trio.move_on_after(20):
                while sent < 10_000:
                    with trio.move_on_after(2) as patience:
                        await writer.publish("t", bytes(10_000))
                    if patience.cancelled_caught:
                        break
                    sent += 1
            assert sent < 2_000
            assert [each.account.name for each in one.ledger.waiters] == [
                f"mqtt:{two.port}/-/writer"
            ]


async def test_a_will_is_published_by_the_home_when_the_connection_breaks(
    nats: NatsServer,
) -> None:
    async with cluster(nats) as (one, two), client(one, "reader") as reader:
        await reader.subscribe("gone", 1)
        async with kept(one, "mortal"):
            pass
        await until(lambda: len(homes_of(two)) == 1)
        async with kept(two, "mortal", will=Will("gone", b"by itself", 1)) as mortal:
            await mortal.send(Disconnect())
            await mortal.gone()
        async with kept(two, "mortal", will=Will("gone", b"broken", 1)) as mortal:
            await mortal.reset()
            assert (await reader.receive()).payload == b"broken"


async def test_keep_alive_holds_across(nats: NatsServer) -> None:
    async with cluster(nats) as (one, two):
        async with kept(one, "c"):
            pass
        await until(lambda: len(homes_of(two)) == 1)
        async with kept(two, "c", keep_alive=1) as silent:
            assert await silent.gone() == []
        assert one.relay.mqtt.counters.timeouts == 1


async def test_a_user_is_asked_for_the_password_once(nats: NatsServer) -> None:
    lines = "".join(user_line(user, b"secret") + "\n" for user in ("anna", "bert"))
    known, unknown = Passwords.from_text(lines), Passwords.from_text(user_line("carl", b"x"))
    how: dict[str, Any] = {"cluster": nats.url, "grace": 1.0}
    async with (
        running(name="r1", passwords=known, **how) as one,
        running(name="r2", passwords=known, **how) as two,
    ):
        await knows_another(one)
        await knows_another(two)
        anna = {"username": "anna", "password": b"secret"}
        async with kept(one, "c", **anna) as here:
            await here.subscribe("t", qos=1)
        await until(lambda: len(homes_of(two)) == 1)
        # The home knows the password no more; it believes the other relay.
        object.__setattr__(one.relay.mqtt.settings, "passwords", unknown)
        async with dial(two.port) as wrong:
            refused = await try_to_connect(wrong, "c", username="anna", password=b"wrong")
            assert refused.return_code in (4, 5)
        async with kept(two, "c", **anna):
            assert sessions_of(one) == {"@anna/c"}
            (session,) = one.relay.mqtt.sessions.values()
            assert session.name == f"mqtt:{two.port}/anna/c"
            # Another user's client of that name is another one.
            async with kept(two, "c", username="bert", password=b"secret"):
                assert sessions_of(two) == {"@bert/c"}
        object.__setattr__(one.relay.mqtt.settings, "passwords", known)


async def test_a_session_in_ram_begins_anew_when_its_relay_has_gone(nats: NatsServer) -> None:
    how: dict[str, Any] = {"cluster": nats.url, "grace": 1.0}
    async with running(name="r2", **how) as two:
        async with running(name="r1", strangers=8, **how) as one:
            await knows_another(two)
            async with kept(one, "c") as here:
                await here.subscribe("t", qos=1)
            await until(lambda: len(homes_of(two)) == 1)
        await until(lambda: two.relay.cluster and not two.relay.cluster.peers)
        async with dial(two.port) as again:
            answer = await try_to_connect(again, "c")
            assert answer == ConnAck(False, 0)
        assert homes_of(two).taken == 1
        async with running(name="r1", strangers=8, **how) as one:
            await knows_another(one)
            async with kept(one, "c"):
                assert forwarded(one) == (1, 0)


async def test_a_session_on_disk_waits_for_its_relay(nats: NatsServer, tmp_path: Path) -> None:
    how: dict[str, Any] = {"cluster": nats.url, "grace": 1.0, "fsync_interval": 0.0}
    durable: dict[str, Any] = how | {"name": "r1", "store": tmp_path, "strangers": 8}
    async with running(name="r2", **how) as two:
        async with running(**durable) as one:
            await knows_another(two)
            async with kept(one, "c") as here:
                await here.subscribe("t", qos=1)
            async with client(one, "writer") as writer:
                await writer.publish("t", b"x", qos=1)
            await until(lambda: len(homes_of(two)) == 1)
        await until(lambda: two.relay.cluster and not two.relay.cluster.peers)
        async with dial(two.port) as early:
            answer = await try_to_connect(early, "c")
            assert answer == ConnAck(False, UNAVAILABLE)
        assert homes_of(two).refused == 1
        async with running(**durable) as one:
            await knows_another(two)
            async with dial(two.port) as late:
                assert await try_to_connect(late, "c") == ConnAck(True, 0)
                assert (await late.publication()).payload == b"x"


async def test_a_session_on_disk_is_given_up_in_the_end_and_dropped_when_its_relay_is_back(
    nats: NatsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clearfunds.cluster._homes.RETURN_SECONDS", 0.0)
    how: dict[str, Any] = {"cluster": nats.url, "grace": 1.0, "fsync_interval": 0.0}
    durable: dict[str, Any] = how | {"name": "r1", "store": tmp_path, "strangers": 8}
    async with running(name="r2", **how) as two:
        async with running(**durable) as one:
            await knows_another(two)
            for name in ("given-up", "stays"):
                async with kept(one, name) as here:
                    await here.subscribe("t", qos=1)
            await until(lambda: len(homes_of(two)) == 2)
        await until(lambda: two.relay.cluster and not two.relay.cluster.peers)
        async with kept(two, "given-up"):
            pass
        async with running(**durable) as one:
            assert sessions_of(one) == {"stays"}
            assert homes_of(one).dropped == homes_of(two).taken == 1
            await knows_another(one)
            async with dial(one.port) as again:
                assert await try_to_connect(again, "given-up") == ConnAck(True, 0)
                assert forwarded(one) == (1, 0)


async def test_a_clean_client_does_not_wait_for_a_relay_that_has_gone(
    nats: NatsServer, tmp_path: Path
) -> None:
    how: dict[str, Any] = {"cluster": nats.url, "grace": 1.0, "fsync_interval": 0.0}
    async with running(name="r2", **how) as two:
        async with running(name="r1", store=tmp_path, strangers=8, **how) as one:
            await knows_another(two)
            async with kept(one, "c"):
                pass
            await until(lambda: len(homes_of(two)) == 1)
        await until(lambda: two.relay.cluster and not two.relay.cluster.peers)
        async with connected(two.port, "c"):
            await until(lambda: not len(homes_of(two)))
        async with dial(two.port) as again:
            assert await try_to_connect(again, "c") == ConnAck(False, 0)


async def test_sessions_of_a_store_are_in_the_cluster_when_their_relay_is(
    own_nats: NatsServer, tmp_path: Path
) -> None:
    async with running(store=tmp_path, fsync_interval=0.0, max_sessions=10_000) as alone:
        for number in range(300):
            async with kept(alone, f"c-{number}"):
                pass
    async with running(store=tmp_path, cluster=own_nats.url, name="r1") as one:
        assert len(homes_of(one)) == len(sessions_of(one)) == 300


async def test_connections_end_when_nats_has_gone(own_nats: NatsServer) -> None:
    async with cluster(own_nats) as (one, two):
        async with kept(one, "c"):
            pass
        await until(lambda: len(homes_of(two)) == 1)
        async with kept(two, "c") as there:
            await trio.to_thread.run_sync(own_nats.kill)
            assert await there.gone() == []
            await until(lambda: not one.relay.mqtt.sessions)
        # Those whose session is at hand are served, others are told to come again.
        async with kept(one, "c"), dial(two.port) as other:
            assert await try_to_connect(other, "c") == ConnAck(False, UNAVAILABLE)
            assert await try_to_connect_anew(two) == ConnAck(False, UNAVAILABLE)
        await trio.to_thread.run_sync(own_nats.start)
        await knows_another(one)
        await knows_another(two)
        async with dial(two.port) as again:
            assert (await try_to_connect(again, "c")).session_present


async def try_to_connect_anew(relay: RunningRelay) -> ConnAck:
    async with dial(relay.port) as client:
        return await try_to_connect(client, "new")


async def test_what_is_under_way_when_nats_is_away_for_a_moment_comes(
    own_nats: NatsServer,
) -> None:
    async with cluster(own_nats) as (one, two):
        async with kept(one, "c") as here:
            await here.subscribe("t", qos=1)
        await until(lambda: len(homes_of(two)) == 1)
        async with kept(two, "c") as there, client(one, "writer") as writer:
            await writer.publish("t", b"1", qos=1)
            await there.publications(1, ack=True)
            await trio.to_thread.run_sync(own_nats.kill)
            await writer.publish("t", b"2", qos=1)
            await trio.to_thread.run_sync(own_nats.start)
            got = await there.next()
            if got is not None:  # nothing was lost: it waited for the connection
                assert isinstance(got, Publish)
                assert (got.payload, got.dup) == (b"2", False)
                return
        await knows_another(one)
        await knows_another(two)
        async with kept(two, "c") as there:
            # The acknowledgement of the first one may have been lost as well.
            first, *rest = await there.publications(1, ack=True)
            if first.payload == b"1":
                assert first.dup
                rest = await there.publications(1)
            assert (rest or [first])[0].payload == b"2"


@pytest.mark.parametrize("lost", [Kind.DATA, Kind.END])
async def test_a_frame_that_is_lost_ends_the_connection_and_nothing_is_left_out(
    nats: NatsServer, lost: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clearfunds.cluster._links.ASK_IDLE_SECONDS", 1.0)
    to_lose = 0
    take = InwardBridge.receive

    def lose(bridge: InwardBridge, frame: Frame, now: float) -> None:
        nonlocal to_lose
        if frame.kind is lost and to_lose:
            to_lose -= 1
        else:
            take(bridge, frame, now)

    monkeypatch.setattr(InwardBridge, "receive", lose)
    count = 100
    payloads = [b"%d " % number + bytes(1_000) for number in range(count)]
    async with cluster(nats) as (one, two):
        async with kept(one, "c") as here:
            await here.subscribe("t", qos=1)
        await until(lambda: len(homes_of(two)) == 1)
        async with client(one, "writer") as writer:
            for payload in payloads:
                await writer.publish("t", payload, qos=1)
        async with kept(two, "c") as there:
            to_lose = 1
            with contextlib.suppress(trio.BrokenResourceError):
                for _ in range(20):
                    message = await there.next()
                    if not isinstance(message, Publish):
                        break  # the connection has ended
                    await there.send(PubAck(message.packet_id))
        await until(lambda: not one.relay.mqtt.sessions)
        assert not to_lose
        got: list[bytes] = []
        async with kept(two, "c") as there:
            while not got or got[-1] != payloads[-1]:
                (another,) = await there.publications(1, ack=True)
                got.append(another.payload)
        assert got == payloads[-len(got) :]
        assert len(got) >= count - 20
        await until(lambda: is_quiet(one, two))


async def test_a_relay_serves_no_more_than_it_may(nats: NatsServer) -> None:
    how: dict[str, Any] = {"cluster": nats.url, "grace": 1.0}
    async with (
        running(name="r1", max_connections=3, connections_per_address=3, **how) as one,
        running(name="r2", connections_per_address=100, **how) as two,
    ):
        await knows_another(one)
        await knows_another(two)
        for name in ("a", "b"):
            async with kept(one, name):
                pass
        await until(lambda: len(homes_of(two)) == 2)
        async with (
            connected(one.port, "x"),
            connected(one.port, "y"),
            kept(two, "a"),
            dial(two.port) as more,
        ):
            assert await try_to_connect(more, "b") == ConnAck(False, UNAVAILABLE)


async def test_without_a_cluster_a_session_has_no_home() -> None:
    async with running() as relay:
        assert relay.relay.mqtt.homes is None
        sessions = relay.relay.mqtt.persistent_sessions
        assert sessions is not None
        assert sessions.on_change is None


async def test_subscribe_behind_connect_crosses_with_it(nats: NatsServer) -> None:
    async with cluster(nats) as (one, two):
        async with kept(one, "c"):
            pass
        await until(lambda: len(homes_of(two)) == 1)
        async with dial(two.port) as there:
            await there.send(
                Connect("c", clean_session=False), Subscribe(7, (("t", 1),)), Disconnect()
            )
            there.connection.send(Connect("c", clean_session=False))
            assert [type(each).__name__ for each in await there.gone()] == ["ConnAck", "SubAck"]


async def test_a_client_may_come_by_websocket(nats: NatsServer) -> None:
    listen = ("mqtt+tcp://127.0.0.1:0", "mqtt+ws://127.0.0.1:0")
    async with cluster(nats, listen=listen) as (one, two):
        async with kept(one, "c") as here:
            await here.subscribe("t", qos=1)
        await until(lambda: len(homes_of(two)) == 1)
        async with client(one, "writer") as writer:
            for number in range(10):
                await writer.publish("t", b"%d" % number + bytes(40_000), qos=1)
        async with opened(two) as web:
            assert await try_to_connect(web, "c") == ConnAck(True, 0)
            for number in range(10):
                (got,) = await web.publications(1, ack=True)
                assert got.payload == b"%d" % number + bytes(40_000)
            await web.send(Publish("x", bytes(100_000), 1, packet_id=5))
            await web.expect(PubAck(5))
            await web.send(Disconnect())
            assert await web.gone() == []


async def test_a_client_of_mqtt_5_finds_its_session(nats: NatsServer) -> None:
    async with cluster(nats) as (one, two):
        kept5: dict[str, Any] = {"version": "5", "clean_session": False, "session_expiry": 100}
        async with client(one, "c", **kept5) as here:
            await here.subscribe("t", 1)
        await until(lambda: len(homes_of(two)) == 1)
        async with client(one, "writer") as writer:
            await writer.publish("t", b"x", qos=1)
        async with client(two, "c", **kept5) as there:
            assert there.session_present
            assert (await there.receive()).payload == b"x"
        async with client(two, "c", version="5", clean_session=False, session_expiry=0) as there:
            assert there.session_present
        await until(lambda: not len(homes_of(one)) and not len(homes_of(two)))
        assert sessions_of(one) == sessions_of(two) == set()


async def test_a_home_that_stops_sends_what_it_owes_first(nats: NatsServer) -> None:
    how: dict[str, Any] = {"cluster": nats.url}
    async with running(name="r2", grace=1.0, **how) as two:
        async with running(name="r1", grace=10.0, strangers=8, **how) as one:
            await knows_another(two)
            async with kept(one, "c") as here:
                await here.subscribe("t", qos=1)
            await until(lambda: len(homes_of(two)) == 1)
            payloads = [b"%d" % number + bytes(1_000) for number in range(20)]
            async with client(one, "writer") as writer:
                for payload in payloads:
                    await writer.publish("t", payload, qos=1)
            async with kept(two, "c") as there:
                one.stop.set()
                got = await there.publications(20, ack=True)
                assert [each.payload for each in got] == payloads
                assert await there.gone() == []
                await until(lambda: forwarded(two) == (0, 0))
        assert one.report is not None
        assert one.report.unflushed == ()


async def test_a_relay_that_stops_ends_the_connections_that_others_serve(
    nats: NatsServer,
) -> None:
    how: dict[str, Any] = {"cluster": nats.url, "grace": 5.0}
    async with running(name="r1", **how) as one:
        async with kept(one, "c"):
            pass
        async with running(name="r2", strangers=8, **how) as two:
            await knows_another(two)
            await knows_another(one)
            async with kept(two, "c") as there:
                two.stop.set()
                assert await there.gone() == []
        await until(lambda: forwarded(one) == (0, 0) and not one.relay.mqtt.sessions)
        assert sessions_of(one) == {"c"}


async def test_a_home_that_is_malformed_is_logged_and_is_in_nobodys_way(
    own_nats: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        cluster(own_nats) as (one, two),
        open_nats(own_nats.url) as foreign,
    ):
        bucket = KeyValue(JetStream(foreign), "clearfunds-clearfunds-sessions")
        for value in (b"", b"[]", b'{"relay": 1, "durable": true}', b"\xff"):
            await bucket.put("x", value)
        for subject in ("r1.r2", "r1.r2.open", "r1.nobody", "r1.a.b.c"):
            for payload in (b"", b"x" * 40, b"{}", b"[]\n"):
                await foreign.publish(f"clearfunds-links.clearfunds.{subject}", payload)
        await foreign.flush()
        async with kept(one, "c"):
            pass
        await until(lambda: len(homes_of(two)) == 1)
        async with kept(two, "c"):
            pass
        assert log_of(caplog, "is malformed")
        assert one.relay.internal_errors == two.relay.internal_errors == 0


async def test_a_client_that_has_proved_who_it_is_may_do_so_again(nats: NatsServer) -> None:
    pytest.importorskip("scramp", reason="scramp is not installed")
    from tests.relay.test_authentication import PASSWORDS, again, authenticated

    async with cluster(nats, passwords=PASSWORDS) as (one, two):
        async with kept(one, "c", username="anna", password=b"secret") as here:
            await here.subscribe("t", qos=1)
        await until(lambda: len(homes_of(two)) == 1)
        async with authenticated(two, clean_session=False) as there:
            assert forwarded(two) == (1, 0)
            answer = await again(there)
            assert isinstance(answer, Auth)
            assert answer.reason == Reason.SUCCESS
            answer = await again(there, password="wrong")
            assert isinstance(answer, Disconnect)
            assert answer.reason == Reason.NOT_AUTHORIZED


def knows_none(guest: Guest) -> Home | None:
    """Return no home, as a relay does that has not heard of it yet."""
    del guest
    return None


@pytest.mark.parametrize("is_there", [False, True])
async def test_a_clean_start_ends_a_session_that_is_not_known_there_yet(
    nats: NatsServer, monkeypatch: pytest.MonkeyPatch, is_there: bool
) -> None:
    async with cluster(nats) as (one, two):
        monkeypatch.setattr(homes_of(two), "home_of", knows_none)
        async with kept(one, "c") as here:
            if is_there:
                async with connected(two.port, "c"):
                    assert await here.gone() == []
                    await until(lambda: not sessions_of(one))
                return
        await until(lambda: not one.relay.mqtt.sessions)
        async with connected(two.port, "c"):
            await until(lambda: not sessions_of(one))
