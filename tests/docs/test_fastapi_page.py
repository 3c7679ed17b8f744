"""The two programs of fastapi.md, served by uvicorn."""

from __future__ import annotations

from typing import TYPE_CHECKING

from websockets.sync.client import connect

from tests.asgi.conftest import Served, serving
from tests.docs.blocks import code_of

if TYPE_CHECKING:
    from pathlib import Path

BEFORE = """
import asyncio

from fastapi import FastAPI, WebSocket

app = FastAPI()


@app.post("/say/{text}")
async def say(text: str) -> int:
    for queue in queues.values():
        queue.put_nowait(text)
    return len(queues)


"""
"""What stands around the program that most begin with."""

BOTH = """
import naive
from page import app

app.mount("/naive", naive.app)
"""


def test_both_programs_of_the_page(tmp_path: Path) -> None:
    (tmp_path / "naive.py").write_text(BEFORE + code_of("fastapi.md", 1), "utf-8")
    (tmp_path / "page.py").write_text(code_of("fastapi.md", 2), "utf-8")
    (tmp_path / "both.py").write_text(BOTH, "utf-8")
    with serving("uvicorn", "both:app", tmp_path, tmp_path) as served:
        url = f"ws://127.0.0.1:{served.port}"
        with connect(f"{url}/naive/ws/alice") as alice:
            while served.get("/naive/say/hello", method="POST") != 1:
                pass
            assert alice.recv(20) == "hello"
        # It does not hear that she has left before it sends again.
        served.get("/naive/say/hello", method="POST")
        check(served, url)


def check(served: Served, url: str) -> None:
    """What one user says, the others hear, by WebSocket and as events; the page names them."""
    with (
        connect(f"{url}/ws/alice") as alice,
        connect(f"{url}/ws/bob") as bob,
        served.connect() as eve,
        eve.makefile("rb") as lines,
    ):
        eve.sendall(b"GET /events/eve HTTP/1.1\r\nHost: localhost\r\n\r\n")
        while lines.readline() != b": open\n":
            pass
        alice.send("good day")
        assert bob.recv(20) == "alice: good day"
        while (line := lines.readline()) != b"data: alice: good day\n":
            assert line
        names = {each["name"] for each in served.get("/debt/ledger.json")["accounts"]}
        assert {"alice", "bob"} <= names
