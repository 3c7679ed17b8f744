"""Backpressure notices on `$SYS/clearfunds/throttled/CLIENT`: why a client is not read.

MQTT 3.1.1 cannot express this: a publisher with a full socket cannot tell a slow network from a
server that throttles it. It may subscribe to its own topic, or an operator to
`$SYS/clearfunds/throttled/#`. A message is a JSON object:

    client, account     the throttled client and its account
    throttled           true when it has waited for long; false when it is read again, or has gone
    seconds             how long it has waited
    reason              with `true`: as in `clearfunds.accounts`, `account`, `parent`, `share`, ...
    at                  the account that owes too much, the client's own or one above it
    alarms              the alarms there, if it waits for these
    on                  the holders of the debt there, the largest first: holder, kind, items, bytes
    on_more             the number of other holders

Rules of this file:
1. Notices have QoS 0, and are not retained: the pages show the current state, and a retained
   notice about a client that has left would stand for ever.
2. The relay pays for notices from its own account, which is outside the tree. No reader waits for
   that account, so even a stuck subscriber to notices blocks no client. While the account owes too
   much, no notices are sent.
3. The number of notices is bounded: for each client a pair in `QUIET_SECONDS`, `MAX_A_LOOK` in one
   check. No check is made while no client waits, and no notice is sent without a subscriber.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import attrs
import trio

from ..accounts import NO_LIMIT
from ..accounts._gate import gate_of
from ..accounts._waiters import BLOCKED, REASONS, Waiter
from ..accounts.watch._core_shares import SLOW_WAITS_SHARE
from ..accounts.watch._slow_waits import Held, add_up
from ..dataspace import Publication
from ..transports._ticker import next_tick

if TYPE_CHECKING:
    from ..accounts import Account
    from ..transports.mqtt.server._server import MqttServer

TOPIC: Final = "$SYS/clearfunds/throttled/"

NOTICES_ACCOUNT: Final = "notices"
"""The account of the notices; it exists while it owes."""

LOOK_SECONDS: Final = 0.5
"""Interval between checks for throttled clients; as `TICK_SECONDS`."""

QUIET_SECONDS: Final = 5.0
"""Least time between a notice that a client is read again and the next that it is throttled."""

MAX_A_LOOK: Final = 100
"""Clients to send notices about in one check; the others have their turn in the next."""

MAX_UNTAKEN_ITEMS: Final = 1_000
"""Most notices that subscribers have not taken; as mosquitto's `max_queued_messages`."""

MAX_UNTAKEN_BYTES: Final = 1 << 20
"""Their bytes."""

MAX_NAMED: Final = 3


@attrs.define(slots=True)
class _Told:
    """A client that a notice was sent about."""

    account: str
    since: float
    until: float | None = None
    """The time of the notice that it is read again; None: not sent yet."""


class ThrottledNotices:
    """Sends the notices.

    Attributes:
        sent: The number of notices sent.
        dropped: The number of notices dropped, because subscribers had not taken too many.
    """

    def __init__(self, server: MqttServer, after: float) -> None:
        self.sent = 0
        self.dropped = 0
        self._server = server
        self._after = after
        self._told: dict[str, _Told] = {}

    async def look(self) -> float:
        """Send notices of changes; return the CPU time that it took, in seconds."""
        ledger = self._server.ledger
        if not ledger.waiters and not self._told:
            return 0.0
        began = time.thread_time()
        away = 0.0
        waiting = self._waiting(ledger.clock())
        self._tell_of_ends(waiting)
        new = [client for client in waiting if client not in self._told and self._is_wanted(client)]
        del new[MAX_A_LOOK:]
        places = {at for client in new if (at := waiting[client].at) is not None}
        held: dict[Account, dict[str, Held]] = {at: {} for at in places}
        if held:
            for _ in add_up(ledger, held):
                left = time.thread_time()
                await trio.lowlevel.checkpoint()
                away += time.thread_time() - left
        for client in new:
            waiter = waiting[client]
            if waiter.at is not None and waiter in ledger.waiters:
                self._tell_of_beginning(client, waiter, waiter.at, held.get(waiter.at, {}))
        self._server.flusher.flush_now()
        return time.thread_time() - began - away

    def _waiting(self, now: float) -> dict[str, Waiter]:
        """Return the clients whose readers have waited for long."""
        long = {w.account: w for w in self._server.ledger.waiters if now - w.since >= self._after}
        if not long:
            return {}
        found: dict[str, Waiter] = {}
        for session in self._server.sessions.values():
            account = session.payer
            if account is not None and account in long:
                found[session.client_id] = long[account]
        return found

    def _tell_of_ends(self, waiting: dict[str, Waiter]) -> None:
        now = self._server.ledger.clock()
        for client, told in list(self._told.items()):
            if told.until is None and client not in waiting:
                told.until = now
                self._send(
                    client,
                    {
                        "client": client,
                        "account": told.account,
                        "throttled": False,
                        "seconds": round(now - told.since, 3),
                    },
                )
            elif told.until is not None and now - told.until >= QUIET_SECONDS:
                del self._told[client]

    def _tell_of_beginning(
        self, client: str, waiter: Waiter, at: Account, held: dict[str, Held]
    ) -> None:
        account = waiter.account
        self._told[client] = _Told(account.name, waiter.since)
        gate = gate_of(at)
        why = gate.why(account)
        on: list[dict[str, Any]] = []
        if why == BLOCKED:
            on = [{"holder": name} for name in gate.blockers]
        elif gate.waits_for_repayment:
            holders = sorted(held.values(), key=lambda each: (-each.items, -each.bytes))
            on = [
                {
                    "holder": each.holder,
                    "kind": each.kind,
                    "items": each.items,
                    "bytes": each.bytes,
                }
                for each in holders
            ]
        self._send(
            client,
            {
                "client": client,
                "account": account.name,
                "throttled": True,
                "seconds": round(self._server.ledger.clock() - waiter.since, 3),
                "reason": REASONS[why],
                "at": at.name,
                "alarms": list(gate.halted),
                "on": on[:MAX_NAMED],
                "on_more": max(0, len(on) - MAX_NAMED),
            },
        )

    def _is_wanted(self, client: str) -> bool:
        dataspace = self._server.dataspace
        holders = dataspace.route_of(topic_of(client)).plain.holders
        return bool(holders) or dataspace.looks_into_publications

    def _send(self, client: str, notice: dict[str, Any]) -> None:
        server = self._server
        if not self._is_wanted(client):
            return
        publication = Publication(topic_of(client), json.dumps(notice).encode())
        with server.ledger.open(NOTICES_ACCOUNT, limit=NO_LIMIT) as account:
            if account.debt_items >= MAX_UNTAKEN_ITEMS or account.debt_bytes >= MAX_UNTAKEN_BYTES:
                self.dropped += 1
                return
            self.sent += 1
            with account.turn(publication) as turn:
                turn.publish(server.dataspace, publication)


def topic_of(client: str) -> str:
    """Return the topic of the notices about a client.

    The identifier is one level of it: `/`, `+`, `#`, `%` and unprintable characters are escaped as
    in URLs, as `%2F`.
    """
    level = "".join(
        each if each.isprintable() and each not in "/+#%" else quote(each, safe="")
        for each in client
    )
    return TOPIC + level


async def watch_throttled(notices: ThrottledNotices) -> None:
    """Send notices about clients that have not been read for long, until cancelled."""
    pause = 0.0
    while True:
        await next_tick(max(LOOK_SECONDS, pause))
        pause = await notices.look() / SLOW_WAITS_SHARE
