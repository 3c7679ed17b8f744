"""benchmarks/topics.py and the sections beside it: what they count and say; and a short run."""

from __future__ import annotations

import math
import socket
from typing import TYPE_CHECKING, Any

import attrs
import pytest

from benchmarks import topics
from benchmarks.clients import WIRES
from benchmarks.evidence import metastable as metastable_section
from benchmarks.evidence import topics as section
from benchmarks.evidence import why as why_section
from benchmarks.metastable import Terms as MetastableTerms
from benchmarks.topics import (
    AS_IT_COMES,
    LOSSLESS,
    REFUSED,
    TOPICS,
    Found,
    Publisher,
    Reader,
    Terms,
    run,
    servers,
)

if TYPE_CHECKING:
    from pathlib import Path

FOUND = Found(
    server=AS_IT_COMES, version="", before=1.0, share=0.99, p99_before=0.002, p99=0.0025, gap=0.1,
    refused=0, refused_others=0, missing=0, cut=False,
)  # fmt: skip


def test_the_window_is_the_receive_maximum() -> None:
    connack = bytes.fromhex("20 09 00 00 06 22 000a 21 0014")
    assert topics.window_of(connack) == 20
    assert topics.window_of(bytes.fromhex("20 03 00 00 00")) == 65_535
    assert topics.window_of(bytes.fromhex("20 08 00 00 05 27 00100000")) == 65_535


def test_gaps_count_from_the_beginning_and_to_the_end() -> None:
    assert list(topics.neighbours([1.0, 3.0, 3.5, 9.0], 2.0, 8.0)) == [
        (2.0, 3.0),
        (3.0, 3.5),
        (3.5, 8.0),
    ]
    assert list(topics.neighbours([], 2.0, 8.0)) == [(2.0, 8.0)]


def test_a_reader_counts_whole_messages_and_how_late_they_are() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        reader = Reader(ours, size=20, at=4, ping=b"", pong=b"")
        message = b"head" + b"%012d" % 0 + b"...."
        theirs.send(message * 2 + message[:7])
        reader.take(began=0.0)
        assert len(reader.delays) == len(reader.came) == 2
        assert reader.delays == reader.came
        theirs.send(message[7:])
        reader.take(began=0.0)
        assert len(reader.came) == 3
        theirs.close()
        reader.take(began=0.0)
        assert not reader.open


@pytest.fixture
def publisher(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A publisher of MQTT 5 whose server lets two messages be in flight, and the server's end."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    connack = bytes.fromhex("20 06 00 00 03 21 0002")

    def opened(*_: object, nodelay: bool) -> tuple[socket.socket, bytes]:
        assert nodelay
        return ours, connack

    monkeypatch.setattr(topics, "connect", opened)
    with ours, theirs:
        yield Publisher(WIRES["mqtt"], 0, Terms(rate=100, payload=50)), theirs


def test_a_publisher_keeps_to_the_window_and_counts_refusals(publisher: Any) -> None:
    one, server = publisher
    one.publish(1.0, 10.0)
    assert one.sent == [1, 1, *[0] * (TOPICS - 2)]
    server.send(bytes.fromhex("40 02 0001 40 04 0002 97 00"))
    one.answered()
    assert one.refused == [0, 1, *[0] * (TOPICS - 2)]
    one.publish(1.0, 10.0)
    assert sum(one.sent) == 4
    # A PUBACK in two pieces.
    server.send(b"\x40\x02\x00")
    one.answered()
    server.send(b"\x03")
    one.answered()
    one.publish(1.0, 10.0)
    assert sum(one.sent) == 5
    # Nothing is due after the end.
    server.send(bytes.fromhex("40 02 0004 40 02 0005"))
    one.answered()
    one.publish(9.0, 0.05)
    assert sum(one.sent) == 5


def test_a_short_run_with_a_relay(tmp_path: Path) -> None:
    (relay,) = [server for name, server in servers() if name == REFUSED]
    terms = Terms(rate=400, payload=1_000, before=0.4, watch=0.6)
    found = run(relay, REFUSED, terms, tmp_path)
    assert found.missing == found.refused == 0
    assert 0.5 < found.share <= 1.1
    assert 0 < found.p99 < 1
    assert not found.cut


# -- the sections -----------------------------------------------------------------------------


def rendered(*runs: Found) -> Any:
    data = {"terms": attrs.asdict(Terms()), "runs": [attrs.asdict(each) for each in runs]}
    return section.render(data)


def test_the_section_says_who_noticed() -> None:
    page = rendered(
        FOUND,
        attrs.evolve(FOUND, server=LOSSLESS, share=0.4, p99=2.0, gap=3.0),
        attrs.evolve(FOUND, server=REFUSED, refused=500),
        attrs.evolve(FOUND, server="mosquitto", missing=3),
    )
    assert (
        "**The other topics noticed nothing** with the relay, as it comes, the same, refused by "
        "topic and mosquitto." in page.text
    )
    assert "**They got less, or later** with the relay, `--profile lossless`." in page.text
    assert "**Some of theirs had not come in the end** with mosquitto." in page.text
    assert [claim.word for claim in page.claims] == ["held"] * 5


def test_its_claims_can_be_missed() -> None:
    late = attrs.evolve(FOUND, share=0.9, p99=0.02, missing=1)
    wrong = attrs.evolve(FOUND, server=REFUSED, refused_others=1)
    page = rendered(late, wrong)
    assert [claim.word for claim in page.claims] == ["MISSED"] * 2 + ["held", "MISSED", "held"]
    assert [claim.word for claim in rendered().claims] == ["not measured"] * 5


def test_when_goodput_is_back_is_claimed() -> None:
    run = {
        "server": "relay", "trigger": "stall", "before": 1.0, "during": 0.2, "back": 0.5,
        "resent": 7, "given_up": 0, "delivered": 100, "twice": 0,
    }  # fmt: skip
    data: dict[str, Any] = {
        "terms": attrs.asdict(MetastableTerms()),
        "runs": [run, {**run, "trigger": "surge", "back": None}],
    }
    page = metastable_section.render(data)
    assert [claim.word for claim in page.claims] == ["held", "MISSED"]
    assert page.claims[1].found == math.inf
    assert "| the relay | stall | 100% | 20% | 0.5 s | 7 | 0 | 100 | 0 |" in page.text
    assert "| not back |" in page.text


def test_wrong_reasons_are_counted() -> None:
    loss = {"loss": "archive's network loses 19 %"}
    data: dict[str, Any] = {
        "tries": 2,
        "found": {"does_not_read": [{"does_not_read": "a"}] * 2, "loss": [loss, {**loss, "x": ""}]},
    }
    page = why_section.render(data)
    assert [claim.word for claim in page.claims] == ["held", "MISSED", "not measured"]
    assert "| 1 of 2 | *archive's network loses 19 %* |" in page.text
