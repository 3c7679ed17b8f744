"""Connecting to a host with several addresses."""

from __future__ import annotations

import socket
from functools import partial
from typing import Any

import pytest
import trio

from clearfunds.transports import _connecting
from tests.transports.peers import SECONDS


async def test_a_silent_address_holds_up_the_next_one_for_a_moment_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    open_one = _connecting._open_one  # pyright: ignore[reportPrivateUsage]
    silent = trio.Event()

    async def attempt(family: int, protocol: int, address: Any, size: int | None) -> socket.socket:
        if address[0] == "192.0.2.1":
            silent.set()
            await trio.sleep_forever()
        return await open_one(family, protocol, address, size)

    async with trio.open_nursery() as nursery:
        serve = partial(trio.serve_tcp, host="127.0.0.1")
        (listener,) = await nursery.start(serve, trio.SocketStream.aclose, 0)
        port = listener.socket.getsockname()[1]

        async def found(*_: object, **__: object) -> list[tuple[object, ...]]:
            return [
                (socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, port))
                for host in ("192.0.2.1", "127.0.0.1")
            ]

        monkeypatch.setattr(trio.socket, "getaddrinfo", found)
        monkeypatch.setattr(_connecting, "_open_one", attempt)
        with trio.fail_after(SECONDS):
            stream = await _connecting.open_stream("two.example", port)
            assert silent.is_set()
            assert await stream.receive_some() == b""  # the listener closes what it accepts
        await stream.aclose()
        nursery.cancel_scope.cancel()
