"""A log line is one line, whatever a peer has put into it."""

from __future__ import annotations

import json
import logging
import math
import re
import warnings
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from clearfunds._cli._logging import configure_logging

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    root, own = logging.getLogger(), logging.getLogger("clearfunds")
    handlers, levels = root.handlers[:], (root.level, own.level)
    found = logging.logThreads, logging.logProcesses, logging.logMultiprocessing
    # `configure_logging` closes what it replaces; pytest's own handlers are still needed.
    root.handlers = []
    yield
    root.handlers = handlers
    root.setLevel(levels[0])
    own.setLevel(levels[1])
    logging.captureWarnings(False)
    logging.logThreads, logging.logProcesses, logging.logMultiprocessing = found


def test_nothing_is_found_out_that_no_line_shows() -> None:
    configure_logging("info")
    record = logging.getLogger("clearfunds").makeRecord("n", 20, "f", 1, "m", (), None)
    assert (record.process, record.processName, record.thread) == (None, None, None)


def test_time_level_and_name(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("info")
    logging.getLogger("clearfunds.relay").info("hello %s", "you")
    logging.getLogger("clearfunds.relay").debug("not this")
    logging.getLogger("elsewhere").info("nor this")
    logging.getLogger("elsewhere").warning("but this")
    first, second = capsys.readouterr().err.splitlines()
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z INFO clearfunds\.relay: hello you", first
    )
    assert second.endswith("Z WARNING elsewhere: but this")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a\nb", r"a\nb"),
        ("a\r\tb", r"a\r\tb"),
        ("\x1b[2Jgone", r"\x1b[2Jgone"),
        ("\x85\x9b\x00", r"\x85\x9b\x00"),
        ("\u2028", r"\u2028"),
        ("grüß", "grüß"),
    ],
)
def test_nothing_in_a_message_starts_a_line_or_drives_a_terminal(
    text: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    configure_logging("info")
    logging.getLogger("clearfunds").warning("client %s", text)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert lines[0].endswith(f"client {said}")


# -- JSON -----------------------------------------------------------------------------------------


def as_json(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    """Return what was logged; everything is ASCII, and each line one object."""
    text = capsys.readouterr().err
    assert text.isascii()
    return [json.loads(line) for line in text.splitlines()]


def test_an_object_a_line_with_its_fields(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("info", "json")
    before = datetime.now(UTC)
    log = logging.getLogger("clearfunds.accounts")
    log.info("%s waits", "grüß", extra={"event": "slow_wait", "account": "grüß", "seconds": 1.5})
    log.debug("not this")
    logging.getLogger("elsewhere").warning("but this")
    first, second = as_json(capsys)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", first["time"])
    age = before - datetime.fromisoformat(first.pop("time"))
    assert abs(age.total_seconds()) < 60
    assert first == {
        "level": "INFO",
        "logger": "clearfunds.accounts",
        "message": "grüß waits",
        "event": "slow_wait",
        "account": "grüß",
        "seconds": 1.5,
    }
    assert set(second) == {"time", "level", "logger", "message"}


def test_no_time_is_written_without_its_milliseconds(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("info", "json")
    record = logging.makeLogRecord({"name": "clearfunds", "levelno": 20, "msg": ""})
    record.created = 1_000_000_000.0
    logging.getLogger("clearfunds").handle(record)
    (line,) = as_json(capsys)
    assert line["time"] == "2001-09-09T01:46:40.000Z"


def test_whatever_the_values_are_a_line_is_made(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("info", "json")
    logging.getLogger("clearfunds").info(
        "100%",
        extra={
            "time": "never",
            "level": "high",
            "on": [{"holder": "a\nb", "seconds": math.inf}, (1, None)],
            "odd": {1: {"x"}, "\x1b": math.nan},
            "object": ValueError("\x9bno"),
            "half": "\ud800",
        },
    )
    (line,) = as_json(capsys)
    assert line["message"] == "100%"
    assert line["level"] == "INFO"
    assert line["time"] != "never"
    assert line["on"] == [{"holder": r"a\nb", "seconds": None}, [1, None]]
    assert line["odd"] == {"1": ["x"], r"\x1b": None}
    assert line["object"] == r"\x9bno"
    assert line["half"] == "\ud800"


def test_a_traceback_is_in_the_same_line(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("info", "json")
    try:
        raise ValueError("what a peer\x1b[2J sent")
    except ValueError:
        logging.getLogger("clearfunds").exception("it failed")
    (line,) = as_json(capsys)
    assert line["message"] == "it failed"
    assert line["exception"].startswith("Traceback (most recent call last):\n  File ")
    assert line["exception"].endswith(r"ValueError: what a peer\x1b[2J sent")


def test_pythons_warnings_are_lines_too(capsys: pytest.CaptureFixture[str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        configure_logging("info", "json")
        warnings.warn("a loan was never settled", ResourceWarning, stacklevel=1)
    (line,) = as_json(capsys)
    assert line["logger"] == "py.warnings"
    assert "ResourceWarning: a loan was never settled" in line["message"]


# -- the documentation ----------------------------------------------------------------------------

ROOT = Path(__file__).parents[2]
FOLDERS = (
    "access",
    "accounts",
    "cluster",
    "dataspace",
    "transports",
    "persistence",
    "ranges",
    "pages",
    "relay",
    "store",
    "pipeline/journal",
    "src/clearfunds/_cli",
)


def test_every_event_is_documented_and_no_other() -> None:
    code = "".join(
        path.read_text("utf-8") for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")
    )
    in_code = set(re.findall(r'"event": "(\w+)"|\b_fields\("(\w+)"', code))
    documented = re.findall(
        r"^\| `(\w+)` \| (\w+) \|", (ROOT / "docs/logs.md").read_text(), re.MULTILINE
    )
    assert {one or other for one, other in in_code} == {event for event, _ in documented}
    assert {level for _, level in documented} == {"INFO", "WARNING", "ERROR"}
    assert len(documented) == len(in_code)
