"""What a server's connections are encrypted with, as long as it runs."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING

from ._socket import TlsSocket

if TYPE_CHECKING:
    from .._layer import Connected


class ServerTls:
    """Certificates of a server, that can be changed while it runs.

    Args:
        make: Makes what connections are encrypted with: `Certificates.for_server`, which reads the
            files again each time; or something of the caller's own.

    Attributes:
        context: What connections from now on are encrypted with.
        asks_nobody: The same, for those that need no certificate of the client's in any case.
    """

    def __init__(self, make: Callable[[], ssl.SSLContext]) -> None:
        self._make = make
        self.context = make()
        self.asks_nobody = self._without_question()

    @property
    def asks(self) -> bool:
        """Whether peers are asked who they are."""
        return self.context.verify_mode is not ssl.CERT_NONE

    def reload(self) -> None:
        """Take what there is now, for connections from now on.

        Raises:
            CertificateError: A file cannot be used; all stays as it was. Or whatever `make` raises.
        """
        context, asks_nobody = self._make(), self._without_question()
        self.context, self.asks_nobody = context, asks_nobody

    def _without_question(self) -> ssl.SSLContext:
        context = self._make()
        context.verify_mode = ssl.CERT_NONE
        return context

    def secure(self, sock: Connected) -> TlsSocket:
        """Take over an accepted socket."""
        return TlsSocket(sock, self.context)
