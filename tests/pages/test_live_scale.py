"""The live page with no account, with a thousand, and its search, legend and durations."""

from __future__ import annotations

import re
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import trio

from clearfunds.accounts import Ledger, Limit
from clearfunds.accounts.watch._durations import duration
from clearfunds.pages import Pages, serve_http
from clearfunds.testing import Box
from tests.pages.chromium import CHROMIUM, LIVE, WHY_NOT, browsing, shows, text_of
from tests.transports.peers import SECONDS

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from clearfunds.accounts import Account
    from tests.pages.chromium import Tab

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason=WHY_NOT)

GLOSSARY = Path(__file__).parents[2] / "docs" / "glossary.md"

NAMES = """(selector) =>
  [...document.querySelectorAll(selector)].map((each) => each.querySelector(".name").title)"""


@asynccontextmanager
async def page_of(ledger: Ledger, *waiting: Account, width: int = 1200) -> AsyncGenerator[Tab]:
    """Open the live page of a ledger; the readers of some accounts wait, the first longest."""
    async with browsing() as browser, trio.open_nursery() as nursery:
        for account in waiting:
            nursery.start_soon(account.ensure_clear_funds)
            await trio.testing.wait_all_tasks_blocked()
        urls: list[str] = await nursery.start(partial(serve_http, Pages(ledger).handlers()))
        with trio.fail_after(2 * SECONDS):
            tab = await browser.open(urls[0] + "/", width=width)
            await tab.until(LIVE)
            yield tab
        assert browser.complaints == []
        nursery.cancel_scope.cancel()


async def names_in(tab: Tab, selector: str) -> list[str]:
    """The names in these rows, whole."""
    found: list[str] = await tab.evaluate(f"({NAMES})({selector!r})")
    return found


def send(account: Account, box: Box, items: int) -> None:
    with account.turn(nbytes=0) as turn:
        turn.send(box, b"", items=items, nbytes=10)


@pytest.fixture
def crowd() -> tuple[Ledger, list[Account], list[Box]]:
    """A thousand accounts, of which three wait for a box that has less than all others."""
    ledger = Ledger()
    server = ledger.open("server", limit=Limit(items=None))
    limit = Limit(items=200, bytes=None)
    accounts = [ledger.open(f"mqtt/-/pub-{n}", limit=limit, parent=server) for n in range(1000)]
    boxes = [Box(ledger, f"mqtt/-/sub-{n}") for n in range(50)]
    for number, account in enumerate(accounts[3:]):
        send(account, boxes[number % 49], 100 + number % 7)
    small = Limit(items=1, bytes=None)
    for account in accounts[:3]:
        account.limit = small
        send(account, boxes[49], 2)
    return ledger, accounts, boxes


async def test_the_culprits_and_those_that_wait_longest_come_first(
    crowd: tuple[Ledger, list[Account], list[Box]],
) -> None:
    ledger, accounts, boxes = crowd
    async with page_of(ledger, accounts[1], accounts[2], accounts[0]) as tab:
        # Although everybody else owes and holds fifty times as much.
        await shows(tab, "#accounts", "pub-0")
        first = ["mqtt/-/pub-1", "mqtt/-/pub-2", "mqtt/-/pub-0"]
        assert (await names_in(tab, "#accounts tbody tr"))[:3] == first
        assert (await names_in(tab, "#holders tbody tr"))[0] == "mqtt/-/sub-49"
        await shows(tab, "#holders tbody tr", "blocks 3")
        await shows(tab, "#holders tbody tr", "kept waiting: pub-1 and 2 others, for ")
        assert (await names_in(tab, "#matrix tbody tr"))[:3] == first
        assert (await names_in(tab, "#matrix thead .across"))[0] == "mqtt/-/sub-49"
        # Not by a colour alone.
        await tab.until("document.querySelector('#matrix .culprit') !== null")
        assert "blocks others" in await text_of(tab, "#matrix thead .across")
        # Rows are bounded, and the rest is counted.
        assert await tab.evaluate("document.querySelectorAll('#accounts tbody tr').length") == 12
        assert await text_of(tab, "#accounts-more") == "and 988 more accounts"
        assert await text_of(tab, "#holders-more") == "and 38 more holders"
        assert "more accounts that owe; and 34 more holders" in await text_of(tab, "#matrix-more")
        # The page goes on with the history that the relay gave it.
        for box in boxes:
            box.settle_all()
        await shows(tab, "#then", "Readers last waited ")
        last = await text_of(tab, "#then")
        assert re.match(r"Readers last waited \d+\.\d s ago, on sub-49\.", last)
        waited = await tab.evaluate("lastWait()[WAITED].map(([name]) => name)")
        assert sorted(waited) == ["mqtt/-/pub-0", "mqtt/-/pub-1", "mqtt/-/pub-2"]


async def test_a_part_of_a_name_finds_it_among_all(
    crowd: tuple[Ledger, list[Account], list[Box]],
) -> None:
    ledger, _, boxes = crowd
    async with page_of(ledger) as tab:
        await shows(tab, "#accounts", "pub-")
        await tab.press("/", 191, "/")
        assert await tab.evaluate("document.activeElement.id") == "search"

        async def look_for(text: str) -> None:
            await tab.evaluate("document.querySelector('#search').select()")
            if not text:
                await tab.press("Delete", 46)
            await tab.call("Input.insertText", text=text)

        await look_for("PUB-77")
        await shows(tab, "#found", "11 accounts, 0 holders with debt.")
        found = await names_in(tab, "#accounts tbody tr")
        assert sorted(found) == sorted(f"mqtt/-/pub-{n}" for n in (77, *range(770, 780)))
        assert await text_of(tab, "#accounts-more") == ""
        # What is found is read aloud once, and stays when the next sample comes.
        assert "11 accounts" in await tab.evaluate("document.querySelector('#spoken').textContent")
        sample = await tab.evaluate("latest.time")
        await tab.until(f"latest.time > {sample}")
        assert sorted(await names_in(tab, "#accounts tbody tr")) == sorted(found)
        # More rows than of all, but not without bound.
        await look_for("pub-")
        await shows(tab, "#found", "1,000 accounts")
        assert await tab.evaluate("document.querySelectorAll('#accounts tbody tr').length") == 40
        assert await text_of(tab, "#accounts-more") == "and 960 more accounts"
        # Holders, too; and one of each, by a pattern, with what the one has of the other.
        await look_for("sub-4?")
        await shows(tab, "#found", "0 accounts, 10 holders with debt.")
        assert await tab.evaluate("document.querySelector('#accounts-card').hidden")
        await look_for("b-[03]")
        await shows(tab, "#matrix-more", "of the accounts and holders that were found")
        await look_for("nobody")
        await shows(tab, "#found", "No account and no holder has that in its name.")
        await look_for("")
        await shows(tab, "#found", "Among all accounts and holders")
        await shows(tab, "#accounts-more", "and 988 more accounts")
    for box in boxes:
        box.settle_all()


async def test_without_accounts_nothing_is_empty() -> None:
    empty = """[...document.querySelectorAll("main .card")].filter((card) => card.checkVisibility())
      .filter((card) => card.innerText.split("\\n").length < 2
        || [...card.querySelectorAll("table")].some((table) => !table.tBodies[0].rows.length))
      .map((card) => card.id)"""
    ledger = Ledger()
    async with page_of(ledger, width=390) as tab:
        await shows(tab, "#nobody", "No accounts yet")
        await shows(tab, "#then", "No reader has waited in this time.")
        assert await tab.evaluate(empty) == []
        visible = """[...document.querySelectorAll("main > *, .columns .card")]
          .filter((each) => each.checkVisibility()).map((each) => each.id)"""
        assert [each for each in await tab.evaluate(visible) if each] == [
            *("verdict", "spoken", "nobody", "history-card", "legend")
        ]
        # As soon as there is one, it is there.
        account, box = ledger.open("pub"), Box(ledger, "sub")
        await shows(tab, "#accounts", "pub")
        assert await tab.evaluate("document.querySelector('#nobody').hidden")
        assert await tab.evaluate(f"{empty}.filter((id) => id !== 'graph-card')") == []
        send(account, box, 3)
        await shows(tab, "#matrix", "sub")
        assert await tab.evaluate(f"{empty}.filter((id) => id !== 'graph-card')") == []
        box.settle_all()


DURATIONS = [0, 0.04, 9.96, 59.96, 99.9, 99.96, 119.6, 240, 250, 3599.6, 3600, 7500, 86_399, 1e6]


async def test_durations_have_one_form_here_and_in_the_terminal() -> None:
    async with page_of(Ledger()) as tab:
        said: Any = await tab.evaluate(f"{DURATIONS}.map(duration)")
        assert [each.replace("\xa0", " ") for each in said] == [duration(d) for d in DURATIONS]


async def test_the_legend_has_the_words_of_the_glossary_and_each_link_a_place() -> None:
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \| [^|]+ \|$", GLOSSARY.read_text(), re.MULTILINE)
    usual = {word: theirs for ours, theirs in rows for word in ours.split(", ")}
    async with page_of(Ledger()) as tab:
        terms: list[list[str]] = await tab.evaluate(
            "[...document.querySelectorAll('#legend dt')].map((each) =>"
            " [each.firstChild.textContent.trim(), each.lastChild.textContent])"
        )
        assert len(terms) > 10
        for ours, theirs in terms:
            assert ours in usual, ours
            assert set(theirs.split("; ")) <= set(usual[ours].split("; ")), ours
        broken = """[...document.querySelectorAll("a[href^='#']")]
          .filter((each) => !document.querySelector(each.hash)).map((each) => each.href)"""
        assert await tab.evaluate(broken) == []
