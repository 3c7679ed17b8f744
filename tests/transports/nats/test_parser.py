"""The parser of what a NATS server sends, and the commands of a client."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clearfunds.transports import LocalProtocolError, RemoteProtocolError
from clearfunds.transports.nats import Info, Message, Parser
from clearfunds.transports.nats.codec._commands import (
    encode_connect,
    encode_publication,
    encode_subscribe,
    encode_unsubscribe,
)
from clearfunds.transports.nats.codec._headers import encode_headers
from clearfunds.transports.nats.codec._messages import Ping, Pong, Received, ServerError
from clearfunds.transports.nats.codec._parser import MAX_LINE

TOKENS = st.text("abcXYZ019_-$", min_size=1, max_size=8)
SUBJECTS = st.lists(TOKENS, min_size=1, max_size=4).map(".".join)


@st.composite
def messages(draw: st.DrawFn) -> tuple[bytes, tuple[str, str, int, bytes, bytes]]:
    subject, reply = draw(SUBJECTS), draw(st.just("") | SUBJECTS)
    sid, payload = draw(st.integers(1, 10**9)), draw(st.binary(max_size=300))
    block = draw(st.just(b"") | st.just(encode_headers({"A": "b", "C": ["d", "e"]})))
    words = [subject, str(sid), *([reply] if reply else [])]
    words += [str(len(block))] if block else []
    words.append(str(len(block) + len(payload)))
    line = f"{'HMSG' if block else 'MSG'} {' '.join(words)}\r\n".encode()
    return line + block + payload + b"\r\n", (subject, reply, sid, payload, block)


def seen(received: Sequence[Received]) -> list[tuple[str, str, int, bytes, bytes]]:
    return [
        (each.subject, each.reply, each.sid, each.payload, each.block)
        for each in received
        if isinstance(each, Message)
    ]


@given(st.lists(messages(), max_size=6), st.lists(st.integers(1, 40), min_size=1))
def test_messages_come_whole_however_they_are_cut(
    sent: list[tuple[bytes, tuple[str, str, int, bytes, bytes]]], cuts: list[int]
) -> None:
    stream = b"".join(data for data, _ in sent)
    parser = Parser()
    received: list[Received] = []
    at = turn = 0
    while at < len(stream):
        step = cuts[turn % len(cuts)]
        received += parser.receive(stream[at : at + step])
        at += step
        turn += 1
    assert seen(received) == [wanted for _, wanted in sent]
    assert not parser.unparsed_bytes


@given(st.binary(max_size=200))
def test_any_bytes_are_parsed_or_refused(data: bytes) -> None:
    with contextlib.suppress(RemoteProtocolError):
        Parser().receive(data + b"\r\n")


def test_lines() -> None:
    info = json.dumps({"server_id": "a", "max_payload": 5, "ldm": True, "connect_urls": ["b:1"]})
    received = Parser().receive(
        f"INFO {info}\r\n+OK\r\nPING\r\nPONG\r\n-ERR 'Stale Connection'\r\n".encode()
    )
    assert received == [
        Info(server_id="a", max_payload=5, lame_duck=True, connect_urls=("b:1",)),
        Ping(),
        Pong(),
        ServerError("Stale Connection"),
    ]


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n", "is a NATS server listening there"),
        (b"MSG a\r\n", "this is no message"),
        (b"MSG a 1 -5\r\n", "is no number"),
        (b"MSG a 1 " + b"9" * 5000 + b"\r\n", "is no number"),
        (b"HMSG a 1 \xb2 2\r\n", "is no number"),
        (b"INFO " + b"[" * 50_000 + b"\r\n", "INFO has to be JSON"),
        (b"MSG a 1 b c 5\r\n", "this is no message"),
        (b"HMSG a 1 9 5\r\n", "headers of 9"),
        (b"MSG a 1 2000\r\n", "more than the 1000 of max_message_size"),
        (b"MSG a 1 1\r\nabc\r\n", "has no end"),
        (b"INFO {\r\n", "INFO has to be JSON"),
        (b"INFO []\r\n", "has to be a JSON object"),
        (b'INFO {"max_payload": "much"}\r\n', "INFO has max_payload 'much', no int"),
        (b'INFO {"connect_urls": "a"}\r\n', "connect_urls 'a', no list"),
        (b"x" * (MAX_LINE + 1), "a line has more than"),
    ],
)
def test_what_is_no_nats_is_refused(data: bytes, why: str) -> None:
    with pytest.raises(RemoteProtocolError, match=why):
        Parser(max_message_size=1000).receive(data)


def test_headers_that_cannot_be_read_are_found_when_they_are_looked_at() -> None:
    (message,) = Parser().receive(b"HMSG a 1 5 6\r\nNOPE!x\r\n")
    assert isinstance(message, Message)
    assert message.payload == b"x"
    with pytest.raises(RemoteProtocolError, match=r"NATS/1\.0"):
        _ = message.headers


def test_commands() -> None:
    assert encode_connect({"name": "x"}) == b'CONNECT {"name":"x"}\r\n'
    assert encode_subscribe(7, "a.*") == b"SUB a.* 7\r\n"
    assert encode_subscribe(7, "a.*", "group") == b"SUB a.* group 7\r\n"
    assert encode_unsubscribe(7) == b"UNSUB 7\r\n"
    assert encode_publication("a", b"xy") == b"PUB a 2\r\nxy\r\n"
    assert encode_publication("a", b"xy", "b") == b"PUB a b 2\r\nxy\r\n"
    assert (
        encode_publication("a", b"xy", "b", {"k": "v"})
        == b"HPUB a b 18 20\r\nNATS/1.0\r\nk: v\r\n\r\nxy\r\n"
    )
    assert encode_publication("a", b"", headers={"k": "v"}).startswith(b"HPUB a 18 18\r\n")


@given(
    st.dictionaries(
        st.text("abcX-_1", min_size=1, max_size=9),
        st.lists(
            st.text(st.characters(exclude_characters="\r\n", exclude_categories=["C"]), max_size=9),
            min_size=1,
            max_size=3,
        ),
        max_size=4,
    )
)
def test_headers_come_as_they_went(headers: dict[str, list[str]]) -> None:
    found = Message("a", b"", block=encode_headers(headers)).headers
    assert found.values == {
        name: [value.strip() for value in values] for name, values in headers.items()
    }
    assert found.status is None
    for name, values in headers.items():
        assert found.get(name) == values[0].strip()


@pytest.mark.parametrize(
    "headers", [{"a b": "c"}, {"": "c"}, {"a:": "c"}, {"a": "b\r\nX: y"}, {"ä": "b"}]
)
def test_headers_that_would_break_out_are_refused(headers: dict[str, str]) -> None:
    with pytest.raises(LocalProtocolError, match="header"):
        encode_headers(headers)


def test_a_status_has_words() -> None:
    message = Message("a", b"", block=b"NATS/1.0 408 Request Timeout\r\nLeft: 3\r\n\r\n")
    assert (message.status, message.headers.description) == (408, "Request Timeout")
    assert message.headers.get("Left") == "3"
