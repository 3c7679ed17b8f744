"""JSON that does not break off, whatever number gets into it."""

from __future__ import annotations

import json
import math
from typing import Any

import attrs
import pytest

from clearfunds.accounts import Account, AccountStatistics, LatencyLimit, Ledger, Limit
from clearfunds.pages import Pages, Request
from clearfunds.pages._json import compact, readable


def test_what_is_not_finite_is_null_and_the_rest_is_as_it_is() -> None:
    value: dict[str, Any] = {
        "a": [1.5, math.inf, (-math.inf, math.nan)],
        "b": {"c": math.nan, "d": "\ud800é", "e": None, "f": True},
        "g": 2**80,
    }
    for encode in (compact, readable):
        assert json.loads(encode(value)) == {
            "a": [1.5, None, [None, None]],
            "b": {"c": None, "d": "\ud800é", "e": None, "f": True},
            "g": 2**80,
        }


@pytest.mark.parametrize("target", ["/ledger.json", "/live/about?name=bad"])
async def test_a_number_of_ours_that_is_none_costs_no_page(
    target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = Ledger()
    account = ledger.open("bad", limit=Limit(items=500))
    account.limit_by(LatencyLimit(0.5, ceiling=account.limit))
    as_it_is = Account.statistics

    def statistics(self: Account) -> AccountStatistics:
        seen = as_it_is(self)
        assert seen.moving is not None
        return attrs.evolve(seen, moving=attrs.evolve(seen.moving, age_seconds=math.inf))

    monkeypatch.setattr(Account, "statistics", statistics)
    request = Request.parse("GET", target)
    response = await Pages(ledger).handlers()[request.path](request)
    body = response.body
    if not isinstance(body, bytes):
        body = b"".join([piece async for piece in body])
    page = json.loads(body)
    row = page["account"] if "account" in page else page["accounts"][0]
    assert row["name"] == "bad"
    assert row["moving"]["age_seconds"] is None
