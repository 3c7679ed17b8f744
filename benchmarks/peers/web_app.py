"""A broadcast to WebSockets and server-sent events under uvicorn, in each of the ways compared.

The environment variable `WEB_VARIANT` says which; the routes are the same for all:

    python benchmarks/peers/web_app.py PORT

`POST /start` starts the publisher, `POST /stop` ends it and tells what it did, `GET /clients` tells
how many clients are there. `WEB_PROFILE` names a file for a profile of the whole program.
"""

from __future__ import annotations

import asyncio
import contextlib
import cProfile
import gc
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

import uvicorn
from broadcaster import Broadcast
from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocketDisconnect

from clearfunds.asgi import EventStream, Hub, serve_websocket
from clearfunds.dataspace import Publication

if TYPE_CHECKING:
    from broadcaster import Event
    from starlette.requests import Request
    from starlette.websockets import WebSocket

SEND_BUFFER: Final = 64 << 10
"""Bytes of the sockets' send buffers: small, so that the programs are compared, not the kernel."""
QUEUE: Final = 1_000
"""Messages in a bounded queue."""
SPILL_BYTES: Final = 16 << 20
"""The hub's memory for backlogs: a quarter of its default, so that a short run reaches it."""
TOPIC: Final = "feed"
CLEARFUNDS: Final = "clearfunds-"
PUBLISHER: Final = "publisher"


class Way(Protocol):
    """A way to broadcast."""

    def running(self) -> AbstractAsyncContextManager[object]:
        """Run for as long as the program does."""
        ...

    async def publish(self, text: str) -> None:
        """Give a message to all clients."""
        ...

    async def serve(self, socket: WebSocket, name: str) -> None:
        """Serve one WebSocket."""
        ...

    def stream(self, name: str) -> Response:
        """Return the answer to one client of server-sent events."""
        ...

    def count(self) -> int:
        """Return the number of clients."""
        ...

    def named(self) -> list[str]:
        """Return the names of the clients that it knows to be slow."""
        ...


class ByHand:
    """Messages to clients one after the other, in code that programs write for themselves."""

    def __init__(self) -> None:
        self.here = 0

    def running(self) -> AbstractAsyncContextManager[object]:
        """Run nothing."""
        return contextlib.nullcontext()

    def messages(self) -> AbstractAsyncContextManager[AsyncIterator[str]]:
        """Return the messages for one client."""
        raise NotImplementedError

    async def serve(self, socket: WebSocket, name: str) -> None:
        """Send each message; the client's name is not used."""
        await socket.accept()
        with contextlib.suppress(WebSocketDisconnect):
            async with self.messages() as messages:
                self.here += 1
                async for text in messages:
                    await socket.send_text(text)

    def stream(self, name: str) -> Response:
        """Stream each message as an event; the client's name is not used."""

        async def events() -> AsyncGenerator[str]:
            async with self.messages() as messages:
                self.here += 1
                async for text in messages:
                    yield f"data: {text}\n\n"

        return StreamingResponse(events(), media_type="text/event-stream")

    def count(self) -> int:
        """Return how many have come."""
        return self.here

    def named(self) -> list[str]:
        """Return nobody: these ways know nothing of it."""
        return []


class Queues(ByHand):
    """A queue for each client."""

    def __init__(self, size: int = 0) -> None:
        super().__init__()
        self._size = size
        self.queues: set[asyncio.Queue[str]] = set()

    @contextlib.asynccontextmanager
    async def messages(self) -> AsyncGenerator[AsyncIterator[str]]:
        """Yield what comes from the client's own queue."""
        queue: asyncio.Queue[str] = asyncio.Queue(self._size)

        async def each() -> AsyncGenerator[str]:
            while True:
                yield await queue.get()

        self.queues.add(queue)
        try:
            yield each()
        finally:
            self.queues.discard(queue)

    async def publish(self, text: str) -> None:
        """Put it into each queue, which has no bound."""
        for queue in self.queues:
            queue.put_nowait(text)


class WaitingQueues(Queues):
    """A bounded queue for each client; the publisher waits for each."""

    async def publish(self, text: str) -> None:
        """Wait for each queue in turn."""
        for queue in list(self.queues):
            await queue.put(text)


class DroppingQueues(Queues):
    """A bounded queue for each client; what does not fit is dropped."""

    async def publish(self, text: str) -> None:
        """Put it into each queue that has room."""
        for queue in self.queues:
            with contextlib.suppress(asyncio.QueueFull):
                queue.put_nowait(text)


class Broadcaster(ByHand):
    """The package broadcaster with its memory backend, as its README shows it."""

    def __init__(self) -> None:
        super().__init__()
        self._broadcast = Broadcast("memory://")

    def running(self) -> AbstractAsyncContextManager[object]:
        """Run its listener."""
        return cast("AbstractAsyncContextManager[object]", self._broadcast)

    @contextlib.asynccontextmanager
    async def messages(self) -> AsyncGenerator[AsyncIterator[str]]:
        """Yield what its subscription yields."""
        async with self._broadcast.subscribe(channel=TOPIC) as subscriber:

            async def each() -> AsyncGenerator[str]:
                async for event in cast("AsyncIterator[Event]", subscriber):
                    yield event.message

            yield each()

    async def publish(self, text: str) -> None:
        """Publish to its channel."""
        await self._broadcast.publish(channel=TOPIC, message=text)


class Loop(ByHand):
    """A loop over the sockets, as in Starlette's and FastAPI's examples."""

    def __init__(self) -> None:
        super().__init__()
        self._sockets: list[WebSocket] = []

    async def serve(self, socket: WebSocket, name: str) -> None:
        """Keep the socket until the client leaves."""
        await socket.accept()
        self.here += 1
        self._sockets.append(socket)
        try:
            while True:
                await socket.receive_text()
        except WebSocketDisconnect:
            self._sockets.remove(socket)

    async def publish(self, text: str) -> None:
        """Send to one client after the other."""
        for client in list(self._sockets):
            # One that has gone is removed by its own task.
            with contextlib.suppress(WebSocketDisconnect, RuntimeError):
                await client.send_text(text)


class Clearfunds:
    """A hub, with one profile for all clients."""

    def __init__(self, profile: str) -> None:
        self._hub = Hub(profile=profile, spill_bytes=SPILL_BYTES)
        self._account = self._hub.open(PUBLISHER)

    def running(self) -> AbstractAsyncContextManager[object]:
        """Run the hub."""
        return self._hub

    async def publish(self, text: str) -> None:
        """Publish to its topic."""
        await self._hub.publish(self._account, Publication(TOPIC, text.encode()))

    async def serve(self, socket: WebSocket, name: str) -> None:
        """Serve a feed."""
        feed = self._hub.subscribe(name, TOPIC)
        await serve_websocket(socket.scope, socket.receive, socket.send, feed)

    def stream(self, name: str) -> Response:
        """Return a feed as a stream of events."""
        # It is a Response, but its type does not say so: Starlette need not be installed for it.
        return cast("Response", EventStream(self._hub.subscribe(name, TOPIC)))

    def count(self) -> int:
        """Return the number of feeds."""
        return sum(each.kind == "mailbox" for each in self._hub.ledger.holders)

    def named(self) -> list[str]:
        """Return the lagging clients, and those that the publisher has waited for."""
        blamed = self._account.statistics().blame
        return sorted({*blamed, *(each.name for each in self._hub.ledger.lagging)})


WAYS: Final[dict[str, Callable[[], Way]]] = {
    "unbounded": Queues,
    "bounded-await": lambda: WaitingQueues(QUEUE),
    "bounded-drop": lambda: DroppingQueues(QUEUE),
    "broadcaster": Broadcaster,
    "loop": cast("Callable[[], Way]", Loop),
    f"{CLEARFUNDS}balanced": lambda: Clearfunds("balanced"),
    f"{CLEARFUNDS}live": lambda: Clearfunds("live"),
}


class Publisher:
    """A task that publishes at a fixed rate; a message that is late does not delay the schedule."""

    def __init__(self, way: Way) -> None:
        self._way = way
        self._task: asyncio.Task[None] | None = None
        self._begun = 0.0
        self._longest = 0.0
        self._published = 0

    def start(self, rate: float, count: int, size: int, first: int) -> None:
        """Publish `count` messages of `size` bytes, numbered from `first`."""
        self._longest, self._published = 0.0, 0
        self._task = asyncio.create_task(self._run(rate, count, size, first))

    async def _run(self, rate: float, count: int, size: int, first: int) -> None:
        began = time.monotonic_ns()
        for number in range(count):
            due = began + int(number / rate * 1e9)
            wait = (due - time.monotonic_ns()) / 1e9
            # Those that are late may not keep others from running either.
            await asyncio.sleep(max(0.0, wait))
            # At the end: it has come when all of it has.
            text = f"@{first + number:010d} {due:019d};".rjust(size, ".")
            self._begun = time.monotonic()
            await self._way.publish(text)
            self._longest = max(self._longest, time.monotonic() - self._begun)
            self._begun = 0.0
            self._published += 1

    async def stop(self) -> dict[str, object]:
        """End it, and tell what it published, and for how long one message held it up at most."""
        task, self._task = self._task, None
        named = self._way.named()
        if self._begun:
            self._longest = max(self._longest, time.monotonic() - self._begun)
            self._begun = 0.0
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        return {"published": self._published, "held_up": self._longest, "named": named}


def program(way: Way) -> Starlette:
    """Return the program."""
    publisher = Publisher(way)

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncGenerator[None]:
        async with way.running():
            yield

    async def ws(socket: WebSocket) -> None:
        await way.serve(socket, socket.path_params["name"])

    async def sse(request: Request) -> Response:
        return way.stream(request.path_params["name"])

    async def start(request: Request) -> Response:
        asked = request.query_params
        # A full collection of the garbage of a thousand clients takes 0.3 s, whichever way. What is
        # there before the first message stays for the whole run.
        gc.collect()
        gc.freeze()
        publisher.start(
            float(asked["rate"]), int(asked["count"]), int(asked["size"]), int(asked["first"])
        )
        return Response()

    async def stop(request: Request) -> Response:
        return JSONResponse(await publisher.stop())

    async def clients(request: Request) -> Response:
        return JSONResponse(way.count())

    routes: list[Any] = [
        WebSocketRoute("/ws/{name}", ws),
        Route("/sse/{name}", sse),
        Route("/start", start, methods=["POST"]),
        Route("/stop", stop, methods=["POST"]),
        Route("/clients", clients),
    ]
    return Starlette(routes=routes, lifespan=lifespan)


def main(port: int) -> None:
    """Serve on this port of loopback until the process is ended."""
    # uvicorn ends at the signal, and then raises it again for the handler from before.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
    listener = socket.create_server(("127.0.0.1", port), backlog=2048)
    # Connections inherit it.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
    config = uvicorn.Config(
        program(WAYS[os.environ["WEB_VARIANT"]]()),
        loop="asyncio",
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=1,
    )
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    if profile := os.environ.get("WEB_PROFILE"):
        with cProfile.Profile() as profiler:
            try:
                main(int(sys.argv[1]))
            finally:
                profiler.dump_stats(profile)
    else:
        main(int(sys.argv[1]))
