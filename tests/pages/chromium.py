"""A real browser for the tests: headless Chromium, driven over its DevTools protocol."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final

import attrs
import trio
from trio_websocket import WebSocketConnection, open_websocket_url

from tests.transports.peers import kill

CHROMIUM: Final = shutil.which("chromium") or shutil.which("chromium-browser")
"""The browser, or None if there is none here."""

WHY_NOT: Final = "there is no chromium here (Debian: apt-get install chromium)"

START_SECONDS: Final = 60
MESSAGE_BYTES: Final = 64 << 20
# A screenshot is one message.


LIVE: Final = "document.querySelector('#link')?.dataset.state === 'live'"
"""Whether the live page is there."""


@attrs.define(eq=False)
class Browser:
    """A running browser. What its pages complain of is in `complaints`."""

    socket: WebSocketConnection
    complaints: list[str] = attrs.field(factory=list[str])
    login: tuple[str, str] = ("", "")
    """The user and the password that are given to a page that asks for them."""
    challenges: int = 0
    """How often one has asked. The first one is answered, as by a person in a dialogue."""
    _number: int = 0
    _answers: dict[int, dict[str, Any]] = attrs.field(factory=dict[int, dict[str, Any]])
    _asked: dict[int, trio.Event] = attrs.field(factory=dict[int, trio.Event])

    async def read(self) -> None:
        """Take in what the browser says, until cancelled."""
        while True:
            message: dict[str, Any] = json.loads(await self.socket.get_message())
            if "id" in message:
                self._answers[message["id"]] = message
                self._asked.pop(message["id"]).set()
            elif message["method"].startswith("Fetch."):
                await self._go_on(message)
            else:
                self._note(message["method"], message["params"])

    async def _go_on(self, message: dict[str, Any]) -> None:
        """Let a request go out; say who one is, where that is asked."""
        params: dict[str, Any] = {"requestId": message["params"]["requestId"]}
        method = "Fetch.continueRequest"
        if message["method"] == "Fetch.authRequired":
            method = "Fetch.continueWithAuth"
            user, password = self.login
            self.challenges += 1
            params["authChallengeResponse"] = {
                "response": "ProvideCredentials" if self.challenges == 1 else "CancelAuth",
                "username": user,
                "password": password,
            }
        self._number += 1
        self._asked[self._number] = trio.Event()
        await self.socket.send_message(
            json.dumps(
                {
                    "id": self._number,
                    "method": method,
                    "params": params,
                    "sessionId": message["sessionId"],
                }
            )
        )

    def _note(self, method: str, params: dict[str, Any]) -> None:
        if method == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(params["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning"):
            self.complaints.append(json.dumps(params["args"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.complaints.append(json.dumps(params["entry"]))

    async def call(self, method: str, session: str | None = None, **params: Any) -> Any:
        """Have the browser do something, and return its result."""
        self._number += 1
        number = self._number
        event = self._asked[number] = trio.Event()
        message: dict[str, Any] = {"id": number, "method": method, "params": params}
        if session is not None:
            message["sessionId"] = session
        await self.socket.send_message(json.dumps(message))
        await event.wait()
        answer = self._answers.pop(number)
        assert "error" not in answer, answer
        return answer["result"]

    async def open(
        self, url: str, *, width: int = 1200, height: int = 900, scheme: str = "light"
    ) -> Tab:
        """Open a page in a tab of that size, and wait until it is there."""
        target = (await self.call("Target.createTarget", url="about:blank"))["targetId"]
        attached = await self.call("Target.attachToTarget", targetId=target, flatten=True)
        tab = Tab(self, attached["sessionId"], target)
        for domain in ("Runtime", "Log", "Page"):
            await tab.call(f"{domain}.enable")
        if self.login[1]:
            await tab.call("Fetch.enable", handleAuthRequests=True)
        await tab.resize(width, height)
        await tab.prefer(scheme)
        await tab.call("Page.navigate", url=url)
        there = "location.href !== 'about:blank' && document.readyState === 'complete'"
        await tab.until(there)
        return tab


@attrs.frozen
class Seen:
    """What assistive software is told of one thing on a page."""

    role: str
    name: str
    live: bool
    """Whether its changes are read aloud."""
    level: int | None
    """Of a heading."""


@attrs.define(eq=False)
class Tab:
    """One page."""

    browser: Browser
    session: str
    target: str

    async def call(self, method: str, **params: Any) -> Any:
        """Have the browser do something with this page."""
        return await self.browser.call(method, self.session, **params)

    async def resize(self, width: int, height: int) -> None:
        """Give it a screen of that size, in CSS pixels; a narrow one is a phone's."""
        await self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1 if width > 600 else 2,
            mobile=width <= 600,
        )

    async def prefer(self, scheme: str, motion: str = "no-preference") -> None:
        """Have its reader prefer `light` or `dark`."""
        features = [
            {"name": "prefers-color-scheme", "value": scheme},
            {"name": "prefers-reduced-motion", "value": motion},
        ]
        await self.call("Emulation.setEmulatedMedia", features=features)

    async def evaluate(self, expression: str) -> Any:
        """Return the value of an expression, which may be a promise."""
        result = await self.call(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    async def until(self, expression: str, every: float = 0.02) -> Any:
        """Wait until an expression is true, and return its value."""
        while not (value := await self.evaluate(expression)):  # noqa: ASYNC110
            await trio.sleep(every)
        return value

    async def press(self, key: str, code: int = 0, text: str = "") -> None:
        """Press a key and let it go."""
        common: dict[str, Any] = {"key": key, "code": key, "windowsVirtualKeyCode": code}
        await self.call("Input.dispatchKeyEvent", type="keyDown", text=text, **common)
        await self.call("Input.dispatchKeyEvent", type="keyUp", **common)

    async def click(self, x: float, y: float) -> None:
        """Click somewhere, in CSS pixels from the left and from the top."""
        place: dict[str, Any] = {"x": x, "y": y, "button": "left", "clickCount": 1}
        await self.call("Input.dispatchMouseEvent", type="mousePressed", **place)
        await self.call("Input.dispatchMouseEvent", type="mouseReleased", **place)

    async def accessibility(self) -> list[Seen]:
        """Return what assistive software is told of the page, from the top down."""
        await self.call("Accessibility.enable")
        answer = await self.call("Accessibility.getFullAXTree")
        await self.call("Accessibility.disable")
        nodes = {node["nodeId"]: node for node in answer["nodes"]}
        found: list[Seen] = []
        left = [answer["nodes"][0]["nodeId"]]
        while left:
            node = nodes[left.pop()]
            left.extend(reversed(node.get("childIds", [])))
            if not node["ignored"]:
                properties = {each["name"]: each["value"] for each in node.get("properties", ())}
                live = properties.get("live", {}).get("value", "off") != "off"
                level = properties.get("level", {}).get("value")
                name = node.get("name", {}).get("value", "")
                found.append(Seen(node["role"]["value"], name, live, level))
        return found

    async def screenshot(
        self, *, whole: bool = False, clip: tuple[int, int, int, int] | None = None
    ) -> bytes:
        """Return a picture of what is on the screen, or of the whole page, as PNG.

        `clip` is the part of it that is wanted: left, top, width, height.
        """
        part: dict[str, Any] = {}
        if clip is not None:
            part["clip"] = dict(zip(("x", "y", "width", "height"), clip, strict=True), scale=1)
        result = await self.call(
            "Page.captureScreenshot", format="png", captureBeyondViewport=whole, **part
        )
        return base64.b64decode(result["data"])

    async def close(self) -> None:
        """Close it."""
        await self.browser.call("Target.closeTarget", targetId=self.target)


async def text_of(tab: Tab, selector: str) -> str:
    """What stands there, as a person reads it."""
    text = await tab.evaluate(f"document.querySelector({selector!r}).innerText")
    assert isinstance(text, str)
    # Some of its spaces do not break.
    return " ".join(text.split())


async def shows(tab: Tab, selector: str, text: str) -> None:
    """Wait until something stands there."""
    shown = f"document.querySelector({selector!r}).innerText.replace(/\\s+/g, ' ')"
    await tab.until(f"{shown}.includes({text!r})")


@asynccontextmanager
async def browsing() -> AsyncGenerator[Browser]:
    """Run a browser for the time of the block."""
    assert CHROMIUM is not None
    # It leaves helpers behind for a moment, which still write to it.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        command = [
            CHROMIUM,
            "--headless=new",
            "--no-sandbox",  # Tests may run as root.
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--disable-background-networking",
            "--no-first-run",
            "--hide-scrollbars",
            "--remote-debugging-port=0",
            f"--user-data-dir={folder}",
            "about:blank",
        ]
        async with trio.open_nursery() as nursery:
            run = partial(
                trio.run_process,
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                env={**os.environ, "TMPDIR": folder},  # Its lock's socket has a folder there.
                check=False,
                deliver_cancel=kill,
            )
            process: trio.Process = await nursery.start(run)
            assert process.stderr is not None
            with trio.fail_after(START_SECONDS):
                url = await _address(process.stderr)
            nursery.start_soon(_ignore, process.stderr)
            async with open_websocket_url(url, max_message_size=MESSAGE_BYTES) as socket:
                browser = Browser(socket)
                async with trio.open_nursery() as reading:
                    reading.start_soon(browser.read)
                    yield browser
                    reading.cancel_scope.cancel()
            process.terminate()
            with trio.move_on_after(10):
                await process.wait()
            nursery.cancel_scope.cancel()


async def _address(stderr: trio.abc.ReceiveStream) -> str:
    said = b""
    async for piece in stderr:
        said += piece
        for line in said.split(b"\n")[:-1]:
            _, found, url = line.partition(b"DevTools listening on ")
            if found:
                return url.strip().decode()
    raise AssertionError(said.decode(errors="replace"))


async def _ignore(stream: trio.abc.ReceiveStream) -> None:
    async for _ in stream:
        pass
