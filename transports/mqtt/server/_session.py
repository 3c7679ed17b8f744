"""One MQTT client's connection: binds the protocol to an account, an outlet and the dataspace.

Rules of this file, beyond those of every session (`.._session`) and of its end
(`_parting_session.py`):
1. Funds are looked at before each packet that could cost something (rule 9).
2. While the connection waits, acknowledgements and pings are still taken out of a bounded stretch
   of its input (rule 10); publications in that stretch stay in order.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import trio

from ....accounts import Account
from ..._errors import RemoteProtocolError
from ..._input import LOOKAHEAD_FLOOR
from ..._link import READ_BYTES, Link
from ..._need_data import NEED_DATA
from ..._session import (
    FLUSH_POLL_SECONDS,
    LOOKAHEAD_BYTES,
    LOOKAHEAD_PAUSE_SECONDS,
    Hold,
)
from ..codec._connection import State
from ..codec._frames import PUBACK, PUBCOMP, PUBLISH
from ..codec._packets import (
    PROTOCOL_LEVEL_31,
    Auth,
    Connect,
    Disconnect,
    Packet,
    PingReq,
    PingResp,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    Subscribe,
    UnacceptableConnectError,
    Unsubscribe,
)
from ..codec._reasons import Reason, reason_of
from ._billing import Billing
from ._client import Client
from ._entry import Entry
from ._facts import facts_of
from ._forwarder import Forwarder
from ._login import Login
from ._parting_session import PartingSession
from ._plain_packets import CONFIRMED, PlainPackets
from ._publisher import Publisher
from ._subscriber import Subscriber
from ._subscriptions import PersistentSubscriptions, VolatileSubscriptions

if TYPE_CHECKING:
    from ..._peer_facts import PeerFacts
    from ._server import MqttServer

PROGRESS_BYTES = 1024
"""A read this large counts as a sign of life though it does not complete a packet: a large packet
on a slow line. A byte a second does not."""

COSTLESS: Final = (PUBACK, PUBCOMP)
"""The first bytes of packets that are never answered: they only reduce debt."""

KEEP_ALIVE_GRACE = 1.5
"""[MQTT-3.1.2-24]."""


class MqttSession(PartingSession):
    """One client's connection.

    Attributes:
        came: When it was let in, by the server's wall clock.
    """

    __slots__ = ("_listener", "_login", "came")

    _unacknowledged_are = "publications with QoS 1 were not acknowledged"

    def __init__(self, server: MqttServer, link: Link, listener: str) -> None:
        super().__init__(server, link)
        self._listener = listener
        self._login = Login(server, link, self._sender)
        self.came = 0.0

    def __repr__(self) -> str:
        return f"<MqttSession {self.name}: {self._connection.state.value}>"

    # -- the connection's life ------------------------------------------------------------------

    def _ending(self) -> str | None:
        """See `Session._ending`."""
        if self._connection.state is State.CLOSED:
            return "the client disconnected"
        return self._cut_off() if self._eof else None

    def _resume(self, account: Account) -> None:
        """Tell of what is retained."""
        replays = self._replays
        subscriber = self._subscriber
        if not replays.granted or self._steps is not None or subscriber is None:
            return
        work = self._work
        work.begin_now()
        with self._server.flusher.corked():
            while replays.granted and account.funds_are_clear() and not work.is_over():
                subscriber.replay()
        work.end()

    def _received(self, data: bytes, *, lookahead: bool = False) -> None:
        """See `Session._received`; with `lookahead` it is only noted here."""
        if not data:
            self._eof = True
            return
        self._server.counters.received_bytes += len(data)
        if len(data) >= PROGRESS_BYTES and self.account is not None:
            self._last = self._server.ledger.clock()
        if not lookahead:
            self._connection.receive_data(data)

    def _cut_off(self) -> str:
        if self._link.fault is not None:
            raise self._link.fault
        left = self._incoming.unparsed
        if left:
            return f"the client closed the connection within a packet ({left} bytes of it came)"
        return "the client closed the connection without DISCONNECT"

    async def _flush_out(self) -> None:
        """See `Session._flush_out`; who has not said who it is is owed nothing.

        What it has published is acknowledged if that can still be.
        """
        subscriber, publisher = self._subscriber, self._publisher
        if subscriber is None or publisher is None:
            return
        acks = publisher.acks
        if acks and self._server.persistent_sessions is not None:
            self._server.persistent_sessions.persistence.hurry()
            while acks and not self._eof:  # noqa: ASYNC110 (as the other one)
                await trio.sleep(FLUSH_POLL_SECONDS)
        if self._server.sessions_are_durable:
            subscriber.pause()
        self._waiting = True
        await super()._flush_out()

    async def _held(self, hold: Hold) -> None:
        """See `Session._held`: what the disk has to do first may take long (rule 10)."""
        if self._login.undecided is not None:
            known = await self._login.decide(self._read_until_it_leaves)
            self._hold = None
            self._steps = self._begin(known)
            return
        if self.account is None:
            await super()._held(hold)
            return
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._look_ahead, nursery.cancel_scope)
            await super()._held(hold)
            nursery.cancel_scope.cancel()
        if self._hold is hold:
            self._hold = None  # the client has gone

    def _silence(self, seconds: float, allowed: float) -> str:
        self._sender.parting = Reason.KEEP_ALIVE_TIMEOUT
        if self._login.undecided is not None:
            return f"its password was not checked within {allowed:g} s"
        if self.account is None:
            return f"no CONNECT within {allowed:g} s"
        return f"no packet for {seconds:.1f} s, keep-alive is over"

    # -- unfinished input -----------------------------------------------------------------------

    def _holding(self) -> int:
        """See `Session._holding`."""
        connection, lookahead = self._connection, self._incoming.lookahead
        # Something has been collected only if something is missing.
        held = connection.held_bytes if connection.missing else len(connection.buffer)
        return held if lookahead is None else held + lookahead.size

    def _let_go(self) -> None:
        """See `Session._let_go`."""
        self._connection.let_go()

    def _share(self) -> tuple[str, int | None]:
        """See `Session._share`: its user's, if it is known that it is."""
        entry = self._entry
        if self.account is None or entry is None:
            return self._server.input.before_login(self._link.peer)
        return entry.share

    # -- who pays -------------------------------------------------------------------------------

    @property
    def payer(self) -> Account | None:
        """Whose funds it waits for, or is refused for want of, if it is."""
        forwarder = self._forwarder
        if forwarder is None:
            return self.account
        refused = None if forwarder.excess is None else forwarder.excess.standing
        return forwarder.short or refused or self.account

    def _after_sending(self) -> Account | None:
        """See `Session._after_sending`: who pays for the publication that is next, if it is known.

        Nobody does before the client has been let in.
        """
        if self._connection.state is State.AWAITING_CONNACK:
            return None
        forwarder = self._forwarder
        if forwarder is None:
            return self.account
        if forwarder.short is not None:
            return forwarder.short
        if forwarder.excess is None or self._replays.granted:
            return self.account
        return forwarder.excess.overdue  # what it has no funds for is looked at in its turn

    def adjust(self) -> None:
        """See `Session.adjust`."""
        super().adjust()
        forwarder, subscriber, account = self._forwarder, self._subscriber, self.account
        if forwarder is None or subscriber is None or account is None:
            return  # it has not been let in yet, or has left
        server, billing = self._server, forwarder.billing
        peer = billing.peer
        limit = server.settings.limit_of(peer.name, peer.client)
        for each in (account, *billing.others):
            server.tree.adjust_connection(each, peer, limit)
        subscriber.deal()
        excess = server.over_limits.renew(forwarder.excess, account, peer.name, peer.client)
        if excess is not None and excess is not forwarder.excess:
            subscriber.client.excess = forwarder.excess = excess
            self._sender.account = excess.answers
            self._own(excess.answers)

    # -- waiting --------------------------------------------------------------------------------

    async def _wait_for_clear_funds(self, account: Account) -> bool:
        """See `Session._wait_for_clear_funds`."""
        if account is self._sender.account:
            return await super()._wait_for_clear_funds(account)
        # Its client is not read for what another account owes: so that is whose reader those wait
        # on who wait on its client (rule 11).
        self._own(account)
        try:
            return await super()._wait_for_clear_funds(account)
        finally:
            if self._sender.account is not None:
                self._own(self._sender.account)

    def _own(self, account: Account) -> None:
        self.outlet.owner = account
        if self._subscriber is not None:
            self._subscriber.subscriptions.own(account)

    async def _look_ahead(self, wait: trio.CancelScope) -> None:
        """Take acknowledgements and pings out of the input while the rest of it waits (rule 10).

        Ends when the stretch is full, at the end of the stream, or at something that is not
        whole and valid; that is found in its turn. Where nothing is left that costs anything, and
        the client has left, it ends the wait.
        """
        incoming = self._incoming
        data = incoming.begin_to_wait()
        allowance = LOOKAHEAD_BYTES
        while True:
            if data and not await self._overtake(data):
                return
            data = b""
            self._note_input(lookahead=True)
            if self._eof and self._subscriber is not None:
                self._subscriber.acknowledges_no_more()
            if not incoming.has_whole_packets:
                self._left = self._eof
                if self._eof or incoming.begins_with_disconnect:
                    self._replays.clear()  # who leaves is told nothing more
                    wait.cancel()
            unparsed = incoming.unparsed
            if self._eof or (self._unacknowledged() is None and unparsed >= LOOKAHEAD_BYTES):
                return
            # A client that reads nothing must not fill its outlet with answers to its pings; but
            # what makes it read may be that it can get rid of its acknowledgements. Reads are not
            # always full: one that may go beyond the allowance is not begun.
            if (self.outlet.blocked and allowance < READ_BYTES) or unparsed >= self._stretch():
                await trio.sleep(LOOKAHEAD_PAUSE_SECONDS)
                continue
            data = await self._receive_ahead()
            self._received(data, lookahead=True)
            if self.outlet.blocked:
                allowance -= len(data)

    async def _overtake(self, data: bytes) -> bool:
        """Keep what came, and handle what overtakes; False if the connection has ended.

        Cancellation: it is shielded, as what is handled has been taken out of the input.
        """
        work = self._work
        work.begin_now()
        for packet in self._incoming.overtaking(data):
            self._acknowledge(packet)
            if work.is_over():
                self._server.flusher.flush_now()
                with trio.CancelScope(shield=True):
                    await work.let_others()
            if self._retired or (self._link.why is not None and not self._server.stopping):
                work.end()
                return False  # what it has acknowledged has gone back to where it came from
        self._server.flusher.flush_now()
        work.end()
        return True

    def _acknowledge(self, packet: Packet) -> None:
        try:
            self._handle(packet)
        except RemoteProtocolError as exc:
            # Not raised: this is another task than the one that serves the connection.
            self._server.counters.protocol_errors += 1
            why = str(exc)
            self._server.logger.warning(
                "%s closed: %s", self._who, why, extra=self._fields("closed", why)
            )
            self._sender.cut(why, reason_of(exc))

    # -- what came in ---------------------------------------------------------------------------

    def _handle_read(self, data: bytes) -> bool | None:
        """See `Session._handle_read`."""
        plain = self._plain
        done = None if plain is None else plain.handle(data)
        if done is None:
            return super()._handle_read(data)
        self._last = self._server.ledger.clock()
        if plain is not None and plain.rest:
            rest, plain.rest = plain.rest, b""
            self._received(rest)
        return done

    def _handle_input(self) -> bool:
        connection, incoming = self._connection, self._incoming
        server = self._server
        work = self._work
        forwarder = self._forwarder
        if forwarder is not None:
            forwarder.begin()
        if self._steps is not None and not self._go_on(self._steps):
            return True
        if self._replays.granted:
            # What is retained comes before what the client says next, which may ask for it again.
            return True
        has_begun = False
        while True:
            buffer = connection.buffer
            position = connection.position
            if position >= len(buffer):
                if incoming.lookahead is None or not incoming.take_up():
                    # What has been handled is let go now: noting held input costs more.
                    connection.buffer = b""
                    connection.position = 0
                    return False
                has_begun = True
                continue
            if has_begun and work.is_over():
                return True
            forwarder = self._forwarder
            is_whole = True
            if self.account is not None and forwarder is not None:
                if buffer[position] == PUBLISH:
                    stopped = forwarder.forward_runs()
                    if stopped is not None:
                        self._last = server.ledger.clock()
                        if stopped:
                            return True
                        if not forwarder.read_all or connection.position == len(buffer):
                            continue
                        is_whole = False  # the end of the read has cut it: it costs nothing yet
                elif buffer[position] == CONFIRMED and self._plain is not None:
                    end = self._plain.confirm_more(buffer, position)
                    if end > position:
                        connection.position = end
                        self._last = server.ledger.clock()
                        has_begun = True
                        continue
                if is_whole and buffer[position] not in COSTLESS:
                    account = self.account
                    if forwarder.billing.by_topic:
                        account = forwarder.payer_at(buffer, position)
                    if not (
                        account.is_open_wide() or account.funds_are_clear()
                    ) and forwarder.stops(account):
                        return True
            try:
                packet = connection.next_packet()
            except UnacceptableConnectError as exc:
                server.counters.refused += 1
                self._sender.refuse(exc.return_code, str(exc), exc.max_packet_size)
                raise
            if packet is NEED_DATA:
                connection.let_go()
                return False
            if self.account is not None:  # the time that it has to be let in goes on
                self._last = server.ledger.clock()
            self._handle(packet)
            if self._replays.granted or self._hold is not None or self._steps is not None:
                return True  # what comes next waits for these, DISCONNECT too
            has_begun = True

    def _handle(self, packet: Packet) -> None:
        match packet:
            case Publish():
                assert self._publisher is not None
                self._publisher.publish(packet)
            case PubAck() | PubRec() | PubComp():
                assert self._subscriber is not None
                self._subscriber.acknowledge(packet)
            case PubRel():
                assert self._publisher is not None
                self._publisher.release(packet.packet_id)
            case PingReq():
                self._sender.send(PingResp())
            case Subscribe():
                assert self._subscriber is not None
                self._go_on(self._subscriber.subscribe(packet))
            case Unsubscribe():
                assert self._subscriber is not None
                self._go_on(self._subscriber.unsubscribe(packet))
            case Connect():
                self._let_in(self._login.begin(packet))
            case Auth() if self._login.authentication is not None:
                self._let_in(self._login.step(packet))
            case Disconnect():
                self._handle_disconnect(packet)
                # What does is refused here; a run of publications would be routed [MQTT-3.14.4-2].
                self._connection.next_packet()
            case _:
                raise AssertionError(packet)  # the connection lets nothing else through

    # -- CONNECT --------------------------------------------------------------------------------

    def _let_in(self, known: Connect | None) -> None:
        """Go on with a client that is known, or wait until it is decided whether it is."""
        if known is not None:
            self._go_on(self._begin(known))
        elif self._login.undecided is not None:
            self._hold = trio.Event()  # nobody sets it: see `_held`

    def check_deadline(self, now: float) -> None:
        """See `Session.check_deadline`: a token that has expired ends its connection."""
        login = self._login
        if login.ends_at is not None and now >= login.ends_at:
            login.ends_at = None
            self._sender.cut("its token has expired", Reason.MAXIMUM_CONNECT_TIME)
        elif not login.is_delayed:  # such a client has done what it has to
            super().check_deadline(now)
            # Both can come earlier only when it is let in, which sets this back.
            allowed = self._deadline_after
            since = now if self._waiting else self._last
            quiet_until = math.inf if allowed is None else since + allowed
            self.quiet_until = min(quiet_until, login.ends_at or math.inf)

    async def _read_until_it_leaves(self, check: trio.CancelScope) -> None:
        """Read a bounded stretch while its password is checked; end the check if it leaves.

        Who has said something behind its CONNECT before it left is to be heard.
        """
        while not self._eof and self._incoming.unparsed < LOOKAHEAD_FLOOR:
            self._note_input(lookahead=True)
            self._received(await self._receive_ahead())
        self._note_input(lookahead=True)
        if not self._incoming.unparsed:
            check.cancel()

    def _begin(self, packet: Connect) -> Iterator[Hold | None]:
        """Let a client in, in steps: nothing may be left of who had its identifier before.

        Raises:
            RemoteProtocolError: If it cannot be, for want of room or because somebody else has its
                identifier; the client has been told.
        """
        server = self._server
        self._last = server.ledger.clock()
        mqtt5 = self._sender.mqtt5
        # Known from now on: it gives up what it has taken, whenever the client leaves.
        entry = self._entry = Entry(server, self._link, self._listener, self._login, mqtt5, packet)
        yield from entry.take_over(packet, self._incoming)
        self.came = entry.announce(packet)
        will = entry.take_places(packet)
        peer = entry.peer
        self.client_id = entry.client_id
        self._close_input()  # what it sends from now on is its user's
        name = peer.name
        present = entry.take_session(packet)
        server.came_back(entry.key, to_its_session=present)
        server.sessions[entry.key] = self
        self.name = self.outlet.name = name
        # Known by name: who comes back finds its debt waiting (rule 14).
        membership = server.tree.of(peer)
        self.account = self._sender.account = server.open_account(peer, membership.tenant)
        prefixes = server.topic_accounts.of(name, peer.client)
        billing = Billing(self.account, membership, server, peer, prefixes)
        server.dealings.begin(self.outlet, name, peer.client)
        persistent = entry.persistent
        client = Client.of(entry, self.account, billing, self._sender, packet, self.complain)
        client.excess = server.over_limits.of(self.account, name, peer.client)
        if client.excess is not None:
            self._sender.account = client.excess.answers
        # A client that is not read may not read either: two of them are a ring (rule 11).
        self.outlet.owner = self._sender.account
        resumed = None if persistent is None else PersistentSubscriptions(client, persistent)
        subscriptions = VolatileSubscriptions(client) if resumed is None else resumed
        forwarder = self._forwarder = self._make_forwarder(client)
        version = self._connection.version
        publisher = self._publisher = Publisher(client)
        subscriber = self._subscriber = Subscriber(client, subscriptions, self._replays, version)
        self._plain = PlainPackets(
            client, self._connection, self._work, forwarder, publisher, subscriber, self._replays
        )
        if resumed is not None:
            yield from resumed.attaching()
        entry.set_will(will)
        self._own(self._sender.account)
        keep_alive = server.keep_alive_of(packet.keep_alive, told=mqtt5 is not None)
        self._deadline_after = (
            keep_alive * KEEP_ALIVE_GRACE if keep_alive else server.settings.idle_timeout
        )
        self.quiet_until = 0.0
        server.watched.add(self)
        # MQTT 3.1 cannot say that there was a session.
        entry.welcome(packet, self._sender, present=present and version != PROTOCOL_LEVEL_31)
        self._say_connected()
        if resumed is not None:
            resumed.resume(self._incoming.says_disconnect)

    def about(self, most: int) -> PeerFacts:
        return facts_of(self, self._entry, self._subscriber, most)

    def _make_forwarder(self, client: Client) -> Forwarder:
        return Forwarder(client, self._connection, self._work, self._replays)

    def rules_changed(self) -> None:
        """End what is no longer allowed: what its rights are may be something else now.

        What is on its way in bytes cannot be told apart any more: if something of that may not be
        read, the connection ends. A session that is kept goes on when its client is back.
        """
        if self._forwarder is not None:
            self._forwarder.single = None
        rights = None if self._entry is None else self._entry.rights
        if rights is None:
            return
        if self._subscriber is not None:
            self._subscriber.rules_changed()
        if self.outlet.unsent and rights.reads_less:
            rights.denied.connection += 1
            why = "it may not read any more what is on its way to it"
            self._sender.cut(why, Reason.NOT_AUTHORIZED)
