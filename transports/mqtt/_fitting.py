"""Packets as large as a client of MQTT 5 takes them (Maximum Packet Size, section 3.1.2.11.4).

A publication that is too large is dropped as if it had been sent (`_mqtt5`). This is about the
relay's own packets [MQTT-3.1.2-24]: the reason string is left out where it makes a packet too large
[MQTT-3.2.2-19][MQTT-3.4.2-2]. A packet that is too large even so cannot be sent, and the connection
ends.
"""

from __future__ import annotations

from typing import Final

import attrs

from ._packets import ConnAck, Packet, PingReq, PingResp
from ._packets5 import encode5
from ._properties import NO_PROPERTIES

SMALLEST_REFUSAL: Final = 5
"""Bytes of a CONNACK without properties."""


def fitting(packet: Packet, largest: int | None) -> Packet | None:
    """Return a packet of the relay's as it is sent to a client that takes `largest` bytes at most.

    Without its reason in words if it is larger with that; None if it is too large in any case.
    """
    if largest is None or len(encode5(packet)) <= largest:
        return packet
    if isinstance(packet, PingReq | PingResp) or not packet.properties.reason_string:
        return None
    shorter = attrs.evolve(packet, properties=NO_PROPERTIES)
    return shorter if len(encode5(shorter)) <= largest else None


def too_large(packet: Packet, largest: int) -> str:
    """Say that a packet does not fit."""
    name = type(packet).__name__.upper()
    size = len(encode5(packet))
    what = " with what it has to say" if isinstance(packet, ConnAck) else ""
    return (
        f"its {name}{what} is {size} bytes long, and the client takes {largest} at the most "
        "(Maximum Packet Size, section 3.1.2.11.4)"
    )
