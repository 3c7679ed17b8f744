"""One Syndicate peer's connection: binds the protocol to an account, an outlet and the entities.

Rules of this file:
1. Funds are looked at before each packet (rule 9), and whatever was handed over is sent before the
   reader waits: it would wait for its own unsent loans.
2. A packet is one turn of the connection's account. What goes wrong in it ends the connection, and
   nothing of the packet has happened; all packets before it have.
3. While it waits, a bounded stretch of its input is still read: what it holds is not parsed, but
   for credit, which would reduce debt (rule 10), where the peer gives any.
4. However the connection ends, all that its peer has asserted is retracted, on the connection's own
   account (rule 2), and what its outlet held is settled.

Source: syndicate-rs, relay.rs (TunnelRelay) for what a peer's packets mean.
"""

from __future__ import annotations

import logging
import socket
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import trio

from ...accounts import DEFAULT_LIMIT_BYTES, Account, Outcome, QuotaExceededError
from ...dataspace import Batch, TooManyShapesError, captured
from .._errors import LocalProtocolError, RemoteProtocolError
from .._flusher import OUTLETS_A_STEP
from .._link import Link
from .._outlet import Outlet
from ..websocket import WebSocket
from ._connection import NEED_DATA, Connection, Frame, NeedData, State
from ._credit import DO, WILL, Credited, CreditGiven, credit, credit_of
from ._entities import Answer, Attenuated, Entity, Inert, Proxy, Retractor
from ._membrane import Membrane
from ._packets import Assert, Error, Extension, Message, Packet, Retract, Sync, Turn, TurnEvent
from ._port import Gathering, Port
from ._preserves import Value
from ._runs import (
    MessageRun,
    SingleMessage,
    Template,
    Templates,
    ToldAs,
    find_run,
    make_template,
    varying_atom,
)
from ._scan import ASSERT, MESSAGE, EventParts
from ._values import WireValue, value_at, wire_value
from ._writer import Writer

if TYPE_CHECKING:
    from ...accounts import Turn as AccountTurn
    from ._server import SyndicateServer

logger = logging.getLogger("clearfunds.transports.syndicate")

LOOK_AHEAD_BYTES = 128 << 10
"""How much unparsed input a connection that waits may have (rule 10): two reads. It is also what
two relays that echo each other may have under way, beyond their sockets' buffers, and go on.
While the peer is to give credit it may have as much as its limit in bytes, or
`DEFAULT_LIMIT_BYTES`: the credit may come behind all that."""

LOOK_AHEAD_PAUSE_SECONDS = 0.05
"""How often it is looked whether there is room to look further ahead."""

FLUSH_POLL_SECONDS = 0.01
"""How often an orderly stop looks whether everything has gone out."""

LINGER_SECONDS = 1.0
"""How long a peer may take to read why its connection is closed, and to close it."""

WARN_SECONDS = 1.0
"""How often at most one connection's faults are logged, where they do not end it."""

RETIRE_STEP = 1_000
"""How many assertions of a connection that has ended are retracted in one turn: some 10 ms."""

NORMAL_CLOSURE = 1000
GOING_AWAY = 1001
PROTOCOL_ERROR = 1002
"""What a WebSocket is closed with [RFC 6455 section 7.4.1]."""


class Session:
    """One peer's connection.

    Attributes:
        name: What an operator knows it by: `listener/-/peer`.
        account: Who pays for what it causes.
        outlet: The way out.
        gone: Whether nothing can be told it any more.
        writer: Makes the events that it is told.
        gathering: Those of the commit that is going on.
    """

    __slots__ = (
        "__weakref__", "_after", "_ahead", "_answers", "_asked", "_connection", "_deadline_after",
        "_eof", "_fault", "_forgotten", "_giving", "_last", "_link", "_live", "_membrane",
        "_messages", "_observing", "_retired", "_server", "_taking", "_templates", "_unsaid",
        "_waiting", "_warned", "_websocket", "account", "gathering", "gone", "name", "outlet",
        "writer",
    )  # fmt: skip

    def __init__(
        self,
        server: SyndicateServer,
        link: Link,
        listener: str,
        *,
        entry: Entity,
        websocket: bool,
    ) -> None:
        settings = server.settings
        ledger = server.ledger
        self._server = server
        self._link = link
        self.name = f"{listener}/-/{link.peer}"
        # Known by name: who comes back by the same address finds its debt waiting (rule 14).
        self.account: Account = ledger.open(self.name, limit=settings.limit, parent=server.account)
        self._connection = Connection(
            max_packet_size=settings.max_packet_size,
            max_text_size=settings.max_text_size,
            max_depth=settings.max_depth,
        )
        self._websocket: WebSocket | None = None
        if websocket:
            self._websocket = WebSocket(max_message_size=settings.max_packet_size)
        # WebSocket messages that are to be parsed one by one.
        self._messages: deque[bytes] = deque()
        self._membrane: Membrane[Entity] = Membrane(
            proxy=self._proxy,
            attenuate=self._attenuate,
            inert=Inert(),
            max_exported=settings.max_references,
            max_imported=settings.max_references,
            max_received=settings.max_assertions,
            max_sent=settings.max_assertions,
        )
        self._membrane.export(entry)
        self.outlet = Outlet(
            ledger,
            server.flusher,
            link.sock,
            self.name,
            on_broken=self._link.cut,
            patience=settings.patience,
            policy=settings.stuck,
        )
        self.outlet.owner = self.account
        self.writer = Writer(self._connection, self._membrane, server.vocabulary, self._attenuate)
        self.gathering = Gathering(self)
        # What takes each of the peer's assertions back, by its handle.
        self._live: dict[int, Retractor] = {}
        self._observing = 0
        self._answers: set[Answer] = set()
        self._after: list[Callable[[], None]] = []
        self._templates = Templates()
        self._forgotten = 0
        self._giving: CreditGiven | None = None
        self._taking: Credited | None = None
        self._asked = False
        # Packets that were cut from the input while it waited, and what was found behind them.
        self._ahead: deque[Frame] = deque()
        self._fault: RemoteProtocolError | None = None
        self._eof = False
        self.gone = False
        self._waiting = False
        self._retired = False
        self._warned = -WARN_SECONDS
        self._unsaid = 0
        # Silence is counted from here, and how much of it is too much.
        self._last = ledger.clock()
        self._deadline_after: float | None = settings.connect_timeout

    def __repr__(self) -> str:
        return f"<Session {self.name}: {self._connection.state.value}, {self._membrane!r}>"

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
            elif self._websocket is not None:
                await self._close_websocket(NORMAL_CLOSURE, reason)
        except RemoteProtocolError as exc:
            server.counters.protocol_errors += 1
            reason = str(exc)
            logger.warning("%s closed: %s", self.name, exc)
            await self._say_why(exc)
        except OSError as exc:
            reason = f"the connection broke: {exc.strerror or exc}"
        except Exception as exc:
            # A fault of ours ends the connection that met it, not the others.
            server.counters.internal_errors += 1
            reason = f"internal error: {exc!r}"
            logger.exception("%s closed for an error of the relay's", self.name)
        finally:
            self._retire(reason)

    async def _serve(self) -> str:
        """Read and handle until the peer leaves; return why it ended."""
        link = self._link
        flusher = self._server.flusher
        account = self.account
        if self._server.settings.credit == "request" and self._websocket is None:
            self._ask_for_credit()
        while True:
            more = self._process()
            if flusher.dirty:
                # What this reader may have to wait for must not sit unsent in its own hands.
                if len(flusher.dirty) <= OUTLETS_A_STEP:
                    flusher.flush_now()
                else:
                    await flusher.flush()
            if not more:
                # Who has nothing more to say need not wait until it has paid (rule 14).
                if self._connection.state is State.CLOSED:
                    return "the peer said why it leaves"
                if self._eof:
                    return self._cut_off()
            self.give_credit()
            if not account.funds_are_clear():
                await self._wait_for_clear_funds()
                continue
            if more:
                await trio.lowlevel.checkpoint()
                continue
            self._received(await link.receive())

    def _received(self, data: bytes) -> None:
        if not data:
            self._eof = True
            return
        self._server.counters.received_bytes += len(data)
        websocket = self._websocket
        if websocket is None:
            self._connection.receive_data(data)
            return
        established = websocket.established
        self._messages.extend(websocket.receive_data(data))
        reply = websocket.outgoing()
        if reply:
            self._put(reply)
        if websocket.established and not established and self._server.settings.credit == "request":
            self._ask_for_credit()
        if websocket.closed:
            self._eof = True

    def _cut_off(self) -> str:
        left = self._connection.unparsed_bytes
        if left:
            return f"the peer closed the connection within a packet ({left} bytes of it came)"
        return "the peer closed the connection"

    async def _flush_out(self) -> None:
        """Wait until everything has gone out, and has had credit; an orderly stop bounds it."""
        async with trio.open_nursery() as nursery:
            if self._taking is not None:
                nursery.start_soon(self._look_ahead)
            # Polled: it happens once, and an event in each outlet would cost every connection.
            while self.outlet.queue or (self._taking and not self._eof):  # noqa: ASYNC110
                await trio.sleep(FLUSH_POLL_SECONDS)
            nursery.cancel_scope.cancel()
        if self._websocket is not None:
            await self._close_websocket(GOING_AWAY, "the relay stops")
        else:
            await self._linger()

    async def _close_websocket(self, code: int, why: str) -> None:
        """Say the last word on a WebSocket, whoever ends it."""
        websocket = self._websocket
        assert websocket is not None
        self._put(websocket.close(code, why))
        self._server.flusher.flush_now()
        await self._linger()

    async def _say_why(self, fault: RemoteProtocolError) -> None:
        """Tell the peer what it did wrong, and let it read that."""
        self._withdraw()
        websocket = self._websocket
        try:
            if websocket is None or websocket.established:
                self._put(self._wrapped(self._connection.send(Error(str(fault)))))
        except LocalProtocolError:
            pass  # it is closed already: the peer has said an error itself
        if websocket is not None:
            await self._close_websocket(PROTOCOL_ERROR, str(fault))
        else:
            self._server.flusher.flush_now()
            await self._linger()

    async def _linger(self) -> None:
        """Let the peer read what is on its way, and close.

        Closed with input unread, the kernel would drop what the peer has not taken yet.
        """
        with trio.move_on_after(LINGER_SECONDS):
            try:
                while self.outlet.queue and not self.outlet.closed:  # noqa: ASYNC110 (as above)
                    await trio.sleep(FLUSH_POLL_SECONDS)
                if self.outlet.closed:
                    return
                self._link.sock.shutdown(socket.SHUT_WR)
                while not self._eof and (data := await self._link.receive()):
                    if self._websocket is not None:
                        self._websocket.receive_data(data)
                        self._eof = self._websocket.closed
            except OSError:
                pass

    def unflushed(self) -> str | None:
        """Say what has not gone out, or has had no credit; None if nothing is left."""
        items = sum(loan.items for loan in self.outlet.loans())
        nbytes = sum(loan.bytes for loan in self.outlet.loans())
        taking = self._taking
        uncredited = 0 if taking is None else sum(loan.items for loan in taking.loans())
        if not items and not uncredited:
            return None
        return (
            f"{self.name}: {items} items ({nbytes} bytes) were not sent, {uncredited} items had "
            "no credit"
        )

    def _withdraw(self) -> None:
        """Retract all that the peer has asserted; it is told nothing more."""
        if self.gone:
            return
        self.gone = True
        live = list(self._live.values())
        self._live.clear()
        self._templates.clear()
        for answer in list(self._answers):
            answer.end()
        if len(live) > RETIRE_STEP:
            # Not in this connection's task, which may be cancelled; and with others in between.
            self._server.flusher.nursery.start_soon(_retract_in_steps, self.account, live)
        elif live:
            _retract_all(self.account, live)
        self._membrane.disconnect()

    def _retire(self, reason: str) -> None:
        """Take back everything that this connection stands for (rule 4 of this file)."""
        if self._retired:
            return
        self._retired = True
        server = self._server
        server.flusher.flush_now()
        if server.stopping:
            unflushed = self.unflushed()
            if unflushed is not None:
                server.unflushed.append(unflushed)
        self._withdraw()
        logger.info("%s left: %s", self.name, reason)
        self.outlet.close()
        if self._taking is not None:
            self._taking.close()
        self.account.close()
        self._connection.close()
        self._link.close()
        server.flusher.flush_now()

    def complain(self, what: str) -> None:
        """Log what the peer did wrong and may go on doing: not more often than it can be read."""
        now = self._server.ledger.clock()
        if now - self._warned < WARN_SECONDS:
            self._unsaid += 1
            return
        more = f" (and {self._unsaid} more like it)" if self._unsaid else ""
        logger.warning("%s: %s%s", self.name, what, more)
        self._warned = now
        self._unsaid = 0

    def cut(self, why: str) -> None:
        """End the connection from this side."""
        self._link.cut(why)

    def check_deadline(self, now: float) -> None:
        """End the connection if the peer has been silent for too long."""
        if self._waiting or self._deadline_after is None:
            return  # while it is not read, its clock stands still (rule 10)
        if now - self._last > self._deadline_after:
            self._server.counters.timeouts += 1
            why = f"no packet for {now - self._last:.1f} s, {self._deadline_after:g} are allowed"
            logger.warning("%s closed: %s", self.name, why)
            self._link.cut(why)

    # -- waiting --------------------------------------------------------------------------------

    async def _wait_for_clear_funds(self) -> None:
        """Wait until there is room; who has gone and left nothing to be done need not."""
        self._waiting = True
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._look_ahead, nursery.cancel_scope)
                await self.account.ensure_clear_funds()
                nursery.cancel_scope.cancel()
        finally:
            self._waiting = False
            self._last = self._server.ledger.clock()

    async def _look_ahead(self, wait: trio.CancelScope | None = None) -> None:
        """Read a bounded stretch while the rest waits, and take credit out of it (rule 10).

        Ends when the stretch is full, at the end of the stream, or at something malformed, which
        is found in its turn. Where the peer has left, and nothing whole of it waits, it ends the
        wait.
        """
        while True:
            if self._taking is not None:
                self._take_credit()
                self._server.flusher.flush_now()
            if self._eof:
                if self._taking is not None:
                    self._taking.close()  # it will give no more
                if wait is not None and not self._has_whole_packets():
                    wait.cancel()
                return
            if self._unparsed() >= self._stretch():
                if self._taking is None:
                    return
                await trio.sleep(LOOK_AHEAD_PAUSE_SECONDS)
                continue
            try:
                data = await self._link.receive()
            except OSError:
                data = b""  # it will be found again when its turn comes
            self._received(data)

    def _unparsed(self) -> int:
        ahead = sum(frame.end - frame.start for frame in self._ahead)
        return self._connection.unparsed_bytes + sum(map(len, self._messages)) + ahead

    def _stretch(self) -> int:
        """How much unparsed input this connection may have while it waits."""
        if not self._taking:
            return LOOK_AHEAD_BYTES
        limit = self._server.settings.limit.bytes
        return max(LOOK_AHEAD_BYTES, DEFAULT_LIMIT_BYTES if limit is None else limit)

    def _has_whole_packets(self) -> bool:
        self._cut_ahead()
        return bool(self._ahead) or self._fault is not None

    def _cut_ahead(self) -> None:
        """Cut all whole packets from the input, to be handled when it is their turn."""
        try:
            while self._fault is None:
                frame = self._cut_frame()
                if frame is NEED_DATA:
                    return
                self._ahead.append(frame)
        except RemoteProtocolError as exc:
            self._fault = exc

    def _take_credit(self) -> None:
        """Let credit pass what waits."""
        before = len(self._ahead)
        self._cut_ahead()
        for _ in range(len(self._ahead) - before):
            # From the new ones, in order; each goes back behind those that wait.
            frame = self._ahead[before]
            packet = frame.packet
            if isinstance(packet, Extension) and self._extension(packet):
                del self._ahead[before]
            else:
                before += 1

    # -- what came in ---------------------------------------------------------------------------

    def _process(self) -> bool:
        """Handle what was read; True when it stopped for want of funds, or to let others run."""
        flusher = self._server.flusher
        flusher.corks += 1
        try:
            return self._handle_input()
        finally:
            flusher.corks -= 1

    def _handle_input(self) -> bool:
        connection = self._connection
        account = self.account
        while True:
            if self._templates and not self._ahead and self._forward_runs():
                return True
            if not self._ahead and not self._messages:
                at = connection.buffered()
                if at is not None and at[1] >= len(at[0]) and self._fault is None:
                    self._check_websocket()
                    return False
            if not account.funds_are_clear():
                return True
            frame = self._next_frame()
            if frame is NEED_DATA:
                self._check_websocket()
                return False
            self._last = self._server.ledger.clock()
            self._deadline_after = self._server.settings.idle_timeout
            self._handle(frame)
            if connection.state is State.CLOSED and not self._ahead:
                return False

    def _check_websocket(self) -> None:
        """Raise what is wrong with the WebSocket, after all messages that came before."""
        if self._websocket is not None and self._websocket.fault is not None:
            raise self._websocket.fault

    def _next_frame(self) -> Frame | NeedData:
        if self._ahead:
            return self._ahead.popleft()
        if self._fault is not None:
            raise self._fault
        return self._cut_frame()

    def _cut_frame(self) -> Frame | NeedData:
        """Cut the next packet from the input; on a WebSocket, from the next message."""
        connection = self._connection
        while True:
            frame = connection.next_frame()
            if frame is not NEED_DATA or self._websocket is None:
                return frame
            if connection.unparsed_bytes:
                fault = RemoteProtocolError(
                    "a WebSocket message ends within a packet; send whole packets, one a message"
                )
                connection.fail(fault)
                raise fault
            if not self._messages:
                return NEED_DATA
            connection.receive_data(self._messages.popleft())

    def _handle(self, frame: Frame) -> None:
        packet = frame.packet
        if packet is None and (frame.parts is None or frame.embedded):
            packet = self._connection.decode(frame)
        if packet is None:
            parts = frame.parts
            assert parts is not None
            self._handle_parts(frame, parts)
        elif isinstance(packet, Turn):
            self._handle_events(packet.events, frame.end - frame.start)
        elif isinstance(packet, Extension):
            self._extension(packet)
        elif isinstance(packet, Error):
            logger.warning("%s says: %s %r", self.name, packet.message, packet.detail)

    # -- turns ----------------------------------------------------------------------------------

    def _handle_parts(self, frame: Frame, parts: list[EventParts]) -> None:
        """Handle a turn without references, as it came."""
        data = frame.data
        if len(parts) == 1 and parts[0].kind == MESSAGE and self._forward_one(frame, parts[0]):
            return

        def each(changes: _Changes, turn: AccountTurn) -> None:
            membrane = self._membrane
            for part in parts:
                oid, kind, start, end, handle = part
                if kind == MESSAGE:
                    self._server.counters.received += 1
                    entity = membrane.exported(oid)
                    if entity is not None:
                        entity.message(turn, value_at(data, start, end), self)
                elif kind == ASSERT:
                    event = Assert(value_at(data, start, end), handle)
                    self._assert(changes, turn, oid, event, plain=True)
                else:
                    self._retract(changes, turn, Retract(handle))

        self._in_turn(each, len(parts), frame.end - frame.start)

    def _handle_events(self, events: tuple[TurnEvent, ...], nbytes: int) -> None:
        """Handle a turn that had to be decoded."""

        def each(changes: _Changes, turn: AccountTurn) -> None:
            membrane = self._membrane
            for entry in events:
                event = entry.event
                match event:
                    case Message():
                        self._server.counters.received += 1
                        received = membrane.receive_message(entry.oid, event)
                        if received is not None:
                            received[0].message(turn, wire_value(received[1]), self)
                    case Assert():
                        self._assert(changes, turn, entry.oid, event)
                    case Retract():
                        self._retract(changes, turn, event)
                    case Sync():
                        asked = membrane.receive_sync(entry.oid, event)
                        if asked is not None:
                            entity, pin = asked
                            entity.sync(turn, pin.entity, pin.release, self)

        self._in_turn(each, len(events), nbytes)

    def _in_turn(
        self, each: Callable[[_Changes, AccountTurn], None], events: int, nbytes: int
    ) -> None:
        """Do what a packet says in one turn, whole or not at all."""
        changes = _Changes(self._live)
        try:
            with self.account.turn(items=max(1, events), nbytes=nbytes) as turn:
                each(changes, turn)
        except BaseException as exc:
            changes.undo()
            self._after.clear()
            if isinstance(exc, (QuotaExceededError, TooManyShapesError)):
                raise RemoteProtocolError(str(exc)) from None
            raise
        self._took(1)
        if self._after:
            after, self._after = self._after, []
            for action in after:
                action()

    def _assert(
        self,
        changes: _Changes,
        turn: AccountTurn,
        oid: int,
        event: Assert,
        *,
        plain: bool = False,
    ) -> None:
        standing = self._membrane.receive_assert(oid, event, plain=plain)
        if standing is None:
            return
        value = standing.assertion if plain else wire_value(standing.assertion)
        retractor = standing.target.assert_(turn, value, self)
        if retractor is not None:
            changes.assert_(event.handle, retractor)

    def _retract(self, changes: _Changes, turn: AccountTurn, event: Retract) -> None:
        # The references in it may be needed until it has been told that it is gone.
        standing = self._membrane.receive_retract(event)
        if standing is not None:
            retractor = changes.retract(event.handle)
            if retractor is not None:
                retractor(turn)

    def _took(self, turns: int) -> None:
        if self._giving is not None:
            self._giving.took(turns, self._server.ledger.clock())

    # -- runs of messages -----------------------------------------------------------------------

    def _forward_runs(self) -> bool:
        """Forward runs of messages that are known again; True when there are no funds for more."""
        server = self._server
        connection = self._connection
        dataspace = server.dataspace
        account = self.account
        if self._membrane.forgotten != self._forgotten:
            self._forgotten = self._membrane.forgotten
            self._templates.clear()
        while True:
            at = connection.buffered()
            if at is None or at[1] >= len(at[0]):
                return False
            buffer, position = at
            found = find_run(
                buffer,
                position,
                self._templates,
                dataspace.version,
                account.room(),
                server.settings.max_packet_size,
            )
            if found is None:
                return False
            run, end, cut = found
            if run.count:
                dataspace.route_run(account, run, run.destinations.holders)
                connection.skip_to(end)
                server.counters.received += run.count
                self._last = server.ledger.clock()
                self._took(run.count)
            if cut:
                return True

    def _forward_one(self, frame: Frame, part: EventParts) -> bool:
        """Forward a message by itself, in one step; False if it takes a turn to do so.

        The same as the turn would do, where all that it concerns are peers.
        """
        server = self._server
        dataspace = server.dataspace
        data = frame.data
        if self._membrane.exported(part.oid) is not server.entity:
            return False
        body = data[part.start : part.end]
        value = value_at(body, 0, len(body))
        if server.vocabulary.known(value) is not value:
            return False
        ports = dataspace.recipients(value)
        if ports is None:
            return False
        nbytes = frame.end - frame.start
        dataspace.route_run(self.account, SingleMessage(body, value, nbytes), ports)
        server.counters.received += 1
        self._took(1)
        self._learn(frame, part, value)
        return True

    def _learn(self, frame: Frame, part: EventParts, value: WireValue) -> None:
        """Make a template of a message, if one like it was seen before."""
        data = frame.data
        varying = varying_atom(data[part.start : part.end])
        if varying is None:
            return
        at, path = varying
        prefix = data[frame.start : part.start + at + 1]
        templates = self._templates
        version = self._server.dataspace.version
        if templates.wants(prefix, version):
            template = self._template(frame, part, value, path)
            if template is None:
                templates.refuse(prefix, version)
            else:
                templates.add(template)

    def _template(
        self, frame: Frame, part: EventParts, value: WireValue, path: tuple[int, ...]
    ) -> Template | None:
        dataspace = self._server.dataspace
        destinations = dataspace.steady_destinations(value, path)
        if destinations is None:
            return None
        told: set[ToldAs] = set()
        for port in destinations.holders:
            if not isinstance(port, Port) or port.caveats:
                return None
            told.add(port.told_as)
        return make_template(
            frame.data, frame.start, frame.end, part, destinations, told, dataspace.version
        )

    # -- what entities ask of the connection that an event came by --------------------------------

    def observes(self) -> None:
        """See `Source.observes`."""
        allowed = self._server.settings.max_observations
        if self._observing >= allowed:
            raise RemoteProtocolError(
                f"more than {allowed} patterns are observed; retract what is no longer needed, or "
                "raise the limit on subscriptions"
            )
        self._observing += 1

    def observes_no_more(self) -> None:
        """See `Source.observes_no_more`."""
        self._observing -= 1

    def afterwards(self, action: Callable[[], None]) -> None:
        """See `Source.afterwards`."""
        self._after.append(action)

    def asked(self, answer: Answer) -> None:
        """Note that the peer is to answer a sync for another."""
        self._answers.add(answer)

    def answered(self, answer: Answer) -> None:
        """Note that it has."""
        self._answers.discard(answer)

    def _proxy(self, oid: int) -> Entity:
        return Proxy(self, oid)

    def _attenuate(self, entity: Entity, caveats: tuple[Value, ...]) -> Entity:
        size = self._server.settings.max_caveats_size
        return Attenuated(entity, caveats, max_caveats_size=size)

    # -- what goes out --------------------------------------------------------------------------

    def _wrapped(self, packet: bytes) -> bytes:
        return packet if self._websocket is None else WebSocket.frame(packet)

    def put_turn(
        self,
        account: Account,
        events: list[TurnEvent | bytes],
        items: int,
        nbytes: int,
        now: float,
    ) -> None:
        """Send one turn, for whose events `account` has been charged. For `Gathering`."""
        if self.gone:
            account.repay(items, nbytes, Outcome.DROPPED, self.outlet)
            return
        self._hold(account, self._packet(events), 1, items, nbytes, now)

    def put_run(
        self, port: Port, account: Account, run: MessageRun | SingleMessage, nbytes: int, now: float
    ) -> None:
        """Send each message of a run as a turn of its own. For `Port`."""
        if self._connection.text:
            packets = b"".join(
                [
                    self._wrapped(self._connection.send(self._decoded(packet)))
                    for packet in run.packets(port.told_as)
                ]
            )
        elif self._websocket is not None:
            packets = b"".join(map(WebSocket.frame, run.packets(port.told_as)))
        else:
            packets = run.chunk(port.told_as)
        self._hold(account, packets, run.count, run.count, nbytes, now)

    def put_batch(
        self, port: Port, account: Account, batch: Batch, nbytes: int, now: float
    ) -> None:
        """Send each publication of a run as a turn of its own. For `Port`."""
        special = bool(port.caveats or self._connection.text or self._websocket)
        framed = batch.framed
        if framed is None:
            framed = batch.framed = {}
        key = None if special else port.told_as
        packets = None if key is None else framed.get(key)
        if packets is None:
            packets = b"".join(self._told(port, batch))
            if key is not None:
                framed[key] = packets
        if packets:
            self._hold(account, packets, batch.count, batch.count, nbytes, now)
        else:
            account.repay(batch.count, nbytes, Outcome.DROPPED, self.outlet)

    def _told(self, port: Port, batch: Batch) -> Iterator[bytes]:
        for publication in batch.events():
            try:
                shown = captured(port.told_as[1], publication)
                event = self.writer.message(port.target, shown, port.caveats)
            except LocalProtocolError as exc:
                self.complain(f"a message was dropped: {exc}")
                continue
            if event is not None:
                yield self._packet([event])

    def _packet(self, events: list[TurnEvent | bytes]) -> bytes:
        if self._connection.text:
            turn = Turn(tuple([event for event in events if isinstance(event, TurnEvent)]))
            return self._wrapped(self._connection.send(turn))
        raw = [event for event in events if isinstance(event, bytes)]
        return self._wrapped(b"".join((b"\xb5", *raw, b"\x84")))

    @staticmethod
    def _decoded(packet: bytes) -> Packet:
        connection = Connection()
        connection.receive_data(packet)
        decoded = connection.next_packet()
        assert decoded is not NEED_DATA
        return decoded

    def _hold(
        self, account: Account, packets: bytes, turns: int, items: int, nbytes: int, now: float
    ) -> None:
        more = len(packets) - nbytes
        if more > 0:
            # What frames it is owed for, too; it was not known when the commit charged for it.
            account.borrow(0, more)
            nbytes += more
        if self._taking is None:
            self.outlet.hold(account, packets, items, nbytes, now)
        else:
            self._taking.put(account, packets, turns, items, nbytes, now)

    def unsayable(
        self, account: Account, items: int, nbytes: int, why: LocalProtocolError, *, state: bool
    ) -> None:
        """Drop what cannot be told this peer; if it is `state`, end the connection. For `Port`."""
        account.repay(items, nbytes, Outcome.DROPPED, self.outlet)
        if state:
            self._link.cut(f"it cannot be told what is the case: {why}")
        else:
            self.complain(f"a message was dropped: {why}")

    def _put(self, data: bytes) -> None:
        """Send bytes of the connection's own, on its own account (rule 2)."""
        if data:
            account = self.account
            account.borrow(1, len(data))
            self.outlet.hold(account, data, 1, len(data), self._server.ledger.clock())

    # -- credit ---------------------------------------------------------------------------------

    def _ask_for_credit(self) -> None:
        self._asked = True
        self._put(self._wrapped(self._connection.send(DO)))

    def _extension(self, packet: Extension) -> bool:
        """Handle what is known of extensions; whether this one was."""
        settings = self._server.settings
        if packet == DO and settings.credit != "off":
            if self._giving is None:
                self._giving = CreditGiven()
            self._put(self._wrapped(self._connection.send(WILL)))
            return True
        if packet == WILL and self._asked:
            if self._taking is None:
                self._taking = Credited(
                    self._server.ledger,
                    self.outlet,
                    self.name,
                    on_broken=self._link.cut,
                    patience=settings.patience,
                    policy=settings.stuck,
                )
                self._taking.owner = self.account
            return True
        turns = credit_of(packet)
        if turns is not None and self._taking is not None:
            self._taking.credit(turns)
            return True
        return False

    @property
    def uncredited(self) -> int:
        """How many of the peer's turns have had no credit."""
        return len(self._giving) if self._giving is not None and not self.gone else 0

    def give_credit(self, oldest: float = float("inf")) -> None:
        """Give credit for what is no longer owed.

        `oldest` is since when something is held that the peer owes for; without it, credit is given
        only if nothing is.
        """
        giving = self._giving
        if giving is None or not giving or self.gone:
            return
        if oldest == float("inf") and self.account.debt_items:
            return
        turns = giving.due(oldest)
        if turns:
            self._put(self._wrapped(self._connection.send(credit(turns))))
            self._server.flusher.flush_now()


class _Changes:
    """What one packet does to the peer's assertions, to be undone if it fails."""

    __slots__ = ("_added", "_live", "_removed")

    def __init__(self, live: dict[int, Retractor]) -> None:
        self._live = live
        self._added: list[int] = []
        self._removed: list[tuple[int, Retractor]] = []

    def assert_(self, handle: int, retractor: Retractor) -> None:
        self._live[handle] = retractor
        self._added.append(handle)

    def retract(self, handle: int) -> Retractor | None:
        retractor = self._live.pop(handle, None)
        if retractor is not None:
            if handle in self._added:
                self._added.remove(handle)
            else:
                self._removed.append((handle, retractor))
        return retractor

    def undo(self) -> None:
        for handle in self._added:
            del self._live[handle]
        self._live.update(self._removed)


def _retract_all(account: Account, live: list[Retractor]) -> None:
    with account.turn() as turn:
        for retract in live:
            retract(turn)


async def _retract_in_steps(account: Account, live: list[Retractor]) -> None:
    """Retract very many assertions with others in between; at once if that is cancelled."""
    with account.kept_open():
        try:
            while live:
                step = live[:RETIRE_STEP]
                del live[:RETIRE_STEP]
                _retract_all(account, step)
                await trio.lowlevel.checkpoint()
        finally:
            if live:
                _retract_all(account, live)
