"""A log line is one line, whatever a peer has put into it."""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING

import pytest

from clearfunds._cli._logging import configure_logging

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    root, own = logging.getLogger(), logging.getLogger("clearfunds")
    handlers, levels = root.handlers[:], (root.level, own.level)
    # `configure_logging` closes what it replaces; pytest's own handlers are still needed.
    root.handlers = []
    yield
    root.handlers = handlers
    root.setLevel(levels[0])
    own.setLevel(levels[1])


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
