"""Relays whose store is in JetStream are stood in for when they have gone.

A relay that has gone leaves its sessions, and what others keep for it. One of the relays that are
there runs a relay of its name then, with its store, but without listeners: the clients of those
sessions come by any relay (`_homes.py`). When the real one is back it asks for its name, and the
stand-in ends.

All choose the same relay, each for itself: the first in an order by a checksum that is another one
for each name (rendezvous hashing). The next one waits a little longer, and so on; the lease of the
name decides.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from hashlib import blake2b
from typing import TYPE_CHECKING, Final

import trio

from ..transports import TransportError
from ..transports._one_error import first_of
from ..transports.nats import NotFoundError
from ._store_log import StoreLogSettings

if TYPE_CHECKING:
    from ..transports.nats import NatsClient
    from ._cluster import Cluster
    from ._companion import Place

logger = logging.getLogger("clearfunds.cluster")

SUBJECT: Final = "clearfunds-stand-in"

FIRST_SECONDS: Final = 1.0
"""A relay that is only started again has so long to take its name back, when its lease is over."""
NEXT_SECONDS: Final = 2.0
"""So much longer the next one in the order waits: it takes the first one about one to open a
store."""


def ask_back(nats: NatsClient, cluster: str, name: str) -> None:
    """Ask a relay that stands in for another one to give its name back."""
    try:
        nats.publish_nowait(_subject(cluster, name), b"")
    except (trio.WouldBlock, TransportError):
        logger.debug("the name %s cannot be asked for now", name)


def _subject(cluster: str, name: str) -> str:
    return f"{SUBJECT}.{cluster}.{name}"


class StandIns:
    """Stands in for relays that have gone; a `Companion`.

    Args:
        cluster: This relay's place in the cluster.
        serve: Runs the relay of a name, with the store that it has in JetStream, until an event is
            set or it is cancelled.

    Attributes:
        names: The relays that this one stands in for.
    """

    def __init__(
        self, cluster: Cluster, serve: Callable[[str, trio.Event], Awaitable[object]]
    ) -> None:
        self.names: set[str] = set()
        self._cluster = cluster
        self._serve = serve
        # Those, and those about which it is to be decided.
        self._wanted: set[str] = set()

    async def run(
        self, place: Place, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """See `Companion.run`."""
        async with trio.open_nursery() as nursery:

            def want(name: str) -> None:
                if name != place.name and name not in self._wanted:
                    self._wanted.add(name)
                    nursery.start_soon(self._stand_in, place, name)

            self._cluster.on_absence = want
            try:
                task_status.started()
                await trio.sleep_forever()
            finally:
                self._cluster.on_absence = lambda _: None

    async def _stand_in(self, place: Place, name: str) -> None:
        try:
            await trio.sleep(FIRST_SECONDS + NEXT_SECONDS * self._rank(place.name, name))
            lease = self._cluster.lease
            if name in self._cluster.peers or lease is None or not lease.is_held:
                return
            if not await self._has_store(place, name):
                return
            await self._serve_as(place, name)
        finally:
            self._wanted.discard(name)

    def _rank(self, me: str, name: str) -> int:
        """Return how many relays come before this one."""
        mine = _weight(me, name)
        return sum(_weight(each, name) < mine for each in self._cluster.peers)

    @staticmethod
    async def _has_store(place: Place, name: str) -> bool:
        stream = StoreLogSettings(place.cluster, name).stream
        try:
            await place.js.stream_info(stream)
        except NotFoundError:
            return False  # a directory, or none
        except TransportError as exc:
            logger.warning("whether relay %s has a store in JetStream is not known: %s", name, exc)
            return False
        return True

    async def _serve_as(self, place: Place, name: str) -> None:
        stop = trio.Event()
        end = place.nats.subscribe_with(
            _subject(place.cluster, name), lambda _: stop.set(), lambda _: None
        )
        self.names.add(name)
        extra = {"event": "stand_in", "relay": name}
        logger.warning("relay %s has gone: this one stands in for it", name, extra=extra)
        try:
            await self._serve(name, stop)
        except Exception as exc:  # noqa: BLE001 (whatever it is, this relay's clients are served)
            logger.warning(
                "this relay stands in for %s no longer: %s",
                name,
                first_of(exc, BaseException),
                extra=extra,
            )
        else:
            logger.warning("relay %s is back, and this one ends its stand-in", name, extra=extra)
        finally:
            self.names.discard(name)
            end()


def _weight(relay: str, name: str) -> bytes:
    return blake2b(f"{name} {relay}".encode(), digest_size=8).digest()
