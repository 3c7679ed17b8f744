"""The Prometheus metrics of a journal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from ._tables import TABLES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client import Metric

    from ._journal import Journal


class JournalCollector(Collector):
    """Exports a journal's figures, as `clearfunds_journal_written_rows_total`; 0 without one."""

    def __init__(self, journal: Journal | None) -> None:
        self._journal = journal

    def describe(self) -> Iterator[Metric]:
        """Yield the metrics without samples, for the registry."""
        return self.collect()

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics, from one reading of the figures."""
        figures = None if self._journal is None else self._journal.figures()
        rows = CounterMetricFamily(
            "clearfunds_journal_written_rows",
            "Rows in complete files of the journal.",
            labels=["table"],
        )
        nbytes = CounterMetricFamily(
            "clearfunds_journal_written_bytes",
            "Bytes of complete files of the journal.",
            labels=["table"],
        )
        sampled = CounterMetricFamily(
            "clearfunds_journal_sampled_out_rows",
            "Rows that sampling left out, since more came than may be written, or than the disk "
            "took. The weights of the kept rows count for them.",
            labels=["table"],
        )
        lost = CounterMetricFamily(
            "clearfunds_journal_lost_rows",
            "Rows in files of the journal that could not be finished.",
            labels=["table"],
        )
        waiting = GaugeMetricFamily(
            "clearfunds_journal_waiting_rows",
            "Rows of the journal that are in no complete file yet.",
            labels=["table"],
        )
        one_in = GaugeMetricFamily(
            "clearfunds_journal_one_in_rows",
            "The journal keeps one settlement or publication in this many; 1: it keeps all.",
        )
        errors = CounterMetricFamily(
            "clearfunds_journal_errors", "How often writing the journal failed."
        )
        if figures is not None:
            for table in TABLES:
                written = figures.written[table]
                rows.add_metric([table], written.rows)
                nbytes.add_metric([table], written.bytes)
                lost.add_metric([table], written.lost)
                waiting.add_metric([table], figures.waiting[table])
                sampled.add_metric([table], figures.sampled_out.get(table, 0))
        one_in.add_metric([], 1 if figures is None else figures.one_in)
        errors.add_metric([], 0 if figures is None else figures.errors)
        yield from (rows, nbytes, sampled, lost, waiting, one_in, errors)
