"""The parts of a cluster beside the exchange of publications."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import attrs
import trio

if TYPE_CHECKING:
    from ..transports.nats import JetStream, NatsClient


@attrs.frozen
class Place:
    """Where a relay's cluster is."""

    nats: NatsClient
    data: NatsClient
    """Another connection, for what is much: renewals of the lease must not stand behind it."""
    js: JetStream
    cluster: str
    """The cluster's name."""
    name: str
    """The relay's."""
    replicas: int
    """On how many servers its buckets lie."""


class Companion(Protocol):
    """A part of a cluster that runs beside the exchange of publications."""

    async def run(
        self, place: Place, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> object:
        """Run until cancelled; `started` when the relay may serve its clients.

        Raises:
            TransportError: Before it has started.
        """
        ...
