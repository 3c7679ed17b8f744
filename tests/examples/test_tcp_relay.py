"""The example relay, run as a process, as a reader of the README would run it."""

import json
import re
import signal
import struct
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
import trio

from tests.transports.peers import fetch

EXAMPLE = Path(__file__).parents[2] / "examples" / "tcp_relay.py"
LENGTH = struct.Struct(">I")


def frame(body: bytes) -> bytes:
    return LENGTH.pack(len(body)) + body


async def read_frame(stream: trio.SocketStream, buffer: bytearray) -> bytes:
    while True:
        if len(buffer) >= LENGTH.size:
            (size,) = LENGTH.unpack_from(buffer)
            if len(buffer) >= LENGTH.size + size:
                body = bytes(buffer[LENGTH.size : LENGTH.size + size])
                del buffer[: LENGTH.size + size]
                return body
        data = await stream.receive_some()
        assert data, "the relay closed the connection"
        buffer += data


@asynccontextmanager
async def running(*options: str) -> AsyncGenerator[tuple[int, list[str]]]:
    """Run the example on a free port; give the port and what it prints, all of it at the end."""
    printed: list[str] = []
    process = await trio.lowlevel.open_process(
        [sys.executable, "-W", "error", str(EXAMPLE), "127.0.0.1", "0", *options],
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        with trio.fail_after(30):
            first = b""
            while not first.endswith(b"\n") or b"relay+tcp" not in first:
                first += await process.stdout.receive_some()
        printed += first.decode().splitlines()
        found = re.search(rb"relay\+tcp://127\.0\.0\.1:(\d+)", first)
        assert found, first
        yield int(found[1]), printed
    finally:
        process.send_signal(signal.SIGINT)
        rest = b""
        with trio.move_on_after(10):
            async for data in process.stdout:
                rest += data
            await process.wait()
        process.kill()
        await process.wait()
        await process.stdout.aclose()
        printed += rest.decode().splitlines()


async def test_what_is_published_arrives_where_it_is_wanted() -> None:
    async with running() as (port, printed):
        with trio.fail_after(30):
            everything = await trio.open_tcp_stream("127.0.0.1", port)
            some = await trio.open_tcp_stream("127.0.0.1", port)
            publisher = await trio.open_tcp_stream("127.0.0.1", port)
            all_in, some_in = bytearray(), bytearray()
            # A publication that comes back tells that the subscription stands.
            await everything.send_all(frame(b"S#") + frame(b"Pready/all\0"))
            assert await read_frame(everything, all_in) == b"Pready/all\0"
            await some.send_all(frame(b"Sa/+") + frame(b"Pa/ready\0"))
            assert await read_frame(some, some_in) == b"Pa/ready\0"
            assert await read_frame(everything, all_in) == b"Pa/ready\0"
            wanted = [frame(b"Pa/b\0%d" % n) + frame(b"Pc/d\0%d" % n) for n in range(2_000)]
            async with trio.open_nursery() as nursery:
                nursery.start_soon(publisher.send_all, b"".join(wanted))
                for n in range(2_000):
                    assert await read_frame(everything, all_in) == b"Pa/b\0%d" % n
                    assert await read_frame(everything, all_in) == b"Pc/d\0%d" % n
                    assert await read_frame(some, some_in) == b"Pa/b\0%d" % n
            for stream in (everything, some, publisher):
                await stream.aclose()
            await trio.sleep(0.2)
    closed = [line for line in printed if "closed: it left" in line]
    assert len(closed) == 3, printed
    assert all("owes 0 items and 0 bytes" in line for line in closed), closed


async def connect(port: int, stack: AsyncExitStack) -> trio.SocketStream:
    return await stack.enter_async_context(await trio.open_tcp_stream("127.0.0.1", port))


async def test_a_publisher_waits_for_a_subscriber_that_does_not_read() -> None:
    payload = b"x" * 10_000
    async with running() as (port, _), AsyncExitStack() as stack:
        with trio.fail_after(60):
            slow = await connect(port, stack)
            publisher = await connect(port, stack)
            slow_in = bytearray()
            await slow.send_all(frame(b"S#") + frame(b"Pready\0"))
            assert await read_frame(slow, slow_in) == b"Pready\0"
            # Many times what all socket buffers and the limit of 1,000 events take together.
            total, sent = 6_000, 0

            async def publish() -> None:
                nonlocal sent
                for n in range(total):
                    await publisher.send_all(frame(b"Pt\0%06d" % n + payload))
                    sent += 1

            async with trio.open_nursery() as nursery:
                nursery.start_soon(publish)
                stood_still = -1
                while sent != stood_still:
                    stood_still = sent
                    await trio.sleep(0.5)
                assert 0 < sent < total
                for n in range(total):
                    assert (await read_frame(slow, slow_in))[3:9] == b"%06d" % n
            assert sent == total


async def test_a_bad_frame_ends_its_connection_and_no_other() -> None:
    async with running() as (port, printed), AsyncExitStack() as stack:
        with trio.fail_after(30):
            good = await connect(port, stack)
            bad = await connect(port, stack)
            await bad.send_all(LENGTH.pack(1 << 30))
            assert await bad.receive_some() == b""
            good_in = bytearray()
            await good.send_all(frame(b"Sa") + frame(b"Pa\0still here"))
            assert await read_frame(good, good_in) == b"Pa\0still here"
    assert any("a frame of 1073741824 bytes" in line for line in printed), printed


async def test_its_pages_say_who_owes_what() -> None:
    pytest.importorskip("h11")
    async with running("--http", "0") as (port, printed), AsyncExitStack() as stack:
        url = printed[0].removeprefix("who waits on whom: ")
        with trio.fail_after(30):
            some = await connect(port, stack)
            await some.send_all(frame(b"Sa") + frame(b"Pa\0hello"))
            assert await read_frame(some, bytearray()) == b"Pa\0hello"
            ready, metrics, ledger = [
                await fetch(url + page) for page in ("readyz", "metrics", "ledger.json")
            ]
    assert ready == "The relay is ready.\n"
    assert 'clearfunds_debt_limit_items{level="connection"} 1000.0' in metrics.splitlines()
    (account,) = json.loads(ledger)["accounts"]
    assert account["name"].startswith("tcp/127.0.0.1:")
    assert account["borrowed"]["items"] == 3  # what came in, twice, and what went out


@pytest.mark.parametrize("given", [[], ["127.0.0.1"], ["127.0.0.1", "here"]])
def test_where_to_listen_has_to_be_said(given: list[str]) -> None:
    run = subprocess.run(
        [sys.executable, str(EXAMPLE), *given], capture_output=True, check=False, text=True
    )
    assert run.returncode == 2
    assert run.stderr.splitlines()[-1].startswith("tcp_relay.py: error: ")


@pytest.mark.parametrize("policy", ["wait", "drop_oldest", "drop_newest", "conflate", "spill"])
async def test_it_takes_every_policy(policy: str) -> None:
    async with running("--policy", policy) as (port, _), AsyncExitStack() as stack:
        with trio.fail_after(30):
            some = await connect(port, stack)
            await some.send_all(frame(b"Sa") + frame(b"Pa\0hello"))
            assert await read_frame(some, bytearray()) == b"Pa\0hello"
