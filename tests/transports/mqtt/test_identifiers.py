"""Packet identifiers: given out in turn, never twice at once, bounded."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clearfunds.transports import LocalProtocolError, RemoteProtocolError
from clearfunds.transports.mqtt import MAX_PACKET_ID, AwaitingRelease, PacketIds
from tests import memory


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


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 600)), max_size=2_000))
def test_many_or_few_are_the_same(steps: list[tuple[bool, int]]) -> None:
    awaiting = AwaitingRelease(limit=500)
    known: set[int] = set()
    for add, packet_id in steps:
        if not add:
            assert awaiting.release(packet_id) == (packet_id in known)
            known.discard(packet_id)
        elif packet_id in known or len(known) < 500:
            assert awaiting.add(packet_id) == (packet_id not in known)
            known.add(packet_id)
        assert len(awaiting) == len(known)
        assert (packet_id in awaiting) == (packet_id in known)
    assert sorted(awaiting) == sorted(known)


def test_all_that_there_can_be_take_little() -> None:
    awaiting = AwaitingRelease()
    with memory.tracing():
        assert all(awaiting.add(packet_id) for packet_id in range(1, MAX_PACKET_ID + 1))
        assert sum(memory.held(__file__)) < 10_000
    assert len(awaiting) == MAX_PACKET_ID
    assert not awaiting.add(65_535)
    assert list(awaiting) == list(range(1, MAX_PACKET_ID + 1))
    assert all(awaiting.release(packet_id) for packet_id in range(1, MAX_PACKET_ID + 1))
    assert not len(awaiting)
