"""The scheme of a whole relay: all processes, and their relation to accounts and holders.

Rules of this file:
1. Debt is counted as without credit: pages show who holds whose, and patience and policies are the
   same. But no reader waits for a limit: it waits while a station has no credit for it
   (`Gate.block`), whatever it may send to others. So an unaffected topic on the same connection
   waits, too.
2. All input of a holder passes its station (`_stations.py`), and the ledger's recorder
   (`_recorder.py`) reports all repayments. So no way out of a holder can be forgotten.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

from clearfunds.accounts import Account, Holder
from clearfunds.accounts._leaks import Gone
from clearfunds.accounts.limits._limit import UNLIMITED

from ._credit_flow import READER_STATE_CHANGE_SECONDS, STATE_CHANGE_SECONDS, CreditSums
from ._processes import OutletStation, Process, Reader, Station, StoreProcess
from ._settings import CreditSettings
from ._statistics import CreditStatistics, KindStatistics, ProcessStatistics

if TYPE_CHECKING:
    from clearfunds.accounts import Ledger, Recipient

KINDS: Final[tuple[str, ...]] = ("reader", "outlet", "inflight", "subscription", "queue", "store")


SWEEP_FROM: Final = 64
"""Number of readers at which to look for ended ones; the next time at twice as many."""


class CreditScheme:
    """All processes of one relay.

    Args:
        ledger: The books.
        settings: The amounts of credit at each hop.

    Attributes:
        ledger: See above.
        settings: See above.
        readers: The processes that bring messages in, by account, until that is paid off.
        stations: The processes that take them.
        store: The process that queues write to.
    """

    def __init__(self, ledger: Ledger, settings: CreditSettings | None = None) -> None:
        self.ledger = ledger
        self.settings = CreditSettings() if settings is None else settings
        self.readers: dict[Account, Reader] = {}
        self.stations: set[Station] = set()
        self.store = StoreProcess(self)
        # When to look for readers whose accounts have ended without notice.
        self._sweep_at = SWEEP_FROM
        # The counts of processes that have ended.
        self._past: dict[str, CreditSums] = dict.fromkeys(KINDS, CreditSums())
        self._past_received: dict[str, int] = dict.fromkeys(KINDS, 0)

    def __repr__(self) -> str:
        return f"<CreditScheme: {len(self.readers)} readers, {len(self.stations)} stations>"

    # -- processes come and go ------------------------------------------------------------------

    def reader_of(self, account: Account) -> Reader:
        """Return the reader that sends on behalf of `account`."""
        reader = self.readers.get(account)
        if reader is None:
            if len(self.readers) >= self._sweep_at:
                self._sweep()
            reader = self.readers[account] = Reader(self, account)
        return reader

    def _sweep(self) -> None:
        """Forget ended readers that never had a connection, such as a writer of batches."""
        known = self.ledger.accounts
        for account, reader in list(self.readers.items()):
            if known.get(account.name) is not account:
                reader.go_down()
        self._sweep_at = max(SWEEP_FROM, 2 * len(self.readers))

    def leaves(self, account: Account) -> None:
        """Note that an account's connection has ended; the reader stays until it owes nothing.

        Its messages are still under way, and may hold back a client that returns under its name.
        """
        reader = self.readers.get(account)
        if reader is not None:
            reader.leaving = True
            if not account.debt_items:
                reader.go_down()

    def has_gone(self, process: Process) -> None:
        """Forget a process that is down, and keep its counts. For `Process`."""
        self._past[process.kind] += process.flow.sums()
        if isinstance(process, Reader):
            self.readers.pop(process.account, None)
        elif isinstance(process, Station):
            self.stations.discard(process)
            self._past_received[process.kind] += process.received

    # -- repayments -----------------------------------------------------------------------------

    def repaid(self, account: Account, holder: Holder | Gone | None, items: int) -> None:
        """Note that `holder` is about to repay `items` of an account."""
        self.repaid_several(account, ((holder, items),))

    def repaid_several(
        self, account: Account, ended: Iterable[tuple[Holder | Gone | None, int]]
    ) -> None:
        """Note that several holders are about to repay items of an account."""
        reader = self.readers.get(account)
        if reader is None:
            return
        all_items = 0
        for holder, items in ended:
            all_items += items
            station = getattr(holder, "station", None)
            if station is None and isinstance(holder, Gone):
                station = _known_as(reader, holder)
            if isinstance(station, OutletStation):
                station.handled(reader, items)
        if reader.leaving and account.debt_items <= all_items:
            reader.go_down()

    # -- waiting --------------------------------------------------------------------------------

    def room(self, account: Account, recipients: Iterable[Recipient]) -> int:
        """Return how many messages `account` may send to each of these before it is blocked.

        No limit applies to recipients whose hop has no initial credit. At least one.
        """
        least = UNLIMITED
        reader = self.readers.get(account)
        credit_from = {} if reader is None else reader.flow.credit_from
        for recipient in recipients:
            station = getattr(recipient.last_holder, "station", None)
            # A queue handles its input at once.
            if isinstance(station, OutletStation):
                left = credit_from.get(station, station.credit.initial)
                if 0 < left < least:
                    least = left
        return least

    def is_blocked(self, account: Account) -> bool:
        """Whether a station has no credit for messages of `account`."""
        reader = self.readers.get(account)
        return reader is not None and reader.flow.blocked

    # -- inspection -----------------------------------------------------------------------------

    def processes(self) -> Iterator[Process]:
        """Yield all processes."""
        yield from self.readers.values()
        yield from self.stations
        yield self.store

    def statistics(self) -> CreditStatistics:
        """Return the state of credit. Costs about 2 us for each process."""
        counts = {kind: [0, 0, 0, 0] for kind in KINDS}
        sums = dict(self._past)
        received = dict(self._past_received)
        blocked: list[ProcessStatistics] = []
        for process in self.processes():
            kind, flow = process.kind, process.flow
            count = counts[kind]
            sticky = READER_STATE_CHANGE_SECONDS if kind == "reader" else STATE_CHANGE_SECONDS
            count[0] += 1
            count[1] += flow.state(sticky=sticky) == "flow"
            count[3] += len(flow.deferred)
            if flow.blocked:
                count[2] += 1
                blocked.append(ProcessStatistics(kind, flow.statistics()))
            sums[kind] += flow.sums()
            if isinstance(process, Station | StoreProcess):
                received[kind] += process.received
        blocked.sort(key=lambda each: (-each.flow.blockers[0].seconds, each.flow.name))
        return CreditStatistics(
            kinds={
                kind: KindStatistics(
                    processes=count[0],
                    flow=count[1],
                    blocked=count[2],
                    deferred=count[3],
                    received=received[kind],
                    sums=sums[kind],
                )
                for kind, count in counts.items()
            },
            blocked=tuple(blocked),
        )


def _known_as(reader: Reader, gone: Gone) -> Process | None:
    """Return the process with that name that a reader has sent to: its loans have leaked."""
    for peer in reader.flow.credit_from:
        if peer.name == gone.name and peer.kind == gone.kind:
            return peer
    return None
