"""When publications are acknowledged: in order, each once somebody has it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from clearfunds.transports.mqtt import PubAck, PubRec
from clearfunds.transports.mqtt._answers import Answer, Answers


class Client:
    """Who is told."""

    def __init__(self) -> None:
        self.told: list[PubAck | PubRec] = []
        self.refused: list[str] = []
        self.answers = Answers(self.told.append, self.refused.append)

    def publish(self, packet_id: int, expected: int, qos: int = 1) -> Answer:
        """One publication, which `expected` queues need time to take."""
        answer = self.answers.begin(PubAck(packet_id) if qos == 1 else PubRec(packet_id))
        for _ in range(expected):
            answer.expect()
        answer.handed_over()
        return answer


def test_what_nobody_needs_time_for_is_acknowledged_at_once() -> None:
    client = Client()
    client.publish(1, 0)
    client.publish(2, 0, qos=2)
    assert client.told == [PubAck(1), PubRec(2)]
    assert len(client.answers) == 0


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
    answer = client.answers.begin(PubAck(1))
    answer.expect()
    answer.taken()
    assert client.told == []
    answer.expect()
    answer.handed_over()
    assert client.told == []
    answer.taken()
    assert client.told == [PubAck(1)]


def test_a_refusal_ends_the_connection_and_is_not_acknowledged() -> None:
    client = Client()
    answer = client.publish(7, 2)
    answer.refused("the queue is full")
    answer.taken()
    assert client.told == []
    (said,) = client.refused
    assert said.startswith("packet 7 was refused: the queue is full")


def test_who_has_gone_is_told_nothing_and_who_has_come_back_is() -> None:
    old, new = Client(), Client()
    first = old.publish(1, 1, qos=2)
    second = old.publish(2, 1, qos=2)
    old.answers.close()
    second.taken()
    first.moved_to(new.answers)
    second.moved_to(new.answers)
    assert new.told == []
    first.taken()
    assert old.told == []
    assert new.told == [PubRec(1), PubRec(2)]


@given(st.lists(st.integers(0, 3), max_size=12), st.randoms(use_true_random=False))
def test_each_is_said_once_and_in_order(expected: list[int], random: object) -> None:
    client = Client()
    answers = [client.publish(n + 1, count) for n, count in enumerate(expected)]
    taking = [a for a, count in zip(answers, expected, strict=True) for _ in range(count)]
    random.shuffle(taking)  # type: ignore[attr-defined]
    for answer in taking:
        answer.taken()
        assert client.told == [PubAck(n + 1) for n in range(len(client.told))]
    assert len(client.told) == len(expected)
