"""Limits of some accounts: which pattern says whose, and that the relay holds them to it."""

from __future__ import annotations

import json
from glob import escape
from typing import TYPE_CHECKING
from urllib.request import urlopen

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from clearfunds.access import AccountLimit, AccountLimits
from clearfunds.accounts import Limit
from clearfunds.accounts._gate import gate_of
from tests.transports.peers import connected, dial, running, until

if TYPE_CHECKING:
    from collections.abc import Sequence

OTHERS = Limit(items=100, bytes=1000)


def limits(*rules: tuple[str, int]) -> AccountLimits:
    return AccountLimits([AccountLimit(pattern, items) for pattern, items in rules], OTHERS)


@pytest.mark.parametrize(
    ("rules", "names", "items"),
    [
        ([], ["a"], 100),
        ([("a", 1)], ["a"], 1),
        ([("a", 1)], ["b", "aa", "A"], 100),
        ([("a", 1), ("a", 2)], ["a"], 1),
        ([("b", 1), ("a", 2)], ["a", "b"], 1),
        ([("a", 1), ("*", 2)], ["a"], 1),
        ([("*", 1), ("a", 2)], ["a"], 1),
        ([("c*", 1), ("a", 2), ("*", 3)], ["a"], 2),
        ([("mqtt:1883/press/*", 1)], ["mqtt:1883/press/a/b", "a/b"], 1),
        ([("mqtt:*/-/x", 1)], ["mqtt:1883/-/x", "x"], 1),
        ([("x", 1)], ["mqtt:1883/-/x", "x"], 1),
        ([("a?c", 1)], ["a/c"], 1),
        ([("a[bc]d", 1)], ["acd"], 1),
        ([("a[*]d", 1)], ["acd"], 100),
        ([("a[*]d", 1)], ["a*d"], 1),
        ([("a[[]d", 1)], ["a[d"], 1),
        ([("[", 1)], ["["], 1),
        ([("", 1)][:0], [""], 100),
    ],
)
def test_the_first_that_matches(
    rules: list[tuple[str, int]], names: Sequence[str], items: int
) -> None:
    assert limits(*rules).of(*names).items == items


TEXTS = st.text(st.sampled_from("ab*?[]!-/\\ =,\n"), min_size=1, max_size=6)


@settings(max_examples=100, deadline=None)
@given(TEXTS, TEXTS)
def test_an_escaped_name_matches_that_name_alone(name: str, other: str) -> None:
    found = limits((escape(name), 1))
    assert found.of(name).items == 1
    assert found.of(other).items == (1 if other == name else 100)


def test_bytes_are_those_of_all_others_unless_they_are_said() -> None:
    rules = [AccountLimit("a", 1), AccountLimit("b", 1, None), AccountLimit("c", None, 7)]
    found = AccountLimits(rules, OTHERS)
    assert found.of("a") == Limit(items=1, bytes=1000)
    assert found.of("b") == Limit(items=1, bytes=None)
    assert found.of("c") == Limit(items=None, bytes=7)


@pytest.mark.parametrize(
    ("pattern", "items", "nbytes", "why"),
    [("", 1, 1, "pattern"), ("a", 0, 1, "items must"), ("a", 1, 0, "bytes must")],
)
def test_what_is_no_limit(pattern: str, items: int, nbytes: int, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        AccountLimit(pattern, items, nbytes)


async def test_a_client_has_the_limit_that_its_name_says() -> None:
    rules = (AccountLimit("mqtt:*/press/*", 5, 500), AccountLimit("slow", 3), AccountLimit("s*", 9))
    async with (
        running(http="127.0.0.1:0", account_limit=rules, limit_items=77, grace=0.1) as relay,
        connected(relay.port, "slow"),
        connected(relay.port, "soft"),
        connected(relay.port, "slow-too", username="press"),
        connected(relay.port, "other"),
    ):
        for client, items in {"slow": 3, "soft": 9, "slow-too": 5, "other": 77}.items():
            limit = relay.account(client).limit
            assert limit is not None
            assert limit.items == items
        url = f"{relay.addresses.http}/ledger.json"

        def read() -> bytes:
            with urlopen(url) as answer:
                return bytes(answer.read())

        seen = json.loads(await trio.to_thread.run_sync(read))
        by_name = {each["name"]: each["limit"] for each in seen["accounts"]}
        assert by_name[f"mqtt:{relay.port}/press/slow-too"] == {"items": 5, "bytes": 500}
        assert by_name[f"mqtt:{relay.port}/-/slow"]["items"] == 3


async def test_who_comes_back_has_the_same_limit_and_is_held_to_it() -> None:
    rules = (AccountLimit("pub", 4),)
    async with (
        running(account_limit=rules, patience=60.0, grace=0.1) as relay,
        connected(relay.port, "sub", receive_buffer=4096) as subscriber,
    ):
        await subscriber.subscribe("#")
        async with connected(relay.port, "pub") as publisher, trio.open_nursery() as nursery:

            async def flood() -> None:
                while True:
                    await publisher.publish("t", bytes(60_000))

            nursery.start_soon(flood)
            await until(lambda: gate_of(relay.account("pub")).throttled)
            assert 4 < relay.account("pub").debt_items < 20
            nursery.cancel_scope.cancel()
        async with connected(relay.port, "pub"):
            limit = relay.account("pub").limit
            assert limit is not None
            assert limit.items == 4


async def test_a_peer_of_syndicate_is_known_by_where_it_comes_from() -> None:
    rules = (AccountLimit("127.0.0.1:*", 6),)
    listen = ("syndicate+tcp://127.0.0.1:0",)
    async with (
        running(account_limit=rules, listen=listen, grace=0.1) as relay,
        dial(relay.port),
    ):
        side = relay.relay.syndicate
        assert side is not None
        await until(lambda: side.open)
        (session,) = side.open
        limit = session.account.limit
        assert limit is not None
        assert limit.items == 6
