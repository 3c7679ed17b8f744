"""Detection of a DISCONNECT that has arrived and that its reader has not handled yet.

A client does not acknowledge a message that is sent to its persistent session after its DISCONNECT.
The message comes again with DUP, though the client has never seen it. Between the arrival of the
packet and the turn of its reader other tasks run, under load for some milliseconds, and may
publish. So the relay peeks at the input before it sends a message that the client has to
acknowledge. A peek takes 1.4 us.
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Final

from ..._errors import RemoteProtocolError
from ..codec._frames import DISCONNECT, find_frame
from ._runs import is_disconnect

if TYPE_CHECKING:
    from ....sockets._layer import Connected

PEEK_BYTES: Final = 4 << 10
"""Bytes of input to peek at: a subscriber's input is acknowledgements of four bytes."""

LONGEST: Final = 130
"""Length of the longest DISCONNECT that is looked for; see `is_disconnect`."""


def disconnect_has_come(sock: Connected) -> bool:
    """Whether a socket's input, which must begin with a packet, contains a DISCONNECT.

    False if this cannot be seen: the input is too long, or encrypted, or within WebSocket.
    """
    if type(sock) is not socket.socket:
        return False
    try:
        data = sock.recv(PEEK_BYTES, socket.MSG_PEEK)
    except OSError:
        return False  # no input, or an error that the reader will find
    return len(data) < PEEK_BYTES and has_disconnect(data)


def has_disconnect(data: bytes) -> bool:
    """Whether `data`, which begins with a packet, contains a whole DISCONNECT."""
    if DISCONNECT not in data[-LONGEST:]:
        return False  # a DISCONNECT is the last packet
    position = 0
    while len(data) - position >= 2:
        if data[position] == DISCONNECT:
            return is_disconnect(data, position)
        try:
            frame = find_frame(data, position)
        except RemoteProtocolError:
            return False
        if frame is None:
            return False
        position = frame[1]
    return False
