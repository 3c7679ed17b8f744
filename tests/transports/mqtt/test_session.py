"""One client's connection, over real sockets: what the specification wants of a server."""

from __future__ import annotations

import gc
import tracemalloc
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import trio
import trio.testing

from clearfunds.transports.mqtt import (
    ConnAck,
    Connect,
    ConnectReturnCode,
    Disconnect,
    PingReq,
    PingResp,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    SubAck,
    Subscribe,
    UnsubAck,
    Unsubscribe,
    Will,
    encode,
)
from clearfunds.transports.mqtt.server._session import MqttSession
from tests.transports.peers import connected, dial, log_of, running, until

# -- CONNECT --------------------------------------------------------------------------------------


async def test_a_client_without_a_name_is_given_one() -> None:
    async with running() as relay, connected(relay.port), connected(relay.port):
        await until(lambda: len(relay.relay.mqtt.sessions) == 2)
        assert {name.startswith("auto-") for name in relay.relay.mqtt.sessions} == {True}
    # Not even another relay gives the same: who comes back with a name has it alone.
    assert len({relay.relay.mqtt.new_client_id() for _ in range(100)}) == 100


async def test_an_account_is_named_for_what_an_operator_knows() -> None:
    async with running() as relay, connected(relay.port, "sensor", username="ann"):
        name = f"mqtt:{relay.port}/ann/sensor"
        assert relay.account("sensor").name == name
        assert relay.account("sensor").parent is relay.ledger.accounts["server"]
        assert name in {holder.name for holder in relay.ledger.holders}


async def test_a_name_with_odd_characters_is_spelled_out(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    async with running() as relay, connected(relay.port, "a\n\x1b[31mb", username="u\r"):
        assert any(name.endswith(r"/u\r/a\n\x1b[31mb") for name in relay.ledger.accounts)
    assert log_of(caplog, r"a\n\x1b[31mb connected from")


async def test_a_session_is_present_if_it_was_kept() -> None:
    async with running() as relay:
        for clean, present in ((False, False), (False, True), (True, False), (False, False)):
            async with dial(relay.port) as client:
                await client.stream.send_all(client.connection.send(Connect("c", clean)))
                await client.expect(ConnAck(present, 0))


async def test_packets_may_follow_connect_at_once() -> None:
    async with running() as relay, dial(relay.port) as client:
        subscribe = Subscribe(1, (("t", 0),))
        client.connection.send(Connect("c"))
        await client.send(Connect("c"), subscribe, Publish("t", b"1"), PingReq())
        await client.expect(ConnAck(False, 0))
        await client.expect(SubAck(1, (0,)))
        await client.expect(Publish("t", b"1"))
        await client.expect(PingResp())


async def test_a_protocol_level_that_is_not_spoken_is_answered(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with running() as relay, dial(relay.port) as client:
        client.connection.send(Connect())
        await client.stream.send_all(b"\x10\x0d\x00\x04MQTT\x06\x02\x00\x00\x00\x00\x00")
        await client.expect(ConnAck(False, ConnectReturnCode.UNACCEPTABLE_PROTOCOL_LEVEL))
        await client.expect(None)
        await relay.deserted()
        assert relay.relay.mqtt.counters.refused == 1
    assert log_of(caplog, "level 6")


async def test_a_name_that_is_too_long_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    async with running() as relay, dial(relay.port) as client:
        await client.stream.send_all(client.connection.send(Connect("n" * 1025)))
        await client.expect(ConnAck(False, ConnectReturnCode.IDENTIFIER_REJECTED))
        await client.expect(None)
        await relay.deserted()
    assert log_of(caplog, "has 1025 bytes, more than the 1024 allowed here (max_client_id)")


@pytest.mark.parametrize("keeps_reading", [True, False])
async def test_the_same_name_takes_over(
    keeps_reading: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """[MQTT-3.1.4-2]; its will comes before what the new one publishes, be it in the same write."""
    caplog.set_level("INFO")
    async with running() as relay, connected(relay.port, "watcher") as watcher:
        await watcher.subscribe("#")
        async with connected(relay.port, "twin", will=Will("will", b"1")) as old:
            await old.subscribe("t")
            async with dial(relay.port) as new:
                new.connection.send(Connect("twin"))
                await new.send(Connect("twin"), Publish("t", b"from the new one"))
                await new.expect(ConnAck(False, 0))
                assert await watcher.publications(2) == [
                    Publish("will", b"1"),
                    Publish("t", b"from the new one"),
                ]
                if keeps_reading:
                    assert await old.gone() == []
                await new.subscribe("t")
                await new.publish("t", b"to the new one")
                await new.expect(Publish("t", b"to the new one"))
                assert relay.relay.mqtt.sessions.keys() == {"watcher", "twin"}
                relay.audit()
    assert len(log_of(caplog, "another connection came with the same client identifier")) == 1


# -- PUBLISH and SUBSCRIBE ------------------------------------------------------------------------


@pytest.mark.parametrize("publications", [1, 4])
async def test_a_silent_connection_does_not_keep_its_last_read(publications: int) -> None:
    """Neither one that was parsed, nor one that was just like the one before."""
    payload = bytes(40_000)
    async with AsyncExitStack() as stack:
        relay = await stack.enter_async_context(running())
        clients = [await stack.enter_async_context(connected(relay.port)) for _ in range(5)]
        counters = relay.relay.mqtt.counters
        tracemalloc.start()
        stack.callback(tracemalloc.stop)
        for client in clients:
            for _ in range(publications):
                counters.received = 0
                await client.publish("t", payload)
                await until(lambda: counters.received == 1)
        await trio.testing.wait_all_tasks_blocked(0.01)
        gc.collect()
        kept = sum(trace.size for trace in tracemalloc.take_snapshot().traces if trace.size > 9_000)
        assert kept < len(payload)


@pytest.mark.parametrize("published", [0, 1, 2])
@pytest.mark.parametrize("subscribed", [0, 1, 2])
async def test_a_publication_arrives_with_the_lower_quality(
    published: int, subscribed: int
) -> None:
    """It goes out with what was granted, or less."""
    async with running() as relay, connected(relay.port) as pub, connected(relay.port) as sub:
        await sub.send(Subscribe(5, (("a/+", subscribed),)))
        await sub.expect(SubAck(5, (subscribed,)))
        await pub.publish("a/b", b"payload", published, packet_id=77 if published else 0)
        packet = await sub.publication()
        qos = min(published, subscribed)
        assert packet == Publish("a/b", b"payload", qos, packet_id=packet.packet_id)
        assert bool(packet.packet_id) == bool(qos)
        if published == 1:
            await pub.expect(PubAck(77))
        elif published == 2:
            await pub.expect(PubRec(77))
            await pub.send(PubRel(77))
            await pub.expect(PubComp(77))
        if qos:
            relay.audit()
            assert relay.statistics().debt_items == 1
            await sub.send(PubAck(packet.packet_id) if qos == 1 else PubRec(packet.packet_id))
        if qos == 2:
            await sub.expect(PubRel(packet.packet_id))
            await sub.send(PubComp(packet.packet_id))
        await until(lambda: not relay.statistics().debt_items)


async def test_a_qos_2_publication_is_delivered_once() -> None:
    async with running() as relay, connected(relay.port) as client:
        await client.subscribe("t")
        first = Publish("t", b"1", 2, packet_id=5)
        again = Publish("t", b"1", 2, dup=True, packet_id=5)
        await client.send(first, again, again)
        await client.expect(Publish("t", b"1"))
        for _ in range(3):
            await client.expect(PubRec(5))
        await client.send(PubRel(5), PubRel(5))
        await client.expect(PubComp(5))
        await client.expect(PubComp(5))
        await client.send(first)
        await client.expect(Publish("t", b"1"))


async def test_overlapping_subscriptions_get_one_copy_with_the_highest_quality() -> None:
    """[MQTT-3.3.5-1]."""
    async with running() as relay, connected(relay.port) as pub, connected(relay.port) as sub:
        await sub.subscribe("a/#")
        await sub.subscribe("a/+", qos=1)
        await sub.subscribe("+/b")
        await pub.publish("a/b", b"1", 1)
        packet = await sub.publication()
        assert packet.qos == 1
        await sub.send(PubAck(packet.packet_id))
        await pub.publish("a/b", b"2")
        await sub.expect(Publish("a/b", b"2"))
        assert await sub.silent()


async def test_a_subscription_is_replaced_without_a_gap() -> None:
    """[MQTT-3.8.4-3]: and what is retained is sent again."""
    async with running() as relay, connected(relay.port) as client:
        await client.publish("t", b"kept", retain=True)
        await client.subscribe("t")
        await client.expect(Publish("t", b"kept", retain=True))
        await client.subscribe("t", qos=1)
        await client.expect(Publish("t", b"kept", retain=True))
        await client.publish("t", b"1", 1)
        assert (await client.publication()).qos == 1
        assert len(relay.relay.dataspace.routes) == 1


async def test_unsubscribing_ends_it_and_is_answered_in_any_case() -> None:
    async with running() as relay, connected(relay.port) as client:
        await client.subscribe("t", "u")
        await client.send(Unsubscribe(3, ("t", "t", "never")))
        await client.expect(UnsubAck(3))
        await client.send(Publish("t"), Publish("u"))
        await client.expect(Publish("u"))


@pytest.mark.parametrize(
    ("wanted", "topics"),
    [
        ("a/#", ["a", "a/b", "a/b/c"]),
        ("+/b", ["a/b", "/b"]),
        ("+", ["a"]),
        ("#", ["a", "a/b", "a/b/c", "/b", "b/c"]),
        ("$app/+", ["$app/b"]),
        ("a/b", ["a/b"]),
    ],
)
async def test_topics_are_routed_by_wildcards(wanted: str, topics: list[str]) -> None:
    async with running() as relay, connected(relay.port) as pub, connected(relay.port) as sub:
        await sub.subscribe("$end", wanted)
        every = ["a", "a/b", "a/b/c", "/b", "b/c", "$app/b", "$end"]
        await pub.send(*(Publish(topic, b"x") for topic in every))
        got = [p.topic for p in await sub.publications(len(topics) + 1)]
        assert got == [*topics, "$end"]


async def test_clients_cannot_publish_to_the_servers_own_topics(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with running() as relay, connected(relay.port, "c") as client:
        await client.subscribe("$SYS/#")
        await client.publish("$SYS/broker/uptime", b"0")
        await client.publish("$SYS/broker/uptime", b"0", 1, packet_id=8)
        await client.expect(PubAck(8))
        assert await client.silent()
        assert relay.relay.mqtt.counters.rejected == 2
    assert log_of(caplog, "$SYS/")


# -- retained publications ------------------------------------------------------------------------


async def test_what_is_retained_is_replayed_replaced_and_removed() -> None:
    async with running() as relay, connected(relay.port) as pub:
        await pub.publish("a/1", b"old", retain=True)
        await pub.publish("a/1", b"new", retain=True)
        await pub.publish("a/2", b"2", 1, retain=True)
        await pub.publish("a/3", b"3", retain=True)
        await pub.publish("a/3", b"", retain=True)
        await pub.expect(PubAck(1))
        async with connected(relay.port) as sub:
            await sub.send(Subscribe(1, (("a/+", 1),)))
            await sub.expect(SubAck(1, (1,)))
            got = sorted(await sub.publications(2, ack=True), key=lambda p: p.topic)
            assert [(p.topic, p.payload, p.qos, p.retain) for p in got] == [
                ("a/1", b"new", 0, True),
                ("a/2", b"2", 1, True),
            ]
            # To who is there already it is news [MQTT-3.3.1-9].
            await pub.publish("a/1", b"newer", retain=True)
            await sub.expect(Publish("a/1", b"newer"))
            assert await sub.silent()


@pytest.mark.rule(16)
async def test_a_replay_above_the_limit_is_waited_for() -> None:
    """It is taken in steps, on the new subscriber's account (rule 16)."""
    async with running(limit_items=10) as relay, connected(relay.port) as pub:
        topics = {f"t/{n}": bytes(1000) for n in range(3000)}
        for topic, payload in topics.items():
            await pub.publish(topic, payload, retain=True)
        await until(lambda: len(relay.relay.dataspace.retained) == len(topics))
        async with connected(relay.port, "slow", receive_buffer=4096) as sub:
            await sub.subscribe("t/#")
            account = relay.account("slow")
            await until(lambda: account.waiting)
            relay.audit()
            assert account.peak_items <= 10 + 2
            got = {p.topic: p.payload for p in await sub.publications(len(topics))}
            assert got == topics
            await until(lambda: not account.debt_items)


async def test_who_leaves_is_told_nothing_more() -> None:
    async with running(limit_items=10, patience=60) as relay, connected(relay.port) as pub:
        for n in range(3000):
            await pub.publish(f"t/{n}", bytes(1000), retain=True)
        await until(lambda: len(relay.relay.dataspace.retained) == 3000)
        async with connected(relay.port, "brief", receive_buffer=4096) as brief:
            await brief.subscribe("t/#")
            await until(lambda: relay.account("brief").waiting)
            await brief.send(Disconnect())
            await until(lambda: "brief" not in relay.relay.mqtt.sessions)
        relay.audit()


async def test_a_replay_comes_before_what_the_client_says_next() -> None:
    """Or a client could ask for everything again and again before it has read any of it."""
    async with running() as relay, connected(relay.port) as client:
        for n in range(1000):
            await client.publish(f"t/{n}", b"x", retain=True)
        await client.send(*(Subscribe(n, (("t/+", 0),)) for n in (1, 2)), PingReq())
        for n in (1, 2):
            await client.expect(SubAck(n, (0,)))
            assert len({p.topic for p in await client.publications(1000)}) == 1000
        await client.expect(PingResp())


async def test_a_filter_named_twice_in_a_packet_is_replayed_once() -> None:
    async with running() as relay, connected(relay.port) as client:
        for n in range(300):
            await client.publish(f"t/{n}", b"x", 1, retain=True, packet_id=n + 1)
            await client.expect(PubAck(n + 1))
        await client.send(Subscribe(1, (("t/+", 0), ("t/#", 0), ("t/+", 1)) * 100))
        await client.expect(SubAck(1, (0, 0, 1) * 100))
        got = await client.publications(600, ack=True)
        assert sorted(p.qos for p in got) == [0] * 300 + [1] * 300
        assert await client.silent()


async def test_retained_publications_are_limited(caplog: pytest.LogCaptureFixture) -> None:
    async with running(max_retained=2) as relay, connected(relay.port, "c") as client:
        for n in range(4):
            await client.publish(f"t/{n}", b"x", 1, retain=True, packet_id=n + 1)
            await client.expect(PubAck(n + 1))
        await client.publish("t/0", b"replaced", 1, retain=True, packet_id=9)
        await client.expect(PubAck(9))
        assert relay.relay.mqtt.counters.rejected == 2
        kept = relay.relay.dataspace.retained
        assert {topic: getattr(kept.get(topic), "payload", None) for topic in ("t/0", "t/1")} == {
            "t/0": b"replaced",
            "t/1": b"x",
        }
    assert log_of(caplog, "cannot be retained: 2 topics are, which is the limit")


# -- wills ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["close", "reset", "garbage", "keep-alive"])
@pytest.mark.parametrize("qos", [0, 1])
async def test_a_will_is_published_when_the_client_goes_without_a_word(end: str, qos: int) -> None:
    async with running() as relay, connected(relay.port) as watcher:
        await watcher.subscribe("wills", qos=1)
        will = Will("wills", b"gone", qos, retain=True)
        async with connected(relay.port, "mortal", will=will, keep_alive=1) as mortal:
            await mortal.subscribe("#")
            if end == "reset":
                await mortal.reset()
            elif end == "garbage":
                await mortal.stream.send_all(b"\xff\xff")
            elif end == "keep-alive":
                await mortal.gone()
            else:
                await mortal.stream.aclose()
            got = await watcher.publication()
            assert (got.payload, got.qos, got.retain) == (b"gone", qos, False)
            kept = relay.relay.dataspace.retained.get("wills")
            assert kept is not None
            assert kept.payload == b"gone"


@pytest.mark.parametrize("after", [b"", encode(PingReq()), b"\xff"])
async def test_a_will_is_dropped_at_disconnect(after: bytes) -> None:
    """[MQTT-3.14.4-3], also when something illegal follows it."""
    async with running() as relay, connected(relay.port) as watcher:
        await watcher.subscribe("wills")
        async with connected(relay.port, "mortal", will=Will("wills", b"gone")) as client:
            await client.stream.send_all(encode(Disconnect()) + after)
            assert await client.gone() == []
        await until(lambda: len(relay.relay.mqtt.open) == 1)
        await watcher.send(PingReq())
        await watcher.expect(PingResp())


async def test_a_will_for_a_server_topic_is_dropped(caplog: pytest.LogCaptureFixture) -> None:
    async with running() as relay:
        async with connected(relay.port, "mortal", will=Will("$SYS/x", b"gone")):
            pass
        await relay.deserted()
    assert log_of(caplog, "the will of ")


# -- keep-alive and deadlines ---------------------------------------------------------------------


async def test_a_silent_client_is_closed_after_one_and_a_half_times_its_keep_alive(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with running() as relay:
        async with connected(relay.port, "silent", keep_alive=1) as client:
            began = trio.current_time()
            assert await client.gone() == []
            assert 1.4 <= trio.current_time() - began <= 2.9
        await relay.deserted()
        assert relay.relay.mqtt.counters.timeouts == 1
    assert log_of(caplog, "keep-alive is over")


async def test_a_client_that_pings_is_kept() -> None:
    async with running() as relay, connected(relay.port, "alive", keep_alive=1) as client:
        for _ in range(4):
            await trio.sleep(0.55)
            await client.send(PingReq())
            await client.expect(PingResp())


async def test_no_connect_in_time_is_closed(caplog: pytest.LogCaptureFixture) -> None:
    """Also when something comes, but no CONNECT; its pieces are no sign of life."""
    async with (
        running(connect_timeout=0.5, max_connect_size=100_000) as relay,
        dial(relay.port) as one,
    ):
        async with dial(relay.port) as other:
            connect = encode(Connect("n" * 60_000))
            began = trio.current_time()
            with trio.move_on_after(20):
                for start in range(0, len(connect), 2000):
                    try:
                        await other.stream.send_all(connect[start : start + 2000])
                    except trio.BrokenResourceError:
                        break
                    await trio.sleep(0.2)
            assert trio.current_time() - began < 5
            assert await one.gone() == []
        await relay.deserted()
        assert relay.relay.mqtt.counters.timeouts == 2
    assert len(log_of(caplog, "no CONNECT within 0.5 s")) == 2


async def test_a_byte_a_second_is_no_sign_of_life(caplog: pytest.LogCaptureFixture) -> None:
    async with running() as relay:
        async with connected(relay.port, "trickle", keep_alive=1) as client:
            packet = encode(Publish("t", bytes(100)))
            with trio.fail_after(10):
                for byte in packet:
                    try:
                        await client.stream.send_all(bytes((byte,)))
                    except trio.BrokenResourceError:
                        break
                    if not await client.silent(0.2):
                        break
                else:
                    raise AssertionError("it was never closed")
        await relay.deserted()
    assert log_of(caplog, "keep-alive is over")


async def test_a_large_packet_on_a_slow_line_is_a_sign_of_life() -> None:
    async with running() as relay, connected(relay.port, "slow", keep_alive=1) as client:
        packet = encode(Publish("t", bytes(32_000), 1, packet_id=3))
        for start in range(0, len(packet), 4000):
            await client.stream.send_all(packet[start : start + 4000])
            await trio.sleep(0.3)
        await client.expect(PubAck(3))


async def test_clients_without_a_keep_alive_may_be_given_an_idle_timeout(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with running(idle_timeout=0.5) as relay:
        async with connected(relay.port, "idle") as client:
            assert await client.gone() == []
        await relay.deserted()
    assert log_of(caplog, "no packet for")


async def test_a_client_is_looked_at_when_its_deadline_can_be_over_and_not_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks: list[str] = []
    check = MqttSession.check_deadline

    def counted(session: MqttSession, now: float) -> None:
        looks.append(session.client_id)
        check(session, now)

    monkeypatch.setattr(MqttSession, "check_deadline", counted)
    async with running() as relay, connected(relay.port, "patient", keep_alive=600) as patient:
        async with connected(relay.port, "silent", keep_alive=1) as silent:
            assert await silent.gone() == []
        await patient.send(PingReq())
        await patient.expect(PingResp())
    # There was a look each half second, of which the silent one took three or more.
    assert looks.count("patient") <= 1


# -- the end --------------------------------------------------------------------------------------


@pytest.mark.rule(14)
@pytest.mark.parametrize("politely", [True, False])
async def test_who_leaves_is_let_go_at_once_whatever_it_owes(politely: bool) -> None:
    """What it caused stays owed, by its name (rule 14), until those who hold it are done."""
    async with (
        running(limit_bytes=100_000) as relay,
        connected(relay.port, "slow", receive_buffer=4096) as sub,
        connected(relay.port, "filler") as filler,
    ):
        await sub.subscribe("t")
        filled = 0
        while not relay.account("filler").waiting:
            await filler.publish("t", bytes(1_000_000))
            filled += 1
            await trio.sleep(0.1)  # the kernel takes some more at first
        async with connected(relay.port, "brief") as brief:
            account = relay.account("brief")
            await brief.publish("t", bytes(1_000_000))
            if politely:
                await brief.send(Disconnect())
                await brief.expect(None)
            else:
                await brief.stream.aclose()
            await until(lambda: "brief" not in relay.relay.mqtt.sessions)
        assert account.debt_bytes == len(encode(Publish("t", bytes(1_000_000))))
        assert account.state == "closing"
        relay.audit()
        await sub.publications(filled + 1)
        await until(lambda: account.name not in relay.ledger.accounts)


async def test_who_leaves_during_a_replay_is_let_go_at_once() -> None:
    """What is retained and has not been sent yet is not owed to somebody who has said goodbye."""
    async with running(limit_items=50) as relay, connected(relay.port, "pub") as pub:
        for n in range(300):
            await pub.publish(f"t/{n}", bytes(20_000), 1, retain=True, packet_id=n + 1)
            await pub.expect(PubAck(n + 1))
        async with connected(relay.port, "slow", receive_buffer=4096) as slow:
            await slow.subscribe("t/#", qos=1)
            await until(lambda: relay.account("slow").waiting)
            await slow.send(Disconnect())
            await until(lambda: relay.relay.mqtt.sessions.keys() == {"pub"})


async def test_a_closed_connection_is_said_to_have_been_cut_in_a_packet(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    async with running() as relay:
        async with connected(relay.port, "cut") as client:
            await client.stream.send_all(encode(Publish("t", bytes(100)))[:50])
        await relay.deserted()
    assert log_of(caplog, "closed the connection within a packet (50 bytes of it came)")


async def test_what_has_not_been_sent_cannot_be_acknowledged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Or a subscriber that never reads could have anything kept for it, on nobody's account."""
    listen = ("mqtt+tcp://127.0.0.1:0", f"mqtt+unix://{tmp_path}/relay.sock")
    async with running(listen=listen, limit_items=20) as relay:
        # On a Unix socket, because its buffers are small and fixed.
        async with connected(f"{tmp_path}/relay.sock", "stuck") as stuck:
            await stuck.send(Subscribe(1, (("t", 1),)))
            await stuck.expect(SubAck(1, (1,)))
            async with connected(relay.port, "pub") as pub:
                for n in range(1, 21):
                    await pub.publish("t", bytes(60_000), 1, packet_id=n)
                    await pub.expect(PubAck(n))
                session = relay.relay.mqtt.sessions["stuck"]
                await until(lambda: session.outlet.blocked)
                owed = relay.account("pub").debt_items
                assert owed > 10
                await stuck.send(PubAck(20))  # the last, of which nothing can have left
                await until(lambda: "stuck" not in relay.relay.mqtt.sessions)
                # Given up, and not believed.
                assert relay.account("pub").debt_items == 0
                assert relay.statistics().repaid_items["acked"] == 0
                assert relay.statistics().repaid_items["cancelled"] == owed
        assert relay.relay.mqtt.counters.protocol_errors == 1
    assert log_of(caplog, "PUBACK for packet 20, which has not been sent to it yet")
