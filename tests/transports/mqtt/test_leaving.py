"""A client that says DISCONNECT is sent nothing more, and what it was not sent is no redelivery."""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, closing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clearfunds.transports.mqtt import (
    ConnAck,
    Connect,
    Disconnect,
    PingReq,
    PingResp,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    encode,
)
from clearfunds.transports.mqtt.server._leaving import (
    PEEK_BYTES,
    disconnect_has_come,
    has_disconnect,
)
from tests.transports.peers import BareClient, RunningRelay, connected, dial, running

DISCONNECT = b"\xe0\x00"

packets = st.one_of(
    st.integers(1, 65_535).map(lambda n: encode(PubAck(n))),
    st.binary(max_size=300).map(lambda body: encode(Publish("t", body))),
    # What looks like one is none.
    st.just(encode(Publish("t", b"\xe0\x00" * 70))),
    st.just(encode(PubAck(0xE000))),
)


@given(st.lists(packets), st.sampled_from([DISCONNECT, b"\xe0\x01\x04", b"\xe0\x02\x04\x00"]))
def test_it_is_found_where_it_is(before: list[bytes], last: bytes) -> None:
    data = b"".join(before)
    assert not has_disconnect(data)
    assert has_disconnect(data + last)
    assert not has_disconnect(data + last[:-1])


@given(st.binary(max_size=200))
def test_nothing_is_raised_whatever_came(data: bytes) -> None:
    has_disconnect(data)


def test_what_has_come_is_still_there() -> None:
    one, other = socket.socketpair()
    with closing(one), closing(other):
        one.setblocking(False)
        assert not disconnect_has_come(one)
        other.sendall(encode(PubAck(1)) + DISCONNECT)
        assert disconnect_has_come(one)
        assert one.recv(100) == encode(PubAck(1)) + DISCONNECT
        other.sendall(bytes(PEEK_BYTES) + DISCONNECT)
        assert not disconnect_has_come(one)
        other.close()
        assert not disconnect_has_come(one)


@asynccontextmanager
async def kept(relay: RunningRelay) -> AsyncGenerator[BareClient]:
    """Connect the client whose session is kept."""
    async with dial(relay.port) as client:
        await client.stream.send_all(client.connection.send(Connect("c", False)))
        assert isinstance(await client.next(), ConnAck)
        yield client


async def pinged(client: BareClient) -> None:
    """See that the relay has read all that was said."""
    await client.send(PingReq())
    await client.expect(PingResp())


async def taken(client: BareClient, payload: bytes) -> None:
    """Take a message that was never sent before."""
    message = await client.publication()
    assert (message.payload, message.dup) == (payload, False)
    if message.qos == 1:
        await client.send(PubAck(message.packet_id))
    else:
        await client.send(PubRec(message.packet_id))
        await client.expect(PubRel(message.packet_id))
        await client.send(PubComp(message.packet_id))


@pytest.mark.parametrize("qos", [1, 2])
async def test_nothing_is_sent_behind_a_disconnect_that_is_not_read_yet(qos: int) -> None:
    """Both have come before the relay looks: whoever's turn is first, it is the same."""
    async with running() as relay, connected(relay.port) as publisher:
        async with kept(relay) as client:
            await client.subscribe("t", qos=qos)
        for number in range(1, 31):
            async with kept(relay) as client:
                if number > 1:
                    await taken(client, b"%d" % (number - 1))
                await pinged(client)
                # In one step of the loop that the relay runs in, too.
                said = encode(Publish("t", b"%d" % number, qos, packet_id=number))
                os.write(publisher.sock.fileno(), said)
                os.write(client.sock.fileno(), encode(PubAck(9)) + DISCONNECT)
                assert await client.gone() == []
            if qos == 1:
                await publisher.expect(PubAck(number))
            else:
                await publisher.expect(PubRec(number))
        async with kept(relay) as client:
            await taken(client, b"30")
        relay.audit()
        end_session(relay)


async def test_what_a_client_publishes_to_itself_before_it_leaves_is_no_redelivery() -> None:
    async with running() as relay:
        async with kept(relay) as client:
            await client.subscribe("t", qos=1)
            await client.send(
                *(Publish("t", b"%d" % n, 1, packet_id=n) for n in range(1, 4)), Disconnect()
            )
            assert not [p for p in await client.gone() if isinstance(p, Publish)]
            relay.audit()
        async with kept(relay) as client:
            for number in range(1, 4):
                await taken(client, b"%d" % number)
        end_session(relay)


async def test_what_was_sent_and_not_acknowledged_is_a_redelivery() -> None:
    async with running() as relay, connected(relay.port) as publisher:
        async with kept(relay) as client:
            await client.subscribe("t", qos=1)
            await publisher.publish("t", b"1", 1)
            assert not (await client.publication()).dup
            await client.send(Disconnect())
            assert await client.gone() == []
        async with kept(relay) as client:
            assert (await client.publication()).dup
        relay.audit()
        end_session(relay)


def end_session(relay: RunningRelay) -> None:
    kept = relay.relay.mqtt.persistent_sessions
    assert kept is not None
    kept.discard("c")
