"""A NATS client on Trio.

Rules:

1. One task reads, whatever the program does: a server of NATS disconnects clients that are slow. So
   a received message is handed to a callback that must not block, or to a bounded buffer.
2. Backpressure reaches publishers: the send buffer has a limit, and `publish` waits for room; the
   server stops reading a client that is too fast for its streams.
3. The client connects again when a connection is lost, to any server of the cluster, and subscribes
   again. What was asked of the lost connection and not answered raises `ConnectionLostError`; the
   program knows whether to repeat it. What is asked meanwhile waits for the new one.
4. NATS delivers at most once without a stream: publications in the send buffer of a lost connection
   are gone. `JetStream.publish` waits for the server's word.
"""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import Callable
from typing import Final

import attrs
import trio
import trio.lowlevel

from ....sockets import TransportError
from ..._connecting import READ_SIZE
from ..._errors import LocalProtocolError, RemoteProtocolError
from ..._one_error import one_error
from ..codec._commands import (
    PING,
    PONG,
    encode_publication,
    encode_subscribe,
    encode_unsubscribe,
)
from ..codec._headers import HeadersToSend
from ..codec._messages import Info, Message, Ping, Pong, Received, ServerError
from ..codec._subjects import check_subject
from ._errors import ConnectionLostError, NoAnswerError, NoRespondersError
from ._link import Link, Wishes, connect
from ._routing import Done, Route, Routing
from ._servers import ServerAddress, ServerPool
from ._subscription import MAX_BUFFERED, MAX_BUFFERED_BYTES, Subscription

logger = logging.getLogger("clearfunds.transports.nats")

NO_RESPONDERS: Final = 503
"""The status of the answer to a request that nobody got [NATS ADR-4]."""

_PROVEN: Final = 5.0
"""Seconds after which a connection has been of use: its server is tried again at once."""

_LEAVING_PATIENCE: Final = 2.0
"""Seconds that a server has to take the last publications when a client leaves."""

_REFUSED_SUBSCRIPTION: Final = re.compile(
    r'permissions violation for subscription to "(?P<subject>[^"]*)"'
    r'( using queue "(?P<queue>[^"]*)")?',
    re.IGNORECASE,
)

_checked: Final = functools.lru_cache(maxsize=4096)(check_subject)


@attrs.frozen
class NatsStatistics:
    """A snapshot of a client.

    Attributes:
        connections: Connections so far.
        subscriptions: Subscriptions.
        requests: Requests without an answer.
        unsent_bytes: Bytes that the stream has not taken yet.
    """

    connections: int
    subscriptions: int
    requests: int
    unsent_bytes: int


class NatsClient:
    """A client of a NATS server, or a cluster; `open_nats` makes one.

    Several tasks may use it at once.
    """

    def __init__(
        self, pool: ServerPool, wishes: Wishes, *, ping_interval: float, inbox_prefix: str
    ) -> None:
        """Make a client that is not connected yet; `open_nats` calls this."""
        if ping_interval <= 0:
            raise ValueError(f"ping_interval has to be positive seconds, not {ping_interval!r}")
        self._pool = pool
        self._wishes = wishes
        self._ping_interval = ping_interval
        self._routing = Routing(inbox_prefix)
        self._link: Link | None = None
        self._connections = 0
        self._lost_at: float | None = None
        self._why = "it has not connected yet"
        self._left = False
        self._changed = trio.lowlevel.ParkingLot()

    def __repr__(self) -> str:
        if self._left:
            return "<NatsClient, left>"
        if self._link is None:
            return f"<NatsClient, not connected: {self._why}>"
        return f"<NatsClient of {self._link.address}>"

    # --- the connection -------------------------------------------------------------------------

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection now."""
        return self._link is not None

    @property
    def has_been_left(self) -> bool:
        """Whether its block has been left: it does nothing any more."""
        return self._left

    @property
    def server(self) -> Info | None:
        """The last INFO of the connected server; None without a connection."""
        return None if self._link is None else self._link.info

    @property
    def unconnected_for(self) -> float:
        """Seconds without a connection until now; 0 if there is one."""
        return 0.0 if self._lost_at is None else trio.current_time() - self._lost_at

    def statistics(self) -> NatsStatistics:
        """Return a snapshot."""
        return NatsStatistics(
            connections=self._connections,
            subscriptions=self._routing.subscriptions,
            requests=self._routing.requests,
            unsent_bytes=0 if self._link is None else self._link.send.unwritten,
        )

    async def wait_connected(self) -> int:
        """Wait for a connection, and return how many there have been: another number, another one.

        Raises:
            LocalProtocolError: The client's block has been left.
        """
        await self._connected_link()
        return self._connections

    async def wait_for_room(self) -> None:
        """Wait for a connection, and for room in its send buffer; `publish_nowait` works then.

        A checkpoint only if it has to wait.

        Raises:
            LocalProtocolError: The client's block has been left.
        """
        await self._link_with_room()

    async def wait_lost(self, connection: int) -> None:
        """Wait until a connection has ended, by the number that `wait_connected` returned."""
        await trio.lowlevel.checkpoint()
        while self._link is not None and self._connections == connection:
            await self._changed.park()

    async def _connected_link(self) -> Link:
        await trio.lowlevel.checkpoint()
        while True:
            if self._left:
                raise _left()
            if self._link is not None:
                return self._link
            await self._changed.park()

    async def _link_with_room(self) -> Link:
        while True:
            link = self._link
            if link is None:
                link = await self._connected_link()
            if link.send.has_room:
                return link
            await link.send.room.park()

    # --- publishing and asking -------------------------------------------------------------------

    def publish_nowait(
        self,
        subject: str,
        payload: bytes = b"",
        *,
        reply: str = "",
        headers: HeadersToSend | None = None,
    ) -> None:
        """Put a message into the send buffer, or raise if it would have to wait.

        Raises:
            trio.WouldBlock: There is no connection, or the send buffer is full.
            LocalProtocolError: A subject or header is wrong, the message is larger than the server
                takes, or the client's block has been left.
        """
        link = self._link
        if link is None or not link.send.has_room:
            if self._left:
                raise _left()
            raise trio.WouldBlock
        self._put(link, subject, payload, reply, headers)

    async def publish(
        self,
        subject: str,
        payload: bytes = b"",
        *,
        reply: str = "",
        headers: HeadersToSend | None = None,
    ) -> None:
        """Publish a message; it waits for a connection and for room in the send buffer.

        A checkpoint only if it has to wait: messages of one pass of the scheduler leave in one
        write.

        Cancellation: the message is not sent.

        Raises:
            LocalProtocolError: As `publish_nowait`.
        """
        link = self._link
        if link is None or not link.send.has_room:
            link = await self._link_with_room()
        self._put(link, subject, payload, reply, headers)

    def _put(
        self, link: Link, subject: str, payload: bytes, reply: str, headers: HeadersToSend | None
    ) -> None:
        _checked(subject)
        if reply:
            _checked(reply)
        data = encode_publication(subject, payload, reply, headers)
        most = link.info.max_payload
        # The command itself is shorter than a few subjects: only then look closer.
        if len(data) > most and len(data) - data.index(b"\r\n") - 4 > most:
            raise LocalProtocolError(
                f"a message to {subject} has {len(payload)} bytes, and headers; the server takes "
                f"{most} at most (its max_payload)"
            )
        link.send.put(data)

    def ask_nowait(
        self,
        subject: str,
        payload: bytes,
        done: Done,
        *,
        headers: HeadersToSend | None = None,
    ) -> str:
        """Send a request whose answer a callback takes; for many at once.

        Args:
            subject: The subject.
            payload: The payload.
            done: Called once, from the task that reads: with the answer, or with a
                `ConnectionLostError`. It must not block.
            headers: Headers.

        Returns:
            The subject of the answer, for `forget`.

        Raises:
            trio.WouldBlock, LocalProtocolError: As `publish_nowait`; `done` is not called then.
        """
        reply = self._routing.ask(done)
        try:
            self.publish_nowait(subject, payload, reply=reply, headers=headers)
        except BaseException:
            self._routing.forget(reply)
            raise
        return reply

    def forget(self, reply: str) -> None:
        """Drop a request of `ask_nowait`, by the subject of its answer; `done` is not called."""
        self._routing.forget(reply)

    async def request(
        self,
        subject: str,
        payload: bytes = b"",
        *,
        headers: HeadersToSend | None = None,
        timeout: float = 5.0,  # noqa: ASYNC109
    ) -> Message:
        """Send a request and return the first answer.

        Args:
            subject: The subject.
            payload: The payload.
            headers: Headers.
            timeout: Seconds for all of it, waiting for a connection included.

        Cancellation: others may have the request, or get it still.

        Raises:
            NoRespondersError: Nobody subscribes to the subject.
            NoAnswerError: No answer came in time.
            ConnectionLostError: The connection ended first; others may have the request.
            LocalProtocolError: As `publish_nowait`.
        """
        answer: list[Message | TransportError] = []
        came = trio.Event()

        def done(found: Message | TransportError) -> None:
            answer.append(found)
            came.set()

        reply = ""
        try:
            with trio.move_on_after(timeout):
                link = await self._link_with_room()
                reply = self._routing.ask(done)
                self._put(link, subject, payload, reply, headers)
                await came.wait()
        finally:
            if reply:
                self._routing.forget(reply)
        if not answer:
            where = "" if reply else f", and there is no connection: {self._why}"
            raise NoAnswerError(f"no answer to {subject} came within {timeout:g} s{where}")
        found = answer[0]
        if isinstance(found, TransportError):
            raise found
        if found.status == NO_RESPONDERS:
            raise NoRespondersError(f"nobody subscribes to {subject}")
        return found

    async def flush(self) -> None:
        """Wait until the server has handled all that was sent so far.

        Cancellation: only the waiting ends.

        Raises:
            ConnectionLostError: The connection ended first.
            LocalProtocolError: The client's block has been left.
        """
        link = await self._connected_link()
        event = trio.Event()
        link.pongs.append(event)
        link.send.put(PING)
        await event.wait()
        if link.why is not None:
            raise ConnectionLostError(link.why)

    # --- subscribing -----------------------------------------------------------------------------

    def subscribe(
        self,
        subject: str,
        *,
        queue: str = "",
        max_buffered: int = MAX_BUFFERED,
        max_buffered_bytes: int = MAX_BUFFERED_BYTES,
    ) -> Subscription:
        """Return a subscription, which begins with its `with` block.

        Args:
            subject: The subject; `*` stands for one token, `>` at the end for all that follow.
            queue: A queue group: each message goes to one of those who subscribe with its name.
            max_buffered: Messages to buffer; over it, those that come are dropped and counted.
            max_buffered_bytes: Their bytes.

        Raises:
            LocalProtocolError: The subject or the name of the group is wrong.
            ValueError: A buffer has no room at all.
        """
        check_subject(subject, wildcards=True)
        if queue:
            check_subject(queue)

        def begin(each: Subscription) -> Callable[[], None]:
            return self.subscribe_with(subject, each.deliver, each.end, queue=queue)

        return Subscription(subject, begin, max_buffered, max_buffered_bytes)

    def subscribe_with(
        self,
        subject: str,
        deliver: Callable[[Message], object],
        ended: Callable[[str | None], object],
        *,
        queue: str = "",
        resumed: Callable[[], object] | None = None,
    ) -> Callable[[], None]:
        """Subscribe with a callback, which must not block, and return what ends the subscription.

        Args:
            subject: The subject, as for `subscribe`.
            deliver: Takes each message.
            ended: Called when nothing more comes: with a sentence if the server does not allow the
                subscription, with None if the client has been left.
            queue: As for `subscribe`.
            resumed: Called when a new connection has the subscription: messages may be missing.

        Raises:
            LocalProtocolError: The client's block has been left.
        """
        if self._left:
            raise _left()
        sid = self._routing.add(Route(subject, queue, deliver, ended, resumed))
        if self._link is not None:
            self._link.send.put(encode_subscribe(sid, subject, queue))

        def end() -> None:
            if self._routing.remove(sid) and self._link is not None:
                self._link.send.put(encode_unsubscribe(sid))

        return end

    def new_inbox(self) -> str:
        """Return a subject of this client's own, for answers that `subscribe` takes."""
        return self._routing.new_inbox()

    # --- inside: the tasks -----------------------------------------------------------------------

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Connect, and again whenever a connection is lost; `open_nats` calls this.

        Raises:
            TransportError: At the beginning, no server accepts.
        """
        link = await self._first_link()
        while True:
            began = trio.current_time()
            self._connections += 1
            self._link = link
            self._lost_at = None
            link.send.put(self._routing.resume())
            self._routing.resumed()
            self._changed.unpark_all()
            task_status.started()
            task_status = trio.TASK_STATUS_IGNORED
            try:
                await self._serve(link)
            finally:
                why = link.why or "the client has left"
                if link.why is not None:
                    logger.warning("lost the connection to %s: %s", link.address, why)
                self._why = link.why = why
                self._lost_at = trio.current_time()
                self._link = None
                link.finish()
                self._routing.lost(why)
                self._changed.unpark_all()
                await trio.aclose_forcefully(link.stream)
            if self._lost_at - began >= _PROVEN:
                self._pool.worked(link.address)
            self._pool.failed(link.address, self._lost_at)
            link = await self._next_link()
            logger.warning(
                "connected to %s again, after %.1f s", link.address, self.unconnected_for
            )

    async def leave(self) -> None:
        """Send what is in the send buffer, and take no more; `open_nats` calls this."""
        if self._link is None or self._left:
            return
        with trio.move_on_after(_LEAVING_PATIENCE):
            try:
                await self.flush()
            except ConnectionLostError as error:
                logger.warning("the last publications may be lost: %s", error)

    def left(self) -> None:
        """Note that the client's block has been left; `open_nats` calls this."""
        self._left = True
        self._routing.end()
        self._changed.unpark_all()

    async def _first_link(self) -> Link:
        failures: list[str] = []
        for _ in range(len(self._pool)):
            address, _ = self._pool.next()
            try:
                return await self._try(address)
            except TransportError as error:
                failures.append(f"{address}: {error}")
        raise TransportError("no NATS server accepts: " + "; ".join(failures))

    async def _next_link(self) -> Link:
        while True:
            address, not_before = self._pool.next()
            await trio.sleep_until(max(not_before, trio.current_time()))
            try:
                return await self._try(address)
            except TransportError as error:
                self._why = f"{address}: {error}"
                logger.info("cannot connect to %s: %s", address, error)

    async def _try(self, address: ServerAddress) -> Link:
        try:
            link = await connect(address, self._wishes)
        except TransportError:
            self._pool.failed(address, trio.current_time())
            raise
        self._pool.learn(link.info.connect_urls, address)
        return link

    async def _serve(self, link: Link) -> None:
        with one_error():
            async with trio.open_nursery() as nursery:
                link.scope = nursery.cancel_scope
                nursery.start_soon(self._write, link)
                nursery.start_soon(self._ping, link)
                await self._read(link)

    async def _read(self, link: Link) -> None:
        try:
            self._handle(link, link.early)
            while True:
                data = await link.stream.receive_some(READ_SIZE)
                if not data:
                    link.end("the server closed the connection")
                    return
                link.heard_at = trio.current_time()
                self._handle(link, link.parser.receive(data))
        except RemoteProtocolError as error:
            link.end(f"the server broke the protocol: {error}")
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            link.end(f"the connection broke: {error}")

    def _handle(self, link: Link, received: list[Received]) -> None:
        dispatch = self._routing.dispatch
        for part in received:
            match part:
                case Message():
                    dispatch(part)
                case Ping():
                    self._answer_ping(link)
                case Pong():
                    if not link.pongs:
                        raise RemoteProtocolError("PONG answers no PING")
                    event = link.pongs.popleft()
                    if event is not None:
                        event.set()
                case Info():
                    link.info = part
                    self._pool.learn(part.connect_urls, link.address)
                    if part.lame_duck:
                        logger.warning("%s is about to end", link.address)
                case ServerError():
                    self._note(link, part.text)

    def _answer_ping(self, link: Link) -> None:
        if link.send.has_room_for_acks:
            link.send.put(PONG)
        else:
            link.end("the server sends and does not read")

    def _note(self, link: Link, text: str) -> None:
        """Note an error of the server's; it closes the connection itself where it has to."""
        logger.warning("%s reports: %s", link.address, text)
        refused = _REFUSED_SUBSCRIPTION.match(text)
        if refused is not None:
            self._routing.refused(refused["subject"], refused["queue"] or "", text)
        elif not text.lower().startswith("permissions violation"):
            link.last_error = text

    async def _write(self, link: Link) -> None:
        try:
            await link.send.run(link.stream)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            link.end(f"the connection broke: {error}")

    async def _ping(self, link: Link) -> None:
        """Ask a silent server whether it is still there.

        Any input counts as an answer. A server answers unless it hangs: this side always reads.
        """
        interval = self._ping_interval
        while True:
            await trio.sleep_until(max(link.heard_at, trio.current_time() - interval) + interval)
            if trio.current_time() - link.heard_at < interval:
                continue
            link.pongs.append(None)
            link.send.put(PING)
            asked_at = trio.current_time()
            await trio.sleep(interval)
            # If this thread was busy meanwhile, the answer may wait to be read.
            await trio.lowlevel.checkpoint()
            if link.heard_at < asked_at:
                silent = trio.current_time() - link.heard_at
                link.end(f"the server has been silent for {silent:.1f} s")
                return


def _left() -> LocalProtocolError:
    return LocalProtocolError("this NATS client has been left; open another")
