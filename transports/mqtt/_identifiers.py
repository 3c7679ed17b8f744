"""Packet identifiers: those given out, and those received with QoS 2 (sections 2.3.1 and 4.3.3)."""

from collections.abc import Iterator

from .._errors import LocalProtocolError, RemoteProtocolError

MAX_PACKET_ID = 65_535

#: How many QoS 2 publications a peer may have begun and not released. EMQX's `max_awaiting_rel`
#: is 100 and drops what is above; here the connection is closed, so it is set well above what
#: clients keep in flight (20 by default in paho-mqtt).
DEFAULT_MAX_AWAITING_RELEASE = 1_000


class PacketIds:
    """The identifiers of what this side has sent and the peer has not finished acknowledging.

    They are given out in turn, 1 to 65535 and round again, so that one just released is reused
    as late as can be: a late duplicate of its acknowledgement then meets nothing.
    """

    __slots__ = ("_in_use", "_last")

    def __init__(self) -> None:
        self._in_use: set[int] = set()
        self._last = 0

    def __len__(self) -> int:
        """How many are in use."""
        return len(self._in_use)

    def __contains__(self, packet_id: object) -> bool:
        return packet_id in self._in_use

    def __repr__(self) -> str:
        return f"<PacketIds {len(self._in_use)}/65535 in use, last {self._last}>"

    def allocate(self) -> int:
        """Take an identifier that is not in use [MQTT-2.3.1-2].

        Raises:
            LocalProtocolError: if all 65,535 are in use.
        """
        in_use = self._in_use
        if len(in_use) >= 65_535:
            raise LocalProtocolError(
                "all 65535 packet identifiers are in use; wait for acknowledgements [MQTT-2.3.1-2]"
            )
        candidate = self._last % 65_535 + 1
        while candidate in in_use:
            candidate = candidate % 65_535 + 1
        in_use.add(candidate)
        self._last = candidate
        return candidate

    def take(self, packet_id: int) -> bool:
        """Take this very identifier; whether it was free."""
        if packet_id in self._in_use:
            return False
        self._in_use.add(packet_id)
        return True

    def release(self, packet_id: int) -> bool:
        """Give an identifier back; whether it was in use at all (peers may acknowledge twice)."""
        if packet_id in self._in_use:
            self._in_use.remove(packet_id)
            return True
        return False


class AwaitingRelease:
    """The receiver's memory of QoS 2: identifiers whose PUBREL has not come [MQTT-4.3.3-2].

    As long as an identifier is in here, a PUBLISH that carries it is the same publication again:
    it is answered with a PUBREC and not delivered.
    """

    __slots__ = ("_ids", "limit")

    def __init__(self, limit: int = DEFAULT_MAX_AWAITING_RELEASE) -> None:
        self.limit = limit
        self._ids: set[int] = set()

    def __len__(self) -> int:
        """How many publications await their PUBREL."""
        return len(self._ids)

    def __contains__(self, packet_id: object) -> bool:
        return packet_id in self._ids

    def __iter__(self) -> Iterator[int]:
        """Yield their identifiers."""
        return iter(self._ids)

    def __repr__(self) -> str:
        return f"<AwaitingRelease {len(self._ids)}/{self.limit}>"

    def add(self, packet_id: int) -> bool:
        """Note a QoS 2 PUBLISH; True if it is new and is to be delivered, False if a duplicate.

        Raises:
            RemoteProtocolError: if the peer has begun more than `limit` without releasing them.
        """
        if packet_id in self._ids:
            return False
        if len(self._ids) >= self.limit:
            raise RemoteProtocolError(
                f"{self.limit} QoS 2 publications await their PUBREL and another one came; answer "
                "PUBREC with PUBREL or raise the limit [MQTT-4.3.3-1]"
            )
        self._ids.add(packet_id)
        return True

    def restore(self, packet_id: int) -> None:
        """Take up one from before a restart, whatever the limit is now."""
        self._ids.add(packet_id)

    def release(self, packet_id: int) -> bool:
        """Note a PUBREL; whether its publication was known. PUBCOMP is the answer either way."""
        if packet_id in self._ids:
            self._ids.remove(packet_id)
            return True
        return False
