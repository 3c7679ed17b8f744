"""Who may look at a relay's pages, as options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import attrs
from cyclopts import Group, Parameter

from clearfunds.transports import BearerTokens, TokenFileError

from ._errors import UsageError
from ._password_file import read_passwords
from ._relay_options import DEFAULTS
from ._secret_file import check_secret
from ._types import Count


@Parameter(name="*", group=Group("Pages", sort_key=1.5))
@attrs.frozen
class PagesAccess:
    """Who may look at the pages of --http. /healthz and /readyz are for everybody."""

    http_token: Annotated[
        Path | None,
        Parameter(
            help="File of tokens, one a line. The pages then want one of them, as "
            "`Authorization: Bearer TOKEN` or, in a browser, as the password. Read again at SIGHUP."
        ),
    ] = None
    http_password: Annotated[
        Path | None,
        Parameter(
            help="File of users and passwords, as mosquitto_passwd writes it. The pages then want "
            "one of them; with --http-token, either will do. Read again at SIGHUP."
        ),
    ] = None
    http_host: Annotated[
        tuple[str, ...],
        Parameter(
            negative=(),
            show_default=False,
            help="Name by which browsers and scrapers may ask for the pages, beside addresses, "
            "localhost and this machine's own name; *: any name. May be given several times.",
        ),
    ] = ()
    max_http_connections: Annotated[
        Count,
        Parameter(
            help="Connections to the pages at once. For one more, one that waits is closed: "
            "/healthz answers in any case."
        ),
    ] = DEFAULTS.max_http_connections

    def settings(self, http: str | None) -> dict[str, Any]:
        """Read the files; return what `RelaySettings` has of them.

        Raises:
            UsageError: A file cannot be used, or there are no pages.
        """
        for name in ("http_token", "http_password", "http_host"):
            if getattr(self, name) and http is None:
                msg = f"--{name.replace('_', '-')} is of pages: give --http HOST:PORT"
                raise UsageError(msg)
        return {
            "http_token": None if self.http_token is None else _tokens(self.http_token),
            "http_password": (
                None if self.http_password is None else read_passwords(self.http_password)
            ),
            "http_host": self.http_host,
            "max_http_connections": self.max_http_connections,
        }


def _tokens(file: Path) -> BearerTokens:
    check_secret(file)
    try:
        return BearerTokens.from_file(file)
    except TokenFileError as error:
        raise UsageError(str(error)) from error
