"""Publisher confirms: they tell a publisher that a holder took responsibility for a message."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from ._ledger import Ledger

T = TypeVar("T")


class Confirm(Protocol):
    """One publication whose publisher waits for a confirm.

    It is given to a turn (`Account.turn(event, confirm=...)`), and is `Ledger.confirming` while
    that turn hands over. A holder that needs time to take responsibility (a queue that writes to
    disk first) calls `expect` in its `hold`, and later once `taken` or `refused`. A holder that
    takes it at once calls nothing. When the turn has ended and nothing is expected any more, the
    publication is confirmed: its debt has cleared, or is on disk (rule 7).

    Source: RabbitMQ's publisher confirms, rabbit_confirms.erl: for each message it keeps the set of
    queues that have not confirmed yet; the last one confirms it.
    """

    def expect(self) -> None:
        """Announce that a holder will take responsibility later, or refuse."""
        ...

    def taken(self) -> None:
        """Note that one expected holder has taken responsibility, or is done with it."""
        ...

    def refused(self, reason: str) -> None:
        """Note that one expected holder refuses."""
        ...


class CountedConfirm:
    """The part of a confirm that counts what it waits for.

    Attributes:
        expected: What has still to come: all expected holders, and the end of its turn, with which
            a subclass begins.
    """

    __slots__ = ("expected",)

    expected: int

    def expect(self) -> None:
        self.expected += 1


def under_confirm(
    ledger: Ledger, confirm: Confirm | None, call: Callable[..., T], *args: object
) -> T:
    """Call `call`, which hands something over; `confirm` hears who takes responsibility for it.

    For callers that do a turn in one step, as with `commit_run`.
    """
    outer, ledger.confirming = ledger.confirming, confirm
    try:
        return call(*args)
    finally:
        ledger.confirming = outer
