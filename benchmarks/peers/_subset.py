"""MQTT as far as the load generator needs it, without I/O: QoS 0, no sessions, nothing retained.

What the servers of this folder have in common, so that only what they do with a message differs:
its bytes are read and made by clearfunds' own codec.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from clearfunds.transports.mqtt import (
    NEED_DATA,
    SUBSCRIPTION_FAILED,
    ConnAck,
    Connect,
    Connection,
    Disconnect,
    Packet,
    PingReq,
    PingResp,
    SubAck,
    Subscribe,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator


class UnsupportedError(Exception):
    """A client wants more than this subset; the message says what."""


def packets(connection: Connection, data: bytes) -> Iterator[Packet]:
    """Yield the packets that are complete with ``data``; each is to be answered before the next.

    Raises:
        RemoteProtocolError: The peer does not speak MQTT 3.1.1.
    """
    connection.receive_data(data)
    while True:
        packet = connection.next_packet()
        if packet is NEED_DATA:
            return
        yield packet


def answer(connection: Connection, packet: Packet, refused: Collection[str] = frozenset()) -> bytes:
    """Return what a client gets for anything but a publication; nothing for a DISCONNECT.

    Args:
        connection: whose packet it is.
        packet: what the client sent.
        refused: the filters of a SUBSCRIBE that are not granted.

    Raises:
        UnsupportedError: It is a packet that no subscriber or publisher of QoS 0 needs to send.
    """
    match packet:
        case Connect():
            return connection.send(ConnAck(session_present=False, return_code=0))
        case Subscribe():
            codes = (SUBSCRIPTION_FAILED if f in refused else 0 for f, _ in packet.filters)
            return connection.send(SubAck(packet.packet_id, tuple(codes)))
        case PingReq():
            return connection.send(PingResp())
        case Disconnect():
            return b""
        case _:
            raise UnsupportedError(f"{type(packet).__name__} is not spoken here")
