"""Running a scenario: it starts the processes that generate the load, and joins their reports."""

from __future__ import annotations

import json
import math
import os
import secrets
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

import trio

from ._client import clock_of
from ._errors import PerfError
from ._latency import Latencies, Marks, check_histogram
from ._result import PublisherResult, Result, Sample, SubscriberResult
from ._scenario import Scenario
from ._worker import to_json

MESSAGES_A_PROCESS: Final = 60_000
"""Publications and deliveries a second that one process can do, measured with 200 bytes on a slow
core; twice that on a fast one."""

START_SECONDS: Final = 0.3
"""From the moment when all processes are ready to the beginning."""

QUIET_SECONDS: Final = 1.0
"""Seconds without a message after which the run is over, if the expected number is unknown."""

GRACE_SECONDS: Final = 10.0
"""Seconds within which a process must report its result."""


def processes_for(scenario: Scenario, takers: list[list[frozenset[int]]]) -> int:
    """Return the number of processes for a scenario."""
    if scenario.processes is not None:
        return scenario.processes
    cores = len(os.sched_getaffinity(0))
    clients = scenario.publishers + scenario.subscribers
    if scenario.rate is None:
        return min(cores, 2, clients)
    each = [1 + sum(map(len, some)) / len(some) for some in takers]
    rate = scenario.rate.mean_rate() * sum(each)
    return max(1, min(cores, clients, math.ceil(rate / MESSAGES_A_PROCESS)))


class _Process:
    """One of the generator's processes, seen from the process that runs the scenario."""

    def __init__(self, process: trio.Process) -> None:
        self._process = process
        self._rest = b""
        self.last: dict[str, Any] = {}
        self.end: dict[str, Any] | None = None

    async def tell(self, what: object) -> None:
        assert self._process.stdin is not None
        await self._process.stdin.send_all(json.dumps(what).encode() + b"\n")

    async def hear(self) -> dict[str, Any]:
        """Return its next report.

        Raises:
            PerfError: It has ended.
        """
        assert self._process.stdout is not None
        while b"\n" not in self._rest:
            data = await self._process.stdout.receive_some()
            if not data:
                status = await self._process.wait()
                msg = f"a process of the generator ended with status {status}; see above"
                raise PerfError(msg)
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        told: dict[str, Any] = json.loads(line)
        if "failed" in told:
            raise PerfError(told["failed"])
        return told


class Run:
    """A running scenario. Made by `measure`."""

    def __init__(self, scenario: Scenario, processes: list[_Process]) -> None:
        self._scenario = scenario
        self._processes = processes
        self._clock_ns = clock_of(scenario)
        self._epoch_ns = 0
        self._samples: list[Sample] = []
        self._seen: dict[str, float] = {}
        # The reports on a second, or on the end (None), until all processes have sent theirs.
        self._heard: dict[int | None, list[dict[str, Any]]] = {}
        self._doubtful: list[list[tuple[int, int, int, int]]] = []
        # The number of received messages, and the time when it last changed.
        self._received = (0, 0.0)
        self._ended_at: float | None = None
        self._arrived = False
        self._interrupted = False
        self._told = trio.Event()

    def _now(self) -> float:
        return (self._clock_ns() - self._epoch_ns) / 1e9

    async def run(
        self,
        on_sample: Callable[[Sample], object],
        stop: trio.Event | None,
        on_begin: Callable[[], object],
    ) -> None:
        """Begin, wait for the end or for `stop`, and collect the results.

        Raises:
            PerfError: A process ended early, or sends no result.
        """
        for process in self._processes:
            await process.hear()  # It is ready.
        self._epoch_ns = self._clock_ns() + int(START_SECONDS * 1e9)
        for process in self._processes:
            await process.tell({"begin": self._epoch_ns})
        on_begin()
        async with trio.open_nursery() as nursery:
            for process in self._processes:
                nursery.start_soon(self._listen, process, on_sample)
            await self._until_over(stop)
            for process in self._processes:
                await process.tell("stop")
            nursery.cancel_scope.deadline = trio.current_time() + GRACE_SECONDS
        if any(process.end is None for process in self._processes):
            raise PerfError("a process of the generator has not sent its result")

    async def _listen(self, process: _Process, on_sample: Callable[[Sample], object]) -> None:
        while process.end is None:
            told = await process.hear()
            if "end" in told:
                process.end = told["end"]
                return
            if "doubtful" in told and "at" not in told:
                await self._in_doubt(told["doubtful"])
                continue
            process.last = told.get("progress", told)
            received = sum(each.last.get("received", 0) for each in self._processes)
            if received != self._received[0]:
                self._received = received, self._now()
            self._told.set()
            self._told = trio.Event()
            if "progress" not in told:
                self._sampled(told, on_sample)

    async def _in_doubt(self, told: list[tuple[int, int, int, int]]) -> None:
        """Once all processes have listed their partly sent messages, send the list to all."""
        self._doubtful.append(told)
        if len(self._doubtful) == len(self._processes):
            every = [each for some in self._doubtful for each in some]
            for process in self._processes:
                await process.tell({"doubtful": every})

    def _sampled(self, told: dict[str, Any], on_sample: Callable[[Sample], object]) -> None:
        """Join the processes' reports on one second, or on the rest after it."""
        second: int | None = told.get("second")
        of_it = self._heard.setdefault(second, [])
        of_it.append(told)
        if len(of_it) < len(self._processes):
            return
        del self._heard[second]
        latencies = Latencies()
        some = list(of_it)
        if second is None:
            # Not all processes may have reported on the last second before they were stopped.
            some += [each for few in self._heard.values() for each in few]
        for each in some:
            if each["latencies"] is not None:
                latencies.merge(Latencies.told(each["latencies"]))
        at = max(each["at"] for each in of_it)
        total: dict[str, float] = {
            name: sum(each[name] for each in of_it)
            for name in ("published", "confirmed", "received", "received_bytes", "owed", "stalled")
        }
        seconds = at - self._seen.get("at", 0.0)
        nothing = all(total[name] == self._seen.get(name, 0) for name in ("published", "received"))
        if seconds <= 0 or (second is None and nothing):
            return
        due = self._scenario.due(at)
        total["due"] = math.nan if due is None else due
        rates = {
            name: (value - self._seen.get(name, 0.0)) / seconds for name, value in total.items()
        }
        self._seen = {"at": at, **total}
        sample = Sample(
            at=at,
            seconds=seconds,
            published=rates["published"],
            expected_published=None if due is None else rates["due"],
            confirmed=rates["confirmed"],
            received=rates["received"],
            expected_received=rates["owed"],
            received_bytes=rates["received_bytes"],
            stalled=rates["stalled"],
            connected=sum(each["connected"] for each in of_it),
            busy=max(each["busy"] for each in of_it),
            latencies=Marks.of(latencies),
        )
        self._samples.append(sample)
        on_sample(sample)

    async def _until_over(self, stop: trio.Event | None) -> None:
        async with trio.open_nursery() as nursery:
            if stop is not None:
                nursery.start_soon(self._interrupt, stop, nursery.cancel_scope)
            await self._until_done()
            nursery.cancel_scope.cancel()
        self._ended_at = self._now()

    async def _interrupt(self, stop: trio.Event, scope: trio.CancelScope) -> None:
        await stop.wait()
        self._interrupted = True
        scope.cancel()

    async def _until_done(self) -> None:
        """Wait until everything is sent and received, or until the time is over."""
        scenario = self._scenario
        await trio.sleep(max(scenario.seconds - self._now(), 0.0))
        with trio.move_on_after(scenario.drain):
            while not self._has_arrived():
                with trio.move_on_after(QUIET_SECONDS / 2):
                    await self._told.wait()
            self._arrived = True

    def _has_arrived(self) -> bool:
        last = [process.last for process in self._processes]
        if any(each.get("at", 0.0) < self._scenario.seconds for each in last):
            return False
        received = sum(each["received"] for each in last)
        if sum(each["pending"] for each in last) or received < sum(each["owed"] for each in last):
            return False
        if self._scenario.publishers and not any(each["doubtful"] for each in last):
            return True
        # More may come: messages from outside, or partly sent ones.
        return self._now() - max(self._received[1], self._scenario.seconds) >= QUIET_SECONDS

    def result(self, takers: list[list[frozenset[int]]]) -> Result:
        """Return the result."""
        scenario = self._scenario
        ends: list[dict[str, Any]] = [
            process.end for process in self._processes if process.end is not None
        ]
        publishers: list[dict[str, Any]] = [each for end in ends for each in end["publishers"]]
        subscribers: list[dict[str, Any]] = [each for end in ends for each in end["subscribers"]]
        expected: list[int] = [0] * scenario.subscribers
        for each in publishers:
            sent_to: list[int] = each["sent"]
            number: int = each["number"]
            for sent, some in zip(sent_to, takers[number], strict=True):
                for taker in some:
                    expected[taker] += sent
        late, stalls, confirms = Latencies(), Latencies(), Latencies()
        for end in ends:
            late.merge(Latencies.told(end["late"]))
            stalls.merge(Latencies.told(end["stalls"]))
            confirms.merge(Latencies.told(end["confirms"]))
        assert self._ended_at is not None
        seconds = self._ended_at
        if self._interrupted:
            # The processes went on until they got the message.
            seconds = max([0.0, *(end["at"] for end in ends)])
        if self._arrived:
            # The exact time is known only from the last report.
            came_at = max((each["last"] or 0.0 for each in subscribers), default=0.0)
            seconds = min(seconds, max(scenario.seconds, came_at))
        return Result(
            scenario=scenario,
            seconds=seconds,
            interrupted=self._interrupted,
            processes=len(self._processes),
            samples=tuple(self._samples),
            publishers=tuple(
                PublisherResult(
                    number=each["number"],
                    sent=sum(each["sent"]),
                    uncertain=each["uncertain"],
                    refused=each["refused"],
                    refusals=each["refusals"],
                    window=each["window"],
                    confirmed=each["confirmed"],
                    unconfirmed=each["unconfirmed"],
                    stalled=each["stalled"],
                    sent_at=each["sent_at"],
                    losses=each["losses"],
                    lost=tuple(each["lost"]),
                )
                for each in sorted(publishers, key=lambda each: each["number"])
            ),
            subscribers=tuple(
                SubscriberResult(
                    number=each["number"],
                    slow=each["number"] < scenario.slow,
                    expected=expected[int(each["number"])],
                    received=each["received"],
                    uncertain=each["uncertain"],
                    again=each["again"],
                    foreign=each["foreign"],
                    most_unacknowledged=each["most_unacknowledged"],
                    held_back=each["held_back"],
                    longest_gap=self._longest_gap(each, expected[int(each["number"])], seconds),
                    latencies=Latencies.told(each["latencies"]),
                    losses=each["losses"],
                    lost=tuple(each["lost"]),
                )
                for each in sorted(subscribers, key=lambda each: each["number"])
            ),
            late=late,
            stalls=stalls,
            confirms=confirms,
        )

    def _longest_gap(self, told: dict[str, Any], expected: int, seconds: float) -> float:
        """Return a subscriber's longest time without a message, to the end."""
        # A subscriber that got everything waits for nothing after the end of publishing.
        missing = expected > told["received"] - told["uncertain"]
        end = seconds if missing else min(seconds, self._scenario.seconds)
        longest: float = max(told["longest_gap"], end - (told["last"] or 0.0))
        return longest


@asynccontextmanager
async def _started(tasks: list[dict[str, Any]]) -> AsyncGenerator[list[_Process]]:
    command = [sys.executable, "-c", "from clearfunds.perf._worker import main; exit(main())"]
    started: list[trio.Process] = []
    try:
        for _ in tasks:
            # Its own process group: Ctrl-C is for this process, which ends the others.
            process = await trio.lowlevel.open_process(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
            )
            started.append(process)
        told = [_Process(process) for process in started]
        for each, task in zip(told, tasks, strict=True):
            await each.tell(task)
        yield told
    finally:
        for process in started:
            process.kill()
        with trio.CancelScope(shield=True):
            for process in started:
                await process.wait()
                for pipe in (process.stdin, process.stdout):
                    if pipe is not None:
                        await pipe.aclose()


async def measure(
    scenario: Scenario,
    on_sample: Callable[[Sample], object] = lambda sample: None,
    stop: trio.Event | None = None,
    on_begin: Callable[[], object] = lambda: None,
) -> Result:
    """Run a scenario, and return the result.

    Args:
        scenario: The load and the server.
        on_sample: Called each second.
        stop: Once it is set, the run is over; the result covers the time until then.
        on_begin: Called when all clients are connected.

    Cancellation: the generator's processes have ended afterwards.

    Raises:
        PerfError: The server is not reachable, or the generator cannot make the load.
    """
    check_histogram()
    takers = scenario.routes().takers(scenario.publishers, scenario.subscribers)
    count = processes_for(scenario, takers)
    prefix = f"perf-{secrets.token_hex(3)}"
    tasks = [
        {
            "scenario": to_json(scenario),
            "prefix": prefix,
            "publishers": list(range(place, scenario.publishers, count)),
            "subscribers": list(range(place, scenario.subscribers, count)),
            "takers": [
                [len(some) for some in takers[n]] for n in range(place, scenario.publishers, count)
            ],
        }
        for place in range(count)
    ]
    async with _started(tasks) as processes:
        run = Run(scenario, processes)
        await run.run(on_sample, stop, on_begin)
        return run.result(takers)
