"""The certificates of a relay, as options."""

import ssl
from pathlib import Path
from typing import Annotated

import attrs
from cyclopts import Group, Parameter

from clearfunds.transports.tls import Certificates, ServerTls

from ._errors import UsageError
from ._secret_file import check_secret


@Parameter(name="*", group=Group("TLS", sort_key=1))
@attrs.frozen
class Tls:
    """What listeners with tls and wss show, and ask for. Files are read again at SIGHUP."""

    tls_certificate: Annotated[
        Path | None,
        Parameter(
            help="For listeners with tls and wss, and pages with https: a file in PEM with the "
            "relay's certificate, and those that vouch for it. Read again at SIGHUP."
        ),
    ] = None
    tls_key: Annotated[
        Path | None,
        Parameter(
            help="The certificate's private key, in PEM [default: in the same file]. Read again "
            "at SIGHUP."
        ),
    ] = None
    tls_client_ca: Annotated[
        Path | None,
        Parameter(
            help="For listeners with tls and wss: whoever connects must have a certificate, too, "
            "that one of those in this file vouches for; its common name is the user of an MQTT "
            "client. Read again at SIGHUP."
        ),
    ] = None

    def of_server(self) -> ServerTls | None:
        """Read the files; None if there is no certificate.

        Raises:
            UsageError: There is something else without one, or others can read the key.
            CertificateError: A file cannot be used.
        """
        if self.tls_certificate is None:
            for name, file in (
                ("--tls-key", self.tls_key),
                ("--tls-client-ca", self.tls_client_ca),
            ):
                if file is not None:
                    msg = f"{name} is of no use without --tls-certificate"
                    raise UsageError(msg)
            return None
        certificates = Certificates(
            chain=self.tls_certificate, key=self.tls_key, trusted=self.tls_client_ca
        )
        key = self.tls_certificate if self.tls_key is None else self.tls_key

        def make() -> ssl.SSLContext:
            context = certificates.for_server()
            check_secret(key)
            return context

        return ServerTls(make)
