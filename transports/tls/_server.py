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
    """

    def __init__(self, make: Callable[[], ssl.SSLContext]) -> None:
        self._make = make
        self.context = make()

    @property
    def asks(self) -> bool:
        """Whether peers are asked who they are."""
        return self.context.verify_mode is not ssl.CERT_NONE

    def reload(self) -> None:
        """Take what there is now, for connections from now on.

        Raises:
            CertificateError: A file cannot be used; all stays as it was. Or whatever `make` raises.
        """
        self.context = self._make()

    def secure(self, sock: Connected) -> TlsSocket:
        """Take over an accepted socket."""
        return TlsSocket(sock, self.context)
