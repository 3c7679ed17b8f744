"""What an operator sees of what is kept: a client that is away, a spent disk budget, an alarm."""

from __future__ import annotations

import json
import re
import uuid
from pathlib import Path
from typing import Any

import trio

from clearfunds._cli._top._top_words import first_line, incident_sentence, totals, what_next
from clearfunds.transports.mqtt import PubAck
from tests.relay.brokers import Broker, numbered
from tests.transports.peers import RunningRelay, connected, fetch, running, until


async def look(relay: RunningRelay) -> Any:
    return json.loads(await fetch(f"{relay.addresses.http}/ledger.json?top=20"))


def broker_of(relay: RunningRelay) -> Broker:
    return Broker(relay.port, 20, f"clearfunds-{uuid.uuid4().hex}", lag=0.1)


async def test_a_queue_that_fills_while_its_client_is_away_is_no_debt(tmp_path: Path) -> None:
    async with running(
        store=str(tmp_path / "store"), fsync_interval=0.0, http="127.0.0.1:0"
    ) as relay:
        broker = broker_of(relay)
        # What is empty is not shown: neither the root of what is kept, nor as one that owes.
        page = await look(relay)
        assert [row["name"] for row in page["levels"] + page["accounts"]] == ["server"]
        async with broker.visit(leave=True) as client:
            await client.subscribe(broker.topic)
        page = await look(relay)
        assert [row["name"] for row in page["levels"] + page["accounts"]] == ["server"]
        assert page["holders"] == []
        await broker.publish(numbered(30))
        page = await look(relay)
        assert first_line(page) == "Nobody waits."
        assert page["totals"]["debt_items"] == 0
        assert "30 items, " in totals(page)
        assert totals(page).count("kept on disk") == 1
        assert page["accounts"] == []
        server, disk = page["levels"]
        assert server["name"] == "server"
        assert (disk["name"], disk["debt_items"], disk["at_rest"]) == ("disk", 30, "disk")
        assert disk["limit_bytes"] == relay.relay.settings.disk_limit
        [queue] = page["holders"]
        assert (queue["kind"], queue["items"], queue["waited_items"]) == ("queue", 30, 0)
        assert queue["away"]
        whole = json.loads(await fetch(f"{relay.addresses.http}/ledger.json"))
        assert whole["totals"]["debt"] == {"items": 0, "bytes": 0}
        assert whole["totals"]["at_rest"]["disk"]["items"] == 30
        own = {row["name"]: row["at_rest"] for row in whole["accounts"]}
        assert own == {"server": None, "disk": "disk", f"mqtt/{broker.name}": "disk"}
        assert whole["audit"]["balanced"]
        await broker.forget()


async def test_who_is_in_the_way_when_the_disk_budget_is_spent_and_what_comes_next(
    tmp_path: Path,
) -> None:
    async with running(
        store=str(tmp_path / "store"),
        fsync_interval=0.0,
        http="127.0.0.1:0",
        disk_limit=2000,
        limit_items=10,
        patience=2.0,
        stuck="disconnect",
    ) as relay:
        broker = broker_of(relay)
        name = f"mqtt:{relay.port}/-/{broker.name}"
        async with broker.visit(leave=True) as client:
            await client.subscribe(broker.topic)
        async with connected(relay.port, "pub") as publisher:
            for n in range(1, 31):
                await publisher.publish(broker.topic, bytes(200), 1, packet_id=n)
            page: Any = None
            with trio.fail_after(5):
                while not (page and page["waits"] and page["waits"][0]["seconds"] > 1.2):
                    await trio.sleep(0.1)
                    page = await look(relay)
            [wait] = page["waits"]
            assert [on["name"] for on in wait["on"]] == [name]
            line = first_line(page)
            assert line.startswith(f"mqtt:{relay.port}/-/pub waits for {name}, for ")
            held = rf"queue {re.escape(name)} holds \d+ items and has made no progress for "
            assert re.search(held, line), line
            assert ", its client is away; its session is ended in " in line
            assert f"unless it comes back, and mqtt:{relay.port}/-/pub goes on then." in line
            assert what_next(page["holders"][0]).startswith("ended in ")
            kept = relay.relay.mqtt.persistent_sessions
            assert kept is not None
            await until(lambda: not kept.by_id)
            await until(lambda: not relay.statistics().waiting)
            page = await look(relay)
            [told] = [incident_sentence(each) for each in page["incidents"] if each["given_up"]]
            assert told.startswith(f"The session of {name}, who was away, was ended ")
            assert "written off" not in told
            await publisher.reset()


async def test_trouble_and_alarms_are_named(tmp_path: Path) -> None:
    async with running(store=str(tmp_path / "store"), http="127.0.0.1:0") as relay:
        shelves: Any = relay.relay.persistence
        shelves.note_trouble("disk", "cannot write to the store: the disk is full")
        relay.ledger.alarms["disk"] = True
        relay.relay.mqtt.account.halt("disk")
        async with connected(relay.port, "pub") as publisher:
            await publisher.publish("t", b"x")
            await until(lambda: relay.statistics().waiting)
            page = await look(relay)
            assert page["alarms"] == ["disk"]
            assert page["troubles"] == ["cannot write to the store: the disk is full"]
            [wait] = page["waits"]
            assert (wait["at"], wait["alarms"], wait["on"]) == ("server", ["disk"], [])
            assert first_line(page).startswith(f"mqtt:{relay.port}/-/pub waits, for ")
            assert first_line(page).endswith(
                "for an alarm: the disk is nearly full; nobody who publishes is read until that "
                "is over."
            )
            shelves.note_trouble("disk", None)
            relay.ledger.alarms["disk"] = False
            relay.relay.mqtt.account.resume("disk")
        page = await look(relay)
        assert page["alarms"] == page["troubles"] == []


async def test_no_session_ends_because_the_disk_is_in_trouble(tmp_path: Path) -> None:
    async with running(
        store=str(tmp_path / "store"),
        fsync_interval=0.0,
        http="127.0.0.1:0",
        limit_items=5,
        patience=1.4,
    ) as relay:
        broker = broker_of(relay)
        async with broker.visit(leave=True) as client:
            await client.subscribe(broker.topic)
        await broker.publish(numbered(3))
        shelves: Any = relay.relay.persistence
        shelves.note_trouble("disk", "cannot write: the disk is full")
        async with connected(relay.port, "pub") as publisher:
            for n in range(1, 21):
                await publisher.publish(broker.topic, b"x", 1, packet_id=n)
            await until(lambda: relay.statistics().waiting)
            await trio.sleep(1.6)  # its patience has been over once
            with trio.fail_after(5):
                page = await look(relay)
                waits = "its client is away; it is waited for, however long it takes."
                while not first_line(page).endswith(waits):
                    await trio.sleep(0.1)
                    page = await look(relay)
            first = page["waits"][0]["on"][0]["name"]
            (holder,) = (each for each in page["holders"] if each["name"] == first)
            assert what_next(holder) == "is waited for"
            assert page["incidents"] == []
            shelves.note_trouble("disk", None)
            for n in range(1, 21):
                await publisher.expect(PubAck(n))
        async with broker.visit(present=True) as client:
            assert len(await client.take(23)) == 23
        await broker.forget()
