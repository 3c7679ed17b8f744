"""Completion of a handshake."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from ._tls_socket import TlsSocket


async def shake_hands(secure: TlsSocket) -> None:
    """Do the whole handshake.

    Cancellation: the connection cannot be used any more.

    Raises:
        ssl.SSLError, OSError: As `TlsSocket.shake_hands`.
    """
    while not secure.shake_hands():
        if secure.unsent:
            await trio.lowlevel.wait_writable(secure)
        else:
            await trio.lowlevel.wait_readable(secure)
