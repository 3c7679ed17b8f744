"""A server as a case sees it: clients that are closed at the end, names of its own, patience."""

from __future__ import annotations

import contextlib
import importlib
import itertools
import time
from collections.abc import Callable, Generator, Mapping
from typing import Any, Final, Literal, TypeVar

import attrs

from tests.transports.amqp.oracle.differences import DIFFERENCES
from tests.transports.amqp.oracle.raw import SECONDS, Raw

# pika has no annotations.
pika: Final[Any] = importlib.import_module("pika")
ChannelClosedByBroker: Final[Any] = pika.exceptions.ChannelClosedByBroker
ConnectionClosedByBroker: Final[Any] = pika.exceptions.ConnectionClosedByBroker

T = TypeVar("T")

_numbers: Final = itertools.count(1)


@attrs.frozen
class Server:
    """A server that runs."""

    kind: Literal["clearfunds", "rabbitmq"]
    port: int


@attrs.frozen
class Got:
    """A message that came."""

    method: Any
    properties: Any
    body: bytes


@attrs.define
class Consumer:
    """A consumer of pika, and the messages that it got."""

    channel: Any
    tag: str
    got: list[Got] = attrs.field(factory=list[Got])
    acked: int = 0
    """The highest tag that was acknowledged."""
    cancelled: bool = False
    """Whether the server has cancelled it."""

    @property
    def bodies(self) -> list[bytes]:
        return [each.body for each in self.got]

    @property
    def unacknowledged(self) -> bool:
        """Whether it has got a message since it acknowledged one."""
        return bool(self.got) and self.got[-1].method.delivery_tag > self.acked

    def ack(self, place: int = -1, *, multiple: bool = False) -> None:
        """Acknowledge a message that it got."""
        tag = self.got[place].method.delivery_tag
        self.channel.basic_ack(tag, multiple)
        self.acked = max(self.acked, tag)


class Scene:
    """One play of a case against a server."""

    def __init__(self, server: Server, case: str) -> None:
        self.server = server
        self._case = case
        self._connections: list[Any] = []
        self._raws: list[Raw] = []
        self._exchanges: list[str] = []
        self._queues: list[str] = []
        self.asked = False
        """Whether the case has asked which server it is."""

    @property
    def on_rabbitmq(self) -> bool:
        """Whether the server is RabbitMQ, for cases in the table of differences alone."""
        assert self._case in DIFFERENCES, f"{self._case} is not in the table of differences"
        self.asked = True
        return self.server.kind == "rabbitmq"

    def either(self, rabbitmq: T, clearfunds: T) -> T:
        """Return what this server is expected to do; as `on_rabbitmq`."""
        return rabbitmq if self.on_rabbitmq else clearfunds

    # ---- Clients --------------------------------------------------------------------------------

    def connect(self, **parameters: Any) -> Any:
        """Return a new connection of pika."""
        options = {"host": "127.0.0.1", "port": self.server.port, "heartbeat": 0, **parameters}
        options.setdefault("blocked_connection_timeout", SECONDS)
        options.setdefault("socket_timeout", SECONDS)
        connection = pika.BlockingConnection(pika.ConnectionParameters(**options))
        self._connections.append(connection)
        return connection

    @property
    def connection(self) -> Any:
        """The case's first connection."""
        return self._connections[0] if self._connections else self.connect()

    def channel(self) -> Any:
        """Return a new channel of the first connection."""
        return self.connection.channel()

    def confirming(self) -> Any:
        """Return a new channel whose publications wait for their confirms."""
        channel = self.channel()
        channel.confirm_delivery()
        return channel

    def raw(self) -> Raw:
        """Return a new connection of which each frame is sent by hand."""
        raw = Raw(self.server.port)
        self._raws.append(raw)
        return raw

    # ---- Things ---------------------------------------------------------------------------------

    def name(self, stem: str = "x") -> str:
        """Return a name that nothing has."""
        return f"{stem}-{next(_numbers)}-{time.monotonic_ns() % 1_000_000}"

    def queue(
        self, channel: Any, arguments: Mapping[str, Any] | None = None, **options: Any
    ) -> str:
        """Declare a queue, by itself of this connection alone; return its name."""
        name = options.pop("queue", None) or self.name("q")
        options.setdefault("exclusive", True)
        channel.queue_declare(name, arguments=arguments, **options)
        if not options["exclusive"]:
            self._queues.append(name)
        return name

    def exchange(
        self,
        channel: Any,
        kind: str = "direct",
        arguments: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> str:
        """Declare an exchange, which is deleted at the end; return its name."""
        name = options.pop("exchange", None) or self.name("e")
        channel.exchange_declare(name, kind, arguments=arguments, **options)
        self._exchanges.append(name)
        return name

    def forget(self, *, queue: str | None = None, exchange: str | None = None) -> None:
        """Delete this too at the end."""
        if queue is not None:
            self._queues.append(queue)
        if exchange is not None:
            self._exchanges.append(exchange)

    # ---- Messages -------------------------------------------------------------------------------

    def publish(
        self, channel: Any, key: str, *bodies: bytes, exchange: str = "", **properties: Any
    ) -> None:
        """Publish messages."""
        for body in bodies:
            channel.basic_publish(exchange, key, body, pika.BasicProperties(**properties))

    def get(self, channel: Any, queue: str, *, auto_ack: bool = True) -> Got | None:
        """Return the queue's next message; None if there is none."""
        method, properties, body = channel.basic_get(queue, auto_ack)
        return None if method is None else Got(method, properties, body)

    def take(self, channel: Any, queue: str, *, auto_ack: bool = True) -> Got:
        """Wait for the queue's next message, and return it."""
        found: list[Got] = []

        def try_it() -> bool:
            if (got := self.get(channel, queue, auto_ack=auto_ack)) is not None:
                found.append(got)
            return bool(found)

        self.until(try_it)
        return found[0]

    def drain(self, channel: Any, queue: str) -> list[bytes]:
        """Return the bodies of all messages that are ready, which are gone then."""
        bodies: list[bytes] = []
        while (got := self.get(channel, queue)) is not None:
            bodies.append(got.body)
        return bodies

    def ready(self, channel: Any, queue: str) -> int:
        """Return how many messages are ready."""
        count: int = channel.queue_declare(queue, passive=True).method.message_count
        return count

    def consumers(self, channel: Any, queue: str) -> int:
        """Return how many consumers a queue has."""
        count: int = channel.queue_declare(queue, passive=True).method.consumer_count
        return count

    def exists(self, *, queue: str | None = None, exchange: str | None = None) -> bool:
        """Say whether there is a queue or an exchange, by a channel of its own."""
        channel = self.channel()
        try:
            if queue is not None:
                channel.queue_declare(queue, passive=True)
            if exchange is not None:
                channel.exchange_declare(exchange, passive=True)
        except ChannelClosedByBroker as error:
            if error.reply_code == 404:
                return False
            raise
        channel.close()
        return True

    def consume(self, channel: Any, queue: str, **options: Any) -> Consumer:
        """Start a consumer."""
        consumer = Consumer(channel, "")

        def on_message(_: Any, method: Any, properties: Any, body: bytes) -> None:
            consumer.got.append(Got(method, properties, body))

        def on_cancelled(frame: Any) -> None:
            if frame.method.consumer_tag == consumer.tag:
                consumer.cancelled = True

        channel.add_on_cancel_callback(on_cancelled)
        consumer.tag = channel.basic_consume(queue, on_message, **options)
        return consumer

    # ---- Patience -------------------------------------------------------------------------------

    def until(self, condition: Callable[[], object]) -> None:
        """Wait until something is the case, while connections are served."""
        deadline = time.monotonic() + SECONDS
        while not condition():
            assert time.monotonic() < deadline, "it has not happened"
            self.pump(0.005)

    def pump(self, seconds: float = 0.0) -> None:
        """Let the connections take what has come."""
        each = [connection for connection in self._connections if connection.is_open]
        for connection in each:
            connection.process_data_events(seconds / len(each))
        if not each:
            time.sleep(seconds)

    def settle(self, channel: Any, *queues: str) -> None:
        """Take all that these queues had to deliver on a channel until now.

        Deliveries and the answers to passive declarations come by one way, in order.
        """
        for queue in (*queues, *queues):
            channel.queue_declare(queue, passive=True)
        self.pump()

    @contextlib.contextmanager
    def refused(self, channel: Any, code: int, text: str = "") -> Generator[None]:
        """See that what stands in the block closes this channel, with a code and a text."""
        try:
            yield
            # What has no answer of its own is refused by the time that something has one.
            channel.queue_declare("", exclusive=True)
        except ChannelClosedByBroker as error:
            self._see(error, code, text)
        else:
            raise AssertionError(f"not refused with {code} {text}")
        assert self.connection.is_open

    @contextlib.contextmanager
    def cut_off(self, connection: Any, code: int, text: str = "") -> Generator[None]:
        """See that what stands in the block closes this connection, with a code and a text."""
        try:
            yield
            deadline = time.monotonic() + SECONDS
            while time.monotonic() < deadline:
                connection.process_data_events(0.01)
        except ConnectionClosedByBroker as error:
            self._see(error, code, text)
        else:
            raise AssertionError(f"not cut off with {code} {text}")

    @staticmethod
    def _see(error: Any, code: int, text: str) -> None:
        found = (error.reply_code, error.reply_text[: len(text)])
        assert found == (code, text), (error.reply_code, error.reply_text)

    # ---- The end --------------------------------------------------------------------------------

    def close(self) -> None:
        """Close the case's clients, and delete what it made and would stay."""
        for raw in self._raws:
            raw.end()
        for connection in self._connections:
            if connection.is_open:
                connection.close()
        if self._exchanges or self._queues:
            cleaner = self.connect()
            channel = cleaner.channel()
            for exchange in self._exchanges:
                channel.exchange_delete(exchange)
            for queue in self._queues:
                channel.queue_delete(queue)
            cleaner.close()
