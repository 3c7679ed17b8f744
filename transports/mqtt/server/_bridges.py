"""A bridge: another server that connects as a client, and says so in its CONNECT (`BRIDGE_LEVEL`).

A bridge forwards messages in both directions between this server and its own clients. So this
server does not send a bridge its own publications: they would circulate without end. It leaves
RETAIN as published, so that both servers retain the same messages. In MQTT 5 a bridge asks for both
with each subscription (No Local, Retain As Published); in 3.1.1 and 3.1 a bit in its CONNECT does.
Source: mosquitto, `try_private` in mosquitto.conf(5).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import attrs

from ....accounts import Account
from ....dataspace import Batch, Publication
from ..codec._options import NO_LOCAL, RETAIN_AS_PUBLISHED
from ._framing import Framing

BRIDGE_OPTIONS: Final = NO_LOCAL | RETAIN_AS_PUBLISHED
"""The options of each of a bridge's subscriptions."""


def is_nobodys(_: Account) -> bool:
    """Return False: the client has no account yet, so no account pays for its publications."""
    return False


class Bridge(Framing):
    """Selects and frames publications for a bridge of MQTT 3.1.1 or 3.1, as `Mqtt5` does for 5.

    Attributes:
        is_own: Tells whether an account pays for the bridge's publications. Set it when the
            account is open.
    """

    __slots__ = ("is_own",)

    takes_runs: Final = False
    """A run's publisher has to be checked."""
    max_packet_size: Final = None

    def __init__(self, wall: Callable[[], float]) -> None:
        super().__init__(wall)
        self.is_own: Callable[[Account], bool] = is_nobodys

    def select(self, account: Account, publication: Publication) -> Publication | None:
        """Implement `Mqtt5.select` with the options of a bridge."""
        if publication.retain:
            return publication
        if self.is_own(account):
            return None
        return attrs.evolve(publication, retain=True) if publication.was_retained else publication

    def frame_run(self, account: Account, batch: Batch) -> tuple[bytes, int, int]:
        """Implement `Mqtt5.frame_run`: a run goes unchanged, unless it is the bridge's own."""
        if self.is_own(account):
            return b"", 0, 0
        return batch.raw, batch.count, batch.nbytes
