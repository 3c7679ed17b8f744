"""Rule 11: who waits on whom, and the rings in which nobody can go on."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from itertools import combinations
from itertools import count as count_up

import anyio
import attrs
import pytest
import trio
from anyio import wait_all_tasks_blocked
from anyio.abc import TaskGroup
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from clearfunds.accounts import (
    NO_LIMIT,
    RING_SECONDS,
    Account,
    Ledger,
    Limit,
    Ring,
    StuckPolicy,
    Wait,
    rings,
    wait_for_graph,
)
from clearfunds.accounts._cooperative import STEP
from clearfunds.accounts._gate import gate_of
from clearfunds.accounts.watch._waits_for import rings_in_steps
from tests.accounts.conftest import Box, balance, publish
from tests.loops import LoopClock, open_nursery

pytestmark = pytest.mark.rule(11)


LOW = Limit(items=3, low_items=2)


class Scene:
    """Accounts, each with an outlet whose peer is that account's: `a`, and `to a`."""

    def __init__(self, ledger: Ledger, names: str, limit: Limit = LOW) -> None:
        self.ledger = ledger
        self.accounts = {name: ledger.open(name, limit=limit) for name in names.split()}
        self.outlets = {name: Box(ledger, f"to {name}") for name in self.accounts}
        for name, outlet in self.outlets.items():
            outlet.owner = self.accounts[name]

    def owes(self, debtor: str, holder: str, items: int = 4) -> None:
        publish(self.accounts[debtor], [self.outlets[holder]], items=items, nbytes=items * 10)

    @asynccontextmanager
    async def waiting(self, names: str) -> AsyncGenerator[TaskGroup]:
        """Let the readers of these accounts wait; cancel those that still do at the end."""
        async with open_nursery() as nursery:
            for name in names.split():
                nursery.start_soon(self.accounts[name].ensure_clear_funds)
            await wait_all_tasks_blocked()
            yield nursery
            nursery.cancel_scope.cancel()

    def members(self, still: float = 0.0) -> list[tuple[str, ...]]:
        return [ring.members for ring in rings(self.ledger, still=still)]


@pytest.fixture
def timed(autojump_clock: MockClock) -> Iterator[Ledger]:
    """A ledger on the loop's own clock. (A test has to name `autojump_clock`, too.)"""
    ledger = Ledger(clock=LoopClock())
    yield ledger
    for holder in list(ledger.holders):
        if isinstance(holder, Box):
            holder.close()
    balance(ledger)


# -- rings ----------------------------------------------------------------------------------------


async def test_two_that_wait_on_each_other(autojump_clock: MockClock, timed: Ledger) -> None:
    scene = Scene(timed, "a b")
    scene.owes("a", "b", 4)
    scene.owes("b", "a", 7)
    async with scene.waiting("a"):
        await anyio.sleep(1)
        async with scene.waiting("b"):
            await anyio.sleep(2)
            (ring,) = rings(timed)
    assert ring == Ring(
        members=("a", "b"),
        waits=(
            Wait("a", ("a",), 3.0, 2, 0, ring.waits[0].on),
            Wait("b", ("b",), 2.0, 5, 0, ring.waits[1].on),
        ),
        seconds=2.0,  # since the second of them waits
    )
    (on,) = ring.waits[0].on
    assert (on.holder, on.name, on.kind) == (scene.outlets["b"], "to b", "box")
    assert (on.items, on.bytes, on.idle_seconds, on.owner) == (4, 40, 3.0, "b")
    assert ring.sentence() == (
        "ring: a waits on box to b (4 items, 40 bytes), b waits on box to a (7 items, 70 bytes)"
    )


async def test_one_that_waits_on_its_own_peer(autojump_clock: MockClock, timed: Ledger) -> None:
    """Each of two echo relays sees this much of a ring through both."""
    scene = Scene(timed, "a")
    scene.owes("a", "a")
    async with scene.waiting("a"):
        (ring,) = rings(timed, still=0)
    assert ring.members == ("a",)
    assert ring.sentence() == (
        "ring of one: a waits on what its own peer does not take: box to a (4 items, 40 bytes)"
    )


async def test_a_ring_is_told_of_as_it_goes_round(autojump_clock: MockClock, timed: Ledger) -> None:
    scene = Scene(timed, "a b c d")
    for debtor, holder in ("ac", "cb", "bd", "da"):
        scene.owes(debtor, holder)
    async with scene.waiting("a b c d"):
        assert scene.members() == [("a", "c", "b", "d")]
        (ring,) = rings(timed, still=0)
    assert [on.owner for wait in ring.waits for on in wait.on] == ["c", "b", "d", "a"]


async def test_rings_apart_from_each_other(autojump_clock: MockClock, timed: Ledger) -> None:
    scene = Scene(timed, "a b c d e")
    for debtor, holder in ("ab", "ba", "cd", "dc", "ee"):
        scene.owes(debtor, holder)
    async with scene.waiting("a b c d e"):
        assert scene.members() == [("a", "b"), ("c", "d"), ("e",)]


async def test_who_waits_on_a_ring_is_not_on_it(autojump_clock: MockClock, timed: Ledger) -> None:
    scene = Scene(timed, "a b publisher")
    for debtor, holder in (("a", "b"), ("b", "a"), ("publisher", "a")):
        scene.owes(debtor, holder)
    async with scene.waiting("a b publisher"):
        assert scene.members() == [("a", "b")]
        assert {wait.at for wait in wait_for_graph(timed)} == {"a", "b", "publisher"}


@pytest.mark.rule(13)
async def test_a_ring_through_an_account_above(autojump_clock: MockClock, timed: Ledger) -> None:
    """Rule 13: what all of them owe together is what each of them waits for."""
    server = timed.open("server", limit=LOW)
    scene = Scene(timed, "")
    for name in "abc":
        account = timed.open(name, limit=NO_LIMIT, parent=server)
        scene.accounts[name] = account
        scene.outlets[name] = Box(timed, f"to {name}")
        scene.outlets[name].owner = account
    scene.owes("a", "b", 6)
    scene.owes("b", "a", 5)
    async with scene.waiting("a b c"):
        (ring,) = rings(timed, still=0)
    # Nobody waits on `c`.
    assert set(ring.members) == {"a", "b"}
    assert ring.sentence() == (
        "ring: a, b wait at server on box to b (6 items, 60 bytes) and box to a (5 items, 50 bytes)"
    )
    assert [(wait.over_items, wait.over_bytes) for wait in ring.waits] == [(9, 0)]


async def test_a_ring_for_the_bytes_alone(autojump_clock: MockClock, timed: Ledger) -> None:
    scene = Scene(timed, "a b", Limit(items=None, bytes=30, low_bytes=20))
    scene.owes("a", "b")
    scene.owes("b", "a")
    async with scene.waiting("a b"):
        assert scene.members() == [("a", "b")]
        assert rings(timed, still=0)[0].waits[0].over_bytes == 20
        scene.outlets["a"].work(2)
        await wait_all_tasks_blocked()
        assert scene.members() == []


async def test_a_long_sentence_is_cut_short(autojump_clock: MockClock, timed: Ledger) -> None:
    names = [f"a{n:02}" for n in range(30)]
    scene = Scene(timed, " ".join(names))
    for n, name in enumerate(names):
        for step in (1, 2, 3, 4):
            scene.owes(name, names[(n + step) % 30], 10 - step)
    async with scene.waiting(" ".join(names)):
        (ring,) = rings(timed, still=0)
    assert set(ring.members) == set(names)
    sentence = ring.sentence()
    assert sentence.startswith(
        "ring: a00 waits on box to a01 (9 items, 90 bytes), box to a02 (8 items, 80 bytes), "
        "box to a03 (7 items, 70 bytes) and 1 more, a01 waits on "
    )
    assert sentence.endswith(" and so on: 30 accounts wait on each other")
    assert sentence.count("waits on") == 20


async def test_thousands_do_not_recurse() -> None:
    ledger = Ledger()
    count = 3000
    scene = Scene(ledger, " ".join(f"{n:04}" for n in range(count)))
    for n in range(count):
        scene.owes(f"{n:04}", f"{(n + 1) % count:04}")
    async with scene.waiting(" ".join(scene.accounts)):
        (ring,) = rings(ledger, still=0)
        assert ring.members == tuple(f"{n:04}" for n in range(count))
        pauses, found = stepped(rings_in_steps(ledger, still=0))
        assert [each.members for each in found] == [ring.members]
        assert pauses > 3 * count / STEP
        scene.outlets["0007"].work(2)
        await wait_all_tasks_blocked()
        assert rings(ledger, still=0) == ()
    for outlet in scene.outlets.values():
        outlet.close()
    ledger.audit()


def stepped(
    steps: Generator[None, None, tuple[Ring, ...]], most: int | None = None
) -> tuple[int, tuple[Ring, ...]]:
    """Take that many steps, or all of them; return how many were taken, and what was found."""
    for taken in count_up():
        if taken == most:
            return taken, ()
        try:
            next(steps)
        except StopIteration as end:
            return taken, end.value
    raise AssertionError


@pytest.mark.parametrize("part", [0.0, 0.3, 0.7])
@pytest.mark.parametrize("what", ["nothing", "a holder", "a reader"])
async def test_a_ring_that_moves_while_it_is_looked_for_is_not_told_of(
    autojump_clock: MockClock, timed: Ledger, part: float, what: str
) -> None:
    scene = Scene(timed, "a b c")
    for debtor, holder in ("ab", "bc", "ca"):
        scene.owes(debtor, holder, 50)
    async with scene.waiting("a b"), open_nursery() as nursery:
        reader = anyio.CancelScope()

        async def wait() -> None:
            with reader:
                await scene.accounts["c"].ensure_clear_funds()

        nursery.start_soon(wait)
        await anyio.sleep(RING_SECONDS)
        every, (ring,) = stepped(rings_in_steps(timed))
        steps = rings_in_steps(timed)
        stepped(steps, 1 + int(every * part))
        await anyio.sleep(0.1)
        if what == "a holder":
            scene.outlets["b"].work()
        elif what == "a reader":
            reader.cancel()
            await wait_all_tasks_blocked()
        _, found = stepped(steps)
        assert found == ((ring,) if what == "nothing" else ())
        reader.cancel()


# -- what is no ring ------------------------------------------------------------------------------


async def test_nobody_is_accused_who_makes_progress(
    autojump_clock: MockClock, timed: Ledger
) -> None:
    scene = Scene(timed, "a b")
    scene.owes("a", "b", 50)
    scene.owes("b", "a", 50)
    async with scene.waiting("a b"):
        for _ in range(40):
            await anyio.sleep(RING_SECONDS * 0.9)
            assert rings(timed) == ()
            scene.outlets["a"].work()  # one of the two is enough
        await anyio.sleep(RING_SECONDS)
        assert scene.members(RING_SECONDS) == [("a", "b")]
        scene.outlets["b"].work()
        assert rings(timed) == ()


async def test_a_reader_that_goes_on_is_progress_too(
    autojump_clock: MockClock, timed: Ledger
) -> None:
    """What an outlet does not get rid of is its own peer's fault until its reader stands still."""
    scene = Scene(timed, "a b")
    scene.owes("a", "b")
    scene.owes("b", "a")
    async with scene.waiting("a"):
        await anyio.sleep(100)
        assert rings(timed) == ()
        async with scene.waiting("b"):
            await anyio.sleep(RING_SECONDS * 0.9)
            assert rings(timed) == ()
            await anyio.sleep(RING_SECONDS * 0.1)
            assert [ring.seconds for ring in rings(timed)] == [RING_SECONDS]


async def test_little_patience_sees_a_ring_sooner(autojump_clock: MockClock, timed: Ledger) -> None:
    scene = Scene(timed, "a b")
    scene.owes("a", "b")
    scene.owes("b", "a")
    scene.outlets["a"].patience = scene.outlets["b"].patience = 0.25
    async with scene.waiting("a b"):
        assert rings(timed) == ()
        await anyio.sleep(0.25)
        assert scene.members(RING_SECONDS) == [("a", "b")]


async def test_who_could_go_on_without_the_others_is_on_no_ring(
    autojump_clock: MockClock, timed: Ledger
) -> None:
    """A reader waits on enough of its holders, not on each: most of this debt may be paid."""
    scene = Scene(timed, "a b")
    worker = Box(timed, "worker")
    scene.owes("a", "b", 2)
    publish(scene.accounts["a"], [worker], items=9)
    scene.owes("b", "a")
    async with scene.waiting("a b"):
        assert scene.members() == []
        assert [on.name for on in wait_for_graph(timed)[0].on] == ["worker", "to b"]
        worker.work(6)
        assert scene.members() == []
        scene.owes("a", "b", 1)  # one more than it may have
        assert scene.members() == [("a", "b")]
        worker.close()
        assert scene.members() == [("a", "b")]


async def test_who_waits_on_one_that_can_go_on_is_on_no_ring(
    autojump_clock: MockClock, timed: Ledger
) -> None:
    scene = Scene(timed, "a b c")
    for debtor, holder in ("ab", "bc", "ca"):
        scene.owes(debtor, holder)
    async with scene.waiting("a b"):
        assert scene.members() == []  # `c` reads
        async with scene.waiting("c"):
            assert len(scene.members()) == 1
            scene.outlets["c"].owner = None
            assert scene.members() == []


async def test_a_ring_on_a_ring(autojump_clock: MockClock, timed: Ledger) -> None:
    """What would come apart with another ring is not called one as long as that one stands."""
    scene = Scene(timed, "a b c")
    scene.owes("c", "c")
    scene.owes("a", "b", 2)
    scene.owes("a", "c", 2)
    scene.owes("b", "a")
    async with scene.waiting("a b c"):
        assert scene.members() == [("c",)]
        scene.owes("a", "b", 1)  # now it would not
        assert scene.members() == [("a", "b"), ("c",)]


async def test_rings_that_hang_together_by_another_are_told_apart(
    autojump_clock: MockClock, timed: Ledger
) -> None:
    scene = Scene(timed, "a b c d e f")
    for debtor, holder, items in (
        ("a", "b", 3), ("b", "a", 4), ("c", "d", 3), ("d", "c", 4), ("e", "e", 4),
        # From the first to the second, and back through one that waits for a third as well.
        ("a", "c", 1), ("c", "f", 1), ("f", "a", 2), ("f", "e", 2),
    ):  # fmt: skip
        scene.owes(debtor, holder, items)
    async with scene.waiting("a b c d e f"):
        assert scene.members() == [("a", "b"), ("c", "d"), ("e",)]


async def test_who_is_about_to_go_on_is_on_no_ring(
    autojump_clock: MockClock, timed: Ledger
) -> None:
    scene = Scene(timed, "a b")
    scene.owes("a", "b")
    scene.owes("b", "a")
    async with scene.waiting("a b"):
        scene.outlets["b"].work(2)
        scene.owes("a", "b", 1)  # above the lower mark, but it has been let go
        assert scene.members() == []


async def test_it_depends_on_each_of_an_accounts_readers(
    autojump_clock: MockClock, timed: Ledger
) -> None:
    """An account with several readers is stuck when all that wait are."""
    tenant = timed.open("tenant", limit=Limit(items=1, low_items=0))
    scene = Scene(timed, "")
    account = scene.accounts["a"] = timed.open("a", limit=LOW, parent=tenant)
    outlet = scene.outlets["a"] = Box(timed, "to a")
    outlet.owner = account
    other, worker = timed.open("other", limit=NO_LIMIT, parent=tenant), Box(timed, "worker")
    scene.owes("a", "a", 2)
    async with scene.waiting("a"):  # at the tenant's
        scene.owes("a", "a", 2)
        await anyio.sleep(10)
        async with scene.waiting("a"):  # at its own
            await anyio.sleep(2)
            (ring,) = rings(timed)
            assert (ring.members, [w.at for w in ring.waits]) == (("a",), ["a", "tenant"])
            assert [w.seconds for w in ring.waits] == [2.0, 12.0]
            assert ring.seconds == 2.0  # the last of them has read until then
            publish(other, [worker], items=9)
            assert len(scene.members()) == 1
            outlet.work(2)  # the second goes on, as far as to the tenant's
            await wait_all_tasks_blocked()
            assert [w.at for w in rings(timed, still=0)[0].waits] == ["tenant"]
    worker.close()


# -- the graph ------------------------------------------------------------------------------------


async def test_nobody_waits() -> None:
    ledger = Ledger()
    scene = Scene(ledger, "a")
    scene.owes("a", "a", 1)
    assert wait_for_graph(ledger) == ()
    assert rings(ledger) == ()
    scene.outlets["a"].work()


async def test_the_graph_has_everything_that_is_waited_for(
    autojump_clock: MockClock, timed: Ledger
) -> None:
    scene = Scene(timed, "a b")
    scene.owes("a", "b", 3)
    scene.owes("a", "a", 2)
    scene.owes("b", "b", 1)
    loose = scene.accounts["a"].lend(b"xyz")
    async with scene.waiting("a"):
        await anyio.sleep(5)
        with scene.accounts["a"].turn(b"12"):
            (wait,) = wait_for_graph(timed)
        (later,) = wait_for_graph(timed, anyio.current_time() + 10)
    loose.settle()
    assert (wait.at, wait.waiting, wait.seconds) == ("a", ("a",), 5.0)
    assert (wait.over_items, wait.over_bytes) == (5, 0)
    assert [
        (on.kind, on.name, on.items, on.bytes, on.idle_seconds, on.owner) for on in wait.on
    ] == [
        ("box", "to b", 3, 30, 5.0, None),  # whose reader does not wait
        ("box", "to a", 2, 20, 5.0, "a"),
        ("loose", "(loose)", 1, 3, 0.0, None),
        ("router", "router", 1, 2, 0.0, None),
    ]
    assert later.seconds == 15.0


async def test_all_readers_at_one_account_are_one_wait(
    autojump_clock: MockClock, timed: Ledger
) -> None:
    server = timed.open("server", limit=LOW)
    box = Box(timed, "box")
    accounts = [timed.open(name, limit=NO_LIMIT, parent=server) for name in "ba"]
    publish(accounts[0], [box], items=4)
    async with open_nursery() as nursery:
        for account in accounts:
            nursery.start_soon(account.ensure_clear_funds)
        nursery.start_soon(accounts[0].ensure_clear_funds)
        await wait_all_tasks_blocked()
        (wait,) = wait_for_graph(timed)
        assert wait.waiting == ("a", "b")
        assert wait.sentence() == "a, b wait at server on box box (4 items, 0 bytes)"
        box.close()


async def test_who_waits_for_its_share_waits_on_who_holds_its_own_debt(ledger: Ledger) -> None:
    server = ledger.open("server", limit=Limit(items=20), shared=True)
    mine, other = Box(ledger, "mine"), Box(ledger, "other")
    greedy, stuck = (ledger.open(n, limit=NO_LIMIT, parent=server) for n in ("greedy", "stuck"))
    publish(greedy, [mine], items=12)
    publish(stuck, [other], items=11)
    async with open_nursery() as nursery:
        nursery.start_soon(greedy.ensure_clear_funds)
        await wait_all_tasks_blocked()
        (wait,) = wait_for_graph(ledger)
        assert (wait.at, wait.waiting) == ("greedy", ("greedy",))
        assert wait.over_items == 4  # from 12 to seven eighths of 10
        assert [(on.name, on.items) for on in wait.on] == [("mine", 12)]
        mine.work(4)
    other.close()
    mine.close()


@pytest.mark.parametrize("tenant", [False, True])
async def test_two_on_a_ring_whose_shares_are_full_of_each_other(
    tenant: bool, autojump_clock: MockClock, timed: Ledger
) -> None:
    server = timed.open("server", limit=Limit(items=20), shared=True)
    if tenant:
        # Which shares what it has of the server's limit.
        server = timed.open("tenant", limit=NO_LIMIT, parent=server, shared=True)
    scene = Scene(timed, "a b c", limit=NO_LIMIT)
    scene.accounts = {
        name: timed.open(f"{name}!", limit=NO_LIMIT, parent=server) for name in scene.accounts
    }
    for name, outlet in scene.outlets.items():
        outlet.owner = scene.accounts[name]
    # Each is above its own share; b and c would go on if c's subscriber took something.
    scene.owes("a", "b", 10)
    scene.owes("b", "a", 10)
    scene.owes("c", "c", 1)
    box = Box(timed, "not stuck")
    publish(scene.accounts["c"], [box], items=10)
    async with scene.waiting("a b c"):
        await anyio.sleep(5)
        assert all(gate_of(account).squeezed for account in scene.accounts.values())
        (ring,) = rings(timed)
        assert ring.members == ("a!", "b!")
        assert ring.sentence() == (
            "ring: a! waits on box to b (10 items, 100 bytes), "
            "b! waits on box to a (10 items, 100 bytes)"
        )
        # With one item less, the one would go on if c's debt was repaid.
        scene.outlets["a"].work(1)
        scene.outlets["b"].work(1)
        await anyio.sleep(5)
        assert len(rings(timed)) == 1
        scene.outlets["a"].work(1)
        await anyio.sleep(5)
        assert not rings(timed)
        for outlet in (*scene.outlets.values(), box):
            outlet.close()


# -- against the definition -----------------------------------------------------------------------


@attrs.frozen
class Books:
    """Who owes how much at whose outlet, and who waits at an account above."""

    held: tuple[tuple[int, ...], ...]
    under_server: tuple[bool, ...]


def books(accounts: int) -> st.SearchStrategy[Books]:
    amounts = st.sampled_from((0, 0, 0, 1, 2, 3, 5))
    row = st.tuples(*[amounts] * accounts)
    return st.builds(Books, st.tuples(*[row] * accounts), st.tuples(*[st.booleans()] * accounts))


def by_definition(books: Books, waiting: set[int]) -> set[frozenset[int]]:
    """The largest sets that are rings, by looking at all sets."""
    together = [n for n in range(len(books.held)) if books.under_server[n]]

    def held_by(account: int, owner: int) -> int:
        debtors = together if books.under_server[account] else [account]
        return sum(books.held[debtor][owner] for debtor in debtors)

    def is_ring(members: frozenset[int]) -> bool:
        for account in members:
            if sum(held_by(account, owner) for owner in members) <= 2:
                return False
            reached, front = set[int](), [account]
            while front:
                at = front.pop()
                new = {o for o in members if held_by(at, o)} - reached
                reached |= new
                front += new
            if frozenset(reached) != members:
                return False
        return True

    found = {
        frozenset(members)
        for size in range(1, len(waiting) + 1)
        for members in combinations(sorted(waiting), size)
        if is_ring(frozenset(members))
    }
    return {ring for ring in found if not any(ring < other for other in found)}


async def look(
    books: Books, limit: Limit = LOW, *, shared: bool = False
) -> tuple[set[int], set[frozenset[int]]]:
    """Do it with a ledger: who waits, and the rings."""
    ledger = Ledger()
    server = ledger.open("server", limit=limit, shared=shared)
    accounts: list[Account] = []
    outlets: list[Box] = []
    for n, under in enumerate(books.under_server):
        limit, parent = (NO_LIMIT, server) if under else (LOW, None)
        accounts.append(ledger.open(str(n), limit=limit, parent=parent))
        outlets.append(Box(ledger, f"to {n}", policy=StuckPolicy.WAIT))
        outlets[-1].owner = accounts[-1]
    for account, row in zip(accounts, books.held, strict=True):
        for outlet, items in zip(outlets, row, strict=True):
            if items:
                publish(account, [outlet], items=items)
    async with open_nursery() as nursery:
        for account in accounts:
            nursery.start_soon(account.ensure_clear_funds)
        await wait_all_tasks_blocked()
        waiting = {n for n, account in enumerate(accounts) if account.waiting}
        found = {frozenset(map(int, ring.members)) for ring in rings(ledger, still=0)}
        for outlet in outlets:
            outlet.close()
    ledger.audit()
    return waiting, found


# Shares: those under the server have parts of what it may owe, and are on each other's way.

# Of 8 no part of whole items is so near to fifteen sixteenths that it would matter by how much they
# were above their parts before.
SHARED = Limit(items=8, low_items=4)


def by_definition_of_shares(books: Books, waiting: set[int]) -> set[frozenset[int]]:
    """The same if the server's limit is shared: it is its children that readers wait at."""
    shared = {n for n in waiting if books.under_server[n]}

    def is_ring(members: frozenset[int]) -> bool:
        kept = {n: sum(books.held[n][owner] for owner in members) for n in members}
        squeezed = [kept[n] for n in members if n in shared]
        if squeezed and (sum(squeezed) <= 4 or 16 * min(squeezed) * len(squeezed) <= 15 * 8):
            return False
        if any(kept[n] <= 2 for n in members if n not in shared):
            return False
        for account in members:
            reached, front = set[int](), [account]
            while front:
                at = front.pop()
                new = {o for o in members if books.held[at][o]}
                new |= {o for o in members if {at, o} <= shared and (o != at or new)}
                new -= reached
                reached |= new
                front += new
            if frozenset(reached) != members:
                return False
        return True

    found = {
        frozenset(members)
        for size in range(1, len(waiting) + 1)
        for members in combinations(sorted(waiting), size)
        if is_ring(frozenset(members))
    }
    largest = {ring for ring in found if not any(ring < other for other in found)}
    # One on whose peer nobody waits is only in the same straits.
    return {frozenset(n for n in ring if any(books.held[o][n] for o in ring)) for ring in largest}


@settings(max_examples=150, deadline=None)
@given(books(5))
def test_rings_of_those_that_wait_for_their_share(books: Books) -> None:
    owed = [sum(row) for row, under in zip(books.held, books.under_server, strict=True) if under]
    assume(sum(owed) <= 2 * 8)  # or all of them wait at the server, as without shares
    waiting, found = trio.run(partial(look, books, SHARED, shared=True))
    assert found == by_definition_of_shares(books, waiting)


@settings(max_examples=300, deadline=None)
@given(books(5))
def test_rings_are_what_they_are_said_to_be(books: Books) -> None:
    waiting, found = trio.run(look, books)
    assert found == by_definition(books, waiting)
