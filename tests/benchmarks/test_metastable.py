"""benchmarks/metastable.py: what it counts, by hand; and a run of it, with a relay of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from benchmarks.metastable import (
    COLUMNS,
    IN_FLIGHT,
    TRIGGERS,
    WAITING,
    WINDOW,
    Found,
    Message,
    Publisher,
    Tally,
    Terms,
    row,
    run,
    servers,
    table,
)
from clearfunds.transports.mqtt import Publish, decode

if TYPE_CHECKING:
    from pathlib import Path

RETRY = 0.5


def tally_of(*good: float) -> Tally:
    """Ten messages in each window, of which these shares were acknowledged in time."""
    tally = Tally(RETRY)
    for window, share in enumerate(good):
        for number in range(10):
            message = Message(number, window * WINDOW)
            tally.was_due(message)
            late = RETRY / 2 if number < 10 * share else 2 * RETRY
            tally.acknowledged(message, message.due + late)
    return tally


def test_goodput_is_what_was_acknowledged_in_time() -> None:
    tally = tally_of(1.0, 0.5, 0.0, 1.0)
    assert tally.goodput(0, 4 * WINDOW) == 0.625
    assert tally.goodput(WINDOW, 3 * WINDOW) == 0.25
    assert tally.goodput(10, 20) == 1.0  # nothing was due


def test_it_is_back_when_it_stays() -> None:
    tally = tally_of(1.0, 0.0, 1.0, 0.9, 1.0, 1.0)
    assert tally.back_after(2 * WINDOW, 6 * WINDOW) == 2 * WINDOW
    assert tally.back_after(4 * WINDOW, 6 * WINDOW) == 0.0
    assert tally.back_after(0, 2 * WINDOW) is None


def packets(data: bytes, size: int) -> list[Publish]:
    """Take packets of equal size apart."""
    found: list[Publish] = []
    for at in range(0, len(data), size):
        packet = decode(data[at], data[at + 2 : at + size])
        assert isinstance(packet, Publish)
        found.append(packet)
    return found


def test_a_publisher_sends_again_what_was_not_acknowledged_and_nothing_else() -> None:
    tally = Tally(RETRY)
    publisher = Publisher("p", Terms(payload=20, retry=RETRY), tally)
    publisher.make(4.0, 0.5)
    data = publisher.to_send(0.5)
    first, second = packets(data, len(data) // 2)
    assert [first.dup, second.dup] == [False, False]
    publisher.heard(first.packet_id, 0.6)
    publisher.heard(first.packet_id, 0.7)  # that of a repetition
    assert publisher.to_send(0.9) == b""
    (again,) = packets(publisher.to_send(1.0), len(data) // 2)
    assert (again.dup, again.packet_id, again.payload) == (True, second.packet_id, second.payload)
    assert tally.resent == 1
    publisher.heard(again.packet_id, 1.1)
    assert publisher.to_send(5.0) == b""
    assert (tally.due.total(), tally.in_time.total()) == (2, 1)


def test_it_has_a_window_and_gives_up_what_waits_for_too_long() -> None:
    tally = Tally(RETRY)
    publisher = Publisher("p", Terms(), tally)
    publisher.make(1_000.0, 1.0)
    publisher.to_send(1.0)
    assert len(publisher.in_flight) == IN_FLIGHT
    assert tally.given_up == 1_000 - WAITING
    assert min(message.number for message, _ in publisher.in_flight.values()) == 1_001 - WAITING


def test_a_row() -> None:
    found = Found("relay", "stall", 1.0, 0.25, None, 1_380, 0, 3_980, 12)
    assert row(found) == (
        *("relay", "stall", "100%", "25%", "not back", "1,380", "0", "3,980", "12"),
    )
    assert table([found]).splitlines()[0] == "| " + " | ".join(COLUMNS) + " |"


@pytest.mark.long
@pytest.mark.parametrize("trigger", TRIGGERS)
def test_a_run(trigger: str, tmp_path: Path) -> None:
    """Whatever a busy machine makes of the times: nothing comes twice that was not sent twice."""
    (relay,) = servers(["relay"])
    terms = Terms(publishers=3, rate=20.0, warm=1.0, trigger=1.0, watch=1.0, surge=10.0)
    found = run(relay, "relay", trigger, terms, tmp_path)
    assert found.delivered > 0
    assert 0 <= found.twice <= found.resent
