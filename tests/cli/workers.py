"""`clearfunds relay --workers` as a process, and its workers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import attrs
import trio

from clearfunds.transports.mqtt import MqttClient, open_mqtt
from tests.cli.conftest import SECONDS

if TYPE_CHECKING:
    from contextlib import AsyncExitStack

    from tests.cli.conftest import RelayUnderTest

NAME = "w"
ANYWHERE = "mqtt+tcp://127.0.0.1:0"


def children_of(pid: int) -> list[int]:
    """Return the child processes of a process."""
    # Each thread has children of its own; Trio starts processes in a worker thread.
    threads = Path(f"/proc/{pid}/task").iterdir()
    return [int(child) for each in threads for child in (each / "children").read_text().split()]


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def get(url: str, **headers: str) -> tuple[int, str]:
    """Return the status and the text of a page."""
    try:
        with urlopen(Request(url, headers=headers), timeout=SECONDS) as page:
            return page.status, page.read().decode()
    except HTTPError as error:
        with error:
            return error.code, error.read().decode()


async def until(holds: Callable[[], bool]) -> None:
    """Wait until a condition holds, which is looked at in a thread."""
    with trio.fail_after(SECONDS):
        while not await trio.to_thread.run_sync(holds):  # noqa: ASYNC110
            await trio.sleep(0.01)


@attrs.define
class Workers:
    """A relay with two workers that has told its addresses."""

    relay: RelayUnderTest
    port: int
    http: str
    children: list[int]

    @classmethod
    def start(cls, start_relay: Callable[..., RelayUnderTest], *options: str) -> Workers:
        """Start it, and wait until it is ready."""
        own = ("--workers", "2", "--name", NAME, "--listen", ANYWHERE, "--http", "127.0.0.1:0")
        relay = start_relay(*own, *options)
        listening, http = relay.ready()
        port = int(listening["listening"].rpartition(":")[2])
        return cls(relay, port, http["http"], children_of(relay.process.pid))

    def pid_of(self, sign: str) -> int:
        """Return the process with this on its command line."""
        (found,) = [
            child
            for child in children_of(self.relay.process.pid)
            if sign in Path(f"/proc/{child}/cmdline").read_text()
        ]
        return found

    def page(self, path: str) -> str:
        status, text = get(f"{self.http}{path}")
        assert status == 200, text
        return text

    def relays(self) -> list[dict[str, Any]]:
        relays: list[dict[str, Any]] = json.loads(self.page("/cluster.json"))["relays"]
        return relays

    def ledgers(self) -> list[dict[str, Any]]:
        """Return the whole ledger of each worker."""
        return [json.loads(self.page(f"/{NAME}-{number}/ledger.json")) for number in (1, 2)]

    def is_clear(self) -> bool:
        """Whether nothing is owed; the books balance in any case."""
        ledgers = self.ledgers()
        assert [each["audit"]["balanced"] for each in ledgers] == [True, True]
        return not any(each["totals"]["debt"]["items"] for each in ledgers)

    def place_of(self, client: str) -> int:
        """Return the number of the worker that has a client."""
        has = [client in json.dumps(ledger["accounts"]) for ledger in self.ledgers()]
        assert sum(has) == 1
        return has.index(True) + 1

    async def connect(self, stack: AsyncExitStack, name: str) -> MqttClient:
        return await stack.enter_async_context(open_mqtt("127.0.0.1", self.port, client_id=name))

    def all_gone(self) -> bool:
        return not any(map(is_running, self.children))

    def lines(self, event: str) -> list[dict[str, Any]]:
        """Return the lines of its JSON log that tell of an event."""
        lines: list[dict[str, Any]] = [
            json.loads(each) for each in self.relay.log if each[0] == "{"
        ]
        return [each for each in lines if each.get("event") == event]


async def all_hear(writer: MqttClient, readers: list[MqttClient]) -> None:
    """Publish until each reader has got a message that was published after the last one's first."""
    with trio.fail_after(SECONDS):
        async with trio.open_nursery() as nursery:
            left = len(readers)

            async def hear(reader: MqttClient) -> None:
                nonlocal left
                while (await reader.receive()).payload != b"probe":
                    pass
                left -= 1
                if not left:
                    nursery.cancel_scope.cancel()

            for reader in readers:
                nursery.start_soon(hear, reader)
            while True:
                await writer.publish("news/probe", b"probe", qos=1)
                await trio.sleep(0.05)
