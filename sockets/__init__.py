"""Sockets and layers over them, below any protocol: TLS, for servers and for clients."""

from ._certificates import CertificateError as CertificateError
from ._certificates import Certificates as Certificates
from ._certificates import common_name as common_name
from ._certificates import said as said
from ._errors import TransportError as TransportError
from ._handshake import shake_hands as shake_hands
from ._server_tls import ServerTls as ServerTls
from ._tls_socket import TlsSocket as TlsSocket
from ._trouble import BROKEN_OFF as BROKEN_OFF
from ._trouble import trouble as trouble
