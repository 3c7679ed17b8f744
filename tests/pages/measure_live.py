"""What the live page costs its browser: `python -m tests.pages.measure_live`.

Ten thousand accounts and two thousand holders that change all the time, of which some hundred
accounts wait. Prints, for a desk and for a phone (a quarter of this machine's speed), the tasks
that took longer than 50 ms (PerformanceObserver, `longtask`), the longest time between two frames,
how long one sample takes to show, and how large the page and a sample are. Takes a minute.
"""

from __future__ import annotations

import json
import random
from functools import partial
from typing import Final

import trio

from clearfunds.accounts import NO_LIMIT, Account, Ledger, Limit
from clearfunds.pages import Pages, serve_http
from tests.accounts.conftest import Box
from tests.pages.chromium import browsing

ACCOUNTS: Final = 10_000
HOLDERS: Final = 2_000
WAITING: Final = 900
SECONDS: Final = 25

OBSERVE: Final = """
window.longTasks = [];
new PerformanceObserver((list) => {
  for (const each of list.getEntries()) longTasks.push(Math.round(each.duration));
}).observe({ type: "longtask", buffered: true });
window.frames_ = [];
let last = performance.now();
(function frame() {
  const now = performance.now();
  frames_.push(now - last);
  last = now;
  requestAnimationFrame(frame);
})();
"""

ASK: Final = """(() => {
  const took = [];
  for (let i = 0; i < 20; i += 1) {
    const began = performance.now();
    show(latest);
    took.push(performance.now() - began);
  }
  took.sort((a, b) => a - b);
  return JSON.stringify({
    long_tasks_ms: longTasks,
    longest_between_frames_ms: Math.round(Math.max(...frames_.slice(5))),
    show_ms_median: Math.round(took[10]),
    elements: document.querySelectorAll("*").length,
    sample_bytes: JSON.stringify(latest).length,
    every_seconds: latest.every_seconds,
    relay_busy_ms: latest.busy_ms,
  });
})()"""


async def change(accounts: list[Account], boxes: list[Box]) -> None:
    """Borrow and repay some thousand items a second; the first box repays nothing."""
    rng = random.Random(1)
    while True:
        for _ in range(200):
            account = rng.choice(accounts)
            if account.funds_are_clear():
                with account.turn(nbytes=0) as turn:
                    turn.send(rng.choice(boxes), b"", items=rng.randrange(1, 9), nbytes=500)
        for box in rng.sample(boxes[1:], 100):
            box.work(min(box.items, rng.randrange(1, 9)))
        await trio.sleep(0.02)


async def main() -> None:
    ledger = Ledger()
    server = ledger.open("server", limit=NO_LIMIT)
    limit = Limit(items=20)
    accounts = [
        ledger.open(f"mqtt:1883/tenant-{n % 20}/client-{n}", limit=limit, parent=server)
        for n in range(ACCOUNTS)
    ]
    boxes = [Box(ledger, f"mqtt:1883/tenant-{n % 20}/sub-{n}") for n in range(HOLDERS)]
    for number, account in enumerate(accounts):
        stuck = number < WAITING
        with account.turn(nbytes=0) as turn:
            box = boxes[0 if stuck else number % HOLDERS]
            turn.send(box, b"", items=21 if stuck else 3, nbytes=100)
    async with browsing() as browser, trio.open_nursery() as nursery:
        for account in accounts[:WAITING]:
            nursery.start_soon(account.ensure_clear_funds)
        nursery.start_soon(change, accounts, boxes)
        urls: list[str] = await nursery.start(partial(serve_http, Pages(ledger).handlers()))
        for what, slower, width in (("desk", 1, 1200), ("phone", 4, 390)):
            tab = await browser.open(f"{urls[0]}/healthz", width=width)
            await tab.call("Emulation.setCPUThrottlingRate", rate=slower)
            await tab.call("Page.addScriptToEvaluateOnNewDocument", source=OBSERVE)
            await tab.call("Page.navigate", url=f"{urls[0]}/")
            await tab.until("document.querySelector('#link')?.dataset.state === 'live'")
            await trio.sleep(SECONDS)
            for name, value in json.loads(await tab.evaluate(ASK)).items():
                print(f"{what}: {name} {value}", flush=True)
            await tab.close()
        nursery.cancel_scope.cancel()
    for box in boxes:
        box.close()


if __name__ == "__main__":
    trio.run(main)
