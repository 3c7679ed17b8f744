"""Take pictures of the live page: `python -m tests.transports.http.screenshot_live FOLDER`.

A relay with three tenants, of which one has a subscriber that has stopped reading. Writes live.png
(a desk, light), live-dark.png, live-phone.png, live-statement.png and live-calm.png. Takes a
minute; docs/live.png and docs/live-phone.png are made with it.
"""

from __future__ import annotations

import random
import sys
from contextlib import AsyncExitStack
from pathlib import Path

import trio

from clearfunds.transports.mqtt import Publish, encode
from tests.transports.http.chromium import Browser, browsing
from tests.transports.peers import BareClient, RunningRelay, connected, running

TENANTS = {
    "press": ("newsroom", "ticker", "archive", "front-page", "search"),
    "weather": ("station-7", "station-9", "forecast", "map"),
    "-": ("pub", "audit", "dashboard", "billing", "mirror"),
}
SOURCES = {
    "newsroom": ("press/news", 400),
    "ticker": ("press/ticker", 120),
    "station-7": ("weather/7", 200),
    "station-9": ("weather/9", 160),
    "pub": ("orders/new", 300),
}
READS = {
    "archive": "#",
    "front-page": "press/#",
    "search": "press/#",
    "forecast": "weather/#",
    "map": "weather/#",
    "audit": "#",
    "dashboard": "orders/#",
    "billing": "orders/#",
    "mirror": "#",
}
LITTLE = 4096
LATE = ("search", "dashboard", "map")
"""Those that get slow, as one does who waits for the same disk, but do not stop."""


async def read(client: BareClient, name: str, stall: trio.Event) -> None:
    """Read what comes, until the archive stops and some others get slow."""
    while await client.stream.receive_some(4096 if stall.is_set() else 1 << 16):
        if stall.is_set() and name == "archive":
            await trio.sleep_forever()
        if stall.is_set() and name in LATE:
            await trio.sleep(0.1)


async def write(client: BareClient, topic: str, per_second: int, seed: int) -> None:
    """Publish in little bursts of uneven size."""
    rng = random.Random(seed)
    while True:
        burst = rng.randrange(1, per_second // 5)
        payloads = [rng.randbytes(rng.randrange(40, 2000)) for _ in range(burst)]
        await client.stream.send_all(b"".join(encode(Publish(topic, p)) for p in payloads))
        await trio.sleep(burst / per_second)


async def take(browser: Browser, relay: RunningRelay, stall: trio.Event, folder: Path) -> None:
    assert relay.addresses.http is not None
    tab = await browser.open(relay.addresses.http + "/", width=1200, height=900)
    await trio.sleep(40)
    await trio.Path(folder / "live-calm.png").write_bytes(await tab.screenshot(whole=True))
    stall.set()
    await tab.until("document.querySelector('#verdict').dataset.mood === 'stuck'")
    await trio.sleep(6)
    for name, width, height, scheme in (
        ("live", 1200, 900, "light"),
        ("live-dark", 1200, 900, "dark"),
        ("live-phone", 390, 844, "light"),
    ):
        await tab.resize(width, height)
        await tab.prefer(scheme)
        await trio.sleep(1.2)
        picture = await tab.screenshot(whole=width > 600)
        await trio.Path(folder / f"{name}.png").write_bytes(picture)
    await tab.resize(1200, 900)
    await tab.evaluate("document.querySelector('#accounts button').click()")
    await trio.sleep(1.5)
    await trio.Path(folder / "live-statement.png").write_bytes(await tab.screenshot())
    print("complaints:", browser.complaints)
    print(await tab.evaluate("document.querySelector('#verdict').innerText"))


async def main(folder: Path) -> None:
    stall = trio.Event()
    async with (
        browsing() as browser,
        running(
            listen=("mqtt+tcp://127.0.0.1:1883",), http="127.0.0.1:0", limit_items=1000, grace=0.1
        ) as relay,
        AsyncExitStack() as stack,
    ):
        clients: dict[str, BareClient] = {}
        for tenant, names in TENANTS.items():
            for name in names:
                clients[name] = await stack.enter_async_context(
                    connected(
                        relay.port,
                        name,
                        username=None if tenant == "-" else tenant,
                        receive_buffer=LITTLE if name in (*LATE, "archive") else None,
                    )
                )
        for name, topics in READS.items():
            await clients[name].subscribe(topics)
        async with trio.open_nursery() as nursery:
            for name in READS:
                nursery.start_soon(read, clients[name], name, stall)
            for seed, (name, (topic, per_second)) in enumerate(SOURCES.items()):
                nursery.start_soon(write, clients[name], topic, per_second, seed)
            await take(browser, relay, stall, folder)
            nursery.cancel_scope.cancel()


if __name__ == "__main__":
    trio.run(main, Path(sys.argv[1]))
