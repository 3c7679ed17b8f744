"""Logs of the command line on stderr: one line an event, plain or a JSON object."""

import json
import logging
import math
import time
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final, Literal, cast

from ._log_rate import LimitedHandler
from ._printable import printable

LogLevel = Literal["debug", "info", "warning", "error"]

LogFormat = Literal["text", "json"]

# Attributes of every record; all others come from `extra=`. (Formatters make two; Python 3.12 has
# one more.)
_RECORD: Final = frozenset((*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"))

_encode: Final = json.JSONEncoder(allow_nan=False, ensure_ascii=True).encode


class _OneLine(logging.Formatter):
    converter = staticmethod(time.gmtime)
    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03dZ"

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  (logging's own name)
        record.message = printable(record.message)
        return super().formatMessage(record)


class JsonLines(logging.Formatter):
    """Formats a record as one JSON object in one line of ASCII.

    `time` (RFC 3339, UTC), `level`, `logger`, `message`; then the fields given by `extra=`, as
    `event`, `account` or `seconds`; then `exception`, a traceback's text, if there is one. Our own
    fields win over fields of the same name. It makes a line whatever the values are.
    """

    def format(self, record: logging.LogRecord) -> str:
        when = datetime.fromtimestamp(record.created, UTC)
        line: dict[str, Any] = {
            "time": when.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "message": printable(record.getMessage()),
        }
        for name, value in vars(record).items():
            if name not in _RECORD and name not in line:
                line[printable(name)] = _plain(value)
        if record.exc_info and record.exc_info[0] is not None:
            line["exception"] = _lines(self.formatException(record.exc_info))
        if record.stack_info:
            line["stack"] = _lines(self.formatStack(record.stack_info))
        return _encode(line)


def _plain(value: object) -> Any:
    """Convert `value` for JSON, with printable texts in it."""
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        pairs = cast("Mapping[object, object]", value).items()
        return {printable(str(key)): _plain(each) for key, each in pairs}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(each) for each in cast("Iterable[object]", value)]
    return printable(str(value))


def _lines(text: str) -> str:
    # A traceback keeps its lines; the text of each is no more trustworthy.
    return "\n".join(printable(line) for line in text.split("\n"))


def configure_logging(
    level: LogLevel, form: LogFormat = "text", lines: int | None = None
) -> LimitedHandler | None:
    """Send the project's log, and the warnings of all others, to stderr.

    With JSON also the messages of Python's `warnings` module, which would otherwise stand between
    the objects as plain text.

    Args:
        level: The least level of the project's log.
        form: How lines are written.
        lines: Lines of one kind in a second; None: any number.

    Returns:
        The handler that limits them, if any does: its caller has to let it sum up
        (`keep_summing_up`).
    """
    # No line shows these, and to find them out takes a system call for each record.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    handler = logging.StreamHandler()
    limited = None if lines is None else LimitedHandler(handler, lines)
    if form == "json":
        handler.setFormatter(JsonLines())
        logging.captureWarnings(True)
    else:
        handler.setFormatter(_OneLine("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[limited or handler], force=True)
    logging.getLogger("clearfunds").setLevel(level.upper())
    return limited
