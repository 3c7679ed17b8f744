"""Feeds of a hub: what a consumer gets, what its publishers owe meanwhile, and every end."""

from __future__ import annotations

from functools import partial
from typing import Any

import anyio
import attrs
import pytest
from anyio import wait_all_tasks_blocked
from trio.testing import MockClock

from clearfunds.accounts import Account, Ledger, Limit, Profile, SelfWaitError, StuckPolicy
from clearfunds.dataspace import (
    Asserted,
    GivenUpError,
    PatternError,
    Publication,
    Retracted,
    capture,
    match,
)
from clearfunds.streams import Feed, Hub
from tests.loops import LoopClock, open_nursery


@attrs.frozen
class Reading:
    """A value of a class, which needs no topic."""

    room: str
    celsius: float


def news(number: int) -> Publication:
    return Publication("news", b"%d" % number)


def numbers_of(events: list[Publication]) -> list[int]:
    return [int(event.payload) for event in events]


async def publish(hub: Hub, account: Account, *numbers: int) -> None:
    for number in numbers:
        await hub.publish(account, news(number))


async def read(feed: Feed[Publication], got: list[Publication]) -> None:
    async for event in feed:
        got.append(event)


async def test_each_event_is_owed_for_until_the_next_is_asked_for(hub: Hub) -> None:
    with hub.open("newsroom") as newsroom:
        async with hub:
            with hub.subscribe("alice", "news") as feed, hub.subscribe("bob", "news"):
                await publish(hub, newsroom, 1, 2, 3)
                assert newsroom.debt_items == 6
                assert (await anext(feed)) == news(1)
                assert newsroom.debt_items == 6
                assert (await anext(feed)) == news(2)
                assert newsroom.debt_items == 5
                # What the handling of an event causes is charged to the same account.
                with feed.turn() as turn:
                    turn.publish(hub.dataspace, news(4))
                assert newsroom.debt_items == 7
            assert newsroom.debt_items == 0
    assert hub.ledger.statistics().repaid_items["dropped"] == 6


async def test_what_to_subscribe_to(hub: Hub) -> None:
    alice = hub.open("alice")
    async with hub:
        with (
            hub.subscribe("a", "news/+") as by_topic,
            hub.subscribe("b", Reading) as by_class,
            hub.subscribe("c", match(Reading, room="hall", celsius=capture())) as by_pattern,
            hub.dataspace.asserted(alice, Reading("cellar", 11.0)),
        ):
            await hub.publish(alice, Publication("news/sport", b"1:0"))
            await hub.publish(alice, Reading("hall", 19.5))
            assert (await anext(by_topic)).payload == b"1:0"
            found: Any = await anext(by_class)
            assert found == Asserted(Reading("cellar", 11.0))
            assert (await anext(by_class)) == Reading("hall", 19.5)
            assert (await anext(by_pattern)) == (19.5,)
        with hub.subscribe("d", Reading) as late:
            with hub.dataspace.asserted(alice, Reading("attic", 30.0)):
                pass
            found = [await anext(late), await anext(late)]
            value = Reading("attic", 30.0)
            assert found == [Asserted(value), Retracted(value)]
        with pytest.raises(PatternError), hub.subscribe("d", "news/#/x"):
            pass
    alice.close()


async def test_a_publisher_waits_for_its_own_consumers_alone(hub: Hub) -> None:
    a, b = hub.open("a"), hub.open("b")
    got: list[Publication] = []
    async with hub, open_nursery() as nursery:
        with (
            hub.subscribe("slow", "a", policy="wait") as slow,
            hub.subscribe("fast", "b") as fast,
        ):
            nursery.start_soon(read, fast, got)
            with anyio.move_on_after(0.1) as first:
                for number in range(100):
                    await hub.publish(a, Publication("a", b"%d" % number))
            assert first.cancelled_caught
            assert a.debt_items == 11
            for number in range(100):
                await hub.publish(b, Publication("b", b"%d" % number))
            await wait_all_tasks_blocked()
            assert numbers_of(got) == list(range(100))
            assert slow.mailbox.name == "slow"
            nursery.cancel_scope.cancel()
    a.close()
    b.close()


@pytest.mark.parametrize("profile", [*Profile, *map(str, Profile)])
async def test_a_stuck_consumer_under_each_profile(
    profile: Profile | str, autojump_clock: MockClock, hub: Hub
) -> None:
    """It stands still in the midst of an event; another one gets everything, in time."""
    newsroom = hub.open("newsroom")
    got: list[Publication] = []
    late: list[Publication] = []
    missed: list[int] = []
    wake = anyio.Event()
    ended: list[str] = []

    async def is_stuck() -> None:
        try:
            with hub.subscribe("stuck", "news", profile=profile) as feed:
                async for event in feed:
                    late.append(event)
                    missed.append(feed.missed)
                    await wake.wait()
        except GivenUpError as error:
            ended.append(str(error))

    async with hub, open_nursery() as nursery:
        nursery.start_soon(is_stuck)
        with hub.subscribe("awake", "news") as awake:
            nursery.start_soon(read, awake, got)
            await wait_all_tasks_blocked()
            began = anyio.current_time()
            longest = 0.0
            for number in range(2000):
                asked = anyio.current_time()
                await hub.publish(newsroom, news(number))
                longest = max(longest, anyio.current_time() - asked)
                await anyio.sleep(0.001)
            assert anyio.current_time() - began < 30
            if profile == "lossless":
                # The consumer was cancelled where it stood.
                assert 20 <= longest < 21
                assert len(late) == 1
                assert "stuck was too slow" in ended[0]
                assert "newsroom" in ended[0]
            else:
                assert longest < (0.6 if profile == "balanced" else 0.002)
                assert not ended
                await anyio.sleep(30)  # nobody waits for it
                wake.set()
                await anyio.sleep(1)
                numbers = numbers_of(late)
                if profile == "balanced":
                    assert numbers == list(range(2000))
                    assert not any(missed)
                else:
                    assert numbers == sorted(set(numbers))
                    assert numbers[-1] == 1999
                    assert 1000 <= len(numbers) < 1020
                    assert len(numbers) + sum(missed) == 2000
                    first = next(place for place, count in enumerate(missed) if count)
                    assert numbers[first] - numbers[first - 1] - 1 == missed[first]
            await wait_all_tasks_blocked()
            assert numbers_of(got) == list(range(2000))
            nursery.cancel_scope.cancel()
    newsroom.close()


async def test_memory_for_backlogs_is_bounded(autojump_clock: MockClock) -> None:
    limit = Limit(items=10, low_items=0)
    hub = Hub(limit=limit, spill_bytes=1000, ledger=Ledger(clock=LoopClock()))
    newsroom = hub.open("newsroom")
    async with hub:
        gone = False
        try:
            with hub.subscribe("stuck", "news"):
                for number in range(1000):
                    await hub.publish(newsroom, Publication("news", b"%100d" % number))
                    assert hub.ledger.accounts["behind"].debt_bytes <= 1000
        except GivenUpError:
            gone = True
        assert gone
    assert newsroom.debt_items == 0
    hub.ledger.audit()
    newsroom.close()


@pytest.mark.parametrize("how", ["error", "cancelled", "break"])
async def test_an_event_in_hand_at_the_end(how: str, hub: Hub) -> None:
    newsroom = hub.open("newsroom")
    async with hub:
        await_for_ever = anyio.Event()

        async def consume() -> None:
            with hub.subscribe("alice", "news") as feed:
                async for _ in feed:
                    if how == "error":
                        raise KeyError(how)
                    if how == "break":
                        break
                    await await_for_ever.wait()

        async with open_nursery() as nursery:

            async def run() -> None:
                try:
                    await consume()
                except KeyError:
                    assert how == "error"

            nursery.start_soon(run)
            await wait_all_tasks_blocked()
            await publish(hub, newsroom, 1, 2, 3)
            await wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
    repaid = hub.ledger.statistics().repaid_items
    del repaid["delivered"]  # turns end so, too
    outcome = {"error": "rejected", "cancelled": "cancelled", "break": "dropped"}[how]
    found = {each: n for each, n in repaid.items() if n}
    # The others were never asked for, unless they came when it had gone.
    if how == "cancelled":
        assert found == {"cancelled": 1, "dropped": 2}
    elif how == "error":
        assert found.pop(outcome) == 1
        assert found.get("dropped", 0) <= 2
    else:
        assert found.get("dropped", 0) <= 2
        assert found.keys() <= {"dropped"}
    assert not [name for name in hub.ledger.accounts if name not in ("behind", "newsroom")]
    assert not [each for each in hub.ledger.holders if each.kind == "mailbox"]
    newsroom.close()


async def test_cancelled_while_it_waits_it_loses_nothing(hub: Hub) -> None:
    newsroom = hub.open("newsroom")
    async with hub:
        with hub.subscribe("alice", "news") as feed:
            for number in range(5):
                with anyio.move_on_after(0):
                    await anext(feed)
                await publish(hub, newsroom, number)
            assert numbers_of([await anext(feed) for _ in range(5)]) == [0, 1, 2, 3, 4]
    newsroom.close()


async def test_conflation_keeps_the_latest_of_each_topic(
    autojump_clock: MockClock, hub: Hub
) -> None:
    exchange = hub.open("exchange")
    async with hub:
        with hub.subscribe("viewer", "price/#", policy="conflate") as feed:
            for price in range(100):
                await hub.publish(exchange, Publication(f"price/{'ab'[price % 2]}", b"%d" % price))
            assert feed.mailbox.lagging
            assert feed.mailbox.policy is StuckPolicy.CONFLATE
            first, second = await anext(feed), await anext(feed)
            assert [first.payload, second.payload] == [b"98", b"99"]
    exchange.close()


async def test_publishing_in_the_hand_of_a_consumer_would_wait_for_itself(hub: Hub) -> None:
    newsroom = hub.open("newsroom")
    async with hub:
        with hub.subscribe("alice", "news") as feed:
            await publish(hub, newsroom, 1)
            loan = await feed.mailbox.receive()
            with loan, pytest.raises(SelfWaitError):
                await hub.publish(newsroom, news(2))
    newsroom.close()


def test_wrong_words(hub: Hub) -> None:
    with pytest.raises(ValueError, match="fastest"):
        hub.subscribe("alice", "news", profile="fastest")
    with pytest.raises(ValueError, match="drop"):
        hub.subscribe("alice", "news", policy="drop")
    with pytest.raises(ValueError, match="not both"):
        hub.subscribe("alice", "news", policy="wait", profile="live")
    with pytest.raises(RuntimeError, match="no event in hand"):
        hub.subscribe("alice", "news").turn()


async def test_a_feed_is_entered_once(hub: Hub) -> None:
    async with hub:
        feed = hub.subscribe("alice", "news")
        with feed:
            pass
        with pytest.raises(RuntimeError, match="subscribe once more"):
            feed.__enter__()


async def test_a_hub_is_entered_once(hub: Hub) -> None:
    async with hub:
        with pytest.raises(RuntimeError, match="runs already"):
            await hub.__aenter__()
    async with hub:
        pass


async def test_an_error_of_the_block_comes_out_as_it_is(hub: Hub) -> None:
    with pytest.raises(KeyError):
        async with hub:
            raise KeyError("x")


@attrs.define
class Pipe:
    """Takes bytes, some at a time."""

    taken: bytes = b""
    room: anyio.Semaphore = attrs.field(factory=lambda: anyio.Semaphore(0))

    async def send(self, data: bytes) -> None:
        await self.room.acquire()
        self.taken += data

    def lines(self) -> list[bytes]:
        return self.taken.splitlines()


async def test_events_go_to_a_stream_together(autojump_clock: MockClock, hub: Hub) -> None:
    newsroom = hub.open("newsroom", limit=Limit(items=5, low_items=0))
    pipe = Pipe()
    async with hub, open_nursery() as nursery:
        with hub.subscribe(
            "alice", "news", policy="drop_oldest", retain_limit=Limit(items=3)
        ) as feed:
            nursery.start_soon(
                partial(
                    feed.send_to,
                    pipe,
                    lambda event: event.payload + b"\n",
                    missed=lambda count: b"missed %d\n" % count,
                )
            )
            await wait_all_tasks_blocked()
            await publish(hub, newsroom, 1)
            await wait_all_tasks_blocked()
            await publish(hub, newsroom, *range(2, 6))
            pipe.room.release()
            await wait_all_tasks_blocked()
            assert pipe.taken == b"1\n"
            pipe.room.release()
            await wait_all_tasks_blocked()
            assert pipe.taken == b"1\n2\n3\n4\n5\n"
            await publish(hub, newsroom, *range(6, 30))
            for _ in range(20):
                pipe.room.release()
            await wait_all_tasks_blocked()
            lines = pipe.lines()[5:]
            assert lines[-3:] == [b"27", b"28", b"29"]
            gone = sum(int(line[7:]) for line in lines if line.startswith(b"missed"))
            assert gone + sum(not line.startswith(b"missed") for line in lines) == 24
            nursery.cancel_scope.cancel()
    newsroom.close()


async def test_sinks(loop_of_the_test: str, hub: Hub) -> None:
    from clearfunds.streams import sender_of

    with pytest.raises(TypeError, match=r"asyncio\.StreamWriter"):
        sender_of(object())
    pipe = Pipe(room=anyio.Semaphore(9))
    await sender_of(pipe)(b"a")
    await sender_of(pipe.send)(b"b")
    assert pipe.taken == b"ab"
