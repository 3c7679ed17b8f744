"""The backlog of a lagging connection: messages that it does not take.

Rules of this file, beyond those of every `Backlog`:
1. A packet that the kernel has been offered a part of goes out whole.
2. The policy of its topic applies to a message that may be dropped (`PolicyRules`). Everything
   else, and messages whose policy is to wait, stay on their account, in order.
3. Where messages are spilled, a publisher that has few of them here, and nothing spilled, is not
   made to wait behind the spilled ones of the others (`_may_pass`). Its own keep their order. It
   owes for them until they are under way.
4. Chunks are handled whole, as they came, where possible: they are kept as one loan, or hundreds of
   messages would cost as much as each alone.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

import attrs
import trio

from ..access._subscription_policies import PolicyRule
from ..accounts import (
    JOIN_BYTES,
    Account,
    Backlog,
    LoanedItem,
    Outcome,
    StuckPolicy,
    lent,
)
from ..persistence._spool import OpenSpool, Spool
from ._backlog_messages import BacklogMessages, Framing, Room
from ._treatments import Found

if TYPE_CHECKING:
    from ..access._subscription_policies import PolicyRules
    from ._outlet import Outlet

logger = logging.getLogger("clearfunds.transports")

DEFAULT_BEHIND_LIMIT: Final = 256 << 20
"""Bytes that are kept for all lagging connections: as much as all may owe."""

SHORT: Final = Room(1, 1)
"""Kept when all together keep as much as they may: the last message, or the first."""

OWN_PART: Final = 8
"""A peer whose own unread answers exceed this part (an eighth) of an ancestor's limit counts as
blocking that ancestor."""

STAYS: Final = (StuckPolicy.WAIT, StuckPolicy.DISCONNECT)
"""Policies under which messages stay on their account."""


@attrs.frozen(slots=True, eq=False)
class ConsumerPolicy:
    """The policies for one slow consumer."""

    rules: PolicyRules
    """The policy for each message."""
    framing: Framing
    """Tells messages from everything else."""
    open_spool: OpenSpool | None = None
    """Opens the place to spill messages to (`StuckPolicy.SPILL`)."""
    limit: int | None = None
    """Most bytes that all lagging connections may keep together; None: that of `LAGGING`, if it has
    one."""
    whole: bool = False
    """Whether each chunk is one frame, also a chunk that stands for several messages."""

    @property
    def undroppable_policy(self) -> StuckPolicy:
        """The policy for undroppable packets: spill (else disconnect) where others are relieved."""
        policies = self.rules.policies
        if not any(policy.relieves for policy in policies):
            return self.rules.default.policy
        return StuckPolicy.DISCONNECT if self.open_spool is None else StuckPolicy.SPILL

    @property
    def undroppable_patience(self) -> float:
        """The patience before that."""
        relieving = [each.patience for each in self.rules.every if each.policy.relieves]
        return min(relieving, default=self.rules.default.patience)


class Several(bytes):
    """A chunk that is one frame and stands for several messages (`ConsumerPolicy.whole`)."""

    items: int

    @classmethod
    def of(cls, chunk: bytes, items: int) -> Several:
        """Make one of `chunk`."""
        found = cls(chunk)
        found.items = items
        return found


class OutletBacklog(Backlog):
    """One spell of lagging, of one outlet.

    Attributes:
        aside: Loans that stay as they are, behind the bytes that are being sent.
    """

    __slots__ = (
        "_consumer_policy", "_found", "_loan", "_messages", "_more", "_outlet", "_passes",
        "_passing", "_room", "_spool", "aside",
    )  # fmt: skip

    def __init__(
        self,
        outlet: Outlet,
        consumer_policy: ConsumerPolicy,
        why: str,
        fields: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__(outlet, why, fields)
        self._outlet = outlet
        self._consumer_policy = consumer_policy
        self.aside: deque[LoanedItem[list[Any]]] = deque()
        # The treatments of messages there, as far as somebody has asked.
        self._found: Found | None = None
        retain_limit = outlet.retain_limit.marks()
        self._room = Room(retain_limit[0], retain_limit[1])
        self._messages = BacklogMessages(consumer_policy.framing, self._room)
        # Messages that are kept, as one loan of the backlog's account.
        self._loan: LoanedItem[list[Any]] | None = None
        self._spool: Spool | None = None
        # Messages that are not spilled, by account, in the order of their first ones.
        self._passing: dict[Account, deque[LoanedItem[list[Any]]]] = {}
        # Whether some messages may still pass by the spilled ones.
        self._passes = True
        self._more: trio.Event | None = None

    def __repr__(self) -> str:
        return f"<OutletBacklog of {self._outlet.name}: {len(self)} kept>"

    def __len__(self) -> int:
        """Return the number of messages that it keeps."""
        passing = sum(loan.items for loans in self._passing.values() for loan in loans)
        return len(self._messages) + passing + (0 if self._spool is None else len(self._spool))

    def __bool__(self) -> bool:
        return True

    @property
    def is_empty(self) -> bool:
        """Whether nothing is left to be sent."""
        return not self.aside and not self._passing and not len(self)

    # -- when it begins -------------------------------------------------------------------------

    def relieve(self) -> None:
        self.take_over_begun()
        outlet = self._outlet
        queue = outlet.queue
        rest: deque[LoanedItem[list[Any]]] = deque()
        while len(queue) > outlet.begun:
            rest.appendleft(queue.pop())
        for loan in rest:
            self.put(loan)

    def relieve_again(self, why: str, fields: Mapping[str, object] | None = None) -> None:
        """Spill at once what was to pass by the spilled messages: somebody waits for it."""
        for account in list(self._passing):
            self._spill_passing(account)
        self.write(now=True)
        outlet = self._outlet
        if not self.staying(outlet.begun_rules) and self.undroppable():
            logger.warning(
                "%s, and may not be dropped; it is disconnected", why, extra=dict(fields or {})
            )
            outlet.give_up(why)

    def keep_order(self) -> None:
        """Let all that is here go before whatever comes later: from now on nothing passes by."""
        for account in list(self._passing):
            self._spill_passing(account)
        self._passes = False

    def put(self, loan: LoanedItem[list[Any]]) -> None:
        """See `Backlog.put`; loans that the outlet only forwards stay as they are."""
        if loan.holder is not self._outlet:
            self.aside.append(loan)
            self._wake()
            return
        framing = self._consumer_policy.framing
        chunks = list(loan.item)
        items, nbytes = loan.items, loan.bytes
        if self._consumer_policy.whole and len(chunks) != items:
            chunks = [b"".join(chunks)]
        left = sum(map(len, chunks))
        # From here on each chunk is on its own, as if it came now.
        loan.items = loan.bytes = 0
        for place, chunk in enumerate(chunks):
            some = 1
            if framing.may_drop(chunk):
                some = sum([frame[3] for frame in framing.frames(chunk)])
            if place == len(chunks) - 1:
                some = items
            size = _charge_of(len(chunk), some, left, items, nbytes)
            left -= len(chunk)
            items -= some
            nbytes -= size
            loan.continued(self.hold, loan.account, chunk, some, size, loan.opened)

    def undroppable(self) -> bool:
        """Whether others wait for something that its policy cannot move.

        The debt that its own peer has caused, such as answers, is the peer's own affair, unless
        others wait at an account above, and it is a large part of the limit there (`OWN_PART`).
        """
        outlet = self._outlet
        owner = outlet.owner
        at_rest = {self.account, self.above}
        if self._spool is not None:
            at_rest.add(self._spool.account)
        items = nbytes = 0
        for loan in chain(outlet.queue, self.aside):
            if loan.holder is not outlet or loan.account in at_rest:
                continue
            if loan.account is not owner:
                return True
            items += loan.items
            nbytes += loan.bytes
        if owner is None or not items:
            return False
        places = {waiter.at for waiter in outlet.ledger.waiters if waiter.account is not owner}
        return any(
            place in places
            and (items * OWN_PART >= place.mark_items or nbytes * OWN_PART >= place.mark_bytes)
            for place in owner.chain[1:]
        )

    # -- input ----------------------------------------------------------------------------------

    def hold(self, account: Account, chunk: bytes, items: int, nbytes: int, opened: float) -> None:
        """Handle whole packets, for which `account` has been charged."""
        consumer_policy = self._consumer_policy
        if not consumer_policy.framing.may_drop(chunk):
            self._put_aside(account, chunk, items, nbytes, opened)
            return
        if consumer_policy.whole and items > 1:
            chunk = Several.of(chunk, items)
        rules = consumer_policy.rules
        if rules.only is not None:
            self._deal(rules.only.policy, account, chunk, items, nbytes, opened)
            return
        left = len(chunk)
        for policy, start, end, some in self._sorted(chunk):
            if end == len(chunk):
                some = items
            size = _charge_of(end - start, some, left, items, nbytes)
            left -= end - start
            items -= some
            nbytes -= size
            self._deal(policy, account, chunk[start:end], some, size, opened)

    def _sorted(self, chunk: bytes) -> Iterator[tuple[StuckPolicy, int, int, int]]:
        """Yield the longest stretches with one policy: policy, start, end, number of messages."""
        rules = self._consumer_policy.rules
        policy: StuckPolicy | None = None
        first = last = count = 0
        for key, start, end, some in self._consumer_policy.framing.frames(chunk):
            found = rules.of(key).policy
            if found is not policy:
                if policy is not None:
                    yield policy, first, start, count
                policy, first, count = found, start, 0
            count += some
            last = end
        if policy is not None:
            yield policy, first, last, count

    def _deal(
        self,
        policy: StuckPolicy,
        account: Account,
        chunk: bytes,
        items: int,
        nbytes: int,
        opened: float,
    ) -> None:
        outlet = self._outlet
        if policy in STAYS:
            self._put_aside(account, chunk, items, nbytes, opened)
            return
        if policy is StuckPolicy.SPILL:
            if self._may_pass(account, nbytes):
                passing = self._passing.setdefault(account, deque())
                self._append(passing, account, chunk, items, nbytes, opened)
                return
            self._spill_passing(account)
            spool = self._spool
            if spool is None:
                spool = self._spool = self._open_spool()
            spool.hold(account, chunk, items, nbytes, opened)
            outlet.soon()
            for relief in (self.lost, outlet.relief, outlet.ledger.relief[policy]):
                relief.stored_items += items
                relief.stored_bytes += nbytes
            return
        size = len(chunk)
        messages = self._messages
        limit = self._consumer_policy.limit
        above = self.above
        full = above.debt_bytes + size > (above.mark_bytes if limit is None else limit)
        messages.room = SHORT if full else self._room
        if policy is StuckPolicy.DROP_NEWEST and messages.is_full(policy):
            self._count_dropped(policy, items, nbytes)
            account.repay(items, nbytes, Outcome.DROPPED, outlet, opened)
            return
        # Kept messages are charged here before they are repaid there.
        self.account.borrow(items, size)
        loan = self._loan
        if loan is None:
            loan = self._loan = lent(self.account, [], items, size, outlet, opened)
        else:
            loan.items += items
            loan.bytes += size
        account.repay(items, nbytes, Outcome.STORED, outlet, opened)
        dropped, gone = messages.add(policy, chunk, items, opened)
        if dropped:
            self._count_dropped(policy, dropped, gone)
            oldest = loan.opened
            self._take_off(dropped, gone)
            # No `settle`: nothing was finished that its peer has had to do with.
            self.account.repay(dropped, gone, Outcome.DROPPED, outlet, oldest)
        self._wake()

    def _put_aside(
        self, account: Account, chunk: bytes, items: int, nbytes: int, opened: float
    ) -> None:
        self._append(self.aside, account, chunk, items, nbytes, opened)

    def _append(
        self,
        line: deque[LoanedItem[list[Any]]],
        account: Account,
        chunk: bytes,
        items: int,
        nbytes: int,
        opened: float,
    ) -> None:
        if line:
            tail = line[-1]
            if tail.account is account and tail.bytes < tail.grows_to and account.tracing is None:
                tail.item.append(chunk)
                tail.items += items
                tail.bytes += nbytes
                return
        outlet = self._outlet
        line.append(lent(account, [chunk], items, nbytes, outlet, opened))
        self._wake()

    def _may_pass(self, account: Account, nbytes: int) -> bool:
        """Whether a message need not be spilled: its publisher has few here, and need not wait.

        As flow queueing has it, which serves sparse flows first (RFC 8290, 4.2). None passes in an
        outlet that is not fair, which keeps the order of all messages.
        """
        if not self._passes or not self._outlet.fair or not account.debt_is_clear():
            return False
        if self._spool is not None and self._spool.has_messages_of(account):
            return False
        here = sum(loan.bytes for loan in self._passing.get(account, ()))
        return here + nbytes <= JOIN_BYTES

    def _spill_passing(self, account: Account) -> None:
        """Spill the messages of an account that were to pass: those that follow are spilled."""
        line = self._passing.pop(account, None)
        if line is None:
            return
        self._passes = False
        for loan in line:
            self.put(loan)
        self._passes = True

    def _take_off(self, items: int, nbytes: int) -> None:
        loan = self._loan
        assert loan is not None
        loan.items -= items
        loan.bytes -= nbytes
        if not loan.items:
            self._loan = None
        # It takes the age of the next message: its first one may be long gone.
        opened = self._messages.opened
        if opened is not None:
            loan.opened = opened

    def _count_dropped(self, policy: StuckPolicy, items: int, nbytes: int) -> None:
        outlet = self._outlet
        for relief in (self.lost, outlet.relief, outlet.ledger.relief[policy]):
            relief.dropped_items += items
            relief.dropped_bytes += nbytes

    # -- putting aside --------------------------------------------------------------------------

    def _open_spool(self) -> Spool:
        open_spool = self._consumer_policy.open_spool
        assert open_spool is not None
        return open_spool(self._outlet, self._wake, self._outlet.give_up)

    def write(self, *, now: bool = False) -> None:
        """Write spilled messages to the disk, `now` even few of them: after a commit."""
        if self._spool is not None:
            self._spool.write(now=now)

    def _wake(self) -> None:
        if self._more is not None:
            self._more.set()

    # -- output ---------------------------------------------------------------------------------

    def refill(self, nbytes: int) -> bool:
        """Give the outlet its next bytes to send, about `nbytes`; return whether there are any."""
        outlet = self._outlet
        queue = outlet.queue = deque()  # what was there has all been sent
        size = 0
        self._found = None
        while self.aside and size < nbytes:
            loan = self.aside.popleft()
            size += loan.bytes
            queue.append(loan)
        while self._passing and size < nbytes:
            account = next(iter(self._passing))
            for loan in self._passing.pop(account):
                loan.transfer(self.above)  # begun: nobody waits for it
                size += loan.bytes
                queue.append(loan)
        if size < nbytes:
            chunks, items = self._messages.take(nbytes - size)
            if items:
                assert self._loan is not None
                opened = self._loan.opened
                taken = sum(map(len, chunks))
                self._take_off(items, taken)
                size += taken
                queue.append(lent(self.account, chunks, items, taken, outlet, opened))
        while self._spool is not None and size < nbytes:
            spilled = self._spool.take()
            if spilled is None:
                break
            size += spilled.bytes
            queue.append(spilled)
        if outlet.full_patience is not None:
            self.write()  # There may be room now.
        return bool(queue)

    async def more(self) -> None:
        """Wait until there may be something to send: the disk has to be read."""
        self._more = trio.Event()
        await self._more.wait()
        self._more = None

    # -- looking, and the end -------------------------------------------------------------------

    def loans(self) -> Iterator[LoanedItem[Any]]:
        """Yield the loans here, of the outlet's own."""
        for loan in self.aside:
            if loan.holder is self._outlet:
                yield loan
        for line in self._passing.values():
            yield from line
        if self._loan is not None:
            yield self._loan
        if self._spool is not None:
            yield from self._spool.loans()

    def surplus(self) -> int:
        """Return the bytes that are kept and that no loan covers."""
        covered = 0 if self._loan is None else self._loan.bytes
        return max(0, self._messages.nbytes - covered)

    def staying(self, begun: Iterable[PolicyRule]) -> set[PolicyRule]:
        """Return the treatments of messages that stay on their accounts, also of those `begun`."""
        return {each for each in self.rules_aside().union(begun) if each.policy in STAYS}

    def unspilled(self) -> set[PolicyRule]:
        """Return the treatments of messages to be spilled for which publishers wait already.

        They were to pass by, or there was no room for them.
        """
        found: set[PolicyRule] = set()
        full = self._outlet.full_patience
        if full is not None and self._spool is not None and self._spool.is_waited_for:
            found.add(PolicyRule(StuckPolicy.DISCONNECT, full))
        if not all(account.debt_is_clear() for account in self._passing):
            every = self._consumer_policy.rules.every
            found.update(each for each in every if each.policy is StuckPolicy.SPILL)
        return found

    def rules_aside(self) -> set[PolicyRule]:
        """Return the treatments of messages that wait here to be sent."""
        if self._found is None:
            self._found = Found()
        return self._found.look(self._consumer_policy, self.aside, self._outlet)

    def settle_all(self, outcome: Outcome) -> None:
        """Repay everything here with `outcome`."""
        while self.aside:
            loan = self.aside.popleft()
            if loan.holder is self._outlet:
                loan.settle(outcome=outcome)
        for line in self._passing.values():
            for loan in line:
                loan.settle(outcome=outcome)
        self._passing.clear()
        self._messages.clear()
        rest, self._loan = self._loan, None
        if rest is not None:
            rest.settle(outcome=outcome)
        self._close_spool(outcome)

    def _close_spool(self, outcome: Outcome = Outcome.CANCELLED) -> None:
        spool, self._spool = self._spool, None
        if spool is not None:
            spool.close(outcome)

    def end(self, why: str) -> None:
        self._close_spool()
        super().end(why)


def _charge_of(size: int, some: int, left: int, items: int, nbytes: int) -> int:
    """Return the part that is charged for `size` bytes, `some` messages, of those that are `left`.

    These are `items` messages, for which `nbytes` are charged: the framing of each is not.
    """
    if some >= items:
        return nbytes
    return min(nbytes, max(0, size - (left - nbytes) * some // items))
