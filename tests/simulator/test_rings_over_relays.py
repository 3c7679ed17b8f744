"""Rings over several relays: found on each, opened by one; and chains that are none."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from random import Random
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from clearfunds.accounts import Ledger, Limit, LoanedItem, StuckPolicy, rings, watch_patience
from clearfunds.dataspace import GivenUpError, Mailbox, Publication
from clearfunds.dataspace.hops import RemoteHolder, WaitPaths
from clearfunds.dataspace.hops._wait_paths import MAX_PATH, MAX_PATHS
from clearfunds.testing import Box
from tests.simulator.relays import Network, Relay, World, open_world

MESSAGES = 400

pytestmark = pytest.mark.rule(11)


def fine() -> Network:
    return Network(Random(1), slowest=0.0)


class Client:
    """A client that publishes first, and reads when its relay reads it, too.

    It publishes to `to`, for another one.
    """

    def __init__(self, world: World, relay: Relay, name: str, to: str, **options: Any) -> None:
        self.relay = relay
        self.name = name
        self.box: Mailbox[Publication] = relay.subscribe(name, f"for/{name}", **options)
        world.nursery.start_soon(relay.publish, name, f"for/{to}", MESSAGES)
        world.nursery.start_soon(self._read)

    async def _read(self) -> None:
        await trio.sleep(2)  # first everybody publishes
        account = self.relay.ledger.accounts[self.name]
        with suppress(GivenUpError):
            while True:
                await account.ensure_clear_funds()
                await self.relay.take(self.box)

    @property
    def got(self) -> int:
        """How many messages it has got."""
        return len(self.relay.got[self.name])


def watch(world: World) -> None:
    """Watch over slow consumers on all relays."""
    for relay in world.relays:
        world.nursery.start_soon(watch_patience, relay.ledger)


def lost(clients: Iterable[Client]) -> list[str]:
    """Return those that were cut off."""
    return [client.name for client in clients if client.box.closed]


async def finished(clients: Iterable[Client], seconds: float) -> None:
    """Wait until all have got everything but those that were cut off."""
    with trio.fail_after(seconds):
        while any(  # noqa: ASYNC110
            each.got < MESSAGES and not each.box.closed for each in clients
        ):
            await trio.sleep(1)


def around(world: World, **options: Any) -> list[Client]:
    """Return a client on each relay, which publishes to the one of the next relay."""
    count = len(world.relays)
    return [
        Client(world, relay, f"c{number}", f"c{(number + 1) % count}", **options)
        for number, relay in enumerate(world.relays)
    ]


@pytest.mark.parametrize(
    "seed", [*range(2), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 20))]
)
def test_on_a_bad_network_one_member_is_cut_off_and_the_others_get_all(seed: int) -> None:
    chance = Random(seed)
    relays = chance.choice([2, 3, 3, 4, 5])
    network = Network(chance, lost=0.1, repeated=0.1, slowest=0.2)

    async def main() -> None:
        async with open_world(network, relays) as world:
            clients = around(world, patience=20.0)
            watch(world)
            await finished(clients, 400)
            assert lost(clients) == ["c0"]
            assert [each.got for each in clients[1:]] == [MESSAGES] * (relays - 1)
            await world.quiet()

    trio.run(main, clock=MockClock(autojump_threshold=0))


@pytest.mark.parametrize("relays", [3, 4, 5])
async def test_a_ring_is_named_and_opened_once(
    relays: int, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_world(fine(), relays) as world:
        clients = around(world, patience=5.0)
        watch(world)
        await finished(clients, 100)
        # On the relay whose name comes first, and on that one alone.
        assert lost(clients) == ["c0"]
        assert caplog.text.count("made no progress") == 1
        assert "in a ring: c0 waits on remote r1/c1" in caplog.text
        assert f"via/r{relays - 1}/c{relays - 1} waits on mailbox c0" in caplog.text
        await world.quiet()


@pytest.mark.parametrize("relays", [2, 3, 4])
async def test_each_relay_sees_the_ring_while_it_lasts(
    relays: int, autojump_clock: MockClock
) -> None:
    async with open_world(fine(), relays) as world:
        clients = around(world)
        await trio.sleep(12)
        for number, relay in enumerate(world.relays):
            (ring,) = rings(relay.ledger)
            before = (number - 1) % relays
            assert set(ring.members) == {f"c{number}", f"via/r{before}/c{before}"}
            (remote,) = [on.holder for wait in ring.waits for on in wait.on if on.kind == "remote"]
            assert isinstance(remote, RemoteHolder)
            assert remote.ring_rank == number
            after = (number + 1) % relays
            path = [(f"r{(after + n) % relays}", f"c{(after + n) % relays}") for n in range(relays)]
            assert remote.paths == (tuple(path),)
        clients[0].box.give_up("to see what becomes of the others")
        await trio.sleep(10)
        await world.quiet()
        assert [each.got for each in clients[1:]] == [MESSAGES] * (relays - 1)
        for relay in world.relays:
            assert not rings(relay.ledger)
            assert not any(hop.remotes for hop in relay.hops.values())
            assert all(relay.paths.of(each) == () for each in relay.ledger.accounts.values())


async def test_a_ring_with_several_members_on_one_relay(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """a@r0 waits for b@r1, b for c@r1, c for d@r2, d for e@r0, e for a@r0."""
    async with open_world(fine(), 3) as world:
        r0, r1, r2 = world.relays
        clients = [
            Client(world, r0, "a", "b", patience=20.0),
            Client(world, r1, "b", "c", patience=20.0),
            Client(world, r1, "c", "d", patience=20.0),
            Client(world, r2, "d", "e", patience=20.0),
            Client(world, r0, "e", "a", patience=20.0),
        ]
        watch(world)
        await finished(clients, 400)
        assert len(lost(clients)) == 1
        assert lost(clients)[0] in ("a", "e")
        left = [each for each in clients if not each.box.closed]
        assert [each.got for each in left] == [MESSAGES] * 4
        assert caplog.text.count("in a ring") == 1


async def test_where_the_first_relay_must_not_open_it_the_next_one_does(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_world(fine(), 3) as world:
        r0, r1, r2 = world.relays
        clients = [
            Client(world, r0, "c0", "c1", patience=10.0, policy=StuckPolicy.WAIT),
            Client(world, r1, "c1", "c2", patience=10.0),
            Client(world, r2, "c2", "c0", patience=10.0),
        ]
        watch(world)
        await trio.sleep(19)
        assert lost(clients) == []
        assert "in a ring: c0 waits on remote r1/c1" in caplog.text
        await finished(clients, 400)
        assert lost(clients) == ["c1"]
        assert [clients[0].got, clients[2].got] == [MESSAGES] * 2


async def test_a_chain_that_ends_is_no_ring_and_its_last_one_is_cut_off(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_world(fine(), 3) as world:
        r0, r1, r2 = world.relays
        clients = [
            Client(world, r0, "c0", "c1", patience=60.0),
            Client(world, r1, "c1", "c2", patience=60.0),
        ]
        stuck = r2.subscribe("c2", "for/c2", patience=20.0)
        watch(world)
        await trio.sleep(12)
        for relay in world.relays:
            assert not rings(relay.ledger)
        (remote,) = r0.hops["r1"].remotes
        assert remote.paths == ((("r1", "c1"), ("r2", "c2")),) or remote.paths == ((("r1", "c1"),),)
        with trio.fail_after(200):
            while clients[1].got < MESSAGES:  # noqa: ASYNC110
                await trio.sleep(1)
        assert stuck.closed
        assert lost(clients) == []
        assert clients[1].got == MESSAGES
        assert "in a ring" not in caplog.text


async def test_members_that_also_wait_for_others_that_go_on_are_on_no_ring(
    autojump_clock: MockClock,
) -> None:
    """What a fast reader holds of a member's debt would let it go on."""
    async with open_world(fine(), 3, Limit(items=100, low_items=80, bytes=None)) as world:
        r0 = world.relays[0]
        for number in range(8):
            # Each message goes to eight more, who take it after a while.
            box = r0.subscribe(f"other {number}", "for/c1")
            world.nursery.start_soon(r0.read, box, lambda: 5.0)
        around(world)
        await trio.sleep(7)
        assert "c0" in {each.account.name for each in r0.ledger.waiters}
        for relay in world.relays:
            assert not rings(relay.ledger)


async def test_paths_are_bounded_and_stop_where_they_began(autojump_clock: MockClock) -> None:
    ledger = Ledger(clock=trio.current_time)
    paths = WaitPaths(ledger, "here")
    limit = Limit(items=1, bytes=None)
    waiting, other = ledger.open("waiting", limit=limit), ledger.open("other", limit=limit)
    assert paths.of(waiting) == ()
    own = Box(ledger, "own")
    own.owner = waiting
    with other.turn() as turn:
        for _ in range(3):
            turn.send(own, b"")
    remotes = [RemoteHolder(ledger, f"r{number}/x", f"r{number}", "here") for number in range(10)]
    long = tuple((f"r{number}", "y") for number in range(50, 150))
    for number, remote in enumerate(remotes):
        loan = LoanedItem(waiting, b"")
        loan.held_by(remote)
        remote.held[number] = loan
        remote.waits_for("x", [long, (("z", "z"), ("here", "waiting"), ("no", "more"))])
        assert remote.owner is None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(waiting.ensure_clear_funds)
        nursery.start_soon(other.ensure_clear_funds)
        await trio.sleep(5)
        for _ in paths.look_in_steps(remotes):
            pass
        found = paths.of(waiting)
        assert len(found) == MAX_PATHS
        assert max(map(len, found)) == MAX_PATH
        assert (("r0", "x"), ("z", "z")) in found
        (path, *_) = paths.of(other)
        assert path[:2] == (("here", "waiting"), ("r0", "x"))
        paths.clear()
        assert paths.of(waiting) == ()
        own.settle_all()
        for remote in remotes:
            for loan in remote.held.values():
                loan.settle()
            remote.held.clear()
    ledger.audit()
