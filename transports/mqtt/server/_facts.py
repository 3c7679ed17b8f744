"""Who a client is, for people who look at it."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final

from ....access._tenants import NO_USER
from ..._peer_facts import PeerFacts
from ..codec._packets import PROTOCOL_LEVEL, PROTOCOL_LEVEL_31
from ..codec._packets5 import PROTOCOL_LEVEL_5

if TYPE_CHECKING:
    from ._entry import Entry
    from ._session import MqttSession
    from ._subscriber import Subscriber

_VERSIONS: Final = {
    PROTOCOL_LEVEL_31: "MQTT 3.1",
    PROTOCOL_LEVEL: "MQTT 3.1.1",
    PROTOCOL_LEVEL_5: "MQTT 5",
}


def facts_of(
    session: MqttSession, entry: Entry | None, subscriber: Subscriber | None, most: int
) -> PeerFacts:
    """Return who the client of a session is, with the first `most` of its subscriptions."""
    if entry is None or subscriber is None:
        return PeerFacts(session.peer)  # it has not been let in yet
    subscriptions, user = subscriber.subscriptions, entry.peer.user
    return PeerFacts(
        session.peer,
        _VERSIONS.get(subscriber.version),
        None if user == NO_USER else user,
        session.came,
        tuple(islice(subscriptions.filters, most)),
        max(0, subscriptions.count - most),
    )
