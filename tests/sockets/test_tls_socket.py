"""A TLS socket: whatever the kernel takes of a send, and whatever comes."""

from __future__ import annotations

import random
import socket
import ssl
from collections.abc import Generator
from contextlib import contextmanager, suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clearfunds.sockets import TlsSocket, common_name, said
from clearfunds.sockets._tls_socket import RECORD_BYTES
from tests.transports.certificates import Papers, papers_in
from tests.transports.sockets import ReluctantSocket, reluctant_pair


@pytest.fixture(scope="module")
def papers(tmp_path_factory: pytest.TempPathFactory) -> Papers:
    return papers_in(tmp_path_factory.mktemp("papers"))


READ = 64 << 10


def both(
    papers: Papers,
    near: socket.socket,
    far: socket.socket,
    *,
    version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3,
    hostname: str = "localhost",
    user: str | None = None,
) -> tuple[TlsSocket, TlsSocket]:
    """Return the server's end and the client's, before the handshake."""
    context = papers.for_server(asks=user is not None).for_server()
    context.maximum_version = version
    trusting = papers.for_client(user).for_client()
    return (
        TlsSocket(near, context),
        TlsSocket(far, trusting, server_side=False, server_hostname=hostname),
    )


def shake(server: TlsSocket, client: TlsSocket) -> bool:
    """Let both do the handshake as far as they can; return whether it is over."""
    return client.shake_hands() & server.shake_hands()


@contextmanager
def connected(
    papers: Papers, version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3
) -> Generator[tuple[ReluctantSocket, TlsSocket, TlsSocket]]:
    """Give the socket below, the server's end on top of it, and the client's."""
    near, far = reluctant_pair()
    server, client = both(papers, near, far, version=version)
    while not shake(server, client):
        pass
    try:
        yield near, server, client
    finally:
        server.close()
        client.close()


def all_of(sock: TlsSocket) -> bytes:
    """Read what there is."""
    came = b""
    with suppress(BlockingIOError):
        while data := sock.recv(READ):
            came += data
    return came


versions = st.sampled_from([ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.one_of(st.integers(2, 300), st.integers(16_380, 50_000)), max_size=8),
    st.lists(st.one_of(st.integers(0, 12), st.integers(0, 20_000)), max_size=40),
    st.booleans(),
    versions,
)
def test_the_stream_arrives_whole(
    papers: Papers, sizes: list[int], takes: list[int], joins: bool, version: ssl.TLSVersion
) -> None:
    """As an outlet sends: what has not been taken is given again, alone or with what follows."""
    script = [random.Random(n).randbytes(size) for n, size in enumerate(sizes)]
    came = b""
    with connected(papers, version) as (below, server, client):
        below.takes = takes
        rest = b""
        for data in script:
            rest += data
            while rest:
                try:
                    rest = rest[server.send(rest) :]
                except BlockingIOError:
                    if joins:
                        break
            came += all_of(client)
        while rest:
            with suppress(BlockingIOError):
                rest = rest[server.send(memoryview(rest)) :]
            came += all_of(client)
        assert not server.unsent
        came += all_of(client)
    assert came == b"".join(script)


def test_the_last_byte_counts_when_the_record_is_out(papers: Papers) -> None:
    with connected(papers) as (below, server, client):
        below.takes = [20, 0]
        assert server.send(b"twelve bytes") == 11
        assert server.unsent
        with pytest.raises(BlockingIOError):
            server.send(b"s and more")
        assert all_of(client) == b""
        assert server.send(b"s and more") == 10
        assert all_of(client) == b"twelve bytes and more"


def test_what_must_come_next_and_does_not_ends_it(papers: Papers) -> None:
    """Otherwise the peer would read something that nobody has sent."""
    with connected(papers) as (below, server, _):
        below.takes = [20]
        assert server.send(b"twelve bytes") == 11
        with pytest.raises(OSError, match="something else"):
            server.send(b"more")


def test_what_waits_is_one_record(papers: Papers) -> None:
    with connected(papers) as (below, server, client):
        below.takes = [0] * 100
        with pytest.raises(BlockingIOError):
            server.send(b"!")  # it is its own last byte
        data = random.Random(1).randbytes(1 << 20)
        for _ in range(90):
            with pytest.raises(BlockingIOError):
                server.send(b"!" + data)
        below.takes = []
        assert server.send(b"!" + data) == 1 + len(data)
        assert all_of(client) == b"!" + data


def test_a_message_larger_than_a_record(papers: Papers) -> None:
    data = random.Random(0).randbytes(5 * RECORD_BYTES + 1)
    with connected(papers) as (_, server, client):
        assert server.send(data) == len(data)
        assert all_of(client) == data


def test_the_end_is_said_and_heard(papers: Papers) -> None:
    with connected(papers) as (_, server, client):
        server.send(b"last")
        server.shutdown(socket.SHUT_WR)
        assert client.recv(READ) == b"last"
        assert [client.recv(READ) for _ in range(3)] == [b"", b"", b""]
        # The other way it still works.
        client.send(b"answer")
        assert server.recv(READ) == b"answer"
        client.close()
        assert [server.recv(READ) for _ in range(2)] == [b"", b""]


def test_an_end_that_tls_does_not_say_is_one(papers: Papers) -> None:
    """What was sent says itself where it ends; MQTT has DISCONNECT."""
    with connected(papers) as (below, server, client):
        server.send(b"last")
        below.shutdown(socket.SHUT_WR)
        assert client.recv(READ) == b"last"
        assert client.recv(READ) == b""


def test_what_is_changed_on_its_way_is_found(papers: Papers) -> None:
    with connected(papers) as (below, server, client):
        server.send(b"true")
        socket.socket.send(below, b"\x17\x03\x03\x00\x20" + bytes(32))
        assert client.recv(READ) == b"true"
        with pytest.raises(ssl.SSLError):
            client.recv(READ)
        with pytest.raises(ConnectionAbortedError):
            client.send(b"answer")


def test_what_came_before_counts(papers: Papers, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though the peer cannot be told any more what was wrong then."""

    def broken(sock: socket.socket, data: bytes, flags: int = 0, /) -> int:
        raise BrokenPipeError

    near, far = reluctant_pair()
    server, client = both(papers, near, far)
    while not shake(server, client):
        pass
    client.send(b"last words")
    far.send(b"\x17\x03\x03\x00\x20" + bytes(32))
    monkeypatch.setattr(ReluctantSocket, "send", broken)
    assert server.recv(READ) == b"last words"
    with pytest.raises(ssl.SSLError):
        server.recv(READ)
    client.close()
    server.close()


@pytest.mark.parametrize(
    ("hello", "reason"),
    [
        (b"\x10\x0c\x00\x04MQTT\x04\x02\x00\x3c\x00\x00", "wrong version number"),
        (b"GET / HTTP/1.1\r\n\r\n", "http request"),
    ],
)
def test_who_speaks_no_tls(papers: Papers, hello: bytes, reason: str) -> None:
    near, far = reluctant_pair()
    server = TlsSocket(near, papers.for_server().for_server())
    assert not server.shake_hands()
    far.send(hello)
    with pytest.raises(ssl.SSLError) as caught:
        server.shake_hands()
    assert said(caught.value) == reason
    server.close()
    assert far.recv(READ)[:1] in (b"", b"\x15")  # nothing, or an alert
    far.close()


def test_who_leaves_within_the_handshake(papers: Papers) -> None:
    near, far = reluctant_pair()
    server = TlsSocket(near, papers.for_server().for_server())
    far.close()
    with pytest.raises(ConnectionResetError, match="within the TLS handshake"):
        server.shake_hands()
    server.close()
    server.close()
    assert server.fileno() == -1


def test_a_handshake_goes_on_when_the_kernel_takes_more(papers: Papers) -> None:
    near, far = reluctant_pair()
    near.takes = [100, 0, 100, 0, 0]
    server, client = both(papers, near, far)
    waited = False
    while not shake(server, client):
        waited = waited or server.unsent
    assert waited
    server.send(b"hello")
    assert client.recv(READ) == b"hello"
    client.close()
    server.close()


def test_what_comes_with_the_last_of_the_handshake_is_received(papers: Papers) -> None:
    """Who sends at once does not wait until the other side has heard that it is over."""
    server, client = both(papers, *reluctant_pair())
    assert not client.shake_hands()
    assert not server.shake_hands()
    assert client.shake_hands()
    client.send(b"first")
    assert server.shake_hands()
    assert server.recv(READ) == b"first"
    with pytest.raises(BlockingIOError):
        server.recv(READ)
    client.close()
    server.close()


def test_a_name_that_is_not_the_servers(papers: Papers) -> None:
    server, client = both(papers, *reluctant_pair(), hostname="example.com")
    assert not shake(server, client)
    with pytest.raises(ssl.SSLCertVerificationError, match=r"example\.com"):
        shake(server, client)
    client.close()
    server.close()


def test_what_tls_has_to_say_does_not_grow(papers: Papers, monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer that asks for more and more answers, and reads nothing."""
    monkeypatch.setattr("clearfunds.sockets._tls_socket.ANSWERS_BYTES", 500)
    near, far = reluctant_pair()
    near.takes = [0] * 10
    server, client = both(papers, near, far)
    client.shake_hands()
    with pytest.raises(ConnectionAbortedError, match="reads nothing"):
        server.shake_hands()
    client.close()
    server.close()


def test_who_says_nothing_for_long_is_cut_off(
    papers: Papers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys can be changed again and again, and each change costs more than to ask for it."""
    monkeypatch.setattr("clearfunds.sockets._tls_socket.QUIET_BYTES", 2_000)
    with connected(papers) as (_, server, client):
        # What says something does not count, however much it is.
        for _ in range(100):
            server.send(bytes(1_000))
            assert client.recv(READ)
        # A part of a record says nothing so far.
        server.send(bytes(16_000))
        for _ in range(20):
            with pytest.raises(BlockingIOError):
                client.recv(100)
        with pytest.raises(ConnectionAbortedError, match="nothing but TLS's own messages"):
            client.recv(100)
        assert client.is_at_end


def test_the_clients_certificate(papers: Papers) -> None:
    server, client = both(papers, *reluctant_pair(), hostname="127.0.0.1", user="press")
    while not shake(server, client):
        pass
    certificate = server.peer_certificate
    assert certificate is not None
    assert common_name(certificate) == "press"
    server.close()
    client.close()


def test_a_client_without_a_certificate(papers: Papers) -> None:
    server, client = both(papers, *reluctant_pair())
    while not shake(server, client):
        pass
    assert server.peer_certificate is None
    server.close()
    client.close()


def test_a_layer_is_as_what_is_below(papers: Papers) -> None:
    near, far = reluctant_pair()
    server = TlsSocket(near, papers.for_server().for_server())
    assert server.fileno() == near.fileno()
    assert server.family == near.family
    server.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    assert near.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    assert any(server.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 4))
    server.close()
    far.close()
