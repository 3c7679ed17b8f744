"""Errors of accounts. All of them are local misuse; no peer can cause them."""


class AccountError(Exception):
    """Misuse of accounts, loans or turns; the base class of these errors."""


class NoLoopError(AccountError, RuntimeError):
    """A reader has to wait, or a ledger is watched, where no event loop runs."""


class WrongLoopError(AccountError, RuntimeError):
    """A ledger is used from a second event loop or thread, while the first one uses it."""


class AuditError(AccountError):
    """The books do not balance.

    Attributes:
        discrepancies: One sentence for each account or holder that is wrong.
    """

    def __init__(self, discrepancies: tuple[str, ...]) -> None:
        super().__init__("the ledger does not balance:\n  " + "\n  ".join(discrepancies))
        self.discrepancies = discrepancies


class ClosedAccountError(AccountError):
    """A charge was attempted to an account that is closed."""


class NotALoanError(AccountError, TypeError):
    """A holder was given something that no account owes for (rule 15)."""


class QuotaExceededError(AccountError):
    """An owner's standing state (assertions, retained messages) is at its limit (rule 16)."""


class SelfWaitError(AccountError, RuntimeError):
    """A task would wait for debt that it alone can repay (rule 5)."""


class SettledError(AccountError):
    """A loan or a turn was used after its end, or for more than it covers."""


class TooManyDeliveriesError(AccountError):
    """The actions of one turn would cause too many deliveries; none has happened."""


class UnfitPolicyError(AccountError, ValueError):
    """A holder was given a policy for slow consumers that it does not support (rule 11)."""
