"""Subscribers: each takes messages at its own pace, and measures their latency."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import trio

from ..transports._connecting import readable, send_all
from ..transports.mqtt.codec._frames import DISCONNECT, PUBACK, PUBCOMP, PUBLISH, PUBREC, PUBREL
from ..transports.mqtt.codec._properties import variable_int_at
from ._client import Client, disconnected
from ._connect import READ_BYTES
from ._header import HEADER, HEADER_BYTES
from ._latency import Latencies
from ._scenario import Scenario
from ._wire import Packets, acknowledgement, cut_off, short_at

if TYPE_CHECKING:
    from ..sockets._layer import Connected

SLOW_READ_BYTES: Final = 4096
"""Bytes that a slow subscriber reads at once: bytes that it has read have left the server."""

SLEEP_SECONDS: Final = 0.002
"""The shortest sleep of a slow subscriber: event loops wake up by the millisecond."""


IDLE_SECONDS: Final = 0.0005
"""A longer wait means that it was idle; a shorter one is a round of the event loop."""


class Subscriber(Client):
    """One subscriber.

    Args:
        tls: See `Client`.

    Attributes:
        received: Messages of publishers of this run, each counted once.
        received_bytes: Their payloads.
        again: Duplicates.
        foreign: Messages from outside this run.
        latencies: From the time a message was due to the time it was in hand.
        fresh: The same since the last report.
        most_unacknowledged: The most messages that it had been sent and had not acknowledged: those
            in hand and, with a prefetch and without TLS, those in its kernel.
        longest_gap: The longest time without a message, in seconds.
        came_at: The time of the last message, in seconds from the beginning of the run.
    """

    def __init__(
        self, scenario: Scenario, number: int, prefix: str, tls: ssl.SSLContext | None = None
    ) -> None:
        super().__init__(scenario, number, "sub", prefix, tls)
        self.slow = number < scenario.slow
        self.received = 0
        self.received_bytes = 0
        self.again = 0
        self.foreign = 0
        self.latencies = Latencies()
        self.fresh: list[int] = []
        self.longest_gap = 0.0
        self.most_unacknowledged = 0
        self._delay = scenario.slow_delay if self.slow else scenario.delay
        # The time when it is done with the messages taken, on the event loop's clock.
        self._done_at = 0.0
        # Messages that it takes before it sleeps for all of them, and acknowledges them.
        self._per_sleep = max(1, round(SLEEP_SECONDS / self._delay)) if self._delay else None
        self._has_more = False
        every = scenario.ack_every
        self._ack_every = (0 if scenario.ack_interval else 1) if every is None else every
        # The time when it acknowledges the messages in hand, on the event loop's clock.
        self._ack_by = float("inf")
        self._has_properties = scenario.version == "5"
        self._stalls = list(scenario.slow_stalls) if self.slow else []
        self.came_at: float | None = None
        # The highest number received, by run and publisher, and topic.
        self._last: dict[tuple[int, int], int] = {}
        self._missing: dict[tuple[int, int], set[int]] = {}
        self._input = Packets()
        self._acks: list[bytes] = []
        self._began_ns = 0

    def begin(self, epoch_ns: int) -> None:
        """Set the beginning of the run, on the clock of the messages."""
        self._began_ns = epoch_ns

    def filters(self) -> list[tuple[str, int]]:
        qos = self.scenario.subscriber_qos
        granted = self.scenario.qos if qos is None else qos
        return [(each, granted) for each in self.scenario.routes().filters_of(self.number)]

    def prefetch(self) -> int | None:
        return self.scenario.prefetch

    def receive_buffer(self) -> int | None:
        return self.scenario.receive_buffer

    def opened(self, rest: bytes) -> None:
        self._input = Packets()
        self._input.feed(rest)
        self._acks.clear()
        self._ack_by = float("inf")

    def clock(self) -> float:
        """Return seconds from the beginning of the run."""
        return (self.now_ns() - self._began_ns) / 1e9

    async def serve(self, sock: Connected) -> None:
        read_bytes = SLOW_READ_BYTES if self._delay else READ_BYTES
        while True:
            count = self.take()
            if count and self._delay:
                if self.scenario.prefetch is not None:
                    self._look_ahead(sock)
                # Count from the end of the messages before: else overlong sleeps would add up.
                begun = max(self._done_at, trio.current_time() - SLEEP_SECONDS)
                self._done_at = begun + count * self._delay
                await trio.sleep_until(self._done_at)
            await self._acknowledge(sock)
            await self._stall()
            if self._has_more:
                continue
            idle_since = trio.current_time()
            if self._ack_by == float("inf"):
                await readable(sock)
            else:
                with trio.CancelScope(deadline=self._ack_by) as scope:
                    await readable(sock)
                if scope.cancelled_caught:
                    continue
            if trio.current_time() - idle_since > IDLE_SECONDS:
                self._done_at = trio.current_time()
            try:
                data = sock.recv(read_bytes)
            except BlockingIOError:
                continue
            if not data:
                return
            self._input.feed(data)

    async def _stall(self) -> None:
        """Read nothing, at the times of the scenario."""
        while self._stalls:
            stall = self._stalls[0]
            now = self.clock()
            if now < stall.after:
                return
            del self._stalls[0]
            await trio.sleep(max(stall.after + stall.seconds - now, 0.0))

    def take(self) -> int:
        """Process complete packets, up to the number for one sleep; return the number of messages.

        Raises:
            TransportError: It was not MQTT, or the server has disconnected it.
        """
        packets = self._input
        fresh = self.fresh
        now_ns = self.now_ns()
        delay_ns = int(self._delay * 1e9)
        count = 0
        buffer = packets.buffer
        per_sleep, has_properties = self._per_sleep, self._has_properties
        publishers, topics = self.scenario.publishers, self.scenario.topics
        self._has_more = False
        for first, body, end in packets:
            if first & 0xF0 != PUBLISH:
                if first == PUBREL:
                    self._acks.append(acknowledgement(PUBCOMP, short_at(buffer, body, end)))
                elif first == DISCONNECT:
                    raise disconnected(buffer[body:end])
                continue
            if end - body < 2:
                raise cut_off()
            at = body + 2 + (buffer[body] << 8 | buffer[body + 1])
            if first & 6:
                kind = PUBACK if first & 2 else PUBREC
                self._acks.append(acknowledgement(kind, short_at(buffer, at, end)))
                at += 2
            if has_properties:
                length, at = variable_int_at(buffer, at, end, "PUBLISH: its property length")
                at += length
            if end - at < HEADER_BYTES:
                if at > end:
                    raise cut_off()
                self.foreign += 1
                continue
            due_ns, run_id, publisher, topic, number = HEADER.unpack_from(buffer, at)
            # Without publishers here, they are on another machine, in a run of theirs.
            if publishers and (run_id != self.run_id or publisher >= publishers or topic >= topics):
                self.foreign += 1
                continue
            key = run_id << 16 | publisher, topic
            if due_ns < self._began_ns or not self._is_new(key, number):
                continue
            self.received += 1
            self.received_bytes += end - at
            fresh.append((now_ns + count * delay_ns - due_ns) // 1_000)
            count += 1
            if count == per_sleep:
                self._has_more = packets.has_begun
                break
        if count:
            self._note_gap(now_ns)
        if self._acks:
            self.most_unacknowledged = max(self.most_unacknowledged, len(self._acks))
            if self._ack_by == float("inf") and self.scenario.ack_interval:
                self._ack_by = trio.current_time() + self.scenario.ack_interval
        return count

    def _note_gap(self, now_ns: int) -> None:
        now = (now_ns - self._began_ns) / 1e9
        if self.came_at is not None and now - self.came_at > self.longest_gap:
            self.longest_gap = now - self.came_at
        self.came_at = now

    def _look_ahead(self, sock: Connected) -> None:
        """Count the messages that were sent to it and that it has not even read.

        It counts those in its kernel, but not with TLS: they are encrypted there.
        """
        waiting = Packets()
        waiting.feed(self._input.buffer[self._input.at :])
        if isinstance(sock, socket.socket):
            with suppress(BlockingIOError):
                waiting.feed(sock.recv(READ_BYTES, socket.MSG_PEEK))
        count = len(self._acks)
        count += sum(first & 0xF0 == PUBLISH and first & 6 != 0 for first, _, _ in waiting)
        self.most_unacknowledged = max(self.most_unacknowledged, count)

    @property
    def held_back(self) -> int:
        """Messages in hand that it has not acknowledged."""
        return len(self._acks)

    def _is_new(self, key: tuple[int, int], number: int) -> bool:
        """Whether this message, of this publisher and topic, has not come before."""
        last = self._last.get(key, -1)
        if number == last + 1:
            self._last[key] = number
            return True
        missing = self._missing.setdefault(key, set())
        if number > last:
            if number - last < 1 << 20:
                missing.update(range(last + 1, number))
            self._last[key] = number
            return True
        if number in missing:
            missing.discard(number)
            return True
        self.again += 1
        return False

    def received_of(self, doubtful: Iterable[tuple[int, int, int, int]]) -> int:
        """Return the number of received messages that their publishers do not know to be sent.

        Args:
            doubtful: Publisher, topic, the number of the first message, and the one after the last.
        """
        count = 0
        for publisher, topic, first, end in doubtful:
            key = self.run_id << 16 | publisher, topic
            missing = self._missing.get(key, ())
            until = min(end, self._last.get(key, -1) + 1)
            count += sum(number not in missing for number in range(first, until))
        return count

    async def _acknowledge(self, sock: Connected) -> None:
        while self._pinged is not None:
            await self._pinged.wait()
        acks, every = self._acks, self._ack_every
        if self._ack_by <= trio.current_time():
            whole = len(acks)
        else:
            whole = len(acks) - len(acks) % every if every else 0
        if whole:
            data = b"".join(acks[:whole])
            del acks[:whole]
            self._ack_by = float("inf")
            if acks:  # The oldest of these came later than the one that set the time.
                self._ack_by = trio.current_time() + (self.scenario.ack_interval or float("inf"))
            self._sending = True
            await send_all(sock, data)
            self._sending = False
