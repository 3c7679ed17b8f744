"""One Syndicate peer's connection: binds the protocol to an account, an outlet and the entities.

Rules of this file, beyond those of every session (`.._session`):
1. Debt is checked before each packet (rule 9).
2. While the connection waits, a bounded stretch of its input is still read, but not parsed, except
   for credit, which reduces debt (rule 10), if the peer gives any.
3. However the connection ends, all assertions of its peer are retracted, on the connection's own
   account (rule 2).

Source: syndicate-rs, relay.rs (TunnelRelay) for the meaning of packets.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from time import perf_counter
from typing import TYPE_CHECKING

import trio

from ...access._tenants import NO_USER, Peer
from ...accounts import Account
from .._errors import RemoteProtocolError
from .._flusher import OUTLETS_A_STEP
from .._link import Link
from .._need_data import NEED_DATA
from .._outlet_backlog import ConsumerPolicy
from .._session import LOOKAHEAD_PAUSE_SECONDS, Hold, Session
from ..websocket import GOING_AWAY, NORMAL_CLOSURE, PROTOCOL_ERROR, WebSocket, WebSocketClient
from ._connection import Connection, Frame, State
from ._droppable import ABLE, Messages
from ._entities import Answer, Attenuated, Entity, Inert, Proxy, Source
from ._flat_turns import FlatTurns
from ._incoming import Incoming
from ._membrane import Membrane
from ._packets import Error, Extension, Turn
from ._port import NobodyPort, Port
from ._preserves import Value
from ._receiver import Receiver
from ._runs import SingleMessage, Template, Templates, ToldAs, find_run, make_template, varying_atom
from ._scan import MESSAGE, EventParts
from ._sender import Sender
from ._turn_credit import Credited
from ._turn_crediting import Crediting
from ._values import WireValue, value_at
from ._writer import Writer

if TYPE_CHECKING:
    from ._server import SyndicateServer

FEW_PACKETS = 16
"""Most packets that are handled in one short step: a third of a millisecond's worth."""
HTTP_BEGINS = ord("G")
"""The first byte of a WebSocket's handshake, a GET. No packet begins with it."""


class SyndicateSession(Session["SyndicateServer", Account]):
    """One peer's connection.

    Args:
        server: The state that all of them share.
        link: The connection.
        listener: The listener's name.
        entry: What the peer knows as oid 0.
        websocket: Whether packets come in WebSocket messages; None: the first byte tells. Or the
            WebSocket of a connection that the relay has made.

    Attributes:
        sender: The way out to the peer.
        turn_credit: The state of turn credit with the peer.
    """

    __slots__ = (
        "_answers", "_connection", "_flat", "_forgotten", "_framing", "_incoming", "_membrane",
        "_not_flat", "_peer", "_receiver", "_sniffs", "_templates", "sender", "turn_credit",
    )  # fmt: skip

    _unacknowledged_are = "items had no credit"

    def __init__(
        self,
        server: SyndicateServer,
        link: Link,
        listener: str,
        *,
        entry: Entity,
        websocket: bool | WebSocketClient | None,
    ) -> None:
        peer = self._peer = Peer(listener, NO_USER, link.peer)
        super().__init__(server, link, peer.name)
        settings = server.settings
        # Accounts have names: a client that reconnects from the same address finds its debt
        # again (rule 14).
        limit = settings.limit_of(peer.name, link.peer)
        self.account = server.tree.open(peer, server.tree.of(peer).tenant, limit)
        self.outlet.owner = self.account
        self._framing = Messages(websocket=False)
        self._deal()
        self._connection = Connection(
            max_packet_size=settings.max_packet_size,
            max_text_size=settings.max_text_size,
            max_depth=settings.max_depth,
        )
        self._incoming = Incoming(self._connection, link)
        # Who requests credit speaks first, and a WebSocket's client expects an answer first.
        self._sniffs = websocket is None and settings.turn_credit != "request"
        self._membrane: Membrane[Entity] = Membrane(
            proxy=self._proxy,
            attenuate=self._attenuate,
            inert=Inert(),
            forget=_forget,
            max_exported=settings.max_references,
            max_imported=settings.max_references,
            max_received=settings.max_assertions,
            max_sent=settings.max_assertions,
        )
        self._membrane.export(entry)
        self.sender = Sender(
            self.account,
            self.outlet,
            self._connection,
            Writer(self._connection, self._membrane, server.vocabulary, self._attenuate),
            complain=self.complain,
            cut=link.cut,
        )
        self._receiver = Receiver(
            self.account,
            self._membrane,
            server.counters,
            max_observations=settings.max_subscriptions,
            max_deliveries=settings.max_turn_deliveries,
            complain=self.complain,
        )
        self.turn_credit = Crediting(
            self.account, self.sender, server.flusher, settings, cut=link.cut
        )
        self._answers: set[Answer] = set()
        self._templates = Templates()
        self._not_flat = False  # the next packet has been looked at, and goes the general way
        self._flat = FlatTurns(
            self.account,
            self._connection,
            self._membrane,
            self._receiver,
            self._templates,
            server.entity,
            server.counters,
            settings,
            self._work,
        )
        self._forgotten = 0
        if isinstance(websocket, WebSocketClient):
            self._speak(websocket)
        elif websocket:
            self._speak_websocket()
        elif not self._sniffs:
            self.turn_credit.ask()

    def __repr__(self) -> str:
        return f"<SyndicateSession {self.name}: {self._connection.state.value}, {self._membrane!r}>"

    def _speak_websocket(self) -> None:
        settings = self._server.settings
        size = settings.max_packet_size
        self._speak(WebSocket(max_message_size=size, origins=settings.origin))

    def _speak(self, websocket: WebSocket | WebSocketClient) -> None:
        self._incoming.websocket = websocket
        self._framing.websocket = True
        self.sender.frame = websocket.frame

    # -- the connection's life ------------------------------------------------------------------

    def _deal(self) -> None:
        """Apply the policies for slow consumers."""
        server, outlet = self._server, self.outlet
        rules = server.policies.of(self._peer.name, self._peer.client, able=ABLE, topic_of=None)
        if rules.policies <= ABLE:
            outlet.retain_limit = server.settings.retain_limit
            limit = server.settings.behind_limit
            outlet.deal_by(ConsumerPolicy(rules, self._framing, limit=limit))

    def adjust(self) -> None:
        """See `Session.adjust`."""
        super().adjust()
        server, peer = self._server, self._peer
        limit = server.settings.limit_of(peer.name, peer.client)
        server.tree.adjust_connection(self.account, peer, limit)
        self._deal()

    def _ending(self) -> str | None:
        if self._connection.state is State.CLOSED:
            return "the peer said why it leaves"
        return self._cut_off() if self._eof else None

    def _after_sending(self) -> Account:
        """See `Session._after_sending`: debt for output that left at once is settled."""
        self.turn_credit.give()
        self._answer_websocket()
        return self.account

    def _received(self, data: bytes) -> None:
        if not data:
            self._eof = True
            return
        self._server.counters.received_bytes += len(data)
        if self._sniffs:
            self._sniffs = False
            if data[0] == HTTP_BEGINS:
                self._speak_websocket()
        incoming = self._incoming
        websocket = incoming.websocket
        if websocket is None:
            self._connection.receive_data(data)
            return
        established = websocket.established
        began = perf_counter()
        messages = websocket.receive_data(data)
        self._link.took_apart(perf_counter() - began)
        incoming.add_messages(messages)
        self._answer_websocket()
        if websocket.established and not established:
            self.turn_credit.ask()
        if websocket.closed:
            self._eof = True

    def _answer_websocket(self) -> None:
        """Send a pong, for example, unless the peer does not take its output.

        A WebSocket keeps one pong, the latest, which answers all earlier pings [RFC 6455 section
        5.5.3]: a client that pings and does not read makes nothing grow.
        """
        websocket = self._incoming.websocket
        if websocket is not None and not self.outlet.queue:
            reply = websocket.outgoing()
            if reply:
                self.sender.put(reply)
                self._server.flusher.flush_now()

    def _cut_off(self) -> str:
        self._incoming.check_layers()
        left = self._connection.unparsed_bytes
        if left:
            return f"the peer closed the connection within a packet ({left} bytes of it came)"
        return "the peer closed the connection"

    async def _take_leave(self, why: str) -> None:
        """See `Session._take_leave`; only a WebSocket has a closing handshake."""
        if self._incoming.websocket is None:
            await super()._take_leave(why)
        else:
            # Anything after the close frame would violate the protocol.
            self._retract_all()
            code = GOING_AWAY if self._server.stopping else NORMAL_CLOSURE
            await self._close_websocket(code, why)

    async def _close_websocket(self, code: int, why: str) -> None:
        """Send the close frame on a WebSocket, whichever side ends it."""
        websocket = self._incoming.websocket
        assert websocket is not None
        self.sender.put(websocket.close(code, why))
        self._server.flusher.flush_now()
        await self._linger()

    async def _say_why(self, fault: RemoteProtocolError) -> None:
        """Tell the peer what it did wrong, and give it time to read that."""
        self._retract_all()
        websocket = self._incoming.websocket
        if websocket is None or websocket.established:
            self.sender.say(Error(str(fault)))
        if websocket is not None:
            await self._close_websocket(PROTOCOL_ERROR, str(fault))
        else:
            self._server.flusher.flush_now()
            await self._linger()

    def _passed_over(self, data: bytes) -> None:
        websocket = self._incoming.websocket
        if websocket is not None:
            websocket.receive_data(data)
            self._eof = websocket.closed

    def _unacknowledged(self) -> Credited | None:
        return self.sender.credited

    def _retract_all(self) -> None:
        """Retract all assertions of the peer; it is told nothing more. Idempotent."""
        if self.sender.gone:
            return
        self.sender.gone = True
        self._templates.clear()
        self._steps = None
        server = self._server
        call = server.ledger.faults.call
        for answer in list(self._answers):
            call(self, "ending syncs that it was asked for", answer.end)
        call(self, "retracting its assertions", self._part_with_assertions)
        call(self, "forgetting its references", self._membrane.disconnect)

    def _part_with_assertions(self) -> None:
        steps = self._receiver.withdrawing()
        self._server.partings.take_back(self.name, self.account, self._work, steps, batch=1)

    def _withdraw(self, reason: str) -> None:
        self._retract_all()
        self._log(logging.INFO, "left", f"{self.name} left: {reason}", reason)

    # -- unfinished input -----------------------------------------------------------------------

    def _holding(self) -> int:
        incoming = self._incoming
        held = self._connection.held_bytes + incoming.messages_bytes + incoming.lookahead_bytes
        websocket = incoming.websocket
        return held if websocket is None else held + websocket.collected_bytes

    def _let_go(self) -> None:
        self._connection.let_go()

    def _drop_input(self, why: str) -> None:
        """See `Session._drop_input`; assertions are retracted as the connection ends."""
        self._incoming.close()
        super()._drop_input(why)

    def _close(self) -> None:
        self._incoming.close()

    def _silence(self, seconds: float, allowed: float) -> str:
        return f"no packet for {seconds:.1f} s, {allowed:g} are allowed"

    def check_deadline(self, now: float) -> None:
        """See `Session.check_deadline`; also answers pings that could not be answered before."""
        super().check_deadline(now)
        self._answer_websocket()

    # -- waiting --------------------------------------------------------------------------------

    async def _look_ahead(self, wait: trio.CancelScope) -> None:
        """Read a bounded stretch while the rest waits, and take credit out of it (rule 10).

        It ends when the stretch is full, at the end of the stream, or at malformed input, which is
        handled in its turn. If the peer has left, and none of its complete packets waits, it ends
        the wait.
        """
        sender, incoming = self.sender, self._incoming
        if sender.credited is None and not self._waiting:
            return  # nothing would be taken out of it, and it will not be handled any more
        while True:
            if sender.credited is not None:
                incoming.take_credit(self.turn_credit.handle)
                self._server.flusher.flush_now()
            if self._eof:
                if sender.credited is not None:
                    sender.credited.close()  # it will give no more
                if self._waiting and not incoming.has_whole_packets() and self._steps is None:
                    self._left = True
                    wait.cancel()
                return
            if incoming.unparsed >= self._stretch():
                if sender.credited is None:
                    return
                await trio.sleep(LOOKAHEAD_PAUSE_SECONDS)
                continue
            self._received(await self._receive_ahead())
            self._note_input(lookahead=True)
            # The connection must not have unsent output while it waits.
            self._server.flusher.flush_now()

    # -- input ----------------------------------------------------------------------------------

    def _handle_input(self) -> bool:
        connection, incoming = self._connection, self._incoming
        account = self.account
        if self._steps is not None and not self._take(self._steps):
            return True
        while True:
            if self._templates and not incoming.lookahead and self._forward_runs():
                return True
            if self._work.paused:
                return True
            if not incoming.lookahead and not incoming.messages:
                at = connection.buffered()
                if at is not None and at[1] >= len(at[0]) and incoming.fault is None:
                    incoming.check_layers()
                    return False
            if not account.funds_are_clear():
                return True
            if self._known and not incoming.lookahead and self._forward_flat():
                if self._work.is_over():
                    return True
                continue
            frame = incoming.next_frame()
            if frame is NEED_DATA:
                incoming.check_layers()
                return False
            self._last = self._server.ledger.clock()
            if not self._known:
                self._note_known()
                self._deadline_after = self._server.settings.idle_timeout
            self._handle(frame)
            if self._steps is not None:
                return True
            if connection.state is State.CLOSED and not incoming.lookahead:
                return False
            if self._work.is_over():
                return True

    def _handle(self, frame: Frame) -> None:
        packet = frame.packet
        if packet is None and (frame.parts is None or frame.embedded):
            packet = self._connection.decode(frame)
        if packet is None:
            parts = frame.parts
            assert parts is not None
            one = len(parts) == 1 and parts[0].kind == MESSAGE
            if not (one and self._forward_one(frame, parts[0])):
                size = frame.end - frame.start
                self._take(self._receiver.take_parts(frame.data, parts, size))
        elif isinstance(packet, Turn):
            self._take(self._receiver.take_events(packet.events, frame.end - frame.start))
        elif isinstance(packet, Extension):
            self.turn_credit.handle(packet)
        elif isinstance(packet, Error):
            self._server.logger.warning(
                "%s says: %.200r %.200r",
                self.name,
                packet.message,
                packet.detail,
                extra=self._fields("peer_error"),
            )

    def _take(self, steps: Iterator[Hold | None]) -> bool:
        done = self._go_on(steps)
        if done:
            self.turn_credit.took(1)
        return done

    # -- runs of messages -----------------------------------------------------------------------

    def _forward_runs(self) -> bool:
        """Forward runs of messages that fit templates; True when there are no funds for more."""
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
                self.turn_credit.took(run.count)
            if cut:
                return True
            if self._work.is_over():
                return False

    def _forward_flat(self) -> bool:
        """Handle flat packets; whether there were any."""
        connection = self._connection
        at = connection.buffered()
        if self._not_flat or at is None or self._incoming.fault is not None:
            self._not_flat = False
            return False
        packets, end = self._flat.forward(*at)
        if packets:
            connection.skip_to(end)
            self._last = self._server.ledger.clock()
            self.turn_credit.took(packets)
        return packets > 0

    def _handle_read(self, data: bytes) -> bool | None:
        """See `Session._handle_read`."""
        done = self._forward_few(data)
        if done is None:
            return super()._handle_read(data)
        self._last = self._server.ledger.clock()
        return done

    def _forward_few(self, data: bytes) -> bool | None:
        """Handle a few flat packets, and send what they cause; None if they are not."""
        incoming = self._incoming
        if not self._known or incoming.fault is not None or self._sniffs or incoming.websocket:
            return None
        connection = self._connection
        at = connection.buffered()
        if at is None or at[1] < len(at[0]) or incoming.lookahead or self._steps is not None:
            return None  # it is not all there is
        account = self.account
        if self._templates and self._templates.find(data, 0) is not None:
            return None
        if not account.is_open_wide():
            return None
        server = self._server
        flusher = server.flusher
        flusher.corks += 1
        try:
            packets, end = self._flat.forward(data, 0, FEW_PACKETS)
        finally:
            flusher.corks -= 1
        if not packets:
            self._not_flat = True
            return None
        server.counters.received_bytes += len(data)
        self.turn_credit.took(packets)
        if end < len(data):
            connection.receive_data(data[end:])
            return False
        if len(flusher.dirty) > OUTLETS_A_STEP:
            return False
        flusher.flush_now()
        self.turn_credit.give()
        return account.is_open_wide()

    def _forward_one(self, frame: Frame, part: EventParts) -> bool:
        """Forward a message alone, in one step; False if it needs a turn.

        Its effect is that of the turn, if it concerns peers only.
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
        self.turn_credit.took(1)
        self._learn(frame, part, value)
        return True

    def _learn(self, frame: Frame, part: EventParts, value: WireValue) -> None:
        """Make a template of a message, if a similar one was seen before."""
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
            if isinstance(port, NobodyPort):
                continue
            if not isinstance(port, Port) or port.caveats:
                return None
            told.add(port.told_as)
        return make_template(
            frame.data, frame.start, frame.end, part, destinations, told, dataspace.version
        )

    def far(self, oid: int) -> Entity:
        """Return an entity that the peer is known to export. For connections that the relay makes.

        Raises:
            RemoteProtocolError: as `Membrane.import_`.
        """
        return self._membrane.import_(oid).entity

    @property
    def source(self) -> Source:
        """The connection, as entities see it."""
        return self._receiver

    # -- requests of entities --------------------------------------------------------------------

    def asked(self, answer: Answer) -> None:
        """Note that the peer is to answer a sync for another."""
        self._answers.add(answer)

    def answered(self, answer: Answer) -> None:
        """Note that the peer has answered."""
        self._answers.discard(answer)

    def _proxy(self, oid: int) -> Entity:
        return Proxy(self, oid)

    def _attenuate(self, entity: Entity, caveats: tuple[Value, ...]) -> Entity:
        size = self._server.settings.max_caveats_size
        return Attenuated(entity, caveats, max_caveats_size=size)


def _forget(entity: Entity) -> None:
    """Note that one of the peer's entities is no longer known."""
    if isinstance(entity, Proxy):
        entity.known = False
