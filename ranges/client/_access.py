"""Access to a relay for the blocking clients: its address, TLS, and the client's login.

It needs the standard library alone, as do `RangeReader` and `SinkWriter`, which use it. ::

    access = Access(user="press", password=secret, tls=True, ca="/etc/clearfunds/ca.pem")
    with RangeReader("relay.example", 7701, "readings", access=access, ...) as reader:
        ...
"""

from __future__ import annotations

import dataclasses
import socket
import ssl
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from ..wire import MAX_TEXT_BYTES, Auth

PLAIN_URL = "subscribe+tcp"
TLS_URL = "subscribe+tls"
"""Scheme of URLs with TLS, as in `clearfunds relay --listen`."""


@dataclass(frozen=True, kw_only=True)
class Access:
    """A client's login, and the TLS settings of its connection. It can be pickled.

    Args:
        user: The user's name; None: no user.
        password: The user's password, or a JSON Web Token for a relay with `--jwt-key`: then the
            user may be an empty text. Without TLS it crosses the network unencrypted.
        tls: Whether the connection uses TLS.
        ca: File with the certificates, in PEM, of the authorities trusted to sign the relay's;
            None: the system's.
        certificate: File with the client's own certificate, in PEM, for a relay that asks for one:
            its common name is the user.
        key: File with its private key, not encrypted; None: it is in the same file.

    Raises:
        ValueError: A combination of arguments is invalid.
    """

    user: str | None = None
    password: str | None = field(default=None, repr=False)
    tls: bool = False
    ca: str | None = None
    certificate: str | None = None
    key: str | None = None

    def __post_init__(self) -> None:
        if (self.user is None) != (self.password is None):
            raise ValueError("a user and a password come together: give both, or neither")
        for what, text in (("user", self.user), ("password", self.password)):
            if text is not None and len(text.encode()) > MAX_TEXT_BYTES:
                raise ValueError(f"a {what} has {MAX_TEXT_BYTES} bytes at the most")
        if self.key is not None and self.certificate is None:
            raise ValueError("a key belongs to a certificate: give the certificate, too")

    def reach(self, host: str, port: int | None) -> tuple[str, int, Access]:
        """Return the host and port of a relay, and the access to use there.

        Args:
            host: A host's name or address; or a URL, if `port` is None.
            port: Its port.

        Raises:
            ValueError: It is not a valid URL; or a file is given that only TLS uses.
        """
        access = self
        if port is None:
            host, port, tls = parse_url(host)
            access = dataclasses.replace(self, tls=tls)
        if not access.tls and (access.ca or access.certificate):
            raise ValueError(f"certificates need TLS: give {TLS_URL}://HOST:PORT, or tls=True")
        return host, port, access

    def context(self) -> ssl.SSLContext | None:
        """Read the files; return the TLS context, None without TLS.

        Raises:
            ValueError: A file cannot be used.
        """
        if not self.tls:
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if self.ca is None:
            context.load_default_certs()
        else:
            _read(self.ca, "certificates")
            try:
                context.load_verify_locations(self.ca)
            except ssl.SSLError as exc:
                raise ValueError(f"{self.ca} must have certificates, in PEM ({exc})") from exc
        if self.certificate is not None:
            key = self.key or self.certificate
            for path in {self.certificate, key}:
                _read(path, "a certificate and its key")
            try:
                context.load_cert_chain(self.certificate, key, password=_no_password)
            except (ssl.SSLError, _EncryptedKeyError) as exc:
                msg = (
                    f"{self.certificate} must have a certificate, and {key} its private key, not "
                    f"encrypted, in PEM ({exc})"
                )
                raise ValueError(msg) from None
        return context

    def login(self) -> Auth | None:
        """Return the log-in; None: nothing has to be sent."""
        if self.user is None or self.password is None:
            return None
        return Auth(self.user, self.password.encode())


NOBODY = Access()
"""No user, and no TLS."""


class _EncryptedKeyError(Exception):
    """A key needs a password."""


def _no_password() -> str:
    # Otherwise OpenSSL would ask for it in the terminal.
    raise _EncryptedKeyError("the key is encrypted")


def _read(path: str, what: str) -> None:
    """Check that a file can be read; OpenSSL's error would not name it."""
    try:
        with open(path, "rb"):
            pass
    except OSError as exc:
        raise ValueError(f"cannot read {what} from {path}: {exc.strerror}") from exc


def parse_url(url: str) -> tuple[str, int, bool]:
    """Return the host, the port, and whether it is a URL for TLS.

    Raises:
        ValueError: It is no URL of a listener for readers and writers.
    """
    parts = urlsplit(url)
    try:
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    plain = not (parts.path.strip("/") or parts.query or parts.fragment or parts.username)
    if parts.scheme not in (PLAIN_URL, TLS_URL) or not host or not port or not plain:
        raise ValueError(f"{url!r} is not {PLAIN_URL}://HOST:PORT or {TLS_URL}://HOST:PORT")
    return host, port, parts.scheme == TLS_URL


def connect(
    address: tuple[str, int], timeout: float, context: ssl.SSLContext | None
) -> socket.socket:
    """Connect within a timeout, which includes the TLS handshake.

    Raises:
        OSError: The connection failed; an `ssl.SSLError` if the two sides do not agree on TLS.
    """
    sock = socket.create_connection(address, timeout)
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if context is not None:
            return context.wrap_socket(sock, server_hostname=address[0])
    except BaseException:
        sock.close()
        raise
    return sock


def tls_fault(exc: OSError) -> str | None:
    """Return the permanent TLS fault; None: another attempt may succeed."""
    if not isinstance(exc, ssl.SSLError) or isinstance(
        exc,
        ssl.SSLEOFError | ssl.SSLZeroReturnError | ssl.SSLWantReadError | ssl.SSLWantWriteError,
    ):
        return None
    if isinstance(exc, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {exc.verify_message}"
    if not exc.reason:
        return f"TLS failed: {exc}"
    return f"TLS failed: {exc.reason.replace('_', ' ').lower()}"
