"""Where a hop leaves what has to be stored before it goes to the other relay."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from ...accounts import CountedConfirm

if TYPE_CHECKING:
    from ...accounts import Account, Confirm
    from ._wire import Identity


class Outbox(Protocol):
    """The outbox of a hop: it stores events, and sends them by the hop as `Sending`."""

    def takes(self, event: Any, confirm: Confirm) -> bool:
        """Return whether an event has to be stored first."""
        ...

    def hold(self, account: Account, item: Any, items: int, nbytes: int, now: float) -> None:
        """See `Holder.hold`."""
        ...

    def ready(self) -> None:
        """See `Recipient.ready`."""
        ...

    @property
    def erased(self) -> Identity | None:
        """The identity of the first event that may still come; None: that is not known."""
        ...


class Sending(CountedConfirm):
    """An event of an outbox on its way to the other relay: the confirm with which the hop holds it.

    Attributes:
        identity: Its identity, the same in all lives of the hop; the first number is negative.
        origin: The name of the account that has caused it.
        above: The names of the accounts above that, the root first.
    """

    __slots__ = ("above", "identity", "origin")

    def __init__(self, identity: Identity, origin: str, above: tuple[str, ...]) -> None:
        self.identity = identity
        self.origin = origin
        self.above = above
        self.expected = 1

    def taken(self) -> None:
        """Note that the other relay has taken responsibility."""

    def refused(self, reason: str) -> None:
        """See `Confirm.refused`."""
        del reason
        self.taken()

    def lost(self) -> None:
        """Note that the hop has given it up: it has to be sent again."""
