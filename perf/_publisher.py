"""Publishers: each sends what is due when it is due, as far as the server lets it.

One task sends for all publishers of a process, without blocking; a publisher has a task of its own
only while its socket takes nothing.
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

from ..transports.mqtt import MAX_PACKET_ID, in_words
from ._client import Client
from ._connect import receive
from ._errors import PerfError
from ._header import HEADER, HEADER_BYTES
from ._latency import Latencies
from ._mqtt5 import FAILED, disconnected
from ._scenario import Scenario
from ._wire import (
    DISCONNECT,
    PUBACK,
    PUBCOMP,
    PUBREC,
    PUBREL,
    Packets,
    Publications,
    acknowledgement,
    short_at,
)

if TYPE_CHECKING:
    from ..transports._layer import Connected

CHUNK_BYTES: Final = 64 << 10
"""The most that one write has."""

FILLER: Final = os.urandom(1 << 16)
"""What payloads are filled with; nothing that compresses."""


@attrs.frozen
class PublisherLatencies:
    """What the publishers of one process measure. A histogram has 180 KB: not one for each."""

    confirms: Latencies = attrs.field(factory=Latencies)
    """From when a message was due to its acknowledgement."""
    late: Latencies = attrs.field(factory=Latencies)
    """By how much messages were sent late through no fault of the server's."""
    stalls: Latencies = attrs.field(factory=Latencies)
    """How long each stretch was in which something was due and could not be sent."""


class Publisher(Client):
    """One publisher.

    Args:
        latencies: Where it adds what it measures.
        tls: See `Client`.

    Attributes:
        sent: By topic, how many messages the kernel has taken in full.
        half_sent: Messages of writes that were cut short by the end of a connection, as a topic's
            number, and those of the first of its messages and the one after the last.
        confirmed: How many have been acknowledged (QoS 1 and 2).
        refused: How many the server has answered with the reason why it has not taken them; these
            are not among those that were sent.
        refusals: How many of them for which reason.
        stalled: Seconds of all stretches that are over.
        sent_at: When the kernel last took messages, in seconds from the beginning of the run.
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
        # With MQTT 5 an acknowledgement can be a refusal: whose topic's is then looked at.
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
        self._answers = b""
        self._input = Packets()
        self._is_back = True

    def opened(self, rest: bytes) -> None:
        """See `Client.opened`."""
        self.half_sent = self.uncertain()
        self._begin_connection()
        self._input.feed(rest)
        self._check_granted()
        self.told_of()

    def _check_granted(self) -> None:
        """See that what it is to publish is something that the server takes.

        Raises:
            PerfError: It is not: [MQTT-3.2.2-11], [MQTT-3.2.2-15].
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
        """How many messages may be unacknowledged; 0: there is nothing to acknowledge.

        The server's Receive Maximum counts, too [MQTT-3.3.4-7].
        """
        if not self.scenario.qos:
            return 0
        return min(self.scenario.in_flight, self.granted.receive_maximum, MAX_PACKET_ID)

    def uncertain(self) -> list[tuple[int, int, int]]:
        """Return what was half sent, with what would be if the connection ended now."""
        return self.half_sent + [
            (topic, self._next_of_topic[topic] - count, self._next_of_topic[topic])
            for topic, count in self._in_chunk.items()
        ]

    # -- sending ------------------------------------------------------------------------------

    def due_at(self) -> float:
        """Return when its next message is due, in seconds from the beginning of the run."""
        rate = self.scenario.rate
        if rate is None:
            return self._began
        return self._began + rate.time_of(self._number)

    def push(self, now: float, until: float, epoch_ns: int) -> float | None:
        """Send what is due at `now`.

        Args:
            now: Seconds from the beginning of the run.
            until: When no more is published.
            epoch_ns: The beginning of the run, on the clock that is in the messages.

        Returns:
            When there will be something to do again; None: when the server lets it (`wait`), or
            never.
        """
        sock = self._sock
        if sock is None:
            if self.is_due(now, until):
                self._stall(now)  # until there is a connection again
            at = self.due_at()
            return at if now < at < until else None
        while True:
            if self._rest is None and not self._answers:
                due = self._fill(now, until, epoch_ns)
                if due is not None or self._rest is None:
                    return due
            try:
                if not self._flush(sock, now):
                    self._stall(now)
                    return None
            except OSError:
                return None  # who reads hears of it, too
            if self.is_due(now, until):
                # Others want to send, too, and the clock to go on.
                return now

    def is_due(self, now: float, until: float) -> bool:
        """Whether there is a message to be published at `now`; see `push`."""
        due = self.due_at()
        return due <= now and (now if self.scenario.rate is None else due) < until

    def _fill(self, now: float, until: float, epoch_ns: int) -> float | None:
        """Make the next write of what is due; return when something will be, if nothing is."""
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
                # It was free to send from the moment at which it was due, or ready again.
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
        """Send what there is; return whether the kernel has taken all of it."""
        while True:
            if self._rest is None:
                if not self._answers:
                    self._sending = False
                    return True
                self._rest, self._answers = memoryview(self._answers), b""
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
        """Note that the server lets it send again."""
        since, self._stalled_since = self._stalled_since, None
        # Nobody but the generator is to blame if it only was told of an acknowledgement.
        if since is not None or self._is_back:
            self._ready = now
            self._is_back = False
        if since is not None:
            self.stalled += now - since
            self._stalled_afterwards += self._afterwards(since, now)
            self._latencies.stalls.add((int((now - since) * 1e6),))

    def stalled_until(self, now: float) -> float:
        """Return seconds in which something was due and could not be sent, until `now`."""
        running = 0.0 if self._stalled_since is None else now - self._stalled_since
        return self.stalled + running

    def stalled_while_publishing(self, now: float) -> float:
        """Return how many of them were before the end of publishing."""
        since = self._stalled_since
        running = 0.0 if since is None else self._afterwards(since, now)
        return self.stalled_until(now) - self._stalled_afterwards - running

    def _afterwards(self, since: float, now: float) -> float:
        return max(0.0, now - max(since, self.scenario.seconds))

    @property
    def unsent(self) -> int:
        """How many messages a write has that the kernel has not taken in full."""
        return sum(self._in_chunk.values())

    @property
    def unconfirmed(self) -> int:
        """How many messages are not acknowledged."""
        return len(self._due_of)

    def ping(self) -> bytes:
        """See `Client.ping`: what is left of it comes first in what it sends itself."""
        rest = super().ping()
        if rest:
            self._rest = memoryview(rest)
            self.told_of()
        return b""

    async def writable(self) -> None:
        """Wait until the kernel takes something; at once if there is nothing to be sent."""
        sock = self._sock
        if sock is not None and (self._rest is not None or self._answers):
            try:
                await trio.lowlevel.wait_writable(sock)
            except (OSError, trio.ClosedResourceError):
                return

    @property
    def waits_for_the_kernel(self) -> bool:
        """Whether a write has been begun."""
        return self._sock is not None and (self._rest is not None or bool(self._answers))

    # -- what comes back ----------------------------------------------------------------------

    async def serve(self, sock: Connected) -> None:
        """See `Client.serve`: what comes are acknowledgements."""
        packets = self._input
        while True:
            now_ns = self.now_ns()
            done: list[int] = []
            refused = self.refused
            while (found := packets.next()) is not None:
                first, at, end = found
                kind = first >> 4
                if end - at > 2 and kind in (PUBACK, PUBREC) and packets.buffer[at + 2] >= FAILED:
                    self._refuse(packets.buffer, at, end)
                elif kind in (PUBACK, PUBCOMP):
                    packet_id = short_at(packets.buffer, at, end)
                    due_ns = self._due_of.pop(packet_id, None)
                    if self._keeps_topics:
                        self._topic_of.pop(packet_id, None)
                    if due_ns is not None:
                        done.append((now_ns - due_ns) // 1_000)
                elif kind == PUBREC:
                    answer = acknowledgement(PUBREL, short_at(packets.buffer, at, end))
                    self._answers += answer
                elif kind == DISCONNECT:
                    raise disconnected(packets.buffer[at:end])
            self.confirmed += len(done)
            self._latencies.confirms.add(done)
            if done or self._answers or self.refused > refused:
                self.told_of()
            data = await receive(sock)
            if not data:
                return
            packets.feed(data)

    def _refuse(self, buffer: bytes, at: int, end: int) -> None:
        """Note that a message was not taken: there is nothing to come of it [MQTT-4.3.3-4]."""
        packet_id = short_at(buffer, at, end)
        if self._due_of.pop(packet_id, None) is None:
            return
        self.sent[self._topic_of.pop(packet_id, 0)] -= 1
        self.refused += 1
        why = in_words(buffer[at + 2])
        self.refusals[why] = self.refusals.get(why, 0) + 1


class Pacemaker:
    """Sends for all publishers of a process, when it is time.

    Args:
        publishers: Those.
        clock: Seconds from the beginning of the run.
        seconds: How long is published.
        epoch_ns: The beginning, on the clock that is in the messages.
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
        # Whose socket takes nothing: a task waits for each of them.
        self._blocked: set[int] = set()

    def schedule(self, place: int, at: float) -> None:
        """Have a publisher looked at, at a time."""
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
                # Each once: who is due again at once must not keep the others, and time, from
                # going on, as one does without a rate whose server takes all that it sends.
                for place in self._due():
                    self._push(place, self._clock(), nursery)
                if self._heap and self._heap[0][0] <= self._clock():
                    await trio.lowlevel.checkpoint()
                    continue
                wait = self._heap[0][0] - self._clock() if self._heap else float("inf")
                with trio.move_on_after(max(wait, 0.0)):
                    await self._wake.wait()

    def _due(self) -> list[int]:
        """Take out who is to be looked at by now."""
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
