"""What has happened to each client in the last day: it came, waited, was relieved, was cut off.

Rules of this file:

1. It is bounded, however much happens: `HAPPENINGS_MAX` of each client and sort, and `CLIENTS_MAX`
   clients of each sort, those of which nothing has been heard for longest forgotten first. That is
   8 MiB with names of 24 characters of which none comes twice, 12 MiB with the longest.
2. There are two sorts, comings and troubles. Clients that come and go push out no troubles, neither
   their own nor those of others.
3. The same that happens again within `TOGETHER_SECONDS` is one happening, with a count.
4. Nothing is kept until somebody has called `keep`: a program without pages shows it to nobody. No
   turn runs this code.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import TYPE_CHECKING, Final, Literal

import attrs

if TYPE_CHECKING:
    from .._backlog import Relief

CLIENTS_MAX: Final = 1000

HAPPENINGS_MAX: Final = 16

DAY_SECONDS: Final = 86_400.0

TOGETHER_SECONDS: Final = 60.0

WORDS_MAX: Final = 200
"""Characters of a name or a reason: peers choose them."""

What = Literal["connected", "left", "waited", "blocked", "relieved", "given_up"]
"""The client came, from an address; it left, for a reason; it waited for a holder; it made an
account wait; it was relieved by its policy (messages were dropped or spilled); it was given up."""


@attrs.define(slots=True)
class Happening:
    """Something that has happened to a client, once or several times."""

    at: float
    """When it happened last, by the ledger's clock."""
    what: What
    whom: str | None = None
    """The address, the reason, the holder, the account or the policy; None: unknown."""
    seconds: float = 0.0
    """How long the longest wait was, or the time without progress."""
    items: int = 0
    """Events that were written off."""
    times: int = 1
    lost: Relief | None = None
    """Of one that was relieved: messages dropped and spilled, which may still grow."""


class _Sort:
    """The happenings of one sort, by client."""

    def __init__(self) -> None:
        self._of: OrderedDict[str, deque[Happening]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._of)

    def note(self, client: str, new: Happening) -> None:
        client = client[:WORDS_MAX]
        if new.whom is not None:
            new.whom = new.whom[:WORDS_MAX]
        found = self._of.get(client)
        if found is None:
            if len(self._of) >= CLIENTS_MAX:
                self._of.popitem(last=False)
            self._of[client] = deque([new], HAPPENINGS_MAX)
            return
        self._of.move_to_end(client)
        last = found[-1]
        if (
            (last.what, last.whom) == (new.what, new.whom)
            and new.at - last.at <= TOGETHER_SECONDS
            and new.lost is None
        ):
            last.at = new.at
            last.seconds = max(last.seconds, new.seconds)
            last.items += new.items
            last.times += 1
        else:
            found.append(new)

    def of(self, client: str) -> list[Happening]:
        return list(self._of.get(client[:WORDS_MAX], ()))


class Timelines:
    """The timelines of one ledger's clients."""

    def __init__(self) -> None:
        self._comings: _Sort | None = None
        self._troubles: _Sort | None = None

    def __len__(self) -> int:
        """Return the number of timelines kept; a client with both sorts counts twice."""
        return sum([len(sort) for sort in (self._comings, self._troubles) if sort is not None])

    def keep(self) -> None:
        """Keep what happens from now on. Idempotent."""
        if self._comings is None:
            self._comings, self._troubles = _Sort(), _Sort()

    def came(self, client: str, now: float, address: str) -> None:
        """Note that a client has been let in."""
        if self._comings is not None:
            self._comings.note(client, Happening(now, "connected", address))

    def left(self, client: str, now: float, reason: str) -> None:
        """Note that a client has gone."""
        if self._comings is not None:
            self._comings.note(client, Happening(now, "left", reason))

    def waited(self, account: str, holder: str | None, seconds: float, now: float) -> None:
        """Note that an account has waited for a holder."""
        if self._troubles is not None:
            self._troubles.note(account, Happening(now, "waited", holder, seconds))
            if holder is not None:
                self._troubles.note(holder, Happening(now, "blocked", account, seconds))

    def relieved(self, holder: str, policy: str, seconds: float, lost: Relief, now: float) -> None:
        """Note that a holder was relieved by its policy."""
        if self._troubles is not None:
            self._troubles.note(holder, Happening(now, "relieved", policy, seconds, lost=lost))

    def given_up(
        self, holder: str, why: str | None, seconds: float, items: int, now: float
    ) -> None:
        """Note that a holder was given up."""
        if self._troubles is not None:
            self._troubles.note(holder, Happening(now, "given_up", why, seconds, items))

    def of(self, client: str, now: float) -> list[Happening]:
        """Return what has happened to a client in the last day, the latest first."""
        if self._comings is None or self._troubles is None:
            return []
        found = self._comings.of(client) + self._troubles.of(client)
        found.sort(key=lambda each: -each.at)
        return [each for each in found if now - each.at <= DAY_SECONDS]
