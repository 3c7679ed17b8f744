"""The figures of the running measurement, and the expected ones, for Prometheus."""

from __future__ import annotations

import math
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, start_http_server

from ..sockets import trouble_with_listening
from ._errors import PerfError
from ._latency import PERCENTILES
from ._result import Sample

PREFIX: Final = "clearfunds_perf"


class Exposition:
    """The figures of the running measurement; rates are of its last second.

    Attributes:
        registry: The metrics' registry.
        port: The port of the HTTP server.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.port = 0
        labels = ("scenario",)

        def gauge(name: str, about: str, *more: str) -> Gauge:
            return Gauge(f"{PREFIX}_{name}", about, (*labels, *more), registry=self.registry)

        self._gauges = (
            gauge("published_rate", "Messages published a second."),
            gauge("expected_published_rate", "Messages that were due a second."),
            gauge("received_rate", "Messages that subscribers got a second."),
            gauge(
                "expected_received_rate",
                "Messages a second that subscribers were to get of those that were published.",
            ),
            gauge("confirmed_rate", "Messages acknowledged to publishers a second."),
            gauge("publishers_stalled", "Publishers that could not send, on average."),
            gauge("generator_busy_ratio", "CPU of the generator's busiest process."),
        )
        self._latency = gauge(
            "latency_seconds", "From when a message was due to when it came.", "quantile"
        )
        self._samples = Counter(
            f"{PREFIX}_samples", "Seconds that were measured.", labels, registry=self.registry
        )

    def show(self, scenario: str, sample: Sample) -> None:
        """Show one second of a run."""
        values = (
            sample.published,
            sample.expected_published,
            sample.received,
            sample.expected_received,
            sample.confirmed,
            sample.stalled,
            sample.busy,
        )
        for gauge, value in zip(self._gauges, values, strict=True):
            if value is not None:
                gauge.labels(scenario).set(value)
        for percent in PERCENTILES:
            value = sample.latencies.percentile(percent)
            # The old value would look good although nothing comes at all.
            self._latency.labels(scenario, f"{percent / 100:g}").set(
                math.nan if value is None else value
            )
        self._samples.labels(scenario).inc()

    def over(self, scenario: str) -> None:
        """Remove a run's figures, except for its length: it has no last second any more."""
        for gauge in self._gauges:
            with suppress(KeyError):
                gauge.remove(scenario)
        for percent in PERCENTILES:
            with suppress(KeyError):
                self._latency.remove(scenario, f"{percent / 100:g}")


@contextmanager
def exposed(host: str, port: int) -> Generator[Exposition]:
    """Serve the figures over HTTP, from a thread, for the length of a block.

    Raises:
        PerfError: The address is not available.
    """
    shown = Exposition()
    try:
        server, thread = start_http_server(port, host, shown.registry)
    except OSError as error:
        why = trouble_with_listening(error)
        msg = f"figures for Prometheus cannot be served at {host}:{port}: {why}"
        raise PerfError(msg) from error
    shown.port = server.server_port
    try:
        yield shown
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
