"""How the blocking clients reach a relay: its address, TLS, and who they are.

Of the standard library alone, as `range_client` and `sink_client`, which are what this is for. ::

    access = Access(user="press", password=secret, tls=True, ca="/etc/clearfunds/ca.pem")
    with RangeReader("relay.example", 7701, "readings", access=access, ...) as reader:
        ...
"""

from __future__ import annotations

import dataclasses
import socket
import ssl
import struct
from dataclasses import dataclass, field
from urllib.parse import urlsplit

MAX_FIELD_BYTES = 65_535
"""Bytes of a user's name, or of a password, that the protocol has room for."""

PLAIN_URL = "subscribe+tcp"
TLS_URL = "subscribe+tls"
"""What URLs begin with, as `clearfunds relay --listen` has them."""

_U16 = struct.Struct("<H")


@dataclass(frozen=True, kw_only=True)
class Access:
    """Who a client is, and what its connection is encrypted with. It can be pickled.

    Args:
        user: The user's name; None: no user.
        password: The user's password, or a JSON Web Token for a relay with `--jwt-key`: then the
            user may be an empty text. It crosses the network as it is where there is no TLS.
        tls: Whether TLS is spoken.
        ca: File with the certificates, in PEM, of those whose signature is believed under the
            relay's; None: the system's.
        certificate: File with the client's own certificate, in PEM, for a relay that asks for one:
            it says who the user is.
        key: File with its private key, not encrypted; None: it is in the same file.

    Raises:
        ValueError: If they do not go together.
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
            if text is not None and len(text.encode()) > MAX_FIELD_BYTES:
                raise ValueError(f"a {what} has {MAX_FIELD_BYTES} bytes at the most")
        if self.key is not None and self.certificate is None:
            raise ValueError("a key is a certificate's: give the certificate, too")

    def reach(self, host: str, port: int | None) -> tuple[str, int, Access]:
        """Return where a relay is, and how it is reached.

        Args:
            host: A host's name or address; or a URL, if `port` is None.
            port: Its port.

        Raises:
            ValueError: If it is no URL; or a file is given that only TLS has a use for.
        """
        access = self
        if port is None:
            host, port, tls = parse_url(host)
            access = dataclasses.replace(self, tls=tls)
        if not access.tls and (access.ca or access.certificate):
            raise ValueError(
                f"certificates are for TLS: say that it is spoken, with {TLS_URL}://HOST:PORT, or "
                "tls=True"
            )
        return host, port, access

    def context(self) -> ssl.SSLContext | None:
        """Read the files; return what connections are encrypted with, None without TLS.

        Raises:
            ValueError: If a file cannot be used.
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
                raise ValueError(f"{self.ca} has to have certificates, in PEM ({exc})") from exc
        if self.certificate is not None:
            key = self.key or self.certificate
            for path in {self.certificate, key}:
                _read(path, "a certificate and its key")
            try:
                context.load_cert_chain(self.certificate, key, password=_no_password)
            except (ssl.SSLError, _EncryptedKeyError) as exc:
                msg = (
                    f"{self.certificate} has to have a certificate, and {key} its private key, not "
                    f"encrypted, in PEM ({exc})"
                )
                raise ValueError(msg) from None
        return context

    def login(self) -> bytes | None:
        """Return what AUTH has; None: there is nothing to be said."""
        if self.user is None or self.password is None:
            return None
        user, password = self.user.encode(), self.password.encode()
        return b"".join((_U16.pack(len(user)), user, _U16.pack(len(password)), password))


NOBODY = Access()
"""No user, and no TLS."""


class _EncryptedKeyError(Exception):
    """A key wants a password."""


def _no_password() -> str:
    # Otherwise OpenSSL would ask for it in the terminal.
    raise _EncryptedKeyError("the key is encrypted")


def _read(path: str, what: str) -> None:
    """See whether a file can be read; OpenSSL would not say which it was."""
    try:
        with open(path, "rb"):
            pass
    except OSError as exc:
        raise ValueError(f"cannot read {what} from {path}: {exc.strerror}") from exc


def parse_url(url: str) -> tuple[str, int, bool]:
    """Return the host, the port, and whether TLS is spoken there.

    Raises:
        ValueError: If it is no URL of a listener for readers and writers.
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
    """Connect, within so many seconds; with TLS its handshake is over then.

    Raises:
        OSError: If it cannot be connected to; an `ssl.SSLError` if there is no agreement on TLS.
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
    """Say what TLS has found wrong for good; None: it may be well when it is tried again."""
    if not isinstance(exc, ssl.SSLError) or isinstance(
        exc,
        ssl.SSLEOFError | ssl.SSLZeroReturnError | ssl.SSLWantReadError | ssl.SSLWantWriteError,
    ):
        return None
    if isinstance(exc, ssl.SSLCertVerificationError):
        return f"its certificate is not believed here: {exc.verify_message}"
    if not exc.reason:
        return f"there is no agreement on TLS: {exc}"
    return f"there is no agreement on TLS: {exc.reason.replace('_', ' ').lower()}"
