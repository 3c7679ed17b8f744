"""What `/metrics` says of a relay with real connections."""

from __future__ import annotations

import trio
from prometheus_client.parser import text_string_to_metric_families

from clearfunds.transports.mqtt import PubAck, Publish, encode
from tests.transports.peers import RunningRelay, connected, fetch, running, until

LITTLE = 4096
"""A receive buffer so small that what a client does not read stays in the relay, soon."""

Series = dict[tuple[str, ...], float]


async def scrape(relay: RunningRelay) -> Series:
    """Values by name without the prefix, then the labels' values in the order of their names."""
    return {
        (sample.name.removeprefix("clearfunds_"), *[v for _, v in sorted(sample.labels.items())]): (
            sample.value
        )
        for family in text_string_to_metric_families(await fetch(f"{relay.addresses.http}/metrics"))
        for sample in family.samples
    }


async def test_copies_are_counted_and_loans_have_their_ages_by_hop() -> None:
    async with (
        running(http="127.0.0.1:0") as relay,
        connected(relay.port, "a") as a,
        connected(relay.port, "b") as b,
        connected(relay.port, "acks") as acks,
        connected(relay.port, "pub") as pub,
    ):
        await a.subscribe("t")
        await b.subscribe("t")
        await acks.subscribe("t", qos=1)
        before = await scrape(relay)
        for n in range(5):
            await pub.publish("t", b"x", 1, packet_id=n + 1)
            await pub.expect(PubAck(n + 1))
        await pub.publish("nobody/listens", b"x")
        await pub.publish("t", b"x")
        await a.publications(6)
        await b.publications(6)
        # The subscriber takes its time to acknowledge.
        packets = [await acks.publication() for _ in range(6)]
        await trio.sleep(0.6)
        seen = await scrape(relay)
        assert ("loan_age_seconds_count", "inflight") in seen
        assert seen["loan_age_seconds_count", "inflight"] == 0
        assert seen["oldest_loan_age_seconds",] >= 0.6
        assert seen["top_holder_items", f"mqtt:{relay.port}/-/acks", "1"] == 5
        assert seen["top_debtor_debt_items", f"mqtt:{relay.port}/-/pub", "1"] == 5
        for packet in packets:
            if packet.qos:
                await acks.send(PubAck(packet.packet_id))
        await until(lambda: not relay.statistics().debt_items)
        after = await scrape(relay)

        # Six messages with three copies, one with none.
        assert after["fanout_copies_count",] == 7
        assert after["fanout_copies_sum",] == 18
        assert after["fanout_copies_bucket", "0.0"] == 1
        assert after["fanout_copies_bucket", "2.0"] == 1
        assert after["fanout_copies_bucket", "5.0"] == 7
        assert after["loan_age_seconds_count", "inflight"] == 5
        assert after["loan_age_seconds_bucket", "inflight", "0.25"] == 0
        assert after["loan_age_seconds_sum", "inflight"] >= 5 * 0.6
        # Twelve publications with QoS 0 and the last one's third copy; and five PUBACKs.
        outlet = ("loan_age_seconds_count", "outlet")
        assert after[outlet] - before[outlet] == 10 + 3 + 5
        assert after["loan_age_seconds_count", "router"] >= 7
        assert after["oldest_loan_age_seconds",] == 0
        assert not [key for key in after if key[0].startswith("top_") and len(key) > 1]
        assert after["event_loop_lag_seconds_count",] >= 1


async def waiting(relay: RunningRelay, client_id: str) -> None:
    """Wait until this client is not read any more, and stays so: the kernel takes some at first."""
    account = relay.account(client_id)
    waits = 0
    while not account.waiting or account.waits > waits:
        waits = account.waits
        await trio.sleep(0.3)


async def stall(relay: RunningRelay, reason: str, account: str) -> None:
    """Stall a publisher, and see what is told of that at two scrapes and after."""
    async with (
        connected(relay.port, "stuck", receive_buffer=LITTLE) as stuck,
        connected(relay.port, "pub") as pub,
    ):
        await stuck.subscribe("t")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(pub.stream.send_all, encode(Publish("t", bytes(500_000))) * 30)
            await waiting(relay, "pub")
            first = await scrape(relay)
            await trio.sleep(0.3)
            second = await scrape(relay)
            nursery.start_soon(stuck.publications, 30)
    await until(lambda: "stuck" not in relay.relay.mqtt.sessions)
    last = await scrape(relay)
    other = {"account": "share", "share": "account"}[reason]
    assert first["waiting_readers",] == second["waiting_readers",] == 1
    # It may have gone on for a moment while the kernel took some more.
    assert second["throttle_events_total", reason] >= 1
    waited = ("throttled_seconds_total", reason)
    assert 0 < first[waited] < second[waited] <= last[waited]
    assert second["throttle_events_total", other] == second["throttled_seconds_total", other] == 0
    assert second["oldest_loan_age_seconds",] > first["oldest_loan_age_seconds",] > 0
    assert second["overshoot_items_count",] >= 1
    assert second["overshoot_items_bucket", "1.0"] == second["overshoot_items_count",]
    assert second["top_holder_items", f"mqtt:{relay.port}/-/stuck", "1"] == second["debt_items",]
    assert second["top_debtor_debt_items", account, "1"] == second["debt_items",]
    assert second["rings",] == 0
    ended = ("throttle_duration_seconds_count",)
    assert last[ended] == sum(
        v for (name, *_), v in last.items() if name == "throttle_events_total"
    )
    assert last["throttle_duration_seconds_sum",] >= 0.3
    for key, value in second.items():
        if (
            key[0].endswith(("_total", "_bucket", "_count", "_sum"))
            and "distribution" not in key[0]
        ):
            assert last[key] >= value, key


async def test_a_reader_that_waits_for_its_own_debt() -> None:
    async with running(http="127.0.0.1:0", limit_items=2, profile="lossless") as relay:
        await stall(relay, "account", f"mqtt:{relay.port}/-/pub")


async def test_a_reader_that_waits_for_everybodys_debt() -> None:
    async with running(http="127.0.0.1:0", server_limit_items=2, profile="lossless") as relay:
        # All of it is its share while nobody else owes; it goes on an eighth below that.
        await stall(relay, "share", f"mqtt:{relay.port}/-/pub")
