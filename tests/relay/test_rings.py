"""Connections that wait on each other: the ring is found, named and opened (rule 11)."""

from __future__ import annotations

import json
import select
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import attrs
import pytest
import trio

from clearfunds.accounts import Account, Ledger, Limit, Outcome, rings, watch_patience
from clearfunds.transports import Flusher, Link, Outlet, open_flusher
from clearfunds.transports.mqtt import Publish, encode
from tests.transports.peers import BareClient, connected, fetch, log_of, running, until

pytestmark = pytest.mark.rule(11)


MESSAGE_BYTES = 208
MESSAGES = 1000
BUFFER_BYTES = 32 << 10
LIMIT = Limit(items=100)
SECONDS = 20

# -- two echo relays ------------------------------------------------------------------------------


class Echo:
    """A program that sends back what it gets, written with the library as anyone would."""

    def __init__(
        self,
        name: str,
        ledger: Ledger,
        flusher: Flusher,
        sock: socket.socket,
        patience: float,
        in_flight: int,
    ) -> None:
        self.ledger = ledger
        self.link = Link(sock, name)
        self.account: Account = ledger.open(name, limit=LIMIT)
        self.outlet = Outlet(
            ledger, flusher, sock, name, on_broken=self.link.cut, patience=patience
        )
        self.outlet.owner = self.account
        self.in_flight = in_flight
        self.echoed = 0

    async def run(self) -> None:
        """Echo until the other side leaves, or this one is cut off."""
        with self.account:
            try:
                with self.link.scope:
                    await self.echo()
            except OSError:
                pass  # the other side has been cut off
            finally:
                self.outlet.close()
                self.link.close()

    async def echo(self) -> None:
        """As upstream does it: no input is read while too much output is unsent."""
        self.send(self.in_flight)
        part = 0
        while True:
            await self.account.ensure_clear_funds()
            data = await self.link.receive()
            if not data:
                return
            whole, part = divmod(part + len(data), MESSAGE_BYTES)
            self.send(whole)
            self.echoed += whole

    def send(self, messages: int) -> None:
        """Send that many, in a turn for what came in."""
        if messages:
            with self.account.turn(items=messages, nbytes=messages * MESSAGE_BYTES) as turn:
                for _ in range(messages):
                    turn.send(self.outlet, bytes(MESSAGE_BYTES), nbytes=MESSAGE_BYTES)

    @property
    def stuck(self) -> bool:
        """Whether it waits for clear funds, and what it has not sent cannot be sent."""
        writable = select.select([], [self.link.sock], [], 0)[1]
        return bool(self.account.waiting and self.outlet.blocked and not writable)


@attrs.frozen
class Pair:
    """Two of them that send each other the same messages for ever."""

    left: Echo
    right: Echo
    ended: trio.Event

    @property
    def both(self) -> tuple[Echo, Echo]:
        return self.left, self.right

    @property
    def stuck(self) -> bool:
        """Whether neither can do anything any more: a proof, not an impression."""
        return self.left.stuck and self.right.stuck


@asynccontextmanager
async def echoing(
    patience: float, in_flight: int, *ledgers: Ledger
) -> AsyncGenerator[tuple[Pair, trio.Nursery]]:
    """Run a pair, each with a ledger of its own, or both with the one that is given."""
    socks = socket.socketpair()
    for sock in socks:
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
    first, second = ledgers or (Ledger(), Ledger())
    async with open_flusher() as flusher, trio.open_nursery() as nursery:
        pair = Pair(
            Echo("left", first, flusher, socks[0], patience, in_flight),
            Echo("right", second, flusher, socks[1], patience, 0),
            trio.Event(),
        )

        async def run() -> None:
            async with trio.open_nursery() as programs:
                for echo in pair.both:
                    programs.start_soon(echo.run)
            pair.ended.set()

        nursery.start_soon(run)
        yield pair, nursery
        nursery.cancel_scope.cancel()


@pytest.fixture(params=["two processes", "one process"])
def ledgers(request: pytest.FixtureRequest) -> tuple[Ledger, Ledger]:
    """The ledgers of both sides, which may be one."""
    ledger = Ledger()
    return ledger, ledger if request.param == "one process" else Ledger()


async def test_two_echo_relays_stop_for_ever(ledgers: tuple[Ledger, Ledger]) -> None:
    """What the watch is for: without it nothing moves any more, and nobody says so."""
    with trio.fail_after(SECONDS):
        async with echoing(60, MESSAGES, *ledgers) as (pair, _):
            await until(lambda: pair.stuck)
            echoed = [echo.echoed for echo in pair.both]
            members = [ring.members for ledger in set(ledgers) for ring in rings(ledger, still=0)]
            # Each side knows of its own half.
            assert sorted(members) == [("left",), ("right",)]
            await trio.sleep(0.3)
            assert pair.stuck
            assert [echo.echoed for echo in pair.both] == echoed
    balanced(ledgers)


async def test_two_echo_relays_that_stop_are_found_named_and_parted(
    ledgers: tuple[Ledger, Ledger], caplog: pytest.LogCaptureFixture
) -> None:
    with trio.fail_after(SECONDS):
        async with echoing(0.3, MESSAGES, *ledgers) as (pair, nursery):
            await until(lambda: pair.stuck)
            for ledger in set(ledgers):
                nursery.start_soon(watch_patience, ledger)
            await pair.ended.wait()
            assert [echo.link.closed for echo in pair.both] == [True, True]
        balanced(ledgers)
    lines = log_of(caplog, "in a ring")
    assert 1 <= len(lines) <= 2
    for line in lines:
        name = "left" if "outlet left made no progress" in line else "right"
        own = f"{name} waits on what its own peer does not take: outlet {name} ("
        assert f"in a ring of one: {own}" in line
        assert line.endswith("giving it up, its debt is written off")
    assert sum(ledger.repaid_items[Outcome.WRITTEN_OFF] for ledger in set(ledgers)) > 50


async def test_two_echo_relays_with_less_in_flight_are_left_alone(
    ledgers: tuple[Ledger, Ledger], caplog: pytest.LogCaptureFixture
) -> None:
    """They wait all the time, each on what the other has to take; and it does."""
    with trio.fail_after(SECONDS):
        async with echoing(0.3, 150, *ledgers) as (pair, nursery):
            for ledger in set(ledgers):
                nursery.start_soon(watch_patience, ledger)
            await until(lambda: min(echo.echoed for echo in pair.both) > 5_000)
            await trio.sleep(1)
            assert not pair.ended.is_set()
            assert all(rings(ledger) == () for ledger in ledgers)
            assert not caplog.records
    balanced(ledgers)


def balanced(ledgers: tuple[Ledger, Ledger]) -> None:
    """Nothing is owed any more, and the books say so."""
    for ledger in ledgers:
        ledger.audit()
        assert ledger.statistics().debt_items == 0
        assert not ledger.accounts


# -- two clients of one relay ---------------------------------------------------------------------


class Player:
    """A client that answers each publication with one to the other, and reads when it could."""

    def __init__(self, client: BareClient, other: str) -> None:
        self.client = client
        self.answer = encode(Publish(f"to/{other}", bytes(MESSAGE_BYTES)))

    async def play(self, serve: int = 0) -> None:
        """Play until cut off; a write that blocks keeps it from reading."""
        try:
            await self.client.stream.send_all(self.answer * serve)
            part = 0
            while data := await self.client.stream.receive_some(1 << 16):
                whole, part = divmod(part + len(data), len(self.answer))
                await self.client.stream.send_all(self.answer * whole)
        except trio.BrokenResourceError:
            pass


async def test_two_clients_that_wait_on_each_other_are_a_ring_of_two(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The relay sees both halves, names both, and gives up one."""
    serve = 50_000  # more than the kernel keeps for one connection, by far
    async with (
        running(profile="lossless", patience=4.0, limit_items=20, http="127.0.0.1:0") as relay,
        connected(relay.port, "x", receive_buffer=4096) as x,
        connected(relay.port, "y", receive_buffer=4096) as y,
        connected(relay.port, "bystander") as bystander,
    ):
        names = [f"mqtt:{relay.port}/-/{name}" for name in "xy"]
        for name, client in (("x", x), ("y", y), ("bystander", bystander)):
            client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
            await client.subscribe(f"to/{name}")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(Player(x, "y").play, serve)
            nursery.start_soon(Player(y, "x").play, serve)
            await until(lambda: rings(relay.ledger))
            # Before anybody's patience has run out.
            assert not log_of(caplog, "made no progress")
            (ring,) = rings(relay.ledger)
            assert set(ring.members) == set(names)
            page = json.loads(await fetch(f"{relay.addresses.http}/ledger.json"))
            (row,) = page["rings"]
            assert set(row["members"]) == set(names)
            assert page["audit"]["balanced"]
            relay.audit()

            await until(lambda: log_of(caplog, "made no progress"))
            (line,) = log_of(caplog, "made no progress")
            around = ", ".join(
                f"{a} waits on outlet {b} ({on.items} items, {on.bytes} bytes)"
                for a, b, on in zip(
                    names, reversed(names), (wait.on[0] for wait in ring.waits), strict=True
                )
            )
            assert f"in a ring: {around}; giving it up" in line
            await until(lambda: len(relay.relay.mqtt.sessions) == 2)
            # The one that is left is served again, and nothing happens to the others.
            await bystander.publish("to/bystander", b"still here")
            assert (await bystander.publication()).payload == b"still here"
            (left,) = set(relay.relay.mqtt.sessions) - {"bystander"}
            await until(lambda: not relay.account(left).debt_items)
            assert not rings(relay.ledger)
            assert relay.ledger.repaid_items[Outcome.WRITTEN_OFF] > 10
            relay.audit()
            assert len(log_of(caplog, "made no progress")) == 1
            assert set(relay.relay.mqtt.sessions) == {left, "bystander"}
            nursery.cancel_scope.cancel()


async def test_two_clients_that_play_on_are_no_ring(caplog: pytest.LogCaptureFixture) -> None:
    async with (
        running(profile="lossless", patience=0.5, limit_items=5) as relay,
        connected(relay.port, "x") as x,
        connected(relay.port, "y") as y,
    ):
        await x.subscribe("to/x")
        await y.subscribe("to/y")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(Player(x, "y").play, 50)
            nursery.start_soon(Player(y, "x").play, 50)
            await until(lambda: relay.relay.mqtt.counters.received > 20_000)
            await trio.sleep(1)
            assert not log_of(caplog, "ring")
            assert not log_of(caplog, "made no progress")
            assert len(relay.relay.mqtt.sessions) == 2
            nursery.cancel_scope.cancel()


async def test_two_clients_that_owe_each_other_acknowledgements_are_a_ring(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """What is sent with QoS 1 waits for its PUBACK, which comes from who is not read."""
    async with (
        running(profile="lossless", patience=2.0, limit_items=20) as relay,
        connected(relay.port, "x") as x,
        connected(relay.port, "y") as y,
    ):
        for name, client in (("x", x), ("y", y)):
            await client.subscribe(f"to/{name}", qos=1)
        for client, other in ((x, "y"), (y, "x")):
            for n in range(40):
                await client.publish(f"to/{other}", b"%d" % n, 1, packet_id=n + 1)
        await until(lambda: log_of(caplog, "made no progress"))
        (line,) = log_of(caplog, "made no progress")
        _, _, around = line.partition(" in a ring: ")
        for name, other in ("xy", "yx"):
            one, two = f"mqtt:{relay.port}/-/{name}", f"mqtt:{relay.port}/-/{other}"
            assert f"{one} waits on inflight {two} (" in around
        await until(lambda: len(relay.relay.mqtt.sessions) == 1)
        (left,) = relay.relay.mqtt.sessions
        await until(lambda: not relay.account(left).waiting)
        relay.audit()
        assert len(log_of(caplog, "made no progress")) == 1
