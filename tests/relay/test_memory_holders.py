"""What an alarm of memory does about memory that no debt explains."""

from __future__ import annotations

import pytest

from clearfunds.accounts import DISK, MEMORY, Alarms, Limit, LoanedItem, Watermark
from clearfunds.relay._memory_holders import RELIEF_SECONDS, MemoryHolders
from tests.transports.test_input import KIB, Scene

MARKS = {MEMORY: Watermark(100 * KIB, 90 * KIB), DISK: Watermark(100, 200)}


def alarmed(scene: Scene) -> Alarms:
    server = scene.ledger.open("server", limit=Limit(items=None, bytes=None))
    alarms = Alarms(server, MARKS)
    alarms.on_short = MemoryHolders(scene.ledger, scene.book).short
    return alarms


def test_those_with_unfinished_input_go_where_no_debt_explains_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    scene = Scene(total=None)
    alarms = alarmed(scene)
    small, large = scene.peer("small"), scene.peer("large")
    assert small.grows_to(5 * KIB)
    assert large.grows_to(40 * KIB)
    assert alarms.sample(MEMORY, 95 * KIB) is None
    assert (small.cut, large.cut) == (None, None)
    assert alarms.sample(MEMORY, 110 * KIB)
    assert (small.cut is None, large.cut is None) == (True, False)
    (line,) = [r for r in caplog.records if r.__dict__["event"] == "alarm"]
    assert line.__dict__["holders"] == (
        "0 bytes are owed, 46080 are unfinished input, 0 are kept in RAM, 0 are retained messages, "
        "subscriptions and wills"
    )
    # What it has let go of does not show at once.
    assert alarms.sample(MEMORY, 110 * KIB) is None
    assert small.cut is None
    scene.now += RELIEF_SECONDS
    alarms.sample(MEMORY, 110 * KIB)
    assert small.cut is not None
    scene.audit()


def test_nobody_is_cut_where_debt_explains_it_or_the_disk_is_short() -> None:
    scene = Scene(total=None)
    alarms = alarmed(scene)
    peer = scene.peer("a")
    assert peer.grows_to(40 * KIB)
    owing = LoanedItem(scene.ledger.accounts["server"], None, 1, 20 * KIB)
    alarms.sample(MEMORY, 110 * KIB)
    alarms.sample(DISK, 10)
    assert peer.cut is None
    owing.settle()
    alarms.sample(MEMORY, 110 * KIB)
    assert peer.cut is not None
