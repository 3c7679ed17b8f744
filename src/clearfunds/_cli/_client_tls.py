"""TLS options of a client: trusted certificates, and its own."""

import ssl
from pathlib import Path
from typing import Annotated

import attrs
from cyclopts import Group, Parameter

from clearfunds.sockets import CertificateError, Certificates

from ._errors import UsageError


@Parameter(name="*", group=Group("TLS", sort_key=6))
@attrs.frozen
class ClientTls:
    """Certificates that a client trusts, and its own; for servers with TLS."""

    tls_ca: Annotated[
        Path | None,
        Parameter(
            show_default=False,
            help="CA certificates for the server (PEM) [default: the system's].",
        ),
    ] = None
    tls_certificate: Annotated[
        Path | None,
        Parameter(
            show_default=False,
            help="Client certificate (PEM), for a server that asks for one.",
        ),
    ] = None
    tls_key: Annotated[
        Path | None,
        Parameter(
            show_default=False,
            help="Private key of the client certificate (PEM) [default: in the same file].",
        ),
    ] = None
    tls_insecure: Annotated[
        bool,
        Parameter(
            negative=(),
            help="Accept any server certificate. For tests: anybody in between can read along.",
        ),
    ] = False

    def context(self) -> ssl.SSLContext:
        """Read the files; return the TLS context.

        Raises:
            UsageError: A file cannot be used.
        """
        files = Certificates(chain=self.tls_certificate, key=self.tls_key, trusted=self.tls_ca)
        try:
            return files.for_client(verify=not self.tls_insecure)
        except CertificateError as error:
            raise UsageError(str(error)) from error

    def refuse_without_tls(
        self, url: str, secure: str = "mqtts://HOST or mqtt+tls://HOST:PORT"
    ) -> None:
        """Check that none of these options is given with a URL without TLS.

        `secure` is the form of a URL with TLS.

        Raises:
            UsageError: One is given.
        """
        given = [
            f"--{name.replace('_', '-')}" for name, value in attrs.asdict(self).items() if value
        ]
        if given:
            msg = f"{given[0]} needs TLS, and {url} does not use it: give {secure}"
            raise UsageError(msg)
