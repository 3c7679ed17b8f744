"""A relay of two protocols: who serves which listener, with what settings, and what is counted."""

from __future__ import annotations

import subprocess
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
import trio

from clearfunds.accounts import Limit
from clearfunds.relay import RelaySettings, serve_relay
from clearfunds.transports import (
    Link,
    ListenError,
    ListenURLError,
    mqtt,
    syndicate,
)
from clearfunds.transports.mqtt import PingReq, PingResp, TopicLimits
from clearfunds.transports.mqtt.server._inflight import DEFAULT_MAX_INFLIGHT
from clearfunds.transports.syndicate._server import SyndicateServer
from tests.transports.peers import RunningRelay, connected, running, until

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

MQTT = "mqtt+tcp://127.0.0.1:0"
SYNDICATE = "syndicate+tcp://127.0.0.1:0"
KEY = bytes(range(32))

SYNC = b"[[0 <S #:[0 0]>]]\n"
SYNCED = b"[[0 <M #t>]]\n"


def port(relay: RunningRelay, protocol: str) -> int:
    (url,) = [url for url in relay.addresses.listening if url.startswith(protocol)]
    return int(url.partition("?")[0].rpartition(":")[2])


@asynccontextmanager
async def syndicate_client(relay: RunningRelay) -> AsyncGenerator[trio.SocketStream]:
    """Connect a client that speaks text, and wait until the dataspace has answered it."""
    async with await trio.open_tcp_stream("127.0.0.1", port(relay, "syndicate")) as stream:
        await stream.send_all(SYNC)
        assert await said(stream, len(SYNCED)) == SYNCED
        yield stream


async def said(stream: trio.SocketStream, size: int) -> bytes:
    """Read so many bytes, or what comes before the end."""
    came = b""
    with trio.fail_after(10):
        while len(came) < size and (piece := await stream.receive_some(size - len(came))):
            came += piece
    return came


# -- settings -------------------------------------------------------------------------------------


def test_the_defaults_are_those_of_the_protocols() -> None:
    # They are written down twice: a codec does not import the settings, nor they a codec.
    settings, topics = RelaySettings(), TopicLimits()
    assert settings.max_packet_size == mqtt.DEFAULT_MAX_PACKET_SIZE
    assert settings.max_packet_size == syndicate.DEFAULT_MAX_PACKET_SIZE
    assert settings.max_topic_length == topics.max_length
    assert settings.max_topic_levels == topics.max_levels
    assert settings.max_awaiting_release == mqtt.MAX_PACKET_ID
    assert settings.max_inflight == DEFAULT_MAX_INFLIGHT
    assert settings.max_text_size == syndicate.DEFAULT_MAX_TEXT_SIZE
    assert settings.max_depth == syndicate.DEFAULT_MAX_DEPTH
    assert settings.max_references == syndicate.DEFAULT_MAX_REFERENCES
    assert settings.max_assertions == syndicate.DEFAULT_MAX_ASSERTIONS
    assert settings.max_caveats_size == syndicate.DEFAULT_MAX_CAVEATS_SIZE


async def test_every_protocol_has_the_settings_themselves() -> None:
    async with running(listen=(SYNDICATE, MQTT), limit_items=22, limit_bytes=23) as relay:
        sides = relay.relay.sides
        assert len(sides) == 2
        for side in sides:
            assert side.settings is relay.relay.settings
            assert side.settings.limit == Limit(items=22, bytes=23)


@pytest.mark.parametrize(
    ("name", "value"),
    [("max_inflight", 0), ("max_inflight", 65_536), ("max_topic_alias", -1), ("otel_every", 0.0)],
)
def test_a_value_out_of_its_range_is_refused(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{name} must be from"):
        RelaySettings(**{name: value})  # type: ignore[arg-type]


# -- listeners ------------------------------------------------------------------------------------


async def test_each_listener_is_served_by_its_protocol(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served: list[tuple[str, bool, bool]] = []

    async def handle(
        self: SyndicateServer, link: Link, listener: str, gatekeeper: bool, websocket: bool
    ) -> None:
        served.append((listener, gatekeeper, websocket))
        link.close()
        await trio.lowlevel.checkpoint()

    monkeypatch.setattr(SyndicateServer, "handle", handle)
    path = tmp_path / "relay.sock"
    urls = (
        SYNDICATE,
        f"{SYNDICATE}?gatekeeper",
        "syndicate+ws://127.0.0.1:0",
        "syndicate+ws://127.0.0.1:0?gatekeeper",
        f"syndicate+unix://{path}?gatekeeper",
        MQTT,
    )
    async with running(listen=urls, sturdy_key=KEY) as relay:
        listening = relay.addresses.listening
        assert [url.rpartition(":")[0] for url in listening[:4]] == [
            url.rpartition(":")[0] for url in urls[:4]
        ]
        assert [url.endswith("?gatekeeper") for url in listening] == [
            *(False, True, False, True, True, False)
        ]
        ports = [int(url.partition("?")[0].rpartition(":")[2]) for url in listening[:4]]
        for number in ports:
            stream = await trio.open_tcp_stream("127.0.0.1", number)
            assert await said(stream, 1) == b""
            await stream.aclose()
        async with await trio.open_unix_socket(path) as stream:
            assert await said(stream, 1) == b""
        async with connected(port(relay, "mqtt")) as client:
            await client.send(PingReq())
            await client.expect(PingResp())
        assert served == [
            (f"syndicate:{ports[0]}", False, None),
            (f"syndicate:{ports[1]}", True, None),
            (f"syndicate:{ports[2]}", False, True),
            (f"syndicate:{ports[3]}", True, True),
            (f"syndicate:{path}", True, False),
        ]


async def test_a_gatekeeper_needs_a_key(tmp_path: Path) -> None:
    path = tmp_path / "relay.sock"
    settings = RelaySettings(
        listen=(f"syndicate+unix://{path}", "syndicate+tcp://127.0.0.1:0?gatekeeper")
    )
    with pytest.raises(ListenURLError, match=r"gatekeeper needs a key .* --sturdy-key-file"):
        await serve_relay(settings)
    # Nothing was opened before that was known.
    assert not path.exists()


# -- the extra ------------------------------------------------------------------------------------

WITHOUT_THE_EXTRA = """\
import sys, trio
sys.modules.update({name: None for name in %r})
from clearfunds.relay import RelaySettings, serve_relay
from clearfunds.transports import ListenError

async def main(url):
    async with trio.open_nursery() as nursery:
        await nursery.start(serve_relay, RelaySettings(listen=(url,)))
        nursery.cancel_scope.cancel()

trio.run(main, "mqtt+tcp://127.0.0.1:0")
print("mqtt is served")
try:
    trio.run(serve_relay, RelaySettings(listen=("syndicate+tcp://127.0.0.1:0",)))
except ListenError as error:
    print(error)
"""


@pytest.mark.parametrize("missing", ["h11", "preserves", "wsproto"])
def test_mqtt_needs_no_extra_and_syndicate_says_what_to_install(missing: str) -> None:
    run = subprocess.run(
        [sys.executable, "-c", WITHOUT_THE_EXTRA % [missing]],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout == (
        f"mqtt is served\nSyndicate needs {missing}, which is not installed: "
        'pip install "clearfunds[relay]"\n'
    )


async def test_a_fault_of_the_side_itself_is_not_taken_for_that(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "clearfunds.transports.syndicate._server", None)
    with pytest.raises(ModuleNotFoundError, match="_server") as caught:
        await serve_relay(RelaySettings(listen=(SYNDICATE,)))
    assert not isinstance(caught.value, ListenError)


# -- what is counted ------------------------------------------------------------------------------


async def test_a_protocol_that_nobody_listens_for_is_not_counted() -> None:
    async with running(listen=(MQTT,)) as relay:
        assert relay.relay.syndicate is None
        assert relay.relay.counts().keys() == {"mqtt"}


async def test_each_protocol_has_its_own_counts() -> None:
    async with running(listen=(MQTT, SYNDICATE)) as relay:
        counts = relay.relay.counts
        assert counts().keys() == {"mqtt", "syndicate"}
        async with syndicate_client(relay), connected(port(relay, "mqtt")):
            async with syndicate_client(relay):
                assert counts()["syndicate"].connections == 2
                assert counts()["syndicate"].received_bytes_total == 2 * len(SYNC)
            await until(lambda: counts()["syndicate"].connections == 1)
            assert counts()["mqtt"].connections == 1
            assert counts()["mqtt"].accepted_connections_total == 1
            assert counts()["syndicate"].accepted_connections_total == 2
        async with await trio.open_tcp_stream("127.0.0.1", port(relay, "syndicate")) as stream:
            await stream.send_all(b"GET / HTTP/1.1\r\n\r\n")
            await until(lambda: counts()["syndicate"].broken_connections_total == 1)
        assert counts()["mqtt"].broken_connections_total == 0


async def test_what_is_delivered_is_counted_once() -> None:
    async with (
        running(listen=(MQTT, SYNDICATE)) as relay,
        syndicate_client(relay) as observer,
        syndicate_client(relay) as publisher,
    ):
        await observer.send_all(b"[[0 <A <Observe <bind <group <rec Says> {}>> #:[0 0]> 1>]]\n")
        await until(lambda: relay.relay.counts()["syndicate"].subscriptions == 1)
        await publisher.send_all(b'[[0 <M <Says "a">>] [0 <M <Thinks "b">>]]\n')
        assert await said(observer, 1) == b"["
        await until(lambda: relay.relay.counts()["syndicate"].messages_received_total == 2)
        counts = relay.relay.counts().values()
        assert sum(count.messages_delivered_total for count in counts) == 1
        assert sum(count.messages_unroutable_total for count in counts) == 1
        assert sum(count.subscriptions for count in counts) == 1


# -- the end --------------------------------------------------------------------------------------


async def test_a_stop_ends_the_connections_of_both() -> None:
    async with (
        running(listen=(MQTT, SYNDICATE), grace=600) as relay,
        syndicate_client(relay) as one,
        connected(port(relay, "mqtt")) as other,
    ):
        relay.stop.set()
        assert await said(one, 1) == b""
        assert await other.gone() == []
    assert relay.report is not None
    assert relay.report.unflushed == ()


async def test_connections_of_all_protocols_are_counted_together() -> None:
    listen = ("mqtt+tcp://127.0.0.1:0", "syndicate+tcp://127.0.0.1:0")
    async with running(listen=listen, max_connections=2) as relay:
        ports = [int(url.rpartition(":")[2]) for url in relay.addresses.listening]
        streams = [await trio.open_tcp_stream("127.0.0.1", port) for port in ports]
        sides = [relay.relay.mqtt, relay.relay.syndicate]
        await until(lambda: [len(side.open) for side in sides if side is not None] == [1, 1])
        for port in ports:
            async with await trio.open_tcp_stream("127.0.0.1", port) as refused:
                with trio.fail_after(10):
                    assert await refused.receive_some() == b""
        for stream in streams:
            await stream.aclose()
