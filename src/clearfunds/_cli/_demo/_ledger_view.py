"""The part of the relay's `/ledger.json` that the demo shows."""

from __future__ import annotations

from typing import Any

import attrs


@attrs.frozen(slots=True)
class AccountView:
    """One account's statement."""

    name: str
    """The account's name."""
    state: str
    """`clear`, `owing`, `throttled` or `closing`."""
    debt_items: int
    """Outstanding messages."""
    debt_bytes: int
    """Their bytes."""
    peak_items: int
    """The highest `debt_items` so far."""
    limit_items: int | None
    """The high-water mark: above it the account is not read."""
    waiting_seconds: float
    """Seconds of the present wait, 0 if it does not wait."""
    waited_seconds: float
    """Seconds of all waits."""
    blame: dict[str, float]
    """The part of these for each holder."""

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
    """The part of one account's debt that one holder has."""

    account: str
    """The account's name."""
    holder: str
    """The holder's name."""
    items: int
    """Messages."""
    bytes: int
    """Their bytes."""
    oldest_seconds: float
    """Age of the oldest of them."""


@attrs.frozen(slots=True)
class LedgerView:
    """The page."""

    accounts: tuple[AccountView, ...]
    """All accounts."""
    holdings: tuple[HoldingView, ...]
    """All holders' parts of all debts."""
    dropped: dict[str, int]
    """Messages that were dropped, by holder."""
    spilled: dict[str, int]
    """Messages that were spilled, by holder."""
    debt_items: int
    """All debt."""
    waiting_readers: int
    """Number of throttled readers now."""
    balanced: bool
    """Whether the audit found that the books agree with the holders."""
    discrepancies: tuple[str, ...]
    """The audit's findings if not."""

    @classmethod
    def parse(cls, page: dict[str, Any]) -> LedgerView:
        """Read the page."""
        return cls(
            accounts=tuple(AccountView.parse(row) for row in page["accounts"]),
            holdings=tuple(HoldingView(**row) for row in page["matrix"]),
            dropped={row["name"]: row["dropped"]["items"] for row in page["holders"]},
            spilled={row["name"]: row["stored"]["items"] for row in page["holders"]},
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
        """Return the holdings of the client called `holder`."""
        return [each for each in self.holdings if client_of(each.holder) == holder]

    def dropped_for(self, client: str) -> int:
        """Return how many messages to the client were dropped."""
        return sum(each for name, each in self.dropped.items() if client_of(name) == client)

    def spilled_for(self, client: str) -> int:
        """Return how many messages to the client were spilled."""
        return sum(each for name, each in self.spilled.items() if client_of(name) == client)

    def holders_of(self, account: str) -> list[HoldingView]:
        """Return the holders of the debt of the account called `account`, the largest first."""
        holdings = [each for each in self.holdings if each.account == account]
        return sorted(holdings, key=lambda each: -each.items)


def client_of(name: str) -> str:
    """Return the client identifier in an account's or a holder's name: `listener/user/client`."""
    return name.rsplit("/", 1)[-1]
