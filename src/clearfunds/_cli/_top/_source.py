"""Fetching the relay's books."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Self, cast
from urllib.parse import quote, urlsplit

import attrs

from clearfunds.accounts.watch._core_shares import TOP_SHARE

from .._errors import CommandFailedError, UsageError
from .._page import Visitor, fetch_json

if TYPE_CHECKING:
    from clearfunds.pages._top_json import TopPage

    from .._visitor_options import VisitorOptions

DEFAULT_URL: Final = "http://127.0.0.1:9100"

_DEFAULT_PORT: Final = 9100
# As in the examples; the ports of Prometheus's exporters begin there.


@attrs.frozen
class Source:
    """A relay's pages."""

    url: str
    """Their common beginning, as `http://127.0.0.1:9100`."""
    visitor: Visitor = attrs.field(factory=Visitor)
    """The login for them."""

    @classmethod
    def of(cls, text: str, login: VisitorOptions) -> Self:
        """Read the URL of the pages, and the login.

        Raises:
            UsageError: One of them is invalid.
        """
        source = cls.parse(text)
        return attrs.evolve(source, visitor=login.visitor(source.url))

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `http://HOST:PORT`, `https://HOST:PORT`, `HOST:PORT` or `HOST`.

        The path of a worker's pages may follow, `/NAME/` (`clearfunds relay --workers`).

        Raises:
            UsageError: It is none of these.
        """
        try:
            parts = urlsplit(text if "://" in text else f"http://{text}")
            path = parts.path.rstrip("/")
            plain = (not path or parts.path.endswith("/")) and not (
                parts.query or parts.fragment or parts.username
            )
            if parts.scheme in ("http", "https") and parts.hostname and plain:
                host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
                return cls(f"{parts.scheme}://{host}:{parts.port or _DEFAULT_PORT}{path}")
        except ValueError:  # An invalid port, or a bracket that is not closed.
            pass
        msg = f'"{text}" is not http://HOST:PORT, https://HOST:PORT, HOST:PORT or HOST'
        raise UsageError(msg)

    async def look(self, top: int, by: str, name: str = "") -> TopPage:
        """Fetch the page, with the first `top` rows of everything.

        Only accounts and holders with `name` in their names, if it is not empty.

        Raises:
            CommandFailedError: There is none; one line has the reason.
        """
        part = f"&name={quote(name)}" if name else ""
        url = f"{self.url}/ledger.json?top={top}&by={by}{part}"
        try:
            page: Any = await fetch_json(url, visitor=self.visitor)
        except OSError as error:
            msg = (
                f"cannot reach {self.url}: {error.strerror or error} (start the relay with "
                "--http HOST:PORT)"
            )
            raise CommandFailedError(msg) from error
        if not isinstance(page, dict) or not {"waits", "more", "busy_ms"} <= page.keys():
            msg = f"{url} is not a page of a relay of this version"
            raise CommandFailedError(msg)
        return cast("TopPage", page)


def stretched(page: TopPage, interval: float) -> str | None:
    """Explain why updates are further apart than was asked for; None if they are not."""
    pause = pause_after(page, interval)
    if pause <= interval:
        return None
    cost = f"{page['busy_ms']:.0f} ms of the relay's time"
    return f"a look every {pause:.1f} s, not {interval:g} s: each takes {cost}"


def pause_after(page: TopPage, interval: float) -> float:
    """Return the seconds until the next update: its cost for the relay must stay small."""
    return max(interval, page["busy_ms"] / 1e3 / TOP_SHARE)
