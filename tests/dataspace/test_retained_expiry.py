"""Retained publications that expire: told to nobody, and gone in bounded time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clearfunds.accounts import Account, Ledger, Quota, QuotaExceededError
from clearfunds.dataspace import Dataspace, Mailbox, Publication, RetainedStore, TopicFilter
from clearfunds.dataspace._retained import EXPIRY_BATCH, STALE_AT_LEAST
from clearfunds.testing import Clock
from tests.dataspace.conftest import STEADY, RefusedError, commit, refuse, told


def kept(topic: str, expires: float | None = None, payload: bytes = b"1") -> Publication:
    return Publication(topic, payload, retain=True, expires=expires)


@pytest.fixture
def clock(dataspace: Dataspace) -> Clock:
    clock = Clock(1_000.0)
    dataspace.retained.wall = clock
    return clock


def publish(dataspace: Dataspace, account: Account, *publications: Publication) -> None:
    with account.turn() as turn:
        for publication in publications:
            turn.publish(dataspace, publication)


def test_what_has_expired_is_told_to_nobody_and_goes(
    dataspace: Dataspace, account: Account, mailbox: Mailbox, clock: Clock
) -> None:
    store = dataspace.retained
    gone: list[str] = []
    publish(dataspace, account, kept("a", 1_010.0), kept("b"), kept("c", 1_020.0))
    store.on_change = lambda topic, value, _: gone.append(topic) if value is None else None
    clock.now = 1_010.0
    assert store.get("b") is not None
    with account.turn() as turn:
        dataspace.observe(turn, TopicFilter("#"), mailbox)
    assert sorted(each.topic for each in told(mailbox)) == ["b", "c"]
    assert gone == ["a"]
    assert (len(store), account.standing().items) == (2, 2 + 1)  # and the observation
    clock.now = 1_020.0
    assert store.get("c") is None
    assert gone == ["a", "c"]
    assert store.topics("#") == ["b"]
    assert store.nbytes == 2


def test_time_removes_it_some_at_a_time(ledger: Ledger) -> None:
    store = RetainedStore(10_000, 1_000_000)
    owner = ledger.standing_of("owner")
    count = EXPIRY_BATCH + 10
    for n in range(count):
        store.set(kept(f"t/{n}", 100.0 + n / count), owner)
    store.set(kept("stays"), owner)
    assert store.expire(99.0) == 0
    assert store.expire(101.0) == EXPIRY_BATCH
    assert len(store) == owner.items == 11
    assert store.expire(101.0) == 10
    assert store.expire(1e12) == 0
    assert (len(store), store.nbytes, owner.bytes) == (1, 6, 6)


def test_what_is_replaced_does_not_pile_up(ledger: Ledger) -> None:
    store = RetainedStore(10, 1_000)
    owner = ledger.standing_of("owner")
    for n in range(10_000):
        store.set(kept("t", 1e9 + n), owner)
        assert len(store._by_expiry) <= STALE_AT_LEAST + 1  # pyright: ignore[reportPrivateUsage]
    store.set(kept("t"), owner)
    assert store.expire(1e12) == 0
    assert len(store) == 1


def test_it_may_expire_before_its_turn_is_undone(
    dataspace: Dataspace, account: Account, mailbox: Mailbox, clock: Clock
) -> None:
    publish(dataspace, account, kept("a"))
    before = account.standing().items, account.standing().bytes, dataspace.retained.nbytes
    with pytest.raises(RefusedError):
        commit(
            account,
            lambda turn: turn.publish(dataspace, kept("a", clock.now - 1, b"new")),
            lambda turn: dataspace.observe(turn, TopicFilter("a"), mailbox),
            lambda turn: turn.act(refuse),
        )
    assert dataspace.retained.get("a") == kept("a")
    assert before == (
        account.standing().items,
        account.standing().bytes,
        dataspace.retained.nbytes,
    )


def test_its_quota_is_free_again() -> None:
    ledger = Ledger(quota=Quota(items=1, bytes=100))
    dataspace = Dataspace(ledger)
    account = ledger.open("owner")
    publish(dataspace, account, kept("a", 4e9))
    with pytest.raises(QuotaExceededError):
        publish(dataspace, account, kept("b"))
    dataspace.retained.expire(4e9)
    publish(dataspace, account, kept("b"))
    account.close()


@given(
    st.lists(
        st.one_of(
            st.tuples(
                st.just("set"),
                st.sampled_from("abc"),
                st.none() | st.integers(0, 20),
                st.booleans(),
            ),
            st.tuples(st.sampled_from(["tick", "get", "expire", "look"])),
        ),
        max_size=40,
    )
)
@STEADY
def test_it_is_as_if_it_were_looked_at_all_the_time(steps: list[tuple[object, ...]]) -> None:
    ledger = Ledger()
    store = RetainedStore(10, 1_000)
    now = 0.0
    store.wall = lambda: now
    owner = ledger.standing_of("owner")
    model: dict[str, float | None] = {}
    for step in steps:
        match step:
            case ("set", str(topic), int() | None as when, bool(removes)):
                undo = store.set(kept(topic, when, b"" if removes else b"1"), owner)
                if len(steps) % 3 == 0:
                    undo()
                elif removes:
                    model.pop(topic, None)
                else:
                    model[topic] = when
            case ("tick",):
                now += 3
            case ("expire",):
                store.expire(now)
            case _:
                pass
        model = {t: when for t, when in model.items() if when is None or when > now}
        if step[0] == "get":
            for topic in "abc":
                assert (store.get(topic) is not None) == (topic in model)
        elif step[0] == "look":
            assert sorted(each.topic for each in store.matching("#")) == sorted(model)
        if step[0] in ("expire", "get", "look"):
            assert len(store) == owner.items == len(model)
        assert len(store) == owner.items >= len(model)
    store.expire(1e9)
    assert len(store) == sum(when is None for when in model.values())
