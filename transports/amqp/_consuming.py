"""Consumers of one AMQP channel: deliveries written as frames, and their way into the outlet.

Rules of this file:
1. A delivery that is to be acknowledged stays its queue's: the outlet only forwards its bytes
   (`Outlet.forward`). One without acknowledgement becomes the outlet's, on the same account, until
   the kernel has its bytes.
2. While the outlet is blocked a consumer gets no more than `AHEAD_BYTES`: what a queue holds costs
   the relay no second copy, however much there is and whatever the prefetch.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from ...dataspace.queues import Channel, Delivery, PrefetchWindow
from ._field_tables import short_string
from ._frames import BASIC, BODY, END_BYTE, FRAME_BYTES, FRAME_HEAD, HEADER, METHOD, content_frames

if TYPE_CHECKING:
    from ...dataspace.exchanges import Message
    from ...dataspace.queues import Consumer
    from .._outlet import Outlet

AHEAD_BYTES: Final = 256 << 10
"""As much as one send takes (`SEND_BYTES`)."""

_DELIVER: Final = b"\x00\x3c\x00\x3c"
_FIXED_BYTES: Final = 4 + 1 + 8 + 1
"""Of a basic.deliver, beside its strings: class and method, the length of the consumer tag, the
delivery tag, whether it is redelivered."""

_TAG: Final = struct.Struct(">QB")
_CONTENT: Final = struct.Struct(">BHIHHQ")


class OutletRoom:
    """Room in one connection's outlet for deliveries.

    Attributes:
        handed: Bytes handed over since the outlet was last known to have sent everything.
    """

    __slots__ = ("_outlet", "_windows", "handed")

    def __init__(self, outlet: Outlet) -> None:
        self._outlet = outlet
        self._windows: dict[ConsumerWindow, None] = {}
        self.handed = 0

    def is_there(self, window: ConsumerWindow) -> bool:
        """Whether there is room; if not, the consumers of `window` go on when there is again."""
        if self.handed < AHEAD_BYTES:
            return True
        outlet = self._outlet
        if not outlet.blocked:
            outlet.send_now()
        if outlet.blocked:
            self._windows[window] = None
            return False
        self.handed = 0
        return True

    def flows(self) -> None:
        """Note that the outlet has sent everything."""
        self.handed = 0
        windows, self._windows = self._windows, {}
        for window in windows:
            window.resume()

    def close(self) -> None:
        """Let nobody go on any more."""
        self._windows.clear()


class ConsumerWindow(PrefetchWindow):
    """The prefetch window of one consumer, which the room in the outlet limits, too."""

    __slots__ = ("_room",)

    def __init__(self, items: int, room: OutletRoom) -> None:
        self._room = room
        super().__init__(items)

    @property
    def has_room(self) -> bool:
        """See `PrefetchWindow.has_room`."""
        return (not self.items or self.used_items < self.items) and (
            self._room.handed < AHEAD_BYTES or self._room.is_there(self)
        )

    def resume(self) -> None:
        """Let consumers that waited for room go on."""
        for queue in {consumer.queue: None for consumer in self.let_on()}:
            queue.work()


class OutletChannel(Channel):
    """The deliveries of one channel that are to be acknowledged.

    What goes back to its queue before it has been sent is not sent any more: the queue gives the
    very same loan to whoever has the message next.
    """

    __slots__ = ("_outlet",)

    def __init__(self, name: str, outlet: Outlet) -> None:
        super().__init__(name)
        self._outlet = outlet

    def take(self, tag: int) -> Delivery:
        """Take an outstanding delivery off, to be settled soon (`AmqpServer.settle_acked`)."""
        return self.unacked.pop(tag)

    def _refuse(self, deliveries: list[Delivery], *, requeue: bool, failed: bool) -> None:
        if deliveries and self._outlet.unsent:
            loans = {id(delivery.loan) for delivery in deliveries}
            self._outlet.withdraw_those(lambda loan: id(loan) in loans)
        super()._refuse(deliveries, requeue=requeue, failed=failed)


class ChannelConsumer:
    """One consumer of a channel.

    Attributes:
        tag: Its consumer tag.
        consumer: Its end at the queue; set when it has begun to consume.
    """

    __slots__ = (
        "_channel", "_clock", "_exchange", "_fixed", "_frame_size", "_head", "_key", "_outlet",
        "_prefix", "_room", "_tail", "consumer", "tag",
    )  # fmt: skip

    def __init__(
        self, tag: str, channel: int, outlet: Outlet, room: OutletRoom, frame_size: int
    ) -> None:
        self.tag = tag
        self.consumer: Consumer | None = None
        self._channel = channel
        self._outlet = outlet
        self._clock: Callable[[], float] = outlet.ledger.clock
        self._room = room
        self._frame_size = frame_size
        name = short_string(tag)
        self._prefix = _DELIVER + name
        self._fixed = _FIXED_BYTES + len(name) - 1
        # Of the last delivery: mostly the next one has come the same way.
        self._exchange: str | None = None
        self._key: str | None = None
        self._head = self._tail = b""

    def _remember(self, message: Message) -> None:
        """Make the parts of deliveries that depend on the exchange and the routing key."""
        self._exchange, self._key = message.exchange, message.routing_key
        names = short_string(message.exchange) + short_string(message.routing_key)
        size = self._fixed + len(names)
        self._head = FRAME_HEAD.pack(METHOD, self._channel, size) + self._prefix
        self._tail = names + END_BYTE

    def frames(self, tag: int, redelivered: bool, message: Message) -> tuple[bytes, bytes, bytes]:
        """Return the frames of a delivery in three parts; the second is the body, if in one frame.

        The last one is the octet at its end, or the rest of it.
        """
        if message.exchange is not self._exchange or message.routing_key is not self._key:
            self._remember(message)
        properties, body = message.properties, message.body
        method = self._head + _TAG.pack(tag, redelivered) + self._tail
        size = len(body)
        if not size or (self._frame_size and size > self._frame_size - FRAME_BYTES):
            rest = content_frames(self._channel, properties, body, self._frame_size)
            return method, b"", b"".join(rest)
        head = b"".join(
            (
                method,
                _CONTENT.pack(HEADER, self._channel, 12 + len(properties), BASIC, 0, size),
                properties,
                END_BYTE,
                FRAME_HEAD.pack(BODY, self._channel, size),
            )
        )
        return head, body, END_BYTE

    def deliver(self, delivery: Delivery) -> None:
        """Send a delivery that is to be acknowledged. The callback of its consumer."""
        message: Message = delivery.event
        delivery.event = None
        parts = self.frames(delivery.tag, delivery.redelivered, message)
        self._room.handed += delivery.message.size
        # Not one piece: until it is acknowledged the body would be there twice.
        delivery.loan.item = [*parts]
        self._outlet.forward(delivery.loan)

    def deliver_for_good(self, delivery: Delivery) -> None:
        """Send a delivery that nobody acknowledges."""
        message: Message = delivery.event
        data = b"".join(self.frames(delivery.tag, delivery.redelivered, message))
        size = len(data)
        self._room.handed += size
        loan = delivery.loan
        account = loan.account
        if loan.trace is None:
            account.borrow(1, size)
            self._outlet.hold(account, data, 1, size, self._clock())
        else:
            loan.continued(account.borrow, 1, size)
            loan.continued(self._outlet.hold, account, data, 1, size, self._clock())
