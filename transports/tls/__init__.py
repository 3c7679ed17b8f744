"""TLS below any protocol: as a layer over a non-blocking socket, for servers and for clients."""

from ._certificates import CertificateError as CertificateError
from ._certificates import Certificates as Certificates
from ._certificates import common_name as common_name
from ._certificates import said as said
from ._handshake import shake_hands as shake_hands
from ._server import ServerTls as ServerTls
from ._socket import TlsSocket as TlsSocket
from ._trouble import BROKEN_OFF as BROKEN_OFF
from ._trouble import trouble as trouble
