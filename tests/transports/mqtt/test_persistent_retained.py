"""Retained publications as small values in the store, and back; those of older versions, too."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clearfunds.accounts import Ledger
from clearfunds.dataspace import Publication, RetainedStore
from clearfunds.transports.mqtt.server._persistent_retained import RETAINED_PREFIX, persist_retained


class Values:
    """What is kept, in RAM."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}

    def set(self, key: str, value: bytes) -> None:
        self.values[key] = value

    def delete(self, key: str) -> None:
        self.values.pop(key, None)


def opened(values: Any, ledger: Ledger, now: float = 0.0) -> RetainedStore:
    store = RetainedStore(100, 1 << 20)
    store.wall = lambda: now
    persist_retained(store, ledger, values, dict(values.values))
    return store


publications = st.builds(
    Publication,
    st.sampled_from(["a", "a/b", "ä"]),
    st.binary(min_size=1, max_size=40),
    st.integers(0, 2),
    st.just(True),
    st.binary(max_size=40),
    st.none() | st.floats(1, 1e11),
)


@given(publications, st.text(max_size=20))
def test_all_of_it_comes_back(publication: Publication, owner: str) -> None:
    values, ledger = Values(), Ledger()
    store = opened(values, ledger)
    store.set(publication, ledger.standing_of(owner))
    again = Ledger()
    found = opened(values, again)
    assert list(found.matching("#")) == [publication]
    assert again.standing_of(owner).bytes == publication.nbytes


def test_what_older_versions_have_written_is_read_and_written_still() -> None:
    values, ledger = Values(), Ledger()
    key = RETAINED_PREFIX + "a/b"
    values.set(key, b"\x02\x00\x00\x00\x03who\x00payload")
    store = opened(values, ledger)
    assert store.get("a/b") == Publication("a/b", b"\x00payload", 2, retain=True)
    assert ledger.standing_of("who").items == 1
    value = values.values.pop(key)
    store.set(Publication("a/b", b"\x00payload", 2, retain=True), ledger.standing_of("who"))
    assert values.values == {key: value}


def test_what_has_expired_is_dropped_from_disk_too() -> None:
    values, ledger = Values(), Ledger()
    store = opened(values, ledger)
    for topic, expires in (("a", 10.0), ("b", 20.0), ("c", None)):
        publication = Publication(topic, b"1", retain=True, expires=expires)
        store.set(publication, ledger.standing_of("who"))
    store.expire(5.0)
    found = opened(values, Ledger(), 10.0)
    assert sorted(found.topics("#")) == ["b", "c"]
    assert sorted(values.values) == [RETAINED_PREFIX + "b", RETAINED_PREFIX + "c"]
    found.expire(20.0)
    assert sorted(values.values) == [RETAINED_PREFIX + "c"]


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"\x03\x00\x00\x00\x00x",
        b"\x10\x00\x00\x00\x00x",
        b"\x04\x00\x00\x00\x001234567",
        b"\x04\x00\x00\x00\x0012345678",
        b"\x08\x00\x00\x00\x00\x00\x00\x00\x0512345",
        b"\x0c\x00\x00\x00\x00",
    ],
)
def test_what_is_none_is_left_and_named(value: bytes, caplog: pytest.LogCaptureFixture) -> None:
    values = Values()
    values.set(RETAINED_PREFIX + "a", value)
    assert len(opened(values, Ledger())) == 0
    assert "is not a retained publication" in caplog.text
    assert values.values
