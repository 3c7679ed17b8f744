"""`Account.block`: readers wait until somebody has credit for them again."""

from __future__ import annotations

from clearfunds.accounts import DISK, NO_LIMIT, Limit
from clearfunds.accounts._gate import gate_of
from tests.accounts.conftest import Box, Recording, publish
from tests.accounts.gates import Place, waited, waits
from tests.loops import open_nursery


async def test_readers_wait_until_everybody_who_blocks_has_unblocked() -> None:
    place = Place()
    server = place.ledger.open("server", limit=NO_LIMIT)
    alice = place.ledger.open("alice", limit=NO_LIMIT, parent=server)
    bob = place.ledger.open("bob", limit=NO_LIMIT, parent=server)
    gate_of(alice).block("outlet")
    gate_of(alice).block("queue")
    gate_of(alice).block("outlet")
    assert gate_of(alice).blockers == ("outlet", "queue")
    assert not alice.funds_are_clear()
    assert not alice.debt_is_clear()
    assert alice.room() == (-1, -1)
    assert bob.funds_are_clear()
    assert alice.state == "flow"
    assert place.ledger.statistics().accounts["flow"] == 1
    async with open_nursery() as nursery:
        await place.come(nursery, alice, alice, bob)
        assert place.went_on == ["bob"]
        await place.pass_(2)
        gate_of(alice).unblock("outlet")
        gate_of(alice).unblock("outlet")
        await place.pass_(3)
        assert place.went_on == ["bob"]
        gate_of(alice).unblock("queue")
    assert place.went_on == ["bob", "alice", "alice"]
    assert alice.state == "clear"
    assert place.ledger.statistics().accounts["flow"] == 0
    assert alice.funds_are_clear()
    assert waited(alice) == waited(place.ledger) == {"blocked": 10.0}
    assert waits(place.ledger) == {"blocked": 2}
    # Each stretch is blamed on the one whose grant has ended it; by the line, as repayments are.
    assert alice.statistics().blame == {"outlet": 2.0, "queue": 3.0}
    assert not alice.gated


async def test_what_an_account_is_blocked_for_stops_those_below() -> None:
    place = Place()
    server = place.ledger.open("server", limit=NO_LIMIT)
    alice = place.ledger.open("alice", parent=server)
    gate_of(server).block("store")
    async with open_nursery() as nursery:
        await place.come(nursery, alice)
        late = place.ledger.open("late", limit=NO_LIMIT, parent=server)
        assert not late.funds_are_clear()
        await place.pass_(1)
        gate_of(server).unblock("store")
    assert late.funds_are_clear()
    assert waited(alice) == {"blocked": 1.0}
    assert alice.statistics().blame == {"store": 1.0}


async def test_who_repays_meanwhile_is_not_to_blame_and_a_recorder_hears_why() -> None:
    place = Place()
    recording = place.ledger.recorder = Recording()
    alice = place.ledger.open("alice", limit=Limit(items=1, low_items=0))
    box = Box(place.ledger, "box")
    publish(alice, [box], items=4)
    async with open_nursery() as nursery:
        await place.come(nursery, alice)  # for its debt
        await place.pass_(1)
        box.work(1)
        gate_of(alice).block("queue")
        await place.pass_(2)
        box.work(2)
        alice.halt(DISK)
        await place.pass_(4)
        alice.resume(DISK)
        await place.pass_(8)
        gate_of(alice).unblock("queue")
        await place.pass_(16)
        box.work(1)
    assert waited(alice) == {"account": 17.0, "blocked": 10.0, "alarm": 4.0}
    assert alice.statistics().blame == {"box": 17.0, "queue": 10.0, "(alarm: disk)": 4.0}
    told = {(culprit, reason): 0.0 for _, _, culprit, _, _, reason in recording.stalls}
    for _, _, culprit, seconds, _, reason in recording.stalls:
        told[culprit, reason] += seconds
    assert told == {
        ("box", "account"): 17.0,
        ("queue", "blocked"): 10.0,
        ("(alarm: disk)", "alarm"): 4.0,
    }


async def test_a_cancelled_reader_leaves_nothing_behind() -> None:
    place = Place()
    alice = place.ledger.open("alice", limit=NO_LIMIT)
    gate_of(alice).block("queue")
    async with open_nursery() as nursery:
        await place.come(nursery, alice)
        nursery.cancel_scope.cancel()
    gate_of(alice).unblock("queue")
    assert not alice.gated
    gate_of(alice).block("queue")
    alice.close()
    assert alice.state == "closing"
    gate_of(alice).unblock("queue")
    assert place.ledger.statistics().accounts["flow"] == 0
