"""Runs of QoS 0 publications from MQTT 3.1.1's form into MQTT 5's, and back.

The one is the other with properties between the topic and the payload (MQTT 5, section 3.3.2.3):
a length, which is one zero byte where there are none. So a frame is cut in two behind its topic
and put together again with another header; the payload is not looked at. It is done once for a run,
whoever takes it, and where frames follow each other with the same header, that header is made once.
"""

from __future__ import annotations

from collections.abc import Callable

from ._frames import body_of, encode_remaining_length

PropertiesOf = Callable[[bytes], bytes]
"""From a topic, as it stands in a packet without its length, to encoded properties, their length in
front."""

NONE = b"\0"
"""No properties: their length, which is 0."""


def _without(_: bytes) -> bytes:
    return NONE


def as_mqtt5(run: bytes, properties_of: PropertiesOf = _without) -> bytes:
    """Return a run of MQTT 3.1.1 as one of MQTT 5, each frame with the properties of its topic."""
    return _reframed(run, 0, properties_of)


def as_mqtt311(run: bytes) -> bytes:
    """Return a run of MQTT 5, of which no frame has a property, as one of MQTT 3.1.1."""
    return _reframed(run, len(NONE), None)


def _reframed(run: bytes, less: int, properties_of: PropertiesOf | None) -> bytes:
    """Take `less` bytes away behind each topic, and put the properties there."""
    pieces: list[bytes] = []
    position = 0
    end = len(run)
    old = new = b""
    body = size = 0
    while position < end:
        if not size or not run.startswith(old, position):
            at, stop = body_of(run, position)
            topic_end = at + 2 + (run[at] << 8 | run[at + 1])
            size = stop - position
            body = topic_end + less - position
            old = run[position : topic_end + less]
            more = b"" if properties_of is None else properties_of(run[at + 2 : topic_end])
            new = b"".join(
                (
                    run[position : position + 1],
                    encode_remaining_length(stop - at - less + len(more)),
                    run[at:topic_end],
                    more,
                )
            )
        pieces.append(new)
        pieces.append(run[position + body : position + size])
        position += size
    return b"".join(pieces)
