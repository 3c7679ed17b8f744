"""Who pays for what between Syndicate peers, and who waits until when."""

from __future__ import annotations

import random
import re
import zlib
from contextlib import AsyncExitStack
from typing import Any

import pytest
import trio

from clearfunds.accounts import Account, Outcome
from clearfunds.transports.syndicate._preserves import canonical
from tests.transports.peers import log_of, until
from tests.transports.syndicate.relay.peers import (
    BIND,
    WHOLE_SAYS,
    Peer,
    SyndicateRelay,
    flat,
    observe,
    rec,
    relay,
    says,
    wire,
)

LITTLE = 4096
"""A receive buffer so small that what a peer does not read stays in the relay, soon."""

LARGE = "x" * 500_000
ANY_SAYS = rec("Says", BIND)
SAYS_ALL = rec("Says", BIND, BIND)
TOLD_LARGE = f"<long 500000 {zlib.crc32(LARGE.encode())}>"


def large(*texts: str) -> bytes:
    """The packets that are written so, with a large string wherever they have "@".

    To parse it as text would take the library a second for each megabyte.
    """
    return wire(*texts).replace(canonical("@"), canonical(LARGE))


def numbers(lines: list[str], sign: str = "!") -> list[int]:
    """The numbers of the large messages that were told."""
    head, tail = f"1 {sign} [", f" {TOLD_LARGE}]"
    assert all(line.startswith(head) and line.endswith(tail) for line in lines), lines
    return [int(line.removeprefix(head).removesuffix(tail)) for line in lines]


def numbered(count: int) -> bytes:
    """Messages with a number each, and much besides."""
    return large(*[f'[[0 <M <Says {n} "@">>]]' for n in range(count)])


async def throttled(account: Account) -> None:
    """Wait until this account's reader waits, and stays so."""
    while not account.waiting:
        await until(lambda: account.waiting)
        await trio.sleep(0.1)  # the kernel takes some more at first


# -- whose debt -----------------------------------------------------------------------------------


async def test_what_a_stuck_observer_holds_its_publisher_owes() -> None:
    async with (
        relay(limit_items=3, patience=60) as served,
        served.peer(receive_buffer=LITTLE) as stuck,
        served.peer() as quick,
        served.peer() as publisher,
        served.peer() as bystander,
    ):
        for peer in stuck, quick:
            await peer.send(observe(SAYS_ALL))
            await peer.sync()
        await bystander.sync()
        port = served.where()
        for peer in stuck, quick, publisher, bystander:
            host, own_port = peer.sock.getsockname()
            assert served.account(peer).name == f"syndicate:{port}/-/{host}:{own_port}"
        account = served.account(publisher)
        got: list[str] = []

        async def read() -> None:
            while len(got) < 21:
                got.extend(await quick.told())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(publisher.send_raw, numbered(20))
            nursery.start_soon(read)
            await throttled(account)
            await until(lambda: set(served.holders(account)) == {served.account(stuck).name})
            assert account.debt_bytes >= 250_000
            served.audit()
            for peer in stuck, quick, bystander:
                assert served.account(peer).debt_items == 0
            # Nobody else waits for that.
            await bystander.send("[[0 <M <Says [quick] 1>>]]")
            assert await bystander.sync() == []
            await until(lambda: "1 ! [[quick] 1]" in got)
            assert len(got) < 21
            # It reads, and all goes on: nothing is lost, all is in order.
            lines = await stuck.lines(21)
            assert numbers([line for line in lines if "quick" not in line]) == list(range(20))
        await until(lambda: not account.debt_items)
        blame = account.statistics().blame
        assert max(blame, key=blame.__getitem__) == served.account(stuck).name


@pytest.mark.parametrize("kind", ["alike", "different", "assertions", "turns", "sizes"])
@pytest.mark.parametrize("observers", [1, 9])
@pytest.mark.parametrize(
    "limit",
    [(20, None), (None, 20_000), (0, None), pytest.param((1, None), marks=pytest.mark.long)],
)
async def test_the_debt_stays_within_the_limit_and_one_packet(
    kind: str, observers: int, limit: tuple[int | None, int | None]
) -> None:
    """Looked at for each packet: one read holds hundreds of them."""
    chance = random.Random(kind)
    count = 600 // observers
    packets: list[str] = []
    lines: list[str] = []
    events = 3 if kind == "turns" else 1
    for n in range(count):
        filler = '"x"' if kind != "sizes" else f'"{"x" * chance.choice([0, 10, 200, 4000])}"'
        if kind == "assertions":
            packets.append(f"[[0 <A <Says {n}> {n + 10}>]]")
            lines.append(f"1 + [{n}]")
        elif kind == "different":
            packets.append(f"[[0 <M <Says {n} [{n} x]>>]]")
            lines.append(f"1 ! [{n}]")
        elif kind == "alike":
            packets.append(f'[[0 <M <Says "{n}">>]]')
            lines.append(f'1 ! ["{n}"]')
        else:
            event = f"[0 <M <Says {n} {filler}>>]"
            packets.append(f"[{event * events}]")
            lines += [f"1 ! [{n}]"] * events
    largest = max(len(wire(packet)) for packet in packets) + 32 * events
    items, nbytes = limit
    async with (
        relay(limit_items=items, limit_bytes=nbytes) as served,
        AsyncExitStack() as stack,
    ):
        watching = [
            await stack.enter_async_context(served.peer(receive_buffer=LITTLE))
            for _ in range(observers)
        ]
        for peer in watching:
            await peer.send(observe(ANY_SAYS))
            await peer.sync()
        publisher = await stack.enter_async_context(served.peer())
        await publisher.sync()
        account = served.account(publisher)
        account.peak_items = account.peak_bytes = 0
        got: list[list[str]] = []

        async def read(peer: Peer) -> None:
            got.append(await peer.lines(len(lines)))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(publisher.send_raw, wire(*packets))
            await trio.sleep(0.02)
            served.audit()
            for peer in watching:
                nursery.start_soon(read, peer)
        await until(lambda: not account.debt_items)
        one = events * (observers + 1)
        assert account.peak_items > 0
        if items is not None:
            assert account.peak_items <= items + one
        if nbytes is not None:
            assert account.peak_bytes <= nbytes + (observers + 1) * largest
        assert got == [lines] * observers


async def test_a_fan_out_above_the_limit_is_admitted_and_then_waited_for() -> None:
    async with relay(limit_items=3, patience=60) as served, AsyncExitStack() as stack:
        watching = [
            await stack.enter_async_context(served.peer(receive_buffer=LITTLE)) for _ in range(20)
        ]
        for peer in watching:
            await peer.send(observe(ANY_SAYS))
            await peer.sync()
        publisher = await stack.enter_async_context(served.peer())
        await publisher.sync()
        account = served.account(publisher)
        async with trio.open_nursery() as nursery:
            stream = large(*['[[0 <M <Says ["@" "@"]>>]]'] * 6)
            nursery.start_soon(publisher.send_raw, stream)
            await throttled(account)
            assert account.debt_items > 3
            served.audit()
            for peer in watching:
                nursery.start_soon(peer.lines, 6)
        assert account.peak_items <= 3 + 21
        await until(lambda: not account.debt_items)


@pytest.mark.rule(2)
async def test_what_a_new_observer_is_told_it_owes_itself() -> None:
    """Rule 2: not those who asserted it, and who may be gone."""
    async with (
        relay(limit_items=5, patience=60) as served,
        served.peer() as publisher,
        served.peer(receive_buffer=LITTLE) as observer,
    ):
        for n in range(20):
            await publisher.send_raw(large(f'[[0 <A <Says {n} "@"> {n}>]]'))
        await publisher.sync()
        await observer.send(observe(rec("Says", BIND, BIND)))
        account = served.account(observer)
        await until(lambda: account.debt_items >= 10)
        assert served.account(publisher).debt_items == 0
        # It is not read either, until it has taken that.
        await observer.send("[[0 <M 1>]]", "[[0 <S #:[0 5]>]]")
        await until(lambda: account.waiting)
        lines = await observer.lines(21)
        assert sorted(numbers(lines[:-1], "+")) == list(range(20))
        assert lines[-1] == "5 ! #t"
        await until(lambda: not account.debt_items)


@pytest.mark.parametrize("how", ["leave", "reset"])
async def test_what_goes_with_a_connection_is_retracted_on_its_account(how: str) -> None:
    """Upstream has a nameless account for that, which nobody ever waits for."""
    async with (
        relay(limit_items=200, patience=60) as served,
        served.peer(receive_buffer=LITTLE) as observer,
        served.peer() as publisher,
        served.peer() as filler,
    ):
        await observer.send(observe(ANY_SAYS))
        await observer.sync()
        await publisher.send(*[f"[[0 <A <Says [{n}]> {n}>]]" for n in range(50)])
        await publisher.sync()
        await filler.send_raw(large(*['[[0 <M <Says "@">>]]'] * 15))
        await filler.sync()
        account = served.account(publisher)
        assert account.debt_items == 0
        other = served.account(filler)
        before = other.debt_items
        assert before
        await (publisher.leave() if how == "leave" else publisher.reset())
        await until(lambda: len(served.side.open) == 2)
        assert account.debt_items == 50
        assert account.state == "closing"
        assert served.holders(account) == {served.account(observer).name: 50}
        assert other.debt_items == before
        assert served.account(observer).debt_items == 0
        names = {"server", "kept", account.name, other.name, served.account(observer).name}
        assert set(served.ledger.accounts) == names
        served.audit()
        lines = await observer.lines(50 + 15 + 50)
        assert sorted(line for line in lines if " - " in line) == sorted(
            f"1 - [[{n}]]" for n in range(50)
        )
        await until(lambda: account.name not in served.ledger.accounts)


async def test_what_one_says_to_anothers_entity_it_owes() -> None:
    """Past the dataspace, by a reference: messages, assertions, retractions and syncs."""
    async with (
        relay(limit_items=4, patience=60) as served,
        served.peer(receive_buffer=LITTLE) as service,
        served.peer() as client,
    ):
        await service.send("[[0 <A <service #:[0 7]> 77>]]")
        await service.sync()
        await client.send(observe(rec("service", BIND), 70, 70))
        (line,) = await client.told()
        oid = line.removesuffix("]]").rpartition(" ")[2]
        account = served.account(client)
        events = [f'<M [{n} "@"]>' for n in range(16)]
        events += ["<A [17] 1>", "<R 1>", "<S #:[0 9]>", "<M [18]>"]
        async with trio.open_nursery() as nursery:
            stream = large(*[f"[[{oid} {event}]]" for event in events])
            nursery.start_soon(client.send_raw, stream)
            await throttled(account)
            assert set(served.holders(account)) == {served.account(service).name}
            assert served.account(service).debt_items == 0
            served.audit()
            lines = await service.lines(20)
        assert numbers([line.replace("7 ", "1 ", 1) for line in lines[:16]]) == list(range(16))
        assert lines[16:18] == ["7 + [17]", "7 - [17]"]
        assert lines[18].startswith("7 ? ")
        assert lines[19] == "7 ! [18]"
        await until(lambda: not account.debt_items)


async def test_what_concerns_nobody_costs_nothing_for_long() -> None:
    async with relay(limit_items=1) as served, served.peer() as publisher:
        await publisher.send(*[says(f"{n} [x]") for n in range(500)])
        await publisher.sync()
        assert served.account(publisher).debt_items == 0


async def test_a_peer_that_owes_to_itself_finishes() -> None:
    """It observes what it says, and is over its limit both ways."""
    async with relay(limit_items=2, patience=60) as served, served.peer() as peer:
        await peer.send(observe(ANY_SAYS))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(peer.send_raw, large(*['[[0 <M <Says "@">>]]'] * 10))
            await peer.lines(10)
        for _ in range(3):
            await peer.send(*[says(str(n)) for n in range(500)])
            assert await peer.lines(500) == [f"1 ! [{n}]" for n in range(500)]
        await until(lambda: not served.account(peer).debt_items)


# -- those who are stuck --------------------------------------------------------------------------


async def test_a_stuck_observer_is_given_up_by_name(caplog: pytest.LogCaptureFixture) -> None:
    async with (
        relay(limit_items=3, patience=0.5) as served,
        served.peer(receive_buffer=LITTLE) as stuck,
        served.peer() as quick,
        served.peer() as publisher,
    ):
        for peer in stuck, quick:
            await peer.send(observe(SAYS_ALL))
            await peer.sync()
        await publisher.sync()
        name, waits = served.account(stuck).name, served.account(publisher).name
        async with trio.open_nursery() as nursery:
            nursery.start_soon(publisher.send_raw, numbered(20))
            assert numbers(await quick.lines(20)) == list(range(20))
        await until(lambda: len(served.side.open) == 2)
        assert served.ledger.repaid_items[Outcome.WRITTEN_OFF] >= 1
        (line,) = log_of(caplog, "made no progress")
        assert re.search(
            rf"outlet {name} made no progress for [0-3]\.\d s \(patience 0\.5 s\)", line
        )
        assert f"{waits} waits for" in line
        assert served.statistics.observations == 1
        await publisher.sync()


async def test_with_wait_it_is_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    async with (
        relay(limit_items=3, patience=0.2, stuck="wait") as served,
        served.peer(receive_buffer=LITTLE) as stuck,
        served.peer() as publisher,
    ):
        await stuck.send(observe(SAYS_ALL))
        await stuck.sync()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(publisher.send_raw, numbered(20))
            await until(lambda: log_of(caplog, "its policy is to wait"))
            assert numbers(await stuck.lines(20)) == list(range(20))


@pytest.mark.parametrize("who", ["observer", "publisher"])
async def test_who_leaves_settles_what_it_held_and_owed(who: str) -> None:
    async with (
        relay(limit_items=3, patience=60) as served,
        served.peer(receive_buffer=LITTLE) as observer,
        served.peer() as publisher,
    ):
        await observer.send(observe(SAYS_ALL))
        await observer.sync()
        async with trio.open_nursery() as nursery:

            async def send() -> None:
                try:
                    await publisher.send_raw(numbered(20))
                except (trio.BrokenResourceError, trio.ClosedResourceError):
                    assert who == "publisher"

            nursery.start_soon(send)
            await publisher_waits(served, publisher)
            await (observer if who == "observer" else publisher).reset()
        if who == "observer":
            await publisher.sync()
            await until(lambda: not served.account(publisher).debt_items)
        else:
            # What it had said is delivered, and paid for.
            found = numbers(flat(await observer.sync()))
            assert found == list(range(len(found)))
            assert found
        served.audit()


async def publisher_waits(served: SyndicateRelay, publisher: Peer) -> None:
    await until(lambda: any(s.account.waiting for s in served.side.open))
    assert served.account(publisher).waiting


async def test_two_who_echo_each_other_come_to_an_end() -> None:
    """A thousand messages in flight, in buffers of 32 KiB; upstream stalls for ever at that."""
    count, hops = 1000, 4
    async with (
        relay(limit_items=100, patience=2) as served,
        served.peer(receive_buffer=32 << 10) as one,
        served.peer(receive_buffer=32 << 10) as other,
    ):
        await one.send(observe(rec("Ping", BIND, BIND)))
        await one.sync()
        await other.send(observe(rec("Pong", BIND, BIND)))
        await other.sync()
        body = "y" * 150
        done: dict[str, int] = {"Ping": 0, "Pong": 0}
        turns = {one: trio.Lock(), other: trio.Lock()}

        async def say(peer: Peer, what: str, number: int | str) -> None:
            async with turns[peer]:
                await peer.send(f'[[0 <M <{what} {number} "{body}">>]]')

        async def echo(peer: Peer, answer: str) -> None:
            for _ in range(count * hops):
                (line,) = await peer.lines(1)
                done[answer] += 1
                number = line.split("[")[1].split(" ")[0]
                await say(peer, answer, number)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(echo, one, "Pong")
            nursery.start_soon(echo, other, "Ping")
            for n in range(count):
                await say(one, "Pong", n)
            await until(lambda: min(done.values()) >= count * (hops - 1), 60)
            nursery.cancel_scope.cancel()
        served.audit()


# -- tables --------------------------------------------------------------------------------------


def patterns(count: int) -> list[str]:
    """Patterns of which no two look at the same places."""
    shapes: list[str] = []
    for n in range(count):
        inner = f"<group <arr> {{{n}: <lit 1> {n + 1 + n % 3}: <bind <_>>}}>"
        shapes.append(rec(f"label{n % 7}", *[""] * (n % 5), inner))
    return shapes


async def test_no_table_keeps_what_nobody_wants_any_more() -> None:
    """Upstream's index never forgets a shape."""
    async with relay(quota_shapes=None) as served, served.peer() as peer, served.peer() as other:
        for _ in range(3):
            await peer.send(*[observe(p, 1, n) for n, p in enumerate(patterns(300))])
            await other.send(*[observe(p, 1, n) for n, p in enumerate(patterns(150))])
            await peer.sync()
            await other.sync()
            statistics = served.statistics
            assert statistics.observations == 450
            assert statistics.shapes == 300
            await peer.send("[[0 <M <label1 [1 2 3 4]>>]]", *[f"[[0 <R {n}>]]" for n in range(300)])
            await peer.sync()
            assert served.statistics.shapes == 150
            await other.send(f"[{' '.join(f'[0 <R {n}>]' for n in range(150))}]")
            await other.sync()
            served.empty()
        await peer.send(*[observe(p, 1, n) for n, p in enumerate(patterns(300))])
        await peer.sync()
    # And what goes with its connection goes as well: see `relay`.


@pytest.mark.rule(16)
@pytest.mark.parametrize("quota", [{"quota_items": 20}, {"quota_bytes": 4_000}])
async def test_what_stands_is_counted_against_a_quota(quota: dict[str, Any]) -> None:
    """Rule 16: who goes beyond it is refused; others have a quota of their own, and it returns."""
    async with relay(**quota) as served, served.peer() as other:
        for _ in range(3):
            async with served.peer() as peer:
                packets = [f"[[0 <A <Says {n} {'y' * 200}> {n}>]]" for n in range(100)]
                await peer.send(*packets)
                why, _ = await peer.refused()
                assert "quota" in why
                (number,) = quota.values()
                assert str(number) in why.replace(",", "").replace("_", "")
            await until(lambda: len(served.side.open) == 1)
            assert served.statistics.assertions == 0
            for n in range(100):
                await other.send(f"[[0 <A <Says {n} {'y' * 200}> 1>]]", "[[0 <R 1>]]")
            await other.sync()


async def test_who_pays_for_whom_is_seen_in_the_matrix() -> None:
    async with (
        relay(limit_items=50, patience=60) as served,
        served.peer(receive_buffer=LITTLE) as stuck,
        served.peer() as one,
        served.peer() as two,
    ):
        await stuck.send(observe(WHOLE_SAYS))
        await stuck.sync()
        for peer in one, two:
            await peer.send_raw(numbered(12))
            await peer.sync()
        name = served.account(stuck).name
        owed = [served.holders(served.account(peer)) for peer in (one, two)]
        assert all(found.keys() == {name} for found in owed)
        matrix = {(h.account, h.holder): h.items for h in served.ledger.matrix()}
        assert matrix == {
            (served.account(peer).name, name): found[name]
            for peer, found in zip((one, two), owed, strict=True)
        }
        lines = await stuck.lines(24)
        found = [int(line.split(" ")[3]) for line in lines]
        assert found == [*range(12), *range(12)]
