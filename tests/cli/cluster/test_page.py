"""The page of a cluster, in a browser; and looks at relays, however many ask for them."""

from __future__ import annotations

from functools import partial
from typing import cast

import attrs
import pytest
import trio

from clearfunds._cli._cluster._look import Look, Looks
from clearfunds._cli._cluster._pages import ClusterPages
from clearfunds._cli._cluster._relays import Member, members
from clearfunds._cli._cluster._view import Answer
from clearfunds.pages import serve_http
from tests.cli.cluster.ledgers import ARCHIVE, NEWSROOM, answer, holder, wait
from tests.pages.chromium import CHROMIUM, WHY_NOT, Tab, browsing
from tests.transports.peers import fetch

SECONDS = 60

EVIL = "<img src=x onerror=alert(1)>"


@attrs.define
class FakeLooks:
    """Says what a test wants."""

    answers: tuple[Answer, ...]

    async def latest(self) -> Look:
        return Look(self.answers, 0.0)


async def shows(tab: Tab, selector: str, text: str) -> None:
    """Wait until an element has this text."""
    found = f"document.querySelector({selector!r})?.innerText.replace(/\\s+/g, ' ')"
    await tab.until(f"{found} === {text!r}")


@pytest.mark.skipif(CHROMIUM is None, reason=WHY_NOT)
async def test_a_browser_shows_who_waits_and_which_relay_does_not_answer() -> None:
    looks = FakeLooks((answer("relay-1"), answer("relay-2")))
    pages = ClusterPages(cast("Looks", looks))
    with trio.fail_after(SECONDS):
        async with browsing() as browser, trio.open_nursery() as nursery:
            (url,) = await nursery.start(partial(serve_http, pages.handlers()))
            tab = await browser.open(f"{url}/", width=390, height=800)
            await shows(tab, "#headline", "Nobody waits.")
            link = "document.querySelector('#relays tbody tr:nth-child(2) a').href"
            assert await tab.evaluate(link) == "http://relay-2/"
            on = (holder(f"relay-2/{ARCHIVE}"), holder("relay-2", "hop"))
            looks.answers = (answer("relay-1", wait(NEWSROOM, EVIL, on=on)), answer("relay-2"))
            who = f"relay-1 {NEWSROOM}, relay-1 {EVIL}"
            await shows(
                tab, "#headline", f"{who} have waited 4.0 s for relay-2 {ARCHIVE}, relay-2."
            )
            await shows(tab, "#waits tbody th .under", "owes 201 of 200 items")
            looks.answers = (answer("relay-1"), Answer("relay-2", fault="no answer within 1 s"))
            await shows(tab, "#headline", "relay-2: no answer.")
            await shows(tab, "#relays tr:nth-child(2) .under:not(.name)", "no answer within 1 s")
            # Nothing is wider than the screen of a phone.
            assert await tab.evaluate("document.documentElement.scrollWidth") <= 390
            assert browser.complaints == []
            await tab.close()
            nursery.cancel_scope.cancel()


async def test_a_relay_that_has_not_started_is_shown_as_such() -> None:
    pages = ClusterPages(Looks(members(1)))
    async with trio.open_nursery() as nursery:
        (url,) = await nursery.start(partial(serve_http, pages.handlers()))
        assert '"fault":"it is starting"' in await fetch(f"{url}/cluster.json")
        assert 'relay_up{relay="relay-1"} 0\n' in await fetch(f"{url}/metrics")
        nursery.cancel_scope.cancel()


async def test_all_who_ask_within_a_second_get_the_same_look(
    autojump_clock: trio.testing.MockClock,
) -> None:
    asked: list[float] = []

    class Slow(Looks):
        async def _look(self) -> tuple[Answer, ...]:
            asked.append(trio.current_time())
            await trio.sleep(0.5)
            return (answer("relay-1"),)

    looks = Slow([Member("relay-1")])
    began = trio.current_time()
    found: list[Look] = []

    async def ask() -> None:
        found.append(await looks.latest())

    for _ in range(2):
        async with trio.open_nursery() as nursery:
            for _ in range(10):
                nursery.start_soon(ask)
        await trio.sleep(1)
    assert [at - began for at in asked] == [0.0, 1.5]
    assert len({id(each) for each in found}) == 2
