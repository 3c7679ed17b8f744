"""Publishers above their limits that are refused or shed instead of waiting."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import pytest
import trio
import trio.lowlevel

from clearfunds.access import AccountRate, Tenant
from clearfunds.accounts import Account, OverLimitPolicy
from clearfunds.transports import PublicationPolicy
from clearfunds.transports.mqtt import (
    ConnAck,
    Connect,
    PingReq,
    PingResp,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    SubAck,
    Subscribe,
    encode,
)
from clearfunds.transports.mqtt.codec._packets5 import encode5
from clearfunds.transports.mqtt.codec._reasons import Reason
from tests.transports.mqtt.peers5 import Client5, connected5
from tests.transports.peers import SECONDS, RunningRelay, connected, dial, log_of, running, until

LITTLE = 4096
"""A receive buffer that is soon full."""

LIMIT = 100_000
SIZE = 10_000


def policy(word: str, topics: str = "#", client: str = "pub*") -> PublicationPolicy:
    return PublicationPolicy(client, topics, word)


def refusing(*rules: PublicationPolicy, **settings: Any) -> Any:
    """Run a relay with these rules, in which nobody's patience is ever over."""
    given: dict[str, Any] = {"profile": "lossless", "limit_bytes": LIMIT, "patience": 1000.0}
    return running(publication_policy=rules, **(given | settings))


def totals(relay: RunningRelay, word: str) -> tuple[int, int]:
    """Numbers of refused and of shed publications under a policy."""
    gone = relay.relay.mqtt.over_limits.totals[OverLimitPolicy(word)]
    return gone.refused, gone.shed


async def fill(publisher: Any, relay: RunningRelay, topic: str = "t") -> int:
    """Publish until the topic is above its limit; return the number of publications."""
    own = relay.account("pub")
    data_of = encode5 if isinstance(publisher, Client5) else encode
    data = data_of(Publish(topic, bytes(SIZE)))

    def account() -> Account:
        return relay.ledger.accounts.get(f"{own.name} topic {topic}", own)

    count = 0
    received = relay.relay.mqtt.counters.received
    while account().funds_are_clear():
        await publisher.stream.send_all(data)
        count += 1
        received += 1
        await until(lambda: relay.relay.mqtt.counters.received == received)  # noqa: B023
    return count


async def answers(client: Client5, count: int) -> list[PubAck]:
    """Return so many answers to publications with QoS 1."""
    found: list[PubAck] = []
    while len(found) < count:
        packet = await client.next()
        assert isinstance(packet, PubAck), packet
        found.append(packet)
    return found


def refused(packet: PubAck | PubRec) -> bool:
    return packet.reason == Reason.QUOTA_EXCEEDED


async def deserted(relay: RunningRelay) -> None:
    """See that nothing is left of clients that have gone, nor of what stood in line for them."""
    await until(lambda: not relay.relay.mqtt.open and not relay.ledger.waiters)
    await relay.deserted()


async def test_a_publication_above_the_limit_is_refused_with_the_holder_and_the_wait() -> None:
    async with refusing(policy("refuse")) as relay:
        async with (
            connected(relay.port, "archive", receive_buffer=LITTLE) as archive,
            connected5(relay.port, "pub") as publisher,
        ):
            await archive.subscribe("t")
            count = await fill(publisher, relay)
            account = relay.account("pub")
            owed = account.debt_items, account.debt_bytes
            said = ""
            tries = 0
            with trio.fail_after(SECONDS):
                while "archive" not in said:
                    tries += 1
                    await publisher.publish("t", b"refused", 1)
                    (answer,) = await answers(publisher, 1)
                    assert refused(answer)
                    said = str(answer.properties.reason_string)
                    assert "for" in said
                    await trio.sleep(0.05)
            assert f"outlet mqtt:{relay.port}/-/archive" not in said
            assert said.startswith(f"mqtt:{relay.port}/-/archive has {owed[1]:,} bytes of yours")
            assert "unread, for " in said
            # It owes for nothing that was refused, nor for the answers.
            assert (account.debt_items, account.debt_bytes) == owed
            assert totals(relay, "refuse") == (tries, 0)
            assert account.waiting == 1
            relay.audit()
            for _ in range(count):
                assert len((await archive.publication()).payload) == SIZE
            await until(account.funds_are_clear)
            await publisher.published("t", b"taken")
            assert (await archive.publication()).payload == b"taken"
            assert account.waiting == 0
        await deserted(relay)


async def test_who_does_not_want_reasons_is_told_the_code_alone() -> None:
    async with refusing(policy("refuse")) as relay:
        async with (
            connected(relay.port, "archive", receive_buffer=LITTLE) as archive,
            connected5(relay.port, "pub", request_problem_information=0) as publisher,
        ):
            await archive.subscribe("t")
            await fill(publisher, relay)
            await publisher.publish("t", b"", 1)
            await publisher.expect(PubAck(1, Reason.QUOTA_EXCEEDED))
        await deserted(relay)


@pytest.mark.parametrize("expiry", [0, 60])
async def test_the_identifier_of_a_refused_publication_is_free(expiry: int) -> None:
    """[MQTT-4.3.3]: also where it is stored with the session."""
    async with (
        refusing(policy("refuse")) as relay,
        connected(relay.port, "archive", receive_buffer=LITTLE) as archive,
        connected5(relay.port, "pub", session_expiry=expiry) as publisher,
    ):
        await archive.subscribe("t")
        await publisher.publish("t", b"before", 2, packet_id=8)
        await publisher.expect(PubRec(8))
        count = await fill(publisher, relay)
        for _ in range(3):
            await publisher.publish("t", b"refused", 2, packet_id=7)
            packet = await publisher.next()
            assert isinstance(packet, PubRec)
            assert refused(packet)
        # The same again that was accepted is no new publication, and is not refused.
        again = Publish("t", b"before", 2, dup=True, packet_id=8)
        await publisher.send(again)
        await publisher.expect(PubRec(8))
        await publisher.send(PubRel(8))
        await publisher.expect(PubComp(8))
        await publisher.send(PubRel(7))
        await publisher.expect(PubComp(7, Reason.PACKET_IDENTIFIER_NOT_FOUND))
        assert totals(relay, "refuse") == (3, 0)
        for _ in range(count + 1):
            await archive.publication()
        await until(relay.account("pub").funds_are_clear)
        await publisher.publish("t", b"taken", 2, packet_id=7)
        await publisher.expect(PubRec(7))
        assert (await archive.publication()).payload == b"taken"
        relay.audit()


@pytest.mark.parametrize("word", ["refuse", "shed"])
async def test_qos_0_and_clients_with_3_1_1_are_shed_and_acknowledged(word: str) -> None:
    async with refusing(policy(word)) as relay:
        async with (
            connected(relay.port, "archive", receive_buffer=LITTLE) as archive,
            connected(relay.port, "pub") as publisher,
        ):
            await archive.subscribe("t")
            count = await fill(publisher, relay)
            for packet in (PubAck(1), PubRec(1)):
                qos = 1 if isinstance(packet, PubAck) else 2
                await publisher.send(Publish("t", b"", qos, retain=True, packet_id=1))
                await publisher.expect(packet)
            await publisher.send(PubRel(1))
            await publisher.expect(PubComp(1))
            # One by one, and many at once; what is retained is no part of a run.
            await publisher.send(Publish("t", b"kept", retain=True))
            await publisher.stream.send_all(encode(Publish("t", b"x" * 100)) * 1_000)
            await publisher.send(PingReq())
            await publisher.expect(PingResp())
            assert totals(relay, word) == (0, 2 + 1 + 1_000)
            assert len(relay.relay.dataspace.retained) == 0
            for _ in range(count):
                assert len((await archive.publication()).payload) == SIZE
            await until(relay.account("pub").funds_are_clear)
            await publisher.send(Publish("t", b"taken"))
            assert (await archive.publication()).payload == b"taken"
        await deserted(relay)


async def test_under_shed_mqtt_5_hears_of_no_loss() -> None:
    async with refusing(policy("shed")) as relay:
        async with (
            connected(relay.port, "archive", receive_buffer=LITTLE) as archive,
            connected5(relay.port, "pub") as publisher,
        ):
            await archive.subscribe("t")
            await fill(publisher, relay)
            await publisher.published("t", b"shed")
            await publisher.publish("t", b"x")
            await publisher.send(PingReq())
            await publisher.expect(PingResp())
            assert totals(relay, "shed") == (0, 2)
            assert totals(relay, "refuse") == (0, 0)
        await deserted(relay)


async def test_the_topic_decides_and_the_first_rule_that_matches() -> None:
    rules = (policy("refuse", "jobs/#"), policy("shed", "raw/+"), policy("wait", "jobs/#"))
    async with refusing(*rules) as relay:
        async with (
            connected(relay.port, "archive", receive_buffer=LITTLE) as archive,
            connected5(relay.port, "pub") as publisher,
        ):
            await archive.subscribe("#")
            count = await fill(publisher, relay, "raw/1")
            await publisher.publish("jobs/1", b"", 1, packet_id=1)
            await publisher.publish("raw/1", b"", 1, packet_id=2)
            # By an alias, too: what is refused still says what the alias means.
            await publisher.publish("jobs/2", b"", 1, packet_id=3, topic_alias=1)
            await publisher.publish("", b"", 1, packet_id=4, topic_alias=1)
            got = await answers(publisher, 4)
            assert [refused(packet) for packet in got] == [True, False, True, True]
            # Runs whose topics have different policies.
            mixed = [Publish("raw/1", b"x"), Publish("jobs/1", b"x"), Publish("raw/2", b"x")]
            await publisher.send(*mixed)
            await until(lambda: totals(relay, "shed") == (0, 3))
            assert totals(relay, "refuse") == (3, 1)
            # Whoever publishes to another topic is not read any more.
            await publisher.publish("other", b"waited", 1, packet_id=5)
            account = relay.account("pub")
            await until(lambda: account.waiting == 2)
            await publisher.publish("raw/1", b"after it", 1, packet_id=6)
            for _ in range(count):
                await archive.publication()
            got = await answers(publisher, 2)
            assert [packet.packet_id for packet in got] == [5, 6]
            assert not any(map(refused, got))
            assert (await archive.publication()).payload == b"waited"
            assert (await archive.publication()).payload == b"after it"
        await deserted(relay)


async def test_other_clients_wait_as_ever() -> None:
    async with refusing(policy("refuse", client="somebody")) as relay:
        async with (
            connected(relay.port, "archive", receive_buffer=LITTLE) as archive,
            connected5(relay.port, "pub") as publisher,
        ):
            await archive.subscribe("t")
            count = await fill(publisher, relay)
            await publisher.publish("t", b"waited", 1)
            await until(lambda: relay.account("pub").waiting)
            for _ in range(count):
                await archive.publication()
            await publisher.expect(PubAck(1))
            assert (await archive.publication()).payload == b"waited"
        await deserted(relay)


async def test_a_packet_that_comes_in_pieces_stops_nobody() -> None:
    """As long as its topic has not come, it is unknown what is to be done with it."""
    rules = (policy("refuse", "t"),)
    async with refusing(*rules) as relay:
        async with (
            connected(relay.port, "archive", receive_buffer=LITTLE) as archive,
            connected5(relay.port, "pub") as publisher,
        ):
            await archive.subscribe("t")
            await fill(publisher, relay)
            data = encode5(Publish("t", b"12", 1, packet_id=1))
            received = relay.relay.mqtt.counters.received_bytes
            for byte in data:
                await publisher.stream.send_all(bytes((byte,)))
                received += 1
                at = received
                await until(lambda: relay.relay.mqtt.counters.received_bytes == at)  # noqa: B023
            (answer,) = await answers(publisher, 1)
            assert refused(answer)
        await deserted(relay)


async def test_who_subscribes_waits_for_what_is_retained() -> None:
    async with refusing(policy("refuse")) as relay:
        async with (
            connected(relay.port, "archive", receive_buffer=LITTLE) as archive,
            connected5(relay.port, "pub") as publisher,
        ):
            await archive.subscribe("t")
            count = await fill(publisher, relay)
            await publisher.send(Subscribe(9, (("u", 0),)))
            await until(lambda: relay.account("pub").waiting)
            for _ in range(count):
                await archive.publication()
            assert isinstance(await publisher.next(), SubAck)
        await deserted(relay)


async def test_a_flood_of_refused_publications_is_bounded_by_what_its_publisher_reads() -> None:
    limit = 20_000
    async with refusing(policy("refuse"), limit_bytes=limit) as relay:
        async with (
            connected(relay.port, "archive", receive_buffer=LITTLE) as archive,
            dial(relay.port, receive_buffer=LITTLE) as bare,
            connected5(relay.port, "other") as other,
        ):
            publisher = Client5(bare.stream)
            await publisher.send(Connect("pub", protocol_level=5))
            assert isinstance(await publisher.next(), ConnAck)
            await archive.subscribe("t")
            await fill(publisher, relay)
            one = encode5(Publish("t", b"", 1, packet_id=1))
            count = 60_000
            name = f"mqtt:{relay.port}/-/pub@answers"
            unread = relay.ledger.accounts[name]
            async with trio.open_nursery() as nursery:
                nursery.start_soon(publisher.stream.send_all, one * count)
                await until(lambda: unread.waiting)
                # One read's worth of answers above the limit, at most.
                assert unread.debt_bytes < limit + (65_536 // len(one) + 1) * 200
                assert relay.account("pub").debt_bytes < limit + 2 * SIZE
                relay.audit()
                # It holds up nobody else.
                await other.publish("u", b"x", 1)
                await other.expect(PubAck(1, Reason.NO_MATCHING_SUBSCRIBERS))
                seen = 0
                while seen < count:
                    (answer,) = await answers(publisher, 1)
                    assert refused(answer)
                    seen += 1
            assert totals(relay, "refuse") == (count, 0)
            assert not unread.waiting
            bare.stream.socket.close()
        await deserted(relay)


async def test_a_slow_consumer_is_found_though_its_publisher_is_read_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The account that is above its limit stands in line for what is refused (rule 11)."""
    async with refusing(policy("shed"), patience=0.2) as relay:
        async with (
            connected(relay.port, "archive", receive_buffer=LITTLE) as archive,
            connected(relay.port, "pub") as publisher,
        ):
            await archive.subscribe("t")
            await fill(publisher, relay)
            await publisher.send(Publish("t", b"shed"))
            await until(lambda: "archive" not in clients(relay))
            account = relay.account("pub")
            await until(account.funds_are_clear)
            (line,) = log_of(caplog, "made no progress")
            assert f"that mqtt:{relay.port}/-/pub waits for" in line
        await deserted(relay)


async def test_who_is_refused_is_told_so_as_one_that_waits() -> None:
    """The notice on `$SYS/clearfunds/throttled/pub`, for clients that get no reasons."""
    async with refusing(policy("shed"), throttled_after=0.05) as relay:
        async with (
            connected(relay.port, "archive", receive_buffer=LITTLE) as archive,
            connected(relay.port, "pub") as publisher,
            connected(relay.port, "operator") as operator,
        ):
            await operator.subscribe("$SYS/clearfunds/throttled/#")
            await archive.subscribe("t")
            await fill(publisher, relay)
            await publisher.send(Publish("t", b"shed"))
            notice = json.loads((await operator.publication()).payload)
            assert notice["throttled"]
            assert notice["client"] == "pub"
            assert notice["on"][0]["holder"] == f"mqtt:{relay.port}/-/archive"
        await deserted(relay)


def clients(relay: RunningRelay) -> set[str]:
    return {session.client_id for session in relay.relay.mqtt.sessions.values()}


async def test_the_log_counts_all_of_it_in_few_lines(caplog: pytest.LogCaptureFixture) -> None:
    async with (
        refusing(policy("refuse")) as relay,
        connected(relay.port, "archive", receive_buffer=LITTLE) as archive,
        connected5(relay.port, "pub") as publisher,
    ):
        await archive.subscribe("t")
        await fill(publisher, relay)
        for n in range(50):
            await publisher.publish("t", b"", 1, packet_id=n + 1)
            await publisher.publish("t", b"")
        await answers(publisher, 50)
        await until(lambda: totals(relay, "refuse") == (50, 50))
    records = [each for each in caplog.records if getattr(each, "event", "") == "over_limit"]
    assert sum(each.__dict__["refused"] for each in records) == 50
    assert sum(each.__dict__["dropped"] for each in records) == 50
    assert {each.__dict__["account"] for each in records} == {f"mqtt:{relay.port}/-/pub"}
    assert len(records) <= 2 + (records[-1].created - records[0].created)


@pytest.mark.parametrize("leave", [True, False])
async def test_who_leaves_while_it_is_refused_leaves_nothing(leave: bool) -> None:
    async with refusing(policy("refuse")) as relay:
        async with connected(relay.port, "archive", receive_buffer=LITTLE) as archive:
            await archive.subscribe("t")
            async with connected5(relay.port, "pub") as publisher:
                count = await fill(publisher, relay)
                await publisher.publish("t", b"", 1)
                await answers(publisher, 1)
                await until(lambda: relay.ledger.waiters)
                if not leave:
                    # Another connection takes its name, and finds its debt (rule 14).
                    async with connected5(relay.port, "pub") as again:
                        await publisher.gone()
                        await again.publish("t", b"", 1)
                        (answer,) = await answers(again, 1)
                        assert refused(answer)
                        relay.audit()
            await until(lambda: clients(relay) == {"archive"})
            await until(lambda: not relay.ledger.waiters)
            relay.audit()
            for _ in range(count):
                await archive.publication()
        await deserted(relay)


def rate() -> dict[str, Any]:
    return {"rate": (AccountRate("pub", 0.001),)}


def tenant() -> dict[str, Any]:

    return {
        "tenant": (Tenant(name="press", client=("pub",), bytes=20_000),),
        "limit_bytes": 1 << 20,
    }


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (rate, "your rate limit is reached, for "),
        (tenant, "you are above your share of the limit of tenant/press; mqtt:"),
    ],
)
async def test_the_reason_says_which_limit(
    settings: Callable[[], dict[str, Any]], said: str
) -> None:
    async with (
        refusing(policy("refuse"), **settings()) as relay,
        connected(relay.port, "archive", receive_buffer=LITTLE) as archive,
        connected5(relay.port, "pub") as publisher,
    ):
        await archive.subscribe("t")
        await fill(publisher, relay)
        reason = ""
        with trio.fail_after(SECONDS):
            while not reason.startswith(said):
                await publisher.publish("t", b"", 1)
                (answer,) = await answers(publisher, 1)
                reason = str(answer.properties.reason_string)
                await trio.sleep(0.05)
        relay.audit()


@pytest.mark.parametrize("seed", range(3))
async def test_each_publication_is_answered_once_and_delivered_only_if_accepted(seed: int) -> None:
    """Whatever comes, in whatever pieces, while the consumer reads now and then."""
    chance = random.Random(seed)
    rules = (policy("refuse", "jobs/#"), policy("shed", "raw/#"), policy("wait"))
    topics = ["jobs/1", "jobs/2", "raw/1"]
    count = 1_500
    plan = [(chance.choice(topics), chance.choice([0, 1, 1, 2])) for _ in range(count)]
    async with refusing(*rules, limit_bytes=30_000) as relay:
        async with (
            connected(relay.port, "archive", receive_buffer=LITTLE) as archive,
            connected5(relay.port, "pub") as publisher,
        ):
            await archive.subscribe("#")
            free = list(range(1, 200))
            refused_numbers: list[int] = []
            pending: dict[int, tuple[int, str, int]] = {}
            room = trio.Event()
            sending = trio.Lock()

            async def hear() -> None:
                answered = 0
                while answered < sum(1 for _, qos in plan if qos):
                    packet = await publisher.next()
                    if isinstance(packet, PingResp):
                        continue
                    assert isinstance(packet, (PubAck, PubRec, PubComp)), packet
                    packet_id = packet.packet_id
                    if isinstance(packet, PubComp):
                        assert packet.reason == 0
                    else:
                        number, topic, qos = pending.pop(packet_id)
                        answered += 1
                        assert isinstance(packet, PubAck) == (qos == 1)
                        if refused(packet):
                            assert topic.startswith("jobs")
                            refused_numbers.append(number)
                        elif isinstance(packet, PubRec):
                            async with sending:
                                await publisher.send(PubRel(packet_id))
                            continue  # free with its PUBCOMP
                    free.append(packet_id)
                    room.set()

            got: list[tuple[str, int]] = []

            async def read() -> None:
                await until(lambda: any(totals(relay, "refuse")) and any(totals(relay, "shed")))
                while not got or got[-1][0] != "end":
                    packet = await archive.receive()
                    assert isinstance(packet, Publish)
                    got.append((packet.topic, int(packet.payload[:6])))
                    if chance.random() < 0.02:
                        await trio.sleep(0.05)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(read)
                async with trio.open_nursery() as speaking:
                    speaking.start_soon(hear)
                    for number, (topic, qos) in enumerate(plan):
                        packet_id = 0
                        if qos:
                            while not free:
                                room = trio.Event()
                                await room.wait()
                            packet_id = free.pop(0)
                            pending[packet_id] = number, topic, qos
                        payload = b"%06d" % number + bytes(SIZE)
                        data = encode5(Publish(topic, payload, qos, packet_id=packet_id))
                        if chance.random() < 0.05:
                            data += encode5(PingReq())
                        at = chance.randrange(len(data))
                        async with sending:
                            await publisher.stream.send_all(data[:at])
                            await trio.lowlevel.checkpoint()
                            await publisher.stream.send_all(data[at:])
                await publisher.publish("end", b"%06d" % count)
            assert not pending
            delivered = set(got)
            lost = {number for number in range(count) if (plan[number][0], number) not in delivered}
            # What was refused was not delivered, and all in order, by topic and QoS.
            assert lost.issuperset(refused_numbers)
            for topic in topics:
                for qos in (0, 1, 2):
                    numbers = [n for at, n in got if at == topic and plan[n][1] == qos]
                    assert numbers == sorted(set(numbers))
            # Of jobs each that was not refused has come, but for QoS 0; the totals are exact.
            for number in lost.difference(refused_numbers):
                topic, qos = plan[number]
                assert topic.startswith("raw") or qos == 0
            jobs = sum(plan[number][0].startswith("jobs") for number in lost)
            told = len(refused_numbers)
            assert totals(relay, "refuse") == (told, jobs - told)
            assert totals(relay, "shed") == (0, len(lost) - jobs)
            assert lost
            relay.audit()
        await deserted(relay)


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("word", ["refuse", "shed"])
async def test_a_burst_that_the_consumer_takes_is_not_above_the_limit(word: str, qos: int) -> None:
    """Only what is left when all has been sent counts, as for those that wait."""
    count = 3_000
    rules = (policy(word, "t"), policy("shed", "u"))  # runs are looked at one by one, too
    limits = {"limit_items": 20, "receive_maximum": 60_000, "max_awaiting_release": 60_000}
    async with (
        refusing(*rules, **limits) as relay,
        connected(relay.port, "archive") as archive,
        connected5(relay.port, "pub") as publisher,
    ):
        await archive.subscribe("#")
        data = b"".join(
            encode5(Publish("ut"[n % 2], b"%d" % n, qos, packet_id=n + 1 if qos else 0))
            for n in range(count)
        )
        async with trio.open_nursery() as nursery:
            nursery.start_soon(publisher.stream.send_all, data)
            for n in range(count if qos else 0):
                answer = await publisher.next()
                assert isinstance(answer, PubAck if qos == 1 else PubRec)
                assert (answer.packet_id, answer.reason) == (n + 1, 0)
            for n in range(count):
                assert (await archive.publication()).payload == b"%d" % n
        assert totals(relay, "refuse") == totals(relay, "shed") == (0, 0)
        relay.audit()
