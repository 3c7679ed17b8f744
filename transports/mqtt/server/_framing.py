"""Framing of publications that a client acknowledges: here for 3.1.1, in `_mqtt5` for 5.

An expired publication has no packet (MQTT 5, section 3.3.2.3.3). That holds for subscribers with
3.1.1, too, though only its publisher, which speaks 5, knows the expiry.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from ....accounts import Outcome
from ..codec._frames import body_of, encode_remaining_length
from ..codec._packets import encode_publish
from ._droppable import with_packet_id
from ._reframe import NONE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TypeAlias

    from ....dataspace import Publication

    Form: TypeAlias = tuple[bytes, Sequence[bytes]]


class Alike:
    """QoS 1 packets of one topic and size, without properties, in the form of either version.

    A form is what each packet has before its identifier, and what they have behind it.

    Args:
        mqtt311: Their form in MQTT 3.1.1, if they came so.
        mqtt5: Their form in MQTT 5, if they came so.
    """

    __slots__ = ("_mqtt5", "_mqtt311")

    def __init__(self, mqtt311: Form | None, mqtt5: Form | None) -> None:
        self._mqtt311 = mqtt311
        self._mqtt5 = mqtt5

    @property
    def mqtt311(self) -> Form:
        """Their form in MQTT 3.1.1."""
        if self._mqtt311 is None:
            head, tails = self.mqtt5
            self._mqtt311 = longer(head, -len(NONE)), [tail[len(NONE) :] for tail in tails]
        return self._mqtt311

    @property
    def mqtt5(self) -> Form:
        """Their form in MQTT 5."""
        if self._mqtt5 is None:
            head, tails = self.mqtt311
            self._mqtt5 = longer(head, len(NONE)), [NONE + tail for tail in tails]
        return self._mqtt5


def longer(head: bytes, more: int) -> bytes:
    """Return the beginning of a packet that is so much longer."""
    at, end = body_of(head, 0)
    return head[:1] + encode_remaining_length(end - at + more) + head[at:]


class Framing:
    """Encodes publications for one client.

    A spilled publication is a packet, too. It gets its identifier later; in both versions the
    identifier stands behind the topic.

    Args:
        wall: The wall clock, by which publications expire.
    """

    __slots__ = ("_wall",)

    def __init__(self, wall: Callable[[], float] = time.time) -> None:
        self._wall = wall

    def frame(self, publication: Publication, packet_id: int = 0, dup: bool = False) -> bytes:
        """Return the packet of a publication; b"" if it must not be sent: see `why_not`."""
        if publication.expires is not None and publication.has_expired(self._wall()):
            return b""
        return encode_publish(
            publication.topic,
            publication.payload,
            publication.qos,
            publication.retain,
            dup,
            packet_id,
        )

    def alike(self, packets: Alike, selected: bool) -> Form | None:
        """Return the packets as `frame` would make them, without their identifiers.

        Args:
            packets: The packets as their publisher has sent them.
            selected: Whether something selects the publications that this client gets.

        Returns:
            Their form for this client; None if `frame` has to see to each.
        """
        return None if selected else packets.mqtt311

    def why_not(self, publication: Publication) -> Outcome:
        """Return the outcome of a publication that must not be sent."""
        expired = publication.has_expired(self._wall())
        return Outcome.EXPIRED if expired else Outcome.DROPPED

    def why_not_back(self, packet: bytes) -> Outcome:
        """Return the outcome of a spilled packet that is not sent: see `take_back`."""
        # It was not too large when it was spilled.
        return Outcome.EXPIRED

    def put_aside(self, publication: Publication) -> bytes:
        """Return the packet of a publication to spill; b"" if it must not be sent."""
        return self.frame(publication, 1)

    def take_back(self, packet: bytes, packet_id: int) -> bytes:
        """Return a spilled packet in the form to send; b"" if it has expired meanwhile."""
        return with_packet_id(packet, packet_id)
