"""What a journal may cost, and how its files are cut."""

from __future__ import annotations

from typing import Final

import attrs

from .._errors import OptionError
from ._readers import Readers

DEFAULT_ROWS_PER_SECOND: Final = 25_000
"""Settlements and publications: 10,000 messages a second that each go to one subscriber, and a
quarter more, or every unsteadiness would be sampled. What a row costs is in docs/ledger.md."""

DEFAULT_ROLL_BYTES: Final = 128 << 20
"""As Flink's DefaultRollingPolicy has it, and what Spark takes for one partition when it reads."""

DEFAULT_ROLL_EVERY: Final = 60.0
"""Seconds; as Flink's DefaultRollingPolicy. It is how old the latest row that can be read is."""

DEFAULT_SNAPSHOT_EVERY: Final = 10.0
"""Seconds; between Prometheus's and Debezium's, which are 15 and 5."""


@attrs.frozen(kw_only=True)
class JournalSettings:
    """Everything that can be said about a journal. Times are in seconds.

    Raises:
        OptionError: If something cannot be what it is said to be.
    """

    rows_per_second: int | None = DEFAULT_ROWS_PER_SECOND
    """Settlements and publications that are written, on average; of more, a sample is. None: all
    that the disk takes."""
    roll_bytes: int = DEFAULT_ROLL_BYTES
    """A file of this size is complete."""
    roll_every: float = DEFAULT_ROLL_EVERY
    """So is one that was begun so long ago, or in another hour."""
    snapshot_every: float | None = DEFAULT_SNAPSHOT_EVERY
    """How often accounts and open loans are written; None: at the end only."""
    readers: Readers = "owner"
    """Who else may read it, beside the user that the relay runs as: `owner`, nobody; `group`, the
    group of its folder."""

    def __attrs_post_init__(self) -> None:
        """Look at the values."""
        for name in ("rows_per_second", "roll_bytes", "roll_every", "snapshot_every"):
            value: float | None = getattr(self, name)
            if value is not None and not value > 0:
                msg = f"a journal's {name} is more than 0, not {value!r}"
                raise OptionError(msg)
