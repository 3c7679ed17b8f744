"""Policies for slow consumers: holders that make no progress while readers wait on them."""

from __future__ import annotations

import enum


class StuckPolicy(enum.StrEnum):
    """Policy for a slow consumer: a holder that makes no progress while readers wait on it.

    With the last four the holder stays, and is *behind* (lagging) until it has caught up. No reader
    waits on a lagging holder: its backlog is its own debt, and bounded (see `RETAIN_LIMIT`).
    """

    WAIT = "wait"
    """Wait for it; the log says so once for each time its patience runs out."""
    DISCONNECT = "disconnect"
    """Close it, and write off its messages."""
    DROP_OLDEST = "drop_oldest"
    """Keep the latest messages; drop older ones."""
    DROP_NEWEST = "drop_newest"
    """Keep the messages it has; drop new ones while there is no room."""
    CONFLATE = "conflate"
    """Keep the latest message of each key (last-value cache); drop those it replaces."""
    SPILL = "spill"
    """Spill its messages to disk or memory; they come back from there in order."""

    @classmethod
    def _missing_(cls, value: object) -> StuckPolicy | None:
        words = ", ".join(cls)
        msg = f"{value!r} is no policy for slow consumers; choose of {words}"
        if value in ("balanced", "lossless", "live"):
            msg += f". It is a profile, a policy with a patience: Profile({value!r}) has both"
        raise ValueError(msg)

    @property
    def relieves(self) -> bool:
        """Whether the holder stays and the readers that wait go on: `Holder.relieve`."""
        return self not in (StuckPolicy.WAIT, StuckPolicy.DISCONNECT)
