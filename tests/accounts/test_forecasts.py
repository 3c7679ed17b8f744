"""Who will have to wait is named before, from the pace at which debt grows."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

import anyio
import pytest
from trio.testing import MockClock

from clearfunds.accounts import (
    Account,
    Forecast,
    Ledger,
    Limit,
    StuckPolicy,
    watch_forecasts,
)
from clearfunds.accounts.watch._forecasts import (
    HOLDERS_MAX,
    HORIZON_SECONDS,
    NAMED_MAX,
    PATIENCE_MIN,
    STILL_SECONDS,
)
from tests.accounts.conftest import Box, balance, publish
from tests.loops import LoopClock, open_nursery

LOGGER = "clearfunds.accounts"


@pytest.fixture
def timed(autojump_clock: MockClock, caplog: pytest.LogCaptureFixture) -> Iterator[Ledger]:
    caplog.set_level(logging.INFO, LOGGER)
    ledger = Ledger(clock=LoopClock())
    yield ledger
    balance(ledger)


async def send(account: Account, boxes: Sequence[Box], a_second: float, nbytes: int = 0) -> None:
    """Send at a pace, until cancelled or until the account has no funds.

    Never just when it is looked: which of the two comes first is left to chance.
    """
    await anyio.sleep(0.03)
    while True:
        await account.ensure_clear_funds()
        publish(account, list(boxes), nbytes=nbytes)
        await anyio.sleep(1 / a_second)


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records]


@pytest.mark.parametrize(
    ("limit", "nbytes"),
    [(Limit(items=300), 0), (Limit(items=None, bytes=3000), 10)],
    ids=["items", "bytes"],
)
async def test_a_holder_that_takes_nothing_is_named_in_time(
    autojump_clock: MockClock,
    timed: Ledger,
    caplog: pytest.LogCaptureFixture,
    limit: Limit,
    nbytes: int,
) -> None:
    sensor = timed.open("mqtt:1883/-/sensor-0133", limit=limit)
    viewer = Box(timed, "mqtt:1883/-/viewer-0333", patience=60.0)
    async with open_nursery() as nursery:
        nursery.start_soon(watch_forecasts, timed)
        nursery.start_soon(send, sensor, [viewer], 5.0, nbytes)
        while not timed.forecasts.latest:  # noqa: ASYNC110
            await anyio.sleep(0.5)
        (forecast,) = timed.forecasts.latest
        began = anyio.current_time()
        assert forecast.idle_seconds >= STILL_SECONDS
        # It says when, to within a second.
        while not sensor.waiting:  # noqa: ASYNC110
            await anyio.sleep(0.1)
        assert anyio.current_time() - began == pytest.approx(forecast.seconds, abs=1.0)
        await anyio.sleep(10)
        # Who waits already is no forecast.
        assert timed.forecasts.latest == ()
        nursery.cancel_scope.cancel()
    (record,) = caplog.records
    assert record.getMessage() == forecast.sentence()
    fields = vars(record)
    assert fields["event"] == "early_warning"
    assert (fields["holder"], fields["account"]) == (viewer.name, sensor.name)
    assert fields["kind"] == "box"
    assert fields["seconds"] == pytest.approx(forecast.seconds, abs=0.001)


def test_the_sentence() -> None:
    forecast = Forecast("mqtt:1883/-/viewer-0333", "outlet", 25.2, "mqtt/sensor-0133", False, 31.0)
    assert forecast.sentence() == (
        "viewer-0333 has taken nothing for 25 s; sensor-0133 will wait in about 30 s"
    )
    assert Forecast("b", "box", 5.0, "server", True, 3.2).sentence() == (
        "b has taken nothing for 5 s; everybody at server will wait in about 3 s"
    )
    assert Forecast("b", "box", 5.0, "a", False, 0.0).sentence().endswith("in about 1 s")


async def test_it_is_named_again_when_it_has_taken_some_meanwhile(
    autojump_clock: MockClock, timed: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    sensor = timed.open("sensor", limit=Limit(items=200))
    viewer = Box(timed, "viewer")
    async with open_nursery() as nursery:
        nursery.start_soon(watch_forecasts, timed)
        nursery.start_soon(send, sensor, [viewer], 2.0)
        await anyio.sleep(60)
        assert len(lines(caplog)) == 1
        viewer.work(viewer.items)
        await anyio.sleep(3)
        assert timed.forecasts.latest == ()
        await anyio.sleep(60)
        assert len(lines(caplog)) == 2
        nursery.cancel_scope.cancel()
    assert timed.forecasts.latest == ()


async def test_a_holder_that_takes_something_is_not_named(
    autojump_clock: MockClock, timed: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    """Nor one that is far from anybody's limit, that does not grow, or that is soon relieved."""
    sensor = timed.open("sensor", limit=Limit(items=200))
    calm = timed.open("calm", limit=Limit(items=100_000))
    quiet = timed.open("quiet", limit=Limit(items=60))
    short = timed.open("short", limit=Limit(items=200))

    class Relieved(Box):
        policies = frozenset(StuckPolicy)

    slow, far, full = Box(timed, "slow"), Box(timed, "far"), Box(timed, "full")
    soon = Relieved(timed, "soon", policy=StuckPolicy.DROP_OLDEST, patience=PATIENCE_MIN - 0.5)
    publish(quiet, [full], items=50)
    async with open_nursery() as nursery:
        nursery.start_soon(watch_forecasts, timed)
        nursery.start_soon(send, sensor, [slow], 3.0)
        nursery.start_soon(send, calm, [far], 3.0)
        nursery.start_soon(send, short, [soon], 3.0)
        for _ in range(20):
            await anyio.sleep(3)
            slow.work(1)
        nursery.cancel_scope.cancel()
    assert lines(caplog) == []


async def test_a_wait_beyond_the_horizon_is_no_forecast(
    autojump_clock: MockClock, timed: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    sensor = timed.open("sensor", limit=Limit(items=200))
    viewer = Box(timed, "viewer")
    async with open_nursery() as nursery:
        nursery.start_soon(watch_forecasts, timed)
        nursery.start_soon(send, sensor, [viewer], 2.0)
        await anyio.sleep(100 - HORIZON_SECONDS - 5)
        assert lines(caplog) == []
        await anyio.sleep(15)
        assert len(lines(caplog)) == 1
        nursery.cancel_scope.cancel()


async def test_all_below_an_account_will_wait(autojump_clock: MockClock, timed: Ledger) -> None:
    server = timed.open("server", limit=Limit(items=300))
    viewer = Box(timed, "viewer")
    async with open_nursery() as nursery:
        nursery.start_soon(watch_forecasts, timed)
        for n in range(10):
            sensor = timed.open(f"sensor-{n}", parent=server)
            nursery.start_soon(send, sensor, [viewer], 1.0)
        await anyio.sleep(15)
        (forecast,) = timed.forecasts.latest
        assert (forecast.account, forecast.shared) == ("server", True)
        nursery.cancel_scope.cancel()


async def test_numbers_are_bounded(
    autojump_clock: MockClock, timed: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    sensor = timed.open("sensor", limit=Limit(items=3000))
    viewers = [Box(timed, f"v{n}") for n in range(HOLDERS_MAX + 10)]
    async with open_nursery() as nursery:
        nursery.start_soon(watch_forecasts, timed)
        nursery.start_soon(send, sensor, viewers, 2.0)
        await anyio.sleep(10)
        assert len(timed.forecasts.latest) == HOLDERS_MAX
        # What they hold grows together: each alone would take far longer.
        assert timed.forecasts.latest[0].seconds < 3000 / (2 * HOLDERS_MAX)
        nursery.cancel_scope.cancel()
    assert len(lines(caplog)) == NAMED_MAX
