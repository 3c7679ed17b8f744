"""Certificates from files: the own one, and those to check the peer's against."""

from __future__ import annotations

import ssl
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import attrs

from ._errors import TransportError
from ._remedies import trouble_with_file

OLDEST: Final = ssl.TLSVersion.TLSv1_2
"""Older versions must not be used any more [RFC 8996]."""


NOT_VALID_NOW: Final = (9, 10)
"""X509_V_ERR_CERT_NOT_YET_VALID and _HAS_EXPIRED of openssl/x509_vfy.h; Python has no names."""


class CertificateError(TransportError, ValueError):
    """A file of certificates, or of a key, cannot be used; the message says which, and why."""


@attrs.frozen(kw_only=True)
class Certificates:
    """PEM files with the own certificate, and with the trusted ones.

    Attributes:
        chain: The own certificate, and those that vouch for it.
        key: Its private key; None: it is in the same file.
        trusted: The authorities that may sign a peer's certificate. None: for a client, those that
            the system trusts; for a server, clients need no certificate.
    """

    chain: str | Path | None = None
    key: str | Path | None = None
    trusted: str | Path | None = None

    def for_server(self) -> ssl.SSLContext:
        """Read the files; return the TLS context for accepted connections.

        Raises:
            CertificateError: There is no certificate, or a file cannot be used.
        """
        if self.chain is None:
            raise CertificateError("a server has to have a certificate")
        context = self._read(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
        if self.trusted is not None:
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    def for_client(self, *, verify: bool = True) -> ssl.SSLContext:
        """Read the files; return the TLS context for connections to servers.

        Args:
            verify: Whether to check the server's certificate. Without that, anybody in between can
                read along.

        Raises:
            CertificateError: A file cannot be used.
        """
        context = self._read(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
        if not verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        elif self.trusted is None:
            context.load_default_certs()
        return context

    def _read(self, context: ssl.SSLContext) -> ssl.SSLContext:
        context.minimum_version = OLDEST
        # With renegotiation, TLS could need input before it sends.
        context.options |= ssl.OP_NO_RENEGOTIATION
        if self.chain is not None:
            self._read_chain(context, self.chain)
        elif self.key is not None:
            raise CertificateError(f"{self.key} is a certificate's key: give the certificate, too")
        if self.trusted is not None:
            try:
                context.load_verify_locations(self.trusted)
            except ssl.SSLError as error:
                msg = f"{self.trusted} has to have certificates, in PEM ({said(error)})"
                raise CertificateError(msg) from error
            except OSError as error:
                msg = f"cannot read {trouble_with_file(self.trusted, error)}"
                raise CertificateError(msg) from error
        return context

    def _read_chain(self, context: ssl.SSLContext, chain: str | Path) -> None:
        key = chain if self.key is None else self.key
        for path in (chain, key):
            # OpenSSL would not say which of the two files it is.
            try:
                Path(path).read_bytes()
            except OSError as error:
                msg = f"cannot read {trouble_with_file(path, error)}"
                raise CertificateError(msg) from error
        try:
            context.load_cert_chain(chain, key, password=_no_password)
        except _EncryptedKeyError:
            msg = (
                f"the key in {key} is encrypted, and its password cannot be asked for: "
                "write one that is not (openssl pkey -in KEY -out PLAIN), and let only its owner "
                "read it"
            )
            raise CertificateError(msg) from None
        except ssl.SSLError as error:
            if error.reason == "KEY_VALUES_MISMATCH":
                msg = (
                    f"the key in {key} is not that of the certificate in {chain}: give the two "
                    "that belong together"
                )
                raise CertificateError(msg) from error
            if self.key is None and b"PRIVATE KEY" not in Path(chain).read_bytes():
                msg = f"{chain} has no private key in it: give the file that has (--tls-key)"
                raise CertificateError(msg) from error
            msg = (
                f"{chain} has to have a certificate, its own first and then those that vouch for "
                f"it, and {key} its private key, in PEM ({said(error)})"
            )
            raise CertificateError(msg) from error


class _EncryptedKeyError(Exception):
    """A key needs a password."""


def _no_password() -> str:
    # Otherwise OpenSSL would ask for the password in the terminal.
    raise _EncryptedKeyError


def said(error: ssl.SSLError) -> str:
    """Return OpenSSL's reason in words: "wrong version number"."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"certificate verify failed: {error.verify_message}"
    if not error.reason:
        return "OpenSSL does not say why"
    return error.reason.replace("_", " ").lower()


def out_of_date(context: ssl.SSLContext, chain: str | Path) -> str | None:
    """Return OpenSSL's words if a server's own certificate is not valid now; None if it is.

    Python reads no dates of a certificate, but a client that trusts it checks them: here one that
    shakes hands with the server in memory.

    Args:
        context: The server's context.
        chain: The file that its certificate is from.
    """
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    asking = client.wrap_bio(back, there)
    answering = context.wrap_bio(there, back, server_side=True)
    try:
        client.load_verify_locations(chain)
        for each in (asking, answering, asking):
            with suppress(ssl.SSLWantReadError):
                each.do_handshake()
    except ssl.SSLCertVerificationError as error:
        return error.verify_message if error.verify_code in NOT_VALID_NOW else None
    except ssl.SSLError:
        return None  # Another reason, which a real client will have a better sentence about.
    return None


def common_name(certificate: dict[str, Any]) -> str | None:
    """Return the common name of a certificate from `ssl.SSLSocket.getpeercert`; None without one.

    The last of several, which is the most specific one [RFC 4514 section 2.1]. A blank one counts
    as none.
    """
    subject: tuple[tuple[tuple[str, str], ...], ...] = certificate.get("subject", ())
    names = [value for part in subject for name, value in part if name == "commonName"]
    return names[-1] if names and names[-1].strip() else None
