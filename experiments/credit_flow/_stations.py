"""The holders of a relay whose readers wait for credit: each has a station for its input.

A station's name is its holder's, which notifies it of input. The ledger's recorder reports output,
by whatever way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from clearfunds.accounts import Account, Outcome
from clearfunds.dataspace.queues import Group, Message, Shelf
from clearfunds.ranges.log import RangeSubscription
from clearfunds.transports._outlet import Outlet
from clearfunds.transports.mqtt.server._inflight import Inflight
from clearfunds.transports.mqtt.server._persistent_session import SessionQueue

from ._processes import InflightStation, LogStation, OutletStation, QueueStation

if TYPE_CHECKING:
    from clearfunds.dataspace.queues._binding import Binding

    from ._scheme import CreditScheme


class CreditOutlet(Outlet):
    """The send buffer of one connection, whose senders have credit for it."""

    __slots__ = ("_scheme", "station")

    def __init__(self, scheme: CreditScheme, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._scheme = scheme
        self.station = OutletStation(scheme, self, scheme.settings.reader_outlet)
        scheme.stations.add(self.station)

    def hold(self, account: Account, item: Any, items: int, nbytes: int, now: float) -> None:
        self.station.arrived(account, items)
        super().hold(account, item, items, nbytes, now)

    def turn_away(self, account: Account, items: int, nbytes: int, why: Outcome) -> None:
        """See `Outlet.turn_away`: the input counts as arrived before it is handled."""
        self.station.arrived(account, items)
        super().turn_away(account, items, nbytes, why)

    def close(self, outcome: Outcome = Outcome.CANCELLED) -> None:
        """See `Outlet.close`; its senders are forgotten, and its own reader leaves."""
        # First: otherwise loans settled now would still cause grants.
        self.station.go_down()
        super().close(outcome)
        if self.owner is not None:
            self._scheme.leaves(self.owner)


class CreditInflight(Inflight):
    """A client's unacknowledged messages, whose senders have credit for it."""

    __slots__ = ("station",)

    def __init__(self, scheme: CreditScheme, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.station = InflightStation(scheme, self, scheme.settings.reader_outlet)
        scheme.stations.add(self.station)

    def hold(self, account: Account, item: Any, items: int, nbytes: int, now: float) -> None:
        self.station.arrived(account, items)
        super().hold(account, item, items, nbytes, now)

    def close(self, outcome: Outcome = Outcome.CANCELLED) -> None:
        self.station.go_down()
        super().close(outcome)


class CreditGroup(Group):
    """The queue of a shared subscription, whose senders have credit for it.

    Messages that go straight through to a member take credit of that member's outlet only.
    """

    __slots__ = ("station",)

    def __init__(self, scheme: CreditScheme, *args: Any, **kwargs: Any) -> None:
        self.station = InflightStation(scheme, self, scheme.settings.reader_outlet)
        super().__init__(*args, **kwargs)
        scheme.stations.add(self.station)

    def take_in(
        self,
        account: Account,
        item: Any,
        items: int,
        nbytes: int,
        now: float,
        by: Binding | None,
    ) -> None:
        if self.members or self.persists or self.deleted:
            self.station.arrived(account, items)
        super().take_in(account, item, items, nbytes, now, by)

    def drop(self, account: Account, items: int, nbytes: int) -> None:
        self.station.arrived(account, items)
        super().drop(account, items, nbytes)

    def delete(self, *, if_unused: bool = False, if_empty: bool = False) -> int:
        count = super().delete(if_unused=if_unused, if_empty=if_empty)
        self.station.go_down()
        return count

    def close(self) -> None:
        super().close()
        self.station.go_down()


class CreditSubscription(RangeSubscription):
    """Messages that readers of ranges have not acknowledged; their senders have credit for it."""

    __slots__ = ("station",)

    def __init__(self, scheme: CreditScheme, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.station = LogStation(scheme, self, scheme.settings.reader_outlet)
        scheme.stations.add(self.station)

    def hold(self, account: Account, item: Any, items: int, nbytes: int, now: float) -> None:
        self.station.arrived(account, items)
        super().hold(account, item, items, nbytes, now)

    def close(self) -> None:
        self.station.go_down()
        super().close()


class StoreHop:
    """A queue's view of its shelf (`Shelf`): each message that it writes takes credit."""

    __slots__ = ("_shelf", "_station")

    def __init__(self, shelf: Shelf, station: QueueStation) -> None:
        self._shelf = shelf
        self._station = station

    def put(self, message: Message) -> int:
        ticket = self._shelf.put(message)
        self._station.wrote(ticket)
        return ticket

    def done(self, seqs: Sequence[int]) -> None:
        self._shelf.done(seqs)

    def mark(self, attached: bool, delivered_upto: int) -> int:
        return self._shelf.mark(attached, delivered_upto)

    def want(self, first_seq: int, count: int, nbytes: int) -> None:
        self._shelf.want(first_seq, count, nbytes)


class CreditQueue(SessionQueue):
    """The queue of a persistent session: its senders have credit for it, and it for the store.

    Attributes:
        station: Counts that credit.
    """

    __slots__ = ("station",)

    def __init__(self, scheme: CreditScheme, *args: Any, shelf: Shelf, **kwargs: Any) -> None:
        self.station = QueueStation(scheme, self, scheme.settings.reader_queue)
        super().__init__(*args, shelf=StoreHop(shelf, self.station), **kwargs)
        scheme.stations.add(self.station)

    def take_in(
        self,
        account: Account,
        item: Any,
        items: int,
        nbytes: int,
        now: float,
        by: Binding | None,
    ) -> None:
        self.station.arrived(account, items)
        super().take_in(account, item, items, nbytes, now, by)

    def durable(self, ticket: int) -> None:
        super().durable(ticket)
        self.station.durable(ticket)

    def work(self) -> None:
        """See `Queue.work`; a lack of space in the store holds its senders back."""
        super().work()
        self.station.note_room(not self._writer.unwritten)

    def delete(self, *, if_unused: bool = False, if_empty: bool = False) -> int:
        count = super().delete(if_unused=if_unused, if_empty=if_empty)
        self.station.go_down()
        return count

    def close(self) -> None:
        super().close()
        self.station.go_down()
