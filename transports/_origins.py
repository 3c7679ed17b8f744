"""Origins: whose web pages may connect over WebSocket [RFC 6454], [RFC 6455 section 10.2]."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from ._listener import ListenURLError

_ORIGIN: Final = re.compile(
    r"(?P<scheme>[a-z][a-z0-9+.-]*)://([a-z0-9._-]+|\[[0-9a-f:.]+\])(:(?P<port>[0-9]{1,5}))?"
)
"""As browsers write them [RFC 6454 section 6.2]: names that are not ASCII in punycode."""

_USUAL_PORTS: Final = {"http": "80", "https": "443"}
"""Browsers leave them out."""


def origins_of(given: Iterable[str]) -> tuple[str, ...]:
    """Return origins as browsers write them.

    Raises:
        ListenURLError: If one is none, so that no browser would ever send it.
    """
    origins = tuple(each.lower() for each in given)
    for origin in origins:
        found = _ORIGIN.fullmatch(origin)
        if found is None or found["port"] == _USUAL_PORTS.get(found["scheme"], "none"):
            msg = (
                f"{origin!r} is no origin: write https://HOST, with :PORT unless it is the usual "
                "one, and nothing more"
            )
            raise ListenURLError(msg)
    return origins
