"""A fan-out a hundred times above the limit: admitted, waited for, drained (rule 5)."""

from __future__ import annotations

import functools
import resource
import subprocess
import sys
import zlib
from pathlib import Path

import pytest
import trio

from clearfunds.transports.mqtt import PingReq, PingResp, PubAck, Publish, encode
from tests.transports.peers import connected, kill, running, until

pytestmark = pytest.mark.rule(5)


SUBSCRIBERS = Path(__file__).with_name("subscribers.py")
SIZE = 300
LIMIT = 100


async def line(stream: trio.abc.ReceiveStream) -> str:
    """The next line; nothing is printed behind it before it is wanted."""
    text = b""
    with trio.fail_after(120):
        while not text.endswith(b"\n"):
            piece = await stream.receive_some()
            assert piece, "the subscribers have ended"
            text += piece
    return text.decode().strip()


async def fan_out(count: int, qos: int) -> None:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < count + 500:
        pytest.skip(f"{count} connections want {count + 500} descriptors, there are {soft}")
    published = [b"%08d" % n + bytes(SIZE - 8) for n in range(4)]
    published.append(bytes(SIZE - 4) + b"last")
    async with (
        running(limit_items=LIMIT, max_connections=2 * count, patience=120, strangers=3) as relay,
        trio.open_nursery() as nursery,
    ):
        argv = [str(each) for each in (sys.executable, SUBSCRIBERS, relay.port, count, qos, SIZE)]
        process: trio.Process = await nursery.start(
            functools.partial(
                trio.run_process,
                argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                deliver_cancel=kill,
            )
        )
        assert process.stdin is not None
        assert process.stdout is not None
        assert await line(process.stdout) == "ready"
        assert len(relay.relay.dataspace.routes) == count
        async with connected(relay.port, "pub") as pub:
            account = relay.account("pub")
            stream = b"".join(
                encode(Publish("t", each, qos, packet_id=n if qos else 0))
                for n, each in enumerate(published, 1)
            )
            await pub.stream.send_all(stream)
            if qos:
                # The first of them is all that there is room for, and it is for everybody.
                await pub.expect(PubAck(1))
                await until(lambda: account.waiting)
                assert count <= account.debt_items <= LIMIT + count
                await pub.send(PingReq())
                await pub.expect(PingResp())
                relay.audit()
            await process.stdin.send_all(b"go\n")
            told = await line(process.stdout)
            for n in range(2, len(published) + 1) if qos else ():
                await pub.expect(PubAck(n))
            await until(lambda: account.debt_items == 0)
            assert account.peak_items <= LIMIT + count + 1
            relay.audit()
        assert told == f"{len(published)} {len(published)} {zlib.crc32(b''.join(published))}"
        await process.wait()
        await process.stdout.aclose()
        await process.stdin.aclose()
        await relay.deserted()


@pytest.mark.parametrize("qos", [0, 1])
async def test_a_fan_out_of_two_thousand_is_waited_for(qos: int) -> None:
    await fan_out(2_000, qos)


@pytest.mark.long
@pytest.mark.parametrize("qos", [0, 1])
async def test_a_fan_out_of_ten_thousand_is_waited_for(qos: int) -> None:
    await fan_out(10_000, qos)
