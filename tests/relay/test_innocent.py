"""An innocent tenant next to one that is stuck: a relay as a process, real sockets."""

from __future__ import annotations

import json
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

import attrs
import pytest
import trio

from clearfunds.transports.mqtt import PubAck, Publish, encode
from tests.cli.conftest import RelayUnderTest
from tests.programs import needs
from tests.transports.peers import SECONDS, BareClient, connected, fetch, kill, run_fed

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

SERVER_LIMIT = 600
STUCK = 6
"""Publishers of the tenant that is stuck; each may owe more than the whole relay may."""

WINDOW = 40
"""Messages of the innocent one under way at a time."""

RATE = 1_000
"""Messages a second that it offers, a window at a time; a small part of what the relay can do."""

needs_mosquitto = needs("mosquitto_pub", "mosquitto_sub")


@attrs.frozen
class Process:
    """A relay as a process, and its pages."""

    port: int
    http: str

    async def tenant(self, name: str) -> dict[str, Any]:
        """What it says of a tenant."""
        page = json.loads(await fetch(f"{self.http}/ledger.json"))
        (row,) = [each for each in page["tenants"] if each["name"] == name]
        found: dict[str, Any] = row
        assert page["audit"]["balanced"]
        return found

    async def waits_of(self, user: str) -> int:
        """How often readers of a user's connections have had to wait."""
        page = json.loads(await fetch(f"{self.http}/ledger.json"))
        rows = [row for row in page["accounts"] if f"/{user}/" in row["name"]]
        assert rows
        return sum(row["waits"] for row in rows)


@asynccontextmanager
async def process(*options: str) -> AsyncGenerator[Process]:
    """Run a relay with two tenants, whose stuck subscribers are waited for."""
    relay = RelayUnderTest(
        (
            *("--listen", "mqtt+tcp://127.0.0.1:0", "--http", "127.0.0.1:0"),
            *("--server-limit-items", str(SERVER_LIMIT), "--stuck", "wait"),
            *("--tenant", "stuck,user=stuck", "--tenant", "innocent,user=innocent"),
            *options,
        )
    )
    try:
        lines = await trio.to_thread.run_sync(relay.ready)
        yield Process(int(lines[0]["listening"].rpartition(":")[2]), lines[1]["http"])
    finally:
        await trio.to_thread.run_sync(relay.close)
    assert not [line for line in relay.log if "Traceback" in line or " ERROR " in line]


@asynccontextmanager
async def stuck(relay: Process) -> AsyncGenerator[None]:
    """Have one tenant's publishers wait for a subscriber of its own that reads nothing."""
    async with AsyncExitStack() as stack:
        sub = await stack.enter_async_context(
            connected(relay.port, "stuck", username="stuck", receive_buffer=4096)
        )
        await sub.subscribe("s")
        async with trio.open_nursery() as nursery:
            for number in range(STUCK):
                pub = await stack.enter_async_context(
                    connected(relay.port, f"pub{number}", username="stuck")
                )
                nursery.start_soon(flood, pub)
            with trio.fail_after(SECONDS):
                while True:
                    seen = await relay.tenant("stuck")
                    if seen["waiting_readers"] == STUCK and seen["debt"]["items"] > SERVER_LIMIT:
                        break
                    await trio.sleep(0.1)
            yield
            seen = await relay.tenant("stuck")
            assert seen["waiting_readers"] == STUCK
            nursery.cancel_scope.cancel()


async def flood(client: BareClient) -> None:
    """Publish without end."""
    while True:
        await client.stream.send_all(encode(Publish("s", bytes(1000))) * 100)


class Innocent:
    """A publisher and a subscriber of the other tenant, with so many messages between them."""

    def __init__(self, pub: BareClient, sub: BareClient, qos: int) -> None:
        self.pub = pub
        self.sub = sub
        self.qos = qos
        self.got = 0

    async def window(self) -> None:
        """Send a window full, and take it."""
        packets = [
            Publish("i", b"%08d" % (self.got + n), self.qos, packet_id=n + 1 if self.qos else 0)
            for n in range(WINDOW)
        ]
        await self.pub.send(*packets)
        found = await self.sub.publications(WINDOW, ack=True)
        assert [int(each.payload) for each in found] == list(range(self.got, self.got + WINDOW))
        if self.qos:
            for packet in packets:
                await self.pub.expect(PubAck(packet.packet_id))
        self.got += WINDOW


@asynccontextmanager
async def innocent(relay: Process, qos: int = 0) -> AsyncGenerator[Innocent]:
    """Connect them."""
    async with (
        connected(relay.port, "sub", username="innocent") as sub,
        connected(relay.port, "pub", username="innocent") as pub,
    ):
        await sub.subscribe("i", qos=qos)
        yield Innocent(pub, sub, qos)


@pytest.mark.parametrize("qos", [0, 1])
async def test_an_innocent_tenant_does_not_wait_for_one_that_is_stuck(qos: int) -> None:
    """All that it sends arrives while the other's publishers stand still, and it never waits."""
    async with process() as relay, stuck(relay), innocent(relay, qos) as pair:
        for _ in range(25):
            await pair.window()
        assert pair.got == 25 * WINDOW
        assert await relay.waits_of("innocent") == 0
        seen = await relay.tenant("stuck")
        assert seen["debt"]["items"] > SERVER_LIMIT
        # Not more than twice what the server may, and what one packet of each causes.
        assert seen["debt"]["items"] <= 2 * SERVER_LIMIT + 2 * STUCK
        assert (await relay.tenant("innocent"))["share"]["items"] >= SERVER_LIMIT // 2


@needs_mosquitto
async def test_mosquittos_clients_do_not_wait_either() -> None:
    count = 1000
    async with process() as relay, stuck(relay), trio.open_nursery() as nursery:
        common = ("-p", str(relay.port), "-u", "innocent", "-t", "i", "-q", "1")
        found: list[bytes] = []

        async def subscribe() -> None:
            argv = ["mosquitto_sub", *common, "-C", str(count)]
            done = await trio.run_process(argv, capture_stdout=True, deliver_cancel=kill)
            found.extend(done.stdout.split())

        with trio.fail_after(SECONDS):
            nursery.start_soon(subscribe)
            # The stuck one's subscription, and this.
            two = 'clearfunds_subscriptions{transport="mqtt"} 2.0'
            while two not in await fetch(f"{relay.http}/metrics"):  # noqa: ASYNC110
                await trio.sleep(0.05)
            lines = b"".join(b"%d\n" % n for n in range(count))
            await run_fed(["mosquitto_pub", *common, "-l"], lines)
            while len(found) < count:  # noqa: ASYNC110
                await trio.sleep(0.05)
        assert found == [b"%d" % n for n in range(count)]


@pytest.mark.long
async def test_an_innocent_tenant_keeps_its_rate_next_to_one_that_is_stuck() -> None:
    """At least 0.95 of what it has in a relay in which nobody is stuck, with the same offered."""
    async with (
        process() as relay,
        process() as beside,
        stuck(relay),
        innocent(relay) as next_to_stuck,
        innocent(beside) as alone,
    ):
        began = trio.current_time()

        async def offer(pair: Innocent) -> None:
            while True:
                await pair.window()
                await trio.sleep_until(began + pair.got / RATE)

        with trio.move_on_after(20):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(offer, next_to_stuck)
                nursery.start_soon(offer, alone)
        assert next_to_stuck.got >= 0.95 * alone.got
        assert alone.got > 5 * RATE
        assert await relay.waits_of("innocent") == 0
