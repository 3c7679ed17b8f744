"""Sizes as people write them."""

from __future__ import annotations

import re
from typing import Final

_UNITS: Final = {"": 1, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30}
_SIZE: Final = re.compile(r"([0-9][0-9_]*) ?([KMG]iB|)", re.IGNORECASE)


def parse_size(text: str) -> int:
    """Parse a number of bytes: `8388608`, `8MiB`.

    Raises:
        ValueError: It is none.
    """
    match = _SIZE.fullmatch(text)
    if match is None:
        msg = f'"{text}" is not a size: a whole number of bytes, or of KiB, MiB or GiB ("8MiB")'
        raise ValueError(msg)
    return int(match[1]) * _UNITS[match[2].upper()]
