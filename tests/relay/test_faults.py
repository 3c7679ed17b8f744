"""Peers that break the rules, or just break: one connection ends, with a clear line in the log."""

from __future__ import annotations

import random
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import trio

from clearfunds.access._strangers import FIRST
from clearfunds.transports.mqtt import (
    SUBSCRIPTION_FAILED,
    ConnAck,
    Connect,
    PingReq,
    PingResp,
    PubAck,
    Publish,
    SubAck,
    Subscribe,
    UnsubAck,
    Unsubscribe,
    Will,
    encode,
)
from tests.transports.peers import BareClient, connected, dial, log_of, running, until

# -- connections cut ------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
async def test_two_hundred_connections_cut_at_random_leave_nothing(seed: int) -> None:
    """By resets and by closing, in the middle of packets, while twenty publishers send."""
    chance = random.Random(seed)
    async with running(limit_items=50) as relay:
        cut = 0

        async def publish(n: int) -> None:
            async with connected(relay.port, f"pub{n}", will=Will(f"t/{n}", b"will", n % 2)) as pub:
                if n % 3 == 0:
                    await pub.send(Subscribe(9, (("t/#", 1),)))
                    # What matches may come before the answer (section 3.8.4).
                    while not isinstance(await pub.next(), SubAck):
                        pass
                packet_id = 0
                try:
                    while True:
                        packet_id = packet_id % 60_000 + 1
                        size = chance.choice([0, 10, 200, 5000])
                        qos = chance.randrange(3)
                        await pub.publish(
                            f"t/{chance.randrange(20)}",
                            bytes(size),
                            qos,
                            retain=chance.random() < 0.05,
                            packet_id=packet_id if qos else 0,
                        )
                        with trio.move_on_after(0):
                            await pub.stream.receive_some(1 << 16)
                except trio.BrokenResourceError:
                    pass  # it began more of QoS 2 than it may

        async def come_and_be_cut(n: int) -> None:
            nonlocal cut
            will = Will(f"t/{n % 20}", b"gone", n % 3) if n % 4 == 0 else None
            async with connected(
                relay.port, f"c{n % 150}", will=will, receive_buffer=chance.choice([None, 4096])
            ) as client:
                try:
                    if chance.random() < 0.8:
                        await client.send(Subscribe(1, (("t/#", n % 2),)))
                    with trio.move_on_after(chance.random() * 0.3):
                        while True:
                            packet = await client.receive()
                            if isinstance(packet, Publish) and packet.qos and chance.random() < 0.5:
                                await client.send(PubAck(packet.packet_id))
                    if chance.random() < 0.7:
                        half = encode(Publish("t/1", bytes(1000)))
                        await client.stream.send_all(half[: chance.randrange(len(half))])
                except trio.BrokenResourceError:
                    pass  # taken over
                await (client.reset() if n % 2 else client.stream.aclose())
            cut += 1

        async with trio.open_nursery() as nursery:
            for n in range(20):
                nursery.start_soon(publish, n)
            async with trio.open_nursery() as cutting:
                for n in range(200):
                    cutting.start_soon(come_and_be_cut, n)
                    if n % 10 == 0:
                        await trio.sleep(0.01)
                        relay.ledger.audit()
            nursery.cancel_scope.cancel()
        assert cut == 200
        await relay.deserted()


# -- what is not MQTT -----------------------------------------------------------------------------

HTTP = b"GET / HTTP/1.1\r\nHost: relay\r\n\r\n"
TLS = bytes.fromhex("1603010200010001fc0303")


@pytest.mark.parametrize(
    ("said", "logged"),
    [
        (HTTP, "is the peer speaking MQTT?"),
        (TLS, "is the peer speaking MQTT?"),
        (b"\x00" * 100, "is the peer speaking MQTT?"),
        (b"\xff" * 100, "is the peer speaking MQTT?"),
        (encode(Publish("t", b"x")), "the first packet is PUBLISH, not CONNECT"),
        (encode(PingReq()), "the first packet is PINGREQ, not CONNECT"),
        (encode(Connect("c")).replace(b"MQTT", b"MQTP"), "MQTP"),
        (b"\x10\x0e\x00\x06MQIsdp\x04\x02\x00\x00\x00\x00", "MQIsdp"),
        (b"\x10\x0e\x00\x06MQIsdp\x03\x02\x00\x00\x00\x00", "MQTT 3.1"),
        (b"\x10\xff\xff\xff\x7f", "more than 16384 bytes is announced"),
        (b"\x10\xff\xff\xff\xff\x01", "the remaining length takes more than four bytes"),
        (encode(Connect("c"))[:-1], "within a packet (14 bytes of it came)"),
        (b"\x10\x0c\x00\x04MQTT\x04\x03\x00\x00\x00\x00", "flag"),
    ],
)
async def test_who_does_not_speak_mqtt_is_closed(
    said: bytes, logged: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    async with running() as relay, connected(relay.port, "fine") as fine:
        async with dial(relay.port) as client:
            await client.stream.send_all(said)
            await client.stream.send_eof()
            client.connection.send(Connect())
            for packet in await client.gone():
                assert isinstance(packet, ConnAck)
                assert packet.return_code
        await until(lambda: len(relay.relay.mqtt.open) == 1)
        lines = [r for r in caplog.records if r.name == "clearfunds.transports.mqtt"]
        about = [r.getMessage() for r in lines if "fine" not in r.getMessage()]
        assert 1 <= len(about) <= 2
        assert logged in about[0]
        await fine.send(PingReq())
        await fine.expect(PingResp())
        relay.audit()


@pytest.mark.parametrize(
    ("said", "logged"),
    [
        (encode(Connect("c")), "a second CONNECT"),
        (encode(ConnAck(False, 0)), "CONNACK came from a client"),
        (encode(PingResp()), "PINGRESP came from a client"),
        (b"\x36\x05\x00\x01t\x00\x01", "both QoS bits set"),
        (b"\x38\x03\x00\x01t", "DUP"),
        (b"\x32\x05\x00\x01t\x00\x00", "packet identifier"),
        (b"\x30\x03\x00\x01+", "wildcard"),
        (b"\x30\x02\x00\x00", "at least one character"),
        (b"\x30\x03\x00\x01\xff", "UTF-8"),
        (b"\x30\x03\x00\x01\x00", "U+0000"),
        (b"\x30\x03\x00\x09t", ""),
        (b"\x82\x02\x00\x01", "SUBSCRIBE"),
        (b"\x80\x06\x00\x01\x00\x01t\x00", "SUBSCRIBE"),
        (b"\x82\x06\x00\x01\x00\x01t\x03", "QoS"),
        (b"\x82\x07\x00\x01\x00\x02#t\x00", "'#'"),
        (b"\xa2\x02\x00\x01", "UNSUBSCRIBE"),
        (b"\xc0\x01\x00", "PINGREQ"),
        (b"\xe0\x01\x00", "DISCONNECT"),
        (b"\x30\xff\xff\xff\xff\x7f", "more than four bytes"),
        (encode(Publish("t", bytes(3000))), "a packet of 3006 bytes is announced, at most 2000"),
        (encode(Publish("t" * 201)), "is 201 bytes long; at most 200 are allowed here"),
        (encode(Publish("t/" * 10)), "has 11 levels; at most 10 are allowed here"),
    ],
)
async def test_who_breaks_the_rules_is_closed(
    said: bytes, logged: str, caplog: pytest.LogCaptureFixture
) -> None:
    """What came before is done, what comes after is not; the others go on."""
    settings = {"max_packet_size": 2000, "max_topic_length": 200, "max_topic_levels": 10}
    async with running(**settings) as relay, connected(relay.port, "fine") as fine:
        await fine.subscribe("before", "after")
        async with connected(relay.port, "bad") as bad:
            before = encode(Publish("before", b"1")) * 3
            await bad.stream.send_all(before + said + encode(Publish("after", b"2")))
            assert await bad.gone() == []
        assert await fine.publications(3) == [Publish("before", b"1")] * 3
        assert await fine.silent(0.02)
        (line,) = log_of(caplog, "/bad (")
        assert f"mqtt:{relay.port}/-/bad (127.0.0.1:" in line
        assert " closed: " in line
        assert logged in line
        assert relay.relay.mqtt.counters.protocol_errors == 1
        relay.audit()


@pytest.mark.parametrize("seed", range(4))
async def test_garbage_in_the_middle_of_everything(seed: int) -> None:
    """Bytes flipped, cut and repeated in what a client says: clean closes, and nothing inside."""
    chance = random.Random(seed)
    proper = [
        encode(Publish("t/1", bytes(20))),
        encode(Publish("t/2", b"x", 1, packet_id=7)),
        encode(Publish("t/3", b"y", 2, retain=True, packet_id=8)),
        encode(Subscribe(3, (("t/+", 1), ("#", 0)))),
        encode(PubAck(1)),
        encode(PingReq()),
        b"\x62\x02\x00\x08",
        b"\xa2\x07\x00\x04\x00\x03t/+",
    ]
    async with running(limit_items=30, max_packet_size=100_000) as relay, AsyncExitStack() as stack:
        fine = await stack.enter_async_context(connected(relay.port, "fine"))

        async def bad(n: int) -> None:
            said = b"".join(chance.choice(proper) for _ in range(60))
            mangled = bytearray(encode(Connect(f"bad{n}", will=Will("t/w", b"w"))) + said)
            for _ in range(chance.randint(0, 6)):
                place = chance.randrange(14 if chance.random() < 0.2 else 40, len(mangled))
                match chance.randrange(3):
                    case 0:
                        mangled[place] = chance.randrange(256)
                    case 1:
                        del mangled[place : place + chance.randrange(5)]
                    case _:
                        mangled[place:place] = chance.randbytes(chance.randrange(5))
            async with dial(relay.port) as client:
                try:
                    await client.stream.send_all(mangled)
                    await client.stream.send_eof()
                    while await client.stream.receive_some():
                        pass
                except trio.BrokenResourceError:
                    pass

        for _ in range(10):
            async with trio.open_nursery() as nursery:
                for n in range(15):
                    nursery.start_soon(bad, n)
            relay.audit()
        await fine.send(PingReq())
        await fine.expect(PingResp())
        await until(lambda: len(relay.relay.mqtt.open) == 1)
        assert relay.relay.mqtt.counters.protocol_errors > 20


# -- floods ---------------------------------------------------------------------------------------


def resident() -> int:
    """This process's resident set, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:")) * 1024


async def test_a_flood_of_half_open_connections_is_closed_and_bounded(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with (
        running(connect_timeout=2.0, max_connections=301, connections_per_address=301) as relay,
        connected(relay.port, "fine") as fine,
    ):
        memory = resident()
        async with AsyncExitStack() as stack:
            for n in range(600):
                client = await stack.enter_async_context(dial(relay.port))
                if n % 3:
                    await client.stream.send_all(encode(Connect("c" * 20))[: n % 30])
            assert len(relay.relay.mqtt.open) <= 301
            await fine.send(PingReq())
            await fine.expect(PingResp())
            await until(lambda: len(relay.relay.mqtt.open) == 1)
        assert resident() - memory < 30 << 20
        assert relay.relay.mqtt.counters.refused > 200
        assert relay.relay.mqtt.counters.timeouts > 200
        relay.audit()
        # It is possible to connect again.
        async with connected(relay.port, "new"):
            pass
    assert log_of(caplog, "no CONNECT within 2 s")
    # The first ones, and how many more.
    assert 1 <= len(log_of(caplog, "301 connections are open, which is the limit")) <= FIRST + 1


async def test_a_connection_above_the_limit_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    async with running(max_connections=2) as relay:
        async with (
            connected(relay.port, "1"),
            connected(relay.port, "2"),
            dial(relay.port) as third,
        ):
            assert await third.gone() == []
        await relay.deserted()
        async with connected(relay.port, "3"):
            pass
    (line,) = log_of(caplog, "2 connections are open, which is the limit (max_connections)")
    assert line.startswith("127.0.0.1:")


async def test_what_is_too_much_to_subscribe_to_is_refused(
    caplog: pytest.LogCaptureFixture,
) -> None:
    settings = {"max_subscriptions": 3, "max_topic_length": 10, "max_topic_levels": 3}
    async with running(**settings) as relay, connected(relay.port, "c") as client:
        await client.send(
            Subscribe(1, (("a", 0), ("b" * 11, 0), ("c/c/c/c", 0), ("b", 1), ("c", 2)))
        )
        await client.expect(SubAck(1, (0, SUBSCRIPTION_FAILED, SUBSCRIPTION_FAILED, 1, 2)))
        await client.send(Subscribe(2, (("d", 0), ("a", 1), ("$share/g/t", 0))))
        await client.expect(SubAck(2, (SUBSCRIPTION_FAILED, 1, SUBSCRIPTION_FAILED)))
        assert len(relay.relay.dataspace.routes) == 3
        await trio.sleep(1.05)  # one line a second
        await client.send(Subscribe(3, (("e", 0), ("f", 0))))
        await client.expect(SubAck(3, (SUBSCRIPTION_FAILED, SUBSCRIPTION_FAILED)))
    first, second = log_of(caplog, "refused")
    assert "2 of 5 subscriptions were refused" in first
    assert "is 11 bytes long; at most 10 are allowed here" in first
    assert "2 of 2 subscriptions were refused" in second
    assert "3 subscriptions are the limit for one client (and 1 more like it)" in second


async def test_wildcards_in_too_many_places_are_refused(caplog: pytest.LogCaptureFixture) -> None:
    """For each place a topic is looked up once: one client has its share, and all together."""
    deep, other = "+/1/2/3/4/5/6/7/8", "1/+/2/3/4/5/6/7/8"
    async with (
        running(quota_shapes=2, max_filter_shapes=1) as relay,
        connected(relay.port, "c") as client,
        connected(relay.port, "d") as neighbour,
    ):
        filters = (("a/+", 0), ("b/+", 1), ("a/#", 0), ("+/a", 0), ("a/b", 0))
        await client.send(Subscribe(1, filters))
        await client.expect(SubAck(1, (0, 1, 0, SUBSCRIPTION_FAILED, 0)))
        await neighbour.send(Subscribe(1, (("+/a", 0), (deep, 0))))
        await neighbour.expect(SubAck(1, (0, 0)))
        # In place of another there is room for one more, unless all have too many.
        await client.send(Unsubscribe(2, ("a/#",)))
        await client.expect(UnsubAck(2))
        await client.send(Subscribe(3, ((other, 0), (deep, 0), ("+/a", 0))))
        await client.expect(SubAck(3, (SUBSCRIPTION_FAILED, 0, SUBSCRIPTION_FAILED)))
        await client.publish(deep.replace("+", "x"), b"p")
        assert (await client.publication()).payload == b"p"
        assert (await neighbour.publication()).payload == b"p"
        relay.audit()
        standing = relay.account("d").standing()
        await neighbour.send(Unsubscribe(4, ("+/a", deep)))
        await neighbour.expect(UnsubAck(4))
        assert not standing.shapes
    first, *_ = log_of(caplog, "refused")
    assert "has filters or patterns of 2 different shapes, which is the limit" in first


async def test_a_packet_full_of_one_filter_does_not_hold_up_the_relay() -> None:
    async with running() as relay, connected(relay.port, "c") as client:
        filters = (("t", 0), ("t", 1)) * 200_000
        await client.send(Subscribe(1, filters))
        await client.expect(SubAck(1, (0, 1) * 200_000))
        assert relay.account("c").borrowed_items < 10  # each subscription is a turn
        await client.publish("t", b"x", 1)
        assert (await client.publication()).qos == 1
        relay.audit()


async def test_a_flood_of_what_is_dropped_is_no_flood_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with running() as relay, connected(relay.port, "c") as client:
        await client.send(*(Publish("$SYS/x", b"%d" % n) for n in range(5000)))
        await client.send(PingReq())
        await client.expect(PingResp())
        assert relay.relay.mqtt.counters.rejected == 5000
        await trio.sleep(1.1)
        await client.publish("$SYS/x")
        await client.send(PingReq())
        await client.expect(PingResp())
    lines = log_of(caplog, "was dropped")
    assert 2 <= len(lines) <= 4
    assert "more" in lines[-1]


async def test_too_much_of_qos_2_ends_the_connection(caplog: pytest.LogCaptureFixture) -> None:
    async with (
        running(max_awaiting_release=1_000) as relay,
        connected(relay.port, "c") as client,
    ):
        await client.send(*(Publish("t", b"", 2, packet_id=n) for n in range(1, 1002)))
        assert len(await client.gone()) <= 1000
        await relay.deserted()
    assert log_of(caplog, "1000 QoS 2 publications await their PUBREL and another one came")


async def test_clients_that_send_a_byte_now_and_then_cost_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with (
        running(connect_timeout=1.0) as relay,
        connected(relay.port, "fine") as fine,
        AsyncExitStack() as stack,
    ):
        slow = [await stack.enter_async_context(dial(relay.port)) for _ in range(100)]

        async def trickle(client: BareClient) -> None:
            try:
                for byte in encode(Connect("slow" * 100)):
                    await client.stream.send_all(bytes((byte,)))
                    await trio.sleep(0.1)
            except trio.BrokenResourceError:
                pass

        async with trio.open_nursery() as nursery:
            for client in slow:
                nursery.start_soon(trickle, client)
            for _ in range(100):
                await fine.send(PingReq())
                await fine.expect(PingResp())
            await until(lambda: len(relay.relay.mqtt.open) == 1)
        assert relay.relay.mqtt.counters.timeouts == 100
    assert len(log_of(caplog, "closed: no CONNECT within 1 s")) == FIRST + 1
