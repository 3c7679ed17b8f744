"""A holder of another relay, as it is known here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, ClassVar, Final

from ...accounts import Account, Holder, Ledger, LoanedItem, Outcome, StuckPolicy
from ._wire import Path

PREFIX: Final = "via"
"""The beginning of the name of an account whose events have come from another relay."""


def via(relay: str, origin: str) -> str:
    """Return the name of the account here of an account of another relay."""
    return f"{PREFIX}/{relay}/{origin}"


class RemoteHolder(Holder):
    """A holder of another relay, with the loans that it holds there; `Hop` makes it.

    Args:
        ledger: The books here.
        name: Its name, with its relay's before it.
        relay: Its relay.
        me: The name of this relay.

    Attributes:
        paths: What the peer of its owner waits for: each path begins with that owner itself.
        held: The loans, by number of parcel.
    """

    __slots__ = ("_me", "_rank", "_relay", "held", "paths")

    kind = "remote"
    policies: ClassVar[frozenset[StuckPolicy]] = frozenset({StuckPolicy.WAIT})

    def __init__(self, ledger: Ledger, name: str, relay: str, me: str) -> None:
        super().__init__(ledger, name, policy=StuckPolicy.WAIT)
        self._relay = relay
        self._me = me
        self._rank = int(relay < me)
        self.paths: tuple[Path, ...] = ()
        self.held: dict[int, LoanedItem[Any]] = {}

    def hold(self, account: Account, item: Any, items: int, nbytes: int, now: float) -> None:
        """Take nothing: deliveries go to the hop."""
        account.repay(items, nbytes, Outcome.DROPPED, self)

    @property
    def ring_rank(self) -> int:
        return self._rank

    def waits_for(self, owner: str, beyond: Iterable[Path]) -> None:
        """Note the account of its peer, and what that one waits for in turn.

        A path that comes back to this relay closes a ring: then `owner` is the account here of the
        last relay before that, whose reader waits here, too. So a ring over any number of relays is
        one here (`accounts.watch`).
        """
        start = (self._relay, owner)
        self.paths = tuple((start, *path) for path in beyond) or ((start,),)
        for path in self.paths:
            back = next((at for at, (relay, _) in enumerate(path) if relay == self._me), 0)
            account = self.ledger.accounts.get(via(*path[back - 1])) if back else None
            if account is not None and account.waiting:
                relays = {relay for relay, _ in path[:back]}
                self.owner, self._rank = account, sum(each < self._me for each in relays)
                if self._rank:
                    self.ledger.ranked.add(self)
                return
        self.owner = self.ledger.accounts.get(via(*start))
        self._rank = int(self._relay < self._me)
        self.ledger.ranked.discard(self)

    def close(self) -> None:
        """Forget it: nothing is there any more."""
        self.ledger.ranked.discard(self)
        self.ledger.unregister(self)

    def ready(self) -> None:
        """See `Recipient.ready`."""

    def loans(self) -> Iterator[LoanedItem[Any]]:
        yield from self.held.values()

    def give_up(self, why: str) -> None:
        """Do nothing: the other relay gives it up, by its policy."""
