"""The TLS context for connections to a server."""

from __future__ import annotations

import ssl
from collections.abc import Iterable

from ..sockets import CertificateError, Certificates
from ._errors import ScenarioError
from ._scenario import TLS_FILES, Scenario


def tls_of(scenario: Scenario) -> ssl.SSLContext | None:
    """Read a scenario's files; None if its server is without TLS.

    It takes some ten milliseconds, most of them for the system's authorities: all connections of a
    process share one context.

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
    """Check the files of all scenarios, before the first run.

    Raises:
        ScenarioError: A file cannot be used.
    """
    looked_at: set[tuple[object, ...]] = set()
    for each in scenarios:
        files = tuple(getattr(each, name) for name in TLS_FILES)
        if files not in looked_at:
            looked_at.add(files)
            tls_of(each)
