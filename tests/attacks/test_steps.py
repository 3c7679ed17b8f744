"""Whoever gives the relay much to do waits for it, and the others do not."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager

import pytest

from tests.attacks.kit import (
    WHOLE,
    Attacker,
    attack,
    attacked,
    connect,
    give_way,
    publish,
    subscribe,
    unsubscribe,
    until_over,
)
from tests.transports.mqtt.wire import PINGREQ

DEEP = tuple(f"+/+/+/z{n}" for n in range(1_000))

SMALL: dict[str, bytes] = {
    "QoS 1": b"".join(publish("nobody/x", b"", qos=1, packet_id=n) for n in range(1, 2_001)),
    "QoS 0 on many topics": b"".join(publish(f"t/{n % 500}") for n in range(2_000)),
    "retained": b"".join(publish(f"r/{n % 100}", b"x", retain=True) for n in range(1_000)),
    "pings": PINGREQ * 5_000,
    "filters": b"".join(subscribe(f"+/z{n}") for n in range(300)),
    "filters in one packet": subscribe(*DEEP),
    "to and fro": b"".join(subscribe(f"f/{n}/+") + unsubscribe(f"f/{n}/+") for n in range(300)),
}
"""What a flooding client writes again and again, in small packets."""


@contextmanager
def flooding(port: int, count: int, data: bytes) -> Generator[list[Callable[[], object]]]:
    """Connect clients that read all that they get; yield what each does again and again."""
    with ExitStack() as stack:
        clients = [
            stack.enter_context(Attacker(port, connect(f"flood-{n}"))).let_in()
            for n in range(count)
        ]
        readers = [threading.Thread(target=_read, args=(client,)) for client in clients]
        for reader in readers:
            reader.start()
        yield [lambda client=client: client.sock.sendall(data) for client in clients]  # type: ignore[misc]
        for client in clients:
            client.sock.shutdown(socket.SHUT_RDWR)
        for reader in readers:
            reader.join()


def _read(client: Attacker) -> None:
    give_way()
    while client.receive():
        pass


def subscribes_and_leaves(port: int, name: str, *, clean: bool = True) -> Callable[[], object]:
    """Return what a client does that has very many subscriptions, leaves and comes again."""

    def come_and_go() -> None:
        with Attacker(port, connect(name, clean=clean)) as client:
            client.let_in()
            client.send(subscribe(*DEEP))
            answer = 0
            while answer < len(DEEP) and (data := client.receive()):
                answer += len(data)

    return come_and_go


@attack
@pytest.mark.parametrize("kind", SMALL)
def test_clients_that_flood_in_small_packets(kind: str, seconds: float) -> None:
    count = 30 if seconds >= WHOLE else 4
    with attacked(seconds) as scene, flooding(scene.port, count, SMALL[kind]) as attacks:
        until_over(seconds, *attacks)
    scene.survived()


@attack
def test_a_pair_with_qos_1_goes_on_beside_them(seconds: float) -> None:
    with (
        attacked(seconds, pair=("--qos", "1")) as scene,
        flooding(scene.port, 4, SMALL["QoS 1"]) as attacks,
    ):
        until_over(seconds, *attacks)
    scene.survived()


@attack
@pytest.mark.parametrize("clean", [True, False], ids=["clean", "kept"])
def test_clients_with_many_filters_that_come_and_go(clean: bool, seconds: float) -> None:
    with attacked(seconds) as scene:
        port = scene.port
        until_over(
            seconds, *(subscribes_and_leaves(port, f"leaves-{n}", clean=clean) for n in range(8))
        )
    scene.survived()


@attack
def test_very_many_filters_in_one_packet(seconds: float) -> None:
    filters = [f"m/{n}/+/x" for n in range(15_000)]
    packet = subscribe(*filters)

    def come_and_go() -> None:
        """Have nothing of its old self: neither its subscriptions nor what they count for."""
        with Attacker(scene.port, connect("many")) as many:
            many.let_in().send(packet)
            answer = b""
            while len(answer) < len(filters):
                answer += many.receive()
            assert answer[0] == 0x90
            assert not any(answer[-len(filters) :])  # all of them were granted

    options = ("--max-subscriptions", "100000", "--quota-items", "100000")
    with attacked(seconds, *options) as scene:
        come_and_go()
        time.sleep(0.5)
        until_over(seconds, come_and_go)
    scene.survived()


@attack
def test_very_many_clients_that_leave_at_once(seconds: float) -> None:
    def come_and_go() -> None:
        clients = [
            Attacker(scene.port, connect(f"c-{n}") + subscribe(f"c/{n}", "all/+"))
            for n in range(400)
        ]
        for client in clients:
            client.let_in()
        for client in clients:
            client.sock.close()
        time.sleep(0.5)

    with attacked(seconds) as scene:
        until_over(seconds, come_and_go)
    scene.survived()


CHURN: dict[str, bytes] = {
    "in small packets": b"".join(b"[[0 <A <State %d> 1>] [0 <R 1>]]" % n for n in range(1_000)),
    "in packets of many": b"".join(
        b"[%b]" % b" ".join(b"[0 <A <State %d> %d>] [0 <R %d>]" % (n, n, n) for n in range(300))
        for _ in range(4)
    ),
    "of observers": b"".join(
        b"[[0 <A <Observe <group <rec State%d> {0: <bind <_>>}> #:[0 9]> 1>] [0 <R 1>]]" % n
        for n in range(500)
    ),
}
"""What a Syndicate peer says that asserts and retracts without end."""

SYNC = b"[[0 <S #:[0 5]>]]"


@attack
@pytest.mark.parametrize("kind", CHURN)
def test_a_syndicate_peer_is_answered_beside_one_that_churns(kind: str, seconds: float) -> None:
    with attacked(seconds, "--listen", "syndicate+tcp://127.0.0.1:0") as scene:
        port = int(scene.relay.listening[1].rpartition(":")[2])
        answered = 0

        def ping() -> None:
            nonlocal answered
            assert other.send(SYNC)
            assert b"5" in other.receive()
            answered += 1

        with Attacker(port) as churning, Attacker(port) as other:
            reader = threading.Thread(target=_read, args=(churning,))
            reader.start()
            until_over(seconds, lambda: churning.sock.sendall(CHURN[kind]), ping)
            churning.sock.shutdown(socket.SHUT_RDWR)
            reader.join()
    scene.survived()
    assert answered >= 2  # a second, on a machine that does nothing else, some hundred


@attack
def test_a_websocket_client_that_sends_tiny_frames(seconds: float) -> None:
    hello = (
        b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
        b"Sec-WebSocket-Protocol: mqtt\r\n\r\n"
    )
    said = connect("tiny") + PINGREQ * 5_000
    frames = b"".join(b"\x82\x81\0\0\0\0" + said[n : n + 1] for n in range(len(said)))
    tiny = b"".join(b"\x82\x81\0\0\0\0" + PINGREQ[n : n + 1] for n in range(2)) * 5_000
    with (
        attacked(seconds, "--listen", "mqtt+ws://127.0.0.1:0") as scene,
        Attacker(int(scene.relay.listening[1].rpartition(":")[2]), hello) as client,
    ):
        assert client.receive().startswith(b"HTTP/1.1 101 ")
        reader = threading.Thread(target=_read, args=(client,))
        reader.start()
        client.send(frames)
        until_over(seconds, lambda: client.sock.sendall(tiny))
        client.sock.shutdown(socket.SHUT_RDWR)
        reader.join()
    scene.survived()
