"""The package broadcaster, with its memory backend, behind MQTT.

As its README shows it: what a client sends is given to `broadcast.publish`, and for each of its
subscriptions a task writes what `broadcast.subscribe` yields. Its queues have no bounds: nobody who
publishes ever waits, and for a subscriber that does not read everything is kept. It has no patterns
of channels, so that a filter with a wildcard is refused.

    python benchmarks/peers/broadcaster_server.py PORT
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, cast

from broadcaster import Broadcast

if not __package__:  # run as a file: the root is not yet where modules are looked for
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.peers._subset import UnsupportedError, answer, packets
from clearfunds.transports import RemoteProtocolError
from clearfunds.transports.mqtt import Connection, Publish, Role, Subscribe, encode

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from broadcaster import Event

READ_BYTES = 65536
"""At most at a time, as Trio's streams."""


async def write(
    broadcast: Broadcast, topic: str, writer: asyncio.StreamWriter, subscribed: asyncio.Event
) -> None:
    """Write what is published to a topic until the client has gone."""
    with contextlib.suppress(ConnectionError):
        async with broadcast.subscribe(channel=topic) as subscriber:
            subscribed.set()
            async for event in cast("AsyncIterator[Event]", subscriber):
                # A message is said to be text; the memory backend passes on whatever it was given.
                writer.write(cast("bytes", event.message))
                await writer.drain()


async def read(
    broadcast: Broadcast,
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    tasks: asyncio.TaskGroup,
    subscriptions: dict[str, asyncio.Task[None]],
) -> None:
    """Take what the client sends; publish what it publishes."""
    connection = Connection(Role.SERVER)
    while data := await reader.read(READ_BYTES):
        for packet in packets(connection, data):
            if isinstance(packet, Publish):
                if packet.qos:
                    raise UnsupportedError(f"a publication of QoS {packet.qos}")
                await broadcast.publish(channel=packet.topic, message=encode(packet))
                continue
            refused: set[str] = set()
            if isinstance(packet, Subscribe):
                for topic, _ in packet.filters:
                    if "+" in topic or "#" in topic:
                        refused.add(topic)
                    elif topic not in subscriptions:
                        subscribed = asyncio.Event()
                        writing = write(broadcast, topic, writer, subscribed)
                        subscriptions[topic] = tasks.create_task(writing)
                        await subscribed.wait()
            writer.write(answer(connection, packet, refused))
            await writer.drain()


async def serve(
    broadcast: Broadcast, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Serve one client until it goes."""
    subscriptions: dict[str, asyncio.Task[None]] = {}
    with contextlib.closing(writer):
        async with asyncio.TaskGroup() as tasks:
            try:
                await read(broadcast, reader, writer, tasks, subscriptions)
            except (RemoteProtocolError, UnsupportedError) as error:
                print(f"broadcaster: a client is cut off: {error}", file=sys.stderr, flush=True)
            except ConnectionError:
                pass  # it has gone without saying so
            for task in subscriptions.values():
                task.cancel()


async def main(port: int) -> None:
    """Serve clients on this port of loopback until the process is ended."""
    async with Broadcast("memory://") as broadcast:

        async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await serve(broadcast, reader, writer)

        server = await asyncio.start_server(one, "127.0.0.1", port)
        async with server:
            await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
