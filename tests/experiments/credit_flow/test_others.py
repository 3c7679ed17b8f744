"""Credit with what else a relay has: policies, rings, readers of ranges, Syndicate, a journal."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
import trio

from clearfunds.accounts._gate import gate_of
from clearfunds.transports.mqtt import Publish, encode
from experiments.credit_flow import Credit
from tests.experiments.credit_flow.relays import on_credit, scheme
from tests.transports.peers import BareClient, RunningRelay, connected, log_of, running, until
from tests.transports.syndicate.relay.peers import TCP, wire
from tests.transports.syndicate.relay.peers import relay as relay_of_both
from tests.transports.syndicate.relay.test_mqtt_border import published

LITTLE = 4096
SMALL = Credit(20, 10)


def all_given_back(relay: RunningRelay, name: str = "pub") -> None:
    """Whatever `name` has sent and is handled, it has its credit for."""
    reader = scheme(relay).readers[relay.account(name)]
    for station, left in reader.flow.credit_from.items():
        due = SMALL.more_after - station.flow.credit_to.get(reader, SMALL.more_after)
        assert left + due == SMALL.initial, station
    assert not reader.flow.blocked
    relay.audit()


@pytest.mark.parametrize("policy", ["drop_oldest", "drop_newest", "conflate", "spill"])
async def test_a_policy_that_relieves_a_stuck_subscriber_gives_its_senders_credit(
    policy: str, caplog: pytest.LogCaptureFixture
) -> None:
    """And nobody waits on it any more, however much comes for it."""
    async with (
        running(
            profile="lossless", serve=on_credit(reader_outlet=SMALL), patience=0.3, stuck=policy
        ) as relay,
        connected(relay.port, "stuck", receive_buffer=LITTLE) as stuck,
        connected(relay.port, "innocent") as innocent,
        connected(relay.port, "pub") as pub,
    ):
        await stuck.subscribe("t/#")
        await innocent.subscribe("t/#")
        body = bytes(9_990)
        stream = b"".join(encode(Publish(f"t/{n % 5}", b"%06d" % n + body)) for n in range(2000))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(pub.stream.send_all, stream)
            got = await innocent.publications(2000)
        assert [int(p.payload[:6]) for p in got] == list(range(2000))
        assert relay.relay.mqtt.sessions["stuck"].outlet.lagging
        await until(lambda: not relay.account("pub").waiting)
        assert relay.account("pub").debt_items < SMALL.initial
        assert log_of(caplog, "made no progress")
        # It takes what it is given in the end, in order, and is sent to as before.
        found: list[int] = []
        await pub.publish("t/end", b"999999")
        while not found or found[-1] != 999_999:
            packet = await stuck.publication()
            found.append(int(packet.payload[:6]))
        assert found == sorted(found)
        await until(lambda: not relay.account("pub").debt_items)
        all_given_back(relay)


async def test_two_clients_that_block_each_other_are_a_ring_of_two(
    caplog: pytest.LogCaptureFixture,
) -> None:
    answer = {name: encode(Publish(f"to/{name}", bytes(5000))) for name in "xy"}

    async def play(client: BareClient, other: str, serve: int = 0) -> None:
        """Send one for each that comes; a write that blocks keeps it from reading."""
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            await client.stream.send_all(answer[other] * serve)
            part = 0
            while data := await client.stream.receive_some(1 << 16):
                whole, part = divmod(part + len(data), len(answer[other]))
                await client.stream.send_all(answer[other] * whole)

    async with (
        running(profile="lossless", serve=on_credit(reader_outlet=SMALL), patience=1.5) as relay,
        connected(relay.port, "x", receive_buffer=LITTLE) as x,
        connected(relay.port, "y", receive_buffer=LITTLE) as y,
        trio.open_nursery() as nursery,
    ):
        await x.subscribe("to/x")
        await y.subscribe("to/y")
        nursery.start_soon(play, x, "y", 5000)
        nursery.start_soon(play, y, "x")
        await until(lambda: log_of(caplog, "in a ring"))
        (line,) = log_of(caplog, "in a ring")
        assert f"mqtt:{relay.port}/-/x waits on outlet mqtt:{relay.port}/-/y (" in line
        assert f"mqtt:{relay.port}/-/y waits on outlet mqtt:{relay.port}/-/x (" in line
        # One is given up, and the other goes on.
        await until(lambda: len(relay.relay.mqtt.sessions) == 1)
        (left,) = relay.relay.mqtt.sessions
        await until(lambda: not gate_of(relay.account(left)).blockers)
        relay.audit()
        nursery.cancel_scope.cancel()


async def test_what_readers_of_ranges_have_not_acknowledged_takes_credit() -> None:
    listen = ("mqtt+tcp://127.0.0.1:0", "subscribe+tcp://127.0.0.1:0")
    async with running(
        profile="lossless", serve=on_credit(reader_outlet=SMALL), listen=listen
    ) as relay:
        assert relay.relay.readers is not None
        subscriptions = relay.relay.readers.subscriptions
        subscription = subscriptions.open("spark", ["t"])
        async with connected(relay.port, "pub") as pub:
            await pub.stream.send_all(encode(Publish("t", b"x")) * 100)
            account = relay.account("pub")
            for upto in (21, 41, 61, 81):
                await until(lambda upto=upto: subscription.next == upto)  # type: ignore[misc]
                await until(lambda: account.waiting)
                assert gate_of(account).blockers == (subscription.name,)
                subscription.ack(upto)
            await until(lambda: subscription.next == 101)
            subscription.ack(101)
            assert not account.debt_items
            all_given_back(relay)
        subscriptions.drop("spark")
        await until(lambda: not scheme(relay).stations)


async def test_peers_of_syndicate_wait_for_credit_too(tmp_path: Path) -> None:
    path = f"{tmp_path}/mqtt"
    async with (
        relay_of_both(
            listen=(TCP, f"mqtt+unix://{path}"), serve=on_credit(reader_outlet=SMALL)
        ) as served,
        served.peer() as peer,
        connected(path, "stuck") as stuck,
    ):
        await stuck.subscribe("t")
        account = served.account(peer)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(peer.send_raw, wire(published("t", bytes(100_000))) * 100)
            await until(lambda: account.waiting)
            await until(
                lambda: gate_of(account).blockers == (served.running.account("stuck").name,)
            )
            assert SMALL.more_after < account.debt_items <= SMALL.initial
            nursery.start_soon(stuck.publications, 100)
        await until(lambda: not account.debt_items)
        assert not gate_of(account).blockers
        served.audit()
