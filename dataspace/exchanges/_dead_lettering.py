"""Dead letters of a virtual host: their headers, which say where and why a message died.

Source: rabbit_dead_letter.erl of RabbitMQ 3.10. `x-death` is an array of tables, the latest death
first, one for each queue and reason, with a count; a repeated death keeps the fields of its first
time.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final, cast

import attrs

from ..queues import DeadLetter
from ._message import Message
from ._properties import Properties
from ._tables import Table

X_DEATH: Final = "x-death"

MILLISECONDS: Final = 1_000


def dead_letter(
    properties: Properties,
    letter: DeadLetter,
    message: Message,
    queue: str,
    exchange: str,
    key: str | None,
    now: float,
) -> Message:
    """Return the message to publish for a dead letter.

    Args:
        properties: Reads and writes the message's.
        letter: The dead letter.
        message: The message that has died.
        queue: The name of the queue where it died.
        exchange: The exchange that it goes to.
        key: The routing key that it gets; None: its own ones.
        now: Seconds of the wall clock.
    """
    headers = dict(properties.headers(message))
    _add_death(headers, message, queue, str(letter.reason), now)
    more_keys = message.more_keys
    if key is not None:
        headers.pop("CC", None)
        more_keys = ()
    # Otherwise it would expire at its destination, too.
    dead = attrs.evolve(
        message,
        exchange=exchange,
        routing_key=message.routing_key if key is None else key,
        more_keys=more_keys,
        expiration=None,
        headers=None,
    )
    return properties.with_headers(dead, headers)


def _add_death(
    headers: dict[str, object], message: Message, queue: str, reason: str, now: float
) -> None:
    before = headers.get(X_DEATH)
    if before is None:
        headers["x-first-death-reason"] = reason
        headers["x-first-death-queue"] = queue
        headers["x-first-death-exchange"] = message.exchange
    latest: dict[str, object] | None = None
    others: list[object] = []
    # Anything but an array has been put there by a client, and is replaced.
    for death in cast("list[object]", before) if isinstance(before, list) else ():
        if not isinstance(death, Mapping):
            others.append(death)
            continue
        table = cast("Table", death)
        if table.get("queue") == queue and table.get("reason") == reason:
            if latest is None:
                count = table.get("count")
                more = count + 1 if isinstance(count, int) else 1
                latest = {**table, "count": more}
        else:
            others.append(table)
    if latest is None:
        latest = {
            "count": 1,
            "reason": reason,
            "queue": queue,
            "time": datetime.fromtimestamp(int(now), UTC),
            "exchange": message.exchange,
            "routing-keys": [message.routing_key, *_copies(headers)],
        }
        if message.expiration is not None:
            latest["original-expiration"] = str(round(message.expiration * MILLISECONDS))
    headers[X_DEATH] = [latest, *others]


def _copies(headers: Table) -> list[str]:
    keys = headers.get("CC")
    if not isinstance(keys, list):
        return []
    return [each for each in cast("list[object]", keys) if isinstance(each, str)]
