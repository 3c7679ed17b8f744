"""Numbers, moments and names as people read them."""

from __future__ import annotations

import html
from html.parser import HTMLParser

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clearfunds import _html as words


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (0, "0"),
        (7, "7"),
        (0.4, "0.4"),
        (999, "999"),
        (1234, "1,234"),
        (12_345, "12.3 k"),
        (130_000, "130 k"),
        (4_500_000, "4.5 M"),
        (2_000_000_000, "2 G"),
    ],
)
def test_count(value: float, said: str) -> None:
    assert words.count(value) == said


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (0, "0 B"),
        (512, "512 B"),
        (1024, "1 KiB"),
        (1536, "1.5 KiB"),
        (8 << 20, "8 MiB"),
        (3.25e8, "310 MiB"),
        (0.5, "0.5 B"),
    ],
)
def test_size(value: float, said: str) -> None:
    assert words.size(value) == said


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0, "0"),
        (85e-6, "85 µs"),
        (0.012, "12 ms"),
        (0.9999, "1 s"),
        (3.5, "3.5 s"),
        (71.2, "71.2 s"),
        (250, "4 min 10 s"),
        (120, "2 min"),
        (7_500, "2 h 5 min"),
        (90_000, "1 d 1 h"),
    ],
)
def test_duration(seconds: float, said: str) -> None:
    assert words.duration(seconds) == said


@pytest.mark.parametrize(
    ("share", "said"),
    [(0, "0 %"), (0.0004, "under 0.1 %"), (0.004, "0.4 %"), (0.92, "92 %"), (1, "100 %")],
)
def test_percent(share: float, said: str) -> None:
    assert words.percent(share) == said


def test_a_period_says_the_day_once() -> None:
    began = 1_795_269_730 * 10**9
    assert words.period(began, began + 60 * 10**9) == "2026-11-21, 14:02:10 to 14:03:10 UTC"
    assert words.period(began, began + 86_400 * 10**9) == (
        "2026-11-21 14:02:10 to 2026-11-22 14:02:10 UTC"
    )


class Seen(HTMLParser):
    """What a browser sees of a piece of HTML: tags and text."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.text = ""
        self.feed(source)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


NASTY = st.text(st.sampled_from("<>&\"'/ax\n\x00\x1b\u202e\u2028é😀`=-!"), max_size=20)


@settings(max_examples=200, deadline=None)
@given(NASTY)
def test_no_name_can_leave_its_element(value: str) -> None:
    seen = Seen(words.name(value))
    assert seen.tags[0] == "bdi"
    assert set(seen.tags) <= {"bdi", "i", "span"}
    assert len(seen.tags) <= 3
    assert seen.text == html.unescape(words.text(value))
    assert seen.text.isprintable() or not value


def test_what_is_printable_stays_as_it_is() -> None:
    assert Seen(words.name("mqtt:1883/press/naïve 😀")).text == "mqtt:1883/press/naïve 😀"
    assert words.text("a\u202eb\n") == "a\\u202eb\\n"
    assert words.name(None) == '<span class="name">&ndash;</span>'
