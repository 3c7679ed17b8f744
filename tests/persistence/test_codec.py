"""A queued message as bytes, and back."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clearfunds.dataspace import Publication
from clearfunds.dataspace.exchanges import Message as AmqpMessage
from clearfunds.dataspace.queues import Death, DeathReason, Message
from clearfunds.persistence import UnstorableError, decode, encode

texts = st.text(max_size=20)
times = st.floats(0, 1e11)
deaths = st.lists(
    st.builds(Death, texts, st.sampled_from(DeathReason), times, st.integers(1, 10**6)), max_size=3
)
publications = st.builds(
    Publication,
    st.text(st.characters(codec="utf-8", exclude_characters="+#\0"), min_size=1, max_size=300),
    st.binary(max_size=200),
    st.integers(0, 2),
    st.booleans(),
    st.binary(max_size=60),
    st.none() | times,
    st.booleans(),
)
names = st.binary(max_size=255).map(lambda name: name.decode(errors="surrogateescape"))
amqp_messages = st.builds(
    AmqpMessage,
    names,
    names,
    st.binary(max_size=60),
    st.binary(max_size=200),
    persistent=st.booleans(),
    expiration=st.none() | times,
    priority=st.integers(0, 255),
    more_keys=st.lists(names, max_size=3).map(tuple),
)
messages = st.builds(
    Message,
    seq=st.integers(1, 2**63 - 1),
    event=publications | amqp_messages,
    size=st.integers(0, 2**32 - 1),
    persistent=st.booleans(),
    enqueued=times,
    expires=st.none() | times,
    tag=st.none() | st.integers(0, 127),
    deaths=deaths.map(tuple),
)

COMES_BACK = ("seq", "size", "persistent", "enqueued", "expires", "tag", "deaths")


@given(messages)
def test_all_that_has_to_come_back_does(message: Message) -> None:
    header, payload = encode(message)
    event = message.event
    assert payload is (event.payload if isinstance(event, Publication) else event.body)
    back = decode(message.seq, header, payload)
    for field in COMES_BACK:
        assert getattr(back, field) == getattr(message, field), field
    assert type(back.event) is type(event)
    assert attrs.asdict(back.event) == attrs.asdict(event)
    assert (back.ticket, back.at_rest, back.loan, back.redelivered) == (0, True, None, False)


def test_what_older_versions_have_written_is_read() -> None:
    header = (
        bytes.fromhex("010601030000000941d954fc4000000041d954fc40c000000003" + b"a/b".hex())
        + b'[["q","expired",1.5,2]]'
    )
    back = decode(9, header, b"payload")
    event = back.event
    assert event == Publication("a/b", b"payload", 1, True)
    assert (event.properties, event.expires, event.was_retained) == (b"", None, False)
    assert (back.size, back.enqueued, back.expires, back.tag) == (9, 1.7e9, 1.7e9 + 3, 3)
    assert back.deaths == (Death("q", DeathReason.EXPIRED, 1.5, 2),)
    # And what has nothing that is new is written as they did.
    assert encode(back) == (header, b"payload")


def test_properties_that_are_cut_off_are_none() -> None:
    header, _ = encode(Message(1, Publication("a", b"", properties=b"12345"), 1, True, 0.0))
    for end in range(len(header) - 9, len(header)):
        with pytest.raises(UnstorableError, match="message 1 has a malformed header"):
            decode(1, header[:end], b"")


def test_only_publications_can_be_written() -> None:
    with pytest.raises(UnstorableError, match="only publications and messages of AMQP can be"):
        encode(Message(1, ("some", "event"), 1, True, 0.0))


@given(st.binary(max_size=120))
@settings(max_examples=300)
def test_garbage_raises_unstorable_and_nothing_else(header: bytes) -> None:
    for first in (header, b"\x01" + header, b"\x02" + header):
        try:
            decode(1, first, b"")
        except UnstorableError as exc:
            assert "message 1 " in str(exc)  # noqa: PT017


@given(messages, st.data())
def test_a_header_that_was_tampered_with_raises_unstorable_or_nothing(
    message: Message, data: Any
) -> None:
    header = bytearray(encode(message)[0])
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(header) - 1))
        header[place] = data.draw(st.integers(0, 255))
    try:
        back = decode(1, bytes(header), b"")
    except UnstorableError:
        return
    # What it is taken for can be written again, and is the same then.
    assert decode(1, *encode(back)).deaths == back.deaths


def test_a_later_version_is_told_apart() -> None:
    header, _ = encode(Message(1, Publication("a", b""), 1, True, 0.0))
    with pytest.raises(UnstorableError, match="is of version 3; this is for versions up to 2"):
        decode(7, b"\x03" + header[1:], b"")
