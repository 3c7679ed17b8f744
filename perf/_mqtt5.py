"""What a load generator says in MQTT 5, and what it makes of a server's answers.

The packets are `clearfunds.transports.mqtt`'s; those that come in bulk are `_wire`'s, in both
versions. Sections and statements are those of the OASIS standard of 7 March 2019.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import attrs

from ..transports.mqtt import (
    NO_PROPERTIES,
    PROTOCOL_LEVEL_5,
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    Properties,
    Reason,
    ReasonedError,
    SubAck,
    Subscribe,
    decode5,
    encode5,
)
from ._errors import PerfError

FAILED: Final = 0x80
"""Reason codes from here on say that something was not done (section 2.4)."""


def reason(code: int, words: str | None = None) -> str:
    """Say what a reason code says, with the server's own words where it has some."""
    try:
        name = Reason(code).name.lower().replace("_", " ").replace("qos", "QoS")
    except ValueError:
        name = "reason"
    said = f"{name} (0x{code:02X})"
    return f'{said}: "{words}"' if words else said


@attrs.frozen
class Granted:
    """What a server lets a client do, and asks of it (section 3.2.2.3; MQTT 3.1.1 has none)."""

    receive_maximum: int = 65_535
    """Publications of the client's with QoS 1 and 2 that may be unacknowledged."""
    maximum_qos: int = 2
    """Of publications."""
    maximum_packet_size: int | None = None
    """Bytes; None: as many as there can be."""
    keep_alive: int | None = None
    """Seconds, which count in place of those that the client asked for [MQTT-3.2.2-21]; 0: there
    is nothing to be kept alive; None: what it asked for."""


def connect(
    client_id: str,
    keep_alive: int,
    receive_maximum: int | None,
    user: str | None = None,
    password: bytes | None = None,
) -> bytes:
    """Encode a CONNECT.

    Args:
        client_id: Who it is.
        keep_alive: Seconds.
        receive_maximum: How many messages with QoS 1 and 2 the server may send that are not
            acknowledged (section 3.1.2.11.3), 1 to 65,535; None: as many as it likes to.
        user: Its user name (section 3.1.3.5); None: it has none.
        password: Its password (section 3.1.3.6); likewise.

    A Session Expiry Interval that is not there is 0 (section 3.1.2.11.2), and the session is new:
    it ends with its connection, as MQTT 3.1.1's clean ones do.
    """
    properties = (
        NO_PROPERTIES if receive_maximum is None else Properties(receive_maximum=receive_maximum)
    )
    return encode5(
        Connect(
            client_id,
            keep_alive=keep_alive,
            username=user,
            password=password,
            protocol_level=PROTOCOL_LEVEL_5,
            properties=properties,
        )
    )


def subscribe(packet_id: int, filters: Sequence[tuple[str, int]]) -> bytes:
    """Encode a SUBSCRIBE (section 3.8); of its options, QoS alone, as MQTT 3.1.1 has it."""
    return encode5(Subscribe(packet_id, tuple(filters)))


def granted(body: bytes) -> Granted:
    """Read the body of a CONNACK (section 3.2).

    Raises:
        PerfError: The server has refused, or it is none.
    """
    packet = _decoded(ConnAck.kind, body)
    assert isinstance(packet, ConnAck)
    properties = packet.properties
    if packet.return_code >= FAILED:
        msg = f"CONNECT was refused: {reason(packet.return_code, properties.reason_string)}"
        raise PerfError(msg)
    receive_maximum, maximum_qos = properties.receive_maximum, properties.maximum_qos
    return Granted(
        65_535 if receive_maximum is None else receive_maximum,
        2 if maximum_qos is None else maximum_qos,
        properties.maximum_packet_size,
        properties.server_keep_alive,
    )


def subscribed(body: bytes) -> None:
    """Read the body of a SUBACK (section 3.9).

    Raises:
        PerfError: Something was not granted, or it is none.
    """
    packet = _decoded(SubAck.kind, body)
    assert isinstance(packet, SubAck)
    for code in packet.return_codes:
        if code >= FAILED:
            msg = f"SUBSCRIBE was refused: {reason(code, packet.properties.reason_string)}"
            raise PerfError(msg)


def disconnected(body: bytes) -> PerfError:
    """Return what a DISCONNECT of the server's says (section 3.14); without a reason it has one.

    Raises:
        PerfError: It is none.
    """
    packet = _decoded(Disconnect.kind, body)
    assert isinstance(packet, Disconnect)
    return PerfError(
        f"the server disconnected it: {reason(packet.reason, packet.properties.reason_string)}"
        if packet.reason >= FAILED
        else "the server disconnected it"
    )


def _decoded(kind: int, body: bytes) -> Packet:
    try:
        return decode5(kind << 4, body)
    except ReasonedError as error:
        msg = f"the server sent what is not MQTT 5: {error}"
        raise PerfError(msg) from error
