"""Commands of a connection that waits for funds: which of them may overtake publications (rule 10).

Rules of this file:
1. Publications wait, in order, and what comes behind them on their channels waits with them: a
   queue.bind must not change where they go, a channel.close must not drop them.
2. On such a channel, what a consumer says overtakes publications all the same: it makes room, and a
   connection that publishes and consumes would otherwise wait for itself. It overtakes nothing
   else.
3. On other channels everything goes on. AMQP orders commands by channel only (section 4.7).
4. The end of the connection waits for all of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final

from pamqp.commands import Basic, Channel, Connection

from ._connection import Ack, Command, Publish, Received

COMMAND_BYTES: Final = 512
"""The memory of a command beside its content, about: small ones are many."""

_OVERTAKING: Final = (
    Basic.Nack, Basic.Reject, Basic.Qos, Basic.Consume, Basic.Cancel, Basic.CancelOk,
    Channel.FlowOk,
)  # fmt: skip

_SILENT: Final = (Basic.Nack, Basic.Reject, Basic.CancelOk, Channel.FlowOk, Channel.CloseOk)
"""Commands that are not answered."""


def is_silent(command: Received) -> bool:
    """Whether a command is never answered, and costs nothing."""
    return isinstance(command, Ack) or (
        isinstance(command, Command) and isinstance(command.method, _SILENT)
    )


class Parked:
    """The commands that wait, in order.

    Attributes:
        nbytes: The memory that they take, about.
    """

    __slots__ = ("_line", "_others", "_publications", "nbytes")

    def __init__(self) -> None:
        self._line: deque[Received] = deque()
        # How many wait on each channel.
        self._publications: dict[int, int] = {}
        self._others: dict[int, int] = {}
        self.nbytes = 0

    def __len__(self) -> int:
        return len(self._line)

    def __bool__(self) -> bool:
        return bool(self._line)

    def __iter__(self) -> Iterator[Received]:
        return iter(self._line)

    def put(self, command: Received) -> None:
        """Let a command wait behind all others."""
        self._line.append(command)
        self._count(command, 1)

    def put_back(self, command: Received) -> None:
        """Let a command wait that is to be handled next."""
        self._line.appendleft(command)
        self._count(command, 1)

    def take(self) -> Received:
        """Take the first."""
        command = self._line.popleft()
        self._count(command, -1)
        return command

    def _count(self, command: Received, change: int) -> None:
        size = COMMAND_BYTES
        if isinstance(command, Publish):
            size += len(command.body) + len(command.properties)
            counts = self._publications
        else:
            counts = self._others
        self.nbytes += change * size
        channel = channel_of(command)
        left = counts.get(channel, 0) + change
        if left:
            counts[channel] = left
        else:
            counts.pop(channel, None)

    def lets(self, command: Received) -> bool:
        """Whether a command that comes now may be handled before those that wait."""
        if isinstance(command, Publish):
            return False
        channel = channel_of(command)
        if not channel:
            ends = isinstance(command, Command) and isinstance(command.method, Connection.Close)
            return not (ends and self._line)
        if channel in self._others:
            return False
        if channel not in self._publications:
            return True
        return isinstance(command, Ack) or (
            isinstance(command, Command) and isinstance(command.method, _OVERTAKING)
        )

    def drop(self, channel: int) -> None:
        """Drop the commands of a channel that is closed."""
        if channel not in self._publications and channel not in self._others:
            return
        gone = [each for each in self._line if channel_of(each) == channel]
        self._line = deque([each for each in self._line if channel_of(each) != channel])
        for each in gone:
            self._count(each, -1)

    def clear(self) -> None:
        """Drop all."""
        self._line.clear()
        self._publications.clear()
        self._others.clear()
        self.nbytes = 0


def channel_of(command: Received) -> int:
    """Return the channel of a command."""
    return command.channel if isinstance(command, Ack | Command | Publish) else 0
