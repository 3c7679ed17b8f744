"""Options for access to a relay's pages."""

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
    """Access to the pages of --http. /healthz and /readyz are open to everybody."""

    http_token: Annotated[
        Path | None,
        Parameter(
            help="Bearer token file, one token a line. Pages except /healthz and /readyz then "
            "require a token: as `Authorization: Bearer TOKEN` or, in a browser, as the "
            "password. Reloaded at SIGHUP."
        ),
    ] = None
    http_password: Annotated[
        Path | None,
        Parameter(
            help="Password file, in mosquitto_passwd's format. The same pages then require a "
            "login; with --http-token, either works. Reloaded at SIGHUP."
        ),
    ] = None
    http_host: Annotated[
        tuple[str, ...],
        Parameter(
            negative=(),
            show_default=False,
            help="Host name of the pages, for browsers and scrapers, besides addresses, localhost "
            "and this machine's own name; *: any name. Repeatable.",
        ),
    ] = ()
    max_http_connections: Annotated[
        Count,
        Parameter(
            help="Concurrent connections to the pages. At the limit, a new connection replaces a "
            "waiting one, so /healthz always answers."
        ),
    ] = DEFAULTS.max_http_connections

    def settings(self, http: str | None) -> dict[str, Any]:
        """Read the files; return their part of `RelaySettings`.

        Raises:
            UsageError: A file cannot be used, or there are no pages.
        """
        for name in ("http_token", "http_password", "http_host"):
            if getattr(self, name) and http is None:
                msg = f"--{name.replace('_', '-')} needs --http HOST:PORT"
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
