"""The one form of a duration that people read: in sentences, in a terminal, on the live page."""

import math
from typing import Final

SECONDS_BELOW: Final = 99.95
"""Below it there are seconds alone, with one decimal."""

_UNITS: Final = ((86_400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s"))
# The seconds of a unit and its name, and of the next smaller one.


def duration(seconds: float) -> str:
    """Return a duration: `12.3 s`, `4 min 10 s`, `2 h 5 min`, `3 d 1 h`."""
    if seconds < SECONDS_BELOW:
        return f"{seconds:.1f} s"
    whole = math.floor(seconds + 0.5)
    unit, name, below, part = next(each for each in _UNITS if whole >= each[0])
    rest = whole % unit // below
    return f"{whole // unit} {name} {rest} {part}" if rest else f"{whole // unit} {name}"


def about(seconds: float) -> str:
    """Return the same without decimals: `12 s`."""
    whole = math.floor(seconds + 0.5)
    return f"{whole} s" if whole < SECONDS_BELOW else duration(whole)
