"""The drawer of the live page, in a real browser: all about one name."""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING

import pytest
import trio

from clearfunds.accounts import Ledger, Limit
from clearfunds.pages import Pages, serve_http
from clearfunds.testing import Box
from tests.pages.chromium import CHROMIUM, LIVE, WHY_NOT, browsing, shows, text_of
from tests.transports.peers import SECONDS, BareClient, connected, frames, running

if TYPE_CHECKING:
    from tests.pages.chromium import Tab

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason=WHY_NOT)

SMALL = 32768
CLOSED = "opened === null"  # When the focus is back, too.


async def open_name(tab: Tab, table: str, name: str) -> None:
    """Open the drawer from a row, by keyboard."""
    button = f"document.querySelector('{table} button[data-open$=\"{name}\"]')"
    await tab.until(f"{button} !== null")
    await tab.evaluate(f"{button}.focus()")
    await tab.press("Enter", 13, "\r")
    await tab.until("document.querySelector('#drawer').open")
    await shows(tab, "#drawer-h", name)


async def publish(pub: BareClient) -> None:
    run = frames([("orders/new", bytes(2000))] * 20)
    while True:
        await pub.stream.send_all(run)
        await trio.sleep(0.01)


async def test_a_client_its_debt_what_it_holds_and_what_has_happened_to_it() -> None:
    async with (
        browsing() as browser,
        running(
            http="127.0.0.1:0",
            limit_items=100,
            profile="lossless",
            patience=4.0,
            stuck="drop_oldest",
            grace=0.1,
        ) as relay,
        connected(relay.port, "archive", username="press", receive_buffer=SMALL) as archive,
        connected(relay.port, "pub") as pub,
    ):
        assert relay.addresses.http is not None
        await archive.subscribe("orders/#")
        await archive.subscribe("press/<b>")
        with trio.fail_after(2 * SECONDS):
            tab = await browser.open(relay.addresses.http + "/", width=390, height=844)
            await tab.until(LIVE)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(publish, pub)
                await shows(tab, "#holders", "blocks 1")
                await open_name(tab, "#holders", "archive")
                await shows(tab, "#drawer-kind", "MQTT 3.1.1 client, account, outlet")
                await shows(tab, "#about-client", "Address 127.0.0.1:")
                client = await text_of(tab, "#about-client")
                assert "User press Connected since " in client
                assert re.search(r", \d\.\d s ago|, 1\d\.\d s ago", client)
                assert client.endswith("Subscriptions 2 orders/# press/<b>")
                await shows(tab, "#about-holder", "Blocks pub, for ")
                holder = await text_of(tab, "#about-holder")
                assert re.search(r"Holds \d+ items, [\d.]+ KiB, in \d+ loans? Oldest ", holder)
                assert "Policy drop_oldest Patience 4.0 s Lost so far nothing" in holder
                # Whose debt: one more step, without closing it.
                await tab.evaluate("document.querySelector('#owed-by button').focus()")
                await tab.press("Enter", 13, "\r")
                await shows(tab, "#drawer-h", "/pub")
                await shows(tab, "#about-account", "throttled; its reader waits, ")
                await shows(tab, "#debtors", "archive")
                assert "Limit 100 items" in await text_of(tab, "#about-account")
                # What it is relieved by, and what that costs, is in what has happened.
                await tab.press("Escape", 27)
                await tab.until(CLOSED)
                await shows(tab, "#holders", "behind for ")
                await open_name(tab, "#holders", "archive")
                happened = r"was too slow \(drop_oldest\), \d\.\d s without progress: \d"
                timeline = "document.querySelector('#timeline').innerText.replace(/\\s+/g, ' ')"
                await tab.until(f"/{happened}/.test({timeline})")
                await shows(tab, "#timeline", "connected from 127.0.0.1:")
                await shows(tab, "#about-holder", " dropped")
                nursery.cancel_scope.cancel()
            # Nothing of it sticks out of a phone.
            drawer = "document.querySelector('#drawer')"
            assert await tab.evaluate(f"{drawer}.scrollWidth - {drawer}.clientWidth") <= 0
            await archive.reset()
            await shows(tab, "#drawer-note", "no client, account or holder of this name now")
            await shows(tab, "#timeline", "left: ")
            assert await text_of(tab, "#drawer-kind") == "Gone"
        assert browser.complaints == []


async def test_the_focus_goes_back_and_buttons_have_a_place() -> None:
    ledger = Ledger()
    accounts = [ledger.open(f"pub-{n}", limit=Limit(items=10)) for n in range(4)]
    box = Box(ledger, "sub")
    for account in accounts:
        with account.turn() as turn:
            turn.send(box, b"", items=4, nbytes=100)
    async with browsing() as browser, trio.open_nursery() as nursery:
        urls: list[str] = await nursery.start(partial(serve_http, Pages(ledger).handlers()))
        with trio.fail_after(2 * SECONDS):
            tab = await browser.open(urls[0] + "/")
            await tab.until(LIVE)
            await tab.prefer("light", "reduce")
            # As the scripts of buttons do it: a button for each answer about a name.
            await tab.evaluate(
                """$("drawer").addEventListener("about", (event) => {
                  const place = $("drawer-actions");
                  if (place.firstChild || !event.detail.account) return;
                  place.hidden = false;
                  place.append(el("button", {}, `Limit of ${$("drawer").dataset.name}`));
                })"""
            )
            for table, name in (("#accounts", "pub-2"), ("#accounts", "pub-3")):
                await open_name(tab, table, name)
                await shows(tab, "#drawer-actions", f"Limit of {name}")
                assert await tab.evaluate("document.activeElement.textContent") == "Close"
                moves = "getComputedStyle(document.querySelector('#drawer')).animationName"
                assert await tab.evaluate(moves) == "none"
                await tab.press("Tab", 9)
                assert await text_of(tab, ":focus") == f"Limit of {name}"
                await tab.press("Escape", 27)
                await tab.until(CLOSED)
                opened = "document.activeElement.dataset.open"
                assert await tab.evaluate(opened) == name
                assert await tab.evaluate(f"document.activeElement.closest('{table}') !== null")
            await open_name(tab, "#holders", "sub")
            await shows(tab, "#about-holder", "Holds 16 items")
            # It is no account: what was there for the other name is gone.
            assert await tab.evaluate(
                "$('drawer-actions').hidden && !$('drawer-actions').firstChild"
            )
            # Its row goes while it is open; then the focus goes to the sentence above.
            box.settle_all()
            await tab.until("document.querySelector('#holders button') === null")
            await tab.press("Escape", 27)
            await tab.until(CLOSED)
            assert await tab.evaluate("document.activeElement.id") == "verdict"
        assert browser.complaints == []
        nursery.cancel_scope.cancel()
