"""The unhandled input of one peer: what is parsed next, and the packets cut from it ahead of time.

Rules of this file:
1. Packets are handled in order; only credit overtakes those that wait (rule 10).
2. A fault is raised after all packets before it.

    link -> WebSocket, if the peer speaks that -> messages -> `Connection` -> packets cut ahead
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from .._errors import RemoteProtocolError
from .._need_data import NEED_DATA, NeedData
from ._packets import Extension, Nop
from ._turn_credit import DO

if TYPE_CHECKING:
    from collections.abc import Callable

    from .._link import Link
    from ..websocket import WebSocket, WebSocketClient
    from ._connection import Connection, Frame

MAX_LOOKAHEAD = 10_000
"""Most packets cut from the input of a connection that waits, to look for credit: as many as its
default limit in items."""


class Incoming:
    """One peer's input: that of its `Connection`, and what is before and behind that.

    Args:
        connection: Its protocol state.
        link: Its socket.

    Attributes:
        websocket: The WebSocket that packets come in, if there is one.
        messages: WebSocket messages that are not parsed yet; they are, one by one.
        messages_bytes: Their bytes.
        lookahead: Packets cut from the input while the connection waited.
        lookahead_bytes: Their bytes.
        fault: The fault that was found behind them.
    """

    __slots__ = (
        "_connection", "_link", "fault", "lookahead", "lookahead_bytes", "messages",
        "messages_bytes", "websocket",
    )  # fmt: skip

    def __init__(self, connection: Connection, link: Link) -> None:
        self._connection = connection
        self._link = link
        self.websocket: WebSocket | WebSocketClient | None = None
        self.messages: deque[bytes] = deque()
        self.messages_bytes = 0
        self.lookahead: deque[Frame] = deque()
        self.lookahead_bytes = 0
        self.fault: RemoteProtocolError | None = None

    @property
    def unparsed(self) -> int:
        """How much input is held."""
        return self._connection.unparsed_bytes + self.messages_bytes + self.lookahead_bytes

    def add_messages(self, messages: list[bytes]) -> None:
        """Keep WebSocket messages, to be parsed in their turn."""
        for message in messages:
            if message:  # an empty one would be held without counting for any bytes
                self.messages.append(message)
                self.messages_bytes += len(message)

    def check_layers(self) -> None:
        """Raise a fault of the lower layers, after all messages before it.

        Raises:
            RemoteProtocolError: The fault.
        """
        if self._link.fault is not None:
            raise self._link.fault
        if self.websocket is not None and self.websocket.fault is not None:
            raise self.websocket.fault

    def next_frame(self) -> Frame | NeedData:
        """Return the next packet; the first of those cut ahead, if there are any.

        Raises:
            RemoteProtocolError: The input is malformed.
        """
        if self.lookahead:
            frame = self.lookahead.popleft()
            self.lookahead_bytes -= frame.end - frame.start
            return frame
        if self.fault is not None:
            raise self.fault
        return self._cut_frame()

    def _cut_frame(self) -> Frame | NeedData:
        """Cut the next packet from the input; on a WebSocket, from the next message."""
        connection = self._connection
        while True:
            frame = connection.next_frame()
            if frame is not NEED_DATA or self.websocket is None:
                return frame
            if connection.unparsed_bytes:
                fault = RemoteProtocolError(
                    "a WebSocket message ends within a packet; send whole packets, one a message"
                )
                connection.fail(fault)
                raise fault
            if not self.messages:
                return NEED_DATA
            message = self.messages.popleft()
            self.messages_bytes -= len(message)
            connection.receive_data(message)

    def has_whole_packets(self) -> bool:
        """Cut packets ahead; return whether there are any, or a fault."""
        self._cut_ahead()
        return bool(self.lookahead) or self.fault is not None

    def _cut_ahead(self) -> None:
        """Cut all complete packets from the input, to be handled later in order."""
        try:
            while self.fault is None and len(self.lookahead) < MAX_LOOKAHEAD:
                frame = self._cut_frame()
                if frame is NEED_DATA:
                    return
                if not isinstance(frame.packet, Nop):
                    self.lookahead.append(frame)
                    self.lookahead_bytes += frame.end - frame.start
        except RemoteProtocolError as exc:
            self.fault = exc

    def take_credit(self, handle: Callable[[Extension], bool]) -> None:
        """Let credit pass the packets that wait: `handle` does, and says whether it was credit."""
        lookahead = self.lookahead
        before = len(lookahead)
        self._cut_ahead()
        for _ in range(len(lookahead) - before):
            # New packets in order; each one that is not credit goes back behind those that wait.
            frame = lookahead[before]
            packet = frame.packet
            # Not a request for credit: that concerns the turns after it, and needs an answer.
            if isinstance(packet, Extension) and packet != DO and handle(packet):
                del lookahead[before]
                self.lookahead_bytes -= frame.end - frame.start
            else:
                before += 1

    def close(self) -> None:
        """Drop it all; nothing that comes after this is parsed."""
        self._connection.close()
        self.messages.clear()
        self.lookahead.clear()
        self.messages_bytes = self.lookahead_bytes = 0
        if self.websocket is not None:
            self.websocket.drop()
