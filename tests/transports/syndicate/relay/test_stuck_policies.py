"""A Syndicate peer that does not read: messages may be dropped, assertions may not."""

from __future__ import annotations

import re

import pytest
import trio

from clearfunds.accounts import RETAIN_ITEMS
from clearfunds.relay import RelaySettings, serve_relay
from clearfunds.transports import ListenURLError, SubscriptionPolicy
from clearfunds.transports.syndicate._preserves import canonical
from tests.transports.peers import SECONDS, log_of, until
from tests.transports.syndicate.relay.peers import TCP, Peer, observe, rec, relay, wire

LITTLE = 4096
COUNT = 4_000
FILLER = b"x" * 2_000
AT = canonical("@")


def runs() -> bytes:
    """Messages alike, each with its number: forwarded as runs where one observer is told."""
    one = wire(f'[[0 <M <Says "000000{FILLER.decode()}" 7>>]]')
    return b"".join([one.replace(b"000000x", b"%06dx" % n) for n in range(COUNT)])


async def numbers(peer: Peer, count: int) -> list[int]:
    """The numbers of the next messages, as they come."""
    found: list[bytes] = []
    rest = b""
    with trio.fail_after(SECONDS):
        while len(found) < count:
            rest += await peer.stream.receive_some(1 << 18)
            end = 0
            for match in re.finditer(rb"(\d{6})xx", rest):
                found.append(match[1])
                end = match.end()
            rest = rest[end:][-7:]  # of one that has not come in full there are seven at most
    return [int(number) for number in found]


@pytest.mark.parametrize("observers", [1, 2])
@pytest.mark.parametrize("policy", ["drop_oldest", "drop_newest"])
async def test_messages_are_dropped_by_the_policy(policy: str, observers: int) -> None:
    """With two that are told of each it is turns of two messages, and no runs."""
    async with (
        relay(limit_items=500, patience=0.2, stuck=policy) as served,
        served.peer(receive_buffer=LITTLE) as stuck,
        served.peer() as publisher,
    ):
        await stuck.send(observe(rec("Says", "<bind <_>>")))
        if observers == 2:
            await stuck.send(observe(rec("Says", "<_>", "<bind <_>>"), 2, 2))
        await stuck.sync()
        await publisher.send_raw(runs())
        await until(lambda: any(each.outlet.lagging for each in served.side.open))
        await publisher.sync()
        (session,) = [each for each in served.side.open if each.outlet.lagging]
        outlet = session.outlet
        lost = outlet.relief.dropped_items // observers
        assert lost > 0
        served.audit()
        got = await numbers(stuck, COUNT - lost)
        begun = next((n for n, number in enumerate(got) if n != number), len(got))
        kept = RETAIN_ITEMS // observers
        if policy == "drop_oldest":
            assert got == [*range(begun), *range(COUNT - kept, COUNT)]
        else:
            assert begun == len(got) == COUNT - lost >= kept
        await until(lambda: not outlet.lagging)


async def test_who_is_not_told_what_is_the_case_is_disconnected(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Else it would have a wrong picture for as long as it is there."""
    async with (
        relay(limit_items=100, patience=0.2, stuck="drop_oldest") as served,
        served.peer(receive_buffer=LITTLE) as stuck,
        served.peer() as publisher,
    ):
        await stuck.send(observe("<bind <_>>"))
        await stuck.sync()
        with trio.fail_after(30):
            for n in range(COUNT):
                says = f'[[0 <A <Is {n} "@"> {n + 1}>]]'
                await publisher.send_raw(wire(says).replace(AT, canonical(FILLER.decode())))
                if len(served.side.open) == 1:
                    break
        (line,) = log_of(caplog, "may not be dropped; it is disconnected")
        assert "made no progress" in line
        served.audit()


async def test_what_cannot_be_done_is_said_at_the_start() -> None:
    for policy in ("conflate", "spill"):
        settings = RelaySettings(listen=(TCP,), stuck=policy)
        with pytest.raises(ListenURLError, match=f"{policy} does not apply to Syndicate's"):
            await serve_relay(settings)


async def test_a_rule_says_what_is_done_instead() -> None:
    rules = (
        SubscriptionPolicy("*", "a/#", "wait"),
        SubscriptionPolicy("syndicate:*", "#", "drop_newest", 3.0),
    )
    async with (
        relay(stuck="conflate", subscription_policy=rules) as served,
        served.peer() as peer,
    ):
        await peer.sync()
        (session,) = served.side.open
        assert session.outlet.policy == "drop_newest"
        assert session.outlet.patience == 3.0


async def test_a_peer_that_writes_text_is_disconnected() -> None:
    """What it is told is not taken apart."""
    async with (
        relay(limit_items=100, patience=0.2, stuck="drop_oldest") as served,
        served.peer(receive_buffer=LITTLE, text=True) as stuck,
        served.peer() as publisher,
    ):
        await stuck.send(observe("<bind <_>>"))
        await stuck.sync()
        with trio.fail_after(30):
            await publisher.send_raw(runs())
            await until(lambda: len(served.side.open) == 1)
        served.audit()
