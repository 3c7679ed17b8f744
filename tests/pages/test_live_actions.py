"""The forms in the drawer of the live page, in a real browser: changes by the holder of a token."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio

from clearfunds.access import Tenant
from tests.pages.chromium import CHROMIUM, LIVE, WHY_NOT, browsing, shows, text_of
from tests.pages.test_live_drawer import open_name
from tests.relay.test_actions import TOKEN, operated
from tests.transports.peers import SECONDS, connected, until

if TYPE_CHECKING:
    from tests.pages.chromium import Tab

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason=WHY_NOT)

PRESS = Tenant(name="press", user=("press",), weight=3.0, items=50)


async def fill(tab: Tab, button: str, *values: str) -> None:
    """Fill the fields of the form with this button, and press it; a checkbox by "on"."""
    form = f"[...$('drawer-actions').children].find((each) => each.innerText.endsWith('{button}'))"
    await tab.until(f"{form} !== undefined")
    for place, value in enumerate(values):
        field = f"{form}.elements[{place}]"
        done = f"{field}.checked = true" if value == "on" else f"{field}.value = '{value}'"
        await tab.evaluate(done)
    await tab.evaluate(f"{form}.querySelector('button').click()")


async def test_with_the_token_a_client_is_changed_and_disconnected() -> None:
    async with (
        browsing() as browser,
        operated() as here,
        connected(here.relay.port, "archive", username="press") as archive,
    ):
        http = here.relay.addresses.http
        assert http is not None
        with trio.fail_after(2 * SECONDS):
            # As a browser logs in: with the token as the password of any user.
            browser.login = ("me", TOKEN)
            tab = await browser.open(f"{http}/")
            await tab.until(LIVE)
            await open_name(tab, "#accounts", "archive")
            await shows(tab, "#drawer-actions", "Token")
            assert await text_of(tab, "#drawer-actions") == "Token Make changes"
            # Knowing how to look is not enough, and a wrong token is asked for again.
            await fill(tab, "Make changes", "wrong-0123456789abcdef")
            await fill(tab, "Set limit", "7", "2KiB")
            await shows(tab, "#drawer-done", "The token, or the user or the password, is wrong.")
            await shows(tab, "#drawer-actions", "Token")
            await fill(tab, "Make changes", TOKEN)
            await fill(tab, "Set limit", "7", "2KiB")
            await shows(tab, "#drawer-done", "Done.")
            account = here.relay.account("archive")
            assert (account.limit.items, account.limit.bytes) == (7, 2048)
            await shows(tab, "#about-account", "Limit 7 items")
            # What is empty stays as it is; what is refused is told.
            await fill(tab, "Set limit", "none", "")
            await until(lambda: account.limit.items is None)
            assert account.limit.bytes == 2048
            await fill(tab, "Set limit", "", "many")
            await shows(tab, "#drawer-done", "The field limit_bytes must be a number of bytes")
            await fill(tab, "Set policy", "drop_oldest", "3")
            await shows(tab, "#drawer-done", "Done.")
            policies = here.relay.relay.settings.subscription_policy
            assert [(str(each.policy), each.patience) for each in policies] == [("drop_oldest", 3)]
            # Not without a tick: the browser asks for it.
            await fill(tab, "Disconnect")
            assert await text_of(tab, "#drawer-done") == "Done."
            assert here.relay.relay.mqtt.open
            await fill(tab, "Disconnect", "on")
            assert await archive.next() is None
            await shows(tab, "#drawer-kind", "Gone")
            # The browser's own lines about the answers with 401 and 400; no dialogue.
            assert len(browser.complaints) == 2
            assert browser.challenges == 1


async def test_a_tenant_and_the_server() -> None:
    async with (
        browsing() as browser,
        operated(tenant=(PRESS,)) as here,
        connected(here.relay.port, "ticker", username="press"),
    ):
        http = here.relay.addresses.http
        assert http is not None
        with trio.fail_after(2 * SECONDS):
            browser.login = ("me", TOKEN)
            tab = await browser.open(f"{http}/")
            await tab.until(LIVE)
            await tab.evaluate("openDrawer('tenant/press')")
            await fill(tab, "Make changes", TOKEN)
            await fill(tab, "Set weight", "2.5")
            await shows(tab, "#drawer-done", "Done.")
            assert here.relay.ledger.accounts["tenant/press"].weight == 2.5
            assert "Disconnect" not in await text_of(tab, "#drawer-actions")
            await tab.evaluate("openDrawer('server')")
            await fill(tab, "Set limit", "1234")
            await shows(tab, "#drawer-done", "Done.")
            assert here.relay.ledger.accounts["server"].limit.items == 1234
            assert "weight" not in await text_of(tab, "#drawer-actions")


async def test_without_a_token_of_the_relay_there_are_no_forms() -> None:
    async with (
        browsing() as browser,
        operated(tokens=False) as here,
        connected(here.relay.port, "archive"),
    ):
        assert here.relay.addresses.http is not None
        with trio.fail_after(2 * SECONDS):
            tab = await browser.open(here.relay.addresses.http + "/")
            await tab.until(LIVE)
            await open_name(tab, "#accounts", "archive")
            await shows(tab, "#about-account", "Limit")
            assert await tab.evaluate("$('drawer-actions').hidden")
