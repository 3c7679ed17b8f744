"""What an access control list lets readers of ranges and writers of batches do."""

from __future__ import annotations

from pathlib import Path

import pytest

from clearfunds.access import Tenant
from clearfunds.access.acl import Acl, parse_acl
from clearfunds.ranges.client import RangeReader, RefusedError
from clearfunds.transports.mqtt import Publish
from tests.ranges.server.relays import blocking
from tests.ranges.server.test_users import (
    LISTEN,
    QUICK,
    as_user,
    attach,
    reaches,
    write,
)
from tests.transports.peers import connected, log_of, running, until

ANNA = as_user("anna")
BERT = as_user("bert")

RULES = """
user anna
topic readwrite bank/#
topic read news/#
user bert
topic read news/#
topic write bert/#
topic deny news/drafts/#
pattern readwrite jobs/%u/%c/#
"""


def values(reader: RangeReader, start: int, end: int) -> list[bytes]:
    return [row.value for block in reader.fetch(start, end) for row in block.rows()]


async def test_a_reader_gets_what_its_user_may_read(tmp_path: Path) -> None:
    acl = Acl.from_text(RULES + "user till\ntopic write #\n")
    async with running(
        listen=LISTEN, passwords=QUICK, acl=acl, anonymous=True, store=str(tmp_path / "s")
    ) as relay:
        for filters in (["bank/#"], ["news/#", "bank/payment"], ["news/drafts/+"], ["$SYS/#"]):
            with pytest.raises(RefusedError, match="user bert may read nothing of"):
                await attach(relay, "s", BERT, filters=filters)
        # Of a filter that he may read something of, he gets just that.
        bert = await attach(relay, "all", BERT, filters=["#"], durable=True)
        anna = await attach(relay, "all", ANNA, filters=["#"])
        own = await attach(relay, "job", BERT, filters=["jobs/bert/job/#"])
        async with connected(relay.port, "a", username="anna", password=b"secret") as client:
            for number, topic in enumerate(
                ("bank/payment", "news/today", "news/drafts/x", "jobs/bert/all/x"), 1
            ):
                await client.send(Publish(topic, topic.encode(), 1, packet_id=number))
                await client.next()
        # Anna may write only bank/#.
        writer = await write(relay, "w", BERT)
        staged = await blocking(
            writer.stage, 0, 0, 1, [("bert/x", b"bert/x"), ("jobs/bert/w/x", b"its own")]
        )
        await blocking(writer.commit, 0, [staged])
        await reaches(anna, 2)
        assert await blocking(values, anna, 1, 2) == [b"bank/payment"]
        assert await blocking(bert.head) == (1, 1)
        assert await blocking(own.head) == (1, 1)
        for each in (bert, anna, own, writer):
            each.close()
        denied = relay.relay.authority.denied
        assert denied.subscribe == 4
        relay.audit()


async def test_a_writer_publishes_where_its_user_may() -> None:
    acl = Acl.from_text(RULES)
    async with running(listen=LISTEN, passwords=QUICK, acl=acl) as relay:
        writer = await write(relay, "w", BERT)
        with pytest.raises(RefusedError, match="user bert may not publish to 'bank/transfer'"):
            await blocking(writer.stage, 0, 0, 1, [("bert/x", b""), ("bank/transfer", b"")])
        staged = await blocking(writer.stage, 0, 0, 2, [("bert/x", b"")])
        assert await blocking(writer.commit, 0, [staged])
        assert relay.relay.authority.denied.publish == 1
        writer.close()


async def test_what_is_no_longer_allowed_ends_at_once(caplog: pytest.LogCaptureFixture) -> None:
    acl = Acl.from_text(RULES)
    async with running(listen=LISTEN, passwords=QUICK, acl=acl) as relay:
        anna = await attach(relay, "s", ANNA, filters=["bank/#"])
        other = await attach(relay, "t", BERT, filters=["news/#"])
        writer = await write(relay, "w", ANNA)
        staged = await blocking(
            writer.stage, 0, 0, 1, [("bank/a", b"1"), ("bank/b", b"2"), ("bank/a", b"3")]
        )
        acl.replace(parse_acl("user anna\ntopic write bank/b\nuser bert\ntopic read news/#\n"))
        readers = relay.relay.readers
        assert readers is not None
        await until(lambda: len(readers.open) == 2)
        with pytest.raises(RefusedError, match="user anna may read nothing of bank/#"):
            await blocking(anna.head)
        assert await blocking(other.head) == (1, 1)
        # What was staged before is not published any more where it may not be.
        assert await blocking(writer.commit, 0, [staged])
        assert log_of(caplog, "2 rows were refused, the last because of: it may not publish to")
        sinks = readers.writing.sinks
        assert sinks.statistics().published == 1
        for each in (anna, other, writer):
            each.close()
        relay.audit()
        assert readers.subscriptions.find("@anna/s") is not None
        readers.subscriptions.drop("@anna/s")


async def test_without_a_list_a_tenants_topics_are_its_own() -> None:
    tenants = (
        Tenant(name="bank", user=("anna",), topic=("bank/#",)),
        Tenant(name="bank", user=("anna",)),
        Tenant(name="press", user=("bert",)),
    )
    async with running(listen=LISTEN, passwords=QUICK, tenant=tenants) as relay:
        anna = await attach(relay, "s", ANNA)
        with pytest.raises(RefusedError, match="user bert may read nothing of bank/#"):
            await attach(relay, "s", BERT)
        writer = await write(relay, "w", BERT)
        with pytest.raises(RefusedError, match="may not publish to 'bank/transfer'"):
            await blocking(writer.stage, 0, 0, 1, [("bank/transfer", b"")])
        anna.close()
        writer.close()


async def test_after_a_restart_it_still_gets_what_its_user_may_read(tmp_path: Path) -> None:
    store = str(tmp_path / "s")
    everything = Acl.from_text("user anna\ntopic readwrite #\nuser bert\ntopic readwrite #\n")
    async with running(listen=LISTEN, passwords=QUICK, acl=everything, store=store) as relay:
        bert = await attach(relay, "all", BERT, filters=["#"], durable=True)
        bert.close()
    rules = Acl.from_text("user anna\ntopic readwrite #\nuser bert\ntopic read news/#\n")
    async with running(listen=LISTEN, passwords=QUICK, acl=rules, store=store) as relay:
        writer = await write(relay, "w", ANNA)
        staged = await blocking(
            writer.stage, 0, 0, 1, [("bank/a", b"1"), ("news/b", b"2"), ("bank/a", b"3")]
        )
        assert await blocking(writer.commit, 0, [staged])
        bert = await attach(relay, "all", BERT, filters=())
        await reaches(bert, 2)
        assert await blocking(values, bert, 1, 2) == [b"2"]
        await blocking(bert.drop)
        writer.close()
