"""connection.blocked and connection.unblocked: a publisher hears that it is not read, and why.

The reason names the user, the holders of most of its debt and, where a holder is a queue, whose
consumers have its messages: "alice waits for queue jobs (812 messages), held by worker-3". RabbitMQ
says "low on memory" or "low on disk".

Rules of this file:
1. Only connections that have the capability are told, and only when they have waited for
   `AFTER_SECONDS`: shorter waits are how flow control works.
2. Holders are counted once for all that are to be told, at the pace of `watch_slow_waits`.

Source: RabbitMQ's extension of AMQP 0-9-1, connection.blocked (methods 10.60 and 10.61).
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import trio
from pamqp.commands import Connection

from ...accounts._gate import gate_of
from ...accounts._waiters import BLOCKED, REASONS, Waiter
from ...accounts.watch._core_shares import SLOW_WAITS_SHARE
from ...accounts.watch._slow_waits import Held, add_up
from ...dataspace.queues import Queue
from .._ticker import next_tick
from ._frames import frame_of, method_frame
from ._replies import shortened

if TYPE_CHECKING:
    from ...accounts import Account
    from ._server import AmqpServer
    from ._session import AmqpSession

LOOK_SECONDS: Final = 0.25
"""How often it is looked who waits; nothing is looked at while nobody does."""

AFTER_SECONDS: Final = 0.5
"""A wait that is told of has lasted as long; half of what the log names (`DEFAULT_SLOW_WAIT`)."""

MAX_NAMED: Final = 2
"""Holders named, the largest first; and consumers of a queue."""

_BLOCKED: Final = (10, 60)


class BlockedNotices:
    """Tells the connections of one server.

    Attributes:
        told: The number of times that a connection was told that it is blocked.
    """

    def __init__(self, server: AmqpServer) -> None:
        self._server = server
        self._blocked: dict[AmqpSession, None] = {}
        self.told = 0

    def forget(self, session: AmqpSession) -> None:
        """Forget a connection that has ended."""
        self._blocked.pop(session, None)

    async def run(self) -> None:
        """Tell connections until cancelled."""
        pause = 0.0
        while True:
            await next_tick(max(LOOK_SECONDS, pause))
            pause = await self.look() / SLOW_WAITS_SHARE

    async def look(self) -> float:
        """Tell connections of changes; return the CPU time that it took, in seconds."""
        ledger = self._server.ledger
        if not ledger.waiters and not self._blocked:
            return 0.0
        began = time.thread_time()
        away = 0.0
        now = ledger.clock()
        waiting = {each.account: each for each in ledger.waiters}
        for session in [each for each in self._blocked if each.account not in waiting]:
            del self._blocked[session]
            _say_unblocked(session)
        new: dict[AmqpSession, Waiter] = {}
        for session in self._server.open:
            account = session.account
            waiter = None if account is None else waiting.get(account)
            if waiter is None or not (session.negotiation.wants_blocked and session.is_waiting):
                continue
            if not session.is_blocked and now - waiter.since >= AFTER_SECONDS:
                new[session] = waiter
        held: dict[Account, dict[str, Held]] = {
            waiter.at: {} for waiter in new.values() if waiter.at is not None
        }
        if held:
            for _ in add_up(ledger, held):
                left = time.thread_time()
                await trio.lowlevel.checkpoint()
                away += time.thread_time() - left
        for session, waiter in new.items():
            if waiter.at is not None and waiter in ledger.waiters:
                self._blocked[session] = None
                self.told += 1
                _say_blocked(session, self._reason(session, waiter, held.get(waiter.at, {})))
        self._server.flusher.flush_now()
        return time.thread_time() - began - away

    def _reason(self, session: AmqpSession, waiter: Waiter, held: dict[str, Held]) -> str:
        """Return a sentence that says why a connection is not read."""
        at = waiter.at
        assert at is not None
        gate = gate_of(at)
        why = gate.why(waiter.account)
        who = session.negotiation.user or session.name
        if at is not waiter.account:
            who = f"{who} ({at.name})"
        if why == BLOCKED:
            return f"{who} waits for {', '.join(gate.blockers)}"
        if not gate.waits_for_repayment or not held:
            alarms = f": {', '.join(gate.halted)}" if gate.halted else ""
            return f"{who} waits ({REASONS[why]}){alarms}"
        holders = sorted(held.values(), key=lambda each: (-each.items, -each.bytes))
        named = [self._named(each) for each in holders[:MAX_NAMED]]
        more = f", and {len(holders) - MAX_NAMED} more" if len(holders) > MAX_NAMED else ""
        return f"{who} waits for {'; '.join(named)}{more}"

    def _named(self, held: Held) -> str:
        """Return a holder's name, and if it is a queue, who holds its messages."""
        what = f"{held.kind} {held.holder} ({held.items} messages)"
        if held.kind != Queue.kind:
            return what
        queue = next(
            (
                declared.queue
                for host in self._server.hosts.values()
                for declared in host.queues.values()
                if declared.queue.name == held.holder
            ),
            None,
        )
        if queue is None:
            return what
        if not queue.consumers:
            return f"{what}, which has no consumer"
        busy = sorted(queue.consumers, key=lambda each: -each.outstanding)
        names = dict.fromkeys(each.channel.name.rpartition(" channel ")[0] for each in busy)
        shown = list(names)[:MAX_NAMED]
        return f"{what}, held by {' and '.join(shown)}"


def _say_blocked(session: AmqpSession, reason: str) -> None:
    """Tell a client that it is not read, and why."""
    if session.negotiation.wants_blocked and not session.is_blocked and not session.outlet.unsent:
        session.is_blocked = True
        said = shortened(reason)
        session.sender.send_later(frame_of(0, _BLOCKED, bytes((len(said),)), said))


def _say_unblocked(session: AmqpSession) -> None:
    """Tell a client that it is read again."""
    if session.is_blocked:
        session.is_blocked = False
        session.sender.send_later(method_frame(0, Connection.Unblocked()))
