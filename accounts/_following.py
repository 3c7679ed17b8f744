"""When what is looked at now and then is looked at next."""

from __future__ import annotations


def following(now: float, seconds: float) -> float:
    """Return the next multiple of `seconds` after `now`, both in seconds; later than `now`.

    All that goes by the same clock is looked at at the same moments then.
    """
    tick = (now // seconds + 1) * seconds
    # Of what a float cannot say, a tenth for example, the multiple that is now may be found again.
    return tick if tick - now > seconds / 1000 else tick + seconds
