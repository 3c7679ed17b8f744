"""What a relay and its clients tell each other when they meet: sizes, numbers, keep-alives."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from clearfunds.transports.mqtt import (
    ConnAck,
    Connect,
    Disconnect,
    Packet,
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
from clearfunds.transports.mqtt.codec._packets5 import encode5
from clearfunds.transports.mqtt.codec._properties import Properties
from clearfunds.transports.mqtt.codec._reasons import Reason
from clearfunds.transports.mqtt.server._fitting import fitting
from tests.transports.mqtt.peers5 import connected5, dial5
from tests.transports.peers import RunningRelay, connected, dial, log_of, running

# -- Maximum Packet Size ---------------------------------------------------------------------------

reasons = st.text("ab", max_size=40).map(lambda text: Properties(reason_string=text or None))
packets: st.SearchStrategy[Packet] = st.one_of(
    st.just(PingResp()),
    st.builds(PubAck, st.just(1), st.sampled_from([0, 0x10, 0x97]), reasons),
    st.builds(SubAck, st.just(1), st.lists(st.just(0), min_size=1).map(tuple), reasons),
    st.builds(Disconnect, st.just(0x8E), reasons),
    st.builds(ConnAck, st.just(False), st.just(0x86), reasons),
)


@given(packets, st.none() | st.integers(1, 60))
def test_what_fits_is_said_and_what_does_not_is_not(packet: Packet, largest: int | None) -> None:
    fits = fitting(packet, largest)
    if largest is None or len(encode5(packet)) <= largest:
        assert fits is packet
    elif fits is not None:
        assert len(encode5(fits)) <= largest
        assert type(fits) is type(packet)
        assert not getattr(fits, "properties", Properties()).reason_string


@pytest.mark.parametrize(
    ("packet", "answer"),
    [
        (Subscribe(1, tuple((f"t/{n}", 0) for n in range(30))), SubAck(1, (0,) * 30)),
        (Unsubscribe(1, tuple(f"t/{n}" for n in range(30))), UnsubAck(1, (0x11,) * 30)),
    ],
)
async def test_an_answer_that_is_too_large_ends_the_connection(
    packet: Packet, answer: Packet, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    async with running() as relay:
        async with connected5(relay.port, "c", maximum_packet_size=30) as client:
            await client.send(packet)
            assert await client.gone() == [Disconnect(Reason.PACKET_TOO_LARGE)]
        async with connected5(relay.port, "c", maximum_packet_size=40) as client:
            await client.send(packet)
            await client.expect(answer)
        await relay.deserted()
    assert log_of(caplog, "accepts at most 30")


async def test_who_takes_next_to_nothing_is_told_nothing() -> None:
    async with running() as relay:
        for most in (4, 5):
            async with dial5(relay.port) as client:
                said = Properties(maximum_packet_size=most)
                await client.send(Connect("c", protocol_level=5, properties=said))
                answers = await client.gone()
                assert answers == [ConnAck(False, Reason.PACKET_TOO_LARGE)] * (most == 5)
        await relay.deserted()


async def test_an_acknowledgement_that_is_too_large_ends_the_connection() -> None:
    async with running() as relay:
        # CONNACK has room, and so has a PUBACK without a reason.
        for most, takes in ((19, True), (4, False)):
            async with dial5(relay.port) as client:
                said = Properties(maximum_packet_size=most, request_problem_information=0)
                await client.send(Connect("c", protocol_level=5, properties=said))
                if not takes:
                    assert await client.gone() == []
                    continue
                assert isinstance(await client.next(), ConnAck)
                await client.publish("$SYS/x", b"", 1)
                await client.expect(PubAck(1, Reason.NOT_AUTHORIZED))
        await relay.deserted()


# -- Server Keep Alive -----------------------------------------------------------------------------


def allowed_silence(relay: RunningRelay, client_id: str) -> float | None:
    session = relay.relay.mqtt.sessions[client_id]
    return session._deadline_after  # pyright: ignore[reportPrivateUsage]


@pytest.mark.parametrize(
    ("asked", "told", "silence"), [(0, 60, 90), (61, 60, 90), (60, None, 90), (7, None, 10.5)]
)
async def test_nobody_is_silent_for_longer_than_the_relay_wants(
    asked: int, told: int | None, silence: float
) -> None:
    async with running(max_keep_alive=60) as relay:
        async with connected5(relay.port, "c", keep_alive=asked) as client:
            assert client.welcome.properties.server_keep_alive == told
            assert allowed_silence(relay, "c") == silence
        # With 3.1.1 it cannot be told.
        async with connected(relay.port, "old", keep_alive=asked):
            silence = 1.5 * asked if asked else 90
            assert allowed_silence(relay, "old") == silence


async def test_a_keep_alive_is_as_the_client_asks() -> None:
    async with running() as relay:
        async with connected5(relay.port, "c", keep_alive=65_535) as client:
            assert client.welcome.properties.server_keep_alive is None
        async with connected5(relay.port, "c") as client:
            assert client.welcome.properties.server_keep_alive is None
            assert allowed_silence(relay, "c") is None


# -- how much may be under way ---------------------------------------------------------------------


async def test_a_client_of_311_may_use_all_identifiers() -> None:
    count = 65_535
    async with running() as relay, connected(relay.port, "c") as client:
        async with trio.open_nursery() as nursery:

            async def publish() -> None:
                for start in range(1, count + 1, 1_000):
                    await client.send(
                        *(
                            Publish("t", b"", 2, packet_id=n)
                            for n in range(start, min(start + 1_000, count + 1))
                        )
                    )

            nursery.start_soon(publish)
            for n in range(1, count + 1):
                assert await client.receive() == PubRec(n)
        await client.send(PubRel(count))
        await client.expect(PubComp(count))


async def test_a_client_of_5_may_use_as_many_as_it_is_told() -> None:
    async with running(receive_maximum=2) as relay, connected5(relay.port) as client:
        assert client.welcome.properties.receive_maximum == 2
        for packet_id in (1, 2, 3):
            await client.publish("t", b"", 2, packet_id=packet_id)
        last = (await client.gone())[-1]
        assert isinstance(last, Disconnect)
        assert last.reason == Reason.RECEIVE_MAXIMUM_EXCEEDED


# -- nobody subscribes -----------------------------------------------------------------------------


@pytest.mark.parametrize("retain", [False, True])
async def test_a_publisher_is_told_that_nobody_subscribes(retain: bool) -> None:
    said: Any = {"retain": retain}
    async with (
        running() as relay,
        connected5(relay.port) as client,
        connected5(relay.port) as other,
        dial(relay.port) as old,
    ):
        await client.send(Publish("t", b"x", 1, packet_id=1, **said))
        await client.expect(PubAck(1, Reason.NO_MATCHING_SUBSCRIBERS))
        await client.send(Publish("t", b"x", 2, packet_id=2, **said))
        await client.expect(PubRec(2, Reason.NO_MATCHING_SUBSCRIBERS))
        # The exchange goes on: it is no failure.
        await client.send(Publish("t", b"x", 2, dup=True, packet_id=2, **said))
        await client.expect(PubRec(2))
        await client.send(PubRel(2))
        await client.expect(PubComp(2))
        await other.subscribe("#", options=0x20)
        await client.send(Publish("t", b"x", 1, packet_id=3, **said))
        await client.expect(PubAck(3))
        await other.send(Unsubscribe(1, ("#",)))
        # With 3.1.1 there is no way to say so.
        await old.stream.send_all(old.connection.send(Connect("old")))
        await old.expect(ConnAck(False, 0))
        await old.send(Publish("nobody", b"x", 1, packet_id=1, **said), PingReq())
        await old.expect(PubAck(1))
        relay.audit()


# -- response topics -------------------------------------------------------------------------------


async def test_a_response_topic_that_is_none_is_refused() -> None:
    async with running() as relay, connected5(relay.port) as client:
        body = b"\0\1t\3\x08\0\0"
        await client.stream.send_all(bytes((0x30, len(body))) + body)
        (last,) = await client.gone()
        assert isinstance(last, Disconnect)
        assert last.reason == Reason.PROTOCOL_ERROR
        assert "response topic" in (last.properties.reason_string or "")
