"""What an access control list lets clients do, seen over real sockets."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from clearfunds.access import Passwords, Tenant
from clearfunds.access.acl import Acl, parse_acl
from clearfunds.accounts import Outcome
from clearfunds.relay import RelaySettings, serve_relay
from clearfunds.relay._throttle_notices import topic_of
from clearfunds.transports import ListenError, ListenURLError
from clearfunds.transports.mqtt import (
    ConnAck,
    Connect,
    Disconnect,
    Properties,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    SubAck,
    Subscribe,
    Will,
    encode,
)
from clearfunds.transports.mqtt.server._session import MqttSession
from tests.programs import needs
from tests.relay.test_clients import at, subscribed
from tests.relay.test_websocket import BOTH, opened
from tests.transports.mqtt.peers5 import connected5
from tests.transports.mqtt.users import user_line
from tests.transports.peers import (
    SECONDS,
    PassiveClient,
    RunningRelay,
    connected,
    dial,
    fetch,
    frames,
    log_of,
    run_fed,
    running,
    until,
)

paho: Any = pytest.importorskip("paho.mqtt.client", reason="paho-mqtt is not installed")

NOT_AUTHORIZED = 0x87

LIST = """
user anna
topic readwrite a/#
topic deny a/secret
user root
topic readwrite #
topic read $SYS/#
user reader
topic read a/#
topic read a/secret
"""


def lists(text: str = LIST) -> Acl:
    return Acl.from_text(text)


def outcomes(relay: RunningRelay, outcome: Outcome) -> int:
    return relay.ledger.repaid_items[outcome]


# -- publishing -----------------------------------------------------------------------------------


async def test_what_may_not_be_published_is_dropped(caplog: pytest.LogCaptureFixture) -> None:
    async with (
        running(acl=lists()) as relay,
        connected(relay.port, "r", username="root") as root,
        connected(relay.port, "a", username="anna") as anna,
    ):
        await root.subscribe("#")
        await anna.stream.send_all(
            frames([("a/1", b"1"), ("b", b"2"), ("a/secret", b"3"), ("a/1", b"4"), ("b", b"5")])
        )
        await anna.publish("b", b"6", 1)
        await anna.publish("a/2", b"7")
        assert [p.payload for p in await root.publications(3)] == [b"1", b"4", b"7"]
        await anna.expect(PubAck(1))  # 3.1.1 has no other word
        assert relay.relay.authority.denied.publish == 4
        assert relay.relay.mqtt.counters.rejected == 4
        (line,) = log_of(caplog, "may not publish")
        assert line.endswith("/anna/a: a publication was dropped: user anna may not publish to 'b'")
        relay.audit()


async def test_runs_end_where_a_topic_may_not_be_published_to() -> None:
    async with (
        running(acl=lists()) as relay,
        connected(relay.port, username="root") as root,
        connected(relay.port, username="anna") as anna,
    ):
        await root.subscribe("#")
        said = [(topic, b"%d" % n) for n in range(200) for topic in ("a/1", "a/1", "b", "a/2")]
        await anna.stream.send_all(frames(said))
        got = await root.publications(600)
        assert [(p.topic, p.payload) for p in got] == [each for each in said if each[0] != "b"]
        assert relay.relay.authority.denied.publish == 200
        relay.audit()


@pytest.mark.parametrize("topic", ["b", "$SYS", "$SYS/a"])
async def test_mqtt_5_is_told_why(topic: str) -> None:
    async with (
        running(acl=lists()) as relay,
        connected5(relay.port, username="anna") as anna,
        connected5(relay.port, username="root") as root,
    ):
        await root.subscribe("#", "$SYS/#")
        await anna.publish(topic, b"x", 1)
        answer = await anna.next()
        assert isinstance(answer, PubAck)
        assert answer.reason == NOT_AUTHORIZED
        assert answer.properties.reason_string
        await anna.publish(topic, b"x", 2, packet_id=5)
        answer = await anna.next()
        assert isinstance(answer, PubRec)
        assert answer.reason == NOT_AUTHORIZED
        await anna.publish(topic, b"x")
        await anna.publish("a/b", b"y", 2, packet_id=5)
        await anna.expect(PubRec(5))
        await anna.send(PubRel(5))
        await anna.expect(PubComp(5))
        assert (await root.publication()).payload == b"y"
        relay.audit()


async def test_a_topic_by_its_alias_is_not_published_to_either() -> None:
    async with (
        running(acl=lists()) as relay,
        connected5(relay.port, username="anna") as anna,
        connected5(relay.port, username="root") as root,
    ):
        await root.subscribe("#")
        for topic in ("b", "", "a/1", ""):
            await anna.publish(topic, b"x", topic_alias=1)
        assert [(await root.publication()).topic for _ in range(2)] == ["a/1", "a/1"]
        assert relay.relay.authority.denied.publish == 2


async def test_a_single_publication_is_refused_as_soon_as_it_is_not_allowed() -> None:
    """Though the one before was on the same topic, and nothing of it was looked at any more."""
    acl = lists()
    async with (
        running(acl=acl) as relay,
        connected(relay.port, username="root") as root,
        connected(relay.port, username="anna") as anna,
    ):
        await root.subscribe("#")
        for number in range(5):
            await anna.publish("a/1", b"%d" % number)
            await root.publication()
        acl.replace(parse_acl("user root\ntopic #\nuser anna\ntopic a/2\n"))
        await anna.publish("a/1", b"5")
        await anna.publish("a/2", b"6")
        assert (await root.publication()).payload == b"6"
        assert relay.relay.authority.denied.publish == 1
        relay.audit()


# -- reading --------------------------------------------------------------------------------------


async def test_a_filter_of_which_nothing_may_be_read_is_refused(
    caplog: pytest.LogCaptureFixture,
) -> None:
    filters = ("a/#", "b", "a/secret", "#", "$SYS/#")
    async with running(acl=lists()) as relay:
        async with connected(relay.port, "a", username="anna") as anna:
            await anna.send(Subscribe(9, tuple((text, 1) for text in filters)))
            await anna.expect(SubAck(9, (1, 0x80, 0x80, 1, 0x80)))
        async with connected5(relay.port, "a", username="anna") as anna5:
            answer = await anna5.subscribe(*filters)
            assert answer.return_codes == (0, NOT_AUTHORIZED, NOT_AUTHORIZED, 0, NOT_AUTHORIZED)
        assert relay.relay.authority.denied.subscribe == 6
        assert log_of(caplog, "user anna may read nothing that matches 'b'")
        await relay.deserted()


@pytest.mark.parametrize("qos", [0, 1])
async def test_a_subscription_gets_what_may_be_read(qos: int) -> None:
    async with (
        running(acl=lists()) as relay,
        connected(relay.port, username="root") as root,
        connected(relay.port, username="anna") as anna,
        connected5(relay.port, username="anna") as anna5,
        connected(relay.port, username="reader") as reader,
    ):
        for each in (anna, reader):
            await each.subscribe("#", qos=qos)
        await anna5.subscribe("#", options=qos)
        for topic in ("b", "a/secret", "a", "a/1/2"):
            await root.publish(topic, b"x", qos)
        readers: tuple[PassiveClient, ...] = (anna, anna5)
        for client in readers:
            assert [(await client.publication()).topic for _ in range(2)] == ["a", "a/1/2"]
        got = [p.topic for p in await reader.publications(3)]
        assert got == ["a/secret", "a", "a/1/2"]
        relay.audit()


async def test_what_is_retained_is_told_to_those_that_may_read_it() -> None:
    async with (
        running(acl=lists()) as relay,
        connected(relay.port, username="root") as root,
        connected(relay.port, username="anna") as anna,
    ):
        for topic in ("a/secret", "b", "a/1"):
            await root.publish(topic, b"x", 1, retain=True)
            await root.expect(PubAck(1))
        await anna.publish("b", b"", 1, retain=True)
        await anna.expect(PubAck(1))
        assert len(relay.relay.dataspace.retained) == 3
        await anna.subscribe("#")
        assert (await anna.publication()).topic == "a/1"
        assert await anna.silent()


async def test_clients_read_of_their_own_throttling_alone() -> None:
    passwords = Passwords.from_text(user_line("anna", b"secret"))
    async with (
        running(passwords=passwords) as relay,
        connected(relay.port, "one", username="anna", password=b"secret") as one,
        connected(relay.port, "two", username="anna", password=b"secret") as two,
    ):
        for client in (one, two):
            await client.subscribe("$SYS/#")
        await two.send(Subscribe(9, ((topic_of("one"), 0),)))
        await two.expect(SubAck(9, (0x80,)))
        route = relay.relay.dataspace.route_of(topic_of("one"))
        assert [holder.name for holder in route.plain.holders] == [  # type: ignore[attr-defined]
            relay.account("one").name
        ]


# -- wills ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("topic", "published"), [("a/will", True), ("b", False)])
async def test_a_will_is_published_if_it_may_be(
    topic: str, published: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        running(acl=lists()) as relay,
        connected(relay.port, username="root") as root,
    ):
        await root.subscribe("#")
        async with connected(relay.port, "w", username="anna", will=Will(topic, b"gone")):
            pass
        await until(lambda: len(relay.relay.mqtt.sessions) == 1)
        await root.publish("end")
        got = (await root.publication()).topic
        assert got == (topic if published else "end")
        assert relay.relay.authority.denied.will == (not published)
        assert bool(log_of(caplog, "the will of")) is not published
        relay.audit()


async def test_a_will_is_looked_at_when_it_is_published() -> None:
    """By the rules of then; also one that was delayed."""
    acl = lists()
    will = Will("a/will", b"gone")
    delayed = attrs.evolve(will, properties=Properties(will_delay=50))
    async with (
        running(acl=acl) as relay,
        connected(relay.port, username="root") as root,
        connected(relay.port, "1", username="anna", will=will),
    ):
        await root.subscribe("#")
        async with connected5(
            relay.port, "2", clean=False, username="anna", will=delayed, session_expiry=60
        ):
            pass
        await until(lambda: len(relay.relay.mqtt.wills) == 1)
        acl.replace(parse_acl("user root\ntopic #\n"))
        relay.relay.mqtt.sessions["1"].cut("a test")
        relay.relay.mqtt.each_tick(relay.ledger.clock() + 100)
        await until(lambda: relay.relay.authority.denied.will == 2)
        assert await root.silent()
        relay.audit()


# -- when the rules change ------------------------------------------------------------------------

LESS = "user root\ntopic #\nuser anna\ntopic a/1\n"


async def test_a_subscription_loses_topics_at_once_and_gets_them_back() -> None:
    acl = lists()
    async with (
        running(acl=acl) as relay,
        connected(relay.port, username="root") as root,
        connected(relay.port, username="anna") as anna,
    ):
        await anna.subscribe("#")
        topics = ("a/2", "a/1")
        for text, expected in ((LIST, topics), (LESS, ("a/1",)), (LIST, topics)):
            acl.replace(parse_acl(text))
            for topic in topics:
                await root.publish(topic)
            for topic in expected:
                assert (await anna.publication()).topic == topic
        relay.audit()


@pytest.mark.parametrize("away", [False, True])
@pytest.mark.parametrize("stored", [False, True])
async def test_a_kept_session_is_not_told_what_was_queued_before(
    away: bool, stored: bool, tmp_path: Path
) -> None:
    acl = lists()
    store = str(tmp_path / "store") if stored else None
    kept = Connect("k", False, 0, "anna")
    async with (
        running(acl=acl, store=store, fsync_interval=0.0, max_inflight=1) as relay,
        connected(relay.port, username="root") as root,
        dial(relay.port) as anna,
    ):
        await anna.stream.send_all(anna.connection.send(kept))
        await anna.expect(ConnAck(False, 0))
        await anna.subscribe("a/#", qos=1)
        if away:
            await anna.send(Disconnect())
            await anna.gone()
        for topic in ("a/1", "a/2", "a/1"):
            await root.publish(topic, topic.encode(), 1)
            await root.expect(PubAck(1))
        acl.replace(parse_acl(LESS))
        async with dial(relay.port) as again:
            client = anna
            if away:
                client = again
                await again.stream.send_all(again.connection.send(kept))
                await again.expect(ConnAck(True, 0))
            got = [p.topic for p in await client.publications(2, ack=True)]
            assert got == ["a/1", "a/1"]
            assert relay.relay.authority.denied.queued == 1
            assert relay.relay.mqtt.persistent_sessions is not None
            session = relay.relay.mqtt.persistent_sessions.by_id["k"]
            await until(lambda: not len(session.queue))
            relay.audit()


@pytest.mark.parametrize("connect", [connected, connected5])
async def test_what_comes_after_other_rules_has_the_subscribers_form(connect: Any) -> None:
    """Also once what was looked at again for them has gone."""
    acl = lists()
    async with (
        running(acl=acl, max_inflight=1) as relay,
        connected(relay.port, username="root") as root,
        connect(relay.port, username="anna") as anna,
    ):
        await anna.send(Subscribe(9, (("a/#", 1),)))
        await anna.next()
        for topic in ("a/1", "a/2", "a/1"):
            await root.publish(topic, topic.encode(), 1)
            await root.expect(PubAck(1))
        acl.replace(parse_acl(LESS))
        for _ in range(2):
            publication = await anna.publication()
            assert publication.payload == b"a/1"
            await anna.send(PubAck(publication.packet_id))
        await until(lambda: not relay.statistics().debt_items)
        for number in range(3):
            await root.publish("a/1", b"%d" % number, 1)
            await root.expect(PubAck(1))
            publication = await anna.publication()
            assert (publication.topic, publication.payload) == ("a/1", b"%d" % number)
            await anna.send(PubAck(publication.packet_id))
            await until(lambda: not relay.statistics().debt_items)
        relay.audit()


async def test_a_session_that_was_restored_is_looked_at_by_the_rules_of_now(
    tmp_path: Path,
) -> None:
    store = str(tmp_path / "store")
    kept = Connect("k", False, 0, "anna")
    async with running(acl=lists(), store=store) as relay:
        async with dial(relay.port) as anna:
            await anna.stream.send_all(anna.connection.send(kept))
            await anna.expect(ConnAck(False, 0))
            await anna.subscribe("a/#", qos=1)
            await anna.send(Disconnect())
            await anna.gone()
        async with connected(relay.port, username="root") as root:
            for topic in ("a/2", "a/1"):
                await root.publish(topic, b"", 1)
                await root.expect(PubAck(1))
    async with (
        running(acl=lists(LESS), store=store) as relay,
        connected(relay.port, username="root") as root,
    ):
        for topic in ("a/2", "a/1"):  # while it is away
            await root.publish(topic, b"later", 1)
            await root.expect(PubAck(1))
        async with dial(relay.port) as anna:
            await anna.stream.send_all(anna.connection.send(kept))
            await anna.expect(ConnAck(True, 0))
            got = await anna.publications(2, ack=True)
            assert [(p.topic, p.payload) for p in got] == [("a/1", b""), ("a/1", b"later")]
        relay.audit()


@pytest.mark.parametrize("version", [4, 5])
async def test_what_waits_to_be_sent_is_dropped(version: int) -> None:
    acl = lists()
    async with (
        running(acl=acl, max_inflight=1) as relay,
        connected(relay.port, username="root") as root,
        connected(relay.port, "a", username="anna") as old,
        connected5(relay.port, "b", username="anna") as new,
    ):
        client = old if version == 4 else new
        if version == 4:
            await old.subscribe("a/#", qos=1)
        else:
            await new.subscribe("a/#", options=1)
        for topic in ("a/1", "a/2", "a/1"):
            await root.publish(topic, b"", 1)
            await root.expect(PubAck(1))
        acl.replace(parse_acl(LESS))
        for _ in range(2):
            packet = await client.publication()
            assert packet.topic == "a/1"
            await client.send(PubAck(packet.packet_id))
        assert relay.relay.authority.denied.queued == 1
        await until(lambda: relay.statistics().debt_items == 0)
        assert outcomes(relay, Outcome.DROPPED) == 1
        relay.audit()


async def test_a_client_is_cut_off_from_what_is_on_its_way_to_it() -> None:
    acl = lists()
    async with (
        running(acl=acl) as relay,
        connected(relay.port, username="root") as root,
        connected(relay.port, "slow", username="anna", receive_buffer=4096) as slow,
        connected(relay.port, "other", username="reader", receive_buffer=4096) as other,
        trio.open_nursery() as nursery,
    ):
        for client in (slow, other):
            await client.subscribe("a/#")
        sessions = relay.relay.mqtt.sessions
        nursery.start_soon(root.stream.send_all, encode(Publish("a/2", bytes(1 << 20))) * 7)
        await until(lambda: all(sessions[each].outlet.blocked for each in ("slow", "other")))
        more = LIST.replace("topic deny a/secret\n", "")
        acl.replace(parse_acl(more))  # that is more, so nothing happens
        assert set(sessions) >= {"slow", "other"}
        acl.replace(parse_acl(LIST))
        await until(lambda: "slow" not in sessions)
        assert "other" in sessions
        assert relay.relay.authority.denied.connection == 1
        got = await slow.gone()
        assert len(got) < 7
        assert len(await other.publications(7)) == 7
        relay.audit()


async def test_who_cannot_be_looked_at_again_is_cut_off_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    acl = lists()
    looked_at = MqttSession.rules_changed

    def fail(session: MqttSession) -> None:
        if session.client_id == "broken":
            raise ValueError("a fault")
        looked_at(session)

    monkeypatch.setattr(MqttSession, "rules_changed", fail)
    async with (
        running(acl=acl) as relay,
        connected(relay.port, "broken", username="anna") as broken,
        connected(relay.port, "well", username="anna") as well,
    ):
        await well.subscribe("a/1")
        acl.replace(parse_acl(LESS))
        assert await broken.gone() == []
        await well.publish("a/1")
        await well.publication()
        assert relay.relay.mqtt.counters.internal_errors == 1
        assert log_of(caplog, "looking again at what it may do")
        relay.ledger.audit()
        relay.relay.mqtt.counters.internal_errors = 0


# -- clients of others ----------------------------------------------------------------------------


@needs("mosquitto_pub", "mosquitto_sub")
async def test_mosquittos_clients() -> None:
    async with running(acl=lists()) as relay:
        async with subscribed(relay, "-u", "reader", "-t", "#", "-C", "2", "-v") as process:
            for user, topic in (("anna", "b"), ("anna", "a/1"), ("reader", "a/2"), ("root", "a/3")):
                command = ["mosquitto_pub", *at(relay), "-u", user, "-t", topic, "-m", user]
                await run_fed([*command, "-q", "1"])
            assert process.stdout is not None
            with trio.fail_after(SECONDS):
                await process.wait()
                assert await process.stdout.receive_some() == b"a/1 anna\na/3 root\n"
        refused = await trio.run_process(
            ["mosquitto_sub", *at(relay), "-u", "anna", "-t", "b", "-W", "5"],
            check=False,
            capture_stderr=True,
            stdin=subprocess.DEVNULL,
        )
        assert b"All subscription requests were denied" in refused.stderr


async def test_paho() -> None:
    def use(port: int) -> tuple[list[int], list[str], list[str]]:
        granted: list[str] = []
        codes: list[int] = []
        got: list[str] = []

        def told(_: Any, __: Any, message: Any) -> None:
            got.append(message.topic)

        def published(_: Any, __: Any, ___: Any, code: Any, *____: Any) -> None:
            codes.append(code.value)

        def subscribed(_: Any, __: Any, ___: Any, reasons: Any, *____: Any) -> None:
            granted.extend(map(str, reasons))

        client = paho.Client(paho.CallbackAPIVersion.VERSION2, "p", protocol=paho.MQTTv5)
        client.username_pw_set("anna")
        client.on_message = told
        client.on_publish = published
        client.on_subscribe = subscribed
        client.connect("127.0.0.1", port)
        client.loop_start()
        client.subscribe([("a/#", paho.SubscribeOptions(1)), ("b", paho.SubscribeOptions(1))])
        _wait(lambda: len(granted) == 2)
        for topic in ("b", "a/secret", "a/1"):
            client.publish(topic, b"x", 1).wait_for_publish(SECONDS)
        _wait(lambda: len(got) == 1 and len(codes) == 3)
        client.disconnect()
        client.loop_stop()
        return codes, granted, got

    async with running(acl=lists(), strangers=3) as relay:
        codes, granted, got = await trio.to_thread.run_sync(use, relay.port)
        assert codes == [NOT_AUTHORIZED, NOT_AUTHORIZED, 0]
        assert granted == ["Granted QoS 1", "Not authorized"]
        assert got == ["a/1"]


def _wait(condition: Callable[[], object]) -> None:
    for _ in range(SECONDS * 100):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError("it takes too long")


async def test_websocket_is_no_way_around() -> None:
    async with running(acl=lists(), listen=BOTH) as relay, opened(relay) as client:
        connect = Connect("w", username="anna")
        client.connection.send(connect)
        await client.send(connect)
        await client.expect(ConnAck(False, 0))
        await client.send(Subscribe(9, (("b", 0), ("#", 0))))
        await client.expect(SubAck(9, (0x80, 0)))
        for topic in ("b", "a/1"):
            await client.publish(topic)
        assert (await client.publication()).topic == "a/1"


# -- at the start ---------------------------------------------------------------------------------

PASSWORDS = Passwords.from_text(user_line("anna", b"secret"))
TENANT = (Tenant(name="press", user=("anna",), topic=("news/#",)),)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"passwords": PASSWORDS}, "every user may publish to and read every topic"),
        ({"passwords": PASSWORDS, "acl_default": "allow"}, None),
        ({"passwords": PASSWORDS, "tenant": TENANT}, "topics of other tenants are denied"),
        ({"acl": lists()}, "whatever user a client names is believed"),
        (
            {"acl": lists(), "passwords": PASSWORDS},
            "that no rule of the access control list allows",
        ),
        ({"tenant": TENANT}, None),
    ],
)
async def test_the_relay_says_what_is_allowed(
    settings: dict[str, Any], said: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    async with running(**settings):
        lines = [r for r in caplog.records if getattr(r, "event", None) == "authorisation"]
        assert bool(lines) is (said is not None)
        if said is not None:
            assert said in lines[0].getMessage()


@pytest.mark.parametrize(
    ("settings", "urls"),
    [
        ({"listen": ("mqtt://127.0.0.1:0",)}, None),
        ({"listen": ("mqtt+tcp://localhost:0", "syndicate+tcp://[::1]:0")}, None),
        ({"listen": ("mqtt://0.0.0.0:0", "mqtt://127.0.0.1:0")}, ["mqtt+tcp://0.0.0.0:"]),
        ({"listen": ("amqp+tcp://[::]:0",)}, ["amqp+tcp://[::]:"]),
        ({"listen": ("mqtt://0.0.0.0:0",), "passwords": PASSWORDS}, None),
    ],
)
async def test_a_listener_for_anybody_is_warned_of(
    settings: dict[str, Any], urls: list[str] | None, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(**settings):
        lines = [r for r in caplog.records if getattr(r, "event", None) == "open_to_anybody"]
    assert len(lines) == (urls is not None)
    for line, url in zip(lines, urls or (), strict=True):
        assert f"anybody who reaches {url}" in line.getMessage()


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"acl_default": "deny"}, "refuses every topic"),
        ({"acl_default": "tenant"}, "needs a tenant with topics"),
        ({"acl": lists(), "listen": ("syndicate+tcp://127.0.0.1:0",)}, "add .gatekeeper, so that"),
    ],
)
async def test_what_cannot_be_meant_is_refused(settings: dict[str, Any], error: str) -> None:
    with pytest.raises((ListenError, ListenURLError), match=error):
        await serve_relay(RelaySettings(**settings))


async def test_tenants_keep_to_their_topics() -> None:
    async with running(passwords=PASSWORDS, anonymous=True, tenant=TENANT) as relay:
        async with (
            connected(relay.port, username="anna", password=b"secret") as anna,
            connected5(relay.port) as nobody,
        ):
            await anna.subscribe("#")
            await nobody.publish("news/1", b"x", 1)
            answer = await nobody.next()
            assert isinstance(answer, PubAck)
            assert answer.reason == NOT_AUTHORIZED
            await nobody.publish("lobby")
            assert (await anna.publication()).topic == "lobby"
            assert (await nobody.subscribe("news/+", "#")).return_codes == (NOT_AUTHORIZED, 0)
            await anna.publish("news/1")
            await anna.publish("lobby")
            assert (await nobody.publication()).topic == "lobby"
        relay.audit()


async def test_what_was_denied_is_counted_for_prometheus() -> None:
    async with (
        running(acl=lists(), http="127.0.0.1:0") as relay,
        connected(relay.port, username="anna") as anna,
    ):
        await anna.publish("b", b"", 1)
        await anna.expect(PubAck(1))
        page = await fetch(f"{relay.addresses.http}/metrics")
        assert 'clearfunds_denied_events_total{action="publish"} 1.0' in page
