"""One stuck subscriber among nine, under each policy: what the others get, and what it gets."""

from __future__ import annotations

import re
from contextlib import AsyncExitStack
from typing import Any

import pytest
import trio
from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion

from clearfunds.access import Tenant
from clearfunds.accounts import RETAIN_ITEMS, Outcome, StuckPolicy
from clearfunds.transports import SubscriptionPolicy
from clearfunds.transports.mqtt import PubAck, PubComp, Publish, PubRec, PubRel, encode
from clearfunds.transports.mqtt.server._inflight import Inflight
from tests.cli.conftest import RelayUnderTest
from tests.transports.peers import (
    SECONDS,
    BareClient,
    RunningRelay,
    connected,
    log_of,
    running,
    until,
)

LITTLE = 4096
TOPICS = 7
COUNT = 4_000
SIZE = 2_000
"""Four times what a subscriber may keep, and together more than sockets hold."""


def publication(n: int, kind: str = "t") -> bytes:
    return encode(Publish(f"{kind}/{n % TOPICS}", b"%08d" % n + bytes(SIZE)))


def numbers(packets: list[Publish]) -> list[int]:
    return [int(packet.payload[:8]) for packet in packets]


async def nine(stack: AsyncExitStack, port: int, qos: int = 0) -> list[BareClient]:
    """Nine subscribers of `t/#`; the first, `s0`, does not read."""
    subs = [
        await stack.enter_async_context(
            connected(port, f"s{n}", receive_buffer=None if n else LITTLE)
        )
        for n in range(9)
    ]
    for sub in subs:
        await sub.subscribe("t/#", qos=qos)
    return subs


async def publish_to(relay: RunningRelay, subs: list[BareClient]) -> None:
    """Publish everything; see that all who read get all of it, in order."""
    everything = b"".join(map(publication, range(COUNT)))
    got: list[bytes] = []

    async def read(sub: BareClient) -> None:
        data = bytearray()
        with trio.fail_after(SECONDS):
            while len(data) < len(everything):
                data += await sub.stream.receive_some(1 << 18)
        got.append(bytes(data))

    async with connected(relay.port, "pub") as pub, trio.open_nursery() as nursery:
        for sub in subs[1:]:
            nursery.start_soon(read, sub)
        await pub.stream.send_all(everything)
    assert len(got) == 8
    assert all(data == everything for data in got)
    relay.audit()


async def last_of(relay: RunningRelay, stuck: BareClient) -> list[int]:
    """Let the stuck one read what there is for it, and what comes then."""
    async with connected(relay.port, "last") as last:
        got: list[int] = []

        async def read() -> None:
            while not got or got[-1] != COUNT:
                got.extend(numbers([await stuck.publication()]))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            outlet = relay.relay.mqtt.sessions["s0"].outlet
            await until(lambda: not outlet.lagging)
            await last.stream.send_all(publication(COUNT))
    return got[:-1]


@pytest.mark.parametrize("policy", ["drop_oldest", "drop_newest", "conflate", "spill", "store"])
async def test_eight_of_nine_get_everything_and_the_ninth_what_the_policy_says(
    policy: str, tmp_path: Any, caplog: pytest.LogCaptureFixture
) -> None:
    settings: dict[str, Any] = {"stuck": policy}
    if policy == "store":
        settings = {"stuck": "spill", "store": str(tmp_path)}
    async with (
        running(patience=0.2, limit_items=500, **settings) as relay,
        AsyncExitStack() as stack,
    ):
        subs = await nine(stack, relay.port)
        await publish_to(relay, subs)
        outlet = relay.relay.mqtt.sessions["s0"].outlet
        assert outlet.lagging
        lost = outlet.relief.dropped_items
        got = await last_of(relay, subs[0])

        assert len(got) + lost == COUNT
        assert relay.ledger.repaid_items[Outcome.DROPPED] == lost
        if settings["stuck"] == "spill":
            assert got == list(range(COUNT))
        else:
            # What had been under way when it was relieved, without a gap; then what was kept.
            begun = next((n for n, number in enumerate(got) if n != number), len(got))
            if policy == "drop_oldest":
                assert got == [*range(begun), *range(COUNT - RETAIN_ITEMS, COUNT)]
            elif policy == "drop_newest":
                assert begun == len(got) >= RETAIN_ITEMS
            else:
                assert got[begun:] == list(range(COUNT - TOPICS, COUNT))
        assert relay.statistics().debt_items == 0
        (line,) = log_of(caplog, "made no progress")
        assert f"outlet mqtt:{relay.port}/-/s0 made no progress" in line
        assert "it is behind now" in line
        relay.audit()


async def test_whoever_waits_is_waited_for_until_it_reads() -> None:
    async with (
        running(patience=0.1, stuck="wait", limit_items=500) as relay,
        AsyncExitStack() as stack,
    ):
        subs = await nine(stack, relay.port)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(publish_to, relay, subs)
            await until(lambda: relay.ledger.waiters)
            await trio.sleep(0.5)
            assert relay.ledger.waiters
            assert numbers(await subs[0].publications(COUNT)) == list(range(COUNT))


async def test_rules_say_what_is_done_by_client_and_by_topic(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Of one connection's subscriptions one is conflated, and another loses nothing."""
    rules = (
        SubscriptionPolicy("s?", "t/#", "conflate", 0.2),
        SubscriptionPolicy("s?", "all/#", "spill"),
        SubscriptionPolicy("*/cut", "#", "disconnect", 0.2),
    )
    async with (
        running(subscription_policy=rules, stuck="wait", limit_items=500) as relay,
        connected(relay.port, "s0", receive_buffer=LITTLE) as stuck,
        connected(relay.port, "cut", receive_buffer=LITTLE) as cut,
        connected(relay.port, "reads") as reads,
        connected(relay.port, "pub") as pub,
    ):
        await stuck.subscribe("t/#", "all/#")
        await cut.subscribe("all/#")
        await reads.subscribe("#")
        half = COUNT // 2
        async with trio.open_nursery() as nursery:
            nursery.start_soon(reads.publications, COUNT)
            for n in range(half):
                await pub.stream.send_all(publication(n) + publication(n, "all"))
        assert "cut" not in relay.relay.mqtt.sessions
        packets: list[Publish] = []
        with trio.fail_after(30):
            while sum(packet.topic.startswith("all") for packet in packets) < half:
                packets.append(await stuck.publication())
        spilled = [packet for packet in packets if packet.topic.startswith("all")]
        assert numbers(spilled) == list(range(half))
        for n in range(TOPICS):
            last = [packet for packet in packets if packet.topic == f"t/{n}"][-1]
            assert numbers([last]) == [max(range(n, half, TOPICS))]
        outlet = relay.relay.mqtt.sessions["s0"].outlet
        assert outlet.relief.dropped_items == COUNT - len(packets) > half // 2


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("policy", ["drop_oldest", "store"])
async def test_what_has_to_be_acknowledged_is_never_dropped(
    policy: str, qos: int, tmp_path: Any
) -> None:
    """It is put aside, whatever the policy drops, and comes in order when it is acknowledged."""
    settings: dict[str, Any] = {"stuck": policy}
    if policy == "store":
        settings = {"stuck": "spill", "store": str(tmp_path), "fsync_interval": 0.01}
    count = 600
    async with (
        running(patience=0.2, limit_items=50, **settings) as relay,
        connected(relay.port, "s0") as stuck,
        connected(relay.port, "pub") as pub,
    ):
        await stuck.subscribe("t", qos=qos)

        async def publish() -> None:
            for n in range(count):
                # With QoS 2 an identifier is not released: it is another one each time.
                await pub.publish("t", b"%08d" % n, qos, packet_id=n + 1)

        async def read_answers() -> None:
            for n in range(count):
                await pub.expect(PubAck(n + 1) if qos == 1 else PubRec(n + 1))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(publish)
            await read_answers()
        (inflight,) = [each for each in relay.ledger.holders if each.kind == "inflight"]
        assert isinstance(inflight, Inflight)
        assert inflight.lagging
        relay.audit()
        # What was under way was sent already; it acknowledges late, and gets all that follows.
        got: list[Publish] = []
        done = 0
        with trio.fail_after(SECONDS):
            while done < count:
                packet = await stuck.receive()
                if isinstance(packet, Publish):
                    got.append(packet)
                    of = packet.packet_id
                    await stuck.send(PubAck(of) if qos == 1 else PubRec(of))
                    done += qos == 1
                else:
                    assert isinstance(packet, PubRel)
                    await stuck.send(PubComp(packet.packet_id))
                    done += 1
        assert numbers(got) == list(range(count))
        assert all(packet.qos == qos for packet in got)
        await until(lambda: not inflight.lagging)
        assert relay.ledger.repaid_items[Outcome.DROPPED] == 0
        assert relay.ledger.repaid_items[Outcome.LEAKED] == 0
        assert inflight.relief.stored_items > count - 200
        # From then on it is as ever.
        await pub.publish("t", b"%08d" % count, qos, packet_id=count + 1)
        assert numbers([await stuck.publication()]) == [count]
        relay.audit()


async def test_who_is_disconnected_is_so_for_what_it_does_not_acknowledge() -> None:
    rule = SubscriptionPolicy("s0", "else", "drop_oldest")
    async with (
        running(
            patience=0.2, limit_items=20, spill_limit=1_000, subscription_policy=(rule,)
        ) as relay,
        connected(relay.port, "s0") as stuck,
        connected(relay.port, "s1") as cut,
        connected(relay.port, "pub") as pub,
    ):
        for sub in (stuck, cut):
            await sub.subscribe("t", qos=1)
        async with trio.open_nursery() as nursery:

            async def publish() -> None:
                for n in range(300):
                    await pub.publish("t", b"%08d" % n, 1, packet_id=n + 1)

            nursery.start_soon(publish)
            for n in range(300):
                await pub.expect(PubAck(n + 1))
        # One at once; the other when no more might be put aside for it.
        for sub in (stuck, cut):
            got = [packet for packet in await sub.gone() if isinstance(packet, Publish)]
            assert numbers(got) == list(range(len(got)))
        assert relay.ledger.relief[StuckPolicy.SPILL].stored_items > 50


async def test_what_is_put_aside_counts_for_the_tenant() -> None:
    acme = Tenant(name="acme", client=("s*",), kept=1_000_000)
    async with (
        running(stuck="spill", tenant=(acme,)) as relay,
        connected(relay.port, "s0"),
        connected(relay.port, "else"),
    ):
        above: list[str] = []
        for client_id in ("s0", "else"):
            outlet = relay.relay.mqtt.sessions[client_id].outlet
            assert outlet.consumer_policy is not None
            assert outlet.consumer_policy.open_spool is not None
            before = set(relay.ledger.accounts)
            spool = outlet.consumer_policy.open_spool(outlet, list, list)
            (name,) = set(relay.ledger.accounts) - before
            parent = relay.ledger.accounts[name].parent
            assert parent is not None
            above.append(parent.name)
            spool.close()
        assert above == ["kept/acme", "spilled"]


async def test_an_orderly_stop_gives_who_is_behind_what_is_kept_for_it() -> None:
    async with (
        running(patience=0.2, stuck="drop_oldest", limit_items=500) as relay,
        AsyncExitStack() as stack,
    ):
        subs = await nine(stack, relay.port)
        await publish_to(relay, subs)
        assert relay.relay.mqtt.sessions["s0"].outlet.lagging
        relay.stop.set()
        got = numbers([p for p in await subs[0].gone() if isinstance(p, Publish)])
        assert got[-RETAIN_ITEMS:] == list(range(COUNT - RETAIN_ITEMS, COUNT))
    assert relay.report is not None
    assert relay.report.unflushed == ()


async def test_a_stop_tells_of_who_does_not_take_what_is_kept_for_it() -> None:
    async with (
        running(patience=0.2, stuck="spill", grace=0.2, limit_items=500) as relay,
        AsyncExitStack() as stack,
    ):
        await publish_to(relay, await nine(stack, relay.port))
        relay.stop.set()
        await until(lambda: not relay.relay.mqtt.open)
    assert relay.report is not None
    (sentence,) = relay.report.unflushed
    assert re.match(r"mqtt:\d+/-/s0: \d{3,4} items \(\d+ bytes\) were not sent", sentence)


@pytest.mark.parametrize(
    ("options", "patience"),
    [
        (["--patience", "1"], 1.0),
        pytest.param([], 20.0, marks=pytest.mark.long),
    ],
)
async def test_others_go_on_after_the_patience(options: list[str], patience: float) -> None:
    """In a process, under the profile that has publishers wait."""
    lossless = ("--profile", "lossless", *options)
    relay = RelayUnderTest(("--listen", "mqtt+tcp://127.0.0.1:0", *lossless))
    try:
        await survives(relay, patience)
    finally:
        await trio.to_thread.run_sync(relay.close)


async def survives(relay: RelayUnderTest, patience: float) -> None:
    port = await trio.to_thread.run_sync(relay.mqtt_port)
    count = 7_000
    paho = Client(CallbackAPIVersion.VERSION2, client_id="paho")
    heard: list[int] = []
    paho.on_message = lambda _, __, message: heard.append(int(message.payload[:8]))
    async with (
        connected(port, "stuck", receive_buffer=LITTLE) as stuck,
        connected(port, "reads") as reads,
        connected(port, "pub") as pub,
    ):
        await stuck.subscribe("t/#")
        await reads.subscribe("t/#")
        paho.connect("127.0.0.1", port)
        paho.loop_start()
        try:
            paho.subscribe("t/#")
            await until(lambda: paho.is_connected())
            await trio.sleep(0.2)
            began = trio.current_time()
            got: list[int] = []

            async def read() -> None:
                while len(got) < count:
                    packet = await reads.receive()
                    assert isinstance(packet, Publish)
                    got.extend(numbers([packet]))

            with trio.fail_after(patience + 10):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(read)
                    for start in range(0, count, 100):
                        run = map(publication, range(start, start + 100))
                        await pub.stream.send_all(b"".join(run))
                await until(lambda: len(heard) >= count)
            assert trio.current_time() - began >= patience
            assert got == heard == list(range(count))
            assert len(await stuck.gone()) < count
        finally:
            await trio.to_thread.run_sync(paho.loop_stop)
    relay.process.terminate()
    assert await trio.to_thread.run_sync(relay.wait) == 0
    (line,) = [line for line in relay.log if "giving it up, its debt is written off" in line]
    assert f"outlet mqtt:{port}/-/stuck made no progress for" in line


async def test_the_connection_of_a_range_reader_has_the_relays_patience_and_policy() -> None:
    listen = ("subscribe+tcp://127.0.0.1:0",)
    async with running(listen=listen, patience=7.0, stuck="wait") as relay:
        readers = relay.relay.readers
        assert readers is not None
        async with await trio.open_tcp_stream("127.0.0.1", relay.port):
            await until(lambda: readers.open)
            (session,) = readers.open
            assert session.outlet.patience == 7.0
            assert session.outlet.policy is StuckPolicy.WAIT
        await until(lambda: not readers.open)
