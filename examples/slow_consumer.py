"""Three tenants, one slow consumer that stops reading: find it in the relay's pages and log.

    python examples/slow_consumer.py --mqtt 1883 --http 9100

It starts `clearfunds relay`, five publishers and their subscribers, and prints the throughput of
each. After `--calm` seconds one subscriber stops reading, silently and with its connection open.
docs/who-blocks-whom.md shows an operator's view of it. Unknown options are passed to the relay:
`--patience 180` gives more time to look.
"""

from __future__ import annotations

import argparse
import json
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

import attrs
import trio

from clearfunds.transports import TransportError
from clearfunds.transports.mqtt import MqttClient, open_mqtt

# Names of clients, by tenant. A tenant is a user name: the middle part of the account's name.
PUBLISHERS = {  # topic, messages a second
    ("press", "newsroom"): ("press/news", 400),
    ("press", "ticker"): ("press/ticker", 120),
    ("weather", "station-7"): ("weather/7", 200),
    ("weather", "station-9"): ("weather/9", 160),
    ("shop", "checkout"): ("shop/orders", 300),
}
SUBSCRIBERS = {
    ("press", "front-page"): "press/#",
    ("press", "search"): "press/#",
    ("weather", "map"): "weather/#",
    ("shop", "billing"): "shop/#",
    ("shop", "archive"): "#",
}
SLOW = "archive"
PAYLOAD = bytes(1_000)
RECEIVE_BUFFER = 4096
"""Small, so that the stall shows at once: bytes in the client's kernel are no longer debt."""


class RelayError(Exception):
    """The relay did not start; its own message is on stderr."""


@attrs.define
class Story:
    """What has happened so far."""

    stall: trio.Event = attrs.field(factory=trio.Event)
    messages: Counter[str] = attrs.field(factory=Counter[str])
    """Sent or received, by client."""


@asynccontextmanager
async def connected(port: int, tenant: str, name: str) -> AsyncGenerator[MqttClient]:
    """Connect a client that buffers little."""
    sock = trio.socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER)
    await sock.connect(("127.0.0.1", port))
    stream = trio.SocketStream(sock)
    # No keep-alive, or the relay would soon close the connection of a client that stands still.
    async with open_mqtt(
        stream, client_id=name, username=tenant, keep_alive=0, max_buffered=10
    ) as client:
        yield client


async def publish(port: int, tenant: str, name: str, topic: str, rate: int, story: Story) -> None:
    """Publish twenty times a second, or as fast as the relay lets it."""
    async with connected(port, tenant, name) as client:
        while True:
            for _ in range(rate // 20):
                await client.publish(topic, PAYLOAD)
                story.messages[name] += 1
            await client.flush()  # until the socket has taken it: backpressure is felt here
            await trio.sleep(1 / 20)


async def subscribe(port: int, tenant: str, name: str, wanted: str, story: Story) -> None:
    """Read all messages; one subscriber stops when the time has come."""
    async with connected(port, tenant, name) as client:
        await client.subscribe(wanted)
        async for _ in client:
            story.messages[name] += 1
            if name == SLOW and story.stall.is_set():
                await trio.sleep_forever()


async def until_lost(client: Callable[..., Awaitable[None]], *arguments: object) -> None:
    """Run a client until its connection ends, which must not end the others."""
    try:
        await client(*arguments)
    except TransportError as exc:
        say(f"{arguments[2]} lost its connection: {exc}")


def say(words: str) -> None:
    """Print a line with the time of day."""
    print(time.strftime("%H:%M:%S"), words, flush=True)


async def report(story: Story) -> None:
    """Print each client's messages per second, every two seconds."""
    names = [name for _, name in (*PUBLISHERS, *SUBSCRIBERS)]
    before = story.messages.copy()
    while True:
        await trio.sleep(2)
        rates = (f"{name} {(story.messages[name] - before[name]) / 2:.0f}" for name in names)
        say(" ".join(rates))
        before = story.messages.copy()


@asynccontextmanager
async def relay(mqtt: int, http: int, options: list[str]) -> AsyncGenerator[int]:
    """Run a relay for the length of the block; yield its MQTT port.

    Raises:
        RelayError: If it does not start.
    """
    command = [sys.executable, "-m", "clearfunds", "relay", "--grace", "1"]
    command += ["--profile", "lossless"]  # Everybody waits, so that there is something to see.
    command += ["--listen", f"mqtt+tcp://127.0.0.1:{mqtt}", "--http", f"127.0.0.1:{http}"]
    process = await trio.lowlevel.open_process([*command, *options], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        said = b""
        while b'"ready"' not in said:
            data = await process.stdout.receive_some()
            if not data:
                raise RelayError("the relay did not start")
            said += data
        listening, pages, *_ = (json.loads(line) for line in said.splitlines())
        say(f"{listening['listening']}  {pages['http']}")
        yield int(listening["listening"].rpartition(":")[2])
    finally:
        process.send_signal(signal.SIGTERM)
        with trio.CancelScope(shield=True):
            await process.wait()
            await process.stdout.aclose()  # type: ignore[union-attr]


async def main(options: argparse.Namespace, relay_options: list[str]) -> None:
    """Tell the story until it is over, or until SIGINT or SIGTERM, and end the relay with it."""
    async with trio.open_nursery() as nursery:
        with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:

            async def end() -> None:
                async for _ in signals:
                    nursery.cancel_scope.cancel()

            nursery.start_soon(end)
            await tell(options, relay_options)
            nursery.cancel_scope.cancel()
    say("stopped")


async def tell(options: argparse.Namespace, relay_options: list[str]) -> None:
    """Run the calm part, then the stall, then the part after the relay has handled it."""
    story = Story()
    relay_options = ["--limit-items", str(options.limit_items), *relay_options]
    async with (
        relay(options.mqtt, options.http, relay_options) as port,
        trio.open_nursery() as nursery,
    ):
        for (tenant, name), wanted in SUBSCRIBERS.items():
            nursery.start_soon(until_lost, subscribe, port, tenant, name, wanted, story)
        await trio.sleep(0.5)
        for (tenant, name), (topic, rate) in PUBLISHERS.items():
            nursery.start_soon(until_lost, publish, port, tenant, name, topic, rate, story)
        nursery.start_soon(report, story)
        await trio.sleep(options.calm)
        say("one of the subscribers stops reading")
        story.stall.set()
        await trio.sleep(options.seconds)
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--mqtt", type=int, default=1883, help="port; 0: any")
    parser.add_argument("--http", type=int, default=9100, help="port; 0: any")
    parser.add_argument("--limit-items", type=int, default=1_000, help="limit of each publisher")
    parser.add_argument("--calm", type=float, default=20, help="seconds before the stall")
    parser.add_argument("--seconds", type=float, default=60, help="seconds after it")
    failed = False
    try:
        trio.run(main, *parser.parse_known_args())
    except* RelayError:
        failed = True
    if failed:  # not raised in the nursery, or it would be one of an exception group
        sys.exit("slow_consumer: the relay did not start")
