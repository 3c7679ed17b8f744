"""A FastAPI program that the tests serve: a feed by WebSocket and by SSE, and a publisher."""

from __future__ import annotations

import logging
from time import monotonic

from fastapi import FastAPI, WebSocket

from clearfunds.accounts import Limit
from clearfunds.asgi import EventStream, Hub, debt_pages, lifespan, serve_websocket
from clearfunds.dataspace import Publication

logging.basicConfig(level=logging.INFO)
hub = Hub(limit=Limit(items=20))
app = FastAPI(lifespan=lifespan(hub))
app.mount("/debt", debt_pages(hub))
app.mount("/closed", debt_pages(hub, allow=lambda scope: False))


@app.get("/sse/{user}")
async def sse(user: str, profile: str = "balanced", patience: float | None = None) -> EventStream:
    """Give `user` all events, the numbers of those it has missed among them."""
    return EventStream(hub.subscribe(user, "feed", profile=profile, patience=patience))


@app.websocket("/ws/{user}")
async def ws(
    socket: WebSocket, user: str, profile: str = "balanced", patience: float | None = None
) -> None:
    """The same; what a client says is published on its own account."""

    async def say(text: str | bytes) -> None:
        if text == "fail":
            raise KeyError(text)
        await hub.publish(account, Publication("feed", f"{user}: {text!s}".encode()))

    with hub.open(user, limit=Limit(items=5)) as account:
        await serve_websocket(
            socket.scope,
            socket.receive,
            socket.send,
            hub.subscribe(account, "feed", profile=profile, patience=patience),
            account=account,
            on_message=say,
        )


@app.post("/publish")
async def publish(count: int, size: int) -> float:
    """Publish numbered events of `size` bytes; return the seconds that this took."""
    began = monotonic()
    with hub.open("newsroom") as newsroom:
        for number in range(count):
            payload = b"%d " % number
            await hub.publish(newsroom, Publication("feed", payload.ljust(size, b"x")))
    return monotonic() - began


@app.get("/books")
async def books() -> dict[str, object]:
    """Audit the books, and tell who is there."""
    hub.ledger.audit()
    return {
        "feeds": sorted(each.name for each in hub.ledger.holders if each.kind == "mailbox"),
        "lagging": sorted(each.name for each in hub.ledger.lagging),
        "owed": {name: each.debt_items for name, each in hub.ledger.accounts.items()},
        "given_up": hub.ledger.statistics().repaid_items["written_off"],
    }
