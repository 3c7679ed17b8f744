"""Take pictures of the live page: `python -m tests.pages.screenshot_live FOLDER`.

- A relay with three tenants, of which one has a subscriber that has stopped reading: live.png (a
  desk, light), live-dark.png, live-phone.png, live-drawer.png and live-calm.png.
- examples/slow_consumer.py, at two times: who-blocks-whom.png, who-blocks-whom-statement.png, and
  who-blocks-whom-after.png, when the subscriber has been cut off.
- With `--all`, the first once more at all sizes that a reader may have, to look them over: during
  the stall and after it.

Takes two minutes, and the ports 1883 and 9100. The pictures in docs/ are made with it; where Pillow
is installed, they have a palette and a third of the size.
"""

from __future__ import annotations

import argparse
import io
import random
import signal
import subprocess
import sys
from contextlib import AsyncExitStack, suppress
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import trio

from clearfunds.transports.mqtt import Publish, encode
from tests.pages.chromium import Browser, browsing
from tests.transports.peers import BareClient, RunningRelay, connected, running

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.pages.chromium import Tab

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

WIDTHS: Final = (360, 768, 1000, 1440)

STUCK: Final = "document.querySelector('#verdict').dataset.mood === 'stuck'"
CUT: Final = "document.querySelector('#lately .cut') !== null"

EXAMPLE: Final = Path(__file__).parents[2] / "examples" / "slow_consumer.py"


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


async def save(folder: Path, name: str, picture: bytes) -> None:
    """Write a picture down, as small as can be done here."""
    if find_spec("PIL") is not None:
        image_module: Any = import_module("PIL.Image")
        small = io.BytesIO()
        image_module.open(io.BytesIO(picture)).convert("RGB").quantize(256, dither=0).save(
            small, "PNG", optimize=True
        )
        picture = small.getvalue()
    await trio.Path(folder / f"{name}.png").write_bytes(picture)


async def look_over(tab: Tab, folder: Path, when: str) -> None:
    """Take the page at all sizes that a reader may have, whole, in light and dark."""
    for width in WIDTHS:
        for scheme in ("light", "dark"):
            await tab.resize(width, 900)
            await tab.prefer(scheme)
            await trio.sleep(0.6)
            await save(folder, f"{when}-{width}-{scheme}", await tab.screenshot(whole=True))


async def take(
    browser: Browser, relay: RunningRelay, stall: trio.Event, folder: Path, *, all_sizes: bool
) -> None:
    assert relay.addresses.http is not None
    tab = await browser.open(relay.addresses.http + "/", width=1200, height=900)
    await trio.sleep(40)
    await save(folder, "live-calm", await tab.screenshot(whole=True))
    stall.set()
    await tab.until(STUCK)
    await trio.sleep(6)
    for name, width, height, scheme in (
        ("live", 1200, 900, "light"),
        ("live-dark", 1200, 900, "dark"),
        ("live-phone", 390, 844, "light"),
    ):
        await tab.resize(width, height)
        await tab.prefer(scheme)
        await trio.sleep(1.2)
        if width > 600:
            # The legend below is the same for everybody.
            top = "Math.round(document.querySelector('#legend').getBoundingClientRect().top)"
            high = await tab.evaluate(f"{top} + scrollY")
            picture = await tab.screenshot(whole=True, clip=(0, 0, width, high))
        else:
            picture = await tab.screenshot()
        await save(folder, name, picture)
    await tab.resize(1200, 900)
    await tab.evaluate("document.querySelector('#holders button').click()")
    await trio.sleep(1.5)
    await save(folder, "live-drawer", await tab.screenshot())
    if all_sizes:
        await tab.evaluate("document.querySelector('#drawer').close()")
        await look_over(tab, folder, "stall")
        await tab.until(CUT)
        await trio.sleep(2)
        await look_over(tab, folder, "after")
    print(await tab.evaluate("document.querySelector('#verdict').innerText"))
    await tab.close()


async def live(browser: Browser, folder: Path, *, all_sizes: bool) -> None:
    """Take a relay with several that are slow, and one that has stopped."""
    stall = trio.Event()
    async with (
        running(
            listen=("mqtt+tcp://127.0.0.1:1883",),
            http="127.0.0.1:0",
            profile="lossless",
            patience=20.0,
            limit_items=1000,
            grace=0.1,
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
                nursery.start_soon(until_cut_off, partial(read, clients[name], name, stall))
            for seed, (name, (topic, per_second)) in enumerate(SOURCES.items()):
                nursery.start_soon(write, clients[name], topic, per_second, seed)
            await take(browser, relay, stall, folder, all_sizes=all_sizes)
            nursery.cancel_scope.cancel()


async def until_cut_off(client: Callable[[], Awaitable[None]]) -> None:
    with suppress(trio.BrokenResourceError):
        await client()


async def story(browser: Browser, folder: Path) -> None:
    """Take the example: while everybody waits, one of them, and when it is over."""
    command = [sys.executable, str(EXAMPLE), "--seconds", "40"]
    async with trio.open_nursery() as nursery:
        process: trio.Process = await nursery.start(
            partial(trio.run_process, command, stdout=subprocess.DEVNULL, check=False)
        )
        tab = await opened(browser, "http://127.0.0.1:9100/")
        await tab.until(STUCK)
        await tab.until("document.querySelectorAll('#accounts [data-state=waits]').length === 5")
        await trio.sleep(1)
        await save(folder, "who-blocks-whom", await tab.screenshot())
        await tab.evaluate("document.querySelector('#accounts [data-open$=ticker]').click()")
        await tab.until("!document.querySelector('#about-account').hidden")
        await trio.sleep(0.5)
        picture = await tab.screenshot(clip=(488, 0, 512, 720))
        await save(folder, "who-blocks-whom-statement", picture)
        await tab.evaluate("document.querySelector('#drawer').close()")
        await tab.until(CUT)
        await trio.sleep(8)
        await save(folder, "who-blocks-whom-after", await tab.screenshot(clip=(0, 0, 1000, 240)))
        await tab.evaluate("document.querySelector('#lately').scrollIntoView()")
        print(await tab.evaluate("document.querySelector('#verdict').innerText"))
        print(await tab.evaluate("document.querySelector('#lately').innerText"))
        process.send_signal(signal.SIGTERM)
        await tab.close()


async def opened(browser: Browser, url: str) -> Tab:
    """Open the example's page as soon as it is served."""
    host, port = url.removeprefix("http://").rstrip("/").split(":")
    with trio.fail_after(30):
        while True:
            with suppress(OSError):
                await (await trio.open_tcp_stream(host, int(port))).aclose()
                return await browser.open(url, width=1000, height=760)
            await trio.sleep(0.1)


async def main(folder: Path, all_sizes: bool) -> None:
    async with browsing() as browser:
        await live(browser, folder, all_sizes=all_sizes)
        await story(browser, folder)
        print("complaints:", browser.complaints)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--all", action="store_true", help="all sizes, to look them over")
    options = parser.parse_args()
    trio.run(main, options.folder, options.all)
