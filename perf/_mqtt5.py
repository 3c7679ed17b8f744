"""MQTT 5 for the load generator: packets to send, and the server's answers.

The packets are those of `clearfunds.transports.mqtt`; `_wire` has the frequent ones, for both
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
"""Reason codes from here on are failures (section 2.4)."""


def connect(
    client_id: str,
    keep_alive: int,
    receive_maximum: int | None,
    user: str | None = None,
    password: bytes | None = None,
) -> bytes:
    """Encode a CONNECT.

    Args:
        client_id: Its client identifier.
        keep_alive: Seconds.
        receive_maximum: Messages with QoS 1 and 2 that the server may send without an
            acknowledgement (section 3.1.2.11.3), 1 to 65,535; None: no limit.
        user: Its user name (section 3.1.3.5); None: without.
        password: Its password (section 3.1.3.6); None: without.

    Without a Session Expiry Interval it is 0 (section 3.1.2.11.2), and the session is new: it ends
    with its connection, as MQTT 3.1.1's clean sessions do.
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
    """Encode a SUBSCRIBE (section 3.8); QoS is its only option, as in MQTT 3.1.1."""
    return encode5(Subscribe(packet_id, tuple(filters)))


def granted(body: bytes) -> Granted:
    """Read the body of a CONNACK (section 3.2).

    Raises:
        PerfError: The server has refused, or it is malformed.
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
        PerfError: The server has refused a filter, or it is malformed.
    """
    packet = _decoded(SubAck.kind, body)
    assert isinstance(packet, SubAck)
    for code in packet.return_codes:
        if code >= FAILED:
            msg = f"SUBSCRIBE was refused: {in_words(code, packet.properties.reason_string)}"
            raise PerfError(msg)


def disconnected(body: bytes) -> PerfError:
    """Return an error with the reason in a server's DISCONNECT (section 3.14), if it gives one.

    Raises:
        PerfError: It is malformed.
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
        msg = f"the server sent something that is not MQTT 5: {error}"
        raise PerfError(msg) from error
