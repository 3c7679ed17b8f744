"""Persistent sessions: sessions that outlive their connections (clean session 0; section 3.1.2.4).

Messages that a client has to acknowledge go through its session's queue, whether the client is
connected or not. So unacknowledged messages are there when it comes back, and are sent again in
order, with DUP. With a store the queue is durable, and so is the rest of the session:
subscriptions, and the packet identifiers of QoS 2 in flight. A crash at any moment loses no
acknowledged message, and duplicates none with QoS 2, because each step waits first:

    PUBLISH to the client     with QoS 2: the message is on disk, or its identifier could be another
                              message's after a crash; with QoS 1: nothing
    PUBLISH from the client   the message is on disk, and its identifier in the same batch: PUBREC
    PUBREL from the client    the identifier is no longer on disk (it may mean a new one): PUBCOMP
    PUBREC from the client    the message is no longer on disk, and its identifier is: PUBREL
    PUBCOMP from the client   nothing

With MQTT 5 a session has its own expiry (section 3.1.2.11.2), and its subscriptions have options
and identifiers (section 3.8.3.1), which also apply while its client is away.

A message's packet identifier derives from its number in the queue. So the message has the same
identifier again after a restart [MQTT-4.4.0-1], although the identifier was not written to disk.
"""

from __future__ import annotations

import json
import logging
import math
import sys
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

import attrs

from ....access._account_tree import AccountTree
from ....access._shares import fits
from ....access._tenants import NO_USER, Peer, as_part, identity, peer_of, peer_of_older, printable
from ....accounts import (
    Account,
    Faults,
    Ledger,
    Limit,
    QuotaExceededError,
    Recipient,
    StuckPolicy,
    Turn,
    measure,
)
from ....accounts._cooperative import run_to_end
from ....accounts.watch._incidents import GivenUp
from ....dataspace import (
    Assertion,
    AtLeastOnce,
    Dataspace,
    Observation,
    Observe,
    Publication,
    TopicFilter,
)
from ....dataspace.queues import (
    BackingFactory,
    Queue,
    QueueSettings,
    QueueSums,
    SteadyBacking,
    is_exactly_once,
)
from ..._outlet import nobody
from ..._partings import Steps
from ..._passed import PassedTime
from ..._settings import ServerSettings
from ..codec._frames import MAX_REMAINING_LENGTH
from ..codec._identifiers import MAX_PACKET_ID, AwaitingRelease
from ..codec._topics import is_shared, shared_fault, topic_filter_fault
from ._filters import Filters
from ._permissions import lost_shares
from ._publisher_acks import PublisherAck
from ._room import ENDING_BATCH, RoomTaken, over_share
from ._selecting import Selecting, select_by
from ._shared import SharedGroup, SharedGroups, stand_for, stop

if TYPE_CHECKING:
    from ....access.acl import Authority, Rights

logger = logging.getLogger("clearfunds.transports.mqtt")

SESSION_PREFIX = "mqtt/session/"
AWAITING_PREFIX = "mqtt/awaiting/"
RELEASING_PREFIX = "mqtt/releasing/"
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

AS_SET: Final = -1.0
"""The expiry of a session that follows the settings."""


SPILLED: Final = "spilled"
"""The account above messages that are spilled to memory."""


class Persistence(Protocol):
    """The store of sessions: `clearfunds.persistence.Shelves`, or one in RAM."""

    faults: Faults

    def shelf(self, name: str) -> Any:
        """Return the shelf of the queue called `name`."""
        ...

    def drop(self, shelf: Any) -> None:
        """Erase a shelf."""
        ...

    def set(self, key: str, value: bytes) -> None:
        """Store a small value."""
        ...

    def delete(self, key: str) -> None:
        """Delete a small value."""
        ...

    def when_durable(self, callback: Callable[[], object], whose: object = None) -> None:
        """Call back when all changes until now are durable; if that raises, end `whose`."""
        ...

    def hurry(self) -> None:
        """Make the changes durable soon."""
        ...


class SessionQueue(Queue):
    """The queue of a persistent session.

    If its client is away, and publishers wait on it because the disk quota is full, sessions above
    their share are ended to make room (rule 11).
    """

    __slots__ = ("on_given_up",)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.on_given_up: Callable[[str], object] = nobody

    @property
    def is_away(self) -> bool:
        """Whether its client is away: then the session is ended when patience runs out."""
        return not self.consumers

    @property
    def waits_for_disk(self) -> bool:
        """Whether it is not ended, however long others wait, because the disk is in trouble."""
        return self.is_away and self.statistics().trouble is not None

    @property
    def wants(self) -> int:
        """Bytes that the first message waiting for room needs; 0: no message waits."""
        return self._writer.wants

    def give_up(self, why: str) -> None:
        """Give up its debt, as `Queue.give_up`; make room if its client is away."""
        seen = self.statistics()
        # Confirmed messages are not discarded just because the disk refuses later ones.
        if self.is_away and seen.unwritten and not seen.unsynced and seen.trouble is None:
            self.on_given_up(why)
        else:
            super().give_up(why)


@attrs.define(slots=True, eq=False)
class _Subscribed:
    """One subscription of a persistent session."""

    granted: int
    observation: Observation | Assertion | None
    """None while the client is away and no messages are queued for it (QoS 0). An assertion for a
    shared subscription, because the group observes."""
    options: int = 0
    """See `Filters`."""
    identifier: int = 0
    """Its subscription identifier; 0: none."""
    group: SharedGroup | None = None
    """The group of a shared subscription."""


@attrs.frozen(slots=True)
class _StoredSession:
    """The stored form of a session, without its packet identifiers and its queue.

    Each filter is [text, granted] or, with MQTT 5, [text, granted, options, identifier]. There is
    an expiry only if the session has its own, and a client identifier only if it differs from the
    value's key. Older versions have no user, and do not escape the names of users; a value that
    needs neither is written in their format.
    """

    name: str
    left: float | None
    filters: list[tuple[str, int, int, int]]
    expiry: float | None = AS_SET
    user: str | None = None
    """Its user, if verified."""
    client: str | None = None
    is_older: bool = False

    @classmethod
    def of(cls, value: bytes) -> _StoredSession:
        """Decode a stored session.

        Raises:
            ValueError: If it is malformed.
        """
        try:
            stored = json.loads(value)
            name, left, expiry = stored["name"], stored["left"], stored.get("expiry", AS_SET)
            if not isinstance(name, str) or not isinstance(left, float | int | None):
                raise TypeError("its name or its time has a wrong type")
            if not isinstance(expiry, float | int | None):
                raise TypeError("its expiry has a wrong type")
            user, client = stored.get("user"), stored.get("client")
            if not isinstance(user, str | None) or not isinstance(client, str | None):
                raise TypeError("its user or its client has a wrong type")
            filters = [(*each, 0, 0) if len(each) == 2 else each for each in stored["filters"]]
            for text, granted, options, identifier in filters:
                fault = shared_fault(text) if is_shared(text) else topic_filter_fault(text)
                if fault is not None or granted not in (0, 1, 2):
                    raise ValueError(fault or f"there is no QoS {granted}")
                if type(options) is not int or type(identifier) is not int:
                    raise TypeError("its options or its identifier have a wrong type")
                if not (0 <= options <= 0xFF and 0 <= identifier <= MAX_REMAINING_LENGTH):
                    raise ValueError(f"options {options} or identifier {identifier} out of range")
        except (TypeError, KeyError, AttributeError, RecursionError) as exc:
            raise ValueError(f"{type(exc).__name__}: {exc}") from exc
        filters = [(t, g, o, i) for t, g, o, i in filters]
        return cls(name, left, filters, expiry, user, client, is_older="user" not in stored)

    def encode(self) -> bytes:
        """Return the stored form."""
        stored: dict[str, Any] = {
            "name": self.name,
            "left": self.left,
            "filters": [each if each[2] or each[3] else each[:2] for each in self.filters],
        }
        if self.user is not None or "%" in self.name:
            stored["user"] = self.user
        if self.expiry != AS_SET:
            stored["expiry"] = self.expiry
        if self.client is not None:
            stored["client"] = self.client
        return json.dumps(stored, separators=(",", ":")).encode()


class PersistentSession:
    """The persistent session of one client.

    Attributes:
        client_id: The client's identifier.
        user: Its user, if verified at the last connection; else None.
        place: Its key in the store.
        name: The name of its account at the last connection: `listener/user/client`.
        queue: The messages for the client to acknowledge, and whether each may have been delivered
            before.
        subscriptions: Its filters.
        filters: The same with the options of MQTT 5, and their joint effect on a topic.
        own: Tells whether an account belongs to the client's connection, for No Local; None while
            the client is away, or has no MQTT 5.
        awaiting: The identifiers of its QoS 2 publications whose PUBREL has not come.
        unacked: The answers to those of them that were not answered at once; and those to QoS 1
            publications that the last connection has left unanswered.
        releasing: The identifiers of QoS 2 whose PUBREC has come and whose PUBCOMP has not.
        rights: Its client's right to read, at the last connection; None: everything.
        left: The time of the last disconnection, by `PersistentSessions.wall`; None while
            connected.
        taken_up: Whether its client is connecting or connected: then it does not expire.
        short_since: The start of a wait for room while its client is away, on the ledger's clock;
            None if no message waits.
    """

    __slots__ = (
        "__weakref__", "_at_least_once", "_expiry", "_selecting", "_sessions", "awaiting",
        "client_id", "filters", "left", "name", "own", "place", "queue", "releasing", "rights",
        "shelf", "short_since", "subscriptions", "taken_up", "unacked", "user",
    )  # fmt: skip

    def __init__(
        self,
        sessions: PersistentSessions,
        client_id: str,
        name: str,
        user: str | None = None,
        place: str | None = None,
    ) -> None:
        self._sessions = sessions
        self.client_id = client_id
        self.name = name
        self.user = user
        self.place = self.key if place is None else place
        self.subscriptions: dict[str, _Subscribed] = {}
        self.filters = Filters()
        self.own: Callable[[Account], bool] | None = None
        self._expiry: float | None = AS_SET
        self.awaiting = AwaitingRelease(sessions.settings.max_awaiting_release)
        self.unacked: dict[int, PublisherAck] = {}
        self.releasing: dict[int, None] = {}
        self.left: float | None = None
        self.taken_up = False
        self.short_since: float | None = None
        self.rights = sessions.rights_of(name, client_id)
        self.queue, self.shelf = sessions.make_queue(self)
        self._at_least_once = AtLeastOnce(self.queue)
        # Made when needed, because it refers to this session.
        self._selecting: tuple[None, Selecting, Selecting] | None = None

    def __repr__(self) -> str:
        where = "connected" if self.left is None else "away"
        return f"<PersistentSession {self.client_id}: {where}, {len(self.queue)} queued>"

    @property
    def key(self) -> str:
        """Its key among the sessions; see `identity`."""
        return identity(self.client_id, self.user)

    @property
    def is_current(self) -> bool:
        """Whether it is its client's session; False if it ended while a connection still had it."""
        return self._sessions.by_id.get(self.key) is self

    @property
    def expiry(self) -> float | None:
        """Seconds that it lasts without a connection; None: for ever.

        It follows the settings until it is set. Call `write` to store it.
        """
        return self._sessions.settings.session_expiry if self._expiry == AS_SET else self._expiry

    @expiry.setter
    def expiry(self, seconds: float | None) -> None:
        self._expiry = seconds

    def expire_as_set(self) -> None:
        """Follow the settings' expiry again: its client has MQTT 3.1.1 now."""
        self._expiry = AS_SET

    def is_over(self, now: float) -> bool:
        """Whether it has expired at `now`, by `PersistentSessions.wall`."""
        expiry = self.expiry
        if self.left is None or self.taken_up or expiry is None:
            return False
        return now - self.left >= expiry

    @property
    def may_be_ended(self) -> bool:
        """Whether others may get its room: its client is away, and not connecting."""
        return self.left is not None and not self.taken_up

    # -- subscriptions --------------------------------------------------------------------------

    def acked(self, granted: int, options: int = 0) -> Recipient | None:
        """Return the recipient of messages to acknowledge, for a subscription with `options`.

        `select` filters them while the client has MQTT 5, because it may subscribe with options at
        any time, and as long as a subscription has options.
        """
        if self.own is None and not options and not self.filters.selects:
            return (None, self._at_least_once, self.queue)[granted]
        if self._selecting is None:
            self._selecting = (
                None,
                Selecting(self._at_least_once, self.select),
                Selecting(self.queue, self.select),
            )
        return self._selecting[granted]

    def select(self, account: Account, publication: Publication) -> Publication | None:
        """Return the form in which the client gets a publication of `account`; see `Select`.

        While the client is away, its own publication, its will, is recognised by the account's
        name.
        """
        filters = self.filters
        if not filters.selects or (self.own is None and self.left is None):
            return publication  # a client that has come back with 3.1.1 knows no options
        own = account.name == self.name if self.own is None else self.own(account)
        return select_by(filters, publication, own=own)

    def observe(
        self,
        turn: Turn,
        text: str,
        granted: int,
        outlet: Recipient | None,
        *,
        options: int = 0,
    ) -> Observation | Assertion | None:
        """Subscribe to a filter in `turn`, in place of an old subscription to it.

        QoS 0 publications go to `outlet`; without an outlet they are not sent. Returns None if
        there is nothing to observe until the client is back. For `options` see `subscribed`.
        """
        dataspace = self._sessions.dataspace
        rights = self.rights
        known = self.subscriptions.get(text)
        old = None if known is None else known.observation
        if is_shared(text):
            return stand_for(dataspace, turn, text, cast("Assertion | None", old))
        if isinstance(old, Observation):
            dataspace.unobserve(turn, old)
        acked = self.acked(granted, options)
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
            allows=None if rights is None else rights.allows(text),
        )

    def subscribed(
        self,
        text: str,
        granted: int,
        observation: Observation | Assertion | None,
        *,
        options: int = 0,
        identifier: int = 0,
    ) -> None:
        """Note a subscription whose turn was committed.

        `options` and `identifier` are for MQTT 5 (`Filters`); use them only for a client attached
        with `own`.
        """
        known = self.subscriptions.get(text)
        new = self.subscriptions[text] = _Subscribed(granted, observation, options, identifier)
        if is_shared(text):
            new.group = None if known is None else known.group
            self._have_part(text, new)
        else:
            self.filters.add(text, options, identifier)

    def _have_part(self, text: str, subscribed: _Subscribed) -> None:
        """Join the group of a shared subscription; a new user or tenant may mean another group."""
        groups = self._sessions.groups
        assert groups is not None
        group = groups.of_session(self, text)
        if subscribed.group is not None and subscribed.group is not group:
            subscribed.group.forget(self)
        subscribed.group = group
        group.add_session(self, subscribed.granted)

    def unsubscribed(self, text: str) -> Observation | Assertion | None:
        """Forget a subscription; return the observation or assertion to end."""
        subscribed = self.subscriptions.pop(text, None)
        if subscribed is None:
            return None
        if subscribed.group is not None:
            subscribed.group.forget(self)
        self.filters.remove(text)
        return subscribed.observation

    def _observe_again(self, text: str, account: Account, outlet: Recipient | None) -> None:
        """Send the QoS 0 publications on a filter to `outlet` from now on.

        With None they are not sent; then nothing happens if they were not before. A shared
        subscription moves to the quota of `account`.

        Raises:
            QuotaExceededError: If it does not fit into the quota of `account`.
        """
        subscribed = self.subscriptions.get(text)
        before = None if subscribed is None else subscribed.observation
        is_away = not isinstance(before, Observation) or before.holder is None
        if subscribed is not None and self.is_current and not (outlet is None and is_away):
            with account.turn() as turn:
                observation = self.observe(turn, text, subscribed.granted, outlet)
            subscribed.observation = observation

    def _unobserve(self, text: str, account: Account) -> None:
        observation = self.unsubscribed(text)
        if observation is not None:
            with account.turn() as turn:
                stop(self._sessions.dataspace, turn, observation)

    def unobserving(self, account: Account) -> Steps:
        """Return the steps that end all subscriptions."""
        return (partial(self._unobserve, text, account) for text in list(self.subscriptions))

    # -- the client comes and goes --------------------------------------------------------------

    def attaching(
        self,
        account: Account,
        name: str,
        outlet: Recipient,
        *,
        own: Callable[[Account], bool] | None = None,
        rights: Rights | None = None,
    ) -> Iterator[None]:
        """Attach a connected client: its QoS 0 publications go to `outlet`.

        This is done in steps; a caller that does not do them all must do the steps of `detaching`.

        Args:
            account: The connection's account.
            name: The account's name.
            outlet: The recipient of QoS 0 publications: the outlet, or a framing before it.
            own: For a client with MQTT 5: tells whether an account belongs to its connection.
            rights: Its right to read; None: everything.

        Raises:
            QuotaExceededError: If its subscriptions do not fit into the quota of `account`.
        """
        self.taken_up = True
        items = nbytes = 0
        for text, subscribed in list(self.subscriptions.items()):
            observation = subscribed.observation
            stands = observation.assertion if isinstance(observation, Observation) else observation
            if stands is None or stands.owner.name != account.name:
                items += 1
                nbytes += measure(Observe(TopicFilter(text)))
            yield
        account.standing().check(items, nbytes)
        self.own, self.rights = own, rights
        for text in list(self.subscriptions):
            self._observe_again(text, account, outlet)
            yield
        self.left = None
        self.name = self.queue.name = name
        self.queue.owner = account
        for text, each in list(self.subscriptions.items()):
            # The rules may have changed in between.
            if each.group is not None and text in self.subscriptions:
                self._have_part(text, each)
                yield
        # While the client is connected, its publishers' limits bound the queue.
        self._limit_queue(None, None)
        self.write()

    def detaching(self, account: Account) -> Steps:
        """Note that the client has gone; its queue keeps new messages, within limits.

        After the returned steps, QoS 0 publications are no longer sent.

        A session with an expiry of 0 is over then: it ends at the next `PersistentSessions.expire`
        or `find`, or sooner by `PersistentSessions.discard`.
        """
        settings = self._sessions.settings
        self.own = None
        self.taken_up = False
        if self.left is None:
            self.left = self._sessions.wall()
            self.queue.owner = None
            self.write()
            self._limit_queue(settings.max_queued, settings.max_queued_bytes)
        return (
            partial(self._observe_again, text, account, None) for text in list(self.subscriptions)
        )

    def _limit_queue(self, length: int | None, nbytes: int | None) -> None:
        queue = self.queue
        queue.settings = attrs.evolve(queue.settings, max_length=length, max_bytes=nbytes)
        queue.work()

    # -- storing --------------------------------------------------------------------------------

    def write(self) -> None:
        """Store the session's owner and its subscriptions, unless the session has ended."""
        if not self.is_current:
            return
        filters = [
            (text, each.granted, each.options, each.identifier)
            for text, each in self.subscriptions.items()
        ]
        client = None if self.place == self.client_id else self.client_id
        value = _StoredSession(self.name, self.left, filters, self._expiry, self.user, client)
        self._sessions.persistence.set(SESSION_PREFIX + self.place, value.encode())

    def erase(self) -> None:
        """Erase it from the store."""
        persistence = self._sessions.persistence
        persistence.delete(SESSION_PREFIX + self.place)
        for packet_id in self.awaiting:
            persistence.delete(self._key(AWAITING_PREFIX, packet_id))
        for packet_id in self.releasing:
            persistence.delete(self._key(RELEASING_PREFIX, packet_id))
        persistence.drop(self.shelf)

    def _key(self, prefix: str, packet_id: int) -> str:
        return f"{prefix}{packet_id}/{self.place}"

    # -- QoS 2 from the client ------------------------------------------------------------------

    def begun(self, packet_id: int, ack: PublisherAck) -> None:
        """Note a publication: a duplicate waits for `ack` until that is due."""
        self.unacked[packet_id] = ack

    def still_unacked(self, packet_id: int) -> PublisherAck | None:
        """Return the answer to an earlier publication if it is not due yet."""
        ack = self.unacked.get(packet_id)
        return ack if ack is not None and ack.expected else None

    def left_unacked(self, left: dict[int, PublisherAck]) -> None:
        """Note QoS 1 publications that a connection has left unacknowledged when it ended."""
        still = {each: ack for each, ack in self.unacked.items() if each in self.awaiting}
        self.unacked = {**left, **still}

    def take_unacked(self, packet_id: int) -> PublisherAck | None:
        """Return the answer to such a publication, which its client now sends again."""
        if packet_id in self.awaiting:
            return None  # that is another one, of QoS 2
        return self.unacked.pop(packet_id, None)

    def persist_identifier(self, packet_id: int, on_durable: Callable[[], object]) -> None:
        """Store the identifier of a publication, in the batch that writes the publication."""
        persistence = self._sessions.persistence
        if not self.is_current:
            on_durable()  # the session is over; in a new one it would mean another publication
            return
        persistence.set(self._key(AWAITING_PREFIX, packet_id), b"")
        persistence.when_durable(on_durable, self.queue)

    def released(self, packet_id: int, complete: Callable[[], object]) -> None:
        """Note a PUBREL; calls `complete` when the identifier may mean a new publication."""
        persistence = self._sessions.persistence
        self.forget_identifier(packet_id)
        persistence.when_durable(complete, self.queue)

    def forget_identifier(self, packet_id: int) -> None:
        """Forget a client's identifier, so that it may mean a new publication."""
        self.unacked.pop(packet_id, None)
        if self.awaiting.release(packet_id):
            self._sessions.persistence.delete(self._key(AWAITING_PREFIX, packet_id))

    # -- QoS 2 to the client --------------------------------------------------------------------

    def resume_releasing(self, release: Callable[[int], object]) -> None:
        """Call `release` again for each message received, as soon as its PUBREC is on disk."""
        for packet_id in self.releasing:
            self._sessions.persistence.when_durable(partial(release, packet_id), self.queue)

    def received(self, packet_id: int, release: Callable[[], object]) -> None:
        """Note a PUBREC, in the batch that erases its message; calls `release` when durable."""
        persistence = self._sessions.persistence
        if packet_id not in self.releasing:
            self.releasing[packet_id] = None
            # The number keeps their order [MQTT-4.6.0-4].
            number = self._sessions.next_number()
            persistence.set(self._key(RELEASING_PREFIX, packet_id), number.to_bytes(8, "big"))
        persistence.when_durable(release, self.queue)

    def completed(self, packet_id: int) -> bool:
        """Note a PUBCOMP; return whether it was expected."""
        if packet_id not in self.releasing:
            return False
        del self.releasing[packet_id]
        self._sessions.persistence.delete(self._key(RELEASING_PREFIX, packet_id))
        return True


@attrs.frozen(slots=True)
class PersistentIdentifier:
    """The packet identifier of a client's publication (`Identifier`)."""

    session: PersistentSession
    packet_id: int

    def persist(self, on_durable: Callable[[], object]) -> None:
        self.session.persist_identifier(self.packet_id, on_durable)

    def forget(self) -> None:
        self.session.forget_identifier(self.packet_id)


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
                stored = _StoredSession.of(value)
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

    def _restore_session(self, place: str, stored: _StoredSession, now: float) -> PersistentSession:
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
