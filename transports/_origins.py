"""Origins of web pages that may connect over WebSocket [RFC 6454], [RFC 6455 section 10.2].

A browser lets any page connect to anything that it can reach itself, this machine's own relay too,
and sends the page's origin in `Origin`. Clients that are no browsers send none.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import Final

from ..access._hosts import host_of, is_own
from ._listener import ListenURLError

_ORIGIN: Final = re.compile(
    r"(?P<scheme>[a-z][a-z0-9+.-]*)://([a-z0-9._-]+|\[[0-9a-f:.]+\])(:(?P<port>[0-9]{1,5}))?"
)
"""As browsers write them [RFC 6454 section 6.2]: names that are not ASCII in punycode."""

_USUAL_PORTS: Final = {"http": "80", "https": "443"}
"""Default ports, which browsers leave out."""


ANY_ORIGIN: Final = "*"
"""Stands for all origins."""


def origins_of(given: Iterable[str]) -> tuple[str, ...]:
    """Return origins as browsers write them.

    Raises:
        ListenURLError: If one is none, so that no browser would ever send it.
    """
    origins = tuple(each.lower() for each in given)
    for origin in origins:
        if origin == ANY_ORIGIN:
            continue
        found = _ORIGIN.fullmatch(origin)
        if found is None or found["port"] == _USUAL_PORTS.get(found["scheme"], "none"):
            msg = (
                f"{origin!r} is no origin: write https://HOST, with :PORT unless it is the usual "
                "one, and nothing more"
            )
            raise ListenURLError(msg)
    return origins


def may_connect(origin: str, host: str | None, origins: Collection[str]) -> bool:
    """Whether pages of an origin may connect.

    Args:
        origin: As the browser sends it; `null` for pages that have none, as from files.
        host: The name and port by which the browser knows the relay; None: it does not say.
        origins: The allowed origins; none: those of the same host, by whatever port.
    """
    if origins:
        return ANY_ORIGIN in origins or origin.lower() in origins
    page, ours = host_of(origin.partition("://")[2]), host_of(host or "")
    return page is not None and page == ours and is_own(page)
