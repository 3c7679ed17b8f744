"""Access control for one client's packets, by the rules of `clearfunds.access.acl`.

Rules of this file:
1. No decision is made for each message. The right to publish is decided once for each topic
   (`Writable`), the right to read when the route of a topic is found (`Subscription.allows`).
2. Queued messages are checked again only if the client's rules have changed since they were queued,
   or may have (`Readable`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import attrs

from ....accounts import Outcome
from ..codec._frames import body_of
from ..codec._topics import filter_of, is_shared, shown
from ._framing import Framing

if TYPE_CHECKING:
    from ....access.acl import Rights
    from ....dataspace import Publication, Route
    from ..codec._reasons import Reason
    from ._framing import Alike, Form
    from ._server import MqttServer


@attrs.frozen(slots=True)
class Refusal:
    """The refusal of a publication."""

    why: str
    """A sentence."""
    reason: Reason
    """The reason code of MQTT 5."""


def not_writable(rights: Rights, topic: str) -> str | None:
    """Return a sentence if a client may not publish to a topic; None if it may."""
    if rights.may_write(topic):
        return None
    return f"user {rights.peer.user} may not publish to {shown(topic)}"


def not_readable(rights: Rights, topic_filter: str) -> str | None:
    """Return a sentence if a client may read nothing that matches a filter; None if it may.

    For a shared subscription it must be allowed to read everything that matches: a group may give
    any message to any member.
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
    """Return the shared subscriptions that a client may no longer have."""
    return [
        text
        for text in subscriptions
        if is_shared(text) and not rights.may_read_all(filter_of(text))
    ]


class Writable:
    """The routes of topics that one client may publish to, for `find_run`.

    Args:
        rights: The client's rights.
        server: Knows the routes.
    """

    __slots__ = ("_rights", "_server")

    def __init__(self, rights: Rights, server: MqttServer) -> None:
        self._rights = rights
        self._server = server

    @property
    def known(self) -> dict[bytes, Route]:
        """The routes known now, by the topic as it stands in packets."""
        return self._rights.routes(self._server.dataspace.routes.version)

    def resolve(self, key: bytes) -> Route | None:
        """Find the route of a topic, as `MqttServer.resolve`; None if it is not writable."""
        topic = self._server.topic_of(key)
        if topic is None or not self._rights.may_write(topic):
            return None
        route = self._server.resolve(key)
        if route is not None:
            self._rights.remember(key, route)
        return route


class Readable(Framing):
    """A framing that leaves out the publications that a client may no longer read.

    Args:
        framing: Encodes the others.
        rights: The client's rights.
    """

    __slots__ = ("_framing", "_rights")

    def __init__(self, framing: Framing, rights: Rights) -> None:
        super().__init__()
        self._framing = framing
        self._rights = rights

    @classmethod
    def before(cls, framing: Framing, rights: Rights) -> Framing:
        """Wrap a framing, unless it is wrapped already."""
        return framing if isinstance(framing, Readable) else cls(framing, rights)

    def frame(self, publication: Publication, packet_id: int = 0, dup: bool = False) -> bytes:
        if not self._rights.may_read(publication.topic):
            self._rights.denied.queued += 1
            return b""
        return self._framing.frame(publication, packet_id, dup)

    def alike(self, packets: Alike, selected: bool) -> Form | None:
        del packets, selected  # `frame` looks at the rights
        return None

    def why_not(self, publication: Publication) -> Outcome:
        if not self._rights.may_read(publication.topic):
            return Outcome.DROPPED
        return self._framing.why_not(publication)

    def put_aside(self, publication: Publication) -> bytes:
        # The right to read is checked when it is sent: see `take_back`.
        return self._framing.put_aside(publication)

    def take_back(self, packet: bytes, packet_id: int) -> bytes:
        if not self._rights.may_read(_topic_of(packet)):
            self._rights.denied.queued += 1
            return b""
        return self._framing.take_back(packet, packet_id)

    def why_not_back(self, packet: bytes) -> Outcome:
        if not self._rights.may_read(_topic_of(packet)):
            return Outcome.DROPPED
        return self._framing.why_not_back(packet)


def _topic_of(packet: bytes) -> str:
    at, _ = body_of(packet, 0)
    return packet[at + 2 : at + 2 + (packet[at] << 8 | packet[at + 1])].decode()
