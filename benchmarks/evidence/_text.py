"""Words and tables that sections have in common."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from typing import Final

from benchmarks.fanout import middle
from benchmarks.fanout import table as _table

__all__ = [
    "LABELS",
    "SERVERS",
    "first_line",
    "in_order",
    "label",
    "listed",
    "middle",
    "size_of",
    "table",
    "time_of",
    "wrapped",
]

LABELS: Final = {
    "relay": "the relay",
    "polling": "the relay (--busy-poll 0.001)",
    "nats": "NATS",
    "redis": "Redis",
    "rabbitmq": "RabbitMQ",
    "amqtt": "amqtt",
    "mosquitto": "mosquitto",
    "mosquitto-new": "mosquitto (newest)",
    "mochi": "mochi",
    "rumqttd": "rumqttd",
    "hivemq": "HiveMQ CE",
    "artemis": "Artemis",
    "mosquitto+autosave": "mosquitto, `persistence`",
    "mosquitto-new+sqlite": "mosquitto (newest), SQLite",
    "nats+jetstream": "NATS, JetStream",
    "hivemq+file": "HiveMQ CE, files",
    "artemis+journal": "Artemis, journal",
    "broadcaster": "broadcaster",
    "channel": "a Trio channel",
    "bare": "bare Python",
}

SERVERS: Final = (
    "relay",
    "polling",
    "mosquitto",
    "mosquitto+autosave",
    "mosquitto-new",
    "mosquitto-new+sqlite",
    "nats",
    "nats+jetstream",
    "redis",
    "mochi",
    "rumqttd",
    "hivemq",
    "hivemq+file",
    "artemis",
    "artemis+journal",
    "rabbitmq",
    "amqtt",
    "broadcaster",
    "channel",
    "bare",
)
"""In the order of tables and legends."""


def label(server: str) -> str:
    """Return how a server is called in a sentence."""
    return LABELS.get(server, server)


def in_order(servers: Iterable[str]) -> list[str]:
    """Return names of servers in the order of tables: the relay first."""
    known = {name: place for place, name in enumerate(SERVERS)}
    return sorted(set(servers), key=lambda name: (known.get(name, len(known)), name))


def first_line(error: Exception) -> str:
    """Return what an error says first, as the end of a sentence, without the log it leads to."""
    words = (str(error).splitlines() or ["no reason given"])[0][:300]
    return f"{words.removesuffix('; the end of its log:').rstrip('.')}."


def listed(words: Sequence[str], *, none: str = "nothing") -> str:
    """Return ``a``, ``a and b``, ``a, b and c``."""
    if not words:
        return none
    *others, last = words
    return f"{', '.join(others)} and {last}" if others else last


def wrapped(text: str) -> str:
    """Return a paragraph (not a table, not a list) in lines as long as those of the other pages."""
    return textwrap.fill(
        " ".join(text.split()), 112, break_long_words=False, break_on_hyphens=False
    )


def table(head: Sequence[str], rows: Iterable[Sequence[str]], *, right: Iterable[int] = ()) -> str:
    """Return a Markdown table; the columns ``right`` hold numbers, which stand to the right."""
    lines = _table(list(head), [list(row) for row in rows]).split("\n")
    columns = set(right)
    marks = ["-:" if place in columns else "-" for place in range(len(head))]
    lines[1] = f"| {' | '.join(marks)} |"
    return "\n".join(lines)


def time_of(seconds: float) -> str:
    """Return a time as one says it: ``850 ms``, ``4.2 s``, ``3 min 20 s``."""
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} µs"
    if seconds < 1:
        return f"{seconds * 1e3:.3g} ms"
    if seconds < 100:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if rest else f"{minutes} min"


def size_of(count: float) -> str:
    """Return a number of bytes as one says it: ``512 B``, ``1.4 MiB``."""
    for unit in ("B", "KiB", "MiB"):
        if abs(count) < 1024:
            return f"{count:.3g} {unit}"
        count /= 1024
    return f"{count:,.3g} GiB"
