"""The receiving half of a connection: bytes in, commands or the specification's errors out."""

from __future__ import annotations

import struct
from collections.abc import Callable
from itertools import zip_longest
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import body, frame, header
from pamqp.commands import Basic, Channel, Connection, Exchange, Queue, Tx
from pamqp.heartbeat import Heartbeat

from clearfunds.transports import RemoteProtocolError
from clearfunds.transports._need_data import NEED_DATA
from clearfunds.transports.amqp import (
    Ack,
    AmqpError,
    Code,
    Command,
    ConnectionInput,
    Greeting,
    Publish,
    State,
    WrongProtocolError,
)
from clearfunds.transports.amqp._replies import shortened

HEADER = b"AMQP\0\0\x09\1"
MAX_MESSAGE = 10_000


def made(*, channels: tuple[int, ...] = (1, 2)) -> ConnectionInput:
    """An open connection."""
    incoming = ConnectionInput(max_first_size=4096, max_message_size=MAX_MESSAGE)
    incoming.tuned(5, 4096)
    incoming.state = State.OPEN
    for channel in channels:
        incoming.receive_data(said(channel, Channel.Open()))
        assert isinstance(incoming.next_command(), Command)
    return incoming


def said(channel: int, *parts: Any) -> bytes:
    return b"".join(frame.marshal(part, channel) for part in parts)


def content(
    channel: int, payload: bytes, exchange: str = "x", key: str = "k", cut: int = 4000, **more: Any
) -> bytes:
    """A publication, its body in frames of `cut` bytes."""
    pieces = [payload[at : at + cut] for at in range(0, len(payload), cut)]
    return said(
        channel,
        Basic.Publish(exchange=exchange, routing_key=key, **more),
        header.ContentHeader(0, len(payload), Basic.Properties(priority=7)),
        *map(body.ContentBody, pieces),
    )


def all_of(incoming: ConnectionInput) -> list[Any]:
    found: list[Any] = []
    while (command := incoming.next_command()) is not NEED_DATA:
        found.append(command)
    return found


def shown(commands: list[Any]) -> list[tuple[Any, ...]]:
    """Commands as values that can be compared."""
    return [
        (each.channel, type(each.method), *(getattr(each.method, n) for n in each.method.__slots__))
        if isinstance(each, Command)
        else (type(each), *(getattr(each, n) for n in each.__slots__ if n != "__weakref__"))
        for each in commands
    ]


def fault(incoming: ConnectionInput, data: bytes) -> AmqpError:
    incoming.receive_data(data)
    with pytest.raises(AmqpError) as caught:
        all_of(incoming)
    return caught.value


# -- the beginning ---------------------------------------------------------------------------------


@pytest.mark.parametrize("first", [b"X", b"AMQP\0\0\x09\2", b"AMQP\1\1\0\x0a", b"GET / HTTP"])
def test_another_protocol_is_refused_at_the_first_wrong_byte(first: bytes) -> None:
    incoming = ConnectionInput(max_first_size=4096, max_message_size=1)
    incoming.receive_data(first)
    with pytest.raises(WrongProtocolError):
        incoming.next_command()


def test_commands_before_their_time() -> None:
    incoming = ConnectionInput(max_first_size=4096, max_message_size=1)
    incoming.receive_data(HEADER[:5])
    assert incoming.next_command() is NEED_DATA
    incoming.receive_data(HEADER[5:])
    assert isinstance(incoming.next_command(), Greeting)
    incoming.state = State.START
    assert fault(incoming, said(0, Connection.Open("/"))).code is Code.COMMAND_INVALID
    incoming.receive_data(said(1, Channel.Open()))
    with pytest.raises(RemoteProtocolError, match="StartOk was expected"):
        incoming.next_command()
    incoming.receive_data(said(0, Connection.StartOk({"a": 1}, "PLAIN", "\0u\0p", "en_US")))
    (command,) = all_of(incoming)
    assert command.method.response == b"\0u\0p"
    assert command.method.client_properties == {"a": 1}
    incoming.state = State.TUNE
    # Nobody need wait with the end of a connection.
    incoming.receive_data(said(0, Connection.Close(200, "bye", 0, 0)))
    assert isinstance(all_of(incoming)[0].method, Connection.Close)


# -- commands --------------------------------------------------------------------------------------


def test_a_publication_in_one_read() -> None:
    incoming = made()
    incoming.receive_data(
        content(1, b"first", mandatory=True) + content(2, b"") + content(1, b"x", "", "q")
    )
    first, empty, last = all_of(incoming)
    assert (first.exchange, first.routing_key, first.body) == ("x", "k", b"first")
    assert (first.mandatory, first.immediate) == (True, False)
    assert first.properties == Basic.Properties(priority=7).marshal()
    assert (empty.channel, empty.body) == (2, b"")
    assert (last.exchange, last.routing_key) == ("", "q")
    assert incoming.held_bytes == 0


def test_contents_of_two_channels_are_interleaved() -> None:
    incoming = made()
    one, two = content(1, b"1" * 5000, cut=1000), content(2, b"2" * 3000, cut=1000)
    frames: list[list[bytes]] = []
    for data in (one, two):
        frames.append([])
        while data:
            size = struct.unpack(">I", data[3:7])[0] + 8
            frames[-1].append(data[:size])
            data = data[size:]
    mixed = b"".join(b"".join(pair) for pair in zip_longest(*frames, fillvalue=b""))
    incoming.receive_data(mixed)
    found = all_of(incoming)
    assert [(each.channel, each.body) for each in found] == [(2, b"2" * 3000), (1, b"1" * 5000)]
    assert incoming.held_bytes == 0


def test_acknowledgements() -> None:
    incoming = made()
    incoming.receive_data(
        said(1, Basic.Ack(3, False)) + said(2, Basic.Ack(1 << 40, True), Basic.Nack(5, True, False))
    )
    one, many, nack = all_of(incoming)
    assert isinstance(one, Ack)
    assert (one.channel, one.tag, one.multiple) == (1, 3, False)
    assert (many.channel, many.tag, many.multiple) == (2, 1 << 40, True)
    assert (nack.method.delivery_tag, nack.method.multiple, nack.method.requeue) == (5, True, False)


def test_names_that_are_no_text() -> None:
    incoming = made()
    data = content(1, b"x", "x", "k").replace(b"\1k", b"\1\xff")
    incoming.receive_data(data)
    (found,) = all_of(incoming)
    assert found.routing_key == "\udcff"


METHODS: list[Callable[[int], bytes]] = [
    lambda channel: said(channel, Queue.Declare(queue="q", arguments={"x-expires": 9})),
    lambda channel: said(channel, Exchange.Declare(exchange="e", exchange_type="topic")),
    lambda channel: said(channel, Basic.Ack(7, True)),
    lambda channel: said(channel, Basic.Consume(queue="q", no_ack=True, exclusive=True)),
    lambda channel: content(channel, b"x" * 3000, cut=1000),
    lambda channel: content(channel, b"y" * 4000),
    lambda channel: content(channel, b""),
    lambda _: frame.marshal(Heartbeat(), 0),
]
methods = st.sampled_from(METHODS)


@given(
    st.lists(st.tuples(methods, st.sampled_from([1, 2])), max_size=8),
    st.lists(st.integers(1, 4000), min_size=1, max_size=10),
)
def test_pieces_make_no_difference(chosen: list[Any], sizes: list[int]) -> None:
    data = b"".join(make(channel) for make, channel in chosen)
    whole = made()
    whole.receive_data(data)
    expected = shown(all_of(whole))
    pieces = made()
    found: list[Any] = []
    at = turn = 0
    while at < len(data):
        size = sizes[turn % len(sizes)]
        pieces.receive_data(data[at : at + size])
        found += all_of(pieces)
        at += size
        turn += 1
    assert shown(found) == expected
    single = made()
    found = []
    for byte in data[:3000]:
        single.receive_data(bytes((byte,)))
        found += all_of(single)
    assert shown(found) == expected[: len(found)]


# -- errors ----------------------------------------------------------------------------------------


def test_a_frame_that_is_too_large() -> None:
    assert fault(made(), struct.pack(">BHI", 1, 1, 4089)).code is Code.FRAME_ERROR
    incoming = made()
    incoming.receive_data(struct.pack(">BHI", 1, 1, 4088))
    assert incoming.next_command() is NEED_DATA
    incoming.tuned(5, 0)
    incoming.receive_data(struct.pack(">BHI", 1, 1, 1 << 30))
    assert incoming.next_command() is NEED_DATA


def test_a_frame_that_does_not_end() -> None:
    data = said(1, Basic.Ack(1))
    exc = fault(made(), data[:-1] + b"\0")
    assert exc.code is Code.FRAME_ERROR
    assert exc.ends_connection


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"\x07", Code.FRAME_ERROR),  # a type of frame that is not there
        (struct.pack(">BHIB", 4, 0, 0, 0xCE), Code.FRAME_ERROR),
        (struct.pack(">BHIBB", 8, 0, 1, 0, 0xCE), Code.FRAME_ERROR),
        (struct.pack(">BHIHB", 1, 1, 2, 60, 0xCE), Code.FRAME_ERROR),
        (struct.pack(">BHIHHB", 1, 1, 4, 60, 99, 0xCE), Code.COMMAND_INVALID),
        (struct.pack(">BHIHHB", 1, 1, 4, 99, 10, 0xCE), Code.COMMAND_INVALID),
        (said(1, Basic.GetEmpty()), Code.COMMAND_INVALID),  # a server's
        (said(0, Queue.Declare(queue="q")), Code.COMMAND_INVALID),
        (said(1, Connection.Close(200, "", 0, 0)), Code.COMMAND_INVALID),
        (said(0, Connection.TuneOk(1, 4096, 0)), Code.COMMAND_INVALID),
        (said(3, Queue.Declare(queue="q")), Code.CHANNEL_ERROR),
        (said(3, Basic.Publish()), Code.CHANNEL_ERROR),
        (said(1, Channel.Open()), Code.CHANNEL_ERROR),
        (said(6, Channel.Open()), Code.NOT_ALLOWED),
        (said(1, header.ContentHeader(0, 1)), Code.UNEXPECTED_FRAME),
        (said(1, body.ContentBody(b"x")), Code.UNEXPECTED_FRAME),
        (said(1, Basic.Publish(), Basic.Publish()), Code.UNEXPECTED_FRAME),
        (said(1, Basic.Publish(), body.ContentBody(b"x")), Code.UNEXPECTED_FRAME),
        (said(1, Basic.Publish(), Tx.Select()), Code.UNEXPECTED_FRAME),
        (content(1, b"x" * 9)[:-10] + said(1, header.ContentHeader(0, 1)), Code.FRAME_ERROR),
        (said(1, Basic.Publish(), header.ContentHeader(0, 2), body.ContentBody(b"xyz")),
         Code.FRAME_ERROR),
        (said(1, Basic.Publish(), header.ContentHeader(0, 2), header.ContentHeader(0, 2)),
         Code.UNEXPECTED_FRAME),
        (struct.pack(">BHIHHHBB", 1, 1, 7, 60, 40, 0, 9, 0xCE), Code.SYNTAX_ERROR),
        (struct.pack(">BHIHHHBB", 1, 1, 7, 50, 10, 0, 9, 0xCE), Code.SYNTAX_ERROR),
    ],
)  # fmt: skip
def test_errors_of_the_specification(data: bytes, code: Code) -> None:
    exc = fault(made(), data)
    assert exc.code is code
    assert exc.ends_connection


def test_a_message_that_is_too_large_closes_its_channel() -> None:
    incoming = made()
    data = content(1, b"x" * (MAX_MESSAGE + 1))
    exc = fault(incoming, data + said(2, Basic.Ack(1)))
    assert exc.code is Code.PRECONDITION_FAILED
    assert not exc.ends_connection
    assert (exc.channel, exc.method) == (1, (60, 40))
    incoming.channel_closing(1)
    (ack,) = all_of(incoming)  # the rest of it is passed over
    assert ack.channel == 2
    assert incoming.held_bytes == 0


# -- closing ---------------------------------------------------------------------------------------


def test_what_comes_on_a_channel_that_is_being_closed_is_passed_over() -> None:
    incoming = made()
    incoming.receive_data(content(1, b"x" * 3000, cut=1000)[:2000])
    assert incoming.next_command() is NEED_DATA
    incoming.channel_closing(1)
    assert incoming.held_bytes < 1100
    incoming.receive_data(content(1, b"x" * 3000, cut=1000)[2000:])
    incoming.receive_data(content(1, b"x") + said(1, Queue.Declare(queue="q"), Basic.Ack(1)))
    assert all_of(incoming) == []
    assert not incoming.is_open(1)
    incoming.receive_data(said(1, Channel.CloseOk(), Channel.Open()) + content(1, b"again"))
    opened, published = all_of(incoming)
    assert isinstance(opened.method, Channel.Open)
    assert published.body == b"again"


def test_both_sides_close_a_channel() -> None:
    incoming = made()
    incoming.channel_closing(1)
    incoming.receive_data(said(1, Channel.Close(200, "", 0, 0)))
    (close,) = all_of(incoming)
    assert isinstance(close.method, Channel.Close)
    incoming.channel_closed(1)
    incoming.receive_data(said(1, Channel.CloseOk()))  # the answer to ours may still come
    assert all_of(incoming) == []


def test_what_comes_on_a_connection_that_is_being_closed_is_passed_over() -> None:
    incoming = made()
    incoming.state = State.CLOSING
    incoming.receive_data(content(1, b"x") + said(1, Channel.Close(200, "", 0, 0)))
    incoming.receive_data(said(0, Connection.CloseOk()))
    (command,) = all_of(incoming)
    assert isinstance(command.method, Connection.CloseOk)
    incoming.close()
    incoming.receive_data(content(1, b"x"))
    assert incoming.next_command() is NEED_DATA
    assert incoming.held_bytes == 0


# -- garbage ---------------------------------------------------------------------------------------


@given(st.binary(max_size=300), st.booleans())
def test_garbage_raises_errors_of_the_specification(data: bytes, framed: bool) -> None:
    incoming = made()
    if framed:
        data = struct.pack(">BHI", 1, 1, len(data)) + data + b"\xce"
    incoming.receive_data(data)
    texts: list[str] = []
    try:
        all_of(incoming)
    except AmqpError as exc:
        texts.append(exc.text)
    assert all(len(shortened(text)) <= 255 for text in texts)


@given(st.text(max_size=300))
def test_a_reply_text_is_short_and_a_text(text: str) -> None:
    cut = shortened(text)
    assert len(cut) <= 255
    whole = text.encode(errors="backslashreplace").decode()
    assert cut.decode() == whole or whole.startswith(cut[:-3].decode())


def test_publications_are_what_they_are() -> None:
    one = Publish(1, "", "q", False, False, b"\0\0", b"")
    assert one != Publish(1, "", "q", False, False, b"\0\0", b"")
