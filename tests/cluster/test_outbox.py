"""Outboxes: QoS 2 reaches the subscribers of other relays once, whichever relay dies."""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
import trio

from clearfunds.accounts import NO_LIMIT, Confirm, CountedConfirm, Ledger
from clearfunds.cluster import Outboxes
from clearfunds.dataspace import Publication
from clearfunds.dataspace.hops import Hop, Parcel, Receipt
from clearfunds.persistence import Shelves, open_shelves
from clearfunds.persistence._writes import Writes, Written, nowhere
from clearfunds.store import StoreSettings
from clearfunds.transports import open_flusher
from tests.nats_servers import nats_server, needs_nats
from tests.relay.faithful import Life, Load, mixed
from tests.relay.relay_process import RelayProcess, relay_process
from tests.transports.peers import until

SETTINGS = StoreSettings(fsync_interval=0.0)


class Exactly(Writes):
    """The confirm of a publication with a packet identifier."""

    def __init__(self) -> None:
        self.has_come = False
        self.has_been_written = False

    def expect(self) -> None:
        assert not self.has_come

    def taken(self) -> None:
        self.has_come = True

    def refused(self, reason: str) -> None:
        raise AssertionError(reason)

    def written(self, where: str = "", put: Callable[[str, bytes], object] = nowhere) -> Confirm:
        assert where == "outbox/r1"
        self.has_been_written = True
        return Written(self)

    def written_is_taken(self) -> None:
        self.has_come = True


class Here:
    """One life of a relay, with its outbox for another one."""

    def __init__(self, shelves: Shelves) -> None:
        self.ledger = Ledger()
        self.disk = self.ledger.open("disk", limit=NO_LIMIT)
        self.outboxes = Outboxes(shelves, self.ledger, self.disk)
        self.outbox = self.outboxes.of("r1")
        self.hop = self.begin(1)

    def begin(self, epoch: int) -> Hop:
        """Begin a life of the hop."""
        self.hop = Hop(self.ledger, "r1", epoch)
        self.hop.outbox = self.outbox
        return self.hop

    def publish(self, *payloads: bytes) -> list[Exactly]:
        """Publish for the other relay alone."""
        confirms: list[Exactly] = []
        with self.ledger.open("alice", limit=NO_LIMIT, parent=None) as account:
            for payload in payloads:
                with account.turn() as turn:
                    turn.confirm = confirm = Exactly()
                    turn.send(self.hop, Publication("t", payload, 2))
                confirms.append(confirm)
        return confirms

    async def sent(self, count: int) -> tuple[Parcel, ...]:
        """Attach the outbox to the hop; return what it sends to a landing that is there."""
        self.outbox.attach(self.hop)
        self.hop.receipt(Receipt(self.hop.epoch, 1, 1, 1))
        await until(lambda: sum(loan.items for loan in self.hop.queue) == count)
        return self.hop.shipment().parcels

    def close(self) -> None:
        self.outbox.detach(self.hop)
        self.hop.close()
        self.outboxes.close()
        self.ledger.audit()
        assert not any(each.debt_items for each in self.ledger.accounts.values())


@asynccontextmanager
async def here(directory: Path) -> AsyncGenerator[Here]:
    """Live once, with what is in a store."""
    async with open_flusher() as flusher, open_shelves(directory, SETTINGS, flusher) as shelves:
        relay = Here(shelves)
        try:
            yield relay
        finally:
            relay.close()


def payloads(parcels: tuple[Parcel, ...]) -> list[bytes]:
    """Return what parcels bring, each one event."""
    return [event.payload for parcel in parcels for event in parcel.events]


@pytest.mark.rule(7, 15)
async def test_what_is_stored_is_confirmed_and_sent_until_it_is_taken(tmp_path: Path) -> None:
    """Over two lives of the relay, with the same identity."""
    async with here(tmp_path) as relay:
        confirms = relay.publish(b"0", b"1", b"2")
        await until(lambda: all(each.has_come for each in confirms))
        assert all(each.has_been_written for each in confirms)
        first = await relay.sent(3)
        assert payloads(first) == [b"0", b"1", b"2"]
        assert [each.origin for each in first] == ["alice"] * 3
        assert all(each.asks and each.of is not None for each in first)
        # The second is taken.
        relay.hop.receipt(Receipt(1, 1, 2, 4, taken=((2, 2),)))
        await until(lambda: len(relay.outbox) == 2)
    async with here(tmp_path) as relay:
        assert len(relay.outbox) == 2
        again = await relay.sent(2)
        assert payloads(again) == [b"0", b"2"]
        assert [each.of for each in again] == [first[0].of, first[2].of]
        relay.hop.receipt(Receipt(1, 1, 2, 3, settled=((1, 2),)))
        await until(lambda: not len(relay.outbox))
    async with here(tmp_path) as relay:
        assert not len(relay.outbox)


async def test_what_is_erased_comes_no_more_and_the_other_relay_is_told(tmp_path: Path) -> None:
    async with here(tmp_path) as relay:
        relay.publish(b"0", b"1", b"2")
        assert relay.hop.hello().erased is None
        number, first = identity(await relay.sent(3))
        assert relay.hop.hello().erased == (number, first)
        relay.hop.receipt(Receipt(1, 1, 2, 4, taken=((2, 2),)))
        assert relay.hop.hello().erased == (number, first)
        relay.hop.receipt(Receipt(1, 1, 3, 4, taken=((1, 2),)))
        await until(lambda: relay.hop.hello().erased == (number, first + 2))
        relay.hop.receipt(Receipt(1, 1, 4, 4, settled=((1, 3),)))
        await until(lambda: relay.hop.hello().erased == (number, first + 3))


def identity(parcels: tuple[Parcel, ...]) -> tuple[int, int]:
    """Return the identity of the first parcel."""
    found = parcels[0].of
    assert found is not None
    return found


@pytest.mark.parametrize("ends", ["away", "given up", "restarted"])
async def test_what_the_hop_gives_up_is_sent_again(ends: str, tmp_path: Path) -> None:
    async with here(tmp_path) as relay:
        relay.publish(b"0", b"1")
        first = await relay.sent(2)
        hop = relay.hop
        if ends == "away":
            relay.outbox.detach(hop)
            hop.leave()
            assert not list(hop.loans())
            relay.publish(b"2")  # is stored for the next life
            before, hop = hop, relay.begin(2)
            hop.take_over(before)
        elif ends == "given up":
            hop.give_up("nothing comes")
            relay.publish(b"2")
        else:
            hop.receipt(Receipt(1, 1, 2, 3))
            hop.receipt(Receipt(1, 2, 1, 3))  # another life of the landing, which has lost them
            relay.publish(b"2")
        relay.outbox.tick(relay.ledger.clock())
        if ends == "restarted":
            await until(lambda: sum(loan.items for loan in hop.queue) == 3)
            again = hop.shipment().parcels
        else:
            again = await relay.sent(3)
        assert payloads(again) == [b"0", b"1", b"2"]
        assert [each.of for each in again[:2]] == [each.of for each in first]
        relay.ledger.audit()


async def test_an_outbox_for_a_relay_that_does_not_come_back_is_deleted(tmp_path: Path) -> None:
    async with here(tmp_path) as relay:
        first = identity(await _one(relay))
        assert relay.outboxes.forget("r1") == 1
        assert relay.outboxes.forget("r1") == 0
        relay.outbox = relay.outboxes.of("r1")
        relay.hop.close()
        relay.begin(2)
        assert not len(relay.outbox)
        # The next one is another one, so nothing of it is taken for what was there before.
        second = identity(await _one(relay))
        assert first[0] != second[0]
        relay.outboxes.forget_others([])
    async with here(tmp_path) as relay:
        assert not len(relay.outbox)


async def _one(relay: Here) -> tuple[Parcel, ...]:
    relay.publish(b"0")
    return await relay.sent(1)


class Plain(CountedConfirm):
    """The confirm of a publication without a packet identifier to store."""

    def __init__(self) -> None:
        self.expected = 0

    def taken(self) -> None:
        self.expected -= 1

    def refused(self, reason: str) -> None:
        raise AssertionError(reason)


@pytest.mark.parametrize(("qos", "confirm"), [(1, Exactly()), (2, Plain()), (2, None)])
async def test_other_publications_are_not_stored(
    qos: int, confirm: Confirm | None, tmp_path: Path
) -> None:
    """Those with QoS 1, and of clients without a persistent session."""
    async with here(tmp_path) as relay:
        with relay.ledger.open("alice", limit=NO_LIMIT) as account, account.turn() as turn:
            turn.confirm = confirm
            turn.send(relay.hop, Publication("t", b"0", qos))
        assert not len(relay.outbox)
        relay.hop.receipt(Receipt(1, 1, 1, 1))
        assert payloads(relay.hop.shipment().parcels) == [b"0"]
        if isinstance(confirm, Plain):
            assert confirm.expected == 1
            relay.hop.receipt(Receipt(1, 1, 2, 2, taken=((1, 1),)))
            assert confirm.expected == 0


async def knows_what_is_wanted(relay: RelayProcess) -> bool:
    """Whether a relay knows that another one has subscribers."""
    metrics = await relay.page("/metrics")
    return 'clearfunds_subscriptions{transport="mqtt"} 1.0' in metrics


def _has_confirmed(load: Load, number: int) -> bool:
    return len(load.confirmed) > number


@needs_nats
@pytest.mark.parametrize("seed", [1, *(pytest.param(n, marks=pytest.mark.long) for n in range(10))])
@pytest.mark.parametrize("is_replicated", [pytest.param(False, marks=pytest.mark.long), True])
async def test_relays_are_killed_again_and_again_under_load(
    seed: int, is_replicated: bool, tmp_path: Path
) -> None:
    """Nothing confirmed is lost, and nothing of QoS 2 comes twice."""
    chance = random.Random(seed)
    load = Load(seed)
    mixed(load)
    with nats_server(tmp_path) as server:

        def relay(name: str) -> AbstractAsyncContextManager[RelayProcess]:
            folder = tmp_path / name
            folder.mkdir()
            if is_replicated:
                return relay_process(folder, "--no-stand-in", nats=server.url, name=name)
            return relay_process(folder, "--cluster", server.url, "--name", name)

        async with relay("one") as one, relay("two") as two, trio.open_nursery() as nursery:
            load.life = Life(two.port)
            load.publishes_at = Life(one.port)
            load.publishing = False
            load.start(nursery)
            while not await knows_what_is_wanted(one):  # noqa: ASYNC110
                await trio.sleep(0.02)
            load.publishing = True
            for which in (one, one, two, one):
                await until(partial(_has_confirmed, load, len(load.confirmed) + 20))
                await trio.sleep(chance.uniform(0.0, 0.3))
                await which.kill()
                await which.start()
            await until(partial(_has_confirmed, load, len(load.confirmed) + 20))
            await load.settled()
            for each in (one, two):
                await each.audit()
            load.over = True
            nursery.cancel_scope.cancel()
        for each in (one, two):
            assert "Traceback" not in each.log
    load.check()
