"""Conversion of runs of QoS 0 publications from MQTT 3.1.1 to MQTT 5, and back.

MQTT 5 adds properties between the topic and the payload (section 3.3.2.3): a length, which is one
zero byte if there are none. So a frame is cut in two behind its topic and joined with another
header; the payload is not read. A run is converted once for all its recipients. Frames that follow
each other with the same header share the new one, too.
"""

from __future__ import annotations

from collections.abc import Callable

from ..codec._frames import body_of, encode_remaining_length

PropertiesOf = Callable[[bytes], bytes]
"""Maps a topic, as it stands in a packet without its length, to encoded properties, their length in
front."""

NONE = b"\0"
"""No properties: their length, which is 0."""


def _without(_: bytes) -> bytes:
    return NONE


def as_mqtt5(run: bytes, properties_of: PropertiesOf = _without) -> bytes:
    """Return a run of MQTT 3.1.1 as one of MQTT 5, each frame with the properties of its topic."""
    return _reframed(run, 0, properties_of)


def as_mqtt311(run: bytes) -> bytes:
    """Return a run of MQTT 5 as one of MQTT 3.1.1; none of its frames may have properties."""
    return _reframed(run, len(NONE), None)


def _reframed(run: bytes, less: int, properties_of: PropertiesOf | None) -> bytes:
    """Replace `less` bytes behind each topic by the properties."""
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
