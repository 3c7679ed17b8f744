"""The examples for ASGI servers, run as processes, as a reader of the docs would run them."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio
from websockets.sync.client import connect

from tests.pages.chromium import CHROMIUM, WHY_NOT, browsing
from tests.ports import lasting_port

EXAMPLES = Path(__file__).parents[2] / "examples"


@contextmanager
def feeding() -> Generator[str]:
    """Run the feed; give its address without a scheme."""
    port = lasting_port()
    process = subprocess.Popen(
        [sys.executable, str(EXAMPLES / "asgi_feed.py"), "--port", str(port)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    place = f"127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + 30
        while True:
            try:
                urllib.request.urlopen(f"http://{place}/", timeout=5).close()
                break
            except OSError:
                assert process.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.05)
        yield place
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=60)[0]
        assert "Traceback" not in said, said
    finally:
        process.kill()
        process.communicate()


@pytest.mark.skipif(CHROMIUM is None, reason=WHY_NOT)
def test_a_browser_and_a_program_talk_to_each_other() -> None:
    async def look(place: str) -> None:
        async with browsing() as browser:
            with trio.fail_after(60):
                tab = await browser.open(f"http://{place}/")
                await tab.until("document.querySelector('#clock').textContent.startsWith('tick')")
                await tab.until("ws.readyState === 1")
                with connect(f"ws://{place}/ws/program") as program:
                    program.send("good day")
                    assert program.recv(5) == "program: good day"
                    await tab.until(
                        "document.querySelector('#said').textContent === 'program: good day'"
                    )
                    await tab.evaluate("document.forms[0].elements[0].value = '<b>hi</b>'; 0")
                    await tab.evaluate("document.forms[0].requestSubmit(); 0")
                    assert re.fullmatch(r"user\d+: <b>hi</b>", str(program.recv(5)))
                books = await browser.open(f"http://{place}/debt/")
                await books.until("document.querySelector('#link').dataset.state === 'live'")
            assert browser.complaints == []

    with feeding() as place:
        trio.run(look, place)


@pytest.mark.long
def test_a_hundred_tabs_of_which_three_sleep() -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "llm_stream.py")],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "97 of 97 tabs that are awake have the whole answer" in done.stdout
    assert re.search(r"^behind: (tab[012] ?)+$", done.stdout, re.MULTILINE), done.stdout
    assert "3 woke up and have it, too" in done.stdout
    held = re.search(r"held up for (\d\.\d\d) s", done.stdout)
    assert held
    assert float(held[1]) < 5
