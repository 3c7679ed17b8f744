"""A small MQTT client on Trio, for 3.1.1 and 5.

Rules:

1. Nothing here grows without bound. The buffer of received messages, the send buffer and the
   in-flight window each have a limit, and a task that would exceed one waits.
2. Backpressure reaches the publisher: a client whose messages are not taken stops reading its
   socket once its buffer is full. So the server waits for the consumer, and publishers wait for the
   server.
3. Leaving `open_mqtt` normally finishes outstanding work and sends DISCONNECT. Leaving it by an
   exception does not, so the server publishes the will.
4. The next call after a lost connection raises an exception, never an exception group.
5. The guarantees of QoS 1 and 2 hold as long as the client's session: for one connection, or with a
   `ClientSession` for as long as the program keeps that.

Theory of operation. Three tasks live in a nursery inside the `async with` block. The *reader* hands
publications to a deque, and acknowledgements to the tasks that wait for them. The *writer* sends
the contents of the send buffer: everything that other tasks add during one pass of the scheduler
leaves in one write. The *keeper* sends PINGREQ when nothing else was sent.

Calls that only fill the send buffer do not checkpoint while it has room. That departs from Trio's
habit, but it batches small publications: with a checkpoint after each, each would need its own
write, at some thirty times the cost. A full buffer always makes its publisher wait, so no task
holds the thread for longer than it takes to fill 64 KiB.
"""

from collections.abc import Callable, Iterable

import attrs
import trio

from ..._connecting import READ_SIZE
from ..._errors import LocalProtocolError, RemoteProtocolError
from ..._need_data import NEED_DATA
from ..._send_buffer import SendBuffer
from ..codec._connection import Connection
from ..codec._granted import Granted
from ..codec._packets import (
    Disconnect,
    Packet,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    SubAck,
    Subscribe,
    UnsubAck,
    Unsubscribe,
)
from ..codec._packets5 import PROTOCOL_LEVEL_5
from ..codec._properties import NO_PROPERTIES, Properties
from ..codec._reasons import reason_of
from ._dialects import Dialect
from ._errors import ConnectionLostError, why_disconnected
from ._inbox import Inbox
from ._keep_alive import KeepAlive
from ._outbound import Outbound
from ._requests import Request, Requests, options_of
from ._session import ClientSession, Outgoing, Receipts

#: Messages that `receive` takes without waiting before it lets other tasks run.
_MESSAGES_A_CHECKPOINT = 64
#: Seconds that a server has to close the connection after DISCONNECT.
_CLOSE_PATIENCE = 2.0


@attrs.frozen
class MqttClientStatistics:
    """A snapshot of a client's buffers and in-flight messages."""

    buffered_messages: int
    """Publications received that no task has taken yet."""
    buffered_bytes: int
    """Bytes of their topics and payloads."""
    reading: bool
    """Whether the client reads its socket; False while its buffer of messages is full."""
    inflight: int
    """Publications of QoS 1 and 2 that the server has not fully acknowledged."""
    unacknowledged: int
    """Messages of QoS 1 and 2 that this client has received and not acknowledged."""
    identifiers_in_use: int
    """Packet identifiers of in-flight publications and unanswered requests; 65,535 at most."""
    unsent_bytes: int
    """Bytes that the stream has not taken yet."""


class MqttClient:
    """A connected client; `open_mqtt` makes one.

    Iterating over it yields the publications that the server sends, each as a `Publish`. Several
    tasks may use one client at once, also to iterate: each message goes to one of them.

    Attributes:
        client_id: its client identifier, or in MQTT 5 the one that the server assigned; in 3.1.1
            empty if it asked the server to choose.
        session_present: whether the server had a persistent session for it [MQTT-3.2.2-2].
    """

    def __init__(
        self,
        stream: trio.abc.Stream,
        connection: Connection,
        dialect: Dialect,
        *,
        client_id: str,
        session_present: bool,
        keep_alive: int,
        ping_timeout: float,
        max_buffered: int,
        max_buffered_bytes: int,
        max_inflight: int,
        session: ClientSession | None,
        manual_ack: bool,
    ) -> None:
        """Make a client of a connection that CONNACK has accepted; `open_mqtt` calls this."""
        self.client_id = client_id
        self.session_present = session_present
        self._stream = stream
        self._connection = connection
        self._dialect = dialect
        self._encode = dialect.encode

        self._inbox = Inbox(max_buffered, max_buffered_bytes)
        self._reading = True
        self._taken_in_a_row = 0
        self._manual_ack = manual_ack
        self._receipts = (Receipts(), Receipts())  # of QoS 1 and 2

        self._send = SendBuffer()

        self._is_persistent = session is not None
        self._session = ClientSession() if session is None else session
        self._ids = self._session.ids
        self._requests = Requests(self._ids)
        self._outbound = Outbound(
            dialect,
            self._session,
            self._send,
            max_inflight,
            is_persistent=self._is_persistent,
            check=self._check_usable,
        )

        self._keep_alive = KeepAlive(
            self._send, keep_alive, ping_timeout, lambda: self._reading, self._end
        )
        self._lost: str | None = None
        self._lost_reason: int | None = None
        self._lost_by: BaseException | None = None
        self._leaving = False
        self._disconnected = False
        self._left = False
        self._ended = trio.Event()
        self._outbound.resume(session_present=session_present)

    def __repr__(self) -> str:
        condition = "lost" if self._lost else "disconnected" if self._leaving else "connected"
        return (
            f"<MqttClient {self.client_id!r} {condition}, {len(self._inbox)} messages buffered, "
            f"{len(self._outbound)} in flight>"
        )

    def start(self, nursery: trio.Nursery) -> None:
        """Start this client's tasks; `open_mqtt` calls this. They run until cancelled."""
        nursery.start_soon(self._read)
        nursery.start_soon(self._write)
        if self._keep_alive.seconds:
            nursery.start_soon(self._keep_alive.run, self._ended)

    def left(self) -> None:
        """Note that this client's block has been left; `open_mqtt` calls this.

        Another connection may use its session from now on, so this client releases it.
        """
        self._left = True
        self._end("its block has been left")
        self._inbox.clear()
        self._requests.clear()

    @property
    def granted(self) -> Granted:
        """The server's limits and demands for this client."""
        return self._dialect.granted

    def statistics(self) -> MqttClientStatistics:
        """Return a snapshot of this client's buffers and in-flight messages."""
        return MqttClientStatistics(
            buffered_messages=len(self._inbox),
            buffered_bytes=self._inbox.bytes_held,
            reading=self._reading,
            inflight=len(self._outbound),
            unacknowledged=sum(map(len, self._receipts)),
            identifiers_in_use=len(self._ids),
            unsent_bytes=self._send.unwritten,
        )

    # --- publishing -------------------------------------------------------------------------

    def publish_nowait(
        self,
        topic: str,
        payload: bytes = b"",
        qos: int = 0,
        retain: bool = False,
        *,
        properties: Properties = NO_PROPERTIES,
    ) -> None:
        """Put a publication into the send buffer, or raise if it would have to wait.

        It does not wait for the acknowledgement; see `flush`.

        Raises:
            trio.WouldBlock: the in-flight window or the send buffer is full.
            LocalProtocolError: the topic, the QoS or a property is not valid or not accepted by the
                server, or this client has disconnected.
            ConnectionLostError: the connection is lost.
        """
        self._check_usable()
        if not self._send.has_room or (qos and not self._outbound.has_place):
            raise trio.WouldBlock
        if qos == 0:
            self._send.put(self._dialect.publish(topic, payload, 0, retain, 0, properties))
        else:
            self._outbound.take_place_nowait()
            self._outbound.begin(topic, payload, qos, retain, properties)

    async def publish(
        self,
        topic: str,
        payload: bytes = b"",
        qos: int = 0,
        retain: bool = False,
        *,
        properties: Properties = NO_PROPERTIES,
        wait: bool = True,
    ) -> None:
        """Publish one message.

        With `wait` this returns when the publication is finished: with QoS 0 when the stream has
        taken it, with QoS 1 when PUBACK has come, with QoS 2 when PUBCOMP has. Without `wait`, it
        returns as soon as the in-flight window and the send buffer have room, so that many
        publications can be in flight at once; it then checkpoints only if it has to wait. `flush`
        waits for all of them.

        `properties` are for MQTT 5. The caller may choose a topic alias up to
        `granted.topic_alias_maximum`: send it with the topic first, then with an empty topic.

        Cancellation: a publication is either not begun, or it is sent as a whole and its handshake
        completes in the background. The cancellation does not tell which, so publishing again may
        publish twice.

        Raises:
            LocalProtocolError: the topic, the QoS or a property is not valid or not accepted by the
                server, or this client has disconnected.
            PublicationRefusedError: the server refused it, in MQTT 5.
            ConnectionLostError: the connection is lost; the server may or may not have the message.
                If `kept` is set, the client's session has it, and the next connection sends it
                again.
        """
        if qos == 0:
            await self._wait_for_room()
            self._send.put(self._dialect.publish(topic, payload, 0, retain, 0, properties))
            if wait:
                await self._wait_written()
            return
        await self._outbound.take_place()
        try:
            await self._wait_for_room()
        except BaseException:
            self._outbound.give_place()
            raise
        inflight = self._outbound.begin(topic, payload, qos, retain, properties)
        if wait:
            inflight.awaited = True
            try:
                await self._wait_finished(inflight)
            except ConnectionLostError as exc:
                exc.kept = self._is_persistent
                raise
            if inflight.refused is not None:
                raise inflight.refused

    async def flush(self) -> None:
        """Wait until all publications so far are finished, as `publish` with `wait` defines it.

        That includes publications that the session has kept from earlier connections. Answers to
        the server are written by then, too. While the buffer of messages is full, the client reads
        no acknowledgements, and this waits as well.

        Cancellation: harmless, only the waiting ends.

        Raises:
            PublicationRefusedError: the server refused a publication that no task waited for; the
                first such, if several.
            ConnectionLostError: the connection is lost; some publications may not have reached the
                server.
        """
        await self._flush()
        self._outbound.raise_refused()

    # --- subscribing ------------------------------------------------------------------------

    async def subscribe(
        self,
        filters: str | Iterable[str | tuple[str, int]],
        qos: int = 0,
        *,
        no_local: bool = False,
        retain_as_published: bool = False,
        retained: str = "always",
        properties: Properties = NO_PROPERTIES,
    ) -> tuple[int, ...]:
        """Subscribe to one topic filter or to several in one packet.

        All arguments but the first two are for MQTT 5 (section 3.8.3.1).

        Args:
            filters: a filter, or several; each may be a pair of a filter and the QoS wanted.
            qos: the highest QoS wanted, for filters that give none.
            no_local: whether to leave out this client's own publications.
            retain_as_published: whether to leave RETAIN as published.
            retained: when to send retained messages: `always`, to a `new` subscription, or `never`.
            properties: a subscription identifier, user properties.

        Returns:
            the QoS granted for each filter, which may be lower [MQTT-3.8.4-6].

        Cancellation: the subscription may have been made or may still be made; messages for it
        may come.

        Raises:
            SubscriptionRefusedError: the server refused a filter; it accepted the others.
            LocalProtocolError: a filter or a QoS is not valid, or this client has disconnected.
            ConnectionLostError: the connection was lost before SUBACK came.
        """
        listed = (filters,) if isinstance(filters, str) else tuple(filters)
        pairs = tuple((item, qos) if isinstance(item, str) else item for item in listed)
        options = options_of(
            no_local=no_local, retain_as_published=retain_as_published, retained=retained
        )
        wanted = tuple((name, level | options) for name, level in pairs)
        request = Request(SubAck, tuple(name for name, _ in pairs))
        await self._ask(request, lambda packet_id: Subscribe(packet_id, wanted, properties))
        return request.check()

    async def unsubscribe(self, filters: str | Iterable[str]) -> None:
        """End subscriptions; the buffer may still hold messages from before UNSUBACK.

        Cancellation: the subscriptions may have ended or may still end.

        Raises:
            SubscriptionRefusedError: the server did not end a subscription, in MQTT 5.
            LocalProtocolError: a filter is not valid, or this client has disconnected.
            ConnectionLostError: the connection was lost before UNSUBACK came.
        """
        names = (filters,) if isinstance(filters, str) else tuple(filters)
        request = Request(UnsubAck, names)
        await self._ask(request, lambda packet_id: Unsubscribe(packet_id, names))
        request.check()

    # --- receiving --------------------------------------------------------------------------

    def __aiter__(self) -> "MqttClient":
        return self

    async def __anext__(self) -> Publish:
        try:
            return await self.receive()
        except trio.EndOfChannel:
            raise StopAsyncIteration from None

    async def receive(self) -> Publish:
        """Take the next message that the server has sent.

        Taking a message acknowledges it if its QoS is 1, and begins its handshake if its QoS is 2;
        with `manual_ack`, `ack` does. While the buffer holds at least `max_buffered` messages or
        `max_buffered_bytes`, the client does not read its socket: then it gets neither
        acknowledgements nor answers to its pings (which it does not miss meanwhile). It handles
        each read as a whole, so the buffer may exceed its limits by one read of 64 KiB, or by one
        packet if that is larger; acknowledgements in that read get through.

        Takes a buffered message without a checkpoint, but checkpoints once in 64 messages at least.

        Cancellation: no message is lost; the next caller gets it.

        Raises:
            trio.EndOfChannel: this client has disconnected. Messages not taken by then are dropped,
                unacknowledged.
            ConnectionLostError: the connection is lost, and all messages received before are taken.
        """
        if not self._inbox or self._taken_in_a_row >= _MESSAGES_A_CHECKPOINT:
            self._taken_in_a_row = 0
            await trio.lowlevel.checkpoint()
        self._taken_in_a_row += 1
        while True:
            if not self._inbox:
                if self._leaving:
                    raise trio.EndOfChannel
                if self._lost is not None:
                    self._raise_unusable()
                await self._inbox.arrived.park()
            elif self._inbox[0].qos and not self._send.has_room_for_acks:
                await self._send.room.park()
            else:
                return self._take()

    def receive_nowait(self) -> Publish:
        """Take the next message, as `receive`, but without waiting.

        Raises:
            trio.WouldBlock: there is none yet, or the send buffer has no room for its answer.
            trio.EndOfChannel: as `receive`.
            ConnectionLostError: as `receive`.
        """
        if not self._inbox:
            if self._leaving:
                raise trio.EndOfChannel
            if self._lost is not None:
                self._raise_unusable()
            raise trio.WouldBlock
        if self._inbox[0].qos and not self._send.has_room_for_acks:
            raise trio.WouldBlock
        return self._take()

    def ack(self, message: Publish) -> None:
        """Acknowledge a message that its consumer has finished; for a client with `manual_ack`.

        The acknowledgement leaves once all earlier messages of the same QoS are finished as well
        [MQTT-4.6.0-2][MQTT-4.6.0-3]. The server sends unacknowledged messages again to a persistent
        session: also a finished one of QoS 1 whose acknowledgement had not left when the connection
        ended. A `ClientSession` does not deliver a QoS 2 message again after this call, even if the
        connection was lost by then. For a message of QoS 0 this does nothing.

        Raises:
            LocalProtocolError: there is no such message, or it has been acknowledged, or this
                client's block has been left.
        """
        if not message.qos:
            return
        if not self._manual_ack:
            raise LocalProtocolError(
                "messages are acknowledged when they are taken; for `ack` open with manual_ack=True"
            )
        if self._left or not self._receipts[message.qos - 1].awaits(message.packet_id):
            raise LocalProtocolError(
                f"there is no message of QoS {message.qos} with packet identifier "
                f"{message.packet_id} to be acknowledged; it was, or it was another client's"
            )
        self._acknowledge(message)

    # --- leaving ----------------------------------------------------------------------------

    async def disconnect(self, reason: int = 0, properties: Properties = NO_PROPERTIES) -> None:
        """Finish all publications, send DISCONNECT and wait for the server to close.

        In MQTT 5, `Reason.DISCONNECT_WITH_WILL` makes the server publish the will, and `properties`
        may set another session expiry.

        After the call the client publishes nothing more, and drops messages instead of buffering
        them, so that acknowledgements get through. The server has two seconds to close the
        connection: if this side closed it with input unread, data that the server has not read yet
        could be lost. Leaving `open_mqtt` normally calls this; a second call does nothing.

        Cancellation: the connection may end without DISCONNECT; the server then publishes the will.

        Raises:
            PublicationRefusedError: as `flush`; the client has disconnected then.
            LocalProtocolError: a client must not send that reason or property; nothing has
                happened.
            ConnectionLostError: the connection was lost first.
        """
        if self._disconnected:
            return
        if self._lost is not None:
            self._raise_unusable()
        last = Disconnect(reason, properties)
        self._encode(last)
        if self._connection.version == PROTOCOL_LEVEL_5:
            self._connection.check_disconnect(last)
        self._leaving = True
        self._inbox.clear()
        self._outbound.wake()
        self._send.room.unpark_all()
        await self._flush()
        if not self._disconnected:
            self._disconnected = True
            self._send.put(self._connection.send(last))
        await self._wait_written()
        with trio.move_on_after(_CLOSE_PATIENCE):
            await self._ended.wait()
        self._outbound.raise_refused()

    # --- inside: sending --------------------------------------------------------------------

    def _check_usable(self) -> None:
        if self._lost is not None or self._leaving:
            self._raise_unusable()

    async def _wait_for_room(self) -> None:
        while True:
            self._check_usable()
            if self._send.has_room:
                return
            await self._send.room.park()

    async def _flush(self) -> None:
        await self._wait_written()
        for outgoing in self._outbound.unfinished():
            await self._wait_finished(outgoing)

    async def _wait_written(self) -> None:
        if not await self._send.wait_written():
            self._raise_unusable()

    async def _wait_finished(self, waiting: Outgoing | Request) -> None:
        if not waiting.finished and not self._ended.is_set():
            if waiting.waiter is None:
                waiting.waiter = trio.Event()
            await waiting.waiter.wait()
        if not waiting.finished:
            self._raise_unusable()

    async def _ask(self, request: Request, make: Callable[[int], Packet]) -> None:
        await self._wait_for_room()
        packet_id = self._ids.allocate()
        try:
            self._send.put(self._connection.send(make(packet_id)))
        except BaseException:
            self._ids.release(packet_id)
            raise
        self._requests.begin(packet_id, request)
        await self._wait_finished(request)

    def _raise_unusable(self) -> None:
        if self._lost is not None:
            lost = ConnectionLostError(self._lost)
            lost.reason = self._lost_reason
            raise lost from self._lost_by
        raise LocalProtocolError("this client has disconnected; open another [MQTT-3.14.4-2]")

    # --- inside: receiving ------------------------------------------------------------------

    def _take(self) -> Publish:
        message = self._inbox.take()
        if message.qos and not self._manual_ack:
            self._acknowledge(message)
        return message

    def _acknowledge(self, message: Publish) -> None:
        """Note that a message is finished, and send all acknowledgements that are due."""
        packet_id = message.packet_id
        if message.qos == 2:
            # Also if the connection is lost, because then the server sends it again.
            self._session.received.add(packet_id)
        leaving = self._receipts[message.qos - 1].done(packet_id)
        if not self._disconnected:
            answer = PubAck if message.qos == 1 else PubRec
            for number in leaving:
                self._send.put(self._encode(answer(number)))

    def _must_not_read(self) -> bool:
        return self._inbox.full or not self._send.has_room_for_acks

    def _handle(self, packet: Packet) -> None:
        match packet:
            case Publish():
                self._handle_publish(packet)
            case PubAck() | PubComp():
                self._outbound.finish(packet)
            case PubRec():
                self._outbound.received(packet)
            case PubRel():
                self._session.received.discard(packet.packet_id)
                self._send.put(self._encode(PubComp(packet.packet_id)))
            case SubAck() | UnsubAck():
                self._requests.finish(packet)
            case Disconnect():
                # The reader notices the end of the connection itself.
                self._lost_reason = packet.reason
                self._end(why_disconnected(packet))
            case _:
                pass  # PINGRESP: any input counts as an answer; see `_read`.

    def _handle_publish(self, publish: Publish) -> None:
        if self._leaving:
            return
        if publish.qos:
            packet_id = publish.packet_id
            if not self._receipts[publish.qos - 1].arrived(packet_id):
                # A duplicate: acknowledging the first one acknowledges it, too [MQTT-4.3.3-2].
                if publish.qos == 1 and not publish.dup:
                    raise RemoteProtocolError(
                        f"the server sent a new message with packet identifier {packet_id} before "
                        "the PUBACK for the last one with it [MQTT-2.3.1-4]"
                    )
                return
            if publish.qos == 2 and packet_id in self._session.received:
                # The consumer has taken it; its PUBREC must have been lost [MQTT-4.3.3-2].
                self._acknowledge(publish)
                return
        self._inbox.put(publish)

    def _end(self, what: str, cause: BaseException | None = None) -> None:
        """Note that the connection has ended, and wake all tasks that wait for it."""
        if self._ended.is_set():
            return
        self._ended.set()
        # Once DISCONNECT is written, this client has asked the server to close.
        if not self._disconnected or self._send.unwritten:
            self._lost = what
            self._lost_by = cause
        self._send.close()
        unfinished: list[Outgoing | Request] = [*self._outbound.unfinished()]
        for waiting in [*unfinished, *self._requests.unfinished()]:
            if waiting.waiter is not None:
                waiting.waiter.set()
        self._inbox.arrived.unpark_all()
        self._outbound.wake()

    # --- inside: the tasks ------------------------------------------------------------------

    async def _read(self) -> None:
        """Run the reader until the connection ends."""
        connection = self._connection
        try:
            while True:
                while (packet := connection.next_packet()) is not NEED_DATA:
                    self._handle(packet)
                self._reading = False
                while self._must_not_read():
                    if self._send.has_room_for_acks:
                        await self._inbox.wait_drained()
                    else:
                        await self._send.room.park()
                    self._keep_alive.passed_over()
                self._reading = True
                data = await self._stream.receive_some(READ_SIZE)
                if not data:
                    break
                self._keep_alive.heard()
                connection.receive_data(bytes(data))
        except RemoteProtocolError as exc:
            await self._say_why(exc)
            self._end(f"the server broke the protocol: {exc}", exc)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as exc:
            self._end("the connection broke; the server's log may say why", exc)
        else:
            if self._disconnected:
                # The server may have read DISCONNECT and closed before the writer learns that its
                # write is done.
                with trio.move_on_after(_CLOSE_PATIENCE):
                    await self._send.wait_written()
            cut_off = connection.unparsed_bytes
            self._end(
                "the server closed the connection"
                + (f" in the middle of a packet, after {cut_off} bytes of it" if cut_off else "")
            )

    async def _write(self) -> None:
        """Run the writer until the connection ends."""
        try:
            await self._send.run(self._stream)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as exc:
            self._end("the connection broke; the server's log may say why", exc)

    async def _say_why(self, fault: RemoteProtocolError) -> None:
        """Send the server a DISCONNECT with the reason, in MQTT 5 [MQTT-4.13.1-1]."""
        if self._connection.version != PROTOCOL_LEVEL_5 or self._ended.is_set():
            return
        try:
            self._send.put(self._connection.send(Disconnect(reason_of(fault))))
        except LocalProtocolError:
            return  # the server has sent DISCONNECT itself
        with trio.move_on_after(_CLOSE_PATIENCE):
            await self._send.wait_written()
