"""Relays in a cluster, over a real NATS server."""

from __future__ import annotations

import time

import pytest
import trio

from clearfunds.accounts import Ledger
from clearfunds.cluster import Cluster, ClusterError, ClusterSettings
from clearfunds.dataspace import Dataspace, Publication
from tests.cluster.members import Member, joined, members, take, until
from tests.nats_servers import NatsServer, needs_nats

pytestmark = needs_nats


async def test_a_publication_goes_to_each_relay_with_subscribers_once_and_is_owed_for(
    nats: NatsServer,
) -> None:
    async with members(nats.url, "r1", "r2", "r3") as (one, two, three):
        async with two.subscribed("archive", "news/#") as box, two.subscribed("b", "news/a") as b:
            one.publish("newsroom", *(Publication("news/a", b"%d" % n) for n in range(10)))
            await until(lambda: set(one.owed("newsroom")) <= {"r2/archive", "r2/b"})
            assert sum(one.owed("newsroom").values()) == 10
            assert two.owed("via/r1/newsroom") == {"archive": 10, "b": 10}
            assert not three.ledger.accounts.get("via/r1/newsroom")
            assert [p.payload for p in await take(box, 10)] == [b"%d" % n for n in range(10)]
            assert sum(one.owed("newsroom").values()) == 10
            await take(b, 10)
            await until(one.is_quiet)
            await until(two.is_quiet)
        one.publish("newsroom", Publication("news/a", b"too late"))
        await until(lambda: not one.owed("newsroom"))


async def test_all_of_a_publication_crosses(nats: NatsServer) -> None:
    async with members(nats.url, "r1", "r2") as (one, two), two.subscribed("box", "#") as box:
        sent = [
            Publication("a", b"", 0),
            Publication("ü/b", b"x" * 3_000_000, 0),  # larger than a message of NATS
            Publication("c", b"\0\xff", 0, properties=b"\x03\0\1x", expires=time.time() + 100),
        ]
        one.publish("p", *sent)
        assert await take(box, 3) == sent


async def test_what_a_relay_does_not_want_any_more_stays(nats: NatsServer) -> None:
    async with members(nats.url, "r1", "r2") as (one, two):
        async with two.subscribed("box", "t"):
            one.publish("p", Publication("t", b""))
            await until(lambda: one.owed("p") == {"r2/box": 1})
        await until(one.is_quiet)
        await trio.sleep(0.3)
        unrouted = one.dataspace.unrouted
        one.publish("p", Publication("t", b""))
        assert one.dataspace.unrouted == unrouted + 1


async def test_a_relay_that_leaves_is_known_to_be_gone_at_once_and_what_it_had_is_written_off(
    nats: NatsServer,
) -> None:
    one, two = Member(nats.url, "r1"), Member(nats.url, "r2")
    async with joined(one):
        async with two.subscribed("box", "t"), joined(two):
            await until(lambda: len(one.dataspace.route_of("t").plain.holders) == 1)
            one.publish("p", Publication("t", b""))
            await until(lambda: one.owed("p") == {"r2/box": 1})
        await until(lambda: not one.cluster.peers, 2)
        assert one.is_quiet()
        assert one.ledger.statistics().repaid_items["written_off"] == 1
        one.ledger.audit()


async def test_over_a_short_loss_of_nats_nothing_is_lost(own_nats: NatsServer) -> None:
    async with members(own_nats.url, "r1", "r2") as (one, two), two.subscribed("box", "t") as box:
        own_nats.kill()
        one.publish("p", *(Publication("t", b"%d" % n) for n in range(50)))
        await trio.sleep(0.5)
        assert one.owed("p") == {"r2": 50}
        await trio.to_thread.run_sync(own_nats.start)
        assert len(await take(box, 50)) == 50
        await until(one.is_quiet)


async def test_relays_whose_leases_have_expired_meet_again(
    own_nats: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with members(own_nats.url, "r1", "r2") as (one, two), two.subscribed("box", "t") as box:
        before = one.cluster.peers["r2"]
        own_nats.kill()
        one.publish("p", Publication("t", b"lost"))
        await trio.sleep(5)
        assert one.owed("p") == {"r2": 1}
        await trio.to_thread.run_sync(own_nats.start)
        await until(lambda: one.cluster.peers.get("r2") not in (None, before))
        await until(lambda: one.cluster.peers["r2"].hop.is_known)
        assert "joins again" in caplog.text
        await until(lambda: len(one.dataspace.route_of("t").plain.holders) == 1)
        one.publish("p", Publication("t", b"again"))
        while (await take(box, 1))[0].payload != b"again":
            pass
        await until(one.is_quiet)


async def test_a_name_that_is_taken_is_refused_with_a_sentence(nats: NatsServer) -> None:
    async with members(nats.url, "twin"):
        again = Member(nats.url, "twin")
        with pytest.raises(ClusterError, match="another relay of the cluster has the name 'twin'"):
            async with again.cluster.joined():
                pass


async def test_without_nats_there_is_a_sentence() -> None:
    member = Member("nats://127.0.0.1:1", "r1")
    with pytest.raises(ClusterError, match=r"cannot join the cluster at nats://127.0.0.1:1: "):
        async with member.cluster.joined():
            pass


@pytest.mark.parametrize("name", ["", "a.b", "a b", "*", "x" * 65])
def test_names_that_cannot_be(name: str) -> None:
    with pytest.raises(ClusterError, match="cannot have the name"):
        Cluster(ClusterSettings("nats://h", name), Dataspace(Ledger()), lambda *_: None)  # type: ignore[arg-type]
