"""Fair shares of a common limit: no user may take so much that nothing is left for another."""

from __future__ import annotations

from typing import Final

GREED: Final = 8
"""The multiple of the free part that one user may have. One alone may take eight ninths of all, two
eight seventeenths each, and there is always something left for the next user.

Source: the dynamic thresholds of shared-memory switches (Choudhury and Hahne, 1998).
"""


def fits(mine: int, taken: int, most: int) -> bool:
    """Whether a user that has `mine` of the `taken` of at most `most` may have one more.

    With `mine` 0, also for callers without a user, it is only whether anything is free.
    """
    free = most - taken
    return free > 0 and (not mine or mine < GREED * free)
