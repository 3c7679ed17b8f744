"""The server's own frames to one client: its answers, confirms and notices."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ...accounts import Account
    from .._link import Link
    from .._outlet import Outlet
    from ._server import AmqpServer


class Sender:
    """Sends the server's own frames on one connection.

    Args:
        server: The server.
        link: The connection's socket.
        outlet: The connection's outlet.

    Attributes:
        outlet: See above.
        account: The account that owes for them; None before connection.open.
        gone: Whether the client has left, and hears of nothing more.
    """

    __slots__ = ("_link", "_server", "account", "gone", "outlet")

    def __init__(self, server: AmqpServer, link: Link, outlet: Outlet) -> None:
        self._server = server
        self._link = link
        self.outlet = outlet
        self.account: Account | None = None
        self.gone = False

    def send(self, data: bytes) -> None:
        """Send frames on the client's own account (rule 2)."""
        account = self.account
        assert account is not None
        size = len(data)
        account.borrow(1, size)
        self.outlet.hold(account, data, 1, size, self._server.ledger.clock())

    def send_unowed(self, data: bytes) -> None:
        """Send frames before there is an account that could owe for them."""
        # A client that does not read it waits in vain, and is cut off in time (`connect_timeout`).
        with contextlib.suppress(OSError):
            self._link.sock.send(data)

    def answer(self, data: bytes) -> None:
        """Send frames on the client's account, if it has one yet."""
        if self.account is None:
            self.send_unowed(data)
        else:
            self.send(data)

    def send_later(self, data: bytes) -> None:
        """Send frames for something that has happened outside of this connection's reads."""
        if not (self.gone or self.outlet.closed or self.account is None):
            self.send(data)
            self._server.flusher.ready()
