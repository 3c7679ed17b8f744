"""The live page in a browser, where who publishes waits for credit."""

from __future__ import annotations

import pytest
import trio

from clearfunds.transports.mqtt import Publish, encode
from experiments.credit_flow import Credit
from tests.experiments.credit_flow.relays import on_credit
from tests.pages.chromium import CHROMIUM, LIVE, WHY_NOT, browsing, shows, text_of
from tests.transports.peers import SECONDS, connected, running, until


@pytest.mark.skipif(CHROMIUM is None, reason=WHY_NOT)
async def test_whose_credit_is_waited_for_is_in_the_headline() -> None:
    async with (
        browsing() as browser,
        running(
            profile="lossless",
            serve=on_credit(reader_outlet=Credit(20, 10)),
            http="127.0.0.1:0",
            patience=60.0,
            grace=0.1,
        ) as relay,
        connected(relay.port, "stuck", receive_buffer=4096) as stuck,
        connected(relay.port, "pub") as pub,
        trio.open_nursery() as nursery,
    ):
        await stuck.subscribe("t")
        nursery.start_soon(pub.stream.send_all, encode(Publish("t", bytes(100_000))) * 300)
        account = relay.account("pub")
        await until(lambda: account.waiting)
        with trio.fail_after(2 * SECONDS):
            tab = await browser.open(f"{relay.addresses.http}/")
            await tab.until(LIVE)
            await shows(tab, "#verdict .headline", "is cut off in ")
            said = await text_of(tab, "#verdict .headline")
        name = relay.account("stuck").name
        assert said.startswith(f"{account.name} waits, blocked by {name}: ")
        assert "; it holds " in said
        assert said.endswith("unless it reads; pub goes on then")
        nursery.cancel_scope.cancel()
