"""Confirms that have something to write themselves, together with what they confirm."""

from __future__ import annotations

import abc
from collections.abc import Callable

from ..accounts import Confirm


def nowhere(key: str, value: bytes) -> None:
    """Keep nothing."""


class Writes(abc.ABC):
    """A `Confirm` that wants to know when what it confirms is put into a batch of the store's.

    It may put something of its own into that batch then: both survive a crash, or neither.
    """

    __slots__ = ()

    @abc.abstractmethod
    def written(self, where: str = "", keep: Callable[[str, bytes], object] = nowhere) -> Confirm:
        """Note that one of those who were expected has written its message.

        Args:
            where: To which place: the name of a queue in the store.
            keep: Keeps a value, by its key, in the very batch that the message is in.

        Returns:
            What that one has to tell from now on, in place of this.
        """
