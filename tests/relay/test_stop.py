"""How a relay ends: in order, with what is owed sent, and a word about what could not be."""

from __future__ import annotations

import gc
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import trio

from clearfunds.relay import RelayAddresses, RelayReport, RelaySettings, serve_relay
from clearfunds.transports import ListenError, ListenURLError
from clearfunds.transports.mqtt import PingReq, PubAck, Publish, Will, encode
from tests.transports.peers import connected, descriptors, dial, log_of, running, until

LITTLE = 4096


async def test_a_relay_without_clients_ends_at_once() -> None:
    async with running(grace=30) as relay:
        relay.stop.set()
        with trio.fail_after(5):
            await until(lambda: not relay.relay.mqtt.open)
    assert relay.report == RelayReport(())


async def test_what_is_owed_is_sent() -> None:
    async with (
        running(grace=20) as relay,
        connected(relay.port, "slow", receive_buffer=LITTLE) as slow,
        connected(relay.port, "idle") as idle,
        connected(relay.port, "pub") as pub,
    ):
        await slow.subscribe("t")
        for n in range(40):
            await pub.publish("t", b"%02d" % n + bytes(100_000), 1, packet_id=n + 1)
            await pub.expect(PubAck(n + 1))
        assert relay.account("pub").debt_items > 0
        relay.stop.set()
        # Who is owed nothing is let go; who is owed something gets all of it.
        assert await idle.gone() == []
        got = await slow.gone()
        assert [p.payload[:2] for p in got if isinstance(p, Publish)] == [
            b"%02d" % n for n in range(40)
        ]
    assert relay.report == RelayReport(())


async def test_what_is_owed_with_qos_1_is_sent_and_acknowledged() -> None:
    """More than the window of those under way: acknowledgements are still read."""
    async with (
        running(grace=20, max_inflight=4) as relay,
        connected(relay.port, "sub") as sub,
        connected(relay.port, "pub") as pub,
    ):
        await sub.subscribe("t", qos=1)
        for n in range(50):
            await pub.publish("t", b"%02d" % n, 1, packet_id=n + 1)
            await pub.expect(PubAck(n + 1))
        relay.stop.set()
        await until(lambda: relay.relay.mqtt.stopping)
        await sub.send(PingReq(), Publish("t", b"too late"))
        got: list[bytes] = []
        while (packet := await sub.receive()) is not None:
            if isinstance(packet, Publish):
                got.append(packet.payload)
                await sub.send(PubAck(packet.packet_id))
        assert got == [b"%02d" % n for n in range(50)]
    assert relay.report == RelayReport(())


async def test_what_could_not_be_sent_is_said_when_the_grace_is_over(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with (
        running(grace=0.3) as relay,
        connected(relay.port, "stuck", receive_buffer=LITTLE) as stuck,
        connected(relay.port, "mute") as mute,
        connected(relay.port, "fine") as fine,
        connected(relay.port, "pub") as pub,
    ):
        await stuck.subscribe("t")
        await mute.subscribe("u", qos=1)
        await fine.subscribe("#")
        for _ in range(3):
            await pub.publish("u", b"x", 1)
        reading = trio.lowlevel.spawn_system_task(fine.gone)
        for _ in range(7):
            await pub.publish("t", bytes(1_000_000))
        await until(lambda: relay.account("pub").debt_items >= 3 + 1)
        began = trio.current_time()
        relay.stop.set()
        await until(lambda: not relay.relay.mqtt.open)
        assert trio.current_time() - began < 5
        del reading
    assert relay.report is not None
    first, second = relay.report.unflushed
    port = relay.port
    assert first == (
        f"mqtt:{port}/-/mute: 0 items (0 bytes) were not sent, 3 publications with QoS 1 were not "
        "acknowledged"
    )
    assert second.startswith(f"mqtt:{port}/-/stuck: ")
    assert "were not sent, 0 publications" in second


async def test_nothing_more_is_accepted() -> None:
    async with (
        running(grace=20) as relay,
        connected(relay.port, "slow", receive_buffer=LITTLE) as slow,
        connected(relay.port, "pub") as pub,
    ):
        await slow.subscribe("t")
        for _ in range(7):
            await pub.publish("t", b"before" + bytes(1_000_000))
        await pub.publish("end", b"", 1)
        await pub.expect(PubAck(1))
        relay.stop.set()
        await until(lambda: relay.relay.mqtt.stopping)
        await slow.publish("t", b"after")
        with pytest.raises(OSError, match="refused"):
            async with dial(relay.port):
                pass
        got = await slow.gone()
        assert [p.payload[:6] for p in got if isinstance(p, Publish)] == [b"before"] * 7


async def test_what_the_kernel_still_has_arrives_whatever_the_client_says_meanwhile() -> None:
    """A socket that is closed with input unread is reset, and what was on its way is dropped."""
    async with (
        running(grace=20) as relay,
        connected(relay.port, "busy", receive_buffer=LITTLE) as busy,
        connected(relay.port, "pub") as pub,
    ):
        await busy.subscribe("t")
        for n in range(10):
            await pub.publish("t", b"%d" % n + bytes(50_000), 1)
            await pub.expect(PubAck(1))
        assert relay.account("pub").debt_items == 0  # the kernel has all of it
        await busy.stream.send_all(encode(Publish("u", bytes(10_000))) * 20)
        relay.stop.set()
        got = await busy.gone()
        assert [p.payload[:1] for p in got if isinstance(p, Publish)] == [
            b"%d" % n for n in range(10)
        ]


async def test_a_client_that_does_not_close_is_not_waited_for() -> None:
    async with running(grace=20) as relay, connected(relay.port):
        began = trio.current_time()
        relay.stop.set()
        await until(lambda: not relay.relay.mqtt.open)
        assert trio.current_time() - began < 5


async def test_no_will_is_published() -> None:
    """It was not the clients who left."""
    async with (
        running(grace=20) as relay,
        connected(relay.port, "watcher") as watcher,
        connected(relay.port, "mortal", will=Will("wills", b"gone", retain=True)) as mortal,
    ):
        await watcher.subscribe("wills")
        relay.stop.set()
        assert await mortal.gone() == []
        await mortal.stream.aclose()
        await until(lambda: "mortal" not in relay.relay.mqtt.sessions)
        assert await watcher.gone() == []
        assert relay.relay.dataspace.retained.get("wills") is None


async def test_connections_come_in_until_it_stops() -> None:
    """Whoever is half way in when it stops is let go, and nothing goes wrong."""
    async with running(grace=1) as relay, trio.open_nursery() as nursery:

        async def come_and_go() -> None:
            while True:
                try:
                    async with connected(relay.port):
                        pass
                except (OSError, AssertionError, trio.BrokenResourceError):
                    if relay.stop.is_set():
                        return
                    raise

        for _ in range(20):
            nursery.start_soon(come_and_go)
        await trio.sleep(0.2)
        relay.stop.set()
    assert relay.relay.mqtt.counters.accepted > 20


async def test_cancellation_ends_it_at_once_and_nothing_is_left() -> None:
    gc.collect()  # what earlier tests have left must not vanish in between
    before = descriptors()
    async with AsyncExitStack() as stack:
        async with trio.open_nursery() as nursery:
            addresses: RelayAddresses = await nursery.start(
                serve_relay,
                RelaySettings(listen=("mqtt+tcp://127.0.0.1:0",), http="127.0.0.1:0", grace=60),
            )
            port = int(addresses.listening[0].rpartition(":")[2])
            clients = [await stack.enter_async_context(connected(port)) for _ in range(10)]
            await clients[0].subscribe("t")
            await clients[1].publish("t", bytes(2_000_000))
            nursery.cancel_scope.cancel()
        for client in clients[1:]:
            assert await client.gone() == []
    assert descriptors() == before


async def test_the_last_listener_that_cannot_be_opened_leaves_none(tmp_path: Path) -> None:
    path = tmp_path / "relay.sock"
    gc.collect()  # what earlier tests have left must not vanish in between
    before = descriptors()
    settings = RelaySettings(
        listen=("mqtt+tcp://127.0.0.1:0", f"mqtt+unix://{path}", "mqtt+tcp://192.0.2.1:1")
    )
    with pytest.raises(ListenError, match=r"192\.0\.2\.1"):
        await serve_relay(settings)
    assert descriptors() == before
    assert not path.exists()


async def test_nothing_to_listen_on_is_said() -> None:
    with pytest.raises(ListenURLError, match="no listener: give at least one URL"):
        await serve_relay(RelaySettings(listen=()))


async def test_the_log_says_that_it_stops(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    async with running(grace=3) as relay, connected(relay.port, "c") as client:
        relay.stop.set()
        assert await client.gone() == []
    assert log_of(caplog, "stopping; sending what is owed, for at most 3 s")
    assert log_of(caplog, "left: the relay stops")
