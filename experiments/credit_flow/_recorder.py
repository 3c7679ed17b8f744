"""Listens to every repayment, and gives the senders their credit."""

from __future__ import annotations

from collections.abc import Collection, Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from clearfunds.accounts import Account, Holder, Outcome, Recorder
    from clearfunds.accounts._leaks import Gone

    from ._scheme import CreditScheme


class CreditRecorder:
    """The recorder of a ledger whose readers wait for credit (`clearfunds.accounts.Recorder`).

    Args:
        scheme: The scheme to notify.
        then: Another recorder to notify: a journal.
    """

    __slots__ = ("_scheme", "_then")

    def __init__(self, scheme: CreditScheme, then: Recorder | None) -> None:
        self._scheme = scheme
        self._then = then

    def settled(
        self,
        account: Account,
        holder: Holder | Gone | None,
        items: int,
        nbytes: int,
        outcome: Outcome,
        opened: float | None,
    ) -> None:
        if items:
            self._tell(account, ((holder, items),))
        if self._then is not None:
            self._then.settled(account, holder, items, nbytes, outcome, opened)

    def delivered(
        self, account: Account, ended: Collection[tuple[Holder, int, int, float]]
    ) -> None:
        self._tell(account, [(each[0], each[1]) for each in ended])
        if self._then is not None:
            self._then.delivered(account, ended)

    def _tell(self, account: Account, ended: Sequence[tuple[Holder | Gone | None, int]]) -> None:
        """Give senders their credit; an error must not keep debt from being repaid."""
        try:
            self._scheme.repaid_several(account, ended)
        except Exception as exc:  # noqa: BLE001 (whatever it is)
            self._scheme.ledger.faults.note(ended[0][0], "giving credit for its loans", exc)

    def published(
        self,
        account: Account,
        about: object,
        items: int,
        nbytes: int,
        copies: int,
        copied_bytes: int,
    ) -> None:
        if self._then is not None:
            self._then.published(account, about, items, nbytes, copies, copied_bytes)

    def stalled(
        self,
        account: Account,
        at: Account,
        culprit: str,
        seconds: float,
        ended: float,
        reason: str,
    ) -> None:
        if self._then is not None:
            self._then.stalled(account, at, culprit, seconds, ended, reason)

    def limit_changed(self, account: Account) -> None:
        if self._then is not None:
            self._then.limit_changed(account)


@contextmanager
def hearing(scheme: CreditScheme) -> Generator[None]:
    """Notify `scheme` of every repayment within a block, beside an earlier recorder."""
    ledger = scheme.ledger
    before = ledger.recorder
    ledger.recorder = CreditRecorder(scheme, before)
    try:
        yield
    finally:
        ledger.recorder = before
