"""One MQTT connection without any I/O: bytes in, packets out, and who may say what when.

Rules:

1. No input makes `next_packet` raise anything but `RemoteProtocolError`; after one the connection
   is closed and says the same again.
2. How the input was cut into pieces changes neither the packets nor the error.
3. A packet is refused at the first byte that tells that it will be: a wrong type is not waited
   for, an oversized packet is not collected.
4. The input held is at most one incomplete packet and what came with its last piece; collecting it
   takes time in proportion to its size, in however many pieces it comes.

Theory of operation. `buffer` is the last thing received, unchanged, and `position` is how far it
has been parsed. Only a packet cut in two by the end of a read is ever copied: joined to the next
read when that completes it, collected in a `bytearray` when it does not. Others in this package may
advance `position` themselves over whole packets that they understand (the server does so with runs
of QoS 0 publications); they must leave it at the start of a packet.

Who may say what is a table: the first byte of a packet tells its type and its flags, and for each
role and state there is a set of the first bytes that are welcome.

    server:  AWAITING_CONNECT --CONNECT received--> AWAITING_CONNACK --CONNACK 0 sent--> CONNECTED
             AWAITING_CONNACK --AUTH sent--> AUTHENTICATING --AUTH received--> AWAITING_CONNACK
    client:  AWAITING_CONNECT --CONNECT sent--> AWAITING_CONNACK --CONNACK 0 received--> CONNECTED
    both:    CONNACK with another code, DISCONNECT, an error --> CLOSED

Both sides speak the version that CONNECT asks for, and from then on that alone: `version` is 4
until one has said otherwise. What MQTT 5 adds to the above: a server says DISCONNECT, too, and it
owes one (or a CONNACK) to a peer that broke the protocol, with the reason why.
"""

import enum
from typing import Final

import attrs

from ..._errors import LocalProtocolError, RemoteProtocolError
from ..._need_data import NEED_DATA, NeedDataType
from ._frames import (
    AUTH,
    DEFAULT_MAX_PACKET_SIZE,
    DISCONNECT,
    KIND_NAMES,
    OversizedPacketError,
    find_frame,
)
from ._packets import (
    DECODERS,
    ENCODERS,
    FIRST_BYTES,
    PROTOCOL_LEVEL,
    Auth,
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
    connect_level,
    decode,
    first_byte_fault,
)
from ._packets5 import (
    CLIENT_DISCONNECT_REASONS,
    PROTOCOL_LEVEL_5,
    SERVER_DISCONNECT_REASONS,
    decode5,
    encode5,
    first_byte_fault5,
)
from ._properties import NO_PROPERTIES
from ._reasons import Reason, ReasonedError
from ._topics import TopicLimits


class Role(enum.Enum):
    """Which side of the connection this is."""

    __hash__ = object.__hash__  # Enum's own is a function in Python

    CLIENT = "client"
    SERVER = "server"


class State(enum.Enum):
    """How far the connection has come."""

    __hash__ = object.__hash__

    AWAITING_CONNECT = "awaiting CONNECT"
    AWAITING_CONNACK = "awaiting CONNACK"
    AUTHENTICATING = "awaiting AUTH"
    CONNECTED = "connected"
    CLOSED = "closed"


_EITHER_WAY = (Publish, PubAck, PubRec, PubRel, PubComp)
_FROM_CLIENT = (Connect, *_EITHER_WAY, Subscribe, Unsubscribe, PingReq, Disconnect)
_FROM_SERVER = (ConnAck, *_EITHER_WAY, SubAck, UnsubAck, PingResp)


def _first_bytes(kinds: tuple[type[Packet], ...], without: type[Packet]) -> frozenset[int]:
    numbers = {packet.kind for packet in kinds if packet is not without}
    return frozenset(byte for byte in FIRST_BYTES if byte >> 4 in numbers)


_NOTHING: frozenset[int] = frozenset()

# What may come in, as first bytes. A server that has read CONNECT decides on it before it reads
# on, so that nothing is processed that it may yet have to refuse [MQTT-3.1.4-5].
_WELCOME: dict[tuple[Role, State], frozenset[int]] = {
    (Role.SERVER, State.AWAITING_CONNECT): frozenset({0x10}),
    (Role.SERVER, State.AWAITING_CONNACK): _NOTHING,
    (Role.SERVER, State.AUTHENTICATING): frozenset({AUTH, DISCONNECT}),  # [MQTT-3.1.2-30]
    (Role.SERVER, State.CONNECTED): _first_bytes(_FROM_CLIENT, without=Connect),
    (Role.SERVER, State.CLOSED): _NOTHING,
    (Role.CLIENT, State.AWAITING_CONNECT): _NOTHING,
    (Role.CLIENT, State.AUTHENTICATING): _NOTHING,
    (Role.CLIENT, State.AWAITING_CONNACK): frozenset({0x20}),
    (Role.CLIENT, State.CONNECTED): _first_bytes(_FROM_SERVER, without=ConnAck),
    (Role.CLIENT, State.CLOSED): _NOTHING,
}

# What may go out, as classes. A client need not wait for CONNACK (section 3.1.4, non-normative).
_SENDABLE: dict[tuple[Role, State], frozenset[type[Packet]]] = {
    (Role.SERVER, State.AWAITING_CONNECT): frozenset(),
    (Role.SERVER, State.AWAITING_CONNACK): frozenset({ConnAck}),
    (Role.SERVER, State.AUTHENTICATING): frozenset({ConnAck}),
    (Role.SERVER, State.CONNECTED): frozenset(_FROM_SERVER) - {ConnAck},
    (Role.SERVER, State.CLOSED): frozenset(),
    (Role.CLIENT, State.AWAITING_CONNECT): frozenset({Connect}),
    (Role.CLIENT, State.AUTHENTICATING): frozenset(),
    (Role.CLIENT, State.AWAITING_CONNACK): frozenset(_FROM_CLIENT) - {Connect},
    (Role.CLIENT, State.CONNECTED): frozenset(_FROM_CLIENT) - {Connect},
    (Role.CLIENT, State.CLOSED): frozenset(),
}

# What a server may send besides in MQTT 5, once it has accepted CONNECT [MQTT-3.14.0-1].
_SENDABLE_5: Final[frozenset[type[Packet]]] = frozenset(
    {*_SENDABLE[Role.SERVER, State.CONNECTED], Auth, Disconnect}
)
_WELCOME_5: Final = {
    Role.SERVER: _WELCOME[Role.SERVER, State.CONNECTED] | {AUTH},
    Role.CLIENT: _WELCOME[Role.CLIENT, State.CONNECTED] | {Disconnect.kind << 4},
}
_ANSWERS_5: Final[frozenset[type[Packet]]] = frozenset({ConnAck, Auth})
_DISCONNECT_ONLY: Final[frozenset[type[Packet]]] = frozenset({Disconnect})

#: No CONNECT is larger: a fixed header of five bytes, ten bytes of variable header, five strings
#: (section 3.1). Whoever has not even said who it is cannot make a server hold more than this. In
#: MQTT 5 one could be, by its properties, as large as any packet; it must do with this.
MAX_CONNECT_SIZE = 5 + 10 + 5 * (2 + 65_535)


#: An AUTH before CONNACK: no method that there is needs more, and nobody owes for it yet.
MAX_AUTH_SIZE = 8 << 10


class Connection:
    """The protocol of one connection, for either side.

    Attributes:
        role: which side this is.
        state: how far the connection has come.
        version: of the protocol: 4 (MQTT 3.1.1) until a CONNECT of another one was sent or has
            come, whether it was in order or not; then 5, or 3 (MQTT 3.1).
        max_packet_size: the largest packet accepted, in bytes, fixed header included.
        max_topic_alias: the largest topic alias accepted in MQTT 5; 0: none is. It may be set until
            CONNACK, which tells the client of it.
        buffer: the input being parsed. For this package only.
        position: where in `buffer` the next packet starts. For this package only.
        missing: bytes that the packet at `position`, or the one being collected, still lacks; 0 if
            that is not known, or there is none. For this package only.
    """

    __slots__ = (
        "_aliases",
        "_clean_session",
        "_collected",
        "_disconnected",
        "_fault",
        "_is_311",
        "_max_connect_size",
        "_method",
        "_sendable",
        "_size_limit",
        "_topic",
        "_topic_limits",
        "_welcome",
        "_zero_expiry",
        "buffer",
        "max_packet_size",
        "max_topic_alias",
        "missing",
        "position",
        "role",
        "state",
        "version",
    )

    def __init__(
        self,
        role: Role,
        *,
        max_packet_size: int = DEFAULT_MAX_PACKET_SIZE,
        topic_limits: TopicLimits | None = None,
        max_topic_alias: int = 0,
        max_connect_size: int = MAX_CONNECT_SIZE,
    ) -> None:
        """Make a connection that has neither sent nor received anything.

        Args:
            role: which side this is.
            max_packet_size: the largest packet accepted, in bytes, fixed header included.
            topic_limits: what the topics that the peer publishes to, its will's included, must keep
                within; by default whatever fits into a packet. Filters of subscriptions are not
                looked at: they can be refused one by one, in the SUBACK.
            max_topic_alias: the largest topic alias accepted, in MQTT 5.
            max_connect_size: the largest CONNECT accepted, by a server.
        """
        self.role = role
        self.version = PROTOCOL_LEVEL
        # Whether all that comes has the format of MQTT 3.1.1. Both know when CONNECT is there.
        self._is_311 = False
        self.max_packet_size = max_packet_size
        self.max_topic_alias = max_topic_alias
        self._max_connect_size = max_connect_size
        # What topic aliases stand for; made when the first one comes.
        self._aliases: dict[int, str] | None = None
        self._zero_expiry = False
        self._method: str | None = None
        self.buffer = b""
        self.position = 0
        self._topic_limits = topic_limits
        # The last topic that was found to be within them; the codec decodes one once for many.
        self._topic = ""
        self.missing = 0
        self._collected: bytearray | None = None
        self._fault: RemoteProtocolError | None = None
        self._disconnected = False
        self._clean_session = True
        self._enter(State.AWAITING_CONNECT)

    def __repr__(self) -> str:
        return (
            f"<mqtt.Connection {self.role.value}, {self.state.value}, "
            f"{self.unparsed_bytes} bytes unparsed>"
        )

    @property
    def unparsed_bytes(self) -> int:
        """How much input is held. When the peer has closed its side: what it cut off."""
        collected = 0 if self._collected is None else len(self._collected)
        return collected + len(self.buffer) - self.position

    @property
    def held_bytes(self) -> int:
        """How much is in memory of what has been received: what has been parsed may be, too."""
        return len(self.buffer) + (0 if self._collected is None else len(self._collected))

    def let_go(self) -> None:
        """Let go of what has been parsed and is in memory still. Copies the rest."""
        if self.position:
            self.buffer = self.buffer[self.position :]
            self.position = 0

    def receive_data(self, data: bytes) -> None:
        """Take what has been read from the peer; `next_packet` gives what is in it.

        Never raises, and copies nothing unless a packet is cut in two by the end of a read. Take
        out what is complete before the next call, or the input held grows by what is given here.
        """
        if self.state is State.CLOSED and not self._disconnected:
            return
        if self._collected is not None:
            self._collected += data
            self.missing -= len(data)
            if self.missing > 0:
                return
            self.buffer = bytes(self._collected)
            self.position = 0
            self._collected = None
            self.missing = 0
        elif self.position >= len(self.buffer):
            self.buffer = data
            self.position = 0
            self.missing = 0
        elif self.missing > len(data):
            self._collected = bytearray(memoryview(self.buffer)[self.position :])
            self._collected += data
            self.missing -= len(data)
            self.buffer = b""
            self.position = 0
        else:
            self.buffer = self.buffer[self.position :] + data
            self.position = 0
            self.missing = 0

    @property
    def unparsed(self) -> bytes:
        """What has been received and not parsed. For this package only."""
        if self._collected is not None:
            return bytes(self._collected)
        return self.buffer[self.position :]

    def take_unparsed(self) -> bytes:
        """Take back what has been received and not parsed. For this package only."""
        data = self.unparsed
        self._drop_input()
        return data

    def next_packet(self) -> Packet | NeedDataType:
        """Take the next packet out of the input.

        Returns:
            A packet, or `NEED_DATA`. A connection that was closed from this side says `NEED_DATA`
            for ever: what was still on its way is dropped.

        Raises:
            UnacceptableConnectError: a CONNECT that is to be answered with a CONNACK of the
                exception's return code; `send` takes that one packet more. In MQTT 5 every CONNECT
                that is not in order raises it.
            ReasonedError: as the next one, in MQTT 5; `send` takes one DISCONNECT more if the
                connection was connected (also after an `OversizedPacketError`; see `reason_of`).
            RemoteProtocolError: the peer broke the protocol; close the connection.
            LocalProtocolError: a server asked for the next packet before it answered CONNECT.
        """
        buffer = self.buffer
        position = self.position
        if position >= len(buffer) or buffer[position] not in self._welcome:
            return self._without_packet()
        try:
            frame = find_frame(buffer, position, self._size_limit)
            if frame is None:
                return NEED_DATA
            start, end = frame
            if end > len(buffer):
                self.missing = end - len(buffer)
                return NEED_DATA
            if self._is_311:
                packet = DECODERS[buffer[position] >> 4](buffer[position], buffer[start:end])
            else:
                packet = self._decode(buffer, position, start, end)
            if isinstance(packet, Publish) and packet.topic is not self._topic:
                self._check_topic(packet.topic, packet)
                self._topic = packet.topic
            self.position = end
            if packet.kind in _TURNING_POINTS:
                self._received(packet)
        except OversizedPacketError as exc:
            fault = exc
            if self.state is State.AWAITING_CONNECT:
                fault = OversizedPacketError(
                    f"a CONNECT of more than {self._size_limit} bytes is announced; shorten its "
                    "will, or raise the limit (max_connect_size)"
                )
            self._fail(fault)
            raise fault from None
        except RemoteProtocolError as exc:
            self._fail(exc)
            raise
        return packet

    def send(self, packet: Packet) -> bytes:
        """Encode a packet for the peer and note what it changes.

        Raises:
            LocalProtocolError: if the packet is malformed, or not one that this side may send now.
        """
        if type(packet) not in self._sendable:
            raise LocalProtocolError(self._unsendable(packet))
        if self._fault is not None and not _refuses(packet):
            what = "CONNECT has" if isinstance(packet, ConnAck) else "connection has"
            raise LocalProtocolError(f"this {what} to be refused: {self._fault}")
        if isinstance(packet, ConnAck) and packet.session_present and self._clean_session:
            raise LocalProtocolError(self._session_fault)
        version = packet.protocol_level if isinstance(packet, Connect) else self.version
        if version != PROTOCOL_LEVEL_5:
            encoded = ENCODERS[packet.kind](packet)
        else:
            if isinstance(packet, Disconnect):
                self.check_disconnect(packet)
            encoded = encode5(packet)
        match packet:
            case Connect():
                self.version = version
                self._is_311 = version != PROTOCOL_LEVEL_5
                self._clean_session = packet.clean_session
                self._zero_expiry = not packet.properties.session_expiry
                self._enter(State.AWAITING_CONNACK)
            case ConnAck(return_code=0):
                self._enter(State.CONNECTED)
            case ConnAck() | Disconnect():
                self.close()
            case Auth() if self.state is State.AWAITING_CONNACK:
                self._enter(State.AUTHENTICATING)
            case _:
                pass
        return encoded

    def aliased_key(self, position: int) -> bytes | None:
        """Return the topic that the PUBLISH at `position` of the buffer has an alias for.

        As it would stand in the packet, its length in front; None if that cannot be told: then the
        packet is not whole, or it is refused in its turn. For this package only.
        """
        buffer = self.buffer
        try:
            frame = find_frame(buffer, position, self._size_limit)
            if frame is None or frame[1] > len(buffer):
                return None
            packet = decode5(buffer[position], buffer[frame[0] : frame[1]])
        except RemoteProtocolError:
            return None
        alias = packet.properties.topic_alias if isinstance(packet, Publish) else None
        topic = None if alias is None or self._aliases is None else self._aliases.get(alias)
        if topic is None:
            return None
        encoded = topic.encode()
        return len(encoded).to_bytes(2, "big") + encoded

    def close(self) -> None:
        """Note that this side has closed the connection; drops the input. Idempotent."""
        self._enter(State.CLOSED)
        self._drop_input()

    def _enter(self, state: State) -> None:
        self.state = state
        self._welcome = _WELCOME[self.role, state]
        self._sendable = _SENDABLE[self.role, state]
        if self.version == PROTOCOL_LEVEL_5:
            if state is State.CONNECTED:
                self._welcome = _WELCOME_5[self.role]
            if self.role is Role.SERVER and state is State.CONNECTED:
                self._sendable = _SENDABLE_5
            elif self.role is Role.SERVER and state is State.AWAITING_CONNACK:
                self._sendable = _ANSWERS_5
        self._size_limit = self.max_packet_size
        if state is State.AWAITING_CONNECT:
            self._size_limit = min(self.max_packet_size, self._max_connect_size)
        elif state is State.AUTHENTICATING:
            self._size_limit = min(self.max_packet_size, MAX_AUTH_SIZE)

    def _drop_input(self) -> None:
        self.buffer = b""
        self.position = 0
        self._collected = None
        self.missing = 0

    def _received(self, packet: Packet) -> None:
        match packet:
            case Connect():
                if packet.will is not None:
                    self._check_topic(packet.will.topic, packet)
                self._clean_session = packet.clean_session
                self._zero_expiry = not packet.properties.session_expiry
                self._method = packet.properties.authentication_method
                self._enter(State.AWAITING_CONNACK)
            case ConnAck(session_present=True) if self._clean_session:
                raise RemoteProtocolError(self._session_fault)
            case ConnAck(return_code=0):
                self._enter(State.CONNECTED)
            case ConnAck():
                self.close()
            case Auth():
                if self.state is State.AUTHENTICATING:
                    self._enter(State.AWAITING_CONNACK)
            case _:
                # What follows a DISCONNECT is kept in `buffer`: it is an error to be reported.
                self._enter(State.CLOSED)
                self._disconnected = True

    def _check_topic(self, topic: str, packet: Publish | Connect) -> None:
        fault = None if self._topic_limits is None else self._topic_limits.name_fault(topic)
        if not fault:
            return
        message = f"{KIND_NAMES[packet.kind]}: {fault}"
        if self.version != PROTOCOL_LEVEL_5:
            raise RemoteProtocolError(message)
        if isinstance(packet, Connect):
            largest = packet.properties.maximum_packet_size
            raise UnacceptableConnectError(message, Reason.TOPIC_NAME_INVALID, largest)
        raise ReasonedError(message, Reason.TOPIC_NAME_INVALID)

    def _decode(self, buffer: bytes, position: int, start: int, end: int) -> Packet:
        """Decode the packet at `position` if it is MQTT 5, or the first that a server gets."""
        first_byte, body = buffer[position], buffer[start:end]
        if self.state is not State.AWAITING_CONNECT:
            if body == _NOT_5 and self.state is State.AWAITING_CONNACK:
                return ConnAck(False, Reason.UNSUPPORTED_PROTOCOL_VERSION)
            self._check_length(buffer, position, start)
            packet = decode5(first_byte, body)
            if isinstance(packet, Publish):
                return self._resolved(packet)
            if isinstance(packet, Disconnect):
                self._check_leaving(packet)
            elif isinstance(packet, Auth):
                self._check_auth(packet)
            return packet
        if connect_level(body) != PROTOCOL_LEVEL_5:
            self._is_311 = True
            connect = decode(first_byte, body)
            if isinstance(connect, Connect):
                self.version = connect.protocol_level
            return connect
        self.version = PROTOCOL_LEVEL_5
        try:
            self._check_length(buffer, position, start)
            return decode5(first_byte, body)
        except ReasonedError as exc:
            raise UnacceptableConnectError(str(exc), exc.reason) from None

    def _check_length(self, buffer: bytes, position: int, start: int) -> None:
        """See that the remaining length, which ends at `start`, is not padded."""
        if start - position > 2 and not buffer[start - 1]:
            raise ReasonedError(
                "the remaining length takes more bytes than it needs [MQTT-1.5.5-1]",
                Reason.MALFORMED_PACKET,
            )

    def _resolved(self, packet: Publish) -> Publish:
        """Return a PUBLISH with its topic, whether that came or an alias for it."""
        properties = packet.properties
        if properties is NO_PROPERTIES:
            return packet
        if properties.subscription_ids and self.role is Role.SERVER:
            raise ReasonedError(
                "PUBLISH from a client has a subscription identifier [MQTT-3.3.4-6]",
                Reason.PROTOCOL_ERROR,
            )
        alias = properties.topic_alias
        if alias is None:
            return packet
        if alias > self.max_topic_alias:
            raise ReasonedError(
                f"PUBLISH has topic alias {alias}; at most {self.max_topic_alias} is accepted here "
                "[MQTT-3.3.2-9]",
                Reason.TOPIC_ALIAS_INVALID,
            )
        aliases = self._aliases
        if aliases is None:
            aliases = self._aliases = {}
        if packet.topic:
            aliases[alias] = packet.topic
            return packet
        topic = aliases.get(alias)
        if topic is None:
            raise ReasonedError(
                f"PUBLISH has topic alias {alias}, but no topic was given for it (section "
                "3.3.2.3.4)",
                Reason.PROTOCOL_ERROR,
            )
        return attrs.evolve(packet, topic=topic)

    def _check_auth(self, packet: Auth) -> None:
        if self._method is None:
            raise ReasonedError(
                "AUTH came, but CONNECT has no authentication method [MQTT-4.12.0-6]",
                Reason.PROTOCOL_ERROR,
            )
        if packet.properties.authentication_method != self._method:
            raise ReasonedError(
                "AUTH has another authentication method than CONNECT, or none [MQTT-4.12.0-5]",
                Reason.PROTOCOL_ERROR,
            )
        if packet.reason == Reason.SUCCESS:
            raise ReasonedError(
                "AUTH from a client has reason code 0, which only servers send [MQTT-3.15.2-1]",
                Reason.PROTOCOL_ERROR,
            )

    def _check_leaving(self, packet: Disconnect) -> None:
        if self.role is Role.CLIENT:
            if packet.reason not in SERVER_DISCONNECT_REASONS:
                raise ReasonedError(
                    f"DISCONNECT from a server has reason code {packet.reason:#04x}, which only "
                    "clients send [MQTT-3.14.2-1]",
                    Reason.PROTOCOL_ERROR,
                )
            if packet.properties.session_expiry is not None:
                raise ReasonedError(_EXPIRY_OF_SERVER, Reason.PROTOCOL_ERROR)
            return
        if packet.reason not in CLIENT_DISCONNECT_REASONS:
            raise ReasonedError(
                f"DISCONNECT from a client has reason code {packet.reason:#04x}, which only "
                "servers send [MQTT-3.14.2-1]",
                Reason.PROTOCOL_ERROR,
            )
        if packet.properties.session_expiry and self._zero_expiry:
            raise ReasonedError(
                _EXPIRY_OF_NONE,
                Reason.PROTOCOL_ERROR,
            )

    def check_disconnect(self, packet: Disconnect) -> None:
        """See that this side may send this DISCONNECT of MQTT 5. For this package only.

        Raises:
            LocalProtocolError: if not.
        """
        server = self.role is Role.SERVER
        if packet.reason not in (
            SERVER_DISCONNECT_REASONS if server else CLIENT_DISCONNECT_REASONS
        ):
            raise LocalProtocolError(
                f"a {self.role.value} does not send DISCONNECT with reason code "
                f"{packet.reason:#04x} [MQTT-3.14.2-1]"
            )
        if server and packet.properties.session_expiry is not None:
            raise LocalProtocolError(_EXPIRY_OF_SERVER)
        if packet.properties.session_expiry and self._zero_expiry:
            raise LocalProtocolError(_EXPIRY_OF_NONE)

    @property
    def _session_fault(self) -> str:
        if self.version == PROTOCOL_LEVEL_5:
            return "CONNACK says session present, but a clean start was asked for [MQTT-3.2.2-2]"
        return "CONNACK says session present, but a clean session was asked for [MQTT-3.2.2-1]"

    def _fail(self, fault: RemoteProtocolError) -> None:
        self._fault = fault
        self._drop_input()
        # A CONNECT refused with a return code is still owed its CONNACK, and whoever was connected
        # in MQTT 5 is told why it no longer is.
        told = self.version == PROTOCOL_LEVEL_5 and self.state is State.CONNECTED
        owed = isinstance(fault, UnacceptableConnectError)
        self._enter(State.AWAITING_CONNACK if owed else State.CLOSED)
        if told:
            self._sendable = _DISCONNECT_ONLY

    def _without_packet(self) -> NeedDataType:
        """Answer for `next_packet` when there is no input, or none that has a place here."""
        if self._fault is not None:
            raise self._fault
        if self.role is Role.SERVER and self.state is State.AWAITING_CONNACK:
            raise LocalProtocolError("answer CONNECT with CONNACK before reading on")
        if self.position >= len(self.buffer):
            return NEED_DATA
        fault = self._unwelcome(self.buffer[self.position])
        self._fail(fault)
        raise fault

    def _unwelcome(self, first_byte: int) -> RemoteProtocolError:
        if self.version != PROTOCOL_LEVEL_5:
            return RemoteProtocolError(self._unwelcome_fault(first_byte))
        if not self._disconnected and (fault := first_byte_fault5(first_byte)) is not None:
            return fault
        return ReasonedError(self._unwelcome_fault(first_byte), Reason.PROTOCOL_ERROR)

    def _unwelcome_fault(self, first_byte: int) -> str:
        if self._disconnected:
            peer = "client" if self.role is Role.SERVER else "server"
            return (
                f"the {peer} sent more after its DISCONNECT; it must close the connection "
                "[MQTT-3.14.4-2]"
            )
        if fault := first_byte_fault(first_byte):
            return fault
        name = KIND_NAMES[first_byte >> 4]
        if self.role is Role.SERVER:
            if self.state is State.AWAITING_CONNECT:
                return f"the first packet is {name}, not CONNECT [MQTT-3.1.0-1]"
            if self.state is State.AUTHENTICATING:
                return f"{name} before CONNACK, where only AUTH and DISCONNECT may [MQTT-3.1.2-30]"
            if name == "CONNECT":
                return "a second CONNECT on the same connection [MQTT-3.1.0-2]"
            table = "section 2.2.1, table 2.1"
            if self.version == PROTOCOL_LEVEL_5:
                table = "section 2.1.2, table 2-1"
            return f"{name} came from a client; only servers send it ({table})"
        if self.state is State.AWAITING_CONNECT:
            return f"the server sent {name} before it was sent CONNECT (section 3.1)"
        if self.state is State.AWAITING_CONNACK:
            return f"the server's first packet is {name}, not CONNACK [MQTT-3.2.0-1]"
        if name == "CONNACK":
            return "a second CONNACK on the same connection (section 3.2)"
        return f"{name} came from a server; only clients send it (section 2.2.1, table 2.1)"

    def _unsendable(self, packet: Packet) -> str:
        name = KIND_NAMES[packet.kind]
        if self.state is State.CLOSED:
            return f"cannot send {name}: the connection is closed [MQTT-3.14.4-2]"
        kinds = _FROM_CLIENT if self.role is Role.CLIENT else _FROM_SERVER
        if self.version == PROTOCOL_LEVEL_5 and isinstance(packet, Disconnect):
            return f"cannot send {name} while {self.state.value} [MQTT-3.14.0-1]"
        if type(packet) not in kinds:
            return f"cannot send {name}: a {self.role.value} does not send it (table 2.1)"
        return f"cannot send {name} while {self.state.value} [MQTT-3.1.0-1][MQTT-3.2.0-1]"


_EXPIRY_OF_NONE: Final = (
    "DISCONNECT sets a session expiry interval, but that of CONNECT was 0 (section 3.14.2.2.2)"
)
_EXPIRY_OF_SERVER: Final = "a server's DISCONNECT has no session expiry interval [MQTT-3.14.2-2]"
_NOT_5: Final = bytes((0, ConnectReturnCode.UNACCEPTABLE_PROTOCOL_LEVEL))
"""The body of the CONNACK of a server that does not know MQTT 5: it is one of 3.1.1."""

_TURNING_POINTS = frozenset({Connect.kind, ConnAck.kind, Disconnect.kind, Auth.kind})


def _refuses(packet: Packet) -> bool:
    """Whether it says that something is wrong, as it has to where something is."""
    if isinstance(packet, ConnAck):
        return packet.return_code != 0
    return isinstance(packet, Disconnect) and packet.reason >= Reason.UNSPECIFIED_ERROR
