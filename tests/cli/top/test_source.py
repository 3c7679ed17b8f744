"""Where `clearfunds top` looks, and how often."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import pytest

from clearfunds._cli._errors import UsageError
from clearfunds._cli._page import pages_url
from clearfunds._cli._top._source import pause_after

if TYPE_CHECKING:
    from clearfunds.pages._top_json import TopPage


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("http://127.0.0.1:9100", "http://127.0.0.1:9100"),
        ("http://127.0.0.1:9100/", "http://127.0.0.1:9100"),
        ("relay.example:81", "http://relay.example:81"),
        ("relay.example:81/w-1/", "http://relay.example:81/w-1"),
        ("relay.example", "http://relay.example:9100"),
        ("[::1]:81", "http://[::1]:81"),
        ("http://[::1]", "http://[::1]:9100"),
        ("https://relay.example", "https://relay.example:9100"),
    ],
)
def test_where_it_looks(text: str, url: str) -> None:
    assert pages_url(text) == url


@pytest.mark.parametrize("text", ["", "ftp://here", "here:0x1", "http://[::1", "here/page", "/x"])
def test_where_it_cannot_look(text: str) -> None:
    with pytest.raises(UsageError, match=r"write http://HOST:PORT"):
        pages_url(text)


@pytest.mark.parametrize(
    ("busy", "interval", "pause"), [(0.5, 1.0, 1.0), (90.0, 1.0, 4.5), (90.0, 10.0, 10.0)]
)
def test_looking_takes_a_fiftieth_of_a_core_at_most(
    busy: float, interval: float, pause: float
) -> None:
    page = cast("TopPage", {"busy_ms": busy})
    assert pause_after(page, interval) == pytest.approx(pause)
