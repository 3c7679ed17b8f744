"""The live page in a real browser: what is on the screen, when, and that nothing goes wrong."""

from __future__ import annotations

import re
import time
from contextlib import AsyncExitStack
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
import trio

from clearfunds.access import BearerTokens, Passwords
from clearfunds.accounts import Ledger, Limit, Outcome
from clearfunds.pages import Pages, serve_http
from clearfunds.pages._history import Names, Point
from clearfunds.pages._live import LivePage
from clearfunds.testing import Box
from tests.pages.chromium import CHROMIUM, LIVE, WHY_NOT, browsing, shows, text_of
from tests.ports import lasting_port
from tests.relay.brokers import Broker
from tests.transports.mqtt.users import user_line
from tests.transports.peers import SECONDS, BareClient, connected, frames, running, until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.pages.chromium import Tab

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason=WHY_NOT)

SMALL = 32768


async def publish(pub: BareClient) -> None:
    """Publish some megabytes a second, which everybody can follow."""
    run = frames([("orders/new", bytes(2000))] * 20)
    while True:
        await pub.stream.send_all(run)
        await trio.sleep(0.01)


async def drain(sub: BareClient, scope: trio.CancelScope) -> None:
    """Read until told to stop."""
    with scope:
        while await sub.stream.receive_some(1 << 16):
            pass


async def test_the_culprit_is_on_the_screen_within_two_seconds_of_the_stall() -> None:
    async with (
        browsing() as browser,
        running(
            http="127.0.0.1:0", limit_items=100, profile="lossless", patience=60.0, grace=0.1
        ) as relay,
        AsyncExitStack() as stack,
    ):
        assert relay.addresses.http is not None
        subs = [
            await stack.enter_async_context(
                connected(relay.port, name, receive_buffer=SMALL if name == "archive" else None)
            )
            for name in ("archive", "audit", "billing")
        ]
        for sub in subs:
            await sub.subscribe("orders/#")
        pub = await stack.enter_async_context(connected(relay.port, "pub"))
        scopes = [trio.CancelScope() for _ in subs]
        with trio.fail_after(2 * SECONDS):
            async with trio.open_nursery() as nursery:
                for sub, scope in zip(subs, scopes, strict=True):
                    nursery.start_soon(drain, sub, scope)
                nursery.start_soon(publish, pub)
                tab = await browser.open(relay.addresses.http + "/")
                await tab.until(LIVE)
                await trio.sleep(1.5)  # The load has gone on for a while; the stall is news.
                archive = f"mqtt:{relay.port}/-/archive"
                await shows(tab, "#verdict", "Nobody waits.")
                scopes[0].cancel()
                # What is still on its way to it takes the kernel; then the publisher is not read.
                await until(lambda: relay.account("pub").waiting)
                stalled = trio.current_time()
                await shows(tab, "#verdict", archive)
                took = trio.current_time() - stalled
                # What the issue asks for; not how fast it could be.
                assert took <= 2.0
                await tab.until("document.querySelector('#verdict').dataset.mood === 'stuck'")
                verdict = await text_of(tab, "#verdict .headline")
                assert verdict.startswith(f"mqtt:{relay.port}/-/pub waits for {archive}")
                assert " of 100 items, " in verdict
                # And what happens next, to both.
                assert "archive is cut off in 5" in verdict
                assert " s unless it reads; pub goes on then" in verdict
                # And why, as soon as it is clear.
                why = "archive's program does not read (window shut "
                await shows(tab, "#verdict .headline", why)
                # Said aloud once, in words that do not change from second to second.
                spoken = await tab.evaluate("document.querySelector('#spoken').textContent")
                assert spoken.startswith(f"mqtt:{relay.port}/-/pub waits for {archive}")
                assert "window" not in spoken
                assert await tab.evaluate("document.title.startsWith('pub waits for archive')")
                for selector in ("#graph", "#holders", "#matrix", "#waits"):
                    assert "archive" in (
                        await tab.evaluate(f"document.querySelector({selector!r}).textContent")
                    ), selector
                assert await tab.evaluate("document.querySelectorAll('#graph .edge').length") >= 1
                nursery.cancel_scope.cancel()
        assert browser.complaints == []


async def test_who_was_cut_off_is_on_the_screen_when_nobody_waits_any_more() -> None:
    async with (
        browsing() as browser,
        running(
            http="127.0.0.1:0", limit_items=100, profile="lossless", patience=1.5, grace=0.1
        ) as relay,
        connected(relay.port, "archive", receive_buffer=SMALL) as archive,
        connected(relay.port, "pub") as pub,
    ):
        assert relay.addresses.http is not None
        await archive.subscribe("orders/#")
        with trio.fail_after(2 * SECONDS):
            tab = await browser.open(relay.addresses.http + "/")
            await tab.until(LIVE)
            assert await text_of(tab, "#lately") == (
                "Nobody was cut off, and nobody waited for long."
            )
            async with trio.open_nursery() as nursery:
                nursery.start_soon(publish, pub)
                await tab.until("document.querySelector('#lately .cut') !== null")
                nursery.cancel_scope.cancel()
            await shows(tab, "#verdict", "Nobody waits.")
            name = f"mqtt:{relay.port}/-/archive"
            said = await text_of(tab, "#verdict .also")
            assert said.startswith(f"{name} was cut off, ")
            assert " items of pub written off after " in said
            assert "pub had waited " in said
            assert (await text_of(tab, "#lately li")).startswith(f"{name} was cut off ")
            written_off = relay.relay.ledger.statistics().repaid_items["written_off"]
            assert f"{written_off:,} items of pub" in said
            spoken = "document.querySelector('#spoken').textContent"
            await tab.until(f"{spoken}.includes('archive was cut off; ')")
        assert browser.complaints == []


async def test_what_a_screen_reader_is_told_and_the_tab_key_reaches() -> None:
    ledger = Ledger()
    server = ledger.open("server", limit=Limit(items=None))
    accounts = [ledger.open(f"pub-{n}", limit=Limit(items=10), parent=server) for n in range(9)]
    boxes = [Box(ledger, f"sub-{n}") for n in range(3)]
    for account in accounts:
        with account.turn() as turn:
            for box in boxes:
                turn.send(box, b"", items=4, nbytes=100)
    ledger.incidents.add_wait("pub-1", "sub-1", 3.5, ledger.clock(), clear=True)
    async with browsing() as browser, trio.open_nursery() as nursery:
        urls: list[str] = await nursery.start(partial(serve_http, Pages(ledger).handlers()))
        for account in accounts[:3]:
            nursery.start_soon(account.ensure_clear_funds)
        with trio.fail_after(2 * SECONDS):
            tab = await browser.open(urls[0] + "/", width=1000)
            await tab.until(LIVE)
            await shows(tab, "#accounts", "pub-8")
            await shows(tab, "#then", "Look back")
            nodes = await tab.accessibility()
            # Whatever can be told apart has a name.
            for node in nodes:
                if node.role in ("button", "link", "table", "image", "columnheader", "region"):
                    assert node.name, node
            tables = [node.name for node in nodes if node.role == "table"]
            assert len(tables) == len(set(tables)) == 4
            regions = [node.name for node in nodes if node.role == "region"]
            assert len(regions) == len(set(regions))
            assert sum(node.role == "rowheader" for node in nodes) >= 2 * len(accounts)
            headings = [node.level for node in nodes if node.role == "heading"]
            assert headings[0] == 1
            assert set(headings[1:]) == {2}
            # Read aloud by itself is one sentence, and not all that changes with each second.
            assert [node.role for node in nodes if node.live] == ["status"]
            # All that can be used is reached, from the top down, and seen when it is.
            stops: list[str] = []
            while True:
                await tab.press("Tab", 9)
                if await tab.evaluate("document.activeElement === document.body"):
                    break
                named = "document.activeElement.labels?.[0] ?? document.activeElement"
                stops.append(await tab.evaluate(f"({named}).textContent"))
                outline = "getComputedStyle(document.activeElement).outline"
                assert "solid 3px" in await tab.evaluate(outline)
                box_of = await tab.evaluate(
                    "(r => [r.top, r.bottom])(document.activeElement.getBoundingClientRect())"
                )
                assert 0 <= box_of[0] < box_of[1] <= 900, stops[-1]
            used = ("button", "link", "slider", "combobox", "searchbox")
            names = [node.name for node in nodes if node.role in used]
            assert len(names) > 30
            assert "Now" not in names  # It is now: there is no use for that button.
            assert stops == names
            assert stops[0] == "Skip to who waits"
        assert browser.complaints == []
        nursery.cancel_scope.cancel()
    for box in boxes:
        box.settle_all(Outcome.CANCELLED)


async def test_the_page_by_keyboard_on_a_phone_and_with_names_that_are_markup() -> None:
    ledger = Ledger()
    server = ledger.open("server", limit=Limit(items=None))
    nasty = "mqtt:1883/-/<img src=x onerror=alert(1)><script>alert(2)</script>"
    long = "mqtt:1883/-/" + "w" * 900
    accounts = [
        ledger.open(name, limit=Limit(items=10), parent=server)
        for name in (nasty, long, *(f"mqtt:1883/-/client-{n}" for n in range(10_000)))
    ]
    boxes = [Box(ledger, f"mqtt:1883/-/<b>holder</b> {n} {'y' * 300}") for n in range(40)]
    for number, account in enumerate(accounts):
        with account.turn() as turn:
            for box in boxes if number < 2 else boxes[:1]:
                turn.send(box, b"", items=9 if number < 2 else 1, nbytes=100)
    async with browsing() as browser, trio.open_nursery() as nursery:
        urls: list[str] = await nursery.start(partial(serve_http, Pages(ledger).handlers()))
        for account in accounts[:2]:
            nursery.start_soon(account.ensure_clear_funds)
        with trio.fail_after(2 * SECONDS):
            tab = await browser.open(urls[0] + "/", width=390, height=844, scheme="dark")
            await tab.until(LIVE)
            await shows(tab, "#accounts", "<img src=x")
            # What is left out is said.
            assert await text_of(tab, "#accounts-more") == "and 9,990 more accounts"
            assert "more holders" in await text_of(tab, "#holders-more")
            # So many accounts make no more of a page than a few do.
            assert await tab.evaluate("document.querySelectorAll('*').length") < 1500
            # Text, not markup.
            assert (
                await tab.evaluate("document.querySelectorAll('main img, main script, b b').length")
                == 0
            )
            # Nothing sticks out of a narrow screen; what is wide scrolls by itself.
            for width in (320, 390, 768, 1200):
                await tab.resize(width, 844)
                await trio.sleep(0.1)
                out = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
                assert await tab.evaluate(out) <= 0, width

            # Light or dark, and with movement or without, as its reader prefers.
            paper = "getComputedStyle(document.body).backgroundColor"
            moves = "getComputedStyle(document.querySelector('.bar > span')).transitionProperty"
            dark = await tab.evaluate(paper)
            assert await tab.evaluate(moves) == "width"
            await tab.prefer("light", "reduce")
            assert await tab.evaluate(paper) != dark
            assert await tab.evaluate(moves) == "none"

            # By keyboard: to the first account, all about it, and back to where one was.
            for _ in range(40):
                await tab.press("Tab", 9)
                if await tab.evaluate("document.activeElement.closest('#accounts tbody') !== null"):
                    break
            name = await tab.evaluate("document.activeElement.firstChild.title")
            outline = "getComputedStyle(document.activeElement).outlineStyle"
            assert await tab.evaluate(outline) != "none"
            await tab.press("Enter", 13, "\r")
            await tab.until("document.querySelector('#drawer').open")
            await shows(tab, "#about-account", "Limit")
            assert (
                await tab.evaluate("document.querySelector('#drawer-h').firstChild.title") == name
            )
            assert "10 items" in await text_of(tab, "#about-account")
            assert "holder" in await text_of(tab, "#debtors")
            await tab.press("Escape", 27)
            await tab.until("opened === null")
            # Samples have come and gone meanwhile; the focus is still there.
            assert await tab.evaluate("document.activeElement.firstChild.title") == name
            assert await tab.evaluate("document.activeElement.closest('#accounts') !== null")
        assert browser.complaints == []
        nursery.cancel_scope.cancel()
    for box in boxes:
        box.settle_all(Outcome.CANCELLED)


async def test_a_page_whose_relay_goes_and_comes_back_says_so() -> None:
    ledger = Ledger()
    port = lasting_port()
    async with browsing() as browser, trio.open_nursery() as nursery:
        with trio.fail_after(2 * SECONDS):
            tab: Tab | None = None
            for _ in range(2):
                listeners = await trio.open_tcp_listeners(port, host="127.0.0.1")
                async with trio.open_nursery() as serving:
                    handlers = Pages(ledger).handlers()
                    await serving.start(partial(serve_http, handlers, listeners=listeners))
                    if tab is None:
                        tab = await browser.open(f"http://127.0.0.1:{port}/")
                    await tab.until(LIVE)
                    await shows(tab, "#verdict", "Nobody waits.")
                    serving.cancel_scope.cancel()
                await tab.until("document.querySelector('#link').dataset.state === 'lost'")
                await shows(tab, "#link", "no connection to the server")
                assert await tab.evaluate("document.body.classList.contains('stale')")
        # A browser complains itself of a connection that it does not get; the page does not.
        assert not [each for each in browser.complaints if "net::ERR_" not in each]
        nursery.cancel_scope.cancel()


async def test_an_alarm_trouble_and_what_is_kept_are_on_the_screen(tmp_path: Path) -> None:
    async with (
        browsing() as browser,
        running(
            http="127.0.0.1:0",
            store=str(tmp_path / "store"),
            fsync_interval=0.0,
            disk_limit=2000,
            limit_items=10,
            patience=3.0,
            grace=0.1,
        ) as relay,
    ):
        broker = Broker(relay.port, 20, "kept", lag=0.1)
        async with broker.visit(leave=True) as client:
            await client.subscribe(broker.topic)
        await broker.publish([b"x"] * 3)
        with trio.fail_after(3 * SECONDS):
            tab = await browser.open(f"{relay.addresses.http}/")
            await tab.until(LIVE)
            await shows(tab, "#verdict", "3 messages are kept on disk for clients that are away")
            assert "Nobody waits. Nobody owes anything." in await text_of(tab, "#verdict")
            await shows(tab, "#headroom", "disk")
            assert "queue of a client that is away, nobody" in await text_of(tab, "#holders")
            # An alarm, and a disk that refuses.
            relay.ledger.alarms["disk"] = True
            relay.relay.mqtt.account.halt("disk")
            relay.ledger.troubles["store"] = "cannot write: the disk is full"
            await shows(tab, "#verdict", "Alarm: the disk is nearly full.")
            await shows(tab, "#verdict", "cannot write: the disk is full.")
            async with connected(relay.port, "pub") as pub:
                await pub.publish("elsewhere", b"x")
                await shows(
                    tab, "#verdict .headline", "/pub waits at server for an alarm: the disk"
                )
                relay.ledger.alarms["disk"] = False
                relay.relay.mqtt.account.resume("disk")
                relay.ledger.troubles.clear()
                # The disk budget is spent, and nobody takes what is kept.
                for n in range(1, 31):
                    await pub.publish(broker.topic, bytes(200), 1, packet_id=n)
                await shows(tab, "#verdict .headline", "is away; its session is ended in ")
                verdict = await text_of(tab, "#verdict .headline")
                assert verdict.startswith(f"mqtt:{relay.port}/-/pub waits for ")
                assert verdict.endswith("unless it comes back; pub goes on then")
                await shows(tab, "#verdict", ", who was away, was ended")
                assert "written off" not in await text_of(tab, "#verdict")
                await pub.reset()
        assert browser.complaints == []


async def test_a_person_logs_in_once_with_a_password() -> None:
    tokens = BearerTokens(["0123456789abcdef"])
    passwords = Passwords.from_text(user_line("anna", b"secret"))
    for login in (("anna", "secret"), ("whoever", "0123456789abcdef")):
        async with (
            browsing() as browser,
            running(http="127.0.0.1:0", http_token=tokens, http_password=passwords) as relay,
        ):
            assert relay.addresses.http is not None
            browser.login = login
            with trio.fail_after(2 * SECONDS):
                tab = await browser.open(relay.addresses.http + "/")
                # Its style, its script and its events: all of it comes without being asked again.
                await tab.until(LIVE)
                await tab.close()
            assert browser.challenges == 1
            assert not [each for each in browser.complaints if "401" not in each]


async def test_the_last_minutes_are_there_for_whoever_comes_late() -> None:
    """With the names that the relay noted while nobody watched."""
    page = LivePage(Ledger())
    async with browsing() as browser, trio.open_nursery() as nursery:
        now = time.time()
        for ago in range(200, 0, -1):
            debt = 700 if 100 <= ago <= 150 else 0
            page.history.keep(Point(now - ago, debt, int(debt > 0), 0, 0.0, 1.0 - debt / 1000))
            if not ago % 5:
                names = ((("mqtt/pub-1", 600), ("mqtt/pub-2", 100)), (("mqtt/archive", 650),))
                page.history.keep_names(Names(now - ago, *(names if debt else ((), ()))))
        urls: list[str] = await nursery.start(partial(serve_http, page.handlers()))
        with trio.fail_after(2 * SECONDS):
            tab = await browser.open(urls[0] + "/")
            await tab.until(LIVE)
            await shows(tab, "#then", "Look back to see who owed, held and waited then.")
            said = await text_of(tab, "#then")
            found = re.search(r"Readers last waited 1 min (\d+) s ago", said)
            assert found is not None, said
            assert 40 <= int(found[1]) <= 50 + time.time() - now  # a tenth of a minute is a point

            async def look_back(seconds: int) -> str:
                await tab.evaluate(
                    "{ const back = document.querySelector('#back'); "
                    f"back.value = '-{seconds}'; back.dispatchEvent(new Event('input')); }}"
                )
                return await text_of(tab, "#then")

            then = await look_back(120)
            assert re.fullmatch(r"2 min ago, at \d\d:\d\d:\d\d: debt 700, 1 reader waiting", then)
            assert await text_of(tab, "#then-names") == (
                "Owed most mqtt/pub-1 600 mqtt/pub-2 100 Held most mqtt/archive 650"
            )
            then = await look_back(60)
            assert then.startswith("60.0 s ago, at ")
            assert then.endswith(": debt 0, 0 readers waiting")
            assert await tab.evaluate("document.querySelector('#then-names').hidden")
            # The chosen time stays what it is, and gets farther away.
            await tab.until("document.querySelector('#then').innerText.startsWith('62.0')")
            await tab.evaluate("document.querySelector('#to-now').click()")
            assert "Look back to see" in await text_of(tab, "#then")
            assert await tab.evaluate("Number(document.querySelector('#back').min)") <= -195
            label = await tab.evaluate("document.querySelector('#debt-line').ariaLabel")
            assert label.endswith("least 0, most 700")
            # Before the page's server ends, which the browser reports as a broken stream of events.
            assert browser.complaints == []
        nursery.cancel_scope.cancel()


async def test_an_hour_is_there_for_whoever_comes_after_the_alert() -> None:
    """It shows at once when readers waited last, and at that time who owed, held and waited."""
    ledger = Ledger()
    page = LivePage(ledger)
    now = time.time()
    for ago in range(3000, 0, -1):
        stuck = 1800 <= ago <= 1840
        debt = 5000 if stuck else 20
        page.history.keep(Point(now - ago, debt, 12 * stuck, 3000 - ago, 0.0, 1.0 - debt / 9000))
        if stuck and not ago % 5:
            page.history.keep_names(
                Names(
                    now - ago,
                    (("mqtt/pub-1", 4000), ("mqtt/pub-2", 1000)),
                    (("mqtt/archive", 5000),),
                    (("mqtt/archive", 4900),),
                    (("mqtt/pub-2", 38), ("mqtt/pub-1", 12)),
                )
            )
    async with browsing() as browser, trio.open_nursery() as nursery:
        urls: list[str] = await nursery.start(partial(serve_http, page.handlers()))
        with trio.fail_after(2 * SECONDS):
            tab = await browser.open(urls[0] + "/")
            await tab.until(LIVE)
            await shows(tab, "#then", "Readers last waited 30")
            last = r"Readers last waited 30 min( \d+ s)? ago, on archive\. Look back"
            assert re.match(last, await text_of(tab, "#then"))
            # Its time is on the screen without being asked for, with a time axis.
            assert await tab.evaluate("document.querySelector('#span').value") == "3600"
            label = await tab.evaluate("document.querySelector('#history').ariaLabel")
            assert re.fullmatch(
                r"From \d\d:\d\d:\d\d to \d\d:\d\d:\d\d: debt at most 5,000 items, "
                r"at most 12 readers waiting",
                label,
            )
            ticks: list[str] = await tab.evaluate(
                "[...document.querySelectorAll('#history .when')].map((each) => each.textContent)"
            )
            assert len(ticks) >= 4
            minutes = [int(tick[:2]) * 60 + int(tick[3:]) for tick in ticks]
            steps = {(b - a) % 1440 for a, b in pairwise(minutes)}
            assert len(steps) == 1
            # At the click on the time of the wait, the chart says who it was.
            width = "document.querySelector('#history').getBoundingClientRect()"
            box = await tab.evaluate(f"(r => [r.left, r.top, r.width])({width})")
            await tab.click(box[0] + box[2] * (1 - 1820 / 3000), box[1] + 40)
            await shows(tab, "#then", ": debt 5,000, 12 readers waiting")
            assert await text_of(tab, "#then-names") == (
                "Owed most mqtt/pub-1 4,000 mqtt/pub-2 1,000 Held most mqtt/archive 5,000 "
                "Waited on mqtt/archive 4,900 Waited mqtt/pub-2 38.0 s mqtt/pub-1 12.0 s"
            )
            assert await tab.evaluate("document.querySelectorAll('#history .cursor').length") == 1
            # Another span, by keyboard.
            await tab.evaluate("document.querySelector('#span').focus()")
            await tab.press("ArrowUp", 38)
            await tab.until("document.querySelector('#span').value === '900'")
            await tab.until(
                "document.querySelector('#history').ariaLabel.includes('at most 0 readers')"
            )
            await tab.evaluate("document.querySelector('#back').focus()")
            await tab.press("ArrowLeft", 37)
            await shows(tab, "#then", "5.0 s ago, at ")
            assert browser.complaints == []
        nursery.cancel_scope.cancel()
