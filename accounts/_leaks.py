"""Log of leaked loans, which nobody settled (rule 12): their accounts and their holders.

A leak is a bug in the program, and a program that leaks mostly does so with every message. So the
first leak is logged at once; then one line in `STRETCH_SECONDS` covers those since, names a few and
counts all. Memory is bounded however many there are.
"""

from __future__ import annotations

import logging
from typing import Any, Final

import attrs

logger = logging.getLogger("clearfunds.accounts")

STRETCH_SECONDS: Final = 10.0
"""The least time between two lines."""

MAX_NAMED_LEAKS: Final = 5
"""How many leaks a line names."""


@attrs.define(slots=True)
class Gone:
    """Name and kind of a holder that may no longer exist."""

    name: str
    kind: str


@attrs.define(slots=True)
class LeakLog:
    """Leaks found since the last log line."""

    loans: int = 0
    items: int = 0
    bytes: int = 0
    named: list[dict[str, Any]] = attrs.field(factory=list[dict[str, Any]])
    due: float = float("-inf")

    def note(self, account: str, items: int, nbytes: int, holder: str | None) -> None:
        """Note one leak; `holder` is None if nobody had taken the loan yet."""
        self.loans += 1
        self.items += items
        self.bytes += nbytes
        if len(self.named) < MAX_NAMED_LEAKS:
            self.named.append(
                {"account": account, "holder": holder, "items": items, "bytes": nbytes}
            )

    def tell(self, now: float) -> None:
        """Write the line, if there are leaks and the last line is long enough ago."""
        if not self.loans or now < self.due:
            return
        named, more = self.named, self.loans - len(self.named)
        loans, items, nbytes = self.loans, self.items, self.bytes
        self.named = []
        self.loans = self.items = self.bytes = 0
        self.due = now + STRETCH_SECONDS
        whose = " and ".join(
            f"of {leak['account']} "
            + ("before any holder took it" if leak["holder"] is None else f"at {leak['holder']}")
            for leak in named
        )
        logger.error(
            "%d loan%s of %d items and %d bytes in all leaked: nobody settled %s, %s%s; "
            "repaid as `leaked`, but not delivered: this is a fault in the program",
            loans,
            "" if loans == 1 else "s",
            items,
            nbytes,
            "it" if loans == 1 else "them",
            whose,
            f" and {more} more" if more else "",
            extra={
                "event": "leaked",
                "loans": loans,
                "items": items,
                "bytes": nbytes,
                "leaks": named,
                "leaks_more": more,
            },
        )
