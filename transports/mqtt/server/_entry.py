"""A client's entry on the server: what it is known by, and what it takes until it leaves.

An entry begins when it is known who the client is. It takes the client's identifier over from an
older connection, a place among the connections, room for the will, and the persistent session.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import trio

from ....access._tenants import NO_USER, Peer, identity, printable
from ....accounts import QuotaExceededError
from ..._errors import RemoteProtocolError
from ..codec._identifiers import MAX_PACKET_ID
from ..codec._packets import ConnAck, ConnectReturnCode, encode
from ..codec._packets5 import encode5
from ..codec._properties import FOR_EVER, NO_PROPERTIES, Properties
from ..codec._reasons import Reason
from ._fitting import too_large
from ._homes import Guest, Passage, UnavailableError
from ._mqtt5 import seconds_of
from ._place import Place, take_place
from ._wills import LastWill, WillPlace

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ....access.acl import Rights
    from ....accounts import Account
    from ..._link import Link
    from ..._session import Hold
    from ..codec._packets import Connect, Disconnect
    from ._billing import Billing
    from ._homes import Homes, Visit
    from ._incoming import Incoming
    from ._login import Login
    from ._mqtt5 import Mqtt5
    from ._persistent_session import PersistentSession
    from ._sender import Sender
    from ._server import MqttServer


class Entry:
    """One client's entry.

    Args:
        server: The server.
        link: The client's socket.
        listener: The name of the listener that it came by.
        login: Refuses the client.
        mqtt5: The client's side of MQTT 5, if it speaks that.
        packet: Its CONNECT, with its user.

    Attributes:
        server: See above.
        client_id: As the client said, or as the server named it.
        key: The `identity` that the server knows it by.
        peer: Its names.
        rights: What it may publish and read; None: everything. Set by `take_places`.
        persistent: Its persistent session, if any. Set by `take_session`.
    """

    __slots__ = (
        "_link", "_login", "_mqtt5", "_place", "_user", "_visit", "_will", "_will_place",
        "client_id", "key", "peer", "persistent", "rights", "server",
    )  # fmt: skip

    def __init__(
        self,
        server: MqttServer,
        link: Link,
        listener: str,
        login: Login,
        mqtt5: Mqtt5 | None,
        packet: Connect,
    ) -> None:
        self.server = server
        self._link = link
        self._login = login
        self._mqtt5 = mqtt5
        self._place: Place | None = None
        self._visit: Visit | None = None
        self._will: LastWill | None = None
        self._will_place: WillPlace | None = None
        self.rights: Rights | None = None
        self.persistent: PersistentSession | None = None
        self.client_id = packet.client_id or server.new_client_id()
        user = packet.username if link.user is None else link.user
        if not self._is_verified and server.settings.has_users:
            user = None
        shown = printable(user) if user else NO_USER
        self.peer = Peer(listener, shown, printable(self.client_id))
        self._user = self.peer.user if user and self._is_verified else None
        self.key = identity(self.client_id, self._user)

    @property
    def _is_verified(self) -> bool:
        """Whether the client has proved to be the user that it names."""
        voucher = self._link.voucher
        if voucher is not None:
            return voucher.is_verified
        return self.server.settings.verifies or self._link.user is not None

    @property
    def _adopts(self) -> bool:
        """Whether what is kept for nobody is from before all had to say who they are."""
        settings = self.server.settings
        return settings.verifies and not settings.anonymous

    @property
    def share(self) -> tuple[str, int | None]:
        """Name and limit of the share that its input and its will count for."""
        book = self.server.input
        if self._is_verified and self.peer.user != NO_USER:
            return book.of_user(self.peer.user)
        return book.of_address(self._link.peer)

    def _go_home(self, homes: Homes, packet: Connect, incoming: Incoming) -> Iterator[Hold]:
        """Find the client's session in a cluster; if another relay has it, that serves the client.

        Raises:
            RemoteProtocolError: The session cannot be reached now; the client has been told.
        """
        mqtt5, link, login = self._mqtt5, self._link, self._login
        older = identity(self.client_id, None) if self._adopts and self._user is not None else None
        keeps = not packet.clean_session if mqtt5 is None else mqtt5.expiry != 0
        guest = Guest(self.key, older, resumes=not packet.clean_session, keeps=keeps)
        visit = self._visit = homes.visit(guest)
        try:
            relay = yield from visit.find()
            if relay is None:
                return
            if link.voucher is not None:
                why = f"relay {relay} has its session now, and not this one"
                raise UnavailableError(why)
            user = packet.username if link.user is None else link.user
            connect = attrs.evolve(packet, username=user, password=None)
            first = (encode if mqtt5 is None else encode5)(connect) + incoming.behind
            voucher = login.vouch(is_verified=self._is_verified)
            bridge = visit.cross(relay, Passage(link, first, self.peer.listener, voucher))
        except UnavailableError as exc:
            login.deny(ConnectReturnCode.SERVER_UNAVAILABLE, str(exc))
        yield bridge
        if bridge.refusal is not None:
            login.deny(ConnectReturnCode.SERVER_UNAVAILABLE, bridge.refusal)
        incoming.close()
        link.cut(bridge.why)
        yield trio.Event()  # and so nothing more is done

    def take_over(self, packet: Connect, incoming: Incoming) -> Iterator[Hold]:
        """End what is left of the identifier's last connection; yield what has to happen before.

        In a cluster, another relay may do that, and serve the client (`_go_home`).

        Raises:
            RemoteProtocolError: Its session cannot be reached now; the client has been told.
        """
        server = self.server
        if server.homes is not None:
            yield from self._go_home(server.homes, packet, incoming)
        while True:
            old = server.sessions.get(self.key)
            if old is not None:
                # In one step, so that its will comes before what this one publishes.
                old.give_way()
            if server.persistent_sessions is not None:
                # What is over ends before anything new begins under its name.
                session = server.persistent_sessions.find(
                    self.client_id, self._user, adopts=self._adopts
                )
                if session is not None and packet.clean_session:
                    server.persistent_sessions.discard(session.key)
            parting = server.partings.of(self.key)
            if parting is None:
                return
            yield parting

    def announce(self, packet: Connect) -> float:
        """Tell the other relays of a cluster that the client comes; return when it does."""
        came = self.server.wall()
        if self.server.on_client is not None:
            self.server.on_client(self.key, came, packet.clean_session)
        return came

    def take_places(self, packet: Connect) -> LastWill | None:
        """Count the client as its user's and its tenant's, and its will; return that.

        Raises:
            RemoteProtocolError: If there is no room; the client has been told.
        """
        server, mqtt5 = self.server, self._mqtt5
        place = take_place(server, self.peer, proved=self._is_verified)
        full = ConnectReturnCode.SERVER_UNAVAILABLE if mqtt5 is None else Reason.QUOTA_EXCEEDED
        if isinstance(place, str):
            self._login.deny(full, place, counted=True)
        self._place = place
        will: LastWill | None = None
        if packet.will is not None:
            will = LastWill.of(packet.will)
            try:
                standing = server.ledger.standing_of(self.peer.name)
                self._will_place = server.will_room.take(will, self.share[0], standing)
            except QuotaExceededError as exc:
                self._login.deny(full, str(exc))
        self.rights = server.rights_of(self.peer, self.client_id)
        return will

    def take_session(self, packet: Connect) -> bool:
        """Take up the client's session, or begin one that is kept; return whether there was one.

        Raises:
            RemoteProtocolError: If there is no room for one; the client has been told.
        """
        sessions, mqtt5 = self.server.persistent_sessions, self._mqtt5
        if sessions is None:
            return False
        session = sessions.find(self.client_id, self._user, adopts=self._adopts)
        if packet.clean_session:
            if session is not None:
                sessions.discard(session.key)
                session = None
            if mqtt5 is None or mqtt5.expiry == 0:
                return False
        present = session is not None
        if session is None and mqtt5 is not None and mqtt5.expiry == 0:
            return False
        if session is None:
            session = sessions.create(self.client_id, self.peer.name, self._user)
        if session is None:
            why = (
                f"{len(sessions)} sessions are kept, which is the limit (max_sessions); connect "
                "with a clean session, or end some"
            )
            full = ConnectReturnCode.SERVER_UNAVAILABLE if mqtt5 is None else Reason.QUOTA_EXCEEDED
            self._login.deny(full, why)
        if mqtt5 is None:
            session.expire_as_set()
        else:
            session.expiry = self.server.expiry_of(mqtt5.expiry)
        self.persistent = session
        self._end_visit()
        return present

    def welcome(self, packet: Connect, sender: Sender, *, present: bool) -> None:
        """Say that the client is let in, and whether a session was `present`.

        Raises:
            RemoteProtocolError: If it does not accept so large a packet; it has been told.
        """
        accepted = ConnAck(present, ConnectReturnCode.ACCEPTED, self._properties(packet))
        mqtt5 = self._mqtt5
        if mqtt5 is not None and sender.fitting(accepted) is None:
            assert mqtt5.max_packet_size is not None
            why = too_large(accepted, mqtt5.max_packet_size)
            self.server.counters.refused += 1
            sender.refuse(Reason.PACKET_TOO_LARGE, why)
            raise RemoteProtocolError(why)
        sender.send(accepted)

    def _properties(self, packet: Connect) -> Properties:
        """Return what a client that speaks MQTT 5 is told when it is let in (section 3.2.2.3)."""
        mqtt5, persistent = self._mqtt5, self.persistent
        if mqtt5 is None:
            return NO_PROPERTIES
        server = self.server
        settings = server.settings
        expiry: int | None = None
        granted = 0.0 if persistent is None else persistent.expiry
        if granted != mqtt5.expiry:
            expiry = FOR_EVER if granted is None else min(int(granted), FOR_EVER - 1)
        most = server.receive_maximum
        alive = server.keep_alive_of(packet.keep_alive)
        authentication = self._login.authentication
        return Properties(
            session_expiry=expiry,
            server_keep_alive=alive if alive != packet.keep_alive else None,
            receive_maximum=most if most < MAX_PACKET_ID else None,
            maximum_packet_size=settings.max_packet_size,
            assigned_client_id=None if packet.client_id else self.client_id,
            topic_alias_maximum=settings.max_topic_alias or None,
            shared_available=1 if settings.max_share_groups else 0,
            authentication_method=packet.properties.authentication_method,
            authentication_data=None if authentication is None else authentication.last,
        )

    def says_goodbye(self, packet: Disconnect) -> None:
        """Take a DISCONNECT: it may want the will published, or the session kept longer (5)."""
        if packet.reason == 0:
            self.set_will(None)  # whatever may follow [MQTT-3.14.4-3]
        interval, mqtt5 = packet.properties.session_expiry, self._mqtt5
        if interval is not None and mqtt5 is not None:
            mqtt5.expiry = seconds_of(interval)
            if self.persistent is not None:
                self.persistent.expiry = self.server.expiry_of(mqtt5.expiry)

    def close(self) -> None:
        """End its session, if that ends with the connection."""
        persistent, sessions = self.persistent, self.server.persistent_sessions
        if (
            persistent is not None
            and sessions is not None
            and persistent.expiry == 0
            and persistent.is_current
        ):
            sessions.discard(persistent.key)

    def leave(self) -> None:
        """Give up its place among the connections. Idempotent."""
        self._end_visit()
        if self._place is not None:
            self._place.leave()
            self._place = None

    def _end_visit(self) -> None:
        if self._visit is not None:
            self._visit.close()
            self._visit = None

    def set_will(self, will: LastWill | None) -> None:
        """Have a will published when the connection ends; None: have none published."""
        self._will = will

    def end_will(self, account: Account | None, billing: Billing | None) -> None:
        """Publish the will, or let it wait; give up its room.

        Args:
            account: The client's account; None: it was not let in, and nothing is published.
            billing: Tells who pays for it; None: `account` does.
        """
        server = self.server
        will, self._will = self._will, None
        place, self._will_place = self._will_place, None
        if account is not None and will is not None:
            if self._delays(will, place):
                return
            if not server.stopping:
                payer = account if billing is None else billing.of(will.topic)
                server.publish_will(payer, will, self.peer.name, self.rights)
        if place is not None:
            place.release()

    def _delays(self, will: LastWill, place: WillPlace | None) -> bool:
        """Let a will wait if it is to; only while its session is kept does it (3.1.3.2.2)."""
        delay, persistent, server = will.delay, self.persistent, self.server
        if not delay or persistent is None or persistent.expiry == 0 or server.stopping:
            return False
        seconds = delay if persistent.expiry is None else min(delay, persistent.expiry)
        due = server.ledger.clock() + seconds
        return server.wills.add(self.key, self.peer, will, due, self.client_id, place)
