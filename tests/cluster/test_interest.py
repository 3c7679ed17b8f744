"""The topic filters that a relay tells the others."""

from __future__ import annotations

import pytest

from clearfunds.accounts import Ledger
from clearfunds.cluster import _interest as interest_module
from clearfunds.cluster._interest import PAGES, Interest, read_page
from clearfunds.dataspace import Dataspace, Mailbox, TopicFilter
from clearfunds.dataspace._routes import Subscription
from clearfunds.dataspace.hops import Hop


class Told:
    """A relay's interest, and what its pages say."""

    def __init__(self) -> None:
        self.ledger = Ledger()
        self.routes = Dataspace(self.ledger).routes
        self.interest = Interest(self.routes)
        self.pages: dict[int, frozenset[str]] = {}

    def subscribe(self, text: str) -> Subscription:
        found = Subscription(TopicFilter(text), Mailbox(self.ledger, text))
        self.routes.subscribe(found)
        return found

    def filters(self) -> set[str]:
        """Write what has changed, and return what all pages say."""
        for number in self.interest.changed():
            life, _, self.pages[number] = read_page(self.interest.page(number, 7))
            assert life == 7
        return set[str]().union(*self.pages.values())


def test_filters_are_told_once_and_taken_back_with_the_last_subscription() -> None:
    told = Told()
    one, two, _ = told.subscribe("a/+"), told.subscribe("a/+"), told.subscribe("b")
    told.subscribe("$SYS/x")
    assert told.filters() == {"a/+", "b"}
    told.routes.unsubscribe(one)
    assert not told.interest.changed()
    assert told.filters() == {"a/+", "b"}
    told.routes.unsubscribe(two)
    assert told.filters() == {"b"}


def test_what_other_relays_want_is_not_told_them() -> None:
    told = Told()
    hop = Hop(told.ledger, "r2", 1)
    told.routes.subscribe(Subscription(TopicFilter("a"), hop, acked=hop, granted=2, consumer=hop))
    assert told.filters() == set()
    hop.close()


def test_a_change_writes_one_page() -> None:
    told = Told()
    for number in range(500):
        told.subscribe(f"t/{number}")
    assert len(told.filters()) == 500
    told.subscribe("one/more")
    assert len(told.interest.changed()) == 1
    told.interest.all_again()
    assert len(told.interest.changed()) == PAGES


def test_with_very_many_filters_a_relay_asks_for_everything(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(interest_module, "MAX_FILTERS", 20)
    told = Told()
    all_of_them = [told.subscribe(f"t/{number}") for number in range(25)]
    assert told.filters() == {"#"}
    for each in all_of_them[10:]:
        told.routes.unsubscribe(each)
    assert told.filters() == {f"t/{number}" for number in range(10)}


def test_a_page_of_very_long_filters_asks_for_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interest_module, "MAX_PAGE_BYTES", 100)
    told = Told()
    told.subscribe("x" * 200)
    assert told.filters() == {"#"}


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b'{"life": 1}', b'{"life": 1, "filters": 3}'])
def test_what_is_no_page_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"page|JSON|Expecting"):
        read_page(data)
