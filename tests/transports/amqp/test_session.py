"""Connections to a whole relay, by a client that says whatever the test wants."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
import trio
from pamqp import body, frame, header
from pamqp.commands import Basic, Channel, Confirm, Connection, Exchange, Queue, Tx

from clearfunds.access._passwords import Passwords
from clearfunds.access._tenants import Tenant
from clearfunds.transports.amqp._field_tables import write_table
from tests.transports.amqp.clients import (
    AMQP,
    CAPABILITIES,
    PROTOCOL_HEADER,
    ClosedError,
    client,
    consuming,
    dialled,
    publication,
    serving,
    session,
    side,
)
from tests.transports.mqtt.users import user_line
from tests.transports.peers import until

# -- negotiation -----------------------------------------------------------------------------------


@pytest.mark.parametrize("first", [b"GET / HTTP/1.1\r\n\r\n", b"AMQP\x03\1\0\0", b"AMQP\0\1\0\0"])
async def test_another_protocol_is_told_which_is_spoken(first: bytes) -> None:
    async with serving() as relay, dialled(relay) as raw:
        await raw.raw(first)
        answer = b""
        while data := await raw.stream.receive_some(100):
            answer += bytes(data)
        assert answer == PROTOCOL_HEADER


async def test_what_a_client_is_told_of_the_server() -> None:
    async with serving() as relay, dialled(relay) as raw:
        start = await raw.start()
        assert (start.version_major, start.version_minor) == (0, 9)
        assert start.mechanisms == "AMQPLAIN PLAIN"
        properties = start.server_properties
        assert properties["product"] == "clearfunds"
        capabilities = properties["capabilities"]
        assert isinstance(capabilities, dict)
        assert capabilities["publisher_confirms"] is True
        assert capabilities["consumer_priorities"] is False


@pytest.mark.parametrize(
    ("tuned", "why"),
    [
        ((2048, 131_072, 0), "channel_max = 2048 is higher than the maximum allowed value (2047)"),
        ((0, 131_072, 0), "channel_max = 0 (no limit) is higher"),
        ((5, 4_095, 0), "frame_max = 4095 is lower than the minimum allowed value (4096)"),
        ((5, 131_073, 0), "frame_max = 131073 is higher"),
    ],
)
async def test_limits_that_were_not_proposed(tuned: tuple[int, int, int], why: str) -> None:
    async with serving() as relay, dialled(relay) as raw:
        await raw.log_in()
        tune = await raw.expect(Connection.Tune)
        assert (tune.channel_max, tune.frame_max, tune.heartbeat) == (2047, 131_072, 60)
        await raw.send(0, Connection.TuneOk(*tuned))
        assert why in await raw.closed(530)


USERS = Passwords.from_text(user_line("alice", b"secret"))


async def test_plain_with_the_relays_users() -> None:
    user, password = "alice", "secret"
    async with serving(passwords=USERS) as relay:
        async with client(relay, user=user, password=password, connection_name="worker") as raw:
            assert session(relay).name.endswith(f"/{user}/worker")
            await raw.publish("", user_id=user)
            await raw.sync()
            await raw.publish("", user_id="somebody")
            assert "user_id property set to 'somebody'" in await raw.closed(406, 1)
        for wrong in ((user, "wrong"), ("nobody", password), ("", "")):
            async with dialled(relay) as raw:
                await raw.log_in(*wrong)
                assert (await raw.closed(403)).startswith(
                    "ACCESS_REFUSED - Login was refused using authentication mechanism PLAIN"
                )
        # One that cannot be told.
        async with dialled(relay) as raw:
            await raw.start()
            await raw.send(0, Connection.StartOk({}, "PLAIN", "\0a\0b", "en_US"))
            await raw.gone()
        # The same by AMQPLAIN.
        async with dialled(relay) as raw:
            await raw.start()
            table = write_table({"LOGIN": user, "PASSWORD": password})[4:]
            method = Connection.StartOk({}, "AMQPLAIN", table.decode(), "en_US")
            await raw.send(0, method)
            await raw.expect(Connection.Tune)


async def test_mechanisms_that_are_not_there() -> None:
    async with serving() as relay:
        for mechanism in ("EXTERNAL", "SCRAM-SHA-256"):
            async with dialled(relay) as raw:
                await raw.start()
                await raw.send(
                    0, Connection.StartOk({"capabilities": CAPABILITIES}, mechanism, "", "en_US")
                )
                assert "unknown authentication mechanism" in await raw.closed(503)


async def test_virtual_hosts_are_tenants() -> None:
    tenants = (Tenant(name="press", user=("alice",)), Tenant(name="rest", default=True))
    async with serving(tenant=tenants) as relay:
        async with client(relay, user="alice", host="press") as raw:
            await raw.declare("q")
            async with client(relay, user="alice") as same:
                await same.send(1, Queue.Declare(queue="q", passive=True))
                await same.expect(Queue.DeclareOk)
            await until(lambda: len(side(relay).open) == 1)
            assert session(relay).account.parent.name == "tenant/press"  # type: ignore[union-attr]
            async with client(relay, user="bob") as other:
                await other.send(1, Queue.Declare(queue="q", passive=True))
                assert "no queue 'q' in vhost '/'" in await other.closed(404, 1)
        async with client(relay, user="bob", host="rest"):
            pass
        for user, host, why in (
            ("alice", "rest", "access to vhost 'rest' refused for user 'alice'"),
            ("bob", "press", "access to vhost 'press' refused for user 'bob'"),
            ("bob", "moon", "vhost moon not found"),
        ):
            async with dialled(relay) as raw:
                await raw.log_in(user)
                await raw.expect(Connection.Tune)
                await raw.send(0, Connection.TuneOk(9, 4096, 0), Connection.Open(host))
                assert why in await raw.closed(530)


async def test_connections_of_one_user_have_a_limit() -> None:
    tenants = (Tenant(name="rest", default=True, connections=1),)
    async with serving(tenant=tenants) as relay, client(relay), dialled(relay) as raw:
        await raw.log_in()
        await raw.expect(Connection.Tune)
        await raw.send(0, Connection.TuneOk(9, 4096, 0), Connection.Open("/"))
        assert "refused for user 'guest': " in await raw.closed(530)


async def test_a_client_that_says_nothing_is_cut_off() -> None:
    async with serving(connect_timeout=0.5) as relay, dialled(relay) as raw:
        await raw.start()
        with pytest.raises(ClosedError):
            await raw.next()
        assert side(relay).counters.timeouts == 1


# -- heartbeats ------------------------------------------------------------------------------------


async def test_heartbeats_both_ways() -> None:
    async with serving() as relay, client(relay, heartbeat=1) as raw:
        await raw.gone()
        assert raw.heartbeats >= 2
        assert side(relay).counters.timeouts == 1


async def test_heartbeats_keep_a_connection() -> None:
    async with serving() as relay, client(relay, heartbeat=1) as raw:
        for _ in range(8):
            await raw.raw(struct.pack(">BHIB", 8, 0, 0, 0xCE))
            await trio.sleep(0.4)
        await raw.sync()
        assert raw.heartbeats >= 2


# -- errors ----------------------------------------------------------------------------------------


async def test_a_soft_error_closes_one_channel() -> None:
    async with serving() as relay, client(relay) as raw:
        await raw.open(2)
        queue = await raw.declare("q")
        await raw.publish("q", b"one")
        await raw.consume("q", tag="t")
        await raw.deliveries(1)
        await raw.send(1, Basic.Ack(7))
        got = await raw.next()
        assert isinstance(got.method, Channel.Close)
        assert got.method.reply_text == "PRECONDITION_FAILED - unknown delivery tag 7"
        assert (got.method.class_id, got.method.method_id) == (60, 80)
        # What comes before the client agrees is passed over.
        await raw.raw(publication("q", b"lost"))
        await raw.send(1, Queue.Declare(queue="other"), Channel.CloseOk())
        await raw.open(1)
        again = await raw.get(queue, channel=2, no_ack=False)
        assert again is not None
        assert again.body == b"one"
        assert isinstance(again.method, Basic.GetOk)
        assert again.method.redelivered
        assert "other" not in side(relay).hosts["/"].queues
        assert side(relay).counters.protocol_errors == 0


async def test_a_hard_error_closes_the_connection() -> None:
    async with serving() as relay:
        async with client(relay) as raw:
            await raw.send(1, Tx.Select())
            assert "NOT_IMPLEMENTED - Tx.Select" in await raw.closed(540)
        async with client(relay) as raw:
            await raw.send(9, Queue.Declare(queue="q"))
            assert "expected 'channel.open'" in await raw.closed(504)
        await until(lambda: not side(relay).open)
        assert side(relay).counters.protocol_errors == 2


async def test_what_is_not_there() -> None:
    async with serving() as relay, client(relay) as raw:
        for method, code in (
            (Queue.Declare(queue="no", passive=True), 404),
            (Exchange.Declare(exchange="no", passive=True), 404),
            (Queue.Bind(queue="no", exchange="amq.direct"), 404),
            (Basic.Consume(queue="no"), 404),
            (Basic.Get(queue="no"), 404),
            (Queue.Purge(queue="no"), 404),
            (Queue.Declare(queue="", passive=True), 404),
            (Basic.Publish(exchange="no"), 404),
            (Exchange.Declare(exchange="amq.new"), 403),
            (Exchange.Delete(exchange="amq.direct"), 403),
            (Basic.Reject(1), 406),
            (Basic.Nack(1), 406),
        ):
            await raw.send(1, method)
            if isinstance(method, Basic.Publish):
                await raw.send(1, header.ContentHeader(0, 0))
            text = await raw.closed(code, 1)
            assert text.partition(" - ")[0].isupper()
            await raw.open(1)


@pytest.mark.parametrize(
    ("method", "code"),
    [
        (Basic.Qos(prefetch_size=1), 540),
        (Channel.Flow(False), 540),
        (Basic.Recover(False), 540),
        (Exchange.Declare(exchange="e", exchange_type="x-odd"), 503),
    ],
)
async def test_what_is_not_done(method: object, code: int) -> None:
    async with serving() as relay, client(relay) as raw:
        await raw.send(1, method)
        await raw.closed(code)


async def test_an_immediate_message_is_not_done() -> None:
    async with serving() as relay, client(relay) as raw:
        await raw.send(
            1,
            Basic.Publish(exchange="", routing_key="q", immediate=True),
            header.ContentHeader(0, 1),
            body.ContentBody(b"x"),
        )
        assert "immediate=true" in await raw.closed(540)


async def test_properties_that_make_no_sense() -> None:
    async with serving() as relay:
        async with client(relay) as raw:
            await raw.publish("q", b"x", expiration="soon")
            assert "invalid expiration 'soon'" in await raw.closed(406, 1)
        async with client(relay) as raw:
            wrong = publication("q", b"x", priority=1).replace(b"\x08\x00\x01", b"\x08\x01\x01")
            await raw.raw(wrong)
            await raw.closed(502)


async def test_a_large_message_closes_its_channel() -> None:
    async with serving(max_packet_size=10_000) as relay, client(relay) as raw:
        await raw.publish("q", bytes(10_001))
        assert "message size 10001 is larger than configured max size 10000" in await raw.closed(
            406, 1
        )


# -- publishing and consuming ----------------------------------------------------------------------


async def test_confirms_are_for_each_message() -> None:
    async with serving() as relay, client(relay) as raw:
        await raw.declare("q")
        await raw.confirm()
        await raw.raw(b"".join(publication("q", b"%d" % n) for n in range(10)))
        confirmed = 0
        while confirmed < 10:
            ack = await raw.expect(Basic.Ack)
            confirmed = ack.delivery_tag if ack.multiple else confirmed + 1
        # A returned message comes before its confirm.
        await raw.publish("nowhere", b"back", mandatory=True)
        got = await raw.next()
        assert isinstance(got.method, Basic.Return)
        assert (got.method.reply_code, got.method.reply_text) == (312, "NO_ROUTE")
        assert got.body == b"back"
        assert (await raw.expect(Basic.Ack)).delivery_tag == 11


async def test_a_full_queue_that_refuses_nacks() -> None:
    async with serving() as relay, client(relay) as raw:
        arguments = {"x-max-length": 1, "x-overflow": "reject-publish"}
        await raw.declare("q", arguments=arguments)
        await raw.confirm()
        for _ in range(3):
            await raw.publish("q", b"x")
        answers = [(await raw.next()).method for _ in range(2)]
        assert isinstance(answers[0], Basic.Ack)
        nack = answers[1]
        assert isinstance(nack, Basic.Nack)
        assert (nack.delivery_tag, nack.multiple) in ((2, False), (3, True))


async def test_prefetch_for_consumers_and_for_the_channel() -> None:
    async with serving() as relay, client(relay) as raw:
        for queue in ("a", "b"):
            await raw.declare(queue)
            for n in range(5):
                await raw.publish(queue, b"%d" % n)
        await raw.send(1, Basic.Qos(prefetch_count=2))
        await raw.expect(Basic.QosOk)
        await raw.consume("a", tag="a")
        first = await raw.deliveries(2)
        assert await raw.silent()
        assert [each.body for each in first] == [b"0", b"1"]
        await raw.send(1, Basic.Ack(2, True))
        await raw.deliveries(2)
        # Now for all of the channel: there is no room for the others.
        await raw.send(1, Basic.Qos(prefetch_count=3, global_=True))
        await raw.expect(Basic.QosOk)
        await raw.consume("b", tag="b")
        await raw.deliveries(1)
        assert await raw.silent()
        await raw.send(1, Basic.Nack(3, False, True))
        (again,) = await raw.deliveries(1)
        assert again.body in (b"2", b"1")
        await raw.send(1, Basic.Cancel("b"), Basic.Cancel("unknown"))
        assert (await raw.expect(Basic.CancelOk)).consumer_tag == "b"
        assert (await raw.expect(Basic.CancelOk)).consumer_tag == "unknown"
        await raw.send(1, Basic.Recover(True))
        assert isinstance((await raw.next()).method, Basic.Deliver | Basic.RecoverOk)


async def test_consumers_of_one_queue() -> None:
    async with serving() as relay, client(relay) as raw, client(relay) as other:
        await raw.declare("q")
        tag = await raw.consume("q")
        assert tag.startswith("amq.ctag-")
        await other.send(1, Basic.Consume(queue="q", exclusive=True))
        assert "queue 'q' in vhost '/' in exclusive use" in await other.closed(403, 1)
        await other.open(1)
        await other.consume("q", tag="t")
        await other.send(1, Basic.Consume(queue="q", consumer_tag="t"))
        assert "attempt to reuse consumer tag 't'" in await other.closed(530)
        # The deleted queue ends them.
        await raw.send(1, Queue.Delete(queue="q"))
        assert (await raw.expect(Basic.Cancel)).consumer_tag == tag
        assert (await raw.expect(Queue.DeleteOk)).message_count == 0


async def test_what_was_not_sent_cannot_be_acknowledged() -> None:
    async with serving() as relay, dialled(relay, SO_RCVBUF=4096) as raw:
        await raw.connect()
        await raw.declare("q")
        await raw.consume("q", tag="t")
        async with client(relay) as publisher:
            for _ in range(40):
                await publisher.publish("q", bytes(100_000))
            await publisher.sync()
        consumer = consuming(relay)
        channel = consumer.channels[1]
        await until(lambda: consumer.outlet.blocked)
        last = channel.deliveries.last_tag
        assert last < 40  # no more than is under way is handed to the outlet
        await raw.send(1, Basic.Ack(last, True))
        await until(lambda: 1 not in consumer.channels)
        relay.audit()


async def test_a_consumer_without_acknowledgements_does_not_fill_the_relay() -> None:
    async with serving() as relay, dialled(relay, SO_RCVBUF=4096) as raw:
        await raw.connect()
        await raw.declare("q")
        await raw.consume("q", tag="t", no_ack=True)
        async with client(relay) as publisher:
            for n in range(60):
                await publisher.publish("q", b"%03d" % n + bytes(100_000))
            await publisher.sync()
            outlet = consuming(relay).outlet
            assert sum(len(chunk) for loan in outlet.loans() for chunk in loan.item) < 1_000_000
            relay.audit()
            got = await raw.deliveries(60)
            assert [each.body[:3] for each in got] == [b"%03d" % n for n in range(60)]
            relay.audit()


async def test_get_and_purge_and_counts() -> None:
    async with serving() as relay, client(relay) as raw:
        await raw.declare("q")
        for n in range(4):
            await raw.publish("q", b"%d" % n)
        got = await raw.get("q", no_ack=False)
        assert got is not None
        assert isinstance(got.method, Basic.GetOk)
        assert (got.body, got.method.message_count) == (b"0", 3)
        await raw.send(1, Queue.Declare(queue="q", passive=True))
        declared = await raw.expect(Queue.DeclareOk)
        assert (declared.message_count, declared.consumer_count) == (3, 0)
        await raw.send(1, Queue.Purge(queue="q"))
        assert (await raw.expect(Queue.PurgeOk)).message_count == 3
        assert await raw.get("q") is None
        await raw.send(1, Basic.Ack(0, True))
        await raw.sync()
        relay.audit()


async def test_the_last_declared_queue_needs_no_name() -> None:
    async with serving() as relay, client(relay) as raw:
        queue = await raw.declare()
        assert queue.startswith("amq.gen-")
        await raw.send(1, Queue.Bind(queue="", exchange="amq.direct", routing_key=""))
        await raw.expect(Queue.BindOk)
        await raw.publish(queue, b"x", "amq.direct")
        got = await raw.get("")
        assert got is not None
        assert got.body == b"x"


async def test_bodies_of_every_size_come_in_frames_that_the_client_takes() -> None:
    async with serving() as relay, client(relay, frame_max=4096) as raw:
        await raw.declare("q")
        await raw.consume("q", tag="t")
        for size in (0, 1, 4087, 4088, 4089, 20_000, 1_000_000):
            payload = bytes(range(256)) * (size // 256 + 1)
            await raw.publish("q", payload[:size], message_id="m")
            (got,) = await raw.deliveries(1)
            assert got.body == payload[:size]
            assert got.properties is not None
            assert got.properties.message_id == "m"
        await raw.send(1, Basic.Ack(0, True))
        await raw.sync()
        relay.audit()


async def test_exclusive_queues_go_with_their_connection() -> None:
    async with serving() as relay, client(relay) as raw:
        await raw.declare("mine", exclusive=True)
        async with client(relay) as other:
            await other.send(1, Queue.Declare(queue="mine", passive=True))
            assert "locked queue 'mine'" in await other.closed(405, 1)
        await raw.send(0, Connection.Close(200, "bye", 0, 0))
        await raw.expect(Connection.CloseOk)
        await raw.gone()
        await until(lambda: not side(relay).hosts["/"].queues)


async def test_nothing_is_answered_that_need_not_be() -> None:
    async with serving() as relay, client(relay) as raw:
        await raw.send(
            1,
            Queue.Declare(queue="q", nowait=True),
            Exchange.Declare(exchange="e", exchange_type="fanout", nowait=True),
            Queue.Bind(queue="q", exchange="e", nowait=True),
            Confirm.Select(nowait=True),
            Basic.Consume(queue="q", consumer_tag="t", no_ack=True, nowait=True),
        )
        await raw.publish("", b"x", "e")
        got = [await raw.next(), await raw.next()]
        assert {type(each.method) for each in got} == {Basic.Deliver, Basic.Ack}
        await raw.send(1, Basic.Cancel("t", nowait=True), Queue.Delete(queue="q", nowait=True))
        await raw.sync()


async def test_a_channel_that_is_closed_gives_back_what_it_has() -> None:
    async with serving() as relay, client(relay) as raw:
        await raw.open(2)
        await raw.declare("q")
        await raw.publish("q", b"x")
        await raw.consume("q", tag="t")
        await raw.deliveries(1)
        await raw.send(1, Channel.Close(200, "", 0, 0))
        await raw.expect(Channel.CloseOk)
        got = await raw.get("q", channel=2)
        assert got is not None
        assert got.body == b"x"
        await raw.open(1)


async def test_the_relay_stops() -> None:
    async with serving() as relay, client(relay) as raw:
        await raw.declare("q")
        await raw.publish("q", b"x")
        await raw.consume("q", tag="t")
        await raw.deliveries(1)
        relay.stop.set()
        assert "CONNECTION_FORCED" in await raw.closed(320)


async def test_counts_on_the_pages() -> None:
    async with serving(http="127.0.0.1:0") as relay, client(relay) as raw:
        await raw.declare("q")
        await raw.publish("q", b"x")
        await raw.sync()
        counts = relay.relay.counts()["amqp"]
        assert counts.messages_received_total == 1
        assert counts.messages_delivered_total == 1
        assert counts.connections == 1
        assert "amqp" in relay.relay.socks()


async def test_a_unix_socket(tmp_path: Path) -> None:
    path = tmp_path / "s"
    async with serving(listen=(AMQP, f"amqp+unix://{path}")):
        sock = trio.socket.socket(trio.socket.AF_UNIX)
        with sock:
            await sock.connect(str(path))
            await sock.send(PROTOCOL_HEADER)
            answer = await sock.recv(1000)
            assert isinstance(frame.unmarshal(answer)[2], Connection.Start)
