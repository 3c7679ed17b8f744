"""Blocks that are parts of programs run, too: what stands around them on their pages is here."""

from __future__ import annotations

import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import trio
import trio.testing
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from clearfunds.access import Passwords
from clearfunds.accounts import (
    NO_LIMIT,
    LatencyLimit,
    Ledger,
    Limit,
    RateLimit,
    StuckPolicy,
    Tracer,
    watch_limits,
    watch_patience,
)
from clearfunds.dataspace import Dataspace, Mailbox, Publication, TopicFilter
from clearfunds.dataspace.exchanges import Message, VirtualHost
from clearfunds.ranges.client import RangeReader
from clearfunds.sockets import ServerTls
from clearfunds.testing import Box, balanced
from clearfunds.transports.mqtt import ConnAck, Connect
from tests.docs.blocks import code_of, execute
from tests.ranges.server.relays import blocking
from tests.transports.certificates import papers_in
from tests.transports.mqtt.users import user_line
from tests.transports.peers import dial, running, until

if TYPE_CHECKING:
    from pathlib import Path

    from trio.testing import MockClock

SECONDS = 60.0


async def test_shares_and_a_rate_of_fairness() -> None:
    with balanced() as ledger:
        names: dict[str, Any] = {"ledger": ledger, "Limit": Limit, "RateLimit": RateLimit}
        await execute(code_of("fairness.md", 1), names)
        gold, free = names["gold"], names["free"]
        gold.limit = free.limit = NO_LIMIT  # only the server's limit is looked at
        box = Box(ledger, "box")
        for account, items in ((gold, 70_000), (free, 30_001)):
            with account.turn() as turn:
                turn.send(box, "work", items=items)
        # Of 100,000, three quarters are gold's.
        assert gold.funds_are_clear()
        assert not free.funds_are_clear()
        assert free.statistics().share_items == pytest.approx(30_000, rel=0.2)
        box.settle_all()
        assert free.funds_are_clear()
        await execute(code_of("fairness.md", 2), names)
        with free.turn(items=1_001, nbytes=0) as turn:
            pass
        assert not free.funds_are_clear()
        assert gold.funds_are_clear()
        free.rate = None


async def test_a_limit_in_seconds(autojump_clock: MockClock) -> None:
    with balanced(Ledger(clock=trio.current_time)) as ledger:
        dataspace = Dataspace(ledger)

        async def read(mailbox: Mailbox) -> None:
            async for loan in mailbox:
                with loan as events:
                    await trio.sleep(0.001 * len(events))

        with dataspace.subscribed(ledger.open("reader"), TopicFilter("news")) as mailbox:
            async with trio.open_nursery() as nursery:
                names: dict[str, Any] = {
                    "ledger": ledger, "LatencyLimit": LatencyLimit, "nursery": nursery,
                    "watch_limits": watch_limits,
                }  # fmt: skip
                await execute(code_of("latency-limit.md"), names)
                account = names["account"]
                before = account.limit
                nursery.start_soon(read, mailbox)
                until = trio.current_time() + 10
                while trio.current_time() < until:
                    await account.ensure_clear_funds()
                    with account.turn() as turn:
                        turn.publish(dataspace, Publication("news", b""))
                    await trio.lowlevel.checkpoint()
                nursery.cancel_scope.cancel()
        # It begins at its floor; a thousand a second are fifty in the target.
        assert before.items == 10
        assert 25 <= account.limit.items <= 75


async def test_a_subscription_with_patience(
    autojump_clock: MockClock, capsys: pytest.CaptureFixture[str]
) -> None:
    ledger = Ledger(clock=trio.current_time)
    dataspace = Dataspace(ledger)
    publisher = ledger.open("publisher", limit=Limit(items=10))
    got: list[bytes] = []

    async def take(events: tuple[Publication, ...]) -> None:
        is_first = not got
        got.extend(event.payload for event in events)
        await trio.sleep(60 if is_first else 0)  # too slow, once
        if got[-1] == b"99":
            scope.cancel()

    code = code_of(
        "patience.md", changes={"                ...\n": "                await take(events)\n"}
    )
    names = {
        "trio": trio, "ledger": ledger, "dataspace": dataspace, "TopicFilter": TopicFilter,
        "watch_patience": watch_patience, "StuckPolicy": StuckPolicy, "take": take,
        "account": ledger.open("subscriber"),
    }  # fmt: skip
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(execute, code, names))
            await trio.testing.wait_all_tasks_blocked()
            for number in range(100):
                await publisher.ensure_clear_funds()
                with publisher.turn() as turn:
                    turn.publish(dataspace, Publication("sensors/1", b"%d" % number))
            # It waited for the subscriber's two seconds, and not for its sixty.
            assert 2 <= trio.current_time() < 60
    assert scope.cancelled_caught
    assert got[0] == b"0"
    assert got[-1] == b"99"
    assert len(got) < 50
    assert "events are missing before this one" in capsys.readouterr().out
    ledger.audit()


async def test_an_authenticator_of_your_own() -> None:
    asked: list[tuple[str, bytes]] = []

    def ask_the_directory(user: str, password: bytes) -> bool:
        asked.append((user, password))
        return password == b"right"

    names: dict[str, Any] = {"ask_the_directory": ask_the_directory}
    await execute(code_of("security.md"), names)
    assert not isinstance(names["Directory"](), Passwords)
    async with running(passwords=names["Directory"](), wrong_password_delay=0) as relay:
        for password, code in ((b"right", 0), (b"wrong", 4)):
            async with dial(relay.port) as client:
                connect = Connect("c", True, 0, "anna", password)
                await client.stream.send_all(client.connection.send(connect))
                await client.expect(ConnAck(False, code))
    assert asked == [("anna", b"right"), ("anna", b"wrong")]


async def test_a_tracer_in_a_program(capsys: pytest.CaptureFixture[str]) -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    with balanced() as ledger:
        account, box = ledger.open("sensor/7"), Box(ledger, "box")

        async def publish() -> None:
            while not account.tracers:  # noqa: ASYNC110
                await trio.sleep(0.001)
            with account.turn(items=1) as turn:
                turn.send(box, "reading")
            box.settle_all()

        async with trio.open_nursery() as nursery:
            names: dict[str, Any] = {"ledger": ledger, "Tracer": Tracer, "trio": trio}
            nursery.start_soon(publish)
            await execute(code_of("tracing.md", 1), names)
            holder, *times, outcomes = capsys.readouterr().out.split(maxsplit=3)
            assert holder == "box"
            assert 0 <= float(times[0]) <= float(times[1])
            assert "delivered" in outcomes.lower()
            names |= {
                "tracer": provider.get_tracer("test"), "nursery": nursery, "partial": partial,
            }  # fmt: skip
            await execute(code_of("tracing.md", 2), names)
            with trio.fail_after(SECONDS):
                await publish()
                while len(exporter.get_finished_spans()) < 4:  # noqa: ASYNC110
                    await trio.sleep(0.001)
            nursery.cancel_scope.cancel()
    spans = sorted(span.name for span in exporter.get_finished_spans())
    assert spans == ["loan box", "loan box", "turn", "turn"]


async def test_a_virtual_host(autojump_clock: MockClock) -> None:
    with balanced() as ledger:
        names: dict[str, Any] = {
            "VirtualHost": VirtualHost, "Message": Message, "ledger": ledger,
            "dataspace": Dataspace(ledger), "alice": ledger.open("alice"),
        }  # fmt: skip
        code = code_of(
            "queues.md",
            2,
            changes={
                "    ...\n": "    delivery = await deliveries.receive()\n"
                "    with delivery as event:\n        body = event.body\n"
            },
        )
        await execute(code, names)
        assert names["routed"]
        assert names["body"] == b"a job"
        assert len(names["queue"]) == 0


async def test_a_reader_with_a_password_over_tls(tmp_path: Path) -> None:
    papers = papers_in(tmp_path)
    users = tmp_path / "users"
    users.write_text(user_line("press", b"secret"), "utf-8")
    users.chmod(0o600)
    settings: dict[str, Any] = {
        "listen": ("mqtt+tcp://127.0.0.1:0", "subscribe+tls://127.0.0.1:0"),
        "passwords": Passwords.from_file(users),
        "tls": ServerTls(papers.for_server().for_server),
    }
    async with running(**settings) as relay, dial(relay.port) as client:
        changes = {
            "relay.example": "127.0.0.1",
            "7701": relay.addresses.listening[-1].rpartition(":")[2],
            "/etc/clearfunds/ca.pem": str(papers.trusted),
            "    ...\n": "    attached.set()\n    read.extend(rows_of(reader))\n",
        }
        attached, read = threading.Event(), list[bytes]()
        names = {"secret": "secret", "attached": attached, "read": read, "rows_of": rows_of}
        async with trio.open_nursery() as nursery:
            code = code_of("range-readers.md", 2, changes=changes)
            nursery.start_soon(blocking, exec, code, names)
            await until(attached.is_set)
            await client.stream.send_all(
                client.connection.send(Connect("c", True, 0, "press", b"secret"))
            )
            await client.expect(ConnAck(False, 0))
            await client.publish("plant/1", b"20.5", qos=1)
    assert read == [b"20.5"]


def rows_of(reader: RangeReader) -> list[bytes]:
    """Return the first message that comes, as soon as it is there."""
    give_up = time.monotonic() + SECONDS
    while reader.head()[1] == reader.start:
        assert time.monotonic() < give_up
        time.sleep(0.01)
    blocks = reader.fetch(reader.start, reader.head()[1])
    return [row.value for block in blocks for row in block.rows()]
