"""`clearfunds queues`: list, show, purge and move, against a relay with pika's clients."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pika
import pytest
import trio

from clearfunds._cli import run
from tests.transports.peers import RunningRelay, running

LISTEN = ("amqp+tcp://127.0.0.1:0",)


async def queues(*argv: str) -> int:
    """Run the command; return its exit status."""
    return await trio.to_thread.run_sync(run, ["queues", *argv])


def port_of(relay: RunningRelay) -> int:
    (url,) = relay.addresses.listening
    return int(url.rpartition(":")[2])


def pages_of(relay: RunningRelay) -> str:
    http = relay.addresses.http
    assert http is not None
    return http


async def with_pika(relay: RunningRelay, do: Callable[[Any], None]) -> None:
    """Do something with a channel of pika's, in a thread."""
    port = port_of(relay)

    def work() -> None:
        with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port)) as connection:
            do(connection.channel())

    await trio.to_thread.run_sync(work)


def publish(channel: Any, queue: str, count: int) -> None:
    channel.queue_declare(queue)
    channel.confirm_delivery()
    for number in range(count):
        properties = pika.BasicProperties(content_type="text/plain", headers={"n": number})
        channel.basic_publish("", queue, b"%d" % number, properties)


def ignore(*_: object) -> None:
    """Take a delivery, and do nothing with it."""


async def test_list_and_show(capsys: pytest.CaptureFixture[str]) -> None:
    async with running(listen=LISTEN, http="127.0.0.1:0") as relay:
        assert await queues("list", pages_of(relay)) == 0
        assert capsys.readouterr().out == "There are no queues.\n"
        await with_pika(relay, lambda channel: publish(channel, "jobs", 3))
        assert await queues("list", pages_of(relay)) == 0
        listed = capsys.readouterr().out.splitlines()
        assert listed[-1].split()[:2] == ["jobs", "3"]
        assert await queues("list", pages_of(relay), "--host", "other", "--json") == 0
        assert json.loads(capsys.readouterr().out) == []
        assert await queues("show", pages_of(relay), "jobs") == 0
        shown = capsys.readouterr().out
        assert "ready      3 messages" in shown
        assert "prefetch   0 of 0" in shown
        assert await queues("show", pages_of(relay), "jobs", "--json") == 0
        row = json.loads(capsys.readouterr().out)
        assert (row["ready"], row["host"], row["type"]) == (3, "/", "classic")
        assert await queues("show", pages_of(relay), "none") == 1
        assert "there is no queue none in virtual host /" in capsys.readouterr().err
        relay.relay.ledger.audit()


async def test_the_owner_of_what_a_consumer_holds_is_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with running(listen=LISTEN, http="127.0.0.1:0") as relay:
        seen: list[str] = []

        def consume(channel: Any) -> None:
            channel.basic_qos(prefetch_count=2)
            channel.queue_declare("jobs")
            channel.basic_consume("jobs", ignore)
            publish(channel, "jobs", 5)
            trio.from_thread.run(queues, "show", pages_of(relay), "jobs")
            seen.append(capsys.readouterr().out)

        await with_pika(relay, consume)
        assert "unacked    2 messages" in seen[0]
        assert "consumers  1, of which 1 are busy" in seen[0]
        assert "prefetch   2 of 2" in seen[0]
        assert "owed by" in seen[0]


async def test_purge(capsys: pytest.CaptureFixture[str]) -> None:
    async with running(listen=LISTEN, http="127.0.0.1:0") as relay:
        await with_pika(relay, lambda channel: publish(channel, "jobs", 3))
        where = f"amqp://127.0.0.1:{port_of(relay)}"
        assert await queues("purge", "jobs", "--amqp", where) == 0
        assert capsys.readouterr().out == "3\n"
        assert await queues("purge", "none", "--amqp", where) == 1
        assert "NOT_FOUND - no queue 'none' in vhost '/'" in capsys.readouterr().err
        relay.relay.ledger.audit()


async def test_move(capsys: pytest.CaptureFixture[str]) -> None:
    async with running(listen=LISTEN, http="127.0.0.1:0") as relay:

        def declare(channel: Any) -> None:
            publish(channel, "jobs", 5)
            channel.queue_declare("later")

        await with_pika(relay, declare)
        where = f"amqp://127.0.0.1:{port_of(relay)}"
        assert await queues("move", "jobs", "later", "--count", "2", "--amqp", where) == 0
        assert await queues("move", "jobs", "later", "--amqp", where) == 0
        assert capsys.readouterr().out == "2\n3\n"
        found: list[tuple[bytes, Any]] = []

        def take(channel: Any) -> None:
            assert channel.basic_get("jobs")[0] is None
            for _ in range(5):
                _, properties, body = channel.basic_get("later", auto_ack=True)
                found.append((body, properties))

        await with_pika(relay, take)
        assert [body for body, _ in found] == [b"0", b"1", b"2", b"3", b"4"]
        assert [each.headers for _, each in found] == [{"n": number} for number in range(5)]
        assert {each.content_type for _, each in found} == {"text/plain"}
        assert await queues("move", "later", "none", "--amqp", where) == 1
        relay.relay.ledger.audit()


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (("list", "ftp://localhost:9100"), "is no URL of a relay's pages"),
        (("list", "http://127.0.0.1:1"), "cannot reach http://127.0.0.1:1"),
        (("purge", "q", "--amqp", "http://127.0.0.1"), "--url takes amqp://"),
        (("purge", "q", "--amqp", "amqp://127.0.0.1:1"), "cannot reach 127.0.0.1:1"),
        (("move", "q", "q"), "have to be different ones"),
        (("move", "q", "r", "--count", "0"), "Must be >= 1"),
    ],
)
async def test_mistakes_are_one_sentence(
    argv: tuple[str, ...], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await queues(*argv) in (1, 2)
    said = capsys.readouterr().err
    assert sentence in said
    assert "Traceback" not in said


async def test_a_relay_without_amqp_has_no_queues(capsys: pytest.CaptureFixture[str]) -> None:
    async with running(http="127.0.0.1:0") as relay:
        assert await queues("list", pages_of(relay)) == 1
        assert "serves no AMQP" in capsys.readouterr().err
