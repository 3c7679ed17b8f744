"""How publications look to the client that is to acknowledge them: in 3.1.1 here, in 5 in `_mqtt5`.

What nobody is to be sent any more has no packet (MQTT 5, section 3.3.2.3.3): with 3.1.1, too, where
only its publisher, which speaks 5, knows of that.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from ...accounts import Outcome
from ._droppable import with_packet_id
from ._packets import encode_publish

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...dataspace import Publication


class Framing:
    """What makes packets of publications for one client.

    What is put aside meanwhile is a packet, too: its identifier is put in place later, so that it
    has to stand behind the topic, as in both versions.

    Args:
        wall: The wall clock, by which publications expire.
    """

    __slots__ = ("_wall",)

    def __init__(self, wall: Callable[[], float] = time.time) -> None:
        self._wall = wall

    def frame(self, publication: Publication, packet_id: int = 0, dup: bool = False) -> bytes:
        """Return the packet of a publication; b"" if it is not to be sent: see `why_not`."""
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

    def why_not(self, publication: Publication) -> Outcome:
        """Return what became of a publication that was not to be sent."""
        expired = publication.has_expired(self._wall())
        return Outcome.EXPIRED if expired else Outcome.DROPPED

    def why_not_back(self, packet: bytes) -> Outcome:
        """Return what became of a packet that was put aside and not sent: see `take_back`."""
        # It was not too large then.
        return Outcome.EXPIRED

    def put_aside(self, publication: Publication) -> bytes:
        """Return the packet of a publication as it is put aside; b"" if it is not to be sent."""
        return self.frame(publication, 1)

    def take_back(self, packet: bytes, packet_id: int) -> bytes:
        """Return a packet that was put aside as it is sent; b"" if it has expired meanwhile."""
        return with_packet_id(packet, packet_id)
