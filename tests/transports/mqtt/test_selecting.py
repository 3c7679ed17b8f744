"""What stands before a holder for MQTT 5's options: what it lets through, and its books."""

from __future__ import annotations

import pytest

from clearfunds.accounts import Account, Ledger, Outcome
from clearfunds.dataspace import Dataspace, Mailbox, Publication, TopicFilter
from clearfunds.transports.mqtt.codec._options import NO_LOCAL, RETAIN_AS_PUBLISHED
from clearfunds.transports.mqtt.server._filters import Filters
from clearfunds.transports.mqtt.server._selecting import Selecting, select_by
from tests.accounts.conftest import Recording


class Bench:
    """A client with filters, and somebody else who publishes."""

    def __init__(self) -> None:
        self.ledger = Ledger()
        self.dataspace = Dataspace(self.ledger)
        self.client, self.other = self.ledger.open("client"), self.ledger.open("other")
        self.mailbox = Mailbox(self.ledger, "m")
        self.filters = Filters()
        self.selecting = Selecting(self.mailbox, self.select)

    def select(self, account: Account, publication: Publication) -> Publication | None:
        return select_by(self.filters, publication, own=account == self.client)

    def subscribe(self, text: str, options: int) -> None:
        self.filters.add(text, options)
        with self.client.turn() as turn:
            self.dataspace.observe(turn, TopicFilter(text), self.selecting, consumer=self)

    def publish(self, account: Account, topic: str, retain: bool = False) -> None:
        with account.turn() as turn:
            turn.publish(self.dataspace, Publication(topic, b"1", retain=retain))
        self.ledger.audit()

    def told(self) -> list[str]:
        """Return the topics of what has come, with ! where RETAIN is set; and repay it."""
        found: list[str] = []
        for loan in list(self.mailbox.loans()):
            found += [event.topic + "!" * event.retain for event in loan.item]
        self.mailbox.settle_all(Outcome.DELIVERED)
        self.ledger.audit()
        return found


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_with_no_local_a_client_does_not_get_its_own(bench: Bench) -> None:
    bench.subscribe("a/+", NO_LOCAL)
    bench.publish(bench.client, "a/1")
    assert bench.client.debt_items == 0
    assert bench.ledger.repaid_items[Outcome.DROPPED] == 1
    bench.publish(bench.other, "a/2")
    assert bench.told() == ["a/2"]
    # Unless another one matches, too, which wants it.
    bench.subscribe("#", 0)
    bench.publish(bench.client, "a/3")
    bench.publish(bench.client, "b")
    assert bench.told() == ["a/3", "b"]
    assert bench.client.debt_items == bench.other.debt_items == 0


def test_retain_stays_as_published_if_one_wants_that(bench: Bench) -> None:
    bench.subscribe("#", 0)
    bench.publish(bench.other, "a", retain=True)
    bench.subscribe("a", RETAIN_AS_PUBLISHED)
    bench.publish(bench.other, "a", retain=True)
    bench.publish(bench.other, "a")
    bench.publish(bench.other, "b", retain=True)
    # The second is what was retained, told to a new subscriber.
    assert bench.told() == ["a", "a!", "a!", "a", "b"]


def test_it_is_known_by_whom_it_stands_before(bench: Bench) -> None:
    assert bench.selecting.last_holder is bench.mailbox
    assert "Selecting before" in repr(bench.selecting)


def test_what_is_dropped_is_not_the_holders(bench: Bench) -> None:
    """Who counts what a holder is given, and what it is done with, finds both the same."""
    bench.ledger.recorder = recording = Recording()
    bench.subscribe("a", NO_LOCAL)
    bench.publish(bench.client, "a")
    bench.subscribe("b", 0)
    bench.publish(bench.client, "b")
    bench.publish(bench.client, "a")
    bench.told()
    recording.agrees(bench.ledger)
    assert bench.ledger.repaid_items[Outcome.DROPPED] == 2
