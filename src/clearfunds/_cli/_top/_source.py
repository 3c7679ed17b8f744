"""Fetching the relay's books."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self, cast
from urllib.parse import quote

import attrs

from clearfunds.accounts.watch._core_shares import TOP_SHARE

from .._errors import CommandFailedError
from .._page import Visitor, fetch_json, pages_url

if TYPE_CHECKING:
    from clearfunds.pages._top_json import TopPage

    from .._visitor_options import VisitorOptions


@attrs.frozen
class Source:
    """A relay's pages."""

    url: str
    """Their common beginning; see `pages_url`."""
    visitor: Visitor = attrs.field(factory=Visitor)
    """The login for them."""

    @classmethod
    def of(cls, text: str, login: VisitorOptions) -> Self:
        """Read the URL of the pages, and the login.

        Raises:
            UsageError: One of them is invalid.
        """
        url = pages_url(text)
        return cls(url, login.visitor(url))

    async def look(self, top: int, by: str, name: str = "") -> TopPage:
        """Fetch the page, with the first `top` rows of everything.

        Only accounts and holders with `name` in their names, if it is not empty.

        Raises:
            CommandFailedError: There is none; one line has the reason.
        """
        part = f"&name={quote(name)}" if name else ""
        url = f"{self.url}/ledger.json?top={top}&by={by}{part}"
        page: Any = await fetch_json(url, visitor=self.visitor)
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
