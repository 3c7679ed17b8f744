"""The next moment of a periodic check."""

from __future__ import annotations


def following(now: float, seconds: float) -> float:
    """Return the next multiple of `seconds` after `now`, both in seconds; later than `now`.

    So all checks by the same clock happen at the same moments.
    """
    tick = (now // seconds + 1) * seconds
    # For periods that are not exact in floats, a tenth for example, `tick` may equal `now`.
    return tick if tick - now > seconds / 1000 else tick + seconds
