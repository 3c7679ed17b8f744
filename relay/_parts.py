"""The parts of a relay that another program replaces by its own.

The relay makes queues, subscriptions of readers of ranges, and the places of queued messages by
these; each side has more of them (`Server.make_outlet`, `MqttServer.make_session`). `experiments/`
runs other schemes of flow control and of paging through them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import attrs

from ..accounts import Account
from ..dataspace.queues import BackingFactory, SteadyBacking
from ..ranges.log import RangeSubscription
from ..transports._server import Server
from ..transports.mqtt.server._persistent_session import SessionQueue


@attrs.frozen(kw_only=True)
class Parts:
    """Makes the parts of one relay; those that are not given are the relay's own."""

    queue: Callable[..., SessionQueue] = SessionQueue
    """Makes the queue of a persistent session."""
    backing: BackingFactory = SteadyBacking
    """Makes the paging policy of each queue."""
    subscription: Callable[..., RangeSubscription] = RangeSubscription
    """Makes a subscription of readers of ranges."""
    on_side: Callable[[Server[Any, Any]], object] | None = None
    """Called with each side of the relay, before anybody connects."""


PartsMaker: TypeAlias = Callable[[Account], Parts]
"""Called with the account above all connections' accounts, which has the relay's ledger, before
anything is restored."""
