"""Shared subscriptions: `$share/GROUP/FILTER` (MQTT 5, section 4.8.2; in 3.1.1 as other servers).

Each message that the filter matches goes to one member of the group; `dataspace.queues.Group` does
that. This module manages the groups' members, and their persistent sessions.

1. A group's key is its name, its filter, and the tenant of its members. Tenants do not share: a
   member takes messages away from the others, which no tenant may do to another.
2. A client with a clean session is a member while it is connected. A client with a persistent
   session is a member as long as the session lasts: messages to acknowledge wait for the first
   member to come back, within the limits for one client's messages.
3. QoS 1 messages that a member has not acknowledged when it leaves, or goes away, go to another
   member, as new. For QoS 2 that is forbidden once sending has begun [MQTT-4.8.2-5]: such a message
   ends with the session. In a persistent session it goes on with that [MQTT-4.8.2-4]: on delivery
   the message moves to the session's own queue.
4. Retained messages are not sent to new members. A shared subscription has its own options and
   identifier, which apply to it alone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import attrs

from ....access._tenants import Peer, peer_of, printable
from ....accounts import Account, Limit, QuotaExceededError, Recipient, StuckPolicy, Turn
from ....dataspace import Assertion, Observation, Observe, Publication, TopicFilter
from ....dataspace.queues import (
    Channel,
    Delivery,
    Group,
    Member,
    PrefetchWindow,
    QueueSettings,
    QueueSums,
    SteadyBacking,
    is_exactly_once,
)
from ..._partings import Steps
from ..codec._options import HIGHEST_QOS, RETAIN_AS_PUBLISHED
from ..codec._topics import SHARED_PREFIX, SharedFilter, filter_of, shared_parts
from ._filters import Filters
from ._framing import Framing
from ._handed import Taker, end
from ._mqtt5 import AtMostOnce, Mqtt5, identifier_bytes
from ._runs import part_run

if TYPE_CHECKING:
    from ....dataspace import Dataspace
    from ....dataspace.queues import Binding
    from ..._outlet import Outlet
    from ._persistent_session import PersistentSession
    from ._server import MqttServer

logger = logging.getLogger("clearfunds.transports.mqtt")

SHELF_PREFIX: Final = "share/"
"""The prefix of the names of a group's shelf and of its account."""

UNSENT_BYTES: Final = 64 << 10
"""Bytes of QoS 0 messages delivered to a member before its connection is asked to send: one read's
worth."""

EXACTLY_ONCE: Final = 2

Key = tuple[str, SharedFilter]
"""A tenant's name, or "" for none, and the shared filter."""


def stand_for(dataspace: Dataspace, turn: Turn, text: str, old: Assertion | None) -> Assertion:
    """Assert a shared subscription, on the quota of the turn's account (rule 16).

    It replaces the `old` one.
    """
    if old is not None:
        dataspace.retract(turn, old)
    return dataspace.assert_(turn, Observe(TopicFilter(text)))


def stop(dataspace: Dataspace, turn: Turn, standing: Observation | Assertion | None) -> None:
    """End a subscription, shared or not."""
    if isinstance(standing, Observation):
        dataspace.unobserve(turn, standing)
    elif standing is not None:
        dataspace.retract(turn, standing)


class SharedMember(Member):
    """One connection as a member of one group.

    Args:
        name: The connection's name.
        outlet: The connection's outlet.
        taker: Sends messages to acknowledge, in the client's in-flight window; None: all messages
            are QoS 0.
        persistent: The client's persistent session, if any.
        on_cut: Ends the connection.
    """

    __slots__ = (
        "_as_published", "_framing", "_identifier", "_on_cut", "_outlet", "_persistent", "_taker",
        "_unsent", "_way", "granted",
    )  # fmt: skip

    def __init__(
        self,
        name: str,
        outlet: Outlet,
        taker: Taker | None,
        persistent: PersistentSession | None,
        on_cut: Any,
    ) -> None:
        super().__init__(name, PrefetchWindow() if taker is None else taker.room)
        self._outlet = outlet
        self._taker = taker
        self._persistent = persistent
        self._on_cut = on_cut
        self._unsent = 0
        self._way: Recipient = outlet
        self._framing = Framing()
        self._identifier = b""
        self._as_published = False
        self.granted = 0

    def set_options(
        self, text: str, options: int, identifier: int, mqtt5: Mqtt5 | None, framing: Framing
    ) -> None:
        """Set the options of the subscription; also for a new SUBSCRIBE of a member."""
        self.granted = options & HIGHEST_QOS
        self._as_published = mqtt5 is not None and bool(options & RETAIN_AS_PUBLISHED)
        self._identifier = b"" if mqtt5 is None else identifier_bytes(identifier)
        if mqtt5 is None:
            self._framing = framing
            return
        filters = Filters()
        filters.add(text, options & RETAIN_AS_PUBLISHED, identifier)
        self._framing = apart = mqtt5.apart(filters)
        self._way = AtMostOnce(apart, self._outlet)
        self._outlet.framing_bytes = max(self._outlet.framing_bytes, apart.framing_bytes)

    @property
    def has_taker(self) -> bool:
        """Whether it gets messages to acknowledge."""
        return self._taker is not None

    @property
    def way(self) -> Recipient:
        return self._way

    @property
    def whose(self) -> object:
        return self._outlet

    @property
    def flows(self) -> bool:
        outlet = self._outlet
        return not (outlet.blocked or outlet.diverted)

    @property
    def debt(self) -> tuple[int, int]:
        """Its debt, as `Member.debt`: publications in flight, and loans that wait to be sent."""
        under_way = 0 if self._taker is None else len(self._taker)
        return under_way + self._outlet.waiting, self.window.used_bytes

    def take(self, delivery: Delivery) -> None:
        publication: Publication = delivery.event
        if publication.qos > self.granted:
            publication = attrs.evolve(publication, qos=self.granted)
        taker = self._taker
        if not publication.qos or taker is None:
            self._take_at_most_once(delivery, publication)
            return
        if self._as_published and publication.was_retained:
            publication = attrs.evolve(publication, retain=True)
        if self._persistent is not None and publication.qos == EXACTLY_ONCE:
            self._move(delivery, publication, self._persistent)
        else:
            taker.take(delivery, publication, self._framing)

    def _take_at_most_once(self, delivery: Delivery, publication: Publication) -> None:
        """Move a message of QoS 0 to the outlet, as debt there."""
        loan = delivery.loan
        nbytes = loan.bytes
        account, outlet = loan.account, self._outlet
        loan.continued(account.borrow, 1, nbytes)
        loan.continued(self._way.hold, account, publication, 1, nbytes, outlet.ledger.clock())
        loan.settle()
        delivery.ack()
        self._unsent += nbytes
        if self._unsent >= UNSENT_BYTES:
            self._unsent = 0
            outlet.send_now()

    def _move(
        self, delivery: Delivery, publication: Publication, persistent: PersistentSession
    ) -> None:
        """Move a QoS 2 message from the group's queue to the session's.

        This is one step, so both changes are written, or neither is.
        """
        if self._identifier:
            publication = attrs.evolve(
                publication, properties=publication.properties + self._identifier
            )
        with delivery.turn() as turn:
            turn.send(persistent.queue, publication, nbytes=delivery.message.size)
        end(delivery)

    def is_spent(self, delivery: Delivery) -> bool:
        """Whether it is spent, as `Member.is_spent`: QoS 2, and being sent [MQTT-4.8.2-5]."""
        entries = delivery.loan.item
        packet = entries[0] if entries else None
        if not isinstance(packet, bytes) or packet[0] >> 1 & 3 != EXACTLY_ONCE:
            return False
        return not any(loan is delivery.loan for loan in self._outlet.unbegun())

    def cut(self, why: str) -> None:
        self._on_cut(why)


class SharedGroup:
    """One group, and the persistent sessions of its members.

    Attributes:
        key: Its key.
        group: Its messages and its connected members.
        persistent_members: The persistent sessions of its members, connected or not, with the QoS
            granted.
        shelf: The store of its messages; None if there is no store.
        short_since: The start of a wait for room while no member is connected; None if no message
            waits.
    """

    __slots__ = (
        "_binding", "_groups", "group", "key", "persistent_members", "shelf", "short_since",
    )  # fmt: skip

    def __init__(self, groups: SharedGroups, key: Key, group: Group, shelf: Any) -> None:
        self._groups = groups
        self._binding: Binding | None = None
        self.key = key
        self.group = group
        self.persistent_members: dict[PersistentSession, int] = {}
        self.shelf = shelf
        self.short_since: float | None = None

    def __repr__(self) -> str:
        return f"<SharedGroup {self.group.name}: {len(self)} members>"

    def __len__(self) -> int:
        """Return the number of members, connected or away."""
        return len(self.group.members) + self.away

    def __bool__(self) -> bool:
        return True

    @property
    def away(self) -> int:
        """The number of absent members with persistent sessions."""
        return sum(session.left is not None for session in self.persistent_members)

    def add_session(self, session: PersistentSession, granted: int) -> None:
        """Note that a persistent session is a member, as long as it lasts."""
        self.persistent_members[session] = granted
        self.look()

    def forget(self, session: PersistentSession) -> None:
        """Note that a session has ended, or is no longer a member."""
        if self.persistent_members.pop(session, None) is not None:
            self.look()

    def join(self, member: SharedMember) -> None:
        """Add a connected member."""
        self.bind()
        self._limit(None, None)
        self.group.join(member)

    def look(self) -> None:
        """Adapt to members that have come or gone; end the group if it is not needed."""
        group = self.group
        group.persists = any(self.persistent_members.values())
        if group.members or self.persistent_members:
            self.bind()
            if not group.members:
                sessions = self._groups.server.persistent_sessions
                assert sessions is not None
                self._limit(sessions.settings.max_queued, sessions.settings.max_queued_bytes)
            return
        if self._binding is not None:
            with group.account.turn() as turn:
                group.unbind(turn, self._binding)
            self._binding = None
            group.purge()
        # A client that has unsubscribed may still acknowledge messages in flight.
        if not group.unacked:
            self._groups.end(self)

    def bind(self) -> None:
        """Subscribe it to its filter, if it is not subscribed yet."""
        if self._binding is None:
            group = self.group
            with group.account.turn() as turn:
                self._binding = group.bind(
                    turn, self._groups.server.dataspace, TopicFilter(self.key[1].filter)
                )

    def _limit(self, length: int | None, nbytes: int | None) -> None:
        group = self.group
        settings = group.settings
        if settings.max_length != length or settings.max_bytes != nbytes:
            group.settings = attrs.evolve(settings, max_length=length, max_bytes=nbytes)
            group.work()

    def tick(self, now: float, patience: float, stuck: StuckPolicy) -> None:
        """Tick its queue; see `PersistentSessions.tick`."""
        group = self.group
        if self.persistent_members or group.members:
            if not (len(group) or group.unacked):
                self.short_since = None
                return  # most of ten thousand have nothing to do
            group.tick(now)
        if group.members or not group.is_short:
            self.short_since = None
        elif self.short_since is None:
            self.short_since = now
        elif now - self.short_since >= patience and stuck is StuckPolicy.DISCONNECT:
            self.short_since = None
            logger.warning(
                "the messages in %s are discarded, %d of them: new ones waited for room for too "
                "long, and no member is connected",
                group.name,
                len(group),
                extra={"event": "group_given_up", "holder": group.name},
            )
            group.purge()
        if not (group.members or self.persistent_members):
            self.look()


class SharedGroups:
    """All groups of one relay.

    Args:
        server: The server; its settings limit the number of groups.

    Attributes:
        server: See above.
        by_key: The groups, by tenant, name and filter.
        make: Makes the queue of a group; set it before the first connection.
        ended: Sums of the queues of ended groups.
    """

    def __init__(self, server: MqttServer) -> None:
        self.server = server
        self.by_key: dict[Key, SharedGroup] = {}
        self.make: Callable[..., Group] = Group
        self.ended = QueueSums()

    def __len__(self) -> int:
        """Return the number of groups."""
        return len(self.by_key)

    def __bool__(self) -> bool:
        return True

    def key_of(self, peer: Peer, text: str) -> Key:
        """Return the key of the group in which a client shares a filter."""
        shared = shared_parts(text)
        assert shared is not None
        tenant = self.server.tree.of(peer).tenant
        return "" if tenant is None else tenant.name, shared

    def fault(self, key: Key) -> str | None:
        """Return the limit that keeps a new member out of a group, as a sentence; None if none."""
        settings = self.server.settings
        group = self.by_key.get(key)
        if group is None:
            if len(self) >= settings.max_share_groups:
                return (
                    f"there are {settings.max_share_groups} groups of shared subscriptions, which "
                    "is the limit (max_share_groups)"
                )
        elif len(group) >= settings.max_share_members:
            return (
                f"{group.group.name} has {settings.max_share_members} members, which is the limit "
                "(max_share_members)"
            )
        return None

    def of(self, key: Key) -> SharedGroup:
        """Return the group with this key; make it if necessary."""
        found = self.by_key.get(key)
        if found is None:
            found = self.by_key[key] = self._make(key)
        return found

    def of_session(self, session: PersistentSession, text: str) -> SharedGroup:
        """Return the group that a persistent session is a member of."""
        return self.of(self.key_of(peer_of(session.name, printable(session.client_id)), text))

    def _make(self, key: Key) -> SharedGroup:
        server = self.server
        ledger, sessions, settings = server.ledger, server.persistent_sessions, server.settings
        tenant, shared = key
        name = printable(f"{SHARED_PREFIX}{shared.group}/{shared.filter}")
        shelf_name = f"{SHELF_PREFIX}{tenant}/{shared.group}/{shared.filter}"
        limit: Limit | None = None
        shelf: Any = None
        parent = server.account
        if sessions is not None:
            shelf = sessions.persistence.shelf(shelf_name)
            limit = Limit(
                items=sessions.settings.max_queued, bytes=sessions.settings.max_queued_bytes
            )
            parent = sessions.at_rest_of_tenant(tenant)
        group = self.make(
            ledger,
            f"{tenant}/{name}" if tenant else name,
            account=ledger.open(printable(shelf_name), limit=limit, parent=parent),
            settings=QueueSettings(durable=shelf is not None, delivery_limit=None),
            shelf=shelf,
            backing=SteadyBacking if sessions is None else sessions.backing,
            wall=server.wall,
            patience=settings.patience,
            policy=settings.undroppable_policy,
            part=part_run,
        )
        if sessions is not None and sessions.outlives:
            group.durable_first = is_exactly_once
        if shelf is not None:
            shelf.recover(group)
        return SharedGroup(self, key, group, shelf)

    def end(self, group: SharedGroup) -> None:
        """End a group without members."""
        if self.by_key.get(group.key) is not group:
            return  # it has ended
        del self.by_key[group.key]
        group.group.delete()
        self.ended.add_past(group.group)
        group.group.account.close()
        if group.shelf is not None and self.server.persistent_sessions is not None:
            self.server.persistent_sessions.persistence.drop(group.shelf)

    def tick(self, now: float) -> None:
        """Tick the groups at `now`, on the ledger's clock."""
        settings = self.server.settings
        call = self.server.ledger.faults.call
        for group in list(self.by_key.values()):
            due = "doing what is due"
            call(group.group, due, group.tick, now, settings.patience, settings.undroppable_policy)

    def forget_others(self, persistence: Any) -> None:
        """Erase the stored messages of groups without members. Call it after a restart."""
        known = {group.shelf.name for group in self.by_key.values()}
        for name in [name for name in persistence.store.queues if name.startswith(SHELF_PREFIX)]:
            if name not in known:
                persistence.drop(persistence.shelf(name))

    def close(self) -> None:
        """End the groups in this process, and leave the store as it is."""
        for group in self.by_key.values():
            group.group.close()
            group.group.account.close()
        self.by_key.clear()


class Shares:
    """The shared subscriptions of one connection.

    Args:
        groups: All groups.
        peer: The peer that has connected.
        outlet: The connection's outlet.
        mqtt5: Its side of MQTT 5, if it speaks that.
        persistent: Its persistent session, if any.
        on_cut: Ends the connection.

    Attributes:
        standing: The assertions on its account's quota, by filter; not those of a persistent
            session.
    """

    __slots__ = (
        "_groups", "_joining", "_members", "_mqtt5", "_on_cut", "_outlet", "_peer", "_persistent",
        "_stopped", "standing",
    )  # fmt: skip

    def __init__(
        self,
        groups: SharedGroups,
        peer: Peer,
        outlet: Outlet,
        mqtt5: Mqtt5 | None,
        persistent: PersistentSession | None,
        on_cut: Any,
    ) -> None:
        self._groups = groups
        self._peer = peer
        self._outlet = outlet
        self._mqtt5 = mqtt5
        self._persistent = persistent
        self._on_cut = on_cut
        self._members: dict[str, tuple[SharedGroup, SharedMember]] = {}
        # Subscriptions to join in `begin`.
        self._joining: list[tuple[str, int, int, Taker | None]] = []
        # Members that get no more messages, but may acknowledge those in flight.
        self._stopped: list[tuple[SharedGroup, SharedMember, Channel]] = []
        self.standing: dict[str, Assertion] = {}
        outlet.on_flowing = self._go_on

    def subscribe(
        self,
        account: Account,
        text: str,
        options: int,
        identifier: int,
        taker: Taker | None,
    ) -> str | None:
        """Join a group, or change the options there, from `begin` on; return the reason if not."""
        groups, persistent = self._groups, self._persistent
        key = groups.key_of(self._peer, text)
        fault = None if text in self._members else groups.fault(key)
        if fault is not None:
            return fault
        qos = options & HIGHEST_QOS
        stands: Observation | Assertion | None = None
        try:
            with account.turn() as turn:
                if persistent is not None:
                    stands = persistent.observe(turn, text, qos, None)
                else:
                    dataspace = groups.server.dataspace
                    stands = stand_for(dataspace, turn, text, self.standing.get(text))
        except QuotaExceededError as exc:
            return str(exc)
        if persistent is not None:
            told = options & RETAIN_AS_PUBLISHED
            persistent.subscribed(text, qos, stands, options=told, identifier=identifier)
        elif isinstance(stands, Assertion):
            self.standing[text] = stands
        # Most of the work is done now; `begin` does the rest in one step for all groups.
        groups.of(key).bind()
        self._joining.append((text, options, identifier, taker))
        return None

    def begin(self) -> None:
        """Begin to take messages of new subscriptions: their SUBACK has been sent."""
        joining, self._joining = self._joining, []
        for each in joining:
            self.join(*each)

    def join(self, text: str, options: int, identifier: int, taker: Taker | None) -> None:
        """Become a member of a group, or change the options there."""
        server = self._groups.server
        found = self._members.get(text)
        takes = taker if options & HIGHEST_QOS else None
        # A change between QoS 0 and a higher QoS makes it another member.
        anew = found is None or found[1].has_taker != (takes is not None)
        if found is None or anew:
            member = SharedMember(
                self._peer.name, self._outlet, takes, self._persistent, self._on_cut
            )
        else:
            member = found[1]
        member.set_options(filter_of(text), options, identifier, self._mqtt5, Framing(server.wall))
        if anew:
            group = self._groups.of(self._groups.key_of(self._peer, text))
            self._members[text] = group, member
            group.join(member)
            if found is not None:
                self._stop(*found)

    def leave(self, text: str) -> None:
        """Leave a group; messages in flight may still be acknowledged."""
        found = self._members.pop(text, None)
        if found is not None:
            self._stop(*found)

    def _stop(self, group: SharedGroup, member: SharedMember) -> None:
        channel = group.group.stop(member)
        if channel is not None:
            self._stopped.append((group, member, channel))
        group.look()

    def pause(self) -> None:
        """Leave groups that queue for absent members; messages in flight may be acknowledged."""
        for text in [text for text, (group, _) in self._members.items() if group.group.persists]:
            self.leave(text)

    def close(self) -> None:
        """Leave all groups; unacknowledged messages go to other members. Idempotent."""
        for look in self._not_joined():
            look()
        for text in list(self._members):
            self.leave(text)
        stopped, self._stopped = self._stopped, []
        for group, member, channel in stopped:
            group.group.release(member, channel)
            group.look()

    def leaving(self, account: Account) -> Steps:
        """Return the steps that leave all groups; see `close`.

        The connection may be closed by then.
        """
        yield from self._not_joined()
        for text in list(self._members):
            yield partial(self.leave, text)
        while self._stopped:
            group, member, channel = self._stopped.pop(0)
            yield partial(group.group.release, member, channel)
            yield group.look
        for standing in list(self.standing.values()):
            yield partial(self._retract, account, standing)

    def _not_joined(self) -> Steps:
        """End groups that were made for this connection, which leaves before it has joined."""
        joining, self._joining = self._joining, []
        for text, *_ in joining:
            group = self._groups.by_key.get(self._groups.key_of(self._peer, text))
            if group is not None:
                yield group.look

    def _retract(self, account: Account, standing: Assertion) -> None:
        with account.turn() as turn:
            self._groups.server.dataspace.retract(turn, standing)

    def _go_on(self) -> None:
        """Note that the outlet accepts messages again."""
        for group, member in list(self._members.values()):
            group.group.go_on(member)
