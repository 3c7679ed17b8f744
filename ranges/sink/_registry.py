"""All sinks of one relay, by the names of their writers."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator

import attrs

from ...accounts import NO_LIMIT, Account, Ledger, Limit, Recipient, StuckPolicy
from ..wire import RefusedError
from ._log import SinkLog
from ._part import Block
from ._publishing import Publishing, RowConfirm
from ._settings import SinkLimits
from ._sink import Sink


def usual_limit(*names: str) -> Limit:
    """Return the usual limit of an account, for any names."""
    del names
    return Limit()


@attrs.frozen(slots=True)
class SinksStatistics:
    """All sinks in numbers."""

    sinks: int
    """Number of sinks."""
    rest_items: int
    """Rows at rest: staged, or decided and not yet taken."""
    rest_bytes: int
    """Their bytes."""
    committed: int
    """Batches decided, in this process."""
    published: int
    """Rows published, in this process."""
    discarded: int
    """Rows that were staged and discarded."""


class Sinks:
    """All sinks of one relay.

    Args:
        ledger: The books.
        account: The parent of the writers' accounts: the server's.
        rest: The parent of the accounts for rows at rest: a root, with the disk quota as its limit,
            or the limit of staged rows in RAM.
        limit_of: Returns a writer's limit, by the account's name and the writer's.
        limits: Limits on their number, and on the content of each.
        open_log: Gives a name its place on the disk; None: there is no disk.
        confirm_of: See `Sink`.
        place_of: See `Sink`.
        wall: Returns the time in seconds since 1970.
        parent_of: Returns the parent of a writer's account, by name, in place of `account`.
        rest_of: Returns the parent of its account for rows at rest, in place of `rest`.
        allows: Returns a check of the topics that a writer may publish to, by name; see `Sink`.

    Attributes:
        on_change: Called with a sink after a decision, and after a publication.
    """

    def __init__(
        self,
        ledger: Ledger,
        account: Account,
        rest: Account,
        *,
        limit_of: Callable[..., Limit] = usual_limit,
        limits: SinkLimits | None = None,
        open_log: Callable[[str], SinkLog] | None = None,
        confirm_of: Callable[[Publishing, Block, int, int], RowConfirm] = RowConfirm,
        place_of: Callable[[Recipient], str | None] = lambda _: None,
        wall: Callable[[], float] = time.time,
        parent_of: Callable[[str], Account] | None = None,
        rest_of: Callable[[str], Account] | None = None,
        allows: Callable[[str], Callable[[str], bool] | None] = lambda _: None,
    ) -> None:
        self.ledger = ledger
        self.limits = SinkLimits() if limits is None else limits
        self.on_change: Callable[[Sink], object] = lambda _: None
        self._limit_of = limit_of
        self._account = account
        self._parent_of = parent_of
        self._rest = rest
        self._rest_of = rest_of
        self._allows = allows
        self._open_log = open_log
        self._confirm_of = confirm_of
        self._place_of = place_of
        self._wall = wall
        self._by_name: dict[str, Sink] = {}
        # Totals of forgotten sinks.
        self._past = SinksStatistics(0, 0, 0, 0, 0, 0)

    def __len__(self) -> int:
        """Return their number."""
        return len(self._by_name)

    def __iter__(self) -> Iterator[Sink]:
        return iter(list(self._by_name.values()))

    def names(self) -> list[str]:
        """Return the names of all writers."""
        return list(self._by_name)

    def find(self, name: str) -> Sink | None:
        """Return the sink of this name, if there is one."""
        return self._by_name.get(name)

    def open(self, name: str) -> Sink:
        """Return the sink of this name; make it if needed.

        Raises:
            RefusedError: It cannot be made.
        """
        found = self._by_name.get(name)
        if found is not None:
            found.doomed = False
            return found
        limits = self.limits
        if not name or not name.isprintable() or len(name.encode()) > limits.max_name:
            msg = (
                f"{name!r} cannot be a writer's name: it has to be printable, and not longer than "
                f"{limits.max_name} bytes (max_name)"
            )
            raise RefusedError(msg)
        if len(self._by_name) >= limits.max_sinks:
            msg = (
                f"{limits.max_sinks} writers are the limit (max_sinks); those that commit nothing "
                "are forgotten some time later, or by SinkWriter.forget()"
            )
            raise RefusedError(msg)
        sink = self.make(name)
        self._by_name[name] = sink
        sink.persist()
        return sink

    def make(self, name: str) -> Sink:
        """Return a new sink, not registered yet; see `take_up`."""
        log = None if self._open_log is None else self._open_log(name)
        known_as = f"sink/{name}"
        limit = self._limit_of(known_as, name)
        parent = self._account if self._parent_of is None else self._parent_of(name)
        at_rest = self._rest if self._rest_of is None else self._rest_of(name)
        sink = Sink(
            self.ledger,
            name,
            account=self.ledger.open(known_as, limit=limit, parent=parent),
            rest=self.ledger.open(f"staged/{name}", limit=NO_LIMIT, parent=at_rest),
            limits=self.limits,
            incarnation=secrets.token_bytes(16),
            log=log,
            confirm_of=self._confirm_of,
            place_of=self._place_of,
            wall=self._wall,
        )
        sink.on_change = self._changed
        sink.allows = self._allows(name)
        return sink

    def take_up(self, sink: Sink) -> None:
        """Register a restored sink."""
        self._by_name[sink.sink] = sink

    def _changed(self, sink: Sink) -> None:
        if sink.doomed and sink.publishing is None:
            self.forget(sink)
        self.on_change(sink)

    def forget(self, sink: Sink) -> None:
        """Forget a sink with its staged rows; with a batch to publish, after that."""
        if sink.publishing is not None:
            sink.doomed = True
            sink.abort(sink.batch)
            return
        sink.forget()
        self._by_name.pop(sink.sink, None)
        past = self._past
        self._past = attrs.evolve(
            past,
            committed=past.committed + sink.committed_batches,
            published=past.published + sink.published_rows,
            discarded=past.discarded + sink.discarded_rows,
        )

    def look_for_the_stuck(self) -> list[Sink]:
        """Write blocks that waited for room; give up sinks that wait too long, and return them."""
        now = self.ledger.clock()
        found: list[Sink] = []
        for sink in self:
            sink.write()
            if sink.is_stuck(now) and self.limits.stuck is StuckPolicy.DISCONNECT:
                sink.give_up(f"it has waited for {sink.patience:g} s")
                found.append(sink)
        return found

    def look(self, in_use: Callable[[Sink], bool]) -> tuple[list[tuple[Sink, int]], list[Sink]]:
        """Discard abandoned staged rows, and forget writers that commit nothing any more.

        Args:
            in_use: Whether a connection uses a sink.

        Returns:
            The sinks with the number of discarded parts, and the forgotten sinks.
        """
        now = self.ledger.clock()
        left = [(sink, count) for sink in self if (count := sink.left_alone(now))]
        gone: list[Sink] = []
        expiry = self.limits.expiry
        if expiry is not None:
            before = self._wall() - expiry
            for sink in self:
                if sink.committed_at < before and sink.is_idle and not in_use(sink):
                    self.forget(sink)
                    gone.append(sink)
        return left, gone

    def close(self) -> None:
        """Close all of them; data on disk stays. Idempotent."""
        for sink in self:
            sink.close()
        self._by_name.clear()

    def statistics(self) -> SinksStatistics:
        """Return statistics of all of them."""
        every = self._by_name.values()
        past = self._past
        return SinksStatistics(
            sinks=len(every),
            rest_items=sum(one.rest.debt_items for one in every),
            rest_bytes=sum(one.rest.debt_bytes for one in every),
            committed=past.committed + sum(one.committed_batches for one in every),
            published=past.published + sum(one.published_rows for one in every),
            discarded=past.discarded + sum(one.discarded_rows for one in every),
        )
