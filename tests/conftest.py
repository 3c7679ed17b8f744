"""What holds for every test."""

import logging
import signal
from collections.abc import Iterator

import pytest

from tests.signals import heard


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


@pytest.fixture(scope="session", autouse=True)
def _interrupts_are_heard() -> Iterator[None]:
    """Undo what a shell does to `make test &`: Control-C is ignored there, by programs too."""
    with heard(signal.SIGINT, signal.default_int_handler):
        yield
