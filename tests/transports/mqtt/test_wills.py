"""Wills that wait."""

from __future__ import annotations

from typing import Any

import pytest

from clearfunds.access._tenants import Peer
from clearfunds.accounts import Ledger, Quota, QuotaExceededError
from clearfunds.transports.mqtt import Properties, Will
from clearfunds.transports.mqtt.server import _wills as wills_module
from clearfunds.transports.mqtt.server._wills import DelayedWills, LastWill, WillRoom

PEER = Peer("mqtt:1", "-", "c")


def will(payload: bytes, **properties: Any) -> LastWill:
    return LastWill.of(Will("w", payload, properties=Properties(**properties)))


def test_what_is_said_of_a_will_counts() -> None:
    wills = DelayedWills()
    large = will(b"x", user=(("", ""),) * 60_000, will_delay=5, message_expiry=7)
    assert (large.delay, large.expiry) == (5, 7)
    assert wills.add("a", PEER, large, 1.0)
    assert wills.nbytes == 2 + 5 * 60_000
    assert large.at(100.0).expires == 107.0
    assert will(b"").at(100.0).expires is None


def test_they_are_over_when_their_time_has_come() -> None:
    wills = DelayedWills()
    for client, due in (("a", 5.0), ("b", 3.0), ("c", 9.0)):
        assert wills.add(client, PEER, will(client.encode()), due)
    assert wills.over(2.9) == []
    assert [each.will.publication.payload for each in wills.over(5.0)] == [b"a", b"b"]
    assert len(wills) == 1
    assert wills.nbytes == 2


def test_a_client_has_one_at_most() -> None:
    wills = DelayedWills()
    wills.add("a", PEER, will(b"12345"), 1.0)
    wills.add("a", PEER, will(b"6"), 2.0)
    assert (len(wills), wills.nbytes) == (1, 2)
    taken = wills.take("a")
    assert taken is not None
    assert taken.will.publication.payload == b"6"
    assert wills.take("a") is None
    assert wills.nbytes == 0


def test_there_are_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wills_module, "MAX_DELAYED", 2)
    monkeypatch.setattr(wills_module, "MAX_DELAYED_BYTES", 10)
    wills = DelayedWills()
    assert wills.add("a", PEER, will(b"1234"), 1.0)
    assert not wills.add("b", PEER, will(b"12345"), 1.0)
    assert wills.add("b", PEER, will(b"1"), 1.0)
    assert not wills.add("c", PEER, will(b""), 1.0)
    assert wills.nbytes == 7


def test_all_of_them_have_a_limit_of_which_no_share_takes_all() -> None:
    ledger = Ledger()
    cost = will(b"").cost
    room = WillRoom(cost * 18)
    # Eight ninths.
    taken = [room.take(will(b""), "greedy", ledger.standing_of(f"g{n}")) for n in range(16)]
    with pytest.raises(QuotaExceededError, match="those of greedy"):
        room.take(will(b""), "greedy", ledger.standing_of("g"))
    other = room.take(will(b""), "other", ledger.standing_of("o"))
    assert room.nbytes == cost * 17
    assert (ledger.all_standing.items, ledger.all_standing.bytes) == (17, cost * 17)
    for place in (*taken, other, other):
        place.release()
    assert (room.nbytes, ledger.all_standing.items, ledger.all_standing.bytes) == (0, 0, 0)
    assert not ledger.all_standing.owners


def test_each_is_in_the_quota_of_its_owner() -> None:
    ledger = Ledger(quota=Quota(bytes=will(b"1234").cost))
    room = WillRoom(None)
    with pytest.raises(QuotaExceededError):
        room.take(will(b"12345"), "a", ledger.standing_of("a"))
    assert (room.nbytes, ledger.all_standing.items) == (0, 0)
    room.take(will(b"1234"), "a", ledger.standing_of("a"))


def test_one_that_waits_is_counted_until_its_time_has_come() -> None:
    ledger = Ledger()
    room = WillRoom()
    wills = DelayedWills()
    for client, due in (("a", 1.0), ("b", 2.0)):
        place = room.take(will(b"x"), "share", ledger.standing_of(client))
        assert wills.add(client, PEER, will(b"x"), due, place=place)
    assert room.nbytes == 2 * will(b"x").cost
    assert wills.over(1.0)
    assert room.nbytes == will(b"x").cost
    wills.take("b")
    assert (room.nbytes, ledger.all_standing.items) == (0, 0)
