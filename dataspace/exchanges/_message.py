"""A message of AMQP 0-9-1: the event that lies in queues."""

from __future__ import annotations

from collections.abc import Mapping

import attrs


@attrs.frozen(slots=True, eq=False)
class Message:
    """One message: published to an exchange with a routing key.

    The queues that it reaches hold this object, unchanged, as their event.
    """

    exchange: str
    """The exchange that it was published to; "" is the default exchange."""
    routing_key: str
    """The routing key that it was published with."""
    properties: bytes
    """AMQP's property flags and property list, as they came: opaque here, see `Properties`."""
    body: bytes
    """Application data."""
    persistent: bool = False
    """Whether it must survive a restart, in a durable queue: delivery mode 2."""
    expiration: float | None = None
    """Seconds that it may wait in a queue; None: any time. From the property of that name."""
    headers: Mapping[str, object] | None = None
    """Its header table, where somebody has parsed it; None: look into `properties`."""
    priority: int = 0
    """Its priority: handed on, and otherwise without effect."""
    more_keys: tuple[str, ...] = ()
    """Further routing keys, of the sender-selected distribution: CC and BCC headers."""

    @property
    def nbytes(self) -> int:
        """The bytes that it is charged for: body, properties, exchange and routing key."""
        return len(self.body) + len(self.properties) + len(self.exchange) + len(self.routing_key)
