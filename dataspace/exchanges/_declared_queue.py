"""The queues of a virtual host: by name, with the arguments that they were declared with."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

import attrs

from ...accounts import DEFAULT_PATIENCE, Account, Ledger, Limit
from ..queues import (
    BackingFactory,
    Consumer,
    DeadLetterRoute,
    Delivery,
    Keeper,
    Queue,
    QueueInUseError,
    QueueSettings,
    QueueSums,
    RunQueue,
    SteadyBacking,
)
from ._message import Message

if TYPE_CHECKING:
    from ._exchange import Binding
    from ._tables import Table

QUEUE_BYTES = 4_500
"""The memory of an empty queue besides its name and its arguments (measured)."""


class HostQueue(RunQueue):
    """A queue of a virtual host.

    Publishers to a queue without consumers wait, as long as it takes: only a limit that its clients
    have set makes it drop messages.

    Attributes:
        on_consumer: Called before a consumer is added; None: nobody wants to know.
    """

    __slots__ = ("on_consumer",)

    keeps_backlog: ClassVar[bool] = True

    def __init__(self, *args: Any, **more: Any) -> None:
        self.on_consumer: Callable[[], object] | None = None
        super().__init__(*args, **more)

    def consume(self, callback: Callable[[Delivery], object], **more: Any) -> Consumer:
        """See `Queue.consume`."""
        if self.on_consumer is not None:
            self.on_consumer()
        return super().consume(callback, **more)


class SingleActiveQueue(HostQueue):
    """A queue that serves its first consumer only, and the next one when that has gone.

    Source: RabbitMQ, `x-single-active-consumer`.
    """

    __slots__ = ()

    def consume(self, callback: Callable[[Delivery], object], **more: Any) -> Consumer:
        """See `Queue.consume`.

        Raises:
            QueueInUseError: If it is to be exclusive, too.
        """
        if more.get("exclusive"):
            msg = f"queue {self.name} has a single active consumer, and no exclusive one"
            raise QueueInUseError(msg)
        return super().consume(callback, **more)

    def _next_consumer(self) -> Consumer | None:
        active = next(iter(self.consumers), None)
        if active is None or active not in self._active:
            return None
        full = active.full_window()
        if full is None:
            return active
        self._active.remove(active)  # type: ignore[union-attr]
        full.waiting[active] = None
        return None

    def consumer_gone(self) -> None:
        """See `ServingQueue.consumer_gone`: the next one is active now."""
        super().consumer_gone()
        self.work()


@attrs.define(slots=True, eq=False)
class DeclaredQueue:
    """A queue of a virtual host, as it was declared."""

    name: str
    """Its name."""
    queue: HostQueue
    """The queue itself: consume from it, get from it."""
    durable: bool
    """Whether it survives a restart."""
    auto_delete: bool
    """Whether it is deleted with its last consumer."""
    exclusive_to: object
    """The connection that may use it alone; None: all may."""
    arguments: Table
    """As they were declared."""
    kind: str
    """Its type: "classic" or "quorum"."""
    nbytes: int
    """The memory that it takes, about, without messages."""
    incoming: dict[Binding, None] = attrs.field(factory=dict["Binding", None], repr=False)
    """The bindings that lead to it, that of the default exchange apart."""


def expiration_of(event: object) -> float | None:
    """Return how many seconds an event may wait in a queue; for `Queue`."""
    return event.expiration if isinstance(event, Message) else None


class QueueMaker:
    """Makes the queues of virtual hosts, each with an account of its own.

    Args:
        ledger: The ledger of their loans.
        above: The account above theirs; None: none. Its limit is the disk budget of all.
        limit: The disk budget of each; None: as any account.
        keeper: The store of durable queues; None: none is in a store.
        ram: The shelves in RAM of the other queues, whose messages come to rest there; None: they
            have none.
        above_ram: The account above those of queues in RAM; None: as the others.
        backing: Their paging policy.
        patience: See `Holder`.
        more: As `Queue`: `policy` and `wall`.

    Attributes:
        ended: The counts of the queues that were deleted.
    """

    def __init__(
        self,
        ledger: Ledger,
        *,
        above: Account | None = None,
        limit: Limit | None = None,
        keeper: Keeper | None = None,
        ram: Keeper | None = None,
        above_ram: Account | None = None,
        backing: BackingFactory = SteadyBacking,
        patience: float = DEFAULT_PATIENCE,
        **more: Any,
    ) -> None:
        self.ledger = ledger
        self._above = above
        self._limit = limit
        self._keeper = keeper
        self._ram = ram
        self._above_ram = above if above_ram is None else above_ram
        self._backing = backing
        self._patience = patience
        self._more = more
        self.ended = QueueSums()

    def make(
        self,
        name: str,
        place: str,
        *,
        settings: QueueSettings,
        dead_letter: DeadLetterRoute | None,
        exclusive_to: object,
        single_active: bool,
        on_deleted: Callable[[Queue], object],
    ) -> HostQueue:
        """Make a queue; one that is durable has its messages from before a restart.

        Args:
            name: Its name in logs and reports.
            place: The name of its account and of its shelf.
            settings: See `Queue`.
            dead_letter: See `Queue`.
            exclusive_to: See `Queue`.
            single_active: Whether it serves one consumer at a time.
            on_deleted: Called when it is deleted; its account and its shelf are gone then.
        """
        keeper = self._keeper if settings.durable else None
        above = self._above
        if keeper is None:
            keeper, above = self._ram, self._above_ram
        shelf = None if keeper is None else keeper.shelf(place)

        def deleted(queue: Queue) -> None:
            if keeper is not None:
                keeper.drop(shelf)
            queue.account.close()
            self.ended.add_past(queue)
            on_deleted(queue)

        kind = SingleActiveQueue if single_active else HostQueue
        queue = kind(
            self.ledger,
            name,
            account=self.ledger.open(place, limit=self._limit, parent=above),
            settings=settings,
            shelf=shelf,
            backing=self._backing,
            dead_letter=dead_letter,
            exclusive_to=exclusive_to,
            ttl_of=expiration_of,
            on_deleted=deleted,
            patience=self._patience,
            **self._more,
        )
        if shelf is not None:
            shelf.recover(queue)
        return queue
