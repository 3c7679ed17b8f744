"""What holds for every test."""

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    """Undo what a command that was run in this process has done to the log."""
    root, own = logging.getLogger(), logging.getLogger("clearfunds")
    handlers, levels = root.handlers[:], (root.level, own.level)
    yield
    for handler in root.handlers[:]:
        if handler not in handlers:
            root.removeHandler(handler)
    root.setLevel(levels[0])
    own.setLevel(levels[1])
