"""Who has caused too much is not read; what reduces debt still gets through (rules 9, 10, 14)."""

from __future__ import annotations

import random
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
import trio

from clearfunds.access import AccountRate
from clearfunds.accounts import Account
from clearfunds.transports.mqtt import (
    Packet,
    PingReq,
    PingResp,
    PubAck,
    PubComp,
    Publish,
    PubRel,
    SubAck,
    Subscribe,
    encode,
)
from clearfunds.transports.mqtt.server._incoming import MAX_LOOKAHEAD_BYTES
from clearfunds.transports.mqtt.server._runs import take_acknowledgements
from clearfunds.transports.mqtt.server._session import MqttSession
from tests.transports.peers import BareClient, RunningRelay, connected, running, until

pytestmark = pytest.mark.rule(9, 10, 14)


LOOK = "clearfunds.transports.mqtt.server._lookahead.take_acknowledgements"

DELIVERIES = 8_000
"""Many times what any of the limits allows at a time."""

LITTLE = 4096
"""A receive buffer so small that what a client does not read stays in the relay, soon."""


def inside(thing: object, name: str) -> Any:
    """Look at what is nobody's business but a test's."""
    return getattr(thing, name)


async def waiting(relay: RunningRelay, client_id: str) -> None:
    """Wait until this client is not read any more, and stays so."""
    account = relay.account(client_id)
    while not account.waiting:
        await until(lambda: account.waiting)
        await trio.sleep(0.1)  # the kernel takes some more at first


# -- the overshoot (rule 9) -----------------------------------------------------------------------


def flood(kind: str, seed: int) -> list[tuple[str, bytes]]:
    """Publications, each with a number of its own."""
    chance = random.Random(seed)
    topics = {"topics": [f"t/{n}" for n in range(8)]}.get(kind, ["t/0"])
    sizes = {"random": (20, 2000), "large": (20_000, 60_000)}.get(kind, (200, 200))
    return [
        (chance.choice(topics), (b"%08d" % n).ljust(chance.randint(*sizes), b"."))
        for n in range({"large": 200}.get(kind, 4000))
    ]


@pytest.mark.parametrize("kind", ["equal", "random", "topics", "large"])
@pytest.mark.parametrize("subscribers", [1, 9, pytest.param(50, marks=pytest.mark.long)])
@pytest.mark.parametrize(
    "limit",
    [(100, None), (None, 100_000), (0, None), pytest.param((1, None), marks=pytest.mark.long)],
)
async def test_the_debt_stays_within_the_limit_and_one_publication(
    kind: str, subscribers: int, limit: tuple[int | None, int | None]
) -> None:
    """And nothing is lost or swapped, whether the subscribers read or not."""
    items, nbytes = limit
    published = flood(kind, subscribers)
    del published[(500 if kind == "large" else DELIVERIES) // subscribers :]
    largest = max(len(encode(Publish(topic, payload))) for topic, payload in published)
    async with (
        running(profile="lossless", limit_items=items, limit_bytes=nbytes) as relay,
        AsyncExitStack() as stack,
    ):
        subs = [
            await stack.enter_async_context(connected(relay.port, f"s{n}", receive_buffer=LITTLE))
            for n in range(subscribers)
        ]
        for sub in subs:
            await sub.subscribe("t/+")
        pub = await stack.enter_async_context(connected(relay.port, "pub"))
        account = relay.account("pub")
        account.peak_items = account.peak_bytes = 0
        got: dict[BareClient, list[tuple[str, bytes]]] = {}

        async def read(sub: BareClient) -> None:
            packets = await sub.publications(len(published))
            got[sub] = [(p.topic, p.payload) for p in packets]

        async with trio.open_nursery() as nursery:
            stream = b"".join(encode(Publish(*each)) for each in published)
            nursery.start_soon(pub.stream.send_all, stream)
            await trio.sleep(0.02)
            relay.audit()
            for sub in subs:
                nursery.start_soon(read, sub)
        await until(lambda: not account.debt_items)
        one = subscribers + 1
        if items is not None:
            assert account.peak_items <= items + one
        if nbytes is not None:
            assert account.peak_bytes <= nbytes + one * largest
        assert all(each == published for each in got.values())


async def test_a_fan_out_above_the_limit_is_admitted_and_then_waited_for() -> None:
    async with running(profile="lossless", limit_items=3) as relay, AsyncExitStack() as stack:
        subs = [
            await stack.enter_async_context(connected(relay.port, f"s{n}", receive_buffer=LITTLE))
            for n in range(20)
        ]
        for sub in subs:
            await sub.subscribe("t")
        async with connected(relay.port, "pub") as pub:
            account = relay.account("pub")
            async with trio.open_nursery() as nursery:
                stream = encode(Publish("t", bytes(1_000_000))) * 5
                nursery.start_soon(pub.stream.send_all, stream)
                await waiting(relay, "pub")
                assert account.debt_items > 3
                relay.audit()
                for sub in subs:
                    nursery.start_soon(sub.publications, 5)
            await until(lambda: not account.debt_items)
            assert account.peak_items <= 3 + 21


# -- what gets through (rule 10) ------------------------------------------------------------------


@pytest.mark.parametrize(("size", "count"), [(10, 2000), (5_000, 400), (100_000, 120)])
@pytest.mark.parametrize("limits", [{"limit_items": 4}, {"limit_items": 100}, {}])
async def test_a_client_that_owes_to_itself_finishes(
    size: int, count: int, limits: dict[str, int]
) -> None:
    """It publishes and subscribes with QoS 1 on one connection, and is over its limit both ways."""
    async with (
        running(profile="lossless", **limits) as relay,
        connected(relay.port, "echo") as client,
    ):
        await client.subscribe("t", qos=1)
        window = trio.Semaphore(20)  # as clients have it
        acked: list[int] = []
        got: list[bytes] = []
        to_ack, received = trio.open_memory_channel[PubAck](count)
        sending = trio.Lock()

        async def publish() -> None:
            for n in range(count):
                await window.acquire()
                async with sending:
                    await client.publish("t", b"%08d" % n + bytes(size), 1, packet_id=n + 1)

        async def acknowledge() -> None:
            async for ack in received:
                async with sending:
                    await client.send(ack)

        async def read() -> None:
            while len(got) < count or len(acked) < count:
                packet = await client.receive()
                if isinstance(packet, Publish):
                    got.append(packet.payload[:8])
                    to_ack.send_nowait(PubAck(packet.packet_id))
                else:
                    assert isinstance(packet, PubAck)
                    acked.append(packet.packet_id)
                    window.release()
            to_ack.close()

        with trio.fail_after(15):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(publish)
                nursery.start_soon(acknowledge)
                nursery.start_soon(read)
        assert got == [b"%08d" % n for n in range(count)]
        assert acked == list(range(1, count + 1))
        await until(lambda: not relay.account("echo").debt_items)
        relay.audit()


@pytest.mark.parametrize(("size", "burst"), [(10, 500), (5_000, 100), (250_000, 30), (900_000, 12)])
@pytest.mark.parametrize("limits", [{"limit_items": 4}, {}])
async def test_acknowledgements_get_through_from_behind_a_burst(
    size: int, burst: int, limits: dict[str, int]
) -> None:
    """All that the client has in flight is written before its first acknowledgement."""
    async with (
        running(profile="lossless", **limits) as relay,
        connected(relay.port, "echo") as client,
    ):
        await client.subscribe("t", qos=1)
        got: list[bytes] = []
        acked: list[int] = []
        everything = [
            Publish("t", b"%08d" % n + bytes(size), 1, packet_id=n + 1) for n in range(burst)
        ]
        to_ack, received = trio.open_memory_channel[PubAck](burst)

        async def write() -> None:
            await client.send(*everything)
            async for ack in received:
                await client.send(ack)

        with trio.fail_after(15):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(write)
                while len(got) < burst or len(acked) < burst:
                    packet = await client.receive()
                    if isinstance(packet, Publish):
                        got.append(packet.payload[:8])
                        to_ack.send_nowait(PubAck(packet.packet_id))
                    else:
                        assert isinstance(packet, PubAck)
                        acked.append(packet.packet_id)
                to_ack.close()
        assert got == [b"%08d" % n for n in range(burst)]
        assert acked == list(range(1, burst + 1))
        await until(lambda: not relay.account("echo").debt_items)
        relay.audit()


async def test_acknowledgements_for_others_get_through_from_behind_a_flood() -> None:
    """Who waits for a slow subscriber, with much to say, still acknowledges what it is sent."""
    async with (
        running(profile="lossless", limit_items=2, patience=60) as relay,
        connected(relay.port, "stuck", receive_buffer=LITTLE) as stuck,
        connected(relay.port, "pub") as pub,
        connected(relay.port, "other") as other,
    ):
        await stuck.subscribe("t")
        await pub.subscribe("for/pub", qos=1)
        packets: list[Publish] = []

        async def flood() -> None:
            await pub.stream.send_all(encode(Publish("t", bytes(500_000))) * 12)
            await until(lambda: packets)
            await pub.send(PubAck(packets[0].packet_id))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(flood)
            await waiting(relay, "pub")
            await other.publish("for/pub", b"to be acked", 1)
            await other.expect(PubAck(1))
            packets.append(await pub.publication())
            await until(lambda: not relay.account("other").debt_items)
            assert relay.account("pub").waiting
            relay.audit()
            assert len(await stuck.publications(12)) == 12


async def test_pings_and_acknowledgements_are_answered_while_it_waits() -> None:
    async with (
        running(profile="lossless", limit_items=2) as relay,
        connected(relay.port, "stuck", receive_buffer=LITTLE) as stuck,
        connected(relay.port, "other") as other,
        connected(relay.port, "pub") as pub,
    ):
        await stuck.subscribe("t")
        await pub.subscribe("for/pub", qos=1)
        # The QoS 2 handshake is begun while there are funds.
        await pub.publish("u", b"2", 2, packet_id=7)
        await pub.receive()
        sent = 0
        while not relay.account("pub").waiting:
            await pub.publish("t", b"%04d" % sent + bytes(500_000))
            sent += 1
            await trio.sleep(0.1)
        await pub.send(PingReq(), Publish("t", b"behind"), PubRel(7), PingReq())
        await pub.expect(PingResp())
        await pub.expect(PubComp(7))
        await pub.expect(PingResp())
        await other.publish("for/pub", b"to be acked", 1)
        await other.expect(PubAck(1))
        packet = await pub.publication()
        assert relay.account("other").debt_items == 1
        await pub.send(PubAck(packet.packet_id))
        await until(lambda: not relay.account("other").debt_items)
        assert relay.account("pub").waiting
        relay.audit()
        # What had to wait comes in order.
        got = [p.payload[:4] for p in await stuck.publications(sent + 1)]
        assert got == [*(b"%04d" % n for n in range(sent)), b"behi"]


async def test_an_acknowledgement_does_not_wait_for_a_stuck_subscriber() -> None:
    async with (
        running(profile="lossless") as relay,
        connected(relay.port, "stuck", receive_buffer=LITTLE) as stuck,
        connected(relay.port, "pub") as pub,
    ):
        await stuck.subscribe("t")
        n = 0
        while relay.account("pub").debt_bytes < 5_000_000:
            n += 1
            await pub.publish("t", bytes(500_000), 1, packet_id=n)
            await pub.expect(PubAck(n))
        assert relay.account("pub").debt_bytes >= 5_000_000
        relay.audit()


async def test_the_keep_alive_clock_stands_still_while_the_client_is_not_read() -> None:
    async with (
        running(profile="lossless", limit_items=2, patience=60) as relay,
        connected(relay.port, "stuck", receive_buffer=LITTLE) as stuck,
        connected(relay.port, "pub", keep_alive=1) as pub,
    ):
        await stuck.subscribe("t")
        sent = 0
        while not relay.account("pub").waiting:
            await pub.publish("t", bytes(500_000))
            sent += 1
            await trio.sleep(0.1)
        await trio.sleep(2.1)
        assert relay.account("pub").waiting
        await stuck.publications(sent)
        await pub.send(PingReq())
        await pub.expect(PingResp())
        assert relay.relay.mqtt.counters.timeouts == 0
        assert await pub.gone() == []  # it runs again
        assert relay.relay.mqtt.counters.timeouts == 1


async def test_a_client_that_pings_without_end_and_reads_nothing_is_bounded(tmp_path: Path) -> None:
    unix = str(tmp_path / "relay.sock")  # there the kernel takes little
    async with (
        running(
            profile="lossless",
            listen=("mqtt+tcp://127.0.0.1:0", f"mqtt+unix://{unix}"),
            limit_items=2,
            patience=60,
        ) as relay,
        connected(relay.port, "stuck", receive_buffer=LITTLE) as stuck,
        connected(unix, "pub") as pub,
    ):
        await stuck.subscribe("t")
        while not relay.account("pub").waiting:
            await pub.publish("t", bytes(500_000))
            await trio.sleep(0.1)
        with trio.move_on_after(2):
            await pub.stream.send_all(encode(PingReq()) * 2_000_000)
            raise AssertionError("all of it was read")
        # Two bytes for each, of what two reads and one more can hold.
        assert relay.account("pub").debt_items < 110_000
        relay.audit()


async def test_what_waits_is_looked_at_once_however_often_it_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Or whoever keeps it waiting for each publication, as a rate does, pays for all of them."""
    looked_at = waits = 0
    wait = Account.ensure_clear_funds

    def counted(buffer: bytes, start: int = 0, *args: Any, **kwargs: Any) -> Any:
        nonlocal looked_at
        looked_at += len(buffer) - start
        return take_acknowledgements(buffer, start, *args, **kwargs)

    async def waited(account: Account) -> None:
        nonlocal waits
        waits += 1
        await wait(account)

    monkeypatch.setattr(LOOK, counted)
    monkeypatch.setattr(Account, "ensure_clear_funds", waited)
    rate = (AccountRate(pattern="*", items=100, bytes=None),)
    async with running(profile="lossless", rate=rate) as relay, connected(relay.port, "pub") as pub:
        counters = relay.relay.mqtt.counters
        await pub.stream.send_all(encode(Publish("a")) * 10_000)
        await until(lambda: waits > 50)
        assert counters.received < 2_000
        assert looked_at <= 2 * counters.received_bytes
        relay.audit()


async def test_a_ping_behind_much_that_waits_touches_nothing_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    touched = 0

    def counted(buffer: bytes, *args: Any, **kwargs: Any) -> Any:
        nonlocal touched
        touched += len(buffer)
        return take_acknowledgements(buffer, *args, **kwargs)

    async with (
        running(profile="lossless", limit_items=2, patience=60) as relay,
        connected(relay.port, "stuck", receive_buffer=LITTLE) as stuck,
        connected(relay.port, "other") as other,
        connected(relay.port, "pub") as pub,
    ):
        await stuck.subscribe("t")
        await pub.subscribe("for/pub", qos=1)
        await other.publish("for/pub", b"to be acked", 1)
        packet = await pub.publication()
        packets = [encode(Publish("t", b"%02d" % n + bytes(500_000))) for n in range(12)]
        counters = relay.relay.mqtt.counters
        goal = counters.received_bytes + sum(map(len, packets))
        await pub.stream.send_all(b"".join(packets))
        await until(lambda: counters.received_bytes >= goal)
        monkeypatch.setattr(LOOK, counted)
        for _ in range(100):
            await pub.send(PingReq())
            await pub.expect(PingResp())
        assert touched == 200
        assert relay.account("pub").waiting
        await pub.send(PubAck(packet.packet_id))
        await until(lambda: not relay.account("other").debt_items)
        assert relay.account("pub").waiting
        got = [p.payload[:2] for p in await stuck.publications(12)]
        assert got == [b"%02d" % n for n in range(12)]
        relay.audit()


@pytest.mark.parametrize("taken_over", [False, True])
async def test_others_run_between_very_many_pings(
    taken_over: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One read may be 32,768 of them; and their connection may be taken over meanwhile."""
    count = in_a_row = most = 0
    acknowledge = inside(MqttSession, "_acknowledge")

    def counted(self: MqttSession, *args: Packet) -> None:
        nonlocal count, in_a_row
        count += 1
        in_a_row += 1
        acknowledge(self, *args)

    async with (
        running(profile="lossless", limit_items=2, patience=60) as relay,
        connected(relay.port, "stuck", receive_buffer=LITTLE) as stuck,
        connected(relay.port, "pub") as pub,
    ):
        await stuck.subscribe("t")
        while not relay.account("pub").waiting:
            await pub.publish("t", bytes(500_000))
            await trio.sleep(0.1)
        session = relay.relay.mqtt.sessions["pub"]
        monkeypatch.setattr(MqttSession, "_acknowledge", counted)
        answered = 0

        async def read() -> None:
            nonlocal answered
            with suppress(trio.BrokenResourceError):
                while data := await pub.stream.receive_some():
                    answered += len(data) // 2

        async def ping() -> None:
            with suppress(trio.BrokenResourceError):
                await pub.stream.send_all(encode(PingReq()) * 20_000)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            nursery.start_soon(ping)
            while count < (1_000 if taken_over else 20_000):
                await trio.lowlevel.checkpoint()
                most, in_a_row = max(most, in_a_row), 0
            if taken_over:
                session.cut("another connection came")
                inside(session, "_retire")("another connection came")
                await until(lambda: session not in relay.relay.mqtt.open)
            else:
                await until(lambda: answered >= 19_990)  # a length may be odd
            nursery.cancel_scope.cancel()
        assert most <= MAX_LOOKAHEAD_BYTES  # Trio runs a round of tasks in any order
        assert relay.relay.mqtt.counters.internal_errors == 0
        relay.audit()


# -- no laundering by reconnecting (rule 14) ------------------------------------------------------


@pytest.mark.parametrize("how", ["disconnected", "reset", "taken over"])
async def test_who_comes_back_finds_its_debt_waiting(how: str) -> None:
    async with (
        running(profile="lossless", limit_items=3, patience=60) as relay,
        connected(relay.port, "stuck", receive_buffer=LITTLE) as stuck,
        AsyncExitStack() as stack,
    ):
        await stuck.subscribe("t")
        first = await stack.enter_async_context(connected(relay.port, "pub"))
        while not relay.account("pub").waiting:
            await first.publish("t", bytes(500_000))
            await trio.sleep(0.1)
        account = relay.account("pub")
        owed = account.debt_items
        if how != "taken over":
            await (first.reset() if how == "reset" else first.stream.aclose())
            await until(lambda: "pub" not in relay.relay.mqtt.sessions)
            assert account.state == "closing"
        async with connected(relay.port, "pub") as again:
            assert relay.account("pub") is account
            assert account.debt_items == owed
            await again.publish("u", b"it waits", 1, packet_id=1)
            await again.send(PingReq())
            await again.expect(PingResp())
            assert await again.silent()
            await until(lambda: account.waiting == 1)
            relay.audit()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(stuck.gone)
                await again.expect(PubAck(1))
                nursery.cancel_scope.cancel()


async def test_a_new_subscriber_that_owes_is_told_what_is_retained_when_it_has_paid() -> None:
    async with (
        running(profile="lossless", limit_items=3, patience=60) as relay,
        connected(relay.port, "stuck", receive_buffer=LITTLE) as stuck,
        connected(relay.port, "pub") as pub,
    ):
        await pub.publish("kept", b"kept", retain=True)
        await stuck.subscribe("t")
        sent = 0
        while not relay.account("pub").waiting:
            await pub.publish("t", bytes(500_000))
            sent += 1
            await trio.sleep(0.1)
        await pub.send(Subscribe(1, (("kept", 0),)))
        assert await pub.silent()
        await stuck.publications(sent)
        await pub.expect(SubAck(1, (0,)))
        await pub.expect(Publish("kept", b"kept", retain=True))


async def test_who_has_closed_acknowledges_nothing_more() -> None:
    """So what it would have to acknowledge is not waited for, neither by itself nor by others."""
    async with (
        running(profile="lossless", limit_items=2, patience=60) as relay,
        connected(relay.port, "other") as other,
        connected(relay.port, "echo") as echo,
    ):
        await echo.subscribe("t", qos=1)
        await other.send(*(Publish("t", b"", 1, packet_id=n + 1) for n in range(10)))
        await echo.send(*(Publish("t", b"", 1, packet_id=n + 1) for n in range(10)))
        await until(lambda: relay.account("echo").waiting and relay.account("other").waiting)
        await echo.stream.send_eof()
        with trio.fail_after(5):
            await echo.gone()
            for n in range(10):
                await other.expect(PubAck(n + 1))
