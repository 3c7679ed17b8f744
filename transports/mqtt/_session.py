"""One MQTT client's connection: binds the protocol to an account, an outlet and the dataspace.

Rules of this file:
1. Funds are looked at before each packet that could cost something (rule 9), and whatever was
   handed over is sent before the reader waits: it would wait for its own unsent loans.
2. While it waits, acknowledgements and pings are still taken out of a bounded stretch of its input
   (rule 10); publications in that stretch stay in order.
3. However the connection ends, its subscriptions are taken back, its will is published (or not, as
   it was agreed), what its outlet held is settled and its account is closed: in one step, without
   awaiting, on the connection's own account (rule 2).
"""

from __future__ import annotations

import contextlib
import logging
import socket
from collections.abc import Iterator
from typing import TYPE_CHECKING

import attrs
import trio

from ...accounts import DEFAULT_LIMIT_BYTES, Account, QuotaExceededError
from ...dataspace import Batch, Observation, Publication, TopicFilter
from .._errors import RemoteProtocolError
from .._flusher import OUTLETS_A_STEP
from .._link import Link
from .._outlet import Outlet
from ._connection import NEED_DATA, Connection, Role, State
from ._identifiers import AwaitingRelease
from ._inflight import Inflight
from ._packets import (
    SUBSCRIPTION_FAILED,
    ConnAck,
    Connect,
    ConnectReturnCode,
    Disconnect,
    Packet,
    PingReq,
    PingResp,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    SubAck,
    Subscribe,
    UnacceptableConnectError,
    UnsubAck,
    Unsubscribe,
    Will,
    encode_publish,
)
from ._runs import (
    PING_REQUEST,
    PLAIN_PUBLISH,
    PUBACK,
    Run,
    find_run,
    publications,
    take_acknowledgements,
)

if TYPE_CHECKING:
    from ._server import MqttServer

logger = logging.getLogger("clearfunds.transports.mqtt")

LOOK_AHEAD_BYTES = 128 << 10
"""How much unparsed input a connection that waits may have (rule 10): two reads. While it has
something to acknowledge it may have as much as its limit in bytes, or `DEFAULT_LIMIT_BYTES`:
clients write all that they may have in flight before the first acknowledgement, and it may be just
that which is waited for."""

LOOK_AHEAD_PAUSE_SECONDS = 0.05
"""How often it is looked whether a client that neither reads nor is read has begun to read, or has
been sent something to acknowledge."""

PROGRESS_BYTES = 1024
"""A read this large counts as a sign of life though it does not complete a packet: a large packet
on a slow line. A byte a second does not."""

KEEP_ALIVE_GRACE = 1.5
"""[MQTT-3.1.2-24]."""

FLUSH_POLL_SECONDS = 0.01
"""How often an orderly stop looks whether everything has gone out."""

LINGER_SECONDS = 1.0
"""How long, at an orderly stop, a client may take to close a connection that is closed for it."""

SERVER_TOPICS = "$SYS/"
"""What clients cannot publish to."""

WARN_SECONDS = 1.0
"""How often at most one connection's faults are logged, where they do not end it."""

REPLAY_STEP = 256
"""Retained publications sent before anything else of this connection is looked at."""

MAX_GRANTED_QOS = 1

DISCONNECT = b"\xe0\x00"
"""The packet that costs nothing."""


def frame(item: Publication | bytes) -> bytes:
    """Make bytes of what reaches an outlet: a publication for at-most-once, or a packet."""
    if isinstance(item, bytes):
        return item
    return encode_publish(item.topic, item.payload, retain=item.retain)


def printable(name: str) -> str:
    """Return a name that a peer has chosen, fit for a log line and a label."""
    return name if name.isprintable() else name.encode("unicode_escape").decode()


class Session:
    """One client's connection.

    Attributes:
        client_id: As the client said, or as the server named it; "" before CONNECT.
        name: What an operator knows it by: `listener/user/client`.
        account: Who pays for what it causes; None before CONNECT.
        outlet: The way out.
    """

    __slots__ = (
        "__weakref__", "_awaiting", "_connection", "_deadline_after", "_eof", "_gone", "_inflight",
        "_last", "_link", "_listener", "_looked_at", "_observations", "_replay", "_replays",
        "_retired", "_server", "_unsaid", "_waiting", "_warned", "_will", "account", "client_id",
        "name", "outlet",
    )  # fmt: skip

    def __init__(self, server: MqttServer, link: Link, listener: str) -> None:
        settings = server.settings
        self._server = server
        self._link = link
        self._listener = listener
        self._connection = Connection(
            Role.SERVER, max_packet_size=settings.max_packet_size, topic_limits=settings.topics
        )
        self.client_id = ""
        self.name = link.peer
        self.account: Account | None = None
        self.outlet = Outlet(
            server.ledger,
            server.flusher,
            link.sock,
            link.peer,
            frame=frame,
            on_broken=self._broken,
            patience=settings.patience,
            policy=settings.stuck,
        )
        self._inflight: Inflight | None = None
        self._awaiting: AwaitingRelease | None = None
        self._will: Will | None = None
        self._observations: dict[str, Observation] = {}
        # Subscriptions whose retained publications have still to be told of, with what was granted;
        # and how far the first of them has got.
        self._replays: dict[str, int] = {}
        self._replay: Iterator[str] | None = None
        self._eof = False
        self._gone = False
        self._waiting = False
        self._retired = False
        self._looked_at = 0
        self._warned = -WARN_SECONDS
        self._unsaid = 0
        # Silence is counted from here, and how much of it is too much.
        self._last = server.ledger.clock()
        self._deadline_after: float | None = settings.connect_timeout

    def __repr__(self) -> str:
        return f"<Session {self.name}: {self._connection.state.value}>"

    @property
    def _who(self) -> str:
        """The client, for the log."""
        peer = self._link.peer
        return f"{self.name} ({peer})" if self.client_id else peer

    # -- the connection's life ------------------------------------------------------------------

    async def run(self) -> None:
        """Serve the connection until it ends. Never raises but for `trio.Cancelled`."""
        server = self._server
        reason = "the relay stopped"
        try:
            with self._link.scope:
                reason = await self._serve()
            reason = self._link.why or reason
            if server.stopping:
                await self._flush_out()
        except RemoteProtocolError as exc:
            server.counters.protocol_errors += 1
            reason = str(exc)
            logger.warning("%s closed: %s", self._who, exc)
        except OSError as exc:
            reason = f"the connection broke: {exc.strerror or exc}"
        except Exception as exc:
            # A fault of ours ends the connection that met it, not the others.
            server.counters.internal_errors += 1
            reason = f"internal error: {exc!r}"
            logger.exception("%s closed for an error of the relay's", self._who)
        finally:
            self._retire(reason)

    async def _serve(self) -> str:
        """Read and handle until the client leaves; return why it ended."""
        connection = self._connection
        link = self._link
        server = self._server
        flusher = server.flusher
        while True:
            # What is retained comes before what the client says next, which may ask for it again.
            more = bool(self._replays) or self._process()
            if flusher.dirty:
                # What this reader may have to wait for must not sit unsent in its own hands.
                if len(flusher.dirty) <= OUTLETS_A_STEP:
                    flusher.flush_now()
                else:
                    await flusher.flush()
            if not more:
                # Who has nothing more to say need not wait until it has paid (rule 14).
                if connection.state is State.CLOSED:
                    return "the client disconnected"
                if self._eof:
                    return self._cut_off()
            account = self.account
            if account is not None:
                if not account.funds_are_clear():
                    if await self._wait_for_clear_funds(account):
                        continue
                    return self._cut_off()
                if self._replays:
                    self._replay_step(account)
                    more = True
            if more:
                await trio.lowlevel.checkpoint()
                continue
            self._received(await link.receive())

    def _received(self, data: bytes) -> None:
        if not data:
            self._eof = True
            return
        self._connection.receive_data(data)
        self._server.counters.received_bytes += len(data)
        if len(data) >= PROGRESS_BYTES and self.account is not None:
            self._last = self._server.ledger.clock()

    def _cut_off(self) -> str:
        left = self._connection.unparsed_bytes
        if left:
            return f"the client closed the connection within a packet ({left} bytes of it came)"
        return "the client closed the connection without DISCONNECT"

    async def _flush_out(self) -> None:
        """Wait until everything has gone out, and been acknowledged; an orderly stop bounds it."""
        if self.account is None:
            return
        self._waiting = True
        self._looked_at = self._connection.position
        async with trio.open_nursery() as nursery:
            # Nothing is accepted any more, but acknowledgements: they make room for the rest.
            nursery.start_soon(self._look_ahead, nursery.cancel_scope)
            # Polled: it happens once, and an event in each outlet would cost every connection.
            while self.outlet.queue or (self._inflight and not self._eof):  # noqa: ASYNC110
                await trio.sleep(FLUSH_POLL_SECONDS)
            nursery.cancel_scope.cancel()
        if self.outlet.closed or self._eof:
            return
        # Closed with input unread, the kernel would drop what the client has not taken yet.
        with contextlib.suppress(OSError), trio.move_on_after(LINGER_SECONDS):
            self._link.sock.shutdown(socket.SHUT_WR)
            while await self._link.receive():
                pass

    def unflushed(self) -> str | None:
        """Say what has not gone out, or has not been acknowledged; None if nothing is left."""
        items = sum(loan.items for loan in self.outlet.loans())
        nbytes = sum(loan.bytes for loan in self.outlet.loans())
        unacked = 0 if self._inflight is None else len(self._inflight)
        if not items and not unacked:
            return None
        return (
            f"{self.name}: {items} items ({nbytes} bytes) were not sent, {unacked} publications "
            "with QoS 1 were not acknowledged"
        )

    def _retire(self, reason: str) -> None:
        """Take back everything that this connection stands for (rule 3 of this file)."""
        if self._retired:
            return
        self._retired = True
        server = self._server
        server.flusher.flush_now()
        if server.stopping:
            unflushed = self.unflushed()
            if unflushed is not None:
                server.unflushed.append(unflushed)
        if server.sessions.get(self.client_id) is self:
            del server.sessions[self.client_id]
        account = self.account
        if account is not None:
            self.account = None
            will, self._will = self._will, None
            with account.turn() as turn:
                for observation in self._observations.values():
                    server.dataspace.unobserve(turn, observation)
            self._observations.clear()
            self._replays.clear()
            if will is not None and not server.stopping:
                self._publish_will(account, will)
            logger.info("%s (%s) left: %s", self.name, self._link.peer, reason)
        else:
            logger.info("%s left before it was connected: %s", self._link.peer, reason)
        self.outlet.close()
        if self._inflight is not None:
            self._inflight.close()
        if account is not None:
            account.close()
        self._connection.close()
        self._link.close()
        server.flusher.flush_now()

    def _publish_will(self, account: Account, will: Will) -> None:
        publication = Publication(will.topic, will.payload, will.qos, will.retain)
        fault = self._publish(account, publication)
        if fault is not None:
            self._server.counters.rejected += 1
            logger.warning("the will of %s was dropped: %s", self.name, fault)

    def _warn(self, what: str) -> None:
        """Log what the client did wrong and may go on doing: not more often than it can be read."""
        now = self._server.ledger.clock()
        if now - self._warned < WARN_SECONDS:
            self._unsaid += 1
            return
        more = f" (and {self._unsaid} more like it)" if self._unsaid else ""
        logger.warning("%s: %s%s", self.name, what, more)
        self._warned = now
        self._unsaid = 0

    def _broken(self, why: str) -> None:
        """Hear from the outlet that the connection must end."""
        self._link.cut(why)

    def cut(self, why: str) -> None:
        """End the connection from this side."""
        self._link.cut(why)

    def check_deadline(self, now: float) -> None:
        """End the connection if the client has been silent for too long."""
        if self._waiting or self._deadline_after is None:
            return  # while it is not read, its clock stands still (rule 10)
        if now - self._last > self._deadline_after:
            self._server.counters.timeouts += 1
            if self.account is None:
                why = f"no CONNECT within {self._deadline_after:g} s"
            else:
                why = f"no packet for {now - self._last:.1f} s, keep-alive is over"
            logger.warning("%s closed: %s", self._who, why)
            self._link.cut(why)

    # -- waiting --------------------------------------------------------------------------------

    async def _wait_for_clear_funds(self, account: Account) -> bool:
        """Wait until there is room, or nothing left to do with it; False if the client has gone."""
        self._waiting = True
        self._looked_at = self._connection.position
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._look_ahead, nursery.cancel_scope)
                await account.ensure_clear_funds()
                nursery.cancel_scope.cancel()
        finally:
            self._waiting = False
            self._last = self._server.ledger.clock()
        return not self._gone

    async def _look_ahead(self, wait: trio.CancelScope) -> None:
        """Take acknowledgements and pings out of the input while the rest of it waits (rule 10).

        Ends when the stretch is full, at the end of the stream, or at something that is not
        whole and valid; that is found in its turn. Where nothing is left that costs anything, and
        the client has left, it ends the wait.
        """
        connection = self._connection
        allowance = LOOK_AHEAD_BYTES
        passed: set[int] = set()
        while True:
            taken, connection.buffer, self._looked_at = take_acknowledgements(
                connection.buffer, self._looked_at, passed
            )
            if taken:
                for first, packet_id in taken:
                    self._acknowledge(first, packet_id)
                self._server.flusher.flush_now()
            if self._eof and self._inflight is not None:
                self._inflight.close()  # nothing more will be acknowledged
            if self._looked_at == connection.position:  # nothing whole is kept
                self._gone = self._eof
                if self._eof or connection.buffer.startswith(DISCONNECT, connection.position):
                    self._replays.clear()  # who leaves is told nothing more
                    self._replay = None
                    wait.cancel()
            unparsed = connection.unparsed_bytes
            if self._eof or (self._inflight is None and unparsed >= LOOK_AHEAD_BYTES):
                return
            # A client that reads nothing must not fill its outlet with answers to its pings; but
            # what makes it read may be that it can get rid of its acknowledgements.
            if (self.outlet.blocked and allowance <= 0) or unparsed >= self._stretch():
                await trio.sleep(LOOK_AHEAD_PAUSE_SECONDS)
                continue
            before = connection.position
            try:
                data = await self._link.receive()
            except OSError:
                data = b""  # it will be found again when its turn comes
            self._received(data)
            if self.outlet.blocked:
                allowance -= len(data)
            # Joining the new input to the old moves the old to the front of the buffer.
            self._looked_at -= before - connection.position

    def _stretch(self) -> int:
        """How much unparsed input this connection may have while it waits."""
        if self._inflight is None or not self._inflight.unacked:
            return LOOK_AHEAD_BYTES
        limit = self._server.settings.limit.bytes
        return max(LOOK_AHEAD_BYTES, DEFAULT_LIMIT_BYTES if limit is None else limit)

    def _acknowledge(self, first: int, packet_id: int) -> None:
        if first == PING_REQUEST:
            self._handle(PingReq())
        else:
            self._handle(PubAck(packet_id) if first == PUBACK else PubRel(packet_id))

    # -- what came in ---------------------------------------------------------------------------

    def _process(self) -> bool:
        """Handle what was read; True when it stopped for want of funds, or to let others run."""
        flusher = self._server.flusher
        flusher.corks += 1  # as `Flusher.corked`, which costs 1 us more for each read
        try:
            return self._handle_input()
        finally:
            flusher.corks -= 1

    def _handle_input(self) -> bool:
        connection = self._connection
        server = self._server
        dataspace = server.dataspace
        while True:
            buffer = connection.buffer
            position = connection.position
            if position >= len(buffer):
                if connection.state is State.CONNECTED:
                    return False
            elif buffer[position] == PLAIN_PUBLISH:
                account = self.account
                if account is not None:
                    run = find_run(
                        buffer,
                        position,
                        dataspace.routes.by_key,
                        server.resolve,
                        account.room(),
                        connection.max_packet_size,
                    )
                    if run is not None:
                        if run.count:
                            self._forward(account, run)
                        if run.cut:
                            return True
                        continue
            account = self.account
            if (
                account is not None
                and not account.funds_are_clear()
                and connection.state is State.CONNECTED
                and not buffer.startswith(DISCONNECT, position)
            ):
                return True
            try:
                packet = connection.next_packet()
            except UnacceptableConnectError as exc:
                server.counters.refused += 1
                self._refuse(exc.return_code)
                raise
            if packet is NEED_DATA:
                return False
            self._last = server.ledger.clock()
            self._handle(packet)
            if self._replays:
                return True

    def _forward(self, account: Account, run: Run) -> None:
        """Hand a run of publications to whom it concerns, as it is."""
        server = self._server
        connection = self._connection
        buffer = connection.buffer
        # A slice of everything is the buffer itself: no copy.
        batch = Batch(buffer[connection.position : run.end], run.count, publications)
        server.dataspace.route_run(account, batch, run.destinations.holders)
        server.counters.received += run.count
        connection.position = run.end
        self._last = server.ledger.clock()

    def _handle(self, packet: Packet) -> None:
        match packet:
            case Publish():
                self._handle_publish(packet)
            case PubAck(packet_id):
                if self._inflight is not None:
                    self._inflight.acknowledged(packet_id)
            case PubRel(packet_id):
                if self._awaiting is not None:
                    self._awaiting.release(packet_id)
                self._send(PubComp(packet_id))
            case PingReq():
                self._send(PingResp())
            case Subscribe():
                self._handle_subscribe(packet)
            case Unsubscribe():
                self._handle_unsubscribe(packet)
            case Connect():
                self._handle_connect(packet)
            case Disconnect():
                self._will = None  # whatever may follow [MQTT-3.14.4-3]
                # What does is refused here; a run of publications would be routed [MQTT-3.14.4-2].
                self._connection.next_packet()
            case _:
                # Nothing was sent with QoS 2: there is nothing to receive or complete.
                msg = (
                    f"{type(packet).__name__.upper()} for packet {getattr(packet, 'packet_id', 0)}:"
                    " nothing was sent to this client with QoS 2 (section 4.3.3)"
                )
                raise RemoteProtocolError(msg)

    def _send(self, packet: Packet) -> None:
        """Send a packet of the connection's own, on its own account (rule 2)."""
        data = self._connection.send(packet)
        account = self.account
        assert account is not None
        account.borrow(1, len(data))
        self.outlet.hold(account, data, 1, len(data), self._server.ledger.clock())

    # -- CONNECT --------------------------------------------------------------------------------

    def _refuse(self, return_code: int) -> None:
        data = self._connection.send(ConnAck(False, return_code))
        # Nobody owes for it: there is no account yet, and the connection ends here.
        with contextlib.suppress(OSError):
            self._link.sock.send(data)

    def _handle_connect(self, packet: Connect) -> None:
        server = self._server
        settings = server.settings
        if len(packet.client_id.encode()) > settings.max_client_id:
            server.counters.refused += 1
            self._refuse(ConnectReturnCode.IDENTIFIER_REJECTED)
            msg = (
                f"the client identifier has {len(packet.client_id.encode())} bytes, more than the "
                f"{settings.max_client_id} allowed here (max_client_id)"
            )
            raise RemoteProtocolError(msg)
        self.client_id = packet.client_id or server.new_client_id()
        old = server.sessions.get(self.client_id)
        if old is not None:
            # [MQTT-3.1.4-2]; in one step, so that its will comes before what this one publishes.
            old.cut("another connection came with the same client identifier")
            old._retire("another connection came with the same client identifier")
        server.sessions[self.client_id] = self
        user = printable(packet.username) if packet.username else "-"
        self.name = f"{self._listener}/{user}/{printable(self.client_id)}"
        self.outlet.name = self.name
        # Known by name: who comes back finds its debt waiting (rule 14).
        self.account = server.ledger.open(self.name, limit=settings.limit, parent=server.account)
        # A client that is not read may not read either: two of them are a ring (rule 11).
        self.outlet.owner = self.account
        self._will = packet.will
        self._deadline_after = (
            packet.keep_alive * KEEP_ALIVE_GRACE if packet.keep_alive else settings.idle_timeout
        )
        self._send(ConnAck(False, ConnectReturnCode.ACCEPTED))
        logger.info("%s connected from %s", self.name, self._link.peer)

    # -- PUBLISH --------------------------------------------------------------------------------

    def _handle_publish(self, packet: Publish) -> None:
        server = self._server
        account = self.account
        assert account is not None
        server.counters.received += 1
        duplicate = False
        if packet.qos == 2:
            if self._awaiting is None:
                self._awaiting = AwaitingRelease(server.settings.max_awaiting_release)
            duplicate = not self._awaiting.add(packet.packet_id)
        if not duplicate:
            publication = Publication(packet.topic, packet.payload, packet.qos, packet.retain)
            fault = self._publish(account, publication)
            if fault is not None:
                # 3.1.1 has no way to say so but to close; the publication is acknowledged and
                # dropped, as section 3.3.5 has it for one that is not authorized.
                server.counters.rejected += 1
                self._warn(f"a publication was dropped: {fault}")
        # Only now is it accepted (rule 7): it has been handed over, or counted as rejected.
        if packet.qos == 1:
            self._send(PubAck(packet.packet_id))
        elif packet.qos == 2:
            self._send(PubRec(packet.packet_id))

    def _publish(self, account: Account, publication: Publication) -> str | None:
        """Publish in a turn of its own; return why not."""
        if publication.topic.startswith(SERVER_TOPICS):
            return f"{publication.topic!r}: topics under {SERVER_TOPICS} are the server's own"
        try:
            with account.turn(publication) as turn:
                turn.publish(self._server.dataspace, publication)
        except QuotaExceededError as exc:
            return str(exc)
        return None

    # -- SUBSCRIBE and UNSUBSCRIBE --------------------------------------------------------------

    def _handle_subscribe(self, packet: Subscribe) -> None:
        server = self._server
        settings = server.settings
        account = self.account
        assert account is not None
        faults: dict[str, str] = {}
        # Of equal filters in one packet the last counts; to do what the others say first would let
        # one packet hold up everybody.
        for text, qos in dict(packet.filters).items():
            fault = settings.topics.filter_fault(text)
            new = text not in self._observations
            if fault is None and new and len(self._observations) >= settings.max_subscriptions:
                fault = f"{settings.max_subscriptions} subscriptions are the limit for one client"
            if fault is None:
                fault = self._subscribe(account, text, min(qos, MAX_GRANTED_QOS))
            if fault is not None:
                faults[text] = fault
        if faults:
            count, first = len(faults), next(iter(faults.values()))
            self._warn(f"{count} of {len(packet.filters)} subscriptions were refused: {first}")
        codes = (
            SUBSCRIPTION_FAILED if text in faults else min(qos, MAX_GRANTED_QOS)
            for text, qos in packet.filters
        )
        self._send(SubAck(packet.packet_id, tuple(codes)))

    def _subscribe(self, account: Account, text: str, qos: int) -> str | None:
        """Subscribe to one filter; return why not."""
        server = self._server
        if qos and self._inflight is None:
            self._inflight = Inflight(
                server.ledger,
                self.outlet,
                self.name,
                window=server.settings.max_inflight,
                on_broken=self._broken,
                patience=server.settings.patience,
                policy=server.settings.stuck,
            )
            self._inflight.owner = account
        topic_filter = TopicFilter(text)
        try:
            with account.turn() as turn:
                old = self._observations.get(text)
                if old is not None:  # replaced, without a gap [MQTT-3.8.4-3]
                    server.dataspace.unobserve(turn, old)
                observation = server.dataspace.observe(
                    turn,
                    topic_filter,
                    self.outlet,
                    acked=self._inflight if qos else None,
                    replay=False,
                )
        except QuotaExceededError as exc:
            return str(exc)
        self._observations[text] = observation
        if len(server.dataspace.retained):
            self._replays[text] = qos
        return None

    def _replay_step(self, account: Account) -> None:
        """Tell of some retained publications, as many as there is room for (rules 9 and 16)."""
        server = self._server
        retained = server.dataspace.retained
        text, granted = next(iter(self._replays.items()))
        if self._replay is None:
            self._replay = iter(retained.topics(text))
        # One at a time, until there is no room: each costs what it costs.
        with server.flusher.corked():
            for _ in range(REPLAY_STEP):
                topic = next(self._replay, None)
                if topic is None:
                    self._replay = None
                    del self._replays[text]
                    return
                kept = retained.get(topic)
                if kept is None:
                    continue  # removed since
                qos = min(kept.qos, granted)
                holder = self._inflight if qos and self._inflight is not None else self.outlet
                with account.turn() as turn:
                    turn.send(holder, attrs.evolve(kept, qos=qos, retain=True), nbytes=kept.nbytes)
                if not account.funds_are_clear():
                    return

    def _handle_unsubscribe(self, packet: Unsubscribe) -> None:
        account = self.account
        assert account is not None
        with account.turn() as turn:
            for text in dict.fromkeys(packet.filters):
                observation = self._observations.pop(text, None)
                if observation is not None:
                    self._server.dataspace.unobserve(turn, observation)
        self._send(UnsubAck(packet.packet_id))
