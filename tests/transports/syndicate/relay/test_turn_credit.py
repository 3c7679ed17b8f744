"""Credit for turns: given when a debt is clear, and waited for where a peer gives it."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
import trio
import trio_websocket

from clearfunds.accounts import Account, Outcome
from clearfunds.transports.syndicate import Error, Extension, Turn, decode
from tests.transports.peers import log_of, until
from tests.transports.syndicate.relay.peers import (
    BIND,
    Peer,
    SyndicateRelay,
    in_text,
    observe,
    rec,
    relay,
    says,
    wire,
)
from tests.transports.syndicate.relay.test_transports import WebPeer, web_peer

DO = "<do <credit-flow-control 202506>>"
WILL = "<will <credit-flow-control 202506>>"
TICKS = "clearfunds.transports.syndicate._server.CREDIT_SECONDS"
NEVER = 3600.0

TCP = "syndicate+tcp://127.0.0.1:0"
WS = "syndicate+ws://127.0.0.1:0"

LARGE = "x" * 20_000
"""Of these, a Unix socket takes a dozen before what a peer does not read stays in the relay."""

ANY_SAYS = rec("Says", BIND)
SAYS_ALL = rec("Says", BIND, BIND)


def gives(turns: int | str) -> str:
    """The packet that gives credit."""
    return f"<C {turns}>"


class Ear:
    """Keeps account of all that a peer is sent, in the background.

    Attributes:
        credit: How much credit it has been given.
        others: Other extensions that came.
        turns: How many turns came.
        lines: What they said.
        said: What an error said, if one came.
    """

    def __init__(self, peer: Peer | WebPeer) -> None:
        self.peer = peer
        self.credit = 0
        self.others: list[str] = []
        self.turns = 0
        self.lines: list[str] = []
        self.said: str | None = None
        self.ended = False
        # Asked at each credit that comes.
        self.check: Callable[[], bool] = lambda: True

    async def _raw(self) -> bytes | None:
        if isinstance(self.peer, Peer):
            frame = await self.peer.frame()
            return None if frame is None else bytes(frame)
        try:
            message = await self.peer.connection.get_message()
        except trio_websocket.ConnectionClosed:
            return None
        assert isinstance(message, bytes)
        return message

    async def listen(self) -> None:
        """Listen until the connection ends."""
        while (raw := await self._raw()) is not None:
            packet = decode(raw)
            match packet:
                case Extension():
                    given = re.fullmatch(r"<C (\d+)>", in_text(packet))
                    if given is None:
                        self.others.append(in_text(packet))
                    else:
                        assert int(given[1]) > 0
                        self.credit += int(given[1])
                        assert self.check()
                case Turn():
                    self.turns += 1
                    if isinstance(self.peer, Peer):
                        self.lines += self.peer.understand(packet)
                case Error():
                    self.said = packet.message
                case _:
                    raise AssertionError(packet)
        self.ended = True


@asynccontextmanager
async def listening(*peers: Peer | WebPeer) -> AsyncGenerator[list[Ear]]:
    """Listen to peers for the length of a block."""
    async with trio.open_nursery() as nursery:
        ears = [Ear(peer) for peer in peers]
        for ear in ears:
            nursery.start_soon(ear.listen)
        yield ears
        nursery.cancel_scope.cancel()


@pytest.fixture
def unix(tmp_path: Path) -> str:
    """The URL of a listener whose sockets have little room."""
    return f"syndicate+unix://{tmp_path}/relay"


def credited(ear: Ear, turns: int) -> Callable[[], bool]:
    """Whether it has been given that much credit."""
    return lambda: ear.credit >= turns


def has_turns(ear: Ear, turns: int) -> Callable[[], bool]:
    """Whether that many turns have come."""
    return lambda: ear.turns >= turns


def owing(account: Account, items: int) -> Callable[[], bool]:
    """Whether an account owes just that."""
    return lambda: account.debt_items == items


async def observing(peer: Peer, pattern: str = SAYS_ALL) -> None:
    """Let a peer observe, and wait until it does."""
    await peer.send(observe(pattern))
    await peer.sync()


async def agreeing(peer: Peer, pattern: str = SAYS_ALL) -> None:
    """Let a peer give credit when it is asked to, and observe; wait until it does."""
    await peer.expect(DO)
    await peer.send(WILL)
    await observing(peer, pattern)
    await peer.send(gives(1))  # for what answered the sync


def held(served: SyndicateRelay, account: Account, kind: str) -> int:
    """How many items of an account the holders of one kind have."""
    return sum(
        loan.items
        for holder in served.ledger.holders
        if holder.kind == kind
        for loan in holder.loans()
        if loan.account is account
    )


def packets_of(kind: str, count: int, filler: str = "") -> list[str]:
    """Turns, each with a number; with several messages each if the kind is "turns"."""
    packets: list[str] = []
    for n in range(count):
        if kind == "alike":
            packets.append(f'[[0 <M <Says "{n % 10}" "{filler}">>]]')
        elif kind == "different":
            packets.append(f'[[0 <M <Says [{n}] "{filler}">>]]')
        elif kind == "states":
            packets.append(f'[[0 <A <Says {n} "{filler}"> {n + 100}>]]')
        else:
            packets.append(f"[{f'[0 <M <Says {n} {chr(34)}{filler}{chr(34)}>>]' * 3}]")
    return packets


KINDS = ["alike", "different", "states", "turns"]


# -- given ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", [False, True])
async def test_who_asks_gets_credit_for_each_turn_since(text: bool) -> None:
    async with relay() as served, served.peer(text=text) as peer:
        await peer.send(*[says(str(n)) for n in range(7)])  # before it asks
        await peer.send(DO)
        assert await peer.raw_packet() == (
            b"<will <credit-flow-control 202506>>"
            if text
            else bytes.fromhex("b4b30477696c6cb4b3136372656469742d666c6f772d636f6e74726f6c")
            + bytes.fromhex("b00303170a8484")
        )
        async with listening(peer) as (ear,):
            turns = [
                says("1"),  # a message, which concerns nobody
                "[[0 <A <Says a> 5>]]",
                "[[0 <A <Says b> 6>] [0 <M x>] [0 <R 6>]]",  # several events
                "[[0 <R 5>]]",
                "[[0 <R 1234>]]",  # of what was never asserted
                "[[77 <M x>]]",  # to what there is not
                "[]",
                "[[0 <S #:[0 4]>]]",
                '[[0 <M <publication ["a"] #"x" 0 #f>>]]',
            ]
            for sent, turn in enumerate(turns, 1):
                await peer.send(turn)
                await until(credited(ear, sent))
                assert ear.credit == sent
            # What is no turn counts for nothing.
            await peer.send("#f", "<unknown 1>", gives(3), WILL, '<will "x">', "<do x>")
            await peer.send(*turns)
            await until(lambda: ear.credit >= 2 * len(turns))
            await peer.send(DO)
            await until(lambda: ear.others == [WILL])
            await peer.send(says("2"))
            await until(lambda: ear.credit > 2 * len(turns))
            assert ear.credit == 2 * len(turns) + 1
            assert ear.lines == ["4 ! #t"] * 2


async def test_what_concerns_nobody_has_credit_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without waiting for anything to look for whom credit is due."""
    monkeypatch.setattr(TICKS, NEVER)
    async with relay() as served, served.peer() as peer:
        await peer.send(DO)
        await peer.expect(WILL)
        await peer.send(says("1"), says("2 [x]"), "[[0 <A x 1>]]")
        async with listening(peer) as (ear,):
            await until(lambda: ear.credit == 3)
            await peer.send(*[says('"alike"') for _ in range(50)])
            await until(lambda: ear.credit == 53)


async def test_nobody_gets_credit_that_did_not_ask() -> None:
    async with relay() as served, served.peer() as peer:
        await peer.send(*[says(str(n)) for n in range(7)], gives(1), WILL)
        assert await peer.sync() == []
        assert await peer.silent(0.25)


@pytest.mark.parametrize("text", [False, True])
async def test_switched_off_it_is_not_answered(text: bool) -> None:
    async with relay(turn_credit="off") as served, served.peer(text=text) as peer:
        await peer.send(DO, says("1"), WILL, gives(1), says("2"))
        assert await peer.sync() == []
        assert await peer.silent(0.25)


@pytest.mark.parametrize("kind", KINDS)
async def test_exactly_as_many_as_were_sent(kind: str, unix: str) -> None:
    """Never more than is no longer owed, and all in the end."""
    count = 600
    async with (
        relay(listen=(TCP, unix), limit_items=50) as served,
        served.peer(1) as observer,
        served.peer() as publisher,
    ):
        await observing(observer)
        account = served.account(publisher)
        await publisher.send(DO)
        async with listening(publisher, observer) as (ear, other):
            sent = wire(*packets_of(kind, count, "abc"))
            owed = partial(held, served, account, "outlet")
            each = 3 if kind == "turns" else 1
            ear.check = lambda: ear.credit <= count - owed() // each
            await publisher.send_raw(sent)
            await until(lambda: ear.credit >= count)
            ear.check = lambda: True
            await publisher.send(says("0 0"))
            await until(lambda: ear.credit > count)
            assert ear.credit == count + 1
            await until(lambda: len(other.lines) == count * each + 1)


@pytest.mark.parametrize("kind", KINDS)
async def test_what_a_stuck_observer_holds_has_no_credit(kind: str, unix: str) -> None:
    count, each = 40, 3 if kind == "turns" else 1
    async with (
        relay(listen=(TCP, unix), patience=60) as served,
        served.peer(1) as stuck,
        served.peer() as quick,
        served.peer() as publisher,
    ):
        for peer in stuck, quick:
            await observing(peer)
        account = served.account(publisher)
        await publisher.send(DO)
        async with listening(publisher, quick) as (ear, other):
            owed = partial(held, served, account, "outlet")
            ear.check = lambda: ear.credit <= count - owed() // each
            await publisher.send_raw(wire(*packets_of(kind, count, LARGE)))
            await until(lambda: len(other.lines) == count * each)
            assert owed() >= 10
            # Those before are credited, those that it holds are not.
            await until(lambda: ear.credit == count - owed() // each)
            # Nor is what comes later and concerns nobody: credit says how many, not which.
            ear.check = lambda: True
            await publisher.send(says("1"))
            (name,) = served.holders(account)
            assert name.startswith("syndicate:/")
            await trio.sleep(0.25)
            assert ear.credit == count - owed() // each
            # It comes when the observer reads, as it does.
            before = ear.credit
            half = each * count // 2
            await stuck.lines(half)
            await until(lambda: ear.credit > before)
            await stuck.lines(each * count - half)
            await until(lambda: ear.credit >= count + 1)
            await publisher.send(says("2"))
            await until(lambda: ear.credit > count + 1)
            assert ear.credit == count + 2
        served.audit()


async def test_each_gets_credit_for_its_own(unix: str) -> None:
    """What others owe, and what one holds of others', is nobody's concern."""
    async with (
        relay(listen=(TCP, unix), patience=60) as served,
        served.peer(1) as stuck,
        served.peer() as one,
        served.peer() as other,
    ):
        await observing(stuck)
        await one.send(DO)
        await other.send(DO)
        await stuck.send(DO)
        await stuck.expect(WILL)
        async with listening(one, other) as (ear, another):
            await one.send_raw(wire(*packets_of("different", 30, LARGE)))
            await until(lambda: served.side.counters.received == 30)
            account = served.account(one)
            await until(lambda: ear.credit == 30 - held(served, account, "outlet"))
            assert ear.credit < 20
            for n in range(1, 6):
                await other.send(says("1"))
                await until(credited(another, n))
            await stuck.send(says("1"), says("2"))
            async with listening(stuck) as (third,):
                await until(lambda: third.credit == 2)
            await until(lambda: ear.credit == 30)


async def test_credit_while_the_connection_waits_for_clear_funds(unix: str) -> None:
    """It is not read, but it is told what has been dealt with; it goes on at its lower mark."""
    async with (
        relay(listen=(TCP, unix), limit_items=20, patience=60) as served,
        served.peer(1) as stuck,
        served.peer() as publisher,
    ):
        await observing(stuck)
        account = served.account(publisher)
        await publisher.send(DO)
        async with listening(publisher) as (ear,), trio.open_nursery() as nursery:
            packets = packets_of("different", 60, LARGE)
            nursery.start_soon(publisher.send_raw, wire(*packets))
            await until(lambda: account.waiting)
            taken = partial(getattr, served.side.counters, "received")
            await until(lambda: account.waiting and ear.credit == taken() - account.debt_items)
            assert ear.credit < 60
            await stuck.lines(60)
            await until(lambda: ear.credit == 60)


@pytest.mark.parametrize("how", ["leave", "reset"])
async def test_who_leaves_before_its_credit_came(how: str, unix: str) -> None:
    async with (
        relay(listen=(TCP, unix), patience=60) as served,
        served.peer(1) as stuck,
        served.peer() as publisher,
    ):
        await observing(stuck)
        await publisher.send(DO)
        await publisher.send_raw(wire(*packets_of("different", 30, LARGE)))
        await until(lambda: served.side.counters.received == 30)
        await (publisher.leave() if how == "leave" else publisher.reset())
        await until(lambda: len(served.side.open) == 1)
        served.audit()
        assert len(await stuck.lines(30)) == 30


# -- waited for -----------------------------------------------------------------------------------


async def test_the_relay_asks_first_where_it_is_to() -> None:
    async with relay(turn_credit="request") as served, served.peer() as peer:
        raw = bytes.fromhex("b4b302646fb4b3136372656469742d666c6f772d636f6e74726f6cb00303170a8484")
        assert await peer.raw_packet() == raw
        await peer.send(DO)  # it may be asked, too
        await peer.expect(WILL)
        await peer.send(says("1"))
        await peer.expect(gives(1))


@pytest.mark.parametrize("how", ["silent", "unasked", "off", "other"])
async def test_without_an_agreement_nothing_waits_for_credit(how: str) -> None:
    setting = {"unasked": "accept", "off": "off"}.get(how, "request")
    async with (
        relay(turn_credit=setting) as served,
        served.peer() as observer,
        served.peer() as publisher,
    ):
        if setting == "request":
            await observer.expect(DO)
            await publisher.expect(DO)
        if how == "other":
            await observer.send("<will <credit-flow-control 202507>>", "<will x>", gives(5))
        elif how != "silent":
            await observer.send(WILL)
        await observing(observer)
        await publisher.send(*packets_of("alike", 20))
        await observer.lines(20)
        assert served.account(publisher).debt_items == 0
        assert "credited" not in [holder.kind for holder in served.ledger.holders]
        await observer.send(gives(5))
        assert await observer.sync() == []


@pytest.mark.parametrize("text", [False, True])
@pytest.mark.parametrize("kind", KINDS)
async def test_what_was_sent_is_owed_until_credit_comes(kind: str, text: bool) -> None:
    """By who published it; of whom the observer is known to have it."""
    async with (
        relay(turn_credit="request") as served,
        served.peer(text=text) as observer,
        served.peer() as publisher,
    ):
        await observer.expect(DO)
        await observer.send(WILL)
        await observing(observer)
        await observer.send(gives(1))
        await publisher.expect(DO)
        each = 3 if kind == "turns" else 1
        account, other = served.account(publisher), served.account(observer)
        await publisher.send(*packets_of(kind, 100))
        await publisher.sync()
        lines = await observer.lines(100 * each)
        assert len(lines) == 100 * each
        assert account.debt_items == 100 * each
        assert account.debt_bytes > 100 * each
        assert served.holders(account) == {other.name: 100 * each}
        assert held(served, account, "credited") == 100 * each
        served.audit()
        # Other things that it says are no credit.
        await observer.send(*map(gives, ("0", "-5", "x", '"1"', "1.0", "#t", "1 2", "")), WILL)
        await observer.send("<D 5>", '<"C" 5>', "#f")
        await observer.sync()
        assert account.debt_items == 100 * each
        left = 100
        for turns in (1, 10, 1, 37, 50):
            await observer.send(gives(turns))
            left -= turns
            await until(owing(account, left * each))
            served.audit()
        # More than there is settles what there is, and is not kept for what comes.
        await observer.send(gives(10**12))
        await until(lambda: not account.debt_items)
        assert account.debt_bytes == 0
        assert other.debt_items == 0
        await publisher.send(*packets_of("alike", 2))
        await observer.lines(2)
        assert account.debt_items == 2
        acked = served.ledger.repaid_items[Outcome.ACKED]
        assert acked >= 100 * each
        await observer.send(gives(1), gives(1))
        await until(lambda: served.ledger.repaid_items[Outcome.ACKED] == acked + 2)


async def test_credit_for_runs_and_turns_of_several_publishers() -> None:
    """In the order in which they were sent, whoever it was."""
    async with (
        relay(turn_credit="request") as served,
        served.peer() as observer,
        served.peer() as one,
        served.peer() as two,
    ):
        await agreeing(observer)
        for peer in one, two:
            await peer.expect(DO)
        await one.send(*packets_of("alike", 30))
        await one.sync()
        await two.send(*packets_of("turns", 5))
        await two.sync()
        await one.send(*packets_of("different", 4))
        await one.sync()
        first, second = served.account(one), served.account(two)
        owed = [(34, 15)]
        assert [(first.debt_items, second.debt_items)] == owed
        for turns, left, right in (29, 5, 15), (3, 4, 9), (4, 3, 0), (3, 0, 0):
            await observer.send(gives(turns))
            await until(owing(first, left))
            await until(owing(second, right))
            served.audit()
        await observer.lines(34 + 15)


async def test_a_publisher_waits_for_credit_not_for_buffers() -> None:
    """All of it is small enough for the kernel to take; and its own credit waits for that, too."""
    async with (
        relay(turn_credit="request", limit_items=10, patience=60) as served,
        served.peer() as observer,
        served.peer() as publisher,
    ):
        await agreeing(observer)
        await publisher.expect(DO)
        account = served.account(publisher)
        await publisher.send(DO)
        await publisher.expect(WILL)
        async with listening(publisher, observer) as (ear, other):
            await publisher.send(*packets_of("different", 100))
            given = 0
            ear.check = lambda: ear.credit <= given
            while given < 100:
                await until(has_turns(other, given + 1))
                await until(lambda: account.waiting or served.side.counters.received == 100)
                assert account.debt_items <= 10 + 2
                assert other.turns <= given + 11
                assert ear.credit <= given
                turns = other.turns - given
                given += turns
                await observer.send(gives(turns))
            await until(lambda: ear.credit == 100)
            assert other.lines == [f'1 ! [[{n}] ""]' for n in range(100)]


@asynccontextmanager
async def three_of_whom_one_is_stuck(
    unix: str,
) -> AsyncGenerator[tuple[SyndicateRelay, Peer, Peer, Peer]]:
    """Run a relay with credit on request; give it, who is stuck, who hears others, and another."""
    async with (
        relay(listen=(TCP, unix), turn_credit="request", limit_items=3, patience=60) as served,
        served.peer(1) as stuck,
        served.peer() as both,
        served.peer() as other,
    ):
        await stuck.expect(DO)
        await observing(stuck)
        await agreeing(both, rec("Hears", BIND))
        await other.expect(DO)
        yield served, stuck, both, other


@pytest.mark.rule(10)
async def test_credit_passes_what_waits(unix: str) -> None:
    """Rule 10: it would reduce a debt; the publications around it stay in order."""
    async with three_of_whom_one_is_stuck(unix) as (served, stuck, both, other):
        await other.send("[[0 <M <Hears 1>>]]", "[[0 <M <Hears 2>>]]")
        assert await both.lines(2) == ["1 ! [1]", "1 ! [2]"]
        account, third = served.account(both), served.account(other)
        assert third.debt_items == 2
        packets = packets_of("different", 60, LARGE)
        packets[50:50] = [gives(1), gives(1)]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(both.send_raw, wire(*packets))
            # It waits, and what others owe gets less nevertheless.
            await until(lambda: third.debt_items == 0)
            assert account.waiting
            await other.send("[[0 <M <Hears 3>>]]")
            assert await both.lines(1) == ["1 ! [3]"]
            assert account.waiting
            assert served.side.counters.received < 50
            nursery.start_soon(both.send, gives(1))
            await until(lambda: not third.debt_items)
            lines = await stuck.lines(60)
        assert [line.split("]")[0] for line in lines] == [f"1 ! [[{n}" for n in range(60)]
        await until(lambda: not account.debt_items)


async def test_who_asks_for_credit_while_it_waits_is_answered_in_its_turn(unix: str) -> None:
    """Or it could have any number of answers kept for it; and what waits has not been taken yet."""
    async with three_of_whom_one_is_stuck(unix) as (served, stuck, both, other):
        await other.send("[[0 <M <Hears 1>>]]")
        assert await both.lines(1) == ["1 ! [1]"]
        account, third = served.account(both), served.account(other)
        packets = packets_of("different", 60, LARGE)
        packets[50:50] = [*[DO] * 20, gives(1)]
        async with listening(both) as (ear,), trio.open_nursery() as nursery:
            nursery.start_soon(both.send_raw, wire(*packets))
            await until(lambda: not third.debt_items)  # the credit behind them has been taken
            assert account.waiting
            assert held(served, account, "outlet") == account.debt_items < 10
            assert ear.others == []
            await stuck.lines(60)
            await until(lambda: ear.credit >= 10)
            assert ear.credit == 10  # for the turns behind them
            assert ear.others == [WILL] * 20
        served.audit()


async def test_two_who_wait_for_each_others_credit_go_on() -> None:
    """Each publishes what the other observes, over its limit; credit is behind publications."""
    count = 300
    async with (
        relay(turn_credit="request", limit_items=5, patience=60) as served,
        served.peer() as one,
        served.peer() as two,
    ):
        await agreeing(one, rec("Ping", BIND))
        await agreeing(two, rec("Pong", BIND))
        got: dict[str, list[str]] = {"Ping": [], "Pong": []}

        async def talk(peer: Peer, says: str, hears: str) -> None:
            for n in range(count):
                await peer.send(f"[[0 <M <{says} {n}>>]]")
            while len(got[hears]) < count:
                lines = await peer.told()
                got[hears] += lines
                await peer.send(gives(len(lines)))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(talk, one, "Pong", "Ping")
            nursery.start_soon(talk, two, "Ping", "Pong")
        for lines in got.values():
            assert lines == [f"1 ! [{n}]" for n in range(count)]
        await until(lambda: not served.ledger.statistics().debt_items)


async def test_credit_for_what_has_not_left_settles_nothing(unix: str) -> None:
    """Or a peer that does not read would make the relay keep what nobody owes for."""
    async with (
        relay(listen=(TCP, unix), turn_credit="request", patience=60) as served,
        served.peer(1) as liar,
        served.peer() as publisher,
    ):
        await agreeing(liar)
        await publisher.expect(DO)
        account = served.account(publisher)
        await publisher.send_raw(wire(*packets_of("different", 80, LARGE)))
        await publisher.sync()
        assert account.debt_items == 80
        await liar.send(gives(1000), "[[0 <A seen 5>]]")
        await until(lambda: served.statistics.assertions == 2)
        # What the kernel took, and what is being sent.
        assert account.debt_items >= 40
        served.audit()
        # Nor does it help to say so again, or to be told more.
        before = account.debt_items
        await liar.send(*[gives(1)] * 50, "[[0 <A seen 6>]]", "[[0 <A again 7>]]")
        await until(lambda: served.statistics.assertions == 3)
        assert account.debt_items == before
        lines = await liar.lines(80)
        assert [line.split("]")[0] for line in lines] == [f"1 ! [[{n}" for n in range(80)]
        await liar.send(gives(before))
        await until(lambda: not account.debt_items)


# -- how it ends ----------------------------------------------------------------------------------


@pytest.mark.parametrize("who", ["observer", "publisher"])
@pytest.mark.parametrize("how", ["leave", "reset", "error", "fault"])
async def test_who_leaves_settles_what_had_no_credit(who: str, how: str) -> None:
    async with (
        relay(turn_credit="request", limit_items=20, patience=60) as served,
        served.peer() as observer,
        served.peer() as publisher,
    ):
        await agreeing(observer)
        await publisher.expect(DO)
        account = served.account(publisher)
        await publisher.send(*packets_of("alike", 15), *packets_of("turns", 15))
        await until(lambda: account.waiting)
        served.audit()
        leaver = observer if who == "observer" else publisher
        if how == "leave":
            await leaver.leave()
        elif how == "reset":
            await leaver.reset()
        else:
            await leaver.send(
                '<error "enough" 1>' if how == "error" else "[[0 <A x 1>] [0 <A x 1>]]"
            )
        if who == "observer":
            if how in ("error", "fault"):
                await trio.aclose_forcefully(observer.stream)
            await until(lambda: len(served.side.open) == 1)
            await publisher.sync()
            assert account.debt_items == 0
        else:
            if how == "fault":
                # It is found in its turn, after what waits.
                await observer.send(gives(1000))
            found = 0
            while len(served.side.open) == 2 or account.debt_items:
                for line in await observer.told():
                    assert line.startswith("1 ! [")
                    found += 1
                await observer.send(gives(1))
                if found == 60:
                    break
            await until(lambda: not account.debt_items)
        served.audit()


async def test_who_never_gives_credit_is_cut_by_name(caplog: pytest.LogCaptureFixture) -> None:
    async with (
        relay(turn_credit="request", limit_items=5, patience=0.5) as served,
        served.peer() as mean,
        served.peer() as fair,
        served.peer() as publisher,
    ):
        await agreeing(mean)
        await agreeing(fair)
        await publisher.expect(DO)
        await publisher.send(*packets_of("different", 40))
        name, waits = served.account(mean).name, served.account(publisher).name
        got: list[str] = []

        async def read() -> None:
            while len(got) < 40:
                got.extend(await fair.told())
                await fair.send(gives(1))

        async with listening(mean) as (ear,), trio.open_nursery() as nursery:
            nursery.start_soon(read)
            await until(lambda: ear.ended)
        assert got == [f'1 ! [[{n}] ""]' for n in range(40)]
        assert served.ledger.repaid_items[Outcome.WRITTEN_OFF] >= 1
        (line,) = log_of(caplog, "made no progress")
        assert re.search(
            rf"credited {name} made no progress for \d+\.\d s \(patience 0\.5 s\)", line
        )
        assert f"{waits} waits for" in line
        await publisher.sync()


async def test_who_never_gives_credit_may_go_on_if_nobody_waits(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with (
        relay(turn_credit="request", patience=0.1) as served,
        served.peer() as mean,
        served.peer() as publisher,
    ):
        await agreeing(mean)
        await publisher.expect(DO)
        await publisher.send(*packets_of("different", 40))
        await mean.lines(40)
        await trio.sleep(1.2)  # it is looked twice
        assert len(served.side.open) == 2
        assert log_of(caplog, "made no progress") == []


async def test_with_wait_credit_is_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    async with (
        relay(turn_credit="request", limit_items=5, patience=0.1, stuck="wait") as served,
        served.peer() as slow,
        served.peer() as publisher,
    ):
        await agreeing(slow)
        await publisher.expect(DO)
        await publisher.send(*packets_of("different", 40))
        await until(lambda: log_of(caplog, "its policy is to wait"))
        for _ in range(40):
            await slow.lines(1)
            await slow.send(gives(1))
        await publisher.sync()


@pytest.mark.parametrize("kind", ["alike", "different", "turns"])
async def test_an_orderly_stop_waits_for_credit(kind: str) -> None:
    each = 3 if kind == "turns" else 1
    async with (
        relay(turn_credit="request", grace=20) as served,
        served.peer() as observer,
        served.peer() as publisher,
    ):
        await agreeing(observer)
        await publisher.expect(DO)
        account = served.account(publisher)
        await publisher.send(*packets_of(kind, 50))
        await publisher.sync()
        await publisher.leave()
        await until(lambda: len(served.side.open) == 1)
        served.running.stop.set()
        lines = await observer.lines(50 * each)
        await observer.send(gives(20))
        await until(lambda: account.debt_items == 30 * each)
        assert len(served.side.open) == 1
        await observer.send(gives(29))
        await until(lambda: account.debt_items == each)
        # What it publishes now is not dealt with any more, and does not keep credit from passing.
        await observer.send(*packets_of("alike", 3), gives(1))
        await observer.ended()
        assert len(lines) == 50 * each
    assert served.running.report is not None
    assert served.running.report.unflushed == ()


@pytest.mark.parametrize("how", ["nothing", "some", "leave"])
async def test_but_no_longer_than_the_grace(how: str) -> None:
    async with (
        relay(turn_credit="request", grace=0.4 if how != "leave" else 20) as served,
        served.peer() as observer,
        served.peer() as publisher,
    ):
        await agreeing(observer)
        await publisher.expect(DO)
        name = served.account(observer).name
        await publisher.send(*packets_of("different", 50))
        await observer.lines(50)
        await publisher.leave()
        served.running.stop.set()
        if how == "some":
            await observer.send(gives(20))
        elif how == "leave":
            await observer.leave()
        await until(lambda: not served.side.open)
    assert served.running.report is not None
    if how == "leave":
        return
    (sentence,) = served.running.report.unflushed
    left = {"nothing": 50, "some": 30}[how]
    assert sentence.startswith(f"{name}: 0 items (0 bytes) were not sent")
    assert f"{left} items had no credit" in sentence


# -- over WebSocket -------------------------------------------------------------------------------


@asynccontextmanager
async def web(served: SyndicateRelay, listener: int = 0) -> AsyncGenerator[WebPeer]:
    async with web_peer(served.running.addresses.listening[listener]) as peer:
        yield peer


async def extension(peer: WebPeer) -> str:
    return in_text(decode(await peer.raw()))


@pytest.mark.parametrize("kind", KINDS)
async def test_credit_is_given_over_websocket(kind: str, unix: str) -> None:
    count, each = 40, 3 if kind == "turns" else 1
    async with (
        relay(listen=(TCP, WS, unix), patience=60) as served,
        served.peer(2) as stuck,
        web(served, 1) as publisher,
    ):
        await observing(stuck)
        start = f"syndicate:{served.where(1)}/"
        (name,) = [name for name in served.ledger.accounts if name.startswith(start)]
        account = served.ledger.accounts[name]
        await publisher.send(says("1"), DO)
        assert await extension(publisher) == WILL
        async with listening(publisher) as (ear,):
            owed = partial(held, served, account, "outlet")
            ear.check = lambda: ear.credit <= count - owed() // each
            for packet in packets_of(kind, count, LARGE):
                await publisher.send(packet)
            settled = partial(until, lambda: ear.credit == count - owed() // each)
            await until(
                lambda: served.side.counters.received >= 1 + count * each or kind == "states"
            )
            await settled()
            assert ear.credit < count
            await stuck.lines(each * count)
            await until(lambda: ear.credit >= count)
            ear.check = lambda: True
            await publisher.send(says("2"))
            await until(lambda: ear.credit > count)
            assert ear.credit == count + 1


@pytest.mark.parametrize("kind", KINDS)
async def test_credit_is_waited_for_over_websocket(kind: str) -> None:
    each = 3 if kind == "turns" else 1
    async with (
        relay(listen=(WS,), turn_credit="request", limit_items=200) as served,
        AsyncExitStack() as s,
    ):
        observer = await s.enter_async_context(web(served))
        assert await extension(observer) == DO
        (name,) = {*served.ledger.accounts} - {"server", "kept"}
        await observer.send(WILL, observe(SAYS_ALL))
        await observer.sync()
        await observer.send(gives(1))
        publisher = await s.enter_async_context(web(served))
        assert await extension(publisher) == DO
        (other,) = {*served.ledger.accounts} - {"server", "kept", name}
        account = served.ledger.accounts[other]
        for packet in packets_of(kind, 50):
            await publisher.send(packet)
        lines: list[str] = []
        for _ in range(50):
            turn = await observer.told()
            assert len(turn) == each
            lines += turn
        await publisher.sync()
        assert account.debt_items == 50 * each
        assert served.holders(account) == {name: 50 * each}
        for turns, left in ((1, 49), (20, 29), (28, 1), (1, 0)):
            await observer.send(gives(turns))
            await until(owing(account, left * each))
        served.audit()


async def test_over_websocket_credit_passes_what_waits(unix: str) -> None:
    async with (
        relay(listen=(TCP, WS, unix), turn_credit="request", limit_items=3, patience=60) as served,
        served.peer(2) as stuck,
        served.peer() as other,
        web(served, 1) as both,
    ):
        await stuck.expect(DO)
        await observing(stuck)
        await other.expect(DO)
        assert await extension(both) == DO
        await both.send(WILL, observe(rec("Hears", BIND)))
        await both.sync()
        await both.send(gives(1))
        third = served.account(other)
        await other.send("[[0 <M <Hears 1>>]]")
        assert await both.told() == ["1 ! [1]"]
        assert third.debt_items == 1
        packets = packets_of("different", 24, LARGE)

        async def publish() -> None:
            for packet in packets:
                await both.send(packet)
                if packet is packets[20]:
                    await both.send(gives(1))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(publish)
            await until(lambda: third.debt_items == 0)
            lines = await stuck.lines(24)
        assert [line.split("]")[0] for line in lines] == [f"1 ! [[{n}" for n in range(24)]


async def test_over_websocket_a_stop_waits_for_credit() -> None:
    async with (
        relay(listen=(WS,), turn_credit="request", grace=20) as served,
        web(served) as observer,
        web(served) as publisher,
    ):
        assert await extension(observer) == DO
        assert await extension(publisher) == DO
        await observer.send(WILL, observe(SAYS_ALL))
        await observer.sync()
        await observer.send(gives(1))
        await publisher.send(*packets_of("different", 5))
        for _ in range(5):
            await observer.told()
        served.running.stop.set()
        await until(lambda: len(served.side.open) == 1)
        await observer.send(gives(5))
        await until(lambda: not served.side.open)
    assert served.running.report is not None
    assert served.running.report.unflushed == ()
