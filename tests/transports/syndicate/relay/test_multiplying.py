"""What a peer's patterns make of what others publish is on the peer's own account."""

from __future__ import annotations

import pytest

from clearfunds.transports.mqtt import PubAck
from tests.transports.peers import connected, log_of, until
from tests.transports.syndicate.relay.peers import observe, rec, relay

TCP = "syndicate+tcp://127.0.0.1:0"
MQTT = "mqtt+tcp://127.0.0.1:0"

PAYLOAD = bytes(1_000)
FORTY_TIMES = rec("publication", "", "<bind " * 40 + "<_>" + ">" * 40)
"""Captures the payload of a publication so many times."""


async def test_its_publisher_does_not_pay_for_it(caplog: pytest.LogCaptureFixture) -> None:
    async with (
        relay(listen=(MQTT, TCP), limit_bytes=100_000) as served,
        served.peer(1, receive_buffer=4_096) as greedy,
        served.peer(1) as modest,
        connected(served.running.port, "publisher") as publisher,
    ):
        for n in range(20):
            await greedy.send(observe(FORTY_TIMES, n + 1, n + 1))
        await modest.send(observe(rec("publication", "", "<bind <_>>")))
        await until(lambda: served.ledger.all_standing.items == 21)
        account = served.running.account("publisher")
        await publisher.publish("t", PAYLOAD, qos=1, packet_id=1)
        await publisher.expect(PubAck(1))
        assert account.peak_bytes < 15_000
        assert account.funds_are_clear()
        # It gets no more than it may owe, and is given up; the others go on.
        await until(lambda: len(served.side.open) == 1)
        assert log_of(caplog, "its patterns make more of what others publish than it may owe")
        for packet_id in range(2, 50):
            await publisher.publish("t", PAYLOAD, qos=1, packet_id=packet_id)
            await publisher.expect(PubAck(packet_id))
        assert served.ledger.statistics().waits == 0
        served.ledger.audit()


async def test_a_peer_that_reads_pays_for_it_and_gets_it() -> None:
    async with (
        relay(listen=(MQTT, TCP)) as served,
        served.peer(1) as greedy,
        connected(served.running.port, "publisher") as publisher,
    ):
        for n in range(5):
            await greedy.send(observe(FORTY_TIMES, n + 1, n + 1))
        await until(lambda: served.ledger.all_standing.items == 5)
        await publisher.publish("t", PAYLOAD, qos=1, packet_id=1)
        await publisher.expect(PubAck(1))
        got = 0
        while got < 5 * 40 * len(PAYLOAD):
            got += len(await greedy.stream.receive_some(1 << 16))
        await until(lambda: not served.ledger.statistics().debt_items)
        assert served.account(greedy).peak_bytes > 5 * 40 * len(PAYLOAD)
        assert served.running.account("publisher").peak_bytes < 15_000
