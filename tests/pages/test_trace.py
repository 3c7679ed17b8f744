"""`/trace.json`: what the next events of an account cause, as a page; and its limits."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
import trio
import trio.lowlevel
from trio.testing import wait_all_tasks_blocked

from clearfunds.accounts import Ledger, Limit, Outcome, Tracer, commit_run
from clearfunds.dataspace import Asserted, Batch, Publication, Retracted
from clearfunds.pages import Pages, Request, serve_http
from clearfunds.pages._trace_page import TRACERS_MAX, TracePage
from clearfunds.testing import Box
from clearfunds.transports._trace_label import label_of
from tests.transports.peers import connected, running, until

SECONDS = 30


class Scene:
    """A publisher and two who hold what it publishes."""

    def __init__(self) -> None:
        self.ledger = Ledger()
        self.page = TracePage(self.ledger)
        self.pub = self.ledger.open("mqtt:1883/-/pub", limit=Limit(items=2, low_items=0))
        self.boxes = [Box(self.ledger, f"b{n}") for n in range(2)]

    def publish(self, topic: str = "t") -> None:
        commit_run(self.pub, self.boxes, Publication(topic, b"secret"), 1, 10)

    def work(self) -> None:
        for box in self.boxes:
            box.settle_all(Outcome.DELIVERED)

    async def ask(self, query: str) -> tuple[int, Any]:
        with trio.fail_after(SECONDS):
            response = await self.page.trace(Request.parse("GET", f"/trace.json?{query}"))
            if isinstance(response.body, bytes):
                return response.status, response.body.decode()
            assert response.endless
            try:
                text = b"".join([piece async for piece in response.body])
            finally:
                await response.body.aclose()  # type: ignore[attr-defined]
        return response.status, json.loads(text)

    def idle(self) -> None:
        """See that nothing is left of any trace."""
        assert self.page.tracing == 0
        assert self.ledger.tracers == []
        assert self.ledger.traces == []
        assert self.pub.tracers is None


async def test_a_trace_as_json() -> None:
    scene = Scene()
    found: list[tuple[int, Any]] = []

    async def ask() -> None:
        found.append(await scene.ask("account=mqtt:1883/-/pub&wait=20"))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        await wait_all_tasks_blocked()
        assert scene.page.tracing == 1
        scene.publish("a/b")
        scene.work()
    status, page = found[0]
    assert status == 200
    assert (page["account"], page["armed"]) == ("mqtt:1883/-/pub", 1)
    assert (page["waits"], page["waits_more"]) == ([], 0)
    (trace,) = page["traces"]
    assert trace["account"] == "mqtt:1883/-/pub"
    assert trace["complete"] is True
    assert trace["outcomes"] == {"delivered": 2}
    assert trace["followed"] == {"loans": 2, "items": 2, "bytes": 20}
    root = trace["root"]
    assert (root["items"], root["bytes"], root["outcome"]) == (1, 10, "delivered")
    assert root["labels"] == ["a/b"]
    assert [loan["holder"] for loan in root["loans"]] == ["b0", "b1"]
    loan = root["loans"][0]
    assert loan["settlements"][0]["outcome"] == "delivered"
    assert 0 <= loan["lent"] <= loan["ended"] <= trace["seconds"]
    assert root["ended"] <= loan["ended"]
    # What was said is nobody's business.
    assert "secret" not in json.dumps(page)
    scene.idle()


async def test_what_is_not_over_in_time_is_told_as_it_stands() -> None:
    scene = Scene()
    found: list[Any] = []

    async def ask() -> None:
        found.append(await scene.ask("account=*&wait=0.2&events=3&loans=1"))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        await wait_all_tasks_blocked()
        scene.publish()
        scene.work()
        scene.publish()
        scene.boxes[0].settle_all(Outcome.DELIVERED)
    first, second = found[0][1]["traces"]
    assert first["complete"]
    assert first["not_shown"] == {"loans": 1, "items": 1, "bytes": 10}
    assert not second["complete"]
    assert second["left_items"] == 1
    (loan,) = second["root"]["loans"]
    assert loan["ended"] is None
    assert loan["held"][0]["holder"] == "b1"
    assert loan["held"][0]["items"] == 1
    assert loan["held"][0]["idle_seconds"] > 0
    scene.work()
    scene.idle()
    scene.ledger.audit()


async def test_nothing_comes_from_who_waits_and_it_says_on_whom() -> None:
    scene = Scene()
    scene.ledger.open("other")
    scene.publish()
    scene.publish()
    scene.boxes[0].settle_all(Outcome.DELIVERED)
    scene.publish()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(scene.pub.ensure_clear_funds)
        await wait_all_tasks_blocked()
        _, page = await scene.ask("account=*pub&wait=0.01")
        assert page["traces"] == []
        (wait,) = page["waits"]
        assert (wait["account"], wait["at"]) == ("mqtt:1883/-/pub", "mqtt:1883/-/pub")
        assert (wait["debt_items"], wait["on_more"]) == (4, 0)
        assert [(on["holder"], on["items"]) for on in wait["on"]] == [("b1", 3), ("b0", 1)]
        _, page = await scene.ask("account=other&wait=0.01")
        assert page["waits"] == []
        scene.work()


async def test_only_loans_to_holders_that_are_asked_for() -> None:
    scene = Scene()
    found: list[Any] = []

    async def ask() -> None:
        found.append(await scene.ask("account=*&holder=b1"))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        await wait_all_tasks_blocked()
        scene.publish()
        scene.boxes[1].settle_all(Outcome.DELIVERED)
    (trace,) = found[0][1]["traces"]
    assert [loan["holder"] for loan in trace["root"]["loans"]] == ["b1"]
    assert trace["not_followed"] == {"loans": 1, "items": 1, "bytes": 10}
    scene.work()


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("", "Name the accounts to follow"),
        ("account=", "Name the accounts to follow"),
        ("account=a&account=b", "account is given 2 times"),
        ("account=" + "a" * 201, "201 characters"),
        ("account=a&wait=0", "wait is the most seconds to wait"),
        ("account=a&wait=61", "up to 60"),
        ("account=a&wait=soon", "wait is the most seconds to wait"),
        ("account=a&events=0", "events is a whole number from 1 to 20"),
        ("account=a&events=21", "events is a whole number from 1 to 20"),
        ("account=a&loans=1001", "loans is a whole number from 1 to 1000"),
        ("account=a&holder=" + "*" * 201, "201 characters"),
    ],
)
async def test_what_cannot_be_asked_for(query: str, said: str) -> None:
    scene = Scene()
    status, sentence = await scene.ask(query)
    assert status == 400
    assert re.search(said, sentence)
    scene.idle()


async def test_an_account_that_is_not_there_and_what_is_like_it() -> None:
    scene = Scene()
    for number in range(20):
        scene.ledger.open(f"something/else/{number}")
    status, sentence = await scene.ask("account=mqtt:1884/-/pub")
    assert status == 404
    assert "No account is called 'mqtt:1884/-/pub'" in sentence
    assert "of 21: mqtt:1883/-/pub," in sentence
    status, sentence = await TracePageOf(Ledger()).ask("account=a")
    assert (status, sentence) == (404, "No account is called 'a', or matches that.\n")
    scene.idle()


class TracePageOf(Scene):
    """A page of a ledger without accounts."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.page = TracePage(ledger)


async def test_a_name_that_looks_like_a_broken_pattern_is_a_name() -> None:
    scene = Scene()
    scene.ledger.open("+strange?name")
    status, page = await scene.ask("account=%2Bstrange?name&wait=0.01")
    assert (status, page["armed"]) == (200, 1)


async def test_very_long_names_are_cut() -> None:
    scene = Scene()
    status, sentence = await scene.ask("account=" + "x" * 190)
    assert status == 404
    assert len(sentence) < 1000


async def test_so_many_at_once_and_no_more() -> None:
    scene = Scene()
    async with trio.open_nursery() as nursery:
        for _ in range(TRACERS_MAX):
            nursery.start_soon(scene.ask, "account=*&wait=20")
        await wait_all_tasks_blocked()
        status, sentence = await scene.ask("account=*")
        assert status == 503
        assert "under way already" in sentence
        nursery.cancel_scope.cancel()
    scene.idle()


async def test_a_body_that_is_never_asked_for_is_closed_all_the_same() -> None:
    scene = Scene()
    response = await scene.page.trace(Request.parse("HEAD", "/trace.json?account=*"))
    assert scene.page.tracing == 1
    await response.body.aclose()  # type: ignore[union-attr]
    await response.body.aclose()  # type: ignore[union-attr]
    scene.idle()


async def test_with_many_accounts_the_loop_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("STRETCH_SECONDS", "STRETCH_SECONDS_MAX"):
        monkeypatch.setattr(f"clearfunds.pages._cooperative.{name}", 0.0)
    scene = Scene()
    for number in range(5000):
        scene.ledger.open(f"mqtt:1883/tenant/client-{number}")
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(count)
        status, page = await scene.ask("account=mqtt*client-[0-9]*&wait=0.001")
        nursery.cancel_scope.cancel()
    assert (status, page["armed"]) == (200, 5000)
    assert turns > 10
    assert all(account.tracers is None for account in scene.ledger.accounts.values())


# -- over HTTP -------------------------------------------------------------------------------------


@asynccontextmanager
async def served(ledger: Ledger) -> AsyncGenerator[tuple[Pages, int]]:
    pages = Pages(ledger)
    async with trio.open_nursery() as nursery:
        urls: list[str] = await nursery.start(partial(serve_http, pages.handlers()))
        yield pages, int(urls[0].rpartition(":")[2])
        nursery.cancel_scope.cancel()


async def test_a_client_that_goes_away_disarms() -> None:
    scene = Scene()
    async with served(scene.ledger) as (_, port):
        stream = await trio.open_tcp_stream("127.0.0.1", port)
        await stream.send_all(b"GET /trace.json?account=*&wait=60 HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await stream.receive_some()).startswith(b"HTTP/1.1 200")
        await until(lambda: scene.pub.tracers)
        await stream.aclose()
        await until(lambda: not scene.ledger.tracers)
        assert scene.pub.tracers is None


async def test_the_ledger_is_the_same_while_something_is_traced() -> None:
    scene = Scene()
    parent = scene.ledger.open("tenant")
    child = scene.ledger.open("child", parent=parent)
    with Tracer(scene.ledger, events=9):
        scene.publish()
        commit_run(child, scene.boxes, b"", 2, 20)
        scene.publish()
        response = await Pages(scene.ledger).ledger_json(Request.parse("GET", "/ledger.json"))
        assert not isinstance(response.body, bytes)
        page = json.loads(b"".join([piece async for piece in response.body]))
        await response.body.aclose()  # type: ignore[attr-defined]
    assert page["audit"]["balanced"] is True
    assert {row["account"]: row["items"] for row in page["matrix"] if row["holder"] == "b0"} == {
        "mqtt:1883/-/pub": 2,
        "child": 2,
    }
    scene.work()
    scene.ledger.audit()


async def test_it_is_among_the_pages() -> None:
    scene = Scene()
    async with served(scene.ledger) as (_, port):
        stream = await trio.open_tcp_stream("127.0.0.1", port)
        async with stream:
            await stream.send_all(b"GET /nowhere HTTP/1.1\r\nHost: x\r\n\r\n")
            assert b"/trace.json" in await stream.receive_some()


# -- with a real relay -----------------------------------------------------------------------------


async def test_who_still_holds_it_is_named_and_the_books_balance() -> None:
    async with (
        running(http="127.0.0.1:0", grace=0.0) as relay,
        connected(relay.port, "slow", receive_buffer=4096) as slow,
        connected(relay.port, "fast") as fast,
        connected(relay.port, "acks") as acks,
        connected(relay.port, "pub") as pub,
    ):
        await slow.subscribe("#")
        await fast.subscribe("#")
        await acks.subscribe("#", qos=1)
        assert relay.relay.pages is not None
        page = TracePage(relay.ledger)

        async def trace(wait: float, send: Any) -> Any:
            found: list[Any] = []

            async def ask() -> None:
                request = Request.parse("GET", f"/trace.json?account=*/pub&wait={wait}")
                response = await page.trace(request)
                assert not isinstance(response.body, bytes)
                found.append(json.loads(b"".join([piece async for piece in response.body])))
                await response.body.aclose()  # type: ignore[attr-defined]

            async with trio.open_nursery() as nursery:
                nursery.start_soon(ask)
                await until(lambda: relay.account("pub").tracers)
                await send()
                relay.audit()
            (found_trace,) = found[0]["traces"]
            return found_trace

        async def publish() -> None:
            await pub.publish("a/b", b"x" * 1000, qos=1)

        await pub.publish("warm", b"")
        for client in (slow, fast, acks):
            await client.publication()
        first = await trace(0.3, publish)
        by_kind = {(loan["holder"][-4:], loan["kind"]): loan for loan in first["root"]["loans"]}
        assert set(by_kind) == {("slow", "outlet"), ("fast", "outlet"), ("acks", "inflight")}
        # The one has not acknowledged: the kernel's having it is not enough.
        assert by_kind["acks", "inflight"]["held"][0]["holder"].endswith("acks")
        assert first["outcomes"] == {"delivered": 2}
        assert first["root"]["labels"] == ["a/b"]
        await acks.publications(1, ack=True)
        await until(lambda: relay.account("pub").debt_items == 0)

        outlet = relay.relay.mqtt.sessions["slow"].outlet
        while not outlet.blocked:
            await pub.publish("big", b"x" * 100_000)
            await trio.lowlevel.checkpoint()
            with trio.move_on_after(0.001):
                await fast.publication()
        second = await trace(0.3, partial(pub.publish, "late", b"y"))
        (left,) = [loan for loan in second["root"]["loans"] if loan["held"]]
        assert left["holder"].endswith("/slow")
        assert left["held"][0]["idle_seconds"] > 0
        assert second["outcomes"]["delivered"] >= 1
        relay.audit()


# -- labels ----------------------------------------------------------------------------------------


def test_what_an_event_is_called() -> None:
    class Foo:
        pass

    class Broken:
        @property
        def first(self) -> object:
            raise ZeroDivisionError

    def explode(raw: bytes) -> list[Publication]:
        return [Publication(raw.decode(), b""), Publication("other", b"")]

    assert label_of(Publication("a/b", b"")) == "a/b"
    assert label_of(Batch(b"c", 2, explode)) == "c"
    assert label_of(Batch(b"c", 0, lambda raw: [])) == "?"
    assert label_of(Foo()) == "Foo"
    assert label_of(Asserted(Foo())) == "assert Foo"
    assert label_of(Retracted(("a", 1))) == "retract tuple"
    assert label_of(Broken()) == "?"
