"""The outlet of one connection: a holder of loans that are bytes, repaid as the kernel takes them.

Rules of this file:
1. A loan is repaid when the kernel has taken its last byte (at most once: rule 7), in order.
2. An error of this connection's socket ends this connection. It never surfaces in the turn of the
   publisher that happened to be sending.
3. However the connection ends, everything held here is settled.
4. One send is capped: a backlog goes out piece by piece, with other tasks in between.
5. While it is behind (`_outlet_backlog.py`), or is fair and blocked, `queue` has only the bytes
   that are being sent: so `hold` can join a loan there without asking whether it is.
6. A fair outlet that is blocked serves accounts in turn (`FairQueue`). Until then it is first in
   first out, and nothing is asked.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain, islice
from typing import Any, Final

import trio

from ..accounts import (
    DEFAULT_PATIENCE,
    JOIN_BYTES,
    RETAIN_BYTES,
    RETAIN_LIMIT,
    Account,
    Holder,
    Ledger,
    Limit,
    LoanedItem,
    Outcome,
    StuckPolicy,
    Symptoms,
    lent,
)
from ..accounts._fair_queue import FairQueue
from ..dataspace import Batch
from ..sockets._layer import Connected
from ._consumer_queue import NO_RULES, ConsumerQueue
from ._flusher import SENDING, Flusher
from ._outlet_backlog import OutletBacklog
from ._tcp_counters import read_counters
from ._whole_frames import policy_for_frames

SEND_BYTES = 256 << 10
"""Most bytes of one send. Without a cap, releasing a backlog of 1 GB froze a relay for 3 seconds;
256 KiB are half a millisecond."""

PIECES = SEND_BYTES // JOIN_BYTES
"""Most sends of a fair outlet in a row, a run each: no more is begun than must be, so that a
message that comes meanwhile goes next; and to wait after each would cost a quarter more CPU."""

FRAMING_BYTES = 16
"""Bytes that framing may add to an event's charged size; MQTT adds 9 at the most."""

SPILL_LIMIT: Final = Limit(items=None, bytes=RETAIN_BYTES)
"""Default bound on what is spilled to memory. Not in events: what was there when the outlet was
relieved is spilled in records of up to 64 KiB, which may be thousands of events."""

NO_LOANS: Final[deque[LoanedItem[list[Any]]]] = deque(maxlen=0)
"""The queue of every outlet that has sent all: an empty one of its own would be 8 % of an idle
connection's memory. It takes nothing, so an outlet makes its own before it queues a loan."""


def as_bytes(item: bytes) -> bytes:
    """Return an item that is bytes already."""
    return item


def bytes_of(chunk: Any, name: str) -> bytes:
    """Return what the frame of outlet `name` has made, as bytes."""
    try:
        return bytes(memoryview(chunk))
    except TypeError:
        msg = f"the frame of outlet {name} must make bytes of an event, not {chunk!r:.100}"
        raise TypeError(msg) from None


class Outlet(ConsumerQueue):
    """The send buffer of one connection.

    It holds loans of bytes. A `Batch` goes out as its raw bytes; anything else is framed by
    `frame`.

    Args:
        ledger: The ledger of its loans.
        flusher: Calls `flush`.
        sock: A connected, non-blocking socket. Its owner closes it, after `close`.
        name: The connection's name for operators.
        frame: Makes bytes of an event that is not a `Batch`; must not raise.
        on_broken: Called with a sentence when the connection must end: the socket failed, or the
            outlet was given up (rule 11).
        patience: Seconds in which it takes nothing while others wait; then `policy` applies.
        policy: The policy for slow consumers. A frame, the bytes of one event, is dropped or
            spilled as a whole, as is a `Batch`. `SPILL` spills to memory, up to `retain_limit`:
            then publishers wait again, and after 20 s it is disconnected.
        retain_limit: How much it keeps while it is behind; by default 1,000 events and 8 MiB, or
            8 MiB with `SPILL`.
        key: For `StuckPolicy.CONFLATE`: returns the key of a frame, for example its topic. It gets
            no `Batch`, which nothing replaces.

    Attributes:
        sock: The socket.
        diverted: Whether it is closed, behind, or fair and blocked: new events are not simply
            queued.
        fair: Whether it serves accounts in turn while it is blocked: a message then waits for no
            more than one round of the others. False: the order of all is kept, whoever's they are.
        flusher: See above.
        framing_bytes: Bytes that framing may add to each event's charged size.
        sent_in: The reactor's pass in which it has sent something at once (`Flusher.passing`).
        on_flowing: Called when it is not blocked any more, nor behind; does nothing unless it is
            set.
        spare: A settled loan of this outlet's own, used again for the next: it saves making and
            freeing one for each delivery, 3 % of all CPU with one message in flight.

    Raises:
        UnfitPolicyError: If it is to conflate without a `key`.
    """

    __slots__ = (
        "_blocked", "_dirty", "_flows", "_frame", "_never_begun", "_on_broken", "_rest", "_scope",
        "_sending", "diverted", "fair", "flusher", "framing_bytes", "on_flowing", "sent_in",
        "sock", "spare",
    )  # fmt: skip

    kind = "outlet"

    def __init__(
        self,
        ledger: Ledger,
        flusher: Flusher,
        sock: Connected,
        name: str,
        *,
        frame: Callable[[Any], bytes] = as_bytes,
        on_broken: Callable[[str], object],
        patience: float = DEFAULT_PATIENCE,
        policy: StuckPolicy = StuckPolicy.DISCONNECT,
        retain_limit: Limit | None = None,
        key: Callable[[bytes], bytes] | None = None,
    ) -> None:
        policy = StuckPolicy(policy)  # its word is as good
        if retain_limit is None:
            retain_limit = SPILL_LIMIT if policy is StuckPolicy.SPILL else RETAIN_LIMIT
        super().__init__(
            ledger,
            name,
            consumer_policy=policy_for_frames(name, flusher, policy, patience, key),
            patience=patience,
            policy=policy,
            retain_limit=retain_limit,
        )
        self.queue = NO_LOANS
        self.flusher = flusher
        self.sent_in = 0
        self.sock = sock
        self.framing_bytes = FRAMING_BYTES
        self._frame = frame
        self._on_broken = on_broken
        self.on_flowing: Callable[[], object] = nothing
        # Loans that were only forwarded, and not begun, when it was closed.
        self._never_begun: tuple[LoanedItem[list[Any]], ...] = ()
        self.spare: LoanedItem[list[Any]] | None = None
        self._dirty = False
        self._blocked = False
        self.diverted = False
        self.fair = False
        # What waits behind the bytes that are being sent, while it is fair and blocked.
        self._flows: FairQueue | None = None
        self._scope: trio.CancelScope | None = None
        # The rest of the last, incomplete send, and the number of loans at the front in it.
        self._rest: memoryview | None = None
        self._sending = 0

    def __repr__(self) -> str:
        state = "closed" if self.closed else "blocked" if self._blocked else "open"
        return f"<Outlet {self.name}: {state}, {self.waiting} loans>"

    @property
    def blocked(self) -> bool:
        """Whether the connection takes nothing at the moment."""
        return self._blocked

    # -- a slow consumer ------------------------------------------------------------------------

    def _lines(self) -> Iterable[Iterable[LoanedItem[Any]]]:
        if self._flows is not None:
            return self._flows.lines()
        return (islice(self.queue, self._sending, None),)

    def relieve(self, why: str, fields: Mapping[str, object] | None = None) -> None:
        consumer_policy = self._consumer_policy
        if consumer_policy is None or not self.policy.relieves:
            super().relieve(why, fields)
            return
        if self.closed or not self._blocked:
            return  # an unblocked outlet sends in a moment
        if self._lagging is not None:
            # It has reported that it is behind already: somebody waits all the same.
            self._lagging.relieve_again(why, fields)
            return
        if self._flows is not None:
            self.queue.extend(self._flows.clear())
            self._flows = None
        progressed_at = self.progressed_at
        backlog = self._lagging = self.backlog = OutletBacklog(self, consumer_policy, why, fields)
        self.diverted = self.lagging = True
        self.ledger.lagging.add(self)
        backlog.relieve()
        # Moving messages away is no progress of its peer's.
        self.progressed_at = progressed_at
        backlog.write()

    def spill_again(self) -> None:
        if self._lagging is not None:
            self._lagging.write()

    def caught_up(self, why: str = "has caught up") -> None:
        self._lagging = None
        self.diverted = self.closed
        super().caught_up(why)

    @property
    def begun(self) -> int:
        return self._sending

    @property
    def unsent(self) -> bool:
        """Whether something has not gone out yet."""
        return bool(self.queue or self._flows) or self._lagging is not None

    @property
    def waiting(self) -> int:
        """Number of loans that have not gone out yet, without those of a backlog (`relieve`)."""
        return len(self.queue) + (0 if self._flows is None else len(self._flows))

    def keep_order(self) -> None:
        """Let all that is here go before whatever comes later, also if it is fair."""
        if self._flows is not None:
            self._flows.in_order()
            self._unbegun = None
        elif self._lagging is not None:
            self._lagging.keep_order()

    def soon(self) -> None:
        """Mark it for the next flush."""
        if not self._dirty:
            self._dirty = True
            self.flusher.dirty.append(self)

    # -- a holder -------------------------------------------------------------------------------

    def hold(self, account: Account, item: Any, items: int, nbytes: int, now: float) -> None:
        """See `Holder.hold`. This is the hottest path of all.

        Raises:
            TypeError: If `frame` has not made bytes of it.
        """
        if type(item) is Batch:
            chunk = item.raw
        elif item.__class__ is bytes:
            chunk = item
        else:
            chunk = self._frame(item)
            if chunk.__class__ is not bytes:
                # It would be found when it is sent: by whatever task happens to send then.
                chunk = bytes_of(chunk, self.name)
        queue = self.queue
        # Loans that are being sent are not joined: they are repaid as they stand.
        if len(queue) > self._sending:
            tail = queue[-1]
            if tail.account is account and tail.bytes < tail.grows_to and account.tracing is None:
                tail.item.append(chunk)
                tail.items += items
                tail.bytes += nbytes
                return
        elif self.diverted:
            if self._flows is not None:
                self._flows.hold(account, chunk, items, nbytes, now, self)
            elif self._lagging is not None:
                self._lagging.hold(account, chunk, items, nbytes, now)
            else:
                account.repay(items, nbytes, Outcome.DROPPED, self)
            return
        elif not queue:
            self.progressed_at = now
            queue = self.queue = deque()
        loan = self.spare
        if loan is None or account.tracing is not None:
            loan = lent(account, [chunk], items, nbytes, self, now)
        else:
            self.spare = None
            loan.account = account
            loan.item.append(chunk)
            loan.items = items
            loan.bytes = nbytes
            loan.opened = now
        queue.append(loan)
        if not self._dirty:
            self._dirty = True
            self.flusher.dirty.append(self)

    def turn_away(self, account: Account, items: int, nbytes: int, why: Outcome) -> None:
        """Repay events for this outlet that the recipient in front of it has not passed on."""
        account.repay(items, nbytes, why, self)

    def ready(self) -> None:
        self.flusher.ready()

    def send_now(self) -> None:
        """Send now what waits for the next flush: for a caller that has much more to hand over."""
        self.flusher.flush_now()

    def forward(self, loan: LoanedItem[list[Any]]) -> None:
        """Send the bytes of a loan that another holder keeps, and settles when they are acked.

        Its `item` is a list of bytes. It goes out in order with everything else; while the outlet
        is fair and blocked, in order with everything else that is forwarded: such packets may refer
        to earlier ones (topic aliases), and one publisher's may be on several accounts (at rest).
        """
        if self.closed:
            return
        loan.grows_to = 0
        if self._lagging is not None:
            self._lagging.put(loan)
            return
        if self._flows is not None:
            self._flows.put(loan)
            return
        if not self.queue:
            self.progressed_at = self.ledger.clock()
            self.queue = deque()
        self.queue.append(loan)
        if not self._dirty:
            self._dirty = True
            self.flusher.dirty.append(self)

    def withdraw(self, holder: Holder) -> list[LoanedItem[list[Any]]]:
        """Send none of another holder's loans that are not begun; return them.

        While it is behind there are none: loans that are kept for later are sent later.
        """
        return self.withdraw_those(lambda loan: loan.holder is holder)

    def withdraw_those(
        self, chosen: Callable[[LoanedItem[list[Any]]], bool]
    ) -> list[LoanedItem[list[Any]]]:
        """Send none of the chosen loans, which others hold, that are not begun; see `withdraw`."""
        if self._lagging is not None:
            return []
        queue, begun = self.queue, self._sending
        if self._flows is not None:
            self.keep_order()
            queue, begun = self._flows.first, 0
        rest = list(islice(queue, begun, None))
        while len(queue) > begun:
            queue.pop()
        queue.extend(loan for loan in rest if not chosen(loan))
        return [loan for loan in rest if chosen(loan)]

    def unbegun(self) -> Iterator[LoanedItem[list[Any]]]:
        """Yield the loans of which the kernel has been offered nothing yet, in order.

        A peer cannot have processed their contents, whatever it says. Of an outlet that is closed
        they are those that others hold, and that it will not send.
        """
        if self.closed:
            return iter(self._never_begun)
        unbegun = islice(self.queue, self._sending, None)
        if self._flows is not None:
            return chain(unbegun, self._flows)
        return unbegun if self._lagging is None else chain(unbegun, self._lagging.aside)

    def loans(self) -> Iterator[LoanedItem[Any]]:
        for loan in self.queue if self._flows is None else chain(self.queue, self._flows):
            # Leave objects that are not loans to the audit.
            if not isinstance(loan, LoanedItem) or loan.holder is self:  # pyright: ignore[reportUnnecessaryIsInstance]
                yield loan
        if self._lagging is not None:
            yield from self._lagging.loans()

    def symptoms(self) -> Symptoms:
        return Symptoms(read_counters(self.sock), self.unsent)

    def surplus(self) -> tuple[int, str] | None:
        if self._rest is not None and not self.queue:
            return len(self._rest), "unsent bytes"
        uncovered = 0 if self._lagging is None else self._lagging.surplus()
        for loan in self.loans():
            if isinstance(loan, LoanedItem):  # pyright: ignore[reportUnnecessaryIsInstance]
                more = sum(map(len, loan.item)) - loan.bytes
                if more > loan.items * self.framing_bytes or len(loan.item) > loan.items:
                    uncovered += more
        return (uncovered, "bytes") if uncovered else None

    def settle_all(self, outcome: Outcome) -> None:
        """See `LoanQueue.settle_all`; loans that were only forwarded are not this holder's."""
        queue = self.queue
        flows, self._flows = self._flows, None
        if flows is not None:
            queue.extend(flows.clear())
        self._rest = None
        self._sending = 0
        while queue:
            loan = queue.popleft()
            if loan.holder is self:
                loan.settle(outcome=outcome)
        if self._lagging is not None:
            self._lagging.settle_all(outcome)

    def give_up(self, why: str) -> None:
        """See `Holder.give_up`: the connection is cut."""
        on_broken = self._on_broken
        self.close(Outcome.WRITTEN_OFF)
        on_broken(why)

    def close(self, outcome: Outcome = Outcome.CANCELLED) -> None:
        """Send nothing more; loans held here are settled with `outcome`. Idempotent.

        The kernel may still deliver bytes that it has taken.
        """
        if self.closed:
            return
        self._never_begun = tuple([loan for loan in self.unbegun() if loan.holder is not self])
        self.closed = self.diverted = True
        if self._scope is not None:
            self._scope.cancel()
        self.settle_all(outcome)
        if self._lagging is not None:
            self.caught_up("has ended")
        self.ledger.unregister(self)
        # Its owner and the spare loan hold this outlet: without this, only the garbage collector
        # could free them.
        self._on_broken = nobody
        self.on_flowing = nothing
        self.spare = None

    # -- sending --------------------------------------------------------------------------------

    def flush(self) -> LoanedItem[list[Any]] | None:
        """Send what the kernel takes now; if it does not take all, a task sends the rest.

        For `Flusher`. Returns an untraced loan that was all there was and went out at once: it is
        no longer held here, and the caller repays it and gives it back as `spare`.
        """
        self._dirty = False
        queue = self.queue
        if self._blocked or not queue:
            self.spill_again()
            return None
        if len(queue) == 1:
            loan = queue[0]
            chunks = loan.item
            data = chunks[0] if len(chunks) == 1 else b"".join(chunks)
            size = len(data)
            if size <= SEND_BYTES:
                try:
                    sent = self.sock.send(data)
                except BlockingIOError:
                    sent = 0
                except OSError as exc:
                    self.fail(exc)
                    return None
                if sent == size:
                    self.queue = NO_LOANS
                    if loan.holder is not self:
                        return None
                    if loan.trace is not None:
                        loan.settle()
                        return None
                    chunks.clear()
                    return loan
                self._keep_rest(loan, data, sent)
                return None
        self._send_some()
        if self.queue:
            self._block()
        return None

    def hold_rest(self, account: Account, item: Any, items: int, nbytes: int, sent: int) -> None:
        """Hold a loan of which the kernel has taken `sent` bytes already, as the first there is.

        For callers that have found nothing queued, and have sent by themselves (`_direct_send.py`):
        `item` is the `nbytes` that were to be sent, or has them as `raw`.
        """
        self.hold(account, item, items, nbytes, self.ledger.clock())
        if not self.closed:
            loan = self.queue[0]
            self._keep_rest(loan, loan.item[0], sent)

    def forward_rest(self, loan: LoanedItem[list[Any]], sent: int) -> None:
        """Do as `forward` with a loan of which the kernel has taken `sent` bytes; likewise."""
        self.forward(loan)
        if not self.closed:
            self._keep_rest(loan, loan.item[0], sent)

    def _keep_rest(self, loan: LoanedItem[list[Any]], data: bytes, sent: int) -> None:
        """Keep the unsent rest of the only loan here, for a task to send."""
        self._note_begun((loan,))
        # Copied once, so that a small rest does not keep a large read alive.
        rest = data[sent:] if sent else data
        self._rest = memoryview(rest)
        self._sending = 1
        loan.item = [rest]
        self._block()

    def _send_some(self) -> None:
        """Send once, and settle the loans whose bytes the kernel has all taken."""
        rest = self._rest
        if rest is None:
            rest = self._gather()
        try:
            sent = self.sock.send(rest[:SEND_BYTES])
        except BlockingIOError:
            return
        except OSError as exc:
            self.fail(exc)
            return
        now = self.progressed_at = self.ledger.clock()
        for loan in islice(self.queue, self._sending):
            if loan.holder is not None:
                # A holder that waits for an acknowledgement is not idle while the bytes still
                # leave.
                loan.holder.progressed_at = now
        if sent < len(rest):
            self._rest = rest[sent:]
            return
        self._rest = None
        self.begun_rules = NO_RULES
        self._unbegun = None
        queue = self.queue
        finished = self._sending
        self._sending = 0
        for _ in range(finished):
            loan = queue.popleft()
            if loan.holder is self:
                loan.settle()
        if not self.queue:
            self.queue = NO_LOANS

    def _gather(self) -> memoryview:
        """Take the loans at the front whose bytes are one send's worth, at least one."""
        chunks: list[bytes] = []
        size = taken = 0
        for loan in self.queue:
            # While it is diverted, all that is here goes next.
            if taken and size + loan.bytes > SEND_BYTES and not self.diverted:
                break
            taken += 1
            size += loan.bytes
            chunks.extend(loan.item)
        self._sending = taken
        self._note_begun(islice(self.queue, taken))
        self._rest = memoryview(b"".join(chunks))
        return self._rest

    def _block(self) -> None:
        self._blocked = True
        if self.fair:
            queue, sending = self.queue, self._sending
            self._flows = FairQueue(islice(queue, sending, None))
            while len(queue) > sending:
                queue.pop()
            self.diverted = True
        self._scope = trio.CancelScope()
        self.flusher.nursery.start_soon(self._drain, self._scope, name=f"drain {self.name}")

    async def _drain(self, scope: trio.CancelScope) -> None:
        with scope:
            try:
                while not self.closed and self.unsent:
                    if not self.queue and not await self._refilled():
                        continue
                    await trio.lowlevel.wait_writable(self.sock)
                    if not self.closed and self.queue:
                        self._send_some()
                    for _ in range(PIECES - 1):
                        if self.queue or self.closed or not self._take_piece():
                            break
                        self._send_some()
            except Exception as exc:  # noqa: BLE001 (the nursery is of all)
                self.ledger.faults.note(self, SENDING, exc)
                return  # it stays blocked until it is closed
        self._blocked = False
        self._flows = None
        self.diverted = self.closed
        self._scope = None
        self.ledger.faults.call(self, SENDING, self.on_flowing)

    def _take_piece(self) -> bool:
        """Take the next bytes to send, if there are any now."""
        if self._flows:
            self.queue = self._flows.take(JOIN_BYTES)
        elif self._lagging is None or not self._lagging.refill(SEND_BYTES):
            return False
        # At once: nothing may join what is in the queue.
        self._gather()
        return True

    async def _refilled(self) -> bool:
        """Take the next bytes; False: call again if there is a backlog."""
        if self._take_piece():
            return True
        backlog = self._lagging
        assert backlog is not None
        if backlog.is_empty:
            self.caught_up()
        else:
            await backlog.more()
        return False

    def fail(self, exc: OSError) -> None:
        """End the connection, whose socket has failed."""
        on_broken = self._on_broken
        self.close()
        on_broken(f"could not be written to: {exc.strerror or exc}")


def nobody(why: str) -> None:
    """Tell nobody: the connection has ended."""


def nothing() -> None:
    """Do nothing: nobody needs to know."""
