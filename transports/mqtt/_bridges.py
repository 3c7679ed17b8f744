"""A bridge: another server that connects as a client, and says so in its CONNECT (`BRIDGE_LEVEL`).

It carries on what it is sent to clients of its own, and what those publish it publishes here. So it
is not sent its own publications again, which would go round without end, and RETAIN stays as it was
published, so that what is retained here is retained there. In MQTT 5 bridges ask for both with each
subscription (No Local, Retain As Published); with 3.1.1 and 3.1 the bit in their CONNECT does.
Source: mosquitto, `try_private` in mosquitto.conf(5).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import attrs

from ...accounts import Account
from ...dataspace import Batch, Publication
from ._framing import Framing
from ._options import NO_LOCAL, RETAIN_AS_PUBLISHED

BRIDGE_OPTIONS: Final = NO_LOCAL | RETAIN_AS_PUBLISHED
"""The options of each of a bridge's subscriptions."""


def is_nobodys(_: Account) -> bool:
    """Return that an account pays for nothing that a client publishes: it has none yet."""
    return False


class Bridge(Framing):
    """What a bridge with MQTT 3.1.1 or 3.1 gets, and in which form; as `Mqtt5` for MQTT 5.

    Attributes:
        is_own: Tells whether an account pays for what the bridge publishes. To be set when its
            account is open.
    """

    __slots__ = ("is_own",)

    takes_runs: Final = False
    """Who has published a run is looked at."""
    max_packet_size: Final = None

    def __init__(self, wall: Callable[[], float]) -> None:
        super().__init__(wall)
        self.is_own: Callable[[Account], bool] = is_nobodys

    def select(self, account: Account, publication: Publication) -> Publication | None:
        """See `Mqtt5.select`."""
        if publication.retain:
            return publication
        if self.is_own(account):
            return None
        return attrs.evolve(publication, retain=True) if publication.was_retained else publication

    def frame_run(self, account: Account, batch: Batch) -> tuple[bytes, int, int]:
        """See `Mqtt5.frame_run`."""
        if self.is_own(account):
            return b"", 0, 0
        return batch.raw, batch.count, batch.nbytes
