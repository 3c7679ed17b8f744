"""The TLS contexts of a running server."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING

from ._tls_socket import TlsSocket

if TYPE_CHECKING:
    from ._layer import Connected


class ServerTls:
    """A server's certificates, which can be changed while it runs.

    Args:
        make: Makes the context for connections: `Certificates.for_server`, which reads the
            files again each time; or a function of the caller's own.

    Attributes:
        context: The context for new connections.
        asks_nobody: The same, for connections that never need a client's certificate.
    """

    def __init__(self, make: Callable[[], ssl.SSLContext]) -> None:
        self._make = make
        self.context = make()
        self.asks_nobody = self._without_question()

    @property
    def asks(self) -> bool:
        """Whether peers are asked for a certificate."""
        return self.context.verify_mode is not ssl.CERT_NONE

    def reload(self) -> None:
        """Make a new context from the present files, for new connections.

        Raises:
            CertificateError: A file cannot be used; nothing changes. Or whatever `make` raises.
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
