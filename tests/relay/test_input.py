"""Unfinished input, over real sockets: it is on an account, and whoever holds much goes first."""

from __future__ import annotations

from contextlib import suppress

import pytest
import trio
import trio.testing

from clearfunds.transports._input import FREE_BYTES
from clearfunds.transports.mqtt import (
    ConnAck,
    Connect,
    ConnectReturnCode,
    Disconnect,
    Publish,
    Will,
    encode,
)
from clearfunds.transports.mqtt.codec._reasons import Reason
from tests.transports.peers import connected, dial, log_of, running, until

KIB = 1 << 10
PUBLISH = encode(Publish("t", bytes(1 << 20)))


async def test_a_packet_that_is_not_complete_is_on_an_account() -> None:
    async with running() as relay, connected(relay.port, "a") as client:
        await client.stream.send_all(PUBLISH[: 300 * KIB])
        book = relay.relay.input
        await until(lambda: book.nbytes == 300 * KIB)
        account = relay.ledger.accounts["input/address/127.0.0.1"]
        assert account.debt_bytes == 300 * KIB
        assert relay.statistics().at_rest_bytes["ram"] == 300 * KIB
        held = next(each for each in relay.ledger.holders if each.kind == "input")
        assert held.name == relay.account("a").name
        relay.audit()
        await client.stream.send_all(PUBLISH[300 * KIB :])
        await until(lambda: not book.nbytes)
        await until(lambda: relay.relay.mqtt.counters.received == 1)
        assert not book.shares
        relay.audit()


async def test_what_has_been_handled_is_let_go_of() -> None:
    """Or each of 10,000 idle connections would keep its last read, of 64 KiB."""
    async with running() as relay, connected(relay.port, "a") as client:
        await client.stream.send_all(encode(Publish("t", b"x" * 100)) * 5_000 + b"\x30")
        await until(lambda: relay.relay.mqtt.counters.received == 5_000)
        await trio.testing.wait_all_tasks_blocked()
        (session,) = relay.relay.mqtt.open
        holding = getattr(session, "_holding")  # noqa: B009
        assert holding() <= FREE_BYTES
        relay.audit()


async def test_before_login_it_is_its_address() -> None:
    async with running(address_input_limit=20 * KIB) as relay:
        async with dial(relay.port) as first, dial(relay.port) as second:
            connect = encode(Connect("c", password=b"p" * 15 * KIB, username="u"))
            await first.stream.send_all(connect[:-1])
            await until(lambda: relay.relay.input.nbytes == len(connect) - 1)
            assert list(relay.relay.input.shares) == ["input/connecting/127.0.0.1"]
            await trio.sleep(0.6)
            await second.stream.send_all(connect[:-1])
            assert await first.gone() == []
            await second.stream.send_all(connect[-1:])
            await until(lambda: "c" in relay.relay.mqtt.sessions)
        await relay.deserted()


async def test_a_connect_is_small(caplog: pytest.LogCaptureFixture) -> None:
    async with running() as relay, dial(relay.port) as client:
        await client.stream.send_all(b"\x10\x81\x80\x01")
        assert await client.gone() == []
        await relay.deserted()
    assert log_of(caplog, "a CONNECT of more than 16384 bytes is announced")


async def test_who_stalls_goes_first_and_another_address_gets_through(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with running(input_limit=1 << 20) as relay, connected(relay.port, "sub") as subscriber:
        await subscriber.subscribe("t")
        async with trio.open_nursery() as nursery:

            async def stall(number: int) -> None:
                async with connected(relay.port, f"s{number}") as client:
                    with suppress(trio.BrokenResourceError):
                        await client.stream.send_all(PUBLISH[: 200 * KIB])
                        await trio.sleep_forever()

            for number in range(20):
                nursery.start_soon(stall, number)
            await until(lambda: relay.relay.input.nbytes > 500 * KIB)
            honest = await trio.open_tcp_stream("127.0.0.1", relay.port, local_address="127.0.0.3")
            async with honest:
                await honest.send_all(encode(Connect("honest")))
                large = encode(Publish("t", bytes(400 * KIB)))
                for start in range(0, len(large), 30 * KIB):
                    await honest.send_all(large[start : start + 30 * KIB])
                    await trio.sleep(0.02)
                assert await subscriber.publications(1) == [Publish("t", bytes(400 * KIB))]
            assert relay.relay.input.nbytes <= (1 << 20) + 64 * KIB
            assert relay.relay.input.cut > 0
            relay.audit()
            nursery.cancel_scope.cancel()
        relay.audit()
    assert log_of(caplog, "there is too much unfinished input")


async def test_a_client_of_mqtt_5_is_told_why() -> None:
    async with running(patience=0.5) as relay, dial(relay.port) as client:
        connect = b"\x10\x10\0\4MQTT\5\2\0\0\0\0\3abc"
        await client.stream.send_all(connect + b"\x30\xff\xff\x01" + bytes(8 * KIB))
        said = b""
        while data := await client.stream.receive_some():
            said += data
        _, _, left = said.partition(b"\xe0")
        assert left[1] == Reason.QUOTA_EXCEEDED
        assert b"made no progress for 0.5 s" in left


async def test_a_packet_without_progress_ends_without_a_keep_alive() -> None:
    async with running(patience=0.5) as relay, connected(relay.port, "a", keep_alive=0) as client:
        await client.stream.send_all(PUBLISH[: FREE_BYTES + 1])
        assert await client.gone() == []
        await relay.deserted()


async def test_what_waits_for_its_turn_or_for_funds_is_on_the_account() -> None:
    async with (
        running(limit_items=10, patience=30, input_limit=1 << 20) as relay,
        connected(relay.port, "sub") as subscriber,
        connected(relay.port, "pub") as publisher,
    ):
        await subscriber.subscribe("t", qos=1)
        flood = b"".join(
            encode(Publish("t", bytes(1000), qos=1, packet_id=n + 1)) for n in range(1000)
        )
        with trio.move_on_after(1):
            await publisher.stream.send_all(flood)
        book = relay.relay.input
        assert FREE_BYTES < book.nbytes <= 128 * KIB + 64 * KIB
        relay.audit()


async def test_a_will_is_in_its_owners_quota_for_as_long_as_it_is_kept() -> None:
    will = Will("w", b"bye")
    async with running(quota_bytes=1_000) as relay:
        for leaves in (True, False):
            async with connected(relay.port, "a", will=will) as client:
                standing = relay.ledger.standing_of(relay.account("a").name)
                assert (standing.items, standing.bytes) == (1, 516)
                if leaves:
                    await client.send(Disconnect())
            await relay.deserted()
            assert (relay.ledger.all_standing.items, relay.relay.mqtt.will_room.nbytes) == (0, 0)
        async with dial(relay.port) as client:
            large = Connect("b", True, 0, None, None, Will("w", bytes(500)))
            await client.stream.send_all(client.connection.send(large))
            await client.expect(ConnAck(False, ConnectReturnCode.SERVER_UNAVAILABLE))
            assert await client.gone() == []
        await relay.deserted()
        assert relay.ledger.all_standing.items == 0


async def test_so_is_what_a_syndicate_peer_has_not_finished() -> None:
    listen = ("mqtt+tcp://127.0.0.1:0", "syndicate+tcp://127.0.0.1:0")
    begin = b"\xb5\xb1\xa0\x8d\x06" + bytes(50 * KIB)  # a sequence, a string of 100,000 bytes
    async with running(listen=listen, patience=1.0) as relay:
        book = relay.relay.input
        port = int(relay.addresses.listening[1].rpartition(":")[2])
        async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
            await stream.send_all(begin)
            await until(lambda: book.nbytes >= 50 * KIB)
            relay.audit()
            with suppress(trio.BrokenResourceError):
                while await stream.receive_some():  # it may say why
                    pass
        await until(lambda: not book.nbytes and not book.shares)
        assert relay.relay.internal_errors == 0
        assert book.cut == 1


async def test_so_is_a_websocket_message_that_is_not_complete() -> None:
    listen = ("mqtt+tcp://127.0.0.1:0", "syndicate+ws://127.0.0.1:0")
    async with running(listen=listen, patience=1.0) as relay:
        book = relay.relay.input
        port = int(relay.addresses.listening[1].rpartition(":")[2].rstrip("/"))
        async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
            await stream.send_all(
                b"GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n"
                b"Connection: Upgrade\r\n"
                b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
            )
            assert b"101" in await stream.receive_some()
            frame = b"\x82\xff" + (200 * KIB).to_bytes(8) + b"mask"
            await stream.send_all(frame + bytes(100 * KIB))
            await until(lambda: book.nbytes == 100 * KIB)
            relay.audit()
            said = b""
            with suppress(trio.BrokenResourceError):
                while data := await stream.receive_some():
                    said += data
            assert b"made no progress" in said
        await until(lambda: not book.nbytes and not book.shares)
        relay.audit()


class Anybody:
    """Believes whoever names a user."""

    def check(self, user: str, password: bytes) -> bool:
        return True


async def test_a_verified_user_has_a_share_wherever_it_comes_from() -> None:
    async with running(passwords=Anybody(), user_input_limit=100 * KIB) as relay:
        async with (
            connected(relay.port, "a", username="ann", password=b"") as first,
            connected(relay.port, "b", username="ann", password=b"") as second,
            connected(relay.port, "c", username="bob", password=b"") as other,
        ):
            for client in (first, other):
                await client.stream.send_all(PUBLISH[: 70 * KIB])
            book = relay.relay.input
            await until(lambda: book.nbytes == 140 * KIB)
            assert set(book.shares) == {"input/user/ann", "input/user/bob"}
            await trio.sleep(0.6)
            await second.stream.send_all(PUBLISH[: 70 * KIB])
            assert await first.gone() == []
            await until(lambda: book.nbytes == 140 * KIB)
            assert book.cut == 1
            relay.audit()
        await relay.deserted()
