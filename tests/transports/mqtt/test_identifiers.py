"""Packet identifiers: given out in turn, never twice at once, bounded."""

import pytest

from clearfunds.transports import LocalProtocolError, RemoteProtocolError
from clearfunds.transports.mqtt import AwaitingRelease, PacketIds


def test_identifiers_go_round_and_skip_those_in_use() -> None:
    ids = PacketIds()
    assert [ids.allocate() for _ in range(3)] == [1, 2, 3]
    assert ids.release(2)
    assert not ids.release(2)
    assert ids.allocate() == 4
    for _ in range(5, 65_536):
        ids.allocate()
    assert len(ids) == 65_534
    assert ids.allocate() == 2  # 1 is still in use
    assert 2 in ids
    with pytest.raises(LocalProtocolError, match="all 65535"):
        ids.allocate()
    assert ids.release(65_535)
    assert ids.allocate() == 65_535
    assert repr(ids) == "<PacketIds 65535/65535 in use, last 65535>"


def test_a_qos_2_publication_is_new_once_until_its_release() -> None:
    awaiting = AwaitingRelease(limit=2)
    assert awaiting.add(7)
    assert not awaiting.add(7)
    assert awaiting.add(8)
    assert not awaiting.add(7)  # a duplicate needs no room
    with pytest.raises(RemoteProtocolError, match="2 QoS 2 publications await"):
        awaiting.add(9)
    assert awaiting.release(7)
    assert not awaiting.release(7)
    assert awaiting.add(7)
    assert len(awaiting) == 2
    assert 7 in awaiting
    assert repr(awaiting) == "<AwaitingRelease 2/2>"
