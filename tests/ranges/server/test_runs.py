"""Columns of runs: the same as by way of publications, whatever they are."""

from __future__ import annotations

from hypothesis import example, given, settings
from hypothesis import strategies as st

from clearfunds.dataspace import Batch, Publication
from clearfunds.ranges.log import run_columns
from clearfunds.ranges.server._runs import columns_of
from clearfunds.transports.mqtt import Publish, encode
from clearfunds.transports.mqtt.server._runs import publications
from tests.dataspace.conftest import STEADY

MESSAGES = st.tuples(st.sampled_from(["a", "b", "a/ü"]), st.binary(max_size=3), st.integers(1, 4))


@settings(STEADY, max_examples=100)
@given(st.lists(MESSAGES, min_size=1, max_size=6))
@example([("a", b"x" * 200, 3), ("a", b"x" * 20_000, 2), ("a", b"\x30", 2)])
@example([("a", b"0\x04\x00\x01a" * 3, 2)])
def test_they_are_those_of_the_publications(messages: list[tuple[str, bytes, int]]) -> None:
    frames = [encode(Publish(topic, payload)) for topic, payload, n in messages for _ in range(n)]
    run = Batch(b"".join(frames), len(frames), publications)
    slow = run_columns(run)
    run = Batch(run.raw, run.count, lambda _: [Publication("", b"not asked")])
    assert columns_of(run) == slow


@settings(STEADY, max_examples=200)
@given(st.binary(max_size=12), st.integers(0, 3), st.booleans())
def test_anything_else_is_left_to_its_maker(raw: bytes, count: int, looks_like_one: bool) -> None:
    if looks_like_one:
        raw = b"\x30\x05\x00\x01a" + raw
    made = [Publication("made", b"so")]
    keys, values = columns_of(Batch(raw, count, lambda _: made))
    if keys != [b"made"]:
        assert len(keys) == len(values) == count
        rows = zip(keys, values, strict=True)
        assert sum(2 + 2 + len(key) + len(value) for key, value in rows) <= len(raw)
        at = 0
        for part in (part for row in zip(keys, values, strict=True) for part in row):
            at = raw.index(part, at) + len(part)
