"""Detection of a DISCONNECT that has arrived and that its reader has not handled yet.

A message sent to a client with a kept session after its DISCONNECT is not acknowledged: it comes
back with DUP, though the client has never seen it. Between the arrival of the packet and the turn
of its reader other tasks run, and may publish: under load for some milliseconds. So the input is
peeked at before a message is sent that the client has to acknowledge. A peek takes 1.4 us.
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Final

from .._errors import RemoteProtocolError
from ._frames import DISCONNECT, find_frame
from ._runs import is_disconnect

if TYPE_CHECKING:
    from .._layer import Connected

PEEK_BYTES: Final = 4 << 10
"""As much of the input is looked at: a subscriber's is acknowledgements of four bytes."""

LONGEST: Final = 130
"""A DISCONNECT is not longer, as far as it is looked for; see `is_disconnect`."""


def disconnect_has_come(sock: Connected) -> bool:
    """Whether there is a DISCONNECT in the input of a socket, at whose front a packet begins.

    False where it cannot be told: what came is too long, or encrypted, or within WebSocket.
    """
    if type(sock) is not socket.socket:
        return False
    try:
        data = sock.recv(PEEK_BYTES, socket.MSG_PEEK)
    except OSError:
        return False  # there is nothing; or something is wrong, which its reader will find
    return len(data) < PEEK_BYTES and has_disconnect(data)


def has_disconnect(data: bytes) -> bool:
    """Whether one of the packets in `data`, which begins with one, is a whole DISCONNECT."""
    if DISCONNECT not in data[-LONGEST:]:
        return False  # nothing comes behind it
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
