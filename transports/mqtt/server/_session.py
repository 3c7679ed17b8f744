"""One MQTT client's connection: binds the protocol to an account, an outlet and the dataspace.

Rules of this file, beyond those of every session (`.._session`):
1. Funds are looked at before each packet that could cost something (rule 9).
2. While the connection waits, acknowledgements and pings are still taken out of a bounded stretch
   of its input (rule 10); publications in that stretch stay in order.
3. However the connection ends, its subscriptions are taken back and its will is published (or not,
   as it was agreed), on the connection's own account (rule 2).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

import trio

from ....accounts import Account, commit_run
from ....dataspace import Batch, Publication
from ..._direct_send import commit_and_send
from ..._errors import RemoteProtocolError
from ..._input import AHEAD_FLOOR
from ..._link import Link
from ..._need_data import NEED_DATA
from ..._scheduler import SLICE_SECONDS
from ..._session import (
    FLUSH_POLL_SECONDS,
    LOOK_AHEAD_BYTES,
    LOOK_AHEAD_PAUSE_SECONDS,
    Session,
)
from ..codec._connection import Connection, Role, State
from ..codec._frames import PUBACK, PUBCOMP, PUBLISH, PUBREC, PUBREL
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
    encode_publish,
)
from ..codec._packets5 import PROTOCOL_LEVEL_5
from ..codec._reasons import Reason, reason_of
from ._billing import Billing
from ._client import Client
from ._entry import Entry
from ._filters import Filters
from ._inflight import Inflight
from ._leaving import PEEK_BYTES, disconnect_has_come, has_disconnect
from ._login import Login
from ._lookahead import Lookahead
from ._mqtt5 import MQTT5, Mqtt5, seconds_of
from ._permissions import Writable
from ._persistent_inflight import PersistentInflight
from ._persistent_sessions import PersistentSession
from ._publisher import Publisher
from ._reframe import as_mqtt311
from ._replays import Replays
from ._runs import (
    REFUSED_PUBREC,
    STRETCH_BYTES,
    Run,
    Single,
    clears_retained,
    find_run,
    is_disconnect,
    publications,
    topic_key,
)
from ._sender import Sender
from ._subscriber import Subscriber
from ._subscriptions import PersistentSubscriptions, VolatileSubscriptions

if TYPE_CHECKING:
    from ._server import MqttServer

PROGRESS_BYTES = 1024
"""A read this large counts as a sign of life though it does not complete a packet: a large packet
on a slow line. A byte a second does not."""

KEEP_ALIVE_GRACE = 1.5
"""[MQTT-3.1.2-24]."""

NO_TOPIC = b"\0\0"
"""The topic of a packet that has an alias for it (MQTT 5), as it stands there."""

RUNS_A_LOOK = 64
"""Copies of runs that are handed over, and runs, and sixteens of what is in them, before the clock
is looked at: each is some microseconds."""

AHEAD_BYTES = 4 << 10
"""How much input is looked through at once, by a connection that waits: 2,000 pings."""

OVERTAKING: dict[int, Callable[[int], Packet]] = {
    PUBACK: PubAck,
    PUBREC: PubRec,
    PUBREL: PubRel,
    PUBCOMP: PubComp,
    REFUSED_PUBREC: partial(PubRec, reason=Reason.UNSPECIFIED_ERROR),
}
"""The acknowledgements, by their first byte."""


def frame(item: Publication | bytes) -> bytes:
    """Make bytes of what reaches an outlet: a publication for at-most-once, or a packet."""
    if isinstance(item, bytes):
        return item
    return encode_publish(item.topic, item.payload, retain=item.retain)


class MqttSession(Session["MqttServer", Account | None]):
    """One client's connection.

    Attributes:
        client_id: As the client said, or as the server named it; "" before CONNECT.
        account: Who pays for what it causes; None before CONNECT.
    """

    __slots__ = (
        "_ahead", "_connection", "_entry", "_listener", "_login", "_most", "_mqtt5", "_payers",
        "_publisher", "_replays", "_sender", "_short", "_single", "_single_topic", "_steps",
        "_subscriber", "_writable", "client_id",
    )  # fmt: skip

    _unacknowledged_are = "publications with QoS 1 were not acknowledged"

    def __init__(self, server: MqttServer, link: Link, listener: str) -> None:
        # Until it has said who it is, it is known by where it comes from.
        super().__init__(server, link, link.peer, frame=frame)
        settings = server.settings
        self._listener = listener
        self._connection = Connection(
            Role.SERVER,
            max_packet_size=settings.max_packet_size,
            topic_limits=server.topics,
            max_topic_alias=settings.max_topic_alias,
            max_connect_size=settings.max_connect_size,
        )
        self._sender = Sender(server, link, self.outlet, self._connection)
        self._login = Login(server, link, self._sender)
        # What there is besides if it speaks MQTT 5.
        self._mqtt5: Mqtt5 | None = None
        # How much is looked at for one run; 0: all that there is.
        self._most = 0
        # What came while it waited, until all that is whole of it has been taken up.
        self._ahead: Lookahead | None = None
        self.client_id = ""
        self.account = None
        # What is left of a packet that is handled in steps; nothing else is handled before.
        self._steps: Iterator[trio.Event | None] | None = None
        self._entry: Entry | None = None
        self._publisher: Publisher | None = None
        self._subscriber: Subscriber | None = None
        # Who pays for what it publishes; and which of these it waits for.
        self._payers: Billing | None = None
        # The routes of what it may publish; None: everything.
        self._writable: Writable | None = None
        self._short: Account | None = None
        # What the read before was, if it was one publication; and the topic that was on.
        self._single: Single | None = None
        self._single_topic = ""
        self._replays = Replays()

    def __repr__(self) -> str:
        return f"<MqttSession {self.name}: {self._connection.state.value}>"

    @property
    def _who(self) -> str:
        """The client, for the log."""
        peer = self._link.peer
        return f"{self.name} ({peer})" if self.client_id else peer

    @property
    def _account_name(self) -> str | None:
        return self.name if self.client_id else None

    # -- the connection's life ------------------------------------------------------------------

    def _ending(self) -> str | None:
        """See `Session._ending`."""
        if self._connection.state is State.CLOSED:
            return "the client disconnected"
        return self._cut_off() if self._eof else None

    def _resume(self, account: Account) -> bool:
        """Tell of what is retained."""
        replays = self._replays
        subscriber = self._subscriber
        if not replays or self._steps is not None or subscriber is None:
            return False
        work = self._work
        work.begin_now()
        with self._server.flusher.corked():
            while replays and account.funds_are_clear() and not work.is_over():
                subscriber.replay()
        work.end()
        return True

    def _received(self, data: bytes) -> None:
        if not data:
            self._eof = True
            return
        self._connection.receive_data(data)
        self._server.counters.received_bytes += len(data)
        if len(data) >= PROGRESS_BYTES and self.account is not None:
            self._last = self._server.ledger.clock()

    def _cut_off(self) -> str:
        if self._link.fault is not None:
            raise self._link.fault
        left = self._unparsed()
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
        answers = publisher.answers
        if answers and self._server.kept is not None:
            self._server.kept.keeping.hurry()
            while answers and not self._eof:  # noqa: ASYNC110 (as the other one)
                await trio.sleep(FLUSH_POLL_SECONDS)
        subscriptions = subscriber.subscriptions
        if self._server.keeps_for_later:
            if isinstance(subscriptions.inflight, PersistentInflight):
                subscriptions.inflight.pause()
            if subscriptions.shares is not None:
                subscriptions.shares.pause()
        self._waiting = True
        await super()._flush_out()

    async def _held(self, hold: trio.Event) -> None:
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

    async def _take_leave(self, why: str) -> None:
        """See `Session._take_leave`; who has left already has read what it wanted to."""
        if not self._eof:
            self._part(
                Reason.SERVER_SHUTTING_DOWN if self._server.stopping else self._sender.parting, why
            )
        if not (self._eof or self._link.says_goodbye):
            await super()._take_leave(why)

    async def _say_why(self, fault: RemoteProtocolError) -> None:
        """See `Session._say_why`: MQTT 5 can."""
        if self._connection.version != PROTOCOL_LEVEL_5 or self.account is None:
            return
        if self._part(reason_of(fault), str(fault)) and not self._link.says_goodbye:
            # Closed with input unread, the kernel would drop what the client has not read yet.
            await self._linger()

    def _part(self, reason: int, why: str) -> bool:
        """See `Sender.disconnect`."""
        told = self._sender.disconnect(reason, why)
        if self._connection.state is State.CLOSED:
            self._stop_answering()  # nothing follows it [MQTT-3.14.4-1]
        return told

    def _stop_answering(self) -> None:
        if self._publisher is not None:
            self._publisher.stop_answering()

    def _unacknowledged(self) -> Inflight | PersistentInflight | None:
        subscriber = self._subscriber
        return None if subscriber is None else subscriber.subscriptions.inflight

    def _withdraw(self, reason: str) -> None:
        """Take back the subscriptions, publish the will, and give up the name."""
        server = self._server
        self._give_up_name()
        account, entry = self.account, self._entry
        if entry is not None:
            entry.leave()
        if account is None:
            if entry is not None:
                entry.end_will(None, None)
            text = f"{self._link.peer} left before it was connected: {reason}"
            self._log(logging.INFO, "left", text, reason)
            return
        # What its going makes room for may be taken now, and there is nobody to be told.
        self._stop_answering()
        self.account = self._sender.account = None
        server.ledger.faults.call(
            self, "taking back its subscriptions", self._unsubscribe_all, account
        )
        self._steps = None
        self._replays.clear()
        if entry is not None:
            entry.end_will(account, self._payers)
        server.logger.info(
            "%s (%s) left: %s",
            self.name,
            self._link.peer,
            reason,
            extra=self._fields("left", reason),
        )

    def _give_up_name(self) -> None:
        sessions, entry = self._server.sessions, self._entry
        if entry is not None and sessions.get(entry.key) is self:
            del sessions[entry.key]

    def give_way(self) -> None:
        """End at once: another connection has come with the client identifier [MQTT-3.1.4-2]."""
        what = "another connection came with its identifier"
        tell = partial(self._part, Reason.SESSION_TAKEN_OVER, what)
        self._server.ledger.faults.call(self, "telling it that it is taken over", tell)
        why = "another connection came with the same client identifier"
        self.cut(why)
        self._retire(why)

    def _unsubscribe_all(self, account: Account) -> None:
        subscriber, entry = self._subscriber, self._entry
        assert entry is not None
        steps = iter(()) if subscriber is None else subscriber.subscriptions.leaving()
        self._server.partings.take_back(entry.key, account, self._work, steps)

    def _is_of_peer(self, whose: object) -> bool:
        """See `Session.has`."""
        kept = self._kept
        return super()._is_of_peer(whose) or (kept is not None and whose is kept.queue)

    @property
    def _kept(self) -> PersistentSession | None:
        return None if self._entry is None else self._entry.kept

    def _close(self) -> None:
        self._give_up_name()  # `_withdraw` has failed
        self._connection.close()
        self._ahead = None
        self._stop_answering()
        kept, sessions = self._kept, self._server.kept
        if (
            kept is not None
            and sessions is not None
            and kept.expiry == 0
            and kept.is_current
            and self._unacknowledged() is not None  # it has been let in
        ):
            sessions.discard(kept.key)  # nothing of it is under way any more
        self._publisher = self._subscriber = None
        self._short = None
        payers, self._payers = self._payers, None
        for payer in () if payers is None else payers.close():
            self._server.tree.close(payer)

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
        connection, ahead = self._connection, self._ahead
        # Something has been collected only if something is missing.
        held = connection.held_bytes if connection.missing else len(connection.buffer)
        return held if ahead is None else held + ahead.size

    def _let_go(self) -> None:
        """See `Session._let_go`."""
        self._connection.let_go()

    def _share(self) -> tuple[str, int | None]:
        """See `Session._share`: its user's, if it is known that it is."""
        entry = self._entry
        if self.account is None or entry is None:
            return self._server.input.before_login(self._link.peer)
        return entry.share

    def _drop_input(self, why: str) -> None:
        """See `Session._drop_input`; nothing that comes after this is parsed."""
        self._part(Reason.QUOTA_EXCEEDED, why)
        self._connection.close()
        self._ahead = self._single = None
        super()._drop_input(why)

    # -- who pays -------------------------------------------------------------------------------

    @property
    def payer(self) -> Account | None:
        """Whose funds it waits for, if it does."""
        return self._payer()

    def _payer(self) -> Account | None:
        """See `Session._payer`: who pays for the publication that is next, if that is known.

        Nobody does before the client has been let in.
        """
        if self._connection.state is State.AWAITING_CONNACK:
            return None
        return self.account if self._short is None else self._short

    def _payer_at(self, buffer: bytes, position: int) -> Account | None:
        """Return who pays for the packet at `position`, as far as that can be told."""
        payers = self._payers
        if payers is None:
            return None
        if not payers.by_topic or position >= len(buffer) or buffer[position] & 0xF0 != PUBLISH:
            return payers.own
        key = topic_key(buffer, position)
        if key == NO_TOPIC and self._mqtt5 is not None:
            key = self._connection.aliased_key(position)
        return payers.own if key is None else payers.of_key(key)

    # -- waiting --------------------------------------------------------------------------------

    async def _wait_for_clear_funds(self, account: Account) -> bool:
        """See `Session._wait_for_clear_funds`."""
        if account is self.account:
            return await super()._wait_for_clear_funds(account)
        # Its client is not read for what another account owes: so that is whose reader those wait
        # on who wait on its client (rule 11).
        self._own(account)
        try:
            return await super()._wait_for_clear_funds(account)
        finally:
            if self.account is not None:
                self._own(self.account)

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
        connection = self._connection
        ahead = self._ahead
        data = b""
        if ahead is None:
            ahead = self._ahead = Lookahead(reasons=connection.version == PROTOCOL_LEVEL_5)
            data = connection.take_unparsed()
        allowance = LOOK_AHEAD_BYTES
        while True:
            if data and not await self._add_ahead(ahead, data):
                return
            data = b""
            self._note_input(ahead=True)
            subscriber = self._subscriber
            found = None if subscriber is None else subscriber.subscriptions
            if self._eof and found is not None and found.inflight is not None:
                # Nothing more will be acknowledged; what others may have instead they get now.
                if found.shares is not None:
                    found.shares.close()
                found.inflight.close()
            if not ahead.has_whole_packets and not connection.unparsed_bytes:
                self._left = self._eof
                if self._eof or ahead.begins_with_disconnect:
                    self._replays.clear()  # who leaves is told nothing more
                    wait.cancel()
            unparsed = self._unparsed()
            if self._eof or (self._unacknowledged() is None and unparsed >= LOOK_AHEAD_BYTES):
                return
            # A client that reads nothing must not fill its outlet with answers to its pings; but
            # what makes it read may be that it can get rid of its acknowledgements.
            if (self.outlet.blocked and allowance <= 0) or unparsed >= self._stretch():
                await trio.sleep(LOOK_AHEAD_PAUSE_SECONDS)
                continue
            try:
                data = await self._link.receive()
            except OSError:
                data = b""  # it will be found again when its turn comes
            self._received_ahead(data)
            if self.outlet.blocked:
                allowance -= len(data)

    async def _add_ahead(self, ahead: Lookahead, data: bytes) -> bool:
        """Keep what came, and handle what overtakes; False if the connection has ended.

        Cancellation: it is shielded, as what is handled has been taken out of the input.
        """
        work = self._work
        work.begin_now()
        for start in range(0, len(data), AHEAD_BYTES):
            piece = data if len(data) <= AHEAD_BYTES else data[start : start + AHEAD_BYTES]
            for first, packet_id in ahead.add(piece, self._connection.unparsed_bytes):
                self._acknowledge(first, packet_id)
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

    def _received_ahead(self, data: bytes) -> None:
        """Note that something came while it waits; as `_received`, which hands it on, too."""
        if not data:
            self._eof = True
            return
        self._server.counters.received_bytes += len(data)
        if len(data) >= PROGRESS_BYTES and self.account is not None:
            self._last = self._server.ledger.clock()

    def _unparsed(self) -> int:
        """How much input is held."""
        ahead = self._ahead
        return self._connection.unparsed_bytes + (0 if ahead is None else ahead.size)

    def _take_up(self) -> bool:
        """Parse what came while it waited, if that is not done; whether there was any of it."""
        ahead = self._ahead
        assert ahead is not None
        data = ahead.take_up()
        if not data:
            # What is not whole yet is joined to what comes next, as ever.
            data = ahead.take_rest()
            self._ahead = None
        self._connection.receive_data(data)
        return bool(data)

    def _acknowledge(self, first: int, packet_id: int) -> None:
        try:
            self._handle(OVERTAKING[first](packet_id) if packet_id else PingReq())
        except RemoteProtocolError as exc:
            # Not raised: this is another task than the one that serves the connection.
            self._server.counters.protocol_errors += 1
            why = str(exc)
            self._server.logger.warning(
                "%s closed: %s", self._who, why, extra=self._fields("closed", why)
            )
            self._sender.cut(why, reason_of(exc))

    # -- what came in ---------------------------------------------------------------------------

    def _handle_input(self) -> bool:
        connection = self._connection
        server = self._server
        dataspace = server.dataspace
        work = self._work
        self._short = None
        if self._steps is not None and not self._go_on(self._steps):
            return True
        if self._replays:
            # What is retained comes before what the client says next, which may ask for it again.
            return True
        payers = self._payers
        payer_of = payers.of_key if payers is not None and payers.by_topic else None
        writable = self._writable
        unseen = RUNS_A_LOOK
        while True:
            buffer = connection.buffer
            position = connection.position
            if position >= len(buffer):
                if self._ahead is None or not self._take_up():
                    # What has been handled is let go now: noting held input costs more.
                    connection.buffer = b""
                    connection.position = 0
                    return False
                continue
            if unseen <= 0:
                if work.is_over():
                    return True
                unseen = RUNS_A_LOOK
            if buffer[position] == PUBLISH:
                account = self._payer_at(buffer, position) if payer_of else self.account
                if account is not None:
                    is_long = len(buffer) - position > STRETCH_BYTES
                    began = work.clock() if is_long else 0.0
                    run = find_run(
                        buffer,
                        position,
                        dataspace.routes.by_key if writable is None else writable.known,
                        server.resolve if writable is None else writable.resolve,
                        account.room(),
                        connection.max_packet_size,
                        payer_of,
                        properties=self._mqtt5 is not None,
                        most=self._most,
                    )
                    if is_long:
                        took = work.clock() - began
                        if took > SLICE_SECONDS / (4 if self._most else 1):
                            self._most = STRETCH_BYTES
                        else:
                            self._most = 0
                    if run is not None:
                        if run.count:
                            self._forward(account, run)
                        if run.cut:
                            self._short = account
                            return True
                        unseen -= 1 + len(run.destinations.holders) + (run.count >> 4)
                        continue
            account = self._payer_at(buffer, position) if payer_of else self.account
            if (
                account is not None
                and not account.funds_are_clear()
                and connection.state is State.CONNECTED
                and not is_disconnect(buffer, position)
                # An alarm stops publications, and what comes after them; not what frees memory.
                and (
                    not account.debt_is_clear()
                    or (
                        buffer[position] & 0xF0 == PUBLISH
                        and not clears_retained(
                            buffer,
                            position,
                            connection.max_packet_size,
                            properties=self._mqtt5 is not None,
                        )
                    )
                )
            ):
                self._short = account
                return True
            try:
                packet = connection.next_packet()
            except UnacceptableConnectError as exc:
                server.counters.refused += 1
                self._sender.refuse(exc.return_code, str(exc), exc.max_packet_size)
                raise
            if packet is NEED_DATA:
                return False
            if self.account is not None:  # the time that it has to be let in goes on
                self._last = server.ledger.clock()
            self._handle(packet)
            if self._replays or self._hold is not None or self._steps is not None:
                return True  # what comes next waits for these, DISCONNECT too
            if work.is_over():
                return True

    def _go_on(self, steps: Iterator[trio.Event | None]) -> bool:
        """Go on with a packet that is handled in steps; whether it has been handled.

        A step may yield what has to happen before the next one.
        """
        self._steps = None  # nothing is left of one that fails
        is_over = self._work.is_over
        for hold in steps:
            if hold is not None:
                self._hold = hold
            if hold is not None or is_over():
                self._steps = steps
                return False
        return True

    def _fast_path(self, data: bytes) -> bool | None:
        """See `Session._fast_path`: forwards one publication that is just like the one before.

        The same as `find_run` and `_forward` would do, at half of the cost: it is most of what
        those cost who have one message in flight.
        """
        single = self._single
        if single is None or len(data) != single.size or not data.startswith(single.header):
            return None
        connection = self._connection
        if connection.position < len(connection.buffer) or connection.missing or self._replays:
            return None  # it is not all there is
        server = self._server
        dataspace = server.dataspace
        account = self.account
        route = dataspace.routes.by_key.get(single.key)
        if account is None or route is None or route.run is None or not account.is_open_wide():
            return None
        if single.plain:
            batch = Batch(single.plain + data[len(single.header) :], 1, publications, single.topic)
            batch.framed = {MQTT5: data}
        else:
            batch = Batch(data, 1, publications, single.topic)
        dataspace.route_run(account, batch, route.run.holders, commit_and_send)
        counters = server.counters
        counters.received += 1
        counters.received_bytes += single.size
        self._last = server.ledger.clock()
        return account.is_open_wide() and not server.flusher.dirty

    def _forward(self, account: Account, run: Run) -> None:
        """Hand a run of publications to whom it concerns, as it is."""
        server = self._server
        connection = self._connection
        buffer = connection.buffer
        end = run.end
        if run.count == 1 and run.last and end == len(buffer) and not connection.position:
            self._note_single(buffer, run.topic)
        # A slice of everything is the buffer itself: no copy.
        frames = buffer[connection.position : end]
        if self._mqtt5 is None:
            batch = Batch(frames, run.count, publications, run.topic)
        else:
            batch = Batch(as_mqtt311(frames), run.count, publications, run.topic)
            batch.framed = {MQTT5: frames}
        # What nothing follows need not wait to be sent with it.
        commit = commit_and_send if run.last else commit_run
        server.dataspace.route_run(account, batch, run.destinations.holders, commit)
        server.counters.received += run.count
        connection.position = end
        self._last = server.ledger.clock()

    def _note_single(self, packet: bytes, topic: str) -> None:
        """Remember a read of one publication, if the one before was on the same topic."""
        if topic is not self._single_topic:
            self._single_topic = topic
            self._single = None
        elif self._payers is not None and not self._payers.by_topic:
            self._single = Single.of(packet, topic, properties=self._mqtt5 is not None)

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
                self._handle_connect(packet)
            case Auth() if self._login.authentication is not None:
                self._let_in(self._login.step(packet))
            case Disconnect():
                self._handle_disconnect(packet)
                # What does is refused here; a run of publications would be routed [MQTT-3.14.4-2].
                self._connection.next_packet()
            case _:
                raise AssertionError(packet)  # the connection lets nothing else through

    def _handle_disconnect(self, packet: Disconnect) -> None:
        """Let a client go; in MQTT 5 it may want its will published, or its session kept longer."""
        self._stop_answering()  # nothing is sent to it any more [MQTT-3.14.4-1]
        inflight = self._unacknowledged()
        if isinstance(inflight, PersistentInflight):
            inflight.leave()
        entry = self._entry  # None: it gives up while it authenticates
        if packet.reason == 0 and entry is not None:
            entry.keep_will(None)  # whatever may follow [MQTT-3.14.4-3]
        interval = packet.properties.session_expiry
        five = self._mqtt5
        if interval is not None and five is not None:
            five.expiry = seconds_of(interval)
            if entry is not None and entry.kept is not None:
                entry.kept.expiry = self._server.expiry_of(five.expiry)

    # -- CONNECT --------------------------------------------------------------------------------

    def _handle_connect(self, packet: Connect) -> None:
        server = self._server
        if packet.protocol_level == PROTOCOL_LEVEL_5:
            five = Mqtt5(packet, Filters(), server.wall, server.settings.max_topic_alias)
            self._mqtt5 = self._sender.mqtt5 = five
        self._let_in(self._login.begin(packet))

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

    async def _read_until_it_leaves(self, check: trio.CancelScope) -> None:
        """Read a bounded stretch while its password is checked; end the check if it leaves.

        Who has said something behind its CONNECT before it left is to be heard.
        """
        while not self._eof and self._unparsed() < AHEAD_FLOOR:
            self._note_input(ahead=True)
            try:
                data = await self._link.receive()
            except OSError:
                data = b""
            self._received(data)
        self._note_input(ahead=True)
        if not self._unparsed():
            check.cancel()

    def _begin(self, packet: Connect) -> Iterator[trio.Event | None]:
        """Let a client in, in steps: nothing may be left of who had its identifier before.

        Raises:
            RemoteProtocolError: If it cannot be, for want of room or because somebody else has its
                identifier; the client has been told.
        """
        server = self._server
        self._last = server.ledger.clock()
        entry = Entry(server, self._link, self._listener, self._login, self._mqtt5, packet)
        yield from entry.take_over(packet)
        self._entry = entry
        will = entry.take_places(packet)
        peer = entry.peer
        self.client_id = entry.client_id
        if entry.rights is not None and server.authority.restricts_writing:
            self._writable = Writable(entry.rights, server)
        self._close_input()  # what it sends from now on is its user's
        name = peer.name
        present = entry.take_session(packet)
        server.came_back(entry.key, to_its_session=present)
        server.sessions[entry.key] = self
        self.name = self.outlet.name = name
        # Known by name: who comes back finds its debt waiting (rule 14).
        membership = server.tree.of(peer)
        self.account = self._sender.account = server.open_account(peer, membership.tenant)
        open_other = partial(server.open_account, peer, own=False)
        self._payers = payers = Billing(self.account, membership, open_other)
        server.dealings.begin(self.outlet, name, peer.client)
        # A client that is not read may not read either: two of them are a ring (rule 11).
        self.outlet.owner = self.account
        five, kept = self._mqtt5, entry.kept
        client = Client.of(entry, self.account, payers, self._sender, packet, self.complain)
        resumed = None if kept is None else PersistentSubscriptions(client, kept)
        subscriptions = VolatileSubscriptions(client) if resumed is None else resumed
        version = self._connection.version
        self._publisher = Publisher(client)
        self._subscriber = Subscriber(client, subscriptions, self._replays, version)
        if resumed is not None:
            yield from resumed.attaching()
        entry.keep_will(will)
        keep_alive = server.keep_alive_of(packet.keep_alive, told=five is not None)
        self._deadline_after = (
            keep_alive * KEEP_ALIVE_GRACE if keep_alive else server.settings.idle_timeout
        )
        # MQTT 3.1 cannot say that there was a session.
        entry.welcome(packet, self._sender, present=present and version != PROTOCOL_LEVEL_31)
        self._known = True
        self._server.logger.info(
            "%s connected from %s", self.name, self._link.peer, extra=self._fields("connected")
        )
        if resumed is not None:
            resumed.resume(self._says_disconnect)

    def rules_changed(self) -> None:
        """End what is no longer allowed: what its rights are may be something else now.

        What is on its way in bytes cannot be told apart any more: if something of that may not be
        read, the connection ends. A session that is kept goes on when its client is back.
        """
        self._single = None
        rights = None if self._entry is None else self._entry.rights
        if rights is None:
            return
        if self._subscriber is not None:
            self._subscriber.rules_changed()
        if self.outlet.unsent and rights.reads_less:
            rights.denied.connection += 1
            why = "it may not read any more what is on its way to it"
            self._sender.cut(why, Reason.NOT_AUTHORIZED)

    def _says_disconnect(self) -> bool:
        """Whether the client has said DISCONNECT, as far as that can be told before its turn.

        It is not looked for where something is to be sent already: what comes next goes with it.
        """
        unparsed = self._unparsed()
        if self.outlet.unsent or unparsed > PEEK_BYTES:
            return False
        if unparsed:
            return has_disconnect(self._connection.buffer[self._connection.position :])
        return disconnect_has_come(self._link.sock)
