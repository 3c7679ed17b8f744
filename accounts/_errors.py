"""What can go wrong with accounts. All of it is local misuse; no peer can cause these."""


class AccountError(Exception):
    """The books were used in a way that they forbid."""


class AuditError(AccountError):
    """The books do not balance.

    Attributes:
        discrepancies: One sentence for each account or holder that is wrong.
    """

    def __init__(self, discrepancies: tuple[str, ...]) -> None:
        super().__init__("the ledger does not balance:\n  " + "\n  ".join(discrepancies))
        self.discrepancies = discrepancies


class ClosedAccountError(AccountError):
    """Something was to be charged to an account that is closed."""


class NotALoanError(AccountError, TypeError):
    """A holder was given something that nobody owes for (rule 15)."""


class QuotaExceededError(AccountError):
    """An owner's standing state (assertions, retained messages) is at its limit (rule 16)."""


class SelfWaitError(AccountError, RuntimeError):
    """A task would wait for debt that it alone can repay (rule 5)."""


class SettledError(AccountError):
    """A loan or a turn was used after its end, or for more than it covers."""


class TooManyDeliveriesError(AccountError):
    """The actions of one turn would cause more deliveries than they may; none has happened."""


class UnfitPolicyError(AccountError, ValueError):
    """A holder was given a policy that it cannot be dealt with by when it is stuck (rule 11)."""
