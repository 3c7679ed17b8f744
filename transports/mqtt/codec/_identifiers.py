"""Packet identifiers: those allocated, and those received with QoS 2 (sections 2.3.1 and 4.3.3)."""

from collections.abc import Iterable, Iterator
from typing import Final

from ..._errors import LocalProtocolError, RemoteProtocolError

MAX_PACKET_ID = 65_535

#: Unreleased QoS 2 publications that a peer may have: as many as there are identifiers. MQTT 3.1.1
#: cannot tell a client of a lower limit, and 65,535 take no more than 8 KiB here.
DEFAULT_MAX_AWAITING_RELEASE = MAX_PACKET_ID

#: From this many on, identifiers are kept as bits: a Python set of 65,535 takes 6 MB.
_FEW = 256

_NONE: Final[frozenset[int]] = frozenset()


class PacketIds:
    """The identifiers of sent packets that the peer has not fully acknowledged.

    They are allocated in turn, 1 to 65535 and round again. So a released identifier is reused as
    late as possible, and a late duplicate of its acknowledgement does no harm.
    """

    __slots__ = ("_in_use", "_last")

    def __init__(self) -> None:
        self._in_use: set[int] = set()
        self._last = 0

    def __len__(self) -> int:
        """Return the number of identifiers in use."""
        return len(self._in_use)

    def __contains__(self, packet_id: object) -> bool:
        return packet_id in self._in_use

    def __repr__(self) -> str:
        return f"<PacketIds {len(self._in_use)}/65535 in use, last {self._last}>"

    def allocate(self) -> int:
        """Allocate an identifier that is not in use [MQTT-2.3.1-2].

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
        """Allocate this very identifier; return whether it was free."""
        if packet_id in self._in_use:
            return False
        self._in_use.add(packet_id)
        return True

    def release(self, packet_id: int) -> bool:
        """Release an identifier; return whether it was in use (peers may acknowledge twice)."""
        if packet_id in self._in_use:
            self._in_use.remove(packet_id)
            return True
        return False

    def release_all(self, packet_ids: Iterable[int]) -> None:
        """Release identifiers; some of them may not be in use."""
        self._in_use.difference_update(packet_ids)


class AwaitingRelease:
    """The receiver's memory of QoS 2: identifiers whose PUBREL has not come [MQTT-4.3.3-2].

    While it has an identifier, a PUBLISH that carries it is the same publication again: the
    receiver answers it with a PUBREC and does not deliver it.
    """

    __slots__ = ("_bits", "_ids", "_many", "limit")

    def __init__(self, limit: int = DEFAULT_MAX_AWAITING_RELEASE) -> None:
        self.limit = limit
        # A set while there are few identifiers; then one bit for each possible identifier. An empty
        # set has 216 bytes, and nearly all are empty.
        self._ids: set[int] | frozenset[int] = _NONE
        self._bits: bytearray | None = None
        self._many = 0

    def __len__(self) -> int:
        """Return the number of publications that await their PUBREL."""
        return len(self._ids) if self._bits is None else self._many

    def __contains__(self, packet_id: object) -> bool:
        bits = self._bits
        if bits is None or not isinstance(packet_id, int):
            return packet_id in self._ids
        return bool(bits[packet_id >> 3] & 1 << (packet_id & 7))

    def __iter__(self) -> Iterator[int]:
        """Yield their identifiers."""
        if self._bits is None:
            return iter(self._ids)
        return (packet_id for packet_id in range(1, MAX_PACKET_ID + 1) if packet_id in self)

    def __repr__(self) -> str:
        return f"<AwaitingRelease {len(self)}/{self.limit}>"

    def add(self, packet_id: int) -> bool:
        """Note a QoS 2 PUBLISH; return True to deliver it as new, False if it is a duplicate.

        Raises:
            RemoteProtocolError: if the peer has more than `limit` unreleased publications.
        """
        if packet_id in self:
            return False
        if len(self) >= self.limit:
            raise RemoteProtocolError(
                f"{self.limit} QoS 2 publications await their PUBREL and another one came; answer "
                "PUBREC with PUBREL or raise the limit [MQTT-4.3.3-1]"
            )
        self.restore(packet_id)
        return True

    def restore(self, packet_id: int) -> None:
        """Add an identifier from before a restart, regardless of the limit."""
        if packet_id in self:
            return
        if self._bits is None:
            if self._ids:
                self._ids |= {packet_id}
            else:
                self._ids = {packet_id}
            if len(self._ids) >= _FEW:
                self._keep_bits()
        else:
            self._bits[packet_id >> 3] |= 1 << (packet_id & 7)
            self._many += 1

    def release(self, packet_id: int) -> bool:
        """Note a PUBREL; return whether its publication was known. Answer PUBCOMP either way."""
        if packet_id not in self:
            return False
        if self._bits is None:
            self._ids -= {packet_id}
            return True
        self._bits[packet_id >> 3] &= ~(1 << (packet_id & 7))
        self._many -= 1
        if not self._many:
            self._bits = None
        return True

    def _keep_bits(self) -> None:
        ids, self._ids = self._ids, _NONE
        self._bits = bytearray((MAX_PACKET_ID >> 3) + 1)
        for packet_id in ids:
            self.restore(packet_id)
