"""RabbitMQ's credit-based flow control: one process's side of it, as a state machine.

This is the alternative to debt. An account counts all work caused by one source; credit flow knows
only neighbours. A process may send its neighbour a number of messages, gets more credit when the
neighbour has handled some, and grants none while it is itself blocked. Exactly like
`credit_flow.erl` of 3.5.5 and of 4.3, which has not changed in substance since 2013.

Rules of this file:
1. Messages flow from a sender to a receiver, credit from the receiver to the sender. A process is
   both: `credit_from[p]` is the number of messages that it may still send to `p`; `credit_to[p]` is
   how many messages of `p` it has still to acknowledge before it grants `p` more. Both ends use the
   same `Credit`.
2. A process with no credit left *is blocked*, but may still send: credit goes negative. Only
   sources check `blocked`, as only sources wait (rule 5 of the accounts). Processes in between keep
   sending and hold back the credit that they would grant.
3. A process becomes blocked by a peer on the edge from one credit to none, nowhere else. It is
   unblocked when a grant lifts its credit above zero.
4. Grants are of exactly `more_after` credits, and deferred while any peer blocks the granter; the
   one deferred last goes out first.
5. State is changed before anything is sent. An Erlang process sends without being interrupted; here
   `send` may run the peer, and its answer, before it returns.
6. Nothing is kept of a peer that is down, except its blame and, if it was to be granted credit, a
   deferred grant that will reach nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Final, Generic, TypeVar

import attrs

from clearfunds.accounts._line import add_blame

Peer = TypeVar("Peer", bound=Hashable)

STATE_CHANGE_SECONDS: Final = 1.0
"""Least time for which a process is reported as in `flow` after it became blocked: credit_flow's
STATE_CHANGE_INTERVAL, for channels and queues."""

READER_STATE_CHANGE_SECONDS: Final = 5.0
"""The same for a connection, from rabbit_reader."""


@attrs.frozen(slots=True)
class Credit:
    """A sender's initial credit, and the size of the grants that renew it.

    Raises:
        ValueError: If one is negative, or `more_after` is above `initial`; a broker since 4.1
            refuses to start with that. The sender would have to wait for a grant that is due only
            after more messages than it may send.
    """

    initial: int
    """Messages that may be sent before any has been handled. With 0 the sender is never blocked:
    its credit never crosses the edge."""
    more_after: int
    """After so many handled messages as many credits are granted; 0: never."""

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
    """The name that an operator sees."""
    seconds: float
    """Seconds that it has blocked so far."""
    credit: int
    """Credit left to send to it: 0, or negative if messages were sent nonetheless."""


@attrs.frozen(slots=True)
class CreditFlowStatistics:
    """The credit of one process. Seconds are those of the clock that it was given."""

    name: str
    """The process."""
    blocked: bool
    """Whether a peer blocks it now."""
    state: str
    """`flow` (blocked, or became so just now) or `running`, as RabbitMQ shows it."""
    blockers: tuple[CreditBlock, ...]
    """The peers that block it now, the longest first."""
    blocks: int
    """How often it went from unblocked to blocked."""
    blocked_seconds: float
    """Total blocked seconds, by one peer or several at a time; a current block included."""
    blame: dict[str, float]
    """Total blocked seconds by peer; two that block at a time are both blamed. For 64 peers by
    name, the others are summed up as `(others)`."""
    credit_from: dict[str, int]
    """Credit left by peer. Peers to which nothing has been sent yet are not in it."""
    deferred: int
    """Number of grants held back until it is unblocked."""
    sent: int
    """Messages ever sent, as noted here."""
    overdrawn: int
    """How many of them were sent without credit."""
    granted: int
    """Credit ever granted to others, without grants held back."""


@attrs.frozen(slots=True)
class CreditSums:
    """Totals of one process, which never fall."""

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
    """A blocking peer, and since when; it may be in the list of blockers more than once."""

    since: float
    times: int = 1


def label(peer: Hashable) -> str:
    """Return the name that an operator sees for a peer: its `name`, or itself as text."""
    return str(getattr(peer, "name", peer))


class CreditFlow(Generic[Peer]):
    """The credit of one process: its own credit, the grants it owes, its blockers.

    Args:
        me: This process; `send` passes it on, so that the peer knows the granter.
        send: `send(to, quantity)` delivers a grant: it has `to` call `handle_bump(me, quantity)`,
            at once or later, in the order of the calls. For a peer that is gone it does nothing,
            and must not raise.
        clock: Returns seconds that never go back.

    Attributes:
        credit_from: Credit left for each peer to which something has been sent.
        credit_to: How many messages of each peer are left to be acknowledged before it is granted
            more.
        blockers: The peers that block this process, the latest first; repeated for each block.
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
        """Note that `n` messages are sent to `to`: the same as `n` single calls, in one step.

        Each takes one credit, whether there is any or not. Taking the last makes `to` a blocker.
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
        """Note that `n` messages of `to` have been handled: the same as `n` single calls.

        Every `more_after` of them it is granted more. `credit` is the `Credit` that `to` sent with.
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

        For a peer that was reported down, these are then its only credits.
        """
        before = self.credit_from.get(peer, 0)
        self.credit_from[peer] = before + quantity
        if before <= 0 < before + quantity:
            self.unblock(peer)

    def peer_down(self, peer: Peer) -> None:
        """Forget a peer that is gone. It blocks no more; a grant held back for it reaches nobody.

        If it comes back, it starts with the initial credit.
        """
        self.credit_from.pop(peer, None)
        self.credit_to.pop(peer, None)
        self.unblock(peer)

    # -- being blocked --------------------------------------------------------------------------

    @property
    def blocked(self) -> bool:
        """Whether a peer blocks this process: if it is a source, it has to wait."""
        return bool(self.blockers)

    def block(self, peer: Peer) -> None:
        """Add a block by `peer`, for lack of credit or for a reason of the caller's own.

        Slow quorum queues do the latter; they do not use credit.
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
        """Remove a block by `peer`, if there is one. Without blockers, deferred grants are sent.

        Also if there was no blocker before.
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

        `flow` while it is blocked, and until `sticky` seconds have gone by since it *became*
        blocked: a block of half a second is shown for a whole one, one of two seconds for two. So
        it is a smeared sample; `statistics` has the measured values.
        """
        if self.blockers:
            return "flow"
        since = self._blocked_at
        return "flow" if since is not None and self._clock() - since < sticky else "running"

    def sums(self) -> CreditSums:
        """Return the totals so far; costs the same however many peers there are."""
        seconds = self._blocked_seconds
        if self.blockers and self._blocked_at is not None:
            seconds += self._clock() - self._blocked_at
        return CreditSums(self._blocks, seconds, self._sent, self._overdrawn, self._granted)

    def statistics(self) -> CreditFlowStatistics:
        """Return the blockers of this process, since when they block, and the totals."""
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
