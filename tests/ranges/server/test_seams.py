"""Faults of our own, injected where a task that all share looks at one subscription."""

from __future__ import annotations

from pathlib import Path

import pytest

from clearfunds.ranges.log import RangeSubscription
from tests.ranges.server.relays import blocking, running
from tests.ranges.server.test_durable import opened, values
from tests.relay.test_seams import Seam, seam
from tests.transports.peers import connected, until

__all__ = ["seam"]


@pytest.mark.parametrize("method", ["durable", "write", "hold", "_row", "_shed"])
async def test_a_subscription_that_fails_ends_its_readers_connection(
    seam: Seam, method: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Other readers, and those who publish, go on."""
    with opened(tmp_path) as store:
        async with (
            running(store=store) as relay,
            connected(relay.mqtt_port, "pub") as pub,
            connected(relay.mqtt_port, "hears") as hears,
        ):
            await hears.subscribe("a/#")
            await relay.attach("victim", durable=True, start="latest")
            other = await relay.attach("other", durable=True, start="latest")
            victim = relay.subscription("victim")
            (session,) = [each for each in relay.server.open if each.has(victim)]
            if method == "_row":
                # What it makes rows with is its own.
                def fail(event: object) -> None:
                    seam.hits += 1
                    raise ZeroDivisionError(event)

                seam.patch.setattr(victim, "_row", fail)
            else:
                seam.at(RangeSubscription, method, of=lambda each: each is victim)
            seam.armed = True
            await pub.publish("a/b", b"x", 1 if method != "durable" else 0)
            assert (await hears.publication()).payload == b"x"
            await until(lambda: session not in relay.server.open)
            assert seam.hits
            await until(lambda: relay.subscription("other").visible == 2)
            assert await blocking(values, other, 1, 2) == [b"x"]
            seam.armed = False
            seam.patch.undo()
            relay.ledger.audit()
            assert any(each.exc_info for each in caplog.records)
            relay.server.counters.internal_errors = 0
            relay.mqtt.counters.internal_errors = 0
            relay.ledger.faults.unowned = 0
