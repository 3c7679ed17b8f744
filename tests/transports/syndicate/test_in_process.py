"""A program's own classes and Syndicate clients' records, in one dataspace."""

from __future__ import annotations

import functools
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import attrs
import trio

from clearfunds.accounts import Ledger
from clearfunds.dataspace import Asserted, Dataspace, Mailbox, Retracted, capture, match
from clearfunds.transports import ListenURL, ServerSettings, open_flusher, open_listeners
from clearfunds.transports.syndicate import (
    NEED_DATA,
    Connection,
    Encoded,
    Packet,
    SyndicateServer,
    Vocabulary,
    encode,
)


@attrs.frozen
class Says:
    who: str
    what: str


def packet(text: str) -> bytes:
    connection = Connection()
    connection.receive_data(text.encode())
    found = connection.next_packet()
    assert found is not NEED_DATA
    return encode(found)


class Client:
    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self._connection = Connection()

    async def send(self, text: str) -> None:
        await self.stream.send_all(packet(text))

    async def next(self) -> Packet:
        with trio.fail_after(10):
            while (found := self._connection.next_packet()) is NEED_DATA:
                data = await self.stream.receive_some(65536)
                assert data, "the relay closed the connection"
                self._connection.receive_data(bytes(data))
            return found


@asynccontextmanager
async def a_client_of(dataspace: Dataspace, **settings: Any) -> AsyncGenerator[Client]:
    """Serve one connection in this process, as a program would."""
    ledger = dataspace.ledger
    (listener,) = await open_listeners(
        ListenURL.parse("syndicate+tcp://127.0.0.1:0", ("syndicate",))
    )
    with listener, ledger.open("server") as account:
        async with open_flusher() as flusher, trio.open_nursery() as nursery:
            vocabulary = Vocabulary({"Says": Says})
            server = SyndicateServer(
                dataspace, flusher, account, ServerSettings(**settings), vocabulary
            )
            handle = functools.partial(server.handle, listener=listener.label)
            nursery.start_soon(listener.serve, handle)
            async with await trio.open_tcp_stream("127.0.0.1", listener.url.port) as stream:
                yield Client(stream)
            nursery.cancel_scope.cancel()
    ledger.audit()


async def received(mailbox: Mailbox) -> list[Any]:
    with trio.fail_after(10):
        loan = await mailbox.receive()
    with loan as events:
        return events


async def test_a_program_observes_what_clients_send_as_its_own_classes() -> None:
    ledger = Ledger()
    dataspace = Dataspace(ledger)
    pattern = match(Says, who="tony", what=capture())
    with ledger.open("program") as me, Mailbox(ledger, "program") as mailbox:  # noqa: SIM117
        with dataspace.observed(me, pattern, mailbox):
            async with a_client_of(dataspace) as client:
                await client.send('[[0 <M <Says "jan" "no">>] [0 <M <Says "tony" "hi">>]]')
                assert await received(mailbox) == [("hi",)]
                await client.send('[[0 <A <Says "tony" "here"> 1>]]')
                assert await received(mailbox) == [Asserted(("here",))]
            assert await received(mailbox) == [Retracted(("here",))]
            assert ledger.statistics().debt_items == 0


async def test_a_program_observes_records_that_no_class_stands_for() -> None:
    ledger = Ledger()
    dataspace = Dataspace(ledger)
    with ledger.open("program") as me, Mailbox(ledger, "program") as mailbox:  # noqa: SIM117
        with dataspace.observed(me, (1, capture()), mailbox):
            async with a_client_of(dataspace) as client:
                await client.send("[[0 <M [1 <what {a: b}>]>]]")
                ((value,),) = await received(mailbox)
                assert isinstance(value, Encoded)
                assert str(value.value()) == "#what({#a: #b})"


async def test_clients_observe_what_a_program_publishes_and_asserts() -> None:
    ledger = Ledger()
    dataspace = Dataspace(ledger)
    with ledger.open("program") as me, dataspace.asserted(me, Says("program", "is here")):
        async with a_client_of(dataspace) as client:
            pattern = "<bind <group <rec Says> {1: <bind <_>>}>>"
            await client.send(f"[[0 <A <Observe {pattern} #:[0 0]> 1>]]")
            told = await client.next()
            assert encode(told) == packet('[[0 <A [<Says "program" "is here"> "is here"] 1>]]')
            with me.turn() as turn:
                turn.publish(dataspace, Says("program", "hello"))
            assert encode(await client.next()) == packet(
                '[[0 <M [<Says "program" "hello"> "hello"]>]]'
            )


async def test_a_record_that_is_no_instance_ends_the_connection() -> None:
    ledger = Ledger()
    dataspace = Dataspace(ledger)
    async with a_client_of(dataspace) as client:
        await client.send('[[0 <M <Says "tony">>]]')
        told = str(await client.next())
        assert "no Says can be made of a <Says ...>" in told
