"""Why a client has not come to terms with a server: what was wrong, and what can be done."""

from __future__ import annotations

import ssl
from typing import Final

from ._certificates import said

# X509_V_ERR_*, as openssl/x509_vfy.h has them; Python names none of them.
_NOT_YET_VALID: Final = 9
_EXPIRED: Final = 10
_OTHER_NAME: Final = 62
_OTHER_ADDRESS: Final = 64

_WANTS_A_CERTIFICATE: Final = frozenset(
    {"TLSV13_ALERT_CERTIFICATE_REQUIRED", "SSLV3_ALERT_HANDSHAKE_FAILURE"}
)
"""What a server says of TLS 1.3, and of 1.2, whom a client has shown no certificate."""

_DOES_NOT_BELIEVE_OURS: Final = frozenset(
    {
        "SSLV3_ALERT_BAD_CERTIFICATE",
        "SSLV3_ALERT_CERTIFICATE_EXPIRED",
        "SSLV3_ALERT_CERTIFICATE_REVOKED",
        "SSLV3_ALERT_CERTIFICATE_UNKNOWN",
        "SSLV3_ALERT_UNSUPPORTED_CERTIFICATE",
        "TLSV1_ALERT_ACCESS_DENIED",
        "TLSV1_ALERT_DECRYPT_ERROR",
        "TLSV1_ALERT_UNKNOWN_CA",
    }
)

_NO_TLS: Final = frozenset(
    {"HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG", "RECORD_LAYER_FAILURE", "WRONG_VERSION_NUMBER"}
)

BROKEN_OFF: Final = (
    "it ended the connection within the TLS handshake; does it speak TLS on that port?"
)
"""What to say of a server that has closed the connection before the handshake was over."""


def trouble(error: ssl.SSLError) -> str:
    """Return what is wrong between a client and a server, and what to do about it.

    The files are called what `Certificates` calls them, and so the options of the commands.
    """
    why = said(error)
    if isinstance(error, ssl.SSLCertVerificationError):
        code = error.verify_code
        if code in (_OTHER_NAME, _OTHER_ADDRESS):
            return f"its certificate is another's ({why}); connect to it by a name that it has"
        if code in (_NOT_YET_VALID, _EXPIRED):
            return f"its certificate is not of this time ({why}); or this machine's clock is not"
        return (
            f"its certificate is not believed ({why}); say who has signed it: "
            "--tls-ca FILE, Certificates(trusted=FILE)"
        )
    reason = error.reason or ""
    if isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError):
        return BROKEN_OFF
    if reason in _NO_TLS:
        return f"what answers speaks no TLS ({why}); is that the port for it?"
    if reason in _WANTS_A_CERTIFICATE:
        return (
            f"it does not go on with TLS ({why}); it may want a client's certificate: "
            "--tls-certificate FILE and --tls-key FILE, Certificates(chain=FILE, key=FILE)"
        )
    if reason in _DOES_NOT_BELIEVE_OURS:
        return f"it does not believe the client's certificate ({why}); who has to have signed it?"
    return f"TLS failed ({why})"
