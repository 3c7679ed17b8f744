"""Direct reply-to: answers that go to their consumer without a queue.

A client consumes from `amq.rabbitmq.reply-to`, and publishes requests with that as their reply-to,
on the same channel. The server puts an address of that consumer in its place, and whoever answers
publishes to the default exchange with the address as routing key. An answer is its publisher's debt
until the kernel has it; where the consumer has gone, it has no route.

Source: RabbitMQ's direct reply-to (rabbit_channel.erl of 3.10), and its texts.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any, Final

from ...accounts import Account, Holder, Recipient

if TYPE_CHECKING:
    from ...dataspace.exchanges import VirtualHost
    from ._channel import ServerChannel
    from ._consuming import ChannelConsumer

DIRECT: Final = "amq.rabbitmq.reply-to"
"""The queue to consume from, and the reply-to of requests."""

ADDRESSES: Final = DIRECT + "."
"""The beginning of the addresses of consumers."""

ADDRESS_BYTES: Final = 16
"""Random bytes of an address: who knows it may answer."""


class ReplyConsumer(Recipient):
    """The consumer of answers on one channel.

    Attributes:
        host: The virtual host of its client.
        address: Its address.
        consumer: Writes its deliveries.
    """

    __slots__ = ("_channel", "address", "consumer", "host")

    def __init__(
        self, host: VirtualHost, channel: ServerChannel, consumer: ChannelConsumer
    ) -> None:
        self.host = host
        self._channel = channel
        self.consumer = consumer
        self.address = ADDRESSES + secrets.token_urlsafe(ADDRESS_BYTES)

    @property
    def last_holder(self) -> Holder:
        return self._channel.session.outlet

    def hold(self, account: Account, item: Any, items: int, nbytes: int, now: float) -> None:
        """See `Recipient.hold`: pass an answer on to the outlet."""
        deliveries = self._channel.deliveries
        deliveries.last_tag += 1
        data = b"".join(self.consumer.frames(deliveries.last_tag, False, item))
        # The outlet holds it with its frames, which cost more.
        account.borrow(0, len(data) - nbytes)
        self._channel.session.outlet.hold(account, data, items, len(data), now)

    def ready(self) -> None:
        """See `Recipient.ready`."""
        self._channel.session.outlet.ready()
