"""Tenants in a relay: whose account pays for what a connection does, and what that bounds."""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import trio

from clearfunds.access import AccountLimit, AccountRate, Tenant
from clearfunds.access._account_tree import AccountTree
from clearfunds.access._tenants import Peer
from clearfunds.accounts import DEFAULT_LIMIT_ITEMS, Account, Ledger, Limit
from clearfunds.transports.mqtt import ConnAck, Connect, Publish, Will, encode
from tests.transports.peers import (
    BareClient,
    RunningRelay,
    connected,
    dial,
    frames,
    running,
    until,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

LITTLE = 4096
LARGE = bytes(200_000)

PRESS = Tenant(name="press", user=("press",), weight=3.0, items=5_000, bytes=64 << 20)
WEATHER = Tenant(name="weather", topic=("weather/#",))
REST = Tenant(name="rest", default=True)


def line(account: Account) -> list[str]:
    """The names of an account and of those above it."""
    return [each.name for each in account.chain]


@asynccontextmanager
async def world(**settings: Any) -> AsyncGenerator[tuple[RunningRelay, AsyncExitStack]]:
    """Run a relay, and have a stack for clients' connections."""
    settings.setdefault("tenant", (WEATHER, PRESS))
    async with running(**settings) as relay, AsyncExitStack() as stack:
        yield relay, stack


async def user(
    relay: RunningRelay, stack: AsyncExitStack, client: str, name: str | None = None
) -> BareClient:
    return await stack.enter_async_context(connected(relay.port, client, username=name))


async def test_accounts_stand_under_their_tenants() -> None:
    async with (
        running(tenant=(PRESS, REST), limit_items=7) as relay,
        connected(relay.port, "a", username="press"),
        connected(relay.port, "b", username="other"),
    ):
        port = relay.port
        a, b = relay.account("a"), relay.account("b")
        assert line(a) == [f"mqtt:{port}/press/a", "tenant/press", "server"]
        assert line(b) == [f"mqtt:{port}/other/b", "tenant/rest", "server"]
        press, server = a.chain[1:]
        assert press.limit == Limit(items=5_000, bytes=64 << 20)
        assert press.weight == 3.0
        assert press.shared
        assert server.shared
        assert a.limit.items == 7
        assert relay.ledger.accounts["tenant/rest"].limit == Limit(items=None, bytes=None)


async def test_without_tenants_there_are_none() -> None:
    async with running() as relay, connected(relay.port, "a", username="press"):
        assert line(relay.account("a")) == [f"mqtt:{relay.port}/press/a", "server"]


async def test_who_is_no_tenants_is_beside_them() -> None:
    async with running(tenant=(PRESS,)) as relay, connected(relay.port, "a"):
        assert line(relay.account("a")) == [f"mqtt:{relay.port}/-/a", "server"]


async def test_users_have_accounts_while_they_are_there() -> None:
    tenant = Tenant(name="press", client=("*",), user_items=50, user_rate=1_000.0)
    async with running(tenant=(tenant,)) as relay:
        name = "tenant/press/ann"
        async with (
            connected(relay.port, "a", username="ann"),
            connected(relay.port, "b", username="ann"),
            connected(relay.port, "c", username="bob"),
        ):
            a, b, c = map(relay.account, "abc")
            ann = relay.ledger.accounts[name]
            assert a.parent is b.parent is ann
            assert line(c)[1:] == ["tenant/press/bob", "tenant/press", "server"]
            assert ann.limit == Limit(items=50, bytes=None)
            assert ann.shared
            assert ann.rate is not None
            assert ann.rate.items_per_s == 1_000
        await until(lambda: name not in relay.ledger.accounts)
        assert "tenant/press" in relay.ledger.accounts


async def test_a_limit_by_account_counts_beside_the_tenants() -> None:
    limit = AccountLimit("mqtt:*/press/a", 3)
    async with (
        running(tenant=(PRESS,), account_limit=(limit,)) as relay,
        connected(relay.port, "a", username="press"),
        connected(relay.port, "b", username="press"),
    ):
        assert relay.account("a").limit.items == 3
        assert relay.account("b").limit.items == DEFAULT_LIMIT_ITEMS
        assert relay.account("a").parent is relay.account("b").parent


@pytest.mark.rule(14)
async def test_names_that_look_alike_are_not_taken_for_each_other() -> None:
    """Rule 14: what is owed stays with the tenant under whom it was caused."""
    entries = (Tenant(name="one", user=("a",)), Tenant(name="two", user=("a/b",)))
    async with (
        running(tenant=entries, profile="lossless") as relay,
        connected(relay.port, "b/c", username="a"),
        connected(relay.port, "c", username="a/b"),
    ):
        one, two = relay.account("b/c"), relay.account("c")
        assert one.parent is not None
        assert two.parent is not None
        assert (one.parent.name, two.parent.name) == ("tenant/one", "tenant/two")
        assert one.name == f"mqtt:{relay.port}/a/b/c"
        assert two.name == f"mqtt:{relay.port}/a%2Fb/c"


def test_who_may_go_on_has_room() -> None:
    """Or a session would look again, for ever, without waiting."""
    ledger = Ledger()
    server = ledger.open("server", limit=Limit(items=60, bytes=None), shared=True)
    tree = AccountTree(server, (Tenant(name="t", default=True, users=True),))
    accounts = [
        tree.open(peer, tree.of(peer).tenant, Limit())
        for number in range(6)
        for peer in (Peer("m", f"u{number % 2}", str(number)),)
    ]
    owed = (30, 20, 9, 8, 0, 0)
    for account, items in zip(accounts, owed, strict=True):
        if items:
            account.borrow(items, 0)
    clear = [account.funds_are_clear() for account in accounts]
    assert True in clear
    assert False in clear
    assert [min(account.room()) >= 0 for account in accounts] == clear
    for account, items in zip(accounts, owed, strict=True):
        account.repay(items, 0)


def test_one_tenants_connections_stuck_one_after_the_other_leave_others_their_part() -> None:
    """Each has its part when it gets stuck, which is smaller with each: in all, a series."""
    ledger = Ledger()
    server = ledger.open("server", limit=Limit(items=600, bytes=None), shared=True)
    tree = AccountTree(
        server, (Tenant(name="t", client=("t*",)), Tenant(name="rest", default=True))
    )

    def opened(client: str) -> Account:
        peer = Peer("m", "-", client)
        return tree.open(peer, tree.of(peer).tenant, Limit(items=None, bytes=None))

    stuck = [opened(f"t{number}") for number in range(12)]
    for account in stuck:
        while account.funds_are_clear():
            account.borrow(1, 0)
    assert server.debt_items <= 900 + len(stuck)
    innocent = opened("innocent")
    while innocent.debt_items < 200:
        assert innocent.funds_are_clear()
        innocent.borrow(1, 0)
    for account in (*stuck, innocent):
        if account.debt_items:
            account.repay(account.debt_items, 0)


# -- by topic -------------------------------------------------------------------------------------


async def stuck(relay: RunningRelay, stack: AsyncExitStack, topic: str) -> None:
    """Let somebody subscribe who reads nothing, and fill what is between us and him."""
    sub = await stack.enter_async_context(connected(relay.port, "stuck", receive_buffer=LITTLE))
    await sub.subscribe(topic)
    filler = await stack.enter_async_context(connected(relay.port, "filler", username="filler"))
    await until(lambda: "filler" in relay.relay.mqtt.sessions)
    outlet = relay.relay.mqtt.sessions["stuck"].outlet
    while not outlet.blocked:
        await filler.publish(topic.removesuffix("/#"), LARGE)
        await trio.sleep(0.01)


async def test_publications_are_charged_by_topic() -> None:
    async with world() as (relay, stack):
        await stuck(relay, stack, "weather/#")
        pub = await user(relay, stack, "pub", "press")
        data = frames([("weather/x", b"1"), ("news", b"2"), ("weather/x", b"3"), ("$x", b"4")])
        await pub.stream.send_all(data * 5)
        session = relay.relay.mqtt.sessions["pub"]
        own = relay.account("pub")
        await until(lambda: relay.relay.mqtt.counters.received >= 20)
        other = relay.ledger.accounts[f"{own.name}@weather"]
        assert line(other)[1:] == ["tenant/weather", "server"]
        assert line(own)[1:] == ["tenant/press", "server"]
        assert other.debt_items == 10
        assert own.debt_items == 0
        # An input and a copy for each; those that concern nobody, and CONNACK.
        assert other.borrowed_items == 20
        assert own.borrowed_items == 10 + 1
        relay.audit()
        assert session.payer is own
        await pub.stream.aclose()
        await until(lambda: session not in relay.relay.mqtt.open)
        # It has gone, and what it owes is still its tenant's.
        assert own.name not in relay.ledger.accounts
        assert other.state == "closing"
        relay.audit()


async def test_who_waits_for_another_tenants_funds_waits_in_order() -> None:
    """The publication at the head of what came says whose funds have to be clear."""
    async with world(limit_items=5) as (relay, stack):
        await stuck(relay, stack, "weather/#")
        sub = await user(relay, stack, "sub")
        await sub.subscribe("news")
        pub = await user(relay, stack, "pub", "press")
        # One more than the limit is let in, and what is before that is not held up by it.
        await pub.stream.send_all(frames([("weather", b"x"), ("news", b"y")] * 20))
        own = relay.account("pub")
        await until(lambda: own.name + "@weather" in relay.ledger.accounts)
        other = relay.ledger.accounts[own.name + "@weather"]
        await until(lambda: other.waiting)
        assert other.debt_items == 6
        assert own.funds_are_clear()
        assert not own.waiting
        session = relay.relay.mqtt.sessions["pub"]
        assert session.payer is other
        assert session.outlet.owner is other
        assert len(await sub.publications(6)) == 6
        assert await sub.silent()
        # With another connection there is no order to keep.
        beside = await user(relay, stack, "beside", "press")
        await beside.publish("news", b"z")
        assert (await sub.publication()).payload == b"z"
        relay.audit()
        # Somebody else takes it: all of it arrives, in order.
        relay.relay.mqtt.sessions["stuck"].cut("for the test")
        assert [p.payload for p in await sub.publications(14)] == [b"y"] * 14
        await until(lambda: session.payer is own)
        await until(lambda: session.outlet.owner is own)


@pytest.mark.parametrize("qos", [1, 2])
async def test_what_is_acknowledged_is_charged_by_topic(qos: int) -> None:
    async with world() as (relay, stack):
        await stuck(relay, stack, "weather/#")
        pub = await user(relay, stack, "pub", "press")
        await pub.publish("weather", b"x", qos, packet_id=1)
        await pub.receive()
        own = relay.account("pub")
        assert relay.ledger.accounts[own.name + "@weather"].debt_items == 1
        await until(lambda: not own.debt_items)


async def test_what_is_retained_stands_on_the_quota_of_who_pays() -> None:
    async with world() as (relay, stack):
        pub = await user(relay, stack, "pub", "press")
        await pub.publish("weather", b"x", retain=True)
        await pub.publish("news", b"y", retain=True)
        await until(lambda: len(relay.relay.dataspace.retained) == 2)
        own = relay.account("pub")
        other = relay.ledger.accounts[own.name + "@weather"]
        assert own.standing().items == other.standing().items == 1


async def test_a_will_is_charged_by_topic() -> None:
    async with world() as (relay, stack):
        await stuck(relay, stack, "weather/#")
        async with connected(
            relay.port, "pub", username="press", will=Will("weather", b"gone", 0, False)
        ):
            own = relay.account("pub")
        name = own.name + "@weather"
        await until(lambda: name in relay.ledger.accounts)
        assert relay.ledger.accounts[name].debt_items == 1
        assert line(relay.ledger.accounts[name])[1:] == ["tenant/weather", "server"]
        relay.audit()


@pytest.mark.rule(11)
async def test_two_who_wait_on_each_other_for_another_tenants_funds_are_a_ring() -> None:
    """Rule 11, where the funds that they wait for are not their own accounts'."""
    entries = (Tenant(name="t", topic=("to/#",)),)
    async with world(tenant=entries, limit_items=4, profile="lossless", patience=3.0) as (
        relay,
        stack,
    ):
        ends: list[BareClient] = []
        for name in "ab":
            client = await stack.enter_async_context(
                connected(relay.port, name, receive_buffer=LITTLE)
            )
            await client.subscribe(f"to/{name}")
            ends.append(client)

        def rings() -> list[int]:
            latest = relay.ledger.incidents.latest()
            return [each.given_up.ring for each in latest if each.given_up is not None]

        async def shout(client: BareClient, to: str) -> None:
            with suppress(trio.BrokenResourceError):
                await client.stream.send_all(encode(Publish(f"to/{to}", LARGE)) * 60)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(shout, ends[0], "b")
            nursery.start_soon(shout, ends[1], "a")
            await until(rings)
            nursery.cancel_scope.cancel()
        assert rings() == [2]


# -- what is kept ---------------------------------------------------------------------------------


@pytest.mark.parametrize("durable", [False, True])
async def test_a_session_is_kept_under_its_tenant(tmp_path: Path, durable: bool) -> None:
    store = str(tmp_path / "store") if durable else None
    root = "disk" if durable else "kept"
    tenant = Tenant(name="press", user=("press",), kept=1 << 20, users=True)
    settings: dict[str, Any] = {"tenant": (tenant,), "store": store, "fsync_interval": 0.0}

    async def visit(port: int, present: bool) -> None:
        async with dial(port) as client:
            connect = Connect("sub", False, 0, "press")
            await client.stream.send_all(client.connection.send(connect))
            await client.expect(ConnAck(present, 0))
            if not present:
                await client.subscribe("t", qos=1)

    async with running(**settings) as relay:
        await visit(relay.port, False)
        await until(lambda: not relay.relay.mqtt.sessions)
        async with connected(relay.port, "pub") as pub:
            await pub.publish("t", b"x", 1)
            queue = relay.ledger.accounts["mqtt/sub"]
            assert line(queue) == ["mqtt/sub", f"{root}/press", root]
            await until(lambda: queue.debt_items)
        assert queue.parent is not None
        assert queue.parent.limit == Limit(items=None, bytes=1 << 20)
        assert relay.ledger.at_rest[queue.parent] == ("disk" if durable else "ram")
        relay.audit()
        if not durable:
            await visit(relay.port, True)
    if durable:
        async with running(**settings) as relay:
            assert line(relay.ledger.accounts["mqtt/sub"]) == ["mqtt/sub", f"{root}/press", root]
            await visit(relay.port, True)
            assert relay.ledger.accounts["mqtt/sub"].debt_items


async def test_who_comes_back_as_another_tenants_user_finds_the_session() -> None:
    entries = (
        Tenant(name="one", user=("a",)),
        Tenant(name="two", user=("b",)),
    )
    async with running(tenant=entries) as relay:
        for user, present in (("a", False), ("b", True), ("a", True)):
            async with dial(relay.port) as client:
                connect = Connect("sub", False, 0, user)
                await client.stream.send_all(client.connection.send(connect))
                await client.expect(ConnAck(present, 0))
                await client.subscribe("t", qos=1)
                account = relay.account("sub")
                assert account.parent is not None
                assert account.parent.name == f"tenant/{'one' if user == 'a' else 'two'}"
            await until(lambda: not relay.relay.mqtt.sessions)
            relay.audit()


# -- rates ----------------------------------------------------------------------------------------


async def test_who_may_publish_so_fast_and_no_faster() -> None:
    rates = (AccountRate("slow", 50), AccountRate("mqtt:*/press/*", 40, 1e6))
    tenant = Tenant(name="press", user=("press",), rate=20.0, rate_bytes=1e6)
    async with (
        running(rate=rates, tenant=(tenant,)) as relay,
        connected(relay.port, "slow") as slow,
        connected(relay.port, "a", username="press"),
        connected(relay.port, "fast") as fast,
    ):
        press = relay.account("a")
        assert press.rate is not None
        assert press.rate.items_per_s == 40
        assert press.parent is not None
        assert press.parent.rate is not None
        assert press.parent.rate.items_per_s == 20
        assert relay.account("fast").rate is None
        account = relay.account("slow")
        assert account.rate is not None
        assert account.rate.items_per_s == 50
        await slow.stream.send_all(frames([("t", b"")] * 300))
        await fast.stream.send_all(frames([("t", b"")] * 300))
        await until(lambda: relay.account("fast").borrowed_items >= 300)
        await until(lambda: account.waiting)
        # A second's worth at once, and one more; and what has come in since.
        assert account.borrowed_items < 300
        waited = relay.statistics().waited_by_reason
        await until(lambda: account.borrowed_items > 60)
        assert relay.statistics().waited_by_reason["rate"] > waited["rate"] >= 0


async def test_a_tenant_may_say_how_old_debt_gets_instead_of_how_much_it_is() -> None:
    tenant = Tenant(name="press", user=("press",), latency=0.05)
    limit = AccountLimit("fixed", 7)
    async with (
        running(tenant=(tenant,), account_limit=(limit,), limit_items=500) as relay,
        connected(relay.port, "a", username="press"),
        connected(relay.port, "fixed", username="press"),
        connected(relay.port, "b"),
    ):
        moved = relay.account("a")
        assert moved.control is not None
        assert moved.control.statistics().target_seconds == 0.05
        assert moved.limit.items is not None
        assert moved.limit.items < 500
        # The closer rule wins: the one that names the account.
        assert relay.account("fixed").control is None
        assert relay.account("fixed").limit.items == 7
        assert relay.account("b").control is None


# -- other protocols ------------------------------------------------------------------------------


async def test_a_syndicate_peer_stands_under_its_tenant() -> None:
    tenant = Tenant(name="graph", listener=("syndicate:*",), client=("127.0.0.1:*",))
    listen = ("mqtt+tcp://127.0.0.1:0", "syndicate+tcp://127.0.0.1:0")
    async with running(tenant=(tenant,), listen=listen) as relay:
        port = int(relay.addresses.listening[1].rpartition(":")[2])
        async with dial(port):
            assert relay.relay.syndicate is not None
            await until(lambda: relay.relay.syndicate and relay.relay.syndicate.open)
            (session,) = relay.relay.syndicate.open
            assert line(session.account)[1:] == ["tenant/graph", "server"]


async def test_a_writer_of_batches_and_a_subscription_stand_under_their_tenants() -> None:
    entries = (
        Tenant(name="etl", client=("nightly-*",)),
        # A writer outlives its connections, and is nobody's user.
        Tenant(name="other", listener=("subscribe:*",), default=True),
    )
    listen = ("mqtt+tcp://127.0.0.1:0", "subscribe+tcp://127.0.0.1:0")
    async with running(tenant=entries, listen=listen) as relay:
        assert relay.relay.readers is not None
        sinks, subscriptions = relay.relay.readers.writing.sinks, relay.relay.readers.subscriptions
        assert line(sinks.open("nightly-1").account)[1:] == ["tenant/etl", "server"]
        assert line(sinks.open("x").account)[1:] == ["tenant/other", "server"]
        subscription = subscriptions.open("nightly-2", ["t"])
        assert line(subscription.account)[1:] == ["tenant/etl", "server"]
        # What is on its way to a reader lets publishers go on: theirs is not to be used up by that.
        assert relay.relay.readers.readers.parent is None
