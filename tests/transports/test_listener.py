"""Where connections come in: URLs, sockets, and a listener that nothing of a peer's can stop."""

from __future__ import annotations

import errno
import logging
import os
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from clearfunds.transports import (
    Link,
    Listener,
    ListenError,
    ListenURL,
    ListenURLError,
    open_listeners,
)
from tests.transports.peers import until

PROTOCOLS = ("mqtt", "syndicate")
ANY_PORT = ListenURL("mqtt", "tcp", "127.0.0.1")

# -- shared ports ---------------------------------------------------------------------------------


async def test_a_shared_port_is_open_only_where_somebody_listens() -> None:
    (held,) = await open_listeners(ANY_PORT, shared=True)
    (other,) = await open_listeners(held.url, shared=True)
    with held, other:
        assert other.url == held.url
        with socket.socket() as client, pytest.raises(ConnectionRefusedError):
            client.connect(("127.0.0.1", held.url.port))
        other.listen()
        with pytest.raises(ListenError, match="in use"):
            await open_listeners(held.url)
        for _ in range(10):  # None of them waits at the one that does not listen.
            with socket.create_connection(("127.0.0.1", held.url.port)):
                other.sock.accept()[0].close()


async def test_a_system_that_cannot_share_ports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(socket, "SO_REUSEPORT")
    with pytest.raises(ListenError, match="this system cannot share a port"):
        await open_listeners(ANY_PORT, shared=True)


# -- URLs -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "parsed"),
    [
        ("mqtt+tcp://127.0.0.1:1883", ListenURL("mqtt", "tcp", "127.0.0.1", 1883)),
        ("mqtt+tcp://localhost:0", ListenURL("mqtt", "tcp", "localhost", 0)),
        ("syndicate+tcp://[::1]:8001", ListenURL("syndicate", "tcp", "::1", 8001)),
        ("mqtt+unix:///run/relay.sock", ListenURL("mqtt", "unix", path="/run/relay.sock")),
        ("syndicate+ws://127.0.0.1:8002", ListenURL("syndicate", "ws", "127.0.0.1", 8002)),
        ("syndicate+ws://[::]:0", ListenURL("syndicate", "ws", "::", 0)),
        ("mqtt+tls://127.0.0.1:8883", ListenURL("mqtt", "tls", "127.0.0.1", 8883)),
        ("mqtt+wss://[::]:8884", ListenURL("mqtt", "wss", "::", 8884)),
        (
            "syndicate+tcp://127.0.0.1:8001?gatekeeper",
            ListenURL("syndicate", "tcp", "127.0.0.1", 8001, gatekeeper=True),
        ),
        (
            "syndicate+ws://[::1]:8002?gatekeeper",
            ListenURL("syndicate", "ws", "::1", 8002, gatekeeper=True),
        ),
        (
            "syndicate+unix:///run/relay.sock?gatekeeper",
            ListenURL("syndicate", "unix", path="/run/relay.sock", gatekeeper=True),
        ),
    ],
)
def test_a_url_is_taken_apart_and_put_together(url: str, parsed: ListenURL) -> None:
    assert ListenURL.parse(url, PROTOCOLS) == parsed
    assert str(parsed) == url


@pytest.mark.parametrize(
    ("url", "parsed"),
    [
        ("mqtt://0.0.0.0", ListenURL("mqtt", "tcp", "0.0.0.0", 1883)),
        ("mqtt://127.0.0.1:0", ListenURL("mqtt", "tcp", "127.0.0.1", 0)),
        ("mqtts://[::1]", ListenURL("mqtt", "tls", "::1", 8883)),
        ("amqp://localhost", ListenURL("amqp", "tcp", "localhost", 5672)),
        ("amqps://localhost:7000/", ListenURL("amqp", "tls", "localhost", 7000)),
    ],
)
def test_what_clients_write_is_understood(url: str, parsed: ListenURL) -> None:
    assert ListenURL.parse(url, ("mqtt", "amqp")) == parsed


def test_a_slash_before_the_query_is_no_matter() -> None:
    parsed = ListenURL.parse("syndicate+ws://127.0.0.1:8002/?gatekeeper", PROTOCOLS)
    assert str(parsed) == "syndicate+ws://127.0.0.1:8002?gatekeeper"


KNOWN = (
    r"must begin with one of mqtt://, mqtts://, "
    r"mqtt\+tcp://, mqtt\+tls://, mqtt\+unix://, mqtt\+ws://, mqtt\+wss://, syndicate\+tcp://, "
    r"syndicate\+tls://, syndicate\+unix://, syndicate\+ws://, syndicate\+wss://$"
)
SYNDICATE_TCP = r"write syndicate\+tcp://host:port, with \?gatekeeper or nothing more"


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("tcp://127.0.0.1:1883", KNOWN),
        ("syndicate+quic://127.0.0.1:1883", KNOWN),
        ("mqtt+tcp://127.0.0.1:1883?gatekeeper", r"mqtt\+tcp://host:port and nothing more"),
        ("mqtt+unix:///run/a?b", r"mqtt\+unix:///absolute/path and nothing more"),
        ("mqtt+unix:///run/a#b", r"mqtt\+unix:///absolute/path and nothing more"),
        ("syndicate+tcp://127.0.0.1:8001?gatekeepr", SYNDICATE_TCP),
        ("syndicate+tcp://127.0.0.1:8001?gatekeeper=yes", SYNDICATE_TCP),
        ("syndicate+tcp://127.0.0.1:8001?gatekeeper&gatekeeper", SYNDICATE_TCP),
        ("syndicate+tcp://127.0.0.1:8001?gatekeeper#here", SYNDICATE_TCP),
        ("syndicate+ws://127.0.0.1:8001/path", r"syndicate\+ws://host:port and nothing more"),
        ("syndicate+ws://127.0.0.1", r"syndicate\+ws://host:port \(port 0: any free\)"),
        ("syndicate+unix:///run/a?b", r"unix:///absolute/path, with \?gatekeeper or nothing more"),
        ("amqp+tcp://127.0.0.1:5672", "must begin with one of"),
        ("amqps://127.0.0.1:5671", "must begin with one of"),
        ("mqtts://:8883", r"mqtt\+tls://host:port"),
        ("mqtt://user@127.0.0.1", r"mqtt\+tcp://host:port and nothing more"),
        ("mqtt+tls://127.0.0.1", r"mqtt\+tls://host:port \(port 0: any free\)"),
        ("127.0.0.1:1883", "must begin with one of"),
        ("mqtt+tcp://127.0.0.1", r"host:port \(port 0: any free\)"),
        ("mqtt+tcp://:1883", "host:port"),
        ("mqtt+tcp://127.0.0.1:99999", "a number from 0 to 65535"),
        ("mqtt+tcp://127.0.0.1:port", "cannot listen on"),
        ("mqtt+tcp://127.0.0.1:1883/topic", "and nothing more"),
        ("mqtt+tcp://user@127.0.0.1:1883", "and nothing more"),
        ("mqtt+tcp://127.0.0.1:1883?a=b", "and nothing more"),
        ("mqtt+unix://relay.sock", r"mqtt\+unix:///absolute/path"),
        ("mqtt+unix://", r"mqtt\+unix:///absolute/path"),
        ("mqtt+tcp://[::1:1883", "cannot listen on"),
    ],
)
def test_what_is_no_url_says_what_to_write(url: str, message: str) -> None:
    with pytest.raises(ListenURLError, match=message) as caught:
        ListenURL.parse(url, PROTOCOLS)
    assert repr(url) in str(caught.value)
    assert str(caught.value).count("cannot listen on") == 1


# -- opening --------------------------------------------------------------------------------------


async def test_port_0_is_any_that_is_free() -> None:
    (listener,) = await open_listeners(ANY_PORT)
    with listener:
        assert listener.url.port == listener.sock.getsockname()[1] != 0
        assert listener.label == f"mqtt:{listener.url.port}"
        assert repr(listener) == f"<Listener mqtt+tcp://127.0.0.1:{listener.url.port}>"
        assert not listener.sock.getblocking()
        socket.create_connection(("127.0.0.1", listener.url.port), 10).close()


async def test_a_websocket_listener_is_one_for_tcp() -> None:
    url = ListenURL("syndicate", "ws", "127.0.0.1", gatekeeper=True)
    async with accepting(url) as (listener, links):
        port = listener.url.port
        assert port == listener.sock.getsockname()[1] != 0
        assert str(listener.url) == f"syndicate+ws://127.0.0.1:{port}?gatekeeper"
        assert listener.label == f"syndicate:{port}"
        with socket.create_connection(("127.0.0.1", port), 10) as client:
            await until(lambda: links)
            assert links[0].peer == f"127.0.0.1:{client.getsockname()[1]}"
            sock = links[0].sock
            assert isinstance(sock, socket.socket)
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


async def test_the_query_is_no_part_of_a_unix_socket(tmp_path: Path) -> None:
    path = str(tmp_path / "relay.sock")
    (listener,) = await open_listeners(
        ListenURL.parse(f"syndicate+unix://{path}?gatekeeper", PROTOCOLS)
    )
    with listener, socket.socket(socket.AF_UNIX) as client:
        assert listener.label == f"syndicate:{path}"
        client.connect(path)


async def test_each_address_of_a_host_has_the_same_port(monkeypatch: pytest.MonkeyPatch) -> None:
    async def two(*args: object, **kwargs: object) -> list[object]:
        await trio.lowlevel.checkpoint()
        family = (socket.AF_INET, socket.SOCK_STREAM, 6, "")
        return [(*family, ("127.0.0.1", 0)), (*family, ("127.0.0.2", 0))]

    monkeypatch.setattr(trio.socket, "getaddrinfo", two)
    listeners = await open_listeners(ListenURL("mqtt", "tcp", "somewhere"))
    ports = {listener.sock.getsockname()[1] for listener in listeners}
    hosts = [listener.sock.getsockname()[0] for listener in listeners]
    for listener in listeners:
        listener.close()
    assert hosts == ["127.0.0.1", "127.0.0.2"]
    assert len(ports) == 1


async def test_if_one_address_cannot_be_had_none_stays_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def two(*args: object, **kwargs: object) -> list[object]:
        await trio.lowlevel.checkpoint()
        family = (socket.AF_INET, socket.SOCK_STREAM, 6, "")
        return [(*family, ("127.0.0.1", 0)), (*family, ("192.0.2.1", 0))]  # not one of ours

    monkeypatch.setattr(trio.socket, "getaddrinfo", two)
    before = os.listdir("/proc/self/fd")
    with pytest.raises(ListenError, match=r"cannot listen on mqtt\+tcp://somewhere"):
        await open_listeners(ListenURL("mqtt", "tcp", "somewhere"))
    assert os.listdir("/proc/self/fd") == before


async def test_a_port_in_use_says_so() -> None:
    (listener,) = await open_listeners(ANY_PORT)
    with listener, pytest.raises(ListenError, match="in use; end the program that listens"):
        await open_listeners(listener.url)


async def test_an_unknown_host_says_so() -> None:
    with pytest.raises(ListenError, match=r"cannot listen on mqtt\+tcp://no\.such\.invalid:1"):
        await open_listeners(ListenURL("mqtt", "tcp", "no.such.invalid", 1))


# -- Unix sockets ---------------------------------------------------------------------------------


async def test_a_unix_socket_has_a_file_as_long_as_it_listens(tmp_path: Path) -> None:
    url = ListenURL("mqtt", "unix", path=str(tmp_path / "relay.sock"))
    (listener,) = await open_listeners(url)
    assert listener.url == url
    assert listener.label == f"mqtt:{url.path}"
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(url.path)
    listener.close()
    listener.close()
    assert not os.path.exists(url.path)  # noqa: ASYNC240


async def test_a_file_that_nobody_listens_on_is_replaced(tmp_path: Path) -> None:
    url = ListenURL("mqtt", "unix", path=str(tmp_path / "relay.sock"))
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(url.path)
    (listener,) = await open_listeners(url)
    with listener, socket.socket(socket.AF_UNIX) as client:
        client.connect(url.path)


async def test_a_file_that_somebody_listens_on_is_left_alone(tmp_path: Path) -> None:
    url = ListenURL("mqtt", "unix", path=str(tmp_path / "relay.sock"))
    (first,) = await open_listeners(url)
    with first:
        with pytest.raises(ListenError, match="in use"):
            await open_listeners(url)
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(url.path)


async def test_a_file_that_is_no_socket_is_left_alone(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("data")
    with pytest.raises(ListenError, match="in use"):
        await open_listeners(ListenURL("mqtt", "unix", path=str(precious)))
    assert precious.read_text() == "data"


async def test_a_folder_that_is_not_there_says_so(tmp_path: Path) -> None:
    with pytest.raises(ListenError, match="No such file"):
        await open_listeners(ListenURL("mqtt", "unix", path=str(tmp_path / "no" / "relay.sock")))


# -- accepting ------------------------------------------------------------------------------------


@asynccontextmanager
async def accepting(url: ListenURL) -> AsyncGenerator[tuple[Listener, list[Link]]]:
    """Accept on `url`; the handler keeps each link open until the end of the block."""
    links: list[Link] = []

    async def handler(link: Link) -> None:
        links.append(link)
        try:
            await trio.sleep_forever()
        finally:
            link.close()

    (listener,) = await open_listeners(url)
    with listener:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(listener.serve, handler)
            yield listener, links
            nursery.cancel_scope.cancel()
    assert all(link.closed for link in links)


async def test_a_handler_runs_for_each_connection() -> None:
    async with accepting(ANY_PORT) as (listener, links):
        clients = [socket.create_connection(("127.0.0.1", listener.url.port)) for _ in range(100)]
        await until(lambda: len(links) == 100)
        named = {f"127.0.0.1:{client.getsockname()[1]}" for client in clients}
        assert {link.peer for link in links} == named
        for link in links:
            assert isinstance(link.sock, socket.socket)
            assert not link.sock.getblocking()
            assert link.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        for client in clients:
            client.close()


async def test_peers_of_a_unix_socket_have_names_of_their_own(tmp_path: Path) -> None:
    url = ListenURL("mqtt", "unix", path=str(tmp_path / "relay.sock"))
    async with accepting(url) as (_, links):
        with socket.socket(socket.AF_UNIX) as one, socket.socket(socket.AF_UNIX) as two:
            one.connect(url.path)
            two.connect(url.path)
            await until(lambda: len(links) == 2)
            assert len({link.peer for link in links}) == 2
            assert all(link.peer.startswith(f"{url.path}#") for link in links)


async def test_who_stops_accepting_leaves_the_connections_be() -> None:
    (listener,) = await open_listeners(ANY_PORT)
    said: list[bytes] = []

    async def handler(link: Link) -> None:
        said.append(await link.receive())
        link.close()

    with listener:
        async with trio.open_nursery() as connections:
            accept = trio.CancelScope()

            async def accepting() -> None:
                with accept:
                    await listener.accept_into(connections, handler)

            connections.start_soon(accepting)
            with socket.create_connection(("127.0.0.1", listener.url.port)) as client:
                await wait_all_tasks_blocked()
                accept.cancel()
                await wait_all_tasks_blocked()
                assert not said
                client.send(b"still here")
                await until(lambda: said)
    assert said == [b"still here"]


async def test_no_descriptor_left_is_a_pause_and_a_log_line(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection stays in the kernel's queue, and is accepted when there is one again."""
    monkeypatch.setattr("clearfunds.transports._listener.ACCEPT_PAUSE_SECONDS", 0.01)
    async with accepting(ANY_PORT) as (listener, links):
        full = True
        sock = listener.sock

        class Full:
            def accept(self) -> object:
                if full:
                    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
                return sock.accept()

            def fileno(self) -> int:
                return sock.fileno()

        monkeypatch.setattr(listener, "sock", Full())
        with socket.create_connection(("127.0.0.1", listener.url.port)):
            await until(lambda: "Too many open files" in caplog.text)
            assert not links
            full = False
            await until(lambda: links)
        monkeypatch.setattr(listener, "sock", sock)
    assert f"{listener.url}: cannot accept for now" in caplog.text
    assert all(record.levelno == logging.WARNING for record in caplog.records)


async def test_a_connection_that_has_gone_again_is_no_matter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with accepting(ANY_PORT) as (listener, links):
        sock = listener.sock
        faults = [errno.ECONNABORTED, errno.EPROTO, errno.EPERM]

        class Faulty:
            def accept(self) -> object:
                if faults:
                    raise OSError(faults.pop(), "gone")
                return sock.accept()

            def fileno(self) -> int:
                return sock.fileno()

        monkeypatch.setattr(listener, "sock", Faulty())
        with socket.create_connection(("127.0.0.1", listener.url.port)):
            await until(lambda: links)
        monkeypatch.setattr(listener, "sock", sock)
    assert not faults


async def test_closing_while_a_connection_comes_in_is_no_error() -> None:
    """Both are found ready by one look of the loop, and which task runs first is for chance."""
    for _ in range(40):
        (listener,) = await open_listeners(ANY_PORT)
        alarm = os.dup(listener.sock.fileno())
        async with trio.open_nursery() as nursery:

            async def closing(listener: Listener = listener, alarm: int = alarm) -> None:
                await trio.lowlevel.wait_readable(alarm)
                listener.close()

            async def handler(link: Link) -> None:
                await trio.lowlevel.checkpoint()
                link.close()

            accept = trio.CancelScope()

            async def accepting(
                listener: Listener = listener,
                accept: trio.CancelScope = accept,
                nursery: trio.Nursery = nursery,
            ) -> None:
                with accept:
                    await listener.accept_into(nursery, handler)

            nursery.start_soon(closing)
            nursery.start_soon(accepting)
            await wait_all_tasks_blocked()
            with socket.create_connection(("127.0.0.1", listener.url.port)):
                await wait_all_tasks_blocked()
                accept.cancel()
        os.close(alarm)


@pytest.mark.parametrize("transport", ["ws", "wss"])
def test_what_is_not_spoken_over_websocket(transport: str) -> None:
    with pytest.raises(ListenURLError, match="subscribe does not run over WebSocket"):
        ListenURL.parse(f"subscribe+{transport}://127.0.0.1:8083", ("mqtt", "subscribe"))
