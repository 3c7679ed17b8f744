"""The MQTT 5 side of a connection: the client's limits, and the properties of its messages.

Rules of this file:
1. A publication's properties go to the client unaltered, in their order
   [MQTT-3.3.2-17][MQTT-3.3.2-18]. The relay adds the identifiers of all matching subscriptions of
   the client [MQTT-3.3.4-3], and the remaining expiry interval [MQTT-3.3.2-6].
2. The relay does not send a publication that has expired, or that is larger than the client
   accepts. It then acts as if it had sent it [MQTT-3.1.2-25].
3. If the client needs none of that, a run of publications goes on as a run. Each frame gets one
   more byte, added once for all clients with MQTT 5.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import copy
from typing import TYPE_CHECKING, Any, Final

from ....accounts import Account, Holder, Outcome, Recipient
from ....dataspace import Batch, Publication
from ..._outlet import FRAMING_BYTES
from ..codec._frames import body_of
from ..codec._identifiers import MAX_PACKET_ID
from ..codec._packets import Connect
from ..codec._packets5 import encode_publish5
from ..codec._properties import FOR_EVER, NO_PROPERTIES, Properties, variable_int
from ._aliases import Aliases
from ._bridges import Bridge, is_nobodys
from ._droppable import QOS_ZERO, with_packet_id
from ._filters import Filters
from ._framing import Framing
from ._reframe import as_mqtt5
from ._selecting import select_by

if TYPE_CHECKING:
    from ..._outlet import Outlet
    from ._framing import Alike, Form

MQTT5: Final = "mqtt5"
"""The key of a batch's frames in MQTT 5; see `Batch.framed`."""

SHOWN_OF_REASON: Final = 1_000
"""Longest reason string sent to a client, in characters; the client may drop a larger packet."""

_MESSAGE_EXPIRY: Final = b"\x02"
_MOST_SECONDS: Final = 0xFFFF_FFFF
"""The largest message expiry interval."""
_SUBSCRIPTION_IDENTIFIER: Final = b"\x0b"

_MORE_BYTES: Final = 12
"""Bytes that framing adds to a publication beyond 3.1.1: at most four for the length, five for the
remaining expiry interval and three for a topic alias."""

_IDENTIFIER_BYTES: Final = 5
"""Most bytes of one subscription identifier."""


class Mqtt5(Framing):
    """One connection's side of MQTT 5.

    Args:
        packet: Its CONNECT.
        filters: The client's subscriptions.
        wall: The wall clock.
        max_topic_alias: The relay's limit on topic aliases; the client's may be lower.

    Attributes:
        filters: See above.
        is_own: Tells whether an account pays for this client's publications. Set it when the
            account is open.
        max_packet_size: The largest packet that the client accepts; None: no limit.
        receive_maximum: The client's limit on unacknowledged publications with QoS 1 and 2.
        expiry: Seconds to keep its session without a connection; None: for ever.
        tells_problems: Whether the client wants reasons for failures.
    """

    __slots__ = (
        "_aliases", "expiry", "filters", "is_own", "max_packet_size", "receive_maximum",
        "tells_problems",
    )  # fmt: skip

    def __init__(
        self,
        packet: Connect,
        filters: Filters,
        wall: Callable[[], float],
        max_topic_alias: int = 0,
    ) -> None:
        super().__init__(wall)
        said = packet.properties
        most = min(said.topic_alias_maximum or 0, max_topic_alias)
        self._aliases = Aliases(most) if most else None
        self.filters = filters
        self.is_own: Callable[[Account], bool] = is_nobodys
        self.max_packet_size = said.maximum_packet_size
        self.receive_maximum = said.receive_maximum or MAX_PACKET_ID
        self.expiry = seconds_of(said.session_expiry or 0)
        self.tells_problems = said.request_problem_information != 0

    def apart(self, filters: Filters) -> Mqtt5:
        """Return a copy for a subscription with its own options: a shared one."""
        other = copy(self)
        other.filters = filters
        return other

    def explain(self, why: str) -> Properties:
        """Return the properties of an acknowledgement with a reason, if the client wants reasons.

        A CONNACK or DISCONNECT may have a reason in any case (section 3.1.2.11.7).
        """
        return with_reason(why) if self.tells_problems else NO_PROPERTIES

    @property
    def takes_runs(self) -> bool:
        """Whether a run of publications goes out unchanged, unless it is too large."""
        filters = self.filters
        return not (filters.selects or filters.identifies)

    @property
    def framing_bytes(self) -> int:
        """Most bytes that framing adds to each publication, beyond those it is charged for."""
        filters = self.filters
        identifiers = len(filters) if filters.identifies else 0
        return FRAMING_BYTES + _MORE_BYTES + _IDENTIFIER_BYTES * identifiers

    def select(self, account: Account, publication: Publication) -> Publication | None:
        """Return a publication as the client gets it; None if it is its own, with No Local."""
        if publication.retain or not self.filters.selects:
            return publication  # a retained message is sent, whoever published it
        return select_by(self.filters, publication, own=self.is_own(account))

    def frame(
        self,
        publication: Publication,
        packet_id: int = 0,
        dup: bool = False,
        *,
        aside: bool = False,
    ) -> bytes:
        """Return the packet of a publication, as `Framing.frame`; see rule 2.

        A publication to spill (`aside`) carries its time of expiry, not the remaining interval.
        """
        properties = publication.properties
        if publication.expires is not None:
            left = self._left(publication.expires)
            if left <= 0:
                return b""
            until = left if not aside else min(math.ceil(publication.expires), _MOST_SECONDS)
            properties = b"".join((_MESSAGE_EXPIRY, until.to_bytes(4, "big"), properties))
        identifiers = self._identifiers(publication.topic)
        if identifiers:
            properties = identifiers + properties
        topic = publication.topic
        limit = self.max_packet_size
        aliases = self._aliases
        # A spilled publication may expire in the backlog; then the client would never learn the
        # alias.
        if aliases is not None and publication.qos and not aside:
            alias = aliases.known(topic)
            if alias is not None:
                topic = ""
                properties = alias + properties
            elif limit is None or publication.nbytes + self.framing_bytes <= limit:
                properties = aliases.new(topic) + properties
        data = encode_publish5(
            topic,
            publication.payload,
            publication.qos,
            publication.retain,
            dup,
            packet_id,
            properties,
            aliased=not topic,
        )
        return data if limit is None or len(data) <= limit else b""

    def alike(self, packets: Alike, selected: bool) -> Form | None:
        del selected  # `takes_runs` says whether anything is
        if not self.takes_runs or self._aliases is not None:
            return None
        head, tails = form = packets.mqtt5
        limit = self.max_packet_size
        return form if limit is None or len(head) + 2 + len(tails[0]) <= limit else None

    def put_aside(self, publication: Publication) -> bytes:
        return self.frame(publication, 1, aside=True)

    def take_back(self, packet: bytes, packet_id: int) -> bytes:
        packet = with_packet_id(packet, packet_id)
        at = body_of(packet, 0)[0]
        at += 4 + (packet[at] << 8 | packet[at + 1])  # its topic, and the packet identifier
        end = at
        at = _behind_number(packet, at)
        if at == end + 1 and not packet[end]:
            return packet  # no properties
        while packet[at : at + 1] == _SUBSCRIPTION_IDENTIFIER:
            at = _behind_number(packet, at + 1)
        if packet[at : at + 1] != _MESSAGE_EXPIRY:
            return packet
        left = self._left(int.from_bytes(packet[at + 1 : at + 5], "big"))
        if left <= 0:
            return b""
        return b"".join((packet[: at + 1], left.to_bytes(4, "big"), packet[at + 5 :]))

    def _left(self, expires: float) -> int:
        # If the clock was set back, the interval may seem to exceed the largest one.
        return min(math.ceil(expires - self._wall()), _MOST_SECONDS)

    def _identifiers(self, topic: str) -> bytes:
        if not self.filters.identifies:
            return b""
        return b"".join(
            _SUBSCRIPTION_IDENTIFIER + variable_int(each)
            for each in self.filters.of(topic).identifiers
        )

    def _properties_of(self, key: bytes) -> bytes:
        identifiers = self._identifiers(key.decode())
        return variable_int(len(identifiers)) + identifiers

    def frame_run(self, account: Account, batch: Batch) -> tuple[bytes, int, int]:
        """Return a run without the frames not to send, and the number of its frames and bytes."""
        raw = batch.raw
        limit = self.max_packet_size
        own = self.is_own(account)
        if limit is None and not own:
            return as_mqtt5(raw, self._properties_of), batch.count, batch.nbytes
        pieces: list[bytes] = []
        nbytes = 0
        for key, start, end, _ in QOS_ZERO.frames(raw):
            if own and key is not None and not self.filters.of(key.decode()).local:
                continue
            frame = as_mqtt5(raw[start:end], self._properties_of)
            if limit is None or len(frame) <= limit:
                pieces.append(frame)
                nbytes += end - start
        return b"".join(pieces), len(pieces), nbytes


def _behind_number(packet: bytes, at: int) -> int:
    """Return the end of a variable byte integer."""
    while packet[at] >= 128:
        at += 1
    return at + 1


def identifier_bytes(identifier: int) -> bytes:
    """Return a subscription identifier encoded as a property; b"" for 0, which is none."""
    return _SUBSCRIPTION_IDENTIFIER + variable_int(identifier) if identifier else b""


def with_reason(why: str) -> Properties:
    """Return the properties of a packet with a reason string."""
    return Properties(reason_string=why.replace("\0", " ")[:SHOWN_OF_REASON])


def seconds_of(interval: int) -> float | None:
    """Return a session expiry interval in seconds; None: for ever."""
    return None if interval == FOR_EVER else float(interval)


class AtMostOnce(Recipient):
    """Frames QoS 0 publications for the outlet of a client with MQTT 5, or of any bridge."""

    __slots__ = ("_mqtt5", "_outlet")

    def __init__(self, mqtt5: Mqtt5 | Bridge, outlet: Outlet) -> None:
        self._mqtt5 = mqtt5
        self._outlet = outlet

    @property
    def last_holder(self) -> Holder | None:
        return self._outlet

    def hold(self, account: Account, item: Any, items: int, nbytes: int, now: float) -> None:
        """Hold an item, as `Recipient.hold`; it is a `Publication`, or a `Batch` of them."""
        outlet, mqtt5 = self._outlet, self._mqtt5
        why = Outcome.DROPPED
        if isinstance(item, Batch):
            if mqtt5.takes_runs:
                framed = item.framed
                if framed is None:
                    framed = item.framed = {}
                chunk = framed.get(MQTT5)
                if chunk is None:
                    chunk = framed[MQTT5] = as_mqtt5(item.raw)
                largest = mqtt5.max_packet_size
                if largest is None or len(chunk) <= largest:
                    outlet.hold(account, chunk, items, nbytes, now)
                    return
            chunk, sent, sent_bytes = mqtt5.frame_run(account, item)
        else:
            told = mqtt5.select(account, item)
            chunk = b"" if told is None else mqtt5.frame(told)
            sent, sent_bytes = (items, nbytes) if chunk else (0, 0)
            if told is not None and not chunk:
                why = mqtt5.why_not(told)
        if sent:
            outlet.hold(account, chunk, sent, sent_bytes, now)
        if sent < items:
            outlet.turn_away(account, items - sent, nbytes - sent_bytes, why)

    def ready(self) -> None:
        self._outlet.ready()
