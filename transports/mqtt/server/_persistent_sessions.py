"""All persistent sessions of a relay: they begin, expire, are ended for room, and are restored.

What one of them keeps, and in which order it reaches the disk: `_persistent_session.py`.
"""

from __future__ import annotations

import logging
import math
import sys
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Final

from ....access._account_tree import AccountTree
from ....access._shares import fits
from ....access._tenants import NO_USER, Peer, as_part, identity, peer_of, peer_of_older, printable
from ....accounts import Account, Ledger, Limit, QuotaExceededError, StuckPolicy
from ....accounts._cooperative import run_to_end
from ....accounts.watch._incidents import GivenUp
from ....dataspace import Dataspace
from ....dataspace.queues import (
    BackingFactory,
    QueueSettings,
    QueueSums,
    SteadyBacking,
    is_exactly_once,
)
from ..._partings import Steps
from ..._passed import PassedTime
from ..._settings import ServerSettings
from ..codec._identifiers import MAX_PACKET_ID
from ..codec._topics import is_shared
from ._permissions import lost_shares
from ._persistent_session import (
    AWAITING_PREFIX,
    RELEASING_PREFIX,
    SESSION_PREFIX,
    Persistence,
    PersistentSession,
    SessionQueue,
)
from ._room import ENDING_BATCH, RoomTaken, over_share
from ._shared import SharedGroups, stop
from ._stored_session import StoredSession

if TYPE_CHECKING:
    from ....access.acl import Authority, Rights

logger = logging.getLogger("clearfunds.transports.mqtt")

CLOCK_KEY = "mqtt/clock"

CLOCK_NOTED_SECONDS: Final = 60.0
"""Interval between notes of the time by which stored data expires. If a machine without a clock
loses power, up to this much time may count twice or not at all. As cheap as one message a minute.
"""


TICKED_A_STEP: Final = 64
"""Sessions whose queues are ticked before other tasks may run: a millisecond's worth."""

NO_ROOM: Final = "messages to be stored for it wait for room, and none was made in time"

ROOM_SECONDS: Final = 0.1
"""Least interval between searches for sessions above their share."""

EXPIRY_BATCH: Final = 20
"""Expired sessions ended at a time, twice a second: a few milliseconds' worth."""

SPILLED: Final = "spilled"
"""The account above messages that are spilled to memory."""


def _run_to_end(_: str, __: Account, steps: Steps) -> None:
    for step in steps:
        step()


class PersistentSessions:
    """All persistent sessions of one relay.

    Args:
        dataspace: The dataspace that they subscribe in.
        persistence: The store.
        tree: The tree of the clients' accounts.
        at_rest: The account above those of their queues. A tenant with its own limit on messages at
            rest has an account in between.
        settings: Their limits and expiry.
        outlives: Whether they also outlive the process.
        backing: Makes the queues' policy of paging.
        queue: Makes a queue.
        wall: The time by which they expire; it only passes, and is not set (`PassedTime`).
        groups: The groups of shared subscriptions; None: there are none.
        authority: Decides what clients may read; None: everything.

    Attributes:
        by_id: The sessions, by `PersistentSession.key`.
        groups: See above.
        backing: See above.
        at_rest: See above.
        expired: The number of expired sessions.
        given_up: The number of sessions ended because others waited for room in their queues.
        ended: Sums of the queues of ended sessions.
        on_change: Called with the key of each session that begins or ends; of one that a user has
            adopted, with both keys.
        take_back: Ends the subscriptions of an ended session (`Partings.take_back`); a client that
            comes back sooner has to wait for that.
    """

    def __init__(
        self,
        dataspace: Dataspace,
        persistence: Persistence,
        tree: AccountTree,
        at_rest: Account,
        settings: ServerSettings,
        *,
        outlives: bool = True,
        backing: BackingFactory = SteadyBacking,
        queue: Callable[..., SessionQueue] = SessionQueue,
        wall: Callable[[], float] = time.time,
        groups: SharedGroups | None = None,
        authority: Authority | None = None,
    ) -> None:
        self.dataspace = dataspace
        self.groups = groups
        self.persistence = persistence
        persistence.faults = self.ledger.faults
        self.settings = settings
        self.outlives = outlives
        self.by_id: dict[str, PersistentSession] = {}
        self.expired = 0
        self.given_up = 0
        self.ended = QueueSums()
        self.wall = wall
        # The time to note for the next run; None: a clock that can be set is of no use then.
        self._passed = wall if isinstance(wall, PassedTime) else None
        self._noted_at = -math.inf
        self._made_room_at = -math.inf
        self._wanted = 0
        self._last_number = 0
        self._authority = authority
        self._tree = tree
        self.at_rest = at_rest
        self._at_rest_of: dict[str, Account] = {
            tenant.name: self.ledger.open(
                f"{at_rest.name}/{tenant.name}",
                limit=Limit(items=None, bytes=tenant.kept),
                parent=at_rest,
            )
            for tenant in tree.rules.tenants.values()
            if tenant.kept is not None
        }
        self.backing = backing
        self._queue = queue
        self.take_back: Callable[[str, Account, Steps], object] = _run_to_end
        self.on_change: Callable[[str], object] | None = None

    def __len__(self) -> int:
        """Return the number of sessions."""
        return len(self.by_id)

    def __bool__(self) -> bool:
        return True

    @property
    def ledger(self) -> Ledger:
        """The ledger of the dataspace."""
        return self.dataspace.ledger

    def adjust(self, settings: ServerSettings) -> None:
        """Take other settings; those of `ServerSettings` that are reloadable may differ."""
        self.settings = settings
        for tenant in self._tree.rules.tenants.values():
            if tenant.name in self._at_rest_of:
                kept = self._tree.amounts_of(tenant).kept
                self._at_rest_of[tenant.name].limit = Limit(items=None, bytes=kept)
        for session in self.by_id.values():
            session.queue.patience = settings.patience
            session.queue.policy = settings.undroppable_policy

    def at_rest_of(self, name: str, client_id: str) -> Account:
        """Return the account above those of messages at rest for one client."""
        return self.at_rest_of_peer(peer_of(name, printable(client_id)))

    def open_spill(self, name: str, of: str, client_id: str) -> tuple[Account, int]:
        """Open an account for messages spilled for a client.

        Returns:
            The account, and 1 / the part that the accounts above it may be filled to: a half where
            queues are below them, too, which are promised the rest.
        """
        limit = Limit(items=None, bytes=self.settings.spill_limit)
        above = self.at_rest_of(of, client_id)
        if self.outlives or above is not self.at_rest:
            return self.ledger.open(name, limit=limit, parent=above), 2
        # It lasts as long as there is an account below it.
        with self.ledger.open(SPILLED, limit=limit, at_rest="ram") as above:
            return self.ledger.open(name, limit=limit, parent=above), 1

    def at_rest_of_peer(self, peer: Peer) -> Account:
        """Return the account above those of messages at rest for a peer."""
        tenant = self._tree.of(peer).tenant
        return self.at_rest_of_tenant("" if tenant is None else tenant.name)

    def at_rest_of_tenant(self, tenant: str) -> Account:
        """Return the account above those of messages at rest for a tenant; "": no tenant."""
        return self._at_rest_of.get(tenant, self.at_rest)

    def rights_of(self, name: str, client_id: str) -> Rights | None:
        """Return the rights of a session's client; None: everything."""
        authority = self._authority
        if authority is None or not authority.restricts_reading:
            return None
        return authority.of(peer_of(name, printable(client_id)), client_id)

    def rules_changed(self) -> None:
        """End shared subscriptions that absent clients may no longer have."""
        for session in [each for each in self.by_id.values() if each.left is not None]:
            rights = self.rights_of(session.name, session.client_id)
            lost = [] if rights is None else lost_shares(rights, session.subscriptions)
            if lost:
                with self._account_of(session) as account, account.turn() as turn:
                    for text in lost:
                        stop(self.dataspace, turn, session.unsubscribed(text))
                session.write()

    def make_queue(self, session: PersistentSession) -> tuple[SessionQueue, Any]:
        """Make the queue of a session, and its shelf. For `PersistentSession`."""
        settings = self.settings
        name = f"mqtt/{session.place}"
        shelf = self.persistence.shelf(name)
        limit = Limit(items=settings.max_queued, bytes=settings.max_queued_bytes)
        above = self.at_rest_of(session.name, session.client_id)
        queue = self._queue(
            self.ledger,
            session.name,
            account=self.ledger.open(name, limit=limit, parent=above),
            settings=QueueSettings(durable=True, delivery_limit=None),
            shelf=shelf,
            backing=self.backing,
            patience=settings.patience,
            policy=settings.undroppable_policy,
        )
        queue.on_given_up = partial(self._make_room, session)
        if self.outlives:
            queue.durable_first = is_exactly_once
        shelf.recover(queue)
        return queue, shelf

    def create(
        self, client_id: str, name: str, user: str | None = None
    ) -> PersistentSession | None:
        """Begin a session of a client, with its verified `user`; None if there are too many.

        One user gets no more than a share of the free sessions (`fits`).
        """
        most = self.settings.max_sessions
        mine = sum(1 for each in self.by_id.values() if each.user == user) if user else 0
        if not fits(mine, len(self.by_id), most):
            return None
        session = PersistentSession(self, client_id, name, user)
        self.by_id[session.key] = session
        self._changed(session.key)
        return session

    def find(
        self, client_id: str, user: str | None = None, *, adopts: bool = False
    ) -> PersistentSession | None:
        """Return the session of a client; None if there is none, or it has expired and ends now.

        With `adopts`, a user without a session takes over one of the client that has no user.
        """
        session = self.by_id.get(identity(client_id, user))
        if session is None and adopts and user is not None:
            session = self.by_id.get(identity(client_id, None))
            if session is not None:
                older = session.key
                del self.by_id[older]
                session.user = user
                self.by_id[session.key] = session
                self._changed(older)
                self._changed(session.key)
        if session is not None and session.is_over(self.wall()):
            self.discard(session.key)
            self.expired += 1
            return None
        return session

    def discard(self, key: str) -> None:
        """End a session, if there is one: its client wants a clean one, or it has expired."""
        session = self.by_id.pop(key, None)
        if session is None:
            return
        self._changed(key)
        with self._account_of(session) as account:
            end: Steps = iter((partial(self._end, session),))
            steps = chain(session.unobserving(account), end)
            self.take_back(key, account, steps)

    def _changed(self, key: str) -> None:
        if self.on_change is not None:
            self.on_change(key)

    def _end(self, session: PersistentSession) -> None:
        session.queue.delete()
        self.ended.add_past(session.queue)
        session.queue.account.close()
        session.erase()

    def give_up(self, session: PersistentSession, why: str) -> None:
        """End the session of an absent client, so that others can go on; log the reason `why`."""
        self.given_up += 1
        logger.warning(
            "the session of %s ends while its client is away, with %d messages: %s",
            session.name,
            len(session.queue),
            why,
            extra={"event": "session_given_up", "account": session.name, "reason": why},
        )
        queue, now = session.queue, self.ledger.clock()
        # The pages show it for a while. No debt is written off; the stored messages are dropped.
        what = GivenUp(
            kind=queue.kind,
            items=0,
            bytes=0,
            debtors=(),
            debtors_more=0,
            idle_seconds=now - queue.progressed_at,
            ring=0,
        )
        self.ledger.incidents.add_given_up(queue, what, now)
        self.discard(session.key)

    def expire(self) -> list[str]:
        """End expired sessions; return their client identifiers.

        It ends only some at once; `find` treats the others as ended, too.
        """
        now = self.wall()
        all_over = (each for each in self.by_id.values() if each.is_over(now))
        over = list(islice(all_over, EXPIRY_BATCH))
        for session in over:
            self.ledger.faults.call(session.queue, "ending its session", self.discard, session.key)
        self.expired += len(over)
        return [session.client_id for session in over]

    def tick(self, now: float) -> None:
        """Tick the queues at `now`, on the ledger's clock, in one step."""
        run_to_end(self.tick_in_steps(now))

    def tick_in_steps(self, now: float) -> Generator[None, None, None]:
        """Tick the queues at `now`; yield after every few of them.

        A publisher that waits for a confirm counts as one that is throttled (rule 11). For an
        absent client whose quota is full it does not wait longer than the patience.
        """
        self._note_time(now)
        over: PersistentSession | None = None
        wanted = 0
        call = self.ledger.faults.call
        for number, session in enumerate(list(self.by_id.values()), 1):
            if not number % TICKED_A_STEP:
                yield
            if self.by_id.get(session.key) is not session:
                continue  # it has ended meanwhile
            call(session.queue, "doing what is due", session.queue.tick, now)
            if not session.may_be_ended or not session.queue.is_short:
                session.short_since = None
            elif session.short_since is None:
                session.short_since = now
            elif now - session.short_since >= self.settings.patience:
                over = session
                wanted += session.queue.wants
        asked, self._wanted = self._wanted, 0  # sessions that still want room ask again
        if over is not None and self.settings.undroppable_policy is StuckPolicy.DISCONNECT:
            # As many as needed, because here they can be ended in steps.
            for each in self._over_share(over, max(wanted, asked), sys.maxsize):
                if self.by_id.get(each.key) is each and each.may_be_ended:
                    call(each.queue, "ending its session", self.give_up, each, NO_ROOM)
                    yield

    def _make_room(self, session: PersistentSession, why: str) -> None:
        """End sessions above their share, if there is no room for new messages.

        Thousands of sessions may ask for room at once, and each time all sessions are compared. So
        this happens only once in a while; the next `tick` counts the requests since.
        """
        now = self.ledger.clock()
        if now - self._made_room_at < ROOM_SECONDS:
            self._wanted += session.queue.wants
            return
        self._made_room_at = now
        for each in self._over_share(session, session.queue.wants, ENDING_BATCH):
            self.ledger.faults.call(each.queue, "ending its session", self.give_up, each, why)

    def _over_share(
        self, session: PersistentSession, needed: int, most: int
    ) -> list[PersistentSession]:
        """Return the sessions to end, to make room for a session's messages."""
        at_rest = self.at_rest_of(session.name, session.client_id)
        if at_rest is not self.at_rest and at_rest.debt_bytes + needed <= at_rest.mark_bytes:
            at_rest = self.at_rest
        limit = at_rest.own_limit.bytes
        if limit is None:
            # It has used up its own limit.
            return [session] if session.may_be_ended else []
        everybody = at_rest is self.at_rest
        return over_share(
            [each for each in self.by_id.values() if everybody or self._is_below(each, at_rest)],
            self._room_taken,
            self._kept_of_tenants(),
            limit,
            lambda each: each.may_be_ended,
            needed,
            most,
        )

    def _kept_of_tenants(self) -> dict[str, int]:
        tenants = map(self._tree.amounts_of, self._tree.rules.tenants.values())
        return {tenant.name: tenant.kept for tenant in tenants if tenant.kept}

    def _is_below(self, session: PersistentSession, at_rest: Account) -> bool:
        return self.at_rest_of(session.name, session.client_id) is at_rest

    def _room_taken(self, session: PersistentSession) -> RoomTaken:
        tenant = self._tree.of(peer_of(session.name, printable(session.client_id))).tenant
        return RoomTaken(
            "" if tenant is None else tenant.name,
            session.key if session.user is None else as_part(session.user),
            session.queue.account.debt_bytes,
            session.queue.wants,
        )

    def next_number(self) -> int:
        """Return a number larger than all earlier ones, also those of earlier runs."""
        self._last_number = max(self._last_number + 1, int(self.wall() * 1e9))
        return self._last_number

    def _note_time(self, now: float) -> None:
        passed = self._passed
        if passed is None or not self.outlives:
            return
        if now - self._noted_at >= CLOCK_NOTED_SECONDS:
            self._noted_at = now
            self.persistence.set(CLOCK_KEY, passed.note().encode())

    def restore(self, values: Mapping[str, bytes]) -> None:
        """Restore the sessions from before a restart; call it first, when the store is open.

        Unreadable values stay in the store, and are logged.

        Args:
            values: All values stored with `Persistence.set`, by key.
        """
        now = self.wall()
        by_place: dict[str, PersistentSession] = {}
        for key, value in values.items():
            if not key.startswith(SESSION_PREFIX):
                continue
            place = key.removeprefix(SESSION_PREFIX)
            try:
                stored = StoredSession.of(value)
            except ValueError as exc:
                logger.error(
                    "the session of %r is not restored, its stored value cannot be read: %s",
                    place,
                    exc,
                    extra={"event": "unreadable", "client_id": place},
                )
                continue
            by_place[place] = self._restore_session(place, stored, now)
        for prefix in (AWAITING_PREFIX, RELEASING_PREFIX):
            found = sorted((v, k) for k, v in values.items() if k.startswith(prefix))
            for number, key in found:
                self._last_number = max(self._last_number, int.from_bytes(number, "big"))
                self._restore_identifier(prefix, key, by_place)

    def _restore_session(self, place: str, stored: StoredSession, now: float) -> PersistentSession:
        client_id = place if stored.client is None else stored.client
        name, user = stored.name, stored.user
        if stored.is_older:
            older = peer_of_older(name, printable(client_id))
            name = older.name
            user = older.user if self.settings.verifies and older.user != NO_USER else None
        session = PersistentSession(self, client_id, name, user, place)
        self.by_id[session.key] = session
        # A client that was connected when the relay ended counts as away from now on.
        session.left = now if stored.left is None else stored.left
        if self._passed is not None:
            self._passed.not_before(session.left)
        session.expiry = stored.expiry
        # All filters first, because the options of one matter for all.
        for text, _, options, identifier in stored.filters:
            if not is_shared(text):
                session.filters.add(text, options, identifier)
        with self._account_of(session) as account:
            for text, granted, options, identifier in stored.filters:
                try:
                    with account.turn() as turn:
                        observation = session.observe(turn, text, granted, None)
                except QuotaExceededError as exc:
                    logger.warning("%s: subscription to %r was lost: %s", session.name, text, exc)
                    session.filters.remove(text)
                    continue
                session.subscribed(
                    text, granted, observation, options=options, identifier=identifier
                )
        return session

    def _restore_identifier(
        self, prefix: str, key: str, by_place: Mapping[str, PersistentSession]
    ) -> None:
        number, _, place = key.removeprefix(prefix).partition("/")
        session = by_place.get(place)
        packet_id = int(number) if number.isdecimal() else 0
        if session is None or not 0 < packet_id <= MAX_PACKET_ID:
            self.persistence.delete(key)
        elif prefix is RELEASING_PREFIX:
            session.releasing[packet_id] = None
        else:
            # Even beyond the limit: it may have been higher when they were accepted.
            session.awaiting.restore(packet_id)

    @contextmanager
    def _account_of(self, session: PersistentSession) -> Generator[Account]:
        peer = peer_of(session.name, printable(session.client_id))
        account = self._tree.open(peer, self._tree.of(peer).tenant)
        try:
            yield account
        finally:
            self._tree.close(account)

    def close(self) -> None:
        """End the queues in this process, and leave the store as it is."""
        if self.groups is not None:
            self.groups.close()
        for session in self.by_id.values():
            session.queue.close()
            session.queue.account.close()
        for account in self._at_rest_of.values():
            account.close()
        self.at_rest.close()
