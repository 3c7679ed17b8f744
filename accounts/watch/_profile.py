"""Profiles: what a server does about slow consumers, in one word."""

from __future__ import annotations

import enum
from typing import Final

from ._stuck_policy import StuckPolicy

DEFAULT_PATIENCE = 20.0
"""Slow-consumer timeout in seconds. Twice NATS's write deadline (10 s), a third of Redis's soft
limit (60 s)."""

SPILL_PATIENCE = 0.25
"""Seconds until a slow consumer's backlog is spilled, under `Profile.BALANCED`. Looks are as far
apart, so publishers wait for half a second at most. A burst, or a pause for the consumer's garbage,
passes by backpressure alone."""


HORIZON: Final = 90
"""Number of patiences within which the debt must be cleared at the present rate. With the default
of twenty seconds it is half an hour, RabbitMQ's `consumer_timeout`."""

SPILL_HORIZON: Final = 2
"""The same where the policy is to spill: nothing is lost by it, so nobody need wait for long."""


class Profile(enum.StrEnum):
    """What comes first when a consumer is slow: all three, no loss, or no delay.

    Each is a policy with a patience: give both to a holder, or to `Dataspace.subscribed`.
    """

    BALANCED = "balanced"
    """Publishers wait for half a second at most; then the slow consumer's backlog is spilled, and
    comes back in order. Nothing is lost while there is room; without it publishers wait again."""
    LOSSLESS = "lossless"
    """Publishers wait for the whole patience; then the slow consumer is disconnected."""
    LIVE = "live"
    """Nobody waits for a slow consumer: it keeps the latest, and older messages are dropped."""

    @classmethod
    def _missing_(cls, value: object) -> Profile | None:
        msg = f"{value!r} is no profile; choose of {', '.join(cls)}"
        raise ValueError(msg)

    @property
    def policy(self) -> StuckPolicy:
        """The policy for slow consumers."""
        return _PARTS[self][0]

    @property
    def patience(self) -> float:
        """The patience: seconds without progress, while others wait."""
        return _PARTS[self][1]


_PARTS = {
    Profile.BALANCED: (StuckPolicy.SPILL, SPILL_PATIENCE),
    Profile.LOSSLESS: (StuckPolicy.DISCONNECT, DEFAULT_PATIENCE),
    Profile.LIVE: (StuckPolicy.DROP_OLDEST, 0.0),
}
