"""`$SYS/clearfunds/throttled/CLIENT`: who is not read is told so, and nobody pays for it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import trio

from clearfunds.access import AccountRate
from clearfunds.relay import _throttle_notices
from clearfunds.relay._throttle_notices import NOTICES_ACCOUNT, TOPIC, topic_of
from clearfunds.transports import PublicationPolicy, TopicAccount
from clearfunds.transports.mqtt import Publish, encode
from tests.transports.peers import SECONDS, BareClient, connected, frames, running, until

if TYPE_CHECKING:
    from tests.transports.peers import RunningRelay

LITTLE = 4096
LARGE = bytes(500_000)


async def notice(client: BareClient) -> tuple[str, dict[str, Any]]:
    """Return the next message: what it is about, and what it says."""
    packet = await client.publication()
    assert packet.qos == 0
    assert not packet.retain
    said: dict[str, Any] = json.loads(packet.payload)
    return packet.topic, said


async def hold_up(relay: RunningRelay, pub: BareClient, stuck: BareClient) -> None:
    """Have a publisher wait for one who reads nothing."""
    await stuck.subscribe("t")
    name = next(each for each in relay.relay.mqtt.sessions if each.startswith("pub"))
    account = relay.account(name)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pub.stream.send_all, encode(Publish("t", LARGE)) * 40)
        await until(lambda: account.waiting)
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("mine", [True, False])
async def test_who_waits_is_told_on_whom_and_when_it_is_over(mine: bool) -> None:
    async with (
        running(profile="lossless", throttled_after=0.2, limit_items=3) as relay,
        connected(relay.port, "pub/1") as pub,
        connected(relay.port, "stuck", receive_buffer=LITTLE) as stuck,
        connected(relay.port, "watch") as watch,
    ):
        topic = "$SYS/clearfunds/throttled/pub%2F1"
        told = pub if mine else watch
        await told.subscribe(topic if mine else "$SYS/clearfunds/throttled/#")
        await hold_up(relay, pub, stuck)
        account = relay.account("pub/1")
        about, said = await notice(told)
        assert about == topic
        seconds = said.pop("seconds")
        assert 0.2 <= seconds < 30
        (on,) = said.pop("on")
        assert said == {
            "client": "pub/1",
            "account": f"mqtt:{relay.port}/-/pub/1",
            "throttled": True,
            "reason": "account",
            "at": f"mqtt:{relay.port}/-/pub/1",
            "alarms": [],
            "on_more": 0,
        }
        assert on == {
            "holder": f"mqtt:{relay.port}/-/stuck",
            "kind": "outlet",
            "items": account.debt_items,
            "bytes": account.debt_bytes,
        }
        # It is not said again while it goes on.
        assert await told.silent(1.2)
        relay.relay.mqtt.sessions["stuck"].cut("for the test")
        about, said = await notice(told)
        assert about == topic
        assert said.pop("seconds") >= seconds + 1.2
        assert said == {"client": "pub/1", "account": account.name, "throttled": False}
        # The client has not paid for it, nor has anybody under the server's account.
        await until(lambda: NOTICES_ACCOUNT not in relay.ledger.accounts)
        relay.audit()


async def test_a_client_that_goes_while_it_waits_waits_no_more() -> None:
    async with (
        running(profile="lossless", throttled_after=0.2, limit_items=3) as relay,
        connected(relay.port, "stuck", receive_buffer=LITTLE) as stuck,
        connected(relay.port, "watch") as watch,
    ):
        await watch.subscribe(TOPIC + "+")
        async with connected(relay.port, "pub") as pub:
            await hold_up(relay, pub, stuck)
            assert (await notice(watch))[1]["throttled"]
        relay.relay.mqtt.sessions["pub"].cut("for the test")
        assert not (await notice(watch))[1]["throttled"]


@pytest.mark.parametrize("topics", [(), (TopicAccount("pub", "+/#"),)])
async def test_who_is_refused_is_told_so_too_whichever_of_its_accounts_is_over(
    topics: tuple[TopicAccount, ...],
) -> None:
    async with (
        running(
            profile="lossless", throttled_after=0.2, limit_items=3, topic_account=topics,
            publication_policy=(PublicationPolicy("pub", "#", "shed"),),
        ) as relay,
        connected(relay.port, "pub") as pub,
        connected(relay.port, "stuck", receive_buffer=LITTLE) as stuck,
        connected(relay.port, "watch") as watch,
    ):  # fmt: skip
        await watch.subscribe(TOPIC + "pub")
        await stuck.subscribe("t")
        for _ in range(40):
            await pub.stream.send_all(encode(Publish("t", LARGE)))
        said = (await notice(watch))[1]
        assert said["throttled"]
        assert said["account"] == f"mqtt:{relay.port}/-/pub" + " topic t" * len(topics)
        relay.relay.mqtt.sessions["stuck"].cut("for the test")
        assert not (await notice(watch))[1]["throttled"]


async def test_a_rate_is_a_reason_without_a_culprit() -> None:
    async with (
        running(profile="lossless", throttled_after=0.2, rate=(AccountRate("pub", 1),)) as relay,
        connected(relay.port, "pub") as pub,
        connected(relay.port, "watch") as watch,
    ):
        await watch.subscribe(TOPIC + "pub")
        await pub.stream.send_all(frames([("t", b"")] * 9))
        _, said = await notice(watch)
        assert (said["reason"], said["on"]) == ("rate", [])


async def test_nothing_is_made_that_nobody_has_asked_for() -> None:
    async with (
        running(profile="lossless", throttled_after=0.0, limit_items=3) as relay,
        connected(relay.port, "pub") as pub,
        connected(relay.port, "stuck", receive_buffer=LITTLE) as stuck,
        connected(relay.port, "watch") as watch,
    ):
        await watch.subscribe("#")  # which does not match it [MQTT-4.7.2-1]
        await hold_up(relay, pub, stuck)
        notices = relay.relay.notices
        assert notices is not None
        await notices.look()
        assert notices.sent == 0
        # Who asks while it goes on is told then.
        async with connected(relay.port, "late") as late:
            await late.subscribe(TOPIC + "pub")
            assert (await notice(late))[1]["throttled"]


async def test_it_may_be_off() -> None:
    async with (
        running(profile="lossless", throttled_after=None) as relay,
        connected(relay.port, "pub"),
    ):
        assert relay.relay.notices is None


async def test_who_does_not_read_what_it_is_told_holds_up_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What it does not take is owed by nobody who is read, and bounded."""
    monkeypatch.setattr(_throttle_notices, "QUIET_SECONDS", 0.0)
    monkeypatch.setattr(_throttle_notices, "MAX_UNTAKEN_ITEMS", 5)
    async with (
        running(
            profile="lossless", throttled_after=0.0, limit_items=3, server_limit_items=4
        ) as relay,
        connected(relay.port, "pub") as pub,
        connected(relay.port, "stuck", receive_buffer=LITTLE) as stuck,
        connected(relay.port, "watch", receive_buffer=LITTLE) as watch,
    ):
        await watch.subscribe(TOPIC + "#", "large")
        outlet = relay.relay.mqtt.sessions["watch"].outlet
        async with connected(relay.port, "filler") as filler:
            while not outlet.blocked:
                await filler.publish("large", LARGE)
        await hold_up(relay, pub, stuck)
        notices = relay.relay.notices
        assert notices is not None
        with trio.fail_after(SECONDS):
            while notices.dropped <= 5:
                # As if it waited, and did not, in turn.
                await notices.look()
                for told in notices._told.values():  # pyright: ignore[reportPrivateUsage]
                    told.until = -1.0
                await notices.look()
                await trio.sleep(0.001)
        account = relay.ledger.accounts[NOTICES_ACCOUNT]
        assert account.parent is None
        assert account.debt_items == 5
        assert not account.below
        relay.audit()


@pytest.mark.parametrize(
    ("client", "level"),
    [
        ("press-1", "press-1"),
        ("a/b", "a%2Fb"),
        ("+#%", "%2B%23%25"),
        ("a b", "a b"),
        ("\u00e9\u4f60", "\u00e9\u4f60"),
        ("a\nb\u2028", "a%0Ab%E2%80%A8"),
    ],
)
def test_an_identifier_is_one_level_of_the_topic(client: str, level: str) -> None:
    assert topic_of(client) == TOPIC + level
