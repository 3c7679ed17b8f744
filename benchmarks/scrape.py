"""How long a page blocks the relay's loop: the longest stretch between two checkpoints.

A ledger of many accounts, each owing something and all of them moving, is served over HTTP, and
another process fetches the pages, one after the other. For each page it prints, in milliseconds:

    step      the longest time that a task of the HTTP server ran without a checkpoint, the garbage
              collector left out: in the usual fetch (the median) and in the worst
    gap       the longest time between two turns of a task that does nothing but take its turn, in
              the usual and the worst fetch; the other tasks, the garbage collector and what else
              the machine does are in it. `idle` says how long it is without any page
    gc        the longest pass of the garbage collector in any of the fetches

A page may block the relay for at most 5 ms with 10,000 accounts. With `--waiting`, this number of
readers waits on holders that make no progress, each owned by one of the accounts: a relay at a
standstill, which searches for rings.
"""

from __future__ import annotations

import argparse
import gc
import subprocess
import sys
from statistics import median
from time import perf_counter, thread_time

import attrs
import trio

from clearfunds.accounts import NO_LIMIT, Account, Ledger, Limit, LoanQueue, Outcome
from clearfunds.pages import Pages, serve_http

PAGES = (
    "/metrics",
    "/metrics/detailed?family=account&limit=200000",
    "/metrics/detailed?family=holder,matrix,blame&limit=200000",
    "/metrics/detailed?family=matrix&account=client-(1|2).*&holder=.*9",
    "/ledger.json",
    "/healthz",
)

FETCH = """
import sys, time, urllib.request
for line in sys.stdin:
    started = time.perf_counter()
    with urllib.request.urlopen(line.strip(), timeout=120) as page:
        size = len(page.read())
    print(size, time.perf_counter() - started, flush=True)
"""


class Box(LoanQueue):
    """A holder that keeps what it gets."""

    kind = "box"

    def ready(self) -> None:
        """Do nothing: it is emptied from outside."""

    def give_up(self, why: str) -> None:
        """Write off what it held."""
        self.settle_all(Outcome.WRITTEN_OFF)


@attrs.define(eq=False)
class Longest(trio.abc.Instrument):
    """Notes what takes long."""

    step: float = 0.0
    gap: float = 0.0
    collection: float = 0.0
    _step_began: float = 0.0
    _collection_began: float = 0.0
    _collecting: float = 0.0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        """See `trio.abc.Instrument`."""
        self._collecting = 0.0
        self._step_began = thread_time()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        """See `trio.abc.Instrument`."""
        took = thread_time() - self._step_began - self._collecting
        if task.name.endswith("_serve_listeners._run_handler"):  # The task of a connection.
            self.step = max(self.step, took)

    def collector_called(self, phase: str, info: dict[str, int]) -> None:
        """See `gc.callbacks`."""
        if phase == "start":
            self._collection_began = thread_time()
        else:
            took = thread_time() - self._collection_began
            self._collecting += took
            self.collection = max(self.collection, took)

    async def tick(self) -> None:
        """Take a turn whenever there is one."""
        before = perf_counter()
        while True:
            await trio.lowlevel.checkpoint()
            now = perf_counter()
            self.gap = max(self.gap, now - before)
            before = now

    def take(self) -> tuple[float, float, float]:
        """Give step, gap and collection in milliseconds, and begin anew."""
        noted = (self.step * 1e3, self.gap * 1e3, self.collection * 1e3)
        self.step = self.gap = self.collection = 0.0
        return noted


def send(account: Account, box: Box) -> None:
    """Let one event reach one holder."""
    with account.turn(items=1, nbytes=200) as turn:
        turn.send(box, b"", nbytes=200)


async def keep_moving(accounts: list[Account], boxes: list[Box]) -> None:
    """Borrow and repay, a little at a time, as traffic does."""
    number = 0
    while True:
        number += 1
        send(accounts[number % len(accounts)], boxes[number % len(boxes)])
        queue = boxes[(number * 7) % len(boxes)].queue
        if len(queue) > 1:
            queue.popleft().settle()
        await trio.lowlevel.checkpoint()


async def wait(account: Account) -> None:
    """Wait for clear funds, again and again."""
    while True:
        await account.ensure_clear_funds()
        await trio.sleep(0.1)


def tell(noted: list[tuple[float, float, float]], seconds: float, size: int, page: str) -> None:
    """Print a line."""
    steps, gaps, collections = zip(*noted, strict=True)
    print(
        f"{median(steps):7.2f} {max(steps):8.2f} {median(gaps):7.2f} {max(gaps):8.2f} "
        f"{max(collections):7.2f} {seconds * 1e3:9.1f} {size:10d}  {page}",
        flush=True,
    )


async def run(accounts_number: int, holders_number: int, rounds: int, waiting: int) -> None:
    """Build the ledger, serve its pages, print what each of them costs."""
    ledger = Ledger()
    server = ledger.open("server", limit=NO_LIMIT)
    boxes = [Box(ledger, f"mqtt/anonymous/subscriber-{n}") for n in range(holders_number)]
    accounts = [
        ledger.open(f"mqtt/anonymous/client-{n}", parent=server) for n in range(accounts_number)
    ]
    for number, account in enumerate(accounts):
        account.standing().add(1, 10)
        send(account, boxes[number % len(boxes)])
    for number, account in enumerate(accounts[:waiting]):
        account.limit = Limit(items=0)
        boxes[number % len(boxes)].owner = account
    gc.collect()
    pages = Pages(ledger)
    pages.set_ready()
    longest = Longest()
    gc.callbacks.append(longest.collector_called)
    print(
        f"{accounts_number} accounts, {holders_number} holders, {waiting} readers that wait, "
        f"{rounds} fetches of each page"
    )
    print("   step  (worst)     gap  (worst)      gc  fetch ms      bytes  page")
    async with trio.open_nursery() as nursery:

        async def serve(*, task_status: trio.TaskStatus[list[str]]) -> None:
            await serve_http(pages.handlers(), task_status=task_status)

        urls: list[str] = await nursery.start(serve)
        nursery.start_soon(longest.tick)
        if not waiting:
            nursery.start_soon(keep_moving, accounts, boxes)
        for account in accounts[:waiting]:
            nursery.start_soon(wait, account)
        await trio.sleep(1.5 if waiting else 0)
        trio.lowlevel.add_instrument(longest)
        noted: list[tuple[float, float, float]] = []
        longest.take()
        for _ in range(rounds):
            await trio.sleep(0.2)
            noted.append(longest.take())
        tell(noted, 0.0, 0, "idle")
        # One process for all fetches: starting one holds the loop up, too.
        client = await trio.lowlevel.open_process(
            [sys.executable, "-c", FETCH], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert client.stdin is not None
        assert client.stdout is not None
        for path in PAGES:
            noted.clear()
            times: list[float] = []
            size = 0
            for _ in range(rounds):
                longest.take()
                await client.stdin.send_all(f"{urls[0]}{path}\n".encode())
                answer = b""
                while not answer.endswith(b"\n"):
                    answer += await client.stdout.receive_some()
                noted.append(longest.take())
                words = answer.split()
                size = int(words[0])
                times.append(float(words[1]))
            tell(noted, median(times), size, path)
        await client.stdin.aclose()
        await client.wait()
        nursery.cancel_scope.cancel()


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--accounts", type=int, default=10_000)
    parser.add_argument("--holders", type=int, default=1_000)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--waiting", type=int, default=0)
    options = parser.parse_args()
    trio.run(run, options.accounts, options.holders, options.rounds, options.waiting)


if __name__ == "__main__":
    main()
