"""What connections to a server with TLS are encrypted with."""

from __future__ import annotations

import ssl
from collections.abc import Iterable

from ..transports.tls import CertificateError, Certificates
from ._errors import ScenarioError
from ._scenario import TLS_FILES, Scenario


def tls_of(scenario: Scenario) -> ssl.SSLContext | None:
    """Read the files of a scenario; None where its server is one without TLS.

    That takes some ten milliseconds, most of them for those that the system believes: one for all
    connections of a process.

    Raises:
        ScenarioError: A file cannot be used.
    """
    if not scenario.tls:
        return None
    files = Certificates(
        chain=scenario.tls_certificate, key=scenario.tls_key, trusted=scenario.tls_ca
    )
    try:
        return files.for_client(verify=not scenario.tls_insecure)
    except CertificateError as error:
        raise ScenarioError(str(error)) from error


def check_tls(scenarios: Iterable[Scenario]) -> None:
    """See that the files of all scenarios can be used, before the first of them is run.

    Raises:
        ScenarioError: One cannot.
    """
    looked_at: set[tuple[object, ...]] = set()
    for each in scenarios:
        files = tuple(getattr(each, name) for name in TLS_FILES)
        if files not in looked_at:
            looked_at.add(files)
            tls_of(each)
