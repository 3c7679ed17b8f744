"""What one client may publish and read, where its bytes are handled (`clearfunds.transports.acl`).

Rules of this file:
1. Nothing is decided for each message. What a client may publish to is decided once for each topic
   (`Writable`), what it may read when the route of a topic is found (`Subscription.allows`).
2. Messages that wait for a client are looked at again only where its rules have changed since they
   were queued, or may have (`Readable`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import attrs

from ...accounts import Outcome
from ._frames import body_of
from ._framing import Framing
from ._topics import filter_of, is_shared, shown

if TYPE_CHECKING:
    from ...dataspace import Publication, Route
    from ..acl import Rights
    from ._reasons import Reason
    from ._server import MqttServer


@attrs.frozen(slots=True)
class Refusal:
    """Why a publication was not taken."""

    why: str
    """A sentence."""
    reason: Reason
    """The same as MQTT 5 says it."""


def not_writable(rights: Rights, topic: str) -> str | None:
    """Say that a client may not publish to a topic; None if it may."""
    if rights.may_write(topic):
        return None
    return f"user {rights.peer.user} may not publish to {shown(topic)}"


def not_readable(rights: Rights, topic_filter: str) -> str | None:
    """Say that a client may read nothing that matches a filter; None if it may.

    Of a shared one it has to be allowed to read everything that matches: nobody knows which of its
    members a group gives a message to.
    """
    shared = is_shared(topic_filter)
    if (
        rights.may_read_all(filter_of(topic_filter))
        if shared
        else rights.may_subscribe(topic_filter)
    ):
        return None
    rights.denied.subscribe += 1
    if shared:
        what = shown(topic_filter)
        return f"user {rights.peer.user} may not read all that matches {what}, which is shared"
    return f"user {rights.peer.user} may read nothing that matches {shown(topic_filter)}"


def lost_shares(rights: Rights, subscriptions: Iterable[str]) -> list[str]:
    """Return those shared subscriptions that a client may not have any more."""
    return [
        text
        for text in subscriptions
        if is_shared(text) and not rights.may_read_all(filter_of(text))
    ]


class Writable:
    """The routes of topics that one client may publish to, in place of those of all (`find_run`).

    Args:
        rights: What the client may.
        server: Knows the routes.
    """

    __slots__ = ("_rights", "_server")

    def __init__(self, rights: Rights, server: MqttServer) -> None:
        self._rights = rights
        self._server = server

    @property
    def known(self) -> dict[bytes, Route]:
        """Those that are known now, by the topic as it stands in packets."""
        return self._rights.routes(self._server.dataspace.routes.version)

    def resolve(self, key: bytes) -> Route | None:
        """Find the route of a topic; None if it may not be routed so. See `MqttServer.resolve`."""
        topic = self._server.topic_of(key)
        if topic is None or not self._rights.may_write(topic):
            return None
        route = self._server.resolve(key)
        if route is not None:
            self._rights.remember(key, route)
        return route


class Readable(Framing):
    """Makes packets as another framing does, but none of what a client may not read any more.

    Args:
        framing: The other one.
        rights: What the client may.
    """

    __slots__ = ("_framing", "_rights")

    def __init__(self, framing: Framing, rights: Rights) -> None:
        super().__init__()
        self._framing = framing
        self._rights = rights

    @classmethod
    def before(cls, framing: Framing, rights: Rights) -> Framing:
        """Put one before another framing, if there is none yet."""
        return framing if isinstance(framing, Readable) else cls(framing, rights)

    def frame(self, publication: Publication, packet_id: int = 0, dup: bool = False) -> bytes:
        """See `Framing.frame`."""
        if not self._rights.may_read(publication.topic):
            self._rights.denied.queued += 1
            return b""
        return self._framing.frame(publication, packet_id, dup)

    def why_not(self, publication: Publication) -> Outcome:
        """See `Framing.why_not`."""
        if not self._rights.may_read(publication.topic):
            return Outcome.DROPPED
        return self._framing.why_not(publication)

    def put_aside(self, publication: Publication) -> bytes:
        """See `Framing.put_aside`: whether it may be read is asked when it is sent."""
        return self._framing.put_aside(publication)

    def take_back(self, packet: bytes, packet_id: int) -> bytes:
        """See `Framing.take_back`."""
        if not self._rights.may_read(_topic_of(packet)):
            self._rights.denied.queued += 1
            return b""
        return self._framing.take_back(packet, packet_id)

    def why_not_back(self, packet: bytes) -> Outcome:
        """See `Framing.why_not_back`."""
        if not self._rights.may_read(_topic_of(packet)):
            return Outcome.DROPPED
        return self._framing.why_not_back(packet)


def _topic_of(packet: bytes) -> str:
    at, _ = body_of(packet, 0)
    return packet[at + 2 : at + 2 + (packet[at] << 8 | packet[at + 1])].decode()
