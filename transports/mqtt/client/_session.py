"""A client's half of a persistent session: the state it keeps from one connection to the next."""

import contextlib
from collections import OrderedDict
from collections.abc import Generator

import attrs
import trio

from ..._errors import LocalProtocolError
from ..codec._identifiers import PacketIds
from ._errors import PublicationRefusedError

_DUP = 0x08


@attrs.define(eq=False)
class Outgoing:
    """A client's own unfinished publication with QoS 1 or 2."""

    qos: int
    frame: bytes
    """Its PUBLISH as it was first sent; empty if it must not be sent again."""
    topic: str = ""
    released: bool = False
    """Whether PUBREC has come; from then on PUBREL is sent again, not PUBLISH."""
    on_its_way: bool = True
    """Whether it was sent on this connection."""
    finished: bool = False
    waiter: trio.Event | None = None
    awaited: bool = False
    """Whether a task waits for it, and so gets its result."""
    refused: PublicationRefusedError | None = None
    """The server's refusal, in MQTT 5."""

    def again(self) -> bytes:
        """Return its PUBLISH to send again: the same packet, with DUP [MQTT-3.3.1-1]."""
        return bytes((self.frame[0] | _DUP,)) + self.frame[1:]


class ClientSession:
    """A client's state between connections, so that QoS 1 and 2 hold across them.

    The server's half of a session is subscriptions and messages. The client's half is its
    publications that the server has not fully acknowledged, and the identifiers of the QoS 2
    messages that it has taken and the server has not released (section 4.1). Give the same session
    to each `open_mqtt` of one client identifier, with `clean_session=False`::

        session = ClientSession()
        while True:
            with suppress(ConnectionLostError):
                async with open_mqtt(
                    host, client_id="me", clean_session=False, session=session
                ) as client:
                    ...
            await trio.sleep(1)

    The next connection sends unfinished publications again, with the same identifiers and in the
    original order, before anything else [MQTT-4.4.0-1]; `MqttClient.flush` waits for them. It does
    so even if the server has lost its session: a duplicate is better than a loss.

    The session is in memory only, and ends with the process. A client that starts without its old
    session must connect with `clean_session=True` once, or the server may take a new publication
    for an old one.

    Attributes:
        client_id: the identifier of its client; empty until it is first used.
    """

    __slots__ = ("_used", "_version", "client_id", "ids", "outgoing", "received", "released")

    def __init__(self) -> None:
        self.client_id = ""
        # The version of MQTT that encoded its unfinished publications.
        self._version = ""
        self._used = False
        # For this package: the identifiers in use; the unfinished publications, in the order of
        # their PUBLISHes; those released, in the order of their PUBRECs [MQTT-4.6.0-4]; and the
        # QoS 2 messages taken whose PUBREL has not come.
        self.ids = PacketIds()
        self.outgoing: dict[int, Outgoing] = {}
        self.released: dict[int, None] = {}
        self.received: set[int] = set()

    def __len__(self) -> int:
        """Return the number of unfinished publications."""
        return len(self.outgoing)

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        return (
            f"<ClientSession {self.client_id!r}{' in use' if self._used else ''}: "
            f"{len(self.outgoing)} publications unfinished, {len(self.received)} to be released>"
        )

    @contextlib.contextmanager
    def used_by(self, client_id: str, version: str = "3.1.1") -> Generator[None, None, None]:
        """Use it for one connection; `open_mqtt` calls this.

        Raises:
            LocalProtocolError: it is in use, or another client's, or it has unfinished publications
                in another version of MQTT.
        """
        if self._used:
            raise LocalProtocolError(
                f"the session of {self.client_id!r} is in use: one connection at a time has it"
            )
        if self.client_id and self.client_id != client_id:
            raise LocalProtocolError(
                f"this session is that of {self.client_id!r}; {client_id!r} needs its own"
            )
        if self.outgoing and self._version != version:
            raise LocalProtocolError(
                f"{len(self.outgoing)} publications of this session are unfinished in MQTT "
                f"{self._version}: go on with that, not with {version}"
            )
        self.client_id = client_id
        self._version = version
        self._used = True
        try:
            yield
        finally:
            self._used = False
            for outgoing in self.outgoing.values():
                outgoing.on_its_way = False
                outgoing.waiter = None

    def begin(self, packet_id: int, outgoing: Outgoing) -> None:
        """Note a publication that was sent."""
        self.outgoing[packet_id] = outgoing

    def release(self, packet_id: int, outgoing: Outgoing) -> None:
        """Note a PUBREC: the message itself is never sent again [MQTT-4.3.3-1]."""
        if not outgoing.released:
            outgoing.released = True
            outgoing.frame = b""
            self.released[packet_id] = None

    def finish(self, packet_id: int) -> None:
        """Note that a publication is fully acknowledged."""
        del self.outgoing[packet_id]
        self.released.pop(packet_id, None)
        self.ids.release(packet_id)


class Receipts:
    """Received and unacknowledged messages of one QoS, in order.

    Acknowledgements leave in the order in which the messages came [MQTT-4.6.0-2][MQTT-4.6.0-3], in
    whichever order the consumer finishes them.
    """

    __slots__ = ("_done",)

    def __init__(self) -> None:
        self._done: OrderedDict[int, bool] = OrderedDict()

    def __len__(self) -> int:
        """Return the number of unacknowledged messages."""
        return len(self._done)

    def arrived(self, packet_id: int) -> bool:
        """Note a message; return False if it is here already."""
        if packet_id in self._done:
            return False
        self._done[packet_id] = False
        return True

    def awaits(self, packet_id: int) -> bool:
        """Whether the message is here and its consumer has not finished it."""
        return self._done.get(packet_id) is False

    def done(self, packet_id: int) -> list[int]:
        """Note that a message is finished; return the messages to acknowledge now."""
        done = self._done
        done[packet_id] = True
        leaving: list[int] = []
        while done and done[first := next(iter(done))]:
            del done[first]
            leaving.append(first)
        return leaving
