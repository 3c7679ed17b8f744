"""The channel layer for Django Channels, through Channels' own interfaces."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import logging
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "channels_layer.py"


@pytest.fixture
def layer_of(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Return a function that makes a layer."""
    if importlib.util.find_spec("channels") is None:
        pytest.skip("not installed: channels")
    settings: Any = importlib.import_module("django.conf").settings
    if not settings.configured:
        settings.configure()
    spec = importlib.util.spec_from_file_location("channels_layer", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "channels_layer", module)
    spec.loader.exec_module(module)
    make: Callable[..., Any] = module.LedgerChannelLayer
    return make


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(main())


def test_groups_and_channels(layer_of: Callable[..., Any]) -> None:
    async def main() -> None:
        layer = layer_of()
        one, two = await layer.new_channel(), await layer.new_channel()
        await layer.group_add("chat", one)
        await layer.group_add("chat", two)
        for number in range(3):
            await layer.group_send("chat", {"type": "chat.message", "number": number})
        await layer.send(one, {"type": "direct"})
        assert layer.ledger.accounts["group chat"].debt_items == 6
        got = [await layer.receive(one) for _ in range(4)]
        assert [each.get("number") for each in got] == [0, 1, 2, None]
        await layer.group_discard("chat", two)
        await layer.group_send("chat", {"type": "chat.message", "number": 3})
        assert [(await layer.receive(two))["number"] for _ in range(3)] == [0, 1, 2]
        assert (await layer.receive(one))["number"] == 3
        layer.ledger.audit()
        assert not layer.ledger.accounts
        assert not [each for each in layer.ledger.holders if each.kind == "mailbox"]
        # Whoever waits is woken, and nothing is lost when a wait is cancelled.
        waiting = asyncio.create_task(layer.receive(one))
        await asyncio.sleep(0)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await layer.receive(two)
        await layer.send(one, {"type": "hello"})
        assert (await waiting)["type"] == "hello"
        await layer.send(two, {"type": "hello"})
        await layer.flush()
        layer.ledger.audit()
        assert not layer.ledger.accounts

    run(main)


def test_a_full_channel_is_named(
    layer_of: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    from channels.exceptions import ChannelFull

    async def main() -> None:
        layer = layer_of(capacity=5, channel_capacity={"big*": 8})
        for name in ("stuck", "awake", "big"):
            await layer.group_add("prices", name)
        for number in range(10):
            await layer.group_send("prices", {"type": "price", "number": number})
            assert (await layer.receive("awake"))["number"] == number
        with pytest.raises(ChannelFull):
            await layer.send("stuck", {"type": "price"})
        assert [(await layer.receive("stuck"))["number"] for _ in range(5)] == [0, 1, 2, 3, 4]
        assert [(await layer.receive("big"))["number"] for _ in range(8)] == list(range(8))
        layer.ledger.audit()

    with caplog.at_level(logging.WARNING, "channels_layer"):
        run(main)
    assert [record.getMessage() for record in caplog.records] == [
        "stuck is over capacity: 5 of group prices",
        "big is over capacity: 8 of group prices",
    ]


def test_old_messages_expire(layer_of: Callable[..., Any]) -> None:
    async def main() -> None:
        layer = layer_of(expiry=0.05)
        await layer.send("late", {"type": "old"})
        await asyncio.sleep(0.1)
        await layer.send("late", {"type": "new"})
        assert (await layer.receive("late"))["type"] == "new"
        assert layer.ledger.statistics().repaid_items["expired"] == 1
        assert not layer.ledger.accounts

    run(main)
