"""The pages about a hub's books, mounted in a program: by hand under both loops, and served."""

from __future__ import annotations

import json
import urllib.error
import urllib.request

import anyio
import attrs
import pytest
import trio
from anyio import wait_all_tasks_blocked

from clearfunds.accounts import Ledger, Limit
from clearfunds.asgi import Hub, debt_pages
from clearfunds.asgi._types import App, Message, Scope
from clearfunds.dataspace import Publication
from tests.asgi.conftest import Served
from tests.loops import LoopClock, open_nursery
from tests.pages.chromium import CHROMIUM, WHY_NOT, browsing

LIVE = "document.querySelector('#link').dataset.state === 'live'"


@pytest.fixture
def hub() -> Hub:
    return Hub(limit=Limit(items=10), ledger=Ledger(clock=LoopClock()))


@attrs.define
class Client:
    """A client of an ASGI application, called by hand."""

    app: App
    root: str = "/debt"
    leaves: anyio.Event = attrs.field(factory=anyio.Event)
    got: list[Message] = attrs.field(factory=list[Message])

    async def get(self, path: str, *, method: str = "GET") -> tuple[int, dict[str, str], bytes]:
        """Return status, header and body."""
        where, _, query = path.partition("?")
        scope: Scope = {
            "type": "http",
            "method": method,
            "path": f"{self.root}{where}",
            "root_path": self.root,
            "query_string": query.encode(),
            "headers": [],
        }
        self.got = []
        await self.app(scope, self._receive, self._send)
        start, *pieces = self.got
        header = {name.decode(): value.decode() for name, value in start["headers"]}
        return start["status"], header, b"".join(piece["body"] for piece in pieces)

    async def _receive(self) -> Message:
        await self.leaves.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        self.got.append(message)
        await anyio.lowlevel.checkpoint()


async def test_each_page(hub: Hub) -> None:
    client = Client(debt_pages(hub))
    async with hub:
        with hub.open("newsroom") as newsroom, hub.subscribe("alice", "news"):
            await hub.publish(newsroom, Publication("news", b"1:0"))
            status, header, body = await client.get("/ledger.json")
            assert (status, header["content-type"]) == (200, "application/json")
            accounts = {each["name"]: each for each in json.loads(body)["accounts"]}
            assert accounts["newsroom"]["debt"]["items"] == 1
            top = json.loads((await client.get("/ledger.json?top=1"))[2])
            assert top["accounts"][0]["name"] == "newsroom"
            status, header, body = await client.get("/metrics")
            assert b"\nclearfunds_debt_items 1.0\n" in body
            assert int(header["content-length"]) == len(body)
            assert b'"newsroom"' in (await client.get("/metrics/detailed?family=account"))[2]
            assert "totals" in json.loads((await client.get("/history.json"))[2])
            assert (await client.get("/healthz"))[2] == b"The program is alive.\n"
            assert (await client.get("/readyz"))[2] == b"The program is ready.\n"
            traced = await client.get("/trace.json?account=newsroom&wait=0.01&events=1")
            assert json.loads(traced[2])["traces"] == []
            status, header, body = await client.get("/")
            assert header["content-type"].startswith("text/html")
            # The page may lie below any path.
            assert b'src="/' not in body
            assert b'href="/' not in body
            status, header, body = await client.get("/", method="HEAD")
            assert (status, body) == (200, b"")
            assert int(header["content-length"]) > 1000
            assert (await client.get("/ledger.json", method="HEAD"))[2] == b""


async def test_what_is_refused(hub: Hub) -> None:
    async def nobody(scope: Scope) -> bool:
        await anyio.lowlevel.checkpoint()
        return str(scope["path"]).endswith("metrics")

    client = Client(debt_pages(hub))
    closed = Client(debt_pages(hub, allow=nobody))
    async with hub:
        assert (await client.get("/", method="POST"))[0] == 405
        assert (await client.get("/nothing"))[0] == 404
        assert (await client.get("/metrics/detailed?family=nothing"))[0] == 400
        status, header, _ = await client.get("")
        assert (status, header["location"]) == (307, "debt/")
        assert (await closed.get("/"))[0] == 403
        assert (await closed.get("/metrics"))[0] == 200
        # A framework that has taken off what it matched.
        client.root = ""
        assert (await client.get("/metrics"))[0] == 200
    with pytest.raises(RuntimeError, match="HTTP"):
        await client.app({"type": "websocket"}, client._receive, client._send)  # pyright: ignore[reportPrivateUsage]


async def test_a_stream_ends_when_its_client_leaves(hub: Hub) -> None:
    client = Client(debt_pages(hub))
    async with hub, open_nursery() as nursery:
        nursery.start_soon(client.get, "/live/events")
        with anyio.fail_after(60):
            while len(client.got) < 3:  # noqa: ASYNC110
                await anyio.sleep(0.01)
            client.leaves.set()
        await wait_all_tasks_blocked()
        assert client.got[1]["body"].startswith(b"retry: ")
        # Every browser that may watch finds room: nobody counts as watching.
        for _ in range(20):
            again = Client(client.app)
            again.leaves.set()
            await again.get("/live/events", method="HEAD")
            assert again.got[0]["status"] == 200


async def test_pages_come_before_the_hub(hub: Hub) -> None:
    async with hub:
        with pytest.raises(RuntimeError, match="runs already"):
            debt_pages(hub)


def test_they_are_served_below_a_path(served: Served) -> None:
    url = f"http://127.0.0.1:{served.port}"
    with urllib.request.urlopen(f"{url}/debt", timeout=60) as answer:
        assert answer.url == f"{url}/debt/"
        assert b"live/page.js" in answer.read()
    with urllib.request.urlopen(f"{url}/debt/live/page.js", timeout=60) as answer:
        assert answer.headers["Content-Type"].startswith("text/javascript")
    with urllib.request.urlopen(f"{url}/debt/live/events", timeout=60) as answer:
        while not answer.readline().startswith(b"event: sample"):
            pass
        assert json.loads(answer.readline()[6:])["totals"]["debt_items"] == 0
    with pytest.raises(urllib.error.HTTPError, match="403"):
        urllib.request.urlopen(f"{url}/closed/", timeout=60)


@pytest.mark.skipif(CHROMIUM is None, reason=WHY_NOT)
def test_a_browser_shows_them_below_a_path(served: Served) -> None:
    async def look() -> None:
        async with browsing() as browser:
            with trio.fail_after(60):
                tab = await browser.open(f"http://127.0.0.1:{served.port}/debt/")
                await tab.until(LIVE)
                await tab.until(
                    "document.querySelector('#verdict').textContent.includes('Nobody waits')"
                )
            assert browser.complaints == []

    trio.run(look)
