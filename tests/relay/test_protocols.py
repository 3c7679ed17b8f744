"""A relay of two protocols: who serves which listener, with what settings, and what is counted."""

from __future__ import annotations

import subprocess
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import attrs
import pytest
import trio

from clearfunds.accounts import Limit, StuckPolicy
from clearfunds.relay import RelaySettings, serve_relay
from clearfunds.transports import Link, ListenError, ListenURLError, SubscriptionPolicy
from clearfunds.transports.mqtt import PingReq, PingResp
from clearfunds.transports.syndicate._server import SyndicateServer
from clearfunds.transports.syndicate._settings import SyndicateSettings
from tests.transports.peers import RunningRelay, connected, running, until

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

MQTT = "mqtt+tcp://127.0.0.1:0"
SYNDICATE = "syndicate+tcp://127.0.0.1:0"
KEY = bytes(range(32))

#: Where `RelaySettings` and `SyndicateSettings` differ in names.
NAMES: dict[str, str] = {
    "max_observations": "max_subscriptions",
    "oid": "sturdy_oid",
    "key": "sturdy_key",
    "origins": "origin",
    "subscription_policies": "subscription_policy",
}

# Made of several of the relay's.
LIMITS = {"limit", "account_limits", "behind"}

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


def test_the_defaults_are_those_of_the_protocol() -> None:
    # They are written down twice: the protocol's cannot be imported without the extra.
    relay, syndicate = RelaySettings(), SyndicateSettings()
    for field in attrs.fields(SyndicateSettings):
        if field.name not in LIMITS:
            name = NAMES.get(field.name) or field.name
            assert getattr(relay, name) == getattr(syndicate, field.name), name
    assert syndicate.limit == Limit(items=relay.limit_items, bytes=relay.limit_bytes)
    assert syndicate.behind == Limit(items=relay.behind_items, bytes=relay.behind_bytes)


async def test_every_setting_reaches_the_protocol() -> None:
    told: dict[str, Any] = {
        "max_connections": 11,
        "max_packet_size": 12,
        "max_text_size": 13,
        "max_depth": 14,
        "max_references": 15,
        "max_assertions": 16,
        "max_observations": 17,
        "max_caveats_size": 18,
        "max_turn_deliveries": 24,
        "connect_timeout": 19.0,
        "idle_timeout": 20.0,
        "patience": 21.0,
        "stuck": "wait",
        "subscription_policies": (SubscriptionPolicy("a", "#", "disconnect"),),
        "behind_limit": 25,
        "resolve_answer": "accepted",
        "turn_credit": "off",
        "oid": "x",
        "key": KEY,
        "origins": ("https://here.example",),
    }
    settings = {NAMES.get(name, name): value for name, value in told.items()}
    expected: dict[str, Any] = {**told, "stuck": StuckPolicy.WAIT}
    settings |= {"limit_items": 22, "limit_bytes": 23, "behind_items": 26, "behind_bytes": 27}
    async with running(listen=(SYNDICATE,), **settings) as relay:
        assert relay.relay.syndicate is not None
        assert relay.relay.syndicate.settings == SyndicateSettings(
            limit=Limit(items=22, bytes=23), behind=Limit(items=26, bytes=27), **expected
        )
    assert told.keys() | LIMITS == {field.name for field in attrs.fields(SyndicateSettings)}


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
            (f"syndicate:{ports[0]}", False, False),
            (f"syndicate:{ports[1]}", True, False),
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
