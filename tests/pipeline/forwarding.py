"""What tests share that forward rows from MQTT through Spark to MQTT."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from clearfunds.ranges.client import RangeReader
from tests.pipeline.publishers import Flood, until
from tests.pipeline.query_process import SECONDS, QueryProcess
from tests.pipeline.relays import RelayProcess
from tests.pipeline.sink.subscribers import Rows, Subscribers

LIMIT = 200
PACKET = 2
"""What one packet may cause beyond the limit: itself while it is handled, and its one copy."""


def subscribe(relay: RelayProcess, durable: bool = False) -> None:
    """Let there be the query's subscription before the query, so that it misses nothing."""
    RangeReader(
        "127.0.0.1", relay.ranges, "forwarded", filters=["in/#"], durable=durable, grace=600
    ).close()


def by_topic(rows: Rows) -> dict[str, list[bytes]]:
    found: defaultdict[str, list[bytes]] = defaultdict(list)
    for topic, value in rows:
        found[topic].append(value)
    return dict(found)


def forwarded(*floods: Flood) -> dict[str, list[bytes]]:
    """Return what is to come of what these have published: each topic's rows in their order."""
    return {each.topic.replace("in/", "out/"): each.values for each in floods}


def names(relay: RelayProcess) -> list[str]:
    return [each["name"] for each in relay.ledger()["accounts"]]


def peaks(relay: RelayProcess, *ends: str) -> list[int]:
    """Return the most that accounts have owed whose names end so."""
    accounts = relay.ledger()["accounts"]
    return [each["peak"]["items"] for each in accounts if each["name"].endswith(ends)]


def drain(
    relay: RelayProcess, folder: Path, subscribers: Subscribers, rows: int, *options: str
) -> None:
    """Run the query until it has forwarded what there is; nothing is owed then."""
    with QueryProcess(relay, folder, "--once", *options) as query:
        until(lambda: subscribers.by_ranges() and query.ended, SECONDS)
        assert query.wait() is None
    until(lambda: len(subscribers.by_mqtt()) >= rows <= len(subscribers.by_ranges()))
    until(lambda: relay.ledger()["totals"]["debt"]["items"] == 0)
