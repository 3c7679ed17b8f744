"""Properties: read where the relay heeds them, else handed on; and turned into MQTT's and back."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp.commands import Basic
from pamqp.header import ContentHeader

from clearfunds.dataspace import Publication
from clearfunds.dataspace.exchanges import Message
from clearfunds.transports.amqp._field_tables import MalformedError
from clearfunds.transports.amqp._properties import (
    NO_PROPERTIES,
    PLAIN,
    BasicProperties,
    facts_of,
    rewritten,
    spans_of,
)

TEN_YEARS = 10 * 365 * 24 * 3_600 * 1_000
"""In milliseconds."""

short = st.text(max_size=40).filter(lambda text: len(text.encode()) < 256)
given_properties = st.fixed_dictionaries(
    {},
    optional={
        "content_type": short,
        "content_encoding": short,
        "headers": st.dictionaries(st.text(max_size=9, alphabet="abc"), short, max_size=3),
        "delivery_mode": st.sampled_from([1, 2]),
        "priority": st.integers(0, 255),
        "correlation_id": short,
        "reply_to": short,
        "expiration": (st.integers(0, 1 << 32) | st.integers(TEN_YEARS - 9, TEN_YEARS + 9)).map(
            str
        ),
        "message_id": short,
        "timestamp": st.just(datetime(2020, 1, 1, tzinfo=UTC)),
        "message_type": short,
        "user_id": short,
        "app_id": short,
    },
)


def marshalled(properties: dict[str, Any]) -> bytes:
    return Basic.Properties(**properties).marshal()


def unmarshalled(properties: bytes) -> dict[str, Any]:
    header = ContentHeader()
    header.unmarshal(b"\0\x3c\0\0" + bytes(8) + properties)
    return {
        name: value
        for name in Basic.Properties.__slots__
        if (value := getattr(header.properties, name)) not in (None, "")
    }


def message(properties: bytes, **more: Any) -> Message:
    return Message("x", "k", properties, b"body", **more)


@given(given_properties)
def test_facts_are_what_pamqp_reads(properties: dict[str, Any]) -> None:
    facts = facts_of(marshalled(properties))
    assert facts.persistent == (properties.get("delivery_mode") == 2)
    assert facts.priority == properties.get("priority", 0)
    assert facts.user_id == (properties.get("user_id") or None)
    expiration = properties.get("expiration")
    fault = None
    if expiration is not None:
        if int(expiration) <= TEN_YEARS:
            assert facts.expiration == int(expiration) / 1000
        else:
            fault = f"invalid expiration '{expiration}'"
            assert facts.expiration is None
    assert facts.fault == fault


@given(given_properties, st.data())
def test_properties_that_are_cut_off_are_malformed(
    properties: dict[str, Any], data: st.DataObject
) -> None:
    whole = marshalled(properties)
    spans_of(whole)
    end = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(MalformedError):
        spans_of(whole[:end])
    with pytest.raises(MalformedError):
        spans_of(whole + b"\0")


@given(st.binary(max_size=60))
def test_garbage_is_malformed_or_has_facts(data: bytes) -> None:
    try:
        facts_of(data)
    except MalformedError:
        with pytest.raises(MalformedError):
            spans_of(data)


@given(given_properties)
def test_other_properties_stay_as_they_are(properties: dict[str, Any]) -> None:
    changed = BasicProperties().with_headers(
        message(marshalled(properties), expiration=1.0), {"new": 1, "old": "x"}
    )
    expected = unmarshalled(marshalled(properties)) | {"headers": {"new": 1, "old": "x"}}
    assert unmarshalled(changed.properties) == expected
    assert changed.headers is None


def test_the_expiration_of_a_dead_letter_goes() -> None:
    dead = BasicProperties().with_headers(
        message(marshalled({"expiration": "100", "headers": {"a": 1}, "priority": 3})), {}
    )
    assert unmarshalled(dead.properties) == {"priority": 3}


def test_fields_that_stay_keep_their_types() -> None:
    single = b"\1ff\x3d\xcc\xcc\xcd"  # 0.1 in single precision
    properties = b"\x20\0" + len(single).to_bytes(4, "big") + single
    before = BasicProperties().headers(message(properties))
    after = BasicProperties().with_headers(message(properties, expiration=1.0), {**before, "n": 1})
    assert single in after.properties
    assert BasicProperties().headers(after) == {**before, "n": 1}


def test_malformed_headers_are_none() -> None:
    for properties in (b"", b"\x20\0\0\0\0\5abcde", b"\0\1"):
        assert BasicProperties().headers(message(properties)) == {}
        assert BasicProperties().with_headers(message(properties), {"a": "b"}).properties
        assert BasicProperties().to_publication(message(properties), "t", 0, None).payload


def test_nothing_is_the_same_object() -> None:
    assert facts_of(NO_PROPERTIES) is PLAIN
    assert rewritten(NO_PROPERTIES, {}) == NO_PROPERTIES


def test_a_publication_of_mqtt_and_back() -> None:
    properties = BasicProperties()
    there = message(
        marshalled(
            {
                "content_type": "text/plain",
                "correlation_id": "c-1",
                "reply_to": "answers.here",
                "headers": {"a": "1", "n": 5},
                "delivery_mode": 2,
            }
        ),
        persistent=True,
    )
    publication = properties.to_publication(there, "a/b", 1, 99.0)
    assert (publication.topic, publication.payload, publication.qos) == ("a/b", b"body", 1)
    assert publication.expires == 99.0
    back = properties.from_publication(publication, "amq.topic", "a.b", 12.5)
    assert back.persistent
    assert (back.exchange, back.routing_key, back.body) == ("amq.topic", "a.b", b"body")
    assert unmarshalled(back.properties) == {
        "content_type": "text/plain",
        "correlation_id": "c-1",
        "reply_to": "answers.here",
        "headers": {"a": "1"},
        "delivery_mode": 2,
        "expiration": "12500",
    }


def test_what_the_other_protocol_cannot_say_is_left_out() -> None:
    properties = BasicProperties()
    odd = message(marshalled({"content_type": "a\0b", "reply_to": "#", "headers": {"a\0": "b"}}))
    assert properties.to_publication(odd, "t", 0, None) == Publication("t", b"body", 0)
    bare = properties.from_publication(Publication("t", b"x", 0), "amq.topic", "t", None)
    assert bare.properties == NO_PROPERTIES
    broken = Publication("t", b"x", 0, properties=b"\xff\xff")
    assert properties.from_publication(broken, "amq.topic", "t", None).properties == NO_PROPERTIES
