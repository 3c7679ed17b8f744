"""While the event loop stays late newcomers wait, and those who are there go on."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from clearfunds.accounts import Account, Ledger
from clearfunds.accounts._cooperative import run_to_end
from clearfunds.relay import RelaySettings
from clearfunds.relay._loop_alarm import (
    EVERY_SECONDS,
    LATEST,
    LOOP,
    NO_CONNECTIONS,
    NO_PUBLISHERS,
    QUIET,
    LoopAlarm,
    level_after,
    watch_loop,
)
from clearfunds.transports._accept_pace import AcceptPace
from clearfunds.transports.mqtt import PingReq, PingResp, PubAck
from tests.transports.peers import connected, dial, running, until

MARK = 1.0


def events(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [vars(r) for r in caplog.records if vars(r).get("event") == "loop_alarm"]


def stays(alarm: LoopAlarm, late: float) -> None:
    """Let the loop be so late for as long as counts."""
    for _ in range(LATEST):
        alarm.measured(late)


# -- the state machine ----------------------------------------------------------------------------


@given(st.lists(st.floats(0, 5)), st.floats(0.1, 2))
def test_one_step_at_a_time_and_a_distance_between_up_and_down(
    measures: list[float], mark: float
) -> None:
    level = QUIET
    for late in measures:
        before, level = level, level_after(level, late, mark)
        assert abs(level - before) <= 1
        if level > before:
            assert late > mark * level
        if level < before:
            assert late <= mark * before / 2
            # It does not go up again at once.
            assert level_after(level, late, mark) <= level


@pytest.mark.parametrize(
    ("late", "levels"),
    [
        ([0.9, 1.1, 0.6, 0.5], [QUIET, NO_CONNECTIONS, NO_CONNECTIONS, QUIET]),
        ([5, 5, 1.5, 1.0, 0.2], [1, NO_PUBLISHERS, NO_PUBLISHERS, NO_CONNECTIONS, QUIET]),
    ],
)
def test_the_levels(late: list[float], levels: list[int]) -> None:
    level = QUIET
    found: list[int] = []
    for each in late:
        level = level_after(level, each, MARK)
        found.append(level)
    assert found == levels


def test_one_long_step_is_no_overload() -> None:
    alarm = LoopAlarm(Ledger(), MARK, [], tuple)
    for late in (0.0, 0.1, 9.0, 9.0, 9.0, 0.1, 0.0):
        alarm.measured(late)
    assert alarm.raised == 0


def test_listeners_are_closed_and_opened_and_it_is_logged_once_each_way(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ledger = Ledger()
    paces = [AcceptPace(), AcceptPace()]
    alarm = LoopAlarm(ledger, MARK, paces, tuple)
    stays(alarm, 1.25)
    stays(alarm, 1.25)
    assert all(pace.is_closed for pace in paces)
    assert ledger.troubles == {
        LOOP: "the event loop is 1.2 s late: no new connections are accepted"
    }
    stays(alarm, 0.1)
    assert not any(pace.is_closed for pace in paces)
    assert not ledger.troubles
    up, over = events(caplog)
    assert (up["level"], up["up"], up["late"], up["mark"]) == (NO_CONNECTIONS, True, 1.25, MARK)
    assert up["message"] == (
        "alarm: the event loop stays 1.2 s late: no new connections are accepted until it is 0.5 s "
        "or less"
    )
    assert (over["level"], over["up"], over["levelno"]) == (QUIET, False, logging.WARNING)
    assert "connections are accepted" in over["message"]
    assert alarm.raised == 1


def test_who_has_published_since_it_went_up_goes_on_and_all_others_wait() -> None:
    ledger = Ledger()
    names = ("busy", "idle")
    busy, idle = (ledger.open(name) for name in names)
    there: list[Account] = [busy, idle]
    alarm = LoopAlarm(ledger, MARK, [], lambda: there)
    stays(alarm, 1.5)
    run_to_end(alarm.hold_newcomers())
    assert not busy.halted
    assert not idle.halted
    with busy.turn():
        pass
    late = ledger.open("late")
    with late.turn():
        pass
    there.append(late)
    stays(alarm, 3.0)
    run_to_end(alarm.hold_newcomers())
    assert [each.halted for each in (busy, idle, late)] == [(), (LOOP,), (LOOP,)]
    late.close()
    stays(alarm, 0.9)
    assert alarm.level == NO_CONNECTIONS
    assert not any(each.halted for each in (busy, idle, late))
    stays(alarm, 3.0)
    run_to_end(alarm.hold_newcomers())
    assert idle.halted
    alarm.close()
    assert not idle.halted
    ledger.audit()


def test_who_publishes_on_accounts_of_topics_publishes() -> None:
    ledger = Ledger()
    busy, idle = ledger.open("busy", shared=True), ledger.open("idle", shared=True)
    topics = [ledger.open(f"{each.name} topic t", parent=each) for each in (busy, idle)]
    alarm = LoopAlarm(ledger, MARK, [], lambda: [busy, idle])
    stays(alarm, 1.5)
    run_to_end(alarm.hold_newcomers())
    with topics[0].turn():
        pass
    stays(alarm, 3.0)
    run_to_end(alarm.hold_newcomers())
    assert [each.halted for each in (busy, idle)] == [(), (LOOP,)]
    assert [each.funds_are_clear() for each in topics] == [True, False]
    alarm.close()
    ledger.audit()


async def test_a_late_loop_is_measured_and_whoever_stops_watching_leaves_nobody_waiting(
    mock_clock: MockClock,
) -> None:
    ledger, pace = Ledger(), AcceptPace()
    idle = ledger.open("idle")
    alarm = LoopAlarm(ledger, MARK, [pace], lambda: [idle])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch_loop, alarm)
        await wait_all_tasks_blocked()
        for _ in range(LATEST):
            mock_clock.jump(EVERY_SECONDS)
            await wait_all_tasks_blocked()
        assert alarm.level == QUIET
        for _ in range(LATEST + 1):
            mock_clock.jump(EVERY_SECONDS + 2.5)
            await wait_all_tasks_blocked()
        assert alarm.level == NO_PUBLISHERS
        assert pace.is_closed
        assert idle.halted
        nursery.cancel_scope.cancel()
    assert not pace.is_closed
    assert not idle.halted
    assert not ledger.troubles


@pytest.mark.parametrize("wrong", [0.0, -1.0, float("inf")])
def test_a_mark_that_makes_no_sense_is_refused(wrong: float) -> None:
    with pytest.raises(ValueError, match="loop_lag_alarm must be above 0"):
        RelaySettings(loop_lag_alarm=wrong)


# -- in a relay -----------------------------------------------------------------------------------


async def test_in_a_relay_new_connections_wait_and_then_new_publishers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def measure_nothing(_: LoopAlarm) -> None:
        await trio.sleep_forever()

    monkeypatch.setattr("clearfunds.relay._relay.watch_loop", measure_nothing)
    async with (
        running(loop_lag_alarm=MARK) as relay,
        connected(relay.port, "busy") as busy,
        connected(relay.port, "idle") as idle,
    ):
        alarm = relay.relay.loop_alarm
        assert alarm is not None
        stays(alarm, 1.5)
        run_to_end(alarm.hold_newcomers())
        await busy.publish("t", b"1", qos=1, packet_id=1)
        await busy.expect(PubAck(1))
        async with dial(relay.port):
            stays(alarm, 3.0)
            run_to_end(alarm.hold_newcomers())
            await busy.publish("t", b"2", qos=1, packet_id=2)
            await busy.expect(PubAck(2))
            await idle.publish("t", b"3", qos=1, packet_id=1)
            await idle.send(PingReq())
            await idle.expect(PingResp())  # pings and acknowledgements are never held up
            assert relay.statistics().waiting == 1
            assert len(relay.relay.mqtt.open) == 2
            assert len(relay.relay.admission) == 2
            stays(alarm, 0.1)
            stays(alarm, 0.1)
            await idle.expect(PubAck(1))
            await until(lambda: len(relay.relay.admission) == 3)
        relay.ledger.audit()


async def test_without_the_option_nothing_is_watched() -> None:
    async with running(loop_lag_alarm=None) as relay:
        assert relay.relay.loop_alarm is None
