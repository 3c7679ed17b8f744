"""Relays with `--store nats` that die, hang or are cut off: what is confirmed is there.

The clients are paho's. Each of them keeps its session, and goes to another relay when it is cut
off.
"""

from __future__ import annotations

import re
import threading
import time
from collections import Counter, deque
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from http.client import HTTPException
from pathlib import Path
from random import Random
from typing import Any, Final

import paho.mqtt.client as mqtt
import pytest
import trio
from paho.mqtt.enums import CallbackAPIVersion

from tests.cluster.cut import Way, ways
from tests.nats_servers import NatsServer, nats_cluster, needs_nats
from tests.relay.relay_process import RelayProcess, relay_process
from tests.transports.peers import until

pytestmark = needs_nats

SERVED: Final = 10.0
"""Seconds within which all clients are served again."""
PAUSE: Final = 0.02
IN_FLIGHT: Final = 20
ROUNDS: Final = 10
SENT: Final = re.compile(r"Sending (PUBLISH|PUBREL) \(.*?(?:m|Mid: )(\d+)\)")
"""A line of paho's log."""


class Client:
    """A client of paho's that goes to the next relay when its connection ends."""

    def __init__(self, name: str, ports: list[int], at: int) -> None:
        self.name = name
        self._ports = ports
        self._at = at
        self.connected = threading.Event()
        self.client = mqtt.Client(
            CallbackAPIVersion.VERSION2, client_id=name, clean_session=False,
            reconnect_on_failure=False,
        )  # fmt: skip
        self.client.on_connect = self._on_connect
        self.client.on_disconnect = self._on_disconnect
        self._is_over = False
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        while not self._is_over:
            try:
                self.client.connect("127.0.0.1", self._ports[self._at], keepalive=3)
                self.client.loop_forever(retry_first_connection=False)
            except OSError:
                pass
            self.connected.clear()
            self._at = (self._at + 1) % len(self._ports)
            time.sleep(0.1)

    def _on_connect(self, client: mqtt.Client, userdata: Any, flags: Any, rc: Any, _: Any) -> None:
        if not rc.is_failure:
            self.connected.set()
            self.came()

    def _on_disconnect(self, *_: Any) -> None:
        self.connected.clear()

    def came(self) -> None:
        """Do what is to be done on each connection."""

    def stop(self) -> None:
        self._is_over = True
        self.client.disconnect()
        self._thread.join(20)


class Reader(Client):
    """A subscriber; notes what it gets."""

    def __init__(self, name: str, ports: list[int], at: int) -> None:
        super().__init__(name, ports, at)
        self.got: Counter[tuple[str, int]] = Counter()
        self.client.on_message = self._on_message

    def came(self) -> None:
        self.client.subscribe("all/#", 2)

    def _on_message(self, client: mqtt.Client, userdata: Any, message: mqtt.MQTTMessage) -> None:
        self.got[message.topic, int(message.payload)] += 1


class Writer(Client):
    """A publisher of QoS 1 and 2 by turns; notes what is confirmed."""

    def __init__(self, name: str, ports: list[int], at: int) -> None:
        super().__init__(name, ports, at)
        self.topic = f"all/{name}"
        self.sent = 0
        #: When each number was published.
        self.times: list[str] = []
        self.confirmed: set[int] = set()
        self._numbers: dict[int, int] = {}
        self._published: deque[int] = deque()
        self._ends = threading.Event()
        self.client.on_publish = self._on_publish
        self.client.on_log = self._on_log
        self._released: set[int] = set()
        #: Numbers that the client has published once more after it had released them.
        self.anew: set[int] = set()
        self._writing = threading.Thread(target=self._write, daemon=True)

    def start(self) -> None:
        super().start()
        self._writing.start()

    def _write(self) -> None:
        while not (self._ends.is_set() and not self.under_way) and not self._is_over:
            if len(self._numbers) < IN_FLIGHT and not self._ends.is_set():
                info = self.client.publish(self.topic, b"%d" % self.sent, qos=1 + self.sent % 2)
                self._numbers[info.mid] = self.sent
                self.times.append(datetime.now(UTC).isoformat(timespec="milliseconds"))
                self.sent += 1
            time.sleep(PAUSE)
            # Here, since paho calls back with its locks held.
            while self._published:
                mid = self._published.popleft()
                self.confirmed.add(self._numbers.pop(mid))

    def _on_publish(self, client: mqtt.Client, userdata: Any, mid: int, *_: Any) -> None:
        self._published.append(mid)

    def _on_log(self, client: mqtt.Client, userdata: Any, level: int, line: str) -> None:
        """Note what paho publishes anew.

        When it is refused while it waits for a PUBCOMP, it forgets that there was a PUBREC, and
        publishes the message again, without DUP (`Client._messages_reconnect_reset_out`).
        """
        sent = SENT.match(line)
        if sent is None:
            return
        mid = int(sent[2])
        if sent[1] == "PUBREL":
            self._released.add(mid)
        elif mid in self._released:
            self.anew.add(self._numbers[mid])

    def end(self) -> None:
        """Publish nothing more."""
        self._ends.set()

    @property
    def under_way(self) -> set[int]:
        """What is published and not confirmed."""
        return set(range(self.sent)) - self.confirmed


@asynccontextmanager
async def relays(
    folder: Path, servers: list[NatsServer], count: int = 3
) -> AsyncGenerator[tuple[list[RelayProcess], list[list[Way]]]]:
    """Run relays with a store in JetStream, each with its own way to each server."""
    async with AsyncExitStack() as stack:
        found: list[RelayProcess] = []
        own_ways: list[list[Way]] = []
        for number in range(count):
            own = folder / f"r{number}"
            own.mkdir()
            way = await stack.enter_async_context(ways(*(each.port for each in servers)))
            where = ",".join(f"nats://127.0.0.1:{each.port}" for each in way)
            relay = relay_process(own, nats=where, name=f"r{number}")
            found.append(await stack.enter_async_context(relay))
            own_ways.append(way)
        yield found, own_ways


class Traffic:
    """A reader and a writer for each relay."""

    def __init__(self, relays: list[RelayProcess]) -> None:
        ports = [each.port for each in relays]
        self.readers = [Reader(f"reader-{at}", ports, at) for at in range(len(ports))]
        self.writers = [Writer(f"writer-{at}", ports, at) for at in range(len(ports))]

    async def start(self) -> None:
        for each in self.readers:
            each.start()
        await until(lambda: all(each.connected.is_set() for each in self.readers), 20)
        await trio.sleep(1)  # and so the other relays know
        for writer in self.writers:
            writer.start()

    async def flows(self, seconds: float) -> None:
        """Wait until every reader gets something new of every writer."""
        since = {each.topic: each.sent for each in self.writers}

        def all_get() -> bool:
            return all(
                any(key[0] == topic and key[1] >= number for key in list(each.got))
                for each in self.readers
                for topic, number in since.items()
            )

        await until(all_get, seconds)

    def stop(self) -> None:
        for each in (*self.writers, *self.readers):
            each.stop()

    async def end(self) -> None:
        """Publish no more; wait until all is confirmed, and what is confirmed is there."""
        for writer in self.writers:
            writer.end()
        await until(lambda: not any(each.under_way for each in self.writers), 60)
        wanted = {(each.topic, number) for each in self.writers for number in each.confirmed}

        times = {each.topic: each.times for each in self.writers}

        def missing() -> dict[str, list[str]]:
            lost = {each.name: sorted(wanted - each.got.keys()) for each in self.readers}
            return {
                name: [
                    f"{topic} {number}, published at {times[topic][number]}"
                    for topic, number in some
                ]
                for name, some in lost.items()
                if some
            }

        with trio.move_on_after(30):
            await until(lambda: not missing(), 60)
        lost = missing()
        assert not lost, "\n".join(line for lines in lost.values() for line in lines)

    def twice(self) -> set[tuple[str, int]]:
        """Return what was published once with QoS 2, and some reader has got twice."""
        anew = {(each.topic, number) for each in self.writers for number in each.anew}
        twice = {
            key for each in self.readers for key, count in each.got.items()
            if count > 1 and key[1] % 2
        }  # fmt: skip
        return twice - anew


@pytest.mark.long
@pytest.mark.parametrize("seed", range(5))
async def test_what_is_confirmed_is_there_whatever_dies_hangs_or_is_cut_off(
    seed: int, tmp_path: Path
) -> None:
    """Ten rounds: `kill -9`, SIGSTOP for 10 s, or a cut, of a relay or a NATS server."""
    chance = Random(seed)
    with nats_cluster(tmp_path, advertise=False) as servers:
        async with relays(tmp_path, servers) as (found, own_ways):
            traffic = Traffic(found)
            try:
                await traffic.start()
                await traffic.flows(20)
                for turn in range(ROUNDS):
                    kind, at = chance.randrange(5), chance.randrange(3)
                    began = trio.current_time()
                    await fail(kind, found[at], servers[at], own_ways[at])
                    mended = trio.current_time()
                    await traffic.flows(SERVED)
                    print(
                        f"round {turn}: fault {kind} of {at}, {mended - began:.1f} s; "
                        f"served after {trio.current_time() - mended:.1f} s more"
                    )
                    for each in found:
                        await audit(each)
                await traffic.end()
                assert not traffic.twice()
                print(
                    f"seed {seed}: {sum(each.sent for each in traffic.writers)} published, "
                    f"{sum(len(each.anew) for each in traffic.writers)} of them anew by paho"
                )
            finally:
                await trio.to_thread.run_sync(traffic.stop)


async def audit(relay: RelayProcess) -> None:
    """See that the books balance, of a relay that may just begin anew."""
    with trio.fail_after(SERVED):
        while True:
            try:
                return await relay.audit()
            except (OSError, HTTPException):  # it may end within an answer, too
                await trio.sleep(0.1)


async def fail(kind: int, relay: RelayProcess, server: NatsServer, way: list[Way]) -> None:
    """Let something fail, and be mended."""
    match kind:
        case 0:
            await relay.kill()
            await trio.sleep(2)
            await relay.start()
        case 1:
            relay.stop_for_now()
            await trio.sleep(10)
            relay.go_on()
        case 2:
            await trio.to_thread.run_sync(server.kill)
            await trio.sleep(2)
            await trio.to_thread.run_sync(server.start)
        case 3:
            with server.frozen():
                await trio.sleep(10)
        case _:
            for each in way:
                each.cut()
            await trio.sleep(6)
            for each in way:
                each.mend()
