"""What JSON the pages show has the fields that a program gets."""

from __future__ import annotations

import json
import logging
import re
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final, cast

import trio

from clearfunds._cli._logging import JsonLines
from clearfunds.accounts import Ledger, Limit, commit_run, watch_slow_waits
from clearfunds.dataspace import Publication
from clearfunds.pages import Request
from clearfunds.pages._trace_page import TracePage
from clearfunds.testing import Box, balanced
from tests.docs.blocks import DOCS, code_of
from tests.transports.peers import until

if TYPE_CHECKING:
    import pytest
    from trio.testing import MockClock


PAGE: Final = (DOCS / "tracing.md").read_text("utf-8")


def shape_of(value: Any) -> Any:
    """Return which fields there are, at any depth; of a list those of its first."""
    if isinstance(value, dict):
        fields = cast("dict[str, Any]", value)
        return {name: shape_of(each) for name, each in fields.items()}
    if isinstance(value, list):
        several = cast("list[object]", value)
        return [shape_of(each) for each in several[:1]]
    return None


async def test_a_trace() -> None:
    (target,) = re.findall(r"curl 'http://127.0.0.1:9100(/trace.json.*)'", PAGE)
    found: list[Any] = []
    with balanced() as ledger:
        page, account = TracePage(ledger), ledger.open("mqtt:1883/press/newsroom")
        boxes = [Box(ledger, f"mqtt:1883/press/{name}") for name in ("front-page", "search")]

        async def ask() -> None:
            response = await page.trace(Request.parse("GET", target))
            body: Any = response.body  # endless: it ends with the trace
            async with aclosing(body):
                found.append(json.loads(b"".join([piece async for piece in body])))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await until(lambda: account.tracers)
            commit_run(account, boxes, Publication("press/news", b""), 1, 1015)
            for box in boxes:
                box.settle_all()
    assert shape_of(json.loads(code_of("tracing.md", language="json"))) == shape_of(found[0])


async def test_a_line_of_the_log(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "clearfunds.accounts")
    ledger = Ledger(clock=trio.current_time)
    ledger.warned_unwatched = True
    with balanced(ledger):
        account = ledger.open("mqtt:1883/-/pub", limit=Limit(items=4))
        box = Box(ledger, "mqtt:1883/-/archive")
        commit_run(account, [box], None, 5, 50)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch_slow_waits, ledger)
            nursery.start_soon(account.ensure_clear_funds)
            await trio.sleep(1.1)
            box.settle_all()
            nursery.cancel_scope.cancel()
    line = json.loads(JsonLines().format(caplog.records[0]))
    shown = json.loads(code_of("logs.md", language="json"))
    assert shape_of(shown) == shape_of(line)
    assert {name: shown[name] for name in ("level", "logger", "event", "account", "at")} == {
        name: line[name] for name in ("level", "logger", "event", "account", "at")
    }
