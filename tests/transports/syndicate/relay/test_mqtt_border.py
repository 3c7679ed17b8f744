"""One dataspace for MQTT and Syndicate: what is published on one side is seen on the other."""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from clearfunds.transports.mqtt import MqttClient, PubAck, open_mqtt
from tests.programs import needs
from tests.transports.peers import SECONDS, BareClient, connected, frames, kill, until
from tests.transports.syndicate.relay.peers import (
    BIND,
    SyndicateRelay,
    observe,
    rec,
    relay,
    wire,
)
from tests.transports.syndicate.relay.test_transports import web_peer

TCP = "syndicate+tcp://127.0.0.1:0"
MQTT = "mqtt+tcp://127.0.0.1:0"

LARGE = b"x" * 20_000
ANY = rec("publication")
WHOLE = f"<bind {ANY}>"
PAYLOADS = rec("publication", "", BIND)


def publication(topic: str, payload: bytes = b"", qos: int = 0, retain: bool = False) -> str:
    """A publication as Syndicate has it; the payload is written in hexadecimal digits."""
    levels = " ".join(f'"{level}"' for level in topic.split("/"))
    return f'<publication [{levels}] #x"{payload.hex()}" {qos} {"#t" if retain else "#f"}>'


def published(*args: Any, **kwargs: Any) -> str:
    """The packet with which a Syndicate client publishes it."""
    return f"[[0 <M {publication(*args, **kwargs)}>]]"


def shown(lines: list[str], oid: int = 1) -> list[str]:
    """What was shown of messages: the captures, with payloads in plain text."""
    head = f"{oid} ! ["
    assert all(line.startswith(head) for line in lines), lines
    return [plain(line.removeprefix(head).removesuffix("]")) for line in lines]


def plain(line: str) -> str:
    """A line with its byte strings in plain text; the library writes them in base 64."""
    return re.sub(
        r"#\[([A-Za-z0-9+/=]*)\]", lambda found: f'#"{b64decode(found[1]).decode()}"', line
    )


def seen(topic: str, payload: str, qos: int = 0, retain: str = "#f") -> str:
    """How a publication with a payload of plain text is written by `text_of`."""
    levels = " ".join(f'"{level}"' for level in topic.split("/"))
    return f'<publication [{levels}] #"{payload}" {qos} {retain}>'


@asynccontextmanager
async def border(**settings: Any) -> AsyncGenerator[SyndicateRelay]:
    """A relay of both protocols: Syndicate, MQTT, and more if `listen` says so."""
    settings["listen"] = (TCP, MQTT, *settings.get("listen", ()))
    settings.setdefault("max_text_size", 64 << 10)  # for `LARGE`, in hexadecimal digits
    async with relay(**settings) as served:
        yield served
        await until(lambda: not served.running.relay.mqtt.open)


@asynccontextmanager
async def mqtt(
    served: SyndicateRelay, client_id: str = "m", **kw: Any
) -> AsyncGenerator[MqttClient]:
    port = served.where(1)
    assert isinstance(port, int)
    async with open_mqtt("127.0.0.1", port, client_id=client_id, **kw) as client:
        yield client


@asynccontextmanager
async def bare(
    served: SyndicateRelay, client_id: str = "b", **kw: Any
) -> AsyncGenerator[BareClient]:
    async with connected(served.where(1), client_id, **kw) as client:
        yield client


async def received(client: MqttClient, count: int) -> list[tuple[str, bytes, int, bool]]:
    found: list[tuple[str, bytes, int, bool]] = []
    with trio.fail_after(SECONDS):
        for _ in range(count):
            got = await client.receive()
            found.append((got.topic, got.payload, got.qos, got.retain))
    return found


# -- from MQTT ------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", [False, True])
async def test_a_publication_is_seen_as_a_record(text: bool) -> None:
    async with border() as served, served.peer(text=text) as peer, mqtt(served) as client:
        await peer.send(observe(WHOLE))
        await peer.sync()
        for qos in range(3):
            await client.publish("a/b", b"xyz", qos)
            assert shown(await peer.told()) == [seen("a/b", "xyz", qos)]
        for topic in ("a", "/", "a//b", "/a/", "$a/b", "grüße/日本"):
            await client.publish(topic, b"")
            assert shown(await peer.told()) == [seen(topic, "")]
        # To who observes already it is news, as to an MQTT subscriber [MQTT-3.3.1-9].
        await client.publish("a/b", b"kept", 1, retain=True)
        assert shown(await peer.told()) == [seen("a/b", "kept", 1)]
        await client.publish("a/b", b"", retain=True)
        assert shown(await peer.told()) == [seen("a/b", "")]


@pytest.mark.parametrize(
    ("pattern", "told"),
    [
        (WHOLE, "{whole}"),
        (BIND, "{whole}"),
        (PAYLOADS, '#"{payload}"'),
        (f"<bind {PAYLOADS}>", '{whole} #"{payload}"'),
        (ANY, ""),
    ],
)
async def test_runs_arrive_in_order_and_all(pattern: str, told: str) -> None:
    """With QoS 0, of one topic and of several, of one size and of many, in one piece."""
    count = 500
    topics = ["t", "t", "t", "u/v", "t"]
    items = [(topics[n // 50 % 5], f"{n}{'y' * (n % 90 * 3)}") for n in range(count)]
    async with (
        border() as served,
        served.peer() as one,
        served.peer() as two,
        bare(served) as client,
    ):
        for peer in one, two:
            await peer.send(observe(pattern))
            await peer.sync()
        await one.sync()  # who observes everything is told of the other observer
        await client.stream.send_all(frames((topic, text.encode()) for topic, text in items))
        expected = [told.format(whole=seen(topic, text), payload=text) for topic, text in items]
        for peer in one, two:
            assert shown(await peer.lines(count)) == expected


async def test_patterns_on_every_part() -> None:
    def levels(*parts: str) -> str:
        entries = " ".join(f"{n}: {part}" for n, part in enumerate(parts) if part)
        return f"<group <arr> {{{entries}}}>"

    patterns = {
        1: rec("publication", levels('<lit "flights">', '<lit "JFK">', BIND), BIND),
        2: rec("publication", levels("", "", "<_>"), BIND),
        3: rec("publication", "", '<lit #"now">', "", BIND),
        4: rec("publication", "", BIND, "<lit 1>"),
        5: rec("publication", "", BIND, "", "<lit #f>"),
        6: rec("publication", "", BIND, "", "<lit #t>"),
        7: rec("publication", "", BIND, "<lit 1.0>"),
        8: rec("publication", '<lit "flights">', BIND),
        9: rec("publication", "", '<lit "now">'),
        10: "<group <arr> {}>",
    }
    publications = [
        ("flights/JFK/UA", b"now", 0),
        ("flights/JFK", b"later", 1),
        ("flights/LGA/AA", b"now", 2),
        ("flights/JFK/AA/1", b"1", 0),
    ]
    async with border() as served, served.peer() as peer, mqtt(served) as client:
        await peer.send(*[observe(text, oid, oid) for oid, text in patterns.items()])
        await peer.sync()
        for topic, payload, qos in publications:
            await client.publish(topic, payload, qos)
        found: dict[int, list[str]] = {oid: [] for oid in patterns}
        while sum(map(len, found.values())) < 12:
            for line in await peer.told():
                oid, _, what = line.partition(" ! ")
                found[int(oid)].append(plain(what))
        assert await peer.sync() == []
        assert found == {
            1: ['["UA" #"now"]', '["AA" #"1"]'],
            2: ['[#"now"]', '[#"now"]', '[#"1"]'],
            3: ["[#f]", "[#f]"],
            4: ['[#"later"]'],
            5: ['[#"now"]', '[#"later"]', '[#"now"]', '[#"1"]'],
            **{oid: [] for oid in range(6, 11)},
        }


async def test_a_constant_payload_among_runs() -> None:
    """Who looks at the payload takes them one by one, and keeps the order for all."""
    items = [("t", b"yes" if n % 7 == 0 else b"%d" % n) for n in range(300)]
    async with (
        border() as served,
        served.peer() as one,
        served.peer() as all_,
        bare(served) as client,
    ):
        await one.send(observe(rec("publication", BIND, '<lit #"yes">')))
        await one.sync()
        await all_.send(observe(PAYLOADS))
        await all_.sync()
        await client.stream.send_all(frames(items))
        assert shown(await one.lines(43)) == ['["t"]'] * 43
        assert shown(await all_.lines(300)) == [f'#"{p.decode()}"' for _, p in items]
        await one.send("[[0 <R 1>]]")
        await one.sync()
        await client.stream.send_all(frames(items))
        assert shown(await all_.lines(300)) == [f'#"{p.decode()}"' for _, p in items]
        assert await one.sync() == []


# -- to MQTT --------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", [False, True])
async def test_a_record_is_published(text: bool) -> None:
    async with (
        border() as served,
        served.peer(text=text) as peer,
        mqtt(served, "q0") as plain,
        mqtt(served, "q1") as acking,
    ):
        await plain.subscribe("a/#")
        await acking.subscribe("a/+", 1)
        for qos in range(3):
            await peer.send(published("a/b", b"x\0z", qos))
        await peer.send(published("a/b/c", b"1"), published("other", b"2"), published("a/b", LARGE))
        assert await received(plain, 5) == [
            *[("a/b", b"x\0z", 0, False)] * 3,
            ("a/b/c", b"1", 0, False),
            ("a/b", LARGE, 0, False),
        ]
        assert await received(acking, 4) == [
            *[("a/b", b"x\0z", min(qos, 1), False) for qos in range(3)],
            ("a/b", LARGE, 0, False),
        ]
        await until(lambda: not served.ledger.statistics().debt_items)


async def test_what_is_not_acknowledged_is_owed() -> None:
    async with border() as served, served.peer() as peer, bare(served) as client:
        await client.subscribe("t", qos=1)
        await peer.send(*[published("t", b"%d" % n, 1) for n in range(5)])
        await peer.sync()
        got = await client.publications(5)
        assert [p.payload for p in got] == [b"%d" % n for n in range(5)]
        account = served.account(peer)
        for left, each in enumerate(reversed(got)):
            assert account.debt_items == 5 - left
            served.audit()
            await client.send(PubAck(each.packet_id))
            await until(lambda: account.debt_items < 5 - left)  # noqa: B023
        assert account.debt_items == 0


async def test_retained_from_syndicate() -> None:
    async with border() as served, served.peer() as peer:
        await peer.send(published("a/b", b"old", 0, True), published("a/b", b"new", 1, True))
        await peer.send(published("a/c", b"c", 0, True), published("a/d", b"gone", 0, False))
        await peer.sync()
        assert served.statistics.retained == 2
        async with mqtt(served) as client:
            await client.subscribe("a/#", 1)
            found = await received(client, 2)
            assert sorted(found) == [("a/b", b"new", 1, True), ("a/c", b"c", 0, True)]
            await peer.send(published("a/b", b"", 0, True))
            assert await received(client, 1) == [("a/b", b"", 0, False)]
        async with mqtt(served) as client:
            await client.subscribe("a/#", 0)
            assert await received(client, 1) == [("a/c", b"c", 0, True)]
    # It is kept when its publisher has gone.


@pytest.mark.parametrize("quota", [{"quota_items": 5}, {"quota_bytes": 1_000}])
async def test_what_is_retained_is_counted_against_a_quota(quota: dict[str, int]) -> None:
    async with border(**quota) as served, served.peer() as peer, mqtt(served) as client:
        await client.subscribe("t/#")
        await peer.send(*[published(f"t/{n % 3}", b"y" * 200, 0, True) for n in range(12)])
        await peer.sync()
        assert served.statistics.retained == 3
        assert len(await received(client, 12)) == 12
        await peer.send(*[published(f"t/{n}", b"y" * 200, 0, True) for n in range(3, 12)])
        why, _ = await peer.refused()
        assert "quota" in why
        kept = served.statistics.retained
        assert 4 <= kept <= 5
        # Nobody was told of what was not kept.
        assert len(await received(client, kept - 3)) == kept - 3
        await client.publish("t/end")
        assert await received(client, 1) == [("t/end", b"", 0, False)]


@pytest.mark.parametrize(
    ("record", "why"),
    [
        ("<publication>", "it has 0 fields"),
        ('<publication "a" #"" 0 #f>', "its levels are not a sequence of strings"),
        ('<publication ["a/b"] #"" 0 #f>', "there is a / within a level"),
        ('<publication ["a" "+"] #"" 0 #f>', "contains a wildcard"),
        ('<publication ["$SYS" "x"] #"" 0 #f>', "the server's own"),
        ('<publication ["a"] "" 0 #f>', "its payload is not a byte string"),
        ('<publication ["a"] #"" 3 #f>', "its QoS is not 0, 1 or 2"),
        ('<publication ["a"] #"" 0 0>', "not a boolean"),
    ],
)
@pytest.mark.parametrize("text", [False, True])
async def test_what_is_no_publication_is_refused(record: str, why: str, text: bool) -> None:
    good = publication("t", b"good")
    async with border() as served, served.peer() as other, mqtt(served) as client:
        await client.subscribe("#")
        await other.send(observe(ANY))
        await other.sync()
        async with served.peer(text=text) as peer:
            before = f"[[0 <M {good}>]]"
            turn = f"[[0 <M {publication('t', b'never', 0, True)}>] [0 <A x 1>] [0 <M {record}>]]"
            await peer.send(before, turn, before)
            said, _ = await peer.refused()
        assert why in said
        assert 'write <publication ["level" ...] #"payload" qos retain>' in said
        assert served.statistics.retained == 0
        await client.publish("end")
        assert [topic for topic, *_ in await received(client, 2)] == ["t", "end"]
        assert await other.lines(2) == ["1 ! []"] * 2
        assert served.side.counters.protocol_errors == 1


# -- accounts -------------------------------------------------------------------------------------


@pytest.fixture
def unix(tmp_path: Any) -> str:
    """The URL of a Syndicate listener whose sockets have little room."""
    return f"syndicate+unix://{tmp_path}/relay"


@pytest.mark.parametrize("qos", [0, 1])
async def test_an_mqtt_publisher_waits_for_a_syndicate_observer(unix: str, qos: int) -> None:
    count = 100
    async with (
        border(listen=(unix,), limit_items=4, patience=60) as served,
        served.peer(2) as stuck,
        bare(served, "publisher") as client,
    ):
        await stuck.send(observe(PAYLOADS))
        await stuck.sync()
        account = served.running.account("publisher")
        async with trio.open_nursery() as nursery:

            async def publish() -> None:
                for n in range(count):
                    packet_id = n + 1 if qos else 0
                    await client.publish("t", b"%d " % n + LARGE, qos, packet_id=packet_id)

            nursery.start_soon(publish)
            await until(lambda: account.waiting)
            served.audit()
            (name,) = served.holders(account)
            assert name.startswith("syndicate:/")
            lines = shown(await stuck.lines(count))
        assert lines == [f'#"{n} {LARGE.decode()}"' for n in range(count)]
        await until(lambda: not account.debt_items)
        if qos:
            for n in range(count):
                await client.expect(PubAck(n + 1))


async def test_a_syndicate_publisher_waits_for_an_mqtt_subscriber(tmp_path: Any) -> None:
    count, path = 100, f"{tmp_path}/mqtt"
    async with (
        border(
            listen=(f"mqtt+unix://{path}",), limit_items=4, patience=60, connect_timeout=60
        ) as served,
        connected(path, "stuck") as stuck,
        served.peer() as quick,
        served.peer() as peer,
    ):
        await stuck.subscribe("t")
        await quick.send(observe(rec("publication", BIND)))
        await quick.sync()
        account = served.account(peer)
        packets = [published("t", b"%d " % n + LARGE) for n in range(count)]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(peer.send_raw, wire(*packets))
            await until(lambda: account.waiting)
            await until(
                lambda: [*served.holders(account)] == [served.running.account("stuck").name]
            )
            served.audit()
            got = await stuck.publications(count)
            assert await quick.lines(count) == ['1 ! [["t"]]'] * count
        assert [int(p.payload.split(b" ")[0]) for p in got] == list(range(count))
        await until(lambda: not account.debt_items)


async def test_an_mqtt_publisher_waits_for_credit_on_the_wire() -> None:
    async with (
        border(turn_credit="request", limit_items=10, patience=60) as served,
        served.peer() as observer,
        bare(served, "publisher") as client,
    ):
        assert "do" in str(await observer.packet())
        await observer.send("<will <credit-flow-control 202506>>", observe(PAYLOADS))
        account = served.running.account("publisher")
        await until(lambda: served.statistics.observations == 1)
        await client.stream.send_all(frames(("t", b"%d" % n) for n in range(100)))
        await until(lambda: account.waiting)
        for n in range(100):
            assert shown(await observer.lines(1)) == [f'#"{n}"']
            assert account.debt_items
            await observer.send("<C 1>")
        await until(lambda: not account.debt_items)


# -- coming and going -----------------------------------------------------------------------------


async def test_observers_come_and_go_during_runs() -> None:
    """Each sees a stretch without gaps, and MQTT subscribers see it all."""
    done = trio.Event()
    sent = 0
    stretches: list[list[int]] = []
    async with (
        border() as served,
        mqtt(served, "publisher") as client,
        mqtt(served, "subscriber", max_buffered=100_000) as subscriber,
    ):
        await subscriber.subscribe("#")

        async def publish() -> None:
            nonlocal sent
            while not done.is_set():
                for _ in range(40):
                    await client.publish(f"t/{sent // 7 % 3}", b"%d" % sent, wait=False)
                    sent += 1
                await client.flush()
                await trio.lowlevel.checkpoint()

        async def watch(pattern: str, stretch: int) -> None:
            async with served.peer() as peer:
                for handle in range(3):
                    await peer.send(observe(pattern, handle + 1, handle))
                    numbers = [
                        int(line[2:-1]) for line in shown(await peer.lines(stretch), handle + 1)
                    ]
                    await peer.send(f"[[0 <R {handle}>]]")
                    turns = await peer.sync()
                    for turn in turns:
                        numbers += [int(line[2:-1]) for line in shown(turn, handle + 1)]
                    stretches.append(numbers)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(publish)
            async with trio.open_nursery() as watchers:
                for n in range(4):
                    watchers.start_soon(watch, PAYLOADS, 30 + 17 * n)
                watchers.start_soon(watch, rec("publication", "", BIND, "<lit 0>"), 100)
            done.set()
        assert len(stretches) == 15
        for numbers in stretches:
            assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
        got = await received(subscriber, sent)
        assert [int(payload) for _, payload, *_ in got] == list(range(sent))


async def test_publications_over_websocket() -> None:
    """One a message, in both directions."""
    items = [("t", f"{n}{'y' * (n % 90 * 3)}") for n in range(300)]
    texts = [text for _, text in items]
    async with (
        border(listen=("syndicate+ws://127.0.0.1:0",)) as served,
        web_peer(served.running.addresses.listening[2]) as web,
        bare(served) as client,
    ):
        await web.send(observe(PAYLOADS))
        await web.sync()
        await client.stream.send_all(frames((topic, text.encode()) for topic, text in items))
        for text in texts:
            assert shown(await web.told()) == [f'#"{text}"']
        await web.send("[[0 <R 1>]]")
        await client.subscribe("t")
        for text in texts:
            await web.send(published("t", text.encode()))
        assert [p.payload.decode() for p in await client.publications(300)] == texts


# -- with clients of others -----------------------------------------------------------------------


@needs("mosquitto_pub", "mosquitto_sub")
async def test_with_mosquittos_clients() -> None:
    async with border() as served, served.peer() as peer:
        await peer.send(observe(WHOLE))
        await peer.sync()
        port = str(served.where(1))
        for qos in "012":
            command = ["mosquitto_pub", "-p", port, "-t", "a/b", "-m", "hello", "-q", qos]
            with trio.fail_after(SECONDS):
                await trio.run_process(command)
            assert shown(await peer.told()) == [seen("a/b", "hello", int(qos))]
        await peer.send(published("kept", b"value", 1, True))
        await peer.told()
        command = [
            "mosquitto_sub",
            "-p",
            port,
            "-t",
            "#",
            "-q",
            "1",
            "-C",
            "3",
            "-F",
            "%r %q %t %p",
        ]
        async with trio.open_nursery() as nursery:

            async def subscribe() -> None:
                with trio.fail_after(SECONDS):
                    process = await trio.run_process(
                        command, capture_stdout=True, deliver_cancel=kill
                    )
                assert process.stdout == b"1 1 kept value\n0 0 a one\n0 1 a two\n"

            nursery.start_soon(subscribe)
            await until(lambda: served.statistics.subscriptions == 1)
            await peer.send(published("a", b"one"), published("a", b"two", 2))
