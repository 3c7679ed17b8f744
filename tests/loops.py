"""Tests that run under Trio and under asyncio; a folder's conftest.py imports what is here.

Such tests are written with anyio. Under Trio pytest-trio runs them, as all others; under asyncio
this module does. A test that asks for `autojump_clock` has virtual time under both: whenever every
task waits, the clock jumps to what is due next. A module whose tests are about Trio itself says
`LOOPS = ("trio",)`.
"""

from __future__ import annotations

import asyncio
import inspect
import selectors
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

import anyio
import pytest
from trio.testing import assert_checkpoints

from clearfunds.accounts._loop import TRIO, running

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Coroutine

    from anyio.abc import TaskGroup

LOOPS: Final = ("trio", "asyncio")


class JumpingSelector(selectors.SelectSelector):
    """Sleeps never: it moves the clock of its loop instead."""

    def __init__(self) -> None:
        super().__init__()
        self.jumped = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        """Return what is ready now; if that is nothing, the time that was to be slept has gone."""
        ready = super().select(0)
        if not ready and timeout is None:
            # Nothing is due: another thread must do something, or the test hangs, as it would.
            return super().select(1.0)
        if not ready and timeout:
            self.jumped += timeout
        return ready


class JumpingLoop(asyncio.SelectorEventLoop):
    """A loop with virtual time, which begins at 0 and passes only when every task waits."""

    def __init__(self) -> None:
        self._jumping = JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        """Return the virtual time."""
        return self._jumping.jumped


class LoopClock:
    """The clock of the running loop, for a ledger; outside of any it stands still."""

    def __init__(self) -> None:
        self._latest = 0.0

    def __call__(self) -> float:
        """Return the time in seconds."""
        with suppress(RuntimeError):
            self._latest = running().now()
        return self._latest


def run_asyncio(main: Callable[[], Coroutine[Any, Any, None]], *, jumps: bool) -> None:
    """Run a test under asyncio, with virtual time if `jumps`."""
    factory = JumpingLoop if jumps else asyncio.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(main())


@pytest.fixture(autouse=True)
def loop_of_the_test(request: pytest.FixtureRequest) -> str:
    """The loop that the test runs under; for other tests Trio's."""
    name: str = getattr(request, "param", "trio")
    return name


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each test that is a coroutine under each loop."""
    if inspect.iscoroutinefunction(inspect.unwrap(metafunc.function)):
        loops = metafunc.function.__globals__.get("LOOPS", LOOPS)
        if "mock_clock" in metafunc.fixturenames:  # Trio's, set by hand
            loops = ("trio",)
        metafunc.parametrize("loop_of_the_test", loops, indirect=True)


@asynccontextmanager
async def open_nursery() -> AsyncGenerator[TaskGroup]:
    """Run tasks beside the block, in either loop."""
    async with anyio.create_task_group() as group:
        yield group


@asynccontextmanager
async def yields() -> AsyncGenerator[None]:
    """Assert that the block lets other tasks run."""
    if running() is TRIO:
        with assert_checkpoints():
            yield
        return
    ran: list[bool] = []
    asyncio.get_running_loop().call_soon(ran.append, True)
    yield
    assert ran, "no other task could run"


def is_for_asyncio(item: pytest.Item) -> bool:
    """Whether a test runs under asyncio."""
    callspec = getattr(item, "callspec", None)
    return callspec is not None and callspec.params.get("loop_of_the_test") == "asyncio"


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Take from pytest-trio what is not its own."""
    for item in items:
        if is_for_asyncio(item):
            item.own_markers[:] = [mark for mark in item.own_markers if mark.name != "trio"]


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test under asyncio."""
    if not is_for_asyncio(pyfuncitem):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    arguments = {name: pyfuncitem.funcargs[name] for name in names}
    jumps = "autojump_clock" in pyfuncitem.fixturenames
    run_asyncio(lambda: pyfuncitem.obj(**arguments), jumps=jumps)
    return True
