"""Tenants on the pages: what each owes, of what it may, and who of it waits."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import trio

from clearfunds.access._account_tree import AccountTree
from clearfunds.access._tenants import Peer, Tenant
from clearfunds.accounts import Ledger, Limit, Outcome
from clearfunds.pages import Pages
from clearfunds.pages._cooperative import Pace
from clearfunds.pages._survey import LEVELS_MAX, survey
from clearfunds.testing import Box
from tests.pages.test_pages import fetch, samples, send

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

ENTRIES = (
    Tenant(name="press", user=("press",), weight=3.0, items=50, rate=9.0),
    Tenant(name="shop", user=("shop-*",), users=True, bytes=10_000),
    Tenant(name="idle", user=("idle",)),
)


class Scene:
    """Two tenants that owe together more than the server may; a reader of one waits."""

    def __init__(self) -> None:
        self.now = 100.0
        self.ledger = Ledger(clock=lambda: self.now)
        self.server = self.ledger.open("server", limit=Limit(items=40, bytes=None), shared=True)
        self.tree = AccountTree(self.server, ENTRIES)
        self.box = Box(self.ledger, "box")
        self.press = self.open("press", "a")
        self.shops = [self.open("shop-1", "b"), self.open("shop-1", "c"), self.open("shop-2", "d")]
        send(self.press, self.box, 12, 100)
        for shop in self.shops:
            send(shop, self.box, 10, 100)
        self.pages = Pages(self.ledger, limits={"server": self.server})

    def open(self, user: str, client: str) -> Any:
        peer = Peer("mqtt:1", user, client)
        return self.tree.open(peer, self.tree.of(peer).tenant, Limit())


@pytest.fixture
async def scene() -> AsyncGenerator[Scene]:
    scene = Scene()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(scene.shops[0].ensure_clear_funds)
        await trio.testing.wait_all_tasks_blocked()
        scene.now = 102.0
        yield scene
        scene.box.settle_all(Outcome.DELIVERED)


async def test_ledger_json_tells_of_tenants(scene: Scene) -> None:
    _, text = await fetch(scene.pages, "/ledger.json")
    press, shop, idle = json.loads(text)["tenants"]
    assert press == {
        "name": "press",
        "account": "tenant/press",
        "weight": 3.0,
        "state": "owing",
        "debt": {"items": 12, "bytes": 100},
        "limit": {"items": 50, "bytes": None},
        "share": {"items": press["share"]["items"], "bytes": None},
        "rate": {"items": 9.0, "bytes": None},
        "users": 0,
        "accounts": 1,
        "waiting_readers": 0,
        "waiting_seconds": 0.0,
        "waited_seconds": 0.0,
    }
    # Three quarters of 40 by weight.
    assert press["share"]["items"] >= 30
    assert shop["state"] == "throttled"
    assert shop["debt"] == {"items": 30, "bytes": 300}
    assert (shop["users"], shop["accounts"], shop["waiting_readers"]) == (2, 3, 1)
    assert shop["waiting_seconds"] == shop["waited_seconds"] == 2.0
    assert (idle["accounts"], idle["debt"]["items"]) == (0, 0)
    accounts = {row["name"]: row for row in json.loads(text)["accounts"]}
    assert accounts["tenant/shop/shop-1"]["parent"] == "tenant/shop"
    assert accounts["tenant/press"]["weight"] == 3.0


async def test_metrics_tell_of_tenants(scene: Scene) -> None:
    found = await samples(scene.pages, "/metrics/detailed?family=tenant")
    assert found["tenant_debt_items", "press"] == 12
    assert found["tenant_debt_bytes", "shop"] == 300
    assert found["tenant_debt_limit_items", "press"] == 50
    assert ("tenant_debt_limit_items", "shop") not in found
    assert found["tenant_debt_limit_bytes", "shop"] == 10_000
    assert found["tenant_weight", "press"] == 3
    assert found["tenant_share_items", "press"] >= 30
    assert found["tenant_user_accounts", "shop"] == 2
    assert found["tenant_accounts", "shop"] == 3
    assert found["tenant_waiting_readers", "shop"] == 1
    assert found["tenant_waiting_seconds", "shop"] == 2.0
    assert found["tenant_accounts", "idle"] == 0
    only = await samples(scene.pages, "/metrics/detailed?family=tenant&account=tenant/pr*")
    assert {key[1] for key in only if key[0] == "tenant_weight"} == {"press"}
    cut = await samples(scene.pages, "/metrics/detailed?family=tenant&limit=10")
    assert cut["truncated_series",] > 10


async def test_a_relay_without_tenants_has_none() -> None:
    ledger = Ledger()
    ledger.open("a", parent=ledger.open("server", shared=True))
    pages = Pages(ledger)
    assert json.loads((await fetch(pages, "/ledger.json"))[1])["tenants"] == []
    assert set(await samples(pages, "/metrics/detailed?family=tenant")) == {("truncated_series",)}


async def test_on_the_live_page_they_are_levels_the_tightest_first(scene: Scene) -> None:
    seen = await survey(scene.ledger, Pace())
    assert [row["name"] for row in seen["levels"]] == [
        "server", "tenant/press", "tenant/shop", "tenant/idle",
    ]  # fmt: skip
    server, press, shop, _ = seen["levels"]
    assert (server["weight"], press["weight"]) == (1.0, 3.0)
    assert press["share_items"] is not None
    assert press["share_items"] >= 30
    assert server["share_items"] is None
    assert (shop["waiting"], shop["waiting_seconds"]) == (1, 2.0)
    # They owe for others, as the two users of the shop's do; none of them causes debt itself.
    assert seen["levels_owing"] == 5
    assert {row["name"] for row in seen["accounts"]} == {
        "mqtt:1/press/a", "mqtt:1/shop-1/b", "mqtt:1/shop-1/c", "mqtt:1/shop-2/d",
    }  # fmt: skip


async def test_levels_are_as_many_as_a_screen_has_room_for() -> None:
    ledger = Ledger()
    entries = [Tenant(name=f"t{number}", user=(f"{number}",)) for number in range(20)]
    AccountTree(ledger.open("server", shared=True), entries)
    seen = await survey(ledger, Pace())
    assert len(seen["levels"]) == LEVELS_MAX
    assert seen["more"]["levels"] == 21 - LEVELS_MAX
    assert seen["levels"][0]["name"] == "server"
    assert not seen["accounts"]
