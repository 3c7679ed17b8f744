"""The client, against a server made of the core, over a stream in memory."""

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import MemoryReceiveStream, MemorySendStream, memory_stream_pair

from clearfunds.transports import (
    LocalProtocolError,
    RemoteProtocolError,
    TransportError,
)
from clearfunds.transports.mqtt import (
    NEED_DATA,
    SUBSCRIPTION_FAILED,
    ConnAck,
    Connect,
    Connection,
    ConnectionLostError,
    ConnectRefusedError,
    Disconnect,
    MqttClient,
    Packet,
    PingReq,
    PingResp,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    Role,
    SubAck,
    Subscribe,
    SubscriptionRefusedError,
    UnsubAck,
    Unsubscribe,
    Will,
    encode,
    open_mqtt,
)

MemoryStream = trio.StapledStream[MemorySendStream, MemoryReceiveStream]


class Peer:
    """A server without a mind of its own: a test tells it what to say."""

    def __init__(self, stream: MemoryStream) -> None:
        self.stream = stream
        self.connection = Connection(Role.SERVER)
        self.rest: list[Packet] = []
        self.closed = False

    async def packet(self) -> Packet | None:
        """Return the next packet from the client, None when the client has closed."""
        while (packet := self.connection.next_packet()) is NEED_DATA:
            data = await self.stream.receive_some()
            if not data:
                assert self.connection.unparsed_bytes == 0
                return None
            self.connection.receive_data(bytes(data))
        return packet

    async def packets(self, count: int) -> list[Packet | None]:
        return [await self.packet() for _ in range(count)]

    async def send(self, *packets: Packet) -> None:
        await self.stream.send_all(b"".join(self.connection.send(packet) for packet in packets))

    async def accept(self) -> Packet | None:
        connect = await self.packet()
        await self.send(ConnAck(session_present=False, return_code=0))
        return connect

    async def finish(self) -> None:
        """Collect in `rest` what the client says until it disconnects, then close."""
        if self.closed:
            return
        while (packet := await self.packet()) is not None:
            self.rest.append(packet)
            if isinstance(packet, Disconnect):
                break
        await self.close()

    async def close(self) -> None:
        self.closed = True
        await self.stream.aclose()

    async def nothing_yet(self) -> bool:
        """Whether the client has nothing more to say."""
        received: list[bytes | bytearray] = []

        async def receive() -> None:
            received.append(await self.stream.receive_some())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(receive)
            await settled()
            nursery.cancel_scope.cancel()
        self.connection.receive_data(b"".join(received))
        return self.connection.next_packet() is NEED_DATA


def quietly(options: dict[str, Any]) -> dict[str, Any]:
    return {"keep_alive": 0, **options}


@asynccontextmanager
async def connected(**options: Any) -> AsyncGenerator[tuple[MqttClient, Peer], None]:
    """Connect a client to a peer, and let the peer answer its farewell at the end."""
    ours, theirs = memory_stream_pair()
    peer = Peer(theirs)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(peer.accept)
        async with open_mqtt(ours, **quietly(options)) as client:
            yield client, peer
            nursery.start_soon(peer.finish)


@asynccontextmanager
async def losing(
    **options: Any,
) -> AsyncGenerator[tuple[MqttClient, Peer, list[ConnectionLostError]], None]:
    """Connect a client whose block must end with a lost connection; the list then holds it."""
    ours, theirs = memory_stream_pair()
    peer = Peer(theirs)
    lost: list[ConnectionLostError] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(peer.accept)
        try:
            async with open_mqtt(ours, **quietly(options)) as client:
                yield client, peer, lost
        except ConnectionLostError as exc:
            lost.append(exc)
    assert lost


class Later:
    """Runs a call of the client's in the background, to see when it returns."""

    def __init__(self, nursery: trio.Nursery, call: Callable[..., Any], *args: Any, **kw: Any):
        self.scope = trio.CancelScope()
        self.done = False
        self.result: Any = None
        self.error: BaseException | None = None
        nursery.start_soon(self._run, call, args, kw)

    async def _run(self, call: Callable[..., Any], args: Any, kw: Any) -> None:
        with self.scope:
            try:
                self.result = await call(*args, **kw)
            except (TransportError, trio.EndOfChannel) as exc:
                self.error = exc
            self.done = True


async def settled() -> None:
    await trio.testing.wait_all_tasks_blocked()


# --- opening and leaving --------------------------------------------------------------------


async def test_what_is_said_at_the_beginning_and_at_the_end() -> None:
    ours, theirs = memory_stream_pair()
    peer = Peer(theirs)
    will = Will("w", b"gone", 1, retain=True)
    seen: list[Packet | None] = []

    async def serve() -> None:
        seen.append(await peer.accept())
        await peer.finish()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve)
        async with open_mqtt(
            ours,
            client_id="me",
            clean_session=True,
            keep_alive=7,
            username="u",
            password="pé",
            will=will,
        ) as client:
            assert client.client_id == "me"
            assert not client.session_present
            assert "'me' connected" in repr(client)
    assert seen == [Connect("me", True, 7, "u", "pé".encode(), will)]
    assert peer.rest == [Disconnect()]
    with pytest.raises(trio.ClosedResourceError):
        await ours.send_all(b"x")


async def test_an_exception_comes_out_as_it_is_and_without_disconnect() -> None:
    ours, theirs = memory_stream_pair()
    peer = Peer(theirs)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(peer.accept)
        with pytest.raises(KeyError, match="mine"):
            async with open_mqtt(ours):
                raise KeyError("mine")
    assert await peer.packet() is None


async def test_groups_of_exceptions_from_inside_are_left_alone() -> None:
    ours, theirs = memory_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(Peer(theirs).accept)
        with pytest.RaisesGroup(KeyError, ValueError):
            async with open_mqtt(ours):
                raise ExceptionGroup("mine", [KeyError(), ValueError()])


async def test_a_cancellation_leaves_without_disconnect() -> None:
    ours, theirs = memory_stream_pair()
    peer = Peer(theirs)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(peer.accept)
        with trio.CancelScope() as scope:
            async with open_mqtt(ours):
                scope.cancel()
                await trio.sleep_forever()
        assert scope.cancelled_caught
    assert await peer.packet() is None


@pytest.mark.parametrize("code", [1, 2, 3, 4, 5])
async def test_a_refusal_says_why(code: int) -> None:
    ours, theirs = memory_stream_pair()
    peer = Peer(theirs)

    async def refuse() -> None:
        await peer.packet()
        await peer.send(ConnAck(session_present=False, return_code=code))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(refuse)
        with pytest.raises(ConnectRefusedError) as caught:
            async with open_mqtt(ours):
                pytest.fail("this was refused")
    assert caught.value.return_code == code
    with pytest.raises(trio.ClosedResourceError):
        await ours.send_all(b"x")


@pytest.mark.parametrize(
    ("answer", "error"),
    [(b"HTTP/1.1 400", RemoteProtocolError), (None, ConnectionLostError)],
)
async def test_what_is_no_mqtt_server(answer: bytes | None, error: type[Exception]) -> None:
    ours, theirs = memory_stream_pair()
    await (theirs.send_all(answer) if answer else theirs.aclose())
    with pytest.raises(error):
        async with open_mqtt(ours):
            pytest.fail("nobody accepted this")


async def test_a_server_that_says_nothing_is_given_up(
    autojump_clock: trio.testing.MockClock,
) -> None:
    ours, _theirs = memory_stream_pair()
    with pytest.raises(TransportError, match="no MQTT server answered on the stream within 3 s"):
        async with open_mqtt(ours, connect_timeout=3):
            pytest.fail("nobody accepted this")
    assert trio.current_time() == pytest.approx(3)


async def test_nobody_listens_there() -> None:
    with trio.socket.socket() as reserved:
        await reserved.bind(("127.0.0.1", 0))  # and does not listen
        port = reserved.getsockname()[1]
        with pytest.raises(TransportError, match=f"cannot connect to 127.0.0.1 port {port}"):
            async with open_mqtt("127.0.0.1", port):
                pytest.fail("nobody accepted this")


@pytest.mark.parametrize("limit", ["max_buffered", "max_buffered_bytes", "max_inflight"])
async def test_limits_of_nothing_are_refused(limit: str) -> None:
    ours, theirs = memory_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(Peer(theirs).accept)
        with pytest.raises(ValueError, match="0"):
            async with open_mqtt(ours, **{limit: 0}):  # type: ignore[arg-type]
                pytest.fail("this could do nothing")


async def test_arguments_that_make_no_connect() -> None:
    ours, _theirs = memory_stream_pair()
    with pytest.raises(LocalProtocolError, match=r"MQTT-3\.1\.3-7"):
        async with open_mqtt(ours, clean_session=False):
            pytest.fail("this cannot be said")


# --- publishing -----------------------------------------------------------------------------


async def test_publish_returns_when_its_quality_of_service_says_so(
    nursery: trio.Nursery,
) -> None:
    async with connected() as (client, peer):
        await client.publish("a", b"0", retain=True)
        assert await peer.packet() == Publish("a", b"0", retain=True)

        once = Later(nursery, client.publish, "a", b"1", 1)
        assert await peer.packet() == Publish("a", b"1", 1, packet_id=1)
        await settled()
        assert not once.done
        assert client.statistics().inflight == 1
        await peer.send(PubAck(1))
        await settled()
        assert once.done

        twice = Later(nursery, client.publish, "a", b"2", 2)
        assert await peer.packet() == Publish("a", b"2", 2, packet_id=2)
        await peer.send(PubRec(2))
        assert await peer.packet() == PubRel(2)
        await settled()
        assert not twice.done
        await peer.send(PubRec(2))  # again, as if PUBREL had been lost
        assert await peer.packet() == PubRel(2)
        await peer.send(PubComp(2))
        await settled()
        assert twice.done
        assert client.statistics().inflight == 0


async def test_the_window_bounds_what_is_unacknowledged(nursery: trio.Nursery) -> None:
    async with connected(max_inflight=2) as (client, peer):
        await client.publish("a", b"1", 1, wait=False)
        client.publish_nowait("a", b"2", 2)
        with pytest.raises(trio.WouldBlock):
            client.publish_nowait("a", b"x", 1)
        client.publish_nowait("a", b"0", 0)  # QoS 0 needs no place
        third = Later(nursery, client.publish, "a", b"3", 1, wait=False)
        await settled()
        fourth = Later(nursery, client.publish, "a", b"4", 1, wait=False)
        await settled()
        assert not third.done
        assert await peer.packets(3) == [
            Publish("a", b"1", 1, packet_id=1),
            Publish("a", b"2", 2, packet_id=2),
            Publish("a", b"0"),
        ]
        await settled()
        assert await peer.nothing_yet()
        await peer.send(PubAck(1))
        await settled()
        # The place goes to who has waited longest, and cannot be taken by who comes now.
        assert third.done
        assert not fourth.done
        with pytest.raises(trio.WouldBlock):
            client.publish_nowait("a", b"x", 1)
        assert await peer.packet() == Publish("a", b"3", 1, packet_id=3)
        await peer.send(PubRec(2), PubComp(2), PubAck(3))
        assert await peer.packets(2) == [PubRel(2), Publish("a", b"4", 1, packet_id=4)]
        await peer.send(PubAck(4))


async def test_a_cancelled_publish_is_either_not_begun_or_finished_behind_the_scenes(
    nursery: trio.Nursery,
) -> None:
    async with connected(max_inflight=1) as (client, peer):
        begun = Later(nursery, client.publish, "a", b"1", 1)
        await settled()
        waiting = Later(nursery, client.publish, "a", b"2", 1)
        await settled()
        begun.scope.cancel()
        waiting.scope.cancel()
        await settled()
        assert begun.scope.cancelled_caught
        assert waiting.scope.cancelled_caught
        assert client.statistics().inflight == 1
        await peer.send(PubAck(1))
        await settled()
        assert client.statistics().inflight == 0
        third = Later(nursery, client.publish, "a", b"3", 1)
        assert await peer.packets(2) == [
            Publish("a", b"1", 1, packet_id=1),
            Publish("a", b"3", 1, packet_id=2),
        ]
        await peer.send(PubAck(2))
        await settled()
        assert third.done


@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_cancellation_at_every_step_loses_no_place_in_the_window(qos: int) -> None:
    async with connected(max_inflight=3) as (client, peer):

        async def answer() -> None:
            while True:
                match await peer.packet():
                    case Publish(qos=1, packet_id=packet_id):
                        await peer.send(PubAck(packet_id))
                    case Publish(qos=2, packet_id=packet_id):
                        await peer.send(PubRec(packet_id))
                    case PubRel(packet_id):
                        await peer.send(PubComp(packet_id))
                    case _:
                        pass

        async def publish_cancelled_after(steps: int) -> None:
            with trio.CancelScope() as scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(client.publish, "a", b"x", qos)
                    for _ in range(steps):
                        await trio.lowlevel.checkpoint()
                    scope.cancel()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(answer)
            for steps in range(12):
                for _ in range(3):
                    nursery.start_soon(publish_cancelled_after, steps)
                await publish_cancelled_after(steps)
            await settled()
            assert client.statistics().inflight == 0
            assert client.statistics().unsent_bytes == 0
            for _ in range(3):
                client.publish_nowait("a", b"x", qos or 1)
            await client.flush()
            nursery.cancel_scope.cancel()


async def test_identifiers_are_given_back(nursery: trio.Nursery) -> None:
    async with connected() as (client, peer):
        client.publish_nowait("t", b"", 1)
        client.publish_nowait("t", b"", 2)
        subscribing = Later(nursery, client.subscribe, "a")
        await settled()
        unsubscribing = Later(nursery, client.unsubscribe, "a")
        await settled()
        for refused in ("a#", ""):
            with pytest.raises(LocalProtocolError):
                await client.subscribe(refused)
            with pytest.raises(LocalProtocolError):
                client.publish_nowait(refused + "#", b"", 1)
        assert client.statistics().identifiers_in_use == 4
        rounds: list[tuple[list[Packet], int]] = [
            ([PubAck(1)], 3),
            ([PubRec(2)], 3),
            ([PubComp(2)], 2),
            ([SubAck(3, (0,))], 1),
            ([UnsubAck(4)], 0),
        ]
        for answers, left in rounds:
            await peer.send(*answers)
            await settled()
            assert client.statistics().identifiers_in_use == left
        assert subscribing.done
        assert unsubscribing.done


@pytest.mark.parametrize(
    ("topic", "qos"), [("", 0), ("a/+", 1), ("a\0", 2), ("\ud800", 1), ("a", 3), ("a", -1)]
)
async def test_invalid_publications_are_refused_and_take_no_place(topic: str, qos: int) -> None:
    async with connected(max_inflight=1) as (client, peer):
        for _ in range(3):
            with pytest.raises(LocalProtocolError):
                await client.publish(topic, b"", qos)
            with pytest.raises(LocalProtocolError):
                client.publish_nowait(topic, b"", qos)
        client.publish_nowait("fine", b"", 1)
        published = await peer.packet()
        assert isinstance(published, Publish)
        assert published.topic == "fine"
        await peer.send(PubAck(published.packet_id))


async def test_many_small_publications_leave_in_few_writes() -> None:
    ours, theirs = memory_stream_pair()
    peer = Peer(theirs)
    writes: list[int] = []
    send_all = ours.send_stream.send_all

    async def counted(data: bytes) -> None:
        writes.append(len(data))
        await send_all(data)

    ours.send_stream.send_all = counted  # type: ignore[method-assign,assignment]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(peer.accept)
        async with open_mqtt(ours) as client:
            for number in range(10_000):
                await client.publish("a/b", b"%04d" % number, wait=False)
            await client.flush()
            assert sum(writes[1:]) == 10_000 * 11
            # Two writes may be filled to the brim while the third has what is left.
            assert len(writes) <= 1 + 3
            assert max(writes) < (1 << 16) + 11
            nursery.start_soon(peer.finish)
    assert [p.payload for p in peer.rest if isinstance(p, Publish)] == [
        b"%04d" % number for number in range(10_000)
    ]


class Gate:
    """Holds back, on demand, what is written to a stream."""

    def __init__(self, stream: MemoryStream) -> None:
        self._open = trio.Event()
        self._send_all = stream.send_stream.send_all
        self._stream = stream

    def shut(self) -> None:
        self._stream.send_stream.send_all = self._held  # type: ignore[method-assign,assignment]

    def open(self) -> None:
        self._open.set()

    async def _held(self, data: bytes) -> None:
        await self._open.wait()
        await self._send_all(data)


async def test_a_stream_that_takes_nothing_makes_publishers_wait(nursery: trio.Nursery) -> None:
    ours, theirs = memory_stream_pair()
    peer = Peer(theirs)
    gate = Gate(ours)
    nursery.start_soon(peer.accept)
    async with open_mqtt(ours, max_inflight=1) as client:
        gate.shut()
        published = 0

        async def publish() -> None:
            nonlocal published
            while published < 1000:
                await client.publish("t", bytes(1000), wait=False)
                published += 1

        publisher = Later(nursery, publish)
        await settled()
        assert 100 < published < 200
        assert client.statistics().unsent_bytes < 2 * (1 << 16) + 2000
        with pytest.raises(trio.WouldBlock):
            client.publish_nowait("t")
        last = Later(nursery, client.publish, "t")
        # One that has its place in the window and waits for room gives the place back.
        for _ in range(3):
            confirmed = Later(nursery, client.publish, "t", b"", 1)
            await settled()
            confirmed.scope.cancel()
            await settled()
        assert not last.done
        gate.open()
        await settled()
        assert publisher.done
        assert last.done
        assert published == 1000
        client.publish_nowait("u", b"", 1)
        nursery.start_soon(peer.finish)
        while Publish("u", b"", 1, packet_id=1) not in peer.rest[-1:]:
            await trio.lowlevel.checkpoint()
        await peer.send(PubAck(1))


async def test_a_server_that_talks_and_never_listens_fills_nothing(nursery: trio.Nursery) -> None:
    ours, theirs = memory_stream_pair()
    peer = Peer(theirs)
    gate = Gate(ours)
    nursery.start_soon(peer.accept)
    async with open_mqtt(ours) as client:
        gate.shut()
        await peer.send(Publish("t", b"", 1, packet_id=1), PingResp())
        await peer.stream.send_all(encode(PubRel(9)) * 300_000)
        await settled()
        assert not client.statistics().reading
        assert (1 << 20) <= client.statistics().unsent_bytes < (1 << 20) + 3 * (1 << 16)
        # Its message cannot be acknowledged now, so it cannot be taken.
        with pytest.raises(trio.WouldBlock):
            client.receive_nowait()
        taking = Later(nursery, client.receive)
        await settled()
        assert not taking.done
        gate.open()
        await settled()
        assert taking.result == Publish("t", b"", 1, packet_id=1)
        await client.flush()
        assert client.statistics().unsent_bytes == 0
        nursery.start_soon(peer.finish)
    assert peer.rest.count(PubComp(9)) == 300_000
    assert peer.rest.count(PubAck(1)) == 1


# --- subscribing ----------------------------------------------------------------------------


async def test_subscribing_and_unsubscribing(nursery: trio.Nursery) -> None:
    async with connected() as (client, peer):
        one = Later(nursery, client.subscribe, "a/#", 1)
        assert await peer.packet() == Subscribe(1, (("a/#", 1),))
        many = Later(nursery, client.subscribe, ["b", ("c/+", 2)])
        assert await peer.packet() == Subscribe(2, (("b", 0), ("c/+", 2)))
        await peer.send(SubAck(2, (0, 1)), SubAck(1, (1,)))
        await settled()
        assert one.result == (1,)
        assert many.result == (0, 1)
        gone = Later(nursery, client.unsubscribe, ["b", "a/#"])
        assert await peer.packet() == Unsubscribe(3, ("b", "a/#"))
        await settled()
        assert not gone.done
        await peer.send(UnsubAck(3))
        await settled()
        assert gone.done
        for wrong in ([], "", "a#", [("a", 3)]):
            with pytest.raises(LocalProtocolError):
                await client.subscribe(wrong)


async def test_a_refused_filter_is_an_exception_and_the_others_stand(
    nursery: trio.Nursery,
) -> None:
    async with connected() as (client, peer):
        call = Later(nursery, client.subscribe, ["a", "$share/g/b"], 1)
        await peer.packet()
        await peer.send(SubAck(1, (1, SUBSCRIPTION_FAILED)))
        await settled()
        assert isinstance(call.error, SubscriptionRefusedError)
        assert call.error.granted == {"a": 1, "$share/g/b": None}
        assert "'$share/g/b'" in str(call.error)


async def test_a_cancelled_subscribe_leaves_its_identifier_alone_until_it_is_answered(
    nursery: trio.Nursery,
) -> None:
    async with connected() as (client, peer):
        first = Later(nursery, client.subscribe, "a")
        await peer.packet()
        first.scope.cancel()
        await settled()
        second = Later(nursery, client.subscribe, "b")
        assert await peer.packet() == Subscribe(2, (("b", 0),))
        await peer.send(SubAck(1, (0,)), SubAck(2, (2,)))
        await settled()
        assert second.result == (2,)


@pytest.mark.parametrize("answer", [SubAck(1, (0, 0)), SubAck(2, (0,)), UnsubAck(1)], ids=repr)
async def test_answers_that_fit_no_question(answer: Packet, nursery: trio.Nursery) -> None:
    async with losing() as (client, peer, lost):
        call = Later(nursery, client.subscribe, "a")
        await peer.packet()
        await peer.send(answer)
        await settled()
        assert isinstance(call.error, ConnectionLostError)
    assert "the server broke the protocol" in str(lost[0])
    assert isinstance(lost[0].__cause__, RemoteProtocolError)


async def test_acknowledgements_of_the_unknown_do_no_harm(nursery: trio.Nursery) -> None:
    async with connected() as (client, peer):
        await peer.send(PubAck(9), PubComp(9), PubRec(9))
        assert await peer.packet() == PubRel(9)
        call = Later(nursery, client.publish, "a", b"", 1)
        await peer.packet()
        await peer.send(PubAck(2), PubAck(1), PubAck(1))
        await settled()
        assert call.done


@pytest.mark.parametrize(
    ("qos", "answer"), [(1, PubRec(1)), (1, PubComp(1)), (2, PubAck(1)), (2, PubComp(1))]
)
async def test_acknowledgements_out_of_turn_end_the_connection(
    qos: int, answer: Packet, nursery: trio.Nursery
) -> None:
    async with losing() as (client, peer, lost):
        call = Later(nursery, client.publish, "a", b"", qos)
        await peer.packet()
        await peer.send(answer)
        await settled()
        assert isinstance(call.error, ConnectionLostError)
    assert "out of turn" in str(lost[0])


# --- receiving ------------------------------------------------------------------------------


async def test_messages_are_acknowledged_when_they_are_taken() -> None:
    async with connected() as (client, peer):
        messages = [Publish("a", b"%d" % qos, qos, packet_id=qos * 7) for qos in range(3)]
        await peer.send(*messages)
        await settled()
        assert client.statistics().buffered_messages == 3
        assert client.statistics().buffered_bytes == 6
        assert await peer.nothing_yet()
        assert await client.receive() == messages[0]
        await settled()
        assert await peer.nothing_yet()
        async for message in client:
            assert message == messages[1]
            break
        assert await peer.packet() == PubAck(7)
        assert client.receive_nowait() == messages[2]
        assert await peer.packet() == PubRec(14)
        await peer.send(PubRel(14))
        assert await peer.packet() == PubComp(14)
        with pytest.raises(trio.WouldBlock):
            client.receive_nowait()


async def test_a_qos_2_message_is_delivered_once() -> None:
    async with connected() as (client, peer):
        again = Publish("a", b"x", 2, dup=True, packet_id=5)
        await peer.send(Publish("a", b"x", 2, packet_id=5), again)
        await settled()
        assert client.statistics().buffered_messages == 1
        assert await peer.nothing_yet()  # not taken yet, so not accepted yet
        assert (await client.receive()).packet_id == 5
        assert await peer.packet() == PubRec(5)
        await peer.send(again)
        assert await peer.packet() == PubRec(5)
        await peer.send(PubRel(5), PubRel(5))
        assert await peer.packets(2) == [PubComp(5), PubComp(5)]
        # After its release the identifier stands for a new publication, DUP or not.
        await peer.send(again)
        assert await client.receive() == again
        assert await peer.packet() == PubRec(5)


@pytest.mark.parametrize(
    ("limits", "size"),
    [({"max_buffered": 100}, 1), ({"max_buffered_bytes": 100_000}, 1000)],
)
async def test_a_client_that_takes_nothing_reads_nothing(
    limits: dict[str, int], size: int, nursery: trio.Nursery
) -> None:
    count = 20_000 if size == 1 else 200
    async with connected(**limits) as (client, peer):
        acknowledged = Later(nursery, client.publish, "mine", b"", 1)
        assert await peer.packet() == Publish("mine", b"", 1, packet_id=1)
        messages = [Publish("t", b"%05d" % number * size) for number in range(count)]
        # The answer is in the first read, behind publications: it gets through with them.
        await peer.send(*messages[:3], PubAck(1), *messages[3:])
        await settled()
        assert acknowledged.done
        held = client.statistics()
        assert not held.reading
        one_read = 1 << 16
        if size == 1:
            assert held.buffered_messages <= 100 + one_read / len(encode(messages[0]))
        else:
            assert held.buffered_bytes <= 100_000 + one_read
        stuck = Later(nursery, client.publish, "mine", b"", 1)
        assert await peer.packet() == Publish("mine", b"", 1, packet_id=2)
        await peer.send(PubAck(2))
        await settled()
        assert not stuck.done  # its answer is behind what nobody takes
        taken = [await client.receive() for _ in range(count)]
        assert taken == messages
        await settled()
        assert stuck.done
        assert client.statistics().reading


async def test_several_consumers_share_the_messages(nursery: trio.Nursery) -> None:
    async with connected() as (client, peer):
        shares: list[list[bytes]] = [[], [], []]

        async def consume(share: list[bytes]) -> None:
            async for message in client:
                share.append(message.payload)
                await trio.lowlevel.checkpoint()

        consumers = [Later(nursery, consume, share) for share in shares]
        await settled()
        for number in range(30):
            await peer.send(Publish("t", bytes([number]), 1, packet_id=number + 1))
            await settled()
        assert sorted(b"".join(payload for share in shares for payload in share)) == [*range(30)]
        consumers[0].scope.cancel()
        await settled()
        await peer.send(Publish("t", b"last"))
        await settled()
        assert b"last" in shares[1] + shares[2]
    await settled()
    assert all(consumer.done for consumer in consumers[1:])


async def test_cancelling_receive_loses_nothing() -> None:
    async with connected() as (client, peer):
        for steps in range(8):
            message = Publish("t", bytes([steps]))
            taken: list[Publish] = []

            async def take(into: list[Publish]) -> None:
                into.append(await client.receive())

            async with trio.open_nursery() as nursery:
                nursery.start_soon(take, taken)
                await peer.send(message)
                for _ in range(steps):
                    await trio.lowlevel.checkpoint()
                nursery.cancel_scope.cancel()
            await settled()
            assert [*taken, *([] if taken else [client.receive_nowait()])] == [message]


async def test_a_busy_consumer_lets_others_run() -> None:
    async with connected() as (client, peer):
        await peer.send(*(Publish("t") for _ in range(500)))
        await settled()
        turns = 0

        async def other() -> None:
            nonlocal turns
            while True:
                turns += 1
                await trio.lowlevel.checkpoint()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(other)
            for _ in range(500):
                await client.receive()
            nursery.cancel_scope.cancel()
        assert turns >= 5


# --- the connection's life ------------------------------------------------------------------


async def test_leaving_finishes_what_was_published_though_nobody_takes_messages() -> None:
    ours, theirs = memory_stream_pair()
    peer = Peer(theirs)
    published: list[bytes] = []

    async def serve() -> None:
        await peer.accept()
        # More than the client will hold, in front of the acknowledgements.
        await peer.send(*(Publish("noise", bytes(100)) for _ in range(10_000)))
        while (packet := await peer.packet()) != Disconnect():
            assert isinstance(packet, Publish)
            published.append(packet.payload)
            await peer.send(PubAck(packet.packet_id))
        await peer.close()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve)
        async with open_mqtt(ours, max_buffered=10, max_inflight=50) as client:
            for number in range(50):
                await client.publish("t", bytes([number]), 1, wait=False)
            await settled()
            assert client.statistics().inflight == 50
    assert published == [bytes([number]) for number in range(50)]


async def test_disconnecting_by_hand(nursery: trio.Nursery) -> None:
    async with connected(max_inflight=1) as (client, peer):
        iterating = Later(nursery, client.receive)
        unanswered = Later(nursery, client.subscribe, "a")
        await settled()
        begun = Later(nursery, client.publish, "t", b"", 1)
        await settled()
        not_begun = Later(nursery, client.publish, "t", b"", 1)
        await settled()
        leaving = Later(nursery, client.disconnect)
        await settled()
        assert isinstance(not_begun.error, LocalProtocolError)
        assert not begun.done
        assert not leaving.done
        assert await peer.packets(2) == [
            Subscribe(1, (("a", 0),)),
            Publish("t", qos=1, packet_id=2),
        ]
        await peer.send(PubAck(2))
        assert await peer.packet() == Disconnect()
        await peer.close()
        await settled()
        assert begun.done
        assert begun.error is None
        assert leaving.done
        assert leaving.error is None
        assert isinstance(unanswered.error, LocalProtocolError)
        assert "disconnected" in repr(client)
        with pytest.raises(LocalProtocolError, match="has disconnected"):
            await client.publish("t")
        with pytest.raises(LocalProtocolError):
            client.publish_nowait("t")
        assert [message async for message in client] == []
        with pytest.raises(trio.EndOfChannel):
            client.receive_nowait()
        await client.disconnect()
        assert isinstance(iterating.error, trio.EndOfChannel)


async def test_a_server_that_does_not_close_is_not_waited_for(
    autojump_clock: trio.testing.MockClock,
) -> None:
    ours, theirs = memory_stream_pair()
    peer = Peer(theirs)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(peer.accept)
        async with open_mqtt(ours, keep_alive=0):
            before = trio.current_time()
    assert 1 <= trio.current_time() - before <= 5
    assert await peer.packets(2) == [Disconnect(), None]


async def test_a_server_that_closes_before_the_last_write_has_returned(
    autojump_clock: trio.testing.MockClock,
) -> None:
    ours, theirs = memory_stream_pair()
    peer = Peer(theirs)
    send_all = ours.send_stream.send_all

    async def returns_late(data: bytes) -> None:
        await send_all(data)
        await trio.sleep(1)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(peer.accept)
        async with open_mqtt(ours, keep_alive=0):
            await settled()
            nursery.start_soon(peer.finish)
            ours.send_stream.send_all = returns_late  # type: ignore[method-assign,assignment]
    assert peer.rest == [Disconnect()]


@pytest.mark.parametrize("cut", [b"", b"\x30\x0a\0\1t"])
async def test_a_lost_connection_wakes_all_who_wait(cut: bytes, nursery: trio.Nursery) -> None:
    async with losing(max_inflight=2) as (client, peer, lost):
        client.publish_nowait("t", b"", 1)
        calls = [
            Later(nursery, client.publish, "t", b"", 2),
            Later(nursery, client.flush),
            Later(nursery, client.publish, "t", b"", 1),
            Later(nursery, client.subscribe, "a"),
            Later(nursery, client.unsubscribe, "a"),
        ]
        await settled()
        await peer.send(Publish("t", b"last"))
        if cut:
            await peer.stream.send_all(cut)
        await peer.close()
        await settled()
        for call in calls:
            assert isinstance(call.error, ConnectionLostError)
            assert ("after 5 bytes of it" in str(call.error)) is bool(cut)
        # What came before the end is still there to be taken.
        assert await client.receive() == Publish("t", b"last")
        waiting: list[Callable[[], Any]] = [client.receive, client.flush, client.disconnect]
        for attempt in waiting:
            with pytest.raises(ConnectionLostError):
                await attempt()
        with pytest.raises(ConnectionLostError):
            client.receive_nowait()
        with pytest.raises(ConnectionLostError):
            client.publish_nowait("t")
        assert "lost" in repr(client)
    assert "the server closed the connection" in str(lost[0])


async def test_a_write_that_fails_is_a_lost_connection() -> None:
    async with losing() as (client, peer, lost):
        await settled()
        peer.stream.receive_stream.close()
        await client.publish("t", b"", 1)
    assert "the connection broke" in str(lost[0])
    assert isinstance(lost[0].__cause__, trio.BrokenResourceError)


async def test_garbage_is_a_lost_connection_with_its_cause() -> None:
    async with losing() as (client, peer, lost):
        await peer.stream.send_all(b"\x36\0")
        await client.receive()
    assert "MQTT-3.3.1-4" in str(lost[0])
    assert isinstance(lost[0].__cause__, RemoteProtocolError)


# --- keeping alive --------------------------------------------------------------------------


async def test_pings_when_nothing_else_is_sent(autojump_clock: trio.testing.MockClock) -> None:
    async with connected(keep_alive=40) as (client, peer):
        start = trio.current_time()
        for round_ in (1, 2, 3):
            assert await peer.packet() == PingReq()
            assert trio.current_time() - start == pytest.approx(30 * round_)
            await peer.send(PingResp())
        await trio.sleep(20)
        await client.publish("t")
        assert await peer.packet() == Publish("t")
        assert await peer.packet() == PingReq()
        assert trio.current_time() - start == pytest.approx(90 + 20 + 30)
        await peer.send(PingResp())


async def test_a_missing_answer_to_a_ping(autojump_clock: trio.testing.MockClock) -> None:
    start = trio.current_time()
    async with losing(keep_alive=40, ping_timeout=25) as (client, _peer, lost):
        await client.receive()
    assert "not answered a ping for 25 s" in str(lost[0])
    assert trio.current_time() - start == pytest.approx(30 + 25)


async def test_anything_that_comes_answers_for_a_ping(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with connected(keep_alive=40, ping_timeout=25) as (client, peer):
        for _ in range(20):
            await trio.sleep(24)
            await peer.send(Publish("t"))
            await client.receive()


async def test_a_client_that_does_not_read_does_not_miss_the_answers_to_its_pings(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with connected(keep_alive=40, max_buffered=1) as (client, peer):
        await peer.send(*(Publish("t", bytes(60_000)) for _ in range(5)))
        await trio.sleep(1000)
        assert not client.statistics().reading
        pings = [await peer.packet() for _ in range(30)]
        assert set(pings) == {PingReq()}
        for _ in range(5):
            assert (await client.receive()).topic == "t"
        await trio.sleep(30)
        await peer.send(PingResp())
        await trio.sleep(20)
        await client.publish("t")


@pytest.mark.parametrize("pinged_before", [False, True])
async def test_a_server_that_slows_the_client_down_is_not_taken_for_dead(
    pinged_before: bool, autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    ours, theirs = memory_stream_pair()
    peer = Peer(theirs)
    gate = Gate(ours)
    nursery.start_soon(peer.accept)
    async with open_mqtt(ours, keep_alive=40) as client:
        await settled()
        if pinged_before:
            await trio.sleep(31)
            assert await peer.packet() == PingReq()
        gate.shut()
        stuck = Later(nursery, client.publish, "t")
        await trio.sleep(1000)
        assert not stuck.done
        gate.open()
        await settled()
        assert stuck.done
        assert await peer.packet() == Publish("t")
        nursery.start_soon(peer.finish)


async def test_no_pings_without_a_keep_alive(autojump_clock: trio.testing.MockClock) -> None:
    async with connected(keep_alive=0) as (_client, peer):
        await trio.sleep(80_000)
        assert await peer.nothing_yet()
