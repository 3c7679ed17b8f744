"""Login options of `clearfunds top` and `clearfunds trace`, for a relay's pages."""

from __future__ import annotations

from base64 import b64encode
from pathlib import Path
from typing import Annotated

import attrs
from cyclopts import Group, Parameter

from clearfunds.sockets import trouble_with_file

from ._client_tls import ClientTls
from ._errors import UsageError
from ._page import Visitor


@Parameter(name="*", group=Group("Login", sort_key=5))
@attrs.frozen
class VisitorOptions:
    """The login for pages that require one."""

    token: Annotated[
        str | None,
        Parameter(
            env_var="CLEARFUNDS_HTTP_TOKEN",
            help="Bearer token, for a relay with --http-token; safer in the environment, where "
            "`ps` does not show it.",
        ),
    ] = attrs.field(default=None, repr=False)
    token_file: Annotated[
        Path | None, Parameter(help="File with the bearer token in its first line.")
    ] = None
    username: Annotated[
        str | None, Parameter(help="User name, for a relay with --http-password.")
    ] = None
    password: Annotated[
        str | None,
        Parameter(env_var="CLEARFUNDS_HTTP_PASSWORD", help="Password; safer in the environment."),
    ] = attrs.field(default=None, repr=False)
    tls: ClientTls = ClientTls()  # noqa: RUF009  (frozen)

    def visitor(self, url: str) -> Visitor:
        """Return the visitor for the pages at a URL.

        Raises:
            UsageError: A file cannot be used, or two options exclude each other.
        """
        if not url.startswith("https:"):
            self.tls.refuse_without_tls(url, "https://HOST:PORT")
            return Visitor(self._authorization())
        return Visitor(self._authorization(), self.tls.context())

    def _authorization(self) -> str | None:
        if self.username is not None:
            if self.token is not None or self.token_file is not None:
                msg = "--username and --token exclude each other: give one of them"
                raise UsageError(msg)
            pair = f"{self.username}:{self.password or ''}".encode()
            return f"Basic {b64encode(pair).decode()}"
        if self.password is not None:
            msg = "--password needs --username NAME"
            raise UsageError(msg)
        token = self.token if self.token_file is None else _first_line(self.token_file)
        if token is None:
            return None
        if not (token.isascii() and token.isprintable()):
            msg = "the token has an invalid character"
            raise UsageError(msg)
        return f"Bearer {token}"


def _first_line(file: Path) -> str:
    try:
        return file.read_text(errors="replace").partition("\n")[0].strip()
    except OSError as error:
        raise UsageError(trouble_with_file(file, error)) from error
