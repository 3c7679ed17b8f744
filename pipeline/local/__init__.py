"""The report's questions in this process, for journals that need no Spark. It needs DuckDB."""

from ._engine import LocalJournal as LocalJournal
from ._engine import check_local as check_local
from ._engine import open_local as open_local
