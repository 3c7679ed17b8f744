"""What is done with a holder that makes no progress while others wait on it."""

from __future__ import annotations

import enum


class StuckPolicy(enum.StrEnum):
    """What is done with a holder that makes no progress while others wait on it.

    With the last four the holder stays, and is *behind* from then on until it has caught up. Nobody
    waits on one that is behind: what it keeps is its own debt, and bounded (see `KEEP`).
    """

    WAIT = "wait"
    """It is waited for; the log says so once for each time its patience runs out."""
    DISCONNECT = "disconnect"
    """It is closed, and what it held is written off."""
    DROP_OLDEST = "drop_oldest"
    """It keeps the latest; what is older is dropped."""
    DROP_NEWEST = "drop_newest"
    """It keeps what it has; what comes is dropped while there is no room."""
    CONFLATE = "conflate"
    """It keeps the latest of each key; what that replaces is dropped."""
    SPILL = "spill"
    """What it has goes elsewhere, to disk, from where it comes back in order."""

    @property
    def relieves(self) -> bool:
        """Whether the holder stays and those who wait go on: `Holder.relieve`."""
        return self not in (StuckPolicy.WAIT, StuckPolicy.DISCONNECT)
