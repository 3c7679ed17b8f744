"""What holds for every test."""

import logging
import os
from collections.abc import Iterator

import pytest


@pytest.hookimpl(optionalhook=True)  # pytest-xdist's
def pytest_xdist_auto_num_workers() -> int:
    """One more than there are cores: many tests wait, for a process or for a time to be over."""
    return len(os.sched_getaffinity(0)) + 1


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
