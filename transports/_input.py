"""Unfinished input in one book: bytes of peers that cannot be handled yet.

A connection holds input while a packet of it is not complete, while it waits for funds and is
looked ahead at, and while it waits for its turn. Above `FREE_BYTES` the input is a loan on the
account of its share: the address that it comes from before it has logged in, and then its user, or
again the address where users are not verified. All shares are below one account, `input`, which
owes for bytes in RAM (`Ledger.at_rest`), so the audit, the metrics and the pages show it as they
show `kept`.

Rules of this file:
1. Nothing of a packet that is not complete has been accepted, so its connection can be cut without
   loss (rule 7). A connection that is looked ahead at is never cut for that: it is not read on.
2. When there is too much input, the share that has most goes first, and in it the connection that
   has made no progress for the longest. A share that has less than that one never pays for it.
3. Within one share a connection that has just made progress is not cut for another one: that one is
   not read on, until one of them is done, or has made no progress for a while. Where all wait so,
   the largest goes.
4. Input that is looked ahead at is at most half of all, and each connection may have as much of it
   as is free: all have the same, and something is left for the next.

Source: max-min fairness; for 4., the dynamic thresholds of shared-memory switches (Choudhury and
Hahne, 1998).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

import attrs

from ..access._addresses import network
from ..accounts import Account, Holder, Limit, LoanedItem, Outcome
from ._link import LITTLE_BYTES, READ_BYTES

if TYPE_CHECKING:
    from ..accounts import Ledger

logger = logging.getLogger("clearfunds.relay")

INPUT_ACCOUNT: Final = "input"
"""The account above those of all shares."""

FREE_BYTES: Final = 4 << 10
"""Bytes that a connection may hold without a loan: most never hold more, and a read costs them one
comparison. With 10,000 connections it is 40 MB."""

LOOKAHEAD_FLOOR: Final = 16 << 10
"""Bytes that a connection that waits may hold in any case, so that its acknowledgements get through
when the budget is used up: 4,000 acknowledgements. With 10,000 connections it is 160 MB. Where an
acknowledgement is behind more than that, patience ends the wait (rule 11)."""

DEFAULT_INPUT_LIMIT: Final = 64 << 20
"""Thirty-two packets of the default size at a time."""

DEFAULT_ADDRESS_INPUT_LIMIT: Final = 4 << 20
"""Before login: two hundred CONNECTs of the largest size at a time."""

DEFAULT_USER_INPUT_LIMIT: Final = 32 << 20
"""Half of all: no user alone uses up all input."""

PROGRESS_BYTES: Final = 1 << 10
"""Fewer bytes than that are no progress: a byte a second would hold a place for ever."""

STALL_SECONDS: Final = 0.5
"""A connection without progress for so long may be cut for another one of the same share."""

PAUSE_SECONDS: Final = 0.05
"""The interval at which a connection that is not read on checks whether there is room."""

PAUSED_SECONDS: Final = 10.0
"""A connection may be paused so long for want of room; then it is cut itself."""

LOG_SECONDS: Final = 1.0
"""The least interval between log lines about connections that were cut."""


@attrs.frozen(slots=True, kw_only=True)
class InputLimits:
    """Limits on unfinished input, in bytes; None is no limit."""

    total: int | None = DEFAULT_INPUT_LIMIT
    """Of all connections."""
    address: int | None = DEFAULT_ADDRESS_INPUT_LIMIT
    """Of the connections from one address that have not logged in."""
    user: int | None = DEFAULT_USER_INPUT_LIMIT
    """Of one verified user's connections."""


def address_of(peer: str) -> str:
    """Return the address that names a peer's share: of IPv6, the /64 that one site has.

    `peer` is an address and a port (`127.0.0.1:1883`), or a path and a number (`/run/s#7`).
    """
    if "#" in peer:
        return peer.rpartition("#")[0]
    return network(peer.rpartition(":")[0].strip("[]"))


class Share:
    """The input of one address, or of one user.

    Attributes:
        name: Its name.
        limit: Most bytes it may have, or None.
        account: The account that owes for it.
        order: Its connections that wait for their peers, the one first that has made no progress
            for longest.
        paused: Those that wait for room.
    """

    __slots__ = ("account", "limit", "members", "name", "order", "paused")

    def __init__(self, name: str, limit: int | None, account: Account) -> None:
        self.name = name
        self.limit = limit
        self.account = account
        self.order: dict[HeldInput, None] = {}
        self.paused: dict[HeldInput, None] = {}
        self.members = 0

    @property
    def is_over(self) -> bool:
        """Whether it is above its limit."""
        return self.limit is not None and self.account.debt_bytes > self.limit

    def stalled(self, but: HeldInput | None = None) -> HeldInput | None:
        """Return the connection whose peer has made no progress for longest."""
        return next((each for each in self.order if each is not but), None)

    def largest(self, but: HeldInput | None = None) -> HeldInput | None:
        """Return the connection that has most, of those that wait for room."""
        some = (each for each in self.paused if each is not but)
        return max(some, key=lambda each: each.nbytes, default=None)


class HeldInput(Holder):
    """The unfinished input of one connection: one loan, whose bytes follow the input held.

    Attributes:
        share: Its share.
        moved_at: The time of its last progress.
    """

    __slots__ = ("_book", "_cut", "_loan", "_mark", "_measure", "_whose", "moved_at", "share")

    kind = "input"

    def __init__(
        self,
        book: InputBook,
        share: Share,
        name: str,
        whose: object,
        *,
        measure: Callable[[], int],
        cut: Callable[[str], object],
    ) -> None:
        super().__init__(book.ledger, name)
        self._book = book
        self._whose = whose
        self._measure = measure
        self._cut = cut
        self._loan: LoanedItem[None] | None = None
        self._mark = 0
        self.share = share
        self.moved_at = book.ledger.clock()
        share.members += 1

    def __repr__(self) -> str:
        return f"<HeldInput of {self.name}: {self.nbytes} bytes>"

    @property
    def nbytes(self) -> int:
        """The bytes that are charged."""
        return 0 if self._loan is None else self._loan.bytes

    def note(self, nbytes: int, *, lookahead: bool = False) -> None:
        """Charge the input held now; `lookahead`: the connection waits for this side."""
        loan = self._loan
        account = self.share.account
        if loan is None:
            self._loan = LoanedItem(account, None, 1, nbytes, self)
            self._note_progress(nbytes)
        else:
            more = nbytes - loan.bytes
            if more > 0:
                account.borrow(0, more)
            elif more < 0:
                account.repay(0, -more, Outcome.DELIVERED, self, loan.opened)
            loan.bytes = nbytes
            if not 0 <= nbytes - self._mark < PROGRESS_BYTES:
                self._note_progress(nbytes)
        if lookahead:
            self._wait_for_nobody()
        self._book.note_change(self, nbytes if lookahead else 0)

    def _note_progress(self, nbytes: int) -> None:
        self._mark = nbytes
        self.moved_at = self.ledger.clock()
        order = self.share.order
        if self in order:
            del order[self]
            order[self] = None

    def may_grow(self) -> bool:
        """Return whether to read on; from now on the connection can be cut in either case."""
        share = self.share
        if not self._book.make_room(self):
            share.order.pop(self, None)
            share.paused[self] = None
            return False
        if self not in share.order:
            share.paused.pop(self, None)
            share.order[self] = None
            self.moved_at = self.ledger.clock()
        return True

    def _wait_for_nobody(self) -> None:
        self.share.order.pop(self, None)
        self.share.paused.pop(self, None)

    def hold(self, account: Account, item: Any, items: int, nbytes: int, now: float) -> None:
        """See `Holder.hold`: nothing is delivered to it."""
        account.repay(items, nbytes, Outcome.DROPPED, self)

    def ready(self) -> None:
        """See `Holder.ready`."""

    def loans(self) -> Iterator[LoanedItem[None]]:
        if self._loan is not None:
            yield self._loan

    def surplus(self) -> tuple[int, str] | None:
        """See `Holder.surplus`: between a read and its charge there is one read."""
        surplus = self._measure() - self.nbytes - READ_BYTES
        return (surplus, "bytes of input") if surplus > 0 else None

    def give_up(self, why: str) -> None:
        """See `Holder.give_up`: cut the connection; its input is dropped at once."""
        self.ledger.faults.call(self._whose, "cutting it", self._cut, why)
        self.close(Outcome.WRITTEN_OFF)

    def close(self, outcome: Outcome = Outcome.DELIVERED) -> None:
        """End the loan: nothing is held any more that counts. Idempotent."""
        share = self.share
        self._wait_for_nobody()
        loan, self._loan = self._loan, None
        if loan is not None:
            loan.settle(outcome=outcome)
        self._book.note_change(self, 0)
        if self in self.ledger.holders:
            self.ledger.unregister(self)
            share.members -= 1
            if not share.members:
                self._book.close_share(share)


class InputBook:
    """All unfinished input of one relay.

    Args:
        ledger: The ledger that it is charged in.
        limits: The limits on it.

    Attributes:
        read_bytes: Most bytes that a connection reads at once: little while half of the limit is
            used up, as thousands of them may read at the same moment.
        shares: Those that have any, by name.
        cut: The number of connections that have been cut for it.
    """

    def __init__(self, ledger: Ledger, limits: InputLimits | None = None) -> None:
        self.ledger = ledger
        self.limits = InputLimits() if limits is None else limits
        self.read_bytes = READ_BYTES
        self.shares: dict[str, Share] = {}
        self.cut = 0
        self._account: Account | None = None
        # Bytes that are looked ahead at, by connection, and in all.
        self._lookahead: dict[HeldInput, int] = {}
        self._lookahead_bytes = 0
        self._logged = -LOG_SECONDS
        self._unlogged = 0

    def __repr__(self) -> str:
        return f"<InputBook: {self.nbytes} bytes of {len(self.shares)} shares>"

    @property
    def nbytes(self) -> int:
        """The bytes of all of it."""
        return 0 if self._account is None else self._account.debt_bytes

    def before_login(self, peer: str) -> tuple[str, int | None]:
        """Return name and limit of the share of a peer that has not logged in."""
        return f"{INPUT_ACCOUNT}/connecting/{address_of(peer)}", self.limits.address

    def of_user(self, user: str) -> tuple[str, int | None]:
        """Return name and limit of a verified user's share."""
        return f"{INPUT_ACCOUNT}/user/{user}", self.limits.user

    def of_address(self, peer: str) -> tuple[str, int | None]:
        """Return name and limit of the share of a peer whose user is unknown.

        All of a site's clients may come from one address, so that the total alone bounds it.
        """
        return f"{INPUT_ACCOUNT}/address/{address_of(peer)}", None

    def open(
        self,
        name: str,
        limit: int | None,
        peer: str,
        whose: object,
        *,
        measure: Callable[[], int],
        cut: Callable[[str], object],
    ) -> HeldInput:
        """Begin to charge a connection's input to the share called `name`.

        Args:
            name: See `before_login`, `of_user`, `of_address`.
            limit: Likewise.
            peer: The connection's name.
            whose: The party at fault if `cut` fails; see `Faults`.
            measure: Returns the bytes held.
            cut: Ends the connection for the reason given, and drops its input at once.
        """
        share = self.shares.get(name)
        if share is None:
            ledger = self.ledger
            if self._account is None:
                total = Limit(items=None, bytes=self.limits.total)
                self._account = ledger.open(INPUT_ACCOUNT, limit=total, at_rest="ram")
            of_share = Limit(items=None, bytes=limit)
            account = ledger.open(name, limit=of_share, parent=self._account)
            share = self.shares[name] = Share(name, limit, account)
        return HeldInput(self, share, peer, whose, measure=measure, cut=cut)

    def close_share(self, share: Share) -> None:
        """Forget an empty share."""
        del self.shares[share.name]
        share.account.close()
        if not self.shares:
            account, self._account = self._account, None
            if account is not None:
                account.close()

    def note_change(self, held: HeldInput, lookahead: int) -> None:
        """Note that `held` has changed, and how many bytes of it are looked ahead at."""
        before = self._lookahead.pop(held, 0)
        if lookahead:
            self._lookahead[held] = lookahead
        self._lookahead_bytes += lookahead - before
        total = self.limits.total
        tight = total is not None and self.nbytes > total // 2
        self.read_bytes = LITTLE_BYTES if tight else READ_BYTES

    def stretch(self, most: int) -> int:
        """Return how many of `most` bytes a waiting connection may be looked ahead at."""
        total = self.limits.total
        if total is None:
            return most
        return min(most, max(LOOKAHEAD_FLOOR, total // 2 - self._lookahead_bytes))

    def make_room(self, held: HeldInput) -> bool:
        """Make room for more input of `held`; False if it has to wait.

        Cuts connections for it, as the rules of this file say.
        """
        total = self.limits.total
        share = held.share
        while share.is_over or (total is not None and self.nbytes > total):
            heavy = share if share.is_over else self._heaviest()
            if heavy is share:
                victim = self._of_same(held)
            elif heavy is not None and heavy.account.debt_bytes > share.account.debt_bytes:
                victim = heavy.stalled() or heavy.largest()
            else:
                victim = None
            if victim is None:
                return False
            self.cut_for(victim, "there is too much unfinished input")
        return True

    def _of_same(self, held: HeldInput) -> HeldInput | None:
        """Return the connection of the same share to cut for `held`, if any."""
        share = held.share
        latest = self.ledger.clock() - STALL_SECONDS
        victim = share.stalled(held)
        if victim is not None and victim.moved_at <= latest:
            return victim
        # Where all wait for room, none would ever finish.
        if victim is None and held.moved_at <= latest:
            victim = share.largest(held)
            if victim is not None and victim.nbytes >= held.nbytes:
                return victim
        return None

    def cut_for(self, held: HeldInput, why: str) -> None:
        """Cut a connection for its input, and log that."""
        self.cut += 1
        share, nbytes = held.share, held.nbytes
        now = self.ledger.clock()
        if now - self._logged < LOG_SECONDS:
            self._unlogged += 1
        else:
            more = f" ({self._unlogged} more since the last line)" if self._unlogged else ""
            logger.warning(
                "%s is cut: %s; it held %d bytes, %s %d, all %d%s",
                held.name, why, nbytes, share.name, share.account.debt_bytes, self.nbytes, more,
                extra={
                    "event": "input_cut", "account": share.name, "peer": held.name,
                    "bytes": nbytes, "share_bytes": share.account.debt_bytes,
                    "all_bytes": self.nbytes, "reason": why, "more": self._unlogged,
                },
            )  # fmt: skip
            self._logged = now
            self._unlogged = 0
        held.give_up(f"{why}, and this connection's is not finished")

    def tick(self, now: float, patience: float) -> None:
        """Cut every connection whose packet has made no progress for `patience` seconds."""
        for share in list(self.shares.values()):
            late: list[HeldInput] = []
            for held in share.order:
                if now - held.moved_at <= patience:
                    break
                late.append(held)
            for held in late:
                self.cut_for(held, f"a packet made no progress for {patience:g} s")

    def relieve(self, nbytes: int) -> int:
        """Cut the largest until `nbytes` are released, or none is left to cut; return the bytes.

        For the alarm of memory.
        """
        before = self.nbytes
        while before - self.nbytes < nbytes:
            heavy = self._heaviest()
            if heavy is None:
                break
            victim = heavy.stalled() or heavy.largest()
            if victim is None:
                break
            self.cut_for(victim, "memory is short")
        return before - self.nbytes

    def _heaviest(self) -> Share | None:
        """Return the share that has most, among those with a connection to cut."""
        some = (share for share in self.shares.values() if share.order or share.paused)
        return max(some, key=lambda share: share.account.debt_bytes, default=None)
