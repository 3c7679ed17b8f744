"""Logs of the command line: one plain line an event on stderr, with the time (UTC) and level."""

import logging
import time
from typing import Final, Literal

LogLevel = Literal["debug", "info", "warning", "error"]

# What a peer sends may stand in a message (a topic, a client id): it must not be able to start a
# line of its own, or to drive somebody's terminal.
_CONTROLS: Final = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160))} | {
    ord("\n"): "\\n",
    ord("\r"): "\\r",
    ord("\t"): "\\t",
    0x2028: "\\u2028",
    0x2029: "\\u2029",
}


class _OneLine(logging.Formatter):
    converter = staticmethod(time.gmtime)
    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03dZ"

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  (logging's own name)
        record.message = record.message.translate(_CONTROLS)
        return super().formatMessage(record)


def configure_logging(level: LogLevel) -> None:
    """Send the project's log, and the warnings of all others, to stderr."""
    handler = logging.StreamHandler()
    handler.setFormatter(_OneLine("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("clearfunds").setLevel(level.upper())
