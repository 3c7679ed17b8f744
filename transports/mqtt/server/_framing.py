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

    from ....dataspace import Publication


class Alike:
    """QoS 1 packets of one topic and size, without properties, in the form of either version.

    Args:
        head: What each has before its identifier.
        tails: What they have behind it.
        mqtt5: Whether they came as MQTT 5.
    """

    __slots__ = ("_mqtt5", "_mqtt311", "head", "tails")

    def __init__(self, head: bytes, tails: Sequence[bytes], *, mqtt5: bool) -> None:
        self.head = head
        self.tails = tails
        found = head, tails
        self._mqtt311: tuple[bytes, Sequence[bytes]] | None = None if mqtt5 else found
        self._mqtt5: tuple[bytes, Sequence[bytes]] | None = found if mqtt5 else None

    @property
    def size(self) -> int:
        """The size of each in MQTT 5, in bytes."""
        head, tails = self.as_mqtt5()
        return len(head) + 2 + len(tails[0])

    def as_mqtt311(self) -> tuple[bytes, Sequence[bytes]]:
        """Return what is before the identifiers and behind them in MQTT 3.1.1."""
        if self._mqtt311 is None:
            tails = [tail[len(NONE) :] for tail in self.tails]
            self._mqtt311 = self._longer(-len(NONE)), tails
        return self._mqtt311

    def as_mqtt5(self) -> tuple[bytes, Sequence[bytes]]:
        """Return the same in MQTT 5."""
        if self._mqtt5 is None:
            self._mqtt5 = self._longer(len(NONE)), [NONE + tail for tail in self.tails]
        return self._mqtt5

    def _longer(self, more: int) -> bytes:
        """Return the head of packets that are so much longer."""
        at, end = body_of(self.head, 0)
        return self.head[:1] + encode_remaining_length(end - at + more) + self.head[at:]


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

    def alike(self, packets: Alike, *, selected: bool) -> tuple[bytes, Sequence[bytes]] | None:
        """Return the packets as `frame` would make them, without their identifiers.

        Args:
            packets: The packets as their publisher has sent them.
            selected: Whether something selects the publications that this client gets.

        Returns:
            What is before the identifiers and behind them; None if `frame` has to see to each.
        """
        return None if selected else packets.as_mqtt311()

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
