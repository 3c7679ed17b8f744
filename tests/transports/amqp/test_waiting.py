"""Backpressure in AMQP's terms: who waits, who is told, and what goes on meanwhile."""

from __future__ import annotations

import trio
from pamqp.commands import Basic, Channel, Connection, Queue

from clearfunds.access._publication_policies import PublicationPolicy
from tests.transports.amqp.clients import client, publication, serving, session, side
from tests.transports.peers import SECONDS, until


async def test_a_publisher_waits_while_its_consumers_do_not() -> None:
    """The trap of one connection for both: acknowledgements overtake publications (rule 10)."""
    async with serving(limit_items=10, kept_limit=1, patience=60.0) as relay, client(relay) as raw:
        await raw.declare("q")
        await raw.send(1, Basic.Qos(prefetch_count=5))
        await raw.expect(Basic.QosOk)
        await raw.consume("q", tag="t")
        await raw.raw(b"".join(publication("q", b"%d" % n) for n in range(40)))
        got = await raw.deliveries(5)
        await until(lambda: session(relay).account.waiting)  # type: ignore[union-attr]
        for n in range(5, 40):
            await raw.send(1, Basic.Ack(n - 4))
            got += await raw.deliveries(1)
        assert [each.body for each in got] == [b"%d" % n for n in range(40)]
        relay.audit()
        await raw.send(1, Basic.Ack(0, True))
        await raw.sync()
        await until(lambda: not session(relay).account.debt_items)  # type: ignore[union-attr]


async def test_a_consumer_may_come_while_its_connection_waits() -> None:
    async with serving(limit_items=10, kept_limit=1, patience=60.0) as relay, client(relay) as raw:
        await raw.open(2)
        await raw.declare("q")
        await raw.raw(b"".join(publication("q", b"%d" % n) for n in range(30)))
        await until(lambda: session(relay).account.waiting)  # type: ignore[union-attr]
        # On its own channel it overtakes; what is behind the publications in other ways waits.
        await raw.send(1, Basic.Consume(queue="q", consumer_tag="t", no_ack=True))
        await raw.send(1, Queue.Declare(queue="later"))
        await raw.expect(Basic.ConsumeOk)
        got = await raw.deliveries(30)
        assert [each.body for each in got] == [b"%d" % n for n in range(30)]
        assert (await raw.expect(Queue.DeclareOk)).queue == "later"


async def test_other_channels_of_a_waiting_connection_go_on() -> None:
    async with serving(limit_items=10, kept_limit=1, patience=60.0) as relay, client(relay) as raw:
        await raw.open(2)
        await raw.declare("q")
        await raw.raw(b"".join(publication("q", b"%d" % n) for n in range(30)))
        await until(lambda: session(relay).account.waiting)  # type: ignore[union-attr]
        await raw.send(2, Queue.Declare(queue="other"))
        assert (await raw.expect(Queue.DeclareOk)).queue == "other"
        await raw.send(2, Channel.Close(200, "", 0, 0))
        await raw.expect(Channel.CloseOk)
        # Its publications are not lost, though it closes their channel and the connection.
        await raw.send(1, Channel.Close(200, "", 0, 0))
        await raw.send(0, Connection.Close(200, "", 0, 0))
        assert await raw.silent()
        async with client(relay, user="other") as worker:
            await worker.consume("q", tag="t", no_ack=True)
            got = await worker.deliveries(30)
        assert [each.body for each in got] == [b"%d" % n for n in range(30)]
        await raw.expect(Channel.CloseOk)
        await raw.expect(Connection.CloseOk)


async def test_an_error_behind_what_waits_is_found_in_its_turn() -> None:
    async with serving(limit_items=10, kept_limit=1, patience=60.0) as relay, client(relay) as raw:
        await raw.declare("q")
        await raw.raw(b"".join(publication("q", b"%d" % n) for n in range(30)))
        await until(lambda: session(relay).account.waiting)  # type: ignore[union-attr]
        await raw.raw(b"\xff" * 20)
        assert await raw.silent()
        async with client(relay, user="other") as worker:
            await worker.consume("q", tag="t", no_ack=True)
            await worker.deliveries(30)
        await raw.closed(501)


async def test_a_soft_error_while_it_waits_drops_what_its_channel_has_not_published() -> None:
    async with serving(limit_items=10, kept_limit=1, patience=60.0) as relay, client(relay) as raw:
        await raw.declare("q")
        await raw.raw(b"".join(publication("q", b"%d" % n) for n in range(30)))
        await until(lambda: session(relay).account.waiting)  # type: ignore[union-attr]
        await raw.send(1, Basic.Ack(99))
        await raw.closed(406, 1)
        await raw.open(2)
        relay.audit()
        queue = side(relay).hosts["/"].queues["q"].queue
        assert len(queue) < 30
        queue.purge()
        await until(lambda: not session(relay).account.waiting)  # type: ignore[union-attr]
        await raw.sync(2)


async def test_a_client_that_leaves_while_it_waits_has_published_all() -> None:
    async with serving(limit_items=10, kept_limit=1, patience=60.0) as relay:
        async with client(relay) as raw:
            await raw.declare("q")
            await raw.raw(b"".join(publication("q", b"%d" % n) for n in range(30)))
            await until(lambda: session(relay).account.waiting)  # type: ignore[union-attr]
        async with client(relay, user="other") as worker:
            await worker.consume("q", tag="t", no_ack=True)
            assert len(await worker.deliveries(30)) == 30
        await until(lambda: not side(relay).open)
        relay.audit()


async def test_a_publisher_hears_that_it_is_blocked_and_by_whom() -> None:
    async with (
        serving(limit_items=10, kept_limit=1, patience=60.0) as relay,
        client(relay, user="alice") as raw,
        client(relay, user="bob", connection_name="worker-3") as worker,
    ):
        await raw.declare("jobs")
        await worker.send(1, Basic.Qos(prefetch_count=5))
        await worker.expect(Basic.QosOk)
        await worker.consume("jobs", tag="t")
        await raw.raw(b"".join(publication("jobs", b"x") for _ in range(30)))
        blocked = await raw.expect(Connection.Blocked)
        reason = str(blocked.reason)
        assert reason.startswith("alice waits for queue jobs (11 messages), held by ")
        assert reason.endswith("/bob/worker-3")
        for n in range(30):
            await worker.deliveries(1)
            await worker.send(1, Basic.Ack(n + 1))
        await raw.expect(Connection.Unblocked)
        relay.audit()


async def test_above_the_limit_publications_are_nacked_or_shed() -> None:
    rules = (PublicationPolicy("orders", "#", "refuse"), PublicationPolicy("sensor", "#", "shed"))
    async with serving(
        limit_items=10, kept_limit=1, patience=60.0, publication_policy=rules
    ) as relay:
        async with client(relay, connection_name="orders") as raw:
            await raw.declare("q")
            await raw.confirm()
            await raw.raw(b"".join(publication("q", b"%d" % n) for n in range(30)))
            acked = nacked = 0
            last = {Basic.Ack: 0, Basic.Nack: 0}
            while acked + nacked < 30:
                method = (await raw.next()).method
                assert isinstance(method, Basic.Ack | Basic.Nack)
                done = max(last.values())
                count = method.delivery_tag - done if method.multiple else 1
                last[type(method)] = method.delivery_tag
                if isinstance(method, Basic.Ack):
                    acked += count
                else:
                    nacked += count
            assert acked == len(side(relay).hosts["/"].queues["q"].queue) == 11
            await raw.send(1, Queue.Purge(queue="q"))
            await raw.expect(Queue.PurgeOk)
        async with client(relay, connection_name="sensor") as raw:
            await raw.raw(b"".join(publication("q", b"%d" % n) for n in range(30)))
            await raw.sync()
            assert len(side(relay).hosts["/"].queues["q"].queue) == 11
            await raw.send(1, Queue.Delete(queue="q"))
            await raw.expect(Queue.DeleteOk)
        totals = relay.relay.mqtt.over_limits.totals
        assert sum(each.refused for each in totals.values()) == 19
        assert sum(each.shed for each in totals.values()) == 19


async def test_a_consumer_that_acknowledges_nothing_while_others_wait_is_cut_off() -> None:
    async with (
        serving(limit_items=10, kept_limit=1, patience=0.3, slow_wait=None) as relay,
        client(relay, user="alice") as raw,
        client(relay, user="bob") as worker,
    ):
        await raw.declare("q")
        await worker.consume("q", tag="t")
        await raw.raw(b"".join(publication("q", b"%d" % n) for n in range(30)))
        text = ""
        with trio.fail_after(SECONDS):
            while not text:
                got = await worker.next()
                if isinstance(got.method, Channel.Close):
                    text = str(got.method.reply_text)
        assert text.startswith("PRECONDITION_FAILED - delivery acknowledgement on channel 1 timed")
        await worker.send(1, Channel.CloseOk())
        await worker.open(1)
        await worker.consume("q", tag="t", no_ack=True)
        got_all = await worker.deliveries(30)
        assert sorted(int(each.body) for each in got_all) == list(range(30))
        relay.audit()


async def test_a_client_that_does_not_read_answers_is_not_read() -> None:
    async with serving(limit_bytes=50_000, patience=60.0) as relay, client(relay) as raw:
        data = b"".join(publication("nowhere", bytes(1000), mandatory=True) for _ in range(10))

        async def flood() -> None:
            for _ in range(10_000):
                await raw.raw(data)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(flood)
            await until(lambda: session(relay).account.waiting)  # type: ignore[union-attr]
            await trio.sleep(0.3)
            relay.audit()
            assert session(relay).account.debt_bytes < 200_000  # type: ignore[union-attr]
            nursery.cancel_scope.cancel()
