"""`clearfunds relay --journal DIR`: options of the journal."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Final, Literal

import attrs
from cyclopts import Group, Parameter
from prometheus_client.registry import Collector

from clearfunds.accounts import Ledger
from clearfunds.pipeline.journal import JournalCollector, JournalSettings, open_journal
from clearfunds.relay import Companion
from clearfunds.transports import label_of

from ._bounds import Bounds, least_age, least_size
from ._types import OptionalCount, OptionalSeconds, Seconds, Size

_DEFAULTS: Final = JournalSettings()


@Parameter(name="*", group=Group("Journal", sort_key=6.5))
@attrs.frozen
class Journal:
    """The journal's directory, and limits on its cost."""

    journal: Annotated[
        Path | None,
        Parameter(
            help="Journal directory; created if missing. The relay writes settled loans, "
            "publications, stalls, changed limits and snapshots of the accounts there, as "
            "Parquet. Needs the extra `pipeline`. Without this option there is no journal."
        ),
    ] = None
    journal_rows_per_second: Annotated[
        OptionalCount,
        Parameter(
            help="Settlements and publications written per second, on average; above that, a "
            "weighted sample. none: all that the disk takes."
        ),
    ] = _DEFAULTS.rows_per_second
    journal_roll_size: Annotated[
        Size,
        Parameter(
            help="Roll size of journal files, in bytes: the file is then complete, and the next "
            "one begins."
        ),
    ] = _DEFAULTS.roll_bytes
    journal_roll_every: Annotated[
        Seconds,
        Parameter(
            help="Roll interval of journal files, in seconds; a file cannot be read before it is "
            "complete."
        ),
    ] = _DEFAULTS.roll_every
    journal_snapshot_every: Annotated[
        OptionalSeconds,
        Parameter(
            help="Snapshot interval, in seconds, for all accounts and outstanding loans; none: "
            "only at the end."
        ),
    ] = _DEFAULTS.snapshot_every
    journal_compact_after: Annotated[
        OptionalSeconds,
        Parameter(
            help="Age of an hour's journal files, in seconds, at which they are merged into few; "
            "none: never. Longer than the pauses of a query that reads the journal as a stream."
        ),
    ] = _DEFAULTS.compact_after
    journal_keep: Annotated[
        Bounds,
        Parameter(
            help="Age (7d) or size (10GB) of the journal, above which the oldest files are "
            "deleted; repeatable, for both. Without it, everything is kept."
        ),
    ] = ()
    journal_readers: Annotated[
        Literal["owner", "group"],
        Parameter(
            help="Read access to the journal. owner: only the relay's own user; group: also the "
            "group of its directory (chgrp), as for Spark that runs as another user."
        ),
    ] = _DEFAULTS.readers

    def companion(self) -> Companion | None:
        """Return the companion that keeps the journal beside a relay; None without a journal.

        Raises:
            OptionError: An option has an invalid value.
        """
        folder = self.journal
        if folder is None:
            return None
        settings = JournalSettings(
            rows_per_second=self.journal_rows_per_second,
            roll_bytes=self.journal_roll_size,
            roll_every=self.journal_roll_every,
            snapshot_every=self.journal_snapshot_every,
            compact_after=self.journal_compact_after,
            keep_seconds=least_age(self.journal_keep),
            keep_bytes=least_size(self.journal_keep),
            readers=self.journal_readers,
        )

        @asynccontextmanager
        async def write_journal(ledger: Ledger) -> AsyncGenerator[Collector]:
            async with open_journal(ledger, folder, settings, label=label_of) as journal:
                yield JournalCollector(journal)

        return write_journal
