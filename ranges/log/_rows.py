"""Making rows, which a subscription keeps, of the events and runs that it gets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

from ...dataspace._events import Batch, Publication
from ..wire import RETAIN


class Row(NamedTuple):
    """The parts of a message that are kept."""

    key: bytes
    """The topic of a publication."""
    value: bytes
    """Its payload."""
    flags: int = 0
    """Its QoS, plus `RETAIN` if it was published to be retained."""
    properties: bytes = b""
    """Its properties of MQTT 5, as they travel."""


MakeRow: TypeAlias = Callable[[Any], Row]
"""Makes a row of an event; must not raise."""


def as_row(event: Any) -> Row:
    """Make a row of an event: a publication's topic, payload, flags and properties.

    For any other event: the name of its class and its `repr`; bytes and texts stay unchanged.
    """
    if isinstance(event, Publication):
        retain = RETAIN if event.was_retained or event.retain else 0
        return Row(event.topic.encode(), event.payload, event.qos | retain, event.properties)
    if isinstance(event, bytes):
        return Row(b"", event)
    if isinstance(event, str):
        return Row(b"", event.encode(errors="surrogatepass"))
    return Row(type(event).__name__.encode(), repr(event).encode(errors="backslashreplace"))


RunColumns: TypeAlias = Callable[[Batch], tuple[list[bytes], list[bytes]]]
"""Makes columns of a run: its keys, and its values; must not raise."""


def run_columns(run: Batch) -> tuple[list[bytes], list[bytes]]:
    """Return the topics and the payloads of a run of publications."""
    keys: list[bytes] = []
    values: list[bytes] = []
    topic, key = "", b""
    for publication in run.events():
        if publication.topic != topic:
            topic = publication.topic
            key = topic.encode()
        keys.append(key)
        values.append(publication.payload)
    return keys, values
