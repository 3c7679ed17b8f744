"""Another relay of the cluster: what goes there, and what comes from there."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import attrs
import trio

from ..accounts import QuotaExceededError
from ..dataspace import TopicFilter
from ..dataspace._routes import Subscription
from ..dataspace.hops import IDLE_SECONDS, Hop, Landing, Seen, Shipment
from ..transports import LocalProtocolError, RemoteProtocolError
from ..transports._trace_label import label_of
from ._codec import Joiner, encode, in_parts
from ._interest import ALL
from ._wake import Wake

if TYPE_CHECKING:
    from ..accounts import Account, Ledger
    from ..accounts._turn import Router
    from ..dataspace import Dataspace
    from ..dataspace.hops import Path, Receipt
    from ..transports.nats import NatsClient
    from ._outbox import Outbox

logger = logging.getLogger("clearfunds.cluster")

LOOK: Final = 0.25
"""Seconds between two looks at who waits and who holds what, while something is under way: as
often as the watch over slow consumers looks."""
REPEAT: Final = 1.0
"""Seconds after which what was lost is sent again; twice as many after each time."""
REPEAT_AT_MOST: Final = 16.0
COALESCE: Final = 0.005
"""Seconds between two receipts at least: two hundred a second cost little."""
COALESCE_A_PARCEL: Final = 10e-6
"""So much longer for each parcel that is not settled."""
NOTHING: Final[frozenset[str]] = frozenset()
FOR_WANT_OF_ROOM: Final = -1
"""The page of a relay that gets everything, because there are too many kinds of filters."""

QOS: Final = 2
DEFAULT_MAX_PAYLOAD: Final = 1 << 20
"""Of NATS."""


class Peer:
    """Another relay, for as long as its lease and this relay's are held.

    Args:
        name: Its name.
        me: This relay's.
        number: A number that only grows with the lives of the two.
        nats: The connection.
        subject: The subject that it reads what this relay sends from.
        ledger, dataspace: This relay's.
        router: Publishes in it what comes.
        open_account, close_account: Opens an account for one of its origins, and closes it.
        patience: See `Hop`.
        returns: Whether its next life has what it has stored.
        seen: What has come from its earlier lives.
        flush: Sends the confirms of this relay's publishers.
        paths_of: See `Landing`.
        outbox: Stores what has to be stored before it goes there; None: nothing has.

    Attributes:
        returns: As above.
        hop: The holder of what goes there.
        landing: Where it comes from there.
        number: As above.
        resent: Items that were sent there again.
        left_at: When it went, if it is away.
    """

    def __init__(
        self,
        name: str,
        me: str,
        number: int,
        *,
        nats: NatsClient,
        subject: str,
        ledger: Ledger,
        dataspace: Dataspace,
        router: Router,
        open_account: Callable[[str, tuple[str, ...]], Account],
        close_account: Callable[[Account], object],
        patience: float,
        returns: bool,
        seen: Seen,
        flush: Callable[[], object],
        paths_of: Callable[[Account], tuple[Path, ...]],
        outbox: Outbox | None = None,
    ) -> None:
        self._flush = flush
        self._outbox = outbox
        self.returns = returns
        self.name = name
        self.number = number
        self._nats = nats
        self._subject = subject
        self._ledger = ledger
        self._dataspace = dataspace
        self._to_ship = Wake()
        self._to_answer = Wake()
        self._again = False
        self.hop = Hop(
            ledger,
            name,
            number,
            patience=patience,
            me=me,
            on_ready=self._to_ship.set,
        )
        self.hop.outbox = outbox
        self.landing = Landing(
            ledger,
            router,
            open_account,
            number,
            close_account=close_account,
            on_settled=self._to_answer.set,
            seen=seen,
            label=label_of,
            paths_of=paths_of,
        )
        self._filters: dict[str, Subscription] = {}
        self._pages: dict[int, frozenset[str]] = {}
        self._in_parts = trio.Lock()
        self._joiner = Joiner()
        self.resent = 0
        self.left_at = 0.0
        self._sent = 0
        self._scope = trio.CancelScope()
        self._nursery: trio.Nursery | None = None

    def __repr__(self) -> str:
        return f"<Peer {self.name}: {len(self.hop)} parcels there, {len(self.landing)} here>"

    # -- what it wants ----------------------------------------------------------------------------

    def wants(self, page: int, filters: frozenset[str]) -> None:
        """Let what matches the filters of a page go there, in place of what the page had before.

        One filter is on one page, but for the one for everything, which several may have.
        """
        before = self._pages.get(page, NOTHING)
        self._pages[page] = filters
        for text in filters - before:
            if text not in self._filters:
                self._subscribe(text)
        for text in before - filters:
            if not any(text in each for each in self._pages.values()) or text != ALL:
                self._unsubscribe(text)

    @property
    def filters(self) -> frozenset[str]:
        """The topic filters that go there."""
        return frozenset(self._filters)

    def _subscribe(self, text: str) -> None:
        try:
            subscription = Subscription(
                TopicFilter(text), self.hop, acked=self.hop, granted=QOS, consumer=self.hop
            )
            self._dataspace.routes.subscribe(subscription)
        except ValueError as exc:
            logger.warning("relay %s wants %r, which is no filter: %s", self.name, text, exc)
        except QuotaExceededError as exc:
            logger.warning("relay %s gets everything, because of %r: %s", self.name, text, exc)
            self.wants(FOR_WANT_OF_ROOM, frozenset({ALL}))
        else:
            self._filters[text] = subscription

    def _unsubscribe(self, text: str) -> None:
        subscription = self._filters.pop(text, None)
        if subscription is not None:
            self._dataspace.routes.unsubscribe(subscription)

    # -- what comes -------------------------------------------------------------------------------

    def take(self, data: bytes) -> None:
        """Take what it has sent."""
        try:
            message = self._joiner.take(data)
        except RemoteProtocolError as exc:
            logger.error("relay %s: %s", self.name, exc, extra={"event": "bad_relay"})
            return
        nursery = self._nursery
        # What was sent for another life of one of the two may still come.
        if message is None or nursery is None or message.epoch != self.number:
            return
        if message.life not in (0, self.number):
            return
        if not isinstance(message, Shipment):
            self.hop.receipt(message)
            self._flush()
            return
        for origin in self.landing.accept(message):
            nursery.start_soon(self.landing.serve, origin)
        self._to_answer.set()

    def resumed(self) -> None:
        """Send again what may have been lost with a connection."""
        self._again = True
        self._to_ship.set()
        self._to_answer.set()

    # -- what goes --------------------------------------------------------------------------------

    async def run(self) -> None:
        """Exchange with it until `leave` or `end` is called.

        Cancellation: one of the two has to be called then.
        """
        with self._scope:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                nursery.start_soon(self._ship)
                nursery.start_soon(self._answer)
                if self._outbox is not None and not self._scope.cancel_called:
                    self._outbox.attach(self.hop)

    def leave(self) -> None:
        """Note that it has gone and may come back: keep what asks for it, in the hop.

        Another `Peer` takes that over, or `end` ends it.
        """
        self.left_at = self._ledger.clock()
        self._scope.cancel()
        self._nursery = None
        self._detach()
        self.hop.leave()
        self.landing.close()

    def take_over(self, before: Peer) -> None:
        """Take over what was kept for it while it was away; end that."""
        for page, filters in before._pages.items():
            self.wants(page, filters)
        self.hop.take_over(before.hop)
        before.end()

    def end(self) -> None:
        """End it: that relay is no longer one of the cluster, or this one is not. Idempotent.

        What it has not finished is written off.
        """
        self._scope.cancel()
        self._nursery = None
        for text in list(self._filters):
            self._unsubscribe(text)
        self._detach()
        self.hop.close()
        self.landing.close()
        self._flush()

    def _detach(self) -> None:
        if self._outbox is not None:
            self._outbox.detach(self.hop)

    async def _ship(self) -> None:
        hop, clock = self.hop, self._ledger.clock
        greeted_at = repeated_at = -math.inf
        repeat = REPEAT
        waiting = False
        while True:
            await self._nats.wait_for_room()
            if hop.queue:
                shipment = hop.shipment()
                if shipment.parcels:
                    await self._send_shipment(shipment)
                    continue
            now = clock()
            if hop.progressed_at > repeated_at:
                repeat = REPEAT
            # What is sent after a loss is no progress: it waits there for what was lost.
            since = max(repeated_at, hop.progressed_at)
            # What is late is not sent again: a slow relay would get ever more, until NATS ends its
            # connection.
            if self._again or (hop.is_lost and now - since >= repeat):
                self._again = False
                for each in hop.again():
                    self.resent += sum(parcel.items for parcel in each.parcels)
                    await self._nats.wait_for_room()
                    await self._send_shipment(each)
                repeated_at = clock()
                repeat = min(2 * repeat, REPEAT_AT_MOST)  # it may be on its way still
            # While something is there, it has to know who waits, and to answer.
            looks = len(hop) > 0 or waiting or not hop.is_known
            if looks and now - greeted_at >= LOOK:
                hello = hop.hello()
                waiting = bool(hello.waiting)
                await self._send(hello)
                greeted_at = now
            await self._to_ship.wait(LOOK if looks else math.inf)

    async def _answer(self) -> None:
        named_at = -LOOK
        landing, clock = self.landing, self._ledger.clock
        while True:
            quiet = IDLE_SECONDS if landing.has_origins else math.inf
            if not await self._to_answer.wait(LOOK if len(landing) else quiet):
                landing.close_idle()
                if not len(landing):
                    continue
            await self._nats.wait_for_room()
            now = clock()
            names = now - named_at >= LOOK
            if names:
                named_at = now
            await self._send(landing.receipt(full=names))
            # With very many parcels a receipt costs more.
            await trio.sleep(COALESCE + len(landing) * COALESCE_A_PARCEL)

    async def _send_shipment(self, shipment: Shipment) -> None:
        """Send a shipment. A parcel that cannot be sent goes without its events, and is logged."""
        try:
            await self._send(shipment)
        except LocalProtocolError as exc:
            for parcel in shipment.parcels:
                if len(shipment.parcels) > 1:
                    await self._send_shipment(attrs.evolve(shipment, parcels=(parcel,)))
                    continue
                logger.error(
                    "%d items of %s are lost to relay %s: %s",
                    parcel.items, parcel.origin, self.name, exc,
                    extra={"event": "cannot_cross", "relay": self.name, "account": parcel.origin},
                )  # fmt: skip
                empty = attrs.evolve(parcel, events=())
                await self._send(attrs.evolve(shipment, parcels=(empty,)))

    async def _send(self, message: Shipment | Receipt) -> None:
        """Send a message.

        Raises:
            LocalProtocolError: It cannot be encoded, or is too large.
        """
        server = self._nats.server
        most = DEFAULT_MAX_PAYLOAD if server is None else server.max_payload
        data = encode(message)
        if len(data) <= most:
            await self._nats.publish(self._subject, data)
            return
        async with self._in_parts:  # not in between those of another message
            self._sent += 1
            for part in in_parts(data, most, self._sent):
                await self._nats.publish(self._subject, part)
