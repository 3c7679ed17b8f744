"""Retained publications: a topic's last value, a quota of whoever set it (rule 16)."""

from __future__ import annotations

import pytest

from clearfunds.accounts import Account, Ledger, Quota, QuotaExceededError
from clearfunds.dataspace import Dataspace, Mailbox, Publication, RetainedStore, TopicFilter
from tests.dataspace.conftest import RefusedError, commit, refuse, told

pytestmark = pytest.mark.rule(16)


def kept(topic: str, payload: bytes, qos: int = 0) -> Publication:
    """What a new subscriber is told."""
    return Publication(topic, payload, qos, retain=True)


def retain(
    dataspace: Dataspace, account: Account, topic: str, payload: bytes, qos: int = 0
) -> None:
    with account.turn() as turn:
        turn.publish(dataspace, Publication(topic, payload, qos, retain=True))


def subscribe(
    dataspace: Dataspace,
    account: Account,
    text: str,
    mailbox: Mailbox,
    acked: Mailbox | None = None,
    *,
    replay: bool = True,
) -> None:
    with account.turn() as turn:
        dataspace.observe(turn, TopicFilter(text), mailbox, acked=acked, replay=replay)


def quota_of(account: Account) -> tuple[int, int]:
    return account.standing().items, account.standing().bytes


def test_subscribers_of_later_are_told_of_the_last_value(
    dataspace: Dataspace, account: Account, mailbox: Mailbox
) -> None:
    retain(dataspace, account, "a/b", b"1")
    retain(dataspace, account, "a/b", b"2")
    retain(dataspace, account, "a/c", b"3")
    retain(dataspace, account, "b", b"4")
    subscribe(dataspace, account, "a/+", mailbox)
    assert sorted(p.payload for p in told(mailbox)) == [b"2", b"3"]
    subscribe(dataspace, account, "b", mailbox)
    assert told(mailbox) == [kept("b", b"4")]
    subscribe(dataspace, account, "b", mailbox, replay=False)
    assert told(mailbox) == []


def test_to_who_subscribes_already_it_is_news(
    dataspace: Dataspace, account: Account, mailbox: Mailbox
) -> None:
    """[MQTT-3.3.1-9]."""
    subscribe(dataspace, account, "a", mailbox)
    retain(dataspace, account, "a", b"1")
    assert told(mailbox) == [Publication("a", b"1", retain=False)]
    assert dataspace.retained.get("a") == kept("a", b"1")


def test_an_empty_payload_removes_it_and_is_published(
    dataspace: Dataspace, account: Account, mailbox: Mailbox
) -> None:
    """[MQTT-3.3.1-10], [MQTT-3.3.1-11]."""
    subscribe(dataspace, account, "a", mailbox)
    before = quota_of(account)
    retain(dataspace, account, "a", b"1")
    assert quota_of(account) == (before[0] + 1, before[1] + 2)
    for _ in range(2):  # the second time there is nothing to remove
        retain(dataspace, account, "a", b"")
        assert dataspace.retained.get("a") is None
        assert (len(dataspace.retained), dataspace.retained.nbytes) == (0, 0)
        assert quota_of(account) == before
    assert [p.payload for p in told(mailbox)] == [b"1", b"", b""]
    subscribe(dataspace, account, "a", mailbox)
    assert told(mailbox) == []


def test_without_the_flag_nothing_is_kept_or_replaced(
    dataspace: Dataspace, account: Account
) -> None:
    retain(dataspace, account, "a", b"1")
    with account.turn() as turn:
        turn.publish(dataspace, Publication("a", b"2"))
        turn.publish(dataspace, Publication("a", b""))
        turn.publish(dataspace, Publication("b", b"2"))
    assert dataspace.retained.get("a") == kept("a", b"1")
    assert dataspace.retained.get("b") is None


def test_replay_is_as_acknowledged_as_was_granted(
    dataspace: Dataspace, account: Account, mailbox: Mailbox, other: Mailbox
) -> None:
    """What was published with a higher quality is replayed with it to who was granted one."""
    retain(dataspace, account, "once", b"1", qos=1)
    retain(dataspace, account, "perhaps", b"0", qos=0)
    subscribe(dataspace, account, "+", mailbox, other)
    assert told(mailbox) == [kept("perhaps", b"0")]
    assert told(other) == [kept("once", b"1", 1)]
    subscribe(dataspace, account, "+", mailbox)
    assert sorted(told(mailbox), key=str) == [kept("once", b"1"), kept("perhaps", b"0")]
    assert dataspace.retained.get("once") == kept("once", b"1", 1)


def test_the_quota_moves_with_the_value(
    dataspace: Dataspace, ledger: Ledger, account: Account
) -> None:
    other = ledger.open("other")
    retain(dataspace, account, "a", b"12")
    assert (quota_of(account), quota_of(other)) == ((1, 3), (0, 0))
    retain(dataspace, other, "a", b"1234")
    assert (quota_of(account), quota_of(other)) == ((0, 0), (1, 5))
    retain(dataspace, other, "a", b"1")
    assert quota_of(other) == (1, 2)
    retain(dataspace, account, "a", b"")  # whoever removes it
    assert (quota_of(account), quota_of(other)) == ((0, 0), (0, 0))


def test_the_quota_outlives_the_connection(dataspace: Dataspace, ledger: Ledger) -> None:
    with ledger.open("passer-by") as account:
        retain(dataspace, account, "a", b"1")
    assert "passer-by" not in ledger.accounts
    with ledger.open("passer-by") as account:
        assert quota_of(account) == (1, 2)
        assert account.statistics().standing_items == 1
        retain(dataspace, account, "a", b"")
        assert quota_of(account) == (0, 0)


def test_an_owner_has_a_quota() -> None:
    ledger = Ledger(quota=Quota(items=2, bytes=20))
    dataspace = Dataspace(ledger)
    account, other = ledger.open("owner"), ledger.open("other")
    retain(dataspace, account, "a", b"1")
    retain(dataspace, account, "b", b"1")
    with pytest.raises(QuotaExceededError, match="owner may keep 2"):
        retain(dataspace, account, "c", b"1")
    retain(dataspace, account, "b", b"2")  # no more than before
    retain(dataspace, account, "b", b"2" * 17)
    with pytest.raises(QuotaExceededError, match="owner may keep 20 bytes"):
        retain(dataspace, account, "a", b"12")
    assert dataspace.retained.get("a") == kept("a", b"1")
    retain(dataspace, account, "b", b"")
    retain(dataspace, account, "a", b"12")
    # To take over another's value, one needs room for all of it.
    retain(dataspace, other, "x", b"1" * 17)
    with pytest.raises(QuotaExceededError, match="other may keep 20 bytes"):
        retain(dataspace, other, "a", b"12")
    assert quota_of(account) == (1, 3)
    assert quota_of(other) == (1, 18)
    assert account.debt_items == other.debt_items == 0


def test_the_store_has_limits_of_its_own(ledger: Ledger, account: Account) -> None:
    dataspace = Dataspace(ledger, max_retained=2, max_retained_bytes=10)
    retain(dataspace, account, "a", b"1")
    retain(dataspace, account, "b", b"1")
    with pytest.raises(QuotaExceededError, match="c cannot be retained: 2 topics are"):
        retain(dataspace, account, "c", b"1")
    retain(dataspace, account, "a", b"1234567")
    with pytest.raises(QuotaExceededError, match="b cannot be retained: 10 bytes are, of 10"):
        retain(dataspace, account, "b", b"12")
    retain(dataspace, account, "b", b"2")
    retain(dataspace, account, "a", b"")
    retain(dataspace, account, "c", b"1")
    assert dataspace.statistics().retained == 2
    assert dataspace.statistics().retained_bytes == dataspace.retained.nbytes == 4


@pytest.mark.rule(4)
def test_what_could_not_be_retained_is_not_published_either(
    ledger: Ledger, account: Account, mailbox: Mailbox
) -> None:
    """Rule 4: the turn fails as a whole."""
    dataspace = Dataspace(ledger, max_retained=0)
    subscribe(dataspace, account, "#", mailbox)
    with pytest.raises(QuotaExceededError):
        commit(
            account,
            lambda turn: turn.publish(dataspace, Publication("a", b"1")),
            lambda turn: turn.publish(dataspace, kept("b", b"1")),
        )
    assert told(mailbox) == []
    assert dataspace.statistics().published == 0


@pytest.mark.parametrize("payload", [b"", b"new", b"the same"])
@pytest.mark.parametrize("owner", ["somebody", "other"])
@pytest.mark.parametrize("old", [None, b"the same"])
def test_it_is_undone(
    dataspace: Dataspace,
    ledger: Ledger,
    account: Account,
    payload: bytes,
    owner: str,
    old: bytes | None,
) -> None:
    other = ledger.open("other")
    by = other if owner == "other" else account
    if old is not None:
        retain(dataspace, account, "a", old)
    before = quota_of(account), quota_of(other), dataspace.retained.nbytes
    with pytest.raises(RefusedError):
        commit(
            by,
            lambda turn: turn.publish(dataspace, kept("a", payload)),
            lambda turn: turn.publish(dataspace, kept("a", b"in between")),
            lambda turn: turn.publish(dataspace, kept("a", payload)),
            lambda turn: turn.act(refuse),
        )
    assert (quota_of(account), quota_of(other), dataspace.retained.nbytes) == before
    value = dataspace.retained.get("a")
    assert value == (None if old is None else kept("a", old))
    assert dataspace.retained.topics("#") == ([] if old is None else ["a"])


def test_the_store_by_itself(ledger: Ledger) -> None:
    store = RetainedStore(10, 100)
    owner = ledger.standing_of("owner")
    for topic in ("a", "a/b", "$s"):
        store.set(kept(topic, b"1"), owner)
    assert len(store) == 3
    assert sorted(store.topics("#")) == ["a", "a/b"]
    assert store.topics("$s/#") == ["$s"]
    assert [p.topic for p in store.matching("a/+")] == ["a/b"]
    undo = store.set(kept("a", b""), owner)
    assert (len(store), owner.items) == (2, 2)
    undo()
    assert (len(store), owner.items, store.nbytes) == (3, 3, 9)


def test_each_change_is_told_of_those_undone_too(ledger: Ledger) -> None:
    store = RetainedStore(10, 1_000)
    told: list[tuple[str, Publication | None, str]] = []

    def changed(topic: str, publication: Publication | None, owner: str) -> None:
        told.append((topic, publication, owner))

    store.on_change = changed
    first, second = Publication("t", b"1", retain=True), Publication("t", b"2", retain=True)
    store.set(first, ledger.standing_of("a"))
    undo = store.set(second, ledger.standing_of("b"))
    undo()
    store.set(Publication("t", b"", retain=True), ledger.standing_of("a"))
    store.set(Publication("t", b"", retain=True), ledger.standing_of("a"))  # there was none
    assert told == [("t", first, "a"), ("t", second, "b"), ("t", first, "a"), ("t", None, "")]
