"""Replays of retained publications: in steps that are short, whatever is retained."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from clearfunds.accounts import Account, Ledger, Limit
from clearfunds.dataspace import Mailbox, Publication, RetainedStore
from clearfunds.transports.mqtt.server._replays import LOOKS_A_STEP, REPLAY_STEP, Replays
from tests.dataspace.conftest import told


@pytest.fixture
def ledger() -> Iterator[Ledger]:
    ledger = Ledger()
    yield ledger
    ledger.audit()


@pytest.fixture
def account(ledger: Ledger) -> Account:
    return ledger.open("subscriber", limit=Limit(items=None, bytes=None))


def store_of(ledger: Ledger, *topics: str) -> RetainedStore:
    store = RetainedStore(1_000_000, 1 << 30)
    keep(ledger, store, *topics)
    return store


def keep(ledger: Ledger, store: RetainedStore, *topics: str, payload: bytes = b"1") -> None:
    for topic in topics:
        store.set(Publication(topic, payload, 1, retain=True), ledger.standing_of("publisher"))


def test_a_step_tells_of_so_many(ledger: Ledger, account: Account) -> None:
    store = store_of(ledger, *[f"a/{n}" for n in range(REPLAY_STEP + 5)], "b")
    replays, mailbox = Replays(), Mailbox(ledger, "subscriber")
    replays.add("a/+", 0)
    replays.add("b", 1)
    replays.step(store, account, lambda qos: mailbox)
    assert replays.granted
    first = told(mailbox)
    assert len(first) == REPLAY_STEP
    replays.step(store, account, lambda qos: mailbox)
    assert not replays.granted
    rest = told(mailbox)
    assert len(rest) == 6
    assert {each.topic for each in first + rest} == {f"a/{n}" for n in range(REPLAY_STEP + 5)} | {
        "b"
    }
    assert {(each.topic == "b", each.qos, each.retain) for each in first + rest} == {
        (False, 0, True),
        (True, 1, True),
    }


def test_a_step_looks_at_so_many(ledger: Ledger, account: Account) -> None:
    """Also if none matches; and filters that find nothing do not take a step each."""
    count = 10 * LOOKS_A_STEP
    store = store_of(ledger, *[f"{n}/a" for n in range(count)])
    replays, mailbox = Replays(), Mailbox(ledger, "subscriber")
    replays.add("+/b", 0)
    steps = 0
    while replays.granted:
        replays.step(store, account, lambda qos: mailbox)
        steps += 1
    assert count // LOOKS_A_STEP <= steps <= count // LOOKS_A_STEP + 1
    for n in range(LOOKS_A_STEP):
        replays.add(f"no/{n}", 0)
    steps = 0
    while replays.granted:
        replays.step(store, account, lambda qos: mailbox)
        steps += 1
    assert steps <= 3
    assert not told(mailbox)


def test_a_step_ends_where_there_is_no_room(ledger: Ledger) -> None:
    account = ledger.open("poor", limit=Limit(items=2, bytes=None))
    store = store_of(ledger, *"abcdefgh")
    replays, mailbox = Replays(), Mailbox(ledger, "subscriber")
    replays.add("#", 2)
    found: list[str] = []
    while replays.granted:
        replays.step(store, account, lambda qos: mailbox)
        assert len(mailbox.queue) <= 3
        found += [each.topic for each in told(mailbox)]
    assert found == list("abcdefgh")


def test_what_changes_between_steps(ledger: Ledger, account: Account) -> None:
    topics = [f"a/{n:04}" for n in range(4 * REPLAY_STEP)]
    store = store_of(ledger, *topics)
    replays, mailbox = Replays(), Mailbox(ledger, "subscriber")
    replays.add("#", 0)
    replays.step(store, account, lambda qos: mailbox)
    first = told(mailbox)
    keep(ledger, store, topics[0], topics[-2], payload=b"new")
    keep(ledger, store, "0", "z", payload=b"later")
    keep(ledger, store, topics[1], topics[-1], payload=b"")
    while replays.granted:
        replays.step(store, account, lambda qos: mailbox)
    rest = told(mailbox)
    found = [each.topic for each in first + rest]
    assert sorted(found) == [*topics[:-1], "z"]
    assert {each.topic: each.payload for each in rest if each.payload != b"1"} == {
        topics[-2]: b"new",
        "z": b"later",
    }


def test_who_leaves_is_told_nothing_more(ledger: Ledger, account: Account) -> None:
    store = store_of(ledger, *[f"a/{n}" for n in range(2 * REPLAY_STEP)])
    replays, mailbox = Replays(), Mailbox(ledger, "subscriber")
    replays.add("a/#", 0)
    replays.step(store, account, lambda qos: mailbox)
    replays.clear()
    assert not replays.granted
    replays.add("a/1", 0)
    replays.step(store, account, lambda qos: mailbox)
    assert not replays.granted
    assert len(told(mailbox)) == REPLAY_STEP + 1
