"""Outboxes: QoS 2 publications for other relays, stored here until those are responsible for them.

A client with a persistent session sends a QoS 2 publication again until it has its PUBREC, also to
the next life of this relay. If another relay had it by then, it would get it twice. So it is put
into a queue in this relay's store, in one batch with its packet identifier and with what the
sessions here get of it; then the client has its PUBREC. The queue sends it to the other relay until
that has stored it. Its number in the queue stays the same, so the other relay knows it again.

Source: the pattern of transactional outbox and idempotent consumer.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from ..accounts import NO_LIMIT
from ..dataspace import Publication
from ..dataspace.hops import Identity, Sending, above
from ..dataspace.queues import (
    Channel,
    Delivery,
    PrefetchWindow,
    Queue,
    QueueSettings,
    is_exactly_once,
)
from ..persistence._writes import Writes

if TYPE_CHECKING:
    from ..accounts import Account, Confirm, Ledger
    from ..dataspace.hops import Hop
    from ..persistence import Shelves

logger = logging.getLogger("clearfunds.cluster")

PREFIX: Final = "outbox/"
"""Before the other relay's name: of the queue in the store, of its account, and of its number."""
UNDER_WAY: Final = 1_000
"""Messages of an outbox under way at most: the prefetch that RabbitMQ's federation has by default
(`prefetch-count` of an upstream)."""
UNDER_WAY_BYTES: Final = 1 << 20
KNOWN_ORIGINS: Final = 100_000
"""Messages in an outbox of which it is known who has published them."""


class Outbox:
    """The outbox for one other relay.

    Args:
        relay: The other relay's name.
        number: A number that no earlier outbox for that relay had.
        shelves: The store.
        ledger: The books.
        at_rest: The account above the queue's.
    """

    def __init__(
        self, relay: str, number: int, shelves: Shelves, ledger: Ledger, at_rest: Account
    ) -> None:
        self.relay = relay
        self._number = -number
        self._shelves = shelves
        self._shelf = shelves.shelf(PREFIX + relay)
        self._queue = Queue(
            ledger,
            PREFIX + relay,
            account=ledger.open(PREFIX + relay, limit=NO_LIMIT, parent=at_rest),
            settings=QueueSettings(durable=True, delivery_limit=None),
            shelf=self._shelf,
        )
        # Otherwise a crash could undo one that the other relay has, and the next would be taken
        # for it.
        self._queue.durable_first = is_exactly_once
        self._shelf.recover(self._queue)
        self._hop: Hop | None = None
        self._channel: Channel | None = None
        # Those who have published what is in the queue, by its number there.
        self._origins: dict[int, tuple[str, tuple[str, ...]]] = {}
        # Numbers that are under way, those whose erasure is not durable, and the next to be sent;
        # 0: none has been yet.
        self._under_way: set[int] = set()
        self._erasing: set[int] = set()
        self._next = 0

    def __repr__(self) -> str:
        return f"<Outbox for {self.relay}: {len(self._queue)} ready, {len(self._under_way)} sent>"

    def __len__(self) -> int:
        """Return the number of messages that the other relay is not responsible for."""
        return len(self._queue) + self._queue.unacked

    def __bool__(self) -> bool:
        return True

    # -- for the hop ------------------------------------------------------------------------------

    def takes(self, event: Any, confirm: Confirm) -> bool:
        """See `Outbox.takes`: QoS 2, with a packet identifier to store."""
        return isinstance(confirm, Writes) and isinstance(event, Publication) and event.qos > 1

    def hold(self, account: Account, item: Any, items: int, nbytes: int, now: float) -> None:
        """See `Holder.hold`."""
        if len(self._origins) < KNOWN_ORIGINS:
            self._origins[self._queue.next_seq] = account.name, above(account)
        self._queue.hold(account, item, items, nbytes, now)

    def ready(self) -> None:
        """See `Recipient.ready`."""
        self._queue.ready()

    @property
    def erased(self) -> Identity | None:
        """The identity of the first event that may still come; None: that is not known."""
        following = self._next
        if not following:
            return None
        left = (min(each, default=following) for each in (self._under_way, self._erasing))
        return self._number, min(following, *left)

    # -- sending ----------------------------------------------------------------------------------

    def attach(self, hop: Hop) -> None:
        """Send by a hop from now on, which is there."""
        self._hop = hop
        self._begin()

    def detach(self, hop: Hop | None) -> None:
        """Send no more by a hop: what was sent, and not taken, will be sent again. Idempotent."""
        if hop is self._hop:
            self._hop = None
            self._end()

    def tick(self, now: float) -> None:
        """Do what is due at `now`, on the ledger's clock."""
        self._queue.tick(now)
        self._begin()

    def _begin(self) -> None:
        if self._hop is None or self._channel is not None or self._queue.deleted:
            return
        self._channel = channel = Channel(self._queue.name)
        self._queue.consume(
            partial(self._send, channel),
            window=PrefetchWindow(UNDER_WAY, UNDER_WAY_BYTES),
            channel=channel,
            on_cancelled=lambda _: self._end(),
        )

    def _end(self) -> None:
        channel, self._channel = self._channel, None
        if channel is None:
            return
        if self._under_way:
            self._next = min(self._next, *self._under_way)  # the queue delivers them again in order
            self._under_way.clear()
        channel.close()

    def _send(self, channel: Channel, delivery: Delivery) -> None:
        hop = self._hop
        if hop is None or self._channel is not channel:
            return  # the channel is being closed
        seq = delivery.message.seq
        self._under_way.add(seq)
        self._next = seq + 1
        account = delivery.loan.account
        origin = self._origins.get(seq)
        name, higher = (account.name, above(account)) if origin is None else origin
        sending = Sent(self, channel, delivery.tag, (self._number, seq), name, higher)
        with delivery.turn() as turn:
            turn.confirm = sending
            turn.send(hop, delivery.event, nbytes=delivery.loan.bytes)
        delivery.event = None
        sending.taken()  # the turn's own part

    def taken(self, channel: Channel, tag: int, seq: int) -> None:
        """Erase a message that the other relay has taken responsibility for."""
        if channel is not self._channel or tag not in channel.unacked:
            return  # it will be sent again
        self._origins.pop(seq, None)
        self._under_way.discard(seq)
        self._erasing.add(seq)
        channel.ack(tag)
        self._shelves.when_durable(partial(self._erasing.discard, seq))

    def lost(self, channel: Channel) -> None:
        """Stop sending, until the next tick: the hop has given something up."""
        if channel is self._channel:
            self._end()

    # -- its end ----------------------------------------------------------------------------------

    def close(self) -> None:
        """Leave it as it is in the store: this relay stops."""
        self.detach(self._hop)
        self._queue.close()
        self._queue.account.close()

    def delete(self) -> int:
        """Delete it: the other relay does not come back. Return how many messages are lost."""
        self.detach(self._hop)
        left = len(self)
        self._queue.delete()
        self._shelves.drop(self._shelf)
        self._queue.account.close()
        return left


class Sent(Sending):
    """A message of an outbox under way."""

    __slots__ = ("_channel", "_outbox", "_tag")

    def __init__(
        self,
        outbox: Outbox,
        channel: Channel,
        tag: int,
        identity: Identity,
        origin: str,
        higher: tuple[str, ...],
    ) -> None:
        super().__init__(identity, origin, higher)
        self._outbox = outbox
        self._channel = channel
        self._tag = tag

    def taken(self) -> None:
        self.expected -= 1
        if not self.expected:
            self._outbox.taken(self._channel, self._tag, self.identity[1])

    def lost(self) -> None:
        self._outbox.lost(self._channel)


class Outboxes:
    """The outboxes of a relay.

    Args:
        shelves: Its store.
        ledger: The books.
        at_rest: The account above those of the queues.
    """

    def __init__(self, shelves: Shelves, ledger: Ledger, at_rest: Account) -> None:
        self._shelves = shelves
        self._ledger = ledger
        self._at_rest = at_rest
        self._open: dict[str, Outbox] = {}
        for key, value in shelves.store.values(PREFIX).items():
            relay = key.removeprefix(PREFIX)
            try:
                self._open[relay] = self._make(relay, int(value))
            except ValueError:
                logger.error(
                    "%r in the store is no number of an outbox: %r", key, value,
                    extra={"event": "unreadable", "key": key},
                )  # fmt: skip

    def of(self, relay: str) -> Outbox:
        """Return the outbox for a relay; it is made if it is not there."""
        outbox = self._open.get(relay)
        if outbox is None:
            # Two outboxes in a row have different numbers, also over a restart with a new store.
            number = time.time_ns()
            self._shelves.set(PREFIX + relay, b"%d" % number)
            outbox = self._open[relay] = self._make(relay, number)
        return outbox

    def _make(self, relay: str, number: int) -> Outbox:
        return Outbox(relay, number, self._shelves, self._ledger, self._at_rest)

    def forget(self, relay: str) -> int:
        """Delete the outbox for a relay that does not come back; return how much is lost."""
        outbox = self._open.pop(relay, None)
        if outbox is None:
            return 0
        self._shelves.delete(PREFIX + relay)
        return outbox.delete()

    def forget_others(self, relays: Collection[str]) -> None:
        """Delete the outboxes for relays that are not among these."""
        for relay in self._open.keys() - set(relays):
            left = self.forget(relay)
            if left:
                logger.warning(
                    "relay %s is no longer one of the cluster: %d stored items for it are "
                    "written off",
                    relay, left,
                    extra={"event": "not_back", "relay": relay, "items": left},
                )  # fmt: skip

    def tick(self, now: float) -> None:
        """Do what is due at `now`, on the ledger's clock."""
        for outbox in self._open.values():
            outbox.tick(now)

    def close(self) -> None:
        """Leave them as they are in the store."""
        for outbox in self._open.values():
            outbox.close()
