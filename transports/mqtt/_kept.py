"""Sessions that outlive their connections (clean session 0; section 3.1.2.4).

What a client is to acknowledge goes through a queue of its own, whether it is connected or not; so
what is not acknowledged is there when it comes back, in order, and is sent again with DUP. With a
store the queue is durable, and so is all the rest of the session: subscriptions, and the packet
identifiers of QoS 2 under way. What each step has to wait for, so that a crash at any moment loses
nothing that was acknowledged, and doubles nothing with QoS 2:

    PUBLISH from the client   the message is on disk, and its identifier in the same batch: PUBREC
    PUBREL from the client    the identifier is no longer on disk (it may mean a new one): PUBCOMP
    PUBREC from the client    the message is no longer on disk, and its identifier is: PUBREL
    PUBCOMP from the client   nothing

The identifier that a message is sent with follows from its number in the queue, so that it is sent
with the same one again after a restart [MQTT-4.4.0-1], without having been written before.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol

import attrs

from ...accounts import (
    Account,
    Ledger,
    Limit,
    QuotaExceededError,
    Recipient,
    StuckPolicy,
    Turn,
)
from ...dataspace import Dataspace, Observation, TopicFilter
from ...dataspace.queues import BackingFactory, Queue, QueueSettings, QueueSums, SteadyBacking
from .._outlet import Outlet, nobody
from ._answers import Answer
from ._identifiers import AwaitingRelease
from ._inflight import AtLeastOnce

logger = logging.getLogger("clearfunds.transports.mqtt")

SESSION_PREFIX = "mqtt/session/"
AWAITING_PREFIX = "mqtt/awaiting/"
RELEASING_PREFIX = "mqtt/releasing/"


class Keeping(Protocol):
    """Where sessions are kept: `clearfunds.transports.queues.Shelves`, or one in RAM."""

    def shelf(self, name: str) -> Any:
        """Return the shelf of the queue called `name`."""
        ...

    def drop(self, shelf: Any) -> None:
        """Erase a shelf."""
        ...

    def set(self, key: str, value: bytes) -> None:
        """Keep a small value."""
        ...

    def delete(self, key: str) -> None:
        """Forget a small value."""
        ...

    def when_durable(self, callback: Callable[[], object]) -> None:
        """Call back when everything until now is durable."""
        ...

    def hurry(self) -> None:
        """Let it be so soon."""
        ...


@attrs.frozen(slots=True, kw_only=True)
class KeptSettings:
    """How much is kept, for how long; the defaults are those of a relay's `KeepingSettings`."""

    expiry: float | None
    """Seconds that a session is kept without a connection; None: for ever."""
    max_sessions: int
    """Sessions at a time; a client that asks for another one is refused."""
    max_queued: int | None
    """Messages at rest for one client. Above that publishers pay for them while the client is
    connected; while it is away the oldest are dropped."""
    max_queued_bytes: int | None
    """Their bytes."""
    max_inflight: int
    """Messages on their way to one client and not acknowledged."""
    max_awaiting_release: int
    """QoS 2 publications of one client whose PUBREL has not come."""
    patience: float
    """Seconds that a client, or the queue of one that is away, may make no progress while others
    wait on it."""
    stuck: StuckPolicy
    """What is done then. A client is disconnected; if it is away, its session is ended."""


class SessionQueue(Queue):
    """The queue of a kept session.

    If publishers wait on it because nothing more may be kept on disk, and its client is away, the
    session is over: nobody else will make room (rule 11).
    """

    __slots__ = ("on_given_up",)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.on_given_up: Callable[[str], object] = nobody

    def give_up(self, why: str) -> None:
        """See `Queue.give_up`."""
        away = not self.consumers
        super().give_up(why)
        if away and self.statistics().unwritten:
            self.on_given_up(why)


@attrs.define(slots=True, eq=False)
class _Subscribed:
    """One subscription of a kept session."""

    granted: int
    observation: Observation | None
    """None while the client is away and there is nothing to keep for it."""


class KeptSession:
    """What is kept of one client.

    Attributes:
        client_id: The client's.
        name: What its account is called: `listener/user/client`, as it was last connected.
        queue: What it is to acknowledge, and whether it may have had it before.
        subscriptions: Its filters.
        awaiting: The identifiers of its QoS 2 publications whose PUBREL has not come.
        unanswered: Those of them that are not on disk yet, and so not answered.
        releasing: The identifiers of QoS 2 whose PUBREC has come and whose PUBCOMP has not.
        left: When it was last disconnected, in seconds of the wall clock; None while it is not.
    """

    __slots__ = (
        "__weakref__", "_at_least_once", "_sessions", "awaiting", "client_id", "left", "name",
        "queue", "releasing", "shelf", "subscriptions", "unanswered",
    )  # fmt: skip

    def __init__(self, sessions: KeptSessions, client_id: str, name: str) -> None:
        self._sessions = sessions
        self.client_id = client_id
        self.name = name
        self.subscriptions: dict[str, _Subscribed] = {}
        self.awaiting = AwaitingRelease(sessions.settings.max_awaiting_release)
        self.unanswered: dict[int, Answer] = {}
        self.releasing: dict[int, None] = {}
        self.left: float | None = None
        self.queue, self.shelf = sessions.make_queue(self)
        self._at_least_once = AtLeastOnce(self.queue)

    def __repr__(self) -> str:
        where = "connected" if self.left is None else "away"
        return f"<KeptSession {self.client_id}: {where}, {len(self.queue)} queued>"

    # -- subscriptions --------------------------------------------------------------------------

    def acked(self, granted: int) -> Recipient | None:
        """Return who takes what the client is to acknowledge, for a subscription."""
        return (None, self._at_least_once, self.queue)[granted]

    def observe(
        self, turn: Turn, text: str, granted: int, outlet: Outlet | None
    ) -> Observation | None:
        """Let `turn` subscribe to a filter, in place of the subscription to it that there is.

        Publications of QoS 0 go to `outlet`; while there is none, to nobody. Returns None where
        there is nothing to observe until the client is back.
        """
        dataspace = self._sessions.dataspace
        old = self.subscriptions.get(text)
        if old is not None and old.observation is not None:
            dataspace.unobserve(turn, old.observation)
        acked = self.acked(granted)
        if outlet is None and acked is None:
            return None
        return dataspace.observe(
            turn,
            TopicFilter(text),
            outlet,
            acked=acked,
            granted=granted,
            consumer=self.queue,
            replay=False,
        )

    def subscribed(self, text: str, granted: int, observation: Observation | None) -> None:
        """Note a subscription whose turn was committed."""
        self.subscriptions[text] = _Subscribed(granted, observation)

    def unsubscribed(self, text: str) -> Observation | None:
        """Forget a subscription; return what there is to end."""
        subscribed = self.subscriptions.pop(text, None)
        return None if subscribed is None else subscribed.observation

    def observe_all(self, account: Account, outlet: Outlet | None) -> None:
        """Let the publications of QoS 0 go to `outlet` from now on; to nobody, without one."""
        with account.turn() as turn:
            observations = {
                text: self.observe(turn, text, each.granted, outlet)
                for text, each in self.subscriptions.items()
            }
        for text, observation in observations.items():
            self.subscriptions[text].observation = observation

    def unobserve_all(self, account: Account) -> None:
        """End all subscriptions."""
        with account.turn() as turn:
            for each in self.subscriptions.values():
                if each.observation is not None:
                    self._sessions.dataspace.unobserve(turn, each.observation)
        self.subscriptions.clear()

    # -- the client comes and goes --------------------------------------------------------------

    def attach(self, account: Account, name: str, outlet: Outlet) -> None:
        """Note that the client is connected: its publications of QoS 0 go to `outlet`."""
        self.left = None
        self.name = self.queue.name = name
        self.queue.owner = account
        # What is queued for who is there is bounded by its publishers' limits.
        self._limit_queue(None, None)
        self.observe_all(account, outlet)
        self.write()

    def detach(self, account: Account) -> None:
        """Note that the client has gone; what comes for it is kept, within limits."""
        settings = self._sessions.settings
        self.left = self._sessions.wall()
        self.queue.owner = None
        self.observe_all(account, None)
        self.write()
        self._limit_queue(settings.max_queued, settings.max_queued_bytes)

    def _limit_queue(self, length: int | None, nbytes: int | None) -> None:
        queue = self.queue
        queue.settings = attrs.evolve(queue.settings, max_length=length, max_bytes=nbytes)
        queue.work()

    # -- what a restart has to find -------------------------------------------------------------

    def write(self) -> None:
        """Keep whose session it is, and its subscriptions."""
        value = {
            "name": self.name,
            "left": self.left,
            "filters": [[text, each.granted] for text, each in self.subscriptions.items()],
        }
        key = SESSION_PREFIX + self.client_id
        self._sessions.keeping.set(key, json.dumps(value, separators=(",", ":")).encode())

    def erase(self) -> None:
        """Keep nothing of it."""
        keeping = self._sessions.keeping
        keeping.delete(SESSION_PREFIX + self.client_id)
        for packet_id in self.awaiting:
            keeping.delete(self._key(AWAITING_PREFIX, packet_id))
        for packet_id in self.releasing:
            keeping.delete(self._key(RELEASING_PREFIX, packet_id))
        keeping.drop(self.shelf)

    def _key(self, prefix: str, packet_id: int) -> str:
        return f"{prefix}{packet_id}/{self.client_id}"

    # -- QoS 2 from the client ------------------------------------------------------------------

    def begun(self, packet_id: int, answer: Answer) -> None:
        """Note the identifier of a publication, in the batch that the publication is written in.

        `answer` is said when both are on disk.
        """
        keeping = self._sessions.keeping
        keeping.set(self._key(AWAITING_PREFIX, packet_id), b"")
        self.unanswered[packet_id] = answer
        answer.expect()

        def on_disk() -> None:
            if self.unanswered.get(packet_id) is answer:
                del self.unanswered[packet_id]
            answer.taken()

        keeping.when_durable(on_disk)

    def released(self, packet_id: int, complete: Callable[[], object]) -> None:
        """Note a PUBREL; `complete` is called when the identifier may mean something new."""
        keeping = self._sessions.keeping
        if self.awaiting.release(packet_id):
            keeping.delete(self._key(AWAITING_PREFIX, packet_id))
        keeping.when_durable(complete)

    # -- QoS 2 to the client --------------------------------------------------------------------

    def received(self, packet_id: int, release: Callable[[], object]) -> None:
        """Note a PUBREC, in the batch in which its message is erased; `release` when that is so."""
        keeping = self._sessions.keeping
        if packet_id not in self.releasing:
            self.releasing[packet_id] = None
            # With a number that tells their order [MQTT-4.6.0-4].
            keeping.set(self._key(RELEASING_PREFIX, packet_id), time.time_ns().to_bytes(8, "big"))
        keeping.when_durable(release)

    def completed(self, packet_id: int) -> bool:
        """Note a PUBCOMP; whether it was waited for."""
        if packet_id not in self.releasing:
            return False
        del self.releasing[packet_id]
        self._sessions.keeping.delete(self._key(RELEASING_PREFIX, packet_id))
        return True


class KeptSessions:
    """All sessions that are kept by one relay.

    Args:
        dataspace: Where they subscribe.
        keeping: What they are kept in.
        clients: The account above the clients'.
        at_rest: The account above those of their queues.
        settings: How much is kept.
        backing: Makes the queues' policy of paging.
        wall: The wall clock.

    Attributes:
        by_id: Them, by client identifier.
        at_rest: See above.
        expired: How many were ended because nobody came back for them.
        given_up: How many were ended because others waited for room in their queues.
        ended: What the queues of those did that are over.
    """

    def __init__(
        self,
        dataspace: Dataspace,
        keeping: Keeping,
        clients: Account,
        at_rest: Account,
        settings: KeptSettings,
        *,
        backing: BackingFactory = SteadyBacking,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.dataspace = dataspace
        self.keeping = keeping
        self.settings = settings
        self.by_id: dict[str, KeptSession] = {}
        self.expired = 0
        self.given_up = 0
        self.ended = QueueSums()
        self.wall = wall
        self._clients = clients
        self.at_rest = at_rest
        self._backing = backing

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self.by_id)

    def __bool__(self) -> bool:
        return True

    @property
    def ledger(self) -> Ledger:
        """The books."""
        return self.dataspace.ledger

    def make_queue(self, session: KeptSession) -> tuple[Queue, Any]:
        """Make the queue of a session, and its shelf. For `KeptSession`."""
        settings = self.settings
        name = f"mqtt/{session.client_id}"
        shelf = self.keeping.shelf(name)
        limit = Limit(items=settings.max_queued, bytes=settings.max_queued_bytes)
        queue = SessionQueue(
            self.ledger,
            session.name,
            account=self.ledger.open(name, limit=limit, parent=self.at_rest),
            settings=QueueSettings(durable=True, delivery_limit=None),
            shelf=shelf,
            backing=self._backing,
            patience=settings.patience,
            policy=settings.stuck,
        )
        queue.on_given_up = partial(self._give_up, session.client_id)
        shelf.recover(queue)
        return queue, shelf

    def create(self, client_id: str, name: str) -> KeptSession | None:
        """Begin a session; None if there are too many."""
        if len(self.by_id) >= self.settings.max_sessions:
            return None
        session = self.by_id[client_id] = KeptSession(self, client_id, name)
        return session

    def discard(self, client_id: str) -> None:
        """End a session, if there is one: its client wants a clean one, or did not come back."""
        session = self.by_id.pop(client_id, None)
        if session is None:
            return
        with self._account_of(session) as account:
            session.unobserve_all(account)
        session.queue.delete()
        self.ended.add_past(session.queue)
        session.queue.account.close()
        session.erase()

    def _give_up(self, client_id: str, why: str) -> None:
        session = self.by_id[client_id]
        self.given_up += 1
        logger.warning(
            "the session of %s, who is away, is over with %d messages: %s",
            session.name,
            len(session.queue),
            why,
            extra={"event": "session_given_up", "account": session.name, "reason": why},
        )
        self.discard(client_id)

    def expire(self) -> list[str]:
        """End the sessions whose clients have been away for too long; return whose they were."""
        expiry = self.settings.expiry
        if expiry is None:
            return []
        now = self.wall()
        over = [
            session.client_id
            for session in self.by_id.values()
            if session.left is not None and now - session.left >= expiry
        ]
        for client_id in over:
            self.discard(client_id)
        self.expired += len(over)
        return over

    def tick(self, now: float) -> None:
        """Let the queues do what is due at `now`, on the ledger's clock."""
        for session in self.by_id.values():
            session.queue.tick(now)

    def restore(self, values: Mapping[str, bytes]) -> None:
        """Take up the sessions from before a restart; for who opens the store, before all else.

        Args:
            values: All that was kept with `Keeping.set`, by key.
        """
        now = self.wall()
        for key, value in values.items():
            if not key.startswith(SESSION_PREFIX):
                continue
            client_id = key.removeprefix(SESSION_PREFIX)
            kept = json.loads(value)
            session = KeptSession(self, client_id, kept["name"])
            self.by_id[client_id] = session
            # Who was connected when the relay ended was last seen then; not later than now.
            session.left = now if kept["left"] is None else min(now, kept["left"])
            with self._account_of(session) as account:
                for text, granted in kept["filters"]:
                    try:
                        with account.turn() as turn:
                            observation = session.observe(turn, text, granted, None)
                    except QuotaExceededError as exc:
                        logger.warning(
                            "%s: subscription to %r was lost: %s", session.name, text, exc
                        )
                        continue
                    session.subscribed(text, granted, observation)
        for prefix in (AWAITING_PREFIX, RELEASING_PREFIX):
            found = sorted((v, k) for k, v in values.items() if k.startswith(prefix))
            for _, key in found:
                number, _, client_id = key.removeprefix(prefix).partition("/")
                owner = self.by_id.get(client_id)
                if owner is None:
                    self.keeping.delete(key)
                elif prefix is AWAITING_PREFIX:
                    owner.awaiting.add(int(number))
                else:
                    owner.releasing[int(number)] = None

    @contextmanager
    def _account_of(self, session: KeptSession) -> Generator[Account]:
        account = self.ledger.open(session.name, parent=self._clients)
        try:
            yield account
        finally:
            account.close()

    def close(self) -> None:
        """End the queues in this process, and leave what is kept where it is."""
        for session in self.by_id.values():
            session.queue.close()
            session.queue.account.close()
        self.at_rest.close()
