"""A message of AMQP 0-9-1: the event that lies in queues; and a run of them."""

from __future__ import annotations

from collections.abc import Mapping

import attrs


@attrs.define(slots=True, eq=False)
class Message:
    """One message: published to an exchange with a routing key.

    The queues that it reaches hold this object as their event, and so nobody changes it. (attrs
    would see to that, but then it takes three times as long to make one.)
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


@attrs.define(slots=True, eq=False)
class MessageRun:
    """Messages that came one after the other and differ in their bodies alone."""

    first: Message
    """The first of them, with what they have in common."""
    bodies: list[bytes]
    """The body of each, the first one's too."""
    sizes: list[int] = attrs.field(init=False)
    """The bytes that each is charged for."""
    nbytes: int = attrs.field(init=False)
    """The bytes that all are charged for."""

    def __attrs_post_init__(self) -> None:
        common = self.first.nbytes - len(self.first.body)
        self.sizes = [common + len(body) for body in self.bodies]
        self.nbytes = sum(self.sizes)

    @property
    def count(self) -> int:
        """The number of messages."""
        return len(self.bodies)

    @property
    def expiration(self) -> float | None:
        """Seconds that each of them may wait; None: any time."""
        return self.first.expiration

    @property
    def persistent(self) -> bool:
        """Whether they must survive a restart, in a durable queue."""
        return self.first.persistent

    def events(self) -> list[Message]:
        """Return the messages."""
        first = self.first
        exchange, key, properties = first.exchange, first.routing_key, first.properties
        persistent, priority, expiration = first.persistent, first.priority, first.expiration
        return [
            Message(exchange, key, properties, body, persistent, expiration, None, priority)
            for body in self.bodies
        ]
