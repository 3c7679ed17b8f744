"""Messages that a server may send before the client has answered (Receive Maximum, MQTT 5)."""

from __future__ import annotations

from ._reasons import Reason, ReasonedError


class ReceiveQuota:
    """Counts what a server has under way to a client, and sees that it is not too much.

    A message counts from its PUBLISH until its PUBACK, or its PUBCOMP, is said (section 4.9).

    Args:
        most: The Receive Maximum that the server was told; None: there is none.
    """

    __slots__ = ("_most", "_under_way")

    def __init__(self, most: int | None) -> None:
        self._most = most
        self._under_way: set[int] = set()

    def __len__(self) -> int:
        """Return how many are under way."""
        return len(self._under_way)

    def arrived(self, packet_id: int) -> None:
        """Note a message.

        Raises:
            ReasonedError: it is one too many.
        """
        if self._most is None:
            return
        self._under_way.add(packet_id)
        if len(self._under_way) > self._most:
            raise ReasonedError(
                f"the server has more than {self._most} messages under way, which is the receive "
                "maximum that it was told [MQTT-3.3.4-9]",
                Reason.RECEIVE_MAXIMUM_EXCEEDED,
            )

    def answered(self, packet_id: int) -> None:
        """Note a PUBACK or a PUBCOMP."""
        self._under_way.discard(packet_id)
