"""What holds for every test."""

import gc
import itertools
import logging
import os
import signal
from collections.abc import Generator, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest
from hypothesis import HealthCheck, settings

from clearfunds._cli._collector import spare_the_collector
from tests.forks import ensure_server
from tests.pipeline.jvms import JVMS
from tests.signals import heard
from tests.store.disk import Disks, FakeDisk

EXAMPLES = 25
"""Of a property in `make test`, unless a test says otherwise."""

PIPELINE: Final = Path(__file__).with_name("pipeline")
WAITING: Final = frozenset(Path(__file__).with_name(name) for name in ("attacks", "cluster"))
"""Folders whose tests wait nine tenths of their time, for what happens to be noticed."""


def pytest_configure(config: pytest.Config) -> None:
    """Choose how many examples a property is tried with."""
    if not str(config.getoption("-m")).startswith("long"):
        # Six tests run at a time on two cores: how long one of them takes says nothing.
        settings.register_profile(
            "quick",
            max_examples=EXAMPLES,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow],
        )
        settings.load_profile("quick")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with the tests that would be waited for in the end.

    As many workers as may have a JVM begin with those of `tests/pipeline`, the others with those
    that wait themselves most of the time. xdist's `worksteal` gives each worker an equal part of
    the list, and later moves ends of parts.
    """
    workers: int = getattr(config, "workerinput", {}).get("workercount", 1)
    pipeline, waiting, others = list[pytest.Item](), list[pytest.Item](), list[pytest.Item]()
    for path, some in itertools.groupby(items, lambda item: item.path):
        if PIPELINE in path.parents:
            pipeline.extend(some)
        else:
            (waiting if WAITING.intersection(path.parents) else others).extend(some)
    jvms = min(workers, JVMS)
    heads = [*_parts(pipeline, jvms), *_parts(waiting, max(workers - jvms, 1))]
    total = len(items)
    items.clear()
    for worker in range(workers):
        size = (total - len(items)) // (workers - worker)
        head = heads[worker]
        rest = max(size - len(head), 0)
        items += head + others[:rest]
        del others[:rest]
    items += itertools.chain(*heads[workers:], others)


def _parts(items: list[pytest.Item], count: int) -> list[list[pytest.Item]]:
    """Cut a list into parts of the same size."""
    ends = [len(items) * number // count for number in range(count + 1)]
    return [items[begin:end] for begin, end in itertools.pairwise(ends)]


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Spare the garbage collector ten thousand tests and their modules: they stay.

    Some tests collect after each of their steps, and the collector's own thresholds take 4 % of
    the CPU time (measured).
    """
    gc.disable()
    try:
        return (yield)
    finally:
        spare_the_collector()
        gc.enable()


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


@pytest.fixture(scope="session")
def server_of_forks() -> None:
    """Start what starts commands, for tests that count descriptors meanwhile."""
    ensure_server()


@pytest.fixture(scope="session", autouse=True)
def _interrupts_are_heard() -> Iterator[None]:
    """Undo what a shell does to `make test &`: Control-C is ignored there, by programs too."""
    with heard(signal.SIGINT, signal.default_int_handler):
        yield


@pytest.fixture
def disks(tmp_path: Path) -> Iterator[Disks]:
    """Make disks below SQLite that do as they are told."""
    with ExitStack() as stack:

        def disk(seed: int = 0) -> FakeDisk:
            folder = tmp_path / f"disk-{len(os.listdir(tmp_path))}"
            return stack.enter_context(FakeDisk(folder, seed))

        yield disk
