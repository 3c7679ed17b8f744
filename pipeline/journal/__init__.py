"""The journal: what the relay's books say as time goes by, written as Parquet."""

from ._tables import TABLES as TABLES
from ._tables import Column as Column
from ._tables import Table as Table
