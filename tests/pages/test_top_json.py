"""`/ledger.json?top=N`: the first of everybody, as many as are wanted, and how many more."""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from clearfunds.accounts import NO_LIMIT, Ledger, Limit
from clearfunds.accounts._line import line_of
from clearfunds.accounts._waiters import REASONS
from clearfunds.pages import Pages, Request
from clearfunds.testing import Box


class Scene:
    """Thirty publishers; the more one owes, the less it has waited."""

    def __init__(self) -> None:
        self.now = 100.0
        self.ledger = Ledger(clock=lambda: self.now)
        self.server = self.ledger.open("server", limit=NO_LIMIT)
        self.pages = Pages(self.ledger)
        # Only the last one's holder stands still for long; it is the one that holds least.
        self.boxes = [Box(self.ledger, f"b{n}") for n in range(30)]
        self.accounts = [
            self.ledger.open(f"p{n}", limit=Limit(items=0), parent=self.server) for n in range(30)
        ]
        for n, (account, box) in enumerate(zip(self.accounts, self.boxes, strict=True)):
            with account.turn(nbytes=0) as turn:
                turn.send(box, b"", items=30 - n, nbytes=0)

    async def ask(self, query: str) -> tuple[int, Any]:
        request = Request.parse("GET", f"/ledger.json{query}")
        response = await self.pages.handlers()["/ledger.json"](request)
        if isinstance(response.body, bytes):
            return response.status, response.body.decode()
        try:
            text = b"".join([piece async for piece in response.body])
        finally:
            await response.body.aclose()  # type: ignore[attr-defined]
        return response.status, json.loads(text)


def names(rows: list[dict[str, Any]]) -> list[str]:
    return [row["name"] for row in rows]


async def test_as_many_as_asked_for_and_how_many_more() -> None:
    scene = Scene()
    status, page = await scene.ask("?top=3")
    assert status == 200
    assert names(page["accounts"]) == ["p0", "p1", "p2"]
    assert names(page["holders"]) == ["b0", "b1", "b2"]
    assert page["more"]["accounts"] == page["more"]["holders"] == 27
    assert page["totals"]["debt_items"] == sum(range(31))
    assert page["waits"] == page["rings"] == []
    assert page["busy_ms"] >= 0
    _, all_of_them = await scene.ask("?top=100")
    assert len(all_of_them["accounts"]) == len(all_of_them["holders"]) == 30
    assert all_of_them["more"]["accounts"] == all_of_them["more"]["holders"] == 0
    # Without it, it is what it has ever been.
    _, whole = await scene.ask("")
    assert "matrix" in whole
    assert len(whole["accounts"]) == 31


async def test_who_comes_first_is_who_is_asked_for() -> None:
    scene = Scene()
    async with trio.open_nursery() as nursery:
        for account in reversed(scene.accounts[20:]):
            nursery.start_soon(account.ensure_clear_funds)
            await wait_all_tasks_blocked()
            scene.now += 1.0
        # Who has waited, however long, comes after those who wait.
        line_of(scene.accounts[19]).waited = [1000.0, *[0.0] * (len(REASONS) - 1)]
        scene.boxes[28].settled()
        answers = {
            by: (await scene.ask(f"?top=12&by={by}"))[1] for by in ("debt", "waited", "held")
        }
        (debt, waited, held) = answers.values()
        nursery.cancel_scope.cancel()
    assert names(debt["accounts"]) == names(held["accounts"]) == [f"p{n}" for n in range(12)]
    assert names(waited["accounts"]) == [f"p{n}" for n in (*range(29, 18, -1), 0)]
    first, *_, last, _ = waited["accounts"]
    assert (first["waiting"], first["waiting_seconds"], first["waited_seconds"]) == (1, 10.0, 10.0)
    assert (last["waiting"], last["waiting_seconds"], last["waited_seconds"]) == (0, 0.0, 1000.0)
    # Those on whom somebody waits in vain, then one that makes progress, then the others; and
    # those that hold most.
    in_vain = [f"b{n}" for n in (*range(20, 28), 29)]
    assert names(debt["holders"]) == names(waited["holders"]) == [*in_vain, "b28", "b0", "b1"]
    assert names(held["holders"]) == [f"b{n}" for n in range(12)]


@pytest.mark.parametrize("top", ["0", "101", "-1", "x", "", "1.5", "9" * 4000, "1&top=2", "\u0663"])
async def test_a_number_that_is_none_is_refused_in_a_sentence(top: str) -> None:
    status, text = await Scene().ask(f"?top={top}")
    assert (status, text) == (400, "top is the number of rows: one number from 1 to 100.\n")


@pytest.mark.parametrize("by", ["", "x", "debt&by=held"])
async def test_an_order_that_is_none_is_refused_in_a_sentence(by: str) -> None:
    status, text = await Scene().ask(f"?top=5&by={by}")
    assert (status, text) == (400, "by is the order of rows: one of debt, waited, held, waiting.\n")


async def test_by_a_part_of_the_name() -> None:
    scene = Scene()
    _, page = await scene.ask("?top=3&name=1")
    assert names(page["accounts"]) == ["p1", "p10", "p11"]
    assert names(page["holders"]) == ["b1", "b10", "b11"]
    # Of those of that name; totals are those of all.
    assert page["more"]["accounts"] == page["more"]["holders"] == 9
    assert page["totals"]["debt_items"] == sum(range(31))
    _, page = await scene.ask("?top=9&name=P?")
    assert names(page["accounts"]) == [f"p{n}" for n in range(9)]
    assert page["more"]["accounts"] == 21
    assert page["holders"] == []
    _, page = await scene.ask("?top=9&name=P2[0-2]")
    assert names(page["accounts"]) == ["p20", "p21", "p22"]
    status, sentence = await scene.ask(f"?top=9&name={'x' * 300}")
    assert (status, sentence) == (400, "The pattern has 302 characters; at most 200 are allowed.\n")
