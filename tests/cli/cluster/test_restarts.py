"""Processes that are started again, and the command lines of workers."""

from __future__ import annotations

import sys
from functools import partial

import pytest
import trio
import trio.testing

from clearfunds._cli._cluster._ending import Ending
from clearfunds._cli._cluster._fleet import AtEnd, Child, Fleet, open_fleet
from clearfunds._cli._cluster._guard import open_guard
from clearfunds._cli._cluster._own_options import Value, with_own
from clearfunds._cli._cluster._restarts import RESTARTS_MAX, Restarting, exposition
from clearfunds._cli._cluster._worker import Worker
from clearfunds._cli._page import Visitor

SECONDS = 30

FAILS = "import sys; sys.exit('no')"


async def start(fleet: Fleet, at_end: AtEnd) -> Child:
    command = [sys.executable, "-I", "-S", "-c", FAILS]
    return await fleet.start("w-1", command, log=Child.remember, at_end=at_end)


@pytest.mark.parametrize("has_started", [True, False])
async def test_one_that_ends_again_and_again_ends_all(
    has_started: bool, caplog: pytest.LogCaptureFixture
) -> None:
    ending = Ending()
    process = Restarting("w-1", has_started=has_started)
    with trio.fail_after(SECONDS):
        async with open_guard() as guard, open_fleet(ending, guard, SECONDS) as fleet:
            with ending.scope:
                await process.run(ending, partial(start, fleet))
    assert ending.fault is not None
    assert ending.fault.startswith("w-1 (process ")
    assert "ended by itself, with exit status 1: no" in ending.fault
    assert ending.fault.endswith("for the 5th time within 60 s") is has_started
    restarts = RESTARTS_MAX - 1 if has_started else 0
    assert process.restarts == restarts
    assert caplog.text.count("it is started again") == restarts
    assert exposition([process]).endswith(
        f'\nclearfunds_process_restarts_total{{process="w-1"}} {restarts}\n'
    )


@pytest.mark.parametrize(
    ("argv", "own", "expected"),
    [
        ("relay --grace 1", {"name": "a"}, "relay --grace 1 --name=a"),
        ("relay --name b --grace=1", {"name": "a"}, "relay --grace=1 --name=a"),
        ("relay --NAME=b --reuse-port x", {"name": "a", "reuse-port": None},
         "relay x --name=a --reuse-port"),
        ("relay --http_token b --listen c --listen=d", {"http-token": "a", "listen": ["e", "f"]},
         "relay --http-token=a --listen=e --listen=f"),
        ("relay --named b --name", {"name": "a"}, "relay --named b --name=a"),
        ("--config f relay --listen c", {"listen": []}, "--config f relay"),
    ],
)  # fmt: skip
def test_a_workers_options_take_the_place_of_the_users(
    argv: str, own: dict[str, Value], expected: str
) -> None:
    assert with_own(argv.split(), own) == expected.split()


async def test_hang_ups_of_a_worker_that_is_not_ready_are_one(
    autojump_clock: trio.testing.MockClock,
) -> None:
    worker = Worker("w", visitor=Visitor(), link="w")
    async with trio.open_nursery() as nursery:
        for _ in range(100):
            nursery.start_soon(worker.hang_up)
        await trio.sleep(1)
        assert len(nursery.child_tasks) == 1
        nursery.cancel_scope.cancel()
    # It can be told again.
    async with trio.open_nursery() as nursery:
        nursery.start_soon(worker.hang_up)
        await trio.sleep(1)
        assert len(nursery.child_tasks) == 1
        nursery.cancel_scope.cancel()
