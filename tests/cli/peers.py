"""Bare MQTT clients, as unhelpful as a test wants them."""

from __future__ import annotations

import socket

import pytest

CONNECT = b"\x10\x0f\x00\x04MQTT\x04\x02\x00\x00\x00\x03"
SUBSCRIBE_ALL = b"\x82\x06\x00\x01\x00\x01#\x00"


def connect(port: int, name: bytes) -> socket.socket:
    """Connect a bare socket as the MQTT client called `name` (three bytes)."""
    client = socket.socket()
    # Little room for what is on its way, or the kernel takes all that the test can send.
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.settimeout(10)
    client.connect(("127.0.0.1", port))
    client.sendall(CONNECT + name)
    assert client.recv(4) == b"\x20\x02\x00\x00"
    return client


def subscribe_to_all(client: socket.socket) -> None:
    """Subscribe to everything, with QoS 0."""
    client.sendall(SUBSCRIBE_ALL)
    assert client.recv(5) == b"\x90\x03\x00\x01\x00"


PUBLISH = b"\x30\x83\x08\x00\x01t" + bytes(1024)


def publish_until_it_waits(client: socket.socket) -> None:
    """Publish QoS 0 messages of 1 KiB until the relay has read nothing for a second."""
    client.settimeout(1)

    def publish() -> None:
        while True:
            client.sendall(PUBLISH * 100)

    with pytest.raises(TimeoutError):
        publish()
