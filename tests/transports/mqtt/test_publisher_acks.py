"""When publications are acknowledged: in order, each once somebody has it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clearfunds.transports import RemoteProtocolError
from clearfunds.transports.mqtt import PubAck, PubRec
from clearfunds.transports.mqtt.server._publisher_acks import (
    IdentifierAck,
    PublisherAck,
    PublisherAcks,
)


class Client:
    """Who is told."""

    def __init__(self) -> None:
        self.told: list[PubAck | PubRec] = []
        self.refused: list[str] = []
        self.acks = PublisherAcks(self.told.append, self.refused.append)

    def publish(self, packet_id: int, expected: int, qos: int = 1) -> PublisherAck:
        """One publication, which `expected` queues need time to take."""
        ack = self.acks.begin(PubAck(packet_id) if qos == 1 else PubRec(packet_id))
        for _ in range(expected):
            ack.expect()
        ack.handed_over()
        return ack


def test_what_nobody_needs_time_for_is_acknowledged_at_once() -> None:
    client = Client()
    client.publish(1, 0)
    client.publish(2, 0, qos=2)
    assert client.told == [PubAck(1), PubRec(2)]
    assert len(client.acks) == 0


def test_the_others_wait_for_what_came_before_them() -> None:
    client = Client()
    first = client.publish(1, 2)
    client.publish(2, 0)
    third = client.publish(3, 1)
    third.taken()
    first.taken()
    assert client.told == []
    first.taken()
    assert client.told == [PubAck(1), PubAck(2), PubAck(3)]


def test_taken_while_it_is_handed_over_is_not_said_before_that_is_done() -> None:
    client = Client()
    ack = client.acks.begin(PubAck(1))
    ack.expect()
    ack.taken()
    assert client.told == []
    ack.expect()
    ack.handed_over()
    assert client.told == []
    ack.taken()
    assert client.told == [PubAck(1)]


def test_a_refusal_ends_the_connection_and_is_not_acknowledged() -> None:
    client = Client()
    ack = client.publish(7, 2)
    ack.refused("the queue is full")
    ack.taken()
    assert client.told == []
    (said,) = client.refused
    assert said.startswith("packet 7 was refused: the queue is full")


def test_who_has_gone_is_told_nothing_and_who_has_come_back_is() -> None:
    old, new = Client(), Client()
    first = old.publish(1, 1, qos=2)
    second = old.publish(2, 1, qos=2)
    old.acks.close()
    second.taken()
    first.moved_to(new.acks)
    second.moved_to(new.acks)
    assert new.told == []
    first.taken()
    assert old.told == []
    assert new.told == [PubRec(1), PubRec(2)]


@given(st.lists(st.integers(0, 3), max_size=12), st.randoms(use_true_random=False))
def test_each_is_said_once_and_in_order(expected: list[int], random: object) -> None:
    client = Client()
    acks = [client.publish(n + 1, count) for n, count in enumerate(expected)]
    taking = [a for a, count in zip(acks, expected, strict=True) for _ in range(count)]
    random.shuffle(taking)  # type: ignore[attr-defined]
    for ack in taking:
        ack.taken()
        assert client.told == [PubAck(n + 1) for n in range(len(client.told))]
    assert len(client.told) == len(expected)


class Noted:
    """The identifier of a QoS 2 publication, and what became of it."""

    def __init__(self) -> None:
        self.happened: list[str] = []
        self.durable: Callable[[], object] = lambda: None

    def persist(self, on_durable: Callable[[], object]) -> None:
        self.happened.append("written")
        self.durable = on_durable

    def forget(self) -> None:
        self.happened.append("forgotten")


def test_an_identifier_is_written_with_the_last_message_that_it_came_with() -> None:
    """One queue has room and the other has not: what has come is not complete before that."""
    client, identifier = Client(), Noted()
    ack = client.acks.begin(PubRec(1), identifier)
    assert isinstance(ack, IdentifierAck)
    ack.expect()
    ack.expect()
    first = ack.written()
    ack.handed_over()
    first.taken()
    assert identifier.happened == []
    second = ack.written()
    assert identifier.happened == ["written"]
    second.taken()
    assert client.told == []
    identifier.durable()
    assert client.told == [PubRec(1)]


def test_an_identifier_is_written_when_all_is_written_before_the_turn_is_over() -> None:
    client, identifier = Client(), Noted()
    ack = client.acks.begin(PubRec(1), identifier)
    assert isinstance(ack, IdentifierAck)
    ack.expect()
    queue = ack.written()
    assert identifier.happened == []
    ack.handed_over()
    assert identifier.happened == ["written"]
    identifier.durable()
    assert client.told == []
    queue.taken()
    assert client.told == [PubRec(1)]
    assert identifier.happened == ["written"]


def test_an_identifier_is_written_when_what_was_not_written_is_dealt_with() -> None:
    client, identifier = Client(), Noted()
    ack = client.acks.begin(PubRec(1), identifier)
    ack.expect()
    ack.handed_over()
    ack.taken()
    assert (identifier.happened, client.told) == (["written"], [])
    identifier.durable()
    assert client.told == [PubRec(1)]


def test_the_identifier_of_what_nobody_takes_is_written_at_once() -> None:
    client, identifier = Client(), Noted()
    client.acks.begin(PubRec(1), identifier).handed_over()
    assert (identifier.happened, client.told) == (["written"], [])
    identifier.durable()
    assert client.told == [PubRec(1)]


def test_the_identifier_of_what_was_refused_may_be_used_again() -> None:
    client, identifier = Client(), Noted()
    ack = client.acks.begin(PubRec(1), identifier)
    ack.expect()
    ack.handed_over()
    ack.refused("full")
    ack.refused("full")
    assert identifier.happened == ["forgotten"]
    assert client.told == []
    assert len(client.refused) == 1


def test_an_answer_that_is_asked_for_again_is_said_once() -> None:
    client = Client()
    ack = client.publish(1, 1, qos=2)
    ack.moved_to(client.acks)
    ack.taken()
    assert client.told == [PubRec(1)]
    other = Client()
    second = client.publish(2, 1, qos=2)
    client.acks.close()
    second.moved_to(other.acks)
    second.taken()
    assert (client.told, other.told) == ([PubRec(1)], [PubRec(2)])


def test_no_more_wait_for_an_answer_than_there_are_identifiers() -> None:
    client = Client()
    client.publish(1, 1)
    for packet_id in range(1, 65_535):
        client.publish(packet_id, 0)
    with pytest.raises(RemoteProtocolError, match=r"65535 publications .* \[MQTT-2.3.1-2\]"):
        client.publish(1, 0)


def test_where_the_protocol_can_say_so_a_refusal_is_an_answer() -> None:
    told: list[PubAck | PubRec] = []

    def refusal(packet: PubAck | PubRec, why: str) -> PubAck | PubRec:
        assert why == "full"
        return type(packet)(packet.packet_id, 0x97)

    acks = PublisherAcks(told.append, pytest.fail, refusal)
    first = acks.begin(PubAck(1))
    first.expect()
    first.handed_over()
    second = acks.begin(PubRec(2))
    second.expect()
    second.expect()
    second.handed_over()
    assert acks.pending_pubacks == 1
    second.refused("full")
    assert told == []
    first.refused("full")
    assert told == [PubAck(1, 0x97)]
    assert acks.pending_pubacks == 0
    second.taken()
    assert told == [PubAck(1, 0x97), PubRec(2, 0x97)]
    assert len(acks) == 0


@pytest.mark.parametrize("kind", [PubAck, PubRec])
def test_moved_to_a_connection_without_reasons_it_gives_none(kind: type[PubAck | PubRec]) -> None:
    """The client spoke MQTT 5, and comes back with 3.1.1: it cannot be told why."""

    def refusal(packet: PubAck | PubRec, why: str) -> PubAck | PubRec:
        return type(packet)(packet.packet_id, 0x97)

    before, after = Client(), Client()
    before.acks.refusal = refusal
    nobody, refused = (before.acks.begin(kind(n)) for n in (1, 2))
    for ack in (nobody, refused):
        ack.expect()
        ack.expect()
        ack.handed_over()
    nobody.note_reached(anybody=False)
    refused.refused("its quota is used up")
    assert (nobody.packet.reason, refused.packet.reason) == (0x10, 0x97)
    for ack in (nobody, refused):
        ack.moved_to(after.acks)
    (said,) = after.refused
    assert said.startswith("packet 2 was refused: reason 0x97 of MQTT 5")
    nobody.taken()
    assert after.told == []
    nobody.taken()
    assert after.told == [kind(1)]
    assert before.told == []


def test_which_publications_are_not_acknowledged_yet() -> None:
    client = Client()
    acks = client.acks
    first = client.publish(1, 1)
    client.publish(2, 0)  # it stands behind the first
    client.publish(3, 0, qos=2)  # its identifier is known elsewhere
    assert [acks.awaits(each) for each in (1, 2, 3, 4)] == [True, True, False, False]
    first.taken()
    assert not any(acks.awaits(each) for each in (1, 2, 3))
    client.publish(5, 0)
    assert not acks.awaits(5)  # it was acknowledged at once
    sixth = client.publish(6, 1)
    assert acks.close() == {6: sixth}
    assert acks.close() == {}
    assert not acks.awaits(6)
