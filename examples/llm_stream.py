"""One answer of a language model, read by a hundred tabs of which three are asleep.

    python examples/llm_stream.py            # no model needed: the words of a text

The tabs that sleep hold up neither the answer nor the others; when they wake up, they get all of
it from memory. Needs `pip install 'clearfunds[asgi]' fastapi uvicorn`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
from pathlib import Path
from time import perf_counter

import uvicorn
from fastapi import FastAPI

from clearfunds.accounts import Limit
from clearfunds.asgi import EventStream, Hub, lifespan
from clearfunds.dataspace import Publication

TABS, ASLEEP = 100, 3
#: By default the kernel keeps up to some megabytes for each connection: most answers are shorter.
SOCKET_BYTES = 16 << 10
hub = Hub(limit=Limit(items=1_000))
app = FastAPI(lifespan=lifespan(hub))


def chunk(event: Publication) -> str:
    """Return a word as a chunk of an answer, in the form that models' APIs have."""
    choice = {"index": 0, "delta": {"content": event.payload.decode()}, "finish_reason": None}
    return json.dumps({"object": "chat.completion.chunk", "model": "text", "choices": [choice]})


@app.get("/answer/{tab}")
async def answer(tab: str) -> EventStream:
    """Serve the answer to one tab."""
    return EventStream(hub.subscribe(tab, "answer"), encode=chunk)


async def generate(words: list[str]) -> float:
    """Publish the words, and the end; return the longest time for which a slow tab held it up."""
    longest = 0.0
    with hub.open("model") as model:
        for word in [*words, "\n"]:
            asked = perf_counter()
            await hub.publish(model, Publication("answer", word.encode()))
            longest = max(longest, perf_counter() - asked)
    return longest


async def read(port: int, tab: str, asleep_until: asyncio.Event | None) -> str:
    """Read the answer as a browser's tab does, once it is awake; return its text."""
    sock = socket.create_connection(("127.0.0.1", port))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SOCKET_BYTES)
    reader, writer = await asyncio.open_connection(sock=sock, limit=SOCKET_BYTES)
    writer.write(b"GET /answer/%s HTTP/1.1\r\nHost: localhost\r\n\r\n" % tab.encode())
    text = ""
    if asleep_until is not None:
        await asleep_until.wait()
    while not text.endswith("\n"):
        line = await reader.readline()
        if line.startswith(b"data: "):
            text += json.loads(line[6:])["choices"][0]["delta"]["content"]
    writer.close()
    return text


async def main(words: list[str]) -> None:
    """Serve, read, and say what became of it."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=TABS)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BYTES)
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    port, later, whole = listener.getsockname()[1], asyncio.Event(), "".join(words) + "\n"
    readers = [
        asyncio.create_task(read(port, f"tab{n}", later if n < ASLEEP else None))
        for n in range(TABS)
    ]
    while len(hub.dataspace.route_of("answer").plain.holders) < TABS:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    longest = await generate(words)
    got = sum([await each == whole for each in readers[ASLEEP:]])
    print(f"{len(words)} words; the model was held up for {longest:.2f} s at most")
    print(f"{got} of {TABS - ASLEEP} tabs that are awake have the whole answer")
    print("behind:", *sorted(each.name for each in hub.ledger.lagging))
    later.set()
    print(sum([await each == whole for each in readers[:ASLEEP]]), "woke up and have it, too")
    server.should_exit = True
    await serving


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="One answer for a hundred tabs.")
    parser.add_argument("--text", type=Path, default=Path(__file__).parent.parent / "LICENSE")
    asyncio.run(main([f"{word} " for word in parser.parse_args().text.read_text().split()]))
