"""The topic filters that a relay has subscribers for, for the other relays.

They lie in pages, by a checksum of each filter: a change writes one page anew. Where there are too
many for that, the relay asks for everything.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final, cast
from zlib import crc32

from ..dataspace._routes import Routes, Subscription
from ..dataspace.hops import Hop

PAGES: Final = 64
MAX_FILTERS: Final = 100_000
"""Different filters that are told one by one; a page of them has about 60 kB then."""
MAX_PAGE_BYTES: Final = 512 << 10
"""Half of what NATS takes as one message by default."""
ALL: Final = "#"


class Interest:
    """Counts the filters of a relay's own subscribers.

    Args:
        routes: The relay's routes; from now on they tell of each change.
        returns: Whether the next relay of that name has subscribers for the same.

    Attributes:
        on_change: Called when a page has changed.
    """

    def __init__(self, routes: Routes, *, returns: bool = False) -> None:
        self._returns = returns
        self.on_change: Callable[[], object] = lambda: None
        self._counts: dict[str, int] = {}
        self._pages: list[set[str]] = [set() for _ in range(PAGES)]
        self._changed: set[int] = set()
        routes.on_change = self._note

    def __len__(self) -> int:
        """Return the number of different filters."""
        return len(self._counts)

    def _note(self, subscription: Subscription, change: int) -> None:
        if isinstance(subscription.acked, Hop):
            return  # another relay's
        text = subscription.filter.text
        if text.startswith("$"):
            return  # this relay's own notices
        count = self._counts.get(text, 0) + change
        number = crc32(text.encode()) % PAGES
        if count:
            self._counts[text] = count
            if count != change:
                return
            self._pages[number].add(text)
        else:
            del self._counts[text]
            self._pages[number].discard(text)
        if len(self._counts) in (MAX_FILTERS, MAX_FILTERS + 1):
            self._changed.update(range(PAGES))  # it may begin or cease to ask for everything
        self._changed.add(number)
        self.on_change()

    def all_again(self) -> None:
        """Have all pages written once more."""
        self._changed.update(range(PAGES))
        self.on_change()

    def changed(self) -> list[int]:
        """Return the pages that have changed since the last call, in the order to write them in.

        Page 0 is the one that asks for everything: it comes before the others are emptied, and
        after they are filled.
        """
        found = sorted(self._changed, reverse=len(self._counts) <= MAX_FILTERS)
        self._changed.clear()
        return found

    def page(self, number: int, life: int) -> bytes:
        """Return a page as it is to be written by this life of the relay."""
        filters: Any = sorted(self._pages[number])
        if len(self._counts) > MAX_FILTERS:
            filters = (ALL,) if not number else ()
        data = self._encoded(life, filters)
        return data if len(data) <= MAX_PAGE_BYTES else self.page_of_all(life)

    def page_of_all(self, life: int) -> bytes:
        """Return a page that asks for everything."""
        return self._encoded(life, (ALL,))

    def _encoded(self, life: int, filters: Any) -> bytes:
        page = {"life": life, "returns": self._returns, "filters": filters}
        return json.dumps(page).encode()


def read_page(data: bytes) -> tuple[int, bool, frozenset[str]]:
    """Return the life of a page, whether its relay returns, and its filters.

    Raises:
        ValueError: It is none.
    """
    try:
        values = json.loads(data)
        life, returns, filters = values["life"], values["returns"], values["filters"]
    except (TypeError, LookupError, RecursionError) as exc:
        msg = f"no page of filters: {exc!r}"
        raise ValueError(msg) from exc
    if (type(life), type(returns), type(filters)) != (int, bool, list):
        msg = "no page of filters: a part has a wrong type"
        raise ValueError(msg)
    return life, returns, frozenset(str(each) for each in cast("list[object]", filters))
