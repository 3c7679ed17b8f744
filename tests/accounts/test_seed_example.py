"""The worked example of the text that started it all, literally, every number at every step.

"Imagine an actor A receiving publications from a TCP/IP socket. If it ever 'owes' more than, say, 5
units of cost on its account, it stops reading [...] Say a given incoming message M is routed to a
dataspace actor D (thereby charging A's account 1 unit), where it results in nine outbound events M'
to peer actors O1...O9."
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import anyio
import pytest

from clearfunds.accounts import Account, Holder, Ledger, Limit, commit_run
from tests.accounts.conftest import Box, publish
from tests.loops import open_nursery

FIVE = Limit(items=5, low_items=5)


class Witness(Box):
    """A box that notes what its account owes when it is given something, and when it is told."""

    __slots__ = ("seen",)

    def __init__(self, ledger: Ledger, name: str, seen: list[int]) -> None:
        super().__init__(ledger, name)
        self.seen = seen

    def hold(self, account: Account, item: Any, items: int, nbytes: int, now: float) -> None:
        super().hold(account, item, items, nbytes, now)
        self.seen.append(account.debt_items)

    def ready(self) -> None:
        super().ready()
        self.seen.append(self.queue[-1].account.debt_items)


def by_turn(account: Account, peers: list[Box], seen: list[int]) -> None:
    with account.turn("M", nbytes=0) as turn:
        seen.append(account.debt_items)
        for peer in peers:
            turn.send(peer, "M'", nbytes=0)
        seen.append(account.debt_items)


def by_run(account: Account, peers: list[Box], seen: list[int]) -> None:
    commit_run(account, peers, "M'", 1, 0)
    for peer in peers:
        peer.ready()


@pytest.mark.rule(3, 5, 7)
@pytest.mark.parametrize(
    ("route", "steps"),
    [
        # +1 for M while it is routed, +9 one after the other (rule 3), -1; then the peers are told.
        (by_turn, [1, 1, *range(2, 11), *[9] * 9]),
        # The same in one sum, +10 and -1, of which only the peak tells.
        (by_run, [9] * 18),
    ],
)
async def test_the_reader_waits_at_nine_and_wakes_at_five(
    ledger: Ledger, route: Callable[[Account, list[Box], list[int]], None], steps: list[int]
) -> None:
    """Rules 3, 5 and 7."""
    account = ledger.open("A", limit=FIVE)
    seen: list[int] = []
    peers: list[Box] = [Witness(ledger, f"O{i}", seen) for i in range(1, 10)]
    read: list[str] = []

    async def reader() -> None:
        for message in ("M", "N"):
            await account.ensure_clear_funds()
            read.append(message)
            if message == "M":
                route(account, peers, seen)

    async with open_nursery() as nursery:
        assert account.debt_items == 0
        nursery.start_soon(reader)
        await anyio.wait_all_tasks_blocked()

        assert seen == steps
        assert account.peak_items == 10
        assert account.debt_items == 9
        assert read == ["M"]
        assert (account.waiting, account.waits, account.state) == (1, 1, "throttled")
        ledger.audit()

        for peer, left in zip(peers[:3], (8, 7, 6), strict=True):
            peer.work()
            await anyio.wait_all_tasks_blocked()
            assert account.debt_items == left
            assert read == ["M"]
            assert (account.waiting, account.state) == (1, "throttled")
            ledger.audit()

        peers[3].work()
        assert account.debt_items == 5
        assert account.state == "owing"
        await anyio.wait_all_tasks_blocked()
        assert read == ["M", "N"]
        assert (account.waiting, account.waits) == (0, 1)
        ledger.audit()

    for peer, left in zip(peers[4:], (4, 3, 2, 1, 0), strict=True):
        peer.work()
        assert account.debt_items == left
        ledger.audit()
    assert account.state == "clear"
    assert (account.peak_items, account.borrowed_items) == (10, 10)
    assert ledger.statistics().repaid_items["delivered"] == 10


async def test_with_the_dataspace_as_an_actor(ledger: Ledger) -> None:
    """D has a mailbox, as in the text: M is charged when it is queued there, until D has done."""
    account = ledger.open("A", limit=FIVE)
    dataspace = Box(ledger, "D")
    peers = [Box(ledger, f"O{i}") for i in range(1, 10)]

    dataspace.put(account.lend(["M"], nbytes=0))
    assert account.debt_items == 1
    ledger.audit()

    loan = dataspace.take()
    with loan as events:
        with loan.turn() as turn:
            for peer in peers:
                turn.send(peer, (events[0], "'"), nbytes=0)
            assert account.debt_items == 1
        assert account.debt_items == 1 + 9
        ledger.audit()
    assert account.debt_items == 1 + 9 - 1
    assert account.peak_items == 10
    with anyio.move_on_after(0):
        await account.ensure_clear_funds()
        pytest.fail("nine is above five")
    for peer in peers[:4]:
        peer.work()
    assert account.debt_items == 5
    await account.ensure_clear_funds()
    for peer in peers[4:]:
        peer.work()
    assert account.debt_items == 0


@pytest.mark.rule(2)
def test_footnote_1_the_ultimate_cause_is_known(ledger: Ledger) -> None:
    """Rule 2: however many steps back."""
    account = ledger.open("A", limit=FIVE)
    chain = [Box(ledger, f"O{i}") for i in range(1, 6)]
    publish(account, chain[:1])
    for here, there in pairwise(chain):
        loan = here.take()
        with loan, loan.turn() as turn:
            turn.send(there, b"")
        assert there.queue[0].account is account
    (row,) = ledger.matrix()
    assert (row.account, row.holder, row.items) == ("A", "O5", 1)
    chain[-1].work()


@pytest.mark.rule(2)
def test_footnote_2_what_a_peer_sends_on_is_charged_too(ledger: Ledger) -> None:
    """Rule 2: "if O1, say, sends more events [...] more units will be charged to A's account!"."""
    account = ledger.open("A", limit=FIVE)
    bystander = ledger.open("O1")
    peers = [Box(ledger, f"O{i}") for i in range(1, 10)]
    publish(account, peers)
    assert account.debt_items == 9

    loan = peers[0].take()
    more: list[Holder] = [peers[7], peers[8]]
    with loan, loan.turn() as turn:
        for peer in more:
            turn.send(peer, b"more")
        assert account.debt_items == 9
    assert account.debt_items == 9 + 2 - 1
    assert account.peak_items == 11
    assert bystander.borrowed_items == 0
    for peer in peers[1:7]:
        peer.work()
    for peer in peers[7:]:
        peer.work(2)
    assert account.debt_items == 0
