"""`clearfunds audit`: the books of one relay, and of several beside each other."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
import trio

from clearfunds._cli import run
from clearfunds.pages import Request, Response, serve_http
from tests.cluster.test_relays import client, cluster, goes_there
from tests.nats_servers import NatsServer, nats_server, needs_nats
from tests.transports.peers import connected, running, until


async def audit(*argv: str) -> int:
    """Run the command; return its exit status."""
    return await trio.to_thread.run_sync(run, ["audit", *argv])


async def test_one_relay(capsys: pytest.CaptureFixture[str]) -> None:
    async with running(http="127.0.0.1:0") as relay, connected(relay.port, "reader") as reader:
        await reader.subscribe("t")
        http = relay.addresses.http
        assert http is not None
        assert await audit(http) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[-1] == "All books balance."
    assert "owed by" not in out


@needs_nats
async def test_what_a_slow_consumer_elsewhere_has_is_owed_for(
    tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    with nats_server(tmp_path_factory.mktemp("nats")) as nats:
        await _audit_a_slow_consumer(nats, capsys)


async def _audit_a_slow_consumer(nats: NatsServer, capsys: pytest.CaptureFixture[str]) -> None:
    async with (
        cluster(nats, http="127.0.0.1:0", limit_items=20, stuck="wait") as (one, two),
        client(one, "newsroom") as writer,
        connected(two.port, "archive") as slow,  # it acknowledges nothing
    ):
        await slow.subscribe("news/#", qos=1)
        await goes_there(one, "news/a")
        async with trio.open_nursery() as nursery:

            async def publish() -> None:
                for _ in range(100):
                    await writer.publish("news/a", bytes(1000), qos=1)

            nursery.start_soon(publish)
            await until(lambda: one.relay.ledger.waiters)
            urls = [str(each.addresses.http) for each in (one, two)]
            assert await audit(*urls) == 0
            lines = [line.split() for line in capsys.readouterr().out.splitlines()]
            (row,) = [line for line in lines if line[:2] == ["r1", "r2"]]
            assert int(row[2]) >= int(row[3]) > 10
            assert row[-1] == "agree"
            nursery.cancel_scope.cancel()


@asynccontextmanager
async def pages(name: str, other: str, **said: Any) -> AsyncGenerator[str]:
    """Serve the pages of a relay with these books."""
    hop = {"epoch": 1, "next": 5, "given_up_items": 0, "out": said.get("out", [])}
    landing = {"epoch": 1, "next": 5, "unsettled": said.get("unsettled", [])}
    hops = {"relay": name, "relays": {other: {"away": False, "hop": hop, "landing": landing}}}
    ledger: dict[str, Any] = {
        "accounts": [],
        "totals": {"debt": {"items": 0}},
        "audit": {"balanced": said.get("balanced", True)},
    }

    async def answer(content: object, request: Request) -> Response:
        return Response(json.dumps(content).encode())

    handlers = {"/hops.json": partial(answer, hops), "/ledger.json": partial(answer, ledger)}
    async with trio.open_nursery() as nursery:
        urls: list[str] = await nursery.start(partial(serve_http, handlers))
        yield urls[0]
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("one", "two", "sentence"),
    [
        ({"balanced": False}, {}, "the books of a do not balance"),
        ({}, {"unsettled": [[3, 7]]}, "a and b: parcel 3: 7 items are there, and nobody owes"),
        ({"out": [[3, 6]]}, {"unsettled": [[3, 7]]}, "parcel 3: 7 items are there, and 6 are"),
    ],
)
async def test_what_does_not_balance_is_said(
    one: dict[str, Any], two: dict[str, Any], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    async with pages("a", "b", **one) as first, pages("b", "a", **two) as second:
        assert await audit(first, second) == 1
    assert sentence in capsys.readouterr().err


async def test_what_is_under_way_is_no_fault(capsys: pytest.CaptureFixture[str]) -> None:
    async with (
        pages("a", "b", out=[[3, 7], [4, 2]]) as first,
        pages("b", "a", unsettled=[[3, 7], [5, 9]]) as second,
    ):
        assert await audit(first, second) == 0
    assert ["a", "b", "9", "7", "2", "agree"] in [
        line.split() for line in capsys.readouterr().out.splitlines()
    ]


@pytest.mark.parametrize(
    ("argv", "status", "sentence"),
    [
        ((), 2, "give the URL of a relay's pages"),
        (("--cluster", "http://a:1", "http://b:1"), 2, "--cluster takes one URL"),
        (("mqtt://localhost:1883",), 2, "is no URL of a relay's pages"),
        (("http://127.0.0.1:9",), 1, "cannot reach http://127.0.0.1:9"),
    ],
)
def test_wrong_use(
    argv: tuple[str, ...], status: int, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["audit", *argv]) == status
    assert sentence in capsys.readouterr().err
