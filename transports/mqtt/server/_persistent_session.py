"""A persistent session: one that outlives its connections (clean session 0; section 3.1.2.4).

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

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, cast

import attrs

from ....access._tenants import identity
from ....accounts import Account, Faults, Recipient, Turn, measure
from ....dataspace import (
    Assertion,
    AtLeastOnce,
    Observation,
    Observe,
    Publication,
    TopicFilter,
)
from ....dataspace.queues import Keeper, Queue
from ..._outlet import nobody
from ..._partings import Steps
from ..codec._identifiers import AwaitingRelease
from ..codec._topics import is_shared
from ._filters import Filters
from ._publisher_acks import PublisherAck
from ._selecting import Selecting, select_by
from ._shared import SharedGroup, stand_for, stop
from ._stored_session import AS_SET, StoredSession

if TYPE_CHECKING:
    from ....access.acl import Rights
    from ._persistent_sessions import PersistentSessions

SESSION_PREFIX = "mqtt/session/"
AWAITING_PREFIX = "mqtt/awaiting/"
RELEASING_PREFIX = "mqtt/releasing/"


class Persistence(Keeper, Protocol):
    """The store of sessions: `clearfunds.persistence.Shelves`, or one in RAM."""

    faults: Faults


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
        value = StoredSession(self.name, self.left, filters, self._expiry, self.user, client)
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
