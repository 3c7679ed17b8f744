"""`clearfunds relay --journal DIR`: what is written down of what happens."""

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
from clearfunds.transports import Beside, label_of

from ._types import OptionalCount, OptionalSeconds, Seconds, Size

_DEFAULTS: Final = JournalSettings()


@Parameter(name="*", group=Group("Journal", sort_key=6.5))
@attrs.frozen
class Journal:
    """Where it is written down who owed what to whom and for how long, and what that may cost."""

    journal: Annotated[
        Path | None,
        Parameter(
            help="Directory in which each settled loan, what is published, stalls, changed limits "
            "and snapshots of the books are written as Parquet; made if it is not there. It needs "
            "the extra `pipeline`. Without one there is no journal."
        ),
    ] = None
    journal_rows_per_second: Annotated[
        OptionalCount,
        Parameter(
            help="Settlements and publications that are written, on average; of more, a sample "
            "with weights is. none: all that the disk takes."
        ),
    ] = _DEFAULTS.rows_per_second
    journal_roll_size: Annotated[
        Size, Parameter(help="Bytes of a file after which the next is begun.")
    ] = _DEFAULTS.roll_bytes
    journal_roll_every: Annotated[
        Seconds,
        Parameter(help="Seconds after which the next is begun; until then nobody can read it."),
    ] = _DEFAULTS.roll_every
    journal_snapshot_every: Annotated[
        OptionalSeconds,
        Parameter(
            help="Seconds between snapshots of all accounts and open loans; none: at the end only."
        ),
    ] = _DEFAULTS.snapshot_every
    journal_readers: Annotated[
        Literal["owner", "group"],
        Parameter(
            help="Who can read the journal: the relay's own user, or the group of its directory, "
            "too (chgrp), as for Spark that runs as another user."
        ),
    ] = _DEFAULTS.readers

    def beside(self) -> Beside | None:
        """Return what keeps it beside a relay; None if there is to be none.

        Raises:
            OptionError: If an option cannot be what it is.
        """
        folder = self.journal
        if folder is None:
            return None
        settings = JournalSettings(
            rows_per_second=self.journal_rows_per_second,
            roll_bytes=self.journal_roll_size,
            roll_every=self.journal_roll_every,
            snapshot_every=self.journal_snapshot_every,
            readers=self.journal_readers,
        )

        @asynccontextmanager
        async def keep(ledger: Ledger) -> AsyncGenerator[Collector]:
            async with open_journal(ledger, folder, settings, label=label_of) as journal:
                yield JournalCollector(journal)

        return keep
