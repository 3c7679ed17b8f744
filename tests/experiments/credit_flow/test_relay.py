"""A relay whose readers wait for credit: who stops, whom for, and what becomes of it."""

from __future__ import annotations

import json
from contextlib import AsyncExitStack, suppress
from typing import Any

import pytest
import trio

from clearfunds.access import AccountLimit, Tenant
from clearfunds.accounts._gate import gate_of
from clearfunds.relay import RelaySettings
from clearfunds.transports import ListenError
from clearfunds.transports.mqtt import PubAck, Publish, encode
from experiments.credit_flow import Credit
from experiments.credit_flow._processes import Station
from tests.experiments.credit_flow.relays import on_credit, scheme
from tests.transports.peers import (
    BareClient,
    RunningRelay,
    connected,
    fetch,
    frames,
    log_of,
    running,
    until,
)

LITTLE = 4096
"""A receive buffer so small that what a client does not read stays in the relay, soon."""

SMALL = Credit(20, 10)
LARGE = bytes(100_000)


async def blocked(relay: RunningRelay, client_id: str, by: str) -> None:
    """Wait until this client is not read any more, because of that one."""
    account = relay.account(client_id)
    name = relay.account(by).name
    # At first the kernel takes some more.
    while not account.waiting or gate_of(account).blockers != (name,):
        await until(lambda: account.waiting)
        await trio.sleep(0.1)


def nothing_is_kept(relay: RunningRelay) -> None:
    """Of those who have gone nobody knows anything."""
    found = scheme(relay)
    assert not found.readers
    assert not [station for station in found.stations if station.kind != "queue"]
    for station in found.stations:
        assert not station.senders
        assert not station.flow.credit_to
        assert not station.flow.deferred
    relay.audit()


SLOW = encode(Publish("slow", LARGE))
INNOCENT = encode(Publish("innocent", b"x"))


async def flooded(
    stack: AsyncExitStack, nursery: trio.Nursery, relay: RunningRelay, stream: bytes = SLOW * 300
) -> BareClient:
    """Connect one who does not read, and one who publishes to it until nothing more is taken.

    Returns the latter.
    """
    stuck = await stack.enter_async_context(connected(relay.port, "stuck", receive_buffer=LITTLE))
    await stuck.subscribe("slow")
    pub = await stack.enter_async_context(connected(relay.port, "pub"))
    nursery.start_soon(send, pub, stream)
    await blocked(relay, "pub", "stuck")
    return pub


async def send(client: BareClient, data: bytes) -> None:
    """Send until it is all taken, or the connection has ended."""
    with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
        await client.stream.send_all(data)


async def test_who_publishes_to_one_that_does_not_read_is_stopped_at_its_credit() -> None:
    """As many messages as its credit are in the outlet, with all that a limit would not allow."""
    async with (
        running(profile="lossless", serve=on_credit(reader_outlet=SMALL)) as relay,
        AsyncExitStack() as stack,
        trio.open_nursery() as nursery,
    ):
        await flooded(stack, nursery, relay)
        account = relay.account("pub")
        assert SMALL.more_after < account.debt_items <= SMALL.initial
        assert account.debt_bytes > 1_000_000
        assert account.state == "flow"
        assert account.limit.items is None
        statement = account.statistics()
        assert statement.waiting == 1
        assert statement.waited_by_reason["blocked"] > 0
        assert sum(statement.waited_by_reason.values()) == statement.waited_by_reason["blocked"]
        reader = scheme(relay).readers[account]
        assert [station.name for station in reader.flow.blockers] == [relay.account("stuck").name]
        assert list(reader.flow.credit_from.values())[-1] == 0
        relay.audit()
        nursery.cancel_scope.cancel()


async def test_an_innocent_topic_on_the_same_connection_is_stopped_too() -> None:
    """And that of another connection is not."""
    async with (
        running(profile="lossless", serve=on_credit(reader_outlet=SMALL)) as relay,
        AsyncExitStack() as stack,
        trio.open_nursery() as nursery,
        connected(relay.port, "innocent") as innocent,
        connected(relay.port, "other") as other,
    ):
        await innocent.subscribe("innocent")
        await flooded(stack, nursery, relay, (SLOW + INNOCENT) * 300)
        account = relay.account("pub")
        # One came for each that the other was sent, but for the last of those, which blocks; the
        # sender's own CONNACK makes the sum even.
        sent = scheme(relay).readers[account].flow.sums().sent
        got = await innocent.publications(sent // 2 - 1)
        assert {p.payload for p in got} == {b"x"}
        assert await innocent.silent(0.3)
        assert account.waiting
        await other.publish("innocent", b"of another connection")
        assert (await innocent.publication()).payload == b"of another connection"
        assert await innocent.silent(0.1)
        nursery.cancel_scope.cancel()


async def test_what_the_kernel_takes_lets_the_reader_go_on_and_all_arrives_in_order() -> None:
    async with (
        running(profile="lossless", serve=on_credit(reader_outlet=SMALL)) as relay,
        connected(relay.port, "slow", receive_buffer=LITTLE) as slow,
        connected(relay.port, "quick") as quick,
        connected(relay.port, "pub") as pub,
    ):
        await slow.subscribe("t/#")
        await quick.subscribe("t/#")
        published = [(f"t/{n % 7}", b"%06d" % n + bytes(n * 37 % 5000)) for n in range(1500)]
        got: list[list[tuple[str, bytes]]] = []

        async def read(client: BareClient) -> None:
            found = [(p.topic, p.payload) for p in await client.publications(len(published))]
            got.append(found)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send, pub, frames(published))
            await blocked(relay, "pub", "slow")
            nursery.start_soon(read, quick)
            nursery.start_soon(read, slow)
        assert got == [published, published]
        await until(lambda: not relay.account("pub").debt_items)
        # Never more to anybody than its credit, and no credit that was not given back.
        reader = scheme(relay).readers[relay.account("pub")]
        assert reader.flow.sums().overdrawn == 0
        for station, left in reader.flow.credit_from.items():
            due = SMALL.more_after - station.flow.credit_to[reader]
            assert left + due == SMALL.initial
        assert not reader.flow.blocked
        assert gate_of(relay.account("pub")).blockers == ()


@pytest.mark.parametrize("how", ["reset", "given up"])
async def test_a_subscriber_that_goes_blocks_nobody_any_more(
    how: str, caplog: pytest.LogCaptureFixture
) -> None:
    patience = 0.5 if how == "given up" else 20.0
    async with (
        running(
            profile="lossless", serve=on_credit(reader_outlet=SMALL), patience=patience
        ) as relay,
        AsyncExitStack() as stack,
        trio.open_nursery() as nursery,
        connected(relay.port, "innocent") as innocent,
    ):
        await innocent.subscribe("innocent")
        await flooded(stack, nursery, relay, SLOW * 300 + INNOCENT)
        if how == "reset":
            relay.relay.mqtt.sessions["stuck"].cut("the test wants it")
        assert (await innocent.publication()).payload == b"x"
        assert "stuck" not in relay.relay.mqtt.sessions
        assert gate_of(relay.account("pub")).blockers == ()
        reader = scheme(relay).readers[relay.account("pub")]
        assert len(reader.flow.credit_from) == 2  # its own outlet, and the innocent's
        assert bool(log_of(caplog, "pub waits for")) == (how == "given up")
        relay.audit()
        nursery.cancel_scope.cancel()
    nothing_is_kept(relay)


async def test_who_publishes_and_goes_is_forgotten_when_it_owes_nothing() -> None:
    """What it has sent is delivered; then nothing of it is left."""
    async with running(profile="lossless", serve=on_credit(reader_outlet=SMALL)) as relay:
        async with connected(relay.port, "slow", receive_buffer=LITTLE) as slow:
            await slow.subscribe("t")
            async with (
                connected(relay.port, "pub") as pub,
                trio.open_nursery() as nursery,
            ):
                nursery.start_soon(send, pub, encode(Publish("t", LARGE)) * 100)
                await blocked(relay, "pub", "slow")
                account = relay.account("pub")
                relay.relay.mqtt.sessions["pub"].cut("the test wants it")
                await until(lambda: "pub" not in relay.relay.mqtt.sessions)
            assert SMALL.more_after < account.debt_items <= SMALL.initial
            account_blockers = scheme(relay).readers[account].flow.blockers[:]
            async with connected(relay.port, "pub"):
                # It has come back before its messages were taken: there is no new credit (rule 14).
                assert relay.account("pub") is account
                assert gate_of(account).blockers
            (station,) = account_blockers
            assert isinstance(station, Station)
            await slow.publications(station.received - 2)  # but for CONNACK and SUBACK
            await until(lambda: account not in scheme(relay).readers)
            assert not account.debt_items
            relay.audit()
        await relay.deserted()
        nothing_is_kept(relay)


@pytest.mark.parametrize("qos", [1, 2])
async def test_what_is_to_be_acknowledged_takes_credit_until_it_is(qos: int) -> None:
    async with (
        running(profile="lossless", serve=on_credit(reader_outlet=SMALL)) as relay,
        connected(relay.port, "sub") as sub,
        connected(relay.port, "pub") as pub,
    ):
        await sub.subscribe("t", qos=1)
        stream = b"".join(encode(Publish("t", b"%d" % n, 1, packet_id=n + 1)) for n in range(60))
        await pub.stream.send_all(stream)
        await blocked(relay, "pub", "sub")
        assert relay.account("pub").debt_items == SMALL.initial
        got = await sub.publications(60, ack=True)
        assert [p.payload for p in got] == [b"%d" % n for n in range(60)]
        for n in range(60):
            await pub.expect(PubAck(n + 1))
        assert qos
    nothing_is_kept(relay)


async def test_with_nothing_to_begin_with_a_hop_hinders_nobody() -> None:
    """{0, 0}, as RabbitMQ has it."""
    async with (
        running(profile="lossless", serve=on_credit(reader_outlet=Credit(0, 0))) as relay,
        AsyncExitStack() as stack,
    ):
        stuck = await stack.enter_async_context(
            connected(relay.port, "stuck", receive_buffer=LITTLE)
        )
        await stuck.subscribe("t")
        async with connected(relay.port, "pub") as pub:
            await pub.stream.send_all(encode(Publish("t", LARGE)) * 200)
            account = relay.account("pub")
            await until(lambda: account.peak_bytes > 150 * len(LARGE))
            assert account.waits == 0
        await stack.aclose()
    nothing_is_kept(relay)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"account_limit": (AccountLimit("a", 1),)}, "--account-limit"),
        ({"tenant": (Tenant(name="press", default=True, items=9),)}, "those of tenant press"),
    ],
)
async def test_limits_that_nobody_would_wait_for_are_refused(
    settings: dict[str, Any], told: str
) -> None:
    with pytest.raises(ListenError, match=told):
        await on_credit()(RelaySettings(**settings))


async def test_a_tenant_that_pays_for_a_topic_is_a_reader_of_its_own() -> None:
    """But one connection is read in order: what comes behind waits all the same."""
    tenants = (Tenant(name="weather", topic=("slow",)),)
    async with (
        running(profile="lossless", serve=on_credit(reader_outlet=SMALL), tenant=tenants) as relay,
        connected(relay.port, "innocent") as innocent,
        connected(relay.port, "stuck", receive_buffer=LITTLE) as stuck,
    ):
        await innocent.subscribe("innocent")
        await stuck.subscribe("slow")
        async with connected(relay.port, "pub") as pub, trio.open_nursery() as nursery:
            nursery.start_soon(send, pub, SLOW * 300 + INNOCENT)
            name = relay.account("pub").name
            await until(lambda: f"{name}@weather" in relay.ledger.accounts)
            payer = relay.ledger.accounts[f"{name}@weather"]
            while gate_of(payer).blockers != (relay.account("stuck").name,) or not payer.waiting:  # noqa: ASYNC110
                await trio.sleep(0.05)
            assert not gate_of(relay.account("pub")).blockers
            assert await innocent.silent(0.1)
            relay.relay.mqtt.sessions["stuck"].cut("the test wants it")
            assert (await innocent.publication()).payload == b"x"
        await until(lambda: payer.name not in relay.ledger.accounts)
        assert payer not in scheme(relay).readers
    nothing_is_kept(relay)


async def test_the_pages_tell_who_blocks_whom() -> None:
    """As the state `flow` and as what was measured; with the chain, where there is one."""
    async with (
        running(
            profile="lossless", serve=on_credit(reader_outlet=SMALL), http="127.0.0.1:0"
        ) as relay,
        AsyncExitStack() as stack,
        trio.open_nursery() as nursery,
    ):
        await flooded(stack, nursery, relay)
        pub, stuck = relay.account("pub").name, relay.account("stuck").name
        page = json.loads(await fetch(f"{relay.addresses.http}/ledger.json"))
        (account,) = [each for each in page["accounts"] if each["name"] == pub]
        assert (account["state"], account["blockers"]) == ("flow", [stuck])
        assert account["limit"] == {"items": None, "bytes": None}
        found = scheme(relay).statistics()
        assert found.kinds["reader"].blocked == 1
        (blocked,) = found.blocked
        assert (blocked.kind, blocked.flow.name, blocked.flow.state) == ("reader", pub, "flow")
        (by,) = blocked.flow.blockers
        assert (by.peer, by.credit) == (stuck, 0)
        assert by.seconds > 0
        (cell,) = [each for each in page["matrix"] if each["account"] == pub]
        assert (cell["holder"], cell["items"]) == (stuck, account["debt"]["items"])
        assert page["audit"]["balanced"]

        text = await fetch(f"{relay.addresses.http}/metrics")
        assert 'clearfunds_credit_processes{process="reader",state="flow"} 1.0' in text
        assert 'clearfunds_credit_blocked_processes{process="reader"} 1.0' in text
        assert 'clearfunds_credit_messages_total{process="outlet"}' in text
        assert 'clearfunds_accounts{state="flow"} 1.0' in text
        (waits,) = [n for n in text.splitlines() if 'throttle_events_total{reason="blocked"' in n]
        assert float(waits.rpartition(" ")[2]) >= 1
        top = json.loads(await fetch(f"{relay.addresses.http}/ledger.json?top=5"))
        (wait,) = top["waits"]
        assert (wait["at"], wait["blockers"]) == (pub, [stuck])
        assert [row["name"] for row in wait["on"]] == [stuck]
        assert wait["on"][0]["enough"]
        nursery.cancel_scope.cancel()


async def test_metrics_of_those_that_are_gone_never_fall() -> None:
    async with running(profile="lossless", serve=on_credit(reader_outlet=SMALL)) as relay:
        async with connected(relay.port, "sub") as sub, connected(relay.port, "pub") as pub:
            await sub.subscribe("t")
            await pub.stream.send_all(encode(Publish("t", b"x")) * 100)
            await sub.publications(100)
            before = scheme(relay).statistics().kinds
            assert before["outlet"].received == 103
            assert before["outlet"].processes == 2
        await relay.deserted()
        after = scheme(relay).statistics().kinds
        assert after["outlet"].received == 103
        assert after["outlet"].processes == after["reader"].processes == 0
        assert after["reader"].sums.sent == 103
