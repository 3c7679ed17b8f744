"""Calls of clearfunds functions for one message, and moves between its folders.

    python benchmarks/calls.py            # a table
    python benchmarks/calls.py --list     # and every call, in order

`sys.setprofile` counts in the thread of a relay's loop, from the moment that a client sends until
the last byte that it causes has come. A coroutine or generator that goes on counts as a call. A
move is a call in another module, folder or root folder (accounts, store, transports, ...)
than the call before. Timers and the store's thread are left out: of several messages the one with
the fewest calls counts.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

import trio

import clearfunds
from clearfunds.relay import RelaySettings, serve_relay
from clearfunds.transports.mqtt import Connect, PubAck, Publish, Subscribe, encode

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Generator, Iterable
    from types import FrameType

    from clearfunds.relay import RelayAddresses

PACKAGE: Final = Path(clearfunds.__file__).parent
SUBSCRIBERS: Final = 9
PIPELINED: Final = 310
PAYLOAD: Final = bytes(190)
REPEATS: Final = 9
QUIET_SECONDS: Final = 0.1
"""Nothing is under way any more, on the disk either, after so long."""
DRIFT_SECONDS: Final = 0.037
HEADINGS: Final = ("calls", "functions", "modules", "module moves", "folder moves", "root moves")

Calls: TypeAlias = list[tuple[str, str]]
"""Files, from the package's folder on, and functions."""


@contextmanager
def counted(found: list[Calls]) -> Generator[None]:
    """Add the calls of the block, in order."""
    calls: Calls = []
    folder = f"{PACKAGE}/"

    def note(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(folder):
            calls.append((code.co_filename.removeprefix(folder), code.co_qualname))

    sys.setprofile(note)
    try:
        yield
    finally:
        sys.setprofile(None)
    found.append(calls)


def moves(places: Iterable[str]) -> int:
    """Count the places that differ from the one before."""
    return sum(one != other for one, other in itertools.pairwise(places))


def figures(calls: Calls) -> tuple[int, ...]:
    """Return what the columns say."""
    modules = [module for module, _ in calls]
    folders = [str(Path(module).parent) for module in modules]
    roots = [module.partition("/")[0] for module in modules]
    return (
        len(calls),
        len(set(calls)),
        len(set(modules)),
        moves(modules),
        moves(folders),
        moves(roots),
    )


@asynccontextmanager
async def relay(store: Path | None = None) -> AsyncGenerator[int]:
    """Run a relay; yield its port."""
    settings = RelaySettings(listen=("mqtt+tcp://127.0.0.1:0",), store=store)

    async def serve(task_status: trio.TaskStatus[RelayAddresses]) -> None:
        await serve_relay(settings, task_status=task_status)

    async with trio.open_nursery() as nursery:
        addresses: RelayAddresses = await nursery.start(serve)
        yield int(addresses.listening[0].rpartition(":")[2])
        nursery.cancel_scope.cancel()


async def connect(port: int, name: str, *, clean: bool = True) -> trio.SocketStream:
    """Return a client that is let in."""
    stream = await trio.open_tcp_stream("127.0.0.1", port)
    await stream.send_all(encode(Connect(name, clean_session=clean)))
    await read(stream, 4)
    return stream


async def read(stream: trio.SocketStream, nbytes: int) -> bytes:
    """Read and return what has that length."""
    data = b""
    while len(data) < nbytes:
        data += await stream.receive_some(nbytes - len(data))
    return data


async def fan_out(count: int) -> list[list[Calls]]:
    """Send publications with QoS 0 to some subscribers, `count` at a time."""
    found: list[Calls] = []
    raw = encode(Publish("t", PAYLOAD)) * count
    async with relay() as port, AsyncExitStack() as stack:
        publisher = await stack.enter_async_context(await connect(port, "publisher"))
        subscribers = [
            await stack.enter_async_context(await connect(port, f"subscriber{n}"))
            for n in range(SUBSCRIBERS)
        ]
        for each in subscribers:
            await each.send_all(encode(Subscribe(1, (("t", 0),))))
            await read(each, 5)
        for _ in range(REPEATS):
            await trio.sleep(QUIET_SECONDS)
            with counted(found):
                await publisher.send_all(raw)
                for each in subscribers:
                    await read(each, len(raw))
    return [found]


async def stored() -> list[list[Calls]]:
    """Send publications with QoS 1 to a persistent session, on disk; and its acknowledgements."""
    taken: list[Calls] = []
    acknowledged: list[Calls] = []
    with tempfile.TemporaryDirectory() as folder:
        async with (
            relay(Path(folder)) as port,
            await connect(port, "publisher") as publisher,
            await connect(port, "subscriber", clean=False) as subscriber,
        ):
            await subscriber.send_all(encode(Subscribe(1, (("t", 1),))))
            await read(subscriber, 5)
            for number in range(1, REPEATS + 1):
                raw, puback = (
                    encode(Publish("t", PAYLOAD, 1, packet_id=number)),
                    encode(PubAck(number)),
                )
                # Never as long as before, or the same timers fall into each.
                await trio.sleep(QUIET_SECONDS + number * DRIFT_SECONDS)
                with counted(taken):
                    await publisher.send_all(raw)
                    await read(publisher, len(puback))
                delivered = await read(subscriber, len(raw))
                # The identifier stands before the payload.
                puback = encode(PubAck(int.from_bytes(delivered.removesuffix(PAYLOAD)[-2:])))
                await trio.sleep(QUIET_SECONDS)
                with counted(acknowledged):
                    await subscriber.send_all(puback)
                    await trio.sleep(QUIET_SECONDS)
    return [taken, acknowledged]


TRIPS: Final[dict[str, Callable[[], list[list[Calls]]]]] = {
    f"QoS 0, one like the last, {SUBSCRIBERS} subscribers": lambda: trio.run(fan_out, 1),
    f"QoS 0, {PIPELINED} pipelined x {SUBSCRIBERS}": lambda: trio.run(fan_out, PIPELINED),
    "QoS 1 to a persistent session, on disk": lambda: trio.run(stored),
}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--list", action="store_true", help="print the calls, too")
    listed = parser.parse_args().list
    print(f"{'':44}", *(f"{heading:>12}" for heading in HEADINGS))
    for name, trip in TRIPS.items():
        # Phases on their own: other things happen between them.
        # The first message is a warm-up.
        phases = [min(found[1:], key=len) for found in trip()]
        columns = zip(*map(figures, phases), strict=True)
        print(f"{name:44}", *(f"{' + '.join(map(str, each)):>12}" for each in columns))
        if listed:
            for calls in phases:
                print(*(f"    {module} {function}" for module, function in calls), "", sep="\n")


if __name__ == "__main__":
    main()
