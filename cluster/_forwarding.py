"""Connections that one relay accepts and another one serves.

Rules of this file:
1. A connection's bytes are in order and whole, or it ends (`_links.py`).
2. A bridge reads no more of its client than the other end has room for: a client whose account owes
   too much at the other relay is not read here either.
3. A bridge ends with its client, with the other end, or with the other relay, as this one sees it.

Theory of operation. The relay that the client has connected to asks the other one to serve it, with
the client's CONNECT. The other relay makes a pair of sockets: one end is served as any connection,
what passes the other end crosses. What the first relay has found out about the client, its
address and its user, crosses with the request, and no password does.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import json
import logging
import secrets
import socket
from typing import TYPE_CHECKING, Any, Final, NoReturn

import attrs
import trio

from ..transports import RemoteProtocolError, TransportError
from ..transports._link import Link, Voucher
from ._links import CHUNK_BYTES, HEAD_BYTES, Frame, Kind, LinkEnd
from ._wake import Wake

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..transports.mqtt.server._homes import Passage
    from ..transports.mqtt.server._server import MqttServer
    from ..transports.nats import Message
    from ._cluster import Cluster
    from ._companion import Place
    from ._peer import Peer

logger = logging.getLogger("clearfunds.cluster")

SUBJECT: Final = "clearfunds-links"
OPEN: Final = "open"
OPEN_SECONDS: Final = 5.0
"""Another relay has so long to say whether it serves a client."""
LOOK_SECONDS: Final = 1.0
"""Seconds between two looks at all bridges: a relay that has left is noticed after so long."""
LINGER_SECONDS: Final = 1.0
"""A client has so long to read the last that the other relay has sent, as on one relay."""


class ForwardedLink(Link):
    """The end of a pair of sockets that is served for a client of another relay.

    Args:
        sock: The socket; taken over.
        peer: The client's address, as the other relay has it.
        voucher: The other relay's word for the client.
    """

    __slots__ = ("_voucher",)

    def __init__(self, sock: socket.socket, peer: str, voucher: Voucher) -> None:
        super().__init__(sock, peer)
        self._voucher = voucher

    @property
    def voucher(self) -> Voucher:
        """See `Link.voucher`."""
        return self._voucher


@attrs.frozen
class _Request:
    """The request to serve a client."""

    link: int
    number: int
    """That of the two relays' lives: see `Peer`."""
    peer: str
    listener: str
    voucher: Voucher
    first: bytes

    def encode(self) -> bytes:
        voucher = self.voucher
        head = {
            "link": self.link,
            "number": self.number,
            "peer": self.peer,
            "listener": self.listener,
            "verified": voucher.is_verified,
            "expires_in": voucher.expires_in,
            "last": base64.b64encode(voucher.last).decode(),
        }
        return json.dumps(head).encode() + b"\n" + self.first

    @classmethod
    def of(cls, data: bytes) -> _Request:
        """Decode a request.

        Raises:
            RemoteProtocolError: It is none.
        """
        text, _, first = data.partition(b"\n")
        try:
            head: Any = json.loads(text)
            link, number, expires_in = head["link"], head["number"], head["expires_in"]
            if type(link) is not int or type(number) is not int:
                raise TypeError("a number has a wrong type")
            if not isinstance(expires_in, float | int | None):
                raise TypeError("its time has a wrong type")
            voucher = Voucher(
                bool(head["verified"]), expires_in, base64.b64decode(head["last"], validate=True)
            )
            return cls(link, number, str(head["peer"]), str(head["listener"]), voucher, first)
        except (ValueError, TypeError, LookupError, RecursionError, binascii.Error) as exc:
            msg = f"this is no request to serve a client: {exc!r}"
            raise RemoteProtocolError(msg) from exc


class _Bridge:
    """One end of a connection between two relays, with the socket that it leads to.

    Attributes:
        peer: The other relay, in the life in which the connection began.
        why: Why it has ended.
    """

    def __init__(
        self,
        forwarding: Forwarding,
        place: Place,
        peer: Peer,
        link: Link,
        end: LinkEnd,
        first: bytes = b"",
    ) -> None:
        self.peer = peer
        self.why = ""
        self._forwarding = forwarding
        self._nats = place.data
        self._subject = f"{SUBJECT}.{place.cluster}.{peer.name}.{place.name}"
        self._link = link
        self._end = end
        # What is to be written next; and how much of that has not come in chunks.
        self._rest = memoryview(first)
        self._unnumbered = len(first)
        # Whether the socket takes no more now, or the bridge has not begun.
        self._is_full = True
        self._arrived = Wake()
        self._roomy = Wake()
        self._scope = trio.CancelScope()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._link.peer}, {self.peer.name}: {self._end}>"

    # -- its life ---------------------------------------------------------------------------------

    async def _cross(self) -> None:
        """Let bytes cross until one side has ended; tell the other end."""
        link = self._link
        read_bytes, link.read_bytes = link.read_bytes, CHUNK_BYTES
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._write)
                    await self._read()
                    nursery.cancel_scope.cancel()
        finally:
            link.read_bytes = read_bytes
            if not self._end.has_ended:
                self.put_nowait(self._end.end(self.why or "it was cut"))

    def fail(self, why: str) -> None:
        """End it for this reason."""
        self.why = self.why or why
        self._scope.cancel()

    async def _read(self) -> None:
        """Read what the socket has, as far as the other end has room; until it has ended."""
        end, link = self._end, self._link
        while True:
            while not end.room and end.ended is None:
                await self._roomy.wait()
            try:
                data = await link.receive()
            except OSError as exc:
                data = b""
                self.why = self.why or f"the connection broke: {exc.strerror or exc}"
            if not data:
                self.why = self.why or "the client closed the connection"
                await self._put_end()
                return
            await self._send(data)

    async def _send(self, data: bytes) -> None:
        end = self._end
        position = 0
        while position < len(data) and end.ended is None:
            room = min(end.room, CHUNK_BYTES)
            if not room:
                await self._roomy.wait()
                continue
            await self._nats.wait_for_room()
            server = self._nats.server
            if server is not None:
                room = min(room, server.max_payload - HEAD_BYTES)
            self.put_nowait(end.send(data[position : position + room]))
            position += room

    async def _put_end(self) -> None:
        await self._nats.wait_for_room()
        self.put_nowait(self._end.end(self.why))

    async def _write(self) -> None:
        """Write what comes to the socket, until the other end has ended and all is written."""
        end, sock = self._end, self._link.sock
        self._is_full = False
        while True:
            if not self._write_now():
                await trio.lowlevel.wait_writable(sock)
                self._is_full = False
            elif end.ended is not None:
                self._all_written(end.ended)
                return
            else:
                await self._arrived.wait()

    def _write_now(self) -> bool:
        """Write what has come; return whether the socket has taken it all."""
        end = self._end
        while not self._is_full:
            if not self._rest:
                self._rest = memoryview(end.take())
                if not self._rest:
                    return True
            try:
                sent = self._link.sock.send(self._rest)
            except BlockingIOError:
                self._is_full = True
                break
            except OSError as exc:
                self.fail(f"the connection broke: {exc.strerror or exc}")
                self._is_full = True  # nobody waits for it any more
                break
            self._rest = self._rest[sent:]
            counts = max(0, sent - self._unnumbered)
            self._unnumbered -= sent - counts
            told = end.took(counts)
            if told is not None:
                self.put_nowait(told)
        return False

    def _all_written(self, why: str) -> None:
        """Note that the other end has ended, and that all it has sent is written."""
        raise NotImplementedError

    def _is_ending(self) -> None:
        """Note that the other end has ended."""

    # -- frames -----------------------------------------------------------------------------------

    def put_nowait(self, frame: bytes) -> None:
        """Send a frame. If that is not possible now it is lost, which the other end notices."""
        try:
            self._nats.publish_nowait(self._subject, frame)
        except trio.WouldBlock:
            self._end.doubt()
        except TransportError as exc:
            self.fail(str(exc))

    def receive(self, frame: Frame, now: float) -> None:
        """Take a frame of the other end."""
        end = self._end
        try:
            answer = end.receive(frame, now)
        except RemoteProtocolError as exc:
            self.fail(f"the connection to relay {self.peer.name} is broken: {exc}")
            return
        if answer is not None:
            self.put_nowait(answer)
        if end.ended is not None:
            self._is_ending()
        # Here, and not by the task that waits for the socket: that would cost as much again.
        if (end.has_input and not self._write_now()) or end.ended is not None:
            self._arrived.set()
        self._roomy.set()

    def look(self, now: float, there: Peer | None) -> None:
        """Look whether the other end is still there."""
        if there is not self.peer:
            self.fail(f"relay {self.peer.name} has left the cluster")
            return
        try:
            question = self._end.look(now)
        except RemoteProtocolError as exc:
            self.fail(f"the connection to relay {self.peer.name} is silent: {exc}")
            return
        if question is not None:
            self.put_nowait(question)

    def doubt(self) -> None:
        """Ask the other end at the next look."""
        self._end.doubt()


class OutwardBridge(_Bridge):
    """A connection to this relay that another one serves; see `Bridge` of the MQTT server.

    Attributes:
        refusal: Why the other relay does not serve it; None: it does, or did.
    """

    def __init__(self, forwarding: Forwarding, place: Place, peer: Peer, passage: Passage) -> None:
        end = LinkEnd(secrets.randbits(63), is_opener=True, now=trio.current_time())
        super().__init__(forwarding, place, peer, passage.link, end)
        self.refusal: str | None = None
        self._passage = passage

    async def wait(self) -> None:
        """Have the other relay serve the connection, until that has ended.

        Cancellation: the other relay ends it, too.
        """
        opened = self._forwarding.opened
        place = self.peer.name, self._end.link
        opened[place] = self
        try:
            self.refusal = await self._open()
            if self.refusal is None:
                logger.info(
                    "%s is served by relay %s, which has its session",
                    self._link.peer, self.peer.name,
                    extra={"event": "forwarded", "relay": self.peer.name, "peer": self._link.peer},
                )  # fmt: skip
                await self._cross()
                self.why = f"relay {self.peer.name} served it: {self.why}"
        finally:
            del opened[place]
            if not self._end.has_ended:  # the request may have come there
                self.put_nowait(self._end.end("it is not wanted any more"))

    async def _open(self) -> str | None:
        """Ask the other relay; return why it does not serve the client."""
        passage = self._passage
        request = _Request(
            self._end.link,
            self.peer.number,
            passage.link.peer,
            passage.listener,
            passage.voucher,
            passage.first,
        )
        try:
            answer = await self._nats.request(
                f"{self._subject}.{OPEN}", request.encode(), timeout=OPEN_SECONDS
            )
        except TransportError as exc:
            return f"relay {self.peer.name}, which has its session, does not answer: {exc}"
        why = answer.payload.decode(errors="replace")
        return f"relay {self.peer.name}, which has its session, refuses: {why}" if why else None

    def _is_ending(self) -> None:
        self._scope.deadline = min(self._scope.deadline, trio.current_time() + LINGER_SECONDS)

    def _all_written(self, why: str) -> None:
        self.fail(why)


class InwardBridge(_Bridge):
    """A connection to another relay that this one serves."""

    async def run(self, mqtt: MqttServer, near: Link, listener: str) -> None:
        """Serve it until it has ended. Raises only `trio.Cancelled`."""
        served = self._forwarding.served
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(mqtt.handle, near, listener)
                try:
                    await self._cross()
                except Exception as exc:  # noqa: BLE001 (the nursery is of all bridges)
                    mqtt.ledger.faults.note(None, f"serving a client of {self.peer.name}", exc)
                finally:
                    self._link.close()  # the session finds the end of its stream
        finally:
            del served[self.peer.name, self._end.link]

    def _all_written(self, why: str) -> None:
        # What the session has still to send is read, and goes nowhere.
        self.why = self.why or why
        with contextlib.suppress(OSError):
            self._link.sock.shutdown(socket.SHUT_WR)


class Forwarding:
    """Has clients served by other relays, and serves theirs; a `Companion`.

    Args:
        mqtt: The relay's MQTT side.
        cluster: Its place in the cluster.

    Attributes:
        opened: The connections to this relay that others serve, by relay and number.
        served: The connections to others that this one serves.
    """

    def __init__(self, mqtt: MqttServer, cluster: Cluster) -> None:
        self.opened: dict[tuple[str, int], OutwardBridge] = {}
        self.served: dict[tuple[str, int], InwardBridge] = {}
        self._mqtt = mqtt
        self._cluster = cluster
        cluster.forwarding = self
        self._place: Place | None = None
        self._nursery: trio.Nursery | None = None

    async def run(
        self, place: Place, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """See `Companion.run`.

        Cancellation: all bridges end.
        """
        subject = f"{SUBJECT}.{place.cluster}.{place.name}.>"
        end = place.data.subscribe_with(subject, self._take, self._refused, resumed=self._resumed)
        try:
            async with trio.open_nursery() as nursery:
                self._place, self._nursery = place, nursery
                nursery.start_soon(self._look)
                task_status.started()
        finally:
            self._place = self._nursery = None
            end()

    def cross(self, relay: str, passage: Passage) -> OutwardBridge | None:
        """Return a connection that another relay is to serve; None: the relay is not there."""
        peer = self._cluster.peers.get(relay)
        if self._place is None or peer is None:
            return None
        return OutwardBridge(self, self._place, peer, passage)

    def _bridges(self) -> Iterator[_Bridge]:
        yield from list(self.opened.values())
        yield from list(self.served.values())

    async def _look(self) -> NoReturn:
        while True:
            await trio.sleep(LOOK_SECONDS)
            now, peers = trio.current_time(), self._cluster.peers
            call = self._mqtt.ledger.faults.call
            for bridge in self._bridges():
                there = peers.get(bridge.peer.name)
                call(None, "looking after a bridge", bridge.look, now, there)

    def _resumed(self) -> None:
        for bridge in self._bridges():
            bridge.doubt()

    def _refused(self, why: str | None) -> None:
        if why is not None:
            logger.error("NATS does not let this relay serve the others' clients: %s", why)

    # -- what comes -------------------------------------------------------------------------------

    def _take(self, message: Message) -> None:
        relay, _, is_open = message.subject.split(".", 3)[3].partition(".")
        self._mqtt.ledger.faults.call(
            None,
            f"taking what relay {relay} passes on",
            self._take_request if is_open else self._take_frame,
            relay,
            message,
        )

    def _take_frame(self, relay: str, message: Message) -> None:
        try:
            frame = Frame.of(message.payload)
        except RemoteProtocolError as exc:
            logger.error("relay %s: %s", relay, exc, extra={"event": "bad_relay"})
            return
        table = self.served if frame.by_opener else self.opened
        bridge = table.get((relay, frame.link))
        if bridge is not None:
            bridge.receive(frame, trio.current_time())
        elif frame.kind is not Kind.END and self._place is not None and self._is_there:
            last = Frame(Kind.END, not frame.by_opener, frame.link, 0, 0, b"it has ended")
            self._say(f"{SUBJECT}.{self._place.cluster}.{relay}.{self._place.name}", last.encode())

    @property
    def _is_there(self) -> bool:
        """Whether this relay is the one of its name: another may stand in for it, and answers."""
        lease = self._cluster.lease
        return lease is not None and lease.is_held

    def _take_request(self, relay: str, message: Message) -> None:
        if not self._is_there:
            return
        try:
            why = self._serve(relay, _Request.of(message.payload))
        except (RemoteProtocolError, OSError) as exc:
            logger.error("relay %s passes a client on: %s", relay, exc)
            why = str(exc)
        self._say(message.reply, why.encode())

    def _say(self, subject: str, data: bytes) -> None:
        assert self._place is not None
        with contextlib.suppress(trio.WouldBlock, TransportError):
            self._place.data.publish_nowait(subject, data)

    def _serve(self, relay: str, request: _Request) -> str:
        """Begin to serve a client of another relay; return why it is not served, or "".

        Raises:
            OSError: There are no more descriptors.
        """
        mqtt, place, nursery = self._mqtt, self._place, self._nursery
        peer = self._cluster.peers.get(relay)
        if peer is None or place is None or nursery is None:
            return f"relay {relay} is not known here"
        if request.number != peer.number:
            return f"relay {relay} means another life of one of the two"
        if mqtt.stopping:
            return "it stops"
        if len(mqtt.admission) >= mqtt.admission.limit:
            return f"it has {len(mqtt.admission)} connections, its limit (max_connections)"
        if (relay, request.link) in self.served:
            return "there is such a connection"
        near, far = socket.socketpair()
        for sock in (near, far):
            sock.setblocking(False)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, CHUNK_BYTES)
        served = ForwardedLink(near, request.peer, request.voucher)
        end = LinkEnd(request.link, is_opener=False, now=trio.current_time())
        bridge = InwardBridge(self, place, peer, Link(far, request.peer), end, request.first)
        self.served[relay, request.link] = bridge
        nursery.start_soon(bridge.run, mqtt, served, request.listener)
        return ""
