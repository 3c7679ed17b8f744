"""RabbitMQ's credit flow: one process's side of it, as a state machine.

The other scheme. Where an account counts what one source has caused, credit flow knows only
neighbours: a process may send its neighbour so many messages, gets more credit as the neighbour has
handled some, and passes none on while it is itself blocked. Exactly as `credit_flow.erl` has it, of
3.5.5 as of 4.3, which has not changed in substance since 2013.

Rules of this file:
1. Messages flow from a sender to a receiver, credit from the receiver to the sender. A process is
   both: `credit_from[p]` is what it may still send to `p`; `credit_to[p]` is how many messages of
   `p` it has still to acknowledge before it grants `p` more. Both ends use the same `Credit`.
2. Who has no credit left *is blocked*, and is not hindered: credit goes negative. Only those who
   bring work in look at `blocked`, as only sources wait (rule 5 of the accounts); those between
   keep sending and hold back the credit that they would grant.
3. A process becomes blocked by a peer on the edge from one credit to none, nowhere else; and is so
   no more when a grant lifts its credit above zero.
4. Grants are of exactly `more_after` credits, and deferred while anybody blocks the granter; the
   one deferred last goes out first.
5. State is changed before anything is sent. An Erlang process sends without being interrupted; here
   `send` may run the peer, and its answer, before it returns.
6. Nothing is kept of a peer that is down, but for what it is blamed for and, where it was to be
   granted credit, a grant that will be sent to nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Final, Generic, TypeVar

import attrs

from ._account import add_blame

Peer = TypeVar("Peer", bound=Hashable)

STATE_CHANGE_SECONDS: Final = 1.0
"""How long a process is reported as being in `flow` after it came to be blocked, at least: as
credit_flow's STATE_CHANGE_INTERVAL, for channels and queues."""

READER_STATE_CHANGE_SECONDS: Final = 5.0
"""The same for a connection, as rabbit_reader has it."""


@attrs.frozen(slots=True)
class Credit:
    """How much credit a sender has to begin with, and after how much handled it is granted more.

    Raises:
        ValueError: If one is negative, or `more_after` is above `initial`: what a broker of 4.1 on
            refuses to start with. The sender would have to wait for a grant that is due only after
            more messages than it may send.
    """

    initial: int
    """Messages that may be sent before any has been handled. With 0 the sender is never blocked:
    its credit does not come to the edge."""
    more_after: int
    """Messages handled after which as many credits are granted; 0 is never."""

    def __attrs_post_init__(self) -> None:
        if self.initial < 0 or self.more_after < 0:
            msg = f"credit must not be negative: {self.initial}, {self.more_after}"
            raise ValueError(msg)
        if self.more_after > self.initial:
            msg = (
                f"more_after={self.more_after} must not be above initial={self.initial}: the "
                "sender would be blocked before it could be granted more"
            )
            raise ValueError(msg)


DEFAULT_CREDIT: Final = Credit(400, 200)
"""RabbitMQ's credit_flow_default_credit since 3.6.10 (2017)."""

CREDIT_2015: Final = Credit(200, 50)
"""RabbitMQ's credit_flow_default_credit in 3.5.5, when it became a setting."""

STORE_CREDIT: Final = Credit(2000, 500)
"""RabbitMQ's msg_store_credit_disc_bound in 3.5.5, between a queue and the message store; {4000,
800} today."""


@attrs.frozen(slots=True)
class CreditBlock:
    """A peer that blocks a process now."""

    peer: str
    """What an operator knows it by."""
    seconds: float
    """For how long it has so far."""
    credit: int
    """What there is to send to it: 0, or less where messages were sent nonetheless."""


@attrs.frozen(slots=True)
class CreditFlowStatistics:
    """How credit stands with one process. Seconds are those of the clock that it was given."""

    name: str
    """The process."""
    blocked: bool
    """Whether somebody blocks it now."""
    state: str
    """`flow` or `running`, as RabbitMQ shows it: blocked, or come to be blocked a moment ago."""
    blockers: tuple[CreditBlock, ...]
    """Who blocks it now, those who have for longest first."""
    blocks: int
    """How often it came to be blocked, by somebody when nobody did."""
    blocked_seconds: float
    """For how long in all, by one or several at a time; what goes on included."""
    blame: dict[str, float]
    """For how long in all by whom; two that block at a time are both blamed. For 64 peers by name,
    the others are summed up as `(others)`."""
    credit_from: dict[str, int]
    """What may be sent to whom. Peers to which nothing has been sent yet are not in it."""
    deferred: int
    """How many grants are held back until it is blocked no more."""
    sent: int
    """Messages ever sent, by all that was told here."""
    overdrawn: int
    """How many of them were sent without credit."""
    granted: int
    """Credit ever granted to others; what is held back is not in it."""


@attrs.frozen(slots=True)
class CreditSums:
    """What a process has done so far; totals that never fall."""

    blocks: int = 0
    """As in `CreditFlowStatistics`, and so are the others."""
    blocked_seconds: float = 0.0
    sent: int = 0
    overdrawn: int = 0
    granted: int = 0

    def __add__(self, other: CreditSums) -> CreditSums:
        return CreditSums(
            self.blocks + other.blocks,
            self.blocked_seconds + other.blocked_seconds,
            self.sent + other.sent,
            self.overdrawn + other.overdrawn,
            self.granted + other.granted,
        )


@attrs.define(slots=True)
class _Blocker:
    """A peer in the list of those who block, and since when; it may be there more than once."""

    since: float
    times: int = 1


def label(peer: Hashable) -> str:
    """Return what an operator knows a peer by: its name, or itself."""
    return str(getattr(peer, "name", peer))


class CreditFlow(Generic[Peer]):
    """The credit of one process: what it has, what it owes, who blocks it.

    Args:
        me: Who this process is; given to `send`, so that the peer knows whose grant it is.
        send: `send(to, quantity)` delivers a grant: it has `to` call `handle_bump(me, quantity)`,
            at once or later, in the order of the calls. A peer that is gone is told nothing; it
            must not raise for that.
        clock: Returns seconds that never go back.

    Attributes:
        credit_from: What may still be sent to each peer to which something has been sent.
        credit_to: How many messages of each peer are left to be acknowledged before it is granted
            more.
        blockers: Who blocks this process, the latest first; one is there as often as it does.
        deferred: The grants that are held back, the latest first.
    """

    __slots__ = (
        "_blame", "_blocked_at", "_blocked_seconds", "_blocks", "_clock", "_granted", "_overdrawn",
        "_send", "_sent", "_spans", "blockers", "credit_from", "credit_to", "deferred", "me",
    )  # fmt: skip

    def __init__(
        self, me: Peer, send: Callable[[Peer, int], None], *, clock: Callable[[], float]
    ) -> None:
        self.me = me
        self._send = send
        self._clock = clock
        self.credit_from: dict[Peer, int] = {}
        self.credit_to: dict[Peer, int] = {}
        self.blockers: list[Peer] = []
        self.deferred: list[tuple[Peer, int]] = []
        self._blocked_at: float | None = None
        self._spans: dict[Peer, _Blocker] = {}
        self._blocks = 0
        self._blocked_seconds = 0.0
        self._blame: dict[str, float] = {}
        self._sent = 0
        self._overdrawn = 0
        self._granted = 0

    def __repr__(self) -> str:
        by = f" by {', '.join(map(label, self.blockers))}" if self.blockers else ""
        return f"<CreditFlow {label(self.me)}: {'blocked' if by else 'running'}{by}>"

    # -- messages -------------------------------------------------------------------------------

    def send(self, to: Peer, credit: Credit = DEFAULT_CREDIT, n: int = 1) -> None:
        """Note that `n` messages are sent to `to`: as many times one, in one step.

        Each takes one of its credits, if there are any or not. The last of them makes it a blocker.
        """
        left = self.credit_from.get(to, credit.initial)
        self._sent += n
        self.credit_from[to] = left - n
        if left < 1:
            self._overdrawn += n
        elif left <= n:
            self._overdrawn += n - left
            self.block(to)

    def ack(self, to: Peer, credit: Credit = DEFAULT_CREDIT, n: int = 1) -> None:
        """Note that `n` messages of `to` have been handled: as many times one.

        Every so many of them it is granted more. `credit` is what `to` has sent them with.
        """
        while True:
            left = self.credit_to.get(to, credit.more_after)
            if left < 1 or n < left:
                self.credit_to[to] = left - n
                return
            n -= left
            self.credit_to[to] = credit.more_after
            self._grant(to, credit.more_after)
            if not n:
                return

    def handle_bump(self, peer: Peer, quantity: int) -> None:
        """Take `quantity` credits that `peer` grants.

        Of a peer that was said to be down, they are all that is known of it then.
        """
        before = self.credit_from.get(peer, 0)
        self.credit_from[peer] = before + quantity
        if before <= 0 < before + quantity:
            self.unblock(peer)

    def peer_down(self, peer: Peer) -> None:
        """Forget a peer that is gone. It blocks no more; what is held back for it goes to nobody.

        Who may be there again starts with the initial credit.
        """
        self.credit_from.pop(peer, None)
        self.credit_to.pop(peer, None)
        self.unblock(peer)

    # -- being blocked --------------------------------------------------------------------------

    @property
    def blocked(self) -> bool:
        """Whether somebody blocks this process: whether, if it brings work in, it has to wait."""
        return bool(self.blockers)

    def block(self, peer: Peer) -> None:
        """Be blocked by `peer` once more, for want of credit or for a reason of the caller's own.

        As quorum queues do it, which do not use credit, when they are slow.
        """
        now = self._clock()
        if not self.blockers:
            self._blocked_at = now
            self._blocks += 1
        self.blockers.insert(0, peer)
        span = self._spans.get(peer)
        if span is None:
            self._spans[peer] = _Blocker(now)
        else:
            span.times += 1

    def unblock(self, peer: Peer) -> None:
        """Be blocked by `peer` once less, if at all. When nobody is left, what is deferred is sent.

        Also if nobody had been blocking.
        """
        if peer in self.blockers:
            self.blockers.remove(peer)
            self._blocks_less(peer)
        if not self.blockers and self.deferred:
            deferred = self.deferred
            self.deferred = []
            for to, quantity in deferred:
                self._granted += quantity
                self._send(to, quantity)

    def _blocks_less(self, peer: Peer) -> None:
        span = self._spans[peer]
        span.times -= 1
        now = self._clock()
        if not span.times:
            del self._spans[peer]
            add_blame(self._blame, label(peer), now - span.since)
        if not self.blockers and self._blocked_at is not None:
            self._blocked_seconds += now - self._blocked_at

    def _grant(self, to: Peer, quantity: int) -> None:
        if self.blockers:
            self.deferred.insert(0, (to, quantity))
        else:
            self._granted += quantity
            self._send(to, quantity)

    # -- looking --------------------------------------------------------------------------------

    def state(self, *, sticky: float = STATE_CHANGE_SECONDS) -> str:
        """Return `flow` or `running`, as RabbitMQ shows it.

        `flow` while it is blocked, and until `sticky` seconds have gone by since it *came to be*
        blocked: a block of half a second is shown for a whole one, one of two seconds for two. So
        it is a smeared sample; `statistics` has what was measured.
        """
        if self.blockers:
            return "flow"
        since = self._blocked_at
        return "flow" if since is not None and self._clock() - since < sticky else "running"

    def sums(self) -> CreditSums:
        """Return what it has done so far; costs the same however many peers there are."""
        seconds = self._blocked_seconds
        if self.blockers and self._blocked_at is not None:
            seconds += self._clock() - self._blocked_at
        return CreditSums(self._blocks, seconds, self._sent, self._overdrawn, self._granted)

    def statistics(self) -> CreditFlowStatistics:
        """Return who blocks this process, since when, and for how long in all."""
        now = self._clock()
        blame = dict(self._blame)
        blocks: list[CreditBlock] = []
        for peer, span in sorted(self._spans.items(), key=lambda each: each[1].since):
            blocks.append(CreditBlock(label(peer), now - span.since, self.credit_from.get(peer, 0)))
            add_blame(blame, label(peer), now - span.since)
        sums = self.sums()
        return CreditFlowStatistics(
            name=label(self.me),
            blocked=self.blocked,
            state=self.state(),
            blockers=tuple(blocks),
            blocks=sums.blocks,
            blocked_seconds=sums.blocked_seconds,
            blame=blame,
            credit_from={label(peer): credit for peer, credit in self.credit_from.items()},
            deferred=len(self.deferred),
            sent=sums.sent,
            overdrawn=sums.overdrawn,
            granted=sums.granted,
        )
