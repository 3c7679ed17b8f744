"""A FastAPI feed by WebSocket and by server-sent events, with the page that shows who is slow.

    python examples/asgi_feed.py             # then open http://127.0.0.1:8000/

What somebody types goes to all open pages; a clock ticks beside it. Each page is a consumer with a
profile of its own: `/?profile=live` drops what a slow one misses, and tells it; the default spills
it. http://127.0.0.1:8000/debt/ shows who waits for whom. Needs the extra `asgi`, fastapi and
uvicorn (`pip install 'clearfunds[asgi]' fastapi 'uvicorn[standard]'`).
"""

from __future__ import annotations

import argparse
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from itertools import count

import anyio
import uvicorn
from fastapi import FastAPI, WebSocket
from fastapi.responses import HTMLResponse

from clearfunds.accounts import Limit, Profile
from clearfunds.asgi import EventStream, Hub, debt_pages, serve_websocket
from clearfunds.dataspace import Publication

PAGE = """<!doctype html><title>Feed</title><link rel="icon" href="debt/live/icon.svg"><h1>Feed</h1>
<form><input placeholder="say something" autofocus> <a href="debt/">who waits for whom</a></form>
<p id="clock"></p><ul id="said"></ul>
<script>
const at = new URL(location), name = "user" + Math.floor(Math.random() * 1e6);
const ws = new WebSocket(`ws://${at.host}/ws/${name}${at.search}`);
ws.onmessage = ({data}) => said.insertAdjacentElement("afterbegin",
  Object.assign(document.createElement("li"), {textContent: data}));
document.forms[0].onsubmit = (event) => {
  event.preventDefault(); ws.send(event.target[0].value); event.target[0].value = "";
};
new EventSource(`/ticks/${name}${at.search}`).onmessage = ({data}) => clock.textContent = data;
</script>"""

hub = Hub(limit=Limit(items=1000))


async def tick() -> None:
    """Publish a tick each second, on an account of its own."""
    with hub.open("clock") as clock:
        for number in count():
            await hub.publish(clock, Publication("ticks", b"tick %d" % number))
            await anyio.sleep(1)


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncGenerator[None]:
    """Run the hub, and the clock, for as long as the program."""
    async with hub, anyio.create_task_group() as group:
        group.start_soon(tick)
        yield
        group.cancel_scope.cancel()


app = FastAPI(lifespan=lifespan)
app.mount("/debt", debt_pages(hub))


@app.get("/", response_class=HTMLResponse)
async def index() -> str:
    """Serve the page."""
    return PAGE


@app.get("/ticks/{user}")
async def ticks(user: str, profile: Profile = Profile.BALANCED) -> EventStream:
    """Serve the clock as server-sent events."""
    return EventStream(hub.subscribe(user, "ticks", name=f"{user} ticks", profile=profile))


@app.websocket("/ws/{user}")
async def room(socket: WebSocket, user: str, profile: Profile = Profile.BALANCED) -> None:
    """Publish what a user says, on the user's account, and send what all say."""

    async def say(text: str | bytes) -> None:
        await hub.publish(account, Publication("room", f"{user}: {text!s}".encode()))

    with hub.open(user) as account:
        feed = hub.subscribe(account, "room", profile=profile)
        await serve_websocket(
            socket.scope, socket.receive, socket.send, feed, account=account, on_message=say
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="A feed, and who holds it up.")
    parser.add_argument("--port", type=int, default=8000)
    # Open streams would keep it from stopping.
    uvicorn.run(app, port=parser.parse_args().port, timeout_graceful_shutdown=2)
