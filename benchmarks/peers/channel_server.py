"""The plain alternative: a bounded Trio memory channel for each subscriber.

What one writes with Trio alone: whoever publishes awaits `send` to the channel of each subscriber
in turn, and a task for each subscriber writes what its channel gives, message by message. Nothing
is lost and nothing grows, and one subscriber that does not read stops everybody.

    python benchmarks/peers/channel_server.py PORT
"""

from __future__ import annotations

import sys
from pathlib import Path

import trio

if not __package__:  # run as a file: the root is not yet where modules are looked for
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.peers._subset import UnsupportedError, answer, packets
from clearfunds.dataspace import topic_matches
from clearfunds.transports import RemoteProtocolError
from clearfunds.transports.mqtt import Connection, Publish, Role, Subscribe, encode

HELD = 1000
"""Messages that a channel holds, as mosquitto's max_queued_messages."""

REMEMBERED = 10_000
"""Topics whose subscribers are remembered."""

Inbox = trio.MemorySendChannel[bytes]


class Routes:
    """Who has subscribed to what."""

    def __init__(self) -> None:
        self._filters: dict[Inbox, set[str]] = {}
        self._found: dict[str, list[Inbox]] = {}

    def add(self, inbox: Inbox, topic_filter: str) -> None:
        """Send it what matches, from now on; once, however many of its filters do."""
        self._filters.setdefault(inbox, set()).add(topic_filter)
        self._found.clear()

    def remove(self, inbox: Inbox) -> None:
        """Send it nothing more."""
        self._filters.pop(inbox, None)
        self._found.clear()

    def of(self, topic: str) -> list[Inbox]:
        """Return the channels of those who subscribed to this topic."""
        found = self._found.get(topic)
        if found is None:
            if len(self._found) >= REMEMBERED:
                self._found.clear()
            found = [
                inbox
                for inbox, filters in self._filters.items()
                if any(topic_matches(each, topic) for each in filters)
            ]
            self._found[topic] = found
        return found


async def write(stream: trio.abc.Stream, outbox: trio.MemoryReceiveChannel[bytes]) -> None:
    """Write what the channel gives until either has ended."""
    async with outbox:
        try:
            async for frame in outbox:
                await stream.send_all(frame)
        except trio.BrokenResourceError:
            pass  # the client has gone: what reads from it sees that, too


async def read(stream: trio.abc.Stream, inbox: Inbox, routes: Routes) -> None:
    """Take what the client sends; pass on what it publishes, to one after another."""
    connection = Connection(Role.SERVER)
    async for data in stream:
        for packet in packets(connection, bytes(data)):
            if isinstance(packet, Publish):
                if packet.qos:
                    raise UnsupportedError(f"a publication of QoS {packet.qos}")
                frame = encode(packet)
                for each in routes.of(packet.topic):
                    try:
                        await each.send(frame)
                    except trio.BrokenResourceError:
                        routes.remove(each)
                continue
            if isinstance(packet, Subscribe):
                for topic_filter, _ in packet.filters:
                    routes.add(inbox, topic_filter)
            if reply := answer(connection, packet):
                await inbox.send(reply)


async def serve(stream: trio.abc.Stream, routes: Routes) -> None:
    """Serve one client until it goes."""
    inbox, outbox = trio.open_memory_channel[bytes](HELD)
    async with stream, trio.open_nursery() as nursery:
        nursery.start_soon(write, stream, outbox)
        try:
            await read(stream, inbox, routes)
        except (RemoteProtocolError, UnsupportedError) as error:
            print(f"channel: a client is cut off: {error}", file=sys.stderr, flush=True)
        except trio.BrokenResourceError:
            pass  # it has gone without saying so
        routes.remove(inbox)
        nursery.cancel_scope.cancel()


async def main(port: int) -> None:
    """Serve clients on this port of loopback until the process is ended."""
    routes = Routes()

    async def one(stream: trio.SocketStream) -> None:
        await serve(stream, routes)

    await trio.serve_tcp(one, port, host="127.0.0.1")


if __name__ == "__main__":
    trio.run(main, int(sys.argv[1]))
