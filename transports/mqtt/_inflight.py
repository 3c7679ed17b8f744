"""What a subscriber is to acknowledge: a holder of loans that end with its PUBACK (rule 7)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from ...accounts import DEFAULT_PATIENCE, Account, Holder, Ledger, LoanedItem, Outcome, StuckPolicy
from .._outlet import Outlet, nobody
from ._identifiers import PacketIds
from ._packets import encode_publish

DEFAULT_MAX_INFLIGHT = 32
"""Publications on their way to one subscriber and not acknowledged; as EMQX's `max_inflight`
(mosquitto has 20)."""


class Inflight(Holder):
    """Publications with QoS 1 for one subscriber, in order, each with a packet identifier.

    At most `window` are under way; the others wait here. Each is owed for until it is acked. The
    bytes go out through the connection's outlet, which forwards them and holds nothing of it.
    """

    __slots__ = ("_closed", "_ids", "_on_broken", "_outlet", "_waiting", "_window", "unacked")

    kind = "inflight"

    def __init__(
        self,
        ledger: Ledger,
        outlet: Outlet,
        name: str,
        *,
        window: int = DEFAULT_MAX_INFLIGHT,
        on_broken: Callable[[str], object],
        patience: float = DEFAULT_PATIENCE,
        policy: StuckPolicy = StuckPolicy.DISCONNECT,
    ) -> None:
        super().__init__(ledger, name, patience=patience, policy=policy)
        self._outlet = outlet
        self._window = window
        self._ids = PacketIds()
        self._waiting: deque[LoanedItem[list[Any]]] = deque()
        self.unacked: dict[int, LoanedItem[list[Any]]] = {}
        self._on_broken = on_broken
        self._closed = False

    def __repr__(self) -> str:
        return f"<Inflight {self.name}: {len(self.unacked)} unacked, {len(self._waiting)} waiting>"

    def __len__(self) -> int:
        """Return how many publications are not acknowledged."""
        return len(self.unacked) + len(self._waiting)

    def hold(self, account: Account, item: Any, items: int, nbytes: int, now: float) -> None:
        """See `Holder.hold`; `item` is a `Publication`."""
        if self._closed:
            account.repay(items, nbytes, Outcome.DROPPED, self)
            return
        if not self.unacked and not self._waiting:
            self.progressed_at = now
        self._waiting.append(LoanedItem(account, [item], items, nbytes, self, now, charged=True))
        self._fill()

    def ready(self) -> None:
        """See `Holder.ready`."""
        self._outlet.ready()

    def loans(self) -> Iterator[LoanedItem[Any]]:
        """See `Holder.loans`."""
        yield from self.unacked.values()
        yield from self._waiting

    def is_unsent(self, packet_id: int) -> bool:
        """Whether nothing of the publication has left, so that it cannot be acknowledged."""
        loan = self.unacked.get(packet_id)
        return loan is not None and any(unbegun is loan for unbegun in self._outlet.unbegun())

    def acknowledged(self, packet_id: int) -> bool:
        """Settle what the subscriber has acknowledged; whether there was anything."""
        loan = self.unacked.pop(packet_id, None)
        if loan is None:
            return False
        self._ids.release(packet_id)
        loan.settle(outcome=Outcome.ACKED)
        self._fill()
        return True

    def _fill(self) -> None:
        while self._waiting and len(self.unacked) < self._window:
            loan = self._waiting.popleft()
            packet_id = self._ids.allocate()
            publication = loan.item[0]
            loan.item[0] = encode_publish(
                publication.topic,
                publication.payload,
                qos=1,
                retain=publication.retain,
                packet_id=packet_id,
            )
            self.unacked[packet_id] = loan
            self._outlet.forward(loan)

    def give_up(self, why: str) -> None:
        """See `Holder.give_up`: the connection is cut."""
        on_broken = self._on_broken
        self.close(Outcome.WRITTEN_OFF)
        on_broken(why)

    def close(self, outcome: Outcome = Outcome.CANCELLED) -> None:
        """Take nothing more; what is not acknowledged is settled with `outcome`. Idempotent."""
        self._closed = True
        unacked = list(self.unacked.values())
        self.unacked.clear()
        for loan in unacked:
            loan.settle(outcome=outcome)
        while self._waiting:
            self._waiting.popleft().settle(outcome=outcome)
        self.ledger.unregister(self)
        self._on_broken = nobody  # see `Outlet.close`
