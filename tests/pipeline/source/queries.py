"""What Spark does with a reader, in its order, without Spark; and a publisher."""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, cast

import attrs
import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion

from clearfunds.pipeline.source import StreamReader
from clearfunds.pipeline.source._options import stream_options

SECONDS = 30


def until(condition: Callable[[], Any]) -> None:
    """Wait for something that happens soon."""
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@contextmanager
def publisher(port: int, name: str = "publisher") -> Generator[mqtt.Client]:
    """A client that publishes without being asked whether it can be taken."""
    client = mqtt.Client(CallbackAPIVersion.VERSION2, name)
    client.connect("127.0.0.1", port)
    client.loop_start()
    try:
        yield client
    finally:
        client.disconnect()
        client.loop_stop()


def publish(port: int, values: list[bytes], topic: str = "a/b", qos: int = 1) -> None:
    """Publish, and wait until the relay has it."""
    with publisher(port) as client:
        for told in [client.publish(topic, value, qos) for value in values]:
            told.wait_for_publish(SECONDS)


READERS: list[StreamReader] = []
"""All that were made in this process: Spark's own would end with theirs."""


def stream_reader(options: dict[str, str]) -> StreamReader:
    """A reader as Spark has it: it was sent to a process."""
    sent = pickle.dumps(StreamReader(stream_options(options)))
    reader = cast("StreamReader", pickle.loads(sent))
    READERS.append(reader)
    return reader


def stop_readers() -> None:
    """Stop them, and see that they leave no thread behind."""
    for reader in READERS:
        reader.stop()
    READERS.clear()
    until(lambda: not heartbeats())


def heartbeats() -> int:
    """How many threads keep a reader attached."""
    return [each.name for each in threading.enumerate()].count("clearfunds-heartbeat")


@attrs.define
class Query:
    """One query: what it knows, as its checkpoint has it, survives its process.

    Attributes:
        options: What its reader was told.
        offsets: Where the batches end that were planned; the first is where it began.
        done: How many of them are known to be done.
        batches: What each batch had: values.
    """

    options: dict[str, str]
    offsets: list[dict[str, Any]] = attrs.field(factory=list[dict[str, Any]])
    done: int = 0
    batches: list[list[bytes]] = attrs.field(factory=list[list[bytes]])
    reader: StreamReader | None = None

    def start(self, available_now: bool = False) -> StreamReader:
        """Start it, as after a crash: the reader before is not told."""
        reader = self.reader = stream_reader(self.options)
        if available_now:
            reader.prepareForTriggerAvailableNow()
        if not self.offsets:
            self.offsets.append(reader.initialOffset())
        if len(self.offsets) > self.done + 1:
            self._run()
        return reader

    def plan(self) -> bool:
        """Plan the next batch; return whether there is one."""
        reader = self.reader
        assert reader is not None
        end = reader.latestOffset(self.offsets[-1], reader.getDefaultReadLimit())
        if end == self.offsets[-1]:
            return False
        self.offsets.append(end)
        if self.done:
            reader.commit(self.offsets[self.done])
        return True

    def _run(self) -> None:
        self.batches.append(self.read())
        self.done += 1

    def read(self) -> list[bytes]:
        """Read the batch that was planned last, as workers do: by readers of their own."""
        reader = self.reader
        assert reader is not None
        start, end = self.offsets[-2:]
        values: list[bytes] = []
        numbers: list[int] = []
        for partition in reader.partitions(start, end):
            worker, sent = pickle.loads(pickle.dumps((reader, partition)))
            for batch in worker.read(sent):
                values += batch.column("value").to_pylist()
                numbers += batch.column("offset").to_pylist()
        assert numbers == sorted(set(numbers))
        return values

    def step(self) -> bool:
        """Plan and run a batch; return whether there was one."""
        planned = self.plan()
        if planned:
            self._run()
        return planned

    def drain(self) -> list[bytes]:
        """Run until there is nothing new; return all that came."""
        while self.step():
            pass
        return [value for batch in self.batches for value in batch]


@contextmanager
def pouring(port: int, values: list[bytes], topic: str) -> Generator[None]:
    """Publish in a thread, by someone who is made to wait."""
    thread = threading.Thread(target=publish, args=(port, values, topic))
    thread.start()
    yield
    thread.join(SECONDS)
    assert not thread.is_alive()
