"""Numbers in what a server sends."""

from __future__ import annotations

from typing import Final

from ..._errors import RemoteProtocolError

MAX_DIGITS: Final = 20
"""Those of the largest number of 64 bits. Python refuses, or takes its time for, thousands."""


def number(text: str | bytes) -> int:
    """Return a number without a sign.

    Raises:
        RemoteProtocolError: It is none, or has too many digits.
    """
    if not (text.isascii() and text.isdigit() and len(text) <= MAX_DIGITS):
        raise RemoteProtocolError(f"{text[:40]!r} is no number")
    return int(text)
