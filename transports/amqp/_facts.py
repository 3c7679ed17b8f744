"""Who a client is, for people who look at it."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from .._peer_facts import PeerFacts

if TYPE_CHECKING:
    from ._session import AmqpSession


def facts_of(session: AmqpSession, most: int) -> PeerFacts:
    """Return who the client of a session is, with the first `most` of the queues it consumes."""
    channels = session.channels.values()
    queues = dict.fromkeys(name for channel in channels for name in channel.consumes())
    return PeerFacts(
        session.peer,
        user=session.negotiation.user or None,
        subscriptions=tuple(islice(queues, most)),
        subscriptions_more=max(0, len(queues) - most),
    )
