"""Routes what comes from another relay: runs of publications as runs.

A run came to the other relay as bytes, and comes here as the same bytes. Its publications may have
other recipients here. So it is cut into runs anew, by the routes of this relay, and none of its
publications is decoded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ..dataspace import Batch
from ..transports.mqtt.codec._frames import MAX_REMAINING_LENGTH
from ..transports.mqtt.codec._topics import topic_name_fault
from ..transports.mqtt.server._runs import find_run, publications, topic_key

if TYPE_CHECKING:
    from ..accounts import Turn
    from ..dataspace import Dataspace, Route

NO_LIMIT: Final = 1 << 62
ROOM: Final = (NO_LIMIT, NO_LIMIT)
"""A landing has looked whether there is room, for all of the parcel."""


class RunRouter:
    """A `Router` for a `Landing`.

    Args:
        dataspace: The relay's.
    """

    def __init__(self, dataspace: Dataspace) -> None:
        self._dataspace = dataspace

    def route(self, turn: Turn, event: Any, nbytes: int | None) -> None:
        """See `Router.route`."""
        dataspace = self._dataspace
        if not isinstance(event, Batch):
            dataspace.route(turn, event, nbytes)
            return
        raw = event.raw
        routes = dataspace.routes
        if event.alike and self._deliver(turn, event):
            return
        at, count = 0, event.count
        while at < len(raw):
            run = find_run(raw, at, routes.by_key, self._resolve, ROOM, MAX_REMAINING_LENGTH)
            if run is None:
                # Somebody observes by a pattern that looks into publications.
                dataspace.route(turn, Batch(raw[at:], count, publications))
                return
            part = raw if run.end - at == len(raw) else raw[at : run.end]
            batch = Batch(part, run.count, publications, run.topic)
            dataspace.deliver_run(turn, batch, run.destinations.holders)
            at = run.end
            count -= run.count

    def _deliver(self, turn: Turn, batch: Batch) -> bool:
        """Deliver a run whose publications have one topic, if it goes somewhere as a run."""
        key = topic_key(batch.raw, 0)
        route = None if key is None else self._dataspace.routes.by_key.get(key)
        if route is None and key is not None:
            route = self._resolve(key)
        if route is None or route.run is None:
            return False
        batch.topic = route.topic
        self._dataspace.deliver_run(turn, batch, route.run.holders)
        return True

    def _resolve(self, key: bytes) -> Route | None:
        return self._dataspace.routes.of_key(key, _topic_of)


def _topic_of(key: bytes) -> str | None:
    try:
        topic = key[2:].decode()
    except UnicodeDecodeError:
        return None
    return None if topic_name_fault(topic) else topic
