"""Mailboxes whose consumer does not keep up, under the policies by which they stay (rule 11)."""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator
from functools import partial
from typing import Any

import anyio
import attrs
import pytest
from anyio import wait_all_tasks_blocked
from trio.testing import MockClock

from clearfunds.accounts import (
    NO_LIMIT,
    RETAIN_BYTES,
    RETAIN_ITEMS,
    RETAIN_LIMIT,
    Account,
    Holder,
    Ledger,
    Limit,
    Outcome,
    StuckPolicy,
    Tracer,
    UnfitPolicyError,
    watch_patience,
)
from clearfunds.dataspace import (
    Asserted,
    Batch,
    Dataspace,
    Mailbox,
    Publication,
    Retracted,
    TopicFilter,
    subject_of,
)
from clearfunds.dataspace.queues import MemoryShelf, Queue, QueueSettings
from tests.accounts.conftest import Box, balance
from tests.loops import LoopClock, open_nursery

pytestmark = pytest.mark.rule(11)


RELIEVING = [policy for policy in StuckPolicy if policy.relieves]
KEEPING = [policy for policy in RELIEVING if policy is not StuckPolicy.SPILL]


@pytest.fixture
def timed(autojump_clock: MockClock) -> Iterator[Ledger]:
    """A ledger on the loop's own clock. (A test has to name `autojump_clock`, too.)"""
    ledger = Ledger(clock=LoopClock())
    yield ledger
    balance(ledger)


def a_queue(ledger: Ledger, shelf: MemoryShelf) -> Queue:
    queue = Queue(
        ledger,
        "spill",
        account=ledger.open("disk", limit=NO_LIMIT, at_rest="disk"),
        shelf=shelf,
        settings=QueueSettings(durable=True),
        persistent=lambda _: True,
    )
    shelf.recover(queue)
    return queue


async def disk(shelf: MemoryShelf) -> None:
    while True:
        await anyio.sleep(0.2)
        work(shelf)


def send(account: Account, holder: Holder, *events: Any) -> None:
    for event in events:
        with account.turn() as turn:
            turn.send(holder, event, nbytes=10)


def work(shelf: MemoryShelf) -> None:
    shelf.sync()
    while shelf.wants:
        shelf.answer()


async def received(mailbox: Mailbox, shelf: MemoryShelf | None = None) -> tuple[list[Any], int]:
    if shelf is not None:
        work(shelf)
    with anyio.fail_after(60):
        loan = await mailbox.receive()
    with loan as events:
        return list(events), mailbox.dropped


# -- what publishers and others get ---------------------------------------------------------------


@pytest.mark.parametrize("policy", RELIEVING)
async def test_publishers_go_on_and_the_others_get_everything(
    policy: StuckPolicy, autojump_clock: MockClock, timed: Ledger
) -> None:
    """One consumer of three sleeps; nobody waits on it twice, and each loss is counted."""
    shelf = MemoryShelf()
    queue = a_queue(timed, shelf)
    account = timed.open("publisher", limit=Limit(items=30, low_items=10))
    stuck = Mailbox(
        timed, "stuck", patience=5, policy=policy, retain_limit=Limit(items=8), spill=queue
    )
    others = [Mailbox(timed, f"other {n}") for n in range(2)]
    got: dict[Mailbox, list[Any]] = {mailbox: [] for mailbox in others}
    wake = anyio.Event()
    late: list[Any] = []
    gaps = 0

    async def consumer(mailbox: Mailbox) -> None:
        async for loan in mailbox:
            with loan as events:
                await anyio.sleep(0.01)
                got[mailbox] += events

    async def sleeper() -> None:
        nonlocal gaps
        first, _ = await received(stuck)
        late.extend(first)
        await wake.wait()
        while True:
            events, gap = await received(stuck)
            late.extend(events)
            gaps += gap

    waits: list[float] = []
    async with open_nursery() as nursery:
        nursery.start_soon(watch_patience, timed)
        nursery.start_soon(disk, shelf)
        nursery.start_soon(sleeper)
        for mailbox in others:
            nursery.start_soon(consumer, mailbox)
        with anyio.fail_after(60):
            for number in range(1000):
                began = anyio.current_time()
                await account.ensure_clear_funds()
                if anyio.current_time() - began > 0.5:
                    waits.append(anyio.current_time() - began)
                with account.turn() as turn:
                    for mailbox in (stuck, *others):
                        turn.send(mailbox, number, nbytes=10)
                await anyio.sleep(0.001)
        # Once for its patience, to within one look; never again.
        assert len(waits) == 1
        assert 5.0 <= waits[0] <= 5.6
        assert stuck.relief.spells == 1
        assert stuck.lagging
        assert stuck in timed.lagging
        wake.set()
        await anyio.sleep(30)
        assert not stuck.lagging
        send(account, stuck, 1000)
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()

    for numbers in got.values():
        assert numbers == list(range(1000))
    assert late == sorted(late)
    dropped = stuck.relief.dropped_items
    assert len(late) + dropped == 1001
    assert gaps == dropped
    statistics = timed.holder_statistics(stuck)
    assert (statistics.dropped_items, statistics.spells, statistics.lagging) == (dropped, 1, False)
    totals = timed.statistics()
    assert totals.relieved[policy] == 1
    assert totals.lagging == 0
    if policy is StuckPolicy.SPILL:
        assert late == list(range(1001))
        assert stuck.relief.stored_items == totals.relieved_items[policy] > 900
    else:
        assert totals.repaid_items["dropped"] == dropped > 900
        kept = late[late.index(0) + 1 : -1] if policy is StuckPolicy.DROP_NEWEST else late[-9:-1]
        assert len(kept) >= 8 or policy is StuckPolicy.CONFLATE
    assert not any(name.startswith("behind") for name in timed.accounts)


async def test_without_patience_it_is_dealt_with_as_soon_as_somebody_waits(
    autojump_clock: MockClock, timed: Ledger
) -> None:
    account = timed.open("publisher", limit=Limit(items=2, low_items=0))
    mailbox = Mailbox(timed, "m", patience=0, policy=StuckPolicy.DROP_OLDEST)
    async with open_nursery() as nursery:
        nursery.start_soon(watch_patience, timed)
        await wait_all_tasks_blocked()
        began = anyio.current_time()
        send(account, mailbox, 1, 2, 3)
        await account.ensure_clear_funds()
        assert anyio.current_time() == began
        assert mailbox.lagging
        nursery.cancel_scope.cancel()


async def test_a_short_patience_is_kept_to(autojump_clock: MockClock, timed: Ledger) -> None:
    account = timed.open("publisher", limit=Limit(items=2, low_items=0))
    mailbox = Mailbox(timed, "m", patience=0.1, policy=StuckPolicy.DROP_NEWEST)
    async with open_nursery() as nursery:
        nursery.start_soon(partial(watch_patience, timed, every=5))
        await wait_all_tasks_blocked()
        began = anyio.current_time()
        send(account, mailbox, 1, 2, 3)
        await account.ensure_clear_funds()
        assert anyio.current_time() - began == pytest.approx(0.1, abs=0.002)
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("patience", [-1, float("nan")])
def test_patience_is_not_negative(ledger: Ledger, patience: float) -> None:
    """Nor what nothing is compared with, so that nobody would ever be dealt with."""
    with pytest.raises(ValueError, match="0 is the least"):
        Mailbox(ledger, "m", patience=patience)


def first_letter(event: str) -> str:
    return event[0]


def itself(event: int) -> int:
    return event


# -- what is kept, and where the gaps are ---------------------------------------------------------


def stuck(ledger: Ledger, policy: StuckPolicy, keep: int, **options: Any) -> Mailbox:
    return Mailbox(ledger, "m", policy=policy, retain_limit=Limit(items=keep), **options)


async def test_the_oldest_go(ledger: Ledger, account: Account) -> None:
    mailbox = stuck(ledger, StuckPolicy.DROP_OLDEST, 3)
    send(account, mailbox, *range(10))
    mailbox.relieve("it is stuck")
    assert account.debt_items == 0
    send(account, mailbox, 10)
    assert [await received(mailbox) for _ in range(3)] == [([8], 8), ([9], 0), ([10], 0)]
    assert not mailbox.lagging
    send(account, mailbox, 11, 12)
    assert await received(mailbox) == ([11, 12], 0)


async def test_the_newest_go(ledger: Ledger, account: Account) -> None:
    mailbox = stuck(ledger, StuckPolicy.DROP_NEWEST, 3)
    send(account, mailbox, *range(10))
    mailbox.relieve("it is stuck")
    assert await received(mailbox) == ([0], 0)
    send(account, mailbox, 10)
    send(account, mailbox, 11)
    assert [await received(mailbox) for _ in range(3)] == [([1], 0), ([2], 0), ([10], 7)]
    assert not mailbox.lagging
    send(account, mailbox, 12)
    assert await received(mailbox) == ([12], 1)


async def test_the_latest_of_each_key_stays_where_it_came(ledger: Ledger, account: Account) -> None:
    mailbox = stuck(ledger, StuckPolicy.CONFLATE, 100, key=first_letter)
    send(account, mailbox, "a1", "b1", "a2", "c1")
    mailbox.relieve("it is stuck")
    send(account, mailbox, "b2", "b3")
    found = [await received(mailbox) for _ in range(3)]
    assert found == [(["a2"], 2), (["c1"], 0), (["b3"], 1)]
    assert mailbox.relief.dropped_items == 3


async def test_what_is_conflated_by_topic_comes_in_batches_too(
    ledger: Ledger, account: Account
) -> None:
    mailbox = stuck(ledger, StuckPolicy.CONFLATE, 100)

    def run(*topics: str) -> Batch:
        each = [Publication(topic, b"%d" % n) for n, topic in enumerate(topics)]
        return Batch(b"12345" * len(each), len(each), lambda _: each)

    for topics in ("aab", "ba"):
        with account.turn() as turn:
            turn.send(mailbox, run(*topics), items=len(topics), nbytes=5 * len(topics))
        mailbox.relieve("it is stuck")
    found = [(await received(mailbox))[0][0] for _ in range(2)]
    assert found == [Publication("b", b"0"), Publication("a", b"1")]
    assert mailbox.relief.dropped_items == 3
    assert mailbox.relief.dropped_bytes == 15


@attrs.frozen
class Reading:
    sensor: str
    value: int


@attrs.frozen
class Tick:
    at: int


def test_subjects() -> None:
    assert subject_of(Publication("a/b", b"1")) == subject_of(Publication("a/b", b"2", qos=1))
    assert subject_of(Publication("a/b", b"1")) != subject_of(Publication("a/c", b"1"))
    assert subject_of(Reading("s", 1)) == subject_of(Reading("t", 2))
    assert subject_of(Reading("s", 1)) != subject_of(Tick(1))
    assert subject_of(Asserted(Tick(1))) == subject_of(Retracted(Tick(1)))
    assert subject_of(Asserted(Tick(1))) != subject_of(Asserted(Tick(2)))
    assert subject_of({"a": [1]}) == subject_of({"b": 2})


async def test_more_keys_than_are_kept(ledger: Ledger, account: Account) -> None:
    mailbox = stuck(ledger, StuckPolicy.CONFLATE, 2, key=itself)
    mailbox.relieve("it is stuck")
    for n in range(500):
        send(account, mailbox, n)
        if n % 7 == 0:
            assert (await received(mailbox))[0] == [max(0, n - 1)]
            mailbox.relieve("it is stuck")
        backlog = mailbox.backlog
        assert backlog is None or len(backlog._latest) <= 70  # pyright: ignore[reportPrivateUsage]


def test_the_bound_is_in_bytes_too(ledger: Ledger, account: Account) -> None:
    mailbox = Mailbox(ledger, "m", policy=StuckPolicy.DROP_OLDEST, retain_limit=Limit(bytes=100))
    mailbox.relieve("it is stuck")
    send(account, mailbox, *range(20))
    assert len(mailbox.queue) == 10
    # What is larger than all that is kept takes nothing else with it.
    with account.turn() as turn:
        turn.send(mailbox, "large", nbytes=101)
    assert [loan.item[0] for loan in mailbox.queue] == list(range(10, 20))
    assert mailbox.relief.dropped_items == 11
    assert (
        (RETAIN_LIMIT.items, RETAIN_LIMIT.bytes) == (RETAIN_ITEMS, RETAIN_BYTES) == (1000, 8 << 20)
    )


# -- what is in somebody's hands ------------------------------------------------------------------


async def test_what_is_in_hand_is_finished_and_owed_for_by_nobody_who_waits(
    ledger: Ledger, account: Account
) -> None:
    mailbox = stuck(ledger, StuckPolicy.DROP_OLDEST, 1)
    box = Box(ledger, "box")
    send(account, mailbox, "first")
    loan = await mailbox.receive()
    with loan as events:
        send(account, mailbox, "second", "third")
        mailbox.relieve("it is stuck")
        assert account.debt_items == 0
        assert loan.account.name == "behind"
        assert events == ["first"]
        with loan.turn() as turn:
            turn.send(box, "caused", nbytes=1)
        ledger.audit()
    ledger.audit()
    assert not ledger.inside
    await account.ensure_clear_funds()
    assert {row.account for row in ledger.matrix()} == {"behind", "behind/m"}
    box.close()
    assert (await received(mailbox)) == (["third"], 1)


def test_what_its_consumer_causes_is_bounded_with_what_is_kept(
    ledger: Ledger, account: Account
) -> None:
    mailbox = stuck(ledger, StuckPolicy.DROP_OLDEST, 4)
    box = Box(ledger, "stuck too")
    mailbox.relieve("it is stuck")
    for n in range(100):
        send(account, mailbox, n)
        if n % 3 == 2 and mailbox.queue:
            loan = mailbox.receive_nowait()
            with loan, loan.turn() as turn:
                turn.send(box, "caused", nbytes=1)
            mailbox.relieve("it is stuck")
    assert sum(each.debt_items for each in ledger.accounts.values() if each.parent) <= 40
    assert account.debt_items == 0
    box.close()


async def test_what_was_taken_may_be_put_back_or_given_to_another_that_is_behind(
    ledger: Ledger, account: Account
) -> None:
    mailbox = stuck(ledger, StuckPolicy.DROP_OLDEST, 3)
    other = Mailbox(ledger, "other")
    send(account, other, 1, 2, 3, 4)
    mailbox.relieve("it is stuck")
    mailbox.put(other.receive_nowait())
    assert account.debt_items == 0
    assert [loan.item for loan in mailbox.queue] == [[2], [3], [4]]
    first = mailbox.receive_nowait()
    assert mailbox.dropped == 1
    mailbox.put(first)
    assert [loan.item for loan in mailbox.queue] == [[3], [4], [2]]
    ledger.audit()
    other.close()


# -- spilling -----------------------------------------------------------------------------------


async def test_what_is_spilled_to_memory_is_bounded(ledger: Ledger, account: Account) -> None:
    mailbox = Mailbox(ledger, "m", policy=StuckPolicy.SPILL, retain_limit=Limit(items=100))
    send(account, mailbox, *range(60))
    mailbox.relieve("it is stuck")
    assert account.debt_items == 0
    assert mailbox.full_patience is None
    send(account, mailbox, *range(60, 110))
    # Ten are beyond its limit: the publisher owes for them, and waits for the mailbox.
    assert account.debt_items == 10
    assert sum(loan.items for loan in mailbox.waited_for()) == 10
    assert mailbox.policy is StuckPolicy.DISCONNECT
    assert mailbox.patience == mailbox.full_patience == 20
    with mailbox.receive_nowait() as events:
        assert events == list(range(60))
    mailbox.spill_again()
    assert account.debt_items == 0
    assert mailbox.policy is StuckPolicy.SPILL
    found: list[Any] = []
    while mailbox.lagging:
        found += (await received(mailbox))[0]
    assert found == list(range(60, 110))
    assert mailbox.relief.dropped_items == 0
    assert not any(name.startswith("behind") for name in ledger.accounts)


async def test_when_memory_is_used_up_publishers_wait_and_then_it_is_disconnected(
    autojump_clock: MockClock, timed: Ledger
) -> None:
    account = timed.open("publisher", limit=Limit(items=10, low_items=0))
    mailbox = Mailbox(
        timed, "m", patience=0.1, policy=StuckPolicy.SPILL, retain_limit=Limit(items=50)
    )
    began = anyio.current_time()
    async with open_nursery() as nursery:
        nursery.start_soon(watch_patience, timed)
        waits: list[float] = []
        for number in range(100):
            asked = anyio.current_time()
            await account.ensure_clear_funds()
            waits.append(anyio.current_time() - asked)
            send(account, mailbox, number)
        assert 20 <= max(waits) < 21.5
        assert anyio.current_time() - began < 23
        assert mailbox.closed
        assert timed.statistics().repaid_items["written_off"] > 50
        nursery.cancel_scope.cancel()


async def test_what_is_put_aside_comes_back_in_order(ledger: Ledger, account: Account) -> None:
    shelf = MemoryShelf()
    queue = a_queue(ledger, shelf)
    mailbox = Mailbox(ledger, "m", policy=StuckPolicy.SPILL, spill=queue)
    send(account, mailbox, *range(5))
    assert (await received(mailbox)) == ([0, 1, 2, 3, 4], 0)
    send(account, mailbox, *range(5, 200))
    mailbox.relieve("it is stuck")
    assert account.debt_items == 195  # until it is on disk
    shelf.sync()
    assert account.debt_items == 0
    send(account, mailbox, *range(200, 300))
    found: list[Any] = []
    while mailbox.lagging:
        found += (await received(mailbox, shelf))[0]
    assert found == list(range(5, 300))
    assert not len(shelf)
    assert mailbox.relief.stored_items == 295
    # From now on it is as it was.
    send(account, mailbox, 300, 301)
    assert (await received(mailbox)) == ([300, 301], 0)
    queue.close()


async def test_what_was_not_received_stays_in_the_queue(ledger: Ledger, account: Account) -> None:
    shelf = MemoryShelf()
    queue = a_queue(ledger, shelf)
    with Mailbox(ledger, "m", policy=StuckPolicy.SPILL, spill=queue) as mailbox:
        send(account, mailbox, *range(100))
        mailbox.relieve("it is stuck")
        assert [(await received(mailbox, shelf))[0] for _ in range(3)] == [[0], [1], [2]]
        ledger.audit()
    assert len(queue) == 97
    assert not mailbox.queue
    # Whoever reads the queue next has it.
    with Mailbox(ledger, "next", policy=StuckPolicy.SPILL, spill=queue) as following:
        send(account, following, 100)
        following.relieve("it is stuck")
        assert (await received(following, shelf)) == ([3], 0)
    queue.close()


async def test_a_queue_that_cuts_the_mailbox_off_has_everything_back(
    ledger: Ledger, account: Account
) -> None:
    shelf = MemoryShelf()
    queue = a_queue(ledger, shelf)
    mailbox = Mailbox(ledger, "m", policy=StuckPolicy.SPILL, spill=queue)
    send(account, mailbox, *range(10))
    mailbox.relieve("it is stuck")
    assert (await received(mailbox, shelf)) == ([0], 0)
    queue.give_up("others wait for room")
    assert not mailbox.queue
    ledger.audit()
    send(account, mailbox, 10)
    assert [(await received(mailbox, shelf))[0] for _ in range(10)] == [[n] for n in range(1, 11)]
    queue.close()


async def test_a_queue_that_is_deleted_meanwhile(ledger: Ledger, account: Account) -> None:
    shelf = MemoryShelf()
    queue = a_queue(ledger, shelf)
    mailbox = Mailbox(ledger, "m", policy=StuckPolicy.SPILL, spill=queue)
    send(account, mailbox, *range(100))
    mailbox.relieve("it is stuck")
    work(shelf)
    queue.delete()
    # What had come back is there; the rest went with the queue.
    found: list[Any] = []
    while mailbox.lagging:
        found += (await received(mailbox))[0]
    assert found == list(range(64))
    send(account, mailbox, 100)
    assert (await received(mailbox, shelf)) == ([100], 0)


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        (QueueSettings(durable=True), "has no shelf"),
        (QueueSettings(durable=False), "is not durable"),
        (QueueSettings(durable=True, auto_delete=True), "would delete itself"),
    ],
)
def test_a_mailbox_that_cannot_spill(settings: QueueSettings, why: str, ledger: Ledger) -> None:
    queue = Queue(
        ledger,
        "q",
        account=ledger.open("disk", at_rest="disk"),
        settings=settings,
        shelf=None if "no shelf" in why else MemoryShelf(),
    )
    with pytest.raises(UnfitPolicyError, match=why):
        Mailbox(ledger, "m", policy=StuckPolicy.SPILL, spill=queue)
    mailbox = Mailbox(ledger, "m", spill=queue)
    with pytest.raises(UnfitPolicyError, match=why):
        mailbox.policy = StuckPolicy.SPILL
    assert mailbox.policy is StuckPolicy.DISCONNECT


# -- the log, the end, and those that cannot ------------------------------------------------------


@pytest.mark.parametrize("policy", KEEPING)
async def test_the_log_has_a_line_when_it_begins_and_one_when_it_ends(
    policy: StuckPolicy,
    autojump_clock: MockClock,
    timed: Ledger,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "clearfunds.accounts")
    account = timed.open("publisher", limit=Limit(items=2, low_items=0))
    mailbox = Mailbox(timed, "m", patience=5, policy=policy, retain_limit=Limit(items=2))
    async with open_nursery() as nursery:
        nursery.start_soon(watch_patience, timed)
        send(account, mailbox, 1, 2, 3)
        await account.ensure_clear_funds()
        for n in range(50):
            await account.ensure_clear_funds()
            send(account, mailbox, n)
            await anyio.sleep(1)
        nursery.cancel_scope.cancel()
    begin, freed = caplog.records
    assert freed.message == "1 reader goes on now that mailbox m no longer blocks it"
    assert begin.levelno == logging.WARNING
    assert begin.message.startswith(
        "mailbox m made no progress for 5.0 s (patience 5 s) and holds 3 items, 30 bytes that "
        "publisher waits for; it is behind now: it keeps "
    )
    fields = vars(begin)
    assert (fields["event"], fields["policy"], fields["holder"]) == ("behind", policy, "m")
    assert fields["waiting"] == ("publisher",)
    while mailbox.lagging:
        mailbox.receive_nowait().settle()
    (_, _, end) = caplog.records
    dropped = mailbox.relief.dropped_items
    assert end.levelno == logging.WARNING
    assert end.message == (
        f"mailbox m has caught up after 50.0 s behind; {dropped} items, {10 * dropped} bytes were "
        "dropped"
    )
    assert (vars(end)["event"], vars(end)["dropped_items"]) == ("behind_ended", dropped)
    (incident,) = timed.incidents.latest()
    relieved = incident.relieved
    assert relieved is not None
    assert (relieved.policy, relieved.debtors, relieved.ring) == (policy, ("publisher",), 0)
    assert relieved.lost.dropped_items == dropped
    assert incident.given_up is None


@pytest.mark.parametrize("policy", RELIEVING)
def test_closing_ends_it(policy: StuckPolicy, ledger: Ledger, account: Account) -> None:
    queue = a_queue(ledger, MemoryShelf())
    mailbox = Mailbox(ledger, "m", policy=policy, spill=queue)
    send(account, mailbox, 1, 2)
    mailbox.relieve("it is stuck")
    mailbox.close()
    mailbox.relieve("it is stuck")
    assert not mailbox.lagging
    assert not ledger.lagging
    send(account, mailbox, 3)
    assert not mailbox.queue
    queue.close()
    assert not any(name.startswith("behind") for name in ledger.accounts)


def test_who_has_the_same_name_has_a_bound_of_its_own(ledger: Ledger, account: Account) -> None:
    both = [stuck(ledger, StuckPolicy.DROP_OLDEST, 2) for _ in range(2)]
    for mailbox in both:
        mailbox.relieve("it is stuck")
        send(account, mailbox, 1, 2, 3)
    assert [len(mailbox.queue) for mailbox in both] == [2, 2]
    assert {"behind", "behind/m", "behind/m 2"} <= set(ledger.accounts)


def test_many_of_one_name_do_not_look_for_theirs_among_all(
    ledger: Ledger, account: Account
) -> None:
    """All subscriptions of a program are called as its account, unless it says otherwise."""
    looked = 0

    class Accounts(dict[str, Account]):
        def __contains__(self, name: object) -> bool:
            nonlocal looked
            looked += 1
            return super().__contains__(name)

    ledger.accounts = Accounts(ledger.accounts)
    boxes = [Mailbox(ledger, "m", policy=StuckPolicy.DROP_OLDEST) for _ in range(100)]
    for box in boxes:
        box.relieve("it is stuck")
    assert len(ledger.accounts) > 100
    assert looked < 500
    for box in boxes:
        box.close()


def test_a_mailbox_that_was_forgotten_leaves_no_account(ledger: Ledger, account: Account) -> None:
    mailbox = stuck(ledger, StuckPolicy.DROP_OLDEST, 2)
    mailbox.relieve("it is stuck")
    send(account, mailbox, 1, 2, 3)
    assert "behind/m" in ledger.accounts
    del mailbox
    gc.collect()
    with pytest.warns(ResourceWarning, match="never settled"):
        ledger.audit()
    assert not any(name.startswith("behind") for name in ledger.accounts)
    assert not ledger.lagging
    assert ledger.leaked_loans == 2


def test_a_key_that_fails_is_the_default(
    ledger: Ledger, account: Account, caplog: pytest.LogCaptureFixture
) -> None:
    def key(event: int) -> object:
        if event > 1:
            raise ValueError(event)
        return [event]

    mailbox = stuck(ledger, StuckPolicy.CONFLATE, 9, key=key)
    send(account, mailbox, 1, 2)
    mailbox.relieve("it is stuck")
    send(account, mailbox, 3)
    assert [loan.item for loan in mailbox.queue] == [[3]]
    assert "its key function failed" in caplog.text
    mailbox.close()


def test_what_is_kept_is_told_of_as_at_rest(ledger: Ledger, account: Account) -> None:
    mailbox = stuck(ledger, StuckPolicy.DROP_OLDEST, 2)
    send(account, mailbox, 1, 2, 3)
    mailbox.relieve("it is stuck")
    totals = ledger.statistics()
    assert totals.debt_items == 0
    assert totals.at_rest_items == {"ram": 2}
    assert totals.lagging == 1
    assert totals.repaid_items["stored"] == 2
    assert totals.repaid_items["dropped"] == 1


def test_a_holder_that_knows_no_policy_says_so(ledger: Ledger) -> None:
    with pytest.raises(UnfitPolicyError, match="box O cannot conflate when it is stuck; choose of"):
        Box(ledger, "O", policy=StuckPolicy.CONFLATE)
    box = Box(ledger, "O")
    with pytest.raises(UnfitPolicyError, match="cannot be relieved"):
        box.relieve("it is stuck")


async def test_what_is_traced_is_followed_into_what_is_kept(
    ledger: Ledger, account: Account
) -> None:
    mailbox = stuck(ledger, StuckPolicy.DROP_OLDEST, 1)
    with Tracer(ledger, account.name.__eq__, events=2) as tracer:
        send(account, mailbox, 1)
        send(account, mailbox, 2)
        mailbox.relieve("it is stuck")
        traces = [await tracer.next() for _ in range(2)]
    # In the order in which they ended, which is not that in which they were sent.
    assert {tuple(trace.outcomes.items()) for trace in traces} == {
        ((Outcome.DROPPED, 1),),
        ((Outcome.STORED, 1),),
    }
    assert account.debt_items == 0


async def test_subscribed_is_a_mailbox_and_its_observation(
    ledger: Ledger, account: Account
) -> None:
    dataspace = Dataspace(ledger)
    reader = ledger.open("reader")
    with dataspace.subscribed(
        reader, TopicFilter("a/#"), policy=StuckPolicy.CONFLATE, patience=3.0
    ) as mailbox:
        assert mailbox.name == "reader"
        assert (mailbox.policy, mailbox.patience) == (StuckPolicy.CONFLATE, 3.0)
        with account.turn() as turn:
            turn.publish(dataspace, Publication("a/b", b"1"))
            turn.publish(dataspace, Publication("b", b"1"))
        with await mailbox.receive() as events:
            assert events == [Publication("a/b", b"1")]
    assert mailbox.closed
    assert dataspace.statistics().subscriptions == 0
    ledger.audit()
