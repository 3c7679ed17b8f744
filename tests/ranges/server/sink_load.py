"""A writer that does not give up, and what has to be seen of its batches at the end."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter

import trio

from clearfunds.ranges.client import (
    AwayError,
    DiskError,
    FencedError,
    NotStagedError,
    RangeError,
    RangeReader,
    SinkWriter,
    Staged,
)
from clearfunds.transports.mqtt import PubAck, PubComp, Publish, PubRec, PubRel
from tests.ranges.server.relays import HOST, blocking
from tests.relay.brokers import Broker
from tests.relay.faithful import Load
from tests.transports.peers import until

NAME = "load"
FILTER = "load/#"


class Clients(Load):
    """Clients of MQTT with sessions that are kept, which come and go and take everything."""

    def sent(self, payload: bytes) -> int:
        """Once: that is what it is about."""
        return 1

    async def have(self, expected: list[bytes]) -> None:
        """Let them take everything, each once, and go."""
        self.publishing = False
        for each in self.subscribers:
            await until(lambda each=each: each.seen.issuperset(expected))  # type: ignore[misc]
        await trio.sleep(0.2)  # there may be too much
        self.over = True
        for each in self.subscribers:
            # What goes to a client with QoS 1, be it the client's or the row's, may be on its way
            # before it is on disk, and come anew when the batch is published again: as a publisher
            # would send it again.
            faults = [
                fault
                for fault in each.faults
                if not (
                    fault.endswith("without DUP") and (each.qos == 1 or fault.startswith("b'q1"))
                )
            ]
            assert not faults, (each.name, faults)
            taken = Counter(each.taken)
            assert taken.keys() == set(expected)
            assert each.qos == 1 or all(
                count == 1 for payload, count in taken.items() if payload.startswith(b"q2")
            )


class SinkLoad:
    """Batches written one after another, as Spark does it; in a thread of its own.

    Attributes:
        batches: What each batch consists of, once it was committed.
        retries: How often one had to be written again.
        already: How often a batch was found to be committed.
    """

    def __init__(self, seed: int, port: int, rows: int = 60) -> None:
        self.port = port
        self.batches: list[list[bytes]] = []
        self.retries = 0
        self.already = 0
        self.over = False
        self.why: list[str] = []
        self._rows = rows
        self._chance = random.Random(seed)
        # What a reader has had that acknowledges, by number: it may see one twice.
        self.seen: dict[int, bytes] = {}
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._reading = threading.Thread(target=self._read_on, daemon=True)

    async def begin(self) -> None:
        """Have a durable subscription, and a session that is kept; then write."""
        reader = await blocking(
            RangeReader, HOST, self.port, NAME, filters=[FILTER], start="earliest", durable=True
        )
        reader.close()

    async def keep_session(self, port: int) -> None:
        """Have a client's session kept that takes everything exactly once."""
        broker = Broker(port, 32, "kept")
        async with broker.visit(leave=True) as client:
            await client.subscribe(FILTER, qos=2)

    def start(self) -> None:
        self._thread.start()
        self._reading.start()

    async def end(self) -> None:
        """Have the batch that is under way committed, and no more."""
        self.over = True
        with trio.fail_after(60):
            await trio.to_thread.run_sync(self._thread.join, abandon_on_cancel=True)
            await trio.to_thread.run_sync(self._reading.join, abandon_on_cancel=True)
        assert not self.why, self.why

    def _run(self) -> None:
        try:
            while not self.over:
                self._write(len(self.batches))
        except Exception as exc:  # noqa: BLE001
            self.why.append(repr(exc))

    def _read_on(self) -> None:
        """Read what comes, and acknowledge some of it; go on after each fault."""
        chance = random.Random(7)
        while not self.over:
            try:
                with RangeReader(HOST, self.port, NAME, timeout=20) as reader:
                    while not self.over:
                        end = self._read_some(reader)
                        if chance.random() < 0.5:
                            reader.ack(end)
                        time.sleep(0.01)
            except (AwayError, DiskError, FencedError):
                time.sleep(0.01)
            except Exception as exc:  # noqa: BLE001
                self.why.append(repr(exc))
                return

    def _read_some(self, reader: RangeReader) -> int:
        low, end = reader.head()
        for block in reader.fetch(low, end):
            for row in block.rows():
                assert self.seen.setdefault(row.number, row.value) == row.value
        return end

    def _write(self, batch: int) -> None:
        chance = self._chance
        parts: list[list[bytes]] = []
        for part in range(chance.randrange(1, 4)):
            # Its second letter is its QoS.
            qos, count = chance.choice((1, 2)), chance.randrange(self._rows)
            parts.append([b"q%d %d %d %d" % (qos, batch, part, row) for row in range(count)])
        attempt = 0
        while True:
            attempt += 1
            try:
                with SinkWriter(HOST, self.port, NAME, timeout=20) as client:
                    last = client.last_committed()
                    if last is not None and last >= batch:
                        assert last == batch
                        self.already += 1
                        break
                    if self._try(client, batch, parts, attempt):
                        break
                    self.already += 1
                    break
            except (AwayError, NotStagedError, DiskError, FencedError):
                self.retries += 1
                time.sleep(0.01)
        self.batches.append([row for part in parts for row in part])

    def _try(self, client: SinkWriter, batch: int, parts: list[list[bytes]], attempt: int) -> bool:
        chance = self._chance
        staged: list[Staged] = []
        for place in chance.sample(range(len(parts)), len(parts)):
            rows = [(f"load/{n % 5}", row) for n, row in enumerate(parts[place])]
            if chance.random() < 0.2:
                client.stage(batch, place, 1000 + attempt, [("load/x", b"another attempt")])
            if chance.random() < 0.1:
                client.abort(batch)
                raise NotStagedError("the test has aborted it")
            qos = int(parts[place][0][1:2]) if parts[place] else 1
            staged.append(client.stage(batch, place, attempt, rows, qos=qos))
        try:
            return client.commit(batch, staged)
        except RangeError:
            if chance.random() < 0.5:
                # As Spark does when it does not know.
                client.abort(batch)
            raise

    @property
    def expected(self) -> list[bytes]:
        """What everybody has to have, and in which order."""
        return [row for batch in self.batches for row in batch]

    async def check(self, port: int | None = None) -> None:
        """See that everybody has had each batch once, whole, and in order."""
        expected = self.expected
        assert await blocking(self._read, len(expected)) == expected
        if port is not None:
            assert await self._session(port, len(expected)) == expected

    def _read(self, count: int) -> list[bytes]:
        with RangeReader(HOST, self.port, NAME, timeout=10) as reader:
            until = time.monotonic() + 20
            while time.monotonic() < until and self._read_some(reader) <= count:
                time.sleep(0.02)
            time.sleep(0.1)  # there may be too much
            self._read_some(reader)
        assert sorted(self.seen) == list(range(1, len(self.seen) + 1))
        return [self.seen[number] for number in sorted(self.seen)]

    async def _session(self, port: int, count: int) -> list[bytes]:
        """What is kept for the client; it may be told of what is QoS 2 only once."""
        found: list[bytes] = []
        broker = Broker(port, 32, "kept")
        async with broker.visit(present=True) as visitor:
            client = visitor.client
            taken: set[int] = set()
            while True:
                with trio.move_on_after(10 if len(found) < count else 0.3):
                    packet = await client.receive()
                    if isinstance(packet, Publish):
                        if packet.qos == 1:
                            await client.send(PubAck(packet.packet_id))
                        else:
                            assert packet.packet_id not in taken
                            taken.add(packet.packet_id)
                            await client.send(PubRec(packet.packet_id))
                        found.append(packet.payload)
                    elif isinstance(packet, PubRel):
                        taken.discard(packet.packet_id)
                        await client.send(PubComp(packet.packet_id))
                    continue
                return found
