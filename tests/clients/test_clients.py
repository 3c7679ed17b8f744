"""The same for every client library: what a relay promises, each by its own code."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from clearfunds.access import Passwords
from clearfunds.access._scram import ScramKeys
from clearfunds.access.acl import Acl
from tests.clients.peers import PYTHON, Client, Kind, joined, parameters, started
from tests.transports.mqtt.users import user_line
from tests.transports.peers import running, until

everybody = pytest.mark.parametrize("kind", parameters(), indirect=True)
five = pytest.mark.parametrize("kind", parameters(5), indirect=True)


def having(*features: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("kind", parameters(5, *features), indirect=True)


@everybody
async def test_messages_go_both_ways(kind: Kind) -> None:
    async with running() as relay:
        async with joined(relay, kind) as client:
            for qos in (0, 1, 2):
                assert await client.subscribe(f"t/{qos}/+", qos) == [qos]
                for number in range(50):
                    await client.send(f"t/{qos}/ä", f"{number} ö", qos)
                for number in range(50):
                    message = await client.message()
                    assert message["topic"] == f"t/{qos}/ä"
                    assert message["payload"] == f"{number} ö"
                    assert (message["qos"], message["retain"]) == (qos, False)
                for _ in range(50):
                    assert (await client.event("puback"))["code"] == 0
            await client.disconnect()
        await relay.deserted()


@everybody
async def test_a_kept_session_gets_what_it_has_not_acknowledged(kind: Kind) -> None:
    stays = {"clean": False, "expiry": 3_600}
    async with running() as relay, joined(relay, kind, "publisher") as publisher:
        async with joined(relay, kind, "kept", manual=True, **stays) as client:
            await client.subscribe("t", 2)
            await publisher.publish("t", "first", 1)
            assert await client.payloads(1) == ["first"]
            await client.kill()
        await until(lambda: "kept" not in relay.relay.mqtt.sessions)
        await publisher.publish("t", "second", 1)
        await publisher.publish("t", "third", 2)
        async with started(kind) as client:
            assert (await client.connect(relay, "kept", **stays))["present"]
            message = await client.message()
            assert message["payload"] == "first"
            assert message.get("dup", True)
            assert await client.payloads(2) == ["second", "third"]
            await until(lambda: not relay.statistics().debt_items)
            await client.disconnect()
        async with started(kind) as client:
            assert not (await client.connect(relay, "kept"))["present"]
            await client.subscribe("t")
            await publisher.publish("t", "fourth")
            assert await client.payloads(1) == ["fourth"]


@everybody
async def test_kept_sessions_and_groups_outlive_the_relay(kind: Kind, tmp_path: Path) -> None:
    stays = {"clean": False, "expiry": 3_600}
    store = str(tmp_path / "store")
    async with running(store=store) as relay, joined(relay, kind, "publisher") as publisher:
        async with joined(relay, kind, "kept", manual=True, **stays) as client:
            await client.subscribe("t", 2)
            await client.subscribe("$share/group/s", 2)
            await publisher.publish("t", "first", 1)
            assert await client.payloads(1) == ["first"]
            await client.kill()
        await until(lambda: "kept" not in relay.relay.mqtt.sessions)
        await publisher.publish("r", "retained", 1, retain=True)
        for number in (1, 2):
            await publisher.publish("t", f"t{number}", number)
            await publisher.publish("s", f"s{number}", number)
    async with running(store=store) as relay, started(kind) as client:
        assert (await client.connect(relay, "kept", **stays))["present"]
        payloads = await client.payloads(5)
        assert sorted(payloads) == ["first", "s1", "s2", "t1", "t2"]
        assert payloads.index("t1") > payloads.index("first")
        await until(lambda: not relay.statistics().debt_items)
        await client.subscribe("r")
        message = await client.message()
        assert (message["payload"], message["retain"]) == ("retained", True)


@everybody
@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_a_message_goes_to_one_member_of_a_group(kind: Kind, qos: int) -> None:
    async with (
        running() as relay,
        joined(relay, kind, "a") as first,
        joined(relay, kind, "b") as second,
    ):
        had: dict[Client, list[str]] = {first: [], second: []}
        for member in had:
            assert await member.subscribe("$share/group/t/#", qos) == [qos]

        async def listen(member: Client) -> None:
            while True:
                had[member].append((await member.message())["payload"])

        async with trio.open_nursery() as nursery:
            for member in had:
                nursery.start_soon(listen, member)
            for number in range(40):
                await first.send("t/1", str(number), qos)
            await until(lambda: sum(map(len, had.values())) >= 40)
            await until(lambda: not relay.statistics().debt_items)
            nursery.cancel_scope.cancel()
        assert sorted(had[first] + had[second], key=int) == [str(n) for n in range(40)]
        assert had[first]
        assert had[second]


@everybody
async def test_a_member_leaves_without_acknowledging(kind: Kind) -> None:
    async with running() as relay, joined(relay, kind, "other") as other:
        async with joined(relay, kind, "silent", manual=True) as silent:
            await silent.subscribe("$share/group/t")
            await other.publish("t", "0")
            assert await silent.payloads(1) == ["0"]
            await other.subscribe("$share/group/t")
            for number in range(1, 4):
                await other.publish("t", str(number))
            await silent.kill()
        assert sorted(await other.payloads(4)) == ["0", "1", "2", "3"]


@everybody
async def test_kept_members_get_what_came_while_they_were_away(kind: Kind) -> None:
    stays = {"clean": False, "expiry": 3_600}
    async with running() as relay, joined(relay, kind, "publisher") as publisher:
        async with joined(relay, kind, "kept", **stays) as member:
            await member.subscribe("$share/group/t", 2)
            await member.disconnect()
        await until(lambda: "kept" not in relay.relay.mqtt.sessions)
        for number in range(4):
            await publisher.publish("t", str(number), 1 + number // 2)
        async with started(kind) as member:
            assert (await member.connect(relay, "kept", **stays))["present"]
            assert await member.payloads(4) == ["0", "1", "2", "3"]
            await until(lambda: not relay.statistics().debt_items)


@everybody
async def test_a_will_is_published_for_who_dies_and_not_for_who_leaves(kind: Kind) -> None:
    will = {"payload": "gone", "qos": 1, "retain": True}
    async with running() as relay, joined(relay, kind, "watcher") as watcher:
        await watcher.subscribe("will/+")
        async with joined(relay, kind, "leaves", will={"topic": "will/leaves", **will}) as client:
            await client.disconnect()
        async with joined(relay, kind, "dies", will={"topic": "will/dies", **will}) as client:
            await client.kill()
        message = await watcher.message()
        assert (message["topic"], message["payload"], message["qos"]) == ("will/dies", "gone", 1)
        async with joined(relay, kind, "late") as late:
            await late.subscribe("will/#")
            message = await late.message()
            assert (message["topic"], message["retain"]) == ("will/dies", True)


@everybody
async def test_the_last_of_a_topic_is_retained_until_an_empty_one(kind: Kind) -> None:
    async with running() as relay, joined(relay, kind) as client:
        for qos in (0, 1, 2):
            await client.publish(f"r/{qos}", "before", qos, retain=True)
            await client.publish(f"r/{qos}", "kept", qos, retain=True)
        await client.subscribe("r/+", 2)
        found = [await client.message() for _ in range(3)]
        assert {each["topic"]: each["qos"] for each in found} == {f"r/{n}": n for n in range(3)}
        assert {(each["payload"], each["retain"]) for each in found} == {("kept", True)}
        await client.publish("r/0", "", retain=True)
        message = await client.message()
        assert (message["payload"], message["retain"]) == ("", False)
        await until(lambda: len(relay.relay.mqtt.dataspace.retained) == 2)


@five
async def test_properties_arrive_as_they_were_sent(kind: Kind) -> None:
    said = {
        "user": [["a", "1"], ["a", "2"]],
        "content_type": "text/plain",
        "response_topic": "answers/1",
        "correlation": "n1",
        "message_expiry": 60,
    }
    async with running() as relay, joined(relay, kind) as client:
        numbered = {"identifier": 11} if "identifiers" in kind.can else {}
        await client.subscribe("t", 2, **numbered)
        for qos in (0, 1, 2):
            assert await client.publish("t", "x", qos, **said) == 0
            message = await client.message()
            assert 0 < message.pop("message_expiry") <= 60
            assert message == message | {k: v for k, v in said.items() if k != "message_expiry"}
            assert message.get("identifiers", [11]) == [11]


@having("anonymous")
async def test_a_client_is_told_its_name_and_its_keep_alive(kind: Kind) -> None:
    async with running(max_keep_alive=60) as relay, started(kind) as one, started(kind) as other:
        told = [await each.connect(relay, "", keep_alive=3_600) for each in (one, other)]
        assert [each["keep_alive"] for each in told] == [60, 60]
        assert [len(each["assigned"]) for each in told] == [len("auto-") + 32] * 2
        assert told[0]["assigned"] != told[1]["assigned"]


@five
async def test_a_publisher_hears_that_nobody_subscribes(kind: Kind) -> None:
    async with running() as relay, joined(relay, kind) as client:
        assert await client.publish("nobody/subscribes") == 0x10
        await client.subscribe("somebody/#")
        assert await client.publish("somebody/subscribes") == 0


@five
async def test_topics_that_the_relay_shortens(kind: Kind) -> None:
    async with running() as relay, joined(relay, kind, aliases=2) as client:
        await client.subscribe("#")
        topics = [f"long/topic/number/{n}" for n in (1, 2, 1, 2, 1, 2, 3, 1, 3, 3, 1)]
        for topic in topics:
            await client.send(topic)
        long: dict[int, str] = {}
        for topic in topics:
            message = await client.message()
            # Some libraries leave it to their user to know which topic an alias stands for.
            if (alias := message.get("alias")) is not None:
                message["topic"] = long[alias] = message["topic"] or long[alias]
            assert message["topic"] == topic
        session = relay.relay.mqtt.sessions["c"]
        side = session._sender.mqtt5  # pyright: ignore[reportPrivateUsage]
        assert side is not None
        assert side._aliases is not None  # pyright: ignore[reportPrivateUsage]
        assert len(side._aliases) == 2  # pyright: ignore[reportPrivateUsage]


@having("aliases")
async def test_topics_that_a_client_shortens(kind: Kind) -> None:
    async with running() as relay, joined(relay, kind) as client:
        await client.subscribe("#", 2)
        for qos in (0, 1, 2):
            assert await client.publish(f"long/topic/{qos}", "x", qos, alias=1) == 0
            assert await client.publish("", "y", qos, alias=1) == 0
            for payload in ("x", "y"):
                message = await client.message()
                assert (message["topic"], message["payload"]) == (f"long/topic/{qos}", payload)


@everybody
async def test_what_is_not_allowed_is_refused(kind: Kind) -> None:
    # paho-mqtt releases what has been refused, too, and tells of that answer alone.
    refused = {5: {0x87, 0x92} if kind.language is PYTHON else {0x87}, 4: {0}}[kind.version]
    async with (
        running(acl=Acl.from_text("topic readwrite open/#\n")) as relay,
        joined(relay, kind) as client,
    ):
        assert await client.subscribe("closed/#") == [{5: 0x87, 4: 0x80}[kind.version]]
        assert await client.subscribe("open/#", 2) == [2]
        for qos in (0, 1, 2):
            assert await client.publish("closed/1", "x", qos) in (refused if qos else {0})
            assert await client.publish("open/1", "y", qos) == 0
            assert (await client.message())["topic"] == "open/1"


@everybody
async def test_passwords(kind: Kind) -> None:
    passwords = Passwords.from_text(user_line("anna", b"secret"))
    async with running(passwords=passwords) as relay:
        async with joined(relay, kind, user="anna", password="secret") as client:
            assert await client.subscribe("t") == [1]
        async with started(kind) as client:
            told = await client.connect(relay, user="anna", password="wrong")
            # 3.1.1 has 4 for it, which paho-mqtt tells by the name that MQTT 5 has.
            assert told["code"] in ({0x86} if kind.version == 5 else {4, 0x86})


@having("scram")
async def test_a_password_is_proved_without_being_sent(kind: Kind) -> None:
    pytest.importorskip("scramp", reason="scramp is not installed")
    passwords = Passwords.from_text(ScramKeys.of("secret").line("anna"))
    async with running(passwords=passwords) as relay:
        async with joined(relay, kind, user="anna", password="secret", scram=True) as client:
            assert relay.account("c").name.endswith("/anna/c")
            assert await client.subscribe("t") == [1]
        async with started(kind) as client:
            told = await client.connect(relay, user="anna", password="wrong", scram=True)
            assert told["code"] == 0x86


@five
async def test_a_packet_that_is_too_large_for_a_client_is_not_sent(kind: Kind) -> None:
    async with running() as relay, joined(relay, kind, maximum_packet=200) as client:
        for qos in (0, 1, 2):
            await client.subscribe("t", qos)
            await client.publish("t", 500 * "x", qos)
            await client.publish("t", "small", qos)
            assert await client.payloads(1) == ["small"]
        await until(lambda: not relay.statistics().debt_items)
