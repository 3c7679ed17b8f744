"""A relay whose settings change while it runs, for clients that are connected and for others."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import attrs
import pytest
import trio

from clearfunds.access import AccountLimit, AccountRate, Tenant
from clearfunds.accounts import Account, Limit, RateLimit, StuckPolicy
from clearfunds.accounts.limits._latency_limit import LatencyControl
from clearfunds.relay import AdjustError, Adjusting, RelaySettings, serve_relay
from clearfunds.transports import PublicationPolicy, SubscriptionPolicy
from clearfunds.transports.mqtt import PubAck, Publish, encode
from clearfunds.transports.mqtt.codec._reasons import Reason
from tests.transports.amqp.clients import AMQP, client
from tests.transports.mqtt.peers5 import connected5
from tests.transports.peers import RunningRelay, connected, running, until
from tests.transports.syndicate.relay.peers import TCP

MQTT = "mqtt+tcp://127.0.0.1:0"
PRESS = Tenant(name="press", user=("press",), weight=3.0, items=50, user_items=20)


@attrs.frozen
class Adjusted:
    """A relay, and what changes its settings."""

    relay: RunningRelay
    adjusting: Adjusting

    def reload(self, **settings: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Configure it anew, with some settings that differ from those it started with."""
        done = self.adjusting.reload(attrs.evolve(self.adjusting.started, **settings))
        self.relay.audit()
        return done.changed, done.unchanged


@asynccontextmanager
async def adjustable(**settings: Any) -> AsyncGenerator[Adjusted]:
    settings.setdefault("listen", (MQTT,))
    adjusting = Adjusting(RelaySettings(**settings))
    async with running(serve=partial(serve_relay, adjusting=adjusting), **settings) as relay:
        yield Adjusted(relay, adjusting)


def limit_of(account: Account) -> tuple[int | None, int | None]:
    return account.limit.items, account.limit.bytes


async def test_limits_of_connections_change_for_those_that_exist_and_those_that_come() -> None:
    async with adjustable(limit_items=100, limit_bytes=1_000) as here:
        async with connected(here.relay.port, "a"), connected(here.relay.port, "b"):
            rule = AccountLimit("b", 7, 70)
            assert here.reload(limit_items=200, account_limit=(rule,)) == (
                ("limit_items", "account_limit"),
                (),
            )
            assert limit_of(here.relay.account("a")) == (200, 1_000)
            assert limit_of(here.relay.account("b")) == (7, 70)
            async with connected(here.relay.port, "c"), connected(here.relay.port, "b"):
                assert limit_of(here.relay.account("c")) == (200, 1_000)
                assert limit_of(here.relay.account("b")) == (7, 70)
        assert here.adjusting.settings.limit == Limit(items=200, bytes=1_000)


async def test_publishers_that_wait_go_on_when_their_limit_is_raised() -> None:
    async with (
        adjustable(limit_items=10, limit_bytes=None, profile="lossless", patience=1000.0) as here,
        connected(here.relay.port, "stuck", receive_buffer=4096) as stuck,
        connected(here.relay.port, "pub") as publisher,
    ):
        await stuck.subscribe("t")
        account = here.relay.account("pub")
        packet = encode(Publish("t", bytes(50_000)))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(publisher.stream.send_all, packet * 200)
            await until(lambda: account.waiting)
            before = here.relay.relay.mqtt.counters.received
            here.reload(limit_items=100)
            await until(lambda: here.relay.relay.mqtt.counters.received > before + 50)
            assert account.debt_items > 50
            here.reload(limit_items=None)
            await until(lambda: here.relay.relay.mqtt.counters.received == 200)
        await stuck.publications(200)


async def test_rates_change_and_the_same_rate_goes_on_with_its_tokens() -> None:
    async with (
        adjustable(rate=(AccountRate("a", 10),)) as here,
        connected(here.relay.port, "a"),
        connected(here.relay.port, "b"),
    ):
        a, b = here.relay.account("a"), here.relay.account("b")
        assert a.gate is not None
        bucket = a.gate.bucket
        here.reload(rate=(AccountRate("a", 10), AccountRate("b", None, 5.0)))
        assert a.gate.bucket is bucket
        assert b.rate == RateLimit(items_per_s=None, bytes_per_s=5.0)
        assert here.reload(rate=()) == (("rate",), ())
        assert a.rate is None
        assert b.gate is not None
        assert b.gate.bucket is None


async def test_amounts_of_tenants_and_of_their_users_change() -> None:
    async with (
        adjustable(tenant=(PRESS,)) as here,
        connected(here.relay.port, "a", username="press"),
    ):
        user = here.relay.account("a").parent
        assert user is not None
        tenant = user.parent
        assert tenant is not None
        assert (tenant.name, tenant.weight) == ("tenant/press", 3.0)
        other = attrs.evolve(
            PRESS, weight=None, items=None, bytes=99, rate=4.0, user_items=5, user_bytes=6
        )
        assert here.reload(tenant=(other,)) == (("tenant",), ())
        assert (limit_of(tenant), tenant.weight) == ((None, 99), 1.0)
        assert tenant.rate == RateLimit(items_per_s=4.0, bytes_per_s=None)
        assert limit_of(user) == (5, 6)
        async with connected(here.relay.port, "b", username="press"):
            assert here.relay.account("b").parent is user


@pytest.mark.parametrize(
    "other",
    [
        attrs.evolve(PRESS, user=("press", "radio")),
        attrs.evolve(PRESS, user_items=None),
        attrs.evolve(PRESS, latency=0.1),
        attrs.evolve(PRESS, kept=1),
        attrs.evolve(PRESS, default=True),
    ],
)
async def test_who_belongs_to_a_tenant_does_not_change(other: Tenant) -> None:
    async with adjustable(tenant=(PRESS,)) as here:
        other = attrs.evolve(other, items=1)
        assert here.reload(tenant=(other,), limit_items=3) == (("limit_items",), ("tenant",))
        assert limit_of(here.relay.ledger.accounts["tenant/press"])[0] == 50


async def test_the_servers_limits_change() -> None:
    async with adjustable() as here:
        here.reload(
            server_limit_items=4, server_limit_bytes=None, max_connections=2, grace=1.5,
            connections_per_address=2, connections_per_user=1, connect_rate=None,
        )  # fmt: skip
        assert limit_of(here.relay.ledger.accounts["server"]) == (4, None)
        admission = here.relay.relay.admission
        assert (admission.limit, admission.addresses.most, admission.users.most) == (2, 2, 1)
        assert admission.rate.rate is None
        assert here.relay.relay.settings.grace == 1.5


async def test_policies_for_slow_consumers_change() -> None:
    async with (
        adjustable(profile="lossless", patience=1000.0) as here,
        connected(here.relay.port, "a") as client_a,
    ):
        await client_a.subscribe("t")
        (session,) = here.relay.relay.mqtt.open
        assert session.outlet.patience == 1000.0
        rule = SubscriptionPolicy("a", "#", "drop_oldest", 2.0)
        here.reload(subscription_policy=(rule,), behind_items=3, behind_bytes=None)
        assert (session.outlet.patience, session.outlet.policy) == (2.0, StuckPolicy.DROP_OLDEST)
        assert session.outlet.retain_limit == Limit(items=3, bytes=None)
        here.reload(stuck="wait", patience=5.0)
        assert (session.outlet.patience, session.outlet.policy) == (5.0, StuckPolicy.WAIT)


async def test_a_stuck_subscriber_is_cut_off_when_its_patience_is_shortened() -> None:
    async with (
        adjustable(limit_items=5, stuck="disconnect", patience=1000.0) as here,
        connected(here.relay.port, "stuck", receive_buffer=4096) as stuck,
        connected(here.relay.port, "pub") as publisher,
    ):
        await stuck.subscribe("t")
        account = here.relay.account("pub")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(publisher.stream.send_all, encode(Publish("t", bytes(50_000))) * 99)
            await until(lambda: account.waiting)
            here.reload(patience=0.1)
            await until(lambda: here.relay.relay.mqtt.counters.received == 99)
        await until(lambda: len(here.relay.relay.mqtt.open) == 1)


async def test_a_publisher_that_waited_is_refused_after_a_change() -> None:
    lossless: dict[str, Any] = {"profile": "lossless", "limit_items": 5, "patience": 1000.0}
    async with (
        adjustable(**lossless) as here,
        connected(here.relay.port, "stuck", receive_buffer=4096) as stuck,
        connected5(here.relay.port, "pub") as publisher,
    ):
        await stuck.subscribe("t")
        refusal = PublicationPolicy("pub", "#", "refuse")
        here.reload(publication_policy=(refusal,))
        answers = f"{here.relay.account('pub').name}@answers"
        received = here.relay.relay.mqtt.counters
        count = 0
        while here.relay.account("pub").funds_are_clear():
            count += 1
            await publisher.publish("t", bytes(50_000))
            await until(lambda: received.received == count)  # noqa: B023
        await publisher.publish("t", b"", 1)
        answer = await publisher.next()
        assert isinstance(answer, PubAck)
        assert answer.reason == Reason.QUOTA_EXCEEDED
        # Its answers have an account with the same limit.
        assert limit_of(here.relay.ledger.accounts[answers])[0] == 5
        here.reload(publication_policy=(refusal,), limit_items=6)
        assert limit_of(here.relay.ledger.accounts[answers])[0] == 6
        # Without the policy it waits again.
        here.reload()
        before = received.received
        await publisher.publish("t", b"late", 1)
        await trio.sleep(0.1)
        assert received.received == before
        await stuck.publications(count + 1)
        assert await publisher.next() == PubAck(1)


async def test_clients_of_amqp_and_syndicate_have_changed_limits_too() -> None:
    async with adjustable(listen=(AMQP, TCP), limit_items=50) as here:
        ports = [int(url.rpartition(":")[2]) for url in here.relay.addresses.listening]
        syndicate = await trio.open_tcp_stream("127.0.0.1", ports[1])
        async with syndicate, client(here.relay):
            relay = here.relay.relay
            assert relay.amqp is not None
            assert relay.syndicate is not None
            sides = relay.amqp, relay.syndicate
            await until(lambda: all(len(side.open) == 1 for side in sides))
            rule = PublicationPolicy("*", "#", "shed")
            here.reload(limit_items=60, patience=7.0, stuck="wait", publication_policy=(rule,))
            for side in sides:
                (session,) = side.open
                assert session.account is not None
                assert session.account.limit.items == 60
                assert session.outlet.patience == 7.0
                assert session.outlet.policy is StuckPolicy.WAIT
            here.relay.audit()


async def test_a_limit_that_follows_a_latency_gets_another_ceiling() -> None:
    async with (
        adjustable(limit_latency=0.1, limit_items=500) as here,
        connected(here.relay.port, "a"),
    ):
        account = here.relay.account("a")
        assert account.control is not None
        moved = account.limit
        here.reload(limit_items=2)
        assert account.control is not None
        assert account.limit.items == 2
        here.reload(account_limit=(AccountLimit("a", 40),))
        assert account.control is None
        assert account.limit.items == 40
        assert moved.items is not None


async def test_a_limit_that_was_fixed_follows_the_latency_again() -> None:
    press = attrs.evolve(PRESS, latency=0.3)
    fixed = AccountLimit("*", 40)
    async with (
        adjustable(limit_latency=0.1, tenant=(press,), account_limit=(fixed,)) as here,
        connected(here.relay.port, "a"),
        connected(here.relay.port, "b", username="press"),
    ):
        a, b = here.relay.account("a"), here.relay.account("b")
        assert a.control is None
        here.reload(account_limit=(), limit_items=500)
        targets: list[float] = []
        for account in (a, b):
            assert isinstance(account.control, LatencyControl)
            assert account.control.policy.ceiling.items == 500
            targets.append(account.control.policy.target)
        assert targets == [0.1, 0.3]


async def test_a_change_while_the_relay_starts_is_in_force_when_it_runs() -> None:
    settings = RelaySettings(listen=(MQTT,), limit_items=50)
    adjusting = Adjusting(settings)
    adjusting.reload(attrs.evolve(settings, limit_items=60, server_limit_items=600))
    serve = partial(serve_relay, adjusting=adjusting)
    async with (
        running(serve=serve, listen=(MQTT,), limit_items=50) as relay,
        connected(relay.port, "a"),
    ):
        assert relay.account("a").limit.items == 60
        assert relay.ledger.accounts["server"].limit.items == 600


async def test_a_configuration_with_a_mistake_changes_nothing() -> None:
    async with adjustable(listen=(MQTT, TCP), limit_items=50) as here:
        with pytest.raises(AdjustError, match="does not apply to Syndicate's peers"):
            here.reload(limit_items=60, stuck="conflate")
        assert here.adjusting.settings == here.adjusting.started
        assert here.relay.relay.settings.limit_items == 50


async def test_what_cannot_change_is_named_and_stays() -> None:
    async with adjustable() as here:
        done = here.reload(max_inflight=3, fair=False, limit_items=9)
        assert done == (("limit_items",), ("max_inflight", "fair"))
        assert here.relay.relay.mqtt.settings.max_inflight != 3


# -- by hand ---------------------------------------------------------------------------------------


async def test_limits_by_hand_stand_before_the_configuration_and_stay() -> None:
    async with adjustable(tenant=(PRESS,), limit_items=50, limit_bytes=None) as here:
        async with connected(here.relay.port, "a[1]"):
            name = here.relay.account("a[1]").name
            here.adjusting.set_limit(name, items=3, nbytes=None)
            here.adjusting.set_limit("server", items=30, nbytes=300)
            here.adjusting.set_limit("tenant/press", items=7, nbytes=None)
            here.adjusting.set_weight("tenant/press", 9)
            here.reload(limit_items=60, server_limit_bytes=1)
            assert limit_of(here.relay.account("a[1]")) == (3, None)
            # A client that comes again has it, too.
            async with connected(here.relay.port, "a[1]"):
                assert limit_of(here.relay.account("a[1]")) == (3, None)
        assert limit_of(here.relay.ledger.accounts["server"]) == (30, 300)
        press = here.relay.ledger.accounts["tenant/press"]
        assert (limit_of(press), press.weight) == ((7, None), 9)


async def test_of_a_limit_that_adapts_what_it_is_at_most_is_kept() -> None:
    async with (
        adjustable(limit_latency=0.1, limit_items=500, limit_bytes=1_000_000) as here,
        connected(here.relay.port, "a"),
    ):
        account = here.relay.account("a")
        assert account.limit.bytes != 1_000_000
        here.adjusting.set_limit(account.name, items=7)
        assert limit_of(account) == (7, 1_000_000)


async def test_policies_by_hand_replace_those_for_the_same_clients_and_topics() -> None:
    async with (
        adjustable(profile="lossless") as here,
        connected(here.relay.port, "a") as client_a,
    ):
        await client_a.subscribe("t")
        (session,) = here.relay.relay.mqtt.open
        for word in ("drop_newest", "drop_oldest"):
            here.adjusting.set_policy(SubscriptionPolicy("a", "#", word, 2.0))
        assert session.outlet.policy is StuckPolicy.DROP_OLDEST
        assert len(here.adjusting.settings.subscription_policy) == 1
        here.adjusting.set_policy(PublicationPolicy("a", "#", "shed"))
        assert here.adjusting.settings.publication_policy[0].client == "a"


@pytest.mark.parametrize(
    ("name", "items", "why"),
    [
        ("mqtt:1883/-/nobody", 5, "no client with the account mqtt:1883/-/nobody is connected"),
        ("tenant/radio", 5, "there is no tenant .* tenants: tenant/press"),
        ("tenant/press/ann", 5, "set for all of them, by user_items"),
        ("server", 0, "at least 1"),
    ],
)
async def test_limits_that_cannot_be_set_by_hand(name: str, items: int, why: str) -> None:
    async with adjustable(tenant=(PRESS,)) as here:
        with pytest.raises(AdjustError, match=why):
            here.adjusting.set_limit(name, items=items, nbytes=None)
        assert here.adjusting.settings == here.adjusting.started


async def test_weights_that_cannot_be_set_by_hand() -> None:
    async with adjustable(tenant=(PRESS,)) as here:
        for name, weight in (("server", 2.0), ("tenant/press", 0.0), ("tenant/x", 1.0)):
            with pytest.raises(AdjustError):
                here.adjusting.set_weight(name, weight)


async def test_a_policy_by_hand_that_does_not_fit_is_taken_back() -> None:
    async with adjustable(listen=(MQTT, TCP)) as here:
        tight = attrs.evolve(here.adjusting.started, listen=("no url",))
        here.adjusting._configured = tight  # pyright: ignore[reportPrivateUsage]
        with pytest.raises(AdjustError, match="no url"):
            here.adjusting.set_policy(SubscriptionPolicy("*", "#", "conflate"))
        assert here.adjusting.settings is tight
        assert here.relay.relay.settings.subscription_policy == ()


async def test_settings_by_hand_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clearfunds.relay._adjusting.BY_HAND_MAX", 2)
    async with adjustable() as here:
        for number in range(2):
            here.adjusting.set_policy(PublicationPolicy(f"c{number}", "#", "shed"))
        with pytest.raises(AdjustError, match="which is the limit"):
            here.adjusting.set_policy(PublicationPolicy("c2", "#", "shed"))
        here.adjusting.set_policy(PublicationPolicy("c1", "#", "refuse"))


@pytest.fixture
def level() -> Generator[None]:
    logger = logging.getLogger("clearfunds")
    before = logger.level
    yield
    logger.setLevel(before)


@pytest.mark.usefixtures("level")
def test_the_log_level_is_set_at_once() -> None:
    Adjusting(RelaySettings()).set_log_level("error")
    assert logging.getLogger("clearfunds").level == logging.ERROR
