"""A subscriber that does not read: who waits on whom, for how long, and what becomes of it."""

from __future__ import annotations

import json
import random
import zlib
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from clearfunds.accounts import Outcome
from clearfunds.transports.mqtt import PubAck, Publish, encode
from tests.cli.conftest import RelayUnderTest
from tests.transports.peers import (
    BareClient,
    connected,
    fetch,
    log_of,
    running,
    until,
)

LITTLE = 4096


async def crowd(stack: AsyncExitStack, port: int, qos: int = 0) -> list[BareClient]:
    """Nine subscribers of `t/#`; what the first, `s0`, does not read stays in the relay."""
    subs = [
        await stack.enter_async_context(
            connected(port, f"s{n}", receive_buffer=None if n else LITTLE)
        )
        for n in range(9)
    ]
    for sub in subs:
        await sub.subscribe("t/#", qos=qos)
    return subs


# -- for good -------------------------------------------------------------------------------------


@pytest.mark.rule(11)
@pytest.mark.parametrize("qos", [0, 1])
async def test_a_subscriber_stuck_for_good_is_given_up(
    qos: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Rule 11: its debt is written off and counted, and everybody else goes on."""
    size, count = (500_000, 40) if qos == 0 else (100, 3000)
    async with (
        running(patience=1.0, stuck="disconnect", http="127.0.0.1:0", limit_items=20) as relay,
        AsyncExitStack() as stack,
    ):
        subs = await crowd(stack, relay.port, qos)
        pub = await stack.enter_async_context(connected(relay.port, "pub"))
        got: list[list[int]] = []

        async def read(sub: BareClient) -> None:
            packets = await sub.publications(count, ack=True)
            got.append([int(p.payload[:8]) for p in packets])

        async def publish() -> None:
            for n in range(count):
                packet_id = n + 1 if qos else 0
                await pub.publish("t/x", b"%08d" % n + bytes(size), qos, packet_id=packet_id)

        async def read_acks() -> None:
            for n in range(count if qos else 0):
                await pub.expect(PubAck(n + 1))

        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            for sub in subs[1:]:
                nursery.start_soon(read, sub)
            nursery.start_soon(publish)
            nursery.start_soon(read_acks)
        assert trio.current_time() - began >= 1.0
        assert got == [list(range(count))] * 8
        assert "s0" not in relay.relay.mqtt.sessions
        await until(lambda: not relay.statistics().debt_items)
        relay.audit()

        written_off = relay.ledger.repaid_items[Outcome.WRITTEN_OFF]
        assert written_off > 20 / 9
        page = await fetch(f"{relay.addresses.http}/metrics")
        assert f'clearfunds_repaid_items_total{{outcome="written_off"}} {written_off}.0' in page
        ledger = json.loads(await fetch(f"{relay.addresses.http}/ledger.json"))
        assert ledger["totals"]["repaid"]["written_off"]["items"] == written_off

        (line,) = log_of(caplog, "made no progress")
        kind = "inflight" if qos else "outlet"
        assert line.startswith(f"{kind} mqtt:{relay.port}/-/s0 made no progress for 1.")
        assert f"mqtt:{relay.port}/-/pub waits for" in line
        assert "giving it up, its debt is written off" in line


async def test_all_who_wait_on_it_are_named(caplog: pytest.LogCaptureFixture) -> None:
    async with (
        running(patience=0.5, stuck="disconnect", limit_items=2) as relay,
        connected(relay.port, "stuck", receive_buffer=LITTLE) as stuck,
        AsyncExitStack() as stack,
    ):
        await stuck.subscribe("t")
        async with trio.open_nursery() as nursery:
            for n in range(3):
                pub = await stack.enter_async_context(connected(relay.port, f"pub{n}"))
                nursery.start_soon(pub.stream.send_all, encode(Publish("t", bytes(500_000))) * 10)
        await until(lambda: "stuck" not in relay.relay.mqtt.sessions)
        (line,) = log_of(caplog, "made no progress")
        names = ", ".join(f"mqtt:{relay.port}/-/pub{n}" for n in range(3))
        assert f"{names} wait for" in line


async def test_a_subscriber_on_whom_nobody_waits_may_take_its_time(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with (
        running(patience=0.5, stuck="disconnect") as relay,
        connected(relay.port, "slow", receive_buffer=LITTLE) as slow,
        connected(relay.port, "pub") as pub,
    ):
        await slow.subscribe("t")
        for n in range(15):
            await pub.publish("t", b"%02d" % n + bytes(500_000))
        await until(lambda: relay.account("pub").debt_items)
        await trio.sleep(1.5)
        assert relay.account("pub").debt_items
        assert not relay.account("pub").waiting
        assert [p.payload[:2] for p in await slow.publications(15)] == [
            b"%02d" % n for n in range(15)
        ]
    assert not log_of(caplog, "made no progress")


async def test_with_wait_it_is_waited_for_and_everything_arrives(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with (
        running(patience=0.5, stuck="wait", limit_items=20) as relay,
        AsyncExitStack() as stack,
    ):
        subs = await crowd(stack, relay.port)
        pub = await stack.enter_async_context(connected(relay.port, "pub"))
        stream = b"".join(encode(Publish("t/x", b"%08d" % n + bytes(500_000))) for n in range(30))
        got: list[list[bytes]] = []

        async def read(sub: BareClient) -> None:
            got.append([p.payload[:8] for p in await sub.publications(30)])

        async with trio.open_nursery() as nursery:
            for sub in subs[1:]:
                nursery.start_soon(read, sub)
            nursery.start_soon(pub.stream.send_all, stream)
            await until(lambda: log_of(caplog, "made no progress"))
            assert not got
            await trio.sleep(0.6)
            nursery.start_soon(read, subs[0])
        assert got == [[b"%08d" % n for n in range(30)]] * 9
        assert relay.ledger.repaid_items[Outcome.WRITTEN_OFF] == 0
        # It is said again for each time that its patience runs out, not at each look.
        lines = log_of(caplog, "its policy is to wait")
        assert 1 <= len(lines) <= 4
        assert f"outlet mqtt:{relay.port}/-/s0 made no progress" in lines[0]


# -- for a while ----------------------------------------------------------------------------------


def block(seed: int, topics: int = 5) -> bytes:
    """Publications of mixed sizes on several topics: some 2 MB that are sent over and over."""
    chance = random.Random(seed)
    pieces: list[bytes] = []
    size = 0
    while size < 2_000_000:
        payload = chance.randbytes(chance.choice([0, 10, 60, 200, 1000, 5000, 40_000]))
        pieces.append(encode(Publish(f"t/{chance.randrange(topics)}", payload)))
        size += len(pieces[-1])
    return b"".join(pieces)


@attrs.define
class Stream:
    """All bytes that went one way, as their number and checksum."""

    size: int = 0
    checksum: int = 0

    def add(self, data: bytes) -> None:
        self.size += len(data)
        self.checksum = zlib.crc32(data, self.checksum)


@attrs.define
class Race:
    """Nine subscribers of one publisher, which sends without a pause; the first stops reading.

    What is forwarded is forwarded as it came, so each subscriber has to get the very bytes that the
    publisher has sent: same order, same content, nothing lost.
    """

    stop: float
    sent: Stream = attrs.field(factory=Stream)
    got: list[Stream] = attrs.field(factory=lambda: [Stream() for _ in range(9)])
    reading: trio.Event = attrs.field(factory=trio.Event)
    ended: bool = False

    async def publish(self, pub: BareClient) -> None:
        data = memoryview(block(1))
        while not self.ended:
            for start in range(0, len(data), 1 << 18):
                piece = bytes(data[start : start + (1 << 18)])
                self.sent.add(piece)
                await pub.stream.send_all(piece)

    async def read(self, number: int, sub: BareClient) -> None:
        stream = self.got[number]
        if number == 0:
            await self.reading.wait()
        while not (self.ended and stream.size >= self.sent.size):
            with trio.move_on_after(0.1):
                stream.add(bytes(await sub.stream.receive_some(1 << 18)))


async def names_while_it_lasts(pages: str, port: int) -> None:
    """The pages say who holds whose debt."""
    debtor, holder = f"mqtt:{port}/-/pub", f"mqtt:{port}/-/s0"
    ledger = json.loads(await fetch(f"{pages}/ledger.json"))
    cells: dict[tuple[str, str], Any] = {
        (cell["account"], cell["holder"]): cell for cell in ledger["matrix"]
    }
    assert cells[debtor, holder]["oldest_seconds"] > 0.5
    held = {
        holder: cells[account, holder]["bytes"] for account, holder in cells if account == debtor
    }
    assert max(held, key=lambda name: held[name]) == holder
    assert ledger["audit"]["balanced"]
    (account,) = (each for each in ledger["accounts"] if each["name"] == debtor)
    assert account["state"] == "throttled"
    assert account["waiting_readers"] == 1
    page = await fetch(f"{pages}/metrics/detailed?family=matrix&family=account")
    labels = f'{{account="{debtor}",holder="{holder}"}}'
    (line,) = (
        line
        for line in page.splitlines()
        if line.startswith(f"clearfunds_detailed_debt_items{labels}")
    )
    assert float(line.split()[-1]) > 0


async def test_a_subscriber_that_stops_reading_for_a_while_loses_nothing() -> None:
    async with running(profile="lossless", http="127.0.0.1:0") as relay, AsyncExitStack() as stack:
        subs = await crowd(stack, relay.port)
        pub = await stack.enter_async_context(connected(relay.port, "pub"))
        race = Race(stop=3)
        async with trio.open_nursery() as nursery:
            for number, sub in enumerate(subs):
                nursery.start_soon(race.read, number, sub)
            nursery.start_soon(race.publish, pub)
            await until(lambda: relay.account("pub").waiting)
            await trio.sleep(race.stop / 2)
            await names_while_it_lasts(str(relay.addresses.http), relay.port)
            relay.audit()
            await trio.sleep(race.stop / 2)
            account = relay.account("pub")
            assert account.waiting
            assert account.debt_bytes <= account.peak_bytes <= (8 << 20) + 10 * 41_000
            race.reading.set()
            before = race.sent.size
            await until(lambda: race.sent.size > before + 10_000_000)
            race.ended = True
        assert race.got == [race.sent] * 9
        blamed = account.statistics().blame
        assert max(blamed, key=lambda name: blamed[name]) == f"mqtt:{relay.port}/-/s0"


def resident(pid: int) -> int:
    """The resident set of a process, in bytes."""
    fields = Path(f"/proc/{pid}/status").read_text()
    (line,) = (line for line in fields.splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1]) * 1024


@pytest.mark.long
async def test_it_costs_little_memory_and_disturbs_nobody() -> None:
    """Ten seconds, with the relay as a process: 32 MiB, and others keep 0.9 of their rate."""
    # By default publishers would wait only once 128 MiB were spilled.
    listening = ("--listen", "mqtt+tcp://127.0.0.1:0", "--http", "127.0.0.1:0")
    process = RelayUnderTest((*listening, "--profile", "lossless"))
    try:
        first, pages = await trio.to_thread.run_sync(process.ready)
        port = int(first["listening"].rpartition(":")[2])
        async with AsyncExitStack() as stack:
            subs = await crowd(stack, port)
            pub = await stack.enter_async_context(connected(port, "pub"))
            other = await stack.enter_async_context(connected(port, "other"))
            other_sub = await stack.enter_async_context(connected(port, "other-sub"))
            await other_sub.subscribe("u/#")
            race = Race(stop=10)
            others = Stream()

            async def send() -> None:
                # At a pace of its own: what it could do at the most depends on who else is busy.
                data = block(2).replace(b"t/", b"u/")
                while not race.ended:
                    await other.stream.send_all(data)
                    await trio.sleep(0.1)

            async def receive() -> None:
                while not race.ended:
                    with trio.move_on_after(0.1):
                        others.add(bytes(await other_sub.stream.receive_some(1 << 18)))

            memory = resident(process.process.pid)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(send)
                nursery.start_soon(receive)
                # With everybody reading: the rate that the other publisher has to keep.
                race.reading.set()
                nursery.start_soon(race.publish, pub)
                for number, sub in enumerate(subs[1:], 1):
                    nursery.start_soon(race.read, number, sub)
                reading = trio.CancelScope()

                async def read_first() -> None:
                    with reading:
                        await race.read(0, subs[0])

                nursery.start_soon(read_first)
                await trio.sleep(2)
                before = others.size
                await trio.sleep(4)
                rate = (others.size - before) / 4
                reading.cancel()
                await trio.sleep(1)
                before = others.size
                await trio.sleep(4)
                await names_while_it_lasts(pages["http"], port)
                await trio.sleep(4)
                kept = (others.size - before) / 8
                grown = resident(process.process.pid) - memory
                await trio.sleep(1)
                nursery.start_soon(race.read, 0, subs[0])
                sent = race.sent.size
                await until(lambda: race.sent.size > sent + 10_000_000)
                race.ended = True
            assert race.got == [race.sent] * 9
            assert kept >= 0.9 * rate
            assert grown <= 32 << 20
            print(f"{rate / 1e6:.1f} MB/s, then {kept / 1e6:.1f}; {grown / 2**20:.1f} MiB more")
        process.process.terminate()
        assert await trio.to_thread.run_sync(process.wait) == 0
    finally:
        process.close()


async def test_the_relay_goes_on_for_others_while_one_is_stuck() -> None:
    """Publishers that it concerns wait; to all others it makes no difference."""
    async with (
        running(limit_items=2, profile="lossless", patience=60) as relay,
        connected(relay.port, "stuck", receive_buffer=LITTLE) as stuck,
        connected(relay.port, "fine") as fine,
        connected(relay.port, "pub") as pub,
        connected(relay.port, "other") as other,
    ):
        await stuck.subscribe("t")
        await fine.subscribe("t")
        await fine.subscribe("u")
        got: list[bytes] = []

        async def read() -> None:
            got.extend([p.payload for p in await fine.publications(510) if p.topic == "u"])

        async with trio.open_nursery() as nursery:
            nursery.start_soon(pub.stream.send_all, encode(Publish("t", bytes(500_000))) * 10)
            nursery.start_soon(read)
            await until(lambda: relay.account("pub").waiting)
            await trio.sleep(0.2)
            for n in range(500):
                await other.publish("u", b"%d" % n, 1)
                await other.expect(PubAck(1))
            assert relay.account("pub").waiting
            assert relay.account("other").waits == 0
            relay.audit()
            await stuck.publications(10)
        assert got == [b"%d" % n for n in range(500)]
