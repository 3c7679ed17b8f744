"""JetStream with a real server: streams, publications, consumers, keys with values."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from clearfunds.transports import LocalProtocolError, RemoteProtocolError, TransportError
from clearfunds.transports.nats import (
    ConsumerConfig,
    Delivered,
    Entry,
    JetStream,
    JetStreamError,
    KeyValue,
    Message,
    Messages,
    NoRespondersError,
    NotFoundError,
    OrderedMessages,
    PubAck,
    StreamConfig,
    StreamFullError,
    WrongSequenceError,
    fetch,
    open_bucket,
    open_nats,
)
from clearfunds.transports.nats.jetstream._jetstream import pub_ack
from clearfunds.transports.nats.jetstream._message import delivered
from tests.nats_servers import NatsServer, nats_server, needs_nats
from tests.transports.peers import until

pytestmark = needs_nats


@pytest.fixture
async def js(shared: NatsServer) -> AsyncIterator[JetStream]:
    """JetStream of the shared server, without streams."""
    async with open_nats(shared.url) as nats:
        found = JetStream(nats)
        for name in await found.stream_names():
            await found.delete_stream(name)
        await until(lambda: not shared.has_files_of_streams())
        yield found


async def stream(js: JetStream, name: str = "S", **more: Any) -> None:
    await js.create_stream(StreamConfig(name=name, subjects=(f"{name}.>",), **more))


async def filled(js: JetStream, count: int, name: str = "S") -> None:
    for number in range(count):
        await js.publish(f"{name}.{number % 3}", b"%d" % number)


# -- streams ---------------------------------------------------------------------------------------


async def test_streams_are_created_changed_listed_and_deleted(
    js: JetStream, shared: NatsServer
) -> None:
    config = StreamConfig(
        name="S",
        subjects=("S.a", "S.b.>"),
        max_messages=100,
        max_age=60.5,
        discard="new",
        metadata={"of": "tests"},
        more={"sealed": False},
    )
    info = await js.create_stream(config)
    assert (info.config.subjects, info.config.max_messages) == (("S.a", "S.b.>"), 100)
    assert (info.config.max_age, info.config.duplicate_window) == (60.5, 60.5)
    assert info.messages == info.bytes == info.last_sequence == 0
    assert shared.has_files_of_streams()
    assert (await js.create_stream(config)).config.name == "S"
    with pytest.raises(JetStreamError, match="stream name already in use"):
        await js.create_stream(StreamConfig(name="S", subjects=("other",)))
    with pytest.raises(JetStreamError, match="overlap"):
        await js.create_stream(StreamConfig(name="T", subjects=("S.>",)))
    changed = await js.update_stream(StreamConfig(name="S", subjects=("S.>",), discard="new"))
    assert changed.config.subjects == ("S.>",)
    await filled(js, 10)
    found = await js.stream_info("S")
    assert (found.messages, found.first_sequence, found.last_sequence) == (10, 1, 10)
    assert found.bytes > 0
    assert await js.purge_stream("S", subject="S.0") == 4
    assert await js.purge_stream("S", before=5) == 2
    for number in range(300):
        await js.create_stream(StreamConfig(name=f"N{number}", storage="memory"))
    assert len(await js.stream_names()) == 301
    assert await js.stream_names("S.a") == ["S"]
    await js.delete_stream("S")
    for missing in (js.stream_info, js.delete_stream, js.purge_stream):
        with pytest.raises(NotFoundError, match="stream not found"):
            await missing("S")
    with pytest.raises(LocalProtocolError, match="is no name of a stream"):
        await js.stream_info("a.b")


async def test_without_jetstream_nobody_answers(tmp_path: Path, js: JetStream) -> None:
    absent = JetStream(js.nats, prefix="$JS.elsewhere.API")
    with pytest.raises(NoRespondersError):
        await absent.stream_info("S")


# -- publishing -----------------------------------------------------------------------------------


async def test_the_stream_says_that_it_has_a_message_and_only_once(js: JetStream) -> None:
    await stream(js)
    assert await js.publish("S.a", b"1", message_id="m") == PubAck("S", 1)
    assert await js.publish("S.a", b"2", message_id="m") == PubAck("S", 1, duplicate=True)
    assert await js.publish("S.b", expect_last=1) == PubAck("S", 2)
    assert await js.publish("S.a", expect_last_for_subject=1) == PubAck("S", 3)
    with pytest.raises(WrongSequenceError):
        await js.publish("S.a", expect_last=1)
    with pytest.raises(WrongSequenceError):
        await js.publish("S.a", expect_last_for_subject=0)
    with pytest.raises(NoRespondersError, match=r"nobody subscribes to T\.a"):
        await js.publish("T.a")


async def test_a_full_stream_refuses(js: JetStream) -> None:
    await stream(js, max_messages=2, discard="new")
    await filled(js, 2)
    with pytest.raises(StreamFullError, match="maximum messages exceeded"):
        await js.publish("S.a")
    await js.purge_stream("S", before=2)
    await js.publish("S.a")
    await stream(js, "B", max_bytes=1000, discard="new")
    with pytest.raises(StreamFullError, match="maximum bytes exceeded"):
        await js.publish("B.a", bytes(2000))


async def test_many_publications_at_once(js: JetStream) -> None:
    await stream(js)
    found: list[PubAck | TransportError] = []
    over = trio.Event()

    def done(outcome: PubAck | TransportError) -> None:
        found.append(outcome)
        if len(found) == 1002:
            over.set()

    for number in range(1000):
        await js.nats.wait_for_room()
        js.publish_nowait("S.a", b"%d" % number, done, message_id=f"m{number}")
    await js.nats.wait_for_room()
    js.publish_nowait("S.a", b"again", done, message_id="m7")
    js.publish_nowait("T.a", b"nowhere", done)
    with trio.fail_after(30):
        await over.wait()
    acks = [each for each in found if isinstance(each, PubAck)]
    assert sorted(each.sequence for each in acks) == sorted([*range(1, 1001), 8])
    (refused,) = [each for each in found if not isinstance(each, PubAck)]
    assert isinstance(refused, NoRespondersError)


async def test_a_message_with_an_identifier_is_published_once_over_a_lost_connection(
    tmp_path: Path,
) -> None:
    with nats_server(tmp_path) as server:
        async with open_nats(server.url) as nats:
            js = JetStream(nats)
            await stream(js)
            published, restarted = 0, False

            async def publish() -> None:
                nonlocal published
                while published < 200 or not restarted:
                    await js.publish("S.a", b"%d" % published, message_id=f"m{published}")
                    published += 1

            async with trio.open_nursery() as nursery:
                nursery.start_soon(publish)
                for _ in range(3):
                    await trio.sleep(0.05)
                    server.kill()
                    server.start()
                restarted = True
            assert nats.statistics().connections >= 2
        # This client may not have noticed the last loss.
        async with open_nats(server.url) as nats:
            assert (await JetStream(nats).stream_info("S")).messages == published


@pytest.mark.parametrize("payload", [b"{", b"[]", b"{}", b'{"stream": 1, "seq": 1}'])
def test_an_answer_that_is_none_is_refused(payload: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        pub_ack(Message("a", payload))


# -- messages of a stream -------------------------------------------------------------------------


@pytest.mark.parametrize("direct", [False, True])
async def test_messages_are_got_by_sequence_and_subject(js: JetStream, direct: bool) -> None:
    await stream(js, allow_direct=True)
    await js.publish("S.a", b"1", headers={"K": "v"})
    await js.publish("S.b", b"2")
    await js.publish("S.a", b"3")
    first = await js.get_message("S", sequence=1, direct=direct)
    assert first is not None
    assert (first.stream, first.sequence, first.subject) == ("S", 1, "S.a")
    assert (first.payload, first.headers.get("K")) == (b"1", "v")
    assert abs(first.time - 1.7e9) < 1e9
    last = await js.get_message("S", last_for="S.a", direct=direct)
    assert last is not None
    assert last.payload == b"3"
    assert await js.get_message("S", sequence=9, direct=direct) is None
    assert await js.get_message("S", last_for="S.none", direct=direct) is None
    await js.delete_message("S", 3)
    last = await js.get_message("S", last_for="S.a", direct=direct)
    assert last is not None
    assert last.payload == b"1"
    with pytest.raises(NoRespondersError if direct else NotFoundError):
        await js.get_message("T", sequence=1, direct=direct)
    with pytest.raises(LocalProtocolError, match="give a message's sequence"):
        await js.get_message("S", direct=direct)


# -- consumers ------------------------------------------------------------------------------------


async def test_consumers_are_created_listed_and_deleted(js: JetStream) -> None:
    await stream(js)
    await filled(js, 9)
    config = ConsumerConfig(
        durable="c", filters=("S.0", "S.1"), ack_wait=1.5, backoff=(1.5, 2.0), max_deliver=5
    )
    info = await js.create_consumer("S", config, action="create")
    assert (info.stream, info.name, info.pending) == ("S", "c", 6)
    assert (info.config.ack_wait, info.config.backoff) == (1.5, (1.5, 2.0))
    assert info.config.filters == ("S.0", "S.1")
    with pytest.raises(JetStreamError, match="already exists"):
        await js.create_consumer("S", ConsumerConfig(durable="c"), action="create")
    unnamed = await js.create_consumer("S", ConsumerConfig(inactive_threshold=5.0))
    assert set(await js.consumer_names("S")) == {"c", unnamed.name}
    assert (await js.consumer_info("S", "c")).waiting == 0
    await js.delete_consumer("S", "c")
    with pytest.raises(NotFoundError, match="consumer not found"):
        await js.consumer_info("S", "c")
    with pytest.raises(NotFoundError):
        await fetch(js, "S", "c", 1)


async def test_messages_are_fetched_and_acknowledged(js: JetStream) -> None:
    await stream(js)
    await filled(js, 5)
    await js.create_consumer("S", ConsumerConfig(durable="c", ack_wait=0.3))
    assert len(await fetch(js, "S", "c", 3)) == 3
    await trio.sleep(0.4)
    first, second, third, fourth = await fetch(js, "S", "c", 4)
    assert [each.sequence for each in (first, second, third, fourth)] == [1, 2, 3, 4]
    assert [each.deliveries for each in (first, fourth)] == [2, 1]
    assert (first.stream, first.consumer, first.payload) == ("S", "c", b"0")
    assert fourth.pending == 1
    first.ack_nowait()
    second.nak_nowait()
    third.term_nowait("not wanted")
    fourth.nak_nowait(60.0)
    with pytest.raises(LocalProtocolError, match="has been answered"):
        first.nak_nowait()
    again = sorted(await fetch(js, "S", "c", 9, wait=0.1), key=lambda each: each.sequence)
    assert [each.sequence for each in again] == [2, 5]
    for _ in range(5):
        again[0].in_progress_nowait()
        await trio.sleep(0.1)
    assert [each.sequence for each in await fetch(js, "S", "c", 9)] == [5]
    reply = again[0].reply()
    assert (await js.nats.request(reply, b"+ACK")).payload == b""
    await js.nats.flush()
    info = await js.consumer_info("S", "c")
    assert (info.ack_pending, info.acknowledged) == (2, 3)
    assert await fetch(js, "S", "c", 1) == []


async def test_a_consumer_sends_no_more_than_there_is_room_for(js: JetStream) -> None:
    await stream(js)
    for number in range(1000):
        await js.nats.wait_for_room()
        js.publish_nowait("S.a", b"%d" % number, lambda _: None)
    with trio.fail_after(20):
        while (await js.stream_info("S")).messages < 1000:  # noqa: ASYNC110 (it is stored later)
            await trio.sleep(0.01)
    info = await js.create_consumer("S", ConsumerConfig(durable="c", max_ack_pending=2000))
    assert info.pending == 1000
    with Messages(js, "S", "c", most=40) as messages:
        first = await messages.receive()
        await trio.sleep(0.2)
        assert (await js.consumer_info("S", "c")).pending == 1000 - 40
        found = [first]
        while len(found) < 1000:
            found.append(await messages.receive())
            found[-1].ack_nowait()
            held = 1000 - (await js.consumer_info("S", "c")).pending - len(found)
            assert held <= 40 or len(found) % 50
        first.ack_nowait()
    assert [each.sequence for each in found] == list(range(1, 1001))
    await js.nats.flush()
    assert (await js.consumer_info("S", "c")).acknowledged == 1000
    with pytest.raises(trio.EndOfChannel):
        await messages.receive()


async def test_the_window_of_a_consumer_holds(js: JetStream) -> None:
    await stream(js)
    await filled(js, 10)
    await js.create_consumer("S", ConsumerConfig(durable="c", max_ack_pending=3))
    with Messages(js, "S", "c", most=10) as messages:
        found = [await messages.receive() for _ in range(3)]
        with trio.move_on_after(0.1) as scope:
            await messages.receive()
        assert scope.cancelled_caught
        found[0].ack_nowait()
        assert (await messages.receive()).sequence == 4


async def test_requests_for_messages_are_made_again(js: JetStream) -> None:
    await stream(js)
    await js.create_consumer("S", ConsumerConfig(durable="c"))
    with Messages(js, "S", "c", expires=1.0, heartbeat=0.3) as messages:

        async def later() -> None:
            await trio.sleep(2.5)
            await js.publish("S.a", b"late")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(later)
            with trio.fail_after(5):
                assert (await messages.receive()).payload == b"late"
        assert (await js.consumer_info("S", "c")).waiting <= 1


async def test_a_consumer_that_is_deleted_ends_its_messages(js: JetStream) -> None:
    await stream(js)
    await js.create_consumer("S", ConsumerConfig(durable="c"))
    with Messages(js, "S", "c") as messages:
        async with trio.open_nursery() as nursery:

            async def wait() -> None:
                with pytest.raises(NotFoundError, match=r"[Cc]onsumer [Dd]eleted"):
                    await messages.receive()

            nursery.start_soon(wait)
            await trio.testing.wait_all_tasks_blocked(0.05)
            await js.delete_consumer("S", "c")
    with Messages(js, "S", "c") as gone, pytest.raises(NotFoundError):
        await gone.receive()
    with pytest.raises(ValueError, match="ask for at least one"):
        Messages(js, "S", "c", most=0)
    with pytest.raises(ValueError, match="ask for at least one"):
        Messages(js, "S", "c", expires=1, heartbeat=1)


async def test_messages_go_on_after_the_server_was_away(tmp_path: Path) -> None:
    with nats_server(tmp_path) as server:
        async with open_nats(server.url) as nats:
            js = JetStream(nats)
            await stream(js)
            await js.create_consumer("S", ConsumerConfig(durable="c", ack_wait=1.0))
            found: list[int] = []

            async def read() -> None:
                with Messages(js, "S", "c", most=20) as messages:
                    async for message in messages:
                        await trio.sleep(0.002)
                        found.append(message.sequence)
                        await nats.publish(message.reply(), b"+ACK")
                        if len(set(found)) == 300:
                            break

            async with trio.open_nursery() as nursery:
                nursery.start_soon(read)
                for number in range(300):
                    await js.publish("S.a", message_id=f"m{number}")
                    if number in (100, 200):
                        server.kill()
                        server.start()
            assert set(found) == set(range(1, 301))


def nothing(reply: str, answer: bytes) -> None:
    """Answer nothing."""


@pytest.mark.parametrize(
    "reply", ["", "a.b", "$JS.ACK.S.c.1", "$JS.ACK.S.c.1.x.1.1.1", "$JS.ACK.d.a.S.c.1.2.3.x.5.r"]
)
def test_what_is_no_message_of_a_consumer_is_refused(reply: str) -> None:
    with pytest.raises(RemoteProtocolError, match=r"is not how a message|is no number"):
        delivered(Message("a", b"", reply), nothing)


def test_a_message_with_a_domain() -> None:
    reply = "$JS.ACK.domain.account.S.c.2.30.4.5000000000.6.random"
    found = delivered(Message("a", b"x", reply), nothing)
    assert (found.stream, found.consumer, found.deliveries) == ("S", "c", 2)
    assert (found.sequence, found.consumer_sequence, found.time, found.pending) == (30, 4, 5.0, 6)


# -- in order, over the loss of servers -----------------------------------------------------------


async def test_messages_in_order_begin_anew_when_their_consumer_is_gone(js: JetStream) -> None:
    await stream(js)
    await filled(js, 20)
    config = ConsumerConfig(filters=("S.0", "S.1"))
    async with OrderedMessages(js, "S", config, heartbeat=0.2) as messages:
        assert messages.pending == 14
        found = [await messages.receive() for _ in range(5)]
        (name,) = await js.consumer_names("S")
        await js.delete_consumer("S", name)
        await filled(js, 20)
        with trio.fail_after(5):
            found += [await messages.receive() for _ in range(23)]
        with trio.move_on_after(0.7) as scope:
            await messages.receive()
        assert scope.cancelled_caught
        await js.delete_stream("S")
        with trio.fail_after(5), pytest.raises(NotFoundError):
            await messages.receive()
    sequences = [each.sequence for each in found]
    assert sequences == [n for n in range(1, 41) if (n - 1) % 20 % 3 != 2]


async def test_messages_in_order_that_are_deleted_before_they_are_sent_are_not_pending(
    js: JetStream,
) -> None:
    await stream(js)
    await filled(js, 3)
    async with OrderedMessages(js, "S", ConsumerConfig(), heartbeat=0.2) as messages:
        assert messages.pending == 3
        await js.purge_stream("S")
        with trio.fail_after(5):
            assert await messages.next() is None
        assert messages.pending == 0
        await filled(js, 1)
        assert (await messages.receive()).sequence == 4


async def test_messages_in_order_that_were_lost_with_a_connection_come_again(
    tmp_path: Path,
) -> None:
    """Nothing is published afterwards, so only the lost connection tells that some are missing."""
    with nats_server(tmp_path) as server:
        async with open_nats(server.url) as writer, trio.open_nursery() as nursery:
            gate = Gate(server.port)
            port = await nursery.start(gate.serve)
            async with open_nats(f"127.0.0.1:{port}") as nats:
                js, writing = JetStream(nats), JetStream(writer)
                await stream(js)
                async with OrderedMessages(js, "S", ConsumerConfig(), heartbeat=0.5) as messages:
                    await writing.publish("S.a", b"0")
                    assert (await messages.receive()).payload == b"0"
                    gate.is_shut = True
                    await writing.publish("S.a", b"1")
                    await writing.publish("S.a", b"2")
                    await trio.sleep(0.2)
                    gate.cut()
                    with trio.fail_after(10):
                        assert (await messages.receive()).payload == b"1"
                        assert (await messages.receive()).payload == b"2"
            nursery.cancel_scope.cancel()


class Gate:
    """A relay of bytes to a port, which can be shut: then the server's bytes go nowhere."""

    def __init__(self, port: int) -> None:
        self.is_shut = False
        self._port = port
        self._scopes: list[trio.CancelScope] = []

    async def serve(self, task_status: trio.TaskStatus[int]) -> None:
        async with trio.open_nursery() as nursery:
            (listener,) = await nursery.start(
                partial(trio.serve_tcp, self._connect, 0, host="127.0.0.1")
            )
            task_status.started(listener.socket.getsockname()[1])

    def cut(self) -> None:
        """Cut all connections, and let the next ones through."""
        self.is_shut = False
        for scope in self._scopes:
            scope.cancel()

    async def _connect(self, client: trio.SocketStream) -> None:
        server = await trio.open_tcp_stream("127.0.0.1", self._port)
        async with server, trio.open_nursery() as nursery:
            self._scopes.append(nursery.cancel_scope)
            nursery.start_soon(self._pass_on, server, client, nursery)
            async for data in client:
                await server.send_all(data)
            nursery.cancel_scope.cancel()

    async def _pass_on(
        self, server: trio.SocketStream, client: trio.SocketStream, nursery: trio.Nursery
    ) -> None:
        async for data in server:
            if not self.is_shut:
                await client.send_all(data)
        nursery.cancel_scope.cancel()


async def test_fetching_without_a_connection_waits_for_one(tmp_path: Path) -> None:
    with nats_server(tmp_path) as server:
        found: list[Delivered] = []
        async with open_nats(server.url) as nats, trio.open_nursery() as nursery:
            js = JetStream(nats)
            await stream(js)
            await filled(js, 3)
            await js.create_consumer("S", ConsumerConfig(durable="c"))
            connection = await nats.wait_connected()
            server.kill()
            await nats.wait_lost(connection)

            async def fetch_some() -> None:
                found.extend(await fetch(js, "S", "c", 3, wait=2.0))

            nursery.start_soon(fetch_some)
            await trio.sleep(0.1)
            server.start()
        assert [each.sequence for each in found] == [1, 2, 3]


async def test_only_as_many_requests_wait_as_a_consumer_takes(js: JetStream) -> None:
    await stream(js)
    await js.create_consumer("S", ConsumerConfig(durable="c", max_waiting=1))
    got: list[int] = []

    async def read() -> None:
        with Messages(js, "S", "c", most=4) as messages:
            async for message in messages:
                message.ack_nowait()
                got.append(message.sequence)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        nursery.start_soon(read)
        await trio.sleep(1.0)
        await filled(js, 60)
        await until(lambda: len(got) == 60, 20)
        nursery.cancel_scope.cancel()
    assert sorted(got) == list(range(1, 61))


async def test_times_to_live_may_be_long(js: JetStream) -> None:
    bucket = await open_bucket(js, "B", marker_ttl=1.0)
    await bucket.put("a", b"1", ttl=30 * 24 * 3600.0)
    assert await bucket.keys() == ["a"]
    with pytest.raises(LocalProtocolError, match="1 to 64 values"):
        await open_bucket(js, "C", history=65)


async def test_a_cluster_goes_on_while_one_server_is_lost(cluster: list[NatsServer]) -> None:
    urls = [server.url for server in cluster]
    async with open_nats(urls, ping_interval=0.5) as nats:
        js = JetStream(nats, timeout=2.0)
        with trio.fail_after(20):
            while True:
                try:
                    await stream(js, replicas=3)
                    break
                except TransportError:
                    await trio.sleep(0.2)
        found: list[int] = []

        async def publish() -> None:
            for number in range(150):
                while True:
                    try:
                        await js.publish("S.a", b"%d" % number, message_id=f"m{number}")
                        break
                    except TransportError:
                        await trio.sleep(0.1)

        async def read() -> None:
            async with OrderedMessages(js, "S", ConsumerConfig(), heartbeat=0.3) as messages:
                async for message in messages:
                    found.append(int(message.payload))
                    if len(found) == 150:
                        return

        async with trio.open_nursery() as nursery:
            nursery.start_soon(publish)
            nursery.start_soon(read)
            await trio.sleep(0.3)
            leader = (await js.stream_info("S")).leader
            (lost,) = [each for each in cluster if leader == f"n{cluster.index(each)}"]
            lost.kill()
            await trio.sleep(3)
            lost.start()
        assert found == list(range(150))


# -- keys with values -----------------------------------------------------------------------------


async def test_keys_with_values(js: JetStream) -> None:
    bucket = await open_bucket(js, "B", history=3)
    assert await bucket.get("a.b") is None
    first = await bucket.put("a.b", b"1")
    second = await bucket.put("a.b", b"2")
    assert second > first
    entry = await bucket.get("a.b")
    assert entry is not None
    assert (entry.key, entry.value, entry.revision) == ("a.b", b"2", second)
    assert entry.is_there
    third = await bucket.update("a.b", b"3", second)
    with pytest.raises(WrongSequenceError):
        await bucket.update("a.b", b"4", second)
    with pytest.raises(WrongSequenceError):
        await bucket.create("a.b", b"4")
    with pytest.raises(WrongSequenceError):
        await bucket.delete("a.b", revision=second)
    await bucket.delete("a.b", revision=third)
    assert await bucket.get("a.b", direct=False) is None
    assert await bucket.create("a.b", b"5") > third
    await bucket.create("c", b"6")
    assert await bucket.keys() == ["a.b", "c"]
    assert [each.value for each in await bucket.entries("a.*")] == [b"5"]
    await bucket.delete("a.b", purge=True)
    assert await bucket.keys() == ["c"]
    await bucket.create("a.b", b"7")
    same = await open_bucket(js, "B", history=3)
    assert (await same.keys("a.>")) == ["a.b"]
    for wrong in ("", "a b", "a.", ".a", "a*", "ä"):
        with pytest.raises(LocalProtocolError, match="is no key"):
            await bucket.put(wrong, b"")
    with pytest.raises(LocalProtocolError, match="is no pattern"):
        await bucket.keys("a.>.b")
    with pytest.raises(LocalProtocolError, match="is no name of a bucket"):
        KeyValue(js, "a.b")


async def test_changes_of_keys_are_watched(js: JetStream) -> None:
    bucket = await open_bucket(js, "B")
    await bucket.put("a", b"1")
    await bucket.put("b", b"2")
    await bucket.put("a", b"3")
    async with bucket.watch() as changes:
        seen = [await anext(changes) for _ in range(3)]
        assert seen[2] is None
        assert [(each.key, each.value) for each in seen if each] == [("b", b"2"), ("a", b"3")]
        await bucket.delete("b")
        await bucket.put("c", b"4")
        assert told(await anext(changes)) == ("b", "delete", b"")
        assert told(await anext(changes)) == ("c", "put", b"4")
    async with bucket.watch("c") as changes, bucket.watch(only_new=True) as new:
        assert told(await anext(changes)) == ("c", "put", b"4")
        assert await anext(changes) is None
        assert await anext(new) is None
        await bucket.put("c", b"5")
        assert told(await anext(new)) == ("c", "put", b"5")
    async with bucket.watch("none") as changes:
        assert await anext(changes) is None
    with pytest.raises(NotFoundError):
        async with KeyValue(js, "missing").watch():
            pass


async def test_values_that_are_purged_before_they_are_sent_are_not_waited_for(
    js: JetStream,
) -> None:
    bucket = await open_bucket(js, "B")
    await bucket.put("a", b"1")
    await bucket.put("b", b"2")
    async with bucket.watch(heartbeat=0.2) as changes:
        await js.purge_stream("KV_B")
        with trio.fail_after(5):
            assert await anext(changes) is None
        await bucket.put("c", b"3")
        assert told(await anext(changes)) == ("c", "put", b"3")


def told(entry: Entry | None) -> tuple[str, str, bytes]:
    assert entry is not None
    return entry.key, entry.operation, entry.value


async def test_a_value_that_is_not_renewed_expires_and_watchers_hear_of_it(js: JetStream) -> None:
    bucket = await open_bucket(js, "leases", marker_ttl=5.0)
    async with bucket.watch() as changes:
        assert await anext(changes) is None
        await bucket.put("relay-1", b"here", ttl=1.0)
        assert told(await anext(changes)) == ("relay-1", "put", b"here")
        began = trio.current_time()
        with trio.fail_after(10):
            assert told(await anext(changes)) == ("relay-1", "purge", b"")
        assert 0.8 <= trio.current_time() - began <= 4
    assert await bucket.get("relay-1") is None
    await bucket.create("relay-1", b"again", ttl=60)


async def test_what_a_consumer_took_and_did_not_answer_is_no_ones_loss(js: JetStream) -> None:
    """Cancelled while it waits, a reader has lost nothing."""
    await stream(js)
    await js.create_consumer("S", ConsumerConfig(durable="c"))
    with Messages(js, "S", "c") as messages:
        for number in range(20):
            with trio.move_on_after(0.001):
                await messages.receive()
                raise AssertionError
            await js.publish("S.a", b"%d" % number)
            taken: Delivered = await messages.receive()
            assert taken.payload == b"%d" % number
            taken.ack_nowait()
