"""Confirms with data of their own to write, together with the messages that they confirm."""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Protocol

from ..accounts import Confirm


def nowhere(key: str, value: bytes) -> None:
    """Keep nothing."""


class Writes(abc.ABC):
    """A `Confirm` that is told when its message is put into a batch of the store's.

    It may put something of its own into that batch then: both survive a crash, or neither.
    """

    __slots__ = ()

    @abc.abstractmethod
    def written(self, where: str = "", put: Callable[[str, bytes], object] = nowhere) -> Confirm:
        """Note that one of the expected holders has written its message.

        Args:
            where: The place: the name of a queue in the store.
            put: Keeps a value, by its key, in the very batch that the message is in.

        Returns:
            The confirm for that holder to use from now on, in place of this.
        """


class TakesWritten(Protocol):
    """A confirm that tells holders that have written their message from the others."""

    def expect(self) -> None:
        """See `Confirm.expect`."""
        ...

    def written_is_taken(self) -> None:
        """Note that a holder that has written its message is responsible."""
        ...

    def refused(self, reason: str) -> None:
        """See `Confirm.refused`."""
        ...


class Written:
    """The confirm of a holder that has written its message.

    Args:
        of: The confirm that it was before.
    """

    __slots__ = ("_of",)

    def __init__(self, of: TakesWritten) -> None:
        self._of = of

    def expect(self) -> None:
        self._of.expect()

    def taken(self) -> None:
        self._of.written_is_taken()

    def refused(self, reason: str) -> None:
        self._of.refused(reason)
