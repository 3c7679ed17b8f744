"""All subscriptions of one relay, by name."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator

import attrs

from ...accounts import NO_LIMIT, Account, Limit, StuckPolicy
from ...dataspace._dataspace import Dataspace, Observation
from ...dataspace._errors import PatternError
from ...dataspace._topics import TopicFilter
from ..wire import AfterGrace, RefusedError
from ._log import SubscriptionLog
from ._rows import MakeRow, RunColumns, as_row, run_columns
from ._settings import SubscriptionLimits, SubscriptionOptions
from ._state import take_up
from ._subscription import RangeSubscription, nobody, wall_us


@attrs.frozen(slots=True)
class SubscriptionsStatistics:
    """Statistics of all subscriptions."""

    subscriptions: int
    """Number of subscriptions."""
    attached: int
    """Subscriptions with a reader."""
    unpaid_items: int
    """Messages in RAM, on their publishers' accounts."""
    unpaid_bytes: int
    """Their bytes."""
    rest_items: int
    """Messages on disk, on the subscriptions' own accounts."""
    rest_bytes: int
    """Their bytes."""


def _everything(*_: str) -> None:
    """Allow reading everything that a filter matches."""


class Subscriptions:
    """All subscriptions of one relay.

    Args:
        dataspace: The dataspace in which they are bound.
        account: The parent of the accounts of subscriptions in RAM.
        disk: The parent of the accounts of durable ones: a root, with the disk quota as its limit.
            None: there can be no durable ones.
        open_log: Gives a name its place on the disk.
        limits: Limits on their number, and on the content of each.
        row: Makes rows of events that are no runs.
        columns: Makes columns of runs of publications.
        wall: Returns the time in microseconds since 1970.
        parent_of: Returns the parent of the account of one in RAM, by name, in place of `account`.
        disk_of: The same for a durable one, in place of `disk`.
        allows: Returns a check of the topics that may be read, by the subscription's name and
            filter; see `Dataspace.observe`.
        make: Makes one.

    Attributes:
        on_given_up: Called with a subscription, and the reason, to disconnect its readers.
    """

    def __init__(
        self,
        dataspace: Dataspace,
        account: Account,
        *,
        disk: Account | None = None,
        open_log: Callable[[str], SubscriptionLog] | None = None,
        limits: SubscriptionLimits | None = None,
        row: MakeRow = as_row,
        columns: RunColumns = run_columns,
        wall: Callable[[], int] = wall_us,
        parent_of: Callable[[str], Account] | None = None,
        disk_of: Callable[[str], Account] | None = None,
        allows: Callable[[str, str], Callable[[str], bool] | None] = _everything,
        make: Callable[..., RangeSubscription] = RangeSubscription,
    ) -> None:
        self.dataspace = dataspace
        self.ledger = dataspace.ledger
        self.limits = SubscriptionLimits() if limits is None else limits
        self._account = account
        self._parent_of = parent_of
        self._disk = disk
        self._disk_of = disk_of
        self._allows = allows
        self._open_log = open_log
        self._row = row
        self._columns = columns
        self._wall = wall
        self._new = make
        self.on_given_up: Callable[[RangeSubscription, str], object] = nobody
        self._by_name: dict[str, RangeSubscription] = {}
        self._observations: dict[str, list[Observation]] = {}

    def __len__(self) -> int:
        """Return their number."""
        return len(self._by_name)

    def __iter__(self) -> Iterator[RangeSubscription]:
        return iter(list(self._by_name.values()))

    def names(self) -> list[str]:
        """Return the names of all of them."""
        return list(self._by_name)

    def find(self, name: str) -> RangeSubscription | None:
        """Return the subscription of this name, if there is one."""
        return self._by_name.get(name)

    def get(self, name: str) -> RangeSubscription:
        """Return the subscription of this name.

        Raises:
            RefusedError: There is none.
        """
        found = self._by_name.get(name)
        if found is None:
            msg = f"there is no subscription {name!r} here; attach with topic filters to make it"
            raise RefusedError(msg)
        return found

    def open(
        self,
        name: str,
        filters: Iterable[str] = (),
        options: SubscriptionOptions | None = None,
    ) -> RangeSubscription:
        """Return the subscription of this name; make it if needed.

        An existing one takes `grace` and `after_grace` from the `options`; `durable` and the
        filters have to be the same.

        Raises:
            RefusedError: It has other filters or options, or cannot be made; the message has the
                reason.
        """
        wanted = tuple(dict.fromkeys(filters))
        found = self._by_name.get(name)
        if found is not None:
            self._check_same(found, wanted, options)
            return found
        options = SubscriptionOptions() if options is None else options
        self._check_new(name, wanted, options)
        subscription = self._make(name, options)
        subscription.filters = wanted
        try:
            self._bind(subscription)
        except BaseException:
            del self._by_name[name]
            subscription.forget()
            raise
        subscription.persist()
        return subscription

    def _check_same(
        self,
        found: RangeSubscription,
        filters: tuple[str, ...],
        options: SubscriptionOptions | None,
    ) -> None:
        if filters and set(filters) != set(found.filters):
            msg = (
                f"subscription {found.subscription!r} is bound to {', '.join(found.filters)}, not "
                f"to {', '.join(filters)}; choose another name, or drop it first"
            )
            raise RefusedError(msg)
        if options is None:
            return
        if options.durable != found.options.durable:
            have, want = ("durable", "not") if found.options.durable else ("not durable", "durable")
            msg = (
                f"subscription {found.subscription!r} is {have}, and was asked for as {want}; "
                "choose another name, or drop it first"
            )
            raise RefusedError(msg)
        if options != found.options:
            self._check_grace(found.subscription, options)
            found.options = options
            found.persist()

    def _check_new(self, name: str, filters: tuple[str, ...], options: SubscriptionOptions) -> None:
        limits = self.limits
        if not filters:
            self.get(name)  # Raises the error.
        if not name or not name.isprintable() or len(name.encode()) > limits.max_name:
            msg = (
                f"{name!r} cannot be a subscription's name: it has to be printable, and not longer "
                f"than {limits.max_name} bytes (max_name)"
            )
            raise RefusedError(msg)
        if len(filters) > limits.max_filters:
            msg = (
                f"subscription {name!r} asks for {len(filters)} filters; {limits.max_filters} are "
                "the limit (max_filters)"
            )
            raise RefusedError(msg)
        for text in filters:
            try:
                TopicFilter(text)
            except PatternError as exc:
                raise RefusedError(f"subscription {name!r}: {exc}") from exc
        if len(self._by_name) >= limits.max_subscriptions:
            msg = (
                f"{limits.max_subscriptions} subscriptions are the limit (max_subscriptions); drop "
                "one that is not needed any more"
            )
            raise RefusedError(msg)
        if options.durable and self._open_log is None:
            msg = f"subscription {name!r} cannot be durable: this relay has no store"
            raise RefusedError(msg)
        self._check_grace(name, options)

    @staticmethod
    def _check_grace(name: str, options: SubscriptionOptions) -> None:
        if not options.grace >= 0:  # NaN is refused, too.
            msg = f"subscription {name!r}: its grace cannot be {options.grace} seconds"
            raise RefusedError(msg)

    def _make(self, name: str, options: SubscriptionOptions) -> RangeSubscription:
        log: SubscriptionLog | None = None
        parent, limit = self._account, NO_LIMIT
        if self._parent_of is not None:
            parent = self._parent_of(name)
        if options.durable:
            assert self._open_log is not None
            assert self._disk is not None
            log = self._open_log(name)
            parent = self._disk if self._disk_of is None else self._disk_of(name)
            limit = Limit(items=None, bytes=self.limits.max_disk_bytes)
        account = self.ledger.open(f"subscription/{name}", limit=limit, parent=parent)
        subscription = self._new(
            self.ledger,
            name,
            account=account,
            options=options,
            limits=self.limits,
            incarnation=secrets.token_bytes(16),
            log=log,
            row=self._row,
            columns=self._columns,
            wall=self._wall,
        )
        subscription.on_given_up = lambda given_up, why: self.on_given_up(given_up, why)
        self._by_name[name] = subscription
        return subscription

    def _bind(self, subscription: RangeSubscription) -> None:
        # It takes acknowledged publications unchanged: it acknowledges them itself.
        with subscription.account.turn() as turn:
            observations = [
                self.dataspace.observe(
                    turn,
                    TopicFilter(text),
                    subscription,
                    acked=subscription,
                    granted=2,
                    replay=False,
                    allows=self._allows(subscription.subscription, text),
                )
                for text in subscription.filters
            ]
        self._observations[subscription.subscription] = observations

    def restore(
        self, name: str, state: bytes, *, low: int, following: int, nbytes: int
    ) -> RangeSubscription:
        """Restore a durable subscription from the disk, before anything is published.

        Args:
            name: Its name.
            state: Its stored state (`SubscriptionLog.persist`).
            low: The first number that was not acknowledged.
            following: The number after that of the last record.
            nbytes: Bytes of the remaining records.

        Raises:
            ValueError: The state is invalid.
        """
        subscription = self._make(name, SubscriptionOptions(durable=True))
        try:
            take_up(subscription, state)
            subscription.recover(low, following, nbytes)
            self._bind(subscription)
        except BaseException:
            del self._by_name[name]
            subscription.close()
            raise
        return subscription

    def drop(self, name: str) -> None:
        """Forget a subscription: its messages are repaid as dropped.

        Raises:
            RefusedError: There is none.
        """
        subscription = self.get(name)
        self._unbind(subscription)
        del self._by_name[name]
        subscription.forget()

    def _unbind(self, subscription: RangeSubscription) -> None:
        observations = self._observations.pop(subscription.subscription)
        with subscription.account.turn() as turn:
            for observation in observations:
                self.dataspace.unobserve(turn, observation)

    def look_for_the_stuck(self) -> None:
        """Apply the slow-consumer policy to those that have waited for room on disk too long."""
        now = self.ledger.clock()
        for each in self:
            if each.waits_for_room(now):
                self.ledger.faults.call(each, "dealing with it", self._deal_with, each)

    @staticmethod
    def _deal_with(stuck: RangeSubscription) -> None:
        why = (
            f"subscription {stuck.subscription} has had no room on disk for {stuck.patience:g} s "
            "for new messages, and its reader has acknowledged too little"
        )
        if stuck.policy is StuckPolicy.DISCONNECT:
            stuck.give_up(why)
        elif stuck.policy.relieves:
            stuck.relieve(why)

    def look_for_the_lost(self) -> list[RangeSubscription]:
        """Apply `after_grace` to those whose reader has not come back in time; return them."""
        now = self.ledger.clock()
        found = [each for each in self if each.grace_is_over(now)]
        dealt_with: list[RangeSubscription] = []
        for each in found:
            match each.options.after_grace:
                case AfterGrace.HOLD:
                    continue
                case AfterGrace.DROP:
                    self.drop(each.subscription)
                case AfterGrace.WRITE_OFF:
                    each.shut()
            dealt_with.append(each)
        return dealt_with

    def close(self) -> None:
        """Close all of them; data on disk stays. Idempotent."""
        for each in self:
            self._unbind(each)
            each.close()
        self._by_name.clear()

    def statistics(self) -> SubscriptionsStatistics:
        """Return statistics of all of them."""
        each = [one.statistics() for one in self]
        return SubscriptionsStatistics(
            subscriptions=len(each),
            attached=sum(one.attached for one in each),
            unpaid_items=sum(one.unpaid_items for one in each),
            unpaid_bytes=sum(one.unpaid_bytes for one in each),
            rest_items=sum(one.rest_items for one in each),
            rest_bytes=sum(one.rest_bytes for one in each),
        )
