"""One broadcast by WebSocket and by SSE, written as people write it today, and with clearfunds.

`VARIANT` names the way; all have the same routes, the same publisher and the same server:

    unbounded        an asyncio.Queue for each client
    bounded-await    one with room for 1,000; the broadcast waits where there is none
    bounded-drop     one with room for 1,000; the broadcast drops where there is none
    broadcaster      the package broadcaster, with its memory backend
    loop             no queues: a loop over the sockets (WebSocket only)
    balanced, live   clearfunds.asgi, with this profile

    VARIANT=live python benchmarks/peers/web_app.py PORT
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager, suppress
from time import monotonic, monotonic_ns
from typing import Any, Final, cast

import uvicorn
from broadcaster import Broadcast
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from clearfunds.asgi import EventStream, Hub, serve_websocket
from clearfunds.dataspace import Publication

ROOM: Final = 1_000
"""Messages that a bounded queue takes; a lagging feed keeps as many."""


SERVER_BUFFER: Final = 32 << 10
"""For each connection, in the kernel: with its default of megabytes a client that sleeps is noticed
only after a minute."""


class Queues:
    """A queue for each client."""

    def __init__(self, room: int = 0, *, drops: bool = False) -> None:
        self.room = room
        self.drops = drops
        self.queues: set[asyncio.Queue[str]] = set()
        self.dropped = 0

    async def publish(self, text: str) -> None:
        """Give a message to each."""
        for queue in list(self.queues):
            if not self.drops:
                await queue.put(text)
                continue
            try:
                queue.put_nowait(text)
            except asyncio.QueueFull:
                self.dropped += 1

    async def each(self) -> AsyncIterator[str]:
        """Yield what comes for one client."""
        queue: asyncio.Queue[str] = asyncio.Queue(self.room)
        self.queues.add(queue)
        try:
            while True:
                yield await queue.get()
        finally:
            self.queues.discard(queue)

    async def ws(self, socket: WebSocket) -> None:
        """Serve a WebSocket."""
        await socket.accept()
        with suppress(WebSocketDisconnect):
            async for text in self.each():
                await socket.send_text(text)

    async def sse(self, request: Request) -> Response:
        """Serve an event stream."""

        async def events() -> AsyncIterator[str]:
            yield ": open\n\n"
            async for text in self.each():
                yield f"data: {text}\n\n"

        return StreamingResponse(events(), media_type="text/event-stream")

    def named(self) -> list[str]:
        """Name the slow clients, as far as it knows them."""
        return []


class Broadcaster(Queues):
    """The package broadcaster."""

    def __init__(self) -> None:
        super().__init__()
        self.broadcast = Broadcast("memory://")

    async def publish(self, text: str) -> None:
        """See `Queues.publish`."""
        await self.broadcast.publish("feed", text)

    async def each(self) -> AsyncIterator[str]:
        """See `Queues.each`."""
        async with self.broadcast.subscribe("feed") as subscriber:
            async for event in cast("AsyncIterator[Any]", subscriber):
                yield event.message


class Loop(Queues):
    """A loop over the sockets."""

    def __init__(self) -> None:
        super().__init__()
        self.sockets: set[WebSocket] = set()

    async def publish(self, text: str) -> None:
        """See `Queues.publish`."""
        for each in list(self.sockets):
            with suppress(WebSocketDisconnect):
                await each.send_text(text)

    async def ws(self, socket: WebSocket) -> None:
        """See `Queues.ws`."""
        await socket.accept()
        self.sockets.add(socket)
        with suppress(WebSocketDisconnect):
            await socket.receive_text()
        self.sockets.discard(socket)


class Feeds(Queues):
    """clearfunds.asgi."""

    def __init__(self, profile: str) -> None:
        super().__init__()
        self.hub = Hub(profile=profile)
        self.account = self.hub.open("publisher")

    async def publish(self, text: str) -> None:
        """See `Queues.publish`."""
        await self.hub.publish(self.account, Publication("feed", text.encode()))

    async def ws(self, socket: WebSocket) -> None:
        """See `Queues.ws`."""
        feed = self.hub.subscribe(socket.path_params["name"], "feed")
        await serve_websocket(socket.scope, socket.receive, socket.send, feed)

    async def sse(self, request: Request) -> Response:
        """See `Queues.sse`."""
        return EventStream(self.hub.subscribe(request.path_params["name"], "feed"))

    def named(self) -> list[str]:
        """See `Queues.named`: those that are behind, or that the publisher has waited for."""
        blamed = self.account.statistics().blame
        return sorted({*blamed, *(each.name for each in self.hub.ledger.lagging)})


def variant(name: str) -> Queues:
    """Return the way called `name`."""
    ways: dict[str, Any] = {
        "unbounded": Queues,
        "bounded-await": lambda: Queues(ROOM),
        "bounded-drop": lambda: Queues(ROOM, drops=True),
        "broadcaster": Broadcaster,
        "loop": Loop,
    }
    made: Queues = ways[name]() if name in ways else Feeds(name)
    return made


class Publisher:
    """Publishes at a rate; rate 0: as fast as it may."""

    def __init__(self, way: Queues) -> None:
        self.way = way
        self.published = 0
        self.longest = 0.0
        self.since = 0.0
        self.task: asyncio.Task[None] | None = None

    async def run(self, rate: float, seconds: float, size: int) -> None:
        """Publish messages of `size` bytes that have their number and their time in front."""
        self.published, self.longest = 0, 0.0
        began = monotonic()
        while (now := monotonic()) - began < seconds:
            due = began + self.published / rate if rate else now
            if due > now:
                await asyncio.sleep(due - now)
            elif not rate:
                await asyncio.sleep(0)
            self.since = monotonic()
            await self.way.publish(f"<{self.published} {monotonic_ns()}>".ljust(size, "x"))
            self.longest = max(self.longest, monotonic() - self.since)
            self.since = 0.0
            self.published += 1

    async def start(self, request: Request) -> Response:
        """Begin to publish."""
        words = request.query_params
        self.task = asyncio.create_task(
            self.run(float(words["rate"]), float(words["seconds"]), int(words["size"]))
        )
        return JSONResponse(None)

    async def report(self, request: Request) -> Response:
        """Tell what was published, and who is slow."""
        # A broadcast that hangs counts as long as it has hung by now.
        hangs = monotonic() - self.since if self.since else 0.0
        return JSONResponse(
            {
                "published": self.published,
                "longest": max(self.longest, hangs),
                "done": self.task is None or self.task.done(),
                "named": self.way.named(),
            }
        )


def main() -> None:
    """Serve."""
    way = variant(os.environ["VARIANT"])
    publisher = Publisher(way)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncGenerator[None]:
        if isinstance(way, Broadcaster):
            async with way.broadcast:
                yield
        elif isinstance(way, Feeds):
            async with way.hub:
                yield
        else:
            yield

    app = Starlette(
        routes=[
            WebSocketRoute("/ws/{name}", way.ws),
            Route("/sse/{name}", way.sse),
            Route("/start", publisher.start),
            Route("/report", publisher.report),
        ],
        lifespan=lifespan,
    )
    config = uvicorn.Config(
        app, loop="asyncio", log_level="error", timeout_graceful_shutdown=1, backlog=4096,
        ws_per_message_deflate=False,
    )  # fmt: skip
    listener = socket.create_server(("127.0.0.1", int(sys.argv[1])), backlog=4096)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SERVER_BUFFER)
    asyncio.run(uvicorn.Server(config).serve(sockets=[listener]))


if __name__ == "__main__":
    main()
