"""A client's half of a session: what it must not forget from one connection to the next."""

import contextlib
from collections import OrderedDict
from collections.abc import Generator

import attrs
import trio

from .._errors import LocalProtocolError
from ._client_errors import PublicationRefusedError
from ._identifiers import PacketIds

_DUP = 0x08


@attrs.define(eq=False)
class Outgoing:
    """A publication of the client's own with QoS 1 or 2 that is not finished."""

    qos: int
    frame: bytes
    """Its PUBLISH as it was first sent; empty where it is not to be sent again."""
    topic: str = ""
    released: bool = False
    """Whether PUBREC has come: from then on PUBREL is what is sent again."""
    on_its_way: bool = True
    """Whether it was sent on this connection."""
    finished: bool = False
    waiter: trio.Event | None = None
    awaited: bool = False
    """Whether somebody waits for it, and hears what comes of it."""
    refused: PublicationRefusedError | None = None
    """What the server has refused it for, in MQTT 5."""

    def again(self) -> bytes:
        """Return its PUBLISH as it is sent again: the same packet, with DUP [MQTT-3.3.1-1]."""
        return bytes((self.frame[0] | _DUP,)) + self.frame[1:]


class ClientSession:
    """What a client keeps between connections, so that QoS 1 and 2 hold across them.

    The server's half of a session are subscriptions and messages; the client's are the publications
    that it has begun and the server has not acknowledged to the end, and the identifiers of QoS 2
    messages that it has taken and the server has not released (section 4.1). Give the same one to
    each `open_mqtt` of one client identifier, with `clean_session=False`::

        session = ClientSession()
        while True:
            with suppress(ConnectionLostError):
                async with open_mqtt(
                    host, client_id="me", clean_session=False, session=session
                ) as client:
                    ...
            await trio.sleep(1)

    What is unfinished when a connection ends is sent again on the next, with the same identifiers
    and in the original order, before anything else [MQTT-4.4.0-1]; `MqttClient.flush` waits for it.
    If the server has kept no session meanwhile, it is sent again all the same: to lose it would be
    worse than to say it twice.

    It is in memory only: a process that ends ends it. Whoever starts anew without it begins with
    `clean_session=True` once, or the server may take a new publication for an old one.

    Attributes:
        client_id: whose it is; empty until it is first used.
    """

    __slots__ = ("_used", "_version", "client_id", "ids", "outgoing", "received", "released")

    def __init__(self) -> None:
        self.client_id = ""
        # That its unfinished publications are written in.
        self._version = ""
        self._used = False
        # For this package: the identifiers given out; what is unfinished, in the order of the
        # PUBLISHes; what of it is released, in the order of the PUBRECs [MQTT-4.6.0-4]; and the
        # QoS 2 messages that were taken, and whose PUBREL has not come.
        self.ids = PacketIds()
        self.outgoing: dict[int, Outgoing] = {}
        self.released: dict[int, None] = {}
        self.received: set[int] = set()

    def __len__(self) -> int:
        """How many publications are not finished."""
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
        """Use it for one connection; `open_mqtt` does.

        Raises:
            LocalProtocolError: it is in use, or another client's, or something of it is unfinished
                that was sent in another version of MQTT.
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
        """Note a publication that is sent."""
        self.outgoing[packet_id] = outgoing

    def release(self, packet_id: int, outgoing: Outgoing) -> None:
        """Note a PUBREC: the message itself is never sent again [MQTT-4.3.3-1]."""
        if not outgoing.released:
            outgoing.released = True
            outgoing.frame = b""
            self.released[packet_id] = None

    def finish(self, packet_id: int) -> None:
        """Note that a publication is acknowledged to the end."""
        del self.outgoing[packet_id]
        self.released.pop(packet_id, None)
        self.ids.release(packet_id)


class Receipts:
    """Messages of one QoS that came and are not acknowledged, in order.

    Acknowledgements leave in the order in which the messages came [MQTT-4.6.0-2][MQTT-4.6.0-3],
    whatever the order in which a consumer is done with them.
    """

    __slots__ = ("_done",)

    def __init__(self) -> None:
        self._done: OrderedDict[int, bool] = OrderedDict()

    def __len__(self) -> int:
        """How many are not acknowledged."""
        return len(self._done)

    def arrived(self, packet_id: int) -> bool:
        """Note a message; False if it is one that is here already."""
        if packet_id in self._done:
            return False
        self._done[packet_id] = False
        return True

    def awaits(self, packet_id: int) -> bool:
        """Whether the message is here and its consumer has not said that it is done with it."""
        return self._done.get(packet_id) is False

    def done(self, packet_id: int) -> list[int]:
        """Note that its consumer is done with it; return whose acknowledgements leave now."""
        done = self._done
        done[packet_id] = True
        leaving: list[int] = []
        while done and done[first := next(iter(done))]:
            del done[first]
            leaving.append(first)
        return leaving
