"""Fitting packets to the Maximum Packet Size of an MQTT 5 client (section 3.1.2.11.4).

`_mqtt5` drops a publication that is too large as if it had been sent. This module fits the relay's
own packets [MQTT-3.1.2-24]: it leaves out a reason string that makes a packet too large
[MQTT-3.2.2-19][MQTT-3.4.2-2]. If a packet is too large without it, the connection ends.
"""

from __future__ import annotations

from typing import Final

import attrs

from ..codec._packets import ConnAck, Packet, PingReq, PingResp
from ..codec._packets5 import encode5
from ..codec._properties import NO_PROPERTIES

SMALLEST_REFUSAL: Final = 5
"""Bytes of a CONNACK without properties."""


def fitting(packet: Packet, largest: int | None) -> Packet | None:
    """Return a packet of the relay in a form that is at most `largest` bytes long.

    That leaves out the reason string if necessary; None if the packet is too large in any case.
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
    what = " with its properties" if isinstance(packet, ConnAck) else ""
    return (
        f"its {name}{what} is {size} bytes long, and the client accepts at most {largest} "
        "(Maximum Packet Size, section 3.1.2.11.4)"
    )
