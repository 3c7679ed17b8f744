"""Publishers: each sends a message when it is due, as far as backpressure allows.

One task sends for all publishers of a process, without blocking; a publisher has a task of its own
only while its socket accepts nothing.
"""

from __future__ import annotations

import heapq
import os
import ssl
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Final

import attrs
import trio

from ..transports._connecting import receive
from ..transports.mqtt import MAX_PACKET_ID, Reason, in_words
from ..transports.mqtt.codec._frames import DISCONNECT, PUBACK, PUBCOMP, PUBREC, PUBREL
from ._client import Client, disconnected
from ._connect import READ_BYTES
from ._errors import PerfError
from ._header import HEADER, HEADER_BYTES
from ._latency import Latencies
from ._scenario import Scenario
from ._wire import Packets, Publications, acknowledgement, short_at

if TYPE_CHECKING:
    from ..sockets._layer import Connected

CHUNK_BYTES: Final = 64 << 10
"""The most bytes in one write."""

FILLER: Final = os.urandom(1 << 16)
"""Fills payloads: random bytes, which do not compress."""

_FAILED: Final = int(Reason.UNSPECIFIED_ERROR)
"""Reason codes from here on are failures (MQTT 5, section 2.4)."""


@attrs.frozen
class PublisherLatencies:
    """Measurements of all publishers of one process: a histogram each would take 180 KB."""

    confirms: Latencies = attrs.field(factory=Latencies)
    """From the time a message was due to its acknowledgement."""
    late: Latencies = attrs.field(factory=Latencies)
    """Delays of messages for which the generator itself is to blame."""
    stalls: Latencies = attrs.field(factory=Latencies)
    """Durations of the stretches in which a message was due and could not be sent."""


class Publisher(Client):
    """One publisher.

    Args:
        latencies: The record for its measurements.
        tls: See `Client`.

    Attributes:
        sent: Messages that the kernel has taken in full, by topic.
        half_sent: Messages of writes that the end of a connection cut short: a topic's number, and
            the numbers of the first of its messages and of the one after the last.
        confirmed: Acknowledged messages (QoS 1 and 2).
        refused: Messages that the server has refused with a reason; these do not count as sent.
        refusals: Refused messages by reason.
        stalled: Seconds of all stalls that are over.
        sent_at: The time when the kernel last took messages, in seconds from the beginning.
    """

    def __init__(
        self,
        scenario: Scenario,
        number: int,
        prefix: str,
        latencies: PublisherLatencies,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        super().__init__(scenario, number, "pub", prefix, tls)
        topics = scenario.routes().topics_of(number)
        self.sent = [0] * len(topics)
        self.half_sent: list[tuple[int, int, int]] = []
        self.confirmed = 0
        self.refused = 0
        self.refusals: dict[str, int] = {}
        self.stalled = 0.0
        self.sent_at = 0.0
        self.told_of: Callable[[], object] = lambda: None
        self._latencies = latencies
        is_5 = scenario.version == "5"
        self._packets = Publications(topics, scenario.qos, properties=is_5)
        # With MQTT 5 an acknowledgement can be a refusal, which is counted for its topic.
        self._keeps_topics = is_5 and len(topics) > 1
        self._random = Random(f"{scenario.seed}/{number}")
        self._began = scenario.began(number)
        # The next message: its number, and the number of its topic.
        self._number = 0
        self._topic = 0
        self._next_of_topic = [0] * len(topics)
        self._begin_connection()
        self._stalled_since: float | None = None
        self._ready = 0.0
        self._stalled_afterwards = 0.0

    def _begin_connection(self) -> None:
        self._rest: memoryview | None = None
        self._in_chunk: dict[int, int] = {}
        self._waits: set[int] = set()
        self._due_of: dict[int, int] = {}
        self._topic_of: dict[int, int] = {}
        self._packet_id = 0
        self._pubrels = b""
        self._input = Packets()
        self._is_back = True

    def opened(self, rest: bytes) -> None:
        self.half_sent = self.uncertain()
        self._begin_connection()
        self._input.feed(rest)
        self._check_granted()
        self.told_of()

    def _check_granted(self) -> None:
        """Check that the server accepts the load to be published.

        Raises:
            PerfError: It does not: [MQTT-3.2.2-11], [MQTT-3.2.2-15].
        """
        qos, most = self.granted.maximum_qos, self.granted.maximum_packet_size
        if self.scenario.qos > qos:
            msg = f"{self.client_id}: the server takes QoS {qos} at most (its Maximum QoS)"
            raise PerfError(msg)
        if most is None:
            return
        size = self.scenario.size
        filler = bytes(max(*size.choices, size.most or 0) - HEADER_BYTES)
        largest = len(self._packets.frame(len(self.sent) - 1, 1, bytes(HEADER_BYTES), filler))
        if largest > most:
            msg = (
                f"{self.client_id}: the server takes packets of {most} bytes at most (its Maximum "
                f"Packet Size); with --size there would be some of {largest}"
            )
            raise PerfError(msg)

    @property
    def window(self) -> int:
        """The in-flight window: the limit of unacknowledged messages; 0: none is acknowledged.

        The server's Receive Maximum counts, too [MQTT-3.3.4-7].
        """
        if not self.scenario.qos:
            return 0
        return min(self.scenario.in_flight, self.granted.receive_maximum, MAX_PACKET_ID)

    def uncertain(self) -> list[tuple[int, int, int]]:
        """Return the partly sent messages, as if the connection ended now."""
        return self.half_sent + [
            (topic, self._next_of_topic[topic] - count, self._next_of_topic[topic])
            for topic, count in self._in_chunk.items()
        ]

    # -- sending ------------------------------------------------------------------------------

    def due_at(self) -> float:
        """Return the time when its next message is due, in seconds from the run's beginning."""
        rate = self.scenario.rate
        if rate is None:
            return self._began
        return self._began + rate.time_of(self._number)

    def push(self, now: float, until: float, epoch_ns: int) -> float | None:
        """Send the messages due at `now`.

        Args:
            now: Seconds from the beginning of the run.
            until: The end of publishing.
            epoch_ns: The beginning of the run, on the clock of the messages.

        Returns:
            the time of the next call; None: when the server allows it (`wait`), or never.
        """
        sock = self._sock
        if sock is None:
            if self.is_due(now, until):
                self._stall(now)  # Until it is connected again.
            at = self.due_at()
            return at if now < at < until else None
        while True:
            if self._rest is None and not self._pubrels:
                due = self._fill(now, until, epoch_ns)
                if due is not None or self._rest is None:
                    return due
            try:
                if not self._flush(sock, now):
                    self._stall(now)
                    return None
            except OSError:
                return None  # The reading task notices the error, too.
            if self.is_due(now, until):
                # Other publishers want to send, too, and the clock has to go on.
                return now

    def is_due(self, now: float, until: float) -> bool:
        """Whether a message is to be published at `now`; see `push`."""
        due = self.due_at()
        return due <= now and (now if self.scenario.rate is None else due) < until

    def _fill(self, now: float, until: float, epoch_ns: int) -> float | None:
        """Prepare the next write; if no message is due, return the time of the next."""
        window = self.window
        rate, sizes = self.scenario.rate, self.scenario.size
        frames: list[bytes] = []
        size = 0
        in_chunk: dict[int, int] = {}
        late: list[int] = []
        due = self.due_at()
        while size < CHUNK_BYTES:
            if due > now or (now if rate is None else due) >= until:
                break
            if window and len(self._due_of) >= window:
                self._stall(now)
                break
            at = now if rate is None else due
            if rate is not None and self._stalled_since is None:
                # It could have been sent when it was due, or when the publisher was ready again.
                late.append(int((now - max(due, self._ready)) * 1e6))
            due_ns = epoch_ns + int(at * 1e9)
            topic = self._topic
            header = HEADER.pack(
                due_ns, self.run_id, self.number, topic, self._next_of_topic[topic]
            )
            packet_id = self._take_id(due_ns, topic) if window else 0
            fill = sizes.of(self._number, self._random) - HEADER_BYTES
            filler = FILLER[:fill] if fill <= len(FILLER) else bytes(fill)
            frame = self._packets.frame(topic, packet_id, header, filler)
            frames.append(frame)
            size += len(frame)
            in_chunk[topic] = in_chunk.get(topic, 0) + 1
            self._next_of_topic[topic] += 1
            self._topic = (topic + 1) % len(self._next_of_topic)
            self._number += 1
            due = self.due_at()
        self._latencies.late.add(late)
        if frames:
            self._rest = memoryview(b"".join(frames))
            self._in_chunk = in_chunk
            return None
        return due if now < due < until else None

    def _take_id(self, due_ns: int, topic: int) -> int:
        packet_id = self._packet_id
        while True:
            packet_id = packet_id % MAX_PACKET_ID + 1
            if packet_id not in self._due_of:
                break
        self._packet_id = packet_id
        self._due_of[packet_id] = due_ns
        if self._keeps_topics:
            self._topic_of[packet_id] = topic
        return packet_id

    def _flush(self, sock: Connected, now: float) -> bool:
        """Send the prepared write; return whether the kernel has taken all of it."""
        while True:
            if self._rest is None:
                if not self._pubrels:
                    self._sending = False
                    return True
                self._rest, self._pubrels = memoryview(self._pubrels), b""
            self._sending = True
            try:
                taken = sock.send(self._rest)
            except BlockingIOError:
                return False
            if taken < len(self._rest):
                self._rest = self._rest[taken:]
                return False
            self._rest = None
            if self._in_chunk:
                self.sent_at = now
            for topic, count in self._in_chunk.items():
                self.sent[topic] += count
            self._in_chunk = {}

    def _stall(self, now: float) -> None:
        if self._stalled_since is None:
            self._stalled_since = now

    def go_on(self, now: float) -> None:
        """Note that it may send again."""
        since, self._stalled_since = self._stalled_since, None
        # If only the acknowledgement was noticed late, the generator alone is to blame.
        if since is not None or self._is_back:
            self._ready = now
            self._is_back = False
        if since is not None:
            self.stalled += now - since
            self._stalled_afterwards += self._afterwards(since, now)
            self._latencies.stalls.add((int((now - since) * 1e6),))

    def stalled_until(self, now: float) -> float:
        """Return the stalled seconds until `now`: a message was due and could not be sent."""
        running = 0.0 if self._stalled_since is None else now - self._stalled_since
        return self.stalled + running

    def stalled_while_publishing(self, now: float) -> float:
        """Return the stalled seconds before the end of publishing."""
        since = self._stalled_since
        running = 0.0 if since is None else self._afterwards(since, now)
        return self.stalled_until(now) - self._stalled_afterwards - running

    def _afterwards(self, since: float, now: float) -> float:
        return max(0.0, now - max(since, self.scenario.seconds))

    @property
    def unsent(self) -> int:
        """Messages of the present write that the kernel has not taken in full."""
        return sum(self._in_chunk.values())

    @property
    def unconfirmed(self) -> int:
        """Unacknowledged messages."""
        return len(self._due_of)

    def ping(self) -> bytes:
        """See `Client.ping`: it sends the rest of a ping itself, before anything else."""
        rest = super().ping()
        if rest:
            self._rest = memoryview(rest)
            self.told_of()
        return b""

    async def writable(self) -> None:
        """Wait until the kernel takes bytes; return at once if nothing is to be sent."""
        sock = self._sock
        if sock is not None and (self._rest is not None or self._pubrels):
            try:
                await trio.lowlevel.wait_writable(sock)
            except (OSError, trio.ClosedResourceError):
                return

    @property
    def waits_for_the_kernel(self) -> bool:
        """Whether a write is partly done."""
        return self._sock is not None and (self._rest is not None or bool(self._pubrels))

    # -- acknowledgements ---------------------------------------------------------------------

    async def serve(self, sock: Connected) -> None:
        """See `Client.serve`: it reads acknowledgements."""
        packets = self._input
        while True:
            now_ns = self.now_ns()
            done: list[int] = []
            refused = self.refused
            buffer = packets.buffer
            for first, at, end in packets:
                if end - at > 2 and first in (PUBACK, PUBREC) and buffer[at + 2] >= _FAILED:
                    self._refuse(buffer, at, end)
                elif first in (PUBACK, PUBCOMP):
                    packet_id = short_at(buffer, at, end)
                    due_ns = self._due_of.pop(packet_id, None)
                    if self._keeps_topics:
                        self._topic_of.pop(packet_id, None)
                    if due_ns is not None:
                        done.append((now_ns - due_ns) // 1_000)
                elif first == PUBREC:
                    self._pubrels += acknowledgement(PUBREL, short_at(buffer, at, end))
                elif first == DISCONNECT:
                    raise disconnected(buffer[at:end])
            self.confirmed += len(done)
            self._latencies.confirms.add(done)
            if done or self._pubrels or self.refused > refused:
                self.told_of()
            data = await receive(sock, READ_BYTES)
            if not data:
                return
            packets.feed(data)

    def _refuse(self, buffer: bytes, at: int, end: int) -> None:
        """Count a refused message: no subscriber will get it [MQTT-4.3.3-4]."""
        packet_id = short_at(buffer, at, end)
        if self._due_of.pop(packet_id, None) is None:
            return
        self.sent[self._topic_of.pop(packet_id, 0)] -= 1
        self.refused += 1
        why = in_words(buffer[at + 2])
        self.refusals[why] = self.refusals.get(why, 0) + 1


class Pacemaker:
    """Sends for all publishers of a process, at the right time.

    Args:
        publishers: The publishers.
        clock: Returns seconds from the beginning of the run.
        seconds: The duration of publishing.
        epoch_ns: The beginning, on the clock of the messages.
    """

    def __init__(
        self,
        publishers: list[Publisher],
        clock: Callable[[], float],
        seconds: float,
        epoch_ns: int,
    ) -> None:
        self._publishers = publishers
        self._clock = clock
        self._seconds = seconds
        self._epoch_ns = epoch_ns
        self._heap: list[tuple[float, int]] = []
        self._wake = trio.Event()
        self._scheduled: dict[int, float] = {}
        # Publishers whose socket accepts nothing: a task waits for each of them.
        self._blocked: set[int] = set()

    def schedule(self, place: int, at: float) -> None:
        """Schedule a publisher for a time."""
        known = self._scheduled.get(place)
        if known is not None and known <= at:
            return
        self._scheduled[place] = at
        heapq.heappush(self._heap, (at, place))
        self._wake.set()

    async def run(self) -> None:
        """Publish until cancelled; nothing new after `seconds`."""
        async with trio.open_nursery() as nursery:
            for place, publisher in enumerate(self._publishers):
                publisher.told_of = self._teller(place)
                self.schedule(place, publisher.due_at())
            while True:
                self._wake = trio.Event()
                # Each once: a publisher that is due again at once must not stop the others, and
                # time, from going on, as one without a rate does if its server takes everything.
                for place in self._due():
                    self._push(place, self._clock(), nursery)
                if self._heap and self._heap[0][0] <= self._clock():
                    await trio.lowlevel.checkpoint()
                    continue
                wait = self._heap[0][0] - self._clock() if self._heap else float("inf")
                with trio.move_on_after(max(wait, 0.0)):
                    await self._wake.wait()

    def _due(self) -> list[int]:
        """Take out the publishers that are due by now."""
        found: list[int] = []
        now = self._clock()
        while self._heap and self._heap[0][0] <= now:
            at, place = heapq.heappop(self._heap)
            if self._scheduled.get(place) == at:
                del self._scheduled[place]
                found.append(place)
        return found

    def _push(self, place: int, now: float, nursery: trio.Nursery) -> None:
        publisher = self._publishers[place]
        due = publisher.push(now, self._seconds, self._epoch_ns)
        if due is not None:
            self.schedule(place, due)
        elif publisher.waits_for_the_kernel:
            self._blocked.add(place)
            nursery.start_soon(self._wait, place)

    async def _wait(self, place: int) -> None:
        publisher = self._publishers[place]
        await publisher.writable()
        self._blocked.discard(place)
        self._go_on(place)

    def _teller(self, place: int) -> Callable[[], None]:
        def tell() -> None:
            if place not in self._blocked:
                self._go_on(place)

        return tell

    def _go_on(self, place: int) -> None:
        now = self._clock()
        publisher = self._publishers[place]
        if publisher.connected:
            publisher.go_on(now)
        self.schedule(place, now)
