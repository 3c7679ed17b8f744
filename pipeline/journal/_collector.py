"""A journal's figures for Prometheus."""

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
    """Serves a journal's figures, as `clearfunds_journal_written_rows_total`; of 0 without one."""

    def __init__(self, journal: Journal | None) -> None:
        self._journal = journal

    def describe(self) -> Iterator[Metric]:
        """Name the metrics; for the registry."""
        return self.collect()

    def collect(self) -> Iterator[Metric]:
        """Read the figures, once for all metrics, and yield them."""
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
            "Rows that were not kept, since there were more than may be written, or than the disk "
            "took; those that were kept stand for them.",
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
            "Of how many settlements and publications the journal keeps one now; 1: it keeps all.",
        )
        errors = CounterMetricFamily(
            "clearfunds_journal_errors", "Times that the journal could not be written."
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
