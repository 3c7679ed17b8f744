"""The journal: the history of the relay's books, written as Parquet."""

from .._errors import PipelineError as PipelineError
from ._collector import JournalCollector as JournalCollector
from ._commands import compact_journal as compact_journal
from ._commands import verify_journal as verify_journal
from ._compact import Compacted as Compacted
from ._damage import Damage as Damage
from ._journal import Journal as Journal
from ._journal import JournalFigures as JournalFigures
from ._journal import open_journal as open_journal
from ._selection import OnDamage as OnDamage
from ._settings import DEFAULT_COMPACT_AFTER as DEFAULT_COMPACT_AFTER
from ._settings import DEFAULT_ROLL_BYTES as DEFAULT_ROLL_BYTES
from ._settings import DEFAULT_ROLL_EVERY as DEFAULT_ROLL_EVERY
from ._settings import DEFAULT_ROWS_PER_SECOND as DEFAULT_ROWS_PER_SECOND
from ._settings import DEFAULT_SNAPSHOT_EVERY as DEFAULT_SNAPSHOT_EVERY
from ._settings import JournalSettings as JournalSettings
from ._tables import TABLES as TABLES
from ._tables import Column as Column
from ._tables import Table as Table
