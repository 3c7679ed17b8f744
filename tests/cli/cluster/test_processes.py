"""Processes of a cluster: their output, and their end with the block that has them."""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import memory_stream_one_way_pair

from clearfunds._cli._child import LINE_BYTES, Announcement, Lines
from clearfunds._cli._cluster._ending import Ending
from clearfunds._cli._cluster._fleet import Child, Fleet, open_fleet
from clearfunds._cli._cluster._guard import open_guard
from clearfunds._cli._cluster._guarding import those_left

SECONDS = 30


async def test_lines_come_in_pieces_and_a_long_one_is_cut() -> None:
    sender, receiver = memory_stream_one_way_pair()
    lines = Lines(receiver)
    async with trio.open_nursery() as nursery:

        async def send() -> None:
            for piece in (b"a", b"b\nc\n\n", b"x" * LINE_BYTES, b"y" * LINE_BYTES, b"\nend\n\xff"):
                await sender.send_all(piece)
            await sender.aclose()

        nursery.start_soon(send)
        found: list[str] = []
        while (line := await lines.next()) is not None:
            found.append(line)
    assert found == ["ab", "c", "", "x" * LINE_BYTES, "end"]


def test_a_relay_announces_its_addresses() -> None:
    said = Announcement()
    for line in ('{"listening": "mqtt+tcp://h:1"}', '{"http": "http://h:2"}', "[]"):
        said.take(line)
        assert not said.is_ready
    said.take('{"ready": true}')
    assert said == Announcement("mqtt+tcp://h:1", "http://h:2", is_ready=True)


def test_the_guard_knows_the_processes_that_have_not_ended() -> None:
    assert those_left(["+1\n", "+2\n", "-1\n", "-9\n", "+30\n"]) == {2, 30}


async def speaking(fleet: Fleet, name: str, program: str) -> None:
    """Start a program and wait until it has printed a line."""
    spoken = trio.Event()

    def hear(_: str) -> None:
        spoken.set()

    await fleet.start(name, [sys.executable, "-u", "-c", program], log=Child.remember, hear=hear)
    await spoken.wait()


@asynccontextmanager
async def fleet_of(
    *programs: str, seconds: float = SECONDS
) -> AsyncGenerator[tuple[Fleet, Ending]]:
    """Run programs of Python, each of which has printed a line when the block begins."""
    ending = Ending()
    with trio.fail_after(SECONDS):
        async with open_guard() as guard, open_fleet(ending, guard, seconds) as fleet:
            for number, program in enumerate(programs, 1):
                await speaking(fleet, f"child-{number}", program)
            yield fleet, ending


SLEEPS = "import time; print(); time.sleep(60)"
STUBBORN = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {SLEEPS}"
FAILS = "import sys, time; print(); sys.exit('no ' + 'x' * 1_000)"


async def test_they_end_with_the_block_and_a_stubborn_one_is_killed() -> None:
    began = trio.current_time()
    async with fleet_of(SLEEPS, STUBBORN, seconds=0.2) as (_, ending):
        pass
    assert not ending.is_asked_for
    assert trio.current_time() - began < SECONDS / 2


async def test_an_exception_kills_them() -> None:
    with pytest.RaisesGroup(ZeroDivisionError, flatten_subgroups=True):
        async with fleet_of(STUBBORN):
            raise ZeroDivisionError


async def test_a_cancellation_kills_them() -> None:
    with trio.CancelScope() as scope:
        async with fleet_of(STUBBORN):
            scope.cancel()
            await trio.sleep_forever()
    assert scope.cancelled_caught


async def test_one_that_ends_by_itself_is_the_reason_for_the_end() -> None:
    async with fleet_of(SLEEPS, FAILS) as (_, ending):
        with ending.scope:
            await trio.sleep_forever()
    assert ending.fault is not None
    assert ending.fault.startswith("child-2 (process ")
    assert ending.fault.endswith(") ended by itself, with exit status 1: no " + "x" * 297)


async def test_a_program_that_is_not_there() -> None:
    with pytest.RaisesGroup(FileNotFoundError, flatten_subgroups=True):
        async with fleet_of() as (fleet, _):
            await fleet.start("child", ["/nonexistent"], log=Child.remember)
