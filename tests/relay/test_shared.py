"""Shared subscriptions with clients that others have written, and a relay that is killed."""

from __future__ import annotations

import json
import queue
import random
from collections import Counter
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from clearfunds.transports.mqtt import Publish, Subscribe
from tests.programs import needs
from tests.relay.faithful import PAUSE, Life, Load, Subscriber
from tests.relay.relay_process import relay_process
from tests.relay.test_clients import subscribed
from tests.transports.peers import SECONDS, BareClient, connected, fetch, running, until

needs_mosquitto = needs("mosquitto_sub")


@needs_mosquitto
@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_mosquittos_clients_share(qos: int) -> None:
    """One of them speaks 3.1.1, the other 5; each message is printed by one of them."""
    options = ["-t", "$share/g/t/#", "-q", str(qos)]
    async with (
        running() as relay,
        subscribed(relay, "-V", "311", *options) as one,
        subscribed(relay, "-V", "5", *options, filters=0) as two,
        connected(relay.port, "p") as publisher,
    ):
        await until(lambda: len(group_members(relay)) == 2)
        lines: list[list[bytes]] = [[], []]

        async def read(process: trio.Process, found: list[bytes]) -> None:
            assert process.stdout is not None
            rest = b""
            async for piece in process.stdout:
                *whole, rest = (rest + piece).split(b"\n")
                found += whole

        async with trio.open_nursery() as nursery:
            for process, found in zip((one, two), lines, strict=True):
                nursery.start_soon(read, process, found)
            count = 0

            def all_are_there() -> bool:
                return len(lines[0]) + len(lines[1]) >= count

            with trio.fail_after(SECONDS):
                # A process that gets no time for a while leaves them to the other one.
                while count < 40 or min(map(len, lines)) < 5:
                    await publisher.publish(
                        "t/x", b"%d" % count, qos, packet_id=count % 60_000 + 1 if qos else 0
                    )
                    count += 1
                    if not count % 40:
                        await until(all_are_there)
            await until(all_are_there)
            await trio.sleep(0.1)
            nursery.cancel_scope.cancel()
        assert sorted(lines[0] + lines[1], key=int) == [b"%d" % n for n in range(count)]
        relay.audit()


def group_members(relay: Any) -> list[Any]:
    return [
        member
        for group in relay.relay.mqtt.groups.by_key.values()
        for member in group.group.members
    ]


async def test_paho_shares_and_what_it_did_not_acknowledge_goes_to_another() -> None:
    paho: Any = pytest.importorskip("paho.mqtt.client", reason="paho-mqtt is not installed")

    def member(port: int, name: str) -> tuple[Any, queue.Queue[Any]]:
        got: queue.Queue[Any] = queue.Queue()
        client = paho.Client(
            paho.CallbackAPIVersion.VERSION2, name, protocol=paho.MQTTv5, manual_ack=True
        )

        def on_message(_: Any, __: Any, message: Any) -> None:
            got.put(message)

        def on_subscribe(_: Any, __: Any, ___: Any, reasons: Any, ____: Any) -> None:
            got.put(reasons)

        client.on_message = on_message
        client.on_subscribe = on_subscribe
        client.connect("127.0.0.1", port, clean_start=True)
        client.loop_start()
        client.subscribe("$share/jobs/t/#", qos=1)
        assert [each.value for each in got.get(timeout=SECONDS)] == [1]
        return client, got

    def test(port: int) -> None:
        a, from_a = member(port, "a")
        b, from_b = member(port, "b")
        c = paho.Client(paho.CallbackAPIVersion.VERSION2, "c", protocol=paho.MQTTv5)
        c.connect("127.0.0.1", port)
        c.loop_start()
        try:
            for n in range(6):
                c.publish("t/x", b"%d" % n, 1).wait_for_publish(SECONDS)
            had = [[each.get(timeout=SECONDS) for _ in range(3)] for each in (from_a, from_b)]
            every = sorted(message.payload for one in had for message in one)
            assert every == [b"%d" % n for n in range(6)]
            for message in had[1]:
                b.ack(message.mid, message.qos)
            a.disconnect()
            again = [from_b.get(timeout=SECONDS) for _ in range(3)]
            assert [m.payload for m in again] == [m.payload for m in had[0]]
            assert not any(message.dup for message in again)
            for message in again:
                b.ack(message.mid, message.qos)
        finally:
            for client in (a, b, c):
                client.disconnect()
                client.loop_stop()

    async with running() as relay:
        await trio.to_thread.run_sync(test, relay.port)
        await relay.deserted()


async def test_the_pages_tell_of_a_group() -> None:
    async with running(http="127.0.0.1:0") as relay:
        url = relay.addresses.http
        assert url is not None
        async with connected(relay.port, "p") as publisher, connected(relay.port, "a") as a:
            await a.subscribe("$share/g/t", qos=1)
            for n in range(40):
                await publisher.publish("t", b"x", 1, packet_id=n + 1)
            (group,) = relay.relay.mqtt.groups.by_key.values()
            await until(lambda: group.group.counters.published == 40)
            ledger = json.loads(await fetch(f"{url}/ledger.json"))
            (row,) = [each for each in ledger["holders"] if each["kind"] == "group"]
            name = relay.account("a").name
            assert row["name"] == "$share/g/t"
            assert row["held"]["items"] == 40
            told = row["group"]
            assert (told["ready"], told["unacked"], told["redelivered"]) == (8, 32, 0)
            assert told["members"] == [
                {"name": name, "delivered": 32, "unacked": 32, "flows": True}
            ]
            assert ledger["audit"]["balanced"]
            metrics = await fetch(f"{url}/metrics")
            assert "clearfunds_shared_groups 1.0" in metrics
            assert 'clearfunds_shared_members{state="connected"} 1.0' in metrics
            assert 'clearfunds_queue_messages{state="unacked"} 32.0' in metrics
            detailed = await fetch(f"{url}/metrics/detailed?family=group")
            labels = f'{{holder="$share/g/t",member="{name}"}}'
            assert f"clearfunds_detailed_group_member_messages_total{labels} 32" in detailed
            assert f"clearfunds_detailed_group_member_flows{labels} 1" in detailed


# -- killed ---------------------------------------------------------------------------------------


@attrs.define(eq=False)
class Sharing(Subscriber):
    """One of a group; its session is kept, and it comes and goes."""

    async def _ask(self, client: BareClient) -> None:
        self.asked = len(self.acked)
        await client.send(Subscribe(9, (("$share/g/load/#", self.qos),)))

    def _look_at(self, packet: Publish, life: Life) -> None:
        self.again += packet.payload.rstrip() in self.seen
        self.seen.add(packet.payload.rstrip())


async def all_taken(load: Load) -> None:
    """Publish nothing more, and wait until each message has come to one of the group."""
    load.publishing = False
    await until(lambda: not any(each.unfinished for each in load.publishers))

    def missing() -> list[bytes]:
        taken = {payload for each in load.subscribers for payload in each.taken}
        return sorted(load.confirmed - taken)

    with trio.move_on_after(SECONDS):
        while missing():  # noqa: ASYNC110
            await trio.sleep(PAUSE)
    assert not missing(), (len(missing()), missing()[:5])


async def killed(directory: Path, number: int, seed: int) -> Load:
    """Kill a relay so many times while a group shares a load; nothing may be lost, or doubled."""
    chance = random.Random(seed)
    load = Load(seed)
    for qos in (1, 2):
        load.publisher(f"p{qos}kept", qos)
        load.publisher(f"p{qos}large", qos, size=5_000, window=3)
    load.subscribers += [Sharing(load, f"s{n}", 2, random.Random(f"{seed} {n}")) for n in range(3)]
    async with (
        relay_process(directory, "--fsync-interval", "0.05") as relay,
        trio.open_nursery() as nursery,
    ):
        load.life = Life(relay.port)
        load.start(nursery)
        await until(lambda: load.confirmed)
        for _ in range(number):
            await trio.sleep(chance.uniform(0.05, 0.7))
            await relay.kill()
            await relay.start()
            await relay.audit()
        await trio.sleep(0.3)
        await all_taken(load)
        await trio.sleep(0.2)
        await relay.audit()
        load.over = True
        nursery.cancel_scope.cancel()
    assert "Traceback" not in relay.log
    assert not any(each.faults for each in load.subscribers)
    taken = Counter(payload for each in load.subscribers for payload in each.taken)
    once = [p for publisher in load.publishers if publisher.qos == 2 for p in publisher.sent]
    twice = [payload for payload in once if taken[payload] > 1]
    assert not twice, (len(twice), twice[:5])
    return load


async def test_killed_while_a_group_shares(tmp_path: Path) -> None:
    load = await killed(tmp_path, 4, 1)
    assert len(load.confirmed) > 100
    assert all(each.taken for each in load.subscribers)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(10))
async def test_killed_while_a_group_shares_a_hundred_times(tmp_path: Path, seed: int) -> None:
    await killed(tmp_path, 10, seed)
