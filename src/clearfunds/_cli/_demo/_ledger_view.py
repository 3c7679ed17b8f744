"""What the relay's `/ledger.json` says, as far as the demo shows it."""

from __future__ import annotations

from typing import Any

import attrs


@attrs.frozen(slots=True)
class AccountView:
    """One account's statement."""

    name: str
    """Whose it is."""
    state: str
    """`clear`, `owing`, `throttled` or `closing`."""
    debt_items: int
    """Messages not dealt with yet."""
    debt_bytes: int
    """Their bytes."""
    peak_items: int
    """The highest `debt_items` so far."""
    limit_items: int | None
    """The debt above which its owner is not read any more."""
    waiting_seconds: float
    """How long it has been waiting now, 0 if it does not."""
    waited_seconds: float
    """How long it has been waiting in all."""
    blame: dict[str, float]
    """For how many of those seconds on whom."""

    @classmethod
    def parse(cls, row: dict[str, Any]) -> AccountView:
        """Read an element of the page's `accounts`."""
        return cls(
            name=row["name"],
            state=row["state"],
            debt_items=row["debt"]["items"],
            debt_bytes=row["debt"]["bytes"],
            peak_items=row["peak"]["items"],
            limit_items=row["limit"]["items"],
            waiting_seconds=row["waiting_seconds"],
            waited_seconds=row["waited_seconds"],
            blame=row["blame"],
        )


@attrs.frozen(slots=True)
class HoldingView:
    """How much of one account's debt one holder has."""

    account: str
    """Whose debt."""
    holder: str
    """Who has it."""
    items: int
    """Messages."""
    bytes: int
    """Their bytes."""
    oldest_seconds: float
    """Since when, for the oldest of them."""


@attrs.frozen(slots=True)
class LedgerView:
    """The page."""

    accounts: tuple[AccountView, ...]
    """All accounts."""
    holdings: tuple[HoldingView, ...]
    """Who has whose debt."""
    debt_items: int
    """All debt."""
    waiting_readers: int
    """How many wait now."""
    balanced: bool
    """Whether the audit found the books to agree with what the holders have."""
    discrepancies: tuple[str, ...]
    """What it found if not."""

    @classmethod
    def parse(cls, page: dict[str, Any]) -> LedgerView:
        """Read the page."""
        return cls(
            accounts=tuple(AccountView.parse(row) for row in page["accounts"]),
            holdings=tuple(HoldingView(**row) for row in page["matrix"]),
            debt_items=page["totals"]["debt"]["items"],
            waiting_readers=page["totals"]["waiting_readers"],
            balanced=page["audit"]["balanced"],
            discrepancies=tuple(str(each) for each in page["audit"]["discrepancies"]),
        )

    def account(self, name: str) -> AccountView | None:
        """Return the account of the client called `name`."""
        for account in self.accounts:
            if client_of(account.name) == name:
                return account
        return None

    def held_by(self, holder: str) -> list[HoldingView]:
        """Return what the client called `holder` has."""
        return [each for each in self.holdings if client_of(each.holder) == holder]

    def holders_of(self, account: str) -> list[HoldingView]:
        """Return who has the debt of the account called `account`, most first."""
        holdings = [each for each in self.holdings if each.account == account]
        return sorted(holdings, key=lambda each: -each.items)


def client_of(name: str) -> str:
    """Return the client identifier in an account's or a holder's name: `listener/user/client`."""
    return name.rsplit("/", 1)[-1]
