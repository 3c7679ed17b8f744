"""Settings of a journal: limits on its cost, and when its files are complete."""

from __future__ import annotations

from typing import Final

import attrs

from .._errors import OptionError
from ._readers import Readers

DEFAULT_ROWS_PER_SECOND: Final = 25_000
"""Settlements and publications: 10,000 messages a second that each go to one subscriber, and a
quarter more, so that small bursts are not sampled. docs/ledger.md has the cost of a row."""

DEFAULT_ROLL_BYTES: Final = 128 << 20
"""As in Flink's DefaultRollingPolicy; also the size of one partition when Spark reads."""

DEFAULT_ROLL_EVERY: Final = 60.0
"""Seconds, as in Flink's DefaultRollingPolicy. A reader is behind by this much at most."""

DEFAULT_SNAPSHOT_EVERY: Final = 10.0
"""Seconds; between Prometheus's and Debezium's, which are 15 and 5."""

DEFAULT_COMPACT_AFTER: Final = 26 * 3600.0
"""Seconds: a query that reads the journal as a stream once a night reads each file before it is
merged."""


@attrs.frozen(kw_only=True)
class JournalSettings:
    """The settings of a journal. Times are in seconds.

    Raises:
        OptionError: If a value is invalid.
    """

    rows_per_second: int | None = DEFAULT_ROWS_PER_SECOND
    """Settlements and publications written, on average; if more come, a sample is written. None:
    as many as the disk takes."""
    roll_bytes: int = DEFAULT_ROLL_BYTES
    """A file of this size is complete."""
    roll_every: float = DEFAULT_ROLL_EVERY
    """A file of this age is complete, and so is one begun in another hour."""
    snapshot_every: float | None = DEFAULT_SNAPSHOT_EVERY
    """Time between snapshots of accounts and open loans; None: only one, at the end."""
    compact_after: float | None = DEFAULT_COMPACT_AFTER
    """An hour that ended so long ago has its small files merged; None: they stay as they are."""
    keep_seconds: float | None = None
    """Hours that ended so long ago are deleted; None: none."""
    keep_bytes: int | None = None
    """The oldest files are deleted while the complete ones have more bytes; None: none."""
    readers: Readers = "owner"
    """`owner`: only the user that the relay runs as may read the journal; `group`: the group of its
    folder, too."""

    def __attrs_post_init__(self) -> None:
        """Check the values."""
        for name in ("rows_per_second", "roll_bytes", "roll_every", "snapshot_every",
                     "compact_after", "keep_seconds", "keep_bytes"):  # fmt: skip
            value: float | None = getattr(self, name)
            if value is not None and not value > 0:
                msg = f"a journal's {name} is more than 0, not {value!r}"
                raise OptionError(msg)
