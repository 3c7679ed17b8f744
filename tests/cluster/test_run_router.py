"""Runs that come from another relay: they reach whom they would reach one by one."""

from __future__ import annotations

from random import Random

import pytest

from clearfunds.accounts import Ledger
from clearfunds.cluster._run_router import RunRouter
from clearfunds.dataspace import (
    Batch,
    Dataspace,
    DataspaceStatistics,
    Mailbox,
    Publication,
    TopicFilter,
)
from clearfunds.transports.mqtt.codec._packets import encode_publish
from clearfunds.transports.mqtt.server._runs import publications

FILTERS: tuple[str, ...] = ("a", "b", "a/+", "#", "c/#", "a/b/c")
TOPICS: tuple[str, ...] = ("a", "b", "a/b", "c", "c/d/e", "a/b/c", "nobody")


def published(
    batch: Batch, filters: list[str], *, patterns: bool, one_by_one: bool
) -> tuple[dict[str, list[Publication]], DataspaceStatistics]:
    """Publish a run; return what each subscriber got, and the dataspace's figures."""
    ledger = Ledger()
    dataspace = Dataspace(ledger)
    boxes: list[Mailbox[object]] = []
    with ledger.open("reader") as reader, ledger.open("writer") as writer:
        with reader.turn() as turn:
            for number, text in enumerate(filters):
                boxes.append(Mailbox(ledger, f"{number} {text}"))
                dataspace.observe(turn, TopicFilter(text), boxes[-1])
            if patterns:
                boxes.append(Mailbox(ledger, "pattern"))
                dataspace.observe(turn, Publication("a/b", b"7"), boxes[-1])
        with writer.turn() as turn:
            turn.publish(dataspace if one_by_one else RunRouter(dataspace), batch)
        got: dict[str, list[Publication]] = {}
        for box in boxes:
            got[box.name] = []
            for loan in list(box.loans()):
                for event in loan.item:
                    got[box.name] += event.events() if isinstance(event, Batch) else [event]
            box.close()
        ledger.audit()
    return got, dataspace.statistics()


@pytest.mark.parametrize("seed", range(40))
def test_the_same_as_one_by_one(seed: int) -> None:
    chance = Random(seed)
    topics = chance.sample(TOPICS, chance.randint(1, 3))
    raw = b"".join(
        encode_publish(chance.choice(topics), b"%d" % chance.randint(0, 9), 0, False, False, 0)
        for _ in range(chance.randint(1, 40))
    )
    alike = len(topics) == 1
    batch = Batch(raw, len(list(publications(raw))), publications, alike=alike)
    filters = chance.sample(FILTERS, chance.randint(0, len(FILTERS)))
    patterns = chance.random() < 0.3
    found, figures = published(batch, filters, patterns=patterns, one_by_one=False)
    expected, others = published(batch, filters, patterns=patterns, one_by_one=True)
    assert found == expected
    assert figures.deliveries == others.deliveries
    assert figures.published == others.published
    assert figures.unrouted == others.unrouted
