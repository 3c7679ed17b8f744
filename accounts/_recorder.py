"""A recorder hears of every change in the books: a journal (`Ledger.recorder`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Collection

    from ._account import Account
    from ._holder import Holder
    from ._leaks import Gone
    from ._outcome import Outcome


class Recorder(Protocol):
    """A listener for the events of a ledger.

    It is called in the middle of turns: it must not raise, must not await, must not change the
    books. It should keep names and numbers only: references to accounts, holders and events would
    keep those alive.

    Settled, published and outstanding events together are all that was ever borrowed. The input of
    a root turn that published or sent something is reported as published; the input of another, or
    of one that failed, as settled by the ledger's router.
    """

    def settled(
        self,
        account: Account,
        holder: Holder | Gone | None,
        items: int,
        nbytes: int,
        outcome: Outcome,
        opened: float | None,
    ) -> None:
        """Record that a loan, or a part of one, has ended.

        Args:
            account: The account that owed for it.
            holder: Its holder, or None; for leaked loans, only its name and kind.
            items: Events that are repaid; 0 where only bytes are.
            nbytes: Their bytes.
            outcome: Why it ended.
            opened: When it was made, on the ledger's clock: where deliveries have joined one loan,
                the first of them. None: just now.
        """
        ...

    def delivered(
        self, account: Account, ended: Collection[tuple[Holder, int, int, float]]
    ) -> None:
        """Record that several loans of one account were delivered: as `settled` for each of them.

        Args:
            account: The account that owed for them.
            ended: (holder, items, bytes, opened) of each.
        """
        ...

    def published(
        self,
        account: Account,
        about: object,
        items: int,
        nbytes: int,
        copies: int,
        copied_bytes: int,
    ) -> None:
        """Record that a root turn has been committed.

        Args:
            account: The account that pays.
            about: The event that was published, or the first of several; else the item sent.
            items: Events that came in.
            nbytes: Their bytes.
            copies: Events that were handed to holders.
            copied_bytes: Their bytes.
        """
        ...

    def stalled(
        self,
        account: Account,
        at: Account,
        culprit: str,
        seconds: float,
        ended: float,
        reason: str,
    ) -> None:
        """Record that a reader was blocked. Called when its wait ends, and by `Ledger.tell_stalls`.

        Args:
            account: The reader's account.
            at: The account whose debt had to fall: that account, or one above it.
            culprit: The holder that was waited on, or the alarm.
            seconds: Blocked seconds that were not reported yet.
            ended: When that was over, on the ledger's clock.
            reason: One of `REASONS`.
        """
        ...

    def limit_changed(self, account: Account) -> None:
        """Record that the limit of an account has changed."""
        ...
