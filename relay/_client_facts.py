"""What the live page shows of one client: its address, its user, its subscriptions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from ..pages import ClientFacts
    from ..transports._peer_facts import PeerFacts
    from ..transports.mqtt.server._persistent_session import PersistentSession
    from ._relay import Relay

SUBSCRIPTIONS_MAX: Final = 50
"""Subscriptions shown of one client, at most."""

_PROTOCOLS: Final = {
    "mqtt": "MQTT",
    "syndicate": "Syndicate",
    "subscribe": "the range protocol",
    "amqp": "AMQP 0-9-1",
}


def facts_of(relay: Relay, name: str) -> ClientFacts | None:
    """Return the facts of the client with the name of an account or a holder.

    None if there is no client of that name, connected or with a persistent session. Takes time in
    proportion to the connections: a millisecond for ten thousand.
    """
    for protocol, side in relay.named_sides.items():
        for session in side.open:
            if session.name == name:
                found: PeerFacts = session.about(SUBSCRIPTIONS_MAX)
                return {
                    "address": found.address,
                    "protocol": found.protocol or _PROTOCOLS[protocol],
                    "user": found.user,
                    "since": found.since,
                    "away_since": None,
                    "subscriptions": list(found.subscriptions),
                    "subscriptions_more": found.subscriptions_more,
                }
    persistent = relay.mqtt.persistent_sessions
    if persistent is not None:
        for kept in persistent.by_id.values():
            if name in (kept.name, kept.queue.name):
                return _away(kept)
    return None


def _away(kept: PersistentSession) -> ClientFacts:
    subscriptions = list(kept.subscriptions)
    return {
        "address": None,
        "protocol": "MQTT",
        "user": kept.user,
        "since": None,
        "away_since": kept.left,
        "subscriptions": subscriptions[:SUBSCRIPTIONS_MAX],
        "subscriptions_more": max(0, len(subscriptions) - SUBSCRIPTIONS_MAX),
    }
