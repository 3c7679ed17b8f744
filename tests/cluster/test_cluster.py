"""Relays in a cluster, over a real NATS server."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Final

import pytest
import trio

from clearfunds.cluster import ClusterError, ClusterSettings
from clearfunds.cluster._codec import encode
from clearfunds.cluster._peer import Peer
from clearfunds.dataspace import Publication
from clearfunds.dataspace.hops import Hop, Parcel, Receipt, Shipment, share_of_window
from clearfunds.dataspace.hops._hop import BYTES_TO_ONE
from clearfunds.transports.nats import JetStream, KeyValue, NatsClient, NoAnswerError, open_nats
from tests.cluster.cut import ways
from tests.cluster.members import Member, joined, members, take, until
from tests.nats_servers import NatsServer, needs_nats
from tests.transports.peers import SECONDS

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


async def test_relays_that_are_cut_off_serve_their_own_clients_and_meet_again(
    own_nats: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        members(own_nats.url, "r1", "r2") as (one, two),
        two.subscribed("box", "t") as box,
        one.subscribed("local", "t") as local,
    ):
        before = one.cluster.peers["r2"]
        own_nats.kill()
        one.publish("p", Publication("t", b"lost"))
        await trio.sleep(2)
        assert one.owed("p") == {"r2": 1, "local": 1}
        await take(local, 1)
        await until(lambda: not one.owed("p"), 4)
        assert one.ledger.statistics().repaid_items["written_off"] == 1
        for _ in range(5):  # nobody waits for the other relay any more
            one.publish("p", *[Publication("t", b"x")] * 50)
            await take(local, 50)
        assert "relay r1 is cut off from the cluster" in caplog.text
        await trio.to_thread.run_sync(own_nats.start)
        await until(lambda: one.cluster.peers.get("r2") not in (None, before))
        await until(lambda: one.cluster.peers["r2"].hop.is_known)
        await until(lambda: len(one.dataspace.route_of("t").plain.holders) == 2)
        one.publish("p", Publication("t", b"again"))
        while (await take(box, 1))[0].payload != b"again":
            pass
        await take(local, 1)
        await until(one.is_quiet)


async def test_what_is_no_value_in_the_bucket_is_named_and_ends_nothing(
    nats: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with members(nats.url, "r1", "r2") as (one, two), open_nats(nats.url) as client:
        bucket = KeyValue(JetStream(client), "clearfunds-clearfunds")
        for value in (b"", b'{"life": Infinity}', b'{"life": 1e400}', b"[]", b'{"life": "1"}'):
            for key in ("relay.evil", "filters.evil.3", "filters.evil.x"):
                await bucket.put(key, value)
        await until(lambda: caplog.text.count("the cluster's bucket has") >= 30)
        async with two.subscribed("box", "t") as box:
            one.publish("p", Publication("t", b"x"))
            assert len(await take(box, 1)) == 1
        for key in ("relay.evil", "filters.evil.3", "filters.evil.x"):
            await bucket.delete(key)


async def test_what_was_sent_for_another_life_is_ignored(nats: NatsServer) -> None:
    async with members(nats.url, "r1", "r2") as (one, two), two.subscribed("box", "t") as box:
        peer = two.cluster.peers["r1"]
        parcel = Parcel(1, "p", (), (Publication("t", b"old"),), 1, 1)
        for number in (peer.number - 1, peer.number + 1):
            peer.take(encode(Shipment(number, 1, peer.number, 1, 1, (parcel,))))
            peer.take(encode(Shipment(peer.number, 1, number, 1, 1, (parcel,))))
            peer.take(encode(Receipt(peer.number, number, 9, 9)))
        one.publish("p", Publication("t", b"new"))
        assert [each.payload for each in await take(box, 1)] == [b"new"]


@pytest.mark.parametrize("fails", [False, True])
async def test_a_relay_that_has_gone_leaves_no_filters_behind(
    nats: NatsServer, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    if fails:
        monkeypatch.setattr(JetStream, "purge_stream", fails_once(JetStream.purge_stream))
    async with members(nats.url, "stays") as (one,), open_nats(nats.url) as client:
        other = Member(nats.url, "goes")
        async with joined(other), other.subscribed("box", "some/filter"):
            await until(lambda: one.cluster.peers)
        await until_no_filters(client, "goes")
        assert one.cluster.peers == {}


def fails_once(
    purge: Callable[..., Awaitable[int]],
) -> Callable[..., Awaitable[int]]:
    """Return what purges, but the first time nobody answers."""
    failures = iter([NoAnswerError("no answer")])

    async def ask(*args: object, **options: object) -> int:
        await trio.lowlevel.checkpoint()
        for exc in failures:
            raise exc
        return await purge(*args, **options)

    return ask


async def until_no_filters(client: NatsClient, name: str) -> None:
    """Wait until the bucket has no filters of a relay."""
    bucket = KeyValue(JetStream(client), "clearfunds-clearfunds")
    with trio.fail_after(SECONDS):
        while await bucket.keys(f"filters.{name}.*"):  # noqa: ASYNC110
            await trio.sleep(0.05)


PAGE: Final = b'{"life": 1, "returns": false, "filters": ["news/#"]}'


async def test_a_relay_that_has_gone_while_nobody_looked_leaves_no_filters_behind(
    own_nats: NatsServer,
) -> None:
    async with open_nats(own_nats.url) as client, ways(own_nats.port) as (way,):
        one = Member(f"nats://127.0.0.1:{way.port}", "stays")
        async with joined(one):
            bucket = KeyValue(JetStream(client), "clearfunds-clearfunds")
            await bucket.put("relay.goes", b'{"life": 1, "returns": false}')
            await bucket.put("filters.goes.0", PAGE)
            await until(lambda: "goes" in one.cluster.peers)
            way.cut()
            await bucket.delete("relay.goes")
            way.mend()
            await until_no_filters(client, "goes")
            assert one.cluster.peers == {}


async def test_a_relay_that_joins_deletes_the_filters_of_those_that_are_not_there(
    own_nats: NatsServer,
) -> None:
    async with members(own_nats.url, "r1") as (one,), open_nats(own_nats.url) as client:
        bucket = KeyValue(JetStream(client), "clearfunds-clearfunds")
        await bucket.put("filters.goes.0", PAGE)
        async with one.subscribed("box", "t"), members(own_nats.url, "r2") as (two,):
            await until_no_filters(client, "goes")
            # What is there keeps its filters.
            await until(lambda: len(two.dataspace.route_of("t").plain.holders) == 1)
            two.publish("p", Publication("t", b""))
            await until(lambda: two.owed("p") == {"r1/box": 1})


async def test_a_relay_that_has_asked_for_its_name_only_is_expected(nats: NatsServer) -> None:
    """It opens its store yet; what others join meanwhile keep for it what it wants."""
    async with members(nats.url, "early"), open_nats(nats.url) as client:
        bucket = KeyValue(JetStream(client), "clearfunds-clearfunds")
        page = b'{"life": 1, "returns": true, "filters": ["news/#"]}'
        await bucket.put("filters.opens.0", page)
        await bucket.put("relay.opens", b'{"life": 0, "returns": true}')
        member = Member(nats.url, "joins")
        async with joined(member):
            assert "opens" not in member.cluster.peers
            assert member.cluster.away["opens"].filters == {"news/#"}
            await bucket.put("relay.opens", b'{"life": 9999, "returns": true}')
            await until(lambda: "opens" in member.cluster.peers)
            assert not member.cluster.away
            assert member.cluster.peers["opens"].filters == {"news/#"}
        await bucket.delete("relay.opens")
        await bucket.delete("filters.opens.0")


async def test_a_publication_that_is_too_large_for_nats_is_named_and_in_nobodys_way(
    nats: NatsServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("clearfunds.cluster._codec.MAX_PARTS", 2)
    async with members(nats.url, "r1", "r2") as (one, two), two.subscribed("box", "t") as box:
        one.publish("large", Publication("t", bytes(3 << 20)))
        one.publish("small", Publication("t", b"x"))
        assert [each.payload for each in await take(box, 1)] == [b"x"]
        await until(one.is_quiet)
        assert "1 items of large are lost to relay r2" in caplog.text


async def test_a_name_that_is_taken_is_refused_with_a_sentence(nats: NatsServer) -> None:
    async with members(nats.url, "twin", "other") as (twin, other):
        before = other.cluster.peers["twin"]
        again = Member(nats.url, "twin")
        with pytest.raises(ClusterError, match="another relay of the cluster has the name 'twin'"):
            async with again.cluster.joined():
                pass
        await trio.sleep(0.5)
        assert other.cluster.peers == {"twin": before}  # it was not thrown out
        assert twin.cluster.rejoins == 0


async def test_without_nats_there_is_a_sentence() -> None:
    member = Member("nats://127.0.0.1:1", "r1")
    with pytest.raises(ClusterError, match=r"cannot join the cluster at nats://127.0.0.1:1: "):
        async with member.cluster.joined():
            pass


@pytest.mark.parametrize("name", ["", "a.b", "a b", "*", "x" * 65])
def test_names_that_cannot_be(name: str) -> None:
    with pytest.raises(ClusterError, match="cannot have the name"):
        ClusterSettings("nats://h", name)


async def test_what_was_lost_is_sent_again_while_more_comes(
    nats: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with members(nats.url, "r1", "r2") as (one, two), two.subscribed("box", "t") as box:
        real, lost = type(two.cluster.peers["r1"]).take, 0

        def lossy(peer: Peer, data: bytes) -> None:
            nonlocal lost
            if b'"parcels":[[' in data and lost < 3:
                lost += 1
            else:
                real(peer, data)

        monkeypatch.setattr(Peer, "take", lossy)
        async with trio.open_nursery() as nursery:

            async def publish() -> None:
                for number in range(60):
                    one.publish("p", Publication("t", b"%d" % number))
                    await trio.sleep(0.05)

            nursery.start_soon(publish)
            assert [each.payload for each in await take(box, 60)] == [b"%d" % n for n in range(60)]
        assert lost == 3


async def test_a_slow_relay_that_many_send_to_keeps_its_connection_and_gets_all(
    own_nats: NatsServer,
) -> None:
    senders, sent, size = 12, 90, 100_000
    names = [f"r{number}" for number in range(senders)]
    async with ways(own_nats.port) as (way,):
        slow = Member(f"nats://127.0.0.1:{way.port}", "slow")
        async with members(own_nats.url, *names) as others, joined(slow):
            hops = [await hop_to(each, "slow") for each in others]
            assert {each.window.bytes for each in hops} == {BYTES_TO_ONE // senders}
            async with slow.subscribed("box", "t") as box:
                way.slow_down(b"clearfunds slow, data", 500_000)
                for each in others:
                    each.publish("p", *[Publication("t", bytes(size))] * sent)
                under_way = 0
                # As much as they may send, and then some time in which little comes of it.
                await until(lambda: all(each.unreceived_items for each in hops))
                with trio.move_on_after(2.5):
                    while True:
                        under_way = sum(each.unreceived_bytes for each in hops)
                        assert under_way <= BYTES_TO_ONE
                        assert not own_nats.slow_consumers()
                        await trio.sleep(0.1)
                assert under_way > BYTES_TO_ONE / 2
                way.release()
                assert len(await take(box, senders * sent)) == senders * sent
            for each in others:
                await until(each.is_quiet)
            assert not own_nats.slow_consumers()
            assert slow.cluster.rejoins == 0


async def test_what_is_late_is_not_sent_again(own_nats: NatsServer) -> None:
    async with ways(own_nats.port) as (way,):
        slow = Member(f"nats://127.0.0.1:{way.port}", "slow")
        async with members(own_nats.url, "r1") as (one,), joined(slow):
            hop = await hop_to(one, "slow")
            async with slow.subscribed("box", "t") as box:
                way.slow_down(b"clearfunds slow, data", 50_000)
                one.publish("p", *[Publication("t", bytes(100_000))] * 20)
                await trio.sleep(4)
                assert hop.unreceived_items
                way.release()
                await take(box, 20)
            await until(one.is_quiet)
            assert not one.cluster.peers["slow"].resent


async def hop_to(member: Member, name: str) -> Hop:
    """Return a member's hop to another one that is there."""
    await until(lambda: name in member.cluster.peers)
    hop = member.cluster.peers[name].hop
    await until(lambda: hop.is_known)
    return hop


async def test_windows_grow_again_when_relays_leave(nats: NatsServer) -> None:
    names = [f"r{number}" for number in range(4)]
    async with members(nats.url, *names) as found:
        windows = {p.hop.window for each in found for p in each.cluster.peers.values()}
        assert windows == {share_of_window(3)}
        assert share_of_window(3).bytes == BYTES_TO_ONE // 3
        async with joined(Member(nats.url, "r5")):
            await until(lambda: len(found[0].cluster.peers) == 4)
            assert {p.hop.window for p in found[0].cluster.peers.values()} == {share_of_window(4)}
        await until(lambda: len(found[0].cluster.peers) == 3)
        assert {p.hop.window for p in found[0].cluster.peers.values()} == windows
