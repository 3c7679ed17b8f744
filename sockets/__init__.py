"""Sockets and layers over them, below any protocol: TLS, for servers and for clients."""

from ._certificates import CertificateError as CertificateError
from ._certificates import Certificates as Certificates
from ._certificates import common_name as common_name
from ._certificates import out_of_date as out_of_date
from ._certificates import said as said
from ._errors import TransportError as TransportError
from ._handshake import shake_hands as shake_hands
from ._remedies import trouble_with_connecting as trouble_with_connecting
from ._remedies import trouble_with_file as trouble_with_file
from ._remedies import trouble_with_listening as trouble_with_listening
from ._server_tls import ServerTls as ServerTls
from ._tls_socket import TlsSocket as TlsSocket
from ._trouble import BROKEN_OFF as BROKEN_OFF
from ._trouble import trouble as trouble
