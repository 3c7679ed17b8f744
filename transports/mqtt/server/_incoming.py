"""The unhandled input of one client: what is parsed next, and what waits behind it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from ..codec._frames import PUBACK, PUBCOMP, PUBREC, PUBREL
from ..codec._packets import Packet, PingReq, PubAck, PubComp, PubRec, PubRel
from ..codec._packets5 import PROTOCOL_LEVEL_5
from ..codec._reasons import Reason
from ._leaving import PEEK_BYTES, disconnect_has_come, has_disconnect
from ._lookahead import Lookahead
from ._runs import REFUSED_PUBREC

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ..._outlet import Outlet
    from ..codec._connection import Connection

MAX_LOOKAHEAD_BYTES = 4 << 10
"""How much input is looked through at once, by a connection that waits: 2,000 pings."""

OVERTAKING: dict[int, Callable[[int], Packet]] = {
    PUBACK: PubAck,
    PUBREC: PubRec,
    PUBREL: PubRel,
    PUBCOMP: PubComp,
    REFUSED_PUBREC: partial(PubRec, reason=Reason.UNSPECIFIED_ERROR),
}
"""The acknowledgements, by their first byte."""


class Incoming:
    """One client's input: that of its `Connection`, and behind it what came while it waited.

    Args:
        connection: Its protocol state.
        outlet: Its outlet, with its socket.

    Attributes:
        lookahead: What came while it waited, until all that is whole of it has been taken up.
    """

    __slots__ = ("_connection", "_outlet", "lookahead")

    def __init__(self, connection: Connection, outlet: Outlet) -> None:
        self._connection = connection
        self._outlet = outlet
        self.lookahead: Lookahead | None = None

    @property
    def unparsed(self) -> int:
        """How much input is held."""
        lookahead = self.lookahead
        return self._connection.unparsed_bytes + (0 if lookahead is None else lookahead.size)

    @property
    def has_whole_packets(self) -> bool:
        """Whether something is to be parsed, or waits as a whole to be."""
        lookahead = self.lookahead
        return bool(self._connection.unparsed_bytes) or (
            lookahead is not None and lookahead.has_whole_packets
        )

    @property
    def behind(self) -> bytes:
        """What has come and is not parsed, while nothing waits behind it."""
        return self._connection.unparsed

    @property
    def begins_with_disconnect(self) -> bool:
        """See `Lookahead.begins_with_disconnect`."""
        return self.lookahead is not None and self.lookahead.begins_with_disconnect

    def begin_to_wait(self) -> bytes:
        """Have what comes looked through from now on; return what has come and is not parsed."""
        if self.lookahead is not None:
            return b""
        self.lookahead = Lookahead(reasons=self._connection.version == PROTOCOL_LEVEL_5)
        return self._connection.take_unparsed()

    def overtaking(self, data: bytes) -> Iterator[Packet]:
        """Keep what came while it waits, but for the packets that overtake (rule 10): yield these.

        What is not yielded yet is not looked through.
        """
        lookahead = self.lookahead
        assert lookahead is not None
        for start in range(0, len(data), MAX_LOOKAHEAD_BYTES):
            piece = (
                data
                if len(data) <= MAX_LOOKAHEAD_BYTES
                else data[start : start + MAX_LOOKAHEAD_BYTES]
            )
            for first, packet_id in lookahead.add(piece, self._connection.unparsed_bytes):
                yield OVERTAKING[first](packet_id) if packet_id else PingReq()

    def take_up(self) -> bool:
        """Parse what came while it waited, if that is not done; whether there was any of it."""
        lookahead = self.lookahead
        assert lookahead is not None
        data = lookahead.take_up()
        if not data:
            # What is not whole yet is joined to what comes next, as ever.
            data = lookahead.take_rest()
            self.lookahead = None
        self._connection.receive_data(data)
        return bool(data)

    def says_disconnect(self) -> bool:
        """Whether the client has said DISCONNECT, as far as that can be told before its turn.

        It is not looked for where something is to be sent already: what comes next goes with it.
        """
        if self._outlet.unsent:
            return False
        connection = self._connection
        data = connection.buffer[connection.position :]
        if data or connection.missing or (self.lookahead is not None and self.lookahead.size):
            return len(data) <= PEEK_BYTES and has_disconnect(data)
        return disconnect_has_come(self._outlet.sock)

    def close(self) -> None:
        """Drop it all; nothing that comes after this is parsed."""
        self._connection.close()
        self.lookahead = None
