"""What the pages show of limits that are moved."""

from __future__ import annotations

import json
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from clearfunds.accounts import LIMIT_STATES, LatencyLimit, Ledger, Limit
from clearfunds.pages import Pages, Request


async def shown(ledger: Ledger, target: str) -> str:
    request = Request.parse("GET", target)
    response = await Pages(ledger).handlers()[request.path](request)
    body = response.body
    if not isinstance(body, bytes):
        body = b"".join([piece async for piece in body])
    return body.decode()


async def metrics(ledger: Ledger, target: str) -> dict[tuple[str, ...], float]:
    """Return what is said of moved limits: by name and labels, those that are not 0."""
    return {
        (sample.name.partition("moving_limit_")[2], *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(await shown(ledger, target))
        for sample in family.samples
        if "moving_limit" in sample.name and sample.value
    }


async def test_they_say_what_a_moved_limit_does_and_how_old_its_debt_is() -> None:
    now = 0.0
    ledger = Ledger(clock=lambda: now)
    ledger.open("fixed").borrow(1_000_000, 1)
    target = "/metrics/detailed?family=account"
    assert await metrics(ledger, "/metrics") == {}
    assert await metrics(ledger, target) == {}
    server = ledger.open("server")
    for name, seconds in (("quick", 0.5), ("slow", 2.0)):
        account = ledger.open(name, limit=Limit(items=500), parent=server)
        account.limit_by(LatencyLimit(seconds, ceiling=account.limit))
    assert await metrics(ledger, "/metrics") == {
        ("accounts", "probing"): 2,
        ("target_seconds",): 0.5,
    }
    now = 5.0
    account.borrow(7, 700)
    now = 8.0
    # For so long nothing has been cleared.
    assert await metrics(ledger, "/metrics") == {
        ("accounts", "probing"): 1,
        ("accounts", "idle"): 1,
        ("age_seconds",): 8.0,
        ("target_seconds",): 0.5,
    }
    assert await metrics(ledger, target) == {
        ("target_seconds", "quick", "server", "idle"): 0.5,
        ("age_seconds", "slow", "server", "probing"): 8.0,
        ("target_seconds", "slow", "server", "probing"): 2.0,
    }
    accounts: list[dict[str, Any]] = json.loads(await shown(ledger, "/ledger.json"))["accounts"]
    moving = {row["name"]: row["moving"] for row in accounts}
    assert moving["fixed"] is None
    assert moving["slow"] == {
        "state": "probing",
        "target_seconds": 2.0,
        "age_seconds": 8.0,
        "items_per_second": 0.0,
        "bytes_per_second": 0.0,
    }


async def test_there_are_as_many_series_however_many_limits_are_moved() -> None:
    ledger = Ledger()

    async def series() -> int:
        text = await shown(ledger, "/metrics")
        return sum(line.startswith("clearfunds_moving_limit") for line in text.splitlines())

    ledger.open("first").limit_by(LatencyLimit())
    few = await series()
    for number in range(200):
        ledger.open(f"account {number}").limit_by(LatencyLimit())
    assert await series() == few == len(LIMIT_STATES) + 2
