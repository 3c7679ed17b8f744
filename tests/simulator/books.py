"""Books of the simulation's own, kept from what it does itself and from what a recorder is told."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection
from hashlib import blake2b

from clearfunds.accounts import Account, Gone, Holder, Ledger, Limit, Outcome


class EventLog:
    """Everything that happens, when and in which order, as one number, to compare runs by.

    The latest lines are kept for whoever wants to know where a run went wrong.
    """

    KEPT = 60

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.lines = 0
        self.latest: list[str] = []
        self._hash = blake2b(digest_size=16)

    def add(self, *what: object) -> None:
        """Add an event; floats as they are, to the last bit."""
        line = f"{self.ledger.clock()!r} {' '.join(map(str, what))}\n"
        self._hash.update(line.encode())
        self.lines += 1
        self.latest.append(line)
        if len(self.latest) > 2 * self.KEPT:
            del self.latest[: self.KEPT]

    @property
    def digest(self) -> str:
        """The number."""
        return self._hash.hexdigest()


class Books:
    """Hears of all that is settled, writes it down, and adds up for itself."""

    def __init__(self, log: EventLog) -> None:
        self.log = log
        self.items: Counter[Outcome] = Counter()
        self.bytes: Counter[Outcome] = Counter()
        # By holder's name, of which there are never two.
        self.of_holder: defaultdict[str, Counter[Outcome]] = defaultdict(Counter)
        self.paid: Counter[str] = Counter()
        """Bytes delivered, by account."""
        self.paid_items: Counter[str] = Counter()
        self.waited: defaultdict[str, float] = defaultdict(float)
        """Seconds waited, by account."""

    def settled(
        self,
        account: Account,
        holder: Holder | Gone | None,
        items: int,
        nbytes: int,
        outcome: Outcome,
        opened: float | None,
    ) -> None:
        """See `Recorder.settled`."""
        name = "nobody" if holder is None else holder.name
        self.items[outcome] += items
        self.bytes[outcome] += nbytes
        self.of_holder[name][outcome] += items
        if outcome is Outcome.DELIVERED:
            self.paid[account.name] += nbytes
            self.paid_items[account.name] += items
        self.log.add("settled", account.name, name, items, nbytes, outcome.label, opened)

    def delivered(
        self, account: Account, ended: Collection[tuple[Holder, int, int, float]]
    ) -> None:
        """See `Recorder.delivered`."""
        for holder, items, nbytes, opened in ended:
            self.settled(account, holder, items, nbytes, Outcome.DELIVERED, opened)

    def published(
        self,
        account: Account,
        about: object,
        items: int,
        nbytes: int,
        copies: int,
        copied_bytes: int,
    ) -> None:
        """See `Recorder.published`."""
        self.items[Outcome.DELIVERED] += items
        self.bytes[Outcome.DELIVERED] += nbytes
        self.log.add("published", account.name, items, nbytes, copies, copied_bytes)

    def stalled(
        self,
        account: Account,
        at: Account,
        culprit: str,
        seconds: float,
        ended: float,
        reason: str,
    ) -> None:
        """See `Recorder.stalled`."""
        self.waited[account.name] += seconds
        self.log.add("stalled", account.name, at.name, culprit, seconds, ended, reason)

    def limit_changed(self, account: Account) -> None:
        """See `Recorder.limit_changed`."""
        limit: Limit = account.limit
        self.log.add("limit", account.name, limit.items, limit.bytes)

    def check_totals(self, ledger: Ledger) -> None:
        """Check that every repayment was told of once, with its outcome."""
        for outcome in Outcome:
            told = self.items[outcome], self.bytes[outcome]
            assert told == (ledger.repaid_items[outcome], ledger.repaid_bytes[outcome]), outcome
