"""A confirm: what tells a publisher that somebody has taken responsibility for a message."""

from __future__ import annotations

from typing import Protocol


class Confirm(Protocol):
    """One publication that its publisher waits to hear of.

    Given to a turn (`Account.turn(event, confirm=...)`), and to be found as `Ledger.confirming`
    while that turn hands over. A holder that needs time to take responsibility (a queue that
    writes to disk first) calls `expect` in its `hold`, and later once `taken` or `refused`; who
    takes it at once calls nothing. When the turn has ended and nothing is expected any more, the
    publication is confirmed: its debt has cleared, or is on disk (rule 7).

    Source: RabbitMQ's publisher confirms, rabbit_confirms.erl: of each message, the set of the
    queues that have not yet said so; the last one confirms it.
    """

    def expect(self) -> None:
        """Somebody will take responsibility later, or refuse."""
        ...

    def taken(self) -> None:
        """One of those who were expected has taken responsibility, or is done with it."""
        ...

    def refused(self, reason: str) -> None:
        """One of those who were expected will not."""
        ...
