"""Another relay of the cluster: what goes there, and what comes from there."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import trio

from ..accounts import QuotaExceededError
from ..dataspace import TopicFilter
from ..dataspace._routes import Subscription
from ..dataspace.hops import Hop, Landing, Shipment
from ..transports import RemoteProtocolError
from ._codec import Joiner, encode, in_parts
from ._interest import ALL
from ._wake import Wake

if TYPE_CHECKING:
    from ..accounts import Account, Ledger
    from ..accounts._turn import Router
    from ..dataspace import Dataspace
    from ..dataspace.hops import Receipt
    from ..transports.nats import NatsClient

logger = logging.getLogger("clearfunds.cluster")

LOOK: Final = 0.25
"""Seconds between two looks at who waits and who holds what, while something is under way: as
often as the watch over slow consumers looks."""
REPEAT: Final = 1.0
"""Seconds after which what was not received is sent again."""
COALESCE: Final = 0.005
"""Seconds between two receipts at least: two hundred a second cost little."""

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
        open_account: Opens an account for one of its origins.
        patience: See `Hop`.

    Attributes:
        hop: The holder of what goes there.
        landing: Where it comes from there.
        resent: Items that were sent there again.
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
        patience: float,
    ) -> None:
        self.name = name
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
            opens_rings=name < me,
            on_ready=self._to_ship.set,
        )
        self.landing = Landing(ledger, router, open_account, number, on_settled=self._to_answer.set)
        self._filters: dict[str, Subscription] = {}
        self._joiner = Joiner()
        self.resent = 0
        self._sent = 0
        self._scope = trio.CancelScope()
        self._nursery: trio.Nursery | None = None

    def __repr__(self) -> str:
        return f"<Peer {self.name}: {len(self.hop)} parcels there, {len(self.landing)} here>"

    # -- what it wants ----------------------------------------------------------------------------

    def wants(self, filters: frozenset[str]) -> None:
        """Let what matches these filters go there, and nothing else."""
        routes = self._dataspace.routes
        for text in self._filters.keys() - filters:
            routes.unsubscribe(self._filters.pop(text))
        for text in filters - self._filters.keys():
            if ALL[0] in self._filters and ALL[0] in filters:
                break  # it gets everything
            self._subscribe(text)

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
            if ALL[0] not in self._filters:
                self._subscribe(ALL[0])
        else:
            self._filters[text] = subscription

    # -- what comes -------------------------------------------------------------------------------

    def take(self, data: bytes) -> None:
        """Take what it has sent."""
        try:
            message = self._joiner.take(data)
        except RemoteProtocolError as exc:
            logger.error("relay %s: %s", self.name, exc, extra={"event": "bad_relay"})
            return
        nursery = self._nursery
        if message is None or nursery is None:
            return
        if not isinstance(message, Shipment):
            self.hop.receipt(message)
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
        """Exchange with it until `end` is called.

        Cancellation: as `end`.
        """
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    self._nursery = nursery
                    nursery.start_soon(self._ship)
                    nursery.start_soon(self._answer)
        finally:
            self.end()

    def end(self) -> None:
        """End it: that relay is no longer one of the cluster, or this one is not. Idempotent.

        What it has not finished is written off.
        """
        self._scope.cancel()
        self._nursery = None
        self.wants(frozenset())
        self.hop.close()
        self.landing.close()

    async def _ship(self) -> None:
        hop = self.hop
        said = greeted_at = received_at = -REPEAT
        waiting = False
        while True:
            await self._nats.wait_for_room()
            shipment = hop.shipment()
            if shipment.parcels:
                await self._send(shipment)
                greeted_at = self._ledger.clock()
                waiting = bool(shipment.waiting)
                continue
            now = self._ledger.clock()
            received_at = max(received_at, hop.progressed_at)
            if self._again or (hop.unreceived_items and now - max(said, received_at) >= REPEAT):
                self._again = False
                said = now
                for each in hop.again():
                    self.resent += sum(parcel.items for parcel in each.parcels)
                    await self._nats.wait_for_room()
                    await self._send(each)
            # While something is there, it has to know who waits, and to answer.
            looks = len(hop) > 0 or waiting or not hop.is_known
            if looks and now - greeted_at >= LOOK:
                shipment = hop.hello()
                waiting = bool(shipment.waiting)
                await self._send(shipment)
                greeted_at = now
            await self._to_ship.wait(LOOK if looks or hop.unreceived_items else float("inf"))

    async def _answer(self) -> None:
        named_at = -LOOK
        landing = self.landing
        while True:
            await self._to_answer.wait(LOOK if len(landing) else float("inf"))
            await self._nats.wait_for_room()
            now = self._ledger.clock()
            names = now - named_at >= LOOK
            if names:
                named_at = now
            await self._send(landing.receipt(names=names))
            await trio.sleep(COALESCE)

    async def _send(self, message: Shipment | Receipt) -> None:
        server = self._nats.server
        most = DEFAULT_MAX_PAYLOAD if server is None else server.max_payload
        self._sent += 1
        for part in in_parts(encode(message), most, self._sent):
            await self._nats.publish(self._subject, part)
