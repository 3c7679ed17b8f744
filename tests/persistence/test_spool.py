"""What is put aside for a connection: in order, within its limit, whatever the disk does."""

from __future__ import annotations

import gc
import weakref
from collections import deque
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clearfunds.accounts import (
    DEFAULT_PATIENCE,
    JOIN_BYTES,
    Account,
    Ledger,
    Limit,
    LoanedItem,
    LoanQueue,
    Outcome,
    StuckPolicy,
)
from clearfunds.dataspace.queues import MemoryShelf
from clearfunds.persistence import open_shelves
from clearfunds.persistence._spool import (
    HURRY_ITEMS,
    SPOOL_PREFIX,
    WRITE_BYTES,
    Spool,
    forget_spools,
)
from clearfunds.store import StoreSettings
from clearfunds.transports import open_flusher
from tests.transports.peers import until


class Hands(LoanQueue):
    """A holder that has nothing but what it has put aside."""

    kind = "outlet"
    spool: Spool | None = None

    def ready(self) -> None:
        """Do nothing."""

    def give_up(self, why: str) -> None:
        """Do nothing."""

    def loans(self) -> Any:
        yield from super().loans()
        if self.spool is not None:
            yield from self.spool.loans()


class Persistence:
    """Shelves in memory, which are as slow as they are told to be."""

    trouble: str | None = None

    def __init__(self) -> None:
        self.shelves: list[MemoryShelf] = []
        self.dropped: list[MemoryShelf] = []
        self.hurried = 0

    def shelf(self, name: str) -> MemoryShelf:
        del name
        self.shelves.append(MemoryShelf())
        return self.shelves[-1]

    def drop(self, shelf: MemoryShelf) -> None:
        self.dropped.append(shelf)

    def hurry(self) -> None:
        self.hurried += 1


@attrs.define
class Scene:
    ledger: Ledger
    holder: Hands
    persistence: Persistence
    spool: Spool
    account: Account
    over: list[str]
    more: list[None]
    publishers: list[Account]

    @property
    def shelf(self) -> MemoryShelf:
        return self.persistence.shelves[0]

    def hold(self, chunk: bytes, items: int = 1, by: int = 0) -> None:
        account = self.publishers[by]
        account.borrow(items, len(chunk))
        self.spool.hold(account, chunk, items, len(chunk), self.ledger.clock())

    def take(self) -> bytes | None:
        """Take what comes next, and have it sent."""
        loan = self.spool.take()
        if loan is None:
            return None
        loan.settle()
        return b"".join(loan.item)

    def take_all(self) -> bytes:
        found = b""
        while len(self.spool):
            piece = self.take()
            if piece is None:
                self.shelf.settle()
            else:
                found += piece
        return found


def scene(limit: Limit | None = None, above: Limit | None = None) -> Scene:
    ledger = Ledger()
    holder = Hands(ledger, "O")
    persistence = Persistence()
    over: list[str] = []
    more: list[None] = []
    rest = ledger.open("disk", limit=above or Limit(items=None, bytes=None), at_rest="disk")
    account = ledger.open("spill", limit=limit or Limit(items=None, bytes=None), parent=rest)
    spool = holder.spool = Spool(
        holder,
        persistence,
        account,
        "spill",
        part=2,
        on_more=lambda: more.append(None),
        on_over=over.append,
    )
    publishers = [ledger.open("a"), ledger.open("b")]
    return Scene(ledger, holder, persistence, spool, account, over, more, publishers)


def done(s: Scene) -> None:
    """Nothing may be left."""
    s.spool.close()
    s.spool.close()
    s.ledger.audit()
    assert all(not account.debt_items for account in s.ledger.accounts.values())
    assert "spill" not in s.ledger.accounts
    assert s.persistence.dropped == s.persistence.shelves


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("hold"), st.integers(1, 5), st.integers(0, 1)),
        st.sampled_from(
            [("write",), ("few",), ("sync",), ("half",), ("answer",), ("take",), ("take",)]
        ),
    ),
    max_size=60,
)


@given(STEPS)
@settings(max_examples=150, deadline=None)
def test_it_comes_out_as_it_came_whenever_the_disk_has_it(steps: list[tuple[Any, ...]]) -> None:
    s = scene()
    came = went = b""
    number = 0
    # The publishers of what is there, with its bytes.
    line: deque[tuple[int, int]] = deque()
    for step in steps:
        if step[0] == "hold":
            _, items, by = step
            chunk = b"".join(b"<%d>" % (number + n) for n in range(items))
            number += items
            came += chunk
            line.append((by, len(chunk)))
            s.hold(chunk, items, by)
        elif step[0] == "write":
            s.spool.write(now=True)
        elif step[0] == "few":
            s.spool.write()
        elif step[0] == "sync":
            s.shelf.sync()
        elif step[0] == "half":
            s.shelf.sync(s.shelf.last_ticket // 2)
        elif step[0] == "answer":
            s.shelf.answer()
        else:
            piece = s.take() or b""
            went += piece
            left = len(piece)
            while left:
                left -= line.popleft()[1]
            assert left == 0
        s.ledger.audit()
        assert all(s.spool.has_messages_of(s.publishers[by]) for by, _ in line)
        assert line or not any(map(s.spool.has_messages_of, s.publishers))
        assert s.spool.nbytes == len(came) - len(went)
        assert sum(loan.items for loan in s.spool.loans()) == len(s.spool)
    assert went + s.take_all() == came
    assert s.spool.spilled_items == number
    assert len(s.shelf) == 0
    assert not s.over
    done(s)


def test_publishers_pay_until_it_is_durable_and_the_spool_from_then_on() -> None:
    s = scene()
    s.hold(b"12345", 5)
    s.spool.write(now=True)
    assert (s.publishers[0].debt_items, s.account.debt_items) == (5, 0)
    s.shelf.sync()
    assert (s.publishers[0].debt_items, s.account.debt_items) == (0, 5)
    assert s.ledger.repaid_items[Outcome.STORED] == 5
    assert s.take() is None
    s.shelf.answer()
    assert s.more
    assert s.take() == b"12345"
    assert s.ledger.repaid_items[Outcome.DELIVERED] == 5
    done(s)


def test_what_is_read_back_before_it_is_durable_is_not_its_publishers_any_more() -> None:
    s = scene()
    s.hold(b"12345", 5)
    s.spool.write(now=True)
    assert s.take() is None
    s.shelf.answer()
    assert (s.publishers[0].debt_items, s.account.debt_items) == (0, 5)
    s.shelf.sync()
    assert s.take() == b"12345"
    s.hold(b"67")
    assert s.publishers[0].debt_items == 1
    assert s.take() == b"67"
    done(s)


def test_many_that_are_not_durable_are_hurried() -> None:
    s = scene()
    for _ in range(HURRY_ITEMS + 1):
        s.hold(b"x")
    s.spool.write(now=True)
    assert s.persistence.hurried == 1
    done(s)


@pytest.mark.parametrize(
    ("own", "above"),
    [
        (Limit(items=10, bytes=None), Limit(items=None, bytes=None)),
        (Limit(items=None, bytes=50), Limit(items=None, bytes=None)),
        # Half of what all have in common.
        (Limit(items=None, bytes=None), Limit(items=None, bytes=100)),
    ],
)
def test_without_room_its_publishers_wait_until_there_is_some(
    own: Limit, above: Limit, caplog: pytest.LogCaptureFixture
) -> None:
    s = scene(own, above)
    for _ in range(12):
        s.hold(b"12345")
        s.spool.write(now=True)
        s.shelf.sync()
    assert (s.account.debt_items, s.publishers[0].debt_items) == (10, 2)
    assert s.holder.full_patience == DEFAULT_PATIENCE
    assert s.holder.policy is StuckPolicy.DISCONNECT
    (line,) = [each for each in caplog.messages if "no more may be" in each]
    assert "publishers wait for it" in line
    found = b""
    while s.holder.full_patience is not None:
        s.shelf.answer()
        found += s.take() or b""
        s.spool.write()
    s.shelf.sync()
    assert s.publishers[0].debt_items == 0
    assert found + s.take_all() == b"12345" * 12
    assert not s.over
    done(s)


def test_few_messages_wait_for_more_unless_their_publisher_has_to() -> None:
    s = scene()
    s.hold(b"1")
    s.hold(b"2", by=1)
    s.spool.write()
    assert not len(s.shelf)
    s.publishers[1].limit = Limit(items=0, bytes=None)
    s.spool.write()
    assert len(s.shelf) == 1
    s.shelf.sync()
    assert (s.account.debt_items, s.spool.nbytes) == (2, 2)
    for _ in range(33):
        for by in (0, 1):
            s.hold(b"x" * 600, by=by)
    s.spool.write()
    assert len(s.shelf) == 2
    s.shelf.sync()
    assert s.take_all() == b"12" + b"x" * 600 * 66
    done(s)


def test_a_disk_in_trouble_is_no_place_to_put_anything() -> None:
    s = scene()
    s.spool.shelf_trouble(None)
    assert not s.over
    s.spool.shelf_trouble("the disk is full")
    s.spool.shelf_trouble("the disk is full")
    assert s.over == ["the disk is full"]
    done(s)
    persistence = Persistence()
    persistence.trouble = "it is broken"
    spool = Spool(
        s.holder, persistence, s.ledger.open("x"), "x", on_more=list, on_over=s.over.append
    )
    assert spool.over == "it is broken"
    publisher = s.ledger.open("p")
    publisher.borrow(1, 1)
    spool.hold(publisher, b"x", 1, 1, 0.0)
    spool.write(now=True)
    assert s.over[-1] == "it is broken"
    spool.close()


@pytest.mark.parametrize("gone", [[2], [1], [3], [1, 2, 3]])
@pytest.mark.parametrize("durable", [True, False])
def test_what_cannot_be_read_back_is_counted(
    gone: list[int], durable: bool, caplog: pytest.LogCaptureFixture
) -> None:
    s = scene()
    for n in range(1, 4):
        s.hold(b"%d" % n * 10, 10)
        s.spool.write(now=True)
        # So that each is a record of its own.
        if durable:
            s.shelf.sync()
    s.shelf.done(gone)
    left = [n for n in range(1, 4) if n not in gone]
    assert s.take_all() == b"".join(b"%d" % n * 10 for n in left)
    assert s.ledger.repaid_items[Outcome.LEAKED] == 10 * len(gone)
    assert "are not to be found on disk" in caplog.text
    done(s)


def test_an_end_settles_what_is_everywhere() -> None:
    s = scene()
    for n in range(4):
        s.hold(b"x" * 10, 10, n % 2)
        s.spool.write(now=True)
        if n < 2:
            s.shelf.sync()
    assert s.take() is None
    s.shelf.answer()
    s.hold(b"fresh")
    s.spool.close(Outcome.WRITTEN_OFF)
    assert s.ledger.repaid_items[Outcome.WRITTEN_OFF] == 41
    s.spool.paged_in([])
    done(s)


async def test_what_a_crash_leaves_is_erased_at_the_next_start(tmp_path: Path) -> None:
    how = StoreSettings(fsync_interval=0.01)
    for again in (False, True):
        ledger = Ledger()
        async with open_flusher() as flusher, open_shelves(tmp_path, how, flusher) as shelves:
            assert [n for n in shelves.store.queues if n.startswith(SPOOL_PREFIX)] == (
                [f"{SPOOL_PREFIX}1/c"] if again else []
            )
            forget_spools(shelves)
            holder = Hands(ledger, "O")
            account = ledger.open("spill")
            spool = holder.spool = Spool(
                holder, shelves, account, f"{SPOOL_PREFIX}1/c", on_more=list, on_over=list
            )
            publisher = ledger.open("a")
            publisher.borrow(2, 8)
            spool.hold(publisher, b"%d nine" % again, 2, 8, ledger.clock())
            spool.write(now=True)
            await until(partial(getattr, account, "debt_items"))
            found: list[LoanedItem[list[bytes]] | None] = [None]

            def taken(spool: Spool = spool, found: list[Any] = found) -> bool:
                found[0] = spool.take()
                return found[0] is not None

            await until(taken)
            (loan,) = found
            assert loan is not None
            assert loan.item == [b"%d nine" % again]
            loan.settle()
            account.close()


def test_publishers_that_have_gone_are_forgotten_while_there_are_messages_of_others() -> None:
    """One that lags for days may have had messages of ever new publishers."""
    s = scene()
    known: weakref.WeakSet[Account] = weakref.WeakSet()
    for n in range(200):
        publisher = s.ledger.open(f"p/{n}")
        known.add(publisher)
        publisher.borrow(1, 1)
        s.spool.hold(publisher, b"x", 1, 1, s.ledger.clock())
        s.spool.write(now=True)
        s.shelf.sync()
        publisher.close()
        if n >= 10:
            while s.take() is None:
                s.shelf.answer()
        assert len(s.spool)
        assert s.spool.has_messages_of(publisher)
    gc.collect()
    assert len(known) <= 20
    assert s.take_all() == b"x" * 10
    done(s)


def test_a_large_backlog_is_written_in_steps() -> None:
    """Each copies a few megabytes; the next follows when they are durable."""
    s = scene()
    for number in range(100):
        s.hold(bytes([number]) * JOIN_BYTES, by=number % 2)
    s.spool.write(now=True)
    at_once = WRITE_BYTES // JOIN_BYTES
    assert len(s.shelf) == at_once
    assert [each.debt_items for each in s.publishers] == [50, 50]
    s.shelf.settle()
    assert [each.debt_items for each in s.publishers] == [0, 0]
    assert s.take_all() == b"".join(bytes([number]) * JOIN_BYTES for number in range(100))
    s.ledger.audit()
    s.spool.close()


def test_what_comes_next_is_read_while_the_rest_is_sent() -> None:
    s = scene()
    for number in range(20):
        s.hold(bytes([number]) * JOIN_BYTES, by=number % 2)
    s.spool.write(now=True)
    s.shelf.settle()
    assert s.take() is None
    s.shelf.settle()
    taken = 0
    while taken < 20:
        # There is always something, as soon as what was asked for has come.
        assert s.take() is not None
        taken += 1
        s.shelf.settle()
    assert s.take() is None
    s.ledger.audit()
    s.spool.close()
