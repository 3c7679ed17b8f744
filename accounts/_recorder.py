"""Who is told of everything that happens in the books: a journal (`Ledger.recorder`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Collection

    from ._account import Account
    from ._holder import Holder
    from ._leaks import Gone
    from ._outcome import Outcome


class Recorder(Protocol):
    """What a ledger tells of, as it happens.

    It is called in the middle of turns: it must not raise, must not await, must not change the
    books, and should keep names and numbers only: whatever it keeps of accounts, holders and events
    outlives them.

    What is settled, with what is published and what is still outstanding, is all that was ever
    borrowed: the input of a root turn that published or sent something is told of as published;
    that of another, or of one that failed, as settled by the ledger's router.
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
        """A loan, or a part of one, has ended.

        Args:
            account: Who owed for it.
            holder: Who had it in his hands, or None; of what has leaked, only its name and kind.
            items: Events that are repaid; 0 where only bytes are.
            nbytes: Their bytes.
            outcome: Why.
            opened: When it was made, on the ledger's clock: where deliveries have joined one loan,
                the first of them. None: just now.
        """
        ...

    def delivered(
        self, account: Account, ended: Collection[tuple[Holder, int, int, float]]
    ) -> None:
        """Several loans of one account have ended as delivered: as `settled`, for each of them.

        Args:
            account: Who owed for them.
            ended: Holder, items, bytes and since when, of each.
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
        """A root turn has been committed.

        Args:
            account: Who pays.
            about: What was published, or the first of it; else what was sent.
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
        """A reader has been kept waiting. Told when its wait ends, and by `Ledger.tell_stalls`.

        Args:
            account: Whose reader.
            at: Whose debt had to fall: that account, or one above it.
            culprit: The holder that was waited on, or the alarm.
            seconds: For how long, in all that has not been told of.
            ended: When that was over, on the ledger's clock.
            reason: One of `REASONS`.
        """
        ...

    def limit_changed(self, account: Account) -> None:
        """The limit of an account is another one now."""
        ...
