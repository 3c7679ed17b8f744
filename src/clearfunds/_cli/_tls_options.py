"""The certificates of a relay, as options."""

import logging
import ssl
from pathlib import Path
from typing import Annotated

import attrs
from cyclopts import Group, Parameter

from clearfunds.sockets import Certificates, ServerTls, out_of_date

from ._errors import UsageError
from ._secret_file import check_secret

log = logging.getLogger("clearfunds.relay")


@Parameter(name="*", group=Group("TLS", sort_key=1))
@attrs.frozen
class Tls:
    """Certificates of listeners with tls and wss, reloaded at SIGHUP."""

    tls_certificate: Annotated[
        Path | None,
        Parameter(
            help="Certificate chain (PEM): the relay's certificate, then its issuers'. For tls and "
            "wss listeners and https pages. Reloaded at SIGHUP."
        ),
    ] = None
    tls_key: Annotated[
        Path | None,
        Parameter(
            help="Private key of the certificate (PEM) [default: in the same file]. Reloaded at "
            "SIGHUP."
        ),
    ] = None
    tls_client_ca: Annotated[
        Path | None,
        Parameter(
            help="CA certificates for clients (PEM): on tls and wss listeners every client must "
            "then have a certificate from one of these CAs, and its common name is the MQTT "
            "user. Reloaded at SIGHUP."
        ),
    ] = None

    def of_server(self) -> ServerTls | None:
        """Read the files; None if there is no certificate.

        Raises:
            UsageError: Another option is given without one, or others can read the key.
            CertificateError: A file cannot be used.
        """
        if self.tls_certificate is None:
            for name, file in (
                ("--tls-key", self.tls_key),
                ("--tls-client-ca", self.tls_client_ca),
            ):
                if file is not None:
                    msg = f"{name} needs --tls-certificate FILE"
                    raise UsageError(msg)
            return None
        chain = self.tls_certificate
        certificates = Certificates(chain=chain, key=self.tls_key, trusted=self.tls_client_ca)
        key = chain if self.tls_key is None else self.tls_key
        told: str | None = None

        def make() -> ssl.SSLContext:
            nonlocal told
            context = certificates.for_server()
            check_secret(key)
            before, told = told, out_of_date(context, chain)
            if told is not None and told != before:
                log.warning(
                    "%s: %s: clients will refuse it; give one that is valid, and send SIGHUP",
                    chain,
                    told,
                    extra={"event": "certificate_out_of_date", "file": str(chain)},
                )
            return context

        return ServerTls(make)
