"""Confirms: one answer a publication, coalesced as RabbitMQ does it, and never meaning more."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clearfunds.accounts import Account, Confirm, Ledger, LoanQueue, Outcome
from clearfunds.dataspace import DataspaceError, Publication
from clearfunds.dataspace.queues._coalesce import coalesce
from clearfunds.dataspace.queues._confirms import Confirms, PublicationConfirm, PublisherConfirm
from tests.dataspace.queues.conftest import Bench


def ack(number: int, multiple: bool = False) -> PublisherConfirm:
    return PublisherConfirm(number, multiple, refused=False)


def nack(number: int, multiple: bool = False) -> PublisherConfirm:
    return PublisherConfirm(number, multiple, refused=True)


def published(confirms: Confirms, count: int, expected: int = 1) -> list[PublicationConfirm]:
    """Begin publications that so many are expected to take."""
    handles = [confirms.begin() for _ in range(count)]
    for handle in handles:
        for _ in range(expected):
            handle.expect()
        handle.handed_over()
    return handles


# --- one publication ------------------------------------------------------------------------


def test_what_nobody_has_to_take_later_is_confirmed_when_its_turn_is_over() -> None:
    confirms = Confirms()
    with confirms.begin() as confirm:
        assert confirm.number == 1
        assert confirms.flush() == []
        assert len(confirms) == 1
    assert confirms.flush() == [ack(1)]
    assert confirms.flush() == []
    assert len(confirms) == 0
    assert confirms  # a channel without open publications is a channel


def test_the_last_of_those_who_were_expected_confirms() -> None:
    confirms = Confirms()
    with confirms.begin() as confirm:
        confirm.expect()
        confirm.expect()
        confirm.taken()  # at once: the turn goes on
        confirm.expect()
        confirm.taken()
    assert not confirms.waiting
    confirm.taken()
    assert confirms.flush() == [ack(1)]


def test_one_refusal_refuses_at_once_and_what_the_others_say_changes_nothing() -> None:
    confirms = Confirms()
    (confirm,) = published(confirms, 1, expected=3)
    confirm.taken()
    confirm.refused("the queue is full")
    assert confirms.flush() == [nack(1)]
    confirm.taken()
    assert confirms.flush() == []
    assert (confirms.begun, confirms.confirmed, confirms.refused) == (1, 0, 1)
    assert confirms.reason == confirm.reason == "the queue is full"


def test_a_refusal_within_the_turn_is_said_when_the_turn_is_over() -> None:
    confirms = Confirms()
    with confirms.begin() as confirm:
        confirm.expect()
        confirm.refused("full")
        assert confirms.flush() == []
        confirm.expect()
    assert confirms.flush() == [nack(1)]
    confirm.refused("full as well")
    assert confirm.reason == "full"


def test_a_turn_that_fails_refuses_and_the_error_goes_on() -> None:
    confirms = Confirms()
    with pytest.raises(KeyError), confirms.begin() as confirm:
        raise KeyError("no such place")
    assert confirm.reason == "'no such place'"
    assert confirms.flush() == [nack(1)]


def test_more_answers_than_expected_are_an_error() -> None:
    confirms = Confirms()
    with confirms.begin() as confirm:
        with pytest.raises(DataspaceError, match="more answers"):
            confirm.taken()
        confirm.expect()
    confirm.taken()
    for call in (confirm.taken, lambda: confirm.refused("no")):
        with pytest.raises(DataspaceError, match="more answers"):
            call()
    with pytest.raises(DataspaceError, match="has been handed over"):
        confirm.expect()
    confirm.handed_over()
    assert confirms.flush() == [ack(1)]
    assert confirm.reason is None


def test_a_publisher_that_has_gone_hears_nothing() -> None:
    told: list[int] = []
    confirms = Confirms(lambda: told.append(1))
    first, second, third = published(confirms, 3)
    first.taken()
    confirms.close()
    second.taken()
    third.refused("too late")
    assert confirms.flush() == []
    assert (len(told), len(confirms)) == (1, 0)


def test_who_flushes_is_told_once_for_each_flush() -> None:
    told: list[int] = []
    confirms = Confirms(lambda: told.append(confirms.confirmed))
    handles = published(confirms, 4)
    handles[0].taken()
    handles[1].taken()
    assert told == [1]
    confirms.flush()
    handles[3].refused("no")
    handles[2].taken()
    assert told == [1, 2]


class Slow(LoanQueue):
    """A holder that takes responsibility only when it is told to."""

    def __init__(self, ledger: Ledger, name: str) -> None:
        super().__init__(ledger, name)
        self.confirms: list[Confirm] = []

    def hold(self, account: Account, item: object, items: int, nbytes: int, now: float) -> None:
        super().hold(account, item, items, nbytes, now)
        confirm = self.ledger.confirming
        if confirm is not None:
            confirm.expect()
            self.confirms.append(confirm)

    def ready(self) -> None:
        pass

    def give_up(self, why: str) -> None:
        raise AssertionError(why)


def test_it_is_the_confirm_of_a_turn() -> None:
    ledger = Ledger()
    account = ledger.open("publisher")
    holders = [Slow(ledger, "a"), Slow(ledger, "b")]
    confirms = Confirms()
    with confirms.begin() as confirm, account.turn("event", confirm=confirm) as turn:
        for holder in holders:
            turn.send(holder, "event")
    assert confirms.flush() == []
    for holder in holders:
        assert not confirms.waiting
        assert holder.confirms == [confirm]
        holder.confirms.pop().taken()
    assert confirms.flush() == [ack(1)]
    for holder in holders:
        holder.settle_all(Outcome.ACKED)
    ledger.audit()


# --- many -----------------------------------------------------------------------------------


def test_everything_below_the_smallest_open_one_is_one_answer_and_the_rest_are_single() -> None:
    confirms = Confirms()
    handles = published(confirms, 9)
    for number in (8, 1, 3, 2, 6):
        handles[number - 1].taken()
    assert confirms.flush() == [ack(3, True), ack(6), ack(8)]
    for number in (4, 5):
        handles[number - 1].taken()
    assert confirms.flush() == [ack(5, True)]
    handles[9 - 1].taken()
    assert confirms.flush() == [ack(9)]
    handles[7 - 1].taken()
    assert confirms.flush() == [ack(7)]


def test_when_nothing_is_open_one_answer_stands_for_all() -> None:
    confirms = Confirms()
    for handle in published(confirms, 100):
        handle.taken()
    assert confirms.flush() == [ack(100, True)]


def test_answers_do_not_sweep_over_the_opposite_ones() -> None:
    confirms = Confirms()
    handles = published(confirms, 8)
    for number in (1, 2, 4, 6):
        handles[number - 1].taken()
    for number in (3, 5, 7, 8):
        handles[number - 1].refused("full")
    assert confirms.flush() == [
        *(ack(2, True), ack(4), ack(6)),
        *(nack(3), nack(5), nack(7), nack(8)),
    ]


def test_refusals_are_coalesced_as_well() -> None:
    confirms = Confirms()
    handles = published(confirms, 5)
    for handle in handles[:3]:
        handle.refused("full")
    handles[4].taken()
    assert confirms.flush() == [ack(5), nack(3, True)]
    handles[3].refused("full")
    assert confirms.flush() == [nack(4)]


@pytest.mark.parametrize(
    ("numbers", "smallest_open", "others", "said"),
    [
        ([], None, [], []),
        ([], 3, [1], []),
        ([7], None, [], [(7, False)]),
        ([7, 7], 8, [], [(7, False)]),
        ([2, 1, 2], None, [], [(2, True)]),
        ([2, 1], 3, [], [(2, True)]),
        ([1, 3], 2, [], [(1, True), (3, False)]),
        ([5, 6], 2, [], [(5, False), (6, False)]),
        ([1, 2, 4], None, [3], [(2, True), (4, False)]),
        ([1, 2, 4], 5, [3, 9], [(2, True), (4, False)]),
        ([4, 5], None, [6, 3], [(4, False), (5, False)]),
    ],
)
def test_coalescing(
    numbers: list[int], smallest_open: int | None, others: list[int], said: list[tuple[int, bool]]
) -> None:
    assert coalesce(numbers, smallest_open, others) == said


class Publisher:
    """The other end: it believes what it is told, a `multiple` included."""

    def __init__(self) -> None:
        self.open: set[int] = set()
        self.verdicts: dict[int, bool] = {}

    def hear(self, answer: PublisherConfirm) -> None:
        meant = {answer.number}
        if answer.multiple:
            meant |= {number for number in self.open if number <= answer.number}
        assert meant <= self.open  # each is answered once
        self.open -= meant
        self.verdicts.update(dict.fromkeys(meant, answer.refused))


# Publish to so many queues; or the nth expectation that is still open answers, well or badly; or
# all that is known is said.
steps = st.lists(
    st.one_of(
        st.integers(0, 3),
        st.tuples(st.integers(0, 30), st.sampled_from((True, True, True, False))),
        st.none(),
    ),
    max_size=120,
)


@settings(max_examples=300, deadline=None)
@given(steps)
def test_any_interleaving_means_what_single_answers_would(
    script: list[int | tuple[int, bool] | None],
) -> None:
    confirms = Confirms()
    publisher = Publisher()
    naive: dict[int, bool] = {}
    expectations: list[PublicationConfirm] = []

    def flush() -> None:
        answers = confirms.flush()
        for answer in answers:
            publisher.hear(answer)
        assert publisher.verdicts == naive
        assert len(confirms) == len(publisher.open) == confirms.begun - len(naive)
        # As few as can be: at most one of each kind has the flag, and it comes first.
        for kind in (True, False):
            flags = [answer.multiple for answer in answers if answer.refused is kind]
            assert not any(flags[1:])
        if not publisher.open and len({*naive.values()}) == 1:
            assert len(answers) <= 1

    for step in script:
        match step:
            case None:
                flush()
            case int():
                with confirms.begin() as confirm:
                    publisher.open.add(confirm.number)
                    for _ in range(step):
                        confirm.expect()
                        expectations.append(confirm)
                if not step:
                    naive[confirm.number] = False
            case (place, good):
                if expectations:
                    confirm = expectations.pop(place % len(expectations))
                    number = confirm.number
                    if good:
                        confirm.taken()
                        if confirm not in expectations:
                            naive.setdefault(number, False)
                    else:
                        confirm.refused("no")
                        naive.setdefault(number, True)
    flush()
    assert confirms.confirmed + confirms.refused == len(naive)


def test_a_publisher_that_cannot_note_it_holds_up_nobody(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise RuntimeError("no")

    queue, shelf = bench.durable()
    confirms = Confirms(fail)
    for name in "ab":
        with confirms.begin() as confirm, bench.publisher.turn(confirm=confirm) as turn:
            turn.publish(bench.dataspace, Publication("t", name.encode(), 1))
    shelf.sync()
    bench.ledger.audit()
    assert queue.statistics().disk_items == 2
    assert confirms.flush() == [ack(2, multiple=True)]
    assert [record.levelname for record in caplog.records] == ["ERROR"]
