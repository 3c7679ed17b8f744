"""Shared subscriptions over real sockets: one of a group gets each message, and only one."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.lowlevel

from clearfunds.access import Tenant
from clearfunds.accounts._gate import gate_of
from clearfunds.relay import serve_relay
from clearfunds.transports.mqtt import (
    Disconnect,
    PingReq,
    PingResp,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    SubAck,
    Subscribe,
    UnsubAck,
    Unsubscribe,
)
from clearfunds.transports.mqtt.codec._packets import encode_publish
from clearfunds.transports.mqtt.codec._reasons import Reason
from clearfunds.transports.mqtt.server._shared import SharedGroup, SharedGroups
from tests.experiments.credit_flow.relays import on_credit
from tests.transports.mqtt.peers5 import Client5, connected5
from tests.transports.peers import BareClient, RunningRelay, connected, running, until

G = "$share/g/t/#"


def group_of(relay: RunningRelay, text: str = G) -> SharedGroup:
    (found,) = [
        group
        for group in relay.relay.mqtt.groups.by_key.values()
        if group.group.name.endswith(text)
    ]
    return found


async def settled(client: BareClient | Client5) -> list[Publish]:
    """Return the publications that have come; acknowledge nothing."""
    await client.send(PingReq())
    found: list[Publish] = []
    while (packet := await client.next()) != PingResp():
        assert isinstance(packet, Publish), packet
        found.append(packet)
    return found


def payloads(found: list[Publish]) -> list[bytes]:
    return [each.payload for each in found]


async def published(client: BareClient, *names: bytes, qos: int = 1, topic: str = "t/x") -> None:
    """Publish, each with what its QoS takes."""
    for number, name in enumerate(names, 1):
        await client.publish(topic, name, qos, packet_id=number if qos else 0)
        if qos == 1:
            await client.expect(PubAck(number))
        elif qos == 2:
            await client.expect(PubRec(number))
            await client.send(PubRel(number))
            await client.expect(PubComp(number))


@asynccontextmanager
async def kept5(port: int, client_id: str, **properties: Any) -> AsyncGenerator[Client5]:
    """Connect a client whose session is kept; leaving the block closes its socket."""
    async with connected5(port, client_id, clean=False, session_expiry=100, **properties) as client:
        yield client


@pytest.mark.parametrize("serve", [serve_relay, on_credit()])
@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_each_message_goes_to_one_member(qos: int, serve: Callable[..., Any]) -> None:
    async with running(serve=serve) as relay:
        async with (
            connected(relay.port, "p") as publisher,
            connected(relay.port, "a") as a,
            connected(relay.port, "b") as b,
            connected5(relay.port, "c") as c,
        ):
            await a.subscribe(G, qos=qos)
            await b.subscribe(G, qos=qos)
            await c.subscribe(G, options=qos)
            await published(publisher, *(b"%d" % n for n in range(9)), qos=qos)
            found = [await settled(each) for each in (a, b, c)]
            assert [len(each) for each in found] == [3, 3, 3]
            every = sorted(packet.payload for each in found for packet in each)
            assert every == [b"%d" % n for n in range(9)]
            assert {packet.qos for each in found for packet in each} == {qos}
            relay.audit()
            if qos:
                assert group_of(relay).group.unacked == 9
            assert group_of(relay).group.name == G
        await relay.deserted()
        assert not len(relay.relay.mqtt.groups)


async def test_a_run_is_shared_evenly_and_stays_one() -> None:
    async with running() as relay:
        async with AsyncExitStack() as stack:
            publisher = await stack.enter_async_context(connected(relay.port, "p"))
            members: list[BareClient | Client5] = [
                await stack.enter_async_context(connected(relay.port, f"m{n}")) for n in range(3)
            ]
            five = await stack.enter_async_context(connected5(relay.port, "m3"))
            for member in members:
                assert isinstance(member, BareClient)
                await member.subscribe(G)
            await five.subscribe(G)
            frames = b"".join(encode_publish(f"t/{n % 7 * 'x'}", b"%d" % n) for n in range(400))
            await publisher.stream.send_all(frames)
            await publisher.send(PingReq())
            await publisher.expect(PingResp())
            found = [payloads(await settled(each)) for each in (*members, five)]
            assert sorted(int(name) for each in found for name in each) == list(range(400))
            for each in found:
                assert [int(name) for name in each] == sorted(map(int, each))
                assert 90 <= len(each) <= 110
            assert group_of(relay).group.counters.passed == 400
            assert relay.relay.dataspace.deliveries == 400
        await relay.deserted()


async def test_what_is_granted_is_each_members_own() -> None:
    async with running() as relay:
        async with (
            connected(relay.port, "p") as publisher,
            connected(relay.port, "a") as a,
            connected(relay.port, "b") as b,
        ):
            await a.subscribe(G, qos=0)
            await b.subscribe(G, qos=1)
            await published(publisher, b"1", b"2", b"3", qos=2)
            got = await settled(a) + await settled(b)
            assert sorted(payloads(got)) == [b"1", b"2", b"3"]
            assert {each.qos for each in got} == {0, 1}
        await relay.deserted()


async def test_nothing_that_is_retained_and_the_options_of_this_one_alone() -> None:
    async with running() as relay:
        async with connected(relay.port, "p") as publisher, connected5(relay.port, "c") as client:
            await publisher.publish("t/x", b"old", retain=True)
            await publisher.send(PingReq())
            await publisher.expect(PingResp())
            await client.subscribe("t/+", options=0x21, identifier=3)  # nothing of what is retained
            await client.subscribe(G, options=0x08, identifier=200)
            assert not await settled(client)
            await published(publisher, b"new")
            got = await settled(client)
            assert sorted(each.properties.subscription_ids for each in got) == [(3,), (200,)]
            assert sorted(each.qos for each in got) == [0, 1]
            await client.send(*(PubAck(each.packet_id) for each in got if each.qos))
            await publisher.publish("t/x", b"", retain=True)
            retain = {
                each.properties.subscription_ids[0]: each.retain for each in await settled(client)
            }
            assert retain == {3: False, 200: True}
        await relay.deserted()


@pytest.mark.parametrize("text", ["$share/g", "$share//t", "$share/+/t", "$share/g/"])
async def test_what_is_no_shared_subscription(text: str) -> None:
    async with running() as relay:
        async with connected(relay.port, "a") as a, connected5(relay.port, "b") as b:
            await a.send(Subscribe(1, ((text, 1),)))
            await a.expect(SubAck(1, (0x80,)))
            await b.send(Subscribe(1, ((text, 1),)))
            (last,) = await b.gone()
            assert isinstance(last, Disconnect)
            assert last.reason == Reason.PROTOCOL_ERROR
        await relay.deserted()


async def test_as_many_groups_and_members_as_there_may_be() -> None:
    async with running(max_share_groups=1, max_share_members=1) as relay:
        async with connected5(relay.port, "a") as a, connected5(relay.port, "b") as b:
            answer = await a.subscribe(G, "$share/h/t")
            assert answer.return_codes == (0, Reason.QUOTA_EXCEEDED)
            assert "max_share_groups" in str(answer.properties.reason_string)
            answer = await b.subscribe(G)
            assert answer.return_codes == (Reason.QUOTA_EXCEEDED,)
            assert "max_share_members" in str(answer.properties.reason_string)
            assert (await a.subscribe(G, options=1)).return_codes == (1,)
            await a.send(Unsubscribe(1, (G, "$share/h/t")))
            await a.expect(UnsubAck(1, (0, Reason.NO_SUBSCRIPTION_EXISTED)))
            assert (await b.subscribe(G)).return_codes == (0,)
        await relay.deserted()


@pytest.mark.parametrize("five", [False, True])
async def test_what_one_did_not_acknowledge_goes_to_another(five: bool) -> None:
    async with running() as relay:
        async with connected(relay.port, "p") as publisher, connected(relay.port, "b") as b:
            dial: Any = connected5 if five else connected
            async with dial(relay.port, "a") as a:
                await a.send(Subscribe(9, ((G, 1),)))
                await a.next()
                await published(publisher, *(b"%d" % n for n in range(40)))
                got = await settled(a)
                assert payloads(got) == [b"%d" % n for n in range(32)]  # max_inflight
                await a.send(PubAck(got[3].packet_id), PubAck(got[4].packet_id))
                assert payloads(await settled(a)) == [b"32", b"33"]
                await b.subscribe(G, qos=1)
                assert payloads(await settled(b)) == [b"%d" % n for n in range(34, 40)]
            await until(lambda: "a" not in relay.relay.mqtt.sessions)
            relay.audit()
            left = await settled(b)
            order = [int(each.payload) for each in left]
            assert order == [0, 1, 2, *range(5, 28)]  # as many as it may have
            assert not any(each.dup for each in left)
            await b.send(*(PubAck(each.packet_id) for each in left))
            assert [int(each.payload) for each in await settled(b)] == list(range(28, 34))
            assert group_of(relay).group.counters.redelivered == 32
        await relay.deserted()


async def test_what_was_sent_to_be_had_once_goes_to_nobody_else() -> None:
    async with running() as relay:
        async with connected(relay.port, "p") as publisher, connected(relay.port, "b") as b:
            async with connected(relay.port, "a") as a:
                await a.subscribe(G, qos=2)
                await published(publisher, b"1", b"2", qos=2)
                first, second = await settled(a)
                await a.send(PubRec(first.packet_id))
                await a.expect(PubRel(first.packet_id))
                await b.subscribe(G, qos=2)
            await until(lambda: "a" not in relay.relay.mqtt.sessions)
            assert not await settled(b)
            assert second.payload == b"2"
            assert group_of(relay).group.counters.spent == 1
            relay.audit()
        await relay.deserted()


async def test_a_refusal_is_an_answer() -> None:
    """An acknowledgement with an error ends it [MQTT-4.8.2-6]."""
    async with running() as relay:
        async with connected(relay.port, "p") as publisher, connected5(relay.port, "a") as a:
            await a.subscribe(G, options=2)
            await published(publisher, b"1", qos=1)
            await published(publisher, b"2", qos=2)
            one, two = await settled(a)
            await a.send(PubAck(one.packet_id, 0x97), PubRec(two.packet_id, 0x97))
            assert not await settled(a)
            assert not group_of(relay).group.unacked
            async with connected(relay.port, "b") as b:
                await b.subscribe(G, qos=2)
                assert not await settled(b)
            relay.audit()
        await relay.deserted()


async def test_one_window_for_all_that_a_client_is_to_acknowledge() -> None:
    async with running() as relay:
        async with (
            connected(relay.port, "p") as publisher,
            connected5(relay.port, "a", receive_maximum=3) as a,
        ):
            await a.subscribe(G, "own", options=1)
            await published(publisher, b"1", b"2")
            await published(publisher, b"3", b"4", topic="own")
            await published(publisher, b"5")
            got = await settled(a)
            assert payloads(got) == [b"1", b"2", b"3"]
            await a.send(PubAck(got[0].packet_id))
            more = await settled(a)
            assert payloads(more) == [b"4"]  # what is its own goes first
            await a.send(PubAck(got[1].packet_id))
            assert payloads(await settled(a)) == [b"5"]
            relay.audit()
        await relay.deserted()


async def test_what_waits_comes_when_one_acknowledges() -> None:
    async with running(max_inflight=1) as relay:
        async with connected(relay.port, "p") as publisher, connected(relay.port, "a") as a:
            await a.subscribe(G, qos=2)
            await published(publisher, *b"a b c".split(), qos=2)
            for name in b"a b c".split():
                (got,) = await settled(a)
                assert got.payload == name
                await a.send(PubRec(got.packet_id))
                await a.expect(PubRel(got.packet_id))
                assert not await settled(a)
                await a.send(PubComp(got.packet_id))
        await relay.deserted()


async def test_unsubscribing_with_messages_under_way() -> None:
    async with running() as relay:
        async with connected(relay.port, "p") as publisher, connected(relay.port, "a") as a:
            await a.subscribe(G, qos=1)
            await published(publisher, b"1", b"2")
            got = await settled(a)
            await a.send(Unsubscribe(1, (G,)))
            await a.expect(UnsubAck(1))
            assert len(relay.relay.mqtt.groups) == 1  # as long as something is under way
            await published(publisher, b"3")
            assert not await settled(a)
            await a.send(*(PubAck(each.packet_id) for each in got))
            await a.send(PingReq())
            await a.expect(PingResp())
            relay.audit()
            await until(lambda: not len(relay.relay.mqtt.groups))
            assert relay.account("p").debt_items == 0
            await a.subscribe(G, qos=1)
            await published(publisher, b"4")
            assert payloads(await settled(a)) == [b"4"]
        await relay.deserted()


async def test_what_was_under_way_to_who_unsubscribed_goes_to_another_when_it_leaves() -> None:
    async with running() as relay:
        async with connected(relay.port, "p") as publisher, connected(relay.port, "b") as b:
            async with connected(relay.port, "a") as a:
                await a.subscribe(G, qos=1)
                await published(publisher, b"1", b"2")
                await settled(a)
                await b.subscribe(G, qos=1)
                await a.send(Unsubscribe(1, (G,)))
                await a.expect(UnsubAck(1))
            await until(lambda: "a" not in relay.relay.mqtt.sessions)
            assert payloads(await settled(b)) == [b"1", b"2"]
        await relay.deserted()


async def test_other_options_in_place_of_the_first() -> None:
    async with running() as relay:
        async with connected(relay.port, "p") as publisher, connected5(relay.port, "a") as a:
            await a.subscribe(G, options=1, identifier=1)
            await published(publisher, b"1")
            (got,) = await settled(a)
            assert (got.qos, got.properties.subscription_ids) == (1, (1,))
            await a.subscribe(G, options=2, identifier=2)
            assert not await settled(a)  # it is the same member, who has it
            await a.send(PubAck(got.packet_id))
            await a.subscribe(G, options=0, identifier=3)
            await published(publisher, b"2")
            every = await settled(a)
            await a.subscribe(G, options=1)
            await published(publisher, b"3")
            every += await settled(a)
            assert [(each.payload, each.qos) for each in every] == [(b"2", 0), (b"3", 1)]
            assert [each.properties.subscription_ids for each in every] == [(3,), ()]
            assert len(group_of(relay).group.members) == 1
            relay.audit()
        await relay.deserted()


# -- who is stuck ---------------------------------------------------------------------------------


async def fill(publisher: BareClient, size: int = 100_000) -> None:
    await publisher.send(*(Publish("t/x", b"x" * size) for _ in range(10)))


async def test_a_member_that_does_not_read_is_passed_over() -> None:
    async with running() as relay:
        async with (
            connected(relay.port, "p") as publisher,
            connected(relay.port, "stuck", receive_buffer=4096) as stuck,
            connected(relay.port, "reads") as reads,
        ):
            await stuck.subscribe(G)
            outlet = relay.relay.mqtt.sessions["stuck"].outlet
            while not outlet.blocked:
                await fill(publisher)
                await publisher.send(PingReq())
                await publisher.expect(PingResp())
            await reads.subscribe(G)
            await published(publisher, *(b"%d" % n for n in range(50)), qos=0)
            await published(publisher, *(b"%d" % n for n in range(50, 60)), qos=1)
            # What is blocked keeps a publisher's order, but the answer to a ping may overtake it.
            got: list[bytes] = []
            while len(got) < 60:
                came = await reads.publication()
                got += [came.payload] if len(came.payload) < 3 else []
            assert got == [b"%d" % n for n in range(60)]
            relay.audit()
        await relay.deserted()


async def test_with_all_stuck_the_publisher_waits_on_the_group(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    async with running(limit_items=30, patience=0.5, max_inflight=10) as relay:
        async with (
            connected(relay.port, "p") as publisher,
            connected(relay.port, "a") as a,
            connected(relay.port, "b") as b,
        ):
            await a.subscribe(G, qos=1)
            await b.subscribe(G, qos=1)
            for n in range(40):
                await publisher.publish("t/x", b"%d" % n, 1, packet_id=n + 1)
            await until(lambda: relay.account("p").waiting)
            group = group_of(relay).group
            assert len(group) > 0
            await until(lambda: not relay.account("p").waiting)
            relay.audit()
        await relay.deserted()
    text = caplog.text
    assert f"group {G} made no progress" in text
    assert "inflight" not in text


async def test_any_members_progress_is_the_groups() -> None:
    async with running(limit_items=20, patience=0.4, max_inflight=10) as relay:
        async with (
            connected(relay.port, "p") as publisher,
            connected(relay.port, "a") as a,
            connected(relay.port, "b") as b,
        ):
            await a.subscribe(G, qos=1)
            await b.subscribe(G, qos=1)
            for n in range(60):
                await publisher.publish("t/x", b"%d" % n, 1, packet_id=n + 1)
            done = 0
            with trio.fail_after(20):
                while done < 40:
                    for each in await settled(b):
                        await trio.sleep(0.05)
                        await b.send(PubAck(each.packet_id))
                        done += 1
            # a has acknowledged nothing for five times the patience, and is there still.
            assert len(await settled(a)) == 10
            relay.audit()
        await relay.deserted()


@pytest.mark.parametrize("kept", [False, True])
async def test_a_member_of_many_groups_leaves_them_all(kept: bool) -> None:
    texts = [f"$share/g{n}/t/{n}" for n in range(100)]
    async with running(max_inflight=200) as relay:
        async with connected(relay.port, "p") as publisher, connected(relay.port, "b") as b:
            dial: Any = kept5 if kept else connected5
            async with dial(relay.port, "a") as a:
                await a.subscribe(*texts, options=1)
                for n in range(100):
                    await published(publisher, b"%d" % n, topic=f"t/{n}")
                assert len(await settled_later(a, 100)) == 100
                await b.send(Subscribe(1, tuple((text, 1) for text in texts)))
                await b.expect(SubAck(1, (1,) * 100))
            got = [await b.publication() for _ in range(100)]
            assert sorted(int(each.payload) for each in got) == list(range(100))
            relay.audit()
            await b.send(*(PubAck(each.packet_id) for each in got))
            await settled(b)
            async with connected(relay.port, "a"):
                pass
        await until(lambda: set(relay.ledger.accounts) == {"server", "kept"})  # in steps
        await relay.deserted()
        assert not len(relay.relay.mqtt.groups)


async def test_who_goes_before_it_is_told_that_it_shares_leaves_no_group(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It does not take the next tick for what was made for it to end."""

    def no_tick(*_: object) -> None:
        pass

    monkeypatch.setattr(SharedGroups, "tick", no_tick)
    async with running(max_subscriptions=10_000) as relay:
        groups = relay.relay.mqtt.groups
        async with connected5(relay.port, "a") as a:
            await a.send(Subscribe(1, tuple((f"$share/g{n}/t", 1) for n in range(2_000))))
            while not groups.by_key:
                await trio.lowlevel.checkpoint()
            relay.relay.mqtt.sessions["a"].cut("in the middle of it")
            assert 0 < len(groups) < 2_000
            await until(lambda: not relay.relay.mqtt.sessions)
        await relay.deserted()
        assert not groups.by_key


# -- sessions that are kept -----------------------------------------------------------------------


@pytest.mark.parametrize("durable", [False, True])
async def test_while_all_are_away_it_waits_for_the_first_to_come_back(
    durable: bool, tmp_path: Path
) -> None:
    store = str(tmp_path / "store") if durable else None
    async with running(store=store) as relay, connected(relay.port, "p") as publisher:
        for name in "ab":
            async with kept5(relay.port, name) as client:
                await client.subscribe(G, options=2)
            await until(lambda: len(relay.relay.mqtt.sessions) == 1)
        await published(publisher, b"1", b"2")
        await published(publisher, b"3", qos=2)
        await published(publisher, b"no", qos=0)
        group = group_of(relay)
        assert len(group.group) == 3
        assert (len(group), group.away) == (2, 2)
        relay.audit()
        async with kept5(relay.port, "b") as b:
            got = await settled_later(b, 3)
            assert sorted(payloads(got)) == [b"1", b"2", b"3"]
            relay.audit()
        await until(lambda: "b" not in relay.relay.mqtt.sessions)
        relay.audit()
        # With QoS 1 it goes to another one; with QoS 2 it stays with who may have had it.
        async with kept5(relay.port, "a") as a:
            got = await settled_later(a, 2)
            assert payloads(got) == [b"1", b"2"]
            assert not any(each.dup for each in got)
            await a.send(*(PubAck(each.packet_id) for each in got))
            assert not await settled(a)
        async with kept5(relay.port, "b") as b:
            every = await settled_later(b, 1)
            assert len(every) == 1, [(e.payload, e.qos, e.dup, e.packet_id) for e in every]
            (again,) = every
            assert (again.payload, again.dup, again.qos) == (b"3", True, 2)
            await b.send(PubRec(again.packet_id))
            await b.expect(PubRel(again.packet_id))
            await b.send(PubComp(again.packet_id))
            assert not await settled(b)
        relay.audit()
        for name in "ab":
            async with connected(relay.port, name):  # a clean one ends it
                pass
        await until(lambda: not len(relay.relay.mqtt.groups))


async def settled_later(client: Client5, count: int) -> list[Publish]:
    """Return so many publications, which may have to be written first."""
    found = [await client.publication() for _ in range(count)]
    return found + await settled(client)


async def test_a_kept_session_that_is_over_leaves_its_group() -> None:
    async with running(session_expiry=1000) as relay:
        async with connected(relay.port, "p") as publisher:
            async with connected5(relay.port, "a", clean=False, session_expiry=1) as a:
                await a.subscribe(G, options=1)
            await until(lambda: "a" not in relay.relay.mqtt.sessions)
            await published(publisher, b"1")
            assert len(group_of(relay).group) == 1
            await until(lambda: not len(relay.relay.mqtt.groups))
            relay.audit()
        await relay.deserted()


async def test_after_a_restart_the_group_has_what_was_acknowledged(tmp_path: Path) -> None:
    store = str(tmp_path / "store")
    async with running(store=store) as relay, connected(relay.port, "p") as publisher:
        async with kept5(relay.port, "a") as a:
            await a.subscribe(G, options=1, identifier=7)
            await published(publisher, b"1", b"2", b"3")
            got = await settled_later(a, 3)
            await a.send(PubAck(got[1].packet_id))
            await settled(a)
        async with connected(relay.port, "clean") as clean:
            await clean.subscribe("$share/other/t/#", qos=1)
            await published(publisher, b"4")
    async with running(store=store) as relay:
        assert len(relay.relay.mqtt.groups) == 1
        group = group_of(relay)
        assert len(group.group) == 3
        relay.audit()
        async with connected5(relay.port, "b") as b:
            await b.subscribe(G, options=1)
            got = await settled_later(b, 3)
            assert payloads(got) == [b"1", b"3", b"4"]
            await b.send(*(PubAck(each.packet_id) for each in got))
            await settled(b)
            async with kept5(relay.port, "a") as a:
                assert not await settled(a)
                async with connected(relay.port, "p") as publisher:
                    await published(publisher, b"5", b"6")
                    got = await settled_later(a, 1)
                    assert [each.properties.subscription_ids for each in got] == [(7,)]
        async with connected(relay.port, "a"):
            pass
        await until(lambda: not len(relay.relay.mqtt.groups))
        kept = relay.relay.mqtt.persistent_sessions
        assert kept is not None
        queues = getattr(kept.persistence, "store").queues  # noqa: B009
        await until(lambda: not [name for name in queues if "share" in name])


async def test_another_connection_takes_over_and_gets_what_there_was() -> None:
    async with running() as relay:
        async with connected(relay.port, "p") as publisher:
            async with kept5(relay.port, "a") as first:
                await first.subscribe(G, options=1)
                await published(publisher, b"1", b"2")
                assert len(await settled_later(first, 2)) == 2
                async with kept5(relay.port, "a") as second:
                    assert payloads(await settled_later(second, 2)) == [b"1", b"2"]
                    relay.audit()
            async with connected(relay.port, "a"):
                pass
        await relay.deserted()


async def test_what_a_group_hands_over_has_none_of_the_sessions_own_identifiers() -> None:
    """Its own messages have them by their numbers, also after a crash: see `APART`."""
    async with running() as relay, connected(relay.port, "p") as publisher:
        async with kept5(relay.port, "a") as a:
            await a.subscribe(G, "own", options=1)
            await published(publisher, b"1", b"2")
            await published(publisher, b"3", b"4", topic="own")
            own: list[int] = []
            shared: list[int] = []
            for packet in await settled_later(a, 4):
                (own if packet.topic == "own" else shared).append(packet.packet_id)
            assert own == [2, 3]
            assert all(30_000 < packet_id < 60_000 for packet_id in shared)
            assert len(set(shared)) == 2
        async with connected(relay.port, "a"):
            pass


# -- whose they are -------------------------------------------------------------------------------


async def test_tenants_do_not_share() -> None:
    tenants = (Tenant(name="red", client=("red-*",)), Tenant(name="blue", client=("blue-*",)))
    async with (
        running(tenant=tenants) as relay,
        connected(relay.port, "p") as publisher,
        connected(relay.port, "red-1") as red,
        connected(relay.port, "blue-1") as blue,
    ):
        await red.subscribe(G, qos=1)
        await blue.subscribe(G, qos=1)
        await published(publisher, b"1", b"2")
        assert payloads(await settled(red)) == [b"1", b"2"]
        assert payloads(await settled(blue)) == [b"1", b"2"]
        names = {each.group.name for each in relay.relay.mqtt.groups.by_key.values()}
        assert names == {f"red/{G}", f"blue/{G}"}
        relay.audit()


async def test_it_stands_on_the_quota_of_its_client() -> None:
    async with running(quota_items=2) as relay:
        async with connected5(relay.port, "a") as a:
            answer = await a.subscribe(G, "$share/h/t", "$share/i/t")
            assert answer.return_codes == (0, 0, Reason.QUOTA_EXCEEDED)
            assert len(relay.relay.mqtt.groups) == 2
        await relay.deserted()


async def test_with_credit_the_publisher_waits_on_the_group() -> None:
    async with running(serve=on_credit(), max_inflight=10) as relay:
        async with connected(relay.port, "p") as publisher, connected(relay.port, "a") as a:
            await a.subscribe(G, qos=1)
            for n in range(2_000):
                await publisher.publish("t/x", b"%d" % n, 1, packet_id=n + 1)
            await until(lambda: relay.account("p").waiting)
            assert gate_of(relay.account("p")).blockers
            seen = 0
            with trio.fail_after(20):
                while seen < 2_000:
                    packet = await a.publication()
                    assert packet.payload == b"%d" % seen
                    seen += 1
                    await a.send(PubAck(packet.packet_id))
            relay.audit()
        await relay.deserted()


async def test_who_leaves_while_it_waits_for_what_it_shares_itself_frees_it() -> None:
    """A member that publishes to its own group, and goes: others get what it had at once."""
    async with running(limit_items=20, max_inflight=30, patience=60) as relay:
        async with connected(relay.port, "b") as b:
            async with connected(relay.port, "a") as a:
                await a.subscribe(G, qos=1)
                for n in range(60):
                    await a.publish("t/x", b"%d" % n, 1, packet_id=n + 1)
                await until(lambda: relay.account("a").waiting)
                await b.subscribe(G, qos=1)
            got = [await b.publication() for _ in range(20)]
            await b.send(*(PubAck(each.packet_id) for each in got))
            await until(lambda: "a" not in relay.relay.mqtt.sessions)
            relay.audit()
        await relay.deserted()


@pytest.mark.parametrize("stuck", ["drop_oldest", "spill"])
async def test_a_member_that_is_behind_gets_nothing_until_it_has_caught_up(stuck: str) -> None:
    async with running(stuck=stuck, patience=0.2, limit_items=50) as relay:
        async with (
            connected(relay.port, "p") as publisher,
            connected(relay.port, "slow", receive_buffer=4096) as slow,
        ):
            await slow.subscribe("own")
            await slow.subscribe(G, qos=1)
            outlet = relay.relay.mqtt.sessions["slow"].outlet
            with trio.move_on_after(10):
                while not outlet.lagging:
                    await publisher.send(*(Publish("own", b"x" * 50_000) for _ in range(10)))
                    await trio.sleep(0.01)
            assert outlet.lagging
            async with connected(relay.port, "fast") as fast:
                await fast.subscribe(G, qos=1)
                await published(publisher, *(b"%d" % n for n in range(20)))
                assert payloads(await settled(fast)) == [b"%d" % n for n in range(20)]
                relay.audit()
                with trio.fail_after(20):
                    while outlet.lagging:
                        await slow.stream.receive_some(1 << 20)
                flowing = group_of(relay).group.member_statistics
                await until(lambda: all(each.flows for each in flowing(9)))
                before = group_of(relay).group.counters.published
                await published(publisher, *(b"%d" % n for n in range(9)))
                assert len(await settled(fast)) < 9
                assert group_of(relay).group.counters.published == before + 9
                relay.audit()
        await relay.deserted()
