"""Clients for `mixed`: what they say is theirs to say, and they read and answer when told to."""

from __future__ import annotations

import contextlib
import random
import socket
import struct
import zlib
from collections import deque
from collections.abc import Callable
from typing import Any, Final

import attrs

from clearfunds.ranges.server import FrameReader
from clearfunds.ranges.wire import (
    Abort,
    Ack,
    AfterGrace,
    AskHead,
    Attach,
    Commit,
    Detach,
    Drop,
    Fetch,
    Forget,
    Frame,
    Hello,
    Kind,
    Open,
    Request,
    Start,
    encode_frame,
    encode_request,
)
from clearfunds.transports.mqtt import (
    Auth,
    ConnAck,
    Connect,
    Packet,
    Properties,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    Will,
    encode,
    encode5,
)
from clearfunds.transports.mqtt.codec._frames import find_frame
from clearfunds.transports.mqtt.codec._packets import decode
from clearfunds.transports.mqtt.codec._packets5 import decode5

METHOD: Final = "SCRAM-SHA-256"

MAX_UNSENT: Final = 50_000
"""Bytes that a client still has to send before it says nothing new: it is not read."""

MAX_UNDER_WAY: Final = 3
"""Publications of QoS 1 and 2 of one client that have not been answered."""

Bill = Callable[[str, bool], bytes]
"""Returns what a payload begins with, so that it can be seen who has to pay for it: given who, and
whether it may come as a replay, too."""


class Socket:
    """One end of a pair, with what has not gone out of it yet."""

    def __init__(self) -> None:
        self.sock: socket.socket | None = None
        self._unsent = b""

    @property
    def open(self) -> bool:
        return self.sock is not None

    @property
    def busy(self) -> bool:
        """Whether what it has said is not read."""
        return len(self._unsent) > MAX_UNSENT

    def take(self, sock: socket.socket) -> None:
        self.sock = sock
        self._unsent = b""

    def say(self, data: bytes = b"") -> None:
        self._unsent += data
        if self.sock is not None and self._unsent:
            with contextlib.suppress(BlockingIOError):
                try:
                    while self._unsent:
                        self._unsent = self._unsent[self.sock.send(self._unsent) :]
                except BlockingIOError:
                    raise
                except OSError:
                    self._unsent = b""  # it is read to its end all the same

    def hear(self, most: int) -> bytes:
        """Read so many bytes, if there are any; close at the end."""
        data = b""
        while self.sock is not None and len(data) < most:
            try:
                piece = self.sock.recv(min(most - len(data), 1 << 16))
            except BlockingIOError:
                break
            except OSError:
                piece = b""
            if not piece:
                self.close()
            data += piece
        self.say()
        return data

    def close(self) -> None:
        if self.sock is not None:
            self.sock.close()
            self.sock = None


class Client(Socket):
    """One that speaks MQTT, 3.1.1 or 5."""

    def __init__(self, name: str, listener: str, bill: Bill, scram: Any) -> None:
        super().__init__()
        self.name = name
        self._listener = listener
        self._bill = bill
        self._scram = scram
        self._proof: Any = None
        self.user = "-"
        self.version = 4
        self.proved = False
        self.came = False
        self._buffer = b""
        self.unacknowledged: deque[PubAck | PubRec | PubComp] = deque()
        self._packet_id = 0
        self._under_way = 0
        self._count = 0

    @property
    def account(self) -> str:
        """The name of its account."""
        return f"{self._listener}/{self.user}/{self.name}"

    def hello(self, chance: random.Random, users: bool) -> bytes:
        """Return a CONNECT."""
        self.version = chance.choice((4, 5, 5))
        self.user, password, properties = "-", None, Properties()
        self._buffer = b""
        self.unacknowledged.clear()
        self._under_way = 0
        self._proof, self.proved, self.came = None, False, False
        clean = chance.random() < 0.4
        if users and chance.random() < 0.5:
            self.user, password = chance.choice("uv"), b"secret"
        if self.version == 5:
            said: dict[str, Any] = {}
            if chance.random() < 0.6:
                said["session_expiry"] = chance.choice((1, 5, 100, 0xFFFF_FFFF))
            if chance.random() < 0.3:
                said["receive_maximum"] = chance.choice((1, 2))
            if chance.random() < 0.1:
                said["maximum_packet_size"] = chance.choice((200, 1000))
            if chance.random() < 0.3:
                said["topic_alias_maximum"] = 2
            if self._scram is not None and self.user != "-" and chance.random() < 0.8:
                password = None
                said |= self._begin_proof(self.user)
            properties = Properties(**said)
        will = None
        if chance.random() < 0.4:
            will = self._will(chance)
        username = None if self.user == "-" or self._proof is not None else self.user
        connect = Connect(
            self.name,
            clean,
            0,
            username,
            password,
            will,
            protocol_level=self.version,
            properties=properties,
        )
        return self.encoded(connect)

    def _will(self, chance: random.Random) -> Will:
        retain = chance.random() < 0.3
        topic = chance.choice(RETAINED if retain else TOPICS)
        delay = Properties()
        if self.version == 5:
            delay = Properties(will_delay=chance.choice((0, 1, 20)))
        body = self._bill(self.account, retain) + bytes(chance.choice((0, 500)))
        return Will(topic, body, chance.randrange(3), retain, properties=delay)

    def _begin_proof(self, user: str) -> dict[str, Any]:
        self._proof = self._scram.ScramClient([METHOD], user, "secret")
        first = self._proof.get_client_first().encode()
        return {"authentication_method": METHOD, "authentication_data": first}

    def prove_again(self, chance: random.Random) -> None:
        """Begin to authenticate again, as the same user or, for once, as another."""
        if self.proved:
            self.proved = False  # until it is again
            user = self.user if chance.random() < 0.9 else "w"
            self.say(encode5(Auth(0x19, Properties(**self._begin_proof(user)))))

    def encoded(self, packet: Packet) -> bytes:
        return encode(packet) if self.version == 4 else encode5(packet)

    def tell(self, *packets: Packet) -> None:
        self.say(b"".join(map(self.encoded, packets)))

    def publish(self, chance: random.Random) -> None:
        """Publish some."""
        for _ in range(chance.choice((1, 1, 2, 5, 20))):
            if self.busy or not self.open:
                return
            retain = chance.random() < 0.15
            # What it may not have under way costs it its connection, now and then.
            full = self._under_way >= MAX_UNDER_WAY and chance.random() < 0.95
            qos = 0 if full else chance.randrange(3)
            self._under_way += bool(qos)
            self._packet_id = self._packet_id % 50 + 1
            body = self._bill(self.account, retain) + bytes(chance.choice((0, 10, 300, 1500)))
            if retain and chance.random() < 0.2:
                body = b""
            said: dict[str, Any] = {}
            if self.version == 5 and chance.random() < 0.3:
                said["message_expiry"] = chance.choice((0, 1, 30))
            if self.version == 5 and chance.random() < 0.2:
                said["user"] = (("k", "v"),)
            self.tell(
                Publish(
                    chance.choice(RETAINED if retain else TOPICS),
                    body,
                    qos,
                    retain,
                    packet_id=self._packet_id if qos else 0,
                    properties=Properties(**said),
                )
            )

    def read(self, most: int) -> None:
        """Read so many bytes; what is to be acknowledged is for `acknowledge`."""
        self._buffer += self.hear(most)
        while self._buffer:
            frame = find_frame(self._buffer, 0)
            if frame is None or frame[1] > len(self._buffer):
                return
            start, end = frame
            body = self._buffer[start:end]
            first, self._buffer = self._buffer[0], self._buffer[end:]
            self._take((decode if self.version == 4 else decode5)(first, body))

    def _take(self, packet: Packet) -> None:
        if isinstance(packet, Publish) and packet.qos:
            answer = PubAck if packet.qos == 1 else PubRec
            self.unacknowledged.append(answer(packet.packet_id))
        elif isinstance(packet, PubRel):
            self.unacknowledged.append(PubComp(packet.packet_id))
        elif isinstance(packet, PubRec) and packet.reason < 0x80:
            self.tell(PubRel(packet.packet_id))
        elif isinstance(packet, PubAck | PubRec | PubComp):
            self._under_way = max(0, self._under_way - 1)
        elif isinstance(packet, ConnAck):
            self.came = packet.return_code == 0
            self.proved = self.came and self._proof is not None
        elif isinstance(packet, Auth) and not packet.reason:
            self.proved = True
        elif isinstance(packet, Auth) and packet.reason == 0x18 and self._proof is not None:
            data = packet.properties.authentication_data
            assert data is not None
            self._proof.set_server_first(data.decode())
            final = self._proof.get_client_final().encode()
            said = Properties(authentication_method=METHOD, authentication_data=final)
            self.say(encode5(Auth(0x18, said)))

    def acknowledge(self, chance: random.Random) -> None:
        """Acknowledge some, in order or not, or refuse."""
        waiting = list(self.unacknowledged)
        if chance.random() < 0.3:
            chance.shuffle(waiting)
        for packet in waiting[: chance.choice((1, 3, len(waiting)))]:
            self.unacknowledged.remove(packet)
            if self.version == 5 and not isinstance(packet, PubComp) and chance.random() < 0.15:
                packet = attrs.evolve(packet, reason=0x80)
            self.tell(packet)


TOPICS: Final = ("t/a", "t/b", "t/c/d", "v")
RETAINED: Final = ("t/a", "r/a", "r/b", "r/c", "r/d")


class Reader(Socket):
    """One that reads ranges."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self._frames = FrameReader(100 << 20)
        self._handle = 0
        self._low = self._next = 0

    def ask(self, *requests: Request) -> None:
        self.say(b"".join(encode_request(1, request) for request in requests))

    def come(self, sock: socket.socket, chance: random.Random, durable: bool) -> None:
        self.take(sock)
        self._frames = FrameReader(100 << 20)
        self._handle = 0
        self.ask(
            Hello(1, 1),
            Attach(
                name=self.name,
                filters=(chance.choice(("t/#", "#", "v")),),
                durable=durable,
                start=chance.choice((None, Start.EARLIEST, Start.LATEST)),
                grace=chance.choice((None, 0.0, 0.1)),
                after_grace=chance.choice((None, *AfterGrace)),
            ),
        )

    def step(self, chance: random.Random) -> None:
        self.hear_all()
        if not self._handle:
            return
        handle, low, high = self._handle, self._low, self._next
        what = chance.random()
        if what < 0.4:
            self.ask(AskHead(handle), Fetch(handle, low, high, chance.choice((1, 1000, 1 << 20))))
        elif what < 0.8:
            self.ask(Ack(handle, chance.randint(low, max(low, high))), AskHead(handle))
        elif what < 0.9:
            self.ask(AskHead(handle))
        elif what < 0.95:
            self.ask(Detach(handle))
            self.close()
        else:
            self.ask(Drop(handle))
            self._handle = 0

    def hear_all(self) -> None:
        if data := self.hear(1 << 24):
            self._frames.receive_data(data)
        while isinstance(frame := self._frames.next_frame(), Frame):
            if frame.kind == Kind.ATTACHED:
                self._handle, _, _, self._low, self._next = struct.unpack_from(
                    "<IIQQQ", frame.payload
                )
            elif frame.kind == Kind.HEAD_IS:
                self._low, self._next = struct.unpack_from("<QQ", frame.payload)


class Writer(Socket):
    """One that writes batches."""

    def __init__(self, name: str, bill: Bill) -> None:
        super().__init__()
        self.name = name
        self._bill = bill
        self._batch = 0
        self._staged = 0

    def come(self, sock: socket.socket) -> None:
        self.take(sock)
        self._staged = 0
        self.say(
            encode_request(0, Hello(1, 1)) + encode_request(1, Open(self.name, take_over=True))
        )

    def step(self, chance: random.Random) -> None:
        self.hear(1 << 24)
        what = chance.random()
        if self.busy:
            return
        if what < 0.55:
            self._stage(chance, whole=chance.random() < 0.9)
        elif what < 0.9:
            parts = tuple((part, 1) for part in range(self._staged))
            self.say(encode_request(3, Commit(self._batch, parts)))
            self._next()
        elif what < 0.97:
            self.say(encode_request(3, Abort(self._batch)))
            self._next()
        else:
            self.say(encode_request(3, Forget()))
            self.close()

    def _next(self) -> None:
        self._batch += 1
        self._staged = 0

    def _stage(self, chance: random.Random, *, whole: bool) -> None:
        rows = [
            (
                chance.choice(TOPICS).encode(),
                self._bill(self.name, False) + bytes(chance.choice((0, 400))),
            )
            for _ in range(chance.choice((1, 3, 10)))
        ]
        keys, values = zip(*rows, strict=True)
        block = b"".join(
            (
                struct.pack("<IIQ", len(rows), len(b"".join(keys)), len(b"".join(values))),
                struct.pack(f"<{len(rows)}H", *map(len, keys)),
                struct.pack(f"<{len(rows)}I", *map(len, values)),
                bytes(chance.randrange(2) for _ in rows),
                *keys,
                *values,
            )
        )
        part = self._batch, self._staged
        self.say(encode_frame(Kind.STAGE, 2, struct.pack("<qIIQQ", *part, 0, 1, 0), block))
        if whole:
            end = struct.pack("<qIIQQQ", *part, zlib.crc32(block), 1, len(rows), len(block))
            self.say(encode_frame(Kind.STAGE_END, 2, end))
            self._staged += 1
