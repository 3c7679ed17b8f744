"""What a load generator says in MQTT 5, and what it makes of a server's answers.

The packets are `clearfunds.transports.mqtt`'s; those that come in bulk are `_wire`'s, in both
versions. Sections and statements are those of the OASIS standard of 7 March 2019.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ..transports.mqtt import (
    NO_PROPERTIES,
    PROTOCOL_LEVEL_5,
    ConnAck,
    Connect,
    Disconnect,
    Granted,
    Packet,
    Properties,
    ReasonedError,
    SubAck,
    Subscribe,
    decode5,
    encode5,
    in_words,
)
from ._errors import PerfError

FAILED: Final = 0x80
"""Reason codes from here on say that something was not done (section 2.4)."""


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
    if packet.return_code >= FAILED:
        words = packet.properties.reason_string
        msg = f"CONNECT was refused: {in_words(packet.return_code, words)}"
        raise PerfError(msg)
    return Granted.of(packet)


def subscribed(body: bytes) -> None:
    """Read the body of a SUBACK (section 3.9).

    Raises:
        PerfError: Something was not granted, or it is none.
    """
    packet = _decoded(SubAck.kind, body)
    assert isinstance(packet, SubAck)
    for code in packet.return_codes:
        if code >= FAILED:
            msg = f"SUBSCRIBE was refused: {in_words(code, packet.properties.reason_string)}"
            raise PerfError(msg)


def disconnected(body: bytes) -> PerfError:
    """Return what a DISCONNECT of the server's says (section 3.14); without a reason it has one.

    Raises:
        PerfError: It is none.
    """
    packet = _decoded(Disconnect.kind, body)
    assert isinstance(packet, Disconnect)
    return PerfError(
        f"the server disconnected it: {in_words(packet.reason, packet.properties.reason_string)}"
        if packet.reason >= FAILED
        else "the server disconnected it"
    )


def _decoded(kind: int, body: bytes) -> Packet:
    try:
        return decode5(kind << 4, body)
    except ReasonedError as error:
        msg = f"the server sent what is not MQTT 5: {error}"
        raise PerfError(msg) from error
