"""`/ledger.json?top=N`: the first rows of everything, for frequent and small requests.

The whole of `/ledger.json` takes a second of the relay's time with ten thousand accounts; this page
is bounded. `more` counts rows left out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Self

import attrs

from ..access._patterns import of_peer
from ._json import compact as _encode
from ._survey import By, Most, Survey, survey

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from ..access._patterns import Patterns
    from ..accounts import Ledger
    from ._cooperative import Pace

TOP_MAX: Final = 100
# More than a screen has lines.

_BY: Final[dict[str, By]] = {
    "debt": "debt",
    "waited": "waited",
    "held": "held",
    "waiting": "waiting",
}


class TopPage(Survey):
    """The content of the page."""

    busy_ms: float
    """CPU time that it took; a frequent client should adapt its rate to it."""


@attrs.frozen
class TopQuery:
    """The parameters of a request."""

    top: int
    """The number of accounts, and of holders."""
    by: By = "debt"
    """Their order."""
    names: Patterns | None = None
    """Selects them; see `Most.names`."""

    @classmethod
    def parse(cls, query: Mapping[str, tuple[str, ...]]) -> Self | None:
        """Parse `top=N`, `by=debt`, `waited`, `held` or `waiting`, and `name=PART`.

        None if there is no `top`. A part of a name may be a pattern as shells have them, in upper
        or lower case.

        Raises:
            ValueError: A parameter is invalid; the message is a sentence about it.
        """
        tops = query.get("top")
        if tops is None:
            return None
        number = tops[0] if len(tops) == 1 else ""
        if not re.fullmatch("[0-9]{1,4}", number) or not 1 <= int(number) <= TOP_MAX:
            msg = f"top is the number of rows: one number from 1 to {TOP_MAX}."
            raise ValueError(msg)
        orders = query.get("by", ("debt",))
        by = _BY.get(orders[0]) if len(orders) == 1 else None
        if by is None:
            msg = f"by is the order of rows: one of {', '.join(_BY)}."
            raise ValueError(msg)
        parts = [f"*{part.lower()}*" for part in query.get("name", ()) if part]
        return cls(int(number), by, of_peer(parts) if parts else None)


async def write_top(ledger: Ledger, pace: Pace, query: TopQuery) -> AsyncGenerator[bytes, None]:
    """Write the page, in one piece."""
    found: Any = await survey(
        ledger,
        pace,
        Most(accounts=query.top, holders=query.top, by=query.by, names=query.names),
    )
    await pace.pause()
    busy = round(pace.busy_seconds * 1e3, 2)
    yield f"{_encode({**found, 'busy_ms': busy})}\n".encode("ascii")
