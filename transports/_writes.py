"""Confirms that have something to write themselves, together with what they confirm."""

from __future__ import annotations

import abc

from ..accounts import Confirm


class Writes(abc.ABC):
    """A `Confirm` that wants to know when what it confirms is put into a batch of the store's.

    It may put something of its own into that batch then: both survive a crash, or neither.
    """

    __slots__ = ()

    @abc.abstractmethod
    def written(self) -> Confirm:
        """Note that one of those who were expected has written its message.

        Returns:
            What that one has to tell from now on, in place of this.
        """
