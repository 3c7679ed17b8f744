"""Reasons why a TLS connection to a server failed, with remedies."""

from __future__ import annotations

import ssl
from typing import Final

from ._certificates import NOT_VALID_NOW, said

# X509_V_ERR_* of openssl/x509_vfy.h, as `NOT_VALID_NOW`.
_OTHER_NAME: Final = 62
_OTHER_ADDRESS: Final = 64

_WANTS_A_CERTIFICATE: Final = frozenset(
    {"TLSV13_ALERT_CERTIFICATE_REQUIRED", "SSLV3_ALERT_HANDSHAKE_FAILURE"}
)
"""Alerts of a server that requires a client's certificate, with TLS 1.3 and 1.2."""

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
"""The sentence for a server that closed the connection during the handshake."""


def trouble(error: ssl.SSLError) -> str:
    """Return the fault between a client and a server, and its remedy.

    The files have the names that `Certificates` gives them, and so the options of the commands.
    """
    why = said(error)
    if isinstance(error, ssl.SSLCertVerificationError):
        code = error.verify_code
        if code in (_OTHER_NAME, _OTHER_ADDRESS):
            return f"its certificate is for another name ({why}); connect by a name that it has"
        if code in NOT_VALID_NOW:
            return f"its certificate is not valid now ({why}); or this machine's clock is wrong"
        return (
            f"its certificate is not trusted ({why}); give the certificate of its authority: "
            "--tls-ca FILE, Certificates(trusted=FILE)"
        )
    reason = error.reason or ""
    if isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError):
        return BROKEN_OFF
    if reason in _NO_TLS:
        return f"the server does not speak TLS ({why}); is that its port for TLS?"
    if reason in _WANTS_A_CERTIFICATE:
        return (
            f"it refuses the TLS handshake ({why}); it may require a client's certificate: "
            "--tls-certificate FILE and --tls-key FILE, Certificates(chain=FILE, key=FILE)"
        )
    if reason in _DOES_NOT_BELIEVE_OURS:
        return f"it does not trust the client's certificate ({why}); which authority must sign it?"
    return f"TLS failed ({why})"
