"""What `/metrics` says of what a relay keeps: sessions, their queues, and the store."""

from __future__ import annotations

import uuid
from pathlib import Path

import attrs
from prometheus_client.parser import text_string_to_metric_families

from clearfunds.accounts import Limit
from clearfunds.transports.mqtt import PubAck
from tests.relay.brokers import Broker, numbered
from tests.transports.peers import RunningRelay, fetch, running, until

Series = dict[tuple[str, ...], float]


async def scrape(relay: RunningRelay, page: str = "/metrics") -> Series:
    """Values by name without the prefix, then the labels' values in the order of their names."""
    text = await fetch(f"{relay.addresses.http}{page}")
    found: Series = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            name = sample.name.removeprefix("clearfunds_").removeprefix("detailed_")
            key = (name, *[v for _, v in sorted(sample.labels.items())])
            assert key not in found
            found[key] = sample.value
    return found


def broker_of(relay: RunningRelay) -> Broker:
    return Broker(relay.port, 20, f"clearfunds-{uuid.uuid4().hex}", lag=0.1)


DETAILED = "/metrics/detailed?family=queue"


async def test_a_queue_fills_while_its_client_is_away_and_empties(tmp_path: Path) -> None:
    store = str(tmp_path / "store")
    async with running(store=store, fsync_interval=0.0, http="127.0.0.1:0") as relay:
        broker = broker_of(relay)
        before = await scrape(relay)
        assert (before["sessions", "away"], before["sessions", "connected"]) == (0, 0)
        assert before["queues",] == before["at_rest_items", "disk"] == before["store_trouble",] == 0
        assert before["debt_limit_bytes", "disk"] == relay.relay.settings.disk_limit
        async with broker.visit(leave=True) as client:
            await client.subscribe(broker.topic)
            assert (await scrape(relay))["sessions", "connected"] == 1
        await broker.publish(numbered(9))
        away = await scrape(relay)
        assert (away["sessions", "away"], away["sessions", "connected"]) == (1, 0)
        assert away["queues",] == 1
        assert (away["queue_messages", "ready"], away["queue_messages", "unacked"]) == (9, 0)
        assert away["queue_bytes", "ready"] == away["at_rest_bytes", "disk"] > 9
        assert away["at_rest_items", "disk"] == 9
        assert away["debt_items",] == 0
        for name, count in (("published", 9), ("stored", 9), ("delivered", 0), ("acked", 0)):
            assert away[f"queue_messages_{name}_total",] == count
        assert away["queue_unwritten_messages",] == away["queue_unsynced_messages",] == 0
        assert away["queue_ram_messages",] + away["queue_disk_only_messages",] == 9
        assert away["store_fsyncs_total",] >= 9
        assert away["store_fsync_seconds_total",] >= away["store_slowest_fsync_seconds",] > 0
        assert away["store_bytes", "used"] > 0
        assert away["store_bytes", "log"] > 0
        assert away["store_commits_total",] >= away["store_fsyncs_total",]
        for name in ("failures", "damages", "rewritten_bytes"):
            assert away[f"store_{name}_total",] == 0
        async with broker.visit(present=True) as client:
            messages = await client.messages(9)
            await client.send(*(PubAck(message.packet_id) for message in messages[:4]))
            await until(lambda: relay.ledger.statistics().at_rest_items["disk"] == 5)
            back = await scrape(relay)
            assert (back["queue_messages", "ready"], back["queue_messages", "unacked"]) == (0, 5)
            assert back["queue_messages_acked_total",] == 4
        async with broker.visit(present=True) as client:
            await client.messages(5)
            again = await scrape(relay)
            assert again["queue_messages_redelivered_total",] == 5
            assert again["queue_messages_requeued_total",] == 5
        await broker.forget()
        over = await scrape(relay)
        assert over["queues",] == over["sessions", "away"] == over["at_rest_items", "disk"] == 0
        # What the queue did that is no more still counts.
        for key, value in again.items():
            if key[0].endswith("_total") and key[0].startswith(("queue_", "store_", "sessions_")):
                assert over[key] >= value, key
        assert over["queue_messages_delivered_total",] == 14
        assert over["queue_messages_purged_total",] + over["queue_messages_dropped_total",] > 0


async def test_what_a_restart_finds_is_counted_as_recovered(tmp_path: Path) -> None:
    store = str(tmp_path / "store")
    async with running(store=store, fsync_interval=0.0, http="127.0.0.1:0") as relay:
        broker = broker_of(relay)
        async with broker.visit(leave=True) as client:
            await client.subscribe(broker.topic)
        await broker.publish(numbered(3))
    async with running(store=store, fsync_interval=0.0, http="127.0.0.1:0") as relay:
        seen = await scrape(relay)
        assert seen["queue_messages_recovered_total",] == seen["at_rest_items", "disk"] == 3
        assert seen["queue_disk_only_messages",] == 3
        assert seen["sessions", "away"] == 1
        broker.port = relay.port
        await broker.forget()


async def test_without_a_store_it_is_kept_in_ram() -> None:
    async with running(http="127.0.0.1:0", kept_limit=1_000_000) as relay:
        broker = broker_of(relay)
        async with broker.visit(leave=True) as client:
            await client.subscribe(broker.topic)
        await broker.publish(numbered(4))
        seen = await scrape(relay)
        assert seen["at_rest_items", "ram"] == seen["queue_messages", "ready"] == 4
        assert seen["debt_limit_bytes", "kept"] == 1_000_000
        assert not [key for key in seen if key[0].startswith("store_")]
        await broker.forget()


async def test_queues_one_by_one_filtered_and_truncated(tmp_path: Path) -> None:
    async with running(
        store=str(tmp_path / "store"), fsync_interval=0.0, http="127.0.0.1:0", max_queued=8
    ) as relay:
        broker = broker_of(relay)
        names = {n: f"{broker.prefix}-{n}" for n in (3, 11)}
        for n, name in names.items():
            async with broker.visit(name, leave=True) as client:
                await client.subscribe(f"{broker.topic}/{n}")
            await broker.publish(numbered(n), topic=f"{broker.topic}/{n}")
        seen = await scrape(relay, DETAILED)

        def of(n: int, name: str) -> float:
            holder = f"mqtt:{relay.port}/-/{names[n]}"
            return seen[f"queue_{name}", f"mqtt/{names[n]}", holder]

        assert (of(3, "ready_messages"), of(11, "ready_messages")) == (3, 8)
        assert (of(3, "messages_dropped_total"), of(11, "messages_dropped_total")) == (0, 3)
        assert of(11, "at_rest_messages") == of(11, "limit_messages") == 8
        assert of(3, "limit_bytes") == relay.relay.settings.max_queued_bytes
        assert 0 < of(3, "at_rest_bytes") == of(3, "ready_bytes")
        assert of(3, "ram_messages") + of(3, "disk_only_messages") == 3
        assert of(3, "consumers") == of(3, "unwritten_messages") == of(3, "unacked_messages") == 0
        assert of(11, "messages_published_total") == 11
        assert seen["truncated_series",] == 0
        a_queue = (len(seen) - 1) // 2
        # What there is most of comes first.
        first = await scrape(relay, f"{DETAILED}&limit={a_queue}")
        assert {key[1] for key in first if len(key) > 1} == {f"mqtt/{names[11]}"}
        assert first["truncated_series",] == a_queue
        for which in (f"account=mqtt/{names[3]}", f"holder=*-/{names[3]}"):
            only = await scrape(relay, f"{DETAILED}&{which}")
            assert {key[1] for key in only if len(key) > 1} == {f"mqtt/{names[3]}"}
        await broker.forget(*names.values())


async def test_sessions_that_expire_or_are_given_up_are_counted(tmp_path: Path) -> None:
    async with running(http="127.0.0.1:0", session_expiry=0.2) as relay:
        broker = broker_of(relay)
        async with broker.visit(leave=True) as client:
            await client.subscribe(broker.topic)
        kept = relay.relay.mqtt.persistent_sessions
        assert kept is not None
        await until(lambda: not kept.by_id)
        assert (await scrape(relay))["sessions_expired_total",] == 1
        # Nobody is there who would make room: see `SessionQueue`.
        kept.settings = attrs.evolve(kept.settings, session_expiry=None)
        async with broker.visit(leave=True) as client:
            await client.subscribe(broker.topic)
        kept.give_up(kept.by_id[broker.name], "no room")
        seen = await scrape(relay)
        assert (seen["sessions_given_up_total",], seen["sessions", "away"]) == (1, 0)


async def test_what_waits_for_room_on_disk_is_told_of(tmp_path: Path) -> None:
    async with running(
        store=str(tmp_path / "store"), fsync_interval=0.0, http="127.0.0.1:0", limit_items=3
    ) as relay:
        broker = broker_of(relay)
        kept = relay.relay.mqtt.persistent_sessions
        assert kept is not None
        async with broker.visit(leave=True) as client:
            await client.subscribe(broker.topic)
        await broker.publish(numbered(2))
        # Room for one like it, were there not the others.
        kept.at_rest.limit = Limit(items=None, bytes=kept.at_rest.debt_bytes)
        async with broker.publisher() as publisher:
            await publisher.client.publish(broker.topic, b"waits", 1, packet_id=1)
            await until(lambda: relay.statistics().debt_items == 1)
            seen = await scrape(relay)
            assert seen["queue_unwritten_messages",] == seen["debt_items",] == 1
            assert seen["at_rest_items", "disk"] == 2
            kept.at_rest.limit = Limit(items=None, bytes=None)
            await publisher.expect(PubAck(1))
        assert (await scrape(relay))["queue_unwritten_messages",] == 0
        await broker.forget()
