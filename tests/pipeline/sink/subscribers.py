"""Who gets what a query publishes: an MQTT client, and a subscription that is read in ranges."""

from __future__ import annotations

import threading
import uuid
from types import TracebackType
from typing import Any, Self

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion

from clearfunds.ranges.client import RangeReader
from tests.pipeline.publishers import until
from tests.pipeline.relays import SECONDS, RelayProcess

Rows = list[tuple[str, bytes]]


class Subscribers:
    """Both, from now on; they come back when the relay does.

    Args:
        relay: Where.
        filter: What they subscribe to.
        durable: Whether what the second one gets goes to the disk. The first one has a session.
        repaying: Whether what the second one has seen is repaid; else it is held.
    """

    def __init__(
        self,
        relay: RelayProcess,
        filter: str = "out/#",  # noqa: A002
        durable: bool = False,
        repaying: bool = False,
    ) -> None:
        name = f"subscriber-{uuid.uuid4()}"
        self._reader = RangeReader(
            "127.0.0.1", relay.ranges, name, filters=[filter], durable=durable
        )
        self._repaying = repaying
        self._repaid: Rows = []
        self._lock = threading.Lock()
        self._got: Rows = []
        subscribed = threading.Event()
        self._client = mqtt.Client(CallbackAPIVersion.VERSION2, name, clean_session=False)
        self._client.on_message = self._take
        self._client.on_subscribe = lambda *_: subscribed.set()  # pyright: ignore[reportUnknownLambdaType]
        self._client.reconnect_delay_set(1, 1)
        self._client.connect("127.0.0.1", relay.mqtt)
        self._client.subscribe(filter, qos=2)
        self._client.loop_start()
        assert subscribed.wait(SECONDS)

    def _take(self, _client: mqtt.Client, _userdata: Any, message: mqtt.MQTTMessage) -> None:
        with self._lock:
            self._got.append((message.topic, bytes(message.payload)))

    def by_mqtt(self) -> Rows:
        """Return what the MQTT client has got."""
        with self._lock:
            return list(self._got)

    def by_ranges(self) -> Rows:
        """Return what the subscription has got."""
        low, end = self._reader.head()
        found = [
            (row.key.decode(), bytes(row.value))
            for block in self._reader.fetch(low, end)
            for row in block.rows()
        ]
        if not self._repaying:
            return found
        self._reader.ack(end)
        self._repaid += found
        return list(self._repaid)

    def expect(self, rows: Rows) -> None:
        """See that both have these rows, each once, in this order, and none else."""
        until(lambda: len(self.by_mqtt()) >= len(rows) <= len(self.by_ranges()))
        assert self.by_ranges() == rows
        assert self.by_mqtt() == rows

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._client.disconnect()
        self._client.loop_stop()
        self._reader.close()
