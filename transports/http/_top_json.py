"""`/ledger.json?top=N`: the first rows of everything, for those who look often and show little.

The whole of `/ledger.json` takes a second of the relay's time with ten thousand accounts; this is
bounded. What is left out is counted under `more`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Self

import attrs

from ._json import compact as _encode
from ._survey import By, Most, Survey, survey

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from ...accounts import Ledger
    from ._cooperative import Pace

TOP_MAX: Final = 100
# More than a screen has lines.

_BY: Final[dict[str, By]] = {"debt": "debt", "waited": "waited", "held": "held"}


class TopPage(Survey):
    """What is said."""

    busy_ms: float
    """CPU time that it took; who asks often should be told by it how often."""


@attrs.frozen
class TopQuery:
    """What is asked for."""

    top: int
    """How many accounts and holders."""
    by: By = "debt"
    """Whose come first."""

    @classmethod
    def parse(cls, query: Mapping[str, tuple[str, ...]]) -> Self | None:
        """Read `top=N` and `by=debt`, `waited` or `held`; None if there is no `top`.

        Raises:
            ValueError: With a sentence about what is wrong with it.
        """
        tops = query.get("top")
        if tops is None:
            return None
        number = tops[0] if len(tops) == 1 else ""
        if not re.fullmatch("[0-9]{1,4}", number) or not 1 <= int(number) <= TOP_MAX:
            msg = f"top is how many rows there may be: one number from 1 to {TOP_MAX}."
            raise ValueError(msg)
        orders = query.get("by", ("debt",))
        by = _BY.get(orders[0]) if len(orders) == 1 else None
        if by is None:
            msg = f"by is what comes first: one of {', '.join(_BY)}."
            raise ValueError(msg)
        return cls(int(number), by)


async def write_top(ledger: Ledger, pace: Pace, query: TopQuery) -> AsyncGenerator[bytes, None]:
    """Write the page, in one piece."""
    found: Any = await survey(
        ledger, pace, Most(accounts=query.top, holders=query.top, by=query.by)
    )
    await pace.pause()
    busy = round(pace.busy_seconds * 1e3, 2)
    yield f"{_encode({**found, 'busy_ms': busy})}\n".encode("ascii")
