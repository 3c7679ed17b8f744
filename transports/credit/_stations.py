"""The holders of a relay whose readers wait for credit: what they are given has a station to pass.

Each is the holder of its name, and tells its station of what comes. What leaves is told of by the
ledger's recorder, whichever way it goes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ...accounts import Account, Outcome
from ...dataspace.queues import Group, Message, Shelf
from ...dataspace.subscriptions import RangeSubscription
from .._outlet import Outlet
from ..mqtt._inflight import Inflight
from ..mqtt._persistent_sessions import SessionQueue
from ._processes import InflightStation, LogStation, OutletStation, QueueStation

if TYPE_CHECKING:
    from ...dataspace.queues._binding import Binding
    from ._scheme import CreditScheme


class CreditOutlet(Outlet):
    """The way out to one connection, whose senders have credit for it."""

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
        """See `Outlet.turn_away`: it has come this far, or it would be handled without having."""
        self.station.arrived(account, items)
        super().turn_away(account, items, nbytes, why)

    def close(self, outcome: Outcome = Outcome.CANCELLED) -> None:
        """See `Outlet.close`; whoever sends to it is forgotten, and its own reader leaves."""
        # First, or what is settled now would still be granted for.
        self.station.go_down()
        super().close(outcome)
        if self.owner is not None:
            self._scheme.leaves(self.owner)


class CreditInflight(Inflight):
    """What a client has still to acknowledge, and whose senders have credit for it."""

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
    """What those who share a subscription have still to take, and whose senders have credit for it.

    What goes straight through to a member takes credit of that one's outlet only.
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
        if self.members or self.keeps or self.deleted:
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
    """What readers of ranges have still to acknowledge, and whose senders have credit for it."""

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
    """What a queue sees of its shelf (`Shelf`): each message that it writes takes credit."""

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
    """The queue of a kept session, whose senders have credit for it, as it has with the store.

    Attributes:
        station: Where that is counted.
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
        """See `Queue.work`; what finds no room in the store holds its senders back."""
        super().work()
        self.station.note_room(not self._writer.unwritten)

    def delete(self, *, if_unused: bool = False, if_empty: bool = False) -> int:
        count = super().delete(if_unused=if_unused, if_empty=if_empty)
        self.station.go_down()
        return count

    def close(self) -> None:
        super().close()
        self.station.go_down()
