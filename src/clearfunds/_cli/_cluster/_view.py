"""`/cluster.json`: the relays, and who waits for whom over all of them.

A relay's ledger names holders of other relays `relay-2/HOLDER`, and accounts of other relays
`via/relay-1/ACCOUNT`. Here each name stands beside the relay that it belongs to. Another relay as a
whole, which has not received a message yet, has an empty name. A publisher that waits for a holder
of another relay waits in both ledgers; it is shown once, from its own relay.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import attrs

from clearfunds.dataspace.hops import via

from ._exposition import sum_of

WAITS_MAX: Final = 50
"""Maximum rows of those who wait, over all relays; the longest waits first."""

_CONNECTIONS: Final = "clearfunds_connections"

_HOP: Final = "hop"
# The kind of a holder that stands for another relay as a whole: what has not reached it yet.

Row = dict[str, Any]
"""A JSON object."""


@attrs.frozen
class Answer:
    """The answer of one relay to one look, or the reason for which there is none."""

    name: str
    """The relay's name."""
    mqtt: str = ""
    """The URL of its listener."""
    http: str = ""
    """The URL of its pages, for a browser; it may be relative to the cluster's page."""
    ledger: Mapping[str, Any] | None = None
    """Its `/ledger.json?top=N`; None: it does not answer."""
    metrics: str | None = None
    """Its `/metrics`; None: it does not answer."""
    fault: str | None = None
    """The sentence about its silence."""


def cluster_view(answers: Sequence[Answer]) -> Row:
    """Return the content of the page."""
    relays = [_relay(answer) for answer in answers]
    waits, more = _waits(answers)
    there = [row for row in relays if row["answers"]]
    return {
        "totals": {
            "relays": len(relays),
            "answering": len(there),
            "connections": sum(row["connections"] for row in there),
            "debt": {unit: sum(row["debt"][unit] for row in there) for unit in ("items", "bytes")},
            "waiting": sum(row["count"] for row in waits),
        },
        "relays": relays,
        "waits": waits,
        "waits_more": more,
    }


def _relay(answer: Answer) -> Row:
    row: Row = {"name": answer.name, "mqtt": answer.mqtt, "http": answer.http}
    if answer.ledger is None or answer.metrics is None:
        return {**row, "answers": False, "fault": answer.fault}
    totals = answer.ledger["totals"]
    return {
        **row,
        "answers": True,
        "fault": None,
        "connections": int(sum_of(_CONNECTIONS, answer.metrics)),
        "debt": {"items": totals["debt_items"], "bytes": totals["debt_bytes"]},
        "waiting": totals["waiting"],
        "alarms": answer.ledger["alarms"],
    }


def _waits(answers: Sequence[Answer]) -> tuple[list[Row], int]:
    """Return who waits, the longest waits first, and the number of rows left out."""
    names = [answer.name for answer in answers]
    found = [row for answer in answers for row in _waits_of(answer, names)]
    own = {
        (each["relay"], each["name"])
        for row in found
        for each in row["waiting"]
        if each["relay"] == row["relay"]
    }
    rows = [row for row in found if not _is_shadow(row, own)]
    rows.sort(key=lambda row: -row["seconds"])
    left_out = sum(
        answer.ledger["more"]["waits"] for answer in answers if answer.ledger is not None
    )
    return rows[:WAITS_MAX], len(rows[WAITS_MAX:]) + left_out


def _is_shadow(row: Row, own: set[tuple[str, str]]) -> bool:
    """Whether all that wait are publishers of other relays, whose own ledgers show them."""
    return all(
        each["relay"] != row["relay"] and (each["relay"], each["name"]) in own
        for each in row["waiting"]
    )


def _waits_of(answer: Answer, names: Sequence[str]) -> Iterator[Row]:
    if answer.ledger is None:
        return
    for wait in answer.ledger["waits"]:
        yield {
            "relay": answer.name,
            "waiting": [_account(name, answer.name, names) for name in wait["waiting"]],
            "count": wait["count"],
            "seconds": wait["seconds"],
            "reason": wait["reason"],
            "debt": {"items": wait["debt_items"], "bytes": wait["debt_bytes"]},
            "limit": {"items": wait["limit_items"], "bytes": wait["limit_bytes"]},
            "on": [_holder(each, answer.name, names) for each in wait["on"]],
            "on_more": wait["on_more"],
        }


def _holder(row: Mapping[str, Any], relay: str, names: Iterable[str]) -> Row:
    name = row["name"]
    for other in names:
        if name.startswith(f"{other}/"):
            relay, name = other, name[len(other) + 1 :]
        elif name == other and row["kind"] == _HOP:
            relay, name = other, ""
    return {
        "relay": relay,
        "name": name,
        "kind": row["kind"],
        "items": row["here_items"],
        "bytes": row["here_bytes"],
        "idle_seconds": row["idle_seconds"],
        "left_seconds": row["left_seconds"],
        "why": row["why"],
    }


def _account(name: str, relay: str, names: Iterable[str]) -> Row:
    for other in names:
        prefix = via(other, "")
        if name.startswith(prefix):
            return {"relay": other, "name": name[len(prefix) :]}
    return {"relay": relay, "name": name}
