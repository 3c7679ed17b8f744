"""The flights that the demo publishes are the ones that the README beside them describes."""

import csv
import gzip
import hashlib
import io
import re
import runpy
import zipfile
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

DATA = Path(__file__).parents[2] / "examples" / "data"
CSV = DATA / "flights-2013-01.csv.gz"


@pytest.fixture(scope="module")
def text() -> bytes:
    return gzip.decompress(CSV.read_bytes())


@pytest.fixture(scope="module")
def rows(text: bytes) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text.decode("ascii"))))


@pytest.fixture(scope="module")
def cut() -> dict[str, object]:
    return runpy.run_path(str(DATA / "cut.py"))


def test_the_checksum_is_the_readme_s(text: bytes) -> None:
    readme = (DATA / "README.md").read_text("utf-8")
    assert re.findall(r"`([0-9a-f]{64})`", readme) == [hashlib.sha256(text).hexdigest()]


def test_every_flight_of_january_is_there_once(rows: list[dict[str, str]]) -> None:
    assert len(rows) == 27_004
    assert len({tuple(row.values()) for row in rows}) == 27_004
    assert {(row["year"], row["month"]) for row in rows} == {("2013", "1")}
    assert {row["origin"] for row in rows} == {"EWR", "JFK", "LGA"}
    assert sum(row["dep_delay"] == "NA" for row in rows) == 521
    assert len(rows[0]) == 19


def test_rows_are_in_order_of_departure(rows: list[dict[str, str]], cut: dict[str, object]) -> None:
    departure = cast("Callable[[dict[str, str]], datetime]", cut["departure"])
    departures = [departure(row) for row in rows]
    assert departures == sorted(departures)
    # What the airline wrote down agrees: HHMM, where 2400 is midnight.
    for row, left in zip(rows, departures, strict=True):
        if row["dep_time"] != "NA":
            assert int(row["dep_time"]) % 2400 == left.hour * 100 + left.minute


def test_nothing_in_the_gzip_header_tells_when_it_was_made() -> None:
    assert CSV.read_bytes()[4:8] == bytes(4)


def test_the_script_cuts_sorts_and_changes_nothing(
    rows: list[dict[str, str]], text: bytes, cut: dict[str, object], tmp_path: Path
) -> None:
    source = io.StringIO()
    writer = csv.DictWriter(source, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    february = rows[0] | {"month": "2"}
    # The source is sorted by scheduled day and then by time of day, so a flight that left
    # after midnight stands in the wrong place; other months follow.
    writer.writerows(sorted(rows, key=lambda row: (int(row["day"]), row["dep_time"])))
    writer.writerow(february)
    with zipfile.ZipFile(tmp_path / "flights.csv.zip", "w") as archive:
        archive.writestr("flights.csv", source.getvalue())
    cut_again = cast("Callable[[Path], str]", cut["cut"])(tmp_path / "flights.csv.zip")
    # Ties may fall otherwise here than in the package's own order; nothing else may.
    assert len(cut_again.splitlines()) == 27_005
    assert set(cut_again.encode("ascii").splitlines()) == set(text.splitlines())
    departure = cast("Callable[[dict[str, str]], datetime]", cut["departure"])
    departures = [departure(row) for row in csv.DictReader(io.StringIO(cut_again))]
    assert departures == sorted(departures)


def test_the_package_carries_the_data() -> None:
    packaged = resources.files("clearfunds") / "demo_data" / CSV.name
    assert packaged.read_bytes() == CSV.read_bytes()
