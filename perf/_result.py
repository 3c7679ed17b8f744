"""The result of a measurement."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import attrs

from ..transports.mqtt import without_password
from ._latency import Latencies, Marks
from ._scenario import TLS_FILES, Scenario

BUSY: Final = 0.9
"""Share of a core: a process of the generator that is busier sets the pace itself."""

BUSY_SHARE: Final = 0.2
"""Share of the seconds that may be busier, before the result is doubted."""

LATE_SECONDS: Final = 0.010
"""Allowed delay, by the generator's own fault, of 99 of 100 messages: ten times that of an event
loop on an idle machine."""


@attrs.frozen(kw_only=True)
class Sample:
    """One second of a run, or the rest after the last whole one; rates are per second."""

    at: float
    """Its end, in seconds from the beginning of the run."""
    seconds: float
    """Its length: the last one may be short."""
    published: float
    """Messages that publishers have sent."""
    expected_published: float | None
    """Messages that were due; None if publishers send as fast as they can."""
    confirmed: float
    """Messages that were acknowledged to their publishers."""
    received: float
    """Messages that subscribers got."""
    expected_received: float
    """Messages that subscribers should get of the published ones."""
    received_bytes: float
    """Their payloads."""
    stalled: float
    """Publishers that had a message to send and could not, on average."""
    connected: int
    """Clients with a connection."""
    busy: float
    """CPU of the busiest of the generator's processes, in cores."""
    latencies: Marks
    """Of the received messages."""

    def fields(self) -> dict[str, float | int | None]:
        """Return it as a line of a table; times in seconds."""
        return {
            "time_s": round(self.at, 3),
            "seconds": round(self.seconds, 3),
            "published_per_s": round(self.published, 1),
            "expected_published_per_s": None
            if self.expected_published is None
            else round(self.expected_published, 1),
            "confirmed_per_s": round(self.confirmed, 1),
            "received_per_s": round(self.received, 1),
            "expected_received_per_s": round(self.expected_received, 1),
            "received_bytes_per_s": round(self.received_bytes, 1),
            "publishers_stalled": round(self.stalled, 3),
            "clients_connected": self.connected,
            "generator_busy": round(self.busy, 3),
            **{f"latency_{name}_s": value for name, value in self.latencies.values.items()},
        }


@attrs.frozen(kw_only=True)
class SubscriberResult:
    """The result of one subscriber."""

    number: int
    slow: bool
    """Whether it was a slow consumer."""
    expected: int
    """Messages that it should get."""
    received: int
    """Messages that it got, each counted once."""
    uncertain: int
    """The part of these that their publishers do not know to be sent."""
    again: int
    """Duplicates."""
    foreign: int
    """Messages from outside, such as another load on the same topics."""
    most_unacknowledged: int
    """The most messages that it had been sent and had not acknowledged."""
    held_back: int
    """Messages that it had in hand and had not acknowledged at the end."""
    longest_gap: float
    """The longest time without a message, in seconds, including the time before the end. If it got
    everything, the end is that of publishing."""
    latencies: Latencies
    losses: int
    """Connections that it lost."""
    lost: tuple[dict[str, Any], ...]
    """Time and reason of the first of them."""

    @property
    def missing(self) -> int:
        """Messages that it never got."""
        return max(0, self.expected - (self.received - self.uncertain))


@attrs.frozen(kw_only=True)
class PublisherResult:
    """The result of one publisher."""

    number: int
    sent: int
    uncertain: int
    """Messages that were being sent when a connection, or the run, ended."""
    refused: int
    """Messages that the server refused (MQTT 5); not among `sent`."""
    refusals: dict[str, int]
    """Refused messages by reason."""
    window: int
    """The in-flight window: the limit of unacknowledged messages; 0: none is acknowledged."""
    confirmed: int
    unconfirmed: int
    """Messages that were sent and not acknowledged."""
    stalled: float
    """Seconds in which it had a message to send and could not, during publishing."""
    sent_at: float
    """The time when it last sent a message, in seconds from the beginning of the run."""
    losses: int
    lost: tuple[dict[str, Any], ...]


@attrs.frozen(kw_only=True)
class Result:
    """The result of a measurement."""

    scenario: Scenario
    seconds: float
    """Seconds until publishers had finished and the last message was received, or until the run
    stopped waiting for more."""
    interrupted: bool
    """Whether it was stopped before that."""
    processes: int
    """Processes that generated the load."""
    samples: tuple[Sample, ...]
    publishers: tuple[PublisherResult, ...]
    subscribers: tuple[SubscriberResult, ...]
    late: Latencies
    """Delays of messages by the generator's own fault."""
    stalls: Latencies
    """Durations of the stretches in which a publisher could not send."""
    confirms: Latencies
    """From the time a message was due to its acknowledgement."""

    def latencies(self, slow: bool | None = None) -> Latencies:
        """Return the latencies of all subscribers, of the slow ones, or of the others."""
        found = Latencies()
        for each in self.subscribers:
            if slow is None or each.slow is slow:
                found.merge(each.latencies)
        return found

    @property
    def publishing(self) -> float:
        """Seconds planned for publishing."""
        return max(min(self.seconds, self.scenario.seconds), 1e-3)

    @property
    def span(self) -> float:
        """Seconds of actual publishing: longer if due messages were sent later."""
        return max([self.publishing, *(each.sent_at for each in self.publishers)])

    @property
    def due(self) -> int | None:
        """Messages that were due; None if publishers send as fast as they can."""
        return self.scenario.due(self.publishing)

    @property
    def unsent(self) -> int:
        """Messages that were due, but whose sending never began: no server can have lost them."""
        if self.due is None:
            return 0
        begun = sum(each.sent + each.uncertain + each.refused for each in self.publishers)
        return max(0, self.due - begun)

    @property
    def published(self) -> int:
        """Published messages."""
        return sum(each.sent for each in self.publishers)

    @property
    def published_rate(self) -> float:
        """Published messages a second."""
        return self.published / self.span

    @property
    def received(self) -> int:
        """Messages that subscribers got."""
        return sum(each.received for each in self.subscribers)

    @property
    def received_rate(self) -> float:
        """Received messages a second."""
        return self.received / max(self.seconds, 1e-3)

    @property
    def expected(self) -> int:
        """Messages that subscribers should get."""
        return sum(each.expected for each in self.subscribers)

    @property
    def missing(self) -> int:
        """Messages that never came."""
        return sum(each.missing for each in self.subscribers)

    @property
    def stalled(self) -> float:
        """Seconds in which publishers had a message to send and could not, in all."""
        return sum(each.stalled for each in self.publishers)

    def worst_first(self) -> list[SubscriberResult]:
        """Return the subscribers: slow ones first, then by missing messages, then by latency."""
        return sorted(
            self.subscribers,
            key=lambda s: (not s.slow, -s.missing, -(s.latencies.percentile(99) or 0.0), s.number),
        )

    def doubts(self) -> list[str]:
        """Return the doubts about the figures: the generator may have set the pace, for example."""
        found = list(self._of_flow())
        if self.interrupted:
            found.append(
                f"it was interrupted after {self.seconds:.1f} s: messages on their way count as "
                "missing"
            )
        if self.unsent:
            found.append(
                f"{self.unsent:,} messages that were due were never published: they count neither "
                "in latencies nor as missing"
            )
        foreign = sum(each.foreign for each in self.subscribers)
        if foreign:
            found.append(
                f"subscribers got {foreign:,} messages that are not of this run: somebody else "
                "publishes to the same topics (--topic)"
            )
        busy = [sample for sample in self.samples if sample.busy > BUSY]
        if len(busy) > BUSY_SHARE * len(self.samples):
            found.append(
                f"a process of the generator was busy for more than {BUSY:.0%} of a core in "
                f"{len(busy)} of {len(self.samples)} seconds: it may have been slower than the "
                f"server; there were {self.processes} processes, more (--processes) may help if "
                "there are cores for them"
            )
        late = self.late.percentile(99.0)
        if late is not None and late > LATE_SECONDS:
            found.append(
                f"one in a hundred messages was sent more than {late * 1e3:.0f} ms late by the "
                "generator itself, which is in the latencies: fewer publishers a process "
                "(--processes), or a less busy machine"
            )
        uncertain = sum(each.uncertain for each in self.publishers)
        if uncertain:
            found.append(
                f"{uncertain} messages were half sent when a connection or the run ended: the "
                "server may have them or not; they count neither as published nor as missing"
            )
        return found

    def _of_flow(self) -> Iterator[str]:
        """Yield the doubts about the in-flight window and the prefetch."""
        scenario = self.scenario
        refused: dict[str, int] = {}
        for each in self.publishers:
            for why, count in each.refusals.items():
                refused[why] = refused.get(why, 0) + count
        for why, count in refused.items():
            yield f"{count:,} messages were refused by the server: {why}"
        window = min((each.window for each in self.publishers if each.window), default=None)
        if window is not None and window < scenario.in_flight and self.stalled:
            yield (
                f"the server lets a publisher have {window} messages unacknowledged (its Receive "
                f"Maximum), fewer than the {scenario.in_flight} of --in-flight"
            )
        prefetch, every = scenario.prefetch, scenario.ack_every
        held = max((each.held_back for each in self.subscribers), default=0)
        if self.missing and every is not None and 0 < held < every and not scenario.ack_interval:
            yield (
                f"a subscriber holds {held} messages that it will acknowledge when it has "
                f"{every} (--ack-every): if its server sends no more than {held} until then, it "
                "gets nothing any more"
            )
        if prefetch is None:
            return
        if every is not None and every > prefetch and not scenario.ack_interval:
            yield (
                f"subscribers acknowledge {every} messages at a time and let the server send "
                f"{prefetch}: there is never anything to acknowledge (--ack-every, --prefetch)"
            )
        most = max((each.most_unacknowledged for each in self.subscribers), default=0)
        if most > prefetch:
            yield (
                f"the server sent a subscriber {most} messages that were not acknowledged, and is "
                f"to send no more than its prefetch, {prefetch} [MQTT-3.3.4-9]"
            )

    def as_json(self) -> dict[str, Any]:
        """Return everything for JSON; histograms in HdrHistogram's encoding, in us."""
        left_out = ("rate", "size", *TLS_FILES)
        scenario = attrs.asdict(
            self.scenario, filter=lambda attribute, _: attribute.name not in left_out
        )
        scenario["uri"] = without_password(self.scenario.uri)
        scenario["tls"] = self.scenario.tls
        rate, size = self.scenario.rate, self.scenario.size
        scenario["rate"] = None if rate is None else attrs.asdict(rate)
        scenario["size"] = attrs.asdict(size)
        every = self.latencies()
        return {
            "scenario": scenario,
            "seconds": self.seconds,
            "interrupted": self.interrupted,
            "processes": self.processes,
            "due": self.due,
            "published": self.published,
            "never_published": self.unsent,
            "publishing_seconds": self.span,
            "received": self.received,
            "expected": self.expected,
            "missing": self.missing,
            "publishers_stalled_seconds": self.stalled,
            "latency_seconds": every.summary(),
            "stall_seconds": self.stalls.summary(),
            "confirm_seconds": self.confirms.summary(),
            "late_seconds": self.late.summary(),
            "doubts": self.doubts(),
            "samples": [sample.fields() for sample in self.samples],
            "publishers": [attrs.asdict(each) for each in self.publishers],
            "subscribers": [
                {
                    **attrs.asdict(each, filter=lambda a, _: a.name != "latencies"),
                    "missing": each.missing,
                    "latency_seconds": each.latencies.summary(),
                    "latency_hdr": each.latencies.encode(),
                }
                for each in self.subscribers
            ],
        }
