"""Why a slow consumer is slow: readings in, a cause or nothing out."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import anyio
import attrs
import pytest
from anyio import wait_all_tasks_blocked
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from clearfunds.accounts import (
    CauseKind,
    Ledger,
    Limit,
    Symptoms,
    TcpCounters,
    watch_patience,
    watch_slow_waits,
)
from clearfunds.accounts.watch._causes import (
    HOLDERS_MAX,
    LOSS,
    MISSED_MAX,
    NAME_CHARACTERS,
    NO_ANSWER_SECONDS,
    OBSERVED_SECONDS,
    RETRANSMISSIONS_MIN,
    STILL_SECONDS,
    SURE_SECONDS,
    WINDOW_SECONDS,
    Reading,
    judge,
)
from tests.accounts.conftest import Box, balance, publish
from tests.loops import LoopClock, open_nursery

IDLE = TcpCounters(
    busy_seconds=0.0,
    shut_seconds=0.0,
    sent_bytes=10_000,
    resent_bytes=0,
    retransmissions=0,
    acked_bytes=10_000,
    unsent_bytes=0,
    segment_bytes=1448,
    in_flight=0,
    round_trip_seconds=0.001,
)


def readings(*symptoms: Symptoms, every: float = 0.5) -> list[Reading]:
    """Readings at an interval."""
    made = [Reading(0.0, Symptoms(None))]
    for number, each in enumerate(symptoms):
        made.append(made[-1].next(100.0 + number * every, each))
    return made[1:]


def over(seconds: float, steps: int = 0, first: TcpCounters = IDLE, **growth: Any) -> list[Reading]:
    """Readings twice a second, in which some counters grow by so much a second.

    In `steps` of them, the first, they do; in the others they stay. `0`: in all of them.
    """
    tcp = attrs.evolve(first)
    made = [Symptoms(tcp, unsent=True)]
    for step in range(round(seconds * 2)):
        grown = {
            name: getattr(tcp, name) + (value / 2 if isinstance(value, float) else value // 2)
            for name, value in growth.items()
            if not steps or step < steps or name.endswith("seconds")
        }
        tcp = attrs.evolve(tcp, **grown)
        made.append(Symptoms(tcp, unsent=True))
    return readings(*made)


def kind(found: list[Reading]) -> CauseKind | None:
    cause = judge(found)
    return None if cause is None else cause.kind


def sentence(found: list[Reading]) -> str:
    cause = judge(found)
    assert cause is not None
    return cause.about("mqtt:1883/-/archive")


# -- its program ----------------------------------------------------------------------------------


def test_a_window_that_stays_shut_is_a_program_that_does_not_read() -> None:
    found = over(7, busy_seconds=1.0, shut_seconds=0.98)
    assert kind(found) is CauseKind.DOES_NOT_READ
    assert sentence(found) == "archive's program does not read (window shut 98 % of 7 s)"


def test_a_window_that_opens_now_and_then_is_a_program_that_reads_too_slowly() -> None:
    found = over(7, busy_seconds=1.0, shut_seconds=0.9, acked_bytes=3000, sent_bytes=3000)
    assert kind(found) is CauseKind.READS_SLOWLY
    assert sentence(found) == "archive's program reads too slowly (window shut 90 % of 7 s)"


def test_nothing_is_said_until_a_program_that_has_read_may_have_stopped() -> None:
    growth: dict[str, Any] = {
        "busy_seconds": 1.0,
        "shut_seconds": 1.0,
        "acked_bytes": 3000,
        "sent_bytes": 3000,
    }
    assert kind(over(1, steps=1, **growth)) is None
    assert kind(over(0.5 + STILL_SECONDS, steps=1, **growth)) is CauseKind.DOES_NOT_READ
    assert kind(over(SURE_SECONDS - 0.5, **growth)) is None
    assert kind(over(SURE_SECONDS, **growth)) is CauseKind.READS_SLOWLY


def test_the_rest_of_a_window_is_filled_without_a_reader() -> None:
    growth: dict[str, Any] = {"busy_seconds": 1.0, "shut_seconds": 1.0, "sent_bytes": 100}
    assert kind(over(3, steps=1, **growth, acked_bytes=2 * 1447)) is CauseKind.DOES_NOT_READ
    loopback = attrs.evolve(IDLE, segment_bytes=65_483)
    assert kind(over(3, first=loopback, **growth, acked_bytes=40_000)) is CauseKind.READS_SLOWLY


def test_a_window_that_is_shut_for_less_than_half_of_the_time_says_nothing() -> None:
    assert kind(over(5, busy_seconds=1.0, shut_seconds=0.48)) is None
    assert kind(over(5, busy_seconds=1.0, shut_seconds=0.52)) is CauseKind.DOES_NOT_READ


# -- its network ----------------------------------------------------------------------------------

LOSING: dict[str, Any] = {
    "busy_seconds": 1.0,
    "sent_bytes": 100_000,
    "resent_bytes": 3000,
    "retransmissions": 4,
    "acked_bytes": 97_000,
}


def test_bytes_sent_again_are_a_network_that_loses() -> None:
    assert kind(over(5, **LOSING)) is CauseKind.LOSS
    assert sentence(over(5, **LOSING)) == "archive's network loses 3 %"
    few: dict[str, Any] = {**LOSING, "resent_bytes": 1400}
    assert sentence(over(5, **few)) == "archive's network loses 1.4 %"


@pytest.mark.parametrize(
    "less",
    [
        {"resent_bytes": round(LOSS * 100_000) - 10},
        {"retransmissions": 0},
        {"busy_seconds": 0.4},
        {"shut_seconds": 0.3},
    ],
)
def test_little_loss_or_a_connection_with_other_troubles_says_nothing(
    less: dict[str, Any],
) -> None:
    assert kind(over(5, **{**LOSING, **less})) is None


def test_a_peer_whose_kernel_acknowledges_nothing_does_not_answer() -> None:
    first = attrs.evolve(IDLE, in_flight=7, acked_bytes=3000)
    growth: dict[str, Any] = {
        "busy_seconds": 1.0,
        "retransmissions": 2,
        "sent_bytes": 10,
        "resent_bytes": 10,
    }
    found = over(7, first=first, **growth)
    assert kind(found) is CauseKind.NO_ANSWER
    assert sentence(found) == (
        "archive's network or machine does not answer (nothing for 7 s, 14 retransmissions)"
    )
    # What is on its way fills the window: it is not the program that has shut it.
    assert kind(over(7, first=first, **growth, shut_seconds=1.0)) is CauseKind.NO_ANSWER
    # The others may be late.
    assert kind(over(NO_ANSWER_SECONDS - 0.5, first=first, **growth)) is None
    assert kind(over(7, first=first, busy_seconds=1.0)) is None


@pytest.mark.parametrize("shut", [0.0, 1.0])
def test_a_kernel_that_never_runs_out_of_bytes_has_a_slow_network(shut: float) -> None:
    first = attrs.evolve(IDLE, in_flight=10, unsent_bytes=5000, round_trip_seconds=0.2)
    growth: dict[str, Any] = {"busy_seconds": 1.0, "shut_seconds": shut, "acked_bytes": 327_680}
    found = over(5, first=first, **growth)
    assert kind(found) is CauseKind.SLOW_NETWORK
    assert sentence(found) == "archive's network is slow (320 KiB/s, round trip 200 ms)"
    assert kind(over(1, first=first, **growth)) is None
    # It ran out of them once.
    tcp = found[3].symptoms.tcp
    assert tcp is not None
    found[3] = attrs.evolve(found[3], symptoms=Symptoms(attrs.evolve(tcp, unsent_bytes=0)))
    assert kind(found) is None


# -- its acknowledgements -------------------------------------------------------------------------


def awaiting(position: object, outstanding: int = 32, **tcp: Any) -> Symptoms:
    return Symptoms(attrs.evolve(IDLE, **tcp), outstanding=outstanding, position=position)


def test_a_consumer_that_acknowledges_nothing_of_what_it_has() -> None:
    found = readings(*[awaiting(1)] * 15)
    assert kind(found) is CauseKind.DOES_NOT_ACKNOWLEDGE
    assert sentence(found) == "archive does not acknowledge (32 outstanding, none for 7 s)"


def test_time_counts_from_the_last_acknowledgement() -> None:
    found = readings(*[awaiting(1)] * 5, *[awaiting(2)] * 5)
    assert sentence(found) == "archive does not acknowledge (32 outstanding, none for 2 s)"


def test_one_that_acknowledges_now_and_then() -> None:
    found = readings(*[awaiting(n, 32 - n % 3) for n in range(15)])
    assert kind(found) is CauseKind.ACKNOWLEDGES_SLOWLY
    assert sentence(found) == (
        "archive acknowledges too slowly (never fewer than 30 outstanding in 7 s)"
    )


@pytest.mark.parametrize(
    "other",
    [
        awaiting(1, in_flight=1),
        awaiting(1, unsent_bytes=1),
        awaiting(1, unread_bytes=1),
        attrs.evolve(awaiting(1), unsent=True),
        awaiting(1, 0),
    ],
)
def test_a_consumer_that_may_not_have_everything_is_not_blamed(other: Symptoms) -> None:
    assert kind(readings(*[other] * 15)) is None
    assert kind(readings(*[awaiting(1)] * 14, other)) is None
    assert kind(readings(other, other, *[awaiting(n) for n in range(14)])) is None
    one = readings(other, *[awaiting(n) for n in range(14)])
    # An acknowledgement may just have come; but with none outstanding it was not slow.
    assert (kind(one) is None) is (not other.outstanding)


def test_an_acknowledgement_may_take_some_round_trips() -> None:
    assert kind(readings(*[awaiting(1, round_trip_seconds=0.3)] * 6)) is None
    assert kind(readings(*[awaiting(1, round_trip_seconds=0.3)] * 8)) is not None


def test_acknowledgements_may_be_lost_where_bytes_are() -> None:
    lost = attrs.evolve(IDLE, retransmissions=9, sent_bytes=20_000, resent_bytes=5000)
    found = readings(awaiting(1), *[Symptoms(lost, outstanding=32, position=1)] * 14)
    assert kind(found) is None


# -- what is not known ----------------------------------------------------------------------------


def test_without_counters_or_time_nothing_is_said() -> None:
    assert judge([]) is None
    assert kind(readings(*[Symptoms(None, outstanding=9, position=1)] * 15)) is None
    shut = over(5, busy_seconds=1.0, shut_seconds=1.0)
    assert kind(shut[:1]) is None
    assert kind([shut[0], attrs.evolve(shut[1], at=shut[0].at + OBSERVED_SECONDS / 2)]) is None
    assert kind([attrs.evolve(shut[0], symptoms=Symptoms(None)), *shut[1:]]) is None


def test_a_long_name_is_cut() -> None:
    cause = judge(over(5, busy_seconds=1.0, shut_seconds=1.0))
    assert cause is not None
    name = "x" * 1000
    assert cause.about(f"mqtt:1883/-/{name}").startswith(f"{name[: NAME_CHARACTERS - 1]}\u2026's ")
    assert cause.about("box").startswith("box's program")
    assert cause.about("mqtt:1883/-/").startswith("mqtt:1883/-/'s program")


GROWTH = st.fixed_dictionaries(
    {
        "busy": st.floats(0, 1),
        "shut": st.floats(0, 1),
        "sent": st.integers(0, 10**7),
        "resent": st.integers(0, 10**7),
        "retransmissions": st.integers(0, 100),
        "acked": st.integers(0, 10**7),
        "unsent": st.integers(0, 10**7),
        "in_flight": st.integers(0, 100),
        "outstanding": st.integers(0, 40),
        "position": st.integers(0, 1),
    }
)


@given(st.lists(GROWTH, min_size=1, max_size=25))
def test_whatever_is_read_a_cause_has_its_evidence(steps: list[dict[str, Any]]) -> None:
    """Of any readings at all: no cause without what its sentence says."""
    tcp = IDLE
    made: list[Symptoms] = []
    for step in steps:
        shut = min(step["shut"], step["busy"])
        tcp = attrs.evolve(
            tcp,
            busy_seconds=tcp.busy_seconds + step["busy"] / 2,
            shut_seconds=tcp.shut_seconds + shut / 2,
            sent_bytes=tcp.sent_bytes + max(step["sent"], step["resent"]),
            resent_bytes=tcp.resent_bytes + step["resent"],
            retransmissions=tcp.retransmissions + step["retransmissions"],
            acked_bytes=tcp.acked_bytes + step["acked"],
            unsent_bytes=step["unsent"],
            in_flight=step["in_flight"],
        )
        made.append(Symptoms(tcp, outstanding=step["outstanding"], position=step["position"]))
    found = readings(*made)
    cause = judge(found)
    if cause is None:
        return
    first, last = made[0].tcp, made[-1].tcp
    assert first is not None
    assert last is not None
    seconds = found[-1].at - found[0].at
    resent = last.resent_bytes - first.resent_bytes
    acked = last.acked_bytes - first.acked_bytes
    times = last.retransmissions - first.retransmissions
    shut = (last.shut_seconds - first.shut_seconds) / seconds
    match cause.kind:
        case CauseKind.DOES_NOT_READ:
            assert shut >= 0.5
            lately = [s.tcp for r, s in zip(found, made, strict=True) if r.at >= found[-1].at - 1]
            assert lately[0] is not None
            assert last.acked_bytes - lately[0].acked_bytes < last.segment_bytes
        case CauseKind.READS_SLOWLY:
            assert shut >= 0.5
            assert acked
        case CauseKind.LOSS:
            assert times >= RETRANSMISSIONS_MIN
            assert acked
            assert resent >= LOSS * (last.sent_bytes - first.sent_bytes)
        case CauseKind.NO_ANSWER:
            assert not acked
            assert times >= RETRANSMISSIONS_MIN
        case CauseKind.SLOW_NETWORK:
            assert acked
            assert all(each.tcp is not None and each.tcp.unsent_bytes for each in made)
        case CauseKind.DOES_NOT_ACKNOWLEDGE:
            assert made[-1].awaits_acknowledgement
            assert made[-1].position == made[-2].position
        case CauseKind.ACKNOWLEDGES_SLOWLY:
            assert all(each.outstanding for each in made)
            assert sum(each.awaits_acknowledgement for each in made) >= 0.9 * len(made)


# -- who is observed ------------------------------------------------------------------------------


class Sender(Box):
    """A box with a connection, whose program does not read."""

    __slots__ = ("read", "tcp")

    def __init__(self, ledger: Ledger, name: str, **options: Any) -> None:
        super().__init__(ledger, name, **options)
        self.read = 0
        self.tcp: TcpCounters | None = None

    def symptoms(self) -> Symptoms | None:
        self.read += 1
        now = self.ledger.clock()
        shut = attrs.evolve(IDLE, busy_seconds=now, shut_seconds=0.98 * now)
        return Symptoms(shut if self.tcp is None else self.tcp, unsent=True)


@pytest.fixture
def timed(autojump_clock: MockClock) -> Iterator[Ledger]:
    ledger = Ledger(clock=LoopClock())
    yield ledger
    balance(ledger)


async def test_only_holders_that_readers_wait_for_are_read(
    autojump_clock: MockClock, timed: Ledger
) -> None:
    pub = timed.open("pub", limit=Limit(items=2))
    other = timed.open("other", limit=Limit(items=100))
    archive, mirror = Sender(timed, "mqtt/archive"), Sender(timed, "mqtt/mirror")
    publish(pub, [archive], items=1)
    publish(other, [mirror], items=9)
    async with open_nursery() as nursery:
        nursery.start_soon(watch_patience, timed)
        await anyio.sleep(3)
        assert (archive.read, mirror.read, len(timed.causes)) == (0, 0, 0)
        publish(pub, [archive], items=2)
        nursery.start_soon(pub.ensure_clear_funds)
        await anyio.sleep(3.4)
        assert archive.read >= 5
        assert mirror.read == 0
        assert timed.causes.sentence(mirror) is None
        why = timed.causes.sentence(archive)
        assert why == "archive's program does not read (window shut 98 % of 3 s)"
        archive.work(3)
        await anyio.sleep((MISSED_MAX + 2) * 0.5)
        read = archive.read
        assert len(timed.causes) == 0
        await anyio.sleep(3)
        assert archive.read == read
        assert timed.causes.sentence(archive) is None
        nursery.cancel_scope.cancel()


async def test_short_waits_cost_nothing(autojump_clock: MockClock, timed: Ledger) -> None:
    pub = timed.open("pub", limit=Limit(items=2))
    archive = Sender(timed, "archive")

    async def work() -> None:
        while True:
            await anyio.sleep(0.04)
            archive.work(archive.items)

    async with open_nursery() as nursery:
        nursery.start_soon(watch_patience, timed)
        nursery.start_soon(work)
        while anyio.current_time() < 20:
            await pub.ensure_clear_funds()
            publish(pub, [archive], items=3)
        nursery.cancel_scope.cancel()
    assert pub.statistics().waited_seconds > 15
    assert archive.read == 0


@pytest.mark.parametrize("last", [{}, {"busy_seconds": 0.0}, {"sent_bytes": 10}])
async def test_another_connection_begins_anew(
    autojump_clock: MockClock, timed: Ledger, last: dict[str, Any]
) -> None:
    pub = timed.open("pub", limit=Limit(items=2))
    archive = Sender(timed, "archive")
    publish(pub, [archive], items=3)
    async with open_nursery() as nursery:
        nursery.start_soon(watch_patience, timed)
        nursery.start_soon(pub.ensure_clear_funds)
        await anyio.sleep(5)
        symptoms = archive.symptoms()
        assert symptoms is not None
        assert symptoms.tcp is not None
        archive.tcp = attrs.evolve(symptoms.tcp, **last)
        await anyio.sleep(0.6)
        assert (timed.causes.of(archive) is None) is bool(last)
        nursery.cancel_scope.cancel()


async def test_the_latest_seconds_count(autojump_clock: MockClock, timed: Ledger) -> None:
    pub = timed.open("pub", limit=Limit(items=2))
    archive = Sender(timed, "archive", patience=math.inf)
    publish(pub, [archive], items=3)
    async with open_nursery() as nursery:
        nursery.start_soon(watch_patience, timed)
        nursery.start_soon(pub.ensure_clear_funds)
        await anyio.sleep(300)
        why = timed.causes.sentence(archive)
        assert why == f"archive's program does not read (window shut 98 % of {WINDOW_SECONDS:g} s)"
        nursery.cancel_scope.cancel()


async def test_a_bounded_number_is_observed_the_stillest_first(
    autojump_clock: MockClock, timed: Ledger
) -> None:
    pub = timed.open("pub", limit=Limit(items=2))
    boxes = [Sender(timed, f"s{number}", patience=math.inf) for number in range(HOLDERS_MAX + 5)]
    for box in reversed(boxes):
        publish(pub, [box], items=1)
        await anyio.sleep(0.01)
    async with open_nursery() as nursery:
        nursery.start_soon(watch_patience, timed)
        nursery.start_soon(pub.ensure_clear_funds)
        await anyio.sleep(2)
        assert len(timed.causes) == HOLDERS_MAX
        assert [timed.causes.of(box) is None for box in boxes[:6]] == [True] * 5 + [False]
        nursery.cancel_scope.cancel()


async def test_a_line_about_a_slow_wait_has_the_cause(
    autojump_clock: MockClock, timed: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "clearfunds.accounts")
    pub = timed.open("pub", limit=Limit(items=2))
    archive, box = Sender(timed, "mqtt/archive"), Box(timed, "box")
    publish(pub, [archive], items=9)
    publish(pub, [box], items=1)
    async with open_nursery() as nursery:
        nursery.start_soon(watch_patience, timed)
        nursery.start_soon(partial(watch_slow_waits, timed, seconds=2.7))
        nursery.start_soon(pub.ensure_clear_funds)
        await anyio.sleep(3)
        nursery.cancel_scope.cancel()
    (line,) = [each for each in caplog.records if getattr(each, "event", None) == "slow_wait"]
    why = "archive's program does not read (window shut 98 % of 2 s)"
    assert line.getMessage().endswith(
        f"held by box mqtt/archive (9 items, 0 bytes) and box (1 items, 0 bytes); {why}"
    )
    assert [each["why"] for each in vars(line)["holders"]] == [why, None]


def ends_nothing(whose: object, doing: str, exc: Exception) -> bool:
    return False


class Faulty(Box):
    def symptoms(self) -> Symptoms | None:
        raise RuntimeError("cannot tell")


async def test_a_holder_that_cannot_tell_does_not_hold_up_the_others(
    autojump_clock: MockClock, timed: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    pub = timed.open("pub", limit=Limit(items=2))
    timed.faults.ends.append(ends_nothing)
    holders = [Faulty(timed, "faulty"), Box(timed, "box"), Sender(timed, "archive", patience=3.5)]
    publish(pub, holders, items=3)
    async with open_nursery() as nursery:
        nursery.start_soon(watch_patience, timed)
        nursery.start_soon(pub.ensure_clear_funds)
        await anyio.sleep(2)
        assert [timed.causes.of(each) is None for each in holders] == [True, True, False]
        assert "looking why it is slow" in caplog.text
        await anyio.sleep(2)
        nursery.cancel_scope.cancel()
    (line,) = [each for each in caplog.records if getattr(each, "holder", None) == "archive"]
    assert line.getMessage() == (
        "box archive made no progress for 3.5 s (patience 3.5 s) and holds 3 items, 0 bytes that "
        "pub waits for: archive's program does not read (window shut 98 % of 3 s); giving it up, "
        "its debt is written off"
    )
    fields = vars(line)
    assert fields["cause"] == "does_not_read"
    assert fields["why"] == "archive's program does not read (window shut 98 % of 3 s)"
    (incident,) = [each for each in timed.incidents.latest() if each.holder == "archive"]
    assert incident.given_up is not None
    assert incident.given_up.why == fields["why"]
    await wait_all_tasks_blocked()
