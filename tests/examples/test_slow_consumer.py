"""The example in which a subscriber stops reading, and what the relay's page says of it."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import trio

from tests.transports.peers import SECONDS, fetch

EXAMPLE = Path(__file__).parents[2] / "examples" / "slow_consumer.py"
OPTIONS = (
    "--mqtt",
    "0",
    "--http",
    "0",
    "--calm",
    "0.5",
    "--limit-items",
    "40",
    "--patience",
    "2.5",
)


async def names(url: str) -> tuple[set[str], set[str]]:
    """Return the names of those who wait and of those they wait on, without the listener's."""
    waits: list[dict[str, Any]] = json.loads(await fetch(f"{url}/ledger.json?top=9"))["waits"]
    waiting = {name.partition("/")[2] for wait in waits for name in wait["waiting"]}
    return waiting, {on["name"].partition("/")[2] for wait in waits for on in wait["on"]}


async def test_all_publishers_wait_for_the_one_that_stopped_until_it_is_given_up() -> None:
    process = await trio.lowlevel.open_process(
        [sys.executable, "-W", "error", str(EXAMPLE), *OPTIONS],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        with trio.fail_after(SECONDS):
            said = b""
            while b"stops reading" not in said:
                said += await process.stdout.receive_some()
            found = re.search(r"http://127\.0\.0\.1:\d+", said.decode())
            assert found
            publishers = {
                *("press/newsroom", "press/ticker", "shop/checkout"),
                *("weather/station-7", "weather/station-9"),
            }
            waiting, on = set[str](), set[str]()
            while waiting != publishers:
                await trio.sleep(0.05)
                waiting, on = await names(found[0])
            assert on == {"shop/archive"}
            while waiting:
                await trio.sleep(0.05)
                waiting, on = await names(found[0])
            process.send_signal(signal.SIGTERM)
            log = b"".join([piece async for piece in process.stderr])
            said += b"".join([piece async for piece in process.stdout])
            assert await process.wait() == 0, log
    finally:
        process.kill()
        await process.wait()
        await process.stdout.aclose()
        await process.stderr.aclose()
    assert said.endswith(b"stopped\n")
    assert log.count(b"/shop/archive made no progress for") == 2  # given up, and why it left
    assert b"Traceback" not in log
    assert b" ERROR " not in log


def test_a_relay_that_does_not_start_is_said_in_a_sentence() -> None:
    run = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLE), "--mqtt", "0", "--http", "0", "--nope"],
        capture_output=True,
        check=False,
        text=True,
        timeout=SECONDS,
    )
    assert run.returncode == 1
    reason, sentence = run.stderr.splitlines()
    assert "--nope" in reason  # the relay's own
    assert sentence == "slow_consumer: the relay did not start"
