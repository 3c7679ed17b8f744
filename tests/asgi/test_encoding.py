"""Events as text for browsers, and as server-sent events."""

from __future__ import annotations

import json
from typing import Any

import attrs
import pytest

from clearfunds.asgi._encoding import once, text_of
from clearfunds.asgi._event_stream import encode_event
from clearfunds.dataspace import Asserted, Publication, Retracted


@attrs.frozen
class Price:
    """A value."""

    of: str
    euros: float


def test_texts() -> None:
    assert text_of(Publication("a", "é".encode())) == "é"
    assert text_of(b"bytes") == text_of("bytes") == "bytes"
    price = Price("tea", 2.5)
    assert json.loads(text_of(price)) == {"of": "tea", "euros": 2.5}
    assert json.loads(text_of(Asserted(price))) == {"asserted": {"of": "tea", "euros": 2.5}}
    assert json.loads(text_of(Retracted("x"))) == {"retracted": "x"}
    assert json.loads(text_of([price, 1, None])) == [{"of": "tea", "euros": 2.5}, 1, None]
    with pytest.raises(TypeError, match="give an `encode`"):
        text_of(object())
    with pytest.raises(UnicodeDecodeError):
        text_of(Publication("a", b"\xff"))


def test_a_publication_is_encoded_once_and_what_may_change_each_time() -> None:
    encoded: list[Any] = []

    def encode(event: Any) -> str:
        encoded.append(event)
        return text_of(event)

    encode_once = once(encode)
    first, second = Publication("a", b"1"), Publication("a", b"2")
    assert [encode_once(each) for each in (first, first, second, second, first)] == list("11221")
    assert len(encoded) == 3
    counts = {"n": 1}
    assert encode_once(counts) == '{"n": 1}'
    counts["n"] = 2
    assert encode_once(counts) == '{"n": 2}'


def test_each_line_of_an_event_is_a_field() -> None:
    assert encode_event("a\r\nb\nc\rd") == b"data: a\ndata: b\ndata: c\ndata: d\n\n"
    assert encode_event("") == b"data: \n\n"
    # Other ends of lines are none in this format.
    assert encode_event("a\u2028b", "news") == "event: news\ndata: a\u2028b\n\n".encode()
