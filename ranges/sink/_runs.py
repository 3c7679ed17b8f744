"""Publishing rows of a block in runs: rows that go to the same recipients, in one step.

A run keeps the books of as many turns in one sum, as those of MQTT's publishers do. The rows that
need a look of their own are left out, and published one by one: retained ones, those with
properties, those that the writer may not publish, and topics that observers by pattern look into.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, NamedTuple

from ...accounts import (
    Account,
    Confirm,
    Recipient,
    borrow_run,
    hold_all,
    make_ready,
)
from ...dataspace._dataspace import Dataspace
from ...dataspace._events import Batch, ColumnRun, Publication

if TYPE_CHECKING:
    from ..wire import Rows

MOST_ROWS = 1024
"""Most rows of a run: about a millisecond."""

LOOK_ROWS = 64
"""Rows that are looked at together: what a short run costs at most, too."""

SINGLE = 12
"""Flags of rows that are published one by one: to be retained, or with properties."""

FrameRun = Callable[[Sequence[bytes], Sequence[bytes]], Batch]
"""Makes the run of QoS 0, as connections send it, of topics and payloads."""


class Plan(NamedTuple):
    """Where the rows of a run go."""

    holders: tuple[Recipient, ...]
    """All recipients."""
    columns: tuple[Recipient, ...]
    """Those that take columns."""
    framed: tuple[Recipient, ...]
    """Those that take the run as a `Batch` of QoS 0."""
    singles: tuple[Recipient, ...]
    """Those that take one row after another, and acknowledge it."""


class Run(NamedTuple):
    """Rows of a block that go to the same recipients."""

    plan: Plan
    end: int
    """The row after its last."""


class RunFinder:
    """Finds runs in one block; for as long as no subscription changes.

    Args:
        dataspace: Where they go.
        account: Who pays.
        rows: The block.
        allows: Whether the writer may publish to a topic; None: to all.
        framed: Whether there is a `FrameRun`.
    """

    def __init__(
        self,
        dataspace: Dataspace,
        account: Account,
        rows: Rows,
        allows: Callable[[str], bool] | None,
        framed: bool,
    ) -> None:
        self._routes = dataspace.routes
        self._account = account
        self._rows = rows
        self._allows = allows
        self._framed = framed
        self._version = self._routes.version
        self._plans: dict[tuple[bytes, int], Plan | None] = {}
        # The same for the same recipients, so that plans can be compared by identity.
        self._known: dict[tuple[tuple[Recipient, ...], ...], Plan] = {}

    def find(self, row: int) -> Run | None:
        """Return the run that begins with a row; None: that row is published by itself."""
        account = self._account
        if account.tracers is not None or account.tracing is not None:
            return None
        if self._routes.version != self._version:
            self._version = self._routes.version
            self._plans.clear()
        rows = self._rows
        flags, keys = rows.flags, rows.keys
        plan = self._plan(keys[row], flags[row])
        if plan is None:
            return None
        most = min(MOST_ROWS, rows.count - row)
        copies = len(plan.holders)
        if copies:
            # The rows themselves are owed for, too, until they are handed over.
            price = copies + 1
            items, nbytes = account.room()
            most = min(most, 1 + max(0, items) // price)
            if nbytes < rows.nbytes(row, row + most) * price:
                fits = max(0, nbytes) // price
                most = 1 + bisect_right(
                    range(1, most), fits, key=lambda count: rows.nbytes(row, row + count)
                )
        end = row + most
        stop = row + 1
        while stop < end:
            upto = min(stop + LOOK_ROWS, end)
            kinds = set(zip(keys[stop:upto], flags[stop:upto], strict=True))
            if all(self._plan(*kind) is plan for kind in kinds):
                stop = upto
                continue
            while self._plan(keys[stop], flags[stop]) is plan:
                stop += 1
            break
        return Run(plan, stop)

    def _plan(self, key: bytes, flag: int) -> Plan | None:
        try:
            return self._plans[key, flag]
        except KeyError:
            return self._plan_of(key, flag)

    def _plan_of(self, key: bytes, flag: int) -> Plan | None:
        plan = self._plans[key, flag] = self._find_plan(key, flag)
        return plan

    def _find_plan(self, key: bytes, flag: int) -> Plan | None:
        topic = key.decode()
        if flag & SINGLE or not (self._allows is None or self._allows(topic)):
            return None
        route = self._routes.of(topic)
        if route.looked_into:
            return None
        acked = route.acked.holders if flag else ()
        plain = route.unacked.holders if flag else route.plain.holders
        known = self._known.get((acked, plain))
        if known is not None:
            return known
        columns = tuple([each for each in (*acked, *plain) if each.takes_columns])
        framed = tuple([each for each in plain if not each.takes_columns])
        singles = tuple([each for each in acked if not each.takes_columns])
        if framed and not (self._framed and all(map(_takes_frames, framed))):
            return None
        plan = self._known[acked, plain] = Plan((*acked, *plain), columns, framed, singles)
        return plan


def _takes_frames(recipient: Recipient) -> bool:
    """Whether it may take a run of QoS 0: one that is responsible for rows confirms each."""
    holder = recipient.last_holder
    if holder is None:
        return not getattr(recipient, "takes_responsibility", True)
    return not holder.takes_responsibility


def publish_run(
    dataspace: Dataspace,
    account: Account,
    rows: Rows,
    row: int,
    run: Run,
    frame: FrameRun | None,
    confirm: Callable[[int, int], Confirm],
) -> None:
    """Publish a run of rows.

    Args:
        dataspace: Where to.
        account: Who pays.
        rows: The block.
        row: The first row.
        run: The run.
        frame: Makes runs of QoS 0.
        confirm: Makes the confirm of rows: of the last of them, and their number.
    """
    plan, end = run.plan, run.end
    columns = ColumnRun(*rows.columns(row, end), rows.flags[row:end])

    def commit(
        account: Account, holders: Collection[Recipient], item: ColumnRun, items: int, nbytes: int
    ) -> None:
        ledger = account.ledger
        copies = len(holders)
        borrow_run(account, items, nbytes, copies)
        if ledger.recorder is not None:
            ledger.recorder.published(account, item, items, nbytes, items * copies, nbytes * copies)
        outer = ledger.confirming
        try:
            if plan.columns:
                whole = ledger.confirming = confirm(end - 1, items)
                hold_all(account, plan.columns, item, items, nbytes)
                whole.taken()
            if plan.framed and frame is not None:
                ledger.confirming = None
                batch = frame(rows.keys[row:end], rows.values(row, end))
                # Whoever takes a run apart counts its frames.
                account.borrow(0, (batch.nbytes - nbytes) * len(plan.framed))
                hold_all(account, plan.framed, batch, items, batch.nbytes)
            if plan.singles:
                for each in range(row, end):
                    publication = Publication(*rows[each])
                    single = ledger.confirming = confirm(each, 1)
                    hold_all(account, plan.singles, publication, 1, rows.nbytes(each, each + 1))
                    single.taken()
        finally:
            ledger.confirming = outer

    dataspace.route_run(account, columns, plan.holders, commit)
    make_ready(plan.holders, account.ledger)
