"""Runs: publications that differ in their bodies alone, and single acknowledgements, in a row."""

from __future__ import annotations

from itertools import pairwise

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from pamqp import frame
from pamqp.commands import Basic, Channel, Queue

from clearfunds.transports._need_data import NEED_DATA
from clearfunds.transports.amqp import Ack, Command, ConnectionInput, Publish, State
from tests.transports.amqp.clients import (
    RawClient,
    client,
    publication,
    serving,
    session,
    side,
)
from tests.transports.peers import RunningRelay, until

MANY = 1_000


def made() -> ConnectionInput:
    """An open connection with two channels."""
    incoming = ConnectionInput(max_first_size=4096, max_message_size=9_000)
    incoming.tuned(5, 4096)
    incoming.state = State.OPEN
    for channel in (1, 2):
        incoming.receive_data(frame.marshal(Channel.Open(), channel))
        assert isinstance(incoming.next_command(), Command)
    return incoming


Said = tuple[object, ...]


def parsed(chunks: list[bytes], *, runs: bool) -> list[Said]:
    """What is said, one by one; `runs`: whether it may be taken in runs."""
    incoming = made()
    found: list[Said] = []
    for chunk in chunks:
        incoming.receive_data(chunk)
        while (command := incoming.next_command()) is not NEED_DATA:
            if isinstance(command, Publish):
                bodies = [command.body]
                if runs:
                    bodies += incoming.following(command, 3, 2_000)
                found += [
                    (command.channel, command.exchange, command.routing_key, command.mandatory,
                     command.properties, body)
                    for body in bodies
                ]  # fmt: skip
            elif isinstance(command, Ack) and not command.multiple:
                tags = [command.tag]
                if runs:
                    tags += incoming.following_acks(command.channel)
                found += [(command.channel, tag) for tag in tags]
            else:
                assert isinstance(command, Ack)
                found.append((command.channel, command.tag, "and all before"))
    assert incoming.unparsed == 0
    return found


channels = st.sampled_from([1, 1, 1, 2])


def a_publication(
    key: str, size: int, channel: int, mandatory: bool, priority: int | None
) -> bytes:
    properties = {} if priority is None else {"priority": priority}
    return publication(key, bytes(size), "x", channel=channel, mandatory=mandatory, **properties)


def an_ack(channel: int, tag: int, multiple: bool) -> bytes:
    return frame.marshal(Basic.Ack(tag, multiple), channel)


publications = st.builds(
    a_publication,
    st.sampled_from(["k", "k", "key"]),
    st.sampled_from([0, 1, 10, 10, 10, 11, 4_000, 5_000]),
    channels,
    st.booleans(),
    st.sampled_from([1, 1, 1, 2, None]),
)
acks = st.builds(an_ack, channels, st.integers(0, 1 << 40), st.sampled_from([False, False, True]))


@given(st.lists(publications | acks, max_size=30), st.lists(st.integers(0, 20_000), max_size=5))
def test_runs_say_what_single_commands_say(said: list[bytes], cuts: list[int]) -> None:
    whole = b"".join(said)
    at = sorted({0, len(whole), *(cut % (len(whole) + 1) for cut in cuts)})
    chunks = [whole[start:stop] for start, stop in pairwise(at)]
    expected = parsed(chunks, runs=False)
    assert len(expected) == len(said)
    assert parsed(chunks, runs=True) == expected


def test_a_run_is_as_long_as_it_may_be() -> None:
    incoming = made()
    incoming.receive_data(publication("k", b"12345") * 10)
    command = incoming.next_command()
    assert isinstance(command, Publish)
    assert incoming.following(command, 0, 100) == []
    assert incoming.following(command, 2, 100) == [b"12345"] * 2
    # Those bytes may be overshot by one.
    assert incoming.following(command, 9, 4) == [b"12345"]
    assert incoming.following(command, 9, -1) == []
    assert incoming.following(command, 99, 100) == [b"12345"] * 6


@pytest.mark.parametrize("wrong", ["end", "size", "kind"])
def test_what_is_wrong_in_a_run_is_left_to_the_parser(wrong: str) -> None:
    good = publication("k", b"12345")
    bad = bytearray(good)
    if wrong == "end":
        bad[-1] = 0
    elif wrong == "size":
        bad[-7] = 4
    else:
        bad[-13] = 9
    incoming = made()
    incoming.receive_data(good + bytes(bad))
    command = incoming.next_command()
    assert isinstance(command, Publish)
    assert incoming.following(command, 9, 100) == []
    assert incoming.unparsed == len(bad)


# -- through a relay -------------------------------------------------------------------------------


def bodies_of(count: int) -> list[bytes]:
    """Bodies of many sizes: empty ones, and some that need several frames."""
    sizes = (3, 30, 30, 30, 0, 300, 9_000, 30)
    return [b"%06d" % n + bytes(sizes[n % len(sizes)]) for n in range(count)]


async def all_of(raw: RawClient, count: int) -> tuple[list[bytes], list[int]]:
    """The bodies and the tags of deliveries."""
    with trio.fail_after(30):
        got = await raw.deliveries(count)
    tags = [int(each.method.delivery_tag) for each in got]  # type: ignore[attr-defined]
    return [each.body for each in got], tags


async def balanced(relay: RunningRelay) -> None:
    """Wait until nothing is owed, and look at the books."""
    account = session(relay, "publisher").account
    assert account is not None
    await until(lambda: account.debt_items == 0)
    assert account.debt_bytes == 0
    relay.relay.ledger.audit()


@pytest.mark.parametrize("no_ack", [True, False])
@pytest.mark.parametrize("confirms", [True, False])
async def test_runs_arrive_in_order(no_ack: bool, confirms: bool) -> None:
    bodies = bodies_of(MANY)
    async with (
        serving() as relay,
        client(relay, connection_name="publisher") as publisher,
        client(relay, connection_name="consumer") as consumer,
    ):
        await consumer.declare("q")
        await consumer.send(1, Basic.Qos(prefetch_count=100))
        await consumer.expect(Basic.QosOk)
        await consumer.consume("q", no_ack=no_ack)
        if confirms:
            await publisher.confirm()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(publisher.raw, b"".join(publication("q", each) for each in bodies))
            found: list[bytes] = []
            tags: list[int] = []
            while len(found) < MANY:
                some, its_tags = await all_of(consumer, 50)
                found += some
                tags += its_tags
                if not no_ack:
                    data = b"".join(frame.marshal(Basic.Ack(tag), 1) for tag in its_tags)
                    await consumer.raw(data)
        assert found == bodies
        assert tags == list(range(1, MANY + 1))
        if confirms:
            confirmed: set[int] = set()
            while len(confirmed) < MANY:
                said = await publisher.expect(Basic.Ack)
                assert said.delivery_tag is not None
                first = max(confirmed, default=0) + 1 if said.multiple else said.delivery_tag
                confirmed.update(range(first, said.delivery_tag + 1))
            assert confirmed == set(range(1, MANY + 1))
        await balanced(relay)
        queue = relay.relay.amqp.hosts["/"].queues["q"].queue  # type: ignore[union-attr]
        counters = queue.counters
        assert (counters.published, counters.delivered, counters.acked) == (MANY, MANY, MANY)


async def test_a_run_to_several_queues() -> None:
    bodies = bodies_of(100)
    async with (
        serving() as relay,
        client(relay, connection_name="publisher") as publisher,
        client(relay, connection_name="consumer") as consumer,
    ):
        for name in ("a", "b", "c"):
            await consumer.declare(name)
            await consumer.send(1, Queue.Bind(queue=name, exchange="amq.fanout"))
            await consumer.expect(Queue.BindOk)
        await consumer.consume("a", no_ack=True, tag="a")
        await consumer.consume("b", tag="b")
        await publisher.raw(b"".join(publication("", each, "amq.fanout") for each in bodies))
        await publisher.sync()
        got = await consumer.deliveries(200)
        for tag in ("a", "b"):
            own = [each.body for each in got if each.method.consumer_tag == tag]  # type: ignore[attr-defined]
            assert own == bodies
        relay.relay.ledger.audit()
        await consumer.consume("c", no_ack=True, tag="c")
        assert (await all_of(consumer, 100))[0] == bodies
        await consumer.send(1, Basic.Ack(0, True))
        await consumer.sync()
        await balanced(relay)


async def test_a_run_stops_where_funds_end() -> None:
    async with (
        serving(limit_items=10) as relay,
        client(relay, connection_name="publisher") as publisher,
        client(relay, connection_name="consumer") as consumer,
    ):
        await consumer.declare("q")
        await consumer.send(1, Basic.Qos(prefetch_count=1))
        await consumer.expect(Basic.QosOk)
        await publisher.raw(publication("q", b"12345") * 100)
        queue = relay.relay.amqp.hosts["/"].queues["q"].queue  # type: ignore[union-attr]
        account = session(relay, "publisher").account
        assert account is not None
        await until(lambda: queue.counters.published >= 11)
        await consumer.consume("q")
        assert account.debt_items <= 11  # one more than may be
        for tag in range(1, 101):
            await consumer.deliveries(1)
            await consumer.send(1, Basic.Ack(tag))
        await balanced(relay)
        assert account.peak_items <= 22  # with the input of the longest run, while it is handled


async def test_an_unknown_tag_in_a_run_of_acks() -> None:
    async with (
        serving() as relay,
        client(relay, connection_name="publisher") as publisher,
        client(relay, connection_name="consumer") as consumer,
    ):
        await consumer.declare("q")
        await consumer.consume("q")
        await publisher.raw(publication("q", b"12345") * 4)
        await consumer.deliveries(4)
        await consumer.raw(b"".join(frame.marshal(Basic.Ack(tag), 1) for tag in (1, 2, 7, 3)))
        assert "unknown delivery tag 7" in await consumer.closed(406, 1)
        queue = relay.relay.amqp.hosts["/"].queues["q"].queue  # type: ignore[union-attr]
        await until(lambda: len(queue) == 2)
        assert queue.counters.acked == 2
        assert not side(relay).acked
        relay.relay.ledger.audit()


async def test_properties_that_change() -> None:
    async with (
        serving() as relay,
        client(relay, connection_name="publisher") as publisher,
        client(relay, connection_name="consumer") as consumer,
    ):
        await consumer.declare("q")
        await consumer.consume("q", no_ack=True)
        names = ["a", "a", "b", "longer", "longer", "", "a"]
        await publisher.raw(
            b"".join(publication("q", b"12345", message_id=name or None) for name in names)
        )
        got = await consumer.deliveries(len(names))
        found = [each.properties.message_id for each in got if each.properties is not None]
        assert [name or "" for name in found] == names
