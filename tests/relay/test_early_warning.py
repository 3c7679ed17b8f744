"""A subscriber that does not read is named before its publishers wait."""

from __future__ import annotations

import json
import logging
import re

import pytest
import trio

from tests.transports.peers import connected, fetch, running, until


async def test_who_will_wait_is_named_before(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "clearfunds.accounts")
    async with (
        running(http="127.0.0.1:0", profile="lossless", limit_items=600, limit_bytes=None) as relay,
        connected(relay.port, "viewer-0333", receive_buffer=4096) as viewer,
        connected(relay.port, "sensor-0133") as sensor,
    ):
        await viewer.subscribe("t")

        async def publish() -> None:
            while True:
                await sensor.publish("t", bytes(100_000))
                await trio.sleep(0.025)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(publish)
            await until(lambda: warned(caplog))
            assert not relay.account("sensor-0133").waiting
            page = json.loads(await fetch(f"{relay.addresses.http}/ledger.json"))
            top = json.loads(await fetch(f"{relay.addresses.http}/ledger.json?top=5"))
            nursery.cancel_scope.cancel()
        relay.audit()
    (record,) = warned(caplog)
    said = r"viewer-0333 has taken nothing for \d+ s; sensor-0133 will wait in about \d+ s"
    assert re.fullmatch(said, record.getMessage())
    for (row,) in (page["forecasts"], top["forecasts"]):
        assert row["holder"] == f"mqtt:{relay.port}/-/viewer-0333"
        assert row["account"] == f"mqtt:{relay.port}/-/sensor-0133"
        assert row["kind"] == "outlet"
        assert row["idle_seconds"] >= 4
        assert re.fullmatch(said, row["sentence"])


def warned(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [each for each in caplog.records if getattr(each, "event", None) == "early_warning"]
